"""``counterflow whatif``: the effect of a change, or what would have happened in rows that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.cli import asking, output
from counterflow.cli.output import Format
from counterflow.errors import DataError, OptionError
from counterflow.questions.answers import Trajectory
from counterflow.report import telling
from counterflow.report.telling import Asked, Changes, Peak

if TYPE_CHECKING:
    import polars

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
    fit: Asked,
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
        what = telling.moves(fit, held, "were")
        if duration is None or duration >= horizon:
            when = "from now on"
        else:
            when = f"for {wording.span(duration, fit.plant.dt)}"
    else:
        if duration is not None:
            raise OptionError("--duration goes with --change; a schedule says itself how long it lasts.")
        held, horizon, rows = _padded(asking.schedule_given(fit, schedule, causes), horizon)
        what = f"{wording.listed(list(held))} inputs were"
        when = f"changed as in {schedule.name} for {wording.span(rows, fit.plant.dt)}"
    _each_cause_moves(causes, held)
    answer = fit.effect(list(held), unit, held, horizon, duration, level)
    found = telling.peaks(fit, unit, answer.mean, answer.lower, answer.upper)
    sentence = f"If {what} {when}, {telling.would(found[0], answer.level, fit.plant.dt)}"
    notes = telling.caveats(fit, answer.caveats)
    told = {
        **telling.envelope("whatif", fit, sentence, notes),
        "kind": "effect",
        "causes": list(held),
        "effect": unit,
        "change": {cause: dict(channels) for cause, channels in held.items()},
        "horizon": horizon,
        "duration": duration,
        "level": answer.level,
        "channels": telling.channels_json(described.outputs),
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
    add: Changes | None = None
    if schedule is not None:
        do: Changes = asking.schedule_given(fit, schedule, causes)
        rows = len(next(iter(next(iter(do.values())).values())))
        if rows != end - start:
            raise DataError(f"{schedule.name} has {rows} rows, but rows {start} to {end - 1} are {end - start}.")
        what = f"{wording.listed(list(do))} inputs been as in {schedule.name}"
    elif change:
        asked = asking.inputs_given(fit, "--change", change, causes)
        do, add = asked, asked
        what = telling.shifts(fit, asked, "been")
    else:
        do, what = set_in_the_past(fit, set_to, causes)
    _each_cause_moves(causes, do)
    answers = fit.counterfactual(recording, None if add else do, start, end, level, add=add)
    wanted = [unit] if unit is not None else list(fit.names)
    past_of(
        fit, {name: answers[name] for name in wanted}, do, what, start, end,
        unit=unit, answer_format=answer_format, out=out, force=force,
    )  # fmt: skip


def past_of(
    fit: Asked,
    answers: Mapping[str, Trajectory],
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
    found = [peak for name in wanted for peak in telling.past_peaks(fit, answers[name])]
    others = [peak for peak in found if peak.unit not in do] or found
    found.sort(key=lambda peak: -peak.size)
    head = max(others, key=lambda peak: peak.size)
    world = answers[head.unit]
    sentence = telling.would_have(fit, what, start, end, head, world.level)
    notes = telling.caveats(fit, [text for name in wanted for text in answers[name].caveats])
    told = {
        **telling.envelope("whatif", fit, sentence, notes),
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
                "channels": telling.channels_json(fit.plant.unit(name).outputs),
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


def set_in_the_past(fit: Asked, set_to: Sequence[str], causes: Sequence[str]) -> tuple[Changes, str]:
    """Inputs that replace what was recorded, and how to say that."""
    do: Changes = asking.inputs_given(fit, "--set", set_to, causes)
    return do, telling.moves(fit, do, "been", sign=False)


def trajectories_frame(answers: Mapping[str, Trajectory], names: Sequence[str]) -> polars.DataFrame:
    """All units' trajectories below each other."""
    import polars

    frames = []
    for name in names:
        frame = answers[name].to_frame()
        frames.append(frame.select(polars.lit(name).alias("unit"), polars.all()))
    return polars.concat(frames)


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
