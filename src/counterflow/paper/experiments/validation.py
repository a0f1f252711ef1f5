"""One-step predictions on new data whose inputs are not stationary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments import figures, two_units
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcome
from counterflow.paper.experiments.figures import Drawing, Panel, band, level, moment
from counterflow.paper.experiments.two_units import LABELS, SHIFT_AT, UNITS
from counterflow.paper.experiments.verdicts import above, below, both, either
from counterflow.paper.experiments.wording import told

MODELS = {
    "proprietary": "proprietary client (PCM)",
    "augmented": "augmented client (ACM)",
    "server": "server",
    "oracle": "centralized oracle",
}
OURS = ("augmented", "server")
TRAINED = ("proprietary", *OURS)
WINDOW, EVERY = 50, 10  # rows of the moving average in the figure, and of which one is drawn
SOON = 0.05  # of the rows: "at once" after the shift
JUMP = 1.2


class Validation(Experiment, name="validation"):
    tasks = staticmethod(two_units.runs)
    compute = staticmethod(two_units.compute)

    @cached_property
    def phases(self) -> Mapping[tuple[str, str], FloatArray]:
        """Of every model and unit the errors of all runs (rows) before the shift, at once after it, and late."""
        return {(m, n): self.of(lambda run, m=m, n=n: phases(run, m, n)) for m in MODELS for n in UNITS}  # type: ignore[misc]

    @cached_property
    def gains(self) -> str:
        """How much better the augmented clients are, before the shift."""
        means = {key: float(phase[:, 0].mean()) for key, phase in self.phases.items()}
        return " and ".join(f"{100 * (1 - means['augmented', n] / means['proprietary', n]):.2g} %" for n in UNITS)

    def judge(self) -> Iterator[Claim]:
        about = {
            name: (label, {model: self.phases[model, name].T for model in MODELS}) for name, label in LABELS.items()
        }
        for client, found in about.values():
            before = {m: phase[0] for m, phase in found.items()}
            gap = {m: before[m] - before["proprietary"] for m in OURS}
            yield self.claim("new-data", both(*map(below, gap.values())), client=client, before=before, gap=gap)
        for client, found in about.values():
            jump = {m: soon / before for m, (before, soon, _) in found.items()}
            yield self.claim("jump", both(*(above(jump[m], JUMP) for m in TRAINED)), client=client, jumps=_each(jump))
        for client, found in about.values():
            rise = {m: soon - before for m, (before, soon, _) in found.items()}
            gap = {m: rise[m] - rise["proprietary"] for m in OURS}
            rises = ", ".join(f"{m} {rise[m].mean():.3g}" for m in MODELS)
            yield self.claim("rise", both(*map(below, gap.values())), client=client, rises=rises, gap=gap)
        for client, found in about.values():
            shares = {m: recovered(found[m].T) for m in TRAINED}
            more = both(*(above(shares[m] - shares["proprietary"]) for m in OURS), *(above(shares[m]) for m in OURS))
            some = either(*map(above, shares.values())) == "agrees"
            yield self.claim("recovery", more if some else "not comparable", client=client, shares=_each(shares))
        gaps = {m: np.mean([found[m][0] / found["oracle"][0] for _, found in about.values()], axis=0) for m in TRAINED}
        yield self.claim("oracle", both(*(above(gaps[m], 1.05) for m in OURS)), gaps=_each(gaps))

    def draw(self) -> Mapping[str, Drawing]:
        kernel, panels, closer = np.full(WINDOW, 1.0 / WINDOW), [], []
        for name, label in LABELS.items():
            errors = {model: self.of(f"error/{model}/{name}") for model in MODELS}
            rows, title = errors["oracle"].shape[1], label.capitalize()
            runs = {m: np.stack([np.convolve(e, kernel, "valid")[::EVERY] for e in each]) for m, each in errors.items()}
            x = WINDOW + EVERY * np.arange(runs["oracle"].shape[1], dtype=np.float64)  # the last row of every window
            along: dict[str, Any] = {"range_x": (0, rows)}
            curves = [band(x, runs[m], MODELS[m], colour) for colour, m in zip((1, 0, 2, 3), MODELS, strict=True)]
            means = {model: each.mean(axis=0) for model, each in runs.items()}
            ratios = [
                band(x, means[m] / means["proprietary"], MODELS[m], colour)
                for colour, m in zip((0, 2), OURS, strict=True)
            ]
            shift, t = moment(SHIFT_AT * (rows + 1)), "row t of the new data"
            one = level(1.0, color=figures.COLOURS[1], linestyle=figures.LINES[1])
            panels.append(Panel(title, [*curves, shift], t, "squared prediction error", **along, range_y=(0.0, None)))
            closer.append(Panel(f"{title}, relative", [*ratios, shift, one], t, "error / proprietary error", **along))
        return {
            "validation-errors": self.drawing("errors", panels, columns=2, paper="Fig. 4"),
            "validation-relative": self.drawing("relative", closer, columns=2),
        }


def phases(outcome: Outcome, model: str, name: str) -> tuple[float, float, float]:
    """Mean squared error before the shift, at once after it, and in the last quarter."""
    errors = outcome.array(f"error/{model}/{name}")
    rows = len(errors)
    at = int(np.ceil(SHIFT_AT * (rows + 1)))  # the first error that a shifted input has reached
    parts = (errors[:at], errors[at : at + max(1, int(SOON * rows))], errors[-(rows // 4) :])
    return (float(parts[0].mean()), float(parts[1].mean()), float(parts[2].mean()))


def recovered(phase: FloatArray) -> FloatArray:
    """The share of the rise at the shift that is undone in the last quarter, by run (rows: before, soon, late)."""
    before, soon, late = phase.T
    return np.asarray((soon - late) / (soon - before))


def _each(found: Mapping[str, FloatArray]) -> str:
    return ", ".join(f"{model} {told(values)}" for model, values in found.items())
