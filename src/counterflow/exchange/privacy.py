"""What a private fit costs its units: their budgets are asked before anything leaves, and all of it is reported."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.caveats import Caveat
from counterflow.errors import PrivacyError
from counterflow.exchange.task import Task, UnitData
from counterflow.privacy import ANY_ROWS, Cost, Entry, Ledger, Privacy, RowRange, ledger_path, total_epsilon
from counterflow.protocol import Message

if TYPE_CHECKING:
    from counterflow.exchange.method import Method

SIMULATED = "the privacy noise came from a {source}: a simulation, which protects nothing"
CLIPPED = 0.05  # share of rows beyond which what clipping may have done is worth a word


@dataclass(frozen=True, eq=False)
class UnitPrivacy:
    """What the fit has cost one unit, and what it was made with.

    ``epsilon``: of this fit, at the fit's delta. ``clip``, ``sigma``: radius and standard deviation of the noise, in
    the coordinates in which rows are clipped. ``clipped``: share of rows that were shortened; it tells of measurements,
    and is for the unit's eyes only.
    ``spent``, ``budget``: of the unit's ledger, after this fit; ``entries``: what this fit wrote there.
    """

    epsilon: float
    clip: float
    sigma: float
    clipped: float | None
    entries: tuple[Entry, ...] = ()
    spent: float | None = None
    budget: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class PrivacyReport:
    """What was promised, how it was kept, and what it does not cover."""

    epsilon: float
    delta: float
    window: int
    accounting: str
    mechanism: str
    source: str
    durable: bool  # whether the spend was written to ledgers that outlast the fit
    units: Mapping[str, UnitPrivacy]
    excluded: tuple[str, ...]
    gaps: tuple[str, ...] = ()
    release: str = "rows"  # or "moments"
    seen: str = "of each other's rows and inputs units saw nothing"  # what each unit saw of the others

    @property
    def ledger(self) -> dict[str, tuple[Entry, ...]]:
        """What this fit wrote into each unit's ledger."""
        return {name: unit.entries for name, unit in self.units.items()}

    @property
    def secure(self) -> bool:
        """Whether the noise came from the operating system."""
        return self.source == "operating system"

    def after(self, earlier: PrivacyReport) -> PrivacyReport:
        """Of this release and those before it together."""
        delta, window = max(self.delta, earlier.delta), min(self.window, earlier.window)
        units = {}
        for name, unit in self.units.items():
            entries = (*earlier.units[name].entries, *unit.entries)
            epsilon = total_epsilon([entry.cost for entry in entries], delta, window)
            units[name] = replace(unit, entries=entries, epsilon=epsilon)
        return replace(
            self, epsilon=max(unit.epsilon for unit in units.values()), delta=delta, window=window,
            source=self.source if self.source == earlier.source else f"{earlier.source}, then {self.source}",
            durable=self.durable and earlier.durable, units=MappingProxyType(units),
            excluded=tuple(dict.fromkeys((*earlier.excluded, *self.excluded))),
        )  # fmt: skip

    def sentences(self) -> tuple[str, ...]:
        """What a reader of any answer should know."""
        out = [f"{_guarantee(self)}: {self.mechanism}"]
        if self.release == "moments":
            out.append(self.seen)
        if not self.secure:
            out.append(f"the noise came from a {self.source}: a simulation, which protects nothing")
        if not self.durable:
            out.append("the spend was not written to a ledger: nobody will add it to what is released next")
        out += [f"not covered: {text}" for text in self.excluded]
        out += [f"gap of the published analysis: {text}" for text in self.gaps]
        return tuple(out)

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        plain = ("epsilon", "delta", "window", "accounting", "release", "mechanism", "source", "durable", "seen")
        return {
            **{name: getattr(self, name) for name in plain},
            "units": {
                name: {
                    "epsilon": unit.epsilon,
                    "clip": unit.clip,
                    "noise": unit.sigma,
                    "spent": unit.spent,
                    "budget": None if unit.budget is None else list(unit.budget),
                    "releases": [asdict(entry) for entry in unit.entries],
                }
                for name, unit in self.units.items()
            },
            "excluded": list(self.excluded),
            "gaps": list(self.gaps),
        }

    def summary(self) -> str:
        """A readable account, unit by unit."""
        lines = ["privacy: " + "\n  ".join(self.sentences())]
        for name, unit in self.units.items():
            text = f"  {name}: epsilon {unit.epsilon:.4g}, clip {unit.clip:.4g}, noise {unit.sigma:.4g}"
            if unit.budget is not None and unit.spent is not None:
                text += (
                    f"; budget: {unit.spent:.4g} of epsilon {unit.budget[0]:.4g} at delta {unit.budget[1]:.3g} spent"
                )
            lines.append(text)
        return "\n".join(lines)

    __str__ = summary


@dataclass
class Spending:
    """The units' ledgers while a private exchange runs; each unit's rows say themselves whether they were released."""

    method: Method
    task: Task
    own: Mapping[str, UnitData]
    fit: str  # what the ledgers call it
    privacy: Privacy
    rows: Mapping[str, RowRange]
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    written: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    noise: dict[str, float] = field(default_factory=dict)  # the largest of each unit, where messages say it

    @classmethod
    def start(cls, method: Method, task: Task, own: Mapping[str, UnitData], fit: str) -> Spending:
        """Open every unit's ledger; refuses before any work if one cannot pay for all that will be released."""
        assert task.privacy is not None
        rows = {name: RowRange.numbered(brought.y, task.privacy.start) for name, brought in own.items()}
        found = cls(method, task, own, fit, task.privacy, rows)
        try:
            models = []
            for name, brought in own.items():
                found.ledgers[name] = unit_ledger(task.privacy, name)
                costs = [charge.cost for charge in method.charges(task, brought.model, len(brought.y))]
                declared = found._model_costs(name, costs)
                found.ledgers[name].require([*declared, *costs], fit, rows[name])
                models += [(name, cost) for cost in declared]
            for name, cost in models:
                found._record(name, cost, found._model_label(name))
        except BaseException:
            found.close()
            raise
        return found

    def pay(self, message: Message) -> None:
        """To be called at a unit before a message leaves: PrivacyError, and it stays there, if the budget refuses."""
        brought = self.own[message.unit]
        charge = self.method.charge(self.task, brought.model, len(brought.y), message)
        if charge is not None:
            self._record(message.unit, charge.cost, charge.what)
            if charge.noise is not None:
                self.noise[message.unit] = max(self.noise.get(message.unit, 0.0), charge.noise)

    def report(
        self, mechanism: str, made: Mapping[str, tuple[float, float, float] | None], excluded: tuple[str, ...],
        **more: Any,
    ) -> PrivacyReport:  # fmt: skip
        """What was promised and spent; ``made``: clip, noise and share of clipped rows of each unit's last message."""
        privacy, claimed, units = self.privacy, self.privacy.model_cost, {}
        for name, how in made.items():
            ledger, entries = self.ledgers[name], tuple(self.written[name])
            costs = [entry.cost for entry in entries]
            if any(claimed) and not any(c.epsilon or c.delta for c in costs):  # the ledger knew of the models already
                costs.append(Cost(*ANY_ROWS, epsilon=claimed[0], delta=claimed[1]))
            epsilon = total_epsilon(costs, privacy.delta, privacy.window)
            budget = None if ledger.path is None else (ledger.epsilon, ledger.delta)
            clip, sigma, clipped = how or (math.nan, math.nan, None)
            units[name] = UnitPrivacy(epsilon, clip, sigma, clipped, entries, ledger.spent, budget)
        return PrivacyReport(
            max(unit.epsilon for unit in units.values()), privacy.delta, privacy.window, privacy.accounting, mechanism,
            str(privacy.source), privacy.ledger is not None, MappingProxyType(units), excluded, **more,
        )  # fmt: skip

    def close(self) -> None:
        for ledger in self.ledgers.values():
            ledger.close()

    def _record(self, unit: str, cost: Cost, what: str) -> None:
        about = {"fit": self.fit, "mechanism": self.method.mechanism, "source": str(self.privacy.source)}
        self.written[unit].append(self.ledgers[unit].spend(cost, what, **about, rows=self.rows[unit]))

    def _model_costs(self, unit: str, costs: list[Cost]) -> list[Cost]:
        """What fitting the unit's model on its rows has cost, unless its ledger has that already."""
        epsilon, delta = self.privacy.model_cost
        if not (epsilon or delta):
            return []
        known = [e.cost for e in self.ledgers[unit].entries() if e.what == self._model_label(unit)]
        if any(c.epsilon == epsilon and c.delta == delta for c in known):
            return []
        return [Cost(min(c.start for c in costs), max(c.stop for c in costs), epsilon=epsilon, delta=delta)]

    def _model_label(self, unit: str) -> str:
        model = self.own[unit].model
        assert model is not None
        content = b"".join(np.ascontiguousarray(array).tobytes() for array in model.arrays)
        return f"local models {hashlib.sha256(content).hexdigest()[:12]}, as declared"


def promise(privacy: Privacy | PrivacyReport) -> tuple[Caveat, ...]:
    """What every answer of a private fit carries along; nothing of it tells of a measurement."""
    told = (Caveat("private", "", f"{_guarantee(privacy)}; each unit keeps its own account"),)
    if privacy.secure if isinstance(privacy, PrivacyReport) else privacy.seed is None:
        return told
    return (*told, Caveat("simulated-noise", "", SIMULATED.format(source=privacy.source)))


def _guarantee(of: Privacy | PrivacyReport) -> str:
    kind = "" if of.accounting == "rigorous" else " as published"
    rows = "one measurement" if of.window == 1 else f"any {of.window} consecutive measurements"
    return f"differentially private{kind} with epsilon {of.epsilon:.4g} and delta {of.delta:.3g} for {rows} of one unit"


def clipping_caveats(name: str, share: float, widened: bool) -> tuple[Caveat, ...]:
    """Whether many of a unit's rows, up to ``share``, may have been clipped; ``widened``: intervals know of it."""
    if share <= CLIPPED:
        return ()
    known = "intervals were widened by what that may do" if widened else "no interval knows of it"
    text = (
        f"unit {name!r}: up to {100 * share:.0f} % of its rows may have been clipped, which biases estimates; {known}. "
        "More rows or a larger epsilon help, or a larger clip, or none if you gave one"
    )
    return (Caveat("clipped-rows", name, text),)


def unit_ledger(privacy: Privacy, unit: str) -> Ledger:
    """The budget of a unit, opened: that of ``privacy.ledger``, or one for this fit alone."""
    if privacy.ledger is None:
        # a budget of just this fit: room for rounding, as every round of the published methods rounds a little
        return Ledger.temporary(unit, privacy.epsilon * (1 + 1e-9), privacy.delta * (1 + 1e-9), privacy.window)
    path = ledger_path(privacy.ledger, unit)
    if not path.exists():
        raise PrivacyError(
            f"unit {unit!r} has no budget: there is no ledger {str(path)!r}. Its owner opens one: counterflow privacy "
            f"open {privacy.ledger} --unit {unit} --epsilon E --delta D"
        )
    ledger = Ledger.open(path, unit=unit)
    if ledger.window > privacy.window:
        ledger.close()
        raise PrivacyError(
            f"unit {unit!r}: its budget protects any {ledger.window} consecutive measurements, the fit only "
            f"{privacy.window}: pass window={ledger.window} or more"
        )
    return ledger
