"""Byte strings of rows in a file of their own, to which they are added, synced before the row is committed.

They are messages of a megabyte, which SQLite would write twice (docs/decisions/0014-store.md has the figures). The file
is called ``<file>.<n>.pieces``; n counts how often the log began anew.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from counterflow.files import sync_folder
from counterflow.sealed_log.head import FLAGS


class PiecesFile:
    """The pieces of a database that one process has to itself."""

    def __init__(self, path: Path, generation: int, *, new: bool = False) -> None:
        self.path, self.generation, self.end = Path(f"{path}.{generation}.pieces"), generation, 0
        if new:
            self.path.unlink(missing_ok=True)  # of a process that was killed before the row was committed
        self._handle = os.open(self.path, FLAGS | os.O_CREAT | (os.O_EXCL if new else 0), 0o600)
        if new:
            sync_folder(path.parent)

    def add(self, pieces: Sequence[bytes]) -> int:
        """Where they begin, once they are on the disk."""
        begin, views = self.end, [memoryview(piece) for piece in pieces if piece]
        at = begin
        while views:
            written = os.pwritev(self._handle, views[:500], at)
            at += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        if at > begin:
            getattr(os, "fdatasync", os.fsync)(self._handle)
        self.end = at
        return begin

    def read(self, at: int, sizes: Sequence[int]) -> list[bytes]:
        """The pieces of a row; short where the file is."""
        out = []
        for size in sizes:
            found = []
            while size > 0 and (piece := os.pread(self._handle, min(size, 1 << 30), at)):
                found.append(piece)
                at, size = at + len(piece), size - len(piece)
            out.append(found[0] if len(found) == 1 else b"".join(found))
        self.end = max(self.end, at)
        return out

    def close(self) -> None:
        os.close(self._handle)


def files_of_pieces(path: Path) -> list[Path]:
    """All files of pieces beside a database."""
    return list(path.parent.glob(f"{glob.escape(path.name)}.*.pieces"))
