"""Options of "sufficient" and "centralized": names, ranges, defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterflow.exchange.input_feedback import REACTING
from counterflow.exchange.options import choice, count, known_names, number, truth
from counterflow.exchange.sensors import check_option
from counterflow.learning.known_edges import KnownEdges


@dataclass(frozen=True)
class LikelihoodOptions:
    """Options of "sufficient" with models given, and of "centralized".

    Parameters
    ----------
    estimate : "couplings" (off-diagonal blocks; the units' own blocks and process noise are taken as given), "blocks"
        (all of A and B) or "all" (process noise too).
    tol : stop when the gradient could move no estimate by more than about this many standard errors.
    evaluations : at most so many passes over the data; it stops earlier where nothing can be gained any more.
    uncertainty : whether to compute standard errors; None: where that takes seconds, not minutes.
    edges : (cause, effect) of the only direct couplings that there can be between different units; None: of all. What
        is not among them is zero, not estimated. An empty list: no unit acts on another.
    forbidden : (cause, effect) of direct couplings that there cannot be.
    sensors : "treated" (default) or "as they are", or {unit: one of them}: whether units leave out readings of spiking,
        stuck, saturated and held sensors. Private fits take them as they are.
    reacting : of private fits: a unit whose inputs react to measurements, by its own check or by declared loops, is
        "refused" (default), because its inputs carry measurements to everybody; "told": it takes part, and keeps a
        caveat.
    """

    estimate: str = "couplings"
    tol: float = 1e-5
    evaluations: int = 2000
    uncertainty: bool | None = None
    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    sensors: str | Mapping[str, str] | None = None
    reacting: str = "refused"

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> LikelihoodOptions:
        known_names(cls, method, given)
        options = cls(**given)
        choice("estimate", options.estimate, ("couplings", "blocks", "all"))
        number("tol", options.tol, low=0.0)
        count("evaluations", options.evaluations)
        truth("uncertainty", options.uncertainty)
        choice("reacting", options.reacting, REACTING)
        check_option(options.sensors)
        KnownEdges.parse(options.edges, options.forbidden)  # refuses pairs that make no sense
        return options

    def known_edges(self, units: Sequence[str]) -> KnownEdges | None:
        """Couplings that there can be between these units; None: all. OptionError if another unit is named.

        Examples
        --------
        >>> chosen = LikelihoodOptions.parse("sufficient", {"edges": [["boiler", "turbine"]]})
        >>> print(chosen.known_edges(("boiler", "turbine")))
        only boiler -> turbine
        """
        return KnownEdges.of_units(self.edges, self.forbidden, units)
