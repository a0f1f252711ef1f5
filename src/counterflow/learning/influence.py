"""The influence graph: which unit acts on which, how strongly, and how sure the data make us.

With models given:

An edge n -> m is direct if A_mn or B_mn is not zero; both blocks are tested together and apart (Wald, chi-square) and
the edges pass a false-discovery control over all pairs (Benjamini-Hochberg). Total influence is what a change at n
does to m in the end, through whichever units it passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow import notebook
from counterflow.arrays import FloatArray
from counterflow.errors import UnknownNameError
from counterflow.filtering.covariances import lyapunov
from counterflow.frames import as_pandas
from counterflow.learning.information import positions
from counterflow.learning.network import Network
from counterflow.learning.uncertainty import Uncertainty

if TYPE_CHECKING:
    import pandas
    import polars

FOLLOWED = 60  # rows after a shift that strengths of a network are measured over
MOST_EDGES = 30  # of a notebook's table, and names of its picture
NORMAL = 1.959964  # standard deviations to each side that hold 95 %
MATTERS = 0.5  # share of what a cause does to an effect that would not happen without the direct coupling


@dataclass(frozen=True)
class Edge:
    """Influence of ``cause`` on ``effect``.

    ``p_value``, ``p_value_A``, ``p_value_B``: of no direct influence at all, through states, through inputs; NaN where
    the data do not determine it. ``q_value``: the smallest false-discovery rate at which the edge is kept.
    ``direct`` says whether it is kept, ``reaches`` whether kept edges lead from cause to effect at all.
    ``possible`` says whether there can be a direct influence: where it was ruled out beforehand (``edges`` or
    ``forbidden`` of a fit), nothing was tested, all p-values and the q-value are 1, and it is not direct.
    ``direct_interval``: 95 % of the direct strength, where it is known. From logs, see ``network_graph``.
    ``direct_strength`` and ``total_strength``: root mean square of what white inputs of unit variance at the cause do
    to the effect's whitened measurements, directly (no third unit in between) and in total.
    """

    cause: str
    effect: str
    p_value: float
    p_value_A: float
    p_value_B: float
    q_value: float
    direct: bool
    reaches: bool
    direct_strength: float
    total_strength: float
    possible: bool = True
    direct_interval: tuple[float, float] | None = None

    @property
    def kind(self) -> str:
        """What was found of it, in words."""
        if not self.possible and not self.reaches:
            return "ruled out"
        if not np.isfinite(self.p_value):
            return "not determined"
        return "direct" if self.direct else ("through others" if self.reaches else "none found")


@dataclass(frozen=True, repr=False)
class InfluenceGraph:
    """All ordered pairs of units; ``rate`` is the false-discovery rate that was asked for."""

    names: tuple[str, ...]
    edges: tuple[Edge, ...]
    rate: float

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    def edge(self, cause: str, effect: str) -> Edge:
        for edge in self.edges:
            if (edge.cause, edge.effect) == (cause, effect):
                return edge
        raise UnknownNameError(f"no edge {cause!r} -> {effect!r}; the units are {', '.join(self.names)}")

    def direct(self) -> tuple[tuple[str, str], ...]:
        """(cause, effect) of the edges that are kept."""
        return tuple((edge.cause, edge.effect) for edge in self.edges if edge.direct)

    def slight(self, edge: Edge) -> bool:
        """Whether an edge passes the test and is not kept, because most of the influence takes other ways."""
        return bool(edge.possible and not edge.direct and edge.q_value <= self.rate)

    def _ranked(self) -> list[Edge]:
        return sorted(self.edges, key=lambda e: e.q_value if np.isfinite(e.q_value) else 2.0)

    def __repr__(self) -> str:
        told = ", ".join(f"{cause} -> {effect}" for cause, effect in self.direct()) or "no direct influence"
        return f"<InfluenceGraph of {len(self.names)} units: {notebook.short(told)}>"

    def to_frame(self) -> polars.DataFrame:
        """One row a pair of units: all that is known of the edge."""
        import polars

        rows = []
        for edge in self:
            lower, upper = edge.direct_interval or (None, None)
            known = {name: value for name, value in vars(edge).items() if name != "direct_interval"}
            rows.append(known | {"lower": lower, "upper": upper})
        return polars.DataFrame(rows)

    def to_pandas(self) -> pandas.DataFrame:
        """The same for pandas."""
        return as_pandas(self.to_frame(), ("cause", "effect"))

    def _repr_html_(self) -> str:
        rows = [
            [edge.cause, edge.effect, edge.kind, *(f"{v:.2g}" for v in (edge.q_value, edge.direct_strength))]
            for edge in self._ranked()[:MOST_EDGES]
        ]
        title = f"false-discovery rate {self.rate:g}"
        table = notebook.Table(title, ["cause", "effect", "found", "q", "direct strength"], rows, 3)
        drawn = notebook.arrows(self.names, self.direct()) if len(self.names) <= MOST_EDGES else ""
        return notebook.page(repr(self)[1:-1], [table], drawn)

    def __str__(self) -> str:
        lines = [f"influence graph, false-discovery rate {self.rate:g}"]
        for edge in self._ranked():
            lines.append(
                f"  {edge.cause} -> {edge.effect}: {edge.kind}, q {edge.q_value:.2g}, "
                f"direct {edge.direct_strength:.3g}, total {edge.total_strength:.3g}"
            )
        return "\n".join(lines)


def influence_graph(
    A: FloatArray, B: FloatArray, observation: FloatArray, spread: Uncertainty, rate: float = 0.05
) -> InfluenceGraph:
    """Test and measure every ordered pair of units."""
    parameters, record = spread.parameters, spread.parameters.record
    values, (rows, columns), P = parameters.pack(np.hstack([A, B])), positions(parameters), len(A)
    count, units = len(record.names), np.arange(len(record.names))
    effects = np.repeat(units, record.states)[rows]
    causes = np.concatenate([np.repeat(units, record.states), np.repeat(units, record.inputs)])[columns]
    tests, errors = np.ones((count, count, 3)), np.full((count, count), np.nan)
    possible = np.zeros((count, count), bool)
    for m, n in _pairs(count):
        possible[m, n] = n in parameters.causes[m]
        if possible[m, n]:
            mine = (effects == m) & (causes == n)
            for k, block in enumerate((mine, mine & (columns < P), mine & (columns >= P))):
                tests[m, n, k] = _wald(values, spread.covariance, block)
            errors[m, n] = _relative_error(values[mine], spread.covariance[np.ix_(mine, mine)])
    q_values = np.ones((count, count))
    q_values[possible] = _benjamini_hochberg(tests[possible, 0])
    total, direct = strengths(A, B, observation, record.state_slices, record.input_slices)
    ends = {pair: _tested_ends(float(direct[pair]), errors[pair], tests[pair][0]) for pair in _pairs(count)}
    return _graph(record.names, rate, tests, q_values, q_values <= rate, possible, total, direct, ends)


def network_graph(network: Network, rate: float = 0.05) -> InfluenceGraph:
    """The graph of a network of units, as it is learned from logs.

    p-values are the share of replicates without the coupling (of all, through numbers, through inputs), which is about
    the probability that there is none; q-values are their mean over all couplings that are at least as sure. A coupling
    is direct if its q-value is at most ``rate`` *and* it matters: without it, at least half of what the cause does to
    the effect would not happen. That keeps out what reaches the effect by way of others. Strengths are root mean square
    movements of the effect's standardised numbers over ``FOLLOWED`` rows after one of the cause's numbers or inputs has
    been shifted by one standard deviation for good.
    """
    names, count, r, owner = network.names, len(network.names), network.size, network.owner
    target, number = owner[:r], np.arange(len(owner)) < r
    tests, possible, q_values = np.ones((count, count, 3)), np.zeros((count, count), bool), np.ones((count, count))
    total, direct, ends = np.zeros((count, count)), np.zeros((count, count)), dict.fromkeys(_pairs(count), (0.0, 0.0))
    for n in range(count):
        mine = owner == n
        whole = np.cumsum(network.responses(np.flatnonzero(mine), FOLLOWED), axis=0)
        for m in range(count):
            theirs = target == m
            total[m, n] = _rms(whole[:, theirs])
            if m == n:
                continue
            possible[m, n] = network.known is None or network.known.allows(names[n], names[m])
            for k, columns in enumerate((mine, mine & number, mine & ~number)):
                tests[m, n, k] = _absent(network.in_use[:, columns][:, :, theirs])
            if tests[m, n, 0] < 1:
                apart = np.cumsum(network.responses(np.flatnonzero(mine), FOLLOWED, cut=(m, n)), axis=0)
                direct[m, n] = _rms((whole - apart)[:, theirs])
                sizes = np.sqrt(np.square(network.linear[:, :, mine][..., theirs]).sum(axis=(1, 2, 3)))
                error = float(sizes.std(ddof=1) / max(float(sizes.mean()), 1e-300)) * network.widening
                ends[m, n] = _ends(float(direct[m, n]), error)
    at = np.array([pair for pair in _pairs(count) if possible[pair]], int).reshape(-1, 2)
    at = at[np.argsort(tests[at[:, 0], at[:, 1], 0], kind="stable")]
    q_values[at[:, 0], at[:, 1]] = np.cumsum(tests[at[:, 0], at[:, 1], 0]) / np.arange(1, len(at) + 1)
    kept = (q_values <= rate) & (direct >= MATTERS * total)
    return _graph(names, rate, tests, q_values, kept, possible, total, direct, ends)


def _pairs(count: int) -> list[tuple[int, int]]:
    """(effect, cause), by effect."""
    return [(m, n) for m in range(count) for n in range(count) if m != n]


def _graph(
    names: tuple[str, ...], rate: float, tests: FloatArray, q_values: FloatArray, kept: NDArray[np.bool_],
    possible: NDArray[np.bool_], total: FloatArray, direct: FloatArray,
    ends: Mapping[tuple[int, int], tuple[float, float] | None],
) -> InfluenceGraph:  # fmt: skip
    """From figures (effect, cause) of all pairs."""
    kept = kept & possible
    reached = reach(kept)
    edges = []
    for m, n in _pairs(len(names)):
        either, states, inputs = (float(p) for p in tests[m, n])
        edges.append(
            Edge(
                names[n], names[m], either, states, inputs, float(q_values[m, n]), bool(kept[m, n]),
                bool(reached[m, n]), float(direct[m, n]), float(total[m, n]), bool(possible[m, n]), ends[m, n],
            )
        )  # fmt: skip
    return InfluenceGraph(names, tuple(edges), rate)


def _relative_error(values: FloatArray, covariance: FloatArray) -> float:
    """Standard error of the norm of a block, as a part of it: about that of what the block does."""
    size = float(np.linalg.norm(values))
    known = np.isfinite(np.diag(covariance))
    if not size or not known.any():
        return float("nan")
    toward = values[known] / size
    return float(np.sqrt(max(toward @ covariance[np.ix_(known, known)] @ toward, 0.0))) / size


def _absent(block: NDArray[np.bool_]) -> float:
    """Share of replicates in which nothing of a block (K, columns, numbers) is there, as one in more than all."""
    missing = int((~block.any(axis=(1, 2))).sum())
    return 1.0 if missing == len(block) else (missing + 0.5) / (len(block) + 1)


def _ends(strength: float, relative_error: float) -> tuple[float, float]:
    """95 % of a strength."""
    return max(strength * (1 - NORMAL * relative_error), 0.0), strength * (1 + NORMAL * relative_error)


def _tested_ends(strength: float, relative_error: float, p_value: float) -> tuple[float, float] | None:
    """The same with the test of the block: where that does not reject, it may be nothing."""
    if not np.isfinite(relative_error):
        return None
    low, high = _ends(strength, relative_error)
    return (low if p_value < 0.05 else 0.0), high


def _rms(values: FloatArray) -> float:
    return float(np.sqrt(np.square(values).mean())) if values.size else 0.0


def _wald(values: FloatArray, covariance: FloatArray, mask: NDArray[np.bool_]) -> float:
    from scipy.special import chdtrc

    block = covariance[np.ix_(mask, mask)]
    known = np.isfinite(np.diag(block))
    if not known.any():
        return float("nan")
    x, block = values[mask][known], block[np.ix_(known, known)]
    size = np.sqrt(np.diag(block))
    eigenvalues, vectors = np.linalg.eigh(block / np.outer(size, size))
    keep = eigenvalues > 1e-10 * eigenvalues[-1]
    z = ((x / size) @ vectors[:, keep]) / np.sqrt(eigenvalues[keep])
    return float(chdtrc(keep.sum(), z @ z))


def _benjamini_hochberg(p_values: FloatArray) -> FloatArray:
    """Adjusted p-values; NaN stays NaN and does not count as a test."""
    out = np.full(len(p_values), np.nan)
    known = np.flatnonzero(np.isfinite(p_values))
    order = known[np.argsort(p_values[known])]
    adjusted = p_values[order] * len(order) / np.arange(1, len(order) + 1)
    out[order] = np.minimum(np.minimum.accumulate(adjusted[::-1])[::-1], 1.0)
    return out


def reach(acting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """reach[m, n]: steps from cause to effect of ``acting`` [effect, cause] lead from n to m."""
    out = acting.copy()
    for middle in range(len(out)):
        out |= np.outer(out[:, middle], out[middle])
    return out


def strengths(
    A: FloatArray, B: FloatArray, observation: FloatArray, state_slices: tuple[slice, ...],
    input_slices: tuple[slice, ...],
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Root mean square of m's whitened measurements for white inputs at n: in total, and with only n and m alive."""
    count = len(state_slices)
    total, direct = np.full((count, count), np.nan), np.full((count, count), np.nan)
    for n in range(count):
        drive = B[:, input_slices[n]]
        reached = _gramian(A, drive @ drive.T)
        total[:, n] = [_size(observation[:, own], reached[own, own]) for own in state_slices]
        for m in range(count):
            if m == n:
                continue
            alive = np.zeros(A.shape[0], bool)
            alive[state_slices[n]] = alive[state_slices[m]] = True
            inside, own = np.ix_(alive, alive), state_slices[m]
            whole = np.zeros_like(A)
            whole[inside] = _gramian(A[inside], (drive @ drive.T)[inside])
            direct[m, n] = _size(observation[:, own], whole[own, own])
    return total, direct


def _size(seen: FloatArray, X: FloatArray) -> float:
    return float(np.sqrt(max(np.trace(seen @ X @ seen.T), 0.0)))


def _gramian(A: FloatArray, noise: FloatArray) -> FloatArray:
    if float(np.abs(np.linalg.eigvals(A)).max()) >= 1.0 - 1e-10:
        return np.full_like(A, np.nan)
    return lyapunov(A, noise)
