"""What a private fit costs its units: their budgets are asked before anything leaves, and all of it is reported."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from counterflow.caveats import Caveat
from counterflow.errors import PrivacyError
from counterflow.plant import LocalModel
from counterflow.privacy import ANY_ROWS, Cost, Entry, Ledger, Privacy, RowRange, ledger_path, total_epsilon

MODELS = "local models"  # and a digest of them, by which they are counted once
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
    """The units' ledgers while a fit runs.

    ``start`` refuses before any work if a unit cannot afford the fit; ``record`` is called at the unit for each release
    before it leaves. ``rows``: each unit's, which say themselves whether they were released before.
    """

    privacy: Privacy
    fit: str
    mechanism: str
    ledgers: Mapping[str, Ledger]
    models: Mapping[str, LocalModel]
    rows: Mapping[str, RowRange]
    written: dict[str, list[Entry]] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)  # the largest of each unit, where messages say it

    @classmethod
    def start(
        cls, privacy: Privacy, units: Sequence[str], fit: str, mechanism: str, costs: Mapping[str, Sequence[Cost]],
        models: Mapping[str, LocalModel], rows: Mapping[str, RowRange],
    ) -> Spending:  # fmt: skip
        """Open every unit's ledger and see that it can pay for ``costs``, all that the fit will release."""
        ledgers: dict[str, Ledger] = {}
        try:
            for name in units:
                ledgers[name] = unit_ledger(privacy, name)
            spending = cls(privacy, fit, mechanism, MappingProxyType(ledgers), models, rows)
            declared = {name: spending._models_cost(name, costs[name]) for name in units}
            for name in units:
                ledgers[name].require([*declared[name], *costs[name]], fit, rows[name])
            for name in units:
                for cost in declared[name]:
                    spending.record(name, cost, spending._models_name(name))
        except BaseException:
            for ledger in ledgers.values():
                ledger.close()
            raise
        return spending

    def _models_cost(self, unit: str, costs: Sequence[Cost]) -> list[Cost]:
        """What the models have cost, unless the ledger knows it."""
        epsilon, delta = self.privacy.model_cost
        if not (epsilon or delta):
            return []
        known = [e.cost for e in self.ledgers[unit].entries() if e.what == self._models_name(unit)]
        if any(c.epsilon == epsilon and c.delta == delta for c in known):
            return []
        return [Cost(min(c.start for c in costs), max(c.stop for c in costs), epsilon=epsilon, delta=delta)]

    def _models_name(self, unit: str) -> str:
        content = b"".join(np.ascontiguousarray(array).tobytes() for array in self.models[unit].arrays)
        return f"{MODELS} {hashlib.sha256(content).hexdigest()[:12]}, as declared"

    def record(self, unit: str, cost: Cost, what: str, noise: float | None = None) -> None:
        """Write a release down; PrivacyError, and nothing may leave, if the budget refuses."""
        entry = self.ledgers[unit].spend(
            cost, what, fit=self.fit, mechanism=self.mechanism, source=str(self.privacy.source), rows=self.rows[unit]
        )
        self.written.setdefault(unit, []).append(entry)
        if noise is not None:
            self.noise[unit] = max(self.noise.get(unit, 0.0), noise)

    def spent(self, unit: str) -> UnitPrivacy:
        """What the fit has cost a unit; clip and noise are for the method to fill in."""
        ledger, entries = self.ledgers[unit], tuple(self.written.get(unit, ()))
        costs = [e.cost for e in entries]
        claimed = self.privacy.model_cost
        if any(claimed) and not any(c.epsilon or c.delta for c in costs):  # the ledger knew of the models already
            costs.append(Cost(*ANY_ROWS, epsilon=claimed[0], delta=claimed[1]))
        epsilon = total_epsilon(costs, self.privacy.delta, self.privacy.window)
        budget = None if ledger.path is None else (ledger.epsilon, ledger.delta)
        return UnitPrivacy(epsilon, math.nan, math.nan, None, entries, ledger.spent, budget)

    def report(self, mechanism: str, units: Mapping[str, UnitPrivacy], excluded: tuple[str, ...]) -> PrivacyReport:
        """What the fit has promised and spent; ``units``: as ``spent`` gives them, filled in."""
        privacy = self.privacy
        return PrivacyReport(
            max(unit.epsilon for unit in units.values()), privacy.delta, privacy.window, privacy.accounting, mechanism,
            str(privacy.source), privacy.ledger is not None, MappingProxyType(dict(units)), excluded,
        )  # fmt: skip

    def close(self) -> None:
        for ledger in self.ledgers.values():
            ledger.close()

    def __enter__(self) -> Spending:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
    """Of one unit's message: whether many of its rows may have been clipped; ``share``: up to how many.

    ``widened``: whether intervals know of it.
    """
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
