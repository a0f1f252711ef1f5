"""Attacks on what leaves a unit: each stays below what the guarantee allows, and succeeds once a defence is taken away.

Membership: whether one measurement was a or b (``membership.py``). Reconstruction: what a curious server reads.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from membership import CLIP, MODEL, TRIALS, advantage, guess, measurements, message_of, trials
from published_replay import attack
from scipy import stats

import counterflow as cf
from counterflow.exchange import rows as private
from counterflow.filtering import compress
from counterflow.fits.leakage import Transcript
from counterflow.learning.clipping import own_response
from counterflow.privacy import Cost, gaussian_delta, gaussian_mu, gaussian_release, total_epsilon
from counterflow.privacy.leakage import leakage

by_rows = partial(cf.Privacy, release="rows")  # what these tests are about


def weakened(monkeypatch, factor):
    """The unit's noise, cut to a share of what it should be; the claims stay."""

    def release(x, sigma, source, *names):
        return gaussian_release(x, factor * sigma, source, *names) if factor else x

    monkeypatch.setattr(private, "gaussian_release", release)


SETTINGS = [(0.5, 0.01, 1), (1.0, 1e-6, 1), (1.0, 0.05, 1), (1.0, 0.05, 5), (2.0, 1e-3, 3), (3.0, 1e-4, 1)]


@pytest.mark.parametrize(("epsilon", "delta", "window"), SETTINGS)
def test_membership_stays_below_what_is_allowed(epsilon, delta, window):
    privacy = by_rows(epsilon, delta, clip=CLIP, window=window, seed=1)
    surely, estimate = advantage(*trials(privacy), epsilon)
    assert surely <= delta
    if delta >= 0.01:  # large enough to be measured: the bound is met, not missed by far
        assert 0.5 * delta < estimate < 2 * delta


@pytest.mark.parametrize(("epsilon", "delta", "window"), SETTINGS)
@pytest.mark.parametrize(
    "factor", [0.0, math.sqrt(0.95) / 3]
)  # rows have 95 % of it, the count of clipped ones the rest
def test_membership_breaks_the_bound_when_noise_is_off_or_cut(monkeypatch, epsilon, delta, window, factor):
    weakened(monkeypatch, factor)
    surely, _ = advantage(*trials(by_rows(epsilon, delta, clip=CLIP, window=window, seed=1)), epsilon)
    assert surely > delta
    if not factor:
        assert surely > 0.9 - 0.003 * math.exp(epsilon)  # the guess is always right; the rest is doubt from the trials


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.01), (1.0, 0.05)])
def test_half_the_noise_is_found_out(monkeypatch, epsilon, delta):
    """As if replacing a measurement moved its message by c, not by 2c."""
    weakened(monkeypatch, 0.5)
    assert advantage(*trials(by_rows(epsilon, delta, clip=CLIP, seed=1)), epsilon)[0] > delta


def test_without_clipping_a_single_reading_shows(monkeypatch):
    monkeypatch.setattr(private, "clipped_rows", lambda rows, radius: (rows, np.zeros(len(rows), bool)))
    assert advantage(*trials(by_rows(1.0, 1e-6, clip=CLIP, seed=1)), 1.0)[0] > 0.9


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_membership_over_all_rules_at_once(epsilon):
    """Right and wrong guesses are those of N(0, 1) against N(μ, 1), at every threshold, within what trials can tell."""
    delta = 1e-6
    of_a, of_b = trials(by_rows(epsilon, delta, clip=CLIP, seed=2))
    mu = gaussian_mu(epsilon, delta)
    assert stats.kstest(of_a + mu / 2, "norm").pvalue > 1e-4
    assert stats.kstest(of_b - mu / 2, "norm").pvalue > 1e-4
    limit = gaussian_delta(0.0, mu)  # the largest gap between right and wrong guesses
    assert advantage(of_a, of_b, 0.0)[0] <= limit


def test_more_rows_than_the_window_are_not_covered():
    privacy = by_rows(1.0, 0.05, clip=CLIP, seed=1)
    assert advantage(*trials(privacy, rows=9), 1.0)[0] > 0.05
    wide = by_rows(1.0, 0.05, clip=CLIP, window=9, seed=1)
    assert advantage(*trials(wide, rows=9), 1.0)[0] <= 0.05
    assert advantage(*trials(wide, rows=4), 1.0)[0] <= 0.05


def test_releases_that_are_repeated_add_up_as_the_accountant_says():
    """Four messages of the same rows: beyond what one may tell, within what the accountant says of four."""
    delta = 0.05
    asked = by_rows(1.0, delta, clip=CLIP)
    parts = [trials(by_rows(1.0, delta, clip=CLIP, seed=seed)) for seed in range(4)]
    of_a, of_b = (sum(part[k] for part in parts) / 2 for k in (0, 1))
    spent = total_epsilon([Cost(0, TRIALS, row_loss=asked.row_loss(2 * TRIALS))] * 4, delta)
    assert spent > 2.0
    surely, estimate = advantage(of_a, of_b, spent)
    assert surely <= delta
    assert estimate > 0.5 * delta
    assert advantage(of_a, of_b, 1.0)[0] > 2 * delta


@pytest.mark.parametrize("secure", [False, True])
def test_membership_from_separate_messages(secure):
    """Each trial a message of its own, noise of the operating system too; one row among others is altered."""
    of = {}
    for sign in (-1.0, 1.0):
        signs = np.array([0.0, 0.3, sign, -0.2])
        of[sign] = np.array(
            [
                guess(*message_of(measurements(signs), by_rows(1.0, 0.05, clip=CLIP, seed=None if secure else k)))[2]
                for k in range(200)
            ]
        )
    assert advantage(of[-1.0], of[1.0], 1.0)[0] <= 0.05
    assert len(np.unique(of[1.0])) == 200


@pytest.mark.parametrize("other", [-1.0, 0.0])
def test_membership_when_the_clip_is_found_from_the_record(monkeypatch, other):
    """Then a measurement moves the clip as well, which the noise level in the message gives away: both are read."""

    def collected(count):
        told = {}
        for sign in (other, 1.0):
            found = []
            for k in range(count):
                signs = np.zeros(40)
                signs[17] = sign
                privacy = by_rows(1.0, 0.05, seed=1000 * int(2 + sign) + k)
                message, release = message_of(measurements(signs), privacy)
                seen = compress(MODEL.C, MODEL.R).observation
                at = own_response(MODEL.A, MODEL.B, MODEL.Q, seen, np.zeros((40, 1)))
                back = np.linalg.inv(at.W)
                variance = release.variance
                root = np.linalg.cholesky(np.eye(2) + variance * back @ back.T)
                row = at.W @ root @ message.numbers[17]
                direction = at.W @ seen @ [1.0, -0.4]
                found.append((row @ direction / np.linalg.norm(direction) / release.sigma, math.log(release.clip)))
            told[sign] = np.array(found)
        return told

    told = collected(200)
    for weight in (0.0, 0.2, 1.0):  # rules that heed the clip more or less
        of_a, of_b = (told[sign] @ [1.0, weight] for sign in (other, 1.0))
        thresholds = np.linspace(min(of_a.min(), of_b.min()), max(of_a.max(), of_b.max()), 40)
        assert advantage(of_a, of_b, 1.0, thresholds)[0] <= 0.05
    weakened(monkeypatch, 0.0)
    told = collected(60)
    assert (
        advantage(told[other][:, 0], told[1.0][:, 0], 1.0)[0] > 0.2
    )  # always right; the rest is doubt from few trials


def test_reconstruction_by_a_curious_server_gets_worse_in_this_order():
    """Published, sufficient, and sufficient with less and less ε, down to what inputs alone foresee."""
    plant = cf.random_plant(units=2, states=2, outputs=6, rng=3)
    recording = plant.simulate(4000, rng=4)
    y = recording["unit1"].y
    little = {"evaluations": 1, "uncertainty": False}
    runs = [
        {"method": "penalty", "solver": "gradient", "rounds": 5},
        little,
        *(little | {"privacy": by_rows(epsilon, 1e-6, clip=5.0, seed=1)} for epsilon in (100.0, 10.0, 1.0)),
    ]
    errors = []
    for options in runs:
        transcript = Transcript()
        cf.fit(recording, plant.locals(), watch=transcript, **options)
        errors.append(transcript.leakage("unit1", y, lags=2).reconstruction_error)
    errors.append(leakage(transcript.inputs("unit1"), y, lags=2).reconstruction_error)
    assert errors[0] < 1e-4
    assert all(one < two for one, two in pairwise(errors[:5]))
    assert errors[4] == pytest.approx(errors[5], abs=0.02)  # at ε = 1: hardly anything beyond the inputs


def test_the_published_mechanism_gives_one_measurement_away_whatever_epsilon_is():
    """One of the gaps that its report names: the noise level is sent, and is a function of theta, so of raw y.

    The noised rows themselves keep to what is claimed here: adding up epsilons leaves more room than the gaps take.
    """
    plant = cf.random_plant(units=2, states=2, outputs=4, rng=1)
    recording = plant.simulate(200, rng=2)
    for k in range(4):
        found = attack(recording, plant, 60 + k, bool(k % 2), k, epsilon=0.1, delta=1e-6, rounds=2)
        assert found.right
        assert gaussian_delta(0.1, found.mu) < 1e-6
    told = cf.fit(
        recording, plant.locals(), method="penalty", privacy=cf.Privacy(1.0, 1e-6, seed=1, accounting="published")
    )
    assert any("functions of theta" in gap for gap in told.privacy.gaps)
