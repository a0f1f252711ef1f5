"""The one exchange, whatever it releases: what goes with it at its beginning and its end, and how it is paid for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from counterflow.errors import OptionError
from counterflow.exchange.input_feedback import reaction_of
from counterflow.exchange.machines import ExchangeServer, ExchangeUnit
from counterflow.exchange.method import Charge, Method, Progress
from counterflow.exchange.outcome import Learned
from counterflow.exchange.part import UnitPart, given_part
from counterflow.exchange.privacy import PrivacyReport, Spending
from counterflow.exchange.release import MODELS_EXCLUDED, Release
from counterflow.exchange.sensors import readings, refuse_private
from counterflow.exchange.task import Task, UnitData
from counterflow.plant import LocalModel
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Finished, Message


@dataclass(frozen=True)
class Exchange(Method):
    """Request, message, finished: units release what ``what`` says of their rows, the server estimates."""

    what: Release

    @property
    def sends(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(reply.__name__ for _, reply in self.what.pairs)

    @property
    def hears(self) -> frozenset[str]:  # type: ignore[override]
        told = [self.what.told] if self.what.told else []
        return frozenset(kind.__name__ for kind in (*(asked for asked, _ in self.what.pairs), *told, Finished))

    @property
    def private(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.what.pairs[-1][1].__name__})

    @property
    def mechanism(self) -> str:  # type: ignore[override]
        return self.what.mechanism

    @property
    def options(self) -> Any:
        return self.what.options

    # ---- the beginning

    def check(self, task: Task) -> None:
        self.what.check(task)
        refuse_private(task)
        if task.privacy is not None and task.privacy.accounting != "rigorous":
            raise OptionError(f"{task.label}: method {task.method!r} has rigorous accounting; leave accounting out")

    def server(self, task: Task, progress: Progress | None = None) -> ExchangeServer:
        return ExchangeServer(self.what, task, progress)

    def unit(self, task: Task, own: UnitData) -> ExchangeUnit:
        if not self.what.from_logs:
            given_part(task, own)  # refuses one without a model
        elif own.estimator is not None:
            raise OptionError(
                f"{task.label}: estimators go with given models; a fit from logs has none to estimate with"
            )
        self._reaction(task, own)
        self.what.ready(task, own)
        return ExchangeUnit(self.what, task, replace(own, y=readings(task, own).y))

    def _reaction(self, task: Task, own: UnitData, again: bool = False) -> Any:
        """What the unit finds of its own inputs before a private exchange, or ``again`` after it."""
        if task.privacy is None:
            return ()
        return reaction_of(task, own, self.what.chosen(task).reacting, self.what.at_once(task, own.unit.name), again)

    # ---- the end

    def learned(self, task: Task, state: ExchangeServer) -> Learned:
        return self.what.learned(task, state)

    def part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        read, part = readings(task, own), self.what.part(task, own, state)
        caveats = (*read.caveats, *self.what.caveats(own, read, part, state), *self._reaction(task, own, again=True))
        digest = None if state.release is None else own.digest
        return replace(part, sensors=read.sensors, caveats=caveats, rows_digest=digest)

    # ---- the price

    def charges(self, task: Task, model: LocalModel | None, rows: int) -> list[Charge]:
        assert task.privacy is not None
        costs = self.what.costs(task.privacy, model, rows)
        return [Charge(cost, self.what.what(rows, number)) for number, cost in enumerate(costs)]

    def least_noise(self, task: Task, rows: int, message: Message, made: Any) -> float | None:
        privacy = task.privacy
        assert privacy is not None
        if not isinstance(made, AddedNoise) or made.found_clip != (privacy.clip is None):
            return None
        if privacy.clip is not None and privacy.clip != made.clip:
            return None
        return self.what.least_noise(privacy, rows, message, made)

    def privacy_report(
        self, task: Task, spending: Spending, server: Any, units: Mapping[str, ExchangeUnit]
    ) -> PrivacyReport:
        return self.report(spending, {name: state.release for name, state in units.items()})

    def report(self, spending: Spending, made: Mapping[str, AddedNoise | None]) -> PrivacyReport:
        """What a private exchange has promised and spent; ``made``: how each unit's last message was made."""
        privacy, units = spending.privacy, {}
        for name, noise in made.items():
            spent = spending.spent(name)
            filled = noise and replace(spent, clip=noise.clip, sigma=noise.sigma, clipped=noise.clipped)
            units[name] = filled or spent
        mechanism, unprotected = self.mechanism, self.what.unprotected
        if privacy.models != "excluded":
            cost = privacy.model_cost
            mechanism += f"; local models are counted with epsilon {cost[0]:g} and delta {cost[1]:g}, as declared"
        elif not self.what.from_logs:
            unprotected = (MODELS_EXCLUDED, *unprotected)
        found = spending.report(mechanism, units, unprotected)
        return replace(found, release=self.what.name, seen=self.what.seen)
