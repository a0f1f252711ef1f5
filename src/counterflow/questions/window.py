"""What an answer says of a window of its rows: mean, cumulative, extreme and relative, each with its interval.

Errors of rows are correlated, so that bands for single rows do not tell how well a mean is known. The server says how
the errors of all rows go together (``joint``); here the unit makes intervals of its own channels from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import notebook, wording
from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.frames import as_pandas
from counterflow.notebook import Table
from counterflow.protocol import Answer as Message
from counterflow.questions.answering import JOINT
from counterflow.questions.numbers import finite, named
from counterflow.questions.phrases import SHOWN

if TYPE_CHECKING:
    import pandas
    import polars

    from counterflow.exchange.part import UnitPart
    from counterflow.questions.answer import Answer

DRAWS = 2000  # of all rows at once, for extremes
_NUMBERS = 4_000_000  # that are drawn at once
NEAR_ZERO = 3.0  # standard deviations of a channel's noise, within which nothing is relative to it
MEASURES = ("mean", "cumulative", "extreme", "relative")
UNKNOWN = "{when}, nothing is known of {channel}."
NOTHING = "{when}, nothing changes at {channel}."
SUMMARY = "{when}, {channel} {mean} on average{relative}; {sum} in all, and at its furthest {extreme} {at}."


# ---- how the errors of rows go together, at the unit


def band(
    mean: FloatArray, spread: FloatArray | None, level: float | None
) -> tuple[FloatArray | None, FloatArray | None]:
    """Lower and upper bounds of a two-sided interval, or None."""
    if spread is None:
        return None, None
    from scipy.special import ndtri

    half = float(ndtri(0.5 + (level or 0.0) / 2)) * spread
    return mean - half, mean + half


@dataclass(frozen=True, eq=False)
class JointErrors:
    """How far an answer's rows may be off together, for every channel.

    ``states`` (n, P_m) with their ``covariance`` (n, P_m, P_m) in every row, ``directions`` (k, n, P_m) along which
    rows move together (None: not known, and errors are taken to last), C (D_m, P_m) with its own ``doubt`` (row i of it
    has covariance variance i times the matrix), and variances ``noise`` (D_m,) that every row has for itself.
    """

    states: FloatArray
    covariance: FloatArray
    directions: FloatArray | None
    C: FloatArray
    doubt: tuple[FloatArray, FloatArray] | None = None
    noise: FloatArray | None = None

    @classmethod
    def from_parts(cls, part: UnitPart, parts: Sequence[Message], predictive: bool = False) -> JointErrors | None:
        """From what the server says, with measurement noise if ``predictive``; None: it tells no covariance."""
        found = parts[0]
        if not len(found.covariance):
            return None
        rows, size = found.mean.shape
        directions = next((each.mean for each in parts if each.share == JOINT), None)
        if directions is not None:
            if len(directions) % max(rows, 1):
                raise ProtocolError(f"answer: {len(directions)} rows are not directions of {rows} rows")
            directions = directions.reshape(-1, rows, size)
        noise = np.diag(part.model.R) if predictive else None
        blocks = found.covariance.reshape(rows, size, size)
        return cls(found.mean, blocks, directions, part.model.C, part.C_doubt, noise)

    @cached_property
    def variances(self) -> FloatArray:
        """(n, D_m): of every channel in every row."""
        found = np.einsum("di,tij,dj->td", self.C, self.covariance, self.C)
        if self.doubt is not None:
            sizes = np.einsum("ti,ij,tj->t", self.states, self.doubt[1], self.states)
            found = found + sizes[:, None] * self.doubt[0]
        return np.asarray(found if self.noise is None else found + self.noise)

    def along(self, k: int) -> tuple[FloatArray, FloatArray]:
        """Of channel k: directions (r, n) along which all rows move, and the variance (n,) of each row by itself.

        Together they give every row the variance that its band has.
        """
        c = self.C[k]
        whole = np.maximum(np.einsum("i,tij,j->t", c, self.covariance, c), 0.0)
        if self.directions is None:
            found, own = np.sqrt(whole)[None], np.zeros_like(whole)
        else:
            found = self.directions @ c
            told = np.square(found).sum(axis=0)
            found = found * np.sqrt(np.divide(whole, told, out=np.ones_like(told), where=told > whole))
            own = np.maximum(whole - told, 0.0)
        if self.doubt is not None:
            values, vectors = np.linalg.eigh(self.doubt[1])
            root = vectors * np.sqrt(np.maximum(values, 0.0) * max(float(self.doubt[0][k]), 0.0))
            found = np.vstack([found, (self.states @ root).T])
        return found, own if self.noise is None else own + self.noise[k]

    def deviation(self, k: int, weights: FloatArray) -> FloatArray:
        """Standard deviations (m,) of sums of channel k over rows, with ``weights`` (m, n)."""
        found, own = self.along(k)
        return np.asarray(np.sqrt(np.square(weights @ found.T).sum(axis=1) + np.square(weights) @ own))

    def draws(self, k: int, rows: slice) -> FloatArray:
        """Errors (draws, n) of all rows at once."""
        found, own = self.along(k)
        found, own = found[:, rows], own[rows]
        count, rng = int(np.clip(_NUMBERS // max(len(own), 1), 200, DRAWS)), np.random.default_rng(0)
        out = rng.standard_normal((count, len(found))) @ found
        return out + rng.standard_normal(out.shape) * np.sqrt(own) if own.any() else out


# ---- the summary


@dataclass(frozen=True, eq=False)
class Measure:
    """One number for each channel, with its interval: all arrays (D_m,), ``lower`` and ``upper`` None if unknown.

    It stands for ``value`` where numbers are needed: ``np.asarray(measure)``.
    """

    value: FloatArray
    lower: FloatArray | None
    upper: FloatArray | None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return np.array(self.value, dtype=dtype)

    def __repr__(self) -> str:
        return f"Measure({', '.join(self.text(k, '') for k in range(len(self.value)))})"

    def ends(self, k: int) -> tuple[float | None, float | None]:
        if self.lower is None or self.upper is None:
            return None, None
        return float(self.lower[k]), float(self.upper[k])

    def times(self, factor: FloatArray) -> Measure:
        """The same in other units."""
        ends = [None if end is None else end * factor for end in (self.lower, self.upper)]
        return Measure(self.value * factor, *ends)

    def text(self, k: int, unit: str, sign: bool = True, size: bool = False, level: str = "") -> str:
        """ "+3.2 rpm (2.8 to 3.6)"; ``size``: without its direction, as it stands behind a verb."""
        value, (lower, upper) = float(self.value[k]), self.ends(k)
        if size and value < 0:
            value = -value
            lower, upper = (None, None) if lower is None or upper is None else (-upper, -lower)
        shown, interval = wording.measured(value, lower, upper, unit, sign=sign and not size)
        return f"{shown} ({level}{interval})" if interval else shown

    def to_json(self, k: int) -> dict[str, float | None]:
        lower, upper = self.ends(k)
        return {"value": finite(float(self.value[k])), "lower": finite(lower), "upper": finite(upper)}


@dataclass(frozen=True, eq=False)
class Window:
    """What an answer says of some of its rows, channel by channel.

    ``mean``: over the rows. ``cumulative``: the integral over time, in ``cumulative_units`` (of a flow in t/h the tons;
    else the unit times hours and so on; times steps where nobody said how long a step is). ``extreme``: the largest
    change, or of a forecast the value furthest from the last measured one, in row ``extreme_rows`` of the answer.
    ``relative``: the mean as a part of ``reference`` (what was measured in these rows, or where the plant usually
    rests, or what was last measured); NaN where that is about zero. Each has ``value``, ``lower`` and ``upper``.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(1000, rng=2), plant.locals())
    >>> window = found.effect("boiler", "turbine", {"u1": 1.0}, horizon=20).window(5, 15)
    >>> window.mean.value.shape, bool((window.mean.lower < window.mean.upper).all())
    ((8,), True)
    >>> bool(np.allclose(window.cumulative.value, 10 * window.mean.value)), window.cumulative_units[0]
    (True, '× steps')
    """

    answer: Answer = field(repr=False)
    start: int  # of the answer's arrays
    stop: int
    only: int | None = None  # the one channel whose intervals are computed; None: all

    @property
    def _told(self) -> Sequence[int]:
        return range(len(self.answer.channels)) if self.only is None else (self.only,)

    @property
    def level(self) -> float | None:
        """Of its intervals."""
        return self.answer.level

    @cached_property
    def _values(self) -> FloatArray:
        return np.asarray(self.answer.course[self.start : self.stop])

    @cached_property
    def mean(self) -> Measure:
        """Mean over the rows."""
        value, errors = self._values.mean(axis=0), self.answer.errors
        if errors is None:
            return Measure(value, None, None)
        weights, spread = np.zeros((1, len(self.answer.course))), np.full(len(value), np.nan)
        weights[0, self.start : self.stop] = 1 / (self.stop - self.start)
        for k in self._told:
            spread[k] = errors.deviation(k, weights)[0]
        return Measure(value, *band(value, spread, self.answer.level))

    @cached_property
    def cumulative(self) -> Measure:
        """The integral over time: every row stands for one time step."""
        return self.mean.times((self.stop - self.start) * np.array([factor for factor, _ in self._integrals]))

    @property
    def cumulative_units(self) -> tuple[str, ...]:
        """What it is measured in."""
        return tuple(unit for _, unit in self._integrals)

    @cached_property
    def _integrals(self) -> list[tuple[float, str]]:
        timeline, rows = self.answer.timeline, self.stop - self.start
        return [timeline.integral(channel.unit, rows) for channel in self.answer.about.outputs]

    @cached_property
    def _extremes(self) -> tuple[Measure, NDArray[np.intp]]:
        base, values, errors = self.answer.base, self._values, self.answer.errors
        at = np.argmax(np.nan_to_num(np.abs(values - base)), axis=0)
        value = values[at, np.arange(values.shape[1])]
        if errors is None or self.answer.level is None:
            return Measure(value, None, None), at + self.start
        ends, tail = np.full((2, len(value)), np.nan), (1 - self.answer.level) / 2
        for k in self._told:
            if not np.isfinite(value[k]):
                continue
            paths = values[:, k] + errors.draws(k, slice(self.start, self.stop))
            furthest = np.abs(paths - base[k]).argmax(axis=1)
            found = paths[np.arange(len(paths)), furthest]
            if self.answer.predictive:  # the furthest of what will be measured, and not of what is expected
                value[k] = np.median(found)
            ends[:, k] = np.quantile(found, [tail, 1 - tail])
        return Measure(value, np.minimum(ends[0], value), np.maximum(ends[1], value)), at + self.start

    @property
    def extreme(self) -> Measure:
        """Furthest from zero; of a forecast, from what was last measured."""
        return self._extremes[0]

    @property
    def extreme_rows(self) -> NDArray[np.intp]:
        """(D_m,): in which row of the answer's arrays."""
        return self._extremes[1]

    @cached_property
    def reference(self) -> FloatArray:
        """(D_m,): what ``relative`` refers to; NaN where nothing is known, or where it is about zero."""
        known = self.answer.compared_with(self.start, self.stop)
        return np.where(np.abs(known) > NEAR_ZERO * self.answer.about.noise, known, np.nan)

    @cached_property
    def relative(self) -> Measure:
        """The mean as a part of the reference; of a forecast, how far it is from there."""
        moved = self.mean
        if self.answer.predictive:
            ends = [None if end is None else end - self.reference for end in (moved.lower, moved.upper)]
            moved = Measure(moved.value - self.reference, *ends)
        return moved.times(1 / np.abs(self.reference))

    @property
    def _percent(self) -> Measure:
        return self.relative.times(np.full(len(self.answer.channels), 100.0))

    def summed(self, k: int) -> tuple[FloatArray, FloatArray | None, str]:
        """The integral of channel k from the first row on (n,), its standard deviation, and what it is measured in."""
        rows, errors = slice(self.start, self.stop), self.answer.errors
        factor, unit = self._integrals[k]
        total = factor * np.nancumsum(self._values[:, k])
        if errors is None:
            return total, None, unit
        found, own = errors.along(k)
        spread = np.square(np.cumsum(found[:, rows], axis=1)).sum(axis=0) + np.cumsum(own[rows])
        return total, factor * np.sqrt(spread), unit

    # ---- in words, tables and files

    @property
    def when(self) -> str:
        """ "from step 5 to 14", "in rows 900 to 949", or the dates."""
        return self.answer.timeline.during(self.start, self.stop)

    def at(self, k: int) -> str:
        """When a channel's extreme is."""
        return self.answer.timeline.at(int(self.extreme_rows[k]))

    def sentence(self, channel: str | None = None) -> str:
        """The summary in words, of one channel or of the one that the answer says most about."""
        k = self.answer.chosen(channel)
        if self.only != k:
            return replace(self, only=k).sentence(channel)  # quicker where there are many
        answer, output = self.answer, self.answer.about.outputs[k]
        told = {"when": self.when[:1].upper() + self.when[1:], "channel": f"{self.answer.unit} {output.name}"}
        value = float(self.mean.value[k])
        if not np.isfinite(value):
            return UNKNOWN.format(**told)
        if not answer.predictive and not any((self.extreme.value[k], *self.extreme.ends(k))):
            return NOTHING.format(**told)
        level = "" if self.answer.level is None else f"{wording.percent(self.answer.level)}: "
        size = self.mean.text(k, output.unit, sign=False, size=not answer.predictive, level=level)
        share = self._percent.text(k, "%")
        return SUMMARY.format(
            **told,
            mean=answer.verbs[value >= 0].format(size),
            relative=f", {share} {answer.of_what}" if np.isfinite(self.relative.value[k]) else "",
            sum=self.cumulative.text(k, self.cumulative_units[k]),
            extreme=self.extreme.text(k, output.unit),
            at=self.at(k),
        )

    def table(self, channels: Sequence[str] = ()) -> Table:
        """One row a channel."""
        order = [self.answer.about.output(name) for name in channels] or self.answer.order()[:SHOWN]
        rows = []
        for k in order:
            unit = self.answer.about.outputs[k].unit
            cells = [self.mean.text(k, unit), self.cumulative.text(k, self.cumulative_units[k])]
            share = self._percent.text(k, "%") if np.isfinite(self.relative.value[k]) else "–"
            rows.append([self.answer.about.outputs[k].name, *cells, self.extreme.text(k, unit), self.at(k), share])
        columns = ["channel", "mean", "cumulative", "extreme", "when", "relative"]
        level = "" if self.answer.level is None else f", with {wording.percent(self.answer.level)} intervals"
        return Table(f"{self.answer.unit} {self.when}{level}", columns, rows)

    def to_json(self, channels: Sequence[str] = ()) -> dict[str, Any]:
        """In plain types; rows are counted as the answer counts them."""
        first = self.answer.timeline.first
        order = [self.answer.about.output(name) for name in channels] or range(len(self.answer.channels))
        return {
            "start": self.start + first,
            "stop": self.stop + first,
            "level": self.answer.level,
            "sentence": self.sentence(channels[0] if channels else None),
            "channels": [
                {
                    **named(self.answer.about.outputs[k]),
                    "mean": self.mean.to_json(k),
                    "cumulative": {**self.cumulative.to_json(k), "measured_in": self.cumulative_units[k]},
                    "extreme": {**self.extreme.to_json(k), "row": int(self.extreme_rows[k]) + first},
                    "relative": self.relative.to_json(k),
                }
                for k in order
            ],
        }

    def to_frame(self) -> polars.DataFrame:
        """One row a channel and measure: channel, measure, measured_in, value, lower, upper."""
        import polars

        rows = []
        for k, channel in enumerate(self.answer.about.outputs):
            units = {"cumulative": self.cumulative_units[k], "relative": ""}
            for kind in MEASURES:
                found: Measure = getattr(self, kind)
                rows.append((channel.name, kind, units.get(kind, channel.unit), float(found.value[k]), *found.ends(k)))
        schema = dict.fromkeys(("channel", "measure", "measured_in"), polars.String())
        numbers = dict.fromkeys(("value", "lower", "upper"), polars.Float64())
        return polars.DataFrame(rows, schema={**schema, **numbers}, orient="row")

    def to_pandas(self) -> pandas.DataFrame:
        """The same for pandas."""
        return as_pandas(self.to_frame(), ("channel", "measure"))

    def __repr__(self) -> str:
        return f"<Window: {notebook.short(self.sentence())}>"

    def __str__(self) -> str:
        return "\n".join([self.sentence(), *notebook.lines(self.table())])

    def _repr_html_(self) -> str:
        return notebook.page(self.sentence(), [self.table()])
