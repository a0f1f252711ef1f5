"""Encodings of text files: found from the bytes, and turned into UTF-8, which is what the reader of tables takes.

A file is UTF-8 unless its bytes say otherwise. Programs that are older than that, and spreadsheets on Windows, write
UTF-16 (with a byte-order mark) or Windows-1252. Some exports mix UTF-8 and Windows-1252 line by line: each line is then
read as what it is. Anything else has to be said.
"""

from __future__ import annotations

import codecs
from dataclasses import replace

from counterflow.data.places import REMEDY, Place, room
from counterflow.errors import DataError, OptionError

_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# what engineers write beyond ASCII, as Windows-1252 has it: letters with accents, units of measure, dashes and quotes
_USUAL = frozenset("°²³µ·±×÷¼½¾§€‰–—‘’“”„•…™®©«»ªº¹¿¡¢£¥\xa0ŠŽšžŸŒœ") | {chr(k) for k in range(0xC0, 0xFF)}
_GUESS = "cp1252"


def in_utf8(place: Place, encoding: str | None) -> tuple[str, Place]:
    """The encoding of a text, found if it is not given (as Python names it), and its place in UTF-8.

    Raises
    ------
    DataError
        With code "encoding" if the text is not in the encoding, or in none that can be found.
    """
    if encoding is None:
        first = next(place.chunks(), b"")
        if is_wide(first):
            return "UTF-16", _recoded(place, "utf-16" if first.startswith(_MARKS) else "utf-16-le")
        fault = _fault(place)
        return ("UTF-8", place) if fault is None else _line_by_line(place, fault)
    try:
        known = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise OptionError(
            f"encoding is {encoding!r:.40}, which is not known: give one such as 'utf-8', 'cp1252' or 'utf-16'."
        ) from None
    if known not in ("utf-8", "utf-8-sig", "ascii"):
        return known, _recoded(place, known)
    if (fault := _fault(place)) is not None:
        raise DataError(f"{place.name} is not UTF-8, at byte {fault.start}: {REMEDY}", code="encoding") from fault
    return "UTF-8", place


def is_wide(data: bytes) -> bool:
    """Whether the beginning of a file is UTF-16: it has a mark, or nearly every second byte is zero."""
    even, odd = data[0:400:2], data[1:400:2]
    plain = len(data) > 20 and odd.count(0) > 0.8 * len(odd) and even.count(0) < 0.2 * len(even)
    return data.startswith(_MARKS) or plain


def _fault(place: Place) -> UnicodeDecodeError | None:
    """What keeps a text from being UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in place.chunks():
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        return error
    return None


def _whole(place: Place) -> bytes:
    out, most = bytearray(), room()
    for chunk in place.chunks():
        out += chunk
        if len(out) > most:
            raise DataError(
                f"{place.name} is not UTF-8 and has more than the {most} bytes that there is room for to turn it into "
                "that: save it as UTF-8, or divide it",
                code="too-large",
            )
    return bytes(out)


def _recoded(place: Place, encoding: str) -> Place:
    try:
        return replace(place, content=_whole(place).decode(encoding).lstrip("\ufeff").encode())
    except (UnicodeError, ValueError, LookupError) as error:
        if isinstance(error, DataError):
            raise
        where = f", at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(f"{place.name} is not {encoding}{where}: {REMEDY}", code="encoding") from error


def _line_by_line(place: Place, fault: UnicodeDecodeError) -> tuple[str, Place]:
    """Lines that are not UTF-8 as Windows-1252, if nothing in them is unlikely there."""
    lines = _whole(place).split(b"\n")
    mixed = False
    for k, line in enumerate(lines):
        if line.isascii():
            continue
        try:
            line.decode("utf-8")
            mixed = True
        except UnicodeDecodeError:
            text = line.decode(_GUESS, "replace")  # the sign of replacement is none of the usual ones
            if not all(sign.isascii() or sign in _USUAL for sign in text):
                raise DataError(
                    f"{place.name} is not UTF-8, nor does line {k + 1} look like Windows-1252: {REMEDY}",
                    code="encoding",
                ) from fault
            lines[k] = text.encode()
    return "Windows-1252" + (" and UTF-8" if mixed else ""), replace(place, content=b"\n".join(lines))
