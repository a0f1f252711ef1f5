"""Answers, at the level of a unit's measurements, with what they rest on.

The unit makes them from the server's answer about its own states and from C_mm and R_m, which only it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import UnknownNameError
from counterflow.protocol import Answer

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure



@dataclass(frozen=True, eq=False)
class Effect:
    """Answer to "what would the effect unit's outputs do if the cause unit's inputs were changed?".

    ``mean`` (horizon, D_m): change of the measurements, row k is k+1 steps after the change began (Q1).
    ``states`` (horizon, P_m): the same at the level of states, all that the server knows (Q2).
    ``lower``, ``upper``: None where the method gives no uncertainty; ``caveats`` travel with the answer.
    """

    cause: str
    effect: str
    channels: tuple[str, ...]
    mean: FloatArray
    states: FloatArray
    caveats: tuple[str, ...] = ()
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    level: float | None = None

    def to_frame(self) -> polars.DataFrame:
        """One row a step and channel: step, channel, mean, and lower and upper where there are any."""
        import polars as pl

        steps, count = self.mean.shape
        columns: dict[str, Any] = {
            "step": np.repeat(np.arange(1, steps + 1), count),
            "channel": list(self.channels) * steps,
            "mean": self.mean.ravel(),
        }
        if self.lower is not None and self.upper is not None:
            columns |= {"lower": self.lower.ravel(), "upper": self.upper.ravel()}
        return pl.DataFrame(columns)

    def plot(self) -> Figure:
        """A matplotlib Figure of the channels that move most."""
        from counterflow.questions.plots import effect_figure

        return effect_figure(self)

    def __str__(self) -> str:
        peak = int(np.abs(self.mean).max(axis=1).argmax()) if self.mean.size else 0
        lines = [f"effect of {self.cause} on {self.effect}, {len(self.mean)} steps; largest after {peak + 1}:"]
        for k, (channel, value) in enumerate(zip(self.channels, self.mean[peak], strict=True)):
            interval = ""
            if self.lower is not None and self.upper is not None:
                interval = f"  ({self.level:.0%}: {self.lower[peak, k]:+.4g} to {self.upper[peak, k]:+.4g})"
            lines.append(f"  {channel:>12}  {value:+.4g}{interval}")
        return "\n".join(lines + [f"  note: {text}" for text in self.caveats])


@dataclass(frozen=True, eq=False)
class Trajectory:
    """What a unit's outputs did, or are expected to do, and what they would have done.

    Rows are ``first``, ``first`` + 1, ...; all arrays are (rows, D_m). ``factual`` is NaN where nothing was measured,
    or where it lies in the future; ``lower`` and ``upper`` bound ``mean``, or are None.
    """

    unit: str
    channels: tuple[str, ...]
    first: int
    factual: FloatArray
    mean: FloatArray
    lower: FloatArray | None
    upper: FloatArray | None
    level: float | None
    caveats: tuple[str, ...] = ()

    def to_frame(self) -> polars.DataFrame:
        """One row a time and channel."""
        import polars as pl

        rows, count = self.mean.shape
        columns: dict[str, Any] = {
            "row": np.repeat(np.arange(self.first, self.first + rows), count),
            "channel": list(self.channels) * rows,
            "factual": self.factual.ravel(),
            "mean": self.mean.ravel(),
        }
        if self.lower is not None and self.upper is not None:
            columns |= {"lower": self.lower.ravel(), "upper": self.upper.ravel()}
        return pl.DataFrame(columns)

    def plot(self) -> Figure:
        """A matplotlib Figure of the channels that differ most."""
        from counterflow.questions.plots import trajectory_figure

        return trajectory_figure(self)


@dataclass(frozen=True, eq=False)
class Paths:
    """An effect split by the way it takes; all arrays are (horizon, D_m).

    ``direct``: with every third unit held still. ``through``: for each third unit, what is lost if it is held still.
    A way through two units counts at both, so the parts need not add up to ``total``.
    """

    cause: str
    effect: str
    channels: tuple[str, ...]
    total: FloatArray
    direct: FloatArray
    through: Mapping[str, FloatArray]
    caveats: tuple[str, ...] = ()

    def __str__(self) -> str:
        def size(values: FloatArray) -> str:
            return f"{float(np.abs(values).max(initial=0.0)):.4g}"

        lines = [f"{self.cause} -> {self.effect}, largest change of any channel: {size(self.total)}"]
        lines.append(f"  {'direct':>16}  {size(self.direct)}")
        return "\n".join(lines + [f"  {'through ' + n:>16}  {size(v)}" for n, v in self.through.items()])


@dataclass(frozen=True, eq=False)
class Attribution:
    """Who moved a unit's outputs in a window: an exact split of their departure from the usual level.

    ``departure`` (rows, D_m) = measured - ``baseline``; ``shares`` maps every unit's name (its inputs), "initial state"
    and "rest" (noise, and what the model does not explain) to arrays (rows, D_m) that add up to it.
    """

    unit: str
    channels: tuple[str, ...]
    first: int
    baseline: FloatArray
    departure: FloatArray
    shares: Mapping[str, FloatArray]
    caveats: tuple[str, ...] = ()

    @property
    def strongest(self) -> int:
        """Index of the channel that departs most."""
        return int(np.argmax([_known_mean(np.abs(column)) for column in self.departure.T]))

    def ranked(self, channel: str) -> list[tuple[str, float]]:
        """Shares by size, each as the mean over the window of its part in one channel."""
        if channel not in self.channels:
            raise UnknownNameError(f"unit {self.unit!r} has no output {channel!r}; they are {', '.join(self.channels)}")
        column = self.channels.index(channel)
        sizes = {name: _known_mean(share[:, column]) for name, share in self.shares.items()}
        return sorted(sizes.items(), key=lambda item: -abs(item[1]))

    def __str__(self) -> str:
        strongest = self.strongest
        name = self.channels[strongest]
        total = _known_mean(self.departure[:, strongest])
        lines = [
            f"{self.unit} {name}, rows {self.first} to {self.first + len(self.departure) - 1}: {total:+.4g} on average"
        ]
        lines += [f"  {share:>16}  {value:+.4g}" for share, value in self.ranked(name)]
        return "\n".join(lines)

    def to_frame(self) -> polars.DataFrame:
        """One row a time and channel: row, channel, baseline, departure, and ``share/boiler`` and so on."""
        import polars as pl

        rows, count = self.departure.shape
        columns: dict[str, Any] = {
            "row": np.repeat(np.arange(self.first, self.first + rows), count),
            "channel": list(self.channels) * rows,
            "baseline": np.broadcast_to(self.baseline, self.departure.shape).ravel(),
            "departure": self.departure.ravel(),
        }
        return pl.DataFrame(columns | {f"share/{name}": share.ravel() for name, share in self.shares.items()})

    def plot(self) -> Figure:
        """A matplotlib Figure: stacked shares of the channel that departs most."""
        from counterflow.questions.plots import attribution_figure

        return attribution_figure(self)


@dataclass(frozen=True, eq=False)
class Restoration:
    """The smallest held change of some units' inputs that brings outputs to a target.

    ``change`` maps cause -> {input channel: change}; ``reached`` (channels) is where the asked channels end, ``target``
    where they should. Not ``feasible``: the nearest that the limits allow.
    """

    unit: str
    channels: tuple[str, ...]
    horizon: int
    feasible: bool
    change: Mapping[str, Mapping[str, float]]
    target: FloatArray
    reached: FloatArray
    message: str
    caveats: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [self.message]
        for cause, channels in self.change.items():
            lines += [f"  {cause} {channel}: {value:+.4g}" for channel, value in channels.items()]
        return "\n".join(lines)


def _known_mean(values: FloatArray) -> float:
    """Over what was measured; zero if nothing was."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else 0.0


def deviation(
    answer: Answer, C: FloatArray, noise: FloatArray | None = None, doubt: tuple[FloatArray, FloatArray] | None = None
) -> FloatArray | None:
    """Standard deviation (rows, D_m) of C times the answer's states, plus measurement noise of covariance ``noise``.

    ``doubt``: variances (D_m,) and a matrix (P_m, P_m), where C itself is an estimate: row i of it has covariance
    variance i times the matrix.
    """
    if not len(answer.covariance):
        return None
    blocks = answer.covariance.reshape(len(answer.mean), C.shape[1], C.shape[1])
    variance = np.einsum("di,tij,dj->td", C, blocks, C)
    if doubt is not None:
        variance = variance + np.einsum("ti,ij,tj->t", answer.mean, doubt[1], answer.mean)[:, None] * doubt[0]
    if noise is not None:
        variance = variance + np.diag(noise)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def band(mean: FloatArray, spread: FloatArray | None, level: float) -> tuple[FloatArray | None, FloatArray | None]:
    """Lower and upper bounds of a two-sided interval, or None."""
    if spread is None:
        return None, None
    from scipy.special import ndtri

    half = float(ndtri(0.5 + level / 2)) * spread
    return mean - half, mean + half
