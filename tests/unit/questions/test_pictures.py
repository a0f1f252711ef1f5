"""What notebooks show of recordings, fits, graphs, checks and answers, and pictures that leave gaps open."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from html import escape
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterflow as cf
from counterflow import notebook
from counterflow.caveats import Caveat, verdict_of
from counterflow.fits.summary import couplings
from counterflow.questions.plots import Axis, canvas, short_dates

HOSTILE = '<script>alert("x")&\' $x$'
UNITS = [
    cf.Unit(HOSTILE, 2, [cf.Channel("<b>in", "<i>")], [cf.Channel("<td>", "rpm"), cf.Channel("b", "rpm")]),
    cf.Unit("turbine", 2, inputs=["load"], outputs=[cf.Channel("speed", "rpm"), cf.Channel("power", "kW"), "x"]),
]
PLANT = cf.random_plant(units=UNITS, rng=3)
RECORDING = PLANT.simulate(400, rng=4)
FITS = ("fit", "logs", "published", "one unit")
ANSWERS = (
    "effect", "back", "without interval", "one step", "paths", "counterfactual", "forecast", "attribution",
    "restoration", "aggregate",
)  # fmt: skip
TABLES = ("recording", "graph", "checks", "window", *ANSWERS)


@cache
def _everything() -> dict[str, Any]:
    with_models, logs = cf.fit(RECORDING, PLANT.locals()), cf.fit(RECORDING)
    published = cf.fit(RECORDING, PLANT.locals(), method="penalty", rounds=3)
    effect = with_models.effect(HOSTILE, "turbine", {"<b>in": 1.0}, 10)
    back = with_models.effect("turbine", HOSTILE, {"load": 1.0}, 10)
    return {
        "recording": RECORDING,
        "fit": with_models,
        "logs": logs,
        "published": published,
        "one unit": cf.fit(cf.random_plant(units=["alone"], rng=1).simulate(200, rng=1)),
        "graph": logs.graph(),
        "checks": with_models.check(),
        "effect": effect,
        "back": back,
        "window": back.window(),
        "without interval": published.effect(HOSTILE, "turbine", {"<b>in": 1.0}, 10),
        "one step": with_models.effect(HOSTILE, "turbine", {"<b>in": 1.0}, 1),
        "paths": with_models.paths(HOSTILE, "turbine", {"<b>in": 1.0}, 10),
        "counterfactual": with_models.counterfactual(RECORDING, {HOSTILE: {"<b>in": 0.0}}, 300, 330),
        "forecast": logs.forecast(RECORDING, 10),
        "attribution": with_models.attribute(RECORDING, HOSTILE, 300, 330),
        "restoration": with_models.restore("turbine", {"speed": 0.1}, using=[HOSTILE], horizon=10),
        "aggregate": published.aggregate_effect("turbine", [0.5, 0.1]),
    }


class _Tags(HTMLParser):
    """Which elements a page has, and whether they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            assert name not in ("href",), value
            assert name != "src" or str(value).startswith("data:image/png;base64,")
        if tag != "img":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(("name", "verdict"), [("published", "fails"), ("without interval", "fails")])
def test_a_notebook_shows_what_fails_first_and_open(name, verdict):
    thing = _everything()[name]
    page = thing._repr_html_()
    failing = [caveat for caveat in thing.caveats if caveat.weight == "fails"]
    assert failing
    assert page.index(f">{verdict}</strong>") < page.index("<li>") < page.index("<table>")
    for caveat in failing:
        assert page.index(f"<li>{escape(str(caveat))[:40]}") < page.index("<table>")
    folded = page[page.index("<details>") :] if "<details>" in page else ""
    assert not any(escape(str(caveat))[:40] in folded for caveat in failing)
    assert "verdict fails" in repr(thing)


def test_a_notebook_shows_the_verdict_of_what_does_not_fail():
    for name in (*FITS, *ANSWERS):
        thing = _everything()[name]
        verdict = verdict_of(thing.caveats)
        assert f">{verdict}</strong>" in thing._repr_html_()
        assert ("verdict fails" in repr(thing)) == (verdict == "fails")
    note, effect = Caveat("check-feedback-fail", "turbine", "<b>x</b> & y"), _everything()["effect"]
    with_notes = replace(effect, about=replace(effect.about, caveats=(note,)))
    page = with_notes._repr_html_()
    assert "<b>x</b>" not in page
    assert "<li>" in page[: page.index("<table>")]


@pytest.mark.parametrize("name", [*FITS, *TABLES])
def test_a_notebook_shows_it_and_names_stay_text(name):
    thing = _everything()[name]
    page = thing._repr_html_()
    tags = _Tags()
    tags.feed(page)
    assert not tags.open
    allowed = {"div", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "img", "details", "summary", "ul"}
    allowed |= {"li", "strong", "svg", "path", "text", "line", "defs", "marker"}
    assert tags.seen <= allowed
    assert "table" in tags.seen
    if name not in ("window", "graph", "recording"):
        assert "img" in tags.seen
    assert "url(http" not in page


@pytest.mark.parametrize("name", [*FITS, *TABLES])
def test_its_short_form_is_short(name):
    text = repr(_everything()[name])
    assert len(text) < 450
    assert text.count("\n") == 0
    assert "array(" not in text


@pytest.mark.parametrize("name", TABLES)
def test_it_becomes_tables_of_polars_and_pandas(name):
    thing = _everything()[name]
    frame, other = thing.to_frame(), thing.to_pandas()
    assert frame.height == len(other) > 0


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_is_drawn_and_told(name, tmp_path):
    answer = _everything()[name]
    answer.plot().savefig(tmp_path / "picture.png")
    assert answer.sentence() in answer.summary()


def test_dates_are_the_index_of_answers():
    dated = cf.Recording.from_arrays(
        {n: (RECORDING[n].y, RECORDING[n].u) for n in RECORDING.names}, 60.0, units=UNITS, start="2024-03-31 00:00",
        timezone="Europe/Berlin",
    )  # fmt: skip
    fit = cf.fit(dated)
    found = fit.counterfactual(dated, {HOSTILE: {"<b>in": 0.0}}, 100, 200)["turbine"]
    index = found.to_pandas().index
    assert str(index.dtype).endswith("Europe/Berlin]")
    axis = found.plot().axes[-1]
    assert axis.get_xlabel() == "time (Europe/Berlin)"
    assert [a.get_ylabel() for a in found.plot().axes].count("[rpm]") <= 1


def test_panels_are_those_of_the_units_of_measure():
    figure = _everything()["fit"].effect(HOSTILE, "turbine", {"<b>in": 1.0}, 10, duration=4).plot()
    assert len(figure.axes) == 3, "rpm, kW, and none"
    spans = [patch for patch in figure.axes[0].patches if patch.get_width() == 4]
    assert len(spans) == 1, "the schedule is shaded while it is held"
    assert len(_everything()["fit"].effect("turbine", HOSTILE, {"load": 1.0}, 10).plot().axes) == 1, (
        "both are measured in rpm"
    )


def _polygons(axis) -> list[np.ndarray]:
    return [path.vertices for collection in axis.collections for path in collection.get_paths()]


def test_nothing_is_drawn_across_gaps_and_jumps():
    """Bands and lines end before missing rows and where time jumps, in pictures of answers and in reports."""
    from matplotlib.figure import Figure

    calendar = cf.Recording.from_arrays({"a": np.zeros((20, 1))}, 60.0, start="2024-01-01").calendar
    jumped = replace(calendar, jumps=((12, 3600 * 10**9),))
    rows = Axis.recorded(0, 20, jumped)
    values = np.arange(20.0)
    values[5:8] = np.nan
    axis = Figure().subplots()
    rows.shade(axis, values - 1, values + 1, color="red")
    rows.draw(axis, values, color="red")
    pieces = _polygons(axis)
    assert len(pieces) == 3, "rows 0 to 4, 8 to 11, and 12 to 19"
    for piece in pieces:
        x = np.unique(piece[:, 0])
        assert np.diff(x).max(initial=0.0) < 1.5 / 1440, "no piece is wider than a step between two points"
    (line,) = axis.get_lines()
    drawn = np.asarray(line.get_ydata(), float)
    assert np.isnan(drawn).sum() == 4, "three missing rows and one jump"


def test_reports_leave_gaps_open():
    from counterflow.report.content import section
    from counterflow.report.figures import told

    y = np.array(RECORDING["turbine"].y)
    y[310:320] = np.nan
    parts = {n: (RECORDING[n].y if n != "turbine" else y, RECORDING[n].u) for n in RECORDING.names}
    recording = cf.Recording.from_arrays(parts, units=UNITS)
    reply = _everything()["fit"].counterfactual(recording, {HOSTILE: {"<b>in": 0.0}}, 300, 330)["turbine"]
    world = section("?", reply, "speed")
    drawing = str(told(world, 0, "p", (4.0, 3.0)))
    measured = [path for path in re.findall(r' d="([^"]+)"', drawing) if path.count("M") == 2 and "L" in path]
    assert measured, "the measured line has two pieces"


def test_a_single_value_is_a_dot():
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    Axis(np.arange(5), "row").draw(axis, np.array([1.0, np.nan, 2.0, np.nan, 3.0]), color="red")
    assert len(axis.get_lines()) == 2
    assert list(axis.get_lines()[1].get_ydata()) == [1.0, 2.0, 3.0]


def test_small_lines_are_broken_and_bounded():
    values = np.r_[np.ones(3), np.nan, np.ones(3)]
    drawn = notebook.sparklines([("a<b>", values), ("empty", np.full(4, np.nan)), ("one", np.ones(1))])
    assert drawn.count("M") == 3
    assert "<b>" not in drawn
    assert len(notebook.sparklines([("long", np.random.default_rng(0).normal(size=200_000))])) < 20_000


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_page_leaves_gaps_open(tmp_path):
    """The console's bands: one way round each stretch without missing values."""
    source = Path(cf.__file__).parent / "console" / "static" / "gaps.js"
    module = tmp_path / "gaps.mjs"
    module.write_text(source.read_text())
    check = f"""
import {{ broken, jumps, outline }} from {str(module)!r};
const way = outline([0, 1, 2, 3, 4], [0, 0, null, 0, 0], [1, 1, null, 1, 1]);
const whole = outline([0, 1], [0, 0], [1, 1]);
const none = outline([0, 1], [null, null], [null, null]);
const places = jumps(10, 5, {{ jumps: [[8, 1], [12, 1], [15, 1]] }});
console.log(JSON.stringify([way, whole, none, places, broken([1, 2, 3], [2])]));
"""
    found = subprocess.run(
        ["node", "--input-type=module", "-e", check], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == (
        '[{"x":[0,1,1,0,null,3,4,4,3],"y":[1,1,0,0,null,1,1,0,0]},{"x":[0,1,1,0],"y":[1,1,0,0]},{"x":[],"y":[]},[2],'
        "[1,2,null,3]]"
    )


@pytest.mark.parametrize("name", FITS)
def test_summaries_of_fits_are_tables_of_couplings(name):
    fit = _everything()[name]
    text = fit.summary()
    assert text.splitlines()[0].strip() == "Counterflow fit"
    for wanted in ("Method:", "Units:", "Rows:", "Converged:", "Traffic:"):
        assert wanted in text
    if name == "one unit":
        return
    head = next(line for line in text.splitlines() if "direct?" in line)
    assert head.split()[-2:] == ["[0.025", "0.975]"]
    rows = text.splitlines()[text.splitlines().index(head) + 1 :][:2]
    assert len(rows) == 2
    assert ("–" in rows[0]) == (name == "published")


def test_a_summary_says_why_a_coupling_that_passes_its_test_is_not_direct(monkeypatch):
    fit = _everything()["logs"]
    graph = fit.graph()
    edges = tuple(replace(edge, p_value=0.029, q_value=0.029, direct=k > 0) for k, edge in enumerate(graph.edges))
    monkeypatch.setattr(type(fit), "graph", lambda self: replace(graph, edges=edges))
    kinds = [row[2] for row in couplings(fit).rows]
    assert sorted(kinds) == ["slight", "yes"]
    assert "slight: found by the test, but less than 50 % of what the cause does" in fit.summary()


@pytest.mark.parametrize(
    ("first", "last", "wanted"),
    [
        ("2024-11-01T22:00", "2024-11-02T00:00", "2024-Nov-01"),
        ("2024-11-01T22:00", "2024-11-02T03:00", "2024-Nov-01 to 2024-Nov-02"),
        ("2024-11-01T02:00", "2024-11-01T05:00", "2024-Nov-01"),
        ("2024-11-02", "2024-12-01", "2024-Nov"),
    ],
)
def test_beside_an_axis_stand_the_days_that_are_shown(first, last, wanted):
    figure, axes = canvas(1, 1, (6.0, 3.0))
    times = np.linspace(*(np.datetime64(each, "us").astype(np.int64) for each in (first, last)), 50)
    axes[0, 0].plot(times.astype(np.int64).astype("datetime64[us]"), np.arange(50))
    short_dates(axes[0, 0])
    figure.savefig(BytesIO())
    assert axes[0, 0].xaxis.get_major_formatter().get_offset() == wanted


def test_couplings_of_a_summary_are_those_of_the_graph():
    for edge in _everything()["fit"].graph():
        low, high = edge.direct_interval
        assert low <= edge.direct_strength <= high
        assert (low == 0) or edge.p_value < 0.05
