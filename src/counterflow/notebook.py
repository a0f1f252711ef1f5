"""What a notebook or a terminal shows of an object: a short line, tables, and one small picture.

Everything is escaped, because names come from other parties; pages refer to nothing outside themselves.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from counterflow.errors import CounterflowError
from counterflow.printable import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

SHORT = 320  # characters of a short line
_CELL = 'style="text-align:{};padding:1px 8px"'
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_POINTS = 240  # of a small line
_BADGES = {"fails": "#b3261e", "caution": "#8a5a00", "clear": "#1b6e3c"}  # dark enough for white letters


class Note(Protocol):
    """What something must be read with, and how heavy it weighs."""

    @property
    def weight(self) -> str: ...


@dataclass(frozen=True)
class Table:
    """Rows of text; all columns but the first ``left`` are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    more: str = ""


def short(text: object) -> str:
    """A text in one line that nothing hides in."""
    return shown(text, SHORT)


def lines(table: Table) -> list[str]:
    """A table as lines of text, in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    out = []
    for row in (table.columns, *table.rows):
        cells = [
            cell.ljust(width) if k < table.left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  " + "  ".join(cells).rstrip())
    return out


def page(
    sentence: str, tables: Sequence[Table] = (), picture: str = "", notes: Sequence[Note] = (),
    verdict: tuple[str, str] | None = None,
) -> str:  # fmt: skip
    """A fragment of HTML: the verdict and its meaning, what fails, what is said, pictures, tables, and other notes."""
    parts = ["<div>"]
    if verdict is not None:
        style = f"background:{_BADGES[verdict[0]]};color:#fff;padding:1px 8px;border-radius:3px"
        parts.append(f'<p><strong style="{style}">{_text(verdict[0])}</strong> {_text(verdict[1])}</p>')
    failing = [note for note in notes if note.weight == "fails"]
    others = [note for note in notes if note.weight != "fails"]
    if failing:
        listed = "".join(f"<li>{_text(note)}</li>" for note in failing)
        parts.append(f'<ul style="border-left:4px solid {_BADGES["fails"]}">{listed}</ul>')
    parts += [f"<p>{_text(sentence)}</p>", picture]
    for table in tables:
        head = _row(table.columns, table.left, "th")
        body = "".join(_row(row, table.left, "td") for row in table.rows)
        caption = f'<caption style="text-align:left">{_text(table.title)}</caption>'
        parts.append(f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>")
        parts.append(f"<p>{_text(table.more)}</p>" if table.more else "")
    if others:
        listed = "".join(f"<li>{_text(note.weight)}: {_text(note)}</li>" for note in others)
        count = f"{len(others)} {'more ' if failing else ''}{'note' if len(others) == 1 else 'notes'}"
        parts.append(f"<details><summary>{count} to read it with</summary><ul>{listed}</ul></details>")
    return "".join(parts) + "</div>"


def _text(value: object) -> str:
    return escape(shown(value))


def _row(cells: Sequence[str], left: int, tag: str) -> str:
    aligned = [(_CELL.format("left" if k < left else "right"), cell) for k, cell in enumerate(cells)]
    return f"<tr>{''.join(f'<{tag} {style}>{_text(cell)}</{tag}>' for style, cell in aligned)}</tr>"


def picture(draw: Callable[[], Figure], label: str) -> str:
    """A drawing of matplotlib as an image inside the page; nothing where there is no matplotlib, or nothing to draw."""
    try:
        figure = draw()
    except CounterflowError:
        return ""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=72)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{_text(label)}" src="data:image/png;base64,{data}">'


def sparklines(columns: Sequence[tuple[str, NDArray[Any]]], width: int = 420, height: int = 26) -> str:
    """Small lines below each other, one a name; they are broken where values are missing."""
    import numpy as np

    parts = []
    for k, (name, values) in enumerate(columns):
        step = max(1, len(values) // _POINTS)
        thin = np.asarray(values, np.float64)[::step]
        known = np.isfinite(thin)
        low, high = (float(thin[known].min()), float(thin[known].max())) if known.any() else (0.0, 0.0)
        span = high - low if np.isfinite(high - low) and high > low else 1.0
        x = 110 + np.arange(len(thin)) * (width - 114) / max(len(thin) - 1, 1)
        y = k * height + height - 4 - (np.where(known, thin, low) - low) / span * (height - 8)
        paths = []
        for run in np.split(np.arange(len(thin)), np.flatnonzero(np.diff(known.astype(int))) + 1):
            if len(run) and known[run[0]]:
                paths.append("M" + " L".join(f"{x[i]:.1f},{y[i]:.1f}" for i in run))
        label = f'<text x="2" y="{k * height + 17}" font-size="11" fill="#555">{_text(shown(name, 16))}</text>'
        colour = _COLOURS[k % len(_COLOURS)]
        parts.append(f'{label}<path d="{" ".join(paths)}" fill="none" stroke="{colour}" stroke-width="1"/>')
    return _svg(width, height * len(columns), "".join(parts))


def arrows(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str:
    """Names on a circle, and an arrow for every (cause, effect)."""
    radius, wide, high = 70.0, 380, 200
    place = {}
    for k, name in enumerate(names):
        turn = 2 * math.pi * k / len(names) - math.pi / 2
        place[name] = wide / 2 + 1.6 * radius * math.cos(turn), high / 2 + radius * math.sin(turn)
    parts = ['<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
             '<path d="M0,0 L7,3 L0,6 z" fill="#0072B2"/></marker></defs>']  # fmt: skip
    for cause, effect in pairs:
        (x1, y1), (x2, y2) = place[cause], place[effect]
        length = max(math.hypot(x2 - x1, y2 - y1), 1.0)
        cut, aside = 16 / length, 4 / length  # arrows that go both ways lie beside each other
        dx, dy = x2 - x1, y2 - y1
        ends = [f"{v:.1f}" for v in (x1 + cut * dx - aside * dy, y1 + cut * dy + aside * dx,
                                     x2 - cut * dx - aside * dy, y2 - cut * dy + aside * dx)]  # fmt: skip
        parts.append(
            f'<line x1="{ends[0]}" y1="{ends[1]}" x2="{ends[2]}" y2="{ends[3]}" stroke="#0072B2" '
            'stroke-width="1.5" marker-end="url(#tip)"/>'
        )
    for name, (x, y) in place.items():
        look = 'font-size="12" text-anchor="middle" fill="#333" stroke="#fff" stroke-width="3" paint-order="stroke"'
        parts.append(f'<text x="{x:.1f}" y="{y + 4:.1f}" {look}>{_text(shown(name, 24))}</text>')
    return _svg(wide, high, "".join(parts))


def _svg(width: int, height: int, content: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{content}</svg>'
