"""What if the combined input φ of all other units changed? (paper, Q3 and Eq. (20))

The unit computes it from what it holds, C_mm (φ_1 - φ_0). The server is asked only what the answer must be read with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.errors import DataError, OptionError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.questions.answer import About, Answer, Described, Surroundings
from counterflow.questions.answering import Server, part_of
from counterflow.questions.numbers import named
from counterflow.questions.phrases import sized
from counterflow.questions.question import Entry, Form, Request

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart

QUESTION = "If the combined input of all other units on {unit} changed: what would it do?"
CONDITION = "If the combined input of all other units to {unit} were ({phi_1}) instead of ({phi_0}), "
ANSWER = CONDITION + "{unit} {channel} would {verb} by {size}."
NOTHING = CONDITION + "nothing would change there."


@dataclass(frozen=True)
class AskAggregate(Request):
    """What would ``unit``'s outputs do if the combined input of all others were phi_1? As ``Fit.aggregate_effect``."""

    kind = "aggregate"
    tab = "aggregate"
    command = "aggregate"
    title = "What if the combined input of all other units changed?"
    example = "counterflow aggregate fit --unit turbine --phi-1 0.5 --phi-1 0"
    form = (
        Entry("unit", Form.UNIT, ..., "Unit whose outputs are asked about."),
        Entry("phi_1", Form.VECTOR, ..., "Joint effect, a number for each state of the unit; may repeat."),
        Entry("phi_0", Form.VECTOR, None, "Instead of what (what the unit has learned); may repeat."),
    )
    drawn = ""

    unit: str
    phi_1: Sequence[float] | FloatArray
    phi_0: Sequence[float] | FloatArray | None = None

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        self.vectors(part)
        return []

    def vectors(self, part: UnitPart) -> tuple[FloatArray, FloatArray]:
        """phi_1 and phi_0 (P_m,)."""
        try:
            base = part.phi if self.phi_0 is None else np.asarray(self.phi_0, np.float64)
            other, shape = np.asarray(self.phi_1, np.float64), (part.model.states,)
        except (TypeError, ValueError):
            raise DataError(f"aggregate_effect: phi of unit {self.unit!r} must be numbers") from None
        if base is None:
            raise OptionError(f"aggregate_effect: unit {self.unit!r} has learned no phi by this method; give phi_0")
        if base.shape != shape or other.shape != shape:
            raise DataError(
                f"aggregate_effect: phi of unit {self.unit!r} has shape {shape}, got {other.shape} and {base.shape}"
            )
        if not (np.isfinite(base).all() and np.isfinite(other).all()):
            raise DataError(f"aggregate_effect: phi of unit {self.unit!r} must be finite numbers")
        return other, base

    @classmethod
    def respond(cls, server: Server, changes: Sequence[Change], ask: Ask) -> tuple[Message, ...]:
        own = server.own(ask.unit)
        return (part_of(ask, np.zeros((0, own.stop - own.start))),)

    def answer(self, about: About, y: FloatArray | None) -> Aggregate:
        other, base = self.vectors(about.part)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = np.asarray(about.part.model.C @ (other - base))
        if not np.isfinite(mean).all():
            raise DataError(f"aggregate_effect: phi of unit {self.unit!r} is too large for double precision")
        return Aggregate(about=about, mean=frozen(mean), phi_1=frozen(other), phi_0=frozen(base))

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        return QUESTION.format(unit=self.unit)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Aggregate(Answer):
    """Change ``mean`` (D_m,) of a unit's outputs if the combined input of all other units were phi_1, not phi_0.

    It stands for ``mean`` where numbers are needed: ``np.asarray(answer)``.
    """

    kind = "aggregate"

    mean: FloatArray
    phi_1: FloatArray
    phi_0: FloatArray

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        return np.array(self.mean, dtype=dtype)

    @property
    def sizes(self) -> FloatArray:
        """The changes (D_m,) in standard deviations of each channel's noise."""
        return np.asarray(np.abs(self.mean) / self.about.noise)

    def sentence(self, channel: str | None = None) -> str:
        k = self.chosen(channel)
        phi_1, phi_0 = (", ".join(wording.number(float(v)) for v in phi) for phi in (self.phi_1, self.phi_0))
        return (ANSWER if self.mean[k] else NOTHING).format(
            unit=self.unit, phi_1=phi_1, phi_0=phi_0, channel=self.channels[k],
            verb="fall" if self.mean[k] < 0 else "rise",
            size=sized(abs(self.mean[k]), self.about.outputs[k].unit, sign=False),
        )  # fmt: skip

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        rows = [
            [self.channels[k], sized(self.mean[k], self.about.outputs[k].unit), wording.number(float(self.sizes[k]))]
            for k in self.order()
        ]
        return [Table(f"{self.unit}: the channels that move most", ["channel", "change", "× noise"], rows)]

    def labels(self) -> dict[str, Any]:
        return {"unit": self.unit, "phi_0": self.phi_0, "phi_1": self.phi_1}

    def arrays(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        ranked = [
            {**named(self.about.outputs[k]), "change": float(self.mean[k]), "size": float(self.sizes[k])}
            for k in self.order()
        ]
        return {**self.page(around), "ranked": ranked}

    def to_frame(self) -> polars.DataFrame:
        """One row a channel: channel, measured_in, change."""
        import polars

        units = [channel.unit for channel in self.about.outputs]
        return polars.DataFrame({"channel": self.channels, "measured_in": units, "change": self.mean})

    def plot(self, channels: Sequence[str] = ()) -> Figure:
        """A matplotlib Figure: a bar for each channel, with a panel for each unit of measure."""
        from counterflow.questions.plots import bars

        order = [self.about.output(name) for name in channels] or self.order()
        title = f"{self.unit}, if the combined input of all other units changed"
        return bars(self.about.outputs, order, self.mean, "change", title)
