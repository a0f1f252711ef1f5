"""Options of "moments": names, ranges, defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from counterflow.errors import OptionError
from counterflow.exchange.input_feedback import REACTING
from counterflow.exchange.options import choice, count, known_names, number, truth
from counterflow.exchange.sensors import check_option
from counterflow.learning.known_edges import KnownEdges


@dataclass(frozen=True)
class MomentOptions:
    """Options of "moments" with models given, and of private fits by "sufficient" that release moments.

    Parameters
    ----------
    edges, forbidden : (cause, effect) of direct couplings that there can be, or cannot be; see ``LikelihoodOptions``.
    sensors : "treated" (default) or "as they are", or {unit: one of them}; private fits take readings as they are.
    reacting : of private fits: a unit whose inputs react to its own measurements, by its own check, is "refused"
        (default), because its inputs carry its measurements to everybody; "told": it takes part, and keeps a caveat.
    """

    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    sensors: str | Mapping[str, str] | None = None
    reacting: str = "refused"

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> MomentOptions:
        known_names(cls, method, given)
        options = cls(**given)
        choice("reacting", options.reacting, REACTING)
        check_option(options.sensors)
        KnownEdges.parse(options.edges, options.forbidden)  # refuses pairs that make no sense
        return options

    @classmethod
    def knows(cls, given: Mapping[str, Any]) -> bool:
        """Whether all options are among these."""
        return set(given) <= {entry.name for entry in fields(cls)}

    def known_edges(self, units: Sequence[str]) -> KnownEdges | None:
        """Couplings that there can be between these units; None: all. OptionError if another unit is named."""
        return KnownEdges.of_units(self.edges, self.forbidden, units)


@dataclass(frozen=True)
class MomentLogOptions:
    """Options of "moments" from logs, and of private fits from logs.

    Parameters
    ----------
    memory : rows that impulse responses are followed; it must be chosen without looking at measurements. None: a
        twentieth of the record, from 10 to 100.
    same_row : whether an input acts on the row that it stands in, or {unit: whether}.
    sensors, reacting : see ``MomentOptions``.
    """

    memory: int | None = None
    same_row: bool | Mapping[str, bool] | None = None
    sensors: str | Mapping[str, str] | None = None
    reacting: str = "refused"

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> MomentLogOptions:
        for name in ("edges", "forbidden"):
            if given.get(name) is not None:
                raise OptionError(
                    f"fit: option {name!r} is of direct couplings, and moments of logs tell what inputs do in all, by "
                    "whatever way; leave it out, or give models"
                )
        known_names(cls, method, given)
        options = cls(**given)
        choice("reacting", options.reacting, REACTING)
        check_option(options.sensors)
        if options.memory is not None:
            count("memory", options.memory)
            number("memory", options.memory, low=3)
        for value in options.same_row.values() if isinstance(options.same_row, Mapping) else [options.same_row]:
            truth("same_row", value)
        return options
