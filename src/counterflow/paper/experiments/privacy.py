"""Convergence and accuracy under differential privacy, as published and with rigorous accounting, against epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import UnstableError
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.contraction import settled_gain
from counterflow.paper.experiments import figures
from counterflow.paper.experiments.effects import between, coupling_error, effect_error, recorded, responses
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, band, level, points
from counterflow.paper.experiments.verdicts import Verdict, mostly, rarely
from counterflow.paper.unit import TrainingUnit
from counterflow.plant import Plant, Recording, random_plant
from counterflow.privacy import Privacy
from counterflow.privacy.accounting import gaussian_epsilon
from counterflow.privacy.clipping import clipped_rows
from counterflow.protocol import Message, PerturbedStates, Plan, StateGradients

EPSILONS, QUICK_EPSILONS = (1.0, 3.0, 10.0, 30.0, 100.0), (3.0, 30.0, 100.0)
NONE = 0.0  # stands for no privacy at all
DELTA, ROUNDS, POLE = 1e-6, 10, 0.9
STEPS, QUICK_STEPS, REPETITIONS, QUICK_REPETITIONS = 10_000, 4_000, 8, 4
AUDIT, AUDIT_STEPS = "audit", 500  # the fewer rows, the more one measurement moves theta
OTHER_NOISE = 100  # added to the seed of a second draw of the noise
METHODS = {"published": "published, with its noise", "sufficient": "sufficient messages, rigorous"}
USABLE = 0.5  # relative error of B_mn from which downwards an estimate is of use
FEW = 0.25  # of the runs
NOISED = "training under the published noise"  # the fact of two claims, and what the paper says of them
PAPER = "experiments validate the claims with respect to differential privacy (section 1; none is shown)"
CEILING = 1e6  # errors beyond are shown as this


class PrivacyResult(Experiment, name="privacy", revision=2):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        epsilons = QUICK_EPSILONS if request.quick else EPSILONS
        steps, count = (QUICK_STEPS, QUICK_REPETITIONS) if request.quick else (STEPS, REPETITIONS)
        axes = {"method": list(METHODS), "epsilon": (*epsilons, NONE), "run": range(count)}
        audits = {"epsilon": epsilons, "run": range(count)}
        return (*grid("privacy", axes, steps=steps), *grid("privacy", audits, method=AUDIT, steps=AUDIT_STEPS))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        plant = random_plant(units=["one", "two"], rng=task["run"])
        recording = recorded(plant, task["steps"], 1000 + task["run"], POLE)
        epsilon, published = task["epsilon"], task["method"] != "sufficient"
        accounting: dict[str, Any] = {"accounting": "published"} if published else {"release": "rows"}
        if task["method"] == AUDIT:
            privacy = Privacy(epsilon, DELTA, seed=task["run"], **accounting)
            return {"audited": max(audited(plant, recording, privacy, ROUNDS, name) for name in plant.names)}

        def trained(seed: int) -> Fit:
            privacy = None if epsilon == NONE else Privacy(epsilon, DELTA, seed=seed, **accounting)
            options: dict[str, Any] = {"uncertainty": False}
            if published:
                options = {"method": "penalty", "solver": "gradient", "rounds": ROUNDS}
                options |= {"tol": 0.0} if privacy is None else {}
            return fit(recording, plant.locals(), privacy=privacy, **options)

        found = trained(task["run"])
        values: dict[str, Value] = {letter: coupling_error(found.plant, plant, letter) for letter in "AB"}
        values["effects"] = _effects(found.plant, plant)
        values["gaps"] = float(len(found.privacy.gaps)) if found.privacy is not None else 0.0
        if epsilon != NONE:
            values["spread"] = _spread(found.plant, trained(OTHER_NOISE + task["run"]).plant, plant)
        if published:
            history = found.history
            ratios = [history.client_loss[n] / history.proprietary_loss[n] for n in plant.names]
            values |= {"server_loss": np.asarray(history.server_loss), "client_loss": np.mean(ratios, axis=0)}
        return values

    @cached_property
    def epsilons(self) -> tuple[float, ...]:
        """Those of the private runs, least first."""
        return self.levels("epsilon", method=AUDIT)

    @property
    def chosen(self) -> dict[str, float]:
        """The epsilons that claims are judged at."""
        return {"least": self.epsilons[0], "middle": self.epsilons[len(self.epsilons) // 2], "most": self.epsilons[-1]}

    def errors(self, method: str, epsilon: float, key: str = "B") -> FloatArray:
        """One number of each run, at most ``CEILING``."""
        found = self.of(key, method=method, epsilon=epsilon)
        return np.asarray(np.minimum(np.nan_to_num(found, nan=CEILING), CEILING))

    @cached_property
    def falls(self) -> dict[float, FloatArray]:
        """The last L_s of the published training over the first, of every run, by epsilon."""
        loss = {e: self.of("server_loss", method="published", epsilon=e) for e in (*self.epsilons, NONE)}
        return {e: runs[:, -1] / runs[:, 0] for e, runs in loss.items()}

    @property
    def lost(self) -> list[float]:
        """Where the training is drowned."""
        return [e for e in self.epsilons if (self.falls[e] < 1).mean() <= FEW]

    @property
    def kept(self) -> str:
        """Where the losses fall."""
        return ", ".join(f"{e:g}" for e in self.epsilons if (self.falls[e] < 1).mean() >= 1 - FEW)

    @property
    def usable(self) -> list[float]:
        return [e for e in self.epsilons if np.median(self.errors("sufficient", e)) < USABLE]

    def judge(self) -> Iterator[Claim]:
        everywhere = (*self.epsilons, NONE)
        clients = {e: self.of("client_loss", method="published", epsilon=e)[:, -1] for e in everywhere}
        theirs, ours = ({e: self.errors(m, e) for e in everywhere} for m in METHODS)
        spread = {e: self.errors("published", e, "spread") for e in self.epsilons}
        audits = {e: self.of("audited", method=AUDIT, epsilon=e) for e in self.epsilons}

        def medians(found: Mapping[float, FloatArray], digits: int = 2) -> str:
            """At every epsilon."""
            return ", ".join(f"{np.median(found[e]):.{digits}g} at ε = {e:g}" for e in self.epsilons)

        for key, found, digits in (("loss", self.falls, 2), ("client", clients, 3)):
            verdict = rarely(found[self.chosen["middle"]], 1.0)
            yield self.claim(key, verdict, medians=medians(found, digits), without=found[NONE])
        verdict = mostly(np.log(spread[self.chosen["least"]] / spread[self.chosen["most"]]))
        yield self.claim("spread", verdict, medians=medians(spread))
        yield self.claim("B", rarely(theirs[NONE], USABLE), medians=medians(theirs, 3), without=theirs[NONE])
        told = ", ".join(f"{audits[e].max():.2g} where {e:g} is claimed" for e in self.epsilons)
        broken = any((found > e).any() for e, found in audits.items())
        gaps, plants = self.of("gaps", method="published").max(), len(audits[self.epsilons[0]])
        refuted: Verdict = "does not hold" if broken else "undecided"
        yield self.claim("guarantee", refuted, audits=told, plants=plants, gaps=gaps)
        remark = f"from ε = {min(self.usable):g} on." if self.usable else "at none of these ε."
        yield self.claim("rigorous", "beyond the paper", remark=remark, medians=medians(ours), without=ours[NONE])

    def draw(self) -> Mapping[str, Drawing]:
        def accuracy(title: str, key: str, y: str) -> Panel:
            curves = []
            for colour, (method, name) in zip((1, 0), METHODS.items(), strict=True):
                runs = np.stack([self.errors(method, e, key) for e in self.epsilons], axis=1)
                plain = float(np.median(self.errors(method, NONE, key)))
                curves += [points(self.epsilons, runs, name, colour, "median")]
                curves += [level(plain, color=figures.COLOURS[colour])]
            curves.append(level(1.0, linestyle=(0, (4, 2))))
            return Panel(title, curves, "ε of all that is released", y, self.epsilons, log_y=True)

        def course(title: str, key: str, y: str) -> Panel:
            curves = []
            for colour, e in zip((2, 3, 4), (NONE, self.chosen["most"], self.chosen["middle"]), strict=True):
                runs = self.of(key, method="published", epsilon=e)
                label = f"published, ε = {e:g}" if e else "published, no noise"
                curves.append(band(np.arange(1.0, runs.shape[1] + 1), runs, label, colour, middle="median"))
            return Panel(title, curves, "round k + 1", y, log_y=True)

        panels = (
            accuracy("Couplings", "B", "relative error of $B_{mn}$"),
            accuracy("Effects", "effects", "relative error of effects"),
            course("Server loss", "server_loss", figures.SERVER_LOSS),
            course("Client loss", "client_loss", "augmented / proprietary"),
        )
        return {"privacy": self.drawing("errors", panels, columns=2)}


def _spread(one: Plant, other: Plant, true: Plant) -> float:
    """Standard deviation over the noise of all A_mn and B_mn, from two draws on the same rows, over their true size."""
    gaps = [(getattr(one, x) - getattr(other, x))[between(true, x)] for x in "AB"]
    sizes = [getattr(true, x)[between(true, x)] for x in "AB"]
    gap, size = (float(np.linalg.norm(np.concatenate(each))) for each in (gaps, sizes))
    return float(min(gap / np.sqrt(2) / size, CEILING))


def _effects(found: Plant, true: Plant) -> float:
    """Relative error of effects; NaN where they overflow."""
    try:
        return float(min(effect_error(responses(found), responses(true)), CEILING))
    except UnstableError:
        return float("nan")


def audited(plant: Plant, recording: Recording, privacy: Privacy, rounds: int, name: str) -> float:
    """The ε that the messages of one unit really have for one pair of neighbours, given all that the server answered.

    A lower limit of the training's own: it can refute a guarantee, not prove one. A published private training is run
    once. The unit is then followed again through the same answers of the server, with one measurement in the middle at
    the end of its range, and with the opposite in its place: as far apart as clipping allows, in the direction that
    moves the estimated states most. Messages of round k differ by Δ_k, and carry noise σ_k: together they are one
    Gaussian release with μ² = Σ |Δ_k|² / σ_k². Theta is trained on the unit's own measurements, and what that carries
    into later rounds is in Δ_k. Numbers that are sent without noise are not.
    """
    sent: list[PerturbedStates] = []
    answers: list[StateGradients] = []

    def watch(message: Message, _: bool) -> None:
        if message.unit == name and isinstance(message, PerturbedStates):
            sent.append(message)
        elif message.unit == name and isinstance(message, StateGradients):
            answers.append(message)

    options: dict[str, Any] = {"method": "penalty", "solver": "gradient", "rounds": rounds}
    found = fit(recording, plant.locals(), privacy=privacy, watch=watch, **options)
    part, R, own = found.parts[name], sent[0].bound, recording[name]
    direction, releases = np.linalg.svd(settled_gain(plant.local(name)))[2][0], []
    for sign in (1.0, -1.0):
        y = own.y.copy()
        y[len(y) // 2] = sign * R * direction
        data = ClientData.from_rows(*part.estimates(clipped_rows(y, R)[0], clipped_rows(own.u, R)[0]))
        releases.append(followed(AugmentedModel(part.working_model, data), answers))
    pairs = zip(*releases, sent, strict=True)
    mu = sum(float(((one - other) ** 2).sum()) / message.noise**2 for one, other, message in pairs)
    return float(gaussian_epsilon(float(np.sqrt(mu)), privacy.delta))


def followed(model: AugmentedModel, answers: list[StateGradients]) -> list[FloatArray]:
    """What a unit would send in every round, without noise, if the server answered so: [ĥ_c; ĥ_a; h_a], all rows."""
    unit, data, rows = answers[0].unit, model.data, []
    zero = np.zeros((model.model.states, model.model.n_outputs)), np.zeros(model.model.states)
    plan = Plan(unit, offset=True, refined_gradient=True, conjugate=False, penalty=answers[0].penalty)
    state, _ = TrainingUnit(unit, model, *zero).step(plan)
    for answer in answers:
        assert state.sent is not None
        rows.append(np.hstack([data.refined, data.refined + data.previous @ state.theta.T, state.sent]))
        state, _ = state.step(answer)
    return rows
