"""Questions as a page asks them: how each kind of entry of a form is written in JSON, and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.console.seats import Seat
from counterflow.control import Law, law_from_words
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.plant.calendar import as_rows, as_steps
from counterflow.questions.counterfactual import past_words
from counterflow.questions.phrases import signed, with_verb
from counterflow.questions.question import Form, Moves, Request, channel_index
from counterflow.questions.registry import QUESTIONS

MOST_STEPS = 20_000  # of one question: whoever asks must not keep the others waiting
MOST_ROWS = 10_000_000
MOST_CHANGES = 100
Name = Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Row = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Time = Annotated[str, Field(min_length=1, max_length=40)]  # a date, or a duration such as "2h"
Drawn = Annotated[list[Name] | None, Field(max_length=50)]
Series = Annotated[list[Number], Field(min_length=1, max_length=MOST_STEPS)]


class Question(BaseModel):
    """Strict: a field that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid")


class OfInput(Question):
    """Something about one input."""

    unit: Name
    input: Name

    def measured_in(self, seat: Seat) -> str:
        """The input's unit of measure; UnknownNameError if there is no such input."""
        unit = seat.plant.unit(self.unit)
        return unit.inputs[channel_index(unit, self.input, unit.input_names, "input")].unit


class InputChange(OfInput):
    """How one input is moved from now on. ``length``: rows of a pulse, or over which a ramp rises; ``values``: of a
    series, one a step."""

    shape: Literal["step", "pulse", "ramp", "series"] = "step"
    size: Number = 0.0
    start: Annotated[int, Field(ge=0, lt=MOST_STEPS)] = 0
    length: Steps | None = None
    values: Series | None = None

    def schedule(self, horizon: int) -> FloatArray:
        """One number a step."""
        where, values, length = f"unit {self.unit!r}, input {self.input!r}", self.values, self.length
        if (values is None) == (self.shape == "series"):
            raise DataError(
                f"{where}: shape 'series' needs values, one a step" if values is None
                else f"{where}: values go with shape 'series', not with {self.shape!r}"
            )  # fmt: skip
        rows = np.arange(horizon) - self.start
        if values is not None:
            if len(values) > horizon:
                raise DataError(
                    f"{where}: {len(values)} values are more than the {horizon} steps of the horizon: ask for more "
                    "steps, or give fewer values"
                )
            return np.pad(np.asarray(values, np.float64), (0, horizon - len(values)))
        if self.shape == "step":
            return np.where(rows >= 0, self.size, 0.0)
        if length is None:
            raise DataError(f"{where}: shape {self.shape!r} needs a length")
        if self.shape == "pulse":
            return np.where((rows >= 0) & (rows < length), self.size, 0.0)
        return self.size * np.clip((rows + 1) / length, 0.0, 1.0)

    def words(self, seat: Seat) -> tuple[str, str]:
        """The input, and what becomes of it: "boiler fuel" and "+5 % for 10 steps"."""
        dt, size = seat.plant.dt, signed(self.size, self.measured_in(seat))
        lasting = wording.span(len(self.values or ()) or self.length or 1, dt)
        after = f" after {wording.span(self.start, dt)}" if self.start else ""
        return f"{self.unit} {self.input}", {
            "series": f"changed as given for {lasting}",
            "pulse": f"{size} for {lasting}{after}",
            "ramp": f"{'raised' if self.size >= 0 else 'lowered'} to {size} over {lasting}{after}",
            "step": f"{size}{after or ' from now on'}",
        }[self.shape]


class PastChange(OfInput):
    """An input in the past: set to something else, or added to."""

    mode: Literal["set", "add"] = "set"
    value: Number = 0.0
    values: Series | None = None


class Levers(Question):
    """Inputs of a unit that may be moved."""

    unit: Name
    inputs: Annotated[list[Name], Field(min_length=1, max_length=1000)]


class Planned(OfInput):
    """An input's value from now on."""

    value: Number


class OtherLaw(OfInput):
    """A controller's law in the world that is asked about, in words such as "manual" or "pid gain=2"."""

    law: Annotated[str, Field(min_length=1, max_length=200)]


# ---- how entries are read


def _plain(seat: Seat, name: str, value: Any, asked: Any) -> Any:
    return value


def _steps(seat: Seat, name: str, value: Any, asked: Any = None) -> Any:
    """A number of steps, or a duration."""
    steps = as_steps(value, seat.plant.dt, name)
    if isinstance(steps, str):
        raise OptionError(f"{name} is {steps[:40]!r}: give a number of steps, or a duration such as '2h'")
    if isinstance(steps, int) and steps > MOST_STEPS:
        raise OptionError(f"{name}: {steps} steps are more than {MOST_STEPS:,}: ask for a shorter time")
    return steps


def _row(seat: Seat, name: str, value: Any, asked: Any) -> Any:
    if not isinstance(value, str):
        return value
    row = as_rows(asked.start, asked.stop, seat.calendar, seat.asked.rows, seat.plant.dt)[name == "stop"]
    if isinstance(row, str):
        raise OptionError(f"{name} is {row[:40]!r}: give a row, a date, or a duration such as '2h'")
    return row


def _changes(seat: Seat, name: str, value: Sequence[InputChange], asked: Any) -> Moves:
    """The same input twice adds up."""
    horizon, out = _steps(seat, "horizon", asked.horizon), dict[str, dict[str, FloatArray]]()
    for change in value:
        change.measured_in(seat)
        inputs, drawn = out.setdefault(change.unit, {}), change.schedule(horizon)
        inputs[change.input] = inputs[change.input] + drawn if change.input in inputs else drawn
    return Moves(out, with_verb([change.words(seat) for change in value], "were"))


def _past(seat: Seat, name: str, value: Sequence[PastChange], asked: Any) -> Moves:
    whole: dict[str, dict[str, dict[str, Any]]] = {"set": {}, "add": {}}
    words = []
    for change in value:
        change.measured_in(seat)
        if any(change.input in each.get(change.unit, {}) for each in whole.values()):
            raise OptionError(f"unit {change.unit!r}, input {change.input!r}: it is changed twice; change it once")
        given = change.value if change.values is None else change.values
        whole[change.mode].setdefault(change.unit, {})[change.input] = given
        words.append((change.unit, change.input, change.mode == "add", given))
    return Moves(whole["set"], past_words(seat.plant, words) if words else "", whole["add"])


def _plan(seat: Seat, name: str, value: Sequence[Planned], asked: Any) -> dict[str, dict[str, float]]:
    planned: dict[str, dict[str, float]] = {}
    for plan in value:
        plan.measured_in(seat)
        planned.setdefault(plan.unit, {})[plan.input] = plan.value
    return planned


def _levers(seat: Seat, name: str, value: Sequence[Levers], asked: Any) -> dict[str, list[str]]:
    using: dict[str, list[str]] = {}
    for lever in value:
        using.setdefault(lever.unit, []).extend(lever.inputs)
    return using


def _laws(seat: Seat, name: str, value: Sequence[OtherLaw], asked: Any) -> dict[str, dict[str, Law]]:
    """{unit: {input: law}}; a unit's seat changes its own controllers only."""
    found: dict[str, dict[str, Law]] = {}
    for other in value:
        other.measured_in(seat)
        if other.unit != seat.unit:
            raise PrivacyError(f"the controllers of {other.unit!r} are tuned at its own seat, not at this one")
        found.setdefault(other.unit, {})[other.input] = law_from_words(other.law)
    return found


_Read = Callable[[Seat, str, Any, Any], Any]
ENTRIES: Mapping[Form, tuple[Any, _Read]] = {  # how each kind of entry is written, and how it is read
    Form.UNIT: (Name, _plain),
    Form.UNITS: (Name, _plain),  # a page asks about one unit at a time
    Form.CHANGES: (Annotated[list[InputChange], Field(min_length=1, max_length=MOST_CHANGES)], _changes),
    Form.PAST: (Annotated[list[PastChange], Field(max_length=MOST_CHANGES)], _past),  # none: only another law
    Form.PLAN: (Annotated[list[Planned], Field(max_length=MOST_CHANGES)], _plan),
    Form.TARGET: (Annotated[dict[Name, Number], Field(min_length=1, max_length=1000)], _plain),
    Form.LEVERS: (Annotated[list[Levers], Field(min_length=1, max_length=MOST_CHANGES)], _levers),
    Form.STEPS: (Steps | Time, _steps),
    Form.ROW: (Row | Time, _row),
    Form.LEVEL: (Annotated[float, Field(gt=0, le=0.999999)], _plain),
    Form.WORLD: (Literal["held", "reacting"], _plain),
    Form.LAWS: (Annotated[list[OtherLaw], Field(max_length=MOST_CHANGES)], _laws),
    Form.VECTOR: (Annotated[list[Number], Field(min_length=1, max_length=1000)], _plain),
}


def form_of(question: type[Request], **more: Any) -> Any:
    """A question as a page asks it; ``draw``: the channels whose trajectories are wanted."""
    fields: dict[str, Any] = {}
    for entry in question.form:
        needed = entry.default is ... or entry.form is Form.UNITS
        kind = ENTRIES[entry.form][0]
        kind = kind if needed or entry.default is not None else kind | None
        default = list(entry.default) if isinstance(entry.default, tuple) else entry.default
        if entry.page:
            fields[entry.name] = (kind, ... if needed else default)
    if question.drawn:
        fields["draw"] = (Drawn if question.drawn == "channels" else Name | None, None)
    name = f"{'Export' if more else 'Ask'}{question.tab.capitalize()}"
    return create_model(name, __base__=Question, __doc__=question.title, **fields, **more)


FORMS = {question.kind: form_of(question) for question in QUESTIONS.values()}
_EXPORTED = [form_of(question, kind=(Literal[question.tab], ...)) for question in QUESTIONS.values()]


class Export(Question):
    """A question whose answer is wanted as a file."""

    question: Annotated[Union[tuple(_EXPORTED)], Field(discriminator="kind")]  # type: ignore[valid-type] # noqa: UP007


def read(seat: Seat, question: type[Request], asked: Any) -> dict[str, Any]:
    """The entries of a form."""
    entries = [(entry.name, ENTRIES[entry.form][1]) for entry in question.form if entry.page]
    return {name: reader(seat, name, getattr(asked, name), asked) for name, reader in entries}
