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

from counterflow.errors import CounterflowError, DataError, OptionError, ProtocolError, StorageError
from counterflow.exchange.method import UnitState, unit_step
from counterflow.federation import checkpoint
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.refusal import Numbered
from counterflow.federation.turns import LOG, Outgoing, Session, blaming, checked_sequence, first_difference, strange
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Message, StateGradients, encode
from counterflow.sealed_log import Entry, SealedLogs
from counterflow.threads import one_blas_thread


class _Turn(NamedTuple):
    """SHA-256 of what came, number of the first reply to it, and the replies."""

    digest: str
    first: int
    replies: list[bytes]


class PlantSession(Session):
    """One job at one plant; made by ``open``, for the first time as after a crash."""

    def __init__(
        self, store: SealedLogs, unit: str, job: Job, state: UnitState, guard: Guard,
        keep: Callable[[PlantSession], None] | None,
    ) -> None:  # fmt: skip
        """Not for users: see ``open``."""
        super().__init__(store, job)
        self.guard, self.unit, self._state = guard, unit, state
        self._own, self._keep = checkpoint.fingerprint(state), keep
        self._turns: dict[int, _Turn] = {}  # the last ones, by the number of the message that came
        self._due = self._sent = 0
        self._losses: dict[int, float] = {}

    @classmethod
    def open(
        cls, folder: str | Path, unit: str, job: Job, client_state_factory: Callable[[], UnitState], guard: Guard,
        keep: Callable[[PlantSession], None] | None = None,
    ) -> PlantSession:  # fmt: skip
        """Open the job in ``folder``, which is this job's and this unit's alone, and go on where it was.

        Parameters
        ----------
        client_state_factory : makes the unit's state machine at its beginning, such as ``lambda: unit_machine(job,
            own)``. After a crash it must be made of the same log and model: that is checked.
        guard : of this unit and job.
        keep : takes the finished session, to keep what was learned.

        Raises
        ------
        StorageError
            The folder is in use, damaged, or that of another job; or log, model or audit are not what they were.
        """
        if guard.unit != unit or guard.job.to_text() != job.to_text():
            raise OptionError(f"unit {unit!r}: its guard is that of unit {guard.unit!r} and {guard.job.label}")
        with one_blas_thread():
            state = client_state_factory()
        if state.unit != unit:
            raise OptionError(f"unit {unit!r}: the state machine is that of unit {state.unit!r}")
        return cls(cls._store_in(folder), unit, job, state, guard, keep)._replayed()

    # ---- the conversation

    def receive(self, sequence: int, data: bytes) -> list[Outgoing]:
        """Take in the coordinator's message number ``sequence``; the replies, approved and kept.

        The same message again gives the same replies, byte for byte; another one in its place, and one that comes
        before its turn, are refused.
        """
        with self._lock:
            due, place = self._due, f"unit {self.unit!r}, {self.job.label}"
            if checked_sequence(sequence, place) < due:
                return self._again(sequence, data)
            if sequence > due:
                self.guard.refuse(
                    "incoming", data, ProtocolError(f"{place}: got message {sequence}, message {due} is due")
                )
            message = self.guard.incoming(data)
            try:
                # gradients beyond all measure end in numbers that no message may hold
                with one_blas_thread(), np.errstate(all="ignore"):
                    state, replies = unit_step(self._state, message)
            except ProtocolError as error:
                self.guard.refuse("incoming", data, error)
            except np.linalg.LinAlgError as error:
                raise DataError(
                    f"{place}: the numbers are beyond double precision ({error}); look for absurd values in its log, "
                    "and in what the coordinator sent"
                ) from error
            approved = [self.guard.outgoing(encode(reply), state.release) for reply in replies]
            table: dict[str, Any] = {"sequence": sequence, "first": self._sent, "release": _kept(state)}
            digests = [hashlib.sha256(piece).digest() for piece in (data, *approved)]
            self._store.append(LOG, Entry("turn", table, [data, *approved], digests))
            self._take(state, message, digests[0].hex(), approved)
            if state.finished or self._is_long():
                self._begin_anew()
            return self._handed_out(table["first"], approved)

    def _again(self, sequence: int, data: bytes) -> list[Outgoing]:
        place = f"unit {self.unit!r}, {self.job.label}"
        try:
            if sequence not in self._turns:
                raise ProtocolError(
                    f"{place}: message {sequence} was answered long ago, message {self._due} is due; the coordinator "
                    "has lost what it had: start a new job"
                )
            turn = self._turns[sequence]
            if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != turn.digest:
                raise ProtocolError(
                    f"{place}: message {sequence} came before with other content; end the job, and ask the coordinator "
                    "what that was"
                )
        except ProtocolError as error:
            self.guard.refuse("incoming", data, error)
        return self._handed_out(turn.first, turn.replies)

    def exchange(
        self, arrived: Numbered, patience: float = 0.0, over: Callable[[], bool] = lambda: False
    ) -> Numbered:
        """Take in what the coordinator says; what this plant says in return, at once.

        What was learned is kept before the coordinator hears that the job is over here.
        """
        with self._lock:
            replies = [reply for sequence, data in arrived for reply in self.receive(sequence, data)]
            if self.finished and self._keep is not None:
                self._keep(self)
                self._keep = None
            return [(reply.sequence, reply.data) for reply in replies]

    # ---- where it stands

    @property
    def due(self) -> int:
        """Number of the coordinator's message that comes next: so many have been taken in for good."""
        return self._due

    @property
    def finished(self) -> bool:
        """Whether the coordinator has said that the job is over."""
        return self._state.finished

    @property
    def state(self) -> UnitState:
        """The unit's state machine where it stands, for ``learned_part`` once it is finished."""
        return self._state

    @property
    def losses(self) -> dict[int, float]:
        """The unit's own loss by round, of a published training; it stays at the unit."""
        return dict(self._losses)

    # ---- inside

    def _take(self, state: UnitState, message: Message, digest: str, approved: list[bytes]) -> None:
        self._state = state
        self._turns[self._due] = _Turn(digest, self._sent, approved)
        self._turns.pop(self._due - checkpoint.KEPT, None)
        self._due += 1
        self._sent += len(approved)
        if isinstance(message, StateGradients) and state.loss is not None:
            self._losses[message.round] = state.loss

    def _begin_anew(self) -> None:
        """Put a snapshot in the place of all turns that stand in the store."""
        losses = np.array(list(self._losses.items()), np.float64).reshape(-1, 2)
        state, pieces = checkpoint.snapshot(self._state, losses)
        turns = [[number, turn.digest, turn.first, len(turn.replies)] for number, turn in self._turns.items()]
        replies = [reply for turn in self._turns.values() for reply in turn.replies]
        table = {"due": self._due, "sent": self._sent, "own": self._own, "turns": turns, "state": state}
        self._begin_with(Entry("opening", self._opening()), Entry("snapshot", table, [*replies, *pieces]))

    def _handed_out(self, first: int, approved: list[bytes]) -> list[Outgoing]:
        """Replies that stand in the store, paid for and let out by the guard."""
        return [Outgoing(self.unit, first + k, self.guard.leave(data)) for k, data in enumerate(approved)]

    def _opening(self) -> dict[str, Any]:
        return {"unit": self.unit, "job": self.job.to_text()}

    def _replay(self) -> None:
        rows = self._store.rows(LOG)
        opening = next(rows, None)
        if opening is None:
            self._store.append(LOG, Entry("opening", self._opening()))
            return
        if opening.kind != "opening" or opening.table != self._opening():
            raise StorageError(
                f"{self._store.name} is not of unit {self.unit!r} and {self.job.label}: give its own folder."
            )
        for row in rows:
            if row.kind == "snapshot" and self._due == 0:
                self._restore(row.table, list(row.pieces))
                self._snapshot = self._store.size(LOG)
                continue
            if row.kind != "turn" or row.table.get("sequence") != self._due or not row.pieces:
                raise strange(self._store.name)
            data, *approved = row.pieces
            try:
                message = self.guard.incoming(data)
                state, replies = unit_step(self._state, message)
            except CounterflowError as error:
                raise self._changed(str(error)) from error
            if _repeatable(self.job):
                difference = first_difference(replies, approved)
                if difference:
                    raise self._changed(difference)
            self._check_audited(approved)
            digest = hashlib.sha256(data).hexdigest()
            self._take(_restored(state, row.table["release"]), message, digest, approved)

    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        changed = checkpoint.difference(table.get("own"), self._own)
        if changed:
            raise self._changed(changed)
        with blaming(self._store.name):
            for number, digest, first, count in table["turns"]:
                replies, pieces = pieces[:count], pieces[count:]
                self._check_audited(replies)
                self._turns[int(number)] = _Turn(str(digest), int(first), replies)
            self._due, self._sent = int(table["due"]), int(table["sent"])
            self._state, losses = checkpoint.restored(self._state, table["state"], pieces, self._store.name)
            self._losses = {int(number): float(loss) for number, loss in losses}

    def _check_audited(self, replies: list[bytes]) -> None:
        if not all(self.guard.approved(reply) for reply in replies):
            raise StorageError(
                f"{self._store.name} holds a message that has left the plant, and the audit log does not know of it: "
                "restore the audit log from a backup that has every record."
            )

    def _changed(self, how: str) -> StorageError:
        return StorageError(
            f"unit {self.unit!r}: {self.job.label} cannot go on, because what it is computed from has changed since it "
            f"began ({how}): restore log, model and software as they were, or start a new job."
        )


def _kept(state: UnitState) -> dict[str, Any] | None:
    """How a private message was made, where that was found with noise and so cannot be computed again."""
    return asdict(state.release) if isinstance(state.release, AddedNoise) else None


def _restored(state: UnitState, kept: dict[str, Any] | None) -> UnitState:
    if kept is None or not isinstance(state.release, AddedNoise):
        return state
    return cast(UnitState, replace(cast(Any, state), release=AddedNoise(**kept)))


def _repeatable(job: Job) -> bool:
    """Whether the same messages give the same replies: noise of the operating system does not."""
    return job.privacy is None or job.privacy.seed is not None
