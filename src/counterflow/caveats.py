"""What an answer must be read with: a code for programs, whom it is about, and a sentence for people.

Programs compare codes and scopes. Texts are for reading: nothing may search them. How much a caveat weighs follows from
its code, here and nowhere else: a message does not say it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from counterflow.errors import ProtocolError
from counterflow.printable import checked, shown

EVERYBODY = ""
_CODE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST_CODE, _LONGEST_SCOPE, _LONGEST_TEXT = 60, 10_000, 4000
MOST = 200  # caveats of one answer

Weight = Literal["fails", "caution", "choice"]
Verdict = Literal["fails", "caution", "clear"]
FAILS: Final = "fails"
CAUTION: Final = "caution"
CHOICE: Final = "choice"
CLEAR: Final = "clear"  # nothing that is known speaks against an answer
VERDICTS: dict[Verdict, str] = {  # what a verdict says of an answer
    FAILS: "something fails: do not act on this answer before it is mended",
    CAUTION: "usable with caution",
    CLEAR: "nothing that was checked speaks against it",
}
ORDER: tuple[Weight, ...] = (FAILS, CAUTION, CHOICE)  # from heavy to light
# by code; all others are usable, with them in mind
_FAILING = frozenset({
    "audit-behind", "audit-lost", "drowned-by-noise", "ledger-behind", "ledger-lost", "noise-grew", "not-converged",
    "published-method", "stability-bound",
})  # fmt: skip
_CHOSEN = frozenset({  # how the fit was made, or what was asked: nothing is wrong
    "controllers-reacting", "copied-channels", "drift-followed", "exact-message", "input-alignment", "law-learned",
    "law-supposed", "model-form", "moments", "private", "readings-missing", "responses-followed", "rows-thinned",
    "sensor-held",
})  # fmt: skip
_FAILED_CHECK = re.compile(r"check-[a-z0-9-]+-fail")


def weight_of(code: str) -> Weight:
    """How much a caveat of this code weighs; one that is not known here, such as of a newer version: caution."""
    if code in _FAILING or _FAILED_CHECK.fullmatch(code):
        return FAILS
    return CHOICE if code in _CHOSEN else CAUTION


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
    >>> caveat.code, caveat.weight, str(caveat)
    ('rows-left-out', 'caution', "unit 'boiler': 12 rows were left out")
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

    @property
    def weight(self) -> Weight:
        """ "fails": do not act on the answer before this is mended; "caution": usable, with this in mind; "choice": how
        the fit was made, or what was asked.
        """
        return weight_of(self.code)

    def __str__(self) -> str:
        return self.text

    def to_json(self) -> dict[str, str]:
        """In plain types, for messages and files, which do not say how much it weighs."""
        return {"code": self.code, "scope": self.scope, "text": self.text}

    def to_view(self) -> dict[str, str]:
        """In plain types, for readers."""
        return {**self.to_json(), "weight": self.weight}

    @classmethod
    def from_json(cls, found: object) -> Caveat:
        """From plain types that nobody has checked."""
        if not isinstance(found, dict) or set(found) != {"code", "scope", "text"}:
            raise ProtocolError(f"a caveat has code, scope and text, got {found!r:.80}")
        text = checked(found["text"], "the text of a caveat", _LONGEST_TEXT, composed=False)
        return cls(found["code"], found["scope"], text)


def scope_of(units: Iterable[str]) -> str:
    """Several units as a scope, each once: their names hold no slash."""
    return "/".join(dict.fromkeys(units))


def units_of(scope: str) -> tuple[str, ...]:
    """The units of a scope; none: the whole fit."""
    return tuple(scope.split("/")) if scope else ()


def distinct(caveats: Iterable[Caveat]) -> tuple[Caveat, ...]:
    """Each caveat once, in the order in which they first came."""
    return tuple(dict.fromkeys(caveats))


def by_weight(caveats: Iterable[Caveat]) -> tuple[Caveat, ...]:
    """Each caveat once, the heaviest first; those of one weight in the order in which they first came."""
    return tuple(sorted(distinct(caveats), key=lambda caveat: ORDER.index(caveat.weight)))


def weighing(caveats: Iterable[Caveat]) -> tuple[Caveat, ...]:
    """What is told with every answer, the heaviest first: all but choices, which are told with the fit."""
    return tuple(caveat for caveat in by_weight(caveats) if caveat.weight != CHOICE)


def verdict_of(caveats: Iterable[Caveat]) -> Verdict:
    """The heaviest of all that speaks against an answer; "clear" if nothing does."""
    found = weighing(caveats)
    return CLEAR if not found else FAILS if found[0].weight == FAILS else CAUTION


def to_text(caveats: Iterable[Caveat]) -> str:
    """Caveats as one JSON text, for a field of a message; of more than ``MOST`` the lightest are left out."""
    return json.dumps([caveat.to_json() for caveat in by_weight(caveats)[:MOST]], ensure_ascii=False)


def from_text(text: str) -> tuple[Caveat, ...]:
    """Caveats from the JSON text of a message, trusting nothing."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        raise ProtocolError("the caveats of a message are not JSON") from None
    if not isinstance(found, list) or len(found) > MOST:
        raise ProtocolError(f"the caveats of a message must be a list of at most {MOST}")
    return tuple(Caveat.from_json(entry) for entry in found)
