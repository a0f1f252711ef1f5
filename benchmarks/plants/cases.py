"""A case: what a plant recorded in one way of being run, and what changes would truly have done.

Rows are counted as in `counterflow.Recording`: the inputs of row t - 1 act on row t. A twin's change begins in row
``start``: its first row of inputs is row ``start``, its first row of effects is row ``start + 1``. A twin that begins
at the last row of the record asks about the future, in which inputs stay as they were in that row.

What is wrong with a record is its dirt (`plants.dirt`). A plant that wears changes while it runs: the effects of a twin
are those of the plant of its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

import counterflow as cf
from plants import ways
from plants.plant import FloatArray, Plant, constant, run
from plants.ways import Way

WARM_UP = 300  # rows before row 0, of which nothing is recorded
STIFF_WARM_UP = 1500
NOW = ("step", "pulse", "ramp")
PAST = ("hold", "step", "pulse", "ramp")  # a hold takes the place of all that the input did
LEAD = 30  # rows that a part of a record has before its first twin

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Twin:
    """A change of one unit's inputs, and what it truly did: changed run minus recorded run, same noise in both."""

    unit: str
    kind: str
    start: int
    change: FloatArray
    """(horizon, U_m): added to the unit's inputs in rows start, ..., start + horizon - 1."""
    effect: dict[str, FloatArray]
    """By unit (horizon, D_m): rows start + 1, ..., start + horizon, without measurement noise."""

    @property
    def horizon(self) -> int:
        return len(self.change)


@dataclass(frozen=True)
class Wear:
    """A unit that changes for good: one physical parameter of it, ``what``, goes to ``factor`` times what it was.

    Up to row ``row`` it is as built, from row ``until`` on it is changed, and it goes evenly from one to the other. In
    a sudden change both are the first row in which the plant is the changed one.
    """

    unit: str
    what: str
    factor: float
    row: int
    until: int

    @property
    def sudden(self) -> bool:
        return self.row == self.until

    def by_row(self, first: int, stop: int) -> FloatArray:
        """The factor in rows first, ..., stop - 1."""
        rows = np.arange(first, stop)
        share = rows >= self.row if self.sudden else np.clip((rows - self.row) / (self.until - self.row), 0, 1)
        return 1 + (self.factor - 1) * share


@dataclass(frozen=True, eq=False)
class Case:
    """A record with its truth. Estimators may read ``dt``, ``units``, ``y``, ``u`` and twins but for their ``effect``.

    ``y``, ``u``: by unit (T+1, D_m), (T+1, U_m). ``noise``: by unit (D_m,), std of the measurement noise.
    ``graph``: true direct couplings as ordered pairs (cause, effect); None where it has no clear meaning.
    ``sound``: by unit (T+1, D_m), which readings are measurements of their own row: neither missing nor held, stuck,
    clipped or spiking. ``change``: how the plant changed, if it did.
    """

    plant: str
    way: str
    rows: int
    seed: int
    dt: float
    units: tuple[cf.Unit, ...]
    y: dict[str, FloatArray]
    u: dict[str, FloatArray]
    noise: dict[str, FloatArray]
    truth: tuple[Twin, ...]
    graph: frozenset[tuple[str, str]] | None
    sound: dict[str, BoolArray]
    dirt: str = "clean"
    change: Wear | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)

    def recording(self) -> cf.Recording:
        """The record as the product takes it."""
        return cf.Recording.from_arrays({n: (self.y[n], self.u[n]) for n in self.names}, dt=self.dt, units=self.units)

    def asked(self, twin: Twin) -> tuple[str, ...]:
        """The units whose outputs are asked about: all but the one that changes."""
        return tuple(name for name in self.names if name != twin.unit)

    @property
    def readings(self) -> int:
        """How many sound readings of outputs the record has."""
        return sum(int(sound.sum()) for sound in self.sound.values())

    @property
    def equal_rows(self) -> int:
        """Rows of a clean record with as many readings."""
        return -(-self.readings // sum(unit.n_outputs for unit in self.units))

    def since(self, first: int) -> tuple[int, ...]:
        """The twins, by their places in ``truth``, that a record from row ``first`` on can be asked about."""
        lead = LEAD if first else 0
        return tuple(k for k, twin in enumerate(self.truth) if twin.start >= first + lead)

    def cut(self, first: int) -> Case:
        """The same record from row ``first`` on, and the twins that begin there (`since`)."""
        truth = tuple(replace(self.truth[k], start=self.truth[k].start - first) for k in self.since(first))
        change = None
        if self.change is not None and self.change.until > first:
            change = replace(self.change, row=self.change.row - first, until=self.change.until - first)
        y, u, sound = ({n: side[n][first:] for n in self.names} for side in (self.y, self.u, self.sound))
        return replace(self, rows=self.rows - first, y=y, u=u, sound=sound, truth=truth, change=change)


@dataclass(frozen=True)
class Change:
    """A twin to be simulated: what is added (horizon, U) to all inputs of the plant from row ``start`` on."""

    column: int
    kind: str
    start: int
    added: FloatArray


def stream(plant: str, way: str, rows: int, seed: int) -> np.random.Generator:
    """The random numbers of one case."""
    return np.random.default_rng([seed, rows, crc32(plant.encode()), crc32(way.encode())])


def draw_changes(rng: np.random.Generator, u: FloatArray, rows: int, horizon: int) -> list[Change]:
    """For every input one change that begins now and one in the past; inputs stay in the range that was seen.

    ``u`` (rows + horizon, U): recorded inputs, and what they would be later.
    """
    low, high = u[:rows].min(axis=0), u[:rows].max(axis=0)
    out = []
    for column in range(u.shape[1]):
        past = int(rng.integers(rows // 4, rows - 1 - horizon))
        for start, kinds in ((rows - 1, NOW), (past, PAST)):
            kind = kinds[column % len(kinds)]
            was = u[start : start + horizon, column]
            up = was.mean() < (low[column] + high[column]) / 2
            size = (1 if up else -1) * rng.uniform(0.3, 0.5) * (high[column] - low[column])
            shape = {
                "step": np.ones(horizon),
                "pulse": (np.arange(horizon) < horizon // 3).astype(float),
                "ramp": np.minimum(np.arange(1, horizon + 1) / (horizon // 2), 1.0),
            }
            asked = np.full(horizon, was.mean() + size) if kind == "hold" else was + size * shape[kind]
            added = np.zeros((horizon, u.shape[1]))
            added[:, column] = np.clip(asked, low[column], high[column]) - was
            out.append(Change(column, kind, start, added))
    return out


def assemble(
    plant: str, way: Way, rows: int, seed: int, dt: float, units: tuple[cf.Unit, ...], y: FloatArray, u: FloatArray,
    changes: list[Change], effects: FloatArray, graph: frozenset[tuple[str, str]] | None, rng: np.random.Generator,
    usual: FloatArray | None = None,
) -> Case:  # fmt: skip
    """A case from arrays of the whole plant: clean y (rows, D), u (rows, U), effects (horizon, D, twins).

    ``usual`` (rows, D): what y would be if the plant had not changed; a sensor's noise does not grow with the change.
    """
    noise = ways.MEASUREMENT * (y if usual is None else usual).std(axis=0)
    measured = y + way.noise * noise * rng.standard_normal(y.shape)
    outputs = _columns([unit.n_outputs for unit in units])
    inputs = _columns([unit.n_inputs for unit in units])
    names = [unit.name for unit in units]
    owner = [name for name, unit in zip(names, units, strict=True) for _ in unit.inputs]
    truth = tuple(
        Twin(
            owner[change.column], change.kind, change.start, change.added[:, inputs[names.index(owner[change.column])]],
            {name: effects[:, outputs[k], i] for k, name in enumerate(names)},
        )
        for i, change in enumerate(changes)
    )  # fmt: skip
    by_output = dict(zip(names, outputs, strict=True))
    return Case(
        plant, way.name, rows, seed, dt, units, {n: measured[:, c] for n, c in by_output.items()},
        {n: u[:, c] for n, c in zip(names, inputs, strict=True)}, {n: noise[c] for n, c in by_output.items()}, truth,
        graph, {n: np.ones((len(y), c.stop - c.start), dtype=bool) for n, c in by_output.items()},
    )  # fmt: skip


def simulated(plant: Plant, way: Way, rows: int, seed: int, change: Wear | None = None) -> Case:
    """A case of a plant written here. A change of the plant leaves inputs, noise and what twins change as they are."""
    rng = stream(plant.name, way.name, rows, seed)
    pace = plant.stiff if way.stiff else None
    noise_size, common_size = _sizes(plant, way.stiff)
    warm, last = STIFF_WARM_UP if way.stiff else WARM_UP, rows + plant.horizon
    delays = rng.integers(ways.DELAY[0], ways.DELAY[1] + 1, size=len(plant.streams)) if way.delay else None
    if delays is not None:  # one pipe, one delay
        pipes = {pair: delays[k] for k, pair in enumerate(plant.streams)}
        delays = np.array([pipes[pair] for pair in plant.streams])
    if way.moves is None:
        moved = ways.moves(rng, warm + last, len(plant.u0), plant.hold)
    else:
        moved = np.vstack([np.zeros((warm, len(plant.u0))), ways.few_moves(rng, last, len(plant.u0), way.moves)])
    u = plant.u0 + way.size * plant.span * moved
    u[warm + rows :] = u[warm + rows - 1]
    noise = way.noise * noise_size * ways.memory(rng, warm + last, len(plant.x0), ways.NOISE_MEMORY)
    common = way.common * common_size * ways.memory(rng, warm + last, 1, ways.COMMON_MEMORY)
    still = plant.steady()[:, None]
    past = None if delays is None else constant(plant.send(still, plant.u0[:, None], plant.new), ways.DELAY[1])
    wear = np.repeat(plant.new.T, warm + last + 1, axis=0)
    given = (still, u[:, :, None], noise[:, :, None], common, pace, delays, past)
    usual = None
    if change is not None:
        usual = _read(plant, run(plant, *given)[0][warm : warm + rows], wear)[:, :, 0]
        wear[:, [unit.name for unit in plant.units].index(change.unit)] = change.by_row(-warm, last + 1)
    states, sent = run(plant, *given, wear[:, :, None])
    states, sent, u, noise, common = states[warm:], sent[warm - ways.DELAY[1] :], u[warm:], noise[warm:], common[warm:]
    wear = wear[warm:]
    y = _read(plant, states[:rows], wear)[:, :, 0]
    changes = draw_changes(rng, u, rows, plant.horizon)
    effects = _effects(plant, changes, states, sent, u, noise, common, pace, delays, wear)
    found = assemble(
        plant.name, way, rows, seed, plant.dt, plant.units, y, u[:rows], changes, effects, plant.graph, rng, usual
    )
    return replace(found, change=change)


def _read(plant: Plant, states: FloatArray, wear: FloatArray) -> FloatArray:
    """Outputs (T, D, batch) of states (T, X, batch) with wear (T or more, M) or (T, M, batch)."""
    return np.stack([plant.read(x, w.reshape(len(w), -1)) for x, w in zip(states, wear, strict=False)])


def _effects(
    plant: Plant, changes: list[Change], states: FloatArray, sent: FloatArray, u: FloatArray, noise: FloatArray,
    common: FloatArray, pace: FloatArray | None, delays: NDArray[np.int64] | None, wear: FloatArray,
) -> FloatArray:  # fmt: skip
    """(horizon, D, twins): both worlds of every twin, as one batch. ``sent`` begins DELAY[1] rows before row 0."""
    starts = np.array([change.start for change in changes])
    both = np.concatenate([starts, starts])
    window = both[None, :] + np.arange(plant.horizon)[:, None]
    inputs = u[window].transpose(0, 2, 1).copy()
    for k, change in enumerate(changes):
        inputs[:, :, k] += change.added
    past = None if delays is None else sent[both[None, :] + np.arange(ways.DELAY[1])[:, None], :, 0].transpose(0, 2, 1)
    worlds, _ = run(
        plant, states[both, :, 0].T, inputs, noise[window].transpose(0, 2, 1), common[window, 0], pace, delays, past,
        wear[window].transpose(0, 2, 1),
    )  # fmt: skip
    if not np.allclose(worlds[-1, :, len(changes) :].T, states[starts + plant.horizon, :, 0], rtol=1e-8):
        raise RuntimeError(f"plant {plant.name}: the unchanged worlds of the twins are not the recorded one.")
    y = _read(plant, worlds[1:], wear[window + 1].transpose(0, 2, 1))
    return y[:, :, : len(changes)] - y[:, :, len(changes) :]


@cache
def _sizes(plant: Plant, stiff: bool) -> tuple[FloatArray, float]:
    """Std of the process noise by state, and of the common disturbance, from a noise-free gentle run."""
    rows, rng = 1000, np.random.default_rng(0)
    pace = plant.stiff if stiff else None
    moved = plant.u0 + ways.WAYS["gentle"].size * plant.span * ways.moves(rng, rows, len(plant.u0), plant.hold)
    u = np.stack([moved, constant(plant.u0, rows)], axis=-1)
    common = np.stack([np.zeros(rows), ways.memory(rng, rows, 1, ways.COMMON_MEMORY)[:, 0]], axis=-1)
    still = plant.steady()[:, None]
    states, _ = run(plant, np.repeat(still, 2, axis=1), u, common=common, pace=pace)
    late = states[rows // 4 :]
    rates = np.diff(late[:, :, 0], axis=0) / plant.dt
    by_inputs, by_common = np.stack([plant.read(x, plant.new) for x in late]).std(axis=0).T
    share = np.median(by_common / by_inputs)
    return ways.NOISE_SHARE * np.sqrt((rates**2).mean(axis=0)), float(ways.COMMON_SHARE / share)


def _columns(counts: list[int]) -> list[slice]:
    ends = np.cumsum(counts)
    return [slice(int(end - count), int(end)) for count, end in zip(counts, ends, strict=True)]
