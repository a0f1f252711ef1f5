"""One job at one plant: what the coordinator says is answered by the machine, and let out by the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from counterflow.errors import ProtocolError, StorageError
from counterflow.exchange.method import UnitState, unit_step
from counterflow.exchange.registry import method_of
from counterflow.federation.guard import Guard
from counterflow.federation.refusal import Numbered
from counterflow.federation.turns import Outgoing, Session, difference, fingerprint
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Message, StateGradients, encode
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

    def _begun(self, opening: Row) -> None:
        if changed := difference(opening.table["own"], self._opening.table["own"]):
            self._changed(changed)

    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        super()._restore(table, pieces)
        self._require_audited([each.data for each in self._said[self.unit]])

    def _require_audited(self, replies: Sequence[bytes]) -> None:
        if not all(self.guard.approved(reply) for reply in replies):
            raise StorageError(
                f"{self._store.name} holds a message that has left the plant, and the audit log does not know of it: "
                "restore the audit log from a backup that has every record."
            )
