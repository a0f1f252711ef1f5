"""A plant nobody here wrote: EPANET's network Net3, cut into three districts, with true counterfactuals.

Needs the package wntr, which carries EPANET and the network. Every junction belongs to the tank (1, 2 or 3) that is
nearest along the pipes; a tank and its junctions are a district, and a district is a unit. It measures eleven channels
(its tank's level and flow, six pressures, three flows) and acts through its demand multiplier and its pumps' speeds.

The simulator is run twice, with the same demands and speeds but for one change: the difference of the two runs is the
true effect of the change, to the accuracy of EPANET's solver. No method of this package takes part in it.

What EPANET reports: row t holds tank levels that are the result of rows before t, and the flows and pressures that
these levels give together with the demands and speeds of row t itself. So inputs act on the row in which they are
written. The level of row t+1 is the level of row t plus the tank's flow of row t over the tank's area.

Examples
--------
    recording, plant = simulate(seed=0)
    change = plant.twin({"district_3": {"pump_10": 0.97}}, start=3600)
    change.do, change.effect["district_1"]
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import counterflow as cf

FloatArray = NDArray[np.float64]

STEP = 300  # seconds between two rows
DAY = 24 * 3600 // STEP  # rows
DAYS = 21
TANKS = ("1", "2", "3")
PUMPS = ("10", "335")
BYPASS = "330"  # a pipe around pump 335; Net3's level controls open it when they stop the pump
UNITS = tuple(f"district_{tank}" for tank in TANKS)

# Tank 3 overflows when pump 335 runs at 0.7 of its speed, or when demands hold for hours: a full tank no longer answers
# to its inputs, and the plant is another one while it lasts. These values keep every tank off its limits.
DEMAND, DEMAND_SPREAD = 1.2, 0.20  # of Net3's mean demand
SPEED, SPEED_SPREAD = (0.8, 0.675), 0.06  # of the pumps' nominal speed
HOLD = (6, 18)  # shortest and longest time at one value, rows: 30 to 90 minutes
CONTROLLED_DEMAND = 1.08  # under Net3's own level controls pump 335 runs at full speed or not at all

PRESSURES = {
    "1": ("179", "169", "191", "203", "115", "109"),
    "2": ("255", "247", "229", "213", "208", "219"),
    "3": ("127", "121", "141", "257", "15", "101"),
}
FLOWS = {  # the first is the pipe to the tank
    "1": ("40", "229", "177", "193"),
    "2": ("50", "240", "273", "245"),
    "3": ("20", "123", "329", "101"),
}


@dataclass(frozen=True)
class Drive:
    """What is done to the network, row by row."""

    demand: FloatArray
    """(rows, 3): multiplier of each district's demand."""
    speed: FloatArray
    """(rows, 2): speed of pumps 10 and 335 relative to nominal; 0 is off."""
    bypass: bool = False
    """Whether the pipe around pump 335 is open while the pump is off; else it is closed throughout."""


@dataclass(frozen=True)
class Twin:
    """A change, and what it truly did."""

    do: dict[str, dict[str, FloatArray]]
    """By unit and channel: the changed inputs of rows start, ..., stop - 1."""
    effect: dict[str, FloatArray]
    """By unit (stop - start, 11): changed run minus recorded run, without sensor noise."""
    start: int
    stop: int
    pinned: int
    """Rows in which a tank stood at a limit in the changed run."""


@dataclass(frozen=True)
class Truth:
    """The run behind a recording, without sensor noise."""

    y: dict[str, FloatArray]
    drive: Drive
    pinned: int
    """Rows in which a tank stood at a limit."""

    def twin(
        self,
        change: Mapping[str, Mapping[str, float]],
        start: int,
        duration: int = DAY,
        horizon: int = 2 * DAY,
        react: bool = False,
    ) -> Twin:
        """The same plant with some inputs multiplied by factors in rows start, ..., start + duration - 1.

        Every other input stays as recorded, also pump 335 of a plant with level controls, unless they are to react.

        Parameters
        ----------
        change : {unit: {input channel: factor}}
        start, duration : rows
        horizon : rows to follow, from ``start``
        react : whether the level controls, if the plant has them, answer to the change as they would in truth
        """
        stop = start + horizon
        demand, speed = self.drive.demand[:stop].copy(), self.drive.speed[:stop].copy()
        do: dict[str, dict[str, FloatArray]] = {}
        for unit, factors in change.items():
            for channel, factor in factors.items():
                table, column = _input_column(unit, channel, demand, speed)
                table[start : start + duration, column] *= factor
                do.setdefault(unit, {})[channel] = table[start:stop, column].copy()
        changed = run(Drive(demand, speed, self.drive.bypass), controls=react)
        # With controls the recorded run switched between rows, where a schedule by rows cannot: replay it as well.
        recorded = run(self.drive).y if self.drive.bypass and not react else self.y
        effect = {unit: changed.y[unit][start:stop] - recorded[unit][start:stop] for unit in UNITS}
        return Twin(do, effect, start, stop, changed.pinned)


def simulate(
    seed: int = 0, days: float = DAYS, noise: float = 0.05, controls: bool = False
) -> tuple[cf.Recording, Truth]:
    """A recording of the three districts, and the run behind it.

    Parameters
    ----------
    seed : int
        Of the demands, the speeds and the noise.
    days : float
        Length of the recording, 288 rows a day.
    noise : float
        Standard deviation of the sensor noise over that of the channel.
    controls : bool
        False: pumps follow random holds, whatever the tanks do. True: Net3's own controls start pump 335 when tank 1
        is low and stop it when it is high, so its recorded speed answers to what was measured.
    """
    rows = round(days * DAY)
    rng = np.random.default_rng([seed, 3])
    drive = draw(rng, rows, CONTROLLED_DEMAND if controls else DEMAND)
    truth = run(drive, controls)
    arrays = {}
    for tank, unit in zip(TANKS, UNITS, strict=True):
        y = truth.y[unit]
        arrays[unit] = (y + noise * y.std(axis=0) * rng.standard_normal(y.shape), _inputs_of(tank, truth.drive))
    return cf.Recording.from_arrays(arrays, dt=STEP / 60, units=units()), truth


def draw(rng: np.random.Generator, rows: int, demand: float = DEMAND) -> Drive:
    """Random holds: values uniform around the base, each kept for a random time."""

    def holds(base: float, spread: float) -> FloatArray:
        lengths = rng.integers(HOLD[0], HOLD[1] + 1, size=rows // HOLD[0] + 1)
        values = base * (1 + spread * rng.uniform(-1, 1, size=len(lengths)))
        return np.repeat(values, lengths)[:rows]

    return Drive(
        np.column_stack([holds(demand, DEMAND_SPREAD) for _ in TANKS]),
        np.column_stack([holds(base, SPEED_SPREAD) for base in SPEED]),
    )


def run(drive: Drive, controls: bool = False, levels: FloatArray | None = None) -> Truth:
    """EPANET's answer to a drive; with controls, pump 335 does what they say and not what the drive says.

    ``levels`` (3,): of the tanks in the first row; default: Net3's own.
    """
    import wntr

    network = wntr.network.WaterNetworkModel("Net3")
    rows = len(drive.demand)
    time = network.options.time
    time.duration = STEP * (rows - 1)
    time.hydraulic_timestep = time.report_timestep = time.pattern_timestep = STEP
    time.quality_timestep = time.rule_timestep = STEP
    # Twin runs are subtracted, so the solver must be far more accurate than the effects are large.
    network.options.hydraulic.accuracy = 1e-5

    for name in list(network.control_name_list):
        is_level_control = "TANK" in str(network.get_control(name))
        if not (controls and is_level_control):  # the others start and stop pump 10 by the clock
            network.remove_control(name)
    _set_demands(network, drive.demand)
    for column, pump in enumerate(PUMPS):
        network.get_link(pump).initial_status = "OPEN"
        if not (controls and pump == "335"):  # a speed pattern would start the pump again in every row
            network.add_pattern(f"speed_{pump}", list(drive.speed[:, column]))
            network.get_link(pump).speed_pattern_name = f"speed_{pump}"
    for tank, level in zip(TANKS, () if levels is None else levels, strict=levels is not None):
        network.get_node(tank).init_level = float(level)
    if drive.bypass and not controls:
        _set_bypass(network, drive.speed[:, 1] == 0)

    with tempfile.TemporaryDirectory() as directory:
        results = wntr.sim.EpanetSimulator(network).run_sim(file_prefix=str(Path(directory) / "net3"))
    if len(results.node["pressure"]) != rows:
        raise RuntimeError(f"EPANET reported {len(results.node['pressure'])} rows instead of {rows}.")

    pressure, flow, status = results.node["pressure"], results.link["flowrate"], results.link["status"]
    y = {
        unit: np.column_stack(
            [pressure[tank]]
            + [pressure[junction] for junction in PRESSURES[tank]]
            + [1000.0 * flow[pipe] for pipe in FLOWS[tank]]
        ).astype(np.float64)
        for tank, unit in zip(TANKS, UNITS, strict=True)
    }
    if controls:
        speed = drive.speed.copy()
        speed[:, 1] = status["335"].to_numpy() > 0
        drive = Drive(drive.demand, speed, bypass=True)
    level = pressure[list(TANKS)].to_numpy()
    tanks = [network.get_node(tank) for tank in TANKS]
    low, high = (np.array([getattr(tank, end) for tank in tanks]) for end in ("min_level", "max_level"))
    margin = 0.01  # metres; results are stored in single precision
    pinned = ((level <= low + margin) | (level >= high - margin)).any(axis=1)
    return Truth(y, drive, int(pinned.sum()))


def r_squared(truth: FloatArray, answer: FloatArray, scale: FloatArray) -> float:
    """Share of the true effect that an answer explains, over all channels and rows of one district.

    1 - sum of squared errors / sum of squared true effects, each channel divided by ``scale``, its standard deviation
    in the rows that were fitted. "No effect at all" scores 0; nothing is centred.
    """
    return float(1 - (((truth - answer) / scale) ** 2).sum() / ((truth / scale) ** 2).sum())


def units() -> tuple[cf.Unit, ...]:
    """The districts and their channels."""
    return tuple(
        cf.Unit(
            unit,
            inputs=[cf.Channel("demand", "of mean demand")]
            + [cf.Channel(f"pump_{pump}", "of nominal speed") for pump in PUMPS if district_of()[pump] == tank],
            outputs=[cf.Channel("level", "m")]
            + [cf.Channel(f"pressure_{junction}", "m") for junction in PRESSURES[tank]]
            + [cf.Channel("tank_flow" if k == 0 else f"flow_{pipe}", "L/s") for k, pipe in enumerate(FLOWS[tank])],
        )
        for tank, unit in zip(TANKS, UNITS, strict=True)
    )


@cache
def district_of() -> dict[str, str]:
    """The tank nearest along the pipes, for every node and, by the node it draws from, every pump."""
    import networkx
    import wntr

    network = wntr.network.WaterNetworkModel("Net3")
    graph = networkx.Graph()
    for _, link in network.links():
        graph.add_edge(link.start_node_name, link.end_node_name, length=getattr(link, "length", 0.0))
    distance = {tank: networkx.single_source_dijkstra_path_length(graph, tank, weight="length") for tank in TANKS}
    nearest = {node: min(TANKS, key=lambda tank: distance[tank][node]) for node in network.node_name_list}
    # Node 10 and pump 10 share a name and a district, so one mapping serves both.
    return nearest | {pump: nearest[network.get_link(pump).start_node_name] for pump in PUMPS}


def _inputs_of(tank: str, drive: Drive) -> FloatArray:
    pumps = [k for k, pump in enumerate(PUMPS) if district_of()[pump] == tank]
    return np.column_stack([drive.demand[:, TANKS.index(tank)], drive.speed[:, pumps]])


def _input_column(unit: str, channel: str, demand: FloatArray, speed: FloatArray) -> tuple[FloatArray, int]:
    return (demand, UNITS.index(unit)) if channel == "demand" else (speed, PUMPS.index(channel.removeprefix("pump_")))


def _set_demands(network: Any, demand: FloatArray) -> None:
    """Replace Net3's daily patterns by their mean times the district's multiplier.

    Net3's four large consumers follow patterns of their own. Kept, they would be unrecorded inputs as strong as the
    recorded ones.
    """
    made: set[str] = set()
    for name, junction in network.junctions():
        for load in junction.demand_timeseries_list:
            tank = district_of()[name]
            pattern = f"district_{tank}_{load.pattern_name}"
            if pattern not in made:
                mean = float(np.mean(network.get_pattern(load.pattern_name).multipliers))
                network.add_pattern(pattern, list(mean * demand[:, TANKS.index(tank)]))
                made.add(pattern)
            load.pattern_name = pattern


def _set_bypass(network: Any, is_open: NDArray[np.bool_]) -> None:
    """Open and close the pipe around pump 335 by the clock."""
    from wntr.network import controls

    pipe = network.get_link(BYPASS)
    pipe.initial_status = "OPEN" if is_open[0] else "CLOSED"
    for row in np.flatnonzero(np.diff(is_open.astype(int))) + 1:
        action = controls.ControlAction(pipe, "status", 1 if is_open[row] else 0)
        when = controls.SimTimeCondition(network, "=", float(row * STEP))
        network.add_control(f"bypass_{row}", controls.Control(when, action))
