"""Draw the pictures of README.md: python docs/images/make_images.py

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
INK, MUTED, GRID, SHADE, TRUTH, PUBLISHED = "#1c2126", "#59636e", "#dcdcd5", "#f1eee4", "#1c2126", "#d1495b"
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


def what_if(path: Path, steps: int = 4000, seed: int = 0) -> None:
    """The demo's first two questions: what happened, what would have happened, and the effect as estimated."""
    plant = demo_plant()
    inputs = excitation.white(plant, steps, seed, scale=INPUT_SPREAD)
    recording = plant.simulate(steps, rng=seed, inputs=inputs)
    published = fit(recording, plant.locals(), method="penalty", seed=seed)
    start = steps // 2
    minutes = np.arange(-10, HORIZON + 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained", facecolor="white")
        for axes, question in zip(figure.subplots(1, 2), QUESTIONS[:2], strict=True):
            changed = {name: series.copy() for name, series in inputs.items()}
            valve = plant.unit(question.cause).input_names.index(question.valve)
            changed[question.cause][start : start + HELD, valve] += question.change
            unit = plant.unit(question.effect)
            at = unit.output_names.index(question.headline)
            twin = plant.simulate(steps, rng=seed, inputs=changed)
            rows = slice(start - 10, start + HORIZON + 1)
            observed, other = (run[unit.name].y[rows, at] for run in (recording, twin))
            effect = published.effect(
                question.cause, question.effect, {question.valve: question.change}, HORIZON, HELD
            ).mean[:, at]
            axes.axvspan(0, HELD, color=SHADE, linewidth=0)
            axes.plot(minutes, observed, color="#a9b0b7", linewidth=1.4, label="what happened")
            axes.plot(
                minutes, other, color=TRUTH, dashes=(3, 1.6), linewidth=2, label="what would have happened (truth)"
            )
            axes.plot(
                minutes[10:],
                observed[10:] + np.concatenate([[0.0], effect]),
                color=PUBLISHED,
                linewidth=2,
                label="what the published method says",
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
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    what_if(HERE / "what-if.png")
