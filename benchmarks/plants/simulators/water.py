"""EPANET's network Net3 in three districts (benchmarks/net3.py), nothing controlled: pumps and demands move as told.

Recorded inputs are shifted by one row against EPANET's report, so that the input of row t - 1 acts on row t as
everywhere here. Process noise and the common disturbance are demands that nobody records. EPANET has no transport
delay and no pace, and its pipes couple every district with every other at once, so there is no graph of direct
couplings.
"""

from __future__ import annotations

import net3
import numpy as np

from plants import cases, ways
from plants.cases import Case, Change
from plants.plant import FloatArray
from plants.ways import Way

OFFERED = ("gentle", "wide", "common")
HORIZON, WARM_UP, HOLD = 120, 288, 24
BASE = np.array([net3.DEMAND] * 3 + list(net3.SPEED))
SPAN = BASE * np.array([0.56] * 3 + [0.168] * 2)  # wide moves of 14 % and 4.2 % keep every tank off its limits
# inputs by district: demand 1 | demand 2 | demand 3 and the pumps of district 3, and so on, as net3 owns them
ORDER = [
    column
    for k, tank in enumerate(net3.TANKS)
    for column in (k, *(3 + i for i, pump in enumerate(net3.PUMPS) if net3.district_of()[pump] == tank))
]


def case(way: Way, rows: int, seed: int) -> Case:
    """A case of Net3."""
    rng = cases.stream("water", way.name, rows, seed)
    last = WARM_UP + rows + HORIZON + 1
    u = BASE + way.size * SPAN * ways.moves(rng, last, 5, HOLD)
    u[WARM_UP + rows :] = u[WARM_UP + rows]  # what is written in the last row of the record stays
    step = ways.WAYS["gentle"].size * SPAN[:3]
    unseen = ways.NOISE_SHARE * step * ways.memory(rng, last, 3, ways.NOISE_MEMORY)
    if way.common:
        unseen = unseen + ways.COMMON_SHARE * step / np.sqrt(3) * ways.memory(rng, last, 1, ways.COMMON_MEMORY)
    y = _run(u, unseen)[WARM_UP:]
    u, unseen = u[WARM_UP:], unseen[WARM_UP:]
    written = u[1:][:, ORDER]
    changes = cases.draw_changes(rng, written, rows, HORIZON)
    effects = np.stack([_effect(change, u, unseen, y) for change in changes], axis=-1)
    return cases.assemble(
        "water", way, rows, seed, net3.STEP / 60, net3.units(), y[:rows], written[:rows], changes, effects, None,
        rng,
    )  # fmt: skip


def _effect(change: Change, u: FloatArray, unseen: FloatArray, y: FloatArray) -> FloatArray:
    """(horizon, 33): two runs from the tank levels of row ``start``."""
    window = slice(change.start, change.start + HORIZON + 1)
    levels = y[change.start, [0, 11, 22]]
    changed = u[window].copy()
    changed[1:, ORDER] += change.added
    return (_run(changed, unseen[window], levels) - _run(u[window], unseen[window], levels))[1:]


def _run(u: FloatArray, unseen: FloatArray, levels: FloatArray | None = None) -> FloatArray:
    """(rows, 33): the outputs of all districts."""
    found = net3.run(net3.Drive(u[:, :3] + unseen, u[:, 3:]), levels=levels)
    return np.hstack([found.y[unit] for unit in net3.UNITS])
