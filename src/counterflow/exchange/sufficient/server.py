"""The server's side of the default method: collect one message from each unit, estimate, done.

The estimate is computed when every unit has spoken, never from a part of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.errors import ProtocolError
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import refuse_other_rows
from counterflow.learning.likelihood import Patterns, SharedRecord
from counterflow.learning.optimiser import Estimated, maximum_likelihood
from counterflow.learning.parameters import Estimate
from counterflow.learning.prior import weak_prior
from counterflow.protocol import Finished, Message, Reduced, Request, Sufficient


@dataclass(frozen=True)
class SufficientConfig:
    """What the server is asked to estimate, and how far."""

    units: tuple[str, ...]
    estimate: Estimate = "couplings"
    tolerance: float = 1e-5
    evaluations: int = 200
    prior: bool = False  # whether to lean on the weak prior, as records drowned in noise need
    known: KnownEdges | None = None  # couplings that there can be


class OneMessage:
    """A server that asks every unit for one message, and computes when all are there."""

    config: Any
    messages: Any

    @property
    def units(self) -> tuple[str, ...]:
        return tuple(self.config.units)

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(name for name in self.units if name not in self.messages)

    def begin(self) -> tuple[Self, tuple[Message, ...]]:
        return self, tuple(Request(name) for name in self.units)


@dataclass(frozen=True)
class SufficientServer(OneMessage):
    """All that the server holds."""

    config: SufficientConfig
    messages: MappingProxyType[str, Sufficient] = field(default_factory=lambda: MappingProxyType({}))
    shared: SharedRecord | None = None
    found: Estimated | None = None
    round: int = 0
    finished: bool = False
    record: None = None  # there are no losses by the round
    progress: Callable[[float, str], None] | None = None

    GIVEN: ClassVar[frozenset[str]] = frozenset({"config", "progress"})

    def step(self, message: Message) -> tuple[SufficientServer, tuple[Message, ...]]:
        state = replace(self, messages=collected(self.messages, message, Sufficient))
        if state.waiting:
            return state, ()
        config, shared = self.config, share([state.messages[name] for name in self.units])
        found = maximum_likelihood(
            shared, config.estimate, tolerance=config.tolerance, evaluations=config.evaluations,
            penalty=weak_prior(shared, config.estimate, config.known) if config.prior else None, known=config.known,
            progress=self.progress,
        )  # fmt: skip
        state = replace(state, shared=shared, found=found, round=1, finished=True)
        return state, tuple(Finished(name, 1, found.converged) for name in self.units)


Sent = TypeVar("Sent", Sufficient, Reduced)


def collected(messages: Mapping[str, Sent], message: Message, kind: type[Sent]) -> MappingProxyType[str, Sent]:
    """What has arrived, with one more: one message of this kind from each unit, all of the same period."""
    if not isinstance(message, kind):
        raise ProtocolError(f"server: did not expect {type(message).__name__} of unit {message.unit!r}")
    if message.unit in messages:
        raise ProtocolError(f"server: unit {message.unit!r} has sent its message already")
    refuse_other_rows(message.unit, message.inputs.shape[0], {n: m.inputs.shape[0] for n, m in messages.items()})
    return MappingProxyType({**messages, message.unit: message})


def share(messages: list[Sufficient]) -> SharedRecord:
    """All messages side by side; NaN in the rows in which a unit is missing."""
    observation = block_diagonal([m.observation for m in messages])
    noise, u = np.eye(observation.shape[0]), np.hstack([m.inputs for m in messages])
    names, numbers = [m.unit for m in messages], np.hstack([m.numbers for m in messages])
    record = record_of(names, messages, numbers, u, observation, noise)
    if not any(m.ranks[1:].any() for m in messages):
        return record  # all rows that are there see the states alike
    labels = np.stack([m.labels for m in messages], axis=1)
    return replace(record, patterns=Patterns(labels, tuple(m.patterns for m in messages)))


def record_of(
    names: Iterable[str], models: Sequence[Any], values: FloatArray, u: FloatArray,
    observation: FloatArray, noise: FloatArray,
) -> SharedRecord:  # fmt: skip
    """Rows of all units side by side, with the local blocks A, B and Q of their models."""
    states, inputs = (tuple(m.A.shape[0] for m in models), tuple(m.B.shape[1] for m in models))
    A, B, Q = (block_diagonal([getattr(m, letter) for m in models]) for letter in "ABQ")
    return SharedRecord(
        tuple(names), states, inputs, values=values, u=u, observation=observation, noise=noise,
        A_local=A, B_local=B, Q_local=Q,
    )  # fmt: skip
