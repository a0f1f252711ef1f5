"""Release of rows by units with models: one sufficient message of each, maximum likelihood at the server.

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

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import PrivacyError
from counterflow.exchange.compression import absurd_readings, exact_caveats, left_out_caveats, sufficient_message
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
from counterflow.exchange.options import Options, count, number, one_of, option, truth
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import clipping_caveats
from counterflow.exchange.sensors import SENSORS, Readings
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.clipping import ClippingRegion, nothing, own_response
from counterflow.learning.identifiability import Labels, diagnose
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, maximum_likelihood
from counterflow.learning.parameters import Estimate
from counterflow.learning.uncertainty import affordable, faint_couplings, uncertainty, weak_prior
from counterflow.plant import LocalModel
from counterflow.privacy import Privacy, gaussian_release
from counterflow.privacy.clipping import STEPS, SURELY, AddedNoise, clipped_rows, private_radius
from counterflow.protocol import Message, Request, Sufficient

SHARE = 0.05  # of μ²: what finding the clip costs, or counting the rows beyond a given one
OUTSIDE = 1e-3  # share of rows that may be clipped, if noise lets it be seen
NEARLY = 0.05  # standard errors that a fit may still be away from its maximum and give intervals


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


def foreseen(model: LocalModel, observation: FloatArray, u: FloatArray) -> ClippingRegion:
    """In which rows are clipped: around the response of the unit's own model to its own inputs."""
    return own_response(model.A, model.B, model.Q, observation, u)


def privatised(message: Sufficient, model: LocalModel, privacy: Privacy) -> tuple[Sufficient, AddedNoise]:
    """The message with every row clipped and noised, once and for all: send it again, but do not make it again."""
    if len(message.ranks) > 2 or message.ranks[1:].any():
        raise PrivacyError(f"unit {message.unit!r}: a private message is made of whole rows only")
    observation, there = message.observation, message.labels == 0
    rows, numbers = int(there.sum()), len(observation)
    mu = 1 / privacy.multiplier(most_numbers(len(message.inputs), observation.shape[1]))
    given = privacy.clip is not None
    at = nothing(len(message.inputs), numbers) if given else foreseen(model, observation, message.inputs)
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
