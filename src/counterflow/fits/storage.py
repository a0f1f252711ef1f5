"""A fit on disk, split as trust is split, so that each side can be handed its own part and nothing else.

::

    fit/server.safetensors           Server, and how the training went; no C, R, y, theta
    fit/units/<name>.safetensors     one unit's UnitPart, its own losses and its account of privacy

The dataclasses are their own schema (``counterflow.records``): what is a field of ``Server`` or of ``UnitPart`` is
stored. Nothing is unpickled, and no name from a file is imported: a proprietary estimator that is not the default one
is not stored, and ``load`` asks for it. Only the owner can read the files: a unit's hold its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import records
from counterflow.arrays import FloatArray, block_diagonal
from counterflow.control import as_law
from counterflow.errors import OptionError, StorageError
from counterflow.exchange.controllers import supposed_laws
from counterflow.exchange.estimators import Estimator, KalmanEstimator
from counterflow.exchange.outcome import Couplings
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import UnitPrivacy
from counterflow.files import blaming as blaming_place
from counterflow.files import replace_folder
from counterflow.fits.content import (
    LETTERS,
    SERVER_FILE,
    ForeignEstimator,
    Record,
    ServerContent,
    UnitContent,
    check_belongs,
    check_file_names,
    check_server,
    check_unit,
)
from counterflow.plant import Plant
from counterflow.questions.answering import Server
from counterflow.sealed_file import SealedFile, blaming, digest_of, read, seal

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

UNITS_FOLDER = "units"
SERIES = ("client_loss", "proprietary_loss")  # of a history: the units' own
VERSION = 2
OLDER = MappingProxyType({1: "saved by Counterflow 0.1: fit again, or open it with 0.1"})
_TITLES = {"server": "counterflow fit, server part", "unit": "counterflow fit, unit part"}
_SUFFIX = ".safetensors"
_NOTHING: Mapping[str, FloatArray] = MappingProxyType({})
LARGEST_SERVER = (
    1 << 34
)  # bytes: sums of an updated fit from logs take some ten megabytes, of very large plants gigabytes


_KINDS = records.kinds_of(Couplings, KalmanEstimator, ForeignEstimator)


# ---- save


def save(fit: Fit, directory: str | Path) -> None:
    """Write a fit to a directory, which must be new, empty, or a saved fit (that one is replaced).

    A proprietary estimator other than ``KalmanEstimator`` cannot be stored; see ``load``.

    Raises
    ------
    StorageError
        If the directory holds anything else, or cannot be written. What was there before is then unchanged.

    Examples
    --------
    >>> import tempfile
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(200, rng=2), plant.locals(), method="penalty")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/fit")
    ...     cf.load(f"{folder}/fit").plant == found.plant
    True
    """
    if fit.method == "centralized":
        raise StorageError(
            "a fit of method 'centralized' holds every unit's raw measurements and cannot be split between server and "
            "units: fit with method='sufficient' to save."
        )
    target = Path(directory).resolve()
    went = (fit.history, fit.traffic, fit.status, fit.provenance, fit.privacy)
    server = server_bytes(fit.server, Record(fit.plant.dt, fit.names, *went, calendar=fit.calendar))
    link = digest_of(server)
    files = {SERVER_FILE: server}
    for name, part in fit.parts.items():
        part = replace(part, unit=fit.plant.unit(name), link=link)
        estimated = {letter: fit.plant.block(letter, name) for letter in LETTERS}
        losses = {series: getattr(fit.history, series)[name] for series in SERIES}
        privacy = None if fit.privacy is None else fit.privacy.units[name]
        content = UnitContent(part, estimated, **losses, privacy=privacy)
        files[f"{UNITS_FOLDER}/{name}{_SUFFIX}"] = unit_bytes(content)
    with blaming_place(target, "Choose a directory that may be written to."):
        _refuse_foreign(target)
    replace_folder(target, files)


def server_bytes(server: Server, record: Record) -> bytes:
    """The server's file, without what is only for a unit's eyes. Its link is the server's, or else its own digest."""
    check_file_names(server.names)
    if record.privacy is not None:  # by name what others may know: a new field of UnitPrivacy stays at the unit
        of = record.privacy.units.items()
        public = {name: UnitPrivacy(unit.epsilon, unit.clip, unit.sigma, clipped=None) for name, unit in of}
        record = replace(record, privacy=replace(record.privacy, units=public))
    known = replace(record.history, **dict.fromkeys(SERIES, _NOTHING))  # type: ignore[arg-type]
    record = replace(record, history=known)
    # the process noise that a published method was told of is the units' own
    Q = np.zeros_like(server.A) if server.couplings is None else server.couplings.found.Q
    return _sealed("server", ServerContent(replace(server, Q=Q), record), "the server's part")


def unit_bytes(content: UnitContent) -> bytes:
    """A unit's file."""
    part = content.part
    for moves, law in supposed_laws({part.unit.name: part}).get(part.unit.name, {}).items():
        if not as_law(law).storable:
            raise StorageError(
                f"unit {part.unit.name!r}: {moves} is supposed to follow {as_law(law)}, an object that no file can "
                "hold: save the fit without it, and give the law again by with_laws when the fit is loaded.",
                code="law-not-stored",
                scope=part.unit.name,
            )
    if type(part.estimator) is not KalmanEstimator:
        part = replace(part, estimator=ForeignEstimator(type(part.estimator).__qualname__))
    return _sealed("unit", replace(content, part=part), f"unit {part.unit.name!r}")


def _sealed(title: str, content: Any, what: str) -> bytes:
    try:
        return seal(_TITLES[title], VERSION, *records.describe(content, _KINDS))
    except StorageError as error:
        raise StorageError(f"{what}: {error}: such a fit cannot be used or saved.") from error


def _refuse_foreign(target: Path) -> None:
    """Only a new or empty directory, or a saved fit with nothing beside it, may be written over."""
    remedy = "Choose a new directory."
    if not target.exists():
        return
    if not target.is_dir():
        raise StorageError(f"{str(target)!r} is a file, not a directory. {remedy}")
    entries = {entry.name for entry in target.iterdir()}
    if not entries:
        return
    if SERVER_FILE not in entries:
        raise StorageError(f"{str(target)!r} is not empty and not a saved fit; nothing was written. {remedy}")
    _read(target / SERVER_FILE, "server")
    strange = sorted(entries - {SERVER_FILE, UNITS_FOLDER})
    folder = target / UNITS_FOLDER
    if folder.is_dir():
        strange += sorted(f"{UNITS_FOLDER}/{e.name}" for e in folder.iterdir() if e.suffix != _SUFFIX or e.is_dir())
    if strange:
        raise StorageError(
            f"{str(target)!r} holds more than a saved fit ({', '.join(strange[:3])}); nothing was written. {remedy}"
        )


def load_fields(directory: str | Path, estimators: Mapping[str, Estimator] | None = None) -> dict[str, Any]:
    """The fields of a saved ``Fit``; see ``counterflow.load``."""
    folder = Path(directory)
    if not folder.is_dir():
        raise StorageError(f"there is no directory {str(folder)!r}: give the one that the fit was saved to.")
    found = _server_content(folder)
    server, record = found.server, found.record
    if record.apart:
        raise StorageError(
            f"{str(folder / SERVER_FILE)!r} is of a private fit between machines, in which every unit keeps its own "
            "account: its parts are not to be put together. Use load_server and load_unit."
        )
    given = dict(estimators or {})
    for name in given:
        if name not in server.names:
            raise OptionError(f"load: an estimator is given for {name!r}, but the units are {list(server.names)}")
    own = {name: _unit_content(folder / UNITS_FOLDER / f"{name}{_SUFFIX}", given, found) for name in server.names}
    with blaming(folder / SERVER_FILE):
        blocks = {letter: block_diagonal([_after(unit, letter) for unit in own.values()]) for letter in LETTERS}
        units = tuple(unit.part.unit for unit in own.values())
        losses = {series: MappingProxyType({n: getattr(own[n], series) for n in record.order}) for series in SERIES}
        privacy = record.privacy
        if privacy is not None:
            spent = {name: unit.privacy for name, unit in own.items() if unit.privacy is not None}
            privacy = replace(privacy, units=MappingProxyType(spent))
        return {
            "method": server.method,
            "plant": Plant(units=units, A=server.A, B=server.B, dt=record.dt, **blocks),
            "parts": {name: own[name].part for name in record.order},
            "history": replace(record.history, **losses),  # type: ignore[arg-type]
            "server_caveats": server.caveats,
            "couplings": server.couplings,
            "privacy": privacy,
            **{name: getattr(record, name) for name in ("traffic", "status", "provenance", "calendar")},
        }


def _after(found: UnitContent, letter: str) -> FloatArray:
    """A unit's own block after the fit: that of its model where the fit has left it as it was."""
    block: FloatArray = found.estimated.get(letter, getattr(found.part.model, letter))
    return block


def load_server(directory: str | Path) -> Server:
    """The server's part of a saved fit: what answers questions, and knows nobody's outputs.

    Examples
    --------
    >>> import tempfile
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(200, rng=2), plant.locals())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/fit")
    ...     server = cf.load_server(f"{folder}/fit")
    ...     turbine = cf.load_unit(f"{folder}/fit/units/turbine.safetensors")
    >>> cf.UnitView(turbine, server).effect("boiler", "turbine", {"u1": 1.0}, horizon=3).mean.shape
    (3, 8)
    """
    return _server_content(Path(directory)).server


def load_record(directory: str | Path) -> Record:
    """How the training of a saved fit went, from the server's file alone."""
    return _server_content(Path(directory)).record


def load_unit(file: str | Path, estimator: Estimator | None = None) -> UnitPart:
    """One unit's part of a saved fit; with ``load_server``'s it can ask, and knows nothing of the other units."""
    return _unit_content(Path(file), estimator, None).part


def _read(path: Path, title: str) -> SealedFile:
    return read(path, _TITLES[title], VERSION, OLDER, LARGEST_SERVER if title == "server" else None)


def _server_content(folder: Path) -> ServerContent:
    stored = _read(folder / SERVER_FILE, "server")
    with blaming(stored.path):
        found = records.restore(ServerContent, stored.content, stored.arrays, _KINDS)
        check_server(found)
        return replace(found, server=replace(found.server, link=found.server.link or stored.digest))


def _unit_content(
    path: Path, given: Mapping[str, Estimator] | Estimator | None, of: ServerContent | None
) -> UnitContent:
    """A unit's file, with the estimator given for it; ``of``: the fit that it has to be of."""
    stored = _read(path, "unit")
    with blaming(path):
        found = records.restore(UnitContent, stored.content, stored.arrays, _KINDS)
        part = found.part
        check_unit(found)
        if of is not None:
            check_belongs(found, of, path.stem)
        estimator = given.get(part.unit.name) if isinstance(given, Mapping) else given
        if estimator is None and isinstance(part.estimator, ForeignEstimator):
            raise StorageError(
                f"unit {part.unit.name!r} was fitted with an estimator of its own ({part.estimator.name!r}), which is "
                f"not stored: pass estimators={{{part.unit.name!r}: ...}} to load.",
                code="demand",
            )
        if estimator is None:
            return found
        if not isinstance(estimator, Estimator):
            raise OptionError(f"load: the estimator of unit {part.unit.name!r} must have a method estimate(y, u)")
        return replace(found, part=replace(part, estimator=estimator))
