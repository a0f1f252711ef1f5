"""Where pictures of answers and fits are drawn, with matplotlib when asked for (``pip install counterflow[plots]``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError
from counterflow.questions.numbers import channel_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.plant.calendar import Calendar
    from counterflow.plant.units import Channel

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b6b6b")  # safe for the colour-blind
MOST_CHANNELS = 6


def literal(text: str) -> str:
    """A name as matplotlib writes it: a dollar sign is not mathematics, and what begins with "_" has a legend, too."""
    plain = text.replace("$", r"\$")
    return f"\N{HAIR SPACE}{plain}" if plain.startswith("_") else plain


def canvas(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CounterflowError("plots need matplotlib: pip install counterflow[plots]") from error
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def short_dates(axis: Any) -> None:
    """Dates along an axis of times: as short as they can be told apart, and beside them the day or days shown.

    matplotlib's own formatter takes that day from the last mark alone, which may be the midnight that ends it.
    """
    from matplotlib import dates

    day: Any = dates.num2date

    class Dates(dates.ConciseDateFormatter):
        marks: Sequence[float] = ()

        def format_ticks(self, values: Any) -> list[str]:
            self.marks = list(values)
            return list(super().format_ticks(values))  # type: ignore[no-untyped-call]

        def get_offset(self) -> str:
            text = str(super().get_offset())  # type: ignore[no-untyped-call]
            low, high = sorted(axis.dataLim.intervalx)
            last = day(self.marks[-1]) if self.marks else None
            kinds = [each for each in self.offset_formats if last is not None and last.strftime(each) == text]
            if not text or not kinds or not np.isfinite([low, high]).all():
                return text
            end = high - 1e-9 if high > low else high  # in days: the last moment itself may begin the next day
            first, final = (day(each).strftime(kinds[-1]) for each in (low, end))
            return first if first == final else f"{first} to {final}"

    locator: Any = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(Dates(locator))  # type: ignore[no-untyped-call]


# ---- lines over rows


@dataclass(frozen=True, eq=False)
class Line:
    """One line over rows, with a band around it if it has one.

    ``role``: "answer", "measured", "whole" (of which others are parts), "part" (the ``number``-th), "rest", "average".
    """

    name: str
    values: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    look: Mapping[str, Any] = field(default_factory=dict)
    role: str = "answer"
    number: int = 0

    @classmethod
    def banded(cls, name: str, band: Sequence[FloatArray | None], colour: str, k: int | None = None) -> Line:
        """Of ``band``: values, lower and upper end; of (n, D_m), channel k."""
        values, lower, upper = (end if end is None or k is None else end[:, k] for end in band)
        assert values is not None
        return cls(name, values, lower, upper, {"color": colour})

    def draw(self, axes: Any, along: Axis, alpha: float, **look: Any) -> None:
        """Its band, if it has one, and itself; its own look goes before the one given."""
        look = {**look, **self.look}
        if self.lower is not None and self.upper is not None:
            along.shade(axes, self.lower, self.upper, color=look["color"], alpha=alpha)
        along.draw(axes, self.values, **look)


@dataclass(frozen=True, eq=False)
class Axis:
    """Where rows stand along an axis, what it is called, and after which of them time jumps."""

    places: NDArray[Any]
    label: str
    jumps: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))

    @classmethod
    def recorded(cls, first: int, count: int, calendar: Calendar | None) -> Axis:
        """By their dates, or else by their numbers."""
        if calendar is None:
            return cls(np.arange(first, first + count), "row")
        found = np.array([row - first for row, _ in calendar.jumps if first < row < first + count], np.intp)
        return cls(calendar.local_times(first, first + count), calendar.label, found)

    @classmethod
    def after_change(cls, count: int, dt: float) -> Axis:
        """By the time since the change: 1, 2, ... steps."""
        size, unit = elapsed(count, dt)
        return cls(np.arange(1, count + 1) * size, f"{unit} after the change")

    def broken(self, values: FloatArray) -> tuple[NDArray[Any], FloatArray]:
        """Places and values with a hole wherever time jumps, so that nothing is drawn across it."""
        return np.insert(self.places, self.jumps, self.places[self.jumps - 1]), np.insert(values, self.jumps, np.nan)

    def draw(self, axis: Any, values: FloatArray, **look: Any) -> None:
        """A line that is broken where values are missing or time jumps; a single value is a dot."""
        places, whole = self.broken(np.asarray(values, np.float64))
        axis.plot(places, whole, **look)
        known = np.isfinite(np.concatenate([[np.nan], whole, [np.nan]]))
        alone = known[1:-1] & ~known[:-2] & ~known[2:]
        if alone.any():
            axis.plot(places[alone], whole[alone], ".", color=look.get("color"), zorder=look.get("zorder", 2))

    def shade(self, axis: Any, lower: FloatArray, upper: FloatArray, **look: Any) -> None:
        """A band that is broken at the same places."""
        places, low = self.broken(np.asarray(lower, np.float64))
        high = self.broken(np.asarray(upper, np.float64))[1]
        axis.fill_between(places, low, high, where=np.isfinite(low) & np.isfinite(high), linewidth=0, **look)


def elapsed(count: int, dt: float) -> tuple[float, str]:
    """How long a step is, and in what; a step where nobody said how long it is."""
    if dt == 1.0:
        return 1.0, "steps"
    sizes = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    size, unit = next(((size, unit) for size, unit in sizes if count * dt >= 2 * size), (1.0, "seconds"))
    return dt / size, unit


def by_unit(outputs: Sequence[Channel], order: Iterable[int]) -> list[list[int]]:
    """Channels in their order, grouped by their unit of measure: each group has a panel of its own."""
    groups: dict[str, list[int]] = {}
    for k in order:
        groups.setdefault(outputs[k].unit, []).append(k)
    return list(groups.values())


def panels(
    along: Axis, groups: Sequence[tuple[str, Sequence[Line]]], title: str, held: Iterable[tuple[Any, Any]] = (),
    zero: bool = False,
) -> Figure:  # fmt: skip
    """Panels below each other, each with what it is measured in; ``held`` are spans in which inputs are others."""
    spans = list(held)
    figure, axes = canvas(len(groups), 1, (7.5, 1.1 + 2.0 * len(groups)), sharex=True)
    for axis, (label, lines) in zip(axes[:, 0], groups, strict=True):
        for span in spans:
            axis.axvspan(*span, color="0.92", linewidth=0, zorder=0)
        if zero:
            axis.axhline(0.0, color="0.6", linewidth=0.8)
        for k, line in enumerate(lines):
            line.draw(axis, along, alpha=0.2, color=COLOURS[k % len(COLOURS)], label=literal(line.name))
        axis.set_ylabel(literal(label))
        axis.legend(frameon=False, fontsize="small", ncols=2)
    axes[0, 0].set_title(literal(title), fontsize="medium")
    axes[-1, 0].set_xlabel(literal(along.label))
    if along.places.dtype.kind == "M":
        short_dates(axes[-1, 0])
    return figure


def channel_panels(
    outputs: Sequence[Channel], order: Sequence[int], what: str, lines: Callable[[int, str], list[Line]]
) -> list[tuple[str, list[Line]]]:
    """Panels of channels, one for each unit of measure; ``lines(k, colour)`` are those of a channel."""
    out = []
    for group in by_unit(outputs, list(order)[:MOST_CHANNELS]):
        found = [line for place, k in enumerate(group) for line in lines(k, COLOURS[place % len(COLOURS)])]
        unit = outputs[group[0]].unit
        alone = channel_label(outputs[group[0]]) if len(group) == 1 else f"[{unit}]" if unit else ""
        out.append((f"{what} {alone}".strip(), found))
    return out


def spans(active: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Runs (first, after the last) of what is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], active.astype(int), [0]])))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def bars(outputs: Sequence[Channel], order: Sequence[int], values: FloatArray, what: str, title: str) -> Figure:
    """A bar for each channel, with a panel for each unit of measure."""
    groups = by_unit(outputs, order[:MOST_CHANNELS])
    figure, axes = canvas(len(groups), 1, (6.0, 1.0 + 0.35 * sum(map(len, groups)) + 0.5 * len(groups)))
    for axis, group in zip(axes[:, 0], groups, strict=True):
        axis.barh([literal(outputs[k].name) for k in group], [values[k] for k in group], color=COLOURS[0])
        axis.axvline(0.0, color="0.6", linewidth=0.8)
        axis.invert_yaxis()
        axis.set_xlabel(literal(f"{what} [{outputs[group[0]].unit}]".replace(" []", "")))
    axes[0, 0].set_title(literal(title), fontsize="medium")
    return figure
