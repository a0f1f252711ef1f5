"""What a seat sees before it asks anything: units and channels, influence graph, checks, training, its own log.

Each view is a function and the model of what it tells; numbers that are not known are null. ``AnswerResponse`` is what
every answer has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Depends, Query, Request
from pydantic import BaseModel, BeforeValidator

from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.checks.verdicts import worst
from counterflow.console import forms
from counterflow.console.opening import Opened
from counterflow.console.seats import Seat
from counterflow.errors import CounterflowError, OptionError, UnknownNameError
from counterflow.fits.engine import Traffic
from counterflow.plant import PublicUnit, Unit
from counterflow.plant.calendar import as_rows
from counterflow.plant.units import unknown_name
from counterflow.questions.numbers import finite, series
from counterflow.questions.question import check_window
from counterflow.questions.registry import QUESTIONS
from counterflow.report import Clock
from counterflow.report.composition import acting_directly, assumptions

Known = Annotated[float | None, BeforeValidator(finite)]
Verdict = Literal["pass", "caution", "fail", "unknown"]
VIEWS: list[tuple[str, str, Callable[..., BaseModel]]] = []  # path, summary, view

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


def view(path: str, summary: str) -> Callable[[Callable[..., BaseModel]], Callable[..., BaseModel]]:
    def add(work: Callable[..., BaseModel]) -> Callable[..., BaseModel]:
        VIEWS.append((f"/api/seats{path}", summary, work))
        return work

    return add


# ---- answers and errors


class CaveatResponse(BaseModel):
    code: str
    scope: str
    text: str
    weight: Literal["fails", "caution", "choice"]


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
    fit: dict[str, str] | None  # that it comes from: id, and when it was fitted
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


# ---- seats


class SeatOffer(BaseModel, from_attributes=True):
    id: str
    kind: Literal["unit", "server"]
    unit: str | None


class Seats(BaseModel):
    version: str
    title: str
    started: str  # another one after every start: a page that was open before should be read anew
    seats: list[SeatOffer]
    first: str


@view("", "Points of view that this console offers")
def seats(opened: Annotated[Opened, Depends(opened_by)]) -> Seats:
    offers = [SeatOffer.model_validate(seat) for seat in opened.seats.values()]
    return Seats(version=__version__, title=opened.title, started=opened.started, seats=offers, first=offers[0].id)


# ---- units, channels, and what may be asked


class CalendarResponse(BaseModel):
    """Row k is at ``begins`` + k * ``step`` (milliseconds since 1970), and later by the ``jumps`` [row, milliseconds]
    before it. Without a zone, the times are local ones of a place that is not known."""

    begins: float
    step: float
    zone: str
    jumps: list[tuple[int, float]]


class Permission(BaseModel):
    allowed: bool
    reason: str


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
    seen: list[float] | None  # lowest and highest value in the server's record, where that is on this machine
    last: float | None


class UnitResponse(BaseModel):
    name: str
    states: int
    own: bool
    phi: list[float] | None  # of the unit's own seat: what it has learned of all others' joint effect (Q3)
    inputs: list[InputResponse]
    outputs: list[OutputResponse]


class PlantResponse(BaseModel):
    seat: str
    kind: Literal["unit", "server"]
    unit: str | None
    method: str
    dt: float
    clock: Clock
    calendar: CalendarResponse | None
    rows: int | None
    units: list[UnitResponse]
    questions: dict[str, QuestionResponse]
    caveats: list[CaveatResponse]
    assumptions: list[str]  # what every answer rests on, and no check can show
    status: str
    controllers: bool  # whether some are known, and answers can be about the running plant
    loops: list[dict[str, str]]  # unit, input, reads, law: those of this unit, which can be supposed to follow another


@view("/{seat}/plant", "Units, channels, and what may be asked")
def plant(seat: Here) -> PlantResponse:
    try:
        count: int | None = seat.asked.rows
    except CounterflowError:
        count = None
    dates = seat.calendar
    from_logs = any(caveat.code == "model-form" for caveat in seat.caveats)  # fits from logs have a note of their form
    return PlantResponse(
        seat=seat.id, kind=seat.kind, unit=seat.unit, method=seat.method, dt=seat.plant.dt,
        clock=Clock.of(seat.plant.dt), rows=count, units=[_unit(seat, unit) for unit in seat.plant.units],
        calendar=None if dates is None else CalendarResponse(
            begins=dates.begins / 1e6, step=dates.step / 1e6, zone=dates.zone,
            jumps=[(row, extra / 1e6) for row, extra in dates.jumps],
        ),
        questions={tab: _question(tab, reason) for tab, reason in seat.refusals.items()},
        caveats=[CaveatResponse.model_validate(caveat.to_view()) for caveat in seat.caveats],
        assumptions=list(assumptions(seat.method in ("sufficient", "centralized"), from_logs)),
        status="" if seat.record is None else str(seat.record.status), controllers=seat.controlled,
        loops=seat.loops,
    )  # fmt: skip


def _question(tab: str, reason: str) -> QuestionResponse:
    """Whether a question or view may be had, and the question's form."""
    told = QuestionResponse(allowed=not reason, reason=reason)
    for question in QUESTIONS.values():
        if question.tab == tab:
            told.title = question.title
            told.form = [
                EntryResponse(
                    name=entry.name, kind=entry.form.value, help=entry.help, needed=entry.default is ...,
                    default=None if entry.default in (..., ()) else entry.default,
                )
                for entry in question.form if entry.page
            ]  # fmt: skip
    return told


def _unit(seat: Seat, unit: Unit | PublicUnit) -> UnitResponse:
    inputs = []
    for column, channel in enumerate(unit.inputs):
        reason = seat.refusal_of_input(unit.name, column)
        record = None if reason else seat.recorded_input(unit.name, column)
        inputs.append(InputResponse(
            name=channel.name, measured_in=channel.unit, allowed=not reason, reason=reason,
            limits=None if channel.limits is None else list(channel.limits),
            seen=None if record is None else [float(record.min()), float(record.max())],
            last=None if record is None else float(record[-1]),
        ))  # fmt: skip
    part = seat.parts.get(unit.name)
    return UnitResponse(
        name=unit.name, states=unit.states, own=unit.name == seat.unit, inputs=inputs,
        phi=None if part is None or part.phi is None else part.phi.tolist(),
        outputs=[OutputResponse(name=each.name, measured_in=each.unit) for each in (part.unit.outputs if part else ())],
    )  # fmt: skip


# ---- who acts on whom, and what speaks against the answers


class EdgeResponse(BaseModel, from_attributes=True):
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


@view("/{seat}/graph", "Who acts on whom")
def graph(seat: Here, rate: Annotated[float, Query(gt=0, lt=1)] = 0.05) -> GraphResponse:
    found = seat.graph(rate)
    return GraphResponse(
        rate=rate, names=[unit.name for unit in seat.plant.units], sentence=acting_directly(found.direct(), rate),
        edges=[EdgeResponse.model_validate(edge) for edge in found],
    )  # fmt: skip


class CheckResponse(BaseModel):
    name: str
    verdict: Verdict
    unit: str | None
    sentence: str
    remedy: str


class ChecksResponse(BaseModel):
    verdict: Verdict
    checks: list[CheckResponse]


@view("/{seat}/checks", "What speaks against the answers")
def checks(seat: Here) -> ChecksResponse:
    found = seat.checks()
    return ChecksResponse(
        verdict=worst(found.verdict, "unknown") if seat.closed else found.verdict,
        checks=[
            CheckResponse(
                name=each.name, verdict=each.verdict, unit=each.about or None, sentence=each.finding, remedy=each.remedy
            )
            for each in found
        ],
    )


# ---- how the fit came about: the server's losses at the server, a unit's own at the unit


class TrainingSeries(BaseModel):
    name: str
    unit: str | None
    group: Literal["loss", "disentanglement", "gradient", "delta_d"]
    values: list[float | None]


class BudgetResponse(BaseModel):
    """What was spent; a unit's own account is told at the unit only."""

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
    traffic: Traffic
    series: list[TrainingSeries]
    privacy: PrivacyResponse | None
    provenance: dict[str, str]


@view("/{seat}/training", "How the fit came about")
def training(seat: Here) -> TrainingResponse:
    if seat.record is None:
        raise OptionError(seat.refusals["training"])
    record, history, source = seat.record, seat.record.history, seat.record.provenance
    drawn: list[tuple[str, str | None, str, FloatArray]] = []
    if seat.unit is None:
        drawn += [(name, None, group, getattr(history, key)) for key, (name, group) in _DRAWN.items()]
        drawn += [("δd", name, "delta_d", values) for name, values in history.delta_d.items()]
    else:
        losses = [(label, seat.losses.get(key, {})) for key, label in _OWN_LOSSES.items()]
        drawn += [(label, name, "loss", values) for label, each in losses for name, values in each.items()]
        drawn.append(("δd", seat.unit, "delta_d", history.delta_d[seat.unit]))
    return TrainingResponse(
        method=seat.method, status=str(record.status), converged=record.status.converged, traffic=record.traffic,
        privacy=_privacy(seat),
        series=[
            TrainingSeries(name=name, unit=unit, group=group, values=series(values))  # type: ignore[arg-type]
            for name, unit, group, values in drawn if len(values)
        ],
        provenance={
            "fit": str(source), "Counterflow": source.version, "method": source.method, "seed": str(source.seed),
            "data": source.data_digest,
        },
    )  # fmt: skip


def _privacy(seat: Seat) -> PrivacyResponse | None:
    report = seat.privacy
    if report is None:
        return None
    units = [BudgetResponse(name=n, epsilon=each.epsilon) for n, each in report.units.items() if seat.unit in (n, None)]
    if seat.unit is not None:
        own = report.units[seat.unit]
        units[0].spent, units[0].budget = own.spent, None if own.budget is None else own.budget[0]
    return PrivacyResponse(
        epsilon=report.epsilon,
        delta=report.delta,
        window=report.window,
        units=units,
        sentences=list(report.sentences()),
    )


# ---- windows of the past


class RowsResponse(BaseModel):
    """A window: its first row, and the row after its last one."""

    start: int
    stop: int


class LogResponse(BaseModel):
    """A channel's own measurements, thinned: lowest and highest of each bin, and the bin's first row."""

    channel: str
    measured_in: str
    row: list[int]
    low: list[float | None]
    high: list[float | None]


@view("/{seat}/rows", "Which rows a window has that is given by dates or durations")
def rows(seat: Here, start: forms.Row | forms.Time, stop: forms.Row | forms.Time | None = None) -> RowsResponse:
    count = seat.asked.rows
    first, last = as_rows(start, stop, seat.calendar, count, seat.plant.dt)
    last = count if last is None else last
    check_window("window", count, first, last)
    return RowsResponse(start=first, stop=last)


@view("/{seat}/log", "The unit's own measurements, thinned")
def log(seat: Here, channel: str, points: Annotated[int, Query(ge=10, le=10_000)] = 800) -> LogResponse:
    if seat.unit is None:
        raise OptionError(seat.refusals["past"])
    unit = seat.parts[seat.unit].unit
    if channel not in unit.output_names:
        raise unknown_name(f"output of unit {unit.name!r}", channel, unit.output_names)
    index = unit.output_names.index(channel)
    column = seat.own_measurements(unit.name)[:, index]
    width = max(1, -(-len(column) // points))
    starts = range(0, len(column), width)
    known = [each[np.isfinite(each)] for each in (column[start : start + width] for start in starts)]
    low, high = ([float(end(each)) if each.size else None for each in known] for end in (np.min, np.max))
    return LogResponse(
        channel=channel, measured_in=unit.outputs[index].unit, row=list(starts), low=low, high=high
    )  # fmt: skip
