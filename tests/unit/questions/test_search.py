"""The search for a plan whose outcome is nearest to a target: outcomes that bend, break, or go the wrong way."""

from __future__ import annotations

import numpy as np
import pytest

from counterflow.questions.restore_search import TRIALS, Search, within

FREE = np.inf


def searched(outcome, response, wanted, low=-FREE, high=FREE):
    response = np.atleast_2d(np.asarray(response, float))
    count, asked = response.shape[1], []

    def counted(plan):
        asked.append(plan)
        found = outcome(plan)
        return None if found is None else np.atleast_1d(np.asarray(found, float))

    bounds = (np.full(count, float(low)), np.full(count, float(high)))
    found = Search(counted, response, np.atleast_1d(np.asarray(wanted, float)), *bounds, 1e-3)
    found.run()
    assert len(asked) <= TRIALS
    assert all((plan >= low).all() and (plan <= high).all() for plan in asked)
    return found, len(asked)


def saturating(x):
    """A loop takes nine tenths away until it meets its limit."""
    return 0.1 * x + 0.9 * np.sign(x) * np.maximum(np.abs(x) - 1.0, 0.0)


REACHED = {
    "a line takes one trial": (lambda p: 2 * p[0], [2.0], 3.0),
    "a limit is met": (lambda p: saturating(p[0]), [0.1], 4.0),
    "a limit takes the effect away": (lambda p: 3 * np.tanh(p[0]), [3.0], 2.9),
    "the first response has the wrong sign": (lambda p: 2 * p[0], [-2.0], 3.0),
    "the way back lies behind a valley": (lambda p: -p[0] if p[0] < 2 else -2 + 3 * (p[0] - 2), [-1.0], 1.5),
    "beyond where it turns": (lambda p: max(-p[0], -2 + 3 * (p[0] - 2)) if p[0] > -1 else 1.0, [-1.0], 3.0),
    "small steps": (lambda p: np.round(p[0], 3), [0.5], 1.7),
    "two inputs, one of them useless": (lambda p: saturating(p[0]) + 0 * p[1], [0.1, 0.0], -3.0),
    "two outputs": (lambda p: [saturating(p[0]) + p[1], p[1] - 0.2 * p[0]], [[0.1, 1.0], [-0.2, 1.0]], [2.0, -1.0]),
    "too far at first": (lambda p: None if abs(p[0]) > 5 else 2 * p[0], [0.1], 3.0),
}


@pytest.mark.parametrize("name", REACHED)
def test_what_can_be_reached_is_reached(name):
    outcome, response, wanted = REACHED[name]
    found, asked = searched(outcome, response, wanted)
    assert within(found.reached, found.wanted, 1e-3), (found.plan, found.reached)
    np.testing.assert_allclose(found.reached, np.atleast_1d(outcome(found.plan)))
    assert asked == 1 or not name.startswith("a line")


@pytest.mark.parametrize("response", [1.0, -1.0, 1e-6, 0.0])
def test_what_cannot_be_reached_ends_at_the_limit(response):
    found, _ = searched(lambda p: 2 * p[0], [response], 3.0, -1.0, 1.2)
    assert found.reached == pytest.approx(2.4, rel=1e-6)


@pytest.mark.parametrize("response", [1.0, -1.0])
def test_nothing_is_better_than_what_leads_away(response):
    found, _ = searched(lambda p: -abs(p[0]), [response], 3.0)
    assert not found.plan.any()
    assert not found.reached.any()
    found, _ = searched(lambda p: None, [response], 3.0)
    assert not found.plan.any()


def test_an_input_beyond_its_limits_comes_back_if_that_helps():
    outcomes = (lambda p: 2 * p[0], lambda p: 0.1 * p[0] ** 3, lambda p: -p[0])
    found = [searched(outcome, [1.0], 3.0, 0.5, 4.0)[0] for outcome in outcomes]
    np.testing.assert_allclose([each.reached[0] for each in found], [3.0, 3.0, 0.0], rtol=1e-3)


def test_a_jump_over_the_target_leaves_the_nearer_side():
    found, _ = searched(lambda p: 0.4 if p[0] < 1.3 else 1.1, [0.5], 1.0)
    assert found.reached == pytest.approx(1.1)
