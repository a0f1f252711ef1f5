"""Ways of running: where a plant changed, in which units, and how far back its rows still tell of the present one.

Every number of a unit is foretold by a regression y = x w + e on few features, a constant among them. Two things are
looked at, because either alone is blind to some changes:

- *Surprise.* The rows so far foretell the next ones. When a unit changes, its numbers are suddenly off, by many
  standard errors and for several rows, until the plant has settled where the new unit takes it. A model of *all* rows
  would not notice: the way from one level to the other is what it knows best.
- *Difference.* With weights of their own after a row c, y = x w + 1(t ≥ c) x d + e, the log-likelihood rises. Few
  entries of d are enough, each must bring ``COST`` nats, and the gain follows from sums of products alone: with e the
  residual of y on x, N = Σ x xᵀ over the rows from c on and G that over all rows,

      gain of d = ½ qᵀ D⁻¹ q / σ²,     q = Σ_{t ≥ c} x e,     D = N - N G⁻¹ N

A surprise is a change if a difference is left of it; a difference that is large enough needs no surprise. A steady
plant that is run at other points is no change, as long as the features (products among them) follow its curvature: they
are chosen on all rows, so that they may explain whatever one model can. Behind a surprise they are chosen anew, with a
level of their own before and after it: the way from one to the other hides what the plant does at either. And because
features never follow all of it, a difference counts as far as it is larger than those between rows divided at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray

STRETCHES = 24  # of a record, which are divided
DIVISIONS = 20  # at random, to see what is gained where nothing has changed;
BEYOND = 2.0  # times the most of that does not count
MATERIAL = 0.03  # of a number's size, which a difference must move it by to count in full
FAR_TOLD = 3.0  # standard deviations, beyond which no curve is followed
WINDOWS = 24  # edges of stretches that are held against all other rows
CELLS = 100  # of neighbouring rows, at whose edges models are compared
LEAST_SHARE, LEAST_ROWS = 0.08, 60  # of a way of running: shorter ones are not told from a passing disturbance
COST = 4.0  # nats that a weight of its own must bring
MOST_DIFFERENCES = 6  # of one number
OUTLYING = 4.0  # standard deviations, from which on a row counts less
FAR_OUT = 8.0  # times the usual reach of features, from which on a row counts less
WINDOW = 5  # rows of a surprise
CAPPED = 25.0  # nats that one row counts at most,
USUAL = 4.0  # and that a number's rows of a window have by themselves now and then
SURPRISING = 20.0  # nats of surprise, together with a
STRONG = 60.0  # nats of surprise with which a row divides the record while others are judged
LEFT = 25.0  # difference of so many nats; or a
CLEAR = 30.0  # difference alone
TOUCHED = 8.0  # nats of difference, from which on a unit has changed along with another
STARTED = 4.5  # standard errors by which the first row of a surprise is off
NEAR = 0.1  # of the rows, in which the first one of the new way of running is looked for
RIDGE = 1e-4  # of a feature's mean square: features may repeat one another
LEAST_NOISE = 1e-6  # of a number's mean square

Features = Callable[[int, int | None], FloatArray]


@dataclass(frozen=True, eq=False)
class Change:
    """Where a plant changed.

    ``at``: the first row of the new way of running. ``units``: their places, those of the largest gain first.
    ``surprise``, ``gain`` (units,): nats. ``stop``: the row from which on the plant was as it had been before, if so.
    """

    at: int
    units: tuple[int, ...]
    surprise: FloatArray
    gain: FloatArray
    stop: int | None = None


def find_change(
    features: Features, targets: FloatArray, owner: NDArray[np.int64], least: int | None = None
) -> Change | None:
    """The clearest change in rows in which a plant may have changed; None if it did not.

    ``features`` gives those (T, s) of a number, the last of which is constant; with a row, those that were chosen with
    a level of their own before and after it. ``targets`` (T, r): the numbers; ``owner`` (r,): their units. ``least``:
    rows of a way of running; by default a share of these.
    """
    T, r = targets.shape
    least = max(int(np.ceil(LEAST_SHARE * T)), LEAST_ROWS) if least is None else least
    if 2 * least > T:
        return None
    units = int(owner.max()) + 1
    edges = np.unique(np.linspace(0, T, CELLS + 1).astype(int))
    places = edges[(edges >= least) & (edges <= T - least)]
    surprise, off = np.zeros((2, units, T))
    plain, robust = np.zeros((2, units, len(places)))
    for i in range(r):
        x, y = features(i, None), targets[:, i]
        weights = robust_weights(x, y)
        errors = recursive_errors(x, y, weights, edges)
        surprise[owner[i]] += windowed(errors)
        off[owner[i]] = np.maximum(off[owner[i]], np.abs(errors))
        plain[owner[i]] += scan(x, y, np.ones(T), places)
        robust[owner[i]] += scan(x, y, weights, places)
    surprise[:, :least], surprise[:, T - least + 1 :] = 0.0, 0.0

    def gains(at: int, some: NDArray[np.bool_], anew: bool) -> FloatArray:
        out, others = np.zeros(units), [other for other in strong if abs(other - at) >= least]
        for i in np.flatnonzero(some[owner]).tolist():
            out[owner[i]] += gain_at(features(i, at if anew else None), targets[:, i], at, others)
        return out

    def judged(at: int) -> Change:
        near = surprise[:, at : at + 2 * WINDOW].max(axis=1)
        started = near >= SURPRISING
        gain = np.maximum(gains(at, np.ones(units, bool), False), gains(at, started, True))
        touched = np.flatnonzero(np.where(started, gain >= LEFT, gain >= TOUCHED))
        order = touched[np.argsort(-(gain + near)[touched], kind="stable")]
        return Change(at, tuple(order.tolist()), near, gain)

    peaks = {int(part[m].argmax()) for part in (plain, robust) for m in range(units)}
    inner = {int(places[peak]) for peak in peaks if 0 < peak < len(places) - 1}  # else it may lie beyond what is told
    starts = {at for at in _starts(surprise, off) if least <= at <= T - least}
    strong = {at for at in starts if surprise[:, at : at + 2 * WINDOW].max() >= STRONG}
    found = [judged(at) for at in sorted(inner | starts)]
    clear = [change for change in found if _is_clear(change)]
    if not clear:
        return _passed(features, targets, owner, least)
    best = max(clear, key=lambda change: float(np.max(change.gain + change.surprise)))
    # what is set off in one unit runs on through others, after a while and often larger
    just_before = [c for c in clear if c.at in starts and best.at - NEAR / 2 * T <= c.at < best.at and _is_seen(c)]
    best = next((c for c in just_before if 3 * c.surprise.max() >= best.surprise.max()), best)
    if best.surprise.max() < SURPRISING:  # it came without a start that could be seen
        mine = [i for i in range(r) if owner[i] in best.units]
        again = judged(refined([features(i, None) for i in mine], targets[:, mine], best.at, least))
        if not least < again.at < T - least:
            return None  # it lies too near an end to be told
        best = again if _is_clear(again) else best
    return best


def _passed(features: Features, targets: FloatArray, owner: NDArray[np.int64], least: int) -> Change | None:
    """The beginning of a way of running after which the plant was as it had been before.

    Either of its ends divides the rows into parts that hardly differ; so stretches are held against all other rows.
    """
    T, units = len(targets), int(owner.max()) + 1
    edges = np.unique(np.linspace(0, T, WINDOWS + 1).astype(int)).tolist()
    ends = [(a, b) for a in edges for b in edges if a >= least and b - a >= least and T - b >= least]
    if not ends:
        return None
    gains = np.zeros((units, len(ends)))
    for i in range(targets.shape[1]):
        x, y = features(i, None), targets[:, i]
        both = np.hstack([x, y[:, None]]) * np.sqrt(robust_weights(x, y))[:, None]
        cells = np.array([both[a:b].T @ both[a:b] for a, b in pairwise(edges)])
        upto = dict(zip(edges, np.cumsum([np.zeros_like(cells[0]), *cells], axis=0), strict=True))
        gains[owner[i]] += difference_gains(upto[T], np.array([upto[b] - upto[a] for a, b in ends]), T)
    best: Change | None = None
    for unit in range(units):
        first, last = ends[int(gains[unit].argmax())]
        mine = np.flatnonzero(owner == unit).tolist()
        own, theirs = [features(i, None) for i in mine], targets[:, mine]
        # its ends, each found in the rows up to the other one
        first = refined([each[:last] for each in own], theirs[:last], first, least)
        last = first + refined([each[first:] for each in own], theirs[first:], last - first, least)
        gain = np.zeros(units)
        gain[unit] = sum(gain_at(each, column, first, (), last) for each, column in zip(own, theirs.T, strict=True))
        if gain[unit] >= CLEAR and (best is None or gain[unit] > best.gain.max()):
            best = Change(first, (unit,), np.zeros(units), gain, last)
    return best


def _is_seen(change: Change) -> bool:
    return bool(((change.surprise >= SURPRISING) & (change.gain >= LEFT)).any())


def _is_clear(change: Change) -> bool:
    return _is_seen(change) or bool((change.gain >= CLEAR).any())


def _starts(surprise: FloatArray, off: FloatArray) -> set[int]:
    """First rows of surprises (units, T), the largest few: with the rows near them, they count once."""
    left, out = surprise.max(axis=0).copy(), set()
    far = off.max(axis=0) >= STARTED
    apart = max(len(left) // CELLS, 2 * WINDOW)
    for _ in range(2 * len(surprise) + 2):
        peak = int(left.argmax())
        if left[peak] < SURPRISING:
            break
        # what is set off in one unit runs on through others: the first row that was far off began it
        first = peak
        while True:
            earlier = np.flatnonzero(far[max(first - apart, 0) : first])
            if not len(earlier):
                break
            first = max(first - apart, 0) + int(earlier[0])
        if not far[first]:
            later = np.flatnonzero(far[first : first + WINDOW])
            first += int(later[0]) if len(later) else 0
        out.add(first)
        left[max(first - apart, 0) : peak + apart] = 0.0
    return out


def windowed(errors: FloatArray) -> FloatArray:
    """Nats (T,) by which the rows from each on, ``WINDOW`` of them, are further off than standard errors (T,) are."""
    each = np.minimum(0.5 * (np.square(errors) - 1.0), CAPPED)
    total = np.concatenate([[0.0], np.cumsum(each)])
    ends = np.minimum(np.arange(len(each)) + WINDOW, len(each))
    return np.asarray(np.maximum(total[ends] - total[:-1] - USUAL, 0.0))


def recursive_errors(x: FloatArray, y: FloatArray, weights: FloatArray, edges: NDArray[np.int64]) -> FloatArray:
    """Errors (T,) in their standard deviations, of rows that are foretold by the weighted rows before their cell.

    Where too few rows lie before a row, its error is zero.
    """
    T, s = x.shape
    both = np.hstack([x, y[:, None]]) * np.sqrt(weights)[:, None]
    cells = np.array([both[a:b].T @ both[a:b] for a, b in pairwise(edges)])
    before = np.cumsum(cells, axis=0)
    out = np.zeros(T)
    for k in range(1, len(edges) - 1):
        n, now = int(edges[k]), slice(int(edges[k]), int(edges[k + 1]))
        if n < max(2 * s, LEAST_ROWS // 2):
            continue
        sums = before[k - 1]
        inverse = np.linalg.inv(sums[:s, :s] + RIDGE * n * np.eye(s))
        w = inverse @ sums[:s, s]
        left = max(float(sums[s, s] - sums[:s, s] @ w) / max(n - s, 1), LEAST_NOISE * float(sums[s, s]) / n, 1e-300)
        spread = left * (1.0 + np.einsum("ti,ij,tj->t", x[now], inverse, x[now]))
        out[now] = (y[now] - x[now] @ w) / np.sqrt(spread)
    return out


def robust_weights(x: FloatArray, y: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Weights (T,) of rows after Huber: one, and less for rows that are far off."""
    T, s = x.shape
    weights = np.ones(T) if start is None else start
    for _ in range(3):
        w = np.linalg.solve((x * weights[:, None]).T @ x + RIDGE * T * np.eye(s), x.T @ (weights * y))
        error = np.abs(y - x @ w)
        usual = max(1.4826 * float(np.median(error)), np.sqrt(LEAST_NOISE * float(np.square(y).mean())), 1e-300)
        weights = np.minimum(1.0, OUTLYING * usual / np.maximum(error, 1e-300))
    return np.asarray(weights)


def scan(x: FloatArray, y: FloatArray, weights: FloatArray, places: NDArray[np.int64]) -> FloatArray:
    """Net gains (k,) of differences from each of some rising ``places`` on."""
    both = np.hstack([x, y[:, None]]) * np.sqrt(weights)[:, None]
    edges = np.concatenate([[0], places, [len(y)]])
    cells = np.array([both[a:b].T @ both[a:b] for a, b in pairwise(edges)])
    later = np.cumsum(cells[::-1], axis=0)[::-1]
    return difference_gains(later[0], later[1:], len(y))


def gain_at(x: FloatArray, y: FloatArray, at: int, others: Iterable[int] = (), stop: int | None = None) -> float:
    """Net gain of differences from row ``at`` on, or up to ``stop``, beyond that between stretches drawn at random.

    Rows count less that are far off by the weights of their own side, or that these rest on more than on others. A
    model that does not follow all of a plant's curvature has weights that differ between any two sets of stretches,
    though nothing has changed. So the rows are also divided at random: half of the stretches before ``at`` and half of
    those after it in each part, and so on with ``others``, rows in which the plant may have changed, too. Where next to
    no noise is left, the smallest curve has nats: a difference that hardly moves the number counts less.
    """
    T = len(y)
    stop = T if stop is None else stop
    inside = (np.arange(T) >= at) & (np.arange(T) < stop)
    weights = np.zeros(T)
    for side in (inside, ~inside):
        weights[side] = _bounded(x[side], y[side])
    both = np.hstack([x, _bends(x, y, weights), y[:, None]]) * np.sqrt(weights)[:, None]
    between = list(pairwise(sorted({0, at, stop, *others, T})))
    counts = [max(round(STRETCHES * (b - a) / T), 2) for a, b in between]
    edges = [np.linspace(a, b, n + 1).astype(int) for (a, b), n in zip(between, counts, strict=True)]
    cells = np.array([both[a:b].T @ both[a:b] for part in edges for a, b in pairwise(part)])
    rng = np.random.default_rng(0)
    at_random = [np.concatenate([rng.permutation(n) < n // 2 for n in counts]) for _ in range(DIVISIONS)]
    after = np.concatenate([(part[:-1] >= at) & (part[:-1] < stop) for part in edges])
    parts = np.array([after, *at_random], np.float64)
    whole = cells.sum(axis=0)
    gains = difference_gains(whole, np.tensordot(parts, cells, 1), T, x.shape[1])
    gain = max(float(gains[0] - BEYOND * gains[1:].max()), 0.0)
    # by which share of the number's own mean square about its levels the squared error falls
    inner = whole[:-1, :-1] + 1e-6 * T * np.eye(len(whole) - 1)
    left = float(whole[-1, -1] - whole[:-1, -1] @ np.linalg.solve(inner, whole[:-1, -1]))
    size = sum(float(np.square(y[a:b] - y[a:b].mean()).sum()) for a, b in between)
    fall = left * -np.expm1(-2 * gain / T) / max(size, 1e-300)
    return gain * min(float(fall) / MATERIAL**2, 1.0)


def _bends(x: FloatArray, y: FloatArray, weights: FloatArray) -> FloatArray:
    """(T, 2): square and cube of what is foretold, which follow a curve that the features do not (Ramsey's RESET)."""
    T, s = x.shape
    told = x @ np.linalg.solve((x * weights[:, None]).T @ x + RIDGE * T * np.eye(s), x.T @ (weights * y))
    z = np.clip((told - told.mean()) / max(float(told.std()), 1e-300), -FAR_TOLD, FAR_TOLD)
    return np.stack([z**2 - 1, z**3 - 3 * z], axis=1)


def _bounded(x: FloatArray, y: FloatArray) -> FloatArray:
    """Weights (T,) of rows: less for those that are far off, and for those whose features are."""
    T, s = x.shape
    weights = np.ones(T)
    for _ in range(2):
        inverse = np.linalg.inv((x * weights[:, None]).T @ x + RIDGE * T * np.eye(s))
        reach = np.einsum("ti,ij,tj->t", x, inverse, x)
        weights = np.minimum(1.0, FAR_OUT * s / T / np.maximum(reach, 1e-300))
    return weights * robust_weights(x * np.sqrt(weights)[:, None], y * np.sqrt(weights))


def difference_gains(
    whole: FloatArray, later: FloatArray, rows: int, first: int | None = None, square: FloatArray | None = None
) -> FloatArray:
    """Net gains (k,) in log-likelihood of few weights of their own in part of the rows.

    ``whole`` (s + 1, s + 1): sums of products of features and target, the target last; ``later`` (k, s + 1, s + 1):
    over the ``rows`` of each part, or with other weights than one and zero, whose squares weight ``square`` (k, s, s)
    then. Only the ``first`` features may have weights of their own. They enter one by one, whichever gains most.
    """
    s, k = len(whole) - 1, len(later)
    inverse = np.linalg.inv(whole[:s, :s] + 1e-6 * rows * np.eye(s))
    w = inverse @ whole[:s, s]
    floor = max(LEAST_NOISE * float(whole[s, s]), 1e-300)
    left = max(float(whole[s, s] - whole[:s, s] @ w), floor)
    N = later[:, :s, :s]
    q = later[:, :s, s] - N @ w
    own_square = N if square is None else square[:, :s, :s]
    D = own_square - N @ inverse @ N.swapaxes(1, 2)
    size = np.maximum(np.einsum("kii->ki", own_square), 1e-300)
    each, best, gained = np.arange(k), np.zeros(k), np.zeros(k)
    may = np.arange(s) < (s if first is None else first)
    for count in range(1, min(MOST_DIFFERENCES, s) + 1):
        own = np.where(may, np.einsum("kii->ki", D), 0.0)
        gains = np.where(own > 1e-4 * size, q**2 / np.maximum(own, 1e-300), -1.0)
        j = gains.argmax(axis=1)
        open_ = gains[each, j] > 0
        gained = gained + np.where(open_, gains[each, j], 0.0)
        net = 0.5 * rows * np.log(left / np.maximum(left - gained, floor)) - COST * count
        best = np.maximum(best, net)
        column, pivot = D[each, :, j], np.where(open_, D[each, j, j], np.inf)
        q = q - column * (q[each, j] / pivot)[:, None]
        D = D - column[:, :, None] * column[:, None, :] / pivot[:, None, None]
    return best


def refined(x: list[FloatArray], y: FloatArray, at: int, least: int) -> int:
    """The first row of the new way of running, by the sum of the log-likelihood ratios of rows near ``at``.

    ``x``: features (T, s_i) of each column of y (T, c). Both models are learned some way off ``at``, where the plant
    has settled; rows that are far off count less.
    """
    T = len(y)
    for _ in range(2):
        gap = int(0.6 * NEAR * T)
        before, after = slice(0, max(at - gap, least // 2)), slice(min(at + gap, T - least // 2), T)
        low, high = max(at - int(NEAR * T), least), min(at + int(NEAR * T), T - least) + 1
        ratio = np.zeros(high - low)
        for features, target in zip(x, y.T, strict=True):
            one, two = (_settled(features[part], target[part]) for part in (before, after))
            scale = (one[1] + two[1]) / 2
            errors = [(target[low:high] - features[low:high] @ w) / scale for w in (one[0], two[0])]
            ratio += _loss(errors[0]) - _loss(errors[1])
        at = low + int(np.cumsum(ratio[::-1])[::-1].argmax())
    return at


def _settled(x: FloatArray, y: FloatArray) -> tuple[FloatArray, float]:
    """Weights and the usual error of a stretch."""
    weights = robust_weights(x, y)
    w = np.linalg.solve((x * weights[:, None]).T @ x + 10 * RIDGE * len(y) * np.eye(x.shape[1]), x.T @ (weights * y))
    return np.asarray(w), max(1.4826 * float(np.median(np.abs(y - x @ w))), 1e-12)


def _loss(errors: FloatArray) -> FloatArray:
    far = np.abs(errors)
    return np.where(far < OUTLYING, 0.5 * far**2, OUTLYING * far - 0.5 * OUTLYING**2)
