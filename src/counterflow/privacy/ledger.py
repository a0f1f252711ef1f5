"""What a unit has released, and what it may still release: a budget that outlives crashes, restarts and races.

Every release is written here, durably, before it leaves the unit. A crash in between therefore costs budget that
nobody used, and never the other way round; between machines such a release is reserved first, by the digest of its
bytes, so that the same bytes are paid for once and what never left can be withdrawn by its owner.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import database
from counterflow.errors import OptionError, PrivacyError, StorageError
from counterflow.privacy import accounting, ledger_file
from counterflow.privacy.accounting import Cost
from counterflow.privacy.balance import RELEASED, RESERVED, SPENT, STATES, WITHDRAWN, Balance, Entry, Mark
from counterflow.privacy.stretch import Piece, Placed, RowRange

if TYPE_CHECKING:
    import sqlite3

ROUNDING = 1e-9  # relative: the whole budget can be spent although its parts are rounded
SUFFIX = ".ledger"
_LONGEST_TEXT = 1000


class Ledger:
    """The privacy budget (ε, δ) of one unit, and every release it was spent on.

    Made by ``create`` and ``open``, or by ``temporary`` for a budget that ends with the process. An SQLite file in
    which rows are added and never changed; check and entry are one transaction that only one process at a time can be
    in, and it is on the disk before ``spend`` returns. Entries are chained by SHA-256, so that opening a ledger detects
    an entry or a budget that was changed, removed or added by other means. The ``.head`` file beside it says which was
    the last entry, so that it is noticed if the last ones are lost together, as by an old copy of the ledger alone.

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

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        """Not for users: see ``create``, ``open`` and ``temporary``."""
        self.path = path
        self._connection: sqlite3.Connection | None = connection
        self._process = os.getpid()
        self._identity = None if path is None else ledger_file.identity(path)
        self._head = None if path is None else ledger_file.head(path)
        self._lock = threading.RLock()
        self._balance = Balance()
        self._spent: tuple[int, float] | None = None
        self._grid = ""  # of the rows whose place is known
        self._reserved: dict[str, Entry] = {}  # by the digest of their bytes, as they stand
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

    def spend(
        self, cost: Cost, what: str, *, fit: str, mechanism: str, source: str, rows: RowRange | None = None
    ) -> Entry:
        """Write a release down; only when this returns may it leave the unit.

        Parameters
        ----------
        what, fit : what is released, and for which fit.
        mechanism, source : how it is protected, and where the noise comes from (``str`` of a ``Source``).
        rows : which they are, as their owner knows it; None: as ``cost`` says.

        Raises
        ------
        PrivacyError
            It costs more than is left. Nothing is written.
        StorageError
            It could not be written. Nothing may be released.
        """
        return self._charge(SPENT, cost, what, (fit, mechanism, source), rows)

    def reserve(
        self, cost: Cost, what: str, *, release: str, fit: str, mechanism: str, source: str,
        rows: RowRange | None = None,
    ) -> Entry:  # fmt: skip
        """The same for bytes (``release``: their SHA-256) that may still not leave; the same bytes are charged once."""
        if not (_is_text(release) and set(release) <= set("0123456789abcdef")):
            raise OptionError(
                f"unit {self.unit!r}: release must be a digest in hexadecimal digits, got {release!r:.80}"
            )
        return self._charge(RESERVED, cost, what, (fit, mechanism, source), rows, release)

    def settle(self, release: str, state: str, note: str) -> Entry:
        """Say what became of a reservation: "released", or "withdrawn", which gives its cost back.

        Only for bytes that are known not to have left may a reservation be withdrawn; who owns the budget decides.
        """
        if state not in (RELEASED, WITHDRAWN) or not _is_text(note):
            raise OptionError(f"unit {self.unit!r}: a reservation is 'released' or 'withdrawn', with a note in words")
        with self._transaction("IMMEDIATE"):
            self._read_new()
            entry = self._reserved.get(release)
            if entry is None or (entry.state != state and entry.state != RESERVED):
                told = "unknown" if entry is None else entry.state
                raise PrivacyError(
                    f"unit {self.unit!r}: the release {release[:12]} is {told}, and cannot be {state}. See counterflow "
                    f"privacy ledger {self.path or ''}",
                    code="settled",
                )
            if entry.state == RESERVED:
                cost = Cost(entry.cost.start, entry.cost.stop)
                back = [entry.cost] if state == WITHDRAWN else []
                spent = self._balance.total(self.delta, self.window, less=back)
                about = (entry.fit, entry.mechanism, entry.source)
                self._write(cost, note, about, spent, state, release)
        with self._lock:
            return self._reserved[release]

    def require(self, costs: Sequence[Cost], what: str, rows: RowRange | None = None) -> None:
        """Refuse now, before long work begins, what ``spend`` would refuse later."""
        with self._reading():
            self._read_new()
            place = self._placed(rows)
            self._afforded([_moved(cost, place) for cost in costs], what)

    def _charge(
        self, state: str, cost: Cost, what: str, about: tuple[str, str, str], rows: RowRange | None, release: str = ""
    ) -> Entry:
        if not isinstance(cost, Cost):
            raise OptionError(f"unit {self.unit!r}: cost must be a Cost, got {type(cost).__name__}")
        for name, text in zip(("what", "fit", "mechanism", "source"), (what, *about), strict=True):
            if not _is_text(text):
                raise OptionError(
                    f"unit {self.unit!r}: {name} must be printable text of 1 to {_LONGEST_TEXT} characters, "
                    f"got {text if not isinstance(text, str) else text[:40]!r}"
                )
        if rows is not None and rows.grid and self.path is not None:
            rows.tags(self._key)  # takes seconds for millions of rows, in which others may spend
        with self._transaction("IMMEDIATE"):  # one process at a time, from the check to the commit
            self._read_new()
            known = self._reserved.get(release)
            if known is not None and known.state != WITHDRAWN:
                return known
            place = self._placed(rows)
            moved = _moved(cost, place)
            grid, piece = (rows.grid, place.piece) if rows and place and place.piece else ("", None)
            return self._write(moved, what, about, self._afforded([moved], what), state, release, grid, piece)

    def _write(
        self, cost: Cost, what: str, about: tuple[str, str, str], spent: float, state: str, release: str = "",
        grid: str = "", piece: Piece | None = None,
    ) -> Entry:  # fmt: skip
        """Add a row inside the transaction; it is taken in when it is committed, or read again if it is not."""
        assert self._connection is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        numbers = (float(cost.row_loss) + 0.0, float(cost.epsilon) + 0.0, float(cost.delta) + 0.0)  # no -0.0
        first, tags = (0, b"") if piece is None else (piece.first, piece.tags.astype("<u8").tobytes())
        content = (
            self._balance.last + 1, now, what, *about, cost.start, cost.stop, *numbers, spent, state, release, grid,
            first, tags,
        )  # fmt: skip
        row = (*content, ledger_file.seal(self._balance.seal, content))
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"INSERT INTO entries ({ledger_file.COLUMNS}) VALUES ({marks})", row)
        self._connection.execute("COMMIT")
        self._absorb(row)
        self._spent = (row[0], spent)
        if self._head is not None:
            self._head.write("entries", row[0], row[-1])
        return _entry(row)

    def _placed(self, rows: RowRange | None) -> Placed | None:
        """Which rows these are, by what was released before; None: nobody but the cost says it."""
        if rows is None or self.path is None:
            return None
        assert self._connection is not None
        found = self._connection.execute("SELECT first, tags FROM entries WHERE length(tags) > 0")
        return rows.placed(self._key, self._grid, (Piece(first, np.frombuffer(tags, "<u8")) for first, tags in found))

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
        """Every release, in order, as it stands."""
        with self._reading() as connection:
            self._read_new()
            found, reserved = dict[int, Entry](), dict[str, int]()
            for entry in map(
                self._checked, connection.execute(f"SELECT {ledger_file.COLUMNS} FROM entries ORDER BY id")
            ):
                if entry.state in (SPENT, RESERVED):
                    found[entry.id], reserved[entry.release] = entry, entry.id
                else:
                    number = reserved[entry.release]
                    found[number] = replace(found[number], state=entry.state)
            return tuple(found.values())

    def reservations(self) -> tuple[Entry, ...]:
        """Those that are not settled."""
        with self._reading():
            self._read_new()
            return tuple(entry for entry in self._reserved.values() if entry.state == RESERVED)

    @property
    def mark(self) -> Mark:
        """How far it has come; whoever keeps it elsewhere can tell an old copy by ``holds``."""
        with self._reading():
            self._read_new()
            return Mark(self.name, self._balance.last, self._balance.seal)

    def holds(self, mark: Mark) -> bool:
        """Whether this ledger has come at least so far; also if the mark is that of another ledger."""
        with self._reading() as connection:
            self._read_new()
            if mark.ledger != self.name or not mark.entry:
                return True
            found = connection.execute("SELECT seal FROM entries WHERE id = ?", (mark.entry,)).fetchone()
            return bool(found == (mark.seal,))

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
                if connection.in_transaction:
                    connection.execute("COMMIT")
            except BaseException:
                database.rollback(connection)
                raise

    def _reading(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        return self._transaction("DEFERRED")

    def _read_budget(self) -> None:
        assert self._connection is not None
        rows = self._connection.execute(
            "SELECT unit, epsilon, delta, window_rows, created, secret, seal FROM budget"
        ).fetchall()
        if len(rows) != 1:
            raise self._changed("it holds no budget")
        *content, seal = rows[0]
        try:
            unit, epsilon, delta, window, created, secret = _budget(*content)
            self._key = bytes.fromhex(secret)
        except (OptionError, TypeError, ValueError) as error:
            raise self._changed(str(error)) from None
        if content[4] != created or seal != ledger_file.seal("", [ledger_file.VERSION, *content]):
            raise self._changed("its budget is not the one it was made with")
        self.unit, self.epsilon, self.delta, self.window, self.created = unit, epsilon, delta, window, created
        self._balance.seal, self.name = seal, seal[:16]

    def _read_new(self) -> None:
        """Take in what other processes have spent since."""
        assert self._connection is not None
        last = self._balance.last
        rows = self._connection.execute(
            f"SELECT {ledger_file.COLUMNS} FROM entries WHERE id >= ? OR id < 1 OR typeof(id) <> 'integer' ORDER BY id",
            (last,),
        )
        if last:
            row = rows.fetchone()
            if row is None or row[0] != last or row[-1] != self._balance.seal:
                raise self._changed(f"entry {last} was there and is not any more")
        for row in rows:
            number = self._checked(row).id
            if number != self._balance.last + 1:
                raise self._changed(f"an entry is missing before number {number}")
            if row[-1] != ledger_file.seal(self._balance.seal, row[:-1]):
                raise self._changed(f"entry {number} is not what was written, or one before it is missing")
            self._absorb(row)

    def _checked(self, row: Sequence[Any]) -> Entry:
        """The entry that a row holds, if it is one."""
        if any(type(value) is not kind for value, kind in zip(row, ledger_file.KINDS, strict=True)):
            raise self._changed(f"entry {row[0]!r} holds values of the wrong kind")
        if not all(_is_text(text) for text in row[1:6]) or not _is_time(row[1]) or row[12] not in STATES:
            raise self._changed(f"entry {row[0]} holds text that is none")
        if not 0 <= row[11] < math.inf:
            raise self._changed(f"entry {row[0]} says that {row[11]} was spent in all")
        try:
            return _entry(row)
        except OptionError as error:
            raise self._changed(f"entry {row[0]}: {error}") from None

    def _absorb(self, row: Sequence[Any]) -> None:
        entry = _entry(row)
        if entry.state in (SPENT, RESERVED):
            self._balance.add(entry.cost)
        else:
            before = self._reserved.get(entry.release)
            if before is None or before.state != RESERVED:
                raise self._changed(f"entry {entry.id} settles what was not reserved")
            if entry.state == WITHDRAWN:
                self._balance.add(before.cost, -1)
            entry = replace(before, state=entry.state)
        if entry.state != SPENT:
            self._reserved[entry.release] = entry
        self._grid = self._grid or row[14]
        self._balance.last, self._balance.seal = row[0], row[-1]

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
            "Ask for a smaller epsilon, use rows that were not released before, or let the unit's owner open a new "
            "ledger.",
            code="budget",
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


def _budget(
    unit: object, epsilon: object, delta: object, window: object, created: object = None, secret: str = ""
) -> tuple[Any, ...]:
    """What a ledger begins with, checked."""
    if not _is_text(unit):
        raise OptionError(f"ledger: unit must be printable text of 1 to {_LONGEST_TEXT} characters, got {unit!r}")
    checked = accounting.check_budget(epsilon, delta, f"ledger of unit {unit!r}")
    if type(window) is not int or not 1 <= window < 2**40:
        raise OptionError(f"ledger of unit {unit!r}: window must be a whole number of at least 1, got {window!r}")
    if created is not None and not _is_time(created):
        raise OptionError(f"it was made at {created!r}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return unit, *checked, window, created or now, secret or secrets.token_hex(32)


def _entry(row: Sequence[Any]) -> Entry:
    number, time, what, fit, mechanism, source = row[:6]
    return Entry(number, time, what, fit, mechanism, source, Cost(*row[6:11]), *row[11:14])


def _moved(cost: Cost, place: Placed | None) -> Cost:
    return cost if place is None else replace(cost, start=place.start, stop=place.stop)


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
