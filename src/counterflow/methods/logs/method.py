"""Units with logs and no models: how the two sides are set up, and what is left when the exchange is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, PrivacyError
from counterflow.estimation.identifiability import diagnose
from counterflow.estimation.joint import JointOptions, System
from counterflow.estimation.network_learning import LEAST_ROWS
from counterflow.methods.estimators import KalmanEstimator
from counterflow.methods.logs.server import LogConfig, LogServer
from counterflow.methods.logs.unit import SHORT, LogUnit
from counterflow.methods.method import Progress, ServerState, UnitState
from counterflow.methods.outcome import Couplings, Learned, Status
from counterflow.methods.part import UnitPart
from counterflow.methods.sufficient.method import OneExchange, absurd_readings, coupled, labels_of, status_of
from counterflow.methods.sufficient.options import LikelihoodOptions
from counterflow.methods.sufficient.unit import rows_and_channels
from counterflow.methods.task import Task, UnitData
from counterflow.plant import OperatingPoint

WEAK = 0.1  # share of a channel's variance that its unit's numbers carry, below which answers about it are doubtful
NEAR = 0.2  # standard errors that a fit may still be away from its maximum and give intervals
DEFAULTS: Mapping[str, Any] = {"tol": 1e-3, "evaluations": 100}
EXACT_NUMBERS = "its message determines its measurements exactly, because every channel carries a signal of its own"
PRIVATE_LOGS = (
    "{label}: without models, a unit finds level, scale and basis of its message on the very rows that are to be "
    "private, and no bound on what they reveal is known. Give models from elsewhere; or fit an earlier stretch of the "
    "log without privacy (its rows are then not protected) and take in the rest with found.update(later, privacy=...)"
)


class LogMethod(OneExchange):
    """A few numbers a row from each unit, the system identified at the server."""

    sends = frozenset({"Reduced"})
    hears = frozenset({"Request", "Identified", "Finished"})
    mechanism = ""
    options = LikelihoodOptions

    def check(self, task: Task) -> None:
        options_of(task).known_edges(task.units)
        if "estimate" in task.options:
            raise OptionError(
                f"{task.label}: option 'estimate' goes with given models; from logs all blocks and noises are "
                "estimated: leave it out"
            )
        if task.privacy is not None:
            raise PrivacyError(PRIVATE_LOGS.format(label=task.label), code="private-logs")

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        chosen = options_of(task)
        order = chosen.order if chosen.form == "free" else chosen.for_logs("order", task.units) or None
        same_row = chosen.for_logs("same_row", task.units) or None
        asked = JointOptions(
            order, same_row, chosen.form, chosen.known_edges(task.units), tolerance=chosen.tol,
            evaluations=chosen.evaluations,
        )  # fmt: skip
        return LogServer(LogConfig(task.units, asked), progress=progress)

    def unit(self, task: Task, own: UnitData) -> UnitState:
        chosen, name = options_of(task), own.unit.name
        if own.estimator is not None:
            raise OptionError(
                f"{task.label}: estimators go with given models; a fit from logs has none to estimate with"
            )
        # a unit sends no more numbers than it may have states
        most = chosen.for_logs("order", task.units) if chosen.form == "partitioned" else {}
        return LogUnit(own.unit, own.y, own.u, chosen.for_logs("rank", task.units).get(name), most.get(name))

    def learned(self, task: Task, state: LogServer) -> Learned:
        assert state.system is not None
        system, chosen = state.system, options_of(task)
        shared, found = system.record, system.found
        if system.network is not None:
            everyone = range(len(shared.names))
            doubts = diagnose(shared, [everyone for _ in everyone], labels_of(task), LEAST_ROWS // 2)
            couplings = Couplings(found, shared, None, doubts, form="network", network=system.network)
            caveats = tuple(doubt.caveat for doubt in doubts)
            caveats += system.notes
            points = _points(system)
            status = Status(True, found.evaluations, 0.0, network_status(system))
            return Learned(found.A, found.B, found.Q, shared.states, status, couplings, caveats, points)
        couplings, caveats = coupled(
            shared, found, "blocks", labels_of(task), chosen.uncertainty,
            near=NEAR, form=chosen.form, spread=system.spread,
        )  # fmt: skip
        caveats += system.notes
        if found.at_bound:
            text = (
                "the estimate rests on the stability bound: the data ask for a system that drifts without end. Answers "
                "over long horizons are not to be trusted; look for an integrator or a drift"
            )
            caveats += (Caveat("stability-bound", "", text),)
        points = _points(system)
        status = status_of(found, chosen)
        return Learned(found.A, found.B, found.Q, shared.states, status, couplings, caveats, points)

    def part(self, task: Task, own: UnitData, state: LogUnit) -> UnitPart:
        assert state.model is not None
        assert state.reading is not None
        return UnitPart(
            replace(state.description, states=state.model.states), state.model, KalmanEstimator(state.model),
            output_level=frozen(np.array(state.reading.space.mean)), point=state.point, C_doubt=state.doubt,
            caveats=tuple(reading_caveats(state, own.y, own.u)),
        )  # fmt: skip

    def _no_privacy(self, task: Task, *rest: object) -> NoReturn:
        raise PrivacyError(PRIVATE_LOGS.format(label=task.label), code="private-logs")

    charges = charge = checked_release = privacy_report = _no_privacy


def _points(system: System) -> dict[str, OperatingPoint]:
    record = system.record
    return {
        name: OperatingPoint(system.input_level[own], system.same_row[m])
        for m, (name, own) in enumerate(zip(record.names, record.input_slices, strict=True))
    }


def network_status(system: System) -> str:
    """How a network was learned, in words."""
    assert system.network is not None
    kind = "curved" if system.network.curved else "linear"
    return f"{kind} network, {len(system.network.linear)} replicates"


def options_of(task: Task) -> LikelihoodOptions:
    """The task's options, with the defaults of fits from logs."""
    return LikelihoodOptions.parse(task.method, {**DEFAULTS, **task.options})


def reading_caveats(state: LogUnit, y: FloatArray, u: FloatArray) -> list[Caveat]:
    """What a reader should know of what a unit has made of its log: ``y`` and ``u`` as they were read."""
    assert state.reading is not None
    out: list[Caveat] = []
    unit, space, known = state.description, state.reading.space, state.y

    def add(code: str, text: str) -> None:
        out.append(Caveat(code, unit.name, f"unit {unit.name!r}: {text}"))

    used = rows_and_channels(known)[0]
    closed, lost = int(np.isfinite(known).sum() - np.isfinite(y).sum()), int((~used).sum())
    if closed or lost:
        add(
            "gaps-filled", f"{closed} readings missing for up to {SHORT} rows were filled in, {lost} rows were left out"
        )
    silent = [unit.output_names[k] for k in np.flatnonzero(~space.W.any(axis=1))]
    if silent:
        add("silent-channels", f"nothing can be asked about {', '.join(silent)}: no signal was found there")
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
