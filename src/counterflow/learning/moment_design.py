"""What units with models are asked to project on, and how their moments are read; inputs and models alone decide it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.errors import ModelError
from counterflow.learning.clipping import DRAWS, SETTLES, ClippingRegion, joint_responses, own_response
from counterflow.learning.impulse_basis import basis_of, impulse_bases_for, memory_of, responses
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.moments import MomentEstimate, MomentRecord, estimated
from counterflow.learning.optimiser import Quadratic
from counterflow.learning.parameters import Parameters
from counterflow.learning.prior import weak_prior
from counterflow.protocol import Moments, Outline

LEAST_ROWS = 20  # of a basis, for each of its signals: fewer say nothing, and settle nothing
SKIPPED = 0.1  # share of the rows, at most, that are left out because of what inputs did before the first one
FADED = 1e-3  # of an impulse response that may be left of what inputs did before


@dataclass(frozen=True, eq=False)
class Design:
    """Bases of all units, and what the server knows besides: everything but measurements."""

    outlines: tuple[Outline, ...]
    known: KnownEdges | None = None

    def __post_init__(self) -> None:
        for outline in self.outlines:
            radius = np.abs(np.linalg.eigvals(outline.A)).max(initial=0.0)
            if radius > SETTLES:
                raise ModelError(
                    f"unit {outline.unit!r}: its own model does not settle (spectral radius {radius:.6g}), and moments "
                    "follow what inputs do until it has faded; fit with release='rows', or method='sufficient' without "
                    "privacy"
                )

    @cached_property
    def layout(self) -> Layout:
        outlines = self.outlines
        return Layout(
            tuple(o.unit for o in outlines), tuple(len(o.A) for o in outlines),
            tuple(o.inputs.shape[1] for o in outlines),
        )  # fmt: skip

    @cached_property
    def u(self) -> FloatArray:
        """(T+1, U)."""
        return np.hstack([outline.inputs for outline in self.outlines])

    @cached_property
    def local(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A, B and Q of the units alone."""
        A, B, Q = (block_diagonal([getattr(o, letter) for o in self.outlines]) for letter in "ABQ")
        return A, B, Q

    @cached_property
    def shared(self) -> SharedRecord:
        """The inputs, and rows of measurements of which nothing is known."""
        observation = block_diagonal([o.observation for o in self.outlines])
        A, B, Q = self.local
        layout = self.layout
        return SharedRecord(
            layout.names, layout.states, layout.inputs, values=np.full((len(self.u), len(observation)), np.nan),
            u=self.u, observation=observation, noise=np.eye(len(observation)), A_local=A, B_local=B, Q_local=Q,
        )  # fmt: skip

    @cached_property
    def measured(self) -> SharedRecord:
        """The same with zeros in rows that are there: for those who ask which rows that is."""
        there = [np.where(o.there[:, None], np.zeros(len(o.observation)), np.nan) for o in self.outlines]
        return replace(self.shared, values=np.hstack(there))

    @cached_property
    def parameters(self) -> Parameters:
        return Parameters(self.shared, "couplings", np.eye(sum(self.layout.states)), known=self.known)

    @cached_property
    def radius(self) -> float:
        return float(np.abs(np.linalg.eigvals(self.local[0])).max(initial=0.0))

    @cached_property
    def memory(self) -> int:
        return memory_of(self.radius, len(self.u))

    @cached_property
    def bases(self) -> tuple[FloatArray, ...]:
        """Φ_m (T+1, K_m) of each unit; no columns where nobody can act on it."""
        skipped = np.log(FADED) / np.log(self.radius) if self.radius > 0 else 1.0
        settled = np.arange(len(self.u)) >= min(skipped, SKIPPED * len(self.u))
        blocks = [outline.A for outline in self.outlines]
        out = []
        for m, outline in enumerate(self.outlines):
            banks = impulse_bases_for(m, blocks, self.parameters.causes[m], self.memory)
            signals = [responses(self.outlines[n].inputs, bank) for n, bank in banks.items()]
            whole = np.hstack(signals) if signals else np.zeros((len(self.u), 0))
            out.append(_affordable(basis_of(whole, outline.there & settled), outline.there & settled))
        return tuple(out)

    @property
    def asked(self) -> tuple[str, ...]:
        """Units that are asked for moments."""
        return tuple(name for name, basis in zip(self.layout.names, self.bases, strict=True) if basis.shape[1])

    @cached_property
    def _without_values(self) -> MomentRecord:
        numbers = [len(o.observation) for o in self.outlines]
        return MomentRecord.from_bases(
            self.layout, self.local, [o.observation for o in self.outlines], self.bases, self.u,
            [np.zeros((basis.shape[1], r)) for basis, r in zip(self.bases, numbers, strict=True)],
            [np.zeros((r, r)) for r in numbers], self.memory,
        )  # fmt: skip

    def record(self, moments: Mapping[str, Moments]) -> MomentRecord:
        """With what the units have sent."""
        values, noise = list(self._without_values.values), list(self._without_values.noise)
        for m, name in enumerate(self.layout.names):
            if name in moments:
                values[m], noise[m] = moments[name].values, moments[name].noise
        return replace(self._without_values, values=tuple(values), noise=tuple(noise))

    def estimate(
        self, moments: Mapping[str, Moments], private: bool, before: Quadratic | None = None
    ) -> MomentEstimate:
        """The couplings; a private fit leans on the weak prior where noise drowns them.

        ``before``: what earlier windows have told, which leant on it already.
        """
        prior = before
        if prior is None and private:
            prior = weak_prior(self.shared, "couplings", self.known)
        return estimated(self.record(moments), self.parameters, prior)

    def foreseen(self, found: MomentEstimate | None) -> list[ClippingRegion]:
        """What each unit's numbers will be, from the models alone or with the couplings of the round before."""
        if found is None:
            return [own_response(o.A, o.B, o.Q, o.observation, o.inputs) for o in self.outlines]
        others = self._draws(found)
        return joint_responses(
            found.A, found.B, self.local[2], others, self.u, [o.observation for o in self.outlines],
            self.layout.state_slices,
        )  # fmt: skip

    def _draws(self, found: MomentEstimate) -> list[tuple[FloatArray, FloatArray]]:
        """Systems that the couplings might be as well: a few, drawn from what is known of them."""
        P = len(found.A)
        covariance = np.nan_to_num(found.covariance)
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        noise = np.random.default_rng(0).normal(size=(DRAWS, len(values)))
        out = []
        for draw in noise:
            for share in (1.0, 0.5, 0.25, 0.125):
                whole = np.hstack([found.A, found.B]) + share * self.parameters.unpack(root @ draw)
                if np.abs(np.linalg.eigvals(whole[:, :P])).max(initial=0.0) <= self._without_values.slowest:
                    out.append((whole[:, :P], whole[:, P:]))
                    break
        return out


def _affordable(basis: FloatArray, there: NDArray[np.bool_]) -> FloatArray:
    """As many of the signals as the rows can tell apart."""
    return basis[:, : max(1, int(there.sum()) // LEAST_ROWS)] if basis.shape[1] else basis
