"""Federations and plants described in TOML, and local models in safetensors files.

::

    [federation]                      # all of it optional but a source of data
    method = "sufficient"
    estimate = "couplings"
    seed = 0
    dt = 60.0                         # seconds between two rows
    recording = "recording.safetensors"

    [data]                            # instead of a recording: one table of all units, and how tables are read
    file = "plant.parquet"            # or files = ["may.csv.gz", "june.csv.gz"], a folder, a .zip
                                      # or sql = "select * from log" with database = "plant.db"
    time = "timestamp"                # optional, as is all that follows: see counterflow.data.read_logs
    longest_hold = 600

    [options]                         # optional: what counterflow.fit takes besides
    edges = [["boiler", "turbine"]]   # the only direct couplings, (cause, effect)

    [privacy]                         # optional: see counterflow.Privacy
    epsilon = 1.0
    delta = 1e-6
    ledger = "ledgers"                # directory of the units' budgets

    [units.boiler]
    model = "models/boiler.safetensors"   # or A = [[...]], B, C, Q, R in place
    log = "boiler.csv"                    # the unit's own table, without a recording and [data] file
    tags = "P1_*"                         # columns: a pattern, a list of them, or {regex = "P1_.*"}
    inputs = ["*_D", {name = "P1_pump", unit = "%", limits = [0, 100]}]
    exclude = ["P1_note"]                 # outputs: the rest of the tags, or a list

    [[units.boiler.loops]]
    moves = "P1_pump"
    reads = "P1_flow"

Paths are relative to the file. Whatever is wrong is told with the line where it stands; what a value may be, whoever
uses it says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import block_diagonal, matrix, real_number
from counterflow.cli.toml_page import Page, TomlPath, hint, quoted, shown, what, written
from counterflow.control import Loop
from counterflow.control.laws import law_from_table
from counterflow.errors import DataError
from counterflow.exchange.registry import FEDERATED
from counterflow.exchange.rows import LogOptions
from counterflow.fits.training import METHODS
from counterflow.plant import Channel, LocalModel, Plant, Recording, Unit
from counterflow.plant.model_file import load_model
from counterflow.plant.plant import LETTERS
from counterflow.privacy import Privacy

if TYPE_CHECKING:
    from counterflow.data import Chosen, Pattern, Preparation, Selection, Table

LOGS_ONLY = ("rank", "same_row", "regime")  # options that only fits from logs have
_SIDES = ("inputs", "outputs")
_UNIT = ("states", "model", *LETTERS, *_SIDES, "loops")  # what every file may say of a unit
_COLUMNS = ("tags", *_SIDES, "exclude")  # of a table
_SOURCES = ("file", "files", "sql")


@dataclass(frozen=True)
class Federation:
    """A federation file, checked and read: ready for ``counterflow.fit``."""

    path: Path
    recording: Recording
    models: Mapping[str, LocalModel] | None
    method: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    preparation: Preparation | None = None  # what was done to logs; None for a recording
    privacy: Privacy | None = None


def read_federation(path: str | Path) -> Federation:
    """Read and check a federation file, its data and its models."""
    page = Page(Path(path))
    page.table((), ("federation", "data", "units", "options", "privacy"))
    head = page.table(("federation",), ("method", "estimate", "seed", "dt", "recording"))
    seed, stored, dt = head.get("seed", 0), head.get("recording"), head.get("dt")
    if type(seed) is not int or not 0 <= seed < 2**63:
        page.refuse(("federation", "seed"), f"must be a whole number of at least 0 and below 2^63, got {what(seed)}")
    with page.blaming(("federation", "dt")):
        dt = None if dt is None else real_number(dt, "dt", low=0.0, open_low=True)
    privacy = _privacy(page)
    method, options = _options(page, head)
    preparation = None
    if stored is None:
        recording, preparation, units = _read_data(page, dt)
    else:
        recording, units = _read_recording(page, stored, dt)
    parts = dict(recording.items())
    for name, unit in units.items():
        known, at = parts[name].unit, ("units", name)
        with page.blaming((*at, "loops") if unit.loops and stored is None else at, *_SIDES):
            # of a table, patterns have chosen the columns; of a recording, names must be those that it has
            described = (replace(unit, columns={}) if stored is None else unit).unit(known)
        for side in _SIDES:
            has, wanted = ([channel.name for channel in getattr(each, side)] for each in (known, described))
            if has != wanted:
                page.refuse((*at, side), f"{', '.join(wanted)}; the recording has {', '.join(has) or 'none'}")
        for what_of in ("states", "n_inputs", "n_outputs"):
            given, of_model = (getattr(each, what_of, None) for each in (described, unit.model))
            if of_model is not None and given != of_model:
                page.refuse(at, f"it has {given} {what_of.removeprefix('n_')}, but its model has {of_model}")
        parts[name] = replace(parts[name], unit=described)
    models = {name: unit.model for name, unit in units.items() if unit.model is not None}
    recording = replace(recording, parts=parts)
    with page.blaming(("options",), *options):
        _kind_of(method, options).parse(method, options).known_edges(recording.names)
    return Federation(Path(path), recording, models or None, method, seed, options, preparation, privacy)


def _privacy(page: Page) -> Privacy | None:
    """The table [privacy], in the words of ``counterflow.Privacy``; None if it is not there."""
    if not page.has("privacy"):
        return None
    at = ("privacy",)
    given = dict(page.table(at, [entry.name for entry in fields(Privacy)], need=("epsilon", "delta")))
    if "ledger" in given:
        given["ledger"] = page.path.parent / page.text((*at, "ledger"), given["ledger"])
    if isinstance(given.get("models"), list):
        given["models"] = tuple(given["models"])
    with page.blaming(at, *given):
        return Privacy(**given)


def _options(page: Page, head: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method of a fit and its options."""
    method, at = head.get("method", "sufficient"), ("federation", "method")
    if method not in METHODS:
        page.refuse(at, f"{method!r:.40} is not one of {', '.join(METHODS)}{hint(str(method), METHODS)}")
    if method == "oracle":
        page.refuse(at, "'oracle' needs the true plant, which a federation does not have")
    given = page.table(("options",))
    own = {key: head[key] for key in ("estimate",) if key in head}
    for key in own:
        if key in given:
            page.refuse(("options", key), "stands in [federation], too; give it once")
    for table, options in (("federation", own), ("options", given)):
        with page.blaming((table,), *options):
            _kind_of(method, given).parse(method, options)
    return method, own | given


def _kind_of(method: str, given: Mapping[str, Any]) -> Any:
    """The class of a method's options; those of the references are the default's, and logs have their own."""
    if method == "sufficient" and any(name in given for name in LOGS_ONLY):
        return LogOptions
    return FEDERATED.get(method, FEDERATED["sufficient"]).options


# ---- units


@dataclass(frozen=True)
class UnitTable:
    """What a file says of a unit; ``columns``: tags, inputs, outputs, exclude by pattern or name, those given."""

    name: str
    states: int | None
    model: LocalModel | None
    loops: tuple[Loop, ...]
    columns: Mapping[str, tuple[Pattern, ...]]

    @property
    def selection(self) -> Selection:
        """What it takes of a table."""
        from counterflow.data import Selection

        tags, inputs, exclude = (self.columns.get(key, ()) for key in ("tags", "inputs", "exclude"))
        return Selection(tags, inputs, self.columns.get("outputs"), exclude, self.states or 2)

    def unit(self, known: Unit | None = None) -> Unit:
        """The unit as names alone describe it; what is not said of it is as ``known`` has it, or as in its model."""
        sides: dict[str, Any] = {}
        for side in _SIDES:
            missing: Any = getattr(self.model, f"n_{side}") if known is None else getattr(known, side)
            named = self.columns.get(side)
            sides[side] = missing if named is None else [Channel(p.text, p.unit, p.limits) for p in named]
        states = self.states or (2 if known is None else known.states)
        return Unit(self.name, states, **sides, loops=self.loops or (() if known is None else known.loops))


def _units(page: Page, *more: str) -> dict[str, UnitTable]:
    """The units that a page describes, which may have ``more`` keys."""
    if not page.table(("units",)):
        page.refuse(("units",), "no unit is described; add [units.boiler] and so on")
    found = {name: _unit(page, name, (*_UNIT, *more)) for name in page.table(("units",))}
    models = [unit.name for unit in found.values() if unit.model is not None]
    for name in found:
        if models and name not in models:
            remedy = "give 'model' (a file) or A, B, C, Q and R, everywhere or nowhere"
            page.refuse(("units", name), f"it has no model, other units have one; {remedy}")
    return found


def _unit(page: Page, name: str, keys: Sequence[str]) -> UnitTable:
    at = ("units", name)
    given = page.table(at, keys)
    with page.blaming(at, "states"):
        Unit(name, given.get("states", 1))  # before any file is read
    letters = [letter for letter in LETTERS if letter in given]
    model = None
    if "model" in given:
        if letters:
            page.refuse((*at, letters[0]), "the model is given twice: as a file and in place; give one of them")
        with page.blaming((*at, "model")):
            model = load_model(page.file((*at, "model"), given["model"]))
    elif letters:
        if missing := [letter for letter in LETTERS if letter not in given]:
            page.refuse(at, f"the model lacks {', '.join(missing)}; give A, B, C, Q and R, or 'model', a file")
        with page.blaming(at, *LETTERS):
            model = LocalModel(**{letter: given[letter] for letter in LETTERS})
    columns = {side: _patterns(page, (*at, side), given[side]) for side in _COLUMNS if side in given}
    states = given.get("states") or (None if model is None else model.states)
    return UnitTable(name, states, model, _loops(page, (*at, "loops")), columns)


def _patterns(page: Page, at: TomlPath, value: Any) -> tuple[Pattern, ...]:
    """Patterns for columns, or names of channels; every entry is checked on its own line."""
    from counterflow.data.selection import patterns

    found: list[Pattern] = []
    for k, entry in enumerate(value if isinstance(value, list) else [value]):
        with page.blaming((*at, k) if isinstance(value, list) else at, *(entry if isinstance(entry, dict) else ())):
            found += patterns([entry], str(at[-1]))
    return tuple(found)


def _loops(page: Page, at: TomlPath) -> tuple[Loop, ...]:
    """Controllers: tables [[units.boiler.loops]] with moves, reads, perhaps target, and perhaps a law with its kind."""
    found = []
    for k, given in enumerate(_tables(page, at, ("moves", "reads", "target", "law"), ("moves", "reads"))):
        with page.blaming((*at, k), *given):
            law = {"law": law_from_table(given["law"])} if "law" in given else {}
            found.append(Loop(**given | law))
    return tuple(found)


def _tables(page: Page, at: TomlPath, keys: Sequence[str], need: Sequence[str]) -> list[dict[str, Any]]:
    """Tables in a list, or [[tables]]; none if nothing stands there."""
    *above, last = at
    given = page.table(tuple(above)).get(str(last), [])
    if not isinstance(given, list):
        page.refuse(at, f"must be an array of tables: write [[{shown(at)}]] with {', '.join(keys)}")
    return [page.table((*at, k), keys, need) for k in range(len(given))]


# ---- data


def _read_recording(page: Page, stored: Any, dt: float | None) -> tuple[Recording, dict[str, UnitTable]]:
    """A recording that is stored, and what the page says of its units."""
    if page.has("data"):
        page.refuse(("data",), "there is a recording, too; give one of them")
    file, units = page.file(("federation", "recording"), stored), _units(page)
    with page.blaming(("federation", "recording")):
        found = Recording.load(file)
    if dt is not None and dt != found.dt:
        page.refuse(("federation", "dt"), f"is {dt:g}, the recording's is {found.dt:g}; leave it out")
    for name in (*found.names, *units):
        if name not in units:
            page.refuse(("units",), f"the recording has a unit {name!r}, which is not described; add [units.{name}]")
        if name not in found.names:
            page.refuse(("units", name), f"the recording has no such unit{hint(name, found.names)}")
    return found, units


def _read_data(page: Page, dt: float | None) -> tuple[Recording, Preparation, dict[str, UnitTable]]:
    """The recording of one table that all units share, or of their own logs, and what was done to them."""
    from counterflow.data import Rules, TableOptions, open_table, prepare
    from counterflow.data.databases import is_sqlite, open_query, sqlite_file

    of_table, of_grid = ([each.name for each in fields(kind)] for kind in (TableOptions, Rules))
    given = page.table(("data",), (*_SOURCES, "database", *of_table, *of_grid))
    sources = [key for key in _SOURCES if key in given]
    if len(sources) > 1:
        page.refuse(("data", sources[1]), f"{sources[0]!r} stands there, too; give one of them")
    for key, other in (("sql", "database"), ("database", "sql")):
        if key in given and other not in given:
            page.refuse(("data", key), f"it goes with {other!r}; give both")
    reading, rules = ({key: given[key] for key in given if key in names} for names in (of_table, of_grid))
    with page.blaming(("data",), *given):
        TableOptions(**reading)
        Rules(**rules)
    if dt is not None and rules.setdefault("dt", dt) != dt:
        page.refuse(("data", "dt"), f"is {rules['dt']:g}, [federation] has {dt:g}; give it once")
    if not sources:
        return _read_logs(page, reading, rules)
    units, where = _units(page, "tags", "exclude"), ("data", sources[0])
    files = given[sources[0]] if sources == ["files"] else [given[sources[0]]]
    with page.blaming(where):
        if sources == ["sql"]:
            address = page.text(("data", "database"), given["database"])
            place = f"sqlite:{page.path.parent / sqlite_file(address)}" if is_sqlite(address) else address
            table = open_query(given["sql"], place, **reading)
        else:
            if not isinstance(files, list) or not files:
                page.refuse(where, f"must be a list of file names, got {what(files)}")
            lines = [(*where, k) if sources == ["files"] else where for k in range(len(files))]
            found = [page.file(at, name, folders=True) for at, name in zip(lines, files, strict=True)]
            table = open_table(found, **reading)
    chosen = _choose(page, units, table)
    of_models = {"drop_constant": False} if any(unit.model is not None for unit in units.values()) else {}
    with page.blaming(where):
        return *prepare(table, chosen, Rules(**of_models | rules)), units  # a model has its channels


def _choose(page: Page, units: Mapping[str, UnitTable], table: Table) -> list[Chosen]:
    """What units take of a table; a pattern that does not fit is told with its line."""
    from counterflow.data import SelectionError, choose

    for name, unit in units.items():
        if not unit.selection.tags and not unit.selection.outputs:
            page.refuse(("units", name), "give 'tags', such as tags = \"P1_*\", or 'outputs'")
    try:
        return choose({name: unit.selection for name, unit in units.items()}, table.channels, table.measures)
    except SelectionError as error:
        path: TomlPath = ("units", error.unit, *error.where)
        if error.where and not isinstance(page.table(path[:2]).get(str(error.where[0])), list):
            path = path[:3]
        page.refuse(path, str(error))


def _read_logs(
    page: Page, reading: Mapping[str, Any], rules: Mapping[str, Any]
) -> tuple[Recording, Preparation, dict[str, UnitTable]]:
    """The recording of logs that each unit has of its own: by time where all of them have dates, else row by row."""
    from counterflow.data import Rules, open_table, prepare
    from counterflow.data.preparation import align

    units = _units(page, "log", "tags", "exclude")
    tables: dict[str, Table] = {}
    chosen: dict[str, Chosen] = {}
    for name, unit in units.items():
        at = ("units", name, "log")
        if not page.has(*at):
            remedy = "give it a 'log', or give [federation] a 'recording', or [data] a 'file'"
            page.refuse(at[:2], f"it has no data; {remedy}")
        with page.blaming(at):
            tables[name] = open_table(page.file(at, page.table(at[:2])["log"], folders=True), **reading)
        (chosen[name],) = _choose(page, {name: unit}, tables[name])
    own = {"drop_constant": False, **rules}
    if all(_has_dates(table, reading) for table in tables.values()):
        with page.blaming(("units",)):
            recording, reports = align(tables, chosen, Rules(**own))
        return recording, _merged(reports), units
    if odd := [key for key in rules if key != "dt"]:
        page.refuse(("data", odd[0]), "needs logs that all have a time column; name it with 'time'")
    by_row = Rules(**{"dt": 1.0, **own}, longest_hold=0.0, long_gaps="refuse")  # inputs are known in every row
    parts, reports = {}, {}
    for name, table in tables.items():
        with page.blaming(("units", name, "log")):
            single, reports[name] = prepare(replace(table, time_name=None), [chosen[name]], by_row)
            parts[name] = single[name]
            recording = replace(single, parts=dict(parts))
    return recording, _merged(reports), units


def _has_dates(table: Table, reading: Mapping[str, Any]) -> bool:
    """Whether rows are to be put in place by their time: it was asked for, or the column of a usual name has dates."""
    if table.time_name is None or reading.get("time") is not None:
        return table.time_name is not None
    try:
        return table.times is not None and table.times.dated
    except DataError:
        if any(key in reading for key in ("time_format", "day_first", "timezone")):  # it was said how to read it
            raise
        return False  # a column that happens to be called "date"


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


# ---- plants


def read_plant(path: str | Path) -> Plant:
    """Read a plant: units with their own models, and ``[[couplings]]`` with cause, effect, and blocks A and B."""
    page = Page(Path(path))
    page.table((), ("plant", "units", "couplings"))
    head, described = page.table(("plant",), ("dt",)), _units(page)
    models = {}
    for name, unit in described.items():
        if unit.model is None:
            page.refuse(("units", name), "it has no model; give 'model' (a file) or A, B, C, Q and R")
        models[name] = unit.model
    blocks = {letter: block_diagonal([getattr(model, letter) for model in models.values()]) for letter in LETTERS}
    made = []
    for name, unit in described.items():
        with page.blaming(("units", name), *_SIDES):
            made.append(unit.unit())
    with page.blaming(("plant",), "dt"):
        plant = Plant(units=tuple(made), **blocks, dt=head.get("dt", 1.0))
    A, B = np.array(plant.A), np.array(plant.B)
    seen: set[tuple[str, str]] = set()
    for k, entry in enumerate(_tables(page, ("couplings",), ("cause", "effect", "A", "B"), ("cause", "effect"))):
        at, (cause, effect) = ("couplings", k), (entry["cause"], entry["effect"])
        for key in ("cause", "effect"):
            if entry[key] not in models:
                page.refuse((*at, key), f"no unit is called {entry[key]!r}{hint(str(entry[key]), list(models))}")
        if cause == effect:
            page.refuse(at, f"cause and effect are both {cause!r}; its own blocks stand in [units.{cause}]")
        if (cause, effect) in seen:
            page.refuse(at, f"{cause!r} -> {effect!r} is given twice")
        seen.add((cause, effect))
        for letter, whole, columns in (("A", A, plant.state_slice(cause)), ("B", B, plant.input_slice(cause))):
            if letter in entry:
                place = whole[plant.state_slice(effect), columns]
                with page.blaming((*at, letter)):
                    place[...] = matrix(entry[letter], letter, place.shape, f"what {cause} does to {effect}")
    return plant.replace(A=A, B=B)


# ---- writing


def federation_text(
    units: Sequence[Unit], dt: float, *, recording: str, models: Mapping[str, str], seed: int = 0
) -> str:
    """A federation file for a recording and model files, given by paths relative to it."""
    lines = [
        "# A federation: what each unit has, and how to fit it.  counterflow fit THIS-FILE --out fit",
        "",
        "[federation]",
        'method = "sufficient"',
        f"seed = {seed}",
        f"dt = {dt!r}  # seconds between two rows",
        f"recording = {quoted(recording)}",
    ]
    for unit in units:
        sides = {side: [(each.name, each) for each in getattr(unit, side)] for side in _SIDES}
        lines += unit_text(unit.name, [f"states = {unit.states}", f"model = {quoted(models[unit.name])}"], sides)
    return "\n".join(lines) + "\n"


def unit_text(
    name: str, head: Sequence[str], sides: Mapping[str, Sequence[tuple[str, Channel]]], why: Mapping[str, str] = {}
) -> list[str]:
    """Lines of a unit: its ``head``, and its channels by their columns; ``why``: comments on some of them."""
    lines = ["", f"[{shown(('units', name))}]", *head]
    for side, channels in sides.items():
        lines.append(f"{side} = [")
        for column, channel in channels:
            measure = {"unit": channel.unit} if channel.unit else {}
            limits = {"limits": channel.limits} if channel.limits is not None else {}
            entry = written({"name": column, **measure, **limits} if measure or limits else column)
            lines.append(f"  {entry},  # {why[column]}" if why.get(column) else f"  {entry},")
        lines.append("]")
    return lines


def relative(target: Path, base: Path) -> str:
    """A path as the file in folder ``base`` writes it."""
    try:
        return Path(os.path.relpath(target.absolute(), base.absolute())).as_posix()
    except ValueError:  # another drive
        return target.absolute().as_posix()
