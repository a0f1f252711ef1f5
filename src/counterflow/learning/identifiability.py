"""Which couplings the data cannot determine, with cause and remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, scope_of
from counterflow.learning.likelihood import SharedRecord

STILL = 1e-9  # standard deviation relative to level below which an input counts as never moved
TOGETHER = 1e-4  # singular value, relative to the largest, below which inputs move together


@dataclass(frozen=True)
class Doubt:
    """Couplings through which ``cause`` acts on ``effect`` that the data do not determine.

    ``letter`` is "A" (its states) or "B" (its inputs); ``channels`` are indices of the cause's inputs, all if empty.
    """

    effect: str
    cause: str
    letter: str
    channels: tuple[int, ...]
    reason: str
    remedy: str
    others: tuple[str, ...] = ()  # further units that the reason tells of

    @property
    def scope(self) -> str:
        """All units that it tells of."""
        return scope_of((self.cause, self.effect, *self.others))

    def meets(self, other: Doubt) -> bool:
        """Whether both are about some of the same couplings."""
        same = (self.effect, self.cause, self.letter) == (other.effect, other.cause, other.letter)
        return same and bool(set(self.channels) & set(other.channels) or not (self.channels and other.channels))

    @property
    def caveat(self) -> Caveat:
        """What answers through this coupling carry along."""
        return Caveat("undetermined", self.scope, str(self))

    def __str__(self) -> str:
        return f"{self.cause} -> {self.effect} ({self.letter}): {self.reason}; {self.remedy}"


Labels = Mapping[str, Sequence[str]]  # names of each unit's inputs, if known here
Causes = Sequence[Sequence[int]]  # for each unit, the units that can act on it
Moved = tuple[NDArray[np.bool_], FloatArray]  # see ``_excitation``


def diagnose(
    record: SharedRecord, causes: Causes, labels: Labels | None = None, unknowns: int | None = None
) -> tuple[Doubt, ...]:
    """All doubts about what moves among the couplings of a record, effect by effect.

    ``unknowns`` in one equation of a unit; None: the states and inputs of all that can act on it.
    """
    doubts: list[Doubt] = []
    seen: dict[bytes, Moved] = {}  # units that were measured in the same rows share it
    for m in range(len(record.names)):
        measured = _measured(record, m)
        rows = np.flatnonzero(measured[1:])  # u[t-1] for the measured rows t
        whole = sum(record.states[n] + record.inputs[n] for n in causes[m])  # in one row of [A B]
        needed = whole if unknowns is None else unknowns
        if len(rows) < max(2 * needed, 1):
            doubts += _too_few(record, m, len(rows), needed, causes)
            continue
        key = measured.tobytes()
        if key not in seen:
            seen[key] = _excitation(record.u[rows])
        doubts += _inputs(record, m, seen[key], causes[m], labels or {})
    return tuple(doubts)


def masks(record: SharedRecord, doubts: tuple[Doubt, ...]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Entries of A (P, P) and B (P, U) that are determined."""
    P, U = sum(record.states), sum(record.inputs)
    A, B = np.ones((P, P), bool), np.ones((P, U), bool)
    for doubt in doubts:
        rows = record.state_slices[record.names.index(doubt.effect)]
        cause = record.names.index(doubt.cause)
        if doubt.letter == "A":
            A[rows, record.state_slices[cause]] = False
        else:
            own = record.input_slices[cause]
            chosen = [own.start + k for k in doubt.channels] if doubt.channels else list(range(own.start, own.stop))
            B[rows, chosen] = False
    return A, B


def _measured(record: SharedRecord, m: int) -> NDArray[np.bool_]:
    own = record.observation_slices[m]
    seen = np.isfinite(record.values[:, own]).any(axis=1)
    return np.asarray(seen & (own.stop > own.start))


def _too_few(record: SharedRecord, m: int, rows: int, needed: int, causes: Causes) -> list[Doubt]:
    name, out = record.names[m], []
    reason = f"unit {name!r} has {rows} measured rows for {needed} unknowns in each of its states"
    remedy = f"record at least {4 * needed} rows of unit {name!r}"
    for n, other in enumerate(record.names):
        if n == m:
            continue
        if n in causes[m]:
            out += [Doubt(name, other, letter, (), reason, remedy) for letter in ("A", "B")]
        if m in causes[n]:
            out.append(Doubt(other, name, "A", (), reason, remedy))
    return out


def _excitation(u: FloatArray) -> tuple[NDArray[np.bool_], FloatArray]:
    """Which inputs (T, U) never moved, and the triangular factor (k, U) of the others, centred and of one scale."""
    centred = u - u.mean(axis=0)
    deviation = np.sqrt(np.square(centred).mean(axis=0))
    still = deviation <= STILL * np.maximum(np.abs(u).max(axis=0, initial=0.0), 1e-300)
    scale = np.where(still, 0.0, 1 / np.where(still, 1.0, deviation))
    return still, np.asarray(np.linalg.qr(centred * scale, mode="r"))


def _inputs(record: SharedRecord, m: int, moved: Moved, causes: Sequence[int], labels: Labels) -> list[Doubt]:
    owner = np.repeat(np.arange(len(record.names)), record.inputs)
    candidates = np.flatnonzero(np.isin(owner, causes))
    still, triangle = moved[0][candidates], moved[1]
    out: list[Doubt] = []

    def name(column: int) -> str:
        unit = record.names[int(owner[column])]
        place = column - record.input_slices[int(owner[column])].start
        return f"{unit} {labels[unit][place]}" if unit in labels else f"{unit} input {place + 1}"

    def doubt(column: int, reason: str, remedy: str, others: tuple[str, ...] = ()) -> None:
        cause = int(owner[column])
        if cause != m:
            channel = column - record.input_slices[cause].start
            out.append(Doubt(record.names[m], record.names[cause], "B", (channel,), reason, remedy, others))

    for column in candidates[still]:
        doubt(int(column), f"{name(int(column))} never varies in these data", "move it, by itself, while recording")
    moving = candidates[~still]
    if len(moving) > 1:
        _, singular, vectors = np.linalg.svd(triangle[:, moving])
        null = vectors[singular < TOGETHER * singular[0]]
        together = np.abs(null).max(axis=0, initial=0.0) > 1e-3
        involved = moving[together]
        names = ", ".join(name(int(c)) for c in involved)
        owners = tuple(dict.fromkeys(record.names[int(owner[c])] for c in involved))
        for column in involved:
            reason = f"these inputs always move together: {names}; only their joint effect shows"
            doubt(int(column), reason, "move each of them by itself while recording", owners)
    return out
