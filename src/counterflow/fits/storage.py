"""A fit on disk, split as trust is split, so that each side can be handed its own part and nothing else.

::

    fit/server.safetensors           Server, and how the training went; no C, R, y, theta
    fit/units/<name>.safetensors     one unit's UnitPart, its own losses and its account of privacy

The dataclasses are their own schema (``counterflow.records``): what is a field of ``Server`` or of ``UnitPart`` is
stored. Nothing is unpickled, and no name from a file is imported: a proprietary estimator that is not the default one
is not stored, and ``load`` asks for it. Only the owner can read the files: a unit's hold its model.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from counterflow import records
from counterflow.arrays import FloatArray, block_diagonal
from counterflow.errors import OptionError, StorageError
from counterflow.estimation.known_edges import KnownEdges
from counterflow.estimation.likelihood import Patterns, SharedRecord
from counterflow.estimation.network import Network
from counterflow.estimation.network_learning import Posterior
from counterflow.estimation.online import Memory
from counterflow.estimation.optimiser import Estimated
from counterflow.estimation.parameters import Parameters
from counterflow.estimation.products import Products, block_length
from counterflow.estimation.stream import TAIL, Stream
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.files import blaming as blaming_place
from counterflow.files import replace_folder
from counterflow.fits.engine import Traffic
from counterflow.fits.history import History
from counterflow.methods.estimators import Estimates, Estimator, KalmanEstimator
from counterflow.methods.outcome import Couplings, Provenance, Status
from counterflow.methods.part import UnitPart
from counterflow.methods.privacy import PrivacyReport, UnitPrivacy
from counterflow.plant import Plant
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import check_name, first_repeated
from counterflow.questions.answering import Server
from counterflow.sealed_file import SealedFile, blaming, digest_of, read, seal

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

SERVER_FILE = "server.safetensors"
UNITS_FOLDER = "units"
SERIES = ("client_loss", "proprietary_loss")  # of a history: the units' own
VERSION = 2
OLDER = MappingProxyType({1: "saved by Counterflow 0.1: fit again, or open it with 0.1"})
_TITLES = {"server": "counterflow fit, server part", "unit": "counterflow fit, unit part"}
_SUFFIX = ".safetensors"
_LETTERS = ("C", "Q", "R")  # of a unit's model, and of the plant after the fit
_NOTHING: Mapping[str, FloatArray] = MappingProxyType({})
MOST_MEMORY = 10_000  # rows that a network may look back
MOST_ROWS = 1 << 53  # of a stream
LARGEST_SERVER = (
    1 << 34
)  # bytes: sums of an updated fit from logs take some ten megabytes, of very large plants gigabytes
T = TypeVar("T")


@dataclass(frozen=True)
class Record:
    """How a fit went, as far as the server knows: ``history`` has no losses of units.

    ``privacy`` is the report without what is only for a unit's eyes. ``apart``: of a private fit between machines, in
    which every unit keeps its own account, so that the parts are not to be put together.
    """

    dt: float
    order: tuple[str, ...]  # of the units, as they were given
    history: History
    traffic: Traffic
    status: Status
    provenance: Provenance
    privacy: PrivacyReport | None = None
    apart: bool = False
    calendar: Calendar | None = None  # when the rows were


@dataclass(frozen=True, eq=False)
class ServerContent:
    """The server's file."""

    server: Server
    record: Record


@dataclass(frozen=True, eq=False)
class UnitContent:
    """A unit's file. ``estimated``: C, Q, R after the fit, where the plant's are known here."""

    part: UnitPart
    estimated: Mapping[str, FloatArray]
    client_loss: FloatArray
    proprietary_loss: FloatArray
    privacy: UnitPrivacy | None = None


@dataclass(frozen=True)
class ForeignEstimator:
    """Stands for an estimator that is not stored."""

    name: str

    def estimate(self, y: FloatArray, u: FloatArray) -> Estimates:
        raise StorageError(f"the estimator {self.name!r} is not stored: pass it to load.", code="demand")


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
    server = server_bytes(
        fit.server, order=fit.names, dt=fit.plant.dt, history=fit.history, traffic=fit.traffic, status=fit.status,
        provenance=fit.provenance, privacy=fit.privacy, calendar=fit.calendar,
    )  # fmt: skip
    link = digest_of(server)
    files = {SERVER_FILE: server}
    for name, part in fit.parts.items():
        files[f"{UNITS_FOLDER}/{name}{_SUFFIX}"] = unit_bytes(
            replace(part, unit=fit.plant.unit(name), link=link),
            estimated={letter: fit.plant.block(letter, name) for letter in _LETTERS},
            losses={series: getattr(fit.history, series)[name] for series in SERIES},
            privacy=None if fit.privacy is None else fit.privacy.units[name],
        )
    with blaming_place(target, "Choose a directory that may be written to."):
        _refuse_foreign(target)
    replace_folder(target, files)


def server_bytes(
    server: Server, *, order: Sequence[str], dt: float, history: History, traffic: Traffic, status: Status,
    provenance: Provenance, privacy: PrivacyReport | None = None, apart: bool = False,
    calendar: Calendar | None = None,
) -> bytes:  # fmt: skip
    """The server's file. Its link is the server's, or else its own digest. ``order``: of the units, as given."""
    _check_file_names(server.names)
    if privacy is not None:  # by name what others may know: a new field of UnitPrivacy stays at the unit
        of = privacy.units.items()
        public = {name: UnitPrivacy(unit.epsilon, unit.clip, unit.sigma, clipped=None) for name, unit in of}
        privacy = replace(privacy, units=public)
    known = replace(history, **dict.fromkeys(SERIES, _NOTHING))  # type: ignore[arg-type]
    record = Record(dt, tuple(order), known, traffic, status, provenance, privacy, apart, calendar)
    # the process noise that a published method was told of is the units' own
    Q = np.zeros_like(server.A) if server.couplings is None else server.couplings.found.Q
    return _sealed("server", ServerContent(replace(server, Q=Q), record), "the server's part")


def unit_bytes(
    part: UnitPart, *, estimated: Mapping[str, FloatArray], losses: Mapping[str, FloatArray],
    privacy: UnitPrivacy | None = None,
) -> bytes:  # fmt: skip
    """A unit's file. ``losses``: the unit's own of every round (SERIES)."""
    if type(part.estimator) is not KalmanEstimator:
        part = replace(part, estimator=ForeignEstimator(type(part.estimator).__qualname__))
    return _sealed("unit", UnitContent(part, estimated, privacy=privacy, **losses), f"unit {part.unit.name!r}")


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


def _check_file_names(names: Sequence[str]) -> None:
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


# ---- load


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
        blocks = {letter: block_diagonal([_after(unit, letter) for unit in own.values()]) for letter in _LETTERS}
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
            "traffic": record.traffic,
            "status": record.status,
            "provenance": record.provenance,
            "server_caveats": server.caveats,
            "couplings": server.couplings,
            "privacy": privacy,
            "calendar": record.calendar,
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
        _check_server(found)
        return replace(found, server=replace(found.server, link=found.server.link or stored.digest))


def _unit_content(
    path: Path, given: Mapping[str, Estimator] | Estimator | None, of: ServerContent | None
) -> UnitContent:
    """A unit's file, with the estimator given for it; ``of``: the fit that it has to be of."""
    stored = _read(path, "unit")
    with blaming(path):
        found = records.restore(UnitContent, stored.content, stored.arrays, _KINDS)
        part = found.part
        _check_unit(found)
        if of is not None:
            _check_belongs(found, of, path.stem)
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


# ---- checks beyond what the classes check themselves

# axes by letter: P states, U inputs, D outputs, T rows, s numbers of all messages, n couplings that move, k rounds;
# of networks: r numbers, m columns, b spans, K replicates, k pairs in use, a all pairs, n features, t rows of a tail
SHAPES: Mapping[type, Mapping[str, str]] = MappingProxyType({
    Server: {"A": "PP", "B": "PU", "Q": "PP"},
    Estimated: {"A": "PP", "B": "PU", "Q": "PP"},
    SharedRecord: {
        "values": "Ts", "u": "TU", "observation": "sP", "noise": "ss", "A_local": "PP", "B_local": "PU",
        "Q_local": "PP", "initial_mean": "P", "initial_covariance": "PP",
    },
    Parameters: {"noise_root": "PP"},
    Uncertainty: {"covariance": "nn"},
    Memory: {"information": "nn", "mean": "P", "covariance": "PP", "last_input": "U"},
    Network: {
        "spans": "b2", "linear": "Kbmr", "pairs": "k2", "bends": "Kkr", "pair_centre": "k", "pair_size": "k",
        "low": "m", "high": "m", "level": "m", "scale": "m", "noise": "rr", "offset": "Kr",
    },
    Products: {
        "spans": "b2", "pairs": "a2", "pair_centre": "a", "pair_size": "a", "level": "m", "scale": "m", "low": "m",
        "high": "m", "moving": "m",
    },
    Posterior: {"variance": "Knr", "noise": "Kr", "damping": "Kbm"},
    Stream: {"tail": "tm"},
    History: {"server_loss": "k", "residual_loss": "k", "disentanglement": "k", "gradient": "k"},
    UnitPart: {"theta": "PD", "phi": "P", "output_level": "D"},
    UnitContent: {"client_loss": "k", "proprietary_loss": "k"},
})  # fmt: skip


def _wrong(problem: str) -> NoReturn:
    raise ValueError(problem)


def _check_shapes(value: Any, sizes: dict[str, int]) -> None:
    """Arrays of one object; a letter that has no size yet gets it from the first array that has it."""
    for name, letters in SHAPES[type(value)].items():
        array = getattr(value, name)
        if array is None:
            continue
        if array.ndim != len(letters):
            _wrong(f"{name} of {type(value).__name__} has {array.ndim} axes, not {len(letters)}")
        for letter, size in zip(letters, array.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                _wrong(f"{name} of {type(value).__name__} has shape {array.shape}, which does not fit the others")


def _parts_of(value: Any, kind: type[T]) -> Iterator[T]:
    """All objects of one class in a tree of dataclasses."""
    if isinstance(value, kind):
        yield value
    inner: Sequence[Any] = ()
    if is_dataclass(value):
        inner = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, tuple):
        inner = value
    for entry in inner:
        yield from _parts_of(entry, kind)


def _check_server(found: ServerContent) -> None:
    server, record = found.server, found.record
    names = server.names
    if not names or first_repeated(names) is not None:
        _wrong("it names no unit, or one of them twice")
    _check_file_names(names)
    if sorted(record.order) != sorted(names):
        _wrong(f"its order should name each of {list(names)} once")
    total = {"P": sum(unit.states for unit in server.units), "U": sum(unit.n_inputs for unit in server.units)}
    _check_shapes(server, total)
    counts = {unit.name: (unit.states, unit.n_inputs) for unit in server.units}
    for shared in _parts_of(server, SharedRecord):
        layout = dict(zip(shared.names, zip(shared.states, shared.inputs, strict=True), strict=True))
        if layout != counts or len(shared.names) != len(counts):
            _wrong("its couplings do not name the same units")
        _check_shapes(shared, dict(total))
        if shared.patterns is not None:
            _check_patterns(shared, shared.patterns)
    for kind in (Estimated, Parameters):
        for estimate in _parts_of(server, kind):
            _check_shapes(estimate, dict(total))
    if any(not known.units <= set(names) for known in _parts_of(server, KnownEdges)):
        _wrong("its known edges are of units that are not there")
    for spread in _parts_of(server, Uncertainty):
        _check_shapes(spread, total | {"n": spread.parameters.coupling_size()})
    for memory in _parts_of(server, Memory):
        moving = memory.found.parameters
        _check_shapes(memory, total | {"n": 0 if moving is None else moving.coupling_size()})
    for name, point in server.points.items():
        if name not in counts or point.input_level.shape != (counts[name][1],):
            _wrong(f"the operating point of {name!r} is not one of its inputs")
    _check_couplings(server)
    history, rounds = record.history, {"k": len(record.history.phase)}
    _check_shapes(history, rounds)
    if set(history.delta_d) != set(names) or any(row.shape != (rounds["k"],) for row in history.delta_d.values()):
        _wrong("its history is not one of these units and rounds")
    counted = record.traffic
    if min(counted.rounds, counted.bytes_up, counted.bytes_down, record.status.rounds, record.provenance.seed) < 0:
        _wrong("a count is below zero")
    if record.privacy is not None and set(record.privacy.units) != set(names):
        _wrong("its privacy is of other units")


def _check_patterns(shared: SharedRecord, patterns: Patterns) -> None:
    """Whether they are of this record's rows, units and numbers."""
    if patterns.labels.shape != (len(shared.values), len(shared.names)):
        _wrong("its patterns of presence are of other rows or units")
    if len(patterns.observations) != len(shared.names) or any(each.ndim != 3 for each in patterns.observations):
        _wrong("its patterns of presence are not one stack of matrices for each unit")
    widths = [each.shape[1] for each in patterns.observations]
    if widths != [rows.stop - rows.start for rows in shared.observation_slices]:
        _wrong("its patterns of presence have other numbers than its rows")
    for labels, each, states in zip(patterns.labels.T, patterns.observations, shared.states, strict=True):
        if each.shape[2] != states or ((labels < 0) | (labels >= len(each))).any():
            _wrong("its patterns of presence do not fit its units")


def _check_couplings(server: Server) -> None:
    couplings = server.couplings
    if couplings is None:
        return
    if couplings.network is not None:
        _check_network(couplings.network, server)
    for regime in couplings.regimes:
        if regime.network is not None:
            _check_network(regime.network, server)
        if not 0 <= regime.start < regime.stop or not set(regime.units) <= set(server.names):
            _wrong("its ways of running are not of these units or rows")
    if couplings.stream is not None:
        _check_stream(couplings.stream, couplings.network)
    for doubt in couplings.doubts:
        if doubt.effect not in server.names or doubt.cause not in server.names or doubt.letter not in ("A", "B"):
            _wrong("a doubt about units or letters that are not there")
        if not all(0 <= channel < server.unit(doubt.cause).n_inputs for channel in doubt.channels):
            _wrong("a doubt about inputs that are not there")


def _check_network(network: Network, server: Server) -> None:
    """Whether its arrays are of these units and of each other's sizes."""
    inputs = tuple(server.unit(name).n_inputs for name in network.names if name in server.names)
    if network.names != server.names or network.inputs != inputs or len(network.numbers) != len(network.names):
        _wrong("its network is not one of these units")
    states = [server.unit(name).states for name in network.names]
    if any(not 1 <= count <= most for count, most in zip(network.numbers, states, strict=True)):
        _wrong("its network has more numbers than its units have states")
    r = sum(network.numbers)
    sizes = {"r": r, "m": r + sum(inputs), "2": 2}
    _check_shapes(network, sizes)
    spans, pairs = network.spans, network.pairs
    if sizes["b"] < 1 or sizes["K"] < 2 or (spans[:, 0] < 1).any() or (spans[:, 1] < spans[:, 0]).any():
        _wrong("its network has no spans, or ones that make no sense")
    if spans.max() > MOST_MEMORY or (np.diff(spans[:, 1]) < 0).any():
        _wrong("its network looks back too far")
    if ((pairs < 0) | (pairs >= sizes["m"])).any():
        _wrong("its network multiplies columns that are not there")
    if (network.scale <= 0).any() or (network.pair_size <= 0).any() or not network.widening > 0 or network.rows < 0:
        _wrong("its network has a scale that is not above zero")


def _check_stream(stream: Stream, network: Network | None) -> None:
    """Whether what is kept of all rows is of this network, and its arrays are of each other's sizes."""
    sums = stream.products
    if network is None or not np.array_equal(sums.spans, network.spans) or sums.targets != network.size:
        _wrong("its stream is not one of its network")
    m = len(network.level)
    sizes = {"m": m, "r": network.size, "b": len(network.spans), "2": 2, "K": len(network.linear), "t": TAIL}
    _check_shapes(sums, sizes)
    _check_shapes(stream.posterior, sizes | {"n": sums.features})
    _check_shapes(stream, sizes)
    if ((sums.pairs < 0) | (sums.pairs >= m)).any() or sums.memory > TAIL:
        _wrong("its stream has features of columns or rows that are not there")
    if (sums.scale <= 0).any() or (sums.pair_size <= 0).any() or (stream.posterior.noise <= 0).any():
        _wrong("its stream has a scale that is not above zero")
    if not 1 <= stream.chosen <= sums.rows < MOST_ROWS or stream.kept < 1 or not 0 <= sums.used <= sums.rows:
        _wrong("a count of its stream makes no sense")
    if len(sums.blocks) != -(-sums.rows // block_length(sums.rows)):
        _wrong("its stream has not the blocks of its rows")
    if any(block.shape != (sums.size * (sums.size + 1) // 2,) for block in sums.blocks):
        _wrong("a block of its stream is not one of its features")
    if (sums.counts < 0).any() or not sums.count > 0 or (stream.posterior.variance < 0).any():
        _wrong("its stream has sums or variances below zero")


def _check_unit(found: UnitContent) -> None:
    part = found.part
    unit, model = part.unit, part.model
    sizes = {"P": unit.states, "U": unit.n_inputs, "D": unit.n_outputs}
    if (model.states, model.n_inputs, model.n_outputs) != tuple(sizes.values()):
        _wrong(f"its model does not have the states, inputs and outputs of unit {unit.name!r}")
    _check_shapes(part, sizes)
    if part.point is not None and part.point.input_level.shape != (unit.n_inputs,):
        _wrong("its operating point is not one of its inputs")
    if part.C_doubt is not None and [a.shape for a in part.C_doubt] != [(unit.n_outputs,), (unit.states,) * 2]:
        _wrong("the doubt about its C does not have the shape of C")
    if part.sensors and len(part.sensors) != unit.n_outputs:
        _wrong("what is known of its sensors is not of its outputs")
    for letter, block in found.estimated.items():
        if letter not in _LETTERS or block.shape != getattr(model, letter).shape:
            _wrong(f"{letter!r:.20} after the fit is not a block of its model")
    if isinstance(part.estimator, KalmanEstimator):
        seen = part.estimator.model
        inputs = unit.n_inputs if part.uses_inputs else 0
        if (seen.states, seen.n_inputs, seen.n_outputs) != (unit.states, inputs, unit.n_outputs):
            _wrong("its estimator is one of another model")
    _check_shapes(found, {})


def _check_belongs(found: UnitContent, of: ServerContent, name: str) -> None:
    """Whether a unit's file is the one of that name in a fit."""
    part, record = found.part, of.record
    if part.unit.name != name:
        _wrong(f"it belongs to unit {part.unit.name!r}")
    if part.link != of.server.link:
        _wrong(f"it belongs to another fit than {SERVER_FILE}")
    if part.unit.public != of.server.unit(name):
        _wrong(f"its states and inputs are not those that {SERVER_FILE} has for it")
    point = of.server.points.get(name)
    if (part.point is None) != (point is None) or (part.point and point and part.point.same_row != point.same_row):
        _wrong(f"its operating point is not the one that {SERVER_FILE} has for it")
    if len(found.client_loss) != len(record.history.phase):
        _wrong("its losses are not those of the rounds of this fit")
    if (found.privacy is None) != (record.privacy is None):
        _wrong(f"its privacy is not that of {SERVER_FILE}")
