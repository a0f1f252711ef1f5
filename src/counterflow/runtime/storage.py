"""A fit on disk, split as trust is split, so that each side can be handed its own part and nothing else.

::

    fit/server.safetensors           A, B, names, the training record of the server; no C, R, y, theta
    fit/units/<name>.safetensors     one unit's channels, local model, theta, phi and its own losses

Arrays are safetensors, everything else is JSON in the header of the same file. Nothing is unpickled, and no name from
a file is imported: a proprietary estimator that is not the default one is not stored, and ``load`` asks for it.
A directory is written beside its place and renamed, so a reader never sees half of one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import unicodedata
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import client
from counterflow.errors import OptionError, StorageError
from counterflow.plant import OperatingPoint, Plant, Unit
from counterflow.plant.units import check_name
from counterflow.runtime import storage_couplings, storage_privacy
from counterflow.runtime.history import History
from counterflow.runtime.in_process import Traffic
from counterflow.runtime.outcome import Provenance, Status
from counterflow.runtime.questions import Server
from counterflow.runtime.result import Fit
from counterflow.runtime.sealed_file import (
    SealedFile,
    blaming,
    check_keys,
    count,
    digest_of,
    number,
    read,
    seal,
    texts,
    typed,
)
from counterflow.runtime.storage_unit import SERIES, TITLE, VERSION, stored_part, unit_bytes, unit_of
from counterflow.runtime.unit_part import UnitPart

if TYPE_CHECKING:
    from collections.abc import Iterator

FloatArray = NDArray[np.float64]
Counts = tuple[int, tuple[str, ...]]  # states, names of the inputs

SERVER_FILE = "server.safetensors"
UNITS_FOLDER = "units"
_SUFFIX = ".safetensors"
_SERVER = "counterflow fit, server part"
_VERSION = 1
_SERVER_SERIES = ("server_loss", "residual_loss", "disentanglement", "gradient")


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
    target = Path(directory).resolve()
    _check_file_names(fit.names)
    server = _server_bytes(fit)
    link = digest_of(server)
    files = {SERVER_FILE: server}
    for name in fit.names:
        files[f"{UNITS_FOLDER}/{name}{_SUFFIX}"] = unit_bytes(fit, name, link)
    with _writing(target):
        _refuse_foreign(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace_directory(target, files)


def _check_file_names(names: tuple[str, ...]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        check_name(name, "unit")
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:  # one file on the file systems of macOS and Windows
            raise StorageError(
                f"units {seen[key]!r} and {name!r} would share one file where case does not count: rename one of them."
            )
        seen[key] = name


def _server_bytes(fit: Fit) -> bytes:
    history, traffic, status, provenance = fit.history, fit.traffic, fit.status, fit.provenance
    arrays = {"A": fit.plant.A, "B": fit.plant.B}
    arrays.update({f"history/{series}": getattr(history, series) for series in _SERVER_SERIES})
    arrays.update({f"history/delta_d/{k}": history.delta_d[name] for k, name in enumerate(fit.plant.names)})
    points = fit.points
    arrays.update({f"input_level/{k}": points[n].input_level for k, n in enumerate(fit.plant.names) if n in points})
    learned = None
    if fit.couplings is not None:
        learned, more = storage_couplings.describe(fit.couplings, fit.method)
        arrays.update(more)
    described = {
        "couplings": learned,
        "privacy": storage_privacy.describe(fit.privacy),
        "method": fit.method,
        "dt": fit.plant.dt,
        "caveats": list(fit.caveats),
        "units": [
            {"name": unit.name, "states": unit.states, "inputs": list(unit.input_names)} for unit in fit.plant.units
        ],
        "order": list(fit.names),
        "same_row": [name for name, point in points.items() if point.same_row],
        "phase": list(history.phase),
        "traffic": {"rounds": traffic.rounds, "bytes_up": traffic.bytes_up, "bytes_down": traffic.bytes_down},
        "status": {
            "converged": status.converged,
            "rounds": status.rounds,
            "gradient": status.gradient,
            "message": status.message,
        },
        "provenance": {
            "version": provenance.version,
            "seed": provenance.seed,
            "data_digest": provenance.data_digest,
            "method": provenance.method,
        },
    }
    return seal(_SERVER, described, arrays, _VERSION, "the server's part", storage_couplings.MISSING)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {str(target)!r}: {error.strerror or error}. Choose a directory that may be written to."
        ) from error


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
    read(target / SERVER_FILE, _SERVER, _VERSION)
    strange = sorted(entries - {SERVER_FILE, UNITS_FOLDER})
    folder = target / UNITS_FOLDER
    if folder.is_dir():
        strange += sorted(f"{UNITS_FOLDER}/{e.name}" for e in folder.iterdir() if e.suffix != _SUFFIX or e.is_dir())
    if strange:
        raise StorageError(
            f"{str(target)!r} holds more than a saved fit ({', '.join(strange[:3])}); nothing was written. {remedy}"
        )


def _replace_directory(target: Path, files: Mapping[str, bytes]) -> None:
    token = secrets.token_hex(4)
    draft = target.with_name(f".{target.name}.{token}.part")
    former = target.with_name(f".{target.name}.{token}.old")
    try:
        (draft / UNITS_FOLDER).mkdir(parents=True)
        for name, content in files.items():
            with open(draft / name, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if target.exists():
            os.rename(target, former)
        os.rename(draft, target)
    except BaseException:  # an interrupt, too, must leave what was there
        if former.exists() and not target.exists():
            os.rename(former, target)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(former, ignore_errors=True)


# ---- load


def load(directory: str | Path, estimators: Mapping[str, client.Estimator] | None = None) -> Fit:
    """Read what ``save`` wrote; every file is checked before use.

    Parameters
    ----------
    directory : the directory given to ``save``.
    estimators : {name: Estimator}, needed for units whose proprietary estimator was not the default one.

    Raises
    ------
    StorageError
        If a file is missing, damaged, of another fit, or not what it claims to be.

    Examples
    --------
    >>> import tempfile
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(200, rng=2), plant.locals(), method="penalty")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/fit")
    ...     loaded = cf.load(f"{folder}/fit")
    >>> loaded.names, loaded.status == found.status
    (('boiler', 'turbine'), True)
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise StorageError(f"there is no directory {str(folder)!r}: give the one that the fit was saved to.")
    server = read(folder / SERVER_FILE, _SERVER, _VERSION)
    with blaming(server.path):
        names, counts, sizes = _server_units(server)
    given = dict(estimators or {})
    for name in given:
        if name not in names:
            raise OptionError(f"load: an estimator is given for {name!r}, but the units are {list(names)}")
    parts: dict[str, UnitPart] = {}
    blocks: dict[str, list[FloatArray]] = {letter: [] for letter in ("C", "Q", "R")}
    losses: dict[str, dict[str, FloatArray]] = {series: {} for series in SERIES}
    spent: dict[str, Any] = {}
    rounds = len(server.arrays["history/server_loss"]) if "history/server_loss" in server.arrays else 0
    for name in names:
        stored = read(folder / UNITS_FOLDER / f"{name}{_SUFFIX}", TITLE, VERSION)
        with blaming(stored.path):
            unit = _stored_unit(stored, name, counts[name], str(server.described["digest"]))
            part, estimated = stored_part(stored, unit, given)
            for letter, block in estimated.items():
                blocks[letter].append(block)
            for series in SERIES:
                losses[series][name] = stored.take(f"history/{series}", (rounds,))
            stored.finish()
            spent[name] = stored.described["privacy"]
        parts[name] = part
    with blaming(server.path):
        fit = _stored_fit(server, parts, blocks, losses, counts, sizes, rounds)
        return replace(fit, privacy=storage_privacy.restore(server.described["privacy"], spent))


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
    >>> turbine.effect(server, cause="boiler", change={"u1": 1.0}, horizon=3).mean.shape
    (3, 8)
    """
    stored = read(Path(directory) / SERVER_FILE, _SERVER, _VERSION)
    with blaming(stored.path):
        _, counts, sizes = _server_units(stored)
        A, B = stored.take("A", (sizes[0], sizes[0])), stored.take("B", sizes)
        couplings = storage_couplings.restore(stored, counts, A, B)
        units = tuple(Unit(name, states, inputs or 0, 1) for name, (states, inputs) in counts.items())
        return Server(
            method=stored.text("method"),
            units=units,
            A=A,
            B=B,
            Q=couplings.found.Q if couplings is not None else np.zeros_like(A),
            couplings=couplings,
            shared=couplings.shared if couplings is not None else None,
            caveats=texts(stored.described, "caveats"),
            points=_points(stored, counts),
            link=str(stored.described["digest"]),
        )


def _points(stored: SealedFile, counts: Mapping[str, Counts]) -> dict[str, OperatingPoint]:
    ahead = texts(stored.described, "same_row")
    levels = {
        name: stored.take(f"input_level/{k}", (len(inputs),))
        for k, (name, (_, inputs)) in enumerate(counts.items())
        if f"input_level/{k}" in stored.arrays
    }
    if not set(ahead) <= set(levels):
        raise ValueError("'same_row' names units that have no operating point")
    return {name: OperatingPoint(level, name in ahead) for name, level in levels.items()}


def load_unit(file: str | Path, estimator: client.Estimator | None = None) -> UnitPart:
    """One unit's part of a saved fit; with ``load_server``'s it can ask, and knows nothing of the other units."""
    stored = read(Path(file), TITLE, VERSION)
    with blaming(stored.path):
        unit = unit_of(stored)
        return stored_part(stored, unit, {} if estimator is None else {unit.name: estimator})[0]


def _server_units(server: SealedFile) -> tuple[tuple[str, ...], dict[str, Counts], tuple[int, int]]:
    described = typed(server.described, "units", list)
    counts: dict[str, Counts] = {}
    for entry in described:
        check_keys(entry, ("name", "states", "inputs"))
        name = typed(entry, "name", str)
        check_name(name, "unit")
        inputs = typed(entry, "inputs", list)
        for channel in inputs:
            check_name(channel, "channel")
        if name in counts:
            raise ValueError(f"unit {name!r} stands in it twice")
        counts[name] = (count(entry, "states", 1), tuple(inputs))
    if not counts:
        raise ValueError("it names no unit")
    _check_file_names(tuple(counts))
    sizes = (sum(states for states, _ in counts.values()), sum(len(inputs) for _, inputs in counts.values()))
    return tuple(counts), counts, sizes


def _stored_unit(stored: SealedFile, name: str, counts: Counts, link: str) -> Unit:
    unit = unit_of(stored)
    if unit.name != name:
        raise ValueError(f"it belongs to unit {unit.name!r}")
    if stored.text("server") != link:
        raise ValueError(f"it belongs to another fit than {SERVER_FILE}")
    if (unit.states, unit.input_names) != counts:
        raise ValueError(f"its states and inputs are not those that {SERVER_FILE} has for it")
    return unit


def _stored_fit(
    server: SealedFile,
    parts: Mapping[str, UnitPart],
    blocks: Mapping[str, list[FloatArray]],
    losses: Mapping[str, Mapping[str, FloatArray]],
    counts: Mapping[str, Counts],
    sizes: tuple[int, int],
    rounds: int,
) -> Fit:
    described = server.described
    expected = (
        "format",
        "version",
        "couplings",
        "privacy",
        "method",
        "dt",
        "caveats",
        "units",
        "order",
        "same_row",
        "phase",
        "traffic",
        "status",
    )
    check_keys(described, (*expected, "provenance", "digest"))
    names, order = tuple(parts), texts(described, "order")
    if sorted(order) != sorted(names):
        raise ValueError(f"'order' should name each of {list(names)} once")
    A, B = server.take("A", (sizes[0], sizes[0])), server.take("B", sizes)
    series = {key: server.take(f"history/{key}", (rounds,)) for key in _SERVER_SERIES}
    delta_d = {name: server.take(f"history/delta_d/{k}", (rounds,)) for k, name in enumerate(names)}
    couplings = storage_couplings.restore(server, counts, A, B)
    if {n: p.same_row for n, p in _points(server, counts).items()} != {
        n: part.point.same_row for n, part in parts.items() if part.point is not None
    }:
        raise ValueError("its operating points are not those of the units")
    server.finish()
    phase = texts(described, "phase")
    if len(phase) != rounds:
        raise ValueError(f"'phase' has {len(phase)} entries for {rounds} rounds")
    history = History(
        **series,
        phase=phase,
        client_loss=MappingProxyType({name: losses["client_loss"][name] for name in order}),
        proprietary_loss=MappingProxyType({name: losses["proprietary_loss"][name] for name in order}),
        delta_d=MappingProxyType({name: delta_d[name] for name in order}),
    )
    traffic, status, provenance = (typed(described, key, dict) for key in ("traffic", "status", "provenance"))
    check_keys(traffic, ("rounds", "bytes_up", "bytes_down"))
    check_keys(status, ("converged", "rounds", "gradient", "message"))
    check_keys(provenance, ("version", "seed", "data_digest", "method"))
    units = tuple(part.unit for part in parts.values())
    plant = Plant(
        units=units,
        A=A,
        B=B,
        **{letter: _block_diagonal(found) for letter, found in blocks.items()},
        dt=number(described, "dt"),
    )
    return Fit(
        method=server.text("method"),
        plant=plant,
        parts={name: parts[name] for name in order},
        history=history,
        traffic=Traffic(**{key: count(traffic, key, 0) for key in traffic}),
        status=Status(
            typed(status, "converged", bool),
            count(status, "rounds", 0),
            number(status, "gradient"),
            typed(status, "message", str),
        ),
        provenance=Provenance(
            typed(provenance, "version", str),
            count(provenance, "seed", 0),
            typed(provenance, "data_digest", str),
            typed(provenance, "method", str),
        ),
        caveats=texts(described, "caveats"),
        couplings=couplings,
    )


def _block_diagonal(blocks: list[FloatArray]) -> FloatArray:
    from scipy.linalg import block_diag

    return np.asarray(block_diag(*blocks), np.float64)
