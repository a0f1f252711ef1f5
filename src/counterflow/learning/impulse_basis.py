"""What inputs can do to a unit: banks of impulse responses, the signals that they make, and a basis of these.

A measurement that answers to inputs is, but for noise, a sum of signals x[t] = Σ_k g[k] u[t-1-k]. A bank is a handful
of impulse responses g, one a column (L, d): those with the poles of two units' own models; where nobody knows poles, an
``ImpulseBasis`` with public ones. The basis Φ (T+1, K) of all these signals is orthonormal but for
rows that are held back: no row may reach further than a cap that is chosen by looking at Φ alone. So it says nothing of
measurements, and one measurement has a small part in each projection Φᵀs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.recurrence import linear_recurrence

FORGOTTEN = 1e-6  # share of an impulse response that may be left when it is cut off
SHORTEST, LONGEST = 200, 4000  # rows that impulse responses are followed
SAME = 1e-6  # singular value, relative to the largest, below which signals are one
CAPS = (1.0, 0.995, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5)  # quantiles of the rows' reach that are tried as caps
LAGS = 20  # functions that are single lags: what acts at once, delays, and what swings
SPREAD = 2.5  # of each of the slower time constants over the one before
TIMES = 3.0  # memory over the longest time constant


def memory_of(radius: float, rows: int) -> int:
    """How many rows impulse responses of this spectral radius are followed, in a record of so many rows."""
    needed = math.log(FORGOTTEN) / math.log(radius) if 0 < radius < 1 else 1.0
    return int(max(2, min(max(math.ceil(needed), SHORTEST), LONGEST, rows // 2)))


def pole_bank(effect: FloatArray, cause: FloatArray, memory: int) -> FloatArray:
    """Impulse responses (memory, P_m + P_n) that span all with the poles of A_mm (``effect``) and A_nn (``cause``).

    That is what unit n's inputs do to unit m directly and by way of n's own states, to first order in the couplings.
    """
    p, q = len(effect), len(cause)
    rng = np.random.default_rng(0)  # any vector that leaves no pole out will do
    F = np.zeros((p + q, p + q))
    F[:p, :p], F[p:, p:], F[:p, p:] = effect, cause, rng.normal(size=(p, q))
    start = rng.normal(size=p + q)
    first = start[None]
    return np.vstack([first, linear_recurrence(F, np.zeros((memory - 1, p + q)), start)])


def responses(u: FloatArray, bank: FloatArray) -> FloatArray:
    """Signals (T+1, U d): what each impulse response of a bank (L, d) makes of each input (T+1, U); row 0 is zero."""
    rows, inputs = u.shape
    bank = bank[: rows - 1]
    size = 1 << (rows + len(bank) - 1).bit_length()
    heard = np.fft.rfft(u, size, axis=0)
    made = np.fft.rfft(bank, size, axis=0)
    out = np.zeros((rows, inputs, bank.shape[1]))
    for j in range(inputs):  # one input at a time: memory is that of its own signals
        out[1:, j] = np.fft.irfft(heard[:, j, None] * made, size, axis=0)[: rows - 1]
    return out.reshape(rows, -1)


def basis_of(signals: FloatArray, there: NDArray[np.bool_]) -> FloatArray:
    """A basis (T+1, K) of signals (T+1, n) over the rows that are ``there``; zero in the others.

    Orthonormal but for the cap: rows that reach further than it are shortened. The cap is the one that leaves least of
    the noise that it asks for: of variance cap² on Φ̃ᵀs, so cap² tr (Φ̃ᵀΦ)⁻² on the coefficients.
    """
    known = np.where(there[:, None], signals, 0.0)
    size = np.linalg.norm(known, axis=0)
    moving = size > SAME * size.max(initial=0.0)
    if not moving.any() or not there.any():
        return np.zeros((len(signals), 0))
    left, values, _ = np.linalg.svd(known[:, moving] / size[moving], full_matrices=False)
    basis = np.where(there[:, None], left[:, values > SAME * values[0]], 0.0)  # rounding leaves traces elsewhere
    reach = np.linalg.norm(basis, axis=1)
    best, least = basis, math.inf
    for quantile in CAPS:
        cap = float(np.quantile(reach[there], quantile))
        if cap <= 0:
            continue
        shortened = basis * np.minimum(1.0, cap / np.maximum(reach, 1e-300))[:, None]
        gain = np.linalg.svd(shortened.T @ basis, compute_uv=False)
        noise = cap**2 * float((1 / np.maximum(gain, 1e-12) ** 2).sum())
        if noise < least:
            best, least = shortened, noise
    return best


def correlations(left: FloatArray, right: FloatArray, lags: int) -> FloatArray:
    """Σ_t left[t] right[t-l]ᵀ for l = 0..lags-1, (lags, p, q)."""
    out = np.zeros((lags, left.shape[1], right.shape[1]))
    for lag in range(min(lags, len(left))):
        out[lag] = left[lag:].T @ right[: len(right) - lag]
    return out


@dataclass(frozen=True, eq=False)
class ImpulseBasis:
    """Functions with public poles, of a memory that was chosen without looking at measurements."""

    poles: tuple[float, ...]
    memory: int

    @classmethod
    def from_memory(cls, memory: int, most: int) -> ImpulseBasis:
        """Lags first, then ever slower relaxations: at most so many functions, which is for the rows to say."""
        times, longest, each = [], memory / TIMES, 5.0
        while each < longest / math.sqrt(SPREAD):
            times.append(each)
            each *= SPREAD
        if memory > LAGS:
            times.append(longest)
        poles = (*([0.0] * min(LAGS, memory)), *(math.exp(-1 / time) for time in times))
        if len(poles) > most:
            poles = tuple(poles[k] for k in np.linspace(0, len(poles) - 1, max(most, 2)).round().astype(int))
        return cls(poles, memory)

    @cached_property
    def system(self) -> tuple[FloatArray, FloatArray]:
        """(F, b) of orthonormal functions with these poles, the states of x[k+1] = F x[k] + b u[k].

        Function j is that of its own pole after all-passes of those before it (Takenaka and Malmquist).
        """
        F, b = np.zeros((self.size, self.size)), np.zeros(self.size)
        # e[k]: what comes out of the all-passes so far, e = c x + d u; each function is g / (z - a) of it
        c, d = np.zeros(self.size), 1.0
        for j, pole in enumerate(self.poles):
            gain = math.sqrt(1 - pole * pole)
            F[j], b[j] = gain * c, gain * d
            F[j, j] += pole
            # (1 - a z)/(z - a) e = -a e + (1 - a²)/(z - a) e, and the latter is gain x_j
            c, d = -pole * c, -pole * d
            c[j] += gain
        return F, b

    @property
    def size(self) -> int:
        return len(self.poles)

    @cached_property
    def functions(self) -> FloatArray:
        """(L, d) impulse responses, until nothing is left of them."""
        F, b = self.system
        return np.vstack([b[None], linear_recurrence(F, np.zeros((6 * self.memory - 1, len(b))), b)])

    def signals(self, u: FloatArray) -> FloatArray:
        """(T+1, U d)."""
        return responses(u, self.functions)
