"""Identification against statsmodels and python-control, where they compute the same thing."""

from __future__ import annotations

import control
import numpy as np
import pytest
from statsmodels.multivariate.cancorr import CanCorr
from subspace_oracle import distance, random_system, response, simulate
from tolerances import ITERATIVE

from counterflow.paper.subspace import subspace


@pytest.mark.parametrize(("r", "past", "future"), [(1, 4, 3), (3, 3, 4)])
def test_canonical_correlations_are_those_of_statsmodels(r, past, future):
    rng = np.random.default_rng(r)
    y, u = simulate(rng, *random_system(rng, 2, r, 0), 500)
    times = range(past, len(y) - future + 1)
    before = np.array([y[t - past : t].ravel() for t in times])
    ahead = np.array([y[t : t + future].ravel() for t in times])
    # statsmodels subtracts means; a record followed by its negative has none
    expected = CanCorr(np.vstack([ahead, -ahead]), np.vstack([before, -before])).cancorr
    model = subspace(y, u, 1, past=past, future=future)
    np.testing.assert_allclose(model.singular_values, expected[: len(model.singular_values)], atol=ITERATIVE)


def test_same_system_as_the_eigensystem_realization_of_control():
    rng = np.random.default_rng(5)
    A, B, C = random_system(rng, 3, 2, 2, radius=0.6)
    y, u = simulate(rng, A, B, C, 600, process=0.0, measurement=0.0)
    markov = control.markov(y.T, u.T, 60)
    era, _ = control.era(markov, 3, 25, 25)
    model = subspace(y, u, 3)
    assert distance(response(model.A, model.B, model.C), response(era.A, era.B, era.C)) < 1e-6
    ours = control.ss(model.A, model.B, model.C, np.zeros((2, 2)), True)
    impulse = control.impulse_response(ours, T=range(20)).y
    np.testing.assert_allclose(impulse[..., 1:].transpose(0, 1, 2), markov[..., 1:20], atol=1e-6)
