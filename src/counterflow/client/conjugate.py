"""Conjugate gradients on (theta, phi), one product with the Hessian a round.

Once the server has eliminated its own couplings exactly, the combined loss L_s + L_a of unit m is a quadratic function
of (theta_m, phi_m) alone. The unit sends the states of a trial point, and the server's reply is the gradient there:
the difference from the gradient at the current point is the Hessian times the direction, which is all that conjugate
gradients ask for. The directions are whitened by the unit's own data, in coordinates where its own part of the Hessian
is the identity::

    theta = theta_0 + left Z right,      phi = phi_0 + basis w - (A left) Z (right ȳ)

so that what is left to the iterations is the part of y that the other units explain, which has few directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.client.augmented import AugmentedModel

FloatArray = NDArray[np.float64]
RANK_TOLERANCE = 1e-12
MACHINE = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Whitening:
    """Linear map from whitened coordinates x = (Z, w) to (theta, phi) - (theta_0, phi_0)."""

    left: FloatArray  # (P, r)
    right: FloatArray  # (d, D)
    drift: FloatArray  # (P, r): A left
    right_mean: FloatArray  # (d,): right ȳ, zero if there is no offset
    basis: FloatArray  # (P, P), or (P, 0) if there is no offset
    scale: FloatArray  # (r, d): 1/sqrt of the own Hessian in Z

    @classmethod
    def build(cls, model: AugmentedModel, penalty: float, offset: bool) -> Whitening:
        local = model.model
        u, s, vt = np.linalg.svd(local.A)
        rank = int((s > RANK_TOLERANCE * max(s[0], np.finfo(float).tiny)).sum())
        curvature = local.C.T @ local.C + np.eye(local.A.shape[0])
        own, rotation = np.linalg.eigh(u[:, :rank].T @ curvature @ u[:, :rank])
        left = (vt[:rank].T / s[:rank]) @ rotation
        right, right_mean, moving, stretch = _whitened_channels(model, offset)
        if penalty == 0:  # a direction that only the penalty sees is no direction then
            right, right_mean, stretch = right[moving], right_mean[moving], stretch[moving]
            moving = moving[moving]
        scale = 1 / np.sqrt(2 * np.outer(own, moving) + penalty * stretch)
        if offset:
            value, basis = np.linalg.eigh(curvature)
            basis = basis / np.sqrt(2 * value)
        else:
            basis = np.zeros((local.A.shape[0], 0))
        return cls(left, right, local.A @ left, right_mean, basis, scale)

    def to_parameters(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        size = self.scale.size
        z = x[:size].reshape(self.scale.shape) * self.scale
        return self.left @ z @ self.right, self.basis @ x[size:] - self.drift @ (z @ self.right_mean)

    def to_gradient(self, d_theta: FloatArray, d_phi: FloatArray) -> FloatArray:
        """Gradient in x from the gradients in theta and phi: the transpose of ``to_parameters``."""
        z = self.left.T @ d_theta @ self.right.T - np.outer(self.drift.T @ d_phi, self.right_mean)
        return np.concatenate([(z * self.scale).ravel(), self.basis.T @ d_phi])


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
    """Where the iteration stands: current point, its gradient, the direction being tried."""

    whitening: Whitening
    theta_0: FloatArray
    phi_0: FloatArray
    x: FloatArray
    gradient: FloatArray
    direction: FloatArray | None  # None: the point sent is the current point, sent to be verified
    first: float  # norm of the gradient at the start
    first_raw: float
    verified: bool = False

    def parameters(self) -> tuple[FloatArray, FloatArray]:
        """(theta, phi) of the point to send."""
        x = self.x if self.direction is None else self.x + self.direction
        d_theta, d_phi = self.whitening.to_parameters(x)
        return self.theta_0 + d_theta, self.phi_0 + d_phi


def start(
    model: AugmentedModel,
    theta: FloatArray,
    phi: FloatArray,
    gradient: tuple[FloatArray, FloatArray],
    penalty: float,
    offset: bool,
    tolerance: float,
) -> ConjugateState:
    """Begin at (theta, phi), whose gradient has just arrived."""
    whitening = Whitening.build(model, penalty, offset)
    flat = whitening.to_gradient(*gradient)
    raw = _raw_norm(gradient, offset)
    state = ConjugateState(whitening, theta, phi, np.zeros_like(flat), flat, None, float(np.linalg.norm(flat)), raw)
    return _verify(state, raw, tolerance)


def advance(state: ConjugateState, gradient: tuple[FloatArray, FloatArray], tolerance: float) -> ConjugateState:
    """Take in the gradient at the point that was sent, and choose the next one."""
    arrived = state.whitening.to_gradient(*gradient)
    offset = state.whitening.basis.shape[1] > 0
    if state.direction is None:
        return _verify(replace(state, gradient=arrived), _raw_norm(gradient, offset), tolerance)
    product = arrived - state.gradient
    curvature = float(state.direction @ product)
    slope = float(state.gradient @ state.direction)
    if not curvature > 0:  # flat to rounding: nothing more to gain along it
        return replace(state, direction=None)
    length = -slope / curvature
    after = state.gradient + length * product
    x = state.x + length * state.direction
    if float(np.linalg.norm(after)) <= 0.3 * tolerance * state.first:
        return replace(state, x=x, gradient=after, direction=None)
    # Polak-Ribière keeps the directions conjugate when the product is rounded
    beta = max(0.0, float(after @ (after - state.gradient)) / float(state.gradient @ state.gradient))
    return replace(state, x=x, gradient=after, direction=-after + beta * state.direction)


def _verify(state: ConjugateState, raw: float, tolerance: float) -> ConjugateState:
    good = float(np.linalg.norm(state.gradient)) <= tolerance * state.first and raw <= tolerance * state.first_raw
    return replace(state, verified=good, direction=None if good else -state.gradient)


def _raw_norm(gradient: tuple[FloatArray, FloatArray], offset: bool) -> float:
    d_theta, d_phi = gradient
    return float(np.sqrt(np.vdot(d_theta, d_theta) + (np.vdot(d_phi, d_phi) if offset else 0.0)))
