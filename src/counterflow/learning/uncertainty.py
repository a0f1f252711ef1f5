"""What the Fisher information gives: covariances, standard errors, and the spread of answers (delta method)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.learning.identifiability import Doubt, masks
from counterflow.learning.information import QUICK_FORM, inverse_information, settled_information
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, Quadratic
from counterflow.learning.parameters import Parameters
from counterflow.learning.sensitivities import cost, varying_information

FINEST = 1e-9  # of the information of an entry, relative, below which there is none
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


def information_of(record: SharedRecord, found: Estimated) -> FloatArray:
    """Fisher information of all parameters at the estimate: couplings, then the process noise if it was estimated."""
    assert found.parameters is not None
    of = settled_information if record.alike else varying_information
    return of(record, found.parameters, found.A, found.B, found.Q)


def uncertainty(record: SharedRecord, found: Estimated, prior: Quadratic | None = None) -> Uncertainty:
    """Covariance of the couplings at the estimate, the process noise being estimated too if it was."""
    parameters = found.parameters
    assert parameters is not None
    size = parameters.coupling_size()
    if size == 0:
        return Uncertainty(parameters, np.zeros((0, 0)))
    information = information_of(record, found)
    if prior is not None:
        information[:size, :size] += prior.precision
    return Uncertainty(parameters, inverse_information(information, FINEST)[:size, :size])
