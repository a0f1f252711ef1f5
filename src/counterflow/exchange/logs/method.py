"""Units with logs and no models: how the two sides are set up, and what is left when the exchange is over."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, PrivacyError
from counterflow.exchange.controllers import known_controllers
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.logs.options import LogOptions
from counterflow.exchange.logs.server import LogConfig, LogServer
from counterflow.exchange.logs.unit import LEAST_READINGS, LogUnit, copies_of
from counterflow.exchange.method import Progress, ServerState, UnitState
from counterflow.exchange.options import by_unit
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.sensors import kept_as_they_are, readings
from counterflow.exchange.sufficient.method import OneExchange, absurd_readings, labels_of
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.block_moments import LEAST_ROWS
from counterflow.learning.identifiability import Labels, diagnose
from counterflow.learning.network import Network
from counterflow.learning.system import IdentifiedSystem, SystemOptions
from counterflow.plant import OperatingPoint

WEAK = 0.1  # share of a channel's variance that its unit's numbers carry, below which answers about it are doubtful
EXACT_NUMBERS = "its message determines its measurements exactly, because every channel carries a signal of its own"
PRIVATE_LOGS = (
    "{label}: without models, a unit finds level, scale and basis of its message on the very rows that are to be "
    "private, and no bound on what they reveal is known. Give models from elsewhere"
)


class LogMethod(OneExchange):
    """A few numbers a row from each unit, the system identified at the server."""

    sends = frozenset({"Reduced"})
    hears = frozenset({"Request", "Identified", "Finished"})
    mechanism = ""
    options = LogOptions

    def check(self, task: Task) -> None:
        LogOptions.parse(task.method, task.options).known_edges(task.units)
        if task.privacy is not None:
            raise PrivacyError(PRIVATE_LOGS.format(label=task.label), code="private-logs")

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        chosen = LogOptions.parse(task.method, task.options)
        asked = SystemOptions(
            by_unit("same_row", chosen.same_row, task.units), chosen.known_edges(task.units), chosen.regime,
            kept_as_they_are(chosen.sensors, task.units),
        )  # fmt: skip
        return LogServer(LogConfig(task.units, asked), progress=progress)

    def unit(self, task: Task, own: UnitData) -> UnitState:
        if own.estimator is not None:
            raise OptionError(
                f"{task.label}: estimators go with given models; a fit from logs has none to estimate with"
            )
        rank = by_unit("rank", LogOptions.parse(task.method, task.options).rank, task.units)
        later = any(not each.switches for each in known_controllers(task, own))
        return LogUnit(own.unit, readings(task, own).y, own.u, rank.get(own.unit.name), later)

    def learned(self, task: Task, state: LogServer) -> Learned:
        assert state.system is not None
        system, record = state.system, state.system.record
        couplings, status, caveats = learned_system(labels_of(task), system)
        points = {
            name: OperatingPoint(system.input_level[own], system.same_row[m])
            for m, (name, own) in enumerate(zip(record.names, record.input_slices, strict=True))
        }
        found = system.found
        return Learned(found.A, found.B, found.Q, record.states, status, couplings, caveats, points)

    def part(self, task: Task, own: UnitData, state: LogUnit) -> UnitPart:
        assert state.model is not None
        assert state.reading is not None
        read = readings(task, own)
        return UnitPart(
            replace(state.description, states=state.model.states), state.model, KalmanEstimator(state.model),
            output_level=frozen(np.array(state.reading.space.mean)), point=state.point, C_doubt=state.doubt,
            sensors=read.sensors, caveats=(*read.caveats, *reading_caveats(state, read.y, own.u)),
        )  # fmt: skip

    def _no_privacy(self, task: Task, *rest: object) -> NoReturn:
        raise PrivacyError(PRIVATE_LOGS.format(label=task.label), code="private-logs")

    charges = charge = checked_release = privacy_report = _no_privacy


def learned_system(labels: Labels, system: IdentifiedSystem) -> tuple[Couplings, Status, tuple[Caveat, ...]]:
    """What the server knows of a system from logs, how it was learned, and what answers must be read with."""
    everyone = range(len(system.record.names))
    doubts = diagnose(system.record, [everyone for _ in everyone], labels, LEAST_ROWS // 2)
    couplings = Couplings(system.found, system.record, None, doubts, network=system.network, regimes=system.regimes)
    return couplings, network_status(system.network), (*(doubt.caveat for doubt in doubts), *system.notes)


def network_status(network: Network) -> Status:
    """How a network was learned."""
    return Status(True, 1, 0.0, str(network))


def reading_caveats(state: LogUnit, y: FloatArray, u: FloatArray) -> list[Caveat]:
    """What a reader should know of what a unit has made of its log: ``y`` and ``u`` before gaps were closed."""
    assert state.reading is not None
    out: list[Caveat] = []
    unit, space, known = state.description, state.reading.space, state.y

    def add(code: str, text: str) -> None:
        out.append(Caveat(code, unit.name, f"unit {unit.name!r}: {text}"))

    lost = int((~np.isfinite(known[:, space.W.any(axis=1)])).sum())
    if lost:
        part = 100 * lost / known[:, space.W.any(axis=1)].size
        add(
            "readings-missing", f"{lost} of its readings ({part:.2g} %) are missing; all others were used, and what "
            "was not read counts with the uncertainty that the rest of the record leaves it",
        )  # fmt: skip
    copies = [f"{unit.output_names[k]} of {unit.output_names[one]}" for one, k in copies_of(known)]
    if copies:
        add("copied-channels", f"exact copies of other channels tell nothing more: {', '.join(copies)}")
    silent = [unit.output_names[k] for k in np.flatnonzero(~space.W.any(axis=1))]
    if silent:
        text = f"it never moves, or was read fewer than {LEAST_READINGS} times"
        add("silent-channels", f"nothing can be asked about {', '.join(silent)}: {text}")
    share = 1 - np.diag(state.reading.rest)
    weak = [unit.output_names[k] for k in np.flatnonzero((share < WEAK) & space.W.any(axis=1))]
    if weak:
        add(
            "weak-channels",
            f"{', '.join(weak)} look like noise to it (less than {100 * WEAK:.0f} % of the "
            "movement is shared with earlier rows, its inputs or its other channels); effects on them may be missed: "
            f"rank={len(space.scale)} would send every channel",
        )
    if space.rank == int(space.W.any(axis=1).sum()):
        add("exact-message", f"{EXACT_NUMBERS}; compression hides only levels and scales here")
    return out + absurd_readings(unit, u, unit.input_names) + absurd_readings(unit, y, unit.output_names)
