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
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.errors import DataError
from counterflow.learning.clipping import ClippingRegion, nothing
from counterflow.learning.impulse_basis import ImpulseBasis, basis_of
from counterflow.learning.layout import Layout, own_blocks
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.moments import clipping_bias, clipping_se_factor
from counterflow.learning.optimiser import Estimated
from counterflow.learning.parameters import Parameters
from counterflow.learning.uncertainty import Uncertainty
from counterflow.protocol import Moments, Outline

PLACEBOS = 0.25  # so many for each signal
BANDS = 5  # octaves of frequency in which noise may have a power of its own
SWEEPS = 4  # over all responses, whose scales are looked for one after the other
TRIED = 61  # scales
HIGHEST = 1e6  # of a response, in squares of an instrument's half range for one usual movement of its input
SCEPTIC = 2.0  # nats more than chance gives, that a response must stand out of noise to be one
CONTRADICTED = 2.0  # nats by which a scale is less likely than the best, beyond which it is out of the question
LOOSER = 10.0  # times the believed variance, with which it is said how far a response may be off
BELIEFS = tuple(product((0.6, 0.85, 0.96), (-0.7, 0.0, 0.85)))  # of a response: how it fades, how rows hang together
LEAST_SHARE = 0.02  # of a band's power that is taken to be there in every band
SHORTEST, LONGEST, SHARE = 10, 100, 20  # rows that inputs are followed, if nobody says: one in so many of the record
ROWS_A_SIGNAL = 15
MOSTLY = 0.5  # share clipped, beyond which nothing but the instruments' ranges is known of a response
DROWNED = 1.0  # squared doubt over squared response, beyond which the response is said to be lost in noise
FLATTEST = 0.2  # of the largest noise of an output, as which a quieter one is clipped at least


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

    Responses are believed to fade and to be smooth or to swing, as the moments themselves say (``_belief``); how large
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
    for fading, together in BELIEFS:
        found = _posterior(grams, seen, _belief(fading, together, bank), bank.size)
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


def _belief(fading: float, together: float, bank: ImpulseBasis) -> FloatArray:
    """Precision (d, d) of responses whose largest rows are about 1 (the kernel of Chen, Ohlsson and Ljung for lags).

    ``fading``: what is left of a response from row to row; ``together``: how its rows hang together.
    """
    lags = sum(pole == 0.0 for pole in bank.poles)
    k = np.arange(lags)
    covariance = np.zeros((bank.size, bank.size))
    alike = fading ** ((k[:, None] + k) / 2.0) * together ** np.abs(k[:, None] - k)
    covariance[:lags, :lags] = alike + 1e-8 * np.eye(lags)
    # what is left after the lags is as large as they leave it, and orthonormal functions share it
    rest = np.arange(lags, bank.size)
    left = max(fading**lags, 1e-4)
    covariance[rest, rest] = left / max(1 - fading, 0.02) / max(len(rest), 1)
    return np.asarray(np.linalg.inv(covariance))


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


@dataclass(frozen=True, eq=False)
class LogFound:
    """Responses of all units, and the windows of each that have told of them."""

    estimates: tuple[LogEstimate, ...]
    windows: tuple[tuple[LogMoments, ...], ...]
    steps: ClassVar[int] = 1
    converged: ClassVar[bool] = True

    @classmethod
    def from_windows(cls, windows: tuple[tuple[LogMoments, ...], ...], bank: ImpulseBasis) -> LogFound:
        return cls(tuple(fitted(own, bank) for own in windows), windows)


@dataclass(frozen=True, eq=False)
class LogDesign:
    """What units without models are asked to project on, and how their moments are read: all but measurements."""

    outlines: tuple[Outline, ...]
    memory: int | None  # rows that inputs are followed
    same_row: tuple[bool, ...]  # of each unit: whether an input acts on the row that it stands in
    before: LogWindows | None = None  # of a later window: earlier ones, whose bank and measure of inputs it takes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(outline.unit for outline in self.outlines)

    @cached_property
    def inputs(self) -> FloatArray:
        """(T+1, U) as they act: row t on row t+1."""
        given = [o.inputs for o in self.outlines]
        return np.hstack(
            [np.vstack([u[1:], u[-1:]]) if early else u for u, early in zip(given, self.same_row, strict=True)]
        )

    @cached_property
    def level(self) -> FloatArray:
        return np.asarray(self.inputs.mean(axis=0)) if self.before is None else self.before.level

    @cached_property
    def scale(self) -> FloatArray:
        """(U,) how far inputs move; 1 of those that do not."""
        if self.before is not None:
            return self.before.scale
        size = self.inputs.std(axis=0)
        return np.where(size > 1e-9 * np.abs(self.level) + 1e-300, size, 1.0)

    @cached_property
    def bank(self) -> ImpulseBasis:
        if self.before is not None:
            return self.before.bank
        rows, inputs = self.inputs.shape
        memory = self.memory or int(min(max(rows // SHARE, SHORTEST), LONGEST))
        return ImpulseBasis.from_memory(memory, rows // (ROWS_A_SIGNAL * max(inputs, 1)))

    @cached_property
    def log_bases(self) -> tuple[LogBasis, ...]:
        u, keys = (self.inputs - self.level) / self.scale, [o.there.tobytes() for o in self.outlines]
        rows = dict(zip(keys, (o.there for o in self.outlines), strict=True))  # units measured in the same share it
        made = {key: LogBasis.from_inputs(u, self.bank, there) for key, there in rows.items()}
        return tuple(made[key] for key in keys)

    @property
    def bases(self) -> tuple[FloatArray, ...]:
        return tuple(basis.functions for basis in self.log_bases)

    @property
    def asked(self) -> tuple[str, ...]:
        """Units that are asked for moments: all of them."""
        for outline, basis in zip(self.outlines, self.bases, strict=True):
            if not basis.shape[1]:
                raise DataError(
                    f"unit {outline.unit!r}: there are no rows in which all its channels were read, so nothing can be "
                    "told of it; leave out channels that are hardly ever read, or the unit. Nothing was released"
                )
        return self.names

    def estimate(self, moments: Mapping[str, Moments], private: bool, before: LogWindows | None = None) -> LogFound:
        """Responses of each unit's outputs to all inputs, from this window and those ``before``."""
        windows = []
        for m, (name, basis) in enumerate(zip(self.names, self.log_bases, strict=True)):
            told = moments[name]
            around = np.zeros((told.values.shape[1], basis.design.shape[1] - 1))
            new = LogMoments(basis.design, basis.bands, basis.told, told.values, told.noise, told.clipped, around)
            windows.append((*(() if before is None else before.units[m]), new))
        return LogFound.from_windows(tuple(windows), self.bank)

    def knowing_clips(self, found: LogFound, centred: LogFound | None) -> LogFound:
        """The same with what clipping may have done: responses may be further from the centre than they were found.

        Where most was clipped in every window, all that is known of them is that instruments have ranges: a response of
        half of one to the usual movement of an input is not ruled out. ``centred``: what the last window was clipped
        around.
        """
        estimates, told = [], []
        for m, (each, windows) in enumerate(zip(found.estimates, found.windows, strict=True)):
            if centred is not None:
                windows = (*windows[:-1], replace(windows[-1], centre=centred.estimates[m].weights))
            told.append(windows)
            least = min(w.clipped for w in windows)
            covariance = each.covariance * clipping_se_factor(least) ** 2
            for share, w in zip(each.shares, windows, strict=True):
                away = (share * clipping_bias(w.clipped) * (each.weights - w.centre)).ravel()
                covariance = covariance + np.outer(away, away)
            if least > MOSTLY:
                covariance = covariance + np.eye(len(covariance)) / self.bank.size
            estimates.append(replace(each, covariance=covariance))
        return replace(found, estimates=tuple(estimates), windows=tuple(told))

    def drowned(self, found: LogFound) -> list[tuple[str, str]]:
        """(effect, cause) of units whose responses are no larger than the doubt about them."""
        out = []
        for effect, each in zip(self.names, found.estimates, strict=True):
            r = len(each.level)
            told = np.square(each.weights.reshape(r, len(self.scale), -1)).sum(axis=(0, 2))
            doubt = np.diag(each.covariance).reshape(r, len(self.scale), -1).sum(axis=(0, 2))
            for cause, own in zip(self.names, self.layout.input_slices, strict=True):
                if cause != effect and doubt[own].sum() > DROWNED * told[own].sum():
                    out.append((effect, cause))
        return out

    def foreseen(self, found: LogFound | None) -> list[ClippingRegion]:
        """What each unit's numbers will be: nothing at first, then what the round before has told."""
        rows = len(self.inputs)
        if found is None:
            return [nothing(rows, len(o.observation)) for o in self.outlines]
        signals = self.bank.signals((self.inputs - self.level) / self.scale)
        out = []
        for estimate in found.estimates:
            size = np.sqrt(np.maximum(np.diag(estimate.noise), 0.0))
            top = float(size.max(initial=0.0))
            W = np.diag(1 / np.maximum(size, FLATTEST * top)) if top > 0 else np.eye(len(size))
            out.append(ClippingRegion(estimate.level + signals @ estimate.weights.T, W))
        return out

    # ---- what is left when the exchange is over

    @property
    def outputs(self) -> list[int]:
        return [len(outline.observation) for outline in self.outlines]

    @cached_property
    def layout(self) -> Layout:
        states = tuple(r * self.bank.size for r in self.outputs)
        return Layout(self.names, states, tuple(o.inputs.shape[1] for o in self.outlines))

    def system(self, found: LogFound) -> tuple[SharedRecord, Estimated, Uncertainty]:
        """The record without rows, A and B of all units, and how sure they are."""
        F, b = self.bank.system
        U, d, total, layout = len(self.scale), self.bank.size, sum(self.outputs), self.layout
        A, C = (np.asarray(np.kron(np.eye(total), each), np.float64) for each in (F.T, b[None]))
        weights = np.vstack([each.weights for each in found.estimates]).reshape(total, U, d) / self.scale[:, None]
        B = weights.transpose(0, 2, 1).reshape(total * d, U)
        noise = block_diagonal([_definite(each.noise) for each in found.estimates])
        record = SharedRecord(
            layout.names, layout.states, layout.inputs, values=np.full((len(self.inputs), total), np.nan),
            u=self.inputs - self.level, observation=C, noise=noise, A_local=A,
            B_local=own_blocks(B, layout.state_slices, layout.input_slices), Q_local=np.zeros_like(A),
        )  # fmt: skip
        parameters = Parameters(record, "responses", np.eye(len(A)))
        estimated = Estimated(A, B, record.Q_local, math.nan, 1, True, 0.0, parameters=parameters)
        return record, estimated, Uncertainty(parameters, self.packed_covariance(found))

    def packed_covariance(self, found: LogFound) -> FloatArray:
        """Of the entries of B, unit by unit and row by row, as ``Parameters.pack`` lays out "responses"."""
        blocks = []
        for each, r in zip(found.estimates, self.outputs, strict=True):
            size = np.tile(np.repeat(self.scale, self.bank.size), r)
            order = np.arange(len(size)).reshape(r, len(self.scale), -1).transpose(0, 2, 1).ravel()
            blocks.append((each.covariance / np.outer(size, size))[np.ix_(order, order)])
        return block_diagonal(blocks)


def _definite(noise: FloatArray) -> FloatArray:
    """A covariance with no direction in which it is nothing."""
    values, vectors = np.linalg.eigh((noise + noise.T) / 2)
    least = max(1e-6 * float(values.max(initial=0.0)), 1e-12)
    out = (vectors * np.maximum(values, least)) @ vectors.T
    return np.asarray((out + out.T) / 2)
