"""The paper's Fig. 1 as boxes and arrows: what is computed inside a client, and what it exchanges with the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterflow.paper.experiments.figures import BLUE, INK, MUTED, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# of every box: middle, width and height, text, colour
_BOXES: dict[str, tuple[tuple[float, float], tuple[float, float], str, str]] = {
    "inputs": ((0.6, 3.3), (1.1, 0.8), "$y_m^t$, $u_m^t$", MUTED),
    "filter": ((2.55, 3.3), (1.8, 1.0), "proprietary model\nKalman filter\n$A_{mm}, B_{mm}, C_{mm}$", INK),
    "refined": (
        (5.15, 3.3), (2.2, 1.0), "augmented estimate, (5)\n$\\hat h_{m,a} = \\hat h_{m,c} + \\theta_m y_m$", BLUE,
    ),
    "predicted": (
        (8.15, 3.3), (2.75, 1.0),
        "augmented prediction, (4)\n$h_{m,a}^t = A_{mm}\\hat h_{m,a}^{t-1} + B_{mm}u_m^{t-1} + \\phi_m$", BLUE,
    ),
    "loss": (
        (8.15, 1.75), (2.75, 0.9), "client loss, (6)\n$r_{m,a}^t = y_m^t - C_{mm}h_{m,a}^t$,  $L_{m,a}$", BLUE,
    ),
    "update": (
        (5.15, 1.75), (2.2, 0.9), "update, (9), (10)\n$\\theta_m, \\phi_m$ by $\\nabla L_{m,a}$, $\\nabla L_s$", BLUE,
    ),
    "chain": (
        (2.55, 1.75), (1.8, 0.9), "chain rule, (7), (8)\n$\\nabla_{\\theta_m} L_s$, $\\nabla_{\\phi_m} L_s$", BLUE,
    ),
    "server": (
        (5.15, 0.15), (8.0, 0.75),
        "server: $\\hat A_{mn}, \\hat B_{mn}$ by $L_s$ of all clients, (11) to (15)", VERMILION,
    ),
}  # fmt: skip
# from, to: points where an arrow begins and ends, and what stands beside it
_ARROWS: tuple[tuple[tuple[float, float], tuple[float, float], str, tuple[float, float], str], ...] = (
    ((1.15, 3.3), (1.65, 3.3), "", (0.0, 0.0), INK),
    ((3.45, 3.3), (4.05, 3.3), "$\\hat h_{m,c}$", (3.75, 3.45), INK),
    ((6.25, 3.3), (6.78, 3.3), "", (0.0, 0.0), INK),
    ((8.15, 2.8), (8.15, 2.2), "", (0.0, 0.0), INK),
    ((6.78, 1.75), (6.25, 1.75), "", (0.0, 0.0), INK),
    ((5.15, 2.2), (5.15, 2.8), "$\\theta_m$", (5.35, 2.45), INK),
    ((6.0, 2.2), (7.2, 2.8), "$\\phi_m$", (6.75, 2.38), INK),
    ((3.45, 1.75), (4.05, 1.75), "", (0.0, 0.0), INK),
    ((2.0, 0.53), (2.0, 1.3), "$\\nabla_{h_{m,a}} L_s$, $\\nabla_{\\hat h_{m,a}} L_s$", (3.05, 0.88), VERMILION),
)


def client(axes: Axes) -> None:
    """Fig. 1 of the paper, "a simplified view of the computation inside the client m"."""
    from matplotlib.patches import FancyBboxPatch

    for middle, size, text, colour in _BOXES.values():
        corner = middle[0] - size[0] / 2, middle[1] - size[1] / 2
        style: dict[str, Any] = {"boxstyle": "round,pad=0.02,rounding_size=0.08", "facecolor": "none"}
        axes.add_patch(FancyBboxPatch(corner, *size, edgecolor=colour, linewidth=1.1, **style))
        axes.text(*middle, text, ha="center", va="center", fontsize=7, color=INK)
    for start, end, text, where, colour in _ARROWS:
        _arrow(axes, start, end, colour)
        if text:
            axes.text(*where, text, ha="center", va="bottom", fontsize=7, color=colour)
    # what the client sends: from its states, around the right side, to the server
    right = 9.75
    axes.plot([9.52, right, right, 9.2], [3.3, 3.3, 0.15, 0.15], color=VERMILION, linewidth=1.0)
    _arrow(axes, (9.3, 0.15), (9.15, 0.15), VERMILION)
    told = "$\\{\\hat h_{m,c}, \\hat h_{m,a}, h_{m,a}, u_m\\}$"
    axes.text(9.68, 1.05, told, ha="right", va="center", fontsize=7, color=VERMILION)
    # measurements and inputs go past the filter, too
    axes.plot([0.6, 0.6, 5.15, 5.15], [3.7, 4.05, 4.05, 3.85], color=MUTED, linewidth=0.9)
    axes.plot([5.15, 8.15, 8.15], [4.05, 4.05, 3.85], color=MUTED, linewidth=0.9)
    axes.text(2.9, 4.08, "$y_m$ never leaves the client", fontsize=6.5, color=MUTED, va="bottom")
    axes.set_xlim(-0.05, 9.95)
    axes.set_ylim(-0.35, 4.4)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.0})
