"""Arguments of questions: what a user may write, checked by name and turned into arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError, UnknownNameError
from counterflow.plant.units import PublicUnit, Unit
from counterflow.protocol.questions import HELD, REACTING

ChangeLike = Sequence[float] | FloatArray | Mapping[str, float]
MOST_STEPS = 1_000_000


def check_count(question: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= MOST_STEPS:
        raise OptionError(f"{question}: {name} must be a whole number from 1 to {MOST_STEPS:,}, got {value!r}")


def check_level(question: str, level: object) -> None:
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level <= 0.999999:
        raise OptionError(f"{question}: level must lie between 0 and 1, got {level!r}")


def check_world(question: str, controllers: object) -> str:
    """How controllers are meant, as a message says it; "": as the server thinks best."""
    if controllers is None or controllers in (HELD, REACTING):
        return str(controllers or "")
    raise OptionError(
        f'{question}: controllers must be "held" (what controllers move stays as it is) or "reacting" (they answer, as '
        f"in the running plant), or None for what the data can support; got {controllers!r:.80}"
    )


def check_window(question: str, rows: int, start: object, stop: object) -> None:
    good = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in (start, stop))
    if not good or not 0 <= start < stop <= rows:  # type: ignore[operator]
        raise OptionError(
            f"{question}: start and stop must be rows with 0 <= start < stop <= {rows}, got {start!r} and {stop!r}"
        )


def unit_names(question: str, field: str, given: object) -> list[str]:
    """One unit's name, or several."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, (Sequence, Mapping)) or not all(isinstance(name, str) for name in given):
        raise OptionError(f"{question}: {field} must be a unit's name, or several, got {given!r:.80}")
    return list(given)


def channel_index(unit: Unit | PublicUnit, name: str, names: tuple[str, ...], kind: str) -> int:
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise UnknownNameError(f"unit {unit.name!r} has no {kind} {name!r:.100} that can be asked about here; {there}")
    return names.index(name)


def as_schedule(unit: PublicUnit, change: ChangeLike, horizon: int, duration: int | None) -> FloatArray:
    """A change as one row a step: numbers are held, series (horizon, U) are taken as they are."""
    if isinstance(change, Mapping) and not change:
        raise OptionError(
            f"effect: the change at unit {unit.name!r} is empty; its inputs are {', '.join(unit.input_names)}"
        )
    if isinstance(change, Mapping):
        columns = np.zeros((horizon, unit.n_inputs))
        for name, value in change.items():
            columns[:, channel_index(unit, name, unit.input_names, "input")] = numbers(unit, name, value, horizon)
        values = columns
    else:
        array = plain(unit, change)
        if array.shape not in ((unit.n_inputs,), (horizon, unit.n_inputs)):
            raise DataError(
                f"effect: change at unit {unit.name!r} needs {unit.n_inputs} numbers, one for each of "
                f"{', '.join(unit.input_names)}, or {horizon} rows of them; got shape {array.shape}"
            )
        values = np.tile(array, (horizon, 1)) if array.ndim == 1 else array.copy()
    if duration is not None:
        values[duration:] = 0.0
    return values


def plain(unit: PublicUnit, values: object) -> FloatArray:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"unit {unit.name!r}: inputs must be numbers, got {values!r:.80}") from None
    if not np.isfinite(array).all():
        raise DataError(f"unit {unit.name!r}: inputs must be finite, got {values!r:.80}")
    return array


def numbers(unit: PublicUnit, name: str, value: object, rows: int) -> FloatArray:
    array = plain(unit, value)
    if array.shape not in ((), (rows,)):
        raise DataError(f"unit {unit.name!r}, input {name!r}: give one number or {rows}, got shape {array.shape}")
    return np.broadcast_to(array, (rows,))


def replacements(unit: PublicUnit, given: object, rows: int) -> tuple[FloatArray, tuple[int, ...]]:
    """What replaces a unit's inputs (rows, U), and which channels it is for."""
    if isinstance(given, Mapping):
        out = np.zeros((rows, unit.n_inputs))
        channels = []
        for name, value in given.items():
            channels.append(channel_index(unit, name, unit.input_names, "input"))
            out[:, channels[-1]] = numbers(unit, name, value, rows)
        return out, tuple(channels)
    array = plain(unit, given)
    if array.shape != (rows, unit.n_inputs):
        raise DataError(f"unit {unit.name!r}: inputs of shape {(rows, unit.n_inputs)} are needed, got {array.shape}")
    return array.copy(), tuple(range(unit.n_inputs))


def refuse_beyond_limits(
    source: PublicUnit, values: FloatArray, absolute: bool, channels: tuple[int, ...] | None = None
) -> None:
    for k, channel in enumerate(source.inputs):
        if channel.limits is None or (channels is not None and k not in channels):
            continue
        low, high = channel.limits
        column = values[:, k]
        if absolute and (column.min() < low or column.max() > high):
            worst = column.min() if column.min() < low else column.max()
            raise OptionError(
                f"unit {source.name!r}, input {channel.name!r}: {worst:g} {channel.unit} is outside its limits "
                f"{low:g} to {high:g}"
            )
        if not absolute and np.abs(column).max() > high - low:
            raise OptionError(
                f"unit {source.name!r}, input {channel.name!r}: a change of {np.abs(column).max():g} {channel.unit} is "
                f"wider than its limits {low:g} to {high:g}"
            )
