"""Release of moments by units with models: projections of measurements on what all inputs did, least squares of them.

Under differential privacy rows are clipped, projections noised, each round at its share of the budget. Row t has a part
φ[t] d[t]ᵀ in Z = Φᵀ d, d[t] = W (s[t] - centre[t]) clipped to |d[t]| <= c. Replacing it moves Z by |φ[t]| 2c at most.
Replacing w consecutive rows moves it by |Φ_wᵀ D| <= |Φ_w| 2c √w, |Φ_w| the largest singular value of these rows of Φ.
So a round is one Gaussian mechanism of sensitivity

    Δ = 2 c reach,     reach = √w max |Φ_w|   (w = 1: the longest row of Φ).

All of Φ, centre and W comes from inputs, models and what the unit has released before: rounds are chosen with earlier
releases in view, which is what composition allows, μ² = Σ μ_i². The unit measures ``reach`` itself on the Φ that it was
sent, so its promise does not rest on how anybody has made Φ.
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

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError, PrivacyError, ProtocolError
from counterflow.exchange.compression import left_out_caveats, spans_of, sufficient_message
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
from counterflow.exchange.options import Options, one_of, option
from counterflow.exchange.outcome import Couplings, Learned, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import clipping_caveats
from counterflow.exchange.rows import labels_of
from counterflow.exchange.sensors import SENSORS, Readings
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.identifiability import diagnose
from counterflow.learning.information import positions
from counterflow.learning.log_moment_design import LogFound
from counterflow.learning.log_moments import LogWindows
from counterflow.learning.moment_design import Design
from counterflow.learning.moments import MomentEstimate, clipping_bias, clipping_se_factor
from counterflow.learning.optimiser import Estimated, Quadratic
from counterflow.learning.prior import faint_among
from counterflow.learning.uncertainty import Uncertainty
from counterflow.plant import LocalModel, OperatingPoint
from counterflow.privacy import Privacy, gaussian_release
from counterflow.privacy.clipping import STEPS, SURELY, AddedNoise, clipped_rows, private_radius
from counterflow.protocol import Basis, Message, Moments, Outline, Request, Sufficient

SHARES = (0.05, 0.15, 0.8)  # of μ², by round: what others do is foreseen better in each, and less is left to clip
RADIUS = 0.05  # of a round's μ²: what finding the clip costs
COUNTED = 0.02  # of a round's μ²: what telling how much was clipped costs
CHANNELS = 10_000  # of a unit, at most
OUTSIDE = 5e-3  # share of rows that may be clipped, if noise lets it be seen
UNEXPLAINED = 1e-3  # chance below which what moments leave unexplained is no chance
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
        memory = at.memory if isinstance(at.memory, MomentUnitMemory) else MomentUnitMemory()
        if not isinstance(asked, Basis):
            return Reply(self.outline(at), memory)
        basis = asked.functions if len(asked.functions) else memory.basis
        digest = hashlib.sha256(at.own.u.tobytes()).hexdigest()
        message, made = projected(at.unit, *self.numbers(at), basis, asked, at.task.privacy, digest)
        return Reply(message, replace(memory, basis=basis), made)

    # ---- at the server

    @abstractmethod
    def design(self, at: ExchangeServer, outlines: tuple[Outline, ...], before: Any) -> Any:
        """What is asked of units with these outlines."""

    def closing(self, at: ExchangeServer, design: Any, found: Any) -> tuple[Message, ...]:
        """What units are told of what was found."""
        return ()

    def prepare(self, at: ExchangeServer) -> Any:
        memory = at.memory
        if not isinstance(memory, MomentMemory) or not memory.outlines:
            return None
        return self.design(at, tuple(memory.outlines[name] for name in at.units), memory.before)

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
        memory = at.memory if isinstance(at.memory, MomentMemory) else MomentMemory()
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
        return 2 * made.clip * made.reach / (mu_of(privacy, rows, number) * math.sqrt(_left(made.found_clip)))


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

    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        return left_out_caveats(own.unit, read.y)

    def design(self, at: ExchangeServer, outlines: tuple[Outline, ...], before: Any) -> Design:
        return Design(outlines, self.chosen(at.task).known_edges(at.units))

    def learned(self, task: Task, state: ExchangeServer) -> Learned:
        design, memory = state.work or self.prepare(state), state.memory
        assert isinstance(memory, MomentMemory)
        found = memory.found
        assert isinstance(found, MomentEstimate)
        if not math.isfinite(found.misfit) or not np.isfinite(found.A).all() or not np.isfinite(found.B).all():
            raise DataError(
                f"{task.label}: the numbers are beyond double precision; look for absurd values in the recording"
            )
        private = task.privacy is not None
        doubts = diagnose(design.measured, design.parameters.causes, labels_of(task))
        covariance, caveats = doubted_covariance(design, memory)
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
    foreseen = dict(zip(design.layout.names, design.foreseen(found), strict=True))
    bases = dict(zip(design.layout.names, design.bases, strict=True))
    asked = []
    for name in design.asked:
        at, basis = foreseen[name], bases[name]
        if number:
            basis = np.zeros((0, basis.shape[1]))  # that of the round before
        asked.append(Basis(name, number, float(at.least), basis, np.ascontiguousarray(at.centre), at.W))
    return tuple(asked)


def shown(private: bool) -> Caveat:
    """What was released, and what each unit saw of the others."""
    noise = "with noise, " if private else ""
    text = f"released were moments: {noise}projections of each unit's measurements on what all inputs did; {SEEN}"
    return Caveat("moments", "", text)


def doubted_covariance(design: Design, memory: MomentMemory) -> tuple[FloatArray, tuple[Caveat, ...]]:
    """Covariance of the couplings that knows of misfit and clipping; and what to say of these.

    Where models do not explain the moments, variances grow by as much as they leave unexplained. Rows were clipped
    around what ``centred`` foresaw. Of what they are away from it, as far as inputs tell, at least the share of ΦᵀΦ is
    left that is in rows which were not clipped. So the couplings may be further from the centre than they were found,
    by clipped / (1 - clipped) of how far that is; and what is left of the signal tells less.
    """
    found, centred = memory.found, memory.centred
    assert isinstance(found, MomentEstimate)
    widening, misfit = _misfit(found)
    there = np.hstack([found.A, found.B])
    before = np.hstack((centred.A, centred.B) if isinstance(centred, MomentEstimate) else design.local[:2])
    factor, biases = np.ones(len(found.covariance)), []
    rows, _ = positions(design.parameters)
    caveats = list(misfit)
    for name, own in zip(design.layout.names, design.layout.state_slices, strict=True):
        share = memory.moments[name].clipped if name in memory.moments else 0.0
        away = np.zeros_like(there)
        away[own] = clipping_bias(share) * (there - before)[own]
        biases.append(design.parameters.pack(away))
        factor[(rows >= own.start) & (rows < own.stop)] = clipping_se_factor(share)
        caveats += clipping_caveats(name, share, widened=True)
    covariance = found.covariance * np.outer(factor, factor) + sum(np.outer(each, each) for each in biases)
    return widening * covariance, tuple(caveats)


def _misfit(found: MomentEstimate) -> tuple[float, tuple[Caveat, ...]]:
    """By how much variances have to grow, because the models do not explain the moments; and what to say of it."""
    from scipy.special import chdtrc

    if found.freedom < 1 or float(chdtrc(found.freedom, found.misfit)) > UNEXPLAINED:
        return 1.0, ()
    ratio = found.misfit / found.freedom
    text = (
        f"the models do not explain the moments: what is left is {math.sqrt(ratio):.2g} times as large as their noise; "
        "intervals were widened by that. Check the local models, and look for inputs that nobody records"
    )
    return ratio, (Caveat("moments-misfit", "", text),)


def _status(found: MomentEstimate, design: Design) -> Status:
    numbers = sum(basis.shape[1] * len(o.observation) for basis, o in zip(design.bases, design.outlines, strict=True))
    text = (
        f"converged in {found.steps} steps on {numbers} moments of {len(design.u)} rows"
        if found.converged
        else f"not converged after {found.steps} steps on {numbers} moments: a step is still "
        f"{math.sqrt(found.left):.1g} standard errors long"
    )
    return Status(found.converged, found.steps, math.sqrt(found.left), text)


# ---- projections and their noise


def projected(
    unit: str, numbers: FloatArray, there: NDArray[np.bool_], basis: FloatArray, asked: Basis,
    privacy: Privacy | None, digest: str,
) -> tuple[Moments, AddedNoise | None]:  # fmt: skip
    """What a unit says of its ``numbers`` s (T+1, r), if they are ``there``, in one round; private if asked to be.

    ``digest``: of its inputs, by which a seeded source tells releases apart.
    """
    rows, width = numbers.shape
    if basis.shape[0] != rows or not 1 <= basis.shape[1] <= rows or asked.shape.shape != (width, width):
        raise ProtocolError(
            f"unit {unit!r}: a basis of shape {basis.shape} for {width} numbers of {rows} rows is none; ask the "
            "coordinator what that was"
        )
    centre = asked.centre if len(asked.centre) else np.zeros((rows, width))
    if centre.shape != numbers.shape or np.linalg.matrix_rank(asked.shape) < width:
        raise ProtocolError(f"unit {unit!r}: centre or shape of the round are not of {width} numbers of {rows} rows")
    used = np.where(there[:, None], basis, 0.0)
    if privacy is None:
        values = used.T @ np.where(there[:, None], numbers, 0.0)
        return Moments(unit, asked.round, values, np.zeros((width, width))), None
    with np.errstate(all="ignore"):
        moved = (numbers - centre) @ asked.shape.T
    names = unit, str(privacy.start), digest, str(asked.round)
    noised, made = released(moved, there, basis, privacy, asked.round, asked.least, *names)
    back = np.linalg.inv(asked.shape)
    values = noised @ back.T + used.T @ centre
    noise = made.variance * back @ back.T
    return Moments(unit, asked.round, np.ascontiguousarray(values), (noise + noise.T) / 2, made.may_clip), made


def released(
    rows: FloatArray, there: NDArray[np.bool_], basis: FloatArray, privacy: Privacy, number: int, least: float,
    *names: str,
) -> tuple[FloatArray, AddedNoise]:  # fmt: skip
    """Φᵀ d with noise (K, r), once and for all: send it again, but do not make it again.

    ``rows``: d (T+1, r), which count where they are ``there`` (T+1,); that is public, and must not depend on their
    values. ``basis``: Φ (T+1, K). ``number``: of the round. ``least``: radius below which no clip is tried, 0: none.
    ``names``: whose noise a seeded source gives.
    """
    used, known = np.where(there[:, None], basis, 0.0), rows[there]
    known = np.where(np.isfinite(known).all(axis=1, keepdims=True), known, 0.0)  # beyond all numbers: it stays, as zero
    mu = mu_of(privacy, len(rows), number)
    given = privacy.clip is not None
    if privacy.clip is not None:
        radius = privacy.clip
    else:
        radius = private_radius(known, math.sqrt(RADIUS) * mu, privacy, *names, outside=OUTSIDE, least=least)
    inside, outside = clipped_rows(known, radius)
    reach = reach_of(used, privacy.window)
    if not reach > 0:
        raise PrivacyError(
            f"unit {names[0]!r}: none of its rows has a part in what it is asked for; nothing was released"
        )
    may_clip = _told_share(used[there], outside, math.sqrt(COUNTED) * mu, privacy, *names)
    sigma = 2 * radius * reach / (mu * math.sqrt(_left(not given)))
    noised = gaussian_release(used[there].T @ inside, sigma, privacy.source, *names, "moments")
    share = float(outside.mean()) if len(outside) else 0.0
    return noised, AddedNoise(sigma, radius, not given, share, may_clip, reach, number)


def reach_of(basis: FloatArray, window: int) -> float:
    """How far ``window`` consecutive rows, each at most 1 long, can move projections on a basis (T+1, K)."""
    scale = float(np.abs(basis).max(initial=0.0))
    if not scale > 0:
        return 0.0
    basis = basis / scale  # squares of small numbers would vanish
    if window == 1:
        return float(np.linalg.norm(basis, axis=1).max()) * scale * (1 + 1e-12)
    width = min(window, len(basis))
    starts = np.arange(len(basis) - width + 1)
    worst = 0.0
    for first in range(0, len(starts), 512):  # a few hundred windows at a time
        at = starts[first : first + 512, None] + np.arange(width)
        rows = basis[at]
        gram = np.einsum("nwk,nwl->nkl" if basis.shape[1] <= width else "nwk,nvk->nwv", rows, rows, optimize=True)
        worst = max(worst, float(np.linalg.eigvalsh(gram)[:, -1].max()))
    return math.sqrt(width * worst) * scale * (1 + 1e-12)


def most_numbers(rows: int) -> int:
    """How many numbers all rounds could release, counts included: no basis has more signals than rows."""
    return len(SHARES) * (rows * CHANNELS + STEPS + 1)


def mu_of(privacy: Privacy, rows: int, number: int) -> float:
    """Of round ``number``."""
    return math.sqrt(SHARES[number]) / privacy.multiplier(most_numbers(rows))


def _left(found_clip: bool) -> float:
    """Share of a round's μ² that is left for the projections."""
    return 1 - COUNTED - (RADIUS if found_clip else 0.0)


def _told_share(basis: FloatArray, outside: NDArray[np.bool_], mu: float, privacy: Privacy, *names: str) -> float:
    """Share of ΦᵀΦ in the rows that are clipped, at most: what clipping can take of a projection, told with noise.

    Replacing w rows moves the share by at most what w rows have of it.
    """
    weight = np.square(basis / np.abs(basis).max()).sum(axis=1)
    weight = weight / weight.sum()
    sigma = min(1.0, privacy.window * float(weight.max())) / mu
    told = gaussian_release(np.array([weight[outside].sum()]), sigma, privacy.source, *names, "share clipped")
    return float(np.clip(told[0] + SURELY * sigma, 0.0, 1.0))
