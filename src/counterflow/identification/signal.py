"""The signal space of one unit's measurements: how many numbers a row tell about anything but that row itself.

Measurement noise that is white cannot be predicted, neither from earlier rows nor from the inputs. So the signal is
first of all the part of y[t] that earlier rows and the inputs do predict, and its space is the range of that
regression. How many directions it has is decided by canonical correlations, each held against the largest one that pure
noise would give. Directions that are not predictable but move several channels at once are states that forget at once;
they count when they clearly exceed the noise that each channel has for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.identification.lagged import lagged_gram

DEPENDENT = 1e-11  # a column with less than this share of its own variance left is a combination of the others
FINEST = 1e-6  # of a channel's variance: what varies less than this is taken for rounding, not for a signal
_FINEST_MOVE = 1e-9  # eigenvalue of the correlations below which nothing moves by itself in a direction
_LEAST = 0.01  # smallest share of a direction's variance that must be predictable, however long the record is
_COMMON = 2.0  # variance of a direction, in units of its channels' own noise, from which it counts without prediction
_LAGS = 5  # earlier rows used, if there are enough of them
_ROWS_A_COLUMN = 10  # windows wanted for each column of earlier rows
_TRACY_WIDOM = 3.2724  # 99.9 % quantile of the law of the largest root, real data


@dataclass(frozen=True)
class SignalSpace:
    """Where a unit's measurements carry a signal: y = mean + scale * (W s + noise).

    ``scale`` (D,): standard deviation of each channel, 1 of one that never moves. ``W`` (D, r): orthonormal columns in
    standardised channels, the direction that varies most first; zero where a channel never moves. ``noise`` (D,):
    variance of the white noise of each standardised channel.
    """

    mean: FloatArray
    scale: FloatArray
    W: FloatArray
    noise: FloatArray

    @property
    def rank(self) -> int:
        """Numbers that a row is reduced to, r."""
        return int(self.W.shape[1])

    @property
    def weights(self) -> FloatArray:
        """(D, r) weights that read s off a standardised row with the least noise; weights' W = I.

        W itself reads s off too, but gives a noisy channel the same say as a quiet one.
        """
        weighted = self.W / np.maximum(self.noise, FINEST)[:, None]
        return np.asarray(np.linalg.solve(self.W.T @ weighted, weighted.T).T)


def signal_space(y: FloatArray, u: FloatArray, rank: int | None = None, spare: int = 0) -> SignalSpace:
    """Find the space in which complete measurements y (T+1, D), in any units, carry more than white noise.

    ``rank``: directions to keep; by default all those whose canonical correlation with the five rows before and the
    inputs ``u`` (T+1, U) is above what noise alone would give (99.9 % quantile of the largest root), and of which at
    least one percent can be predicted; and those that cannot be predicted but move many channels together by at least
    as much as their noise. At least one, and ``spare`` more if so many channels are no sums of others. DataError if no
    channel moves, or there are not enough rows.

    >>> rng = np.random.default_rng(0)
    >>> s = np.zeros((3000, 2))
    >>> for t in range(1, 3000):
    ...     s[t] = 0.9 * s[t - 1] + rng.normal(size=2)
    >>> sensors = s @ rng.normal(size=(2, 6)) + rng.normal(size=(3000, 6))  # two slow signals
    >>> space = signal_space(sensors, np.empty((3000, 0)))
    >>> space.rank, space.W.shape
    (2, (6, 2))
    """
    D = y.shape[1]
    mean, scale, live = standard(y)
    if not live.any():
        raise DataError("no channel of y ever moves; there is no signal to find")
    z = (y - mean)[:, live] / scale[live]
    u_mean, u_scale, moving = standard(u)
    drive = (u - u_mean)[:, moving] / u_scale[moving]

    known, left, windows, columns = _predictable(z, drive)
    factor = np.asarray(np.linalg.cholesky(left + FINEST * np.eye(len(left))), dtype=np.float64)
    ratios, vectors = np.linalg.eigh(below(factor, below(factor, known).T))
    ratios, vectors = np.maximum(ratios[::-1], 0.0), vectors[:, ::-1]
    edge = np.array(
        [max(_largest_of_noise(len(left) - k, max(columns - k, 1), windows), _LEAST) for k in range(len(ratios))]
    )
    above = ratios / (1 + ratios) > edge
    counted = len(above) if above.all() else int(np.argmin(above))
    directions = factor @ vectors
    common = _shared(left, directions[:, :counted], windows)
    directions = np.hstack([directions[:, :counted], common, directions[:, counted:]])
    different = int((np.linalg.eigvalsh(z.T @ z / len(z)) > _FINEST_MOVE).sum())
    r = min(max(counted + common.shape[1], 1) + spare, different) if rank is None else min(rank, len(left))

    basis = np.linalg.qr(directions[:, :r] / np.linalg.norm(directions[:, :r], axis=0))[0]
    turn = np.linalg.eigh(basis.T @ (known + left) @ basis)[1]  # by variance inside the space
    basis = basis @ turn[:, ::-1]
    basis *= np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(r)])
    W, noise = np.zeros((D, r)), np.full(D, FINEST)
    W[live], noise[live] = basis, _white(left * windows / (windows - columns), basis)
    return SignalSpace(mean, scale, W, noise)


def standard(values: FloatArray) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Mean and standard deviation of each column, and which columns move at all."""
    if not len(values):
        return np.zeros(values.shape[1]), np.ones(values.shape[1]), np.zeros(values.shape[1], dtype=bool)
    first = values[0]  # deviations from it, so that a large level costs no digits and a constant column is exactly zero
    mean = first + (values - first).mean(axis=0)
    scale = np.asarray((values - mean).std(axis=0))
    moves = scale > 1e-12 * np.abs(values).max(axis=0)
    return mean, np.where(moves, scale, 1.0), moves


def _predictable(z: FloatArray, drive: FloatArray) -> tuple[FloatArray, FloatArray, int, int]:
    """Covariances of what earlier rows and inputs tell about a row, and of the rest; windows and columns used."""
    D, m = z.shape[1], z.shape[1] + drive.shape[1]
    lags = _LAGS
    while lags > 1 and len(z) - lags < _ROWS_A_COLUMN * ((lags + 1) * m - D):
        lags -= 1
    gram = lagged_gram(z, drive, lags + 1)
    wanted = 2 * ((lags + 1) * m)
    if gram.windows < wanted:
        raise DataError(
            f"{gram.windows} pairs of neighbouring rows with everything measured are too few to tell signal from "
            f"noise in {D} channels with {drive.shape[1]} inputs: at least {wanted} are needed. Record more rows, or "
            "leave out channels that are mostly missing"
        )
    G = gram.matrix / gram.windows
    now = lags * m + np.arange(D)
    other = np.delete(np.arange(len(G)), now)
    basis, factor = independent(G[np.ix_(other, other)])
    explained = below(factor, G[np.ix_(other[basis], now)])
    known = explained.T @ explained
    left = G[np.ix_(now, now)] - known
    return known, (left + left.T) / 2, gram.windows, len(basis)


def _largest_of_noise(p: int, q: int, rows: int) -> float:
    """Square of the largest canonical correlation that p columns of white noise have with q others, at 99.9 %.

    The logit of it follows the law of Tracy and Widom about these values (Johnstone, Annals of Statistics 36, 2008).
    """
    total = rows - 1
    half = [2 * np.arcsin(np.sqrt(min((size - 0.5) / total, 1.0))) for size in (min(p, q), max(p, q))]
    angle = half[0] + half[1]
    if angle >= np.pi:
        return 1.0
    centre = 2 * np.log(np.tan(angle / 2))
    spread = (16 / total**2 / (np.sin(angle) ** 2 * np.sin(half[0]) * np.sin(half[1]))) ** (1 / 3)
    return float(1 / (1 + np.exp(-(centre + _TRACY_WIDOM * spread))))


def _shared(left: FloatArray, found: FloatArray, windows: int) -> FloatArray:
    """Directions outside of those found in which channels move together more than independent noises would."""
    D, k = found.shape
    S = left + FINEST * np.eye(D)
    own = 1 / np.linalg.inv(S).diagonal()  # what no other channel explains
    S = S / np.sqrt(own) / np.sqrt(own)[:, None]
    noise_edge = (1 + np.sqrt(D / windows)) ** 2
    most = int(D + 0.5 - 0.5 * np.sqrt(8 * D + 1))  # with more, noise could not be told from them
    rest = np.eye(D)
    if k:
        inside = np.linalg.qr(found / np.sqrt(own)[:, None])[0]
        rest -= inside @ inside.T
    values, vectors = np.linalg.eigh(rest @ S @ rest)
    values, vectors = values[::-1], vectors[:, ::-1]
    count = int(np.count_nonzero(values > max(noise_edge, _COMMON)))
    return np.asarray(np.sqrt(own)[:, None] * vectors[:, : max(min(count, most - k), 0)])


def _white(left: FloatArray, W: FloatArray) -> FloatArray:
    """Variances of noise that is independent from channel to channel, given the space of the signal.

    At right angles to W there is nothing but noise, which gives one equation for each channel. Where those do not
    decide, because there are hardly more channels than directions, what no other channel explains is taken.
    """
    most = 1 / np.linalg.inv(left + FINEST * np.eye(len(left))).diagonal()
    rest = np.eye(len(W)) - W @ W.T
    miss = (rest @ left @ rest).diagonal() - rest**2 @ most
    change = np.linalg.lstsq(rest**2, miss, rcond=1e-6)[0]
    return np.asarray(np.clip(most + change, FINEST, np.maximum(most, FINEST)))


def independent(S: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """Columns that are not combinations of the others, and the Cholesky factor of their covariance."""
    every = np.arange(len(S), dtype=np.intp)
    try:
        factor = np.asarray(np.linalg.cholesky(S), dtype=np.float64)
        if not len(S) or factor.diagonal().min() ** 2 > DEPENDENT:
            return every, factor
    except np.linalg.LinAlgError:
        pass
    from scipy.linalg.lapack import dpstrf

    packed, pivots, rank, _ = dpstrf(S, tol=DEPENDENT, lower=1)
    return np.asarray(pivots[:rank] - 1, dtype=np.intp), np.tril(packed[:rank, :rank])


def below(factor: FloatArray, right: FloatArray, transposed: bool = False) -> FloatArray:
    """Solve with a lower-triangular factor, or with its transpose."""
    from scipy.linalg import solve_triangular

    if not right.size:
        return right.copy()
    return np.asarray(solve_triangular(factor, right, lower=True, trans=int(transposed), check_finite=False))
