"""What was seen in a table and done to it: one kind of note, of which each says what, how much, where and what to do.

Those who read, inspect and prepare give facts; the sentence of each kind of note stands here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One thing that was seen or done: what kind, in words, and in numbers; with `doubt`, it deserves a look."""

    name: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    doubt: bool = False


@dataclass(frozen=True)
class Preparation:
    """What was done to turn a table into a recording.

    Parameters
    ----------
    files : tuple of str
    rows_read, rows : int
        Rows of the table, and of the recording.
    dt : float
        Seconds between two rows of the recording.
    start, stop : str
        Times of its first and last row.
    steps : tuple of Step
        Everything that was done, in order; those with `doubt` deserve a look.
    dropped : mapping of unit to mapping of column to reason
    stretches : tuple of (start, stop)
        Rows of the recording without a long gap, for ``recording.slice(start, stop)``.
    """

    files: tuple[str, ...]
    rows_read: int
    rows: int
    dt: float
    start: str
    stop: str
    steps: tuple[Step, ...]
    dropped: Mapping[str, Mapping[str, str]]
    stretches: tuple[tuple[int, int], ...]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences about what deserves a look."""
        return tuple(step.text for step in self.steps if step.doubt)

    @property
    def longest_stretch(self) -> tuple[int, int]:
        """The longest of the stretches."""
        return max(self.stretches, key=lambda ends: ends[1] - ends[0])

    def to_json(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        steps, stretches = [asdict(step) for step in self.steps], [list(ends) for ends in self.stretches]
        return asdict(self) | {"files": list(self.files), "stretches": stretches, "steps": steps}

    def __str__(self) -> str:
        return "\n".join(f"{'! ' if step.doubt else '  '}{step.text}" for step in self.steps)


# Sentences by kind of note; "!" before one that deserves a look. "{rows:row}" is a count with its noun: "1 row", "2
# rows". Of what is told of columns, {columns} lists them with their numbers, {count} is how many they are, {total} and
# {most} are the sum and the largest of their numbers.
_SENTENCES = {
    "read": "{files}: {rows:row}, {channels:channel}.",
    "sheets": "!{count:sheet} of {file} left out, because no column of times was found there: {titles}.",
    "quality": "!{count:value} of bad quality: treated as missing.",
    "overwritten": "!{count:value} replaced by a later one of the same tag and time that differs; if clocks were "
    "changed then, give the option timezone.",
    "short": "!{rows:row} with fewer cells than the header: what they lack is treated as missing.",
    "measures": "Units of measure are told of {count:channel}.",
    "no time": "No time column was found: rows are taken as they come. Name it with the option time.",
    "time": "Time column {column!r} ({kind}): {start} to {stop}, usual step {step:g} s, {regular:.4g} % of the steps "
    "are so.",
    "clock": "!The clock goes {change}, as daylight saving time does: give the option timezone.",
    "unread": "!{rows:row} left out, because the time cannot be read: {example} is the first.",
    "untimed": "{rows:row} without a time: left out.",
    "sort": "{rows:row} earlier than the row above: rows are sorted by time.",
    "holes": "{gaps:gap} in the times, {rows:row} missing; the longest, {seconds:g} s, begins after {after}: outputs "
    "are missing there, inputs held.",
    "cut": "{rows:row} cut out.",
    "period": "{rows:row} outside the period: left out.",
    "resample": "Rows are gathered in steps of {dt:g} s.",
    "jitter": "{rows:row} on a step that another row has: the later one stays.",
    "gaps": "{rows:row} of {all} on the grid ({share:.3g} %) have no data: outputs are missing there.",
    "shorten": "{gaps:long gap} shortened by {hours:.4g} h in all: time jumps there.",
    "stretches": "!Gaps of more than {hold:row} leave {stretches} stretches; the longest has {longest:row}.",
    "renamed": "{count:column} with another name as a channel: {columns}.",
    "repeats": "{rows:row} with a time that another row has: the last of each time is kept.",
    "duplicates": "{rows:row} with a time that another row has: the last of each time is kept; the others hold the "
    "same values.",
    "conflicts": "!{rows:row} with a time that another row has: the last of each time is kept; {conflicts} of the "
    "others hold other values.",
    "states": "{total:reading} in words, such as {examples}: read as 1 (on, open) and 0 (off, closed) in {columns}.",
    "marked": "{total:reading} marked {examples}: treated as missing in {columns}.",
    "text": "!{total:cell} of text: treated as missing in {columns}.",
    "sentinel": "!{value:g} recurs far outside all other values: treated as missing in {columns}; sentinels = false "
    "keeps it.",
    "infinite": "!{total:infinite value}: treated as missing in {columns}.",
    "dropped": "{count:channel} left out: {columns}.",
    "held": "{count:input} held at the value before where readings are missing, for {most:row} at most.",
    "interpolated": "{count:input} interpolated where readings are missing, for {most:row} at most.",
    "unknown inputs": "!{count:input} missing for more than {hold:row} at a time: what they did there is assumed, in "
    "{columns}. The option long_gaps can leave such stretches out.",
    "beginning": "!{count:input} missing at the beginning: the first value is used.",
    "longest": "The longest stretch is kept: rows {first} to {last}.",
    "drafted": "Units, inputs and outputs were found from the tags.",
    "question": "!{question}",
}  # fmt: skip
_NAMED = 6  # columns in one sentence


class _Count(int):
    """A number that is written with its noun: ``f"{_Count(2):row}"`` is "2 rows"."""

    def __format__(self, noun: str) -> str:
        counted = noun.isalpha() or " " in noun
        return f"{int(self)} {noun}{'' if self == 1 else 's'}" if counted else format(int(self), noun)


def told(kind: str, columns: Mapping[str, Any] | None = None, /, *, name: str = "", **facts: Any) -> Step:
    """A note of a kind, from facts; `columns`: what is told of each of them. `name`: of the step, if not the kind."""
    sentence = _SENTENCES[kind]
    words = {key: _Count(value) if isinstance(value, int) else value for key, value in facts.items()}
    if columns is not None:
        shown = [f"{column[:60]} ({told})" for column, told in list(columns.items())[:_NAMED]]
        more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
        words |= {"columns": ", ".join(shown) + more, "count": _Count(len(columns))}
        counts = [each for each in columns.values() if isinstance(each, int)]
        words |= {"total": _Count(sum(counts)), "most": _Count(max(counts, default=0))}
    numbers = columns if columns is not None else facts
    return Step(name or kind, sentence.removeprefix("!").format(**words), dict(numbers), sentence.startswith("!"))
