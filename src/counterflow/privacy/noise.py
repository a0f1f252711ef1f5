"""Gaussian noise that can be trusted: where its bits come from, and no trace of the data in the digits of the result.

Noise computed in floating point betrays its data: which doubles can come out of ``x + noise`` depends on x (Mironov
2012; Jin et al. 2022). Here the result is exactly what the mechanism of the theory gives,

    released = grid · round((x + σ Φ⁻¹(U)) / grid),    U uniform with 256 bits,

that is the ideal Gaussian mechanism followed by rounding to a grid that does not depend on the data, and rounding
afterwards costs no privacy. 128 bits of U and double precision settle almost every rounding; where the sum lies so
close to the middle between two grid points that they might not, the other bits are drawn and the sum is computed anew
with a hundred digits. What is left is that U has an end: that moves the distribution of one number by less than
``BITS_SHORT``, which is taken off δ.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError
from counterflow.randomness import stream

BITS_SHORT = 2.0**-220  # 256 bits, less those that number the grid points within 19 σ, with room to spare
FINENESS = 20  # the grid is a power of two, about σ / 2^20
_MARGIN = 1e-10  # of σ: far more than the error of Φ⁻¹ in double precision, see tests/unit/privacy
_REACH = 1e8  # largest |x| / σ: up to there a tie is a double itself, across which no sum is rounded


@dataclass(frozen=True)
class Source:
    """Where random bits come from: the operating system, or for tests and simulations a seed.

    ``names`` (unit, purpose, ...) keep seeded streams apart; the operating system needs none.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        good = self.seed is None or (type(self.seed) is int and self.seed >= 0)
        if not good:
            raise OptionError(f"privacy: seed must be a whole number of at least 0, or None, got {self.seed!r}")

    @property
    def secure(self) -> bool:
        return self.seed is None

    def __str__(self) -> str:
        return "operating system" if self.secure else f"seed {self.seed}"

    def words(self, count: int, *names: str) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        if self.seed is None:
            return np.frombuffer(os.urandom(8 * count), "<u8").astype(np.uint64)
        return stream(self.seed, "privacy noise", *names).integers(0, 2**64, count, dtype=np.uint64)


def grid_of(sigma: float) -> float:
    """The grid for noise of standard deviation ``sigma``.

    >>> grid_of(3.0) == 2.0**-19
    True
    """
    return math.ldexp(1.0, math.frexp(sigma)[1] - 1 - FINENESS)


def gaussian_release(x: FloatArray, sigma: float, source: Source, *names: str) -> FloatArray:
    """x + N(0, σ²), rounded to ``grid_of(sigma)``: exactly distributed so, whatever the digits of x.

    Parameters
    ----------
    x : any shape, finite; at most a hundred million σ.
    names : for a seeded source, whose noise this is.

    Examples
    --------
    >>> released = gaussian_release(np.zeros(1000), 2.0, Source(seed=1), "boiler")
    >>> bool((released % grid_of(2.0) == 0).all()), bool(1.8 < released.std() < 2.2)
    (True, True)
    """
    from scipy.special import ndtri

    if not (isinstance(sigma, float) and 1e-150 < sigma < 1e150):
        raise OptionError(f"privacy: noise needs a standard deviation between 1e-150 and 1e150, got {sigma!r}")
    if not np.isfinite(x).all() or (x.size and np.abs(x).max() > _REACH * sigma):
        raise OptionError(
            f"privacy: values to release must be finite and below {_REACH:g} standard deviations of noise"
        )
    high, low = source.words(2 * x.size, *names).reshape(2, *x.shape)
    negative = (high >> np.uint64(63)).astype(bool)
    upper = high & np.uint64(2**63 - 1)  # |noise| has the tail 0.(upper)(low)(more bits), below ½
    tail = np.ldexp(upper.astype(np.float64), -64) + np.ldexp(low.astype(np.float64) + 0.5, -128)
    size = -ndtri(tail)
    noise = np.where(negative, -size, size) * sigma
    grid = grid_of(sigma)
    scaled = (x + noise) / grid
    released = np.array(np.rint(scaled))
    margin = _MARGIN * sigma / grid
    unsettled = np.abs(scaled - np.floor(scaled) - 0.5) < margin
    unsettled |= (upper == 0) & (low < np.uint64(2**40))  # so far out that the missing bits count
    for at in np.argwhere(unsettled):
        place = tuple(at)
        more = source.words(2, *names, "more", *map(str, place))
        bits = (int(upper[place]) << 192) + (int(low[place]) << 128) + (int(more[0]) << 64) + int(more[1])
        released[place] = _exactly(float(x[place]), sigma, grid, bits, bool(negative[place]))
    return np.asarray(released * grid + 0.0, np.float64)  # + 0: a negative zero would tell which side it came from


def _exactly(x: float, sigma: float, grid: float, bits: int, negative: bool) -> float:
    """The nearest grid point, from a sum with a hundred digits."""
    with localcontext(_DIGITS):  # not the caller's, which may round otherwise
        tail = (Decimal(bits) + Decimal("0.5")) / Decimal(2) ** 256
        size = _upper_quantile(tail)
        total = Decimal(x) + (-size if negative else size) * Decimal(sigma)
        return float((total / Decimal(grid)).to_integral_value())


def _upper_quantile(tail: Decimal) -> Decimal:
    """z with P(N(0, 1) > z) = tail <= 1/2, to a hundred digits: Newton's method from double precision."""
    from scipy.special import ndtri

    z = Decimal(-float(ndtri(float(tail))))
    root = (2 * _PI).sqrt()
    for _ in range(5):  # 12 digits, 24, 48, 96; once more for good measure
        z += (_upper_tail(z) - tail) * root * (z * z / 2).exp()
    return z


def _upper_tail(z: Decimal) -> Decimal:
    """P(N(0, 1) > z) for 0 <= z < 20: Φ(z) = ½ + φ(z) (z + z³/3 + z⁵/15 + ...), all terms of one sign."""
    with localcontext() as context:
        context.prec = 210  # the difference to 1 loses as many digits as the tail has zeros
        term = total = z
        k = 1
        while term > total * Decimal(10) ** -205:
            k += 2
            term = term * z * z / k
            total += term
        return Decimal("0.5") - total * (-z * z / 2).exp() / (2 * _PI).sqrt()


_DIGITS = Context(prec=120, rounding=ROUND_HALF_EVEN, Emin=-(10**6), Emax=10**6, clamp=0, traps=[])
_PI = Decimal(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
    "328230664709384460955058223172535940812848111745028410270193852110555964462294895493038196442881097566"
)
