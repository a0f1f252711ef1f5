"""Which columns of a table belong to which unit, and whether they are inputs or outputs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from counterflow.data.headers import without_measure
from counterflow.errors import CounterflowError, DataError, OptionError
from counterflow.plant import Channel

_KEYS = ("tags", "inputs", "outputs", "exclude", "states")
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Pattern:
    """A column name, a name with wildcards (``P1_*``), or a regular expression; and what is known of the columns.

    Examples
    --------
    >>> Pattern("P1_*").among(["P1_a", "P2_a"]), Pattern("P._a", regex=True).among(["P1_a", "P2_a"])
    (['P1_a'], ['P1_a', 'P2_a'])
    """

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
    """What a unit takes of a table, before the table is known.

    Parameters
    ----------
    tags : tuple of Pattern
        Its columns; empty: only those that `inputs` and `outputs` name.
    inputs : tuple of Pattern
    outputs : tuple of Pattern or None
        None: all tags that are no inputs.
    exclude : tuple of Pattern
        Of the tags, those to leave out.
    states : int
        Number of states of the unit.
    """

    tags: tuple[Pattern, ...]
    inputs: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...] | None
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
    """A selection from plain values, as Python users and federation files give them.

    Examples
    --------
    >>> selection({"tags": "P1_*", "inputs": ["*_D", {"name": "P1_pump", "unit": "%", "limits": (0, 100)}]}, "boiler")
    Selection(tags=(Pattern(text='P1_*', ...
    """
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
    tags, inputs, outputs, exclude = (
        patterns(given.get(key), f"unit {unit!r}: {key}") for key in ("tags", "inputs", "outputs", "exclude")
    )
    found = Selection(tags, inputs, None if given.get("outputs") is None else outputs, exclude, states)
    if not found.tags and not found.outputs:
        raise OptionError(f"unit {unit!r}: give 'tags', such as 'P1_*', or 'outputs'.")
    return found


def suggestion(name: str, known: Sequence[str]) -> str:
    """The known name that may have been meant, or all of them."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}."


def patterns(given: object, what: str) -> tuple[Pattern, ...]:
    """Patterns from one, or a list, of texts, {"regex": ...}, Channels and {"name": ..., "unit": ..., "limits": ...}.

    Examples
    --------
    >>> patterns(["*_D", {"regex": "FT.*", "unit": "m3/h"}], "inputs")[1]
    Pattern(text='FT.*', unit='m3/h', limits=None, regex=True)
    """
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
    if isinstance(entry, str):
        if not entry.strip():
            raise OptionError(f"{what} is empty: give a column's name or a pattern.")
        return Pattern(entry.strip())
    if isinstance(entry, Mapping):
        known = ("regex", "unit", "limits") if "regex" in entry else ("name", "unit", "limits")
        odd = [key for key in entry if key not in known]
        text = entry.get("regex", entry.get("name"))
        if not odd and isinstance(text, str) and text.strip():
            if "regex" in entry:
                try:
                    re.compile(text)
                except re.error as error:
                    raise OptionError(f"{what} is no regular expression: {error}.") from None
            limits = entry.get("limits")
            try:
                probe = Channel("probe", entry.get("unit", ""), None if limits is None else tuple(limits))
            except (CounterflowError, TypeError) as error:
                raise OptionError(f"{what}: {str(error).replace(chr(39) + 'probe' + chr(39), text)}") from None
            return Pattern(text.strip(), probe.unit, probe.limits, "regex" in entry)
        if odd:
            raise OptionError(f"{what}: {odd[0]!r} is not known: there are {', '.join(known)}.")
    raise OptionError(f"{what} is {entry!r:.60}: give a pattern, {{name = '...'}} or {{regex = '...'}}.")


def choose(units: Mapping[str, Any], columns: Sequence[str], measures: Mapping[str, str] | None = None) -> list[Chosen]:
    """Match every unit's selection with the columns of a table.

    ``measures``: units of measure by column, as far as the table tells them; what a selection says counts more.

    Raises
    ------
    SelectionError
        If a pattern fits nothing, a column falls to two units, or to both inputs and outputs.

    Examples
    --------
    >>> found = choose({"boiler": {"tags": "P1_*", "inputs": "*_D"}}, ["P1_valve_D", "P1_flow", "P2_flow"])
    >>> found[0].columns
    ['P1_valve_D', 'P1_flow']
    """
    if not isinstance(units, Mapping) or not units:
        raise OptionError("units must map at least one unit name to its tags, such as {'boiler': {'tags': 'P1_*'}}.")
    found = []
    owners: dict[str, str] = {}
    for name, given in units.items():
        chosen = _choose(name, selection(given, name), columns, measures or {})
        for column in chosen.columns:
            if column in owners:
                text = f"column {column!r} belongs to unit {owners[column]!r}, too: exclude it from one of them"
                raise SelectionError(text, name, _owner(selection(given, name), column))
            owners[column] = name
        found.append(chosen)
    return found


def _owner(wanted: Selection, column: str) -> tuple[str | int, ...]:
    """Which entry of a selection brought a column in."""
    sides = {"inputs": wanted.inputs, "outputs": wanted.outputs or (), "tags": wanted.tags}
    fitting = ((side, k) for side in sides for k, pattern in enumerate(sides[side]) if pattern.among([column]))
    return next(fitting, ())


def _choose(unit: str, wanted: Selection, columns: Sequence[str], measures: Mapping[str, str]) -> Chosen:
    pool = _fitting(unit, "tags", wanted.tags, columns, columns) if wanted.tags else list(columns)
    excluded = set(_fitting(unit, "exclude", wanted.exclude, pool, columns))
    pool = [column for column in pool if column not in excluded]
    inputs = _side(unit, "inputs", wanted.inputs, pool, columns)
    if wanted.outputs is None:
        outputs = {column: Pattern(column) for column in pool if column not in inputs}
    else:
        outputs = _side(unit, "outputs", wanted.outputs, pool, columns)
    both = [column for column in outputs if column in inputs]
    if both:
        text = f"column {both[0]!r} is both an input and an output: leave it out of one of them"
        raise SelectionError(text, unit, ("outputs", *_owner(Selection((), (), wanted.outputs), both[0])[1:]))
    if not outputs:
        raise SelectionError("no output is left: a unit measures at least one; name some in 'outputs'", unit, ())
    taken = {column for column in (*inputs, *outputs) if channel_name(column) == column}  # they keep their names
    sides = []
    for side in (inputs, outputs):
        channels = []
        for column, pattern in side.items():
            name = channel_name(without_measure(column, measures), taken - {column})
            channel = Channel(name, pattern.unit or measures.get(column, ""), pattern.limits)
            taken.add(name)
            channels.append((column, channel))
        sides.append(tuple(channels))
    return Chosen(unit, sides[0], sides[1], wanted.states)


def _fitting(
    unit: str, side: str, wanted: Sequence[Pattern], names: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """The names that fit any of the patterns, in the table's order; each pattern must fit something."""
    found: set[str] = set()
    for k, pattern in enumerate(wanted):
        some = pattern.among(names)
        if not some:
            _refuse_unmatched(unit, (side, k), pattern, names, columns)
        found.update(some)
    return [name for name in names if name in found]


def _side(
    unit: str, side: str, wanted: Sequence[Pattern], pool: Sequence[str], columns: Sequence[str]
) -> dict[str, Pattern]:
    """Columns of one side in the order of the patterns; a full name may stand outside the unit's tags."""
    found: dict[str, Pattern] = {}
    for k, pattern in enumerate(wanted):
        some = pattern.among(pool)
        if not some and pattern.is_name:
            some = pattern.among(columns)
        if not some:
            _refuse_unmatched(unit, (side, k), pattern, pool, columns)
        for column in some:
            # a name of its own says more of a column than a pattern does
            if column not in found or (pattern.is_name and not found[column].is_name):
                found[column] = pattern
    return found


def _refuse_unmatched(
    unit: str, where: tuple[str | int, ...], pattern: Pattern, names: Sequence[str], columns: Sequence[str]
) -> None:
    bare = re.sub(r"[*?\[\]]", "", pattern.text)
    near = difflib.get_close_matches(pattern.text, columns, 1, 0.6) or difflib.get_close_matches(bare, columns, 1, 0.5)
    near = near or [column for column in columns if bare and bare.casefold() in column.casefold()][:1]
    kind = "the regular expression" if pattern.regex else "the column" if pattern.is_name else "the pattern"
    outside = pattern.among(columns)
    if outside:
        hint = f"; it fits {outside[0]!r}, which is not one of the unit's tags"
    elif near:
        hint = f"; did you mean {near[0]!r}?"
    else:
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        hint = f"; the columns are {shown}"
    raise SelectionError(f"{kind} {pattern.text!r} fits no column of the table{hint}", unit, where)


def channel_name(column: str, taken: Iterable[str] = ()) -> str:
    """A column's name as a channel may have it: slashes become dashes, and it stays different from those taken.

    Examples
    --------
    >>> channel_name("area 1/FIC101.PV"), channel_name(".x", ["x"])
    ('area 1-FIC101.PV', 'x_2')
    """
    clean = "".join(sign for sign in column if sign.isprintable())
    clean = clean.replace("/", "-").replace("\\", "-").strip().lstrip(".").strip() or "channel"
    clean = clean.encode()[:230].decode(errors="ignore")[:95].strip()  # leaves room for a number
    name, number = clean, 2
    known = set(taken)
    while name in known:
        name, number = f"{clean}_{number}", number + 1
    return name
