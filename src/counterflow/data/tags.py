"""What a tag's name says: ISA-5.1 letters and loop number, the plant area, and which part of a control loop it is.

``FIC-101.SP`` is the set point of flow controller 101 in area 1; ``10-LIC-203/OUT`` the output of level controller 203
in area 10. Names of other customs say less; then only words such as "setpoint" or "valve" are understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# area, letters, loop number, part: "10-FIC-101A.SP", "U1_TIC201.OP", "41TIC115", "FIC-101/PID1/PV.CV"
_ISA = re.compile(
    r"(?:(?P<area>[A-Za-z0-9]+(?:[_\-./: ][A-Za-z0-9]+)*?)[_\-./: ]|(?P<digits>\d{1,3})(?=[A-Za-z]))?"
    r"(?P<letters>[A-Za-z]{1,5})[-_ ]?(?P<number>\d{2,6})(?P<copy>[A-Za-z]?)"
    r"(?:[._/:\- ](?P<part>[A-Za-z][A-Za-z0-9_./\- ]*))?"
)
_SUCCEEDING = frozenset("ACDEFGHIKLOPQRSTVXYZ")  # letters after the first, as ISA-5.1 and its users have them
_PREFIX = re.compile(r"([^_.:\-/\s]+)(?:[_.:\-/\s]+(\d+))?(?=[_.:\-/\s])")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TARGET = frozenset(["sp", "sv", "spt", "setpoint", "set", "csp", "rsp", "lsp", "target", "sollwert", "wsp"])
_MOVED = frozenset(
    ["op", "out", "mv", "co", "cv", "output", "cmd", "command", "lmn", "demand", "opening", "valve", "manipulated"]
)
_MEASURED = frozenset(["pv", "value", "val", "meas", "pvraw", "measured", "act", "actual", "ist", "istwert"])
_MODE = frozenset(["mode", "md", "auto", "man", "manual", "modeactual", "cas", "tracking"])
_QUALITY = frozenset(
    ["quality", "qual", "q", "status", "statuscode", "st", "bad", "questionable", "alarm", "alm", "hh", "ll"]
)
_EQUIPMENT = frozenset(["P", "PU", "M", "K", "B", "E", "FAN", "AG", "BL", "PMP", "MX"])
_INSIDE = frozenset(["pv", "sp", "op", "out", "sv", "mv", "co", "mode"])  # parts of which ".CV" is only the value


class Role(Enum):
    """What a channel is in its loop."""

    MEASURED = "measured"
    TARGET = "set point"
    MOVED = "moved"  # a controller's output, a valve, a drive
    MODE = "mode"
    QUALITY = "quality"
    UNKNOWN = "unknown"


_WORDS_OF = {
    Role.TARGET: _TARGET, Role.MOVED: _MOVED, Role.MEASURED: _MEASURED, Role.MODE: _MODE, Role.QUALITY: _QUALITY
}  # fmt: skip


@dataclass(frozen=True)
class Tag:
    """A tag's name, taken apart."""

    name: str
    area: str = ""  # what stands before the letters
    letters: str = ""  # of ISA-5.1, such as "FIC" and "101"; "" if the name is not of that kind
    number: str = ""
    role: Role = Role.UNKNOWN

    @property
    def is_isa(self) -> bool:
        return bool(self.letters)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The area's parts, each with those before it: ("north", "north_A") of "north_A"."""
        parts = [part for part in re.split(r"[_\-./: ]", self.area) if part]
        return tuple("_".join(parts[: k + 1]) for k in range(len(parts)))

    def prefix(self, depth: int) -> str:
        """The first parts of the area, or all there are."""
        return self.prefixes[min(depth, len(self.prefixes) - 1)] if self.prefixes else ""

    @property
    def hundred(self) -> str:
        """The area that the loop number tells: 1 of 101 and 11 of 1101; "" of shorter numbers."""
        return self.number[:-2].lstrip("0") or "0" if len(self.number) >= 3 else ""

    @property
    def loop(self) -> tuple[str, str, str]:
        """Area, measured variable and number: FV-101 and FIC-101 are of one loop."""
        return self.area.casefold(), self.letters[:1].upper(), self.number


def read_tag(name: str) -> Tag:
    """Take a tag's name apart."""
    bare = name.strip().rpartition("\\")[2]
    found = _ISA.fullmatch(bare)
    if found is not None and set(found["letters"].upper()[1:]) <= _SUCCEEDING:
        letters = found["letters"].upper()
        role = _role_of_part(found["part"] or "", letters)
        return Tag(name, found["area"] or found["digits"] or "", letters, found["number"] + found["copy"].upper(), role)
    prefix = _PREFIX.match(bare)
    area = "_".join(filter(None, prefix.groups())) if prefix else ""
    words = [word.casefold() for word in _WORDS.findall(bare)][-2:]
    role = _role_of_words(words)
    if role in (Role.MODE, Role.QUALITY) and (words[-1] not in _MODE | _QUALITY or len(words[-1]) < 4):
        role = Role.UNKNOWN  # short words mean many things in names that follow no standard
    return Tag(name, area, role=role)


def _role_of_words(words: list[str]) -> Role:
    known = ((role, word) for word in reversed(words) for role, names in _WORDS_OF.items() if word in names)
    return next(known, (Role.UNKNOWN, ""))[0]


def _role_of_part(part: str, letters: str) -> Role:
    words = [word.casefold() for word in re.split(r"[._/\- ]", part) if word]
    if len(words) > 1 and words[-1] in ("cv", "value", "val") and words[-2] in _INSIDE:
        words.pop()
    if words:
        if words[-1] == "cv" and "C" not in letters[1:] and not letters.endswith("V"):
            return Role.MEASURED  # the current value of a transmitter
        return _role_of_words(words)
    if letters.endswith(("V", "Z")) or letters in ("HIC", "HC", "HS", "SC", "SIC", "XS"):
        return Role.MOVED
    return Role.MEASURED if letters not in _EQUIPMENT and set(letters[1:]) & set("TIERQC") else Role.UNKNOWN
