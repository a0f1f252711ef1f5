"""Conjugate directions: the stationary point of L_s + L_a in a handful of rounds.

Once the server has eliminated its own couplings exactly, L_s + L_a of a unit is a quadratic function of the unit's own
parameters. The server's share of its Hessian is a matrix that the unit does not know, but one reply tells what it makes
of several directions at once. The unit minimises over the span of all directions seen so far (Galerkin), sends that
point plus a preconditioned residual, and stops when the true gradient, which the server's reply contains, is small.

What differs between the paper's target h_a (``White``) and a refined one, ĥ_a (``Refined``), is which coordinates X are
good, which directions a reply tells about, and how the reduced problem is solved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
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
SPARE = 1e-4  # part of what was asked at which no more probes are spent
INVERTIBLE = 1e6  # condition of A up to which G_q is told from Aᵀ G_q
Pair = tuple[FloatArray, FloatArray]  # of theta and phi; or both shares of the server's gradient in theta


@dataclass(frozen=True)
class Search:
    """Where the iteration stands.

    Points X are counted from a centre (theta_0, phi_0), where the whole gradient is ``gradient`` and the server's share
    of it the sum of ``server``. ``span`` are the directions that have been seen, orthonormal in the solver's metric,
    ``image`` what the server's share makes of them. ``solution`` is the least point of the span. It was sent with
    ``probe`` added, or alone, to be verified.
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

    @property
    def sent(self) -> FloatArray:
        """The point X that the unit sends."""
        return self.solution if self.probe is None else self.solution + self.probe


class Solver(ABC):
    """From one point of a search to the next.

    The server's share of a gradient, and so its images, are (parts, rows, columns): the parts add up.
    """

    EXTRAS: int  # probes beyond what was asked: with a large penalty a small gradient is no small error
    JUDGED: int  # how many of the two norms must be small

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
    def weighed(self, direction: FloatArray) -> FloatArray:
        """By the metric in which directions are orthonormal."""

    @abstractmethod
    def told(self, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """The directions that a reply to a probe tells about, with their images."""

    @abstractmethod
    def own(self, span: FloatArray) -> FloatArray:
        """What the unit's own share of the Hessian makes of directions."""

    @abstractmethod
    def direction(self, residual: FloatArray, first: float) -> FloatArray:
        """Where to probe: the residual, preconditioned; ``first``: the norm of the first gradient."""

    def movable(self, gradient: FloatArray) -> FloatArray:
        """The part of a gradient that parameters can follow."""
        return gradient

    def begun(self, theta: FloatArray, phi: FloatArray, own: Pair, server: Pair) -> Search:
        """At the first point, of which the reply is known."""
        whole, theirs, norm = self.read(own, server)
        first, span, image = (self.size(whole), norm), whole[None][:0], theirs[None][:0]
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
        search, residual = self._solved(search)
        size, enough = self.size(residual), tolerance * search.first[0]
        if size <= SPARE * enough or (size <= 0.3 * enough and search.extras >= self.EXTRAS):
            return search
        probe, nothing = self.direction(residual, search.first[0]), np.zeros(search.image.shape[1:])
        new = self._grown(search, probe, nothing) is not search
        return replace(search, extras=search.extras + (size <= 0.3 * enough), probe=probe if new else None)

    def _solved(self, search: Search) -> tuple[Search, FloatArray]:
        """At the least point of the span; and minus the gradient there, as far as it is known."""
        span, server = search.span, search.image.sum(axis=1)
        own = self.own(span)
        system = _positive(_products(span, server)) + _products(span, own)
        vectors, values = _spectrum(system, len(span))
        coefficients = vectors @ ((vectors.T @ np.tensordot(span, -search.gradient, 2)) / values)
        solution, image, change = (np.tensordot(coefficients, each, 1) for each in (span, search.image, own + server))
        residual = self.movable(-search.gradient - change)
        return replace(search, solution=solution, solution_image=image, probe=None), residual

    def _grown(self, search: Search, direction: FloatArray, image: FloatArray) -> Search:
        """With one more direction in the span, orthonormal to the others; the same search if it is not new."""
        if not (size := self._length(direction)):
            return search
        direction, image = direction / size, image / size
        for _ in range(2):
            along = np.tensordot(search.span, self.weighed(direction), 2)
            direction = direction - np.tensordot(along, search.span, 1)
            image = image - np.tensordot(along, search.image, 1)
        if not (size := self._length(direction)) > NEW:
            return search
        span, known = np.append(search.span, direction[None] / size, 0), np.append(search.image, image[None] / size, 0)
        return replace(search, span=span, image=known)

    def _length(self, direction: FloatArray) -> float:
        return float(np.sqrt(max(float(np.vdot(direction, self.weighed(direction))), 0.0)))


def plain_norm(theta: FloatArray, phi: FloatArray) -> float:
    """Of a gradient, or a step, in theta and phi."""
    return float(np.sqrt(np.square(theta).sum() + np.square(phi).sum()))


def _products(some: FloatArray, others: FloatArray) -> FloatArray:
    """Of every matrix with every other one."""
    return np.asarray(np.tensordot(some, others, ([1, 2], [1, 2])))


def _ratio(value: float, first: float) -> float:
    return value / first if first > 0 else (0.0 if value == 0 else float("inf"))


def _positive(system: FloatArray) -> FloatArray:
    """The server's share has no negative direction; rounding may."""
    values, vectors = np.linalg.eigh((system + system.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def _spectrum(system: FloatArray, size: int) -> Pair:
    """Eigenvectors and values of a symmetric matrix that are not rounding; ``size`` counts what makes it up."""
    values, vectors = np.linalg.eigh((system + system.T) / 2)
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

    The change of h_a is W E x[t], where x holds the unit's own y[t-1], whitened, and the constant 1, and W (P, P) is
    orthonormal: first directions that A reaches, then the others, which only phi can move. The server treats every
    state alike, so its share of the Hessian acts on the rows of E by one and the same symmetric matrix K::

        gradient(E) = 2 WᵀCᵀC W E G + E K - N        G = E[x xᵀ]: the identity, but for channels that never move

    One round shows K on P_m vectors at once, the rows of the probe. D_m + 1 vectors span everything, so (D_m + 1) / P_m
    rounds and one to verify suffice if A can be inverted; fewer do: the other units explain few directions of y.
    """

    EXTRAS, JUDGED = 2, 2

    def __init__(self, model: AugmentedModel, penalty: float, offset: bool) -> None:
        super().__init__(model, penalty, offset)
        A, C = model.model.A, model.model.C
        u, size, vt = np.linalg.svd(A)
        self.rank = rank = int((size > RANK_TOLERANCE * max(size[0], np.finfo(float).tiny)).sum())
        turn = np.linalg.eigh(u[:, :rank].T @ C.T @ C @ u[:, :rank])[1]
        self.rows = np.hstack([u[:, :rank] @ turn, u[:, rank:]])  # W
        self.left = (vt[:rank].T / size[:rank]) @ turn  # (P, r) with A left = W[:, :r]
        self.curvature = 2 * self.rows.T @ C.T @ C @ self.rows
        right, mean, moving, stretch = _whitened_channels(model, offset)
        if penalty == 0:  # a direction that only the penalty sees is no direction then
            right, mean, stretch, moving = right[moving], mean[moving], stretch[moving], moving[moving]
        self.right, self.right_mean = right, mean  # (d, D); (d,): right ȳ, zero without an offset
        # (d [+1],) each: the diagonal of G, and what K would be if the other units explained nothing
        self.moving = np.append(moving.astype(np.float64), [1.0] * offset)
        self.guess = np.append(2.0 * moving + penalty * stretch, [2.0] * offset)

    def parameters(self, search: Search) -> Pair:
        Z, shift = np.split(search.sent, [len(self.right)], axis=1)
        theta = search.theta_0 + self.left @ Z[: self.rank] @ self.right
        if not self.offset:
            return theta, search.phi_0
        return theta, search.phi_0 + self.rows @ (shift[:, 0] - Z @ self.right_mean)

    def _to_gradient(self, gradient: Pair) -> FloatArray:
        """Gradient in E from those in theta and phi: the transpose of ``parameters``."""
        d_theta, d_phi = gradient
        turned = self.rows.T @ d_phi
        inner = np.zeros((len(turned), len(self.right)))
        inner[: self.rank] = self.left.T @ d_theta @ self.right.T
        if not self.offset:
            return inner
        return self.movable(np.column_stack([inner - np.outer(turned, self.right_mean), turned]))

    def movable(self, gradient: FloatArray) -> FloatArray:
        out = gradient.copy()
        out[self.rank :, : len(self.right)] = 0.0
        return out

    def size(self, gradient: FloatArray) -> float:
        return float(np.linalg.norm(gradient))

    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        theirs = self._to_gradient(server)
        return self._to_gradient(own) + theirs, theirs[None], plain_norm(own[0] + server[0], own[1] + server[1])

    def weighed(self, direction: FloatArray) -> FloatArray:
        return direction

    def told(self, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """Each row of the probe, in the place of every row that the same parameters reach."""
        places = np.eye(len(probe))
        for group in (slice(self.rank), slice(self.rank, None)):
            for x, y in zip(probe[group], seen[0, group], strict=True):
                yield from ((np.outer(place, x), np.outer(place, y)[None]) for place in places[group])

    def own(self, span: FloatArray) -> FloatArray:
        return np.asarray(self.curvature @ span * self.moving)

    def direction(self, residual: FloatArray, first: float) -> FloatArray:
        """Its rows each at least a fair part of the first residual: K treats rows alike, so each may be scaled.

        A row that is nothing but rounding beside the others has no direction to show.
        """
        rows = np.sqrt(np.square(residual).sum(axis=1, keepdims=True))
        heard = rows > FAINT * self.size(residual)
        scale = np.where(heard, np.maximum(1.0, LOUD * first / np.where(heard, rows, 1.0)), 0.0)
        return np.asarray(scale * residual / (np.diag(self.curvature)[:, None] * self.moving + self.guess))


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
    Aᵀ G_q. The server's share has these two parts.

    Its metric, theta -> weight theta gram on the channels that move, would be the Hessian if the other units explained
    nothing, with one Gram matrix for all rows.
    """

    EXTRAS, JUDGED = 0, 1

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
        theta = search.theta_0 + search.sent
        return theta, self.model.best_offset(theta, self.offset)

    def size(self, gradient: FloatArray) -> float:
        """By the step that the metric makes of it."""
        return float(np.sqrt(max(float(np.vdot(gradient, self.left @ gradient @ self.right)), 0.0)))

    def read(self, own: Pair, server: Pair) -> tuple[FloatArray, FloatArray, float]:
        whole = own[0] + server[0] + server[1]
        return whole, np.stack(server), float(np.linalg.norm(whole))

    def weighed(self, direction: FloatArray) -> FloatArray:
        return np.asarray(self.weight @ direction @ self.gram)

    def told(self, probe: FloatArray, seen: FloatArray) -> Iterable[Pair]:
        """The probe and its products with powers of A."""
        A, turned, (ahead, pulled) = self.model.model.A, np.eye(len(self.weight)), seen
        yield probe, seen
        if len(A) > 1 and np.linalg.cond(A) < INVERTIBLE:
            entangled = np.linalg.solve(A.T, pulled)
            for _ in range(len(A) - 1):
                turned = turned @ A
                yield turned @ probe, np.stack([turned @ ahead, A.T @ turned @ entangled])

    def own(self, span: FloatArray) -> FloatArray:
        """Phi follows, so that the mean of y[t-1] has no part in it."""
        CA, gram = self.model.model.C @ self.model.model.A, self.model.centred_gram if self.offset else self.model.gram
        return np.asarray(2 * CA.T @ (CA @ span @ gram))

    def direction(self, residual: FloatArray, first: float) -> FloatArray:
        # as large as the first step, or what the reply tells of it would drown in rounding
        return self.left @ residual @ self.right * (first / self.size(residual))
