"""Impulse responses from moments of logs: no model is known, so a public bank of responses stands in for one.

Every output of a unit answers to every input by y = Σ_j Σ_k β_jk f_k(z) u_j, f the functions of a bank. With f = (zI -
F)⁻¹ b this is a system whose only unknowns are input matrices: states of output o obey x[t] = Fᵀ x[t-1] + Σ_j β_oj
u_j[t-1], and y_o = bᵀ x. So everything that is asked of a fit with states can be asked, and effects are linear in what
is estimated: their intervals hold without approximation.

Of the noise nothing is known either. Besides the signals that inputs make, units project on *placebos*: the same
responses to the inputs run backwards, less all that the signals tell. Nothing answers to them, so what comes out is
noise, of the same colour as that in the moments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.impulse_basis import basis_of, responses
from counterflow.learning.moments import clipping_se_factor
from counterflow.recurrence import linear_recurrence

LAGS = 20  # functions that are single lags: what acts at once, delays, and what swings
PER_TIME = 1  # functions for each of the slower time constants, which are two and a half times as far from each other
SPREAD = 2.5
TIMES = 3.0  # memory over the longest time constant
PLACEBOS = 0.25  # so many for each signal
BANDS = 5  # octaves of frequency in which noise may have a power of its own
SWEEPS = 4  # over all responses, whose scales are looked for one after the other
TRIED = 61  # scales
HIGHEST = 1e6  # of a response, in squares of an instrument's half range for one usual movement of its input
SCEPTIC = 2.0  # nats more than chance gives, that a response must stand out of noise to be one
CONTRADICTED = 2.0  # nats by which a scale is less likely than the best, beyond which it is out of the question
LOOSER = 10.0  # times the believed variance, with which it is said how far a response may be off
LEAST_SHARE = 0.02  # of a band's power that is taken to be there in every band


def poles_of(memory: int) -> tuple[float, ...]:
    """Poles of a bank that follows inputs for ``memory`` rows: lags first, then ever slower relaxations."""
    lags = min(LAGS, memory)
    longest = memory / TIMES
    constants, each = [], 5.0
    while each < longest / math.sqrt(SPREAD):
        constants.append(each)
        each *= SPREAD
    if lags < memory:
        constants.append(longest)
    return (*([0.0] * lags), *(math.exp(-1 / c) for c in constants for _ in range(PER_TIME)))


def pole_system(poles: tuple[float, ...]) -> tuple[FloatArray, FloatArray]:
    """(F, b) of orthonormal functions with these poles, the states of x[k+1] = F x[k] + b u[k].

    Function j is that of its own pole after all-passes of those before it (Takenaka and Malmquist).
    """
    count = len(poles)
    F, b = np.zeros((count, count)), np.zeros(count)
    # e[k]: what comes out of the all-passes so far, e = c x + d u; each function is g / (z - a) of it
    c, d = np.zeros(count), 1.0
    for j, pole in enumerate(poles):
        gain = math.sqrt(1 - pole * pole)
        F[j], b[j] = gain * c, gain * d
        F[j, j] += pole
        # (1 - a z)/(z - a) e = -a e + (1 - a²)/(z - a) e, and the latter is gain x_j
        c, d = -pole * c, -pole * d
        c[j] += gain
    return F, b


@dataclass(frozen=True, eq=False)
class ImpulseBasis:
    """Functions with public poles, of a memory that was chosen without looking at measurements."""

    poles: tuple[float, ...]
    memory: int

    @classmethod
    def from_memory(cls, memory: int, most: int) -> ImpulseBasis:
        """Of at most so many functions, which is for the rows to say."""
        poles = poles_of(memory)
        if len(poles) > most:
            poles = tuple(poles[k] for k in np.linspace(0, len(poles) - 1, max(most, 2)).round().astype(int))
        return cls(poles, memory)

    @cached_property
    def system(self) -> tuple[FloatArray, FloatArray]:
        return pole_system(self.poles)

    @property
    def size(self) -> int:
        return len(self.poles)

    @cached_property
    def functions(self) -> FloatArray:
        """(L, d) impulse responses, until nothing is left of them."""
        F, b = self.system
        length = 6 * self.memory
        return np.vstack([b[None], linear_recurrence(F, np.zeros((length - 1, len(b))), b)])

    def signals(self, u: FloatArray) -> FloatArray:
        """(T+1, U d)."""
        return responses(u, self.functions)


@dataclass(frozen=True, eq=False)
class LogBasis:
    """What a unit projects on: ``functions`` Φ (T+1, K), the first ``told`` of which tell of inputs.

    ``design`` (K, 1 + U d): Φᵀ [1, signals]; ``bands`` (K, BANDS): share of each column's power by octave.
    """

    functions: FloatArray
    told: int
    design: FloatArray
    bands: FloatArray
    gram: FloatArray  # ΦᵀΦ

    @classmethod
    def from_inputs(cls, u: FloatArray, bank: ImpulseBasis, there: NDArray[np.bool_]) -> LogBasis:
        """For inputs u (T+1, U) in units of their own movement, over the rows that are ``there``."""
        signals = bank.signals(u)
        level = np.ones((len(u), 1))
        used = there & (np.arange(len(u)) >= min(bank.memory, len(u) // 10))
        backwards = bank.signals(u[::-1])[::-1]
        wanted = max(4, math.ceil(PLACEBOS * signals.shape[1]))
        chosen = np.linspace(0, backwards.shape[1] - 1, min(wanted, backwards.shape[1])).round().astype(int)
        told = np.where(used[:, None], np.hstack([level, signals]), 0.0)
        scale = np.linalg.norm(told, axis=0)
        unit, sizes, _ = np.linalg.svd(told / np.where(scale > 0, scale, 1.0), full_matrices=False)
        unit = unit[:, sizes > 1e-6 * sizes[0]]
        placebos = np.where(used[:, None], backwards[:, np.unique(chosen)], 0.0)
        placebos = placebos - unit @ (unit.T @ placebos)
        basis = basis_of(np.hstack([unit, placebos / np.maximum(np.linalg.norm(placebos, axis=0), 1e-300)]), used)
        # singular vectors mix both: back to those that tell and those that do not
        weights = unit.T @ basis
        left, _, right = np.linalg.svd(weights, full_matrices=True)
        turned = np.ascontiguousarray(basis @ right.T)
        count = min(len(left), turned.shape[1])
        return cls(turned, count, turned.T @ np.hstack([level, signals]), _bands(turned), turned.T @ turned)


def _bands(functions: FloatArray) -> FloatArray:
    """Share of each column's power in octaves of frequency, the lowest band holding all that is below."""
    power = np.abs(np.fft.rfft(functions, axis=0)) ** 2
    frequency = np.arange(len(power)) / (len(power) - 1)  # 1: half a cycle a row
    band = np.clip(np.ceil(-np.log2(np.maximum(frequency, 1e-12))) - 1, 0, BANDS - 1).astype(int)
    out = np.stack([power[band == k].sum(axis=0) for k in range(BANDS)], axis=1)
    return np.asarray(out / np.maximum(out.sum(axis=1, keepdims=True), 1e-300))


@dataclass(frozen=True, eq=False)
class LogMoments:
    """What one window has told of one unit: its moments Z (K, r), and what they are to be read with.

    ``design``, ``bands`` and ``told``: of the ``LogBasis`` that they are projections on. ``added`` (r, r): covariance
    of the noise of privacy in each row of Z. ``clipped``: share of the basis in rows that were clipped, at most;
    ``centre`` (r, U d): responses that they were clipped around.
    """

    design: FloatArray
    bands: FloatArray
    told: int
    values: FloatArray
    added: FloatArray
    clipped: float
    centre: FloatArray

    @property
    def placebos(self) -> FloatArray:
        """(n, r); shortened rows let a little of the signals into them, which is taken out by what the others say."""
        rough = np.linalg.lstsq(self.design[: self.told], self.values[: self.told], rcond=1e-6)[0]
        return np.asarray(self.values[self.told :] - self.design[self.told :] @ rough)


@dataclass(frozen=True, eq=False)
class LogWindows:
    """What all windows have told of each unit; ``level`` and ``scale`` (U,) of inputs are those of the first."""

    bank: ImpulseBasis
    level: FloatArray
    scale: FloatArray
    units: tuple[tuple[LogMoments, ...], ...]


@dataclass(frozen=True, eq=False)
class LogEstimate:
    """Of one unit: level (r,), responses β (r, U d) in units of inputs' movement, and covariance (r U d, r U d).

    ``noise`` (r, r): of a row, without what inputs do, about. ``shares``: of the information, by window.
    """

    level: FloatArray
    weights: FloatArray
    covariance: FloatArray
    noise: FloatArray
    shares: tuple[float, ...]


def fitted(windows: Sequence[LogMoments], bank: ImpulseBasis) -> LogEstimate:
    """Responses of one unit from its moments in all windows, by least squares that know the noise.

    Responses are believed to fade and to be smooth or to swing, as the moments themselves say (``Belief``); how large
    that of each output to each input is, too. Where moments say nothing, belief is about nothing. Windows of which
    more was clipped than of the best tell that much less.
    """
    from scipy.linalg import eigh

    design, values = (np.vstack([getattr(w, name) for w in windows]) for name in ("design", "values"))
    r, counts = values.shape[1], [len(w.values) for w in windows]
    shape, rest = noise_of(windows)
    loud = np.array([max(float(np.trace(w.added + rest)), 1e-300) for w in windows])
    added = np.average([w.added for w in windows], axis=0, weights=counts * np.square(loud.min() / loud))
    # rows of Z are independent of each other with V_i = shape_i rest + added; turn outputs so that both are diagonal
    floor = 1e-12 * max(float(np.trace(rest + added)), 1e-300) * np.eye(r)
    powers, turn = eigh(rest + floor, added + rest + floor)  # turnᵀ (added + rest) turn = I
    back = np.linalg.inv(turn)
    private = np.stack([np.diag(turn.T @ w.added @ turn) for w in windows], axis=1)  # (r, windows), about diagonal
    weight = 1 / np.maximum(np.outer(powers, shape) + np.repeat(np.maximum(private, 0.0), counts, axis=1), 1e-9)
    weight = weight * np.repeat(_sharp(windows), counts)  # (r, K)
    turned = values @ turn
    grams = np.einsum("ki,ok,kj->oij", design, weight, design, optimize=True)
    seen = np.einsum("ki,ok,ko->oi", design, weight, turned, optimize=True)
    best: tuple[float, FloatArray, FloatArray] | None = None
    for belief in BELIEFS:
        found = _posterior(grams, seen, belief.precision(bank), bank.size)
        if best is None or found[0] > best[0]:
            best = found
    assert best is not None
    _, means, spreads = best
    weights = back.T @ means
    covariance = np.einsum("oa,ob,oij->aibj", back, back, spreads[:, 1:, 1:], optimize=True)
    size = r * (means.shape[1] - 1)
    heard = weight.sum(axis=0) * np.square(design[:, 1:]).sum(axis=1)
    shares = np.add.reduceat(heard, np.cumsum([0, *counts[:-1]])) / max(float(heard.sum()), 1e-300)
    return LogEstimate(weights[:, 0], weights[:, 1:], covariance.reshape(size, size), rest, tuple(shares.tolist()))


class Belief(NamedTuple):
    """Of an impulse response: what is left of it from row to row (``fading``), and how rows hang together."""

    fading: float
    together: float

    def precision(self, bank: ImpulseBasis) -> FloatArray:
        """(d, d), of responses whose largest rows are about 1 (the kernel of Chen, Ohlsson and Ljung for lags)."""
        lags = sum(pole == 0.0 for pole in bank.poles)
        k = np.arange(lags)
        covariance = np.zeros((bank.size, bank.size))
        covariance[:lags, :lags] = self.fading ** ((k[:, None] + k) / 2.0) * self.together ** np.abs(
            k[:, None] - k
        ) + 1e-8 * np.eye(lags)
        # what is left after the lags is as large as they leave it, and orthonormal functions share it
        rest = np.arange(lags, bank.size)
        left = max(self.fading**lags, 1e-4)
        covariance[rest, rest] = left / max(1 - self.fading, 0.02) / max(len(rest), 1)
        return np.asarray(np.linalg.inv(covariance))


BELIEFS = tuple(Belief(fading, together) for fading in (0.6, 0.85, 0.96) for together in (-0.7, 0.0, 0.85))


def _posterior(
    grams: FloatArray, seen: FloatArray, precision: FloatArray, size: int
) -> tuple[float, FloatArray, FloatArray]:
    """Log marginal likelihood of all outputs, means (r, 1 + U d) and covariances, with a scale for each response.

    Scales are those of the largest marginal likelihood, one after the other. A response that does not stand out of
    noise is taken for none, and shrunk where that is not sure: noise that is mistaken for a response may be many times
    too large. Scales are estimates as well, and belief is never quite right: covariances are those of the
    largest scales that the moments do not contradict, or of a looser belief.
    """
    r, columns = seen.shape
    inputs = (columns - 1) // size
    root = np.linalg.inv(np.linalg.cholesky(precision))  # precision⁻¹ = rootᵀ root
    at = [slice(1 + k * size, 1 + (k + 1) * size) for k in range(inputs)]
    modes = [[np.linalg.eigh(root @ grams[o, own, own] @ root.T) for own in at] for o in range(r)]
    scales, highest, gains = np.zeros((r, inputs)), np.zeros((r, inputs)), np.zeros((r, inputs))
    means, believed = np.zeros_like(seen), np.zeros((r, inputs))
    odds = math.log(max(r * inputs, 1)) + SCEPTIC  # of all responses one stands out so far by chance, or less
    for _ in range(SWEEPS):
        for o in range(r):
            means[o, 0] = (seen[o, 0] - grams[o, 0, 1:] @ means[o, 1:]) / max(grams[o, 0, 0], 1e-300)
            for k, own in enumerate(at):
                left = seen[o, own] - grams[o, own] @ means[o] + grams[o, own, own] @ means[o, own]
                values, vectors = modes[o][k]
                told = vectors.T @ (root @ left)
                scales[o, k], highest[o, k], gains[o, k] = _scale(np.maximum(values, 0.0), told)
                more = gains[o, k] - odds
                believed[o, k] = 1 / (1 + math.exp(-min(more, 500.0))) if more > 0 else 0.0
                shrunk = scales[o, k] * told / (1 + scales[o, k] * np.maximum(values, 0.0))
                means[o, own] = root.T @ (vectors @ (believed[o, k] * shrunk))
    means, _ = _given_scales(grams, seen, precision, scales)
    means[:, 1:] *= np.repeat(believed, size, axis=1)
    _, spreads = _given_scales(grams, seen, precision, np.maximum(LOOSER * scales, highest))
    return float(gains.sum()), means, spreads


def _scale(values: FloatArray, told: FloatArray) -> tuple[float, float, float]:
    """Of one response with information ``values`` (d,) in modes of belief, which tell ``told``: its most likely scale,
    the largest that is not contradicted, and the logarithm of how much more likely it is than no response at all.
    """
    top = float(values.max(initial=0.0))
    if not top > 0:
        return 0.0, HIGHEST, 0.0
    tried = np.minimum(np.logspace(-3, 9, TRIED) / top, HIGHEST)
    grown = tried[:, None] * values
    with np.errstate(over="ignore"):
        likely = 0.5 * (tried[:, None] * np.square(told) / (1 + grown) - np.log1p(grown)).sum(axis=1)
    best = int(likely.argmax())
    kept = likely >= max(float(likely[best]), 0.0) - CONTRADICTED
    largest = float(tried[np.flatnonzero(kept)[-1]]) if kept.any() else float(tried[0])
    return (float(tried[best]), largest, float(likely[best])) if likely[best] > 0 else (0.0, largest, 0.0)


def _given_scales(
    grams: FloatArray, seen: FloatArray, precision: FloatArray, scales: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Means and covariances of all responses together; a scale of zero says that there is none."""
    r, inputs = scales.shape
    size = len(precision)
    at = np.arange(inputs)
    prior = np.zeros((r, inputs, size, inputs, size))
    least = 1e-12 / np.maximum(np.einsum("oii->oi", grams)[:, 1:].max(axis=1, initial=0.0), 1e-300)
    divided = np.maximum(scales, least[:, None])
    prior[:, at, :, at, :] = np.moveaxis(precision / divided[:, :, None, None], 1, 0)
    whole = grams.copy()
    whole[:, 1:, 1:] += prior.reshape(r, inputs * size, inputs * size)
    whole[:, 0, 0] += 1e-12 * whole[:, 0, 0] + 1e-300
    spreads = np.asarray(np.linalg.inv(whole))
    return np.einsum("oij,oj->oi", spreads, seen), spreads


def _sharp(windows: Sequence[LogMoments]) -> FloatArray:
    """Information of each window, relative to the one of which least was clipped."""
    blunt = np.array([clipping_se_factor(w.clipped) for w in windows])
    return np.asarray(np.square(blunt.min() / blunt))


def noise_of(windows: Sequence[LogMoments]) -> tuple[FloatArray, FloatArray]:
    """What placebos tell of the noise: its power (K,) in each moment, relative, and its covariance (r, r).

    Windows with more noise of privacy count for less, by the square of the variance of their placebos; so do those of
    which more was clipped.
    """
    from scipy.optimize import nnls

    placebos = [w.placebos for w in windows]
    r, counts = windows[0].values.shape[1], np.array([len(each) for each in placebos])
    if counts.sum() < 2:
        return np.ones(sum(len(w.values) for w in windows)), np.zeros((r, r))
    raws = [each.T @ each / max(len(each), 1) - w.added for w, each in zip(windows, placebos, strict=True)]
    private = np.array([np.trace(w.added) for w in windows])
    best = int(np.where(counts > 1, private / _sharp(windows), np.inf).argmin())
    loud = np.maximum(private + max(float(np.trace(raws[best])), 0.0), 1e-300)
    trust = np.square(np.minimum(loud[best] / loud, 1.0)) * _sharp(windows)
    n = float((trust @ counts) ** 2 / (np.square(trust) @ counts))
    raw = np.average(raws, axis=0, weights=trust * counts)
    eigenvalues, vectors = np.linalg.eigh((raw + raw.T) / 2)
    total = (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T
    share = n / (n + r)  # of few placebos the correlations are hardly known
    rest = share * total + (1 - share) * np.diag(np.maximum(np.diag(raw), 0.0))
    level = np.maximum(np.diag(rest), 1e-300)
    heard = np.diag(rest) > 0.1 * np.diag(windows[best].added)
    bands, sure = np.vstack([w.bands[w.told :] for w in windows]), np.repeat(trust, counts)
    if not heard.any():
        return np.ones(sum(len(w.values) for w in windows)), rest
    squares = np.vstack([np.square(each) - np.diag(w.added) for w, each in zip(windows, placebos, strict=True)])
    power = np.maximum((squares / level)[:, heard].mean(axis=1), 0.0)
    # a band that the placebos hardly hold is taken to be as loud as all of them
    prior, anchored = math.sqrt(0.5) * np.eye(BANDS), math.sqrt(0.5) * np.ones(BANDS)
    root = np.sqrt(sure)
    found, _ = nnls(np.vstack([root[:, None] * bands, prior]), np.concatenate([root * power, anchored]))
    loudness = np.maximum(found, LEAST_SHARE)
    usual = max(float(np.average(bands @ loudness, weights=sure)), 1e-300)
    return np.maximum(np.vstack([w.bands for w in windows]) @ loudness / usual, LEAST_SHARE), rest


def system_of(
    bank: ImpulseBasis, outputs: Mapping[int, int], estimates: Mapping[int, LogEstimate], scale: FloatArray
) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
    """A, B and each unit's C̃ (r, r d) of all units side by side; ``scale`` (U,): of the inputs in ``estimates``."""
    F, b = bank.system
    d, U = bank.size, len(scale)
    total = sum(outputs.values())
    A: FloatArray = np.asarray(np.kron(np.eye(total), F.T))
    B = np.zeros((total * d, U))
    at = 0
    observations: list[FloatArray] = []
    for m, r in outputs.items():
        weights = estimates[m].weights.reshape(r, U, d) / scale[None, :, None]
        B[at * d : (at + r) * d] = weights.transpose(0, 2, 1).reshape(r * d, U)
        observations.append(np.asarray(np.kron(np.eye(r), b[None]), np.float64))
        at += r
    return A, B, observations


def packed_covariance(estimates: Mapping[int, LogEstimate], inputs: int, size: int, scale: FloatArray) -> FloatArray:
    """Covariance of the entries of B, unit by unit and row by row, as ``Parameters.pack`` lays out "responses"."""
    blocks = []
    for estimate in estimates.values():
        r = len(estimate.level)
        cube = estimate.covariance.reshape(r, inputs, size, r, inputs, size)
        cube = cube / scale[None, :, None, None, None, None] / scale[None, None, None, None, :, None]
        blocks.append(cube.transpose(0, 2, 1, 3, 5, 4).reshape(r * size * inputs, -1))
    ends = np.cumsum([0, *(len(block) for block in blocks)])
    out = np.zeros((ends[-1], ends[-1]))
    for first, last, block in zip(ends[:-1], ends[1:], blocks, strict=True):
        out[first:last, first:last] = block
    return out
