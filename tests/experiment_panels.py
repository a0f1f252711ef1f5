"""Panels of a figure drawn without laying them out, which takes longer than all the rest."""

from __future__ import annotations

from counterflow.experiments.figures import Drawing, styled


def drawn(figure: Drawing) -> list[str]:
    """Titles of all panels, after each has drawn something."""
    assert figure.caption
    with styled():
        from matplotlib.figure import Figure

        for panel in figure.panels:
            axes = Figure().add_subplot()
            panel.draw(axes)
            assert axes.has_data(), panel.title
            assert axes.get_xlabel(), panel.title
    return [panel.title for panel in figure.panels]
