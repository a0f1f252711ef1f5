"""What the Fisher information gives: covariances, standard errors, and the spread of answers (delta method)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.learning.identifiability import Doubt, masks
from counterflow.learning.information import QUICK_FORM, settled_information
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, Quadratic
from counterflow.learning.parameters import Parameters
from counterflow.learning.sensitivities import cost, varying_information

QUICK = 1.2e11  # multiplications that take seconds, not minutes


@dataclass(frozen=True)
class Uncertainty:
    """Covariance of the estimated entries of [A B], in the order of ``parameters.pack``."""

    parameters: Parameters
    # (n, n); rows of directions that the data do not determine are NaN
    covariance: FloatArray = field(metadata={"missing": True})

    @cached_property
    def standard_errors(self) -> tuple[FloatArray, FloatArray]:
        """Of A (P, P) and B (P, U): zero where given, NaN where not determined."""
        P = sum(self.parameters.record.states)
        with np.errstate(invalid="ignore"):
            whole = self.parameters.unpack(np.sqrt(np.diag(self.covariance)))
        return whole[:, :P], whole[:, P:]

    def with_doubts(self, doubts: tuple[Doubt, ...]) -> Uncertainty:
        """The same, NaN for the couplings in doubt."""
        if not doubts:
            return self
        A, B = masks(self.parameters.record, doubts)
        lost = self.parameters.pack(np.hstack([A, B]).astype(np.float64)) == 0
        covariance = self.covariance.copy()
        covariance[lost, :] = np.nan
        covariance[:, lost] = np.nan
        return Uncertainty(self.parameters, covariance)

    @cached_property
    def root(self) -> FloatArray:
        """W with covariance = W Wᵀ; directions that are not determined are left out."""
        with np.errstate(invalid="ignore"):
            known = np.diag(self.covariance) > 0  # not NaN, and not given
        out = np.zeros_like(self.covariance)
        if known.any():
            block = self.covariance[np.ix_(known, known)]
            size = np.sqrt(np.diag(block))
            values, vectors = np.linalg.eigh(block / np.outer(size, size))
            values = np.where(values > 1e-14 * values[-1], values, 0.0)
            out[np.ix_(known, known)] = size[:, None] * vectors * np.sqrt(values)
        return out


def affordable(record: SharedRecord, parameters: Parameters) -> bool:
    """Whether standard errors take seconds, not minutes."""
    P = sum(record.states)
    if record.alike:
        return bool(P * (P + record.u.shape[1] + record.observation.shape[0]) <= QUICK_FORM)
    return cost(record, parameters) <= QUICK


def uncertainty(record: SharedRecord, found: Estimated, prior: Quadratic | None = None) -> Uncertainty:
    """Covariance of the couplings at the estimate, the process noise being estimated too if it was."""
    parameters = found.parameters
    assert parameters is not None
    if parameters.coupling_size() == 0:
        return Uncertainty(parameters, np.zeros((0, 0)))
    of = settled_information if record.alike else varying_information
    information = of(record, parameters, found.A, found.B, found.Q)
    if prior is not None:
        size = parameters.coupling_size()
        information[:size, :size] += prior.precision
    inverse = _inverse(information)
    return Uncertainty(parameters, inverse[: parameters.coupling_size(), : parameters.coupling_size()])


def _inverse(information: FloatArray) -> FloatArray:
    """Inverse on the directions that have information; NaN for entries that have a part in others."""
    size = np.sqrt(np.maximum(np.diag(information), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    values, vectors = np.linalg.eigh(information * np.outer(scale, scale))
    keep = values > 1e-9 * max(float(values[-1]) if values.size else 0.0, 1e-300)
    half = scale[:, None] * vectors[:, keep] / np.sqrt(values[keep])
    out = half @ half.T
    lost = (np.square(vectors[:, ~keep]).sum(axis=1) > 1e-6) | (size == 0)
    out[lost, :] = np.nan
    out[:, lost] = np.nan
    return np.asarray(out)
