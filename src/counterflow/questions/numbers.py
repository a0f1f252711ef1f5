"""Arrays of an answer as JSON and tables of numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.plant.units import Channel

if TYPE_CHECKING:
    import polars

    from counterflow.questions.timeline import Timeline


def named(channel: Channel) -> dict[str, str]:
    """A channel in JSON."""
    return {"channel": channel.name, "measured_in": channel.unit}


def channel_label(channel: Channel) -> str:
    """A channel with its unit of measure: "speed [rpm]"."""
    return f"{channel.name} [{channel.unit}]" if channel.unit else channel.name


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


def plain(tree: Any) -> Any:
    """A tree of mappings, lists, arrays and numbers in types that JSON has."""
    if isinstance(tree, np.ndarray):
        return series(tree) if tree.ndim == 1 else plain(tree.tolist())
    if isinstance(tree, Mapping):
        return {name: plain(each) for name, each in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(each) for each in tree]
    return finite(tree) if isinstance(tree, float) else tree


def of_channel(tree: Any, k: int) -> Any:
    """One channel of everything in a tree of mappings, lists and arrays (rows, D_m), as a page draws it."""
    if isinstance(tree, np.ndarray):
        return series(tree[:, k])
    if isinstance(tree, Mapping):
        return {name: of_channel(each, k) for name, each in tree.items()}
    return [of_channel(each, k) for each in tree] if isinstance(tree, list) else tree


def long_frame(
    timeline: Timeline, channels: Sequence[str], columns: Mapping[str, FloatArray | None]
) -> polars.DataFrame:
    """One row a step (or row) and channel; columns that are None are left out, times where dates are not known."""
    import polars as pl

    known = {name: values for name, values in columns.items() if values is not None}
    rows, count, first = timeline.count, len(channels), timeline.numbered
    calendar = timeline.calendar
    times = {} if calendar is None else {"time": calendar.series(first, first + rows).repeat_by(count).explode()}
    return pl.DataFrame(
        {
            **times,
            timeline.column: np.repeat(np.arange(first, first + rows), count),
            "channel": list(channels) * rows,
            **{name: values.ravel() for name, values in known.items()},
        }
    )


def mean_over_rows(values: FloatArray) -> FloatArray:
    """Mean of each column over the rows that are there; NaN where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))
