"""A first description of a plant, from the names of its tags and what its channels hold: units, inputs and outputs.

It is made to be used as it is, and to be read: what is uncertain is asked as a question, with the choice that was made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterflow.data.headers import without_measure
from counterflow.data.inspection import ChannelFacts, Inspection
from counterflow.data.selection import Chosen, Pattern, Selection, channel_name, choose
from counterflow.data.tags import Role, Tag, read_tag
from counterflow.data.times import zones_of
from counterflow.plant import Channel
from counterflow.wording import listed

_STEPS = 0.5  # a channel that repeats the value before in so many rows is moved by steps, as people move things
_STILL = 0.8  # the same for a channel of which nothing else is known
_MOST_TEXT = 0.2  # share of cells of text from which a channel is left out
_MOST_UNITS = 40
_LABELS = frozenset(["label", "labels", "anomaly", "normal/attack", "target", "class"])
_PERCENT = ("", "%", "pct", "percent", "% open", "%open")
_LIMITS = (0.0, 100.0)  # of what is moved in per cent


@dataclass(frozen=True)
class Draft:
    """What was understood of a table: units, what was left out and why, and questions.

    Examples
    --------
    >>> import polars
    >>> from counterflow.data import draft, inspect
    >>> steps = [float(k // 5 % 3) for k in range(60)]
    >>> flow = [20 + 0.37 * k % 7 for k in range(60)]
    >>> table = {"time": list(range(60)), "FIC-101.SP": steps, "FIC-101.PV": flow, "LI-201": flow[::-1]}
    >>> made = draft(inspect(polars.DataFrame(table)))
    >>> print(made.picture)
    area_1
      inputs   FIC-101.SP
      outputs  FIC-101.PV
    area_2
      outputs  LI-201
    """

    units: tuple[Chosen, ...]
    why: Mapping[str, str] = field(default_factory=dict)  # by column: what it is taken for
    left_out: Mapping[str, str] = field(default_factory=dict)
    questions: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of reading, that the table needs
    reason: str = ""  # why there are no units, if there are none

    @property
    def picture(self) -> str:
        """The units with their channels, as text."""
        lines = []
        for unit in self.units:
            lines.append(unit.name)
            for side in ("inputs", "outputs"):
                channels = [channel for _, channel in getattr(unit, side)]
                shown = [f"{each.name} [{each.unit}]" if each.unit else each.name for each in channels]
                lines += [f"  {side.ljust(8)} {', '.join(shown)}"] if shown else []
        if self.left_out:
            lines += ["left out", *(f"  {column}: {why}" for column, why in self.left_out.items())]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """As plain values, for JSON."""

        def told(column: str, channel: Channel) -> dict[str, Any]:
            return {"column": column, **channel.to_json(), "why": self.why.get(column, "")}

        units = [
            {"name": unit.name, "inputs": [told(*pair) for pair in unit.inputs],
             "outputs": [told(*pair) for pair in unit.outputs]}
            for unit in self.units
        ]  # fmt: skip
        return {
            "units": units, "left_out": dict(self.left_out), "questions": list(self.questions),
            "options": dict(self.options), "reason": self.reason,
        }  # fmt: skip


def draft(found: Inspection) -> Draft:
    """Units, inputs and outputs of a table, as far as its tags and its values tell.

    Units are areas, by what stands before the letters of tags, or by the hundreds of loop numbers; a plant of one area
    is divided by loop numbers. Set points and what moves by steps are inputs, what is measured is an output. Of a loop
    in automatic the set point is the input and the controller's output an output: it moves as the plant does.
    """
    options: dict[str, Any] = {}
    questions: list[str] = []
    if found.time is not None and found.time.clock_changes and found.table.times is not None:
        zones = zones_of(found.table.times, found.time.turns) if found.time.turns else []
        options |= {"timezone": zones[0]} if len(zones) == 1 else {}
        questions += _clock_questions(found.time.clock_changes, bool(found.time.turns), zones)
    left_out = {channel.name: reason for channel in found.channels if (reason := _unusable(channel))}
    usable = {channel.name: channel for channel in found.channels if channel.name not in left_out}
    for name, channel in usable.items():
        if channel.odd_count:
            options["text"] = "missing"
            word = next(iter(channel.odd))
            questions.append(f"{name} has text such as {word!r} in {channel.odd_count} cells: is that missing?")
    roles = _Roles(usable, {name: read_tag(without_measure(name, found.table.measures)) for name in usable}, questions)
    left_out |= roles.left_out
    kept = {name: tag for name, tag in roles.tags.items() if name not in left_out}
    selections = {}
    for group, names in _grouped(kept, roles.inputs, questions).items():
        patterns = {name: _pattern(found, roles, name) for name in names}
        inputs, outputs = (
            tuple(pattern for name, pattern in patterns.items() if (name in roles.inputs) is moved)
            for moved in (True, False)
        )
        selections[group] = Selection((), inputs, outputs)
    units = tuple(choose(selections, list(usable), found.table.measures)) if selections else ()
    if units and not roles.inputs:
        questions.append("no channel looks like one that people or controllers move: which are inputs?")
    why = {**roles.outputs, **roles.inputs}
    return Draft(units, why, left_out, tuple(questions), options, "" if units else _reason(list(kept), left_out))


def _pattern(found: Inspection, roles: _Roles, name: str) -> Pattern:
    """A channel, with limits where it is moved in per cent."""
    measure, facts = found.table.measures.get(name, ""), found[name]
    moved = name in roles.inputs and roles.tags[name].role is Role.MOVED and measure in _PERCENT
    within = facts.levels > 2 and facts.low >= 0 and (1.5 if measure else 20) < facts.high <= _LIMITS[1]
    return Pattern(name, measure, _LIMITS if moved and within else None)


def _reason(kept: Sequence[str], left_out: Mapping[str, str]) -> str:
    """Why a table makes no unit."""
    if kept:
        return "no channel looks like a measurement"
    if not left_out:
        return "there is no channel beside the time"
    column, why = next(iter(left_out.items()))
    more = f", and {len(left_out) - 1} more are left out" if len(left_out) > 1 else ""
    return f"no channel can be used: {column[:60]!r} is left out ({why}){more}"


def _clock_questions(changes: Sequence[str], back: bool, zones: Sequence[str]) -> Iterator[str]:
    """What is to be asked about clocks that are changed; `zones` are those that explain how they go back."""
    for change in changes:
        said = f"the clock goes {change}, as daylight saving time does: what is the time zone (timezone)?"
        if len(zones) == 1:
            said += f" {zones[0]} was chosen, in which it did: all rows of the hour that comes twice are kept."
        elif back:
            said += " Without it, rows of the hour that comes twice are refused"
            said += f"; it may be {listed(zones)}." if zones else "."
        yield said


def _unusable(channel: ChannelFacts) -> str:
    """Why a channel cannot be used; "" if it can."""
    if channel.name.strip().casefold() in _LABELS or channel.name.casefold().startswith("attack"):
        return "a label, no measurement"
    if channel.odd_count > _MOST_TEXT * channel.rows:
        return f"text such as {next(iter(channel.odd))!r}"
    return channel.useless


class _Roles:
    """Which channels are inputs, outputs, or left out, each with its reason; and what is to be asked about them."""

    def __init__(self, facts: Mapping[str, ChannelFacts], tags: Mapping[str, Tag], questions: list[str]) -> None:
        self.facts, self.tags, self.questions = facts, tags, questions
        self.inputs: dict[str, str] = {}
        self.outputs: dict[str, str] = {}  # those of which there is something to say
        self.left_out: dict[str, str] = {}
        loops: dict[tuple[str, str, str], dict[Role, list[str]]] = {}
        for name, tag in tags.items():
            if tag.role in (Role.MODE, Role.QUALITY):
                self.left_out[name] = f"{tag.role.value} of a loop"
            elif tag.is_isa and tag.role in (Role.MEASURED, Role.TARGET, Role.MOVED):
                loops.setdefault(tag.loop, {}).setdefault(tag.role, []).append(name)
            else:
                self._alone(name, tag)
        for loop in loops.values():
            self._loop(loop.get(Role.TARGET, []), loop.get(Role.MOVED, []))

    def _moves_by_steps(self, name: str) -> bool:
        facts = self.facts[name]
        return facts.held >= _STEPS or facts.kind in ("on/off", "discrete")

    def _alone(self, name: str, tag: Tag) -> None:
        """A channel that belongs to no loop."""
        facts = self.facts[name]
        if tag.role in (Role.TARGET, Role.MOVED):
            self.inputs[name] = tag.role.value
        elif tag.role is Role.MEASURED:
            self.outputs[name] = "measured"
        elif facts.kind in ("on/off", "discrete"):
            self.inputs[name] = facts.kind
        elif _STILL <= facts.held < 1:
            self.inputs[name] = "moves by steps"
            self.questions.append(
                f"{name} repeats its value in {100 * facts.held:.0f} % of the rows, so it was taken for an input: is "
                "it moved by people, or a measurement that is stored when it changes?"
            )

    def _loop(self, targets: Sequence[str], moved: Sequence[str]) -> None:
        """Set points and outputs of one controller."""
        free_targets = [name for name in targets if self._moves_by_steps(name)]
        by_hand = [name for name in moved if self._moves_by_steps(name)]
        if not targets:
            self.inputs.update(dict.fromkeys(moved, "moved"))
            return
        for name in targets:
            if name in free_targets:
                self.inputs[name] = "set point"
            elif by_hand:
                self.left_out[name] = "a set point that follows the measurement while the loop is run by hand"
            else:
                self.outputs[name] = "a set point that is moved by another controller"
                self.questions.append(
                    f"the set point {name} moves in nearly every row, so it was taken for an output, as another "
                    "controller's doing: is it? If people move it, make it an input."
                )
        for name in moved:
            if name in by_hand:
                self.inputs[name] = "moved by hand"
                question = (
                    f"both {listed(free_targets)} and {name} move by steps: while the loop is in automatic, only the "
                    "set point is an input; by hand, only the controller's output."
                )
            else:
                self.outputs[name] = "moved by the controller"
                question = (
                    f"{name} was taken for an output, because a controller moves it to keep {listed(free_targets)}: "
                    "answers are then about changes of the set point, with the controller at work."
                )
            self.questions += [question] if free_targets else []


def _grouped(tags: Mapping[str, Tag], inputs: Mapping[str, str], questions: list[str]) -> dict[str, list[str]]:
    """Channels by unit, in the order of the table; every unit has an output."""
    by = _division(list(tags.values()))
    found: dict[str, list[str]] = {}
    for name, tag in tags.items():
        found.setdefault(by(tag), []).append(name)
    groups: dict[str, list[str]] = {}
    for group, members in found.items():
        groups[channel_name(group, groups)] = members  # a unit may be called so
    if all(re.search(r"_\d+$", group) for group in groups):  # numbers have an order of their own
        groups = {group: groups[group] for group in sorted(groups, key=lambda group: int(group.rpartition("_")[2]))}
    if len(groups) > _MOST_UNITS:
        groups = {"plant": list(tags)}
        questions.append(f"the tags would make more than {_MOST_UNITS} units, so all are one: which belong together?")
    names = list(groups)
    for k, group in enumerate(names):
        if any(name not in inputs for name in groups[group]):
            continue
        others = [other for other in names if other in groups and other != group]
        if not others:
            questions.append("no channel looks like a measurement: which are outputs?")
            return {}
        near = min(others, key=lambda other: abs(names.index(other) - k))
        questions.append(f"{listed(groups[group])} of {group} moves something, but nothing is measured there: it was "
                         f"taken for an input of {near}. Where does it act?")  # fmt: skip
        groups[near] = [name for name in tags if name in groups[near] or name in groups[group]]
        del groups[group]
    if len(groups) == 1 and len(tags) > 1:
        questions.append("all channels are one unit: does the plant have parts that act on each other?")
    return groups


def _division(tags: Sequence[Tag]) -> Callable[[Tag], str]:
    """How channels fall to units: by the area before the letters, by hundreds, or by loop."""
    isa = [tag for tag in tags if tag.is_isa]
    if len(isa) * 2 < len(tags):
        return lambda tag: tag.area or "plant"
    for depth in range(max((len(tag.prefixes) for tag in isa), default=0)):  # the whole plant may have one prefix
        prefixes = [tag.prefix(depth) for tag in isa]
        first = {prefix.casefold(): prefix for prefix in reversed(prefixes)}  # areas that differ in case only are one
        if len(first) > 1:
            return lambda tag: _named("area", first.get(tag.prefix(depth).casefold(), tag.prefix(depth))) or "plant"
    by: tuple[tuple[str, Callable[[Tag], str]], ...] = (
        ("area", lambda tag: tag.hundred),
        ("unit", lambda tag: tag.number.rstrip("ABCDEFGH")),
    )
    for word, group in by:
        if len({group(tag) for tag in isa}) > 1:
            return lambda tag: _named(word, group(tag)) or tag.area or "plant"
    return lambda tag: "plant"


def _named(word: str, group: str) -> str:
    """A unit's name: a number alone says little."""
    return f"{word}_{group}" if group.isdigit() else group
