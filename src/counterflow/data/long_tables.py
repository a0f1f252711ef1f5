"""Long tables: a row for each value, with its tag, its time and perhaps its quality, as historians export them.

They are turned into wide ones, a column for each tag. Files that hold different tags are laid side by side in the same
way. Values of bad quality are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars

from counterflow.data.files import SourceFile, source_of
from counterflow.data.times import NAMES, NONE, SECOND, TimeOptions, Times, find_time, parse
from counterflow.data.words import good_qualities, meaning
from counterflow.errors import DataError, OptionError

_TAG = (
    "tag", "tagname", "tag_name", "tag name", "tagid", "tag_id", "tag id", "point", "pointname", "point_name",
    "point name", "pointid", "point_id", "point id", "signal", "signalname", "sensor", "sensor_id", "sensor id",
    "variable", "channel", "item", "itemid", "item_id", "name", "nodeid", "node_id", "node id", "parameter", "series",
    "measurement", "metric", "messstelle", "kanal",
)  # fmt: skip
_VALUE = ("value", "val", "reading", "data", "wert", "messwert", "result", "pv", "v")
_QUALITY = (
    "quality", "qual", "q", "status", "statuscode", "status_code", "status code", "confidence", "qualität", "good",
    "opcquality", "opc_quality", "opc quality",
)  # fmt: skip
_MEASURE = ("unit", "units", "uom", "engunits", "eng_units", "eng units", "engineering units", "einheit")
_MOST_COLUMNS = 12  # a wide table may have a column called "name", too
MOST_TAGS = 20_000
_TIME = "time"
_PARTS = ("tag", "value", "quality")


@dataclass(frozen=True)
class LongOptions:
    """Columns of a long table, where their names do not tell; see `open_table`. `given`: whether any was named."""

    tag: str | None = None
    value: str | None = None
    quality: str | None = None

    @property
    def given(self) -> bool:
        """Whether somebody says that the table is long."""
        return self.tag is not None or self.value is not None


@dataclass(frozen=True)
class LongNames:
    """The columns of a long table."""

    time: str
    tag: str
    value: str
    quality: str | None
    measure: str | None


@dataclass(frozen=True)
class Widened:
    """A wide table made of others: as a file in memory, with the usual step of its columns in nanoseconds."""

    file: SourceFile
    step: int
    notes: tuple[tuple[str, int], ...]  # what was left out, in words, with how often


def long_names(file: SourceFile, times: TimeOptions, options: LongOptions) -> LongNames | None:
    """The columns of a long table; None if the table is not one."""
    time = find_time(file.names, times.column, file.name)
    if options.given:
        if time is None:
            raise DataError(f"{file.name} has no time column: name it with 'time'; its columns are {_some(file.names)}")
        named = {}
        for part in _PARTS:
            wanted = getattr(options, part)
            if wanted is not None and wanted not in file.names:
                raise OptionError(f"{part} is {wanted!r}: {file.name} has the columns {_some(file.names)}.")
            named[part] = wanted or _named(file.names, {"tag": _TAG, "value": _VALUE, "quality": _QUALITY}[part], time)
        for part in ("tag", "value"):
            if named[part] is None:
                raise OptionError(f"{file.name}: name the column of {part}s with {part!r}, too: {_some(file.names)}.")
        return LongNames(time, str(named["tag"]), str(named["value"]), named["quality"], _measure(file.names))
    if time is None or not 3 <= len(file.names) <= _MOST_COLUMNS:
        return None
    tag, value = _named(file.names, _TAG, time), _named(file.names, _VALUE, time)
    if tag is None or value is None or tag == value:
        return None
    some = file.column(tag, 5000)
    if some.dtype not in (polars.String, polars.Categorical, polars.Enum) and not some.dtype.is_integer():
        return None
    if some.dtype == polars.String and bool(
        some.str.strip_chars().cast(polars.Float64, strict=False).is_not_null().all()
    ):
        return None  # numbers: a wide table whose columns happen to have such names
    quality = _named(file.names, _QUALITY, time)
    return LongNames(time, tag, value, quality if quality not in (tag, value) else None, _measure(file.names))


def is_value(name: str) -> bool:
    """Whether a column is called so that it does not say which tag it holds: "value" and so on."""
    return name.casefold() in _VALUE


def _named(names: Sequence[str], usual: Sequence[str], time: str) -> str | None:
    return next((name for word in usual for name in names if name.casefold() == word and name != time), None)


def _measure(names: Sequence[str]) -> str | None:
    return next((name for name in names if name.casefold() in _MEASURE), None)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def widen(files: Sequence[SourceFile], named: Sequence[LongNames], options: TimeOptions) -> Widened:
    """A wide table of long ones."""
    parts, measures, bad = [], {}, 0
    unread: list[tuple[str, int]] = []
    for file, names in zip(files, named, strict=True):
        frame, found, dropped = _long_part(file, names, options, unread)
        parts.append(frame)
        measures.update(found)
        bad += dropped
    notes = [*unread, *([("values of bad quality were read as missing", bad)] if bad else [])]
    tags = polars.concat([part.get_column("tag").unique() for part in parts]).unique()
    title = _title(files, f"long table of {len(tags)} tags")
    return _pivoted(files[0].path, _together(parts), measures, title, notes)


def _unread(file: SourceFile, times: Times) -> Iterator[tuple[str, int]]:
    """Rows whose time cannot be read, in words, with how often."""
    if times.unread:
        reason = f"their time cannot be read: {times.example} is the first"
        yield f"rows of {file.name} were left out, because {reason}", times.unread


def _long_part(
    file: SourceFile, names: LongNames, options: TimeOptions, notes: list[tuple[str, int]]
) -> tuple[polars.DataFrame, dict[str, str], int]:
    with file.reading():
        wanted = [names.time, names.tag, names.value, *filter(None, (names.quality, names.measure))]
        frame = file.scan().select(wanted).collect()
    if len(frame) == 0:
        raise DataError(f"{file.name} has a header but no rows: give a table with data")
    times = parse(frame.get_column(names.time), names.time, options, file.line)
    notes += _unread(file, times)
    tag = frame.get_column(names.tag).cast(polars.String).str.strip_chars()
    values = frame.get_column(names.value)
    bad = np.zeros(len(frame), np.bool_)
    if names.quality is not None:
        quality = frame.get_column(names.quality).cast(polars.String).str.strip_chars().fill_null("")
        counted = quality.value_counts()
        counts = dict(zip(counted.to_series(0).to_list(), counted.to_series(1).to_list(), strict=True))
        good = good_qualities({word: count for word, count in counts.items() if word})
        if good:  # otherwise the column says something else
            bad = (~quality.is_in([*good, ""])).to_numpy()
    keep = polars.Series(times.nanoseconds != NONE) & tag.is_not_null() & (tag != "")
    told = _told(values, file).set(polars.Series(bad), None)
    out = polars.DataFrame({_TIME: stamps_of(times), "tag": tag, "value": told}).filter(keep)
    measures: dict[str, str] = {}
    if names.measure is not None:
        said = polars.DataFrame({"tag": tag, "measure": frame.get_column(names.measure).cast(polars.String)})
        pairs = said.drop_nulls().unique("tag", keep="last")
        measures = dict(zip(pairs.get_column("tag").to_list(), pairs.get_column("measure").to_list(), strict=True))
    return out, {name: measure.strip() for name, measure in measures.items() if measure.strip()}, int(bad.sum())


def _told(values: polars.Series, file: SourceFile) -> polars.Series:
    """Values as numbers; a column with words such as "Bad" and "open" stays text until it is read as a channel."""
    if values.dtype == polars.String:
        text = values.str.strip_chars()
        return file.numerals(text.set(text == "", None))
    return values.cast(polars.Float64).fill_nan(None)


def _together(parts: Sequence[polars.DataFrame]) -> polars.DataFrame:
    """Long parts below each other: numbers if all are, else text."""
    if len({part.schema["value"] for part in parts}) > 1:
        parts = [part.with_columns(polars.col("value").cast(polars.String)) for part in parts]
    return polars.concat(parts)


def side_by_side(files: Sequence[SourceFile], options: TimeOptions) -> Widened:
    """Files with different columns as one table: rows of the same time become one."""
    parts, measures = [], {}
    owners: dict[str, str] = {}
    notes: list[tuple[str, int]] = []
    for file in files:
        time = find_time(file.names, options.column, file.name)
        if time is None:
            raise DataError(
                f"{files[0].name} and {file.name} have different columns, and {file.name} has no time column by which "
                "their rows could be put together: name it with 'time'"
            )
        with file.reading():
            frame = file.scan().collect()
        if len(frame) == 0:
            continue
        times = parse(frame.get_column(time), time, options, file.line)
        notes += _unread(file, times)
        known = polars.Series(times.nanoseconds != NONE)
        columns = [name for name in file.names if name != time]
        if len(columns) == 1 and is_value(columns[0]):  # one tag in each file, called as the file
            name = Path(file.name).name.removesuffix(".gz").rpartition(".")[0] or file.name
            frame, columns = frame.rename({columns[0]: name.rpartition(":")[2]}), [name.rpartition(":")[2]]
        for name in columns:
            measures.update({name: file.measures[name]} if name in file.measures else {})
            owners.setdefault(name, file.name)
            part = polars.DataFrame({_TIME: stamps_of(times), "value": _told(frame.get_column(name), file)}).filter(
                known
            )
            parts.append(part.select(_TIME, polars.lit(name).alias("tag"), "value"))
    if not parts:
        raise DataError(f"{files[0].name} and {len(files) - 1} more have headers but no rows: give tables with data")
    return _pivoted(files[0].path, _together(parts), measures, _title(files, "side by side"), notes)


def _title(files: Sequence[SourceFile], kind: str) -> str:
    first = files[0]
    own = f"{kind}, {first.kind}" if first.layout is not None else kind
    return own if len(files) == 1 else f"{own}, {len(files)} files"


def stamps_of(times: Times) -> polars.Series:
    """Times as polars has them; plain seconds stay a count of nanoseconds."""
    stamps = polars.Series(times.nanoseconds)
    if not times.dated:
        return stamps
    dates = stamps.cast(polars.Datetime("ns"))
    return dates.dt.replace_time_zone("UTC") if times.zoned else dates


def _pivoted(
    path: Path, long: polars.DataFrame, measures: Mapping[str, str], kind: str, notes: Sequence[tuple[str, int]]
) -> Widened:
    """A column for each tag, in the order of their names; of several values of one time, the last known."""
    tags = sorted(long.get_column("tag").unique().to_list())
    if not tags:
        raise DataError(f"{path.name} holds no value of good quality: check its columns of tags and qualities")
    if len(tags) > MOST_TAGS:
        raise DataError(f"{path.name} has {len(tags)} tags, more than {MOST_TAGS}: is it a long table?")
    known = long.filter(polars.col("value").is_not_null())
    steps = (
        long.lazy().sort(_TIME).group_by("tag")
        .agg(polars.col(_TIME).cast(polars.Int64).unique().sort().diff().drop_nulls().median().alias("step"))
        .select("step").drop_nulls().collect().to_series()
    )  # fmt: skip
    usual = int(steps.quantile(0.5, "lower") or SECOND) if len(steps) else SECOND  # a step that occurs
    if _TIME in tags:
        raise DataError(f"{path.name} has a tag called {_TIME!r}: rename it, so that it is not taken for the time")
    wide = known.pivot(on="tag", index=_TIME, values="value", aggregate_function="last").sort(_TIME)
    wide = wide.select(_TIME, *(tag for tag in tags if tag in wide.columns))
    notes = [*notes, *_conflicts(known, wide)]
    columns: list[polars.Series] = []
    for series in wide.iter_columns():
        numbers = series if series.name == _TIME else series.cast(polars.Float64, strict=False)
        whole = series.name == _TIME or numbers.null_count() == series.null_count()
        columns.append(numbers if whole else series)  # words stay, for whoever reads the column
    if wide.schema[_TIME] == polars.Int64:
        columns[0] = (wide.get_column(_TIME) / SECOND).alias(_TIME)
    frame = polars.DataFrame(columns)
    file = source_of(path, frame.lazy(), frame.columns, kind)
    kept = {name: measure for name, measure in measures.items() if name in file.names and meaning(measure) is None}
    return Widened(
        SourceFile(path, file.names, file.source, kind, measures={**file.measures, **kept}), usual, tuple(notes)
    )


def _conflicts(known: polars.DataFrame, wide: polars.DataFrame) -> Iterator[tuple[str, int]]:
    """Values that gave way to another one of the same tag and time, in words, with how many they are."""
    cells = sum(len(column) - column.null_count() for column in wide.iter_columns() if column.name != _TIME)
    if cells == len(known):
        return
    lost = known.n_unique([_TIME, "tag", "value"]) - known.n_unique([_TIME, "tag"])
    if lost:
        remedy = "if clocks were changed then, give the option timezone"
        yield f"values gave way to a later one of the same tag and time that differs; {remedy}", lost


assert _TIME in NAMES  # it is found again
