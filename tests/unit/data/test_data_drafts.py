"""What the names of tags say, and the plant that is drafted from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars
import pytest

import counterflow as cf
from counterflow.data import Draft, draft, inspect, read_logs, sample
from counterflow.data.tags import Role, read_tag

RNG = np.random.default_rng(5)
ROWS = 200
NOISE = RNG.standard_normal((12, ROWS))
STEPS = np.repeat(RNG.standard_normal((12, ROWS // 10)), 10, axis=1)


def drafted(**columns: np.ndarray | list[str]) -> Draft:
    return draft(inspect(polars.DataFrame({"time": np.arange(ROWS), **columns})))


def units(made: Draft) -> dict[str, tuple[list[str], list[str]]]:
    sides = ((unit.name, (unit.inputs, unit.outputs)) for unit in made.units)
    return {name: tuple([channel.name for _, channel in side] for side in both) for name, both in sides}  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "area", "letters", "number", "role"),
    [
        ("FIC-101.PV", "", "FIC", "101", Role.MEASURED),
        ("fic101.sp", "", "FIC", "101", Role.TARGET),
        ("FIC_101_OP", "", "FIC", "101", Role.MOVED),
        ("10-TIC-203A/OUT", "10", "TIC", "203A", Role.MOVED),
        ("41TIC115.MV", "41", "TIC", "115", Role.MOVED),
        ("U2.LIC-2010.SV", "U2", "LIC", "2010", Role.TARGET),
        ("PIC-7001/PID1/PV.CV", "", "PIC", "7001", Role.MEASURED),
        ("FT-101.CV", "", "FT", "101", Role.MEASURED),
        ("FIC-101.CV", "", "FIC", "101", Role.MOVED),
        ("HV-12", "", "HV", "12", Role.MOVED),
        ("LIT301", "", "LIT", "301", Role.MEASURED),
        ("DPIT301", "", "DPIT", "301", Role.MEASURED),
        ("FIC-101.MODE", "", "FIC", "101", Role.MODE),
        ("\\\\SERVER\\AIT-205", "", "AIT", "205", Role.MEASURED),
        ("P1_valve", "P1", "", "", Role.MOVED),
        ("reactor temperature setpoint", "reactor", "", "", Role.TARGET),
        ("pressure", "", "", "", Role.UNKNOWN),
    ],
)
def test_tags(name: str, area: str, letters: str, number: str, role: Role) -> None:
    tag = read_tag(name)
    assert (tag.area, tag.letters, tag.number, tag.role) == (area, letters, number, role)


def test_a_loop_in_automatic_is_moved_by_its_set_point() -> None:
    made = drafted(**{"FIC-101.PV": NOISE[0], "FIC-101.SP": STEPS[0], "FIC-101.OP": NOISE[1], "TI-201": NOISE[2]})
    assert units(made) == {"area_1": (["FIC-101.SP"], ["FIC-101.PV", "FIC-101.OP"]), "area_2": ([], ["TI-201"])}
    assert any("a controller moves it" in question for question in made.questions)


def test_a_loop_by_hand_is_moved_by_its_output() -> None:
    tracking = {"FIC-101.PV": NOISE[0], "FIC-101.SP": NOISE[0], "FIC-101.OP": 50 + STEPS[0], "TI-201": NOISE[2]}
    made = drafted(**tracking)
    assert units(made)["area_1"] == (["FIC-101.OP"], ["FIC-101.PV"])
    assert "follows the measurement" in made.left_out["FIC-101.SP"]
    still = drafted(**tracking | {"FIC-101.SP": np.full(ROWS, 8.0), "FIC-101.OP": NOISE[3]})
    assert units(still)["area_1"] == (["FIC-101.OP"], ["FIC-101.PV"])


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (["10-FV-101"], ["10-FI-101", "20-TI-101"], {"area_10": 1, "area_20": 0}),
        (["FV-101", "TV-102"], ["FI-101", "TI-102"], {"unit_101": 1, "unit_102": 1}),
        (["boiler_valve"], ["boiler_pressure", "turbine_speed"], {"boiler": 1, "turbine": 0}),
        ([], ["FI-1101", "FI-1201"], {"area_11": 0, "area_12": 0}),
        (["N.A1.FV-101"], ["N.A1.FI-101", "N.A2.TI-101"], {"N_A1": 1, "N_A2": 0}),  # the whole plant's prefix
        ([], ["P1_FT01", "P4_ST_PT01", "P4_HT_PO"], {"P1": 0, "P4": 0}),
    ],
)
def test_units_by_area_equipment_number_and_prefix(
    inputs: list[str], outputs: list[str], expected: dict[str, int]
) -> None:
    columns = {name: STEPS[k] for k, name in enumerate(inputs)} | {name: NOISE[k] for k, name in enumerate(outputs)}
    found = units(drafted(**columns, attack_P1=STEPS[5]))
    assert {name: len(sides[0]) for name, sides in found.items()} == expected
    assert [each for sides in found.values() for each in sides[0]] == inputs
    assert sorted(each for sides in found.values() for each in sides[1]) == sorted(outputs)


def test_units_of_very_long_tags_have_names_that_a_unit_may_have() -> None:
    tags = {f"{'a' * 300}.{'b' * 90}-{k}.PV": NOISE[k] for k in range(3)}
    recording, _ = read_logs(polars.DataFrame({"time": np.arange(ROWS), **tags}))
    assert list(recording.parts) == list(units(drafted(**tags)))


def test_an_area_without_measurements_acts_on_its_neighbour() -> None:
    made = drafted(**{"FV-101": STEPS[0], "TI-201": NOISE[0], "LI-301": NOISE[1]})
    assert units(made) == {"area_2": (["FV-101"], ["TI-201"]), "area_3": ([], ["LI-301"])}
    assert any("Where does it act?" in question for question in made.questions)


def test_what_cannot_be_used_is_left_out_with_its_reason() -> None:
    words = ["calibrating" if k % 50 == 7 else str(value) for k, value in enumerate(NOISE[0])]
    notes = ["all is well"] * ROWS
    made = drafted(**{"TI-101": words, "note": notes, "PI-102": np.ones(ROWS), "TI-201": NOISE[1]})
    assert made.left_out == {"note": "text such as 'all is well'", "PI-102": "always 1"}
    assert made.options == {"text": "missing"}
    assert any("'calibrating' in 4 cells" in question for question in made.questions)
    labelled = drafted(**{"TI-101": NOISE[0], "attack_P1": STEPS[0]})
    assert labelled.left_out == {"attack_P1": "a label, no measurement"}
    held = drafted(load=STEPS[0], pressure=NOISE[0])
    assert units(held) == {"plant": (["load"], ["pressure"])}
    assert any(question.startswith("load repeats its value") for question in held.questions)


def test_the_sample_is_read_without_a_word() -> None:
    recording, preparation = read_logs(sample.path())
    sides = {name: (part.unit.input_names, part.unit.output_names) for name, part in recording.items()}
    assert sides == {
        "area_1": (("FIC-101.SP",), ("FIC-101.PV", "FIC-101.OP", "LI-102.PV")),
        "area_2": (("TIC-201.OP",), ("TIC-201.PV", "LI-202.PV")),
        "area_3": (("FIC-301.OP",), ("AI-302.PV", "LI-303.PV")),
    }
    assert recording["area_2"].unit.inputs[0] == cf.Channel("TIC-201.OP", "%", (0, 100))
    assert recording.rows == sample.ROWS
    log = sample.simulate()
    for part in recording.values():
        for k, name in enumerate(part.unit.output_names):
            known = np.isfinite(part.y[:, k])
            assert known.mean() > 0.97
            assert np.abs(part.y[known, k] - log.columns[name][known]).max() < 6e-4
    assert any("a controller moves it" in doubt for doubt in preparation.doubts)


def test_the_file_of_the_package_is_the_simulated_one(tmp_path: Path) -> None:
    assert sample.path().read_bytes() == sample.write(tmp_path).read_bytes()


def autumn(hour: int, day: str, lost: slice) -> polars.DataFrame:
    """Local times of a night in which an hour comes twice, without some rows of it."""
    hours = (hour - 1, hour, hour, hour + 1)
    stamps = [f"{day} {h:02d}:{m:02d}" for h in hours for m in range(0, 60, 2)]
    rows = np.delete(np.arange(len(stamps)), lost)
    level = np.random.default_rng(3).normal(size=len(stamps))
    return polars.DataFrame({"time": np.array(stamps)[rows], "TI-101": level[rows], "LI-102": level[::-1][rows]})


@pytest.mark.parametrize("lost", [slice(0, 0), slice(60, 75), slice(50, 60), slice(50, 70)])
def test_no_row_of_the_hour_that_comes_twice_is_lost(lost: slice) -> None:
    table = autumn(2, "2024-10-27", lost)
    made = draft(inspect(table))
    assert made.options["timezone"] == "Europe/Berlin"
    assert "what is the time zone" in made.questions[0]
    recording, _ = cf.read_logs(table)
    assert recording.rows == 120
    assert int(np.isfinite(next(iter(recording.parts.values())).y[:, 0]).sum()) == len(table)
    with pytest.raises(cf.DataError, match="Europe/Berlin") as caught:
        cf.read_logs(table, {"plant": {"outputs": "*-10?"}})
    assert caught.value.code == "clock-change"


@pytest.mark.parametrize("by", ["time", "tag"])
def test_values_of_a_long_table_are_not_lost_in_silence(by: str) -> None:
    wide = autumn(2, "2024-10-27", slice(60, 75)).with_row_index()
    long = wide.unpivot(["TI-101", "LI-102"], index=["index", "time"], variable_name="tag", value_name="value")
    table = long.sort(["index", "tag"] if by == "time" else ["tag", "index"]).drop("index")
    assert [note.numbers["count"] for note in inspect(table).table.notes if "the option timezone" in note.text] == [30]
    assert inspect(table, timezone="Europe/Berlin").table.notes == ()
    assert inspect(table, timezone="Europe/Berlin").table.rows == len(wide)
    same = table.filter(polars.col("time") < "2024-10-27 02")
    assert inspect(polars.concat([same, same])).table.notes == ()


def test_a_zone_that_cannot_be_told_is_asked_for() -> None:
    table = autumn(1, "2024-11-03", slice(60, 75))
    made = draft(inspect(table))
    assert "timezone" not in made.options
    assert "America/Chicago" in made.questions[0]
    with pytest.raises(cf.DataError, match="America/New_York, America/Chicago"):
        cf.read_logs(table)
    recording, _ = cf.read_logs(table, timezone="America/Denver")
    assert recording.rows == 120


def test_rows_out_of_order_or_sent_twice_are_no_change_of_the_clock() -> None:
    table = autumn(2, "2024-10-27", slice(60, 120))
    order = np.arange(len(table))
    order[[40, 41]] = order[[41, 40]]
    assert draft(inspect(table[order.tolist()])).options == {}
    twice = polars.concat([table[:50], table[40:]])
    recording, _ = cf.read_logs(twice, {"plant": {"outputs": "*-10?"}})
    assert recording.rows == len(table)


def test_a_table_that_makes_no_unit_says_why() -> None:
    for columns, reason in (
        ({}, "there is no channel beside the time"),
        ({"TI-101": [4.0] * 60}, "no channel can be used: 'TI-101' is left out (always 4)"),
        ({"FV-101": [float(k // 5 % 3) for k in range(60)]}, "no channel looks like a measurement"),
        ({"note": ["a", "b", "c"] * 20}, "no channel can be used: 'note' is left out (text such as 'a')"),
    ):
        table = polars.DataFrame({"time": list(range(60)), **columns})
        assert draft(inspect(table)).reason == reason
        with pytest.raises(cf.DataError) as caught:
            read_logs(table)
        assert f"{reason}; give units" in str(caught.value)
