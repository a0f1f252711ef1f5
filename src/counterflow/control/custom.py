"""A law that a unit wrote itself: it is checked, shown rows that it cannot write to, asked with care and named.

It runs whatever code it has. What it says is checked before anything is made of it, and an error names the law.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.control.law import ControlLaw, Law, LawInput
from counterflow.errors import CounterflowError, ModelError

MOST_MEMORY = 10_000  # rows before its own that a law may look at
FAILS = "law-fails"  # code of what is said where a law gives no answer that can be used


@dataclass(frozen=True, eq=False)
class CustomLaw(ControlLaw):
    """A Python object of its unit that no file can hold; ``given`` None: read from a file, which has its name only."""

    kind: ClassVar[str] = "own"
    storable: ClassVar[bool] = False

    name: str
    given: Law | None = None

    @property
    def looks(self) -> bool:  # type: ignore[override]
        return self.given is not None

    @property
    def memory(self) -> int:
        return 0 if self.given is None else int(self.given.memory)

    def answer(self, seen: LawInput) -> FloatArray:
        """One number for all worlds will do; ModelError "law-fails": it raised, or answers with another shape."""
        if self.given is None:
            raise ModelError(
                f"the law {self.name!r} is an object of its unit and not stored: give it again with its Loop."
            )
        shown = LawInput(_read_only(seen.moved), _read_only(seen.reading), _read_only(seen.target), seen.row, seen.dt)
        try:
            said = np.asarray(self.given.output(shown))
        except Exception as error:
            raise ModelError(f"{self} fails in row {seen.row}: {_words(error)}", code=FAILS) from error
        worlds = len(seen.reading)
        if said.dtype.kind not in "fiub" or said.shape not in ((), (worlds,)):
            raise ModelError(
                f"{self} answers with {said.dtype} of shape {said.shape} in row {seen.row}: output(seen) is to return "
                f"one real number for each of the {worlds} worlds that it is shown",
                code=FAILS,
            )
        return said.astype(np.float64)

    def output(self, seen: LawInput, left: FloatArray | float = 0.0) -> FloatArray:
        said = super().output(seen, left)
        if not np.isfinite(said).all():
            raise ModelError(
                f"{self} answers in row {seen.row} with what is not finite: output(seen) is to return a number in "
                "every row; a target that nobody records is NaN in what it sees",
                code=FAILS,
            )
        return said

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name}

    def __str__(self) -> str:
        return f"law {self.name!r}, which is not stored" if self.given is None else f"law {self.name}"


def as_law(law: object, what: str = "law", kind: type[CounterflowError] = ModelError) -> ControlLaw:
    """A law with all that is asked of one; refuses what is no law. ``what``: the loop that it is given to."""
    if isinstance(law, ControlLaw):
        return law
    name = type(law).__name__
    try:
        memory, output = getattr(law, "memory", None), getattr(law, "output", None)
    except Exception as error:
        raise kind(f"{what}: law {name} cannot be read: {_words(error)}", code=FAILS) from error
    if memory is None or not callable(output) or isinstance(law, type):
        given = f"the class {law.__name__}" if isinstance(law, type) else name
        raise kind(f"{what}: {given} is no law: pass a PID, or an object with memory and output(seen)")
    if isinstance(memory, bool) or not isinstance(memory, (int, np.integer)) or not 0 <= memory <= MOST_MEMORY:
        raise kind(
            f"{what}: the memory of law {name} is {memory!r:.80}: pass a whole number of rows from 0 to {MOST_MEMORY}",
            code=FAILS,
        )
    return CustomLaw(name, law)  # type: ignore[arg-type]


def _read_only(rows: FloatArray) -> FloatArray:
    shown = rows.view()
    shown.flags.writeable = False
    return shown


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"
