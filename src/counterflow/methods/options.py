"""Options of ``counterflow.fit``: names, ranges, defaults, in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar

import numpy as np

from counterflow.errors import OptionError

LIKELIHOOD_METHODS = ("sufficient", "centralized")
PUBLISHED_METHODS = ("penalty", "lagrangian", "hybrid", "fedgc")
METHODS = (*LIKELIHOOD_METHODS, *PUBLISHED_METHODS, "oracle")


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the published methods.

    Parameters
    ----------
    solver : "conjugate" (exact elimination and conjugate gradients, a few rounds; penalty objective only) or
        "gradient" (Algorithm 1 as published). The augmented Lagrangian always takes gradient (IMEX) steps.
    xi : weight of the disentanglement penalty, one number or {unit: number}.
    rho : penalty of the augmented Lagrangian.
    rounds : at most so many (hybrid: after the warm ones); default 2000 for "gradient", 50 for "conjugate".
    warm_rounds : hybrid: rounds of augmented Lagrangian before the penalty method; default 200.
    tol : relative gradient at which training has converged.
    loss_tol : stop when the server loss is at or below it (the published rule); None: no such rule.
    eta_1, eta_2, gamma_1, gamma_2, alpha_A, alpha_B : step sizes of the paper; None: derived from the data.
    initial_scale : standard deviation of the random initial parameters; default 0.1 for "gradient", 0 for "conjugate".
    gradients : "both" (∂L/∂h_a and ∂L/∂ĥ_a are sent) or "algorithm-1" (only the first, as in the pseudocode).
    compress : let rounds in one process cost the same whatever T is; None: where it pays and nobody watches.
    """

    solver: str = "conjugate"
    xi: float | Mapping[str, float] = 10.0
    rho: float = 10.0
    rounds: int | None = None
    warm_rounds: int = 200
    tol: float = 1e-8
    loss_tol: float | None = None
    eta_1: float | None = None
    eta_2: float | None = None
    gamma_1: float | None = None
    gamma_2: float | None = None
    alpha_A: float | None = None
    alpha_B: float | None = None
    initial_scale: float | None = None
    gradients: str = "both"
    compress: bool | None = None

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> TrainingOptions:
        _known_names(cls, method, given)
        values = dict(given)
        if method in ("lagrangian", "hybrid"):
            values.setdefault("solver", "gradient")
        if method == "fedgc":
            values.setdefault("xi", 0.0)
        options = cls(**values)
        options._check(method)
        return options

    def _check(self, method: str) -> None:
        _choice("solver", self.solver, ("conjugate", "gradient"))
        _choice("gradients", self.gradients, ("both", "algorithm-1"))
        if method == "lagrangian" and self.solver == "conjugate":
            raise OptionError(
                "fit: option 'solver'='conjugate' is for the penalty objective; the augmented "
                "Lagrangian takes gradient (IMEX) steps: leave the option out"
            )
        if self.gradients == "algorithm-1" and (self.solver == "conjugate" or method == "lagrangian"):
            raise OptionError(
                "fit: option 'gradients'='algorithm-1' goes only with solver='gradient' of the penalty "
                "method: without ∂L/∂ĥ_a the units' gradient is not that of the loss"
            )
        weights = self.xi.values() if isinstance(self.xi, Mapping) else [self.xi]
        for value in weights:
            _number("xi", value, low=0.0)
        _number("rho", self.rho, low=0.0, open_low=True)
        _number("tol", self.tol, low=0.0)
        for name in ("eta_1", "eta_2", "gamma_1", "gamma_2", "alpha_A", "alpha_B", "initial_scale", "loss_tol"):
            if (value := getattr(self, name)) is not None:
                _number(name, value, low=0.0)
        for name, count in (("rounds", self.rounds), ("warm_rounds", self.warm_rounds)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
                raise OptionError(f"fit: option {name!r} must be a whole number of at least 1, got {count!r}")
        if self.compress is not None and not isinstance(self.compress, bool):
            raise OptionError(f"fit: option 'compress' must be True, False or None, got {self.compress!r}")

    def weights(self, names: tuple[str, ...]) -> tuple[float, ...]:
        """xi of every unit."""
        if not isinstance(self.xi, Mapping):
            return (float(self.xi),) * len(names)
        if set(self.xi) != set(names):
            raise OptionError(f"fit: option 'xi' must give a number for each of {list(names)}, got {list(self.xi)}")
        return tuple(float(self.xi[name]) for name in names)


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
    form: str = "partitioned"
    order: int | Mapping[str, int] | None = None
    rank: int | Mapping[str, int] | None = None
    same_row: bool | Mapping[str, bool] | None = None

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> LikelihoodOptions:
        _known_names(cls, method, given)
        options = cls(**given)
        _choice("estimate", options.estimate, ("couplings", "blocks", "all"))
        _number("tol", options.tol, low=0.0)
        count = options.evaluations
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise OptionError(f"fit: option 'evaluations' must be a whole number of at least 1, got {count!r}")
        if options.uncertainty is not None and not isinstance(options.uncertainty, bool):
            raise OptionError(f"fit: option 'uncertainty' must be True, False or None, got {options.uncertainty!r}")
        _choice("form", options.form, ("partitioned", "free"))
        for name, kind in (("order", int), ("rank", int), ("same_row", bool)):
            value = getattr(options, name)
            for one in value.values() if isinstance(value, Mapping) else [value]:
                good = one is None or (type(one) is kind and (kind is bool or one >= 1))
                if not good:
                    wanted = "True or False" if kind is bool else "a whole number of at least 1"
                    raise OptionError(f"fit: option {name!r} must be {wanted}, or {{unit: ...}} of them, got {one!r}")
        if options.form == "free" and isinstance(options.order, Mapping):
            raise OptionError("fit: option 'order' must be one number if form='free': its states belong to no unit")
        return options

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


def _known_names(cls: type, method: str, given: Mapping[str, Any]) -> None:
    names = [f.name for f in fields(cls)]
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"
            raise OptionError(f"fit: method {method!r} has no option {name!r}{hint}")


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError(f"fit: option {name!r} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _number(name: str, value: object, low: float, open_low: bool = False) -> None:
    good = (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )
    if not good or value < low or (open_low and value == low):  # type: ignore[operator]
        bound = "greater than" if open_low else "at least"
        raise OptionError(f"fit: option {name!r} must be a finite number {bound} {low:g}, got {value!r}")
