"""The signal space of a unit: rank, basis, noise, and what may not change it."""

from __future__ import annotations

import numpy as np
import pytest
from subspace_oracle import random_system, simulate
from tolerances import EXACT, ITERATIVE

from counterflow.errors import DataError
from counterflow.identification import signal_space
from counterflow.recurrence import linear_recurrence


def record(seed, rows=3000, channels=8, rank=3, ratio=3.0):
    """Measurements with `ratio` standard deviations of signal to about one of noise, inputs, noise share and C."""
    rng = np.random.default_rng(seed)
    A, B, C = random_system(rng, rank, channels, 2)
    clean, u = simulate(rng, A, B, C, rows, process=1.0, measurement=0.0)
    size = clean.std(axis=0) / ratio * rng.uniform(0.5, 2.0, channels)
    y = clean + size * rng.normal(size=clean.shape)
    return y, u, (size / y.std(axis=0)) ** 2, C / y.std(axis=0)[:, None]


@pytest.mark.parametrize(
    "kind",
    [
        {"ratio": 1.0},
        {"ratio": 3.0},
        {"ratio": 10.0},
        {"ratio": 1000.0},
        {"ratio": 3.0, "rows": 1000, "channels": 12, "rank": 4},
        {"ratio": 0.5, "rank": 1},
        {"ratio": 3.0, "memory": 0.0},  # no memory at all, but seen by many channels
        {
            "ratio": 3.0,
            "memory": 0.0,
            "rank": 4,
            "channels": 5,
            "driven": True,
        },  # no memory, few channels, inputs known
    ],
)
def test_rank_is_right_in_nineteen_cases_of_twenty(kind):
    kind = {"rows": 2000, "channels": 8, "rank": 3, "memory": 0.8, "driven": False, **kind}
    right = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drive = rng.normal(size=(kind["rows"], kind["rank"]))
        memory = kind["memory"] * np.diag(rng.uniform(0.75, 1.2, kind["rank"]))
        s = linear_recurrence(memory, drive, np.zeros(kind["rank"]))
        basis = np.linalg.qr(rng.normal(size=(kind["channels"], kind["rank"])))[0]
        noise = rng.uniform(0.7, 1.4, kind["channels"]) / kind["ratio"]  # per direction, not per channel
        y = (s / s.std(axis=0)) @ basis.T + noise * rng.normal(size=(kind["rows"], kind["channels"]))
        right += signal_space(y, drive if kind["driven"] else drive[:, :0]).rank == kind["rank"]
    assert right >= 38


def test_noise_has_no_signal():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        space = signal_space(rng.normal(size=(1000, 6)), rng.normal(size=(1000, 2)))
        assert space.rank == 1  # one number at least
        np.testing.assert_allclose(space.noise.mean(), 1.0, atol=0.2)


def test_basis_and_noise_are_those_of_the_record():
    for seed in range(5):
        y, u, noise, C = record(seed, rows=20_000)
        space = signal_space(y, u)
        np.testing.assert_allclose(space.W.T @ space.W, np.eye(3), atol=EXACT)
        inside = np.linalg.svd(np.linalg.qr(C)[0].T @ space.W)[1]  # cosines of the angles between the two spaces
        assert inside.min() > 0.99
        np.testing.assert_allclose(space.noise, noise, rtol=0.2)
        np.testing.assert_allclose(space.weights.T @ space.W, np.eye(3), atol=ITERATIVE)
        spread = [np.diag(M.T @ np.diag(noise) @ M).sum() for M in (space.weights, space.W)]
        assert spread[0] < spread[1]  # quiet channels have more say


def test_units_and_order_of_channels_do_not_matter():
    y, u, _, _ = record(3)
    plain = signal_space(y, u)
    scale, shift = 10.0 ** np.linspace(-8, 8, 8), np.linspace(-5, 5, 8)
    other = signal_space((y + shift) * scale, 1e5 * u + 3)
    np.testing.assert_allclose(other.scale, plain.scale * scale, rtol=1e-9)
    np.testing.assert_allclose(other.mean, (plain.mean + shift) * scale, rtol=1e-6)
    np.testing.assert_allclose(other.W, plain.W, atol=1e-6)
    np.testing.assert_allclose(other.noise, plain.noise, rtol=1e-6)
    turn = np.random.default_rng(0).permutation(8)
    turned = signal_space(y[:, turn], u)
    np.testing.assert_allclose(turned.W, plain.W[turn], atol=ITERATIVE)
    np.testing.assert_allclose(turned.noise, plain.noise[turn], rtol=ITERATIVE)


def test_constant_and_repeated_channels():
    y, u, _, _ = record(5)
    odd = np.column_stack([y, np.full(len(y), 1e6), y[:, 0], 3 * y[:, 1] + 2])
    space = signal_space(odd, np.column_stack([u, np.ones(len(u)), u[:, 0]]))
    assert space.scale[8] == 1.0
    assert not space.W[8].any()
    np.testing.assert_allclose(space.W[9], space.W[0], atol=1e-6)
    assert space.noise[[0, 9]].max() < 1e-3  # each is told by the other
    assert 3 <= space.rank <= 5


def test_given_rank_is_kept_and_spare_directions_are_no_copies():
    y, u, _, _ = record(6)
    found = signal_space(y, u).rank
    for rank in range(1, 9):
        space = signal_space(y, u, rank)
        assert space.W.shape == (8, rank)
        np.testing.assert_allclose(space.W.T @ space.W, np.eye(rank), atol=EXACT)
    assert signal_space(y, u, spare=2).rank == found + 2
    assert signal_space(np.hstack([y[:, :3], 2 * y[:, :3] + 1]), u, spare=9).rank == 3


def test_refusals():
    y, u = np.random.default_rng(0).normal(size=(200, 3)), np.empty((200, 0))
    with pytest.raises(DataError, match="ever moves"):
        signal_space(np.ones((200, 2)), u)
    with pytest.raises(DataError, match="too few"):
        signal_space(y[:8], u[:8])
