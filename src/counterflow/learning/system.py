"""A whole system from logs, from what units without a model have sent.

Each unit has sent a few numbers a row, s_m = Wᵀ(standardised y_m), and its inputs. The server learns the network of
units (``counterflow.learning.network``), which effects are computed with; and writes its linear part as a state-space
system, for questions that are asked of states::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],      s_m[t] = [I 0] h_m[t] + v_m[t]

The first states of a unit are its numbers without their noise; the others carry the rest, such as delays.

The responses of the numbers to inputs and to innovations fill a block Hankel matrix; its leading singular vectors are
states (Ho and Kalman, 1966; Kung, 1978). The range is found by random projections, as the matrix can be large. These
states belong to nobody; then the system is written so that every state has an owner, and in the form of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, slices
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import OptionError
from counterflow.filtering.covariances import lyapunov, spectral_radius
from counterflow.identification import LaggedGram, independent_noises
from counterflow.learning.augmentation import drop_outliers
from counterflow.learning.block_moments import Rows
from counterflow.learning.drift import Drift
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import own_blocks
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network import Network
from counterflow.learning.network_learning import Learning, learn
from counterflow.learning.optimiser import Estimated
from counterflow.learning.regime_sums import Regime
from counterflow.protocol import Reduced

PRESENT, ALL = "present", "all"  # which way of running a fit is about
ROWS_NAMED = 3  # of rows that a caveat tells of
REGIME_CHANGED, DRIFT_FOLLOWED = "regime-changed", "drift-followed"
HELD_OUT = 0.3  # of the rows, the last ones, decide
WORTH = 0.005  # nats a row that an input acting on its own row must be worth, to be taken to do so
CHUNK = 8192  # windows at once
PIECES, PIECE = 5, 100  # of the held-out rows, whose median decides; rows of one at the least
OFTEN = 0.5  # share of rows in which numbers that decide are read
LAGS = 6  # rows of past in the regressions that decide
STABLE = 1 - 1e-6  # largest modulus of an eigenvalue of A that is left as it is
MOST_STATES = 40
DEPTH = 60  # block rows of the Hankel matrix, and block columns
FAINT = 2e-3  # of the largest singular value: smaller ones are left out
EXTRA = 10  # random directions more than states
LIKELY_ROWS = 20_000  # the newest, whose likelihood is told: nothing rests on it


@dataclass(frozen=True, eq=False)
class IdentifiedSystem:
    """What the server has found: the network, its linear part in the form of sufficient messages, and how it came."""

    network: Network
    record: SharedRecord
    found: Estimated
    observation: FloatArray  # (r, P) of the units' own numbers, block-diagonal
    noise: FloatArray  # (r, r), block-diagonal
    input_level: FloatArray  # (U,)
    same_row: tuple[bool, ...]
    notes: tuple[Caveat, ...]
    regimes: tuple[Regime, ...] = ()


def identify(
    messages: Sequence[Reduced], same_row: Mapping[str, bool], known: KnownEdges | None, regime: str | int,
    as_they_are: frozenset[str], progress: Callable[[float, str], None] | None = None,
) -> IdentifiedSystem:  # fmt: skip
    """Find the system behind the messages of all units; all readings of units ``as_they_are`` are kept.

    ``same_row``: whether inputs of a unit act on their own row, as far as that is known.
    """
    names = tuple(message.unit for message in messages)
    s, variance, own = _numbers(messages)
    inputs = [message.inputs for message in messages]
    level, scale = _input_scale(np.hstack(inputs))
    given = {message.unit: False for message in messages if message.later} | dict(same_row)
    acts_at_once, unsure = alignment(names, s, inputs, scale, given)
    aligned = [np.vstack([v[1:], v[-1:]]) if ahead else v for v, ahead in zip(inputs, acts_at_once, strict=True)]
    widths = tuple(v.shape[1] for v in inputs)
    numbers = tuple(mine.stop - mine.start for mine in own)
    rows = Rows(names, numbers, widths, np.hstack([s, np.hstack(aligned) - level]), variance=variance)
    ahead = [name for name, yes in zip(names, acts_at_once, strict=True) if yes]
    acting = "inputs act on the next row"
    if ahead:
        acting = f"inputs of {', '.join(ahead)} act on their own row, others on the next"
    how = "as given" if given else "by the likelihood of held-out rows"
    notes = [Caveat("input-alignment", scope_of(names), f"{acting} ({how})")]
    text = (
        "inputs of {} are taken to act on their own row, but earlier measurements foretell them: if a controller sets "
        "them from their own row's measurements, effects of them are wrong, even in sign, and their intervals do not "
        "say so; then fit with same_row=False for this unit"
    )
    notes += [Caveat("alignment-unsure", name, text.format(name)) for name in unsure]
    if isinstance(regime, int) and regime >= len(s):
        raise OptionError(f"fit: option 'regime' is row {regime}, and the record ends with row {len(s) - 1}")
    kept = drop_outliers(rows, known, as_they_are)
    notes += _wild(rows, kept)
    learned = learn(kept, known, progress, one_way=regime == ALL)
    found = system_of(kept, learned.at(regime) if isinstance(regime, int) else learned)
    return replace(found, input_level=level, same_row=acts_at_once, notes=(*found.notes, *notes))


def system_of(rows: Rows, learned: Learning) -> IdentifiedSystem:
    """The system of rows whose inputs are departures from their level and act on the next row."""
    r, everybody = sum(rows.numbers), scope_of(rows.names)
    s, u = rows.z[:, :r], rows.z[:, r:]
    owned = assign_states(realised(learned.sparse[learned.chosen]), rows.names, s, u, slices(rows.numbers), rows.inputs)
    notes = [Caveat("model-form", everybody, learned.words)]
    products = learned.products
    if products.used < products.count:
        text = f"of {products.count:,.0f} rows, {products.used:,} in {len(products.blocks)} stretches were learned from"
        notes.append(Caveat("rows-thinned", everybody, text))
    regimes = learned.regimes(len(rows.z))
    notes += [_drifting(drift, rows.names[drift.unit], products.count) for drift in learned.drifts]
    for regime in [each for each in regimes if each.units]:
        text = (
            f"{' and '.join(regime.units)} changed at row {regime.start}: questions from now on rest on the rows since "
            "the last change, and on what earlier rows share with them; those about earlier rows use the way of "
            "running of their time (regime='all': one model of all rows)"
        )
        notes.append(Caveat(REGIME_CHANGED, scope_of(regime.units), text))
    level, same_row = np.zeros(sum(rows.inputs)), (False,) * len(rows.names)
    return IdentifiedSystem(learned.network, *owned, level, same_row, tuple(notes), regimes)


def _drifting(drift: Drift, unit: str, rows: float) -> Caveat:
    """That a unit changes slowly, and what was done about it."""
    how = "its weights go evenly with time, and answers are for the last row"
    if drift.memory is not None:
        how = (
            f"with a memory of {drift.memory * rows:,.0f} rows, held-out rows err {100 * drift.gain:.1f} % less, so "
            "older rows count less"
        )
    return Caveat(DRIFT_FOLLOWED, unit, f"{unit} drifts: {how} (regime='all': one model of all rows)")


def _wild(rows: Rows, kept: Rows) -> list[Caveat]:
    """Which units have sent readings that nothing else in the record explains."""
    gone, out = np.isfinite(rows.z) & ~np.isfinite(kept.z), []
    for m, name in enumerate(rows.names):
        at = np.flatnonzero(gone[:, rows.owner == m].any(axis=1)).tolist()
        if at:
            where = ", ".join(map(str, at[:ROWS_NAMED])) + f" and {len(at) - ROWS_NAMED} more" * (len(at) > ROWS_NAMED)
            word = "row" if len(at) == 1 else "rows"
            text = (
                f"{name}: what it sent in {len(at)} {word} looks like spikes ({word} {where}). It was left out; see "
                "whether a sensor is at fault (sensors='as they are' keeps it)"
            )
            out.append(Caveat("wild-readings", name, text))
    return out


def _numbers(messages: Sequence[Reduced]) -> tuple[FloatArray, FloatArray, tuple[slice, ...]]:
    """All numbers side by side, NaN where nothing is known of them; the variances of those known in part."""
    rows = messages[0].inputs.shape[0]
    own = slices(message.values.shape[1] for message in messages)
    out, variance = np.full((rows, own[-1].stop), np.nan), np.zeros((rows, own[-1].stop))
    for message, mine in zip(messages, own, strict=True):
        doubt = message.variance
        out[message.rows, mine] = np.where(doubt < 0, np.nan, message.values)
        variance[message.rows, mine] = np.maximum(doubt, 0.0)
    return out, variance, own


def _input_scale(u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of all inputs; 1 for one that never moved."""
    level, spread = u.mean(axis=0), u.std(axis=0)
    still = spread <= 1e-9 * np.maximum(np.abs(u).max(axis=0, initial=0.0), 1e-300)
    return level, np.where(still, 1.0, spread)


# ---- which row an input acts on: the next one, or its own, where a log shows at the end of a row what was done in it


def alignment(
    names: tuple[str, ...], s: FloatArray, inputs: Sequence[FloatArray], scale: FloatArray,
    given: Mapping[str, bool] | None,
) -> tuple[tuple[bool, ...], tuple[str, ...]]:  # fmt: skip
    """For each unit, whether knowing its input of row t helps to predict row t, given everything before.

    So it would, too, if a controller set the input from that row's measurements. Then earlier measurements foretell
    the input as well; units of which that is true are named, because rows alone cannot tell the two apart.
    """
    chosen, unsure = dict(given or {}), []
    if len(chosen) < len(names):
        u = np.hstack(list(inputs))
        u = (u - u.mean(axis=0)) / scale
        one, two, pieces = _grams(s[:, np.isfinite(s).mean(axis=0) >= OFTEN], u)  # what comes seldom decides nothing
        if one.outputs and one.windows > 2 * one.columns * (LAGS + 1) and two.windows > 0:
            ends = np.cumsum([0, *(v.shape[1] for v in inputs)])
            everything = _scores(one, pieces, np.arange(u.shape[1]))
            for k, name in enumerate(names):
                others = np.concatenate([np.arange(ends[k]), np.arange(ends[k + 1], u.shape[1])])
                # by the median of some stretches: a few rows in which a limit is met must not decide
                worth = float(np.median(everything - _scores(one, pieces, others))) if ends[k + 1] > ends[k] else 0.0
                if name not in chosen and worth > max(WORTH, 5 / two.windows):
                    chosen[name] = True
                    if _reacts(one, two, np.arange(ends[k], ends[k + 1])):
                        unsure.append(name)
    return tuple(bool(chosen.get(name, False)) for name in names), tuple(unsure)


def _reacts(train: LaggedGram, test: LaggedGram, columns: NDArray[np.intp]) -> bool:
    """Whether earlier numbers foretell these inputs better than all earlier inputs do by themselves."""
    r, m, window = train.outputs, train.columns, train.window
    last = (window - 1) * m
    target = last + r + columns
    inputs = np.concatenate([row * m + r + np.arange(m - r) for row in range(window - 1)])
    with_numbers, without = _score(train, test, target, np.arange(last)), _score(train, test, target, inputs)
    return with_numbers - without > max(2 * WORTH, 5 / test.windows)


def _grams(s: FloatArray, u: FloatArray) -> tuple[LaggedGram, LaggedGram, list[LaggedGram]]:
    """Products of windows of rows that decide: of the first ones, of those held out, and of pieces of these.

    A window ends in a row in which every number is read; before, the last reading stands in for a missing one: it looks
    back only, so that no input seems to be foretold.
    """
    at = LAGS + np.flatnonzero(np.isfinite(s[LAGS:]).all(axis=1))
    z = np.hstack([last_readings(s), u])
    cut = int((1 - HELD_OUT) * len(at))
    count = int(np.clip((len(at) - cut) // PIECE, 1, PIECES))
    pieces = [_gram(z, s.shape[1], part) for part in np.array_split(at[cut:], count)]
    together = np.sum([piece.matrix for piece in pieces], axis=0)
    return _gram(z, s.shape[1], at[:cut]), replace(pieces[0], matrix=together, windows=len(at) - cut), pieces


def _gram(z: FloatArray, outputs: int, at: NDArray[np.intp]) -> LaggedGram:
    m = z.shape[1]
    matrix = np.zeros(((LAGS + 1) * m, (LAGS + 1) * m))
    for begin in range(0, len(at), CHUNK):
        some = at[begin : begin + CHUNK]
        window = z[some[:, None] - LAGS + np.arange(LAGS + 1)].reshape(len(some), -1)
        matrix += window.T @ window
    return LaggedGram(matrix=matrix, windows=len(at), window=LAGS + 1, outputs=outputs, inputs=m - outputs)


def last_readings(s: FloatArray) -> FloatArray:
    """Numbers (T, r) with the last reading where one is missing; before the first, that one."""
    known = np.isfinite(s)
    last = np.maximum.accumulate(np.where(known, np.arange(len(s))[:, None], -1), axis=0)
    held = np.take_along_axis(s, np.where(last < 0, np.argmax(known, axis=0), last), axis=0)
    return np.where(np.isfinite(held), held, 0.0)


def _scores(train: LaggedGram, pieces: Sequence[LaggedGram], now: NDArray[np.intp]) -> FloatArray:
    """Log-likelihood a row of the numbers, given their past, past inputs, and inputs ``now`` of their row; by piece."""
    r, m, window = train.outputs, train.columns, train.window
    last = (window - 1) * m
    given = np.concatenate([np.arange(last), last + r + now])
    return np.array([_score(train, piece, last + np.arange(r), given) for piece in pieces])


def _score(train: LaggedGram, test: LaggedGram, target: NDArray[np.intp], given: NDArray[np.intp]) -> float:
    """Held-out log-likelihood a row of columns ``target`` of a window, given columns ``given``."""
    r, size = len(target), train.window * train.columns
    G = train.matrix / train.windows
    ridge = 1e-6 * np.diag(np.diag(G[np.ix_(given, given)])) + 1e-12 * np.eye(len(given))
    W = np.linalg.solve(G[np.ix_(given, given)] + ridge, G[np.ix_(given, target)]).T
    combine = np.zeros((r, size))
    combine[:, target], combine[:, given] = np.eye(r), -W
    inside, outside = (combine @ g.matrix @ combine.T / g.windows for g in (train, test))
    inside = inside + 1e-9 * np.diag(np.maximum(np.diag(G)[target], 1e-12))
    _, volume = np.linalg.slogdet(inside)
    return float(-0.5 * (volume + np.trace(np.linalg.solve(inside, outside))))


# ---- the linear part of a network as a system of states


@dataclass(frozen=True, eq=False)
class Realised:
    """x[t+1] = A x[t] + B u[t] + K e[t],  s[t] = C x[t] + e[t],  Cov(e) = noise; s and u as departures, own terms."""

    A: FloatArray
    B: FloatArray
    C: FloatArray
    K: FloatArray
    noise: FloatArray


def realised(network: Network) -> Realised:
    """The system of the mean of all replicates."""
    r, m = network.size, network.linear.shape[2]
    columns = np.concatenate([np.arange(r, m), np.arange(r)])
    responses = network.responses(columns, 2 * DEPTH)  # (2 depth, r, U + r): of inputs, then of innovations
    inputs = m - r
    hankel = np.empty((DEPTH, r, DEPTH, m))
    for i in range(DEPTH):
        hankel[i] = responses[i : i + DEPTH].transpose(1, 0, 2)
    H = hankel.reshape(DEPTH * r, DEPTH * m)
    most = min(MOST_STATES, DEPTH * r)
    rng = np.random.default_rng(0)
    sketch = H @ rng.standard_normal((H.shape[1], min(most + EXTRA, *H.shape)))
    for _ in range(2):
        sketch = H @ (H.T @ np.linalg.qr(sketch)[0])
    basis = np.linalg.qr(sketch)[0]
    left, values, _ = np.linalg.svd(basis.T @ H, full_matrices=False)
    order = max(1, min(most, int((values > FAINT * values[0]).sum()))) if values[0] > 0 else 1
    seen = (basis @ left[:, :order]) * np.sqrt(np.maximum(values[:order], 1e-300))  # observability, (depth · r, N)
    A = shrink(np.linalg.lstsq(seen[:-r], seen[r:], rcond=None)[0])
    C = seen[:r]
    drive = np.linalg.lstsq(seen, responses[:DEPTH].reshape(DEPTH * r, m), rcond=None)[0]  # B and K, (N, U + r)
    number, input_ = network.scale[:r], network.scale[r:]
    noise = number[:, None] * network.noise * number
    return Realised(A, drive[:, :inputs] / input_, number[:, None] * C, drive[:, inputs:] / number, noise)


def shrink(A: FloatArray, limit: float = STABLE) -> FloatArray:
    """Bring the eigenvalues of A that lie outside of a disc onto its edge and leave the others where they are.

    Works on the real Schur form, so that it is as safe for repeated eigenvalues as for distinct ones.
    """
    from scipy.linalg import schur

    form, Z = schur(A)
    k = 0
    while k < len(A):
        size = 2 if k + 1 < len(A) and form[k + 1, k] != 0 else 1
        block = form[k : k + size, k : k + size]
        radius = spectral_radius(block)
        if radius > limit:
            block *= limit / radius
        k += size
    return np.asarray(Z @ form @ Z.T)


def assign_states(
    system: Realised, names: tuple[str, ...], s: FloatArray, u: FloatArray, own: Sequence[slice],
    inputs: tuple[int, ...],
) -> tuple[SharedRecord, Estimated, FloatArray, FloatArray]:  # fmt: skip
    """Add the units' numbers to the states, and give every other state to the unit whose numbers it moves most.

    ``s`` (T+1, r), ``u`` (T+1, U): numbers and inputs of all units; ``own``: where each unit's numbers stand. What is
    returned: record and estimate in the form of sufficient messages, how numbers see the states (r, P), their noise.
    """
    Q, noise = independent_noises(system.A, system.C, system.K, system.noise)
    A, B, C = system.A, system.B, system.C
    N, r = len(A), len(C)
    drive = u @ B.T
    spread = lyapunov(A, Q + drive.T @ drive / len(u))
    energy = C**2 * np.diag(spread)  # what each state adds to each number
    owner = np.array([energy[mine].sum(axis=0) for mine in own]).argmax(axis=0)
    rows, states, columns = [], [], np.zeros(N, np.intp)
    observation, at = np.zeros((r, N + r)), 0
    for m, mine in enumerate(own):
        hidden, width = np.flatnonzero(owner == m), mine.stop - mine.start
        observation[mine, at : at + width] = np.eye(width)
        rows += [C[mine], np.eye(N)[hidden]]
        columns[hidden] = at + width + np.arange(len(hidden))
        states.append(width + len(hidden))
        at += states[-1]
    T = np.vstack(rows)  # the new states are T times the old ones
    wide = np.zeros((N + r, N + r))
    wide[:, columns] = T @ A
    R = own_blocks(noise, own, own)
    blocks, spread_noise = slices(states), T @ Q @ T.T
    record = SharedRecord(
        names, tuple(states), inputs, values=s, u=u, observation=observation, noise=R,
        A_local=own_blocks(wide, blocks, blocks), B_local=own_blocks(T @ B, blocks, slices(inputs)),
        Q_local=own_blocks(spread_noise, blocks, blocks),
    ).squeezed  # fmt: skip
    likelihood = record.last(LIKELY_ROWS).filter(wide, T @ B, spread_noise).log_likelihood
    estimate = Estimated(wide, T @ B, spread_noise, likelihood, 1, True, 0.0)
    return record, estimate, observation, R
