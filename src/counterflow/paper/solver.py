"""Conjugate directions: the stationary point of L_s + L_a in a handful of rounds.

Once the server has eliminated its own couplings exactly, L_s + L_a of a unit is a quadratic function of the unit's own
parameters. The server's share of its Hessian is a matrix that the unit does not know, but one reply tells what it makes
of several directions at once. The unit minimises over the span of all directions seen so far (Galerkin), sends that
point plus a preconditioned residual, and stops when the true gradient, which the server's reply contains, is small.

What differs between the paper's target h_a (``White``) and a refined one, ĥ_a (``Refined``), is which coordinates X are
good, which directions a reply tells about, and how the reduced problem is solved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Search:
    """Where the iteration stands.

    Points X are counted from a centre (theta_0, phi_0), where the whole gradient is ``gradient`` and the server's share
    of it ``server``. ``span`` are the directions that have been seen, ``image`` what the server's share makes of them.
    ``solution`` is the least point of the span. It was sent with ``probe`` added, or alone, to be verified.
    """

    theta_0: FloatArray
    phi_0: FloatArray
    span: FloatArray
    image: FloatArray
    gradient: FloatArray
    server: FloatArray
    solution: FloatArray
    solution_image: FloatArray
    first: tuple[float, float]  # norms of the gradient at the start: in X, and in theta and phi
    probe: FloatArray | None = None
    extras: int = 0
    verified: bool = False
    relative: float = 0.0  # gradient at the verified point, relative to the start


class Solver(ABC):
    """From one point of a search to the next."""

    EXTRAS: int  # probes beyond what was asked: with a large penalty a small gradient is no small error
    JUDGED: int  # how many of the two norms must be small
    LEADING: int  # axes of X along which a reply tells about one direction each

    def __init__(self, model: AugmentedModel, penalty: float, offset: bool) -> None:
        self.model, self.penalty, self.offset = model, penalty, offset

    @abstractmethod
    def parameters(self, search: Search) -> Pair:
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
    def told(self, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """The directions that a reply to a probe tells about, with their images."""

    @abstractmethod
    def solved(self, search: Search) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The least point of the span, its image, and the residual: minus the gradient there, as far as it is known."""

    @abstractmethod
    def direction(self, residual: FloatArray, first: float) -> FloatArray:
        """Where to probe: the residual, preconditioned; ``first``: the norm of the first gradient."""

    def begun(self, theta: FloatArray, phi: FloatArray, own: Pair, server: Pair) -> Search:
        """At the first point, of which the reply is known."""
        whole, theirs, norm = self.read(own, server)
        span, image = (np.zeros((0, *array.shape[self.LEADING :])) for array in (whole, theirs))
        first = self.size(whole), norm
        search = Search(theta, phi, span, image, whole, theirs, 0 * whole, 0 * theirs, first)
        return replace(search, verified=True) if first[self.JUDGED - 1] == 0 else self._next_point(search, 0.0)

    def advanced(self, search: Search, own: Pair, server: Pair, tolerance: float) -> Search:
        """With both shares of the gradient at the point that was sent; and the next point."""
        whole, theirs, norm = self.read(own, server)
        size = self.size(whole)
        relative = max([_ratio(size, search.first[0]), _ratio(norm, search.first[1])][: self.JUDGED])
        if relative <= tolerance:
            return replace(search, verified=True, relative=relative)
        if search.probe is not None:
            grown = search
            for direction, image in self.told(search.probe, theirs - search.server - search.solution_image):
                grown = self._grown(grown, direction, image)
            return self._next_point(grown, tolerance)
        start = replace(search, solution=0 * search.solution, solution_image=0 * search.solution_image)
        if size > self.size(search.gradient):
            # worse than the centre: rounding has spoilt what is known of the directions, so learn it anew from there
            return self._next_point(replace(start, span=search.span[:0], image=search.image[:0]), tolerance)
        # rounding, or a direction not seen before: go on from here with what is known
        theta, phi = self.parameters(search)
        return self._next_point(replace(start, theta_0=theta, phi_0=phi, gradient=whole, server=theirs), tolerance)

    def _next_point(self, search: Search, tolerance: float) -> Search:
        """Solve in the span of what is known; probe along what is left, or send the solution if nothing is."""
        solution, image, residual = self.solved(search)
        search = replace(search, solution=solution, solution_image=image, probe=None)
        size, enough = self.size(residual), tolerance * search.first[0]
        if size <= SPARE * enough or (size <= 0.3 * enough and search.extras >= self.EXTRAS):
            return search
        probe, nothing = self.direction(residual, search.first[0]), np.zeros(search.image.shape[1:])
        lines = probe if self.LEADING else probe[None]
        new = any(self._grown(search, line, nothing).span is not search.span for line in lines)
        return replace(search, extras=search.extras + (size <= 0.3 * enough), probe=probe if new else None)

    def _grown(self, search: Search, direction: FloatArray, image: FloatArray) -> Search:
        """With one more direction in the span, orthonormal to the others; the same search if it is not new."""
        if not (size := self._length(direction)):
            return search
        direction, image = direction / size, image / size
        for _ in range(2):
            along = self.products(search.span, direction)
            direction = direction - _combined(along, search.span)
            image = image - _combined(along, search.image)
        if not (size := self._length(direction)) > NEW:
            return search
        span, known = np.append(search.span, direction[None] / size, 0), np.append(search.image, image[None] / size, 0)
        return replace(search, span=span, image=known)

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


class White(Solver):
    """With the paper's target h_a; X is E (P, d+1), and without an offset its last column is absent.

    The change of h_a is E x[t], where x holds the unit's own y[t-1], whitened, and the constant 1. Rows of E belong to
    ``rows``: first directions that A reaches, then the others, which only phi can move. The server treats every state
    alike, so its share of the Hessian acts on the rows of E by one and the same symmetric matrix K::

        gradient(E) = 2 CᵀC E G + E K - N            G = E[x xᵀ]: the identity, but for channels that never move

    One round shows K on P_m vectors at once, the rows of the probe, which are the ``span`` (k, d+1). D_m + 1 vectors
    span everything, so (D_m + 1) / P_m rounds and one to verify always suffice; fewer do, because the other units
    explain few directions of y.
    """

    EXTRAS, JUDGED, LEADING = 2, 2, 1

    def __init__(self, model: AugmentedModel, penalty: float, offset: bool) -> None:
        super().__init__(model, penalty, offset)
        local = model.model
        u, s, vt = np.linalg.svd(local.A)
        self.rank = int((s > RANK_TOLERANCE * max(s[0], np.finfo(float).tiny)).sum())
        curvature = local.C.T @ local.C
        turn = np.linalg.eigh(u[:, : self.rank].T @ curvature @ u[:, : self.rank])[1]
        self.rows = np.hstack([u[:, : self.rank] @ turn, u[:, self.rank :]])  # W (P, P), orthonormal
        self.left = (vt[: self.rank].T / s[: self.rank]) @ turn  # (P, r) with A left = W[:, :r]
        self.own = 2 * self.rows.T @ curvature @ self.rows  # (P, P): 2 Wᵀ CᵀC W
        right, mean, moving, stretch = _whitened_channels(model, offset)
        if penalty == 0:  # a direction that only the penalty sees is no direction then
            right, mean, stretch, moving = right[moving], mean[moving], stretch[moving], moving[moving]
        self.right, self.right_mean = right, mean  # (d, D); (d,): right ȳ, zero without an offset
        # (d [+1],) each: the diagonal of G, and what K would be if the other units explained nothing
        self.moving = np.append(moving.astype(np.float64), [1.0] * offset)
        self.guess = np.append(2.0 * moving + penalty * stretch, [2.0] * offset)

    def parameters(self, search: Search) -> Pair:
        E = search.solution if search.probe is None else search.solution + search.probe
        d = len(self.right)
        Z = E[: self.rank, :d]
        theta = search.theta_0 + self.left @ Z @ self.right
        if not self.offset:
            return theta, search.phi_0
        return theta, search.phi_0 + (self.rows @ E[:, d] - self.rows[:, : self.rank] @ (Z @ self.right_mean))

    def _to_gradient(self, gradient: Pair) -> FloatArray:
        """Gradient in E from those in theta and phi: the transpose of ``parameters``."""
        d_theta, d_phi = gradient
        turned = self.rows.T @ d_phi
        out = np.zeros((len(self.rows), len(self.moving)))
        inner = self.left.T @ d_theta @ self.right.T - np.outer(turned[: self.rank], self.right_mean)
        out[: self.rank, : len(self.right)] = inner
        if self.offset:
            out[:, -1] = turned
        return out

    def _admissible(self, E: FloatArray) -> FloatArray:
        """Set to zero what cannot be moved: theta's part of the rows that A does not reach."""
        out = E.copy()
        out[self.rank :, : len(self.right)] = 0.0
        return out

    def size(self, gradient: FloatArray) -> float:
        return float(np.linalg.norm(gradient))

    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        theirs = self._to_gradient(server)
        return self._to_gradient(own) + theirs, theirs, plain_norm(own[0] + server[0], own[1] + server[1])

    def products(self, directions: FloatArray, direction: FloatArray) -> FloatArray:
        return directions @ direction

    def told(self, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        return zip(probe, seen, strict=True)

    def solved(self, search: Search) -> tuple[FloatArray, FloatArray, FloatArray]:
        """With rows in the span, as far as they are admissible."""
        span, image, gradient = search.span, search.image, search.gradient
        P, k = len(gradient), len(span)
        if not k:
            zero = np.zeros_like(gradient)
            return zero, zero, self._admissible(-gradient)
        values, vectors = np.linalg.eigh((span @ image.T + image @ span.T) / 2)
        server = (vectors * np.maximum(values, 0.0)) @ vectors.T  # K has no negative direction; rounding may
        weight = (span * self.moving) @ span.T
        system = np.kron(self.own, weight) + np.kron(np.eye(P), server)
        blocks = [np.eye(k)] * P
        if self.rank < P:  # rows that only phi moves: combinations of the span that vanish in theta's part
            _, singular, vectors = np.linalg.svd(span[:, : len(self.right)].T)
            blocks[self.rank :] = [vectors[int((singular > 1e-9).sum()) :].T] * (P - self.rank)
        basis = block_diagonal(blocks)
        vectors, values = _spectrum(basis.T @ system @ basis, P * k)
        inner = (vectors / values) @ (vectors.T @ (basis.T @ (-gradient @ span.T).ravel()))
        coefficients = (basis @ inner).reshape(P, k)
        E, EK = coefficients @ span, coefficients @ image
        return E, EK, self._admissible(-gradient - self.own @ E * self.moving - EK)

    def direction(self, residual: FloatArray, first: float) -> FloatArray:
        """Its rows each at least a fair part of the first residual: K treats rows alike, so each may be scaled.

        A row that is nothing but rounding beside the others has no direction to show.
        """
        curvature = np.diag(self.own)[:, None] * self.moving + self.guess
        rows = np.sqrt(np.square(residual).sum(axis=1, keepdims=True))
        heard = rows > FAINT * self.size(residual)
        scale = np.where(heard, np.maximum(1.0, LOUD * first / np.where(heard, rows, 1.0)), 0.0)
        return np.asarray(scale * residual / curvature)


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
    moving, stretch, right_mean = np.ones(len(right), bool), np.ones(len(right)), np.zeros(len(right))
    if not offset:
        return right / size, right_mean, moving, stretch
    mean = model.mean / size
    still = left_out.T @ mean
    if float(np.linalg.norm(still)) > 1e-8 * float(np.linalg.norm(mean)) > 0:
        constant = left_out @ still / float(still @ still)  # constant · y = 1 in every row
        right = np.vstack([right - np.outer(right @ mean, constant), constant])
        return right / size, np.append(right_mean, 1.0), np.append(moving, False), np.append(stretch, 1.0)
    right_mean = right @ mean
    if (length := float(np.linalg.norm(right_mean))) > 0:  # turn the first axis into the direction of the mean
        first = np.eye(len(right))[0]
        mirror = right_mean / length - first
        if (square := float(mirror @ mirror)) > MACHINE:
            right = right - np.outer(mirror, (2 / square) * (mirror @ right))
        right_mean = length * first
        stretch[0] = 1 + length**2
    return right / size, right_mean, moving, stretch


class Refined(Solver):
    """With a refined target, where the server explains ĥ_a[t] = ĥ_c[t] + theta y[t]; X is the change of theta (P, D).

    The unit eliminates its phi, which is no part of the server's loss then. The server treats every state alike, so its
    share of the gradient is, with a symmetric matrix K of four blocks that the unit does not know::

        gradient(theta) = G_p + Aᵀ G_q + own share,     [G_p, G_q] = [theta, A theta] K + constant

    K acts from the right. A matrix that commutes with A may therefore be put before both sides: a reply to theta tells
    the gradients at A theta, A² theta, ... as well, P directions of one round, if A can be inverted to tell G_q from
    Aᵀ G_q. ``image`` (k, 2, P, D) and ``server`` (2, P, D) hold both shares.

    Its metric, theta -> weight theta gram on the channels that move, would be the Hessian if the other units explained
    nothing, with one Gram matrix for all rows.
    """

    EXTRAS, JUDGED, LEADING = 0, 1, 0

    def __init__(self, model: AugmentedModel, penalty: float, offset: bool) -> None:
        super().__init__(model, penalty, offset)
        A, C, eye = model.model.A, model.model.C, np.eye(model.model.states)
        self.weight, self.gram = 2 * eye + A.T @ (penalty * eye + 2 * C.T @ C) @ A, model.current_gram
        size = np.sqrt(np.diag(self.gram))
        size = np.where(size > 0, size, 1.0)
        vectors, values, _ = _scaled_spectrum(self.gram, size)
        basis = vectors / size[:, None]
        self.left, self.right = np.linalg.inv(self.weight), (basis / values) @ basis.T

    def parameters(self, search: Search) -> Pair:
        theta = search.theta_0 + search.solution
        theta = theta if search.probe is None else theta + search.probe
        return theta, self.model.best_offset(theta, self.offset)

    def size(self, gradient: FloatArray) -> float:
        """By the step that the metric makes of it."""
        return float(np.sqrt(max(float(np.vdot(gradient, self.left @ gradient @ self.right)), 0.0)))

    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        whole = own[0] + server[0] + server[1]
        return whole, np.stack(server), float(np.linalg.norm(whole))

    def products(self, directions: FloatArray, direction: FloatArray) -> FloatArray:
        return np.tensordot(directions, self.weight @ direction @ self.gram, 2)

    def told(self, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """The probe and its products with powers of A."""
        A, turned, (ahead, pulled) = self.model.model.A, np.eye(len(self.weight)), seen
        yield probe, seen
        if len(A) > 1 and np.linalg.cond(A) < INVERTIBLE:
            entangled = np.linalg.solve(A.T, pulled)
            for _ in range(len(A) - 1):
                turned = turned @ A
                yield turned @ probe, np.stack([turned @ ahead, A.T @ turned @ entangled])

    def solved(self, search: Search) -> tuple[FloatArray, FloatArray, FloatArray]:
        k, model = len(search.span), self.model
        if not k:
            return np.zeros_like(search.gradient), np.zeros_like(search.server), -search.gradient
        # what the unit's own loss makes of a direction; phi follows, so that the mean of y[t-1] has no part in it
        CA, gram = model.model.C @ model.model.A, model.centred_gram if self.offset else model.gram
        own = np.stack([2 * CA.T @ (CA @ each @ gram) for each in search.span])
        hessian = own + search.image[:, 0] + search.image[:, 1]
        flat = search.span.reshape(k, -1)
        system = flat @ hessian.reshape(k, -1).T
        vectors, values = _spectrum((system + system.T) / 2, k)
        coefficients = vectors @ ((vectors.T @ (flat @ -search.gradient.ravel())) / values)
        solution, image, change = (_combined(coefficients, each) for each in (search.span, search.image, hessian))
        return solution, image, -search.gradient - change

    def direction(self, residual: FloatArray, first: float) -> FloatArray:
        # as large as the first step, or what the reply tells of it would drown in rounding
        return self.left @ residual @ self.right * (first / self.size(residual))
