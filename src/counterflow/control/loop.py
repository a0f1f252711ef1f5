"""A control loop of a unit: what it moves, what it reads, and what it aims at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterflow.control.custom import as_law
from counterflow.control.law import Law
from counterflow.control.laws import law_from_json, law_json
from counterflow.errors import ModelError

ELSEWHERE = "/"  # between a unit's name and its channel: no name holds a slash


@dataclass(frozen=True)
class Loop:
    """A control loop of a unit.

    Parameters
    ----------
    moves : the input that the controller moves.
    reads : the measurement that it looks at: an output of its unit, or "unit/output" of another one, whose value
        reaches the controller over a line of its own.
    target : the input (or output) that holds its set point; None: nobody records it. In a cascade the outer loop moves
        what is the target of the inner one.
    law : what the controller does, such as ``counterflow.PID``, ``Relay``, ``Ratio``, ``Schedule``, or any object with
        ``memory`` and ``output`` (``counterflow.Law``); None: it is learned from the unit's own log.

    Examples
    --------
    >>> Loop(moves="TIC-101.OP", reads="TI-101", target="TIC-101.SP")
    Loop(moves='TIC-101.OP', reads='TI-101', target='TIC-101.SP', law=None)
    >>> Loop("pump", "district_1/level").reading_unit
    'district_1'
    """

    moves: str
    reads: str
    target: str | None = None
    law: Law | None = None

    def __post_init__(self) -> None:
        for name in ("moves", "reads", "target"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value) and not (name == "target" and value is None):
                raise ModelError(f"Loop: {name} is {value!r:.80}: pass the name of a channel.")
        if self.target == self.moves or self.reads == self.moves:
            raise ModelError(f"Loop: {self.moves!r} is what the controller moves: name another channel that it reads.")
        if self.law is not None:
            as_law(self.law, f"Loop of {self.moves!r}")

    @property
    def reading_unit(self) -> str | None:
        """The other unit whose measurement it reads; None: its own."""
        return self.reads.split(ELSEWHERE, 1)[0] if ELSEWHERE in self.reads else None

    @property
    def reading(self) -> str:
        """The name of the measurement in its unit."""
        return self.reads.split(ELSEWHERE, 1)[-1]

    def to_json(self) -> dict[str, Any]:
        """In plain types."""
        return {"moves": self.moves, "reads": self.reads, "target": self.target, "law": law_json(self.law)}

    @classmethod
    def from_json(cls, found: object) -> Loop:
        """From plain types that nobody has checked.

        Examples
        --------
        >>> loop = Loop("valve", "temperature")
        >>> Loop.from_json(loop.to_json()) == loop
        True
        """
        if not isinstance(found, dict) or set(found) != {"moves", "reads", "target", "law"}:
            raise ModelError(f"a loop has moves, reads, target and law, got {found!r:.80}.")
        return cls(found["moves"], found["reads"], found["target"], law_from_json(found["law"]))
