"""Long tables: a row for each value, with its tag, its time and perhaps its quality, as historians export them.

They are turned into wide ones, a column for each tag. Files that hold different tags are laid side by side in the same
way. Values of bad quality are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars

from counterflow.data import columns
from counterflow.data.columns import good_qualities, meaning
from counterflow.data.notes import Step, told
from counterflow.data.options import TableOptions, some
from counterflow.data.source import Source, frame_source
from counterflow.data.times import NONE, find_time, parse
from counterflow.errors import DataError, OptionError
from counterflow.plant.calendar import SECOND

TIME = "time"  # of a table that is made here
MOST_TAGS = 20_000
_USUAL = {
    "tag": (
        "tag", "tagname", "tag_name", "tag name", "tagid", "tag_id", "tag id", "point", "pointname", "point_name",
        "point name", "pointid", "point_id", "point id", "signal", "signalname", "sensor", "sensor_id", "sensor id",
        "variable", "channel", "item", "itemid", "item_id", "name", "nodeid", "node_id", "node id", "parameter",
        "series", "measurement", "metric", "messstelle", "kanal",
    ),
    "value": ("value", "val", "reading", "data", "wert", "messwert", "result", "pv", "v"),
    "quality": (
        "quality", "qual", "q", "status", "statuscode", "status_code", "status code", "confidence", "qualität", "good",
        "opcquality", "opc_quality", "opc quality",
    ),
    "measure": ("unit", "units", "uom", "engunits", "eng_units", "eng units", "engineering units", "einheit"),
}  # fmt: skip
_MOST_COLUMNS = 12  # a wide table may have a column called "name", too


class LongNames(NamedTuple):
    """The columns of a long table."""

    time: str
    tag: str
    value: str
    quality: str | None
    measure: str | None


def long_names(file: Source, options: TableOptions) -> LongNames | None:
    """The columns of a long table; None if the table is not one, and nobody says that it is."""
    time = find_time(file.names, options.time, file.name)

    def usual(part: str) -> str | None:
        fitting = (name for word in _USUAL[part] for name in file.names if name.casefold() == word and name != time)
        return next(fitting, None)

    if options.tag is not None or options.value is not None:
        if time is None:
            raise DataError(f"{file.name} has no time column: name it with 'time'; its columns are {some(file.names)}")
        for part in ("tag", "value", "quality"):
            if (wanted := getattr(options, part)) is not None and wanted not in file.names:
                raise OptionError(f"{part} is {wanted!r}: {file.name} has the columns {some(file.names)}.")
        tag, value = options.tag or usual("tag"), options.value or usual("value")
        if tag is None or value is None:
            part = "tag" if tag is None else "value"
            raise OptionError(f"{file.name}: name the column of {part}s with {part!r}, too: {some(file.names)}.")
        return LongNames(time, tag, value, options.quality or usual("quality"), usual("measure"))
    tag, value, quality = usual("tag"), usual("value"), usual("quality")
    if time is None or not 3 <= len(file.names) <= _MOST_COLUMNS or tag is None or value is None or tag == value:
        return None
    tags = file.column(tag, 5000)
    if tags.dtype == polars.String:
        if bool(tags.str.strip_chars().cast(polars.Float64, strict=False).is_not_null().all()):
            return None  # numbers: a wide table whose columns happen to have such names
    elif tags.dtype not in (polars.Categorical, polars.Enum) and not tags.dtype.is_integer():
        return None
    return LongNames(time, tag, value, quality if quality not in (tag, value) else None, usual("measure"))


def is_value(name: str | None) -> bool:
    """Whether a column is called so that it does not say which tag it holds: "value" and so on."""
    return name is not None and name.casefold() in _USUAL["value"]


def gathered(files: Sequence[Source], named: Sequence[LongNames | None], options: TableOptions) -> Source:
    """One wide table of long ones, or of files with different columns: rows of the same time become one."""
    parts: list[polars.DataFrame] = []
    measures: dict[str, str] = {}
    notes: list[Step] = []
    bad = 0
    for file, names in zip(files, named, strict=True):
        time = find_time(file.names, options.time, file.name)
        if time is None:
            raise DataError(
                f"{files[0].name} and {file.name} have different columns, and {file.name} has no time column by which "
                "their rows could be put together: name it with 'time'"
            )
        with file.reading():
            frame = file.scan().select(file.names if names is None else filter(None, names)).collect()
        if len(frame) == 0:
            continue
        times = parse(frame.get_column(time), time, options, file.line)
        if times.unread:
            notes.append(told("unread", rows=times.unread, example=f"{times.example} of {file.name}"))
        known = polars.Series(times.nanoseconds != NONE)
        pieces: dict[str, polars.Series | polars.Expr] = {}  # columns of values, with their tags
        if names is None:
            channels = [name for name in file.names if name != time]
            # one tag in each file: it is called as the file
            stem = file.name.removesuffix(".gz").rpartition(".")[0].rpartition(":")[2] or file.name
            tags = {name: stem if len(channels) == 1 and is_value(name) else name for name in channels}
            measures |= {tags.get(name, name): measure for name, measure in file.measures.items()}
            pieces |= {name: polars.lit(tag) for name, tag in tags.items()}
            poor = ~known
        else:
            tag = frame.get_column(names.tag).cast(polars.String).str.strip_chars()
            known &= (tag != "").fill_null(False)
            pieces[names.value] = tag
            poor = _poor(frame, names.quality)
            bad += int(poor.sum())
            if names.measure is not None:
                said = polars.DataFrame({"tag": tag, "measure": frame.get_column(names.measure).cast(polars.String)})
                measures |= dict(said.drop_nulls().unique("tag", keep="last").iter_rows())
        for name, its in pieces.items():  # with words such as "open" values stay text until they are read
            values = frame.get_column(name)
            cells = file.as_cells(values.cast(polars.String) if values.dtype.is_temporal() else values)
            cells = (cells.fill_nan(None) if cells.dtype == polars.Float64 else cells).set(poor, None)
            part = polars.DataFrame({TIME: times.stamps, "value": cells})
            parts.append(part.with_columns(its.alias("tag")).filter(known))
    if not parts:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        raise DataError(f"{files[0].name}{more} has a header but no rows: give a table with data")
    notes += [told("quality", count=bad)] if bad else []
    return _pivoted(files, polars.concat(parts, how="vertical_relaxed"), all(named), measures, notes)


def _poor(frame: polars.DataFrame, quality: str | None) -> polars.Series:
    """Which values are not of good quality."""
    none = polars.repeat(False, len(frame), eager=True)
    if quality is None:
        return none
    said = frame.get_column(quality).cast(polars.String).str.strip_chars().fill_null("")
    good = good_qualities({word: count for word, count in said.value_counts().iter_rows() if word})
    return ~said.is_in([*good, ""]) if good else none  # without any, the column says something else


def _pivoted(
    files: Sequence[Source], long: polars.DataFrame, by_tags: bool, measures: Mapping[str, str], notes: list[Step]
) -> Source:
    """A column for each tag, in the order of their names; of several values of one time, the last known."""
    name = files[0].name.removesuffix(f", sheet {files[0].sheet}")
    tags = sorted(long.get_column("tag").unique().to_list())
    if not tags:
        raise DataError(f"{name} holds no value of good quality: check its columns of tags and qualities")
    if len(tags) > MOST_TAGS:
        raise DataError(f"{name} has {len(tags)} tags, more than {MOST_TAGS}: is it a long table?")
    if TIME in tags:
        raise DataError(f"{name} has a tag called {TIME!r}: rename it, so that it is not taken for the time")
    steps = (
        long.lazy().sort(TIME).group_by("tag")
        .agg(polars.col(TIME).cast(polars.Int64).unique().sort().diff().drop_nulls().median().alias("step"))
        .select("step").drop_nulls().collect().to_series()
    )  # fmt: skip
    known = long.filter(polars.col("value").is_not_null())
    wide = known.pivot(on="tag", index=TIME, values="value", aggregate_function="last").sort(TIME)
    # numbers, if all cells of a column are; words stay, for whoever reads it
    filled = [columns.numeric(wide.get_column(tag)) for tag in tags if tag in wide.columns]
    if sum(len(column) - column.null_count() for column in filled) < len(known):
        lost = known.n_unique([TIME, "tag", "value"]) - known.n_unique([TIME, "tag"])  # gave way to another value
        notes += [told("overwritten", count=lost)] if lost else []
    kind = f"long table of {len(tags)} tags" if by_tags else "side by side"
    kind += (f", {files[0].kind}" if files[0].is_text else "") + (f", {len(files)} files" if len(files) > 1 else "")
    made = frame_source(name, polars.DataFrame([wide.get_column(TIME), *filled]).lazy(), kind)
    said = {tag: measure.strip() for tag, measure in measures.items() if tag in made.names}
    own = {tag: measure for tag, measure in said.items() if measure and meaning(measure) is None}
    step = int(steps.quantile(0.5, "lower") or SECOND) if len(steps) else SECOND  # one that occurs
    before = (note for file in files for note in file.notes)
    return replace(made, measures={**made.measures, **own}, step=step, notes=(*before, *notes))
