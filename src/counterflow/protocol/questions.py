"""Messages of questions and answers, at the level of a unit's own states."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, from_text
from counterflow.errors import ProtocolError
from counterflow.printable import NOTE
from counterflow.protocol.message import Message, over, up_to
from counterflow.records import strict_json

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
    channels: str = field(metadata=up_to(60_000))
    values: FloatArray = field(metadata=over("asked", "columns"))
    inputs: str = field(default="", metadata=up_to(100_000))

    def check(self) -> None:
        self.require(self.cause and len(self.values), "needs the name of a unit and at least one row of values")
        width = self.values.shape[1]
        good = _are_columns(self.channels, width) and len(self.columns) <= width
        self.require(good, f"'channels' must list columns of the values, got {self.channels[:80]!r}")
        names = self.input_names
        named = names is None or len(names) == len(set(names)) == width
        self.require(named, "'inputs' must name each column of the values once")

    def naming(self, names: Sequence[str]) -> Change:
        """The same with the names of its columns."""
        return replace(self, inputs=json.dumps(list(names), ensure_ascii=False))

    @property
    def input_names(self) -> tuple[str, ...] | None:
        """Names of the columns; None: they are all inputs of the unit, in order."""
        if not self.inputs:
            return None
        found = _json(self.inputs, f"{self.label}: 'inputs'")
        good = isinstance(found, list) and all(isinstance(name, str) for name in found)
        self.require(good, "'inputs' must be a list of names")
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
    the server thinks best. ``supposed``: a word by which the asking unit knows that its own controllers are to follow
    other laws in the trials of this question; ``terms``: what it says of them then, as ``Terms`` do.
    """

    kind: str
    first: int
    steps: int
    controllers: str = ""
    supposed: str = ""
    terms: str = field(default="", metadata=up_to(TERMS_LIMIT))

    def check(self) -> None:
        good = _KIND.fullmatch(self.kind) and 1 <= self.steps <= 10_000_000
        self.require(good, f"{self.kind[:40]!r} is no kind of question, or {self.steps} steps")
        known = self.controllers in WORLDS
        self.require(known, f"'controllers' is {self.controllers[:40]!r}: held or reacting are known")


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
    caveats: str = field(metadata=up_to(CAVEATS_LIMIT))
    mean: FloatArray = field(metadata=over("asked", "columns"))
    covariance: FloatArray = field(metadata=over("squares?", "columns"))
    headroom: FloatArray = field(default_factory=lambda: np.zeros((0, 3)), metadata=over("channels", "3"))

    def check(self) -> None:
        from_text(self.caveats)
        rows = self.mean.size
        self.require(len(self.covariance) in (0, rows), f"field 'covariance' needs {rows} rows, or none")

    @property
    def noted(self) -> tuple[Caveat, ...]:
        """The caveats."""
        return from_text(self.caveats)


def _nothing() -> FloatArray:
    return np.zeros((0, 0))


@dataclass(frozen=True)
class Trial(Message):
    """Server to unit: in such a world, what would your inputs be?

    K ``worlds`` stand one below the other, each with the same rows: ``lead`` rows that are settled, and from ``row`` on
    those that are asked about. ``states`` (K n, P_m) and ``inputs`` (K n, U_m), these with what controllers did in
    settled rows and what the question does in all: if ``past``, as differences from the record; else as they are,
    inputs in engineering units, and ``rest`` (1, P_m) are the states of the last recorded row. ``held`` names the
    inputs that stay as they are, as "0,2". ``foreign`` (K n, f): readings of other units that its controllers see.

    ``tried`` (K n, c): the inputs that controllers move, as they were in these states; ``response`` (K L, c P_m): what
    one of them, one higher in one row, does to the states of the L rows after it, one block of P_m for each. With them
    a unit can close its own loops, so that few rounds are needed. ``supposed``: that of the unit's own ``Ask``.
    """

    row: int
    past: bool
    lead: int
    worlds: int
    held: str = field(metadata=up_to(60_000))
    states: FloatArray = field(metadata=over("tried rows", "states"))
    inputs: FloatArray = field(metadata=over("tried rows", "inputs"))
    foreign: FloatArray = field(metadata=over("tried rows", "foreign"))
    rest: FloatArray = field(metadata=over("rest", "states"))
    tried: FloatArray = field(default_factory=_nothing, metadata=over("tried rows?", "moved"))
    response: FloatArray = field(default_factory=_nothing, metadata=over("after", "responses"))
    supposed: str = ""

    def check(self) -> None:
        rows, worlds, moved, after = len(self.states), self.worlds, self.tried.shape[1], len(self.response)
        good = 1 <= worlds <= max(rows, 1) and not rows % worlds and self.lead <= rows // worlds
        self.require(good, f"{rows} rows are not those of {worlds} worlds")
        rest = len(self.rest) == (0 if self.past else 1)
        self.require(rest, "field 'rest' holds the states of one row, or of none for the past")
        fits = len(self.tried) == (rows if moved else 0) and self.response.shape[1] == moved * self.states.shape[1]
        self.require(fits, "fields 'tried' and 'response' are of other inputs or states")
        self.require(not after % worlds, f"a response of {after} rows is not that of {worlds} worlds")
        held = _are_columns(self.held, self.inputs.shape[1])
        self.require(held, f"'held' must list columns of the inputs, got {self.held[:80]!r}")

    @property
    def held_columns(self) -> list[int]:
        """The inputs that stay as they are."""
        return [int(part) for part in self.held.split(",")] if self.held else []


@dataclass(frozen=True)
class Reaction(Message):
    """Unit to server: its inputs (K n, U_m) in the worlds of a ``Trial``, as differences or as they are, like there.

    ``trial``: between machines, the SHA-256 of the trial's bytes, so that no answer is taken for that to another one.
    """

    row: int
    worlds: int
    inputs: FloatArray = field(metadata=over("tried rows", "inputs"))
    trial: str = ""


@dataclass(frozen=True)
class Refused(Message):
    """Server to unit: there is no answer. ``error`` and ``code`` are those of ``counterflow.errors``."""

    error: str
    code: str
    reason: str = field(metadata=up_to(NOTE_LIMIT))

    def check(self) -> None:
        known = self.error in REFUSALS and self.reason
        self.require(known, f"{self.error[:40]!r} is no reason to refuse, or there is no reason")
        self.require(_CODE.fullmatch(self.code), f"{self.code[:40]!r} is no code of an error")


@dataclass(frozen=True)
class Terms(Message):
    """Unit to server, which says it back: who may ask about its inputs, and what its controllers are, as JSON."""

    text: str = field(metadata=up_to(TERMS_LIMIT))

    def check(self) -> None:
        self.require(self.text, "'text' is empty")


@dataclass(frozen=True)
class Openings(Message):
    """Unit to server: which inputs of others may I ask about? The server says it back with the answer in ``text``.

    It is a JSON object with a list of channels for every other unit; a unit that is closed to the asker has none.
    """

    text: str = field(default="", metadata=up_to(OPENINGS_LIMIT))

    @property
    def channels(self) -> dict[str, list[object]]:
        """The answer, in plain types that nobody has checked."""
        found = _json(self.text, f"{self.label}: 'text'")
        good = isinstance(found, dict) and all(isinstance(given, list) for given in found.values())
        self.require(good, "'text' must be {unit: its channels}")
        return dict(found)


def _are_columns(text: str, count: int) -> bool:
    """Whether a text lists some of so many columns, as "0,2"."""
    parts = text.split(",") if text else []
    return all(part.isascii() and part.isdigit() and len(part) < 10 and int(part) < count for part in parts)


def _json(text: str, what: str) -> Any:
    try:
        return strict_json(text)
    except ValueError:
        raise ProtocolError(f"{what} is not JSON") from None
