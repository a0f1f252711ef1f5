"""How many states: by the canonical correlations, or by what the models predict in rows they were not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError
from counterflow.filtering.checks import as_shaped
from counterflow.filtering.results import freeze
from counterflow.identification.lagged import as_pair, as_runs, stretches
from counterflow.recurrence import linear_recurrence

_PERFECT = 1 - 1e-12  # squared correlation above which there is no telling how much above
_BLOCKS = 30  # of consecutive rows, whose means are taken to be independent of each other

_find_stretches = stretches  # functions below have a parameter of that name


class InnovationsModel(Protocol):
    """x[t+1] = A x[t] + B u[t] + K e[t], y[t] = C x[t] + e[t] with Cov(e) = innovation; A - K C is stable."""

    @property
    def A(self) -> FloatArray: ...
    @property
    def B(self) -> FloatArray: ...
    @property
    def C(self) -> FloatArray: ...
    @property
    def K(self) -> FloatArray: ...
    @property
    def innovation(self) -> FloatArray: ...


@dataclass(frozen=True)
class OrderChoice:
    """Which of several models to take, and why.

    Attributes
    ----------
    index : int
        Place of the chosen model in the sequence.
    order : int
        Its number of states.
    orders : tuple of int
    scores : (models,) array
        Mean log-likelihood of a held-out row, given the rows before it.
    lag : (models,) array
        How much less than the best one, and ...
    standard_errors : (models,) array
        ... the standard error of that difference; zero for the best model.
    rows : int
        Held-out rows that were scored.
    """

    index: int
    order: int
    orders: tuple[int, ...]
    scores: FloatArray
    lag: FloatArray
    standard_errors: FloatArray
    rows: int


def order_from_singular_values(
    singular_values: ArrayLike, rows: int, *, outputs: int = 1, inputs: int = 0, largest: int | None = None
) -> int:
    """Choose the order by an information criterion on the canonical correlations.

    The first correlation ρ that is left out costs -log(1 - ρ²), which is ρ² if it is small, and each state costs its
    2 `outputs` + `inputs` parameters times log(rows) / rows. This is the criterion SVC of Bauer (Automatica 37, 2001),
    but for the logarithm, without which a perfect correlation could be too cheap to keep when there are many outputs.
    It is consistent, quick, and tends to leave out states that the data hardly show; `choose_order` asks what a state
    is worth in prediction.

    Parameters
    ----------
    singular_values : (k,) array
        Canonical correlations, largest first.
    rows : int
        Windows of the record they came from.
    outputs, inputs : int
        Channels of y and u.
    largest : int, optional
        Do not go beyond this order.

    Returns
    -------
    int
        Between 0 and k.

    Examples
    --------
    >>> order_from_singular_values([0.99, 0.7, 0.05, 0.04], rows=2000)
    2
    """
    s = as_shaped("singular_values", singular_values, ("k",))
    if rows < 2:
        raise OptionError(f"rows must be at least 2; got {rows}")
    left_out = np.append(-np.log1p(-np.minimum(s**2, _PERFECT)), 0.0)
    price = (2 * outputs + inputs) * np.log(rows) / rows
    order = int(np.argmin(left_out + price * np.arange(len(s) + 1)))
    return order if largest is None else min(order, max(int(largest), 0))


def held_out_log_likelihood(
    model: InnovationsModel, y: ArrayLike, u: ArrayLike, stretches: Sequence[slice] | None = None, *,
    warm_up: int | None = None,
) -> FloatArray:  # fmt: skip
    """Log-likelihood of each row given the rows before it in its stretch.

    Parameters
    ----------
    model : InnovationsModel
        For instance a `Subspace`.
    y : (T+1, r), u : (T+1, U) arrays
        Rows that the model was not fitted to.
    stretches : sequence of slice, optional
        Runs of rows to use; by default, all runs without a missing value.
    warm_up : int, optional
        Rows at the start of each stretch that only feed the predictor, which starts at zero. By default the `past` of
        the model, or 10.

    Returns
    -------
    (rows,) array
        Of all rows after the warm-up, one stretch after the other.

    Raises
    ------
    DataError
        If no stretch is longer than the warm-up.

    Examples
    --------
    >>> from counterflow.identification import subspace
    >>> y = np.random.default_rng(0).normal(size=(2000, 1))
    >>> y[1:] += 0.9 * y[:-1]
    >>> model = subspace(y[:1000], y[:1000, :0], 1)
    >>> held_out_log_likelihood(model, y[1000:], y[1000:, :0], warm_up=10).shape
    (990,)
    """
    y, u = as_pair(y, u)
    r, n = model.C.shape
    if y.shape[1] != r or u.shape[1] != model.B.shape[1]:
        raise DataError(
            f"the model has {r} outputs and {model.B.shape[1]} inputs; y and u have {y.shape[1]} and {u.shape[1]} "
            "columns. Give the channels that the model was fitted to"
        )
    skipped = int(getattr(model, "past", 10)) if warm_up is None else int(warm_up)
    runs = _find_stretches(y) if stretches is None else as_runs(stretches, len(y))
    F = model.A - model.K @ model.C
    factor = np.linalg.cholesky(model.innovation)
    constant = -0.5 * r * np.log(2 * np.pi) - float(np.log(factor.diagonal()).sum())
    whiten = np.linalg.inv(factor).T
    parts = []
    for run in runs:
        if run.stop - run.start <= max(skipped, 0):
            continue
        rows = slice(run.start, run.stop - 1)
        x = np.zeros((run.stop - run.start, n))
        x[1:] = linear_recurrence(F, u[rows] @ model.B.T + y[rows] @ model.K.T, x[0])
        e = (y[run][skipped:] - x[skipped:] @ model.C.T) @ whiten
        parts.append(constant - 0.5 * np.einsum("ti,ti->t", e, e))
    if not parts:
        raise DataError(
            f"no stretch of held-out rows is longer than the warm-up of {skipped} rows; hold out longer stretches, or "
            "take a shorter warm_up"
        )
    return np.concatenate(parts)


def choose_order(
    models: Sequence[InnovationsModel], y: ArrayLike, u: ArrayLike, stretches: Sequence[slice] | None = None, *,
    warm_up: int | None = None,
) -> OrderChoice:  # fmt: skip
    """Take the smallest model whose held-out score is within one standard error of the best one.

    The standard error is that of the paired difference of the two models, from the spread of its means over 30 blocks
    of consecutive rows, because neighbouring rows are not independent.

    Parameters
    ----------
    models : sequence of InnovationsModel
        In any order.
    y, u, stretches, warm_up
        As in `held_out_log_likelihood`; the warm-up is that of the model with the longest past.

    Examples
    --------
    >>> from counterflow.identification import subspaces
    >>> y = np.random.default_rng(1).normal(size=(3000, 1))
    >>> for t in range(2, 3000):
    ...     y[t] += 0.7 * y[t - 2]
    >>> fit, held_out = y[:1500], y[1500:]
    >>> choose_order(subspaces(fit, fit[:, :0], range(1, 6), past=8), held_out, held_out[:, :0]).order
    2
    """
    if not models:
        raise OptionError("models is empty; give at least one model")
    if warm_up is None:
        warm_up = max(int(getattr(model, "past", 10)) for model in models)
    rows = np.stack([held_out_log_likelihood(model, y, u, stretches, warm_up=warm_up) for model in models])
    scores = rows.mean(axis=1)
    best = int(np.nanargmax(scores)) if np.isfinite(scores).any() else 0
    behind = rows[best] - rows
    blocks = max(2, min(_BLOCKS, behind.shape[1] // 2))
    if behind.shape[1] < 4:
        raise DataError(f"{behind.shape[1]} held-out rows cannot tell one model from another; hold out more")
    means = np.stack([part.mean(axis=1) for part in np.array_split(behind, blocks, axis=1)])
    errors = means.std(axis=0, ddof=1) / np.sqrt(blocks)
    orders = tuple(len(model.A) for model in models)
    lag = scores[best] - scores
    index = min((k for k in range(len(models)) if lag[k] <= errors[k]), key=lambda k: (orders[k], lag[k]), default=best)
    return OrderChoice(
        index=index, order=orders[index], orders=orders, scores=freeze(scores), lag=freeze(lag),
        standard_errors=freeze(errors), rows=int(behind.shape[1]),
    )  # fmt: skip
