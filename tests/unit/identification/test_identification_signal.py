"""The signal space of a unit: rank, basis, noise, and what may not change it."""

from __future__ import annotations

import numpy as np
import pytest
from subspace_oracle import random_system, simulate
from tolerances import EXACT, ITERATIVE

from counterflow.errors import DataError, OptionError
from counterflow.identification import lift, project, signal_space
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
        right += signal_space(y, u=drive if kind["driven"] else None).rank == kind["rank"]
    assert right >= 38


def test_noise_has_no_signal():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        space = signal_space(rng.normal(size=(1000, 6)), u=rng.normal(size=(1000, 2)))
        assert not (space.correlations > space.edge).any()
        assert (space.shared, space.rank) == (0, 1)  # one number at least
        np.testing.assert_allclose(space.noise.mean(), 1.0, atol=0.2)


def test_basis_and_noise_are_those_of_the_record():
    for seed in range(5):
        y, u, noise, C = record(seed, rows=20_000)
        space = signal_space(y, u=u)
        np.testing.assert_allclose(space.W.T @ space.W, np.eye(3), atol=EXACT)
        inside = np.linalg.svd(np.linalg.qr(C)[0].T @ space.W)[1]  # cosines of the angles between the two spaces
        assert inside.min() > 0.99
        np.testing.assert_allclose(space.noise, noise, rtol=0.2)
        np.testing.assert_allclose(space.weights.T @ space.W, np.eye(3), atol=ITERATIVE)
        z = (y - space.mean) / space.scale
        spread = [np.diag(M.T @ np.diag(noise) @ M).sum() for M in (space.weights, space.W)]
        assert spread[0] < spread[1]  # quiet channels have more say
        np.testing.assert_allclose(project(space, y), z @ space.W, rtol=EXACT)


def test_units_and_order_of_channels_do_not_matter():
    y, u, _, _ = record(3)
    plain = signal_space(y, u=u)
    scale, shift = 10.0 ** np.linspace(-8, 8, 8), np.linspace(-5, 5, 8)
    other = signal_space((y + shift) * scale, u=1e5 * u + 3)
    np.testing.assert_allclose(other.scale, plain.scale * scale, rtol=1e-9)
    np.testing.assert_allclose(other.mean, (plain.mean + shift) * scale, rtol=1e-6)
    np.testing.assert_allclose(other.W, plain.W, atol=1e-6)
    np.testing.assert_allclose(other.noise, plain.noise, rtol=1e-6)
    turn = np.random.default_rng(0).permutation(8)
    turned = signal_space(y[:, turn], u=u)
    np.testing.assert_allclose(turned.W, plain.W[turn], atol=ITERATIVE)
    np.testing.assert_allclose(turned.noise, plain.noise[turn], rtol=ITERATIVE)


def test_missing_rows_are_left_out():
    y, u, _, C = record(4, rows=6000)
    gone = np.random.default_rng(0).choice(6000, 60, replace=False)
    holes = y.copy()
    holes[gone, 2] = np.nan
    space = signal_space(holes, u=u)
    assert space.rank == 3
    np.testing.assert_allclose(space.mean, np.delete(y, gone, axis=0).mean(axis=0), rtol=1e-9)
    assert np.linalg.svd(np.linalg.qr(C)[0].T @ space.W)[1].min() > 0.99
    assert np.isnan(project(space, holes)[gone]).all()


def test_constant_and_repeated_channels():
    y, u, _, _ = record(5)
    odd = np.column_stack([y, np.full(len(y), 1e6), y[:, 0], 3 * y[:, 1] + 2])
    space = signal_space(odd, u=np.column_stack([u, np.ones(len(u)), u[:, 0]]))
    assert space.scale[8] == 1.0
    assert not space.W[8].any()
    np.testing.assert_allclose(space.W[9], space.W[0], atol=1e-6)
    assert space.noise[[0, 9]].max() < 1e-3  # each is told by the other
    assert 3 <= space.rank <= 5


def test_given_rank_is_kept_and_the_strongest_directions_are_taken():
    y, u, _, _ = record(6)
    for rank in range(1, 9):
        space = signal_space(y, rank=rank, u=u)
        assert space.W.shape == (8, rank)
        np.testing.assert_allclose(space.W.T @ space.W, np.eye(rank), atol=EXACT)
    changes = np.random.default_rng(0).normal(size=(5, 8))
    np.testing.assert_allclose(project(space, space.mean + lift(space, changes)), changes, atol=1e-9)


def test_one_channel_and_a_space_among_more_channels():
    y, _, _, _ = record(7, channels=1, rank=1)
    space = signal_space(y)
    assert (space.rank, abs(space.W[0, 0])) == (1, 1.0)
    wide = space.spread(np.array([False, True]))
    assert wide.W.ravel().tolist() == [0.0, space.W[0, 0]]
    assert np.isnan(wide.noise[0])
    measured = np.column_stack([np.full(len(y), np.nan), y[:, 0]])
    np.testing.assert_array_equal(project(wide, measured), project(space, y))


def test_refusals():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(200, 3))
    for rank in (0, 4, True):
        with pytest.raises(OptionError, match="between 1 and 3"):
            signal_space(y, rank=rank)
    with pytest.raises(DataError, match="ever moves"):
        signal_space(np.ones((200, 2)))
    with pytest.raises(DataError, match="too few"):
        signal_space(y[:8])
    with pytest.raises(DataError, match="0 rows"):
        signal_space(np.full((50, 2), np.nan))
    with pytest.raises(DataError, match="3 channels"):
        project(signal_space(y), y[:, :2])
    with pytest.raises(DataError, match="rank"):
        lift(signal_space(y, rank=2), np.zeros((1, 3)))
    with pytest.raises(OptionError, match="marks 1"):
        signal_space(y).spread(np.array([True, False]))
