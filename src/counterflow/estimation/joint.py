"""A whole system from logs: all blocks of A and B and all noises, from what units without a model have sent.

Each unit has sent a few numbers a row, s_m = Wᵀ(standardised y_m), and its inputs. The states of unit m are those
numbers without their noise, and as many hidden ones as its past calls for (the *partitioned* form)::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],      s_m[t] = [I 0] h_m[t] + v_m[t]

[I 0] is no restriction: it fixes the basis of a unit's states, in which nothing else depends on it. The start is the
free form (``counterflow.estimation.free``) in a basis in which every state has an owner, which changes no effect; then
all blocks are refined together by maximum likelihood, with process noises that units do not share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal, slices
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import UnidentifiedError
from counterflow.estimation.free import (
    FLAT,
    FreeSystem,
    identify_free,
    least_noises,
    middle_stretch,
    roomier,
    roomy,
    standard_free,
)
from counterflow.estimation.network import Network
from counterflow.estimation.network_learning import Rows, learn, products_of
from counterflow.estimation.realisation import realised
from counterflow.estimation.known_edges import KnownEdges
from counterflow.estimation.layout import own_blocks
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.optimiser import Estimated, maximum_likelihood
from counterflow.estimation.parameters import Parameters
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.filtering import compress
from counterflow.identification import LaggedGram, independent_noises, lagged_gram, stretches
from counterflow.identification.subspace import shrink
from counterflow.protocol import Reduced

HELD_OUT = 0.3  # of the rows, the last ones, decide on alignment and order
WORTH = 0.005  # nats a row that an input acting on its own row must be worth, to be taken to do so
LAGS = 6  # rows of past in the regressions that decide on alignment
LONGEST_PAST = 24  # rows of past in a subspace identification
MOST_COLUMNS = 2400  # of a window in a subspace identification
FEW = 12  # passes over a long record, after the stretch


@dataclass(frozen=True)
class JointOptions:
    """What is asked of the identification; None: decided by what the rest of the data say."""

    order: int | Mapping[str, int] | None = None  # states of each unit; of the whole system in the free form
    same_row: bool | Mapping[str, bool] | None = None
    form: str = "network"
    known: KnownEdges | None = None
    tolerance: float = 1e-3
    evaluations: int = 100


@dataclass(frozen=True, eq=False)
class System:
    """What the server has found: the estimate and its record in the form of sufficient messages, and how it came."""

    record: SharedRecord
    found: Estimated
    observation: FloatArray  # (r, P) of the units' own numbers, block-diagonal
    noise: FloatArray  # (r, r), block-diagonal
    number_slices: tuple[slice, ...]  # where each unit's numbers stand
    input_level: FloatArray  # (U,)
    same_row: tuple[bool, ...]
    notes: tuple[Caveat, ...]
    spread: Uncertainty | None = None  # of the free form; that of the partitioned form is asked for by who needs it
    network: Network | None = None


def identify(
    messages: Sequence[Reduced], options: JointOptions, progress: Callable[[int, float], None] | None = None
) -> System:
    """Find the system behind the messages of all units."""
    names = tuple(message.unit for message in messages)
    s, own = _numbers(messages)
    level, scale = _input_scale(messages)
    runs = stretches(s, 4 * LAGS)
    if not runs:
        missing = {n: int(np.isnan(s[:, o]).any(axis=1).sum()) for n, o in zip(names, own, strict=True)}
        raise UnidentifiedError(
            f"identification: no {4 * LAGS} rows in a row in which every unit was measured (missing rows: {missing}); "
            "record all units over a common period"
        )
    inputs = [message.inputs for message in messages]
    same_row, unsure = _alignment(names, s, inputs, scale, runs, options.same_row)
    u = np.hstack([_ahead(v) if ahead else v for v, ahead in zip(inputs, same_row, strict=True)])
    widths = tuple(v.shape[1] for v in inputs)
    if options.form == "network":
        network, free = _network(names, s, u - level, own, widths, options.known, progress)
        record, found, observation, noise, _ = standard_free(free, names, widths, own, np.ones_like(scale))
        notes = _notes(names, same_row, unsure, "network", options)
        return System(record, found, observation, noise, own, level, same_row, notes, network=network)
    u = (u - level) / scale
    states = _wanted(names, own, options.order)
    order = sum(states.values()) if states else options.order
    assert order is None or isinstance(order, int)
    free = _free(s, u, runs, order, options, progress)
    if options.form == "free":
        record, found, observation, noise, spread = standard_free(free, names, widths, own, scale)
        text = f"{len(free.found.A)} states that belong to no unit ({{}}); couplings between units are not among them"
        notes = _notes(names, same_row, unsure, text, options)
        return System(record, found, observation, noise, own, level, same_row, notes, spread)
    start = _partition(names, free, own, states)
    record = _record(names, s, u, start, widths)
    found = _refined(record, start, options, progress)
    sizes = ", ".join(f"{name} {count}" for name, count in zip(names, start.states, strict=True))
    notes = _notes(names, same_row, unsure, f"states of each unit ({{}}): {sizes}", options)
    return _standard(record, found, own, scale, level, same_row, notes)


def _network(
    names: tuple[str, ...], s: FloatArray, u: FloatArray, own: tuple[slice, ...], widths: tuple[int, ...],
    known: KnownEdges | None, progress: Callable[[int, float], None] | None,
) -> tuple[Network, FreeSystem]:  # fmt: skip
    """The network of units, and its linear part as a system whose states belong to nobody."""
    rows = Rows(names, tuple(mine.stop - mine.start for mine in own), widths, np.hstack([s, u]))
    network = learn(rows, products_of(rows), known, progress)
    system = realised(network)
    Q, R = independent_noises(system.A, system.C, system.K, system.noise)
    record = SharedRecord(
        names=("all units",), states=(len(Q),), inputs=(u.shape[1],), values=s, u=u, observation=system.C, noise=R,
        A_local=system.A, B_local=system.B, Q_local=Q,
    )  # fmt: skip
    found = Estimated(system.A, system.B, Q, 0.0, len(network.linear), True, 0.0)
    return network, FreeSystem(record, found)


# ---- what has arrived


def _numbers(messages: Sequence[Reduced]) -> tuple[FloatArray, tuple[slice, ...]]:
    """All numbers side by side, NaN where a unit is missing."""
    rows = messages[0].inputs.shape[0]
    own = slices(message.values.shape[1] for message in messages)
    out = np.full((rows, own[-1].stop), np.nan)
    for message, mine in zip(messages, own, strict=True):
        out[message.rows, mine] = message.values
    return out, own


def _input_scale(messages: Sequence[Reduced]) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of all inputs; 1 for one that never moved."""
    u = np.hstack([message.inputs for message in messages])
    level = u.mean(axis=0)
    spread = u.std(axis=0)
    still = spread <= 1e-9 * np.maximum(np.abs(u).max(axis=0, initial=0.0), 1e-300)
    return level, np.where(still, 1.0, spread)


def _ahead(u: FloatArray) -> FloatArray:
    """Inputs one row earlier, the last one held (as ``counterflow.plant.OperatingPoint`` does)."""
    return np.vstack([u[1:], u[-1:]])


# ---- which row an input acts on


def _alignment(
    names: tuple[str, ...], s: FloatArray, inputs: Sequence[FloatArray], scale: FloatArray, runs: Sequence[slice],
    given: bool | Mapping[str, bool] | None,
) -> tuple[tuple[bool, ...], tuple[str, ...]]:  # fmt: skip
    """For each unit, whether knowing its input of row t helps to predict row t, given everything before.

    So it would, too, if a controller set the input from that row's measurements. Then earlier measurements foretell
    the input as well; units of which that is true are named, because rows alone cannot tell the two apart.
    """
    if isinstance(given, bool):
        return (given,) * len(names), ()
    chosen, unsure = dict(given or {}), []
    if len(chosen) < len(names):
        u = np.hstack(list(inputs))
        u = (u - u.mean(axis=0)) / scale
        train, test = _split(runs, len(s), LAGS + 2)
        one, two = (lagged_gram(s, u, LAGS + 1, part) for part in (train, test))
        if one.windows > 2 * one.columns * (LAGS + 1) and two.windows > 0:
            ends = np.cumsum([0, *(v.shape[1] for v in inputs)])
            everything = _regression_score(one, two, np.arange(u.shape[1]))
            for k, name in enumerate(names):
                others = np.concatenate([np.arange(ends[k]), np.arange(ends[k + 1], u.shape[1])])
                worth = everything - _regression_score(one, two, others) if ends[k + 1] > ends[k] else 0.0
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


def _split(runs: Sequence[slice], rows: int, least: int) -> tuple[list[slice], list[slice]]:
    """Stretches before and after the row from which on data are held out."""
    measured = sum(run.stop - run.start for run in runs)
    left, edge = (1 - HELD_OUT) * measured, rows
    for run in runs:
        if left < run.stop - run.start:
            edge = run.start + int(left)
            break
        left -= run.stop - run.start
    before = [slice(run.start, min(run.stop, edge)) for run in runs if run.start < edge]
    after = [slice(max(run.start, edge), run.stop) for run in runs if run.stop > edge]
    return [r for r in before if r.stop - r.start >= least], [r for r in after if r.stop - r.start >= least]


def _regression_score(train: LaggedGram, test: LaggedGram, now: NDArray[np.intp]) -> float:
    """Held-out log-likelihood a row of the numbers, given their past, past inputs, and inputs ``now`` of their row."""
    r, m, window = train.outputs, train.columns, train.window
    last = (window - 1) * m
    return _score(train, test, last + np.arange(r), np.concatenate([np.arange(last), last + r + now]))


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


# ---- the start


@dataclass(frozen=True)
class _Start:
    """Where the likelihood climbs from, block by block."""

    A: FloatArray
    B: FloatArray
    Q: FloatArray
    R: FloatArray
    C: FloatArray
    states: tuple[int, ...]


def _wanted(
    names: tuple[str, ...], own: tuple[slice, ...], order: int | Mapping[str, int] | None
) -> dict[str, int] | None:
    """States of each unit, if somebody has said: at least one a number; where only some are given, that for others."""
    if not isinstance(order, Mapping):
        return None
    numbers = {name: mine.stop - mine.start for name, mine in zip(names, own, strict=True)}
    return {name: max(order.get(name, count), count) for name, count in numbers.items()}


def _free(
    s: FloatArray, u: FloatArray, runs: Sequence[slice], order: int | None, options: JointOptions,
    progress: Callable[[int, float], None] | None,
) -> FreeSystem:  # fmt: skip
    """The system without owners of its states; of a long record, by a stretch in its middle and all of its products."""
    past, future, long = _windows(s.shape[1], u.shape[1], runs)
    split = _split(long, len(s), past + future + 2)
    passes = options.evaluations if options.form == "free" else max(options.evaluations // 2, 1)
    return identify_free(s, u, (past, future, long), split, order, options.tolerance, passes, progress)


def _windows(outputs: int, inputs: int, runs: Sequence[slice]) -> tuple[int, int, list[slice]]:
    """Past and future of a subspace identification, and the stretches that are long enough for it."""
    columns = outputs + inputs
    longest = max(run.stop - run.start for run in runs)
    past = int(np.clip(min(MOST_COLUMNS // (2 * columns), longest // 8), 2, LONGEST_PAST))
    rows = sum(run.stop - run.start for run in runs)
    while past > 2 and rows < 4 * past * columns:
        past -= 1
    future = max(past, 3)
    return past, future, [run for run in runs if run.stop - run.start > past + future + 1]


def _partition(
    names: tuple[str, ...], free: FreeSystem, own: tuple[slice, ...], wanted: Mapping[str, int] | None
) -> _Start:
    """The free system in a basis in which every state belongs to a unit, and its effects are what they were.

    The first states of a unit are its numbers without their noise, s̄_m = C_m h. Directions of h that no number shows
    are hidden states, each of the unit whose numbers it moves most in the next row.
    """
    A, B, Q, C = free.found.A, free.found.B, free.found.Q, free.C
    N, r = len(A), len(C)
    directions = np.linalg.svd(C)[2]
    hidden = directions[min(r, N) :]
    pull = np.array([np.linalg.norm(C[mine] @ A @ hidden.T, axis=0) for mine in own])  # (M, hidden)
    room = [
        len(hidden) if wanted is None else wanted[name] - (mine.stop - mine.start)
        for name, mine in zip(names, own, strict=True)
    ]
    owners: list[list[int]] = [[] for _ in own]
    for j in np.argsort(-pull.max(axis=0, initial=0.0)) if len(hidden) else []:
        m = max((m for m in range(len(own)) if len(owners[m]) < room[m]), key=lambda m: pull[m, j], default=0)
        owners[m].append(int(j))
    rows, states, at = [], [], 0
    observation = np.zeros((r, r + len(hidden)))
    for mine, extra in zip(own, owners, strict=True):
        width = mine.stop - mine.start
        observation[mine, at : at + width] = np.eye(width)
        size = float(np.sqrt(np.square(C[mine]).sum() / max(width, 1)))
        rows += [C[mine], (size or 1.0) * hidden[extra]]
        states.append(width + len(extra))
        at += states[-1]
    T = np.vstack(rows)
    back = np.linalg.pinv(T, rcond=1e-9)
    spread, blocks = T @ Q @ T.T, slices(tuple(states))
    noise = np.zeros_like(spread)
    for own_states in blocks:
        block = spread[own_states, own_states]
        noise[own_states, own_states] = roomy(block + 1e-9 * max(float(np.trace(block)), 1e-12) * np.eye(len(block)))
    R = np.zeros_like(free.record.noise)
    for mine in own:
        R[mine, mine] = roomy(free.record.noise[mine, mine])
    return _Start(shrink(T @ A @ back), T @ B, noise, R, observation, tuple(states))


def _record(
    names: tuple[str, ...], s: FloatArray, u: FloatArray, start: _Start, inputs: tuple[int, ...]
) -> SharedRecord:
    rows = slices(start.states)
    return SharedRecord(
        names=names, states=start.states, inputs=inputs, values=s, u=u, observation=start.C, noise=start.R,
        A_local=own_blocks(start.A, rows, rows), B_local=own_blocks(start.B, rows, slices(inputs)), Q_local=start.Q,
    )  # fmt: skip


# ---- the climb


def _refined(
    record: SharedRecord, start: _Start, options: JointOptions, progress: Callable[[int, float], None] | None
) -> Estimated:
    """Maximum likelihood; of a long record, first on a stretch in its middle."""

    def climb(part: SharedRecord, point: tuple[FloatArray, FloatArray], passes: int, near: bool = False) -> Estimated:
        floors = least_noises(part, point[0])
        part = replace(part, Q_local=roomier(part.Q_local, floors[0]), noise=roomier(part.noise, floors[1]))
        return maximum_likelihood(
            part, "system", floors=floors, start=point, tolerance=options.tolerance, evaluations=passes, flat=FLAT,
            near=near, progress=progress,
        )  # fmt: skip

    point, passes = (start.A, start.B), options.evaluations
    rows = middle_stretch(record.values)
    if rows.stop - rows.start <= record.steps:
        there = climb(replace(record, values=record.values[rows], u=record.u[rows]), point, passes)
        assert there.R is not None
        record = replace(record, Q_local=there.Q, noise=there.R)
        return climb(record, (there.A, there.B), min(passes, FEW), near=True)
    return climb(record, point, passes)


def _standard(
    record: SharedRecord, found: Estimated, own: tuple[slice, ...], scale: FloatArray, level: FloatArray,
    same_row: tuple[bool, ...], notes: tuple[Caveat, ...],
) -> System:  # fmt: skip
    """The same in engineering units of the inputs, with the numbers whitened: the form of sufficient messages."""
    assert found.R is not None
    B = found.B / scale
    values, observations = [], []
    for numbers, states in zip(own, record.state_slices, strict=True):
        squeezed = compress(record.observation[numbers, states], found.R[numbers, numbers])
        values.append(record.values[:, numbers] @ squeezed.reach.T)
        observations.append(squeezed.observation)
    A_local = own_blocks(found.A, record.state_slices, record.state_slices)
    B_local = own_blocks(B, record.state_slices, record.input_slices)
    observation = block_diagonal(observations)
    standard = replace(
        record, values=np.hstack(values), u=record.u * scale, observation=observation,
        noise=np.eye(observation.shape[0]), A_local=A_local, B_local=B_local, Q_local=found.Q,
    )  # fmt: skip
    parameters = Parameters(standard, "system", np.asarray(np.linalg.cholesky(found.Q)))
    likelihood = standard.filter(found.A, B, found.Q).log_likelihood  # of the numbers in their new form
    final = replace(found, B=B, parameters=parameters, R=None, log_likelihood=likelihood)
    return System(standard, final, record.observation, found.R, own, level, same_row, notes)


def _notes(
    names: tuple[str, ...], same_row: tuple[bool, ...], unsure: tuple[str, ...], states: str, options: JointOptions
) -> tuple[Caveat, ...]:
    held_out = "by the likelihood of held-out rows"
    ahead = [name for name, yes in zip(names, same_row, strict=True) if yes]
    how = held_out if options.same_row is None else "as given"
    acting = "inputs act on the next row"
    if ahead:
        acting = f"inputs of {', '.join(ahead)} act on their own row, others on the next"
    chosen = states.format(held_out if options.order is None else "as given")
    everybody = scope_of(names)
    notes = (Caveat("states-chosen", everybody, chosen), Caveat("input-alignment", everybody, f"{acting} ({how})"))
    text = (
        "inputs of {} are taken to act on their own row, but earlier measurements foretell them: if a controller sets "
        "them from their own row's measurements, effects of them are wrong, even in sign, and their intervals do not "
        "say so; then fit with same_row=False for this unit"
    )
    return (*notes, *(Caveat("alignment-unsure", name, text.format(name)) for name in unsure))
