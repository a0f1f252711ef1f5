"""What crosses between page and console, typed: questions as they are asked, answers as they are given.

Numbers that are not known are null. Trajectories are one list a channel, one number a row.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_STEPS = 20_000  # of one question: whoever asks must not keep the others waiting
MOST_ROWS = 10_000_000
MOST_CHANGES = 100
Name = Annotated[str, Field(min_length=1, max_length=100)]
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Steps = Annotated[int, Field(ge=1, le=MOST_STEPS)]
Row = Annotated[int, Field(ge=0, le=MOST_ROWS)]
Level = Annotated[float, Field(gt=0, le=0.999999)]
Drawn = Annotated[list[Name] | None, Field(max_length=50)]
Series = Annotated[list[Number], Field(min_length=1, max_length=MOST_STEPS)]
Numbers = list[float | None]


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


class AskPaths(Question):
    """Which ways an effect takes: directly, and through each third unit."""

    effect: Name
    changes: Annotated[list[InputChange], Field(min_length=1, max_length=MOST_CHANGES)]
    horizon: Steps = 50
    draw: Drawn = None


class AskEffect(AskPaths):
    """What would changes of inputs do from now on? ``draw``: channels whose trajectories are wanted."""

    level: Level = 0.95


class PastChange(Question):
    """An input in the past: set to something else, or added to."""

    unit: Name
    input: Name
    mode: Literal["set", "add"] = "set"
    value: Number = 0.0
    values: Series | None = None


class Window(Question):
    """Rows start to stop - 1 of a unit's record."""

    unit: Name
    start: Row
    stop: Row


class AskPast(Window):
    """What would have happened?"""

    changes: Annotated[list[PastChange], Field(min_length=1, max_length=MOST_CHANGES)]
    level: Level = 0.95
    draw: Drawn = None


class AskExplain(Window):
    """Who moved the unit's outputs? ``draw``: the channel whose shares are wanted row by row."""

    draw: Name | None = None


class Levers(Question):
    """Inputs of a unit that may be moved."""

    unit: Name
    inputs: Annotated[list[Name], Field(min_length=1, max_length=1000)]


class AskRestore(Question):
    """Which smallest held change moves outputs by ``target`` at the horizon?"""

    unit: Name
    target: Annotated[dict[Name, Number], Field(min_length=1, max_length=1000)]
    using: Annotated[list[Levers], Field(min_length=1, max_length=MOST_CHANGES)]
    horizon: Steps = 50


class Planned(Question):
    """An input's value from now on."""

    unit: Name
    input: Name
    value: Number


class AskForecast(Question):
    """What comes next, if inputs follow a plan and the others stay as they are?"""

    unit: Name
    plan: Annotated[list[Planned], Field(max_length=MOST_CHANGES)] = []
    horizon: Steps = 50
    level: Level = 0.95
    draw: Drawn = None


class EffectQuestion(AskEffect):
    kind: Literal["effect"]


class PathsQuestion(AskPaths):
    kind: Literal["paths"]


class PastQuestion(AskPast):
    kind: Literal["past"]


class ExplainQuestion(AskExplain):
    kind: Literal["explain"]


class RestoreQuestion(AskRestore):
    kind: Literal["restore"]


class ForecastQuestion(AskForecast):
    kind: Literal["forecast"]


AnyQuestion = EffectQuestion | PathsQuestion | PastQuestion | ExplainQuestion | RestoreQuestion | ForecastQuestion


class Export(Question):
    """A question whose answer is wanted as a file."""

    question: Annotated[AnyQuestion, Field(discriminator="kind")]


# ---- answers


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


class Permission(BaseModel):
    allowed: bool
    reason: str = ""


class InputTold(BaseModel):
    name: str
    measured_in: str
    limits: list[float | None] | None
    seen: list[float] | None
    last: float | None
    allowed: bool
    reason: str = ""


class OutputTold(BaseModel):
    name: str
    measured_in: str


class UnitTold(BaseModel):
    name: str
    states: int
    own: bool
    inputs: list[InputTold]
    outputs: list[OutputTold]


class PlantTold(BaseModel):
    seat: str
    kind: Literal["unit", "server"]
    unit: str | None
    method: str
    dt: float
    clock: ClockTold
    rows: int | None
    units: list[UnitTold]
    questions: dict[str, Permission]
    caveats: list[str]
    assumptions: list[str]  # what every answer rests on, and no check can show
    status: str


class EdgeTold(BaseModel):
    cause: str
    effect: str
    kind: Literal["direct", "through others", "not determined", "none found"]
    p_value: float | None
    q_value: float | None
    direct_strength: float | None
    total_strength: float | None


class GraphTold(BaseModel):
    rate: float
    names: list[str]
    edges: list[EdgeTold]
    sentence: str


class CheckTold(BaseModel):
    name: str
    verdict: Literal["pass", "caution", "fail", "unknown"]
    unit: str | None
    sentence: str
    remedy: str


class ChecksTold(BaseModel):
    verdict: Literal["pass", "caution", "fail", "unknown"]
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
    spent: float | None
    budget: float | None


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


class LogTold(BaseModel):
    """A channel's own measurements, thinned: lowest and highest of each bin, and the bin's first row."""

    channel: str
    measured_in: str
    row: list[int]
    low: Numbers
    high: Numbers


class Told(BaseModel):
    """What every answer begins with."""

    version: str
    command: str
    method: str
    dt: float
    sentence: str
    caveats: list[str]


class PeakTold(BaseModel):
    """The largest change of a channel; ``size`` in standard deviations of its noise (at the server: as it is)."""

    unit: str
    channel: str
    measured_in: str
    mean: float
    lower: float | None
    upper: float | None
    size: float
    last: float | None = None
    steps: int | None = None
    row: int | None = None


class Trajectory(BaseModel):
    """``mean``, ``lower``, ``upper``: of the change (effect), or of the value (past, forecast)."""

    channel: str
    measured_in: str
    mean: Numbers
    lower: Numbers | None
    upper: Numbers | None


class EffectTrajectory(Trajectory):
    """``baseline``: what is expected without the change."""

    baseline: Numbers | None


class PastTrajectory(Trajectory):
    factual: Numbers


class Recent(BaseModel):
    row: list[int]
    value: Numbers


class ForecastTrajectory(Trajectory):
    recent: Recent


class ScheduleTold(BaseModel):
    unit: str
    input: str
    measured_in: str
    values: Numbers


class EffectTold(Told):
    kind: Literal["effect"]
    causes: list[str]
    effect: str
    horizon: int
    level: float | None
    most_affected: list[PeakTold]
    drawn: list[EffectTrajectory]
    inputs: list[ScheduleTold]


class Way(BaseModel):
    unit: str
    values: Numbers


class PathsTold(Told):
    kind: Literal["paths"]
    cause: str
    effect: str
    channel: str
    measured_in: str
    total: Numbers
    direct: Numbers
    through: list[Way]


class PastTold(Told):
    kind: Literal["counterfactual"]
    unit: str
    start: int
    stop: int
    level: float | None
    most_affected: list[PeakTold]
    drawn: list[PastTrajectory]


class ShareTold(BaseModel):
    name: str
    label: str
    value: float | None


class DepartureTold(BaseModel):
    channel: str
    measured_in: str
    departure: float | None
    shares: list[ShareTold]


class ShareSeries(BaseModel):
    name: str
    label: str
    values: Numbers


class SharesDrawn(BaseModel):
    channel: str
    measured_in: str
    baseline: Numbers
    departure: Numbers
    shares: list[ShareSeries]


class ExplainTold(Told):
    kind: Literal["attribution"]
    unit: str
    start: int
    stop: int
    ranked: list[DepartureTold]
    drawn: SharesDrawn


class LeverTold(BaseModel):
    unit: str
    input: str
    measured_in: str
    change: float


class ReachedTold(BaseModel):
    channel: str
    measured_in: str
    target: float
    reached: float


class RestoreTold(Told):
    kind: Literal["restoration"]
    unit: str
    feasible: bool
    horizon: int
    change: list[LeverTold]
    channels: list[ReachedTold]
    drawn: list[EffectTrajectory]


class ForecastEnd(BaseModel):
    channel: str
    measured_in: str
    last_measured: float | None
    next: float | None
    end: float | None
    lower: float | None
    upper: float | None


class ForecastTold(Told):
    kind: Literal["forecast"]
    unit: str
    horizon: int
    first_row: int
    level: float | None
    drawn: list[ForecastTrajectory]
    ranked: list[ForecastEnd]


AnyAnswer = EffectTold | PathsTold | PastTold | ExplainTold | RestoreTold | ForecastTold
Content = dict[str, Any]
