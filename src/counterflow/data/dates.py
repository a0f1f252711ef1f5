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

    def refuse_mixed(self, which: polars.Series, what: str) -> None:
        """Refuse a column of which only some cells are so."""
        rows = np.flatnonzero(self.known)
        inside = which.to_numpy()[rows]
        if inside.any() and not inside.all():
            one, other = int(rows[np.argmax(inside)]), int(rows[np.argmin(inside)])
            raise DataError(
                f"time column {self.name!r} mixes formats: {self.at(one)} {what}, {self.at(other)} not; write all of "
                "them in one way"
            )


def dates(cells: Cells, day_first: bool | None) -> tuple[Nanoseconds, str, bool]:
    """Nanoseconds since 1970, `NONE` where a cell is empty or left out; of what kind they are; and whether in UTC."""
    parts = cells.text.str.extract_groups(DATE).struct.unnest()
    if cells.text.null_count() == len(cells.text):
        return np.full(len(parts), NONE, np.int64), "empty", False
    cells.leave_out(parts.get_column("a").is_null(), f"is no date or time of a usual kind: {_REMEDY}")
    seen = parts.select(
        (polars.col("a").str.len_chars() == 4).fill_null(False).alias("begins with the year"),
        polars.col("b").str.contains("^[A-Za-z]").fill_null(False).alias("names the month"),
        polars.col("zone").is_not_null().alias("has a zone"),
        polars.col("half").is_not_null().alias("half"),
        # at midnight some exports write the date alone
        (polars.col("half").is_not_null() | polars.col("hour").is_null()).alias("has AM or PM"),
    )
    halves = bool(seen.get_column("half").any())
    for what in ("begins with the year", "names the month", "has a zone", *(["has AM or PM"] if halves else [])):
        cells.refuse_mixed(seen.get_column(what), what)
    middle = polars.col("b").cast(polars.Int64, strict=False)
    if named := bool(seen.get_column("names the month").any()):
        months = {word: k + 1 for k, word in enumerate(_MONTHS)}
        word = polars.col("b").str.to_lowercase().str.slice(0, 3)
        middle = word.replace_strict(months, default=None, return_dtype=polars.Int64)
    others = polars.col("a", "c", "hour", "minute", "second").cast(polars.Int64, strict=False)
    numbers = parts.select(others, middle).fill_null(0)
    a, c, hour, minute, second, b = (np.array(series.to_numpy(), np.int64) for series in numbers.iter_columns())
    half = seen.get_column("half").to_numpy()
    bad_hour = np.where(half, (hour < 1) | (hour > 12), hour > 23)
    after_noon = parts.get_column("half").str.to_lowercase().str.starts_with("p").fill_null(False).to_numpy()
    hour = np.where(half, hour % 12 + 12 * after_noon, hour)
    known, clock, kind = cells.known, (hour * 60 + minute) * 60 + second, "dates"
    if seen.get_column("begins with the year").to_numpy()[known].any():
        year, month, day = a, b, c
    elif named:
        day, month, year = a, b, _of_four_digits(c)
    else:
        year = _of_four_digits(c)
        dotted = bool((parts.get_column("sign") == ".").any())
        first = _day_first(cells, a, b, day_first, dotted, (year[known], clock[known]))
        day, month = (a, b) if first else (b, a)
        kind = "dates, day first" if first else "dates, month first"
    month_starts = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (np.clip(month, 1, 12) - 1)
    days_of_month = ((month_starts + 1).astype("datetime64[D]") - month_starts.astype("datetime64[D]")).astype(int)
    bad = bad_hour | (month < 1) | (month > 12) | (day < 1) | (day > days_of_month) | (minute > 59) | (second > 60)
    bad |= (year < 1700) | (year > 2250)
    cells.leave_out(polars.Series(bad), f"is no date ({kind}): {_REMEDY}")
    days = month_starts.astype("datetime64[D]").astype(np.int64) + day - 1
    fraction = parts.get_column("fraction").fill_null("0").str.pad_end(9, "0").cast(polars.Int64).to_numpy()
    nanoseconds = (days * 86_400 + clock) * SECOND + fraction
    zoned = bool(seen.get_column("has a zone").to_numpy()[cells.known].any())
    if zoned:
        digits = parts.get_column("zone").str.replace(":", "", literal=True)
        offset = digits.str.slice(1).cast(polars.Int64, strict=False).fill_null(0).to_numpy()  # "TC" of "UTC" is null
        west = digits.str.starts_with("-").fill_null(False).to_numpy()
        nanoseconds -= np.where(west, -1, 1) * (offset // 100 * 60 + offset % 100) * 60 * SECOND
        kind += " with a zone"
    return np.where(cells.known, nanoseconds, NONE), kind, zoned


def _of_four_digits(year: Nanoseconds) -> Nanoseconds:
    """Years, where those of two digits are of 1970 to 2069."""
    return np.where(year < 70, year + 2000, np.where(year < 100, year + 1900, year))


def _runs_on(a: Nanoseconds, b: Nanoseconds, year: Nanoseconds, clock: Nanoseconds) -> bool | None:
    """Whether the day is first, by which reading lets rows run on over midnight; None if that does not tell.

    `clock` are seconds of the day. In one reading the date changes with the usual step, in the other by a month.
    """
    usable = (year > 1700) & (year < 2250) & (np.minimum(a, b) > 0)
    a, b, year, clock = a[usable], b[usable], year[usable], clock[usable]
    changed = (np.diff(a) != 0) | (np.diff(b) != 0) | (np.diff(year) != 0)
    within = np.abs(np.diff(clock))[~changed]
    within = within[within > 0]
    if not changed.any() or not len(within):
        return None
    usual = 1.5 * float(np.median(within))
    run_on = []
    for day, month in ((a, b), (b, a)):
        dates = (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1)
        seconds = (dates.astype("datetime64[D]").astype(np.int64) + day) * 86_400 + clock
        run_on.append(bool((np.abs(np.diff(seconds))[changed] <= usual).any()))
    return None if run_on[0] == run_on[1] else run_on[0]


def _day_first(
    cells: Cells, a: Nanoseconds, b: Nanoseconds, given: bool | None, dotted: bool,
    rest: tuple[Nanoseconds, Nanoseconds],
) -> bool:  # fmt: skip
    """Whether the first of two numbers is the day; empty cells have 0 in both. `rest`: years and times of the day."""
    first, second = bool((a > 12).any()), bool((b > 12).any())
    if first and second:
        raise DataError(
            f"time column {cells.name!r} mixes formats: {cells.at(int(np.argmax(a > 12)))} has the day first, "
            f"{cells.at(int(np.argmax(b > 12)))} the month; write all of them in one way"
        )
    if first or second:
        if given is not None and given != first:
            raise DataError(
                f"day_first is {given}, but time column {cells.name!r} has the {'day' if first else 'month'} first: "
                "leave the option out"
            )
        return first
    if given is not None:
        return given
    if dotted or (a == b).all():  # 3.4.2024 is always the 3rd of April
        return True
    told = _runs_on(a[cells.known], b[cells.known], *rest)
    if told is not None:
        return told
    raise DataError(
        f"time column {cells.name!r}: {cells.at(int(np.argmax(a != b)))} may have the day or the month first, and no "
        "other row tells: say it with day_first = true or false, on the command line with --day-first or --month-first",
        code=AMBIGUOUS,
    )
