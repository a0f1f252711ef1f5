"""Bytes of a round to the last one, exponents, and verdicts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from counterflow.arrays import slices
from counterflow.fits.training import fit
from counterflow.paper import couplings
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.experiments import overhead
from counterflow.paper.experiments.experiment import Outcome, Task
from counterflow.paper.experiments.overhead import BASE, Overhead
from counterflow.plant import random_plant


def computed(**changes: int) -> Outcome:
    settings = {**BASE, "axis": "units", "rounds": 5, "run": 0, "steps": 100, "units": 2, **changes}
    task = Task("overhead", settings)
    return Outcome(task, Overhead.compute(task), 0.1)


def test_a_round_carries_three_numbers_a_row_and_state_and_no_more() -> None:
    found = computed()
    payload = 8 * 2 * 3 * 100 * 2  # bytes, units, h_a up and two gradients down, rows, states
    assert payload < found.array("bytes") < payload + 2 * 1000  # heads, phi and norms
    twice = computed(steps=200)
    assert twice.array("bytes") - found.array("bytes") == pytest.approx(payload, abs=40)
    assert computed(outputs=16).array("bytes") == found.array("bytes")
    assert found.array("raw") == 8 * 2 * 101 * (8 + 2)


def test_time_is_counted_on_both_sides() -> None:
    found = computed()
    assert found.array("server") > 0
    assert found.array("unit") > 0
    assert found.array("total") > 5 * found.array("bytes")


def test_multiplications_are_those_of_the_products_of_a_round() -> None:
    counting = Counting.total = 0
    settings = {"units": 3, "states": 2, "inputs": 1, "outputs": 4, "steps": 30}
    plant = random_plant(units=3, states=2, inputs=1, outputs=4, rng=0)
    recording = plant.simulate(30, rng=1)
    found = fit(recording, plant.locals(), method="penalty", rounds=1)
    data = {n: ClientData.from_rows(*found.parts[n].estimates(recording[n].y, recording[n].u)) for n in plant.names}
    T, P, U = 30, 6, 3
    evidence = SimpleNamespace(
        refined=np.hstack([data[n].refined for n in plant.names]).view(Counting),
        u=np.hstack([data[n].inputs for n in plant.names]).view(Counting),
        base=np.zeros((T, P)), ones=np.ones(T), A_local=np.ones((P, P)).view(Counting), steps=T,
        state_slices=slices([2] * 3), input_slices=slices([1] * 3),
    )  # fmt: skip
    residual = couplings.residuals(evidence, np.ones((T, P)), np.ones((T, P)), np.ones((P, P)), np.ones((P, U)))  # type: ignore[arg-type]
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
