"""Encodings of text files: found from the bytes, and turned into UTF-8, which is what the reader of tables takes.

A file is UTF-8 unless its bytes say otherwise. Programs that are older than that, and spreadsheets on Windows, write
UTF-16 (with a byte-order mark) or Windows-1252. Some exports mix UTF-8 and Windows-1252 line by line: each line is then
read as what it is. Anything else has to be said.
"""

from __future__ import annotations

import codecs
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterflow.errors import DataError, OptionError

_CHUNK = 1 << 20
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# what engineers write beyond ASCII, as Windows-1252 has it: letters with accents, units of measure, dashes and quotes
_USUAL = frozenset("°²³µ·±×÷¼½¾§€‰–—‘’“”„•…™®©«»ªº¹¿¡¢£¥\xa0ŠŽšžŸŒœ") | {chr(k) for k in range(0xC0, 0xFF)}
_GUESS = "cp1252"
REMEDY = "save it as UTF-8, or give its encoding, such as encoding = 'cp1252'"


def utf8_content(path: Path, content: bytes | None, encoding: str | None, room: int) -> tuple[str, bytes | None]:
    """The encoding of a text and, unless it is UTF-8 already, its content in UTF-8.

    Parameters
    ----------
    path : Path
        Of the file; only its name is used if there is `content`.
    content : bytes, optional
        What was unpacked of it.
    encoding : str, optional
        As Python names it; found if it is not given.
    room : int
        Bytes that the text may take in memory.

    Raises
    ------
    DataError
        With code "encoding" if the text is not in the encoding, or in none that can be found.
    """
    if encoding is not None:
        try:
            known = codecs.lookup(encoding).name
        except (LookupError, ValueError):
            raise OptionError(
                f"encoding is {encoding!r:.40}, which is not known: give one such as 'utf-8', 'cp1252' or 'utf-16'."
            ) from None
        if known in ("utf-8", "utf-8-sig", "ascii"):
            if (fault := _fault(path, content)) is not None:
                raise DataError(
                    f"{path.name} is not UTF-8, at byte {fault.start}: {REMEDY}", code="encoding"
                ) from fault
            return "UTF-8", content
        return known, _recoded(path, content, known, room)
    first = next(_chunks(path, content), b"")
    mark = next((name for bytes_, name in _MARKS.items() if first.startswith(bytes_)), None)
    if mark is None and is_wide(first):
        mark = "utf-16-le"
    if mark is not None:
        return "UTF-16", _recoded(path, content, mark, room)
    fault = _fault(path, content)
    return ("UTF-8", content) if fault is None else _line_by_line(path, content, fault, room)


def _fault(path: Path, content: bytes | None) -> UnicodeDecodeError | None:
    """What keeps a text from being UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in _chunks(path, content):
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return error
    return None


def is_wide(data: bytes) -> bool:
    """Whether the beginning of a file is UTF-16: it has a mark, or nearly every second byte is zero."""
    even, odd = data[0:400:2], data[1:400:2]
    plain = len(data) > 20 and odd.count(0) > 0.8 * len(odd) and even.count(0) < 0.2 * len(even)
    return data.startswith(tuple(_MARKS)) or plain


def _chunks(path: Path, content: bytes | None) -> Iterator[bytes]:
    if content is not None:
        for start in range(0, len(content), _CHUNK):
            yield content[start : start + _CHUNK]
        return
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _whole(path: Path, content: bytes | None, room: int) -> bytes:
    out = bytearray()
    for chunk in _chunks(path, content):
        out += chunk
        if len(out) > room:
            raise DataError(
                f"{path.name} is not UTF-8 and has more than the {room} bytes that there is room for to turn it into "
                "that: save it as UTF-8, or divide it",
                code="too-large",
            )
    return bytes(out)


def _recoded(path: Path, content: bytes | None, encoding: str, room: int) -> bytes:
    whole = _whole(path, content, room)
    try:
        return whole.decode(encoding).lstrip("\ufeff").encode()
    except (UnicodeError, ValueError, LookupError) as error:
        place = f", at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(f"{path.name} is not {encoding}{place}: {REMEDY}", code="encoding") from error


def _line_by_line(path: Path, content: bytes | None, fault: UnicodeDecodeError, room: int) -> tuple[str, bytes]:
    """Lines that are not UTF-8 as Windows-1252, if nothing in them is unlikely there."""
    lines = _whole(path, content, room).split(b"\n")
    mixed = False
    for k, line in enumerate(lines):
        if line.isascii():
            continue
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            try:
                text = line.decode(_GUESS)
            except UnicodeDecodeError:
                text = "\0"
            odd = [sign for sign in text if not sign.isascii() and sign not in _USUAL]
            if odd or "\0" in text:
                raise DataError(
                    f"{path.name} is not UTF-8, nor does line {k + 1} look like Windows-1252: {REMEDY}", code="encoding"
                ) from fault
            lines[k] = text.encode()
        else:
            mixed = True
    return "Windows-1252" + (" and UTF-8" if mixed else ""), b"\n".join(lines)
