"""Pictures of answers, drawn with matplotlib when asked for (``pip install counterflow[plots]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.errors import CounterflowError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.questions.answers import Attribution, Effect, Trajectory

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b6b6b")  # safe for the colour-blind
MOST_CHANNELS = 6


def canvas(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise CounterflowError("plots need matplotlib: pip install counterflow[plots]") from error
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def effect_figure(effect: Effect) -> Figure:
    """The channels that move most, with their bands where there are any."""
    order = np.argsort(-np.abs(effect.mean).max(axis=0))[:MOST_CHANNELS]
    figure, axes = canvas(1, 1, (7.0, 4.0))
    axis, steps = axes[0, 0], np.arange(1, len(effect.mean) + 1)
    for colour, channel in zip(COLOURS, order, strict=False):
        axis.plot(steps, effect.mean[:, channel], color=colour, label=effect.channels[channel])
        if effect.lower is not None and effect.upper is not None:
            axis.fill_between(steps, effect.lower[:, channel], effect.upper[:, channel], color=colour, alpha=0.2)
    axis.axhline(0.0, color="0.6", linewidth=0.8)
    axis.set_xlabel("steps after the change")
    axis.set_ylabel(f"change at {effect.effect}")
    band = "" if effect.level is None else f", {effect.level:.0%} bands"
    axis.set_title(f"{effect.effect}, if {effect.cause} were run differently{band}")
    axis.legend(frameon=False)
    return figure


def trajectory_figure(trajectory: Trajectory) -> Figure:
    """Factual and counterfactual values of the channels that differ most, one panel each."""
    gap = np.nan_to_num(np.abs(trajectory.mean - trajectory.factual))
    size = gap.max(axis=0) if gap.any() else np.ptp(trajectory.mean, axis=0)
    order = np.argsort(-size)[:3]
    figure, axes = canvas(len(order), 1, (7.0, 1.0 + 1.9 * len(order)), sharex=True)
    rows = np.arange(trajectory.first, trajectory.first + len(trajectory.mean))
    for axis, channel in zip(axes[:, 0], order, strict=True):
        axis.plot(rows, trajectory.factual[:, channel], color=COLOURS[6], label="measured", linewidth=1.0)
        axis.plot(rows, trajectory.mean[:, channel], color=COLOURS[1], label="answer")
        if trajectory.lower is not None and trajectory.upper is not None:
            lower, upper = trajectory.lower[:, channel], trajectory.upper[:, channel]
            axis.fill_between(rows, lower, upper, color=COLOURS[1], alpha=0.25)
        axis.set_ylabel(trajectory.channels[channel])
    axes[0, 0].legend(frameon=False, ncols=2)
    axes[0, 0].set_title(trajectory.unit)
    axes[-1, 0].set_xlabel("row")
    return figure


def attribution_figure(attribution: Attribution) -> Figure:
    """Shares of the channel that departs most, against the whole departure."""
    strongest = attribution.strongest
    figure, axes = canvas(1, 1, (8.0, 4.0))
    axis, rows = axes[0, 0], np.arange(attribution.first, attribution.first + len(attribution.departure))
    ranked = [name for name, _ in attribution.ranked(attribution.channels[strongest])]
    for colour, name in zip(COLOURS * len(ranked), ranked, strict=False):
        axis.plot(rows, attribution.shares[name][:, strongest], color=colour, label=name, linewidth=1.2)
    axis.plot(rows, attribution.departure[:, strongest], color="black", linestyle=":", label="departure")
    axis.axhline(0.0, color="0.6", linewidth=0.8)
    axis.set_xlabel("row")
    axis.set_ylabel(attribution.channels[strongest])
    axis.set_title(f"who moved {attribution.unit}")
    axis.legend(frameon=False, ncols=2)
    return figure
