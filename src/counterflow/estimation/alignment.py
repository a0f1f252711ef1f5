"""Which row an input acts on: the next one, or its own, where a log shows at the end of a row what was done in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification import LaggedGram, lagged_gram

HELD_OUT = 0.3  # of the rows, the last ones, decide
WORTH = 0.005  # nats a row that an input acting on its own row must be worth, to be taken to do so
PIECES, PIECE = 5, 100  # of the held-out rows, whose median decides; rows of one at the least
LAGS = 6  # rows of past in the regressions that decide


def alignment(
    names: tuple[str, ...], s: FloatArray, inputs: Sequence[FloatArray], scale: FloatArray, runs: Sequence[slice],
    given: Mapping[str, bool] | None,
) -> tuple[tuple[bool, ...], tuple[str, ...]]:  # fmt: skip
    """For each unit, whether knowing its input of row t helps to predict row t, given everything before.

    So it would, too, if a controller set the input from that row's measurements. Then earlier measurements foretell
    the input as well; units of which that is true are named, because rows alone cannot tell the two apart.
    """
    chosen, unsure = dict(given or {}), []
    if len(chosen) < len(names):
        u = np.hstack(list(inputs))
        u = (u - u.mean(axis=0)) / scale
        train, test = _split(runs, len(s), LAGS + 2)
        one, two = (lagged_gram(s, u, LAGS + 1, part) for part in (train, test))
        if one.windows > 2 * one.columns * (LAGS + 1) and two.windows > 0:
            ends = np.cumsum([0, *(v.shape[1] for v in inputs)])
            pieces = [lagged_gram(s, u, LAGS + 1, part) for part in _pieces(test)]
            everything = _scores(one, pieces, np.arange(u.shape[1]))
            for k, name in enumerate(names):
                others = np.concatenate([np.arange(ends[k]), np.arange(ends[k + 1], u.shape[1])])
                # by the median of some stretches: a few rows in which a limit is met must not decide
                worth = float(np.median(everything - _scores(one, pieces, others))) if ends[k + 1] > ends[k] else 0.0
                if name not in chosen and worth > max(WORTH, 5 / two.windows):
                    chosen[name] = True
                    if _reacts(one, two, np.arange(ends[k], ends[k + 1])):
                        unsure.append(name)
    return tuple(bool(chosen.get(name, False)) for name in names), tuple(unsure)


def _reacts(train: LaggedGram, test: LaggedGram, columns: NDArray[np.intp]) -> bool:
    """Whether earlier numbers foretell these inputs better than all earlier inputs do by themselves."""
    r, m, window = train.outputs, train.columns, train.window
    last = (window - 1) * m
    target = last + r + columns
    inputs = np.concatenate([row * m + r + np.arange(m - r) for row in range(window - 1)])
    with_numbers, without = _score(train, test, target, np.arange(last)), _score(train, test, target, inputs)
    return with_numbers - without > max(2 * WORTH, 5 / test.windows)


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
    return [r for r in before if r.stop - r.start >= least], [r for r in after if r.stop - r.start >= least]


def _pieces(runs: Sequence[slice]) -> list[list[slice]]:
    """Held-out stretches in up to ``PIECES`` parts of about equal length, none of them shorter than ``PIECE`` rows."""
    rows = sum(run.stop - run.start for run in runs)
    count = int(np.clip(rows // PIECE, 1, PIECES))
    edges = np.linspace(0, rows, count + 1).astype(int)
    out: list[list[slice]] = [[] for _ in range(count)]
    passed = 0
    for run in runs:
        for k in range(count):
            low, high = max(edges[k] - passed, 0) + run.start, min(edges[k + 1] - passed + run.start, run.stop)
            if high - low > LAGS + 1:
                out[k].append(slice(int(low), int(high)))
        passed += run.stop - run.start
    return [part for part in out if part]


def _scores(train: LaggedGram, pieces: Sequence[LaggedGram], now: NDArray[np.intp]) -> FloatArray:
    """Log-likelihood a row of the numbers, given their past, past inputs, and inputs ``now`` of their row; by piece."""
    r, m, window = train.outputs, train.columns, train.window
    last = (window - 1) * m
    given = np.concatenate([np.arange(last), last + r + now])
    return np.array([_score(train, piece, last + np.arange(r), given) for piece in pieces])


def _score(train: LaggedGram, test: LaggedGram, target: NDArray[np.intp], given: NDArray[np.intp]) -> float:
    """Held-out log-likelihood a row of columns ``target`` of a window, given columns ``given``."""
    r, size = len(target), train.window * train.columns
    G = train.matrix / train.windows
    ridge = 1e-6 * np.diag(np.diag(G[np.ix_(given, given)])) + 1e-12 * np.eye(len(given))
    W = np.linalg.solve(G[np.ix_(given, given)] + ridge, G[np.ix_(given, target)]).T
    combine = np.zeros((r, size))
    combine[:, target], combine[:, given] = np.eye(r), -W
    inside, outside = (combine @ g.matrix @ combine.T / g.windows for g in (train, test))
    inside = inside + 1e-9 * np.diag(np.maximum(np.diag(G)[target], 1e-12))
    _, volume = np.linalg.slogdet(inside)
    return float(-0.5 * (volume + np.trace(np.linalg.solve(inside, outside))))
