"""The console on a plant in closed loop: which world an answer is about, and controllers that follow another law."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'counterflow[console]'")

from closed_plant import plant, recording
from fastapi.testclient import TestClient

import counterflow as cf
from counterflow.console.app import create

DATA = recording(480)
EFFECT = {"effect": "turbine", "changes": [{"unit": "boiler", "input": "feed", "size": 0.5}], "horizon": 12}
MANUAL = [{"unit": "turbine", "input": "governor", "law": "manual"}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("console") / "fit"
    fitted().save(folder)
    DATA.save(folder.parent / "recording.safetensors")
    return folder


@pytest.fixture(scope="module")
def page(saved: Path) -> Iterator[TestClient]:
    with TestClient(create(saved, data=saved.parent / "recording.safetensors")) as client:
        yield client


@cache
def fitted() -> cf.Fit:
    return cf.fit(DATA, plant().locals())


def ask(client: TestClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = client.post(f"/api/seats/{path}", json=body)
    assert answer.status_code == status, answer.text[:500]
    return answer.json()


def test_every_answer_says_which_world_it_is_about(page: TestClient) -> None:
    window = {"unit": "turbine", "start": 200, "stop": 230}
    asked: dict[str, dict[str, Any]] = {
        "effect": EFFECT,
        "past": {**window, "changes": [{"unit": "boiler", "input": "feed", "mode": "add", "value": 0.5}]},
        "forecast": {"unit": "turbine", "horizon": 12},
        "explain": window,
        "restore": {"unit": "turbine", "target": {"power": 0.05}, "using": [{"unit": "pump", "inputs": ["stroke"]}]},
    }
    for tab, body in asked.items():
        for world in (None, "reacting", "held"):
            told = ask(page, f"unit:turbine/{tab}", {**body, "controllers": world})
            assert told["controllers"] == (world or "reacting"), tab
            assert f"controllers-{told['controllers']}" in [caveat["code"] for caveat in told["caveats"]], tab
            if tab != "forecast":
                assert f"(controllers {'held' if world == 'held' else 'react'}" in told["sentence"], tab


def test_a_seats_own_loop_can_be_in_manual(page: TestClient) -> None:
    seen = page.get("/api/seats/unit:turbine/plant").json()
    assert seen["controllers"]
    assert [(loop["input"], loop["reads"]) for loop in seen["loops"]] == [("governor", "speed")]
    assert page.get("/api/seats/server/plant").json()["loops"] == []
    told = ask(page, "unit:turbine/effect", {**EFFECT, "laws": MANUAL, "draw": ["speed", "power"]})
    wanted = fitted().with_laws({"turbine": {"governor": cf.Manual()}}).effect("boiler", "turbine", {"feed": 0.5}, 12)
    np.testing.assert_allclose([each["mean"] for each in told["drawn"]], wanted.mean.T)
    assert "turbine governor in manual" in told["sentence"]
    past = {"unit": "turbine", "start": 200, "stop": 230, "changes": [], "laws": MANUAL}
    assert ask(page, "unit:turbine/past", past)["sentence"].startswith("Had turbine governor been in manual")
    other = [{"unit": "turbine", "input": "governor", "law": "pid gain=0.1 integral_time=50"}]
    told = ask(page, "unit:turbine/forecast", {"unit": "turbine", "horizon": 9, "laws": other})
    assert "turbine governor under PI: gain 0.1, integral time 50" in told["sentence"]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"laws": [{"unit": "boiler", "input": "valve", "law": "manual"}]}, 403),
        ({"laws": MANUAL, "controllers": "held"}, 400),
        ({"laws": [{"unit": "turbine", "input": "load", "law": "manual"}]}, 404),
        ({"laws": [{"unit": "turbine", "input": "governor", "law": "__import__('os')"}]}, 400),
        ({"laws": [{"unit": "turbine", "input": "governor", "law": "pid"}]}, 400),
        ({"laws": [{"unit": "turbine", "input": "governor", "law": "pid gain=nan"}]}, 400),
        ({"laws": [{"unit": "turbine", "input": "governor", "law": "x" * 300}]}, 422),
        ({"laws": [{"unit": "turbine", "input": "governor"}]}, 422),
        ({"changes": []}, 422),
    ],
)
def test_what_cannot_be_supposed_is_refused(page: TestClient, more: dict[str, Any], status: int) -> None:
    ask(page, "unit:turbine/effect", {**EFFECT, **more}, status)


def test_with_policies_controllers_answer_where_they_may(saved: Path, tmp_path: Path) -> None:
    for unit, text in (("boiler", "react = true"), ("turbine", "react = false"), ("pump", "react = false")):
        policy = f'unit = "{unit}"\n[ask]\nturbine = ["*"]\n[controllers]\n{text}\n'
        (tmp_path / f"{unit}.toml").write_text(policy, encoding="utf-8")
    rows = saved.parent / "recording.safetensors"
    with TestClient(create(saved, data=rows, policies=sorted(tmp_path.glob("*.toml")))) as client:
        told = ask(client, "unit:turbine/effect", EFFECT)
        assert told["controllers"] == "held"
        assert "those of turbine do not answer" in " ".join(caveat["text"] for caveat in told["caveats"])
        ask(client, "unit:turbine/effect", {**EFFECT, "controllers": "reacting"}, 403)
    (tmp_path / "turbine.toml").write_text('unit = "turbine"\n[controllers]\nreact = true\n', encoding="utf-8")
    with TestClient(create(saved, data=rows, policies=sorted(tmp_path.glob("*.toml")))) as client:
        assert ask(client, "unit:turbine/effect", EFFECT)["controllers"] == "reacting"


@pytest.mark.parametrize(("tab", "more"), [("effect", {"horizon": "0"}), ("explain", {"start": "x"})])
def test_a_time_that_is_none_is_told(page: TestClient, tab: str, more: dict[str, str]) -> None:
    body = EFFECT if tab == "effect" else {"unit": "turbine", "start": 200, "stop": 230}
    assert next(iter(more)) in ask(page, f"unit:turbine/{tab}", {**body, **more}, 400)["error"]["message"]
