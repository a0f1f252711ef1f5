"""Release of moments by units that have logs and no models: responses of their channels to all inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, frozen, slices
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import DataError, OptionError, PrivacyError, ProtocolError
from counterflow.exchange.compression import left_out_caveats, rows_and_channels, spans_of
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.exchange import ExchangeServer, ExchangeUnit, Reply
from counterflow.exchange.input_feedback import REACTING
from counterflow.exchange.log_rows import operating_points, own_blocks
from counterflow.exchange.moments import MomentMemory, MomentRelease, MomentUnitMemory, shown
from counterflow.exchange.options import Options, by_unit, count, for_each_unit, one_of, option, truth
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import clipping_caveats
from counterflow.exchange.rows import labels_of
from counterflow.exchange.sensors import SENSORS, Readings
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.identifiability import Doubt, diagnose
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.log_moment_design import LogDesign, LogFound
from counterflow.learning.log_moments import LogWindows
from counterflow.learning.optimiser import Estimated
from counterflow.learning.prior import DROWNED_CODE
from counterflow.learning.uncertainty import Uncertainty
from counterflow.plant import LocalModel, OperatingPoint, Unit
from counterflow.protocol import Identified, Message, Outline


def _memory(name: str, value: object) -> None:
    if value is not None:
        count(name, value, low=3)


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

    memory: int | None = option(None, _memory)
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
        if isinstance(at.memory, MomentUnitMemory) and at.memory.standard is not None:
            return at.memory.standard
        return ranges(at.own.unit, at.own.y, at.task.privacy is not None)

    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        if not isinstance(asked, Identified):
            return super().reply(at, asked)
        assert isinstance(at.memory, MomentUnitMemory)
        (_, half), chosen = self.standard(at), rows_and_channels(at.own.y)[1]
        if asked.observation.shape[0] != chosen.sum() or asked.input_level.shape != (at.own.u.shape[1],):
            raise ProtocolError(f"unit {at.unit!r}: the identified blocks are of other numbers or inputs")
        C = np.zeros((len(half), asked.observation.shape[1]))
        C[chosen] = half[chosen, None] * asked.observation
        R = np.diag(np.square(half))
        R[np.ix_(chosen, chosen)] = asked.noise * np.outer(half[chosen], half[chosen])
        model = LocalModel(A=asked.A, B=asked.B, C=C, Q=asked.Q, R=R)
        return Reply(None, replace(at.memory, model=model, point=OperatingPoint(asked.input_level, asked.same_row)))

    def kept_part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        assert isinstance(state.memory, MomentUnitMemory)
        model = state.memory.model
        assert model is not None
        return UnitPart(
            replace(own.unit, states=model.states), model, KalmanEstimator(model),
            output_level=frozen(self.standard(state)[0]), point=state.memory.point,
        )  # fmt: skip

    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        return left_out_caveats(own.unit, read.y)

    # ---- at the server

    def design(self, at: ExchangeServer, outlines: tuple[Outline, ...], before: Any) -> LogDesign:
        same_row = tuple(self.at_once(at.task, name) for name in at.units)
        earlier = before if isinstance(before, LogWindows) else None
        return LogDesign(outlines, self.chosen(at.task).memory, same_row, earlier)

    def closing(self, at: ExchangeServer, design: LogDesign, found: LogFound) -> tuple[Message, ...]:
        """Each unit's own blocks of the system."""
        record, made, _ = self._system(design, found)
        numbers = slices(design.outputs.values())
        return own_blocks(record, made, record.observation, record.noise, numbers, design.same_row, design.level)

    def _system(self, design: LogDesign, found: LogFound) -> tuple[SharedRecord, Estimated, Uncertainty]:
        record, A, B, spread = design.system(found)
        nothing = np.zeros_like(A)
        return record, Estimated(A, B, nothing, math.nan, 1, True, 0.0, parameters=spread.parameters), spread

    def learned(self, task: Task, state: ExchangeServer, earlier: tuple[Doubt, ...] | None = None) -> Learned:
        """``earlier``: doubts that windows before have left; those stay which this one leaves as well."""
        design: LogDesign = state.work or self.prepare(state)
        memory = state.memory
        assert isinstance(memory, MomentMemory)
        assert isinstance(memory.found, LogFound)
        centred = memory.centred if isinstance(memory.centred, LogFound) else None
        found = design.knowing_clips(memory.found, centred)
        record, made, spread = self._system(design, found)
        there = [np.where(o.there[:, None], np.zeros(len(o.observation)), np.nan) for o in design.outlines]
        measured = replace(record, values=np.hstack(there).reshape(record.values.shape))
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
        numbers = sum(basis.shape[1] * r for basis, r in zip(design.bases, design.outputs.values(), strict=True))
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
