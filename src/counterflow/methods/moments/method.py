"""Moments: how the two sides are set up, and what is left when the exchange is over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, PrivacyError
from counterflow.estimation.identifiability import diagnose
from counterflow.estimation.moments import MomentEstimate
from counterflow.estimation.optimiser import Estimated
from counterflow.estimation.prior import faint_among
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.methods.estimators import KalmanEstimator
from counterflow.methods.method import Charge, Progress, ServerState, UnitState
from counterflow.methods.moments.design import Design
from counterflow.methods.moments.log_unit import MomentLogUnit
from counterflow.methods.moments.options import MomentLogOptions, MomentOptions
from counterflow.methods.moments.private import (
    MECHANISM,
    SHARES,
    UNPROTECTED,
    MomentRelease,
    needed_noise,
    round_cost,
)
from counterflow.methods.moments.reaction import reaction_caveats, reactions
from counterflow.methods.moments.server import MomentConfig, MomentLogServer, MomentServer
from counterflow.methods.moments.unit import MomentUnit
from counterflow.methods.options import by_unit
from counterflow.methods.outcome import Couplings, Learned, Status
from counterflow.methods.part import UnitPart, given_part
from counterflow.methods.privacy import PrivacyReport, Spending, clipping_caveats, not_private, require_noise
from counterflow.methods.sensors import readings, refuse_private
from counterflow.methods.sufficient.method import OneExchange, labels_of, left_out_caveats, message_caveats
from counterflow.methods.sufficient.private import MODELS_EXCLUDED
from counterflow.methods.task import Task, UnitData
from counterflow.plant import LocalModel, OperatingPoint, Unit
from counterflow.privacy import Cost
from counterflow.protocol import Message, Moments, Outline

UNEXPLAINED = 1e-3  # chance below which what moments leave unexplained is no chance
SEEN = (
    "each unit was sent signals that are made of all units' inputs, by which it may learn how others were run, and "
    "what the rounds before foresaw of its own numbers; of others' measurements it saw nothing"
)


class MomentMethod(OneExchange):
    """Projections of each unit's measurements on what all inputs did, least squares that know the noise."""

    sends = frozenset({"Outline", "Moments"})
    hears = frozenset({"Request", "Basis", "Finished"})
    mechanism = MECHANISM
    options = MomentOptions

    def check(self, task: Task) -> None:
        options_of(task).known_edges(task.units)
        self.check_privacy(task)
        if task.privacy is not None and task.privacy.release == "rows":
            raise OptionError(f"{task.label}: method 'moments' releases moments; release='rows' goes with 'sufficient'")

    def check_privacy(self, task: Task) -> None:
        """OptionError if privacy does not go with moments."""
        refuse_private(task)
        if task.privacy is not None and task.privacy.accounting != "rigorous":
            raise OptionError(f"{task.label}: moments have rigorous accounting; leave accounting out")

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        rounds = 1 if task.privacy is None else len(SHARES)
        return MomentServer(
            MomentConfig(task.units, rounds, options_of(task).known_edges(task.units)), progress=progress
        )

    def unit(self, task: Task, own: UnitData) -> UnitState:
        reaction_of(task, own, same_row=True)
        return MomentUnit(own.unit.name, given_part(task, own).model, readings(task, own).y, own.u, task.privacy)

    def learned(self, task: Task, state: MomentServer) -> Learned:
        assert state.found is not None
        design, found = state.designed, state.found
        private = task.privacy is not None
        doubts = diagnose(design.measured, design.parameters.causes, labels_of(task))
        widening, caveats = misfit_of(found)
        spread = Uncertainty(design.parameters, widening * found.covariance).with_doubts(doubts)
        made = Estimated(
            found.A, found.B, design.local[2], -0.5 * found.misfit, found.steps, found.converged, found.left,
            found.at_bound, parameters=design.parameters,
        )  # fmt: skip
        couplings = Couplings(made, design.shared, spread, doubts, of_moments=True)
        faint = faint_among(design.shared, design.parameters, found.bare, len(design.u), power=0.5) if private else ()
        notes = (*(doubt.caveat for doubt in doubts), *(each.caveat for each in faint), *caveats, shown(private))
        return Learned(
            found.A, found.B, design.local[2], design.layout.states, status_of(found, design), couplings, notes
        )

    def part(self, task: Task, own: UnitData, state: MomentUnit) -> UnitPart:
        read = readings(task, own)
        part = replace(given_part(task, own), sensors=read.sensors)
        caveats = read.caveats + message_caveats(own.unit, read.y, part.model, private=True)
        if state.release is not None:
            caveats += clipping_caveats(own.unit.name, state.release.may_clip)
            part = replace(part, rows_digest=own.digest)
        return replace(part, caveats=(*caveats, *reaction_of(task, own, same_row=True)))

    def charges(self, task: Task, model: LocalModel | None, rows: int) -> list[Cost]:
        assert task.privacy is not None
        return [round_cost(task.privacy, rows, number) for number in range(len(SHARES))]

    def charge(self, task: Task, model: LocalModel | None, rows: int, message: Message) -> Charge | None:
        if not isinstance(message, Moments):
            return None
        cost = self.charges(task, model, rows)[message.round]
        return Charge(cost, f"moments of {rows} rows, round {message.round + 1} of {len(SHARES)}")

    def checked_release(self, task: Task, rows: int, message: Message, release: object) -> None:
        check_release(task, rows, message, release)

    def privacy_report(
        self, task: Task, spending: Spending, server: MomentServer, units: Mapping[str, MomentUnit]
    ) -> PrivacyReport:
        return moments_report(spending, {name: state.release for name, state in units.items()}, models=True)


class MomentLogMethod(MomentMethod):
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
        reaction_of(task, own, same_row=False)
        made = MomentLogUnit(own.unit, readings(task, own).y, own.u, task.privacy)
        _ = made.ranges  # refuses channels without limits before anything leaves
        return made

    def learned(self, task: Task, state: MomentLogServer) -> Learned:  # type: ignore[override]
        assert state.found is not None
        design = state.designed
        record, A, B, spread = design.system(state.found)
        measured = replace(record, values=_there(design.outlines, record.values))
        everyone = range(len(record.names))
        doubts = diagnose(measured, [everyone for _ in everyone], labels_of(task))
        made = Estimated(A, B, np.zeros_like(A), math.nan, 1, True, 0.0, parameters=spread.parameters)
        couplings = Couplings(made, record, spread.with_doubts(doubts), doubts, of_moments=True)
        text = (
            f"responses were followed for {design.bank.memory} rows by {design.bank.size} functions of each input; "
            "what inputs do later than that is not in the answers. The graph is of what inputs do in all, not of "
            "direct couplings alone"
        )
        notes = (
            *(doubt.caveat for doubt in doubts),
            Caveat("responses-followed", "", text),
            shown(task.privacy is not None),
        )
        points = {
            name: OperatingPoint(design.level[own], bool(state.config.same_row[m]))
            for m, (name, own) in enumerate(zip(record.names, record.input_slices, strict=True))
        }
        numbers = sum(basis.shape[1] * r for basis, r in zip(design.bases, design.outputs.values(), strict=True))
        status = Status(True, 1, 0.0, f"least squares on {numbers} moments of {len(design.inputs)} rows")
        return Learned(A, B, made.Q, record.states, status, couplings, notes, points)

    def part(self, task: Task, own: UnitData, state: MomentLogUnit) -> UnitPart:  # type: ignore[override]
        assert state.model is not None
        read, (middle, _) = readings(task, own), state.ranges
        caveats = read.caveats + left_out_caveats(own.unit, read.y)
        if state.release is not None:
            caveats += clipping_caveats(own.unit.name, state.release.may_clip)
        return UnitPart(
            replace(own.unit, states=state.model.states), state.model, KalmanEstimator(state.model),
            output_level=frozen(middle), point=state.point, sensors=read.sensors,
            caveats=(*caveats, *reaction_of(task, own, same_row=False)),
            rows_digest=None if state.release is None else own.digest,
        )  # fmt: skip

    def privacy_report(
        self,
        task: Task,
        spending: Spending,
        server: MomentLogServer,
        units: Mapping[str, MomentLogUnit],  # type: ignore[override]
    ) -> PrivacyReport:
        return moments_report(spending, {name: state.release for name, state in units.items()}, models=False)


def _there(outlines: Sequence[Outline], values: FloatArray) -> FloatArray:
    """Zeros in rows that are there, NaN in others."""
    pieces = [np.where(o.there[:, None], np.zeros(len(o.observation)), np.nan) for o in outlines]
    return np.asarray(np.hstack(pieces).reshape(values.shape))


def options_of(task: Task) -> MomentOptions:
    """Options of a task; those that only a likelihood has are left out where the task names another method."""
    given = dict(task.options)
    if task.method != "moments":
        given = {name: value for name, value in given.items() if MomentOptions.knows({name: value})}
    return MomentOptions.parse(task.method, given)


def log_options_of(task: Task) -> MomentLogOptions:
    """The same of a fit from logs."""
    given = dict(task.options)
    if task.method != "moments":
        given = {name: value for name, value in given.items() if name not in ("rank", "regime")}
    return MomentLogOptions.parse(task.method, given)


def reaction_of(task: Task, own: UnitData, same_row: bool) -> tuple[Caveat, ...]:
    """What a unit finds of its own inputs before it takes part in a private fit; PrivacyError if it may not."""
    if task.privacy is None:
        return ()
    found = reactions(own.unit, own.y, own.u, same_row)
    chosen = log_options_of(task) if task.from_logs else options_of(task)
    return reaction_caveats(own.unit, found, chosen.reacting == "refused")


def reactions_refused(unit: Unit, y: FloatArray, u: FloatArray) -> None:
    """PrivacyError if inputs of a window with models react to its measurements."""
    reaction_caveats(unit, reactions(unit, y, u), refuse=True)


def check_release(task: Task, rows: int, message: Message, release: object) -> None:
    """PrivacyError unless moments were made private as the task asks for."""
    privacy = task.privacy
    assert privacy is not None
    if isinstance(message, Outline):
        return  # it holds no measurement
    if not isinstance(message, Moments) or not isinstance(release, MomentRelease) or release.round != message.round:
        raise not_private(task.label, message)
    if not 0 <= message.round < len(SHARES):
        raise PrivacyError(f"unit {message.unit!r}: {task.label} has {len(SHARES)} rounds, this is another one")
    needed = needed_noise(privacy, release, rows)
    good = (privacy.clip is None or privacy.clip == release.clip) and release.found_clip == (privacy.clip is None)
    require_noise(task.label, message, release.sigma, needed, good and release.reach > 0)


def moments_report(spending: Spending, releases: Mapping[str, MomentRelease | None], models: bool) -> PrivacyReport:
    """What the units' moments have cost, and what the last of them were made with."""
    privacy = spending.privacy
    units = {}
    for name, made in releases.items():
        spent = spending.spent(name)
        units[name] = spent if made is None else replace(spent, clip=made.clip, sigma=made.sigma, clipped=made.clipped)
    unprotected: tuple[str, ...] = UNPROTECTED
    if models and privacy.models == "excluded":
        unprotected = (MODELS_EXCLUDED, *UNPROTECTED)
    mechanism = MECHANISM
    if models and privacy.models != "excluded":
        cost = privacy.model_cost
        mechanism += f"; local models are counted with epsilon {cost[0]:g} and delta {cost[1]:g}, as declared"
    return replace(spending.report(mechanism, units, unprotected), release="moments", seen=SEEN)


def shown(private: bool) -> Caveat:
    """What was released, and what each unit saw of the others."""
    noise = "with noise, " if private else ""
    text = f"released were moments: {noise}projections of each unit's measurements on what all inputs did; {SEEN}"
    return Caveat("moments", "", text)


def misfit_of(found: MomentEstimate) -> tuple[float, tuple[Caveat, ...]]:
    """By how much variances have to grow, because the models do not explain the moments; and what to say of it."""
    from scipy.special import chdtrc

    if found.freedom < 1:
        return 1.0, ()
    ratio = found.misfit / found.freedom
    if float(chdtrc(found.freedom, found.misfit)) > UNEXPLAINED:
        return 1.0, ()
    text = (
        f"the models do not explain the moments: what is left is {math.sqrt(ratio):.2g} times as large as their noise; "
        "intervals were widened by that. Check the local models, and look for inputs that nobody records"
    )
    return ratio, (Caveat("moments-misfit", "", text),)


def status_of(found: MomentEstimate, design: Design) -> Status:
    """How the estimate ended."""
    numbers = int(
        sum(basis.shape[1] * len(o.observation) for basis, o in zip(design.bases, design.outlines, strict=True))
    )
    text = (
        f"converged in {found.steps} steps on {numbers} moments of {len(design.u)} rows"
        if found.converged
        else f"not converged after {found.steps} steps on {numbers} moments: a step is still "
        f"{math.sqrt(found.left):.1g} standard errors long"
    )
    return Status(found.converged, found.steps, math.sqrt(found.left), text)
