"""Releases of moments: projections of measurements on what all inputs did, and least squares of them.

Units with models bring these, and couplings are found; of units with logs, responses of their channels to all inputs.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, frozen, slices
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import DataError, OptionError, PrivacyError, ProtocolError
from counterflow.exchange.compression import left_out_caveats, rows_and_channels, spans_of, sufficient_message
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
from counterflow.exchange.options import Options, by_unit, count, for_each_unit, one_of, option, truth
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import clipping_caveats
from counterflow.exchange.projections import SHARES, most_numbers, projected, sigma_of
from counterflow.exchange.rows import labels_of, operating_points, own_blocks
from counterflow.exchange.sensors import SENSORS, Readings
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.identifiability import Doubt, diagnose
from counterflow.learning.log_moments import LogDesign, LogFound, LogWindows
from counterflow.learning.moments import (
    Design,
    MomentEstimate,
    zeros_where_read,
)
from counterflow.learning.optimiser import Estimated, Quadratic
from counterflow.learning.uncertainty import DROWNED_CODE, Uncertainty, faint_among
from counterflow.plant import LocalModel, OperatingPoint, Unit
from counterflow.privacy import Privacy
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Basis, Identified, Message, Moments, Outline, Request, Sufficient

SEEN = (
    "each unit was sent signals that are made of all units' inputs, by which it may learn how others were run, and "
    "what the rounds before foresaw of its own numbers; of others' measurements it saw nothing"
)


@dataclass(frozen=True)
class MomentOptions(Options):
    """Options of "moments" with models given, and of private fits by "sufficient" that release moments.

    Parameters
    ----------
    edges, forbidden : (cause, effect) of direct couplings that there can be, or cannot be; see ``LikelihoodOptions``.
    sensors : "treated" (default) or "as they are", or {unit: one of them}; private fits take readings as they are.
    reacting : of private fits: a unit whose inputs react to its own measurements, by its own check, is "refused"
        (default), because its inputs carry its measurements to everybody; "told": it takes part, and keeps a caveat.
    """

    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    sensors: str | Mapping[str, str] | None = option(None, SENSORS)
    reacting: str = option("refused", one_of(*REACTING))


@dataclass(frozen=True)
class MomentMemory:
    """What the server keeps: all that was said, and what it has found so far.

    ``centred``: what rows of the last round were clipped around. ``before``: of a later window, what earlier ones told.
    """

    outlines: MappingProxyType[str, Outline] = field(default_factory=lambda: MappingProxyType({}))
    moments: MappingProxyType[str, Moments] = field(default_factory=lambda: MappingProxyType({}))
    found: MomentEstimate | LogFound | None = None
    centred: MomentEstimate | LogFound | None = None
    before: Quadratic | LogWindows | None = None


@dataclass(frozen=True)
class MomentUnitMemory:
    """What a unit keeps: the signals Φ (T+1, K) of the last round; without a model, what it was told of the system.

    ``standard``: of a later window of logs, middle and half width of the channels as they were in the first.
    """

    basis: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    standard: tuple[FloatArray, FloatArray] | None = None
    model: LocalModel | None = None
    point: OperatingPoint | None = None


class MomentRelease(Release):
    """What moments with models and from logs share: the rounds, the projections, their noise and their price."""

    name = "moments"
    pairs = ((Request, Outline), (Basis, Moments))
    mechanism = "analytic Gaussian mechanism on projections of clipped rows"
    unprotected = (
        f"{UNPROTECTED}, and other units are sent signals that are made of all units' inputs", ONE_MEASUREMENT, UNSEEN,
    )  # fmt: skip
    seen = SEEN
    kept = (MomentMemory, MomentUnitMemory, MomentEstimate, LogFound, Quadratic, LogWindows)

    def turns(self, privacy: Privacy | None) -> int:
        return 1 if privacy is None else len(SHARES)

    # ---- at a unit

    @abstractmethod
    def outline(self, at: ExchangeUnit) -> Outline:
        """All but the unit's measurements."""

    @abstractmethod
    def numbers(self, at: ExchangeUnit) -> tuple[FloatArray, NDArray[np.bool_]]:
        """s (T+1, r), and which rows are whole; what s is in others does not matter."""

    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        memory = at.kept or MomentUnitMemory()
        if not isinstance(asked, Basis):
            return Reply(self.outline(at), memory)
        basis = asked.functions if len(asked.functions) else memory.basis
        digest = hashlib.sha256(at.own.u.tobytes()).hexdigest()
        message, made = projected(at.unit, *self.numbers(at), basis, asked, at.task.privacy, digest)
        return Reply(message, replace(memory, basis=basis), made)

    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        return left_out_caveats(own.unit, read.y)

    # ---- at the server

    @abstractmethod
    def design(self, at: ExchangeServer, outlines: tuple[Outline, ...], before: Any) -> Any:
        """What is asked of units with these outlines."""

    def closing(self, at: ExchangeServer, design: Any, found: Any) -> tuple[Message, ...]:
        """What units are told of what was found."""
        return ()

    def prepare(self, at: ExchangeServer) -> Any:
        if at.kept is None or not at.kept.outlines:
            return None
        return self.design(at, tuple(at.kept.outlines[name] for name in at.units), at.kept.before)

    def check_reply(self, at: ExchangeServer, message: Message) -> None:
        if not isinstance(message, Moments):
            return
        place = at.work.layout.names.index(message.unit)
        wanted = (at.work.bases[place].shape[1], len(at.work.outlines[place].observation))
        if message.values.shape != wanted:
            raise ProtocolError(
                f"server: unit {message.unit!r} sent moments of shape {message.values.shape}, asked were {wanted}"
            )

    def learn(self, at: ExchangeServer) -> Next:
        memory = at.kept or MomentMemory()
        private, said = at.task.privacy is not None, cast(Any, at.said)
        if not at.turn:
            memory = replace(memory, outlines=said)
            design = self.prepare(replace(at, memory=memory))
            if design.asked:
                return Next(memory, asking(design, memory.found, 0), work=design)
            found = design.estimate({}, private, memory.before)
        else:
            design = at.work
            found = design.estimate(said, private, memory.before)
            if at.progress is not None:
                at.progress(1.0, f"moments: {found.steps} steps")
            if at.round + 1 < self.turns(at.task.privacy):
                return Next(replace(memory, found=found), asking(design, found, at.round + 1), work=design)
            memory = replace(memory, moments=said, centred=memory.found)
        return Next(replace(memory, found=found), self.closing(at, design, found), found.converged, design)

    # ---- the price

    def charges(self, task: Task, model: LocalModel | None, rows: int) -> list[Charge]:
        assert task.privacy is not None
        whole = task.privacy.cost(rows, most_numbers(rows))
        return [
            Charge(
                replace(whole, row_loss=share * whole.row_loss), f"moments of {rows} rows, round {k} of {len(SHARES)}"
            )
            for k, share in enumerate(SHARES, start=1)
        ]

    def sigma_needed(self, privacy: Privacy, rows: int, message: Any, made: AddedNoise) -> float | None:
        number = message.round
        told = message.clipped == made.may_clip  # and not what it really is
        if not (0 <= number < len(SHARES) and made.round == number and told and made.reach > 0):
            return None
        return sigma_of(privacy, rows, number, made.clip, made.reach, made.found_clip)


class MomentsOfModels(MomentRelease):
    """Of units with models: least squares that know the noise."""

    options = MomentOptions
    borrowed = frozenset({"estimate", "tol", "evaluations", "uncertainty"})
    may_skip = True

    def check(self, task: Task) -> None:
        if task.privacy is not None and task.privacy.release == "rows":
            raise OptionError(f"{task.label}: method 'moments' releases moments; release='rows' goes with 'sufficient'")
        super().check(task)

    def outline(self, at: ExchangeUnit) -> Outline:
        message = self._whole(at)
        blocks = message.A, message.B, message.Q, message.observation
        return Outline(at.unit, *blocks, at.own.u, spans_of(message.labels == 0))

    def numbers(self, at: ExchangeUnit) -> tuple[FloatArray, NDArray[np.bool_]]:
        message = self._whole(at)
        return message.numbers, message.labels == 0

    def _whole(self, at: ExchangeUnit) -> Sufficient:
        assert at.own.model is not None
        return sufficient_message(at.unit, at.own.model, at.own.y, at.own.u, whole=True)

    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        privacy = at.task.privacy
        if isinstance(asked, Basis) and privacy is not None and privacy.clip is not None:
            asked = replace(asked, shape=np.eye(len(asked.shape)))  # the clip is of the numbers themselves
        return super().reply(at, asked)

    def design(self, at: ExchangeServer, outlines: tuple[Outline, ...], before: Any) -> Design:
        return Design(outlines, self.chosen(at.task).known_edges(at.units))

    def learned(self, task: Task, state: ExchangeServer) -> Learned:
        design, found = state.work or self.prepare(state), state.kept.found
        if not math.isfinite(found.misfit) or not np.isfinite(found.A).all() or not np.isfinite(found.B).all():
            raise DataError(
                f"{task.label}: the numbers are beyond double precision; look for absurd values in the recording"
            )
        private = task.privacy is not None
        doubts = diagnose(design.measured, design.parameters.causes, labels_of(task))
        covariance, caveats = doubted_covariance(design, state.kept)
        spread = Uncertainty(design.parameters, covariance).with_doubts(doubts)
        made = Estimated(
            found.A, found.B, design.local[2], -0.5 * found.misfit, found.steps, found.converged, found.left,
            found.at_bound, parameters=design.parameters,
        )  # fmt: skip
        couplings = Couplings(made, design.shared, spread, doubts, of_moments=True)
        faint = faint_among(design.shared, design.parameters, found.bare, len(design.u), power=0.5) if private else ()
        notes = (*(doubt.caveat for doubt in doubts), *(each.caveat for each in faint), *caveats, shown(private))
        Q, states = design.local[2], design.layout.states
        return Learned(found.A, found.B, Q, states, _status(found, design), couplings, notes)


def asking(design: Any, found: Any, number: int) -> tuple[Message, ...]:
    """What units are asked to project on in a round, and what is foreseen of their numbers by what was ``found``."""
    asked = []
    for name, basis, at in zip(design.layout.names, design.bases, design.foreseen(found), strict=True):
        functions = np.zeros((0, basis.shape[1])) if number else basis  # later: those of the round before
        asked.append(Basis(name, number, float(at.least), functions, np.ascontiguousarray(at.centre), at.W))
    return tuple(each for each in asked if each.unit in design.asked)


def shown(private: bool) -> Caveat:
    """What was released, and what each unit saw of the others."""
    noise = "with noise, " if private else ""
    text = f"released were moments: {noise}projections of each unit's measurements on what all inputs did; {SEEN}"
    return Caveat("moments", "", text)


def doubted_covariance(design: Design, memory: MomentMemory) -> tuple[FloatArray, tuple[Caveat, ...]]:
    """Covariance of the couplings that knows of misfit and clipping; and what to say of these."""
    found, clipped = cast(MomentEstimate, memory.found), {name: m.clipped for name, m in memory.moments.items()}
    caveats = []
    if found.unexplained > 1:
        text = (
            f"the models do not explain the moments: what is left is {math.sqrt(found.unexplained):.2g} times as large "
            "as their noise; intervals were widened by that. Check the local models, and look for inputs that nobody "
            "records"
        )
        caveats.append(Caveat("moments-misfit", "", text))
    for name in design.layout.names:
        caveats += clipping_caveats(name, clipped.get(name, 0.0), widened=True)
    return design.doubted_covariance(found, cast(MomentEstimate, memory.centred), clipped), tuple(caveats)


def _status(found: MomentEstimate, design: Design) -> Status:
    numbers = sum(basis.shape[1] * len(o.observation) for basis, o in zip(design.bases, design.outlines, strict=True))
    text = (
        f"converged in {found.steps} steps on {numbers} moments of {len(design.u)} rows"
        if found.converged
        else f"not converged after {found.steps} steps on {numbers} moments: a step is still "
        f"{math.sqrt(found.left):.1g} standard errors long"
    )
    return Status(found.converged, found.steps, math.sqrt(found.left), text)


# ---- of logs


@dataclass(frozen=True)
class MomentLogOptions(Options):
    """Options of "moments" from logs, and of private fits from logs.

    Parameters
    ----------
    memory : rows that impulse responses are followed; it must be chosen without looking at measurements. None: a
        twentieth of the record, from 10 to 100.
    same_row : whether an input acts on the row that it stands in, or {unit: whether}.
    sensors, reacting : see ``MomentOptions``.
    """

    memory: int | None = option(None, lambda name, value: None if value is None else count(name, value, low=3))
    same_row: bool | Mapping[str, bool] | None = option(None, for_each_unit(truth))
    sensors: str | Mapping[str, str] | None = option(None, SENSORS)
    reacting: str = option("refused", one_of(*REACTING))

    elsewhere = dict.fromkeys(
        ("edges", "forbidden"),
        "is of direct couplings, and moments of logs tell what inputs do in all, by whatever way; leave it out, or "
        "give models",
    )


class MomentsOfLogs(MomentRelease):
    from_logs = True
    options = MomentLogOptions
    borrowed = frozenset({"rank", "regime"})
    told = Identified

    def check(self, task: Task) -> None:
        if task.privacy is not None and task.privacy.release == "rows":
            raise PrivacyError(
                f"{task.label}: rows of a unit without a model are made with level, scale and basis that it finds on "
                "the very rows that are to be private. release='moments' needs none of these; or give models",
                code="private-logs",
            )
        if task.privacy is not None and task.privacy.models != "excluded":
            raise OptionError(f"{task.label}: 'models' says what models have cost, and there are none; leave it out")
        super().check(task)

    def at_once(self, task: Task, unit: str) -> bool:
        return bool(by_unit("same_row", self.chosen(task).same_row, task.units).get(unit))

    # ---- at a unit

    def ready(self, task: Task, own: UnitData) -> None:
        ranges(own.unit, own.y, task.privacy is not None)  # refuses channels without limits

    def outline(self, at: ExchangeUnit) -> Outline:
        rows, chosen = rows_and_channels(at.own.y)
        none, inputs = np.zeros((0, 0)), at.own.u.shape[1]
        observation = np.zeros((int(chosen.sum()), 0))
        return Outline(at.unit, none, np.zeros((0, inputs)), none, observation, at.own.u, spans_of(rows))

    def numbers(self, at: ExchangeUnit) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Channels by their ranges."""
        middle, half = self.standard(at)
        rows, chosen = rows_and_channels(at.own.y)
        with np.errstate(over="ignore"):
            return (at.own.y[:, chosen] - middle[chosen]) / half[chosen], rows

    def standard(self, at: ExchangeUnit) -> tuple[FloatArray, FloatArray]:
        """Middle and half width (D_m,) of the channels."""
        known = None if at.kept is None else cast(MomentUnitMemory, at.kept).standard
        return known or ranges(at.own.unit, at.own.y, at.task.privacy is not None)

    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        if not isinstance(asked, Identified):
            return super().reply(at, asked)
        (_, half), chosen = self.standard(at), rows_and_channels(at.own.y)[1]
        if asked.observation.shape[0] != chosen.sum() or asked.input_level.shape != (at.own.u.shape[1],):
            raise ProtocolError(f"unit {at.unit!r}: the identified blocks are of other numbers or inputs")
        C = np.zeros((len(half), asked.observation.shape[1]))
        C[chosen] = half[chosen, None] * asked.observation
        R = np.diag(np.square(half))
        R[np.ix_(chosen, chosen)] = asked.noise * np.outer(half[chosen], half[chosen])
        model = LocalModel(A=asked.A, B=asked.B, C=C, Q=asked.Q, R=R)
        return Reply(None, replace(at.kept, model=model, point=OperatingPoint(asked.input_level, asked.same_row)))

    def kept_part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        model = state.kept.model
        return UnitPart(
            replace(own.unit, states=model.states), model, KalmanEstimator(model),
            output_level=frozen(self.standard(state)[0]), point=state.kept.point,
        )  # fmt: skip

    # ---- at the server

    def design(self, at: ExchangeServer, outlines: tuple[Outline, ...], before: Any) -> LogDesign:
        same_row = tuple(self.at_once(at.task, name) for name in at.units)
        return LogDesign(outlines, self.chosen(at.task).memory, same_row, before)

    def closing(self, at: ExchangeServer, design: LogDesign, found: LogFound) -> tuple[Message, ...]:
        """Each unit's own blocks of the system."""
        record, made, _ = design.system(found)
        numbers = slices(design.outputs)
        return own_blocks(record, made, record.observation, record.noise, numbers, design.same_row, design.level)

    def learned(self, task: Task, state: ExchangeServer, earlier: tuple[Doubt, ...] | None = None) -> Learned:
        """``earlier``: doubts that windows before have left; those stay which this one leaves as well."""
        design: LogDesign = state.work or self.prepare(state)
        found = design.knowing_clips(state.kept.found, state.kept.centred)
        record, made, spread = design.system(found)
        measured = replace(record, values=zeros_where_read(design.outlines))
        everyone = range(len(record.names))
        doubts = diagnose(measured, [everyone for _ in everyone], labels_of(task))
        if earlier is not None:
            doubts = tuple(old for old in earlier if any(old.meets(new) for new in doubts))
        windows = LogWindows(design.bank, design.level, design.scale, found.windows)
        couplings = Couplings(made, record, spread.with_doubts(doubts), doubts, of_moments=True, windows=windows)
        text = (
            f"responses were followed for {design.bank.memory} rows by {design.bank.size} functions of each input; "
            "what inputs do later than that is not in the answers. The graph is of what inputs do in all, not of "
            "direct couplings alone"
        )
        notes = [*(doubt.caveat for doubt in doubts), Caveat("responses-followed", "", text)]
        if task.privacy is not None:
            notes += [drowned_caveat(effect, cause) for effect, cause in design.drowned(found)]
        for name, each, told in zip(record.names, found.estimates, found.windows, strict=True):
            clipped = sum(share * window.clipped for share, window in zip(each.shares, told, strict=True))
            notes += clipping_caveats(name, clipped, widened=True)
        numbers = sum(basis.shape[1] * r for basis, r in zip(design.bases, design.outputs, strict=True))
        status = Status(True, 1, 0.0, f"least squares on {numbers} moments of {len(design.inputs)} rows")
        notes.append(shown(task.privacy is not None))
        points = operating_points(record, design.same_row, design.level)
        return Learned(made.A, made.B, made.Q, record.states, status, couplings, tuple(notes), points)


def ranges(unit: Unit, y: FloatArray, private: bool) -> tuple[FloatArray, FloatArray]:
    """Middle and half width (D_m,) of each channel: of its limits; of its readings, where nothing is private."""
    middle, half = np.zeros(y.shape[1]), np.ones(y.shape[1])
    for k, channel in enumerate(unit.outputs):
        limits = channel.limits
        if limits is not None and np.isfinite(limits).all():
            middle[k], half[k] = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2
        elif private:
            raise PrivacyError(
                f"unit {unit.name!r}: channel {channel.name!r} has no finite limits, and a private fit from logs "
                "is standardised by the instruments' ranges, not by readings: give counterflow.Channel("
                f"{channel.name!r}, limits=(low, high)) of the instrument",
                code="limits-needed",
            )
        else:
            known = y[np.isfinite(y[:, k]), k]
            if len(known) < 2:
                raise DataError(f"unit {unit.name!r}: channel {channel.name!r} was hardly ever read: leave it out")
            middle[k], half[k] = known.mean(), max(float(known.std()), 1e-300)
    return middle, half


def drowned_caveat(effect: str, cause: str) -> Caveat:
    """Of responses that the noise of privacy leaves open."""
    text = (
        f"{cause} -> {effect}: noise drowns what inputs of {cause} do here; what is said of it may be off by as much "
        "as it says, and where nothing is found only what lies beyond the interval is ruled out. What helps: more rows "
        "(the noise falls as one over them), a larger epsilon, or a shorter memory; counterflow privacy plan --logs "
        "foretells it"
    )
    return Caveat(DROWNED_CODE, scope_of((cause, effect)), text)
