"""From a question as it is asked to the library's answer, and from that to what is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.console import messages
from counterflow.console.describing import number, numbers, output_index
from counterflow.console.seats import Seat
from counterflow.errors import DataError, OptionError
from counterflow.plant import Channel
from counterflow.plant.units import unknown_name
from counterflow.questions.answers import Attribution, Effect, Paths, Restoration, Trajectory
from counterflow.report import telling
from counterflow.report.telling import Peak

DRAWN = 4  # channels, if the asker does not choose
MOST_NUMBERS = 400_000  # of each kind in one answer
RECENT = 200  # rows of the past that are shown with a forecast
Schedules = dict[str, dict[str, FloatArray]]


@dataclass(frozen=True)
class Answered:
    """What is told, and what it was told from."""

    told: messages.AnyAnswer
    question: str  # in words
    found: Effect | Paths | Trajectory | Attribution | Restoration
    way: Effect | None = None  # of a restoration: what holding its change does


# ---- effects


def schedules(seat: Seat, asked: messages.AskPaths) -> Schedules:
    """{unit: {input: one number a step}}; the same input twice adds up."""
    out: Schedules = {}
    for change in asked.changes:
        _check_input(seat, change)
        series = out.setdefault(change.unit, {})
        drawn = _shape(change, asked.horizon)
        series[change.input] = series[change.input] + drawn if change.input in series else drawn
    return out


def _check_input(seat: Seat, named: messages.InputChange | messages.PastChange | messages.Planned) -> None:
    unit = seat.plant.unit(named.unit)
    if named.input not in unit.input_names:
        raise unknown_name(f"input of unit {named.unit!r}", named.input, unit.input_names)


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


def effect(seat: Seat, asked: messages.AskEffect) -> Answered:
    wanted, held = _wanted(seat, asked.effect, asked.draw, asked.horizon), schedules(seat, asked)
    found = seat.effect(list(held), asked.effect, held, asked.horizon, None, asked.level)
    peaks = telling.peaks(seat, asked.effect, found.mean, found.lower, found.upper)
    changed = _changed(seat, asked)
    sentence = f"If {changed}, {telling.would(peaks[0], found.level, seat.plant.dt)}"
    told = messages.EffectTold(
        **_envelope("effect", seat, sentence, found.caveats),
        kind="effect",
        causes=list(held),
        effect=asked.effect,
        horizon=asked.horizon,
        level=found.level,
        most_affected=[_peak(peak, steps=peak.row + 1) for peak in peaks],
        drawn=_effects(seat, found, _chosen(seat, peaks, wanted)),
        inputs=[
            messages.ScheduleTold(
                unit=name,
                input=channel,
                measured_in=telling.input_channel(seat, name, channel).unit,
                values=numbers(values),
            )
            for name, channels in held.items()
            for channel, values in channels.items()
        ],
    )
    return Answered(told, f"If {changed}: what would {asked.effect} do?", found)


def paths(seat: Seat, asked: messages.AskPaths) -> Answered:
    wanted, held = _wanted(seat, asked.effect, asked.draw, asked.horizon), schedules(seat, asked)
    if len(held) != 1:
        raise OptionError(f"paths: one unit's inputs are changed at a time, got those of {', '.join(held)}")
    ((cause, change),) = held.items()
    found = seat.paths(cause, asked.effect, change, asked.horizon)
    peaks = telling.peaks(seat, asked.effect, found.total, None, None)
    index = _chosen(seat, peaks, wanted)[0]
    channel = seat.parts[asked.effect].unit.outputs[index]
    row = int(np.abs(found.total[:, index]).argmax())
    ways = {"directly": found.direct, **{f"through {name}": values for name, values in found.through.items()}}
    largest = sorted(ways, key=lambda way: -abs(float(ways[way][row, index])))
    listed = wording.listed([f"{way} {_sized(ways[way][row, index], channel)}" for way in largest])
    sentence = (
        f"After {wording.span(row + 1, seat.plant.dt)}, {cause} moves {asked.effect} {channel.name} by "
        f"{_sized(found.total[row, index], channel)}: {listed}."
    )
    told = messages.PathsTold(
        **_envelope("paths", seat, sentence, found.caveats),
        kind="paths",
        cause=cause,
        effect=asked.effect,
        channel=channel.name,
        measured_in=channel.unit,
        total=numbers(found.total[:, index]),
        direct=numbers(found.direct[:, index]),
        through=[messages.Way(unit=name, values=numbers(v[:, index])) for name, v in found.through.items()],
    )
    return Answered(told, f"Which ways does an effect of {cause} on {asked.effect} take?", found)


def _sized(value: float, channel: Channel) -> str:
    return wording.quantity(wording.number(float(value), sign=True), channel.unit)


def _changed(seat: Seat, asked: messages.AskPaths) -> str:
    """The changes in words: "boiler fuel were +5 % for 10 steps and boiler air -1 % from now on"."""
    dt, words = seat.plant.dt, []
    for change in asked.changes:
        size = wording.quantity(
            wording.exact(change.size, sign=True), telling.input_channel(seat, change.unit, change.input).unit
        )
        after = f" after {wording.span(change.start, dt)}" if change.start else ""
        if change.shape == "series":
            when = f"changed as given for {wording.span(len(change.values or ()), dt)}"
        elif change.shape == "pulse":
            when = f"{size} for {wording.span(change.length or 1, dt)}{after}"
        elif change.shape == "ramp":
            when = f"raised to {size} over {wording.span(change.length or 1, dt)}{after}"
            when = when if change.size >= 0 else when.replace("raised", "lowered", 1)
        else:
            when = f"{size}{after or ' from now on'}"
        words.append((f"{change.unit} {change.input}", when))
    return telling.with_verb(words, "were")


def _effects(seat: Seat, found: Effect, chosen: Sequence[int]) -> list[messages.EffectTrajectory]:
    outputs = seat.parts[found.effect].unit.outputs
    expected = seat.baseline(found.effect, len(found.mean))
    return [
        messages.EffectTrajectory(
            **_trajectory(outputs[k], found.mean, found.lower, found.upper, k),
            baseline=None if expected is None else numbers(expected.mean[:, k]),
        )
        for k in chosen
    ]


# ---- the past


def past(seat: Seat, asked: messages.AskPast) -> Answered:
    seat.own_measurements(asked.unit)
    wanted = _wanted(seat, asked.unit, asked.draw, asked.stop - asked.start)
    do: dict[str, dict[str, Any]] = {}
    add: dict[str, dict[str, Any]] = {}
    for change in asked.changes:
        _check_input(seat, change)
        into = do if change.mode == "set" else add
        if any(change.input in whole.get(change.unit, {}) for whole in (do, add)):
            raise OptionError(f"unit {change.unit!r}, input {change.input!r}: it is changed twice; change it once")
        into.setdefault(change.unit, {})[change.input] = change.value if change.values is None else change.values
    found = seat.counterfactual(asked.unit, do, add, asked.start, asked.stop, asked.level)
    peaks = telling.past_peaks(seat, found)
    had = _had(seat, asked)
    sentence = telling.would_have(seat, had, asked.start, asked.stop, peaks[0], found.level)
    outputs = seat.parts[asked.unit].unit.outputs
    told = messages.PastTold(
        **_envelope("past", seat, sentence, found.caveats),
        kind="counterfactual",
        unit=asked.unit,
        start=asked.start,
        stop=asked.stop,
        level=found.level,
        most_affected=[_peak(peak, row=peak.row) for peak in peaks],
        drawn=[
            messages.PastTrajectory(
                **_trajectory(outputs[k], found.mean, found.lower, found.upper, k),
                factual=numbers(found.factual[:, k]),
            )
            for k in _chosen(seat, peaks, wanted)
        ],
    )
    question = f"Had {had} in rows {asked.start} to {asked.stop - 1}: what would {asked.unit} have done?"
    return Answered(told, question, found)


def _had(seat: Seat, asked: messages.AskPast) -> str:
    words = []
    for change in asked.changes:
        unit = telling.input_channel(seat, change.unit, change.input).unit
        if change.values is not None:
            how = "as given" if change.mode == "set" else "changed as given"
        elif change.mode == "set":
            how = wording.quantity(wording.exact(change.value), unit)
        else:
            size = wording.quantity(wording.exact(abs(change.value)), unit)
            how = f"{size} {'lower' if change.value < 0 else 'higher'}"
        words.append((f"{change.unit} {change.input}", how))
    return telling.with_verb(words, "been")


def explain(seat: Seat, asked: messages.AskExplain) -> Answered:
    found = seat.attribute(asked.unit, asked.start, asked.stop)
    unit = seat.parts[asked.unit].unit
    means = telling.Departures.of(seat, found)
    index = means.order[0] if asked.draw is None else output_index(unit, asked.draw)
    label = {name: telling.share_label(asked.unit, name) for name in found.shares}
    told = messages.ExplainTold(
        **_envelope("explain", seat, means.sentence(seat, found, unit.outputs[index]), found.caveats),
        kind="attribution",
        unit=asked.unit,
        start=asked.start,
        stop=asked.stop,
        ranked=[
            messages.DepartureTold(
                channel=unit.outputs[k].name,
                measured_in=unit.outputs[k].unit,
                departure=number(means.total[k]),
                shares=[
                    messages.ShareTold(name=name, label=label[name], value=number(value))
                    for name, value in means.ranked(k)
                ],
            )
            for k in means.order
        ],
        drawn=messages.SharesDrawn(
            channel=unit.outputs[index].name,
            measured_in=unit.outputs[index].unit,
            baseline=numbers(np.broadcast_to(found.baseline, found.departure.shape)[:, index]),
            departure=numbers(found.departure[:, index]),
            shares=[
                messages.ShareSeries(name=name, label=label[name], values=numbers(share[:, index]))
                for name, share in found.shares.items()
            ],
        ),
    )
    return Answered(told, f"Who moved {asked.unit} in rows {asked.start} to {asked.stop - 1}?", found)


# ---- what to do, and what comes


def restore(seat: Seat, asked: messages.AskRestore) -> Answered:
    using: dict[str, list[str]] = {}
    for lever in asked.using:
        using.setdefault(lever.unit, []).extend(lever.inputs)
    found = seat.restore(asked.unit, asked.target, using, asked.horizon)
    change = {cause: dict(channels) for cause, channels in found.change.items()}
    way = seat.effect(list(change), asked.unit, change, asked.horizon, None, 0.95)
    unit = seat.parts[asked.unit].unit
    measures = {channel.name: channel.unit for channel in unit.outputs}
    told = messages.RestoreTold(
        **_envelope("restore", seat, telling.to_restore(seat, found), (*found.caveats, *way.caveats)),
        kind="restoration",
        unit=asked.unit,
        feasible=found.feasible,
        horizon=asked.horizon,
        change=[
            messages.LeverTold(unit=cause, input=channel.name, measured_in=channel.unit, change=value)
            for cause, channel, value in telling.held_changes(seat, found)
        ],
        channels=[
            messages.ReachedTold(channel=name, measured_in=measures[name], target=float(aim), reached=float(end))
            for name, aim, end in zip(found.channels, found.target, found.reached, strict=True)
        ],
        drawn=_effects(seat, way, [output_index(unit, name) for name in found.channels]),
    )
    after = wording.span(asked.horizon, seat.plant.dt)
    return Answered(told, f"What would move {asked.unit} {telling.targets(seat, found)} after {after}?", found, way)


def forecast(seat: Seat, asked: messages.AskForecast) -> Answered:
    wanted = _wanted(seat, asked.unit, asked.draw, asked.horizon)
    planned: dict[str, dict[str, float]] = {}
    for plan in asked.plan:
        _check_input(seat, plan)
        planned.setdefault(plan.unit, {})[plan.input] = plan.value
    found = seat.forecast(asked.unit, asked.horizon, planned or None, asked.level)
    outputs = seat.parts[asked.unit].unit.outputs
    y = np.empty((0, len(outputs))) if isinstance(seat.measured, str) else seat.own_measurements(asked.unit)
    latest = telling.last_measured(y)
    order = telling.outlook(seat, found)
    chosen = order[:DRAWN] if wanted is None else wanted
    first = max(0, len(y) - RECENT)
    told = messages.ForecastTold(
        **_envelope("forecast", seat, telling.will_be(seat, found, chosen[0], planned), found.caveats),
        kind="forecast",
        unit=asked.unit,
        horizon=asked.horizon,
        first_row=found.first,
        level=found.level,
        drawn=[
            messages.ForecastTrajectory(
                **_trajectory(outputs[k], found.mean, found.lower, found.upper, k),
                recent=messages.Recent(row=list(range(first, len(y))), value=numbers(y[first:, k])),
            )
            for k in chosen
        ],
        ranked=[
            messages.ForecastEnd(
                channel=outputs[k].name, measured_in=outputs[k].unit, last_measured=number(latest[k]),
                next=number(found.mean[0, k]), end=number(found.mean[-1, k]),
                lower=number(telling.ends(found, -1, k)[0]), upper=number(telling.ends(found, -1, k)[1]),
            )
            for k in order
        ],
    )  # fmt: skip
    return Answered(told, f"What will {asked.unit} do next?", found)


# ---- what they share

ASK: dict[str, Callable[[Seat, Any], Answered]] = {
    "effect": effect,
    "paths": paths,
    "past": past,
    "explain": explain,
    "restore": restore,
    "forecast": forecast,
}


def _envelope(command: str, seat: Seat, sentence: str, caveats: Sequence[str]) -> messages.Content:
    return telling.envelope(command, seat, sentence, telling.caveats(seat, caveats))


def _peak(peak: Peak, **when: int) -> messages.PeakTold:
    return messages.PeakTold(
        unit=peak.unit,
        channel=peak.channel.name,
        measured_in=peak.channel.unit,
        mean=peak.value,
        lower=number(peak.lower),
        upper=number(peak.upper),
        size=peak.size,
        last=number(peak.last),
        **when,
    )


def _wanted(seat: Seat, unit: str, draw: Sequence[str] | None, rows: int) -> list[int] | None:
    """Indices of the channels that the asker wants drawn, None if that is left to us; asked before anything is done."""
    described = seat.part(unit).unit
    count = DRAWN if not draw else len(set(draw))
    if count * rows > MOST_NUMBERS:
        raise OptionError(
            f"draw: {count} channels of {rows} rows are more than {MOST_NUMBERS:,} numbers: draw fewer channels, or "
            "ask for fewer rows"
        )
    return [output_index(described, name) for name in dict.fromkeys(draw)] if draw else None


def _chosen(seat: Seat, peaks: Sequence[Peak], wanted: list[int] | None) -> list[int]:
    """Indices of the channels to draw: as the asker says, or the most affected."""
    if wanted is not None:
        return wanted
    return [output_index(seat.parts[peak.unit].unit, peak.channel.name) for peak in peaks[:DRAWN]]


def _trajectory(
    channel: Channel, mean: FloatArray, lower: FloatArray | None, upper: FloatArray | None, k: int
) -> messages.Content:
    return {
        "channel": channel.name,
        "measured_in": channel.unit,
        "mean": numbers(mean[:, k]),
        "lower": None if lower is None else numbers(lower[:, k]),
        "upper": None if upper is None else numbers(upper[:, k]),
    }
