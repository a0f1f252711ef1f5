"""A binary distillation column of eleven stages in five units: drum, rectifying, feed, stripping, reboiler.

Constant relative volatility and molar overflow, perfect levels in drum and reboiler, liquid flows that follow with a
lag in each section. Boil-up passes all stages at once, so the reboiler acts on every section
directly. States: mole
fractions of the light component on each stage, liquid flow out of each section, vapour flow out of the reboiler.
The common disturbance changes the volatility of all stages (pressure).
"""

from __future__ import annotations

import numpy as np

import counterflow as cf
from plants.plant import FloatArray, Plant

VOLATILITY = 2.2
HOLDUP, DRUM, BASE = 2.5, 5.0, 8.0  # kmol
TURNOVER = 1.2  # kmol/min of vapour that the drum condenses
LAG_LIQUID, LAG_VAPOUR, LAG_REFLUX = 3.0, 2.0, 2.0  # min
STAGES = 3  # in each section
AUTHORITY = 0.25  # of the pressure drop of its line that a control valve takes, as built
LIGHT, HEAVY = 80.0, 111.0  # degC, boiling points
SECTIONS = ("rectifying", "feed", "stripping")
# columns of x: drum, reflux | 3 stages, liquid | 3 stages, liquid | 3 stages, liquid | reboiler, vapour


def _vapour(x: FloatArray, shift: FloatArray | float = 0.0, trays: FloatArray | float = 1.0) -> FloatArray:
    volatility = VOLATILITY + shift + (VOLATILITY - 1) * (trays - 1)
    return volatility * x / (1 + (volatility - 1) * x)


def _passed(valve: FloatArray) -> FloatArray:
    """The flow in a line for a valve coefficient, both over those as built: the line resists too."""
    return 1 / np.sqrt(AUTHORITY / valve**2 + (1 - AUTHORITY))


def _parts(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Stages (section, stage, batch), from the top, and liquid flows (section, batch)."""
    sections = x[2:14].reshape(3, STAGES + 1, -1)
    return sections[:, :STAGES], sections[:, STAGES]


def _send(x: FloatArray, u: FloatArray, w: FloatArray) -> FloatArray:
    stages, liquid = _parts(x)
    rising, falling = _vapour(stages[:, 0], trays=w[1:4]), stages[:, -1]
    boil = x[15]
    return np.stack([
        x[0], x[1], falling[0], liquid[0], falling[1], liquid[1], falling[2], liquid[2],
        rising[0], rising[1], rising[2], _vapour(x[14]), boil, boil, boil,
    ])  # fmt: skip


def _rate(x: FloatArray, u: FloatArray, s: FloatArray, d: FloatArray, w: FloatArray) -> FloatArray:
    stages, liquid = _parts(x)
    reflux, feed, strength, boil = u
    down = s[[0, 2, 4]]  # composition of the liquid that enters each section
    flow = s[[1, 3, 5]]  # and its flow
    rising = s[[9, 10, 11]]  # composition of the vapour that enters each section
    vapour = s[12:15]
    y = _vapour(stages, 0.05 * d, w[1:4, None])
    above = np.concatenate([down[:, None], stages[:, :-1]], axis=1)
    below = np.concatenate([y[:, 1:], rising[:, None]], axis=1)
    change = flow[:, None] * (above - stages) + vapour[:, None] * (below - y)
    fed = np.zeros_like(liquid)
    fed[1] = feed
    change[1, 0] += feed * (strength - stages[1, 0])
    change[1, 1:] += feed * (stages[1, :-1] - stages[1, 1:])
    section = np.concatenate([change / HOLDUP, ((flow + fed - liquid) / LAG_LIQUID)[:, None]], axis=1)
    base = (s[7] * (s[6] - x[14]) - x[15] * (_vapour(x[14], 0.05 * d) - x[14])) / BASE
    top = np.stack([TURNOVER * (s[8] - x[0]) / DRUM, (_passed(w[0]) * reflux - x[1]) / LAG_REFLUX])
    return np.concatenate([top, section.reshape(12, -1), np.stack([base, (_passed(w[4]) * boil - x[15]) / LAG_VAPOUR])])


def _temperature(x: FloatArray) -> FloatArray:
    return HEAVY - (HEAVY - LIGHT) * x * (1.35 - 0.35 * x)


def _read(x: FloatArray, w: FloatArray) -> FloatArray:
    stages, liquid = _parts(x)
    warm = _temperature(stages)
    sections = np.concatenate([warm, 60 * liquid[:, None]], axis=1).reshape(12, -1)
    top = np.stack([100 * x[0], _temperature(x[0]), 60 * x[1]])
    return np.concatenate([top, sections, np.stack([100 * x[14], _temperature(x[14]), 60 * x[15]])])


def _end(k: int) -> list[cf.Channel]:
    return [cf.Channel(f"AI-{k}01", "mol %"), cf.Channel(f"TI-{k}02", "degC"), cf.Channel(f"FI-{k}03", "kmol/h")]


def _section(k: int) -> list[cf.Channel]:
    return [cf.Channel(f"TI-{k}0{i}", "degC") for i in (1, 2, 3)] + [cf.Channel(f"FI-{k}04", "kmol/h")]


def _pipes(source: str, sink: str) -> tuple[tuple[str, str], ...]:
    return ((source, sink), (source, sink))


plant = Plant(
    name="column",
    units=(
        cf.Unit("drum", inputs=[cf.Channel("FIC-103.SP", "kmol/min")], outputs=_end(1)),
        cf.Unit("rectifying", inputs=0, outputs=_section(2)),
        cf.Unit("feed", inputs=[cf.Channel("FIC-305.SP", "kmol/min"), cf.Channel("AI-306", "mol/mol")],
                outputs=_section(3)),
        cf.Unit("stripping", inputs=0, outputs=_section(4)),
        cf.Unit("reboiler", inputs=[cf.Channel("FIC-503.SP", "kmol/min")], outputs=_end(5)),
    ),
    dt=0.5,
    horizon=150,
    u0=np.array([0.7, 1.0, 0.5, 1.2]),
    span=np.array([0.35, 0.5, 0.25, 0.6]),
    x0=np.array([0.9, 0.7, 0.85, 0.8, 0.7, 0.7, 0.5, 0.48, 0.46, 1.7, 0.4, 0.3, 0.2, 1.7, 0.1, 1.2]),
    owner=("drum",) * 2 + tuple(name for name in SECTIONS for _ in range(4)) + ("reboiler",) * 2,
    stiff=np.array([0.5, 1.5, *([1.0] * 3 + [2.0]) * 3, 0.3, 1.5]),
    streams=_pipes("drum", "rectifying") + _pipes("rectifying", "feed") + _pipes("feed", "stripping")
    + _pipes("stripping", "reboiler")
    + (("rectifying", "drum"), ("feed", "rectifying"), ("stripping", "feed"), ("reboiler", "stripping"))
    + (("reboiler", "rectifying"), ("reboiler", "feed"), ("reboiler", "stripping")),
    worn=("valve of the reflux", "separation of the trays", "separation of the trays",
          "separation of the trays", "valve of the steam"),
    send=_send,
    rate=_rate,
    read=_read,
    hold=100,
    substeps=1,
)  # fmt: skip
