"""The data of a federation file: one table that the units share, or a log of each unit's own.

::

    [data]
    file = "plant.parquet"        # or files = ["may.csv.gz", "june.csv.gz"], a folder, a .zip
                                  # or sql = "select * from log" with database = "plant.db"
    dt = 60                       # seconds; optional
    time = "timestamp"            # optional, as is all that follows: see counterflow.data.read_logs
    longest_hold = 600

    [units.boiler]
    tags = "P1_*"                 # a pattern, a list of them, or {regex = "P1_.*"}
    inputs = ["*_D", {name = "P1_pump", unit = "%", limits = [0, 100]}]
    exclude = ["P1_note"]         # outputs: the rest, or a list
    log = "boiler.csv"            # without [data] file: the unit's own table; patterns and lists go with it, too
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow.cli.toml_lines import TomlPath
from counterflow.cli.toml_page import Page, what
from counterflow.errors import ModelError
from counterflow.plant import Recording, Unit

if TYPE_CHECKING:
    from counterflow.data import Chosen, Preparation, Selection, Table

_TEXTS = (
    "time", "time_format", "timezone", "separator", "decimal", "encoding", "resample", "fill", "long_gaps", "text",
    "header_word", "tag", "value", "quality", "sheet",
)  # fmt: skip
_NUMBERS = ("dt", "longest_hold", "longest_gap")
_COUNTS = ("skip_rows", "skip_after_header")
_FLAGS = ("day_first", "drop_constant", "sentinels")
_MOMENTS = ("start", "stop")
_SOURCES = ("file", "files", "sql", "database")
KEYS = (*_SOURCES, *_TEXTS, *_NUMBERS, *_COUNTS, *_FLAGS, *_MOMENTS)
UNIT_KEYS = ("tags", "exclude")


def data_options(page: Page, head: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``[data]``, checked one by one so that a mistake is told with its line."""
    import polars

    from counterflow.data import Rules, open_table
    from counterflow.data.preparation import TABLE_OPTIONS

    given = page.table(("data",), KEYS, optional=True)
    options: dict[str, Any] = {}
    for key, value in given.items():
        at = ("data", key)
        if key in _SOURCES:
            continue
        if key in _TEXTS:
            value = page.text(at, value)
        elif key in _NUMBERS:
            value = page.number(at, value)
        elif key in _COUNTS:
            value = page.whole(at, value, 0)
        elif key in _FLAGS and not isinstance(value, bool):
            page.refuse(at, f"must be true or false, got {what(value)}")
        elif key in _MOMENTS and (isinstance(value, bool) or not isinstance(value, (str, int, float, date, datetime))):
            page.refuse(at, f"must be a date such as '2024-05-01 06:00', or seconds, got {what(value)}")
        options[key] = value
        with page.blaming(at):
            if key in TABLE_OPTIONS:
                if key not in ("time", "header_word", "tag", "value", "quality", "sheet"):
                    open_table(polars.DataFrame({"value": [0.0]}), **{key: value})
            else:
                Rules(**{key: value})
    if "dt" in head:
        if "dt" in options and options["dt"] != head["dt"]:
            page.refuse(("data", "dt"), f"is {options['dt']:g}, [federation] has {head['dt']:g}; give it once")
        options["dt"] = page.number(("federation", "dt"), head["dt"], above=0.0)
    return options


def shared_source(page: Page) -> list[Path] | tuple[str, str] | None:
    """The table that the units share, if there is one: files, or a query with its database."""
    given = page.table(("data",), KEYS, optional=True)
    there = [key for key in ("file", "files", "sql") if key in given]
    if len(there) > 1:
        page.refuse(("data", there[1]), f"{there[0]!r} stands there, too; give one of them")
    for key, other in (("sql", "database"), ("database", "sql")):
        if key in given and other not in given:
            page.refuse(("data", key), f"it goes with {other!r}; give both")
    if "sql" in given:
        return page.text(("data", "sql"), given["sql"]), _database(page, given["database"])
    if "file" in given:
        return [page.file(("data", "file"), given["file"], folders=True)]
    if "files" in given:
        files = given["files"]
        if not isinstance(files, list) or not files:
            page.refuse(("data", "files"), f"must be a list of file names, got {what(files)}")
        return [page.file(("data", "files", k), name, folders=True) for k, name in enumerate(files)]
    return None


def _database(page: Page, given: Any) -> str:
    """A database's address; the path of a file is relative to the page."""
    from counterflow.data.databases import is_sqlite, sqlite_file

    address = page.text(("data", "database"), given)
    return f"sqlite:{page.path.parent / sqlite_file(address)}" if is_sqlite(address) else address


def has_patterns(table: Mapping[str, Any]) -> bool:
    """Whether a unit takes the columns of its own log by pattern."""
    if any(key in table for key in UNIT_KEYS):
        return True
    sides = [table.get(side) for side in ("inputs", "outputs")]
    entries = [entry for side in sides for entry in (side if isinstance(side, list) else [side])]
    return any(isinstance(side, str) for side in sides) or any(
        "regex" in entry if isinstance(entry, dict) else isinstance(entry, str) and any(sign in entry for sign in "*?")
        for entry in entries
    )


def unit_selection(page: Page, at: TomlPath, table: Mapping[str, Any], states: int) -> Selection:
    """What a unit takes of the shared table; every entry is checked on its own line."""
    from counterflow.data import Selection
    from counterflow.data.selection import patterns

    found: dict[str, Any] = {}
    for key in ("tags", "inputs", "outputs", "exclude"):
        if key not in table:
            found[key] = None if key == "outputs" else ()
            continue
        given = table[key]
        entries: list[Any] = []
        for k, entry in enumerate(given if isinstance(given, list) else [given]):
            with page.blaming((*at, key, k) if isinstance(given, list) else (*at, key)):
                entries += patterns([entry], key)
        found[key] = tuple(entries)
    if not found["tags"] and not found["outputs"]:
        page.refuse(at, "give 'tags', such as tags = \"P1_*\", or 'outputs'")
    return Selection(found["tags"], found["inputs"], found["outputs"], found["exclude"], states)


def read_shared(
    page: Page, source: list[Path] | tuple[str, str], options: dict[str, Any], units: Mapping[str, Selection]
) -> tuple[Recording, Preparation]:
    """The recording of a table that the units share."""
    from counterflow.data import Rules, open_table, prepare
    from counterflow.data.databases import open_query
    from counterflow.data.preparation import TABLE_OPTIONS

    where: TomlPath = ("data", next(key for key in _SOURCES if key in page.contents["data"]))
    reading = {key: options[key] for key in options if key in TABLE_OPTIONS}
    with page.blaming(where):
        table = open_query(*source, **reading) if isinstance(source, tuple) else open_table(source, **reading)
    chosen = _choose(page, units, table)
    rules = Rules(**{key: options[key] for key in options if key not in TABLE_OPTIONS})
    with page.blaming(where):
        return prepare(table, chosen, rules)


def _choose(page: Page, units: Mapping[str, Selection], table: Table) -> list[Chosen]:
    """What units take of a table; a pattern that does not fit is told with its line."""
    from counterflow.data import SelectionError, choose

    try:
        return choose(units, table.channels, table.measures)
    except SelectionError as error:
        path: TomlPath = ("units", error.unit, *error.where)
        if error.where and not isinstance(page.contents["units"][error.unit].get(error.where[0]), list):
            path = path[:3]
        page.refuse(path, str(error))


def read_logs_of_units(
    page: Page, units: Mapping[str, Unit | Selection], options: dict[str, Any], dt: float
) -> tuple[Recording, Preparation | None]:
    """The recording of logs that each unit has of its own: by time where all of them have dates, else row by row."""
    from counterflow.cli.unit_logs import has_dates, open_log, read_log
    from counterflow.data import Chosen, Rules
    from counterflow.data.preparation import TABLE_OPTIONS, align

    table_options = {key: options[key] for key in options if key in TABLE_OPTIONS}
    tables, by_time = {}, True
    chosen: dict[str, Chosen] = {}
    for name, unit in units.items():
        at = ("units", name, "log")
        if "log" not in page.contents["units"][name]:
            page.refuse(
                at[:-1], "it has no data; give it a 'log', or give [federation] a 'recording', or [data] a 'file'"
            )
        file = page.file(at, page.contents["units"][name]["log"], folders=True)
        columns = (*unit.input_names, *unit.output_names) if isinstance(unit, Unit) else ()
        with page.blaming(at):
            tables[name] = open_log(file, columns, table_options)
            by_time = by_time and has_dates(tables[name], options)
        if isinstance(unit, Unit):
            taken, given = (tuple((each.name, each) for each in side) for side in (unit.inputs, unit.outputs))
            chosen[name] = Chosen(name, taken, given, unit.states)
        else:
            chosen[name] = _choose(page, {name: unit}, tables[name])[0]
    if by_time:
        rules = {"drop_constant": False} | {key: options[key] for key in options if key not in TABLE_OPTIONS}
        with page.blaming(("units",)):
            recording, reports = align(tables, chosen, Rules(**rules))
        return recording, _merged(reports)
    odd = [key for key in options if key not in TABLE_OPTIONS and key != "dt"]
    if odd:
        page.refuse(("data", odd[0]), "needs logs that all have a time column; name it with 'time'")
    logs: dict[str, Any] = {}
    described = []
    for name, own in chosen.items():
        sides = {side: [channel for _, channel in getattr(own, side)] for side in ("inputs", "outputs")}
        with page.blaming(("units", name, "log")):
            described.append(Unit(name, own.states, **sides))
            logs[name] = read_log(tables[name], *([column for column, _ in side] for side in (own.inputs, own.outputs)))
            first = next(iter(logs))
            if len(logs[name][0]) != len(logs[first][0]):
                raise ModelError(
                    f"{tables[name].title} has {len(logs[name][0])} rows, the log of unit {first!r} has "
                    f"{len(logs[first][0])}; cut or align them to the same rows"
                )
            Recording.from_arrays({name: logs[name]}, dt, [described[-1]])
    return Recording.from_arrays(logs, dt, described), None


def _merged(reports: Mapping[str, Preparation]) -> Preparation:
    """One report of the logs of several units."""
    from counterflow.data import Step

    parts = list(reports.values())
    steps = [
        Step(step.name, f"{unit}: {step.text}", step.numbers, step.doubt)
        for unit, part in reports.items()
        for step in part.steps
    ]
    # rows without a long gap in any of the logs
    stretches = list(parts[0].stretches)
    for part in parts[1:]:
        both = ((max(a, c), min(b, d)) for a, b in stretches for c, d in part.stretches)
        stretches = [(start, stop) for start, stop in both if start < stop]
    return replace(
        parts[0], files=tuple(file for part in parts for file in part.files),
        rows_read=sum(part.rows_read for part in parts), steps=tuple(steps), stretches=tuple(stretches),
        dropped={unit: part.dropped.get(unit, {}) for unit, part in reports.items()},
    )  # fmt: skip
