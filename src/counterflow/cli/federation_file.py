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

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import block_diagonal
from counterflow.cli.federation_data import read_data, read_recording, units_of
from counterflow.cli.toml_page import Page, Reader, TomlPath, hint, quoted, shown, written
from counterflow.exchange.log_rows import LogOptions
from counterflow.exchange.registry import FEDERATED
from counterflow.fits.training import METHODS
from counterflow.plant import LocalModel, Plant, Recording, Unit
from counterflow.plant.plant import LETTERS
from counterflow.privacy import Privacy

if TYPE_CHECKING:
    from counterflow.data import Preparation

LOGS_ONLY = ("rank", "same_row", "regime")  # options that only fits from logs have


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
    readers: dict[str, Reader] = {
        "method": page.text, "estimate": lambda at, value: value, "seed": page.whole, "dt": page.seconds,
        "recording": page.file,
    }  # fmt: skip
    head = page.read(("federation",), readers)
    privacy = _privacy(page)
    method, options = _options(page, head)
    dt, stored = head.get("dt"), head.get("recording")
    if stored is not None and page.has("data"):
        page.refuse(("data",), "there is a recording, too; give one of them")
    recording, preparation, units = read_data(page, dt) if stored is None else read_recording(page, stored, dt)
    models = {name: unit.model for name, unit in units.items() if unit.model is not None}
    parts = dict(recording.items())
    for name, unit in units.items():
        known, at = parts[name].unit, ("units", name)
        for side in ("inputs", "outputs"):
            has, wanted = (getattr(each, f"n_{side}", None) for each in (known, unit.model))
            if wanted is not None and has != wanted:
                page.refuse(at, f"the data give it {has} {side}, but the model has {wanted}")
        if unit.loops:
            with page.blaming((*at, "loops")):
                described = Unit(name, known.states, known.inputs, known.outputs, loops=unit.loops)
            parts[name] = replace(parts[name], unit=described)
    recording = replace(recording, parts=parts)
    for key in ("edges", "forbidden"):
        if key in options:
            with page.blaming(("options", key)):
                _kind_of(method, options).parse(method, {key: options[key]}).known_edges(recording.names)
    seed = head.get("seed", 0)
    return Federation(Path(path), recording, models or None, method, seed, options, preparation, privacy)


def _privacy(page: Page) -> Privacy | None:
    """The table [privacy], in the words of ``counterflow.Privacy``; None if it is not there."""
    if not page.has("privacy"):
        return None
    at = ("privacy",)
    given = dict(page.table(at, [entry.name for entry in fields(Privacy)]))
    for key in ("epsilon", "delta"):
        if key not in given:
            page.refuse(at, f"{key!r} is missing; give both epsilon and delta, or leave the table out")
    if "ledger" in given:
        given["ledger"] = page.path.parent / page.text((*at, "ledger"), given["ledger"])
    if isinstance(given.get("models"), list):
        given["models"] = tuple(given["models"])
    return page.made(at, Privacy, given, {"epsilon": 1.0, "delta": 0.5})


def _options(page: Page, head: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The method of a fit and its options, checked one by one and then together."""
    method = head.get("method", "sufficient")
    if method not in METHODS:
        page.refuse(("federation", "method"), f"{method!r} is not one of {', '.join(METHODS)}{hint(method, METHODS)}")
    if method == "oracle":
        page.refuse(("federation", "method"), "'oracle' needs the true plant, which a federation does not have")
    given = page.table(("options",))
    if "estimate" in head and "estimate" in given:
        page.refuse(("options", "estimate"), "stands in [federation], too; give it once")
    kind = _kind_of(method, given)
    own = {key: head[key] for key in ("estimate",) if key in head}
    for at, options in (("federation", own), ("options", given), ("options", own | given)):
        page.made((at,), lambda **options: kind.parse(method, options), options, {})
    return method, own | given


def _kind_of(method: str, given: Mapping[str, Any]) -> Any:
    """The class of a method's options; those of the references are the default's, and logs have their own."""
    if method == "sufficient" and any(name in given for name in LOGS_ONLY):
        return LogOptions
    return FEDERATED.get(method, FEDERATED["sufficient"]).options


def read_plant(path: str | Path) -> Plant:
    """Read a plant: units with their own models, and ``[[couplings]]`` with cause, effect, and blocks A and B."""
    page = Page(Path(path))
    page.table((), ("plant", "units", "couplings"))
    dt = page.read(("plant",), {"dt": page.seconds}).get("dt", 1.0)
    described = units_of(page)
    models = {}
    for name, unit in described.items():
        if unit.model is None:
            page.refuse(("units", name), "it has no model; give 'model' (a file) or A, B, C, Q and R")
        models[name] = unit.model
    blocks = {letter: block_diagonal([getattr(model, letter) for model in models.values()]) for letter in LETTERS}
    with page.blaming(("units",)):
        plant = Plant(units=tuple(unit.unit() for unit in described.values()), **blocks, dt=dt)
    A, B = np.array(plant.A), np.array(plant.B)

    def unit_name(at: TomlPath, value: Any) -> str:
        if page.text(at, value) not in models:
            page.refuse(at, f"no unit is called {value!r}{hint(value, list(models))}")
        return str(value)

    readers: dict[str, Reader] = {"cause": unit_name, "effect": unit_name, "A": page.matrix, "B": page.matrix}
    couplings = page.tables(("couplings",), page.contents.get("couplings", []), readers, ("cause", "effect"))
    seen: set[tuple[str, str]] = set()
    for k, entry in enumerate(couplings):
        at, cause, effect = ("couplings", k), entry["cause"], entry["effect"]
        if cause == effect:
            page.refuse(at, f"cause and effect are both {cause!r}; its own blocks stand in [units.{cause}]")
        if (cause, effect) in seen:
            page.refuse(at, f"{cause!r} -> {effect!r} is given twice")
        seen.add((cause, effect))
        for letter, whole, columns in (("A", A, plant.state_slice(cause)), ("B", B, plant.input_slice(cause))):
            if letter in entry:
                place = whole[plant.state_slice(effect), columns]
                if entry[letter].shape != place.shape:
                    page.refuse((*at, letter), f"has shape {entry[letter].shape}, must have {place.shape}")
                place[...] = entry[letter]
    return plant.replace(A=A, B=B)


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
        lines += ["", f"[{shown(('units', unit.name))}]", f"states = {unit.states}"]
        lines.append(f"model = {quoted(models[unit.name])}")
        for side in ("inputs", "outputs"):
            channels = [{"name": each.name, "unit": each.unit, "limits": each.limits} for each in getattr(unit, side)]
            known = [written({key: entry for key, entry in each.items() if entry}) for each in channels]
            lines += [f"{side} = [", *(f"  {each}," for each in known), "]"]
    return "\n".join(lines) + "\n"


def relative(target: Path, base: Path) -> str:
    """A path as the file in folder ``base`` writes it."""
    try:
        return Path(os.path.relpath(target.absolute(), base.absolute())).as_posix()
    except ValueError:  # another drive
        return target.absolute().as_posix()
