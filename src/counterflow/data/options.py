"""Options as dataclasses: each is stated once, with its kind, and checked once, whoever gives it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, TypeVar

from counterflow.errors import DataError, OptionError

_Function = TypeVar("_Function", bound=Callable[..., Any])
_KINDS: dict[str, tuple[type, str]] = {"str": (str, "text"), "bool": (bool, "true or false"), "int": (int, "a number")}
_MOST_LINES = 1000


@dataclass(frozen=True)
class TableOptions:
    """How a table is to be read; what is None is found from the table itself.

    Parameters
    ----------
    time : str, optional
        The time column; by default the one called time, timestamp, date, ... in any case.
    time_format : str, optional
        A strftime pattern, or "s", "ms", "us", "ns" (since 1970), "excel" or "seconds".
    day_first : bool, optional
        How to read 3/4/2024, where the column itself does not tell.
    timezone : str, optional
        Zone of local times, such as "Europe/Berlin".
    separator, decimal : str, optional
        Of a text: comma, semicolon, tab or bar; point or comma.
    encoding : str, optional
        Of a text; found are UTF-8, UTF-16 and Windows-1252.
    skip_rows, skip_after_header : int, optional
        Lines before, and after, the header that are no rows. Found if not given: lines about the export, a row with
        units of measure.
    header_word : str, optional
        The header is the first line that has this word.
    tag, value, quality : str, optional
        Columns of a long table, where they are not called so.
    sheet : str, optional
        Of a workbook: its name, or its number from 1 on. By default all sheets with a column of times are read, as
        several files are; where they have the same columns and the same times, a column is called "sheet.column".
    sentinels : bool
        Whether numbers such as -999, which recur exactly and stand far outside all others, are read as missing.
    """

    time: str | None = None
    time_format: str | None = None
    day_first: bool | None = None
    timezone: str | None = None
    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    skip_rows: int = 0
    skip_after_header: int | None = None
    header_word: str | None = None
    tag: str | None = None
    value: str | None = None
    quality: str | None = None
    sheet: str | None = None
    sentinels: bool = True

    def __post_init__(self) -> None:
        for each in fields(self):
            value, (kind, _, optional) = getattr(self, each.name), str(each.type).partition(" | ")
            if value is None and optional:
                continue
            wanted, words = _KINDS[kind]
            if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
                raise OptionError(f"{each.name} is {value!r:.80}: give {words}.")
            if isinstance(value, int) and not 0 <= value <= _MOST_LINES:
                raise OptionError(f"{each.name} is {value!r}: give a whole number from 0 to {_MOST_LINES}.")


def takes(*kinds: type) -> Callable[[_Function], _Function]:
    """A function whose keywords are the fields of these dataclasses: its signature, and so its help, names them all."""

    def described(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        more = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
            for kind in kinds for each in fields(kind)
        ]  # fmt: skip
        function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return described


def divided(given: Mapping[str, Any], *kinds: type) -> list[Any]:
    """Options as the dataclasses that have them; one that none of them has is refused."""
    names = [{each.name for each in fields(kind)} for kind in kinds]
    known = [each.name for kind in kinds for each in fields(kind)]
    for name in given:
        if name not in known:
            raise OptionError(f"option {name!r} is not known: {suggestion(name, known)}")
    own = zip(kinds, names, strict=True)
    return [kind(**{name: value for name, value in given.items() if name in its}) for kind, its in own]


def suggestion(name: str, known: Sequence[str]) -> str:
    """The known name that may have been meant, or all of them."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."


def some(names: Sequence[str], most: int = 12) -> str:
    """The first of many names, for messages."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def need(module: str, what: str, extra: str, instead: str = "") -> None:
    """Refuse what cannot be read without a package that is not installed."""
    if find_spec(module) is None:
        told = f"{what} read with {module}: pip install 'counterflow[{extra}]'{instead}"
        raise DataError(told, code="missing-extra")
