"""The default method: how its two sides are set up, and what is left when the exchange is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.exchange.input_feedback import reaction_of
from counterflow.exchange.method import Charge, Progress, ServerState, UnitState
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart, given_part
from counterflow.exchange.privacy import PrivacyReport, Spending, clipping_caveats, not_private, require_noise
from counterflow.exchange.sensors import readings, refuse_private
from counterflow.exchange.sufficient.options import LikelihoodOptions
from counterflow.exchange.sufficient.private import (
    MECHANISM,
    MODELS_EXCLUDED,
    UNPROTECTED,
    PrivateRelease,
    message_cost,
    needed_noise,
)
from counterflow.exchange.sufficient.server import SufficientConfig, SufficientServer
from counterflow.exchange.sufficient.unit import SufficientUnit, rows_and_channels
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.identifiability import Labels, diagnose
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated
from counterflow.learning.parameters import Estimate
from counterflow.learning.prior import faint_couplings, weak_prior
from counterflow.learning.uncertainty import affordable, uncertainty
from counterflow.plant import LocalModel, Unit
from counterflow.privacy import Cost
from counterflow.protocol import Message, Sufficient
from counterflow.wording import number

FEW_ABSURD = 3  # readings that far out: more are a way of running
ABSURD = 100.0  # robust standard deviations from the median that no reading should be away
NEARLY = 0.05  # standard errors that a fit may still be away from its maximum and give intervals


class OneExchange:
    """What methods share that ask every unit for one message."""

    def uses_inputs(self, task: Task) -> bool:
        return True

    def rounds(self, task: Task) -> int | None:
        return None

    def pooled(self, task: Task, own: Mapping[str, UnitData], seen: bool) -> None:
        return None


class SufficientMethod(OneExchange):
    """One sufficient message from each unit, maximum likelihood at the server."""

    sends = frozenset({"Sufficient"})
    hears = frozenset({"Request", "Finished"})
    mechanism = MECHANISM
    options = LikelihoodOptions

    def check(self, task: Task) -> None:
        for name in ("rank", "same_row"):
            if name in task.options:
                raise OptionError(
                    f"{task.label}: option {name!r} is for fits from logs; models are given here, which settle it"
                )
        LikelihoodOptions.parse(task.method, task.options).known_edges(task.units)
        refuse_private(task)
        if task.privacy is not None and task.privacy.accounting != "rigorous":
            raise OptionError(f"{task.label}: method {task.method!r} has rigorous accounting; leave accounting out")

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        chosen = LikelihoodOptions.parse(task.method, task.options)
        config = SufficientConfig(
            task.units, _estimate(chosen), chosen.tol, chosen.evaluations, prior=task.privacy is not None,
            known=chosen.known_edges(task.units),
        )  # fmt: skip
        return SufficientServer(config, progress=progress)

    def unit(self, task: Task, own: UnitData) -> UnitState:
        reaction_of(task, own, LikelihoodOptions.parse(task.method, task.options).reacting)
        return SufficientUnit(
            own.unit.name, given_part(task, own).model, readings(task, own).y, own.u, task.privacy
        )  # fmt: skip

    def learned(self, task: Task, state: SufficientServer) -> Learned:
        assert state.shared is not None
        assert state.found is not None
        return judged(task, state.shared, state.found)

    def part(self, task: Task, own: UnitData, state: SufficientUnit) -> UnitPart:
        read = readings(task, own)
        part = replace(given_part(task, own), sensors=read.sensors)
        caveats = read.caveats + message_caveats(own.unit, read.y, part.model, task.privacy is not None)
        if state.release is not None:
            caveats += clipping_caveats(own.unit.name, state.release.may_clip, widened=False)
            part = replace(part, rows_digest=own.digest)
        chosen = LikelihoodOptions.parse(task.method, task.options)
        return replace(part, caveats=(*caveats, *reaction_of(task, own, chosen.reacting, again=True)))

    def charges(self, task: Task, model: LocalModel, rows: int) -> list[Cost]:
        assert task.privacy is not None
        return [message_cost(task.privacy, rows, model.states)]

    def charge(self, task: Task, model: LocalModel, rows: int, message: Message) -> Charge:
        (cost,) = self.charges(task, model, rows)
        return Charge(cost, f"sufficient message of {rows} rows")

    def checked_release(self, task: Task, rows: int, message: Message, release: object) -> None:
        privacy = task.privacy
        assert privacy is not None
        if not isinstance(message, Sufficient) or not isinstance(release, PrivateRelease):
            raise not_private(task.label, message)
        needed = needed_noise(privacy, release, rows, message.observation.shape[1])
        good = (privacy.clip is None or privacy.clip == release.clip) and release.found_clip == (privacy.clip is None)
        good &= not message.ranks[1:].any()  # rows that are there see the states alike
        require_noise(task.label, message, release.sigma, needed, good)

    def privacy_report(
        self, task: Task, spending: Spending, server: SufficientServer, units: Mapping[str, SufficientUnit]
    ) -> PrivacyReport:
        releases = {name: state.release for name, state in units.items() if state.release is not None}
        return sufficient_report(spending, releases)


def sufficient_report(spending: Spending, releases: Mapping[str, PrivateRelease]) -> PrivacyReport:
    """What the units' messages have cost, and what they were made with."""
    privacy = spending.privacy
    units = {
        name: replace(spending.spent(name), clip=made.clip, sigma=made.sigma, clipped=made.clipped)
        for name, made in releases.items()
    }
    cost = privacy.model_cost
    models = f"local models are counted with epsilon {cost[0]:g} and delta {cost[1]:g}, as declared"
    if privacy.models == "excluded":
        return spending.report(MECHANISM, units, (MODELS_EXCLUDED, *UNPROTECTED))
    return spending.report(f"{MECHANISM}; {models}", units, UNPROTECTED)


def _estimate(chosen: LikelihoodOptions) -> Estimate:
    return cast(Estimate, chosen.estimate)


def judged(task: Task, shared: SharedRecord, found: Estimated) -> Learned:
    """What the server knows of a maximum-likelihood estimate besides its numbers."""
    chosen = LikelihoodOptions.parse(task.method, task.options)
    couplings, caveats = coupled(
        shared, found, _estimate(chosen), labels_of(task), chosen.uncertainty, private=task.privacy is not None
    )
    if found.at_bound:
        text = (
            "the estimate rests on the stability bound: the data ask for a system that is not stable. Answers are not "
            "to be trusted; check the local models, or look for a drift or an integrator that is missing in them"
        )
        caveats += (Caveat("stability-bound", "", text),)
    return Learned(found.A, found.B, found.Q, shared.states, status_of(found, chosen), couplings, caveats)


def labels_of(task: Task) -> Labels:
    """Names of the units' inputs."""
    return {name: task.input_names(name) for name in task.units}


def coupled(
    shared: SharedRecord, found: Estimated, estimate: Estimate, labels: Labels, wanted: bool | None,
    private: bool = False,
) -> tuple[Couplings, tuple[Caveat, ...]]:  # fmt: skip
    """Doubts and uncertainty of an estimate, and what to say of them.

    Parameters
    ----------
    labels : names of the units' inputs.
    wanted : whether to compute standard errors; None: where that takes seconds.
    private : whether the weak prior was leant on.
    """
    assert found.parameters is not None
    doubts = diagnose(shared, found.parameters.causes, labels)
    wanted = affordable(shared, found.parameters) if wanted is None else wanted
    spread = None
    if wanted and (found.converged or found.decrement <= NEARLY**2):
        prior = weak_prior(shared, estimate, found.parameters.known) if private else None
        spread = uncertainty(shared, found, prior).with_doubts(doubts)
    faint = faint_couplings(shared, found) if private and wanted else ()
    caveats = (*(doubt.caveat for doubt in doubts), *(each.caveat for each in faint))
    return Couplings(found, shared, spread, doubts), caveats


def message_caveats(unit: Unit, y: FloatArray, model: LocalModel, private: bool) -> tuple[Caveat, ...]:
    """What a reader should know of the message that a unit has sent; nothing of it tells of a measurement."""
    out: list[Caveat] = []
    if private:
        out += left_out_caveats(unit, y)
    elif exact := _exact_rows(y, model.C):
        which = "its measurements" if exact == len(y) else f"its measurements in {exact} of {len(y)} rows"
        text = (
            f"unit {unit.name!r}: its message determines {which} exactly, because it has no more outputs than states "
            "there; compression hides nothing"
        )
        out.append(Caveat("exact-message", unit.name, text))
    return (*out, *(() if private else absurd_readings(unit, y, unit.output_names)))


def left_out_caveats(unit: Unit, y: FloatArray) -> tuple[Caveat, ...]:
    """Of a message that is made of whole rows: what was not whole."""
    used, whole = rows_and_channels(y)
    dropped = int(np.isfinite(y).any(axis=1).sum()) - int(used.sum())
    lost = [f"{dropped} rows in which a channel was missing"] if dropped else []
    if not whole.all():
        names = [unit.output_names[k] for k in np.flatnonzero(~whole)]
        lost.append(f"channels missing most of the time: {', '.join(names)}")
    if not lost:
        return ()
    return (Caveat("rows-left-out", unit.name, f"unit {unit.name!r}: left out were {' and '.join(lost)}"),)


def _exact_rows(y: FloatArray, C: FloatArray) -> int:
    """Rows with measurements, NaN where missing, that a message with as many numbers as they have tells exactly."""
    measured = np.isfinite(y)
    if np.linalg.matrix_rank(C) == len(C):
        return len(y) if measured.all() else int(measured.any(axis=1).sum())
    few = measured.any(axis=1) & (measured.sum(axis=1) <= C.shape[1])
    sets, often = np.unique(measured[few], axis=0, return_counts=True)
    return int(sum(n for there, n in zip(sets, often, strict=True) if np.linalg.matrix_rank(C[there]) == there.sum()))


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


def absurd_readings(unit: Unit, values: FloatArray, channels: tuple[str, ...]) -> list[Caveat]:
    """Readings so far out that they are no readings; one of them can decide a fit."""
    out = []
    for column, channel in zip(values.T, channels, strict=True):
        known = column[np.isfinite(column)]
        if not len(known):
            continue
        away = np.abs(known - np.median(known))
        usual = 1.4826 * float(np.median(away))
        rare = int((away > away.max() / 2).sum()) <= FEW_ABSURD  # a pulse is no wild reading
        if usual > 0 and away.max() > ABSURD * usual and rare:
            row = int(np.flatnonzero(np.isfinite(column))[int(away.argmax())])
            text = (
                f"unit {unit.name!r}: {channel} is {column[row]:.6g} in row {row}, {number(away.max() / usual)} times "
                "the usual movement away from its median; if that is no reading, make it missing and fit again"
            )
            out.append(Caveat("absurd-reading", unit.name, text))
    return out
