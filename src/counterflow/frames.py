"""DataFrames of pandas and polars, either way and without pyarrow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.errors import DataError

if TYPE_CHECKING:
    import pandas
    import polars

_EPOCH_UNITS = ("ns", "us", "ms")


def is_frame(value: object) -> bool:
    """Whether it is a DataFrame or a LazyFrame of polars, or a DataFrame of pandas; neither is imported for it."""
    kind = type(value)
    home = kind.__module__.partition(".")[0]
    return (home, kind.__name__) in (("polars", "DataFrame"), ("polars", "LazyFrame"), ("pandas", "DataFrame"))


def as_polars(frame: Any) -> polars.DataFrame:
    """A polars DataFrame of one of pandas (or of polars, as it is).

    An index that has a name, or that holds times, becomes the first column, called "time" if it has no name; an index
    that only counts rows is left out. Columns of several levels are called by their levels with "." between them.
    """
    import polars

    if isinstance(frame, polars.LazyFrame):
        return frame.collect()
    if isinstance(frame, polars.DataFrame):
        return frame
    if not is_frame(frame):
        raise DataError(f"a table is a DataFrame of polars or pandas, got a {type(frame).__name__}")
    columns: dict[str, polars.Series] = {}
    index = frame.index
    timed = np.asarray(index.dtype == object) or hasattr(index, "tz") or hasattr(index, "to_timestamp")
    if index.name is not None or (index.nlevels == 1 and bool(timed) and not str(index.dtype).startswith("int")):
        stamps = index.to_timestamp() if hasattr(index, "to_timestamp") else index
        columns[str(index.name if index.name is not None else "time")] = _series(stamps.to_series())
    for k, label in enumerate(frame.columns):
        name = ".".join(map(str, label)) if isinstance(label, tuple) else str(label)
        if name in columns:
            raise DataError(f"the table has two columns called {name!r}; rename one of them")
        columns[name] = _series(frame.iloc[:, k])
    return polars.DataFrame([series.alias(name) for name, series in columns.items()])


def _series(column: Any) -> polars.Series:
    """A column of pandas; missing is null."""
    import polars

    dtype, missing = column.dtype, column.isna().to_numpy()
    kind = str(dtype)
    if kind.startswith("datetime64"):
        unit = next((unit for unit in _EPOCH_UNITS if f"[{unit}" in kind), "ns")
        plain = column.dt.tz_convert("UTC").dt.tz_localize(None) if getattr(dtype, "tz", None) is not None else column
        epochs = plain.astype(f"datetime64[{unit}]").to_numpy().astype(np.int64)
        found = polars.Series(epochs).set(polars.Series(missing), None).cast(polars.Datetime(unit))  # type: ignore[arg-type]
        zone = getattr(dtype, "tz", None)
        if zone is None:
            return found
        name = getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
        found = found.dt.replace_time_zone("UTC")
        return found if name.upper().startswith("UTC") else found.dt.convert_time_zone(name)
    if getattr(dtype, "kind", "O") in "iuf" and isinstance(dtype, np.dtype):
        values = np.ascontiguousarray(column.to_numpy())
        series = polars.Series(values.astype(np.float64) if values.dtype == np.float16 else values)
        return series.set(polars.Series(missing), None) if missing.any() else series
    if getattr(dtype, "kind", "O") == "b" and isinstance(dtype, np.dtype):
        return polars.Series(column.to_numpy())
    if getattr(dtype, "kind", "O") in "iufb":  # pandas' own kinds that know missing values
        filled = column.astype(object).where(~column.isna(), None)
        return polars.Series(filled.tolist(), strict=False)
    cells = [None if gone else value for value, gone in zip(column.tolist(), missing.tolist(), strict=True)]
    if any(hasattr(value, "tzinfo") for value in cells) and not any(isinstance(value, str) for value in cells):
        return polars.Series(cells, strict=False)
    if all(value is None or isinstance(value, (int, float)) for value in cells):
        return polars.Series(cells, strict=False)
    return polars.Series([None if value is None else str(value) for value in cells], dtype=polars.String)


def has_frame(value: object) -> bool:
    """Whether it is a DataFrame, or a mapping that holds one."""
    return any(map(has_frame, value.values())) if isinstance(value, Mapping) else is_frame(value)


def columns_of(value: Any) -> Any:
    """A DataFrame as {column: array}, without columns of times, wherever it stands in mappings; all else as it is."""
    if isinstance(value, Mapping):
        return {name: columns_of(each) for name, each in value.items()}
    if not is_frame(value):
        return value
    frame = as_polars(value)
    return {name: frame[name].to_numpy() for name, dtype in frame.schema.items() if not dtype.is_temporal()}


def as_pandas(frame: polars.DataFrame, index: str | Sequence[str] = ()) -> pandas.DataFrame:
    """A pandas DataFrame of one of polars, without pyarrow; columns `index` become its index, if they are there.

    Times keep their zone; null is NaN, NaT or None.
    """
    try:
        import pandas
    except ImportError as error:
        raise DataError("to_pandas needs pandas: pip install pandas; to_frame() gives a polars DataFrame") from error
    import polars

    columns: dict[str, Any] = {}
    for series in frame.iter_columns():
        dtype = series.dtype
        if isinstance(dtype, polars.Datetime):
            unit, zone = dtype.time_unit, dtype.time_zone
            plain = series if zone is None else series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
            stamps = pandas.Series(plain.to_numpy().astype(f"datetime64[{unit}]"))
            columns[series.name] = stamps if zone is None else stamps.dt.tz_localize("UTC").dt.tz_convert(zone)
        elif dtype.is_numeric() or dtype == polars.Boolean:
            columns[series.name] = series.to_numpy()
        else:
            columns[series.name] = np.array(series.to_list(), dtype=object)
    out = pandas.DataFrame(columns, columns=frame.columns)
    kept = [name for name in ([index] if isinstance(index, str) else list(index)) if name in frame.columns]
    return out.set_index(kept) if kept else out


def as_csv(frame: polars.DataFrame) -> bytes:
    """A table as CSV: what is not a number is empty, and no spreadsheet takes a name for a formula.

    Times are in ISO 8601, with their offset from UTC where the zone is known.
    """
    import polars.selectors

    formula = r"^([=+\-@\t\r])"
    names = {name: f"'{name}" for name in frame.columns if re.match(formula, name)}
    times = [
        polars.col(name).dt.to_string("%Y-%m-%d %H:%M:%S%.f" + ("%:z" if dtype.time_zone else ""))
        for name, dtype in frame.schema.items() if isinstance(dtype, polars.Datetime)
    ]  # fmt: skip
    safe = (
        frame.with_columns(times)
        .fill_nan(None)
        .with_columns(polars.selectors.string().str.replace(formula, "'${1}"))
        .rename(names)
    )
    return safe.write_csv().encode()
