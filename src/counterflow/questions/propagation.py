"""The server's half of a question: what a change does to the asking unit's states, and how sure that is.

Everything is linear, so the difference of two worlds with the same noise obeys the noise-free recursion,

    Δh[t] = A Δh[t-1] + B Δu[t-1]

The answer holds the rows of the asking unit only. How it depends on uncertain couplings is in ``sensitivity``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, UnknownNameError, UnstableError
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.sensitivity import Memory, Spread, coupling_covariance, driven_by
from counterflow.recurrence import linear_recurrence

BASELINE, INITIAL, DIRECT = "baseline", "initial state", "direct"
FAR = 2.0  # times the range seen in the data, beyond which a change is called far
OVERFLOWING = 1e6  # growth over the horizon beyond which an unstable estimate says nothing


@dataclass(frozen=True)
class Knowledge:
    """What the server brings to a question."""

    names: tuple[str, ...]
    state_slices: tuple[slice, ...]
    input_slices: tuple[slice, ...]
    A: FloatArray
    B: FloatArray
    Q: FloatArray
    u: FloatArray  # (T+1, U) inputs of the recorded rows
    smoothed: FloatArray  # (T+1, P) states of the recorded rows, given all messages
    last_mean: FloatArray  # (P,) filtered state of the last row
    last_covariance: FloatArray  # (P, P)
    radius: float  # spectral radius of A
    seen: FloatArray  # (U,) range of each input in the recorded rows; zero if nothing is recorded
    spread: Spread | None = None
    memory: Memory = field(default_factory=Memory)  # of what was asked before

    def index(self, name: str) -> int:
        if name not in self.names:
            raise UnknownNameError(f"no unit {name!r}; the units are {', '.join(self.names)}")
        return self.names.index(name)


def answer(knowledge: Knowledge, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
    """Answer one question of unit ``ask.unit``."""
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name below
        return _answer(knowledge, changes, ask)


def _answer(knowledge: Knowledge, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
    own = knowledge.state_slices[knowledge.index(ask.unit)]
    _refuse_runaway(knowledge.radius, ask.steps)
    if ask.kind == "effect":
        schedule = _schedule(knowledge, changes, np.zeros((ask.steps, knowledge.u.shape[1])), 0, recorded=False)
        return (_difference(knowledge, ask, own, schedule),)
    if ask.kind == "paths":
        return _paths(knowledge, changes, ask, own)
    if ask.kind == "counterfactual":
        rows = _window(knowledge, ask)
        factual = knowledge.u[rows]
        schedule = _schedule(knowledge, changes, factual, ask.first, recorded=True) - factual
        # row ``first`` itself is not yet touched: its input acts on the next one
        delayed = np.vstack([np.zeros(schedule.shape[1]), schedule[:-1]])
        return (_difference(knowledge, ask, own, delayed),)
    if ask.kind == "forecast":
        return (_forecast(knowledge, changes, ask, own),)
    if ask.kind == "attribute":
        return _attribute(knowledge, ask, own)
    return _reach(knowledge, changes, ask, own)


def _schedule(
    knowledge: Knowledge, changes: Sequence[Change], base: FloatArray, first: int, recorded: bool
) -> FloatArray:
    """Inputs of all units after the changes, for the rows of ``base``, the first of which is row ``first``."""
    out = base.copy()
    for change in changes:
        own = knowledge.input_slices[knowledge.index(change.cause)]
        if change.values.shape[1] != own.stop - own.start:
            raise DataError(
                f"unit {change.cause!r} has {own.stop - own.start} inputs, the change has {change.values.shape[1]}"
            )
        start = change.first - first
        if start < 0 or start + len(change.values) > len(out):
            raise DataError(
                f"the change at unit {change.cause!r} covers {change.first} to "
                f"{change.first + len(change.values) - 1}, the question {first} to {first + len(out) - 1}"
            )
        rows = slice(start, start + len(change.values))
        if change.absolute and not recorded:
            raise DataError("an effect is of a change: give what is added to the inputs, not what replaces them")
        columns = [own.start + k for k in change.columns]
        values = change.values[:, change.columns]
        out[rows, columns] = values if change.absolute else out[rows, columns] + values
    return out


def _window(knowledge: Knowledge, ask: Ask) -> slice:
    rows = knowledge.u.shape[0]
    if ask.first + ask.steps > rows:
        raise DataError(f"rows {ask.first} to {ask.first + ask.steps - 1} are asked for; 0 to {rows - 1} are recorded")
    return slice(ask.first, ask.first + ask.steps)


def _refuse_runaway(radius: float, steps: int) -> None:
    if radius > 1 and radius**steps > OVERFLOWING:
        raise UnstableError(
            f"the estimated system is unstable (spectral radius {radius:.4g}), and over {steps} steps its errors grow "
            f"beyond use; ask for at most {int(np.log(OVERFLOWING) / np.log(radius))} steps"
        )


def _refuse_overflow(states: FloatArray) -> None:
    if not np.isfinite(states).all():
        raise DataError("the change is too large for double precision: give it in other units, or a smaller one")


def _range_note(knowledge: Knowledge, change: FloatArray) -> str:
    """Says so if inputs would move much further than they ever did in the data."""
    if len(knowledge.u) < 2:
        return ""
    far = np.abs(change).max(axis=0, initial=0.0) > FAR * knowledge.seen
    names = [n for n, own in zip(knowledge.names, knowledge.input_slices, strict=True) if far[own].any()]
    return extrapolating(names) if names else ""


def extrapolating(names: Sequence[str]) -> str:
    """Said of changes beyond anything that the data have shown."""
    return f"inputs of {', '.join(names)} would move more than {FAR:g} times the range seen in the data: extrapolation"


def _difference(knowledge: Knowledge, ask: Ask, own: slice, schedule: FloatArray) -> Answer:
    response, _ = driven_by(knowledge.A, knowledge.B, schedule)
    covariance = knowledge.memory.covariance(knowledge.A, knowledge.B, knowledge.spread, schedule, own)
    _refuse_overflow(response)
    _refuse_overflow(covariance)
    note = _range_note(knowledge, schedule)
    return Answer(ask.unit, ask.kind, "", note, np.ascontiguousarray(response[:, own]), covariance)


def _forecast(knowledge: Knowledge, changes: Sequence[Change], ask: Ask, own: slice) -> Answer:
    base = np.tile(knowledge.u[-1], (ask.steps, 1))  # the last inputs held, unless something else is planned
    plan = _schedule(knowledge, changes, base, 0, recorded=True)
    mean = linear_recurrence(knowledge.A, plan @ knowledge.B.T, knowledge.last_mean)
    before = np.vstack([knowledge.last_mean, mean[:-1]])
    covariance = coupling_covariance(knowledge.A, knowledge.spread, np.hstack([before, plan]), own)
    if not len(covariance):
        covariance = np.zeros((ask.steps * (own.stop - own.start), own.stop - own.start))
    blocks = covariance.reshape(ask.steps, own.stop - own.start, -1)
    X = knowledge.last_covariance
    for t in range(ask.steps):
        X = knowledge.A @ X @ knowledge.A.T + knowledge.Q
        blocks[t] += X[own, own]
    _refuse_overflow(mean)
    _refuse_overflow(blocks)
    note = _range_note(knowledge, plan - base)
    return Answer(ask.unit, ask.kind, "", note, np.ascontiguousarray(mean[:, own]), blocks.reshape(covariance.shape))


def _attribute(knowledge: Knowledge, ask: Ask, own: slice) -> tuple[Answer, ...]:
    """Shares of every unit's inputs (their departure from their mean), of the state at the start, and the baseline."""
    rows = _window(knowledge, ask)
    mean_input = knowledge.u.mean(axis=0)
    A, P = knowledge.A, knowledge.A.shape[0]
    if knowledge.radius >= 1 - 1e-9:
        raise UnstableError("attribute: a system that does not settle has no level to compare with")
    level = np.linalg.solve(np.eye(P) - A, knowledge.B @ mean_input)
    none = np.zeros((0, own.stop - own.start))
    departure = knowledge.u[rows] - mean_input
    departure = np.vstack([np.zeros(departure.shape[1]), departure[:-1]])
    shares = [Answer(ask.unit, ask.kind, BASELINE, "", np.tile(level[own], (ask.steps, 1)), none)]
    start = knowledge.smoothed[ask.first] - level
    decay = np.vstack([start, linear_recurrence(A, np.zeros((ask.steps - 1, P)), start)])
    shares.append(Answer(ask.unit, ask.kind, INITIAL, "", np.ascontiguousarray(decay[:, own]), none))
    for name, inputs in zip(knowledge.names, knowledge.input_slices, strict=True):
        push = departure[:, inputs] @ knowledge.B[:, inputs].T
        moved = linear_recurrence(A, push, np.zeros(P))
        shares.append(Answer(ask.unit, ask.kind, name, "", np.ascontiguousarray(moved[:, own]), none))
    return tuple(shares)


def _paths(knowledge: Knowledge, changes: Sequence[Change], ask: Ask, own: slice) -> tuple[Answer, ...]:
    """The whole effect, what reaches the unit with every third unit held still, and what each third unit adds.

    A unit held still is one whose states do not move; what passes through it is the whole less what is left then.
    """
    schedule = _schedule(knowledge, changes, np.zeros((ask.steps, knowledge.u.shape[1])), 0, recorded=False)
    causes = {change.cause for change in changes}
    third = [k for k, name in enumerate(knowledge.names) if name != ask.unit and name not in causes]

    def response(still: Sequence[int]) -> FloatArray:
        alive = np.ones(knowledge.A.shape[0])
        for k in still:
            alive[knowledge.state_slices[k]] = 0.0
        A, B = alive[:, None] * knowledge.A, alive[:, None] * knowledge.B
        return linear_recurrence(A, schedule @ B.T, np.zeros(len(alive)))[:, own]

    none, whole = np.zeros((0, own.stop - own.start)), response([])
    parts = {"": whole, DIRECT: response(third)} | {knowledge.names[k]: whole - response([k]) for k in third}
    return tuple(Answer(ask.unit, ask.kind, share, "", np.ascontiguousarray(p), none) for share, p in parts.items())


def _reach(knowledge: Knowledge, changes: Sequence[Change], ask: Ask, own: slice) -> tuple[Answer, ...]:
    """What one unit of each input that a change names, held from step 0 on, does: rows are (input, step)."""
    out = []
    P, size = knowledge.A.shape[0], own.stop - own.start
    for change in changes:
        first = knowledge.input_slices[knowledge.index(change.cause)].start
        pieces = [
            linear_recurrence(knowledge.A, np.tile(knowledge.B[:, first + k], (ask.steps, 1)), np.zeros(P))[:, own]
            for k in change.columns
        ]
        mean = np.vstack(pieces) if pieces else np.zeros((0, size))
        out.append(Answer(ask.unit, ask.kind, change.cause, "", mean, np.zeros((0, size))))
    return tuple(out)
