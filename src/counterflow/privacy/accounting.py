"""What a sequence of releases costs: exact for Gaussian mechanisms, refused where nothing exact can be said.

A Gaussian mechanism whose output moves by at most Δ (in ℓ2) between neighbouring records, with noise of standard
deviation σ, tells two neighbours apart exactly as well as one number N(0, 1) against N(μ, 1) does, μ = Δ/σ. Releases
one after the other, each chosen with the earlier ones in view, are such a number again, with μ² = Σ μ_i². Its curve is

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ)

so nothing has to be bounded, discretised or rounded (Balle & Wang 2018; Dong, Roth & Su 2022).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from counterflow.errors import OptionError

LEAST_MU, LARGEST_MU = 1e-9, 1e4  # outside of it the curve cannot be computed to the digits that are promised
LEAST_DELTA = 1e-300
# Roots are moved to the safe side by more than their errors (1e-11, tests/unit/privacy). Since mu dε/dmu is at least ε
# and at least 0.79 mu, what is asked for and calibrated by _BELOW is within what was asked for when it is added up.
_ABOVE, _BELOW = 1e-10, 1e-9
_PER_ONE = 2**1074  # every double is a whole number of parts of this size


def check_budget(epsilon: object, delta: object, where: str = "privacy") -> tuple[float, float]:
    """ε and δ as floats, or an OptionError that says what is wrong with them."""
    for name, value, wanted, low, high in (
        ("epsilon", epsilon, "a finite number above 0", 5e-324, math.inf),
        ("delta", delta, f"a number between {LEAST_DELTA:g} and 1", LEAST_DELTA, 1.0),
    ):
        number = not isinstance(value, bool) and isinstance(value, (int, float))
        if not number or not low <= value < high or value > 1e300:  # type: ignore[operator]
            raise OptionError(f"{where}: {name} must be {wanted}, got {_shown(value)}")
    assert isinstance(epsilon, (int, float))
    assert isinstance(delta, (int, float))
    return float(epsilon), float(delta)


def _shown(value: object) -> str:
    """A value as a message names it, however long it is."""
    try:
        return f"{value!r:.80}"
    except ValueError:  # a whole number of thousands of digits
        return "a huge number"


def gaussian_delta(epsilon: float, mu: float) -> float:
    """The least δ for which Gaussian releases of total ``mu`` are (ε, δ)-private.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    return math.exp(_log_delta(epsilon, _checked_mu(mu)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least ε for which Gaussian releases of total ``mu`` are (ε, δ)-private.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    from scipy.optimize import brentq

    mu, wanted = _checked_mu(mu), math.log(_checked_delta(delta))
    if _log_delta(0.0, mu) <= wanted:
        return 0.0
    concentrated = mu * mu / 2
    high = concentrated + 2 * math.sqrt(concentrated * -wanted)  # enough for any Gaussian mechanism
    found = brentq(lambda e: _log_delta(e, mu) - wanted, 0.0, high, xtol=1e-13 * mu, rtol=8.9e-16, maxiter=500)
    return min(high, float(found) + _ABOVE * (float(found) + mu))  # the root is known to rounding: never below it


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest total μ that is (ε, δ)-private; a single release then needs noise of Δ/μ (analytic calibration).

    >>> round(1 / gaussian_mu(1.0, 1e-5), 4)
    3.7306
    """
    from scipy.optimize import brentq

    epsilon, delta = check_budget(epsilon, delta)
    wanted = math.log(delta)

    def excess(log_mu: float) -> float:
        return _log_delta(epsilon, math.exp(log_mu)) - wanted

    low, high = math.log(LEAST_MU), math.log(LARGEST_MU)
    if excess(low) > 0:
        raise OptionError(
            f"privacy: epsilon={epsilon:g} with delta={delta:g} needs more noise than can be accounted for; "
            "raise one of them"
        )
    if excess(high) <= 0:
        raise OptionError(f"privacy: epsilon={epsilon:g} asks for no noise to speak of; leave privacy out, or lower it")
    return math.exp(float(brentq(excess, low, high, xtol=1e-14, rtol=8.9e-16, maxiter=500))) * (1 - _BELOW)


def classical_multiplier(epsilon: float, delta: float) -> float:
    """σ/Δ of the classical formula √(2 ln(1.25/δ))/ε, as published; it is proved for ε ≤ 1 only.

    >>> round(classical_multiplier(1.0, 1e-5), 4)
    4.8448
    """
    epsilon, delta = check_budget(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


ANY_ROWS = (0, 2**53 - 1)  # of a release of which nobody said which rows it was: it overlaps every other


@dataclass(frozen=True)
class Cost:
    """What one release costs the rows [start, stop) of a unit's record.

    ``row_loss``: μ² of replacing one of these rows (Gaussian mechanisms: (2 clip / σ)²). ``epsilon``, ``delta``: what
    is claimed for a release that is no Gaussian mechanism with known sensitivity; such claims are added up.
    """

    start: int
    stop: int
    row_loss: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        whole = type(self.start) is int and type(self.stop) is int and 0 <= self.start < self.stop < 2**53
        if not whole:
            raise OptionError(f"privacy: a release covers rows start < stop, got {self.start!r} to {self.stop!r}")
        for name in ("row_loss", "epsilon", "delta"):
            value = getattr(self, name)
            good = isinstance(value, float) and math.isfinite(value) and value >= 0
            if not good or (name == "delta" and value >= 1):
                raise OptionError(f"privacy: a release cannot have {name} = {value!r}")


@dataclass
class Balance:
    """All costs together, in a form that does not grow with every release.

    Sums are exact: whole multiples of the smallest double. ``losses``: by rows [start, stop).
    """

    losses: dict[tuple[int, int], int] = field(default_factory=dict)
    epsilon: int = 0
    delta: int = 0

    @classmethod
    def of(cls, costs: Iterable[Cost]) -> Balance:
        found = cls()
        for cost in costs:
            found.add(cost)
        return found

    def add(self, cost: Cost, times: int = 1) -> None:
        span = (cost.start, cost.stop)
        self.losses[span] = self.losses.get(span, 0) + times * _parts(cost.row_loss)
        if not self.losses[span]:
            del self.losses[span]
        self.epsilon += times * _parts(cost.epsilon)
        self.delta += times * _parts(cost.delta)

    @property
    def claimed(self) -> tuple[float, float]:
        """ε and δ of releases that are no Gaussian mechanisms."""
        return _as_float(self.epsilon), _as_float(self.delta)

    def worst_window(self, window: int) -> float:
        """The largest μ² that any ``window`` consecutive rows have lost.

        The loss by row is a step function, so the integral over a window is largest where an end of it meets a step.
        """
        steps: dict[int, int] = {}
        for (start, stop), loss in self.losses.items():
            steps[start] = steps.get(start, 0) + loss
            steps[stop] = steps.get(stop, 0) - loss
        at = sorted(steps)
        before, rate = [0] * len(at), list(accumulate(steps[place] for place in at))
        for k in range(1, len(at)):
            before[k] = before[k - 1] + rate[k - 1] * (at[k] - at[k - 1])

        def up_to(place: int) -> int:
            k = bisect_right(at, place) - 1
            return 0 if k < 0 else before[k] + rate[k] * (place - at[k])

        windows = [(start, start + window) for start in at] + [(stop - window, stop) for stop in at]
        return _as_float(max((up_to(stop) - up_to(start) for start, stop in windows), default=0))

    def total(self, delta: float, window: int, more: Sequence[Cost] = (), less: Sequence[Cost] = ()) -> float:
        """ε at ``delta`` with ``more`` releases and without ``less`` of them; infinite if no ε would do.

        OptionError if there is so much noise that its cost cannot be told.
        """
        if more or less:
            balance = Balance(dict(self.losses), self.epsilon, self.delta)
            for cost, times in (*((each, 1) for each in more), *((each, -1) for each in less)):
                balance.add(cost, times)
            return balance.total(delta, window)
        claimed, used = self.claimed
        left, loss = delta - used, self.worst_window(window)
        if loss == 0:
            return claimed if left >= -1e-12 * delta else math.inf
        if loss > LARGEST_MU**2 or left < LEAST_DELTA:
            return math.inf
        return claimed + gaussian_epsilon(math.sqrt(loss), left)


def _parts(number: float) -> int:
    numerator, denominator = number.as_integer_ratio()
    return numerator * (_PER_ONE // denominator)


def _as_float(parts: int) -> float:
    return parts / _PER_ONE if parts < 10**300 * _PER_ONE else math.inf  # far beyond what is accounted for


def total_epsilon(costs: Iterable[Cost], delta: float, window: int = 1) -> float:
    """ε at ``delta`` of replacing any ``window`` consecutive rows, over all releases together.

    Rows that only one release covers pay for that one only. Infinite if the claims alone use up ``delta``.

    >>> once, twice = Cost(0, 100, row_loss=0.25), Cost(50, 150, row_loss=0.25)
    >>> total_epsilon([once], 1e-5) < total_epsilon([once, twice], 1e-5) == gaussian_epsilon(0.5**0.5, 1e-5)
    True
    """
    delta, balance = _checked_delta(delta), Balance.of(costs)
    if type(window) is not int or window < 1:
        raise OptionError(f"privacy: window must be a whole number of at least 1, got {window!r}")
    if loss := balance.worst_window(window):
        _checked_mu(math.sqrt(loss))
    return balance.total(delta, window)


def _checked_mu(mu: object) -> float:
    number = not isinstance(mu, bool) and isinstance(mu, (int, float))
    if not number or not LEAST_MU <= mu <= LARGEST_MU:  # type: ignore[operator]
        raise OptionError(
            f"privacy: releases of total mu={mu!r} cannot be accounted for (from {LEAST_MU:g} to {LARGEST_MU:g} they "
            "can); change the noise or the number of releases"
        )
    return float(mu)  # type: ignore[arg-type]


def _checked_delta(delta: object) -> float:
    return check_budget(1.0, delta)[1]


def _log_delta(epsilon: float, mu: float) -> float:
    """log δ(ε). With b² - a² = 2ε both terms share the factor φ(a), which leaves a difference of Mills' ratios."""
    from scipy.special import erfcx, log_ndtr

    if not (isinstance(epsilon, (int, float)) and 0 <= epsilon < math.inf):
        raise OptionError(f"privacy: epsilon must be a number of at least 0, got {epsilon!r}")
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    if a > 5:  # the first term is nearly 1, the ratio of the two far from 1
        first = float(log_ndtr(a))
        return first + math.log1p(-math.exp(min(epsilon + float(log_ndtr(b)) - first, 0.0)))
    x = -a / math.sqrt(2)
    step = mu / math.sqrt(2)
    close = mu < 1e-3
    gap = _small_gap(x + step / 2, step) if close else float(erfcx(x)) - float(erfcx(x + step))
    return -a * a / 2 + math.log(gap / 2) if gap > 0 else -math.inf


def _small_gap(x: float, step: float) -> float:
    """erfcx(x - step/2) - erfcx(x + step/2), too close for a difference: two terms of Taylor's series, right to step⁴.

    The slope -d erfcx(x)/dx = 2/√π - 2 x erfcx(x) cancels where x is large; there it has a series of its own.
    """
    from scipy.special import erfcx

    level = float(erfcx(x))
    if x < 20:
        slope = 2 / math.sqrt(math.pi) - 2 * x * level
    else:
        square = 1 / (x * x)
        terms = (0.5, -0.75, 1.875, -6.5625, 29.53125, -162.421875)
        slope = 2 / math.sqrt(math.pi) * sum(term * square ** (k + 1) for k, term in enumerate(terms))
    third = 4 * slope - 4 * x * (level - x * slope) if x < 1e3 else 0.0  # minus the third derivative
    return step * (slope + third * step * step / 24)
