"""What is wrong with records: sensors that miss, hold, round, stick, clip or spike, and plants that change as they run.

Dirt has random numbers of its own, so that the clean case stays what it is: the dirt of a sensor changes some readings
of a record and nothing else, the wear of a plant leaves its inputs, its noise and the changes of its twins as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from zlib import crc32

import numpy as np

from plants.cases import BoolArray, Case, Wear
from plants.plant import FloatArray, Plant

EVERY = 5  # rows between two readings of a slow sensor
LOST, SPIKED = 0.05, 0.005  # of readings
OUTAGE, STUCK = 0.2, 0.1  # of the record
STEP = 0.25  # of the std of a channel
CLIPPED = 0.03  # of readings, on either side
SPIKE = (10.0, 50.0)  # std of the channel
FOULED, OPENED = (0.5, 0.7), (1.5, 2.0)  # factors of a physical parameter
HALFWAY = (0.4, 0.6)  # of the record

Readings = dict[str, tuple[FloatArray, BoolArray]]
"""By unit: what the record shows (T+1, D_m), and which of it is sound."""


def soiled(case: Case, dirt: str) -> Case:
    """A clean case with the dirt of its sensors."""
    shown = {n: (case.y[n].copy(), case.sound[n].copy()) for n in case.names}
    SENSORS[dirt](shown, _stream(case.plant, case.way, case.rows, case.seed, dirt), case.seed)
    return replace(
        case, dirt=dirt, y={n: y for n, (y, _) in shown.items()}, sound={n: sound for n, (_, sound) in shown.items()}
    )


def wear(plant: Plant, way: str, rows: int, seed: int, dirt: str) -> Wear:
    """What happens to a plant: one unit, in turn by the seed; both kinds come to the same factor."""
    rng = _stream(plant.name, way, rows, seed, "wear")
    k = seed % len(plant.units)
    factor = rng.uniform(*(FOULED, OPENED)[int(rng.integers(2))])
    row = int(rng.uniform(*HALFWAY) * rows)
    first, until = (row, row) if dirt == "changed" else (0, rows - 1)
    return Wear(plant.units[k].name, plant.worn[k], factor, first, until)


def _stream(plant: str, way: str, rows: int, seed: int, dirt: str) -> np.random.Generator:
    return np.random.default_rng([seed, rows, *(crc32(part.encode()) for part in (plant, way, dirt))])


def _lost(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for y, sound in shown.values():
        _miss(y, sound, rng.random(y.shape) < LOST)


def _slow_channel(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for k, (y, sound) in enumerate(shown.values()):
        _miss(y[:, -1], sound[:, -1], ~_slow(len(y), k))


def _slow_unit(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    y, sound = shown[_turn(shown, seed)]
    _miss(y, sound, np.repeat(~_slow(len(y), 0)[:, None], y.shape[1], axis=1))


def _outage(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    y, sound = shown[_turn(shown, seed)]
    out = np.zeros(y.shape, dtype=bool)
    out[_stretch(rng, len(y), OUTAGE)] = True
    _miss(y, sound, out)


def _held(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for k, (y, sound) in enumerate(shown.values()):
        fresh = _slow(len(y), k)
        fresh[0] = True  # a log begins with a reading
        y[:, -1] = y[np.maximum.accumulate(np.where(fresh, np.arange(len(y)), 0)), -1]
        sound[:, -1] &= fresh


def _quantised(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for y, _ in shown.values():
        column = y[:, int(rng.integers(y.shape[1]))]
        step = STEP * column.std()
        column[:] = step * np.round(column / step)


def _stuck(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for name in rng.choice(list(shown), size=2, replace=False):
        y, sound = shown[str(name)]
        column, rows = int(rng.integers(y.shape[1])), _stretch(rng, len(y), STUCK)
        y[rows, column] = y[rows.start - 1, column]
        sound[rows, column] = False


def _saturated(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for y, sound in shown.values():
        column = int(rng.integers(y.shape[1]))
        low, high = np.quantile(y[:, column], [CLIPPED, 1 - CLIPPED])
        sound[:, column] = (low <= y[:, column]) & (y[:, column] <= high)
        y[:, column] = np.clip(y[:, column], low, high)


def _spikes(shown: Readings, rng: np.random.Generator, seed: int) -> None:
    for y, sound in shown.values():
        hit = rng.random(y.shape) < SPIKED
        size = rng.uniform(*SPIKE, y.shape) * rng.choice([-1.0, 1.0], y.shape) * y.std(axis=0)
        y[hit] += size[hit]
        sound[hit] = False


def _miss(y: FloatArray, sound: BoolArray, where: BoolArray) -> None:
    y[where], sound[where] = np.nan, False


def _slow(rows: int, phase: int) -> BoolArray:
    """Slow sensors of several units are not read in the same rows."""
    return np.arange(rows) % EVERY == phase % EVERY


def _turn(shown: Readings, seed: int) -> str:
    return list(shown)[seed % len(shown)]


def _stretch(rng: np.random.Generator, rows: int, share: float) -> slice:
    """So many rows in one stretch, with a fifth of the record before and after it."""
    length = int(share * rows)
    start = int(rng.integers(rows // 5, rows - rows // 5 - length + 1))
    return slice(start, start + length)


SENSORS: dict[str, Callable[[Readings, np.random.Generator, int], None]] = {
    "lost": _lost,
    "slow-channel": _slow_channel,
    "slow-unit": _slow_unit,
    "outage": _outage,
    "held": _held,
    "quantised": _quantised,
    "stuck": _stuck,
    "saturated": _saturated,
    "spikes": _spikes,
}
WEARS = ("changed", "drift")
