"""What every question shares: the fit, the recording, names of channels on the command line, the largest effects."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from counterflow import runtime
from counterflow._version import __version__
from counterflow.cli import wording
from counterflow.cli.unit_logs import read_columns
from counterflow.counterfactual import Effect
from counterflow.errors import DataError, OptionError, StorageError
from counterflow.plant import Channel, Recording, Unit
from counterflow.plant.units import unknown_name
from counterflow.runtime.outcome import Status
from counterflow.runtime.storage import load
from counterflow.runtime.unit_part import UnitPart

FloatArray = NDArray[np.float64]
MOST_ROWS = 8  # of a table


class Described(Protocol):
    """Units with names and channels: a plant, or what is known of one."""

    @property
    def units(self) -> tuple[Unit, ...]: ...

    @property
    def dt(self) -> float: ...

    def unit(self, name: str) -> Unit: ...


class Asked(Protocol):
    """Who is asked: a fit, or one plant's view of a fit on another machine. ``status`` None: its caveats say it."""

    @property
    def method(self) -> str: ...

    @property
    def plant(self) -> Described: ...

    @property
    def parts(self) -> Mapping[str, UnitPart]: ...

    @property
    def status(self) -> Status | None: ...

    def effect(
        self, cause: Sequence[str], effect: str, change: Any, horizon: int, duration: int | None, level: float
    ) -> Effect: ...


def load_fit(directory: Path) -> runtime.Fit:
    return load(directory)


def load_recording(fit: runtime.Fit, path: Path) -> Recording:
    """A recording, or the data of a federation file, that goes with the fit."""
    if path.suffix.lower() == ".toml":
        from counterflow.cli.federation_file import read_federation

        recording = read_federation(path).recording
    else:
        recording = Recording.load(path)
    if set(recording.names) != set(fit.names):
        raise DataError(f"{str(path)!r} has units {', '.join(recording.names)}; the fit has {', '.join(fit.names)}.")
    for unit in fit.plant.units:
        other = recording[unit.name].unit
        for side, has, wants in (
            ("inputs", other.input_names, unit.input_names),
            ("outputs", other.output_names, unit.output_names),
        ):
            if has != wants:
                raise DataError(
                    f"{str(path)!r}: the {side} of unit {unit.name!r} are {', '.join(has) or 'none'}; "
                    f"in the fit {', '.join(wants) or 'none'}."
                )
    return recording


def assignment(option: str, text: str) -> tuple[str, float]:
    """``name=number``."""
    name, equals, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        equals = ""
        number = 0.0
    if not equals or not name.strip() or not np.isfinite(number):
        raise OptionError(f"{option} {text!r}: give channel=number, such as valve=+0.1 or boiler.valve=+0.1.")
    return name.strip(), number


def input_of(fit: Asked, option: str, name: str, causes: Sequence[str]) -> tuple[str, str]:
    """The unit and the input channel that ``boiler.valve`` names, or ``valve`` if there is one unit to change."""
    if len(causes) == 1 and name in fit.plant.unit(causes[0]).input_names:
        return causes[0], name
    for unit in sorted(fit.plant.units, key=lambda unit: -len(unit.name)):
        if name.startswith(f"{unit.name}."):
            channel = name[len(unit.name) + 1 :]
            if channel not in unit.input_names:
                raise unknown_name(f"input of unit {unit.name!r}", channel, unit.input_names)
            if causes and unit.name not in causes:
                raise OptionError(f"{option} {name!r} is of unit {unit.name!r}: give --cause {unit.name}, too.")
            return unit.name, channel
    if len(causes) == 1:
        raise unknown_name(f"input of unit {causes[0]!r}", name, fit.plant.unit(causes[0]).input_names)
    known = [f"{unit.name}.{channel}" for unit in fit.plant.units for channel in unit.input_names]
    raise unknown_name("input", name, known)


def inputs_given(fit: Asked, option: str, texts: Sequence[str], causes: Sequence[str]) -> dict[str, dict[str, float]]:
    """{unit: {input channel: number}} of repeated ``--option unit.channel=number``."""
    out: dict[str, dict[str, float]] = {}
    for text in texts:
        name, number = assignment(option, text)
        unit, channel = input_of(fit, option, name, causes)
        if channel in out.setdefault(unit, {}):
            raise OptionError(f"{option}: {unit}.{channel} is given twice; give it once.")
        out[unit][channel] = number
    return out


def schedule_given(fit: Asked, path: Path, causes: Sequence[str]) -> dict[str, dict[str, FloatArray]]:
    """{unit: {input channel: series}} of a table with columns ``channel`` or ``unit.channel``."""
    if not path.is_file():
        raise StorageError(f"there is no file {str(path)!r}: check the path.")
    out: dict[str, dict[str, FloatArray]] = {}
    for name, series in read_columns(path).items():
        unit, channel = input_of(fit, "--schedule: column", name, causes)
        out.setdefault(unit, {})[channel] = series
    if not out or not len(next(iter(next(iter(out.values())).values()))):
        raise DataError(f"{str(path)!r} has no rows: give one row a step.")
    return out


def scale_of(fit: Asked, unit: str) -> FloatArray:
    """The noise (D_m,) of each output of a unit: what makes changes of unlike channels comparable."""
    return np.asarray(np.sqrt(np.diag(fit.parts[unit].model.R)))


@dataclass(frozen=True)
class Peak:
    """The largest change of one channel: when, how much, between what."""

    unit: str
    channel: Channel
    row: int
    value: float
    lower: float | None
    upper: float | None
    size: float  # in standard deviations of the channel's noise
    last: float

    @property
    def clear(self) -> bool | None:
        """Whether its sign is known."""
        return None if self.lower is None or self.upper is None else self.lower > 0 or self.upper < 0

    def sentence(self, level: float | None) -> tuple[float, str]:
        """The change's direction, and "by 3.2 rpm (95 %: 2.8 to 3.6)" with the interval in that direction."""
        sign = -1.0 if self.value < 0 else 1.0
        lower = upper = None
        if self.lower is not None and self.upper is not None:
            lower, upper = sorted((sign * self.lower, sign * self.upper))
        text, interval = wording.measured(abs(self.value), lower, upper, self.channel.unit)
        if not interval or level is None:
            return sign, text
        unsure = "" if self.clear else "; its sign is not sure"
        return sign, f"{text} ({wording.percent(level)}: {interval}{unsure})"

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "channel": self.channel.name,
            "measured_in": self.channel.unit,
            "row": self.row,
            "mean": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "size": self.size,
        }


def peaks(fit: Asked, unit: str, mean: FloatArray, lower: FloatArray | None, upper: FloatArray | None) -> list[Peak]:
    """The largest change of every channel of a unit, largest (against its noise) first; NaN counts as no change."""
    out = []
    scale = scale_of(fit, unit)
    for k, channel in enumerate(fit.plant.unit(unit).outputs):
        column = np.abs(np.nan_to_num(mean[:, k]))
        row = int(column.argmax())
        low, high = (None if end is None else float(end[row, k]) for end in (lower, upper))
        size = float(column[row] / scale[k])
        out.append(Peak(unit, channel, row, float(mean[row, k]), low, high, size, float(mean[-1, k])))
    return sorted(out, key=lambda peak: -peak.size)


def mean_over_rows(values: FloatArray) -> FloatArray:
    """Mean of each column over the rows that are there; NaN where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))


def caveats(fit: Asked, own: Sequence[str]) -> list[str]:
    """What speaks against an answer: its own caveats, and a fit that has not arrived."""
    out = list(dict.fromkeys(own))
    if fit.status is not None and not fit.status.converged and not any("not converged" in text for text in out):
        out.append(f"the fit is {fit.status.message}")
    return out


def envelope(command: str, fit: Asked, sentence: str, notes: Sequence[str]) -> dict[str, Any]:
    """What every answer in JSON begins with."""
    return {
        "version": __version__,
        "command": command,
        "method": fit.method,
        "dt": fit.plant.dt,
        "sentence": sentence,
        "caveats": list(notes),
    }


def channels_json(channels: Sequence[Channel]) -> list[dict[str, str]]:
    return [{"name": channel.name, "measured_in": channel.unit} for channel in channels]
