"""What commands read from the command line besides plain options: recordings, channels with numbers, schedules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.cli.unit_logs import read_columns
from counterflow.control import Law, law_of_words
from counterflow.data.archives import is_table
from counterflow.errors import DataError, ModelError, OptionError, StorageError
from counterflow.fits.fit import Fit
from counterflow.plant import Recording
from counterflow.plant.units import unknown_name
from counterflow.questions.answer import Described


def load_recording(fit: Fit, path: Path) -> Recording:
    """A recording, or the data of a federation file, that goes with the fit."""
    if path.suffix.lower() == ".toml":
        from counterflow.cli.federation_file import read_federation

        recording = read_federation(path).recording
    elif is_table(path.name):
        raise OptionError(f"{str(path)!r} is a log: give the federation file that describes it, or a recording.")
    else:
        recording = Recording.load(path)
    try:
        fit.check_recording(recording)
    except DataError as error:
        raise DataError(f"{str(path)!r}: {error}") from error
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


def laws_given(plant: Described, option: str, texts: Sequence[str]) -> dict[str, dict[str, Law]]:
    """{unit: {input: law}} of ``boiler.valve=manual``, ``boiler.valve=pid gain=2 integral_time=10`` and so on."""
    found: dict[str, dict[str, Law]] = {}
    for text in texts:
        place, equals, words = text.partition("=")
        if not equals:
            raise OptionError(f"{option} {text!r}: give UNIT.INPUT=LAW, such as boiler.valve=manual.")
        owner, slash, channel = place.strip().partition("/")
        named = f"{owner}.{channel}" if slash and owner in [each.name for each in plant.units] else place.strip()
        unit, name = input_of(plant, option, named, ())
        if name in found.get(unit, {}):
            raise OptionError(f"{option}: {unit}.{name} is given twice; give it once.")
        try:
            found.setdefault(unit, {})[name] = law_of_words(words)
        except ModelError as error:
            raise OptionError(f"{option} {text!r}: {error}") from None
    return found


def input_of(plant: Described, option: str, name: str, causes: Sequence[str]) -> tuple[str, str]:
    """The unit and the input channel that ``boiler.valve`` names, or ``valve`` if there is one unit to change."""
    if len(causes) == 1 and name in plant.unit(causes[0]).input_names:
        return causes[0], name
    for unit in sorted(plant.units, key=lambda unit: -len(unit.name)):
        if name.startswith(f"{unit.name}."):
            channel = name[len(unit.name) + 1 :]
            if channel not in unit.input_names:
                raise unknown_name(f"input of unit {unit.name!r}", channel, unit.input_names)
            if causes and unit.name not in causes:
                raise OptionError(f"{option} {name!r} is of unit {unit.name!r}: give --cause {unit.name}, too.")
            return unit.name, channel
    if len(causes) == 1:
        raise unknown_name(f"input of unit {causes[0]!r}", name, plant.unit(causes[0]).input_names)
    known = [f"{unit.name}.{channel}" for unit in plant.units for channel in unit.input_names]
    raise unknown_name("input", name, known)


def inputs_given(
    plant: Described, option: str, texts: Sequence[str], causes: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """{unit: {input channel: number}} of repeated ``--option unit.channel=number``."""
    out: dict[str, dict[str, float]] = {}
    for text in texts:
        name, number = assignment(option, text)
        unit, channel = input_of(plant, option, name, causes)
        if channel in out.setdefault(unit, {}):
            raise OptionError(f"{option}: {unit}.{channel} is given twice; give it once.")
        out[unit][channel] = number
    return out


def schedule_given(plant: Described, path: Path, causes: Sequence[str]) -> dict[str, dict[str, FloatArray]]:
    """{unit: {input channel: series}} of a table with columns ``channel`` or ``unit.channel``."""
    if not path.is_file():
        raise StorageError(f"there is no file {str(path)!r}: check the path.")
    out: dict[str, dict[str, FloatArray]] = {}
    for name, series in read_columns(path).items():
        unit, channel = input_of(plant, "--schedule: column", name, causes)
        out.setdefault(unit, {})[channel] = series
    if not out or not len(next(iter(next(iter(out.values())).values()))):
        raise DataError(f"{str(path)!r} has no rows: give one row a step.")
    return out
