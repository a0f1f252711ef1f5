"""What a user would do without this package: pooled linear models of all outputs; no intervals, no graph.

All get the same record and are asked the same questions; "pooled" means that they see every unit's measurements.
They cannot take gaps: those are filled by straight lines, as a user would do first.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from time import process_time

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from plants.cases import Case
from plants.plant import FloatArray
from plants.scores import Answer, Report

MOST_LAGS = 30
MOST_SHARE = 0.5  # of the rows that the regressors of one equation may count
CVA_HORIZON = 20
CVA_ORDERS = (1, 20)

Response = Callable[[FloatArray], FloatArray]
"""(horizon, U) added to standardised inputs -> (horizon, D) what standardised outputs do in the rows after."""


def arx(case: Case) -> Report:
    """Least squares of all outputs on p rows of all outputs and inputs; p by Akaike's criterion."""
    return _answered(case, _arx)


def cva(case: Case) -> Report:
    """Canonical variate analysis by sippy_unipi; the order by its Akaike criterion."""
    return _answered(case, _cva)


def _arx(y: FloatArray, u: FloatArray) -> tuple[Response, str]:
    T, D = y.shape
    row = np.hstack([y, u])
    most = max(1, min(MOST_LAGS, int(MOST_SHARE * T / row.shape[1])))
    target = y[most:]
    lagged = np.hstack([row[most - lag : T - lag] for lag in range(1, most + 1)])
    gram, cross, total = lagged.T @ lagged, lagged.T @ target, target.T @ target
    best, lags, weights = np.inf, 0, np.empty(0)
    for p in range(1, most + 1):
        k = p * row.shape[1]
        found = cho_solve(cho_factor(gram[:k, :k] + 1e-9 * T * np.eye(k)), cross[:k])
        criterion = len(target) * np.linalg.slogdet(total - found.T @ cross[:k])[1] + 2 * k * D
        if criterion < best:
            best, lags, weights = criterion, p, found

    def response(change: FloatArray) -> FloatArray:
        rows = np.zeros((lags + len(change), row.shape[1]))
        out = np.zeros((len(change), D))
        for t in range(len(change)):
            rows[lags + t, D:] = change[t]
            out[t] = rows[t + 1 : lags + t + 1][::-1].ravel() @ weights
            if t + 1 < len(change):
                rows[lags + t + 1, :D] = out[t]
        return out

    return response, f"{lags} lags"


def _cva(y: FloatArray, u: FloatArray) -> tuple[Response, str]:
    from sippy_unipi import system_identification

    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = system_identification(
            y.T, u.T, "CVA", SS_f=CVA_HORIZON, SS_p=CVA_HORIZON, IC="AIC", SS_orders=list(CVA_ORDERS)
        )

    def response(change: FloatArray) -> FloatArray:
        state, out = np.zeros(len(model.A)), np.empty((len(change), y.shape[1]))
        for t in range(len(change)):
            state = model.A @ state + model.B @ change[t]
            out[t] = model.C @ state
        return out

    return response, f"order {len(model.A)}"


def impute_mean(y: FloatArray) -> FloatArray:
    """(T, D) without gaps: straight lines between readings, the nearest reading before the first and after the last."""
    rows, there = np.arange(len(y)), np.isfinite(y)
    return np.column_stack([np.interp(rows, rows[there[:, k]], y[there[:, k], k]) for k in range(y.shape[1])])


def _answered(case: Case, identify: Callable[[FloatArray, FloatArray], tuple[Response, str]]) -> Report:
    """Standardise, identify, and answer every twin; CPU seconds are the identification's and the answers'."""
    y, u = (np.hstack([side[name] for name in case.names]) for side in (case.y, case.u))
    y = impute_mean(y)
    y_scale, u_scale = y.std(axis=0), u.std(axis=0)
    begin = process_time()
    with np.errstate(over="ignore", invalid="ignore"):
        response, status = identify((y - y.mean(axis=0)) / y_scale, (u - u.mean(axis=0)) / u_scale)
        answers = []
        for k, twin in enumerate(case.truth):
            change = np.hstack([twin.change if n == twin.unit else np.zeros((twin.horizon, case.u[n].shape[1]))
                                for n in case.names])  # fmt: skip
            effect = dict(zip(case.names, np.split(response(change / u_scale) * y_scale, _ends(case), axis=1),
                              strict=True))  # fmt: skip
            answers += [Answer(k, name, effect[name]) for name in case.asked(twin)]
    return Report(answers, None, process_time() - begin, status)


def _ends(case: Case) -> list[int]:
    return np.cumsum([unit.n_outputs for unit in case.units])[:-1].tolist()
