"""Laws as their units give them: any object may be one, so that it is checked, asked with care and named.

A law of this package is a frozen dataclass of numbers. An object of a unit runs whatever code it has: what it says is
checked before anything is made of it, it cannot write into what it is shown, and an error names the law.
"""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.control.laws import STORED, Law, LawInput, Manual, UnstorableLaw
from counterflow.errors import CounterflowError, ModelError

OWN = tuple(STORED.values())  # laws of this package
MOST_MEMORY = 10_000  # rows before its own that a law may look at
FAILS = "law-fails"  # code of what is said where a law gives no answer that can be used


def check_law(law: object, what: str, kind: type[CounterflowError] = ModelError) -> None:
    """Refuse what is no law; ``what``: the loop that it is given to.

    Examples
    --------
    >>> from counterflow.control.laws import PID
    >>> check_law(PID(2.0), "valve")
    >>> check_law(3.0, "valve")
    Traceback (most recent call last):
    counterflow.errors.ModelError: valve: float is no law: pass a PID, or an object with memory and output(seen)
    """
    if isinstance(law, OWN):
        return
    try:
        memory, output = getattr(law, "memory", None), getattr(law, "output", None)
    except Exception as error:
        raise kind(f"{what}: {named_law(law)} cannot be read: {_words(error)}", code=FAILS) from error
    if memory is None or not callable(output) or isinstance(law, type):
        given = f"the class {law.__name__}" if isinstance(law, type) else type(law).__name__
        raise kind(f"{what}: {given} is no law: pass a PID, or an object with memory and output(seen)")
    if isinstance(memory, bool) or not isinstance(memory, (int, np.integer)) or not 0 <= memory <= MOST_MEMORY:
        raise kind(
            f"{what}: the memory of {named_law(law)} is {memory!r:.80}: pass a whole number of rows from 0 to "
            f"{MOST_MEMORY}",
            code=FAILS,
        )


def said_by(law: Law, seen: LawInput, finite: bool = True) -> FloatArray:
    """What a law says (K,), or one number for all worlds; ``finite``: whether it must be a number in each of them.

    Raises
    ------
    ModelError
        With the code "law-fails": it raised, or said something else than real numbers of that shape.
    """
    if isinstance(law, OWN):
        return np.asarray(law.output(seen))
    shown = LawInput(_shown(seen.moved), _shown(seen.reading), _shown(seen.target), seen.row, seen.dt)
    try:
        said = np.asarray(law.output(shown))
    except Exception as error:
        raise ModelError(f"{named_law(law)} fails in row {seen.row}: {_words(error)}", code=FAILS) from error
    worlds = len(seen.reading)
    if said.dtype.kind not in "fiub" or said.shape not in ((), (worlds,)):
        raise ModelError(
            f"{named_law(law)} answers with {said.dtype} of shape {said.shape} in row {seen.row}: output(seen) is to "
            f"return one real number for each of the {worlds} worlds that it is shown",
            code=FAILS,
        )
    if finite and not np.isfinite(said).all():
        raise ModelError(
            f"{named_law(law)} answers in row {seen.row} with what is not finite: output(seen) is to return a number "
            "in every row; a target that nobody records is NaN in what it sees",
            code=FAILS,
        )
    return said.astype(np.float64)


def _shown(rows: FloatArray) -> FloatArray:
    """The same rows, which cannot be written to."""
    shown = rows.view()
    shown.flags.writeable = False
    return shown


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def named_law(law: object) -> str:
    """What a law is, in words; one that is an object of its unit by the name of its class.

    Examples
    --------
    >>> class Predictive:
    ...     memory = 0
    ...     def output(self, seen):
    ...         return seen.reading[:, -1]
    >>> from counterflow.control.laws import PID
    >>> named_law(PID(2.0)), named_law(Predictive())
    ('P: gain 2', 'law Predictive')
    """
    return str(law) if isinstance(law, OWN) else f"law {type(law).__name__}"


def state_of(law: Law) -> str:
    """What is said of a loop that follows a law: "in manual", or "under PI: gain 2, integral time 10"."""
    return "in manual" if isinstance(law, Manual) else f"under {named_law(law)}"


def law_supposed(unit: str, moves: str, law: Law) -> Caveat:
    """What answers are to be read with in which a loop follows another law than in the record."""
    text = f"unit {unit!r}: {moves} is supposed to be {state_of(law)}, whatever law it followed in the record"
    return Caveat("law-supposed", unit, text)


def can_be_stored(law: Law) -> bool:
    """Whether a file can hold a law: those of this package, and no object of a unit."""
    return isinstance(law, OWN) and not isinstance(law, UnstorableLaw)
