"""One job at each of the two sides.

At a plant, what the coordinator says is answered by the machine, and let out by the guard. At the coordinator, what
units send is acknowledged when it is on the disk with all that it gives rise to; a round is computed when every unit
has spoken, never from a part of them: ``server_step`` sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any, cast

from counterflow.errors import CounterflowError, DataError, ProtocolError, StorageError
from counterflow.exchange.method import ServerState, UnitState, server_step, unit_step
from counterflow.exchange.outcome import RoundRecord
from counterflow.exchange.registry import method_of
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.messages import spoken
from counterflow.federation.parts import CoordinatorResult
from counterflow.federation.refusal import Numbered
from counterflow.federation.turns import LOG, Outgoing, Session, fingerprint
from counterflow.fits.engine import Traffic
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Message, StateGradients, encode
from counterflow.protocol.codec import SIZE_LIMIT
from counterflow.sealed_log import Entry, Row
from counterflow.threads import one_blas_thread


class PlantSession(Session[UnitState]):
    """The job of a guard at its plant, for the first time as after a crash.

    Parameters
    ----------
    folder : this job's and this unit's alone.
    guard : of this unit and job. A turn stands in the store before it charges the replies and lets them out, each once.
        After a crash it must bring the same log and model: that is checked.
    keep : takes the finished session, to keep what was learned.

    Raises
    ------
    StorageError
        The folder is in use, damaged, or that of another job; or log, model or audit are not what they were.
    """

    KEPT = 4  # a crash repeats the last two at most

    def __init__(self, folder: str | Path, guard: Guard, keep: Callable[[PlantSession], None] | None = None) -> None:
        self.guard, self.unit, self._keep = guard, guard.unit, keep
        self.whose = f"unit {self.unit!r}, {guard.job.label}"
        with one_blas_thread():
            state = method_of(guard.job).unit(guard.job, guard.own)
        super().__init__(folder, guard.job, state, [self.unit])
        opening = {"unit": self.unit, "job": self.job.to_text(), "to": [], "own": fingerprint(state)}
        self._replay(Entry("opening", opening))

    def receive(self, sequence: int, data: bytes) -> list[Outgoing]:
        """Take in the coordinator's message number ``sequence``; the replies, approved and kept.

        The same message again gives the same replies, byte for byte; another one in its place, and one that comes
        before its turn, are refused.
        """
        with self._lock:
            try:
                due = self._is_due(self.unit, sequence, data, self.whose)
            except ProtocolError as error:
                self.guard.refuse("incoming", data, error)
            if due:
                self._take_in(self.unit, data)
            return [each._replace(data=self.guard.leave(each.data)) for each in self.replies(sequence)]

    def replies(self, sequence: int) -> list[Outgoing]:
        """What was said to one of the last messages, as it stands in the store."""
        known, end = self._taken[self.unit], self._sent[self.unit]
        if sequence not in known:
            return []
        first, after = known[sequence][1], known.get(sequence + 1, ("", end))[1]
        return [each for each in self._said[self.unit] if first <= each.sequence < after]

    def exchange(self, arrived: Numbered, patience: float = 0.0, over: Callable[[], bool] = lambda: False) -> Numbered:
        """Take in what the coordinator says; what this plant says in return, at once.

        What was learned is kept before the coordinator hears that the job is over here.
        """
        with self._lock:
            replies = [reply for sequence, data in arrived for reply in self.receive(sequence, data)]
            if self.finished and self._keep is not None:
                self._keep(self)
                self._keep = None
            return [(reply.sequence, reply.data) for reply in replies]

    @property
    def due(self) -> int:
        """Messages of the coordinator that were taken in for good."""
        return self._received[self.unit]

    # ---- a turn

    def _turn(self, unit: str, data: bytes) -> tuple[UnitState, tuple[Message, ...], Message]:
        message = self.guard.incoming(data)
        try:
            return *self._step(unit_step, message), message
        except ProtocolError as error:
            self.guard.refuse("incoming", data, error)

    def _written(self, state: UnitState, said: Sequence[Message]) -> tuple[list[bytes], dict[str, Any]]:
        approved = [self.guard.outgoing(encode(reply), state.release) for reply in said]
        # how a private message was made: found with noise, it cannot be computed again
        return approved, {"release": asdict(state.release) if isinstance(state.release, AddedNoise) else None}

    def _remembered(self, state: UnitState, row: Row) -> UnitState:
        self._require_audited(row.pieces[1:])
        if not isinstance(state.release, AddedNoise):
            return state
        return cast(UnitState, replace(cast(Any, state), release=AddedNoise(**row.table["release"])))

    def _note(self, message: Message) -> None:
        _, first = next(iter(self._taken[self.unit].values()))
        self._forget(self.unit, first)
        if isinstance(message, StateGradients) and self.state.loss is not None:
            self._notes.append([message.round, self.state.loss])

    @property
    def losses(self) -> dict[int, float]:
        """Its own by round, of a published training; they stay at the unit."""
        return dict(self._notes)

    # ---- after a crash

    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        super()._restore(table, pieces)
        self._require_audited([each.data for each in self._said[self.unit]])

    def _require_audited(self, replies: Sequence[bytes]) -> None:
        if not all(self.guard.approved(reply) for reply in replies):
            raise StorageError(
                f"{self._store.name} holds a message that has left the plant, and the audit log does not know of it: "
                "restore the audit log from a backup that has every record."
            )


class CoordinatorSession(Session[ServerState]):
    """The job of a folder, which is this job's alone, for the first time as after a crash.

    An engine delivers what ``outgoing`` holds, hands every reply to ``receive``, and then says with ``acknowledge``
    which messages the plant has taken in. Everything may be repeated at any time.

    Raises
    ------
    StorageError
        The folder is in use, damaged, or that of another job.
    """

    KEPT = 8  # of each unit, which may say two things in a turn

    def __init__(self, folder: str | Path, job: Job) -> None:
        self.whose = f"server: {job.label}"
        super().__init__(folder, job, method_of(job).server(job), job.units)
        self._acknowledged: dict[str, int] = {}  # what is not on the disk yet
        self.failure: str | None = None  # why the job has failed
        self.state, begun = self.state.begin()
        opening = {"unit": "", "job": job.to_text(), "to": [message.unit for message in begun]}
        self._replay(Entry("opening", opening, [encode(message) for message in begun]))

    # ---- the conversation

    def outgoing(self) -> list[Outgoing]:
        """All that no plant has acknowledged yet, in order; the same bytes after a restart."""
        with self._lock:
            return [message for said in self._said.values() for message in said]

    def receive(self, unit: str, sequence: int, data: bytes) -> None:
        """Take in message number ``sequence`` of the unit that has authenticated itself as ``unit``.

        When this returns, the message is on the disk. The same again is ignored; another one in its place, one that
        comes before its turn, and one that speaks for another unit are refused.

        Raises
        ------
        ProtocolError
            The message is refused; nothing has changed.
        CounterflowError
            Of any other kind: the job has failed, see ``failure``.
        """
        with self._lock:
            place = self._place(unit)
            if not self._is_due(unit, sequence, data, place):
                return
            if self.failure is not None:
                raise ProtocolError(f"{place}: the job has failed: {self.failure}")
            try:
                self._take_in(unit, data)
            except (ProtocolError, StorageError):
                raise
            except CounterflowError as error:
                self.failure = str(error)[:2000]
                self._store.append(LOG, Entry("failed", {"reason": self.failure}))
                raise

    def acknowledge(self, unit: str, sequence: int) -> None:
        """``unit`` has taken in all messages up to number ``sequence``, and its replies to them have been received.

        That goes to the disk with the next message, or at once when none is due any more: after a crash before that,
        a message is delivered once more, which changes nothing.
        """
        with self._lock:
            place = self._place(unit)
            if sequence >= self._sent[unit]:
                raise ProtocolError(f"{place}: message {sequence} is acknowledged, which was never sent")
            if any(message.sequence <= sequence for message in self._said[unit]):
                self._acknowledged[unit] = sequence
                self._forget(unit, sequence + 1)
                if self.finished:
                    self._store.append(LOG, Entry("acknowledged", {"acknowledged": self._acknowledged}))
                    self._acknowledged = {}

    # ---- where it stands

    @property
    def round(self) -> int:
        """Rounds that have been computed."""
        return self.state.round

    def waiting(self) -> tuple[str, ...]:
        """Units that must speak before anything more is computed; a deadline for them is the engine's affair."""
        return () if self.finished or self.failure is not None else self.state.waiting

    def result(self) -> CoordinatorResult:
        """What has been found."""
        if self.failure is not None:
            raise DataError(f"{self.job.label} has failed: {self.failure}")
        if not self.finished:
            raise ProtocolError(f"{self.job.label} is not finished: it waits for {', '.join(self.waiting())}")
        traffic = Traffic(self.state.round, self.taken, self._told)
        records = tuple(map(_record, self._notes))
        return CoordinatorResult(self.job, self.state, records, traffic)

    # ---- inside

    def _place(self, unit: object) -> str:
        if not isinstance(unit, str) or unit not in self._received:
            raise ProtocolError(f"server: no unit {unit!r:.100} takes part in {self.job.label}")
        return f"{self.whose}, unit {unit!r}"

    def _turn(self, unit: str, data: bytes) -> tuple[ServerState, tuple[Message, ...], Message]:
        message = spoken(unit, data, self.job, SIZE_LIMIT)
        return *self._step(server_step, message), message

    def _written(self, state: ServerState, said: Sequence[Message]) -> tuple[list[bytes], dict[str, Any]]:
        acknowledged, self._acknowledged = self._acknowledged, {}
        return [encode(message) for message in said], {"acknowledged": acknowledged}

    def _remembered(self, state: ServerState, row: Row) -> ServerState:
        for unit, sequence in row.table["acknowledged"].items():
            self._forget(unit, sequence + 1)
        return state

    def _take_up(self, row: Row) -> None:
        if row.kind == "failed":
            self.failure = row.table["reason"]
        elif row.kind == "acknowledged":
            self._remembered(self.state, row)
        else:
            super()._take_up(row)

    def _note(self, message: Message) -> None:
        record = self.state.record
        if record is not None and (not self._notes or record.round > self._notes[-1][0]):
            self._notes.append(list(astuple(record)))


def _record(row: list[Any]) -> RoundRecord:
    values: list[Any] = [tuple(each) if isinstance(each, list) else each for each in row]
    return RoundRecord(*values)
