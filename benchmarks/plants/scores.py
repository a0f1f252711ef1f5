"""How right an estimator's answers are.

An answer is what one twin does to the outputs of one other unit. Its error is 1 - R²: the sum of squared errors over
the sum of squared true effects, each output in units of its measurement noise; "no effect at all" has the error 1. In
the mean one answer counts at most ``CAP``. Outputs that the change hardly moves (root mean square of the true effect
below ``TINY`` of the measurement noise) have no meaningful R²: they are left out of error, coverage and width, and
their absolute errors, in units of the measurement noise, and their coverage stand apart.

An estimator that says what the record would have been cannot say it in rows where nothing was measured. There it may
answer NaN, which is left out of everything and counted as silence; anywhere else NaN is an infinite error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass

import numpy as np

from plants.cases import BoolArray, Case
from plants.plant import FloatArray

TINY = 0.5  # of the standard deviation of the measurement noise; that is 2.5 % of the channel's own
CAP = 2.0
NEAR = 0.02  # of the record: a change point that is found is not further from the true one


@dataclass(frozen=True, eq=False)
class Answer:
    """What an estimator says of one twin (its place in ``Case.truth``) and one other unit; arrays (horizon, D_m)."""

    twin: int
    unit: str
    mean: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Report:
    """All answers to a case, the couplings found (None: no graph), CPU seconds, status in words, verdict of checks.

    ``changes``: where the estimator says that the plant changed: the first row of the new way of running, the units.
    """

    answers: list[Answer]
    graph: frozenset[tuple[str, str]] | None
    seconds: float
    status: str
    verdict: str = ""
    changes: tuple[tuple[int, tuple[str, ...]], ...] = ()


Estimator = Callable[[Case], Report]


@dataclass(frozen=True)
class Score:
    """NaN, or None in JSON, where there is nothing to judge."""

    error: float
    """Mean of 1 - R², each at most CAP."""
    median_error: float
    least_r2: float
    answers: int
    errors: tuple[float, ...]
    """1 - R² of every answer, not capped, in the order of twins and units."""
    tiny: int
    """Outputs that the changes hardly move."""
    tiny_error: float
    """Root mean square error there, in units of the measurement noise."""
    intervals: float
    """Share of answers with intervals."""
    coverage: float
    """Share of rows and outputs whose true effect is inside the interval."""
    tiny_coverage: float
    width: float
    """Mean full width over mean absolute error; 4.9 is a perfect Gaussian band of 95 %."""
    precision: float
    recall: float
    seconds: float
    status: str
    verdict: str = ""
    silent: float = 0.0
    """Share of rows and outputs without an answer, where nothing was measured."""
    found: float = np.nan
    """Whether a change point was found: 1 or 0; NaN where the plant did not change at once."""
    placed: float = np.nan
    """Whether it was found in the right unit."""
    false_changes: float = np.nan
    """Change points where there was none; NaN where the plant drifts."""

    def to_json(self) -> dict[str, object]:
        """In plain types, four digits."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def judge(case: Case, report: Report, twins: Collection[int] | None = None) -> Score:
    """Compare answers with the truth; every twin and every other unit must be answered once.

    ``twins``: the places in ``Case.truth`` of those that count; all if not given.
    """
    given = {(answer.twin, answer.unit): answer for answer in report.answers}
    wanted = [(k, unit) for k, twin in enumerate(case.truth) for unit in case.asked(twin)]
    if set(given) != set(wanted) or len(report.answers) != len(wanted):
        raise ValueError(f"{case.plant}: {len(report.answers)} answers; one is needed for each of {len(wanted)}.")
    wanted = [(k, unit) for k, unit in wanted if twins is None or k in twins]
    errors, tiny_errors, inside, tiny_inside, widths, misses, silence = [], [], [], [], [], [], []
    with_interval = hardly_moved = 0
    for k, unit in wanted:
        answer, noise = given[k, unit], case.noise[unit]
        truth, mean = case.truth[k].effect[unit] / noise, answer.mean / noise
        if mean.shape != truth.shape:
            raise ValueError(f"{case.plant}, twin {k}, unit {unit}: shape {mean.shape} instead of {truth.shape}.")
        silent = np.isnan(mean) & _unmeasured(case, k, unit)
        silence.append(silent.ravel())
        with np.errstate(over="ignore", invalid="ignore"):
            miss = np.where(np.isfinite(mean), np.abs(mean - truth), np.inf)
            small = np.sqrt((truth**2).mean(axis=0)) < TINY
            large, tiny = ~small & ~silent, small & ~silent
            if large.any():
                errors.append(float((miss[large] ** 2).sum() / (truth[large] ** 2).sum()))
        hardly_moved += int(small.sum())
        tiny_errors.append(miss[tiny])
        if answer.lower is not None and answer.upper is not None:
            with_interval += 1
            lower, upper = answer.lower / noise, answer.upper / noise
            held = (lower <= truth) & (truth <= upper)
            inside.append(held[large])
            tiny_inside.append(held[tiny])
            widths.append((upper - lower)[large])
            misses.append(miss[large])
    wide, miss = _joined(widths), _joined(misses)
    precision, recall = _graph(case.graph, report.graph)
    found, placed, false_changes = _changes(case, report)
    return Score(
        error=float(np.mean(np.minimum(errors, CAP))) if errors else np.nan,
        median_error=float(np.median(errors)) if errors else np.nan,
        least_r2=1 - max(errors) if errors else np.nan,
        answers=len(errors),
        errors=tuple(errors),
        tiny=hardly_moved,
        tiny_error=float(np.sqrt(_mean(_joined(tiny_errors) ** 2))),
        intervals=with_interval / len(wanted),
        coverage=_mean(_joined(inside)),
        tiny_coverage=_mean(_joined(tiny_inside)),
        width=float(wide.sum() / miss.sum()) if miss.sum() else np.nan,
        precision=precision,
        recall=recall,
        seconds=report.seconds,
        status=report.status,
        verdict=report.verdict,
        silent=_mean(_joined(silence)),
        found=found,
        placed=placed,
        false_changes=false_changes,
    )


def _unmeasured(case: Case, k: int, unit: str) -> BoolArray:
    """(horizon, D_m): rows of a twin in which the record has no reading; of the future there is none to be had."""
    twin = case.truth[k]
    y = case.y[unit][twin.start + 1 : twin.start + twin.horizon + 1]
    out = np.zeros((twin.horizon, case.y[unit].shape[1]), dtype=bool)
    out[: len(y)] = np.isnan(y)
    return out


def _changes(case: Case, report: Report) -> tuple[float, float, float]:
    """Whether the change was found, whether in the right unit, and how many change points are false."""
    if case.change is None:
        return np.nan, np.nan, float(len(report.changes))
    if not case.change.sudden:
        return np.nan, np.nan, np.nan
    true = case.change
    near = [units for row, units in report.changes if abs(row - true.row) <= NEAR * case.rows]
    placed = any(true.unit in units for units in near)
    return float(bool(near)), float(placed), float(len(report.changes) - len(near))


def _graph(true: frozenset[tuple[str, str]] | None, found: frozenset[tuple[str, str]] | None) -> tuple[float, float]:
    if true is None or found is None:
        return np.nan, np.nan
    return (len(true & found) / len(found) if found else np.nan), len(true & found) / len(true)


def _joined(parts: list[FloatArray]) -> FloatArray:
    return np.concatenate([*parts, np.empty(0)]).astype(float)


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else np.nan


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return value
