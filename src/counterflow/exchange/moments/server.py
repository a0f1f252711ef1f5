"""The server's side: collect inputs, send what to project on, read the projections; again with what they have told."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np

from counterflow.errors import ProtocolError
from counterflow.exchange.moments.design import Design, outlines_of
from counterflow.exchange.moments.log_design import LogDesign, LogFound
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import refuse_other_rows
from counterflow.learning.log_moments import LogWindows
from counterflow.learning.moments import MomentEstimate
from counterflow.learning.optimiser import Quadratic
from counterflow.protocol import Basis, Finished, Identified, Message, Moments, Outline, Request


@dataclass(frozen=True)
class MomentConfig:
    """What the server is asked to estimate, and in how many rounds."""

    units: tuple[str, ...]
    rounds: int = 1
    known: KnownEdges | None = None  # with models: couplings that there can be
    memory: int | None = None  # without: rows that inputs are followed, None: by the length of the record
    same_row: tuple[bool, ...] = ()  # of each unit: whether its inputs act on the row that they stand in
    before: Quadratic | LogWindows | None = None  # of a later window: what earlier ones have told

    @property
    def private(self) -> bool:
        return self.rounds > 1


@dataclass(frozen=True)
class _Rounds(ABC):
    """All that the server holds. ``design`` follows from the outlines, and is made again after a crash."""

    config: MomentConfig
    outlines: MappingProxyType[str, Outline] = field(default_factory=lambda: MappingProxyType({}))
    moments: MappingProxyType[str, Moments] = field(default_factory=lambda: MappingProxyType({}))
    found: Any = None
    centred: Any = None  # what the last round's centre of clipping was made of
    round: int = 0
    finished: bool = False
    record: None = None  # there are no losses by the round
    progress: Callable[[float, str], None] | None = None
    design: Any = None

    GIVEN: ClassVar[frozenset[str]] = frozenset({"config", "progress", "design"})

    @property
    def units(self) -> tuple[str, ...]:
        return self.config.units

    @property
    def waiting(self) -> tuple[str, ...]:
        if len(self.outlines) < len(self.units):
            return tuple(name for name in self.units if name not in self.outlines)
        return tuple(name for name in self.designed.asked if name not in self.moments)

    @property
    @abstractmethod
    def designed(self) -> Any:
        """The design, once all outlines are there."""

    def closing(self, found: Any) -> tuple[Message, ...]:
        """What units are told besides that it is over."""
        return ()

    def begin(self) -> tuple[Self, tuple[Message, ...]]:
        return self, tuple(Request(name) for name in self.units)

    def step(self, message: Message) -> tuple[Self, tuple[Message, ...]]:
        match message:
            case Outline() if message.unit not in self.outlines:
                return self._outlined(message)
            case Moments() if len(self.outlines) == len(self.units) and message.round == self.round:
                return self._told(message)
        raise ProtocolError(f"server: did not expect {type(message).__name__} of unit {message.unit!r}")

    def _outlined(self, message: Outline) -> tuple[Self, tuple[Message, ...]]:
        rows = {name: len(outline.inputs) for name, outline in self.outlines.items()}
        refuse_other_rows(message.unit, len(message.inputs), rows)
        state = replace(self, outlines=MappingProxyType({**self.outlines, message.unit: message}))
        if len(state.outlines) < len(self.units):
            return state, ()
        return replace(state, design=state.designed)._asking()

    def _asking(self) -> tuple[Self, tuple[Message, ...]]:
        """The round that begins; the end, if nobody is asked for anything."""
        design = self.designed
        if not design.asked:
            found = design.estimate({}, self.config.private, self.config.before)
            return self._over(found)
        foreseen = dict(zip(design.layout.names, design.foreseen(self.found), strict=True))
        bases = dict(zip(design.layout.names, design.bases, strict=True))
        asked = []
        for name in design.asked:
            at, basis = foreseen[name], bases[name]
            if self.round:
                basis = np.zeros((0, basis.shape[1]))
            asked.append(Basis(name, self.round, float(at.least), basis, np.ascontiguousarray(at.centre), at.W))
        return replace(self, design=design), tuple(asked)

    def _told(self, message: Moments) -> tuple[Self, tuple[Message, ...]]:
        design = self.designed
        if message.unit in self.moments:
            raise ProtocolError(f"server: unit {message.unit!r} has sent its moments of round {self.round} already")
        at = design.layout.names.index(message.unit)
        wanted = (design.bases[at].shape[1], len(design.outlines[at].observation))
        if message.values.shape != wanted:
            raise ProtocolError(
                f"server: unit {message.unit!r} sent moments of shape {message.values.shape}, asked were {wanted}"
            )
        moments: Mapping[str, Moments] = {**self.moments, message.unit: message}
        state = replace(self, moments=MappingProxyType(moments), design=design)
        if state.waiting:
            return state, ()
        found = design.estimate(moments, self.config.private, self.config.before)
        if self.progress is not None:
            self.progress(1.0, f"moments: {found.steps} steps")
        if self.round + 1 < self.config.rounds:
            none: Mapping[str, Moments] = {}
            return replace(state, found=found, round=self.round + 1, moments=MappingProxyType(none))._asking()
        return replace(state, round=self.round + 1, centred=self.found)._over(found)

    def _over(self, found: Any) -> tuple[Self, tuple[Message, ...]]:
        number = max(self.round, 1)
        state = replace(self, found=found, round=number, finished=True)
        closing = [Finished(name, number, found.converged) for name in self.units]
        return state, (*self.closing(found), *closing)


@dataclass(frozen=True)
class MomentServer(_Rounds):
    """Of units with models."""

    found: MomentEstimate | None = None
    centred: MomentEstimate | None = None

    @property
    def designed(self) -> Design:
        design: Design | None = self.design
        return design or Design(outlines_of(self.units, self.outlines), self.config.known)


@dataclass(frozen=True)
class MomentLogServer(_Rounds):
    """Of units with logs and no models."""

    found: LogFound | None = None
    centred: LogFound | None = None

    @property
    def designed(self) -> LogDesign:
        design: LogDesign | None = self.design
        config = self.config
        if design is not None:
            return design
        before = config.before if isinstance(config.before, LogWindows) else None
        return LogDesign(outlines_of(self.units, self.outlines), config.memory, config.same_row, before)

    def closing(self, found: LogFound) -> tuple[Message, ...]:
        """Each unit's own blocks of the system."""
        design = self.designed
        record, A, B, _ = design.system(found)
        out, at = [], 0
        for m, (name, states, inputs) in enumerate(
            zip(record.names, record.state_slices, record.input_slices, strict=True)
        ):
            numbers = slice(at, at + design.outputs[m])
            at = numbers.stop
            early = bool(self.config.same_row and self.config.same_row[m])
            out.append(
                Identified(
                    name, early, A[states, states].copy(), B[states, inputs].copy(), np.zeros_like(A[states, states]),
                    record.observation[numbers, states].copy(), record.noise[numbers, numbers].copy(),
                    design.level[inputs].copy(),
                )
            )  # fmt: skip
        return tuple(out)
