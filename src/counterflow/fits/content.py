"""What the files of a fit hold, and what must be true of it beyond what the classes check themselves."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import StorageError
from counterflow.exchange.estimators import Estimates, KalmanEstimator
from counterflow.exchange.outcome import Couplings, Provenance, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import PrivacyReport, UnitPrivacy
from counterflow.fits.engine import Traffic
from counterflow.fits.history import History
from counterflow.learning.block_moments import BlockMoments, block_length
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import Patterns, SharedRecord
from counterflow.learning.log_moments import BANDS, LogMoments, LogWindows
from counterflow.learning.network import Network
from counterflow.learning.network_learning import REPLICATES, Posterior
from counterflow.learning.optimiser import Estimated
from counterflow.learning.parameters import Parameters
from counterflow.learning.stream import TAIL, Stream
from counterflow.learning.uncertainty import Memory, Uncertainty
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import check_name, first_repeated
from counterflow.questions.answering import Server

SERVER_FILE = "server.safetensors"
LETTERS = ("C", "Q", "R")  # of a unit's model, and of the plant after the fit
MOST_MEMORY = 10_000  # rows that a network may look back
MOST_ROWS = 1 << 53  # of a stream


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


def check_file_names(names: Sequence[str]) -> None:
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


# axes by letter. Of one size in a whole file: P states, U inputs, D outputs, H rounds; of networks M numbers, W columns
# and K replicates; L rows of a tail; of moments d signals, S with a level, B bands. Of one size in an object: s numbers
# of all messages, t rows, n couplings that move, or features, b spans, p pairs, k replicates, or moments, g draws
AXES: Mapping[type, Mapping[str, str]] = MappingProxyType({
    Server: {"A": "PP", "B": "PU", "Q": "PP"},
    Estimated: {"A": "PP", "B": "PU", "Q": "PP"},
    SharedRecord: {
        "values": "ts", "u": "tU", "observation": "sP", "noise": "ss", "A_local": "PP", "B_local": "PU",
        "Q_local": "PP", "initial_mean": "P", "initial_covariance": "PP",
    },
    Parameters: {"noise_root": "PP"},
    Uncertainty: {"covariance": "nn"},
    Memory: {"information": "nn", "mean": "P", "covariance": "PP", "last_input": "U"},
    Network: {
        "spans": "b2", "linear": "kbWM", "pairs": "p2", "bends": "kpM", "pair_centre": "p", "pair_size": "p",
        "low": "W", "high": "W", "level": "W", "scale": "W", "noise": "MM", "offset": "kM",
        "chosen": "gWM",
    },
    BlockMoments: {
        "spans": "b2", "pairs": "p2", "pair_centre": "p", "pair_size": "p", "level": "W", "scale": "W", "low": "W",
        "high": "W", "moving": "W", "read": "M",
    },
    Posterior: {"variance": "KnM", "noise": "KM", "damping": "KbW"},
    Stream: {"tail": "LW"},
    LogWindows: {"level": "U", "scale": "U"},
    LogMoments: {"design": "kS", "bands": "kB", "values": "kr", "added": "rr", "centre": "rd"},
    History: {"server_loss": "H", "residual_loss": "H", "disentanglement": "H", "gradient": "H"},
    UnitPart: {"theta": "PD", "phi": "P", "output_level": "D"},
    UnitContent: {"client_loss": "H", "proprietary_loss": "H"},
})  # fmt: skip


def _wrong(problem: str) -> NoReturn:
    raise ValueError(problem)


def _tree(value: Any) -> Iterator[Any]:
    """All dataclasses in one, or in a tuple of them."""
    if is_dataclass(value):
        yield value
        value = tuple(getattr(value, field.name) for field in fields(value))
    if isinstance(value, tuple):
        for entry in value:
            yield from _tree(entry)


def _check_axes(value: Any, sizes: Mapping[str, int]) -> None:
    """All arrays in a tree; a letter without a size gets it from the first array of an object that has it."""
    for each in _tree(value):
        known = dict(sizes)
        for name, letters in AXES.get(type(each), {}).items():
            array = getattr(each, name)
            if array is None:
                continue
            if array.ndim != len(letters):
                _wrong(f"{name} of {type(each).__name__} has {array.ndim} axes, not {len(letters)}")
            if any(known.setdefault(letter, n) != n for letter, n in zip(letters, array.shape, strict=True)):
                _wrong(f"{name} of {type(each).__name__} has shape {array.shape}, which does not fit the others")


def check_server(found: ServerContent) -> None:
    server, record = found.server, found.record
    names, couplings = server.names, server.couplings
    if not names or first_repeated(names) is not None:
        _wrong("it names no unit, or one of them twice")
    check_file_names(names)
    if sorted(record.order) != sorted(names):
        _wrong(f"its order should name each of {list(names)} once")
    counts = {unit.name: (unit.states, unit.n_inputs) for unit in server.units}
    P, U = map(sum, zip(*counts.values(), strict=True))
    sizes = {"P": P, "U": U, "H": len(record.history.phase), "2": 2, "L": TAIL, "B": BANDS}
    if couplings is not None and couplings.network is not None:
        M = sum(couplings.network.numbers)
        sizes |= {"M": M, "W": M + U, "K": len(couplings.network.linear)}
    if couplings is not None and couplings.windows is not None:
        d = U * couplings.windows.bank.size
        sizes |= {"d": d, "S": 1 + d}
    _check_axes(found, sizes)
    for each in _tree(server):
        if isinstance(each, SharedRecord):
            layout = dict(zip(each.names, zip(each.states, each.inputs, strict=True), strict=True))
            if layout != counts or len(each.names) != len(counts):
                _wrong("its couplings do not name the same units")
            if each.patterns is not None:
                _check_patterns(each, each.patterns)
        elif isinstance(each, KnownEdges) and not each.units <= set(names):
            _wrong("its known edges are of units that are not there")
        elif isinstance(each, Uncertainty) and len(each.covariance) != each.parameters.coupling_size():
            _wrong("its covariance is not one of its couplings")
        elif isinstance(each, Memory):
            moving = each.found.parameters
            if len(each.information) != (0 if moving is None else moving.coupling_size()):
                _wrong("what it remembers is not of its couplings")
    for name, point in server.points.items():
        if name not in counts or point.input_level.shape != (counts[name][1],):
            _wrong(f"the operating point of {name!r} is not one of its inputs")
    if couplings is not None:
        _check_couplings(couplings, server)
    changes = record.history.delta_d
    if set(changes) != set(names) or any(row.shape != (sizes["H"],) for row in changes.values()):
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


def _check_couplings(couplings: Couplings, server: Server) -> None:
    for network in filter(None, (couplings.network, *(regime.network for regime in couplings.regimes))):
        _check_network(network, server)
    for regime in couplings.regimes:
        if not 0 <= regime.start < regime.stop or not set(regime.units) <= set(server.names):
            _wrong("its ways of running are not of these units or rows")
    if couplings.stream is not None:
        if not couplings.network:
            _wrong("its stream is not one of its network")
        _check_stream(couplings.stream, couplings.network)
    if couplings.windows is not None:
        _check_windows(couplings.windows, couplings.shared)
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
    spans, pairs = network.spans, network.pairs
    if len(spans) < 1 or len(network.linear) < 2 or (spans[:, 0] < 1).any() or (spans[:, 1] < spans[:, 0]).any():
        _wrong("its network has no spans, or ones that make no sense")
    if spans.max() > MOST_MEMORY or (np.diff(spans[:, 1]) < 0).any():
        _wrong("its network looks back too far")
    if ((pairs < 0) | (pairs >= len(network.level))).any():
        _wrong("its network multiplies columns that are not there")
    if len(network.learners) != len(network.linear):
        _wrong("its network does not say by which learner each of its replicates was made")
    if network.chosen is None or len(network.chosen) != REPLICATES:
        _wrong("its network does not say what was chosen in each replicate")
    if (network.scale <= 0).any() or (network.pair_size <= 0).any() or not network.widening > 0 or network.rows < 0:
        _wrong("its network has a scale that is not above zero")


def _check_stream(stream: Stream, network: Network) -> None:
    """Whether what is kept of all rows is of this network, and its arrays are of each other's sizes."""
    sums = stream.products
    if not np.array_equal(sums.spans, network.spans) or sums.targets != network.size:
        _wrong("its stream is not one of its network")
    posterior = stream.posterior
    if posterior.variance.shape[1] != sums.features or posterior.damping.shape[1] != len(network.spans):
        _wrong("its posterior is not one of its features")
    if ((sums.pairs < 0) | (sums.pairs >= len(network.level))).any() or sums.memory > TAIL:
        _wrong("its stream has features of columns or rows that are not there")
    if (sums.scale <= 0).any() or (sums.pair_size <= 0).any() or (posterior.noise <= 0).any():
        _wrong("its stream has a scale that is not above zero")
    if not 1 <= stream.chosen <= sums.rows < MOST_ROWS or stream.kept < 1 or not 0 <= sums.used <= sums.rows:
        _wrong("a count of its stream makes no sense")
    if len(sums.blocks) != -(-sums.rows // block_length(sums.rows)):
        _wrong("its stream has not the blocks of its rows")
    if any(block.shape != (sums.size * (sums.size + 1) // 2,) for block in sums.blocks):
        _wrong("a block of its stream is not one of its features")
    if (sums.counts < 0).any() or not sums.count > 0 or (posterior.variance < 0).any():
        _wrong("its stream has sums or variances below zero")


def _check_windows(windows: LogWindows, shared: SharedRecord) -> None:
    """Whether moments are of these units and their numbers, and of a bank that there can be."""
    bank = windows.bank
    if not bank.poles or bank.poles[0] != 0.0 or not all(0.0 <= pole < 1.0 for pole in bank.poles):
        _wrong("its bank has poles that are none of one")
    if not 1 <= bank.memory <= MOST_ROWS or (windows.scale <= 0).any() or len(windows.units) != len(shared.names):
        _wrong("its windows are not of these units or inputs")
    for own, states, numbers in zip(windows.units, shared.states, shared.observation_slices, strict=True):
        r = states // bank.size
        if not own or r * bank.size != states or numbers.stop - numbers.start != r:
            _wrong("a unit has no window, or not the numbers of its windows")
        for each in own:
            if len(each.added) != r:
                _wrong("a window has not the numbers of its unit")
            if not 0 <= each.told <= len(each.values) or not 0.0 <= each.clipped <= 1.0 or (each.bands < 0).any():
                _wrong("a window tells of moments that are not there")
            if np.linalg.eigvalsh((each.added + each.added.T) / 2)[0] < -1e-9 * np.abs(each.added).max():
                _wrong("noise of a window is no covariance")


def check_unit(found: UnitContent) -> None:
    part = found.part
    unit, model = part.unit, part.model
    sizes = {"P": unit.states, "U": unit.n_inputs, "D": unit.n_outputs}
    if (model.states, model.n_inputs, model.n_outputs) != tuple(sizes.values()):
        _wrong(f"its model does not have the states, inputs and outputs of unit {unit.name!r}")
    _check_axes(found, sizes)
    if part.point is not None and part.point.input_level.shape != (unit.n_inputs,):
        _wrong("its operating point is not one of its inputs")
    if part.C_doubt is not None and [a.shape for a in part.C_doubt] != [(unit.n_outputs,), (unit.states,) * 2]:
        _wrong("the doubt about its C does not have the shape of C")
    if part.sensors and len(part.sensors) != unit.n_outputs:
        _wrong("what is known of its sensors is not of its outputs")
    for letter, block in found.estimated.items():
        if letter not in LETTERS or block.shape != getattr(model, letter).shape:
            _wrong(f"{letter!r:.20} after the fit is not a block of its model")
    if isinstance(part.estimator, KalmanEstimator):
        seen = part.estimator.model
        inputs = unit.n_inputs if part.uses_inputs else 0
        if (seen.states, seen.n_inputs, seen.n_outputs) != (unit.states, inputs, unit.n_outputs):
            _wrong("its estimator is one of another model")


def check_belongs(found: UnitContent, of: ServerContent, name: str) -> None:
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
