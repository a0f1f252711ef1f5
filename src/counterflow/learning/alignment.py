"""Which row an input acts on: the next one, or its own, where a log shows at the end of a row what was done in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification import LaggedGram

HELD_OUT = 0.3  # of the rows, the last ones, decide
WORTH = 0.005  # nats a row that an input acting on its own row must be worth, to be taken to do so
CHUNK = 8192  # windows at once
PIECES, PIECE = 5, 100  # of the held-out rows, whose median decides; rows of one at the least
OFTEN = 0.5  # share of rows in which numbers that decide are read
LAGS = 6  # rows of past in the regressions that decide


def alignment(
    names: tuple[str, ...], s: FloatArray, inputs: Sequence[FloatArray], scale: FloatArray,
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
        one, two, pieces = _grams(s[:, np.isfinite(s).mean(axis=0) >= OFTEN], u)  # what comes seldom decides nothing
        if one.outputs and one.windows > 2 * one.columns * (LAGS + 1) and two.windows > 0:
            ends = np.cumsum([0, *(v.shape[1] for v in inputs)])
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


def _grams(s: FloatArray, u: FloatArray) -> tuple[LaggedGram, LaggedGram, list[LaggedGram]]:
    """Products of windows of rows that decide: of the first ones, of those held out, and of pieces of these.

    A window ends in a row in which every number is read; before, the last reading stands in for a missing one: it looks
    back only, so that no input seems to be foretold.
    """
    at = LAGS + np.flatnonzero(np.isfinite(s[LAGS:]).all(axis=1))
    z = np.hstack([last_readings(s), u])
    cut = int((1 - HELD_OUT) * len(at))
    count = int(np.clip((len(at) - cut) // PIECE, 1, PIECES))
    pieces = [_gram(z, s.shape[1], part) for part in np.array_split(at[cut:], count)]
    together = np.sum([piece.matrix for piece in pieces], axis=0)
    return _gram(z, s.shape[1], at[:cut]), replace(pieces[0], matrix=together, windows=len(at) - cut), pieces


def _gram(z: FloatArray, outputs: int, at: NDArray[np.intp]) -> LaggedGram:
    m = z.shape[1]
    matrix = np.zeros(((LAGS + 1) * m, (LAGS + 1) * m))
    for begin in range(0, len(at), CHUNK):
        some = at[begin : begin + CHUNK]
        window = z[some[:, None] - LAGS + np.arange(LAGS + 1)].reshape(len(some), -1)
        matrix += window.T @ window
    return LaggedGram(matrix=matrix, windows=len(at), window=LAGS + 1, outputs=outputs, inputs=m - outputs)


def last_readings(s: FloatArray) -> FloatArray:
    """Numbers (T, r) with the last reading where one is missing; before the first, that one."""
    known = np.isfinite(s)
    last = np.maximum.accumulate(np.where(known, np.arange(len(s))[:, None], -1), axis=0)
    held = np.take_along_axis(s, np.where(last < 0, np.argmax(known, axis=0), last), axis=0)
    return np.where(np.isfinite(held), held, 0.0)


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
