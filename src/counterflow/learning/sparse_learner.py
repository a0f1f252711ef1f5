"""The sparse learner: a weight is there only if its evidence is worth its cost in nats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.identification.sparse import SparseWeights, sparse_weights
from counterflow.learning.regression import Learner, Regression

PRODUCT = 3.0  # nats that a product costs more than a new source


@dataclass(frozen=True)
class Sparse(Learner):
    """Nats that a weight must bring: of a new source, a further one of a source, a new source of the target's own unit.

    ``by_unit``: the sources are whole units, not columns.
    """

    new: float
    further: float
    own: float
    by_unit: bool

    @property
    def name(self) -> str:
        return "sparse network"

    def weights(self, of: Regression) -> tuple[SparseWeights, ...]:
        bend = self.new + PRODUCT
        first = np.where(of.product, bend, np.where(of.own, self.own, self.new))
        further = np.where(of.product, bend, self.further)
        closed = np.where(of.open, 0.0, np.inf)
        source = of.unit if self.by_unit else of.column
        costs = source, first + closed, further + closed
        return tuple(
            sparse_weights(of.gram, np.ascontiguousarray(cross), energy, of.rows, *costs)
            for cross, energy in zip(of.cross.T, of.energy.tolist(), strict=True)
        )


SPARSE = (Sparse(6, 6, 6, False), Sparse(8, 4, 5, False), Sparse(7, 3, 7, True), Sparse(5, 2, 3, True))
JUDGE = SPARSE[1]  # with which candidates are compared
