"""A building of four zones and an air handler: temperatures and carbon dioxide.

The air handler supplies two offices and a laboratory through dampers; their air leaves through the corridor, from which
the handler takes most of its air again. The corridor's walls touch every zone. Fan, dampers, coil and radiator valves
are not linear. States: air handler (coil, supply temperature, fan, CO2); zones (air, wall, CO2, air flow, radiator);
corridor (air, wall, CO2). The common disturbance is the weather outside.
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

OUTSIDE, FRESH_CO2, FRESH_SHARE = 4.0, 420.0, 0.35
HOT = 65.0  # degC, water of coil and radiators
ZONES = ("north", "south", "lab")
AIR = np.array([[1.0], [0.8], [1.3]])  # relative volume of each zone
LOSS = np.array([[0.10], [0.07], [0.08]])  # 1/h through facade
PEOPLE = np.array([[300.0], [350.0], [250.0]])  # ppm/h at rated volume
GAINS = np.array([[0.4], [0.6], [1.2]])  # K/h, people and machines


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    _, supply, fan, carbon = x[:4]
    handler = [supply, fan, carbon]
    air, _, co2, flow, _ = x[4:19].reshape(3, 5, -1).transpose(1, 0, 2)
    zones = np.stack([air, co2, flow], axis=1).reshape(9, -1)
    corridor = x[19:]
    return np.concatenate([np.stack(handler * 3), zones, np.stack([corridor[0]] * 3), corridor[[0, 2]]])


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    coil, supply, fan, carbon = x[:4]
    air, wall, co2, flow, radiator = x[4:19].reshape(3, 5, -1).transpose(1, 0, 2)
    hall, hall_wall, hall_co2 = x[19:]
    outside = OUTSIDE + 3.0 * d
    given, fan_seen, carbon_seen = s[:9].reshape(3, 3, -1).transpose(1, 0, 2)
    from_zone = s[9:18].reshape(3, 3, -1)
    hall_seen, back, back_co2 = s[18:21], s[21], s[22]
    valve, speed = (u[0] / 50) ** 2, u[1] / 50
    damper = w[1:4] * (u[[2, 4, 5]] / 50) ** 1.5
    heating = np.stack([u[3], np.full_like(u[3], 50.0), u[6]]) / 50
    mixed = FRESH_SHARE * outside + (1 - FRESH_SHARE) * back
    handler = np.stack([
        3.0 * w[0] * valve * (HOT - coil) - 6.0 * fan**0.8 * (coil - supply),
        10.0 * fan * (mixed - supply) + 4.0 * fan**0.8 * (coil - supply),
        6.0 * (speed - fan),
        8.0 * fan * (FRESH_SHARE * FRESH_CO2 + (1 - FRESH_SHARE) * back_co2 - carbon),
    ])  # fmt: skip
    zone = np.stack([
        (1.5 * flow * (given - air) + 0.6 * (wall - air) + 0.15 * (radiator - air) + 0.15 * (hall_seen - air)
         + GAINS) / AIR - LOSS * (air - outside),
        0.25 * (air - wall) - 0.03 * (wall - outside),
        (1.5 * flow * (carbon_seen - co2) + PEOPLE) / AIR,
        6.0 * (fan_seen * damper - flow),
        2.0 * heating**2 * (HOT - radiator) - 1.5 * (radiator - air),
    ], axis=1).reshape(15, -1)  # fmt: skip
    passing = from_zone[:, 2]
    corridor = np.stack([
        (0.8 * w[4] * passing * (from_zone[:, 0] - hall) + 0.12 * (from_zone[:, 0] - hall)).sum(axis=0)
        + 0.5 * (hall_wall - hall) - 0.05 * (hall - outside),
        0.2 * (hall - hall_wall) - 0.02 * (hall_wall - outside),
        (0.8 * w[4] * passing * (from_zone[:, 1] - hall_co2)).sum(axis=0) + 40.0,
    ])  # fmt: skip
    return np.concatenate([handler, zone, corridor])


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    zones = x[4:19].reshape(3, 5, -1)
    flow_rate = 900.0 * zones[:, 3]
    shown = np.stack([zones[:, 0], zones[:, 1], zones[:, 2], flow_rate, zones[:, 4]], axis=1).reshape(15, -1)
    pressure = 250.0 * x[2] ** 2
    return np.concatenate([np.stack([x[0], x[1], pressure, x[3]]), shown, x[19:]])


def _zone(k: int, *inputs: str) -> cf.Unit:
    outputs = [("TI", "degC"), ("TW", "degC"), ("QI", "ppm"), ("FI", "m3/h"), ("TR", "degC")]
    return cf.Unit(
        ZONES[k - 2],
        inputs=[cf.Channel(tag, "%") for tag in inputs],
        outputs=[cf.Channel(f"{letters}-{k}0{i + 1}", unit) for i, (letters, unit) in enumerate(outputs)],
    )


plant = Plant(
    name="building",
    units=(
        cf.Unit("handler", inputs=[cf.Channel("TIC-102.OP", "%"), cf.Channel("SIC-103.SP", "%")],
                outputs=[cf.Channel("TI-101", "degC"), cf.Channel("TI-102", "degC"), cf.Channel("PI-103", "Pa"),
                         cf.Channel("QI-104", "ppm")]),
        _zone(2, "FV-204.OP", "TV-205.OP"),
        _zone(3, "FV-304.OP"),
        _zone(4, "FV-404.OP", "TV-405.OP"),
        cf.Unit("corridor", inputs=0, outputs=[cf.Channel("TI-501", "degC"), cf.Channel("TW-502", "degC"),
                                               cf.Channel("QI-503", "ppm")]),
    ),
    dt=1 / 12,
    horizon=120,
    u0=np.full(7, 50.0),
    span=np.full(7, 50.0),
    x0=np.array([45.0, 24.0, 1.0, 600.0, *[21.0, 19.0, 800.0, 1.0, 45.0] * 3, 21.0, 19.0, 800.0]),
    owner=("handler",) * 4 + tuple(name for name in ZONES for _ in range(5)) + ("corridor",) * 3,
    stiff=np.array([1.0, 1.0, 2.0, 1.0, *[1.0, 0.7, 1.0, 2.0, 1.0] * 3, 1.0, 0.7, 1.0]),
    streams=tuple(("handler", name) for name in ZONES for _ in range(3))
    + tuple((name, "corridor") for name in ZONES for _ in range(3))
    + tuple(("corridor", name) for name in ZONES) + (("corridor", "handler"),) * 2,
    worn=("valve of the coil", "damper", "damper", "damper", "share of the zones' air that passes"),
    send=_send,
    rate=_rate,
    read=_read,
    hold=60,
    substeps=1,
)  # fmt: skip
