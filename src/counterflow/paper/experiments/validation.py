"""One-step predictions on new data whose inputs are not stationary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments import two_units
from counterflow.paper.experiments.experiment import Claim, Outcome, Outcomes
from counterflow.paper.experiments.figures import COLOURS, LINES, Drawing, Panel, band, level, moment
from counterflow.paper.experiments.selection import stacked
from counterflow.paper.experiments.two_units import LABELS, SHIFT_AT, UNITS
from counterflow.paper.experiments.verdicts import above, below, both, either
from counterflow.paper.experiments.wording import caption, claim, described, summary, told

MODELS = {
    "proprietary": "proprietary client (PCM)",
    "augmented": "augmented client (ACM)",
    "server": "server",
    "oracle": "centralized oracle",
}
OURS = ("augmented", "server")
WINDOW, EVERY = 50, 10  # rows of the moving average in the figure, and of which one is drawn
SOON = 0.05  # of the rows: "at once" after the shift
JUMP = 1.2


def phases(outcome: Outcome, model: str, name: str) -> tuple[float, float, float]:
    """Mean squared error before the shift, at once after it, and in the last quarter."""
    errors = outcome.array(f"error/{model}/{name}")
    rows = len(errors)
    at = int(np.ceil(SHIFT_AT * (rows + 1)))  # the first error that a shifted input has reached
    soon = slice(at, at + max(1, int(SOON * rows)))
    parts = (errors[:at], errors[soon], errors[-(rows // 4) :])
    return (float(parts[0].mean()), float(parts[1].mean()), float(parts[2].mean()))


def recovered(phase: FloatArray) -> FloatArray:
    """The share of the rise at the shift that is undone in the last quarter, of every run (rows: before, soon, late).

    Examples
    --------
    >>> recovered(np.array([[1.0, 5.0, 2.0], [1.0, 3.0, 4.0]])).tolist()
    [0.75, -0.5]
    """
    before, soon, late = phase.T
    return np.asarray((soon - late) / (soon - before))


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    # runs x (before, soon, late)
    found = {(m, n): np.array([phases(run, m, n) for run in outcomes]) for m in MODELS for n in UNITS}
    trained = ("proprietary", *OURS)
    for name in UNITS:
        before = {m: found[m, name][:, 0] for m in MODELS}
        gap = {m: before[m] - before["proprietary"] for m in OURS}
        better = both(*(below(gap[m]) for m in OURS))
        yield claim("validation", "new-data", better, client=LABELS[name], before=before, gap=gap)
    for name in UNITS:
        jump = {m: found[m, name][:, 1] / found[m, name][:, 0] for m in MODELS}
        jumps = both(*(above(jump[m], JUMP) for m in trained))
        yield claim("validation", "jump", jumps, client=LABELS[name], jumps=_each(jump))
    for name in UNITS:
        rise = {m: found[m, name][:, 1] - found[m, name][:, 0] for m in MODELS}
        gap = {m: rise[m] - rise["proprietary"] for m in OURS}
        rises = ", ".join(f"{m} {rise[m].mean():.3g}" for m in MODELS)
        less = both(*(below(gap[m]) for m in OURS))
        yield claim("validation", "rise", less, client=LABELS[name], rises=rises, gap=gap)
    for name in UNITS:
        shares = {m: recovered(found[m, name]) for m in trained}
        some = either(*(above(shares[m]) for m in trained))
        more = both(*(above(shares[m] - shares["proprietary"]) for m in OURS), *(above(shares[m]) for m in OURS))
        verdict = more if some == "agrees" else "not comparable"
        yield claim("validation", "recovery", verdict, client=LABELS[name], shares=_each(shares))
    gaps = {m: np.mean([found[m, n][:, 0] / found["oracle", n][:, 0] for n in UNITS], axis=0) for m in trained}
    yield claim("validation", "oracle", both(*(above(gaps[m], 1.05) for m in OURS)), gaps=_each(gaps))


def _each(found: Mapping[str, FloatArray]) -> str:
    return ", ".join(f"{model} {told(values)}" for model, values in found.items())


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    rows = len(outcomes[0].array(f"error/oracle/{UNITS[0]}"))
    kernel = np.full(WINDOW, 1.0 / WINDOW)

    def smooth(model: str, name: str) -> FloatArray:
        errors = stacked(outcomes, f"error/{model}/{name}")
        return np.stack([np.convolve(row, kernel, "valid")[::EVERY] for row in errors])

    shift, t = moment(SHIFT_AT * (rows + 1)), "row t of the new data"
    panels, closer = [], []
    for name in UNITS:
        smoothed = {model: smooth(model, name) for model in MODELS}
        means = {model: runs.mean(axis=0) for model, runs in smoothed.items()}
        x = WINDOW + EVERY * np.arange(len(means["oracle"]), dtype=np.float64)  # the last row of every window
        curves = [band(x, smoothed[m], MODELS[m], colour) for colour, m in zip((1, 0, 2, 3), MODELS, strict=True)]
        base = means["proprietary"]
        ratios = [band(x, means[m] / base, MODELS[m], colour) for colour, m in zip((0, 2), OURS, strict=True)]
        title = LABELS[name].capitalize()
        panels.append(
            Panel(title, [*curves, shift], t, "squared prediction error", range_x=(0, rows), range_y=(0.0, None))
        )
        one = level(1.0, color=COLOURS[1], linestyle=LINES[1])
        closer.append(
            Panel(f"{title}, relative", [*ratios, shift, one], t, "error / proprietary error", range_x=(0, rows))
        )
    return {
        "validation-errors": Drawing(caption("validation", "errors"), panels, columns=2, paper="Fig. 4"),
        "validation-relative": Drawing(caption("validation", "relative"), closer, columns=2),
    }


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    gains = [
        1 - float(np.mean([phases(o, "augmented", n)[0] for o in outcomes]))
        / float(np.mean([phases(o, "proprietary", n)[0] for o in outcomes]))
        for n in UNITS
    ]  # fmt: skip
    return summary("validation", claims, percent=" and ".join(f"{100 * gain:.2g} %" for gain in gains))


EXPERIMENT = described("validation", two_units.runs, two_units.compute, _figures, _claims, text=_text)
