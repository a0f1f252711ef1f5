"""Under which conditions the published method finds effects, and where it is at least a better predictor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import (
    accuracy,
    between,
    error_ratios,
    loss_ratios,
    recorded,
    without_couplings,
)
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Table, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, level, series
from counterflow.paper.experiments.verdicts import both, mostly, rarely
from counterflow.plant import Plant, random_plant

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
LAST_WEIGHT = WEIGHTS[-1]
STEPS, PLANTS, QUICK_PLANTS = 5000, 20, 6
GOOD = 0.5


class Conditions(Experiment, name="finding"):
    first_xi, last_xi = WEIGHTS[0], LAST_WEIGHT

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """One for each condition and plant."""
        axes = {"condition": list(CONDITIONS), "plant": range(QUICK_PLANTS if request.quick else PLANTS)}
        return grid("finding", axes, part="conditions", steps=STEPS, xi=list(WEIGHTS))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """Errors and predictions of the penalty method at every weight, one entry each, and of the default method."""
        kind, pole, mean = CONDITIONS[task["condition"]]
        plant, seed = plant_of(kind, task["plant"]), 100 + task["plant"]
        recording, fresh = (recorded(plant, task["steps"], each, pole, mean) for each in (seed, 900 + seed))
        models = plant.locals()
        fits = [fit(recording, models, method="penalty", xi=weight) for weight in task["xi"]]
        errors, means = (
            [accuracy(found.plant, plant) for found in fits],
            [found.validate(fresh).mean() for found in fits],
        )
        default = fit(recording, models, uncertainty=False)
        least, best = accuracy(default.plant, plant), default.validate(fresh, oracle=plant).mean()
        return {
            **{key: np.array([each[key] for each in errors]) for key in ("B", "A", "cosine", "R2")},
            **{model: np.array([error_ratios(each, model) for each in means]) for model in ("augmented", "server")},
            "train": np.array([float(np.mean(loss_ratios(found.history))) for found in fits]),
            **{f"default/{key}": least[key] for key in ("B", "A", "R2")},
            **{f"default/{model}": error_ratios(best, model) for model in ("server", "oracle")},
        }

    def median(self, name: str, key: str) -> FloatArray:
        """Over the plants of a condition, at every weight."""
        return np.asarray(np.median(self.of(key, condition=name), axis=0))

    def judge(self) -> Iterator[Claim]:
        """On what the published method does do."""
        on_new = {
            model: {name: self.of(model, condition=name)[:, USUAL] for name in CONDITIONS}
            for model in ("augmented", "server")
        }
        lower = both(*(rarely(values, 1.0) for each in on_new.values() for values in each.values()))
        better = {model: np.concatenate(list(each.values())) < 1 for model, each in on_new.items()}
        on_white = {model: each["white inputs"] for model, each in on_new.items()}
        default = {model: self.median("white inputs", f"default/{model}") for model in ("server", "oracle")}
        about = {"xi": WEIGHTS[USUAL], "better": better, "on_white": on_white, "default": default}
        yield self.claim("prediction", lower, **about)
        persistent = self.of("R2", condition="AR(0.9) inputs")
        first, last = persistent[:, 0], persistent[:, -1]
        predicted = self.median("AR(0.9) inputs", "augmented")[[0, -1]]
        about = {"first": first, "last": last, "predicted": predicted, "lower": int((last < first).sum())}
        yield self.claim("weight", "beyond the paper", **about)
        best = max(CONDITIONS, key=lambda name: float(self.median(name, "R2").max()))
        at = int(np.argmax(self.median(best, "R2")))
        there = self.of("R2", condition=best)[:, at]
        about = {"xi": WEIGHTS[at], "default": self.median(best, "default/R2"), "best": best, "there": there}
        yield self.claim("best", mostly(there, GOOD), **about, worst=_low(float(there.min())))
        alone = "B_mn = 0, white"
        at = int(np.argmin(self.median(alone, "A")))
        error, R2 = self.of("A", condition=alone)[:, at], self.median(alone, "R2")[at]
        default = {x: self.median(alone, f"default/{x}") for x in ("A", "R2")}
        about = {"xi": WEIGHTS[at], "R2": R2, "error": error, "default": default}
        yield self.claim("states", rarely(error, GOOD), **about)
        direction = {name: self.of("cosine", condition=name)[:, 0] for name in ("white inputs", "AR(0.9) inputs")}
        yield self.claim("direction", mostly(direction["white inputs"], GOOD), direction=direction)

    def tabulate(self) -> Iterator[Table]:
        """Medians over the plants, at the weight that is best for R²; shares of good and bad answers; predictions."""
        medians, shares = [], []
        for name in CONDITIONS:
            R2, default = (self.of(key, condition=name) for key in ("R2", "default/R2"))
            middle = {key: self.median(name, key) for key in ("R2", "B", "A", "cosine", "augmented")}
            best = int(np.argmax(middle["R2"]))
            gain_tells = rank_correlation(1 - self.of("train", condition=name)[:, 0], R2[:, 0])
            peers = (float(self.median(name, f"default/{model}")) for model in ("server", "oracle"))
            spread = f"({_low(float(R2[:, best].min()))} to {R2[:, best].max():.2f})"
            medians.append((
                name, f"{WEIGHTS[best]:g}", f"{middle['R2'][best]:.3f} {spread}", _number(middle["B"][0], ".3g"),
                _number(middle["B"][USUAL], ".3g"), _number(middle["A"][0], ".3g"), _number(middle["cosine"][0], ".2f"),
                f"{middle['augmented'][0]:.2f}", ", ".join(f"{each:.2f}" for each in peers), f"{gain_tells:+.2f}",
                f"{np.median(default):.4f} ({default.min():.4f})",
            ))  # fmt: skip
            some = R2[:, [best, 0, USUAL]]
            counts = [*(some > GOOD).mean(axis=0), *(some < 0).mean(axis=0)]
            shares.append((name, f"{WEIGHTS[best]:g}", *(f"{100 * share:.0f} %" for share in counts)))
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
        for k, weight in enumerate(WEIGHTS):
            cells = [f"{weight:g}"]
            for model in ("augmented", "server"):
                ratios = {name: self.of(model, condition=name)[:, k] for name in CONDITIONS}
                better = {name: float((values < 1).mean()) for name, values in ratios.items()}
                middles = [float(np.median(values)) for values in ratios.values()]
                worst, least = min(better.items(), key=lambda pair: pair[1])
                cells.append(f"{100 * float(np.mean(list(better.values()))):.4g} %")
                cells.append(f"{100 * least:.0f} % ({worst})" if least < 1 else "100 %")
                cells.append(f"{min(middles):.3g} to {max(middles):.3g}")
            rows.append(tuple(cells))
        last = {name: self.of("augmented", condition=name)[:, -1] < 1 for name in CONDITIONS}
        without, with_mean = (
            f"{100 * float(np.mean([last[name] for name in CONDITIONS if bool(CONDITIONS[name][2]) == mean])):.3g} %"
            for mean in (False, True)
        )
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
            found = {name.replace("B_mn", "$B_{mn}$"): self.median(name, key) for name in DRAWN}
            if key == "R2":
                found = {label: 1 - values for label, values in found.items()}
            curves = [*series(WEIGHTS, found), level(1.0)]
            xi, ticks = "weight of the penalty, ξ", (0.1, 10.0, 1e4, 1e6)
            panels.append(Panel(title, curves, xi, y, log_x=ticks, log_y=key == "R2"))
        return {"finding-conditions": self.drawing("weights", panels)}

    @property
    def least(self) -> float:
        """R² of the default method, where it is lowest of what is drawn."""
        return min(float(self.median(name, "default/R2")) for name in DRAWN)


def plant_of(kind: str, seed: int) -> Plant:
    """A random plant of two units, changed as the condition says."""
    plant = random_plant(rng=seed)
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


def _number(value: float, style: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:{style}}"


def _low(value: float) -> str:
    """R² of an unstable estimate has no meaningful size."""
    return f"{value:.2f}" if value > -100 else "below -100"
