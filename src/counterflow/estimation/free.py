"""The free form of a system from logs: its states belong to nobody, only what the units' numbers do counts.

::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],      s[t] = C h[t] + v[t]          C has a row for every number of every unit

The order can then be smaller than the number of numbers. So that questions work as in the partitioned form, what is
handed on is the same system written with the numbers without their noise, s̄ = C h, among the states: unit m owns s̄_m,
and each state of h is put to the unit whose numbers it moves most, which changes no answer::

    s̄[t] = C A h[t-1] + C B u[t-1] + C w[t-1]

Uncertainty is that of A, B, C and the filter's gain K together (Gaussian prediction errors of the settled filter). The
basis of h is not determined by anything; no answer depends on it, so the pseudo-inverse of the information serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, slices
from counterflow.errors import CounterflowError, DataError
from counterflow.estimation.information import QUICK_FORM, quadratic_form, unbroken
from counterflow.estimation.layout import own_blocks
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.optimiser import Estimated, maximum_likelihood
from counterflow.estimation.parameters import Parameters
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.filtering import compress, rts_smoother, steady_state
from counterflow.filtering.initial import lyapunov
from counterflow.identification import choose_order, independent_noises, subspaces
from counterflow.identification.subspace import shrink

FLAT = 0.01  # nats for each parameter that eight steps must be worth, to go on
TURNS = 4  # of maximum likelihood given C, and C given the states, at most
DONE = 0.02  # nats for each parameter that a turn must bring for another one
MOST_STATES = 60
JUDGES = 60_000  # held-out rows that the order is judged by
WORTHLESS = 2e-4  # nats a row and number that a better order must bring
LONG = 100_000  # rows beyond which a stretch is fitted first
STRETCH = 40_000
LEAST_NOISE = 1e-4  # of a number's variance
LEAST_PROCESS = 1e-3  # of the variance with which the next rows determine a state
ROOM = 0.05  # least eigenvalue of a noise's correlations at the start


@dataclass(frozen=True)
class FreeSystem:
    """A, B, Q of the states of nobody, C and R of all numbers."""

    record: SharedRecord  # one block of states; numbers and inputs of all units
    found: Estimated

    @property
    def C(self) -> FloatArray:
        return self.record.observation


def identify_free(
    s: FloatArray, u: FloatArray, windows: tuple[int, int, list[slice]], split: tuple[list[slice], list[slice]],
    order: int | None, tolerance: float, evaluations: int, progress: Callable[[int, float], None] | None,
) -> FreeSystem:  # fmt: skip
    """Subspace start, then maximum likelihood of A, B, Q, R and C."""
    whole = _subspace_start(s, u, windows, split, order)
    rows = middle_stretch(s)  # the subspace start has seen everything; a stretch is enough to refine it
    record = replace(whole, values=s[rows], u=u[rows])
    A, B = record.A_local, record.B_local
    Q, R = record.Q_local, record.noise
    climbed = -np.inf
    for turn in range(TURNS):
        floors = least_noises(record, A)
        record = replace(record, Q_local=roomier(Q, floors[0]), noise=roomier(R, floors[1]))
        found = maximum_likelihood(
            record, "system", floors=floors, start=(A, B), tolerance=tolerance, flat=FLAT,
            evaluations=max(evaluations // TURNS, 3), progress=progress,
        )  # fmt: skip
        assert found.R is not None
        A, B, Q, R = found.A, found.B, found.Q, found.R
        record = replace(record, noise=R, Q_local=Q, A_local=A, B_local=B)
        assert found.parameters is not None
        size = found.parameters.coupling_size() + found.parameters.noise_size() + record.observation.size
        done, climbed = found.log_likelihood - climbed < DONE * size, found.log_likelihood
        if turn == TURNS - 1 or done:
            break
        record = replace(record, observation=_observation(record, found))
    record = replace(record, values=s, u=u)
    return FreeSystem(record, replace(found, converged=done))


def _subspace_start(
    s: FloatArray, u: FloatArray, windows: tuple[int, int, list[slice]], split: tuple[list[slice], list[slice]],
    order: int | None,
) -> SharedRecord:  # fmt: skip
    """Where the likelihood starts from; ``order`` None: the fewest states that predict held-out rows as well as any."""
    past, future, runs = windows
    r = s.shape[1]
    most = r * min(past, future - 1)
    if order is not None and order > most:
        raise DataError(f"fit: {order} states are more than these rows carry; give an order of at most {most} in all")
    try:
        if order is None:
            candidates = range(1, min(most, 4 * r, MOST_STATES) + 1)
            models = subspaces(s, u, candidates, past=past, future=future, stretches=split[0])
            choice = choose_order(models, s, u, _enough(split[1]))
            # in a long record even what is worth nothing is certain
            enough = choice.lag <= np.maximum(choice.standard_errors, WORTHLESS * r)
            order = min(choice.order, int(np.array(choice.orders)[enough].min()))
        (start,) = subspaces(s, u, [order], past=past, future=future, stretches=runs)
        Q, R = (roomy(noise) for noise in independent_noises(start.A, start.C, start.K, start.innovation))
        A, B, C = start.A, start.B, start.C
    except CounterflowError as error:
        if order is not None and order != r:
            raise DataError(f"fit: {order} states cannot be identified from these rows: {error}") from error
        A, B, C, Q, R = _plain_start(s, u)
    return SharedRecord(
        names=("all units",), states=(len(A),), inputs=(u.shape[1],), values=s, u=u, observation=C, noise=R,
        A_local=A, B_local=B, Q_local=Q,
    )  # fmt: skip


def _enough(runs: list[slice]) -> list[slice]:
    """The first stretches, of not more rows than it takes to tell orders apart."""
    out, left = [], JUDGES
    for run in runs:
        if left > 0:
            out.append(slice(run.start, min(run.stop, run.start + left)))
            left -= run.stop - run.start
    return out


def _plain_start(s: FloatArray, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """One lag by least squares, the numbers as states: where there is too little for more."""
    r = s.shape[1]
    measured = np.asarray(np.isfinite(s).all(axis=1), bool)
    rows = np.flatnonzero(measured[1:] & measured[:-1]) + 1
    x, target = np.hstack([s, u])[rows - 1], s[rows]
    gram = x.T @ x
    ridge = 1e-2 * np.diag(np.diag(gram)) + 1e-9 * np.eye(len(gram))
    W = np.asarray(np.linalg.solve(gram + ridge, x.T @ target).T, np.float64)
    A, B = shrink(W[:, :r], 0.98), W[:, r:]
    rest = target - x @ W.T
    noise = roomy(rest.T @ rest / max(len(rows), 1) + 1e-6 * np.eye(r))
    return A, B, np.eye(r), 0.5 * noise, 0.5 * noise


def least_noises(record: SharedRecord, A: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Noises that a whole system has at the least, block by block.

    Of a number: a ten thousandth of its variance; quantised and held channels would have less, and none at all is no
    likelihood. Of a state: a thousandth of the variance with which its next rows would determine it.
    """
    R = np.zeros_like(record.noise)
    np.fill_diagonal(R, LEAST_NOISE * np.nanvar(record.values, axis=0))
    white = np.linalg.solve(np.linalg.cholesky(record.noise), record.observation)
    seen, step = np.zeros_like(A), white
    for _ in range(len(A)):
        seen += step.T @ step
        step = step @ A
    seen += 1e-9 * np.trace(seen) * np.eye(len(A))
    whole = LEAST_PROCESS * np.linalg.inv(seen)
    return own_blocks((whole + whole.T) / 2, record.state_slices, record.state_slices), R


def roomier(noise: FloatArray, floor: FloatArray) -> FloatArray:
    """A noise that is larger than its floor, to start from."""
    values = np.linalg.eigvalsh(noise - 1.01 * floor)
    return noise if values[0] > 0 else noise + 1.01 * floor


def middle_stretch(s: FloatArray) -> slice:
    """All rows; of a long record, a stretch in its middle, if most of that was measured."""
    if len(s) <= LONG:
        return slice(0, len(s))
    start = (len(s) - STRETCH) // 2
    rows = slice(start, start + STRETCH)
    return rows if np.isfinite(s[rows]).all(axis=1).mean() > 0.5 else slice(0, len(s))


def roomy(noise: FloatArray) -> FloatArray:
    """A covariance to start from that is not nearly singular: from there likelihood would hardly find the way back."""
    scale = np.sqrt(np.diag(noise))
    values, vectors = np.linalg.eigh(noise / scale / scale[:, None])
    out = (vectors * np.maximum(values, ROOM)) @ vectors.T * scale * scale[:, None]
    return np.asarray((out + out.T) / 2)


def _observation(record: SharedRecord, found: Estimated) -> FloatArray:
    """C that fits the states best, given all rows: one step of expectation-maximisation."""
    filtered = record.filter(found.A, found.B, found.Q)
    labels, patterns = record.presence
    smoothed = rts_smoother(filtered, found.A, found.Q, sums=True, groups=labels)
    assert smoothed.group_sums is not None
    whole = np.asarray(patterns.all(axis=1), bool)
    rows = whole[labels]
    h, s = smoothed.smoothed[rows], record.values[rows]
    moment = h.T @ h + np.tensordot(whole.astype(np.float64), smoothed.group_sums, 1)
    return np.asarray(np.linalg.solve(moment, h.T @ s).T)


# ---- the same system with states that have owners


@dataclass(frozen=True)
class Owned:
    """The system with the numbers among its states, in the order of the units."""

    A: FloatArray
    B: FloatArray
    Q: FloatArray
    states: tuple[int, ...]
    observation: FloatArray  # (r, P)
    combine: FloatArray  # (P, N): the new states are combine @ h
    columns: NDArray[np.intp]  # where h stands among the new states


def owned(free: FreeSystem, own: Sequence[slice]) -> Owned:
    """Write a free system with owners of its states."""
    A, B, Q, C = free.found.A, free.found.B, free.found.Q, free.C
    N, r = len(A), len(C)
    energy = C**2 * np.diag(_spread_of_states(A, B, Q, free.record.u))  # what each state adds to each number
    owner = np.array([energy[o].sum(axis=0) for o in own]).argmax(axis=0)
    rows: list[FloatArray] = []
    states, columns = [], np.zeros(N, np.intp)
    observation = np.zeros((r, N + r))
    at = 0
    for m, numbers in enumerate(own):
        mine = np.flatnonzero(owner == m)
        width = numbers.stop - numbers.start
        observation[numbers, at : at + width] = np.eye(width)
        rows += [C[numbers], np.eye(N)[mine]]
        columns[mine] = at + width + np.arange(len(mine))
        states.append(width + len(mine))
        at += width + len(mine)
    T = np.vstack(rows)
    wide = np.zeros((N + r, N + r))
    wide[:, columns] = T @ A
    return Owned(wide, T @ B, T @ Q @ T.T, tuple(states), observation, T, columns)


def _spread_of_states(A: FloatArray, B: FloatArray, Q: FloatArray, u: FloatArray) -> FloatArray:
    drive = u @ B.T
    return lyapunov(A, Q + drive.T @ drive / len(u))


def free_uncertainty(free: FreeSystem, whole: Owned, record: SharedRecord, scale: FloatArray) -> Uncertainty | None:
    """Covariance of the entries of [A B] of the system with owners; None if that would take minutes."""
    A, B, C = free.found.A, free.found.B, free.C
    Q, R = free.found.Q, free.record.noise
    N, r, U = len(A), len(C), B.shape[1]
    if (N + r) * (2 * N + U + r) > QUICK_FORM or len(whole.A) * (len(whole.A) + U) > QUICK_FORM:
        return None
    settled = steady_state(A, C, Q, R)
    X = settled.predicted_covariance
    L = np.linalg.cholesky(C @ X @ C.T + R)
    K = np.linalg.solve(L.T, np.linalg.solve(L, C @ X)).T
    F = A - A @ K @ C
    filtered = free.record.filter(A, B, Q)
    predicted, u = filtered.predicted, free.record.u
    e = np.nan_to_num(free.record.values - predicted @ C.T)
    # an innovation moves by -C dx[t] - dC x[t], where dx[t+1] = F dx[t] + dA x[t] + dB u[t] + d(AK) e[t] - AK dC x[t]
    regressors = np.hstack([predicted[:-1], u[:-1], e[:-1], predicted[1:]])
    pieces, rows = unbroken(free.record, regressors)
    seen = np.linalg.solve(L, np.hstack([C, np.eye(r)]))
    grown = np.zeros((N + r, N + r))
    grown[:N, :N] = F
    weight = np.zeros((N + r, N + r))
    weight[:N, :N] = lyapunov(F.T, F.T @ (seen.T @ seen)[:N, :N] @ F)
    form = quadratic_form(grown, weight + seen.T @ seen, pieces)
    width = 2 * N + U + r
    basis = np.zeros((N * (N + U + r) + r * N, N + r, width))
    count = 0
    for i in range(N):
        for j in range(N + U + r):
            basis[count, i, j] = 1.0
            count += 1
    gain = A @ K
    for i in range(r):
        for j in range(N):
            basis[count, N + i, N + U + r + j] = 1.0
            basis[count, :N, j] = -gain[:, i]
            count += 1
    flat = basis.reshape(count, -1)
    information = rows * (flat @ form @ flat.T)
    size = np.sqrt(np.maximum(np.diag(information), 1e-300))
    values, vectors = np.linalg.eigh(information / np.outer(size, size))
    keep = slice(N * N, None)  # the basis of h: so many directions in which nothing changes
    half = vectors[:, keep] / np.sqrt(np.maximum(values[keep], 1e-12 * values[-1])) / size[:, None]
    parameters = Parameters(record, "blocks", np.eye(len(whole.A)))
    root = _entries(parameters, whole, free, half, scale)
    return Uncertainty(parameters, np.asarray(root @ root.T))


def _entries(parameters: Parameters, whole: Owned, free: FreeSystem, half: FloatArray, scale: FloatArray) -> FloatArray:
    """How every packed entry of the owned [A B] moves with each direction of (A, B, gain, C)."""
    A, B, C = free.found.A, free.found.B, free.C
    N, r, U = len(A), len(C), B.shape[1]
    directions = half.shape[1]
    inner = half[: N * (N + U + r)].reshape(N, N + U + r, directions)
    dA, dB = inner[:, :N], inner[:, N : N + U]
    dC = half[N * (N + U + r) :].reshape(r, N, directions)
    T = whole.combine
    numbers = whole.observation.argmax(axis=1)  # where each number stands among the new states
    wide = np.zeros((len(T), len(T) + U, directions))
    wide[:, whole.columns] = np.einsum("in,njk->ijk", T, dA)
    wide[:, len(T) :] = np.einsum("in,njk->ijk", T, dB)
    wide[numbers[:, None], whole.columns] += np.einsum("rnk,nj->rjk", dC, A)
    wide[numbers, len(T) :] += np.einsum("rnk,nj->rjk", dC, B)
    wide[:, len(T) :] /= scale[None, :, None]
    return np.stack([parameters.pack(np.ascontiguousarray(wide[:, :, k])) for k in range(directions)], axis=1)


def standard_free(
    free: FreeSystem, names: tuple[str, ...], inputs: tuple[int, ...], own: Sequence[slice], scale: FloatArray
) -> tuple[SharedRecord, Estimated, FloatArray, FloatArray, Uncertainty | None]:
    """The record and estimate in the form of sufficient messages; observation and noise of the numbers; uncertainty."""
    whole = owned(free, own)
    B = whole.B / scale
    R = own_blocks(free.record.noise, own, own)
    values, observation = [], np.zeros_like(whole.observation)
    for numbers in own:
        squeezed = compress(whole.observation[numbers], R[numbers, numbers])
        values.append(free.record.values[:, numbers] @ squeezed.reach.T)
        observation[numbers] = squeezed.observation
    states = slices(whole.states)
    A_local, Q_local = (own_blocks(matrix, states, states) for matrix in (whole.A, whole.Q))
    B_local = own_blocks(B, states, slices(inputs))
    record = SharedRecord(
        names=names, states=whole.states, inputs=inputs, values=np.hstack(values), u=free.record.u * scale,
        observation=observation, noise=np.eye(len(R)), A_local=A_local, B_local=B_local, Q_local=Q_local,
    )  # fmt: skip
    spread = None if free.found.parameters is None else free_uncertainty(free, whole, record, scale)
    parameters = Parameters(record, "blocks", np.eye(len(whole.A)))
    likelihood = record.filter(whole.A, B, whole.Q).log_likelihood  # of the numbers in their new form
    found = replace(
        free.found, A=whole.A, B=B, Q=whole.Q, parameters=parameters, R=None, log_likelihood=likelihood
    )  # fmt: skip
    return record, found, whole.observation, R, spread
