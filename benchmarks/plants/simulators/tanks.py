"""The quadruple tank (Johansson, 2000): two pumps, each feeding one lower tank and, across, one upper tank.

T3 drains into T1 and T4 into T2. Pump 1 stands at T1 and also feeds T4; pump 2 stands at T2 and also feeds T3. The
drain of T3 has a valve. Outflows go with the root of the level. States: levels (cm), speeds of the pumps, position
of the valve. The common disturbance is rain (cm³/s) into all tanks.
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

AREA = np.array([[28.0], [32.0], [28.0], [32.0]])  # cm²
DRAIN = np.array([[0.071], [0.057], [0.071], [0.057]])  # cm²
GRAVITY = 981.0  # cm/s²
PUMP = (3.33, 3.35)  # cm³/s for each volt
TO_LOWER = (0.60, 0.55)  # share of a pump's flow that goes to the lower tank
LAG = 6.0  # s, of pumps and valve


def _outflow(x: FloatArray, w: FloatArray) -> FloatArray:
    h, valve = x[:4], x[6] / 50.0
    one = np.ones_like(valve)
    opening = np.stack([one, w[1] * one, w[2] * valve, w[3] * one])
    return DRAIN * opening * np.sqrt(2 * GRAVITY * np.maximum(h, 1e-3))


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    out = _outflow(x, w)
    return np.stack([out[2], out[3], (1 - TO_LOWER[0]) * PUMP[0] * w[0] * x[4], (1 - TO_LOWER[1]) * PUMP[1] * x[5]])


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    inflow = np.stack([TO_LOWER[0] * PUMP[0] * w[0] * x[4] + s[0], TO_LOWER[1] * PUMP[1] * x[5] + s[1], s[3], s[2]])
    return np.concatenate([(inflow + d - _outflow(x, w)) / AREA, (u - x[4:]) / LAG])


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    h, out = x[:4], 0.06 * _outflow(x, w)
    pump = 0.06 * np.stack([PUMP[0] * w[0] * x[4], PUMP[1] * x[5]])
    pressure = 0.0981 * h
    return np.stack([
        h[0], pressure[0], out[0], pump[0], h[1], pressure[1], out[1], pump[1],
        h[2], pressure[2], out[2], h[3], pressure[3], out[3],
    ])  # fmt: skip


def _outputs(k: int, *more: str) -> list[cf.Channel]:
    named = [(f"LI-{k}01", "cm"), (f"PI-{k}02", "kPa"), (f"FI-{k}03", "L/min"), *((tag, "L/min") for tag in more)]
    return [cf.Channel(*each) for each in named]


plant = Plant(
    name="tanks",
    units=(
        cf.Unit("T1", inputs=[cf.Channel("FIC-104.OP", "V")], outputs=_outputs(1, "FI-104")),
        cf.Unit("T2", inputs=[cf.Channel("FIC-204.OP", "V")], outputs=_outputs(2, "FI-204")),
        cf.Unit("T3", inputs=[cf.Channel("HV-303.OP", "%")], outputs=_outputs(3)),
        cf.Unit("T4", inputs=0, outputs=_outputs(4)),
    ),
    dt=3.0,
    horizon=120,
    u0=np.array([3.0, 3.0, 50.0]),
    span=np.array([3.0, 3.0, 50.0]),
    x0=np.array([12.0, 12.0, 3.0, 3.0, 3.0, 3.0, 50.0]),
    owner=("T1", "T2", "T3", "T4", "T1", "T2", "T3"),
    stiff=np.array([0.25, 0.25, 2.0, 2.0, 2.0, 2.0, 2.0]),
    streams=(("T3", "T1"), ("T4", "T2"), ("T1", "T4"), ("T2", "T3")),
    worn=("flow of the pump for each volt", "drain", "drain and its valve", "drain"),
    send=_send,
    rate=_rate,
    read=_read,
    hold=60,
    substeps=1,
)
