"""Hostile input is refused in our own words, with the argument's name; nothing comes back as a silent NaN."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import EXACT

from counterflow.errors import CounterflowError, DataError, ModelError, UnstableError
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


BAD = [
    ("y", np.zeros((6, 2)), DataError, r"y must have shape \(T\+1, 3\); got \(6, 2\)"),
    ("y", np.zeros(6), DataError, "y must have shape"),
    ("y", np.zeros((0, 3)), DataError, "y"),
    ("y", np.zeros((6, 3), dtype=complex), DataError, "y must hold real numbers"),
    ("y", np.full((6, 3), "x", dtype=object), DataError, "y must hold real numbers"),
    ("y", [[1.0, 2.0, 3.0], [1.0]], DataError, "y must be a rectangular"),
    ("y", _changed(GOOD["y"], (2, 1), np.inf), DataError, r"y\[2, 1\] is infinite"),
    ("y", np.full((6, 3), 1e200), DataError, "overflow"),
    ("u", np.zeros((5, 1)), DataError, r"u must have shape \(6, 1\); got \(5, 1\)"),
    ("u", _changed(GOOD["u"], (3, 0), np.nan), DataError, r"u must be finite; entry \(3, 0\) is nan"),
    ("u", _changed(GOOD["u"], (3, 0), np.inf), DataError, "u must be finite"),
    ("A", np.zeros((2, 3)), ModelError, "A must have shape"),
    ("A", np.zeros((0, 0)), ModelError, "A must have shape"),
    ("A", np.full((2, 2), np.nan), ModelError, "A must be finite"),
    ("B", np.ones((3, 1)), ModelError, "B must have shape"),
    ("C", np.ones((3, 3)), ModelError, "C must have shape"),
    ("C", np.ones((0, 2)), ModelError, "C must have at least one row"),
    ("Q", np.eye(3), ModelError, "Q must have shape"),
    ("Q", np.array([[1.0, 0.5], [0.0, 1.0]]), ModelError, "Q must be symmetric"),
    ("Q", np.array([[1.0, 2.0], [2.0, 1.0]]), ModelError, "Q must be positive semidefinite"),
    ("Q", np.diag([1.0, -1.0]), ModelError, "Q must not have negative variances"),
    ("R", np.eye(2), ModelError, "R must have shape"),
    ("R", np.diag([1.0, 1.0, 0.0]), ModelError, "R must be positive definite"),
    ("R", np.ones((3, 3)), ModelError, "R must be positive definite"),
    ("R", np.ones((6, 3)), ModelError, "R must have shape"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), BAD)
def test_bad_argument_is_named(name, value, error, text):
    with pytest.raises(error, match=text):
        kalman_filter(**{**GOOD, name: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [("initial_mean", np.zeros(3)), ("initial_mean", [np.nan, 0]), ("initial_covariance", np.eye(3)),
     ("initial_covariance", -np.eye(2)), ("initial_covariance", np.array([[1.0, 0.2], [0.0, 1.0]]))],
)  # fmt: skip
def test_bad_start_is_named(option, value):
    with pytest.raises(ModelError, match=option):
        kalman_filter(**GOOD, **{option: value})


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


def test_the_smoother_refuses():
    result = kalman_filter(**GOOD)
    with pytest.raises(ModelError, match=r"A must have shape \(2, 2\)"):
        rts_smoother(result, np.eye(3))
    with pytest.raises(ModelError, match="Q must be given"):
        rts_smoother(result, GOOD["A"], covariances=True)
