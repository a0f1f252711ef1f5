"""The commands that ask: their options and their answers are made from the registry of questions.

``counterflow whatif FIT ...`` and so on ask a saved fit; ``counterflow federation ask FOLDER`` asks from a plant.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Option

from counterflow import wording
from counterflow.cli import inputs, output
from counterflow.cli.options import AnswerFormat, DrawnOut, FitDirectory, Folder, Force
from counterflow.cli.output import Format
from counterflow.errors import DataError, OptionError, StorageError, UnknownNameError
from counterflow.fits.fit import load
from counterflow.plant.calendar import as_datetime, as_duration, as_steps
from counterflow.plant.units import unknown_name
from counterflow.questions.answer import Answer
from counterflow.questions.asking import Questions
from counterflow.questions.question import Entry, Form, Inputs, Moves, Request, envelope
from counterflow.questions.registry import COMMANDS, QUESTIONS
from counterflow.questions.window import Window

_CAUSE = {"cause": (list[str], Option(help="Unit that would be run differently; may repeat."))}
_CHANGE = {"change": (list[str], Option(metavar="CHANNEL=NUMBER", help="Added to an input; may repeat."))}
_SET = {"set": (list[str], Option(metavar="CHANNEL=NUMBER", help="Past rows: an input's value instead."))}
_SCHEDULE = {
    "schedule": (Path, Option(metavar="FILE", help="CSV: a column for each changed input, a row for each step."))
}
_WINDOW = {"window": (str, Option(metavar="START..STOP", help="Also sum up these rows: 5..20, 2h..6h, or dates."))}
_METAVARS = {
    Form.PLAN: "UNIT.CHANNEL=NUMBER", Form.TARGET: "CHANNEL=NUMBER", Form.LEVERS: "UNIT[.CHANNEL]",
    Form.STEPS: "STEPS|TIME", Form.ROW: "ROW|DATE", Form.WORLD: "held|reacting", Form.LAWS: "UNIT.INPUT=LAW",
}  # fmt: skip
_TYPES = {
    Form.WORLD: str, Form.STEPS: str, Form.ROW: str, Form.LEVEL: float, Form.VECTOR: list[float]
}  # others: texts  # fmt: skip
_HORIZON = 50
KINDS = ("json", "csv", "parquet", "png")  # of files that an answer is written to


def __getattr__(name: str) -> Any:
    """The commands, by their names."""
    if name not in COMMANDS:
        raise AttributeError(name)
    return command(name)


# ---- options


def options_of(entry: Entry) -> dict[str, tuple[Any, Any]]:
    """{option: (type, typer's description)} of an entry of a form; every option may be left out."""
    if entry.form is Form.CHANGES:
        return _CAUSE | _CHANGE | _SCHEDULE
    if entry.form is Form.PAST:
        return _CAUSE | _CHANGE | _SET | _SCHEDULE
    default = f" ({entry.default})" if type(entry.default) in (int, float) else ""
    described = Option(metavar=_METAVARS.get(entry.form), help=f"{entry.help[:-1]}{default}.")
    return {entry.option or entry.name: (_TYPES.get(entry.form, list[str]), described)}


def _parameters(questions: Sequence[type[Request]], units: bool = True) -> list[inspect.Parameter]:
    known: dict[str, tuple[Any, Any]] = {}
    for asked in questions:
        for entry in asked.form:
            if units or entry.form not in (Form.UNIT, Form.UNITS):
                known = options_of(entry) | known
        if asked.windowed:
            known |= _WINDOW
        if asked.drawn == "channel":
            help = "Output to explain; may repeat (those that moved most)."
            known["channel"] = (list[str], Option(help=help))
    return [_parameter(name, Annotated[kind | None, described], None) for name, (kind, described) in known.items()]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _made(
    name: str, run: Callable[..., None], help: str, first: inspect.Parameter, options: Sequence[inspect.Parameter]
) -> Callable[..., None]:  # fmt: skip
    """A command: its options are those given, and how it answers."""
    answering = [_parameter("answer_format", AnswerFormat, Format.table), _parameter("out", DrawnOut, None)]
    whole = [first, *options, *answering, _parameter("force", Force, False)]

    def made(**given: Any) -> None:
        run(**given)

    made.__name__, made.__doc__ = name, help
    made.__signature__ = inspect.Signature(whole)  # type: ignore[attr-defined]
    made.__annotations__ = {parameter.name: parameter.annotation for parameter in whole}
    return made


def command(name: str) -> Callable[..., None]:
    """The command of that name, for all questions that it asks."""
    asked = [each for each in QUESTIONS.values() if each.command == name]
    options = _parameters(asked)
    if any(each.of_past or each.after_record for each in asked):
        if all(each.of_past or each.after_record for each in asked):
            described = Option(metavar="FILE", help="A recording, or a federation file with logs.")
            options.append(_parameter("recording", Annotated[Path, described]))
        else:
            described = Option(metavar="FILE", help="Ask what would have happened in these rows.")
            options.append(_parameter("recording", Annotated[Path | None, described], None))

    def run(directory: Path, recording: Path | None = None, **given: Any) -> None:
        past = [each for each in asked if (each.of_past or each.after_record) == (recording is not None)]
        chosen = past[0] if past else asked[0]
        past_remedy = "asks about the past: give --recording FILE, too"
        _refuse_foreign(chosen, given, _future_remedy(given) if chosen.of_past else past_remedy)
        output.check_kind(given["out"], KINDS, given["force"])
        Reader.check(chosen, given)
        fit = load(directory)
        rows = None if recording is None else inputs.load_recording(fit, recording)
        answer(chosen, fit, given, rows, f"counterflow check {directory}")

    examples = "\n\n".join(f"Example: {each.example}" for each in asked)
    more = "\n\nExit code 5: there is none within the limits, and the nearest is shown." if name == "restore" else ""
    help = f"{COMMANDS[name]}\n\n{examples}{more}"
    return _made(name, run, help, _parameter("directory", FitDirectory), options)


def _future_remedy(given: Mapping[str, Any]) -> str:
    """What to write instead of an option about the future."""
    length = given.get("horizon") or given.get("duration") or "2h"
    if str(length).strip().isdigit():
        return f"asks about the future: with --recording, give --start ROW and --stop, the row {length} rows later"
    return f"asks about the future: with --recording, write --stop {length}, which counts from --start on"


def _refuse_foreign(asked: type[Request], given: Mapping[str, Any], remedy: str) -> None:
    """Refuse an option that the question does not have."""
    known = {option.name for option in _parameters([asked])} | {"answer_format", "out", "force"}
    for option, value in given.items():
        if value not in (None, [], ()) and option not in known:
            raise OptionError(f"{_dashed(option)} {remedy}.")


def _dashed(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _federation_ask(folder: Path, question: str | None, fit: str | None, patience: float, **given: Any) -> None:
    from counterflow.federation.engine import engine
    from counterflow.federation.sites import party
    from counterflow.federation.sites.plant_folder import PlantFolder

    kind = question or ("counterfactual" if given["set"] else "effect")
    if kind not in QUESTIONS:
        raise unknown_name("question", kind, tuple(QUESTIONS))
    chosen = QUESTIONS[kind]
    _refuse_foreign(chosen, given, f"is no option of the question {kind!r}: leave it out")
    output.check_kind(given["out"], KINDS, given["force"])
    plant = PlantFolder.open(folder)
    view = plant.site.view(fit, patience)
    if party.supervisor(plant.folder) is None and (plant.kit is None or not engine().running(plant.kit)):
        raise StorageError(f"{plant.label} is not running, so it can ask nobody: counterflow federation start {folder}")
    own = {entry.option or entry.name: [plant.unit] for entry in chosen.form if entry.form in (Form.UNIT, Form.UNITS)}
    Reader.check(chosen, given | own)
    try:
        answer(chosen, view, given | own, None, "--format json tells them")
    except UnknownNameError as error:
        closed = f"Inputs that their owners have not opened to {plant.unit!r} ([ask] in their policies) are not known"
        raise UnknownNameError(f"{error} {closed} here.") from None


federation_ask = _made(
    "ask",
    _federation_ask,
    """Plant: what would my outputs do, or have done, if another unit were run differently?

    The coordinator computes what reaches this plant's states; its outputs are made of them here. The other units'
    policies say who may ask about which of their inputs.

    Example: counterflow federation ask turbine-site --cause boiler --change valve=+0.1 --duration 10

    The past: counterflow federation ask turbine-site --set boiler.valve=0.5 --start 900 --stop 950

    Another question: counterflow federation ask turbine-site --question paths --change boiler.valve=+0.1
    """,
    _parameter("folder", Folder),
    [
        _parameter("question", Annotated[str | None, Option(help=f"{', '.join(QUESTIONS)}.")], None),
        *_parameters(tuple(QUESTIONS.values()), units=False),
        _parameter("fit", Annotated[str | None, Option(metavar="ID", help="Of an earlier job (latest).")], None),
        _parameter("patience", Annotated[float, Option(min=1, help="Seconds to wait for the answer.")], default=60.0),
    ],
)


# ---- reading a form


class Reader:
    """Turns the options of a command into the entries of a question's form."""

    def __init__(self, view: Any, given: Mapping[str, Any]) -> None:
        self.plant, self.given = view.plant, dict(given)

    @staticmethod
    def check(asked: type[Request], given: Mapping[str, Any]) -> None:
        """Refuse what is missing or does not go together, before anything is loaded."""
        for entry in asked.form:
            option = entry.option or entry.name
            if entry.form is Form.CHANGES and bool(given["change"]) == (given["schedule"] is not None):
                raise OptionError("give either --change channel=number, once or more, or --schedule FILE.")
            changed = sum(bool(given[name]) for name in ("change", "set", "schedule")) if entry.form is Form.PAST else 1
            if changed > 1 or (not changed and not given["law"]):
                raise OptionError("give one of --set channel=number, --change channel=number, or --schedule FILE.")
            if entry.form is Form.UNIT and len(given[option] or ()) != 1:
                raise OptionError(f"{_dashed(option)} is missing, or given twice: name one unit. {entry.help}")
            missing = entry.default is ... and entry.form not in (Form.CHANGES, Form.PAST, Form.UNIT)
            if missing and not given[option]:
                raise OptionError(f"{_dashed(option)} is missing. {entry.help}")

    def read(self, entry: Entry) -> Any:
        """The value of one entry."""
        if entry.form in (Form.CHANGES, Form.PAST):
            return self._moves(entry.form is Form.PAST)
        option = entry.option or entry.name
        value = self.given[option]
        if entry.form is Form.PLAN:
            return inputs.inputs_given(self.plant, _dashed(option), value or ())
        if entry.form is Form.TARGET:
            return self._target(value)
        if entry.form is Form.LEVERS:
            return self._levers(value)
        if entry.form is Form.LAWS:
            return inputs.laws_given(self.plant, _dashed(option), value or ())
        if entry.form in (Form.STEPS, Form.ROW) and isinstance(value, str):
            return self._counted(entry, option, value)
        return entry.default if value is None or value == [] else value

    def _counted(self, entry: Entry, option: str, text: str) -> Any:
        """Rows and steps as numbers; dates and durations as they are, for whoever knows the rows."""
        if text.strip().lstrip("+-").isdigit():
            if entry.form is Form.STEPS and int(text) < 1:
                raise OptionError(f"{_dashed(option)} {text}: give at least 1.")
            return int(text)
        if entry.form is Form.STEPS:
            return as_steps(text, self.plant.dt, _dashed(option))
        if as_duration(text) is None:
            as_datetime(text, _dashed(option))
        return text

    def _moves(self, past: bool) -> Moves:
        """What is changed from now on, or in the past: held or added to."""
        causes, schedule, words = list(self.given["cause"] or ()), self.given["schedule"], ""
        for name in causes:
            self.plant.unit(name)
        held: Inputs = {}
        added: Inputs = {}
        if schedule is not None:
            held = inputs.schedule_given(self.plant, schedule, causes)
            words = f"{wording.listed(list(held))} inputs been as in {schedule.name}"
            if not past:
                held, words = self._padded(held, schedule.name)
        elif past and self.given["change"]:
            added = inputs.inputs_given(self.plant, "--change", self.given["change"], causes)
        elif not past or self.given["set"]:  # else only laws are others
            option = "set" if past else "change"
            held = inputs.inputs_given(self.plant, f"--{option}", self.given[option], causes)
        for name in causes:
            if name not in (held or added):
                remedy = f"give {name}.CHANNEL=number, or leave it out"
                raise OptionError(f"--cause {name}: nothing is changed there; {remedy}.")
        return Moves(held, words, added)

    def _padded(self, read: Inputs, name: str) -> tuple[Inputs, str]:
        """A schedule of the future, with nothing changed after its end."""
        if self.given.get("duration") is not None:
            raise OptionError("--duration goes with --change; a schedule says itself how long it lasts.")
        rows = max(len(column) for channels in read.values() for column in channels.values())
        entry = Entry("horizon", Form.STEPS, None)
        steps = self.read(entry) or max(_HORIZON, rows)
        self.given["horizon"] = str(steps)
        if rows > steps:
            raise DataError(f"the schedule has {rows} rows, more than --horizon {steps}: give a longer horizon.")
        held = {
            unit: {channel: np.concatenate([c, np.zeros(steps - rows)]) for channel, c in channels.items()}
            for unit, channels in read.items()
        }
        lasting = wording.span(rows, self.plant.dt)
        return held, f"{wording.listed(list(held))} inputs were changed as in {name} for {lasting}"

    def _target(self, texts: Sequence[str]) -> dict[str, float]:
        (unit,) = self.given["unit"]
        names = self.plant.unit(unit).output_names
        wanted: dict[str, float] = {}
        for text in texts:
            name, value = inputs.assignment("--target", text)
            if name not in names:
                name = name.removeprefix(f"{unit}.")
            if name not in names:
                raise unknown_name(f"output of unit {unit!r}", name, names)
            if name in wanted:
                raise OptionError(f"--target: {name} is given twice; give it once.")
            wanted[name] = value
        return wanted

    def _levers(self, using: Sequence[str]) -> dict[str, list[str]]:
        """``boiler`` stands for all its inputs, ``boiler.valve`` for one."""
        names = tuple(unit.name for unit in self.plant.units)
        out: dict[str, list[str]] = {}
        for text in using:
            if text in names:
                unit, channels = text, list(self.plant.unit(text).input_names)
                if not channels:
                    raise OptionError(f"--using {text}: this unit has no inputs.")
            else:
                if not any(text.startswith(f"{name}.") for name in names):
                    raise unknown_name("unit", text, names)
                unit, channel = inputs.input_of(self.plant, "--using", text, ())
                channels = [channel]
            known = out.setdefault(unit, [])
            known += [channel for channel in channels if channel not in known]
        return out


# ---- answering


def _windows(reply: Any, text: str | None) -> dict[str, Window]:
    """What ``--window START..STOP`` asks for, by unit; either end may be left out."""
    if text is None:
        return {}
    start, dots, stop = text.partition("..")
    if not dots:
        raise OptionError(f"--window {text!r:.60}: give START..STOP, such as 5..20, 2h..6h, or 2h.. for the rest.")
    found = reply.window(start.strip() or None, stop.strip() or None)
    return {reply.about.request.asker: found} if isinstance(found, Window) else found


def answer(asked: type[Request], view: Any, given: Mapping[str, Any], recording: Any, choices: str) -> None:
    """Ask, and say what comes back; exit code 5 if what is wanted cannot be reached.

    ``choices``: the command that tells how the fit was made.
    """
    assert isinstance(view, Questions)
    reader = Reader(view, given)
    form = {}
    units: list[str] = []
    for entry in asked.form:  # a schedule may lengthen the horizon: changes come first
        form[entry.name] = reader.read(entry)
        if entry.form in (Form.UNIT, Form.UNITS):
            units = [view.plant.unit(each).name for each in dict.fromkeys(form[entry.name])]
    requests = [asked.from_form(form, unit) for unit in units or view.parts]
    several = any(entry.form is Form.UNITS for entry in asked.form)
    reply: Answer = view.ask_all(requests, recording) if several else view.ask(requests[0], recording)
    channels = given.get("channel") or ()
    windows = _windows(reply, given.get("window"))
    sentence = reply.sentence(channels[0] if channels else None)
    told = {**envelope(asked.command, view, sentence, reply.caveats), "kind": reply.kind, **reply.to_json()}
    if windows:
        told["windows"] = {name: window.to_json() for name, window in windows.items()}

    def show() -> None:
        output.show_text(sentence)
        for window in windows.values():
            output.show_text(window.sentence())
            table = window.table(channels)
            output.show_table(table.title, table.columns, table.rows, table.left)
        for table in reply.tables(channels):
            output.show_table(table.title, table.columns, table.rows, table.left)
            if table.more:
                output.show_text(table.more)
        output.show_source(view.provenance)
        output.show_verdict(reply.caveats, choices)

    output.conclude(given["answer_format"], given["out"], given["force"], told, show, reply.to_frame, reply.plot)
    if not getattr(reply, "feasible", True):
        raise typer.Exit(output.INFEASIBLE)
