"""Bytes of a round to the last one, exponents, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn

from counterflow.fits.training import fit
from counterflow.paper import couplings
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.experiments import overhead
from counterflow.paper.experiments.experiment import Claim, Outcome, Request, Task
from counterflow.paper.experiments.overhead import AXES, BASE, EXPERIMENT
from counterflow.plant import random_plant


def computed(**changes: int) -> Outcome:
    settings = {**BASE, "axis": "units", "rounds": 5, "run": 0, "steps": 100, "units": 2, **changes}
    task = Task("overhead", settings)
    return Outcome(task, EXPERIMENT.compute(task), 0.1)


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
    for task in EXPERIMENT.tasks(Request(quick=True)):
        axis = task["axis"]
        values: dict[str, Any] = {"raw": 1e9, "sufficient/bytes": 1e5, "total": 1e7}
        # whatever machine: seconds that go with the count of multiplications, unless told otherwise
        worked = {**{f"server/{a}": overhead.counted(a, "server") for a in AXES}}
        worked |= {f"unit/{a}": overhead.counted(a, "unit") for a in AXES}
        for key in ("bytes", "server", "unit"):
            power = powers.get(key, {}).get(axis, worked.get(f"{key}/{axis}", 0.0))
            values[key] = (1 + 0.001 * task["run"]) * float(task[axis]) ** power
        outcomes.append(Outcome(task, values, 0.1))
    return outcomes


def verdicts(powers: dict[str, dict[str, float]], **changes: float) -> dict[str, str]:
    outcomes = [Outcome(o.task, {**o.values, **changes}, 0.1) for o in made(powers)]
    return {claim.subject: claim.verdict for claim in EXPERIMENT.claims(outcomes)}


COUNTED = {  # by multiplications alone, whatever the seconds
    "Work of the server in a round against T",
    "Work of a client in a round against D_m",
}


def test_what_grows_no_faster_than_the_formulas_agrees() -> None:
    found = verdicts({"bytes": {"units": 2.0, "states": 1.0, "inputs": 1.0}})
    assert {name for name, verdict in found.items() if verdict == "does not hold"} == COUNTED
    assert {v for name, v in found.items() if name not in COUNTED} == {"agrees", "beyond the paper"}


@pytest.mark.parametrize(
    ("axis", "power", "subject"),
    [
        ("units", 2.5, "Bytes of a round against M"),
        ("states", 1.5, "Bytes of a round against P_m"),
        ("inputs", 1.5, "Bytes of a round against U_m"),
        ("outputs", 0.5, "Bytes of a round against D_m"),
        ("steps", 1.0, "Bytes of a round against T"),
    ],
)
def test_bytes_that_grow_faster_do_not_hold(axis: str, power: float, subject: str) -> None:
    found = verdicts({"bytes": {axis: power}})
    assert {name for name, verdict in found.items() if verdict == "does not hold"} == COUNTED | {subject}


@pytest.mark.parametrize(
    ("key", "axis", "power", "subject"),
    [
        ("server", "units", 4.5, "Work of the server in a round against M"),
        ("server", "states", 2.5, "Work of the server in a round against P_m"),
        ("server", "inputs", 2.5, "Work of the server in a round against U_m"),
        ("server", "outputs", 0.5, "Work of the server in a round against D_m"),
        ("server", "steps", 0.0, "Work of the server in a round against T"),
        ("unit", "steps", 1.5, "Work of a client in a round against T"),
        ("unit", "states", 2.5, "Work of a client in a round against P_m"),
        ("unit", "outputs", 0.0, "Work of a client in a round against D_m"),
    ],
)
def test_seconds_alone_decide_nothing(key: str, axis: str, power: float, subject: str) -> None:
    before, after = verdicts({}), verdicts({key: {axis: power}})
    assert {name for name in before if before[name] != after[name]} == {subject}
    assert after[subject] == "undecided"


def test_multiplications_are_those_of_the_products_of_a_round() -> None:
    counting = Counting.total = 0
    settings = {"units": 3, "states": 2, "inputs": 1, "outputs": 4, "steps": 30}
    plant = random_plant(units=3, states=2, inputs=1, outputs=4, rng=0)
    recording = plant.simulate(30, rng=1)
    found = fit(recording, plant.locals(), method="penalty", rounds=1)
    data = {n: ClientData.from_part(found.parts[n], recording[n].y, recording[n].u) for n in plant.names}
    T, P, U = 30, 6, 3
    evidence = SimpleNamespace(
        refined=np.hstack([data[n].refined for n in plant.names]).view(Counting),
        u=np.hstack([data[n].inputs for n in plant.names]).view(Counting),
        base=np.zeros((T, P)), ones=np.ones(T), A_local=np.ones((P, P)).view(Counting), steps=T,
        cross_A=np.ones((P, P), bool), cross_B=np.ones((P, U), bool),
    )  # fmt: skip
    residual = couplings.residuals(evidence, np.ones((T, P)), np.ones(P), np.ones((P, P)), np.ones((P, U)))  # type: ignore[arg-type]
    dual = np.ones((T, P)).view(Counting)
    couplings.coupling_gradients(evidence, residual, dual)  # type: ignore[arg-type]
    couplings.state_gradients(evidence, residual, dual)  # type: ignore[arg-type]
    assert Counting.total - counting == overhead.multiplications(settings)["server"]
    name = plant.names[0]
    model, own = plant.local(name), data[name]
    C, A = (SimpleNamespace(value=getattr(model, x).view(Counting)) for x in "CA")
    counted = replace(own, previous=own.previous.view(Counting), measured=own.measured.view(Counting))
    augmented = AugmentedModel(SimpleNamespace(A=A.value, B=model.B, C=C.value), counted)  # type: ignore[arg-type]
    assert augmented.base is not None  # computed once, not in every round
    Counting.total = 0
    states = augmented.states(np.ones((2, 4)).view(Counting), np.zeros(2))
    augmented.loss_and_gradients(states)
    augmented.chain_rule(np.ones((T, 2)).view(Counting), np.ones((T, 2)).view(Counting))
    small = 2 * T * 2  # residuals and gradients summed over rows, which the count leaves out
    assert Counting.total == overhead.multiplications(settings)["unit"] + small


class Counting(np.ndarray):
    """An array that counts the multiplications of the matrix products that it takes part in."""

    total = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(each) for each in inputs]
        if ufunc is np.matmul:
            rows = plain[0].shape[0] if plain[0].ndim > 1 else 1
            Counting.total += rows * plain[1].size
        found = getattr(ufunc, method)(*plain, **{k: v for k, v in options.items() if k != "out"})
        return np.asarray(found).view(Counting)


def test_where_a_round_is_larger_than_the_raw_data_is_told_and_not_judged() -> None:
    def found(states: int) -> Claim:
        larger = [
            Outcome(o.task, {**o.values, **({"raw": 0.5} if o.task["states"] == states else {})}, 0.1) for o in made({})
        ]
        (claim,) = (c for c in EXPERIMENT.claims(larger) if c.subject == "Bytes of one round against the raw data")
        return claim

    assert {found(states).verdict for states in (1, 4, 16)} == {"beyond the paper"}
    assert "not less than them at no size" in found(1).ours
    assert "not less than them at no size" in found(16).ours, "there a unit has more states than outputs"
    assert "not less than them at P_m = 4" in found(4).ours


def test_every_size_is_measured_and_drawn() -> None:
    outcomes = made({})
    for axis, (sizes, _) in AXES.items():
        assert overhead.by_size(outcomes, axis, "bytes").shape == (overhead.REPETITIONS, len(sizes))
    assert np.isfinite(overhead.by_size(outcomes, "steps", "server")).all()
    for figure in EXPERIMENT.figures(outcomes).values():
        assert len(drawn(figure)) == len(AXES)
