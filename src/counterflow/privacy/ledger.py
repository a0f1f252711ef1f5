"""What a unit has released, and what it may still release: a budget that outlives crashes, restarts and races.

Every release is written here, durably, before it leaves the unit. A crash in between therefore costs budget that
nobody used, and never the other way round.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow import database
from counterflow.errors import OptionError, PrivacyError, StorageError
from counterflow.privacy import accounting, ledger_file
from counterflow.privacy.accounting import Cost, worst_window
from counterflow.privacy.noise import Source

if TYPE_CHECKING:
    import sqlite3

ROUNDING = 1e-9  # relative: the whole budget can be spent although its parts are rounded
SUFFIX = ".ledger"
_LONGEST_TEXT = 1000
_COLUMNS = "id, time, what, fit, mechanism, source, start, stop, row_loss, epsilon, delta, spent, seal"


@dataclass(frozen=True)
class Entry:
    """One release: what it was, what it cost, and the ε that the unit had spent in all once it was written down.

    ``time`` is UTC in ISO 8601. ``source`` is where its noise came from.
    """

    id: int
    time: str
    what: str
    fit: str
    mechanism: str
    source: str
    cost: Cost
    spent: float

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
        }  # fmt: skip


@dataclass
class _Balance:
    """Everything spent up to entry ``last``, in a form that does not grow with every release; sums are exact."""

    last: int = 0
    seal: str = ""
    losses: dict[tuple[int, int], Fraction] = field(default_factory=dict)
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)

    def add(self, cost: Cost) -> None:
        if cost.row_loss:
            span = (cost.start, cost.stop)
            self.losses[span] = self.losses.get(span, Fraction(0)) + Fraction(cost.row_loss)
        self.epsilon += Fraction(cost.epsilon)
        self.delta += Fraction(cost.delta)

    def total(self, delta: float, window: int, more: Sequence[Cost] = ()) -> float:
        """ε at ``delta`` with ``more`` releases; infinite if no ε would do."""
        if more:
            balance = _Balance(self.last, self.seal, dict(self.losses), self.epsilon, self.delta)
            for cost in more:
                balance.add(cost)
            return balance.total(delta, window)
        try:
            merged = [Cost(*span, row_loss=float(loss)) for span, loss in self.losses.items()]
            if self.epsilon or self.delta:
                merged.append(Cost(0, 1, epsilon=float(self.epsilon), delta=float(self.delta)))
        except (OptionError, OverflowError):  # a sum that is no number, or claims of δ = 1 and more
            return math.inf
        try:
            return accounting.total_epsilon(merged, delta, window)
        except OptionError:
            if worst_window(merged, window) > accounting.LARGEST_MU**2:
                return math.inf
            raise  # so much noise that its cost cannot be told

    def room(self, epsilon: float, delta: float, window: int) -> float:
        """See ``Ledger.room``."""
        left = epsilon - float(self.epsilon), delta - float(self.delta)
        try:
            most = accounting.gaussian_mu(*left) ** 2
            spent = worst_window([Cost(*span, row_loss=float(loss)) for span, loss in self.losses.items()], window)
            return accounting.gaussian_epsilon(math.sqrt(max(most - spent, 0.0)), delta)
        except OptionError:  # nothing to speak of is left
            return 0.0


class Ledger:
    """The privacy budget (ε, δ) of one unit, and every release it was spent on.

    Made by ``create`` and ``open``, or by ``temporary`` for a budget that ends with the process. An SQLite file in
    which rows are added and never changed; check and entry are one transaction that only one process at a time can be
    in, and it is on the disk before ``spend`` returns. Entries are chained by SHA-256, so that opening a ledger detects
    an entry or a budget that was changed, removed or added by other means. The ``.head`` file beside it says which was
    the last entry, so that it is noticed if the last ones are lost together, as by an old copy of the ledger alone.

    What cannot be detected here: that all files of a ledger have been put back from an old copy; and somebody who may
    write them and computes the chain anew. Whoever administers the unit is trusted with its budget.

    Examples
    --------
    >>> from counterflow.privacy.accounting import Cost
    >>> ledger = Ledger.temporary("boiler", epsilon=1.0, delta=1e-6)
    >>> entry = ledger.spend(Cost(0, 500, epsilon=0.75), "models", fit="1", mechanism="claimed", source="seed 1")
    >>> ledger.spent, ledger.left
    (0.75, 0.25)
    """

    path: Path | None  # None: in memory
    unit: str
    epsilon: float
    delta: float
    window: int
    created: str  # UTC, ISO 8601

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        """Not for users: see ``create``, ``open`` and ``temporary``."""
        self.path = path
        self._connection: sqlite3.Connection | None = connection
        self._process = os.getpid()
        self._identity = None if path is None else ledger_file.identity(path)
        self._head = None if path is None else ledger_file.head(path)
        self._lock = threading.RLock()
        self._balance = _Balance()
        self._spent: tuple[int, float] | None = None
        with ledger_file.FORM.blaming(path):
            told = self._head.told("entries") if self._head is not None and self._head.place.exists() else None
        with self._reading() as reading:
            self._read_budget()
            self._read_new()
            if self._head is not None:
                self._head.check(reading, "entries", told)
                if not self._head.place.exists():
                    if self._balance.last:
                        raise self._changed(f"{self._head.place.name} is missing")
                    self._head.make()
            self._total()  # what cannot be accounted for is found now, not when a release waits

    @classmethod
    def create(cls, path: str | Path, unit: str, epsilon: float, delta: float, window: int = 1) -> Ledger:
        """A new ledger in a file that only its owner may read; folders are made, no file is ever overwritten.

        Parameters
        ----------
        path : such as ``ledger_path(directory, unit)``.
        epsilon, delta, window : what the unit may spend over its life, for any ``window`` consecutive measurements.
        """
        place = _place(path)
        ledger_file.make(place, _budget(unit, epsilon, delta, window))
        return cls.open(place)

    @classmethod
    def open(cls, path: str | Path, unit: str | None = None) -> Ledger:
        """An existing ledger, checked from the first entry to the last; ``unit`` refuses that of another unit."""
        place = _place(path)
        connection = ledger_file.connect(place)
        try:
            ledger = cls(connection, place)
            if unit is not None and ledger.unit != unit:
                raise StorageError(
                    f"the ledger {str(place)!r} is that of unit {ledger.unit!r}, not of {unit!r}: give the right file."
                )
        except BaseException:
            connection.close()
            raise
        return ledger

    @classmethod
    def temporary(cls, unit: str, epsilon: float, delta: float, window: int = 1) -> Ledger:
        """A ledger in memory: it guards one run, and is gone afterwards."""
        return cls(ledger_file.in_memory(_budget(unit, epsilon, delta, window)), None)

    # ---- spending

    def spend(self, cost: Cost, what: str, *, fit: str, mechanism: str, source: str) -> Entry:
        """Write a release down; only when this returns may it leave the unit.

        Parameters
        ----------
        what, fit : what is released, and for which fit.
        mechanism, source : how it is protected, and where the noise comes from (``str`` of a ``Source``).

        Raises
        ------
        PrivacyError
            It costs more than is left. Nothing is written.
        StorageError
            It could not be written. Nothing may be released.
        """
        if not isinstance(cost, Cost):
            raise OptionError(f"unit {self.unit!r}: cost must be a Cost, got {type(cost).__name__}")
        for name, text in (("what", what), ("fit", fit), ("mechanism", mechanism), ("source", source)):
            if not _is_text(text):
                raise OptionError(
                    f"unit {self.unit!r}: {name} must be printable text of 1 to {_LONGEST_TEXT} characters, "
                    f"got {text if not isinstance(text, str) else text[:40]!r}"
                )
        with self._transaction("IMMEDIATE") as connection:  # one process at a time, from the check to the commit
            self._read_new()
            spent = self._afforded([cost], what)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            numbers = (float(cost.row_loss) + 0.0, float(cost.epsilon) + 0.0, float(cost.delta) + 0.0)  # no -0.0
            content = (
                self._balance.last + 1, now, what, fit, mechanism, source, cost.start, cost.stop, *numbers, spent,
            )  # fmt: skip
            row = (*content, ledger_file.seal(self._balance.seal, content))
            connection.execute(f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        with self._lock:  # committed; if another thread was quicker, _read_new has seen this row already
            entry = _entry(content)
            if self._balance.last + 1 == entry.id:
                self._absorb(entry, row[-1])
                self._spent = (entry.id, spent)
            if self._head is not None:
                self._head.write("entries", entry.id, row[-1])
        return entry

    def require(self, costs: Sequence[Cost], what: str) -> None:
        """Refuse now, before long work begins, what ``spend`` would refuse later."""
        with self._reading():
            self._read_new()
            self._afforded(costs, what)

    # ---- looking

    @property
    def spent(self) -> float:
        """ε at the ledger's δ, for the worst ``window`` rows, over all releases."""
        with self._reading():
            self._read_new()
            return self._total()

    @property
    def left(self) -> float:
        """ε that is not spent."""
        return max(self.epsilon - self.spent, 0.0)

    @property
    def room(self) -> float:
        """The largest ε, at the ledger's δ, of one more Gaussian release of any rows that could still be spent.

        More than ``left``, because such releases add up more slowly than their ε.
        """
        with self._reading():
            self._read_new()
            return self._balance.room(self.epsilon, self.delta, self.window)

    def entries(self) -> tuple[Entry, ...]:
        """Every release, in order."""
        with self._reading() as connection:
            self._read_new()
            rows = connection.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY id").fetchall()
            return tuple(self._checked(row) for row in rows)

    # ---- life

    def close(self) -> None:
        """Let go of the file. Nothing is lost without it."""
        with self._lock, ledger_file.FORM.blaming(self.path):
            connection, self._connection = self._connection, None
            if connection is not None and self._process == os.getpid():
                connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        connection = getattr(self, "_connection", None)
        if connection is not None and self._process == os.getpid():
            with contextlib.suppress(Exception):
                connection.close()

    def __repr__(self) -> str:
        where = "in memory" if self.path is None else str(self.path)
        return f"<Ledger of {self.unit!r}: epsilon={self.epsilon:g}, delta={self.delta:g}, {where}>"

    # ---- inside

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        with self._lock, ledger_file.FORM.blaming(self.path):
            connection = self._connection
            if connection is None:
                raise StorageError(f"{ledger_file.FORM.named(self.path)} has been closed: open it again.")
            if self._process != os.getpid():
                raise StorageError(
                    f"{ledger_file.FORM.named(self.path)} was opened by another process: open it in this one, too."
                )
            if connection.in_transaction:  # _reading within _reading
                yield connection
                return
            connection.execute(f"BEGIN {kind}")
            try:
                # one that was deleted or replaced can still be written to by whoever has it open; that would be lost
                if self.path is not None and ledger_file.identity(self.path) != self._identity:
                    raise StorageError(
                        f"{ledger_file.FORM.named(self.path)} has been replaced by another file: open it again."
                    )
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                database.rollback(connection)
                raise

    def _reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return self._transaction("DEFERRED")

    def _read_budget(self) -> None:
        assert self._connection is not None
        rows = self._connection.execute(
            "SELECT unit, epsilon, delta, window_rows, created, seal FROM budget"
        ).fetchall()
        if len(rows) != 1:
            raise self._changed("it holds no budget")
        *content, seal = rows[0]
        try:
            unit, epsilon, delta, window, created = _budget(*content)
        except (OptionError, TypeError) as error:
            raise self._changed(str(error)) from None
        if content[4] != created or seal != ledger_file.seal("", [ledger_file.VERSION, *content]):
            raise self._changed("its budget is not the one it was made with")
        self.unit, self.epsilon, self.delta, self.window, self.created = unit, epsilon, delta, window, created
        self._balance.seal = seal

    def _read_new(self) -> None:
        """Take in what other processes have spent since."""
        assert self._connection is not None
        last = self._balance.last
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM entries WHERE id >= ? OR id < 1 OR typeof(id) <> 'integer' ORDER BY id", (last,)
        ).fetchall()
        if last:
            if not rows or rows[0][0] != last or rows[0][-1] != self._balance.seal:
                raise self._changed(f"entry {last} was there and is not any more")
            rows = rows[1:]
        for row in rows:
            entry = self._checked(row)
            if entry.id != self._balance.last + 1:
                raise self._changed(f"an entry is missing before number {entry.id}")
            if row[-1] != ledger_file.seal(self._balance.seal, row[:-1]):
                raise self._changed(f"entry {entry.id} is not what was written, or one before it is missing")
            self._absorb(entry, row[-1])

    def _checked(self, row: Sequence[Any]) -> Entry:
        """The entry that a row holds, if it is one."""
        kinds = (int, str, str, str, str, str, int, int, float, float, float, float, str)
        if any(type(value) is not kind for value, kind in zip(row, kinds, strict=True)):
            raise self._changed(f"entry {row[0]!r} holds values of the wrong kind")
        if not all(_is_text(text) for text in row[1:6]) or not _is_time(row[1]):
            raise self._changed(f"entry {row[0]} holds text that is none")
        if not 0 <= row[11] < math.inf:
            raise self._changed(f"entry {row[0]} says that {row[11]} was spent in all")
        try:
            return _entry(row[:-1])
        except OptionError as error:
            raise self._changed(f"entry {row[0]}: {error}") from None

    def _absorb(self, entry: Entry, seal: str) -> None:
        self._balance.add(entry.cost)
        self._balance.last, self._balance.seal = entry.id, seal

    def _total(self) -> float:
        """ε in all up to the last entry that was read."""
        if self._spent is None or self._spent[0] != self._balance.last:
            try:
                self._spent = (self._balance.last, self._balance.total(self.delta, self.window))
            except OptionError as error:
                raise self._changed(str(error)) from None
        return self._spent[1]

    def _afforded(self, costs: Sequence[Cost], what: str) -> float:
        """ε in all once these are spent; refuses what is over the budget."""
        spent = self._balance.total(self.delta, self.window, costs)
        if spent <= self.epsilon * (1 + ROUNDING):
            return spent
        before = self._total()
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
            f"epsilon={self.epsilon:g} at delta={self.delta:g}, of which {before:.6g} is spent. Nothing was released. "
            "Ask for a smaller epsilon, use rows that were not released before (Privacy.start), or let the unit's "
            "owner open a new ledger."
        )

    def _changed(self, how: str) -> StorageError:
        return ledger_file.FORM.damaged(self.path, how)


def ledger_path(directory: str | Path, unit: str) -> Path:
    """Where the ledger of a unit is in a directory of ledgers.

    >>> ledger_path("budgets", "boiler").name
    'boiler.ledger'
    """
    if not _is_text(unit) or unit.startswith(".") or "/" in unit or "\\" in unit:
        raise OptionError(f"privacy: a unit called {unit!r} can have no ledger: use a name without slashes")
    return Path(directory) / f"{unit}{SUFFIX}"


def _budget(unit: object, epsilon: object, delta: object, window: object, created: object = None) -> tuple[Any, ...]:
    """What a ledger begins with, checked."""
    if not _is_text(unit):
        raise OptionError(f"ledger: unit must be printable text of 1 to {_LONGEST_TEXT} characters, got {unit!r}")
    checked = accounting.check_budget(epsilon, delta, f"ledger of unit {unit!r}")
    if type(window) is not int or not 1 <= window < 2**40:
        raise OptionError(f"ledger of unit {unit!r}: window must be a whole number of at least 1, got {window!r}")
    if created is not None and not _is_time(created):
        raise OptionError(f"it was made at {created!r}")
    return unit, *checked, window, created or datetime.now(UTC).isoformat(timespec="seconds")


def _entry(content: Sequence[Any]) -> Entry:
    number, time, what, fit, mechanism, source, start, stop, row_loss, epsilon, delta, spent = content
    return Entry(number, time, what, fit, mechanism, source, Cost(start, stop, row_loss, epsilon, delta), spent)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_TEXT and value.isprintable()


def _is_time(value: object) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _place(path: str | Path) -> Path:
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise OptionError(f"ledger: path must be that of a file, got {path!r}")
    return Path(path).absolute()
