"""Moments: how the two sides are set up, and what is left when the exchange is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.exchange.input_feedback import reaction_of
from counterflow.exchange.method import Charge, Progress, ServerState, UnitState
from counterflow.exchange.moments.design import Design
from counterflow.exchange.moments.options import MomentOptions
from counterflow.exchange.moments.private import (
    MECHANISM,
    SHARES,
    UNPROTECTED,
    MomentRelease,
    needed_noise,
    round_cost,
)
from counterflow.exchange.moments.server import MomentConfig, MomentServer
from counterflow.exchange.moments.unit import MomentUnit
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart, given_part
from counterflow.exchange.privacy import PrivacyReport, Spending, clipping_caveats, not_private, require_noise
from counterflow.exchange.sensors import readings, refuse_private
from counterflow.exchange.sufficient.method import OneExchange, labels_of, message_caveats
from counterflow.exchange.sufficient.private import MODELS_EXCLUDED
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.identifiability import diagnose
from counterflow.learning.information import positions
from counterflow.learning.moments import MomentEstimate, clipping_bias, clipping_se_factor
from counterflow.learning.optimiser import Estimated
from counterflow.learning.prior import faint_among
from counterflow.learning.uncertainty import Uncertainty
from counterflow.plant import LocalModel
from counterflow.privacy import Cost
from counterflow.protocol import Message, Moments, Outline

UNEXPLAINED = 1e-3  # chance below which what moments leave unexplained is no chance
SEEN = (
    "each unit was sent signals that are made of all units' inputs, by which it may learn how others were run, and "
    "what the rounds before foresaw of its own numbers; of others' measurements it saw nothing"
)


class MomentExchange(OneExchange):
    """What moments with models and from logs share: messages and accounts."""

    sends = frozenset({"Outline", "Moments"})
    mechanism = MECHANISM

    def check_privacy(self, task: Task) -> None:
        """OptionError if privacy does not go with moments."""
        refuse_private(task)
        if task.privacy is not None and task.privacy.accounting != "rigorous":
            raise OptionError(f"{task.label}: moments have rigorous accounting; leave accounting out")

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


class MomentMethod(MomentExchange):
    """Projections of each unit's measurements on what all inputs did, least squares that know the noise."""

    hears = frozenset({"Request", "Basis", "Finished"})
    options = MomentOptions

    def check(self, task: Task) -> None:
        options_of(task).known_edges(task.units)
        self.check_privacy(task)
        if task.privacy is not None and task.privacy.release == "rows":
            raise OptionError(f"{task.label}: method 'moments' releases moments; release='rows' goes with 'sufficient'")

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        rounds = 1 if task.privacy is None else len(SHARES)
        return MomentServer(
            MomentConfig(task.units, rounds, options_of(task).known_edges(task.units)), progress=progress
        )

    def unit(self, task: Task, own: UnitData) -> UnitState:
        reaction_of(task, own, options_of(task).reacting)
        return MomentUnit(own.unit.name, given_part(task, own).model, readings(task, own).y, own.u, task.privacy)

    def learned(self, task: Task, state: MomentServer) -> Learned:
        assert state.found is not None
        design, found = state.designed, state.found
        if not math.isfinite(found.misfit) or not np.isfinite(found.A).all() or not np.isfinite(found.B).all():
            raise DataError(
                f"{task.label}: the numbers are beyond double precision; look for absurd values in the recording"
            )
        private = task.privacy is not None
        doubts = diagnose(design.measured, design.parameters.causes, labels_of(task))
        widening, caveats = misfit_of(found)
        covariance, clipped = clipping_of(design, found, state.centred, state.moments)
        spread = Uncertainty(design.parameters, widening * covariance).with_doubts(doubts)
        made = Estimated(
            found.A, found.B, design.local[2], -0.5 * found.misfit, found.steps, found.converged, found.left,
            found.at_bound, parameters=design.parameters,
        )  # fmt: skip
        couplings = Couplings(made, design.shared, spread, doubts, of_moments=True)
        faint = faint_among(design.shared, design.parameters, found.bare, len(design.u), power=0.5) if private else ()
        notes = (
            *(doubt.caveat for doubt in doubts),
            *(each.caveat for each in faint),
            *caveats,
            *clipped,
            shown(private),
        )
        return Learned(
            found.A, found.B, design.local[2], design.layout.states, status_of(found, design), couplings, notes
        )

    def part(self, task: Task, own: UnitData, state: MomentUnit) -> UnitPart:
        read = readings(task, own)
        part = replace(given_part(task, own), sensors=read.sensors)
        caveats = read.caveats + message_caveats(own.unit, read.y, part.model, private=True)
        if state.release is not None:
            part = replace(part, rows_digest=own.digest)
        return replace(part, caveats=(*caveats, *reaction_of(task, own, options_of(task).reacting, again=True)))

    def privacy_report(
        self, task: Task, spending: Spending, server: MomentServer, units: Mapping[str, MomentUnit]
    ) -> PrivacyReport:
        return moments_report(spending, {name: state.release for name, state in units.items()}, models=True)


def options_of(task: Task) -> MomentOptions:
    """Options of a task; those that only a likelihood has are left out where the task names another method."""
    given = dict(task.options)
    if task.method != "moments":
        given = {name: value for name, value in given.items() if MomentOptions.knows({name: value})}
    return MomentOptions.parse(task.method, given)


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
    good &= message.clipped == release.may_clip  # and not what it really is
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


def clipping_of(
    design: Design, found: MomentEstimate, centred: MomentEstimate | None, moments: Mapping[str, Moments]
) -> tuple[FloatArray, tuple[Caveat, ...]]:
    """Covariance of the couplings that knows what clipping may have done to them; and what to say of it.

    Rows were clipped around what ``centred`` foresaw. Of what they are away from it, as far as inputs tell, at least
    the share of ΦᵀΦ is left that is in rows which were not clipped. So the couplings may be further from the centre
    than they were found, by clipped / (1 - clipped) of how far that is; and what is left of the signal tells less.
    """
    there = np.hstack([found.A, found.B])
    before = np.hstack(design.local[:2] if centred is None else (centred.A, centred.B))
    blunt, short = np.ones(len(found.covariance)), []
    rows, _ = positions(design.parameters)
    caveats: list[Caveat] = []
    for name, own in zip(design.layout.names, design.layout.state_slices, strict=True):
        share = moments[name].clipped if name in moments else 0.0
        away = np.zeros_like(there)
        away[own] = clipping_bias(share) * (there - before)[own]
        short.append(design.parameters.pack(away))
        blunt[(rows >= own.start) & (rows < own.stop)] = clipping_se_factor(share)
        caveats += clipping_caveats(name, share, widened=True)
    covariance = found.covariance * np.outer(blunt, blunt) + sum(np.outer(each, each) for each in short)
    return covariance, tuple(caveats)


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
