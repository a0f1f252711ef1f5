"""The guard of a plant: nothing leaves it and nothing enters it unchecked, and all that leaves is written down.

Every outgoing message is checked as bytes, against the protocol, against what the plant knows of itself, against its
policy and what it costs (``charging``), in that order, and approved. Then its session writes it to the disk, and only
then does it leave: its cost is reserved in the ledger by the digest of these bytes, that they leave is audited, the
charge is final. After a crash between any two of these steps the same bytes are found on the disk, and the steps that
are missing are taken; none is taken twice. What nobody has to write down before, as a question or the answer to a
trial, is approved and leaves in one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, NoReturn

from counterflow.errors import CounterflowError, PrivacyError, ProtocolError
from counterflow.exchange.registry import method_of
from counterflow.federation.audit import Audit
from counterflow.federation.charging import Charging
from counterflow.federation.description import Description
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.job_gate import check_job
from counterflow.federation.policy import SENT_BY_SERVERS, SENT_BY_UNITS, Policy
from counterflow.protocol import Message, PerturbedStates, Reaction, Trial, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT

MOST_REFUSALS = 1000  # that are written down for one job: a hostile coordinator must not fill the disk
COORDINATOR = "coordinator"


class Answered(NamedTuple):
    """What an answer to a trial was made of: the trial, and the inputs that controllers move."""

    trial: bytes
    moves: Sequence[int]


class Guard:
    """Stands between a plant and the federation, for one job.

    Parameters
    ----------
    job : as the coordinator has sent it.
    description : what this plant knows of itself.
    policy : what it lets out.
    audit : where all that leaves is written down.

    Raises
    ------
    PrivacyError, ProtocolError
        The job is not one that this plant takes part in. The refusal is audited.
    """

    def __init__(self, job: Job, description: Description, policy: Policy, audit: Audit) -> None:
        self.job, self.description, self.policy, self.audit = job, description, policy, audit
        self._refusals = 0
        try:
            check_job(job, description, policy)
        except CounterflowError as error:
            self.refuse("job", job.to_text().encode(), error)
        self._charging = Charging(job, description, policy, audit)
        self._rounds = None if job.method == QUESTIONS else method_of(job).rounds(job)
        self._sent = SENT_BY_UNITS[job.method]
        if policy.kinds is not None:
            self._sent &= policy.kinds
        if not policy.answers:
            self._sent -= {"Openings", "Change", "Ask"}
        if not policy.react:
            self._sent -= {"Reaction"}

    def closed(self) -> Guard:
        """The same with a policy that lets out no question and no answer, for one that cannot be read any more."""
        strict = replace(self.policy, ask={}, answers=False, react=False)
        return Guard(self.job, self.description, strict, self.audit)

    @property
    def unit(self) -> str:
        return self.description.unit

    # ---- messages

    def incoming(self, data: bytes) -> Message:
        """The message of the coordinator, if it is one that a server may send to this plant in this job.

        A trial comes in only while this plant's controllers answer, and so often; the same one again tells nothing new.
        """
        digest = self._digest(data)
        try:
            message = self._decoded(data, SIZE_LIMIT)
            if type(message).__name__ not in SENT_BY_SERVERS[self.job.method]:
                raise ProtocolError(
                    f"unit {self.unit!r}: a server does not send {type(message).__name__} in {self.job.label} "
                    f"(method {self.job.method!r}); end the job, and ask the coordinator what that was"
                )
            self._check_shapes(message)
            if isinstance(message, Trial):
                self._check_trial(message, digest)
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
        if self.has_left(data):
            return data
        message = self._checked(data, release)
        return self._let_out(data, message)

    def _let_out(self, data: bytes, message: Message) -> bytes:
        """The one place where something leaves: it is counted, charged and audited, once."""
        digest = self._digest(data)
        about = {"trial": message.trial} if isinstance(message, Reaction) else {}
        try:
            with self._charging.paying(message, digest) as paid, self.audit.turn():
                if not self.has_left(data):
                    self._charging.count(message)
                    self._write("left", data, kind=type(message).__name__, **about, **paid)
        except PrivacyError as error:
            self.refuse("outgoing", data, error)
        return data

    def approved(self, data: bytes) -> bool:
        """Whether these very bytes have been approved under this job."""
        return self.audit.approved(self.job.id, self._digest(data)) is not None

    def has_left(self, data: bytes) -> bool:
        """Whether these very bytes have been let out under this job."""
        return self.audit.has_left(self._digest(data), self.job.id)

    def _write(self, event: str, data: bytes, **fields: object) -> None:
        about = {"job": self.job.id, "unit": self.unit, "bytes": len(data), "sha256": self._digest(data)}
        self.audit.write(event, **about, to=COORDINATOR, **fields)

    # ---- checks

    def _digest(self, data: bytes) -> str:
        if not isinstance(data, bytes):
            raise ProtocolError(f"unit {self.unit!r}: a message is bytes, got {type(data).__name__}")
        return hashlib.sha256(data).hexdigest()

    def _decoded(self, data: bytes, limit: int) -> Message:
        message = decode(data, limit)
        if encode(message) != data:  # there must be no other way to write it, in which something could hide
            raise ProtocolError(
                f"unit {self.unit!r}: {type(message).__name__} is not written as this version writes it; upgrade the "
                "older side"
            )
        return message

    def _check_shapes(self, message: Message) -> None:
        uses_inputs = self.job.method == QUESTIONS or method_of(self.job).uses_inputs(self.job)
        self.description.check(message, self._rounds, uses_inputs)

    def _check_trial(self, trial: Trial, digest: str) -> None:
        if not self.policy.react:
            raise PrivacyError(
                f"unit {self.unit!r}: the policy does not let its controllers answer (controllers.react)",
                code="controllers.react",
            )
        if not self.audit.has_answered(digest, self.job.id):
            self._charging.count(trial)

    def _checked(self, data: bytes, release: object | None) -> Message:
        """An outgoing message that agrees with protocol, description, policy and budget; refused otherwise."""
        try:
            message = self._decoded(data, self.policy.largest_bytes)
            self._check_kind(type(message).__name__)
            self._check_shapes(message)
            if isinstance(message, Reaction):
                self._check_answer(message, release)
            if self.job.privacy is not None:
                method_of(self.job).check_noise(self.job, self.description.rows, message, release)
            elif isinstance(message, PerturbedStates):
                raise ProtocolError(
                    f"unit {self.unit!r}: {type(message).__name__} belongs to a private job, {self.job.label} is none"
                )
            self._charging.require(message)
        except CounterflowError as error:
            self.refuse("outgoing", data, error)
        return message

    def _check_kind(self, kind: str) -> None:
        if kind not in self._sent:
            raise ProtocolError(
                f"unit {self.unit!r}: {kind} may not leave under {self.job.label} (method {self.job.method!r}): by "
                f"method and policy, {', '.join(sorted(self._sent)) or 'nothing'} may (leave.kinds)",
                code="leave.kinds",
            )
        if self.job.method != QUESTIONS and kind not in method_of(self.job).sends:
            raise ProtocolError(
                f"unit {self.unit!r}: {kind} does not go with a job whose units have "
                f"{'no models' if self.job.from_logs else 'models'}"
            )

    def _check_answer(self, said: Reaction, made: object | None) -> None:
        """It holds what controllers would move, within the channels' limits, and of all others what the trial says."""
        if not isinstance(made, Answered) or said.trial != self._digest(made.trial):
            raise ProtocolError(f"unit {self.unit!r}: this is no answer to the trial that came")
        asked = decode(made.trial)
        assert isinstance(asked, Trial)
        self.description.check_reaction(asked, said, made.moves)

    def refuse(self, direction: str, data: bytes, error: CounterflowError) -> NoReturn:
        """Write down that a message was refused, and raise why."""
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            last = " (no further refusals of this job are written down)" if self._refusals == MOST_REFUSALS else ""
            self.audit.write(
                "refused", job=self.job.id, unit=self.unit, direction=direction, bytes=len(data),
                sha256=self._digest(data), reason=f"{error}"[:2000] + last,
            )  # fmt: skip
        raise error
