"""One job at one plant, on the disk: it can be killed at any moment and goes on where it was.

A turn is one message of the coordinator and the replies to it. It stands in the store, whole, before the guard charges
the replies and lets them out. So after a kill, or with a disk that is full,

- the turn is in the store: the very same bytes are handed out again, nothing is drawn anew, each is charged once;
- it is not: no byte of it has left or was charged. The message comes again, and the replies are made anew.

A log that has grown long begins anew with a snapshot of the state (``checkpoint``) and the last turns; a session
that is finished consists of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from counterflow.errors import CounterflowError, OptionError, ProtocolError, StorageError
from counterflow.exchange.method import UnitState, unit_step
from counterflow.exchange.registry import method_of
from counterflow.exchange.task import UnitData
from counterflow.federation import checkpoint
from counterflow.federation.guard import Guard
from counterflow.federation.refusal import Numbered
from counterflow.federation.turns import LOG, Outgoing, Session, require_turn
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Message, StateGradients, encode
from counterflow.sealed_log import Entry, Row
from counterflow.threads import one_blas_thread


class _Turn(NamedTuple):
    """SHA-256 of what came, number of the first reply to it, and the replies."""

    digest: str
    first: int
    replies: list[bytes]


class PlantSession(Session[UnitState]):
    """The job of a guard at its plant, for the first time as after a crash.

    Parameters
    ----------
    folder : this job's and this unit's alone.
    guard : of this unit and job.
    own : what the unit brings. After a crash it must be the same log and model: that is checked.
    keep : takes the finished session, to keep what was learned.

    Raises
    ------
    StorageError
        The folder is in use, damaged, or that of another job; or log, model or audit are not what they were.
    """

    def __init__(
        self, folder: str | Path, guard: Guard, own: UnitData, keep: Callable[[PlantSession], None] | None = None
    ) -> None:
        self.guard, self.unit, self._keep = guard, guard.unit, keep
        self.whose = f"unit {self.unit!r}, {guard.job.label}"
        if own.unit.name != self.unit:
            raise OptionError(f"{self.whose}: the log is that of unit {own.unit.name!r}")
        with one_blas_thread():
            state = method_of(guard.job).unit(guard.job, own)
        super().__init__(folder, guard.job, state)
        self._turns: dict[int, _Turn] = {}  # the last ones, by the number of the message that came
        self.due = self._sent = 0  # messages of the coordinator that were taken in for good, and replies
        self.losses: dict[int, float] = {}  # its own by round, of a published training; they stay at the unit
        own_data = checkpoint.fingerprint(state)
        self._opening = Entry("opening", {"unit": self.unit, "job": self.job.to_text(), "own": own_data})
        self._replay(self._opening)

    # ---- the conversation

    def receive(self, sequence: int, data: bytes) -> list[Outgoing]:
        """Take in the coordinator's message number ``sequence``; the replies, approved and kept.

        The same message again gives the same replies, byte for byte; another one in its place, and one that comes
        before its turn, are refused.
        """
        with self._lock:
            try:
                is_due = require_turn(sequence, self.due, self.whose)
                if not is_due:
                    return self._handed_out(self._known(sequence, data))
            except ProtocolError as error:
                self.guard.refuse("incoming", data, error)
            message = self.guard.incoming(data)
            try:
                state, replies = self._step(unit_step, message)
            except ProtocolError as error:
                self.guard.refuse("incoming", data, error)
            approved = [self.guard.outgoing(encode(reply), state.release) for reply in replies]
            # how a private message was made: found with noise, it cannot be computed again
            release = asdict(state.release) if isinstance(state.release, AddedNoise) else None
            digests = [hashlib.sha256(piece).digest() for piece in (data, *approved)]
            turn = Entry("turn", {"sequence": sequence, "release": release}, [data, *approved], digests)
            self._store.append(LOG, turn)
            self._take(state, message, digests[0].hex(), approved)
            self._begin_anew_if_due(self._opening, self._snapshot_entry)
            return self._handed_out(self._turns[sequence])

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

    # ---- inside

    def _known(self, sequence: int, data: bytes) -> _Turn:
        """The turn that a message was taken in with before."""
        turn = self._turns.get(sequence)
        if turn is None:
            raise ProtocolError(
                f"{self.whose}: message {sequence} was answered long ago, message {self.due} is due; the coordinator "
                "has lost what it had: start a new job"
            )
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != turn.digest:
            raise ProtocolError(
                f"{self.whose}: message {sequence} came before with other content; end the job, and ask the "
                "coordinator what that was"
            )
        return turn

    def _handed_out(self, turn: _Turn) -> list[Outgoing]:
        """Replies that stand in the store, paid for and let out by the guard."""
        return [Outgoing(self.unit, turn.first + k, self.guard.leave(data)) for k, data in enumerate(turn.replies)]

    def _take(self, state: UnitState, message: Message, digest: str, approved: list[bytes]) -> None:
        self.state = state
        self._turns[self.due] = _Turn(digest, self._sent, approved)
        self._turns.pop(self.due - checkpoint.KEPT, None)
        self.due += 1
        self._sent += len(approved)
        if isinstance(message, StateGradients) and state.loss is not None:
            self.losses[message.round] = state.loss

    def _snapshot_entry(self) -> Entry:
        losses = np.array(list(self.losses.items()), np.float64).reshape(-1, 2)
        state, pieces = checkpoint.snapshot(self.state, losses)
        turns = [[number, turn.digest, turn.first, len(turn.replies)] for number, turn in self._turns.items()]
        replies = [reply for turn in self._turns.values() for reply in turn.replies]
        table = {"due": self.due, "sent": self._sent, "turns": turns, "state": state}
        return Entry("snapshot", table, [*replies, *pieces])

    # ---- after a crash

    def _begun(self, opening: Row) -> None:
        if changed := checkpoint.difference(opening.table["own"], self._opening.table["own"]):
            self._changed(changed)

    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        for number, digest, first, count in table["turns"]:
            replies, pieces = pieces[:count], pieces[count:]
            self._require_audited(replies)
            self._turns[int(number)] = _Turn(str(digest), int(first), replies)
        self.due, self._sent = int(table["due"]), int(table["sent"])
        self.state, losses = checkpoint.restored(self.state, table["state"], pieces, self._store.name)
        self.losses = {int(number): float(loss) for number, loss in losses}

    def _take_up(self, row: Row) -> None:
        data, *approved = row.pieces
        if row.kind != "turn" or row.table["sequence"] != self.due:
            raise ValueError(row.kind)
        try:
            message = self.guard.incoming(data)
            state, replies = self._step(unit_step, message)
        except CounterflowError as error:
            self._changed(error)
        if len(replies) != len(approved):
            self._changed(f"{len(replies)} replies instead of {len(approved)}")
        self._require_audited(approved)
        if isinstance(state.release, AddedNoise):  # of the bytes that are kept, not of those that were made again
            state = cast(UnitState, replace(cast(Any, state), release=AddedNoise(**row.table["release"])))
        self._take(state, message, hashlib.sha256(data).hexdigest(), approved)

    def _require_audited(self, replies: list[bytes]) -> None:
        if not all(self.guard.approved(reply) for reply in replies):
            raise StorageError(
                f"{self._store.name} holds a message that has left the plant, and the audit log does not know of it: "
                "restore the audit log from a backup that has every record."
            )
