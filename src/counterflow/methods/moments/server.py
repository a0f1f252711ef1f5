"""The server's side: collect inputs, send what to project on, read the projections; again with what they have told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from counterflow.errors import ProtocolError
from counterflow.estimation.known_edges import KnownEdges
from counterflow.estimation.layout import refuse_other_rows
from counterflow.estimation.moments import MomentEstimate
from counterflow.methods.moments.design import Design, outlines_of
from counterflow.protocol import Basis, Finished, Message, Moments, Outline, Request

NOTHING = np.zeros((0, 0))


@dataclass(frozen=True)
class MomentConfig:
    """What the server is asked to estimate, and in how many rounds."""

    units: tuple[str, ...]
    rounds: int = 1
    known: KnownEdges | None = None

    @property
    def private(self) -> bool:
        return self.rounds > 1


@dataclass(frozen=True)
class MomentServer:
    """All that the server holds. ``design`` follows from the outlines, and is made again after a crash."""

    config: MomentConfig
    outlines: MappingProxyType[str, Outline] = field(default_factory=lambda: MappingProxyType({}))
    moments: MappingProxyType[str, Moments] = field(default_factory=lambda: MappingProxyType({}))
    found: MomentEstimate | None = None
    round: int = 0
    finished: bool = False
    record: None = None  # there are no losses by the round
    progress: Callable[[int, float], None] | None = None
    design: Design | None = None

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
    def designed(self) -> Design:
        """The design, once all outlines are there."""
        return self.design or Design(outlines_of(self.units, self.outlines), self.config.known)

    def begin(self) -> tuple[MomentServer, tuple[Message, ...]]:
        return self, tuple(Request(name) for name in self.units)

    def step(self, message: Message) -> tuple[MomentServer, tuple[Message, ...]]:
        match message:
            case Outline() if message.unit not in self.outlines:
                return self._outlined(message)
            case Moments() if len(self.outlines) == len(self.units) and message.round == self.round:
                return self._told(message)
        raise ProtocolError(f"server: did not expect {type(message).__name__} of unit {message.unit!r}")

    def _outlined(self, message: Outline) -> tuple[MomentServer, tuple[Message, ...]]:
        rows = {name: len(outline.inputs) for name, outline in self.outlines.items()}
        refuse_other_rows(message.unit, len(message.inputs), rows)
        state = replace(self, outlines=MappingProxyType({**self.outlines, message.unit: message}))
        if len(state.outlines) < len(self.units):
            return state, ()
        return replace(state, design=state.designed)._asking()

    def _asking(self) -> tuple[MomentServer, tuple[Message, ...]]:
        """The round that begins; the end, if nobody is asked for anything."""
        design = self.designed
        if not design.asked:
            found = design.estimate({}, self.config.private)
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

    def _told(self, message: Moments) -> tuple[MomentServer, tuple[Message, ...]]:
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
        found = design.estimate(moments, self.config.private)
        if self.progress is not None:
            self.progress(found.steps, -0.5 * found.misfit)
        if self.round + 1 < self.config.rounds:
            none: Mapping[str, Moments] = {}
            return replace(state, found=found, round=self.round + 1, moments=MappingProxyType(none))._asking()
        return replace(state, round=self.round + 1)._over(found)

    def _over(self, found: MomentEstimate) -> tuple[MomentServer, tuple[Message, ...]]:
        number = max(self.round, 1)
        state = replace(self, found=found, round=number, finished=True)
        return state, tuple(Finished(name, number, found.converged) for name in self.units)
