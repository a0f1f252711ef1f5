"""Four stirred reactors in a chain, with jackets and recycle: A -> B -> C, both steps exothermic (Arrhenius).

Fresh feed enters R1; R2 and R3 get side feeds. R4 sends recycle to R1 and R2. The water of R1's jacket goes on to R3's.
Flows of liquid are fixed; inputs are jacket valves, feed concentrations and feed temperatures.
States of each reactor: concentration of A and B (mol/L), temperature (K), jacket temperature (K).
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

NAMES = ("R1", "R2", "R3", "R4")
VOLUME = np.array([[100.0], [80.0], [90.0], [110.0]])  # L
FRESH, SIDE_2, SIDE_3, TO_1, TO_2 = 6.0, 3.0, 3.0, 6.0, 4.0  # L/min
FLOW_1 = FRESH + TO_1
FLOW_2 = FLOW_1 + SIDE_2 + TO_2
FLOW_3 = FLOW_2 + SIDE_3
K1, E1, K2, E2 = 0.12, 6500.0, 0.035, 7600.0  # 1/min at 330 K, activation energies over the gas constant (K)
HEAT_1, HEAT_2 = 30.0, 22.0  # K for each mol/L
UA, UA_JACKET = 0.12, 0.25  # 1/min
COLD = 290.0  # K, cooling water
FEED_T = 330.0  # K
JACKET_FLOW = 0.3  # 1/min of a jacket's volume at a valve of 50 %


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    state = x.reshape(4, 4, -1)  # reactor, (A, B, T, jacket)
    liquid = state[:, :3]
    # R1 -> R2, R2 -> R3, R3 -> R4, R4 -> R1, R4 -> R2: three numbers each; the jacket water of R1 -> R3
    return np.concatenate([*liquid, liquid[3], state[0, 3][None]])


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    A, B, T, J = x.reshape(4, 4, -1).transpose(1, 0, 2)
    from_1, from_2, from_3, to_1, to_2 = s[:15].reshape(5, 3, -1)
    valve = u[[0, 2, 4, 6]] / 50.0
    one = np.ones_like(w[0])
    clean, active = np.stack([w[0], one, w[2], one]), np.stack([one, w[1], one, one])
    wide = np.stack([one, one, one, w[3]])
    zero = np.zeros_like(u[0])

    def feed(strength: FloatArray, temperature: FloatArray | float) -> FloatArray:
        return np.stack([strength, zero, temperature + zero])

    entering = np.stack(
        [
            FRESH * feed(u[1], FEED_T) + TO_1 * to_1,
            FLOW_1 * from_1 + SIDE_2 * feed(0.8 + zero, u[3]) + TO_2 * to_2,
            FLOW_2 * from_2 + SIDE_3 * feed(u[5], FEED_T),
            FLOW_3 * from_3,
        ]
    ).transpose(1, 0, 2)
    through = np.array([[FLOW_1], [FLOW_2], [FLOW_3], [FLOW_3]])
    first = K1 * active * np.exp(E1 * (1 / 330.0 - 1 / T)) * A
    second = K2 * active * np.exp(E2 * (1 / 330.0 - 1 / T)) * B
    supply = COLD + d + np.stack([zero, zero, 0.4 * (s[15] - COLD), zero])
    dA = (entering[0] - through * A) / VOLUME - first
    dB = (entering[1] - through * B) / VOLUME + first - second
    dT = (entering[2] - through * T) / VOLUME + HEAT_1 * first + HEAT_2 * second - UA * clean * (T - J)
    dJ = JACKET_FLOW * wide * valve**1.5 * (supply - J) + UA_JACKET * clean * (T - J)
    return np.stack([dA, dB, dT, dJ], axis=1).reshape(16, -1)


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    A, B, T, J = x.reshape(4, 4, -1).transpose(1, 0, 2)
    conductivity = 2.0 + 3.0 * A + 1.2 * B
    return np.stack([conductivity, B, T - 273.15, J - 273.15], axis=1).reshape(16, -1)


def _unit(k: int, *more: cf.Channel) -> cf.Unit:
    outputs = [cf.Channel(f"QI-{k}01", "mS/cm"), cf.Channel(f"AI-{k}02", "mol/L"), cf.Channel(f"TI-{k}03", "degC")]
    return cf.Unit(
        f"R{k}", inputs=[cf.Channel(f"TIC-{k}03.OP", "%"), *more], outputs=[*outputs, cf.Channel(f"TI-{k}04", "degC")]
    )


plant = Plant(
    name="reactors",
    units=(
        _unit(1, cf.Channel("AIC-105.SP", "mol/L")),
        _unit(2, cf.Channel("TIC-205.SP", "K")),
        _unit(3, cf.Channel("AIC-305.SP", "mol/L")),
        _unit(4),
    ),
    dt=1.0,
    horizon=90,
    u0=np.array([50.0, 1.5, 50.0, 325.0, 50.0, 1.2, 50.0]),
    span=np.array([50.0, 1.5, 50.0, 80.0, 50.0, 1.2, 50.0]),
    x0=np.tile([0.8, 0.4, 325.0, 305.0], 4),
    owner=tuple(name for name in NAMES for _ in range(4)),
    stiff=np.tile([1.0, 0.6, 0.15, 2.0], 4),
    streams=(("R1", "R2"),) * 3 + (("R2", "R3"),) * 3 + (("R3", "R4"),) * 3 + (("R4", "R1"),) * 3
    + (("R4", "R2"),) * 3 + (("R1", "R3"),),
    worn=("heat transfer to the jacket", "rate constants", "heat transfer to the jacket", "valve of the jacket"),
    send=_send,
    rate=_rate,
    read=_read,
    substeps=1,
)  # fmt: skip
