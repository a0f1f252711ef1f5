"""The accountant: against a hundred digits, never on the unsafe side, monotone, and no answer where none is exact."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tolerances import ITERATES, LONG

from counterflow.errors import OptionError
from counterflow.privacy import (
    Cost,
    Privacy,
    classical_multiplier,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    total_epsilon,
)
from counterflow.privacy.accounting import LARGEST_MU, LEAST_DELTA, LEAST_MU, Balance

examples = settings(max_examples=120, deadline=None, derandomize=True)
few = settings(max_examples=40, deadline=None, derandomize=True)


def logarithmic(low, high):
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


mus, deltas = logarithmic(1e-9, 1e4), logarithmic(1e-250, 0.9)


def exact_log_delta(epsilon, mu):
    """log of Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ), as it is written: a difference that costs digits, of which there are
    enough."""
    with mp.workdps(150):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        first, second = mp.ncdf(m / 2 - e / m), mp.exp(e) * mp.ncdf(-m / 2 - e / m)
        return mp.log(first - second)


def exact_delta(epsilon, mu):
    with mp.workdps(150):
        return mp.exp(exact_log_delta(epsilon, mu))


# The curve ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-9, 1e-6, 1e-4, 9.99e-4, 1.001e-3, 0.01, 0.3, 1.0, 4.0, 9.9, 10.1, 40.0, 1e3, 1e4])
def test_the_curve_to_eleven_digits(mu):
    """ε from 0 to where δ is below 1e-300; on both sides of every switch between formulas."""
    seen, tolerance = 0, LONG / 20 + 1e-14 * mu  # ε/μ itself is a double
    for tail in (-400.0, -8.0, -5.01, -4.99, -1.0, 0.0, 0.5, 3.0, 10.0, 27.0, 28.9, 36.0):  # ε/μ - μ/2
        epsilon = mu * (mu / 2 + tail)
        if epsilon >= 0:
            exact = exact_log_delta(epsilon, mu)
            if exact > math.log(LEAST_DELTA):
                assert gaussian_delta(epsilon, mu) == pytest.approx(float(mp.exp(exact)), rel=tolerance, abs=0)
                seen += 1
    assert seen >= 6
    with mp.workdps(50):
        least = float(mp.erf(mp.mpf(mu) / mp.sqrt(8)))
    assert gaussian_delta(0.0, mu) == pytest.approx(least, rel=LONG, abs=0)


def test_far_out_nothing_is_left():
    assert gaussian_delta(1e9, 1.0) == 0.0
    assert gaussian_delta(1e308, 1e-9) == 0.0
    assert gaussian_delta(100.0, 1e4) == 1.0


@examples
@given(mu=mus, delta=deltas)
def test_epsilon_is_enough_and_not_more_than_enough(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(epsilon, mu) <= delta  # with all digits, not with the function that found it
    assert gaussian_delta(epsilon, mu) <= delta
    if epsilon > 0:
        less = epsilon - 1e-9 * (epsilon + mu)
        assert less < 0 or exact_delta(less, mu) > delta
    else:
        assert exact_delta(0.0, mu) <= delta


@examples
@given(epsilon=logarithmic(1e-6, 1e4), delta=deltas)
def test_mu_is_allowed_and_not_less_than_allowed(epsilon, delta):
    try:
        mu = gaussian_mu(epsilon, delta)
    except OptionError:
        assert exact_delta(epsilon, LEAST_MU) > delta or exact_delta(epsilon, LARGEST_MU) <= delta
        return
    assert exact_delta(epsilon, mu) <= delta
    assert exact_delta(epsilon, mu * (1 + 1e-8)) > delta
    assert gaussian_epsilon(mu, delta) <= epsilon  # a release that was calibrated is within its budget when added up
    assert gaussian_epsilon(mu, delta) >= epsilon * (1 - 1e-7) - 1e-7 * mu


def test_known_values():
    """The calibrations of Balle & Wang (2018) and the classical formula."""
    assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(3.730631, rel=1e-6)
    assert classical_multiplier(1.0, 1e-5) == pytest.approx(math.sqrt(2 * math.log(1.25e5)), rel=LONG)
    assert classical_multiplier(0.5, 1e-5) == pytest.approx(2 * classical_multiplier(1.0, 1e-5), rel=LONG)
    with pytest.raises(OptionError, match="no noise to speak of"):
        gaussian_mu(1e9, 1e-5)
    with pytest.raises(OptionError, match="more noise than can be accounted for"):
        gaussian_mu(1e-9, 1e-300)


@few
@given(epsilon=logarithmic(0.01, 1.0), delta=logarithmic(1e-12, 0.01))
def test_the_classical_formula_is_safe_up_to_one_and_wasteful(epsilon, delta):
    assert classical_multiplier(epsilon, delta) > 1 / gaussian_mu(epsilon, delta)


def test_the_classical_formula_is_unsafe_beyond_its_range():
    """Why "published" is labelled so: at large ε its noise does not give the δ that is claimed."""
    assert gaussian_delta(10.0, 1 / classical_multiplier(10.0, 1e-5)) > 1e-5


# Monotone -------------------------------------------------------------------------------------------------------------


@examples
@given(one=mus, two=mus, delta=deltas)
def test_more_noise_or_fewer_releases_never_cost_more(one, two, delta):
    """μ = √R/σ falls with σ and rises with R."""
    low, high = sorted((one, two))
    assert gaussian_epsilon(low, delta) <= gaussian_epsilon(high, delta)
    assert gaussian_delta(delta, low) <= gaussian_delta(delta, high) * (1 + LONG)


@examples
@given(mu=mus, one=deltas, two=deltas)
def test_a_larger_delta_never_needs_a_larger_epsilon(mu, one, two):
    low, high = sorted((one, two))
    assert gaussian_epsilon(mu, high) <= gaussian_epsilon(mu, low)


@examples
@given(
    one=logarithmic(1e-3, 100), two=logarithmic(1e-3, 100), delta=logarithmic(1e-12, 0.1), numbers=st.integers(1, 10**7)
)
def test_a_larger_budget_never_needs_more_noise(one, two, delta, numbers):
    low, high = sorted((one, two))
    assert Privacy(high, delta).multiplier(numbers) <= Privacy(low, delta).multiplier(numbers)
    larger = min(delta * 2, 0.5)
    assert Privacy(low, larger).multiplier(numbers) <= Privacy(low, delta).multiplier(numbers)
    assert Privacy(low, delta).multiplier(numbers) <= Privacy(low, delta).multiplier(numbers + 1)


@few
@given(epsilon=logarithmic(1e-3, 100), delta=logarithmic(1e-12, 0.1), window=st.integers(1, 10**4))
def test_a_release_fits_the_budget_it_was_made_for(epsilon, delta, window):
    """What is written into a ledger for a calibrated release adds up to no more than was asked for."""
    asked = Privacy(epsilon, delta, window=window)
    cost = Cost(0, 20_000, row_loss=asked.row_loss(1000))
    spent = total_epsilon([cost], delta, window)
    assert epsilon * (1 - 1e-6) <= spent <= epsilon


def releases(largest_row=40):
    rows = st.tuples(st.integers(0, largest_row), st.integers(1, largest_row))
    loss = st.one_of(st.just(0.0), st.floats(1e-6, 10.0))
    return st.lists(st.builds(lambda at, loss: Cost(at[0], at[0] + at[1], row_loss=loss), rows, loss), max_size=8)


@examples
@given(costs=releases(), window=st.integers(1, 60))
def test_the_worst_window_is_that_of_a_plain_loop(costs, window):
    rows = np.zeros(200)
    for cost in costs:
        rows[60 + cost.start : 60 + cost.stop] += cost.row_loss
    plain = max(rows[start : start + window].sum() for start in range(200 - window + 1))
    assert Balance.of(costs).worst_window(window) == pytest.approx(plain, rel=LONG, abs=1e-300)


@few
@given(costs=releases(), more=releases(), window=st.integers(1, 60), delta=logarithmic(1e-12, 0.1))
def test_more_releases_or_a_longer_window_never_cost_less(costs, more, window, delta):
    once = total_epsilon(costs, delta, window)
    slack = 1e-9 * (1 + once)  # sums of floats, in another order
    assert total_epsilon(costs + more, delta, window) >= once - slack
    assert total_epsilon(costs, delta, window + 1) >= once - slack
    assert total_epsilon(costs[::-1], delta, window) == pytest.approx(once, rel=ITERATES, abs=1e-12)


@few
@given(costs=releases(), epsilon=st.floats(0, 5), slack=st.floats(0, 1), delta=logarithmic(1e-12, 0.1))
def test_claims_are_added(costs, epsilon, slack, delta):
    claim = Cost(0, 1, epsilon=epsilon, delta=slack * delta * 0.999)
    assume(Balance.of(costs).worst_window(1) > 0)
    both = total_epsilon([*costs, claim], delta)
    assert both == pytest.approx(epsilon + total_epsilon(costs, delta - claim.delta), rel=ITERATES)
    assert both >= total_epsilon(costs, delta)


def test_claims_that_use_up_delta_leave_nothing_to_say():
    gauss, claim = Cost(0, 5, row_loss=0.1), Cost(0, 5, epsilon=1.0, delta=1e-6)
    assert total_epsilon([gauss, claim], 1e-6) == math.inf
    assert total_epsilon([gauss, claim, claim], 1.5e-6) == math.inf
    assert total_epsilon([claim, claim], 1.5e-6) == math.inf
    assert total_epsilon([claim, claim], 2e-6) == 2.0  # exactly used up, and nothing else to pay for
    assert total_epsilon([], 1e-6) == 0.0


def test_a_window_pays_for_each_of_its_rows():
    once = Cost(10, 20, row_loss=0.01)
    for window, rows in ((1, 1), (7, 7), (10, 10), (1000, 10)):
        assert total_epsilon([once], 1e-6, window) == pytest.approx(gaussian_epsilon(0.1 * math.sqrt(rows), 1e-6))
    apart = [Cost(0, 5, row_loss=0.01), Cost(8, 10, row_loss=0.01)]  # a window of 5 reaches the end of one only
    assert total_epsilon(apart, 1e-6, 3) == pytest.approx(gaussian_epsilon(math.sqrt(0.03), 1e-6))
    assert total_epsilon(apart, 1e-6, 10) == pytest.approx(gaussian_epsilon(math.sqrt(0.07), 1e-6))


def test_ten_thousand_releases_of_a_long_record():
    """A ledger in use for years: sums stay exact, and the answer is there at once."""
    costs = [Cost(100 * k, 100 * k + 300, row_loss=1e-3) for k in range(10_000)]
    assert Balance.of(costs).worst_window(1) == pytest.approx(3e-3, rel=LONG)
    assert Balance.of(costs).worst_window(100) == pytest.approx(0.3, rel=LONG)


# Refusals -------------------------------------------------------------------------------------------------------------

BAD_DELTAS = [0.0, 1.0, -1e-6, 2.0, math.nan, math.inf, -math.inf, True, "1e-6", None, 1e-301, 1j, np.array([1e-6])]
BAD_EPSILONS = [0.0, -1.0, math.nan, math.inf, True, "1", None, 1j]
BAD_MUS = [0.0, -1.0, 0.9e-9, 1.1e4, math.nan, math.inf, True, "1", None]


@pytest.mark.parametrize("delta", BAD_DELTAS, ids=repr)
def test_deltas_that_are_refused(delta):
    for ask in (
        lambda: gaussian_epsilon(1.0, delta),
        lambda: gaussian_mu(1.0, delta),
        lambda: classical_multiplier(1.0, delta),
        lambda: total_epsilon([], delta),
        lambda: Privacy(1.0, delta),
    ):
        with pytest.raises(OptionError, match="delta"):
            ask()


@pytest.mark.parametrize("epsilon", BAD_EPSILONS, ids=repr)
def test_epsilons_that_are_refused(epsilon):
    for ask in (
        lambda: gaussian_mu(epsilon, 1e-6),
        lambda: classical_multiplier(epsilon, 1e-6),
        lambda: Privacy(epsilon, 1e-6),
    ):
        with pytest.raises(OptionError, match="epsilon"):
            ask()
    if epsilon not in (0.0, True):
        with pytest.raises(OptionError, match="epsilon"):
            gaussian_delta(epsilon, 1.0)


@pytest.mark.parametrize("mu", BAD_MUS, ids=repr)
def test_totals_that_are_refused_instead_of_rounded(mu):
    for ask in (lambda: gaussian_delta(1.0, mu), lambda: gaussian_epsilon(mu, 1e-6)):
        with pytest.raises(OptionError, match="cannot be accounted for"):
            ask()


def test_totals_beyond_the_accountant_are_refused_when_they_add_up():
    with pytest.raises(OptionError, match="cannot be accounted for"):
        total_epsilon([Cost(0, 10, row_loss=1e8)] * 2, 1e-6)
    for loss in (1e-20, 1e308):
        with pytest.raises(OptionError, match="cannot be accounted for"):
            total_epsilon([Cost(0, 10, row_loss=loss)] * 2, 1e-6, window=10)


@pytest.mark.parametrize("window", [0, -1, 1.0, True, None, math.nan, "1"], ids=repr)
def test_windows_that_are_refused(window):
    with pytest.raises(OptionError, match="window"):
        total_epsilon([], 1e-6, window)


COSTS = {
    "rows": [(0, 0), (5, 4), (-1, 4), (0.0, 4), (False, 4), (0, 2**53)],
    "row_loss": [(0, 1, math.nan), (0, 1, -0.1), (0, 1, math.inf), (0, 1, 1)],
    "epsilon": [(0, 1, 0.0, -1.0), (0, 1, 0.0, math.inf)],
    "delta": [(0, 1, 0.0, 1.0, 1.0), (0, 1, 0.0, 1.0, math.nan)],
}


@pytest.mark.parametrize(("what", "arguments"), [(what, each) for what, found in COSTS.items() for each in found])
def test_costs_that_are_refused(what, arguments):
    with pytest.raises(OptionError, match=what):
        Cost(*arguments)


def test_a_delta_that_the_noise_source_cannot_keep_is_refused():
    """The random bits end somewhere; that is taken off δ, and if it were most of it there would be no answer."""
    with pytest.raises(OptionError, match="noise source"):
        Privacy(1.0, 1e-65).multiplier(10**9)
    with pytest.raises(OptionError, match="noise source"):
        Privacy(100.0, 1e-20).multiplier(10**7)


def test_what_models_have_cost_is_taken_off():
    whole, rest = Privacy(2.0, 2e-6, models=(1.0, 1e-6)), Privacy(1.0, 1e-6)
    assert whole.multiplier(100) == pytest.approx(rest.multiplier(100), rel=ITERATES)
