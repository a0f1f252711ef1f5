"""Points of view: what a unit sees of a fit, and what the server sees, as trust is split.

A unit sees its own measurements and asks about the inputs of others; the server sees states, couplings and training,
and nobody's raw measurements. Every seat asks through the library's questions; nothing is computed here.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.checks import Checks
from counterflow.errors import CounterflowError, OptionError, PrivacyError
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.outcome import Provenance, Status
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
from counterflow.questions.answering import Server
from counterflow.questions.asking import KnownUnits, Questions, Source
from counterflow.questions.effect import AskEffect
from counterflow.questions.forecast import AskForecast
from counterflow.questions.parts import Watch
from counterflow.questions.question import Laws, Request, ask_server
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
    _kept: OrderedDict[tuple[str, int], FloatArray | None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def id(self) -> str:
        return SERVER if self.unit is None else f"unit:{self.unit}"

    @property
    def kind(self) -> str:
        return "server" if self.unit is None else "unit"

    @property
    def status(self) -> Status | None:
        return None if self.record is None else self.record.status

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
        key = (unit, steps)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = None
        if not self.refusals[AskForecast.tab]:
            try:
                part, request = self.part_of(unit), AskForecast(unit, steps)
                found = ask_server(request, self.plant, self._without_doubt, part).mean
            except CounterflowError:
                found = None  # an answer does without it
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > _BASELINES:
                self._kept.popitem(last=False)
        return found

    def recent(self, unit: str) -> FloatArray:
        """The unit's own measurements (rows, D_m); no rows where there are none."""
        if isinstance(self.measured, str):
            return np.empty((0, self.part_of(unit).unit.n_outputs))
        return self.own_measurements(unit)

    @property
    def controlled(self) -> bool:
        """Whether controllers are known here, so that answers can be about the running plant."""
        asked = self.asked.server if isinstance(self.asked, Gated) else self.asked
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
        asked = self.asked.server if isinstance(self.asked, Gated) else self.asked
        if not isinstance(asked, Server) or asked.couplings is None:
            return self.asked
        return replace(asked, couplings=replace(asked.couplings, spread=None))

    def warm(self) -> None:
        """Do now what the first question would wait for."""
        for server in (self.asked.server if isinstance(self.asked, Gated) else self.asked, self.server):
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
        found = self.checked()
        if not isinstance(self.asked, Gated):
            return found
        gate, asker = self.asked.gate, self.asked.asker
        return Checks(tuple(c for c in found.checks if gate.is_open(asker, c.units)), found.rows, found.fitted)

    @property
    def closed(self) -> bool:
        """Whether policies keep back what is known of some units."""
        names = [unit.name for unit in self.plant.units]
        return isinstance(self.asked, Gated) and not self.asked.gate.is_open(self.asked.asker, names)

    def refusal_of_input(self, unit: str, column: int) -> str:
        """Why an input may not be asked about; "" if it may."""
        if isinstance(self.asked, Gated):
            mark = np.eye(self.asked.unit(unit).n_inputs)[[column]]
            asker = self.asked.asker
            change = Change(asker, unit, False, 0, str(column), mark).naming(self.asked.unit(unit).input_names)
            return self.asked.gate.refusal(asker, [change], Ask(asker, AskEffect.kind, 0, 1)) or ""
        return ""

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
        if isinstance(self.asked, Gated):
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


def states_as_outputs(server: Server, unit: PublicUnit, index: int) -> UnitPart:
    """A part whose outputs are the unit's states: what the server can say of it."""
    first = sum(each.states for each in server.units[:index])
    column = sum(each.n_inputs for each in server.units[:index])
    own, inputs = slice(first, first + unit.states), slice(column, column + unit.n_inputs)
    names = [f"state {k + 1}" for k in range(unit.states)]
    names = [f"{name} (state)" if name in unit.input_names else name for name in names]
    identity = np.eye(unit.states)
    model = LocalModel(A=server.A[own, own], B=server.B[own, inputs], C=identity, Q=identity, R=identity)
    described = Unit(unit.name, unit.states, unit.inputs, names)
    return UnitPart(described, model, KalmanEstimator(model), link=server.link)


def server_seat(fit: Fit | None, server: Server, record: Record, checked: Callable[[], Checks] | str) -> Seat:
    """The server's point of view."""
    parts = {unit.name: states_as_outputs(server, unit, k) for k, unit in enumerate(server.units)}
    units = tuple(parts[name].unit for name in record.order)
    return Seat(
        None, server, parts, KnownUnits(units, record.dt), server.method, NO_MEASUREMENTS, server, record,
        privacy=None if fit is None else fit.privacy, caveats=server.caveats, checked=checked,
        provenance=record.provenance, calendar=record.calendar,
    )  # fmt: skip
