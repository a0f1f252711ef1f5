"""Which columns of a table belong to which unit, and whether they are inputs or outputs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from counterflow.data.headers import without_measure
from counterflow.data.options import some, suggestion
from counterflow.errors import CounterflowError, DataError, OptionError
from counterflow.plant import Channel

_KEYS = ("tags", "inputs", "outputs", "exclude", "states")
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Pattern:
    """A column name, a name with wildcards (``P1_*``), or a regular expression; and what is known of the columns."""

    text: str
    unit: str = ""
    limits: tuple[float, float] | None = None
    regex: bool = False

    @property
    def is_name(self) -> bool:
        """Whether it can only be one column's name."""
        return not self.regex and not _WILD.search(self.text)

    def among(self, names: Iterable[str]) -> list[str]:
        """The names that it fits; a name with wildcard signs in it fits itself."""
        if self.regex:
            wanted = re.compile(self.text)
            return [name for name in names if wanted.fullmatch(name)]
        known = list(names)
        return [self.text] if self.text in known else [name for name in known if fnmatchcase(name, self.text)]


@dataclass(frozen=True)
class Selection:
    """What a unit takes of a table, before the table is known."""

    tags: tuple[Pattern, ...]  # empty: only those that `inputs` and `outputs` name
    inputs: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...] | None  # None: all tags that are no inputs
    exclude: tuple[Pattern, ...] = ()
    states: int = 2


class SelectionError(DataError):
    """A selection does not fit the table; `where` is the path of the entry at fault, such as ("inputs", 0)."""

    def __init__(self, text: str, unit: str, where: tuple[str | int, ...]) -> None:
        super().__init__(text)
        self.unit = unit
        self.where = where


@dataclass(frozen=True)
class Chosen:
    """What a unit takes of a table: the columns, and the channels that they become."""

    name: str
    inputs: tuple[tuple[str, Channel], ...]
    outputs: tuple[tuple[str, Channel], ...]
    states: int = 2

    @property
    def columns(self) -> list[str]:
        """Inputs, then outputs."""
        return [column for column, _ in (*self.inputs, *self.outputs)]


def selection(given: object, unit: str) -> Selection:
    """A selection from plain values, as Python users and federation files give them."""
    if isinstance(given, Selection):
        return given
    if isinstance(given, str) or (isinstance(given, Sequence) and not isinstance(given, bytes)):
        given = {"tags": given}
    if not isinstance(given, Mapping):
        raise OptionError(
            f"unit {unit!r}: {given!r:.60} describes no unit: give a table with tags, inputs and outputs."
        )
    for key in given:
        if key not in _KEYS:
            raise OptionError(f"unit {unit!r}: {key!r} is not known: {suggestion(str(key), _KEYS)}")
    states = given.get("states", 2)
    if isinstance(states, bool) or not isinstance(states, int) or states < 1:
        raise OptionError(f"unit {unit!r}: states is {states!r}: give a whole number of at least 1.")
    tags, inputs, outputs, exclude = (patterns(given.get(key), f"unit {unit!r}: {key}") for key in _KEYS[:4])
    if not tags and not outputs:
        raise OptionError(f"unit {unit!r}: give 'tags', such as 'P1_*', or 'outputs'.")
    return Selection(tags, inputs, None if given.get("outputs") is None else outputs, exclude, states)


def patterns(given: object, what: str) -> tuple[Pattern, ...]:
    """Patterns from one, or a list, of texts, Channels, {"regex": ...} and {"name": ..., "limits": ...}."""
    if given is None:
        return ()
    if isinstance(given, (str, Mapping, Channel)):
        given = [given]
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise OptionError(f"{what} is {given!r:.60}: give a pattern, a list of them, or {{regex = '...'}}.")
    return tuple(_pattern(entry, f"{what}[{k}]") for k, entry in enumerate(given))


def _pattern(entry: object, what: str) -> Pattern:
    if isinstance(entry, Channel):
        return Pattern(entry.name, entry.unit, entry.limits)
    given = {"name": entry} if isinstance(entry, str) else entry if isinstance(entry, Mapping) else {}
    kind = "regex" if "regex" in given else "name"
    text, limits = given.get(kind), given.get("limits")
    if not isinstance(text, str) or not text.strip():
        raise OptionError(f"{what} is {entry!r:.60}: give a pattern, {{name = '...'}} or {{regex = '...'}}.")
    known = (kind, "unit", "limits")
    if odd := [key for key in given if key not in known]:
        raise OptionError(f"{what}: {odd[0]!r} is not known: there are {', '.join(known)}.")
    try:
        if kind == "regex":
            re.compile(text)
        probe = Channel("probe", given.get("unit", ""), None if limits is None else tuple(limits))
    except re.error as error:
        raise OptionError(f"{what} is no regular expression: {error}.") from None
    except (CounterflowError, TypeError) as error:
        raise OptionError(f"{what}: {str(error).replace(repr('probe'), text)}") from None
    return Pattern(text.strip(), probe.unit, probe.limits, kind == "regex")


def choose(units: Mapping[str, Any], columns: Sequence[str], measures: Mapping[str, str] | None = None) -> list[Chosen]:
    """Match every unit's selection with the columns of a table; a SelectionError tells what does not fit.

    ``measures``: units of measure by column, as far as the table tells them; what a selection says counts more.
    """
    if not isinstance(units, Mapping) or not units:
        raise OptionError("units must map at least one unit name to its tags, such as {'boiler': {'tags': 'P1_*'}}.")
    owners: dict[str, str] = {}
    found = []
    for name, given in units.items():
        wanted = selection(given, name)
        sides = _sides(name, columns, wanted)
        for column, (_, where) in {**sides[0], **sides[1]}.items():
            if column in owners:
                text = f"column {column!r} belongs to unit {owners[column]!r}, too: exclude it from one of them"
                raise SelectionError(text, name, where)
            owners[column] = name
        # under their own names if a channel may have them, all different
        taken = {column for side in sides for column in side if channel_name(column) == column}
        made: list[tuple[tuple[str, Channel], ...]] = []
        for side in sides:
            channels = []
            for column, (pattern, _) in side.items():
                own = channel_name(without_measure(column, measures or {}), taken - {column})
                measure = pattern.unit or (measures or {}).get(column, "")
                channels.append((column, Channel(own, measure, pattern.limits)))
                taken.add(own)
            made.append(tuple(channels))
        found.append(Chosen(name, made[0], made[1], wanted.states))
    return found


_Matched = dict[str, tuple[Pattern, tuple[str | int, ...]]]  # columns, with the pattern that fits and where it stands


def _sides(unit: str, columns: Sequence[str], wanted: Selection) -> tuple[_Matched, _Matched]:
    """Inputs, then outputs of a unit; each in the order of its patterns, all other tags in that of the table."""

    def fitting(side: str, patterns: Sequence[Pattern], pool: Sequence[str], outside: bool = False) -> _Matched:
        """Columns that fit any of the patterns; each pattern must fit something.

        ``outside``: a full name may stand outside the pool, and says more of its column than a pattern does.
        """
        found: _Matched = {}
        for k, pattern in enumerate(patterns):
            names = pattern.among(pool)
            if not names and pattern.is_name and outside:
                names = pattern.among(columns)
            if not names:
                raise SelectionError(_unmatched(pattern, pool, columns), unit, (side, k))
            for column in names:
                if column not in found:
                    found[column] = pattern, (side, k)
                elif pattern.is_name and not found[column][0].is_name:
                    found[column] = pattern, found[column][1]
        return found

    tags = fitting("tags", wanted.tags, columns) if wanted.tags else None
    excluded = fitting("exclude", wanted.exclude, columns if tags is None else list(tags))
    pool = [column for column in columns if (tags is None or column in tags) and column not in excluded]
    inputs = fitting("inputs", wanted.inputs, pool, outside=True)
    if wanted.outputs is None:
        rest = [column for column in pool if column not in inputs]
        outputs: _Matched = {column: (Pattern(column), tags[column][1] if tags else ()) for column in rest}
    else:
        outputs = fitting("outputs", wanted.outputs, pool, outside=True)
    for column in outputs:
        if column in inputs:
            text = f"column {column!r} is both an input and an output: leave it out of one of them"
            raise SelectionError(text, unit, outputs[column][1])
    if not outputs:
        raise SelectionError("no output is left: a unit measures at least one; name some in 'outputs'", unit, ())
    return inputs, outputs


def _unmatched(pattern: Pattern, pool: Sequence[str], columns: Sequence[str]) -> str:
    """That a pattern fits nothing of the pool, and what may have been meant instead."""
    bare = re.sub(r"[*?\[\]]", "", pattern.text)
    near = difflib.get_close_matches(pattern.text, columns, 1, 0.6)
    near = near or difflib.get_close_matches(bare, columns, 1, 0.5)
    near = near or [column for column in columns if bare and bare.casefold() in column.casefold()][:1]
    kind = "the regular expression" if pattern.regex else "the column" if pattern.is_name else "the pattern"
    if outside := pattern.among(columns):
        hint = f"it fits {outside[0]!r}, which is not one of the unit's tags"
    else:
        hint = f"did you mean {near[0]!r}?" if near else f"the columns are {some(pool)}"
    return f"{kind} {pattern.text!r} fits no column of the table; {hint}"


def channel_name(column: str, taken: Iterable[str] = ()) -> str:
    """A column's name as a channel may have it: slashes become dashes, and it stays different from those taken."""
    clean = "".join(sign for sign in column if sign.isprintable())
    clean = clean.replace("/", "-").replace("\\", "-").strip().lstrip(".").strip() or "channel"
    clean = clean.encode()[:230].decode(errors="ignore")[:95].strip()  # leaves room for a number
    known = set(taken)
    names = (clean, *(f"{clean}_{number}" for number in range(2, len(known) + 3)))
    return next(name for name in names if name not in known)
