"""Dates in text, as numbers: the order of day, month and year is found from all cells of a column together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars
from numpy.typing import NDArray

from counterflow.errors import DataError

Nanoseconds = NDArray[np.int64]

AMBIGUOUS = "ambiguous-dates"  # code of the error where day_first would settle what a column means
SECOND = 1_000_000_000
NONE = np.iinfo(np.int64).min  # no time, as NumPy's NaT
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DATE = (
    r"^(?P<a>\d{1,4})(?P<sign>[-/. ])(?P<b>\d{1,2}|[A-Za-z]{3,9})[-/. ](?P<c>\d{1,4})"
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9})\d*)?)?"
    r"\s*(?P<half>[AaPp]\.?[Mm]\.?)?)?\s*(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?$"
)
MOST_UNREAD = 0.02  # share of cells that may be no times: their rows are left out
_REMEDY = "give its format, such as time_format = '%d/%m/%Y %H:%M:%S'"
_FORMS = {  # what all cells of a column have, or none; at midnight some exports write the date alone
    "begins with the year": polars.col("a").str.len_chars() == 4,
    "names the month": polars.col("b").str.contains("^[A-Za-z]"),
    "has a zone": polars.col("zone").is_not_null(),
    "has AM or PM": polars.col("half").is_not_null() | polars.col("hour").is_null(),
}


class Cells:
    """The cells of a time column as text, None where they are empty, and what was left out of them."""

    def __init__(self, column: polars.Series, name: str, line: Callable[[int], str]) -> None:
        text = column.str.strip_chars().str.strip_chars('"').str.strip_chars()
        self.text, self.name, self.line = text.set(text == "", None), name, line
        self.unread, self.example = 0, ""

    def at(self, row: int) -> str:
        """A cell and where it stands."""
        return f"{self.text[row][:40]!r} in row {row}{self.line(row)}"

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which cells hold something."""
        return self.text.is_not_null().to_numpy()

    def leave_out(self, wrong: polars.Series, why: str) -> None:
        """Leave out cells that are wrong if they are few; refuse the column otherwise, naming the first."""
        rows = (wrong & self.text.is_not_null()).arg_true()
        if len(rows) == 0:
            return
        self.unread += len(rows)
        if self.unread > MOST_UNREAD * len(self.text):
            raise DataError(f"time column {self.name!r} holds {self.at(int(rows[0]))}, which {why}")
        self.example = self.example or self.at(int(rows[0]))
        self.text = self.text.set(wrong, None)

    def refuse_mixed(self, one: int, has: str, other: int, has_not: str) -> None:
        """Refuse a column in which rows are written in two ways."""
        raise DataError(
            f"time column {self.name!r} mixes formats: {self.at(one)} {has}, {self.at(other)} {has_not}; write all of "
            "them in one way"
        )


def dates(cells: Cells, day_first: bool | None) -> tuple[Nanoseconds, str, bool]:
    """Nanoseconds since 1970, `NONE` where a cell is empty or left out; of what kind they are; and whether in UTC."""
    parts = cells.text.str.extract_groups(DATE).struct.unnest()
    if cells.text.null_count() == len(cells.text):
        return np.full(len(parts), NONE, np.int64), "empty", False
    cells.leave_out(parts.get_column("a").is_null(), f"is no date or time of a usual kind: {_REMEDY}")
    rows = np.flatnonzero(cells.known)
    has = dict.fromkeys(_FORMS, False)
    for form, which in _FORMS.items():
        seen = parts.select(which.fill_null(False)).to_series().to_numpy()[rows]
        has[form] = bool(seen.any()) and (form != "has AM or PM" or parts.get_column("half").is_not_null().any())
        if has[form] and not seen.all():
            one, other = int(rows[np.argmax(seen)]), int(rows[np.argmin(seen)])
            cells.refuse_mixed(one, form, other, "not")
    late = polars.col("c").cast(polars.Int64)
    year = polars.when(late < 70).then(late + 2000).when(late < 100).then(late + 1900).otherwise(late)
    kind = "dates"
    if has["begins with the year"]:
        found = _moments(parts, polars.col("a"), polars.col("b"), polars.col("c"))
    elif has["names the month"]:
        word = polars.col("b").str.to_lowercase().str.slice(0, 3)
        month = word.replace_strict(_MONTHS, [str(k) for k in range(1, 13)], default=None)
        found = _moments(parts, year, month, polars.col("a"))
    else:
        readings = [_moments(parts, year, *(polars.col(each) for each in pair)) for pair in ("ba", "ab")]
        first = _day_first(cells, parts, day_first, readings)
        found = readings[0 if first else 1]
        kind = "dates, day first" if first else "dates, month first"
    cells.leave_out(found.is_null(), f"is no date ({kind}): {_REMEDY}")
    fraction = parts.get_column("fraction").fill_null("0").str.pad_end(9, "0").cast(polars.Int64)
    nanoseconds = found.fill_null(0) * SECOND + fraction
    if has["has a zone"]:
        digits = parts.get_column("zone").str.replace(":", "", literal=True)
        offset = digits.str.slice(1).cast(polars.Int64, strict=False).fill_null(0).to_numpy()  # "TC" of "UTC" is null
        west = digits.str.starts_with("-").fill_null(False).to_numpy()
        nanoseconds -= polars.Series(np.where(west, -1, 1) * (offset // 100 * 60 + offset % 100) * 60 * SECOND)
        kind += " with a zone"
    return np.where(cells.known, nanoseconds.to_numpy(), NONE), kind, has["has a zone"]


def _moments(parts: polars.DataFrame, year: polars.Expr, month: polars.Expr, day: polars.Expr) -> polars.Series:
    """Seconds since 1970 in one reading of the parts; null where there is no such date or time of day."""
    clock = polars.concat_str(polars.col("hour", "minute", "second").fill_null("0"), separator=":")
    text = polars.concat_str(polars.concat_str(year, month, day, separator="-"), clock, separator=" ")
    half = polars.col("half").str.replace_all(".", "", literal=True).str.to_uppercase()
    moment = polars.coalesce(
        polars.concat_str(text, half, separator=" ").str.to_datetime("%Y-%m-%d %I:%M:%S %p", strict=False),
        polars.when(half.is_null()).then(text).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False),
    )
    usable = polars.when(moment.dt.year().is_between(1700, 2250)).then(moment)
    return parts.select(usable.dt.epoch("s").alias("moment")).to_series()


def _runs_on(readings: list[polars.Series]) -> bool | None:
    """Whether the first reading is the right one, because its rows run on over midnight; None if that does not tell.

    In one reading the date changes with the usual step, in the other by a month.
    """
    run_on = []
    for reading in readings:
        seconds = reading.drop_nulls().to_numpy()
        steps, changed = np.abs(np.diff(seconds)), np.diff(seconds // 86_400) != 0
        within = steps[~changed & (steps > 0)]
        run_on.append(bool(len(within) and (steps[changed] <= 1.5 * np.median(within)).any()))
    return None if run_on[0] == run_on[1] else run_on[0]


def _day_first(
    cells: Cells, parts: polars.DataFrame, given: bool | None, readings: list[polars.Series]
) -> bool:
    """Whether the first of two numbers is the day."""
    a, b = (parts.get_column(name).cast(polars.Int64).fill_null(0).to_numpy() for name in "ab")
    first, second = bool((a > 12).any()), bool((b > 12).any())
    if first and second:
        cells.refuse_mixed(int(np.argmax(a > 12)), "has the day first", int(np.argmax(b > 12)), "the month")
    if first or second:
        if given is not None and given != first:
            raise DataError(
                f"day_first is {given}, but time column {cells.name!r} has the {'day' if first else 'month'} first: "
                "leave the option out"
            )
        return first
    if given is not None:
        return given
    if (parts.get_column("sign") == ".").any() or (a == b).all():  # 3.4.2024 is always the 3rd of April
        return True
    told = _runs_on(readings)
    if told is not None:
        return told
    raise DataError(
        f"time column {cells.name!r}: {cells.at(int(np.argmax(a != b)))} may have the day or the month first, and no "
        "other row tells: say it with day_first = true or false, on the command line with --day-first or --month-first",
        code=AMBIGUOUS,
    )
