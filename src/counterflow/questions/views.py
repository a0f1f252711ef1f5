"""What front ends read of an answer: schemas of what a page draws, and numbers for JSON and tables."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Verdict, Weight
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import Channel

if TYPE_CHECKING:
    import polars


@dataclass(frozen=True)
class CaveatView:
    code: str
    scope: str
    text: str
    weight: Weight


@dataclass(frozen=True)
class FitView:
    """The fit that an answer comes from."""

    id: str
    fitted: str


@dataclass(frozen=True)
class View:
    """What every answer begins with. Numbers that are not known are null."""

    version: str
    command: str
    method: str
    dt: float
    fit: FitView | None
    sentence: str
    controllers: str | None
    caveats: list[CaveatView]
    window: str  # what is said of all rows together; "" where an answer has none
    verdict: Verdict
    kind: str


@dataclass(frozen=True)
class PeakView:
    """The largest change of a channel; ``size`` in standard deviations of its noise (at the server: as it is)."""

    unit: str
    channel: str
    measured_in: str
    mean: float
    lower: float | None
    upper: float | None
    size: float
    last: float | None = None
    steps: int | None = None
    row: int | None = None


@dataclass(frozen=True)
class LineView:
    """One channel, one number a row; ``mean``, ``lower``, ``upper``: of the change (effect), or of the value."""

    channel: str
    measured_in: str
    mean: list[float | None]
    lower: list[float | None] | None
    upper: list[float | None] | None


def named(channel: Channel) -> dict[str, str]:
    """A channel in JSON."""
    return {"channel": channel.name, "measured_in": channel.unit}


def channel_label(channel: Channel) -> str:
    """A channel with its unit of measure: "speed [rpm]"."""
    return f"{channel.name} [{channel.unit}]" if channel.unit else channel.name


def attributes(value: Any, *names: str) -> dict[str, Any]:
    """Some attributes of an answer or a request, in JSON under their own names."""
    return {name: getattr(value, name) for name in names}


def channels_json(channels: Sequence[Channel]) -> list[dict[str, str]]:
    return [{"name": channel.name, "measured_in": channel.unit} for channel in channels]


def finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return None if value is None or not math.isfinite(value) else float(value)


def series(values: FloatArray) -> list[float | None]:
    """The same for a column."""
    column = np.asarray(values, np.float64)
    known = np.isfinite(column)
    if known.all():
        return list(column.tolist())
    return [value if there else None for value, there in zip(column.tolist(), known.tolist(), strict=True)]


def line(channel: Channel, k: int, answer: Any, **more: Any) -> dict[str, Any]:
    """One channel of an answer with ``mean``, ``lower`` and ``upper`` (rows, D_m), for drawing."""
    return {
        **named(channel),
        "mean": series(answer.mean[:, k]),
        "lower": None if answer.lower is None else series(answer.lower[:, k]),
        "upper": None if answer.upper is None else series(answer.upper[:, k]),
        **more,
    }


def long_frame(
    when: str, first: int, channels: Sequence[str], columns: Mapping[str, FloatArray | None],
    calendar: Calendar | None = None,
) -> polars.DataFrame:  # fmt: skip
    """One row a step (or row) and channel; columns that are None are left out, times where dates are not known."""
    import polars as pl

    known = {name: values for name, values in columns.items() if values is not None}
    rows, count = next(iter(known.values())).shape
    times = {} if calendar is None else {"time": calendar.series(first, first + rows).repeat_by(count).explode()}
    return pl.DataFrame(
        {
            **times,
            when: np.repeat(np.arange(first, first + rows), count),
            "channel": list(channels) * rows,
            **{name: values.ravel() for name, values in known.items()},
        }
    )


def mean_over_rows(values: FloatArray) -> FloatArray:
    """Mean of each column over the rows that are there; NaN where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))
