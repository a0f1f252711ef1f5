"""Whiteness and size of innovations, and whether the two halves of a record agree."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.checks.kinds import CHANGE, LARGE_CHANGE, Verdict
from counterflow.checks.material import Innovations, Material
from counterflow.checks.numbers import chi_square_tail, inverse_root, mean_error
from counterflow.checks.verdicts import Check, Kind, Trouble, graded, percent, worst

LAGS = 10
LIKELY = 1e-3  # a p-value below this is no accident: a handful of units is looked at, not thousands
NEGLIGIBLE, MATERIAL = 0.01, 0.05  # share of an innovation's variance that could still be foreseen
LEFT_OUT, MUCH_LEFT_OUT = 0.1, 0.3  # the same, of networks
SIZE, FAR = 1.1, 1.5  # factor by which the variance of innovations departs from one: worth a word, wrong
COLLINEAR = 1e5  # condition of regressors beyond which the size of a change is not to be trusted
SHIFT, LARGE_SHIFT = 0.1, 0.5  # of the mean innovation between the halves, in standard deviations
SPREAD, LARGE_SPREAD = 1.25, 2.0  # ratio of the innovations' variances of the halves
DEVIATIONS = 4.0  # standard errors that count as no accident where no p-value is to be had
ONE_WAY = (
    "fit a stretch in which the plant was run in one way, or fit each way of running it by itself; record what changed "
    "(a load, a season, wear) as an input"
)
_BLOCK = 65536  # rows at a time, so that working memory does not grow with the record


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
    inverse, _ = _inverse_rank((gram + gram.T) / 2)
    explained = float(np.einsum("ic,ij,jc->", x, inverse, x)) / x.shape[1]
    return float(min(1.0, max(0.0, 1 - (1 - explained) * n / (n - lags * k))))


def white_checks(material: Material) -> list[Check]:
    """One for each unit: are its innovations white?"""
    learned, out = material.model.learned, []
    # a learned model leaves out what is not worth its cost: what is left counts only where it is much
    kind = Kind("whiteness", "share foreseeable", (LEFT_OUT, MUCH_LEFT_OUT) if learned else (NEGLIGIBLE, MATERIAL))
    for m, name in enumerate(material.names):
        found = whiteness(material.innovations, m)
        if not math.isfinite(found.p_value):
            out.append(kind.unknown(name))
            continue
        clear, share = found.p_value < LIKELY, percent(found.share)
        verdict: Verdict = kind.graded(found.share) if clear else "pass"
        finding = (
            f"earlier innovations foretell {share} of the variance of {name}'s (Ljung-Box over {LAGS} lags and all "
            f"units: p = {found.p_value:.2g}; largest correlation {found.largest.max():.2f})"
        )
        if verdict == "pass" and clear:
            finding += ": no accident, but too little to matter"
        trouble = Trouble(
            "",
            f"the model misses dynamics: {share} of its one-step errors could have been predicted from earlier rows",
            "record what else acts on the unit" if learned else
            "let the fit estimate the units' own blocks too (estimate='blocks' or 'all'), or record what else acts on "
            "the unit",
        )  # fmt: skip
        bound = 2 / math.sqrt(max(found.rows, 1))
        out.append(kind.found(name, found.share, finding, trouble, verdict, largest=found.largest, bound=bound))
    return out


def size_checks(material: Material) -> list[Check]:
    """One for each unit: is the variance of its whitened innovations one?"""
    kind, out = Kind("innovation size", "variance (1 expected)"), []
    for m, name in enumerate(material.names):
        square = _squares(material.innovations, m)
        if len(square) < 8:
            out.append(kind.unknown(name))
            continue
        size, error = mean_error(square)
        factor = max(size, 1 / size) if size > 0 else math.inf
        verdict: Verdict = "pass"
        if factor > SIZE and abs(size - 1) > DEVIATIONS * error:
            verdict = "fail" if factor > FAR else "caution"
        trouble = Trouble(
            "", f"innovations have {size:.2g} times the variance that the model says",
            "fit these rows, too" if material.model.learned else
            "let the fit estimate the noise levels (estimate='all'), or mend R and Q of the unit's model; until then "
            f"intervals are too {'narrow' if size > 1 else 'wide'}, by a factor of about {math.sqrt(factor):.1f}",
        )  # fmt: skip
        blocks = [part.mean() for part in np.array_split(square, min(20, len(square)))]
        finding = f"the variance of {name}'s innovations is {size:.2f} ± {2 * error:.2f} where 1 is expected"
        out.append(kind.found(name, size, finding, trouble, verdict, blocks=blocks))
    return out


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


def drift(material: Material, m: int, grams: dict[bytes, FloatArray] | None = None) -> Drift | None:
    """Of unit ``m``; None if there are too few rows. ``grams`` keeps what units measured in the same rows share.

    If the model is right, innovations depend on nothing that went before, in neither half. If unit n acts on unit m
    with another strength than the estimate's, m's innovations follow n's states and inputs of the row before. So they
    are regressed on all units' estimated signals C̃ ĥ[t-1] and inputs u[t-1] in each half, and the coefficients
    compared:
    an error of the estimate is common to both halves and drops out. The change found is somewhat below the true one,
    because the filter makes up for part of it.
    """
    innovations, grams = material.innovations, {} if grams is None else grams
    own, begin = material.columns[m], innovations.first
    width = own.stop - own.start
    rows = np.flatnonzero(innovations.measured[:, m])
    groups = _groups(material)
    k = 1 + sum(len(group) for group in groups)
    if not width or len(rows) < 8 * k:
        return None
    middle = len(rows) // 2
    halves = [
        _Moments.of(material, rows[part] + begin - 1, innovations.own[rows[part], own], own, grams)
        for part in (slice(0, middle), slice(middle, None))
    ]
    # their own covariance, not the identity that the model says: a wrong size is not a drift
    root = np.asarray(np.linalg.cholesky(_covariance(innovations.own[rows][:, own])), np.float64)
    halves = [half.scaled(root) for half in halves]
    whole = halves[0] + halves[1]
    inverses = [_inverse_rank(half.gram)[0] for half in halves]
    step = inverses[0] @ halves[0].innovation - inverses[1] @ halves[1].innovation  # (k, width)
    spread = inverses[0] + inverses[1]
    usual = _inverse_rank(whole.gram)[0] @ whole.signal  # what the model itself says, in the same terms
    covariance = whole.gram / whole.gram[0, 0] - np.outer(whole.gram[0], whole.gram[0]) / whole.gram[0, 0] ** 2
    p_values, moved, size = np.ones(len(groups)), np.zeros(len(groups)), np.zeros(len(groups))
    for n, group in enumerate(groups):
        if not len(group):
            continue
        block = np.ix_(group, group)
        weight, rank = _inverse_rank(spread[block])
        p_values[n] = chi_square_tail(float(np.einsum("ic,ij,jc->", step[group], weight, step[group])), rank * width)
        moved[n] = float(np.einsum("ic,ij,jc->", step[group], covariance[block], step[group]))
        moved[n] -= width * float(np.trace(spread[block] @ covariance[block]))
        size[n] = float(np.einsum("ic,ij,jc->", usual[group], covariance[block], usual[group]))
    changes = np.sqrt(np.divide(np.maximum(moved, 0.0), size, out=np.zeros_like(size), where=size > 0))
    overall = math.sqrt(max(float(moved.sum()), 0.0) / float(size.sum())) if size.sum() > 0 else 0.0
    means = [half.innovation[0] / half.gram[0, 0] for half in halves]
    share = 1 / halves[0].gram[0, 0] + 1 / halves[1].gram[0, 0]
    squares = np.square(innovations.own[rows][:, own]).mean(axis=1)
    (first, first_error), (second, second_error) = mean_error(squares[:middle]), mean_error(squares[middle:])
    level = float(np.abs(means[1] - means[0]).max())
    return Drift(
        p_values, changes, overall, chi_square_tail(float(np.square(means[1] - means[0]).sum()) / share, width), level,
        second / first if first > 0 else float("nan"),
        math.hypot(first_error / first, second_error / second) if first > 0 and second > 0 else float("inf"),
        _condition(covariance),
    )  # fmt: skip


def _condition(covariance: FloatArray) -> float:
    """Of the correlation matrix; columns that never move are left out."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    moves = size > 1e-12 * size.max(initial=0.0)
    values = np.linalg.eigvalsh(covariance[np.ix_(moves, moves)] / np.outer(size[moves], size[moves]))
    return float(values[-1] / max(values[0], 1e-300)) if values.size else 1.0


def drift_checks(material: Material) -> list[Check]:
    """One for each unit: do the two halves agree on what acts on it?"""
    kind, out = Kind("drift", "relative change", (CHANGE, LARGE_CHANGE)), []
    grams: dict[bytes, FloatArray] = {}
    for m, name in enumerate(material.names):
        found = drift(material, m, grams)
        if found is None:
            out.append(kind.unknown(name))
            continue
        sure = found.p_values * len(material.names) < LIKELY
        at = int(np.argmax(np.where(sure, found.changes, -1.0)))
        change = float(found.changes[at]) if sure.any() else 0.0
        couplings = kind.graded(change)
        others = np.delete(found.changes * sure, m)
        if couplings == "fail" and (others.max(initial=0.0) < LARGE_CHANGE or found.condition > COLLINEAR):
            # a plant that is not quite linear moves its own blocks, but answers are about others'; where units move
            # together, what one does is taken for what another does, and the size of a change is anybody's guess
            couplings = "caution"
        level: Verdict = graded(found.level, SHIFT, LARGE_SHIFT) if found.level_p < LIKELY else "pass"
        size: Verdict = "pass"
        factor = max(found.ratio, 1 / found.ratio) if found.ratio > 0 else 1.0
        if math.isfinite(factor) and math.log(factor) > DEVIATIONS * found.ratio_error:
            size = graded(factor, SPREAD, LARGE_SPREAD)
        who = "itself" if at == m else material.names[at]
        said = [
            text for verdict, text in (
                (couplings, f"what {who} does to {name} changes {change_words(change)}"),
                (level, f"the mean innovation of {name} moves by {found.level:.2g} standard deviations"),
                (size, f"the variance of {name}'s innovations changes by a factor of {found.ratio:.2g}"),
            ) if verdict != "pass"
        ]  # fmt: skip
        agree = f"the two halves agree on what acts on {name} and how well it is foreseen"
        out.append(
            kind.found(
                name, change if sure.any() else found.overall, "; ".join(said) or agree,
                Trouble("", said[0] if said else "", ONE_WAY), worst(couplings, level, size),
                (material.names[at],) if couplings != "pass" else (), changes=found.changes, sure=sure,
            )
        )  # fmt: skip
    return out


def change_words(change: float) -> str:
    """ "by about 12 % from one half to the other" """
    size = f"by about {percent(change)}" if change <= 1 else "by more than its own size"
    return f"{size} from one half to the other"


@dataclass(frozen=True, eq=False)
class _Moments:
    """Sums over rows t of x xᵀ, x eᵀ and x (C̃ E[h[t+1]])ᵀ, x = (1, signals of row t, inputs of row t)."""

    gram: FloatArray  # (k, k)
    innovation: FloatArray  # (k, width)
    signal: FloatArray  # (k, width), in the scale of the innovations

    @classmethod
    def of(
        cls, material: Material, before: NDArray[np.intp], e: FloatArray, own: slice, grams: dict[bytes, FloatArray]
    ) -> _Moments:
        """``before``: the rows before those of the innovations ``e``."""
        r, k = len(material.C), 1 + len(material.C) + material.u.shape[1]
        key = hashlib.sha256(before.tobytes()).digest()
        gram = grams.get(key)
        fresh, innovation, states = np.zeros((k, k)), np.zeros((k, e.shape[1])), np.zeros((k, len(material.model.A)))
        for first in range(0, len(before), _BLOCK):
            rows = before[first : first + _BLOCK]
            x = np.empty((len(rows), k))
            x[:, 0] = 1.0
            x[:, 1 : 1 + r] = material.filtered.filtered[rows] @ material.C.T
            x[:, 1 + r :] = material.u[rows]
            innovation += x.T @ e[first : first + _BLOCK]
            states += x.T @ material.filtered.predicted[rows + 1]
            if gram is None:
                fresh += x.T @ x
        gram = grams.setdefault(key, fresh) if gram is None else gram
        whiten = np.linalg.inv(np.linalg.cholesky(_typical(material)[own, own]))
        return cls(gram, innovation, states @ (whiten @ material.C[own]).T)

    def scaled(self, root: FloatArray) -> _Moments:
        """With innovations and signals in units in which the innovations' covariance ``root rootᵀ`` is the identity."""
        inverse = np.linalg.inv(root).T
        return _Moments(self.gram, self.innovation @ inverse, self.signal @ inverse)

    def __add__(self, other: _Moments) -> _Moments:
        return _Moments(self.gram + other.gram, self.innovation + other.innovation, self.signal + other.signal)


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


def _inverse_rank(gram: FloatArray) -> tuple[FloatArray, int]:
    """Inverse on the directions that there are, and their number."""
    root = inverse_root(gram)
    return np.asarray(root @ root.T), root.shape[1]


def _squares(innovations: Innovations, m: int) -> FloatArray:
    """Mean square of unit ``m``'s whitened innovation in each row that it was measured in."""
    own = innovations.columns[m]
    if own.stop == own.start:
        return np.zeros(0)
    return np.asarray(np.square(innovations.own[innovations.measured[:, m], own]).mean(axis=1))
