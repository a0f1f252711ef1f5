"""What a plant's messages cost it: its durable budget, and how often its controllers answer within a day.

Which rows a release is of, and what they have cost before, the plant knows of itself; what a job says of them does not
count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from counterflow.errors import PrivacyError
from counterflow.exchange.method import Charge
from counterflow.exchange.privacy import unit_ledger
from counterflow.exchange.registry import method_of
from counterflow.federation.audit import Audit
from counterflow.federation.description import Description
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.policy import Policy
from counterflow.federation.reconciliation import reconcile
from counterflow.plant import LocalModel
from counterflow.privacy import Ledger
from counterflow.privacy.ledger import RELEASED
from counterflow.protocol import Message, Reaction, Trial

DAY = timedelta(days=1)


class Charging:
    """Prices of the messages of one job at one plant.

    Parameters
    ----------
    job, description, policy, audit : as of the plant's ``Guard``.
    """

    def __init__(self, job: Job, description: Description, policy: Policy, audit: Audit) -> None:
        self._job, self._description, self._policy, self._audit = job, description, policy, audit
        self._unit = description.unit
        self._costs = method_of(job) if job.method != QUESTIONS else None

    def require(self, message: Message) -> None:
        """Refuse what the budget cannot pay for; before the first message, see that it can pay for all of them."""
        if self._job.privacy is None or self._costs is None:
            return
        charge = self._charge(message)
        if not getattr(message, "round", 0):
            charges = self._costs.charges(self._claimed, self._model(), self._description.rows)
            costs = [each.cost for each in charges]
        elif charge is None:
            return
        else:
            costs = [charge.cost]
        with self._ledger() as ledger:
            ledger.require(costs, f"job {self._job.id}", self._description.stretch)

    @contextmanager
    def paying(self, message: Message, digest: str) -> Iterator[dict[str, Any]]:
        """Charge these bytes once; inside, what is to be written down of it. The charge is final when that stands.

        After a crash in between the charge is found open, and settled by what the audit log says (``reconciliation``).
        """
        charge = self._charge(message)
        if charge is None or self._job.privacy is None or self._costs is None:  # it holds nothing that is to be private
            yield {}
            return
        label = f"job {self._job.id}"
        with self._ledger() as ledger:
            entry = ledger.reserve(
                charge.cost, charge.what, release=digest, fit=label, mechanism=self._costs.mechanism,
                source=str(self._job.privacy.source), rows=self._description.stretch,
            )  # fmt: skip
            yield {"ledger_entry": entry.id, "mark": list(ledger.mark)}
            ledger.settle(digest, RELEASED, f"left under {label}")

    def count(self, message: Message) -> None:
        """Refuse an answer to a trial, or a trial, where there were as many as the policy allows.

        To be asked in one turn of the audit log with the record that the answer leaves.
        """
        most = self._policy.trials_per_day
        if isinstance(message, Trial | Reaction) and self._audit.left_since("Reaction", DAY) >= most:
            raise PrivacyError(
                f"unit {self._unit!r}: its controllers have answered {most} trials within a day, which is as many as "
                "the policy allows (controllers.trials_per_day)",
                code="controllers.trials_per_day",
            )

    def _charge(self, message: Message) -> Charge | None:
        if self._job.privacy is None or self._costs is None:
            return None
        return self._costs.charge(self._claimed, self._model(), self._description.rows, message)

    @property
    def _claimed(self) -> Job:
        """The job, without what it says of rows: which they are is not for the coordinator to say."""
        assert self._job.privacy is not None
        return replace(self._job, privacy=replace(self._job.privacy, start=None))

    def _model(self) -> LocalModel | None:
        if self._description.model is None and not self._job.from_logs:
            raise PrivacyError(f"unit {self._unit!r}: without its model, what it releases cannot be accounted for")
        return self._description.model

    def _ledger(self) -> Ledger:
        assert self._job.privacy is not None
        ledger = unit_ledger(replace(self._job.privacy, ledger=self._policy.ledger), self._unit)
        try:
            reconcile(self._audit, ledger)
        except BaseException:
            ledger.close()
            raise
        return ledger
