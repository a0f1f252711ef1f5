"""Columns of a table: cells of any kind as numbers, and what of them was text or stood for no number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars

from counterflow.arrays import FloatArray
from counterflow.data.numerals import plain
from counterflow.data.sentinels import sentinels_of
from counterflow.data.words import meaning
from counterflow.errors import DataError

_MOST_WORDS = 20


@dataclass(frozen=True)
class Numbers:
    """A column as numbers, and what of it was text.

    Parameters
    ----------
    values : (rows,) array
        NaN where there is no number.
    words : dict of str to int
        Words for on, off and missing that were understood, with their counts.
    odd : dict of str to int
        Text that is neither a number nor such a word: examples with their counts.
    odd_count : int
        All of those cells.
    odd_row : int
        Row of the first of them, or -1.
    sentinels : dict of float to int
        Numbers that stood for no number, with their counts: NaN in ``values``.
    """

    values: FloatArray
    words: dict[str, int] = field(default_factory=dict)
    odd: dict[str, int] = field(default_factory=dict)
    odd_count: int = 0
    odd_row: int = -1
    sentinels: dict[float, int] = field(default_factory=dict)

    def without_sentinels(self) -> Numbers:
        """The same, with numbers such as -999 read as missing."""
        found = sentinels_of(self.values)
        if not found:
            return self
        return replace(self, values=np.where(np.isin(self.values, list(found)), np.nan, self.values), sentinels=found)


def cells(column: polars.Series, file: str, decimal: str = ".", sure: bool = False) -> polars.Series:
    """A column as numbers, or as text that casts to numbers where it holds some; `decimal` and `sure`: see `plain`."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == polars.Null:
        return column.cast(polars.Float64)
    if dtype not in (polars.String, polars.Boolean, polars.Categorical, polars.Enum):
        raise DataError(f"{file}: column {column.name!r} has type {dtype}, which is not a number")
    text = column.cast(polars.String).str.strip_chars()
    return plain(text.set(text == "", None), decimal, sure)


def joined(parts: Sequence[polars.Series]) -> polars.Series:
    """Columns of several files below each other: numbers if all are, else text."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.cast(polars.String) for part in parts]
    return parts[0] if len(parts) == 1 else polars.concat(parts)


def numbers(text: polars.Series) -> Numbers:
    """Cells as numbers.

    >>> found = numbers(polars.Series(["1.5", "on", "lovely", None]))
    >>> found.values.tolist(), found.words, found.odd, found.odd_row
    ([1.5, 1.0, nan, nan], {'on': 1}, {'lovely': 1}, 2)
    """
    found = text.cast(polars.Float64, strict=False)
    values = np.asarray(found.fill_null(float("nan")).to_numpy(), np.float64)  # may be read-only
    left = found.is_null() & text.is_not_null()
    if not left.any():
        return Numbers(values)
    counts = dict(text.filter(left).value_counts(sort=True).iter_rows())
    known = {word: number for word in counts if (number := meaning(word)) is not None}
    odd = {word: count for word, count in counts.items() if word not in known}
    if known:
        said = text.filter(left).replace_strict(known, default=None, return_dtype=polars.Float64)
        values = values.copy()
        values[left.to_numpy()] = said.fill_null(float("nan")).to_numpy()
    odd_row = int((left & ~text.is_in(list(known))).arg_true()[0]) if odd else -1
    return Numbers(
        values, {word: counts[word] for word in list(known)[:_MOST_WORDS]},
        {word[:60]: odd[word] for word in list(odd)[:_MOST_WORDS]}, sum(odd.values()), odd_row,
    )  # fmt: skip
