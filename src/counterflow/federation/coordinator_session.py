"""One job at the coordinator, on the disk: it can be killed at any moment and goes on where it was.

What a unit sends stands in the store, together with all that the server has to say to it, before it is acknowledged.
A round is computed when every unit has spoken, never from a part of them: ``server.step`` sees to that.

A log that has grown long begins anew with a snapshot of the state (``checkpoint``) and of what is on its way; so
does that of a job that is over, and nothing is estimated again when it is opened.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from counterflow.errors import CounterflowError, DataError, ProtocolError, StorageError
from counterflow.exchange.method import Round, ServerState, server_step
from counterflow.exchange.outcome import RoundRecord
from counterflow.exchange.registry import method_of
from counterflow.federation import checkpoint
from counterflow.federation.job import Job
from counterflow.federation.parts import CoordinatorResult
from counterflow.federation.policy import SENT_BY_UNITS
from counterflow.federation.turns import LOG, Outgoing, Session, blaming, checked_sequence, strange
from counterflow.fits.engine import Traffic
from counterflow.protocol import Message, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT
from counterflow.sealed_log import Entry, SealedLogs
from counterflow.threads import one_blas_thread


class CoordinatorSession(Session):
    """One job at the coordinator; made by ``open``, for the first time as after a crash.

    An engine delivers what ``outgoing`` holds, hands every reply to ``receive``, and then says with ``acknowledge``
    which messages the plant has taken in. Everything may be repeated at any time.
    """

    def __init__(self, store: SealedLogs, job: Job, largest_bytes: int, state: ServerState) -> None:
        """Not for users: see ``open``."""
        super().__init__(store, job)
        self._largest, self._state = largest_bytes, state
        self._received = dict.fromkeys(job.units, 0)
        self._digests: dict[str, dict[int, str]] = {unit: {} for unit in job.units}  # SHA-256 of the last messages
        self._pending: dict[str, list[Outgoing]] = {unit: [] for unit in job.units}
        self._sent = dict.fromkeys(job.units, 0)
        self._records: list[Round] = []
        self._taken: dict[str, int] = {}  # acknowledgements that are not on the disk yet
        self._bytes_up = self._bytes_down = 0
        self._failure: str | None = None

    @classmethod
    def open(cls, folder: str | Path, job: Job, *, largest_bytes: int = SIZE_LIMIT) -> CoordinatorSession:
        """Open the job in ``folder``, which is this job's alone, and go on where it was.

        Raises
        ------
        StorageError
            The folder is in use, damaged, or that of another job.
        """
        state = method_of(job).server(job)
        return cls(cls._store_in(folder), job, largest_bytes, state)._replayed()

    # ---- the conversation

    def outgoing(self) -> list[Outgoing]:
        """All that no plant has acknowledged yet, in order; the same bytes after a restart."""
        with self._lock:
            return [message for pending in self._pending.values() for message in pending]

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
            self._check_unit(unit)
            due, place = self._received[unit], f"server: {self.job.label}, unit {unit!r}"
            if not isinstance(data, bytes):
                raise ProtocolError(f"{place}: a message is bytes, got {type(data).__name__}")
            digest = hashlib.sha256(data).digest()
            if checked_sequence(sequence, place) < due:
                if self._digests[unit].get(sequence) != digest.hex():
                    raise ProtocolError(
                        f"{place}: message {sequence} came before, long ago or with other content; it is not taken"
                    )
                return
            if sequence > due:
                raise ProtocolError(f"{place}: got message {sequence}, message {due} is due")
            if self._failure is not None:
                raise ProtocolError(f"{place}: the job has failed: {self._failure}")
            message = self._decoded(unit, data)
            state, replies = self._step(message)
            sent = self._numbered([(reply.unit, encode(reply)) for reply in replies])
            table: dict[str, Any] = {
                "unit": unit, "sequence": sequence, "to": [reply.unit for reply in sent], "taken": self._taken,
            }  # fmt: skip
            digests = [digest, *(hashlib.sha256(reply.data).digest() for reply in sent)]
            self._store.append(LOG, Entry("turn", table, [data, *(reply.data for reply in sent)], digests))
            self._taken = {}
            self._take(state, unit, data, sent, digest.hex())
            if state.finished or self._is_long():
                self._begin_anew()

    def acknowledge(self, unit: str, sequence: int) -> None:
        """``unit`` has taken in all messages up to number ``sequence``, and its replies to them have been received.

        That goes to the disk with the next message, or at once when none is due any more: after a crash before that,
        a message is delivered once more, which changes nothing.
        """
        with self._lock:
            self._check_unit(unit)
            place = f"server: {self.job.label}, unit {unit!r}"
            if checked_sequence(sequence, place) >= self._sent[unit]:
                raise ProtocolError(f"{place}: message {sequence} is acknowledged, which was never sent")
            if any(message.sequence <= sequence for message in self._pending[unit]):
                self._drop(unit, sequence)
                self._taken[unit] = sequence
                if self._state.finished:
                    self._store.append(LOG, Entry("taken", {"taken": self._taken}))
                    self._taken = {}

    # ---- where it stands

    @property
    def finished(self) -> bool:
        """Whether the estimate is there."""
        return self._state.finished

    @property
    def failure(self) -> str | None:
        """Why the job has failed; None if it has not."""
        return self._failure

    @property
    def round(self) -> int:
        """Rounds that have been computed."""
        return self._state.round

    @property
    def taken(self) -> int:
        """Bytes of all messages that were taken in, over all runs: it grows with every step forward, and then only."""
        return self._bytes_up

    def waiting(self) -> tuple[str, ...]:
        """Units that must speak before anything more is computed; a deadline for them is the engine's affair."""
        return () if self._state.finished or self._failure is not None else self._state.waiting

    def result(self) -> CoordinatorResult:
        """What has been found, for ``server_part`` and ``status_part``."""
        if self._failure is not None:
            raise DataError(f"{self.job.label} has failed: {self._failure}")
        if not self.finished:
            raise ProtocolError(f"{self.job.label} is not finished: it waits for {', '.join(self.waiting())}")
        traffic = Traffic(self._state.round, self._bytes_up, self._bytes_down)
        return CoordinatorResult(self.job, self._state, tuple(self._records), traffic)

    # ---- inside

    def _check_unit(self, unit: object) -> None:
        if not isinstance(unit, str) or unit not in self._received:
            raise ProtocolError(f"server: no unit {unit!r:.100} takes part in {self.job.label}")

    def _decoded(self, unit: str, data: bytes) -> Message:
        message = decode(data, self._largest)
        if message.unit != unit:
            raise ProtocolError(
                f"server: {self.job.label}: unit {unit!r} speaks as {message.unit[:100]!r}; a plant speaks for itself "
                "only"
            )
        if type(message).__name__ not in SENT_BY_UNITS[self.job.method]:
            kind = type(message).__name__
            raise ProtocolError(f"server: {self.job.label}: a unit does not send {kind}, got it of {unit!r}")
        return message

    def _step(self, message: Message) -> tuple[ServerState, tuple[Message, ...]]:
        try:
            with one_blas_thread(), np.errstate(all="ignore"):
                return server_step(self._state, message)
        except ProtocolError:
            raise
        except CounterflowError as error:
            self._fail(str(error))
            raise
        except np.linalg.LinAlgError as error:
            text = f"the numbers are beyond double precision ({error}); look for absurd values in the units' logs"
            self._fail(text)
            raise DataError(f"{self.job.label}: {text}") from error

    def _fail(self, text: str) -> None:
        self._store.append(LOG, Entry("failed", {"reason": text[:2000]}))
        self._failure = text[:2000]

    def _numbered(self, replies: Iterable[tuple[str, bytes]]) -> list[Outgoing]:
        """Replies by their units, each with its place; as they were handed out: noise in them is not drawn again."""
        out, following = [], dict(self._sent)
        for unit, data in replies:
            out.append(Outgoing(unit, following[unit], data))
            following[unit] += 1
        return out

    def _take(self, state: ServerState, unit: str | None, data: bytes, sent: list[Outgoing], digest: str = "") -> None:
        self._state = state
        if unit is not None:
            number = self._received[unit]
            self._digests[unit][number] = digest
            self._digests[unit].pop(number - 2 * checkpoint.KEPT, None)
            self._received[unit] += 1
        self._bytes_up += len(data)
        for message in sent:
            self._pending[message.unit].append(message)
            self._sent[message.unit] += 1
            self._bytes_down += len(message.data)
        record = state.record
        if record is not None and (not self._records or record.round > self._records[-1].round):
            self._records.append(record)

    def _drop(self, unit: str, sequence: int) -> None:
        self._pending[unit] = [message for message in self._pending[unit] if message.sequence > sequence]

    def _begin_anew(self) -> None:
        """Put a snapshot in the place of all that stands in the store."""
        records = self._records
        numbers = [[r.server_loss, r.residual_loss, r.disentanglement, r.gradient, *r.delta_d] for r in records]
        state, pieces = checkpoint.snapshot(self._state, np.array(numbers, np.float64))
        pending = self.outgoing()
        table = {
            "received": self._received,
            "digests": {unit: list(known.items()) for unit, known in self._digests.items()},
            "sent": self._sent,
            "pending": [[message.unit, message.sequence] for message in pending],
            "bytes": [self._bytes_up, self._bytes_down],
            "rounds": [[record.round, record.phase] for record in records],
            "state": state,
        }
        opening = Entry("opening", {"job": self.job.to_text(), "to": []})
        self._begin_with(opening, Entry("snapshot", table, [*(message.data for message in pending), *pieces]))
        self._taken = {}

    def _restore(self, table: dict[str, Any], pieces: tuple[bytes, ...]) -> None:
        units = self.job.units
        with blaming(self._store.name):
            count = len(table["pending"])
            self._pending = {unit: [] for unit in units}
            for (unit, sequence), data in zip(table["pending"], pieces[:count], strict=True):
                self._pending[unit].append(Outgoing(unit, int(sequence), data))
            self._received = {unit: int(table["received"][unit]) for unit in units}
            self._sent = {unit: int(table["sent"][unit]) for unit in units}
            self._digests = {unit: {int(n): str(d) for n, d in table["digests"][unit]} for unit in units}
            self._bytes_up, self._bytes_down = map(int, table["bytes"])
            beginning = method_of(self.job).server(self.job)
            self._state, numbers = checkpoint.restored(beginning, table["state"], pieces[count:], self._store.name)
            self._records = [
                RoundRecord(int(number), str(phase), row[0], row[1], row[2], tuple(row[4:]), row[3])
                for (number, phase), row in zip(table["rounds"], numbers.tolist(), strict=True)
            ]

    def _replay(self) -> None:
        rows = self._store.rows(LOG)
        opening = next(rows, None)
        state, begun = self._state.begin()
        sent = self._numbered([(message.unit, encode(message)) for message in begun])
        if opening is None:
            table: dict[str, Any] = {"job": self.job.to_text(), "to": [message.unit for message in sent]}
            self._store.append(LOG, Entry("opening", table, [message.data for message in sent]))
            self._take(state, None, b"", sent)
            return
        if opening.kind != "opening" or opening.table.get("job") != self.job.to_text():
            raise StorageError(f"{self._store.name} is not that of {self.job.label} as it is now: give its folder.")
        self._take(state, None, b"", self._numbered(zip(opening.table["to"], opening.pieces, strict=True)))
        for row in rows:
            match row.kind:
                case "snapshot" if not any(self._received.values()):
                    self._restore(row.table, row.pieces)
                    self._snapshot = self._store.size(LOG)
                case "turn" | "taken":
                    for unit, sequence in row.table["taken"].items():
                        self._drop(unit, sequence)
                    if row.kind == "turn":
                        self._replay_turn(row.table, row.pieces)
                case "failed":
                    self._failure = row.table["reason"]
                case _:
                    raise strange(self._store.name)

    def _replay_turn(self, table: dict[str, Any], pieces: tuple[bytes, ...]) -> None:
        data, *replies = pieces
        try:
            state, again = server_step(self._state, self._decoded(table["unit"], data))
        except (CounterflowError, np.linalg.LinAlgError) as error:
            raise self._changed(str(error)) from error
        if [reply.unit for reply in again] != table["to"]:
            raise self._changed("other replies")
        digest = hashlib.sha256(data).hexdigest()
        self._take(state, table["unit"], data, self._numbered(zip(table["to"], replies, strict=True)), digest)

    def _changed(self, how: str) -> StorageError:
        return StorageError(
            f"{self.job.label} cannot go on, because the software that computes it has changed since it began ({how}): "
            "use the version that began it, or start a new job."
        )
