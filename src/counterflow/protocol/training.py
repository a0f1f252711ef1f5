"""Messages of the published training: states up, gradients down, round after round."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.protocol.message import Message, over


@dataclass(frozen=True)
class Plan(Message):
    """Server to unit, first of all: what the unit is going to learn.

    ``offset``: whether phi is learned (not in FedGC). ``refined_gradient``: whether dL/dĥ_a will be sent (the
    published Algorithm 1 sends only dL/dh_a). ``conjugate``: whether training starts with the conjugate solver, for a
    loss with ``penalty``/2 |D|²; at theta = phi = 0 a unit then knows its whole gradient, and need not ask for it.
    ``refined_target``: whether the server's residual has ĥ_a[t] in it, where the paper has h_a[t].
    """

    offset: bool
    refined_gradient: bool
    conjugate: bool
    penalty: float
    refined_target: bool = False


@dataclass(frozen=True)
class Introduction(Message):
    """Unit to server, once: local blocks, refined states ĥ_c[t-1] and inputs u[t-1]."""

    A: FloatArray = field(metadata=over("states", "states"))
    B: FloatArray = field(metadata=over("states", "inputs"))
    refined: FloatArray = field(metadata=over("steps", "states"))
    inputs: FloatArray = field(metadata=over("steps", "inputs"))

    def check(self) -> None:
        shape = self.refined.shape
        self.require(min(shape) >= 1, f"'refined' needs at least one row and one state, got {shape}")


@dataclass(frozen=True)
class AugmentedStates(Message):
    """Unit to server, every round: h_a[t] and phi.

    From them the server forms A_mm(ĥ_a - ĥ_c) = h_a - phi - A_mm ĥ_c - B_mm u.

    ``gradient_norm``: norm of the gradient in (theta, phi) at the previous round's point (0 in round 0). ``refined``:
    ĥ_a[t], row t as in ``predicted``; without rows unless the plan makes it the server's target.
    """

    round: int
    gradient_norm: float
    predicted: FloatArray = field(metadata=over("steps", "states"))
    offset: FloatArray = field(metadata=over("states"))
    refined: FloatArray = field(default_factory=lambda: np.zeros((0, 0)), metadata=over("steps?", "states?"))


@dataclass(frozen=True)
class PerturbedStates(Message):
    """Unit to server, every round of a private training: [ĥ_c[t-1]; ĥ_a[t-1]; h_a[t]; u[t-1]], clipped and noised.

    ``contraction`` L_m and ``decay`` β_m: how a measurement fades in h_a; ``gain`` |C_mm|; ``bound`` R_max of the
    unit's measurements and inputs; ``clip``: length to which rows were cut; ``noise``: its standard deviation.

    The plain numbers and the local blocks are not noised. ``contraction``, ``clip`` and ``noise`` are functions of
    theta, and theta of the measurements: a gap of the published analysis, which needs them at the server.
    """

    round: int
    contraction: float
    decay: float
    gain: float
    bound: float
    clip: float
    noise: float
    A: FloatArray = field(metadata=over("states", "states"))
    B: FloatArray = field(metadata=over("states", "inputs"))
    refined: FloatArray = field(metadata=over("steps", "states"))
    augmented: FloatArray = field(metadata=over("steps", "states"))
    predicted: FloatArray = field(metadata=over("steps", "states"))
    inputs: FloatArray = field(metadata=over("steps", "inputs"))

    def check(self) -> None:
        shape = self.refined.shape
        self.require(min(shape) >= 1, f"'refined' needs at least one row and one state, got {shape}")
        for name in ("contraction", "gain", "bound", "clip", "noise"):
            value = getattr(self, name)
            self.require(value >= 0, f"field {name!r} must not be negative, got {value}")
        self.require(0 < self.decay < 1, f"field 'decay' must lie between 0 and 1, got {self.decay}")


@dataclass(frozen=True)
class StateGradients(Message):
    """Server to unit, every round: gradients of its loss with respect to the augmented states.

    ``predicted``: in row t of the server's target, h_a[t] (or ĥ_a[t], if the plan says so); ``refined``: in ĥ_a[t-1],
    through D.

    The penalty on disentanglement in that loss is ``penalty``/2 |D|²; with ``implicit`` the unit takes it implicitly
    (IMEX). ``conjugate`` says which of the two update rules the unit shall apply; after the ``last`` gradients no
    states are awaited. ``refined`` has no rows if it is not sent.
    """

    round: int
    last: bool
    conjugate: bool
    penalty: float
    implicit: bool
    predicted: FloatArray = field(metadata=over("steps", "states"))
    refined: FloatArray = field(metadata=over("steps?", "states"))

    def check(self) -> None:
        self.require(self.penalty >= 0, f"field 'penalty' must not be negative, got {self.penalty}")


@dataclass(frozen=True)
class Settled(Message):
    """Unit to server: the point of my last AugmentedStates is stationary to the asked tolerance.

    ``gradient``: norm of the gradient there, relative to that at the unit's starting point.
    """

    round: int
    gradient: float
