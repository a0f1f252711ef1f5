"""Counterfactual error of every method on identical data, and the conditions under which the published one works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments import conditions, region, repair
from counterflow.paper.experiments.effects import (
    Responses,
    between,
    coupling_error,
    effect_error,
    r_squared,
    recorded,
    responses,
)
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Table, Task, Value
from counterflow.paper.experiments.figures import COLOURS, INK, Curve, Drawing, Panel, level
from counterflow.paper.experiments.methods import METHODS, PUBLISHED, REPAIRED, Estimate, estimate, refined_states
from counterflow.paper.experiments.selection import grid, stacked, where
from counterflow.paper.experiments.verdicts import both, mostly, rarely
from counterflow.paper.experiments.wording import (
    PERSISTENT_INPUTS,
    WHITE_INPUTS,
    caption,
    claim,
    described,
    summary,
)
from counterflow.plant import Plant, Recording, random_plant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SETTINGS = tuple((units, pole) for units in (2, 4) for pole in (0.0, 0.9))
STEPS, ROUNDS, QUICK_ROUNDS = 2000, 2000, 200
PLANTS, QUICK_PLANTS = 10, 4
USEFUL = 0.5  # R² from which on effects count as found: an error of 0.7 of what "no effect" gets
ROUNDING = 1e-6  # differences of errors below are none
PARTS = {"region": region, "repair": repair, "conditions": conditions}  # each with tasks and results of its own
MARKED = ("o", "s", "^", "D", "v")  # of the methods of one family
NORMAL = 1.959964  # 95 % of a Gaussian lie within so many standard deviations
SHORT = {
    "penalty": "penalty, ξ = 10",
    "penalty-small": "penalty, ξ = 0.1",
    "steps": "penalty, steps",
    "lagrangian": "Lagrangian",
    "hybrid": "hybrid",
    "refined": "refined target, ξ = 10",
    "refined-small": "refined target, ξ = 0.1",
    "corrected": "refined, gains taken out",
    "fedgc": "FedGC",
    "granger": "Granger",
    "local": "local only",
    "sufficient": "sufficient",
    "centralized": "centralized",
    "oracle": "oracle",
}


def inputs_name(pole: float) -> str:
    """White, or AR(pole)."""
    return f"AR({pole:g})" if pole else "white"


def setting_name(units: int, pole: float) -> str:
    """For titles."""
    return f"M = {units}, {inputs_name(pole)} inputs"


def _compute(task: Task) -> Mapping[str, Value]:
    if task["part"] in PARTS:
        values_of_part: Mapping[str, Value] = PARTS[task["part"]].compute(task)
        return values_of_part
    plant = random_plant(units=task["units"], rng=task["plant"])
    recording = recorded(plant, task["steps"], 4000 + task["plant"], task["pole"])
    fresh = recorded(plant, task["steps"], 5000 + task["plant"], task["pole"])
    true = responses(plant)
    values: dict[str, Value] = {}
    for method in METHODS:
        found = estimate(method, recording, plant, task["rounds"])
        answers = responses(found.plant)
        values[f"{method}/B"] = coupling_error(found.plant, plant, "B")
        values[f"{method}/A"] = coupling_error(found.plant, plant, "A")
        values[f"{method}/effects"] = effect_error(answers, true)
        values[f"{method}/R2"] = r_squared(answers, true)
        values[f"{method}/rounds"] = float(found.rounds)
        values[f"{method}/bytes"] = float(found.traffic)
        values[f"{method}/seconds"] = found.seconds
        values[f"{method}/covered"] = _covered_couplings(found, plant)
        values[f"{method}/covered-effects"] = _covered_effects(found, true)
        values[f"{method}/prediction"] = _prediction(method, found, plant, fresh)
    return values


def _covered_couplings(found: Estimate, true: Plant) -> float:
    """Share of the entries of B_mn inside their 95 % intervals; NaN for methods without any."""
    if found.B_errors is None:
        return float("nan")
    mask = between(true, "B")
    inside = np.abs(found.plant.B - true.B)[mask] < NORMAL * found.B_errors[mask]
    return float(inside.mean())


def _covered_effects(found: Estimate, true: Responses) -> float:
    """Share of effects (pairs, inputs, outputs, rows) inside their 95 % intervals."""
    if found.fit is None or found.B_errors is None:
        return float("nan")
    inside: list[FloatArray] = []
    for (effect, cause), values in true.items():
        for k in range(values.shape[2]):
            change = np.eye(values.shape[2])[k]
            answer = found.fit.effect(cause, effect, change, horizon=len(values))
            assert answer.lower is not None
            assert answer.upper is not None
            held = values[:, :, k]
            inside.append(((answer.lower <= held) & (held <= answer.upper)).astype(np.float64))
    return float(np.concatenate([each.ravel() for each in inside]).mean())


def _prediction(method: str, found: Estimate, true: Plant, fresh: Recording) -> float:
    """Mean squared one-step error on new data over the oracle's, mean over units: of what the method predicts with.

    The published methods, and their repairs, predict with the augmented client, likelihood methods with the server's
    filter.
    """
    if found.fit is None:
        states = refined_states(fresh, true.locals())
        inputs = np.hstack([fresh[name].u for name in fresh.names])
        predicted = states[:-1] @ found.plant.A.T + inputs[:-1] @ found.plant.B.T
        y = np.hstack([fresh[name].y for name in fresh.names])[1:]
        squared = (y - predicted @ true.C.T) ** 2
        own = {name: float(squared[:, true.output_slice(name)].sum(axis=1).mean()) for name in true.names}
        oracle = estimate("oracle", fresh, true, 0).fit
        assert oracle is not None
        least = oracle.validate(fresh, oracle=true).mean()["oracle"]
        return float(np.mean([own[name] / least[name] for name in true.names]))
    means = found.fit.validate(fresh, oracle=true).mean()
    mine = means["augmented"] if method in (*PUBLISHED, *REPAIRED, "fedgc") else means["server"]
    return float(np.mean([mine[name] / means["oracle"][name] for name in true.names]))


def _tasks(request: Request) -> tuple[Task, ...]:
    count, rounds = (QUICK_PLANTS, QUICK_ROUNDS) if request.quick else (PLANTS, ROUNDS)
    axes = {"units": (4, 2), "pole": (0.9, 0.0), "plant": range(count)}
    own = grid("finding", axes, part="methods", steps=STEPS, rounds=rounds)
    return (*own, *(task for part in PARTS.values() for task in part.tasks(request)))


def values_of(outcomes: Outcomes, units: int, pole: float, key: str) -> FloatArray:
    """One number of each plant of one setting."""
    return stacked(where(outcomes, part="methods", units=units, pole=pole), key)


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    for units, pole in SETTINGS:
        R2 = {m: values_of(outcomes, units, pole, f"{m}/R2") for m in METHODS}
        best = max(PUBLISHED, key=lambda m: float(np.median(R2[m])))
        about = {"setting": setting_name(units, pole), "fact": PERSISTENT_INPUTS if pole else WHITE_INPUTS}
        yield claim("finding", "effects", mostly(R2[best], USEFUL), variant=SHORT[best], best=R2[best], R2=R2, **about)
    for pole in sorted({pole for _, pole in SETTINGS}):
        parts, found = [], []
        for units in sorted({units for units, _ in SETTINGS}):
            B = {m: values_of(outcomes, units, pole, f"{m}/B") for m in METHODS}
            best = min(PUBLISHED, key=lambda m: float(np.median(B[m])))
            found.append(rarely(B[best], USEFUL))
            parts.append(
                f"M = {units}: best published variant ({SHORT[best]}) {np.median(B[best]):.3f}, Granger "
                f"{np.median(B['granger']):.2f}, sufficient messages {np.median(B['sufficient']):.3f}"
            )
        fact = PERSISTENT_INPUTS if pole else WHITE_INPUTS
        yield claim("finding", "B", both(*found), inputs=inputs_name(pole), fact=fact, parts="; ".join(parts))
    granger = np.array([values_of(outcomes, *setting, "granger/R2") for setting in SETTINGS])
    yield claim("finding", "granger", "not comparable", granger=granger)
    short, gap = [], []
    for setting in SETTINGS:
        errors = {m: values_of(outcomes, *setting, f"{m}/effects") for m in METHODS}
        best = min(PUBLISHED, key=lambda m: float(np.median(errors[m])))
        short.append(errors[best] - errors["centralized"])
        gap.append(float(np.abs(errors["sufficient"] - errors["centralized"]).max()))
    above = ", ".join(f"{np.median(s):.2f} ({setting_name(*x)})" for s, x in zip(short, SETTINGS, strict=True))
    yield claim("finding", "short", both(*(mostly(each) for each in short)), short=above)
    yield claim("finding", "equality" if max(gap) <= ROUNDING else "difference", "beyond the paper", gap=gap)
    covered = {
        key: 100 * float(np.mean([values_of(outcomes, *setting, key).mean() for setting in SETTINGS]))
        for key in ("sufficient/covered", "granger/covered", "sufficient/covered-effects")
    }
    yield claim("finding", "intervals", "beyond the paper", covered=covered)
    for part in PARTS.values():
        yield from part.claims(outcomes)


def _tables(outcomes: Outcomes) -> tuple[Table, ...]:
    tables = []
    for units, pole in SETTINGS:
        rows = []
        for method, label in METHODS.items():
            v = {
                key: values_of(outcomes, units, pole, f"{method}/{key}")
                for key in ("B", "A", "R2", "covered", "covered-effects", "prediction", "rounds", "bytes", "seconds")
            }
            rows.append(
                (
                    label,
                    f"{np.median(v['B']):.3g} ({v['B'].max():.3g})",
                    f"{np.median(v['A']):.3g}",
                    f"{np.median(v['R2']):.4f} ({_worst(v['R2'])})",
                    _share(v["covered"]),
                    _share(v["covered-effects"]),
                    f"{np.median(v['prediction']):.3g}",
                    f"{np.median(v['rounds']):.0f}",
                    _readable(float(np.median(v["bytes"]))),
                    f"{np.median(v['seconds']):.2g}",
                )
            )
        told = caption("finding", "methods", setting=setting_name(units, pole), plants=len(v["B"]))
        head = (
            "method", "error of B_mn", "error of A_mn", "R² of effects", "95 % of B_mn", "95 % of effects",
            "prediction", "rounds", "bytes", "seconds",
        )  # fmt: skip
        tables.append(Table(told, head, tuple(rows)))
    return (*tables, *(table for part in PARTS.values() for table in part.tables(outcomes)))


def _worst(values: FloatArray) -> str:
    """The least of several R², with as many digits as tell it from 1."""
    least = float(values.min())
    return f"{least:.4f}" if least > 0.99 else f"{least:.2f}"


def _share(values: FloatArray) -> str:
    return "–" if np.isnan(values).any() else f"{100 * values.mean():.3g} %"


def _readable(count: float) -> str:
    """Bytes.

    >>> _readable(0), _readable(1234567)
    ('0', '1.2\\xa0MB')
    """
    for suffix, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.{3 if count >= 100 * size else 2}g}\u00a0{suffix}"
    return f"{count:.0f}"


def _ranges(effects: Mapping[str, FloatArray]) -> Curve:
    """One line for each method, from the least error of all plants to the largest, with a marker at the median."""

    def draw(axes: Axes) -> None:
        for k, (method, errors) in enumerate(effects.items()):
            values, look = np.maximum(errors, 1e-4), _look(method)
            axes.plot([values.min(), values.max()], [k, k], color=look["color"], linewidth=1.2, alpha=0.6)
            axes.plot([float(np.median(values))], [k], linestyle="", markersize=5, markerfacecolor="none", **look)
        axes.axvline(1.0, color=INK, linewidth=1.0, linestyle=(0, (1, 1)))
        axes.set_yticks(range(len(effects)), [SHORT[method] for method in effects])
        axes.invert_yaxis()

    return draw


def _marker(x: float, y: float, method: str) -> Curve:
    """Those that lie on one another are seen around one another."""
    look = _look(method)
    look |= {"linestyle": "", "markersize": 5 + 1.6 * MARKED.index(look["marker"]), "markerfacecolor": "none"}
    return lambda axes: axes.plot([x], [y], label=SHORT[method], **look)


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    shown = [m for m in METHODS if m != "oracle"]  # its error is zero
    error = "relative error of effects"
    by_setting, traded = [], []
    for setting in SETTINGS:
        effects = {m: values_of(outcomes, *setting, f"{m}/effects") for m in shown}
        sent = {m: float(np.median(values_of(outcomes, *setting, f"{m}/bytes"))) for m in shown if m != "local"}
        medians = [_marker(x, float(np.median(effects[m])), m) for m, x in sent.items()]
        title = setting_name(*setting)
        by_setting.append(Panel(title, [_ranges(effects)], error, "", log_x=True))
        curves = [*medians, level(1.0)]
        traded.append(Panel(title, curves, "bytes, both ways", error, log_x=True, log_y=True))
    return {
        "finding-effects": Drawing(caption("finding", "effects"), by_setting, columns=2),
        "finding-bytes": Drawing(caption("finding", "bytes"), traded, columns=2),
        **{name: drawing for part in PARTS.values() for name, drawing in part.figures(outcomes).items()},
    }


def _look(method: str) -> dict[str, Any]:
    """Colour by family, and another marker for each of a family."""
    families = (PUBLISHED, ("fedgc", "granger", "local"), ("sufficient", "centralized"), REPAIRED)
    family = next(k for k, members in enumerate(families) if method in members)
    return {"color": COLOURS[(1, 3, 0, 2)[family]], "marker": MARKED[families[family].index(method)]}


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    R2 = {
        m: [float(np.median(values_of(outcomes, *setting, f"{m}/R2"))) for setting in SETTINGS]
        for m in ("granger", "sufficient", *PUBLISHED)
    }
    best = [max(R2[m][k] for m in PUBLISHED) for k in range(len(SETTINGS))]
    by_pole = {pole: [best[k] for k, s in enumerate(SETTINGS) if s[1] == pole] for _, pole in SETTINGS}
    told = "; ".join(f"{min(v):.2f} to {max(v):.2f} with {inputs_name(p)} inputs" for p, v in by_pole.items())
    return summary("finding", claims, best=told, R2=R2)


EXPERIMENT = described("finding", _tasks, _compute, _figures, _claims, revision=2, tables=_tables, text=_text)
