"""What crosses between a unit and the server: frozen messages, checked when they are built.

A message holds text, numbers and float64 arrays, nothing else. Arrays that run over time have one row for every
t = 1..T (time first); the row of ``refined`` and ``inputs`` is t-1, the row of ``predicted`` is t, as in the sums of
the paper. Measurements, output matrices and measurement noise have no message to travel in.

Published training, one unit's side of the conversation::

    server -> unit    Plan              what is learned and which gradients will come
    unit -> server    Introduction      A_mm, B_mm, refined states, inputs          (once; Algorithm 1, line 16)
    unit -> server    AugmentedStates   h_a and phi; with a refined target ĥ_a, too (every round)
    server -> unit    StateGradients    dL/dh_a and dL/dĥ_a                         (every round)
    unit -> server    Settled           my parameters are stationary                (conjugate solver only)
    server -> unit    Finished

Published training with the paper's privacy: instead of Introduction and AugmentedStates::

    unit -> server    PerturbedStates   all four parts of the paper's message, clipped and noised   (every round)

Sufficient messages, the default method, one round::

    server -> unit    Request
    unit -> server    Sufficient        compressed measurements, inputs, local blocks
    server -> unit    Finished

Moments: projections of the measurements on what all inputs did, in a few rounds if they are private::

    server -> unit    Request
    unit -> server    Outline           inputs, which rows are there, local blocks where there are any
    server -> unit    Basis             signals to project on, and what is foreseen of the unit's numbers  (every round)
    unit -> server    Moments           the projections, clipped and noised if they are private            (every round)
    server -> unit    Identified        of units without models: their own blocks of the system
    server -> unit    Finished

Logs without models, one round::

    server -> unit    Request
    unit -> server    Reduced           its measurements in a basis of their own signal space, inputs
    server -> unit    Identified        the unit's own blocks of the system that the server has found
    server -> unit    Finished

Questions, from a unit about its own outputs::

    unit -> server    Terms             who may ask about my inputs                 (between machines, when they change)
    unit -> server    Openings          whose inputs may I ask about?               (between machines; said back)
    unit -> server    Change            what another unit would do (any number of them)
    unit -> server    Ask               what do I want to know of it
    server -> unit    Trial             a world that the server tries: what would your controllers do in it?
    unit -> server    Reaction          what my inputs would be                     (both any number of times)
    server -> unit    Answer            my own states' part of the answer, never anybody's measurements
    server -> unit    Refused           instead of answers: why there are none
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, from_text
from counterflow.errors import ProtocolError
from counterflow.printable import NOTE, checked
from counterflow.records import hints, strict_json

NAME_LIMIT = 100
NOTE_LIMIT = NOTE  # characters of a refusal
CAVEATS_LIMIT = 40_000  # characters of what an answer must be read with
TERMS_LIMIT = 30_000
OPENINGS_LIMIT = 600_000
NO_LIMIT = 1e300
HELD, REACTING = "held", "reacting"  # worlds in which inputs that controllers move stay, or answer
WORLDS = ("", HELD, REACTING)
_KIND = re.compile(r"[a-z]{1,40}")
_CODE = re.compile(r"[a-z][a-z._-]{0,39}")
REFUSALS = (
    *("UnidentifiedError", "UnstableError", "UnknownNameError", "DataError", "OptionError", "PrivacyError"),
    *("ProtocolError", "CounterflowError"),
)


MATRIX = MappingProxyType({"rank": 2})
VECTOR = MappingProxyType({"rank": 1})
_SCHEMAS: dict[str, dict[str, tuple[type, int]]] = {}


def schema(kind: type[Message]) -> dict[str, tuple[type, int]]:
    """Field name -> (type, rank) of a message class; the rank of a plain number or text is -1."""
    if kind.__name__ not in _SCHEMAS:
        rank = {entry.name: int(entry.metadata.get("rank", -1)) for entry in fields(kind)}
        _SCHEMAS[kind.__name__] = {
            name: (hint if rank[name] < 0 else np.ndarray, rank[name]) for name, hint in hints(kind).items()
        }
    return _SCHEMAS[kind.__name__]


@dataclass(frozen=True)
class Message:
    """Base of all messages. ``unit`` is the unit that sends it, or that it is meant for."""

    unit: str
    rows_fields: ClassVar[tuple[str, ...]] = ()
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({})  # longest text of fields that are no names

    def __post_init__(self) -> None:
        for name, (kind, rank) in schema(type(self)).items():
            value = getattr(self, name)
            if rank < 0:
                self._check_scalar(name, value, kind)
            else:
                object.__setattr__(self, name, self._checked_array(name, value, rank))
        if not self.unit:
            raise ProtocolError(f"{self.label}: a unit's name has at least one character")
        self.check()

    @property
    def label(self) -> str:
        return f"message {type(self).__name__} of unit {self.unit!r}"

    def check(self) -> None:
        """Relations between the fields; a subclass raises ProtocolError if one is broken."""

    def _check_scalar(self, name: str, value: object, kind: type) -> None:
        good = type(value) is kind
        if good and isinstance(value, float):
            good = bool(np.isfinite(value))
        if good and isinstance(value, int) and not isinstance(value, bool):
            good = 0 <= value < 2**53
        if good and isinstance(value, str):
            longest = self.texts.get(name, NAME_LIMIT)
            whose = f"message {type(self).__name__}" if name == "unit" else self.label
            checked(value, f"{whose}: field {name!r}", longest, composed=False)
        if not good:
            raise ProtocolError(
                f"message {type(self).__name__}: field {name!r} must be a finite {kind.__name__}, got {value!r:.80}"
            )

    def _checked_array(self, name: str, value: object, rank: int) -> FloatArray:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64 or value.ndim != rank:
            got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ProtocolError(f"{self.label}: field {name!r} must be float64 with {rank} axes, got {got}")
        with np.errstate(all="ignore"):  # the sum is not finite if an entry is not; else it may have overflowed
            suspicious = not np.isfinite(value.sum())
        if suspicious and not np.isfinite(value).all():
            bad = np.argwhere(~np.isfinite(value))[0]
            raise ProtocolError(f"{self.label}: field {name!r} has a value that is not finite at {tuple(bad.tolist())}")
        if value.flags.writeable:
            value = value.view()
            value.flags.writeable = False
        return value

    def _expect(self, **shapes: tuple[int, ...]) -> None:
        for name, shape in shapes.items():
            got = getattr(self, name).shape
            if got != shape:
                raise ProtocolError(f"{self.label}: field {name!r} must have shape {shape}, got {got}")


@dataclass(frozen=True)
class Plan(Message):
    """Server to unit, first of all: what the unit is going to learn.

    ``offset``: whether phi is learned (not in FedGC). ``refined_gradient``: whether dL/dĥ_a will be sent (the
    published Algorithm 1 sends only dL/dh_a). ``conjugate``: whether training starts with the conjugate solver, for a
    loss with ``penalty``/2 |D|²; at theta = phi = 0 a unit then knows its whole gradient, and need not ask for it.
    ``refined_target``: whether the server's residual has ĥ_a[t] in it, where the paper has h_a[t].
    """

    offset: bool
    refined_gradient: bool
    conjugate: bool
    penalty: float
    refined_target: bool = False


@dataclass(frozen=True)
class Introduction(Message):
    """Unit to server, once: local blocks, refined states ĥ_c[t-1] and inputs u[t-1]."""

    A: FloatArray = field(metadata=MATRIX)
    B: FloatArray = field(metadata=MATRIX)
    refined: FloatArray = field(metadata=MATRIX)
    inputs: FloatArray = field(metadata=MATRIX)
    rows_fields: ClassVar[tuple[str, ...]] = ("refined", "inputs")

    def check(self) -> None:
        rows, states = self.refined.shape
        if rows < 1 or states < 1:
            raise ProtocolError(f"{self.label}: 'refined' needs at least one row and one state, got {(rows, states)}")
        self._expect(A=(states, states), B=(states, self.inputs.shape[1]), inputs=(rows, self.inputs.shape[1]))


@dataclass(frozen=True)
class AugmentedStates(Message):
    """Unit to server, every round: h_a[t] and phi.

    From them the server forms A_mm(ĥ_a - ĥ_c) = h_a - phi - A_mm ĥ_c - B_mm u.

    ``gradient_norm``: norm of the gradient in (theta, phi) at the previous round's point (0 in round 0). ``refined``:
    ĥ_a[t], row t as in ``predicted``; without rows unless the plan makes it the server's target.
    """

    round: int
    gradient_norm: float
    predicted: FloatArray = field(metadata=MATRIX)
    offset: FloatArray = field(metadata=VECTOR)
    refined: FloatArray = field(default_factory=lambda: np.zeros((0, 0)), metadata=MATRIX)
    rows_fields: ClassVar[tuple[str, ...]] = ("predicted", "refined")

    def check(self) -> None:
        self._expect(offset=(self.predicted.shape[1],))
        if self.refined.size:
            self._expect(refined=self.predicted.shape)


@dataclass(frozen=True)
class PerturbedStates(Message):
    """Unit to server, every round of a private training: [ĥ_c[t-1]; ĥ_a[t-1]; h_a[t]; u[t-1]], clipped and noised.

    ``contraction`` L_m and ``decay`` β_m: how a measurement fades in h_a; ``gain`` |C_mm|; ``bound`` R_max of the
    unit's measurements and inputs; ``clip``: length to which rows were cut; ``noise``: its standard deviation.

    The plain numbers and the local blocks are not noised. ``contraction``, ``clip`` and ``noise`` are functions of
    theta, and theta of the measurements: a gap of the published analysis, which needs them at the server.
    """

    round: int
    contraction: float
    decay: float
    gain: float
    bound: float
    clip: float
    noise: float
    A: FloatArray = field(metadata=MATRIX)
    B: FloatArray = field(metadata=MATRIX)
    refined: FloatArray = field(metadata=MATRIX)
    augmented: FloatArray = field(metadata=MATRIX)
    predicted: FloatArray = field(metadata=MATRIX)
    inputs: FloatArray = field(metadata=MATRIX)
    rows_fields: ClassVar[tuple[str, ...]] = ("refined", "augmented", "predicted", "inputs")

    def check(self) -> None:
        rows, states = self.refined.shape
        if rows < 1 or states < 1:
            raise ProtocolError(f"{self.label}: 'refined' needs at least one row and one state, got {(rows, states)}")
        self._expect(A=(states, states), B=(states, self.inputs.shape[1]), augmented=(rows, states))
        self._expect(predicted=(rows, states), inputs=(rows, self.inputs.shape[1]))
        for name in ("contraction", "gain", "bound", "clip", "noise"):
            if getattr(self, name) < 0:
                raise ProtocolError(f"{self.label}: field {name!r} must not be negative, got {getattr(self, name)}")
        if not 0 < self.decay < 1:
            raise ProtocolError(f"{self.label}: field 'decay' must lie between 0 and 1, got {self.decay}")


@dataclass(frozen=True)
class StateGradients(Message):
    """Server to unit, every round: gradients of its loss with respect to the augmented states.

    ``predicted``: in row t of the server's target, h_a[t] (or ĥ_a[t], if the plan says so); ``refined``: in ĥ_a[t-1],
    through D.

    The penalty on disentanglement in that loss is ``penalty``/2 |D|²; with ``implicit`` the unit takes it implicitly
    (IMEX). ``conjugate`` says which of the two update rules the unit shall apply; after the ``last`` gradients no
    states are awaited. ``refined`` has no rows if it is not sent.
    """

    round: int
    last: bool
    conjugate: bool
    penalty: float
    implicit: bool
    predicted: FloatArray = field(metadata=MATRIX)
    refined: FloatArray = field(metadata=MATRIX)
    rows_fields: ClassVar[tuple[str, ...]] = ("predicted", "refined")

    def check(self) -> None:
        rows, states = self.predicted.shape
        self._expect(refined=(rows if self.refined.shape[0] else 0, states))
        if self.penalty < 0:
            raise ProtocolError(f"{self.label}: field 'penalty' must not be negative, got {self.penalty}")


@dataclass(frozen=True)
class Settled(Message):
    """Unit to server: the point of my last AugmentedStates is stationary to the asked tolerance.

    ``gradient``: norm of the gradient there, relative to that at the unit's starting point.
    """

    round: int
    gradient: float


@dataclass(frozen=True)
class Finished(Message):
    """Server to unit: training is over; ``converged`` tells how it ended."""

    round: int
    converged: bool


@dataclass(frozen=True)
class Request(Message):
    """Server to unit: send your sufficient message."""


class _Measured(Message):
    """A message with values (n, r) of some rows only, which ``spans`` (k, 2) names as half-open intervals."""

    values: FloatArray
    spans: FloatArray

    def _check_spans(self, rows: int) -> None:
        """Growing intervals of 0..rows that hold as many rows as there are values."""
        self._expect(spans=(self.spans.shape[0], 2))
        edges, count = self.spans.ravel(), self.values.shape[0]
        whole = np.array_equal(edges, np.floor(edges)) and (np.diff(edges, prepend=-1.0) > 0).all()
        lengths = self.spans[:, 1] - self.spans[:, 0]
        if not whole or (edges.size and edges[-1] > rows) or lengths.sum() != count:
            raise ProtocolError(
                f"{self.label}: field 'spans' must hold growing intervals of 0..{rows} with {count} rows"
            )

    @property
    def rows(self) -> NDArray[np.intp]:
        """Indices of the measured rows."""
        pieces = [np.arange(int(a), int(b)) for a, b in self.spans]
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

    A: FloatArray = field(metadata=MATRIX)
    B: FloatArray = field(metadata=MATRIX)
    Q: FloatArray = field(metadata=MATRIX)
    observations: FloatArray = field(metadata=MATRIX)
    ranks: FloatArray = field(metadata=VECTOR)
    presence: FloatArray = field(metadata=VECTOR)
    values: FloatArray = field(metadata=VECTOR)
    inputs: FloatArray = field(metadata=MATRIX)

    @classmethod
    def of(
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
        >>> message = Sufficient.of("boiler", (one, np.zeros((1, 0)), one), patterns, labels, numbers, inputs)
        >>> message.values.tolist(), message.labels.tolist(), message.numbers.ravel().tolist()
        ([1.0, 3.0], [0, 1, 0], [1.0, nan, 3.0])
        """
        ranks = np.array([len(each) for each in observations], np.float64)
        there = np.arange(values.shape[1]) < ranks[labels][:, None]
        stacked = np.ascontiguousarray(np.vstack(observations))
        return cls(unit, *own, stacked, ranks, _digits(labels, len(ranks)), values[there], np.ascontiguousarray(inputs))

    def check(self) -> None:
        (total, states), (rows, inputs), kinds = self.observations.shape, self.inputs.shape, len(self.ranks)
        if rows < 2 or states < 1 or kinds < 1:
            raise ProtocolError(
                f"{self.label}: needs at least two rows, one state and one pattern of presence; got {rows} rows, "
                f"{states} states, {kinds} patterns"
            )
        ranks = self.ranks
        whole = bool((ranks == np.floor(ranks)).all() and (ranks >= 0).all())
        if not whole or ranks.max() > min(ranks[0], states) or ranks.sum() != total:
            raise ProtocolError(
                f"{self.label}: field 'ranks' must say how the {total} rows of 'observations' belong to patterns: at "
                f"most {states} to the first, no more to the others"
            )
        self._expect(A=(states, states), B=(states, inputs), Q=(states, states))
        if np.abs(self.Q - self.Q.T).max() > 1e-10 * np.abs(self.Q).max() or np.diag(self.Q).min() < 0:
            raise ProtocolError(f"{self.label}: field 'Q' must be symmetric with a diagonal that is not negative")
        if kinds == 1:
            self._expect(presence=(0,), values=(rows * int(ranks[0]),))
            return
        labels = self._checked_labels(rows, kinds)
        self._expect(values=(int(ranks[labels].sum()),))

    def _checked_labels(self, rows: int, kinds: int) -> NDArray[np.intp]:
        """Every pattern but the first is used, they stand in order, and there is no other way to say so."""
        if kinds > rows + 1:
            raise ProtocolError(f"{self.label}: {kinds} patterns of presence are more than {rows} rows can have")
        self._expect(presence=(-(-rows // _digits_each(kinds)),))
        given = self.presence
        good = bool((given >= 0).all() and (given < 2.0**53).all())
        labels = self.labels if good else np.zeros(0, np.intp)
        if not good or not np.array_equal(_digits(labels, kinds), given):
            raise ProtocolError(
                f"{self.label}: field 'presence' must give a pattern to each of {rows} rows by digits in base {kinds}"
            )
        _, first = np.unique(labels[labels > 0], return_index=True)
        if len(first) != kinds - 1 or (np.diff(first) < 0).any():
            raise ProtocolError(f"{self.label}: patterns of presence must be used, and stand in the order of their use")
        if self.ranks[0] == 0 or (self.ranks[1:] == 0).sum() > 1:
            raise ProtocolError(f"{self.label}: of rows that say nothing there is one pattern only")
        return labels

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
class Reduced(_Measured):
    """Unit to server, once, if it has a log and no model: its measurements reduced to a few numbers a row.

    ``values`` (n, r): coordinates of the standardised measurements in the unit's signal space, of the rows in which
    anything was measured (level, scale, basis and noise stay at the unit); ``spans`` (k, 2): those rows; ``inputs``
    (T+1, U) of all rows, in engineering units. ``patterns`` (p, r): variances of numbers that some missing channel
    leaves uncertain, zero where they are exact, -1 where nothing is known; ``runs`` (q, 2): pattern, and for how many
    rows on it holds.
    """

    values: FloatArray = field(metadata=MATRIX)
    spans: FloatArray = field(metadata=MATRIX)
    inputs: FloatArray = field(metadata=MATRIX)
    patterns: FloatArray = field(metadata=MATRIX)
    runs: FloatArray = field(metadata=MATRIX)

    @property
    def variance(self) -> FloatArray:
        """(n, r): of every value."""
        which, lengths = self.runs.astype(np.int64).T
        return np.asarray(np.repeat(self.patterns[which], lengths, axis=0))

    def check(self) -> None:
        rows, (count, rank) = self.inputs.shape[0], self.values.shape
        if rows < 2 or rank < 1:
            raise ProtocolError(f"{self.label}: needs two rows and one number a row, got {rows} rows, {rank} numbers")
        self._check_spans(rows)
        self._expect(patterns=(len(self.patterns), rank), runs=(len(self.runs), 2))
        if not ((self.patterns >= 0) | (self.patterns == -1)).all():
            raise ProtocolError(f"{self.label}: field 'patterns' must hold variances, or -1 where nothing is known")
        which, lengths = self.runs.T
        whole = (self.runs == np.floor(self.runs)).all() and (lengths >= 1).all() and lengths.sum() == count
        if not (whole and ((which >= 0) & (which < len(self.patterns))).all()):
            raise ProtocolError(f"{self.label}: field 'runs' must name a pattern for each of {count} rows")


@dataclass(frozen=True)
class Outline(Message):
    """Unit to server, once: all but its measurements.

    ``A``, ``B``, ``Q``: its own blocks, without rows if it has no model. ``observation`` C̃ (r, P): how its numbers see
    its states. ``inputs`` (T+1, U); ``spans`` (k, 2): rows that are there, as half-open intervals.
    """

    A: FloatArray = field(metadata=MATRIX)
    B: FloatArray = field(metadata=MATRIX)
    Q: FloatArray = field(metadata=MATRIX)
    observation: FloatArray = field(metadata=MATRIX)
    inputs: FloatArray = field(metadata=MATRIX)
    spans: FloatArray = field(metadata=MATRIX)

    def check(self) -> None:
        states, (rows, inputs) = self.A.shape[0], self.inputs.shape
        self._expect(A=(states, states), B=(states, inputs), Q=(states, states))
        self._expect(observation=(self.observation.shape[0], states), spans=(self.spans.shape[0], 2))
        edges = self.spans.ravel()
        whole = np.array_equal(edges, np.floor(edges)) and (np.diff(edges, prepend=-1.0) > 0).all()
        if rows < 1 or not whole or (edges.size and edges[-1] > rows):
            raise ProtocolError(f"{self.label}: field 'spans' must hold growing intervals of 0..{rows}")

    @property
    def there(self) -> NDArray[np.bool_]:
        """(T+1,) which rows are there."""
        out = np.zeros(len(self.inputs), bool)
        for first, last in self.spans:
            out[int(first) : int(last)] = True
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
    functions: FloatArray = field(metadata=MATRIX)
    centre: FloatArray = field(metadata=MATRIX)
    shape: FloatArray = field(metadata=MATRIX)

    def check(self) -> None:
        numbers = self.shape.shape[0]
        self._expect(shape=(numbers, numbers), centre=(self.centre.shape[0], numbers))
        if not self.least >= 0:
            raise ProtocolError(f"{self.label}: field 'least' must not be negative, got {self.least}")


@dataclass(frozen=True)
class Moments(Message):
    """Unit to server, every round: Z = Φᵀ s (K, r); ``noise`` (r, r): covariance of the noise in each row of Z."""

    round: int
    values: FloatArray = field(metadata=MATRIX)
    noise: FloatArray = field(metadata=MATRIX)

    def check(self) -> None:
        numbers = self.values.shape[1]
        self._expect(noise=(numbers, numbers))


@dataclass(frozen=True)
class Identified(Message):
    """Server to unit: its own blocks of the system, at the level of its ``Reduced`` numbers.

    ``observation`` (r, P_m) and ``noise`` (r, r): how the numbers see its states; ``input_level`` (U_m,): where the
    system rests; ``same_row``: whether the input of row t acts on row t, not on row t+1.
    """

    same_row: bool
    A: FloatArray = field(metadata=MATRIX)
    B: FloatArray = field(metadata=MATRIX)
    Q: FloatArray = field(metadata=MATRIX)
    observation: FloatArray = field(metadata=MATRIX)
    noise: FloatArray = field(metadata=MATRIX)
    input_level: FloatArray = field(metadata=VECTOR)

    def check(self) -> None:
        (rank, states), inputs = self.observation.shape, self.B.shape[1]
        if rank < 1 or states < 1:
            raise ProtocolError(f"{self.label}: needs a number and a state, got {rank} and {states}")
        self._expect(A=(states, states), B=(states, inputs), Q=(states, states), noise=(rank, rank))
        self._expect(input_level=(inputs,))


@dataclass(frozen=True)
class Change(Message):
    """Unit to server: suppose that ``cause``'s inputs were changed from step or row ``first`` on.

    ``values`` (n, U_cause), one row a step, in engineering units: added to its inputs, or, if ``absolute``, in their
    place; ``channels`` names the columns meant, as "0,2" (all if empty). ``inputs``: names of the columns as JSON, from
    whoever knows some of the inputs only; empty: they are all of them, in order.

    An effect over n steps comes with n + 1 rows: the last is for inputs that act on the row they stand in. The question
    "restoration" is about the inputs that its changes name, whatever their values.
    """

    cause: str
    absolute: bool
    first: int
    channels: str
    values: FloatArray = field(metadata=MATRIX)
    inputs: str = ""
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({"channels": 60_000, "inputs": 100_000})

    def check(self) -> None:
        if not self.cause or self.values.shape[0] < 1:
            raise ProtocolError(f"{self.label}: needs the name of a unit and at least one row of values")
        parts = self.channels.split(",") if self.channels else []
        good = all(part.isascii() and part.isdigit() and int(part) < self.values.shape[1] for part in parts[:10_000])
        if not good or len(parts) > self.values.shape[1]:
            raise ProtocolError(f"{self.label}: 'channels' must list columns of the values, got {self.channels[:80]!r}")
        names = self.input_names
        if names is not None and (len(names) != self.values.shape[1] or len(set(names)) < len(names)):
            raise ProtocolError(f"{self.label}: 'inputs' must name each column of the values once")

    def naming(self, names: Sequence[str]) -> Change:
        """The same with the names of its columns."""
        return replace(self, inputs=json.dumps(list(names), ensure_ascii=False))

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """Names of the columns; None: they are all inputs of the unit, in order."""
        if not self.inputs:
            return None
        found = _json(self.inputs, f"{self.label}: 'inputs'")
        if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
            raise ProtocolError(f"{self.label}: 'inputs' must be a list of names")
        return tuple(found)

    @property
    def columns(self) -> list[int]:
        """The columns of ``values`` that are meant."""
        return [int(part) for part in self.channels.split(",")] if self.channels else list(range(self.values.shape[1]))

    @property
    def moved(self) -> list[int]:
        """The columns that this is about: adding nothing is about nothing."""
        return self.columns if self.absolute else [k for k in self.columns if self.values[:, k].any()]


@dataclass(frozen=True)
class Ask(Message):
    """Unit to server: the question, for ``steps`` steps or rows from ``first`` on; ``kind`` as in questions.registry.

    Whether there is such a kind is known where it is answered.
    ``controllers``: "held" (inputs that controllers move stay as they are), "reacting" (controllers answer), or "": as
    the server thinks best.
    """

    kind: str
    first: int
    steps: int
    controllers: str = ""

    def check(self) -> None:
        if not _KIND.fullmatch(self.kind) or not 1 <= self.steps <= 10_000_000:
            raise ProtocolError(f"{self.label}: {self.kind[:40]!r} is no kind of question, or {self.steps} steps")
        if self.controllers not in WORLDS:
            raise ProtocolError(f"{self.label}: 'controllers' is {self.controllers[:40]!r}: held or reacting are known")


@dataclass(frozen=True)
class Answer(Message):
    """Server to unit: one part of an answer, at the level of the unit's own states.

    ``share`` says whose part it is, ``caveats`` what it must be read with, as JSON text (``counterflow.caveats``).
    ``mean`` (n, P_m); ``covariance`` (n P_m, P_m), one block a row, or no rows. ``headroom``, of a restoration only: a
    row for each input that was asked about, how far it may move down and up (NO_LIMIT: any far) and the size that its
    changes are measured in.
    """

    kind: str
    share: str
    caveats: str
    mean: FloatArray = field(metadata=MATRIX)
    covariance: FloatArray = field(metadata=MATRIX)
    headroom: FloatArray = field(default_factory=lambda: np.zeros((0, 3)), metadata=MATRIX)
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({"caveats": CAVEATS_LIMIT})

    def check(self) -> None:
        from_text(self.caveats)
        rows, states = self.mean.shape
        self._expect(covariance=(rows * states if self.covariance.shape[0] else 0, states))
        self._expect(headroom=(self.headroom.shape[0], 3))

    @property
    def noted(self) -> tuple[Caveat, ...]:
        """The caveats."""
        return from_text(self.caveats)


@dataclass(frozen=True)
class Trial(Message):
    """Server to unit: in such a world, what would your inputs be?

    K ``worlds`` stand one below the other, each with the same rows: ``lead`` rows that are settled, and from ``row`` on
    those that are asked about. ``states`` (K n, P_m) and ``inputs`` (K n, U_m), these with what controllers did in
    settled rows and what the question does in all: if ``past``, as differences from the record; else as they are,
    inputs in engineering units, and ``rest`` (1, P_m) are the states of the last recorded row. ``held`` names the
    inputs that stay as they are, as "0,2". ``foreign`` (K n, f): readings of other units that its controllers see.
    """

    row: int
    past: bool
    lead: int
    worlds: int
    held: str
    states: FloatArray = field(metadata=MATRIX)
    inputs: FloatArray = field(metadata=MATRIX)
    foreign: FloatArray = field(metadata=MATRIX)
    rest: FloatArray = field(metadata=MATRIX)
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({"held": 60_000})

    def check(self) -> None:
        rows = len(self.states)
        if not 1 <= self.worlds <= max(rows, 1) or rows % self.worlds or self.lead > rows // self.worlds:
            raise ProtocolError(f"{self.label}: {rows} rows are not those of {self.worlds} worlds")
        self._expect(inputs=(rows, self.inputs.shape[1]), foreign=(rows, self.foreign.shape[1]))
        self._expect(rest=(0 if self.past else 1, self.states.shape[1]))
        parts = self.held.split(",") if self.held else []
        if not all(part.isascii() and part.isdigit() and int(part) < self.inputs.shape[1] for part in parts[:10_000]):
            raise ProtocolError(f"{self.label}: 'held' must list columns of the inputs, got {self.held[:80]!r}")

    @property
    def held_columns(self) -> list[int]:
        """The inputs that stay as they are."""
        return [int(part) for part in self.held.split(",")] if self.held else []


@dataclass(frozen=True)
class Reaction(Message):
    """Unit to server: its inputs (K n, U_m) in the worlds of a ``Trial``, as differences or as they are, like there."""

    row: int
    worlds: int
    inputs: FloatArray = field(metadata=MATRIX)


@dataclass(frozen=True)
class Refused(Message):
    """Server to unit: there is no answer. ``error`` and ``code`` are those of ``counterflow.errors``."""

    error: str
    code: str
    reason: str
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({"reason": NOTE_LIMIT})

    def check(self) -> None:
        if self.error not in REFUSALS or not self.reason:
            raise ProtocolError(f"{self.label}: {self.error[:40]!r} is no reason to refuse, or there is no reason")
        if not _CODE.fullmatch(self.code):
            raise ProtocolError(f"{self.label}: {self.code[:40]!r} is no code of an error")


@dataclass(frozen=True)
class Terms(Message):
    """Unit to server, which says it back: who may ask about its inputs, as JSON text for ``federation.policy``."""

    text: str
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({"text": TERMS_LIMIT})

    def check(self) -> None:
        if not self.text:
            raise ProtocolError(f"{self.label}: 'text' is empty")


@dataclass(frozen=True)
class Openings(Message):
    """Unit to server: which inputs of others may I ask about? The server says it back with the answer in ``text``.

    It is a JSON object with a list of channels for every other unit; a unit that is closed to the asker has none.
    """

    text: str = ""
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({"text": OPENINGS_LIMIT})

    @property
    def channels(self) -> dict[str, list[object]]:
        """The answer, in plain types that nobody has checked."""
        found = _json(self.text, f"{self.label}: 'text'")
        if not isinstance(found, dict) or not all(isinstance(given, list) for given in found.values()):
            raise ProtocolError(f"{self.label}: 'text' must be {{unit: its channels}}")
        return found


def _json(text: str, what: str) -> object:
    try:
        return strict_json(text)
    except ValueError:
        raise ProtocolError(f"{what} is not JSON") from None


KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (Plan, Introduction, AugmentedStates, StateGradients, Settled, Finished, Request, Sufficient)
}
KINDS |= {
    kind.__name__: kind
    for kind in (
        PerturbedStates,
        Reduced,
        Outline,
        Basis,
        Moments,
        Identified,
        Change,
        Ask,
        Answer,
        Refused,
        Terms,
        Openings,
        Trial,
        Reaction,
    )
}
