"""The report page on its own: hostile texts, bands, and fits that have nothing to draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow.report import Answer, Report, Training, WhatIf, render, write

HOSTILE = '<script>alert("x")</script> & $x_1$ %'
MEAN = np.array([[1.0, 0.0], [2.0, 0.0], [1.5, 0.0]])


def whatif(**changes: object) -> WhatIf:
    given: dict[str, object] = {
        "question": HOSTILE,
        "channels": (cf.Channel("power", "MW"), cf.Channel("<b>$bold", HOSTILE)),
        "answers": (Answer(HOSTILE, MEAN, caveats=(HOSTILE,)),),
        "headline": "power",
    }
    return WhatIf(**{**given, **changes})  # type: ignore[arg-type]


def test_texts_from_data_are_escaped() -> None:
    unit = cf.Unit("<i>unit", 1, ["<u>in"], ["<u>out"])
    page = render(Report(HOSTILE, HOSTILE, (whatif(),), (unit,), (), (HOSTILE,), {"<k>": HOSTILE}))
    for tag in ("<script", "<b>", "<i>unit", "<u>", "<k>"):
        assert tag not in page
    assert "&lt;script&gt;" in page


def test_bands_are_drawn_and_said() -> None:
    banded = Answer("sure", MEAN, lower=MEAN - 0.5, upper=MEAN + 0.5, level=0.95)
    page = render(Report("t", "l", (whatif(answers=(banded,)),)))
    assert "95\N{NO-BREAK SPACE}% band" in page
    assert "opacity: 0.22" in page
    assert "(95 %: +1.50 to +2.50)" in whatif(answers=(banded,)).sentence()
    assert "opacity: 0.22" not in render(Report("t", "l", (whatif(),)))


def test_the_sentence_compares_with_the_truth() -> None:
    asked = whatif(answers=(Answer("the twin", -MEAN, truth=True), Answer("our fit", 0 * MEAN)), step_unit="min")
    assert asked.sentence() == (
        "In truth the power falls by up to 2.00 MW, 2 min after the change begins. Our fit says +0.00 MW; over all "
        "channels and times it misses by 100 % of the true effect."
    )
    assert asked.relative_error(asked.estimates[0]) == 1.0
    assert whatif().relative_error(whatif().answers[0]) is None


def test_answers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(cf.DataError, match="shape"):
        whatif(answers=(Answer("a", MEAN), Answer("b", MEAN[:2])))
    with pytest.raises(cf.DataError, match="no answer"):
        whatif(answers=())
    with pytest.raises(cf.DataError, match="headline"):
        whatif(headline="speed")


def test_a_fit_without_rounds_has_no_curves(tmp_path: Path) -> None:
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    recording = plant.simulate(60, rng=2)
    oracle = cf.fit(recording, plant, method="oracle")
    effect = oracle.effect("boiler", "turbine", {"u1": 1.0}, horizon=5)
    asked = WhatIf("?", plant.unit("turbine").outputs, (Answer.of("oracle", effect),), "y1")
    content = Report("t", "l", (asked,), plant.units, (Training.of("oracle", oracle),))
    assert "Server loss" not in render(content)
    trained = cf.fit(recording, plant.locals(), method="penalty")
    content = Report("t", "l", (asked,), plant.units, (Training.of("penalty", trained),))
    write(content, tmp_path / "report.html")
    assert "Server loss" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(cf.StorageError, match="nowhere"):
        write(content, tmp_path / "nowhere" / "report.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
