"""Conjugate directions on theta for a refined target, where the server explains ĥ_a[t] = ĥ_c[t] + theta y[t].

The server has eliminated its couplings, and the unit its phi, which is no part of the server's loss then; what is left
of L_s + L_a is a quadratic function of theta (P, D) alone. The server treats every state alike, so its share of the
gradient is, with a symmetric matrix K of four blocks that the unit does not know::

    gradient(theta) = G_p + Aᵀ G_q + own share,     [G_p, G_q] = [theta, A theta] K + constant

K acts from the right. A matrix that commutes with A may therefore be put before both sides: a reply to theta tells the
gradients at A theta, A² theta, ... as well, P directions of one round, if A can be inverted to tell G_q from Aᵀ G_q.
The unit minimises over all directions seen so far (Galerkin), sends that point plus a preconditioned residual, and
stops when the true gradient, which the server's reply contains, is small. The preconditioner is the Hessian that it
would be if the other units explained nothing, with one Gram matrix for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.augmented import AugmentedModel

MACHINE = float(np.finfo(np.float64).eps)
RANK_TOLERANCE = 1e-12
INVERTIBLE = 1e6  # condition of A up to which G_q is told from Aᵀ G_q
NEW = 1e-3  # part of a direction that must be new for it to be worth a place among the others
Shares = tuple[FloatArray, FloatArray]  # of the server's gradient: G_p and Aᵀ G_q


@dataclass(frozen=True)
class Preconditioner:
    """X -> left X right, the inverse of theta -> weight theta gram on the channels that move."""

    left: FloatArray  # (P, P)
    right: FloatArray  # (D, D)
    weight: FloatArray  # (P, P)
    gram: FloatArray  # (D, D)

    @classmethod
    def build(cls, model: AugmentedModel, penalty: float) -> Preconditioner:
        A, C = model.model.A, model.model.C
        weight = 2 * np.eye(len(A)) + A.T @ (penalty * np.eye(len(A)) + 2 * C.T @ C) @ A
        gram = model.current_gram
        size = np.sqrt(np.diag(gram))  # the channels on a common scale, so that the rank does not depend on units
        size = np.where(size > 0, size, 1.0)
        values, vectors = np.linalg.eigh(gram / np.outer(size, size))
        keep = values > RANK_TOLERANCE * max(float(values[-1]), MACHINE)
        basis = vectors[:, keep] / size[:, None]
        return cls(np.asarray(np.linalg.inv(weight)), (basis / values[keep]) @ basis.T, weight, gram)

    def apply(self, gradient: FloatArray) -> FloatArray:
        return self.left @ gradient @ self.right


@dataclass(frozen=True)
class RefinedState:
    """Where the iteration stands: theta is counted from ``centre``, where the whole gradient is ``gradient``.

    ``span`` and ``image`` (k, P, D): directions, orthonormal in the preconditioner's own inner product, and what the
    Hessian makes of them. ``solution`` is the least point of their span; it was sent with ``probe`` added, or alone, to
    be verified.
    """

    offset: bool
    preconditioner: Preconditioner
    centre: FloatArray
    gradient: FloatArray
    shares: Shares  # of the server at the centre
    span: FloatArray
    image: FloatArray
    known: tuple[FloatArray, FloatArray]  # what the server's shares make of the span: (k, P, D) each
    solution: FloatArray
    solution_shares: Shares
    probe: FloatArray | None
    first: float
    verified: bool = False
    relative: float = 0.0

    def parameters(self, model: AugmentedModel) -> tuple[FloatArray, FloatArray]:
        """(theta, phi) of the point to send."""
        theta = self.centre + self.solution if self.probe is None else self.centre + self.solution + self.probe
        return theta, best_offset(model, theta, self.offset)


def best_offset(model: AugmentedModel, theta: FloatArray, offset: bool) -> FloatArray:
    """The phi (P,) that minimises L_a for a theta; zero if there is none to be learned."""
    states = model.states(theta, np.zeros(model.model.states))
    if not offset:
        return np.zeros(model.model.states)
    mean = model.data.ones @ (model.data.measured - states @ model.model.C.T) / model.data.steps
    return np.asarray(np.linalg.lstsq(model.model.C, mean, rcond=None)[0])


def start(
    model: AugmentedModel, theta: FloatArray, own: FloatArray, server: Shares, penalty: float, offset: bool
) -> RefinedState:
    """Begin at theta, with the phi that is best for it, where both shares of the gradient are known."""
    whole = own + server[0] + server[1]
    preconditioner = Preconditioner.build(model, penalty)
    first = _size(preconditioner, whole)
    nothing, zero = np.zeros((0, *theta.shape)), np.zeros_like(theta)
    state = RefinedState(
        offset, preconditioner, theta, whole, server, nothing, nothing, (nothing, nothing), zero, (zero, zero),
        None, first,
    )  # fmt: skip
    return replace(state, verified=True) if first == 0 else _next_point(state, 0.0)


def advance(
    state: RefinedState, model: AugmentedModel, own: FloatArray, server: Shares, tolerance: float
) -> RefinedState:
    """Take in both shares of the gradient at the point that was sent, and choose the next one."""
    whole = own + server[0] + server[1]
    relative = _size(state.preconditioner, whole) / state.first
    if relative <= tolerance:
        return replace(state, verified=True, relative=relative)
    zero = np.zeros_like(state.solution)
    if state.probe is None:  # rounding, or a direction not seen before: go on from here with what is known
        worse = relative > _size(state.preconditioner, state.gradient) / state.first
        if worse:  # rounding has spoilt what is known, so learn it anew from the centre
            nothing = np.zeros((0, *zero.shape))
            state = replace(state, span=nothing, image=nothing, known=(nothing, nothing))
        else:
            state = replace(state, centre=state.centre + state.solution, gradient=whole, shares=server)
        return _next_point(replace(state, solution=zero, solution_shares=(zero, zero)), tolerance)
    seen = tuple(s - c - x for s, c, x in zip(server, state.shares, state.solution_shares, strict=True))
    return _next_point(_extended(state, model, state.probe, (seen[0], seen[1])), tolerance)


def _own_hessian(model: AugmentedModel, X: FloatArray, offset: bool) -> FloatArray:
    """What the unit's own loss makes of a direction; its phi follows, so that the mean of y[t-1] has no part in it."""
    CA = model.model.C @ model.model.A
    gram = model.centred_gram if offset else model.gram
    return np.asarray(2 * CA.T @ (CA @ X @ gram))


def _extended(state: RefinedState, model: AugmentedModel, probe: FloatArray, seen: Shares) -> RefinedState:
    """The span with the probe and its products with powers of A, as far as they are new."""
    A = model.model.A
    pulled, turned = seen[1], np.eye(len(A))
    several = len(A) > 1 and np.linalg.cond(A) < INVERTIBLE
    entangled = np.linalg.solve(A.T, pulled) if several else pulled
    for k in range(len(A) if several else 1):
        shares = (turned @ seen[0], A.T @ turned @ entangled if k else pulled)
        state = _added(state, model, turned @ probe, shares)
        turned = turned @ A
    return state


def _added(state: RefinedState, model: AugmentedModel, vector: FloatArray, shares: Shares) -> RefinedState:
    weight = state.preconditioner
    size = _length(weight, vector)
    if size == 0:
        return state
    v, G_p, G_q = vector / size, shares[0] / size, shares[1] / size
    for _ in range(2):
        along = np.array([_product(weight, each, v) for each in state.span])
        v, G_p, G_q = (
            x - np.tensordot(along, of, 1) if len(along) else x
            for x, of in ((v, state.span), (G_p, state.known[0]), (G_q, state.known[1]))
        )
    size = _length(weight, v)
    if size <= NEW:
        return state
    v, G_p, G_q = v / size, G_p / size, G_q / size
    image = _own_hessian(model, v, state.offset) + G_p + G_q
    known = (np.concatenate([state.known[0], G_p[None]]), np.concatenate([state.known[1], G_q[None]]))
    return replace(
        state, span=np.concatenate([state.span, v[None]]), image=np.concatenate([state.image, image[None]]), known=known
    )


def _next_point(state: RefinedState, tolerance: float) -> RefinedState:
    """The least point of the span; probe along what is left of the gradient, or send it alone if nothing is."""
    k = len(state.span)
    coefficients = np.zeros(0)
    residual = -state.gradient
    solution, shares = np.zeros_like(state.gradient), (np.zeros_like(state.gradient), np.zeros_like(state.gradient))
    if k:
        system = state.span.reshape(k, -1) @ state.image.reshape(k, -1).T
        values, vectors = np.linalg.eigh((system + system.T) / 2)
        keep = values > MACHINE * k * max(float(values[-1]), MACHINE)
        right = vectors[:, keep].T @ (state.span.reshape(k, -1) @ residual.ravel())
        coefficients = vectors[:, keep] @ (right / values[keep])
        solution = np.tensordot(coefficients, state.span, 1)
        shares = (np.tensordot(coefficients, state.known[0], 1), np.tensordot(coefficients, state.known[1], 1))
        residual = residual - np.tensordot(coefficients, state.image, 1)
    state = replace(state, solution=solution, solution_shares=shares, probe=None)
    left = _size(state.preconditioner, residual)
    if left <= 0.3 * tolerance * state.first:
        return state
    # as large as the first step, or what the reply tells of it would drown in rounding
    probe = state.preconditioner.apply(residual) * (state.first / left)
    return replace(state, probe=probe) if _is_new(state, probe) else state


def _is_new(state: RefinedState, vector: FloatArray) -> bool:
    """Whether a direction is worth a place among the others."""
    weight = state.preconditioner
    size = _length(weight, vector)
    rest = vector / size if size > 0 else vector
    for each in state.span:
        rest = rest - _product(weight, each, rest) * each
    return _length(weight, rest) > NEW


def _product(weight: Preconditioner, one: FloatArray, other: FloatArray) -> float:
    """Of two directions, in the metric that the preconditioner inverts."""
    return float(np.vdot(one, weight.weight @ other @ weight.gram))


def _length(weight: Preconditioner, vector: FloatArray) -> float:
    return float(np.sqrt(max(_product(weight, vector, vector), 0.0)))


def _size(weight: Preconditioner, gradient: FloatArray) -> float:
    """The length of a gradient, by the step that the preconditioner makes of it."""
    return float(np.sqrt(max(float(np.vdot(gradient, weight.apply(gradient))), 0.0)))
