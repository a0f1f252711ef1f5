"""Time columns of the usual kinds, as whole nanoseconds.

A column is one kind throughout: dates with or without a zone, day or month first, epochs, spreadsheet serials, or plain
seconds. The order of day, month and year is found from all cells together. What is not certain is refused with the
option that would settle it, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars
from numpy.typing import NDArray

from counterflow.data.options import TableOptions, some
from counterflow.errors import DataError, OptionError
from counterflow.plant.calendar import SECOND, Calendar, zone_of

Nanoseconds = NDArray[np.int64]

NONE = np.iinfo(np.int64).min  # no time, as NumPy's NaT

_DATE = (
    r"^(?P<a>\d{1,4})(?P<sign>[-/. ])(?P<b>\d{1,2}|[A-Za-z]{3,9})[-/. ](?P<c>\d{1,4})"
    r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9})\d*)?)?"
    r"\s*(?P<half>[AaPp]\.?[Mm]\.?)?)?\s*(?P<zone>Z|UTC|[+-]\d{2}:?\d{2})?$"
)
_MOST_UNREAD = 0.02  # share of cells that may be no times: their rows are left out
_REMEDY = "give its format, such as time_format = '%d/%m/%Y %H:%M:%S'"
_FORMS = {  # what all cells of a column have, or none; at midnight some exports write the date alone
    "begins with the year": polars.col("a").str.len_chars() == 4,
    "names the month": polars.col("b").str.contains("^[A-Za-z]"),
    "has a zone": polars.col("zone").is_not_null(),
    "has AM or PM": polars.col("half").is_not_null() | polars.col("hour").is_null(),
}
NAMES = ("time", "timestamp", "datetime", "date_time", "date", "date time", "time stamp", "t_stamp", "ts", "zeit")
FORMATS = ("seconds", "s", "ms", "us", "ns", "excel")  # besides strftime patterns
_EPOCHS = {  # what counts since 1970: in words, typical values, nanoseconds in one
    "s": ("seconds since 1970", 1e8, 1e10, SECOND), "ms": ("milliseconds since 1970", 1e11, 1e13, 1_000_000),
    "us": ("microseconds since 1970", 1e14, 1e16, 1000), "ns": ("nanoseconds since 1970", 1e17, 9.3e18, 1),
}  # fmt: skip
_EXCEL_DAYS = (20_000.0, 80_000.0)  # 1954 to 2119
_EXCEL_EPOCH = -25_569  # days from 1970 to 1899-12-30
_ZONES = (
    "Europe/London", "Europe/Berlin", "Europe/Helsinki", "America/New_York", "America/Chicago", "America/Denver",
    "America/Los_Angeles", "Australia/Sydney", "Pacific/Auckland",
)  # fmt: skip


@dataclass(frozen=True)
class Times:
    """A column of times."""

    nanoseconds: Nanoseconds  # since 1970 in UTC, or in local time of a zone that is not told, or since 0; or `NONE`
    kind: str  # in words
    dated: bool  # whether these are dates rather than a plain count of seconds
    zoned: bool = False  # whether the zone is known, so that these are in UTC
    zone: str = ""  # in which people read them: the one that was given, or that the column has
    unread: int = 0  # cells that hold something that is no time of the column's kind
    example: str = ""  # the first of them, and where it stands

    def shown(self, nanoseconds: int) -> str:
        return shown_time(int(nanoseconds), self.dated) + ("Z" if self.zoned else "")

    @property
    def stamps(self) -> polars.Series:
        """The times as polars has them: dates, or durations since 0."""
        whole = polars.Series(self.nanoseconds)
        dates = whole.cast(polars.Datetime("ns") if self.dated else polars.Duration("ns"))
        return dates.dt.replace_time_zone("UTC") if self.zoned else dates


def counted(rows: int, dt: float) -> Times:
    """Of rows without a time, that are taken as they come."""
    if rows == 0:
        raise DataError("the table has a header but no rows: give a table with data")
    return Times(np.arange(rows) * max(1, round(dt * SECOND)), "rows", False)


def runs(which: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where runs of True begin, and where each has ended."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], which, [False])).astype(np.int8)))
    return edges[::2], edges[1::2]


def shown_time(nanoseconds: int, dated: bool = True) -> str:
    """ISO with a blank between date and time, fractions only where there are any; or seconds."""
    if not dated:
        return f"{nanoseconds / SECOND:.12g} s"
    text = str(np.datetime64(nanoseconds, "ns")).replace("T", " ")
    return text.rstrip("0").rstrip(".") if "." in text else text


def moment(given: object, dated: bool, name: str) -> int:
    """An option such as ``start`` as nanoseconds: a date, or a number of seconds where the table has no dates."""
    if not dated:
        if isinstance(given, (int, float)) and not isinstance(given, bool) and np.isfinite(given):
            return round(given * SECOND)
        raise DataError(f"{name} is {given!r:.40}: the table's time is a count of seconds; give a number")
    try:
        return Calendar.starting(given, 1.0).begins
    except OptionError:
        raise DataError(f"{name} is {given!r:.40}: give a date such as '2024-05-01' or '2024-05-01 06:00:00'") from None


def is_dated(some: polars.Series) -> bool:
    """Whether cells of a column are dates, by what they look like: text with day, month and year, or dates as such."""
    if some.dtype in (polars.Date, polars.Datetime):
        return True
    if some.dtype != polars.String:
        return False
    text = some.str.strip_chars().drop_nulls()
    text = text.filter(text != "")
    return len(text) > 1 and bool(text.str.contains(_DATE).all()) and text.n_unique() > 1


def find_time(names: tuple[str, ...], wanted: str | None, file: str) -> str | None:
    """The time column: the one that is wanted, or the one with a usual name; None if there is none."""
    if wanted is not None:
        stripped = wanted.strip()
        if stripped in names:
            return stripped
        near = [name for name in names if name.casefold() == stripped.casefold()]
        if len(near) == 1:
            return near[0]
        raise DataError(f"{file} has no time column {wanted!r}; its columns are {some(names)}")
    return next((name for usual in NAMES for name in names if name.casefold() == usual), None)


def parse(
    column: polars.Series, name: str, options: TableOptions | None = None, line: Callable[[int], str] = lambda row: ""
) -> Times:
    """Read a time column."""
    dtype, options = column.dtype, options or TableOptions()
    wanted, timezone = options.time_format, options.timezone
    if dtype == polars.Date or isinstance(dtype, polars.Datetime):
        zone = (dtype.time_zone or "") if isinstance(dtype, polars.Datetime) else ""
        kind = "dates with a zone" if zone else "dates"
        found = Times(_filled(column, bool(zone)), kind, True, bool(zone), zone)
    elif isinstance(dtype, polars.Duration):
        found = Times(column.dt.cast_time_unit("ns").cast(polars.Int64).fill_null(NONE).to_numpy(), "seconds", False)
    elif dtype.is_numeric():
        found = _numbers(column, name, wanted)
    elif dtype == polars.String:
        cells = _Cells(column, name, line)
        found = replace(_texts(cells, options), unread=cells.unread, example=cells.example)
    else:
        raise DataError(f"time column {name!r} has type {dtype}, which is neither a date, a number nor text")
    if (found.nanoseconds == NONE).all():
        raise DataError(f"time column {name!r} holds no time at all: name the right column with 'time'")
    if timezone is not None:
        if not found.dated:
            raise DataError(f"timezone is {timezone!r}, but time column {name!r} is a plain count of seconds")
        zone_of(timezone)
        found = replace(found, zone=timezone) if found.zoned else _localised(found, name, timezone)
    return replace(found, zone="UTC") if found.zoned and found.zone.upper() in ("", "ETC/UTC") else found


def _texts(cells: _Cells, options: TableOptions) -> Times:
    """Times of text: numbers, if nearly all cells are, or dates."""
    wanted, text = options.time_format, cells.text
    if wanted is not None and wanted not in FORMATS:
        return _pattern(cells, wanted)
    numbers = text.cast(polars.Int64, strict=False)
    if numbers.null_count() > text.null_count():
        numbers = text.str.replace(",", ".", literal=True).cast(polars.Float64, strict=False)
    few = numbers.null_count() - text.null_count() <= _MOST_UNREAD * len(text)
    if wanted is None and not (few and text.null_count() < len(text)):
        nanoseconds, kind, zoned = _dates(cells, options.day_first)
        return Times(nanoseconds, kind, True, zoned)
    cells.leave_out(numbers.is_null(), f"is not a number{f', as time_format {wanted!r} says' if wanted else ''}")
    return _numbers(numbers, cells.name, wanted)


# ---- dates in text


class _Cells:
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
        if self.unread > _MOST_UNREAD * len(self.text):
            raise DataError(f"time column {self.name!r} holds {self.at(int(rows[0]))}, which {why}")
        self.example = self.example or self.at(int(rows[0]))
        self.text = self.text.set(wrong, None)

    def refuse_mixed(self, one: int, has: str, other: int, has_not: str) -> None:
        """Refuse a column in which rows are written in two ways."""
        raise DataError(
            f"time column {self.name!r} mixes formats: {self.at(one)} {has}, {self.at(other)} {has_not}; write all of "
            "them in one way"
        )


def _dates(cells: _Cells, day_first: bool | None) -> tuple[Nanoseconds, str, bool]:
    """Nanoseconds since 1970, `NONE` where a cell is empty or left out; of what kind they are; and whether in UTC."""
    parts = cells.text.str.extract_groups(_DATE).struct.unnest()
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
    kind = "dates"
    late, zoned = "%y" if parts.get_column("c").str.len_chars().max() == 2 else "%Y", has["has a zone"]
    if has["begins with the year"]:
        found = _moments(parts, "%Y-%m-%d", zoned)
    elif has["names the month"]:
        found = _moments(parts, f"%d-%b-{late}", zoned)
    else:
        readings = [_moments(parts, f"{pair}-{late}", zoned) for pair in ("%d-%m", "%m-%d")]
        first = _day_first(cells, parts, day_first, readings)
        found = readings[0 if first else 1]
        kind = "dates, day first" if first else "dates, month first"
    cells.leave_out(found.is_null(), f"is no date ({kind}): {_REMEDY}")
    return found.fill_null(NONE).to_numpy(), kind + (" with a zone" if zoned else ""), zoned


def _moments(parts: polars.DataFrame, order: str, zoned: bool) -> polars.Series:
    """Nanoseconds since 1970, the parts of dates being in this order; null where there is no such date or time."""
    clock = polars.concat_str(polars.col("hour", "minute", "second").fill_null("0"), separator=":")
    fraction = polars.col("fraction").fill_null("0").str.pad_end(9, "0").cast(polars.Int64)
    zone = polars.col("zone").str.replace("^[A-Z]+$", "+0000")
    half = polars.col("half").str.replace_all(".", "", literal=True).str.to_uppercase()
    date = polars.concat_str("a", polars.col("b").str.slice(0, 3), "c", separator="-")
    pieces = [date, clock, zone] if zoned else [date, clock]
    form = f"{order} %H:%M:%S" + (" %z" if zoned else "")
    texts = {
        form: polars.when(half.is_null()).then(polars.concat_str(pieces, separator=" ")),
        "%p " + form.replace("%H", "%I"): polars.concat_str(half, *pieces, separator=" "),
    }
    moment = polars.coalesce(text.str.to_datetime(form, time_unit="us", strict=False) for form, text in texts.items())
    usable = polars.when(moment.dt.year().is_between(1700, 2250)).then(moment)
    return parts.select((usable.dt.epoch("ns") + fraction).alias("moment")).to_series()


def _runs_on(readings: list[polars.Series]) -> bool | None:
    """Whether the first reading is the right one, because its rows run on over midnight; None if that does not tell.

    In one reading the date changes with the usual step, in the other by a month.
    """
    run_on = []
    for reading in readings:
        moments = reading.drop_nulls().to_numpy()
        steps, changed = np.abs(np.diff(moments)), np.diff(moments // (86_400 * SECOND)) != 0
        within = steps[~changed & (steps > 0)]
        run_on.append(bool(len(within) and (steps[changed] <= 1.5 * np.median(within)).any()))
    return None if run_on[0] == run_on[1] else run_on[0]


def _day_first(cells: _Cells, parts: polars.DataFrame, given: bool | None, readings: list[polars.Series]) -> bool:
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
        code="ambiguous-dates",
    )


# ---- numbers, and zones


def _filled(dates: polars.Series, zoned: bool) -> Nanoseconds:
    """Dates in UTC, or as they stand if they have no zone."""
    if zoned:
        dates = dates.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return np.array(dates.cast(polars.Datetime("ns")).cast(polars.Int64).fill_null(NONE).to_numpy(), np.int64)


def _pattern(cells: _Cells, pattern: str) -> Times:
    zoned = "%z" in pattern
    try:
        found = cells.text.str.to_datetime(pattern, time_unit="ns", strict=False)
    except polars.exceptions.PolarsError as error:
        raise DataError(f"time_format {pattern!r} cannot be used: {str(error).splitlines()[0]:.120}") from error
    cells.leave_out(found.is_null(), f"does not fit time_format {pattern!r}")
    return Times(_filled(found, zoned), f"dates, format {pattern}", True, zoned)


def _numbers(column: polars.Series, name: str, time_format: str | None) -> Times:
    if time_format is not None and time_format not in FORMATS:
        raise DataError(
            f"time column {name!r} is numeric: time_format {time_format!r} does not apply; give one of "
            f"{', '.join(FORMATS)}"
        )
    values = column.cast(polars.Float64).fill_null(float("nan")).to_numpy()
    known = np.isfinite(values)
    out = np.full(len(values), NONE, np.int64)
    if not known.any():
        return Times(out, "empty", False)
    kind = time_format or _numeric_kind(values[known])
    words, _, _, factor = _EPOCHS.get(kind, (kind, 0, 0, SECOND))
    if kind == "excel":
        words, out[known] = "spreadsheet serials", _serials(values[known])
    elif kind != "seconds" and column.dtype.is_integer():  # exact: an epoch in ns has more digits than a float
        whole = column.cast(polars.Int64).fill_null(0).to_numpy()[known]
        if np.abs(whole).max() > np.iinfo(np.int64).max // factor:
            raise DataError(f"time column {name!r} holds {whole[0]}, which is no time in {kind} since 1970")
        out[known] = whole * factor
    else:
        out[known] = _scaled(values[known], factor, name)
    return Times(out, words, kind != "seconds", kind in _EPOCHS)


def _serials(days: NDArray[np.float64]) -> Nanoseconds:
    """Spreadsheet serials; those that were written with few decimals are put back on the round times they stand for."""
    # a serial holds about 1e-11 days: what is finer than 10 µs is rounding
    found = np.round((days + _EXCEL_EPOCH) * 86_400e5).astype(np.int64) * 10_000
    for decimals in range(1, 9):
        scaled = days * 10**decimals
        if np.abs(scaled - np.round(scaled)).max() < 1e-3:
            written = round(86_400 * SECOND / 10**decimals)
            for unit in (60 * SECOND, 10 * SECOND, SECOND, SECOND // 10, SECOND // 100, SECOND // 1000):
                near = (found + unit // 2) // unit * unit
                if unit > written and np.abs(found - near).max() <= written // 2 + 10_000:
                    return np.asarray(near)
            break
    return found


def _scaled(values: NDArray[np.float64], factor: int, name: str) -> Nanoseconds:
    if np.abs(values).max() > 9e18 / factor:
        raise DataError(f"time column {name!r} holds {values[np.abs(values).argmax()]:g}, which is no time")
    whole = np.floor(values)  # apart from the fraction, which would lose digits beside an epoch
    return np.asarray(whole.astype(np.int64) * factor + np.round((values - whole) * factor).astype(np.int64))


def _numeric_kind(values: NDArray[np.float64]) -> str:
    typical = float(np.median(np.abs(values)))
    for unit, (_, low, high, _) in _EPOCHS.items():
        if low <= typical < high:
            return unit
    low, high = _EXCEL_DAYS
    if values.min() >= low and values.max() <= high and (values != np.floor(values)).any():
        steps = np.abs(np.diff(values))
        if len(steps) == 0 or np.median(steps) < 0.5:  # days: a table of half-days has whole serials
            return "excel"
    return "seconds"


def zones_of(found: Times, turns: Sequence[int]) -> list[str]:
    """Of the zones that most plants have, those in which clocks went back between these rows and the next ones."""
    out = []
    for zone in _ZONES:
        try:
            local = _localised(found, "", zone).nanoseconds
        except DataError:  # a time that does not exist there
            continue
        if all(local[turn] < local[turn + 1] for turn in turns):
            out.append(zone)
    return out


def _localised(found: Times, name: str, timezone: str) -> Times:
    """Local times as UTC. Of the hour that comes twice in autumn, the first run is summer time, the second is not."""
    known = found.nanoseconds != NONE
    local = polars.Series(found.nanoseconds[known]).cast(polars.Datetime("ns"))

    def to_utc(ambiguous: Any) -> Nanoseconds:
        return _filled(local.dt.replace_time_zone(timezone, ambiguous=ambiguous, non_existent="null"), True)

    early, late = to_utc("earliest"), to_utc("latest")
    skipped = early == NONE
    if skipped.any():
        row = int(np.flatnonzero(known)[np.argmax(skipped)])
        raise DataError(
            f"time column {name!r}: {shown_time(int(found.nanoseconds[row]))} in row {row} does not exist in "
            f"{timezone}: clocks went forward then; is it the right zone?"
        )
    nanoseconds = early.copy()
    for start, stop in zip(*runs(early != late), strict=True):
        steps = np.diff(early[start:stop])
        back = bool((steps < 0).any())
        if back or (start > 0 and early[start] <= early[start - 1]):
            turn = start + int(np.argmin(steps)) + 1 if back else start  # rows that are out of order go back by less
            nanoseconds[turn:stop] = late[turn:stop]
    out = found.nanoseconds.copy()
    out[known] = nanoseconds
    return replace(found, nanoseconds=out, kind=f"{found.kind}, {timezone}", zoned=True, zone=timezone)
