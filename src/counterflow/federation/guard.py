"""The guard of a plant: nothing leaves it and nothing enters it unchecked, and all that leaves is written down.

Every outgoing message is checked as bytes, against the protocol, against what the plant knows of itself, against its
policy and what it costs, in that order, and approved. Then its session writes it to the disk, and only then does it
leave: its cost is reserved in the ledger by the digest of these bytes, that they leave is audited, the charge is final.
After a crash between any two of these steps the same bytes are found on the disk, and the steps that are missing are
taken; none is taken twice. What nobody has to write down before, as a question or the answer to a trial, is approved
and leaves in one step.

Which rows a release is of, and what they have cost before, the plant knows of itself; what a job says of them does not
count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

from counterflow.errors import CounterflowError, PrivacyError, ProtocolError
from counterflow.exchange.method import Charge
from counterflow.exchange.privacy import unit_ledger
from counterflow.exchange.registry import method_of
from counterflow.exchange.task import UnitData
from counterflow.federation.audit import Audit
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.job_gate import check_job
from counterflow.federation.messages import ASKING, check_reaction, check_shapes, sent_by_server, sent_by_units
from counterflow.federation.policy import Policy
from counterflow.federation.reconciliation import reconcile
from counterflow.plant import LocalModel
from counterflow.privacy import Ledger, RowRange
from counterflow.privacy.ledger import RELEASED
from counterflow.protocol import Message, Reaction, Trial, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT

MOST_REFUSALS = 1000  # that are written down for one job: a hostile coordinator must not fill the disk
COORDINATOR = "coordinator"
DAY = timedelta(days=1)


class Answered(NamedTuple):
    """What an answer to a trial was made of: the trial, and the inputs that controllers move."""

    trial: bytes
    moves: Sequence[int]


class Guard:
    """Stands between a plant and the federation, for one job.

    Parameters
    ----------
    job : as the coordinator has sent it.
    own : what this plant brings to it.
    policy : what it lets out.
    audit : where all that leaves is written down.

    Raises
    ------
    PrivacyError, ProtocolError
        The job is not one that this plant takes part in. The refusal is audited.
    """

    def __init__(self, job: Job, own: UnitData, policy: Policy, audit: Audit) -> None:
        self.job, self.own, self.policy, self.audit = job, own, policy, audit
        self.unit, self._refusals = own.unit.name, 0
        try:
            check_job(job, own, policy)
        except CounterflowError as error:
            self.refuse("job", job.to_text().encode(), error)
        self._method = None if job.method == QUESTIONS else method_of(job)
        privacy = None if job.privacy is None else replace(job.privacy, start=None)
        self._claimed = replace(job, privacy=privacy)  # without what it says of rows
        self._rows = RowRange.timed(own.y, own.begins, own.dt)
        self._sent = sent_by_units(job)
        if policy.kinds is not None:
            self._sent &= policy.kinds
        if not policy.answers:
            self._sent -= ASKING
        if not policy.react:
            self._sent -= {"Reaction"}

    def closed(self) -> Guard:
        """The same with a policy that lets out no question and no answer, for one that cannot be read any more."""
        return Guard(self.job, self.own, replace(self.policy, ask={}, answers=False, react=False), self.audit)

    # ---- messages

    def incoming(self, data: bytes) -> Message:
        """The message of the coordinator, if it is one that a server may send to this plant in this job.

        A trial comes in only while this plant's controllers answer, and so often; the same one again tells nothing new.
        """
        digest = _digest(data)
        try:
            message = self._decoded(data, SIZE_LIMIT)
            if type(message).__name__ not in sent_by_server(self.job):
                raise ProtocolError(
                    f"unit {self.unit!r}: a server does not send {type(message).__name__} in {self.job.label} "
                    f"(method {self.job.method!r}); end the job, and ask the coordinator what that was"
                )
            check_shapes(message, self.job, self.own)
            if isinstance(message, Trial):
                self._require_trials_left(answered=self.audit.has_answered(digest, self.job.id))
        except CounterflowError as error:
            self.refuse("incoming", data, error)
        return message

    def outgoing(self, data: bytes, release: object | None = None) -> bytes:
        """These bytes, approved, and audited as such; nothing is charged yet. Otherwise an error.

        ``release``: how a private message was made. The very same bytes are approved once.
        """
        if not self.approved(data):
            message = self._checked(data, release)
            self._write("approved", data, kind=type(message).__name__)
        return data

    def leave(self, data: bytes) -> bytes:
        """These bytes, which were approved and are on the disk, for the engine to carry; charged and audited once."""
        if not self.approved(data):
            raise ProtocolError(f"unit {self.unit!r}: bytes that were not approved cannot leave under {self.job.label}")
        return data if self.has_left(data) else self._let_out(data, decode(data))

    def send(self, data: bytes, release: object | None = None) -> bytes:
        """The same in one step, of bytes that need not be on the disk. ``release``: of an answer to a trial, what it
        was made of (``Answered``).
        """
        return data if self.has_left(data) else self._let_out(data, self._checked(data, release))

    def _let_out(self, data: bytes, message: Message) -> bytes:
        """The one place where something leaves: it is counted, charged and audited, once."""
        about = {"trial": message.trial} if isinstance(message, Reaction) else {}
        try:
            with self._paying(message, _digest(data)) as paid, self.audit.turn():
                if not self.has_left(data):
                    if isinstance(message, Reaction):
                        self._require_trials_left()
                    self._write("left", data, kind=type(message).__name__, **about, **paid)
        except PrivacyError as error:
            self.refuse("outgoing", data, error)
        return data

    def approved(self, data: bytes) -> bool:
        """Whether these very bytes have been approved under this job."""
        return self.audit.approved(self.job.id, _digest(data)) is not None

    def has_left(self, data: bytes) -> bool:
        """Whether these very bytes have been let out under this job."""
        return self.audit.has_left(_digest(data), self.job.id)

    def refuse(self, direction: str, data: bytes, error: CounterflowError) -> NoReturn:
        """Write down that a message was refused, and raise why."""
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            last = " (no further refusals of this job are written down)" if self._refusals == MOST_REFUSALS else ""
            self.audit.write(
                "refused", job=self.job.id, unit=self.unit, direction=direction, bytes=len(data),
                sha256=_digest(data), reason=f"{error}"[:2000] + last,
            )  # fmt: skip
        raise error

    def _write(self, event: str, data: bytes, **fields: object) -> None:
        about = {"job": self.job.id, "unit": self.unit, "bytes": len(data), "sha256": _digest(data)}
        self.audit.write(event, **about, to=COORDINATOR, **fields)

    # ---- checks

    def _decoded(self, data: bytes, limit: int) -> Message:
        message = decode(data, limit)
        if encode(message) != data:  # there must be no other way to write it, in which something could hide
            raise ProtocolError(
                f"unit {self.unit!r}: {type(message).__name__} is not written as this version writes it; upgrade the "
                "older side"
            )
        return message

    def _checked(self, data: bytes, release: object | None) -> Message:
        """An outgoing message that agrees with protocol, plant, policy and budget; refused otherwise."""
        try:
            message = self._decoded(data, self.policy.largest_bytes)
            if type(message).__name__ not in self._sent:
                raise ProtocolError(
                    f"unit {self.unit!r}: {type(message).__name__} may not leave under {self.job.label} (method "
                    f"{self.job.method!r}): by method and policy, {', '.join(sorted(self._sent)) or 'nothing'} may "
                    "(leave.kinds)",
                    code="leave.kinds",
                )
            check_shapes(message, self.job, self.own)
            if isinstance(message, Reaction):
                if not isinstance(release, Answered) or message.trial != _digest(release.trial):
                    raise ProtocolError(f"unit {self.unit!r}: this is no answer to the trial that came")
                trial = decode(release.trial)
                assert isinstance(trial, Trial)
                check_reaction(message, trial, release.moves, self.own)
            if self._method is not None and self.job.privacy is not None:
                self._method.check_noise(self.job, len(self.own.y), message, release)
            self._require_budget(message)
        except CounterflowError as error:
            self.refuse("outgoing", data, error)
        return message

    # ---- what it costs

    def _require_trials_left(self, answered: bool = False) -> None:
        """Refuse a trial if the policy lets no controller answer, or, if it is not ``answered``, no more within a day.

        What answers to trials give away is bounded here and nowhere else. In one turn of the audit log with the record
        that an answer leaves, none is missed.
        """
        most = self.policy.trials_per_day
        if not self.policy.react:
            raise PrivacyError(
                f"unit {self.unit!r}: the policy does not let its controllers answer (controllers.react)",
                code="controllers.react",
            )
        if not answered and self.audit.left_since("Reaction", DAY) >= most:
            raise PrivacyError(
                f"unit {self.unit!r}: its controllers have answered {most} trials within a day, which is as many as "
                "the policy allows (controllers.trials_per_day)",
                code="controllers.trials_per_day",
            )

    def _require_budget(self, message: Message) -> None:
        """Refuse what the budget cannot pay for; before the first message, see that it can pay for all of them."""
        if self._method is None or self.job.privacy is None:
            return
        if getattr(message, "round", 0):
            charge = self._charge(message)
            charges = [] if charge is None else [charge]
        else:
            charges = self._method.charges(self._claimed, self._model, len(self.own.y))
        if charges:
            with self._ledger() as ledger:
                ledger.require([each.cost for each in charges], f"job {self.job.id}", self._rows)

    @contextmanager
    def _paying(self, message: Message, digest: str) -> Iterator[dict[str, Any]]:
        """Charge these bytes once; inside, what is to be written down of it. The charge is final when that stands.

        After a crash in between the charge is found open, and settled by what the audit log says (``reconciliation``).
        """
        charge = self._charge(message)
        if charge is None or self._method is None or self.job.privacy is None:  # it holds nothing that is private
            yield {}
            return
        label = f"job {self.job.id}"
        with self._ledger() as ledger:
            entry = ledger.spend(
                charge.cost, charge.what, fit=label, mechanism=self._method.mechanism,
                source=str(self.job.privacy.source), rows=self._rows, release=digest,
            )  # fmt: skip
            yield {"ledger_entry": entry.id, "mark": list(ledger.mark)}
            ledger.settle(digest, RELEASED, f"left under {label}")

    def _charge(self, message: Message) -> Charge | None:
        """What a message costs, whatever the job says of rows; None if it holds nothing that is to be private."""
        if self._method is None or self.job.privacy is None:
            return None
        return self._method.charge(self._claimed, self._model, len(self.own.y), message)

    @property
    def _model(self) -> LocalModel | None:
        if self.own.model is None and not self.job.from_logs:
            raise PrivacyError(f"unit {self.unit!r}: without its model, what it releases cannot be accounted for")
        return self.own.model

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        assert self.job.privacy is not None
        with unit_ledger(replace(self.job.privacy, ledger=self.policy.ledger), self.unit) as ledger:
            reconcile(self.audit, ledger)
            yield ledger


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
