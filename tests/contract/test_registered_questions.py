"""Every registered question is reached from library, command line, report, console and federation, and says the same.

Equal numbers and equal caveats in one process, between machines, on the command line and in the console.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking_plant import PLANT, RECORDING, TURBINE, fitted, job_of, same
from typer.testing import CliRunner

import counterflow as cf
from counterflow import report
from counterflow.cli import app
from counterflow.errors import PrivacyError
from counterflow.federation.parts import saved_unit
from counterflow.federation.policy import Policy
from counterflow.federation.question_gate import QuestionGate
from counterflow.protocol import Ask
from counterflow.questions.asking import Questions, UnitView
from counterflow.questions.question import Form, Request
from counterflow.questions.registry import COMMANDS, QUESTIONS, question

CHANGE = {"boiler": {"u1": 0.5}}
REQUESTS: dict[str, Request] = {
    "effect": report.AskEffect(["boiler"], "turbine", CHANGE, 9),
    "paths": report.AskPaths("boiler", "turbine", CHANGE["boiler"], 9),
    "counterfactual": report.AskCounterfactual("turbine", {"boiler": {"u1": 0.25}}, 500, 520),
    "attribution": report.AskAttribution("turbine", 500, 520),
    "restoration": report.AskRestoration("turbine", {"y1": 0.2}, {"boiler": ["u1", "u2"]}, 9),
    "forecast": report.AskForecast("turbine", 9, {"boiler": {"u1": 0.25}}),
    "aggregate": report.AskAggregate("turbine", [1.0, -0.5], [0.5, 0.0]),
}
COMMAND_LINES = {
    "effect": ["--effect", "turbine", "--change", "boiler.u1=0.5", "--horizon", "9"],
    "paths": ["--effect", "turbine", "--change", "boiler.u1=0.5", "--horizon", "9"],
    "counterfactual": ["--effect", "turbine", "--set", "boiler.u1=0.25", "--start", "500", "--stop", "520"],
    "attribution": ["--unit", "turbine", "--start", "500", "--stop", "520"],
    "restoration": ["--unit", "turbine", "--target", "y1=0.2", "--using", "boiler", "--horizon", "9"],
    "forecast": ["--unit", "turbine", "--plan", "boiler.u1=0.25", "--horizon", "9"],
    "aggregate": [
        "--unit", "turbine", "--phi-1", "1", "--phi-1", "-0.5", "--phi-0", "0.5", "--phi-0", "0",
    ],
}  # fmt: skip
PAGES: dict[str, dict[str, Any]] = {
    "effect": {"effect": "turbine", "changes": [{"unit": "boiler", "input": "u1", "size": 0.5}], "horizon": 9},
    "paths": {"effect": "turbine", "changes": [{"unit": "boiler", "input": "u1", "size": 0.5}], "horizon": 9},
    "counterfactual": {
        "unit": "turbine", "start": 500, "stop": 520, "changes": [{"unit": "boiler", "input": "u1", "value": 0.25}]
    },
    "attribution": {"unit": "turbine", "start": 500, "stop": 520},
    "restoration": {
        "unit": "turbine", "target": {"y1": 0.2}, "using": [{"unit": "boiler", "inputs": ["u1", "u2"]}], "horizon": 9
    },
    "forecast": {"unit": "turbine", "horizon": 9, "plan": [{"unit": "boiler", "input": "u1", "value": 0.25}]},
    "aggregate": {"unit": "turbine", "phi_1": [1.0, -0.5], "phi_0": [0.5, 0.0]},
}  # fmt: skip
EVERY = pytest.mark.parametrize("kind", QUESTIONS)


@pytest.fixture(scope="module")
def alone() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


@pytest.fixture(scope="module")
def saved(alone: cf.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("registered") / "fit"
    alone.save(folder)
    RECORDING.save(folder.parent / "recording.safetensors")
    return folder


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnitView]:
    asking = fitted(tmp_path_factory.mktemp("between"), job_of(), PLANT.locals())
    with asking.running() as server:
        yield UnitView(saved_unit(asking.home / "turbine", "turbine").part, server, TURBINE.y, RECORDING.dt)


def answer_of(fit: Questions, kind: str) -> Any:
    asked = REQUESTS[kind]
    needs = asked.of_past or asked.after_record
    return fit.ask(asked, RECORDING if needs and isinstance(fit, cf.Fit) else None)


def test_every_kind_is_tried_here_and_has_a_command() -> None:
    assert set(REQUESTS) == set(COMMAND_LINES) == set(PAGES) == set(QUESTIONS)
    assert {each.command for each in QUESTIONS.values()} == set(COMMANDS)
    assert all(kind == each.kind and each.form and each.title for kind, each in QUESTIONS.items())
    units = [[e for e in each.form if e.form in (Form.UNIT, Form.UNITS)] for each in QUESTIONS.values()]
    assert all(len(found) == 1 for found in units)


@EVERY
def test_the_same_between_machines(kind: str, alone: cf.Fit, between: UnitView) -> None:
    """Numbers, words and all caveats: not a subset of them."""
    here, there = answer_of(alone, kind), answer_of(between, kind)
    same(there, here)
    assert there.caveats == here.caveats
    assert there.sentence() == here.sentence()
    assert [table.columns for table in there.tables()] == [table.columns for table in here.tables()]


@EVERY
def test_the_same_on_the_command_line(kind: str, alone: cf.Fit, saved: Path) -> None:
    asked = QUESTIONS[kind]
    arguments = [asked.command, str(saved), *COMMAND_LINES[kind], "--format", "json"]
    if asked.of_past or asked.after_record:
        arguments += ["--recording", str(saved.parent / "recording.safetensors")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found, wanted = json.loads(done.stdout), answer_of(alone, kind)
    assert found["kind"] == kind
    assert found["sentence"] == wanted.sentence()
    assert found["caveats"] == [caveat.to_json() for caveat in wanted.caveats]
    for name, value in wanted.to_json().items():
        if isinstance(value, np.ndarray):
            np.testing.assert_allclose(np.array(found[name], float), value, rtol=1e-9, atol=1e-9, err_msg=name)
    shown = CliRunner().invoke(app, arguments[:-2] if "--recording" not in arguments else [
        word for word in arguments if word not in ("--format", "json")])  # fmt: skip
    assert shown.exit_code == 0, shown.output


@EVERY
def test_the_same_in_the_console(kind: str, alone: cf.Fit, saved: Path) -> None:
    pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'counterflow[console]'")
    from fastapi.testclient import TestClient

    from counterflow.console.app import create

    with TestClient(create(saved)) as page:
        told = page.post(f"/api/seats/unit:turbine/{QUESTIONS[kind].tab}", json=PAGES[kind])
        assert told.status_code == 200, told.text[:500]
        wanted = answer_of(alone, kind)
        assert told.json()["kind"] == kind
        assert told.json()["sentence"].split(", ", 1)[-1] == wanted.sentence().split(", ", 1)[-1]
        assert told.json()["caveats"] == [caveat.to_json() for caveat in wanted.caveats]
        assert QUESTIONS[kind].tab in page.get("/api/seats/unit:turbine/plant").json()["questions"]
        for form in ("json", "csv", "html"):
            asked = {"question": {"kind": QUESTIONS[kind].tab, **PAGES[kind]}}
            file = page.post(f"/api/seats/unit:turbine/export/{form}", json=asked)
            assert file.status_code == 200
            assert form != "html" or "<table" in file.text or "<svg" in file.text
        tables = [[table["title"], table["columns"]] for table in told.json()["tables"]]
        assert tables == [[table.title, list(table.columns)] for table in wanted.tables()]


def test_all_of_them_on_one_page(alone: cf.Fit) -> None:
    content = report.compose(alone, RECORDING, list(REQUESTS.values()))
    assert len(content.sections) == len(QUESTIONS)
    page = report.render(content)
    for asked in REQUESTS.values():
        assert asked.words(alone.plant).split(":")[0].replace(" %", "\N{NO-BREAK SPACE}%") in page


@EVERY
def test_a_unit_that_may_not_ask_is_refused(kind: str, alone: cf.Fit) -> None:
    """The gate asks the policies whatever the question."""
    closed = {name: Policy.from_text(f'unit = "{name}"\n[answers]\nallowed = false\n') for name in alone.names}
    gate = QuestionGate(closed, {unit.name: unit.input_names for unit in alone.server.units})
    changes, ask = REQUESTS[kind].messages(alone.plant, alone.server, alone.parts["turbine"])
    with pytest.raises(PrivacyError, match=r"answers\.allowed"):
        gate.answer(alone.server, "turbine", changes, ask)


def test_what_is_no_question_is_refused_where_it_is_answered(alone: cf.Fit) -> None:
    with pytest.raises(cf.ProtocolError, match="there is no question 'everything'"):
        alone.server.answer([], Ask("turbine", "everything", 0, 1))
    assert question("paths") is QUESTIONS["paths"]
