"""What has no finite answer is refused with its reason; edges of what has one."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import EXACT

from counterflow.errors import CounterflowError, DataError, UnstableError
from counterflow.filtering import kalman_filter, rts_smoother

GOOD = {
    "y": np.zeros((6, 3)),
    "u": np.zeros((6, 1)),
    "A": 0.5 * np.eye(2),
    "B": np.ones((2, 1)),
    "C": np.ones((3, 2)),
    "Q": np.eye(2),
    "R": np.eye(3),
}


def _changed(array, place, value):
    array = np.array(array, dtype=float)
    array[place] = value
    return array


def test_rows_too_large_for_double_precision_are_refused():
    with pytest.raises(DataError, match="overflow"):
        kalman_filter(**{**GOOD, "y": np.full((6, 3), 1e200)})


def test_unstable_mode_that_nobody_measures_is_named():
    model = {**GOOD, "A": np.diag([1.0, 0.5]), "C": np.array([[0.0, 1.0]] * 3)}
    with pytest.raises(UnstableError, match="eigenvalue 1 does not decay and no measurement sees it"):
        kalman_filter(**model)
    given = kalman_filter(**model, initial_covariance=np.eye(2))  # with a start there is an answer
    assert np.isfinite(given.filtered).all()


def test_last_row_of_inputs_is_never_used():
    result = kalman_filter(**{**GOOD, "u": _changed(GOOD["u"], (5, 0), np.nan)})
    assert np.isfinite(result.filtered).all()
    assert np.isfinite(result.log_likelihood)


def test_one_row_one_state_and_integer_input_are_fine():
    one = np.eye(1, dtype=int)
    result = kalman_filter(np.array([[2]]), np.zeros((1, 0)), 0 * one, np.zeros((1, 0)), one, one, one)
    assert result.predicted.tolist() == [[0.0]]
    np.testing.assert_allclose(result.filtered, 1.0, rtol=EXACT)
    np.testing.assert_allclose(rts_smoother(result, 0 * one).smoothed, 1.0, rtol=EXACT)


def test_all_missing_is_a_prediction():
    result = kalman_filter(**{**GOOD, "y": np.full((6, 3), np.nan)}, initial_mean=np.ones(2))
    np.testing.assert_array_equal(result.filtered, result.predicted)
    np.testing.assert_allclose(result.filtered[:, 0], 0.5 ** np.arange(6))
    assert result.log_likelihood == 0.0


def test_unobserved_unstable_state_overflows_with_a_reason():
    model = {**GOOD, "A": 1e3 * np.eye(2), "y": np.full((300, 3), np.nan), "u": np.ones((300, 1))}
    with pytest.raises(CounterflowError):
        kalman_filter(**model, initial_covariance=np.zeros((2, 2)))
