"""What identification keeps, whatever record it is given."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from subspace_oracle import hankel
from tolerances import EXACT

from counterflow.errors import CounterflowError
from counterflow.identification import independent_noises, lagged_gram, signal_space, stretches
from counterflow.paper.subspace import subspaces

sizes = st.integers(1, 3)


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), sizes, st.integers(0, 2), st.integers(1, 6), st.floats(0, 0.3))
@settings(max_examples=60, deadline=None)
def test_gram_is_the_sum_over_all_whole_windows(seed, rows, r, U, window, share):
    rng = np.random.default_rng(seed)
    y, u = rng.normal(size=(rows, r)), rng.normal(size=(rows, U))
    y[rng.random(rows) < share] = np.nan
    H = hankel(np.hstack([y, u]), window) if rows >= window else np.empty((0, window * (r + U)))
    H = H[np.isfinite(H).all(axis=1)]
    gram = lagged_gram(y, u, window)
    assert gram.windows == len(H)
    np.testing.assert_allclose(gram.matrix, H.T @ H, rtol=EXACT, atol=1e-11)
    covered = np.zeros(rows, dtype=bool)
    for run in stretches(y):
        covered[run] = True
    assert np.array_equal(covered, np.isfinite(y).all(axis=1))


@given(st.integers(0, 2**32 - 1), st.integers(30, 200), sizes, st.integers(0, 3), st.sampled_from([1e-8, 1.0, 1e8]))
@settings(max_examples=25, deadline=None)
def test_any_record_gives_stable_models_or_a_refusal_in_words(seed, rows, r, U, scale):
    rng = np.random.default_rng(seed)
    kinds = [
        lambda: rng.normal(size=rows),
        lambda: rng.normal(size=rows).cumsum(),
        lambda: np.zeros(rows),
        lambda: np.ones(rows),
        lambda: np.sin(np.arange(rows)),
        lambda: (rng.random(rows) < 0.05).astype(float),
        lambda: 1.05 ** np.arange(rows),
    ]
    y = scale * np.column_stack([kinds[rng.integers(len(kinds))]() for _ in range(r)])
    u = np.column_stack([kinds[rng.integers(len(kinds))]() for _ in range(U)]) if U else np.empty((rows, 0))
    try:
        models = subspaces(y, u, [1, 2])
    except CounterflowError:  # any other error is a defect
        models = ()
    for model in models:
        assert np.abs(np.linalg.eigvals(model.A)).max() < 1
        assert np.abs(np.linalg.eigvals(model.A - model.K @ model.C)).max() < 1
        Q, R = independent_noises(model.A, model.C, model.K, model.innovation)
        for S in (Q, R, model.innovation):
            scales = np.sqrt(S.diagonal())
            assert np.linalg.eigvalsh(S / scales / scales[:, None])[0] > 0
    try:
        space = signal_space(y, u)
    except CounterflowError:
        return
    assert 1 <= space.rank <= r
    np.testing.assert_allclose(space.W.T @ space.W, np.eye(space.rank), atol=1e-9)
    assert (space.noise > 0).all()
