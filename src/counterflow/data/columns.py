"""Columns of a table: cells of any kind as numbers; what of them was words or text, or stood for no number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import polars

from counterflow.arrays import FloatArray
from counterflow.errors import DataError

# words as historians, spreadsheets and PLC gateways write them, in lower case
_MISSING = frozenset((
    "", "nan", "null", "none", "na", "n/a", "#n/a", "#value!", "#ref!", "#div/0!", "?", "-", "--", "---", "bad",
    "bad input", "bad value", "bad quality", "no data", "no sample", "no value", "i/o timeout", "comm fail",
    "comm failure", "pt created", "not connect", "not connected", "out of serv", "out of service", "configure",
    "shutdown", "scan off", "scan timeout", "error", "missing", "invalid", "over range", "under range",
    "calc failed", "sensor failure", "bad data", "uncertain", "stale", "offline", "disconnected", "timeout",
))  # fmt: skip
_ON = frozenset(["on", "true", "yes", "open", "opened", "running", "run", "start", "started", "active", "enabled"])
_OFF = frozenset(["off", "false", "no", "closed", "close", "stopped", "stop", "inactive", "disabled"])
_GOOD = frozenset(["good", "ok", "valid", "g", "true", "gut", "normal", "192", "0x000000c0", "goodnonspecific"])
_MOST_WORDS = 20
_BETWEEN = r"['’\u{a0}\u{202f} ]"  # between thousands, beside the sign that is not the decimal one

# numbers that stand for no number: they recur exactly and lie far outside all others
_OFTEN = 3  # times that such a number recurs, at least
_ISOLATED = 10.0  # ranges of all others that it lies away from them
_USUAL = 0.5  # the same of numbers that programs use so
_FEWEST_LEVELS, _CONTINUOUS = 3, 20  # different values of all others, without which nothing can be called far
_MOST_SENTINELS = 4  # of one column
_HUGE = 1e30
_LIMITS = (32767.0, -32768.0, 65535.0, 2147483647.0, -2147483648.0, 4294967295.0)


@dataclass(frozen=True)
class Numbers:
    """A column as numbers, NaN where there is none, and what of it was text; words and numbers with their counts."""

    values: FloatArray
    words: Mapping[str, int] = field(default_factory=dict)  # for on, off and missing
    odd: Mapping[str, int] = field(default_factory=dict)  # examples of text that is neither a number nor such a word
    odd_count: int = 0
    odd_row: int = -1  # of the first of them
    sentinels: Mapping[float, int] = field(default_factory=dict)  # that stood for no number

    def without_sentinels(self) -> Numbers:
        """The same, with numbers such as -999 read as missing."""
        if not (found := sentinels_of(self.values)):
            return self
        return replace(self, values=np.where(np.isin(self.values, list(found)), np.nan, self.values), sentinels=found)


def cells(column: polars.Series, file: str, decimal: str = ".", sure: bool = False) -> polars.Series:
    """A column as numbers, or as text that casts to numbers where it holds some; `decimal` and `sure`: see `_plain`."""
    dtype = column.dtype
    if dtype.is_numeric() or dtype == polars.Null:
        return column.cast(polars.Float64)
    if dtype not in (polars.String, polars.Boolean, polars.Categorical, polars.Enum):
        raise DataError(f"{file}: column {column.name!r} has type {dtype}, which is not a number")
    text = column.cast(polars.String).str.strip_chars()
    return _plain(text.set(text == "", None), decimal, sure)


def joined(parts: Sequence[polars.Series]) -> polars.Series:
    """Columns of several files below each other: numbers if all are, else text."""
    if len({part.dtype for part in parts}) > 1:
        parts = [part.cast(polars.String) for part in parts]
    return parts[0] if len(parts) == 1 else polars.concat(parts)


def numeric(column: polars.Series) -> polars.Series:
    """Numbers, if all cells are; else the cells as they are."""
    found = column.cast(polars.Float64, strict=False)
    return found if found.null_count() == column.null_count() else column


def numbers(text: polars.Series) -> Numbers:
    """Cells, or text that casts to numbers, as numbers."""
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
    return Numbers(
        values, {word: counts[word] for word in list(known)[:_MOST_WORDS]},
        {word[:60]: odd[word] for word in list(odd)[:_MOST_WORDS]}, sum(odd.values()),
        int((left & ~text.is_in(list(known))).arg_true()[0]) if odd else -1,
    )  # fmt: skip


# ---- words


def meaning(text: str) -> float | None:
    """The number that a cell's text stands for: NaN if missing, 1 or 0 for on and off, None if it is none of these."""
    word = text.strip().strip("[]").casefold()
    if word in _MISSING:
        return float("nan")
    return 1.0 if word in _ON else 0.0 if word in _OFF else None


def good_qualities(counts: Mapping[str, int]) -> frozenset[str]:
    """Which of the qualities that values have mean that a value is good; `counts` says how often each occurs.

    Words are taken as such. Numbers are OPC's: from 192 on in its classic form, 0 in OPC UA; a number of another custom
    is good if it is the commonest.
    """
    codes: dict[str, int] = {}
    for text in counts:
        with suppress(ValueError, OverflowError):
            codes[text] = int(float(text))
    words = ((text, text.strip().casefold()) for text in counts if text not in codes)
    good = [text for text, word in words if word in _GOOD or word.startswith("good")]
    highest = max(codes.values(), default=0)
    if highest <= 255 and any(number >= 192 for number in codes.values()):
        good += [text for text, number in codes.items() if number >= 192]
    elif highest >= 1 << 30:  # an OPC UA status is good if its two highest bits are zero
        good += [text for text, number in codes.items() if 0 <= number < 1 << 30]
    elif codes:
        good.append(max(codes, key=lambda text: counts[text]))
    return frozenset(good)


# ---- numbers as people and programs write them


def _plain(text: polars.Series, decimal: str, sure: bool) -> polars.Series:
    """Cells without blanks around as text that casts to numbers; what is no number is left as it is.

    `sure`: whether the decimal sign is certain. If not, a column that can only mean the other one is read so: in a text
    with commas between cells, cells in quotes may have decimal commas.
    """
    if not bool(text.str.contains(r"[,'’\u{a0}\u{202f} ]" if decimal == "." else r"[,.'’\u{a0}\u{202f} ]").any()):
        return text
    if decimal == ".":
        commas = text.str.contains(r"^[+-]?\d+,(\d{1,2}|\d{4,})$")
        if sure or not bool(commas.any()) or bool(text.str.contains(r"\d\.\d").any()):
            return _without(text, ",", True)
        grouped = True
    else:  # "1.234" beside decimal commas is a thousand only where another cell of the column says so
        grouped = bool(text.str.contains(r"^[+-]?\d{1,3}(\.\d{3})+,\d+$|^[+-]?\d{1,3}(\.\d{3}){2,}$").any())
    return _without(text, ".", grouped).str.replace(",", ".", literal=True)


def _without(text: polars.Series, sign: str, grouped: bool) -> polars.Series:
    """Cells without what stands between thousands: blanks and apostrophes, and `sign` if it does."""
    between = f"(?:{_BETWEEN}|\\{sign})" if grouped else _BETWEEN
    decimal = r"\." if sign == "," else ","
    grouping = polars.col("text").str.contains(rf"^[+-]?\d{{1,3}}(?:{between}\d{{3}})+(?:{decimal}\d+)?$")
    bare = polars.when(grouping).then(polars.col("text").str.replace_all(between, "")).otherwise("text")
    return polars.DataFrame({"text": text}).select(bare.alias(text.name)).to_series()


# ---- numbers that stand for no number


def sentinels_of(values: FloatArray) -> dict[float, int]:
    """{value: how often} of the numbers of a column that stand for no number, such as -999."""
    levels, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    out: dict[float, int] = {}
    while len(out) < _MOST_SENTINELS and len(levels) > _FEWEST_LEVELS:
        for end, rest in ((0, slice(1, None)), (-1, slice(-1))):
            if _stands_for_none(float(levels[end]), int(counts[end]), levels[rest]):
                out[float(levels[end])] = int(counts[end])
                levels, counts = levels[rest], counts[rest]
                break
        else:
            break
    return out


def _stands_for_none(value: float, count: int, others: FloatArray) -> bool:
    if value == 0 or count < _OFTEN:  # what is off has zero in many rows
        return False
    gap, span = float(np.abs(others - value).min()), float(others[-1] - others[0])
    if _is_usual(value):
        return gap > _USUAL * span
    return len(others) > _CONTINUOUS and gap > _ISOLATED * span  # of a few levels, one may well lie apart


def _is_usual(value: float) -> bool:
    """Whether programs write this number where they have none."""
    if abs(value) >= _HUGE or value in _LIMITS:
        return True
    whole, _, decimals = f"{abs(value):.10g}".partition(".")
    nines = len(whole) >= (3 if value > 0 else 2) and set(whole) == {"9"}  # 99 % is where a valve may stand
    return nines and decimals in ("", "25", "9", "99")
