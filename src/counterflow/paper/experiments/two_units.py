"""The Monte-Carlo study that most of the paper's figures show: two units, two states, inputs and outputs each.

One run of it (a plant, a recording, random initial parameters, a training) is one task, and serves the experiments
on losses, disentanglement and validation here, on transfer functions and on the augmented Lagrangian alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.fits.history import History
from counterflow.fits.training import fit
from counterflow.paper.experiments import figures
from counterflow.paper.experiments.effects import coupling_error, loss_ratios, without_couplings
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcome, Request, Task, Value, grid
from counterflow.paper.experiments.figures import (
    BLUE,
    INK,
    MUTED,
    VERMILION,
    Drawing,
    Panel,
    band,
    level,
    over_rounds,
    points,
)
from counterflow.paper.experiments.verdicts import above, below, both, either, lower, told_each
from counterflow.plant import LocalModel, Plant, Recording, excitation, random_plant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = ("unit1", "unit2")
LABELS = {"unit1": "client 1", "unit2": "client 2"}
TITLES = {name: label.capitalize() for name, label in LABELS.items()}
SHIFT_AT, SHIFT = 0.5, 2.0  # of the validation's inputs: where their mean jumps, and by how much
POINTS = 160  # rounds of a training that are kept, evenly spaced on a logarithmic scale
SETTINGS: dict[str, Any] = {"plant": 0, "steps": 2000, "xi": 10.0, "rho": 20.0, "rounds": 1500, "warm_rounds": 20}
QUICK: dict[str, Any] = {**SETTINGS, "rounds": 500}
REPETITIONS, QUICK_REPETITIONS = 10, 4
# the paper's training: random initial parameters, gradient steps, and all of its rounds
TRAINED: dict[str, Any] = {"tol": 0.0, "initial_scale": 1.0, "solver": "gradient"}


def plant_of(seed: int, noise: float = 1.0) -> Plant:
    """A plant of the study: unit 1 does not feel the states of unit 2; ``noise``: variance of the measurement noise."""
    dense = random_plant(UNITS, outputs=2, measurement_noise=noise, rng=seed)
    A = dense.A.copy()
    A[dense.state_slice("unit1"), dense.state_slice("unit2")] = 0.0
    return dense.replace(A=A)


def recorded_run(
    task: Task, noise: float = 1.0, seed: str = "run"
) -> tuple[Plant, Recording, Mapping[str, LocalModel]]:
    """Plant, recording and local models of a task."""
    plant = plant_of(task["plant"], noise)
    return plant, plant.simulate(task["steps"], rng=1000 + int(task[seed])), plant.locals()


def runs(request: Request, method: str = "penalty") -> tuple[Task, ...]:
    """The Monte-Carlo runs of one method."""
    settings, count = (QUICK, QUICK_REPETITIONS) if request.quick else (SETTINGS, REPETITIONS)
    return grid("synthetic", {"run": range(count)}, **settings, method=method)


def found_plant(run: Outcome, method: str = "published") -> Plant:
    """The plant that the published or the default method has found in one run."""
    prefix = "default/" if method == "default" else ""
    return plant_of(run.task["plant"]).replace(A=run.array(f"{prefix}A"), B=run.array(f"{prefix}B"))


def kept_rounds(rounds: int) -> NDArray[np.intp]:
    """Indices of the rounds whose losses are kept: the first, the last, and evenly on a logarithmic scale."""
    return np.unique(np.geomspace(1, rounds, POINTS).round().astype(np.intp)) - 1


def compute(task: Task) -> Mapping[str, Value]:
    """Train once, and keep the course of it, what it has found, and how well that predicts new data.

    Series by round: ``server_loss`` (1/T Σ|r_s|² + ξ 1/T Σ|D|², for every method), ``disentanglement``; ``climb``: all
    rises of the former, ``climb/late`` those after the rounds that the hybrid spends with the Lagrangian; for each unit
    and model the squared one-step errors on new data ``error/model/unit``.
    """
    plant, recording, models = recorded_run(task)
    options = TRAINED | {key: task[key] for key in ("xi", "rho", "rounds", "warm_rounds")}
    if task["method"] == "hybrid":
        options["rounds"] -= task["warm_rounds"]
    found = fit(recording, models, method=task["method"], seed=task["run"], **options)
    history, kept = found.history, kept_rounds(len(found.history))
    loss = penalised(history, task["xi"])
    total = combined(loss, history.client_loss)
    values: dict[str, Value] = {
        "round": (kept + 1).astype(np.float64),
        "server_loss": loss[kept],
        "disentanglement": history.disentanglement[kept],
        "climb": climb(loss),
        "climb/late": climb(loss[task["warm_rounds"] :]),
        "rises": float((np.diff(total) > 1e-12 * total[:-1]).mean()),  # the share of rounds; what is less is rounding
        "A": found.plant.A,
        "B": found.plant.B,
    }
    for name, other in (UNITS, UNITS[::-1]):
        part = found.parts[name]
        assert part.theta is not None
        assert part.phi is not None
        effect = recording[other].u[:-1] @ plant.block("B", effect=name, cause=other).T
        values |= {
            f"client_loss/{name}": history.client_loss[name][kept],
            f"proprietary_loss/{name}": float(history.proprietary_loss[name][-1]),
            f"delta_d/{name}": history.delta_d[name][kept],
            f"theta/{name}": part.theta,
            f"phi/{name}": part.phi,
            f"mean_effect/{name}": float(np.linalg.norm(effect.mean(axis=0))),
            f"rms_effect/{name}": float(np.sqrt((effect**2).sum(axis=1).mean())),
        }
    if task["method"] == "penalty":  # the method of the paper's validation
        default = fit(recording, models).plant
        errors = found.validate(shifted(plant, task["run"], task["steps"]), oracle=plant).errors
        values |= {"default/A": default.A, "default/B": default.B}
        values |= {f"error/{model}/{name}": errors[model][name] for model in errors for name in UNITS}
    return values


def penalised(history: History, xi: float) -> FloatArray:
    """1/T Σ|r_s|² + ξ 1/T Σ|D|² of every round, whatever the method."""
    return np.asarray(history.residual_loss + xi * history.disentanglement)


def combined(server_loss: FloatArray, client_loss: Mapping[str, FloatArray]) -> FloatArray:
    """What the training descends on: the server's loss and those of all clients."""
    return np.asarray(server_loss + sum(client_loss.values()))


def climb(loss: FloatArray) -> float:
    """The sum of all rises of a loss on a logarithmic scale: 0 for one that only falls, whatever it falls by."""
    change = np.diff(np.log(loss))
    return float(change[change > 0].sum())


def shifted(plant: Plant, run: int, steps: int) -> Recording:
    """New data of the same plant: the inputs' mean jumps half-way, their spread drifts from 0.5 to 1.5."""
    inputs = excitation.mean_shift(plant, steps, rng=2000 + run, at=SHIFT_AT, shift=SHIFT)
    return plant.simulate(steps, rng=2000 + run, inputs=inputs)


# ---- losses of server and clients


class Synthetic(Experiment, name="synthetic", revision=3):
    NOISES, WEIGHTS = (1.0, 0.1, 0.01), (0.1, 10.0)  # of the study over plants
    PLANTS, QUICK_PLANTS = 10, 4
    STUDY = ((1.0, 0.1), (1.0, 10.0), (0.1, 0.1), (0.1, 10.0), (0.01, 0.1), (0.01, 10.0))  # noise and weight

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        settings, plants = (QUICK, Synthetic.QUICK_PLANTS) if request.quick else (SETTINGS, Synthetic.PLANTS)
        axes = {"noise": Synthetic.NOISES, "xi": Synthetic.WEIGHTS, "plant": range(plants)}
        return (*runs(request), *grid("synthetic", axes, steps=settings["steps"], rounds=settings["rounds"]))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """One run; or the losses on one plant of the study, and the gain where there is nothing to be learned."""
        if "noise" not in task.settings:
            return compute(task)
        plant, recording, models = recorded_run(task, task["noise"], "plant")
        options = TRAINED | {"rounds": task["rounds"], "xi": task["xi"]}
        history = fit(recording, models, method="penalty", seed=task["plant"], **options).history
        kept = kept_rounds(len(history))
        values: dict[str, Value] = {"round": (kept + 1).astype(np.float64), "server_loss": history.server_loss[kept]}
        alone = without_couplings(plant).simulate(task["steps"], rng=1000 + task["plant"])
        control = loss_ratios(fit(alone, models, method="penalty", xi=task["xi"]).history)
        for name, ratio in zip(UNITS, control, strict=True):
            values[f"relative/{name}"] = history.client_loss[name][kept] / history.proprietary_loss[name][-1]
            values[f"control/{name}"] = float(1 - ratio)
        return values

    @cached_property
    def gains(self) -> FloatArray:
        """Percent by which augmented clients end below the proprietary ones: plants, settings of the study, units."""
        ends = [[1 - self.of(f"relative/{name}", noise=n, xi=w)[:, -1] for name in UNITS] for n, w in self.STUDY]
        return np.moveaxis(100 * np.array(ends), 2, 0)

    @cached_property
    def control(self) -> FloatArray:
        """The same on plants without couplings."""
        ends = [[self.of(f"control/{name}", noise=n, xi=w) for name in UNITS] for n, w in self.STUDY]
        return np.moveaxis(100 * np.array(ends), 2, 0)

    def judge(self) -> Iterator[Claim]:
        loss = self.of("server_loss", method="penalty")
        fall, rises = loss[:, -1] / loss[:, 0], self.of("rises", method="penalty").max()
        yield self.claim("loss", below(fall, 0.1), fall=fall, rises=rises)
        for k, name in enumerate(UNITS):
            last = self.of(f"client_loss/{name}", method="penalty")[:, -1]
            one, own = 1 - last / self.of(f"proprietary_loss/{name}", method="penalty"), self.gains[:, :, k]
            medians = zip(self.STUDY, np.median(own, axis=0), strict=True)
            by_setting = ", ".join(f"{gain:.2g} % (R = {noise:g}, xi = {w:g})" for (noise, w), gain in medians)
            about = {"client": LABELS[name], "by_setting": by_setting, "own": own, "one": one}
            yield self.claim("gain", above(own.mean(axis=1)), **about)
        with_them, without = (each.mean(axis=(1, 2)) for each in (self.gains, self.control))
        yield self.claim("couplings", above(with_them - 3 * without), with_them=with_them, without=without)

    def draw(self) -> Mapping[str, Drawing]:
        server = self.course("server_loss", "server", 2, method="penalty")
        losses, plants, ends = [over_rounds("Global loss", [server], figures.SERVER_LOSS)], [], []
        clients = {
            weight: (f"augmented client, ξ = {weight:g}", k) for weight, k in zip(self.WEIGHTS, (0, 4), strict=True)
        }
        for k, (name, title) in enumerate(TITLES.items()):
            own = self.course(f"client_loss/{name}", "augmented client", method="penalty")
            base, rounds = (self.of(key, method="penalty") for key in (f"proprietary_loss/{name}", "round"))
            held = band(rounds[0], base[:, None] + 0 * rounds, "proprietary client (baseline)", 1)
            losses.append(over_rounds(f"{title}: losses", [own, held], figures.CLIENT_LOSS.format(k + 1)))
            for noise in self.NOISES:
                shown = [
                    self.course(f"relative/{name}", label, colour, "median", noise=noise, xi=weight)
                    for weight, (label, colour) in clients.items()
                ]
                curves = [*shown, level(1.0, "proprietary client")]
                plants.append(over_rounds(f"{title}, R = {noise:g}", curves, figures.RELATIVE_LOSS))
            first = self.WEIGHTS[0]
            rows = [(label, self.gains, weight) for weight, (label, _) in clients.items()]
            gains = {
                label: values[:, [self.STUDY.index((noise, weight)) for noise in self.NOISES], k]
                for label, values, weight in (*rows, (f"without couplings, ξ = {first:g}", self.control, first))
            }
            x, y = "variance of the measurement noise, R", "gain at the end (%)"
            curves = [*figures.series(self.NOISES, gains, "median", (0, 4, 3)), level(0.0)]
            ends.append(Panel(f"{title}: gain", curves, x, y, log_x=self.NOISES))
        client = Panel("", [_client], "", "", sketch=True)
        return {
            "synthetic-client": self.drawing("client", [client], paper="Fig. 1", height=1.7),
            "synthetic-losses": self.drawing("losses", losses, paper="Fig. 2"),
            "synthetic-plants": self.drawing("plants", [*plants, *ends]),
        }


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


# ---- disentanglement, and what it does to the couplings that are found


class Disentanglement(Experiment, name="disentanglement"):
    WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
    last_xi = WEIGHTS[-1]
    FOUND = 0.5  # relative error below which we call a coupling found at all
    VANISHED = 1e-3  # the part of D from which downwards it has gone
    # what is drawn against rounds: panel, its axis, the subject and the fact of its claim
    SERIES: Mapping[str, tuple[str, str, str, str]] = {
        "disentanglement": ("Server: $\\mathcal{D}$", figures.DISENTANGLEMENT, "D at the server", ""),
        **{
            f"delta_d/{n}": (
                f"{TITLES[n]}: $\\delta_d$", figures.SHIFT_LEFT, f"delta_d at {LABELS[n]}",
                "delta_d falls during training",
            )
            for n in UNITS
        },
    }  # fmt: skip

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        trained, weights = runs(request), list(Disentanglement.WEIGHTS)
        sweep = [{key: t[key] for key in ("plant", "steps", "run")} | {"weights": weights} for t in trained]
        return (*trained, *(Task("disentanglement", settings) for settings in sweep))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """The stationary point for every weight, on the recording of one Monte-Carlo run."""
        plant, recording, models = recorded_run(task)
        found = [fit(recording, models, method="penalty", xi=weight) for weight in task["weights"]]
        return {
            "disentanglement": np.array([each.history.disentanglement[-1] for each in found]),
            "loss": np.array([loss_ratios(each.history) for each in found]),
            "error": np.array([[coupling_error(each.plant, plant, letter) for letter in "AB"] for each in found]),
        }

    def errors(self, letter: str, method: str) -> list[float]:
        """Of the couplings that the runs have found."""
        trained = self.where(method="penalty")
        return [coupling_error(found_plant(run, method), plant_of(run.task["plant"]), letter) for run in trained]

    def judge(self) -> Iterator[Claim]:
        for key, (_, _, subject, fact) in self.SERIES.items():
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
            yield self.claim(letter, below(published, self.FOUND), published=published, default=default)
        D, loss, error = (self.of(key, weights=...) for key in ("disentanglement", "loss", "error"))
        yield self.claim("weight", lower(D[:, -1] / self.VANISHED, D[:, 0]), first=D[:, 0], last=D[:, -1])
        A, B = error.mean(axis=0).T
        yield self.claim("cost", "beyond the paper", D=D.mean(axis=0), loss=loss.mean(axis=(0, 2)), A=A, B=B)

    def draw(self) -> Mapping[str, Drawing]:
        rounds = [
            over_rounds(title, [self.course(key, "penalty method", method="penalty")], y)
            for key, (title, y, *_) in self.SERIES.items()
        ]
        total, loss, error = (self.of(key, weights=...) for key in ("disentanglement", "loss", "error"))
        losses = [points(self.WEIGHTS, loss[:, :, k], LABELS[name], k + 1) for k, name in enumerate(UNITS)]
        errors = []
        for k, letter in enumerate("AB"):
            default = np.full((1, 2), np.mean(self.errors(letter, "default")))
            errors.append(points(self.WEIGHTS, error[:, :, k], f"$\\hat{{{letter}}}_{{mn}}$, published", k + 3))
            # as points without any, because a legend has lines first and points later
            look = {"color": figures.COLOURS[k + 3], "linewidth": 1.0, "linestyle": figures.LINES[k], "marker": ""}
            ends = self.WEIGHTS[:: len(self.WEIGHTS) - 1]
            errors.append(points(ends, default, f"$\\hat{{{letter}}}_{{mn}}$, default", **look))
        xi, some = "penalty weight $\\xi$", self.WEIGHTS[::2]
        server = [points(self.WEIGHTS, total, "server")]
        weights = (
            Panel("Disentanglement", server, xi, figures.DISENTANGLEMENT, log_x=some, log_y=True),
            Panel("Losses", [*losses, level(1.0)], xi, figures.RELATIVE_LOSS, log_x=some),
            Panel("Couplings", [*errors, level(1.0)], xi, "relative error", log_x=some, range_y=(0.0, None)),
        )
        return {
            "disentanglement-rounds": self.drawing("rounds", rounds, paper="Fig. 3"),
            "disentanglement-weights": self.drawing("weights", weights),
        }


# ---- one-step predictions on new data whose inputs are not stationary


class Validation(Experiment, name="validation"):
    MODELS: Mapping[str, tuple[str, int]] = {  # label and colour
        "proprietary": ("proprietary client (PCM)", 1),
        "augmented": ("augmented client (ACM)", 0),
        "server": ("server", 2),
        "oracle": ("centralized oracle", 3),
    }
    OURS = ("augmented", "server")
    TRAINED = ("proprietary", *OURS)
    WINDOW, EVERY = 50, 10  # rows of the moving average in the figure, and of which one is drawn
    SOON = 0.05  # of the rows: "at once" after the shift
    JUMP = 1.2

    tasks = staticmethod(runs)
    compute = staticmethod(compute)

    @staticmethod
    def phases(outcome: Outcome, model: str, name: str) -> tuple[float, ...]:
        """Mean squared error before the shift, at once after it, and in the last quarter."""
        errors = outcome.array(f"error/{model}/{name}")
        rows = len(errors)
        at = int(np.ceil(SHIFT_AT * (rows + 1)))  # the first error that a shifted input has reached
        soon = errors[at : at + max(1, int(Validation.SOON * rows))]
        return tuple(float(part.mean()) for part in (errors[:at], soon, errors[-(rows // 4) :]))

    @cached_property
    def errors(self) -> Mapping[str, Mapping[str, FloatArray]]:
        """Of every client and model the errors of all runs in the three phases (rows)."""
        return {
            label: {m: np.array([self.phases(run, m, n) for run in self.outcomes]).T for m in self.MODELS}
            for n, label in LABELS.items()
        }

    @property
    def gains(self) -> str:
        """How much better the augmented clients are, before the shift."""
        means = [{m: float(phase[0].mean()) for m, phase in found.items()} for found in self.errors.values()]
        return " and ".join(f"{100 * (1 - each['augmented'] / each['proprietary']):.2g} %" for each in means)

    def judge(self) -> Iterator[Claim]:
        for client, found in self.errors.items():
            before = {m: phase[0] for m, phase in found.items()}
            gap = {m: before[m] - before["proprietary"] for m in self.OURS}
            yield self.claim("new-data", both(*map(below, gap.values())), client=client, before=before, gap=gap)
        for client, found in self.errors.items():
            jump = {m: soon / before for m, (before, soon, _) in found.items()}
            verdict = both(*(above(jump[m], self.JUMP) for m in self.TRAINED))
            yield self.claim("jump", verdict, client=client, jumps=told_each(jump))
        for client, found in self.errors.items():
            rise = {m: soon - before for m, (before, soon, _) in found.items()}
            gap = {m: rise[m] - rise["proprietary"] for m in self.OURS}
            rises = ", ".join(f"{m} {rise[m].mean():.3g}" for m in self.MODELS)
            yield self.claim("rise", both(*map(below, gap.values())), client=client, rises=rises, gap=gap)
        for client, found in self.errors.items():
            shares = {
                m: (soon - late) / (soon - before) for m, (before, soon, late) in found.items() if m in self.TRAINED
            }
            more = (above(shares[m] - least) for m in self.OURS for least in (shares["proprietary"], 0.0))
            some = either(*map(above, shares.values())) == "agrees"
            verdict = both(*more) if some else "not comparable"
            yield self.claim("recovery", verdict, client=client, shares=told_each(shares))
        gaps = {
            m: np.mean([found[m][0] / found["oracle"][0] for found in self.errors.values()], axis=0)
            for m in self.TRAINED
        }
        yield self.claim("oracle", both(*(above(gaps[m], 1.05) for m in self.OURS)), gaps=told_each(gaps))

    def draw(self) -> Mapping[str, Drawing]:
        kernel, panels, closer = np.full(self.WINDOW, 1.0 / self.WINDOW), [], []
        for name, title in TITLES.items():
            errors = {model: self.of(f"error/{model}/{name}") for model in self.MODELS}
            rows = errors["oracle"].shape[1]
            smooth = {
                m: np.stack([np.convolve(e, kernel, "valid")[:: self.EVERY] for e in each])
                for m, each in errors.items()
            }
            x = self.WINDOW + self.EVERY * np.arange(
                smooth["oracle"].shape[1], dtype=np.float64
            )  # last row of a window
            means = {model: each.mean(axis=0) for model, each in smooth.items()}
            curves = [band(x, smooth[m], label, colour) for m, (label, colour) in self.MODELS.items()]
            ratios = [band(x, means[m] / means["proprietary"], *self.MODELS[m]) for m in self.OURS]
            one = level(1.0, color=figures.COLOURS[1], linestyle=figures.LINES[1])
            t, along, at = "row t of the new data", (0, rows), SHIFT_AT * (rows + 1)

            def shift(axes: Axes, at: float = at) -> None:
                axes.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (1, 1)))

            y = "squared prediction error"
            panels.append(Panel(title, [*curves, shift], t, y, range_x=along, range_y=(0.0, None)))
            ratio = "error / proprietary error"
            closer.append(Panel(f"{title}, relative", [*ratios, shift, one], t, ratio, range_x=along))
        return {
            "validation-errors": self.drawing("errors", panels, columns=2, paper="Fig. 4"),
            "validation-relative": self.drawing("relative", closer, columns=2),
        }
