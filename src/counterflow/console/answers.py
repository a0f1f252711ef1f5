"""From a question as a page asks it to the library's answer, and to what the page draws of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.console import messages
from counterflow.console.seats import Seat
from counterflow.control import Law, law_from_words
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.plant.calendar import as_rows, as_steps
from counterflow.plant.units import unknown_name
from counterflow.questions.answer import Answer
from counterflow.questions.counterfactual import past_words
from counterflow.questions.phrases import signed, with_verb
from counterflow.questions.question import DRAWN, Form, Moves, Request, envelope

MOST_NUMBERS = 400_000  # of each kind in one answer


@dataclass(frozen=True)
class Answered:
    """What a page draws, and what it was made from."""

    content: dict[str, Any]
    request: Request
    reply: Answer


def answer(seat: Seat, question: type[Request], asked: Any) -> Answered:
    """Ask at a seat."""
    unit = next(getattr(asked, e.name) for e in question.form if e.form in (Form.UNIT, Form.UNITS))
    described = seat.part_of(unit).unit
    seat.refuse(question.tab)
    draw = getattr(asked, "draw", None)
    wanted = [draw] if isinstance(draw, str) else list(dict.fromkeys(draw or ()))
    for name in wanted:
        if name not in described.output_names:
            raise unknown_name(f"output of unit {unit!r}", name, described.output_names)
    given = {entry.name: _read(seat, entry.form, entry.name, asked) for entry in question.form if entry.page}
    if question.drawn == "channels":
        _refuse_too_much(len(wanted) or DRAWN, given)
    request = question.from_form(given, unit)
    reply: Answer = seat.ask(request)
    drawn = wanted or reply.ranked_channels()[:DRAWN]
    sentence = reply.sentence(drawn[0] if question.speaks_of_drawn else None)
    window = reply.window().sentence(drawn[0]) if question.windowed else ""
    content = envelope(question.tab, seat, sentence, reply.caveats) | {"kind": reply.kind, "window": window}
    return Answered(content | reply.view(drawn, seat), request, reply)


def _refuse_too_much(count: int, given: Mapping[str, Any]) -> None:
    rows = given.get("horizon") or (given.get("stop") or 0) - (given.get("start") or 0)
    if count * rows > MOST_NUMBERS:
        raise OptionError(
            f"draw: {count} channels of {rows} rows are more than {MOST_NUMBERS:,} numbers: draw fewer channels, or "
            "ask for fewer rows"
        )


def _read(seat: Seat, form: Form, name: str, asked: Any) -> Any:
    value = getattr(asked, name)
    if form is Form.CHANGES:
        return Moves(_schedules(seat, value, _steps(seat, "horizon", asked.horizon)), _changed(seat, value))
    if form is Form.STEPS:
        return _steps(seat, name, value)
    if form is Form.ROW and isinstance(value, str):
        window = as_rows(asked.start, asked.stop, seat.calendar, seat.asked.rows, seat.plant.dt)
        row = window[name == "stop"]
        if isinstance(row, str):
            raise OptionError(f"{name} is {row[:40]!r}: give a row, a date, or a duration such as '2h'")
        return row
    if form is Form.PAST:
        return _past(seat, value)
    if form is Form.PLAN:
        planned: dict[str, dict[str, float]] = {}
        for plan in value:
            _check_input(seat, plan)
            planned.setdefault(plan.unit, {})[plan.input] = plan.value
        return planned
    if form is Form.LAWS:
        return _laws(seat, value)
    if form is Form.LEVERS:
        using: dict[str, list[str]] = {}
        for lever in value:
            using.setdefault(lever.unit, []).extend(lever.inputs)
        return using
    return value


def _laws(seat: Seat, others: Sequence[messages.OtherLaw]) -> dict[str, dict[str, Law]]:
    """{unit: {input: law}}; a unit's seat changes its own controllers only."""
    found: dict[str, dict[str, Law]] = {}
    for other in others:
        _check_input(seat, other)
        if other.unit != seat.unit:
            raise PrivacyError(f"the controllers of {other.unit!r} are tuned at its own seat, not at this one")
        found.setdefault(other.unit, {})[other.input] = law_from_words(other.law)
    return found


def _steps(seat: Seat, name: str, value: Any) -> Any:
    """A number of steps, or a duration."""
    steps = as_steps(value, seat.plant.dt, name)
    if isinstance(steps, str):
        raise OptionError(f"{name} is {steps[:40]!r}: give a number of steps, or a duration such as '2h'")
    if isinstance(steps, int) and steps > messages.MOST_STEPS:
        raise OptionError(f"{name}: {steps} steps are more than {messages.MOST_STEPS:,}: ask for a shorter time")
    return steps


def _check_input(
    seat: Seat, named: messages.InputChange | messages.PastChange | messages.Planned | messages.OtherLaw
) -> str:
    """The input's unit of measure."""
    unit = seat.plant.unit(named.unit)
    if named.input not in unit.input_names:
        raise unknown_name(f"input of unit {named.unit!r}", named.input, unit.input_names)
    return unit.inputs[unit.input_names.index(named.input)].unit


# ---- changes from now on


def _schedules(seat: Seat, changes: Sequence[messages.InputChange], horizon: int) -> dict[str, dict[str, FloatArray]]:
    """{unit: {input: one number a step}}; the same input twice adds up."""
    out: dict[str, dict[str, FloatArray]] = {}
    for change in changes:
        _check_input(seat, change)
        series = out.setdefault(change.unit, {})
        drawn = _shape(change, horizon)
        series[change.input] = series[change.input] + drawn if change.input in series else drawn
    return out


def _shape(change: messages.InputChange, horizon: int) -> FloatArray:
    where = f"unit {change.unit!r}, input {change.input!r}"
    out = np.zeros(horizon)
    if change.shape == "series":
        if change.values is None:
            raise DataError(f"{where}: shape 'series' needs values, one a step")
        if len(change.values) > horizon:
            raise DataError(
                f"{where}: {len(change.values)} values are more than the {horizon} steps of the horizon: ask for more "
                "steps, or give fewer values"
            )
        out[: len(change.values)] = change.values
        return out
    if change.values is not None:
        raise DataError(f"{where}: values go with shape 'series', not with {change.shape!r}")
    length = change.length
    if change.shape != "step" and length is None:
        raise DataError(f"{where}: shape {change.shape!r} needs a length")
    if change.shape == "ramp":
        assert length is not None
        rise = np.arange(1, horizon - change.start + 1) / length
        out[change.start :] = change.size * np.minimum(rise, 1.0)
    else:
        stop = None if change.shape == "step" or length is None else change.start + length
        out[change.start : stop] = change.size
    return out


def _changed(seat: Seat, changes: Sequence[messages.InputChange]) -> str:
    """The changes in words: "boiler fuel were +5 % for 10 steps and boiler air -1 % from now on"."""
    dt, words = seat.plant.dt, []
    for change in changes:
        size = signed(change.size, _check_input(seat, change))
        after = f" after {wording.span(change.start, dt)}" if change.start else ""
        if change.shape == "series":
            when = f"changed as given for {wording.span(len(change.values or ()), dt)}"
        elif change.shape == "pulse":
            when = f"{size} for {wording.span(change.length or 1, dt)}{after}"
        elif change.shape == "ramp":
            verb = "raised" if change.size >= 0 else "lowered"
            when = f"{verb} to {size} over {wording.span(change.length or 1, dt)}{after}"
        else:
            when = f"{size}{after or ' from now on'}"
        words.append((f"{change.unit} {change.input}", when))
    return with_verb(words, "were")


# ---- changes of the past


def _past(seat: Seat, changes: Sequence[messages.PastChange]) -> Moves:
    do: dict[str, dict[str, Any]] = {}
    add: dict[str, dict[str, Any]] = {}
    words = []
    for change in changes:
        _check_input(seat, change)
        into = do if change.mode == "set" else add
        if any(change.input in whole.get(change.unit, {}) for whole in (do, add)):
            raise OptionError(f"unit {change.unit!r}, input {change.input!r}: it is changed twice; change it once")
        value = change.value if change.values is None else change.values
        into.setdefault(change.unit, {})[change.input] = value
        words.append((change.unit, change.input, change.mode == "add", value))
    return Moves(do, past_words(seat.plant, words) if words else "", add)
