"""What units without models are asked to project on: responses of a public bank to all inputs, and placebos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.errors import DataError
from counterflow.learning.clipping import ClippingRegion, nothing
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.log_moments import (
    ImpulseBasis,
    LogBasis,
    LogEstimate,
    LogMoments,
    LogWindows,
    fitted,
    packed_covariance,
    system_of,
)
from counterflow.learning.moments import clipping_bias, clipping_se_factor
from counterflow.learning.parameters import Parameters
from counterflow.learning.uncertainty import Uncertainty
from counterflow.protocol import Moments, Outline

SHORTEST, LONGEST, SHARE = 10, 100, 20  # rows that inputs are followed, if nobody says: one in so many of the record
ROWS_A_SIGNAL = 15
MOSTLY = 0.5  # share clipped, beyond which nothing but the instruments' ranges is known of a response
DROWNED = 1.0  # squared doubt over squared response, beyond which the response is said to be lost in noise
FLATTEST = 0.2  # of the largest noise of an output, as which a quieter one is clipped at least


@dataclass(frozen=True, eq=False)
class LogFound:
    """Responses of all units, and the windows of each that have told of them."""

    estimates: tuple[LogEstimate, ...]
    windows: tuple[tuple[LogMoments, ...], ...]
    steps: int = 1
    misfit: float = 0.0
    converged: bool = True

    @classmethod
    def from_windows(cls, windows: tuple[tuple[LogMoments, ...], ...], bank: ImpulseBasis) -> LogFound:
        return cls(tuple(fitted(own, bank) for own in windows), windows)


@dataclass(frozen=True, eq=False)
class LogDesign:
    """Bases of all units, and what the server knows besides: everything but measurements."""

    outlines: tuple[Outline, ...]
    memory: int | None = None  # rows that inputs are followed
    same_row: tuple[bool, ...] = ()  # of each unit: whether an input acts on the row that it stands in
    before: LogWindows | None = None  # of a later window: earlier ones, whose bank and measure of inputs it takes

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(outline.unit for outline in self.outlines)

    @cached_property
    def inputs(self) -> FloatArray:
        """(T+1, U) as they act: row t on row t+1."""
        pieces = []
        for outline, early in zip(self.outlines, self.same_row or [False] * len(self.outlines), strict=True):
            u = outline.inputs
            pieces.append(np.vstack([u[1:], u[-1:]]) if early else u)
        return np.hstack(pieces)

    @cached_property
    def level(self) -> FloatArray:
        return np.asarray(self.inputs.mean(axis=0)) if self.before is None else self.before.level

    @cached_property
    def scale(self) -> FloatArray:
        """(U,) how far inputs move; 1 of those that do not."""
        if self.before is not None:
            return self.before.scale
        size = self.inputs.std(axis=0)
        return np.where(size > 1e-9 * np.abs(self.level) + 1e-300, size, 1.0)

    @cached_property
    def bank(self) -> ImpulseBasis:
        if self.before is not None:
            return self.before.bank
        rows, inputs = self.inputs.shape
        memory = self.memory or int(min(max(rows // SHARE, SHORTEST), LONGEST))
        return ImpulseBasis.from_memory(memory, rows // (ROWS_A_SIGNAL * max(inputs, 1)))

    @cached_property
    def log_bases(self) -> tuple[LogBasis, ...]:
        u = (self.inputs - self.level) / self.scale
        made: dict[bytes, LogBasis] = {}  # units that were measured in the same rows share it
        out = []
        for outline in self.outlines:
            key = outline.there.tobytes()
            if key not in made:
                made[key] = LogBasis.from_inputs(u, self.bank, outline.there)
            out.append(made[key])
        return tuple(out)

    @property
    def bases(self) -> tuple[FloatArray, ...]:
        return tuple(basis.functions for basis in self.log_bases)

    @property
    def asked(self) -> tuple[str, ...]:
        """Units that are asked for moments: all of them."""
        for outline, basis in zip(self.outlines, self.bases, strict=True):
            if not basis.shape[1]:
                raise DataError(
                    f"unit {outline.unit!r}: there are no rows in which all its channels were read, so nothing can be "
                    "told of it; leave out channels that are hardly ever read, or the unit. Nothing was released"
                )
        return self.names

    def estimate(self, moments: Mapping[str, Moments], private: bool, before: LogWindows | None = None) -> LogFound:
        """Responses of each unit's outputs to all inputs, from this window and those ``before``."""
        windows = []
        for m, (name, basis) in enumerate(zip(self.names, self.log_bases, strict=True)):
            told = moments[name]
            around = np.zeros((told.values.shape[1], basis.design.shape[1] - 1))
            new = LogMoments(basis.design, basis.bands, basis.told, told.values, told.noise, told.clipped, around)
            windows.append((*(() if before is None else before.units[m]), new))
        return LogFound.from_windows(tuple(windows), self.bank)

    def knowing_clips(self, found: LogFound, centred: LogFound | None) -> LogFound:
        """The same with what clipping may have done: responses may be further from the centre than they were found.

        Where most was clipped in every window, all that is known of them is that instruments have ranges: a response of
        half of one to the usual movement of an input is not ruled out. ``centred``: what the last window was clipped
        around.
        """
        estimates, told = [], []
        for m, (each, windows) in enumerate(zip(found.estimates, found.windows, strict=True)):
            if centred is not None:
                windows = (*windows[:-1], replace(windows[-1], centre=centred.estimates[m].weights))
            told.append(windows)
            least = min(w.clipped for w in windows)
            covariance = each.covariance * clipping_se_factor(least) ** 2
            for share, w in zip(each.shares, windows, strict=True):
                away = (share * clipping_bias(w.clipped) * (each.weights - w.centre)).ravel()
                covariance = covariance + np.outer(away, away)
            if least > MOSTLY:
                covariance = covariance + np.eye(len(covariance)) / self.bank.size
            estimates.append(replace(each, covariance=covariance))
        return replace(found, estimates=tuple(estimates), windows=tuple(told))

    def drowned(self, found: LogFound) -> list[tuple[str, str]]:
        """(effect, cause) of units whose responses are no larger than the doubt about them."""
        out = []
        for effect, each in zip(self.names, found.estimates, strict=True):
            r = len(each.level)
            told = np.square(each.weights.reshape(r, len(self.scale), -1)).sum(axis=(0, 2))
            doubt = np.diag(each.covariance).reshape(r, len(self.scale), -1).sum(axis=(0, 2))
            for cause, own in zip(self.names, self.layout.input_slices, strict=True):
                if cause != effect and doubt[own].sum() > DROWNED * told[own].sum():
                    out.append((effect, cause))
        return out

    def foreseen(self, found: LogFound | None) -> list[ClippingRegion]:
        """What each unit's numbers will be: nothing at first, then what the round before has told."""
        rows = len(self.inputs)
        if found is None:
            return [nothing(rows, len(o.observation)) for o in self.outlines]
        signals = self.bank.signals((self.inputs - self.level) / self.scale)
        out = []
        for estimate in found.estimates:
            size = np.sqrt(np.maximum(np.diag(estimate.noise), 0.0))
            top = float(size.max(initial=0.0))
            W = np.diag(1 / np.maximum(size, FLATTEST * top)) if top > 0 else np.eye(len(size))
            out.append(ClippingRegion(estimate.level + signals @ estimate.weights.T, W))
        return out

    # ---- what is left when the exchange is over

    @cached_property
    def outputs(self) -> dict[int, int]:
        return {m: len(outline.observation) for m, outline in enumerate(self.outlines)}

    @cached_property
    def layout(self) -> Layout:
        states = tuple(r * self.bank.size for r in self.outputs.values())
        return Layout(self.names, states, tuple(o.inputs.shape[1] for o in self.outlines))

    def system(self, found: LogFound) -> tuple[SharedRecord, FloatArray, FloatArray, Uncertainty]:
        """The record without rows, A and B of all units, and how sure they are."""
        estimates = dict(enumerate(found.estimates))
        A, B, observations = system_of(self.bank, self.outputs, estimates, self.scale)
        layout = self.layout
        own = np.zeros_like(B)
        for rows, columns in zip(layout.state_slices, layout.input_slices, strict=True):
            own[rows, columns] = B[rows, columns]
        C = block_diagonal(observations)
        noise = block_diagonal([_definite(each.noise) for each in found.estimates])
        record = SharedRecord(
            layout.names, layout.states, layout.inputs, values=np.full((len(self.inputs), len(C)), np.nan),
            u=self.inputs - self.level, observation=C, noise=noise, A_local=A, B_local=own, Q_local=np.zeros_like(A),
        )  # fmt: skip
        parameters = Parameters(record, "responses", np.eye(len(A)))
        covariance = packed_covariance(estimates, len(self.scale), self.bank.size, self.scale)
        return record, A, B, Uncertainty(parameters, covariance)


def _definite(noise: FloatArray) -> FloatArray:
    """A covariance with no direction in which it is nothing."""
    values, vectors = np.linalg.eigh((noise + noise.T) / 2)
    least = max(1e-6 * float(values.max(initial=0.0)), 1e-12)
    out = (vectors * np.maximum(values, least)) @ vectors.T
    return np.asarray((out + out.T) / 2)
