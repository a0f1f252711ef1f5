"""Recordings: what every unit measured and did, row by row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import notebook
from counterflow.arrays import FloatArray, frozen, numeric, real_number
from counterflow.control import Loop
from counterflow.errors import DataError, OptionError
from counterflow.files import as_path, write_whole
from counterflow.frames import as_pandas, as_polars, is_frame
from counterflow.plant.calendar import Calendar, as_rows
from counterflow.plant.units import Channel, Unit, check_name, check_units, unknown_name
from counterflow.records import describe, restore
from counterflow.sealed_file import blaming, read, seal

if TYPE_CHECKING:
    import pandas
    import polars

_FORMAT = "counterflow recording"
_VERSION = 2
_LARGEST = 1 << 40  # bytes
_DRAWN = 8  # channels in a notebook


@dataclass(frozen=True, eq=False, repr=False)
class UnitRecording:
    """What one unit measured and did; `unit` names the channels."""

    y: FloatArray = field(metadata={"missing": True})  # (T+1, D_m); NaN means missing
    u: FloatArray  # (T+1, U_m); every value must be known
    unit: Unit

    def __post_init__(self) -> None:
        if not isinstance(self.unit, Unit):
            raise DataError(f"unit is {self.unit!r}: pass a Unit.")
        name = self.unit.name
        y = _table(self.y, f"unit {name!r}: y")
        u = _table(self.u, f"unit {name!r}: u")
        sides = (("y", y, self.unit.n_outputs, "outputs"), ("u", u, self.unit.n_inputs, "inputs"))
        for letter, array, count, channels in sides:
            if array.shape[1] != count:
                raise DataError(f"unit {name!r}: {letter} has {array.shape[1]} columns, but it has {count} {channels}.")
        if len(u) != len(y):
            raise DataError(f"unit {name!r}: y has {len(y)} rows and u has {len(u)}: cut both to the same rows.")
        if len(y) < 2:
            raise DataError(f"unit {name!r}: y has {len(y)} rows: a recording needs at least 2, rows 0..T with T >= 1.")
        check_inputs(u, self.unit)
        infinite = np.isinf(y)
        if infinite.any():
            _refuse(y, infinite, self.unit.outputs, f"unit {name!r}: y", "Put NaN where the measurement is missing.")
        object.__setattr__(self, "y", frozen(y))
        object.__setattr__(self, "u", frozen(u))

    @property
    def name(self) -> str:
        return self.unit.name

    @property
    def rows(self) -> int:
        return len(self.y)

    @property
    def has_missing(self) -> bool:
        return bool(np.isnan(self.y).any())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitRecording):
            return NotImplemented
        same_y = np.array_equal(self.y, other.y, equal_nan=True)
        return self.unit == other.unit and np.array_equal(self.u, other.u) and same_y

    def __hash__(self) -> int:
        return hash((self.unit, self.rows))

    def __repr__(self) -> str:
        return f"UnitRecording({self.name!r}, rows={self.rows}, inputs={self.u.shape[1]}, outputs={self.y.shape[1]})"


@dataclass(frozen=True, eq=False, repr=False)
class Recording(Mapping[str, UnitRecording]):
    """Rows 0..T of every unit of a plant, by unit name.

    It is a mapping: ``recording["boiler"].y``, ``for name in recording``, ``len(recording)`` (the number of units).

    Parameters
    ----------
    parts : mapping of unit name to UnitRecording
        All with the same number of rows.
    dt : float
        Time between two rows.
    calendar : Calendar, optional
        When the rows were, where that is known. Recordings of the same values are equal whatever their calendars.

    Examples
    --------
    >>> recording = Recording.from_arrays({"boiler": (np.zeros((5, 3)), np.ones((5, 1)))}, dt=0.5)
    >>> recording["boiler"].y.shape, recording.steps, recording.rows
    ((5, 3), 4, 5)
    """

    parts: Mapping[str, UnitRecording]
    dt: float = 1.0
    calendar: Calendar | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.parts, Mapping) or not self.parts:
            raise DataError("parts must map at least one unit name to its UnitRecording; see Recording.from_arrays.")
        for name, part in self.parts.items():
            if not isinstance(part, UnitRecording):
                raise DataError(f"unit {name!r}: got a {type(part).__name__}: pass a UnitRecording; see from_arrays.")
            if part.name != name:
                raise DataError(f"unit {name!r}: its recording belongs to unit {part.name!r}: use one name for both.")
        first = next(iter(self.parts.values()))
        for part in self.parts.values():
            if part.rows != first.rows:
                raise DataError(
                    f"units {first.name!r} and {part.name!r} have {first.rows} and {part.rows} rows: "
                    "cut or align them to the same rows."
                )
        object.__setattr__(self, "parts", MappingProxyType(dict(self.parts)))
        object.__setattr__(self, "dt", real_number(self.dt, "recording: dt", low=0.0, open_low=True, kind=DataError))
        if self.calendar is not None and not np.isclose(self.calendar.step, self.dt * 1e9, rtol=1e-6, atol=1.0):
            raise DataError(f"recording: dt is {self.dt:g} s, the calendar's step {self.calendar.step / 1e9:g} s.")

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], dt: float = 1.0, units: Iterable[Unit] | None = None, start: object = None,
        timezone: str = "",
    ) -> Recording:  # fmt: skip
        """A recording from arrays.

        Parameters
        ----------
        arrays : mapping of unit name to ``(y, u)``, ``y`` alone, or ``{"y": ..., "u": ...}``
            y is (T+1, D_m), u is (T+1, U_m); no u, or None, means that the unit has no inputs. Always 2-D, time first.
        dt : float
            Time between two rows.
        units : sequence of Unit, optional
            Their channel names and numbers of states. Without it channels are called u1, ... and y1, ..., and every
            unit has the default number of states, which a recording does not tell.
        start : date and time, optional
            Of row 0, such as "2024-11-01 14:00" or a datetime; questions can then be asked by dates.
        timezone : str
            Of a start that has no zone of its own, such as "Europe/Berlin"; "" if it is not known.

        Examples
        --------
        >>> y, u = np.zeros((10, 2)), np.zeros((10, 1))
        >>> Recording.from_arrays({"boiler": (y, u), "turbine": {"y": y}}).names
        ('boiler', 'turbine')
        """
        if not isinstance(arrays, Mapping) or not arrays:
            raise DataError('arrays must map unit names to arrays, such as {"boiler": (y, u)}.')
        described = {} if units is None else {unit.name: unit for unit in check_units(units)}
        if units is not None and set(described) != set(arrays):
            odd = sorted(set(described) ^ set(arrays), key=str)
            raise DataError(f"arrays and units do not name the same units: {odd} stand in only one of them.")
        parts = {}
        for name in described or arrays:
            check_name(name, "unit")
            y, u = _pair(arrays[name], name)
            unit = described.get(name)
            if unit is None:
                if y.shape[1] == 0:
                    raise DataError(f"unit {name!r}: y has no columns: a unit measures at least one output.")
                unit = Unit(name, inputs=u.shape[1], outputs=y.shape[1])
            parts[name] = UnitRecording(y, u, unit)
        if start is None and timezone:
            raise DataError(f"timezone is {timezone!r}: give start, the time of row 0, too.")
        return cls(parts, dt, None if start is None else Calendar.starting(start, dt, timezone))

    # ---- mapping

    def __getitem__(self, name: str) -> UnitRecording:
        try:
            return self.parts[name]
        except (KeyError, TypeError):
            raise unknown_name("unit", name, self.names) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    # ---- what is in it

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(part.unit for part in self.parts.values())

    @property
    def rows(self) -> int:
        return next(iter(self.parts.values())).rows

    @property
    def steps(self) -> int:
        """T, the number of pairs of neighbouring rows."""
        return self.rows - 1

    @property
    def has_missing(self) -> bool:
        """Whether any measurement of any unit is missing."""
        return any(part.has_missing for part in self.parts.values())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the contents (names, dt, values) in hexadecimal; the same contents give the same digest."""
        header = [[part.name, part.unit.input_names, part.unit.output_names] for part in self.parts.values()]
        hasher = hashlib.sha256(json.dumps([header, self.rows, repr(self.dt)]).encode())
        for part in self.parts.values():
            for array in (part.y, part.u):
                # one bit pattern for every NaN, and for both zeros
                hasher.update(np.where(np.isnan(array), np.nan, array + 0.0).astype("<f8").tobytes())
        return hasher.hexdigest()

    @cached_property
    def public_digest(self) -> str:
        """SHA-256 of what is no secret: the units' names and inputs."""
        hasher = hashlib.sha256()
        for name in sorted(self.names):
            hasher.update(name.encode() + b"\0" + self[name].u.tobytes())
        return hasher.hexdigest()

    @property
    def times(self) -> NDArray[np.datetime64] | None:
        """Of the rows, as ``datetime64[ns]``: UTC if the calendar has a zone; None if dates are not known."""
        return None if self.calendar is None else self.calendar.times(0, self.rows)

    def readings(self, loops: Iterable[Loop]) -> dict[str, FloatArray]:
        """What loops read of other units than their own, (T+1,) each, as "unit/output"."""
        found = {}
        for loop in loops:
            if loop.reading_unit is not None:
                other = self[loop.reading_unit]
                known = other.unit.output_names
                if loop.reading not in known:
                    what = f"output of unit {other.name!r} (another's loop reads it)"
                    raise unknown_name(what, loop.reading, known)
                found[loop.reads] = other.y[:, known.index(loop.reading)]
        return found

    def slice(self, start: object = None, stop: object = None) -> Recording:
        """Rows start, ..., stop-1, as Python slices count, or dates; at least 2 rows must remain.

        A duration such as "2h" as ``stop`` counts from ``start``, if that is a row or a date.

        Examples
        --------
        >>> recording = Recording.from_arrays({"boiler": np.arange(10.0).reshape(10, 1)})
        >>> recording.slice(2, 5)["boiler"].y.ravel().tolist()
        [2.0, 3.0, 4.0]
        >>> dated = Recording.from_arrays({"boiler": np.arange(10.0).reshape(10, 1)}, 60.0, start="2024-11-01 14:00")
        >>> dated.slice("2024-11-01 14:07").times[0]
        np.datetime64('2024-11-01T14:07:00.000000000')
        """
        start, stop = as_rows(start, stop, self.calendar, self.rows, self.dt, "slice")
        for name, value in (("start", start), ("stop", stop)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer))):
                raise OptionError(f"slice: {name} is {value!r}: pass a whole number, or None.")
        first, last, _ = slice(start, stop).indices(self.rows)
        if last - first < 2:
            raise DataError(
                f"slice({start}, {stop}) leaves {max(0, last - first)} of {self.rows} rows: at least 2 are needed."
            )
        cut = (UnitRecording(part.y[first:last], part.u[first:last], part.unit) for part in self.parts.values())
        calendar = None if self.calendar is None else self.calendar.later(first)
        return Recording({part.name: part for part in cut}, self.dt, calendar)

    def joint(self) -> Recording:
        """The same rows with what controllers move as outputs: for a fit of the running plant where no law is known.

        Every input that a declared loop moves becomes an output of its unit, and its target stays an input. A fit of
        such a recording answers for the running plant by itself (joint input-output identification); with controllers
        held it cannot be asked.

        Examples
        --------
        >>> from counterflow.control import Loop
        >>> drum = Unit("drum", inputs=["feed", "SP"], outputs=["level"], loops=[Loop("feed", "level", "SP")])
        >>> rows = Recording.from_arrays({"drum": (np.zeros((5, 1)), np.zeros((5, 2)))}, units=[drum]).joint()
        >>> rows["drum"].unit.input_names, rows["drum"].unit.output_names
        (('SP',), ('level', 'feed'))
        """
        parts = {}
        for name, part in self.parts.items():
            moved = [part.unit.input_names.index(loop.moves) for loop in part.unit.loops]
            for loop in part.unit.loops:
                if loop.target is None:
                    raise DataError(
                        f"unit {name!r}: the target of the loop that moves {loop.moves!r} is not recorded, so that "
                        "nothing would be left to move it: give the target, or fit with the loop as it is"
                    )
            kept = [k for k in range(part.unit.n_inputs) if k not in moved]
            unit = Unit(
                name, part.unit.states, [part.unit.inputs[k] for k in kept],
                [*part.unit.outputs, *(part.unit.inputs[k] for k in moved)],
            )  # fmt: skip
            parts[name] = UnitRecording(np.hstack([part.y, part.u[:, moved]]), part.u[:, kept], unit)
        return Recording(parts, self.dt)

    # ---- elsewhere

    def to_frame(self) -> polars.DataFrame:
        """A polars DataFrame with columns "time" and, for each unit, "boiler/u1", ..., "boiler/y1", ...

        Times are dates with their zone where they are known, else seconds.

        Examples
        --------
        >>> Recording.from_arrays({"boiler": (np.zeros((3, 1)), np.ones((3, 1)))}).to_frame().columns
        ['time', 'boiler/u1', 'boiler/y1']
        """
        import polars

        columns: dict[str, Any] = {"time": self.dt * np.arange(self.rows, dtype=np.float64)}
        if self.calendar is not None:
            columns["time"] = self.calendar.series(0, self.rows)
        for part in self.parts.values():
            for channels, array in ((part.unit.inputs, part.u), (part.unit.outputs, part.y)):
                for k, channel in enumerate(channels):
                    columns[f"{part.name}/{channel.name}"] = np.ascontiguousarray(array[:, k])
        return polars.DataFrame(columns)

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame: the columns of `to_frame`, with the times as its index.

        Examples
        --------
        >>> Recording.from_arrays({"boiler": np.zeros((3, 1))}, 60.0, start="2024-11-01 14:00").to_pandas().index[-1]
        Timestamp('2024-11-01 14:02:00')
        """
        return as_pandas(self.to_frame(), "time")

    @classmethod
    def from_frame(cls, frame: Any, units: Iterable[Unit], dt: float | None = None) -> Recording:
        """A recording from a DataFrame with columns named "unit/channel"; the inverse of `to_frame` and `to_pandas`.

        Parameters
        ----------
        frame : DataFrame of polars or pandas
            Null and NaN both mean missing. Columns that belong to no unit are ignored.
        units : sequence of Unit
            Which columns to read.
        dt : float, optional
            Time between two rows. By default the spacing of the column "time" (or of an index of times) if there is
            one, else 1.
        """
        import polars

        if not is_frame(frame):
            raise DataError(f"frame is a {type(frame).__name__}: pass a polars.DataFrame or a pandas.DataFrame.")
        rows: polars.DataFrame = as_polars(frame)
        checked = check_units(units)
        wanted = [f"{unit.name}/{name}" for unit in checked for name in unit.input_names + unit.output_names]
        missing = [column for column in wanted if column not in rows.columns]
        if missing:
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise DataError(
                f"frame has no column {', '.join(map(repr, missing[:5]))}{more}: columns are 'unit/channel'."
            )

        def column(name: str) -> FloatArray:
            series = rows.get_column(name)
            if series.dtype != polars.Null and (not series.dtype.is_numeric() or series.dtype.is_decimal()):
                raise DataError(f"column {name!r} has type {series.dtype}: cast it to Float64 first.")
            return series.cast(polars.Float64).fill_null(float("nan")).to_numpy()

        calendar, kind = None, rows.schema.get("time")
        if isinstance(kind, polars.Datetime):
            calendar = _calendar(rows.get_column("time"))
            dt = calendar.step / 1e9 if dt is None else dt
        elif dt is None:
            dt = _step(column("time")) if kind is not None and kind.is_numeric() and len(rows) > 1 else 1.0
        parts = {}
        for unit in checked:
            sides = (
                [column(f"{unit.name}/{name}") for name in names] for names in (unit.output_names, unit.input_names)
            )
            y, u = (np.stack(side, axis=1) if side else np.empty((len(rows), 0)) for side in sides)
            parts[unit.name] = UnitRecording(y, u, unit)
        return cls(parts, dt, calendar)

    def save(self, path: str | Path) -> None:
        """Write the recording to one safetensors file, replacing what is there only when all is written."""
        write_whole(as_path(path), seal(_FORMAT, _VERSION, *describe(self)))

    @classmethod
    def load(cls, path: str | Path) -> Recording:
        """Read what `save` wrote."""
        stored = read(as_path(path), _FORMAT, _VERSION, {1: "prepare the recording again"}, _LARGEST)
        with blaming(stored.path):
            return restore(cls, stored.content, stored.arrays)

    # ---- as a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recording):
            return NotImplemented
        return self.dt == other.dt and self.names == other.names and all(self[name] == other[name] for name in self)

    def __hash__(self) -> int:
        return hash((self.units, self.rows, self.dt))

    def __repr__(self) -> str:
        units = ", ".join(self.names[:8]) + (f", ... {len(self) - 8} more" if len(self) > 8 else "")
        missing = ", with missing values" if self.has_missing else ""
        when = "" if self.calendar is None else f", {self.calendar.span(0, self.rows)}"
        return f"Recording({self.rows} rows, dt={self.dt:g}{when}, units: {units}{missing})"

    def _repr_html_(self) -> str:
        rows = [
            [part.name, *(", ".join(map(str, names)) for names in (part.unit.input_names, part.unit.output_names)),
             f"{100 * float(np.isnan(part.y).mean()):.3g} %"]
            for part in self.parts.values()
        ]  # fmt: skip
        first = [
            (f"{part.name} {channel.name}", part.y[:, k])
            for part in self.parts.values() for k, channel in enumerate(part.unit.outputs[:2])
        ]  # fmt: skip
        table = notebook.Table("", ["unit", "inputs", "outputs", "missing"], rows, 3)
        return notebook.page(repr(self), [table], notebook.sparklines(first[:_DRAWN]))


def check_inputs(u: FloatArray, unit: Unit) -> None:
    """Refuse inputs that are not all finite, naming the channel and the first row."""
    finite = np.isfinite(u)
    if not finite.all():
        remedy = "Inputs must be known in every row: fill the gap, or cut those rows off."
        _refuse(u, ~finite, unit.inputs, f"unit {unit.name!r}: u", remedy)


def _refuse(array: FloatArray, bad: NDArray[np.bool_], channels: tuple[Channel, ...], what: str, remedy: str) -> None:
    row, column = (int(k) for k in np.argwhere(bad)[0])
    raise DataError(f"{what} is {array[row, column]} in channel {channels[column].name!r}, from row {row}. {remedy}")


def _table(value: object, what: str) -> FloatArray:
    array = numeric(value, what, DataError)
    if array.ndim != 2:
        raise DataError(f"{what} has shape {array.shape}: pass a 2-D array, rows of time by columns of channels.")
    return array


def _pair(given: object, name: str) -> tuple[FloatArray, FloatArray]:
    """y and u out of the forms that from_arrays takes."""
    if isinstance(given, Mapping):
        if "y" not in given or set(given) - {"y", "u"}:
            raise DataError(f"unit {name!r}: got the keys {sorted(given, key=str)}: give 'y' and perhaps 'u'.")
        given = given["y"], given.get("u")
    pair = given if isinstance(given, tuple) else (given, None)
    if len(pair) != 2:
        raise DataError(f"unit {name!r}: got a tuple of {len(pair)}: pass (y, u).")
    y = _table(pair[0], f"unit {name!r}: y")
    return y, np.empty((len(y), 0)) if pair[1] is None else _table(pair[1], f"unit {name!r}: u")


def _step(times: NDArray[Any]) -> float:
    """Of times that are evenly spaced."""
    steps = np.diff(times)
    mean = float(times[-1] - times[0]) / max(1, len(steps))
    if not (np.isfinite(mean) and mean > 0 and np.abs(steps - mean).max() <= 1e-6 * mean):
        raise DataError(
            "column 'time' is not evenly spaced and rising: read the frame with counterflow.read_logs, or leave the "
            "column out and pass dt="
        )
    return float(steps[0]) if abs(steps[0] - mean) <= 1e-12 * mean else mean


def _calendar(times: polars.Series) -> Calendar:
    """Of a column of dates, evenly spaced."""
    import polars

    zone = times.dtype.time_zone or ""  # type: ignore[attr-defined]
    if times.null_count():
        raise DataError("column 'time' is empty in some rows: fill it, or leave the column out and pass dt=.")
    plain = times.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else times
    nanoseconds = plain.cast(polars.Datetime("ns")).cast(polars.Int64).to_numpy()
    return Calendar(int(nanoseconds[0]), round(_step(nanoseconds)), "UTC" if zone.upper() == "ETC/UTC" else zone)
