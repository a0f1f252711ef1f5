"""The checkpoint format: an append-only file of records, from which a state is computed anew.

Layout: ``CFJL``, version (uint16), then records. A record is a head (kind, length of the payload, a check of these
two), the payload, and the SHA-256 of all of that and of the seal before it. A state is the fold of a state machine
over the messages in here, from its beginning or from a snapshot; ``begin_anew`` puts a file that begins with a snapshot
in the place of a long one. Nothing is unpickled, and nothing in the file names code.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from counterflow.errors import StorageError
from counterflow.federation.durable import AddedFile

MAGIC = b"CFJL"
VERSION = 2
LARGEST_RECORD = 3 << 30  # a message, and the replies to it
LARGEST_FILE = 1 << 40
_START = struct.Struct("<4sH")
_HEAD = struct.Struct("<HQ")  # kind, length
_CHECK = struct.Struct("<I")
_SEAL = 32


class Record(NamedTuple):
    """One record; ``position`` is what ``Journal.read`` takes."""

    position: int
    kind: int
    payload: bytes


class Journal:
    """An append-only file of records, for one writer at a time.

    ``append`` returns when the record is on the disk. A record that was being written when the power went is dropped
    when the journal is opened again (``dropped`` says how many bytes); anything else that is not as it was written is
    refused. A record is never half accepted.

    Parameters
    ----------
    path : made if it is not there.
    largest_record, largest_file : in bytes; what is larger is refused before it is written.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "job.journal"
    >>> with Journal(place) as journal:
    ...     at = journal.append(1, b"first")
    >>> with Journal(place) as journal:
    ...     [(record.kind, record.payload) for record in journal.records()]
    [(1, b'first')]
    """

    def __init__(
        self, path: str | Path, *, largest_record: int = LARGEST_RECORD, largest_file: int = LARGEST_FILE
    ) -> None:
        self.largest_record, self.largest_file = largest_record, largest_file
        self.dropped = 0
        self._seal, self._end = b"", 0
        self._file = AddedFile(Path(path).absolute(), "journal")
        try:
            self._file.take()
            self._open()
            with self._file.blaming():
                self._draft.unlink(missing_ok=True)  # of a process that was killed before it was put in place
        except BaseException:
            self._file.close()
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._end

    @property
    def path(self) -> Path:
        return self._file.path

    def append(self, kind: int, payload: bytes) -> int:
        """Add a record; its position, once it is on the disk."""
        piece, seal = self._sealed(kind, payload, self._seal)
        if self._end + len(piece) > self.largest_file:
            raise StorageError(
                f"{self._file.name} would be larger than {self.largest_file} bytes: this job is too long, start one "
                "with fewer rounds or rows"
            )
        position = self._file.add(piece)
        assert position == self._end, "the journal has another writer"
        self._seal, self._end = seal, position + len(piece)
        return position

    def begin_anew(self, records: Sequence[tuple[int, bytes]]) -> list[int]:
        """Put a journal of these records in the place of this one; their positions.

        Whenever the power goes, the old journal is there or the new one, whole. A StorageError before that moment
        (``broken`` is False then) leaves the old one in use.
        """
        pieces, positions = [_START.pack(MAGIC, VERSION)], []
        seal, end = hashlib.sha256(pieces[0]).digest(), _START.size
        for kind, payload in records:
            piece, seal = self._sealed(kind, payload, seal)
            pieces.append(piece)
            positions.append(end)
            end += len(piece)
        place, former = self._file.path, self._file
        with former.blaming():
            self._draft.unlink(missing_ok=True)
        draft = AddedFile(self._draft, "journal")
        try:
            draft.take()  # nobody can have it between its becoming the journal and our using it
            draft.add(b"".join(pieces))
        except BaseException:
            draft.close()
            with suppress(OSError):
                self._draft.unlink(missing_ok=True)
            raise
        try:
            draft.put_in_place(place)
        finally:
            self._file = draft
            former.close()  # not earlier: else another process could have the old one, which is still in its place
        self._seal, self._end = seal, end
        return positions

    @property
    def broken(self) -> bool:
        """Whether nothing more can be written before it is opened again."""
        return self._file.broken

    def _sealed(self, kind: int, payload: bytes, before: bytes) -> tuple[bytes, bytes]:
        """A record as it stands in the file, and its seal."""
        if not 0 <= kind < 1 << 16:
            raise StorageError(f"{self._file.name}: a record's kind must be from 0 to 65535, got {kind}")
        if len(payload) > self.largest_record:
            raise StorageError(
                f"{self._file.name}: a record of {len(payload)} bytes is over the limit of {self.largest_record}"
            )
        head = _HEAD.pack(kind, len(payload))
        head += _CHECK.pack(zlib.crc32(head))
        found = hashlib.sha256(before + head)
        found.update(payload)
        return b"".join((head, payload, found.digest())), found.digest()

    @property
    def _draft(self) -> Path:
        return self._file.path.with_name(self._file.path.name + ".next")

    def records(self) -> Iterator[Record]:
        """All records, in order; they were checked when the journal was opened."""
        at = _START.size
        while at < self._end:
            record = self.read(at)
            yield record
            at += _HEAD.size + _CHECK.size + len(record.payload) + _SEAL

    def read(self, position: int) -> Record:
        """The record at ``position``."""
        head = self._file.read(position, _HEAD.size + _CHECK.size)
        if len(head) == _HEAD.size + _CHECK.size and zlib.crc32(head[: _HEAD.size]) == _check_of(head):
            kind, length = _HEAD.unpack_from(head)
            payload = self._file.read(position + len(head), length)
            if len(payload) == length:
                return Record(position, kind, payload)
        raise self._damaged(position, "it has changed since it was opened")

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- opening

    def _open(self) -> None:
        size, start = self._file.size, _START.pack(MAGIC, VERSION)
        if size < _START.size:
            found = self._file.read(0, size)
            if not start.startswith(found) and any(found):
                raise StorageError(f"{self._file.name} is not a journal: give another path.")
            self._file.cut(0)
            self._file.add(start)
            size = _START.size
        magic, version = _START.unpack(self._file.read(0, _START.size))
        if magic != MAGIC:
            raise StorageError(f"{self._file.name} is not a journal: give another path.")
        if version != VERSION:
            raise StorageError(
                f"{self._file.name} has format {version}, this version of Counterflow knows {VERSION}: use the version "
                "that made it, or start the job again."
            )
        self._seal, self._end = hashlib.sha256(start).digest(), _START.size
        while self._end < size:
            following = self._checked(self._end, size)
            if following is None:
                self.dropped = size - self._end
                self._file.cut(self._end)
                return
            self._end = following

    def _checked(self, at: int, size: int) -> int | None:
        """Where the next record begins; None if this one is torn, which only the last can be."""
        head = self._file.read(at, _HEAD.size + _CHECK.size)
        if len(head) < _HEAD.size + _CHECK.size:
            return None
        if zlib.crc32(head[: _HEAD.size]) != _check_of(head):
            if self._only_zeros(at, size):  # a file can grow before its content is there
                return None
            raise self._damaged(at, "the head of a record is not as it was written")
        length = int(_HEAD.unpack_from(head)[1])
        end = at + len(head) + length + _SEAL
        if end > size:
            if length > self.largest_record:
                raise self._damaged(at, f"a record of {length} bytes is over the limit of {self.largest_record}")
            return None
        seal = hashlib.sha256(self._seal + head)
        for start in range(at + len(head), end - _SEAL, 1 << 24):
            seal.update(self._file.read(start, min(1 << 24, end - _SEAL - start)))
        if seal.digest() != self._file.read(end - _SEAL, _SEAL):
            if end == size:
                return None
            raise self._damaged(at, "a record is not as it was written")
        self._seal = seal.digest()
        return end

    def _only_zeros(self, at: int, size: int) -> bool:
        return not any(any(self._file.read(start, 1 << 20)) for start in range(at, size, 1 << 20))

    def _damaged(self, at: int, how: str) -> StorageError:
        return StorageError(
            f"{self._file.name} is damaged at byte {at}: {how}. Restore it from a backup, or start the job again."
        )


def _check_of(head: bytes) -> int:
    return int(_CHECK.unpack_from(head, _HEAD.size)[0])
