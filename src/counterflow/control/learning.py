"""A law learned from a unit's own log: which reading foretells what an input does, and how.

A PI controller moves its input by u[t] - u[t-1] = a e[t] + b e[t-1], with e the error of its reading. Where the target
is recorded that is a regression. Where it is not, it either stands still (then it is the regression's constant) or
moves in steps: of the second differences of both sides only the rows of its steps are left, and a robust regression
passes over them. What stands still for some rows while its reading moves is in manual, or at a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.control.custom_laws import named_law, said_by
from counterflow.control.laws import PID, Law, LawInput, Relay, Schedule
from counterflow.control.loop import Loop
from counterflow.control.relays import as_recorded, learned_relay, told_by_relay

BoolArray = NDArray[np.bool_]

STILL = 3  # rows without any move, from which on an input is in manual or at a limit
FEWEST = 60  # automatic rows that a law can be learned from
LATEST = 2  # rows by which a reading may come late
BELIEVED = 0.95  # share of the moves that a law must explain, to be taken for one that was not declared
USED = 0.8  # the same for a declared loop, below which its law is called unknown
USED_MOVING = 0.95  # the same where its target moves unrecorded: what disturbs the law comes back through the plant
PROMISING = 0.3  # share of the bends of an input that a reading tells at first sight, to be looked at with care
TRIMMED = 0.15  # of the rows, in which a target that is not recorded may have moved
ROUNDS = 60  # of a robust regression
EXACT = 1e-12  # share of the moves below which nothing is left but rounding
QUICKEST = 0.5  # rows of an integral time: below, its input follows the reading in another form than a PI's
SLOWEST = 1e4  # rows or seconds of an integral time: beyond, there is no integral part
LOCKED = 0.999  # share of an input's moves that its law tells, from which on it never moved by itself
MATTERS = 0.5  # of what a proportional law leaves: what a law with an integral part leaves at most
RECORDED, MOVING, CONSTANT = "recorded", "moving", "constant"


@dataclass(frozen=True)
class Controller:
    """A loop with its law, and how well the law tells what was recorded.

    ``learned``: whether the law was learned from the log, or given. ``reproduced``: share of what the input did in
    automatic rows that the law tells (1: all of it; of a relay: share of rows, less what chance gives). ``automatic``:
    share of rows in which the controller was at work. ``target``: "recorded", "moving" (in steps that nobody records)
    or "constant". ``other``: the loop with another law, in worlds in which it is supposed to follow one.
    ``nearest``: whether a learned law has times that no PI controller has, so that it stands for one of another form.
    """

    loop: Loop
    learned: bool
    reproduced: float
    automatic: float
    target: str
    other: Loop | None = field(default=None, metadata={"optional": True})
    nearest: bool = field(default=False, metadata={"optional": True})

    @property
    def law(self) -> Law:
        """What it did in the record."""
        assert self.loop.law is not None
        return self.loop.law

    @property
    def supposed(self) -> Law | None:
        """The law that it has in the worlds that are asked about, where that is another one."""
        return None if self.other is None else self.other.law

    @property
    def acting(self) -> Law:
        """What it does in the worlds that are asked about: its own law, or one that a question supposes."""
        return self.law if self.supposed is None else self.supposed

    def supposing(self, law: Law) -> Controller:
        """The same controller in worlds in which it had another law."""
        return replace(self, other=replace(self.loop, law=law))

    @property
    def usable(self) -> bool:
        """Whether it is known what it would have done: its law tells the record, or a question supposes one."""
        return self.supposed is not None or self.was_at_work

    @property
    def was_at_work(self) -> bool:
        """Whether its law tells enough of the record."""
        return self.reproduced >= (USED_MOVING if self.target == MOVING else USED)

    @property
    def led(self) -> bool:
        """Whether the input moved by its controller alone."""
        return isinstance(self.law, PID) and self.reproduced >= LOCKED and self.automatic >= 1 - TRIMMED

    @property
    def locked(self) -> bool:
        """Whether the input moved by its controller alone, towards a target that never moved.

        What the input does by itself cannot be told from such rows: it is a sum of readings.
        """
        return self.target == CONSTANT and self.led

    @property
    def switches(self) -> bool:
        """Whether it is a relay, whose switching times are not certain."""
        return isinstance(self.acting, Relay)

    def __str__(self) -> str:
        aim = {
            RECORDED: f"target {self.loop.target}",
            MOVING: "a target that moves unrecorded",
            CONSTANT: "a fixed target",
        }
        how = "learned" if self.learned else "given"
        aims = isinstance(self.law, PID) or (self.loop.target is not None and not isinstance(self.law, Relay))
        towards = f" towards {aim[self.target]}" if aims else ""  # of others nobody knows whether they aim at anything
        return (
            f"{self.loop.moves} follows {self.loop.reads}{towards} ({named_law(self.law)}; {how}); tells "
            f"{100 * self.reproduced:.3g} % of its moves, automatic in {100 * self.automatic:.3g} % of the rows"
        )


# ---- a loop whose channels are known


def learned_loop(
    loop: Loop, moved: FloatArray, reading: FloatArray, target: FloatArray | None, dt: float
) -> Controller | None:
    """The loop with its law, learned from what it moves, reads and aims at (T,), or given and judged; None: no law.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> law, u, y = PID(2.0, 10.0), np.zeros(300), np.zeros(300)
    >>> for t in range(1, 300):
    ...     y[t] = 0.9 * y[t - 1] + 0.1 * u[t - 1] + 0.1 * rng.standard_normal()
    ...     u[t] = u[t - 1] + law.weights(1.0)[:2] @ -y[[t, t - 1]]
    >>> found = learned_loop(Loop("valve", "temperature"), u, y, None, 1.0)
    >>> round(found.law.gain, 6), round(found.law.integral_time, 6), found.target
    (2.0, 10.0, 'constant')
    """
    automatic = active_rows(moved)
    if loop.law is not None:
        return _at_rest(_judged(loop, moved, reading, target, dt, automatic), target)
    relay = learned_relay(moved, reading)
    if relay is not None:
        return Controller(replace(loop, law=relay[0]), True, relay[1], 1.0, CONSTANT)
    found = _pid(loop, moved, reading, target, dt, automatic)
    return None if found is None else _at_rest(found, target)


def _at_rest(found: Controller, target: FloatArray | None) -> Controller:
    """The controller; a target that is recorded and never moves tells no more than one that is not."""
    never = target is not None and np.nanmin(target) == np.nanmax(target)
    return replace(found, target=CONSTANT) if never else found


def active_rows(moved: FloatArray) -> BoolArray:
    """Rows (T,) in which an input is at work: it moves in the row, or within a few rows of it.

    Examples
    --------
    >>> active_rows(np.array([0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0])).tolist()
    [False, True, True, False, False, False, False, True]
    """
    still = np.diff(moved, prepend=moved[:1]) == 0
    edges = np.flatnonzero(np.diff(still.astype(np.int8), prepend=0, append=0))
    out = np.ones(len(moved), bool)
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if last - first >= STILL or first == 0:
            out[first:last] = False
    return out


def _pid(
    loop: Loop, moved: FloatArray, reading: FloatArray, target: FloatArray | None, dt: float, automatic: BoolArray
) -> Controller | None:
    """The PI or PID law that tells the moves best, with its delay and limits."""
    move = np.diff(moved, prepend=np.nan)
    T, reach = len(moved), LATEST + 3
    rows = np.arange(reach + 1, T)
    limits = _limits(moved)
    inside = (moved > limits[0]) & (moved < limits[1])
    steady = automatic & inside
    # a row beside one in which it stands still may be somebody's who took it over, or gave it back
    both = steady[rows] & steady[rows - 1] & steady[np.minimum(rows + 1, T - 1)]
    level = reading if target is None else reading - target
    finite = np.isfinite(np.stack([level[rows - lag] for lag in range(reach + 1)])).all(axis=0)
    rows = rows[both & finite & np.isfinite(move[rows]) & np.isfinite(move[rows - 1])]
    if len(rows) < FEWEST:
        return None
    best: tuple[float, Controller] | None = None
    for delay in range(LATEST + 1):
        for order in (2, 3):
            lags = np.stack([level[rows - delay - k] for k in range(order)], axis=1)
            found = _regressions(move, level, reading, rows, lags, delay, order, target)
            for score, weights, kind, spread in found:
                law = _law(weights, dt, limits, delay)
                if law is None:
                    continue
                told = max(0.0, 1 - spread)
                share = float(automatic.mean())
                odd = law.integral_time < QUICKEST * dt
                controller = Controller(replace(loop, law=law), True, told, share, kind, nearest=odd)
                if best is None or score < best[0]:
                    best = (score, controller)
    return None if best is None else best[1]


def _regressions(
    move: FloatArray, level: FloatArray, reading: FloatArray, rows: NDArray[np.intp], lags: FloatArray, delay: int,
    order: int, target: FloatArray | None,
) -> list[tuple[float, FloatArray, str, float]]:  # fmt: skip
    """(score, weights of the readings, kind of target, share of the moves that is left) of each way to see the law."""
    out = []
    n = len(rows)
    usual = max(float(np.square(_trimmed(move[rows])).mean()), 1e-300)
    if target is None:
        tries = [(move[rows], np.hstack([lags, np.ones((n, 1))]), CONSTANT)]
        earlier = np.stack([level[rows - 1 - delay - k] for k in range(order)], axis=1)
        tries.append((move[rows] - move[rows - 1], lags - earlier, MOVING))
    else:
        # the derivative is of the reading alone: what the target does to it is left out of the error
        tries = [(move[rows], lags, RECORDED)]
        if order == 3:
            bend = reading[rows - delay] - 2 * reading[rows - delay - 1] + reading[rows - delay - 2]
            tries = [(move[rows], np.column_stack([lags[:, :2], bend]), RECORDED)]
    for goal, regressors, kind in tries:
        weights, error = robust(regressors, goal)
        if error is None:
            continue
        seen = (lambda each: each) if kind == RECORDED else _trimmed
        left, size = (max(float(np.square(seen(each)).mean()), 1e-300) for each in (error, goal))
        # per row of one difference; what both tell exactly is told by the simpler one: a target that stands still
        fair = left / (2.0 if kind == MOVING else 1.0)
        score = n * np.log(fair + EXACT * usual) + (order + (kind == MOVING)) * np.log(n) * 2
        own = weights[:order]
        if target is not None and order == 3:
            own = np.array([own[0] + own[2], own[1] - 2 * own[2], own[2]])
        out.append((score, own, kind, left / size))
    return out


def _law(weights: FloatArray, dt: float, limits: tuple[float, float], delay: int) -> PID | None:
    """The law whose readings have these weights; None: no PI controller has them."""
    a, b, *more = -weights
    derivative = more[0] if more else 0.0
    gain = -b - 2 * derivative
    integral = a + b + derivative
    if gain == 0 or not np.isfinite(gain) or derivative / gain < 0:
        return None
    time = np.inf if integral / gain <= 1e-9 else dt * gain / integral
    return PID(float(gain), float(time), float(dt * derivative / gain), limits, delay)


def _limits(moved: FloatArray) -> tuple[float, float]:
    """Values at which an input stands, leaves and stands again, at the ends of what it did."""
    out = []
    for end, far in ((moved.min(), -np.inf), (moved.max(), np.inf)):
        edges = np.flatnonzero(np.diff((moved == end).astype(np.int8), prepend=0, append=0))
        stands = int((edges[1::2] - edges[::2] > STILL).sum())
        out.append(float(end) if stands > 1 else far)
    return (out[0], out[1]) if out[0] < out[1] else (-np.inf, np.inf)


def _trimmed(error: FloatArray) -> FloatArray:
    """Without the largest: rows in which a target moved."""
    size = np.abs(error)
    return np.asarray(error[size <= np.quantile(size, 1 - TRIMMED)])


def robust(regressors: FloatArray, goal: FloatArray) -> tuple[FloatArray, FloatArray | None]:
    """Weights by which regressors (n, k) tell a goal (n,) in most rows, and what they leave; None: they do not.

    Least absolute errors first, by weighted least squares; then rows that are far off lose their weight (Tukey).

    Examples
    --------
    >>> x = np.column_stack([np.arange(20.0), np.ones(20)])
    >>> goal = x @ [2.0, 1.0]
    >>> goal[[3, 9]] += 100.0
    >>> robust(x, goal)[0].round(6).tolist()
    [2.0, 1.0]
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
        else:
            if done:
                break
            spread = max(1.4826 * float(np.median(error)), 1e-12)
            weight = np.square(np.maximum(0.0, 1 - np.square(error / (4.685 * spread))))
    return found * size / scale, goal - regressors @ (found * size / scale)


# ---- laws that were given, and loops that nobody has declared


def _judged(
    loop: Loop, moved: FloatArray, reading: FloatArray, target: FloatArray | None, dt: float, automatic: BoolArray
) -> Controller:
    """A given law, with how well it tells the record."""
    law = loop.law
    assert law is not None
    if isinstance(law, Relay):
        law = as_recorded(law, moved, reading)
        return Controller(replace(loop, law=law), False, told_by_relay(law, moved, reading), 1.0, CONSTANT)
    kind = MOVING if target is None else RECORDED
    aim = np.full(len(moved), np.nan) if target is None else target
    if target is None and isinstance(law, PID):  # any level will do: its constant is looked for
        aim = np.full(len(moved), float(np.nanmean(reading)))
    told = law_rows(law, moved, reading, aim, dt)
    beside = automatic & np.append(automatic[1:], True) & np.append(True, automatic[:-1])  # nobody takes it over there
    rows = np.flatnonzero(beside & np.isfinite(told) & (np.arange(len(moved)) > law.memory))
    if len(rows) < STILL:  # it hardly moved: in manual, or as a law says that stands still as well
        known = np.isfinite(told)
        size = max(float(np.abs(moved).max()), float(np.nanstd(reading)), 1e-300)
        same = np.abs(moved - told)[known] <= EXACT * size
        return Controller(loop, False, float(same.mean()) if known.any() else 0.0, float(automatic.mean()), kind)
    error, move = (moved - told)[rows], np.diff(moved, prepend=moved[0])[rows]
    if target is None and isinstance(law, PID):
        fixed = float(np.square(_trimmed(error - np.median(error))).mean())
        jumps = float(np.square(_trimmed(np.diff(error))).mean())
        exact = EXACT * float(np.square(_trimmed(move)).mean())
        stands = fixed <= max(jumps / 2, exact)
        kind, left, told_of = (CONSTANT, fixed, move) if stands else (MOVING, jumps, np.diff(move))
        size = float(np.square(_trimmed(told_of)).mean())
    else:
        left, size = float(np.square(error).mean()), float(np.square(move).mean())
    return Controller(loop, False, max(0.0, 1 - left / max(size, 1e-300)), float(automatic.mean()), kind)


def aimed_at(law: Law, moved: FloatArray, reading: FloatArray, dt: float) -> FloatArray:
    """The target (T,) that a PI controller must have had, to have moved its input as it did.

    Its first value is not known and taken to be the reading's; what is wrong with it decays with the integral time.
    """
    if not isinstance(law, PID) or not np.isfinite(law.integral_time):
        return np.full(len(moved), np.nan)
    from scipy.signal import lfilter

    a, b = law.gain * (1 + dt / law.integral_time), -law.gain
    late = np.concatenate([np.repeat(reading[:1], law.delay), reading])[: len(reading)]
    bend = np.diff(late, 2, prepend=[late[0], late[0]])
    step = np.diff(moved, prepend=moved[0]) + law.gain * law.derivative_time / dt * bend
    right = step + a * late + b * np.concatenate([late[:1], late[:-1]])
    found, _ = lfilter([1 / a], [1.0, b / a], right, zi=[-b / a * late[0]])
    return np.asarray(np.concatenate([found[law.delay :], np.repeat(found[-1:], law.delay)]))


def law_rows(law: Law, moved: FloatArray, reading: FloatArray, target: FloatArray, dt: float) -> FloatArray:
    """What a law says of every row (T,) of a record from the rows before it; NaN in the first ``memory`` rows.

    All rows are asked at once, as so many worlds; only a law that goes by the clock is asked row by row.
    """
    T, memory = len(moved), law.memory
    out = np.full(T, np.nan)
    if memory >= T:
        return out
    if isinstance(law, Schedule):
        out[:] = [
            law.output(LawInput(moved[:0][None], reading[t : t + 1][None], target[t : t + 1][None], t, dt))[0]
            for t in range(T)
        ]
        return out
    at = np.arange(memory, T)[:, None]
    before, through = at - memory + np.arange(memory), at - memory + np.arange(memory + 1)
    out[memory:] = said_by(law, LawInput(moved[before], reading[through], target[through], memory, dt), finite=False)
    return out


def found_loops(
    inputs: tuple[str, ...], outputs: tuple[str, ...], u: FloatArray, y: FloatArray, dt: float, skip: set[str]
) -> list[Controller]:
    """Loops that a unit's own log shows and nobody has declared: inputs (T, U) that follow an output (T, D).

    A relation counts as a controller's only where it has an integral part: an output that shows what an input is, or
    does, would be taken for one otherwise.
    """
    out = []
    for j, name in enumerate(inputs):
        if name in skip or np.ptp(u[:, j]) == 0:
            continue
        tried = []
        for k, reads in enumerate(outputs):
            if _promising(u[:, j], y[:, k]):
                tried += _candidates(name, reads, u[:, j], y[:, k], inputs, u, dt, j)
        series = dict(zip((*inputs, *outputs), (*u.T, *y.T), strict=True))
        good = [one for one in tried if one.reproduced >= BELIEVED and _is_control(one, series, dt)]
        if good:  # of two that tell as much, one whose target is recorded tells what it aims at, too
            out.append(max(good, key=lambda one: (round(one.reproduced, 2), one.target == RECORDED, one.reproduced)))
    return out


def _promising(moved: FloatArray, reading: FloatArray) -> bool:
    """Whether a reading may foretell what an input does: a quick look, before anything is fitted with care."""
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


def _candidates(
    name: str,
    reads: str,
    moved: FloatArray,
    reading: FloatArray,
    inputs: tuple[str, ...],
    u: FloatArray,
    dt: float,
    j: int,
) -> list[Controller]:
    """The loop with each input that may be its target, and with none."""
    found = [learned_loop(Loop(name, reads), moved, reading, None, dt)]
    low, high = np.nanmin(reading), np.nanmax(reading)
    for k, target in enumerate(inputs):
        likely = k != j and u[:, k].max() >= low and u[:, k].min() <= high and np.ptp(u[:, k]) > 0
        if likely:
            found.append(learned_loop(Loop(name, reads, target), moved, reading, u[:, k], dt))
    return [one for one in found if one is not None]


def _is_control(found: Controller, series: Mapping[str, FloatArray], dt: float) -> bool:
    """Whether a relation is a controller's: it has an integral part, without which it tells much less.

    An output that shows what an input is, such as the position of a valve, tells its moves as a proportional
    controller would; one that sums it up, or shows its moves, as a law with times that no controller has. A relay is
    believed only where it is declared: a reading that follows an input of two values stands near the same two levels
    whenever that switches, whoever switches it.
    """
    law = found.law
    if not isinstance(law, PID) or found.nearest or not law.derivative_time <= law.integral_time < SLOWEST:
        return False
    moved, reading = series[found.loop.moves], series[found.loop.reads]
    target = np.zeros(len(moved)) if found.loop.target is None else series[found.loop.target]
    left = moved - law_rows(law, moved, reading, target, dt)
    error = np.concatenate([np.full(law.delay, np.nan), target - reading])[: len(moved)]
    steps = np.diff(error, prepend=np.nan)
    proportional = left + law.gain * dt / law.integral_time * error
    if found.target == MOVING:
        left, steps, proportional = (np.diff(each, prepend=np.nan) for each in (left, steps, proportional))
    rows = active_rows(moved) & np.isfinite(left) & np.isfinite(steps) & np.isfinite(proportional)
    constant = np.ones(int(rows.sum()))
    regressors = np.column_stack([steps[rows], constant])
    alone = robust(regressors, proportional[rows])[1]
    with_it = left[rows] - np.median(left[rows])
    if alone is None:
        return False
    return bool(np.square(_trimmed(with_it)).mean() <= MATTERS * np.square(_trimmed(alone)).mean())
