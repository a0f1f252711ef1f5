"""What an answer must be read with: a code for programs, whom it is about, and a sentence for people.

Programs compare codes and scopes. Texts are for reading: nothing may search them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from counterflow.errors import ProtocolError
from counterflow.printable import checked, shown

EVERYBODY = ""
_CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_CODE, _LONGEST_SCOPE, _LONGEST_TEXT = 60, 10_000, 4000
MOST = 200  # caveats of one answer


@dataclass(frozen=True)
class Caveat:
    """One thing that an answer must be read with.

    Parameters
    ----------
    code : words in small letters joined by dashes, such as "not-converged"; the same cause has the same code.
    scope : the unit that it tells of, or several as ``scope_of`` joins them; "": the whole fit. Whoever may not know of
        one of them is not told it.
    text : one sentence or two, with what to do.

    Examples
    --------
    >>> caveat = Caveat("rows-left-out", "boiler", "unit 'boiler': 12 rows were left out")
    >>> caveat.code, str(caveat)
    ('rows-left-out', "unit 'boiler': 12 rows were left out")
    """

    code: str
    scope: str
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.code, str) or len(self.code) > _LONGEST_CODE or not _CODE.fullmatch(self.code):
            raise ProtocolError(f"caveat: code {self.code!r:.80} must be words in small letters joined by dashes")
        if not isinstance(self.text, str) or not self.text:
            raise ProtocolError(f"caveat {self.code!r}: text is missing")
        checked(self.scope, f"caveat {self.code!r}: scope", _LONGEST_SCOPE, composed=False)
        object.__setattr__(self, "text", shown(" ".join(self.text.split("\n")), _LONGEST_TEXT))

    @property
    def units(self) -> tuple[str, ...]:
        """The units that it tells of; none: the whole fit."""
        return units_of(self.scope)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, str]:
        """In plain types."""
        return {"code": self.code, "scope": self.scope, "text": self.text}

    @classmethod
    def from_json(cls, found: object) -> Caveat:
        """From plain types that nobody has checked."""
        if not isinstance(found, dict) or set(found) != {"code", "scope", "text"}:
            raise ProtocolError(f"a caveat has code, scope and text, got {found!r:.80}")
        text = checked(found["text"], "the text of a caveat", _LONGEST_TEXT, composed=False)
        return cls(found["code"], found["scope"], text)


def scope_of(units: Iterable[str]) -> str:
    """Several units as a scope, each once: their names hold no slash.

    >>> scope_of(["boiler", "turbine", "boiler"]), units_of("boiler/turbine"), units_of("")
    ('boiler/turbine', ('boiler', 'turbine'), ())
    """
    return "/".join(dict.fromkeys(units))


def units_of(scope: str) -> tuple[str, ...]:
    """The units of a scope; none: the whole fit."""
    return tuple(scope.split("/")) if scope else ()


def distinct(caveats: Iterable[Caveat]) -> tuple[Caveat, ...]:
    """Each caveat once, in the order in which they first came."""
    return tuple(dict.fromkeys(caveats))


def to_text(caveats: Iterable[Caveat]) -> str:
    """Caveats as one JSON text, for a field of a message; what is beyond ``MOST`` is left out."""
    return json.dumps([caveat.to_json() for caveat in distinct(caveats)[:MOST]], ensure_ascii=False)


def from_text(text: str) -> tuple[Caveat, ...]:
    """Caveats from the JSON text of a message, trusting nothing."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        raise ProtocolError("the caveats of a message are not JSON") from None
    if not isinstance(found, list) or len(found) > MOST:
        raise ProtocolError(f"the caveats of a message must be a list of at most {MOST}")
    return tuple(Caveat.from_json(entry) for entry in found)
