"""The console of a dated log of a plant with controllers: dates and durations as people type them, and every tab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from closed_plant import recording
from console_browser import SEAT, TABS, Desk, Served, serving

import counterflow as cf

CHANGED = [{"unit": "boiler", "input": "feed", "mode": "add", "value": 1.0}]


@pytest.fixture(scope="module")
def console(  # in place of the usual one
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Served]:
    plain = recording()
    arrays = {name: (part.y, part.u) for name, part in plain.items()}
    dated = cf.Recording.from_arrays(arrays, 60.0, plain.units, start="2024-11-01 14:00", timezone="Europe/Berlin")
    folder = tmp_path_factory.mktemp("dated")
    cf.fit(dated).save(folder / "fit")
    dated.save(folder / "recording.safetensors")
    with serving(folder / "fit") as served:
        yield served


def _window(desk: Desk) -> tuple[int, int]:
    asked = desk.question()["question"]
    return asked["start"], asked["stop"]


@pytest.mark.parametrize("tab", ["past", "explain"])
def test_windows_are_typed_as_dates_and_durations(desk: Desk, tab: str) -> None:
    changes = {"changes": CHANGED} if tab == "past" else {}
    page = desk.open(SEAT, tab, {"unit": "turbine", "start": 100, "stop": 160, "draw": None, **changes})
    desk.expected = ("status of 400", "status of 422")
    desk.until(lambda: "2024-11-01 15:40" in desk.sentence(), "the answer of the link")
    start, stop, trouble = (page.locator(name) for name in ("#window-start", "#window-stop", "#window-trouble"))
    assert start.input_value() == "2024-11-01 15:40"

    def refused(said: str) -> None:
        desk.until(lambda: trouble.is_visible() and said in trouble.inner_text(), said)
        assert page.locator("#answer.stale").count() == 1, "the old answer is marked"
        assert "of another window" in page.inner_text("#answer-hint")

    for wrong in ("2023-01-01", "2024-11-30 10:00"):
        start.fill(wrong)
        refused(f"start is '{wrong}', but the recording goes from 2024-11-01 14:00 CET to 2024-11-01 23:59 CET")
        assert start.get_attribute("aria-invalid") == "true"
    start.fill("2024-13-01")
    refused("start is '2024-13-01': give a row, a date such as")
    stop.fill("2025-01-01")
    refused("stop is '2025-01-01', but the recording goes from")
    start.fill("2024-11-01 16:00")
    stop.fill("2024-11-01 15:30")
    refused("The window ends before it begins")
    stop.fill("30 min")
    desk.until(lambda: not trouble.is_visible() and "from 2024-11-01 16:00 to 16:29" in desk.sentence(), "a duration")
    assert page.locator("#answer.stale").count() == 0
    desk.until(lambda: _window(desk) == (120, 150), "the window in the address")
    start.fill("01.11.2024 15:00")
    desk.until(lambda: "from 2024-11-01 15:00 to 16:29" in desk.sentence(), "what the library alone can read")
    marks = page.evaluate("() => [...document.querySelectorAll('#log-plot .xtick text')].map((one) => one.textContent)")
    assert marks[1:], "the log's axis has marks"
    assert all(mark.endswith(":00") for mark in marks), marks
    stop.fill("2024-11-01 15:59")
    desk.until(lambda: "from 2024-11-01 15:00 to 15:59" in desk.sentence(), "a date")


@pytest.mark.parametrize("seat", [SEAT, "server"])
def test_every_tab_opens(desk: Desk, seat: str) -> None:
    page = desk.open(seat, "effect", None)
    for tab in TABS:
        page.click(f"#tab-{tab}", force=True)  # one that is refused says why
        refused = page.locator("#refused")
        if tab != "influence":
            desk.until(
                lambda place=refused: (
                    place.is_visible() or desk.sentence() or page.locator("#answer-hint").is_visible()
                ),
                f"something to read in {tab}",
            )
        page.wait_for_timeout(300)
        assert not page.locator("#answer-error").is_visible(), page.inner_text("#answer-error")
        wide = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{tab} is wider than the window"
