"""How a unit that has a log and no model reads a few numbers a row off it, in a basis that it keeps to itself.

The unit standardises its measurements, finds the space in which they carry more than noise, and sends their coordinates
there: y = level + scale (W s + noise) is solved for s with the least noise. Level, scale and W stay here, so that the
server never learns what was measured; what it finds for s, the unit lifts back to its channels and engineering units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, ProtocolError
from counterflow.exchange.compression import spans_of
from counterflow.identification import lagged_gram, signal_space
from counterflow.plant import LocalModel, Unit
from counterflow.protocol import Identified, Reduced

LEAST = 1e-6  # of a channel's variance: the least noise it is taken to have
LEAST_ROWS = 20
LEAST_READINGS = 10  # of a channel that comes seldom, to be of use
FINEST_NOISE = 1e-6  # of a channel's variance
VAGUE = 1e-3  # precision of a standardised number of which nothing is known
NOTHING = 100.0  # variance from which on nothing is known
NEGLIGIBLE = 1e-6  # of the variance in complete rows
SPARE = 2  # numbers more than stand out of the noise: one that is missed costs more than one too many
NEIGHBOURS = 2  # rows before and after one that are asked what its numbers are without their noise


@dataclass(frozen=True)
class Reading:
    """How a unit reads its numbers s off its channels, and how s moves them: y = level + scale (L s + rest).

    ``weights`` (D_m, r): s = weightsᵀ (y - level) / scale; zero for channels that are not used. ``noise`` (D_m,): of
    each standardised channel that is. ``lift`` (D_m, r): L, with weightsᵀ L = I. ``rest`` (D_m, D_m): covariance of
    what the numbers leave of the standardised channels. ``scatter`` (r, r): rows of L are uncertain with covariance
    scatter times their own diagonal entry of ``rest``.
    """

    level: FloatArray
    scale: FloatArray
    noise: FloatArray
    weights: FloatArray
    lift: FloatArray
    scatter: FloatArray
    rest: FloatArray

    @classmethod
    def from_log(cls, unit: Unit, y: FloatArray, u: FloatArray, rank: int | None) -> Reading:
        """Find the space in which a log carries more than noise.

        Channels that come in less than half of the unit's rows (laboratory samples, slow analysers) are numbers of
        their own. Where readings of the others are missing, the last one stands in for this purpose, and only for this.
        """
        often, seldom = _regular(y)
        still = f"unit {unit.name!r}: none of its outputs ever moves; there is nothing to identify"
        if not often.any() and not seldom.any():
            raise DataError(still)
        D, r, single = len(often), 0, int(seldom.sum())
        level, scale, noise = np.zeros(D), np.ones(D), np.where(seldom, LEAST, 1.0)
        rest = np.diag(noise)
        if often.any():
            known, drive = _held(y[:, often], u)
            if len(known) < LEAST_ROWS:
                raise DataError(
                    f"unit {unit.name!r}: {len(known)} rows with measurements are too few to identify it; record more"
                )
            if (np.ptp(known, axis=0) == 0).all():
                raise DataError(still)
            try:
                space = signal_space(known, drive, rank, SPARE)
            except DataError as error:
                raise DataError(f"unit {unit.name!r}: {error}") from error
            z, r = (known - space.mean) / space.scale, space.rank
            own_lift, own_scatter = _lifted(z, z @ space.weights, drive, space.W)
            left = z - (z @ space.weights) @ own_lift.T
            beyond = np.eye(len(own_lift)) - own_lift @ space.weights.T
            level[often], scale[often], noise[often] = space.mean, space.scale, space.noise
            rest[np.ix_(often, often)] = left.T @ left / len(left) + LEAST * beyond @ beyond.T
        weights, lift, scatter = np.zeros((D, r + single)), np.zeros((D, r + single)), np.zeros((r + single,) * 2)
        if often.any():
            weights[often, :r], lift[often, :r], scatter[:r, :r] = _along_channels(space.weights, own_lift, own_scatter)
        if single:
            level[seldom], scale[seldom] = np.nanmean(y[:, seldom], axis=0), np.nanstd(y[:, seldom], axis=0)
            weights[seldom, r:] = lift[seldom, r:] = np.eye(single)
        return cls(level, scale, noise, weights, lift, scatter, rest)

    @property
    def used(self) -> NDArray[np.bool_]:
        """(D_m,): channels that the numbers are read off."""
        return np.asarray(self.weights.any(axis=1))

    def message(self, unit: str, y: FloatArray, u: FloatArray, later: bool = False) -> Reduced:
        """What is sent of measurements (T+1, D_m): numbers of all rows in which anything was read."""
        values, variance = self.numbers(y)
        sent = np.asarray(np.isfinite(variance).any(axis=1), bool)
        coded = np.where(np.isfinite(variance), variance, -1.0)[sent]
        patterns, which = np.unique(coded, axis=0, return_inverse=True)
        edges = np.flatnonzero(np.diff(which.ravel(), prepend=-1))
        runs = np.stack([which.ravel()[edges], np.diff(edges, append=len(coded))], axis=1).astype(np.float64)
        return Reduced(
            unit, np.ascontiguousarray(values[sent]), spans_of(sent), np.ascontiguousarray(u), patterns, runs, later
        )

    def numbers(self, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Numbers (T+1, r), zero where nothing is known, and what their variance has more than in complete rows.

        Where channels are missing, the others tell the numbers as well as they can: weighted by the noise of each. The
        variance is inf where they tell nothing.
        """
        used = self.used
        z = np.where(used, (y - self.level) / self.scale, 0.0)
        there = np.isfinite(z)
        values = np.where(there, z, 0.0) @ self.weights
        variance = np.zeros_like(values)
        patterns, which = np.unique(there, axis=0, return_inverse=True)
        noise = np.maximum(np.where(used, self.noise, 1.0), FINEST_NOISE)
        seen = self.lift / noise[:, None]
        least = np.diag(np.linalg.inv(self.lift.T @ seen + VAGUE * np.eye(self.lift.shape[1])))
        for k, pattern in enumerate(patterns):
            if pattern.all():
                continue
            rows = which.ravel() == k
            spread = np.linalg.inv(self.lift[pattern].T @ seen[pattern] + VAGUE * np.eye(len(least)))
            more = np.maximum(np.diag(spread) - least, 0.0)
            more = np.where(more < NEGLIGIBLE * least, 0.0, np.where(more > NOTHING, np.inf, more))
            told = z[np.ix_(rows, pattern)] @ seen[pattern] @ spread
            values[rows] = np.where(np.isfinite(more), told, 0.0)
            variance[rows] = more
        return values, variance

    def model(self, unit: str, found: Identified) -> LocalModel:
        """The unit's own model in engineering units: C = scale L C̃, R = scale (L R̃ Lᵀ + rest) scale.

        With this R the best reading of the states off a row goes by the numbers s and nothing else, as it was found.
        """
        lift, scale = self.lift, self.scale
        if found.observation.shape[0] != lift.shape[1]:
            raise ProtocolError(
                f"unit {unit!r} sent {lift.shape[1]} numbers a row, got back {found.observation.shape[0]}"
            )
        R = lift @ found.noise @ lift.T + self.rest
        R = scale[:, None] * (R + R.T) / 2 * scale
        return LocalModel(A=found.A, B=found.B, C=scale[:, None] * (lift @ found.observation), Q=found.Q, R=R)

    def doubt(self, found: Identified) -> tuple[FloatArray, FloatArray]:
        """Variances (D_m,) and matrix (P_m, P_m): a row of C is uncertain with covariance variance times matrix."""
        variances = np.diag(self.rest) * self.scale**2
        variances[~self.lift.any(axis=1)] = 0.0
        matrix = found.observation.T @ self.scatter @ found.observation
        return np.asarray(variances), np.asarray((matrix + matrix.T) / 2)


def _lifted(z: FloatArray, s: FloatArray, u: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """L of z = L s + rest, and the covariance of its rows up to the variance of the rest.

    s carries the noise of its own row, so it is replaced by what the neighbouring rows and the inputs say of it
    (two-stage least squares); white noise of other rows does no harm.
    """
    r, D = s.shape[1], z.shape[1]
    both = np.hstack([s, z])
    window, m = 2 * NEIGHBOURS + 1, r + D + u.shape[1]
    centred = u - u.mean(axis=0)
    gram = lagged_gram(both, centred, window)
    if gram.windows < 3 * window * (r + u.shape[1]):
        return np.array(start), np.zeros((r, r))
    G, now = gram.matrix, NEIGHBOURS * m
    at = np.arange(window * m).reshape(window, m)
    beside = np.concatenate([np.delete(at, NEIGHBOURS, axis=0)[:, :r].ravel(), at[:, r + D :].ravel()])
    size = np.sqrt(np.maximum(np.diag(G)[beside], 1e-300))
    inner = G[np.ix_(beside, beside)] / np.outer(size, size)
    values, vectors = np.linalg.eigh(inner)
    keep = values > 1e-10 * values[-1]
    half = vectors[:, keep] / np.sqrt(values[keep])
    of_s, of_z = (
        half.T @ (G[beside][:, now + columns] / size[:, None]) for columns in (np.arange(r), r + np.arange(D))
    )
    foreseen = of_s.T @ of_s  # Σ ŝ ŝᵀ
    values, vectors = np.linalg.eigh(foreseen)
    if values[0] <= 1e-6 * values[-1]:  # a direction that nothing foresees has no instrument
        return np.array(start), np.zeros((r, r))
    scatter = np.asarray((vectors / values) @ vectors.T)
    return np.asarray(of_z.T @ of_s @ scatter), scatter


def _regular(y: FloatArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Channels of y (T+1, D) that come in most of the rows in which anything is read, and others that move."""
    known = np.isfinite(y)
    count = known.sum(axis=0)
    often = count > 0.5 * known.any(axis=1).sum()
    low, high = np.where(known, y, np.inf).min(axis=0), np.where(known, y, -np.inf).max(axis=0)
    return np.asarray(often, bool), np.asarray(~often & (count >= LEAST_READINGS) & (high > low), bool)


def _held(y: FloatArray, u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows of y in which anything is read, with the last reading of what is not, and the mean inputs since the last."""
    known = np.isfinite(y)
    rows = np.flatnonzero(known.any(axis=1))
    if known.all() or not len(rows):
        return y[rows], u[rows]
    at = np.arange(len(rows))[:, None]
    there = known[rows]
    last = np.maximum.accumulate(np.where(there, at, -1), axis=0)
    first = np.argmax(there, axis=0)
    held = np.take_along_axis(y[rows], np.where(last < 0, first, last), axis=0)
    total = np.vstack([np.zeros(u.shape[1]), np.cumsum(u, axis=0)])
    since = np.concatenate([[rows[0]], rows[:-1] + 1])
    return held, np.asarray((total[rows + 1] - total[since]) / (rows + 1 - since)[:, None])


def copies_of(y: FloatArray) -> list[tuple[int, int]]:
    """Pairs of channels of y (n, D) of which the second repeats the first, but for level and scale."""
    there = y[np.isfinite(y).all(axis=1)]
    if len(there) < 3:
        return []
    centred = there - there.mean(axis=0)
    size = np.sqrt(np.square(centred).sum(axis=0))
    alike = np.abs(centred.T @ centred) >= (1 - 1e-10) * np.outer(size, size)
    first = [int(np.flatnonzero(alike[k])[0]) if size[k] > 0 else k for k in range(y.shape[1])]
    return [(one, k) for k, one in enumerate(first) if one != k and size[one] > 0]


def _along_channels(
    weights: FloatArray, lift: FloatArray, scatter: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same numbers in a basis in which each of them is one channel without its noise.

    A channel acts on few others, so that couplings are few in such a basis and many in any other.
    """
    from scipy.linalg import qr

    pivots = qr(lift.T, mode="r", pivoting=True)[1][: lift.shape[1]]
    turn = lift[np.sort(pivots)]
    back = np.linalg.inv(turn)
    return weights @ turn.T, lift @ back, back.T @ scatter @ back
