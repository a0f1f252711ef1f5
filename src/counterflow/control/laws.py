"""The laws that this product knows, and laws read from a file or as somebody writes them.

A new law is a module beside this one and a place in ``LAWS``: in the order in which they are tried on a log.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from counterflow.control.custom import CustomLaw, as_law
from counterflow.control.law import ControlLaw, Law
from counterflow.control.manual import Manual
from counterflow.control.pid import PID
from counterflow.control.ratio import Ratio
from counterflow.control.relay import Relay
from counterflow.control.schedule import Schedule
from counterflow.errors import ModelError

LAWS: tuple[type[ControlLaw], ...] = (Relay, PID, Ratio, Schedule, Manual)
WRITTEN: dict[str, type[Any]] = {law.kind: law for law in LAWS}
STORED: dict[str, type[Any]] = {**WRITTEN, CustomLaw.kind: CustomLaw}


def law_json(law: Law | None) -> dict[str, Any] | None:
    """A law in plain types; one that is an object of its unit leaves its name only."""
    return None if law is None else as_law(law).to_json()


def law_from_json(found: object) -> ControlLaw | None:
    """From plain types that nobody has checked.

    Examples
    --------
    >>> law_from_json(law_json(Relay(1.0, 2.0))) == Relay(1.0, 2.0)
    True
    """
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("kind") not in STORED:
        raise ModelError(f"a law has one of the kinds {', '.join(STORED)}, got {found!r:.80}.")
    law: ControlLaw = STORED[found["kind"]].from_json({name: found[name] for name in found if name != "kind"})
    return law


def law_from_table(given: object) -> ControlLaw:
    """A law by the name of its kind and its numbers, as a person writes it; what is left out has its default.

    Examples
    --------
    >>> print(law_from_table({"kind": "pid", "gain": 2, "integral_time": 10}))
    PI: gain 2, integral time 10
    """
    if not isinstance(given, dict) or given.get("kind") not in WRITTEN:
        raise ModelError(
            f"a law is a table with kind, one of {', '.join(WRITTEN)}, and its numbers; got {given!r:.80}."
        )
    kind, numbers = given["kind"], {name: given[name] for name in given if name != "kind"}
    known = [entry.name for entry in fields(WRITTEN[kind])]
    for name in numbers:
        if name not in known:
            raise ModelError(f"a law of kind {kind!r} has no {name!r:.80}; it has {', '.join(known)}.")
    try:
        return WRITTEN[kind](**numbers)  # type: ignore[no-any-return]
    except TypeError as error:
        raise ModelError(f"a law of kind {kind!r}: {error}") from None


def law_from_words(text: str) -> ControlLaw:
    """A law as somebody types it: its kind, and numbers by their names; several numbers of one name have colons.

    Examples
    --------
    >>> print(law_from_words("manual")), print(law_from_words("pid gain=-3 integral_time=20 limits=0:100"))
    manual
    PI: gain -3, integral time 20, limits 0 to 100
    (None, None)
    """
    kind, *given = text.replace(",", " ").split() or [""]
    found: dict[str, object] = {"kind": kind.lower()}
    for each in given:
        name, _, value = each.partition("=")
        try:
            numbers = [int(part) if part.lstrip("+-").isdigit() else float(part) for part in value.split(":")]
        except ValueError:
            raise ModelError(
                f"law {text!r:.80}: write its kind and its numbers, such as manual, or pid gain=2 integral_time=10."
            ) from None
        listed = len(numbers) > 1 or name in ("limits", "values")
        found[name] = tuple(numbers) if listed else numbers[0]
    return law_from_table(found)
