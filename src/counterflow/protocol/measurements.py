"""Messages about measurements, of the methods that take one round or a few: what they say, never what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.protocol.message import Message, over


@dataclass(frozen=True)
class Request(Message):
    """Server to unit: send your sufficient message."""


@dataclass(frozen=True)
class Finished(Message):
    """Server to unit: training is over; ``converged`` tells how it ended."""

    round: int
    converged: bool


def rows_of(message: Message, spans: FloatArray, rows: int) -> NDArray[np.intp]:
    """The rows that half-open intervals (k, 2) name; ProtocolError unless these grow and lie within 0..rows."""
    edges = spans.ravel()
    whole = np.array_equal(edges, np.floor(edges)) and (np.diff(edges, prepend=-1.0) > 0).all()
    within = whole and not (edges.size and edges[-1] > rows)
    message.require(within, f"field 'spans' must hold growing intervals of 0..{rows}")
    pieces = [np.arange(int(first), int(last)) for first, last in spans]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.intp)


@dataclass(frozen=True)
class Sufficient(Message):
    """Unit to server, once: all that its measurements say about the states, and nothing else of them.

    A row in which some channels are missing sees the states in another way than one with all of them. So there are k
    patterns of presence: ``observations`` (Σ r_p, P) are their C̃_p one below the other, ``ranks`` (k,) says how many
    rows r_p each has. The first is that of all channels, whether a row has it or not; the others stand in the order in
    which rows have them. ``presence``: the pattern of every row of 0..T, as the digits of numbers in base k, eight to a
    number or as many as go into 53 bits, the first digit being the lowest; empty if there is one pattern only.
    ``values``: s[t] = C̃_p h[t] + N(0, I) of all rows one after the other, r_p numbers each. ``inputs`` (T+1, U) of all
    rows; ``A``, ``B``, ``Q``: the unit's own blocks.
    """

    A: FloatArray = field(metadata=over("states", "states"))
    B: FloatArray = field(metadata=over("states", "inputs"))
    Q: FloatArray = field(metadata=over("states", "states"))
    observations: FloatArray = field(metadata=over("seen", "states"))
    ranks: FloatArray = field(metadata=over("patterns"))
    presence: FloatArray = field(metadata=over("packed"))
    values: FloatArray = field(metadata=over("sent"))
    inputs: FloatArray = field(metadata=over("rows", "inputs"))

    @classmethod
    def from_rows(
        cls, unit: str, own: tuple[FloatArray, FloatArray, FloatArray], observations: Sequence[FloatArray],
        labels: NDArray[np.intp], values: FloatArray, inputs: FloatArray,
    ) -> Sufficient:  # fmt: skip
        """The message of rows with patterns ``labels`` (T+1,) and numbers ``values`` (T+1, r), the first r_p of each.

        ``own``: A, B and Q.

        Examples
        --------
        >>> one = np.eye(1)
        >>> numbers, inputs = np.array([[1.0], [np.nan], [3.0]]), np.zeros((3, 0))
        >>> patterns, labels = [one, np.zeros((0, 1))], np.array([0, 1, 0])  # all channels, and none
        >>> message = Sufficient.from_rows("boiler", (one, np.zeros((1, 0)), one), patterns, labels, numbers, inputs)
        >>> message.values.tolist(), message.labels.tolist(), message.numbers.ravel().tolist()
        ([1.0, 3.0], [0, 1, 0], [1.0, nan, 3.0])
        """
        ranks = np.array([len(each) for each in observations], np.float64)
        there = np.arange(values.shape[1]) < ranks[labels][:, None]
        stacked = np.ascontiguousarray(np.vstack(observations))
        return cls(unit, *own, stacked, ranks, _digits(labels, len(ranks)), values[there], np.ascontiguousarray(inputs))

    def check(self) -> None:
        (total, states), rows, kinds, ranks = self.observations.shape, len(self.inputs), len(self.ranks), self.ranks
        least = f"needs at least two rows, one state and one pattern of presence; got {rows}, {states} and {kinds}"
        self.require(rows >= 2 and states >= 1 and kinds >= 1, least)
        whole = (ranks == np.floor(ranks)).all() and (ranks >= 0).all()
        self.require(
            whole and ranks.max() <= min(ranks[0], states) and ranks.sum() == total,
            f"field 'ranks' must say how the {total} rows of 'observations' belong to patterns: at most {states} to "
            "the first, no more to the others",
        )
        symmetric = np.abs(self.Q - self.Q.T).max() <= 1e-10 * np.abs(self.Q).max() and np.diag(self.Q).min() >= 0
        self.require(symmetric, "field 'Q' must be symmetric with a diagonal that is not negative")
        numbers = 0 if kinds == 1 else -(-rows // _digits_each(kinds))
        self.require(len(self.presence) == numbers, f"field 'presence' must have shape {(numbers,)}")
        if kinds > 1:
            self._check_labels(rows, kinds)
        sent = int(ranks[self.labels].sum())
        self.require(len(self.values) == sent, f"field 'values' must have shape {(sent,)}, got {self.values.shape}")

    def _check_labels(self, rows: int, kinds: int) -> None:
        """Every pattern but the first is used, they stand in order, and there is no other way to say so."""
        self.require(kinds <= rows + 1, f"{kinds} patterns of presence are more than {rows} rows can have")
        given = self.presence
        good = (given >= 0).all() and (given < 2.0**53).all() and np.array_equal(_digits(self.labels, kinds), given)
        self.require(good, f"field 'presence' must give a pattern to each of {rows} rows by digits in base {kinds}")
        labels, silent = self.labels, self.ranks == 0
        _, first = np.unique(labels[labels > 0], return_index=True)
        in_order = len(first) == kinds - 1 and (np.diff(first) >= 0).all()
        self.require(in_order, "patterns of presence must be used, and stand in the order of their use")
        self.require(not silent[0] and silent.sum() <= 1, "of rows that say nothing there is one pattern only")

    @property
    def sizes(self) -> dict[str, int]:
        return super().sizes | ({"numbers": int(self.ranks[0])} if self.ranks.size else {})

    @property
    def by_row(self) -> FloatArray:
        return np.hstack([self.numbers, self.inputs])

    @property
    def labels(self) -> NDArray[np.intp]:
        """The pattern of every row (T+1,)."""
        rows, kinds = self.inputs.shape[0], len(self.ranks)
        if kinds == 1:
            return np.zeros(rows, np.intp)
        digits = self.presence.astype(np.int64)[:, None] // kinds ** np.arange(_digits_each(kinds)) % kinds
        return np.asarray(digits.ravel()[:rows], np.intp)

    @property
    def observation(self) -> FloatArray:
        """C̃ (r, P) of a row with all channels."""
        return self.observations[: int(self.ranks[0])]

    @property
    def patterns(self) -> FloatArray:
        """C̃_p of all patterns (k, r, P), with zeros below those that have fewer rows."""
        out = np.zeros((len(self.ranks), int(self.ranks[0]), self.observations.shape[1]))
        out[np.arange(out.shape[1]) < self.ranks[:, None]] = self.observations
        return out

    @property
    def numbers(self) -> FloatArray:
        """s of every row (T+1, r); NaN where a row has fewer."""
        out = np.full((self.inputs.shape[0], int(self.ranks[0])), np.nan)
        out[np.arange(out.shape[1]) < self.ranks[self.labels][:, None]] = self.values
        return out


def _digits_each(kinds: int) -> int:
    """How many digits in base ``kinds``, two or more, stand in one number; not so many that few bytes are many rows."""
    return min(8, int(53 / np.log2(kinds) + 1e-9))


def _digits(labels: NDArray[np.intp], kinds: int) -> FloatArray:
    """Labels below ``kinds`` as numbers, the first label being the lowest digit of the first number."""
    if kinds == 1:
        return np.zeros(0)
    each = _digits_each(kinds)
    padded = np.zeros(-(-len(labels) // each) * each, np.int64)
    padded[: len(labels)] = labels
    return np.asarray(padded.reshape(-1, each) @ kinds ** np.arange(each), np.float64)


@dataclass(frozen=True)
class Reduced(Message):
    """Unit to server, once, if it has a log and no model: its measurements reduced to a few numbers a row.

    ``values`` (n, r): coordinates of the standardised measurements in the unit's signal space, of the rows in which
    anything was measured (level, scale, basis and noise stay at the unit); ``spans`` (k, 2): those rows; ``inputs``
    (T+1, U) of all rows, in engineering units. ``patterns`` (p, r): variances of numbers that some missing channel
    leaves uncertain, zero where they are exact, -1 where nothing is known; ``runs`` (q, 2): pattern, and for how many
    rows on it holds. ``later``: its inputs act on the next row only, because a controller of its answers to a row
    within it, which would make its input look like the cause of that row.
    """

    values: FloatArray = field(metadata=over("read", "numbers"))
    spans: FloatArray = field(metadata=over("spans", "2"))
    inputs: FloatArray = field(metadata=over("rows", "inputs"))
    patterns: FloatArray = field(metadata=over("variances", "numbers"))
    runs: FloatArray = field(metadata=over("runs", "2"))
    later: bool = False

    @property
    def rows(self) -> NDArray[np.intp]:
        """Indices of the measured rows."""
        return rows_of(self, self.spans, len(self.inputs))

    @property
    def by_row(self) -> FloatArray:
        values = np.full((len(self.inputs), self.values.shape[1]), np.nan)
        values[self.rows] = self.values
        return np.hstack([values, self.inputs])

    @property
    def variance(self) -> FloatArray:
        """(n, r): of every value."""
        which, lengths = self.runs.astype(np.int64).T
        return np.asarray(np.repeat(self.patterns[which], lengths, axis=0))

    def check(self) -> None:
        rows, (count, rank) = self.inputs.shape[0], self.values.shape
        self.require(rows >= 2 and rank >= 1, f"needs two rows and one number a row, got {rows} and {rank}")
        self.require(len(self.rows) == count, f"field 'spans' must name {count} rows, as many as there are values")
        known = ((self.patterns >= 0) | (self.patterns == -1)).all()
        self.require(known, "field 'patterns' must hold variances, or -1 where nothing is known")
        which, lengths = self.runs.T
        whole = (self.runs == np.floor(self.runs)).all() and (lengths >= 1).all() and lengths.sum() == count
        named = whole and ((which >= 0) & (which < len(self.patterns))).all()
        self.require(named, f"field 'runs' must name a pattern for each of {count} rows")


@dataclass(frozen=True)
class Outline(Message):
    """Unit to server, once: all but its measurements.

    ``A``, ``B``, ``Q``: its own blocks, without rows if it has no model. ``observation`` C̃ (r, P): how its numbers see
    its states. ``inputs`` (T+1, U); ``spans`` (k, 2): rows that are there, as half-open intervals.
    """

    A: FloatArray = field(metadata=over("states?", "states?"))
    B: FloatArray = field(metadata=over("states?", "inputs"))
    Q: FloatArray = field(metadata=over("states?", "states?"))
    observation: FloatArray = field(metadata=over("numbers", "states?"))
    inputs: FloatArray = field(metadata=over("rows", "inputs"))
    spans: FloatArray = field(metadata=over("spans", "2"))

    def check(self) -> None:
        rows = len(self.inputs)
        self.require(rows >= 1, "needs at least one row of inputs")
        states = {*self.A.shape, len(self.B), *self.Q.shape, self.observation.shape[1]}
        self.require(len(states) == 1, "'A', 'B', 'Q' and 'observation' are of different numbers of states")
        rows_of(self, self.spans, rows)

    @property
    def there(self) -> NDArray[np.bool_]:
        """(T+1,) which rows are there."""
        out = np.zeros(len(self.inputs), bool)
        out[rows_of(self, self.spans, len(out))] = True
        return out


@dataclass(frozen=True)
class Basis(Message):
    """Server to unit, every round: what to project the unit's numbers on.

    ``functions`` Φ (T+1, K): signals that inputs make; no rows: those of the round before. ``centre`` (T+1, r): what is
    foreseen of the numbers; no rows: nothing. ``shape`` W (r, r): rows W (s - centre) are clipped to a ball, of radius
    ``least`` at least. None of it may depend on the unit's own measurements but through its own releases; whatever it
    is, the unit's noise is measured by what one of its rows can do to the projections.
    """

    round: int
    least: float
    functions: FloatArray = field(metadata=over("rows?", "signals"))
    centre: FloatArray = field(metadata=over("rows?", "numbers"))
    shape: FloatArray = field(metadata=over("numbers", "numbers"))

    def check(self) -> None:
        self.require(self.least >= 0, f"field 'least' must not be negative, got {self.least}")


@dataclass(frozen=True)
class Moments(Message):
    """Unit to server, every round: Z = Φᵀ s (K, r); ``noise`` (r, r): covariance of the noise in each row of Z.

    ``clipped``: share of ΦᵀΦ, at most, in rows that were clipped, told with noise; 0 if nothing is private.
    """

    round: int
    values: FloatArray = field(metadata=over("signals", "numbers"))
    noise: FloatArray = field(metadata=over("numbers", "numbers"))
    clipped: float = 0.0

    def check(self) -> None:
        self.require(0 <= self.clipped <= 1, f"field 'clipped' must be a share from 0 to 1, got {self.clipped:g}")


@dataclass(frozen=True)
class Identified(Message):
    """Server to unit: its own blocks of the system, at the level of its ``Reduced`` numbers.

    ``observation`` (r, P_m) and ``noise`` (r, r): how the numbers see its states; ``input_level`` (U_m,): where the
    system rests; ``same_row``: whether the input of row t acts on row t, not on row t+1.
    """

    same_row: bool
    A: FloatArray = field(metadata=over("order", "order"))
    B: FloatArray = field(metadata=over("order", "inputs"))
    Q: FloatArray = field(metadata=over("order", "order"))
    observation: FloatArray = field(metadata=over("numbers", "order"))
    noise: FloatArray = field(metadata=over("numbers", "numbers"))
    input_level: FloatArray = field(metadata=over("inputs"))

    def check(self) -> None:
        rank, states = self.observation.shape
        self.require(rank >= 1 and states >= 1, f"needs a number and a state, got {rank} and {states}")
