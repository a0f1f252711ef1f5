"""One job at one site, on the disk: it can be killed at any moment and goes on where it was.

A turn is one message that came, and all that is said because of it. It stands in the store, whole, before any of it
leaves. So after a kill, or with a disk that is full,

- the turn is in the store: the very same bytes go out again, and nothing is drawn anew;
- it is not: no byte of it has left. The message comes again, and the turn is computed anew.

A log that has grown long begins anew with a snapshot of the state and of what may be asked for again; so does that of a
job that is over, and nothing is estimated again when it is opened. What a machine is given at its
beginning (log, model, options, source of noise) is not written: it is given again. Of a unit's own data a digest is
kept, so that a job does not go on with another log or model.
"""

from __future__ import annotations

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, Self, TypeVar, cast

import numpy as np

from counterflow.errors import CounterflowError, DataError, ProtocolError, StorageError
from counterflow.exchange.method import ServerState, UnitState
from counterflow.exchange.registry import kept_kinds
from counterflow.federation.job import Job
from counterflow.protocol import Message
from counterflow.protocol.message import KINDS
from counterflow.records import DTYPES, Array, describe, restore
from counterflow.sealed_log import DatabaseSchema, Entry, Row, SealedLogs
from counterflow.threads import one_blas_thread

LEAST = 8 << 20  # bytes that a log may always have
SPARSE = 2  # times the size of its last snapshot that it may have besides: so much less is written than without bound
_SAME = 1e-6  # relative: estimates of another machine may differ by rounding
_KINDS = {**KINDS, **kept_kinds()}
State = TypeVar("State", bound=UnitState | ServerState)
LOG = "turns"
FILE = "session.db"
SESSION = DatabaseSchema(
    "store", 0x4346_5354, 4, {LOG: False},  # "CFST"
    restore="Find out how; then restore it from a backup with all files beside it, or start the job again",
    give="give the folder of a site of Counterflow",
    upgrade="use the version that made it, or finish the job there and start it again here",
    page=1 << 16,
)  # fmt: skip


class Outgoing(NamedTuple):
    """A message on its way: who sends it or is to get it, its place among that unit's messages, its bytes."""

    unit: str
    sequence: int
    data: bytes


class Session(ABC, Generic[State]):
    """One job at one site: its store holds an opening, perhaps a snapshot, then turns.

    Parameters
    ----------
    folder : this job's and this site's alone.
    state : the machine at its beginning.
    units : with whom there is a conversation: at the coordinator all units, at a plant its own.
    """

    KEPT: ClassVar[int]  # last messages of a unit that may come again
    whose: str  # how errors begin

    def __init__(self, folder: str | Path, job: Job, state: State, units: Sequence[str]) -> None:
        self.job = job
        self.state: State = state
        self._beginning: State = state
        self._received, self._sent = dict.fromkeys(units, 0), dict.fromkeys(units, 0)
        # of the last messages the SHA-256, and the place of what was said to that unit next
        self._taken: dict[str, dict[int, tuple[str, int]]] = {unit: {} for unit in units}
        self._said: dict[str, list[Outgoing]] = {unit: [] for unit in units}  # and may be asked for again
        self._notes: list[Any] = []  # what is remembered of each round, in plain types
        self.taken = self._told = 0  # bytes of all messages, over all runs: they grow with every step forward only
        self._snapshot = 0  # bytes that the log had when it last began anew
        self._lock = threading.RLock()
        self._store = SealedLogs(Path(folder) / FILE, SESSION, alone=True)

    # ---- what the two sides do in their own way

    @abstractmethod
    def _turn(self, unit: str, data: bytes) -> tuple[State, tuple[Message, ...], Message]:
        """The machine after a message, what it says, and the message; an error if it is refused."""

    @abstractmethod
    def _written(self, state: State, said: Sequence[Message]) -> tuple[list[bytes], dict[str, Any]]:
        """What is said, as bytes that may leave once they are on the disk; and what stands in its row besides."""

    @abstractmethod
    def _remembered(self, state: State, row: Row) -> State:
        """The machine after a turn that was made again, as it was when its row was written."""

    @abstractmethod
    def _note(self, message: Message) -> None:
        """Take down what is remembered of a turn that was taken in."""

    # ---- a turn

    def _is_due(self, unit: str, sequence: int, data: bytes, place: str) -> bool:
        """Whether a message is new; ProtocolError if it comes before its turn, or is another than came in its place."""
        due = self._received[unit]
        if sequence > due:
            raise ProtocolError(f"{place}: got message {sequence}, message {due} is due")
        if sequence == due:
            return True
        before = self._taken[unit].get(sequence)
        if before is None:
            raise ProtocolError(
                f"{place}: message {sequence} was taken in long ago, message {due} is due; if whoever sends it has "
                "lost what it had, start a new job"
            )
        if hashlib.sha256(data).hexdigest() != before[0]:
            raise ProtocolError(
                f"{place}: message {sequence} came before with other content; it is not taken. End the job, and find "
                "out what that was"
            )
        return False

    def _take_in(self, unit: str, data: bytes) -> None:
        """Take in the message that is due, for good, with all that is said because of it."""
        state, said, message = self._turn(unit, data)
        written, besides = self._written(state, said)
        to = [each.unit for each in said]
        self._store.append(LOG, Entry("turn", {"unit": unit, "to": to, **besides}, [data, *written]))
        self._take(state, unit, message, data, zip(to, written, strict=True))
        self._begin_anew_if_due()

    def _take(self, state: State, unit: str, message: Message, data: bytes, said: Iterable[tuple[str, bytes]]) -> None:
        number, known = self._received[unit], self._taken[unit]
        known[number] = hashlib.sha256(data).hexdigest(), self._sent[unit]
        known.pop(number - self.KEPT, None)
        self._received[unit] += 1
        self.taken += len(data)
        self.state = state
        self._say(said)
        self._note(message)

    def _say(self, said: Iterable[tuple[str, bytes]]) -> None:
        for unit, data in said:
            self._said[unit].append(Outgoing(unit, self._sent[unit], data))
            self._sent[unit] += 1
            self._told += len(data)

    def _forget(self, unit: str, before: int) -> None:
        """What nobody may ask for again: messages to a unit with smaller numbers."""
        self._said[unit] = [each for each in self._said[unit] if each.sequence >= before]

    def _step(
        self, step: Callable[[State, Message], tuple[State, tuple[Message, ...]]], message: Message
    ) -> tuple[State, tuple[Message, ...]]:
        """A turn of the machine. Numbers beyond all measure end as ones that no message may hold."""
        try:
            with one_blas_thread(), np.errstate(all="ignore"):
                return step(self.state, message)
        except np.linalg.LinAlgError as error:
            raise DataError(
                f"{self.whose}: the numbers are beyond double precision ({error}); look for absurd values in the logs"
            ) from error

    # ---- on the disk

    def _replay(self, opening: Entry) -> None:
        """Go on where it stopped, or begin with ``opening``."""
        self._opening = opening
        try:
            rows = self._store.rows(LOG)
            first = next(rows, None)
            if first is None:
                first = self._store.append(LOG, opening)
            told = first.table
            if first.kind != "opening" or any(told.get(name) != opening.table[name] for name in ("unit", "job")):
                raise StorageError(f"{self._store.name} is not that of {self.whose} as it is now: give its own folder.")
            if changed := difference(told.get("own"), opening.table.get("own")):
                self._changed(changed)
            self._say(zip(told["to"], first.pieces, strict=True))
            for row in rows:
                if row.kind == "snapshot":
                    self._restore(row.table, list(row.pieces))
                    self._snapshot = self._store.size(LOG)
                else:
                    self._take_up(row)
        except BaseException:
            self.close()
            raise

    def _take_up(self, row: Row) -> None:
        """Take in a row that is no snapshot."""
        unit, to, (data, *pieces) = row.table["unit"], row.table["to"], row.pieces
        try:
            state, said, message = self._turn(unit, data)
        except CounterflowError as error:
            self._changed(error)
        if [each.unit for each in said] != to:
            self._changed("other replies")
        # as they were handed out: noise in them is not drawn again
        self._take(self._remembered(state, row), unit, message, data, zip(to, pieces, strict=True))

    def _changed(self, how: object) -> NoReturn:
        raise StorageError(
            f"{self.whose} cannot go on, because what it is computed from has changed since it began ({how}): restore "
            "log, model and software as they were, or start a new job."
        )

    def _begin_anew_if_due(self) -> None:
        """Put a snapshot in the place of all rows of a job that is over, or whose log has grown long.

        If there is no room for it, the old log serves until it has grown again.
        """
        if not self.finished and not has_grown_long(self._store.size(LOG), self._snapshot):
            return
        said = [each for unit in self._said.values() for each in unit]
        state, arrays = snapshot(self.state)
        table = {
            "received": self._received, "sent": self._sent, "taken": {n: [*k.items()] for n, k in self._taken.items()},
            "bytes": [self.taken, self._told], "said": [each[:2] for each in said], "state": state,
        }  # fmt: skip
        pieces = [json.dumps(self._notes).encode(), *(each.data for each in said), *arrays]
        opening = Entry("opening", {**self._opening.table, "to": []})
        try:
            self._store.begin_anew(LOG, [opening, Entry("snapshot", table, pieces)])
        except StorageError as error:
            if error.code != "full":
                raise
        self._snapshot = self._store.size(LOG)

    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        """Take in a snapshot."""
        (notes, *pieces), count, units = pieces, len(table["said"]), list(self._said)
        self._notes, self._said = json.loads(notes), {unit: [] for unit in units}
        for (unit, sequence), data in zip(table["said"], pieces[:count], strict=True):
            self._said[unit].append(Outgoing(unit, int(sequence), data))
        self._received, self._sent = ({unit: int(table[key][unit]) for unit in units} for key in ("received", "sent"))
        self._taken = {unit: {int(n): (str(d), int(k)) for n, (d, k) in table["taken"][unit]} for unit in units}
        self.taken, self._told = map(int, table["bytes"])
        self.state = restored(self._beginning, table["state"], pieces[count:], self._store.name)

    # ---- life

    @property
    def finished(self) -> bool:
        """Whether the job is over here."""
        return self.state.finished

    def close(self) -> None:
        """Let go of the folder. Nothing is lost without it."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# ---- what is kept of a machine


def has_grown_long(size: int, before: int) -> bool:
    """Whether a log of ``size`` bytes that began with a snapshot of ``before`` bytes is to begin anew."""
    return size > LEAST + (1 + SPARSE) * before


def snapshot(state: State) -> tuple[dict[str, Any], list[bytes]]:
    """All of a state but what its machine is given at the beginning."""
    described, arrays = describe(state, _KINDS, finite=False, only=_names(state))
    layout = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return {"fields": described, "arrays": layout}, [array.tobytes() for array in arrays.values()]


def restored(beginning: State, table: Any, pieces: Sequence[bytes], where: str) -> State:
    """The state that was kept, of a machine that stands at its beginning."""
    arrays: dict[str, Array] = {}
    try:
        for (name, kind, shape), piece in zip(table["arrays"], pieces, strict=True):
            if kind not in DTYPES.values():
                raise ValueError(f"{name!r:.60} is an array of unknown type")
            arrays[name] = np.frombuffer(piece, kind).reshape(shape)
        options: dict[str, Any] = {"finite": False, "only": _names(beginning), "onto": beginning}
        state: Any = restore(type(beginning), table["fields"], arrays, _KINDS, **options)
    except (StorageError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise StorageError(
            f"{where} holds no snapshot of this kind of job ({error}): give its own folder, or start the job again.",
            code="damaged",
        ) from error
    return cast(State, state.resumed() if hasattr(state, "resumed") else state)


def _names(state: State) -> set[str]:
    return {field.name for field in fields(cast(Any, state))} - state.GIVEN


def fingerprint(beginning: UnitState) -> dict[str, Any]:
    """What a unit's machine is made of, in a few numbers: ``exact`` of its log and model, ``near`` of its estimates."""
    raw, estimates = beginning.sources()
    near: list[float] = []
    for array in estimates:
        ramp = np.linspace(0.5, 1.5, len(array))
        near += [float(np.linalg.norm(array)), float(np.linalg.norm(ramp @ array))]
    digest = hashlib.sha256()
    for array in raw:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, "<f8").tobytes())
    return {"exact": digest.hexdigest(), "near": near}


def difference(before: Any, now: Any) -> str:
    """How a unit differs from the one that the job began with; empty if it does not (None: no unit)."""
    if before is now is None:
        return ""
    if before["exact"] != now["exact"]:
        return "the unit's log or model is not the one that it began with"
    if len(before["near"]) != len(now["near"]) or not np.allclose(before["near"], now["near"], rtol=_SAME, atol=1e-300):
        return "the unit's estimator gives other states than it did"
    return ""
