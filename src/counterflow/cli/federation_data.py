"""The units of a federation file and their data: a recording, one table that they share, or a log of each unit's own.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from counterflow.cli.toml_page import Page, Reader, TomlPath, hint, what
from counterflow.control import Loop
from counterflow.control.laws import law_from_table
from counterflow.errors import ModelError
from counterflow.plant import Channel, LocalModel, Recording, Unit
from counterflow.plant.model_file import load_model
from counterflow.plant.plant import LETTERS

if TYPE_CHECKING:
    from counterflow.data import Chosen, Preparation, Selection, Table

UNIT = ("states", "model", *LETTERS, "inputs", "outputs", "loops")
PATTERNS = ("tags", "exclude")
_SIDES = ("inputs", "outputs")
_SOURCES = ("file", "files", "sql")


# ---- units


@dataclass(frozen=True)
class UnitTable:
    """What a file says of a unit; its channels by name, or as patterns for the columns of a table."""

    name: str
    states: int | None
    model: LocalModel | None
    channels: Mapping[str, tuple[Channel, ...]]  # "inputs" and "outputs", as far as they are given
    selection: Selection | None
    loops: tuple[Loop, ...]

    def unit(self, known: Unit | None = None) -> Unit:
        """The unit; what is not said of it is as ``known`` has it, or follows from its model."""
        sides: dict[str, Any] = {}
        for side in _SIDES:
            missing: Any = getattr(self.model, f"n_{side}") if known is None else getattr(known, side)
            sides[side] = self.channels.get(side, missing)
        states = self.states or (2 if known is None else known.states)
        return Unit(self.name, states, **sides, loops=self.loops or (() if known is None else known.loops))


Data = tuple[Recording, "Preparation | None", dict[str, UnitTable]]  # what was done to logs; None: nothing


def units_of(page: Page, more: Sequence[str] = (), patterns: bool | None = False) -> dict[str, UnitTable]:
    """The units that a page describes; ``patterns``: whether their channels are patterns (None: where they look so)."""
    found = {name: _unit(page, name, (*UNIT, *more), patterns) for name in page.unit_names()}
    models = [unit.name for unit in found.values() if unit.model is not None]
    for name in found:
        if models and name not in models:
            remedy = "give 'model' (a file) or A, B, C, Q and R, everywhere or nowhere"
            page.refuse(("units", name), f"it has no model, other units have one; {remedy}")
    return found


def _unit(page: Page, name: str, keys: Sequence[str], patterns: bool | None) -> UnitTable:
    at = ("units", name)
    table = page.table(at, keys)
    if patterns is None:
        patterns = _has_patterns(table)
    readers: dict[str, Reader] = {
        "states": partial(page.whole, least=1), "model": partial(_stored_model, page, "A" in table),
        **dict.fromkeys(LETTERS, page.matrix), "loops": partial(_loops, page),
        **dict.fromkeys((*_SIDES, *PATTERNS), partial(_patterns if patterns else _channels, page)),
        "log": partial(page.file, folders=True),
    }  # fmt: skip
    with page.blaming(at):
        Unit(name)  # the name alone, before any file is read
    given = page.read(at, {key: readers[key] for key in keys})
    model, states = given.get("model"), given.get("states")
    letters = {letter: given[letter] for letter in LETTERS if letter in given}
    if letters:
        if missing := [letter for letter in LETTERS if letter not in letters]:
            page.refuse(at, f"the model lacks {', '.join(missing)}; give A, B, C, Q and R, or 'model', a file")
        with page.blaming_letter(at):
            model = LocalModel(**letters)
    if model is not None and states not in (None, model.states):
        page.refuse((*at, "states"), f"is {states}, but the model has {model.states} states; make them agree")
    states = states if model is None else model.states
    loops = tuple(given.get("loops", ()))
    if patterns:
        from counterflow.data import Selection

        tags, inputs, exclude = (given.get(key, ()) for key in ("tags", "inputs", "exclude"))
        if not tags and not given.get("outputs"):
            page.refuse(at, "give 'tags', such as tags = \"P1_*\", or 'outputs'")
        selection = Selection(tags, inputs, given.get("outputs"), exclude, states or 2)
        return UnitTable(name, states, model, {}, selection, loops)
    channels = {side: given[side] for side in _SIDES if side in given}
    for side, named in channels.items():
        if model is not None and len(named) != (count := getattr(model, f"n_{side}")):
            page.refuse((*at, side), f"{len(named)} {side} are named, but the model has {count}")
    if len(channels) == len(_SIDES):
        with page.blaming(at):
            Unit(name, **channels)
    return UnitTable(name, states, model, channels, None, loops)


def _stored_model(page: Page, twice: bool, at: TomlPath, value: Any) -> LocalModel:
    if twice:
        page.refuse((*at[:-1], "A"), "the model is given twice: as a file and in place; give one of them")
    with page.blaming(at):
        return load_model(page.file(at, value))


def _channels(page: Page, at: TomlPath, value: Any) -> tuple[Channel, ...]:
    """Channels by their names, or as tables with name, unit and limits."""
    if not isinstance(value, list):
        page.refuse(at, "must be a list of names, or of tables with name, unit and limits")
    if not value and at[-1] == "outputs":
        page.refuse(at, "is empty; give at least 1")
    readers: dict[str, Reader] = {"name": page.text, "unit": page.text, "limits": page.limits}
    found: dict[str, Channel] = {}
    for k, entry in enumerate(value):
        if not isinstance(entry, (str, dict)):
            page.refuse((*at, k), f"must be a name or a table with name, unit and limits, got {what(entry)}")
        given = {"name": entry} if isinstance(entry, str) else page.read((*at, k), readers, ("name",))
        with page.blaming((*at, k)):
            channel = Channel(**given)
        if channel.name in found:
            page.refuse((*at, k, "name"), f"{channel.name!r} is used twice; rename one of them")
        found[channel.name] = channel
    return tuple(found.values())


def _loops(page: Page, at: TomlPath, value: Any) -> list[Loop]:
    """Controllers: tables [[units.boiler.loops]] with moves, reads, perhaps target, and perhaps a law with its kind."""

    def law(at: TomlPath, given: Any) -> Any:
        with page.blaming(at):
            return law_from_table(given)

    readers: dict[str, Reader] = {"moves": page.text, "reads": page.text, "target": page.text, "law": law}
    out = []
    for k, given in enumerate(page.tables(at, value, readers, ("moves", "reads"))):
        with page.blaming((*at, k)):
            out.append(Loop(**given))
    return out


def _patterns(page: Page, at: TomlPath, value: Any) -> tuple[Any, ...]:
    """Patterns for columns; every entry is checked on its own line."""
    from counterflow.data.selection import patterns

    found: list[Any] = []
    for k, entry in enumerate(value if isinstance(value, list) else [value]):
        with page.blaming((*at, k) if isinstance(value, list) else at):
            found += patterns([entry], str(at[-1]))
    return tuple(found)


def _has_patterns(table: Mapping[str, Any]) -> bool:
    """Whether a unit takes the columns of its own log by pattern."""

    sides = [table[side] for side in _SIDES if side in table]
    entries = [entry for side in sides if isinstance(side, list) for entry in side]
    return (
        any(key in table for key in PATTERNS)
        or any(isinstance(side, str) for side in sides)
        or any(isinstance(entry, dict) and "regex" in entry for entry in entries)
        or any(isinstance(entry, str) and any(sign in entry for sign in "*?") for entry in entries)
    )


# ---- data


class DataTable(NamedTuple):
    """What ``[data]`` says: the table that the units share, if there is one, how tables are read, and the grid."""

    source: list[Path] | tuple[str, str] | None  # files, or a query and its database
    reading: Mapping[str, Any]
    rules: Mapping[str, Any]


def _data_table(page: Page, dt: float | None) -> DataTable:
    """The options are the fields of ``TableOptions`` and ``Rules``, checked one by one."""
    import polars

    from counterflow.data import Rules, TableOptions, open_table
    from counterflow.data.databases import is_sqlite, sqlite_file

    def moment(at: TomlPath, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int, float, date, datetime)):
            page.refuse(at, f"must be a date such as '2024-05-01 06:00', or seconds, got {what(value)}")
        return value

    def files(at: TomlPath, value: Any) -> list[Path]:
        if not isinstance(value, list) or not value:
            page.refuse(at, f"must be a list of file names, got {what(value)}")
        return [page.file((*at, k), name, folders=True) for k, name in enumerate(value)]

    def database(at: TomlPath, value: Any) -> str:
        address = page.text(at, value)
        return f"sqlite:{page.path.parent / sqlite_file(address)}" if is_sqlite(address) else address

    kinds: dict[str, Reader] = {
        "str": page.text, "float": page.number, "int": page.whole, "bool": page.flag, "Any": moment
    }  # fmt: skip
    of_table, of_grid = (
        {each.name: kinds[str(each.type).removesuffix(" | None")] for each in fields(kind)}
        for kind in (TableOptions, Rules)
    )
    file = partial(page.file, folders=True)
    sources: dict[str, Reader] = {"file": file, "files": files, "sql": page.text, "database": database}
    given = page.read(("data",), {**sources, **of_table, **of_grid})
    there = [key for key in _SOURCES if key in given]
    if len(there) > 1:
        page.refuse(("data", there[1]), f"{there[0]!r} stands there, too; give one of them")
    for key, other in (("sql", "database"), ("database", "sql")):
        if key in given and other not in given:
            page.refuse(("data", key), f"it goes with {other!r}; give both")
    reading, rules = ({key: given[key] for key in given if key in names} for names in (of_table, of_grid))
    named = ("time", "header_word", "tag", "value", "quality", "sheet")  # that they are there only the table tells
    tried = {key: value for key, value in reading.items() if key not in named}
    page.made(("data",), partial(open_table, polars.DataFrame({"value": [0.0]})), tried, {})
    page.made(("data",), Rules, rules, {})
    if dt is not None and rules.setdefault("dt", dt) != dt:
        page.refuse(("data", "dt"), f"is {rules['dt']:g}, [federation] has {dt:g}; give it once")
    query = (given["sql"], given["database"]) if "sql" in given else None
    return DataTable(query or ([given["file"]] if "file" in given else given.get("files")), reading, rules)


def read_recording(page: Page, file: Path, dt: float | None) -> Data:
    """A recording that is stored, its units as the page describes them."""
    units = units_of(page, ("log",))
    with page.blaming(("federation", "recording")):
        stored = Recording.load(file)
    for name in stored.names:
        if name not in units:
            page.refuse(("units",), f"the recording has a unit {name!r}, which is not described; add [units.{name}]")
    if dt is not None and dt != stored.dt:
        page.refuse(("federation", "dt"), f"is {dt:g}, the recording's is {stored.dt:g}; leave it out")
    parts = {}
    for name, unit in units.items():
        at = ("units", name)
        if page.has(*at, "log"):
            page.refuse((*at, "log"), "there is a recording, too; give one of them")
        if name not in stored.names:
            page.refuse(at, f"the recording has no such unit{hint(name, stored.names)}")
        part = stored[name]
        for side, named in unit.channels.items():
            has, wanted = ([channel.name for channel in each] for each in (getattr(part.unit, side), named))
            if has != wanted:
                page.refuse((*at, side), f"{', '.join(wanted)}; the recording has {', '.join(has) or 'none'}")
        with page.blaming((*at, "loops") if unit.loops else at):
            parts[name] = replace(part, unit=unit.unit(part.unit))
    return replace(stored, parts=parts), None, units


def read_data(page: Page, dt: float | None) -> Data:
    """The recording of one table that all units share, or of their own logs."""
    from counterflow.data import Rules, open_table, prepare
    from counterflow.data.databases import open_query

    data = _data_table(page, dt)
    if data.source is None:
        return _read_logs(page, data, dt or 1.0)
    units = units_of(page, PATTERNS, patterns=True)
    where: TomlPath = ("data", next(key for key in _SOURCES if page.has("data", key)))
    with page.blaming(where):
        if isinstance(data.source, tuple):
            table = open_query(*data.source, **data.reading)
        else:
            table = open_table(data.source, **data.reading)
    chosen = _choose(page, units, table)
    of_models = {"drop_constant": False} if any(unit.model is not None for unit in units.values()) else {}
    with page.blaming(where):
        return *prepare(table, chosen, Rules(**{**of_models, **data.rules})), units  # a model has its channels


def _choose(page: Page, units: Mapping[str, UnitTable], table: Table) -> list[Chosen]:
    """What units take of a table; a pattern that does not fit is told with its line."""
    from counterflow.data import SelectionError, choose

    try:
        return choose({name: unit.selection for name, unit in units.items()}, table.channels, table.measures)
    except SelectionError as error:
        path: TomlPath = ("units", error.unit, *error.where)
        if error.where and not isinstance(page.table(path[:2]).get(str(error.where[0])), list):
            path = path[:3]
        page.refuse(path, str(error))


def _read_logs(page: Page, data: DataTable, dt: float) -> Data:
    """The recording of logs that each unit has of its own: by time where all of them have dates, else row by row."""
    from counterflow.cli.unit_logs import has_dates, open_log, read_log
    from counterflow.data import Chosen, Rules
    from counterflow.data.preparation import align

    units = units_of(page, ("log", *PATTERNS), patterns=None)
    tables: dict[str, Table] = {}
    chosen: dict[str, Chosen] = {}
    by_time = True
    for name, unit in units.items():
        at: TomlPath = ("units", name, "log")
        if unit.selection is None and "outputs" not in unit.channels:
            page.refuse(at[:2], "'outputs' is missing; name the columns of its log")
        if not page.has(*at):
            remedy = "give it a 'log', or give [federation] a 'recording', or [data] a 'file'"
            page.refuse(at[:2], f"it has no data; {remedy}")
        named = [channel.name for side in unit.channels.values() for channel in side]
        with page.blaming(at):
            tables[name] = open_log(page.path.parent / page.table(at[:2])["log"], named, data.reading)
            by_time = by_time and has_dates(tables[name], data.reading)
        if unit.selection is None:
            inputs, outputs = (tuple((each.name, each) for each in unit.channels.get(side, ())) for side in _SIDES)
            chosen[name] = Chosen(name, inputs, outputs, unit.states or 2)
        else:
            (chosen[name],) = _choose(page, {name: unit}, tables[name])
    if by_time:
        with page.blaming(("units",)):
            recording, reports = align(tables, chosen, Rules(**{"drop_constant": False, **data.rules}))
        return recording, _merged(reports), units
    if odd := [key for key in data.rules if key != "dt"]:
        page.refuse(("data", odd[0]), "needs logs that all have a time column; name it with 'time'")
    logs: dict[str, Any] = {}
    described = []
    for name, own in chosen.items():
        with page.blaming(("units", name, "log")):
            sides = (own.inputs, own.outputs)
            described.append(Unit(name, own.states, *([channel for _, channel in side] for side in sides)))
            logs[name] = read_log(tables[name], *([column for column, _ in side] for side in sides))
            first = next(iter(logs))
            if len(logs[name][0]) != len(logs[first][0]):
                raise ModelError(
                    f"{tables[name].title} has {len(logs[name][0])} rows, the log of unit {first!r} has "
                    f"{len(logs[first][0])}; cut or align them to the same rows"
                )
            Recording.from_arrays({name: logs[name]}, dt, [described[-1]])
    return Recording.from_arrays(logs, dt, described), None, units


def _merged(reports: Mapping[str, Preparation]) -> Preparation:
    """One report of the logs of several units."""
    parts = list(reports.values())
    steps = [replace(step, text=f"{unit}: {step.text}") for unit, part in reports.items() for step in part.steps]
    stretches = list(parts[0].stretches)  # rows without a long gap in any of the logs
    for part in parts[1:]:
        both = ((max(a, c), min(b, d)) for a, b in stretches for c, d in part.stretches)
        stretches = [(start, stop) for start, stop in both if start < stop]
    return replace(
        parts[0], files=tuple(file for part in parts for file in part.files),
        rows_read=sum(part.rows_read for part in parts), steps=tuple(steps), stretches=tuple(stretches),
        dropped={unit: part.dropped.get(unit, {}) for unit, part in reports.items()},
    )  # fmt: skip
