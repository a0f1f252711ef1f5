"""Panels of a figure drawn without laying them out, which takes longer than all the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from counterflow.paper.experiments.figures import Drawing, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def drawn(figure: Drawing) -> list[str]:
    """Titles of all panels, after each has drawn something."""
    assert figure.caption
    with styled():
        from matplotlib.figure import Figure

        for panel in figure.panels:
            axes = Figure().add_subplot()
            panel.draw(axes)
            assert axes.has_data(), panel.title
            assert panel.sketch or axes.get_xlabel(), panel.title
            _nothing_is_cut(axes, panel.title)
    return [panel.title for panel in figure.panels]


def _nothing_is_cut(axes: Axes, title: str) -> None:
    """Every point of every curve lies within the axes."""
    for line in axes.lines:
        if line.get_transform() != axes.transData:
            continue  # a line across the whole panel
        for values, limits in ((line.get_xdata(), axes.get_xlim()), (line.get_ydata(), axes.get_ylim())):
            numbers = np.asarray(values, np.float64)
            seen = numbers[np.isfinite(numbers)]
            low, high = sorted(limits)
            slack = 1e-9 * max(abs(low), abs(high))
            assert seen.size == 0 or low - slack <= seen.min() <= seen.max() <= high + slack, title
