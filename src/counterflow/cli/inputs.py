"""What commands read besides plain options: recordings, and the entries of a question's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterflow import wording
from counterflow.control import Law, law_from_words
from counterflow.data import open_table
from counterflow.data.formats import is_table
from counterflow.errors import DataError, ModelError, OptionError, StorageError
from counterflow.fits.fit import Fit
from counterflow.plant import Recording
from counterflow.plant.calendar import as_steps
from counterflow.plant.units import unknown_name
from counterflow.questions.answer import Described
from counterflow.questions.question import Entry, Form, Inputs, Moves, Request

_HORIZON = 50  # of a schedule that is shorter


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


def dashed(option: str) -> str:
    """An option as people write it."""
    return f"--{option.replace('_', '-')}"


def assignment(option: str, text: str) -> tuple[str, float]:
    """``name=number``."""
    name, _, value = text.rpartition("=")
    try:
        number = float(value)
    except ValueError:
        number = np.nan
    if not name.strip() or not np.isfinite(number):
        raise OptionError(f"{option} {text!r}: give channel=number, such as valve=+0.1 or boiler.valve=+0.1.")
    return name.strip(), number


def _put(into: MutableMapping[str, Any], name: str, value: Any, option: str, shown: str) -> None:
    if name in into:
        raise OptionError(f"{option}: {shown} is given twice; give it once.")
    into[name] = value


def input_of(plant: Described, option: str, name: str, causes: Sequence[str] = ()) -> tuple[str, str]:
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
    raise unknown_name("input", name, [f"{unit.name}.{each}" for unit in plant.units for each in unit.input_names])


def inputs_given(
    plant: Described, option: str, texts: Sequence[str], causes: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """{unit: {input channel: number}} of repeated ``--option unit.channel=number``."""
    found: dict[str, dict[str, float]] = {}
    for text in texts:
        name, number = assignment(option, text)
        unit, channel = input_of(plant, option, name, causes)
        _put(found.setdefault(unit, {}), channel, number, option, f"{unit}.{channel}")
    return found


def _schedule(plant: Described, path: Path, causes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{unit: {input channel: series}} of a table with columns ``channel`` or ``unit.channel``."""
    if not path.is_file():
        raise StorageError(f"there is no file {str(path)!r}: check the path.")
    table = open_table(path)
    if not table.rows:
        raise DataError(f"{str(path)!r} has no rows: give one row a step.")
    found: dict[str, dict[str, Any]] = {}
    for name, numbers in table.batches(table.names):
        table.refuse_text(name, numbers)
        for row in np.flatnonzero(np.isnan(numbers.values))[:1]:
            raise DataError(f"{path.name}: {name!r} is empty in row {row}{table.place(int(row))}")
        unit, channel = input_of(plant, "--schedule: column", name, causes)
        found.setdefault(unit, {})[channel] = numbers.values
    return found


class FormReader:
    """Turns the options of a command into the entries of a question's form."""

    def __init__(self, plant: Described, given: Mapping[str, Any]) -> None:
        self.plant, self.given = plant, dict(given)

    @staticmethod
    def check(asked: type[Request], given: Mapping[str, Any]) -> None:
        """Refuse what is missing or does not go together, before anything is loaded."""
        for entry in asked.form:
            option = entry.option or entry.name
            if entry.form is Form.CHANGES:
                if bool(given["change"]) == (given["schedule"] is not None):
                    raise OptionError("give either --change channel=number, once or more, or --schedule FILE.")
            elif entry.form is Form.PAST:
                changed = sum(bool(given[name]) for name in ("change", "set", "schedule"))
                if changed > 1 or (not changed and not given["law"]):
                    raise OptionError("give one of --set channel=number, --change channel=number, or --schedule FILE.")
            elif entry.form is Form.UNIT and len(given[option] or ()) != 1:
                raise OptionError(f"{dashed(option)} is missing, or given twice: name one unit. {entry.help}")
            elif entry.default is ... and not given[option]:
                raise OptionError(f"{dashed(option)} is missing. {entry.help}")

    def read(self, entry: Entry) -> Any:
        """The value of one entry."""
        if entry.form in (Form.CHANGES, Form.PAST):
            return self._moves(entry.form is Form.PAST)
        name = entry.option or entry.name
        value, read = self.given[name], _READERS.get(entry.form)
        if value is None or value == []:
            return entry.default
        return value if read is None else read(self, dashed(name), value)

    def _plan(self, option: str, texts: Sequence[str]) -> dict[str, dict[str, float]]:
        return inputs_given(self.plant, option, texts)

    def _laws(self, option: str, texts: Sequence[str]) -> dict[str, dict[str, Law]]:
        """{unit: {input: law}} of ``boiler.valve=manual``, ``boiler.valve=pid gain=2 integral_time=10`` and so on."""
        found: dict[str, dict[str, Law]] = {}
        for text in texts:
            place, equals, words = text.partition("=")
            if not equals:
                raise OptionError(f"{option} {text!r}: give UNIT.INPUT=LAW, such as boiler.valve=manual.")
            unit, name = input_of(self.plant, option, place.strip())
            try:
                law = law_from_words(words)
            except ModelError as error:
                raise OptionError(f"{option} {text!r}: {error}") from None
            _put(found.setdefault(unit, {}), name, law, option, f"{unit}.{name}")
        return found

    def _moment(self, option: str, value: str | int) -> str | int:
        """A number; dates and durations as they are, for whoever knows the rows."""
        return int(value) if isinstance(value, int) or value.strip().lstrip("+-").isdigit() else value

    def _moves(self, past: bool) -> Moves:
        """What is changed from now on, or in the past: held or added to."""
        causes, schedule = list(self.given["cause"] or ()), self.given["schedule"]
        for name in causes:
            self.plant.unit(name)
        option = "set" if past and not self.given["change"] else "change"
        words, moved = "", {}
        if schedule is not None:
            moved = _schedule(self.plant, schedule, causes)
            words = f"{wording.listed(list(moved))} inputs been as in {schedule.name}"
            if not past:
                moved, words = self._padded(moved, schedule.name)
        elif self.given[option]:  # else only laws are others
            moved = inputs_given(self.plant, f"--{option}", self.given[option], causes)
        for name in causes:
            if name not in moved:
                remedy = f"give {name}.CHANNEL=number, or leave it out"
                raise OptionError(f"--cause {name}: nothing is changed there; {remedy}.")
        added = past and schedule is None and option == "change"
        return Moves({}, words, moved) if added else Moves(moved, words)

    def _padded(self, read: Inputs, name: str) -> tuple[Any, str]:
        """A schedule of the future, with nothing changed after its end."""
        if self.given.get("duration") is not None:
            raise OptionError("--duration goes with --change; a schedule says itself how long it lasts.")
        rows = max(len(column) for channels in read.values() for column in channels.values())
        asked = self.given.get("horizon")
        steps = max(_HORIZON, rows) if asked is None else as_steps(self._moment("", asked), self.plant.dt, "--horizon")
        self.given["horizon"] = str(steps)
        if rows > steps:
            raise DataError(f"the schedule has {rows} rows, more than --horizon {steps}: give a longer horizon.")
        held = {
            unit: {channel: np.pad(column, (0, steps - rows)) for channel, column in channels.items()}
            for unit, channels in read.items()
        }
        lasting = wording.span(rows, self.plant.dt)
        return held, f"{wording.listed(list(held))} inputs were changed as in {name} for {lasting}"

    def _target(self, option: str, texts: Sequence[str]) -> dict[str, float]:
        (unit,) = self.given["unit"]
        names = self.plant.unit(unit).output_names  # type: ignore[union-attr]
        wanted: dict[str, float] = {}
        for text in texts:
            name, value = assignment(option, text)
            if name not in names:
                name = name.removeprefix(f"{unit}.")
            if name not in names:
                raise unknown_name(f"output of unit {unit!r}", name, names)
            _put(wanted, name, value, option, name)
        return wanted

    def _levers(self, option: str, texts: Sequence[str]) -> dict[str, list[str]]:
        """``boiler`` stands for all its inputs, ``boiler.valve`` for one."""
        names = tuple(unit.name for unit in self.plant.units)
        found: dict[str, list[str]] = {}
        for text in texts:
            if text in names:
                unit, channels = text, list(self.plant.unit(text).input_names)
                if not channels:
                    raise OptionError(f"{option} {text}: this unit has no inputs.")
            elif any(text.startswith(f"{name}.") for name in names):
                unit, channel = input_of(self.plant, option, text)
                channels = [channel]
            else:
                raise unknown_name("unit", text, names)
            found[unit] = list(dict.fromkeys([*found.get(unit, []), *channels]))
        return found


_READERS: Mapping[Form, Callable[[FormReader, str, Any], Any]] = {  # all others are taken as they are
    Form.PLAN: FormReader._plan, Form.LAWS: FormReader._laws, Form.TARGET: FormReader._target,
    Form.LEVERS: FormReader._levers, Form.STEPS: FormReader._moment, Form.ROW: FormReader._moment,
}  # fmt: skip
