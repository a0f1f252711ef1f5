"""``counterflow explain``, ``restore``, ``forecast`` and ``graph``: the other questions to a fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from counterflow import wording
from counterflow.cli import asking, output
from counterflow.cli.output import Format
from counterflow.cli.whatif import trajectories_frame
from counterflow.errors import OptionError
from counterflow.fits.fit import Fit
from counterflow.plant.units import unknown_name
from counterflow.report import telling
from counterflow.report.graph import kind_of

if TYPE_CHECKING:
    import polars



# ---- explain


def explain(
    directory: Path,
    *,
    recording_file: Path,
    unit: str,
    start: int,
    stop: int | None,
    channels: Sequence[str],
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """Who moved a unit's outputs."""
    output.check_kind(out, ("json", "csv", "png"), force)
    fit = asking.load_fit(directory)
    described = fit.plant.unit(unit)
    for name in channels:
        if name not in described.output_names:
            raise unknown_name(f"output of unit {unit!r}", name, described.output_names)
    recording = asking.load_recording(fit, recording_file)
    answer = fit.attribute(recording, unit, start, stop)
    found = telling.Departures.of(fit, answer)
    total, means = found.total, found.shares
    order = [described.output_names.index(name) for name in channels] or list(found.order)
    last = start + len(answer.departure) - 1
    sentence = found.sentence(fit, answer, described.outputs[order[0]])
    notes = telling.caveats(fit, answer.caveats)
    told = {
        **telling.envelope("explain", fit, sentence, notes),
        "unit": unit,
        "start": start,
        "stop": last + 1,
        "channels": telling.channels_json(described.outputs),
        "most_departed": [described.outputs[k].name for k in order],
        "mean_departure": total,
        "mean_shares": means,
        "baseline": answer.baseline,
        "departure": answer.departure,
        "shares": dict(answer.shares),
    }
    output.write_answer(out, force, told, answer.to_frame, answer.plot)
    if answer_format is Format.json:
        print(output.as_json(told))
        return
    output.show_text(sentence)
    names = list(means)
    rows = []
    for k in order[: len(channels) or asking.MOST_ROWS]:
        channel = described.outputs[k]
        digits = wording.decimals(float(total[k]))
        label = f"{channel.name} [{channel.unit}]" if channel.unit else channel.name
        cells = [wording.number(float(value), digits, sign=True) for value in (total[k], *(means[n][k] for n in names))]
        rows.append([label, *cells])
    columns = ["channel", "departure", *(f"{n} inputs" if n in fit.names else n for n in names)]
    output.show_table(f"{unit}: means over rows {start} to {last}, against the usual level", columns, rows)
    output.show_notes(notes)
    _say_written(out)


# ---- restore


def restore(
    directory: Path,
    *,
    unit: str,
    target: Sequence[str],
    using: Sequence[str],
    horizon: int,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """Which change of inputs would move a unit's outputs so far; exit code 5 if none within the limits does."""
    output.check_kind(out, ("json", "csv"), force)
    fit = asking.load_fit(directory)
    described = fit.plant.unit(unit)
    wanted: dict[str, float] = {}
    for text in target:
        name, value = asking.assignment("--target", text)
        if name not in described.output_names:
            name = name.removeprefix(f"{unit}.")
        if name not in described.output_names:
            raise unknown_name(f"output of unit {unit!r}", name, described.output_names)
        if name in wanted:
            raise OptionError(f"--target: {name} is given twice; give it once.")
        wanted[name] = value
    answer = fit.restore(unit, wanted, _levers(fit, using), horizon)
    units = {channel.name: channel.unit for channel in described.outputs}
    held = telling.held_changes(fit, answer)
    moves = [(cause, channel.name, value, channel.unit) for cause, channel, value in held]
    after = wording.span(horizon, fit.plant.dt)
    sentence = telling.to_restore(fit, answer)
    notes = telling.caveats(fit, answer.caveats)
    told = {
        **telling.envelope("restore", fit, sentence, notes),
        "unit": unit,
        "horizon": horizon,
        "feasible": answer.feasible,
        "change": {cause: dict(channels) for cause, channels in answer.change.items()},
        "channels": list(answer.channels),
        "target": answer.target,
        "reached": answer.reached,
    }

    def frame() -> polars.DataFrame:
        import polars

        columns = ("unit", "channel", "change", "measured_in")
        return polars.DataFrame({name: [move[k] for move in moves] for k, name in enumerate(columns)})

    output.write_answer(out, force, told, frame)
    if answer_format is Format.json:
        print(output.as_json(told))
    else:
        output.show_text(sentence)
        rows = [[c, i, wording.quantity(wording.number(v, sign=True), m)] for c, i, v, m in moves]
        output.show_table("hold these changes", ["unit", "input", "change"], rows, left=2)
        rows = [
            [
                name,
                wording.quantity(wording.number(float(aim), sign=True), units[name]),
                wording.quantity(wording.number(float(end), sign=True), units[name]),
            ]
            for name, aim, end in zip(answer.channels, answer.target, answer.reached, strict=True)
        ]
        output.show_table(f"{unit} after {after}", ["channel", "target", "reached"], rows)
        output.show_notes(notes)
        _say_written(out)
    if not answer.feasible:
        raise typer.Exit(output.INFEASIBLE)


def _levers(fit: Fit, using: Sequence[str]) -> dict[str, list[str]]:
    """``boiler`` stands for all its inputs, ``boiler.valve`` for one."""
    out: dict[str, list[str]] = {}
    for text in using:
        if text in fit.names:
            unit, channels = text, list(fit.plant.unit(text).input_names)
            if not channels:
                raise OptionError(f"--using {text}: this unit has no inputs.")
        else:
            if not any(text.startswith(f"{name}.") for name in fit.names):
                raise unknown_name("unit", text, fit.names)
            unit, channel = asking.input_of(fit, "--using", text, ())
            channels = [channel]
        known = out.setdefault(unit, [])
        known += [channel for channel in channels if channel not in known]
    return out


# ---- forecast


def forecast(
    directory: Path,
    *,
    recording_file: Path,
    horizon: int,
    plan: Sequence[str],
    units: Sequence[str],
    level: float,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """What comes after the last row."""
    output.check_kind(out, ("json", "csv", "png"), force)
    fit = asking.load_fit(directory)
    wanted = list(dict.fromkeys(fit.plant.unit(name).name for name in units)) or list(fit.names)
    recording = asking.load_recording(fit, recording_file)
    planned = asking.inputs_given(fit, "--plan", plan, ())
    answers = fit.forecast(recording, horizon, planned or None, level)
    lines = []
    for name in wanted:
        now, world = telling.last_measured(recording[name].y), answers[name]
        move = np.nan_to_num(np.abs(world.mean[-1] - world.mean[0]) / telling.scale_of(fit, name))
        lines += [(name, k, float(move[k]), float(now[k])) for k in telling.outlook(fit, world)]
    lines.sort(key=lambda line: -line[2])
    name, k, _, _ = lines[0]
    world = answers[name]
    sentence = telling.will_be(fit, world, k, planned)
    notes = telling.caveats(fit, [text for unit in wanted for text in answers[unit].caveats])
    told = {
        **telling.envelope("forecast", fit, sentence, notes),
        "horizon": horizon,
        "first_row": recording.rows,
        "plan": planned,
        "level": level,
        "units": {
            unit: {
                "channels": telling.channels_json(fit.plant.unit(unit).outputs),
                "last_measured": telling.last_measured(recording[unit].y),
                "mean": answers[unit].mean,
                "lower": answers[unit].lower,
                "upper": answers[unit].upper,
            }
            for unit in wanted
        },
    }
    output.write_answer(out, force, told, lambda: trajectories_frame(answers, wanted), world.plot)
    if answer_format is Format.json:
        print(output.as_json(told))
        return
    output.show_text(sentence)
    rows = []
    for unit, k, _, latest in lines[: asking.MOST_ROWS]:
        channel, world = fit.plant.unit(unit).outputs[k], answers[unit]
        value, interval = wording.measured(float(world.mean[-1, k]), *telling.ends(world, -1, k), channel.unit)
        next_value, _ = wording.measured(float(world.mean[0, k]), *telling.ends(world, 0, k), "")
        rows.append([unit, channel.name, wording.number(latest), next_value, value, interval])
    columns = ["unit", "channel", "last measured", "next", f"after {horizon}", f"{wording.percent(level)} interval"]
    output.show_table("the channels that will move most", columns, rows, left=2)
    if len(lines) > asking.MOST_ROWS:
        output.show_text(f"and {len(lines) - asking.MOST_ROWS} more channels; all of them with --format json")
    output.show_notes(notes)
    _say_written(out)


# ---- graph


def graph(directory: Path, *, rate: float, answer_format: Format, out: Path | None, force: bool) -> None:
    """Which unit acts on which."""
    output.check_kind(out, ("json", "csv"), force)
    fit = asking.load_fit(directory)
    found = fit.graph(rate)
    edges = sorted(found, key=lambda edge: edge.q_value if np.isfinite(edge.q_value) else 2.0)
    sentence = telling.acting_directly([(edge.cause, edge.effect) for edge in edges if edge.direct], rate)
    notes = telling.caveats(fit, list(map(str, fit.caveats)))
    fields = (
        "cause", "effect", "direct", "reaches", "p_value", "p_value_A", "p_value_B", "q_value", "direct_strength",
        "total_strength",
    )  # fmt: skip
    told = {
        **telling.envelope("graph", fit, sentence, notes),
        "rate": rate,
        "units": list(found.names),
        "edges": [{name: getattr(edge, name) for name in fields} for edge in edges],
    }

    def frame() -> polars.DataFrame:
        import polars

        return polars.DataFrame({name: [getattr(edge, name) for edge in edges] for name in fields})

    output.write_answer(out, force, told, frame)
    if answer_format is Format.json:
        print(output.as_json(told))
        return
    output.show_text(sentence)
    rows = []
    for edge in edges:
        numbers = [f"{edge.q_value:.2g}" if np.isfinite(edge.q_value) else "–"]
        numbers += [wording.number(edge.direct_strength), wording.number(edge.total_strength)]
        rows.append([f"{edge.cause} -> {edge.effect}", kind_of(edge), *numbers])
    columns = ["edge", "influence", "q-value", "direct strength", "total strength"]
    output.show_table("who acts on whom", columns, rows, left=2)
    output.show_notes(notes)
    _say_written(out)


def _say_written(out: Path | None) -> None:
    if out is not None:
        output.show_text("")
        output.show_text(f"written: {out}")
