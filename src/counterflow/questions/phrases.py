"""How changes of inputs read in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording

if TYPE_CHECKING:
    from counterflow.questions.answer import Described


def signed(value: float, unit: str) -> str:
    """ "+0.1 %" """
    return wording.quantity(wording.exact(value, sign=True), unit)


def plainly(value: float, unit: str) -> str:
    """ "0.1 %" """
    return wording.quantity(wording.exact(value), unit)


def sideways(value: float, unit: str) -> str:
    """ "0.1 % higher" """
    return f"{wording.quantity(wording.exact(abs(value)), unit)} {'lower' if value < 0 else 'higher'}"


def with_verb(pairs: Sequence[tuple[str, str]], verb: str) -> str:
    """ "what <verb> how, what how and what how"."""
    (first, how), *rest = pairs
    return wording.listed([f"{first} {verb} {how}", *(f"{what} {how}" for what, how in rest)])


def sized(value: float, unit: str, sign: bool = True) -> str:
    """ "+0.123 %", with three digits that count"""
    return wording.quantity(wording.number(float(value), sign=sign), unit)


def moved(
    plant: Described, unit: str, name: str, value: Any, text: Callable[[float, str], str] = signed,
    given: str = "changed as given",
) -> tuple[str, str]:  # fmt: skip
    """("boiler valve", "+0.1 %"): an input, and what becomes of it; ``given`` stands for a series."""
    measure = {channel.name: channel.unit for channel in plant.unit(unit).inputs}.get(name, "")
    return f"{unit} {name}", text(float(value), measure) if np.ndim(value) == 0 else given
