"""The guard of a plant: nothing leaves it and nothing enters it unchecked, and all that leaves is written down.

Every outgoing message is checked as bytes, against the protocol, against what the plant knows of itself, against its
policy and its durable budget, in that order, and approved. Then its session writes it to the disk, and only then does
it leave: its cost is reserved in the ledger by the digest of these bytes, that they leave is audited, the charge is
final. After a crash between any two of these steps the same bytes are found on the disk, and the steps that are missing
are taken; none is taken twice. Which rows a release is of, and what they have cost before, the plant knows of itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from counterflow.errors import CounterflowError, PrivacyError, ProtocolError
from counterflow.exchange.method import Charge
from counterflow.exchange.privacy import unit_ledger
from counterflow.exchange.registry import method_of
from counterflow.federation.audit import Audit
from counterflow.federation.description import Description
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.policy import SENT_BY_SERVERS, SENT_BY_UNITS, Policy
from counterflow.federation.reconciliation import reconcile
from counterflow.plant import LocalModel
from counterflow.privacy import Ledger
from counterflow.privacy.balance import RELEASED
from counterflow.protocol import Message, PerturbedStates, Reaction, Trial, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT

MOST_REFUSALS = 1000  # that are written down for one job: a hostile coordinator must not fill the disk
COORDINATOR = "coordinator"
DAY = timedelta(days=1)
KEPT_TRIALS = 1000


class Guard:
    """Stands between a plant and the federation, for one job.

    Parameters
    ----------
    job : as the coordinator has sent it.
    description : what this plant knows of itself.
    policy : what it lets out.
    audit : where all that leaves is written down.
    ledger : folder of its durable budget; None: that of the policy.

    Raises
    ------
    PrivacyError, ProtocolError
        The job is not one that this plant takes part in. The refusal is audited.
    """

    def __init__(
        self, job: Job, description: Description, policy: Policy, audit: Audit, ledger: str | Path | None = None
    ) -> None:
        self.job, self.description, self.policy, self.audit = job, description, policy, audit
        self.ledger = policy.ledger if ledger is None else Path(ledger)
        self._refusals = 0
        self._trials: dict[str, None] = {}  # digests of those answered last
        try:
            self._check_job()
        except CounterflowError as error:
            self.refuse("job", job.to_text().encode(), error)
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
        return Guard(self.job, self.description, strict, self.audit, self.ledger)

    @property
    def unit(self) -> str:
        return self.description.unit

    # ---- messages

    def incoming(self, data: bytes) -> Message:
        """The message of the coordinator, if it is one that a server may send to this plant in this job."""
        self._digest(data)
        try:
            message = self._decoded(data, SIZE_LIMIT)
            if type(message).__name__ not in SENT_BY_SERVERS[self.job.method]:
                raise ProtocolError(
                    f"unit {self.unit!r}: a server does not send {type(message).__name__} in {self.job.label} "
                    f"(method {self.job.method!r}); end the job, and ask the coordinator what that was"
                )
            self._check_shapes(message)
        except CounterflowError as error:
            self.refuse("incoming", data, error)
        return message

    def outgoing(self, data: bytes, release: object | None = None, to: str = COORDINATOR) -> bytes:
        """These bytes, approved, and audited as such; nothing is charged yet. Otherwise an error.

        ``release``: how a private message was made. The very same bytes are approved once.
        """
        digest = self._digest(data)
        if self.audit.approved(self.job.id, digest) is not None:
            return data
        try:
            message = self._checked(data, release)
            if self.job.privacy is not None:
                self._require(message)
        except CounterflowError as error:
            self.refuse("outgoing", data, error)
        self._write("approved", data, to=to, kind=type(message).__name__)
        return data

    def leave(self, data: bytes) -> bytes:
        """These bytes, which were approved and are on the disk, for the engine to carry; charged and audited once."""
        digest, private = self._digest(data), self.job.privacy is not None
        record = self.audit.approved(self.job.id, digest)
        if record is None:
            raise ProtocolError(f"unit {self.unit!r}: bytes that were not approved cannot leave under {self.job.label}")
        about = {"to": record["to"], "kind": record["kind"]}
        if private:
            try:
                self._pay(data, digest, about)
            except PrivacyError as error:
                self.refuse("outgoing", data, error)
        elif not self.audit.has_left(digest, self.job.id):
            self._write("left", data, **about)
        return data

    def trial(self, data: bytes) -> Trial:
        """A trial of the coordinator, if this plant's controllers answer to it now."""
        message = self.incoming(data)
        try:
            if not isinstance(message, Trial):
                raise ProtocolError(f"unit {self.unit!r}: {type(message).__name__} is no trial")
            if not self.policy.react:
                raise PrivacyError(
                    f"unit {self.unit!r}: the policy does not let its controllers answer (controllers.react)",
                    code="controllers.react",
                )
            most = self.policy.trials_per_day
            known = self._digest(data) in self._trials  # what was said before tells nothing new
            if not known and self.audit.left_since("Reaction", DAY) >= most:
                raise PrivacyError(
                    f"unit {self.unit!r}: its controllers have answered {most} trials within a day, which is as many "
                    "as the policy allows (controllers.trials_per_day)",
                    code="controllers.trials_per_day",
                )
        except CounterflowError as error:
            self.refuse("incoming", data, error)
        return message

    def react(self, trial: bytes, data: bytes, moves: Sequence[int]) -> bytes:
        """The answer to a trial, for the engine to carry: audited once. ``moves``: inputs that controllers move.

        It holds what these would be, within the channels' limits, and of all others what the trial says itself.
        """
        asked = decode(trial)
        assert isinstance(asked, Trial)
        try:
            said = self._checked(data, None)
            if not isinstance(said, Reaction) or said.trial != self._digest(trial):
                raise ProtocolError(f"unit {self.unit!r}: this is no answer to the trial that came")
            self.description.check_reaction(asked, said, moves)
        except CounterflowError as error:
            self.refuse("outgoing", data, error)
        if not self.audit.has_left(self._digest(data), self.job.id):
            self._write("left", data, to=COORDINATOR, kind="Reaction", trial=said.trial)
        self._trials[said.trial] = None
        while len(self._trials) > KEPT_TRIALS:
            del self._trials[next(iter(self._trials))]
        return data

    def approved(self, data: bytes) -> bool:
        """Whether these very bytes have been approved under this job."""
        return self.audit.approved(self.job.id, self._digest(data)) is not None

    def has_left(self, data: bytes) -> bool:
        """Whether these very bytes have been let out under this job."""
        return self.audit.has_left(self._digest(data), self.job.id)

    def _write(self, event: str, data: bytes, **fields: object) -> None:
        about = {"job": self.job.id, "unit": self.unit, "bytes": len(data), "sha256": self._digest(data)}
        self.audit.write(event, **about, **fields)

    # ---- checks

    def _check_job(self) -> None:
        job, policy, own = self.job, self.policy, self.description
        if policy.unit != own.unit:
            raise ProtocolError(f"unit {own.unit!r}: its policy is that of unit {policy.unit!r}: give the right file")
        if own.unit not in job.units:
            raise ProtocolError(f"unit {own.unit!r} takes no part in {job.label}: its units are {', '.join(job.units)}")
        if job.input_names(own.unit) != own.inputs:
            raise ProtocolError(
                f"unit {own.unit!r}: {job.label} says that its inputs are {', '.join(job.input_names(own.unit))}; they "
                f"are {', '.join(own.inputs)}: the coordinator must name them alike and in this order",
                code="inputs",
            )
        if job.begins and own.begins != job.begins:
            raise ProtocolError(
                f"unit {own.unit!r}: {job.label} is about logs whose first row is of {job.begins}; this one's is of "
                f"{own.begins or 'no time that is known'}: bring a log of that period (join --log), or ask the "
                "coordinator to fit with --begins",
                code="begins",
            )
        if job.method == QUESTIONS:
            return  # a plant that puts no questions says in such a job who may ask about it
        if job.method not in policy.methods:
            raise PrivacyError(
                f"unit {own.unit!r}: {job.label} has method {job.method!r}; the policy allows "
                f"{', '.join(policy.methods) or 'none'} (leave.methods)",
                code="leave.methods",
            )
        if "Basis" in method_of(job).hears and not policy.inputs_shown:
            raise PrivacyError(
                f"unit {own.unit!r}: {job.label} shows other plants signals that are made of this one's inputs; the "
                "policy does not allow it (leave.inputs_shown): ask the coordinator for release='rows', or change the "
                "policy",
                code="leave.inputs_shown",
            )
        if own.rows > policy.largest_rows:
            raise PrivacyError(
                f"unit {own.unit!r}: its log has {own.rows} rows, the policy lets out {policy.largest_rows} at most "
                "(leave.largest_rows): bring a shorter stretch, or change the policy",
                code="leave.largest_rows",
            )
        self._check_privacy()

    def _check_privacy(self) -> None:
        unit, policy, privacy = self.unit, self.policy, self.job.privacy
        if privacy is None:
            if policy.demanded:
                raise PrivacyError(
                    f"unit {unit!r}: {self.job.label} asks for messages without noise; the policy demands privacy "
                    "(privacy.demanded): start a job with privacy, or change the policy",
                    code="privacy.demanded",
                )
            return
        if self.ledger is None:
            raise PrivacyError(
                f"unit {unit!r}: {self.job.label} is private, and the policy names no ledger (privacy.ledger): make "
                "one with counterflow privacy open, and name its folder",
                code="privacy.ledger",
            )
        if self.job.options.get("reacting", "refused") != "refused" and not policy.reacting_inputs:
            raise PrivacyError(
                f"unit {unit!r}: {self.job.label} would let inputs leave that react to measurements, and carry them; "
                "the policy does not allow it (privacy.reacting_inputs): ask the coordinator to leave 'reacting' out, "
                "or change the policy",
                code="privacy.reacting_inputs",
            )
        if privacy.models != "excluded":
            raise PrivacyError(
                f"unit {unit!r}: {self.job.label} says what this plant's model has cost its budget; that is not for a "
                "job to say: ask the coordinator to leave 'models' out"
            )
        if not policy.demanded:
            return
        for name in ("epsilon", "delta"):
            asked, most = getattr(privacy, name), getattr(policy, name)
            if asked > most:
                raise PrivacyError(
                    f"unit {unit!r}: {self.job.label} asks for {name}={asked:g}, the policy allows {most:g} "
                    f"(privacy.{name})",
                    code=f"privacy.{name}",
                )
        if privacy.window < policy.window:
            raise PrivacyError(
                f"unit {unit!r}: {self.job.label} protects {privacy.window} consecutive measurements, the policy "
                f"demands {policy.window} (privacy.window)",
                code="privacy.window",
            )
        if privacy.accounting != "rigorous" and not policy.published:
            raise PrivacyError(
                f"unit {unit!r}: {self.job.label} has the paper's accounting, which has gaps; the policy demands a "
                "rigorous one (privacy.published)",
                code="privacy.published",
            )
        if privacy.seed is not None and not policy.simulation:
            raise PrivacyError(
                f"unit {unit!r}: the noise of {self.job.label} comes from a seed and protects nothing; the policy "
                "demands noise of the operating system (privacy.simulation)",
                code="privacy.simulation",
            )

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

    def _checked(self, data: bytes, release: object | None) -> Message:
        """An outgoing message that agrees with protocol, description and policy."""
        message = self._decoded(data, self.policy.largest_bytes)
        kind = type(message).__name__
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
        self._check_shapes(message)
        private = isinstance(message, PerturbedStates)
        if self.job.privacy is not None:
            method_of(self.job).check_noise(self.job, self.description.rows, message, release)
        elif private:
            raise ProtocolError(f"unit {self.unit!r}: {kind} belongs to a private job, {self.job.label} is none")
        return message

    def _require(self, message: Message) -> None:
        """Refuse what the budget cannot pay for; before the first message, see that it can pay for all of them."""
        charge, first = self._charge(message), not getattr(message, "round", 0)
        if first:
            charges = method_of(self.job).charges(self._charged, self._model(), self.description.rows)
            costs = [each.cost for each in charges]
        elif charge is None:
            return
        else:
            costs = [charge.cost]
        with self._ledger() as ledger:
            ledger.require(costs, f"job {self.job.id}", self.description.stretch)

    def _pay(self, data: bytes, digest: str, about: dict[str, str]) -> None:
        """Charge these bytes, write down that they leave, make the charge final; nothing of it if they have left."""
        assert self.job.privacy is not None
        charge, label = self._charge(decode(data)), f"job {self.job.id}"
        if charge is None:  # it holds nothing that is to be private
            if not self.audit.has_left(digest, self.job.id):
                self._write("left", data, **about)
            return
        with self._ledger() as ledger:
            if self.audit.has_left(digest, self.job.id):
                return
            entry = ledger.reserve(
                charge.cost, charge.what, release=digest, fit=label, mechanism=method_of(self.job).mechanism,
                source=str(self.job.privacy.source), rows=self.description.stretch,
            )  # fmt: skip
            self._write("left", data, **about, ledger_entry=entry.id, mark=list(ledger.mark))
            ledger.settle(digest, RELEASED, f"left under {label}")

    def _charge(self, message: Message) -> Charge | None:
        return method_of(self.job).charge(self._charged, self._model(), self.description.rows, message)

    @property
    def _charged(self) -> Job:
        """The job, without what it says of rows: which they are is not for the coordinator to say."""
        assert self.job.privacy is not None
        return replace(self.job, privacy=replace(self.job.privacy, start=None))

    def _model(self) -> LocalModel | None:
        if self.description.model is None and not self.job.from_logs:
            raise PrivacyError(f"unit {self.unit!r}: without its model, what it releases cannot be accounted for")
        return self.description.model

    def _ledger(self) -> Ledger:
        assert self.job.privacy is not None
        ledger = unit_ledger(replace(self.job.privacy, ledger=self.ledger), self.unit)
        try:
            reconcile(self.audit, ledger)
        except BaseException:
            ledger.close()
            raise
        return ledger

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
