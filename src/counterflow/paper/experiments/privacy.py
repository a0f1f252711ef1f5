"""Convergence and accuracy under differential privacy, as published and with rigorous accounting, against epsilon."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import UnstableError
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit
from counterflow.paper.experiments.audit import audited
from counterflow.paper.experiments.effects import between, coupling_error, effect_error, recorded, responses
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Task, Value, Verdict
from counterflow.paper.experiments.figures import COLOURS, SERVER_LOSS, Drawing, Panel, band, level, points
from counterflow.paper.experiments.selection import grid, stacked, where
from counterflow.paper.experiments.verdicts import mostly, rarely
from counterflow.paper.experiments.wording import caption, claim, described, summary
from counterflow.plant import Plant, random_plant
from counterflow.privacy import Privacy

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


def _compute(task: Task) -> Mapping[str, Value]:
    plant = random_plant(units=["one", "two"], rng=task["run"])
    recording = recorded(plant, task["steps"], 1000 + task["run"], POLE)
    if task["method"] == AUDIT:
        privacy = Privacy(task["epsilon"], DELTA, accounting="published", seed=task["run"])
        return {"audited": max(audited(plant, recording, privacy, ROUNDS, name) for name in plant.names)}
    epsilon, published = task["epsilon"], task["method"] == "published"

    def trained(seed: int) -> Fit:
        privacy = None
        if epsilon != NONE:
            accounting = "published" if published else "rigorous"
            release = None if published else "rows"
            privacy = Privacy(epsilon, DELTA, accounting=accounting, seed=seed, release=release)
        options: dict[str, Any] = {"uncertainty": False}
        if published:
            options = {"method": "penalty", "solver": "gradient", "rounds": ROUNDS}
            if privacy is None:
                options["tol"] = 0.0
        return fit(recording, plant.locals(), privacy=privacy, **options)

    found = trained(task["run"])
    values: dict[str, Value] = {
        "B": coupling_error(found.plant, plant, "B"),
        "A": coupling_error(found.plant, plant, "A"),
        "effects": _effects(found.plant, plant),
        "converged": float(found.status.converged),
        "gaps": float(len(found.privacy.gaps)) if found.privacy is not None else 0.0,
        "spent": found.privacy.epsilon if found.privacy is not None else float("nan"),
    }
    if epsilon != NONE:
        values["spread"] = _spread(found.plant, trained(OTHER_NOISE + task["run"]).plant, plant)
    if published:
        history = found.history
        ratios = [history.client_loss[n] / history.proprietary_loss[n] for n in plant.names]
        values["server_loss"] = np.asarray(history.server_loss)
        values["client_loss"] = np.mean(ratios, axis=0)
    return values


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


def _tasks(request: Request) -> tuple[Task, ...]:
    epsilons = QUICK_EPSILONS if request.quick else EPSILONS
    steps, count = (QUICK_STEPS, QUICK_REPETITIONS) if request.quick else (STEPS, REPETITIONS)
    axes = {"method": list(METHODS), "epsilon": (*epsilons, NONE), "run": range(count)}
    audits = {"epsilon": epsilons, "run": range(count)}
    return (*grid("privacy", axes, steps=steps), *grid("privacy", audits, method=AUDIT, steps=AUDIT_STEPS))


def epsilons_of(outcomes: Outcomes) -> tuple[float, ...]:
    """Those of the private runs, least first."""
    return tuple(sorted({float(o.task["epsilon"]) for o in outcomes} - {NONE}))


def errors(outcomes: Outcomes, method: str, epsilon: float, key: str = "B") -> FloatArray:
    """One number of each run, at most ``CEILING``."""
    found = stacked(where(outcomes, method=method, epsilon=epsilon), key)
    return np.asarray(np.minimum(np.nan_to_num(found, nan=CEILING), CEILING))


def _falls(outcomes: Outcomes, epsilon: float) -> FloatArray:
    """The last L_s of the published training over the first, of every run."""
    loss = stacked(where(outcomes, method="published", epsilon=epsilon), "server_loss")
    return np.asarray(loss[:, -1] / loss[:, 0])


def _by_epsilon(found: Mapping[float, FloatArray], digits: int = 2) -> str:
    """Medians at every epsilon, as text."""
    return ", ".join(f"{np.median(v):.{digits}g} at ε = {e:g}" for e, v in found.items() if e != NONE)


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    epsilons = epsilons_of(outcomes)
    middle, least, most = epsilons[len(epsilons) // 2], epsilons[0], epsilons[-1]
    everywhere = (*epsilons, NONE)
    falls = {e: _falls(outcomes, e) for e in everywhere}
    published = {e: where(outcomes, method="published", epsilon=e) for e in everywhere}
    clients = {e: stacked(runs, "client_loss")[:, -1] for e, runs in published.items()}
    theirs, ours = ({e: errors(outcomes, m, e) for e in everywhere} for m in METHODS)
    spread = {e: errors(outcomes, "published", e, "spread") for e in epsilons}
    audits = {e: stacked(where(outcomes, method=AUDIT, epsilon=e), "audited") for e in epsilons}
    broken = any((found > e).any() for e, found in audits.items())
    gaps = max(o.number("gaps") for o in outcomes if o.task["method"] == "published")
    rigorous = [e for e in epsilons if np.median(ours[e]) < USABLE]
    say = partial(claim, "privacy", middle=middle, least=least, largest=most)
    for key, found, digits in (("loss", falls, 2), ("client", clients, 3)):
        yield say(key, rarely(found[middle], 1.0), medians=_by_epsilon(found, digits), without=found[NONE])
    yield say("spread", mostly(np.log(spread[least] / spread[most])), medians=_by_epsilon(spread))
    yield say("B", rarely(theirs[NONE], USABLE), medians=_by_epsilon(theirs, 3), without=theirs[NONE])
    told = ", ".join(f"{audits[e].max():.2g} where {e:g} is claimed" for e in epsilons)
    refuted: Verdict = "does not hold" if broken else "undecided"
    yield say("guarantee", refuted, audits=told, plants=len(audits[middle]), gaps=gaps)
    remark = f"from ε = {min(rigorous):g} on." if rigorous else "at none of these ε."
    yield say("rigorous", "beyond the paper", remark=remark, medians=_by_epsilon(ours), without=ours[NONE])


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    epsilons = epsilons_of(outcomes)

    def accuracy(title: str, key: str, y: str) -> Panel:
        curves = []
        for colour, (method, name) in zip((1, 0), METHODS.items(), strict=True):
            runs = np.stack([errors(outcomes, method, e, key) for e in epsilons], axis=1)
            plain = float(np.median(errors(outcomes, method, NONE, key)))
            curves += [points(epsilons, runs, name, colour, "median"), level(plain, color=COLOURS[colour])]
        curves.append(level(1.0, linestyle=(0, (4, 2))))
        return Panel(title, curves, "ε of all that is released", y, epsilons, log_y=True)

    def course(title: str, key: str, y: str) -> Panel:
        curves = []
        for colour, e in zip((2, 3, 4), (NONE, epsilons[-1], epsilons[len(epsilons) // 2]), strict=True):
            runs = stacked(where(outcomes, method="published", epsilon=e), key)
            label = f"published, ε = {e:g}" if e else "published, no noise"
            curves.append(band(np.arange(1.0, runs.shape[1] + 1), runs, label, colour, middle="median"))
        return Panel(title, curves, "round k + 1", y, log_y=True)

    panels = (
        accuracy("Couplings", "B", "relative error of $B_{mn}$"),
        accuracy("Effects", "effects", "relative error of effects"),
        course("Server loss", "server_loss", SERVER_LOSS),
        course("Client loss", "client_loss", "augmented / proprietary"),
    )
    return {"privacy": Drawing(caption("privacy", "errors"), panels, columns=2)}


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    epsilons = epsilons_of(outcomes)
    falls = {e: float((_falls(outcomes, e) < 1).mean()) for e in epsilons}  # in which share of the runs
    lost, kept = ([e for e in epsilons if falls[e] <= FEW], [e for e in epsilons if falls[e] >= 1 - FEW])
    usable = [e for e in epsilons if np.median(errors(outcomes, "sufficient", e)) < USABLE]
    falling = ", ".join(f"{e:g}" for e in kept)
    return summary("privacy", claims, lost=lost, kept=falling, usable=usable)


EXPERIMENT = described("privacy", _tasks, _compute, _figures, _claims, revision=2, text=_text)
