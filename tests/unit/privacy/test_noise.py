"""The noise source: exactly rounded, distributed as claimed, no trace of the data in the digits."""

from __future__ import annotations

import decimal
import math
import os

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from tolerances import STANDARD_ERRORS

from counterflow.errors import OptionError
from counterflow.privacy import Source, gaussian_release, grid_of
from counterflow.privacy import noise as module
from counterflow.privacy.noise import BITS_SHORT, FINENESS

DIGITS = 160
WORD = 2**64
ODDS = 1e-4  # of a right source failing one of these tests; seeds are fixed


def upper_quantile(tail):
    """z with P(N(0, 1) > z) = tail: Newton's method on erfc, with many digits."""
    z = mp.mpf(-float(special.ndtri(float(tail))))
    for _ in range(5):
        z += (mp.erfc(z / mp.sqrt(2)) / 2 - tail) / mp.npdf(z)
    return z


def exact(x, sigma, words):
    """grid · round((x + σ Φ⁻¹(U)) / grid) of four words (high, low, and two more), and how far from a tie it was."""
    with mp.workdps(DIGITS):
        bits = ((words[0] % 2**63) << 192) + (words[1] << 128) + (words[2] << 64) + words[3]
        size = upper_quantile((mp.mpf(bits) + mp.mpf(0.5)) / mp.mpf(2) ** 256)
        total = (mp.mpf(x) + (-size if words[0] >> 63 else size) * mp.mpf(sigma)) / mp.mpf(grid_of(sigma))
        return float(mp.nint(total) * mp.mpf(grid_of(sigma))), abs(float(total - mp.floor(total)) - 0.5)


class Forced:
    """A source whose words are given; it counts how often more of them were asked for."""

    def __init__(self, words, more=(0, 0)):
        self.given, self.more, self.asked = list(words), list(more), 0

    def words(self, count, *names):
        if "more" in names:
            self.asked += 1
            return np.array(self.more, np.uint64)
        assert count == len(self.given)
        return np.array(self.given, np.uint64)


word = st.one_of(st.integers(0, WORD - 1), st.integers(0, 2**20), st.integers(0, 63).map(lambda k: 2**k))
sigmas = st.sampled_from([1.0, 0.3, 3.0, 7.7e-9, 1.9e12, 1.0000001])


# Exactly what is said -------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True)
@given(words=st.tuples(word, word, word, word), relative=st.floats(-1e8, 1e8), sigma=sigmas)
def test_the_released_value_is_the_exact_one(words, relative, sigma):
    x = relative * sigma
    source = Forced(words[:2], words[2:])
    assert gaussian_release(np.array([x]), sigma, source)[0] == exact(x, sigma, words)[0]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(words=st.tuples(word, word, word, word), index=st.integers(-(2**45), 2**45), sigma=sigmas)
def test_the_released_value_is_the_exact_one_next_to_a_tie(words, index, sigma):
    """x is the double that brings the sum closest to the middle between two grid points."""
    with mp.workdps(DIGITS):
        bits = ((words[0] % 2**63) << 192) + (words[1] << 128) + (words[2] << 64) + words[3]
        size = upper_quantile((mp.mpf(bits) + mp.mpf(0.5)) / mp.mpf(2) ** 256)
        grid = mp.mpf(grid_of(sigma))
        x = float((index + mp.mpf(0.5)) * grid - (-size if words[0] >> 63 else size) * mp.mpf(sigma))
    source = Forced(words[:2], words[2:])
    value, from_tie = exact(x, sigma, words)
    assert from_tie < 0.01
    assert gaussian_release(np.array([x]), sigma, source)[0] == value
    assert source.asked == 1  # double precision alone was not trusted


def test_a_sum_at_its_largest_is_still_settled_right():
    """Where a double is coarsest against σ: just above a power of two, at the end of what is accepted."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        sigma = 2.0**26 / 99_999_999.0
        words = [int(w) for w in rng.integers(0, WORD, 4, dtype=np.uint64)]
        x = 2.0**26 + float(rng.integers(0, 2**10)) * 2.0**-26
        assert gaussian_release(np.array([x]), sigma, Forced(words[:2], words[2:]))[0] == exact(x, sigma, words)[0]


@pytest.mark.parametrize("more", [(0, 0), (WORD - 1, WORD - 1), (1, 0), (0, 12345)])
def test_far_out_the_missing_bits_are_drawn(more):
    """The 128 bits are all zero: the tail is what the other bits say, between 13 and 19 σ."""
    source = Forced((0, 0), more)
    got = gaussian_release(np.array([0.25]), 1.0, source)[0]
    assert source.asked == 1
    assert got == exact(0.25, 1.0, (0, 0, *more))[0]
    assert 12.9 < got < 19.5


def test_rounding_does_not_depend_on_the_callers_decimal_context():
    words = (3 * 2**61, 17, 5, 5)
    with mp.workdps(DIGITS):
        size = upper_quantile(mp.mpf(((words[0] % 2**63) << 192) + (words[1] << 128)) / mp.mpf(2) ** 256)
        x = float(0.5 * mp.mpf(grid_of(1.0)) - (-size if words[0] >> 63 else size))
    expected = exact(x, 1.0, words)[0]
    for rounding in (decimal.ROUND_UP, decimal.ROUND_FLOOR, decimal.ROUND_CEILING):
        with decimal.localcontext() as context:
            context.prec, context.rounding = 5, rounding
            context.traps[decimal.Inexact] = True
            source = Forced(words[:2], words[2:])
            assert gaussian_release(np.array([x]), 1.0, source)[0] == expected
            assert source.asked == 1


def test_quantiles_in_double_precision_are_far_better_than_the_margin():
    """Tails from ½ down to 2^-129; the margin is 1e-10."""
    rng = np.random.default_rng(0)
    tails = [*2.0 ** -rng.uniform(1, 128, 300), *(0.5 - 2.0 ** -rng.uniform(2, 53, 60)), *rng.uniform(0, 0.5, 200)]
    tails += [2.0**-128, 2.0**-129, 0.5, math.nextafter(0.5, 0.0)]
    with mp.workdps(50):
        errors = [abs(upper_quantile(mp.mpf(float(t))) + mp.mpf(float(special.ndtri(t)))) for t in tails]
    assert max(errors) < module._MARGIN / 1000


def test_quantiles_with_many_digits():
    for exponent in (1, 2, 10, 64, 128, 200, 255, 256):
        with decimal.localcontext(module._DIGITS):
            tail = decimal.Decimal(2) ** -exponent * (1 - decimal.Decimal(2) ** -70)
            mine = module._upper_quantile(tail)
        with mp.workdps(DIGITS):
            theirs = upper_quantile(mp.mpf(2) ** -exponent * (1 - mp.mpf(2) ** -70))
            assert abs(mp.mpf(str(mine)) - theirs) < mp.mpf(10) ** -90
    with mp.workdps(230):
        assert abs(mp.mpf(str(module._PI)) - mp.pi) < mp.mpf(10) ** -205


def test_what_the_end_of_the_bits_costs():
    """Each grid point's probability is off by less than two steps of U, those beyond reach by what they have."""
    reach = 20
    points = 2 * reach * 2 ** (FINENESS + 1) + 1
    assert points * 2 * 2.0**-256 + 2 * special.ndtr(-18.5) < BITS_SHORT


# Distributed as claimed -----------------------------------------------------------------------------------------------

CENTRES = [0.0, 1 / 3, -2.5, 1000.1]


@pytest.mark.parametrize("centre", CENTRES)
def test_normal_with_the_variance_that_is_said(centre):
    sigma, count = 2.7, 200_000
    z = (gaussian_release(np.full((count // 4, 4), centre), sigma, Source(8), "boiler") - centre) / sigma
    assert stats.kstest(z.ravel(), "norm").pvalue > ODDS
    assert abs(z.mean()) < STANDARD_ERRORS / math.sqrt(count)
    assert abs(z.var() - 1) < STANDARD_ERRORS * math.sqrt(2 / count)
    assert abs((z**4).mean() - 3) < STANDARD_ERRORS * math.sqrt(96 / count)
    for one, two in ((z[:, 0], z[:, 1]), (z[1:, 0], z[:-1, 0]), (z[:, 3] ** 2, z[:, 2] ** 2)):  # and independent
        assert abs(np.corrcoef(one, two)[0, 1]) < STANDARD_ERRORS / math.sqrt(len(one))


def test_far_tails_are_there():
    """Beyond 4 σ: 63 in a million are expected."""
    z = gaussian_release(np.zeros(500_000), 1.0, Source(5), "boiler")
    expected = 500_000 * 2 * special.ndtr(-4.0)
    assert abs((np.abs(z) > 4.0).sum() - expected) < STANDARD_ERRORS * math.sqrt(expected)


@pytest.mark.parametrize("centre", CENTRES)
def test_low_order_digits_are_uniform_whatever_the_data(centre):
    released = gaussian_release(np.full(160_000, centre), 3.0, Source(4), "boiler")
    index = released / grid_of(3.0)
    assert np.array_equal(index, np.rint(index))
    counts = np.bincount((index % 16).astype(int), minlength=16)
    assert stats.chisquare(counts).pvalue > ODDS


# Floating-point attack ------------------------------------------------------------------------------------------------


def test_naive_noise_gives_the_data_away():
    """1 + noise near 0 is a multiple of 2^-53; 0 + noise near 0 hardly ever is: one look tells, at any ε."""
    rng = np.random.default_rng(1)
    off = {}
    for x in (0.0, 1.0):
        out = x + 1.0 * rng.standard_normal(500_000)
        near = out[np.abs(out) < 0.01]
        assert len(near) > 1000
        off[x] = (near * 2.0**53 % 1 != 0).mean()
    assert off[1.0] == 0.0  # an output between these multiples is impossible for x = 1
    assert off[0.0] > 0.9


def test_released_values_have_one_support_whatever_the_data():
    samples = {}
    for k, x in enumerate((0.0, 1.0, 1 / 3)):
        out = gaussian_release(np.full(250_000, x), 1.0, Source(k), "boiler")
        assert not (out / grid_of(1.0) % 1).any()
        assert not np.signbit(out[out == 0]).any()  # a negative zero would tell which side it was rounded from
        near = out[np.abs(out) < 0.01]
        samples[x] = np.bincount((near / grid_of(1.0) % 64).astype(int), minlength=64)
    for x in (1.0, 1 / 3):
        assert stats.chi2_contingency(np.array([samples[0.0], samples[x]])).pvalue > ODDS


def test_no_negative_zero():
    """Noise that rounds to zero from below."""
    half = 2**63
    for high in (half - 1, WORD - 1):  # tails next to ½, either sign
        got = gaussian_release(np.array([-grid_of(1.0) / 4]), 1.0, Forced((high, WORD - 1)))
        assert got[0] == 0.0
        assert not np.signbit(got[0])


@pytest.mark.parametrize("sigma", [1.0, 0.99, 1.01, 1e-100, 1e100, 3.3])
def test_the_grid_is_a_power_of_two_that_depends_on_sigma_only(sigma):
    grid = grid_of(sigma)
    assert math.frexp(grid)[0] == 0.5
    assert 2.0**-21 < grid / sigma <= 2.0**-20


# Where bits come from -------------------------------------------------------------------------------------------------


def test_seeded_streams_repeat_by_unit_and_differ_between_units():
    zeros = np.zeros((50, 2))

    def draw(seed, *names):
        return gaussian_release(zeros, 1.0, Source(seed), *names)

    assert np.array_equal(draw(1, "boiler"), draw(1, "boiler"))
    others = [draw(1, "boiler"), draw(1, "turbine"), draw(2, "boiler"), draw(1, "boiler", "again")]
    for i, one in enumerate(others):
        for two in others[:i]:
            assert not np.isin(one, two).any()
    assert str(Source(1)) == "seed 1"
    assert not Source(1).secure


def test_without_a_seed_bits_come_from_the_operating_system(monkeypatch):
    asked = []
    real = os.urandom

    def urandom(count):
        asked.append(count)
        return real(count)

    monkeypatch.setattr(os, "urandom", urandom)
    source = Source()
    one, two = (gaussian_release(np.zeros(100), 1.0, source, "boiler") for _ in range(2))
    assert sum(asked) >= 2 * 100 * 16
    assert not np.isin(one, two).any()
    assert source.secure
    assert str(source) == "operating system"
    monkeypatch.setattr(os, "urandom", lambda count: (bytes(range(256)) * (count // 256 + 1))[:count])
    assert np.array_equal(source.words(3), np.frombuffer(bytes(range(24)), "<u8"))


@pytest.mark.parametrize("seed", [-1, 1.0, True, "1", math.nan], ids=repr)
def test_seeds_that_are_refused(seed):
    with pytest.raises(OptionError, match="seed"):
        Source(seed)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf, 1e-200, 1e200, True, 1, "1", None], ids=repr)
def test_standard_deviations_that_are_refused(sigma):
    with pytest.raises(OptionError, match="standard deviation"):
        gaussian_release(np.zeros(3), sigma, Source(1))


@pytest.mark.parametrize("x", [math.nan, math.inf, -math.inf, 1.1e8, -1e300])
def test_values_that_are_refused(x):
    """An error, not noise that is too coarse for the value."""
    with pytest.raises(OptionError, match="must be finite and below"):
        gaussian_release(np.array([0.0, x]), 1.0, Source(1))


def test_shapes():
    for shape in ((0,), (0, 2), (3, 0), (5, 1), (2, 3, 4)):
        assert gaussian_release(np.zeros(shape), 1.0, Source(1)).shape == shape
