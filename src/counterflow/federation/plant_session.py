"""One job at one plant, on the disk: it can be killed at any moment and goes on where it was.

A turn is one message of the coordinator and the replies to it. It stands in the journal, whole, before a reply is
handed out; the guard has charged and audited the replies before that. So after a kill

- the turn is in the journal: the very same bytes are handed out again, nothing is drawn or charged anew;
- it is not: no byte of it has left. The message comes again, and what is private is made, charged and audited anew.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterflow import client
from counterflow.errors import CounterflowError, DataError, OptionError, ProtocolError, StorageError
from counterflow.federation.guard import Guard, Release
from counterflow.federation.job import Job
from counterflow.federation.journal import Journal
from counterflow.federation.turns import (
    OPENING,
    TURN,
    Outgoing,
    checked_sequence,
    first_difference,
    pack,
    unpack,
)
from counterflow.protocol import Message, StateGradients, encode
from counterflow.runtime.threads import one_blas_thread

JOURNAL = "plant.journal"


class PlantSession:
    """One job at one plant; made by ``open``, for the first time as after a crash."""

    def __init__(self, journal: Journal, unit: str, job: Job, state: client.State, guard: Guard) -> None:
        """Not for users: see ``open``."""
        self._journal, self._guard = journal, guard
        self.unit, self.job = unit, job
        self._state = state
        self._turns: list[tuple[str, int]] = []  # SHA-256 of what came, and where the turn stands in the journal
        self._sent = 0
        self._losses: dict[int, float] = {}
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        folder: str | Path,
        unit: str,
        job: Job,
        client_state_factory: Callable[[], client.State],
        guard: Guard,
    ) -> PlantSession:
        """Open the job in ``folder``, which is this job's and this unit's alone, and go on where it was.

        Parameters
        ----------
        client_state_factory : makes the unit's state machine at its beginning, such as ``lambda: unit_machine(job,
            own)``. After a crash it must be made of the same log and model: that is checked.
        guard : of this unit and job.

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
        journal = Journal(Path(folder) / JOURNAL)
        try:
            session = cls(journal, unit, job, state, guard)
            with one_blas_thread(), np.errstate(all="ignore"):
                session._replay()
        except BaseException:
            journal.close()
            raise
        return session

    # ---- the conversation

    def receive(self, sequence: int, data: bytes) -> list[Outgoing]:
        """Take in the coordinator's message number ``sequence``; the replies, approved and kept.

        The same message again gives the same replies, byte for byte; another one in its place, and one that comes
        before its turn, are refused.
        """
        with self._lock:
            due, place = len(self._turns), f"unit {self.unit!r}, {self.job.label}"
            if checked_sequence(sequence, place) < due:
                return self._again(sequence, data)
            if sequence > due:
                self._guard.refuse(
                    "incoming", data, ProtocolError(f"{place}: got message {sequence}, message {due} is due")
                )
            message = self._guard.incoming(data)
            try:
                # gradients beyond all measure end in numbers that no message may hold
                with one_blas_thread(), np.errstate(all="ignore"):
                    state, replies = client.step(self._state, message)
            except ProtocolError as error:
                self._guard.refuse("incoming", data, error)
            except np.linalg.LinAlgError as error:
                raise DataError(
                    f"{place}: the numbers are beyond double precision ({error}); look for absurd values in its log, "
                    "and in what the coordinator sent"
                ) from error
            release = _release(state)
            approved = [self._guard.outgoing(encode(reply), release) for reply in replies]
            table: dict[str, Any] = {"sequence": sequence, "first": self._sent, "release": _kept(state)}
            position = self._journal.append(TURN, pack(table, [data, *approved]))
            self._take(state, message, data, position, len(approved))
            return self._numbered(table["first"], approved)

    def replies(self, sequence: int) -> list[Outgoing]:
        """What was replied to message number ``sequence``."""
        with self._lock:
            if not 0 <= sequence < len(self._turns):
                raise ProtocolError(f"unit {self.unit!r}, {self.job.label}: message {sequence} has not been answered")
            table, (_, *approved) = self._turn(self._turns[sequence][1])
            return self._numbered(table["first"], approved)

    def _again(self, sequence: int, data: bytes) -> list[Outgoing]:
        if not isinstance(data, bytes) or hashlib.sha256(data).hexdigest() != self._turns[sequence][0]:
            self._guard.refuse(
                "incoming",
                data,
                ProtocolError(
                    f"unit {self.unit!r}, {self.job.label}: message {sequence} came before with other content; end the "
                    "job, and ask the coordinator what that was"
                ),
            )
        return self.replies(sequence)

    # ---- where it stands

    @property
    def due(self) -> int:
        """Number of the coordinator's message that comes next: so many have been taken in for good."""
        return len(self._turns)

    @property
    def finished(self) -> bool:
        """Whether the coordinator has said that the job is over."""
        return self._state.finished

    @property
    def state(self) -> client.State:
        """The unit's state machine where it stands, for ``learned_part`` once it is finished."""
        return self._state

    @property
    def losses(self) -> dict[int, float]:
        """The unit's own loss by round, of a published training; it stays at the unit."""
        return dict(self._losses)

    def close(self) -> None:
        """Let go of the folder. Nothing is lost without it."""
        self._journal.close()

    def __enter__(self) -> PlantSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- inside

    def _take(self, state: client.State, message: Message, data: bytes, position: int, replies: int) -> None:
        self._state = state
        self._turns.append((hashlib.sha256(data).hexdigest(), position))
        self._sent += replies
        if isinstance(message, StateGradients) and state.loss is not None:
            self._losses[message.round] = state.loss

    def _numbered(self, first: int, approved: list[bytes]) -> list[Outgoing]:
        return [Outgoing(self.unit, first + k, data) for k, data in enumerate(approved)]

    def _turn(self, position: int) -> tuple[dict[str, Any], list[bytes]]:
        return unpack(self._journal.read(position).payload, self._named)

    @property
    def _named(self) -> str:
        return f"the journal {str(self._journal.path)!r}"

    def _replay(self) -> None:
        records = self._journal.records()
        opening = next(records, None)
        own = {"unit": self.unit, "job": self.job.to_text()}
        if opening is None:
            self._journal.append(OPENING, pack(own))
            return
        if opening.kind != OPENING or unpack(opening.payload, self._named)[0] != own:
            raise StorageError(f"{self._named} is not of unit {self.unit!r} and {self.job.label}: give its own folder.")
        for record in records:
            table, pieces = unpack(record.payload, self._named)
            if record.kind != TURN or table.get("sequence") != len(self._turns) or not pieces:
                raise StorageError(f"{self._named} holds a record that no session has written: start the job again.")
            data, *approved = pieces
            try:
                message = self._guard.incoming(data)
                state, replies = client.step(self._state, message)
            except CounterflowError as error:
                raise self._changed(str(error)) from error
            if _repeatable(self.job):
                difference = first_difference(replies, approved)
                if difference:
                    raise self._changed(difference)
            for reply in approved:
                if not self._guard.approved(reply):
                    raise StorageError(
                        f"{self._named} holds a message that has left the plant, and the audit log does not know of "
                        "it: restore the audit log from a backup that has every record."
                    )
            self._take(_restored(state, table["release"]), message, data, record.position, len(approved))

    def _changed(self, how: str) -> StorageError:
        return StorageError(
            f"unit {self.unit!r}: {self.job.label} cannot go on, because what it is computed from has changed since it "
            f"began ({how}): restore log, model and software as they were, or start a new job."
        )


def _release(state: client.State) -> Release | None:
    return None if isinstance(state, client.LogClient) else state.release


def _kept(state: client.State) -> dict[str, Any] | None:
    """How a private message was made, where that was found with noise and so cannot be computed again."""
    release = _release(state)
    return asdict(release) if isinstance(release, client.PrivateRelease) else None


def _restored(state: client.State, kept: dict[str, Any] | None) -> client.State:
    if kept is None or not isinstance(state, client.SufficientClient):
        return state
    return replace(state, release=client.PrivateRelease(**kept))


def _repeatable(job: Job) -> bool:
    """Whether the same messages give the same replies: noise of the operating system does not."""
    return job.privacy is None or job.privacy.seed is not None
