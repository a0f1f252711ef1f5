"""The paper's own route: one model of all raw data, divided among the units."""

from __future__ import annotations

import numpy as np
import pytest
from subspace_oracle import distance, response
from tolerances import EXACT

from counterflow.errors import DataError, OptionError
from counterflow.paper.pooled import assign_states, pooled_model
from counterflow.plant import Recording, random_plant


@pytest.fixture(scope="module")
def recording():
    plant = random_plant(units=["boiler", "turbine", "pump"], states=2, outputs=4, coupling=0.1, rng=3)
    return plant.simulate(6000, rng=4)


def with_y(recording, name, y):
    """The recording with other measurements of one unit."""
    data = {n: (y if n == name else recording[n].y, recording[n].u) for n in recording.names}
    return Recording.from_arrays(data)


def test_every_unit_gets_a_state_and_ties_go_to_the_first():
    owner, moved = assign_states(np.array([[3.0, 1.0, 1.0], [2.0, 2.0, 1.0], [5.0, 0.0, 4.0], [1.0, 0.0, 0.5]]))
    assert owner.tolist() == [0, 1, 2, 0]
    assert moved == ((1, 1), (2, 2))
    assert assign_states(np.ones((3, 3)))[0].tolist() == [1, 2, 0]
    assert assign_states(np.zeros((2, 2)))[0].tolist() == [1, 0]
    with pytest.raises(OptionError, match="2 states cannot be divided among 3"):
        assign_states(np.ones((2, 3)))


@pytest.mark.parametrize("basis", ["canonical", "modal"])
def test_blocks_energy_and_refit(recording, basis):
    model = pooled_model(recording, 6, basis=basis)
    names = list(recording.names)
    assert list(model.owners) == sorted(model.owners, key=names.index)
    rows = np.repeat(np.arange(3), [recording[unit].y.shape[1] for unit in names])
    owner = np.array([names.index(name) for name in model.owners])
    for matrix, left in ((model.C, rows), (model.Q, owner), (model.R, rows)):
        assert not matrix[left[:, None] != (owner if matrix is model.C else left)].any()
    assert np.linalg.eigvalsh(model.Q)[0] > 0
    assert np.linalg.eigvalsh(model.R)[0] > 0
    np.testing.assert_allclose(model.energy.sum(axis=1), 1.0, rtol=EXACT)
    for m, unit in enumerate(names):
        assert model.locals[unit].states == model.owners.count(unit) > 0
        np.testing.assert_array_equal(model.locals[unit].A, model.A[np.ix_(owner == m, owner == m)])
        np.testing.assert_array_equal(model.locals[unit].C, model.C[np.ix_(rows == m, owner == m)])
    # A is that of the identified model in other coordinates, because its own states obey it
    eigenvalues = (np.sort_complex(np.linalg.eigvals(A)) for A in (model.A, model.source.A))
    np.testing.assert_allclose(*eigenvalues, atol=0.02)
    own = model.energy[np.arange(6), owner]
    assert (own == model.energy.max(axis=1)).all() or model.repaired
    assert own.min() - 1e-9 <= model.kept <= own.max() + 1e-9


def test_uncoupled_units_are_told_apart_by_their_modes():
    plant = random_plant(units=["a", "b"], states=2, outputs=5, coupling=0.0, rng=1)
    model = pooled_model(plant.simulate(20_000, rng=2), 4, basis="modal")
    assert model.owners == ("a", "a", "b", "b")
    assert model.kept > 0.98
    unscaled = response(model.A, model.B / model.input_scale, model.output_scale[:, None] * model.C)
    assert distance(unscaled, response(plant.A, plant.B, plant.C)) < 0.05


def test_channels_that_do_not_move_and_gaps(recording):
    y = np.column_stack([recording["pump"].y, np.full(recording.rows, 7.0)])
    y[1000:1010] = np.nan
    model = pooled_model(with_y(recording, "pump", y))
    assert model.output_scale[-1] == 1.0
    assert not model.C[-1].any()
    assert len(model.owners) >= 3


def test_refusals(recording):
    with pytest.raises(OptionError, match="one state for each of the 3 units"):
        pooled_model(recording, 2)
    with pytest.raises(OptionError, match="basis"):
        pooled_model(recording, basis="other")
    with pytest.raises(DataError, match="no row"):
        pooled_model(with_y(recording, "pump", np.full_like(recording["pump"].y, np.nan)))
