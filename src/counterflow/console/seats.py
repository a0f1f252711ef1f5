"""Points of view: what a unit sees of a fit, and what the server sees, as trust is split.

A unit sees its own measurements and asks about the inputs of others; the server sees states, couplings and training,
and nobody's raw measurements. Every seat asks through the library's questions; nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.checks import Checks
from counterflow.errors import CounterflowError, OptionError, PrivacyError
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.outcome import Provenance
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import PrivacyReport
from counterflow.federation import QuestionGate
from counterflow.fits.content import Record
from counterflow.fits.fit import Fit
from counterflow.learning.influence import InfluenceGraph
from counterflow.plant import LocalModel, PublicUnit, Recording, Unit
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.answer import Responder
from counterflow.questions.answering import Server, Watch
from counterflow.questions.asking import KnownUnits, Questions, Source
from counterflow.questions.effect import AskEffect
from counterflow.questions.forecast import AskForecast
from counterflow.questions.question import Laws, Request
from counterflow.questions.registry import QUESTIONS

SERVER = "server"
NO_MEASUREMENTS = "the server sees compressed measurements and states, and nobody's output channels: take a unit's seat"
_BASELINES = 16  # forecasts that are kept


@dataclass(frozen=True)
class Gated:
    """A server that asks the units' policies before it answers one of them."""

    server: Server
    gate: QuestionGate
    asker: str

    @property
    def link(self) -> str | None:
        return self.server.link

    @property
    def rows(self) -> int:
        return self.server.rows

    def unit(self, name: str) -> PublicUnit:
        return self.server.unit(name)

    def supposing(self, laws: Laws) -> Gated:
        """The same where the asker's own controllers follow other laws."""
        return replace(self, server=self.server.supposing(laws))

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        named = [change.naming(self.unit(change.cause).input_names) for change in changes]
        return self.gate.answer(self.server, self.asker, named, ask)


@dataclass(frozen=True, eq=False)
class Seat(Questions):
    """One point of view: of a unit, or of the server (``unit`` is None). Questions go to ``asked``.

    ``parts``: of the units whose outputs are seen; at the server, their outputs are states. ``plant``: the units, as
    far as they are known here. ``measured``: the unit's own measurements (rows, D_m), or why there are none.
    ``server``: the server's part, where it is on this machine.
    """

    unit: str | None
    asked: Responder
    parts: Mapping[str, UnitPart]
    plant: KnownUnits
    method: str
    measured: Callable[[], FloatArray] | str
    server: Server | None = None
    record: Record | None = None
    losses: Mapping[str, Mapping[str, FloatArray]] = field(default_factory=dict)  # the unit's own
    privacy: PrivacyReport | None = None
    caveats: tuple[Caveat, ...] = ()
    checked: Callable[[], Checks] | str = "checks need all parts of a fit: run counterflow check where they are"
    provenance: Provenance | None = None
    calendar: Calendar | None = None

    @property
    def id(self) -> str:
        return SERVER if self.unit is None else f"unit:{self.unit}"

    @property
    def kind(self) -> Literal["unit", "server"]:
        return "server" if self.unit is None else "unit"

    @property
    def gated(self) -> Gated | None:
        """The server behind policies, where there are any."""
        return self.asked if isinstance(self.asked, Gated) else None

    @property
    def answering(self) -> Responder:
        """Whoever answers, behind policies or not."""
        return self.asked if self.gated is None else self.gated.server

    def part_of(self, name: str) -> UnitPart:
        """Of a unit whose outputs are seen here."""
        self.plant.unit(name)
        if name not in self.parts:
            raise PrivacyError(
                f"unit {self.unit!r} asks about its own outputs only, not about those of {name!r}: take the seat of "
                f"{name!r}, where its owner does"
            )
        return self.parts[name]

    # ---- questions

    def source(self, question: type[Request], recording: Recording | None) -> Source:
        return Source(self.asked, lambda name: self.own_measurements(name) if question.of_past else None)

    def baseline(self, unit: str, steps: int) -> FloatArray | None:
        """What is expected (steps, D_m) if nothing changes, if that can be told."""
        return self._baselines(unit, steps)

    @cached_property
    def _baselines(self) -> Callable[[str, int], FloatArray | None]:
        @lru_cache(_BASELINES)
        def expected(unit: str, steps: int) -> FloatArray | None:
            if self.refusals[AskForecast.tab]:
                return None
            try:
                found = AskForecast(unit, steps).put(self.plant, self._without_doubt, self.part_of(unit))
            except CounterflowError:
                return None  # an answer does without it
            mean: FloatArray = found.mean
            return mean

        return expected

    def recent(self, unit: str) -> FloatArray:
        """The unit's own measurements (rows, D_m); no rows where there are none."""
        if isinstance(self.measured, str):
            return np.empty((0, self.part_of(unit).unit.n_outputs))
        return self.own_measurements(unit)

    @property
    def controlled(self) -> bool:
        """Whether controllers are known here, so that answers can be about the running plant."""
        asked = self.answering
        return bool(asked.running_plant.reactors) if isinstance(asked, Server) else True  # else its coordinator knows

    @property
    def loops(self) -> list[dict[str, str]]:
        """The controllers of this seat's unit, where they can be supposed to follow another law."""
        if self.unit is None or not self.controlled:
            return []
        return [
            {"unit": self.unit, "input": each.loop.moves, "reads": each.loop.reads, "law": str(each.law)}
            for each in self.parts[self.unit].controllers
            if each.usable
        ]

    @cached_property
    def _without_doubt(self) -> Responder:
        """The same server, not asked how sure it is: that takes the longest."""
        asked = self.answering
        if not isinstance(asked, Server) or asked.couplings is None:
            return self.asked
        return replace(asked, couplings=replace(asked.couplings, spread=None))

    def warm(self) -> None:
        """Do now what the first question would wait for."""
        for server in (self.answering, self.server):
            if isinstance(server, Server):
                server.model.warm()

    def own_measurements(self, unit: str) -> FloatArray:
        self.part_of(unit)
        if isinstance(self.measured, str):
            raise OptionError(self.measured)
        return self.measured()

    def graph(self, rate: float) -> InfluenceGraph:
        """Who acts on whom, from the server's part."""
        self.refuse("graph")
        assert self.server is not None
        assert self.server.couplings is not None
        return self.server.couplings.model.graph(rate)

    def checks(self) -> Checks:
        """What was looked at; at a unit, of all units that the policies let it know of, as in its answers."""
        if isinstance(self.checked, str):
            raise OptionError(self.checked)
        found, gated = self.checked(), self.gated
        if gated is None:
            return found
        seen = tuple(each for each in found.checks if gated.gate.is_open(gated.asker, each.units))
        return Checks(seen, found.rows, found.fitted)

    @property
    def closed(self) -> bool:
        """Whether policies keep back what is known of some units."""
        names, gated = [unit.name for unit in self.plant.units], self.gated
        return gated is not None and not gated.gate.is_open(gated.asker, names)

    def refusal_of_input(self, unit: str, column: int) -> str:
        """Why an input may not be asked about; "" if it may."""
        if self.gated is None:
            return ""
        source, asker = self.gated.unit(unit), self.gated.asker
        change = Change(asker, unit, False, 0, str(column), np.eye(source.n_inputs)[[column]])
        ask = Ask(asker, AskEffect.kind, 0, 1)
        return self.gated.gate.refusal(asker, [change.naming(source.input_names)], ask) or ""

    def recorded_input(self, name: str, column: int) -> FloatArray | None:
        """(rows,): an input in the server's record, where that is on this machine."""
        server = self.server
        if server is None or server.shared is None:
            return None
        recorded = server.shared.u[:, server.input_slices[name]] + server.point(name).input_level
        return np.asarray(recorded[:, column])

    @cached_property
    def refusals(self) -> Mapping[str, str]:
        """Why each kind of question has no answer here; "" if it may have one."""
        no_training = "how the training went is the coordinator's to tell: ask it" if self.record is None else ""
        out = {"graph": self._no_graph(), "training": no_training}
        out["checks"] = self.checked if isinstance(self.checked, str) else ""
        for question in QUESTIONS.values():
            reason = ""
            if self.unit is None and not question.of_states:
                reason = NO_MEASUREMENTS
            elif question.of_past and isinstance(self.measured, str):
                reason = self.measured
            elif question.after_record and self.method not in ("sufficient", "centralized", "oracle"):
                reason = f"method {self.method!r} keeps no joint filter: fit with method 'sufficient'"
            out[question.tab] = reason
        return out

    def _no_graph(self) -> str:
        if self.server is None:
            return "the influence graph is the coordinator's: ask it, or ask about one unit at a time"
        if self.gated is not None:
            return "policies say who may ask about which inputs; who acts on whom is for the server's seat"
        known = self.server.couplings
        if known is None:
            return f"method {self.method!r} gives no uncertainty, so that influences cannot be told from noise"
        if not known.model.told:
            return "standard errors were not computed for this fit: fit with uncertainty=True"
        return "" if len(self.plant.units) > 1 else "one unit alone has nobody to act on"

    def refuse(self, kind: str) -> None:
        """OptionError if there is no answer to such a question here."""
        if self.refusals[kind]:
            raise OptionError(self.refusals[kind])


def server_seat(fit: Fit | None, server: Server, record: Record, checked: Callable[[], Checks] | str) -> Seat:
    """The server's point of view: the outputs of every unit are its states, which is what the server can say of it."""
    parts = {}
    for unit in server.units:
        own, inputs, identity = server.own(unit.name), server.input_slices[unit.name], np.eye(unit.states)
        names = [f"state {k + 1}" for k in range(unit.states)]
        names = [f"{name} (state)" if name in unit.input_names else name for name in names]
        model = LocalModel(A=server.A[own, own], B=server.B[own, inputs], C=identity, Q=identity, R=identity)
        described = Unit(unit.name, unit.states, unit.inputs, names)
        parts[unit.name] = UnitPart(described, model, KalmanEstimator(model), link=server.link)
    units = tuple(parts[name].unit for name in record.order)
    return Seat(
        None, server, parts, KnownUnits(units, record.dt), server.method, NO_MEASUREMENTS, server, record,
        privacy=None if fit is None else fit.privacy, caveats=server.caveats, checked=checked,
        provenance=record.provenance, calendar=record.calendar,
    )  # fmt: skip
