"""Files that are only ever added to: whole writes that are on the disk when they return, and one writer at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from counterflow.errors import StorageError
from counterflow.files import sync_folder


class AddedFile:
    """An open file to which whole pieces are added.

    ``add`` returns when the piece is on the disk; if it fails, the piece is taken off again, and if even that fails
    nothing more is written through this object.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what
        self._process = os.getpid()
        self._broken = False
        with self.blaming():
            is_new = not path.exists()
            make_folder(path.parent)
            # no link is followed: whoever may write the folder must not make us write elsewhere
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
            self._handle: int | None = os.open(path, flags, 0o600)
            try:
                if not stat.S_ISREG(os.fstat(self._handle).st_mode):
                    raise StorageError(f"{self.name} is no ordinary file: give the path of one, or of none yet.")
                if is_new:
                    sync_folder(path.parent)
            except BaseException:
                self.close()
                raise

    @property
    def name(self) -> str:
        return f"the {self.what} {str(self.path)!r}"

    @property
    def broken(self) -> bool:
        """Whether nothing more is written through this object."""
        return self._broken

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """What the operating system says becomes a StorageError that names the file and the remedy."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self.name} could not be used: {error.strerror or error}. Check its path, who may write it, and the "
                "space left on the disk; then open it again."
            ) from error

    @property
    def handle(self) -> int:
        if self._handle is None:
            raise StorageError(f"{self.name} has been closed: open it again.")
        if self._process != os.getpid():
            raise StorageError(f"{self.name} was opened by another process: open it in this one, too.")
        return self._handle

    def take(self) -> None:
        """Become the only writer until ``close``; refuse if there is another. A killed process lets go by itself."""
        import fcntl

        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use() from None
        try:
            is_there = os.path.samestat(os.fstat(self.handle), os.stat(self.path))
        except FileNotFoundError:
            is_there = False
        if not is_there:  # whoever had it has put another file in its place, and has that one
            raise self._in_use()

    def put_in_place(self, path: Path) -> None:
        """Rename the file to ``path``, which it replaces; there is the old file or this one, whenever the power goes.

        If that fails, nobody knows which of them it is until it is opened again.
        """
        try:
            os.replace(self.path, path)
            self.path = path
            sync_folder(path.parent)
        except OSError as error:
            self._broken = True
            raise StorageError(
                f"{self.name} could not be put in its place: {error.strerror or error}. Check who may write its "
                "folder, and the disk; then open it again."
            ) from error

    def _in_use(self) -> StorageError:
        return StorageError(f"{self.name} is in use by another process: wait for that one or end it, then repeat.")

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Be the only writer within; waits for others, who take as long as one entry does."""
        import fcntl

        with self.blaming():
            fcntl.flock(self.handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if self._handle is not None:
                fcntl.flock(self._handle, fcntl.LOCK_UN)

    @property
    def size(self) -> int:
        with self.blaming():
            return os.fstat(self.handle).st_size

    def read(self, start: int, count: int) -> bytes:
        """``count`` bytes from ``start`` on, fewer only at the end of the file."""
        with self.blaming():
            pieces, at, left = [], start, count
            while left > 0 and (piece := os.pread(self.handle, min(left, 1 << 24), at)):
                pieces.append(piece)
                at, left = at + len(piece), left - len(piece)
            return b"".join(pieces)

    def add(self, piece: bytes) -> int:
        """Write at the end; returns where the piece begins."""
        if self._broken:
            raise StorageError(f"{self.name} could not be written before, and may be half written: open it again.")
        end = self.size
        try:
            at, view = end, memoryview(piece)
            while view:
                written = os.pwrite(self.handle, view, at)
                at, view = at + written, view[written:]
            os.fsync(self.handle)
        except BaseException as error:
            self._broken = True  # after a failed sync nobody knows what is on the disk: reading it again tells
            self._cut_quietly(end)
            if isinstance(error, OSError):
                raise StorageError(
                    f"{self.name} could not be written: {error.strerror or error}. Nothing was added. Free some space "
                    "on the disk or repair it, then open it again."
                ) from error
            raise
        return end

    def cut(self, size: int) -> None:
        """Drop everything from ``size`` on."""
        with self.blaming():
            os.ftruncate(self.handle, size)
            os.fsync(self.handle)

    def _cut_quietly(self, size: int) -> None:
        try:
            os.ftruncate(self.handle, size)
            os.fsync(self.handle)
        except (OSError, StorageError):
            pass  # a piece that is not whole is found when the file is opened

    def close(self) -> None:
        """Let go of the file and of being its writer."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and see that their names are on the disk."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True, mode=0o700)
        sync_folder(new.parent)


def write_whole(path: Path, data: bytes) -> None:
    """A file that is there as a whole, on the disk, or is as it was."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(draft, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(f"federation: {path} cannot be written: {error.strerror or error}") from error
