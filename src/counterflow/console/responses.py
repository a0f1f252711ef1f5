"""What the console tells, typed: answers, and what a seat sees before it asks. Numbers that are not known are null.

The questions' forms stand in ``forms``; what an answer holds is the answer's own to say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator

from counterflow.questions.numbers import finite

Numbers = list[float | None]
Known = Annotated[float | None, BeforeValidator(finite)]
Verdict = Literal["pass", "caution", "fail", "unknown"]


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


class TableResponse(BaseModel):
    """Rows of text; all columns but the first ``left`` are numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    left: int
    more: str


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
    tables: list[TableResponse]
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


class ClockResponse(BaseModel):
    """Row k is at time k * step, in ``unit``."""

    step: float
    unit: str
    point: str


class CalendarResponse(BaseModel):
    """Row k is at ``begins`` + k * ``step`` (milliseconds since 1970), and later by the ``jumps`` [row, milliseconds]
    before it. Without a zone, the times are local ones of a place that is not known."""

    begins: float
    step: float
    zone: str
    jumps: list[tuple[int, float]]


class Permission(BaseModel):
    allowed: bool
    reason: str = ""


class EntryResponse(BaseModel):
    """One entry of a question's form."""

    name: str
    kind: str
    help: str
    needed: bool
    default: Any


class QuestionResponse(Permission):
    """What may be asked; without a form, it is a view."""

    title: str = ""
    form: list[EntryResponse] = []


class OutputResponse(BaseModel):
    name: str
    measured_in: str


class InputResponse(OutputResponse, Permission):
    limits: list[Known] | None
    seen: list[float] | None
    last: float | None


class UnitResponse(BaseModel):
    name: str
    states: int
    own: bool
    phi: list[float] | None  # of the unit's own seat: what it has learned of all others' joint effect (Q3)
    inputs: list[InputResponse]
    outputs: list[OutputResponse]


class LoopResponse(BaseModel):
    unit: str
    input: str
    reads: str
    law: str


class PlantResponse(BaseModel):
    seat: str
    kind: Literal["unit", "server"]
    unit: str | None
    method: str
    dt: float
    clock: ClockResponse
    calendar: CalendarResponse | None
    rows: int | None
    units: list[UnitResponse]
    questions: dict[str, QuestionResponse]
    caveats: list[CaveatResponse]
    assumptions: list[str]  # what every answer rests on, and no check can show
    status: str
    controllers: bool  # whether some are known, and answers can be about the running plant
    loops: list[LoopResponse]  # those of this seat's unit, which can be supposed to follow another law


class EdgeResponse(BaseModel):
    cause: str
    effect: str
    kind: Literal["direct", "through others", "not determined", "none found", "ruled out"]
    p_value: Known
    q_value: Known
    direct_strength: Known
    total_strength: Known


class GraphResponse(BaseModel):
    rate: float
    names: list[str]
    edges: list[EdgeResponse]
    sentence: str


class CheckResponse(BaseModel):
    name: str
    verdict: Verdict
    unit: str | None
    sentence: str
    remedy: str


class ChecksResponse(BaseModel):
    verdict: Verdict
    checks: list[CheckResponse]


class TrafficResponse(BaseModel):
    rounds: int
    bytes_up: int
    bytes_down: int


class TrainingSeries(BaseModel):
    name: str
    unit: str | None
    group: Literal["loss", "disentanglement", "gradient", "delta_d"]
    values: Numbers


class BudgetResponse(BaseModel):
    name: str
    epsilon: float
    spent: Known = None
    budget: float | None = None


class PrivacyResponse(BaseModel):
    epsilon: float
    delta: float
    window: int
    sentences: list[str]
    units: list[BudgetResponse]


class TrainingResponse(BaseModel):
    method: str
    status: str
    converged: bool
    traffic: TrafficResponse
    series: list[TrainingSeries]
    privacy: PrivacyResponse | None
    provenance: dict[str, str]


class RowsResponse(BaseModel):
    """A window: its first row, and the row after its last one."""

    start: int
    stop: int


class LogResponse(BaseModel):
    """A channel's own measurements, thinned: lowest and highest of each bin, and the bin's first row."""

    channel: str
    measured_in: str
    row: list[int]
    low: Numbers
    high: Numbers
