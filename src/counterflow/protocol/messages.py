"""What crosses between a unit and the server: frozen messages, checked when they are built.

A message holds text, numbers and float64 arrays, nothing else. Arrays that run over time have one row for every
t = 1..T (time first); the row of ``refined`` and ``inputs`` is t-1, the row of ``predicted`` is t, as in the sums of
the paper. Measurements, output matrices and measurement noise have no message to travel in.

Published training, one unit's side of the conversation::

    server -> unit    Plan              what is learned and which gradients will come
    unit -> server    Introduction      A_mm, B_mm, refined states, inputs          (once; Algorithm 1, line 17)
    unit -> server    AugmentedStates   h_a and phi                                 (every round)
    server -> unit    StateGradients    dL/dh_a and dL/dĥ_a                         (every round)
    unit -> server    Settled           my parameters are stationary                (conjugate solver only)
    server -> unit    Finished
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import ClassVar, get_type_hints

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import ProtocolError

FloatArray = NDArray[np.float64]
NAME_LIMIT = 100


MATRIX = MappingProxyType({"rank": 2})
VECTOR = MappingProxyType({"rank": 1})
_SCHEMAS: dict[str, dict[str, tuple[type, int]]] = {}


def schema(kind: type[Message]) -> dict[str, tuple[type, int]]:
    """Field name -> (type, rank) of a message class; the rank of a plain number or text is -1."""
    if kind.__name__ not in _SCHEMAS:
        hints = get_type_hints(kind)
        _SCHEMAS[kind.__name__] = {
            entry.name: (np.ndarray, int(entry.metadata["rank"])) if entry.metadata else (hints[entry.name], -1)
            for entry in fields(kind)
        }
    return _SCHEMAS[kind.__name__]


@dataclass(frozen=True)
class Message:
    """Base of all messages. ``unit`` is the unit that sends it, or that it is meant for."""

    unit: str
    rows_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name, (kind, rank) in schema(type(self)).items():
            value = getattr(self, name)
            if rank < 0:
                self._check_scalar(name, value, kind)
            else:
                object.__setattr__(self, name, self._checked_array(name, value, rank))
        if not self.unit or len(self.unit) > NAME_LIMIT:
            raise ProtocolError(f"{self.label}: a unit's name has 1 to {NAME_LIMIT} characters, got {len(self.unit)}")
        self.check()

    @property
    def label(self) -> str:
        return f"message {type(self).__name__} of unit {self.unit!r}"

    def check(self) -> None:
        """Relations between the fields; a subclass raises ProtocolError if one is broken."""

    def _check_scalar(self, name: str, value: object, kind: type) -> None:
        good = type(value) is kind
        if good and isinstance(value, float):
            good = bool(np.isfinite(value))
        if good and isinstance(value, int) and not isinstance(value, bool):
            good = 0 <= value < 2**53
        if not good:
            raise ProtocolError(
                f"message {type(self).__name__}: field {name!r} must be a finite {kind.__name__}, got {value!r:.80}"
            )

    def _checked_array(self, name: str, value: object, rank: int) -> FloatArray:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64 or value.ndim != rank:
            got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ProtocolError(f"{self.label}: field {name!r} must be float64 with {rank} axes, got {got}")
        with np.errstate(all="ignore"):  # the sum is not finite if an entry is not; else it may have overflowed
            suspicious = not np.isfinite(value.sum())
        if suspicious and not np.isfinite(value).all():
            bad = np.argwhere(~np.isfinite(value))[0]
            raise ProtocolError(f"{self.label}: field {name!r} has a value that is not finite at {tuple(bad.tolist())}")
        if value.flags.writeable:
            value = value.view()
            value.flags.writeable = False
        return value

    def _expect_shape(self, name: str, shape: tuple[int, ...]) -> None:
        got = getattr(self, name).shape
        if got != shape:
            raise ProtocolError(f"{self.label}: field {name!r} must have shape {shape}, got {got}")


@dataclass(frozen=True)
class Plan(Message):
    """Server to unit, first of all: what the unit is going to learn.

    ``offset``: whether phi is learned (not in FedGC). ``refined_gradient``: whether dL/dĥ_a will be sent (the
    published Algorithm 1 sends only dL/dh_a).
    """

    offset: bool
    refined_gradient: bool


@dataclass(frozen=True)
class Introduction(Message):
    """Unit to server, once: local blocks, refined states ĥ_c[t-1] and inputs u[t-1]."""

    A: FloatArray = field(metadata=MATRIX)
    B: FloatArray = field(metadata=MATRIX)
    refined: FloatArray = field(metadata=MATRIX)
    inputs: FloatArray = field(metadata=MATRIX)
    rows_fields: ClassVar[tuple[str, ...]] = ("refined", "inputs")

    def check(self) -> None:
        rows, states = self.refined.shape
        if rows < 1 or states < 1:
            raise ProtocolError(f"{self.label}: 'refined' needs at least one row and one state, got {(rows, states)}")
        self._expect_shape("A", (states, states))
        self._expect_shape("B", (states, self.inputs.shape[1]))
        self._expect_shape("inputs", (rows, self.inputs.shape[1]))


@dataclass(frozen=True)
class AugmentedStates(Message):
    """Unit to server, every round: h_a[t] and phi.

    From them the server forms A_mm(ĥ_a - ĥ_c) = h_a - phi - A_mm ĥ_c - B_mm u.

    ``gradient_norm``: norm of the gradient in (theta, phi) at the previous round's point (0 in round 0).
    """

    round: int
    gradient_norm: float
    predicted: FloatArray = field(metadata=MATRIX)
    offset: FloatArray = field(metadata=VECTOR)
    rows_fields: ClassVar[tuple[str, ...]] = ("predicted",)

    def check(self) -> None:
        self._expect_shape("offset", (self.predicted.shape[1],))


@dataclass(frozen=True)
class StateGradients(Message):
    """Server to unit, every round: gradients of its loss with respect to the augmented states.

    The penalty on disentanglement in that loss is ``penalty``/2 |D|²; with ``implicit`` the unit takes it implicitly
    (IMEX). ``conjugate`` says which of the two update rules the unit shall apply; after the ``last`` gradients no
    states are awaited. ``refined`` has no rows if it is not sent.
    """

    round: int
    last: bool
    conjugate: bool
    penalty: float
    implicit: bool
    predicted: FloatArray = field(metadata=MATRIX)
    refined: FloatArray = field(metadata=MATRIX)
    rows_fields: ClassVar[tuple[str, ...]] = ("predicted", "refined")

    def check(self) -> None:
        rows, states = self.predicted.shape
        self._expect_shape("refined", (rows if self.refined.shape[0] else 0, states))
        if self.penalty < 0:
            raise ProtocolError(f"{self.label}: field 'penalty' must not be negative, got {self.penalty}")


@dataclass(frozen=True)
class Settled(Message):
    """Unit to server: the point of my last AugmentedStates is stationary to the asked tolerance."""

    round: int
    gradient_norm: float


@dataclass(frozen=True)
class Finished(Message):
    """Server to unit: training is over; ``converged`` tells how it ended."""

    round: int
    converged: bool


KINDS: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Plan, Introduction, AugmentedStates, StateGradients, Settled, Finished)
}
