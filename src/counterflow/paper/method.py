"""The published methods: how their two sides are set up, and what is left when the training is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError
from counterflow.exchange.method import Charge, Method, Progress, ServerState, UnitState
from counterflow.exchange.outcome import Learned, Status
from counterflow.exchange.part import UnitPart, given_part
from counterflow.exchange.privacy import PrivacyReport, Spending
from counterflow.exchange.task import Task, UnitData
from counterflow.paper.augmented import AugmentedModel, ClientData, compress
from counterflow.paper.contraction import estimator_responses, signal_bound
from counterflow.paper.options import TrainingOptions
from counterflow.paper.server import GradientNoise, Phase, ServerConfig, TrainingServer
from counterflow.paper.unit import MessageNoise, MessageRelease, TrainingUnit
from counterflow.plant import LocalModel
from counterflow.privacy import Cost, classical_multiplier
from counterflow.privacy.clipping import clipped_rows
from counterflow.protocol import Message, PerturbedStates
from counterflow.randomness import stream

PRIVATE_ROUNDS = 10
MECHANISM = (
    "Gaussian noise of Delta sqrt(2 ln(1.25/delta))/epsilon on every row of the messages (Delta = kappa_m R_max) and "
    "of the gradients (Delta = 2/T (1 + |A_mm|) kappa_mix R_max)"
)
DROWNED = (
    "the noise of this training grew {growth:.3g}-fold over its rounds, because it moves theta and theta raises the "
    "sensitivity: the estimates are made of noise. Give a larger epsilon, fewer rounds, smaller steps or more rows, or "
    "use method 'sufficient'"
)
BIASED = (
    "with zero-mean inputs, which the paper assumes, the published method cannot recover B_mn, and with others it is "
    "biased by what depends on the plant (docs/theory/finding.md tells where it works): treat this number as the "
    "method's output, not as the plant's answer"
)
REFINED_BIASED = (
    "with a refined target and zero-mean white inputs B_mn comes out multiplied by (K_m + theta_m) C_mm, too small "
    "where measurements are noisy; with other inputs it is biased otherwise, and A_mn is biased "
    "(docs/theory/paper.md): treat this number as the method's output, not as the plant's answer"
)
WITHOUT_INPUTS = (
    "FedGC has no B_mn: whatever inputs do to other units, it says nothing of it; treat this number as the method's "
    "output, not as the plant's answer"
)
NOT_COVERED = (
    "inputs: they are noised like the states, but the analysis is about measurements only",
    "local models A_mm, B_mm and |C_mm|: sent as they are, and taken to come from other data",
)


class PublishedMethod(Method):
    """Training by penalty, augmented Lagrangian, hybrid schedule, or FedGC."""

    sends = frozenset({"Introduction", "AugmentedStates", "Settled", "PerturbedStates"})
    private = sends
    hears = frozenset({"Plan", "StateGradients", "Finished"})
    mechanism = MECHANISM
    options = TrainingOptions

    def check(self, task: Task) -> None:
        if task.privacy is not None and task.privacy.accounting != "published":
            raise OptionError(
                f"{task.label}: there is no rigorous accounting of method {task.method!r}, whose messages all depend "
                "on all measurements; pass accounting='published' for the paper's formulas, or use method='sufficient'"
            )
        options_of(task).weights(task.units)

    def uses_inputs(self, task: Task) -> bool:
        return task.method != "fedgc"

    def rounds(self, task: Task) -> int | None:
        return sum(phase.rounds for phase in phases_of(task))

    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        return TrainingServer(config_of(task))

    def unit(self, task: Task, own: UnitData) -> UnitState:
        part = _whole_part(task, own)
        if task.privacy is None:
            return client_state(task, part, ClientData.from_rows(*part.estimates(own.y, own.u)))
        # with the paper's noise, on rows that R_max has cut
        bound = signal_bound(part.unit, part.model, own.u, task.privacy.clip, part.uses_inputs)
        inside, cut = clipped_rows(own.y, bound)
        data = ClientData.from_rows(*part.estimates(inside, clipped_rows(own.u, bound)[0]))
        responses = estimator_responses(part.unit.name, part.estimator, part.working_model, len(own.y))
        multiplier = classical_multiplier(*shares_of(task))
        noise = MessageNoise(responses, bound, multiplier, task.privacy.source, cut=float(cut.mean()))
        return replace(client_state(task, part, data), noise=noise)

    def pooled(
        self, task: Task, own: Mapping[str, UnitData], seen: bool
    ) -> tuple[ServerState, dict[str, UnitState]] | None:
        chosen = options_of(task)
        if task.privacy is not None or chosen.compress is False or (chosen.compress is None and seen):
            return None
        if seen:
            raise OptionError("fit: 'watch' and 'over_the_wire' show the real messages: pass compress=False with them")
        parts = {name: _whole_part(task, own[name]) for name in task.units}
        data = {name: ClientData.from_rows(*part.estimates(own[name].y, own[name].u)) for name, part in parts.items()}
        steps, fewer = data[task.units[0]].steps, compress(data, chosen.refined_target)
        ones = fewer[task.units[0]].ones
        if chosen.compress is None and 2 * len(ones) >= steps:
            return None
        server = TrainingServer(config_of(task), ones=ones, steps=steps)
        return server, {name: client_state(task, parts[name], fewer[name]) for name in task.units}

    def learned(self, task: Task, state: TrainingServer) -> Learned:
        evidence = state.evidence
        assert evidence is not None
        B = evidence.B_local + state.B_cross
        if not self.uses_inputs(task):  # FedGC: B ≡ 0
            B = np.zeros((len(B), sum(map(len, task.inputs.values()))))
            said = WITHOUT_INPUTS
        else:
            said = REFINED_BIASED if options_of(task).refined_target else BIASED
        caveats: tuple[Caveat, ...] = (Caveat("published-method", "", said),)
        if state.growth > 2:
            caveats += (Caveat("noise-grew", "", DROWNED.format(growth=state.growth)),)
        # process noise is not sent; no question that this method answers needs it
        return Learned(
            evidence.A_local + state.A_cross, B, None, evidence.states, status_of(task, state), caveats=caveats
        )

    def part(self, task: Task, own: UnitData, state: TrainingUnit) -> UnitPart:
        part = given_part(task, own, self.uses_inputs(task)).trained(state.theta, state.phi)
        return part if task.privacy is None else replace(part, rows_digest=own.digest)

    def charges(self, task: Task, model: LocalModel, rows: int) -> list[Charge]:
        assert task.privacy is not None
        epsilon, delta = shares_of(task)
        # the gradient that answers a message is paid for here, too: its noise is added at the server
        cost = Cost(*task.privacy.span(rows), epsilon=2 * epsilon, delta=2 * delta)
        return [Charge(cost, f"round {number}: message and gradient") for number in range(self.rounds(task) or 0)]

    def charge(self, task: Task, model: LocalModel, rows: int, message: Message) -> Charge:
        assert isinstance(message, PerturbedStates)
        cost = self.charges(task, model, rows)[0].cost
        return Charge(cost, f"round {message.round}: message and gradient", message.noise)

    def least_noise(self, task: Task, rows: int, message: Message, made: object) -> float | None:
        if not isinstance(message, PerturbedStates) or not isinstance(made, MessageRelease):
            return None
        if (message.noise, message.clip) != (made.sigma, made.clip):
            return None
        return made.sensitivity * classical_multiplier(*shares_of(task))

    def privacy_report(
        self, task: Task, spending: Spending, server: TrainingServer, units: Mapping[str, TrainingUnit]
    ) -> PrivacyReport:
        epsilon, delta = shares_of(task)
        made = {}
        for name, state in units.items():
            assert state.noise is not None
            made[name] = state.noise.bound, spending.noise[name], state.noise.cut
        mechanism = (
            f"{MECHANISM}; {self.rounds(task)} rounds, each with epsilon {epsilon:.4g} and delta {delta:.3g} for the "
            "message and as much for the gradient, added up"
        )
        return spending.report(mechanism, made, NOT_COVERED, gaps=published_gaps(server, units, epsilon))


def options_of(task: Task) -> TrainingOptions:
    """The task's options, with the defaults of a private training if it is one: few rounds, each of which costs."""
    given = dict(task.options)
    if task.privacy is None:
        return TrainingOptions.parse(task.method, given)
    if task.privacy.window > 1:
        raise OptionError(
            f"fit: the published analysis knows one measurement only, not window={task.privacy.window}; leave it out, "
            "or use method='sufficient'"
        )
    for name, unfit, why in (
        ("tol", None, "is a stopping rule, but a private training runs its rounds, whatever the gradients are; leave "
            "it out, give rounds"),
        ("loss_tol", None, "is a stopping rule, but a private training runs its rounds, whatever the losses are; leave "
            "it out, give rounds"),
        ("compress", True, "does not go with privacy, whose noise is per row; leave it out"),
        ("target", "refined", "='refined' does not go with privacy: the published analysis bounds messages whose "
            "target is h_a; leave it out, or use method='sufficient'"),
        ("solver", "conjugate", "='conjugate' does not go with privacy: noise differs by the round; leave it out"),
    ):  # fmt: skip
        if given.get(name) is not None and unfit in (None, given[name]):
            raise OptionError(f"fit: option {name!r}{why if why.startswith('=') else ' ' + why}")
    given.setdefault("solver", "gradient")
    given.setdefault("warm_rounds", PRIVATE_ROUNDS // 2)
    if given.get("rounds") is None:
        given["rounds"] = PRIVATE_ROUNDS // 2 if task.method == "hybrid" else PRIVATE_ROUNDS
    return TrainingOptions.parse(task.method, given)


def phases_of(task: Task) -> tuple[Phase, ...]:
    chosen, names = options_of(task), task.units
    conjugate = chosen.solver == "conjugate"
    rounds = chosen.rounds if chosen.rounds is not None else (50 if conjugate else 2000)
    if task.method == "lagrangian":
        return (Phase("lagrangian", rounds, (chosen.rho,) * len(names)),)
    warm = (Phase("lagrangian", chosen.warm_rounds, (chosen.rho,) * len(names)),) if task.method == "hybrid" else ()
    return (*warm, Phase("penalty", rounds, chosen.weights(names), conjugate))


def shares_of(task: Task) -> tuple[float, float]:
    """ε and δ of one message, and of one gradient, in a training of so many rounds."""
    assert task.privacy is not None
    rounds = sum(phase.rounds for phase in phases_of(task))
    return task.privacy.epsilon / (2 * rounds), task.privacy.delta / (2 * rounds)


def config_of(task: Task) -> ServerConfig:
    """What the server is asked to do."""
    noise = None
    if task.privacy is not None:
        noise = GradientNoise(classical_multiplier(*shares_of(task)), task.privacy.source)
    return ServerConfig(task.units, phases_of(task), options_of(task), task.method != "fedgc", task.seed, noise)


def _whole_part(task: Task, own: UnitData) -> UnitPart:
    missing = np.isnan(own.y).any(axis=1)
    if missing.any():
        raise DataError(
            f"unit {own.unit.name!r}: {int(missing.sum())} of {missing.size} rows have missing measurements (first: "
            f"row {int(np.argmax(missing))}); method {task.method!r} multiplies every y[t] by theta and cannot skip a "
            "row. Fit an unbroken stretch with recording.slice(start, stop), or use method 'sufficient'"
        )
    return given_part(task, own, task.method != "fedgc")


def client_state(task: Task, part: UnitPart, data: ClientData) -> TrainingUnit:
    """A unit's machine on its data, or on fewer rows that stand for them."""
    chosen, draw = options_of(task), stream(task.seed, "augmented", part.unit.name)
    theta = chosen.scale * draw.standard_normal((part.model.states, part.model.n_outputs))
    phi = np.zeros(part.model.states)
    if task.method != "fedgc":
        phi = chosen.scale * draw.standard_normal(part.model.states)
    return TrainingUnit(part.unit.name, AugmentedModel(part.working_model, data), theta, phi, chosen)


def status_of(task: Task, state: TrainingServer) -> Status:
    """How a training ended."""
    record, options = state.record, options_of(task)
    assert record is not None
    if task.privacy is not None:
        text = f"ran its {state.round} rounds: a private training has no stopping rule that looks at what it has found"
        return Status(False, state.round, record.gradient, text)
    if state.converged:
        text = f"converged in {state.round} rounds to a relative gradient of {options.tol:g}"
    elif options.loss_tol is not None and record.server_loss <= options.loss_tol:
        text = f"stopped in round {state.round}: the server loss {record.server_loss:.4g} is at or below loss_tol"
    else:
        given = any(step is not None for step in (options.eta_1, options.eta_2, options.gamma_1, options.gamma_2))
        other = options.solver == "gradient" and not given and record.phase == "penalty"
        more = f"give more, rounds={4 * state.round}"
        remedy = f"{more}, or solver='conjugate'" if other else more
        text = f"not converged: relative gradient {record.gradient:.2g} after {state.round} rounds; {remedy}"
    gradient = state.settled_gradient if state.settled else record.gradient
    return Status(state.converged, state.round, gradient, text)


def published_gaps(done: TrainingServer, trained: Mapping[str, TrainingUnit], epsilon: float) -> tuple[str, ...]:
    """What the published analysis leaves open, with the numbers of this fit where it has some.

    ``epsilon``: of one message or gradient.
    """
    releases = [state.release for state in trained.values() if state.release is not None]
    ratio = max(r.constants.trajectory / r.constants.message for r in releases)
    trajectory = (
        f"taken together the rows of one message move by {ratio:.2g} times what is accounted for here"
        if ratio > 1
        else f"here that is hidden by the triangle inequality in kappa_m (all rows together: {ratio:.2g} of it)"
    )
    holds = "which it is here" if epsilon <= 1 else "which it is not here, so the noise may be too small"
    weakest = min(float(np.linalg.norm(state.model.model.C, 2)) for state in trained.values())
    small = f", which is too small here (the smallest |C_mm| is {weakest:.2g})" if weakest < 1 else ""
    penalty = max(float(phase.penalty.max()) for phase in done.config.phases)
    return (
        "one measurement touches every later row of the message, and the formula bounds one row: the trajectory is one "
        f"release, and the sum over t is missing; {trajectory}",
        "theta_m and phi_m are trained on measurements without noise, and carry every measurement into every row of "
        "every later message, earlier rows included",
        "replacing a measurement moves it by up to 2 R_y, the formula has R_y: the noise is half of what it should be",
        f"the formula sqrt(2 ln(1.25/delta))/epsilon holds for an epsilon of at most 1 per release, {holds} "
        f"({epsilon:.3g})",
        "A_mm, B_mm, |C_mm|, R_max, beta_m, L_m, C_msg and the noise level are sent as they are; the last three are "
        "functions of theta_m, so of the measurements",
        f"Lemma A.8 has |C_mm| where its proof needs 1{small}, and bounds the refined states by the constant L_m of "
        "the augmented ones: it depends on units of measure, and is not a bound in general",
        "Lemma A.8 is about dL/dh_a; with dL/dĥ_a beside it, a row moves further, in proportion to the penalty "
        f"(w = {penalty:.3g} here), and in the augmented Lagrangian with every round"
        if done.config.options.refined_gradient and penalty > 0
        else "Lemma A.8 takes a measurement to move a gradient through the states only, not through the couplings, "
        "which are trained on all of them",
        "the constants follow theta_m: noise on the gradients moves it, that raises kappa_m and L_m, and so the noise; "
        f"here the noise grew {done.growth:.3g}-fold over the rounds",
        "gradients are computed from messages that are noised already: their own noise and their half of epsilon "
        "protect nothing more",
    )
