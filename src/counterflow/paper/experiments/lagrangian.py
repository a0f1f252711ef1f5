"""Penalty method, augmented Lagrangian, and the hybrid of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError
from counterflow.fits.history import History
from counterflow.fits.training import fit
from counterflow.paper.experiments import figures, two_units
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Table, Task, Value
from counterflow.paper.experiments.figures import Drawing, Panel, band, level, over_rounds, series
from counterflow.paper.experiments.two_units import LABELS, TRAINED, UNITS, climb, penalised
from counterflow.paper.experiments.verdicts import Verdict, above, below, both, holds, lower, said, told

METHODS = {"penalty": "penalty (PM)", "lagrangian": "augmented Lagrangian (AL)", "hybrid": "hybrid: AL, then PM"}
STEPS = ("eta_1", "eta_2", "gamma_1", "gamma_2", "alpha_A", "alpha_B")
WEIGHTS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
TUNED_AT, TUNED_ROUNDS = 10.0, 200
SWITCHES, SWITCHED_ROUNDS = (10, 20, 30, 50, 100, 150), 300  # rounds of AL before PM, and of both together
EARLY = 50  # rounds after which "quickly" is judged
SMALLEST = 2.0**-30
TINY = 1e-300
GREATEST = 1e12  # a loss ratio at which a training counts as diverged
SCHEME = "Not comparable whatever is found, because the paper does not write its IMEX step out; with ours {}."
OF_SCHEME = ("oscillations", "server", "clients", "optimum", "hybrid", "objective", "stable")  # claims that rest on it


class Lagrangian(Experiment, name="lagrangian", revision=2):
    last_xi = WEIGHTS[-1]

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        trained = [run for method in METHODS for run in two_units.runs(request, method)]
        tuned = {"tuned_at": TUNED_AT, "weights": list(WEIGHTS), "rounds": TUNED_ROUNDS}
        switched = {"switches": list(SWITCHES), "rounds": SWITCHED_ROUNDS}
        some = trained[: 3 if request.quick else 5]
        parts = ((("plant", "steps", "run"), tuned), (("plant", "steps", "run", "xi", "rho"), switched))
        more = [Task("lagrangian", {**{k: t[k] for k in kept}, **added}) for kept, added in parts for t in some]
        return (*trained, *more)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        return _switched(task) if "switches" in task.settings else _tuned(task)

    def by_method(self, key: str, early: bool = False) -> dict[str, FloatArray]:
        """A number or a series of all runs; of a series the value after ``EARLY`` rounds (the last one kept before)."""
        found = {method: self.of(key, method=method) for method in METHODS}
        if not early:
            return found
        place = np.searchsorted(self.rounds, EARLY, side="right") - 1
        return {method: runs[:, place] for method, runs in found.items()}

    @property
    def rounds(self) -> FloatArray:
        return self.where(method="penalty")[0].array("round")

    def relative_loss(self, name: str) -> dict[str, FloatArray]:
        """A client's loss over the proprietary one."""
        base = self.by_method(f"proprietary_loss/{name}")
        return {m: loss / base[m][:, None] for m, loss in self.by_method(f"client_loss/{name}").items()}

    def judge(self) -> Iterator[Claim]:
        climbs, late, D = (self.by_method(key) for key in ("climb", "climb/late", "disentanglement"))
        early, last = self.by_method("disentanglement", early=True), {m: runs[:, -1] for m, runs in D.items()}
        relative = [self.relative_loss(name) for name in UNITS]
        loss = {m: np.mean([each[m][:, -1] for each in relative], axis=0) for m in METHODS}
        delta = {LABELS[name]: self.by_method(f"delta_d/{name}", early=True) for name in UNITS}
        deltas = [f"{label} AL {told(d['lagrangian'])}, PM {told(d['penalty'])}" for label, d in delta.items()]
        # what the penalty method minimizes, at the end: L_s + Σ L_m,a
        lasts = [self.by_method(key) for key in ("server_loss", *(f"client_loss/{n}" for n in UNITS))]
        objective = {m: np.sum([each[m][:, -1] for each in lasts], axis=0) for m in METHODS}
        gain = {m: 1 - float(np.mean(found)) for m, found in loss.items()}
        kept = f"{100 * gain['lagrangian'] / gain['penalty']:.2g} %" if gain["penalty"] > 0 else "nothing"
        apart = float(np.max(np.abs(objective["hybrid"] / objective["penalty"] - 1)))
        # rows: runs, columns: weights
        penalty, augmented = (self.of(m, tuned_at=...) >= 1 for m in ("penalty", "lagrangian"))
        large = np.array(WEIGHTS) > TUNED_AT
        shares = [_share(penalty[:, which]) for which in (large, ~large)]
        unstable = both(above(penalty[:, large].mean(axis=1), 0.5), holds(not penalty[:, ~large].any()))
        excess = self.of("excess", tuned_at=...).T
        steps = self.of("safe", tuned_at=...) / self.of("step", tuned_at=...)
        farther = above(np.log(excess[1] / excess[0]))
        better = below(objective["hybrid"] - objective["lagrangian"])
        lower_D = both(*(lower(each["lagrangian"], each["penalty"]) for each in (early, last)))
        lower_delta = both(*(lower(d["lagrangian"], 0.9 * d["penalty"]) for d in delta.values()))
        warm = self.where(method="hybrid")[0].task["warm_rounds"]
        found: Mapping[str, tuple[Verdict, dict[str, Any]]] = {
            "oscillations": (above(climbs["lagrangian"] - climbs["penalty"]), {"climbs": climbs}),
            "server": (lower_D, {"early": early, "last": last}),
            "clients": (lower_delta, {"deltas": "; ".join(deltas)}),
            "optimum": (above(loss["lagrangian"] - loss["penalty"]), {"loss": loss, "kept": kept}),
            "hybrid": (below(late["hybrid"] - late["lagrangian"]), {"late": late, "rounds": warm}),
            "objective": (better, {"objective": objective, "apart": apart}),
            "tuned": (unstable, {"shares": shares}),
            "stable": (below(augmented.mean(axis=1), 0.05), {"share": _share(augmented)}),
            "trade-off": (both(unstable, farther), {"steps": steps, "excess": excess}),
        }
        for key, (verdict, values) in found.items():  # with our IMEX step, where there is one in it
            scheme = SCHEME.format(said(verdict, "it is so", "it is not so", "it is undecided"))
            shown: Verdict = "not comparable" if key in OF_SCHEME else verdict
            yield replace(self.claim(key, shown, scheme=scheme, **values), seen=verdict)

    @cached_property
    def switched(self) -> tuple[FloatArray, FloatArray]:
        """Rises after the switch of the hybrid, and of AL alone over the same rounds: runs, switches."""
        return self.of("hybrid", switches=...), self.of("lagrangian", switches=...)

    @property
    def switching(self) -> str:
        """For which rounds of the switch the hybrid is smoother, and for which it is not."""
        by_verdict: dict[Verdict, list[str]] = {}
        for at, gap in zip(SWITCHES, (self.switched[0] - self.switched[1]).T, strict=True):
            by_verdict.setdefault(below(gap), []).append(str(at))
        parts = {"agrees": "is smoother", "does not hold": "is not smoother", "undecided": "is undecided"}
        some = [f"after {', '.join(by_verdict[v])} rounds of AL it {parts[v]}" for v in parts if v in by_verdict]
        return f"By the round of the switch: {'; '.join(some)}."

    def tabulate(self) -> Iterator[Table]:
        rows = tuple(
            (str(at), told(hybrid, 2), told(alone, 2), _share(hybrid < alone))
            for at, hybrid, alone in zip(SWITCHES, self.switched[0].T, self.switched[1].T, strict=True)
        )
        head = ("rounds of AL", "hybrid", "AL alone", "recordings with a smoother hybrid")
        yield Table(self.caption("switches", recordings=len(self.switched[0])), head, rows)

    def draw(self) -> Mapping[str, Drawing]:
        def course(title: str, found: Mapping[str, FloatArray], y: str, *more: figures.Curve) -> Panel:
            curves = [band(self.rounds, runs, METHODS[m], colour) for colour, (m, runs) in enumerate(found.items())]
            return over_rounds(title, [*curves, *more], y)

        titles = {name: label.capitalize() for name, label in LABELS.items()}
        shown = [
            ("Server loss", "server_loss", figures.SERVER_LOSS),
            ("Disentanglement", "disentanglement", figures.DISENTANGLEMENT),
        ]
        for k, (name, title) in enumerate(titles.items(), start=1):
            shown.append((f"{title}: loss", f"client_loss/{name}", figures.CLIENT_LOSS.format(k)))
        shown += [(f"{title}: $\\delta_d$", f"delta_d/{name}", figures.SHIFT_LEFT) for name, title in titles.items()]
        rounds = [
            course(title, {m: np.maximum(runs, TINY) for m, runs in self.by_method(key).items()}, y)
            for title, key, y in shown
        ]
        gain = [course(t, self.relative_loss(n), figures.RELATIVE_LOSS, level(1.0)) for n, t in titles.items()]
        ends = series(WEIGHTS, {METHODS[m]: self.of(m, tuned_at=...) for m in ("penalty", "lagrangian")})
        xi, y = "penalty weight $\\xi$ ($\\rho = 2\\xi$)", "last $L_s$ / first $L_s$"
        stability = [Panel("Given step sizes", [*ends, level(1.0)], xi, y, WEIGHTS, True)]
        return {
            "lagrangian-rounds": self.drawing("rounds", rounds, paper="Fig. 5"),
            "lagrangian-gain": self.drawing("gain", gain, columns=2),
            "lagrangian-stability": self.drawing("stability", stability, columns=1),
        }


def _switched(task: Task) -> Mapping[str, Value]:
    """All rises of log L_s after a switch from AL to PM, at several rounds, and AL's over the same rounds."""
    _, recording, models = two_units.recorded_run(task)

    def loss(method: str, **rounds: int) -> FloatArray:
        options = TRAINED | {"xi": task["xi"], "rho": task["rho"], "seed": task["run"]} | rounds
        return penalised(fit(recording, models, method=method, **options).history, task["xi"])

    alone = loss("lagrangian", rounds=task["rounds"])
    hybrid = {at: loss("hybrid", warm_rounds=at, rounds=task["rounds"] - at) for at in task["switches"]}
    return {
        "hybrid": np.array([climb(found[at:]) for at, found in hybrid.items()]),
        "lagrangian": np.array([climb(alone[at:]) for at in hybrid]),
    }


def _tuned(task: Task) -> Mapping[str, Value]:
    """Which weights a training with given steps survives: those that are best at one weight."""
    _, recording, models = two_units.recorded_run(task)
    weights, tuned_at = task["weights"], task["tuned_at"]

    def left(
        method: str, step: float, weight: float, loss_of: Callable[[History], FloatArray], least: float = 0.0
    ) -> float:
        """The share of a loss, above its least, that a training with one step size for everything leaves."""
        options = TRAINED | dict.fromkeys(STEPS, step) | {"xi": weight, "rho": 2 * weight, "rounds": task["rounds"]}
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                loss = loss_of(fit(recording, models, method=method, seed=task["run"], **options).history)
        except CounterflowError:  # it left the range of numbers
            return GREATEST
        return float(min(GREATEST, (loss[-1] - least) / (loss[0] - least)))

    def ratio(method: str, step: float, weight: float) -> float:
        """L_s of the last round over that of the first."""
        return left(method, step, weight, lambda history: penalised(history, weight))

    def objective(history: History) -> FloatArray:
        """What the penalty method descends on, at the weight of the tuning."""
        return two_units.combined(penalised(history, tuned_at), history.client_loss)

    least = float(objective(fit(recording, models, method="penalty", xi=tuned_at).history)[-1])
    steps = 2.0 ** -np.arange(4.0, 13.0)
    tuned = float(steps[int(np.argmin([ratio("penalty", step, tuned_at) for step in steps]))])
    safe = tuned  # the largest power of two that survives the largest weight
    while ratio("penalty", safe, max(weights)) >= 1 and safe > SMALLEST:
        safe /= 2
    excess = np.array([left("penalty", step, tuned_at, objective, least) for step in (tuned, safe)])
    ends = {m: np.array([ratio(m, tuned, weight) for weight in weights]) for m in ("penalty", "lagrangian")}
    return {"step": tuned, "safe": safe, "excess": excess, **ends}


def _share(found: Any) -> str:
    return f"{int(np.sum(found))} of {np.size(found)}"
