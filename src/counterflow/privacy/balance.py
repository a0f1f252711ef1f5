"""What a ledger adds up: its entries, and all that they come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from counterflow.errors import OptionError
from counterflow.privacy import accounting
from counterflow.privacy.accounting import Cost, worst_window
from counterflow.privacy.noise import Source

SPENT, RESERVED, RELEASED, WITHDRAWN = STATES = ("spent", "reserved", "released", "withdrawn")


class Mark(NamedTuple):
    """How far a ledger had come: its name, the number of its last entry and that one's seal."""

    ledger: str
    entry: int
    seal: str


@dataclass(frozen=True)
class Entry:
    """One release: what it was, what it cost, and the ε that the unit had spent in all once it was written down.

    ``time`` is UTC in ISO 8601. ``source`` is where its noise came from. ``state``: "spent"; or, of a release that had
    to be reserved, "reserved", "released" or "withdrawn" (which costs nothing). ``release``: SHA-256 of its bytes.
    """

    id: int
    time: str
    what: str
    fit: str
    mechanism: str
    source: str
    cost: Cost
    spent: float
    state: str = SPENT
    release: str = ""

    @property
    def secure(self) -> bool:
        """Whether nobody can repeat the noise: a seeded source protects nothing."""
        return self.source == str(Source())

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        return {
            "id": self.id, "time": self.time, "what": self.what, "rows": [self.cost.start, self.cost.stop],
            "row_loss": self.cost.row_loss, "epsilon": self.cost.epsilon, "delta": self.cost.delta,
            "spent": self.spent, "fit": self.fit, "mechanism": self.mechanism, "source": self.source,
            "state": self.state, "release": self.release,
        }  # fmt: skip


@dataclass
class Balance:
    """Everything spent up to entry ``last``, in a form that does not grow with every release; sums are exact."""

    last: int = 0
    seal: str = ""
    losses: dict[tuple[int, int], Fraction] = field(default_factory=dict)
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def add(self, cost: Cost, times: int = 1) -> None:
        if cost.row_loss:
            span = (cost.start, cost.stop)
            self.losses[span] = self.losses.get(span, Fraction(0)) + times * Fraction(cost.row_loss)
            if not self.losses[span]:
                del self.losses[span]
        self.epsilon += times * Fraction(cost.epsilon)
        self.delta += times * Fraction(cost.delta)

    def total(self, delta: float, window: int, more: Sequence[Cost] = (), less: Sequence[Cost] = ()) -> float:
        """ε at ``delta`` with ``more`` releases and without ``less`` of them; infinite if no ε would do."""
        if more or less:
            balance = Balance(self.last, self.seal, dict(self.losses), self.epsilon, self.delta)
            for cost in more:
                balance.add(cost)
            for cost in less:
                balance.add(cost, -1)
            return balance.total(delta, window)
        try:
            merged = [Cost(*span, row_loss=float(loss)) for span, loss in self.losses.items()]
            if self.epsilon or self.delta:
                merged.append(Cost(0, 1, epsilon=float(self.epsilon), delta=float(self.delta)))
        except (OptionError, OverflowError):  # a sum that is no number, or claims of δ = 1 and more
            return math.inf
        try:
            return accounting.total_epsilon(merged, delta, window)
        except OptionError:
            if worst_window(merged, window) > accounting.LARGEST_MU**2:
                return math.inf
            raise  # so much noise that its cost cannot be told

    def room(self, epsilon: float, delta: float, window: int) -> float:
        """See ``Ledger.room``."""
        left = epsilon - float(self.epsilon), delta - float(self.delta)
        try:
            most = accounting.gaussian_mu(*left) ** 2
            spent = worst_window([Cost(*span, row_loss=float(loss)) for span, loss in self.losses.items()], window)
            return accounting.gaussian_epsilon(math.sqrt(max(most - spent, 0.0)), delta)
        except OptionError:  # nothing to speak of is left
            return 0.0
