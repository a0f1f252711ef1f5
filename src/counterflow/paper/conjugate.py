"""Conjugate directions on (theta, phi): P_m products with the Hessian a round, a handful of rounds.

Once the server has eliminated its own couplings exactly, the combined loss L_s + L_a of unit m is a quadratic function
of (theta_m, phi_m) alone. Write the change of h_a as E x[t], where x holds the unit's own y[t-1], whitened, and the
constant 1. The server treats every state alike, so its share of the Hessian acts on the rows of E by one and the same
symmetric matrix K, which the unit does not know; its own share it does::

    gradient(E) = 2 CᵀC E G + E K - N            G = E[x xᵀ]: the identity, but for channels that never move

One round shows K on P_m vectors at once: the rows of the point that was sent. The unit solves its problem in the span
of the vectors seen so far (Galerkin), sends that solution plus a preconditioned residual, and stops when the true
gradient, which the server's reply contains, is small. D_m + 1 vectors span everything, so (D_m + 1) / P_m rounds and
one to verify always suffice; fewer do, because the other units explain few directions of y.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.paper.augmented import AugmentedModel

RANK_TOLERANCE = 1e-12
MACHINE = float(np.finfo(np.float64).eps)
NEW = 1e-3  # part of a direction that must be new for it to be worth a place in the span
LOUD = 0.3  # a probe is never smaller than this part of the first one, or K would drown in rounding
FAINT = 1e-8  # and a row this much smaller than the whole residual is rounding
SPARE, EXTRAS = 1e-4, 2  # probes beyond what was asked: with a large penalty a small gradient is no small error
Gradient = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class Whitening:
    """Linear map from E (P, d+1) to changes of (theta, phi); without an offset the last column is absent.

    Rows of E belong to ``rows``: first directions that A reaches, then the others, which only phi can move.
    """

    rows: FloatArray  # W (P, P), orthonormal
    left: FloatArray  # (P, r) with A left = W[:, :r]
    right: FloatArray  # (d, D)
    right_mean: FloatArray  # (d,): right ȳ, zero without an offset
    own: FloatArray  # (P, P): 2 Wᵀ CᵀC W
    moving: FloatArray  # (d [+1],): diagonal of G
    guess: FloatArray  # (d [+1],): what K would be if the other units explained nothing

    @classmethod
    def build(cls, model: AugmentedModel, penalty: float, offset: bool) -> Whitening:
        local = model.model
        u, s, vt = np.linalg.svd(local.A)
        rank = int((s > RANK_TOLERANCE * max(s[0], np.finfo(float).tiny)).sum())
        curvature = local.C.T @ local.C
        turn = np.linalg.eigh(u[:, :rank].T @ curvature @ u[:, :rank])[1]
        rows = np.hstack([u[:, :rank] @ turn, u[:, rank:]])
        left = (vt[:rank].T / s[:rank]) @ turn
        right, right_mean, moving, stretch = _whitened_channels(model, offset)
        if penalty == 0:  # a direction that only the penalty sees is no direction then
            right, right_mean, stretch = right[moving], right_mean[moving], stretch[moving]
            moving = moving[moving]
        weights, guess = moving.astype(np.float64), 2.0 * moving + penalty * stretch
        if offset:
            weights, guess = np.append(weights, 1.0), np.append(guess, 2.0)
        return cls(rows, left, right, right_mean, 2 * rows.T @ curvature @ rows, weights, guess)

    @property
    def offset(self) -> bool:
        return bool(len(self.moving) > self.right.shape[0])

    def admissible(self, E: FloatArray) -> FloatArray:
        """Set to zero what cannot be moved: theta's part of the rows that A does not reach."""
        out = E.copy()
        out[self.left.shape[1] :, : self.right.shape[0]] = 0.0
        return out

    def to_parameters(self, E: FloatArray) -> Gradient:
        d, rank = self.right.shape[0], self.left.shape[1]
        Z = E[:rank, :d]
        theta = self.left @ Z @ self.right
        if not self.offset:
            return theta, np.zeros(self.rows.shape[0])
        return theta, self.rows @ E[:, d] - self.rows[:, :rank] @ (Z @ self.right_mean)

    def to_gradient(self, gradient: Gradient) -> FloatArray:
        """Gradient in E from those in theta and phi: the transpose of ``to_parameters``."""
        d, rank = self.right.shape[0], self.left.shape[1]
        d_theta, d_phi = gradient
        out = np.zeros((self.rows.shape[0], len(self.moving)))
        turned = self.rows.T @ d_phi
        out[:rank, :d] = self.left.T @ d_theta @ self.right.T - np.outer(turned[:rank], self.right_mean)
        if self.offset:
            out[:, d] = turned
        return out


def _whitened_channels(
    model: AugmentedModel, offset: bool
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], FloatArray]:
    """Directions of y[t-1] in which its rows are white, as rows of ``right`` (d, D).

    Returns ``right``; ``right ȳ`` (zero without an offset); which directions move at all; and for each the mean square
    of ``right y``, which is what the penalty weighs. With an offset the rows are white around their mean, because phi
    takes the mean of h_a but not of D. The mean is one direction: the first one, or, if a channel that never moves
    makes it free, one of its own.
    """
    gram = model.centred_gram if offset else model.gram
    size = np.sqrt(np.diag(gram))
    level = np.sqrt(np.diag(model.gram))
    # the channels on a common scale, so that the rank does not depend on engineering units
    size = np.where(size > RANK_TOLERANCE * level, size, np.where(level > 0, level, 1.0))
    values, vectors = np.linalg.eigh(gram / np.outer(size, size))
    keep = values > RANK_TOLERANCE * max(float(values[-1]), MACHINE)
    right = (vectors[:, keep] / np.sqrt(values[keep])).T
    moving = np.ones(right.shape[0], bool)
    if not offset:
        return right / size, np.zeros(right.shape[0]), moving, np.ones(right.shape[0])
    mean = model.mean / size
    still = vectors[:, ~keep].T @ mean
    if float(np.linalg.norm(still)) > 1e-8 * float(np.linalg.norm(mean)) > 0:
        constant = vectors[:, ~keep] @ still / float(still @ still)  # constant · y = 1 in every row
        right = np.vstack([right - np.outer(right @ mean, constant), constant])
        right_mean = np.zeros(right.shape[0])
        right_mean[-1] = 1.0
        return right / size, right_mean, np.append(moving, False), np.ones(right.shape[0])
    right_mean, stretch = right @ mean, np.ones(right.shape[0])
    if (length := float(np.linalg.norm(right_mean))) > 0:  # turn the first axis into the direction of the mean
        first = np.zeros(right.shape[0])
        first[0] = 1.0
        mirror = right_mean / length - first
        if (square := float(mirror @ mirror)) > MACHINE:
            right = right - np.outer(mirror, (2 / square) * (mirror @ right))
        right_mean = length * first
        stretch[0] = 1 + length**2
    return right / size, right_mean, moving, stretch


@dataclass(frozen=True)
class ConjugateState:
    """Where the iteration stands.

    All of E is counted from a centre (theta_0, phi_0) whose gradients are known: ``target`` is minus the whole gradient
    there, ``server`` the server's share. ``span`` (k, d+1) are the vectors that K has been seen on, ``image`` what it
    made of them. The point that was sent is ``solution`` + ``probe``; without a probe it was sent to be verified.
    """

    whitening: Whitening
    theta_0: FloatArray
    phi_0: FloatArray
    target: FloatArray
    server: FloatArray
    span: FloatArray
    image: FloatArray
    solution: FloatArray
    solution_image: FloatArray  # solution K, as far as K is known
    probe: FloatArray | None
    first: tuple[float, float]  # norms of the gradient at the start: whitened, plain
    extras: int = 0
    verified: bool = False
    relative: float = 0.0  # gradient at the verified point, relative to the start

    def parameters(self) -> Gradient:
        """(theta, phi) of the point to send."""
        E = self.solution if self.probe is None else self.solution + self.probe
        d_theta, d_phi = self.whitening.to_parameters(E)
        return self.theta_0 + d_theta, self.phi_0 + d_phi


def start(
    model: AugmentedModel, theta: FloatArray, phi: FloatArray, own: Gradient, server: Gradient, penalty: float,
    offset: bool,
) -> ConjugateState:  # fmt: skip
    """Begin at (theta, phi), where both shares of the gradient are known."""
    whitening = Whitening.build(model, penalty, offset)
    theirs = whitening.to_gradient(server)
    whole = whitening.to_gradient(own) + theirs
    nothing = np.zeros((0, len(whitening.moving)))
    zero = np.zeros_like(whole)
    first = float(np.linalg.norm(whole)), _norm(own, server)
    state = ConjugateState(whitening, theta, phi, -whole, theirs, nothing, nothing, zero, zero, None, first)
    return replace(state, verified=True) if first[1] == 0 else _next_point(state, 0.0)


def advance(state: ConjugateState, own: Gradient, server: Gradient, tolerance: float) -> ConjugateState:
    """Take in both shares of the gradient at the point that was sent, and choose the next one."""
    whitening = state.whitening
    theirs = whitening.to_gradient(server)
    whole = whitening.to_gradient(own) + theirs
    relative = max(_ratio(float(np.linalg.norm(whole)), state.first[0]), _ratio(_norm(own, server), state.first[1]))
    if relative <= tolerance:
        return replace(state, verified=True, relative=relative)
    if state.probe is None:  # rounding, or a direction not seen before: go on from here, keeping what is known of K
        theta_0, phi_0 = state.parameters()
        zero = np.zeros_like(state.solution)
        if float(np.linalg.norm(whole)) > float(np.linalg.norm(state.target)):
            # worse than the centre: rounding has spoilt what is known of K, so learn it anew from there
            nothing = np.zeros((0, state.span.shape[1]))
            fresh = replace(state, span=nothing, image=nothing, solution=zero, solution_image=zero)
            return _next_point(fresh, tolerance)
        moved = replace(
            state, theta_0=theta_0, phi_0=phi_0, target=-whole, server=theirs, solution=zero, solution_image=zero
        )
        return _next_point(moved, tolerance)
    seen = theirs - state.server - state.solution_image  # probe K, row by row
    span, image = _extended(state.span, state.image, state.probe, seen)
    return _next_point(replace(state, span=span, image=image), tolerance)


def _next_point(state: ConjugateState, tolerance: float) -> ConjugateState:
    """Solve in the span of what is known; probe along what is left, or send the solution if nothing is."""
    whitening = state.whitening
    E, EK = _galerkin(state)
    residual = whitening.admissible(state.target - whitening.own @ E * whitening.moving - EK)
    state = replace(state, solution=E, solution_image=EK)
    size, enough = float(np.linalg.norm(residual)), tolerance * state.first[0]
    if size <= SPARE * enough or (size <= 0.3 * enough and state.extras >= EXTRAS):
        return replace(state, probe=None)
    if size <= 0.3 * enough:
        state = replace(state, extras=state.extras + 1)
    curvature = np.diag(whitening.own)[:, None] * whitening.moving + whitening.guess
    probe = _loud(residual, size, state.first[0]) / curvature
    return replace(state, probe=probe if _extended(state.span, state.span, probe, probe)[0] is not state.span else None)


def _loud(residual: FloatArray, size: float, first: float) -> FloatArray:
    """The rows of a residual, each at least a fair part of the first one: K treats rows alike, so each may be scaled.

    A row that is nothing but rounding beside the others has no direction to show.
    """
    rows = np.sqrt(np.square(residual).sum(axis=1, keepdims=True))
    heard = rows > FAINT * size
    scale = np.where(heard, np.maximum(1.0, LOUD * first / np.where(heard, rows, 1.0)), 0.0)
    return scale * residual


def _galerkin(state: ConjugateState) -> tuple[FloatArray, FloatArray]:
    """The solution with rows in the span, as far as they are admissible; and its product with K."""
    whitening, span, image = state.whitening, state.span, state.image
    P, k = state.target.shape[0], span.shape[0]
    if k == 0:
        return np.zeros_like(state.target), np.zeros_like(state.target)
    rank, d = whitening.left.shape[1], whitening.right.shape[0]
    values, vectors = np.linalg.eigh((span @ image.T + image @ span.T) / 2)
    server = (vectors * np.maximum(values, 0.0)) @ vectors.T  # K has no negative direction; rounding may
    weight = (span * whitening.moving) @ span.T
    system = np.kron(whitening.own, weight) + np.kron(np.eye(P), server)
    right = (state.target @ span.T).ravel()
    basis = np.eye(P * k)
    if rank < P:  # rows that only phi moves: combinations of the span that vanish in theta's part
        _, singular, vectors = np.linalg.svd(span[:, :d].T)
        null = vectors[int((singular > 1e-9).sum()) :].T
        blocks = [np.eye(k)] * rank + [null] * (P - rank)
        basis = np.zeros((P * k, sum(b.shape[1] for b in blocks)))
        at = 0
        for i, block in enumerate(blocks):
            basis[i * k : (i + 1) * k, at : at + block.shape[1]] = block
            at += block.shape[1]
    values, vectors = np.linalg.eigh(basis.T @ system @ basis)
    keep = values > MACHINE * P * k * max(float(values[-1]), MACHINE) if values.size else np.zeros(0, bool)
    inner = (vectors[:, keep] / values[keep]) @ (vectors[:, keep].T @ (basis.T @ right))
    coefficients = (basis @ inner).reshape(P, k)
    return coefficients @ span, coefficients @ image


def _extended(
    span: FloatArray, image: FloatArray, vectors: FloatArray, seen: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Add vectors with known images to an orthonormal span; what is not new is left out."""
    for vector, product in zip(vectors, seen, strict=True):
        size = float(np.linalg.norm(vector))
        if size == 0:
            continue
        v, kv = vector / size, product / size
        for _ in range(2):
            along = span @ v
            v, kv = v - along @ span, kv - along @ image
        size = float(np.linalg.norm(v))
        if size > NEW:
            span, image = np.vstack([span, v / size]), np.vstack([image, kv / size])
    return span, image


def _ratio(value: float, first: float) -> float:
    return value / first if first > 0 else (0.0 if value == 0 else float("inf"))


def _norm(own: Gradient, server: Gradient) -> float:
    return float(np.sqrt(sum(np.square(a + b).sum() for a, b in zip(own, server, strict=True))))
