"""Rows that come by and by: what is kept of all rows of a fit from logs, so that new ones cost what they are.

Sums of products take new rows in (``products``). Which features each replicate uses is chosen anew only when there are
a tenth more rows than at the last time; in between, the weights of the chosen features follow the sums. So the search
is made some 25 times while a record grows to ten times its length, however it comes in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.learning.block_moments import BlockMoments, Rows, block_length
from counterflow.learning.completion import impute_mean
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import SPANS, Network
from counterflow.learning.network_learning import Learning, Posterior, learn, refreshed

GROWTH = 1.1  # times the rows of the last search, at which features are chosen anew
MOVED = 1e-5  # of its level, that a still column must move to ask for a search: so much shows in the spread of all rows
KEPT = 10_000  # newest rows that are kept, or as many as the first fit had: they are asked about, and judge curvature
TAIL = int(SPANS[-1, 1])  # rows before the next one that it may be predicted from


@dataclass(frozen=True, eq=False)
class Stream:
    """What is kept of all rows so far.

    ``tail`` (TAIL, m): the last rows, in the units' own terms, with what is missing filled in. ``chosen``: rows of the
    record when features were last chosen. ``kept``: how many of the newest rows are kept at most.
    """

    products: BlockMoments
    posterior: Posterior
    tail: FloatArray
    chosen: int
    kept: int

    @property
    def rows(self) -> int:
        """Of the whole record."""
        return self.products.rows

    def __str__(self) -> str:
        kept = f", the newest {self.kept:,} are kept" if self.rows > self.kept else ""
        return f"{self.rows:,} rows in all{kept}; features chosen from the first {self.chosen:,}"

    @property
    def due(self) -> bool:
        """Whether features are to be chosen anew.

        So they are when blocks have been joined, which have other random weights, and when a column moves that never
        did: nothing can be said of it before.
        """
        sums = self.products
        moved = (sums.high - sums.low) * sums.scale > MOVED * np.maximum(np.abs(sums.level), 1e-300)
        late = moved & ~sums.moving
        return bool(self.rows >= GROWTH * self.chosen or sums.length > block_length(self.chosen) or late.any())

    def followed(self, network: Network, tail: FloatArray, z: FloatArray) -> Stream:
        """With new rows z (k, m) in the units' own terms, NaN: missing.

        ``tail``: as it was, but for inputs of its last row that are known only now, because they act on their own row.
        What is missing is drawn, as the network sees it.
        """
        both, read = continued(network, tail, z), np.isfinite(z[:, : network.size])
        return replace(
            self, products=self.products.absorbed(both[TAIL - self.products.memory :], read), tail=both[-TAIL:]
        )

    def refreshed(self, network: Network) -> tuple[Stream, Network]:
        """The weights of the chosen features by all rows so far."""
        network, posterior = refreshed(network, self.products, self.posterior)
        return replace(self, posterior=posterior), network

    def chosen_anew(self, rows: Rows, known: KnownEdges | None) -> tuple[Stream, Learning]:
        """Features chosen from all rows so far. ``rows``: those that are kept; curvature is judged by these."""
        if rows.first == 0:  # these are all, so that the memory of a short record can grow with it
            return begun(rows, known, self.tail, self.kept)
        sums = self.products.restandardised()
        learned = learn(rows, known, sums=sums)
        return replace(self, products=learned.products, posterior=learned.posterior, chosen=self.rows), learned


def begun(rows: Rows, known: KnownEdges | None, tail: FloatArray, kept: int) -> tuple[Stream, Learning]:
    """The stream that begins with a whole record. ``tail``, ``kept``: as in ``Stream``."""
    learned = learn(rows, known)
    return Stream(learned.products, learned.posterior, tail, learned.products.rows, kept), learned


def continued(network: Network, before: FloatArray, z: FloatArray) -> FloatArray:
    """Rows ``before`` and z (k, m) after them, in the units' own terms, with what is missing in z drawn."""
    whole = (np.vstack([before, z]) - network.level) / network.scale
    return np.asarray(impute_mean(network, whole, np.random.default_rng(len(z))) * network.scale + network.level)
