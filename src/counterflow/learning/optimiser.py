"""Maximum likelihood of the couplings: a consistent start, then quasi-Newton steps in the metric of EM.

What is estimated: "couplings" (off-diagonal blocks of A and B; local blocks and Q given), "blocks" (all of A and B), or
"all" (process noise Q too, block-diagonal by unit). The limited-memory BFGS direction starts from the EM step, so its
first step is EM's and the rest is acceleration; steps that would make A unstable are shortened, so the estimate is
stable by construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError, ModelError, OptionError
from counterflow.learning.information import QUICK_FORM, settled_information
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import Evaluation, SharedRecord, evaluate
from counterflow.learning.parameters import ESTIMATES, Estimate, Parameters

MEMORY = 12
EM_STEPS = 6  # passes before the metric of EM gives way to the information itself, where that is cheap
MANY_STEPS = 20  # and where it is dear but the problem turns out to be hard
DEAR = 500  # rows with gaps from which on a pass costs more than the information
DEAR_RENEWAL = 3  # passes between two looks at it then
RENEWAL = 8  # passes between two looks at the information
UNTRUE = 0.1  # share of the gain it promises that a step by the information must bring
DAMPING = 1.0  # added to the information of a noise's relative size
PATIENCE = 5  # steps without progress that can be told from rounding
DROWNING = 10.0  # times the usual noise of a row's states, beyond which the start does without the row
RANK_TOLERANCE = 1e-10  # of a regressor's information, relative, below which a direction is left where it is


@dataclass(frozen=True)
class Estimated:
    """The maximum-likelihood estimate."""

    A: FloatArray
    B: FloatArray
    Q: FloatArray
    log_likelihood: float = field(metadata={"missing": True})  # NaN: moments of logs have none
    evaluations: int
    converged: bool
    decrement: float  # squared length of the gradient in EM's metric: what a further step could gain, about
    at_bound: bool = False  # the estimate rests on the stability bound, which the data would cross
    trace: tuple[float, ...] = field(default=(), repr=False)  # log-likelihood of every accepted step
    parameters: Parameters | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """½ (x - centre)ᵀ precision (x - centre) in the packed couplings x: what earlier data said, or is assumed."""

    centre: FloatArray  # (n,)
    precision: FloatArray  # (n, n)

    def __call__(self, x: FloatArray) -> tuple[float, FloatArray]:
        """Value and gradient."""
        gap = x - self.centre
        slope = self.precision @ gap
        return 0.5 * float(gap @ slope), slope


def maximum_likelihood(
    record: SharedRecord, estimate: Estimate = "couplings", *, start: tuple[FloatArray, FloatArray] | None = None,
    tolerance: float = 1e-5, evaluations: int = 200, penalty: Quadratic | None = None,
    known: KnownEdges | None = None, progress: Callable[[float, str], None] | None = None,
) -> Estimated:  # fmt: skip
    """Estimate couplings from a shared record.

    ``start``: full A and B; by default bias-compensated least squares, or no coupling where that is not to be had.
    ``tolerance``: what a gradient may still move the estimates, in (complete-data) standard errors. ``evaluations``:
    passes over the data, at most. ``penalty``: added to the negative log-likelihood, what earlier data said or a prior.
    ``known``: couplings that there can be. ``progress``: called with the share that is done, and the pass in words.
    """
    if estimate not in ESTIMATES:
        raise OptionError(f"fit: option 'estimate' must be one of {', '.join(map(repr, ESTIMATES))}, got {estimate!r}")
    parameters = Parameters(record, estimate, _noise_root(record), known)
    limit = _stability_limit(record)
    local = np.hstack([record.A_local, record.B_local])
    A, B = start if start is not None else least_squares_start(record, estimate, limit, known)
    packed = parameters.pack(np.hstack([A, B]))
    if start is None and penalty is not None and penalty(packed)[0] > len(packed):
        packed = parameters.pack(local)  # noise has sent the start further out than can be believed
    vector = np.concatenate([packed, np.zeros(parameters.noise_size())])
    return _climb(record, parameters, local, vector, limit, tolerance, evaluations, penalty, progress)


def _climb(
    record: SharedRecord, parameters: Parameters, local: FloatArray, vector: FloatArray, limit: float,
    tolerance: float, evaluations: int, penalty: Quadratic | None, progress: Callable[[float, str], None] | None,
) -> Estimated:  # fmt: skip
    P, size, process = record.A_local.shape[0], parameters.coupling_size(), parameters.process
    fixed = local - parameters.unpack(parameters.pack(local))  # what does not move, e.g. the local blocks
    count, done = 0, 0.0

    def look(x: FloatArray) -> tuple[Evaluation, float, FloatArray]:
        nonlocal count
        count += 1
        coupling = fixed + parameters.unpack(x[:size])
        Q = process.covariance(x[size:]) if process.size else record.Q_local
        at = evaluate(record, coupling[:, :P], coupling[:, P:], Q)
        gradient = parameters.pack(np.asarray(np.linalg.solve(at.Q, at.gap), np.float64))
        noise = process.gradient(x[size:], at.Q, at.noise_moment - at.steps * at.Q)
        gradient = np.concatenate([gradient, noise])
        value = at.log_likelihood
        if penalty is not None:
            extra, slope = penalty(x[:size])
            value -= extra
            gradient[:size] -= slope
        if progress:
            progress(done, f"pass {count}, log-likelihood {at.log_likelihood:.6g}")
        return at, value, gradient

    def radius(x: FloatArray) -> float:
        A = (fixed + parameters.unpack(x[:size]))[:, :P]
        return float(np.abs(np.linalg.eigvals(A)).max())

    try:
        at, value, gradient = look(vector)
    except CounterflowError:  # a start too wild to be filtered (measurements that never move): no coupling, then
        vector = np.concatenate([parameters.pack(local), np.zeros(parameters.noise_size())])
        at, value, gradient = look(vector)
    trace = [at.log_likelihood]
    pairs: list[tuple[FloatArray, FloatArray, float]] = []
    best, best_decrement, idle, first = at, float("inf"), 0, 0.0
    fisher, (renewal, again, every) = None, _looks(record)
    while True:
        if count >= renewal:
            fisher, pairs, renewal = _fisher_metric(record, parameters, at, vector, penalty), [], count + every
        metric = fisher or _metric(parameters, at, vector)
        decrement = float(gradient @ metric(gradient))
        if decrement < 0.5 * best_decrement:
            idle = 0
        if decrement < best_decrement:
            best, best_decrement = at, decrement
            first = first or max(decrement, tolerance**2)
            done = _share(first, decrement, tolerance**2)
        if decrement <= tolerance**2 or count >= evaluations or idle > PATIENCE:
            break
        direction = _two_loops(gradient, pairs, metric)
        slope = float(gradient @ direction)
        if not slope > 0:  # rounding has spoilt the pairs
            pairs, direction = [], metric(gradient)
            slope = decrement
        length, accepted = 1.0, None
        noise_floor = 1e-11 * abs(value)  # differences below it are rounding
        while count < evaluations and length > 1e-10:
            trial = vector + length * direction
            trial[size:] = process.clipped(trial[size:])
            if radius(trial) >= limit or process.off(trial[size:]):
                length *= 0.5
                continue
            try:
                candidate = look(trial)
            except (CounterflowError, np.linalg.LinAlgError):  # a trial too far out to be filtered: come closer
                length *= 0.25
                continue
            if candidate[1] >= value + 1e-4 * length * slope - noise_floor:
                accepted = candidate
                break
            # the top of the parabola through what is known, kept within a tenth and a half
            top = 0.5 * slope * length**2 / (slope * length - (candidate[1] - value))
            length = min(max(top, 0.1 * length), 0.5 * length)
        if accepted is None:
            break
        if fisher is not None and not pairs and slope > 2 and accepted[1] - value < UNTRUE * slope / 2:
            # still too far from the top, or the data are not as the model says: its information is of no use here
            fisher, renewal = None, again if count < again else math.inf
        if accepted[1] - value <= noise_floor:
            idle += 1  # the likelihood is as high as it can be told; only the gradient can still improve
        moved, turned = trial - vector, gradient - accepted[2]
        if (curvature := float(moved @ turned)) > 1e-14 * float(np.linalg.norm(moved) * np.linalg.norm(turned)):
            pairs = [*pairs[-(MEMORY - 1) :], (moved, turned, curvature)]
        vector, (at, value, gradient) = trial, accepted
        trace.append(at.log_likelihood)
    at, converged = best, best_decrement <= tolerance**2
    room = limit - float(np.abs(np.linalg.eigvals(at.A)).max())
    at_bound = not converged and room < 1e-3
    return Estimated(
        at.A, at.B, at.Q, at.log_likelihood, count, converged, best_decrement, at_bound, tuple(trace), parameters
    )  # fmt: skip


def _share(first: float, now: float, aim: float) -> float:
    """How far a number has fallen from the first to the aim, by its logarithm."""
    whole = math.log(first / aim) if aim > 0 and first > aim else 0.0
    return min(1.0, max(0.0, math.log(first / max(now, 1e-300)) / whole)) if whole else 1.0


def _metric(parameters: Parameters, at: Evaluation, vector: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """The linear map of one EM step: for a unit's rows, Q_m · gradient · S_xx⁻¹ on the columns that move."""
    record = parameters.record
    factors = [_inverse_root(at.S_xx[np.ix_(f, f)]) for f in parameters.free]
    size = parameters.coupling_size()

    def apply(gradient: FloatArray) -> FloatArray:
        out, at_ = np.empty_like(gradient), 0
        for own, f, n, root in zip(record.state_slices, parameters.free, record.states, factors, strict=True):
            block = gradient[at_ : at_ + n * len(f)].reshape(n, len(f))
            out[at_ : at_ + n * len(f)] = (at.Q[own, own] @ (block @ root) @ root.T).ravel()
            at_ += n * len(f)
        if len(gradient) > size:
            out[size:] = gradient[size:] * parameters.process.expected_step(vector[size:], at.steps)
        return out

    return apply


def _looks(record: SharedRecord) -> tuple[float, float, int]:
    """Passes after which forming the information costs less than the passes it saves (benchmarks/results).

    The second figure is for a first look that came too early: where rows differ, a pass costs so much that it may. The
    third: passes between two looks.
    """
    P = sum(record.states)
    side = P * (P + record.u.shape[1] + record.observation.shape[0])
    usual = EM_STEPS if side <= 1000 else (MANY_STEPS if side <= QUICK_FORM else math.inf)
    dear = not record.alike and record.steps >= DEAR and side <= QUICK_FORM
    return (1, usual, DEAR_RENEWAL) if dear else (usual, usual, RENEWAL)


def _fisher_metric(
    record: SharedRecord, parameters: Parameters, at: Evaluation, vector: FloatArray, penalty: Quadratic | None
) -> Callable[[FloatArray], FloatArray] | None:
    """The inverse of the information: with it the steps are Fisher scoring."""
    size = parameters.coupling_size()
    directions = parameters.process.directions(vector[size:])
    try:
        information = settled_information(record, parameters, at.A, at.B, at.Q, directions, at.passed)
    except CounterflowError:  # no settled filter here
        return None
    # a noise that has all but vanished tells little of its size, and must not be sent far by that
    if penalty is not None:
        information[:size, :size] += penalty.precision
    noises = np.arange(size, len(information))
    information[noises, noises] += DAMPING
    root = _inverse_root(information)
    return lambda gradient: np.asarray(root @ (root.T @ gradient))


def _inverse_root(gram: FloatArray) -> FloatArray:
    """W with W Wᵀ = gram⁺, its columns on a common scale first."""
    if gram.size == 0:
        return gram
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    scaled = gram * np.outer(inverse, inverse)
    try:
        factor = np.linalg.cholesky(scaled)
        if np.diag(factor).min() ** 2 > RANK_TOLERANCE:
            from scipy.linalg import solve_triangular

            return np.asarray(solve_triangular(factor, np.diag(inverse), lower=True).T)
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(scaled)
    keep = values > RANK_TOLERANCE * max(float(values[-1]), 1e-300)
    return np.asarray(inverse[:, None] * vectors[:, keep] / np.sqrt(values[keep]))


def _two_loops(
    gradient: FloatArray,
    pairs: list[tuple[FloatArray, FloatArray, float]],
    metric: Callable[[FloatArray], FloatArray],
) -> FloatArray:
    """Limited-memory BFGS direction of ascent, with ``metric`` as the first guess of the inverse Hessian."""
    q, weights = gradient.copy(), []
    for moved, turned, curvature in reversed(pairs):
        weight = float(moved @ q) / curvature
        q -= weight * turned
        weights.append(weight)
    direction = metric(q)
    if pairs:
        moved, turned, curvature = pairs[-1]
        direction *= curvature / float(turned @ metric(turned))
    for (moved, turned, curvature), weight in zip(pairs, reversed(weights), strict=True):
        direction += (weight - float(turned @ direction) / curvature) * moved
    return direction


def _noise_root(record: SharedRecord) -> FloatArray:
    root = np.zeros_like(record.Q_local)
    for name, own in zip(record.names, record.state_slices, strict=True):
        try:
            root[own, own] = np.linalg.cholesky(record.Q_local[own, own])
        except np.linalg.LinAlgError:
            raise ModelError(
                f"unit {name!r}: its process noise Q is singular, so the likelihood has no gradient in its couplings; "
                "give every state a small process noise, e.g. 1e-6 of its variance"
            ) from None
    return root


def _stability_limit(record: SharedRecord) -> float:
    """Radius that A must stay below: 1, or what the local blocks themselves have if they do not decay."""
    own = float(np.abs(np.linalg.eigvals(record.A_local)).max())
    return 1.0 - 1e-9 if own < 1.0 - 1e-6 else own + 1e-3


def least_squares_start(
    record: SharedRecord, estimate: Estimate, limit: float, known: KnownEdges | None = None
) -> tuple[FloatArray, FloatArray]:
    """Bias-compensated least squares on z = C̃⁺ s = h + noise of known covariance J, of every row its own.

    In Σ z zᵀ the noise adds Σ J, which is subtracted; the estimate is then consistent. Only pairs of rows count from
    which the states of every unit can be read off. Where there are too few of them, the start is no coupling at all.
    """
    P = record.A_local.shape[0]
    z, J = record.readings([np.eye(n) for n in record.states])
    readable = np.asarray(np.isfinite(z).all(axis=1))
    if J.ndim == 3 and readable.any():  # one row that hardly tells the states would drown all others
        variances = np.einsum("nii->ni", J)
        readable &= (variances <= DROWNING * np.median(variances[readable], axis=0)).all(axis=1)
    both = readable[:-1] & readable[1:]
    if both.sum() < 2 * (P + record.u.shape[1]):
        return record.A_local, record.B_local
    noise = both.sum() * J if J.ndim == 2 else J[:-1][both].sum(axis=0)
    before = np.hstack([z[:-1], record.u[:-1]])[both]
    after = z[1:][both]
    with np.errstate(over="ignore", invalid="ignore"):
        S_xx, S_yx = before.T @ before, after.T @ before
    if not (np.isfinite(S_xx).all() and np.isfinite(S_yx).all()):
        return record.A_local, record.B_local  # the filter will say what is wrong
    S_xx[:P, :P] -= _affordable(S_xx[:P, :P], noise)
    parameters = Parameters(record, estimate, np.eye(P), known=known)
    local = np.hstack([record.A_local, record.B_local])
    fixed = local - parameters.unpack(parameters.pack(local))
    target = S_yx - fixed @ S_xx
    out = fixed.copy()
    for own, f in zip(record.state_slices, parameters.free, strict=True):
        root = _inverse_root(S_xx[np.ix_(f, f)])
        out[own.start : own.stop, f] = (target[own][:, f] @ root) @ root.T
    # halve the couplings until the system is stable; with none of them it is, or as stable as its parts
    for _ in range(60):
        if float(np.abs(np.linalg.eigvals(out[:, :P])).max()) < limit:
            return out[:, :P], out[:, P:]
        out = local + 0.5 * (out - local)
    return record.A_local, record.B_local


def _affordable(gram: FloatArray, noise: FloatArray) -> FloatArray:
    """As much of ``noise`` as leaves ``gram`` safely positive definite; nothing if it is not so to begin with."""
    root = _inverse_root(gram)
    if root.shape[1] < gram.shape[0]:
        return 0.0 * noise
    worst = float(np.linalg.eigvalsh(root.T @ noise @ root)[-1])
    return noise * min(1.0, 0.9 / worst) if worst > 0 else noise
