"""Draw the picture of README.md: python docs/images/make_images.py

The plant is the one of ``counterflow demo``; the true effect is a twin run of its simulator with the same noise.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from counterflow import fit
from counterflow.cli.demo import HELD, HORIZON, QUESTIONS
from counterflow.cli.demo_plant import INPUT_SPREAD, demo_plant
from counterflow.plant import excitation

HERE = Path(__file__).parent
INK, MUTED, GRID, SHADE = "#1c2126", "#59636e", "#dcdcd5", "#f1eee4"
HAPPENED, ANSWER, PUBLISHED = "#a9b0b7", "#0072b2", "#d55e00"
BEFORE = 10  # minutes shown before the change
STYLE = {
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
}


def what_if(path: Path, steps: int = 1000, seed: int = 0) -> None:
    """Two of the demo's questions: what happened, what would have happened, and what each method says."""
    plant = demo_plant()
    inputs = excitation.white(plant, steps, seed, scale=INPUT_SPREAD)
    recording = plant.simulate(steps, rng=seed, inputs=inputs)
    default = fit(recording, plant.locals())
    published = fit(recording, plant.locals(), method="penalty")
    start = steps // 2
    minutes = np.arange(-BEFORE, HORIZON + 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained", facecolor="white")
        for axes, question in zip(figure.subplots(1, 2), QUESTIONS[:2], strict=True):
            changed = {name: series.copy() for name, series in inputs.items()}
            valve = plant.unit(question.cause).input_names.index(question.valve)
            changed[question.cause][start : start + HELD, valve] += question.change
            unit = plant.unit(question.effect)
            at = unit.output_names.index(question.headline)
            twin = plant.simulate(steps, rng=seed, inputs=changed)
            rows = slice(start - BEFORE, start + HORIZON + 1)
            observed, other = (run[unit.name].y[rows, at] for run in (recording, twin))
            asked = (question.cause, question.effect, {question.valve: question.change}, HORIZON, HELD)
            answer, theirs = default.effect(*asked), published.effect(*asked)
            after, since = observed[BEFORE:], minutes[BEFORE:]

            def added(effect, base=after, channel=at):
                return base + np.concatenate([[0.0], effect[:, channel]])

            axes.axvspan(0, HELD, color=SHADE, linewidth=0)
            axes.plot(minutes, observed, color=HAPPENED, linewidth=1.4, label="what happened")
            axes.plot(
                since, added(theirs.mean), color=PUBLISHED, linewidth=1.1, alpha=0.55, label="the published method"
            )
            axes.fill_between(
                since,
                added(answer.lower),
                added(answer.upper),
                color=ANSWER,
                alpha=0.3,
                linewidth=0,
                label="Counterflow, with its 95 % interval",
            )
            axes.plot(since, added(answer.mean), color=ANSWER, linewidth=1.6)
            axes.plot(
                since,
                other[BEFORE:],
                color=INK,
                dashes=(3, 1.6),
                linewidth=1.3,
                label="what would have happened (truth)",
            )
            cause = question.cause.replace("_", " ")
            axes.set_title(
                f"{cause}: {question.valve} {question.change:+g} % for {HELD} min",
                loc="left",
                fontsize=9.5,
                fontweight="bold",
            )
            axes.set_ylabel(f"{unit.name.replace('_', ' ')}: {question.headline} [{unit.outputs[at].unit}], deviation")
            axes.set_xlabel("minutes since the change")
            axes.set_xlim(minutes[0], minutes[-1])
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    what_if(HERE / "what-if.png")
