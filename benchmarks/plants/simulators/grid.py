"""A power grid: six areas in a ring with a chord, each with a turbine that droop controls and a slow boiler.

Tie lines carry power with the sine of the angle between two areas, so that all share one frequency, which is slow; the
boilers' pressures are ten times slower than the turbines. Inputs are the load reference of each turbine, the load of
its consumers (which is metered) and, in three areas, a storage plant. The common disturbance is wind in all areas.
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

AREAS = 6
LINES = ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (1, 4))
STORAGE = (0, 2, 4)
REFERENCES, LOADS, STORED = [0, 3, 5, 8, 10, 13], [1, 4, 6, 9, 11, 14], [2, 7, 12]  # places of inputs, unit by unit
INERTIA = np.array([9.0, 7.0, 11.0, 8.0, 10.0, 6.0])[:, None]  # s
TIES = np.array([1.1, 0.9, 1.3, 1.0, 0.8, 1.2, 0.7])[:, None]  # per unit
DROOP, DAMPING = 0.06, 1.2  # per unit frequency for one unit of power; per unit power for one of frequency
TURBINE, BOILER, METER = 4.0, 60.0, 8.0  # s


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    angle = x[:AREAS]
    return np.stack([angle[at] for pair in LINES for at in pair])


def _flows(s: FloatArray) -> FloatArray:
    """Power from the first to the second area of each line."""
    return TIES * np.sin(s[0::2] - s[1::2])


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    angle, speed, turbine, pressure, metered = x.reshape(5, AREAS, -1)
    reference, load, storage = u[REFERENCES], u[LOADS], np.zeros_like(angle)
    storage[list(STORAGE)] = u[STORED]
    out, flows = np.zeros_like(angle), _flows(s)
    for (one, two), flow in zip(LINES, flows, strict=True):
        out[one] += flow
        out[two] -= flow
    valve = np.clip(reference - speed / DROOP, 0.0, 1.5)
    steam = valve * np.maximum(pressure, 0.1)
    balance = turbine + storage + 0.05 * d - load - DAMPING * speed - out
    return np.concatenate([
        100 * speed - 0.02 * (angle - angle.mean(axis=0)), balance / (2 * INERTIA) / 2,
        w * (steam - turbine) / TURBINE, (0.8 + 0.6 * (1 - pressure) - steam + 0.4 * (reference - 0.8)) / BOILER,
        (out - metered) / METER,
    ])  # fmt: skip


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    _, speed, turbine, pressure, metered = x.reshape(5, AREAS, -1)
    areas = range(AREAS)
    return np.concatenate(
        [np.stack([50 * (1 + speed[k]), 600 * turbine[k], 160 * pressure[k], 600 * metered[k]]) for k in areas]
    )


plant = Plant(
    name="grid",
    units=tuple(
        cf.Unit(
            f"A{k + 1}",
            inputs=[
                cf.Channel("load reference", "pu"), cf.Channel("load", "pu"),
                *([cf.Channel("storage", "pu")] if k in STORAGE else []),
            ],
            outputs=[
                cf.Channel("frequency", "Hz"), cf.Channel("power", "MW"), cf.Channel("pressure", "bar"),
                cf.Channel("export", "MW"),
            ],
        )
        for k in range(AREAS)
    ),
    dt=4.0, horizon=60, u0=np.array([0.8, 0.8, 0.0, 0.8, 0.8] * 3), span=np.array([1.0, 1.0, 0.8, 1.0, 1.0] * 3),
    x0=np.concatenate([np.zeros(AREAS), np.zeros(AREAS), np.full(AREAS, 0.8), np.ones(AREAS), np.zeros(AREAS)]),
    owner=tuple(f"A{k + 1}" for _ in range(5) for k in range(AREAS)),
    stiff=np.ones(5 * AREAS),
    streams=tuple((f"A{a + 1}", f"A{b + 1}") for one, two in LINES for a, b in ((one, two), (two, one))),
    worn=("turbine",) * AREAS, send=_send, rate=_rate, read=_read, hold=60, substeps=24,
)  # fmt: skip
