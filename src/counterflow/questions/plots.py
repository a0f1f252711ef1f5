"""Where pictures of answers and fits are drawn, with matplotlib when asked for (``pip install counterflow[plots]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterflow.errors import CounterflowError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.plant.calendar import Calendar

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


def dated(axis: Any, calendar: Calendar | None) -> None:
    """Short dates along an axis, where it has any."""
    if calendar is not None:
        short_dates(axis)


def short_dates(axis: Any) -> None:
    """Dates along an axis of times: as short as they can be told apart."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def labelled(axis: Any, x: str, y: str, title: str, **legend: Any) -> None:
    """A line at zero, what is drawn along the axes, a title and a legend."""
    axis.axhline(0.0, color="0.6", linewidth=0.8)
    axis.set(xlabel=literal(x), ylabel=literal(y), title=literal(title))
    axis.legend(frameon=False, **legend)
