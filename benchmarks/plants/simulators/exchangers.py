"""A network of heat exchangers: two counterflow exchangers, a steam heater, a vessel, a cooler, and a recycle.

Cold liquid goes E1 -> E2 -> H3 -> V5; the hot liquid of the vessel comes back through E2 and E1, then C4 cools it; a
part joins the feed of E1. Bypasses, steam valve and cooling water multiply temperature differences: everything is
bilinear. Flows of liquid are fixed (1 vessel volume of each cell in CELL minutes). An exchanger has two cells on each
side and a mixing pipe behind its bypass. States are temperatures (degC). The common disturbance is the air around.
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

CELL, PIPE, VESSEL, WALL = 3.0, 2.0, 8.0, 6.0  # min
EXCHANGE = 0.35  # 1/min between the cells of an exchanger at full flow
RECYCLE = 0.4  # of the cooler's liquid to the feed of E1
STEAM, WATER, AIR = 165.0, 15.0, 20.0  # degC
LOSS = 0.02  # 1/min to the air around
COLUMNS = {"E1": slice(0, 5), "E2": slice(5, 10), "H3": slice(10, 12), "V5": slice(12, 14), "C4": slice(14, 16)}


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    # cold E1 -> E2, cold E2 -> H3, H3 -> V5, V5 -> E2, hot E2 -> E1, hot E1 -> C4, C4 -> E1
    return np.stack([x[1], x[9], x[10], x[12], x[8], x[4], x[14]])


def _cells(
    part: FloatArray, cold_in: FloatArray, hot_in: FloatArray, cold: FloatArray, hot: FloatArray, clean: FloatArray
) -> FloatArray:
    """Cold cells 1, 2 and hot cells 1, 2 of an exchanger; ``cold`` and ``hot`` are the shares that pass through it."""
    c1, c2, h1, h2 = part[:4]
    exchange = EXCHANGE * clean * (cold * hot) ** 0.6
    first, second = exchange * (h2 - c1), exchange * (h1 - c2)
    return np.stack([
        cold * (cold_in - c1) / CELL + first, cold * (c1 - c2) / CELL + second,
        hot * (hot_in - h1) / CELL - second, hot * (h1 - h2) / CELL - first,
    ])  # fmt: skip


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    air = AIR + 5.0 * d
    cold_1, cold_2, heated, vessel, hot_2, hot_1, cooled = s
    bypass_1, feed, bypass_2, steam, water = u[0] / 100, u[1], u[2] / 100, u[3] / 50, u[4] / 50
    e1, e2, (heater, chest), (liquid, wall), (product, jacket) = (x[part] for part in COLUMNS.values())
    whole = np.ones_like(feed)
    into_1 = (1 - RECYCLE) * feed + RECYCLE * cooled
    one = _cells(e1, into_1, hot_2, whole, 1 - bypass_1, w[0])
    pipe_1 = ((1 - bypass_1) * e1[3] + bypass_1 * hot_2 - e1[4]) / PIPE
    two = _cells(e2, cold_1, vessel, 1 - bypass_2, whole, w[1])
    pipe_2 = ((1 - bypass_2) * e2[1] + bypass_2 * cold_1 - e2[4]) / PIPE
    heat = 0.25 * (chest - heater)
    opening = 20.0 ** (steam - 1)  # equal percentage
    reaction = 1.2 * w[3] * np.exp(0.03 * (liquid - 95.0))
    return np.stack([
        *one, pipe_1, *two, pipe_2,
        (cold_2 - heater) / CELL + heat, 0.3 * w[2] * opening * (STEAM - chest) - 1.5 * heat,
        (heated - liquid) / VESSEL + reaction + (wall - liquid) / WALL,
        (liquid - wall) / WALL / 2 - LOSS * (wall - air),
        (hot_1 - product) / CELL - 0.3 * w[4] * (product - jacket) - LOSS * (product - air),
        0.25 * water * (WATER + 3.0 * d - jacket) + 0.3 * w[4] * (product - jacket),
    ])  # fmt: skip


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    chest = 0.01 * np.maximum(x[11], 0.0) ** 2 / 15.0  # steam pressure goes with the square of its temperature, here
    return np.stack([
        x[0], x[1], x[3], x[4], x[6], x[7], x[8], x[9], x[10], x[11], chest, x[12], x[13], x[14], x[15],
    ])  # fmt: skip


def _temperatures(*tags: int) -> list[cf.Channel]:
    return [cf.Channel(f"TI-{tag}", "degC") for tag in tags]


plant = Plant(
    name="exchangers",
    units=(
        cf.Unit("E1", inputs=[cf.Channel("HIC-105.OP", "%"), cf.Channel("TIC-106.SP", "degC")],
                outputs=_temperatures(101, 102, 103, 104)),
        cf.Unit("E2", inputs=[cf.Channel("HIC-205.OP", "%")], outputs=_temperatures(201, 202, 203, 204)),
        cf.Unit("H3", inputs=[cf.Channel("TIC-301.OP", "%")], outputs=[*_temperatures(301, 302),
                cf.Channel("PI-303", "bar")]),
        cf.Unit("V5", inputs=0, outputs=_temperatures(501, 502)),
        cf.Unit("C4", inputs=[cf.Channel("FIC-403.OP", "%")], outputs=_temperatures(401, 402)),
    ),
    dt=1.0,
    horizon=120,
    u0=np.array([40.0, 25.0, 40.0, 50.0, 50.0]),
    span=np.array([60.0, 40.0, 60.0, 50.0, 50.0]),
    x0=np.array([40.0, 50.0, 70.0, 60.0, 65.0, 60.0, 70.0, 90.0, 80.0, 68.0, 95.0, 120.0, 95.0, 80.0, 40.0, 30.0]),
    owner=tuple(name for name, part in COLUMNS.items() for _ in range(part.stop - part.start)),
    stiff=np.array([*[1.0] * 4, 2.0, *[1.0] * 4, 2.0, 1.0, 2.0, 0.25, 0.15, 1.0, 1.5]),
    streams=(("E1", "E2"), ("E2", "H3"), ("H3", "V5"), ("V5", "E2"), ("E2", "E1"), ("E1", "C4"), ("C4", "E1")),
    worn=("heat transfer", "heat transfer", "steam valve", "rate of the reaction", "heat transfer"),
    send=_send,
    rate=_rate,
    read=_read,
    hold=60,
    substeps=1,
)  # fmt: skip
