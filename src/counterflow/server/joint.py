"""A whole system from logs: all blocks of A and B and all noises, from what units without a model have sent.

Each unit has sent a few numbers a row, s_m = Wᵀ(standardised y_m), and its inputs. The states of unit m are those
numbers without their noise, and as many hidden ones as its past calls for (the *partitioned* form)::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],      s_m[t] = [I 0] h_m[t] + v_m[t]

[I 0] is no restriction: it fixes the basis of a unit's states, in which nothing else depends on it. The start is one
subspace identification a unit, with all inputs and the other units' numbers as its inputs; then everything is refined
together by maximum likelihood, because a unit alone cannot tell its own dynamics from its echo through its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import CounterflowError, DataError, UnidentifiedError
from counterflow.filtering import compress
from counterflow.identification import (
    LaggedGram,
    choose_order,
    independent_noises,
    lagged_gram,
    stretches,
    subspaces,
)
from counterflow.protocol import Reduced
from counterflow.server.estimation import Estimated, maximum_likelihood
from counterflow.server.free import identify_free, roomy, standard_free
from counterflow.server.likelihood import SharedRecord
from counterflow.server.parameters import Parameters
from counterflow.server.sufficient import block_diagonal
from counterflow.server.uncertainty import Uncertainty

FloatArray = NDArray[np.float64]
HELD_OUT = 0.3  # of the rows, the last ones, decide on alignment and order
WORTH = 0.005  # nats a row that an input acting on its own row must be worth, to be taken to do so
LAGS = 6  # rows of past in the regressions that decide on alignment
MOST_COLUMNS = 2400  # of a window in a subspace identification
LONG = 100_000  # rows beyond which a stretch is fitted first
STRETCH = 40_000
FLAT = 0.3  # nats that eight steps must be worth, to go on
FEW = 12  # passes over a long record, after the stretch


@dataclass(frozen=True)
class JointOptions:
    """What is asked of the identification; None: decided by what the rest of the data say."""

    order: int | Mapping[str, int] | None = None  # states of each unit; of the whole system in the free form
    same_row: bool | Mapping[str, bool] | None = None
    form: str = "partitioned"
    tolerance: float = 1e-3
    evaluations: int = 100


@dataclass(frozen=True, eq=False)
class System:
    """What the server has found: the estimate and its record in the form of sufficient messages, and how it came."""

    record: SharedRecord
    found: Estimated
    observation: FloatArray  # (r, P) of the units' own numbers, block-diagonal
    noise: FloatArray  # (r, r), block-diagonal
    number_slices: tuple[slice, ...]  # where each unit's numbers stand
    input_level: FloatArray  # (U,)
    same_row: tuple[bool, ...]
    notes: tuple[str, ...]
    spread: Uncertainty | None = None  # of the free form; that of the partitioned form is asked for by who needs it


def identify(
    messages: Sequence[Reduced], options: JointOptions, progress: Callable[[int, float], None] | None = None
) -> System:
    """Find the system behind the messages of all units."""
    names = tuple(message.unit for message in messages)
    s, own = _numbers(messages)
    level, scale = _input_scale(messages)
    runs = stretches(s, 4 * LAGS)
    if not runs:
        missing = {n: int(np.isnan(s[:, o]).any(axis=1).sum()) for n, o in zip(names, own, strict=True)}
        raise UnidentifiedError(
            f"identification: no {4 * LAGS} rows in a row in which every unit was measured (missing rows: {missing}); "
            "record all units over a common period"
        )
    inputs = [message.inputs for message in messages]
    same_row = _alignment(names, s, inputs, scale, runs, options.same_row)
    u = np.hstack([_ahead(v) if ahead else v for v, ahead in zip(inputs, same_row, strict=True)])
    u = (u - level) / scale
    if options.form == "free":
        return _free(names, s, u, own, runs, options, level, scale, same_row, [v.shape[1] for v in inputs], progress)
    start = _start(names, s, u, own, runs, options.order)
    record = _record(names, s, u, start, [v.shape[1] for v in inputs])
    found = _refined(record, start, options, progress)
    sizes = ", ".join(f"{name} {count}" for name, count in zip(names, start.states, strict=True))
    notes = _notes(names, same_row, f"states of each unit ({{}}): {sizes}", options)
    return _standard(record, found, own, scale, level, same_row, notes)


# ---- what has arrived


def _numbers(messages: Sequence[Reduced]) -> tuple[FloatArray, tuple[slice, ...]]:
    """All numbers side by side, NaN where a unit is missing."""
    rows = messages[0].inputs.shape[0]
    blocks, own, at = [], [], 0
    for message in messages:
        block = np.full((rows, message.values.shape[1]), np.nan)
        block[message.rows] = message.values
        blocks.append(block)
        own.append(slice(at, at + block.shape[1]))
        at += block.shape[1]
    return np.hstack(blocks), tuple(own)


def _input_scale(messages: Sequence[Reduced]) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of all inputs; 1 for one that never moved."""
    u = np.hstack([message.inputs for message in messages])
    level = u.mean(axis=0)
    spread = u.std(axis=0)
    still = spread <= 1e-9 * np.maximum(np.abs(u).max(axis=0, initial=0.0), 1e-300)
    return level, np.where(still, 1.0, spread)


def _ahead(u: FloatArray) -> FloatArray:
    """Inputs one row earlier, the last one held (as ``counterflow.plant.OperatingPoint`` does)."""
    return np.vstack([u[1:], u[-1:]])


# ---- which row an input acts on


def _alignment(
    names: tuple[str, ...],
    s: FloatArray,
    inputs: Sequence[FloatArray],
    scale: FloatArray,
    runs: Sequence[slice],
    given: bool | Mapping[str, bool] | None,
) -> tuple[bool, ...]:
    """For each unit, whether knowing its input of row t helps to predict row t, given everything before."""
    if isinstance(given, bool):
        return (given,) * len(names)
    chosen = dict(given or {})
    if len(chosen) < len(names):
        u = np.hstack(list(inputs))
        u = (u - u.mean(axis=0)) / scale
        train, test = _split(runs, len(s), LAGS + 2)
        one, two = (lagged_gram(s, u, LAGS + 1, part) for part in (train, test))
        if one.windows > 2 * one.columns * (LAGS + 1) and two.windows > 0:
            ends = np.cumsum([0, *(v.shape[1] for v in inputs)])
            everything = _regression_score(one, two, np.arange(u.shape[1]))
            for k, name in enumerate(names):
                others = np.concatenate([np.arange(ends[k]), np.arange(ends[k + 1], u.shape[1])])
                worth = everything - _regression_score(one, two, others) if ends[k + 1] > ends[k] else 0.0
                chosen.setdefault(name, worth > max(WORTH, 5 / two.windows))
    return tuple(bool(chosen.get(name, False)) for name in names)


def _split(runs: Sequence[slice], rows: int, least: int) -> tuple[list[slice], list[slice]]:
    """Stretches before and after the row from which on data are held out."""
    measured = sum(run.stop - run.start for run in runs)
    left, edge = (1 - HELD_OUT) * measured, rows
    for run in runs:
        if left < run.stop - run.start:
            edge = run.start + int(left)
            break
        left -= run.stop - run.start
    before = [slice(run.start, min(run.stop, edge)) for run in runs if run.start < edge]
    after = [slice(max(run.start, edge), run.stop) for run in runs if run.stop > edge]
    return ([r for r in part if r.stop - r.start >= least] for part in (before, after))  # type: ignore[return-value]


def _regression_score(train: LaggedGram, test: LaggedGram, now: NDArray[np.intp]) -> float:
    """Held-out log-likelihood a row of the numbers, given their past, past inputs, and inputs ``now`` of their row."""
    r, m, window = train.outputs, train.columns, train.window
    last = (window - 1) * m
    target = last + np.arange(r)
    given = np.concatenate([np.arange(last), last + r + now])
    G = train.matrix / train.windows
    ridge = 1e-6 * np.diag(np.diag(G[np.ix_(given, given)])) + 1e-12 * np.eye(len(given))
    W = np.linalg.solve(G[np.ix_(given, given)] + ridge, G[np.ix_(given, target)]).T
    combine = np.zeros((r, window * m))
    combine[:, target], combine[:, given] = np.eye(r), -W
    inside, outside = (combine @ g.matrix @ combine.T / g.windows for g in (train, test))
    inside = inside + 1e-9 * np.diag(np.maximum(np.diag(G)[target], 1e-12))
    _, size = np.linalg.slogdet(inside)
    return float(-0.5 * (size + np.trace(np.linalg.solve(inside, outside))))


# ---- the start


@dataclass(frozen=True)
class _Start:
    """Where the likelihood climbs from, block by block."""

    A: FloatArray
    B: FloatArray
    Q: FloatArray
    R: FloatArray
    C: FloatArray
    states: tuple[int, ...]


def _start(
    names: tuple[str, ...],
    s: FloatArray,
    u: FloatArray,
    own: tuple[slice, ...],
    runs: Sequence[slice],
    order: int | Mapping[str, int] | None,
) -> _Start:
    wanted = {name: order for name in names} if isinstance(order, int) else dict(order or {})
    units = [_Conditional.of(name, s, u, mine, runs) for name, mine in zip(names, own, strict=True)]
    if len(wanted) < len(names):
        room = _total_order(s, u, runs) - sum(wanted.get(unit.name, unit.numbers) for unit in units)
        wanted |= _shared_out(room, [unit for unit in units if unit.name not in wanted], len(s))
    pieces = [unit.start(wanted[unit.name]) for unit in units]
    states = tuple(len(piece.A) for piece in pieces)
    ends = np.cumsum([0, *states])
    P, U = int(ends[-1]), u.shape[1]
    A, B = np.zeros((P, P)), np.zeros((P, U))
    for m, piece in enumerate(pieces):
        rows = slice(int(ends[m]), int(ends[m + 1]))
        A[rows, rows], B[rows] = piece.A, piece.B
        for n, other in enumerate(own):
            if n != m:  # what the others' numbers do: they are the first states of their units
                width = other.stop - other.start
                A[rows, ends[n] : ends[n] + width] = piece.others[:, _elsewhere(own, m, n)]
    local = block_diagonal([piece.A for piece in pieces])
    for _ in range(60):  # halve the couplings until the system is stable; its parts are
        if float(np.abs(np.linalg.eigvals(A)).max()) < 1 - 1e-6:
            break
        A = local + 0.5 * (A - local)
    else:
        A = local
    return _Start(
        A, B, block_diagonal([p.Q for p in pieces]), block_diagonal([p.R for p in pieces]),
        block_diagonal([p.C for p in pieces]), states,
    )  # fmt: skip


def _total_order(s: FloatArray, u: FloatArray, runs: Sequence[slice]) -> int:
    """States of the whole system, wherever they are: the fewest that predict held-out rows as well as any."""
    past, future, runs = _windows(s.shape[1], u.shape[1], runs)
    r = int(s.shape[1])
    most = min(r * min(past, future - 1), 3 * r + 8)
    train, test = _split(runs, len(s), past + future + 2)
    try:
        models = subspaces(s, u, range(1, most + 1), past=past, future=future, stretches=train)
        return int(choose_order(models, s, u, test).order)
    except CounterflowError:  # too little to hold any of it out
        return r


def _shared_out(room: int, units: Sequence[_Conditional], rows: int) -> dict[str, int]:
    """States for each unit: one a number, and of ``room`` more each to the unit that it helps most to predict."""
    gains = []
    for unit in units:
        scores = unit.scores(room, rows) if room > 0 else np.zeros(1)
        # a state may be worth nothing without the next: what counts is the mean gain up to the best place to stop
        while len(scores) > 1:
            mean = (scores[1:] - scores[0]) / np.arange(1, len(scores))
            stop = int(mean.argmax()) + 1
            gains += [(-float(mean[stop - 1]), unit.name)] * stop
            scores = scores[stop:]
    out = {unit.name: unit.numbers for unit in units}
    for gain, name in sorted(gains)[: max(room, 0)]:
        out[name] += gain < 0
    return out


def _windows(outputs: int, inputs: int, runs: Sequence[slice]) -> tuple[int, int, list[slice]]:
    """Past and future of a subspace identification, and the stretches that are long enough for it."""
    columns = outputs + inputs
    longest = max(run.stop - run.start for run in runs)
    past = int(np.clip(min(MOST_COLUMNS // (2 * columns), longest // 8), 2, 12))
    rows = sum(run.stop - run.start for run in runs)
    while past > 2 and rows < 4 * past * columns:
        past -= 1
    future = max(past, 3)
    return past, future, [run for run in runs if run.stop - run.start > past + future + 1]


def _elsewhere(own: tuple[slice, ...], m: int, n: int) -> slice:
    """Where unit n's numbers stand among those of all units but m."""
    shift = own[m].stop - own[m].start if n > m else 0
    return slice(own[n].start - shift, own[n].stop - shift)


@dataclass(frozen=True)
class _UnitStart:
    """One unit's blocks in the basis in which its numbers are its first states."""

    A: FloatArray
    B: FloatArray  # (P_m, U) of all units' inputs
    others: FloatArray  # (P_m, r - r_m) of the other units' numbers
    C: FloatArray
    Q: FloatArray
    R: FloatArray


@dataclass(frozen=True)
class _Conditional:
    """One unit's numbers, driven by all inputs and by the other units' numbers."""

    name: str
    y: FloatArray
    drive: FloatArray
    inputs: int
    past: int
    future: int
    runs: list[slice]

    @classmethod
    def of(cls, name: str, s: FloatArray, u: FloatArray, mine: slice, runs: Sequence[slice]) -> _Conditional:
        others = np.nan_to_num(np.delete(s, np.arange(mine.start, mine.stop), axis=1))
        drive = np.hstack([u, others])
        past, future, long = _windows(mine.stop - mine.start, drive.shape[1], runs)
        return cls(name, s[:, mine], drive, u.shape[1], past, future, long)

    @property
    def numbers(self) -> int:
        return int(self.y.shape[1])

    def scores(self, room: int, rows: int) -> FloatArray:
        """Held-out log-likelihood a row with one state a number and up to ``room`` more."""
        most = min(self.numbers * min(self.past, self.future - 1), self.numbers + room)
        train, test = _split(self.runs, rows, self.past + self.future + 2)
        try:
            orders = range(self.numbers, most + 1)
            models = subspaces(self.y, self.drive, orders, past=self.past, future=self.future, stretches=train)
            return np.asarray(choose_order(models, self.y, self.drive, test).scores)
        except CounterflowError:
            return np.zeros(1)

    def start(self, states: int) -> _UnitStart:
        try:
            (model,) = subspaces(
                self.y, self.drive, [max(states, self.numbers)], past=self.past, future=self.future, stretches=self.runs
            )
            return _in_numbers(model.A, model.B, model.C, model.K, model.innovation, self.inputs)
        except (CounterflowError, np.linalg.LinAlgError):
            if states > self.numbers:
                rows = sum(run.stop - run.start for run in self.runs)
                raise DataError(
                    f"unit {self.name!r}: {rows} common rows do not carry {states} states; give a smaller order, or "
                    "more rows"
                ) from None
            return _plain_start(self.y, self.drive, self.runs, self.inputs)


def _in_numbers(
    A: FloatArray, B: FloatArray, C: FloatArray, K: FloatArray, innovation: FloatArray, inputs: int
) -> _UnitStart:
    """The same model in the basis in which C is [I 0]."""
    r, P = C.shape
    _, singular, directions = np.linalg.svd(C)
    if singular[-1] <= 1e-8 * singular[0]:
        raise np.linalg.LinAlgError("the numbers do not show independent states")
    T = np.vstack([C, np.sqrt((singular**2).mean()) * directions[r:]])
    back = np.linalg.inv(T)
    A, B, K = T @ A @ back, T @ B, T @ K
    C = np.eye(r, P)
    Q, R = (roomy(noise) for noise in independent_noises(A, C, K, innovation))
    return _UnitStart(A, B[:, :inputs], B[:, inputs:], C, Q, R)


def _plain_start(y: FloatArray, drive: FloatArray, runs: Sequence[slice], inputs: int) -> _UnitStart:
    """One lag by least squares: where there is too little for more."""
    r = y.shape[1]
    rows = np.concatenate([np.arange(run.start + 1, run.stop) for run in runs] or [np.arange(0)])
    x, target = np.hstack([y, drive])[rows - 1], y[rows]
    gram = x.T @ x
    ridge = 1e-3 * np.diag(np.diag(gram)) + 1e-9 * np.eye(len(gram))
    W = np.linalg.solve(gram + ridge, x.T @ target).T if len(rows) else np.zeros((r, x.shape[1]))
    A = W[:, :r]
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    A = A * min(1.0, 0.98 / radius) if radius > 0 else A
    rest = target - x @ W.T
    noise = rest.T @ rest / max(len(rows), 1) + 1e-6 * np.eye(r)
    return _UnitStart(A, W[:, r : r + inputs], W[:, r + inputs :], np.eye(r), 0.5 * noise, 0.5 * noise)


def _record(names: tuple[str, ...], s: FloatArray, u: FloatArray, start: _Start, inputs: Sequence[int]) -> SharedRecord:
    ends, starts = np.cumsum(start.states), np.cumsum([0, *start.states])
    columns = np.cumsum([0, *inputs])
    own = np.zeros_like(start.A)
    B = np.zeros_like(start.B)
    for m in range(len(names)):
        rows = slice(int(starts[m]), int(ends[m]))
        own[rows, rows] = start.A[rows, rows]
        B[rows, columns[m] : columns[m + 1]] = start.B[rows, columns[m] : columns[m + 1]]
    return SharedRecord(
        names=names, states=start.states, inputs=tuple(inputs), values=s, u=u, observation=start.C, noise=start.R,
        A_local=own, B_local=B, Q_local=start.Q,
    )  # fmt: skip


# ---- the climb


def _refined(
    record: SharedRecord, start: _Start, options: JointOptions, progress: Callable[[int, float], None] | None
) -> Estimated:
    """Maximum likelihood; of a long record, first on a stretch in its middle."""
    point, passes = (start.A, start.B), options.evaluations
    if record.steps > LONG:
        middle = (record.steps - STRETCH) // 2
        part = replace(record, values=record.values[middle:][:STRETCH], u=record.u[middle:][:STRETCH])
        if np.isfinite(part.values).all(axis=1).mean() > 0.5:
            near = maximum_likelihood(
                part, "system", start=point, tolerance=options.tolerance, evaluations=passes, flat=FLAT,
                progress=progress,
            )  # fmt: skip
            assert near.R is not None
            record = replace(record, Q_local=near.Q, noise=near.R)
            point, passes = (near.A, near.B), min(passes, FEW)
    return maximum_likelihood(
        record, "system", start=point, tolerance=options.tolerance, evaluations=passes, flat=FLAT, progress=progress
    )


def _standard(
    record: SharedRecord,
    found: Estimated,
    own: tuple[slice, ...],
    scale: FloatArray,
    level: FloatArray,
    same_row: tuple[bool, ...],
    notes: tuple[str, ...],
) -> System:
    """The same in engineering units of the inputs, with the numbers whitened: the form of sufficient messages."""
    assert found.R is not None
    B = found.B / scale
    values, observations = [], []
    for numbers, states in zip(own, record.state_slices, strict=True):
        squeezed = compress(record.observation[numbers, states], found.R[numbers, numbers])
        values.append(record.values[:, numbers] @ squeezed.reach.T)
        observations.append(squeezed.observation)
    A_local, B_local = np.zeros_like(found.A), np.zeros_like(B)
    for states, inputs in zip(record.state_slices, record.input_slices, strict=True):
        A_local[states, states] = found.A[states, states]
        B_local[states, inputs] = B[states, inputs]
    observation = block_diagonal(observations)
    standard = replace(
        record, values=np.hstack(values), u=record.u * scale, observation=observation,
        noise=np.eye(observation.shape[0]), A_local=A_local, B_local=B_local, Q_local=found.Q,
    )  # fmt: skip
    parameters = Parameters(standard, "system", np.asarray(np.linalg.cholesky(found.Q)))
    likelihood = standard.filter(found.A, B, found.Q).log_likelihood  # of the numbers in their new form
    final = replace(found, B=B, parameters=parameters, R=None, log_likelihood=likelihood)
    return System(standard, final, record.observation, found.R, own, level, same_row, notes)


def _free(
    names: tuple[str, ...],
    s: FloatArray,
    u: FloatArray,
    own: tuple[slice, ...],
    runs: Sequence[slice],
    options: JointOptions,
    level: FloatArray,
    scale: FloatArray,
    same_row: tuple[bool, ...],
    inputs: Sequence[int],
    progress: Callable[[int, float], None] | None,
) -> System:
    windows = _windows(s.shape[1], u.shape[1], runs)
    split = _split(windows[2], len(s), windows[0] + windows[1] + 2)
    order = options.order
    assert order is None or isinstance(order, int)
    free = identify_free(s, u, windows, split, order, options.tolerance, options.evaluations, progress)
    record, found, observation, noise, spread = standard_free(free, names, tuple(inputs), own, scale)
    text = f"{len(free.found.A)} states that belong to no unit ({{}}); couplings between units are not to be had in it"
    notes = _notes(names, same_row, text, options)
    return System(record, found, observation, noise, own, level, same_row, notes, spread)


def _notes(names: tuple[str, ...], same_row: tuple[bool, ...], states: str, options: JointOptions) -> tuple[str, ...]:
    held_out = "by the likelihood of held-out rows"
    ahead = [name for name, yes in zip(names, same_row, strict=True) if yes]
    how = held_out if options.same_row is None else "as given"
    acting = (
        f"inputs of {', '.join(ahead)} act on their own row, others on the next"
        if ahead
        else ("inputs act on the next row")
    )
    return states.format(held_out if options.order is None else "as given"), f"{acting} ({how})"
