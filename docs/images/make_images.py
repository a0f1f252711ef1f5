"""Draw the picture of README.md: python docs/images/make_images.py

The plant is the one of ``counterflow demo``, fitted from its log alone; the truth is a twin run of its simulator with
the same noise and the changed input.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from counterflow import fit
from counterflow.cli import demo_plant
from counterflow.cli.demo import HELD, HORIZON, QUESTIONS, PooledLinear, held, with_incident

HERE = Path(__file__).parent
INK, MUTED, GRID, SHADE = "#1c2126", "#59636e", "#dcdcd5", "#f1eee4"
HAPPENED, ANSWER, LINEAR = "#a9b0b7", "#0072b2", "#d55e00"
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


def what_if(path: Path, steps: int = 1800, seed: int = 0) -> None:
    """Two of the demo's questions, asked of the night: what happened, what would have happened, and what is said."""
    worlds = demo_plant.lived(with_incident(demo_plant.moved_in_steps(steps, seed)), seed)
    recording = worlds.recording
    found, linear = fit(recording), PooledLinear.of(worlds.channels, worlds.inputs)
    start = recording.rows - HORIZON - 1
    minutes = np.arange(-BEFORE, HORIZON + 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.9), layout="constrained", facecolor="white")
        for axes, question in zip(figure.subplots(1, 2), QUESTIONS[:2], strict=True):
            ((lever, size),) = question.change.items()
            added = held({question.cause: question.change}, HORIZON, HELD)
            unit = recording[question.effect].unit
            at = unit.output_names.index(question.headline)
            column = demo_plant.outputs_of(question.effect).start + at
            change = np.zeros(HORIZON + 1)
            change[:HELD] = size
            answer = found.counterfactual(recording, add={question.cause: {lever: change}}, start=start)
            said = answer[question.effect]
            changed = worlds.inputs.copy()
            changed[start : start + HORIZON] += added
            truth = worlds.again(changed)[start:, column]
            observed, since = worlds.channels[start - BEFORE :, column], minutes[BEFORE:]
            theirs = observed[BEFORE:] + np.concatenate([[0.0], linear.effect(added)[:, column]])

            axes.axvspan(0, HELD, color=SHADE, linewidth=0)
            axes.plot(minutes, observed, color=HAPPENED, linewidth=1.4, label="what happened")
            axes.plot(since, theirs, color=LINEAR, linewidth=1.1, alpha=0.6, label="a plain linear model")
            axes.fill_between(
                since,
                said.lower[:, at],
                said.upper[:, at],
                color=ANSWER,
                alpha=0.3,
                linewidth=0,
                label="Counterflow, with its 95 % interval",
            )
            axes.plot(since, said.mean[:, at], color=ANSWER, linewidth=1.6)
            axes.plot(since, truth, color=INK, dashes=(3, 1.6), linewidth=1.3, label="what would have happened (truth)")
            cause = question.cause.replace("_", " ")
            axes.set_title(
                f"{cause}: {lever} {size:+g} % for {HELD} min",
                loc="left",
                fontsize=9.5,
                fontweight="bold",
            )
            axes.set_ylabel(f"{unit.name.replace('_', ' ')}: {question.headline} [{unit.outputs[at].unit}]")
            axes.set_xlabel("minutes since the change")
            axes.set_xlim(minutes[0], minutes[-1])
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    what_if(HERE / "what-if.png")
