"""A unit's own log: one column a channel; rows by their time where they have dates, else one row a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError

if TYPE_CHECKING:
    from counterflow.data import Table


def open_log(path: Path, channels: Sequence[str], options: Mapping[str, Any] | None = None) -> Table:
    """A log that has these columns."""
    from counterflow.data import open_table
    from counterflow.data.options import some

    table = open_table(path, **(options or {}))
    missing = [name for name in channels if name not in table.names]
    if missing:
        wanted = ", ".join(map(repr, missing[:5]))
        raise DataError(f"{path.name} has no column {wanted}; its columns are {some(table.names)}")
    return table


def has_dates(table: Table, options: Mapping[str, Any]) -> bool:
    """Whether rows are to be put in place by their time: it was asked for, or the column of a usual name has dates."""
    if table.time_name is None:
        return False
    if options.get("time") is not None:
        return True
    try:
        return table.times is not None and table.times.dated
    except DataError:
        if any(key in options for key in ("time_format", "day_first", "timezone")):  # it was said how to read it
            raise
        return False  # a column that happens to be called "date"


def read_log(table: Table, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Measurements y (T+1, D_m) and inputs u (T+1, U_m) row by row; an empty cell is missing, which no input may be."""
    found = table.numbers([*inputs, *outputs])
    for name, numbers in found.items():
        table.refuse_text(name, numbers)
    rows = table.rows
    u = _stack([found[name].values for name in inputs], rows)
    y = _stack([found[name].values for name in outputs], rows)
    for k, name in enumerate(inputs):
        holes = np.flatnonzero(np.isnan(u[:, k]))
        if len(holes):
            row = int(holes[0])
            raise DataError(
                f"{table.title}: input {name!r} is empty in row {row}{table.place(row)}; inputs must be "
                "known in every row: fill the gap, or cut those rows off"
            )
    return y, u


def read_columns(path: Path) -> dict[str, FloatArray]:
    """All columns of a small table, each known in every row."""
    table = open_log(path, ())
    y, _ = read_log(table, (), table.names)
    if np.isnan(y).any():
        row, column = (int(k) for k in np.argwhere(np.isnan(y))[0])
        raise DataError(f"{path.name}: {table.names[column]!r} is empty in row {row}{table.place(row)}")
    return {name: y[:, k] for k, name in enumerate(table.names)}


def _stack(columns: list[FloatArray], rows: int) -> FloatArray:
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0))
