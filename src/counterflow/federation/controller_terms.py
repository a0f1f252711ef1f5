"""A plant's controllers between machines: what it says of them, and what they answer. Their laws stay at the plant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import numpy as np

from counterflow.control import Law
from counterflow.errors import OptionError, PrivacyError, ProtocolError
from counterflow.exchange.controllers import UnitControllers
from counterflow.federation.policy import Policy
from counterflow.protocol import Reaction, Trial

MOST_MEMORY = 1000  # rows that a law may look back
ELSEWHERE = (
    "between machines a plant asks what its own controllers would do in manual, or tuned otherwise: those of others "
    "follow the laws that they have"
)


@dataclass(frozen=True)
class ControllerTerms:
    """What a plant says of its controllers to the coordinator.

    ``moves``: the inputs that they move, by number; ``locked``: those of them that never moved otherwise. ``reacts``:
    whether they answer to trials; if so, ``switches``: whether one of them is a relay, and ``memory``: how many rows
    before its own a law looks at.

    Examples
    --------
    >>> said = ControllerTerms((1,), reacts=True, memory=1)
    >>> ControllerTerms.from_text(said.to_text(), inputs=3) == said
    True
    """

    moves: tuple[int, ...]
    locked: tuple[int, ...] = ()
    reacts: bool = False
    switches: bool = False
    memory: int = 0

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str, inputs: int) -> ControllerTerms:
        """From JSON of a unit with so many inputs, trusting nothing."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        return cls.from_json(found, inputs)

    @classmethod
    def from_json(cls, found: object, inputs: int) -> ControllerTerms:
        """The same from plain types."""
        keys = {"moves", "locked", "reacts", "switches", "memory"}
        if not isinstance(found, dict) or set(found) != keys:
            raise OptionError(f"controllers: a table with {', '.join(sorted(keys))} is needed")
        for name in ("moves", "locked"):
            columns = found[name]
            good = isinstance(columns, list) and all(type(k) is int and 0 <= k < inputs for k in columns)
            if not good or len(set(columns)) < len(columns):
                raise OptionError(f"controllers: {name!r} must list some of {inputs} inputs, each once")
        if not set(found["locked"]) <= set(found["moves"]):
            raise OptionError("controllers: 'locked' must be among those that are moved")
        flags = all(isinstance(found[name], bool) for name in ("reacts", "switches"))
        if not flags or type(found["memory"]) is not int or not 0 <= found["memory"] <= MOST_MEMORY:
            raise OptionError(f"controllers: truth values, and a memory of 0 to {MOST_MEMORY} rows, are needed")
        return cls(tuple(found["moves"]), tuple(found["locked"]), *(found[k] for k in ("reacts", "switches", "memory")))


@dataclass(frozen=True)
class PlantControllers:
    """A plant's controllers in a standing job: what it says of them, and what they answer."""

    controllers: UnitControllers

    def supposing(self, laws: Mapping[str, Law], policy: Policy) -> ControllerTerms:
        """What the coordinator is told in a question of this plant's own that supposes other laws."""
        said = replace(self, controllers=self.controllers.supposing(laws)).terms(policy)
        if said is None or not said.reacts:
            raise PrivacyError(
                "other laws need controllers that answer: set react = true below [controllers] of policy.toml",
                code="controllers-silent",
            )
        return said

    def terms(self, policy: Policy) -> ControllerTerms | None:
        """What the coordinator is told; None: there are none.

        A controller that reads another unit's measurement is not asked between machines: no measurement leaves a unit.
        """
        own, unit = self.controllers, self.controllers.part.unit
        elsewhere = [unit.input_names.index(loop.moves) for loop in unit.loops if loop.reading_unit is not None]
        moves = tuple(dict.fromkeys([*own.columns, *elsewhere]))
        if not moves:
            return None
        may_leave = policy.react and (policy.kinds is None or "Reaction" in policy.kinds)
        if elsewhere or own.memory > MOST_MEMORY or not may_leave:
            return ControllerTerms(moves, own.locked)
        return ControllerTerms(moves, own.locked, True, own.switches, own.memory)

    def reaction(self, trial: Trial, digest: str, laws: Mapping[str, Law]) -> tuple[Reaction, tuple[int, ...]]:
        """The answer to a trial with that SHA-256, and the inputs that controllers move.

        ``laws``: others, that a question of this plant's own supposes.
        """
        own = self.controllers.supposing(laws) if laws else self.controllers
        if trial.tried.size and trial.tried.shape[1] != len(own.columns):
            raise ProtocolError(f"unit {trial.unit!r}: its controllers move other inputs")
        with np.errstate(all="ignore"):  # what is beyond all measure is refused as a message
            return replace(own.react(trial), trial=digest), own.columns
