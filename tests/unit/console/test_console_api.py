"""The console's API: the library's numbers, each seat's point of view, and words for what cannot be answered."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow import wording

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'counterflow[console]'")

from fastapi.testclient import TestClient

from counterflow.console.app import create
from counterflow.console.views import clock_of

NAMES = ("boiler", "turbine", "pump")
ROWS = 1500
HOSTILE = '<img src=x onerror="alert(1)">'


def _plant() -> cf.Plant:
    valve = cf.Channel("valve", "%", (-8.0, 8.0))
    units = [cf.Unit(n, 2, [valve, "speed"], [cf.Channel(f"{n[0]}{k}", "bar") for k in range(5)]) for n in NAMES]
    return cf.random_plant(units, topology="chain", rng=1)


PLANT = _plant()
RECORDING = replace(PLANT, dt=60.0).simulate(ROWS, rng=2)


@cache
def fitted() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


MOVED = [{"unit": "boiler", "input": "valve", "size": 1.5}]
FACTS = {"unit:boiler": "b0", "unit:turbine": "t0", "unit:pump": "p0"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("console") / "fit"
    fitted().save(folder)
    RECORDING.save(folder.parent / "recording.safetensors")
    return folder


@pytest.fixture(scope="module")
def page(saved: Path) -> Iterator[TestClient]:
    with TestClient(create(saved), raise_server_exceptions=True) as client:
        yield client


def _post(client: TestClient, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = client.post(f"/api/seats/{path}", json=body)
    assert answer.status_code == status, answer.text[:500]
    return answer.json()


def _refusal(client: TestClient, path: str, body: dict[str, Any], status: int) -> str:
    error = _post(client, path, body, status)["error"]
    assert error["status"] == status
    return str(error["message"])


def _drawn(told: Any, field: str) -> np.ndarray:
    return np.array([each[field] for each in told["drawn"]], np.float64).T


# ---- the library's numbers


@pytest.mark.parametrize("shape", ["step", "pulse", "ramp", "series"])
def test_effects_are_the_librarys(page: TestClient, shape: str) -> None:
    change = dict(MOVED[0], shape=shape, start=2, length=None if shape == "step" else 4)
    schedule = np.zeros(20)
    if shape == "step":
        schedule[2:] = 1.5
    elif shape == "pulse":
        schedule[2:6] = 1.5
    elif shape == "ramp":
        schedule[2:] = 1.5 * np.minimum(np.arange(1, 19) / 4, 1)
    else:
        schedule[:3] = [0.1, -0.2, 0.3]
        change = {"unit": "boiler", "input": "valve", "shape": "series", "values": [0.1, -0.2, 0.3]}
    asked = {"effect": "turbine", "changes": [change], "horizon": 20, "level": 0.9, "draw": ["t3", "t1"]}
    told = _post(page, "unit:turbine/effect", asked)
    wanted = fitted().effect("boiler", "turbine", {"valve": schedule}, 20, level=0.9)
    chosen = [3, 1]
    for field in ("mean", "lower", "upper"):
        np.testing.assert_allclose(_drawn(told, field), getattr(wanted, field)[:, chosen], rtol=EXACT, atol=EXACT)
    assert told["window"] == wanted.window().sentence("t3"), "what all rows together say stands under the answer"
    expected = fitted().forecast(RECORDING, 20)["turbine"].mean[:, chosen]
    np.testing.assert_allclose(_drawn(told, "baseline"), expected, rtol=1e-9, atol=1e-9)
    assert told["inputs"] == [
        {"unit": "boiler", "input": "valve", "measured_in": "%", "values": pytest.approx(list(schedule))}
    ]
    first = told["most_affected"][0]
    k, row = int(first["channel"][1:]), first["steps"] - 1
    scale = np.sqrt(np.diag(fitted().parts["turbine"].model.R))
    assert first["size"] == pytest.approx(float((np.abs(wanted.mean) / scale).max()))
    assert first["mean"] == pytest.approx(float(wanted.mean[row, k]))
    assert wording.measured(abs(first["mean"]), None, None, "")[0][:3] in told["sentence"]
    assert (told["level"], told["caveats"]) == (0.9, [caveat.to_json() for caveat in wanted.caveats])


def test_a_graph_tells_what_was_ruled_out(tmp_path: Path) -> None:
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    cf.fit(plant.simulate(200, rng=2), plant.locals(), edges=[("boiler", "turbine")]).save(tmp_path / "fit")
    with TestClient(create(tmp_path / "fit")) as client:
        edges = client.get("/api/seats/server/graph").json()["edges"]
    assert {edge["cause"]: edge["kind"] for edge in edges} == {"boiler": "direct", "turbine": "ruled out"}


def test_several_inputs_add_up_and_one_of_them_twice(page: TestClient) -> None:
    changes = [*MOVED, dict(MOVED[0], size=-0.5), {"unit": "pump", "input": "speed", "size": 2.0, "start": 3}]
    told = _post(page, "unit:turbine/effect", {"effect": "turbine", "changes": changes, "horizon": 9})
    late = np.where(np.arange(9) < 3, 0.0, 2.0)
    wanted = fitted().effect(["boiler", "pump"], "turbine", {"boiler": {"valve": 1.0}, "pump": {"speed": late}}, 9)
    order = [int(each["channel"][1:]) for each in told["drawn"]]
    np.testing.assert_allclose(_drawn(told, "mean"), wanted.mean[:, order], rtol=EXACT, atol=EXACT)
    assert told["causes"] == ["boiler", "pump"]


def test_the_past_is_the_librarys(page: TestClient) -> None:
    changes = [
        {"unit": "boiler", "input": "valve", "mode": "set", "value": 0.5},
        {"unit": "boiler", "input": "speed", "mode": "add", "value": -1.0},
    ]
    asked = {"unit": "turbine", "changes": changes, "start": 900, "stop": 950, "draw": [f"t{k}" for k in range(5)]}
    told = _post(page, "unit:turbine/past", asked)
    both = {"do": {"boiler": {"valve": 0.5}}, "add": {"boiler": {"speed": -1.0}}}
    wanted = fitted().counterfactual(RECORDING, start=900, stop=950, **both)["turbine"]
    for field in ("factual", "mean", "lower", "upper"):
        np.testing.assert_allclose(_drawn(told, field), getattr(wanted, field), rtol=EXACT, atol=EXACT)
    np.testing.assert_array_equal(_drawn(told, "factual"), RECORDING["turbine"].y[900:950])
    assert told["sentence"].startswith("Had boiler valve been 0.5 % and boiler speed 1 lower in rows 900 to 949, ")


def test_explanations_add_up_to_what_was_measured(page: TestClient) -> None:
    told = _post(page, "unit:turbine/explain", {"unit": "turbine", "start": 700, "stop": 760, "draw": "t2"})
    drawn = told["drawn"]
    whole = np.sum([share["values"] for share in drawn["shares"]], axis=0)
    np.testing.assert_allclose(whole, drawn["departure"], atol=1e-9)
    measured = np.array(drawn["baseline"]) + drawn["departure"]
    np.testing.assert_allclose(measured, RECORDING["turbine"].y[700:760, 2], atol=1e-9)
    wanted = fitted().attribute(RECORDING, "turbine", 700, 760)
    for share in drawn["shares"]:
        np.testing.assert_allclose(share["values"], wanted.shares[share["name"]][:, 2], rtol=EXACT, atol=EXACT)
    first = told["ranked"][0]
    assert first["departure"] == pytest.approx(sum(share["value"] for share in first["shares"]))


def test_restoring_reaches_its_target(page: TestClient) -> None:
    asked = {"unit": "turbine", "target": {"t1": 0.2}, "using": [{"unit": "boiler", "inputs": ["valve", "speed"]}]}
    told = _post(page, "unit:turbine/restore", {**asked, "horizon": 25})
    wanted = fitted().restore("turbine", {"t1": 0.2}, ["boiler"], 25)
    assert told["feasible"] is wanted.feasible is True
    found = {each["input"]: each["change"] for each in told["change"]}
    assert found == pytest.approx(dict(wanted.change["boiler"]))
    assert told["drawn"][0]["mean"][-1] == pytest.approx(0.2, rel=1e-3)
    far = _post(page, "unit:turbine/restore", {**asked, "target": {"t1": 1e6}, "using": [
        {"unit": "boiler", "inputs": ["valve"]}]})  # fmt: skip
    assert far["feasible"] is False
    assert "cannot be reached" in far["sentence"]


def test_forecasts_follow_a_plan(page: TestClient) -> None:
    asked = {"unit": "turbine", "horizon": 12, "plan": [{"unit": "boiler", "input": "valve", "value": 3.0}]}
    told = _post(page, "unit:turbine/forecast", {**asked, "draw": ["t4"]})
    wanted = fitted().forecast(RECORDING, 12, {"boiler": {"valve": 3.0}})["turbine"]
    for field in ("mean", "lower", "upper"):
        np.testing.assert_allclose(_drawn(told, field)[:, 0], getattr(wanted, field)[:, 4], rtol=1e-9)
    recent = told["drawn"][0]["recent"]
    assert recent["row"][-1] == ROWS
    assert recent["value"] == list(RECORDING["turbine"].y[recent["row"][0] :, 4])
    assert told["first_row"] == ROWS + 1


def test_what_leads_beyond_limits_or_beyond_anything_seen_is_said(page: TestClient) -> None:
    last = float(RECORDING["boiler"].u[-1, 0])
    for size, beyond in ((8.0 - last - 1e-6, False), (8.0 - last + 1e-6, True), (-8.0 - last - 1e-6, True)):
        asked = {"effect": "turbine", "changes": [dict(MOVED[0], size=size)]}
        said = {each["code"]: each["text"] for each in _post(page, "unit:turbine/effect", asked)["caveats"]}
        assert ("boiler valve (-8 to 8)" in said.get("leaving-limits", "")) is beyond
    levers = [{"unit": "boiler", "inputs": ["speed"]}]
    for target, far in ((0.01, False), (50.0, True)):
        asked = {"unit": "turbine", "target": {"t0": target}, "using": levers}
        said = {each["code"]: each["text"] for each in _post(page, "unit:turbine/restore", asked)["caveats"]}
        assert ("inputs of boiler would move more than 2 times" in said.get("extrapolation", "")) is far


def test_paths_are_the_librarys(page: TestClient) -> None:
    told = _post(page, "unit:pump/paths", {"effect": "pump", "changes": MOVED, "horizon": 15, "draw": ["p2"]})
    wanted = fitted().paths("boiler", "pump", {"valve": 1.5}, 15)
    np.testing.assert_allclose(told["total"], wanted.total[:, 2], rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(told["direct"], wanted.direct[:, 2], rtol=EXACT, atol=EXACT)
    assert [way["unit"] for way in told["through"]] == ["turbine"]
    row = int(np.abs(wanted.total[:, 2]).argmax())
    whole, through = (wording.number(float(v[row, 2]), sign=True) for v in (wanted.total, wanted.through["turbine"]))
    assert told["sentence"].startswith(f"After {row + 1} steps ({row + 1} min), boiler moves pump p2 by {whole} bar: ")
    assert f"through turbine {through} bar" in told["sentence"]


# ---- points of view


def test_a_unit_sees_its_own_outputs_and_the_server_sees_states(page: TestClient) -> None:
    offered = page.get("/api/seats").json()
    assert [seat["id"] for seat in offered["seats"]] == ["unit:boiler", "unit:turbine", "unit:pump", "server"]
    for seat, channel in FACTS.items():
        told = page.get(f"/api/seats/{seat}/plant").json()
        seen = {unit["name"]: [c["name"] for c in unit["outputs"]] for unit in told["units"]}
        assert {name for name, outputs in seen.items() if outputs} == {told["unit"]}
        assert channel in seen[told["unit"]]
        others = [name for other, name in FACTS.items() if other != seat]
        for path in ("plant", "graph", "checks", "training"):
            text = page.get(f"/api/seats/{seat}/{path}").text
            assert not [name for name in others if f'"{name}"' in text]
    server = page.get("/api/seats/server/plant").json()
    assert {c["name"] for unit in server["units"] for c in unit["outputs"]} == {"state 1", "state 2"}
    for path in ("plant", "graph", "training"):
        assert not [name for name in FACTS.values() if f'"{name}"' in page.get(f"/api/seats/server/{path}").text]


def test_the_server_answers_about_states(page: TestClient) -> None:
    told = _post(page, "server/effect", {"effect": "turbine", "changes": MOVED, "horizon": 6})
    wanted = fitted().effect("boiler", "turbine", {"valve": 1.5}, 6)
    order = [int(each["channel"].split()[1]) - 1 for each in told["drawn"]]
    np.testing.assert_allclose(_drawn(told, "mean"), wanted.states[:, order], rtol=EXACT, atol=EXACT)
    assert told["drawn"][0]["lower"] is not None
    for kind, body in {
        "past": {"unit": "turbine", "changes": [{"unit": "boiler", "input": "valve"}], "start": 1, "stop": 9},
        "explain": {"unit": "turbine", "start": 1, "stop": 9},
        "restore": {"unit": "turbine", "target": {"state 1": 1.0}, "using": [{"unit": "boiler", "inputs": ["valve"]}]},
        "forecast": {"unit": "turbine"},
    }.items():
        assert "nobody's output channels" in _refusal(page, f"server/{kind}", body, 400)
        assert not page.get("/api/seats/server/plant").json()["questions"][kind]["allowed"]
    assert page.get("/api/seats/server/log", params={"channel": "t0"}).status_code == 400


def test_a_unit_asks_about_its_own_outputs_only(page: TestClient) -> None:
    said = _refusal(page, "unit:turbine/effect", {"effect": "pump", "changes": MOVED}, 403)
    assert "its own outputs only" in said
    for kind, more in (("explain", {}), ("past", {"changes": [{"unit": "boiler", "input": "valve"}]})):
        _refusal(page, f"unit:turbine/{kind}", {"unit": "pump", "start": 0, "stop": 9, **more}, 403)
    assert page.get("/api/seats/unit:turbine/log", params={"channel": "p0"}).status_code == 404


def test_channels_come_with_limits_and_seen_ranges(page: TestClient) -> None:
    told = page.get("/api/seats/unit:turbine/plant").json()
    valve, speed = told["units"][0]["inputs"]
    u = RECORDING["boiler"].u
    assert valve["limits"] == [-8.0, 8.0]
    assert speed["limits"] is None
    np.testing.assert_allclose(valve["seen"], [u[:, 0].min(), u[:, 0].max()])
    assert speed["last"] == pytest.approx(u[-1, 1])
    assert len(told["assumptions"]) == 2
    assert (told["clock"], told["rows"]) == ({"step": 1.0, "unit": "min", "point": "minute"}, ROWS + 1)


def test_times_read_as_times() -> None:
    told = {dt: tuple(clock_of(dt).model_dump().values()) for dt in (1.0, 900.0, 0.5, 7200.0)}
    assert told == {
        1.0: (1.0, "steps", "row"), 900.0: (15.0, "min", "minute"), 0.5: (0.5, "s", "second"),
        7200.0: (2.0, "h", "hour"),
    }  # fmt: skip


def test_the_log_keeps_extremes(page: TestClient) -> None:
    told = page.get("/api/seats/unit:turbine/log", params={"channel": "t1", "points": 50}).json()
    y = RECORDING["turbine"].y[:, 1]
    assert (min(told["low"]), max(told["high"])) == (y.min(), y.max())
    assert 25 <= len(told["row"]) <= 51


def test_the_graph_is_the_librarys(page: TestClient) -> None:
    told = page.get("/api/seats/server/graph", params={"rate": 0.01}).json()
    direct = {(edge["cause"], edge["effect"]) for edge in told["edges"] if edge["kind"] == "direct"}
    assert direct == set(fitted().graph(0.01).direct())
    assert direct
    assert len(told["edges"]) == 6


def test_every_start_is_another(saved: Path) -> None:
    started = {TestClient(create(saved)).get("/api/seats").json()["started"] for _ in range(2)}
    assert len(started) == 2


def test_only_the_chosen_seats_are_there(saved: Path) -> None:
    with TestClient(create(saved, seats=["turbine"])) as page:
        assert [seat["id"] for seat in page.get("/api/seats").json()["seats"]] == ["unit:turbine"]
        for other in ("server", "unit:boiler"):
            assert page.get(f"/api/seats/{other}/plant").status_code == 404
    with pytest.raises(cf.OptionError, match="--seat 'nobody'"):
        create(saved, seats=["nobody"])


def test_policies_are_asked(saved: Path, tmp_path: Path) -> None:
    boiler, turbine = tmp_path / "boiler.toml", tmp_path / "turbine.toml"
    boiler.write_text('unit = "boiler"\n[ask]\nturbine = ["speed"]\n')
    turbine.write_text('unit = "turbine"\n')
    with TestClient(create(saved, policies=[boiler, turbine])) as page:
        said = _refusal(page, "unit:turbine/effect", {"effect": "turbine", "changes": MOVED}, 403)
        assert "'boiler' does not let 'turbine' ask about its input 'valve'" in said
        allowed = [{"unit": "boiler", "input": "speed", "size": 1.0}]
        _post(page, "unit:turbine/effect", {"effect": "turbine", "changes": allowed})
        assert "server's seat" in page.get("/api/seats/unit:turbine/graph").json()["error"]["message"]
        assert page.get("/api/seats/server/graph").status_code == 200
        valve, speed = page.get("/api/seats/unit:turbine/plant").json()["units"][0]["inputs"]
        assert (valve["allowed"], valve["seen"], valve["last"]) == (False, None, None)
        assert (speed["allowed"], speed["seen"] is None) == (True, False)
        told = _post(page, "unit:turbine/explain", {"unit": "turbine", "start": 0, "stop": 9})
        assert {each["name"] for each in told["drawn"]["shares"]} == {"turbine", "initial state", "rest"}
        assert any(each["code"] == "closed-units" and "boiler, pump" in each["text"] for each in told["caveats"])
        _refusal(page, "unit:turbine/effect", {"effect": "turbine", "changes": [
            {"unit": "pump", "input": "speed", "size": 1.0}]}, 403)  # fmt: skip


# ---- other fits


def test_without_data_questions_about_the_past_say_what_they_need(saved: Path, tmp_path: Path) -> None:
    fitted().save(tmp_path / "alone")
    with TestClient(create(tmp_path / "alone")) as page:
        told = page.get("/api/seats/unit:turbine/plant").json()["questions"]
        assert "--data" in told["past"]["reason"]
        assert told["effect"]["allowed"]
        assert "--data" in _refusal(page, "unit:turbine/explain", {"unit": "turbine", "start": 0, "stop": 9}, 400)
    with TestClient(create(tmp_path / "alone", data=saved.parent / "recording.safetensors")) as page:
        _post(page, "unit:turbine/explain", {"unit": "turbine", "start": 0, "stop": 9})


def test_a_folder_with_some_of_the_files(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "units").mkdir()
    for name in ("server.safetensors", "units/turbine.safetensors"):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    with TestClient(create(tmp_path)) as page:
        assert [seat["id"] for seat in page.get("/api/seats").json()["seats"]] == ["unit:turbine", "server"]
        told = _post(page, "unit:turbine/effect", {"effect": "turbine", "changes": MOVED, "draw": ["t0"]})
        wanted = fitted().effect("boiler", "turbine", {"valve": 1.5}, 50).mean[:, 0]
        np.testing.assert_allclose(told["drawn"][0]["mean"], wanted, rtol=EXACT, atol=EXACT)
        assert "all parts" in page.get("/api/seats/server/checks").json()["error"]["message"]


def test_a_published_method_says_what_its_answers_are_worth(tmp_path: Path) -> None:
    short = RECORDING.slice(0, 300)
    cf.fit(short, PLANT.locals(), "penalty", solver="gradient", rounds=4).save(tmp_path / "fit")
    short.save(tmp_path / "recording.safetensors")
    with TestClient(create(tmp_path / "fit")) as page:
        told = _post(page, "unit:turbine/effect", {"effect": "turbine", "changes": MOVED})
        assert told["caveats"][0]["code"] == "published-method"
        assert told["drawn"][0]["lower"] is told["drawn"][0]["baseline"] is None
        assert page.get("/api/seats/server/graph").status_code == 400
        series = page.get("/api/seats/server/training").json()["series"]
        assert {each["group"] for each in series} == {"loss", "disentanglement", "gradient", "delta_d"}
        own = page.get("/api/seats/unit:turbine/training").json()["series"]
        assert {each["unit"] for each in own} == {"turbine"}
        _post(page, "unit:turbine/past", {"unit": "turbine", "start": 10, "stop": 20, "changes": [
            {"unit": "boiler", "input": "valve", "value": 0.5}]})  # fmt: skip


def test_what_the_data_cannot_tell_is_a_conflict(tmp_path: Path) -> None:
    inputs = {name: np.random.default_rng(3).normal(size=(600, 2)) for name in NAMES}
    inputs["boiler"][:, 0] = 1.0
    still = PLANT.simulate(599, rng=2, inputs=inputs)
    cf.fit(still, PLANT.locals()).save(tmp_path / "fit")
    with TestClient(create(tmp_path / "fit")) as page:
        said = _refusal(page, "unit:turbine/effect", {"effect": "turbine", "changes": MOVED}, 409)
        assert "these data cannot answer this" in said
        assert "boiler" in said


def test_a_private_fit_shows_each_unit_its_own_account(tmp_path: Path) -> None:
    private = cf.Privacy(8.0, 1e-5, seed=3)
    fit = cf.fit(RECORDING, PLANT.locals(), privacy=private, uncertainty=False, evaluations=3)
    fit.save(tmp_path / "fit")
    with TestClient(create(tmp_path / "fit")) as page:
        server = page.get("/api/seats/server/training").json()["privacy"]
        assert server["epsilon"] == pytest.approx(fit.privacy.epsilon)  # type: ignore[union-attr]
        assert [unit["name"] for unit in server["units"]] == list(NAMES)
        own = page.get("/api/seats/unit:turbine/training").json()["privacy"]["units"]
        assert [unit["name"] for unit in own] == ["turbine"]


def test_missing_measurements_are_null(tmp_path: Path) -> None:
    y = {name: RECORDING[name].y.copy() for name in NAMES}
    y["turbine"][705:710] = np.nan
    gaps = cf.Recording.from_arrays({n: (y[n], RECORDING[n].u) for n in NAMES}, dt=60.0, units=RECORDING.units)
    cf.fit(gaps, PLANT.locals(), uncertainty=False).save(tmp_path / "fit")
    gaps.save(tmp_path / "recording.safetensors")
    with TestClient(create(tmp_path / "fit")) as page:
        asked = {"unit": "turbine", "start": 700, "stop": 720, "changes": [{"unit": "boiler", "input": "valve"}]}
        told = _post(page, "unit:turbine/past", asked)
        assert told["drawn"][0]["factual"][5:10] == [None] * 5
        assert told["drawn"][0]["lower"] is None
        said = _post(page, "unit:turbine/forecast", {"unit": "turbine"})["caveats"]
        assert "band-without-couplings" in [each["code"] for each in said]
        told = _post(page, "unit:turbine/explain", {"unit": "turbine", "start": 700, "stop": 720})
        assert told["drawn"]["departure"][5:10] == [None] * 5
        asked = {"unit": "turbine", "start": 705, "stop": 709}
        assert "was not measured" in _post(page, "unit:turbine/explain", asked)["sentence"]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    units = [cf.Unit("a b", 2, [HOSTILE], [HOSTILE + " out", "y"]), cf.Unit("server", 2, ["u"], ["server"])]
    plant = cf.random_plant(units, rng=1)
    cf.fit(plant.simulate(400, rng=2), plant.locals()).save(tmp_path / "fit")
    with TestClient(create(tmp_path / "fit")) as page:
        offered = [seat["id"] for seat in page.get("/api/seats").json()["seats"]]
        assert offered == ["unit:a b", "unit:server", "server"]
        asked = {"effect": "server", "changes": [{"unit": "a b", "input": HOSTILE, "size": 1.0}]}
        assert HOSTILE in _post(page, "unit:server/effect", asked)["sentence"]
        answer = page.post("/api/seats/unit:server/export/html", json={"question": {"kind": "effect", **asked}})
        assert answer.status_code == 200
        assert "<img" not in answer.text


def test_the_folder_around_a_fit_is_told_from_it(saved: Path) -> None:
    with pytest.raises(cf.StorageError, match=f"Did you mean '{saved}'"):
        create(saved.parent)


def test_formulas_stay_text_in_tables(tmp_path: Path) -> None:
    units = [cf.Unit("=cmd", 2, ["=1+1"], ["y"]), cf.Unit("b", 2, ["u"], ["@y"])]
    plant = cf.random_plant(units, rng=1)
    cf.fit(plant.simulate(400, rng=2), plant.locals()).save(tmp_path / "fit")
    with TestClient(create(tmp_path / "fit")) as page:
        lever = {"unit": "=cmd", "inputs": ["=1+1"]}
        asked = {"kind": "restore", "unit": "b", "target": {"@y": 0.1}, "using": [lever]}
        text = page.post("/api/seats/unit:b/export/csv", json={"question": asked}).text
        assert text.splitlines()[1].startswith("'=cmd,'=1+1,")
        asked = {"kind": "effect", "effect": "b", "changes": [{"unit": "=cmd", "input": "=1+1", "size": 1.0}]}
        assert ",'@y," in page.post("/api/seats/unit:b/export/csv", json={"question": asked}).text


@pytest.mark.parametrize("what", ["nothing", "an empty folder", "a file", "damaged"])
def test_what_is_no_model_is_refused_by_name(saved: Path, tmp_path: Path, what: str) -> None:
    place = tmp_path / "model"
    if what == "an empty folder":
        place.mkdir()
    elif what == "a file":
        place.write_text("x")
    elif what == "damaged":
        place.mkdir()
        (place / "server.safetensors").write_bytes((saved / "server.safetensors").read_bytes()[:1000])
    with pytest.raises(cf.StorageError, match="model"):
        create(place)


# ---- files, and what is refused


@pytest.mark.parametrize("kind", ["json", "csv", "html"])
@pytest.mark.parametrize("question", ["effect", "past", "explain", "restore"])
def test_every_answer_can_be_exported(page: TestClient, question: str, kind: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "effect": {"effect": "turbine", "changes": MOVED, "horizon": 9},
        "past": {"unit": "turbine", "start": 9, "stop": 19, "changes": [{"unit": "boiler", "input": "valve"}]},
        "explain": {"unit": "turbine", "start": 9, "stop": 19},
        "restore": {"unit": "turbine", "target": {"t0": 0.1}, "using": [{"unit": "boiler", "inputs": ["valve"]}]},
    }
    asked = {"question": {"kind": question, **bodies[question]}}
    answer = page.post(f"/api/seats/unit:turbine/export/{kind}", json=asked)
    assert answer.status_code == 200, answer.text[:300]
    assert f'filename="counterflow-{question}.{kind}"' in answer.headers["content-disposition"]
    told = _post(page, f"unit:turbine/{question}", bodies[question])
    if kind == "json":
        assert json.loads(answer.text)["answer"] == told
    elif kind == "csv":
        frame = polars.read_csv(io.StringIO(answer.text))
        assert len(frame) == {"effect": 45, "past": 50, "explain": 50, "restore": 1}[question]
        if question != "restore":
            assert set(frame["measured_in"]) == {"bar"}
        if question == "effect":
            assert set(frame["level"]) == {0.95}
            peak = told["most_affected"][0]
            row = frame.filter((polars.col("channel") == peak["channel"]) & (polars.col("step") == peak["steps"]))
            assert row["mean"].item() == pytest.approx(peak["mean"])
    else:
        assert "<h1>" in answer.text


def test_q3_is_the_librarys(page: TestClient) -> None:
    told = _post(page, "unit:turbine/aggregate", {"unit": "turbine", "phi_1": [1.0, -0.5], "phi_0": [0.5, 0.0]})
    wanted = fitted().aggregate_effect("turbine", [1.0, -0.5], [0.5, 0.0])
    found = {each["channel"]: each["change"] for each in told["ranked"]}
    np.testing.assert_allclose([found[name] for name in wanted.channels], wanted.mean, rtol=EXACT, atol=EXACT)
    assert told["sentence"] == wanted.sentence()
    assert "give phi_0" in _refusal(page, "unit:turbine/aggregate", {"unit": "turbine", "phi_1": [1.0, 0.0]}, 400)
    _refusal(page, "server/aggregate", {"unit": "turbine", "phi_1": [1.0, 0.0]}, 400)


EFFECT: dict[str, Any] = {"effect": "turbine", "changes": MOVED}
REFUSED: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "no such seat": ("unit:nobody/effect", EFFECT, 404, "no seat"),
    "no such unit": ("unit:turbine/effect", {**EFFECT, "effect": "nobody"}, 404, "nobody"),
    "no such input": ("unit:turbine/effect", {**EFFECT, "changes": [dict(MOVED[0], input="x")]}, 404, "'x'"),
    "no such channel": ("unit:turbine/effect", {**EFFECT, "draw": ["t9"]}, 404, "'t9'"),
    "not a number": ("unit:turbine/effect", {**EFFECT, "changes": [dict(MOVED[0], size="x")]}, 422, "changes.0.size"),
    "no change": ("unit:turbine/effect", {**EFFECT, "changes": []}, 422, "changes"),
    "unknown field": ("unit:turbine/effect", {**EFFECT, "path": "/etc/passwd"}, 422, "path"),
    "too many steps": ("unit:turbine/effect", {**EFFECT, "horizon": 10**9}, 422, "horizon"),
    "too many numbers": (
        "unit:turbine/past",
        {"unit": "turbine", "start": 0, "stop": 9_000_000, "changes": [{"unit": "boiler", "input": "valve"}]},
        400, "draw"
    ),
    "beyond the limits": (
        "unit:turbine/effect", {**EFFECT, "changes": [dict(MOVED[0], size=100.0)]}, 400, "wider than its limits"
    ),
    "huge": ("unit:turbine/effect", {**EFFECT, "changes": [
        {"unit": "boiler", "input": "speed", "size": 1e300}]}, 400, "too large"),
    "pulse without length": (
        "unit:turbine/effect", {**EFFECT, "changes": [dict(MOVED[0], shape="pulse")]}, 400, "needs a length"
    ),
    "series without values": (
        "unit:turbine/effect", {**EFFECT, "changes": [dict(MOVED[0], shape="series")]}, 400, "needs values"
    ),
    "series too long": (
        "unit:turbine/effect",
        {**EFFECT, "horizon": 2, "changes": [dict(MOVED[0], shape="series", values=[1.0, 2.0, 3.0])]}, 400, "horizon"
    ),
    "two causes on paths": (
        "unit:pump/paths",
        {"effect": "pump", "changes": [*MOVED, {"unit": "turbine", "input": "speed", "size": 1.0}]}, 400, "one unit"
    ),
    "window beyond the record": ("unit:turbine/explain", {"unit": "turbine", "start": 0, "stop": 10**6}, 400, "stop"),
    "empty window": ("unit:turbine/explain", {"unit": "turbine", "start": 5, "stop": 5}, 400, "start"),
    "one input twice": ("unit:turbine/past", {"unit": "turbine", "start": 0, "stop": 5, "changes": [
        {"unit": "boiler", "input": "valve"}, {"unit": "boiler", "input": "valve", "mode": "add"}]}, 400, "twice"),
    "lever without inputs": (
        "unit:turbine/restore", {"unit": "turbine", "target": {"t0": 1}, "using": [{"unit": "boiler", "inputs": []}]},
        422, "using.0.inputs"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_have_a_reason_and_a_status(page: TestClient, case: str) -> None:
    path, body, status, said = REFUSED[case]
    assert said in _refusal(page, path, body, status)


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/seats.py", "/etc/passwd", "app.py", "nothing.js"])
def test_no_file_outside_the_page_is_served(page: TestClient, name: str) -> None:
    answer = page.get(f"/static/{name}")
    assert answer.status_code == 404
    assert "def " not in answer.text


def test_the_page_and_plotly_are_served(page: TestClient) -> None:
    assert page.get("/").headers["content-type"].startswith("text/html")
    plotly = page.get("/static/plotly.min.js")
    assert plotly.headers["content-type"].startswith("text/javascript")
    again = page.get("/static/plotly.min.js", headers={"If-None-Match": plotly.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    described = page.get("/api/openapi.json").json()
    assert set(described["paths"]) >= {"/api/seats", "/api/seats/{seat}/effect", "/api/seats/{seat}/export/{kind}"}


def test_dates_and_durations_are_rows_and_steps(tmp_path: Path) -> None:
    """A fit of a dated recording: the page knows when its rows were, and questions take dates."""
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    plain = replace(plant, dt=60.0).simulate(300, rng=2)
    arrays = {name: (part.y, part.u) for name, part in plain.items()}
    recording = cf.Recording.from_arrays(arrays, 60.0, plain.units, start="2024-11-01 14:00", timezone="Europe/Berlin")
    cf.fit(recording, plant.locals()).save(tmp_path / "fit")
    with TestClient(create(tmp_path / "fit", data=recording)) as client:
        calendar = client.get("/api/seats/unit:turbine/plant").json()["calendar"]
        assert (calendar["begins"], calendar["step"], calendar["zone"]) == (1730466000000.0, 60000.0, "Europe/Berlin")
        changes = [{"unit": "boiler", "input": "u1", "mode": "add", "value": 1.0}]
        asked = {"unit": "turbine", "changes": changes, "start": "2024-11-01 16:00", "stop": "2024-11-01 17:00"}
        told = _post(client, "unit:turbine/past", asked)
        assert (told["start"], told["stop"]) == (120, 180)
        assert "from 2024-11-01 16:00 to 16:59 CET" in told["sentence"]
        rows = client.get("/api/seats/unit:turbine/rows", params={"start": "1.11.2024 16:00", "stop": "PT30M"})
        assert rows.json() == {"start": 120, "stop": 150}
        wrong = client.get("/api/seats/unit:turbine/rows", params={"start": "2023-01-01"})
        assert (wrong.status_code, "goes from 2024-11-01 14:00 CET" in wrong.text) == (400, True)
        assert client.get("/api/seats/unit:turbine/rows", params={"start": 200, "stop": 100}).status_code == 400
        told = _post(client, "unit:turbine/past", asked | {"stop": "30 min"})
        assert (told["start"], told["stop"]) == (120, 150)
        said = _refusal(client, "unit:turbine/past", asked | {"stop": "2024-11-01 15:00"}, 400)
        assert "start is 2024-11-01 16:00 CET, stop 2024-11-01 15:00 CET" in said
        said = _refusal(client, "unit:turbine/past", asked | {"start": "2030-01-01"}, 400)
        assert "goes from 2024-11-01 14:00 CET" in said
        assert "give a row" in _refusal(client, "unit:turbine/past", asked | {"start": "soon"}, 400)
        moved = [{"unit": "boiler", "input": "u1", "size": 1.0}]
        told = _post(client, "unit:turbine/effect", {"effect": "turbine", "changes": moved, "horizon": "10 min"})
        assert told["horizon"] == 10
        assert "more than 20,000" in _refusal(
            client, "unit:turbine/effect", {"effect": "turbine", "changes": moved, "horizon": "400 d"}, 400
        )
