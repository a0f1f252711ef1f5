"""Bytes of a round to the last one, exponents, and verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn

from counterflow.experiments import overhead
from counterflow.experiments.experiment import Outcome, Request, Task
from counterflow.experiments.overhead import AXES, BASE, OVERHEAD


def computed(**changes: int) -> Outcome:
    settings = {**BASE, "axis": "units", "rounds": 5, "run": 0, "steps": 100, "units": 2, **changes}
    task = Task("overhead", settings)
    return Outcome(task, OVERHEAD.compute(task), 0.1)


def test_a_round_carries_three_numbers_a_row_and_state_and_no_more() -> None:
    found = computed()
    payload = 8 * 2 * 3 * 100 * 2  # bytes, units, h_a up and two gradients down, rows, states
    assert payload < found.number("bytes") < payload + 2 * 1000  # heads, phi and norms
    twice = computed(steps=200)
    assert twice.number("bytes") - found.number("bytes") == pytest.approx(payload, abs=40)
    assert computed(outputs=16).number("bytes") == found.number("bytes")
    assert found.number("raw") == 8 * 2 * 101 * (8 + 2)


def test_time_is_counted_on_both_sides() -> None:
    found = computed()
    assert found.number("server") > 0
    assert found.number("unit") > 0
    assert found.number("total") > 5 * found.number("bytes")


def made(powers: dict[str, dict[str, float]]) -> list[Outcome]:
    """Values that are powers of the sizes; those not named do not depend on them."""
    outcomes = []
    for task in OVERHEAD.tasks(Request(quick=True)):
        axis = task["axis"]
        values: dict[str, Any] = {"raw": 1e9, "sufficient/bytes": 1e5, "total": 1e7}
        for key in ("bytes", "server", "unit"):
            values[key] = (1 + 0.001 * task["run"]) * float(task[axis]) ** powers.get(key, {}).get(axis, 0.0)
        outcomes.append(Outcome(task, values, 0.1))
    return outcomes


def verdicts(powers: dict[str, dict[str, float]], **changes: float) -> dict[str, str]:
    outcomes = [Outcome(o.task, {**o.values, **changes}, 0.1) for o in made(powers)]
    return {claim.subject: claim.verdict for claim in OVERHEAD.claims(outcomes)}


def test_what_grows_no_faster_than_the_formulas_agrees() -> None:
    at_most = {
        "bytes": {"units": 2.0, "states": 1.0, "inputs": 1.0},
        "server": {"units": 4.0, "states": 2.0, "inputs": 2.0},
        "unit": {"steps": 1.0, "states": 2.0},
    }
    assert set(verdicts(at_most).values()) == {"agrees"}


@pytest.mark.parametrize(
    ("key", "axis", "power", "subject"),
    [
        ("bytes", "units", 2.5, "Bytes of a round against M"),
        ("bytes", "states", 1.5, "Bytes of a round against P_m"),
        ("bytes", "inputs", 1.5, "Bytes of a round against U_m"),
        ("bytes", "outputs", 0.5, "Bytes of a round against D_m"),
        ("bytes", "steps", 1.0, "Bytes of a round against T"),
        ("server", "units", 4.5, "Seconds of the server in a round against M"),
        ("server", "states", 2.5, "Seconds of the server in a round against P_m"),
        ("server", "steps", 1.0, "Seconds of the server in a round against T"),
        ("unit", "steps", 1.5, "Seconds of a client in a round against T"),
        ("unit", "states", 2.5, "Seconds of a client in a round against P_m"),
    ],
)
def test_what_grows_faster_does_not_hold(key: str, axis: str, power: float, subject: str) -> None:
    found = verdicts({key: {axis: power}})
    assert {name for name, verdict in found.items() if verdict == "does not hold"} == {subject}


def test_a_round_that_is_larger_than_the_raw_data_is_not_compact() -> None:
    assert verdicts({}, raw=0.5)["Bytes until the answer"] == "does not hold"


def test_every_size_is_measured_and_drawn() -> None:
    outcomes = made({})
    for axis, (sizes, _) in AXES.items():
        assert overhead.by_size(outcomes, axis, "bytes").shape == (overhead.QUICK_REPETITIONS, len(sizes))
    assert np.isfinite(overhead.by_size(outcomes, "steps", "server")).all()
    for figure in OVERHEAD.figures(outcomes).values():
        assert len(drawn(figure)) == len(AXES)
