"""Checks that options of all methods share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import numpy as np

from counterflow.errors import OptionError


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
    good = (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )
    if not good or value < low or (open_low and value == low):  # type: ignore[operator]
        bound = "greater than" if open_low else "at least"
        raise OptionError(f"fit: option {name!r} must be a finite number {bound} {low:g}, got {value!r}")


def count(name: str, value: object) -> None:
    """OptionError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise OptionError(f"fit: option {name!r} must be a whole number of at least 1, got {value!r}")


def truth(name: str, value: object) -> None:
    """OptionError unless it is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise OptionError(f"fit: option {name!r} must be True, False or None, got {value!r}")


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
