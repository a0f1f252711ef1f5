"""What a seat sees before it asks anything: units and channels, influence graph, checks, training, its own log.

A view is a function; its model says what of its objects is told. Numbers that are not known are null.
``AnswerResponse`` is what every answer has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Depends, Query, Request
from pydantic import BaseModel, BeforeValidator, Field

from counterflow._version import __version__
from counterflow.checks.verdicts import Verdict, worst
from counterflow.console import forms
from counterflow.console.opening import Opened
from counterflow.console.seats import Seat
from counterflow.errors import CounterflowError, OptionError, UnknownNameError
from counterflow.fits.engine import Traffic
from counterflow.notebook import Table
from counterflow.plant import PublicUnit, Unit
from counterflow.plant.calendar import as_rows
from counterflow.questions.numbers import finite, series
from counterflow.questions.question import channel_index, check_window
from counterflow.questions.registry import QUESTIONS
from counterflow.report.composition import acting_directly, assumptions, sourced

Known = Annotated[float | None, BeforeValidator(finite)]
Kind = Literal["unit", "server"]
View = Callable[..., Any]
VIEWS: list[tuple[str, str, type[BaseModel], View]] = []  # path, summary, model, view

_DRAWN = {  # of the server's history: its name there, the name that is shown, the plot that it belongs to
    "server_loss": ("server loss", "loss"),
    "residual_loss": ("residual loss", "loss"),
    "disentanglement": ("disentanglement D", "disentanglement"),
    "gradient": ("relative gradient", "gradient"),
}
_OWN_LOSSES = {"client_loss": "augmented loss", "proprietary_loss": "own model"}


async def opened_by(request: Request) -> Opened:
    found: Opened = request.app.state.opened
    return found


async def seat_of(seat: str, request: Request) -> Seat:
    """The seat that an address names; noted for the access log, which must not hold what a visitor makes up."""
    seats = (await opened_by(request)).seats
    if seat not in seats:
        raise UnknownNameError(f"no seat {seat!r:.120}; the seats are {', '.join(seats)}")
    request.scope["seat"] = seat
    return seats[seat]


Here = Annotated[Seat, Depends(seat_of)]


def view(path: str, model: type[BaseModel], summary: str) -> Callable[[View], View]:
    def add(work: View) -> View:
        VIEWS.append((f"/api/seats{path}", summary, model, work))
        return work

    return add


class Response(BaseModel, from_attributes=True):
    """Read from a mapping or from an object of the library, whose attributes are fields."""


# ---- answers and errors


class CaveatResponse(Response):
    code: str
    scope: str
    text: str
    weight: Literal["fails", "caution", "choice"]


class Course(BaseModel, extra="allow"):
    """One channel, one number a row: series by their names, such as ``mean``, ``lower`` and ``upper`` of the change
    (effect) or of the value, ``factual``, ``baseline`` without the change, ``shares``."""

    channel: str
    measured_in: str


class AnswerResponse(Response, extra="allow"):
    """What every answer has; what else it has stands in the JSON of that question's answer. Numbers that are not known
    are null."""

    version: str
    command: str
    kind: str
    method: str
    dt: float
    fit: dict[str, str] | None  # that it comes from: id, and when it was fitted
    sentence: str
    controllers: str | None
    caveats: list[CaveatResponse]
    window: str  # what is said of all rows together; "" where an answer has none
    verdict: Literal["fails", "caution", "clear"]
    tables: list[Table]
    drawn: list[Course] | Course | None = None


class Problem(BaseModel):
    """What went wrong, in words."""

    type: str
    code: str
    message: str
    status: int


class Failure(BaseModel):
    error: Problem


# ---- seats


class SeatOffer(Response):
    id: str
    kind: Kind
    unit: str | None


class Seats(Response):
    version: str = __version__
    title: str
    started: str  # another one after every start: a page that was open before should be read anew
    seats: list[SeatOffer]
    first: str


@view("", Seats, "Points of view that this console offers")
def seats(opened: Annotated[Opened, Depends(opened_by)]) -> dict[str, Any]:
    return {
        "title": opened.title, "started": opened.started, "seats": list(opened.seats.values()),
        "first": next(iter(opened.seats)),
    }  # fmt: skip


# ---- units, channels, and what may be asked


class CalendarResponse(Response):
    """Row k is at ``begins`` + k * ``step`` (milliseconds since 1970), and later by the ``jumps`` [row, milliseconds]
    before it. Without a zone, the times are local ones of a place that is not known."""

    begins: float
    step: float
    zone: str
    jumps: list[tuple[int, float]]


class Permission(Response):
    allowed: bool
    reason: str


class EntryResponse(Response):
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


class OutputResponse(Response):
    name: str
    measured_in: str = Field(validation_alias="unit")


class InputResponse(OutputResponse, Permission):
    limits: list[Known] | None
    seen: list[float] | None  # lowest and highest value in the server's record, where that is on this machine
    last: float | None


class UnitResponse(Response):
    name: str
    states: int
    own: bool
    phi: list[float] | None  # of the unit's own seat: what it has learned of all others' combined input (Q3)
    inputs: list[InputResponse]
    outputs: list[OutputResponse]


class ClockResponse(Response):
    """How rows read as times: row 30 of one-minute rows is "minute 30"; rows one second apart (the default) are
    counted, not timed."""

    step: float
    unit: str
    point: str


_CLOCKS = ((86400.0, "days", "day"), (3600.0, "h", "hour"), (60.0, "min", "minute"), (0.0, "s", "second"))


def clock_of(dt: float) -> ClockResponse:
    if dt == 1.0:
        return ClockResponse(step=1.0, unit="steps", point="row")
    size, unit, point = next(each for each in _CLOCKS if dt >= each[0])
    return ClockResponse(step=dt / (size or 1.0), unit=unit, point=point)


class PlantResponse(Response):
    seat: str
    kind: Kind
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
    loops: list[dict[str, str]]  # unit, input, reads, law: those of this unit, which can be supposed to follow another


@view("/{seat}/plant", PlantResponse, "Units, channels, and what may be asked")
def plant(seat: Here) -> dict[str, Any]:
    try:
        count: int | None = seat.asked.rows
    except CounterflowError:
        count = None
    dates = seat.calendar
    from_logs = any(caveat.code == "model-form" for caveat in seat.caveats)  # fits from logs have a note of their form
    return {
        "seat": seat.id, "kind": seat.kind, "unit": seat.unit, "method": seat.method, "dt": seat.plant.dt,
        "clock": clock_of(seat.plant.dt), "rows": count, "units": [_unit(seat, unit) for unit in seat.plant.units],
        "calendar": dates and {
            "begins": dates.begins / 1e6, "step": dates.step / 1e6, "zone": dates.zone,
            "jumps": [(row, extra / 1e6) for row, extra in dates.jumps],
        },
        "questions": {tab: _question(tab, reason) for tab, reason in seat.refusals.items()}, "caveats": seat.caveats,
        "assumptions": assumptions(seat.method in ("sufficient", "centralized"), from_logs),
        "status": "" if seat.record is None else str(seat.record.status), "controllers": seat.controlled,
        "loops": seat.loops,
    }  # fmt: skip


def _question(tab: str, reason: str) -> dict[str, Any]:
    """Whether a question or view may be had, and the question's form."""
    found: dict[str, Any] = {"allowed": not reason, "reason": reason}
    for question in QUESTIONS.values():
        if question.tab == tab:
            found |= {"title": question.title, "form": [
                {
                    "name": entry.name, "kind": entry.form.value, "help": entry.help, "needed": entry.default is ...,
                    "default": None if entry.default in (..., ()) else entry.default,
                }
                for entry in question.form if entry.page
            ]}  # fmt: skip
    return found


def _unit(seat: Seat, unit: Unit | PublicUnit) -> dict[str, Any]:
    inputs = []
    for column, channel in enumerate(unit.inputs):
        reason = seat.refusal_of_input(unit.name, column)
        record = None if reason else seat.recorded_input(unit.name, column)
        inputs.append({
            "name": channel.name, "unit": channel.unit, "limits": channel.limits, "allowed": not reason,
            "reason": reason, "seen": None if record is None else [record.min(), record.max()],
            "last": None if record is None else record[-1],
        })  # fmt: skip
    part = seat.parts.get(unit.name)
    return {
        "name": unit.name, "states": unit.states, "own": unit.name == seat.unit, "inputs": inputs,
        "phi": None if part is None or part.phi is None else part.phi.tolist(),
        "outputs": () if part is None else part.unit.outputs,
    }  # fmt: skip


# ---- who acts on whom, and what speaks against the answers


class EdgeResponse(Response):
    cause: str
    effect: str
    kind: Literal["direct", "through others", "not determined", "none found", "ruled out"]
    p_value: Known
    q_value: Known
    direct_strength: Known
    total_strength: Known


class GraphResponse(Response):
    rate: float
    names: list[str]
    edges: list[EdgeResponse]
    sentence: str


@view("/{seat}/graph", GraphResponse, "Who acts on whom")
def graph(seat: Here, rate: Annotated[float, Query(gt=0, lt=1)] = 0.05) -> dict[str, Any]:
    found = seat.graph(rate)
    names = [unit.name for unit in seat.plant.units]
    return {"rate": rate, "names": names, "edges": list(found), "sentence": acting_directly(found.direct(), rate)}


class CheckResponse(Response):
    name: str
    verdict: Verdict
    unit: Annotated[str | None, BeforeValidator(lambda about: about or None)] = Field(validation_alias="about")
    sentence: str = Field(validation_alias="finding")
    remedy: str


class ChecksResponse(Response):
    verdict: Verdict
    checks: list[CheckResponse]


@view("/{seat}/checks", ChecksResponse, "What speaks against the answers")
def checks(seat: Here) -> dict[str, Any]:
    found = seat.checks()
    return {"verdict": worst(found.verdict, "unknown") if seat.closed else found.verdict, "checks": found.checks}


# ---- how the fit came about: the server's losses at the server, a unit's own at the unit


class TrainingSeries(Response):
    name: str
    unit: str | None
    group: Literal["loss", "disentanglement", "gradient", "delta_d"]
    values: list[float | None]


class BudgetResponse(Response):
    """What was spent; a unit's own account is told at the unit only."""

    name: str
    epsilon: float
    spent: Known = None
    budget: float | None = None


class PrivacyResponse(Response):
    epsilon: float
    delta: float
    window: int
    sentences: list[str]
    units: list[BudgetResponse]


class TrainingResponse(Response):
    method: str
    status: str
    converged: bool
    traffic: Traffic
    series: list[TrainingSeries]
    privacy: PrivacyResponse | None
    provenance: dict[str, str]


@view("/{seat}/training", TrainingResponse, "How the fit came about")
def training(seat: Here) -> dict[str, Any]:
    if seat.record is None:
        raise OptionError(seat.refusals["training"])
    record, history, source = seat.record, seat.record.history, seat.record.provenance
    drawn: list[tuple[str, str | None, str, Any]] = []
    if seat.unit is None:
        drawn += [(name, None, group, getattr(history, key)) for key, (name, group) in _DRAWN.items()]
        drawn += [("δd", name, "delta_d", values) for name, values in history.delta_d.items()]
    else:
        losses = [(label, seat.losses.get(key, {})) for key, label in _OWN_LOSSES.items()]
        drawn += [(label, name, "loss", values) for label, each in losses for name, values in each.items()]
        drawn.append(("δd", seat.unit, "delta_d", history.delta_d[seat.unit]))
    return {
        "method": seat.method, "status": str(record.status), "converged": record.status.converged,
        "traffic": record.traffic, "privacy": _privacy(seat),
        "series": [
            {"name": name, "unit": unit, "group": group, "values": series(values)}
            for name, unit, group, values in drawn if len(values)
        ],
        "provenance": sourced(source) | {"data": source.data_digest},
    }  # fmt: skip


def _privacy(seat: Seat) -> dict[str, Any] | None:
    report = seat.privacy
    if report is None:
        return None
    units: list[dict[str, Any]] = [
        {"name": name, "epsilon": unit.epsilon} for name, unit in report.units.items() if seat.unit in (name, None)
    ]
    if seat.unit is not None:
        own = report.units[seat.unit]
        units[0] |= {"spent": own.spent, "budget": own.budget and own.budget[0]}
    plain = {"epsilon": report.epsilon, "delta": report.delta, "window": report.window}
    return {**plain, "units": units, "sentences": report.sentences()}


# ---- windows of the past


class RowsResponse(Response):
    """A window: its first row, and the row after its last one."""

    start: int
    stop: int


class LogResponse(Response):
    """A channel's own measurements, thinned: lowest and highest of each bin, and the bin's first row."""

    channel: str
    measured_in: str
    row: list[int]
    low: list[float | None]
    high: list[float | None]


@view("/{seat}/rows", RowsResponse, "Which rows a window has that is given by dates or durations")
def rows(seat: Here, start: forms.Row | forms.Time, stop: forms.Row | forms.Time | None = None) -> dict[str, Any]:
    count = seat.asked.rows
    first, last = as_rows(start, stop, seat.calendar, count, seat.plant.dt)
    last = count if last is None else last
    check_window("window", count, first, last)
    return {"start": first, "stop": last}


@view("/{seat}/log", LogResponse, "The unit's own measurements, thinned")
def log(seat: Here, channel: str, points: Annotated[int, Query(ge=10, le=10_000)] = 800) -> dict[str, Any]:
    if seat.unit is None:
        raise OptionError(seat.refusals["past"])
    unit = seat.parts[seat.unit].unit
    index = channel_index(unit, channel, unit.output_names, "output")
    column = seat.own_measurements(unit.name)[:, index]
    starts = range(0, len(column), max(1, -(-len(column) // points)))
    bins = [each[np.isfinite(each)] for each in np.split(column, starts[1:])]
    low, high = ([end(each) if each.size else None for each in bins] for end in (np.min, np.max))
    return {
        "channel": channel, "measured_in": unit.outputs[index].unit, "row": list(starts), "low": low, "high": high,
    }  # fmt: skip
