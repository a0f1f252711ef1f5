"""From a plant on paper to answers on the terminal: simulate, fit, whatif, explain, restore, forecast, graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars
import pytest
from command_line import COMMAND, answer, process, refused, run, script, strict

import counterflow as cf
from counterflow.cli.federation_file import read_federation, read_plant
from counterflow.plant import excitation

PLANT = """\
[plant]
dt = 60.0

[units.boiler]
A = [[0.8]]
B = [[0.5, 0.1]]
C = [[1.0], [0.5]]
Q = [[0.01]]
R = [[0.04, 0.0], [0.0, 0.04]]
inputs = [{name = "valve", unit = "%", limits = [-50, 50]}, {name = "feed water", unit = "t/h"}]
outputs = [{name = "pressure", unit = "bar"}, {name = "temperature", unit = "°C"}]

[units.turbine]
A = [[0.6]]
B = [[0.4]]
C = [[2.0], [-1.0]]
Q = [[0.01]]
R = [[0.04, 0.0], [0.0, 0.04]]
inputs = [{name = "governor", unit = "%", limits = [-10, 10]}]
outputs = [{name = "speed", unit = "rpm"}, "vibration"]

[[couplings]]
cause = "boiler"
effect = "turbine"
A = [[0.3]]
B = [[0.2, 0.0]]
"""
ENVELOPE = ["version", "command", "method", "dt", "fit", "sentence", "controllers", "caveats", "verdict"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "plant.toml").write_text(PLANT, encoding="utf-8")
    told = answer("simulate", "--plant", folder / "plant.toml", "--out", folder / "rec.safetensors", "--steps", "600")
    assert told["rows"] == 601
    told = answer("fit", folder / "federation.toml", "--out", folder / "fit")
    assert told["status"]["converged"]
    assert told["doubts"] == []
    return folder


@pytest.fixture(scope="module")
def fit(place: Path) -> cf.Fit:
    return cf.load(place / "fit")


def test_the_whole_chain_as_users_run_it(tmp_path: Path) -> None:
    (tmp_path / "plant.toml").write_text(PLANT, encoding="utf-8")
    simulated = ["simulate", "--plant", "plant.toml", "--out", "data/rec.safetensors", "--steps", "400"]
    done = process(*COMMAND, *simulated, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert str(Path("data") / "federation.toml") in done.stdout
    names = sorted(path.relative_to(tmp_path / "data").as_posix() for path in (tmp_path / "data").rglob("*.*"))
    assert names == ["federation.toml", "models/boiler.safetensors", "models/turbine.safetensors", "rec.safetensors"]
    steps: list[tuple[list[str], list[str]]] = [
        (["fit", "data/federation.toml", "--out", "fit", "--estimate", "blocks"], ["converged", "saved fit: fit"]),
        (["whatif", "fit", "--cause", "boiler", "--effect", "turbine", "--change", "valve=+2", "--duration", "10"],
         ["If boiler valve were +2 % for 10 steps (10 min), turbine speed would rise by", "rpm (95 %: "]),
        (["explain", "fit", "--recording", "data/federation.toml", "--unit", "turbine", "--start", "380"],
         ["its usual level in rows 380 to 400: "]),
        (["restore", "fit", "--unit", "turbine", "--target", "speed=+5", "--using", "boiler.valve"],
         ["To move turbine speed by +5 rpm after 50 steps (50 min), hold boiler valve +"]),
        (["forecast", "fit", "--recording", "data/rec.safetensors", "--horizon", "20", "--plan", "boiler.valve=3"],
         ["If boiler valve is 3 % and other inputs stay as they are, ", " after 20 steps (20 min)."]),
        (["graph", "fit"], ["boiler -> turbine"]),
    ]  # fmt: skip
    for k, (arguments, words) in enumerate(steps):
        as_json = k % 2 == 0  # the other form of each is tested in this process
        done = process(*COMMAND, *arguments, *(["--format", "json"] if as_json else []), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        if as_json:
            told = strict(done.stdout)
            assert told["command"] == arguments[0]
            text = f"{told.get('sentence')} {told.get('status')} saved fit: {told.get('fit')}"
        else:
            text = done.stdout
        for word in words:
            assert word in text, arguments


# ---- the answers are the library's


def test_simulate_gives_what_the_library_gives(place: Path) -> None:
    plant = read_plant(place / "plant.toml")
    expected = plant.simulate(600, rng=0, inputs=excitation.white(plant, 600, 0))
    assert cf.Recording.load(place / "rec.safetensors") == expected
    federation = read_federation(place / "federation.toml")
    assert federation.recording == expected
    assert federation.recording.units == plant.units
    assert federation.models == plant.locals()


def test_simulate_a_random_plant(tmp_path: Path) -> None:
    told = answer(
        "simulate", "--out", tmp_path / "r.safetensors", "--units", "boiler, turbine ,grid", "--inputs", "valve",
        "--outputs", "3", "--states", "1", "--topology", "chain", "--steps", "50", "--seed", "4",
        "--federation", tmp_path / "setup" / "f.toml", "--models", tmp_path / "local",
    )  # fmt: skip
    assert [unit["name"] for unit in told["units"]] == ["boiler", "turbine", "grid"]
    assert told["units"][0] == {"name": "boiler", "states": 1, "inputs": ["valve"], "outputs": ["y1", "y2", "y3"]}
    assert sorted(path.name for path in (tmp_path / "local").iterdir()) == [
        f"{name}.safetensors" for name in ("boiler", "grid", "turbine")
    ]
    found = read_federation(tmp_path / "setup" / "f.toml")
    assert found.recording.digest == told["digest"]
    assert found.seed == 4


def test_fit_is_that_of_the_library(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    federation = read_federation(place / "federation.toml")
    assert fit.plant == cf.fit(federation.recording, federation.models).plant
    told = answer(
        "fit", place / "federation.toml", "--out", tmp_path / "f", "--method", "penalty", "--xi", "boiler=3",
        "--xi", "turbine=1", "--seed", "5",
    )  # fmt: skip
    assert (told["method"], told["seed"], told["log_likelihood"]) == ("penalty", 5, None)
    other = cf.fit(
        federation.recording, federation.models, method="penalty", xi={"boiler": 3.0, "turbine": 1.0}, seed=5
    )
    assert cf.load(tmp_path / "f").plant == other.plant


def test_a_fit_that_has_not_converged_is_saved(place: Path, tmp_path: Path) -> None:
    arguments = ["fit", place / "federation.toml", "--out", tmp_path / "f", "--evaluations", "1"]
    done = run(*arguments, code=3)
    assert "not converged" in done.stdout
    told = answer("whatif", tmp_path / "f", "--effect", "turbine", "--change", "boiler.valve=1")
    assert "not-converged" in [caveat["code"] for caveat in told["caveats"]]
    told = answer(*arguments, "--force", code=3)
    assert not told["status"]["converged"]


def test_windows_are_summed_up(place: Path, fit: cf.Fit) -> None:
    asked = ["whatif", place / "fit", "--effect", "turbine", "--change", "boiler.valve=2", "--horizon", "1h"]
    told = answer(*asked, "--window", "10min..30min")["windows"]["turbine"]
    wanted = fit.effect("boiler", "turbine", {"valve": 2.0}, 60).window(10, 30)
    assert (told["start"], told["stop"], told["level"]) == (10, 30, 0.95)
    for k, channel in enumerate(told["channels"]):
        for name in ("mean", "cumulative", "extreme", "relative"):
            found = getattr(wanted, name)
            for end in ("value", "lower", "upper"):
                number = float(getattr(found, end)[k])
                assert channel[name][end] == (pytest.approx(number, rel=1e-9) if np.isfinite(number) else None)
    assert told["channels"][0]["cumulative"]["measured_in"] == "rpm·min"
    assert wanted.sentence() in " ".join(run(*asked, "--window", "10min..30min").output.split())
    past = ["whatif", place / "fit", "--recording", place / "rec.safetensors", "--start", "500", "--stop", "550"]
    both = answer(*past, "--set", "boiler.valve=1", "--window", "510..")["windows"]
    assert {name: (each["start"], each["stop"]) for name, each in both.items()} == dict.fromkeys(both, (510, 550))
    for wrong in ("5", "..", "30..10", "soon..", "0..900"):
        done = run(*asked, "--window", wrong)
        assert (done.exit_code == 0) == (wrong == ".."), done.output


def test_whatif_in_json(place: Path, fit: cf.Fit) -> None:
    told = answer(
        "whatif", place / "fit", "--cause", "boiler", "--effect", "turbine", "--change", "valve=+2", "--change",
        "boiler.feed water=-1", "--duration", "10", "--horizon", "30", "--level", "0.9",
    )  # fmt: skip
    assert list(told)[: len(ENVELOPE)] == ENVELOPE
    assert set(told) - set(ENVELOPE) == {
        "kind", "causes", "effect", "change", "horizon", "duration", "level", "channels", "most_affected", "mean",
        "lower", "upper", "states",
    }  # fmt: skip
    expected = fit.effect("boiler", "turbine", {"valve": 2, "feed water": -1}, horizon=30, duration=10, level=0.9)
    assert told["mean"] == expected.mean.tolist()
    assert expected.lower is not None
    assert told["lower"] == expected.lower.tolist()
    assert told["change"] == {"boiler": {"valve": 2.0, "feed water": -1.0}}
    assert told["channels"][0] == {"name": "speed", "measured_in": "rpm"}
    head = told["most_affected"][0]
    assert head["mean"] == expected.mean[head["steps"] - 1, 0]
    assert told["sentence"].startswith(
        "If boiler valve were +2 % and boiler feed water -1 t/h for 10 steps (10 min), turbine speed would rise by "
    )
    assert "(90 %: " in told["sentence"]


def test_a_fall_is_told_as_a_fall(place: Path) -> None:
    done = run(
        "whatif", place / "fit", "--effect", "turbine", "--change", "boiler.valve=-2", "--change", "turbine.governor=0"
    )
    assert done.exit_code == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith(
        "If boiler valve were -2 % and turbine governor +0 % from now on, turbine speed would fall by "
    )
    low, high = (float(word) for word in first.split("95 %: ")[1].split(")")[0].split(" to "))
    assert 0 < low < high
    assert "× noise" in done.stdout


def test_a_schedule(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("valve,boiler.feed water\n1,0\n2,0\n3,-1\n")
    arguments = ["whatif", place / "fit", "--cause", "boiler", "--effect", "turbine", "--schedule", tmp_path / "s.csv"]
    told = answer(*arguments)
    schedule = np.zeros((50, 2))
    schedule[:3] = [[1, 0], [2, 0], [3, -1]]
    assert told["mean"] == fit.effect("boiler", "turbine", schedule, horizon=50).mean.tolist()
    assert told["sentence"].startswith("If boiler inputs were changed as in s.csv for 3 steps (3 min), ")
    assert "more than --horizon 2" in refused(*arguments, "--horizon", "2")
    assert "--duration" in refused(*arguments, "--duration", "2")
    for text, said in (
        ("valve\n", "no rows"), ("valve,valve\n1,2\n", "two columns"), ("valv\n1\n", "did you mean"),
        ("valve\nx\n", "not a number"), ("valve\n1\nnan\n", "empty in row 1"),
    ):  # fmt: skip
        (tmp_path / "s.csv").write_text(text)
        assert said in refused(*arguments)
    assert "no file" in refused(*arguments[:-1], tmp_path / "none.csv")


def test_a_counterfactual(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    recording = cf.Recording.load(place / "rec.safetensors")
    asked = ["whatif", place / "fit", "--recording", place / "rec.safetensors", "--start", "500", "--stop", "550"]
    told = answer(*asked, "--set", "boiler.valve=0.5")
    expected = fit.counterfactual(recording, {"boiler": {"valve": 0.5}}, 500, 550)
    assert list(told["units"]) == ["boiler", "turbine"]
    for name, world in expected.items():
        assert told["units"][name]["mean"] == world.mean.tolist()
        assert told["units"][name]["factual"] == world.factual.tolist()
    assert "turbine speed would have been" in told["sentence"]  # of the units that were not changed
    head = next(entry for entry in told["most_affected"] if entry["unit"] == "turbine")
    row, column = head["row"] - 500, ["speed", "vibration"].index(head["channel"])
    change = (expected["turbine"].mean - expected["turbine"].factual)[row, column]
    assert head["mean"] == pytest.approx(change)

    told = answer(*asked, "--change", "valve=-1", "--cause", "boiler", "--effect", "turbine")
    shifted = recording["boiler"].u[500:550, 0] - 1
    other = fit.counterfactual(recording, {"boiler": {"valve": shifted}}, 500, 550)["turbine"]
    assert told["units"]["turbine"]["mean"] == other.mean.tolist()
    assert (
        "Had boiler valve been 1 % lower in rows 500 to 549, turbine speed would have been lower by" in told["sentence"]
    )

    run(*asked, "--set", "boiler.valve=0.5", "--out", tmp_path / "w.csv", code=0)
    frame = polars.read_csv(tmp_path / "w.csv")
    assert frame.columns == ["unit", "row", "channel", "factual", "mean", "lower", "upper"]
    assert len(frame) == 50 * 4


def test_explain(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    recording = cf.Recording.load(place / "rec.safetensors")
    asked = ["explain", place / "fit", "--recording", place / "federation.toml", "--unit", "turbine", "--start", "500"]
    told = answer(*asked, "--stop", "520")
    expected = fit.attribute(recording, "turbine", 500, 520)
    assert told["departure"] == expected.departure.tolist()
    assert list(told["shares"]) == ["boiler", "turbine", "initial state", "rest"]
    np.testing.assert_allclose(
        sum(np.array(s) for s in told["mean_shares"].values()), told["mean_departure"], rtol=1e-9
    )
    done = run(*asked, "--channel", "vibration", "--out", tmp_path / "e.png", code=0)
    assert done.stdout.startswith("turbine vibration was ")
    assert "boiler inputs" in done.stdout
    assert (tmp_path / "e.png").read_bytes()[:4] == b"\x89PNG"
    assert "did you mean 'vibration'" in refused(*asked, "--channel", "vibrations")


def test_missing_measurements_are_null(place: Path, tmp_path: Path) -> None:
    recording = cf.Recording.load(place / "rec.safetensors")
    y = np.array(recording["turbine"].y)
    y[500:520, 1] = np.nan
    y[-1] = np.nan
    arrays = {"boiler": (recording["boiler"].y, recording["boiler"].u), "turbine": (y, recording["turbine"].u)}
    cf.Recording.from_arrays(arrays, recording.dt, recording.units).save(tmp_path / "r.safetensors")
    asked = ["explain", place / "fit", "--recording", tmp_path / "r.safetensors", "--unit", "turbine", "--start", "500"]
    told = answer(*asked, "--stop", "520")
    assert told["mean_departure"][1] is None
    assert told["departure"][0][1] is None
    done = run(*asked, "--stop", "520", "--channel", "vibration", code=0)
    assert done.stdout.startswith("turbine vibration was not measured in rows 500 to 519.")
    past = ["whatif", place / "fit", "--recording", tmp_path / "r.safetensors", "--start", "500", "--stop", "520"]
    told = answer(*past, "--set", "boiler.valve=1", "--effect", "turbine")
    assert told["most_affected"][0]["channel"] == "speed"
    told = answer("forecast", place / "fit", "--recording", tmp_path / "r.safetensors", "--horizon", "3")
    assert told["units"]["turbine"]["last_measured"] == [y[-2, 0], y[-2, 1]]


def test_restore(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    asked = ["restore", place / "fit", "--unit", "turbine", "--using", "boiler.valve", "--using", "turbine"]
    done = run(*asked, "--target", "speed=+5", "--out", tmp_path / "r.json", code=0)
    assert done.stdout.startswith("To move turbine speed by +5 rpm after 50 steps (50 min), hold boiler valve +")
    told = strict((tmp_path / "r.json").read_text())
    expected = fit.restore("turbine", {"speed": 5.0}, {"boiler": ["valve"], "turbine": ["governor"]})
    assert told["change"] == {cause: dict(channels) for cause, channels in expected.change.items()}
    assert told["feasible"]
    told = answer(*asked, "--target", "turbine.speed=5000", code=5)
    assert not told["feasible"]
    assert "cannot be reached" in told["sentence"]
    assert run(*asked, "--target", "speed=5000").exit_code == 5
    assert "twice" in refused(*asked, "--target", "speed=1", "--target", "speed=2")
    assert "did you mean 'speed'" in refused(*asked, "--target", "sped=1")
    assert "did you mean 'turbine'" in refused(*asked, "--using", "turbin", "--target", "speed=1")
    assert "did you mean 'valve'" in refused(*asked, "--using", "boiler.valves", "--target", "speed=1")


def test_forecast(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    recording = cf.Recording.load(place / "rec.safetensors")
    asked = ["forecast", place / "fit", "--recording", place / "rec.safetensors", "--horizon", "12"]
    told = answer(*asked, "--plan", "boiler.valve=3", "--unit", "turbine")
    expected = fit.forecast(recording, 12, {"boiler": {"valve": 3.0}})
    assert list(told["units"]) == ["turbine"]
    assert told["units"]["turbine"]["mean"] == expected["turbine"].mean.tolist()
    assert told["first_row"] == 601
    done = run(*asked, "--out", tmp_path / "f.png", code=0)
    assert done.stdout.startswith("If inputs stay as they are, ")
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert "outside its limits" in refused(*asked, "--plan", "boiler.valve=300")


def test_graph(place: Path, fit: cf.Fit, tmp_path: Path) -> None:
    told = answer("graph", place / "fit", "--rate", "0.01")
    edge = next(edge for edge in told["edges"] if edge["cause"] == "boiler")
    assert edge["direct"]
    assert edge["total_strength"] == fit.graph(0.01).edge("boiler", "turbine").total_strength
    done = run("graph", place / "fit", "--out", tmp_path / "g.csv", code=0)
    assert "act directly: boiler -> turbine" in done.stdout
    assert polars.read_csv(tmp_path / "g.csv").columns[:3] == ["cause", "effect", "p_value"]


# ---- what is refused


def test_what_the_data_cannot_tell_is_exit_code_4(place: Path, tmp_path: Path) -> None:
    plant = read_plant(place / "plant.toml")
    inputs = excitation.white(plant, 300, 0)
    inputs["boiler"][:, 1] = 0.4
    recording = plant.simulate(300, rng=0, inputs=inputs)
    for name in plant.names:
        part = recording[name]
        columns = dict(
            zip((*part.unit.input_names, *part.unit.output_names), np.hstack([part.u, part.y]).T, strict=True)
        )
        polars.DataFrame(columns).write_csv(tmp_path / f"{name}.csv")
    text = PLANT.split("[[couplings]]")[0].replace("[plant]\ndt = 60.0\n", "")
    for name in plant.names:
        text = text.replace(f"[units.{name}]\n", f'[units.{name}]\nlog = "{name}.csv"\n')
    (tmp_path / "f.toml").write_text(text, encoding="utf-8")
    told = answer("fit", tmp_path / "f.toml", "--out", tmp_path / "fit")
    assert [(doubt["cause"], doubt["channels"]) for doubt in told["doubts"]] == [("boiler", ["feed water"])]
    assert "caution: boiler -> turbine" in run("fit", tmp_path / "f.toml", "--out", tmp_path / "fit", "--force").stdout
    asked = ["whatif", tmp_path / "fit", "--effect", "turbine", "--out", tmp_path / "x.json", "--change"]
    assert "never varies" in refused(*asked, "boiler.feed water=1", code=4)
    assert not (tmp_path / "x.json").exists()
    refused("restore", tmp_path / "fit", "--unit", "turbine", "--target", "speed=1", "--using", "boiler", code=4)
    assert run(*asked, "boiler.valve=1").exit_code == 0
    edges = answer("graph", tmp_path / "fit")["edges"]
    assert {edge["cause"] for edge in edges} == {"boiler", "turbine"}


WHATIF = ["whatif", "FIT", "--cause", "boiler", "--effect", "turbine"]
PAST = ["whatif", "FIT", "--recording", "REC"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*WHATIF], "--change"),
        ([*WHATIF, "--change", "valve"], "channel=number"),
        ([*WHATIF, "--change", "=1"], "channel=number"),
        ([*WHATIF, "--change", "valve=much"], "channel=number"),
        ([*WHATIF, "--change", "valve=inf"], "channel=number"),
        ([*WHATIF, "--change", "vlave=1"], "did you mean 'valve'"),
        ([*WHATIF, "--change", "turbine.governor=1"], "give --cause turbine"),
        ([*WHATIF, "--change", "valve=1", "--change", "boiler.valve=2"], "twice"),
        ([*WHATIF, "--cause", "turbine", "--change", "boiler.valve=1"], "--cause turbine: nothing is changed"),
        ([*WHATIF, "--change", "valve=101"], "limits"),
        ([*WHATIF, "--change", "valve=1", "--level", "1.5"], "level"),
        ([*WHATIF, "--change", "valve=1", "--set", "valve=1"], "--recording"),
        ([*WHATIF, "--change", "valve=1", "--start", "3"], "--recording"),
        ([*WHATIF, "--change", "valve=1", "--out", "x.pdf"], ".png"),
        ([*WHATIF, "--change", "valve=1", "--out", "REC"], "must end in"),
        (["whatif", "FIT", "--change", "boiler.valve=1"], "--effect"),
        (["whatif", "FIT", "--effect", "turbine", "--change", "valve=1"], "did you mean 'boiler.valve'"),
        (["whatif", "FIT", "--effect", "turbin", "--change", "boiler.valve=1"], "did you mean 'turbine'"),
        (["whatif", "FIT", "--cause", "x", "--effect", "turbine", "--change", "valve=1"], "no unit is called 'x'"),
        (["whatif", "NONE", "--effect", "turbine", "--change", "boiler.valve=1"], "there is no directory"),
        (["whatif", "MODELS", "--effect", "turbine", "--change", "boiler.valve=1"], "server.safetensors"),
        ([*PAST], "--set"),
        ([*PAST, "--set", "boiler.valve=1", "--change", "boiler.valve=1"], "give one of"),
        ([*PAST, "--set", "boiler.valve=1", "--horizon", "3"], "--horizon"),
        ([*PAST, "--set", "boiler.valve=1", "--start", "700"], "0 <= start < stop <= 601"),
        ([*PAST, "--set", "boiler.valve=1", "--start", "70", "--horizon", "2h"], "write --stop 2h, which counts from"),
        ([*PAST, "--set", "boiler.valve=1", "--start", "70", "--horizon", "20"], "the row 20 rows later"),
        ([*PAST, "--set", "boiler.valve=1", "--start", "70", "--stop", "9h"], "stop is '9h' from row 70 on, but the"),
        ([*PAST, "--set", "boiler.valve=1", "--start", "-5"], "0 <= start < stop <= 601"),
        ([*PAST, "--set", "boiler.valve=99"], "limits"),
        (["whatif", "FIT", "--recording", "OTHER", "--set", "boiler.valve=1"], "has units ['pump']"),
        (["whatif", "FIT", "--recording", "NONE", "--set", "boiler.valve=1"], "there is no file"),
        (["explain", "FIT", "--recording", "REC", "--unit", "turbine", "--start", "9", "--stop", "9"], "0 <= start"),
        (["explain", "FIT", "--recording", "FED", "--unit", "pump"], "no unit is called 'pump'"),
        (["forecast", "FIT", "--recording", "REC", "--plan", "valve=1"], "did you mean 'boiler.valve'"),
        (["forecast", "FIT", "--recording", "REC", "--unit", "x"], "no unit is called 'x'"),
        (["graph", "FIT", "--rate", "0"], "rate"),
        (["fit", "FED", "--out", "FIT"], "--force"),
        (["fit", "FED", "--out", "FED"], "is a file"),
        (["fit", "FED", "--out", "MODELS", "--force"], "not a saved fit"),
        (["fit", "FED", "--out", "NEW", "--method", "magic"], "magic"),
        (["fit", "FED", "--out", "NEW", "--method", "oracle"], "true plant"),
        (["fit", "FED", "--out", "NEW", "--xi", "many"], "--xi"),
        (["fit", "FED", "--out", "NEW", "--xi", "3"], "no option 'xi'"),
        (["fit", "FED", "--out", "NEW", "--xi", "1", "--xi", "2"], "--xi"),
        (["fit", "FED", "--out", "NEW", "--estimate", "most"], "most"),
        (["simulate", "--out", "REC"], "--force"),
        (["simulate", "--out", "NEW.csv"], ".safetensors"),
        (["simulate", "--out", "NEW.safetensors", "--plant", "FED", "--units", "2"], "leave --units out"),
        (["simulate", "--out", "NEW.safetensors", "--units", "a,,b"], "commas"),
        (["simulate", "--out", "NEW.safetensors", "--units", "a,a"], "twice"),
        (["simulate", "--out", "NEW.safetensors", "--federation", "NEW.safetensors"], "twice"),
        (["simulate", "--out", "NEW.safetensors", "--federation", "NEW.toml", "--topology", "ring"], "ring"),
    ],
)  # fmt: skip
def test_mistakes(place: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    if "OTHER" in arguments:
        cf.random_plant(["pump"], rng=1).simulate(9, rng=1).save(place / "other.safetensors")
    places = {
        "FIT": place / "fit", "REC": place / "rec.safetensors", "FED": place / "federation.toml",
        "MODELS": place / "models", "OTHER": place / "other.safetensors", "NONE": place / "none",
        "NEW": tmp_path / "new", "NEW.safetensors": tmp_path / "new.safetensors", "NEW.csv": tmp_path / "new.csv",
        "NEW.toml": tmp_path / "new.toml",
    }  # fmt: skip
    assert said in refused(*(str(places.get(word, word)) for word in arguments))
    assert list(tmp_path.iterdir()) == []


def test_answers_are_not_overwritten_unasked(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    asked = [str(place / "fit") if word == "FIT" else word for word in WHATIF] + ["--change", "valve=1", "--out"]
    told = answer(*asked, out)
    assert strict(out.read_text()) == told
    out.write_text("mine")
    assert "--force" in refused(*asked, out)
    assert out.read_text() == "mine"
    assert run(*asked, out, "--force").exit_code == 0
    assert strict(out.read_text()) == told
    assert [path.name for path in tmp_path.iterdir()] == ["answer.json"]


def test_options_of_the_file_go_with_its_method(place: Path, tmp_path: Path) -> None:
    text = (place / "federation.toml").read_text(encoding="utf-8").replace("seed = 0", 'seed = 3\nestimate = "all"')
    (place / "all.toml").write_text(text, encoding="utf-8")
    told = answer("fit", place / "all.toml", "--out", tmp_path / "a", "--estimate", "couplings")
    assert (told["method"], told["seed"]) == ("sufficient", 3)
    told = answer("fit", place / "all.toml", "--out", tmp_path / "b", "--method", "penalty")
    assert told["method"] == "penalty"
    assert "no uncertainty" in refused("graph", tmp_path / "b")
    told = answer("whatif", tmp_path / "b", "--effect", "turbine", "--change", "boiler.valve=1")
    assert told["lower"] is None
    assert told["level"] is None
    assert told["caveats"][0]["code"] == "published-method"
    assert "(95 %" not in told["sentence"]
    shown = run("whatif", tmp_path / "b", "--effect", "turbine", "--change", "boiler.valve=1").stdout
    assert "the published method cannot recover" in " ".join(shown.split())


def test_bench_times_fits_and_questions() -> None:
    told = strict(run("bench", "--units", "2", "--units", "3", "--rows", "200", "--format", "json").stdout)
    assert [(each["units"], each["rows"]) for each in told["plants"]] == [(2, 201), (3, 201)]
    for each in told["plants"]:
        assert min(each[name] for name in ("fit", "first", "again", "forecast", "explain", "kilobytes")) > 0
    assert "3 units" in run("bench", "--units", "3", "--rows", "200").stdout
    assert "--units 1: give 2 to 32" in refused("bench", "--units", "1")


@pytest.mark.parametrize(
    "broken",
    [
        "import counterflow.plant.recording as r\n"
        "def save(self, path): path.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "r.Recording.save = save\n"
        "sys.argv = ['counterflow', 'simulate', '--out', 'deep/r.safetensors', '--steps', '20']\n",
        "import counterflow.fits.training as r\n"
        "def fit(*a, **k): os.kill(os.getpid(), signal.SIGINT); time.sleep(9)\n"
        "r.fit = fit\n"
        "sys.argv = ['counterflow', 'fit', 'FEDERATION', '--out', 'fit']\n",
    ],
)
def test_an_interrupt_leaves_nothing_half_written(place: Path, tmp_path: Path, broken: str) -> None:
    code = "import os, signal, sys, time\nimport counterflow.cli as cli\n" + broken + "cli.main()\n"
    code = code.replace("'FEDERATION'", repr(str(place / "federation.toml")))
    done = script(code, tmp_path)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
