"""Files that are there as a whole or not at all, and folders whose names are on the disk.

Only their owner may read them: they hold measurements, models, couplings and answers. Who wants to share one says so.
Drafts have names that nobody can foretell, are new files, and follow no link.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from counterflow.errors import StorageError


def as_path(given: object) -> Path:
    """A usable path, or a StorageError that says why not."""
    if not isinstance(given, (str, os.PathLike)):
        raise StorageError(f"a path is needed, got {given!r:.80}: pass the name of a file.")
    path = Path(given)
    if not path.name or "\0" in str(path):
        raise StorageError(f"{str(path)!r} names no file: pass the name of one.")
    return path


@contextmanager
def blaming(path: Path, remedy: str = "Choose another place.") -> Iterator[None]:
    """What the operating system says becomes a StorageError that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {str(path)!r}: {error.strerror or error}. {remedy}") from error


def write_whole(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Put a file in its place when all is written; until then what was there stays. ``durable``: it is on disk."""
    with blaming(path):
        draft = draft_of(path)
        try:
            _write_new(draft, data, durable)
            os.replace(draft, path)
        except BaseException:  # an interrupt, too, must leave nothing behind
            draft.unlink(missing_ok=True)
            raise
        if durable:
            sync_folder(path.parent)


def replace_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Put a folder of files in its place when all of them are on the disk; until then what was there stays."""
    with blaming(target, "Choose a directory that may be written to."):
        make_folder(target.parent)
        draft, former = draft_of(target), target.with_name(f".{target.name}.{secrets.token_hex(8)}.old")
        try:
            for name, content in files.items():
                place = draft / name
                make_folder(place.parent)
                _write_new(place, content, durable=True)
            if target.exists():
                os.rename(target, former)
            os.rename(draft, target)
        except BaseException:
            if former.exists() and not target.exists():
                os.rename(former, target)
            shutil.rmtree(draft, ignore_errors=True)
            raise
        shutil.rmtree(former, ignore_errors=True)


def appending(path: Path, buffering: int = -1) -> BinaryIO:
    """A log to add to, made if it is not there; no link is followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    return os.fdopen(os.open(path, flags, 0o600), "ab", buffering)


def draft_of(path: Path) -> Path:
    """A name beside a file that nobody can foretell, for writing it before it gets its own."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and those above it, their names on the disk; returns the new ones, outermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True, mode=0o700)
        sync_folder(new.parent)
    return missing[::-1]


def sync_folder(folder: Path) -> None:
    """A new name is on the disk only when its folder is. Windows cannot do this, and need not."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_old(place: Path, age: float) -> bool:
    """Whether nothing in it was changed for so many seconds."""
    with contextlib.suppress(OSError):
        newest = max(path.lstat().st_mtime for path in (place, *place.rglob("*")))
        return time.time() - newest > age
    return False


def _write_new(path: Path, data: bytes, durable: bool) -> None:
    # a new file and no link: whoever may write the folder must not make us write elsewhere
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
