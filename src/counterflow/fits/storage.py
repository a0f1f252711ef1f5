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
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, StorageError
from counterflow.fits import storage_couplings, storage_privacy, storage_server
from counterflow.fits.fit import Fit
from counterflow.fits.sealed_file import (
    SealedFile,
    blaming,
    check_keys,
    digest_of,
    read,
    typed,
)
from counterflow.fits.storage_server import (
    SERVER_FILE,
    Counts,
    check_file_names,
    link_of,
    points_of,
    record_of,
    server_bytes,
    server_units,
)
from counterflow.fits.storage_unit import SERIES, TITLE, VERSION, stored_part, unit_bytes, unit_of
from counterflow.methods.estimators import Estimator
from counterflow.methods.part import UnitPart
from counterflow.plant import Plant, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator


UNITS_FOLDER = "units"
_SUFFIX = ".safetensors"


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
    check_file_names(fit.names)
    server = server_bytes(
        fit.server,
        order=fit.names,
        dt=fit.plant.dt,
        history=fit.history,
        traffic=fit.traffic,
        status=fit.status,
        provenance=fit.provenance,
        privacy=storage_privacy.describe(fit.privacy),
    )
    link = digest_of(server)
    files = {SERVER_FILE: server}
    for name in fit.names:
        part, plant = fit.parts[name], fit.plant
        files[f"{UNITS_FOLDER}/{name}{_SUFFIX}"] = unit_bytes(
            replace(part, unit=plant.unit(name), link=link),
            estimated={letter: plant.block(letter, name) for letter in ("C", "Q", "R")},
            losses={series: getattr(fit.history, series)[name] for series in SERIES},
            privacy=storage_privacy.describe_unit(fit.privacy, name, part.rows_digest),
        )
    with _writing(target):
        _refuse_foreign(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace_directory(target, files)


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
    read(target / SERVER_FILE, storage_server.TITLE, storage_server.VERSION)
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


def load(directory: str | Path, estimators: Mapping[str, Estimator] | None = None) -> Fit:
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
    server = read(folder / SERVER_FILE, storage_server.TITLE, storage_server.VERSION)
    with blaming(server.path):
        _, counts, sizes = server_units(server)
    names = tuple(counts)
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
            unit = _stored_unit(stored, name, counts[name], link_of(server))
            part, estimated = stored_part(stored, unit, given)
            for letter, block in estimated.items():
                blocks[letter].append(block)
            for series in SERIES:
                losses[series][name] = stored.take(f"history/{series}", (rounds,))
            stored.finish()
            spent[name] = stored.described["privacy"]
        parts[name] = part
    with blaming(server.path):
        fit = _stored_fit(server, parts, blocks, losses, counts, sizes)
        return replace(fit, privacy=storage_privacy.restore(server.described["privacy"], spent))


def load_unit(file: str | Path, estimator: Estimator | None = None) -> UnitPart:
    """One unit's part of a saved fit; with ``load_server``'s it can ask, and knows nothing of the other units."""
    stored = read(Path(file), TITLE, VERSION)
    with blaming(stored.path):
        unit = unit_of(stored)
        return stored_part(stored, unit, {} if estimator is None else {unit.name: estimator})[0]


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
) -> Fit:
    described = server.described
    expected = (
        "format",
        "version",
        "link",
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
    record = record_of(server, tuple(parts))
    A, B = server.take("A", (sizes[0], sizes[0])), server.take("B", sizes)
    couplings = storage_couplings.restore(server, counts, A, B)
    if {n: p.same_row for n, p in points_of(server, counts).items()} != {
        n: part.point.same_row for n, part in parts.items() if part.point is not None
    }:
        raise ValueError("its operating points are not those of the units")
    server.finish()
    told: dict[str, Any] = {key: MappingProxyType({name: losses[key][name] for name in record.order}) for key in SERIES}
    units = tuple(part.unit for part in parts.values())
    plant = Plant(
        units=units,
        A=A,
        B=B,
        **{letter: _block_diagonal(found) for letter, found in blocks.items()},
        dt=record.dt,
    )
    return Fit(
        method=server.text("method"),
        plant=plant,
        parts={name: parts[name] for name in record.order},
        history=replace(record.history, **told),
        traffic=record.traffic,
        status=record.status,
        provenance=record.provenance,
        server_caveats=tuple(map(Caveat.from_json, typed(described, "caveats", list))),
        couplings=couplings,
    )


def _block_diagonal(blocks: list[FloatArray]) -> FloatArray:
    from scipy.linalg import block_diag

    return np.asarray(block_diag(*blocks), np.float64)
