"""A small activated-sludge plant: an anoxic tank, two aerated tanks and a settler, with Monod kinetics.

Sewage and return sludge enter the anoxic tank; nitrate comes back to it from the second aerated tank. Inputs are the
strength of the sewage, a carbon dose and the two blowers. States of a tank: substrate, ammonium, nitrate, oxygen
and biomass (g/m3); the settler mixes what is dissolved and thickens the biomass. Kinetics as in the activated-sludge
models, with one lumped biomass. The common disturbance is the temperature of the water, which changes all growth.
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

VOLUME = np.array([[1000.0], [1300.0], [1300.0]])  # m3
SETTLER, SLUDGE = 1500.0, 400.0  # m3: clear water, sludge blanket
SEWAGE, RETURN, RECYCLE, WASTE = 700.0, 700.0, 1400.0, 20.0  # m3/h
AMMONIUM, CARBON = 35.0, 400.0  # g/m3 in the sewage; kg/m3 of the carbon dose is CARBON
GROWTH, NITRIFIERS, DECAY, ANOXIC = 0.11, 0.0020, 0.010, 0.8  # 1/h
KS, KO, KOA, KNO, KNH = 12.0, 1.0, 1.0, 1.0, 2.0  # g/m3
YIELD, YIELD_A = 0.67, 0.24
SATURATED = 8.5  # g/m3 of oxygen


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    tanks, settler = x[:15].reshape(3, 5, -1), x[15:]
    return np.concatenate([tanks[0], tanks[1], tanks[2][[0, 1, 2, 4]], tanks[2], settler])


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    SS, NH, NO, SO, X = inside = x[:15].reshape(3, 5, -1).transpose(1, 0, 2)
    SS, NH, NO, SO = (np.maximum(each, 0.0) for each in (SS, NH, NO, SO))
    returned = RETURN * w[3]
    through = SEWAGE + returned + RECYCLE
    to_settler, back, settled = s[10:14], s[14:19], s[19:]
    strength, dose, *blowers = u
    zero = np.zeros_like(strength)
    sewage = np.stack([strength + CARBON * dose / SEWAGE, AMMONIUM + zero, zero, zero, 20.0 + zero])
    sludge = np.stack([settled[0], settled[1], settled[2], zero, settled[3]])
    into_first = (SEWAGE * sewage + returned * sludge + RECYCLE * back) / through
    entering = np.stack([into_first, s[:5], s[5:10]]).transpose(1, 0, 2)
    warm = 1 + 0.05 * d
    one = np.ones_like(w[0])
    food = GROWTH * np.stack([w[0], one, one]) * warm * SS / (KS + SS) * X
    aerobic = food * SO / (KO + SO)
    anoxic = ANOXIC * food * KO / (KO + SO) * NO / (KNO + NO)
    nitrified = NITRIFIERS * warm * NH / (KNH + NH) * SO / (KOA + SO) * X / YIELD_A
    transfer = np.stack([0.2 + zero, 9.0 * w[1] * (blowers[0] / 50) ** 0.8, 6.0 * w[2] * (blowers[1] / 50) ** 0.8])
    change = np.stack([
        -(aerobic + anoxic) / YIELD + 0.9 * DECAY * X,
        -0.08 * (aerobic + anoxic) - nitrified + 0.05 * DECAY * X,
        nitrified - (1 - YIELD) / (2.86 * YIELD) * anoxic,
        -(1 - YIELD) / YIELD * aerobic - 4.33 * nitrified + transfer * (SATURATED - SO),
        aerobic + anoxic - DECAY * X,
    ])  # fmt: skip
    tanks = (change + through * (entering - inside) / VOLUME).transpose(1, 0, 2).reshape(15, -1)
    clear = (SEWAGE + returned) * (to_settler[:3] - x[15:18]) / SETTLER
    thick = ((SEWAGE + returned) * to_settler[3] - (returned + WASTE) * x[18]) / SLUDGE
    return np.concatenate([tanks, clear, thick[None]])


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    first, second, third = x[:15].reshape(3, 5, -1)
    settler = x[15:]
    redox = 50.0 * np.log(np.maximum(first[2], 0.05)) - 10.0 * np.log(np.maximum(first[0], 0.05))
    return np.stack([
        first[0], first[1], first[2], redox, 0.75 * first[4],
        second[1], second[2], second[3], second[0],
        third[1], third[2], third[3], 0.75 * third[4],
        settler[1], settler[2], 0.75 * settler[3],
    ])  # fmt: skip


def _channels(k: int, *letters: tuple[str, str]) -> list[cf.Channel]:
    return [cf.Channel(f"{tag}-{k}0{i}", unit) for i, (tag, unit) in enumerate(letters, 1)]


COD, NH4, NO3, O2, TSS = ((f"AI-{what}", "mg/L") for what in ("COD", "NH4", "NO3", "O2", "TSS"))

plant = Plant(
    name="sludge",
    units=(
        cf.Unit("anoxic", inputs=[cf.Channel("AIC-106.SP", "mg/L"), cf.Channel("FIC-107.SP", "m3/h")],
                outputs=_channels(1, COD, NH4, NO3, ("EI", "mV"), TSS)),
        cf.Unit("aerated_1", inputs=[cf.Channel("SIC-205.SP", "%")], outputs=_channels(2, NH4, NO3, O2, COD)),
        cf.Unit("aerated_2", inputs=[cf.Channel("SIC-305.SP", "%")], outputs=_channels(3, NH4, NO3, O2, TSS)),
        cf.Unit("settler", inputs=0, outputs=_channels(4, NH4, NO3, TSS)),
    ),
    dt=1 / 12,
    horizon=150,
    u0=np.array([120.0, 20.0, 50.0, 50.0]),
    span=np.array([120.0, 40.0, 50.0, 50.0]),
    x0=np.array([8.0, 10.0, 4.5, 0.1, 1420.0, 1.5, 7.0, 7.5, 3.5, 1420.0, 0.7, 4.0, 10.0, 3.5, 1420.0,
                 0.7, 4.0, 10.0, 2760.0]),
    owner=("anoxic",) * 5 + ("aerated_1",) * 5 + ("aerated_2",) * 5 + ("settler",) * 4,
    stiff=np.array([1.0] * 15 + [0.3] * 3 + [1.0]),
    streams=(("anoxic", "aerated_1"),) * 5 + (("aerated_1", "aerated_2"),) * 5 + (("aerated_2", "settler"),) * 4
    + (("aerated_2", "anoxic"),) * 5 + (("settler", "anoxic"),) * 4,
    worn=("rate of growth", "oxygen transfer of the diffusers", "oxygen transfer of the diffusers",
          "flow of the return pump"),
    send=_send,
    rate=_rate,
    read=_read,
    hold=100,
    substeps=3,
)  # fmt: skip
