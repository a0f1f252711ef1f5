"""Budgets on the command line: open, ledger, plan, and a fit that is refused when its budget is spent."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import answer as told
from command_line import refused, run, script
from scipy.stats import norm
from tolerances import EXACT, STANDARD_ERRORS

import counterflow as cf
from counterflow.cli import privacy_plan
from counterflow.plant import excitation
from counterflow.privacy import Cost, Ledger, gaussian_delta, total_epsilon

DELTA = 1e-6


def opened(place: Path, *units: str, epsilon: float = 3.0) -> dict[str, Any]:
    named = [word for unit in units for word in ("--unit", unit)]
    return told("privacy", "open", place, *named, "--epsilon", epsilon, "--delta", DELTA)


# ---- open


def test_every_unit_gets_a_ledger(tmp_path: Path) -> None:
    answer = opened(tmp_path / "a" / "ledgers", "boiler", "Turbine Süd")
    assert [Path(made["file"]).name for made in answer["ledgers"]] == ["boiler.ledger", "Turbine Süd.ledger"]
    with Ledger.open(tmp_path / "a" / "ledgers" / "Turbine Süd.ledger", unit="Turbine Süd") as ledger:
        assert (ledger.epsilon, ledger.delta, ledger.window, ledger.spent) == (3.0, DELTA, 1, 0.0)
    budget = ("--epsilon", 1, "--delta", 1e-9, "--window", 5)
    done = run("privacy", "open", tmp_path / "x.ledger", "--unit", "b", *budget, code=0)
    assert "any 5 consecutive measurements" in done.stdout
    with Ledger.open(tmp_path / "x.ledger", unit="b") as ledger:
        assert (ledger.epsilon, ledger.delta, ledger.window) == (1.0, 1e-9, 5)


def test_a_ledger_is_never_overwritten_and_then_nothing_is_made(tmp_path: Path) -> None:
    opened(tmp_path, "boiler")
    before = (tmp_path / "boiler.ledger").read_bytes()
    text = refused("privacy", "open", tmp_path, "--unit", "a", "--unit", "boiler", "--epsilon", 9, "--delta", DELTA)
    assert "boiler.ledger" in text
    assert "exists" in text
    assert sorted(os.listdir(tmp_path)) == ["boiler.ledger", "boiler.ledger.head"]
    assert (tmp_path / "boiler.ledger").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"--epsilon": "0"}, "epsilon"),
        ({"--epsilon": "nan"}, "epsilon"),
        ({"--epsilon": "inf"}, "epsilon"),
        ({"--delta": "0"}, "delta"),
        ({"--delta": "1"}, "delta"),
        ({"--window": "0"}, "window"),
        ({"--unit": "a/b"}, "slash"),
        ({"--unit": ".."}, "dot"),
        ({"--unit": ""}, "empty"),
        ({"--unit": "x\ny"}, "does not print"),
    ],
)
def test_budgets_that_make_no_sense(tmp_path: Path, options: dict[str, str], says: str) -> None:
    given = {"--unit": "boiler", "--epsilon": "1", "--delta": "1e-6", **options}
    assert says in refused("privacy", "open", tmp_path / "d", *(word for pair in given.items() for word in pair))
    assert os.listdir(tmp_path) == []


def test_places_that_make_no_sense(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    budget = ("--epsilon", 1, "--delta", DELTA)
    assert "one file" in refused("privacy", "open", tmp_path / "x.ledger", "--unit", "a", "--unit", "b", *budget)
    assert "twice" in refused("privacy", "open", tmp_path, "--unit", "a", "--unit", "a", *budget)
    assert "below the file" in refused("privacy", "open", tmp_path / "file" / "d", "--unit", "a", *budget)
    assert os.listdir(tmp_path) == ["file"]


# ---- ledger


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    opened(tmp_path, "boiler", "turbine")
    with Ledger.open(tmp_path / "boiler.ledger") as ledger:
        for k in range(3):
            ledger.spend(
                Cost(100 * k, 100 * k + 200, row_loss=0.05), f"message {k}", fit="fit abc",
                mechanism="analytic Gaussian", source="operating system",
            )  # fmt: skip
        ledger.spend(Cost(0, 400, epsilon=0.25), "gradient", fit="fit abd", mechanism="as published", source="seed 7")
    return tmp_path


def test_what_was_spent_when_and_on_what(ledgers: Path) -> None:
    answer = told("privacy", "ledger", ledgers)
    boiler, turbine = answer["ledgers"]
    assert (turbine["unit"], turbine["spent"], turbine["left"], turbine["releases"]) == ("turbine", 0.0, 3.0, [])
    costs = [Cost(100 * k, 100 * k + 200, row_loss=0.05) for k in range(3)] + [Cost(0, 400, epsilon=0.25)]
    assert boiler["spent"] == pytest.approx(total_epsilon(costs, DELTA), rel=EXACT)
    assert boiler["left"] == pytest.approx(3.0 - boiler["spent"], rel=EXACT)
    assert (boiler["epsilon"], boiler["delta"], boiler["window"], boiler["count"]) == (3.0, DELTA, 1, 4)
    first, *_, last = boiler["releases"]
    assert (first["what"], first["rows"], first["fit"], first["secure"]) == ("message 0", [0, 200], "fit abc", True)
    assert first["alone"] == first["spent"] == pytest.approx(total_epsilon(costs[:1], DELTA), rel=EXACT)
    assert (last["alone"], last["source"], last["secure"], last["spent"]) == (0.25, "seed 7", False, boiler["spent"])
    (caveat,) = answer["caveats"]
    assert (caveat["code"], caveat["scope"]) == ("simulated-noise", "boiler")
    assert told("privacy", "ledger", ledgers / "boiler.ledger")["ledgers"] == [boiler]


def test_the_same_as_a_table(ledgers: Path) -> None:
    shown = run("privacy", "ledger", ledgers).stdout
    for part in (
        "boiler: epsilon", "of 3 is spent at delta 1e-06", "message 2", "gradient", "100 to 299", "fit abd",
        "analytic Gaussian; noise from operating system",
        "as published; noise from seed 7, which protects nothing",
        "turbine: epsilon 0.00 of 3", "nothing has been released", "caution: unit 'boiler'", "4 releases",
    ):  # fmt: skip
        assert part in shown, part
    shown = run("privacy", "ledger", ledgers, "--last", 1).stdout
    assert "4 releases, the last 1" in shown
    assert "message 2" not in shown
    assert len(told("privacy", "ledger", ledgers, "--last", 1)["ledgers"][0]["releases"]) == 1


def test_ledgers_that_cannot_be_shown(ledgers: Path) -> None:
    (ledgers / "empty").mkdir()
    assert "holds no ledger" in refused("privacy", "ledger", ledgers / "empty")
    assert "there is no ledger" in refused("privacy", "ledger", ledgers / "nowhere.ledger")
    (ledgers / "pump.ledger").write_text("nothing was spent, honestly\n" * 50)
    assert "pump.ledger" in refused("privacy", "ledger", ledgers)


# ---- plan


def test_a_plan_is_the_exact_gaussian_mechanism() -> None:
    answer = told("privacy", "plan", "--epsilon", "0.1,1,10", "--delta", "1e-5", "--window", 4, "--releases", 9)
    for row, epsilon in zip(answer["plans"], (0.1, 1.0, 10.0), strict=True):
        mu = 3 / row["multiplier"]  # nine releases add up to three times one
        assert gaussian_delta(epsilon, mu) == pytest.approx(1e-5, rel=1e-6)
        assert gaussian_delta(row["epsilon_each"], mu / 3) == pytest.approx(1e-5, rel=1e-6)
        assert row["noise_per_clip"] == pytest.approx(4 * row["multiplier"], rel=EXACT)
        assert row["caught"] == pytest.approx(norm.sf(norm.isf(0.05) - mu), rel=1e-9)
        assert row["caught"] <= min(1, math.exp(epsilon) * 0.05 + 1e-5)  # what (epsilon, delta) alone allows
        assert row["guessed"] == pytest.approx(norm.cdf(mu / 2), rel=1e-9)
        assert row["guessed"] <= (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
    assert "error" not in answer["plans"][0]
    multipliers = [row["multiplier"] for row in answer["plans"]]
    assert multipliers == sorted(multipliers, reverse=True)


def test_a_plan_as_a_table() -> None:
    shown = run("privacy", "plan").stdout
    for part in ("delta 1e-06, for one measurement and one release", "4.22", "8.45", "7.95 %", "54.7 %", "noise/clip:"):
        assert part in shown, part
    assert "epsilon of each" not in shown
    assert "epsilon of each" in run("privacy", "plan", "--releases", 2).stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--epsilon", "1,x"), "commas"),
        (("--epsilon", ""), "commas"),
        (("--epsilon", "0"), "epsilon"),
        (("--epsilon", "1,-1"), "epsilon"),
        (("--epsilon", "nan"), "epsilon"),
        (("--epsilon", "1000"), "protects nothing"),
        (("--delta", "0"), "delta"),
        (("--window", "0"), "window"),
        (("--releases", "0"), "--releases"),
        (("--steps", "500"), "--plant"),
        (("--fit", "nowhere", "--plant", "nowhere.toml"), "one of them"),
        (("--fit", "nowhere"), "nowhere"),
        (("--plant", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_plans_that_make_no_sense(options: tuple[str, ...], says: str) -> None:
    assert says in refused("privacy", "plan", *options)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private federation")
    told("simulate", "--out", folder / "rec.safetensors", "--units", "boiler,turbine", "--steps", 1000, "--seed", 3)
    told("fit", folder / "federation.toml", "--out", folder / "fit")
    return folder


def test_what_a_plan_expects_of_a_fit_is_what_the_fit_says(federation: Path) -> None:
    answer = told("privacy", "plan", "--fit", federation / "fit", "--epsilon", "1,100", "--delta", DELTA)
    fit = cf.load(federation / "fit")
    assert answer["rows"] == 1001
    errors, plant = fit.standard_errors, fit.plant
    across = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], bool)  # two units, 2 states, 2 inputs
    size = math.hypot(np.linalg.norm(plant.A[across]), np.linalg.norm(plant.B[across]))
    said = math.hypot(np.linalg.norm(errors.A[across]), np.linalg.norm(errors.B[across])) / size
    assert answer["error_without_privacy"] == pytest.approx(said, rel=0.1)  # other rows of the same plant
    strict, loose = answer["plans"]
    assert said < loose["error"] < strict["error"]
    assert loose["rows_needed_of_rows"] == math.ceil(1001 * (loose["error_of_rows"] / 0.1) ** 2)
    assert strict["release"] == "moments"
    assert strict["error"] < strict["error_of_rows"] / 3
    assert strict["rows_needed"] < strict["rows_needed_of_rows"]
    shown = run("privacy", "plan", "--fit", federation / "fit", "--epsilon", "1,100").stdout
    assert "rows for 10 %" in shown
    assert "from 1001 rows" in shown


@pytest.mark.parametrize("release", ["moments", "rows"])
def test_the_errors_that_a_plan_expects_are_those_that_fits_have(release: str) -> None:
    plant = cf.random_plant(units=2, states=1, inputs=1, outputs=3, rng=5)
    steps, runs = 2000, 8
    task = privacy_plan.Task(plant, plant.locals(), excitation.white(plant, steps, 0))
    epsilon = 30.0 if release == "rows" else 0.5
    bare, plan = privacy_plan.expected_errors(task, [None, cf.Privacy(epsilon=epsilon, delta=DELTA, seed=0)], release)
    off = ~np.eye(2, dtype=bool)
    truth = np.concatenate([plant.A[off], plant.B[off]])
    squares = []
    for k in range(runs):
        recording = plant.simulate(steps, rng=100 + k, inputs=dict(task.inputs))
        found = cf.fit(recording, plant.locals(), privacy=cf.Privacy(epsilon, DELTA, seed=k, release=release)).plant
        error = np.concatenate([found.A[off], found.B[off]]) - truth
        squares.append(float(error @ error) / float(truth @ truth))
    assert abs(np.mean(squares) - plan.error**2) < STANDARD_ERRORS * np.std(squares, ddof=1) / math.sqrt(runs)
    assert plan.error > 1.5 * bare.error


def test_a_plan_for_a_plant_on_paper(tmp_path: Path) -> None:
    units = "".join(
        f"[units.{name}]\nA = [[0.5]]\nB = [[1.0]]\nC = [[1.0]]\nQ = [[0.1]]\nR = [[0.1]]\n" for name in ("a", "b")
    )
    coupled = tmp_path / "coupled.toml"
    coupled.write_text(f'{units}[[couplings]]\ncause = "a"\neffect = "b"\nA = [[0.3]]\nB = [[0.2]]\n')
    answer = told("privacy", "plan", "--plant", coupled, "--epsilon", "10", "--steps", 500)
    longer = told("privacy", "plan", "--plant", coupled, "--epsilon", "10", "--steps", 8000)
    assert (answer["rows"], longer["rows"]) == (501, 8001)
    assert longer["error_without_privacy"] == pytest.approx(answer["error_without_privacy"] / 4, rel=0.1)
    assert longer["plans"][0]["error"] < answer["plans"][0]["error"] / 2
    alone = tmp_path / "alone.toml"
    alone.write_text(units)
    assert "no unit acts on another" in refused("privacy", "plan", "--plant", alone)


def test_a_plan_needs_a_fit_with_models(federation: Path) -> None:
    told("fit", federation / "federation.toml", "--out", federation / "published", "--method", "penalty")
    assert "'penalty'" in refused("privacy", "plan", "--fit", federation / "published")


# ---- all of it


def test_a_budget_pays_for_fits_until_it_is_spent(federation: Path, tmp_path: Path) -> None:
    opened(tmp_path / "ledgers", "boiler", "turbine", epsilon=75.0)
    text = (federation / "federation.toml").read_text(encoding="utf-8")
    private = federation / "private.toml"
    ledgers = str(tmp_path / "ledgers").replace("\\", "/")
    private.write_text(f'{text}\n[privacy]\nepsilon = 40.0\ndelta = 1e-6\nledger = "{ledgers}"\n', encoding="utf-8")
    run("fit", private, "--out", tmp_path / "first", "--format", "json", code=0)
    assert run("fit", private, "--out", tmp_path / "second").exit_code == 0
    before = told("privacy", "ledger", tmp_path / "ledgers")
    assert [entry["count"] for entry in before["ledgers"]] == [6, 6]  # three rounds of moments each
    assert all(entry["releases"][2]["spent"] == pytest.approx(40.0, rel=1e-6) for entry in before["ledgers"])
    assert all(40.0 < entry["spent"] < 75.0 for entry in before["ledgers"])  # less than twice: they are Gaussian
    assert before["caveats"] == []
    said = refused("fit", private, "--out", tmp_path / "third")
    assert "'boiler'" in said
    assert "budget" in said
    assert not (tmp_path / "third").exists()
    assert told("privacy", "ledger", tmp_path / "ledgers") == before


def test_help_is_instant_and_needs_no_numbers() -> None:
    program = "import sys, counterflow.cli; print([m for m in ('scipy', 'sqlite3', 'rich') if m in sys.modules])"
    done = script(program)
    assert done.stdout == "[]\n"
    assert "ledger" in run("privacy", "--help").stdout


def test_a_plan_for_logs_foretells_what_noise_drowns(federation: Path) -> None:
    answer = told("privacy", "plan", "--fit", federation / "fit", "--logs", "--epsilon", "0.1,100", "--memory", 10)
    small, large = answer["plans"]
    assert answer["from_logs"]
    assert small["error"] > 0.9
    assert small["rows_needed"] is None
    assert large["error"] < small["error"]
    assert "drowned-by-noise" in {caveat["code"] for caveat in answer["caveats"]}
    assert "from logs" not in refused("privacy", "plan", "--memory", 10)
    assert "--logs" in refused("privacy", "plan", "--fit", federation / "fit", "--memory", 10)
