"""A report of any fit: what it says is right, everything is escaped, what cannot be answered is said so."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow import wording
from counterflow.checks import check
from counterflow.checks.verdicts import kinds
from counterflow.learning.influence import Edge, InfluenceGraph
from counterflow.plant import excitation
from counterflow.plant.calendar import Calendar
from counterflow.report import (
    AskAggregate,
    AskAttribution,
    AskCounterfactual,
    AskEffect,
    AskForecast,
    AskPaths,
    AskRestoration,
    Estimate,
    Report,
    WhatIf,
    compose,
    graph,
    render,
    section,
    tell,
    write,
    write_report,
)

HOSTILE = '<script>alert("x")<script> & $x_1$'
UNITS = [
    cf.Unit("boiler", 2, [cf.Channel("fuel", "%", (-9, 9)), "feed"], [cf.Channel("pressure", "bar"), "level", "steam"]),
    cf.Unit("turbine", 2, [cf.Channel("valve", "%")], [cf.Channel("power", "MW"), "speed", "vacuum"]),
    cf.Unit("water_pump", 1, ["motor"], ["flow", "head"]),
]
PLANT = cf.random_plant(UNITS, rng=3)
INPUTS = dict(excitation.white(PLANT, 1500, 4))
STUCK = {**INPUTS, "water_pump": np.full_like(INPUTS["water_pump"], 0.5)}
RECORDING = PLANT.simulate(1500, rng=4, inputs=INPUTS)
FIT = cf.fit(RECORDING, PLANT.locals())
QUESTIONS = [
    AskEffect("boiler", "turbine", {"fuel": 2.0}, horizon=12, duration=4, headline="power"),
    AskCounterfactual("turbine", {"boiler": {"fuel": 0.0}}, 1400, 1440, headline="power"),
    AskAttribution("turbine", 1400, 1440, headline="power"),
    AskRestoration("turbine", {"power": 0.5}, ["boiler"], horizon=15),
]


def texts(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)).replace("\N{NO-BREAK SPACE}", " ")


def test_a_report_of_dated_rows_speaks_of_dates(tmp_path: Path) -> None:
    begins = int(np.datetime64("2024-11-01", "ns").astype(np.int64))
    dated = cf.Recording(dict(RECORDING.items()), 60.0, Calendar(begins, 60 * 10**9))
    content = write_report(tmp_path / "r.html", cf.fit(dated, PLANT.locals()), dated, QUESTIONS[1:3])
    when = "from 2024-11-01 23:20 to 23:59"
    asked = [section.question for section in content.sections]
    assert asked == [f"Had boiler fuel been 0 % {when}: what would turbine have done?", f"Who moved turbine {when}?"]
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    summed = re.search(r'<p class="([^"]*)">([^<]*)</p>\s*', page[page.index('class="summed"') - 3 :])
    assert summed is not None
    assert content.sections[0].answer.window().sentence("power") == texts(unescape(summed[2]))
    assert summed[1] == "summed", "it is no caution"


def test_every_kind_of_question_is_told_with_units_and_interval(tmp_path: Path) -> None:
    content = write_report(tmp_path / "r.html", FIT, RECORDING, QUESTIONS, notes=["a note"])
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    said = texts(page)
    assert len(content.sections) == 4
    assert content.whatifs[0].question == "If boiler fuel were +2 % for 4 steps: what would turbine do?"
    for told in (content.sections[k] for k in (0, 1, 3)):
        assert re.search(r"\(95 %: [+-]?[\d.]+ to [+-]?[\d.]+[;)]", told.sentence()), told.sentence()
        assert "MW" in told.sentence()
    assert "MW" in content.sections[2].sentence()
    effect, world = (FIT.ask(each, RECORDING if each.of_past else None) for each in QUESTIONS[:2])
    assert effect.window().sentence("power") in said, "all rows summed up, with intervals"
    assert world.window().sentence("power") in said
    for words in ("Who acts on whom", "What was checked", "none spent: nothing was made private", "A note.", "SHA-256"):
        assert words in said
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_other_questions_are_told_with_their_tables() -> None:
    asked = [
        AskPaths("boiler", "turbine", {"fuel": 2.0}, 12),
        AskForecast("turbine", 9),
        AskAggregate("turbine", [1.0, 0.0], [0.0, 0.0]),
    ]
    content = compose(FIT, RECORDING, asked)
    said = unescape(texts(render(content)))
    assert len(content.sections) == 3
    for each in content.sections:
        assert each.sentence() in said
    assert "through water_pump" in said


def test_the_sentences_are_the_answers_numbers() -> None:
    world, shares, remedy = (tell(FIT, RECORDING, question) for question in QUESTIONS[1:])
    told = FIT.counterfactual(RECORDING, {"boiler": {"fuel": 0.0}}, 1400, 1440)["turbine"]
    row = int(np.abs(told.mean - told.factual)[:, 0].argmax())
    assert world.sentence() == told.sentence("power")
    assert f" in row {1400 + row}." in world.sentence()
    ranked = FIT.attribute(RECORDING, "turbine", 1400, 1440).ranked("power")
    name, label, value = shares.answer.parts(shares.headline_index)[0]
    assert (name, value) == ranked[0]
    assert f": {label} " in shares.sentence()
    found = FIT.restore("turbine", {"power": 0.5}, ["boiler"], horizon=15)
    assert found.feasible
    assert remedy.answer.rows.mean[-1, 0] == pytest.approx(0.5, rel=1e-3)
    assert remedy.sentence().startswith(found.sentence())
    assert f"boiler fuel {wording.number(found.change['boiler']['fuel'], sign=True)} %" in remedy.sentence()
    with pytest.raises(cf.DataError, match="truth"):
        replace(world, truth=np.zeros((3, 3)))


def test_a_target_out_of_reach_is_said_so() -> None:
    remedy = tell(FIT, RECORDING, AskRestoration("turbine", {"power": 1e4}, {"boiler": ["fuel"]}, horizon=15))
    assert "cannot be reached with these inputs within their limits" in remedy.sentence()


def test_what_the_data_cannot_tell_is_refused_on_the_page() -> None:
    recording = PLANT.simulate(1500, rng=4, inputs=STUCK)
    fit = cf.fit(recording, PLANT.locals())
    content = compose(fit, recording, [AskEffect("water_pump", "boiler", {"motor": 1.0}, horizon=3)])
    assert len(content.sections) == 1
    said = texts(render(content))
    assert "Refused: These data cannot answer this: " in said
    assert "never varies" in said
    assert any(each.name == "excitation" and each.verdict == "fail" for each in content.checks)
    assert "Inputs were moved enough" in said
    assert "Remedy:" in said
    with pytest.raises(cf.UnknownNameError):
        compose(fit, recording, [AskEffect("pump", "boiler", {"motor": 1.0})])
    with pytest.raises(cf.OptionError, match="AskEffect"):
        compose(fit, recording, ["what if?"])  # type: ignore[list-item]


def test_names_from_data_are_escaped_everywhere() -> None:
    given, seen = [cf.Channel(HOSTILE, "<b>")], [cf.Channel(HOSTILE + "2", "<b>"), "<u>y"]
    units = [cf.Unit("<i>a", 1, given, seen), cf.Unit("b&<s>", 1, given, seen)]
    plant = cf.random_plant(units, rng=1)
    recording = plant.simulate(300, rng=2)
    fit = cf.fit(recording, plant.locals())
    asked = [
        AskEffect("<i>a", "b&<s>", {HOSTILE: 1.0}, horizon=3),
        AskCounterfactual("b&<s>", {"<i>a": {HOSTILE: 0.0}}, 100, 120),
        AskAttribution("b&<s>", 100, 120),
        AskRestoration("b&<s>", {HOSTILE + "2": 0.1}, ["<i>a"], horizon=5),
    ]
    page = render(compose(fit, recording, asked, title=HOSTILE, lead=HOSTILE, notes=[HOSTILE]))
    for tag in ("<script", "<b> ", "<b>]", "<i>a", "<u>", "<s>", "<b>&"):
        assert tag not in page, tag
    assert "&lt;script&gt;" in page
    assert re.search(r"(?i)[a-z]+://|@import|url\((?!#)", page) is None
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_fit_without_uncertainty_or_couplings_has_a_report_too() -> None:
    for method, models in (("oracle", PLANT), ("penalty", PLANT.locals()), ("centralized", PLANT.locals())):
        fit = cf.fit(RECORDING, models, method=method)
        content = compose(fit, RECORDING, [*QUESTIONS[:2], QUESTIONS[3]])
        said = texts(render(content))
        assert (content.graph is None) == (method != "centralized")
        assert "Who acts on whom" in said or content.graph is None
        if method == "penalty":
            assert "cannot recover B_mn" in said
            assert said.count("treat this number as") == 2  # under the first question, and before you act


def arrows(drawing: str) -> list[str]:
    """What a pointer is told of each arrow of a drawing."""
    return [unescape(title) for title in re.findall(r'id="g-arrow\d+"><title>([^<]*)</title>', drawing)]


def test_what_was_ruled_out_is_not_drawn_and_not_called_none_found() -> None:
    one = Edge("a", "b", 1e-9, 1e-9, 1e-9, 1e-9, True, True, 1.0, 1.0)
    two = Edge("b", "a", 1.0, 1.0, 1.0, 1.0, False, False, 0.0, 0.0, possible=False)
    assert [edge.kind for edge in (one, two, replace(two, reaches=True))] == ["direct", "ruled out", "through others"]
    drawing = graph.drawing(InfluenceGraph(("a", "b"), (one, two), 0.05), "g-").markup
    assert arrows(drawing) == ["a → b: direct, q = 1e-09, strength 1 directly, 1 in all"]


@pytest.mark.parametrize(("count", "narrow"), [(2, False), (3, True), (5, False), (12, False), (12, True)])
def test_a_graph_is_drawn_inside_its_canvas_and_told_in_words(count: int, narrow: bool) -> None:
    names = tuple(f"unit <{k}>" for k in range(count))
    nan = float("nan")
    edges = []
    for k in range(count):
        for j in (j for j in range(count) if j != k):
            direct, unknown = j == (k + 1) % count, k == 0 and j == count - 1 and count > 2
            p = nan if unknown else (1e-9 if direct else 0.5)
            edges.append(Edge(names[k], names[j], p, p, p, p, direct and not unknown, True, 1.0 + k, 2.0))
    found = InfluenceGraph(names, tuple(edges), 0.05)
    drawn = graph.drawing(found, "g-", narrow)
    assert graph.description(found) in drawn.label
    assert ("cannot be told" in drawn.label) == (count > 2)
    _, _, width, height = (float(v) for v in re.findall(r'viewBox="([^"]*)"', drawn.markup)[0].split())
    boxes = []
    for path in re.findall(
        r'id="g-unit\d+"><title>unit &lt;\d+&gt;</title>\s*<g[^>]*>\s*<path d="([^"]*)"', drawn.markup
    ):
        x, y = np.array(re.findall(r"-?[\d.]+", path), float).reshape(-1, 2).T
        boxes.append((x.min(), y.min(), x.max(), y.max()))
    assert len(boxes) == count
    for k, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left <= right <= width
        assert 0 <= top <= bottom <= height
        for a, b, c, d in boxes[:k]:
            assert left >= c or a >= right or top >= d or b >= bottom, "units overlap"
    kinds = [next(kind for kind in graph.LEGEND if f": {kind}" in title) for title in arrows(drawn.markup)]
    assert kinds.count("direct") == count
    assert kinds.count("not determined") == int(count > 2)
    assert (kinds.count("through others") == 0) == (count > 5 or count == 2)


def test_checks_are_on_the_page_with_verdict_number_remedy_and_picture() -> None:
    wrong = {n: replace(m, A=0.6 * m.A, Q=0.3 * m.Q) for n, m in PLANT.locals().items()}
    fit = cf.fit(RECORDING, wrong)
    content = compose(fit, RECORDING)
    assert [str(each) for each in content.checks] == [str(each) for each in check(fit, RECORDING)]
    bad = [each for each in content.checks if each.verdict == "fail"]
    assert {"whiteness", "innovation size"} <= {each.name for each in bad}
    page = render(content)
    said = unescape(texts(page))
    for each in bad:
        assert f"{each.number:.2g} {each.unit_of_number}" in said
        assert each.finding[1:] in said
        assert each.remedy[1:] in said
    for kind in kinds().values():
        assert f'aria-label="{kind.name}: ' in page or not kind.always, kind.name


def test_gaps_and_bare_arrays() -> None:
    units = [cf.Unit("a", 1, 1, 1), cf.Unit("b", 1, 1, 2)]
    plant = cf.random_plant(units, rng=1)
    whole = plant.simulate(600, rng=2)
    rows = {name: (whole[name].y.copy(), whole[name].u) for name in whole.names}
    rows["b"][0][300:330] = np.nan
    recording = cf.Recording.from_arrays(rows, units=units, dt=900.0)
    fit = cf.fit(recording, plant.locals())
    asked = [
        AskEffect(["a", "b"], "a", {"a": [1.0], "b": np.ones((5, 1))}, horizon=5),
        AskCounterfactual("b", {"a": np.zeros((60, 1))}, 290, 350),
        AskCounterfactual("b", {"a": {"u1": 0.0}}, 305, 320),
        AskAttribution("b", 290, 350),
    ]
    content = compose(fit, recording, asked)
    assert "nan" not in texts(render(content)).lower().split()
    assert "would have been" in content.sections[2].sentence()  # though nothing was measured there
    assert "(3.021 d to 3.635 d from the first)" in content.sections[3].sentence()
    with pytest.raises(cf.DataError, match="nothing was measured"):
        compose(fit, recording, [AskAttribution("b", 305, 320)])


def whatif(**changes: object) -> WhatIf:
    """An effect of one, two and one and a half on power, and of nothing on the others."""
    asked = AskEffect("boiler", "turbine", {"fuel": 2.0}, horizon=3)
    mean = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [1.5, 0.0, 0.0]])
    effect = replace(FIT.ask(asked), mean=mean)
    effect.__dict__["_ends"] = mean - 0.5, mean + 0.5
    told = section(HOSTILE, effect, "power")
    assert isinstance(told, WhatIf)
    return replace(told, **changes)  # type: ignore[arg-type]


def test_a_what_if_beside_others_and_the_truth() -> None:
    asked = whatif(label="our fit")
    twin = whatif(label="our fit", truth=-asked.answer.course, others=[Estimate(HOSTILE, 0 * asked.answer.course)])
    assert twin.sentence() == (
        "In truth the power falls by up to 2.00 MW after 2 steps. Our fit says +2.00 MW (95 %: +1.50 "
        f"to +2.50); over all channels and times it misses by 200 % of the true effect. {HOSTILE} says +0.00 MW; over "
        "all channels and times it misses by 100 % of the true effect."
    )
    assert [twin.relative_error(each) for each in twin.estimates] == [2.0, 1.0]
    assert asked.relative_error(asked.estimates[0]) is None
    page = render(Report(HOSTILE, HOSTILE, (twin,), provenance={"<k>": HOSTILE}))
    assert "our fit, with 95\N{NO-BREAK SPACE}% band" in page
    assert "opacity: 0.22" in page
    assert "<script" not in page
    assert "<k>" not in page
    with pytest.raises(cf.DataError, match="shape"):
        whatif(others=[Estimate("b", asked.answer.course[:2])])
    with pytest.raises(cf.DataError, match="headline"):
        whatif(headline="nonsense")


def test_a_fit_without_rounds_has_no_curves(tmp_path: Path) -> None:
    recording = PLANT.simulate(60, rng=2)
    told, drawn = (
        Report("t", "l", (whatif(),), tuple(UNITS), {method: cf.fit(recording, models, method=method)})
        for method, models in (("oracle", PLANT), ("penalty", PLANT.locals()))
    )
    assert "server loss" not in render(told)
    write(drawn, tmp_path / "report.html")
    assert "server loss" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(cf.StorageError, match="nowhere"):
        write(drawn, tmp_path / "nowhere" / "report.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
