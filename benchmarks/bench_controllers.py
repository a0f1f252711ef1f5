"""The running plant: effects in which controllers react, against true twins with the same controllers.

    OPENBLAS_NUM_THREADS=1 python benchmarks/bench_controllers.py [--seeds 0,1,2] [--net3 0,1,2]

Writes benchmarks/results/controllers.md and controllers_net3.md; an empty list of seeds leaves one out. Plants under PI
control are those of `plants.closed`; Net3 has its own level controls, a relay that starts and stops pump 335 by the
level of tank 1, which stands in another district.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter

import machine
import net3
import numpy as np
from plants import closed

import counterflow as cf
from counterflow.arrays import FloatArray

ROWS = 3000
CHANGES = {
    "pump 10, speed -3 %": {"district_3": {"pump_10": 0.97}},
    "demand of district 1 +5 %": {"district_1": {"demand": 1.05}},
    "demand of district 2 +10 %": {"district_2": {"demand": 1.1}},
    "demand of district 3 -10 %": {"district_3": {"demand": 0.9}},
}
HALF, START = 3024, 3600
LEVELS = (5.212, 5.822)  # of tank 1, at which Net3 starts and stops pump 335


@dataclass(frozen=True)
class Row:
    plant: str
    target: str
    seed: int
    way: str
    r2: float
    least: float
    coverage: float
    gains: float
    """Largest relative error of a gain or an integral time that was learned."""


def running(plant: str, target: str, seed: int) -> list[Row]:
    """All estimators of one case."""
    one = closed.case(plant, target, ROWS, seed)
    recording = one.recording()
    fits = [("found", recording, cf.fit(recording), "reacting")]
    if target != "constant":
        fits.append(("held", recording, fits[0][2], "held"))
    if target == "recorded":
        joint = one.recording("declared").joint()
        fits.append(("joint", joint, cf.fit(joint), "reacting"))
    out = []
    for way, rows, found, world in fits:
        score = closed.judge(one, closed.asked(one, rows, found, world))
        gains = _gains(one) if way == "found" else np.nan
        out.append(Row(plant, target, seed, way, 1 - score.error, score.least_r2, score.coverage, gains))
    score = closed.judge(one, closed.arx(one))
    out.append(Row(plant, target, seed, "ARX", 1 - score.error, score.least_r2, np.nan, np.nan))
    return out


def _gains(one: closed.Closed) -> float:
    from counterflow.exchange.controllers import controllers_of

    worst = 0.0
    for unit in one.recording().units:
        y, u = one.case.y[unit.name], one.case.u[unit.name]
        found = {each.loop.moves: each.law for each in controllers_of(unit, y, u, one.case.dt)}
        for (name, moves), true in one.laws.items():
            if name == unit.name:
                law = found.get(moves)
                if law is None:
                    return np.inf
                pairs = ((law.gain, true.gain), (law.integral_time, true.integral_time))
                worst = max(worst, *(abs(a / b - 1) for a, b in pairs))
    return worst


@dataclass(frozen=True)
class Water:
    seed: int
    change: str
    mean_error: float
    """Error of the window's mean effect over its size, all channels and districts in their standard deviations."""
    of_rows: float
    """The same over the root mean square of the true effect's rows."""
    duty: tuple[float, float, float]
    """Of pump 335 in the window: recorded, true, answered."""
    coverage: float
    r2: float
    means_inside: float
    """Share of channels whose true mean effect is inside the interval of the window's mean."""
    duty_inside: bool
    switched: float
    """``mean_error`` where the pump is switched in the model when it truly was: what is left is the model's."""


def water(seed: int) -> tuple[str, list[Water]]:
    """Net3 with its own controls; what is learned of them, and what is answered."""
    recording, plant = net3.simulate(seed, controls=True)
    units = [
        cf.Unit(
            unit.name, inputs=unit.inputs, outputs=unit.outputs,
            loops=[cf.Loop("pump_335", "district_1/level")] if unit.name == "district_3" else [],
        )
        for unit in net3.units()
    ]  # fmt: skip
    arrays = {name: (recording[name].y, recording[name].u) for name in recording.names}
    recording = cf.Recording.from_arrays(arrays, dt=recording.dt, units=units)
    found = cf.fit(recording.slice(0, HALF))
    pump = recording["district_3"].unit.input_names.index("pump_335")
    out = []
    for name, change in CHANGES.items():
        twin = plant.twin(change, START, react=True)
        changed = net3.run(_drive(plant, change), controls=True)
        window = slice(twin.start, twin.stop)
        worlds = found.counterfactual(
            recording, do=twin.do, start=twin.start, stop=twin.stop, controllers="reacting"
        )  # fmt: skip
        inside, means = [], []
        squares = np.zeros(2)
        for unit in net3.UNITS:
            scale, world = recording[unit].y.std(axis=0), worlds[unit]
            gap = (world.difference - twin.effect[unit]) / scale
            squares += np.square(gap).sum(), np.square(twin.effect[unit] / scale).sum()
            inside.append(
                (world.lower - world.was <= twin.effect[unit]) & (twin.effect[unit] <= world.upper - world.was)
            )
            for k, channel in enumerate(recording[unit].unit.output_names):
                said = world.running.mean(channel)
                means.append(said.lower <= twin.effect[unit][:, k].mean() <= said.upper)
        recorded = recording["district_3"].u[:, pump]
        was, true = recorded[window].mean(), changed.drive.speed[window, 1].mean()
        duty = worlds["district_3"].running.mean("pump_335")
        rows = np.sqrt(np.mean([np.square(twin.effect[unit] / recording[unit].y.std(axis=0)) for unit in net3.UNITS]))
        gap, size = _mean_gap(recording, twin, worlds)
        do = {unit: dict(channels) for unit, channels in twin.do.items()}
        shift = _shares(changed)[window] - _shares(plant)[window]
        do.setdefault("district_3", {})["pump_335"] = recorded[window] + shift
        switched = found.counterfactual(recording, do=do, start=twin.start, stop=twin.stop, controllers="held")
        out.append(
            Water(
                seed,
                name,
                gap / size,
                gap / np.sqrt(len(means)) / rows,
                (was, true, was + duty.mean),
                float(np.mean(inside)),
                1 - squares[0] / squares[1],
                float(np.mean(means)),
                bool(duty.lower <= true - was <= duty.upper),
                np.divide(*_mean_gap(recording, twin, switched)),
            )
        )
    return str(found.controllers["district_3"][0]), out


def _mean_gap(recording: cf.Recording, twin: net3.Twin, worlds: Mapping[str, cf.Counterfactual]) -> tuple[float, float]:
    """Error of the window's mean effect and its size, over all channels in their standard deviations."""
    true, said = (
        np.concatenate([each[unit].mean(axis=0) / recording[unit].y.std(axis=0) for unit in net3.UNITS])
        for each in (twin.effect, {unit: worlds[unit].difference for unit in net3.UNITS})
    )
    return float(np.linalg.norm(said - true)), float(np.linalg.norm(true))


def _shares(plant: net3.Truth) -> FloatArray:
    """Share of the time from half a row before to half a row after each row in which pump 335 truly ran."""
    status, level = plant.drive.speed[:, 1], plant.y["district_1"][:, 0]
    out = status.astype(float)
    for t in np.flatnonzero(np.diff(status)) + 1:
        if t < 2:
            continue
        crossed = LEVELS[0] if status[t] else LEVELS[1]
        at = t - 1 + np.clip((crossed - level[t - 1]) / (level[t - 1] - level[t - 2]), 0.0, 1.0)
        early = t - 0.5 - at
        out[t - 1 if early > 0 else t] += (status[t] - status[t - 1]) * early
    return out


def _drive(plant: net3.Truth, change: dict[str, dict[str, float]]) -> net3.Drive:
    stop = START + 2 * net3.DAY
    demand, speed = plant.drive.demand[:stop].copy(), plant.drive.speed[:stop].copy()
    for unit, factors in change.items():
        for channel, factor in factors.items():
            if channel == "demand":
                demand[START : START + net3.DAY, net3.UNITS.index(unit)] *= factor
            else:
                speed[START : START + net3.DAY, net3.PUMPS.index(channel.removeprefix("pump_"))] *= factor
    return net3.Drive(demand, speed, plant.drive.bypass)


def page(rows: list[Row], seconds: float) -> list[str]:
    lines = [
        "# Effects in the running plant, against true twins",
        "",
        f"{machine.description('wntr')}. {seconds:.0f} s in all.",
        "",
        f"Plants of benchmarks/plants with PI controllers (`plants.closed`), {ROWS:,} rows, controllers read noisy "
        "measurements and act in the same row. Targets are recorded, move in steps that nobody records, or never move. "
        "Twins change inputs that no controller moves, and recorded targets; the truth is the difference of two runs "
        "with the same noise in which controllers react. Nothing is declared: loops and laws are found in the log "
        "(found), or what controllers move are outputs (joint). Held: the same fit asked with controllers held. ARX: "
        "pooled, inputs as recorded. R² as in benchmarks/results/plants.md, mean over answers (each at least -1).",
        "",
        "| plant | target | way | R²: mean over seeds | least seed | inside 95 % intervals | worst error of a gain |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    keys = dict.fromkeys((row.plant, row.target, row.way) for row in rows)
    for key in keys:
        those = [row for row in rows if (row.plant, row.target, row.way) == key]
        r2 = [row.r2 for row in those]
        cover, gains = np.mean([row.coverage for row in those]), max(row.gains for row in those)
        told = "" if np.isnan(cover) else f"{cover:.3f}"
        wrong = "" if np.isnan(gains) or key[2] != "found" else f"{100 * gains:.2g} %"
        lines.append(f"| {' | '.join(key)} | {np.mean(r2):.3f} | {min(r2):.3f} | {told} | {wrong} |")
    return lines


def water_page(waters: list[Water], laws: list[str], seconds: float) -> list[str]:
    lines = [
        "# Net3 with its own level controls, which react",
        "",
        f"{machine.description('wntr')}. {seconds:.0f} s in all.",
        "",
        "Pump 335 is started and stopped by the level of tank 1, which another district measures: "
        '`cf.Loop("pump_335", "district_1/level")`, levels learned from the first half of the record (true: 5.212 and '
        f"5.822 m). What was learned in the first seed: {laws[0]}. A change acts for one day and is followed for two; "
        "the truth is the difference of two runs of EPANET in which its controls react.",
        "",
        "Errors of the window's mean effect are over the size of the mean effect, all channels of all districts in "
        "their standard deviations; in the second column over the root mean square of the effect's rows; in the third "
        "the pump is switched in the model when it truly was, between rows, so that what is left is the model's. "
        "Inside: of 95 % intervals, rows, window's means by channel, and the duty.",
        "",
        "| seed | change | error of the mean effect | over the effect of rows | switched as in truth "
        "| duty of the pump: recorded, true, answered | R² of rows | rows inside | means inside | duty inside |",
        "|---:|---|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for each in waters:
        duty = ", ".join(f"{100 * value:.1f} %" for value in each.duty)
        lines.append(
            f"| {each.seed} | {each.change} | {100 * each.mean_error:.0f} % | {100 * each.of_rows:.0f} % "
            f"| {100 * each.switched:.0f} % | {duty} | {each.r2:.2f} | {each.coverage:.2f} | {each.means_inside:.2f} "
            f"| {'yes' if each.duty_inside else 'no'} |"
        )
    names = ("mean_error", "of_rows", "switched", "coverage", "means_inside", "duty_inside")
    errors, small, switched, rows, means, duties = ([getattr(each, name) for each in waters] for name in names)
    off = [abs(each.duty[1] - each.duty[2]) for each in waters]
    met = "met" if np.median(errors) <= 0.1 else "MISSED"
    return [
        *lines,
        "",
        f"Error of the window's mean effect: median {100 * np.median(errors):.0f} % of its size (10 % is asked: "
        f"{met}), {100 * np.median(small):.0f} % of the effect of rows; switched as in truth "
        f"{100 * np.median(switched):.0f} %. Duty off by at most {100 * max(off):.1f} points (5 are asked). Inside "
        f"95 % intervals: {100 * np.mean(rows):.0f} % of rows, {100 * np.mean(means):.0f} % of means, "
        f"{sum(duties)} of {len(duties)} duties (90 to 98 % are asked).",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--net3", default="0,1,2")
    given = parser.parse_args()
    begin = perf_counter()
    rows: list[Row] = []
    waters: list[Water] = []
    laws: list[str] = []
    seeds = [int(seed) for seed in given.seeds.split(",") if seed]
    cases = [(plant, target, seed) for seed in seeds for plant in closed.SITES for target in closed.TARGETS]
    for seed in map(int, filter(None, given.net3.split(","))):
        law, found = water(seed)
        waters, laws = [*waters, *found], [*laws, law]
        print(found, file=sys.stderr, flush=True)
        machine.write("controllers_net3", "\n".join(water_page(waters, laws, perf_counter() - begin)))
    for case in cases:  # the page grows by every case: whoever stops it has what was measured so far
        rows += running(*case)
        print(case, f"{perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
        order = list(closed.SITES)
        shown = sorted(rows, key=lambda row: (order.index(row.plant), closed.TARGETS.index(row.target)))
        machine.write("controllers", "\n".join(page(shown, perf_counter() - begin)))


if __name__ == "__main__":
    main()
