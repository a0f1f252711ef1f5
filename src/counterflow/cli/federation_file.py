"""Federations and plants described in TOML, and local models in safetensors files.

::

    [federation]                      # all of it optional but a source of data
    method = "sufficient"
    estimate = "couplings"
    seed = 0
    dt = 60.0                         # seconds between two rows
    recording = "recording.safetensors"

    [options]                         # optional: what counterflow.fit takes besides
    edges = [["boiler", "turbine"]]   # the only direct couplings, (cause, effect)

    [privacy]                         # optional: see counterflow.Privacy
    epsilon = 1.0
    delta = 1e-6
    ledger = "ledgers"                # directory of the units' budgets

    [units.boiler]
    model = "models/boiler.safetensors"   # or A = [[...]], B, C, Q, R in place
    log = "boiler.csv"                    # instead of a recording; or one table for all, see federation_data

    [[units.boiler.inputs]]
    name = "valve"
    unit = "%"
    limits = [0, 100]

Paths are relative to the file. Whatever is wrong is told with the line where it stands.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import block_diagonal
from counterflow.cli import federation_data
from counterflow.cli.toml_lines import TomlPath, shown
from counterflow.cli.toml_page import LETTERS, Page, what
from counterflow.control import Loop
from counterflow.control.laws import law_of
from counterflow.exchange.log_rows import LogOptions
from counterflow.exchange.registry import FEDERATED
from counterflow.fits.training import METHODS
from counterflow.plant import Channel, LocalModel, Plant, Recording, Unit
from counterflow.plant.model_file import load_model
from counterflow.privacy import Privacy

if TYPE_CHECKING:
    from counterflow.data import Preparation, Selection


LOGS_ONLY = ("rank", "same_row", "regime")  # options that only fits from logs have
_UNIT_KEYS = ("states", "model", *LETTERS, "inputs", "outputs", "loops")


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


# ---- reading


def read_federation(path: str | Path) -> Federation:
    """Read and check a federation file, its data and its models."""
    page = Page(Path(path))
    page.known((), page.contents, ("federation", "data", "units", "options", "privacy"))
    head = page.table(("federation",), ("method", "estimate", "seed", "dt", "recording"), optional=True)
    privacy = _privacy(page)
    method, seed, options = _head(page, head)
    dt = page.number(("federation", "dt"), head.get("dt", 1.0), above=0.0)
    stored = head.get("recording")
    if stored is not None and "data" in page.contents:
        page.refuse(("data",), "there is a recording, too; give one of them")
    reading = federation_data.data_options(page, head) if "data" in page.contents or "dt" in head else {}
    shared = federation_data.shared_source(page)
    preparation: Preparation | None = None
    if shared is not None:
        recording, preparation, models = _from_table(page, shared, reading)
    elif stored is not None:
        parsed = {
            name: _unit(page, ("units", name), (*_UNIT_KEYS, "log"), needs_channels=False)
            for name in page.names(("units",))
        }
        models = {name: model for name, (_, model) in parsed.items() if model is not None}
        _all_or_none(page, models, list(parsed))
        recording = _from_recording(page, stored, parsed, head)
    else:
        units, models = _units_with_logs(page)
        recording, preparation = federation_data.read_logs_of_units(page, units, reading, dt)
        _check_counts(page, recording, models, "log")
    recording = _with_loops(page, recording)
    for key in ("edges", "forbidden"):
        if key in options:
            with page.blaming(("options", key)):
                _options_of(method, options).parse(method, {key: options[key]}).known_edges(recording.names)
    return Federation(Path(path), recording, models or None, method, seed, options, preparation, privacy)


def _privacy(page: Page) -> Privacy | None:
    """The table [privacy], in the words of ``counterflow.Privacy``; None if it is not there."""
    at = ("privacy",)
    if "privacy" not in page.contents:
        return None
    table = page.table(at, [entry.name for entry in fields(Privacy)])
    for key in ("epsilon", "delta"):
        if key not in table:
            page.refuse(at, f"{key!r} is missing; give both epsilon and delta, or leave the table out")
    given = dict(table)
    if "ledger" in given:
        given["ledger"] = page.path.parent / page.text((*at, "ledger"), given["ledger"])
    if isinstance(given.get("models"), list):
        given["models"] = tuple(given["models"])
    base = {"epsilon": 1.0, "delta": 0.5}
    for key in given:  # each by itself first, so that the error points at its line
        with page.blaming((*at, key)):
            Privacy(**(base | {key: given[key]}))
        base |= {key: given[key]} if key in base else {}
    with page.blaming(at):
        return Privacy(**given)


def _all_or_none(page: Page, models: Mapping[str, LocalModel], names: Sequence[str]) -> None:
    if models and len(models) < len(names):
        without = next(name for name in names if name not in models)
        page.refuse(
            ("units", without),
            "it has no model, other units have one; give 'model' (a file) or A, B, C, Q and R, everywhere or nowhere",
        )


def _units_with_logs(page: Page) -> tuple[dict[str, Unit | Selection], dict[str, LocalModel]]:
    """Units that have a log each: their channels as they are listed, or patterns for the columns of the log."""
    units: dict[str, Unit | Selection] = {}
    models: dict[str, LocalModel] = {}
    names = page.names(("units",))
    for name in names:
        at = ("units", name)
        keys = (*_UNIT_KEYS, "log", *federation_data.UNIT_KEYS)
        table = page.table(at, keys)
        if federation_data.has_patterns(table):
            with page.blaming(at):
                Unit(name)
            model, states = _model_and_states(page, at, table)
            units[name] = federation_data.unit_selection(page, at, table, states)
        else:
            units[name], model = _unit(page, at, keys, needs_channels=True)
        if model is not None:
            models[name] = model
    _all_or_none(page, models, names)
    return units, models


def _check_counts(page: Page, recording: Recording, models: Mapping[str, LocalModel], source: str) -> None:
    """Refuse a model that has other inputs or outputs than the data."""
    for name, model in models.items():
        unit = recording[name].unit
        for side, has, wanted in (
            ("inputs", unit.n_inputs, model.n_inputs), ("outputs", unit.n_outputs, model.n_outputs)
        ):  # fmt: skip
            if has != wanted:
                page.refuse(("units", name), f"the {source} gives it {has} {side}, but the model has {wanted}")


def _from_table(
    page: Page, files: list[Path] | tuple[str, str], options: dict[str, Any]
) -> tuple[Recording, Preparation, dict[str, LocalModel]]:
    """One table that all units share: each takes its columns by pattern or list."""
    models: dict[str, LocalModel] = {}
    selections = {}
    names = page.names(("units",))
    for name in names:
        at = ("units", name)
        table = page.table(at, (*_UNIT_KEYS, *federation_data.UNIT_KEYS))
        with page.blaming(at):
            Unit(name)  # the name alone, before any file is read
        model, states = _model_and_states(page, at, table)
        if model is not None:
            models[name] = model
        selections[name] = federation_data.unit_selection(page, at, table, states)
    _all_or_none(page, models, names)
    if models:
        options = {"drop_constant": False} | options  # a model has its channels
    recording, preparation = federation_data.read_shared(page, files, options, selections)
    _check_counts(page, recording, models, "table")
    return recording, preparation, models


def read_plant(path: str | Path) -> Plant:
    """Read a plant: units with their own models, and ``[[couplings]]`` with cause, effect, and blocks A and B."""
    page = Page(Path(path))
    page.known((), page.contents, ("plant", "units", "couplings"))
    head = page.table(("plant",), ("dt",), optional=True)
    dt = page.number(("plant", "dt"), head.get("dt", 1.0), above=0.0)
    units, models = [], {}
    for name in page.names(("units",)):
        unit, model = _unit(page, ("units", name), _UNIT_KEYS, needs_channels=False)
        if model is None:
            page.refuse(("units", name), "it has no model; give 'model' (a file) or A, B, C, Q and R")
        units.append(unit)
        models[name] = model
    blocks = {letter: block_diagonal([getattr(model, letter) for model in models.values()]) for letter in LETTERS}
    with page.blaming(("units",)):
        plant = Plant(units=tuple(units), **blocks, dt=dt)
    A, B = np.array(plant.A), np.array(plant.B)
    seen: set[tuple[str, str]] = set()
    couplings = page.contents.get("couplings", [])
    if not isinstance(couplings, list):
        page.refuse(("couplings",), "must be an array of tables: write [[couplings]]")
    for k in range(len(couplings)):
        at: TomlPath = ("couplings", k)
        entry = page.table(at, ("cause", "effect", "A", "B"))
        ends = []
        for key in ("cause", "effect"):
            name = page.text((*at, key), entry.get(key))
            if name not in models:
                page.refuse((*at, key), f"no unit is called {name!r}{page.hint(name, list(models))}")
            ends.append(name)
        cause, effect = ends
        if cause == effect:
            page.refuse(at, f"cause and effect are both {cause!r}; its own blocks stand in [units.{cause}]")
        if (cause, effect) in seen:
            page.refuse(at, f"{cause!r} -> {effect!r} is given twice")
        seen.add((cause, effect))
        for letter, whole, columns in (("A", A, plant.state_slice(cause)), ("B", B, plant.input_slice(cause))):
            if letter in entry:
                block = page.matrix((*at, letter), entry[letter])
                rows = plant.state_slice(effect)
                wanted = (rows.stop - rows.start, columns.stop - columns.start)
                if block.shape != wanted:
                    page.refuse((*at, letter), f"has shape {block.shape}, must have {wanted}")
                whole[rows, columns] = block
    return plant.replace(A=A, B=B)


def _head(page: Page, head: Mapping[str, Any]) -> tuple[str, int, dict[str, Any]]:
    method = page.text(("federation", "method"), head.get("method", "sufficient"))
    if method not in METHODS:
        page.refuse(
            ("federation", "method"), f"{method!r} is not one of {', '.join(METHODS)}{page.hint(method, METHODS)}"
        )
    if method == "oracle":
        page.refuse(("federation", "method"), "'oracle' needs the true plant, which a federation does not have")
    seed = page.whole(("federation", "seed"), head.get("seed", 0), 0)
    kind = _options_of(method, page.table(("options",), None, optional=True))
    options: dict[str, Any] = {}
    if "estimate" in head:
        with page.blaming(("federation", "estimate")):
            kind.parse(method, {"estimate": head["estimate"]})
        options["estimate"] = head["estimate"]
    for key, value in page.table(("options",), None, optional=True).items():
        if key in options:
            page.refuse(("options", key), "stands in [federation], too; give it once")
        with page.blaming(("options", key)):
            kind.parse(method, {key: value})
        options[key] = value
    with page.blaming(("options",)):
        kind.parse(method, options)
    return method, seed, options


def _options_of(method: str, given: Mapping[str, Any]) -> Any:
    """The class of a method's options; those of the references are the default's, and logs have their own."""
    if method == "sufficient" and any(name in given for name in LOGS_ONLY):
        return LogOptions
    return FEDERATED.get(method, FEDERATED["sufficient"]).options


def _unit(page: Page, at: TomlPath, keys: Sequence[str], needs_channels: bool) -> tuple[Unit, LocalModel | None]:
    """A unit and its model, if it has one; without channels given they are named by count."""
    name = str(at[-1])
    table = page.table(at, keys)
    model, states = _model_and_states(page, at, table)
    channels: dict[str, Any] = {}
    for side, least in (("inputs", 0), ("outputs", 1)):
        if side in table:
            channels[side] = _channels(page, (*at, side), table[side], least)
        elif needs_channels and least:
            page.refuse(at, f"{side!r} is missing; name the columns of its log")
        elif needs_channels:
            channels[side] = []
        if model is not None and side in channels:
            count = model.n_inputs if side == "inputs" else model.n_outputs
            if count != len(channels[side]):
                where = (*at, side) if side in table else at
                page.refuse(where, f"{len(channels[side])} {side} are named, but the model has {count}")
    if model is not None:
        channels.setdefault("inputs", model.n_inputs)
        channels.setdefault("outputs", model.n_outputs)
    loops: list[Loop] = []
    if "loops" in table:
        if "inputs" not in table or "outputs" not in table:
            page.refuse((*at, "loops"), "loops need channels by their names; give inputs and outputs, too")
        loops = _loops(page, (*at, "loops"), table["loops"])
    with page.blaming(at):
        return Unit(name, states, **channels, loops=loops), model


def _with_loops(page: Page, recording: Recording) -> Recording:
    """The recording with the loops that the file declares, whatever its data come from."""
    parts = dict(recording.items())
    for name in page.names(("units",)):
        at = ("units", name, "loops")
        if "loops" not in page.contents["units"][name]:
            continue
        unit, loops = parts[name].unit, _loops(page, at, page.contents["units"][name]["loops"])
        with page.blaming(at):
            described = Unit(name, unit.states, unit.inputs, unit.outputs, loops=loops)
        parts[name] = replace(parts[name], unit=described)
    return replace(recording, parts=parts)


def _loops(page: Page, at: TomlPath, given: Any) -> list[Loop]:
    """Controllers: tables [[units.boiler.loops]] with moves, reads, perhaps target, and perhaps a law with its kind."""
    if not isinstance(given, list):
        page.refuse(at, f"must be tables [[{shown(at)}]] with moves, reads, and perhaps target and law")
    out = []
    for k, entry in enumerate(given):
        here = (*at, k)
        if not isinstance(entry, dict):
            page.refuse(here, f"must be a table with moves, reads, and perhaps target and law, got {what(entry)}")
        page.known(here, entry, ("moves", "reads", "target", "law"))
        names = {key: page.text((*here, key), entry.get(key)) for key in ("moves", "reads")}
        target = page.text((*here, "target"), entry["target"]) if "target" in entry else None
        law = entry.get("law")
        with page.blaming((*here, "law") if law is not None else here):
            out.append(Loop(**names, target=target, law=None if law is None else law_of(law)))
    return out


def _model_and_states(page: Page, at: TomlPath, table: Mapping[str, Any]) -> tuple[LocalModel | None, int]:
    """A unit's model, if it has one, and its number of states: two, if nothing says it."""
    model = _model(page, at, table)
    states = page.whole((*at, "states"), table["states"], 1) if "states" in table else None
    if model is not None and states not in (None, model.states):
        page.refuse((*at, "states"), f"is {states}, but the model has {model.states} states; make them agree")
    return model, model.states if model is not None else states or 2


def _model(page: Page, at: TomlPath, table: Mapping[str, Any]) -> LocalModel | None:
    given = [letter for letter in LETTERS if letter in table]
    if "model" in table:
        if given:
            page.refuse((*at, given[0]), "the model is given twice: as a file and in place; give one of them")
        where = (*at, "model")
        file = page.file(where, table["model"])
        with page.blaming(where):
            return load_model(file)
    if not given:
        return None
    missing = [letter for letter in LETTERS if letter not in table]
    if missing:
        page.refuse(at, f"the model lacks {', '.join(missing)}; give A, B, C, Q and R, or 'model', a file")
    arrays = {letter: page.matrix((*at, letter), table[letter]) for letter in LETTERS}
    with page.blaming_letter(at):
        return LocalModel(**arrays)


def _channels(page: Page, at: TomlPath, given: Any, least: int) -> list[Channel]:
    if not isinstance(given, list):
        page.refuse(at, f"must be a list of names, or tables [[{shown(at)}]] with name, unit and limits")
    if len(given) < least:
        page.refuse(at, f"is empty; give at least {least}")
    out: list[Channel] = []
    for k, entry in enumerate(given):
        here = (*at, k)
        if isinstance(entry, str):
            with page.blaming(here):
                channel = Channel(entry)
        elif isinstance(entry, dict):
            page.known(here, entry, ("name", "unit", "limits"))
            if "name" not in entry:
                page.refuse(here, "'name' is missing")
            name = page.text((*here, "name"), entry["name"])
            unit = page.text((*here, "unit"), entry.get("unit", ""))
            limits = _limits(page, (*here, "limits"), entry["limits"]) if "limits" in entry else None
            with page.blaming((*here, "name")):
                channel = Channel(name, unit, limits)
        else:
            page.refuse(here, f"must be a name or a table with name, unit and limits, got {what(entry)}")
        if channel.name in [other.name for other in out]:
            page.refuse((*here, "name"), f"{channel.name!r} is used twice; rename one of them")
        out.append(channel)
    return out


def _limits(page: Page, at: TomlPath, given: Any) -> tuple[float, float]:
    remedy = "give [low, high] with low below high; an end may be inf"
    if not isinstance(given, list) or len(given) != 2:
        page.refuse(at, f"must be two numbers, got {what(given)}; {remedy}")
    low, high = (page.number((*at, k), end, infinite=True) for k, end in enumerate(given))
    if not low < high:
        page.refuse(at, f"low {low:g} is not below high {high:g}; {remedy}")
    return low, high


def _from_recording(
    page: Page, shared: Any, parsed: Mapping[str, tuple[Unit, LocalModel | None]], head: Mapping[str, Any]
) -> Recording:
    at = ("federation", "recording")
    file = page.file(at, shared)
    with page.blaming(at):
        stored = Recording.load(file)
    units = page.contents["units"]
    for name in stored.names:
        if name not in parsed:
            page.refuse(("units",), f"the recording has a unit {name!r}, which is not described; add [units.{name}]")
    if "dt" in head and head["dt"] != stored.dt:
        page.refuse(("federation", "dt"), f"is {head['dt']:g}, the recording's is {stored.dt:g}; leave it out")
    described, arrays = [], {}
    for name, (unit, model) in parsed.items():
        here: TomlPath = ("units", name)
        if "log" in units[name]:
            page.refuse((*here, "log"), "there is a recording, too; give one of them")
        if name not in stored.names:
            page.refuse(here, f"the recording has no such unit{page.hint(name, stored.names)}")
        part = stored[name]
        sides: dict[str, tuple[Channel, ...]] = {}
        for side in ("inputs", "outputs"):
            own: tuple[Channel, ...] = getattr(part.unit, side)
            given: tuple[Channel, ...] = getattr(unit, side)
            if side in units[name]:
                names, wanted = [c.name for c in given], [c.name for c in own]
                if names != wanted:
                    page.refuse((*here, side), f"{', '.join(names)}; the recording has {', '.join(wanted) or 'none'}")
                own = given
            elif model is not None and len(given) != len(own):
                page.refuse(here, f"the model has {len(given)} {side}, the recording has {len(own)}")
            sides[side] = own
        states = unit.states if model is not None or "states" in units[name] else part.unit.states
        loops = unit.loops or part.unit.loops
        described.append(Unit(name, states, sides["inputs"], sides["outputs"], loops=loops))
        arrays[name] = (part.y, part.u)
    return replace(Recording.from_arrays(arrays, stored.dt, described), calendar=stored.calendar)


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
        at = shown_key("units", unit.name)
        lines += ["", f"[{at}]", f"states = {unit.states}", f"model = {quoted(models[unit.name])}"]
        for side in ("inputs", "outputs"):
            channels: tuple[Channel, ...] = getattr(unit, side)
            for channel in channels:
                lines += ["", f"[[{at}.{side}]]", f"name = {quoted(channel.name)}"]
                if channel.unit:
                    lines.append(f"unit = {quoted(channel.unit)}")
                if channel.limits is not None:
                    lines.append(f"limits = [{channel.limits[0]!r}, {channel.limits[1]!r}]")
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A TOML basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def shown_key(table: str, name: str) -> str:
    """A dotted key, with quotes where TOML needs them."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return f"{table}.{name if bare else quoted(name)}"


def relative(target: Path, base: Path) -> str:
    """A path as the file in folder ``base`` writes it."""
    try:
        return Path(os.path.relpath(target.absolute(), base.absolute())).as_posix()
    except ValueError:  # another drive
        return target.absolute().as_posix()
