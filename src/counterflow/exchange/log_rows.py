"""Release of rows by units that have logs and no models: a few numbers a row, the system found at the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, PrivacyError, ProtocolError
from counterflow.exchange.compression import absurd_readings
from counterflow.exchange.controllers import known_controllers
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.exchange import ExchangeServer, ExchangeUnit, Next, Release, Reply
from counterflow.exchange.options import Options, by_unit, count, for_each_unit, option, truth
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.reading import LEAST_READINGS, Reading, copies_of
from counterflow.exchange.rows import labels_of
from counterflow.exchange.sensors import SENSORS, Readings, kept_as_they_are
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.block_moments import LEAST_ROWS
from counterflow.learning.identifiability import Labels, diagnose
from counterflow.learning.layout import Layout
from counterflow.learning.optimiser import Estimated
from counterflow.learning.system import ALL, PRESENT, IdentifiedSystem, identify
from counterflow.plant import LocalModel, OperatingPoint
from counterflow.protocol import Identified, Message, Reduced, Request

WEAK = 0.1  # share of a channel's variance that its unit's numbers carry, below which answers about it are doubtful
EXACT_NUMBERS = (
    "it has as many independent channels as compressed values: the server can compute its measurements but for their "
    "levels and scales"
)


def _regime(name: str, value: object) -> None:
    """OptionError unless it names ways of running, or a row of one."""
    if not (type(value) is int and value >= 0) and value not in (PRESENT, ALL):
        raise OptionError(f"fit: option {name!r} must be {PRESENT!r}, {ALL!r} or a row number, got {value!r}")


@dataclass(frozen=True)
class LogOptions(Options):
    """Options of "sufficient" from logs (``models=None``).

    Parameters
    ----------
    rank : numbers a row that each unit sends, one number or {unit: number}. None: as many as stand out of the noise,
        and two to spare.
    same_row : whether the input of row t acts on row t already, True, False or {unit: True or False}. None: by the
        likelihood of held-out rows.
    edges : (cause, effect) of the only direct couplings that there can be between different units; None: of all.
    forbidden : (cause, effect) of direct couplings that there cannot be.
    regime : "present" (default): where the plant changed, the way of running since the last change; "all": one model of
        all rows; a row number: the way of running of that row.
    sensors : "treated" (default) or "as they are", or {unit: one of them}: whether units leave out readings of spiking,
        stuck, saturated and held sensors.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(400, rng=2), rank=2, forbidden=[("turbine", "boiler")])
    >>> found.graph().edge("turbine", "boiler").possible
    False
    """

    rank: int | Mapping[str, int] | None = option(None, for_each_unit(count))
    same_row: bool | Mapping[str, bool] | None = option(None, for_each_unit(truth))
    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    sensors: str | Mapping[str, str] | None = option(None, SENSORS)
    regime: str | int = option(PRESENT, _regime)

    elsewhere = dict.fromkeys(
        ("estimate", "tol", "evaluations", "uncertainty"),
        "goes with given models; a fit from logs estimates everything, always with intervals: leave it out",
    )


@dataclass(frozen=True)
class LogMemory:
    """What a unit keeps: how it reads its numbers, and what it was told of its part of the system."""

    reading: Reading
    model: LocalModel | None = None
    doubt: tuple[FloatArray, FloatArray] | None = None  # how uncertain the rows of the model's C are
    point: OperatingPoint | None = None


class LogRows(Release):
    name = "rows"
    from_logs = True
    options = LogOptions
    pairs = ((Request, Reduced),)
    told = Identified
    kept = (LogMemory, IdentifiedSystem)

    def check(self, task: Task) -> None:
        if task.privacy is not None:
            raise PrivacyError(
                f"{task.label}: without models, a unit finds level, scale and basis of its message on the very rows "
                "that are to be private, and no bound on what they reveal is known. Give models from elsewhere",
                code="private-logs",
            )
        super().check(task)

    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        own = at.own
        if isinstance(asked, Identified):
            if asked.input_level.shape != (own.u.shape[1],):
                raise ProtocolError(f"unit {at.unit!r}: the identified blocks are of other inputs")
            model, doubt = at.kept.reading.model(at.unit, asked), at.kept.reading.doubt(asked)
            point = OperatingPoint(asked.input_level, asked.same_row)
            return Reply(None, replace(at.kept, model=model, doubt=doubt, point=point))
        rank = by_unit("rank", self.chosen(at.task).rank, at.task.units).get(at.unit)
        reading = Reading.from_log(own.unit, own.y, own.u, rank)
        later = any(not each.switches for each in known_controllers(at.task, own))
        return Reply(reading.message(at.unit, own.y, own.u, later), LogMemory(reading))

    def kept_part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        memory = state.kept
        return UnitPart(
            replace(own.unit, states=memory.model.states), memory.model, KalmanEstimator(memory.model),
            output_level=frozen(np.array(memory.reading.level)), point=memory.point, C_doubt=memory.doubt,
        )  # fmt: skip

    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        return reading_caveats(own, state.kept.reading, read.y)

    def learn(self, at: ExchangeServer) -> Next:
        chosen = self.chosen(at.task)
        system = identify(
            at.replies(), by_unit("same_row", chosen.same_row, at.units), chosen.known_edges(at.units), chosen.regime,
            kept_as_they_are(chosen.sensors, at.units), at.progress,
        )  # fmt: skip
        numbers = system.network.number_slices
        told = own_blocks(system.record, system.found, system.observation, system.noise, numbers, *_inputs_of(system))
        return Next(system, told, system.found.converged)

    def learned(self, task: Task, state: ExchangeServer) -> Learned:
        system = state.kept
        couplings, status, caveats = learned_system(labels_of(task), system)
        found, points = system.found, operating_points(system.record, *_inputs_of(system))
        return Learned(found.A, found.B, found.Q, system.record.states, status, couplings, caveats, points)


def _inputs_of(system: IdentifiedSystem) -> tuple[Sequence[bool], FloatArray]:
    return system.same_row, system.input_level


def own_blocks(
    record: Layout, found: Estimated, observation: FloatArray, noise: FloatArray, numbers: Sequence[slice],
    same_row: Sequence[bool], level: FloatArray,
) -> tuple[Identified, ...]:  # fmt: skip
    """What each unit is told of a system that was found: its own part. ``numbers``: where its own stand."""
    whose = zip(record.names, same_row, record.state_slices, record.input_slices, numbers, strict=True)
    return tuple(
        Identified(
            name, at_once, found.A[own, own].copy(), found.B[own, inputs].copy(), found.Q[own, own].copy(),
            observation[sent, own].copy(), noise[sent, sent].copy(), level[inputs].copy(),
        )
        for name, at_once, own, inputs, sent in whose
    )  # fmt: skip


def operating_points(record: Layout, same_row: Sequence[bool], level: FloatArray) -> dict[str, OperatingPoint]:
    """Where the units' inputs rest, and which row they act on."""
    whose = zip(record.names, same_row, record.input_slices, strict=True)
    return {name: OperatingPoint(level[inputs], at_once) for name, at_once, inputs in whose}


def learned_system(labels: Labels, system: IdentifiedSystem) -> tuple[Couplings, Status, tuple[Caveat, ...]]:
    """What the server knows of a system from logs, how it was learned, and what answers must be read with."""
    everyone = range(len(system.record.names))
    doubts = diagnose(system.record, [everyone for _ in everyone], labels, LEAST_ROWS // 2)
    couplings = Couplings(system.found, system.record, None, doubts, network=system.network, regimes=system.regimes)
    status = Status(True, 1, 0.0, str(system.network))
    return couplings, status, (*(doubt.caveat for doubt in doubts), *system.notes)


def reading_caveats(own: UnitData, reading: Reading, y: FloatArray) -> tuple[Caveat, ...]:
    """What a reader should know of what a unit has made of its log, ``y`` as it is believed."""
    out: list[Caveat] = []
    unit, used = own.unit, reading.used

    def add(code: str, text: str) -> None:
        out.append(Caveat(code, unit.name, f"unit {unit.name!r}: {text}"))

    lost = int((~np.isfinite(y[:, used])).sum())
    if lost:
        part = 100 * lost / y[:, used].size
        add(
            "readings-missing", f"{lost} of its readings ({part:.2g} %) are missing; they are estimated from the "
            "others, and their uncertainty is part of the interval",
        )  # fmt: skip
    copies = [f"{unit.output_names[k]} of {unit.output_names[one]}" for one, k in copies_of(y)]
    if copies:
        add("copied-channels", f"exact copies of other channels tell nothing more: {', '.join(copies)}")
    silent = [unit.output_names[k] for k in np.flatnonzero(~used)]
    if silent:
        text = f"it never moves, or was read fewer than {LEAST_READINGS} times"
        add("silent-channels", f"nothing can be asked about {', '.join(silent)}: {text}")
    weak = [unit.output_names[k] for k in np.flatnonzero((1 - np.diag(reading.rest) < WEAK) & used)]
    if weak:
        add(
            "weak-channels",
            f"{', '.join(weak)} look like noise to it (less than {100 * WEAK:.0f} % of the "
            "movement is shared with earlier rows, its inputs or its other channels); effects on them may be missed: "
            f"rank={len(used)} would send every channel",
        )
    if reading.weights.shape[1] == int(used.sum()):
        add("exact-message", EXACT_NUMBERS)
    absurd = absurd_readings(unit, own.u, unit.input_names) + absurd_readings(unit, y, unit.output_names)
    return (*out, *absurd)
