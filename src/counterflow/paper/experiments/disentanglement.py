"""Disentanglement in the training of two units, and what it does to the couplings that are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from counterflow.fits.training import fit
from counterflow.paper.experiments import figures, two_units
from counterflow.paper.experiments.effects import coupling_error, loss_ratios
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value
from counterflow.paper.experiments.figures import Drawing, Panel, level, over_rounds, points
from counterflow.paper.experiments.two_units import LABELS, UNITS, found_plant, plant_of
from counterflow.paper.experiments.verdicts import below, lower

WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
FOUND = 0.5  # relative error below which we call a coupling found at all
VANISHED = 1e-3  # the part of D from which downwards it has gone
# what is drawn against rounds: whose it is, the subject and the fact of its claim, its symbol and unit
SERIES = {"disentanglement": ("server", "D at the server", "", "\\mathcal{D}", figures.DISENTANGLEMENT)} | {
    f"delta_d/{name}": (
        label, f"delta_d at {label}", "delta_d falls during training", "\\delta_d", figures.SHIFT_LEFT
    )
    for name, label in LABELS.items()
}  # fmt: skip


class Disentanglement(Experiment, name="disentanglement"):
    last_xi = WEIGHTS[-1]

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        trained = two_units.runs(request)
        sweep = [{key: t[key] for key in ("plant", "steps", "run")} | {"weights": list(WEIGHTS)} for t in trained]
        return (*trained, *(Task("disentanglement", settings) for settings in sweep))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """The stationary point for every weight, on the recording of one Monte-Carlo run."""
        plant, recording, models = two_units.recorded_run(task)
        found = [fit(recording, models, method="penalty", xi=weight) for weight in task["weights"]]
        return {
            "disentanglement": np.array([each.history.disentanglement[-1] for each in found]),
            "loss": np.array([loss_ratios(each.history) for each in found]),
            "error": np.array([[coupling_error(each.plant, plant, letter) for letter in "AB"] for each in found]),
        }

    def errors(self, letter: str, method: str) -> list[float]:
        """Of the couplings that the runs have found."""
        runs = self.where(method="penalty")
        return [coupling_error(found_plant(run, method), plant_of(run.task["plant"]), letter) for run in runs]

    def judge(self) -> Iterator[Claim]:
        for key, (_, subject, fact, *_) in SERIES.items():
            first, last = self.of(key, method="penalty")[:, [0, -1]].T
            yield self.claim("falls", below(last / first, 0.5), subject=subject, fact=fact, first=first, last=last)
        delta, phi, mean, rms = (
            np.array([self.of(f"{key}/{name}", method="penalty") for name in UNITS])
            for key in ("delta_d", "phi", "mean_effect", "rms_effect")
        )
        relative, meant = np.mean(delta[:, :, -1] / np.linalg.norm(phi, axis=2), axis=0), float(np.mean(mean / rms))
        verdict = below(relative, 0.1) if meant > 0.1 else "not comparable"
        yield self.claim("phi", verdict, meant=meant, relative=relative)
        for letter in "BA":
            published, default = (self.errors(letter, method) for method in ("published", "default"))
            yield self.claim(letter, below(published, FOUND), published=published, default=default)
        D, loss, error = (self.of(key, weights=...) for key in ("disentanglement", "loss", "error"))
        yield self.claim("weight", lower(D[:, -1] / VANISHED, D[:, 0]), first=D[:, 0], last=D[:, -1])
        A, B = error.mean(axis=0).T
        yield self.claim("cost", "beyond the paper", D=D.mean(axis=0), loss=loss.mean(axis=(0, 2)), A=A, B=B)

    def draw(self) -> Mapping[str, Drawing]:
        rounds = []
        for key, (who, _, _, symbol, y) in SERIES.items():
            curve = self.course(key, "penalty method", method="penalty")
            rounds.append(over_rounds(f"{who.capitalize()}: ${symbol}$", [curve], y))
        total, loss, error = (self.of(key, weights=...) for key in ("disentanglement", "loss", "error"))
        losses = [points(WEIGHTS, loss[:, :, k], LABELS[name], k + 1) for k, name in enumerate(UNITS)]
        errors = []
        for k, letter in enumerate("AB"):
            default = np.full((1, 2), np.mean(self.errors(letter, "default")))
            errors.append(points(WEIGHTS, error[:, :, k], f"$\\hat{{{letter}}}_{{mn}}$, published", k + 3))
            # as points without any, because a legend has lines first and points later
            look = {"color": figures.COLOURS[k + 3], "linewidth": 1.0, "linestyle": figures.LINES[k], "marker": ""}
            errors.append(points(WEIGHTS[:: len(WEIGHTS) - 1], default, f"$\\hat{{{letter}}}_{{mn}}$, default", **look))
        xi, some = "penalty weight $\\xi$", WEIGHTS[::2]
        server = [points(WEIGHTS, total, "server")]
        weights = (
            Panel("Disentanglement", server, xi, figures.DISENTANGLEMENT, log_x=some, log_y=True),
            Panel("Losses", [*losses, level(1.0)], xi, figures.RELATIVE_LOSS, log_x=some),
            Panel("Couplings", [*errors, level(1.0)], xi, "relative error", log_x=some, range_y=(0.0, None)),
        )
        return {
            "disentanglement-rounds": self.drawing("rounds", rounds, paper="Fig. 3"),
            "disentanglement-weights": self.drawing("weights", weights),
        }
