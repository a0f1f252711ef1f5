"""Were inputs moved enough, each by itself? And do they react to what was measured?

Feedback is looked for by regression: what an input does beyond what its own past, and the last rows of the other
inputs, would tell is its *move*; if measurements of earlier rows foretell moves, something reacts to them. Rows in and
after a gap of a unit's readings do not count: what a model expects there can be far off, and one such row would pull
the whole regression towards the move that happens to be in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.checks.material import Material
from counterflow.checks.numbers import inverse_root
from counterflow.checks.verdicts import Check, Kind, Verdict, percent
from counterflow.learning.identifiability import STILL
from counterflow.recurrence import linear_recurrence

# Windows of lags whose means stand for the past: fine near by, coarse far away.
OWN_PAST = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 16), (17, 32), (33, 64))
NEAR = 3  # of these windows, for the other inputs
MEASURED_PAST = ((1, 1), (2, 2), (3, 6))
SEEN = (*MEASURED_PAST, (0, 0))
LIKELY = 1e-3
FEWEST_MOVES = 8  # about which anything can be said
ORDERS = 20  # lags over which the ways in which an input moves are counted
FLAT = 1e-6  # of the largest variance: a way in which an input does not move
# share of an input's movement that is its own: hard to tell from the others below; from logs; not at all
ALONE, HARDLY_ALONE, ALONE_AT_ALL = 0.05, 0.01, 1e-6
FAINT, MATERIAL = 0.01, 0.05  # share of an input's moves that measurements foretell
MOST_ROWS, STRETCHES = 131_072, 4  # rows of a long record that feedback is looked for in
WARM_UP = 4096  # rows before such a stretch in which an input's response builds up


# ---- excitation -----------------------------------------------------------------------------------------------------


class Excitation(Kind):
    """One check for each input, and one for each pair of units between which too few rows leave couplings open."""

    name, claim, place = "excitation", "inputs were moved enough", 2
    unit_of_number = "own share of movement"
    needs = "inputs"
    bars = ("share of its movement that is its own", ALONE, 1.0)

    def look(self, material: Material) -> Iterator[Check]:
        u = material.u[:-1]
        covariance = np.atleast_2d(np.cov(u.T, bias=True)) if len(u) > 1 and u.shape[1] else np.zeros((u.shape[1],) * 2)
        for j, own_share in enumerate(_alone(covariance)):
            yield self._of_input(material, j, u[:, j], covariance, float(own_share))
        # doubts that no single input is the reason of: units with too few rows
        couplings, seen = material.server.couplings, set()
        for doubt in () if couplings is None else couplings.doubts:
            pair = doubt.cause, doubt.effect
            if not doubt.channels and pair not in seen:
                seen.add(pair)
                rows = float(material.measured[:, [material.names.index(name) for name in pair]].sum(axis=0).min())
                told = (doubt.reason, doubt.remedy, doubt.reason)
                yield Check(self.name, " -> ".join(pair), "fail", rows, "rows measured", *told, units=pair)

    def _of_input(self, material: Material, j: int, series: FloatArray, covariance: FloatArray, share: float) -> Check:
        name, rows = material.input_names[j], len(series)
        moves, order = int((np.diff(series) != 0).sum()), _order(series)
        stepwise = moves < rows / 3
        ways = min(ORDERS, 2 + len(material.model.A) // max(len(material.names), 1), rows // 4)
        verdict: Verdict = "caution"
        if series.std() <= STILL * max(float(np.abs(series).max(initial=0.0)), 1e-300):
            order, share, verdict, finding = 0, 0.0, "fail", f"{name} never moves in these rows"
            short, remedy = "it was never moved, so its effects cannot be told", "move it, by itself, while recording"
        elif share < ALONE_AT_ALL:
            partners = [material.input_names[k] for k in _partners(covariance, j)]
            verdict, finding = "fail", f"{name} moves only together with {', '.join(partners)}"
            short = "it moved only together with others, so its own effect cannot be told"
            remedy = "move each of them by itself while recording"
        elif stepwise and moves < FEWEST_MOVES:
            finding, short = f"{name} moves only {moves} times in {rows} rows", f"it moved only {moves} times"
            remedy = "move it more often: set points drawn at random, held a while"
        elif share < ALONE:
            # a fit from logs takes the fewest inputs that tell what happened, so that its intervals do not show this
            verdict = "fail" if material.model.learned and share < HARDLY_ALONE else "caution"
            finding = f"{percent(1 - share)} of {name}'s movement is shared with other inputs"
            short = "it moved almost only together with others, whose effects may be taken for its own"
            remedy = "move it more by itself while recording"
        elif order < ways:
            finding = f"{name} moves in {order} independent ways only (a few sinusoids, or nothing but a ramp)"
            short = f"it moved in {order} independent ways only, so other courses of it are extrapolated"
            remedy = "move it in steps or at random, so that slow and fast answers of the plant show"
        else:
            counted = f"{moves} moves in {rows} rows" if stepwise else "it moves in most rows"
            verdict, short, remedy = "pass", "", ""
            finding = f"{counted}; {percent(share)} of its variance is its own, not shared with other inputs"
        return self.found(name, share, finding, short, remedy, verdict=verdict, share=share, moves=moves, order=order)


def _alone(covariance: FloatArray) -> FloatArray:
    """Share of each input's variance that the other inputs of the same row do not tell."""
    size = np.sqrt(np.diag(covariance))
    moving = size > 0
    out = np.zeros(len(size))
    if moving.any():
        part = covariance[np.ix_(moving, moving)] / np.outer(size[moving], size[moving])
        values, vectors = np.linalg.eigh(part)
        inverse = np.square(vectors) @ (1 / np.maximum(values, 1e-14))
        out[moving] = np.minimum(1.0, 1 / inverse)
    return out


def _partners(covariance: FloatArray, j: int) -> list[int]:
    """Inputs that input ``j`` moves together with."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    moving = np.flatnonzero(size > 0)
    part = covariance[np.ix_(moving, moving)] / np.outer(size[moving], size[moving])
    values, vectors = np.linalg.eigh(part)
    null = vectors[:, values < 1e-6 * values[-1]] if len(values) else vectors
    mine = int(np.flatnonzero(moving == j)[0])
    weight = np.abs(null @ null[mine])
    return [int(moving[k]) for k in np.flatnonzero(weight > 1e-3) if k != mine]


def _order(series: FloatArray) -> int:
    """In how many independent ways an input moves within ``ORDERS`` rows: the rank of its lagged Gram matrix."""
    lags = min(ORDERS, len(series) // 4)
    if lags < 1:
        return 0
    n = len(series) - lags
    columns = np.stack([series[lag : lag + n] for lag in range(lags)])
    columns -= columns.mean(axis=1, keepdims=True)  # each by itself, or the mean would count as one more way
    values = np.linalg.eigvalsh(columns @ columns.T)
    return int((values > FLAT * values[-1]).sum())


# ---- feedback -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Feedback:
    """Whether one input's moves are foretold by measurements of each unit."""

    moves: float  # rows in which the input moves, about: their effective number
    free: float  # share of its variance that is moves
    p_values: FloatArray  # (M,) earlier rows of each unit's messages; NaN if the unit was not measured
    shares: FloatArray  # (M,) share of the moves that they foretell, less what chance gives
    same_row_p: FloatArray  # (M,) what the same row tells beyond that
    same_row_shares: FloatArray


@dataclass(frozen=True, eq=False)
class _Group:
    """Units of which the same rows count, with sums of products over these rows."""

    units: tuple[int, ...]
    rows: slice | NDArray[np.intp]
    count: int
    gram: FloatArray  # of the regressors
    cross: list[FloatArray]  # of the regressors with each unit's columns of ``seen``
    grams: list[FloatArray]  # of each unit's columns of ``seen``


class Feedbacks:
    """Feedback tests of all inputs of a record (of ``MOST_ROWS`` of its rows, in a few stretches, if it is longer)."""

    def __init__(self, material: Material) -> None:
        self.material = material
        self.U, self.r = material.u.shape[1], len(material.C)
        self.lead = OWN_PAST[-1][1] if material.rows > 8 * OWN_PAST[-1][1] else MEASURED_PAST[-1][1]
        self.own = tuple(window for window in OWN_PAST if window[1] <= self.lead)
        count = 1 if material.rows - self.lead <= MOST_ROWS else STRETCHES
        length = min(material.rows - self.lead, MOST_ROWS // count)
        starts = np.linspace(0, material.rows - self.lead - length, count).astype(int)
        self.stretches = [slice(int(a), int(a) + self.lead + length) for a in starts]
        self.n = count * length

    def windows(self, series: FloatArray, windows: tuple[tuple[int, int], ...]) -> FloatArray:
        """Means over windows of lags (n, columns x windows) of a series (T+1, columns), column after column."""
        out = np.empty((self.n, series.shape[1], len(windows)))
        at = 0
        for stretch in self.stretches:
            part = series[stretch]
            n = len(part) - self.lead
            sums = np.concatenate([np.zeros((1, part.shape[1])), np.cumsum(part, axis=0)])
            for k, (near, far) in enumerate(windows):
                if near == far:
                    out[at : at + n, :, k] = part[self.lead - near : self.lead - near + n]
                else:
                    end, begin = self.lead - near + 1, self.lead - far
                    out[at : at + n, :, k] = (sums[end : end + n] - sums[begin : begin + n]) / (far - near + 1)
            at += n
        return out.reshape(self.n, -1)

    @cached_property
    def inputs(self) -> FloatArray:
        """u about its mean (T+1, U)."""
        return np.asarray(self.material.u - self.material.u.mean(axis=0))

    @cached_property
    def messages(self) -> FloatArray:
        """s about its mean, with what the model expected where it is missing: a function of the past, no feedback.

        Of rows in a gap, which do not count, the mean.
        """
        s, missing = self.material.s, ~np.isfinite(self.material.s)
        if missing.any():
            s = np.where(missing, self.material.filtered.predicted @ self.material.C.T, s)
            for m, own in enumerate(self.material.columns):
                gap = self.ages[:, m] > self.oldest[m]
                s[gap, own] = s[~gap, own].mean(axis=0)
        return np.asarray(s - s.mean(axis=0))

    @cached_property
    def ages(self) -> NDArray[np.intp]:
        """(T+1, M) rows since a unit was last measured."""
        at = np.arange(self.material.rows)[:, None]
        last = np.maximum.accumulate(np.where(self.material.measured, at, -self.material.rows), axis=0)
        return np.asarray(at - last, np.intp)

    @cached_property
    def window_ages(self) -> NDArray[np.intp]:
        """(n, M) the largest age within the windows of ``seen``."""
        out = self.ages.copy()
        for lag in range(1, MEASURED_PAST[-1][1] + 1):
            np.maximum(out[lag:], self.ages[:-lag], out=out[lag:])
        return np.concatenate([out[stretch][self.lead :] for stretch in self.stretches])

    @cached_property
    def oldest(self) -> NDArray[np.intp]:
        """(M,) the age up to which a unit's rows count: that of half of them, so 0 if most are read without a gap."""
        half = (len(self.window_ages) - 1) // 2
        return np.asarray(np.partition(self.window_ages, half, axis=0)[half], np.intp)

    @cached_property
    def groups(self) -> list[_Group]:
        """Units of which the same rows count."""
        units: dict[bytes, list[int]] = {}
        counts = self.window_ages <= self.oldest
        for m, block in enumerate(self.blocks):
            if block.stop > block.start and self.material.measured[:, m].mean() >= 0.05:
                units.setdefault(np.packbits(counts[:, m]).tobytes(), []).append(m)
        out = []
        for own in units.values():
            kept = counts[:, own[0]]
            rows = slice(None) if kept.all() else np.flatnonzero(kept)
            x, seen = self.regressors[rows], [self.seen[rows, self.blocks[m]] for m in own]
            out.append(_Group(tuple(own), rows, len(x), x.T @ x, [x.T @ each for each in seen],
                              [each.T @ each for each in seen]))  # fmt: skip
        return out

    @cached_property
    def seen(self) -> FloatArray:
        """Windows of the messages (n, r x windows), the row itself last."""
        return self.windows(self.messages, SEEN)

    @cached_property
    def blocks(self) -> list[slice]:
        """Each unit's columns of ``seen``."""
        return [slice(own.start * len(SEEN), own.stop * len(SEEN)) for own in self.material.columns]

    @cached_property
    def regressors(self) -> FloatArray:
        """1 and the windows of all inputs (n, 1 + U x windows)."""
        return np.hstack([np.ones((self.n, 1)), self.windows(self.inputs, self.own)])

    @cached_property
    def stable(self) -> bool:
        return bool(np.abs(np.linalg.eigvals(self.material.model.A)).max() < 1 + 1e-9)

    def base(self, j: int) -> NDArray[np.intp]:
        """Columns that input ``j`` may depend on: its own past, and the last rows of the others."""
        places = 1 + np.arange(len(self.own) * self.U).reshape(self.U, len(self.own))
        near = np.delete(places[:, :NEAR], j, axis=0)
        return np.concatenate([[0], places[j], near.ravel()]).astype(np.intp)

    def response(self, j: int) -> FloatArray:
        """What input ``j`` alone does to the messages (T+1, r), by the fitted model.

        An input may depend on it, as on its own past: else one that repeats itself (a set point held for a fixed time)
        would seem to be foretold by measurements that remember it for longer than ``OWN_PAST``.
        """
        A, B, C = self.material.model.A, self.material.model.B, self.material.C
        out = np.zeros((self.material.rows, self.r))
        for stretch in self.stretches:
            first = max(0, stretch.start - WARM_UP)
            drive = np.outer(self.inputs[first : stretch.stop - 1, j], B[:, j])
            out[first + 1 : stretch.stop] = linear_recurrence(A, drive, np.zeros(len(A))) @ C.T
        return out

    def of(self, j: int) -> Feedback:
        """Tests of input ``j``."""
        out = np.full((4, len(self.material.names)), np.nan)
        base = self.base(j)
        target = self.windows(self.inputs[:, [j]], ((0, 0),))[:, 0]
        whole = float(target @ target)
        response = self.windows(self.response(j), SEEN) if self.stable else None
        found = 0.0
        for group in self.groups:
            x, goal = self.regressors[group.rows][:, base], target[group.rows]
            gram = group.gram[np.ix_(base, base)]
            moves = goal - x @ _solved(gram, x.T @ goal)
            with np.errstate(over="ignore"):
                square = np.square(moves)
                second, fourth = float(square.sum()), float(np.square(square).sum())
            if not second > 1e-10 * whole or not 0 < fourth < np.inf:  # it does not move, or beyond all measure
                continue
            count = min(float(group.count), 3 * second**2 / fourth)
            kurtosis = max(0.0, group.count * fourth / second**2 - 3)
            found = max(found, count)
            root = inverse_root(gram, 1e-11)
            for m, cross, own in zip(group.units, group.cross, group.grams, strict=True):
                block = self.blocks[m]
                seen = self.seen[group.rows, block]
                mine = seen[:, :0] if response is None else response[group.rows, block]
                half = root.T @ np.hstack([cross[base], x.T @ mine])
                towards = moves @ np.hstack([seen, mine])
                both = seen.T @ mine
                inner = np.block([[own, both], [both.T, mine.T @ mine]]) - half.T @ half
                whole_block = np.block([[np.array([[second]]), towards[None]], [towards[:, None], inner]])
                width = block.stop - block.start
                columns = 1 + np.arange(width).reshape(-1, len(SEEN))
                earlier, now = columns[:, :-1].ravel(), columns[:, -1]
                given = 1 + np.arange(width, len(towards))
                gained, rank = _explained(whole_block, given, earlier)
                freedom = group.count - len(base) - len(given)
                sure = 1 - len(base) / count  # as many moves may be used up by what the input may depend on
                out[:2, m] = self._judged(gained / second, rank, freedom, count, kurtosis, sure)
                gained, more = _explained(whole_block, np.concatenate([given, earlier]), now)
                out[2:, m] = self._judged(gained / second, more, freedom - rank, count, kurtosis, sure)
        x = self.regressors[:, base]
        left = target - x @ _solved(x.T @ x, x.T @ target)
        second = float(left @ left)
        return Feedback(found, second / whole if second > 1e-10 * whole and np.isfinite(second) else 0.0, *out)

    @staticmethod
    def _judged(
        share: float, rank: int, freedom: int, moves: float, kurtosis: float, sure: float
    ) -> tuple[float, float]:
        """(p-value, share of the moves) of an explained share of a sum of squares with so many degrees of freedom.

        NaN where too few of them are left.

        With moves that are rare and large the statistic varies more than an F variable: its variance is that of a
        quadratic form in numbers with this kurtosis, and its degrees of freedom are scaled to have it. How large the
        moves are is known from the ``sure`` share of the rows, or from as many rows as there are moves.
        """
        from scipy.special import fdtrc  # scipy.stats takes ten times as long to import

        left = freedom - rank
        if not rank:
            return 1.0, 0.0
        if left < FEWEST_MOVES:
            return math.nan, math.nan
        statistic = share / rank * left / max(1 - share, 1e-12)
        scale = 1 + kurtosis * (rank + 2) / (2 * freedom)
        p_value = float(fdtrc(rank / scale, max(min(moves, left), sure * left), statistic))
        return p_value, min(1.0, max(0.0, (freedom * share - rank) / min(moves, freedom)))


class Reactions(Kind):
    """One check for each input: do earlier measurements, or those of the same row, foretell its moves?"""

    name, claim, place = "feedback", "inputs do not react to measurements", 3
    unit_of_number = "share of moves foretold"
    limits = (FAINT, MATERIAL)
    bars = ("share of moves that measurements foretell", MATERIAL, 0.1)

    def look(self, material: Material) -> Iterator[Check]:
        enough = material.rows > 4 * (MEASURED_PAST[-1][1] + len(material.input_names))
        tests = Feedbacks(material) if enough and material.input_names else None
        for j, name in enumerate(material.input_names):
            found = None if tests is None else tests.of(j)
            if found is not None and found.free == 0:
                finding = f"{name} never moves, or its own past tells all its moves; there is nothing to react with"
                yield self.found(name, 0.0, finding)
            elif found is None or found.moves < FEWEST_MOVES or not np.isfinite(found.p_values).any():
                remedy = "ask whoever sets it what they look at"
                yield self.unknown(name, f"{name} moves too few times to tell", remedy, "too few moves to tell")
            else:
                yield self._told(material, name, found)

    def _told(self, material: Material, name: str, found: Feedback) -> Check:
        tests = 2 * int(np.isfinite(found.p_values).sum())
        earlier = _strongest(found.p_values, found.shares, tests)
        same = _strongest(found.same_row_p, found.same_row_shares, tests)
        number, shares = max(earlier[1], same[1]), np.fmax(found.shares, found.same_row_shares)
        if number < FAINT:
            chance = float(np.nanmax(np.where(np.isfinite(found.shares), found.shares, 0.0)))
            finding = (
                f"no measurement of an earlier row, or of the same one, foretells {name}'s moves (about "
                f"{found.moves:.0f}). That it reacts to something nobody records cannot be seen here"
            )
            number = min(chance, FAINT) if earlier[0] < 0 else number
            return self.found(name, number, finding, verdict="pass", shares=shares)
        late = earlier[1] >= FAINT
        unit = material.names[earlier[0] if late else same[0]]
        when = "earlier measurements" if late else "measurements of the same row"
        both = " (and the same row tells more)" if late and same[1] >= FAINT else ""
        finding = (
            f"{when}, most clearly those of {unit}, foretell {percent(number)} of {name}'s moves{both}: it reacts to "
            "them (or to what moves with them), as a controller does (or both follow one programme that the input's "
            "own past does not show). With a right model the couplings are not biased by that; but an effect is then "
            "the one with this input held or overridden, not the one in the running plant, whose controller would "
            "answer the change. This feedback makes the answer unsafe for the question what will happen in the running "
            "plant. If the controller sees something that nobody records, effects are biased, and no check can show it"
        )
        remedy = (
            "open the loop or add a test signal of its own (dither, set-point changes) while recording; take the set "
            "point as the input in its place; or ask with the controller's law included"
        )
        if not late:
            remedy += (
                ". An input logged after it acted can look like feedback: if so, move its column up by one row (in "
                "fits from logs: same_row=True)"
            )
        short = (
            f"its moves follow measurements of {unit}, and such feedback makes answers unsafe for what the running "
            "plant will do; effects hold with that input held or overridden"
        )
        # of the same row alone, it may as well be what the input has done in it
        verdict: Verdict | None = None if late else "caution"
        return self.found(name, number, finding, short, remedy, verdict=verdict, units=(unit,), shares=shares)


def _strongest(p_values: FloatArray, shares: FloatArray, tests: int) -> tuple[int, float]:
    """(unit, share) of the strongest that is no accident; (-1, 0.0) if there is none."""
    sure = np.where(np.isfinite(p_values), p_values, 1.0) * tests < LIKELY
    if not sure.any():
        return -1, 0.0
    at = int(np.argmax(np.where(sure, shares, -1.0)))
    return at, float(shares[at])


def _explained(gram: FloatArray, given: NDArray[np.intp], added: NDArray[np.intp]) -> tuple[float, int]:
    """Sum of squares of column 0 that ``added`` columns explain beyond the ``given`` ones, and their rank."""
    columns = np.concatenate([[0], added]).astype(np.intp)
    block = gram[np.ix_(columns, columns)]
    if len(given):
        cross = gram[np.ix_(given, columns)]
        block = block - cross.T @ _solved(gram[np.ix_(given, given)], cross)
    size = np.sqrt(np.maximum(np.diag(block)[1:], 0.0))
    floor = 1e-7 * np.sqrt(np.maximum(np.diag(gram)[added], 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > floor)
    values, vectors = np.linalg.eigh(block[1:, 1:] * np.outer(scale, scale))
    keep = values > 1e-9 * max(float(values[-1]), 1e-300)
    if not scale.any():
        return 0.0, 0
    projected = vectors[:, keep].T @ (scale * block[0, 1:])
    return float(np.square(projected) @ (1 / values[keep])), int(keep.sum())


def _solved(gram: FloatArray, right: FloatArray) -> FloatArray:
    """gram⁺ right."""
    root = inverse_root(gram, 1e-11)
    return np.asarray(root @ (root.T @ right))
