"""What crosses between page and console, typed: questions as they are asked, and what a seat sees before it asks.

The questions' forms are made from the registry; schemas of their answers stand in the questions' modules. Numbers that
are not known are null.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from counterflow.questions.numbers import finite
from counterflow.questions.question import Form, Request
from counterflow.questions.registry import QUESTIONS

MOST_STEPS = 20_000  # of one question: whoever asks must not keep the others waiting
MOST_ROWS = 10_000_000
MOST_CHANGES = 100
Name = Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Row = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Time = Annotated[str, Field(min_length=1, max_length=40)]  # a date, or a duration such as "2h"
Level = Annotated[float, Field(gt=0, le=0.999999)]
Drawn = Annotated[list[Name] | None, Field(max_length=50)]
Series = Annotated[list[Number], Field(min_length=1, max_length=MOST_STEPS)]
Numbers = list[float | None]
Known = Annotated[float | None, BeforeValidator(finite)]
Verdict = Literal["pass", "caution", "fail", "unknown"]


class Question(BaseModel):
    """Strict: a field that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid")


class InputChange(Question):
    """How one input is moved from now on. ``length``: rows of a pulse, or over which a ramp rises; ``values``: of a
    series, one a step."""

    unit: Name
    input: Name
    shape: Literal["step", "pulse", "ramp", "series"] = "step"
    size: Number = 0.0
    start: Annotated[int, Field(ge=0, lt=MOST_STEPS)] = 0
    length: Steps | None = None
    values: Series | None = None


class PastChange(Question):
    """An input in the past: set to something else, or added to."""

    unit: Name
    input: Name
    mode: Literal["set", "add"] = "set"
    value: Number = 0.0
    values: Series | None = None


class Levers(Question):
    """Inputs of a unit that may be moved."""

    unit: Name
    inputs: Annotated[list[Name], Field(min_length=1, max_length=1000)]


class Planned(Question):
    """An input's value from now on."""

    unit: Name
    input: Name
    value: Number


class OtherLaw(Question):
    """A controller's law in the world that is asked about, in words such as "manual" or "pid gain=2"."""

    unit: Name
    input: Name
    law: Annotated[str, Field(min_length=1, max_length=200)]


ENTRIES: dict[Form, Any] = {  # how each kind of entry of a question's form is written
    Form.UNIT: Name,
    Form.UNITS: Name,  # a page asks about one unit at a time
    Form.CHANGES: Annotated[list[InputChange], Field(min_length=1, max_length=MOST_CHANGES)],
    Form.PAST: Annotated[list[PastChange], Field(max_length=MOST_CHANGES)],  # none: another law is all that is asked
    Form.PLAN: Annotated[list[Planned], Field(max_length=MOST_CHANGES)],
    Form.TARGET: Annotated[dict[Name, Number], Field(min_length=1, max_length=1000)],
    Form.LEVERS: Annotated[list[Levers], Field(min_length=1, max_length=MOST_CHANGES)],
    Form.STEPS: Steps | Time,
    Form.ROW: Row | Time,
    Form.LEVEL: Level,
    Form.WORLD: Literal["held", "reacting"],
    Form.LAWS: Annotated[list[OtherLaw], Field(max_length=MOST_CHANGES)],
    Form.VECTOR: Annotated[list[Number], Field(min_length=1, max_length=1000)],
}


def form_of(question: type[Request], **more: Any) -> Any:
    """A question as a page asks it; ``draw``: the channels whose trajectories are wanted."""
    fields: dict[str, Any] = {}
    for entry in question.form:
        needed = entry.default is ... or entry.form is Form.UNITS
        kind = ENTRIES[entry.form] if needed or entry.default is not None else ENTRIES[entry.form] | None
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


# ---- answers


class CaveatResponse(BaseModel):
    code: str
    scope: str
    text: str
    weight: Literal["fails", "caution", "choice"]


class FitResponse(BaseModel):
    """The fit that an answer comes from."""

    id: str
    fitted: str


class Course(BaseModel, extra="allow"):
    """One channel, one number a row: series by their names, such as ``mean``, ``lower`` and ``upper`` of the change
    (effect) or of the value, ``factual``, ``baseline`` without the change, ``shares``."""

    channel: str
    measured_in: str


class AnswerResponse(BaseModel, extra="allow"):
    """What every answer has; what else it has stands in the JSON of that question's answer. Numbers that are not known
    are null."""

    version: str
    command: str
    kind: str
    method: str
    dt: float
    fit: FitResponse | None
    sentence: str
    controllers: str | None
    caveats: list[CaveatResponse]
    window: str  # what is said of all rows together; "" where an answer has none
    verdict: Literal["fails", "caution", "clear"]
    drawn: list[Course] | Course | None = None


class Problem(BaseModel):
    """What went wrong, in words."""

    type: str
    code: str
    message: str
    status: int


class Failure(BaseModel):
    error: Problem


class SeatOffer(BaseModel):
    id: str
    kind: Literal["unit", "server"]
    unit: str | None


class Seats(BaseModel):
    version: str
    title: str
    started: str  # another one after every start: a page that was open before should be read anew
    seats: list[SeatOffer]
    first: str


class ClockTold(BaseModel):
    """Row k is at time k * step, in ``unit``."""

    step: float
    unit: str
    point: str


class CalendarTold(BaseModel):
    """Row k is at ``begins`` + k * ``step`` (milliseconds since 1970), and later by the ``jumps`` [row, milliseconds]
    before it. Without a zone, the times are local ones of a place that is not known."""

    begins: float
    step: float
    zone: str
    jumps: list[tuple[int, float]]


class Permission(BaseModel):
    allowed: bool
    reason: str = ""


class OutputTold(BaseModel):
    name: str
    measured_in: str


class InputTold(OutputTold, Permission):
    limits: list[Known] | None
    seen: list[float] | None
    last: float | None


class UnitTold(BaseModel):
    name: str
    states: int
    own: bool
    phi: list[float] | None  # of the unit's own seat: what it has learned of all others' joint effect (Q3)
    inputs: list[InputTold]
    outputs: list[OutputTold]


class LoopTold(BaseModel):
    unit: str
    input: str
    reads: str
    law: str


class PlantTold(BaseModel):
    seat: str
    kind: Literal["unit", "server"]
    unit: str | None
    method: str
    dt: float
    clock: ClockTold
    calendar: CalendarTold | None
    rows: int | None
    units: list[UnitTold]
    questions: dict[str, Permission]
    caveats: list[CaveatResponse]
    assumptions: list[str]  # what every answer rests on, and no check can show
    status: str
    controllers: bool  # whether some are known, and answers can be about the running plant
    loops: list[LoopTold]  # those of this seat's unit, which can be supposed to follow another law


class EdgeTold(BaseModel):
    cause: str
    effect: str
    kind: Literal["direct", "through others", "not determined", "none found", "ruled out"]
    p_value: Known
    q_value: Known
    direct_strength: Known
    total_strength: Known


class GraphTold(BaseModel):
    rate: float
    names: list[str]
    edges: list[EdgeTold]
    sentence: str


class CheckTold(BaseModel):
    name: str
    verdict: Verdict
    unit: str | None
    sentence: str
    remedy: str


class ChecksTold(BaseModel):
    verdict: Verdict
    checks: list[CheckTold]


class TrafficTold(BaseModel):
    rounds: int
    bytes_up: int
    bytes_down: int


class TrainingSeries(BaseModel):
    name: str
    unit: str | None
    group: Literal["loss", "disentanglement", "gradient", "delta_d"]
    values: Numbers


class BudgetTold(BaseModel):
    name: str
    epsilon: float
    spent: Known = None
    budget: float | None = None


class PrivacyTold(BaseModel):
    epsilon: float
    delta: float
    window: int
    sentences: list[str]
    units: list[BudgetTold]


class TrainingTold(BaseModel):
    method: str
    status: str
    converged: bool
    traffic: TrafficTold
    series: list[TrainingSeries]
    privacy: PrivacyTold | None
    provenance: dict[str, str]


class RowsTold(BaseModel):
    """A window: its first row, and the row after its last one."""

    start: int
    stop: int


class LogTold(BaseModel):
    """A channel's own measurements, thinned: lowest and highest of each bin, and the bin's first row."""

    channel: str
    measured_in: str
    row: list[int]
    low: Numbers
    high: Numbers
