"""What the published preparations of HAI and SWaT have in common, step by step.

The paper (appendix on real-world data) lists its steps in words; numbers that it does not give (what is
"quasi-discrete", how small the noise is) are named here, are ours, and stand in the report.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.data.formats import open_files
from counterflow.data.grid import Rules, constant_reason, fill, time_facts
from counterflow.data.notes import Preparation, Step
from counterflow.data.options import TableOptions, some
from counterflow.data.preparation import prepare
from counterflow.data.selection import Chosen
from counterflow.data.source import Source
from counterflow.data.table import Table, join
from counterflow.data.times import NONE
from counterflow.errors import DataError
from counterflow.plant import Channel, Recording, Unit
from counterflow.plant.calendar import SECOND
from counterflow.randomness import stream

FEW_CHANGES = 0.001  # of the rows: with fewer changes a channel is quasi-discrete (ours)
DOMINANT = 0.95  # of the rows: with one value in more of them a channel is quasi-discrete (ours)
GAP_SECONDS = 60.0  # between files, and where attacks were cut out, so much time without data is left (ours)


@dataclass(frozen=True)
class DataSet:
    """A data set: how its columns are called, which tags belong to which unit, and which are inputs or outputs."""

    unit: Callable[[str], str | None]  # of a tag
    families: tuple[tuple[str, str, bool], ...]  # of tags: regular expression, side, whether the paper names it
    labels: tuple[str, ...]  # columns that label attacks; some files may lack them
    spelling: Callable[[str], str]  # one of a column's name, which versions and files spell differently
    options: TableOptions = field(default_factory=TableOptions)

    def side(self, tag: str) -> tuple[str, bool]:
        """("inputs" or "outputs", whether the paper names its family), or ("", True)."""
        found = ((side, named) for pattern, side, named in self.families if re.fullmatch(pattern, tag))
        return next(found, ("", True))

    def read(self, files: Sequence[str | Path]) -> tuple[Table, NDArray[np.bool_], str]:
        """Files as one table, which of its rows are labelled as attacks, and where that is told.

        A file of labels, without a tag, labels the rows of its times.
        """
        opened = open_files([Path(path) for path in files], self.options)
        sources = [file.renamed({name: self.spelling(name) for name in file.names}) for file in opened]
        tagged = [file for file in sources if any(map(self.unit, file.names))]
        if not tagged:
            there = some(sources[0].names, 8) if sources else "no file"
            raise DataError(f"no file has a tag of this data set, only {there}: are these the right ones?")
        table = join(tagged, self.options, optional=self.labels)
        table = replace(table, names=tuple(name for name in table.names if name not in self.labels))
        if table.times is None:
            raise DataError(f"{table.title} has no time column: is its header where it belongs?")
        named = [name for name in self.labels if any(name in file.names for file in tagged)]
        parts = zip(tagged, table.file_rows, strict=True)
        attacked = np.concatenate([self._attacks(file, rows) for file, rows in parts])
        told = [f"columns {', '.join(named)}"] if named else []
        for file in sources:
            if file not in tagged:
                marks = join([file], self.options)
                if marks.times is None or not set(self.labels) & set(file.names):
                    raise DataError(f"{file.name} is no label file: it needs a time and a column of labels")
                moments = marks.times.nanoseconds
                hit = moments[self._attacks(file, marks.rows) & (moments != NONE)]
                attacked |= np.isin(table.times.nanoseconds, hit)
                told.append(f"label file {file.name}")
        return table, attacked, "; ".join(told) or "no labels were found"

    def _attacks(self, file: Source, rows: int) -> NDArray[np.bool_]:
        """Which rows of a file its own columns label as attacks."""
        hit = np.zeros(rows, np.bool_)
        for name in self.labels:
            if name in file.names:
                hit |= is_attack(file.column(name), file.name)
        return hit


def is_attack(labels: polars.Series, file: str) -> NDArray[np.bool_]:
    """Rows labelled "Attack", also where it is written "A ttack", or with a number that is not 0."""
    words = labels.cast(polars.String).str.replace_all(r"\s", "").str.to_lowercase().fill_null("")
    numbers = words.cast(polars.Float64, strict=False)
    odd = words.filter(numbers.is_null() & ~words.is_in(["normal", "attack", ""]))
    if len(odd):
        raise DataError(f"{file}: a row is labelled {odd[0][:40]!r}, neither Normal nor Attack")
    return np.asarray(((words == "attack") | (numbers.fill_nan(0).fill_null(0) != 0)).to_numpy())


@dataclass(frozen=True)
class Prepared:
    """A data set, prepared: the recording, every step, what became of every tag, and means and scales."""

    recording: Recording
    preparation: Preparation
    fate: Mapping[str, str]
    scales: Mapping[str, Mapping[str, tuple[float, float]]]
    standardised: bool

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        scales = {
            unit: {name: {"mean": mean, "std": std} for name, (mean, std) in channels.items()}
            for unit, channels in self.scales.items()
        }
        tags, preparation = dict(self.fate), self.preparation.to_json()
        return {"preparation": preparation, "tags": tags, "scales": scales, "standardised": self.standardised}


class Columns:
    """Columns on their way through the steps, and what became of each."""

    def __init__(self, dataset: DataSet, files: Sequence[str | Path], normal_only: bool, rows: int | None) -> None:
        """Steps (i) and (ii): every tag of a unit on a grid, attacks cut out; constant channels dropped, twice.

        ``rows``: the first so many are kept.
        """
        table, attacked, told = dataset.read(files)
        assert table.times is not None
        keep = ~attacked if normal_only and attacked.any() else None
        if keep is not None and not keep.any():
            raise DataError(f"{table.title}: every row is labelled as an attack: give a file with normal rows")
        self.dataset = dataset
        self.units = {tag: unit for tag in table.channels if (unit := dataset.unit(tag)) is not None}
        chosen = [
            Chosen(unit, (), tuple((tag, Channel(tag)) for tag, owner in self.units.items() if owner == unit))
            for unit in sorted(set(self.units.values()))
        ]
        gap = max(GAP_SECONDS, 2 * time_facts(table.times).step / SECOND)
        rules = Rules(drop_constant=False, longest_gap=gap, text="missing")
        recording, self.preparation = prepare(table, chosen, rules, keep=keep)
        self.columns: dict[str, FloatArray] = {
            name: part.y[:, k] for part in recording.values() for k, name in enumerate(part.unit.output_names)
        }
        self.fate = dict.fromkeys(table.channels, "left out in step i: it belongs to no unit")
        self.steps = [replace(step, text=f"(i) {step.text}") for step in self.preparation.steps]
        count, done = int(attacked.sum()), "cut out" if normal_only else "kept"
        self.note("i", f"{count} rows are labelled as attacks ({told}); {done}.", attacks=count)
        self.drop_by_values("ii", "constant over the full run", constant_reason)
        if rows is None or rows >= recording.rows:
            self.note("ii", f"all {recording.rows} rows are used.", rows=recording.rows)
        elif rows < 2:
            raise DataError(f"rows is {rows}: at least 2 are needed")
        else:
            self.columns = {tag: values[:rows] for tag, values in self.columns.items()}
            self.note("ii", f"the first {rows} of {recording.rows} rows are used.", rows=rows)
        self.drop_by_values("ii", "constant after truncation", constant_reason)

    def drop(self, number: str, what: str, reasons: Mapping[str, str]) -> None:
        """Take columns out, and say why."""
        for tag, reason in reasons.items():
            del self.columns[tag]
            self.fate[tag] = f"dropped in step {number}: {reason}"
        names = f": {', '.join(reasons)}" if reasons else ""
        self.steps.append(Step(number, f"({number}) {what}: {len(reasons)} dropped{names}.", dict(reasons)))

    def drop_by_values(self, number: str, what: str, why: Callable[[FloatArray], str]) -> None:
        """Take those columns out for whose values there is a reason."""
        reasons = {tag: why(values) for tag, values in self.columns.items()}
        self.drop(number, what, {tag: reason for tag, reason in reasons.items() if reason})

    def note(self, number: str, text: str, *, doubt: bool = False, **numbers: Any) -> None:
        """A step that drops nothing."""
        self.steps.append(Step(number, f"({number}) {text}", numbers, doubt))

    def drop_discrete(self, measured_only: bool = False) -> None:
        """Step (iii)."""
        where = ", measurements only" if measured_only else ""
        rule = f"at most 2 values, one value in more than {100 * DOMINANT:g} % of the rows, or changes in fewer than "
        what = f"boolean-like or quasi-discrete{where} ({rule}{100 * FEW_CHANGES:g} %)"
        looked = (tag for tag in self.columns if not measured_only or self.side(tag) == "outputs")
        reasons = {tag: discrete_reason(self.columns[tag]) for tag in looked}
        self.drop("iii", what, {tag: reason for tag, reason in reasons.items() if reason})

    def side(self, tag: str) -> str:
        """ "inputs", "outputs", or ""."""
        return self.dataset.side(tag)[0]

    def split(self) -> None:
        """Step (iv): inputs and outputs by tag family."""
        neither = "of no family of inputs or outputs"
        reasons = {tag: neither for tag in self.columns if not self.side(tag)}
        self.drop("iv", "inputs and outputs by tag family; of neither", reasons)
        if ours := [tag for tag in self.columns if not self.dataset.side(tag)[1]]:
            self.note("iv", f"families that the paper does not name, by our rule: {', '.join(ours)}.", tags=ours)

    def finish(self, number: str, standardise: bool, noise: float = 0.0, seed: int = 0) -> Prepared:
        """Means and scales of every column; noise on discrete inputs; and the recording."""
        tags: dict[str, list[str]] = {unit: [] for unit in sorted(set(self.units.values()))}
        for tag in self.columns:
            tags[self.units[tag]].append(tag)
        if gone := [unit for unit, own in tags.items() if not own]:
            self.note(number, f"units without a channel left: {', '.join(gone)}.", doubt=True)
        for unit, own in tags.items():
            if own and not any(self.side(tag) == "outputs" for tag in own):
                reason = f"unit {unit} has no output left"
                self.drop(number, reason, dict.fromkeys(own, reason))
        left = {unit: own for unit, own in tags.items() if any(tag in self.columns for tag in own)}
        if not left:
            raise DataError("no unit has an output left: give more rows, or files in which something happens")
        if len(left) < 2:
            self.note(number, f"only unit {next(iter(left))} is left: nothing to couple.", doubt=True)
        scales: dict[str, dict[str, tuple[float, float]]] = {unit: {} for unit in left}
        described, filled, noisy = [], 0, 0
        for unit, own in left.items():
            inputs, outputs = ([tag for tag in own if self.side(tag) == side] for side in ("inputs", "outputs"))
            described.append(Unit(unit, 2, inputs, outputs))
            for tag in (*inputs, *outputs):
                values, side = self.columns[tag], self.side(tag)
                if side == "inputs":
                    values, holes, _ = fill(values, "hold")
                    filled = max(filled, int(holes.sum()))
                mean, std = float(np.nanmean(values)), float(np.nanstd(values))
                scales[unit][tag] = (mean, std)
                if noise and side == "inputs" and discrete_reason(values):
                    noisy += 1
                    values = values + noise * std * stream(seed, "input noise", tag).standard_normal(len(values))
                self.columns[tag] = (values - mean) / std if standardise else values
                self.fate[tag] = f"kept, {side[:-1]} of {unit}"
        done = "z-scores are written"
        if not standardise:
            done = "values stay in engineering units; --standardise writes z-scores"
        self.note("v", f"mean and standard deviation of every column are saved; {done}.")
        if noise:
            text = f"noise of {noise:g} standard deviations on {noisy} discrete inputs."
            self.note("vi", text, seed=seed, noise=noise)
        if filled:
            self.note(number, f"inputs were held where they are missing, in at most {filled} rows.", rows=filled)
        before = self.preparation
        frame = polars.DataFrame({f"{self.units[tag]}/{tag}": values for tag, values in self.columns.items()})
        recording = Recording.from_frame(frame, described, before.dt)
        rows = recording.rows
        dropped: dict[str, dict[str, str]] = {unit: {} for unit in tags}
        for tag, unit in self.units.items():
            if tag not in self.columns:
                dropped[unit][tag] = self.fate[tag]
        preparation = replace(
            before, rows=rows, stop=before.stop if rows == before.rows else f"row {rows - 1}", steps=tuple(self.steps),
            dropped=dropped, stretches=tuple((a, min(b, rows)) for a, b in before.stretches if a < rows),
        )  # fmt: skip
        return Prepared(recording, preparation, self.fate, scales, standardise)


def discrete_reason(values: FloatArray) -> str:
    """Why a channel is boolean-like or quasi-discrete; "" if it is not."""
    known = values[~np.isnan(values)]
    counts = polars.Series(known).value_counts(sort=True)
    if len(counts) <= 2:
        return f"{len(counts)} values"
    commonest = int(counts.to_series(1)[0]) / len(known)
    if commonest > DOMINANT:
        return f"{counts.to_series(0)[0]:g} in {100 * commonest:.1f} % of the rows"
    changes = int((known[1:] != known[:-1]).sum())
    return f"{changes} changes in {len(known)} rows" if changes < FEW_CHANGES * len(known) else ""
