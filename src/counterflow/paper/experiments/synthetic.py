"""The losses of server and clients in the training of two units; and the paper's Fig. 1 as boxes and arrows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments import figures, two_units
from counterflow.paper.experiments.effects import loss_ratios, without_couplings
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.figures import BLUE, INK, MUTED, VERMILION, Drawing, Panel, band, level, over_rounds
from counterflow.paper.experiments.two_units import LABELS, TRAINED, UNITS
from counterflow.paper.experiments.verdicts import above, below

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOISES, WEIGHTS = (1.0, 0.1, 0.01), (0.1, 10.0)  # of the study over plants
PLANTS, QUICK_PLANTS = 10, 4
STUDY = tuple((noise, weight) for noise in NOISES for weight in WEIGHTS)
AUGMENTED = {weight: (f"augmented client, ξ = {weight:g}", k) for weight, k in zip(WEIGHTS, (0, 4), strict=True)}

# Fig. 1; of every box: middle, width and height, text, colour
BOXES: tuple[tuple[tuple[float, float], tuple[float, float], str, str], ...] = (
    ((0.6, 3.3), (1.1, 0.8), "$y_m^t$, $u_m^t$", MUTED),
    ((2.55, 3.3), (1.8, 1.0), "proprietary model\nKalman filter\n$A_{mm}, B_{mm}, C_{mm}$", INK),
    ((5.15, 3.3), (2.2, 1.0), "augmented estimate, (5)\n$\\hat h_{m,a} = \\hat h_{m,c} + \\theta_m y_m$", BLUE),
    (
        (8.15, 3.3), (2.75, 1.0),
        "augmented prediction, (4)\n$h_{m,a}^t = A_{mm}\\hat h_{m,a}^{t-1} + B_{mm}u_m^{t-1} + \\phi_m$", BLUE,
    ),
    ((8.15, 1.75), (2.75, 0.9), "client loss, (6)\n$r_{m,a}^t = y_m^t - C_{mm}h_{m,a}^t$,  $L_{m,a}$", BLUE),
    ((5.15, 1.75), (2.2, 0.9), "update, (9), (10)\n$\\theta_m, \\phi_m$ by $\\nabla L_{m,a}$, $\\nabla L_s$", BLUE),
    ((2.55, 1.75), (1.8, 0.9), "chain rule, (7), (8)\n$\\nabla_{\\theta_m} L_s$, $\\nabla_{\\phi_m} L_s$", BLUE),
    (
        (5.15, 0.15), (8.0, 0.75),
        "server: $\\hat A_{mn}, \\hat B_{mn}$ by $L_s$ of all clients, (11) to (15)", VERMILION,
    ),
)  # fmt: skip
# where an arrow begins and ends, its colour, and what stands where beside it
ARROWS: tuple[tuple[tuple[float, float], tuple[float, float], str, tuple[float, float], str], ...] = (
    ((1.15, 3.3), (1.65, 3.3), INK, (0.0, 0.0), ""),
    ((3.45, 3.3), (4.05, 3.3), INK, (3.75, 3.45), "$\\hat h_{m,c}$"),
    ((6.25, 3.3), (6.78, 3.3), INK, (0.0, 0.0), ""),
    ((8.15, 2.8), (8.15, 2.2), INK, (0.0, 0.0), ""),
    ((6.78, 1.75), (6.25, 1.75), INK, (0.0, 0.0), ""),
    ((5.15, 2.2), (5.15, 2.8), INK, (5.35, 2.45), "$\\theta_m$"),
    ((6.0, 2.2), (7.2, 2.8), INK, (6.75, 2.38), "$\\phi_m$"),
    ((3.45, 1.75), (4.05, 1.75), INK, (0.0, 0.0), ""),
    ((2.0, 0.53), (2.0, 1.3), VERMILION, (3.05, 0.88), "$\\nabla_{h_{m,a}} L_s$, $\\nabla_{\\hat h_{m,a}} L_s$"),
)


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
            losses.append(over_rounds(f"{title}: losses", [own, held], figures.CLIENT_LOSS.format(k + 1)))
            for noise in NOISES:
                shown = [
                    self.course(f"relative/{name}", label, colour, "median", noise=noise, xi=weight)
                    for weight, (label, colour) in AUGMENTED.items()
                ]
                curves = [*shown, level(1.0, "proprietary client")]
                plants.append(over_rounds(f"{title}, R = {noise:g}", curves, figures.RELATIVE_LOSS))
            gains = {
                label: values[:, [STUDY.index((noise, weight)) for noise in NOISES], k]
                for label, values, weight in (
                    *((label, self.gains, weight) for weight, (label, _) in AUGMENTED.items()),
                    (f"without couplings, ξ = {WEIGHTS[0]:g}", self.control, WEIGHTS[0]),
                )
            }
            x, y = "variance of the measurement noise, R", "gain at the end (%)"
            curves = [*figures.series(NOISES, gains, "median", (0, 4, 3)), level(0.0)]
            ends.append(Panel(f"{title}: gain", curves, x, y, log_x=NOISES))
        client = Panel("", [_client], "", "", sketch=True)
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


def _client(axes: Axes) -> None:
    """Fig. 1 of the paper, "a simplified view of the computation inside the client m"."""
    from matplotlib.patches import FancyBboxPatch

    def arrow(start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.0})

    for middle, size, text, colour in BOXES:
        corner = middle[0] - size[0] / 2, middle[1] - size[1] / 2
        style: dict[str, Any] = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "facecolor": "none"}
        axes.add_patch(FancyBboxPatch(corner, *size, edgecolor=colour, linewidth=1.1, **style))
        axes.text(*middle, text, ha="center", va="center", fontsize=7, color=INK)
    for start, end, colour, where, text in ARROWS:
        arrow(start, end, colour)
        if text:
            axes.text(*where, text, ha="center", va="bottom", fontsize=7, color=colour)
    # what the client sends: from its states, around the right side, to the server
    right = 9.75
    axes.plot([9.52, right, right, 9.2], [3.3, 3.3, 0.15, 0.15], color=VERMILION, linewidth=1.0)
    arrow((9.3, 0.15), (9.15, 0.15), VERMILION)
    told = "$\\{\\hat h_{m,c}, \\hat h_{m,a}, h_{m,a}, u_m\\}$"
    axes.text(9.68, 1.05, told, ha="right", va="center", fontsize=7, color=VERMILION)
    # measurements and inputs go past the filter, too
    axes.plot([0.6, 0.6, 5.15, 5.15], [3.7, 4.05, 4.05, 3.85], color=MUTED, linewidth=0.9)
    axes.plot([5.15, 8.15, 8.15], [4.05, 4.05, 3.85], color=MUTED, linewidth=0.9)
    axes.text(2.9, 4.08, "$y_m$ never leaves the client", fontsize=6.5, color=MUTED, va="bottom")
    axes.set_xlim(-0.05, 9.95)
    axes.set_ylim(-0.35, 4.4)
