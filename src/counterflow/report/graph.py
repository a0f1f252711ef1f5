"""The influence graph, drawn: units on an ellipse, arrows by strength (width) and certainty (line)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from counterflow.report.content import plain
from counterflow.report.templates import Svg, render, sentence
from counterflow.wording import listed

if TYPE_CHECKING:
    from counterflow.learning.influence import Edge, InfluenceGraph

DIRECT, THROUGH, UNDETERMINED, NONE = "direct", "through others", "not determined", "none found"
RULED_OUT = "ruled out"  # beforehand, by who knows the plant
MOST_FAINT = 14  # arrows through others beyond which they only make a drawing unreadable
# class of the mark, CSS variable of its colour, text
LEGEND = {
    DIRECT: ("", "--accent", "acts directly; the wider, the stronger"),
    THROUGH: ("dashed", "--muted", "acts only through others"),
    UNDETERMINED: ("dotted", "--warn", "cannot be told from these data"),
}
Node = tuple[float, float, float, float]  # x and y of its middle, width, height


@dataclass(frozen=True)
class Size:
    """A canvas, its letters and its nodes, in its own units."""

    width: float
    height: float
    font: float
    letters: int  # of a name, before it is cut

    @property
    def node_height(self) -> float:
        return 2.1 * self.font

    def node_width(self, label: str) -> float:
        return 0.60 * self.font * len(label) + 1.6 * self.font


def size_of(units: int, narrow: bool) -> Size:
    crowded = units > 8
    if narrow:
        return Size(340, {1: 120, 2: 120, 3: 250}.get(units, 420), 12, 14 if units > 5 else 17)
    return Size(760, {1: 140, 2: 140, 3: 300}.get(units, 460), 15, 14 if crowded else 22)


def kind_of(edge: Edge) -> str:
    if not math.isfinite(edge.p_value):
        return UNDETERMINED
    if edge.direct:
        return DIRECT
    if edge.reaches:
        return THROUGH
    return NONE if edge.possible else RULED_OUT


def drawing(graph: InfluenceGraph, prefix: str, narrow: bool = False) -> Svg:
    """One drawing with title and description; ``prefix`` keeps its ids apart from others on the page."""
    size = size_of(len(graph.names), narrow)
    labels = [_cut(plain(name), size.letters) for name in graph.names]
    places = _places([size.node_width(label) for label in labels], size)
    shown = [edge for edge in graph if kind_of(edge) not in (NONE, RULED_OUT)]
    if left_out(graph):
        shown = [edge for edge in shown if kind_of(edge) != THROUGH]
    strongest = max((edge.direct_strength for edge in shown if math.isfinite(edge.direct_strength)), default=0.0)
    at = {name: place for name, place in zip(graph.names, places, strict=True)}
    order = {UNDETERMINED: 0, THROUGH: 1, DIRECT: 2}
    arrows = [
        _arrow(edge, at[edge.cause], at[edge.effect], strongest, size)
        for edge in sorted(shown, key=lambda e: order[kind_of(e)])
    ]
    nodes = [
        {"name": name, "label": label, "x": x - w / 2, "y": y - h / 2, "width": w, "height": h, "middle": x}
        for name, label, (x, y, w, h) in zip(graph.names, labels, places, strict=True)
    ]
    markup = render(
        "graph.svg.j2",
        prefix=prefix,
        size=size,
        title=f"Influence graph of {len(graph.names)} units",
        description=description(graph),
        arrows=[arrow for arrow in arrows if arrow],
        nodes=nodes,
    )
    return Svg("", markup)


def left_out(graph: InfluenceGraph) -> int:
    """How many arrows through others are not drawn because there are too many to be read."""
    count = sum(kind_of(edge) == THROUGH for edge in graph)
    return count if count > MOST_FAINT else 0


def description(graph: InfluenceGraph) -> str:
    """The graph in words."""
    parts = []
    for kind, words in ((DIRECT, "acts directly on"), (THROUGH, "acts through others on"), (UNDETERMINED, "")):
        found = [(edge.cause, edge.effect) for edge in graph if kind_of(edge) == kind]
        for cause in graph.names:
            effects = [plain(m) for n, m in found if n == cause]
            if effects and kind == UNDETERMINED:
                parts.append(f"whether {plain(cause)} acts on {listed(effects)} cannot be told from these data")
            elif effects:
                parts.append(f"{plain(cause)} {words} {listed(effects)}")
    return sentence("; ".join(parts) or "no influence was found")


def _cut(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1].rstrip() + "…"


def _places(widths: list[float], size: Size) -> list[Node]:
    """(x, y, width, height) of every node, clockwise from the top, or from the left if there are two."""
    count, widest = len(widths), max(widths)
    if count > 5 and size.width < size.height:  # two columns: on a tall canvas an ellipse would crowd its ends
        right = (count + 1) // 2
        gap = (size.height - size.node_height - 8) / (right - 1)
        columns = [(size.width - widest / 2 - 4, k) for k in range(right)]
        columns += [(widest / 2 + 4, right - 1 - k) for k in range(count - right)]
        return [
            (x, size.node_height / 2 + 4 + gap * k, width, size.node_height)
            for (x, k), width in zip(columns, widths, strict=True)
        ]
    rx, ry = (size.width - widest) / 2 - 6, (size.height - size.node_height) / 2 - 6
    if count <= 3:
        rx, ry = min(rx, 0.34 * size.width), (0.54 if count == 3 else 0.3) * size.height
    turn = math.pi if count == 2 else -math.pi / 2
    lower = ry / 4 if count == 3 else 0.0  # a triangle hangs from its circle's upper half
    out = []
    for k, width in enumerate(widths):
        angle = turn + 2 * math.pi * k / count
        x, y = size.width / 2 + rx * math.cos(angle), size.height / 2 + lower + ry * math.sin(angle)
        out.append((x, y, width, size.node_height))
    return out


def _arrow(edge: Edge, start: Node, stop: Node, strongest: float, size: Size) -> dict[str, Any] | None:
    kind = kind_of(edge)
    x0, y0, x1, y1 = start[0], start[1], stop[0], stop[1]
    length = math.hypot(x1 - x0, y1 - y0)
    # bent to one side, so that the way back has its own line
    bend = 0.13 if kind == DIRECT else 0.24
    cx, cy = (x0 + x1) / 2 - bend * (y1 - y0), (y0 + y1) / 2 + bend * (x1 - x0)

    def point(t: float) -> tuple[float, float]:
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t**2
        return a * x0 + b * cx + c * x1, a * y0 + b * cy + c * y1

    steps = 400
    free = [
        t / steps for t in range(steps + 1) if not any(_inside(point(t / steps), node, 5) for node in (start, stop))
    ]
    if not free:
        return None
    first, last = free[0], free[-1]
    share = 0.0
    if kind == DIRECT and strongest > 0 and math.isfinite(edge.direct_strength):
        share = math.sqrt(edge.direct_strength / strongest)
    scale = size.font / 15
    stroke = scale * (1.4 + 4.6 * share) if kind == DIRECT else 1.5 * scale
    head = scale * 9 + 1.1 * stroke
    back = max(first, last - 0.9 * head / max(length, 1.0))
    # the part of the parabola between ``first`` and ``back``
    (ax, ay), (bx, by), (tx, ty) = point(first), point(back), point(last)
    t0, t1 = first, back
    mx = (1 - t0) * (1 - t1) * x0 + (t0 + t1 - 2 * t0 * t1) * cx + t0 * t1 * x1
    my = (1 - t0) * (1 - t1) * y0 + (t0 + t1 - 2 * t0 * t1) * cy + t0 * t1 * y1
    reach = math.hypot(tx - bx, ty - by) or 1.0
    nx, ny = -(ty - by) / reach * head * 0.42, (tx - bx) / reach * head * 0.42
    name = {DIRECT: "direct", THROUGH: "through", UNDETERMINED: "unknown"}[kind]
    told = f"{plain(edge.cause)} → {plain(edge.effect)}: {kind}"
    if kind != UNDETERMINED:
        told += (
            f", q = {edge.q_value:.2g}, strength {edge.direct_strength:.2g} directly, {edge.total_strength:.2g} in all"
        )
    return {
        "kind": name,
        "title": told,
        "path": f"M{ax:.1f} {ay:.1f}Q{mx:.1f} {my:.1f} {bx:.1f} {by:.1f}",
        "stroke": f"{stroke:.1f}",
        "head": f"{tx:.1f},{ty:.1f} {bx + nx:.1f},{by + ny:.1f} {bx - nx:.1f},{by - ny:.1f}",
    }


def _inside(point: tuple[float, float], node: Node, margin: float) -> bool:
    x, y, w, h = node
    return abs(point[0] - x) < w / 2 + margin and abs(point[1] - y) < h / 2 + margin
