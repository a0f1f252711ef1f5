"""What a unit has released, and what it may still release: a budget that outlives crashes, restarts and races.

Every release is written here, durably, before it leaves the unit. A crash in between therefore costs budget that
nobody used, and never the other way round; between machines such a release is reserved first, by the digest of its
bytes, so that the same bytes are paid for once and what never left can be withdrawn by its owner.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from counterflow import sealed_log
from counterflow.errors import CounterflowError, OptionError, PrivacyError, StorageError
from counterflow.privacy import accounting
from counterflow.privacy.accounting import Balance, Cost
from counterflow.privacy.noise import Source
from counterflow.privacy.stretch import Piece, Placed, RowRange
from counterflow.sealed_log import DatabaseSchema, Row, SealedLogs

ROUNDING = 1e-9  # relative: the whole budget can be spent although its parts are rounded
SUFFIX = ".ledger"
SCHEMA = DatabaseSchema(
    "ledger", 0x4346_4C47, 4, {"entries": True},  # "CFLG"
    restore="Restore it from a backup that has every release, or take the budget as spent",
    give="check the path; ledgers are made by `counterflow privacy open`",
)  # fmt: skip
_LOG, _BUDGET = "entries", "budget"
_ASKED = ("unit", "epsilon", "delta", "window")
_LONGEST_TEXT = 1000
SPENT, RESERVED, RELEASED, WITHDRAWN = STATES = ("spent", "reserved", "released", "withdrawn")


class Mark(NamedTuple):
    """How far a ledger had come: its name, the number of its last entry and that one's seal."""

    ledger: str
    entry: int
    seal: str


@dataclass(frozen=True)
class Entry:
    """One release: what it was, what it cost, and the ε that the unit had spent in all once it was written down.

    ``time`` is UTC in ISO 8601. ``source`` is where its noise came from. ``state``: "spent"; or, of a release that had
    to be reserved, "reserved", "released" or "withdrawn" (which costs nothing). ``release``: SHA-256 of its bytes.
    """

    id: int
    time: str
    what: str
    fit: str
    mechanism: str
    source: str
    cost: Cost
    spent: float
    state: str = SPENT
    release: str = ""

    def __post_init__(self) -> None:
        for name in ("what", "fit", "mechanism", "source"):
            text = getattr(self, name)
            if not _is_text(text):
                raise OptionError(
                    f"ledger: {name} must be printable text of 1 to {_LONGEST_TEXT} characters, got {text!r:.40}"
                )
        if not isinstance(self.cost, Cost):
            raise OptionError(f"ledger: cost must be a Cost, got {type(self.cost).__name__}")
        digest = isinstance(self.release, str) and bool(self.release) == (self.state != SPENT)
        if not digest or not set(self.release) <= set("0123456789abcdef"):
            raise OptionError(f"ledger: release must be a digest in hexadecimal digits, got {self.release!r:.80}")
        if self.state not in STATES or not _is_time(self.time) or not 0 <= self.spent < math.inf:
            raise OptionError(f"ledger: {self.state} at {self.time}, {self.spent} in all, is no release")

    @property
    def secure(self) -> bool:
        """Whether nobody can repeat the noise: a seeded source protects nothing."""
        return self.source == str(Source())

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        return {
            "id": self.id, "time": self.time, "what": self.what, "rows": [self.cost.start, self.cost.stop],
            "row_loss": self.cost.row_loss, "epsilon": self.cost.epsilon, "delta": self.cost.delta,
            "spent": self.spent, "fit": self.fit, "mechanism": self.mechanism, "source": self.source,
            "state": self.state, "release": self.release,
        }  # fmt: skip

    @classmethod
    def from_row(cls, row: Row) -> Entry:
        """Of a sealed row, checked like any other."""
        table = {name: value for name, value in row.table.items() if name != "placed"}
        return cls(row.number - 1, state=row.kind, **{**table, "cost": Cost(*table["cost"])})


class Ledger:
    """The privacy budget (ε, δ) of one unit, and every release it was spent on.

    Made by ``create`` and ``open``, or by ``temporary`` for a budget that ends with the process. A sealed log
    (``counterflow.sealed_log``) whose first row is the budget: check and entry are one turn that only one process at a
    time can have, and it is on the disk before ``spend`` returns. Opening a ledger detects an entry or a budget that
    was changed, removed or added by other means, and the ``.head`` file beside it that the last ones are missing.

    What cannot be detected here: that all files of a ledger have been put back from an old copy (a plant finds it by
    the ``mark`` in its audit log); and somebody who may write them and computes the chain anew. Whoever administers the
    unit is trusted with its budget.

    Examples
    --------
    >>> from counterflow.privacy.accounting import Cost
    >>> ledger = Ledger.temporary("boiler", epsilon=1.0, delta=1e-6)
    >>> entry = ledger.spend(Cost(0, 500, epsilon=0.75), "models", fit="1", mechanism="claimed", source="seed 1")
    >>> ledger.spent, ledger.left
    (0.75, 0.25)
    """

    path: Path | None  # None: in memory
    name: str  # of this very ledger, not of its file
    unit: str
    epsilon: float
    delta: float
    window: int
    created: str  # UTC, ISO 8601

    def __init__(self, logs: SealedLogs, path: Path | None) -> None:
        """Not for users: see ``create``, ``open`` and ``temporary``."""
        self.path, self._logs = path, logs
        self._lock = threading.RLock()
        self._balance = Balance()
        self._last, self._seal = -1, ""  # entry that was taken in: the budget comes before the first
        self._entries: dict[int, Entry] = {}  # as they stand
        self._grid = ""  # of the rows whose place is known
        self._pieces: list[Piece] = []  # which they are
        self._reserved: dict[str, int] = {}  # entries by the digest of their bytes
        try:
            _ = self.spent  # what cannot be accounted for is found now, not when a release waits
        except BaseException as error:
            logs.close()
            raise SCHEMA.damaged(path, str(error)) if isinstance(error, OptionError) else error from None

    @classmethod
    def create(cls, path: str | Path, unit: str, epsilon: float, delta: float, window: int = 1) -> Ledger:
        """A new ledger in a file that only its owner may read; folders are made, no file is ever overwritten.

        Parameters
        ----------
        path : such as ``ledger_path(directory, unit)``.
        epsilon, delta, window : what the unit may spend over its life, for any ``window`` consecutive measurements.
        """
        place, begins = Path(path).absolute(), sealed_log.Entry(_BUDGET, _budget(unit, epsilon, delta, window))
        return cls(SealedLogs.create(place, SCHEMA, _LOG, begins), place)

    @classmethod
    def open(cls, path: str | Path, unit: str | None = None) -> Ledger:
        """An existing ledger, checked from the first entry to the last; ``unit`` refuses that of another unit."""
        place = Path(path).absolute()
        ledger = cls(SealedLogs(place, SCHEMA, make=False), place)
        if unit is not None and ledger.unit != unit:
            ledger.close()
            raise StorageError(
                f"the ledger {str(place)!r} is that of unit {ledger.unit!r}, not of {unit!r}: give the right file."
            )
        return ledger

    @classmethod
    def temporary(cls, unit: str, epsilon: float, delta: float, window: int = 1) -> Ledger:
        """A ledger in memory: it guards one run, and is gone afterwards."""
        logs = SealedLogs(None, SCHEMA)
        logs.append(_LOG, sealed_log.Entry(_BUDGET, _budget(unit, epsilon, delta, window)))
        return cls(logs, None)

    # ---- spending

    def spend(
        self, cost: Cost, what: str, *, fit: str, mechanism: str, source: str, rows: RowRange | None = None,
        release: str = "",
    ) -> Entry:  # fmt: skip
        """Write a release down; only when this returns may it leave the unit.

        Parameters
        ----------
        what, fit : what is released, and for which fit.
        mechanism, source : how it is protected, and where the noise comes from (``str`` of a ``Source``).
        rows : which they are, as their owner knows it; None: as ``cost`` says.
        release : SHA-256 of bytes that may still not leave: it is reserved until ``settle`` says what became of it,
            and the same bytes are charged once.

        Raises
        ------
        PrivacyError
            It costs more than is left. Nothing is written.
        StorageError
            It could not be written. Nothing may be released.
        """
        if rows is not None and rows.grid and self.path is not None:
            rows.tags(self._key)  # takes seconds for millions of rows, in which others may spend
        entry = Entry(0, _now(), what, fit, mechanism, source, cost, 0.0, RESERVED if release else SPENT, release)
        with self._turn():
            known = self._reservation(release)
            if known is not None and known.state != WITHDRAWN:
                return known
            place = self._placed(rows)
            moved = _moved(cost, place)
            piece = None if place is None else place.piece
            grid = "" if rows is None else rows.grid
            return self._write(replace(entry, cost=moved, spent=self._afforded([moved], what)), grid, piece)

    def settle(self, release: str, state: str, note: str) -> Entry:
        """Say what became of a reservation: "released", or "withdrawn", which gives its cost back.

        Only for bytes that are known not to have left may a reservation be withdrawn; who owns the budget decides.
        """
        if state not in (RELEASED, WITHDRAWN):
            raise OptionError(f"unit {self.unit!r}: a reservation is 'released' or 'withdrawn'")
        with self._turn():
            entry = self._reservation(release)
            if entry is None or entry.state not in (state, RESERVED):
                told = "unknown" if entry is None else entry.state
                raise PrivacyError(
                    f"unit {self.unit!r}: the release {release[:12]} is {told}, and cannot be {state}. See counterflow "
                    f"privacy ledger {self.path or ''}",
                    code="settled",
                )
            if entry.state == RESERVED:
                back = [entry.cost] if state == WITHDRAWN else []
                spent = self._balance.total(self.delta, self.window, less=back)
                nothing = Cost(entry.cost.start, entry.cost.stop)
                self._write(replace(entry, time=_now(), what=note, cost=nothing, spent=spent, state=state))
        with self._current():
            return self._entries[self._reserved[release]]

    def require(self, costs: Sequence[Cost], what: str, rows: RowRange | None = None) -> None:
        """Refuse now, before long work begins, what ``spend`` would refuse later."""
        with self._current():
            place = self._placed(rows)
            self._afforded([_moved(cost, place) for cost in costs], what)

    def _write(self, entry: Entry, grid: str = "", piece: Piece | None = None) -> Entry:
        """Add a row inside the turn; it is taken in once that is over."""
        table: dict[str, Any] = {**vars(entry), "cost": [*vars(entry.cost).values()]}
        del table["id"], table["state"]
        tags = []
        if piece is not None:
            table["placed"], tags = [grid, piece.first], [piece.tags.astype("<u8").tobytes()]
        return Entry.from_row(self._logs.append(_LOG, sealed_log.Entry(entry.state, table, tags)))

    def _placed(self, rows: RowRange | None) -> Placed | None:
        """Which rows these are, by what was released before; None: nobody but the cost says it."""
        return None if rows is None or self.path is None else rows.placed(self._key, self._grid, self._pieces)

    # ---- looking

    @property
    def spent(self) -> float:
        """ε at the ledger's δ, for the worst ``window`` rows, over all releases."""
        with self._current():
            return self._balance.total(self.delta, self.window)

    @property
    def left(self) -> float:
        """ε that is not spent."""
        return max(self.epsilon - self.spent, 0.0)

    @property
    def room(self) -> float:
        """The largest ε, at the ledger's δ, of one more Gaussian release of any rows that could still be spent.

        More than ``left``, because such releases add up more slowly than their ε.
        """
        with self._current():
            epsilon, delta = self._balance.claimed
            try:
                most = accounting.gaussian_mu(self.epsilon - epsilon, self.delta - delta) ** 2
                left = max(most - self._balance.worst_window(self.window), 0.0)
                return accounting.gaussian_epsilon(math.sqrt(left), self.delta)
            except OptionError:  # nothing to speak of is left
                return 0.0

    def entries(self) -> tuple[Entry, ...]:
        """Every release, in order, as it stands."""
        with self._current():
            return tuple(self._entries.values())

    def reservations(self) -> tuple[Entry, ...]:
        """Those that are not settled."""
        return tuple(entry for entry in self.entries() if entry.state == RESERVED)

    def _reservation(self, release: str) -> Entry | None:
        return self._entries[self._reserved[release]] if release in self._reserved else None

    @property
    def mark(self) -> Mark:
        """How far it has come; whoever keeps it elsewhere can tell an old copy by ``holds``."""
        with self._current():
            return Mark(self.name, self._last, self._seal)

    def holds(self, mark: Mark) -> bool:
        """Whether this ledger has come at least so far; also if the mark is that of another ledger."""
        if mark.ledger != self.name or not mark.entry:
            return True
        row = next(self._logs.rows(_LOG, mark.entry), None)
        return row is not None and row.seal == mark.seal

    # ---- life

    def close(self) -> None:
        """Let go of the file. Nothing is lost without it."""
        self._logs.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"<Ledger of {self.unit!r}: epsilon={self.epsilon:g}, delta={self.delta:g}, {where}>"

    # ---- inside

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Inside, all that any process has spent is taken in."""
        with self._lock:
            for row in self._logs.rows(_LOG, self._last + 1):
                self._absorb(row)
            if self._last < 0:
                raise SCHEMA.damaged(self.path, "it holds no budget")
            yield

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One process at a time, from the check to the commit."""
        with self._lock, self._logs.turn(), self._current():
            yield

    def _absorb(self, row: Row) -> None:
        """Take in a row; only what ``create``, ``spend`` and ``settle`` write has the form of one."""
        try:
            if self._last < 0:
                if row.kind != _BUDGET or row.table != _budget(**row.table):
                    raise ValueError("it does not begin with a budget")
                self._key, self.created = bytes.fromhex(row.table["secret"]), row.table["created"]
                self.name = row.seal[:16]
                self.unit, self.epsilon, self.delta, self.window = (row.table[name] for name in _ASKED)
            else:
                self._count(Entry.from_row(row))
            if row.pieces:
                grid, first = row.table["placed"]
                self._grid = self._grid or str(grid)
                self._pieces.append(Piece(int(first), np.frombuffer(row.pieces[0], "<u8")))
        except (CounterflowError, KeyError, TypeError, ValueError) as error:
            raise SCHEMA.damaged(self.path, f"entry {row.number - 1} does not hold a release ({error})") from None
        self._last, self._seal = row.number - 1, row.seal

    def _count(self, entry: Entry) -> None:
        if entry.state in (SPENT, RESERVED):
            self._balance.add(entry.cost)
            self._entries[entry.id] = entry
            if entry.state == RESERVED:
                self._reserved[entry.release] = entry.id
            return
        before = self._reservation(entry.release)
        if before is None or before.state != RESERVED:
            raise ValueError("it settles what was not reserved")
        if entry.state == WITHDRAWN:
            self._balance.add(before.cost, -1)
        self._entries[before.id] = replace(before, state=entry.state)

    def _afforded(self, costs: Sequence[Cost], what: str) -> float:
        """ε in all once these are spent; refuses what is over the budget."""
        spent = self._balance.total(self.delta, self.window, costs)
        if spent <= self.epsilon * (1 + ROUNDING):
            return spent
        first, last = min((cost.start for cost in costs), default=0), max((cost.stop for cost in costs), default=1) - 1
        rows = "rows that may be any" if (first, last + 1) == accounting.ANY_ROWS else f"rows {first} to {last}"
        asked = (
            f"bring epsilon to {spent:.6g}"
            if math.isfinite(spent)
            else "be more than any epsilon can promise (its claims use up delta, or its noise is next to nothing)"
        )
        place = "" if self.path is None else f" ({self.path})"
        raise PrivacyError(
            f"unit {self.unit!r}: {what} of {rows} would {asked}, but the budget{place} is "
            f"epsilon={self.epsilon:g} at delta={self.delta:g}, of which {self.spent:.6g} is spent. Nothing was "
            "released. Ask for a smaller epsilon, use rows that were not released before, or let the unit's owner open "
            "a new ledger.",
            code="budget",
        )


def ledger_path(directory: str | Path, unit: str) -> Path:
    """Where the ledger of a unit is in a directory of ledgers.

    >>> ledger_path("budgets", "boiler").name
    'boiler.ledger'
    """
    if not _is_text(unit) or unit.startswith(".") or "/" in unit or "\\" in unit:
        raise OptionError(f"privacy: a unit called {unit!r} can have no ledger: use a name without slashes")
    return Path(directory) / f"{unit}{SUFFIX}"


def _budget(
    unit: object, epsilon: object, delta: object, window: object, created: object = None, secret: str = ""
) -> dict[str, Any]:
    """What a ledger begins with, checked."""
    if not _is_text(unit):
        raise OptionError(f"ledger: unit must be printable text of 1 to {_LONGEST_TEXT} characters, got {unit!r}")
    epsilon, delta = accounting.check_budget(epsilon, delta, f"ledger of unit {unit!r}")
    if type(window) is not int or not 1 <= window < 2**40:
        raise OptionError(f"ledger of unit {unit!r}: window must be a whole number of at least 1, got {window!r}")
    if created is not None and not _is_time(created):
        raise OptionError(f"it was made at {created!r}")
    plain = {"unit": unit, "epsilon": epsilon, "delta": delta, "window": window, "created": created or _now()}
    return {**plain, "secret": secret or secrets.token_hex(32)}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _moved(cost: Cost, place: Placed | None) -> Cost:
    return cost if place is None else replace(cost, start=place.start, stop=place.stop)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable()


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False
