"""Whether a unit's inputs react to its own measurements: then they carry these to everybody who is sent the inputs.

Privacy covers measurements, and inputs are sent as they are. An input that a controller or an operator moves by what
was measured is a measurement in other words. The unit looks itself, at its own rows, before anything leaves: does what
was measured foretell an input beyond the input's own past? What it finds stays with it; that it takes part or does not
is all that others learn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import PrivacyError
from counterflow.plant import Unit

OWN = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 9), (10, 14), (15, 29), (30, 59), (60, 120))  # lags of inputs
MEASURED = ((0, 0), (1, 1), (2, 2), (3, 5), (6, 12))  # lags of measurements; windows are averaged
DIRECTIONS = 6  # of the measurements, those in which they move most
MOST_ROWS = 50_000
SURE, SHARE = 1e-6, 0.01  # p-value, and share of what is new in an input, from which on it is said to react


class Reaction(NamedTuple):
    """Of one input: share of what is new in it that measurements foretell, less what chance gives; its p-value."""

    channel: str
    share: float
    p_value: float

    @property
    def found(self) -> bool:
        return self.p_value < SURE and self.share > SHARE


def reactions(unit: Unit, y: FloatArray, u: FloatArray, same_row: bool = True) -> tuple[Reaction, ...]:
    """Of every input of a unit.

    Parameters
    ----------
    y : (T+1, D), NaN where missing.
    u : (T+1, U).
    same_row : whether a measurement of the same row counts; not where the log shows an input's effect in its own row.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=(2000, 3))
    >>> u = np.column_stack([rng.normal(size=2000), 0.5 * np.roll(y[:, 0], 1) + rng.normal(size=2000)])
    >>> [r.found for r in reactions(Unit("boiler", inputs=["free", "controlled"], outputs=3), y, u)]
    [False, True]
    """
    from scipy.special import fdtrc

    y, u = y[-MOST_ROWS:], u[-MOST_ROWS:]
    names = unit.input_names
    known = np.where(np.isfinite(y), y, np.nan)
    with np.errstate(all="ignore"):
        level = np.nan_to_num(np.nanmean(known, axis=0)) if len(known) else np.zeros(y.shape[1])
        filled = np.where(np.isfinite(known), known, level) - level
        size = filled.std(axis=0)
    filled = filled[:, size > 0] / size[size > 0]
    if not filled.shape[1] or not u.shape[1]:
        return tuple(Reaction(name, 0.0, 1.0) for name in names)
    _, _, axes = np.linalg.svd(filled[:: max(1, len(filled) // 5000)], full_matrices=False)
    seen = filled @ axes[:DIRECTIONS].T
    windows = MEASURED if same_row else MEASURED[1:]
    own_windows = tuple(window for window in OWN if window[1] * 8 < len(u))
    lead = max((window[1] for window in (*own_windows, *windows)), default=0)
    if lead >= len(u):
        return tuple(Reaction(name, 0.0, 1.0) for name in names)
    base = np.hstack([np.ones((len(u) - lead, 1)), _windows(u - u.mean(axis=0), own_windows, lead)])
    more = _windows(seen, windows, lead)
    rows, freedom = len(base), len(base) - base.shape[1] - more.shape[1]
    if freedom < 2 * more.shape[1]:
        return tuple(Reaction(name, 0.0, 1.0) for name in names)
    first, _ = np.linalg.qr(base)
    rest = more - first @ (first.T @ more)
    second, values, _ = np.linalg.svd(rest, full_matrices=False)
    second = second[:, values > 1e-8 * max(values[0], 1e-300)]
    out = []
    for name, series in zip(names, u[lead:].T, strict=True):
        new = series - first @ (first.T @ series)
        whole, told = float(new @ new), float(np.square(second.T @ new).sum())
        if whole <= 1e-18 * float(series @ series) or not second.shape[1]:
            out.append(Reaction(name, 0.0, 1.0))
            continue
        count = second.shape[1]
        ratio = (told / count) / max((whole - told) / freedom, 1e-300)
        out.append(Reaction(name, max(0.0, told / whole - count / rows), float(fdtrc(count, freedom, ratio))))
    return tuple(out)


def reaction_caveats(unit: Unit, found: tuple[Reaction, ...], refuse: bool) -> tuple[Caveat, ...]:
    """What the unit has to know of inputs that react; PrivacyError if it is not to take part with them."""
    reacting = [each for each in found if each.found]
    if not reacting:
        return ()
    told = ", ".join(f"{each.channel} ({100 * each.share:.0f} % of what is new in it)" for each in reacting)
    text = (
        f"unit {unit.name!r}: inputs react to its own measurements, so they carry them, and inputs are sent as they "
        f"are: {told}"
    )
    if refuse:
        raise PrivacyError(
            f"{text}. Nothing was released. Give what the controllers are told (set points) as inputs and what they "
            "move as outputs, or rows in which they are off; reacting='told' takes part all the same",
            code="inputs-react",
        )
    return (Caveat("inputs-react", unit.name, f"{text}; the promise does not cover what they reveal"),)


def _windows(series: FloatArray, windows: tuple[tuple[int, int], ...], lead: int) -> FloatArray:
    """Means over windows of lags (T+1 - lead, columns x windows)."""
    rows = len(series) - lead
    sums = np.concatenate([np.zeros((1, series.shape[1])), np.cumsum(series, axis=0)])
    out = [
        (sums[lead - near + 1 : lead - near + 1 + rows] - sums[lead - far : lead - far + rows]) / (far - near + 1)
        for near, far in windows
    ]
    return np.hstack(out) if out else np.zeros((rows, 0))
