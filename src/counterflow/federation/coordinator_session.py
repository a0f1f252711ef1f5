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

from counterflow.errors import CounterflowError, DataError, ProtocolError
from counterflow.exchange.method import ServerState, server_step
from counterflow.exchange.outcome import RoundRecord
from counterflow.exchange.registry import method_of
from counterflow.federation import checkpoint
from counterflow.federation.job import Job
from counterflow.federation.parts import CoordinatorResult
from counterflow.federation.policy import spoken
from counterflow.federation.turns import LOG, Outgoing, Session, require_turn
from counterflow.fits.engine import Traffic
from counterflow.protocol import encode
from counterflow.protocol.codec import SIZE_LIMIT
from counterflow.sealed_log import Entry, Row


class CoordinatorSession(Session[ServerState]):
    """The job of a folder, which is this job's alone, for the first time as after a crash.

    An engine delivers what ``outgoing`` holds, hands every reply to ``receive``, and then says with ``acknowledge``
    which messages the plant has taken in. Everything may be repeated at any time.

    Raises
    ------
    StorageError
        The folder is in use, damaged, or that of another job.
    """

    def __init__(self, folder: str | Path, job: Job, *, largest_bytes: int = SIZE_LIMIT) -> None:
        self.whose = f"server: {job.label}"
        super().__init__(folder, job, method_of(job).server(job))
        self._largest = largest_bytes
        self._received = dict.fromkeys(job.units, 0)
        self._digests: dict[str, dict[int, str]] = {unit: {} for unit in job.units}  # SHA-256 of the last messages
        self._pending: dict[str, list[Outgoing]] = {unit: [] for unit in job.units}
        self._sent = dict.fromkeys(job.units, 0)
        self._records: list[RoundRecord] = []
        self._acknowledged: dict[str, int] = {}  # what is not on the disk yet
        self.taken = self._told = 0  # bytes of all messages, over all runs: they grow with every step forward only
        self.failure: str | None = None  # why the job has failed
        self.state, begun = self.state.begin()
        opening = {"unit": "", "job": job.to_text(), "to": [message.unit for message in begun]}
        self._replay(Entry("opening", opening, [encode(message) for message in begun]))

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
            place = self._place(unit)
            if not isinstance(data, bytes):
                raise ProtocolError(f"{place}: a message is bytes, got {type(data).__name__}")
            digest = hashlib.sha256(data).digest()
            if not require_turn(sequence, self._received[unit], place):
                if self._digests[unit].get(sequence) != digest.hex():
                    raise ProtocolError(
                        f"{place}: message {sequence} came before, long ago or with other content; it is not taken"
                    )
                return
            if self.failure is not None:
                raise ProtocolError(f"{place}: the job has failed: {self.failure}")
            try:
                state, replies = self._step(server_step, spoken(unit, data, self.job, self._largest))
            except ProtocolError:
                raise
            except CounterflowError as error:
                self.failure = str(error)[:2000]
                self._store.append(LOG, Entry("failed", {"reason": self.failure}))
                raise
            pieces = [data, *(encode(reply) for reply in replies)]
            digests = [digest, *(hashlib.sha256(piece).digest() for piece in pieces[1:])]
            table = {"unit": unit, "to": [reply.unit for reply in replies], "acknowledged": self._acknowledged}
            self._store.append(LOG, Entry("turn", table, pieces, digests))
            self._acknowledged = {}
            self._take(state, unit, digest.hex(), len(data), zip(table["to"], pieces[1:], strict=True))
            self._begin_anew_if_due(
                Entry("opening", {"unit": "", "job": self.job.to_text(), "to": []}), self._snapshot_entry
            )

    def acknowledge(self, unit: str, sequence: int) -> None:
        """``unit`` has taken in all messages up to number ``sequence``, and its replies to them have been received.

        That goes to the disk with the next message, or at once when none is due any more: after a crash before that,
        a message is delivered once more, which changes nothing.
        """
        with self._lock:
            place = self._place(unit)
            if sequence >= self._sent[unit]:
                raise ProtocolError(f"{place}: message {sequence} is acknowledged, which was never sent")
            if any(message.sequence <= sequence for message in self._pending[unit]):
                self._acknowledged[unit] = sequence
                self._drop(self._acknowledged)
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
        return CoordinatorResult(self.job, self.state, tuple(self._records), traffic)

    # ---- inside

    def _place(self, unit: object) -> str:
        if not isinstance(unit, str) or unit not in self._received:
            raise ProtocolError(f"server: no unit {unit!r:.100} takes part in {self.job.label}")
        return f"{self.whose}, unit {unit!r}"

    def _take(
        self, state: ServerState, unit: str, digest: str, size: int, replies: Iterable[tuple[str, bytes]]
    ) -> None:
        self.state = state
        number = self._received[unit]
        self._digests[unit][number] = digest
        self._digests[unit].pop(number - 2 * checkpoint.KEPT, None)
        self._received[unit] += 1
        self.taken += size
        self._tell(replies)
        record = state.record
        if record is not None and (not self._records or record.round > self._records[-1].round):
            self._records.append(record)

    def _tell(self, replies: Iterable[tuple[str, bytes]]) -> None:
        for unit, data in replies:
            self._pending[unit].append(Outgoing(unit, self._sent[unit], data))
            self._sent[unit] += 1
            self._told += len(data)

    def _drop(self, acknowledged: dict[str, int]) -> None:
        for unit, sequence in acknowledged.items():
            self._pending[unit] = [message for message in self._pending[unit] if message.sequence > sequence]

    def _snapshot_entry(self) -> Entry:
        records, pending = self._records, self.outgoing()
        numbers = [[r.server_loss, r.residual_loss, r.disentanglement, r.gradient, *r.delta_d] for r in records]
        state, pieces = checkpoint.snapshot(self.state, np.array(numbers, np.float64))
        table = {
            "received": self._received,
            "digests": {unit: list(known.items()) for unit, known in self._digests.items()},
            "sent": self._sent,
            "pending": [[message.unit, message.sequence] for message in pending],
            "bytes": [self.taken, self._told],
            "rounds": [[record.round, record.phase] for record in records],
            "state": state,
        }
        return Entry("snapshot", table, [*(message.data for message in pending), *pieces])

    # ---- after a crash

    def _begun(self, opening: Row) -> None:
        self._tell(zip(opening.table["to"], opening.pieces, strict=True))

    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        units, count = self.job.units, len(table["pending"])
        self._pending = {unit: [] for unit in units}
        for (unit, sequence), data in zip(table["pending"], pieces[:count], strict=True):
            self._pending[unit].append(Outgoing(unit, int(sequence), data))
        self._received = {unit: int(table["received"][unit]) for unit in units}
        self._sent = {unit: int(table["sent"][unit]) for unit in units}
        self._digests = {unit: {int(n): str(d) for n, d in table["digests"][unit]} for unit in units}
        self.taken, self._told = map(int, table["bytes"])
        beginning = method_of(self.job).server(self.job)
        self.state, numbers = checkpoint.restored(beginning, table["state"], pieces[count:], self._store.name)
        self._records = [
            RoundRecord(int(number), str(phase), row[0], row[1], row[2], tuple(row[4:]), row[3])
            for (number, phase), row in zip(table["rounds"], numbers.tolist(), strict=True)
        ]

    def _take_up(self, row: Row) -> None:
        if row.kind == "failed":
            self.failure = row.table["reason"]
            return
        self._drop(row.table["acknowledged"])
        if row.kind != "turn":
            return
        unit, to, (data, *replies) = row.table["unit"], row.table["to"], row.pieces
        try:
            state, again = self._step(server_step, spoken(unit, data, self.job, self._largest))
        except CounterflowError as error:
            self._changed(error)
        if [reply.unit for reply in again] != to:
            self._changed("other replies")
        # as they were handed out: noise in them is not drawn again
        self._take(state, unit, hashlib.sha256(data).hexdigest(), len(data), zip(to, replies, strict=True))
