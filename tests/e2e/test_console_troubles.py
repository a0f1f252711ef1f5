"""The console's page for everybody, and when things go wrong: themes, phones, keyboards, screen readers, hostile names,
questions without an answer, tokens that are gone, servers that are gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from console_browser import (
    ASKED,
    FUEL,
    PHONE,
    PLANT,
    RECORDING,
    SEAT,
    TABS,
    Desk,
    Served,
    screenshot,
    serving,
    sitting,
)

import counterflow as cf

if TYPE_CHECKING:
    from playwright.sync_api import Browser, CDPSession, Page

HOSTILE = "<img src=x onerror=alert(1)><b>u&amp;"
REFUSED = "Failed to load resource"  # what the browser says of any answer that is not a success


def _answered(desk: Desk) -> str:
    desk.until(lambda: desk.sentence() and desk.drawn(), "an answer that is drawn")
    return desk.sentence()


def _walk(desk: Desk) -> Iterator[str]:
    """Every tab in turn, when it shows what it has to show."""
    for kind in TABS:
        desk.page.click(f"#tab-{kind}")
        if kind == "influence":
            desk.until(desk.page.locator("#checks li").count, "the checks")
        elif kind in ("past", "restore"):
            desk.until(desk.page.locator("#answer-hint").is_visible, "a hint")
            field, value = (
                ('[data-target="electric power"]', "1.5") if kind == "restore" else ("[data-number] >> nth=0", "2")
            )
            desk.page.fill(field, value)
            _answered(desk)
        elif kind == "aggregate":  # a table and no picture
            desk.until(desk.sentence, "an answer in words")
        else:
            _answered(desk)
        yield kind


# ---- for everybody

CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, part, k) => sum + part * linear(rgb[k] / 255), 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, alpha = 1] = parse(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const style = getComputedStyle(element);
    if (!own || !element.checkVisibility({ visibilityProperty: true })) continue;
    if (element.closest("svg, :disabled, .unseen, .stale")) continue;
    if (element.tagName === "OPTION" || style.clipPath !== "none") continue;
    const [a, b] = [light(parse(style.color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const what = `${element.tagName} "${element.textContent.trim().slice(0, 40)}"`;
    found.push([ratio, `${what} ${style.color} on ${behind(element)}`]);
  }
  return found;
}"""


def _contrast(desk: Desk) -> None:
    found = desk.page.evaluate(CONTRAST)
    assert len(found) > 20
    poor = [(round(ratio, 2), text) for ratio, text in found if ratio < 4.5]
    assert not poor, poor


NAMED = {"button", "combobox", "slider", "spinbutton", "checkbox", "radio", "tab", "link", "textbox", "listbox", "img"}


def _named(session: CDPSession) -> None:
    """A screen reader hears a name of every control."""
    told = [
        (node["role"]["value"], str(node.get("name", {}).get("value", "")).strip())
        for node in session.send("Accessibility.getFullAXTree")["nodes"]
        if not node["ignored"] and node.get("role", {}).get("value") in NAMED
    ]
    assert len(told) > 10
    assert not [role for role, name in told if not name]


def _background(page: Page) -> str:
    return str(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))


def test_light_and_dark_are_both_legible_and_every_control_has_a_name(
    desk: Desk, browser: Browser, console: Served
) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    _answered(desk)
    light, session = _background(page), desk.context.new_cdp_session(page)
    for _ in _walk(desk):
        _contrast(desk)
        _named(session)
    page.click("#tab-effect")
    tree = page.locator("body").aria_snapshot()
    for line in (
        'tab "What if" [selected]', 'button "boiler, 2 inputs, cause" [pressed]',
        'button "turbine, 2 inputs, own unit, affected"',
        'slider "fuel valve of boiler, change in %"', 'spinbutton "fuel valve of boiler, exactly"',
    ):  # fmt: skip
        assert line in tree, tree
    assert page.get_attribute("#sentence", "aria-live") == "polite"
    with sitting(browser, console.address, color_scheme="dark") as other:
        other.open(SEAT, "effect", ASKED)
        _answered(other)
        dark = _background(other.page)
        assert dark != light
        screenshot(other, "console-dark.png")
        for _ in _walk(other):
            _contrast(other)
        other.page.select_option("#theme", "light")
        assert _background(other.page) == light
        other.page.reload()
        other.until(other.page.locator("#checks li").count, "the checks again")
        assert _background(other.page) == light
    page.select_option("#theme", "dark")
    assert _background(page) == dark
    _answered(desk)
    paper = desk.until(
        lambda: page.evaluate("() => document.getElementById('answer-plot').layout?.paper_bgcolor"), "a plot"
    )
    assert paper == page.evaluate("() => getComputedStyle(document.getElementById('plot-place')).backgroundColor")


OUTSIDE = """() => [...document.querySelectorAll("button, select, input, summary, [role=button]")].filter((one) => {
  if (!one.checkVisibility() || one.closest(".scroll, .chips, .unseen") || one.type === "radio") return false;
  const { left, right } = one.getBoundingClientRect();
  return left < 0 || right > innerWidth + 0.5;
}).map((one) => one.outerHTML.slice(0, 120))"""


def test_a_phone_is_wide_enough(browser: Browser, console: Served) -> None:
    with sitting(browser, console.address, viewport=PHONE, has_touch=True, is_mobile=True) as desk:
        page = desk.open(SEAT, "effect", ASKED)
        _answered(desk)
        screenshot(desk, "console-phone.png")
        for kind in _walk(desk):
            wide = page.evaluate("() => [document.scrollingElement.scrollWidth, innerWidth]")
            assert wide == [390, 390], kind
            assert page.evaluate(OUTSIDE) == [], kind
        page.tap("#tab-effect")
        said = _answered(desk)
        page.tap('#graph [data-node="water_treatment"]')
        page.fill('[data-number="water_treatment.make-up valve"]', "4")
        desk.until(lambda: "water_treatment make-up valve +4 %" in desk.sentence(), "an answer")
        page.tap('[data-remove="water_treatment"]')
        desk.until(lambda: desk.sentence() == said, "the first answer again")
        page.tap("label[for=shape-pulse]")
        desk.until(lambda: "for 7 steps" in desk.sentence(), "a pulse")
        page.tap("label[for=baseline-both]")
        desk.until(lambda: desk.curve("electric power", "expected without"), "the baseline")
        page.select_option("#seat", "server")
        desk.until(lambda: "state" in desk.sentence(), "the server's view")


STOPS = """() => {
  const all = [...document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")];
  window.stops = new Set(all.filter((one) =>
    one.checkVisibility({ visibilityProperty: true }) && !one.disabled && one.tabIndex >= 0 && one.type !== "radio"));
  return window.stops.size;
}"""
FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  window.stops.delete(one);
  const outline = (element) => {
    const style = getComputedStyle(element);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  };
  const drawn = one.querySelector(":scope > rect, :scope > .grip"); // of a unit or an arrow in the graph
  const thick = drawn && parseFloat(getComputedStyle(drawn).strokeWidth) >= 4;
  const visible = outline(one) || (one.type === "radio" && outline(one.nextElementSibling)) || thick;
  return { visible: Boolean(visible), what: one.outerHTML.slice(0, 120) };
}"""


@pytest.mark.parametrize("kind", ["effect", "restore", "influence"])
def test_the_keyboard_reaches_everything_and_one_sees_where_it_is(desk: Desk, kind: str) -> None:
    page = desk.open(SEAT, "effect", ASKED)
    _answered(desk)
    desk.until(page.locator("#paths").is_visible, "through whom")
    page.focus("#tab-effect")
    for _ in range(TABS.index(kind)):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.id") == f"tab-{kind}"
    if kind == "influence":
        desk.until(page.locator("#checks li").count, "the checks")
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    wanted, hidden = page.evaluate(STOPS), []
    assert wanted > 10
    ends = 0
    for _ in range(2 * wanted + 30):  # from where the focus was to the end, and from the beginning to there
        page.keyboard.press("Tab")
        found = page.evaluate(FOCUSED)
        ends += found is None
        if ends == 2 or page.evaluate("() => window.stops.size") == 0:
            break
        if found is not None and not found["visible"]:
            hidden.append(found["what"])
    missed = page.evaluate("() => [...window.stops].map((one) => one.outerHTML.slice(0, 120))")
    assert not missed, missed
    assert not hidden, hidden


def test_answers_are_there_before_the_drawing_library(desk: Desk) -> None:
    held: list[Any] = []
    desk.page.route("**/static/plotly.min.js", lambda route: held.append(route))
    change = {"unit": "boiler", "input": "fuel valve", "mode": "add", "value": 2.0}
    asked = {"unit": "turbine", "changes": [change], "start": 700, "stop": 760, "level": 0.95, "draw": None}
    page = desk.open(SEAT, "past", asked)
    desk.until(lambda: desk.sentence() and desk.rows(), "the sentence and the table")
    for place in ("#answer-plot", "#log-plot"):
        desk.until(page.locator(f"{place} .sketch").count, f"a sketch in {place}")
    page.select_option("#add-cause", "water_treatment")  # what was sketched is built anew meanwhile
    desk.until(page.locator("#log-plot .sketch").count, "a sketch in the new place")
    held[0].continue_()
    _answered(desk)
    desk.until(page.locator("#log-plot .main-svg").count, "the log")
    assert page.locator(".sketch").count() == 0


SECOND = """() => new MutationObserver((_, observer) => {
  observer.disconnect();
  const field = document.querySelector('[data-number="water_treatment.make-up valve"]');
  field.value = "3";
  field.dispatchEvent(new Event("input"));
}).observe(document.getElementById("sentence"), { childList: true })"""


def test_a_second_cause_while_the_ways_of_the_first_are_about_to_be_asked(desk: Desk) -> None:
    held: list[Any] = []
    asked: list[Any] = []
    page = desk.open(SEAT, "effect", ASKED)
    _answered(desk)
    page.select_option("#add-cause", "water_treatment")
    page.route(
        "**/effect", lambda route: held.append(route) if "make-up" in route.request.post_data else route.fallback()
    )
    page.on("request", lambda request: asked.append(request.post_data_json) if request.url.endswith("/paths") else None)
    page.evaluate(SECOND)
    page.fill('[data-number="boiler.fuel valve"]', "4")
    desk.until(lambda: held, "the question about both, which takes its time")
    page.wait_for_timeout(600)  # longer than a question must stand still before its ways are asked
    held[0].continue_()
    desk.until(lambda: "make-up valve +3 %" in desk.sentence(), "the answer about both")
    assert not [body for body in asked if len({change["unit"] for change in body["changes"]}) > 1]


# ---- questions without an answer


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Names like HTML, and an input that never moved."""
    units = [
        cf.Unit("<i>a b", 2, [HOSTILE, "still"], [cf.Channel(f"{HOSTILE} {k}", "<s>%") for k in range(4)]),
        cf.Unit("server", 2, ["u"], ["server", "y", "z"]),
    ]
    plant = cf.random_plant(units, rng=1)
    inputs = {unit.name: np.random.default_rng(3).normal(size=(601, unit.n_inputs)) for unit in units}
    inputs["<i>a b"][:, 1] = 1.0
    folder = tmp_path_factory.mktemp("strange")
    recording = plant.simulate(600, rng=2, inputs=inputs)
    cf.fit(recording, plant.locals()).save(folder / "fit")
    recording.save(folder / "recording.safetensors")
    with serving(folder / "fit") as served:
        yield served


def test_names_like_html_stay_text(browser: Browser, strange: Served) -> None:
    with sitting(browser, strange.address) as desk:
        change = {"unit": "<i>a b", "input": HOSTILE, "size": 1.0}
        page = desk.open("unit:<i>a b", "effect", {**ASKED, "effect": "<i>a b", "changes": [change]})
        dialogs: list[Any] = []
        page.on("dialog", lambda dialog: (dialogs.append(dialog), dialog.dismiss()))
        assert HOSTILE in _answered(desk)
        for kind in ("effect", "explain", "forecast", "influence"):
            page.click(f"#tab-{kind}")
            if kind != "influence":
                _answered(desk)
                assert HOSTILE in page.inner_text("#ranked")
            else:
                desk.until(page.locator("#graph-large .node").count, "the graph")
            assert page.locator("img[src=x], main i, main s, main b").count() == 0, kind
        page.click("#tab-effect")
        _answered(desk)
        titles = page.locator("#answer-plot .annotation-text").all_text_contents()
        assert any(title.startswith(HOSTILE) for title in titles), titles
        page.select_option("#seat", "unit:server")
        desk.until(lambda: "server" in desk.sentence(), "the unit that is called server")
        assert not dialogs


def test_what_the_data_cannot_tell_is_said_over_the_greyed_answer(browser: Browser, strange: Served) -> None:
    with sitting(browser, strange.address) as desk:
        desk.expected = (REFUSED,)
        change = {"unit": "<i>a b", "input": HOSTILE, "size": 1.0}
        page = desk.open("unit:server", "effect", {**ASKED, "effect": "server", "changes": [change]})
        said = _answered(desk)
        page.fill('[data-number="<i>a b.still"]', "2")
        alert = page.locator("#answer-error")
        desk.until(alert.is_visible, "why there is no answer")
        assert alert.get_attribute("role") == "alert"
        assert alert.inner_text().startswith("The data cannot tell")
        assert "these data cannot answer this" in alert.inner_text()
        faded = "() => Number(getComputedStyle(document.getElementById('plot-place')).opacity)"
        desk.until(lambda: page.evaluate(faded) < 0.6, "the old plot, greyed")
        assert desk.drawn()
        page.click('[data-reset="<i>a b.still"]')
        desk.until(lambda: not alert.is_visible() and page.evaluate(faded) == 1, "the answer again")
        assert desk.sentence() == said


def test_beyond_the_limits_is_said(desk: Desk) -> None:
    desk.expected = (REFUSED,)
    page = desk.open(SEAT, "effect", ASKED)
    said = _answered(desk)
    control = page.locator('[data-control="boiler.fuel valve"]')
    page.fill('[data-number="boiler.fuel valve"]', "40")
    desk.until(lambda: "beyond the seen range" in control.inner_text(), "that nobody has seen that")
    desk.until(lambda: "+40 %" in desk.sentence(), "an answer")
    page.fill('[data-number="boiler.fuel valve"]', "250")
    desk.until(lambda: "above its limit of 50 %" in control.inner_text(), "the limit")
    desk.until(page.locator("#answer-error").is_visible, "the refusal")
    assert "limits" in page.inner_text("#answer-error")
    page.fill('[data-number="boiler.fuel valve"]', "5")
    desk.until(lambda: desk.sentence() == said and not page.locator("#answer-error").is_visible(), "the answer again")


def test_links_that_make_no_sense_are_a_fresh_start(desk: Desk) -> None:
    desk.expected = (REFUSED,)
    page = desk.open(SEAT, "effect", ASKED)
    said = _answered(desk)
    odd: list[Any] = [
        5, [1], {"seat": 5}, {"seat": "unit:nobody"}, {"seat": SEAT, "ask": "nothing"},
        {"seat": SEAT, "ask": "constructor"},
        {"seat": SEAT, "ask": "effect", "question": {"changes": "x"}}, {"seat": SEAT, "ask": "effect", "question": [1]},
        {"seat": SEAT, "ask": "effect", "question": {"changes": [None, {"unit": "nobody"}], "horizon": 1e9}},
        {"seat": SEAT, "ask": "past", "question": {"unit": "nobody", "start": -5, "stop": 1e12, "changes": [FUEL]}},
        {"seat": SEAT, "ask": "restore", "question": {"target": {"x": "y"}, "using": [5]}},
        {"seat": "server", "ask": "explain", "question": {"unit": "boiler", "start": 0, "stop": 9}},
    ]  # fmt: skip
    for fragment in ["garbage", "%7B", "%E0%A4%A", *(quote(json.dumps(each)) for each in odd)]:
        page.goto(f"{desk.address}#{fragment}")
        shown = page.locator("#workspace:visible, #influence:visible, #refused:visible")
        desk.until(shown.count, f"a page at #{fragment}")
        desk.until(page.locator('[role=tab][aria-selected="true"]').count, f"a chosen tab at #{fragment}")
        assert "undefined" not in page.inner_text("main"), fragment
    page.goto("about:blank")  # what is still under way there writes no link into the next page
    page.goto(f"{desk.address}#garbage")
    _answered(desk)
    assert "could not be read" in page.inner_text("#notice")
    page.goto(f"{desk.address}#{quote(json.dumps({'seat': SEAT, 'ask': 'effect', 'question': ASKED}))}")
    desk.until(lambda: desk.sentence() == said, "the question of the link")


# ---- tokens and policies; the server is gone


def test_policies_and_a_token_that_is_gone(browser: Browser, tmp_path: Path) -> None:
    short = RECORDING.slice(0, 300)
    cf.fit(short, PLANT.locals(), "penalty", solver="gradient", rounds=4).save(tmp_path / "fit")
    for name, allowed in (
        ("boiler", '[ask]\nturbine = ["feedwater valve"]\n'),
        ("turbine", ""),
        ("water_treatment", ""),
    ):
        (tmp_path / f"{name}.toml").write_text(f'unit = "{name}"\n{allowed}')
    policies = [part for name in PLANT.names for part in ("--policy", str(tmp_path / f"{name}.toml"))]
    with serving(tmp_path / "fit", "--token", *policies) as served, sitting(browser, served.address) as desk:
        desk.expected = (REFUSED,)
        page = desk.page
        page.goto(served.address)
        desk.until(lambda: "open the address that it printed" in page.inner_text("body"), "what to do without a token")
        assert page.locator("#seat option").count() == 0
        page.goto(served.told)
        page.locator("#seat option").first.wait_for(state="attached")
        assert page.url.partition("#")[0] == served.address
        (cookie,) = desk.context.cookies()
        assert cookie["httpOnly"]
        assert cookie["sameSite"] == "Strict"
        page.select_option("#seat", SEAT)
        desk.until(lambda: "turbine" in desk.sentence(), "an answer")
        assert page.locator("#graph-reason").is_visible()
        if not page.locator('fieldset[data-cause="boiler"]').count():
            page.select_option("#add-cause", "boiler")
        fuel = page.locator('[data-control="boiler.fuel valve"]')
        assert "'boiler' does not let 'turbine' ask about its input 'fuel valve'" in fuel.inner_text()
        assert page.locator('input[data-input="boiler.fuel valve"]').is_disabled()
        refused = page.locator('#graph [data-node="water_treatment"]')
        assert refused.get_attribute("aria-disabled") == "true"
        refused.click(force=True)
        assert "does not let" in page.inner_text("#graph-note")
        page.click("#tab-influence")
        desk.until(page.locator("[data-curves] .main-svg").count, "the curves of the training")
        page.click("#tab-effect")
        _answered(desk)
        desk.context.clear_cookies()
        page.fill('[data-number="boiler.feedwater valve"]', "3")
        desk.until(lambda: page.inner_text("#banner").startswith("This console asks for a token"), "a banner")
        assert page.inner_text("#connection") == "No token"


def test_a_token_that_is_wrong_or_expires_says_so(browser: Browser, model: Path) -> None:
    with serving(model, "--token", "--hours", "0.003") as served, sitting(browser, served.address) as desk:
        desk.expected = ("401", REFUSED)
        page = desk.page
        answer = page.goto(f"{served.address}?token=wrong")
        assert answer is not None
        assert answer.status == 401
        text = page.inner_text("main")
        assert "open the address that it printed" in text
        assert "{" not in text
        page.goto(served.told)
        _answered(desk)
        desk.until(lambda: page.inner_text("#connection") == "Token expired", "the end of the token")
        assert page.inner_text("#banner").startswith("Token expired: start the console again")
        assert desk.sentence(), "what was answered stays"


def test_a_busy_console_is_asked_again(desk: Desk) -> None:
    busy = {"error": {"type": "Busy", "code": "busy", "message": "the console is busy", "status": 503}}
    desk.expected = ("503",)
    refused = []

    def once(route: Any) -> None:
        if len(refused) < 2:
            refused.append(route.request.url)
            route.fulfill(status=503, headers={"Retry-After": "1"}, json=busy)
        else:
            route.continue_()

    desk.page.route("**/api/seats/**", once)
    desk.open()
    desk.until(desk.drawn, "an answer, although the console was busy at first")
    assert len(refused) == 2


def test_a_console_that_is_gone_and_comes_back(browser: Browser, model: Path) -> None:
    with serving(model) as served, sitting(browser, served.address) as desk:
        desk.expected = (REFUSED,)
        page = desk.open(SEAT, "effect", ASKED)
        said = _answered(desk)
        served.stop()
        page.fill('[data-number="boiler.fuel valve"]', "-2")
        desk.until(page.locator("#banner").is_visible, "a banner")
        assert page.inner_text("#banner").startswith("The console's server does not answer; trying again.")
        assert page.inner_text("#connection") == "No answer"
        assert desk.sentence() == said
        assert desk.drawn()
        with serving(model, port=served.port):
            desk.until(lambda: "−2 %" in desk.sentence(), "the answer to the last question, without a click")
            assert not page.locator("#banner").is_visible()
            assert page.inner_text("#connection") == "Connected"
