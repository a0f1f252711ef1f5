"""Where the published method finds effects: under which conditions, and with inputs that have which mean.

At a large weight D is gone and the server regresses the constant phi_m on the other units' inputs, whose mean is μ and
whose covariance is Σ (docs/theory/paper.md)::

    B̂ = phi μᵀ (Σ + μμᵀ)⁻¹

which is zero for μ = 0, of rank one for any other, and comes to phi μᵀ / |μ|² for a large one. So all that is asked for
is there if the others have one input in all, a mean that is large beside its spread, and a phi that is the whole of its
mean effect: little noise, and no effect through states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import (
    accuracy,
    between,
    error_ratios,
    loss_ratios,
    recorded,
    stacked,
    trained,
    without_couplings,
)
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Table, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, level, series
from counterflow.paper.experiments.verdicts import both, mostly, rarely
from counterflow.plant import Plant, Recording, random_plant

STEPS, QUICK_PLANTS, GOOD = 5000, 4, 0.5
Cell = tuple[int, str, float, float]  # number of inputs, kind of plant, noise, pole


class Region(Experiment, name="finding"):
    """Inputs with a mean: their number, the couplings and the noise."""

    STEPS, PLANTS, GOOD = STEPS, 10, GOOD
    MEANS = (0.0, 1.0, 3.0, 5.0, 10.0)  # in standard deviations of the inputs
    COMPARED = 3.0  # the mean at which the default method stands beside
    WEIGHTS = (0.1, 10.0, 1e6)
    INPUTS, NOISES, POLES = (1, 2), (1.0, 0.01), (0.0, 0.9)
    KINDS: Mapping[str, str] = {"A and B": "A_mn and B_mn", "only B": "A_mn = 0"}
    CELLS: tuple[Cell, ...] = tuple(product(INPUTS, KINDS, NOISES, POLES))

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """One for each kind of plant, number of inputs, noise, pole and plant."""
        plants = range(QUICK_PLANTS if request.quick else Region.PLANTS)
        noisy = {"noise": Region.NOISES, "pole": Region.POLES, "plant": plants}
        axes = {"inputs": Region.INPUTS, "kind": list(Region.KINDS), **noisy}
        return grid("finding", axes, part="region", steps=STEPS, means=list(Region.MEANS), xi=list(Region.WEIGHTS))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """R² of effects and error of B_mn of the penalty method (means, weights); R² of the default one at one mean."""
        sizes = {"inputs": task["inputs"], "measurement_noise": task["noise"]}
        plant = changed_plant(task["kind"], task["plant"], **sizes)
        found, default = [], float("nan")
        for mean in task["means"]:
            recording = recorded(plant, task["steps"], 100 + task["plant"], task["pole"], mean)
            found.append(stacked(accuracy(each.plant, plant) for each in penalties(recording, plant, task["xi"])))
            if mean == Region.COMPARED:
                default = accuracy(trained("default", recording, plant).plant, plant)["R2"]
        by_mean = stacked(found)
        return {"R2": by_mean["R2"], "B": by_mean["B"], "default/R2": default}

    def cell(self, key: str, cell: Cell) -> FloatArray:
        """A value of all plants of one cell: plants, means and weights."""
        inputs, kind, noise, pole = cell
        return self.of(key, inputs=inputs, kind=kind, noise=noise, pole=pole)

    def judge(self) -> Iterator[Claim]:
        """On effects with inputs that have a mean."""
        R2 = np.stack([self.cell("R2", cell) for cell in self.CELLS])  # cells, plants, means, weights
        middle = np.median(R2, axis=1)
        by_mean = middle.max(axis=2)  # at the weight that is best for it
        best, mean, weight = np.unravel_index(int(np.argmax(middle)), middle.shape)
        there = R2[best][:, mean, weight]
        one, two = (by_mean[[cell[0] == count for cell in self.CELLS], 1:] for count in self.INPUTS)
        still = R2[[cell[3] == 0 for cell in self.CELLS], :, 0, self.WEIGHTS.index(10.0)]
        default = min(float(np.median(self.cell("default/R2", cell))) for cell in self.CELLS)
        at = {"best": cell_name(self.CELLS[best]), "mean": self.MEANS[mean], "xi": self.WEIGHTS[weight], "there": there}
        others = {"one": one, "two": two, "still": float(np.median(still)), "default": default}
        yield self.claim("region", mostly(there, GOOD), **at, **others)

    def tabulate(self) -> Iterator[Table]:
        """Medians over the plants, for every mean at the weight that is best for it."""

        def row(cell: Cell) -> tuple[str, ...]:
            R2, B = (np.median(self.cell(key, cell), axis=0) for key in ("R2", "B"))
            at_best = enumerate(np.argmax(R2, axis=1))
            best = (f"{R2[k, w]:.3f} / {B[k, w]:.2f} ({self.WEIGHTS[w]:g})" for k, w in at_best)
            return cell_name(cell), *best, f"{np.median(self.cell('default/R2', cell)):.4f}"

        head = ("two units", *(f"mean {mean:g}" for mean in self.MEANS), f"R², default method, mean {self.COMPARED:g}")
        caption = self.caption("region", plants=len(self.cell("R2", self.CELLS[0])))
        yield Table(caption, head, tuple(map(row, self.CELLS)))

    def draw(self) -> Mapping[str, Drawing]:
        """R² of effects against the mean of the inputs."""
        panels = []
        for inputs, (kind, label) in product(self.INPUTS, self.KINDS.items()):
            best = {
                f"R = {noise:g}, {colour_name(pole)} inputs": np.median(
                    self.cell("R2", (inputs, kind, noise, pole)), axis=0
                ).max(axis=1)
                for noise, pole in product(self.NOISES, self.POLES)
            }
            title = f"{inputs} input{'s' * (inputs > 1)} a unit, " + label.replace("_mn", "$_{mn}$")
            x, y = "mean of the inputs / standard deviation", "R² of effects"
            panels.append(Panel(title, [*series(self.MEANS, best), level(0.0)], x, y, range_y=(None, 1.05)))
        return {"finding-region": self.drawing("region-means", panels, columns=2)}


class Conditions(Experiment, name="finding"):
    """Other plants and inputs, and where the published method is at least a better predictor."""

    # name: (what is done to the plant, pole of the inputs, their mean)
    CONDITIONS: Mapping[str, tuple[str, float, float]] = {
        "white inputs": ("", 0.0, 0.0),
        "AR(0.5) inputs": ("", 0.5, 0.0),
        "AR(0.9) inputs": ("", 0.9, 0.0),
        "AR(0.99) inputs": ("", 0.99, 0.0),
        "white, mean 1": ("", 0.0, 1.0),
        "white, mean 3": ("", 0.0, 3.0),
        "B_mn = 0, white": ("only A", 0.0, 0.0),
        "B_mn = 0, AR(0.9)": ("only A", 0.9, 0.0),
        "A_mn = 0, AR(0.9)": ("only B", 0.9, 0.0),
        "B_mn / 3, AR(0.9)": ("weak", 0.9, 0.0),
        "3 B_mn, AR(0.9)": ("strong", 0.9, 0.0),
        "slow plants, AR(0.9)": ("slow", 0.9, 0.0),
    }
    DRAWN = (
        "white inputs", "AR(0.9) inputs", "AR(0.99) inputs", "white, mean 1", "B_mn = 0, white", "slow plants, AR(0.9)",
    )  # fmt: skip
    WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e4, 1e6)
    USUAL = WEIGHTS.index(10.0)
    first_xi, last_xi = WEIGHTS[0], WEIGHTS[-1]
    PLANTS, QUICK_PLANTS, GOOD = 20, 6, GOOD

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """One for each condition and plant."""
        plants = range(Conditions.QUICK_PLANTS if request.quick else Conditions.PLANTS)
        axes = {"condition": list(Conditions.CONDITIONS), "plant": plants}
        return grid("finding", axes, part="conditions", steps=STEPS, xi=list(Conditions.WEIGHTS))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """Errors and predictions of the penalty method at every weight, one entry each, and of the default method."""
        kind, pole, mean = Conditions.CONDITIONS[task["condition"]]
        plant, seed = changed_plant(kind, task["plant"]), 100 + task["plant"]
        recording, fresh = (recorded(plant, task["steps"], each, pole, mean) for each in (seed, 900 + seed))
        values: dict[str, Value] = {}
        found = []
        for each in penalties(recording, plant, task["xi"]):
            means, own = each.validate(fresh).mean(), accuracy(each.plant, plant)
            own |= {model: error_ratios(means, model) for model in ("augmented", "server")}
            found.append(own | {"train": float(np.mean(loss_ratios(each.history)))})
        default = trained("default", recording, plant)
        least, best = accuracy(default.plant, plant), default.validate(fresh, oracle=plant).mean()
        values |= {key: each for key, each in stacked(found).items() if key != "effects"}
        values |= {f"default/{key}": least[key] for key in ("B", "A", "R2")}
        return values | {f"default/{model}": error_ratios(best, model) for model in ("server", "oracle")}

    def all(self, key: str) -> FloatArray:
        """Of all conditions (first axis) and plants, at every weight."""
        return np.stack([self.of(key, condition=name) for name in self.CONDITIONS])

    def median(self, name: str, key: str) -> FloatArray:
        """Over the plants of a condition, at every weight."""
        return np.asarray(np.median(self.of(key, condition=name), axis=0))

    def judge(self) -> Iterator[Claim]:
        """On what the published method does do."""
        on_new = {model: self.all(model)[:, :, self.USUAL] for model in ("augmented", "server")}
        lower = both(*(rarely(ratios, 1.0) for each in on_new.values() for ratios in each))
        default = {model: self.median("white inputs", f"default/{model}") for model in ("server", "oracle")}
        about = {"better": {model: each < 1 for model, each in on_new.items()}, "default": default}
        about["on_white"] = {model: each[0] for model, each in on_new.items()}
        yield self.claim("prediction", lower, xi=self.WEIGHTS[self.USUAL], **about)
        persistent = self.of("R2", condition="AR(0.9) inputs")
        ends = {"first": persistent[:, 0], "last": persistent[:, -1]}
        predicted = self.median("AR(0.9) inputs", "augmented")[[0, -1]]
        fewer = int((ends["last"] < ends["first"]).sum())
        yield self.claim("weight", "beyond the paper", **ends, predicted=predicted, lower=fewer)
        R2 = self.all("R2")
        middle = np.median(R2, axis=1)
        at, k = np.unravel_index(int(np.argmax(middle)), middle.shape)
        best, there = tuple(self.CONDITIONS)[at], R2[at][:, k]
        told = {"best": best, "default": self.median(best, "default/R2"), "worst": _low(float(there.min()))}
        yield self.claim("best", mostly(there, GOOD), xi=self.WEIGHTS[k], there=there, **told)
        alone = "B_mn = 0, white"
        k, default = np.argmin(self.median(alone, "A")), {x: self.median(alone, f"default/{x}") for x in ("A", "R2")}
        error, R2 = self.of("A", condition=alone)[:, k], self.median(alone, "R2")[k]
        yield self.claim("states", rarely(error, GOOD), xi=self.WEIGHTS[k], R2=R2, error=error, default=default)
        direction = {name: self.of("cosine", condition=name)[:, 0] for name in ("white inputs", "AR(0.9) inputs")}
        yield self.claim("direction", mostly(direction["white inputs"], GOOD), direction=direction)

    def tabulate(self) -> Iterator[Table]:
        """Medians over the plants, at the weight that is best for R²; shares of good and bad answers; predictions."""
        medians, shares = [], []
        for name in self.CONDITIONS:
            R2, default = (self.of(key, condition=name) for key in ("R2", "default/R2"))
            middle = {key: self.median(name, key) for key in ("R2", "B", "A", "cosine", "augmented")}
            best = int(np.argmax(middle["R2"]))
            gain_tells = rank_correlation(1 - self.of("train", condition=name)[:, 0], R2[:, 0])
            peers = (float(self.median(name, f"default/{model}")) for model in ("server", "oracle"))
            spread = f"({_low(float(R2[:, best].min()))} to {R2[:, best].max():.2f})"
            shown = [("B", 0, ".3g"), ("B", self.USUAL, ".3g"), ("A", 0, ".3g"), ("cosine", 0, ".2f")]
            numbers = [f"{middle[key][at]:{style}}".replace("nan", "–") for key, at, style in shown]
            medians.append((
                name, f"{self.WEIGHTS[best]:g}", f"{middle['R2'][best]:.3f} {spread}", *numbers,
                f"{middle['augmented'][0]:.2f}", ", ".join(f"{each:.2f}" for each in peers), f"{gain_tells:+.2f}",
                f"{np.median(default):.4f} ({default.min():.4f})",
            ))  # fmt: skip
            some = R2[:, [best, 0, self.USUAL]]
            counts = [*(some > GOOD).mean(axis=0), *(some < 0).mean(axis=0)]
            shares.append((name, f"{self.WEIGHTS[best]:g}", *(f"{100 * share:.0f} %" for share in counts)))
        head = (
            "condition", "best ξ", "R² there (plants)", "error of B_mn, ξ = 0.1", "ξ = 10", "error of A_mn, ξ = 0.1",
            "cosine, ξ = 0.1", "prediction, ξ = 0.1", "default's, oracle's prediction", "gain tells R², ξ = 0.1",
            "R², default method (worst)",
        )  # fmt: skip
        plants = len(self.where(condition="white inputs"))
        yield Table(self.caption("conditions", plants=plants), head, tuple(medians))
        above = f"R² > {GOOD:g} there"
        some_head = ("condition", "best ξ", above, "ξ = 0.1", "ξ = 10", "R² < 0 at best ξ", "ξ = 0.1", "ξ = 10")
        yield Table(self.caption("shares", plants=plants), some_head, tuple(shares))
        rows = []
        for k, weight in enumerate(self.WEIGHTS):
            cells = [f"{weight:g}"]
            for model in ("augmented", "server"):
                ratios = self.all(model)[:, :, k]
                better, middles = (ratios < 1).mean(axis=1), np.median(ratios, axis=1)
                worst, least = tuple(self.CONDITIONS)[int(np.argmin(better))], better.min()
                cells.append(f"{100 * better.mean():.4g} %")
                cells.append(f"{100 * least:.0f} % ({worst})" if least < 1 else "100 %")
                cells.append(f"{middles.min():.3g} to {middles.max():.3g}")
            rows.append(tuple(cells))
        has_mean = np.array([mean != 0 for _, _, mean in self.CONDITIONS.values()])
        lower = self.all("augmented")[:, :, -1] < 1
        without, with_mean = (f"{100 * lower[which].mean():.3g} %" for which in (~has_mean, has_mean))
        told = self.caption("predictions", recordings=len(self.outcomes), without=without, with_mean=with_mean)
        heads = ("better than proprietary", "in the worst condition", "error / proprietary, medians")
        yield Table(told, ("ξ", *(f"{who}: {each}" for who in ("client", "server") for each in heads)), tuple(rows))

    def draw(self) -> Mapping[str, Drawing]:
        """Against the weight of the penalty."""
        panels = []
        for title, key, y in (
            ("Effects", "R2", "not explained, 1 - R²"),
            ("Error of $B_{mn}$", "B", "relative error"),
            ("Prediction, new data", "augmented", "augmented / proprietary error"),
        ):
            found = {name.replace("B_mn", "$B_{mn}$"): self.median(name, key) for name in self.DRAWN}
            if key == "R2":
                found = {label: 1 - values for label, values in found.items()}
            curves = [*series(self.WEIGHTS, found), level(1.0)]
            xi, ticks = "weight of the penalty, ξ", (0.1, 10.0, 1e4, 1e6)
            panels.append(Panel(title, curves, xi, y, log_x=ticks, log_y=key == "R2"))
        return {"finding-conditions": self.drawing("weights", panels)}

    @property
    def least(self) -> float:
        """R² of the default method, where it is lowest of what is drawn."""
        return min(float(self.median(name, "default/R2")) for name in self.DRAWN)


def penalties(recording: Recording, plant: Plant, weights: Sequence[float]) -> list[Fit]:
    """Fits by the published penalty method, at each weight."""
    return [fit(recording, plant.locals(), method="penalty", xi=weight) for weight in weights]


def colour_name(pole: float) -> str:
    """White, or AR(pole)."""
    return f"AR({pole:g})" if pole else "white"


def cell_name(cell: Cell) -> str:
    """For tables."""
    inputs, kind, noise, pole = cell
    return f"{inputs} input{'s' * (inputs > 1)} a unit, {Region.KINDS[kind]}, R = {noise:g}, {colour_name(pole)}"


def changed_plant(kind: str, seed: int, **sizes: Any) -> Plant:
    """A random plant of two units, changed as its kind says."""
    plant = random_plant(rng=seed, **sizes)
    if kind in ("only A", "only B"):
        return without_couplings(plant, "B" if kind == "only A" else "A")
    if kind in ("weak", "strong"):
        factor = 3.0 if kind == "strong" else 1 / 3
        return plant.replace(B=np.where(between(plant, "B"), factor * plant.B, plant.B))
    return slowed(plant, seed) if kind == "slow" else plant


def slowed(plant: Plant, seed: int) -> Plant:
    """The same couplings between units whose own poles are real and between 0.5 and 0.9."""
    rng, A = np.random.default_rng(seed), plant.A.copy()
    for name in plant.names:
        own = plant.state_slice(name)
        size = own.stop - own.start
        basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
        A[own, own] = basis @ np.diag(rng.uniform(0.5, 0.9, size)) @ basis.T
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    return plant.replace(A=A * min(1.0, 0.95 / radius))


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Spearman's, of numbers without ties."""
    return float(np.corrcoef(np.argsort(np.argsort(one)), np.argsort(np.argsort(other)))[0, 1])


def _low(value: float) -> str:
    """R² of an unstable estimate has no meaningful size."""
    return f"{value:.2f}" if value > -100 else "below -100"
