"""Counterfactual error of every method on identical data, and what a repair of the published one does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.conditions import Conditions, Region, colour_name
from counterflow.paper.experiments.effects import (
    METHODS,
    PUBLISHED,
    REPAIRED,
    Estimate,
    Responses,
    accuracy,
    between,
    error_ratios,
    estimate,
    recorded,
    refined_states,
    responses,
    trained,
)
from counterflow.paper.experiments.experiment import (
    FACTS,
    Claim,
    Experiment,
    Outcome,
    Request,
    Table,
    Task,
    Value,
    grid,
)
from counterflow.paper.experiments.figures import COLOURS, INK, Curve, Drawing, Panel, level, series
from counterflow.paper.experiments.verdicts import both, exponent, mostly, rarely
from counterflow.plant import Plant, Recording, random_plant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS = {f"M = {units}, {colour_name(pole)} inputs": (units, pole) for units in (2, 4) for pole in (0.0, 0.9)}
STEPS, ROUNDS, QUICK_ROUNDS = 2000, 2000, 200
PLANTS, QUICK_PLANTS = 10, 4
USEFUL = 0.5  # R² from which on effects count as found: an error of 0.7 of what "no effect" gets
ROUNDING = 1e-6  # differences of errors below are none
FAMILIES = (  # of methods: colour, and members with a marker each
    (1, PUBLISHED), (3, ("fedgc", "granger", "local")), (0, ("sufficient", "centralized")), (2, REPAIRED)
)  # fmt: skip
MARKED = ("o", "s", "^", "D", "v")
NORMAL = 1.959964  # 95 % of a Gaussian lie within so many standard deviations


class Repair(Experiment, name="finding"):
    """The smallest repair at several noise levels, and whether a further step makes it consistent.

    The repair is one hat: the server explains ĥ_a[t], which has seen y_m[t], where the paper has h_a[t]. With zero-mean
    white inputs its B̂_mn then comes to (K_m + theta_m) C_mm B_mn, so that dividing by that matrix, P_m² numbers of a
    unit, makes B_mn right. Inputs that persist, and A_mn, need more: what the units send, read as measurements.
    """

    NOISES, POLES = (1.0, 1e-2, 1e-4), (0.0, 0.9)
    LENGTHS, QUICK_LENGTHS = (2000, 8000, 32000), (2000, 8000)
    LEAST = -1e6  # an unstable estimate has an R² without a meaningful size
    ROWS: Mapping[str, str] = {
        "published": "published target, ξ = 10",
        "refined-small": "refined target, ξ = 0.1",
        "refined": "refined target, ξ = 10",
        "refined-large": "refined target, ξ = 10⁶",
        "corrected": "refined target, ξ = 10, gains taken out of B_mn",
        "corrected-large": "refined target, ξ = 10⁶, gains taken out of B_mn",
        "unfiltered": "round 0 read as measurements, likelihood",
        "fedgc": "FedGC (predecessor)",
        "granger": "Granger causality, pooled states",
        "default": "sufficient messages (default)",
    }
    SHORT: Mapping[str, str] = {
        "published": "published",
        "refined": "refined target",
        "corrected": "gains taken out",
        "unfiltered": "round 0, likelihood",
        "granger": "Granger",
        "default": "sufficient",
    }

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """At every noise level one length, and at the first one all lengths."""
        plants = range(QUICK_PLANTS if request.quick else PLANTS)
        first, *longer = Repair.QUICK_LENGTHS if request.quick else Repair.LENGTHS
        noisy = grid(
            "finding", {"noise": Repair.NOISES, "pole": Repair.POLES, "plant": plants}, part="repair", steps=first
        )
        axes = {"steps": longer[::-1], "pole": Repair.POLES, "plant": plants}
        return (*grid("finding", axes, part="repair", noise=Repair.NOISES[0]), *noisy)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """For every row of the table: error of B_mn, of A_mn, cosine of B_mn, and R² of effects."""
        plant = random_plant(measurement_noise=task["noise"], rng=task["plant"])
        recording = recorded(plant, task["steps"], 7000 + task["plant"], task["pole"])
        values: dict[str, Value] = {}
        for name in Repair.ROWS:
            method = "penalty" if name == "published" else name
            errors = accuracy(estimate(method, recording, plant).plant, plant)
            errors["R2"] = max(errors["R2"], Repair.LEAST)
            values |= {f"{name}/{key}": errors[key] for key in ("B", "A", "cosine", "R2")}
        return values

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of rows, shortest first."""
        return self.levels("steps")

    def noisy(self, key: str, noise: float, pole: float) -> FloatArray:
        """One number of each plant, of the shortest recordings."""
        return self.of(key, noise=noise, pole=pole, steps=self.lengths[0])

    def longer(self, name: str, letter: str, pole: float) -> FloatArray:
        """One row for each plant, one column for each length."""
        return self.of(f"{name}/{letter}", by="steps", noise=self.NOISES[0], pole=pole)

    def judge(self) -> Iterator[Claim]:
        """What the repair and the further steps do: all of it beyond the paper."""
        shown = ("published", "refined", "refined-large", "granger", "default")
        B = {name: [self.noisy(f"{name}/B", noise, 0.0) for noise in self.NOISES] for name in shown}
        direction, R2 = self.noisy("refined/cosine", self.NOISES[0], 0.0), self.noisy("refined/R2", self.NOISES[0], 0.0)
        yield self.claim("repair", "beyond the paper", B=B, direction=direction, R2=R2)

        def told(name: str, letter: str, pole: float) -> str:
            errors = self.longer(name, letter, pole)
            return f"T^{exponent(self.lengths, errors)[0]:.2f} to {float(np.median(errors[:, -1])):.2g}"

        falls = {
            "B_white": told("corrected", "B", 0.0),
            "B_persistent": told("corrected", "B", 0.9),
            "A_white": told("refined", "A", 0.0),
            "both": ", ".join(told("unfiltered", letter, pole) for letter, pole in product("BA", self.POLES)),
        }
        apart = float(np.abs(self.of("unfiltered/B") - self.of("default/B")).max())
        yield self.claim("consistent", "beyond the paper", longest=self.lengths[-1], apart=apart, **falls)

    def tabulate(self) -> Iterator[Table]:
        """Medians over the plants at every noise level."""
        rows = []
        for name, label in self.ROWS.items():
            cells = []
            for pole, noise in product(self.POLES, self.NOISES):
                B, R2 = (float(np.median(self.noisy(f"{name}/{key}", noise, pole))) for key in ("B", "R2"))
                cells.append(f"{B:.3f} / {R2:.3f}" if R2 > -100 else f"{B:.3f} / below -100")
            rows.append((label, *cells))
        head = ("", *(f"{colour_name(pole)}, R = {noise:g}" for pole, noise in product(self.POLES, self.NOISES)))
        plants = len(self.noisy("published/B", self.NOISES[0], 0.0))
        yield Table(self.caption("repair", plants=plants), head, tuple(rows))

    def draw(self) -> Mapping[str, Drawing]:
        """Against the noise, and against the number of rows."""
        panels, lengths = [], self.lengths
        titles = {pole: f"{colour_name(pole).replace('white', 'White')} inputs" for pole in self.POLES}
        for pole in self.POLES:
            x = "variance of the measurement noise, R"
            runs = {
                label: np.stack([self.noisy(f"{name}/B", noise, pole) for noise in self.NOISES], axis=1)
                for name, label in self.SHORT.items()
            }
            curves = [*series(self.NOISES, runs, "median"), level(1.0)]
            panels.append(Panel(titles[pole], curves, x, "relative error of $B_{mn}$", log_x=self.NOISES, log_y=True))
        for letter, pole in product("BA", self.POLES):
            runs = {label: self.longer(name, letter, pole) for name, label in self.SHORT.items()}
            curves, y = [*series(lengths, runs, "median"), level(1.0)], f"relative error of ${letter}_{{mn}}$"
            panels.append(Panel(f"{titles[pole]}, R = 1", curves, "rows T", y, log_x=lengths, log_y=True))
        return {"finding-repair": self.drawing("repair-errors", panels, columns=2)}


PARTS: Mapping[str, type[Experiment]] = {"region": Region, "repair": Repair, "conditions": Conditions}


class Finding(Experiment, name="finding", revision=2):
    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        super().__init__(outcomes)
        self.parts = [part(self.where(part=name)) for name, part in PARTS.items()]

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        count, rounds = (QUICK_PLANTS, QUICK_ROUNDS) if request.quick else (PLANTS, ROUNDS)
        axes = {"units": (4, 2), "pole": (0.9, 0.0), "plant": range(count)}
        own = grid("finding", axes, part="methods", steps=STEPS, rounds=rounds)
        return (*own, *(task for part in PARTS.values() for task in part.tasks(request)))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        if task["part"] in PARTS:
            return PARTS[task["part"]].compute(task)
        plant = random_plant(units=task["units"], rng=task["plant"])
        recording, fresh = (recorded(plant, task["steps"], n + task["plant"], task["pole"]) for n in (4000, 5000))
        true = responses(plant)
        values: dict[str, Value] = {}
        for method in METHODS:
            found = estimate(method, recording, plant, task["rounds"])
            errors = accuracy(found.plant, plant)
            values |= {f"{method}/{key}": errors[key] for key in ("B", "A", "effects", "R2")}
            values |= {
                f"{method}/rounds": float(found.rounds),
                f"{method}/bytes": float(found.traffic),
                f"{method}/seconds": found.seconds,
                f"{method}/covered": _covered_couplings(found, plant),
                f"{method}/covered-effects": _covered_effects(found, true),
                f"{method}/prediction": _prediction(method, found, plant, fresh),
            }
        return values

    def values(self, setting: str, key: str) -> dict[str, FloatArray]:
        """One number of each plant of one setting, by method."""
        units, pole = SETTINGS[setting]
        return {m: self.of(f"{m}/{key}", part="methods", units=units, pole=pole) for m in METHODS}

    def medians(self, setting: str, key: str) -> dict[str, float]:
        return {method: float(np.median(values)) for method, values in self.values(setting, key).items()}

    def variant(self, setting: str, key: str) -> str:
        """The best published one, by the median over the plants."""
        middle, sign = self.medians(setting, key), -1.0 if key == "R2" else 1.0
        return min(PUBLISHED, key=lambda method: sign * middle[method])

    @cached_property
    def R2(self) -> dict[str, list[float]]:
        """Medians of R² of effects, in the order of the settings."""
        by_setting = [self.medians(setting, "R2") for setting in SETTINGS]
        return {method: [R2[method] for R2 in by_setting] for method in METHODS}

    @property
    def best(self) -> str:
        """R² of the best published variants."""
        by_pole: dict[float, list[float]] = {}
        for k, (_, pole) in enumerate(SETTINGS.values()):
            by_pole.setdefault(pole, []).append(max(self.R2[m][k] for m in PUBLISHED))
        told = (f"{min(v):.2f} to {max(v):.2f} with {colour_name(pole)} inputs" for pole, v in by_pole.items())
        return "; ".join(told)

    def judge(self) -> Iterator[Claim]:
        facts = {0.0: FACTS["WHITE_INPUTS"], 0.9: FACTS["PERSISTENT_INPUTS"]}
        for setting, (_, pole) in SETTINGS.items():
            R2, variant = self.values(setting, "R2"), self.variant(setting, "R2")
            about = {"setting": setting, "fact": facts[pole], "variant": METHODS[variant][1]}
            yield self.claim("effects", mostly(R2[variant], USEFUL), **about, best=R2[variant], R2=R2)
        for pole, fact in facts.items():
            parts, found = [], []
            for setting in (each for each, (_, colour) in SETTINGS.items() if colour == pole):
                middle, variant = self.medians(setting, "B"), self.variant(setting, "B")
                found.append(rarely(self.values(setting, "B")[variant], USEFUL))
                parts.append(
                    f"M = {SETTINGS[setting][0]}: best published variant ({METHODS[variant][1]}) "
                    f"{middle[variant]:.3f}, Granger {middle['granger']:.2f}, sufficient messages "
                    f"{middle['sufficient']:.3f}"
                )
            yield self.claim("B", both(*found), inputs=colour_name(pole), fact=fact, parts="; ".join(parts))
        effects = {setting: self.values(setting, "effects") for setting in SETTINGS}
        granger = np.array([self.values(setting, "R2")["granger"] for setting in SETTINGS])
        yield self.claim("granger", "not comparable", granger=granger)
        short = {s: errors[self.variant(s, "effects")] - errors["centralized"] for s, errors in effects.items()}
        told = ", ".join(f"{np.median(more):.2f} ({setting})" for setting, more in short.items())
        yield self.claim("short", both(*map(mostly, short.values())), short=told)
        gap = [float(np.abs(errors["sufficient"] - errors["centralized"]).max()) for errors in effects.values()]
        yield self.claim("equality" if max(gap) <= ROUNDING else "difference", "beyond the paper", gap=gap)
        covered = {
            f"{method}/{key}": 100 * float(np.mean([self.values(s, key)[method].mean() for s in SETTINGS]))
            for method, key in (("sufficient", "covered"), ("granger", "covered"), ("sufficient", "covered-effects"))
        }
        yield self.claim("intervals", "beyond the paper", covered=covered)
        for part in self.parts:
            yield from part.judge()

    def tabulate(self) -> Iterator[Table]:
        # a column: its head, the key, and how several plants are told
        columns: tuple[tuple[str, str, Callable[[FloatArray], str]], ...] = (
            ("error of B_mn", "B", lambda errors: f"{np.median(errors):.3g} ({errors.max():.3g})"),
            ("error of A_mn", "A", lambda errors: f"{np.median(errors):.3g}"),
            ("R² of effects", "R2", lambda R2: f"{np.median(R2):.4f} ({_worst(R2)})"),
            ("95 % of B_mn", "covered", _share),
            ("95 % of effects", "covered-effects", _share),
            ("prediction", "prediction", lambda errors: f"{np.median(errors):.3g}"),
            ("rounds", "rounds", lambda counts: f"{np.median(counts):.0f}"),
            ("bytes", "bytes", lambda counts: _readable(float(np.median(counts)))),
            ("seconds", "seconds", lambda seconds: f"{np.median(seconds):.2g}"),
        )
        for setting in SETTINGS:
            found = [(self.values(setting, key), shown) for _, key, shown in columns]
            rows = tuple((label, *(shown(each[m]) for each, shown in found)) for m, (label, _) in METHODS.items())
            plants = len(self.values(setting, "B")["oracle"])
            head = ("method", *(each for each, *_ in columns))
            yield Table(self.caption("methods", setting=setting, plants=plants), head, rows)
        for part in self.parts:
            yield from part.tabulate()

    def draw(self) -> Mapping[str, Drawing]:
        error, by_setting, traded = "relative error of effects", [], []
        for setting in SETTINGS:
            effects = {m: e for m, e in self.values(setting, "effects").items() if m != "oracle"}  # its error is zero
            sent = {m: float(np.median(e)) for m, e in self.values(setting, "bytes").items()}
            medians = [_marker(sent[m], float(np.median(e)), m) for m, e in effects.items() if m != "local"]
            by_setting.append(Panel(setting, [_ranges(effects)], error, "", log_x=True))
            traded.append(Panel(setting, [*medians, level(1.0)], "bytes, both ways", error, log_x=True, log_y=True))
        return {
            "finding-effects": self.drawing("effects", by_setting, columns=2),
            "finding-bytes": self.drawing("bytes", traded, columns=2),
            **{name: drawing for part in self.parts for name, drawing in part.draw().items()},
        }


def _covered_couplings(found: Estimate, true: Plant) -> float:
    """Share of the entries of B_mn inside their 95 % intervals; NaN for methods without any."""
    if found.B_errors is None:
        return float("nan")
    mask = between(true, "B")
    return float((np.abs(found.plant.B - true.B)[mask] < NORMAL * found.B_errors[mask]).mean())


def _covered_effects(found: Estimate, true: Responses) -> float:
    """Share of effects (pairs, inputs, outputs, rows) inside their 95 % intervals."""
    if found.fit is None or found.B_errors is None:
        return float("nan")
    inside: list[FloatArray] = []
    for (effect, cause), values in true.items():
        for k, change in enumerate(np.eye(values.shape[2])):
            answer, held = found.fit.effect(cause, effect, change, horizon=len(values)), values[:, :, k]
            assert answer.lower is not None
            assert answer.upper is not None
            inside.append(((answer.lower <= held) & (held <= answer.upper)).ravel().astype(np.float64))
    return float(np.concatenate(inside).mean())


def _prediction(method: str, found: Estimate, true: Plant, fresh: Recording) -> float:
    """Mean squared one-step error on new data over the oracle's, mean over units: of what the method predicts with.

    The published methods, and their repairs, predict with the augmented client, likelihood methods with the server's
    filter.
    """
    if found.fit is not None:
        means = found.fit.validate(fresh, oracle=true).mean()
        published = method in (*PUBLISHED, *REPAIRED, "fedgc")
        return error_ratios(means, "augmented" if published else "server", "oracle")
    inputs, y = (np.hstack([getattr(fresh[name], letter) for name in fresh.names]) for letter in "uy")
    predicted = refined_states(fresh, true.locals())[:-1] @ found.plant.A.T + inputs[:-1] @ found.plant.B.T
    squared = (y[1:] - predicted @ true.C.T) ** 2
    own = {name: float(squared[:, true.output_slice(name)].sum(axis=1).mean()) for name in true.names}
    least = trained("oracle", fresh, true).validate(fresh, oracle=true).mean()["oracle"]
    return error_ratios({"own": own, "oracle": least}, "own", "oracle")


def _worst(values: FloatArray) -> str:
    """The least of several R², with as many digits as tell it from 1."""
    least = float(values.min())
    return f"{least:.4f}" if least > 0.99 else f"{least:.2f}"


def _share(values: FloatArray) -> str:
    return "–" if np.isnan(values).any() else f"{100 * values.mean():.3g} %"


def _readable(count: float) -> str:
    for suffix, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.{3 if count >= 100 * size else 2}g}\u00a0{suffix}"
    return f"{count:.0f}"


def look(method: str) -> dict[str, Any]:
    """Colour by family, and another marker for each of a family."""
    colour, members = next(family for family in FAMILIES if method in family[1])
    marker = MARKED[members.index(method)]
    return {"color": COLOURS[colour], "marker": marker, "markerfacecolor": "none", "linestyle": ""}


def _ranges(effects: Mapping[str, FloatArray]) -> Curve:
    """One line for each method, from the least error of all plants to the largest, with a marker at the median."""

    def draw(axes: Axes) -> None:
        for k, (method, errors) in enumerate(effects.items()):
            values, own = np.maximum(errors, 1e-4), look(method)
            axes.plot([values.min(), values.max()], [k, k], color=own["color"], linewidth=1.2, alpha=0.6)
            axes.plot([float(np.median(values))], [k], markersize=5, **own)
        axes.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (1, 1)))
        axes.set_yticks(range(len(effects)), [METHODS[method][1] for method in effects])
        axes.invert_yaxis()

    return draw


def _marker(x: float, y: float, method: str) -> Curve:
    """Those that lie on one another are seen around one another."""
    own = look(method)
    size = 5 + 1.6 * MARKED.index(own["marker"])
    return lambda axes: axes.plot([x], [y], label=METHODS[method][1], markersize=size, **own)
