"""The filter and the smoother against a plain loop at every row, and against the dense joint Gaussian."""

from __future__ import annotations

import numpy as np
import pytest
from filter_twins import covariances, dense, model, plain_loop, plain_smoother, record
from tolerances import EXACT, LONG

from counterflow.errors import CounterflowError, DataError, UnstableError
from counterflow.filtering import kalman_filter, rts_smoother, smoothed_states
from counterflow.filtering.covariances import lyapunov

T = 3000


def _no_holes(y, rng):
    pass


def _gaps(y, rng):
    y[0] = y[2500] = np.nan
    y[500:600] = np.nan
    y[1000:1004] = np.nan
    y[1200:2200, 0] = np.nan


def _random(y, rng):
    y[rng.random(y.shape) < 0.3] = np.nan


def _random_rows(y, rng):
    y[rng.random(len(y)) < 0.3] = np.nan


def _integrator(rng):
    m = model(rng)
    m.A = np.array([[1.0, 0.1, 0.0], [0.0, 0.8, 0.1], [0.0, 0.0, 0.5]])
    return m


def _singular_noise(rng):
    m = model(rng)
    m.Q = np.diag([1.0, 0.0, 0.0])
    return m


def _no_process_noise(rng):
    m = model(rng)
    m.Q = np.zeros((3, 3))
    return m


CASES = {
    "plain": (model, 0.0, _no_holes),
    "large means": (model, 1e6, _no_holes),
    "near unit root": (lambda rng: model(rng, radius=0.9999), 0.0, _no_holes),
    "unit root": (_integrator, 0.0, _no_holes),
    "unit root, large means": (_integrator, 1e6, _gaps),
    "rank-deficient C": (lambda rng: model(rng, rank=2), 0.0, _no_holes),
    "C zero": (lambda rng: model(rng, rank=0), 0.0, _no_holes),
    "fewer measurements than states": (lambda rng: model(rng, P=5, D=2), 0.0, _no_holes),
    "one state": (lambda rng: model(rng, P=1, D=1, U=1), 0.0, _no_holes),
    "no inputs": (lambda rng: model(rng, U=0), 0.0, _no_holes),
    "wide": (lambda rng: model(rng, P=8, D=32, U=4), 0.0, _no_holes),
    "singular Q": (_singular_noise, 0.0, _gaps),
    "no process noise": (_no_process_noise, 0.0, _no_holes),
    "gaps": (model, 0.0, _gaps),
    "gaps, large means": (model, 1e6, _gaps),
    "gaps, near unit root": (lambda rng: model(rng, radius=0.9999), 0.0, _gaps),
    "random missing": (model, 0.0, _random),
    "random missing, wide": (lambda rng: model(rng, P=4, D=12), 1e3, _random),
    "random rows missing": (model, 0.0, _random_rows),
}


def close_in_every_row(actual, expected, tolerance):
    """Relative to the size of the row, or to the usual size where a row happens to be near zero."""
    axes = tuple(range(1, expected.ndim))
    size = np.abs(expected).max(axis=axes)
    size = np.maximum(size, np.median(size))
    assert (np.abs(actual - expected).max(axis=axes) <= tolerance * size).all()


@pytest.mark.parametrize("name", CASES)
def test_every_row_equals_the_plain_loop(name):
    make, mean, holes = CASES[name]
    rng = np.random.default_rng(20)
    m = make(rng)
    y, u, _ = record(rng, m, T, mean)
    holes(y, rng)
    P = len(m.A)
    m0 = np.full(P, mean) + rng.normal(size=P)
    P0 = 3.0 * np.eye(P) + 0.5
    args = (y, u, m.A, m.B, m.C, m.Q, m.R)
    result = kalman_filter(*args, initial_mean=m0, initial_covariance=P0)
    twin = plain_loop(y, u, m, m0, P0)
    close_in_every_row(result.predicted, twin.predicted, LONG)
    close_in_every_row(result.filtered, twin.filtered, LONG)
    both = twin.predicted_covariance, twin.filtered_covariance
    for ours, theirs in zip(covariances(result), both, strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=LONG * scale)
        assert (ours == ours.transpose(0, 2, 1)).all()
    # Residuals are differences of numbers of the size of y, which an integrator with a mean input takes to 1e9.
    rounding = max(LONG, 2e-18 * np.nanmax(np.abs(y)))
    np.testing.assert_allclose(result.log_likelihood, twin.log_likelihood, rtol=rounding)


@pytest.mark.parametrize("name", [name for name in CASES if "process noise" not in name and name != "singular Q"])
def test_smoother_equals_the_plain_loop(name):
    make, mean, holes = CASES[name]
    rng = np.random.default_rng(21)
    m = make(rng)
    y, u, _ = record(rng, m, T, mean)
    holes(y, rng)
    part = slice(400, 801)  # has a gap and single rows to cross
    y, u = y[part], u[part]
    P = len(m.A)
    P0, m0 = np.eye(P), np.full(P, mean)
    result = kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R, initial_mean=m0, initial_covariance=P0)
    smooth = rts_smoother(result, m.A, m.Q, covariances=True)
    xs, Ps, lags = plain_smoother(plain_loop(y, u, m, m0, P0), m)
    close_in_every_row(smooth.smoothed, xs, LONG)
    np.testing.assert_allclose(smooth.covariance, Ps, rtol=0, atol=LONG * np.abs(Ps).max())
    np.testing.assert_allclose(smooth.covariance_sum, Ps.sum(axis=0), rtol=LONG, atol=LONG * np.abs(Ps).max())
    np.testing.assert_allclose(smooth.lag_covariance_sum, lags.sum(axis=0), rtol=LONG, atol=LONG * np.abs(Ps).max())
    np.testing.assert_array_equal(smooth.first_covariance, smooth.covariance[0])
    np.testing.assert_array_equal(smooth.last_covariance, smooth.covariance[-1])
    np.testing.assert_array_equal(smooth.smoothed[-1], result.filtered[-1])


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("kind", ["plain", "singular Q", "no Q", "D < P", "one row"])
def test_smoother_and_likelihood_equal_the_dense_gaussian(kind, missing):
    rng = np.random.default_rng(3)
    m = model(rng, P=4, D=2) if kind == "D < P" else model(rng)
    if kind in ("singular Q", "no Q"):
        m.Q = np.diag([1.0, 0.0, 0.0]) * (kind == "singular Q")
    last = 0 if kind == "one row" else 40
    y, u, _ = record(rng, m, last)
    P = len(m.A)
    if missing:
        y[10:20] = np.nan
        y[rng.random(y.shape) < 0.2] = np.nan
    m0, P0 = rng.normal(size=P), np.eye(P) + 0.3
    result = kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R, initial_mean=m0, initial_covariance=P0)
    smooth = rts_smoother(result, m.A, m.Q, covariances=True)
    means, joint, loglik = dense(y, u, m, m0, P0)
    np.testing.assert_allclose(result.log_likelihood, loglik, rtol=LONG)
    np.testing.assert_allclose(smooth.smoothed, means, rtol=0, atol=LONG * np.abs(means).max())
    for t in range(last + 1):
        np.testing.assert_allclose(smooth.covariance[t], joint[t, :, t], rtol=0, atol=LONG)
    lags = sum((joint[t + 1, :, t] for t in range(last)), np.zeros((P, P)))
    np.testing.assert_allclose(smooth.lag_covariance_sum, lags, rtol=0, atol=LONG)


def test_innovations_are_white_under_the_true_model():
    rng = np.random.default_rng(5)
    m = model(rng)
    y, u, _ = record(rng, m, 20_000, start=np.zeros(3))
    i = kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R).innovations
    bound = 5 / np.sqrt(len(i))
    np.testing.assert_allclose(i.T @ i / len(i), np.eye(3), atol=2 * bound)
    np.testing.assert_allclose(i[1:].T @ i[:-1] / len(i), 0, atol=bound)


def test_start_is_stationary_or_vague():
    rng = np.random.default_rng(6)
    m = model(rng)
    y, u, _ = record(rng, m, 50)
    predicted, _ = covariances(kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R))
    np.testing.assert_allclose(predicted[0], lyapunov(m.A, m.Q), rtol=EXACT)
    m = _integrator(rng)
    predicted, filtered = covariances(kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R))
    # Wide for the integrator: one row of measurements takes away nearly all of it.
    assert filtered[0, 0, 0] / predicted[0, 0, 0] < 1e-4


def test_memory_of_the_covariances_is_that_of_the_transient():
    rng = np.random.default_rng(7)
    m = model(rng)
    y, u, _ = record(rng, m, T)
    result = kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R)
    assert len(result.runs) < 200
    assert result.runs[-1].stop == T + 1


def test_rows_do_not_depend_on_how_they_are_cut(monkeypatch):
    rng = np.random.default_rng(8)
    m = model(rng)
    y, u, _ = record(rng, m, T)
    _random(y, rng)
    whole = kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R)
    monkeypatch.setattr("counterflow.filtering.kalman._CHUNK", 700)
    monkeypatch.setattr("counterflow.filtering.compression._AT_ONCE", 3)
    cut = kalman_filter(y, u, m.A, m.B, m.C, m.Q, m.R)
    np.testing.assert_allclose(cut.filtered, whole.filtered, rtol=LONG, atol=LONG)
    np.testing.assert_allclose(cut.log_likelihood, whole.log_likelihood, rtol=EXACT)


def test_nothing_given_is_changed():
    rng = np.random.default_rng(9)
    m = model(rng)
    y, u, _ = record(rng, m, 30)
    given = [np.array(a) for a in (y, u, m.A, m.B, m.C, m.Q, m.R)]
    kalman_filter(*given)
    for before, after in zip((y, u, m.A, m.B, m.C, m.Q, m.R), given, strict=True):
        np.testing.assert_array_equal(before, after)


# ---- what has no finite answer, and edges of what has one


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
    np.testing.assert_allclose(smoothed_states(result, 0 * one), 1.0, rtol=EXACT)


def test_all_missing_is_a_prediction():
    result = kalman_filter(**{**GOOD, "y": np.full((6, 3), np.nan)}, initial_mean=np.ones(2))
    np.testing.assert_array_equal(result.filtered, result.predicted)
    np.testing.assert_allclose(result.filtered[:, 0], 0.5 ** np.arange(6))
    assert result.log_likelihood == 0.0


def test_unobserved_unstable_state_overflows_with_a_reason():
    model = {**GOOD, "A": 1e3 * np.eye(2), "y": np.full((300, 3), np.nan), "u": np.ones((300, 1))}
    with pytest.raises(CounterflowError):
        kalman_filter(**model, initial_covariance=np.zeros((2, 2)))
