"""Plants that run in closed loop: some inputs are moved by PI controllers, and twins in which these answer.

A controller reads a measurement of its own unit with its noise, in every row, and moves its input in the same row,
which acts on the next. Its target is recorded as an input of the unit, or moves in steps that nobody records, or never
moves. A twin changes an input that no controller moves, or a target; measurement noise is the same in both worlds.

    one = closed.case("reactors", "recorded", rows=3000, seed=0)
    closed.judge(one, closed.counterflow(one)).error
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import process_time

import numpy as np

import counterflow as cf
from plants import scores, ways
from plants.baselines import _arx
from plants.cases import NOW, PAST, WARM_UP, Case, Twin, _sizes, stream
from plants.plant import FloatArray, Plant, run
from plants.scores import Answer, Report, Score
from plants.simulators.exchangers import plant as exchangers
from plants.simulators.reactors import plant as reactors
from plants.simulators.tanks import plant as tanks

TARGETS = ("recorded", "moving", "constant")
STEP = (15, 80)  # rows for which a target stands still
SIZE = 1.5  # of a target's steps: times the standard deviation of its reading in a gentle run
TUNING = ((0.5, 12.0), (0.35, 20.0), (0.6, 15.0), (0.4, 10.0))  # share of the input's span by reading's, integral time


@dataclass(frozen=True)
class Pi:
    """Input ``column`` follows output ``reading`` of the whole plant."""

    column: int
    reading: int
    gain: float
    integral_time: float
    limits: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Closed:
    """A case, its controllers, and what they are called."""

    case: Case
    loops: dict[str, tuple[cf.Loop, ...]]
    laws: dict[tuple[str, str], Pi]
    held: tuple[Twin, ...] = field(default=(), repr=False)

    def recording(self, loops: str = "found") -> cf.Recording:
        """``loops``: "found" (nothing is declared), "declared" (channels, no law), "known" (with the true law)."""
        units = []
        for unit in self.case.units:
            given = self.loops[unit.name] if loops != "found" else ()
            if loops == "known":
                given = tuple(
                    replace(loop, law=cf.PID(pi.gain, pi.integral_time, limits=pi.limits))
                    for loop in given for pi in [self.laws[unit.name, loop.moves]]
                )  # fmt: skip
            units.append(cf.Unit(unit.name, inputs=unit.inputs, outputs=unit.outputs, loops=given))
        arrays = {n: (self.case.y[n], self.case.u[n]) for n in self.case.names}
        return cf.Recording.from_arrays(arrays, dt=self.case.dt, units=units)


SITES: dict[str, tuple[Plant, tuple[tuple[int, int], ...]]] = {
    # (input column, output column): jacket valves by temperatures; pumps by levels; heater and cooler by temperatures
    "reactors": (reactors, ((0, 2), (2, 6), (4, 10), (6, 14))),
    "tanks": (tanks, ((0, 0), (1, 4))),
    "exchangers": (exchangers, ((3, 8), (4, 13))),
}


def controllers(plant: Plant, pairs: tuple[tuple[int, int], ...]) -> list[Pi]:
    """PI controllers, with signs and sizes from the steady gains of the plant's own gentle run."""
    x0 = plant.steady()
    base = plant.read(x0[:, None], plant.new)[:, 0]
    out = []
    for k, (column, reading) in enumerate(pairs):
        moved = plant.u0.copy()
        moved[column] += 0.05 * plant.span[column]
        later = run(plant, x0[:, None], np.broadcast_to(moved[:, None], (60, len(moved), 1)))[0][-1]
        gain = (plant.read(later, plant.new)[reading, 0] - base[reading]) / (moved[column] - plant.u0[column])
        share, time = TUNING[k % len(TUNING)]
        limits = (plant.u0[column] - 0.9 * plant.span[column], plant.u0[column] + 0.9 * plant.span[column])
        out.append(Pi(column, reading, share / gain * 2, time * plant.dt, limits))
    return out


def case(name: str, target: str, rows: int, seed: int) -> Closed:
    """The record of a plant with its loops closed, and twins in which its controllers react."""
    plant, pairs = SITES[name]
    loops = controllers(plant, pairs)
    rng = stream(f"{plant.name} closed", target, rows, seed)
    last, warm, U = rows + plant.horizon, WARM_UP, len(plant.u0)
    noise_size, _ = _sizes(plant, False)
    free = [k for k in range(U) if k not in {pi.column for pi in loops}]
    u = np.tile(plant.u0, (warm + last, 1))
    moves = ways.moves(rng, warm + last, U, plant.hold)
    u[:, free] += 0.05 * plant.span[free] * moves[:, free] * 2
    x0 = plant.steady()
    base = plant.read(x0[:, None], plant.new)[:, 0]
    gentle = plant.u0 + 0.05 * plant.span * moves
    open_run = run(plant, x0[:, None], gentle[:1000, :, None])[0][250:]
    spread = np.stack([plant.read(x, plant.new) for x in open_run])[:, :, 0].std(axis=0)
    sensor = ways.MEASUREMENT * spread
    aims = np.tile([base[pi.reading] for pi in loops], (warm + last, 1))
    if target != "constant":
        for k, pi in enumerate(loops):
            lengths = rng.integers(*STEP, size=(warm + last) // STEP[0] + 1)
            steps = rng.uniform(-1, 1, size=len(lengths)) * SIZE * spread[pi.reading]
            aims[:, k] += np.repeat(steps, lengths)[: warm + last]
    u[warm + rows :] = u[warm + rows - 1]
    aims[warm + rows :] = aims[warm + rows - 1]
    noise = noise_size * ways.memory(rng, warm + last, len(plant.x0), ways.NOISE_MEMORY)
    v = sensor * rng.standard_normal((warm + last + 1, len(sensor)))
    world = Simulation(plant, loops)
    states, y, done = world.run(x0[:, None], u[:, :, None], aims[:, :, None], noise, v)
    y, done, v, noise, aims = y[warm:, :, 0], done[warm:, :, 0], v[warm:], noise[warm:], aims[warm:]
    states = states[warm:]
    recorded = target == "recorded"
    changes = _changes(rng, done, aims, free, recorded, loops, rows, plant.horizon)
    effects = np.stack([
        _twin(world, states, done, aims, noise, v, y, start, added, raised, plant.horizon)
        for start, _, _, added, raised, _ in changes
    ], axis=-1)  # fmt: skip
    return _assembled(plant, target, rows, seed, loops, y[:rows], done[:rows], aims[:rows], changes, effects, sensor)


@dataclass(frozen=True, eq=False)
class Simulation:
    """A plant with its controllers."""

    plant: Plant
    loops: list[Pi]

    def run(
        self, x: FloatArray, u: FloatArray, aims: FloatArray, noise: FloatArray, v: FloatArray,
        moved: FloatArray | None = None, error: FloatArray | None = None, held: tuple[int, ...] = (),
    ) -> tuple[FloatArray, FloatArray, FloatArray]:  # fmt: skip
        """States (T+1, X, batch), measurements (T, D, batch) and inputs (T, U, batch) as the controllers moved them.

        ``moved``, ``error`` (loops, batch): what they moved and saw in the row before the first.
        """
        plant, T, batch = self.plant, len(u), x.shape[1]
        done, y = u.copy(), np.empty((T, len(v[0]), batch))
        states = np.empty((T + 1, *x.shape))
        states[0] = x
        if moved is None or error is None:
            moved = np.array([[plant.u0[pi.column]] * batch for pi in self.loops])
            error = np.zeros((len(self.loops), batch))
        moved, error = moved.copy(), error.copy()
        for t in range(T):
            y[t] = plant.read(x, plant.new) + v[t][:, None]
            for k, pi in enumerate(self.loops):
                if pi.column in held:
                    continue
                now = aims[t, k] - y[t, pi.reading]
                step = pi.gain * (now - error[k] + plant.dt / pi.integral_time * now)
                moved[k] = np.clip(moved[k] + step, *pi.limits)
                error[k] = now
                done[t, pi.column] = moved[k]
            x = run(plant, x, done[t : t + 1], noise[t : t + 1, :, None])[0][-1]
            states[t + 1] = x
        return states, y, done


def _changes(
    rng: np.random.Generator, u: FloatArray, aims: FloatArray, free: list[int], recorded: bool, loops: list[Pi],
    rows: int, horizon: int,
) -> list[tuple[int, str, int, FloatArray, FloatArray, int]]:  # fmt: skip
    """(start, kind, column, added to inputs (horizon, U), to targets (horizon, loops), loop or -1)."""
    out = []
    asked = [(column, -1) for column in free] + ([(-1, k) for k in range(len(loops))] if recorded else [])
    for place, (column, loop) in enumerate(asked):
        series = u[:, column] if loop < 0 else aims[:, loop]
        low, high = series[:rows].min(), series[:rows].max()
        past = int(rng.integers(rows // 4, rows - 1 - horizon))
        for start, kinds in ((rows - 1, NOW), (past, PAST)):
            kind = kinds[place % len(kinds)]
            was = series[start : start + horizon]
            size = (1 if was.mean() < (low + high) / 2 else -1) * rng.uniform(0.3, 0.5) * (high - low)
            shape = {
                "step": np.ones(horizon), "pulse": (np.arange(horizon) < horizon // 3).astype(float),
                "ramp": np.minimum(np.arange(1, horizon + 1) / (horizon // 2), 1.0),
            }  # fmt: skip
            wanted = np.full(horizon, was.mean() + size) if kind == "hold" else was + size * shape[kind]
            added, raised = np.zeros((horizon, u.shape[1])), np.zeros((horizon, len(loops)))
            if loop < 0:
                added[:, column] = np.clip(wanted, low, high) - was
            else:
                raised[:, loop] = np.clip(wanted, low, high) - was
            out.append((start, kind, column, added, raised, loop))
    return out


def _twin(
    world: Simulation, states: FloatArray, u: FloatArray, aims: FloatArray, noise: FloatArray, v: FloatArray,
    y: FloatArray, start: int, added: FloatArray, raised: FloatArray, horizon: int,
) -> FloatArray:  # fmt: skip
    """(horizon, D): what a change does in rows start + 1, ... where controllers react."""
    window = slice(start, start + horizon + 1)
    more, up = (np.vstack([each, each[-1:]]) for each in (added, raised))

    def at(array: FloatArray) -> FloatArray:
        whole = array[window]
        return np.vstack([whole, np.repeat(whole[-1:], horizon + 1 - len(whole), axis=0)])

    base_u, base_aims, shake, sensor = at(u), at(aims), at(noise), at(v)
    moved = np.array([[u[start - 1, pi.column]] * 2 for pi in world.loops])
    error = np.array([[aims[start - 1, k] - y[start - 1, pi.reading]] * 2 for k, pi in enumerate(world.loops)])
    both_u = np.stack([base_u + more, base_u], axis=-1)
    both_aims = np.stack([base_aims + up, base_aims], axis=-1)
    x = np.repeat(states[start], 2, axis=1)
    _, seen, _ = world.run(x, both_u, both_aims, shake, sensor, moved, error)
    return seen[1:, :, 0] - seen[1:, :, 1]


def _assembled(
    plant: Plant, target: str, rows: int, seed: int, loops: list[Pi], y: FloatArray, u: FloatArray, aims: FloatArray,
    changes: list[tuple[int, str, int, FloatArray, FloatArray, int]], effects: FloatArray, sensor: FloatArray,
) -> Closed:  # fmt: skip
    """The case as a user has it: targets stand beside the inputs where they are recorded."""
    recorded = target == "recorded"
    units, ys, us, noise, declared, laws = [], {}, {}, {}, {}, {}
    first_y = first_u = 0
    columns: dict[str, tuple[slice, slice, list[int]]] = {}
    for unit in plant.units:
        outs, ins = slice(first_y, first_y + unit.n_outputs), slice(first_u, first_u + unit.n_inputs)
        first_y, first_u = outs.stop, ins.stop
        mine = [k for k, pi in enumerate(loops) if ins.start <= pi.column < ins.stop]
        names = [f"{unit.output_names[loops[k].reading - outs.start]}.SP" for k in mine]
        inputs = [*unit.inputs, *([cf.Channel(name) for name in names] if recorded else [])]
        units.append(cf.Unit(unit.name, inputs=inputs, outputs=unit.outputs))
        ys[unit.name], noise[unit.name] = y[:, outs], sensor[outs]
        us[unit.name] = np.hstack([u[:, ins], aims[:, mine]]) if recorded else u[:, ins]
        columns[unit.name] = outs, ins, mine
        found = []
        for k, name in zip(mine, names, strict=True):
            moves, reads = (
                unit.input_names[loops[k].column - ins.start],
                unit.output_names[loops[k].reading - outs.start],
            )
            found.append(cf.Loop(moves, reads, name if recorded else None))
            laws[unit.name, moves] = loops[k]
        declared[unit.name] = tuple(found)
    truth = []
    for i, (start, kind, column, added, raised, loop) in enumerate(changes):
        at = column if loop < 0 else loops[loop].column
        owner = next(name for name, (_, ins, _) in columns.items() if ins.start <= at < ins.stop)
        _, ins, mine = columns[owner]
        change = np.hstack([added[:, ins], raised[:, mine]]) if recorded else added[:, ins]
        effect = {name: effects[:, outs, i] for name, (outs, _, _) in columns.items()}
        truth.append(Twin(owner, kind, start, change, effect))
    sound = {name: np.ones(each.shape, bool) for name, each in ys.items()}
    made = Case(
        f"{plant.name} closed",
        target,
        rows,
        seed,
        plant.dt,
        tuple(units),
        ys,
        us,
        noise,
        tuple(truth),
        plant.graph,
        sound,
    )
    return Closed(made, declared, laws)


def judge(one: Closed, report: Report) -> Score:
    """As for other cases."""
    return scores.judge(one.case, report)


# ---- what answers


def counterflow(one: Closed, loops: str = "found", controllers: str | None = "reacting") -> Report:
    """Counterflow's answers about the running plant (``controllers="held"``: with controllers off)."""
    begin = process_time()
    recording = one.recording("declared").joint() if loops == "joint" else one.recording(loops)
    return asked(one, recording, cf.fit(recording), controllers, begin)


def asked(
    one: Closed, recording: cf.Recording, found: cf.Fit, controllers: str | None = "reacting", begin: float = 0.0
) -> Report:
    """What a fit says; ``begin``: when its processor began to work at it."""
    answers = [
        answer for k, twin in enumerate(one.case.truth)
        for answer in _answers(one.case, recording, found, k, twin, controllers)
    ]  # fmt: skip
    return Report(answers, None, process_time() - begin, str(found.status))


def _answers(
    case: Case, recording: cf.Recording, found: cf.Fit, k: int, twin: Twin, controllers: str | None
) -> list[Answer]:
    moved = np.flatnonzero(twin.change.any(axis=0))
    unit = next(unit for unit in case.units if unit.name == twin.unit)
    names = [unit.input_names[j] for j in moved]
    first = {each.name: slice(0, each.n_outputs) for each in case.units}  # a joint fit has more outputs
    asked = case.asked(twin)
    if twin.start == recording.steps:
        change = {name: twin.change[:, j] for name, j in zip(names, moved, strict=True)}
        effects = [
            (name, found.effect(twin.unit, name, change, twin.horizon, controllers=controllers)) for name in asked
        ]
        return [
            Answer(k, name, *(side[:, first[name]] for side in (effect.mean, effect.lower, effect.upper)))
            for name, effect in effects
        ]
    stop = twin.start + twin.horizon
    added = np.vstack([twin.change, twin.change[-1:]])
    change = {name: added[:, j] for name, j in zip(names, moved, strict=True)}
    worlds = found.counterfactual(
        recording, add={twin.unit: change}, start=twin.start, stop=stop + 1, controllers=controllers
    )
    out = []
    for name in asked:
        world = worlds[name]
        sides = (world.difference, world.lower - world.was, world.upper - world.was)
        out.append(Answer(k, name, *(side[1:, first[name]] for side in sides)))
    return out


def arx(one: Closed, joint: bool = False) -> Report:
    """Pooled ARX of the record as it is (controllers held), or with the moved inputs as outputs (joint)."""
    case = one.case
    begin = process_time()
    y = np.hstack([case.y[name] for name in case.names])
    keep, moves = [], []
    for name in case.names:
        manipulated = {loop.moves for loop in one.loops[name]}
        unit = next(unit for unit in case.units if unit.name == name)
        keep.append([j for j, each in enumerate(unit.input_names) if not (joint and each in manipulated)])
        moves.append([j for j, each in enumerate(unit.input_names) if joint and each in manipulated])
    u = np.hstack([case.u[name][:, own] for name, own in zip(case.names, keep, strict=True)])
    extra = np.hstack([case.u[name][:, own] for name, own in zip(case.names, moves, strict=True)])
    whole = np.hstack([y, extra])
    y_scale, u_scale = whole.std(axis=0), u.std(axis=0)
    response, status = _arx((whole - whole.mean(axis=0)) / y_scale, (u - u.mean(axis=0)) / u_scale)
    ends = np.cumsum([unit.n_outputs for unit in case.units])
    answers = []
    for k, twin in enumerate(case.truth):
        parts = [
            twin.change[:, own] if name == twin.unit else np.zeros((twin.horizon, len(own)))
            for name, own in zip(case.names, keep, strict=True)
        ]
        effect = (response(np.hstack(parts) / u_scale) * y_scale)[:, : ends[-1]]
        split = dict(zip(case.names, np.split(effect, ends[:-1], axis=1), strict=True))
        answers += [Answer(k, name, split[name]) for name in case.asked(twin)]
    return Report(answers, None, process_time() - begin, status)
