"""When rows were: dates and durations become rows here, and rows become dates, by the recording's own calendar.

Whoever asks may give a row, a date ("2024-11-01 14:00", a datetime, a timestamp of NumPy or pandas) or a duration
("2h", "90 min", a timedelta). Dates without a zone are of the calendar's own zone. A duration counts from the first
row; one that tells where a window stops counts from where it starts, if that is a row or a date.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import DataError, OptionError

if TYPE_CHECKING:
    import polars

Moment = int | str | date | timedelta | np.datetime64 | np.timedelta64  # a row, a date, or a duration
Span = int | str | timedelta | np.timedelta64  # steps, or a duration
SECOND = 1_000_000_000  # nanoseconds
_EPOCH = datetime(1970, 1, 1)
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(.*)")
_PART = re.compile(r"\s*(\d+(?:[.,]\d+)?)\s*([a-zµ]+)\.?\s*", re.IGNORECASE)
_ISO = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_SECONDS: dict[float, tuple[str, ...]] = {
    1e-3: ("ms", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("min", "mins", "minute", "minutes", "m"),
    3600.0: ("h", "hr", "hrs", "hour", "hours"),
    86400.0: ("d", "day", "days"),
    604800.0: ("w", "week", "weeks"),
}
_UNITS = {word: seconds for seconds, words in _SECONDS.items() for word in words}
_EXAMPLES = "a row, a date such as '2024-11-01 14:00', or a duration such as '2h'"
_NEAR = 1e-6  # of a step: what is nearer to a row is that row


@dataclass(frozen=True)
class Calendar:
    """When the rows of a recording were.

    Parameters
    ----------
    begins : int
        Time of row 0 in nanoseconds since 1970: UTC if there is a zone, else local time of a place that is not known.
    step : int
        Nanoseconds between two rows.
    zone : str
        Such as "Europe/Berlin" or "UTC"; "" if it is not known.
    jumps : tuple of (row, nanoseconds)
        Where long gaps were left out: from that row on, times are later by so much.

    Examples
    --------
    >>> calendar = Calendar.starting("2024-10-27 02:30+02:00", 900.0, "Europe/Berlin")
    >>> calendar.shown(0), calendar.shown(4), calendar.row("2024-10-27 03:00")
    ('2024-10-27 02:30 CEST', '2024-10-27 02:30 CET', 6)
    """

    begins: int
    step: int
    zone: str = ""
    jumps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("begins", "step"):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not abs(int(value)) < 1 << 63:
                raise DataError(f"calendar: {name} is {value!r:.40}: give whole nanoseconds.")
            object.__setattr__(self, name, int(value))
        if self.step <= 0:
            raise DataError(f"calendar: step is {self.step}: give nanoseconds above 0.")
        if self.zone:
            zone_of(self.zone)
        jumps = tuple((int(row), int(extra)) for row, extra in self.jumps)
        if any(row < 0 or extra <= 0 for row, extra in jumps) or list(jumps) != sorted(jumps):
            raise DataError("calendar: jumps must be (row, nanoseconds) in order, forward in time.")
        object.__setattr__(self, "jumps", jumps)

    @classmethod
    def starting(cls, begins: object, dt: float, zone: str = "") -> Calendar:
        """From the date of row 0 and seconds between rows; a date with a zone of its own makes the calendar UTC."""
        step = round(dt * SECOND)
        found = as_datetime(begins, "begins")
        if found.tzinfo is not None:
            return cls(_nanoseconds(found.astimezone(UTC).replace(tzinfo=None), begins), step, zone or "UTC")
        if zone:
            return cls(cls(0, step, zone)._moment(found, "begins"), step, zone)
        return cls(_nanoseconds(found, begins), step)

    # ---- rows to dates

    def at(self, row: int) -> int:
        """Time of a row in nanoseconds; rows before the first and after the last go on in the same steps."""
        return self.begins + int(row) * self.step + sum(extra for first, extra in self.jumps if row >= first)

    def times(self, start: int, stop: int) -> NDArray[np.datetime64]:
        """Times of rows start to stop - 1 as ``datetime64[ns]``: UTC if there is a zone."""
        rows = np.arange(start, stop, dtype=np.int64)
        found = self.begins + rows * self.step
        for first, extra in self.jumps:
            found += np.where(rows >= first, extra, 0)
        return found.astype("datetime64[ns]")

    def local_times(self, start: int, stop: int) -> NDArray[np.datetime64]:
        """The same as clocks of the zone show them, for drawing."""
        series = self.series(start, stop)
        if self.zone:
            series = series.dt.replace_time_zone(None)
        return cast("NDArray[np.datetime64]", series.to_numpy())

    def series(self, start: int, stop: int) -> polars.Series:
        """The same as a polars Series called "time", with its zone."""
        import polars

        found = polars.Series("time", self.times(start, stop))
        return found.dt.replace_time_zone("UTC").dt.convert_time_zone(self.zone) if self.zone else found

    def shown(self, row: int, zone: bool = True) -> str:
        """A row's time in words: to the minute if all rows are, with its zone."""
        whole = self.at(row)
        naive = _EPOCH + timedelta(microseconds=whole // 1000)
        label = ""
        if self.zone:
            local = naive.replace(tzinfo=UTC).astimezone(zone_of(self.zone))
            naive, label = local.replace(tzinfo=None), f" {local.tzname()}" if zone else ""
        minutes = self.step % (60 * SECOND) == 0 and self.begins % (60 * SECOND) == 0
        text = f"{naive:%Y-%m-%d %H:%M}" if minutes else f"{naive:%Y-%m-%d %H:%M:%S}"
        if self.step % SECOND or self.begins % SECOND:
            text += f".{naive.microsecond // 1000:03d}"
        return text + label

    def span(self, start: int, stop: int) -> str:
        """Rows start to stop - 1 in words: "2024-11-01 14:00 to 15:59"."""
        first, last = self.shown(start), self.shown(stop - 1)
        if start == stop - 1:
            return first
        if first[10:].split()[1:] == last[10:].split()[1:]:  # else the clock is changed between them
            first = self.shown(start, zone=False)
        return f"{first} to {last.removeprefix(first[:11])}"

    @property
    def label(self) -> str:  # of an axis of times
        return f"time ({self.zone})" if self.zone else "time"

    # ---- dates to rows

    def row(self, when: object, name: str = "date") -> int:
        """The first row at or after a date; it may lie before the first row or after the last one."""
        since = self._moment(as_datetime(when, name), name) - self.begins - round(_NEAR * self.step)
        found = -(-since // self.step)
        for first, extra in self.jumps:
            if found < first:
                break
            since -= extra
            found = max(first, -(-since // self.step))
        return found

    def row_after(self, origin: int, seconds: float) -> int:
        """The row that is so many seconds after another one, by the clock."""
        row = origin + round(seconds * SECOND / self.step)
        for first, extra in self.jumps:
            if origin < first <= row:
                row = max(first, row - round(extra / self.step))
        return row

    def _moment(self, found: datetime, name: str) -> int:
        if found.tzinfo is not None:
            if not self.zone:
                raise OptionError(
                    f"{name} is {found.isoformat()}, with a zone, but the recording's is not known: give local time, "
                    "or read the log with timezone."
                )
            found = found.astimezone(UTC)
        elif self.zone:
            local = found.replace(tzinfo=zone_of(self.zone))
            found = local.astimezone(UTC)
            if found.astimezone(zone_of(self.zone)).replace(tzinfo=None) != local.replace(tzinfo=None):
                raise OptionError(f"{name} is {local.replace(tzinfo=None)}: clocks went forward then in {self.zone}.")
        return _nanoseconds(found.replace(tzinfo=None), name)

    # ---- parts of a recording

    def later(self, rows: int) -> Calendar:
        """Of the rows from one on; before the first one if it is negative."""
        jumps = tuple((row - rows, extra) for row, extra in self.jumps if row > rows)
        return replace(self, begins=self.at(rows), jumps=jumps)

    @property
    def text(self) -> str:
        """Time of row 0, as parties of a federation tell it each other: UTC with a "Z", or local time."""
        shown = str(np.datetime64(self.begins, "ns")).replace("T", " ").rstrip("0").rstrip(".")
        return shown.ljust(19, "0") + ("Z" if self.zone else "")


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """A time zone by its name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise OptionError(f"time zone {name!r:.40} is not known: give one such as 'Europe/Berlin'.") from None


def _nanoseconds(naive: datetime, given: object) -> int:
    whole = naive - _EPOCH
    found = (whole.days * 86_400 + whole.seconds) * SECOND + whole.microseconds * 1000
    if abs(found) >= 1 << 63:
        raise OptionError(f"{str(given)[:40]!r} is too far from 1970 to be counted in nanoseconds.")
    return found


def is_date(value: object) -> bool:
    """Whether a value is a date and not a row or a duration."""
    if isinstance(value, (date, np.datetime64)):  # a datetime is a date, and pandas' Timestamp a datetime
        return True
    return isinstance(value, str) and as_duration(value) is None and not value.strip().lstrip("+-").isdigit()


def as_datetime(value: object, name: str) -> datetime:
    """A date of any of the usual kinds; a text in ISO 8601, or with day, month and year between points."""
    if isinstance(value, np.datetime64):
        if np.isnat(value):
            raise OptionError(f"{name} is no time: give {_EXAMPLES}.")
        return cast("datetime", value.astype("datetime64[us]").item())
    if isinstance(value, datetime):
        return value if type(value) is datetime else cast("Any", value).to_pydatetime(warn=False)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, str):
        text = value.strip()
        if dotted := _DOTTED.fullmatch(text):
            text = f"{dotted[3]}-{int(dotted[2]):02d}-{int(dotted[1]):02d}{dotted[4]}"
        text = re.sub(r"\s*UTC$", "+00:00", text)
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            pass
    raise OptionError(f"{name} is {value!r:.60}: give {_EXAMPLES}.")


def as_duration(value: object) -> float | None:
    """Seconds of a timedelta or of a text such as "2h", "1 d 6 h" or "PT90M"; None if it is none of these."""
    if isinstance(value, np.timedelta64):
        return None if np.isnat(value) else float(value / np.timedelta64(1, "ns")) / SECOND
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not isinstance(value, str):
        return None
    text = value.strip()
    if (iso := _ISO.fullmatch(text)) and any(iso.groups()):
        found = sum(float(part) * size for part, size in zip(iso.groups(), (86400, 3600, 60, 1), strict=True) if part)
        return found if math.isfinite(found) else None
    total, place = 0.0, 0
    while place < len(text):
        part = _PART.match(text, place)
        if part is None or part[2].casefold() not in _UNITS:
            return None
        total += float(part[1].replace(",", ".")) * _UNITS[part[2].casefold()]
        place = part.end()
    return total if text and math.isfinite(total) else None


def as_steps(value: Any, dt: float, name: str) -> Any:
    """A duration as a number of steps, at least one; whatever is no duration is returned as it is."""
    seconds = as_duration(value)
    if seconds is None:
        if is_date(value):
            raise OptionError(f"{name} is {str(value)[:40]!r}: give a number of steps, or a duration such as '2h'.")
        return value
    steps = round(seconds / dt)
    if steps < 1:
        raise OptionError(f"{name} is {str(value)[:40]!r}, less than a step of {dt:g} s: give a longer one.")
    return steps


def as_rows(
    start: Any, stop: Any, calendar: Calendar | None, rows: int, dt: float, question: str = "", first: int = 0,
    of: str = "recording",
) -> tuple[Any, Any]:  # fmt: skip
    """Where a window of rows `first` to `rows` - 1 starts and stops; what is neither date nor duration stays as it is.

    Durations count from the first row; `stop` counts from `start` if that is a row or a date. `dt`: seconds between
    rows; `question` and `of`: for messages.
    """
    label = f"{question}: " if question else ""

    def shown(row: int) -> str:
        return f"row {row}" if calendar is None else calendar.shown(row)

    def row_of(value: Any, name: str, origin: int) -> Any:
        seconds, said = as_duration(value), f"{label}{name} is {str(value)[:40]!r}"
        if seconds is None and not is_date(value):
            return value
        if seconds is not None:
            said += "" if origin == first else f" from {shown(origin)} on"
            row = origin + round(seconds / dt) if calendar is None else calendar.row_after(origin, seconds)
        elif calendar is None:
            as_datetime(value, label + name)
            raise OptionError(f"{said}, but the {of} tells no dates: give a row, or a duration.")
        else:
            row = calendar.row(value, label + name)
            row += row == first - 1  # what is seen in the first row began with the one before
        if not first <= row < rows + (name == "stop"):
            reach = f"goes from {shown(first)} to {shown(rows - 1)}"
            reach = reach if calendar is not None else f"has {rows - first} rows of {dt:g} s"
            raise OptionError(f"{said}, but the {of} {reach}.")
        return row

    begins = row_of(start, "start", first)
    counts = _is_row(begins) and begins >= first and as_duration(start) is None
    ends = row_of(stop, "stop", int(begins) if counts else first)
    moved = begins is not start or ends is not stop
    if moved and _is_row(begins) and _is_row(ends) and 0 <= ends <= begins:
        raise OptionError(
            f"{label}start is {shown(begins)}, stop {shown(ends)}: give a stop that is later than start, or how long "
            "after it, such as '2h'."
        )
    return begins, ends


def _is_row(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
