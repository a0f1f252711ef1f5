"""HTML by templates: what comes from data is escaped, and a name that a template misses is an error.

Pages refer to nothing outside themselves. Drawings are the only markup that is not written in a template: they are
``Svg`` values, made by ``inline`` from a drawing of matplotlib, and placed by the macro ``svg``, the only one that
does not escape.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from counterflow._version import __version__
from counterflow.report.content import plain

if TYPE_CHECKING:
    from jinja2 import Environment


@dataclass(frozen=True)
class Svg:
    """A drawing to stand inside HTML: its markup after ``<svg``, and its label, unless the markup has its own."""

    label: str
    markup: str


def render(template: str, **values: object) -> str:
    """The page that a template of this package makes of values."""
    return _environment().get_template(template).render(values, version=__version__)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only who writes a page waits for it

    made = Environment(
        loader=PackageLoader("counterflow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_unbroken,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"sentence": sentence, "capital": capital, "plain": plain}
    return made


def sentence(clause: object) -> str:
    """A clause (or a caveat) as a sentence of its own."""
    return capital(str(clause)).rstrip(".") + "."


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _unbroken(value: Any) -> Any:
    """A number and its per cent sign stay on one line."""
    return value if hasattr(value, "__html__") else str(value).replace(" %", "\N{NO-BREAK SPACE}%")


def inline(svg: str, prefix: str, label: str, colours: Mapping[str, str], enlarged: float | None = None) -> Svg:
    """A drawing of matplotlib to stand inside HTML.

    What refers to the outside (document type, name spaces, metadata) is removed.
    """
    text = svg[svg.index("<svg") + len("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:xlink)?="[^"]*"', "", text)
    width = re.search(r'\swidth="([\d.]+)pt"', text)
    assert width is not None, "a drawing of matplotlib says how wide it is"
    size = "" if enlarged is None else f' style="max-width:{enlarged * float(width[1]):.0f}pt"'
    text = text.replace(width[0], size, 1)
    text = re.sub(r'\sheight="[^"]*"', "", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{prefix}", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px sans-serif", text)
    for colour, variable in colours.items():
        text = text.replace(colour, f"var({variable})")
    return Svg(label, re.sub(r"\n\s*", "\n", text))
