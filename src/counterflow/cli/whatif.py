"""``counterflow whatif``: the effect of a change, or what would have happened in rows that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import runtime
from counterflow.cli import asking, output, wording
from counterflow.cli.asking import Peak
from counterflow.cli.output import Format
from counterflow.errors import DataError, OptionError
from counterflow.plant import Recording

if TYPE_CHECKING:
    import polars

FloatArray = NDArray[np.float64]
Changes = Mapping[str, Mapping[str, Any]]
HORIZON = 50  # steps
EITHER = "give either --change channel=number, once or more, or --schedule FILE."


def effect(
    directory: Path,
    *,
    causes: Sequence[str],
    unit: str | None,
    change: Sequence[str],
    schedule: Path | None,
    horizon: int | None,
    duration: int | None,
    level: float,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """What would happen."""
    output.check_kind(out, ("json", "csv", "png"), force)
    if unit is None:
        raise OptionError("--effect is missing: name the unit whose outputs are asked about.")
    if bool(change) == (schedule is not None):
        raise OptionError(EITHER)
    effect_of(
        asking.load_fit(directory), causes=causes, unit=unit, change=change, schedule=schedule, horizon=horizon,
        duration=duration, level=level, answer_format=answer_format, out=out, force=force,
    )  # fmt: skip


def effect_of(
    fit: asking.Asked,
    *,
    causes: Sequence[str],
    unit: str,
    change: Sequence[str],
    schedule: Path | None,
    horizon: int | None,
    duration: int | None,
    level: float,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """What would happen, whoever is asked."""
    for name in causes:
        fit.plant.unit(name)
    described = fit.plant.unit(unit)
    if schedule is None:
        held: Changes = asking.inputs_given(fit, "--change", change, causes)
        horizon = HORIZON if horizon is None else horizon
        what = _listed_changes(fit, held)
        if duration is None or duration >= horizon:
            when = "from now on"
        else:
            when = f"for {wording.span(duration, fit.plant.dt)}"
    else:
        if duration is not None:
            raise OptionError("--duration goes with --change; a schedule says itself how long it lasts.")
        held, horizon, rows = _padded(asking.schedule_given(fit, schedule, causes), horizon)
        what = f"{wording.listed(list(held))} inputs"
        when = f"changed as in {schedule.name} for {wording.span(rows, fit.plant.dt)}"
    _each_cause_moves(causes, held)
    answer = fit.effect(list(held), unit, held, horizon, duration, level)
    found = asking.peaks(fit, unit, answer.mean, answer.lower, answer.upper)
    sentence = f"If {what} were {when}, " if schedule else f"If {_were(what)} {when}, "
    sentence += _would(found[0], answer.level, fit.plant.dt)
    notes = asking.caveats(fit, answer.caveats)
    told = {
        **asking.envelope("whatif", fit, sentence, notes),
        "kind": "effect",
        "causes": list(held),
        "effect": unit,
        "change": {cause: dict(channels) for cause, channels in held.items()},
        "horizon": horizon,
        "duration": duration,
        "level": answer.level,
        "channels": asking.channels_json(described.outputs),
        "most_affected": [_peak_json(peak) for peak in found],
        "mean": answer.mean,
        "lower": answer.lower,
        "upper": answer.upper,
        "states": answer.states,
    }
    output.write_answer(out, force, told, answer.to_frame, answer.plot)
    if answer_format is Format.json:
        print(output.as_json(told))
        return
    output.show_text(sentence)
    _show_peaks(f"{unit}: the channels that move most", found, answer.level, "after", 1)
    output.show_notes(notes)
    _say_written(out)


def counterfactual(
    directory: Path,
    *,
    recording_file: Path,
    causes: Sequence[str],
    unit: str | None,
    change: Sequence[str],
    set_to: Sequence[str],
    schedule: Path | None,
    start: int,
    stop: int | None,
    level: float,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """What would have happened."""
    output.check_kind(out, ("json", "csv", "png"), force)
    if sum((bool(change), bool(set_to), schedule is not None)) != 1:
        raise OptionError("give one of --set channel=number, --change channel=number, or --schedule FILE.")
    fit = asking.load_fit(directory)
    for name in [*causes, *([unit] if unit is not None else [])]:
        fit.plant.unit(name)
    recording = asking.load_recording(fit, recording_file)
    end = recording.rows if stop is None else stop
    if not 0 <= start < end <= recording.rows:
        raise OptionError(
            f"--start and --stop must be rows with 0 <= start < stop <= {recording.rows}, got {start} and {end}."
        )
    if schedule is not None:
        do: Changes = asking.schedule_given(fit, schedule, causes)
        rows = len(next(iter(next(iter(do.values())).values())))
        if rows != end - start:
            raise DataError(f"{schedule.name} has {rows} rows, but rows {start} to {end - 1} are {end - start}.")
        what = f"{wording.listed(list(do))} inputs been as in {schedule.name}"
    elif change:
        asked = asking.inputs_given(fit, "--change", change, causes)
        do = {name: _added(recording, name, channels, start, end) for name, channels in asked.items()}
        what = " been ".join(_listed_changes(fit, asked, past=True).split("\0"))
    else:
        do, what = set_in_the_past(fit, set_to, causes)
    _each_cause_moves(causes, do)
    answers = fit.counterfactual(recording, do, start, end, level)
    wanted = [unit] if unit is not None else list(fit.names)
    past_of(
        fit, {name: answers[name] for name in wanted}, do, what, start, end,
        unit=unit, answer_format=answer_format, out=out, force=force,
    )  # fmt: skip


def past_of(
    fit: asking.Asked,
    answers: Mapping[str, runtime.Trajectory],
    do: Changes,
    what: str,
    start: int,
    end: int,
    *,
    unit: str | None,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """Say what would have happened, whoever was asked."""
    wanted = list(answers)
    found: list[Peak] = []
    for name in wanted:
        world = answers[name]
        lower, upper = (None if end is None else end - world.factual for end in (world.lower, world.upper))
        for peak in asking.peaks(fit, name, world.mean - world.factual, lower, upper):
            found.append(replace(peak, row=start + peak.row))
    others = [peak for peak in found if peak.unit not in do] or found
    found.sort(key=lambda peak: -peak.size)
    head = max(others, key=lambda peak: peak.size)
    world = answers[head.unit]
    sign, by = head.sentence(world.level)
    sentence = (
        f"Had {what} in rows {start} to {end - 1}, {head.unit} {head.channel.name} would have been "
        f"{'lower' if sign < 0 else 'higher'} by {by} in row {head.row}."
        if head.size > 0
        else f"Had {what} in rows {start} to {end - 1}, nothing would have changed there."
    )
    notes = asking.caveats(fit, [text for name in wanted for text in answers[name].caveats])
    told = {
        **asking.envelope("whatif", fit, sentence, notes),
        "kind": "counterfactual",
        "causes": list(do),
        "effect": unit,
        "change": {cause: dict(channels) for cause, channels in do.items()},
        "start": start,
        "stop": end,
        "level": world.level,
        "most_affected": [peak.as_json() for peak in found],
        "units": {
            name: {
                "channels": asking.channels_json(fit.plant.unit(name).outputs),
                "factual": answers[name].factual,
                "mean": answers[name].mean,
                "lower": answers[name].lower,
                "upper": answers[name].upper,
            }
            for name in wanted
        },
    }
    output.write_answer(out, force, told, lambda: trajectories_frame(answers, wanted), world.plot)
    if answer_format is Format.json:
        print(output.as_json(told))
        return
    output.show_text(sentence)
    _show_peaks("what would have differed most", found, world.level, "in row", 0)
    output.show_notes(notes)
    _say_written(out)


def set_in_the_past(fit: asking.Asked, set_to: Sequence[str], causes: Sequence[str]) -> tuple[Changes, str]:
    """Inputs that replace what was recorded, and how to say that."""
    do: Changes = asking.inputs_given(fit, "--set", set_to, causes)
    return do, " been ".join(_listed_changes(fit, do, sign=False).split("\0"))


def trajectories_frame(answers: Mapping[str, runtime.Trajectory], names: Sequence[str]) -> polars.DataFrame:
    """All units' trajectories below each other."""
    import polars

    frames = []
    for name in names:
        frame = answers[name].to_frame()
        frames.append(frame.select(polars.lit(name).alias("unit"), polars.all()))
    return polars.concat(frames)


def _added(
    recording: Recording, name: str, channels: Mapping[str, float], start: int, stop: int
) -> dict[str, FloatArray]:
    part = recording[name]
    return {
        channel: part.u[start:stop, part.unit.input_names.index(channel)] + number
        for channel, number in channels.items()
    }


def _padded(series: Mapping[str, Mapping[str, FloatArray]], horizon: int | None) -> tuple[Changes, int, int]:
    """A schedule as long as the horizon: zero after its end."""
    rows = max(len(column) for channels in series.values() for column in channels.values())
    steps = max(HORIZON, rows) if horizon is None else horizon
    if rows > steps:
        raise DataError(f"the schedule has {rows} rows, more than --horizon {steps}: give a longer horizon.")
    padded = {
        name: {channel: np.concatenate([column, np.zeros(steps - rows)]) for channel, column in channels.items()}
        for name, channels in series.items()
    }
    return padded, steps, rows


def _each_cause_moves(causes: Sequence[str], held: Changes) -> None:
    for name in causes:
        if name not in held:
            raise OptionError(f"--cause {name}: nothing is changed there; give {name}.CHANNEL=number, or leave it out.")


def _listed_changes(fit: asking.Asked, held: Changes, sign: bool = True, past: bool = False) -> str:
    """ "boiler valve<NUL>+0.1 %, boiler speed -2 rpm": NUL stands where the verb goes."""
    words = []
    for name, channels in held.items():
        unit = fit.plant.unit(name)
        for channel, value in channels.items():
            measured_in = unit.inputs[unit.input_names.index(channel)].unit
            size = wording.quantity(wording.exact(abs(value) if past else value, sign and not past), measured_in)
            words.append(f"{name} {channel}\0{size}" + (past * (" lower" if value < 0 else " higher")))
    first, *rest = words
    return wording.listed([first, *(word.replace("\0", " ") for word in rest)])


def _were(what: str) -> str:
    return " were ".join(what.split("\0"))


def _would(peak: Peak, level: float | None, dt: float) -> str:
    if peak.size == 0:
        return f"nothing would change at {peak.unit}."
    sign, by = peak.sentence(level)
    verb = "fall" if sign < 0 else "rise"
    return f"{peak.unit} {peak.channel.name} would {verb} by {by} after {wording.span(peak.row + 1, dt)}."


def _peak_json(peak: Peak) -> dict[str, Any]:
    told = peak.as_json()
    told["steps"] = told.pop("row") + 1
    return told


def _show_peaks(title: str, found: Sequence[Peak], level: float | None, when: str, first: int) -> None:
    several = len({peak.unit for peak in found}) > 1
    columns = [*(["unit"] if several else []), "channel", "largest change"]
    columns += [f"{wording.percent(level)} interval"] if level is not None else []
    columns += [when, *([] if several else ["at the end"]), "× noise"]
    rows = []
    for peak in found[: asking.MOST_ROWS]:
        value, interval = wording.measured(peak.value, peak.lower, peak.upper, peak.channel.unit, sign=True)
        cells = [*([peak.unit] if several else []), peak.channel.name, value]
        cells += [interval] if level is not None else []
        cells += [str(peak.row + first), *([] if several else [wording.number(peak.last, sign=True)])]
        rows.append([*cells, wording.number(peak.size)])
    output.show_table(title, columns, rows, left=2 if several else 1)
    if len(found) > asking.MOST_ROWS:
        output.show_text(f"and {len(found) - asking.MOST_ROWS} more channels; all of them with --format json")


def _say_written(out: Path | None) -> None:
    if out is not None:
        output.show_text("")
        output.show_text(f"written: {out}")
