"""Where a plant changed: every kernel against plain least squares on rows, and what is a change and what is none."""

from __future__ import annotations

import numpy as np
import pytest

from counterflow.learning import regimes
from counterflow.learning.regimes import (
    CLEAR,
    COST,
    MOST_DIFFERENCES,
    RIDGE,
    Change,
    difference_gains,
    find_change,
    gain_at,
    recursive_errors,
    refined,
    robust_weights,
    scan,
    windowed,
)

OWNER = np.array([0, 1])


def rows_of(T=600, seed=0, change=None, after=0.5, shock=()):
    """Two numbers, a driven by u and b by a: features (T, s) of each, and targets (T, 2).

    From row ``change`` on, b feels a by ``after`` in place of 1. ``shock``: (row, size) of what is read of a in one row
    only.
    """
    rng = np.random.default_rng(seed)
    u, y = rng.standard_normal(T + 2), np.zeros((T + 2, 2))
    for t in range(1, T + 2):
        gain = after if change is not None and t >= change + 2 else 1.0
        e = 0.1 * rng.standard_normal(2)
        y[t, 0] = 0.8 * y[t - 1, 0] + 0.5 * u[t - 1] + e[0]
        y[t, 1] = 0.7 * y[t - 1, 1] + gain * (2.0 + y[t - 1, 0]) + e[1]
    for row, size in shock:
        y[row + 2, 0] += size
    now, past = y[2:], y[1:-1]
    one = np.ones((T, 1))
    return [np.hstack([past[:, :1], u[1:-1, None], one]), np.hstack([past, y[:-2, 1:], one])], now


def found_in(x, y):
    return find_change(lambda i, at: x[i], y, OWNER)


def plain_gain(x, y, at):
    """The best net gain of differences by forward selection, with plain least squares on rows."""
    T, s = x.shape
    later = (np.arange(T) >= at)[:, None]

    def left(columns):
        design = np.hstack([x, (x * later)[:, columns]])
        return float(np.square(y - design @ np.linalg.lstsq(design, y, rcond=None)[0]).sum())

    taken, best, none = [], 0.0, left([])
    for _ in range(min(MOST_DIFFERENCES, s)):
        taken.append(min((j for j in range(s) if j not in taken), key=lambda j: left([*taken, j])))
        best = max(best, 0.5 * T * np.log(none / left(taken)) - COST * len(taken))
    return best


@pytest.mark.parametrize("change", [None, 300])
@pytest.mark.parametrize("number", [0, 1])
def test_the_gain_of_a_difference_is_that_of_least_squares_on_rows(number, change):
    x, y = rows_of(change=change)
    places = np.array([150, 300, 420])
    found = scan(x[number], y[:, number], np.ones(len(y)), places)
    wanted = [plain_gain(x[number], y[:, number], at) for at in places]
    assert found == pytest.approx(wanted, rel=1e-3, abs=0.02)  # it has a small ridge
    assert (found[1] > 50) == (change is not None and number == 1)


def test_what_any_division_of_the_rows_gains_is_no_change():
    rng = np.random.default_rng(0)
    level = np.repeat(rng.standard_normal(24), 25)  # something that features do not follow, 25 rows at a time
    x = np.hstack([rng.standard_normal((600, 1)), np.ones((600, 1))])
    y = x[:, 0] * (1 + level) + 0.1 * rng.standard_normal(600)
    at = max(range(120, 480, 12), key=lambda row: plain_gain(x, y, row))
    assert plain_gain(x, y, at) > 1.5 * CLEAR
    assert gain_at(x, y, at) < CLEAR
    changed = y + 4 * x[:, 0] * (np.arange(600) >= at)
    assert gain_at(x, changed, at) > CLEAR
    again = changed - 4 * x[:, 0] * (np.arange(600) >= 540)
    assert gain_at(x, again, at, [540]) > gain_at(x, again, at)


def test_a_difference_that_hardly_moves_a_number_counts_little():
    rng = np.random.default_rng(0)
    x = np.hstack([rng.standard_normal((600, 1)), np.ones((600, 1))])
    y = x[:, 0] + 0.01 * x[:, 0] * (np.arange(600) >= 300) + 0.003 * rng.standard_normal(600)
    assert plain_gain(x, y, 300) > 10 * CLEAR
    assert 0 < gain_at(x, y, 300) < CLEAR
    y = y + 5.0 * (np.arange(600) >= 300)  # a level that moves is no larger size that it would be measured by
    assert gain_at(x, y, 300) > CLEAR


def test_gains_of_parts_that_hold_nothing_are_zero():
    x, y = rows_of(T=100)
    both = np.hstack([x[0], y[:, :1]])
    whole = both.T @ both
    assert difference_gains(whole, np.stack([np.zeros_like(whole), whole]), 100).tolist() == [0.0, 0.0]


def test_errors_are_those_of_regressions_on_the_rows_before():
    x, y = rows_of(T=300)
    edges = np.arange(0, 301, 50)
    weights = np.linspace(0.5, 1.0, 300)
    found = recursive_errors(x[1], y[:, 1], weights, edges)
    assert not found[:50].any()
    for t in (50, 99, 100, 299):
        n = 50 * (t // 50)
        V, X, target = np.diag(weights[:n]), x[1][:n], y[:n, 1]
        inverse = np.linalg.inv(X.T @ V @ X + RIDGE * n * np.eye(X.shape[1]))
        w = inverse @ X.T @ V @ target
        left = (target @ V @ target - target @ V @ X @ w) / (n - X.shape[1])
        row = x[1][t]
        assert found[t] == pytest.approx((y[t, 1] - row @ w) / np.sqrt(left * (1 + row @ inverse @ row)), rel=1e-6)


def test_a_window_counts_what_is_beyond_the_usual():
    errors = np.zeros(20)
    errors[10:12] = 4.0, 100.0
    rows = np.minimum(0.5 * (errors**2 - 1), regimes.CAPPED)
    wanted = [max(rows[t : t + regimes.WINDOW].sum() - regimes.USUAL, 0.0) for t in range(20)]
    assert windowed(errors) == pytest.approx(wanted)
    assert windowed(errors)[10] > regimes.SURPRISING > windowed(errors)[12]


def test_rows_far_off_count_less():
    x, y = rows_of(shock=[(200, 50.0)])
    weights = robust_weights(x[0], y[:, 0])
    assert weights[200] < 0.05
    assert np.median(weights) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_a_steady_plant_has_not_changed(seed):
    assert found_in(*rows_of(seed=seed)) is None


@pytest.mark.parametrize(("seed", "at"), [(0, 90), (1, 300), (2, 510)])
def test_a_change_is_found_in_its_row_and_its_unit(seed, at):
    change = found_in(*rows_of(seed=seed, change=at))
    assert isinstance(change, Change)
    assert change.units[0] == 1
    assert abs(change.at - at) <= 2


def test_a_change_without_a_jump_is_refined_by_the_rows_near_it():
    """Gains about zero mean: the level stays, and only the movement tells."""
    rng = np.random.default_rng(3)
    T, at = 600, 260
    x = np.hstack([rng.standard_normal((T, 2)), np.ones((T, 1))])
    y = x @ [1.0, 0.5, 0.0] + 0.3 * rng.standard_normal(T)
    y[at:] -= 0.6 * x[at:, 0]
    assert abs(refined([x], y[:, None], at + 40, 60) - at) <= 10
    assert gain_at(x, y, at) > gain_at(x, y, at + 100) > 20


def test_spikes_are_no_change():
    x, y = rows_of(shock=[(150, 8.0), (333, -12.0), (470, 9.0)])
    assert found_in(x, y) is None


def test_what_happens_near_an_end_is_not_told():
    x, y = rows_of(change=590)
    assert found_in(x, y) is None
    x, y = rows_of(T=100, change=50)
    assert found_in(x, y) is None
