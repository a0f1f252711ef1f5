"""Where the files of a table lie: single files, folders, and zip archives, of which nothing is written to disk."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from counterflow.errors import DataError
from counterflow.printable import shown

ENDINGS = (
    ".csv", ".txt", ".tsv", ".dat", ".gz", ".parquet", ".pq", ".feather", ".arrow", ".ipc", ".xlsx", ".xlsm",
)  # fmt: skip
MOST_FILES = 10_000
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)  # what reading a bad one raises
_UNREADABLE_INSIDE = (".gz", ".zip")  # an archive in an archive: its size would not be known before it is unpacked


def members(path: Path, room: int) -> Iterator[tuple[Path, bytes | None]]:
    """The files that a path stands for: (path or name, what was unpacked of it), in the order of their names.

    A folder stands for the tables in it (not in folders below), a zip file for the tables in it. Whatever is no table
    by its name is passed over. `room`: bytes that all that is unpacked may take.
    """
    if path.is_dir():
        found = [each for each in path.iterdir() if is_table(each.name) and each.is_file()]
        if not found:
            raise DataError(
                f"{path.name or path} is a folder without a table: give one with {', '.join(ENDINGS)} files"
            )
        if len(found) > MOST_FILES:
            raise DataError(f"{path.name} has {len(found)} tables, more than {MOST_FILES}: give fewer at once")
        yield from ((each, None) for each in sorted(found, key=lambda each: _natural(each.name)))
    elif path.suffix.lower() == ".zip" and path.is_file():
        yield from _unpacked(path, room)
    else:
        yield path, None


def is_table(name: str) -> bool:
    """Whether a file may be a table, by its name; what begins with a point or "~" is a program's own.

    >>> is_table("May.CSV"), is_table("~$may.xlsx"), is_table(".hidden.csv"), is_table("readme.md")
    (True, False, False, False)
    """
    return not name.startswith((".", "~", "_")) and name.lower().endswith(ENDINGS)


def _natural(name: str) -> list[tuple[int, str]]:
    """Part 2 comes before part 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d{1,18})", name.casefold())]


def chunks_of(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, left: int, name: str, room: int, remedy: str
) -> Iterator[bytes]:
    """What a member unpacks to, piece by piece, of ``left`` bytes at most: the rest of the ``room`` for all of them."""
    member.file_size = 1 << 62  # what it says of its size is not believed: reading goes to the real end
    with archive.open(member) as part:
        while chunk := part.read(1 << 20):
            left -= len(chunk)
            if left < 0:
                text = f"{name} unpacks to more than the {room} bytes that there is room for: {remedy}"
                raise DataError(text, code="too-large")
            yield chunk


def _unpacked(path: Path, room: int) -> Iterator[tuple[Path, bytes]]:
    """Members of a zip archive. Their names are only names: nothing is written, so that none of them leads anywhere."""
    left = room
    try:
        with zipfile.ZipFile(path) as archive:
            listed = archive.infolist()
            if len(listed) > MOST_FILES:
                raise DataError(f"{path.name} has {len(listed)} members, more than {MOST_FILES}: give fewer at once")
            wanted = {}
            for member in listed:
                inside = PurePosixPath(member.filename.replace("\\", "/"))
                if member.is_dir() or "__MACOSX" in inside.parts or not is_table(inside.name):
                    continue
                name = f"{path.name}/{shown(inside.name, 80)}"
                if inside.suffix.lower() in _UNREADABLE_INSIDE:
                    raise DataError(f"{name} is packed twice: unpack it, and give the folder")
                if member.flag_bits & 1:
                    raise DataError(f"{name} is encrypted: unpack it with its password, and give the folder")
                if inside.name in wanted:
                    raise DataError(f"{name} is there twice, in two folders: unpack it, and give one of them")
                wanted[inside.name] = member
            if not wanted:
                raise DataError(f"{path.name} holds no table: give an archive with {', '.join(ENDINGS)} files")
            for base in sorted(wanted, key=_natural):
                remedy = "unpack it, and give some of its files"
                out = b"".join(chunks_of(archive, wanted[base], left, path.name, room, remedy))
                left -= len(out)
                yield Path(f"{path.name}:{shown(base, 80).replace(os.sep, '_')}"), out
    except DAMAGED as error:
        raise DataError(f"{path.name} is damaged or no zip file: copy it again, or unpack it") from error
