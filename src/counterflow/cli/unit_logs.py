"""A unit's own log, CSV or Parquet: one column a channel, one row a step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import DataError

if TYPE_CHECKING:
    import polars

FloatArray = NDArray[np.float64]


def read_log(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[FloatArray, FloatArray]:
    """Measurements y (T+1, D_m) and inputs u (T+1, U_m); an empty cell is missing, which inputs may not be."""
    frame = _frame(path)
    missing = [name for name in (*inputs, *outputs) if name not in frame.columns]
    if missing:
        there = ", ".join(frame.columns[:12]) + (", ..." if len(frame.columns) > 12 else "")
        raise DataError(f"{path.name} has no column {', '.join(map(repr, missing[:5]))}; its columns are {there}")
    y = _stack([_column(frame, name, path) for name in outputs], len(frame))
    u = _stack([_column(frame, name, path) for name in inputs], len(frame))
    for k, name in enumerate(inputs):
        holes = np.flatnonzero(np.isnan(u[:, k]))
        if len(holes):
            raise DataError(
                f"{path.name}: input {name!r} is empty in row {holes[0]}{_line(path, int(holes[0]))}; inputs must be "
                "known in every row: fill the gap, or cut those rows off"
            )
    return y, u


def read_columns(path: Path) -> dict[str, FloatArray]:
    """All columns of a small table, each known in every row."""
    frame = _frame(path)
    y, _ = read_log(path, (), frame.columns)
    if np.isnan(y).any():
        row, column = (int(k) for k in np.argwhere(np.isnan(y))[0])
        raise DataError(f"{path.name}: {frame.columns[column]!r} is empty in row {row}{_line(path, row)}")
    return {name: y[:, k] for k, name in enumerate(frame.columns)}


def _stack(columns: list[FloatArray], rows: int) -> FloatArray:
    return np.stack(columns, axis=1) if columns else np.empty((rows, 0))


def _line(path: Path, row: int) -> str:
    return "" if path.suffix.lower() == ".parquet" else f" (line {row + 2})"


def _frame(path: Path) -> polars.DataFrame:
    import polars

    try:
        if path.suffix.lower() == ".parquet":
            frame = polars.read_parquet(path)
        elif path.suffix.lower() == ".csv":
            with open(path, encoding="utf-8-sig") as file:
                header = file.readline()
            names = [name.strip().strip('"') for name in header.rstrip("\r\n").split(",")]
            twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
            if twice is not None:
                raise DataError(f"{path.name} has two columns called {twice!r}; rename one of them")
            frame = polars.read_csv(path, infer_schema_length=0)
        else:
            raise DataError(f"{path.name}: a log is a .csv or a .parquet file")
    except UnicodeDecodeError as error:
        raise DataError(f"{path.name} is not UTF-8: save it as UTF-8") from error
    except (polars.exceptions.PolarsError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise DataError(f"{path.name} cannot be read: {reason:.200}") from error
    return frame.rename({name: name.strip() for name in frame.columns if name != name.strip()})


def _column(frame: polars.DataFrame, name: str, path: Path) -> FloatArray:
    import polars

    series = frame.get_column(name)
    if series.dtype == polars.Null:
        return np.full(len(series), np.nan)
    if series.dtype == polars.String:
        stripped = series.str.strip_chars()
        stripped = stripped.set(stripped == "", None)
        found = stripped.cast(polars.Float64, strict=False)
        wrong = (found.is_null() & stripped.is_not_null()).arg_true()
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"{path.name}: column {name!r} holds {stripped[row][:40]!r} in row {row}{_line(path, row)}, which is "
                "not a number; leave the cell empty where a measurement is missing"
            )
    elif series.dtype.is_numeric():
        found = series.cast(polars.Float64)
    else:
        raise DataError(f"{path.name}: column {name!r} has type {series.dtype}, which is not a number")
    return np.array(found.fill_null(float("nan")).to_numpy(), np.float64)
