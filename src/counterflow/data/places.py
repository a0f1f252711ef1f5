"""Where tables lie: files, folders, and zip archives, of which nothing is written to disk or unpacked beyond memory."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import math
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

import polars

from counterflow.errors import CounterflowError, DataError
from counterflow.printable import shown

LARGEST = 16 << 30  # bytes of what is unpacked
SHARE = 0.5  # of the memory that is left, for what is unpacked
MOST_FILES = 10_000
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)  # what reading a bad one raises
CHUNK = 1 << 20
_RATIO = 1032  # deflate packs no better
_UNREADABLE_INSIDE = (".gz", ".zip")  # an archive in an archive: its size would not be known before it is unpacked
REMEDY = "save it as UTF-8, or give its encoding, such as encoding = 'cp1252'"


@dataclass(frozen=True)
class Place:
    """A file, or what was unpacked of a member of an archive; then ``path`` is only a name."""

    path: Path
    content: bytes | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_packed(self) -> bool:
        return self.content is None and self.path.suffix.lower() == ".gz"

    @property
    def source(self) -> Path | IO[bytes]:
        """For readers that take either."""
        return self.path if self.content is None else io.BytesIO(self.content)

    def open(self) -> IO[bytes]:
        """Its bytes, unpacked if it is gzip."""
        if self.content is not None:
            return io.BytesIO(self.content)
        return cast("IO[bytes]", gzip.open(self.path)) if self.is_packed else open(self.path, "rb")

    def chunks(self, most: float = math.inf, remedy: str = "") -> Iterator[bytes]:
        """Its bytes, piece by piece, ``most`` of them."""
        with self.open() as file:
            yield from pieces(file, self.name, most, most, remedy)

    def whole(self, remedy: str) -> bytes:
        """Its bytes, if there is room for them."""
        return b"".join(self.chunks(room(), remedy))

    def text(self) -> IO[str]:
        """Its text in UTF-8, without a byte-order mark."""
        return io.TextIOWrapper(self.open(), encoding="utf-8-sig", newline="")

    def refuse_bomb(self) -> None:
        """Refuse a gzip file that unpacks to more than there is room for."""
        if self.is_packed and self.path.stat().st_size * _RATIO > (most := room()):
            for _ in self.chunks(most, "divide it into several files"):
                pass


def pieces(file: IO[bytes], name: str, left: float, most: float, remedy: str) -> Iterator[bytes]:
    """What a file holds, piece by piece: ``left`` bytes of it, the rest of ``most``, for which there is room."""
    while chunk := file.read(CHUNK):
        if (left := left - len(chunk)) < 0:
            raise DataError(
                f"{name} holds more than the {most} bytes that there is room for: {remedy}", code="too-large"
            )
        yield chunk


def places(path: Path, endings: Sequence[str]) -> Iterator[Place]:
    """The files that a path stands for, in the order of their names; `endings`: of what may be a table.

    A folder stands for the tables in it (not in folders below), a zip file for the tables in it. Whatever is no table
    by its name is passed over.
    """
    kinds = f"with {', '.join(endings)} files"
    if path.is_dir():
        found = [each for each in path.iterdir() if may_be_table(each.name, endings) and each.is_file()]
        if not found:
            raise DataError(f"{path.name or path} is a folder without a table: give one {kinds}")
        _refuse_many(path, len(found), "tables")
        yield from (Place(each) for each in sorted(found, key=lambda each: _natural(each.name)))
    elif path.suffix.lower() == ".zip" and path.is_file():
        yield from _unpacked(path, endings, kinds)
    elif path.is_file():
        yield Place(path)
    else:
        raise DataError(f"there is no file {str(path)!r}: check the path")


def may_be_table(name: str, endings: Sequence[str]) -> bool:
    """Whether a file may be a table, by its name; what begins with a point or "~" is a program's own."""
    return not name.startswith((".", "~", "_")) and name.lower().endswith(tuple(endings))


def _natural(name: str) -> list[tuple[int, str]]:
    """Part 2 comes before part 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", name.casefold())]


def _refuse_many(path: Path, count: int, what: str) -> None:
    if count > MOST_FILES:
        raise DataError(f"{path.name} has {count} {what}, more than {MOST_FILES}: give fewer at once")


def chunks_of(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, left: float, name: str, most: float, remedy: str
) -> Iterator[bytes]:
    """What a member unpacks to; see `pieces`."""
    member.file_size = 1 << 62  # what it says of its size is not believed: reading goes to the real end
    with archive.open(member) as part:
        yield from pieces(part, name, left, most, remedy)


def _unpacked(path: Path, endings: Sequence[str], kinds: str) -> Iterator[Place]:
    """Members of a zip archive. Their names are only names: nothing is written, so that none of them leads anywhere."""
    left = most = room()
    try:
        with zipfile.ZipFile(path) as archive:
            _refuse_many(path, len(archive.infolist()), "members")
            wanted: dict[str, zipfile.ZipInfo] = {}
            for member in archive.infolist():
                inside = PurePosixPath(member.filename.replace("\\", "/"))
                if member.is_dir() or "__MACOSX" in inside.parts or not may_be_table(inside.name, endings):
                    continue
                for wrong, why in (
                    (inside.suffix.lower() in _UNREADABLE_INSIDE, "is packed twice: unpack it, and give the folder"),
                    (member.flag_bits & 1, "is encrypted: unpack it with its password, and give the folder"),
                    (inside.name in wanted, "is there twice, in two folders: unpack it, and give one of them"),
                ):
                    if wrong:
                        raise DataError(f"{path.name}/{shown(inside.name, 80)} {why}")
                wanted[inside.name] = member
            if not wanted:
                raise DataError(f"{path.name} holds no table: give an archive {kinds}")
            for base in sorted(wanted, key=_natural):
                remedy = "unpack it, and give some of its files"
                out = b"".join(chunks_of(archive, wanted[base], left, path.name, most, remedy))
                left -= len(out)
                yield Place(Path(f"{path.name}:{shown(base, 80).replace(os.sep, '_')}"), out)
    except DAMAGED as error:
        raise DataError(f"{path.name} is damaged or no zip file: copy it again, or unpack it") from error


def room() -> int:
    """Bytes that what is unpacked may take."""
    return min(LARGEST, int(SHARE * memory_left()))


def memory_left() -> int:
    """Bytes of memory that this process can still have; as good as the system tells."""
    left = [1 << 62]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        left.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        left.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):  # of a container
        most, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        left.append(most - used)
    return max(min(left), 0)


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Whatever a reader raises becomes one sentence about the file."""
    try:
        yield
    except CounterflowError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: {REMEDY}", code="encoding") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{name} cannot be read: the gzip file is cut off or damaged; copy it again") from error
    except (polars.exceptions.PolarsError, OSError, ValueError, csv.Error, polars.exceptions.PanicException) as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise DataError(f"{name} cannot be read: {reason or type(error).__name__:.200}") from error
