"""Whiteness and size of innovations, and whether the two halves of a record agree."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.checks.figures import MOST_CURVES, Pen
from counterflow.checks.material import Innovations, Material
from counterflow.checks.numbers import chi_square_tail, inverse_rank, mean_error
from counterflow.checks.verdicts import Check, Kind, Verdict, graded, percent, worst

LAGS = 10
LIKELY = 1e-3  # a p-value below this is no accident: a handful of units is looked at, not thousands
NEGLIGIBLE, MATERIAL = 0.01, 0.05  # share of an innovation's variance that could still be foreseen
LEFT_OUT, MUCH_LEFT_OUT = 0.1, 0.3  # the same, of networks
SIZE, FAR = 1.1, 1.5  # factor by which the variance of innovations departs from one: worth a word, wrong
CHANGE, LARGE_CHANGE = 0.1, 0.2  # relative change of what a unit does to another between the halves
COLLINEAR = 1e5  # condition of regressors beyond which the size of a change is not to be trusted
SHIFT, LARGE_SHIFT = 0.1, 0.5  # of the mean innovation between the halves, in standard deviations
SPREAD, LARGE_SPREAD = 1.25, 2.0  # ratio of the innovations' variances of the halves
DEVIATIONS = 4.0  # standard errors that count as no accident where no p-value is to be had
ONE_WAY = (
    "fit a stretch in which the plant was run in one way, or fit each way of running it by itself; record what changed "
    "(a load, a season, wear) as an input"
)
BROUGHT = 0.01  # standard deviations of a number that a unit must bring to it in a row, for its change to matter
PARTS = 12  # of a half, whose scores give the error of a coefficient
SURE, NO_DOUBT = 5.0, 7.0  # standard errors from which a change is no accident: many are looked at, from few parts


@dataclass(frozen=True, eq=False)
class Whiteness:
    """How much of a unit's innovations the innovations of earlier rows foretell."""

    p_value: float
    share: float  # of its variance, less what chance gives
    largest: FloatArray  # (lags,) largest correlation at each lag
    rows: int


def whiteness(innovations: Innovations, m: int, lags: int = LAGS) -> Whiteness:
    """Of unit ``m``: correlations of its innovation with all units' innovations 1..``lags`` rows before.

    The multivariate portmanteau statistic Σ_l n_l ‖R_l‖², n_l being the pairs of rows that there are at lag l (so far
    Ljung's and Box's), chi-square if innovations are white. Rows in which one of the two was not measured bring
    nothing. The share is that of a linear regression on those innovations (Yule-Walker), less what chance gives.
    """
    own, there = innovations.columns[m], innovations.measured
    n, width = int(there[:, m].sum()), own.stop - own.start
    nothing = Whiteness(float("nan"), float("nan"), np.full(lags, np.nan), n)
    if not width or n <= 2 * lags:
        return nothing
    seen = np.repeat(there.any(axis=0), innovations.widths)
    found = innovations.correlations(lags)
    R = found.own[1:, own][:, :, seen]  # (lags, width, k)
    pairs = np.repeat(found.pairs[1:, m], innovations.widths, axis=1)[:, seen]  # (lags, k)
    statistic, freedom = float((np.square(R).sum(axis=1) * pairs).sum()), width * int((pairs > 0).sum())
    if not freedom:
        return nothing
    p_value = chi_square_tail(statistic, freedom)
    chance = 1 / pairs[pairs > 0]  # of a squared correlation
    luck = float(chance.sum())
    if not there.all():  # few pairs, of which some go together by chance
        luck += 2 * math.sqrt(2 * float(np.square(chance).sum()) / width)
    share = max(0.0, float(np.square(R).sum()) / width - luck)
    if p_value < LIKELY and 4 * lags * R.shape[2] < pairs.min():  # not white: they foretell in part the same
        share = _foretold(found.joint[:-1][:, seen][:, :, seen], R, n)
    return Whiteness(p_value, share, np.abs(R).max(axis=(1, 2)), n)


def _foretold(auto: FloatArray, cross: FloatArray, n: int) -> float:
    """Share of variance that a regression on ``lags`` earlier rows explains, adjusted for its coefficients."""
    lags, k = auto.shape[0], auto.shape[1]
    blocks = [[auto[j - i] if j >= i else auto[i - j].T for j in range(lags)] for i in range(lags)]
    gram = np.block(blocks)  # E z[t-i] z[t-j]ᵀ
    x = cross.transpose(0, 2, 1).reshape(lags * k, -1)
    inverse, _ = inverse_rank((gram + gram.T) / 2)
    explained = float(np.einsum("ic,ij,jc->", x, inverse, x)) / x.shape[1]
    return float(min(1.0, max(0.0, 1 - (1 - explained) * n / (n - lags * k))))


class White(Kind):
    name, claim, place = "whiteness", "innovations are white", 5
    unit_of_number = "share foreseeable"

    def of_unit(self, material: Material, m: int, name: str) -> Iterator[Check]:
        learned, found = material.model.learned, whiteness(material.innovations, m)
        if not math.isfinite(found.p_value):
            yield self.unknown(name)
            return
        # a learned model leaves out what is not worth its cost: what is left counts only where it is much
        limits = (LEFT_OUT, MUCH_LEFT_OUT) if learned else (NEGLIGIBLE, MATERIAL)
        clear, share = found.p_value < LIKELY, percent(found.share)
        verdict: Verdict = graded(found.share, *limits) if clear else "pass"
        finding = (
            f"earlier innovations foretell {share} of the variance of {name}'s (Ljung-Box over {LAGS} lags and all "
            f"units: p = {found.p_value:.2g}; largest correlation {found.largest.max():.2f})"
        )
        if verdict == "pass" and clear:
            finding += ": no accident, but too little to matter"
        remedy = "record what else acts on the unit"
        if not learned:
            remedy = f"let the fit estimate the units' own blocks too (estimate='blocks' or 'all'), or {remedy}"
        yield self.found(
            name, found.share, finding,
            f"the model misses dynamics: {share} of its one-step errors could have been predicted from earlier rows",
            remedy, verdict=verdict, largest=found.largest, bound=2 / math.sqrt(max(found.rows, 1)),
        )  # fmt: skip

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        for k, check in enumerate(checks[:MOST_CURVES]):
            largest = check.data["largest"]
            pen.curve(k, np.arange(1, len(largest) + 1), largest, check)
        pen.line(max(float(check.data["bound"][0]) for check in checks))
        pen.axis.set_ylim(0, max(0.12, 1.1 * max(float(check.data["largest"].max()) for check in checks)))
        pen.labels("lag, rows (dashed: two standard errors)", "largest correlation", legend=True)


class Size(Kind):
    """Is the variance of a unit's whitened innovations one?"""

    name, claim, place = "innovation size", "innovations are of their size", 6
    unit_of_number = "variance (1 expected)"

    def of_unit(self, material: Material, m: int, name: str) -> Iterator[Check]:
        own = material.columns[m]
        rows = material.innovations.measured[:, m]
        if own.stop == own.start or rows.sum() < 8:
            yield self.unknown(name)
            return
        square = np.square(material.innovations.own[rows, own]).mean(axis=1)
        size, error = mean_error(square)
        factor = max(size, 1 / size) if size > 0 else math.inf
        sure = abs(size - 1) > DEVIATIONS * error
        remedy = "fit these rows, too"
        if not material.model.learned:
            remedy = (
                "let the fit estimate the noise levels (estimate='all'), or mend R and Q of the unit's model; until "
                f"then intervals are too {'narrow' if size > 1 else 'wide'}, by a factor of about "
                f"{math.sqrt(factor):.1f}"
            )
        yield self.found(
            name, size, f"the variance of {name}'s innovations is {size:.2f} ± {2 * error:.2f} where 1 is expected",
            f"innovations have {size:.2g} times the variance that the model says", remedy,
            verdict="pass" if factor <= SIZE or not sure else "fail" if factor > FAR else "caution",
            blocks=[part.mean() for part in np.array_split(square, min(20, len(square)))],
        )  # fmt: skip

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        for k, check in enumerate(checks[:MOST_CURVES]):
            blocks = check.data["blocks"]
            pen.curve(k, (np.arange(len(blocks)) + 0.5) / len(blocks), blocks, check)
        pen.line(1.0)
        pen.axis.set_ylim(bottom=0)
        pen.labels("share of the record", "variance of innovations", legend=True)


@dataclass(frozen=True, eq=False)
class Drift:
    """What differs between the halves of a record, as seen in one unit's innovations."""

    p_values: FloatArray  # (M,) what each unit does to this one
    changes: FloatArray  # (M,) relative, less what chance gives
    overall: float  # the same of all units together
    level_p: float
    level: float  # difference of the mean innovation, standard deviations
    ratio: float  # variance of the innovations, second half over first
    ratio_error: float  # of its logarithm
    condition: float  # of the correlations of what the innovations are regressed on


def drift(material: Material, m: int, grams: dict[bytes, list[FloatArray]] | None = None) -> Drift | None:
    """Of unit ``m``; None if there are too few rows. ``grams`` keeps what units measured in the same rows share.

    If the model is right, innovations depend on nothing that went before, in neither half. If unit n acts on unit m
    with another strength than the estimate's, m's innovations follow n's states and inputs of the row before. So they
    are regressed on all units' estimated signals C̃ ĥ[t-1] and inputs u[t-1] in each half, and the coefficients
    compared: an error of the estimate is common to both halves and drops out. The change found is somewhat below the
    true one, because the filter makes up for part of it.
    """
    innovations, C, own = material.innovations, material.C, material.columns[m]
    width, rows = own.stop - own.start, np.flatnonzero(innovations.measured[:, m])
    groups = _groups(material)
    k = 1 + sum(len(group) for group in groups)
    if not width or len(rows) < 8 * k:
        return None
    before, middle = rows + innovations.first - 1, len(rows) // 2
    parts = (slice(0, middle), slice(middle, None))
    x = np.column_stack([np.ones(len(rows)), material.filtered.filtered[before] @ C.T, material.u[before]])  # (n, k)
    # their own covariance, not the identity that the model says: a wrong size is not a drift
    square = np.square(innovations.own[rows][:, own]).mean(axis=1)
    scale = np.linalg.inv(np.linalg.cholesky(_covariance(innovations.own[rows][:, own]))).T
    e = innovations.own[rows][:, own] @ scale
    key, grams = hashlib.sha256(before.tobytes()).digest(), {} if grams is None else grams
    if key not in grams:
        grams[key] = [x[part].T @ x[part] for part in parts]
    one, two = grams[key]
    whole, left = one + two, [x[part].T @ e[part] for part in parts]
    inverses = [inverse_rank(gram)[0] for gram in (one, two)]
    step = inverses[0] @ left[0] - inverses[1] @ left[1]  # (k, width)
    spread = inverses[0] + inverses[1]
    # what the model itself says, in the same terms
    whiten = np.linalg.inv(np.linalg.cholesky(_typical(material)[own, own]))
    says = x.T @ material.filtered.predicted[before + 1] @ (whiten @ C[own]).T @ scale
    usual = inverse_rank(whole)[0] @ says
    covariance = whole / whole[0, 0] - np.outer(whole[0], whole[0]) / whole[0, 0] ** 2
    p_values, moved, size = np.ones(len(groups)), np.zeros(len(groups)), np.zeros(len(groups))
    for n, group in enumerate(groups):
        if not len(group):
            continue
        block = np.ix_(group, group)
        weight, rank = inverse_rank(spread[block])
        p_values[n] = chi_square_tail(_form(step[group], weight), rank * width)
        moved[n] = _form(step[group], covariance[block]) - width * float(np.trace(spread[block] @ covariance[block]))
        size[n] = _form(usual[group], covariance[block])
    changes = np.sqrt(np.divide(np.maximum(moved, 0.0), size, out=np.zeros_like(size), where=size > 0))
    overall = math.sqrt(max(float(moved.sum()), 0.0) / float(size.sum())) if size.sum() > 0 else 0.0
    level = left[1][0] / two[0, 0] - left[0][0] / one[0, 0]
    share = 1 / one[0, 0] + 1 / two[0, 0]
    (first, first_error), (second, second_error) = (mean_error(square[part]) for part in parts)
    return Drift(
        p_values, changes, overall, chi_square_tail(float(np.square(level).sum()) / share, width),
        float(np.abs(level).max()), second / first if first > 0 else float("nan"),
        math.hypot(first_error / first, second_error / second) if first > 0 and second > 0 else float("inf"),
        _condition(covariance),
    )  # fmt: skip


def _form(x: FloatArray, weight: FloatArray) -> float:
    """Sum of xᵀ weight x over the columns of x."""
    return float(np.einsum("ic,ij,jc->", x, weight, x))


def _condition(covariance: FloatArray) -> float:
    """Of the correlation matrix; columns that never move are left out."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    moves = size > 1e-12 * size.max(initial=0.0)
    values = np.linalg.eigvalsh(covariance[np.ix_(moves, moves)] / np.outer(size[moves], size[moves]))
    return float(values[-1] / max(values[0], 1e-300)) if values.size else 1.0


class Halves(Kind):
    """One check for each unit: do the two halves of the record agree on what acts on it?"""

    name, claim, place = "drift", "both halves of the record agree", 7
    unit_of_number = "relative change"
    limits = (CHANGE, LARGE_CHANGE)
    bars = ("change of what acts on it between the halves, relative", LARGE_CHANGE, 0.5)

    def look(self, material: Material) -> Iterator[Check]:
        return self._of_network(material) if material.model.learned else self._of_models(material)

    def _of_models(self, material: Material) -> Iterator[Check]:
        grams: dict[bytes, list[FloatArray]] = {}
        for m, name in enumerate(material.names):
            found = drift(material, m, grams)
            if found is None:
                yield self.unknown(name)
                continue
            sure = found.p_values * len(material.names) < LIKELY
            at = int(np.argmax(np.where(sure, found.changes, -1.0)))
            change = float(found.changes[at]) if sure.any() else 0.0
            couplings = graded(change, *self.limits)
            others = np.delete(found.changes * sure, m)
            if couplings == "fail" and (others.max(initial=0.0) < LARGE_CHANGE or found.condition > COLLINEAR):
                # a plant that is not quite linear moves its own blocks, but answers are about others'; where units move
                # together, what one does is taken for what another does, and the size of a change is anybody's guess
                couplings = "caution"
            level: Verdict = graded(found.level, SHIFT, LARGE_SHIFT) if found.level_p < LIKELY else "pass"
            factor = max(found.ratio, 1 / found.ratio) if found.ratio > 0 else 1.0
            surely = math.isfinite(factor) and math.log(factor) > DEVIATIONS * found.ratio_error
            size: Verdict = graded(factor, SPREAD, LARGE_SPREAD) if surely else "pass"
            said = {
                _changes(material, at, m, change): couplings,
                f"the mean innovation of {name} moves by {found.level:.2g} standard deviations": level,
                f"the variance of {name}'s innovations changes by a factor of {found.ratio:.2g}": size,
            }
            bad = [text for text, verdict in said.items() if verdict != "pass"]
            agree = f"the two halves agree on what acts on {name} and how well it is foreseen"
            yield self.found(
                name, change if sure.any() else found.overall, "; ".join(bad) or agree, bad[0] if bad else "", ONE_WAY,
                verdict=worst(*said.values()), units=(material.names[at],) if couplings != "pass" else (),
                changes=found.changes, sure=sure,
            )  # fmt: skip

    def _of_network(self, material: Material) -> Iterator[Check]:
        """Does what each unit does to it, as the model foresees it, hold in both halves?

        What a unit brings to a number (of the number's own unit: beyond the last value) is one regressor; residuals are
        regressed on all of them in each half. The difference of a coefficient is the relative change of what a unit
        does. Its error comes from blocks of neighbouring rows, which may go together.
        """
        told = material.grounded.brought()
        assert told is not None
        brought, residual = told
        for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
            rows = np.flatnonzero(material.innovations.measured[:, m])
            change, sure = np.zeros(len(material.names)), np.zeros(len(material.names))
            for i in range(own.start, own.stop):
                x = brought[:, rows, i].T.copy()
                halves = np.array_split(np.arange(len(rows)), 2)
                one, two = (_coefficients(x[part], residual[rows[part], i]) for part in halves)
                if one is None or two is None:
                    continue
                gap, error = one[0] - two[0], np.sqrt(one[1] + two[1])
                error = np.where(x.std(axis=0) >= BROUGHT, error, np.inf)  # what hardly acts hardly changes
                t = np.abs(gap) / np.maximum(error, 1e-12)
                better = t > sure
                change, sure = np.where(better, np.abs(gap), change), np.where(better, t, sure)
            at = int(sure.argmax())
            number, certain = float(change[at]), sure[at] > SURE
            verdict: Verdict = "pass"
            if certain and number > CHANGE:
                verdict = "fail" if number > LARGE_CHANGE and sure[at] > NO_DOUBT else "caution"
            changes, agree = _changes(material, at, m, number), f"the two halves agree on what acts on {name}"
            yield self.found(
                name, number if certain else 0.0, agree if verdict == "pass" else changes, changes, ONE_WAY,
                verdict=verdict, units=(material.names[at],), changes=change, sure=sure > SURE,
            )  # fmt: skip


def _changes(material: Material, at: int, m: int, change: float) -> str:
    """What a unit does to unit ``m`` changes by so much."""
    who = "itself" if at == m else material.names[at]
    size = f"by about {percent(change)}" if change <= 1 else "by more than its own size"
    return f"what {who} does to {material.names[m]} changes {size} from one half to the other"


def _coefficients(x: FloatArray, e: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Of e (n,) on columns x (n, k) and a level, with variances from blocks of rows; None if there are too few."""
    n = len(e)
    if n < 10 * PARTS:
        return None
    x = np.hstack([x - x.mean(axis=0), np.ones((n, 1))])
    size = np.sqrt(np.square(x).mean(axis=0))
    moving = size > 1e-6
    found, variance = np.zeros(len(size)), np.full(len(size), np.inf)
    x = x[:, moving] / size[moving]
    inverse = np.linalg.pinv(x.T @ x, rcond=1e-6)
    beta = inverse @ (x.T @ e)
    scores = np.array([part.sum(axis=0) for part in np.array_split(x * (e - x @ beta)[:, None], PARTS)])
    spread = inverse @ (scores.T @ scores) @ inverse * PARTS / (PARTS - 1)
    found[moving], variance[moving] = beta / size[moving], np.diag(spread) / size[moving] ** 2
    return found[:-1], variance[:-1]


def _covariance(series: FloatArray) -> FloatArray:
    """Of the columns; never quite singular."""
    centred = series - series.mean(axis=0)
    covariance = centred.T @ centred / len(series)
    return np.asarray(covariance + np.eye(len(covariance)) * max(1e-12, 1e-9 * float(np.trace(covariance))))


def _typical(material: Material) -> FloatArray:
    """Covariance of the innovations in the longest run of rows that share one."""
    run = max(material.filtered.runs, key=lambda run: run.stop - run.start)
    X = run.predicted if run.predicted.ndim == 2 else run.predicted.mean(axis=0)
    R = material.grounded.sent.noise
    R = R if R.ndim == 2 else np.nanmean(R, axis=0)
    return np.asarray(material.C @ X @ material.C.T + R)


def _groups(material: Material) -> list[NDArray[np.intp]]:
    """For each unit, its columns among (1, signals, inputs)."""
    after = 1 + len(material.C)
    return [
        np.concatenate([np.arange(1 + s.start, 1 + s.stop), np.arange(after + u.start, after + u.stop)])
        for s, u in zip(material.columns, material.inputs, strict=True)
    ]
