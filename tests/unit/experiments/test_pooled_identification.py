"""The paper's own route: one model of all raw data, divided among the units."""

from __future__ import annotations

import numpy as np
import pytest
from subspace_oracle import distance, response
from tolerances import EXACT

from counterflow.errors import DataError, OptionError
from counterflow.paper.pooled import assign_states, pooled_model
from counterflow.plant import random_plant


@pytest.fixture(scope="module")
def plant_and_data():
    plant = random_plant(units=["boiler", "turbine", "pump"], states=2, outputs=4, coupling=0.1, rng=3)
    recording = plant.simulate(6000, rng=4)
    return plant, {m: part.y for m, part in recording.items()}, {m: part.u for m, part in recording.items()}


def test_every_unit_gets_a_state_and_ties_go_to_the_first():
    owner, moved = assign_states([[3.0, 1.0, 1.0], [2.0, 2.0, 1.0], [5.0, 0.0, 4.0], [1.0, 0.0, 0.5]])
    assert owner.tolist() == [0, 1, 2, 0]
    assert moved == ((1, 1), (2, 2))
    assert assign_states(np.ones((3, 3)))[0].tolist() == [1, 2, 0]
    assert assign_states(np.zeros((2, 2)))[0].tolist() == [1, 0]
    with pytest.raises(OptionError, match="2 states cannot be divided among 3"):
        assign_states(np.ones((2, 3)))


@pytest.mark.parametrize("basis", ["canonical", "modal"])
def test_blocks_energy_and_refit(plant_and_data, basis):
    _, y, u = plant_and_data
    model = pooled_model(y, u, 6, basis=basis)
    assert model.units == tuple(y)
    assert set(model.owners) == set(y)
    assert list(model.owners) == sorted(model.owners, key=list(y).index)
    rows = np.repeat(np.arange(3), [y[unit].shape[1] for unit in y])
    owner = np.array([model.units.index(name) for name in model.owners])
    for matrix, left in ((model.C, rows), (model.Q, owner), (model.R, rows)):
        assert not matrix[left[:, None] != (owner if matrix is model.C else left)].any()
    assert np.linalg.eigvalsh(model.Q)[0] > 0
    assert np.linalg.eigvalsh(model.R)[0] > 0
    np.testing.assert_allclose(model.energy.sum(axis=1), 1.0, rtol=EXACT)
    assert sorted(model.columns) == list(range(6))
    for unit in model.units:
        assert model.states(unit).stop - model.states(unit).start == model.owners.count(unit)
    # A is that of the identified model in other coordinates, because its own states obey it
    eigenvalues = (np.sort_complex(np.linalg.eigvals(A)) for A in (model.A, model.source.A))
    np.testing.assert_allclose(*eigenvalues, atol=0.02)
    own = model.energy[np.arange(6), owner]
    assert (own == model.energy.max(axis=1)).all() or model.repaired
    assert own.min() - 1e-9 <= model.kept <= own.max() + 1e-9


def test_uncoupled_units_are_told_apart_by_their_modes():
    plant = random_plant(units=["a", "b"], states=2, outputs=5, coupling=0.0, rng=1)
    recording = plant.simulate(20_000, rng=2)
    y, u = ({name: getattr(part, what) for name, part in recording.items()} for what in "yu")
    model = pooled_model(y, u, 4, basis="modal")
    assert model.owners == ("a", "a", "b", "b")
    assert model.kept > 0.98
    unscaled = response(model.A, model.B / model.input_scale, model.output_scale[:, None] * model.C)
    assert distance(unscaled, response(plant.A, plant.B, plant.C)) < 0.05


def test_channels_that_do_not_move_and_gaps(plant_and_data):
    _, y, u = plant_and_data
    y = {**y, "pump": np.column_stack([y["pump"], np.full(len(y["pump"]), 7.0)])}
    y["boiler"] = y["boiler"].copy()
    y["boiler"][1000:1010] = np.nan
    model = pooled_model(y, u)
    assert model.output_scale[-1] == 1.0
    assert not model.C[-1].any()
    assert len(model.owners) >= 3


def test_refusals(plant_and_data):
    _, y, u = plant_and_data
    with pytest.raises(OptionError, match="one state for each of the 3 units"):
        pooled_model(y, u, 2)
    with pytest.raises(OptionError, match="basis"):
        pooled_model(y, u, basis="other")
    with pytest.raises(DataError, match="same units"):
        pooled_model(y, {"boiler": u["boiler"]})
    with pytest.raises(DataError, match="equally many rows"):
        pooled_model({**y, "pump": y["pump"][1:]}, u)
    with pytest.raises(DataError, match="'pump' has no measured channel"):
        pooled_model({**y, "pump": y["pump"][:, :0]}, u)
    with pytest.raises(DataError, match="no row"):
        pooled_model({**y, "pump": np.full_like(y["pump"], np.nan)}, u)
