"""The losses of server and clients in the training of two units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments import figures, schematic, two_units
from counterflow.paper.experiments.effects import loss_ratios, without_couplings
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, band, level, over_rounds, points
from counterflow.paper.experiments.two_units import LABELS, TRAINED, UNITS
from counterflow.paper.experiments.verdicts import above, below

NOISES, WEIGHTS = (1.0, 0.1, 0.01), (0.1, 10.0)  # of the study over plants
PLANTS, QUICK_PLANTS = 10, 4
STUDY = tuple((noise, weight) for noise in NOISES for weight in WEIGHTS)
AUGMENTED = {weight: f"augmented client, ξ = {weight:g}" for weight in WEIGHTS}


class Synthetic(Experiment, name="synthetic", revision=3):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        settings = two_units.QUICK if request.quick else two_units.SETTINGS
        axes = {"noise": NOISES, "xi": WEIGHTS, "plant": range(QUICK_PLANTS if request.quick else PLANTS)}
        study = grid("synthetic", axes, steps=settings["steps"], rounds=settings["rounds"])
        return (*two_units.runs(request), *study)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        return _studied(task) if "noise" in task.settings else two_units.compute(task)

    @cached_property
    def gains(self) -> FloatArray:
        """Percent by which augmented clients end below the proprietary ones: plants, settings of the study, units."""
        ends = [[1 - self.of(f"relative/{name}", noise=n, xi=w)[:, -1] for name in UNITS] for n, w in STUDY]
        return np.moveaxis(100 * np.array(ends), 2, 0)

    @cached_property
    def control(self) -> FloatArray:
        """The same on plants without couplings."""
        ends = [[self.of(f"control/{name}", noise=n, xi=w) for name in UNITS] for n, w in STUDY]
        return np.moveaxis(100 * np.array(ends), 2, 0)

    def judge(self) -> Iterator[Claim]:
        loss = self.of("server_loss", method="penalty")
        fall, rises = loss[:, -1] / loss[:, 0], self.of("rises", method="penalty").max()
        yield self.claim("loss", below(fall, 0.1), fall=fall, rises=rises)
        for k, name in enumerate(UNITS):
            last = self.of(f"client_loss/{name}", method="penalty")[:, -1]
            one, own = 1 - last / self.of(f"proprietary_loss/{name}", method="penalty"), self.gains[:, :, k]
            medians = zip(STUDY, np.median(own, axis=0), strict=True)
            by_setting = ", ".join(f"{gain:.2g} % (R = {noise:g}, xi = {w:g})" for (noise, w), gain in medians)
            about = {"client": LABELS[name], "by_setting": by_setting, "own": own, "one": one}
            yield self.claim("gain", above(own.mean(axis=1)), **about)
        with_them, without = (each.mean(axis=(1, 2)) for each in (self.gains, self.control))
        yield self.claim("couplings", above(with_them - 3 * without), with_them=with_them, without=without)

    def draw(self) -> Mapping[str, Drawing]:
        server = self.course("server_loss", "server", 2, method="penalty")
        losses, plants, ends = [over_rounds("Global loss", [server], figures.SERVER_LOSS)], [], []
        for k, (name, title) in enumerate(zip(UNITS, map(str.capitalize, LABELS.values()), strict=True)):
            own = self.course(f"client_loss/{name}", "augmented client", method="penalty")
            base, rounds = (self.of(key, method="penalty") for key in (f"proprietary_loss/{name}", "round"))
            held = band(rounds[0], base[:, None] + 0 * rounds, "proprietary client (baseline)", 1)
            losses.append(over_rounds(f"{title}: losses", [own, held], figures.client_loss(k + 1)))
            for noise in NOISES:
                shown = [
                    self.course(f"relative/{name}", label, colour, "median", noise=noise, xi=weight)
                    for colour, (weight, label) in zip((0, 4), AUGMENTED.items(), strict=True)
                ]
                curves = [*shown, level(1.0, "proprietary client")]
                plants.append(over_rounds(f"{title}, R = {noise:g}", curves, figures.RELATIVE_LOSS))
            gains = [(self.gains, w, label, c) for c, (w, label) in zip((0, 4), AUGMENTED.items(), strict=True)]
            gains.append((self.control, WEIGHTS[0], f"without couplings, ξ = {WEIGHTS[0]:g}", 3))
            curves = [
                points(NOISES, values[:, [STUDY.index((n, weight)) for n in NOISES], k], label, colour, "median")
                for values, weight, label, colour in gains
            ]
            x, y = "variance of the measurement noise, R", "gain at the end (%)"
            ends.append(Panel(f"{title}: gain", [*curves, level(0.0)], x, y, log_x=NOISES))
        client = Panel("", [schematic.client], "", "", sketch=True)
        return {
            "synthetic-client": self.drawing("client", [client], paper="Fig. 1", height=1.7),
            "synthetic-losses": self.drawing("losses", losses, paper="Fig. 2"),
            "synthetic-plants": self.drawing("plants", [*plants, *ends]),
        }


def _studied(task: Task) -> Mapping[str, Value]:
    """The course of the losses on one plant of the study, and the gain where there is nothing to be learned."""
    plant, recording, models = two_units.recorded_run(task, task["noise"], "plant")
    options = TRAINED | {"rounds": task["rounds"], "xi": task["xi"]}
    history = fit(recording, models, method="penalty", seed=task["plant"], **options).history
    kept = two_units.kept_rounds(len(history))
    values: dict[str, Value] = {"round": (kept + 1).astype(np.float64), "server_loss": history.server_loss[kept]}
    alone = without_couplings(plant).simulate(task["steps"], rng=1000 + task["plant"])
    control = loss_ratios(fit(alone, models, method="penalty", xi=task["xi"]).history)
    for name, ratio in zip(UNITS, control, strict=True):
        values[f"relative/{name}"] = history.client_loss[name][kept] / history.proprietary_loss[name][-1]
        values[f"control/{name}"] = float(1 - ratio)
    return values
