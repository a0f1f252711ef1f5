"""The weak prior of private fits: the same in every basis, no weight where data speak, honest where they do not."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import counterflow as cf
from counterflow.exchange.compression import sufficient_message
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import maximum_likelihood
from counterflow.learning.parameters import Parameters
from counterflow.learning.uncertainty import STRENGTH, faint_couplings, uncertainty, weak_prior

by_rows = partial(cf.Privacy, release="rows")  # what these tests are about

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
RECORDING = PLANT.simulate(3000, rng=2)
MODELS = PLANT.locals()


def record_of(plant: cf.Plant = PLANT, recording: cf.Recording = RECORDING, fog: float = 0.0):
    """Messages with unit noise, seen through so much fog: C̃ and the signal are that much smaller."""
    messages = [sufficient_message(n, plant.local(n), recording[n].y, recording[n].u) for n in plant.names]
    record = SharedRecord.from_messages(messages)
    noise = fog * np.random.default_rng(5).standard_normal(record.values.shape)
    scale = 1 / np.sqrt(1 + fog**2)
    return replace(record, values=(record.values + noise) * scale, observation=record.observation * scale)


def strength(record, A: np.ndarray, B: np.ndarray, effect: int, cause: int) -> tuple[float, float]:
    """By its definition, with plain sums: variance added over variance foreseen."""
    own, other, u = record.state_slices[effect], record.state_slices[cause], record.u[:, record.input_slices[cause]]
    covariances = []
    for k, at in ((effect, own), (cause, other)):
        mine = record.u[:, record.input_slices[k]]
        drive = record.B_local[at, record.input_slices[k]] @ (mine.T @ mine / len(mine))
        noise = record.Q_local[at, at] + drive @ record.B_local[at, record.input_slices[k]].T
        total, power = np.zeros_like(noise), np.eye(len(noise))
        for _ in range(2000):
            total += power @ noise @ power.T
            power = record.A_local[at, at] @ power
        covariances.append(total)
    A_mn, B_mn = A[own, other], B[own, record.input_slices[cause]]
    added = A_mn @ covariances[1] @ A_mn.T, B_mn @ (u.T @ u / len(u)) @ B_mn.T
    return tuple(float(np.trace(np.linalg.solve(covariances[0], x))) for x in added)  # type: ignore[return-value]


def test_the_prior_measures_strength_as_it_is_defined() -> None:
    # inputs of different units are independent in the long run only: the prior sees their joint second moments
    record = record_of()
    prior = weak_prior(record, "couplings")
    assert prior is not None
    parameters = Parameters(record, "couplings", np.eye(4))
    for effect, cause in ((0, 1), (1, 0)):
        A, B = np.zeros((4, 4)), np.zeros((4, 4))
        own, other = record.state_slices[effect], record.state_slices[cause]
        A[own, other] = PLANT.A[own, other]
        one = prior(parameters.pack(np.hstack([A, B])))[0]
        assert 2 * one * STRENGTH / 4 == pytest.approx(strength(record, A, B, effect, cause)[0], rel=0.1)
        B[own, record.input_slices[cause]] = PLANT.B[own, record.input_slices[cause]]
        both = prior(parameters.pack(np.hstack([A, B])))[0] - one
        assert 2 * both * STRENGTH / 4 == pytest.approx(strength(record, A, B, effect, cause)[1], rel=0.1)


def test_a_change_of_basis_and_of_units_changes_no_estimate() -> None:
    """States of the boiler in another basis, inputs of the turbine in other units: the same system and estimate."""
    record = record_of(fog=20.0)
    T, S = (
        np.kron(np.diag([1.0, 0.0]), [[3.0, 1.0], [0.0, 0.2]]) + np.diag([0, 0, 1.0, 1.0]),
        np.diag([1, 1, 1e3, 1e-2]),
    )
    inverse = np.linalg.inv(T)
    turned = replace(
        record,
        A_local=T @ record.A_local @ inverse,
        B_local=T @ record.B_local @ np.linalg.inv(S),
        Q_local=T @ record.Q_local @ T.T,
        observation=record.observation @ inverse,
        u=record.u @ S,
    )
    one, two = (
        maximum_likelihood(r, "couplings", penalty=weak_prior(r, "couplings"), tolerance=1e-7) for r in (record, turned)
    )
    assert np.allclose(T @ one.A @ inverse, two.A, rtol=1e-4, atol=1e-5 * np.abs(two.A).max())
    assert np.allclose(T @ one.B @ np.linalg.inv(S), two.B, rtol=1e-4, atol=1e-5 * np.abs(two.B).max())
    doubts = [[(f.effect, f.cause, f.doubt) for f in faint_couplings(r, e)] for r, e in ((record, one), (turned, two))]
    assert [d[:2] for d in doubts[0]] == [d[:2] for d in doubts[1]]
    assert np.allclose([d[2] for d in doubts[0]], [d[2] for d in doubts[1]], rtol=1e-6)


def test_where_data_speak_the_prior_has_no_weight() -> None:
    record = record_of()
    plain, leaning = (
        maximum_likelihood(record, "couplings", penalty=p) for p in (None, weak_prior(record, "couplings"))
    )
    errors = np.hstack(uncertainty(record, plain).standard_errors)
    moved = np.abs(np.hstack([leaning.A - plain.A, leaning.B - plain.B]))
    assert leaning.converged
    assert (moved[errors > 0] < 0.1 * errors[errors > 0]).all()
    assert faint_couplings(record, leaning) == ()


def test_where_noise_drowns_all_the_estimate_stays_within_reason_and_says_so() -> None:
    """Fog in which the maximum of the likelihood alone is further from the truth than no answer at all."""
    away, kept = [], []
    for seed in (21, 22):
        record = record_of(recording=PLANT.simulate(500, rng=seed), fog=100.0)
        for penalty, out in ((None, away), (weak_prior(record, "couplings"), kept)):
            found = maximum_likelihood(record, "couplings", penalty=penalty, evaluations=25)
            out.append(np.linalg.norm(found.B - PLANT.B) / np.linalg.norm(PLANT.B))
    assert max(kept) < 1.0 < min(away)
    pairs = {(f.effect, f.cause) for f in faint_couplings(record, found)}
    assert pairs == {("boiler", "turbine"), ("turbine", "boiler")}
    assert faint_couplings(record, found)[0].caveat.code == "drowned-by-noise"


def test_a_private_fit_names_what_is_drowned() -> None:
    drowned = cf.fit(RECORDING, MODELS, privacy=by_rows(0.3, 1e-6, seed=1), evaluations=5)
    assert any(c.code == "drowned-by-noise" for c in drowned.caveats)
    fine = cf.fit(RECORDING, MODELS, privacy=by_rows(50.0, 1e-6, seed=1))
    assert not any(c.code == "drowned-by-noise" for c in fine.caveats)


def test_a_model_that_does_not_settle_has_no_prior() -> None:
    record = record_of()
    A = record.A_local.copy()
    A[0, 0] = 1.5
    assert weak_prior(replace(record, A_local=A), "couplings") is None


def test_only_couplings_have_a_prior() -> None:
    """With all blocks free, the units' own ones stay as free as they were."""
    record = record_of()
    prior = weak_prior(record, "blocks")
    assert prior is not None
    own = Parameters(record, "blocks", np.eye(4)).pack(
        np.hstack([np.kron(np.eye(2), np.ones((2, 2))), np.kron(np.eye(2), np.ones((2, 2)))])
    )
    assert not prior.precision[own == 1].any()
    assert prior.precision[own == 0].any(axis=1).all()
