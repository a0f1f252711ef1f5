"""What engineers know of direct couplings: which unit can act on which without a third one in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterflow.errors import OptionError

Pair = tuple[str, str]  # (cause, effect)


@dataclass(frozen=True)
class KnownEdges:
    """Which direct couplings between two different units there can be; of the others A_mn and B_mn are zero.

    Parameters
    ----------
    edges : (cause, effect) of the only couplings that there can be; None: all that are not forbidden.
    forbidden : (cause, effect) of couplings that there cannot be.

    ``parse`` takes lists of lists, too, as JSON and TOML have them.

    Examples
    --------
    >>> known = KnownEdges(edges=(("boiler", "turbine"),))
    >>> known.allows("boiler", "turbine"), known.allows("turbine", "boiler"), known.allows("boiler", "boiler")
    (True, False, True)
    >>> print(KnownEdges.parse(None, [["turbine", "boiler"]]))
    all but turbine -> boiler
    """

    edges: tuple[Pair, ...] | None = None
    forbidden: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        if self.edges is not None:
            object.__setattr__(self, "edges", _pairs("edges", self.edges))
        object.__setattr__(self, "forbidden", _pairs("forbidden", self.forbidden))
        for pair in self.edges or ():
            if pair in self.forbidden:
                raise OptionError(
                    f"fit: {_shown(pair)} stands in 'edges' and in 'forbidden': leave it out of one of them"
                )

    @classmethod
    def parse(cls, edges: Any, forbidden: Any) -> KnownEdges | None:
        """From options as somebody has written them; None if neither is given."""
        return None if edges is None and forbidden is None else cls(edges, () if forbidden is None else forbidden)

    def allows(self, cause: str, effect: str) -> bool:
        """Whether ``cause`` can act on ``effect`` directly; on itself, each unit can."""
        if cause == effect:
            return True
        return (self.edges is None or (cause, effect) in self.edges) and (cause, effect) not in self.forbidden

    @property
    def units(self) -> frozenset[str]:
        """All units that a pair names."""
        return frozenset(name for pair in (*(self.edges or ()), *self.forbidden) for name in pair)

    def check(self, units: Sequence[str]) -> None:
        """OptionError if a pair names a unit that is not there."""
        for option, pairs in (("edges", self.edges or ()), ("forbidden", self.forbidden)):
            for pair in pairs:
                for name in pair:
                    if name not in units:
                        raise OptionError(
                            f"fit: option {option!r}: {_shown(pair)} names unit {name!r:.80}, but the units are "
                            f"{', '.join(units)}"
                        )

    def __str__(self) -> str:
        listed = ", ".join(map(_shown, self.forbidden if self.edges is None else self.edges))
        if not listed:
            return "all" if self.edges is None else "none"
        return f"all but {listed}" if self.edges is None else f"only {listed}"


def _pairs(option: str, given: object) -> tuple[Pair, ...]:
    """(cause, effect) of two different units, each pair once."""
    if not isinstance(given, list | tuple):
        raise OptionError(
            f"fit: option {option!r} must be a list of (cause, effect), such as [('boiler', 'turbine')], "
            f"got {given!r:.80}"
        )
    found: dict[Pair, None] = {}
    for pair in given:
        good = isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
        if not good:
            raise OptionError(
                f"fit: option {option!r}: {pair!r:.80} is no pair; give (cause, effect), two names of units"
            )
        cause, effect = pair
        if cause == effect:
            raise OptionError(
                f"fit: option {option!r}: {_shown((cause, effect))} is a unit and itself; give two different units: "
                "what a unit does to itself is in its model"
            )
        if (cause, effect) in found:
            raise OptionError(f"fit: option {option!r}: {_shown((cause, effect))} is given twice; give it once")
        found[cause, effect] = None
    return tuple(found)


def _shown(pair: Pair) -> str:
    return f"{pair[0]:.80} -> {pair[1]:.80}"
