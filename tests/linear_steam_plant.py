"""A linear plant whose models are known: a boiler, the turbine it feeds, the water treatment that feeds the boiler.

One step is one minute. Every number is a deviation from the operating point, at which every valve is half open; states
are scaled to order one. The matrices are made up, but with the signs and the order of magnitude that an operator would
expect:

- more fuel raises the heat in the furnace, then the drum pressure, then the steam that reaches the turbine; part of it
  arrives within the minute (the blocks B of boiler -> turbine), the rest through the pressure (A of boiler -> turbine);
- the water treatment sends the boiler its feedwater: a colder, fuller feed lowers the pressure and raises the level;
- the turbine's governor draws steam from the drum: a weak pull back on the boiler's pressure;
- the turbine's condensate returns to the water treatment, weakly.
"""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.plant import Channel, Plant, Unit, excitation

VALVE = (-50, 50)  # per cent of opening, from half open
UNITS = (
    Unit(
        "boiler", 3,  # furnace heat, drum pressure, drum level
        [Channel("fuel valve", "%", VALVE), Channel("feedwater valve", "%", VALVE)],
        [
            Channel("drum pressure", "bar"), Channel("steam flow", "t/h"), Channel("drum level", "cm"),
            Channel("furnace temperature", "°C"), Channel("feedwater flow", "t/h"), Channel("flue gas oxygen", "%"),
            Channel("flue gas temperature", "°C"),
        ],
    ),
    Unit(
        "turbine", 3,  # inlet pressure, shaft power, condenser pressure
        [Channel("governor valve", "%", VALVE), Channel("cooling water valve", "%", VALVE)],
        [
            Channel("inlet pressure", "bar"), Channel("electric power", "MW"), Channel("shaft speed", "rpm"),
            Channel("exhaust pressure", "mbar"), Channel("condensate temperature", "°C"),
            Channel("extraction flow", "t/h"), Channel("bearing vibration", "µm"),
        ],
    ),
    Unit(
        "water_treatment", 3,  # tank level, feed temperature, conductivity
        [Channel("make-up valve", "%", VALVE), Channel("dosing pump", "%", VALVE)],
        [
            Channel("tank level", "cm"), Channel("feed temperature", "°C"), Channel("conductivity", "µS/cm"),
            Channel("make-up flow", "t/h"), Channel("dissolved oxygen", "µg/l"), Channel("acidity", "pH"),
        ],
    ),
)  # fmt: skip

# columns: furnace heat, drum pressure, drum level | inlet pressure, shaft power, condenser | tank, temperature, µS/cm
A = np.array(
    [
        [0.70, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.05, 0.00],  # furnace heat
        [0.30, 0.80, -0.05, -0.06, -0.03, 0.00, -0.04, 0.14, 0.00],  # drum pressure: steam drawn, feed temperature
        [0.00, 0.05, 0.85, 0.00, 0.00, 0.00, 0.12, 0.00, 0.00],  # drum level: fuller feed
        [0.10, 0.32, 0.00, 0.45, 0.00, 0.00, 0.00, 0.00, 0.00],  # inlet pressure: follows the drum
        [0.00, 0.12, 0.00, 0.35, 0.60, -0.12, 0.00, 0.00, 0.00],  # shaft power
        [0.00, 0.00, 0.00, 0.10, 0.08, 0.65, 0.00, 0.00, 0.00],  # condenser pressure
        [0.00, 0.00, -0.03, 0.00, 0.00, 0.00, 0.90, 0.00, 0.00],  # tank level
        [0.00, 0.00, 0.00, 0.00, 0.04, 0.05, -0.08, 0.75, 0.00],  # feed temperature: condensate returns warm
        [0.00, 0.00, 0.00, 0.00, 0.00, 0.03, 0.05, 0.00, 0.80],  # conductivity
    ]
)
# columns, per cent of opening: fuel, feedwater | governor, cooling water | make-up, dosing
B = np.array(
    [
        [0.40, 0.00, 0.00, 0.00, 0.00, 0.00],
        [0.18, -0.12, -0.08, 0.00, -0.05, 0.00],
        [0.05, 0.35, 0.02, 0.00, 0.04, 0.00],
        [0.16, -0.04, 0.20, 0.00, 0.00, 0.00],
        [0.10, 0.00, 0.35, -0.05, 0.00, 0.00],
        [0.00, 0.00, 0.12, -0.30, 0.00, 0.00],
        [0.00, -0.06, 0.00, 0.00, 0.35, 0.00],
        [0.00, 0.00, 0.02, 0.00, -0.25, 0.00],
        [0.00, 0.00, 0.00, 0.00, 0.10, -0.35],
    ]
)
C = {  # a row for each output
    "boiler": np.array([
        [0.0, 1.0, 0.0], [0.3, 0.8, 0.0], [0.0, -0.2, 1.0], [1.2, 0.1, 0.0], [0.0, -0.2, 0.6], [-0.6, 0.0, 0.0],
        [0.8, 0.3, 0.0],
    ]),
    "turbine": np.array([
        [1.0, 0.0, 0.0], [0.2, 1.1, -0.2], [0.0, 0.7, 0.0], [0.1, 0.0, 0.9], [0.0, 0.2, 0.8], [0.7, 0.3, 0.0],
        [0.2, 0.5, 0.3],
    ]),
    "water_treatment": np.array([
        [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, -0.2, 0.0], [0.0, -0.6, 0.3], [0.0, 0.1, 0.7],
    ]),
}  # fmt: skip
PROCESS_NOISE = 0.15  # standard deviation of every state, a minute
MEASUREMENT_NOISE = 0.40  # standard deviation of every channel, in units of its scale
SCALE = {"furnace temperature": 10.0, "exhaust pressure": 10.0, "acidity": 0.1}  # of channels where it is not one
INPUT_SPREAD = 2.0  # standard deviation of the test signal on every input, per cent of opening
WINDOW, OPENED, OPENING = 80, 20, 5.0  # the incident: rows before the end, for how many of them, by how much


def linear_steam_plant() -> Plant:
    """The whole plant; its units have ``locals()`` of it."""
    whole = block_diagonal([C[unit.name] for unit in UNITS])
    scale = np.array([SCALE.get(channel.name, 1.0) for unit in UNITS for channel in unit.outputs])
    Q, R = PROCESS_NOISE**2 * np.eye(len(A)), np.diag((MEASUREMENT_NOISE * scale) ** 2)
    return Plant(units=UNITS, A=A, B=B, C=scale[:, None] * whole, Q=Q, R=R, dt=60.0)


def record_incident(plant: Plant, steps: int, seed: int) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Inputs as they were, with a make-up valve that stood too far open near the end, and as they should have been."""
    calm = dict(excitation.white(plant, steps, seed, scale=INPUT_SPREAD))
    inputs = {name: series.copy() for name, series in calm.items()}
    valve = plant.unit("water_treatment").input_names.index("make-up valve")
    start = steps + 1 - WINDOW
    inputs["water_treatment"][start : start + OPENED, valve] += OPENING
    return inputs, calm
