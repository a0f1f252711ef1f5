"""Moments of logs without models: how the two sides are set up, and what is left when the exchange is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import OptionError, PrivacyError
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.input_feedback import reaction_of
from counterflow.exchange.method import Progress, ServerState, UnitState
from counterflow.exchange.moments.log_unit import MomentLogUnit
from counterflow.exchange.moments.method import MomentExchange, moments_report, shown
from counterflow.exchange.moments.options import MomentLogOptions
from counterflow.exchange.moments.private import SHARES
from counterflow.exchange.moments.server import MomentConfig, MomentLogServer
from counterflow.exchange.options import by_unit
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import PrivacyReport, Spending, clipping_caveats
from counterflow.exchange.sensors import readings
from counterflow.exchange.sufficient.method import labels_of, left_out_caveats
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.identifiability import Doubt, diagnose
from counterflow.learning.log_moments import LogWindows
from counterflow.learning.optimiser import Estimated
from counterflow.learning.prior import DROWNED_CODE
from counterflow.plant import OperatingPoint
from counterflow.protocol import Outline


class MomentLogMethod(MomentExchange):
    """The same of units that have logs and no models: responses of their channels to all inputs."""

    hears = frozenset({"Request", "Basis", "Identified", "Finished"})
    options = MomentLogOptions

    def check(self, task: Task) -> None:
        log_options_of(task)
        self.check_privacy(task)
        if task.privacy is not None and task.privacy.release == "rows":
            raise PrivacyError(
                f"{task.label}: rows of a unit without a model are made with level, scale and basis that it finds on "
                "the very rows that are to be private. release='moments' needs none of these; or give models",
                code="private-logs",
            )
        if task.privacy is not None and task.privacy.models != "excluded":
            raise OptionError(f"{task.label}: 'models' says what models have cost, and there are none; leave it out")

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        rounds, chosen = 1 if task.privacy is None else len(SHARES), log_options_of(task)
        early = by_unit("same_row", chosen.same_row, task.units)
        same_row = tuple(bool(early.get(name)) for name in task.units)
        return MomentLogServer(MomentConfig(task.units, rounds, None, chosen.memory, same_row), progress=progress)

    def unit(self, task: Task, own: UnitData) -> UnitState:
        if own.estimator is not None:
            raise OptionError(f"{task.label}: estimators go with given models; a fit from logs has none")
        self._reaction(task, own)
        made = MomentLogUnit(own.unit, readings(task, own).y, own.u, task.privacy)
        _ = made.ranges  # refuses channels without limits before anything leaves
        return made

    def _reaction(self, task: Task, own: UnitData, again: bool = False) -> tuple[Caveat, ...]:
        chosen = log_options_of(task)
        at_once = bool(by_unit("same_row", chosen.same_row, task.units).get(own.unit.name))
        return reaction_of(task, own, chosen.reacting, at_once, again)

    def learned(self, task: Task, state: MomentLogServer, earlier: tuple[Doubt, ...] | None = None) -> Learned:
        """``earlier``: doubts that windows before have left; those stay which this one leaves as well."""
        assert state.found is not None
        design = state.designed
        found = design.knowing_clips(state.found, state.centred)
        record, A, B, spread = design.system(found)
        measured = replace(record, values=_there(design.outlines, record.values))
        everyone = range(len(record.names))
        doubts = diagnose(measured, [everyone for _ in everyone], labels_of(task))
        if earlier is not None:
            doubts = tuple(old for old in earlier if any(old.meets(new) for new in doubts))
        made = Estimated(A, B, np.zeros_like(A), math.nan, 1, True, 0.0, parameters=spread.parameters)
        windows = LogWindows(design.bank, design.level, design.scale, found.windows)
        couplings = Couplings(made, record, spread.with_doubts(doubts), doubts, of_moments=True, windows=windows)
        text = (
            f"responses were followed for {design.bank.memory} rows by {design.bank.size} functions of each input; "
            "what inputs do later than that is not in the answers. The graph is of what inputs do in all, not of "
            "direct couplings alone"
        )
        notes = (
            *(doubt.caveat for doubt in doubts),
            Caveat("responses-followed", "", text),
            *(drowned_caveat(effect, cause) for effect, cause in design.drowned(found) if task.privacy is not None),
            *(
                caveat
                for name, each, windows in zip(record.names, found.estimates, found.windows, strict=True)
                for caveat in clipping_caveats(
                    name, sum(share * w.clipped for share, w in zip(each.shares, windows, strict=True)), widened=True
                )
            ),
            shown(task.privacy is not None),
        )
        points = {
            name: OperatingPoint(design.level[own], bool(state.config.same_row[m]))
            for m, (name, own) in enumerate(zip(record.names, record.input_slices, strict=True))
        }
        numbers = sum(basis.shape[1] * r for basis, r in zip(design.bases, design.outputs.values(), strict=True))
        status = Status(True, 1, 0.0, f"least squares on {numbers} moments of {len(design.inputs)} rows")
        return Learned(A, B, made.Q, record.states, status, couplings, notes, points)

    def part(self, task: Task, own: UnitData, state: MomentLogUnit) -> UnitPart:
        assert state.model is not None
        read, (middle, _) = readings(task, own), state.ranges
        caveats = read.caveats + left_out_caveats(own.unit, read.y)
        return UnitPart(
            replace(own.unit, states=state.model.states), state.model, KalmanEstimator(state.model),
            output_level=frozen(middle), point=state.point, sensors=read.sensors,
            caveats=(*caveats, *self._reaction(task, own, again=True)),
            rows_digest=None if state.release is None else own.digest,
        )  # fmt: skip

    def privacy_report(
        self,
        task: Task,
        spending: Spending,
        server: MomentLogServer,
        units: Mapping[str, MomentLogUnit],
    ) -> PrivacyReport:
        return moments_report(spending, {name: state.release for name, state in units.items()}, models=False)


def drowned_caveat(effect: str, cause: str) -> Caveat:
    """Of responses that the noise of privacy leaves open."""
    text = (
        f"{cause} -> {effect}: noise drowns what inputs of {cause} do here; what is said of it may be off by as much "
        "as it says, and where nothing is found only what lies beyond the interval is ruled out. What helps: more rows "
        "(the noise falls as one over them), a larger epsilon, or a shorter memory; counterflow privacy plan --logs "
        "foretells it"
    )
    return Caveat(DROWNED_CODE, scope_of((cause, effect)), text)


def _there(outlines: Sequence[Outline], values: FloatArray) -> FloatArray:
    """Zeros in rows that are there, NaN in others."""
    pieces = [np.where(o.there[:, None], np.zeros(len(o.observation)), np.nan) for o in outlines]
    return np.asarray(np.hstack(pieces).reshape(values.shape))


def log_options_of(task: Task) -> MomentLogOptions:
    """The same of a fit from logs."""
    given = dict(task.options)
    if task.method != "moments":
        given = {name: value for name, value in given.items() if name not in ("rank", "regime")}
    return MomentLogOptions.parse(task.method, given)
