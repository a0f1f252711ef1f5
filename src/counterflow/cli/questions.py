"""The commands that ask: their options and their answers are made from the registry of questions.

``counterflow whatif FIT ...`` and so on ask a saved fit; ``counterflow federation ask FOLDER`` asks from a plant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from counterflow.cli.inputs import FormReader, dashed, load_recording
from counterflow.cli.options import FitDirectory, Folder
from counterflow.cli.output import INFEASIBLE, OK, Part, Told, answering, judged, sourced
from counterflow.errors import OptionError, StorageError, UnknownNameError
from counterflow.fits.fit import load
from counterflow.plant.units import unknown_name
from counterflow.questions.answer import Answer
from counterflow.questions.asking import Questions
from counterflow.questions.question import Entry, Form, Request, envelope
from counterflow.questions.registry import COMMANDS, QUESTIONS
from counterflow.questions.window import Window

_CHANGES = {
    "cause": (list[str], Option(help="Unit that would be run differently; may repeat.")),
    "change": (list[str], Option(metavar="CHANNEL=NUMBER", help="Added to an input; may repeat.")),
}
_SET = {"set": (list[str], Option(metavar="CHANNEL=NUMBER", help="Past rows: an input's value instead."))}
_SCHEDULE = {
    "schedule": (Path, Option(metavar="FILE", help="CSV: a column for each changed input, a row for each step."))
}
_WINDOW = {"window": (str, Option(metavar="START..STOP", help="Also sum up these rows: 5..20, 2h..6h, or dates."))}
_CHANNEL = {"channel": (list[str], Option(help="Output to explain; may repeat (those that moved most)."))}
KINDS = ("json", "csv", "parquet", "png")  # of files that an answer is written to
_RECORDING = "A recording, or a federation file with logs."
_ENTRIES: Mapping[Form, tuple[Any, str | None]] = {  # type of an option, and how its value is called
    Form.UNIT: (list[str], None), Form.UNITS: (list[str], None), Form.PLAN: (list[str], "UNIT.CHANNEL=NUMBER"),
    Form.TARGET: (list[str], "CHANNEL=NUMBER"), Form.LEVERS: (list[str], "UNIT[.CHANNEL]"),
    Form.LAWS: (list[str], "UNIT.INPUT=LAW"), Form.STEPS: (str, "STEPS|TIME"), Form.ROW: (str, "ROW|DATE"),
    Form.LEVEL: (float, None), Form.VECTOR: (list[float], None), Form.WORLD: (str, "held|reacting"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """The commands, by their names."""
    if name not in COMMANDS:
        raise AttributeError(name)
    return command(name)


# ---- options


def options_of(entry: Entry) -> dict[str, tuple[Any, Any]]:
    """{option: (type, typer's description)} of an entry of a form; every option may be left out."""
    if entry.form in (Form.CHANGES, Form.PAST):
        return _CHANGES | (_SET if entry.form is Form.PAST else {}) | _SCHEDULE
    kind, metavar = _ENTRIES[entry.form]
    default = f" ({entry.default})" if type(entry.default) in (int, float) else ""
    return {entry.option or entry.name: (kind, Option(metavar=metavar, help=f"{entry.help[:-1]}{default}."))}


def _options(questions: Sequence[type[Request]], units: bool = True) -> dict[str, tuple[Any, Any]]:
    """All options of some questions, as ``answering`` takes them; none of them must be given."""
    known: dict[str, tuple[Any, Any]] = {}
    for asked in questions:
        for entry in asked.form:
            if units or entry.form not in (Form.UNIT, Form.UNITS):
                known = options_of(entry) | known
        known |= (_WINDOW if asked.windowed else {}) | (_CHANNEL if asked.drawn == "channel" else {})
    return {name: (Annotated[kind | None, described], None) for name, (kind, described) in known.items()}


def command(name: str) -> Callable[..., None]:
    """The command of that name, for all questions that it asks."""
    asked = [each for each in QUESTIONS.values() if each.command == name]
    options = _options(asked)
    of_rows = [each.of_past or each.after_record for each in asked]
    if all(of_rows):
        options["recording"] = (Annotated[Path, Option(metavar="FILE", help=_RECORDING)], ...)
    elif any(of_rows):
        described = Option(metavar="FILE", help="Ask what would have happened in these rows.")
        options["recording"] = (Annotated[Path | None, described], None)

    def run(directory: FitDirectory, **given: Any) -> Told:
        recording = given.pop("recording", None)
        fitting = [each for each, rows in zip(asked, of_rows, strict=True) if rows == (recording is not None)]
        chosen = fitting[0] if fitting else asked[0]
        past_remedy = "asks about the past: give --recording FILE, too"
        _refuse_foreign(chosen, given, _future_remedy(given) if chosen.of_past else past_remedy)
        FormReader.check(chosen, given)
        fit = load(directory)
        rows = None if recording is None else load_recording(fit, recording)
        return _ask(chosen, fit, given, rows, f"counterflow check {directory}")

    examples = "\n\n".join(f"Example: {each.example}" for each in asked)
    more = "\n\nExit code 5: there is none within the limits, and the nearest is shown." if name == "restore" else ""
    run.__name__, run.__doc__ = name, f"{COMMANDS[name]}\n\n{examples}{more}"
    return answering(*KINDS, options=options)(run)


def _future_remedy(given: Mapping[str, Any]) -> str:
    """What to write instead of an option about the future."""
    length = given.get("horizon") or given.get("duration") or "2h"
    if str(length).strip().isdigit():
        return f"asks about the future: with --recording, give --start ROW and --stop, the row {length} rows later"
    return f"asks about the future: with --recording, write --stop {length}, which counts from --start on"


def _refuse_foreign(asked: type[Request], given: Mapping[str, Any], remedy: str) -> None:
    """Refuse an option that the question does not have."""
    known = _options([asked])
    for option, value in given.items():
        if value not in (None, [], ()) and option not in known:
            raise OptionError(f"{dashed(option)} {remedy}.")


@answering(*KINDS, options=_options(tuple(QUESTIONS.values()), units=False))
def federation_ask(
    folder: Folder,
    question: Annotated[str | None, Option(help=f"{', '.join(QUESTIONS)}.")] = None,
    fit: Annotated[str | None, Option(metavar="ID", help="Of an earlier job (latest).")] = None,
    patience: Annotated[float, Option(min=1, help="Seconds to wait for the answer.")] = 60.0,
    **given: Any,
) -> Told:
    """Plant: what would my outputs do, or have done, if another unit were run differently?

    The coordinator computes what reaches this plant's states; its outputs are made of them here. The other units'
    policies say who may ask about which of their inputs.

    Example: counterflow federation ask turbine-site --cause boiler --change valve=+0.1 --duration 10

    The past: counterflow federation ask turbine-site --set boiler.valve=0.5 --start 900 --stop 950

    Another question: counterflow federation ask turbine-site --question paths --change boiler.valve=+0.1
    """
    from counterflow.federation.engine import engine
    from counterflow.federation.sites import party
    from counterflow.federation.sites.plant_folder import PlantFolder

    kind = question or ("counterfactual" if given["set"] else "effect")
    if kind not in QUESTIONS:
        raise unknown_name("question", kind, tuple(QUESTIONS))
    chosen = QUESTIONS[kind]
    _refuse_foreign(chosen, given, f"is no option of the question {kind!r}: leave it out")
    plant = PlantFolder.open(folder)
    view = plant.view(fit, patience)
    if party.supervisor(plant.folder) is None and not engine().running(plant.kit.folder):
        raise StorageError(f"{plant.label} is not running, so it can ask nobody: counterflow federation start {folder}")
    own = [entry for entry in chosen.form if entry.form in (Form.UNIT, Form.UNITS)]
    given |= {entry.option or entry.name: [plant.unit] for entry in own}
    FormReader.check(chosen, given)
    try:
        return _ask(chosen, view, given, None, "--format json tells them")
    except UnknownNameError as error:
        closed = f"Inputs that their owners have not opened to {plant.unit!r} ([ask] in their policies) are not known"
        raise UnknownNameError(f"{error} {closed} here.") from None


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


def _ask(asked: type[Request], view: Any, given: Mapping[str, Any], recording: Any, choices: str) -> Told:
    """Ask; exit code 5 if what is wanted cannot be reached.

    ``choices``: the command that tells how the fit was made.
    """
    assert isinstance(view, Questions)
    reader = FormReader(view.plant, given)
    form = {entry.name: reader.read(entry) for entry in asked.form}  # a schedule, read first, may lengthen the horizon
    chosen = [unit for entry in asked.form if entry.form in (Form.UNIT, Form.UNITS) for unit in form[entry.name]]
    units = [view.plant.unit(each).name for each in dict.fromkeys(chosen)]
    requests = [asked.from_form(form, unit) for unit in units or view.parts]
    several = any(entry.form is Form.UNITS for entry in asked.form)
    reply: Answer = view.ask_all(requests, recording) if several else view.ask(requests[0], recording)
    channels = given.get("channel") or ()
    windows = _windows(reply, given.get("window"))
    sentence = reply.sentence(channels[0] if channels else None)
    content = {**envelope(asked.command, view, sentence, reply.caveats), "kind": reply.kind, **reply.to_json()}
    if windows:
        content["windows"] = {name: window.to_json() for name, window in windows.items()}

    def parts() -> Iterator[Part]:
        yield sentence
        for window in windows.values():
            yield from (window.sentence(), window.table(channels))
        yield from reply.tables(channels)
        yield from sourced(view.provenance)
        yield from judged(reply.caveats, choices)

    code = OK if getattr(reply, "feasible", True) else INFEASIBLE
    return Told(content, parts(), code, reply.to_frame, reply.plot)
