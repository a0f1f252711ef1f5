"""What a table holds, told before anything of it is dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import polars
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.data.columns import Numbers
from counterflow.data.grid import FEW_LEVELS, TimeFacts, time_facts
from counterflow.data.notes import Step, told
from counterflow.data.options import TableOptions, takes
from counterflow.data.table import Table, open_table
from counterflow.data.tags import read_tag
from counterflow.data.times import NONE, runs
from counterflow.plant.calendar import SECOND
from counterflow.plant.units import unknown_name

_SPIKE = 6.0  # spreads outside both neighbours
_LONG_HOLD = 0.5  # share of rows that repeat the one before, from which a channel is called held
_SHOWN_GAPS = 100


@dataclass(frozen=True)
class ChannelFacts:
    """What one column holds."""

    name: str
    group: str  # the unit it seems to belong to
    rows: int
    missing: int  # rows without a number
    low: float
    high: float
    mean: float
    spread: float  # standard deviation
    levels: int  # different values
    held: float  # share of rows, in time order, that repeat the value before
    longest_hold: int  # most rows in a row with one value
    infinite: int
    spikes: int  # single rows far outside both their neighbours
    words: Mapping[str, int] = field(default_factory=dict)
    odd: Mapping[str, int] = field(default_factory=dict)
    odd_count: int = 0
    sentinels: Mapping[float, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no number at all."""
        return self.levels == 0

    @property
    def kind(self) -> str:
        """In one word."""
        if self.is_empty:
            return "text" if self.odd_count else "empty"
        if self.odd_count:
            return "mixed"
        if self.levels == 1:
            return "constant"
        if self.levels > FEW_LEVELS or self.rows - self.missing - self.infinite < 5 * self.levels:
            return "continuous"
        return "on/off" if self.levels == 2 else "discrete"

    @property
    def useless(self) -> str:
        """Why nothing can be learned from it; "" if something can."""
        if self.is_empty:
            return f"text such as {next(iter(self.odd))!r}" if self.odd_count else "no number at all"
        return f"always {self.low:g}" if self.levels == 1 else ""

    @property
    def verdict(self) -> str:
        """What would be done with it."""
        missing, example = self.missing / max(1, self.rows), next(iter(self.odd), "")
        whole = {
            "text": f"{self.useless}: exclude it",
            "empty": f"{self.useless}: would be left out",
            "mixed": f"{self.odd_count} cells of text such as {example!r}: refused unless text = 'missing'",
            "constant": f"{self.useless}: would be left out",
        }
        many = {
            "on/off": "on/off: last value when resampled; rather an input",
            "discrete": f"{self.levels} levels: last value when resampled",
        }
        held = f"{100 * self.held:.0f} % held from the row before, at most {self.longest_hold} rows"
        notes = [
            f"{100 * missing:.3g} % missing: NaN as output, held as input" if missing else "",
            *(f"{value:g} in {count} rows stands for no number" for value, count in self.sentinels.items()),
            f"{self.infinite} infinite: treated as missing" if self.infinite else "",
            many.get(self.kind, held if self.held > _LONG_HOLD else ""),
            f"{self.spikes} spikes: kept here, judged by a fit" if self.spikes else "",
        ]
        return whole.get(self.kind) or "; ".join(filter(None, notes)) or "fine"

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"kind": self.kind, "verdict": self.verdict}


@dataclass(frozen=True)
class Inspection:
    """What a table holds: its time, and every channel. `print` shows it; `to_json` gives plain values."""

    table: Table
    channels: tuple[ChannelFacts, ...]
    time: TimeFacts | None

    def __getitem__(self, name: str) -> ChannelFacts:
        by_name = {channel.name: channel for channel in self.channels}
        if name not in by_name:
            raise unknown_name("channel", name, list(by_name))
        return by_name[name]

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Channels by the unit that their names suggest."""
        found: dict[str, list[str]] = {}
        for channel in self.channels:
            found.setdefault(channel.group, []).append(channel.name)
        return {group: tuple(names) for group, names in found.items()}

    @property
    def steps(self) -> list[Step]:
        """What is known of the rows and their time, and what is done about it."""
        found = list(table_steps(self.table, self.time, len(self.channels)))
        if measured := {channel.name for channel in self.channels}.intersection(self.table.measures):
            found.append(told("measures", count=len(measured)))
        if self.time is not None and self.time.duplicates:
            found.append(told("repeats", rows=self.time.duplicates))
        if self.time is not None and self.time.gaps and self.table.times is not None:
            gaps = self.time.gaps
            longest = max(gaps, key=lambda gap: gap.rows)
            rows, after = sum(gap.rows for gap in gaps), self.table.times.shown(longest.before)
            found.append(told("holes", gaps=len(gaps), rows=rows, seconds=longest.seconds, after=after))
        return found

    @property
    def sentences(self) -> list[str]:
        """The same in words."""
        return [step.text for step in self.steps]

    def to_json(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        time: dict[str, Any] | None = None
        if self.time is not None and self.table.times is not None:
            facts, shown = self.time, self.table.times.shown
            counts = {name: getattr(facts, name) for name in ("regular", "untimed", "out_of_order", "duplicates")}
            longest = sorted(facts.gaps, key=lambda gap: -gap.rows)[:_SHOWN_GAPS]
            gaps = [{"after": shown(gap.before), "seconds": gap.seconds, "rows": gap.rows} for gap in longest]
            time = {
                "column": self.table.time_name, "kind": self.table.times.kind, "start": shown(facts.start),
                "stop": shown(facts.stop), "step": facts.step / SECOND, **counts, "gap_count": len(facts.gaps),
                "gaps": gaps, "clock_changes": list(facts.clock_changes),
            }  # fmt: skip
        return {
            "files": [file.name for file in self.table.files], "kinds": [file.kind for file in self.table.files],
            "rows": self.table.rows, "short_rows": self.table.short_rows, "time": time,
            "groups": {group: list(names) for group, names in self.groups.items()},
            "channels": [each.to_json() | {"unit": self.table.measures.get(each.name, "")} for each in self.channels],
        }  # fmt: skip

    def __str__(self) -> str:
        lines = list(self.sentences)
        for group, names in self.groups.items():
            lines += [f"{group}:", *(f"  {name}: {self[name].kind}, {self[name].verdict}" for name in names)]
        return "\n".join(lines)


@takes(TableOptions)
def inspect(source: object, **options: Any) -> Inspection:
    """Look at a table before anything of it is dropped.

    Parameters
    ----------
    source : Table, path, sequence of paths, or a DataFrame of polars or pandas
    **options
        How it is to be read: see `TableOptions`.

    Examples
    --------
    >>> import polars
    >>> table = polars.DataFrame({"time": [0, 1, 2, 4], "pump_on": ["on", "on", "off", "on"], "level": [1.0, 2, 3, 5]})
    >>> found = inspect(table)
    >>> found["pump_on"].levels, found["pump_on"].longest_hold, len(found.time.gaps)
    (2, 2, 1)
    """
    table = source if isinstance(source, Table) else open_table(source, **options)
    times, order = table.times, None
    if times is not None:
        known = np.flatnonzero(times.nanoseconds != NONE)
        order = known[np.argsort(times.nanoseconds[known], kind="stable")]
    found = tuple(channel_facts(name, numbers, order) for name, numbers in table.batches(table.channels))
    return Inspection(table, found, None if times is None else time_facts(times, table.step))


def table_steps(table: Table, facts: TimeFacts | None, channels: int) -> Iterator[Step]:
    """What is to be told of a table's files and times."""
    files = ", ".join(f"{file.name} ({file.kind})" for file in table.files)
    yield told("read", files=files, rows=table.rows, channels=channels)
    yield from table.notes
    if table.short_rows:
        yield told("short", rows=table.short_rows)
    if (times := table.times) is None or facts is None:
        yield told("no time")
        return
    yield told(
        "time", column=table.time_name, kind=times.kind, start=times.shown(facts.start), stop=times.shown(facts.stop),
        step=facts.step / SECOND, regular=100 * facts.regular,
    )  # fmt: skip
    for change in facts.clock_changes:
        yield told("clock", change=change)
    if times.unread:
        yield told("unread", rows=times.unread, example=times.example)
    if facts.untimed > times.unread:
        yield told("untimed", rows=facts.untimed - times.unread)
    if facts.out_of_order:
        yield told("sort", rows=facts.out_of_order)


def channel_facts(name: str, numbers: Numbers, order: NDArray[np.int64] | None = None) -> ChannelFacts:
    """What one column holds; `order` gives its rows in time order."""
    values = numbers.values if order is None else numbers.values[order]
    known = values[np.isfinite(values)]
    rows, infinite = len(values), int(np.isinf(values).sum())
    same = known[1:] == known[:-1]
    levels = polars.Series(known).n_unique()
    starts, stops = runs(same)
    longest = int((stops - starts).max(initial=0)) + 1 if len(known) else 0
    of = (known.min, known.max, known.mean, known.std)
    low, high, mean, spread = (float(each()) if len(known) else np.nan for each in of)
    return ChannelFacts(
        name, guess_unit(name), rows, rows - len(known) - infinite, low, high, mean, spread, levels,
        held=float(same.mean()) if len(same) else 0.0, longest_hold=longest, infinite=infinite,
        spikes=0 if levels <= FEW_LEVELS else count_spikes(values),
        words=numbers.words, odd=numbers.odd, odd_count=numbers.odd_count, sentinels=numbers.sentinels,
    )  # fmt: skip


def count_spikes(values: FloatArray) -> int:
    """Single rows that lie outside both their neighbours, on the same side, by more than 6 robust spreads.

    The spread is that of the quartiles (scaled to a standard deviation), or the standard deviation where more than half
    of the rows have one value. Rows beside a missing one are not judged.
    """
    finite = values[np.isfinite(values)]
    if len(finite) < 3:
        return 0
    first, third = np.percentile(finite, [25, 75])
    spread = (third - first) / 1.349 or float(finite.std())
    if not spread > 0:
        return 0
    before, here, after = values[:-2], values[1:-1], values[2:]
    with np.errstate(invalid="ignore"):
        above = here - np.maximum(before, after)
        below = np.minimum(before, after) - here
        return int((np.isfinite(here) & (np.maximum(above, below) > _SPIKE * spread)).sum())


def guess_unit(name: str) -> str:
    """The unit that a tag seems to belong to: its prefix, or the hundreds of tags such as FIT101."""
    tag = read_tag(name)
    if not tag.is_isa:
        return tag.area or "plant"
    return next(iter(tag.prefixes), "") or tag.hundred or "plant"
