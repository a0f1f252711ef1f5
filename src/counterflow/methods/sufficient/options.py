"""Options of "sufficient" and "centralized": names, ranges, defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from counterflow.errors import OptionError
from counterflow.estimation.known_edges import KnownEdges
from counterflow.methods.options import choice, count, known_names, number, truth


@dataclass(frozen=True)
class LikelihoodOptions:
    """Options of "sufficient" and "centralized".

    Parameters
    ----------
    estimate : "couplings" (off-diagonal blocks; the units' own blocks and process noise are taken as given), "blocks"
        (all of A and B) or "all" (process noise too).
    tol : stop when the gradient could move no estimate by more than about this many standard errors.
    evaluations : at most so many passes over the data.
    uncertainty : whether to compute standard errors; None: where that takes seconds, not minutes.
    edges : (cause, effect) of the only direct couplings that there can be between different units; None: of all. What
        is not among them is zero, not estimated. An empty list: no unit acts on another.
    forbidden : (cause, effect) of direct couplings that there cannot be.
    form : of a fit from logs (``models=None``): "partitioned" (every state belongs to a unit) or "free" (to nobody).
    order : of a fit from logs: states of each unit, one number or {unit: number}; in the free form, of the whole
        system. None: by the likelihood of held-out rows.
    rank : of a fit from logs: numbers a row that each unit sends, one number or {unit: number}. None: as many as stand
        out of the noise.
    same_row : of a fit from logs: whether the input of row t acts on row t already, True, False or {unit: True or
        False}. None: by the likelihood of held-out rows.
    """

    estimate: str = "couplings"
    tol: float = 1e-5
    evaluations: int = 200
    uncertainty: bool | None = None
    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    form: str = "network"
    order: int | Mapping[str, int] | None = None
    rank: int | Mapping[str, int] | None = None
    same_row: bool | Mapping[str, bool] | None = None

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> LikelihoodOptions:
        known_names(cls, method, given)
        options = cls(**given)
        choice("estimate", options.estimate, ("couplings", "blocks", "all"))
        number("tol", options.tol, low=0.0)
        count("evaluations", options.evaluations)
        truth("uncertainty", options.uncertainty)
        choice("form", options.form, ("network", "partitioned", "free"))
        for name, kind in (("order", int), ("rank", int), ("same_row", bool)):
            value = getattr(options, name)
            for one in value.values() if isinstance(value, Mapping) else [value]:
                good = one is None or (type(one) is kind and (kind is bool or one >= 1))
                if not good:
                    wanted = "True or False" if kind is bool else "a whole number of at least 1"
                    raise OptionError(f"fit: option {name!r} must be {wanted}, or {{unit: ...}} of them, got {one!r}")
        if options.form == "free" and isinstance(options.order, Mapping):
            raise OptionError("fit: option 'order' must be one number if form='free': its states belong to no unit")
        if options._known is not None and options.form == "free":
            raise OptionError(
                "fit: options 'edges' and 'forbidden' go with form='partitioned': in the free form states belong to no "
                "unit, so it has no couplings between units"
            )
        return options

    @property
    def _known(self) -> KnownEdges | None:
        return KnownEdges.parse(self.edges, self.forbidden)

    def known_edges(self, units: Sequence[str]) -> KnownEdges | None:
        """Couplings that there can be between these units; None: all. OptionError if another unit is named.

        Examples
        --------
        >>> chosen = LikelihoodOptions.parse("sufficient", {"edges": [["boiler", "turbine"]]})
        >>> print(chosen.known_edges(("boiler", "turbine")))
        only boiler -> turbine
        """
        known = self._known
        if known is not None:
            known.check(units)
        return known

    LOGS: ClassVar[tuple[str, ...]] = ("form", "order", "rank", "same_row")

    def for_logs(self, name: str, units: tuple[str, ...]) -> dict[str, Any]:
        """An option of fits from logs, by unit; units that it says nothing of are left out."""
        value = getattr(self, name)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            return dict.fromkeys(units, value)
        for unit in value:
            if unit not in units:
                raise OptionError(f"fit: option {name!r} names unit {unit!r}, but the units are {', '.join(units)}")
        return dict(value)
