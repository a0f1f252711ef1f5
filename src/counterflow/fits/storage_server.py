"""The server's file of a fit: couplings, what units have sent, how the training went; nobody's C, R or y."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import StorageError
from counterflow.fits import storage_couplings, storage_privacy
from counterflow.fits.engine import Traffic
from counterflow.fits.history import History
from counterflow.fits.sealed_file import SealedFile, blaming, check_keys, count, number, read, seal, texts, typed
from counterflow.fits.storage_unit import channel_of, describe_channel
from counterflow.methods.outcome import Provenance, Status
from counterflow.plant import Channel, OperatingPoint, Unit
from counterflow.plant.units import check_name
from counterflow.questions.answering import Server

SERVER_FILE = "server.safetensors"
TITLE = "counterflow fit, server part"
VERSION = 1
SERIES = ("server_loss", "residual_loss", "disentanglement", "gradient")
Counts = tuple[int, tuple[str, ...]]  # states, names of the inputs


def server_bytes(
    server: Server,
    *,
    order: Sequence[str],
    dt: float,
    history: History,
    traffic: Traffic,
    status: Status,
    provenance: Provenance,
    privacy: Mapping[str, Any] | None,
) -> bytes:
    """The file. ``order``: of the units, as they were given. Its ``link`` is the server's, or else its own digest."""
    arrays = {"A": server.A, "B": server.B}
    arrays.update({f"history/{series}": getattr(history, series) for series in SERIES})
    arrays.update({f"history/delta_d/{k}": history.delta_d[name] for k, name in enumerate(server.names)})
    points = server.points
    arrays.update({f"input_level/{k}": points[n].input_level for k, n in enumerate(server.names) if n in points})
    learned = None
    if server.couplings is not None:
        learned, more = storage_couplings.describe(server.couplings, server.method)
        arrays.update(more)
    described = {
        "link": server.link or "",
        "couplings": learned,
        "privacy": None if privacy is None else dict(privacy),
        "method": server.method,
        "dt": dt,
        "caveats": [caveat.to_json() for caveat in server.caveats],
        "units": [
            {"name": unit.name, "states": unit.states, "inputs": [describe_channel(c) for c in unit.inputs]}
            for unit in server.units
        ],
        "order": list(order),
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
    return seal(TITLE, described, arrays, VERSION, "the server's part", storage_couplings.MISSING)


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
    stored = read(Path(directory) / SERVER_FILE, TITLE, VERSION)
    with blaming(stored.path):
        units, counts, sizes = server_units(stored)
        A, B = stored.take("A", (sizes[0], sizes[0])), stored.take("B", sizes)
        couplings = storage_couplings.restore(stored, counts, A, B)
        return Server(
            method=stored.text("method"),
            units=units,
            A=A,
            B=B,
            Q=couplings.found.Q if couplings is not None else np.zeros_like(A),
            couplings=couplings,
            shared=couplings.shared if couplings is not None else None,
            caveats=tuple(map(Caveat.from_json, typed(stored.described, "caveats", list))),
            points=points_of(stored, counts),
            link=link_of(stored),
        )


@dataclass(frozen=True)
class Record:
    """How a fit went, as far as the server knows: ``history`` has no losses of units."""

    dt: float
    order: tuple[str, ...]  # of the units, as they were given
    history: History
    traffic: Traffic
    status: Status
    provenance: Provenance
    apart: bool = False  # of a private fit between machines, whose parts are not to be put together


def load_record(directory: str | Path) -> Record:
    """How the training of a saved fit went, from the server's file alone."""
    stored = read(Path(directory) / SERVER_FILE, TITLE, VERSION)
    with blaming(stored.path):
        _, counts, _ = server_units(stored)
        return record_of(stored, tuple(counts))


def record_of(stored: SealedFile, names: tuple[str, ...]) -> Record:
    """The same from a file that is being read; ``names``: of the units, in the file's order."""
    described = stored.described
    order = texts(described, "order")
    if sorted(order) != sorted(names):
        raise ValueError(f"'order' should name each of {list(names)} once")
    rounds = len(stored.arrays["history/server_loss"]) if "history/server_loss" in stored.arrays else 0
    series = {key: stored.take(f"history/{key}", (rounds,)) for key in SERIES}
    delta_d = {name: stored.take(f"history/delta_d/{k}", (rounds,)) for k, name in enumerate(names)}
    phase = texts(described, "phase")
    if len(phase) != rounds:
        raise ValueError(f"'phase' has {len(phase)} entries for {rounds} rounds")
    traffic, status, provenance = (typed(described, key, dict) for key in ("traffic", "status", "provenance"))
    check_keys(traffic, ("rounds", "bytes_up", "bytes_down"))
    check_keys(status, ("converged", "rounds", "gradient", "message"))
    check_keys(provenance, ("version", "seed", "data_digest", "method"))
    nothing: Mapping[str, FloatArray] = MappingProxyType({})
    return Record(
        dt=number(described, "dt"),
        order=order,
        history=History(
            **series,
            phase=phase,
            client_loss=nothing,
            proprietary_loss=nothing,
            delta_d=MappingProxyType({name: delta_d[name] for name in order}),
        ),
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
        apart=described["privacy"] == storage_privacy.APART,
    )


def points_of(stored: SealedFile, counts: Mapping[str, Counts]) -> dict[str, OperatingPoint]:
    """Where inputs of units fitted from logs rest."""
    ahead = texts(stored.described, "same_row")
    levels = {
        name: stored.take(f"input_level/{k}", (len(inputs),))
        for k, (name, (_, inputs)) in enumerate(counts.items())
        if f"input_level/{k}" in stored.arrays
    }
    if not set(ahead) <= set(levels):
        raise ValueError("'same_row' names units that have no operating point")
    return {name: OperatingPoint(level, name in ahead) for name, level in levels.items()}


def link_of(stored: SealedFile) -> str:
    """What the files of the units refer to."""
    return stored.text("link") or str(stored.described["digest"])


def server_units(server: SealedFile) -> tuple[tuple[Unit, ...], dict[str, Counts], tuple[int, int]]:
    """The units as the server knows them; states and inputs of each, and of all."""
    units: dict[str, Unit] = {}
    for entry in typed(server.described, "units", list):
        check_keys(entry, ("name", "states", "inputs"))
        name = typed(entry, "name", str)
        check_name(name, "unit")
        if name in units:
            raise ValueError(f"unit {name!r} stands in it twice")
        channels = [channel_of(channel) for channel in typed(entry, "inputs", list)]
        units[name] = described_unit(name, count(entry, "states", 1), channels)
    if not units:
        raise ValueError("it names no unit")
    check_file_names(tuple(units))
    counts = {name: (unit.states, unit.input_names) for name, unit in units.items()}
    sizes = (sum(unit.states for unit in units.values()), sum(unit.n_inputs for unit in units.values()))
    return tuple(units.values()), counts, sizes


def described_unit(name: str, states: int, channels: Sequence[Channel]) -> Unit:
    """A unit as far as others know it: its inputs. The one output stands for those that nobody else is told of."""
    taken = {channel.name for channel in channels}
    return Unit(name, states, channels, [next(f"y{k}" for k in range(len(taken) + 1) if f"y{k}" not in taken)])


def check_file_names(names: tuple[str, ...]) -> None:
    """StorageError unless every unit can have a file of its name, on every file system."""
    seen: dict[str, str] = {}
    for name in names:
        check_name(name, "unit")
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:  # one file on the file systems of macOS and Windows
            raise StorageError(
                f"units {seen[key]!r} and {name!r} would share one file where case does not count: rename one of them."
            )
        seen[key] = name
