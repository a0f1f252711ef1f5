"""Whether a unit's inputs react to measurements: then they carry these to everybody who is sent the inputs.

Privacy covers measurements, and inputs are sent as they are. An input that a controller or an operator moves by what
was measured is a measurement in other words. Loops that a unit declares are certain. For the rest the unit looks at its
own rows, before anything leaves: is what is new in an input, given the past of all its inputs, foretold by what was
measured before? Correlations with each channel are looked at for every delay up to ``MEMORY`` rows and for sums over 1,
2, 4, ... rows. They are divided by what their own squares allow, whatever the inputs are (steps, levels, noise), and by
how large they are at delays that no controller has. What the unit finds stays with it; that it takes part or does
not is all that others learn.

A unit sees its own measurements alone: of a controller that reads another unit only a declared loop tells.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.control import as_law
from counterflow.errors import PrivacyError
from counterflow.plant import Unit

REACTING = ("refused", "told")
MEMORY, FIFTH = 300, 5  # rows by which a reaction may come late; of a short record a fifth of them
PAST, SINGLE = 120, 30  # rows of an input's own past that it is foretold from; so many of them one by one
ROWS_A_COLUMN = 25  # of the record, for each column of that past
MOST_ROWS, FEWER_ROWS, MOST_NUMBERS = 50_000, 5_000, 1_600_000  # the newest rows that are looked at: fewer, if
# there are many channels and inputs
SURE = 1e-6  # chance of an input without any reaction to be called one that reacts
AGAIN = 0.5  # correlation of what is new in inputs with itself some rows later, from which on it is no news
FLOOR = 0.25  # of the usual squares of a correlation: fewer rows than that decide nothing
UNSEEN = (
    "inputs that react to measurements carry them. Each unit looks for that in its own rows, and sees reactions to its "
    f"own measurements within {MEMORY} rows (of a short record: a fifth of it), of about 40/T or more of what is new "
    "in an input of T rows. Of controllers that read other units only declared loops tell"
)


class Reaction(NamedTuple):
    """Of one input: share of what is new in it that measurements foretell, its p-value; ``reads``: a declared loop."""

    channel: str
    share: float
    p_value: float
    reads: str = ""

    @property
    def found(self) -> bool:
        return bool(self.reads) or self.p_value < SURE

    def __str__(self) -> str:
        if self.reads:
            return f"{self.channel} (a declared loop moves it by {self.reads})"
        return f"{self.channel} ({wording.percent(round(self.share, 3))} of what is new in it)"


def reactions(unit: Unit, y: FloatArray, u: FloatArray, at_once: bool = False) -> tuple[Reaction, ...]:
    """Of every input of a unit, from measurements (T+1, D), NaN where missing, and inputs (T+1, U).

    ``at_once``: inputs act on the row that they stand in; then a measurement of the same row says nothing.
    """
    declared = {loop.moves: loop.reads for loop in unit.loops if loop.law is None or as_law(loop.law).looks}
    moving = {name for name, series in zip(unit.input_names, u.T, strict=True) if np.ptp(series) > 0}
    kept = min(MOST_ROWS, max(FEWER_ROWS, MOST_NUMBERS // max(1, y.shape[1] * u.shape[1])))
    seen = _seen(y[-kept:], u[-kept:], at_once)
    return tuple(
        Reaction(name, share, p_value, declared.get(name, "") if name in moving else "")
        for name, (share, p_value) in zip(unit.input_names, seen, strict=True)
    )


def reaction_caveats(unit: Unit, y: FloatArray, u: FloatArray, at_once: bool, refuse: bool) -> tuple[Caveat, ...]:
    """What a unit has to know of inputs that react; PrivacyError if it is not to take part in a private fit so."""
    reacting = [each for each in reactions(unit, y, u, at_once) if each.found]
    if not reacting:
        return ()
    told = ", ".join(map(str, reacting))
    text = (
        f"unit {unit.name!r}: inputs react to measurements, so they carry them, and inputs are sent as they are: {told}"
    )
    if refuse:
        raise PrivacyError(
            f"{text}. Nothing was released. Give what the controllers are told (set points) as inputs and what they "
            "move as outputs (Recording.joint does that for declared loops), or rows in which they are off, without "
            "the loops; if an input acts on the very row that it stands in, say same_row=True; reacting='told' takes "
            "part all the same",
            code="inputs-react",
        )
    return (Caveat("inputs-react", unit.name, f"{text}; the promise does not cover what they reveal"),)


# ---- the look at a unit's own rows


def _seen(y: FloatArray, u: FloatArray, at_once: bool) -> list[tuple[float, float]]:
    """Of every input: share of what is new in it that one correlation with measurements tells, and its p-value."""
    from scipy.special import log_ndtr, ndtri
    from scipy.stats import rankdata

    nothing = [(0.0, 1.0)] * u.shape[1]
    there = np.isfinite(y)
    measured, moved = np.zeros(y.shape), _standard(u)
    for values, read, scores in zip(y.T, there.T, measured.T, strict=True):
        if read.any():  # normal scores by ranks: wild readings do not decide
            scores[read] = ndtri((rankdata(values[read]) - 0.5) / int(read.sum()))
    chosen, heard = measured.any(axis=0), np.asarray(moved.any(axis=0))
    rows, inputs = len(u), int(heard.sum())
    if not chosen.any() or not inputs:
        return nothing
    past = _spans(min(PAST, rows // 8), rows // (ROWS_A_COLUMN * inputs))
    if max((last for _, last in past), default=rows) * 2 > rows or rows < 2 * (len(past) * inputs + 1):
        return nothing
    known, new = _news(moved, heard, past)
    period = _period(new, past[-1][1])
    if period:  # test signals and schedules repeat themselves: then they are no news
        known, new = _news(moved, heard, (*past, (period, period)))
    count = len(new)
    memory, lead = min(MEMORY, count // FIFTH), rows - count
    power = np.square(new).sum(axis=0)
    size = 1 << (2 * count - 1).bit_length()
    spectra = [(np.fft.rfft(v, size), np.fft.rfft(np.square(v), size)) for v in new.T]
    best = [(0.0, 0.0)] * u.shape[1]  # (z, share)
    for k in np.flatnonzero(chosen).tolist():
        rest = measured[lead:, k] - known @ (known.T @ measured[lead:, k])
        running = np.concatenate([[0.0], np.cumsum(np.where(there[lead:, k], rest, 0.0))])
        width = 1
        while width <= max(1, memory // 2):
            sums = np.concatenate([np.zeros(width - 1), running[width:] - running[:-width]])
            spectrum, squares = np.fft.rfft(sums, size).conj(), np.fft.rfft(np.square(sums), size).conj()
            for j, (of_input, of_squares) in enumerate(spectra):
                if power[j] > 1e-12 * rows:
                    together = np.fft.irfft(of_input * spectrum, size)[: count // 2]
                    allowed = np.fft.irfft(of_squares * squares, size)[: count // 2]
                    most = float(power[j]) * float(sums @ sums)
                    best[j] = max(best[j], _largest(together, allowed, most, count, memory, int(at_once)))
            width *= 2
    tests = 2 * (memory + 1) * int(chosen.sum())
    return [(share, min(1.0, 2 * tests * math.exp(float(log_ndtr(-z))))) for z, share in best]


def _news(
    moved: FloatArray, heard: NDArray[np.bool_], past: tuple[tuple[int, int], ...]
) -> tuple[FloatArray, FloatArray]:
    """What is known of a row from the past of all inputs, as an orthonormal basis, and what is new in each input."""
    lead = max(last for _, last in past)
    known, _ = np.linalg.qr(np.hstack([np.ones((len(moved) - lead, 1)), _means(moved[:, heard], past, lead)]))
    return known, moved[lead:] - known @ (known.T @ moved[lead:])


def _period(new: FloatArray, after: int) -> int:
    """Rows after which what is new in inputs comes again, beyond ``after`` and within half of the rows; 0: never."""
    rows = len(new)
    size = 1 << (2 * rows - 1).bit_length()
    again = np.fft.irfft(np.square(np.abs(np.fft.rfft(new, size, axis=0))).sum(axis=1), size)[: rows // 2 + 1]
    if not again[0] > 0:
        return 0
    share = again / (again[0] * (1 - np.arange(len(again)) / rows))
    share[: after + 1] = 0.0
    return int(share.argmax()) if share.max(initial=0.0) > AGAIN else 0


def _largest(
    together: FloatArray, allowed: FloatArray, most: float, rows: int, memory: int, first: int
) -> tuple[float, float]:
    """The largest of the correlations by delay, from ``first`` on, in standard errors; and its share.

    ``together``: Σ_t new[t] sums[t-d] by delay d; ``allowed``: the same of their squares, what its square is on average
    if they have nothing to do with each other. ``most``: what that would be if they were one.
    """
    usual = most / rows * (1 - np.arange(len(together)) / rows)
    z = np.abs(together) / np.sqrt(np.maximum(np.maximum(allowed, FLOOR * usual), 1e-300))
    placebo = z[2 * memory :]  # delays that no controller has
    beyond = math.sqrt(float(np.square(placebo).mean())) if len(placebo) else 1.0
    z = z[first : memory + 1] / max(1.0, beyond)
    top = int(z.argmax())
    return float(z[top]), float(min(1.0, together[first + top] ** 2 / max(most, 1e-300)))


def _standard(u: FloatArray) -> FloatArray:
    """Inputs around zero and of variance one; one that does not move is zero."""
    # by their largest entry first: squares of what may be written there need not be numbers
    scaled = u / np.maximum(np.abs(u).max(axis=0, initial=0.0), 1e-300)
    scaled = scaled - scaled.mean(axis=0)
    size = np.sqrt(np.square(scaled).mean(axis=0))
    return np.asarray(np.where(size > 1e-9, scaled / np.where(size > 0, size, 1.0), 0.0))


def _spans(last: int, most: int) -> tuple[tuple[int, int], ...]:
    """(first, last) of the lags 1..last: one by one at first, then ever wider, about ``most`` of them."""
    growth = 1.4
    while True:
        single = max(1, min(SINGLE, most // 2, last))
        out = [(k, k) for k in range(1, single + 1)]
        while out[-1][1] < last:
            first = out[-1][1] + 1
            out.append((first, min(last, max(first, int(first * growth)))))
        if len(out) <= max(most, 4) or growth > 8:
            return tuple(out) if last else ()
        growth *= 1.3


def _means(series: FloatArray, spans: tuple[tuple[int, int], ...], lead: int) -> FloatArray:
    """Means over spans of lags (T+1 - lead, columns x spans)."""
    rows = len(series) - lead
    sums = np.concatenate([np.zeros((1, series.shape[1])), np.cumsum(series, axis=0)])
    out = [
        (sums[lead - near + 1 : lead - near + 1 + rows] - sums[lead - far : lead - far + rows]) / (far - near + 1)
        for near, far in spans
    ]
    return np.hstack(out) if out else np.zeros((rows, 0))
