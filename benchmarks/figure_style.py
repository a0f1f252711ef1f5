"""How the pictures of the tutorials look, and where they go."""

from __future__ import annotations

from pathlib import Path

IMAGES = Path(__file__).parent.parent / "docs" / "images"
INK, MUTED, GRID = "#1c2126", "#59636e", "#dcdcd5"
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
