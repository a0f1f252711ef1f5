"""What releases cost, against Google's dp-accounting: privacy loss distributions (PLD), discretised and convolved.

PLD rounds upwards by its discretisation, so it is a little above; 1 % is the bar, and what is seen is below 0.1 %.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from counterflow.exchange.projections import COUNTED, RADIUS, SHARES, released
from counterflow.exchange.registry import MOMENTS
from counterflow.exchange.task import LocalTask
from counterflow.privacy import Cost, Privacy, gaussian_epsilon, total_epsilon
from counterflow.privacy.clipping import STEPS

dp_accounting = pytest.importorskip("dp_accounting")
pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
accountant = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")

BAR = 0.01
SIGMAS, RELEASES, DELTAS = (0.5, 1.0, 5.0, 50.0), (1, 30, 1000, 10_000), (1e-9, 1e-6, 1e-3)


def random_points(count):
    """Log-uniform over the whole range."""
    rng = np.random.default_rng(6)
    for _ in range(count):
        sigma = float(np.exp(rng.uniform(np.log(0.5), np.log(50))))
        releases = int(np.exp(rng.uniform(0, np.log(1e4))))
        yield sigma, releases, float(10 ** rng.uniform(-9, -3))


@pytest.mark.parametrize(
    ("sigma", "releases", "delta"), [*itertools.product(SIGMAS, RELEASES, DELTAS), *random_points(24)]
)
def test_equal_to_the_accountant(sigma, releases, delta):
    """Grid with all corners (ε from 0.025 to 21,000) and random points."""
    mine = gaussian_epsilon(math.sqrt(releases) / sigma, delta)
    theirs = accountant.PLDAccountant(value_discretization_interval=mine * 1e-4)  # its error is at most that interval
    theirs.compose(dp_accounting.GaussianDpEvent(sigma), releases)
    assert mine > 0.02  # nowhere in this range so near zero that a relative error says nothing
    # its ε at δ, within 1 %; asked for the other way round, since its search for ε overflows near ε = 700
    assert theirs.get_delta(mine * (1 - BAR)) > delta > theirs.get_delta(mine * (1 + BAR))
    costs = [Cost(0, 10, row_loss=sigma**-2)] * releases
    assert total_epsilon(costs[:1000], delta) <= mine * (1 + 1e-9)
    if releases <= 1000:
        assert total_epsilon(costs, delta) == pytest.approx(mine, rel=1e-9)


@pytest.mark.parametrize(
    ("sigma", "releases", "interval"),
    [(0.5, 1, 1e-3), (0.5, 100, 1e-2), (0.5, 10_000, 2e-2), (5.0, 10_000, 5e-3), (50.0, 1, 1e-5), (50.0, 10_000, 1e-4)],
)
def test_equal_to_releases_convolved_one_by_one(sigma, releases, interval):
    """The accountant adds up Gaussian releases by a formula, as we do; here each has its distribution convolved."""
    one = pld.from_gaussian_mechanism(sigma, value_discretization_interval=interval, log_mass_truncation_bound=-60)
    whole = one.self_compose(releases)
    for delta in DELTAS:
        mine = gaussian_epsilon(math.sqrt(releases) / sigma, delta)
        assert whole.get_epsilon_for_delta(delta) == pytest.approx(mine, rel=BAR)


@pytest.mark.parametrize("seed", range(6))
def test_equal_for_releases_with_noise_of_many_sizes(seed):
    rng = np.random.default_rng(seed)
    sigmas = np.exp(rng.uniform(np.log(0.5), np.log(50), int(rng.integers(2, 12)))).tolist()
    counts = np.exp(rng.uniform(0, np.log(50), len(sigmas))).astype(int).tolist()
    mu = math.sqrt(sum(count / sigma**2 for sigma, count in zip(sigmas, counts, strict=True)))
    interval = min(gaussian_epsilon(mu, 1e-3) * 1e-4, 1e-3)
    whole = None
    for sigma, count in zip(sigmas, counts, strict=True):
        part = pld.from_gaussian_mechanism(sigma, value_discretization_interval=interval).self_compose(count)
        whole = part if whole is None else whole.compose(part)
    costs = [Cost(0, 5, row_loss=s**-2) for s, count in zip(sigmas, counts, strict=True) for _ in range(count)]
    for delta in DELTAS:
        assert whole.get_epsilon_for_delta(delta) == pytest.approx(total_epsilon(costs, delta), rel=BAR)


@pytest.mark.parametrize(("claimed", "slack"), [(0.5, 0.0), (0.1, 1e-7), (2.0, 5e-7)])
def test_a_claim_is_added_on_the_safe_side(claimed, slack):
    """What is only known to be (ε, δ)-private is added up: never below PLD's tight composition with the worst case."""
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    sigma = 2.0
    exact = pld.from_gaussian_mechanism(sigma, value_discretization_interval=1e-4).compose(
        pld.from_privacy_parameters(DifferentialPrivacyParameters(claimed, slack), value_discretization_interval=1e-4)
    )
    for delta in (1e-6, 1e-3):
        mine = total_epsilon([Cost(0, 5, sigma**-2), Cost(0, 5, 0.0, claimed, slack)], delta)
        assert mine >= exact.get_epsilon_for_delta(delta) - 1e-3


@pytest.mark.parametrize(("epsilon", "delta", "window"), [(0.3, 1e-6, 1), (1.0, 1e-6, 7), (10.0, 1e-9, 1)])
def test_all_rounds_of_private_moments_and_their_counts(epsilon, delta, window):
    """Each round: the counts by which its clip is found, the share clipped, its projections; then other rows."""
    privacy = Privacy(epsilon, delta, window=window, start=0)
    rng = np.random.default_rng(0)
    rows, basis = rng.normal(size=(4000, 2)), np.linalg.qr(rng.normal(size=(4000, 5)))[0]
    theirs = accountant.PLDAccountant(value_discretization_interval=epsilon * 1e-4)
    for number, share in enumerate(SHARES):
        _, made = released(rows, np.ones(len(rows), bool), basis, replace(privacy, seed=1), number, 0.0, "boiler")
        theirs.compose(dp_accounting.GaussianDpEvent(made.sigma / (2 * made.clip * made.reach)))
        counted = math.sqrt(STEPS) * privacy.multiplier(1) / math.sqrt(share * RADIUS)  # of each of the counts
        theirs.compose(dp_accounting.GaussianDpEvent(counted), STEPS)
        theirs.compose(dp_accounting.GaussianDpEvent(privacy.multiplier(1) / math.sqrt(share * COUNTED)))
    assert theirs.get_epsilon(delta) == pytest.approx(epsilon, rel=BAR)
    costs, later = (
        [charge.cost for charge in MOMENTS.charges(LocalTask("moments", {}, privacy=each), None, 4000)]
        for each in (privacy, replace(privacy, start=4000))
    )
    assert total_epsilon(costs, delta, window) == pytest.approx(epsilon, rel=1e-6)
    assert total_epsilon([*costs, *later], delta, window) == pytest.approx(epsilon, rel=1e-6)
