"""The plan whose outcome is nearest to a target, where what a plan does can only be asked.

Where controllers react, an outcome bends and breaks: a loop that has met a limit no longer takes a change away. So the
responses that a plan is computed from are corrected by every outcome (Broyden's rank-one update, which for one input
is the secant). Where that leads no further, every input is tried both ways around the best plan so far; and of one
output, the way between two plans on either side of the target is halved. Doing nothing is the first plan, so that no
worse one is ever returned. The number of outcomes that are asked for is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from counterflow.arrays import FloatArray

TRIALS = 48  # outcomes that are asked for at most
GROWTHS = 6  # of them where a plan is grown or shrunk only
PROBES = (2.0, 0.5, 8.0)  # in units of a lever: how far each is tried around the best plan
MISSES = 3  # trials in a row that bring little, after which every lever is tried
HALVINGS = 12  # of the way between two plans
STILL = 1e-7  # of a lever's unit: what is no other plan


def planned(
    response: FloatArray, wanted: FloatArray, low: FloatArray, high: FloatArray, right: FloatArray | None = None
) -> FloatArray:
    """The smallest plan (levers,) between ``low`` and ``high`` whose outcome, ``response`` @ plan, is nearest.

    Nearest to ``right``, or to ``wanted``, in whose sizes a distance is measured. The target comes first, the size of
    the plan second.
    """
    from scipy.optimize import lsq_linear

    right = wanted if right is None else right
    weight = 1e6 / np.maximum(np.abs(wanted), 1e-12)
    needed = float(np.linalg.norm(np.linalg.pinv(response) @ wanted))  # a large target is not cut short by its price
    count = response.shape[1]
    system = np.vstack([weight[:, None] * response, np.eye(count) / max(needed, 1.0)])
    found = lsq_linear(system, np.concatenate([weight * right, np.zeros(count)]), bounds=(low, high), tol=1e-14)
    return np.asarray(found.x)


Outcome = Callable[[FloatArray], FloatArray | None]  # (levers,) -> (outputs,); None: there is none to be had


def grown(
    outcome: Outcome, plan: FloatArray, wanted: FloatArray, low: FloatArray, high: FloatArray, tolerance: float
) -> tuple[FloatArray, FloatArray]:
    """A plan, grown or shrunk until it does what is wanted; and what it does then."""
    left = GROWTHS
    while True:
        reached, left = outcome(plan), left - 1
        assert reached is not None
        size = float(reached @ reached)
        if within(reached, wanted, tolerance) or size == 0 or not left:
            return plan, reached
        plan = np.clip(plan * float(np.clip(reached @ wanted / size, 0.2, 5.0)), low, high)


@dataclass
class Search:
    """A search from doing nothing."""

    outcome: Outcome
    response: FloatArray  # (outputs, levers)
    wanted: FloatArray
    low: FloatArray
    high: FloatArray
    tolerance: float
    plan: FloatArray = field(init=False)
    reached: FloatArray = field(init=False)
    left: int = field(init=False, default=TRIALS)
    seen: list[tuple[FloatArray, FloatArray]] = field(init=False)  # plans and their outcomes
    compared: int = field(init=False, default=0)  # plans between which the way was halved, where it could be

    def __post_init__(self) -> None:
        self.plan, self.reached = np.zeros(self.response.shape[1]), np.zeros(len(self.wanted))
        self.seen = [(self.plan, self.reached)]

    def run(self) -> None:
        """Find ``plan`` and what it has ``reached``."""
        self._descend()
        self._halve()
        for size in PROBES:
            if self._done():
                return
            self._probe(size)
            self._descend()
            self._halve()

    def _gap(self, reached: FloatArray) -> float:
        size = np.abs(self.wanted)
        return float(np.linalg.norm((reached - self.wanted) / np.maximum(size, 1e-3 * size.max() + 1e-12)))

    def _done(self) -> bool:
        return self.left <= 0 or within(self.reached, self.wanted, self.tolerance)

    def _ask(self, plan: FloatArray) -> FloatArray | None:
        self.left -= 1
        reached = self.outcome(plan)
        if reached is None or not np.isfinite(reached).all():
            return None
        self.seen.append((plan, reached))
        return reached

    def _take(self, plan: FloatArray, reached: FloatArray) -> bool:
        """Whether this is the best plan so far."""
        better = self._gap(reached) < self._gap(self.reached)
        if better:
            self.plan, self.reached = plan, reached
        return better

    def _descend(self) -> None:
        """From the best plan so far to the one that its responses promise, in steps that shrink where they fail."""
        radius, misses = np.inf, 0
        while misses < MISSES and not self._done():
            middle = np.clip(self.plan, self.low, self.high)  # doing nothing may be beyond a limit
            low, high = np.maximum(self.low, middle - radius), np.minimum(self.high, middle + radius)
            right = self.wanted - self.reached + self.response @ self.plan
            plan = np.clip(planned(self.response, self.wanted, low, high, right), low, high)
            step = plan - self.plan
            length = float(np.abs(step).max())
            if length < STILL * max(1.0, float(np.abs(plan).max())):
                return
            reached = self._ask(plan)
            if reached is None:
                radius, misses = min(length / 4, PROBES[0]), misses + 1
                continue
            gained = reached - self.reached
            self.response = self.response + np.outer(gained - self.response @ step, step) / (step @ step)
            misses = 0 if self._gap(reached) < 0.9 * self._gap(self.reached) else misses + 1
            radius = max(radius, 2 * length) if self._take(plan, reached) else length / 2

    def _probe(self, size: float) -> None:
        """Try every lever both ways, those first that seem to do most; responses are what the better way shows."""
        start, base, measured = self.plan, self.reached, self.response.copy()
        for k in np.argsort(-np.linalg.norm(self.response, axis=0), kind="stable"):
            nearest = np.inf
            for end in (start[k] + size, start[k] - size):
                plan = start.copy()
                plan[k] = np.clip(end, self.low[k], self.high[k])
                if self._done() or abs(plan[k] - start[k]) < STILL:
                    continue
                reached = self._ask(plan)
                if reached is None:
                    continue
                gap = self._gap(reached)
                if gap < nearest:
                    nearest, measured[:, k] = gap, (reached - base) / (plan[k] - start[k])
                self._take(plan, reached)
        self.response = measured

    def _halve(self) -> None:
        """Of one output: halve the way between the two nearest plans with the target between their outcomes."""
        pairs = [
            (float(np.abs(one[0] - other[0]).max()), one, other)
            for k, one in enumerate(self.seen)
            for other in self.seen[max(self.compared, k + 1) :]
            if len(self.wanted) == 1 and (one[1] < self.wanted) != (other[1] < self.wanted)
        ]
        if pairs:
            _, *ends = min(pairs, key=lambda pair: pair[0])
            ends.sort(key=lambda end: float(end[1][0]))
            for turn in range(HALVINGS):
                if self._done():
                    break
                (a, below), (b, above) = ends
                share = float(((self.wanted - below) / (above - below))[0]) if turn % 2 else 0.5
                plan = a + float(np.clip(share, 0.1, 0.9)) * (b - a)
                reached = self._ask(plan)
                if reached is None:
                    break
                self._take(plan, reached)
                ends[int((reached >= self.wanted)[0])] = (plan, reached)
        self.compared = len(self.seen)


def within(reached: FloatArray, wanted: FloatArray, tolerance: float) -> bool:
    """Whether a target is reached."""
    return bool((np.abs(reached - wanted) <= tolerance * np.maximum(np.abs(wanted), 1e-12)).all())
