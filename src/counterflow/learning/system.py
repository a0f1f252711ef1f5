"""A whole system from logs, from what units without a model have sent.

Each unit has sent a few numbers a row, s_m = Wᵀ(standardised y_m), and its inputs. The server learns the network of
units (``counterflow.learning.network``), which effects are computed with; and writes its linear part as a state-space
system, for questions that are asked of states::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],      s_m[t] = [I 0] h_m[t] + v_m[t]

The first states of a unit are its numbers without their noise; the others carry the rest, such as delays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import OptionError
from counterflow.learning.alignment import alignment
from counterflow.learning.augmentation import drop_outliers
from counterflow.learning.block_moments import Rows
from counterflow.learning.drift import Drift
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network import Network
from counterflow.learning.network_learning import Learning, learn
from counterflow.learning.optimiser import Estimated
from counterflow.learning.ownership import assign_states
from counterflow.learning.realisation import realised
from counterflow.learning.regime_sums import Regime
from counterflow.protocol import Reduced

PRESENT, ALL = "present", "all"  # which way of running a fit is about
ROWS_NAMED = 3  # of rows that a caveat tells of
REGIME_CHANGED, DRIFT_FOLLOWED = "regime-changed", "drift-followed"


@dataclass(frozen=True)
class SystemOptions:
    """What is asked of the identification; None: decided by what the rest of the data say."""

    same_row: Mapping[str, bool] | None = None
    known: KnownEdges | None = None
    regime: str | int = PRESENT
    as_they_are: frozenset[str] = frozenset()  # units whose readings are all kept


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
    messages: Sequence[Reduced], options: SystemOptions, progress: Callable[[float, str], None] | None = None
) -> IdentifiedSystem:
    """Find the system behind the messages of all units."""
    names = tuple(message.unit for message in messages)
    s, variance, own = _numbers(messages)
    inputs = [message.inputs for message in messages]
    level, scale = _input_scale(np.hstack(inputs))
    given = {message.unit: False for message in messages if message.later} | dict(options.same_row or {})
    same_row, unsure = alignment(names, s, inputs, scale, given)
    aligned = [np.vstack([v[1:], v[-1:]]) if ahead else v for v, ahead in zip(inputs, same_row, strict=True)]
    widths = tuple(v.shape[1] for v in inputs)
    numbers = tuple(mine.stop - mine.start for mine in own)
    rows = Rows(names, numbers, widths, np.hstack([s, np.hstack(aligned) - level]), variance=variance)
    ahead = [name for name, yes in zip(names, same_row, strict=True) if yes]
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
    if isinstance(options.regime, int) and options.regime >= len(s):
        raise OptionError(f"fit: option 'regime' is row {options.regime}, and the record ends with row {len(s) - 1}")
    kept = drop_outliers(rows, options.known, options.as_they_are)
    notes += _wild(rows, kept)
    learned = learn(kept, options.known, progress, one_way=options.regime == ALL)
    found = system_of(kept, learned.at(options.regime) if isinstance(options.regime, int) else learned)
    return replace(found, input_level=level, same_row=same_row, notes=(*found.notes, *notes))


def system_of(rows: Rows, learned: Learning) -> IdentifiedSystem:
    """The system of rows whose inputs are departures from their level and act on the next row."""
    r, everybody = sum(rows.numbers), scope_of(rows.names)
    s, u = rows.z[:, :r], rows.z[:, r:]
    found = assign_states(realised(learned.network), rows.names, s, u, slices(rows.numbers), rows.inputs)
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
    return IdentifiedSystem(
        learned.network, found.record, found.found, found.observation, found.noise, np.zeros(sum(rows.inputs)),
        (False,) * len(rows.names), tuple(notes), regimes,
    )  # fmt: skip


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
