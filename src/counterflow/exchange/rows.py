"""Releases of rows. Units with models send one sufficient message each, the server maximises their likelihood.

Units that have logs and no models send a few numbers a row, and the system is found at the server; never in private.

Under differential privacy a message is clipped and noised, and still a sufficient message. s[t] depends on y[t] alone,
so one measurement moves one row of it. Each row is brought into an ellipsoid |W (s[t] - centre[t])| <= c; replacing one
row then moves the release by at most 2c, and w rows by 2c√w, in coordinates W s. Gaussian noise of standard deviation σ
is added there. For the server that is more measurement noise, of a covariance that is known: s̃ = C̃ h + N(0, I + σ²
W⁻¹W⁻ᵀ). The unit whitens by the root of it, so what leaves is a message s' = C' h + N(0, I) like any other, only with a
smaller C', and all that the server computes of it, intervals included, knows of the noise.

Centre and W come from the unit's own model and inputs, or are 0 and the identity if ``clip`` is given. How far rows
then reach is not known beforehand; the unit counts the rows beyond a few radii, with noise of its own, at a small share
of the budget.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, PrivacyError, ProtocolError
from counterflow.exchange.compression import absurd_readings, exact_caveats, left_out_caveats, sufficient_message
from counterflow.exchange.controllers import known_controllers
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.exchange import (
    ONE_MEASUREMENT,
    UNPROTECTED,
    ExchangeServer,
    ExchangeUnit,
    Next,
    Release,
    Reply,
)
from counterflow.exchange.input_feedback import REACTING, UNSEEN
from counterflow.exchange.method import Charge
from counterflow.exchange.options import Options, by_unit, count, for_each_unit, number, one_of, option, truth
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import clipping_caveats
from counterflow.exchange.reading import LEAST_READINGS, Reading, copies_of
from counterflow.exchange.sensors import SENSORS, Readings, kept_as_they_are
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.block_moments import LEAST_ROWS
from counterflow.learning.clipping import nothing, own_response
from counterflow.learning.identifiability import Labels, diagnose
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, maximum_likelihood
from counterflow.learning.parameters import Estimate
from counterflow.learning.system import ALL, PRESENT, IdentifiedSystem, identify
from counterflow.learning.uncertainty import affordable, faint_couplings, uncertainty, weak_prior
from counterflow.plant import LocalModel, OperatingPoint
from counterflow.privacy import Privacy, gaussian_release
from counterflow.privacy.clipping import STEPS, SURELY, AddedNoise, clipped_rows, private_radius
from counterflow.protocol import Identified, Message, Reduced, Request, Sufficient

SHARE = 0.05  # of μ²: what finding the clip costs, or counting the rows beyond a given one
OUTSIDE = 1e-3  # share of rows that may be clipped, if noise lets it be seen
NEARLY = 0.05  # standard errors that a fit may still be away from its maximum and give intervals
WEAK = 0.1  # share of a channel's variance that its unit's numbers carry, below which answers about it are doubtful
EXACT_NUMBERS = (
    "it has as many independent channels as compressed values: the server can compute its measurements but for their "
    "levels and scales"
)


@dataclass(frozen=True)
class LikelihoodOptions(Options):
    """Options of "sufficient" with models given, and of "centralized".

    Parameters
    ----------
    estimate : "couplings" (off-diagonal blocks; the units' own blocks and process noise are taken as given), "blocks"
        (all of A and B) or "all" (process noise too).
    tol : stop when the gradient could move no estimate by more than about this many standard errors.
    evaluations : at most so many passes over the data; it stops earlier where nothing can be gained any more.
    uncertainty : whether to compute standard errors; None: where that takes seconds, not minutes.
    edges : (cause, effect) of the only direct couplings that there can be between different units; None: of all. What
        is not among them is zero, not estimated. An empty list: no unit acts on another.
    forbidden : (cause, effect) of direct couplings that there cannot be.
    sensors : "treated" (default) or "as they are", or {unit: one of them}: whether units leave out readings of spiking,
        stuck, saturated and held sensors. Private fits take them as they are.
    reacting : of private fits: a unit whose inputs react to measurements, by its own check or by declared loops, is
        "refused" (default), because its inputs carry measurements to everybody; "told": it takes part, and keeps a
        caveat.

    Examples
    --------
    >>> chosen = LikelihoodOptions.parse("sufficient", {"edges": [["boiler", "turbine"]]})
    >>> print(chosen.known_edges(("boiler", "turbine")))
    only boiler -> turbine
    """

    estimate: str = option("couplings", one_of("couplings", "blocks", "all"))
    tol: float = option(1e-5, lambda name, value: number(name, value, low=0.0))
    evaluations: int = option(2000, count)
    uncertainty: bool | None = option(None, truth)
    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    sensors: str | Mapping[str, str] | None = option(None, SENSORS)
    reacting: str = option("refused", one_of(*REACTING))

    elsewhere = dict.fromkeys(("rank", "same_row"), "is for fits from logs; models are given here, which settle it")


@dataclass(frozen=True)
class Maximum:
    """What the server keeps: what the units have sent, side by side, and the estimate."""

    shared: SharedRecord
    found: Estimated


class Rows(Release):
    name = "rows"
    options = LikelihoodOptions
    pairs = ((Request, Sufficient),)
    kept = (Maximum,)
    mechanism = "analytic Gaussian mechanism on clipped sufficient messages"
    unprotected = (UNPROTECTED, ONE_MEASUREMENT, UNSEEN)

    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        model, privacy = at.own.model, at.task.privacy
        assert model is not None
        message = sufficient_message(at.unit, model, at.own.y, at.own.u, whole=privacy is not None)
        if privacy is None:
            return Reply(message)
        message, made = privatised(message, model, privacy)
        return Reply(message, made=made)

    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        if state.release is not None:
            share = state.release.may_clip
            return left_out_caveats(own.unit, read.y) + clipping_caveats(own.unit.name, share, widened=False)
        absurd = absurd_readings(own.unit, read.y, own.unit.output_names)
        return exact_caveats(own.unit, read.y, part.model) + absurd

    def learn(self, at: ExchangeServer) -> Next:
        chosen, shared = self.chosen(at.task), SharedRecord.from_messages(at.replies())
        estimate, known = cast(Estimate, chosen.estimate), chosen.known_edges(at.units)
        found = maximum_likelihood(
            shared, estimate, tolerance=chosen.tol, evaluations=chosen.evaluations, known=known, progress=at.progress,
            penalty=None if at.task.privacy is None else weak_prior(shared, estimate, known),
        )  # fmt: skip
        return Next(Maximum(shared, found), (), found.converged)

    def learned(self, task: Task, state: ExchangeServer) -> Learned:
        return learned_maximum(task, state.kept.shared, state.kept.found)

    def charges(self, task: Task, model: LocalModel | None, rows: int) -> list[Charge]:
        assert task.privacy is not None
        assert model is not None
        return [Charge(task.privacy.cost(rows, most_numbers(rows, model.states)), f"sufficient message of {rows} rows")]

    def sigma_needed(self, privacy: Privacy, rows: int, message: Any, made: AddedNoise) -> float | None:
        if message.ranks[1:].any():  # rows that are there see the states alike
            return None
        mu = math.sqrt(1 - SHARE) / privacy.multiplier(most_numbers(rows, message.observation.shape[1]))
        return 2 * made.clip * math.sqrt(privacy.window) / mu


def privatised(message: Sufficient, model: LocalModel, privacy: Privacy) -> tuple[Sufficient, AddedNoise]:
    """The message with every row clipped and noised, once and for all: send it again, but do not make it again."""
    if len(message.ranks) > 2 or message.ranks[1:].any():
        raise PrivacyError(f"unit {message.unit!r}: a private message is made of whole rows only")
    observation, there = message.observation, message.labels == 0
    rows, numbers = int(there.sum()), len(observation)
    mu = 1 / privacy.multiplier(most_numbers(len(message.inputs), observation.shape[1]))
    given = privacy.clip is not None
    at = nothing(len(message.inputs), numbers)
    if not given:  # around the response of the unit's own model to its own inputs
        at = own_response(model.A, model.B, model.Q, observation, message.inputs)
    centre = at.centre[there]
    with np.errstate(all="ignore"):
        moved = (message.numbers[there] - centre) @ at.W.T
    # a seeded source gives each release its own noise: by whose it is, of which rows and with which inputs
    names = message.unit, str(privacy.start), hashlib.sha256(message.inputs.tobytes()).hexdigest()
    if privacy.clip is not None:
        radius = privacy.clip
        beyond, doubt = np.array([float(clipped_rows(moved, radius)[1].sum())]), privacy.window / math.sqrt(SHARE) / mu
        told = gaussian_release(beyond, doubt, privacy.source, *names, "rows clipped")
        may_clip = float(np.clip((told[0] + SURELY * doubt) / max(rows, 1), 0.0, 1.0))
    else:
        radius = private_radius(moved, math.sqrt(SHARE) * mu, privacy, *names, outside=OUTSIDE)
        may_clip = min(1.0, OUTSIDE + 3 * math.sqrt(STEPS / SHARE) * privacy.window / mu / max(rows, 1))
    mu *= math.sqrt(1 - SHARE)
    inside, outside = clipped_rows(moved, radius)
    reach = math.sqrt(privacy.window)
    share = float(outside.mean()) if len(outside) else 0.0
    made = AddedNoise(2 * radius * reach / mu, radius, not given, share, may_clip, reach)
    noised = gaussian_release(inside, made.sigma, privacy.source, *names, "sufficient message")
    back = np.linalg.inv(at.W)
    root = np.linalg.cholesky(np.eye(numbers) + made.variance * back @ back.T)
    values = np.linalg.solve(root, (noised @ back.T + centre).T).T
    sent = replace(
        message, values=np.ascontiguousarray(values).ravel(),
        observations=np.ascontiguousarray(np.linalg.solve(root, observation)),
    )  # fmt: skip
    return sent, made


def most_numbers(rows: int, states: int) -> int:
    """How many numbers a release of so many rows and states could hold, counts included."""
    return rows * states + STEPS


# ---- what the server knows of an estimate besides its numbers


def learned_maximum(task: Task, shared: SharedRecord, found: Estimated) -> Learned:
    """Of a maximum-likelihood estimate: doubts, uncertainty, and what to say of them."""
    chosen, private = LikelihoodOptions.parse(task.method, task.options), task.privacy is not None
    parameters = found.parameters
    assert parameters is not None
    doubts = diagnose(shared, parameters.causes, labels_of(task))
    wanted = affordable(shared, parameters) if chosen.uncertainty is None else chosen.uncertainty
    spread = None
    if wanted and (found.converged or found.decrement <= NEARLY**2):
        prior = weak_prior(shared, cast(Estimate, chosen.estimate), parameters.known) if private else None
        spread = uncertainty(shared, found, prior).with_doubts(doubts)
    faint = faint_couplings(shared, found) if private and wanted else ()
    caveats: list[Caveat] = [*(doubt.caveat for doubt in doubts), *(each.caveat for each in faint)]
    if found.at_bound:
        text = (
            "the estimate rests on the stability bound: the data ask for a system that is not stable. Answers are not "
            "to be trusted; check the local models, or look for a drift or an integrator that is missing in them"
        )
        caveats.append(Caveat("stability-bound", "", text))
    couplings = Couplings(found, shared, spread, doubts)
    return Learned(found.A, found.B, found.Q, shared.states, status_of(found, chosen), couplings, tuple(caveats))


def labels_of(task: Task) -> Labels:
    """Names of the units' inputs."""
    return {name: task.input_names(name) for name in task.units}


def status_of(found: Estimated, chosen: LikelihoodOptions) -> Status:
    """How a maximum-likelihood fit ended."""
    length = math.sqrt(found.decrement)
    if found.converged:
        text = f"converged in {found.evaluations} passes; log-likelihood {found.log_likelihood:.6g}"
    else:
        more = f"give more, evaluations={4 * chosen.evaluations}"
        text = (
            f"not converged after {found.evaluations} passes: the gradient could still move the estimates by about "
            f"{length:.1g} standard errors (asked: {chosen.tol:g}); "
            + (more if found.evaluations >= chosen.evaluations else "rounding allows no more")
        )
    return Status(found.converged, found.evaluations, length, text)


# ---- from logs


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
