"""Options of methods: a frozen dataclass whose fields say what they may be, and the checks that they share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Self

import numpy as np

from counterflow.errors import OptionError
from counterflow.learning.known_edges import KnownEdges

Check = Callable[[str, object], None]  # of an option's name and value


@dataclass(frozen=True)
class Options:
    """Base of all options: names, defaults and checks stand in the fields of a subclass."""

    elsewhere: ClassVar[Mapping[str, str]] = {}  # options of other kinds of fits: why they are none here

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> Self:
        """OptionError if a name is no option of the method, or a value is not what it may be."""
        for name, why in cls.elsewhere.items():
            if given.get(name) is not None:
                raise OptionError(f"fit: option {name!r} {why}")
        known_names(cls, method, given)
        options = cls(**given)
        for entry in fields(cls):
            if "check" in entry.metadata:
                entry.metadata["check"](entry.name, getattr(options, entry.name))
        options._edges()
        return options

    def known_edges(self, units: Sequence[str]) -> KnownEdges | None:
        """Couplings that there can be between these units; None: all. OptionError if another unit is named."""
        known = self._edges()
        if known is not None:
            known.check(units)
        return known

    def _edges(self) -> KnownEdges | None:
        """What ``edges`` and ``forbidden`` say, where a method has such options; refuses pairs that make no sense."""
        return KnownEdges.parse(getattr(self, "edges", None), getattr(self, "forbidden", None))


def option(default: Any, check: Check) -> Any:
    """A field of options, with the check of its value."""
    return field(default=default, metadata={"check": check})


def known_names(cls: type, method: str, given: Mapping[str, Any]) -> None:
    """OptionError if a name is no option of the method."""
    names = [f.name for f in fields(cls)]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
            raise OptionError(f"fit: method {method!r} has no option {name!r}{hint}")


def choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """OptionError unless it is one of the choices."""
    if value not in choices:
        raise OptionError(f"fit: option {name!r} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def number(name: str, value: object, low: float, open_low: bool = False) -> None:
    """OptionError unless it is a finite number from ``low`` on."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    known: Any = value if real else math.nan
    if not math.isfinite(known) or known < low or (open_low and known == low):
        bound = "greater than" if open_low else "at least"
        raise OptionError(f"fit: option {name!r} must be a finite number {bound} {low:g}, got {value!r}")


def count(name: str, value: object, low: int = 1) -> None:
    """OptionError unless it is a whole number of at least ``low``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < low:
        raise OptionError(f"fit: option {name!r} must be a whole number of at least {low}, got {value!r}")


def truth(name: str, value: object) -> None:
    """OptionError unless it is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"fit: option {name!r} must be True, False or None, got {value!r}")


def one_of(*choices: str) -> Check:
    """A check: one of the choices."""
    return lambda name, value: choice(name, value, choices)


def for_each_unit(check: Check) -> Check:
    """A check: None, one value for all units, or {unit: value}."""

    def each(name: str, value: object) -> None:
        for one in value.values() if isinstance(value, Mapping) else [value]:
            if one is not None:
                check(name, one)

    return each


def by_unit(name: str, value: Any, units: tuple[str, ...]) -> dict[str, Any]:
    """An option that is one value or {unit: value}, by unit; units that it says nothing of are left out."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return dict.fromkeys(units, value)
    for unit in value:
        if unit not in units:
            raise OptionError(f"fit: option {name!r} names unit {unit!r}, but the units are {', '.join(units)}")
    return dict(value)
