"""The plant that the server has estimated, and the rows that it was estimated from, or that are asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.linear_model import LinearModel
from counterflow.learning.model import Grounded, Model
from counterflow.learning.regime_sums import since
from counterflow.plant.units import OperatingPoint, PublicUnit, unit_named
from counterflow.protocol import Answer, Ask
from counterflow.protocol.questions import NO_LIMIT
from counterflow.questions.parts import RECORDED, part_of

if TYPE_CHECKING:
    from counterflow.exchange.outcome import Couplings


@dataclass(frozen=True)
class FittedPlant:
    """The server's part of a fit: the couplings, and the rows that questions about the past refer to."""

    method: str
    units: tuple[PublicUnit, ...]
    A: FloatArray
    B: FloatArray
    Q: FloatArray
    couplings: Couplings | None
    shared: SharedRecord | None  # the rows that questions about the past refer to
    caveats: tuple[Caveat, ...] = ()  # of the fit; they travel with every answer
    points: Mapping[str, OperatingPoint] = field(default_factory=dict)  # of the inputs of units fitted from logs

    link: str | None = None  # of a stored server: what its units' files refer to

    # ---- units and their blocks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)

    def unit(self, name: str) -> PublicUnit:
        """The unit of that name."""
        return unit_named(self.units, name)

    def point(self, name: str) -> OperatingPoint:
        """Where the unit's inputs rest, and which row they act on."""
        return self.points.get(name) or OperatingPoint.none(self.unit(name).n_inputs)

    @cached_property
    def state_slices(self) -> dict[str, slice]:
        return dict(zip(self.names, slices(unit.states for unit in self.units), strict=True))

    @cached_property
    def input_slices(self) -> dict[str, slice]:
        return dict(zip(self.names, slices(unit.n_inputs for unit in self.units), strict=True))

    def own(self, name: str) -> slice:
        """The unit's states."""
        return self.state_slices[self.unit(name).name]

    # ---- the model, and the rows it stands on

    @cached_property
    def model(self) -> Model:
        """The simulators of all units."""
        if self.couplings is not None:
            return self.couplings.model
        units = Layout(self.names, tuple(u.states for u in self.units), tuple(u.n_inputs for u in self.units))
        return LinearModel(units, self.A, self.B, self.Q)

    @cached_property
    def grounded(self) -> Grounded:
        """The model on the rows that questions about the past refer to."""
        return self.model.on(self.shared)

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""
        if self.shared is None:
            raise OptionError(
                f"method {self.method!r} keeps no record of inputs: give the recording that is asked about"
            )
        return int(self.shared.u.shape[0])

    @property
    def u(self) -> FloatArray:
        """Inputs (T+1, U) of the recorded rows, as the model takes them; one row of zeros if nothing is recorded."""
        return self.grounded.u

    @cached_property
    def has_rows(self) -> bool:
        """Whether anything is known of the recorded rows besides inputs; units may have sent moments alone."""
        if self.couplings is None or not self.couplings.of_moments or self.shared is None:
            return True
        return bool(np.isfinite(self.shared.values).any())

    @property
    def present(self) -> Self:
        """The same with the rows since the last change only."""
        regimes = self.grounded.regimes
        if not regimes or self.shared is None:
            return self
        return replace(self, shared=self.shared.last(regimes[-1].stop - since(regimes)))

    @cached_property
    def seen(self) -> FloatArray:
        """Range (U,) of each input in the rows that the model was learned from, or else in the recorded ones.

        Zero if nothing is recorded.
        """
        return np.asarray(np.ptp(self.u, axis=0)) if self.model.seen is None else self.model.seen

    @cached_property
    def radius(self) -> float:
        """Spectral radius of A."""
        return float(np.abs(np.linalg.eigvals(self.A)).max())

    @property
    def settles_down(self) -> bool:
        """Whether states have a level to come back to."""
        return self.radius < 1 - 1e-9

    @cached_property
    def usual(self) -> FloatArray:
        """States (P,) in which the plant rests under every input's mean."""
        return np.linalg.solve(np.eye(len(self.A)) - self.A, self.B @ self.u.mean(axis=0))

    def window(self, ask: Ask) -> slice:
        """The recorded rows that a question is about."""
        rows = len(self.u)
        if ask.first + ask.steps > rows:
            raise DataError(
                f"rows {ask.first} to {ask.first + ask.steps - 1} are asked for; 0 to {rows - 1} are recorded"
            )
        return slice(ask.first, ask.first + ask.steps)

    def headroom(self, name: str, channel: int) -> tuple[float, float, float]:
        """How far an input may move down and up from its last value, and the size its change is measured in."""
        column = self.input_slices[name].start + channel
        last = float(self.point(name).input_level[channel]) + float(self.u[-1, column])
        size = float(self.seen[column])
        low, high = self.unit(name).inputs[channel].limits or (-np.inf, np.inf)
        width = high - low if np.isfinite(high - low) else 1.0
        return max(low - last, -NO_LIMIT), min(high - last, NO_LIMIT), size or width

    def recorded(self, ask: Ask) -> Answer | None:
        """States of the unit in recorded rows, with their covariance; None where everything was measured."""
        rows, unit = self.window(ask), self.names.index(ask.unit)
        if not self.grounded.gaps_in(rows, unit):
            return None
        return part_of(ask, *self.grounded.recorded(rows, unit), share=RECORDED)
