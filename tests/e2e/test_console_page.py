"""The console's page as people use it: every number that is read off the screen is the library's."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars
import pytest
from console_browser import (
    ASKED,
    PLANT,
    RECORDING,
    ROWS,
    SEAT,
    Desk,
    Served,
    agrees,
    effect_table,
    fitted,
    says,
    screenshot,
    shown,
    sitting,
    table_of,
)
from linear_steam_plant import OPENED, WINDOW
from tolerances import ITERATES, LONG

import counterflow as cf
from counterflow import wording
from counterflow.questions.attribution import share_label

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

POWER = "electric power"


def _expect(desk: Desk, found: cf.Effect, condition: str) -> None:
    """Sentence, table and plot are those of an effect."""
    wanted = says(fitted(), found, condition)
    desk.until(lambda: desk.sentence() == wanted, wanted)
    table = effect_table(fitted(), found)
    assert agrees(desk.rows(), table), (desk.rows(), table)
    for channel in [row[0] for row in table[:4]]:
        k = found.channels.index(channel)
        desk.until(lambda c=channel, k=k: _close(desk.curve(c, "change"), found.mean[:, k]), f"the plot of {channel}")
        upper = desk.curve(channel, "band")[: len(found.mean)]
        np.testing.assert_allclose(upper, found.upper[:, k], rtol=LONG)


def _close(drawn: list[float], wanted: np.ndarray, rtol: float = LONG) -> bool:
    return len(drawn) == len(wanted) and np.allclose(drawn, wanted, rtol=rtol, atol=1e-9)


def _held(size: float, name: str = "boiler fuel valve") -> str:
    return f"{name} were {size:+g} % from now on"


def _slider(desk: Desk, name: str = "boiler.fuel valve") -> Locator:
    return desk.page.locator(f'input[data-input="{name}"]')


def _number(desk: Desk, name: str = "boiler.fuel valve") -> Locator:
    return desk.page.locator(f'input[data-number="{name}"]')


# ---- what if


def test_it_opens_with_the_plant_and_an_answer(desk: Desk) -> None:
    page = desk.open()
    desk.until(desk.sentence, "an answer")
    assert page.title() == "What if · demo-output/fit"
    assert page.inner_text("#title") == "demo-output/fit"
    assert page.inner_text("#connection") == "Connected"
    seats = page.locator("#seat option").all_inner_texts()
    assert seats == ["Unit: boiler", "Unit: turbine", "Unit: water_treatment", "Server"]
    graph = fitted().graph(0.05)
    found = {
        edge.get_attribute("data-edge"): edge.get_attribute("class") for edge in page.locator("#graph .edge").all()
    }
    assert {each for each, kind in found.items() if "direct" in str(kind)} == {f"{c}→{e}" for c, e in graph.direct()}
    assert len(page.locator("#graph .node").all()) == 3
    page.get_by_text("As text").click()
    listed = desk.rows("#graph-edges")
    assert len(listed) == 6
    for edge in graph:
        row = next(row for row in listed if row[0] == f"{edge.cause} → {edge.effect}")
        assert row[2:4] == [wording.number(edge.direct_strength), wording.number(edge.total_strength)]
    assert not page.locator("[role=alert]:visible").all()
    change = desk.until(lambda: page.url.count("#") and desk.question(), "the question in the address")["question"]
    ((cause, name, size),) = [(each["unit"], each["input"], each["size"]) for each in change["changes"]]
    found_effect = fitted().effect(cause, "boiler", {name: size}, change["horizon"])
    _expect(desk, found_effect, _held(size, f"{cause} {name}"))


def test_causes_are_picked_with_mouse_and_keyboard(desk: Desk) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    causes = page.locator("fieldset[data-cause]")
    node = page.locator('#graph [data-node="water_treatment"]')
    node.click()
    assert [each.get_attribute("data-cause") for each in causes.all()] == ["boiler", "water_treatment"]
    assert node.get_attribute("aria-pressed") == "true"
    node.focus()
    page.keyboard.press("Enter")
    assert [each.get_attribute("data-cause") for each in causes.all()] == ["boiler"]
    assert page.evaluate("() => document.activeElement.dataset.node") == "water_treatment"
    page.keyboard.press("Space")
    assert causes.count() == 2
    page.click('[data-remove="boiler"]')
    page.select_option("#add-cause", "turbine")
    _number(desk, "turbine.governor valve").fill("-4")
    found = fitted().effect("turbine", "turbine", {"governor valve": -4.0}, 40)
    _expect(desk, found, _held(-4, "turbine governor valve"))


def test_sliders_and_numbers_are_answered_with_the_librarys_numbers(desk: Desk) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    _expect(desk, fitted().effect("boiler", "turbine", {"fuel valve": 5.0}, 40), _held(5))
    screenshot(desk, "console-whatif.png")
    _slider(desk).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    moved = float(_number(desk).input_value())
    assert moved > 5.0
    _expect(desk, fitted().effect("boiler", "turbine", {"fuel valve": moved}, 40), _held(moved))
    box = _slider(desk).bounding_box()
    assert box is not None
    at = float(_slider(desk).get_attribute("min") or "nan"), float(_slider(desk).get_attribute("max") or "nan")
    start = box["x"] + 8 + (box["width"] - 16) * (moved - at[0]) / (at[1] - at[0])
    page.mouse.move(start, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(start - 30, box["y"] + 9, steps=6)
    page.mouse.up()
    dragged = float(_number(desk).input_value())
    assert dragged < moved
    assert float(_slider(desk).input_value()) == dragged
    _expect(
        desk,
        fitted().effect("boiler", "turbine", {"fuel valve": dragged}, 40),
        _held(dragged),
    )
    _number(desk).fill("2.34")
    _number(desk, "boiler.feedwater valve").fill("-1.5")
    both = fitted().effect("boiler", "turbine", {"fuel valve": 2.34, "feedwater valve": -1.5}, 40)
    _expect(desk, both, "boiler fuel valve were +2.34 % from now on and boiler feedwater valve -1.5 % from now on")
    desk.until(page.locator("#paths").is_visible, "through whom")
    ways = fitted().paths("boiler", "turbine", {"fuel valve": 2.34, "feedwater valve": -1.5}, 40)
    k = ways.channels.index(effect_table(fitted(), both)[0][0])
    at_most = int(np.abs(ways.total[:, k]).argmax())
    told = desk.until(lambda: _agree_ways(page.inner_text("#paths"), ways, k, at_most), "the ways of the last question")
    assert told
    page.click('[data-reset="boiler.feedwater valve"]')
    _expect(desk, fitted().effect("boiler", "turbine", {"fuel valve": 2.34}, 40), _held(2.34))


def _agree_ways(text: str, ways: cf.Paths, k: int, at: int) -> bool:
    total, direct = ways.total[at, k], ways.direct[at, k]
    through = [values[at, k] for values in ways.through.values()]
    digits = max(0, min(6, 2 - int(np.floor(np.log10(max(map(abs, [total, direct, *through])))))))
    return all(shown(wording.number(float(value), digits, sign=True)) in text for value in [total, direct, *through])


def test_horizon_certainty_pulse_and_ramp(desk: Desk) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    page.select_option("#level", "0.8")
    page.fill("#horizon", "25")
    found = fitted().effect("boiler", "turbine", {"fuel valve": 5.0}, 25, level=0.8)
    _expect(desk, found, _held(5))
    page.click("label[for=shape-pulse]")
    page.fill("#length", "6")
    page.fill("#start", "3")
    pulse = np.zeros(25)
    pulse[3:9] = 5.0
    _expect(
        desk,
        fitted().effect("boiler", "turbine", {"fuel valve": pulse}, 25, level=0.8),
        "boiler fuel valve were +5 % for 6 steps (6 min) after 3 steps (3 min)",
    )
    page.click("label[for=shape-ramp]")
    ramp = np.concatenate([np.zeros(3), 5.0 * np.minimum(np.arange(1, 23) / 6, 1)])
    _expect(
        desk,
        fitted().effect("boiler", "turbine", {"fuel valve": ramp}, 25, level=0.8),
        "boiler fuel valve were raised to +5 % over 6 steps (6 min) after 3 steps (3 min)",
    )


def test_schedules_from_a_file(desk: Desk, tmp_path: Path) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    desk.until(desk.sentence, "an answer")
    page.click("label[for=shape-series]")
    broken = tmp_path / "broken.csv"
    broken.write_text("boiler.fuel valve;make-up valve\n1;2\n3;four\n")
    page.set_input_files("#schedule-file", broken)
    said = desk.until(lambda: page.inner_text("#file-error"), "what is wrong with the file")
    assert said == 'broken.csv: Row 3, column 2 (make-up valve): "four" is not a number.'
    broken.write_text("boiler.coal\n1\n")
    page.set_input_files("#schedule-file", [])
    page.set_input_files("#schedule-file", broken)
    desk.until(lambda: '"boiler.coal" is not an input here' in page.inner_text("#file-error"), "the column's name")
    whole = tmp_path / "whole.csv"
    whole.write_text('"boiler.fuel valve",make-up valve\n1,0\n2.5,-1\n-3,0.5\n')
    page.set_input_files("#schedule-file", whole)
    change = {
        "boiler": {"fuel valve": np.array([1, 2.5, -3] + 37 * [0.0])},
        "water_treatment": {"make-up valve": np.array([0, -1, 0.5] + 37 * [0.0])},
    }
    _expect(
        desk,
        fitted().effect(list(change), "turbine", change, 40),
        "boiler fuel valve were changed as given for 3 steps (3 min) and water_treatment make-up valve changed as "
        "given for 3 steps (3 min)",
    )


def test_channels_are_chosen_and_drawn_on_what_is_expected(desk: Desk) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    found = fitted().effect("boiler", "turbine", {"fuel valve": 5.0}, 40)
    desk.until(lambda: len({trace["title"] for trace in desk.drawn()}) == 4, "four panels")
    *most, least = (row[0] for row in effect_table(fitted(), found))
    page.click(f'#draw [data-draw="{least}"]')
    desk.until(lambda: desk.curve(least, "change"), "a fifth panel")
    for name in most[:4]:
        page.click(f'#draw [data-draw="{name}"]')
        desk.until(lambda n=name: not desk.curve(n, "change"), f"a plot without {name}")
    (title,) = {trace["title"] for trace in desk.drawn()}
    assert title.startswith(f"{least} (")
    page.click('#draw [data-draw=""]')
    desk.until(lambda: len({trace["title"] for trace in desk.drawn()}) == 4, "four panels again")
    page.click("label[for=baseline-both]")
    k = found.channels.index(POWER)
    expected = fitted().forecast(RECORDING, 40)["turbine"].mean[:, k]
    desk.until(lambda: _close(desk.curve(POWER, "expected without"), expected, ITERATES), "what is expected")
    np.testing.assert_allclose(desk.curve(POWER, "with"), expected + found.mean[:, k], rtol=ITERATES)
    page.click("label[for=baseline-change]")
    desk.until(lambda: desk.curve(POWER, "change"), "the change alone")


# ---- the past, and what comes


def test_what_would_have_been(desk: Desk) -> None:
    page = desk.open(SEAT)
    desk.until(desk.sentence, "an answer")
    page.click("#tab-past")
    page.fill("#window-start", "700")
    page.fill("#window-stop", "759")
    if not page.locator('fieldset[data-cause="boiler"]').count():
        page.select_option("#add-cause", "boiler")
    _number(desk).fill("-2")
    page.select_option('[data-kind="boiler.feedwater valve"]', "set")
    _number(desk, "boiler.feedwater valve").fill("1.5")
    do, add = {"boiler": {"feedwater valve": 1.5}}, {"boiler": {"fuel valve": -2.0}}
    world = fitted().counterfactual(RECORDING, do, 700, 760, add=add)["turbine"]
    wanted = table_of(
        fitted(), world, world.mean - world.factual, (world.lower - world.factual, world.upper - world.factual), 700
    )
    desk.until(lambda: agrees(desk.rows(), wanted), f"the table {wanted}")
    said = desk.sentence()
    assert said.startswith("Had boiler fuel valve been 2 % lower and boiler feedwater valve 1.5 % in rows 700 to 759, ")
    assert f"in row {wanted[0][3].split()[1]}." in said
    channel = wanted[0][0]
    k = world.channels.index(channel)
    desk.until(lambda: _close(desk.curve(channel, "would have been"), world.mean[:, k]), "the other world")
    np.testing.assert_array_equal(desk.curve(channel, "measured"), RECORDING["turbine"].y[700:760, k])
    x = next(trace["x"] for trace in desk.drawn() if trace["name"] == "measured")
    assert (x[0], x[-1]) == (700, 759)
    desk.until(lambda: page.evaluate("() => Boolean(document.getElementById('log-plot').data)"), "the log")
    box = page.locator("#log-plot .nsewdrag").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 50, steps=5)
    page.mouse.up()
    desk.until(lambda: page.input_value("#window-start") != "700", "a window that was dragged")
    start, stop = int(page.input_value("#window-start")), int(page.input_value("#window-stop"))
    assert 0.4 * ROWS < start < stop < 0.7 * ROWS
    desk.until(lambda: f"in rows {start} to {stop}" in desk.sentence(), "its answer")


def test_explanations_add_up(desk: Desk) -> None:
    start, stop = RECORDING.rows - WINDOW, RECORDING.rows - WINDOW + 2 * OPENED
    page = desk.open("unit:boiler", "explain", {"unit": "boiler", "start": start, "stop": stop, "draw": None})
    shares = fitted().attribute(RECORDING, "boiler", start, stop)
    scale = np.sqrt(np.diag(fitted().parts["boiler"].model.R))
    order = np.argsort(-np.abs(shares.departure.mean(axis=0)) / scale)
    channels = [PLANT.unit("boiler").outputs[k] for k in order]
    means = shares.departure.mean(axis=0)
    wanted = [
        [channel.name, shown(wording.quantity(wording.number(float(means[k]), sign=True), channel.unit))]
        for k, channel in zip(order, channels, strict=True)
    ]
    desk.until(lambda: [row[:2] for row in desk.rows()] == wanted, f"the table {wanted}")
    for channel in (channels[0].name, "drum level"):
        page.click(f'#draw [data-draw="{channel}"]')
        k = shares.channels.index(channel)
        desk.until(lambda c=channel, k=k: _close(desk.curve(c, "departure"), shares.departure[:, k]), channel)
        drawn = desk.drawn()
        for name, values in shares.shares.items():
            label = share_label("boiler", name)
            parts = [trace["y"] for trace in drawn if trace["name"] == label and trace["stack"]]
            np.testing.assert_allclose(np.sum(parts, axis=0), values[:, k], rtol=LONG, atol=1e-9)
        whole = np.sum([trace["y"] for trace in drawn if trace["stack"]], axis=0)
        np.testing.assert_allclose(whole, shares.departure[:, k], atol=1e-9)
    page.click('#draw [data-draw=""]')
    desk.until(lambda: desk.curve(channels[0].name, "departure"), "the most departed")
    screenshot(desk, "console-explain.png", height=970)


def test_a_target_is_restored_and_asked_as_a_what_if(desk: Desk) -> None:
    page = desk.open(SEAT)
    desk.until(desk.sentence, "an answer")
    page.click("#tab-restore")
    desk.until(page.locator("#answer-hint").is_visible, "what is still missing")
    for name in ("boiler.feedwater valve", "water_treatment.make-up valve", "water_treatment.dosing pump"):
        page.uncheck(f'[data-lever="{name}"]')
    page.fill('[data-target="electric power"]', "1.5")
    page.fill("#horizon", "30")
    found = fitted().restore("turbine", {"electric power": 1.5}, {"boiler": ["fuel valve"]}, 30)
    moved = float(found.change["boiler"]["fuel valve"])
    by = wording.number(moved, sign=True)
    said = f"To move turbine electric power by +1.5 MW after 30 steps (30 min), hold boiler fuel valve {by} %."
    desk.until(lambda: desk.sentence() == said, said)
    assert page.inner_text("#feasible") == "Target reached"
    assert desk.rows()[0][:3] == ["electric power", "+1.50 MW", "+1.50 MW"]
    assert shown(f"{by} %") in page.inner_text('[data-move="boiler.fuel valve"]')
    page.fill('[data-target="electric power"]', "100000")
    desk.until(lambda: page.inner_text("#feasible") == "Target not reached", "that it cannot be reached")
    page.fill('[data-target="electric power"]', "1.5")
    desk.until(lambda: desk.sentence() == said, said)
    page.click("#as-what-if")
    assert page.get_attribute("#tab-effect", "aria-selected") == "true"
    ((changed,),) = [desk.until(lambda: desk.question()["question"].get("changes"), "the question in the address")]
    assert changed["size"] == pytest.approx(moved, rel=1e-4)  # as many digits as one would type
    way = fitted().effect("boiler", "turbine", {"fuel valve": changed["size"]}, 30)
    table = effect_table(fitted(), way)
    desk.until(lambda: agrees(desk.rows(), table), f"the table {table}")
    k = way.channels.index("electric power")
    desk.until(lambda: _close(desk.curve("electric power", "change"), way.mean[:, k]), "its way")
    assert desk.curve("electric power", "change")[-1] == pytest.approx(1.5, rel=1e-3)


def test_forecasts_follow_the_plan(desk: Desk) -> None:
    page = desk.open(
        SEAT, "forecast", {"unit": "turbine", "plan": [], "horizon": 20, "level": 0.95, "draw": ["shaft speed"]}
    )
    for plan in (None, {"turbine": {"governor valve": 6.0}}):
        if plan:
            if not page.locator('fieldset[data-cause="turbine"]').count():
                page.select_option("#add-cause", "turbine")
            _number(desk, "turbine.governor valve").fill("6")
        world = fitted().forecast(RECORDING, 20, plan)["turbine"]
        k = world.channels.index("shaft speed")
        desk.until(lambda w=world, k=k: _close(desk.curve("shaft", "expected"), w.mean[:, k], ITERATES), "the forecast")
        value, interval = wording.measured(float(world.mean[-1, k]), world.lower[-1, k], world.upper[-1, k], "rpm")
        (row,) = [row for row in desk.rows() if row[0] == "shaft speed"]
        last, following = RECORDING["turbine"].y[-1, k], world.mean[0, k]
        told = [f"{wording.number(float(each))} rpm" for each in (last, following)]
        assert row[1:] == [shown(text) for text in (*told, value, interval)]
    assert desk.sentence().startswith("If turbine governor valve is 6 % and other inputs stay as they are, turbine")


# ---- seats, links, files


def test_influence_checks_and_training(desk: Desk) -> None:
    page = desk.open(SEAT)
    desk.until(desk.sentence, "an answer")
    page.click("#tab-influence")
    desk.until(page.locator("#checks li").count, "the checks")
    names = {each.get_attribute("data-check") for each in page.locator("#checks li").all()}
    checks = [check for check in fitted().check(RECORDING).checks if not check.about.startswith(("boiler", "water"))]
    assert names == {check.name for check in checks}
    assert "these act directly: " in page.inner_text("#influence-card .lead")
    assert len(page.locator("#graph-large .edge").all()) == len(
        [row for row in desk.rows("#influence-card .edges") if row[1] != "none found"]
    )
    training = desk.until(lambda: page.locator("#training").count() and page.inner_text("#training"), "the training")
    assert "sufficient" in training
    assert "up" in training
    assert RECORDING.digest[:12] in page.inner_text("#provenance")
    assert "no differential privacy" in page.inner_text("#privacy-card")


def test_the_server_sees_states_and_says_what_it_cannot_answer(desk: Desk) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    desk.until(desk.sentence, "an answer")
    page.select_option("#seat", "server")
    desk.until(lambda: "state" in desk.sentence(), "an answer about states")
    page.select_option("#effect", "turbine")
    if not page.locator('fieldset[data-cause="boiler"]').count():
        page.select_option("#add-cause", "boiler")
    others = page.locator('[data-remove]:not([data-remove="boiler"])')
    while others.count():
        others.first.click()
    _number(desk).fill("5")
    page.fill("#horizon", "40")
    states = fitted().effect("boiler", "turbine", {"fuel valve": 5.0}, 40).states
    for k in range(3):
        desk.until(lambda k=k: _close(desk.curve(f"state {k + 1}", "change"), states[:, k]), f"state {k + 1}")
    seen = page.inner_text("body")
    assert not [channel.name for unit in PLANT.units for channel in unit.outputs if channel.name in seen]
    for kind in ("past", "explain", "restore", "forecast"):
        tab = page.locator(f"#tab-{kind}")
        assert tab.get_attribute("aria-disabled") == "true"
        tab.click(force=True)  # playwright would wait for it to become enabled
        assert "nobody's output channels: take a unit's seat" in page.inner_text("#refused")
    page.click("#tab-influence")
    desk.until(page.locator("#graph-large .edge").count, "the graph")
    desk.until(page.locator("#checks li").count, "the checks")
    screenshot(desk, "console-server.png")


def test_a_link_asks_the_same_question_and_back_goes_back(desk: Desk, browser: Browser, console: Served) -> None:
    desk.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = desk.open(SEAT, "effect", ASKED)
    _number(desk).fill("3.5")
    found = fitted().effect("boiler", "turbine", {"fuel valve": 3.5}, 40)
    _expect(desk, found, _held(3.5))
    page.click("#copy-link")
    desk.until(lambda: page.inner_text("#action-note") == "Link copied.", "that it was copied")
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert copied.startswith(console.address + "#")
    with sitting(browser, console.address) as other:
        other.page.goto(copied)
        _expect(other, found, _held(3.5))
        assert other.page.input_value("#seat") == SEAT
        assert float(_number(other).input_value()) == 3.5
    page.click("#tab-forecast")
    desk.until(lambda: desk.sentence().startswith("If inputs stay as they are"), "the forecast")
    page.go_back()
    _expect(desk, found, _held(3.5))
    assert float(_number(desk).input_value()) == 3.5
    page.go_forward()
    desk.until(lambda: desk.sentence().startswith("If inputs stay as they are"), "the forecast again")


def test_answers_are_saved_as_files(desk: Desk) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    found = fitted().effect("boiler", "turbine", {"fuel valve": 5.0}, 40)
    _expect(desk, found, _held(5))
    files = {}
    for kind in ("json", "csv", "html", "png"):
        with page.expect_download() as download:
            page.click(f"#export-{kind}")
        assert download.value.suggested_filename.endswith(f"effect.{kind}")
        files[kind] = Path(download.value.path()).read_bytes()
    told = json.loads(files["json"])
    assert told["answer"]["sentence"] == desk.sentence()
    assert told["question"]["changes"][0]["size"] == 5.0
    frame = polars.read_csv(io.BytesIO(files["csv"]))
    power = frame.filter(polars.col("channel") == "electric power")["mean"].to_numpy()
    np.testing.assert_allclose(power, found.mean[:, found.channels.index("electric power")], rtol=LONG)
    report = files["html"].decode().replace("\u00a0", " ")
    assert "If boiler fuel valve were +5 % from now on: what would turbine do?" in report
    assert re.search(rf"by {abs(power).max():.1f}[0-9]* MW \(95\s%: ", report)
    assert files["png"].startswith(b"\x89PNG\r\n\x1a\n")
    assert len(files["png"]) > 5000
