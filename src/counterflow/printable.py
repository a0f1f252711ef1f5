"""Printable text of bounded length: what a text from another party must be, and how any text is shown.

It is checked where it arrives (``checked``), and made harmless once more where it is printed (``shown``). A character
that a terminal obeys, that turns the direction of writing round or that nobody sees could make a reader take one name,
number or key for another.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from counterflow.errors import CounterflowError, ProtocolError

NAME, NOTE = 200, 2000  # characters of a name, and of a note or a reason
# controls, format (direction, zero width), surrogates, private use, unassigned, separators of lines and paragraphs
_REFUSED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0\u2800")  # letters without ink


@lru_cache(maxsize=4096)
def _is_seen(character: str) -> bool:
    variation = "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
    return unicodedata.category(character) not in _REFUSED and character not in _UNSEEN and not variation


def flaw(text: str, longest: int = NAME) -> str:
    """What keeps ``text`` from being printable and at most ``longest`` characters long; "" if nothing does."""
    if len(text) > longest:
        return f"has {len(text)} characters, {longest} are allowed"
    if text.isascii() and text.isprintable():
        return ""
    odd = next((character for character in text if not _is_seen(character)), None)
    return "" if odd is None else f"holds a character that does not print: U+{ord(odd):04X}"


def checked(
    value: object, what: str, longest: int = NAME, error: type[CounterflowError] = ProtocolError, *,
    composed: bool = True,
) -> str:  # fmt: skip
    """``value``, if it is printable text; otherwise an error that begins with ``what``.

    ``composed``: refuse letters that are written apart from their accents, too (not in Unicode's form NFC): two texts
    that look alike would differ.
    """
    if not isinstance(value, str):
        raise error(f"{what} must be text, got {value!r:.80}")
    found = flaw(value, longest)
    if not found and composed and not unicodedata.is_normalized("NFC", value):
        found = "has letters and accents apart: write it in Unicode's form NFC"
    if found:
        raise error(f"{what} {found}; it begins {value[:40]!a}")
    return value


def shown(text: object, longest: int = NOTE) -> str:
    """Any text in one line of at most ``longest`` characters: what does not print is written as an escape."""
    cut = str(text)[: longest + 1]
    if not (cut.isascii() and cut.isprintable()):
        cut = "".join(character if _is_seen(character) else ascii(character)[1:-1] for character in cut)
    return cut if len(cut) <= longest else cut[: longest - 3] + "..."
