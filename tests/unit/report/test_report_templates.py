"""Templates escape what comes from data, miss no name silently, and let no markup through but drawings."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files

import pytest
from jinja2 import UndefinedError

from counterflow.report import templates

HOSTILE = "<script>'\"&"


def test_texts_are_escaped_and_missing_names_are_errors() -> None:
    page = templates.render("base.html.j2", title=HOSTILE, lead="5 %")
    assert "<script" not in page
    assert page.count("&lt;script&gt;&#39;&#34;&amp;") == 2
    assert "5\N{NO-BREAK SPACE}%" in page
    assert "default-src 'none'" in page
    with pytest.raises(UndefinedError, match="lead"):
        templates.render("base.html.j2", title="t")


def test_the_macro_of_drawings_is_the_only_one_that_does_not_escape() -> None:
    folder = files("counterflow.report").joinpath("templates")
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert {"base.html.j2", "macros.html.j2", "report.html.j2", "reproduction.html.j2", "page.css"} <= set(texts)
    assert [name for name, text in texts.items() if "safe" in re.findall(r"\|\s*(\w+)", text)] == ["macros.html.j2"]
    assert texts["macros.html.j2"].count("| safe") == 1
    assert not any("autoescape" in text or "<script" in text for text in texts.values())


def test_a_drawing_keeps_its_label_apart_and_its_ids_unique() -> None:
    drawing = '<?xml?><svg xmlns="http://www.w3.org" width="72pt" height="36pt"><g id="a"/><use href="#a"/>#123</svg>'
    found = templates.inline(drawing, "q1-", HOSTILE, {"#123": "--ink"}, enlarged=2.0)
    assert found.label == HOSTILE
    assert found.markup == ' style="max-width:144pt"><g id="q1-a"/><use href="#q1-a"/>var(--ink)</svg>'


def test_only_who_writes_a_page_waits_for_the_templates() -> None:
    code = "import sys, counterflow, counterflow.report; print('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
