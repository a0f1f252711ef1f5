"""What must not matter to the filter, for any model."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag
from tolerances import ITERATES, LONG

from counterflow.filtering import kalman_filter

ROWS = 60
examples = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
sizes = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2))
radii = st.sampled_from([0.0, 0.5, 0.95, 1.0, 1.02])


def problem(seed, size, radius, missing):
    rng = np.random.default_rng(seed)
    P, D, U = size
    A = rng.normal(size=(P, P))
    A *= radius / max(np.abs(np.linalg.eigvals(A)).max(), 1e-3)
    G, H = rng.normal(size=(P, P)), rng.normal(size=(D, D))
    y = rng.normal(size=(ROWS, D))
    if missing:
        y[20:30] = np.nan
        y[rng.random(y.shape) < 0.2] = np.nan
    arrays = (y, rng.normal(size=(ROWS, U)), A, rng.normal(size=(P, U)), rng.normal(size=(D, P)))
    return rng, (*arrays, G @ G.T, H @ H.T + 0.2 * np.eye(D)), (rng.normal(size=P), np.eye(P))


def run(args, start):
    return kalman_filter(*args, initial_mean=start[0], initial_covariance=start[1])


def same(a, b, tolerance=LONG):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(np.abs(b).max(initial=0), 1))


@examples
@given(seeds, sizes, sizes, radii, st.booleans())
def test_units_without_coupling_are_filtered_each_alone(seed, first, second, radius, missing):
    _, one, start_one = problem(seed, first, radius, missing)
    _, two, start_two = problem(seed + 1, second, radius, missing)
    stacked = (np.hstack([one[0], two[0]]), np.hstack([one[1], two[1]]))
    joint = (*stacked, *(block_diag(a, b) for a, b in zip(one[2:], two[2:], strict=True)))
    mean = np.concatenate([start_one[0], start_two[0]])
    together = run(joint, (mean, block_diag(start_one[1], start_two[1])))
    alone, other = run(one, start_one), run(two, start_two)
    same(together.filtered, np.hstack([alone.filtered, other.filtered]))
    same(together.log_likelihood, alone.log_likelihood + other.log_likelihood)


@examples
@given(seeds, sizes, radii, st.booleans())
def test_basis_of_the_state_does_not_matter(seed, size, radius, missing):
    rng, (y, u, A, B, C, Q, R), start = problem(seed, size, radius, missing)
    V = np.linalg.qr(rng.normal(size=A.shape))[0] * rng.uniform(0.5, 2.0, size=len(A))
    inverse = np.linalg.inv(V)
    Q2, P2 = V @ Q @ V.T, V @ start[1] @ V.T
    other = (y, u, V @ A @ inverse, V @ B, C @ inverse, (Q2 + Q2.T) / 2, R)
    a, b = run((y, u, A, B, C, Q, R), start), run(other, (V @ start[0], (P2 + P2.T) / 2))
    same(b.log_likelihood, a.log_likelihood, ITERATES)
    same(b.filtered @ other[4].T, a.filtered @ C.T, ITERATES)


@examples
@given(seeds, sizes, st.sampled_from([0.5, 0.95]))
def test_default_start_does_not_depend_on_the_basis(seed, size, radius):
    rng, (y, u, A, B, C, Q, R), _ = problem(seed, size, radius, False)
    A = block_diag(A, 1.0)  # one integrator more: a vague start
    C = np.hstack([C, np.ones((len(C), 1))])
    B, Q = np.vstack([B, np.ones((1, B.shape[1]))]), block_diag(Q, 0.3)
    V = np.linalg.qr(rng.normal(size=A.shape))[0] * rng.uniform(0.5, 2.0, size=len(A))
    inverse = np.linalg.inv(V)
    Q2 = V @ Q @ V.T
    a = kalman_filter(y, u, A, B, C, Q, R)
    b = kalman_filter(y, u, V @ A @ inverse, V @ B, C @ inverse, (Q2 + Q2.T) / 2, R)
    same(b.log_likelihood, a.log_likelihood, 1e-6)  # the vague start costs six digits
    same(b.filtered @ inverse.T @ C.T, a.filtered @ C.T, 1e-6)


@examples
@given(seeds, sizes, radii, st.booleans())
def test_order_of_the_channels_does_not_matter(seed, size, radius, missing):
    rng, (y, u, A, B, C, Q, R), start = problem(seed, size, radius, missing)
    order = rng.permutation(len(C))
    a = run((y, u, A, B, C, Q, R), start)
    b = run((y[:, order], u, A, B, C[order], Q, R[np.ix_(order, order)]), start)
    same(b.filtered, a.filtered)
    same(b.log_likelihood, a.log_likelihood)


@examples
@given(seeds, sizes, radii, st.booleans())
def test_units_of_the_channels_only_shift_the_likelihood(seed, size, radius, missing):
    rng, (y, u, A, B, C, Q, R), start = problem(seed, size, radius, missing)
    scale = np.exp(rng.normal(size=len(C)) * 3)
    a = run((y, u, A, B, C, Q, R), start)
    b = run((y * scale, u, A, B, C * scale[:, None], Q, R * scale * scale[:, None]), start)
    same(b.filtered, a.filtered)
    same(b.log_likelihood + (np.log(scale) * ~np.isnan(y)).sum(), a.log_likelihood)


@examples
@given(seeds, sizes, radii, st.booleans())
def test_a_channel_read_twice_with_twice_the_noise_is_the_channel(seed, size, radius, missing):
    _, (y, u, A, B, C, Q, R), start = problem(seed, size, radius, missing)
    a = run((y, u, A, B, C, Q, np.diag(np.diagonal(R))), start)
    b = run((np.hstack([y, y]), u, A, B, np.vstack([C, C]), Q, np.diag(2 * np.tile(np.diagonal(R), 2))), start)
    same(b.filtered, a.filtered)


@examples
@given(seeds, sizes, radii, st.booleans())
def test_later_rows_do_not_change_earlier_estimates(seed, size, radius, missing):
    _, (y, u, *model), start = problem(seed, size, radius, missing)
    whole, part = run((y, u, *model), start), run((y[:40], u[:40], *model), start)
    same(part.filtered, whole.filtered[:40])
