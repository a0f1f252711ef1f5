"""Draw the pictures of docs/tutorials/water-network.md: python benchmarks/figures_net3.py   (needs the package wntr)

What is asked and fitted here is what the tutorial shows, word by word.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import net3
import numpy as np
from figure_style import IMAGES, INK, MUTED, STYLE
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import counterflow as cf

SHADE = "#f1eee4"
HAPPENED, ANSWER, WRONG = "#a9b0b7", "#0072b2", "#d55e00"
DISTRICTS = {"1": "#0072b2", "2": "#d55e00", "3": "#009e73"}
BEFORE = net3.DAY // 4  # rows shown before the change
START = 3600
HALF = 3024
QUESTIONS = {
    "pump 335 (district 3) 3 % faster for a day": {"district_3": {"pump_335": 1.03}},
    "demand of district 1 up by 5 % for a day": {"district_1": {"demand": 1.05}},
}


def draw_map(path: Path) -> None:
    """The network, its districts, and where it is measured and driven."""
    import wntr

    network = wntr.network.WaterNetworkModel("Net3")
    district = net3.district_of()
    at = {name: network.get_node(name).coordinates for name in network.node_name_list}
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        figure = Figure(figsize=(7.6, 6.2), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for name, link in network.links():
            a, b = link.start_node_name, link.end_node_name
            points = np.array([at[a], *link.vertices, at[b]])
            measured = any(name in pipes for pipes in net3.FLOWS.values())
            colour = DISTRICTS[district[a]] if district[a] == district[b] else MUTED
            axes.plot(
                *points.T, color=colour, linewidth=3.2 if measured else 0.9, alpha=1 if measured else 0.7, zorder=1
            )
        for name in network.junction_name_list:
            measured = any(name in junctions for junctions in net3.PRESSURES.values())
            colour = DISTRICTS[district[name]]
            axes.scatter(
                *at[name], s=46 if measured else 9, color="white" if measured else colour, edgecolor=colour,
                linewidth=1.6 if measured else 0, zorder=3 if measured else 2,
            )  # fmt: skip
        for tank in net3.TANKS:
            axes.scatter(*at[tank], s=190, marker="s", color=DISTRICTS[tank], zorder=4)
            axes.annotate(
                tank, at[tank], color="white", fontweight="bold", ha="center", va="center", zorder=5, fontsize=9
            )
        for source, pump, shift in (("Lake", "10", (0, 15)), ("River", "335", (10, -4))):
            axes.scatter(*at[source], s=110, marker="^", color=INK, zorder=4)
            axes.annotate(
                f"{source}, pump {pump}", at[source], xytext=shift, textcoords="offset points", va="center",
                ha="center" if shift[0] == 0 else "left",
            )  # fmt: skip
        handles = [
            axes.scatter([], [], s=130, marker="s", color=MUTED, label="tank: level"),
            axes.scatter([], [], s=46, color="white", edgecolor=MUTED, linewidth=1.6, label="junction: pressure"),
            *axes.plot([], [], color=MUTED, linewidth=3.2, label="pipe: flow"),
            axes.scatter([], [], s=110, marker="^", color=INK, label="source and its pump: speed"),
        ]
        axes.legend(handles=handles, loc="lower left", frameon=False)
        counts = {tank: sum(district[j] == tank for j in network.junction_name_list) for tank in net3.TANKS}
        places = {"1": (20.3, 7.2), "2": (40.5, 4.6), "3": (39.2, 27.0)}
        for tank, place in places.items():
            axes.annotate(
                f"district {tank}\n{counts[tank]} junctions", place, color=DISTRICTS[tank], fontweight="bold",
                ha="left", va="center",
            )  # fmt: skip
        axes.set_aspect("equal")
        axes.set_axis_off()
        figure.savefig(path, dpi=130, metadata={"Software": None})


def draw_answers(paths: tuple[Path, Path], found: cf.Fit, recording: cf.Recording, plant: net3.Truth) -> None:
    """Two questions, three districts: levels in both worlds, and their difference with its interval and the twin's."""
    with matplotlib.rc_context(STYLE):
        levels, effects = (Figure(figsize=(9.6, 6.2), layout="constrained", facecolor="white") for _ in paths)
        parts = zip(levels.subfigures(2, 1), effects.subfigures(2, 1), QUESTIONS.items(), strict=True)
        for level_part, effect_part, (question, change) in parts:
            twin = plant.twin(change, start=START)
            worlds = found.counterfactual(recording, do=twin.do, start=twin.start, stop=twin.stop)
            for part, draw in ((level_part, _levels), (effect_part, _effects)):
                part.suptitle(question, x=0.01, ha="left", fontweight="bold", fontsize=9.5)
                for axes, unit in zip(part.subplots(1, 3), net3.UNITS, strict=True):
                    draw(axes, unit, recording, plant, worlds[unit], twin)
                    axes.set_xlabel("hours since the change")
        for path, figure in zip(paths, (levels, effects), strict=True):
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
            figure.savefig(path, dpi=105, metadata={"Software": None})


def draw_feedback(path: Path, found: cf.Fit, recording: cf.Recording, plant: net3.Truth) -> None:
    """Why feedback makes the answer unsafe: the controls would have answered."""
    change = {"district_1": {"demand": 1.05}}
    held, reacting = plant.twin(change, start=START), plant.twin(change, start=START, react=True)
    worlds = found.counterfactual(recording, do=held.do, start=START, stop=held.stop, controllers="held")
    unit = "district_1"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained", facecolor="white")
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
        days = slice(START - 2 * net3.DAY, START)
        hours = np.arange(-2 * net3.DAY, 0) * net3.STEP / 3600
        on = recording["district_3"].u[days, 2] > 0
        left.fill_between(
            hours, 0, 1, where=on, transform=left.get_xaxis_transform(), color=SHADE, linewidth=0, step="post",
            label="pump 335 runs",
        )  # fmt: skip
        left.plot(hours, recording[unit].y[days, 0], color=MUTED, linewidth=1.2, label="level of tank 1, measured")
        for level, text in ((5.21, "start"), (5.82, "stop")):
            left.axhline(level, color=WRONG, linewidth=0.9, dashes=(4, 2))
            left.annotate(text, (hours[-1] + 1.5, level), color=WRONG, va="center", ha="left", annotation_clip=False)
        left.set_title("The pump answers to tank 1", loc="left", fontweight="bold", fontsize=9.5)
        left.set_ylabel("level of tank 1 [m]")
        left.set_xlabel("hours before the change")
        left.set_xlim(hours[0], hours[-1] + 1)

        world = worlds[unit]
        since = np.arange(len(world.mean)) * net3.STEP / 3600
        base = plant.y[unit][START : held.stop, 0]
        right.axvspan(0, 24, color=SHADE, linewidth=0)
        right.plot(since, base, color=HAPPENED, linewidth=1.4, label="what happened")
        right.plot(
            since, base + (world.mean - world.factual)[:, 0], color=ANSWER, linewidth=1.6,
            label="answer: pump held as recorded",
        )  # fmt: skip
        right.plot(
            since, base + held.effect[unit][:, 0], color=INK, dashes=(3, 1.6), linewidth=1.2,
            label="truth, pump held as recorded",
        )  # fmt: skip
        right.plot(
            since, base + reacting.effect[unit][:, 0], color=WRONG, dashes=(3, 1.6), linewidth=1.4,
            label="truth, controls react",
        )  # fmt: skip
        right.set_title("Demand of district 1 up by 5 % for a day", loc="left", fontweight="bold", fontsize=9.5)
        right.set_ylabel("level of tank 1 [m]")
        right.set_xlabel("hours since the change")
        right.set_xlim(since[0], since[-1])
        pairs = [axes.get_legend_handles_labels() for axes in (left, right)]
        handles, labels = ([item for pair in pairs for item in pair[k]] for k in (0, 1))
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=130, metadata={"Software": None})


def with_loop(recording: cf.Recording) -> cf.Recording:
    """The same recording, with the loop that starts and stops pump 335 by the level of tank 1 declared."""
    units = [
        cf.Unit(
            unit.name, inputs=unit.inputs, outputs=unit.outputs,
            loops=[cf.Loop("pump_335", "district_1/level")] if unit.name == "district_3" else [],
        )
        for unit in recording.units
    ]  # fmt: skip
    return cf.Recording.from_arrays(
        {name: (part.y, part.u) for name, part in recording.items()}, dt=recording.dt, units=units
    )


def draw_controls(path: Path, found: cf.Fit, recording: cf.Recording, plant: net3.Truth) -> None:
    """Both worlds, answered and true: the level of tank 1 with controls held, and with controls that react."""
    change, unit = {"district_1": {"demand": 1.05}}, "district_1"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.0), layout="constrained", facecolor="white")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (title, world) in zip(
            panels, (("Controls held", "held"), ("Controls react", "reacting")), strict=True
        ):
            twin = plant.twin(change, start=START, react=world == "reacting")
            answer = found.counterfactual(recording, do=twin.do, start=START, stop=twin.stop, controllers=world)[unit]
            since = np.arange(len(answer.mean)) * net3.STEP / 3600
            base = plant.y[unit][START : twin.stop, 0]
            axes.axvspan(0, 24, color=SHADE, linewidth=0)
            low, high = (base + (side - answer.was)[:, 0] for side in (answer.lower, answer.upper))
            axes.fill_between(since, low, high, color=ANSWER, alpha=0.25, linewidth=0, label="its 95 % interval")
            axes.plot(since, base, color=HAPPENED, linewidth=1.2, label="what happened")
            axes.plot(since, base + answer.difference[:, 0], color=ANSWER, linewidth=1.6, label="answer")
            true = base + twin.effect[unit][:, 0]
            axes.plot(since, true, color=INK, dashes=(3, 1.6), linewidth=1.2, label="truth: twin run of EPANET")
            axes.set_title(title, loc="left", fontweight="bold", fontsize=9.5)
            axes.set_xlabel("hours since demand of district 1 went up by 5 %")
            axes.set_xlim(since[0], since[-1])
        panels[0].set_ylabel("level of tank 1 [m]")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=130, metadata={"Software": None})


def _levels(
    axes: Axes, unit: str, recording: cf.Recording, plant: net3.Truth, world: cf.Trajectory, twin: net3.Twin
) -> None:
    """Of the district's tank: measured, answered, true."""
    hours = np.arange(-BEFORE, twin.stop - twin.start) * net3.STEP / 3600
    since = hours[BEFORE:]
    truth = plant.y[unit][twin.start : twin.stop, 0] + twin.effect[unit][:, 0]
    axes.axvspan(0, 24, color=SHADE, linewidth=0)
    axes.plot(
        hours, recording[unit].y[twin.start - BEFORE : twin.stop, 0], color=HAPPENED, linewidth=0.8, label="measured"
    )
    axes.plot(since, world.mean[:, 0], color=ANSWER, linewidth=1.4, label="answer: what would have been measured")
    axes.plot(since, truth, color=INK, dashes=(3, 1.6), linewidth=1.1, label="truth: EPANET run again, without noise")
    axes.set_xlim(hours[0], hours[-1])
    axes.set_ylabel(f"level of tank {unit[-1]} [m]")


def _effects(
    axes: Axes, unit: str, recording: cf.Recording, plant: net3.Truth, world: cf.Trajectory, twin: net3.Twin
) -> None:
    """Of the change on the district's tank: answered with its interval, and true. R² is of all eleven channels."""
    since = np.arange(twin.stop - twin.start) * net3.STEP / 3600
    score = net3.r_squared(twin.effect[unit], world.mean - world.factual, recording.slice(0, HALF)[unit].y.std(axis=0))
    axes.axvspan(0, 24, color=SHADE, linewidth=0)
    if world.lower is not None and world.upper is not None:
        low, high = (bound[:, 0] - world.factual[:, 0] for bound in (world.lower, world.upper))
        axes.fill_between(since, low, high, color=ANSWER, alpha=0.3, linewidth=0, label="its 95 % interval")
    axes.plot(since, (world.mean - world.factual)[:, 0], color=ANSWER, linewidth=1.2, label="answer")
    axes.plot(
        since, twin.effect[unit][:, 0], color=INK, dashes=(3, 1.6), linewidth=1.1, label="truth: twin run of EPANET"
    )
    axes.set_title(f"R² {score:.3f}", loc="right", fontsize=8.5, color=MUTED)
    axes.set_xlim(since[0], since[-1])
    axes.set_ylabel(f"change of tank {unit[-1]}'s level [m]")


def main() -> None:
    draw_map(IMAGES / "water-network-map.png")
    recording, plant = net3.simulate(seed=0)
    found = cf.fit(recording.slice(0, HALF))
    names = ("water-network-levels.png", "water-network-effects.png")
    draw_answers((IMAGES / names[0], IMAGES / names[1]), found, recording, plant)
    recording, plant = net3.simulate(seed=1, controls=True)
    found = cf.fit(recording.slice(0, HALF))
    draw_feedback(IMAGES / "water-network-feedback.png", found, recording, plant)
    declared = with_loop(recording)
    draw_controls(IMAGES / "water-network-controls.png", cf.fit(declared.slice(0, HALF)), declared, plant)


if __name__ == "__main__":
    main()
