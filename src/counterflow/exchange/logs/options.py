"""Options of "sufficient" where units have logs and no models: names, ranges, defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterflow.errors import OptionError
from counterflow.exchange.options import known_names
from counterflow.exchange.sensors import check_option
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.system import ALL, PRESENT


@dataclass(frozen=True)
class LogOptions:
    """Options of "sufficient" from logs (``models=None``).

    Parameters
    ----------
    rank : numbers a row that each unit sends, one number or {unit: number}. None: as many as stand out of the noise,
        and two to spare.
    same_row : whether the input of row t acts on row t already, True, False or {unit: True or False}. None: by the
        likelihood of held-out rows.
    edges : (cause, effect) of the only direct couplings that there can be between different units; None: of all.
    forbidden : (cause, effect) of direct couplings that there cannot be.
    regime : "present" (default): where the plant changed, the way of running since the last change; "all": one model of
        all rows; a row number: the way of running of that row.
    sensors : "treated" (default) or "as they are", or {unit: one of them}: whether units leave out readings of spiking,
        stuck, saturated and held sensors.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(400, rng=2), rank=2, forbidden=[("turbine", "boiler")])
    >>> found.graph().edge("turbine", "boiler").possible
    False
    """

    rank: int | Mapping[str, int] | None = None
    same_row: bool | Mapping[str, bool] | None = None
    edges: Sequence[Sequence[str]] | None = None
    forbidden: Sequence[Sequence[str]] | None = None
    sensors: str | Mapping[str, str] | None = None
    regime: str | int = PRESENT

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> LogOptions:
        for name in ("estimate", "tol", "evaluations", "uncertainty"):
            if name in given:
                raise OptionError(
                    f"fit: option {name!r} goes with given models; a fit from logs estimates everything, always with "
                    "intervals: leave it out"
                )
        known_names(cls, method, given)
        options = cls(**given)
        for name, kind in (("rank", int), ("same_row", bool)):
            value = getattr(options, name)
            for one in value.values() if isinstance(value, Mapping) else [value]:
                good = one is None or (type(one) is kind and (kind is bool or one >= 1))
                if not good:
                    wanted = "True or False" if kind is bool else "a whole number of at least 1"
                    raise OptionError(f"fit: option {name!r} must be {wanted}, or {{unit: ...}} of them, got {one!r}")
        check_option(options.sensors)
        row = type(options.regime) is int and options.regime >= 0
        if not row and options.regime not in (PRESENT, ALL):
            raise OptionError(
                f"fit: option 'regime' must be {PRESENT!r}, {ALL!r} or a row number, got {options.regime!r}"
            )
        KnownEdges.parse(options.edges, options.forbidden)  # refuses pairs that make no sense
        return options

    def known_edges(self, units: Sequence[str]) -> KnownEdges | None:
        """Couplings that there can be between these units; None: all. OptionError if another unit is named."""
        return KnownEdges.of_units(self.edges, self.forbidden, units)
