"""Conjugate directions: the stationary point of L_s + L_a in a handful of rounds.

Once the server has eliminated its own couplings exactly, L_s + L_a of a unit is a quadratic function of the unit's own
parameters. The server's share of its Hessian is a matrix that the unit does not know, but one reply tells what it makes
of several directions at once. The unit minimises over the span of all directions seen so far (Galerkin), sends that
point plus a preconditioned residual, and stops when the true gradient, which the server's reply contains, is small.

What differs between the paper's target h_a (``WhiteSearch``) and a refined one, ĥ_a (``RefinedSearch``), is which
coordinates are good, which directions a reply tells about, and how the reduced problem is solved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.paper.augmented import AugmentedModel

RANK_TOLERANCE = 1e-12
MACHINE = float(np.finfo(np.float64).eps)
NEW = 1e-3  # part of a direction that must be new for it to be worth a place in the span
LOUD = 0.3  # a probe is never smaller than this part of the first one, or K would drown in rounding
FAINT = 1e-8  # and a row this much smaller than the whole residual is rounding
SPARE = 1e-4  # part of what was asked at which no more probes are spent
INVERTIBLE = 1e6  # condition of A up to which G_q is told from Aᵀ G_q
Pair = tuple[FloatArray, FloatArray]  # of theta and phi; or both shares of the server's gradient in theta


def _nothing() -> FloatArray:
    return np.zeros((0, 0))


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """Where the iteration stands.

    Points X are counted from a centre (theta_0, phi_0), where the whole gradient is ``gradient`` and the server's share
    of it ``server``. ``span`` are the directions that have been seen, ``image`` what the server's share makes of them.
    ``solution`` is the least point of the span. It was sent with ``probe`` added, or alone, to be verified.
    """

    theta_0: FloatArray
    phi_0: FloatArray
    span: FloatArray
    image: FloatArray
    gradient: FloatArray = field(default_factory=_nothing)
    server: FloatArray = field(default_factory=_nothing)
    solution: FloatArray = field(default_factory=_nothing)
    solution_image: FloatArray = field(default_factory=_nothing)
    probe: FloatArray | None = None
    first: tuple[float, float] = (0.0, 0.0)  # norms of the gradient at the start: in X, and in theta and phi
    extras: int = 0
    verified: bool = False
    relative: float = 0.0  # gradient at the verified point, relative to the start

    EXTRAS: ClassVar[int]  # probes beyond what was asked: with a large penalty a small gradient is no small error
    JUDGED: ClassVar[int]  # how many of the two norms must be small

    @abstractmethod
    def parameters(self, model: AugmentedModel) -> Pair:
        """(theta, phi) of the point to send."""

    @abstractmethod
    def size(self, gradient: FloatArray) -> float:
        """The norm of a gradient in X."""

    @abstractmethod
    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        """The whole gradient in X, the server's share of it, and the norm of the whole in theta and phi."""

    @abstractmethod
    def products(self, directions: FloatArray, direction: FloatArray) -> FloatArray:
        """Of several directions with one."""

    @abstractmethod
    def told(self, model: AugmentedModel, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """The directions that a reply to a probe tells about, with their images."""

    @abstractmethod
    def solved(self, model: AugmentedModel) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The least point of the span, its image, and the residual: minus the gradient there, as far as it is known."""

    @abstractmethod
    def direction(self, residual: FloatArray, size: float) -> FloatArray:
        """Where to probe: the residual, preconditioned."""

    @abstractmethod
    def is_new(self, probe: FloatArray) -> bool:
        """Whether a probe would tell about any direction outside of the span."""

    def begun(self, model: AugmentedModel, own: Pair, server: Pair) -> Self:
        """At the first point, of which the reply is known."""
        whole, theirs, norm = self.read(own, server)
        first, zero = (self.size(whole), norm), np.zeros_like(theirs)
        state = replace(self, gradient=whole, server=theirs, first=first, solution=0 * whole, solution_image=zero)
        return replace(state, verified=True) if first[self.JUDGED - 1] == 0 else state._next_point(model, 0.0)

    def advanced(self, model: AugmentedModel, own: Pair, server: Pair, tolerance: float) -> Self:
        """With both shares of the gradient at the point that was sent; and the next point."""
        whole, theirs, norm = self.read(own, server)
        size = self.size(whole)
        relative = max([_ratio(size, self.first[0]), _ratio(norm, self.first[1])][: self.JUDGED])
        if relative <= tolerance:
            return replace(self, verified=True, relative=relative)
        if self.probe is not None:
            state = self
            for direction, image in self.told(model, self.probe, theirs - self.server - self.solution_image):
                state = state._grown(direction, image)
            return state._next_point(model, tolerance)
        start = replace(self, solution=0 * self.solution, solution_image=0 * self.solution_image)
        if size > self.size(self.gradient):
            # worse than the centre: rounding has spoilt what is known of the directions, so learn it anew from there
            return replace(start, span=self.span[:0], image=self.image[:0])._next_point(model, tolerance)
        # rounding, or a direction not seen before: go on from here with what is known
        theta, phi = self.parameters(model)
        return replace(start, theta_0=theta, phi_0=phi, gradient=whole, server=theirs)._next_point(model, tolerance)

    def _next_point(self, model: AugmentedModel, tolerance: float) -> Self:
        """Solve in the span of what is known; probe along what is left, or send the solution if nothing is."""
        solution, image, residual = self.solved(model)
        state = replace(self, solution=solution, solution_image=image, probe=None)
        size, enough = self.size(residual), tolerance * self.first[0]
        if size <= SPARE * enough or (size <= 0.3 * enough and state.extras >= self.EXTRAS):
            return state
        probe = self.direction(residual, size)
        extras = state.extras + (size <= 0.3 * enough)
        return replace(state, extras=extras, probe=probe if state.is_new(probe) else None)

    def _grown(self, direction: FloatArray, image: FloatArray) -> Self:
        """With one more direction in the span, orthonormal to the others; without it if it is not new."""
        if not (size := self._length(direction)):
            return self
        direction, image = direction / size, image / size
        for _ in range(2):
            along = self.products(self.span, direction)
            direction = direction - _combined(along, self.span)
            image = image - _combined(along, self.image)
        if not (size := self._length(direction)) > NEW:
            return self
        span, known = np.append(self.span, direction[None] / size, 0), np.append(self.image, image[None] / size, 0)
        return replace(self, span=span, image=known)

    def _length(self, direction: FloatArray) -> float:
        return float(np.sqrt(max(self.products(direction[None], direction)[0], 0.0)))


def plain_norm(theta: FloatArray, phi: FloatArray) -> float:
    """Of a gradient, or a step, in theta and phi."""
    return float(np.sqrt(np.square(theta).sum() + np.square(phi).sum()))


def _combined(weights: FloatArray, arrays: FloatArray) -> FloatArray:
    """Σ_k weights_k arrays_k."""
    return np.asarray((weights @ arrays.reshape(len(arrays), math.prod(arrays.shape[1:]))).reshape(arrays.shape[1:]))


def _ratio(value: float, first: float) -> float:
    return value / first if first > 0 else (0.0 if value == 0 else float("inf"))


def _spectrum(system: FloatArray, size: int) -> Pair:
    """Eigenvectors and values of a symmetric matrix that are not rounding; ``size`` counts what makes it up."""
    values, vectors = np.linalg.eigh(system)
    keep = values > MACHINE * size * max(float(values[-1]), MACHINE) if values.size else np.zeros(0, bool)
    return vectors[:, keep], values[keep]


def _scaled_spectrum(gram: FloatArray, size: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Eigenvectors and values of a Gram matrix of channels on a common scale, so that the rank does not depend on
    engineering units; and the vectors that are left out.
    """
    values, vectors = np.linalg.eigh(gram / np.outer(size, size))
    keep = values > RANK_TOLERANCE * max(float(values[-1]), MACHINE)
    return vectors[:, keep], values[keep], vectors[:, ~keep]


def new_search(
    model: AugmentedModel, theta: FloatArray, phi: FloatArray, penalty: float, offset: bool, refined: bool
) -> Search:
    """A search that begins at (theta, phi)."""
    if refined:
        span, image = np.zeros((0, *theta.shape)), np.zeros((0, 2, *theta.shape))
        metric = Metric.build(model, penalty)
        return RefinedSearch(theta_0=theta, phi_0=phi, span=span, image=image, metric=metric, offset=offset)
    whitening = Whitening.build(model, penalty, offset)
    span = np.zeros((0, len(whitening.moving)))
    return WhiteSearch(theta_0=theta, phi_0=phi, span=span, image=span, whitening=whitening)


# ---- the paper's target


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

    def to_parameters(self, E: FloatArray) -> Pair:
        d, rank = self.right.shape[0], self.left.shape[1]
        Z = E[:rank, :d]
        theta = self.left @ Z @ self.right
        if not self.offset:
            return theta, np.zeros(self.rows.shape[0])
        return theta, self.rows @ E[:, d] - self.rows[:, :rank] @ (Z @ self.right_mean)

    def to_gradient(self, gradient: Pair) -> FloatArray:
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
    size, level = np.sqrt(np.diag(gram)), np.sqrt(np.diag(model.gram))
    size = np.where(size > RANK_TOLERANCE * level, size, np.where(level > 0, level, 1.0))
    vectors, values, left_out = _scaled_spectrum(gram, size)
    right = (vectors / np.sqrt(values)).T
    moving = np.ones(right.shape[0], bool)
    if not offset:
        return right / size, np.zeros(right.shape[0]), moving, np.ones(right.shape[0])
    mean = model.mean / size
    still = left_out.T @ mean
    if float(np.linalg.norm(still)) > 1e-8 * float(np.linalg.norm(mean)) > 0:
        constant = left_out @ still / float(still @ still)  # constant · y = 1 in every row
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


@dataclass(frozen=True, kw_only=True)
class WhiteSearch(Search):
    """With the target h_a, in coordinates E.

    The change of h_a is E x[t], where x holds the unit's own y[t-1], whitened, and the constant 1. The server treats
    every state alike, so its share of the Hessian acts on the rows of E by one and the same symmetric matrix K::

        gradient(E) = 2 CᵀC E G + E K - N            G = E[x xᵀ]: the identity, but for channels that never move

    One round shows K on P_m vectors at once, the rows of the probe, which are the ``span`` (k, d+1). D_m + 1 vectors
    span everything, so (D_m + 1) / P_m rounds and one to verify always suffice; fewer do, because the other units
    explain few directions of y.
    """

    whitening: Whitening

    EXTRAS: ClassVar[int] = 2
    JUDGED: ClassVar[int] = 2

    def parameters(self, model: AugmentedModel) -> Pair:
        E = self.solution if self.probe is None else self.solution + self.probe
        d_theta, d_phi = self.whitening.to_parameters(E)
        return self.theta_0 + d_theta, self.phi_0 + d_phi

    def size(self, gradient: FloatArray) -> float:
        return float(np.linalg.norm(gradient))

    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        theirs = self.whitening.to_gradient(server)
        return self.whitening.to_gradient(own) + theirs, theirs, plain_norm(own[0] + server[0], own[1] + server[1])

    def products(self, directions: FloatArray, direction: FloatArray) -> FloatArray:
        return directions @ direction

    def told(self, model: AugmentedModel, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        return zip(probe, seen, strict=True)

    def is_new(self, probe: FloatArray) -> bool:
        return any(self._grown(row, row).span is not self.span for row in probe)

    def solved(self, model: AugmentedModel) -> tuple[FloatArray, FloatArray, FloatArray]:
        """With rows in the span, as far as they are admissible."""
        whitening, span, image = self.whitening, self.span, self.image
        P, k = self.gradient.shape[0], span.shape[0]
        if not k:
            zero = np.zeros_like(self.gradient)
            return zero, zero, whitening.admissible(-self.gradient)
        rank, d = whitening.left.shape[1], whitening.right.shape[0]
        values, vectors = np.linalg.eigh((span @ image.T + image @ span.T) / 2)
        server = (vectors * np.maximum(values, 0.0)) @ vectors.T  # K has no negative direction; rounding may
        weight = (span * whitening.moving) @ span.T
        system = np.kron(whitening.own, weight) + np.kron(np.eye(P), server)
        blocks = [np.eye(k)] * P
        if rank < P:  # rows that only phi moves: combinations of the span that vanish in theta's part
            _, singular, vectors = np.linalg.svd(span[:, :d].T)
            blocks[rank:] = [vectors[int((singular > 1e-9).sum()) :].T] * (P - rank)
        basis = block_diagonal(blocks)
        vectors, values = _spectrum(basis.T @ system @ basis, P * k)
        inner = (vectors / values) @ (vectors.T @ (basis.T @ (-self.gradient @ span.T).ravel()))
        coefficients = (basis @ inner).reshape(P, k)
        E, EK = coefficients @ span, coefficients @ image
        own = whitening.own @ E * whitening.moving
        return E, EK, whitening.admissible(-self.gradient - own - EK)

    def direction(self, residual: FloatArray, size: float) -> FloatArray:
        """Its rows each at least a fair part of the first residual: K treats rows alike, so each may be scaled.

        A row that is nothing but rounding beside the others has no direction to show.
        """
        curvature = np.diag(self.whitening.own)[:, None] * self.whitening.moving + self.whitening.guess
        rows = np.sqrt(np.square(residual).sum(axis=1, keepdims=True))
        heard = rows > FAINT * size
        scale = np.where(heard, np.maximum(1.0, LOUD * self.first[0] / np.where(heard, rows, 1.0)), 0.0)
        return np.asarray(scale * residual / curvature)


# ---- a refined target


@dataclass(frozen=True)
class Metric:
    """X -> left X right, the inverse of theta -> weight theta gram on the channels that move.

    The latter would be the Hessian if the other units explained nothing, with one Gram matrix for all rows.
    """

    left: FloatArray  # (P, P)
    right: FloatArray  # (D, D)
    weight: FloatArray  # (P, P)
    gram: FloatArray  # (D, D)

    @classmethod
    def build(cls, model: AugmentedModel, penalty: float) -> Metric:
        A, C = model.model.A, model.model.C
        weight = 2 * np.eye(len(A)) + A.T @ (penalty * np.eye(len(A)) + 2 * C.T @ C) @ A
        gram = model.current_gram
        size = np.sqrt(np.diag(gram))
        size = np.where(size > 0, size, 1.0)
        vectors, values, _ = _scaled_spectrum(gram, size)
        basis = vectors / size[:, None]
        return cls(np.asarray(np.linalg.inv(weight)), (basis / values) @ basis.T, weight, gram)

    def step(self, gradient: FloatArray) -> FloatArray:
        return self.left @ gradient @ self.right


@dataclass(frozen=True, kw_only=True)
class RefinedSearch(Search):
    """With a refined target, where the server explains ĥ_a[t] = ĥ_c[t] + theta y[t]; X is the change of theta (P, D).

    The unit eliminates its phi, which is no part of the server's loss then. The server treats every state alike, so its
    share of the gradient is, with a symmetric matrix K of four blocks that the unit does not know::

        gradient(theta) = G_p + Aᵀ G_q + own share,     [G_p, G_q] = [theta, A theta] K + constant

    K acts from the right. A matrix that commutes with A may therefore be put before both sides: a reply to theta tells
    the gradients at A theta, A² theta, ... as well, P directions of one round, if A can be inverted to tell G_q from
    Aᵀ G_q. ``image`` (k, 2, P, D) and ``server`` (2, P, D) hold both shares.
    """

    metric: Metric
    offset: bool

    EXTRAS: ClassVar[int] = 0
    JUDGED: ClassVar[int] = 1

    def parameters(self, model: AugmentedModel) -> Pair:
        theta = self.theta_0 + self.solution
        theta = theta if self.probe is None else theta + self.probe
        return theta, best_offset(model, theta, self.offset)

    def size(self, gradient: FloatArray) -> float:
        """By the step that the metric makes of it."""
        return float(np.sqrt(max(float(np.vdot(gradient, self.metric.step(gradient))), 0.0)))

    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        whole = own[0] + server[0] + server[1]
        return whole, np.stack(server), float(np.linalg.norm(whole))

    def products(self, directions: FloatArray, direction: FloatArray) -> FloatArray:
        return np.tensordot(directions, self.metric.weight @ direction @ self.metric.gram, 2)

    def told(self, model: AugmentedModel, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """The probe and its products with powers of A."""
        A, turned, (ahead, pulled) = model.model.A, np.eye(len(model.model.A)), seen
        yield probe, seen
        if len(A) > 1 and np.linalg.cond(A) < INVERTIBLE:
            entangled = np.linalg.solve(A.T, pulled)
            for _ in range(len(A) - 1):
                turned = turned @ A
                yield turned @ probe, np.stack([turned @ ahead, A.T @ turned @ entangled])

    def is_new(self, probe: FloatArray) -> bool:
        return self._grown(probe, np.stack([probe, probe])).span is not self.span

    def solved(self, model: AugmentedModel) -> tuple[FloatArray, FloatArray, FloatArray]:
        k = len(self.span)
        if not k:
            return np.zeros_like(self.gradient), np.zeros_like(self.server), -self.gradient
        # what the unit's own loss makes of a direction; phi follows, so that the mean of y[t-1] has no part in it
        CA, gram = model.model.C @ model.model.A, model.centred_gram if self.offset else model.gram
        own = np.stack([2 * CA.T @ (CA @ each @ gram) for each in self.span])
        hessian = own + self.image[:, 0] + self.image[:, 1]
        system = self.span.reshape(k, -1) @ hessian.reshape(k, -1).T
        vectors, values = _spectrum((system + system.T) / 2, k)
        coefficients = vectors @ ((vectors.T @ (self.span.reshape(k, -1) @ -self.gradient.ravel())) / values)
        solution, image, change = (_combined(coefficients, each) for each in (self.span, self.image, hessian))
        return solution, image, -self.gradient - change

    def direction(self, residual: FloatArray, size: float) -> FloatArray:
        # as large as the first step, or what the reply tells of it would drown in rounding
        return self.metric.step(residual) * (self.first[0] / size)


def best_offset(model: AugmentedModel, theta: FloatArray, offset: bool) -> FloatArray:
    """The phi (P,) that minimises L_a for a theta; zero if there is none to be learned."""
    nothing = np.zeros(model.model.states)
    if not offset:
        return nothing
    residual = model.data.measured - model.states(theta, nothing) @ model.model.C.T
    return np.asarray(np.linalg.lstsq(model.model.C, model.data.ones @ residual / model.data.steps, rcond=None)[0])
