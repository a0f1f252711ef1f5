"""The influence graph, drawn: units on an ellipse, arrows by strength (width) and certainty (line)."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from counterflow.questions.plots import literal
from counterflow.report.content import plain
from counterflow.report.figures import ACCENT, DOUBT, INK, PAPER, TEXT, blank, to_svg
from counterflow.report.templates import Svg, sentence
from counterflow.wording import listed

if TYPE_CHECKING:
    from counterflow.learning.influence import Edge, InfluenceGraph

DIRECT, THROUGH, UNDETERMINED = "direct", "through others", "not determined"  # the kinds of edges that are drawn
MOST_FAINT = 14  # arrows through others beyond which they only make a drawing unreadable
# class of the mark, CSS variable of its colour, text
LEGEND = {
    DIRECT: ("", "--accent", "acts directly; the wider, the stronger"),
    THROUGH: ("dashed", "--muted", "acts only through others"),
    UNDETERMINED: ("dotted", "--warn", "cannot be told from these data"),
}
_LOOKS: dict[str, dict[str, Any]] = {  # in the order in which they are drawn
    UNDETERMINED: {"color": DOUBT, "linestyle": (0, (1, 3))},
    THROUGH: {"color": TEXT, "linestyle": (0, (4, 3))},
    DIRECT: {"color": ACCENT},
}
ENLARGED = 1.05  # at most, on a page


def drawing(graph: InfluenceGraph, prefix: str, narrow: bool = False) -> Svg:
    """One drawing, told in words for who cannot see it; ``prefix`` keeps its ids apart from others on the page."""
    count, hidden = len(graph.names), left_out(graph)
    heights = {1: 1.2, 2: 1.2, 3: 2.5} if narrow else {1: 1.4, 2: 1.4, 3: 3.0}
    width, height = (3.4, heights.get(count, 4.2)) if narrow else (7.6, heights.get(count, 4.6))
    size, letters = (8.6, 14 if count > 5 else 17) if narrow else (10.8, 14 if count > 8 else 22)
    labels = [_cut(plain(name), letters) for name in graph.names]
    shown = [edge for edge in graph if edge.kind in _LOOKS and not (hidden and edge.kind == THROUGH)]
    strongest = max((edge.direct_strength for edge in shown if math.isfinite(edge.direct_strength)), default=0.0)
    titles = {}
    with blank((width, height)) as (figure, axes):
        widest = size / 72 * (0.6 * max(map(len, labels)) + 1.6)
        nodes, places = {}, _places(count, width, height, widest, size)
        for k, (name, label, place) in enumerate(zip(graph.names, labels, places, strict=True)):
            frame = {"boxstyle": "round,pad=0.5,rounding_size=1", "facecolor": PAPER, "edgecolor": INK, "linewidth": 1}
            nodes[name] = axes.text(
                *place, literal(label), ha="center", va="center", fontsize=size, weight="bold", color=INK, bbox=frame,
                zorder=3, gid=f"unit{k}",
            )  # fmt: skip
            titles[f"unit{k}"] = name
        figure.draw_without_rendering()  # now the frames, at which arrows begin and end, are in their places
        for k, edge in enumerate(sorted(shown, key=lambda edge: list(_LOOKS).index(edge.kind))):
            share = edge.direct_strength / strongest if edge.kind == DIRECT and strongest > 0 else 0.0
            line = size / 15 * (1.4 + 4.6 * math.sqrt(share) if math.isfinite(share) else 1.5)
            start, stop = nodes[edge.cause], nodes[edge.effect]
            axes.annotate("", stop.get_position(), start.get_position(), gid=f"arrow{k}", arrowprops={
                "arrowstyle": f"-|>,head_length={5 + 0.6 * line},head_width={2.5 + 0.5 * line}", "mutation_scale": 1,
                # bent to one side, so that the way back has its own line
                "connectionstyle": f"arc3,rad={0.13 if edge.kind == DIRECT else 0.24}", "linewidth": line,
                "patchA": start.get_bbox_patch(), "patchB": stop.get_bbox_patch(), "shrinkA": 6, "shrinkB": 6,
                **_LOOKS[edge.kind],
            }).arrow_patch.set_gid(f"arrow{k}")  # fmt: skip
            titles[f"arrow{k}"] = _told(edge)
        told = f"Influence graph of {count} units. {description(graph)}"
        drawn = to_svg(figure, prefix, told, ENLARGED)
    markup = drawn.markup
    for key, title in titles.items():  # what a pointer is told
        markup = markup.replace(f'id="{prefix}{key}">', f'id="{prefix}{key}"><title>{escape(title)}</title>')
    return Svg(drawn.label, markup)


def _told(edge: Edge) -> str:
    told = f"{plain(edge.cause)} → {plain(edge.effect)}: {edge.kind}"
    if edge.kind == UNDETERMINED:
        return told
    strengths = f"strength {edge.direct_strength:.2g} directly, {edge.total_strength:.2g} in all"
    return f"{told}, q = {edge.q_value:.2g}, {strengths}"


def left_out(graph: InfluenceGraph) -> int:
    """How many arrows through others are not drawn because there are too many to be read."""
    count = sum(edge.kind == THROUGH for edge in graph)
    return count if count > MOST_FAINT else 0


def description(graph: InfluenceGraph) -> str:
    """The graph in words."""
    parts = []
    for kind, words in ((DIRECT, "acts directly on"), (THROUGH, "acts through others on"), (UNDETERMINED, "")):
        for cause in graph.names:
            effects = [plain(edge.effect) for edge in graph if edge.kind == kind and edge.cause == cause]
            if effects and kind == UNDETERMINED:
                parts.append(f"whether {plain(cause)} acts on {listed(effects)} cannot be told from these data")
            elif effects:
                parts.append(f"{plain(cause)} {words} {listed(effects)}")
    return sentence("; ".join(parts) or "no influence was found")


def _cut(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1].rstrip() + "…"


def _places(count: int, width: float, height: float, widest: float, size: float) -> list[tuple[float, float]]:
    """Where units stand, in inches: clockwise from the top, or from the left if there are two."""
    tall = 2.1 * size / 72
    if count > 5 and width < height:  # two columns: on a tall canvas an ellipse would crowd its ends
        right = (count + 1) // 2
        gap = (height - tall - 0.08) / (right - 1)
        columns = [(width - widest / 2 - 0.04, k) for k in range(right)]
        columns += [(widest / 2 + 0.04, right - 1 - k) for k in range(count - right)]
        return [(x, height - tall / 2 - 0.04 - gap * k) for x, k in columns]
    rx, ry = (width - widest) / 2 - 0.06, (height - tall) / 2 - 0.06
    if count <= 3:
        rx, ry = min(rx, 0.34 * width), (0.54 if count == 3 else 0.3) * height
    turn, lower = math.pi if count == 2 else math.pi / 2, ry / 4 if count == 3 else 0.0  # of a triangle
    angles = [turn - 2 * math.pi * k / count for k in range(count)]
    return [(width / 2 + rx * math.cos(angle), height / 2 - lower + ry * math.sin(angle)) for angle in angles]
