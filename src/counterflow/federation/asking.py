"""What a plant's people see of a finished fit on another machine: every question, about the plant's own outputs.

A question goes into the plant's box, and its answer comes out of it; the plant's site must run, and the coordinator's.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from counterflow import errors
from counterflow.arrays import FloatArray
from counterflow.control import Law, as_law
from counterflow.errors import CounterflowError, OptionError, ProtocolError, UnknownNameError
from counterflow.exchange.controllers import UnitControllers
from counterflow.exchange.task import UnitData
from counterflow.federation.controllers import ELSEWHERE, supposed_terms
from counterflow.federation.desk import QuestionBox
from counterflow.federation.job import Job
from counterflow.federation.parts import SavedUnit, calendar_of, provenance_of, questions_about
from counterflow.federation.policy import Policy
from counterflow.plant import Channel, PublicUnit, Unit
from counterflow.protocol import Answer, Ask, Change, Message, Openings, Refused, decode, encode
from counterflow.questions.answering import REACTIONS, Watch
from counterflow.questions.asking import UnitView


class PlantView(UnitView):
    """Asks the coordinator through the plant's box of questions; its site must run, and the coordinator's.

    Parameters
    ----------
    saved : the unit's part of a finished job.
    box : of this plant.
    own : reads the plant's log; called for questions about the past.
    patience : seconds to wait for an answer.
    zone : in which the plant reads times, as its log says.
    """

    def __init__(
        self, saved: SavedUnit, box: QuestionBox, own: Callable[[], UnitData], patience: float = 60.0, zone: str = ""
    ) -> None:
        self._saved, self._own = saved, own
        server = RemoteServer(saved, box, patience)
        super().__init__(saved.part, server, dt=saved.job.dt, calendar=calendar_of(saved.job, zone))
        self.unit, self.method, self.provenance = saved.part.unit.name, saved.job.method, provenance_of(saved.job)

    @property
    def job_id(self) -> str:
        """The job that is asked about."""
        return self._saved.job.id

    @property
    def rows(self) -> int:
        """Rows of the plant's log that questions about the past can refer to."""
        return int(self.server.rows)

    def measurements(self) -> FloatArray:
        """The plant's own log (rows, D_m); DataError if it is not the one that the fit rests on any more."""
        own = self._own()
        self._saved.require_log(own)
        return own.y


@dataclass(frozen=True)
class RemoteServer:
    """The coordinator, as a plant's questions see it: what it is told of the job, and a box.

    Of other units it knows the inputs that are open to this plant; it asks for them when they are first needed.

    Parameters
    ----------
    saved : this plant's part of the job whose fit is asked about; the coordinator answers about the latest only.
    box : of this plant.
    patience : seconds to wait for an answer.
    supposed : other laws of this plant's own controllers: a word for them, they, and what is said of them.
    """

    saved: SavedUnit
    box: QuestionBox
    patience: float = 60.0
    supposed: tuple[str, Mapping[str, Law], str] | None = None

    @property
    def job(self) -> Job:
        """This plant's part of the job whose fit is asked about."""
        return self.saved.job

    @property
    def own(self) -> Unit:
        """This plant's unit."""
        return self.saved.part.unit

    @property
    def link(self) -> str:
        """What the unit's part must refer to."""
        return self.job.digest

    @property
    def rows(self) -> int:
        """Rows that questions about the past can refer to."""
        if self.job.method != "sufficient":
            raise OptionError(f"method {self.job.method!r} keeps no record of inputs: fit with method 'sufficient'")
        return self.saved.rows

    @property
    def units(self) -> tuple[PublicUnit, ...]:
        """All units, as far as they are open to this plant."""
        return tuple(map(self.unit, self.job.units))

    def unit(self, name: str) -> PublicUnit:
        """A unit, as far as it is open to this plant."""
        if name not in self.job.inputs:
            raise UnknownNameError(f"no unit {name!r:.80}; the units are {', '.join(self.job.units)}")
        return self.own.public if name == self.own.name else self._others[name]

    @cached_property
    def _others(self) -> dict[str, PublicUnit]:
        (answer,) = self._exchanged([Openings(self.own.name)], None)
        if not isinstance(answer, Openings) or set(answer.channels) != set(self.job.units) - {self.own.name}:
            raise ProtocolError(f"unit {self.own.name!r}: {type(answer).__name__} does not say whom it may ask about")
        told = {name: list(map(Channel.from_json, given)) for name, given in answer.channels.items()}
        return {name: PublicUnit(name, tuple(channels), 1) for name, channels in told.items()}

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """Put the question into the box and wait for its answer."""
        named = [change.naming(self.unit(change.cause).input_names) for change in changes]
        if self.supposed is not None:
            ask = replace(ask, supposed=self.supposed[0], terms=self.supposed[2])
        parts: list[Answer] = []
        for message in self._exchanged([*named, ask], watch):
            columns = self.own.n_inputs if getattr(message, "share", "") == REACTIONS else self.own.states
            if not isinstance(message, Answer) or message.kind != ask.kind or message.mean.shape[1] != columns:
                raise ProtocolError(f"unit {ask.unit!r}: {type(message).__name__} is no answer to {ask.kind!r}")
            parts.append(message)
        return tuple(parts)

    def supposing(self, laws: Mapping[str, Mapping[str, Law]]) -> RemoteServer:
        """The same where this plant's own controllers follow other laws, which stay here."""
        if set(laws) != {self.own.name} or self.job.privacy is not None:
            raise OptionError(ELSEWHERE, code="laws-elsewhere")
        own = laws[self.own.name]
        for name, law in own.items():
            if not as_law(law).storable:
                raise OptionError(
                    f"unit {self.own.name!r}, {name!r}: between machines a law is one of counterflow's own"
                )
        said = supposed_terms(UnitControllers(self.saved.part, self.job.dt), own, Policy(self.own.name, react=True))
        return replace(self, supposed=(secrets.token_hex(8), own, json.dumps(said.to_json())))

    def _exchanged(self, asked: Sequence[Message], watch: Watch | None) -> list[Message]:
        """What comes back; a refusal is raised."""
        seen = watch or (lambda message, up: None)
        for message in asked:
            seen(message, True)
        about = questions_about(self.job).digest
        laws = None if self.supposed is None else self.supposed[:2]
        name = self.box.put([encode(message) for message in asked], about, self.job.id, self.saved.latest, laws)
        found = list(map(decode, self.box.answer(name, self.patience)))
        for message in found:
            seen(message, False)
            if isinstance(message, Refused):
                kind: type[CounterflowError] = getattr(errors, message.error)
                raise kind(message.reason, code=message.code)
        if not found:
            raise ProtocolError(f"unit {self.own.name!r}: the answer to {type(asked[-1]).__name__} is empty")
        return found
