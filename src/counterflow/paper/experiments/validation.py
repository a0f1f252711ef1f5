"""One-step predictions on new data whose inputs are not stationary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments import figures, two_units
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcome
from counterflow.paper.experiments.figures import INK, Drawing, Panel, band, level
from counterflow.paper.experiments.two_units import LABELS, SHIFT_AT, UNITS
from counterflow.paper.experiments.verdicts import above, below, both, either
from counterflow.paper.experiments.wording import told_each

MODELS = {  # label and colour
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


class Validation(Experiment, name="validation"):
    tasks = staticmethod(two_units.runs)
    compute = staticmethod(two_units.compute)

    @cached_property
    def phases(self) -> Mapping[str, Mapping[str, FloatArray]]:
        """Of every unit and model the errors of all runs before the shift, at once after it, and late (rows)."""
        return {n: {m: self.of(lambda run, m=m, n=n: phases(run, m, n)).T for m in MODELS} for n in UNITS}  # type: ignore[misc]

    @property
    def gains(self) -> str:
        """How much better the augmented clients are, before the shift."""
        means = [{m: float(phase[0].mean()) for m, phase in found.items()} for found in self.phases.values()]
        return " and ".join(f"{100 * (1 - each['augmented'] / each['proprietary']):.2g} %" for each in means)

    def judge(self) -> Iterator[Claim]:
        about = {LABELS[name]: found for name, found in self.phases.items()}
        for client, found in about.items():
            before = {m: phase[0] for m, phase in found.items()}
            gap = {m: before[m] - before["proprietary"] for m in OURS}
            yield self.claim("new-data", both(*map(below, gap.values())), client=client, before=before, gap=gap)
        for client, found in about.items():
            jump = {m: soon / before for m, (before, soon, _) in found.items()}
            verdict = both(*(above(jump[m], JUMP) for m in TRAINED))
            yield self.claim("jump", verdict, client=client, jumps=told_each(jump))
        for client, found in about.items():
            rise = {m: soon - before for m, (before, soon, _) in found.items()}
            gap = {m: rise[m] - rise["proprietary"] for m in OURS}
            rises = ", ".join(f"{m} {rise[m].mean():.3g}" for m in MODELS)
            yield self.claim("rise", both(*map(below, gap.values())), client=client, rises=rises, gap=gap)
        for client, found in about.items():
            shares = {m: (soon - late) / (soon - before) for m, (before, soon, late) in found.items() if m in TRAINED}
            more = both(*(above(shares[m] - shares["proprietary"]) for m in OURS), *(above(shares[m]) for m in OURS))
            some = either(*map(above, shares.values())) == "agrees"
            yield self.claim("recovery", more if some else "not comparable", client=client, shares=told_each(shares))
        gaps = {m: np.mean([found[m][0] / found["oracle"][0] for found in about.values()], axis=0) for m in TRAINED}
        yield self.claim("oracle", both(*(above(gaps[m], 1.05) for m in OURS)), gaps=told_each(gaps))

    def draw(self) -> Mapping[str, Drawing]:
        kernel, panels, closer = np.full(WINDOW, 1.0 / WINDOW), [], []
        for name, title in zip(UNITS, map(str.capitalize, LABELS.values()), strict=True):
            errors = {model: self.of(f"error/{model}/{name}") for model in MODELS}
            rows = errors["oracle"].shape[1]
            runs = {m: np.stack([np.convolve(e, kernel, "valid")[::EVERY] for e in each]) for m, each in errors.items()}
            x = WINDOW + EVERY * np.arange(runs["oracle"].shape[1], dtype=np.float64)  # the last row of every window
            along: dict[str, Any] = {"range_x": (0, rows)}
            means = {model: each.mean(axis=0) for model, each in runs.items()}
            curves = [band(x, runs[m], label, colour) for m, (label, colour) in MODELS.items()]
            ratios = [band(x, means[m] / means["proprietary"], *MODELS[m]) for m in OURS]
            one = level(1.0, color=figures.COLOURS[1], linestyle=figures.LINES[1])
            t, at = "row t of the new data", SHIFT_AT * (rows + 1)

            def shift(axes: Any, at: float = at) -> None:
                axes.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (1, 1)))

            panels.append(Panel(title, [*curves, shift], t, "squared prediction error", **along, range_y=(0.0, None)))
            closer.append(Panel(f"{title}, relative", [*ratios, shift, one], t, "error / proprietary error", **along))
        return {
            "validation-errors": self.drawing("errors", panels, columns=2, paper="Fig. 4"),
            "validation-relative": self.drawing("relative", closer, columns=2),
        }


def phases(outcome: Outcome, model: str, name: str) -> tuple[float, ...]:
    """Mean squared error before the shift, at once after it, and in the last quarter."""
    errors = outcome.array(f"error/{model}/{name}")
    rows = len(errors)
    at = int(np.ceil(SHIFT_AT * (rows + 1)))  # the first error that a shifted input has reached
    parts = (errors[:at], errors[at : at + max(1, int(SOON * rows))], errors[-(rows // 4) :])
    return tuple(float(part.mean()) for part in parts)
