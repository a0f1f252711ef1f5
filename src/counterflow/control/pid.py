"""PI and PID controllers: their equation, and how one is learned from a unit's own log.

A PI controller moves its input by u[t] - u[t-1] = a e[t] + b e[t-1], with e the error of its reading. Where the target
is recorded that is a regression. Where it is not, it either stands still (then it is the regression's constant) or
moves in steps: of the second differences of both sides only the rows of its steps are left, and a robust regression
passes over them. What stands still for some rows while its reading moves is in manual, or at a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, real_number
from counterflow.control.law import (
    CONSTANT,
    EXACT,
    FREE,
    MOVING,
    RECORDED,
    STILL,
    ControlLaw,
    LawFit,
    LawInput,
    LoopRecord,
    active_rows,
    check_delay,
    check_limits,
    limits_words,
    trimmed_square,
)
from counterflow.errors import ModelError

FEWEST = 60  # automatic rows that a law can be learned from
LATEST = 2  # rows by which a reading may come late
PROMISING = 0.3  # share of the bends of an input that a reading tells at first sight, to be looked at with care
ROUNDS = 60  # of a robust regression
QUICKEST = 0.5  # rows of an integral time: below, its input follows the reading in another form than a PI's
SLOWEST = 1e4  # rows or seconds of an integral time: beyond, there is no integral part
MATTERS = 0.5  # of what a proportional law leaves: what a law with an integral part leaves at most


@dataclass(frozen=True)
class PID(ControlLaw):
    """PI or PID with limits; at a limit the integral stands still (the incremental form has no windup).

        u[t] = u[t-1] + gain ( e[t] - e[t-1] + dt / integral_time e[t]
                               - derivative_time / dt (y[t] - 2 y[t-1] + y[t-2]) )

    with e = target - y, held within the limits. The derivative is of the reading alone, so that a step of the target
    gives no kick.

    Parameters
    ----------
    gain : of the moved input over the reading; negative where more input lowers the reading.
    integral_time : in the time unit of the recording's ``dt``; infinite: no integral.
    derivative_time : in the same unit.
    limits : (low, high) of the moved input.
    delay : rows by which the controller sees its reading late.

    Examples
    --------
    >>> law = PID(gain=2.0, integral_time=10.0, limits=(0.0, 100.0))
    >>> seen = LawInput(np.array([[50.0]]), np.array([[20.0, 19.0]]), np.array([[20.0, 20.0]]), row=1)
    >>> law.output(seen).tolist()
    [52.2]
    """

    kind: ClassVar[str] = "pid"
    incremental: ClassVar[bool] = True

    gain: float
    integral_time: float = np.inf
    derivative_time: float = 0.0
    limits: tuple[float, float] = FREE
    delay: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", real_number(self.gain, "PID: gain", kind=ModelError))
        object.__setattr__(self, "limits", check_limits(self.limits, "PID"))
        for name in ("integral_time", "derivative_time"):
            value = getattr(self, name)
            lowest = 0.0 if name == "derivative_time" else np.finfo(float).tiny
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= lowest:
                raise ModelError(f"PID: {name} is {value!r:.80}: pass a time above zero (integral_time may be inf).")
            object.__setattr__(self, name, float(value))
        check_delay(self.delay, "PID")

    # ---- the equation

    @property
    def memory(self) -> int:
        return 1 + (self.derivative_time > 0) + self.delay

    def answer(self, seen: LawInput) -> FloatArray:
        last = seen.error.shape[1] - 1 - self.delay
        error, reading = seen.error, seen.reading
        step = error[:, last] * (1 + seen.dt / self.integral_time) - error[:, last - 1]
        if self.derivative_time > 0:
            bend = reading[:, last] - 2 * reading[:, last - 1] + reading[:, last - 2]
            step = step - self.derivative_time / seen.dt * bend
        return np.asarray(seen.moved[:, -1] + self.gain * step)

    def aimed_at(self, record: LoopRecord) -> FloatArray:
        """Its first value is taken to be the reading's; what is wrong with it decays with the integral time."""
        if not np.isfinite(self.integral_time):
            return super().aimed_at(record)
        from scipy.signal import lfilter

        moved, reading, dt = record.moved, record.reading, record.dt
        a, b = self.gain * (1 + dt / self.integral_time), -self.gain
        late = np.concatenate([np.repeat(reading[:1], self.delay), reading])[: len(reading)]
        bend = np.diff(late, 2, prepend=[late[0], late[0]])
        step = np.diff(moved, prepend=moved[0]) + self.gain * self.derivative_time / dt * bend
        right = step + a * late + b * np.concatenate([late[:1], late[:-1]])
        found, _ = lfilter([1 / a], [1.0, b / a], right, zi=[-b / a * late[0]])
        return np.asarray(np.concatenate([found[self.delay :], np.repeat(found[-1:], self.delay)]))

    def __str__(self) -> str:
        integral = "" if np.isinf(self.integral_time) else f", integral time {self.integral_time:.4g}"
        derivative = "" if not self.derivative_time else f", derivative time {self.derivative_time:.4g}"
        kind = "P" + "I" * (self.integral_time < np.inf) + "D" * (self.derivative_time > 0)
        return f"{kind}: gain {self.gain:.4g}{integral}{derivative}{limits_words(self.limits)}"

    # ---- from a log

    @classmethod
    def learned(cls, record: LoopRecord) -> LawFit | None:
        """The PI or PID law that tells the moves best, with its delay and limits."""
        moved, reading, target = record.moved, record.reading, record.target
        move, automatic = np.diff(moved, prepend=np.nan), record.automatic
        T, reach = len(moved), LATEST + 3
        rows = np.arange(reach + 1, T)
        limits = _limits(moved)
        steady = automatic & (moved > limits[0]) & (moved < limits[1])
        # a row beside one in which it stands still may be somebody's who took it over, or gave it back
        both = steady[rows] & steady[rows - 1] & steady[np.minimum(rows + 1, T - 1)]
        level = reading if target is None else reading - target
        finite = np.isfinite(np.stack([level[rows - lag] for lag in range(reach + 1)])).all(axis=0)
        rows = rows[both & finite & np.isfinite(move[rows]) & np.isfinite(move[rows - 1])]
        if len(rows) < FEWEST:
            return None
        best: tuple[float, LawFit] | None = None
        for delay in range(LATEST + 1):
            for order in (2, 3):
                for score, weights, kind, left in _regressions(record, move, level, rows, delay, order):
                    law = cls._with_weights(weights, record.dt, limits, delay)
                    if law is not None and (best is None or score < best[0]):
                        odd = law.integral_time < QUICKEST * record.dt
                        best = (score, LawFit(law, max(0.0, 1 - left), float(automatic.mean()), kind, odd))
        return None if best is None else best[1]

    @classmethod
    def _with_weights(cls, weights: FloatArray, dt: float, limits: tuple[float, float], delay: int) -> PID | None:
        """The law whose readings have these weights; None: no PI controller has them."""
        a, b, *more = -weights
        derivative = more[0] if more else 0.0
        gain = -b - 2 * derivative
        integral = a + b + derivative
        if gain == 0 or not np.isfinite(gain) or derivative / gain < 0:
            return None
        time = np.inf if integral / gain <= 1e-9 else dt * gain / integral
        return cls(float(gain), float(time), float(dt * derivative / gain), limits, delay)

    @classmethod
    def promising(cls, moved: FloatArray, reading: FloatArray) -> bool:
        if len(np.unique(moved[: 50 * FEWEST])) <= 20:  # two values, or steps
            return False
        automatic = active_rows(moved)
        rows = np.arange(LATEST + 4, len(moved))
        lags = np.stack([reading[rows - k] - reading[rows - k - 1] for k in range(LATEST + 2)], axis=1)
        goal = moved[rows] - 2 * moved[rows - 1] + moved[rows - 2]
        good = automatic[rows] & automatic[rows - 1] & np.isfinite(lags).all(axis=1)
        if good.sum() < FEWEST:
            return False
        goal, lags = goal[good], lags[good]
        most = 4 * 1.4826 * float(np.median(np.abs(goal)))
        goal = np.clip(goal, -most, most)
        left = goal - lags @ np.linalg.lstsq(lags, goal, rcond=None)[0]
        return float(left @ left) < (1 - PROMISING) * float(goal @ goal)

    def is_control(self, record: LoopRecord, found: LawFit) -> bool:
        """Whether it has an integral part, without which it tells much less.

        An output that shows what an input is, such as the position of a valve, tells its moves as a proportional
        controller would; one that sums it up, or shows its moves, as a law with times that no controller has.
        """
        if found.nearest or not self.derivative_time <= self.integral_time < SLOWEST:
            return False
        moved = record.moved
        target = np.zeros(len(moved)) if record.target is None else record.target
        left = moved - self.in_rows(record.aiming_at(target))
        error = np.concatenate([np.full(self.delay, np.nan), target - record.reading])[: len(moved)]
        steps = np.diff(error, prepend=np.nan)
        proportional = left + self.gain * record.dt / self.integral_time * error
        if found.target == MOVING:
            left, steps, proportional = (np.diff(each, prepend=np.nan) for each in (left, steps, proportional))
        rows = record.automatic & np.isfinite(left) & np.isfinite(steps) & np.isfinite(proportional)
        regressors = np.column_stack([steps[rows], np.ones(int(rows.sum()))])
        alone = robust(regressors, proportional[rows])[1]
        with_it = left[rows] - np.median(left[rows])
        return alone is not None and trimmed_square(with_it) <= MATTERS * trimmed_square(alone)


def _regressions(
    record: LoopRecord, move: FloatArray, level: FloatArray, rows: NDArray[np.intp], delay: int, order: int
) -> Iterator[tuple[float, FloatArray, str, float]]:
    """(score, weights of the readings, kind of target, share of the moves that is left) of each way to see the law."""
    n, at, reading = len(rows), rows - delay, record.reading
    usual = max(trimmed_square(move[rows]), 1e-300)
    lags = np.stack([level[at - k] for k in range(order)], axis=1)
    bends = record.target is not None and order == 3  # the derivative is of the reading alone, not of the error
    if record.target is None:
        earlier = np.stack([level[at - 1 - k] for k in range(order)], axis=1)
        tries = [
            (move[rows], np.hstack([lags, np.ones((n, 1))]), CONSTANT),
            (move[rows] - move[rows - 1], lags - earlier, MOVING),
        ]
    elif bends:
        bend = reading[at] - 2 * reading[at - 1] + reading[at - 2]
        tries = [(move[rows], np.column_stack([lags[:, :2], bend]), RECORDED)]
    else:
        tries = [(move[rows], lags, RECORDED)]
    for goal, regressors, kind in tries:
        weights, error = robust(regressors, goal)
        if error is None:
            continue
        left, size = (
            max(float(np.square(each).mean()) if kind == RECORDED else trimmed_square(each), 1e-300)
            for each in (error, goal)
        )
        # per row of one difference; what both tell exactly is told by the simpler one: a target that stands still
        fair = left / (2.0 if kind == MOVING else 1.0)
        score = n * np.log(fair + EXACT * usual) + (order + (kind == MOVING)) * np.log(n) * 2
        own = weights[:order]
        if bends:
            own = np.array([own[0] + own[2], own[1] - 2 * own[2], own[2]])
        yield score, own, kind, left / size


def _limits(moved: FloatArray) -> tuple[float, float]:
    """Values at which an input stands, leaves and stands again, at the ends of what it did."""
    out = []
    for end, far in ((moved.min(), -np.inf), (moved.max(), np.inf)):
        edges = np.flatnonzero(np.diff((moved == end).astype(np.int8), prepend=0, append=0))
        stands = int((edges[1::2] - edges[::2] > STILL).sum())
        out.append(float(end) if stands > 1 else far)
    return (out[0], out[1]) if out[0] < out[1] else FREE


def robust(regressors: FloatArray, goal: FloatArray) -> tuple[FloatArray, FloatArray | None]:
    """Weights by which regressors (n, k) tell a goal (n,) in most rows, and what they leave; None: they do not.

    Least absolute errors first, by weighted least squares; then rows that are far off lose their weight (Tukey).
    """
    scale = np.sqrt(np.square(regressors).mean(axis=0))
    size = float(np.sqrt(np.square(goal).mean()))
    if not (scale > 0).all() or size == 0:
        return np.zeros(regressors.shape[1]), None
    x, g = regressors / scale, goal / size
    weight = np.ones(len(g))
    found = np.zeros(x.shape[1])
    for k in range(ROUNDS):
        root = np.sqrt(weight)[:, None]
        try:
            new = np.linalg.lstsq(x * root, g * root[:, 0], rcond=1e-12)[0]
        except np.linalg.LinAlgError:
            return found, None
        error = np.abs(g - x @ new)
        done = np.abs(new - found).max() <= 1e-12 * max(np.abs(new).max(), 1e-300)
        found = new
        if k < ROUNDS // 2:
            weight = 1 / np.maximum(error, 1e-9)
        elif done:
            break
        else:
            spread = max(1.4826 * float(np.median(error)), 1e-12)
            weight = np.square(np.maximum(0.0, 1 - np.square(error / (4.685 * spread))))
    return found * size / scale, goal - regressors @ (found * size / scale)
