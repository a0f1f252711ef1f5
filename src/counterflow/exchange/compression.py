"""One message that says all that a unit's measurements know about its states, and what a reader should know of it.

Write R^{-1/2} C = U S Vᵀ (rank r). Then s[t] = Uᵀ R^{-1/2} y[t] = C̃ h[t] + N(0, I), C̃ = S Vᵀ, is a sufficient
statistic: the likelihood of (A, B, Q) given all y differs from that given all s by a constant. y, C, R stay here. A row
in which some channels are missing has the C and R of the others, and so a C̃ of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.filtering import compress_by_presence
from counterflow.plant import LocalModel, Unit
from counterflow.protocol import Sufficient
from counterflow.wording import number

FEW_ABSURD = 3  # readings that far out: more are a way of running
ABSURD = 100.0  # robust standard deviations from the median that no reading should be away


def sufficient_message(
    unit: str, model: LocalModel, y: FloatArray, u: FloatArray, *, whole: bool = False
) -> Sufficient:
    """Compress measurements (T+1, D_m), NaN where missing: every reading counts.

    ``whole``: of whole rows only, as private releases need, which are proven for rows that all see the states alike. A
    row is then whole if all channels are there that are measured most of the time; others are left out altogether.

    Examples
    --------
    >>> import counterflow as cf
    >>> from counterflow.exchange.compression import sufficient_message
    >>> plant = cf.random_plant(units=1, states=2, outputs=8, rng=0)
    >>> record = plant.simulate(100, rng=1)[plant.names[0]]
    >>> y = record.y.copy()
    >>> y[::5, :6] = np.nan  # most channels are slow
    >>> message = sufficient_message("boiler", plant.local(plant.names[0]), y, record.u)
    >>> message.numbers.shape, message.ranks.tolist()
    ((101, 2), [2.0, 2.0])
    """
    C, R = model.C, model.R
    if whole:
        rows, chosen = rows_and_channels(y)
        C, R, y = C[chosen], R[np.ix_(chosen, chosen)], np.where(rows[:, None], y[:, chosen], np.nan)
    found = compress_by_presence(y, C, R)
    return Sufficient.from_rows(unit, (model.A, model.B, model.Q), found.observations, found.labels, found.values, u)


def spans_of(measured: NDArray[np.bool_]) -> FloatArray:
    """Rows that were measured, as half-open intervals (k, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], measured, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.float64)


def rows_and_channels(y: FloatArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows and channels of y (T+1, D_m) count as whole.

    A channel that is missing in more than half of the rows in which anything was measured (a dead sensor) would cost
    those rows: it is left out. Of the others, all must be there.
    """
    known = np.isfinite(y)
    alive = known.any(axis=1)
    chosen = known[alive].mean(axis=0) > 0.5 if alive.any() else np.ones(y.shape[1], bool)
    if not chosen.any():
        chosen = np.ones(y.shape[1], bool)
    return np.asarray(known[:, chosen].all(axis=1)), np.asarray(chosen)


def exact_caveats(unit: Unit, y: FloatArray, model: LocalModel) -> tuple[Caveat, ...]:
    """Of a message of every reading: whether it determines the measurements."""
    exact = _exact_rows(y, model.C)
    if not exact:
        return ()
    which = "its measurements" if exact == len(y) else f"its measurements in {exact} of {len(y)} rows"
    text = (
        f"unit {unit.name!r}: its message determines {which} exactly, because it has no more outputs than states "
        "there; compression hides nothing"
    )
    return (Caveat("exact-message", unit.name, text),)


def _exact_rows(y: FloatArray, C: FloatArray) -> int:
    """Rows with measurements, NaN where missing, that a message with as many numbers as they have tells exactly."""
    measured = np.isfinite(y)
    if np.linalg.matrix_rank(C) == len(C):
        return len(y) if measured.all() else int(measured.any(axis=1).sum())
    few = measured.any(axis=1) & (measured.sum(axis=1) <= C.shape[1])
    sets, often = np.unique(measured[few], axis=0, return_counts=True)
    return int(sum(n for there, n in zip(sets, often, strict=True) if np.linalg.matrix_rank(C[there]) == there.sum()))


def left_out_caveats(unit: Unit, y: FloatArray) -> tuple[Caveat, ...]:
    """Of a message that is made of whole rows: what was not whole."""
    used, whole = rows_and_channels(y)
    dropped = int(np.isfinite(y).any(axis=1).sum()) - int(used.sum())
    lost = [f"{dropped} rows in which a channel was missing"] if dropped else []
    if not whole.all():
        names = [unit.output_names[k] for k in np.flatnonzero(~whole)]
        lost.append(f"channels missing most of the time: {', '.join(names)}")
    if not lost:
        return ()
    return (Caveat("rows-left-out", unit.name, f"unit {unit.name!r}: left out were {' and '.join(lost)}"),)


def absurd_readings(unit: Unit, values: FloatArray, channels: tuple[str, ...]) -> tuple[Caveat, ...]:
    """Readings so far out that they are no readings; one of them can decide a fit."""
    out = []
    for column, channel in zip(values.T, channels, strict=True):
        known = column[np.isfinite(column)]
        if not len(known):
            continue
        away = np.abs(known - np.median(known))
        usual = 1.4826 * float(np.median(away))
        rare = int((away > away.max() / 2).sum()) <= FEW_ABSURD  # a pulse is no wild reading
        if usual > 0 and away.max() > ABSURD * usual and rare:
            row = int(np.flatnonzero(np.isfinite(column))[int(away.argmax())])
            text = (
                f"unit {unit.name!r}: {channel} is {column[row]:.6g} in row {row}, {number(away.max() / usual)} times "
                "the usual movement away from its median; if that is no reading, make it missing and fit again"
            )
            out.append(Caveat("absurd-reading", unit.name, text))
    return tuple(out)
