"""Loops, and controllers: a loop with its law, given or learned from a unit's own log, and what it moves elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.control.law import (
    CONSTANT,
    MOVING,
    RECORDED,
    TRIMMED,
    ControlLaw,
    Law,
    LawFit,
    LawInput,
    LoopRecord,
    as_law,
)
from counterflow.control.laws import LAWS, law_from_json, law_json
from counterflow.errors import ModelError

BELIEVED = 0.95  # share of the moves that a law must explain, to be taken for one that was not declared
USED = 0.8  # the same for a declared loop, below which its law is called unknown
USED_MOVING = 0.95  # the same where its target moves unrecorded: what disturbs the law comes back through the plant
LOCKED = 0.999  # share of an input's moves that its law tells, from which on it never moved by itself

ELSEWHERE = "/"  # between a unit's name and its channel: no name holds a slash


@dataclass(frozen=True)
class Loop:
    """A control loop of a unit.

    Parameters
    ----------
    moves : the input that the controller moves.
    reads : the measurement that it looks at: an output of its unit, or "unit/output" of another one, whose value
        reaches the controller over a line of its own.
    target : the input (or output) that holds its set point; None: nobody records it. In a cascade the outer loop moves
        what is the target of the inner one.
    law : what the controller does, such as ``counterflow.PID``, ``Relay``, ``Ratio``, ``Schedule``, or any object with
        ``memory`` and ``output`` (``counterflow.Law``); None: it is learned from the unit's own log.

    Examples
    --------
    >>> Loop(moves="TIC-101.OP", reads="TI-101", target="TIC-101.SP")
    Loop(moves='TIC-101.OP', reads='TI-101', target='TIC-101.SP', law=None)
    >>> Loop("pump", "district_1/level").reading_unit
    'district_1'
    """

    moves: str
    reads: str
    target: str | None = None
    law: Law | None = None

    def __post_init__(self) -> None:
        for name in ("moves", "reads", "target"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (name == "target" and value is None):
                raise ModelError(f"Loop: {name} is {value!r:.80}: pass the name of a channel.")
        if self.target == self.moves or self.reads == self.moves:
            raise ModelError(f"Loop: {self.moves!r} is what the controller moves: name another channel that it reads.")
        if self.law is not None:
            as_law(self.law, f"Loop of {self.moves!r}")

    @property
    def reading_unit(self) -> str | None:
        """The other unit whose measurement it reads; None: its own."""
        return self.reads.split(ELSEWHERE, 1)[0] if ELSEWHERE in self.reads else None

    @property
    def reading(self) -> str:
        """The name of the measurement in its unit."""
        return self.reads.split(ELSEWHERE, 1)[-1]

    def to_json(self) -> dict[str, Any]:
        return {"moves": self.moves, "reads": self.reads, "target": self.target, "law": law_json(self.law)}

    @classmethod
    def from_json(cls, found: object) -> Loop:
        """From plain types that nobody has checked."""
        if not isinstance(found, dict) or set(found) != {"moves", "reads", "target", "law"}:
            raise ModelError(f"a loop has moves, reads, target and law, got {found!r:.80}.")
        return cls(found["moves"], found["reads"], found["target"], law_from_json(found["law"]))


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

    @classmethod
    def from_fit(cls, loop: Loop, learned: bool, fit: LawFit, record: LoopRecord) -> Controller:
        """A target that is recorded and never moves tells no more than one that is not."""
        aim = record.target
        target = fit.target if aim is None or np.nanmin(aim) < np.nanmax(aim) else CONSTANT
        return cls(loop, learned, fit.reproduced, fit.automatic, target, nearest=fit.nearest)

    @property
    def law(self) -> ControlLaw:
        """What it did in the record."""
        return as_law(self.loop.law)

    @property
    def supposed(self) -> Law | None:
        """The law that it has in the worlds that are asked about, where that is another one."""
        return None if self.other is None else self.other.law

    @property
    def acting(self) -> ControlLaw:
        """What it does in the worlds that are asked about: its own law, or one that a question supposes."""
        return self.law if self.supposed is None else as_law(self.supposed)

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
        return self.law.incremental and self.reproduced >= LOCKED and self.automatic >= 1 - TRIMMED

    @property
    def locked(self) -> bool:
        """Whether the input moved by its controller alone, towards a target that never moved.

        What the input does by itself cannot be told from such rows: it is a sum of readings.
        """
        return self.target == CONSTANT and self.led

    @property
    def switches(self) -> bool:
        """Whether it is a relay, whose switching times are not certain."""
        return bool(self.acting.swing)

    def __str__(self) -> str:
        moving, fixed = "a target that moves unrecorded", "a fixed target"
        aim = {RECORDED: f"target {self.loop.target}", MOVING: moving, CONSTANT: fixed}
        how = "learned" if self.learned else "given"
        aims = self.law.incremental or (self.loop.target is not None and not self.law.swing)
        towards = f" towards {aim[self.target]}" if aims else ""  # of others nobody knows whether they aim at anything
        return (
            f"{self.loop.moves} follows {self.loop.reads}{towards} ({self.law}; {how}); tells "
            f"{100 * self.reproduced:.3g} % of its moves, automatic in {100 * self.automatic:.3g} % of the rows"
        )


def law_supposed(unit: str, moves: str, law: Law) -> Caveat:
    """What answers are to be read with in which a loop follows another law than in the record."""
    text = f"unit {unit!r}: {moves} is supposed to be {as_law(law).state}, whatever law it followed in the record"
    return Caveat("law-supposed", unit, text)


def learned_loop(loop: Loop, record: LoopRecord) -> Controller | None:
    """The loop with its law, learned from what it did, or given and judged; None: no law."""
    if loop.law is not None:
        law = as_law(loop.law)
        fit = law.judged(record)
        return Controller.from_fit(loop if fit.law is law else replace(loop, law=fit.law), False, fit, record)
    fits = (kind.learned(record) for kind in reversed(LAWS))
    found = next((fit for fit in fits if fit is not None), None)
    return None if found is None else Controller.from_fit(replace(loop, law=found.law), True, found, record)


def found_loops(
    inputs: tuple[str, ...], outputs: tuple[str, ...], u: FloatArray, y: FloatArray, dt: float, skip: set[str]
) -> list[Controller]:
    """Loops that a unit's own log shows and nobody has declared: inputs (T, U) that follow an output (T, D).

    Every other input whose range meets that of the reading may be its target. A relay is believed only where it is
    declared: a reading that follows an input of two values stands near the same two levels whenever that switches,
    whoever switches it.
    """
    out, moving = [], np.ptp(u, axis=0) > 0
    for j, moves in enumerate(inputs):
        if moves in skip or not moving[j]:
            continue
        good = []
        for (k, reads), kind in product(enumerate(outputs), LAWS):
            if not kind.promising(u[:, j], y[:, k]):
                continue
            low, high = np.nanmin(y[:, k]), np.nanmax(y[:, k])
            aims = [i for i in np.flatnonzero(moving) if i != j and u[:, i].max() >= low and u[:, i].min() <= high]
            for target, aim in [(None, None), *((inputs[i], u[:, i]) for i in aims)]:
                record = LoopRecord(u[:, j], y[:, k], aim, dt)
                fit = kind.learned(record)
                if fit is not None and fit.reproduced >= BELIEVED and fit.law.is_control(record, fit):
                    good.append(Controller.from_fit(Loop(moves, reads, target, fit.law), True, fit, record))
        if good:  # of two that tell as much, one whose target is recorded tells what it aims at, too
            out.append(max(good, key=lambda one: (round(one.reproduced, 2), one.target == RECORDED, one.reproduced)))
    return out


def run_law(
    law: ControlLaw, moved: FloatArray, reading: FloatArray, target: FloatArray, row: int, dt: float,
    left: FloatArray | None = None, manual: FloatArray | None = None,
    own: tuple[FloatArray, FloatArray] | None = None, ends: tuple[FloatArray, FloatArray] | None = None,
) -> FloatArray:  # fmt: skip
    """Moved input (K, lead + n) by a law after its first values ``moved`` (K, lead).

    ``left`` (lead + n,) is added to what the law says; ``manual`` (lead + n,): what the input is in rows in which the
    controller was off, else NaN. ``own``: what the input was (K, lead + n) while its reading was as given, and what it
    does to the reading (K, L) in the rows after its own: what is moved otherwise moves the reading. ``ends``: lowest
    and highest value of the channel. Rows follow each other, because a law looks at what it did before.
    """
    lead, memory = moved.shape[1], law.memory
    out: FloatArray = np.empty(reading.shape)
    out[:, :lead] = moved
    short = max(0, memory - lead)  # before the record began, everything stood as in its first row
    if short:
        reading, target, out = (np.hstack([np.repeat(each[:, :1], short, 1), each]) for each in (reading, target, out))
    if own is not None:
        reading = np.array(reading)
    for t in range(lead + short, out.shape[1]):
        at = t - short
        if own is not None and at > lead:
            otherwise = out[:, lead + short : t] - own[0][:, lead:at]
            reading[:, t] += np.einsum("kd,kd->k", otherwise[:, ::-1], own[1][:, : at - lead])
        if manual is not None and np.isfinite(manual[at]):
            out[:, t] = manual[at]
            continue
        now = slice(t - memory, t + 1)
        seen = LawInput(out[:, t - memory : t], reading[:, now], target[:, now], row + at, dt)
        out[:, t] = law.output(seen, 0.0 if left is None else left[at])
        if ends is not None:
            low, high = (end[:, min(at, end.shape[1] - 1)] for end in ends)
            out[:, t] = np.clip(out[:, t], low, high)
    return out[:, short:]
