"""What a plant knows of itself, and whether a message agrees with it: kinds, shapes and sizes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from counterflow.errors import ProtocolError
from counterflow.methods.task import UnitData
from counterflow.plant import LocalModel
from counterflow.privacy import Stretch
from counterflow.protocol import (
    Answer,
    AugmentedStates,
    Basis,
    Identified,
    Introduction,
    Message,
    Moments,
    Outline,
    PerturbedStates,
    Reduced,
    StateGradients,
    Sufficient,
)  # fmt: skip

MOST_STATES = 10_000  # of one unit, whatever a server says


@dataclass(frozen=True)
class Description:
    """One plant: its name, its input channels in order, how many outputs and rows it has, and states, if it knows.

    Examples
    --------
    >>> Description("boiler", ("fuel", "valve"), outputs=8, rows=1000, states=2).inputs
    ('fuel', 'valve')
    """

    unit: str
    inputs: tuple[str, ...]
    outputs: int
    rows: int
    states: int | None = None
    begins: str = ""
    # what a private release is accounted by
    model: LocalModel | None = field(default=None, repr=False, compare=False)
    stretch: Stretch | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, own: UnitData) -> Description:
        """Of what a unit brings to a job."""
        states = None if own.model is None else own.model.states
        stretch = Stretch.timed(own.y, own.begins, own.dt)
        of_unit = own.unit.name, own.unit.input_names, own.unit.n_outputs
        return cls(*of_unit, len(own.y), states, own.begins, own.model, stretch)

    def check(self, message: Message, rounds: int | None, uses_inputs: bool = True) -> None:
        """ProtocolError if the message cannot be one of this plant, or to it, whoever has sent it.

        ``rounds``: of the job, at most; None if it has none. ``uses_inputs``: whether inputs are sent (not in FedGC).
        """
        if message.unit != self.unit:
            raise ProtocolError(
                f"unit {self.unit!r}: field 'unit' is {message.unit[:100]!r}: a plant speaks for itself only, and is "
                "spoken to by its own name"
            )
        inputs, rows, steps = len(self.inputs) if uses_inputs else 0, self.rows, self.rows - 1
        round_of_message = getattr(message, "round", None)
        if rounds is not None and round_of_message is not None and round_of_message > rounds:
            raise self._wrong(message, "round", round_of_message, f"at most {rounds}")
        match message:
            case Sufficient():
                P = self._states(message, "A", message.A.shape[0])
                self._shape(message, "inputs", (rows, inputs))
                self._shape(message, "A", (P, P))
                if message.ranks[0] > self.outputs:
                    raise self._wrong(message, "ranks", int(message.ranks[0]), f"{self.outputs} numbers a row at most")
                if len(message.ranks) > 2.0**self.outputs:
                    raise self._wrong(message, "ranks", len(message.ranks), f"2^{self.outputs} patterns at most")
            case Reduced():
                self._shape(message, "inputs", (rows, inputs))
                if message.values.shape[1] > self.outputs:
                    raise self._wrong(message, "values", message.values.shape, f"{self.outputs} columns at most")
            case Outline():
                self._shape(message, "inputs", (rows, inputs))
                if len(message.A):
                    self._states(message, "A", len(message.A))
                if len(message.observation) > self.outputs:
                    raise self._wrong(message, "observation", message.observation.shape, f"{self.outputs} rows at most")
            case Basis():
                for field in ("functions", "centre"):
                    if len(getattr(message, field)) not in (0, rows):
                        raise self._wrong(message, field, getattr(message, field).shape, f"{rows} rows, or none")
            case Moments():
                if len(message.values) > rows or message.values.shape[1] > self.outputs:
                    raise self._wrong(message, "values", message.values.shape, f"{self.outputs} columns at most")
            case Introduction():
                P = self._states(message, "A", message.A.shape[0])
                self._shape(message, "refined", (steps, P))
                self._shape(message, "inputs", (steps, inputs))
            case AugmentedStates():
                self._shape(message, "predicted", (steps, self._states(message, "offset", len(message.offset))))
            case PerturbedStates():
                self._shape(message, "refined", (steps, self._states(message, "A", message.A.shape[0])))
                self._shape(message, "inputs", (steps, inputs))
            case StateGradients():
                P = self._states(message, "predicted", message.predicted.shape[1])
                self._shape(message, "predicted", (steps, P))
            case Identified():
                self._shape(message, "input_level", (inputs,))
                if message.observation.shape[0] > self.outputs or message.A.shape[0] > MOST_STATES:
                    raise self._wrong(message, "observation", message.observation.shape, f"{self.outputs} rows at most")
            case Answer():
                self._states(message, "mean", message.mean.shape[1])
                if not np.isfinite(message.mean).all():
                    raise self._wrong(message, "mean", "a number that is not finite", "finite numbers")

    def _states(self, message: Message, field: str, found: int) -> int:
        if self.states is not None and found != self.states:
            raise self._wrong(message, field, f"{found} states", f"{self.states} states")
        if found > MOST_STATES:
            raise self._wrong(message, field, f"{found} states", f"{MOST_STATES} states at most")
        return found

    def _shape(self, message: Message, field: str, shape: tuple[int, ...]) -> None:
        if getattr(message, field).shape != shape:
            raise self._wrong(message, field, getattr(message, field).shape, str(shape))

    def _wrong(self, message: Message, field: str, found: object, wanted: str) -> ProtocolError:
        return ProtocolError(
            f"unit {self.unit!r}: {type(message).__name__}, field {field!r} is {found}, by this plant's own "
            f"description it must be {wanted}. Check that the job is about this plant's log and model"
        )
