"""Options of the published methods: names, ranges, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from counterflow.errors import OptionError
from counterflow.exchange.options import choice, count, known_names, number, truth


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
    target : "predicted" (the server explains h_a[t], Eq. (12) of the paper) or "refined" (it explains ĥ_a[t], which has
        seen the measurement of row t: the smallest repair).
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
    target: str = "predicted"
    compress: bool | None = None

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> TrainingOptions:
        known_names(cls, method, given)
        values = dict(given)
        if method in ("lagrangian", "hybrid"):
            values.setdefault("solver", "gradient")
        if method == "fedgc":
            values.setdefault("xi", 0.0)
        options = cls(**values)
        options._check(method)
        return options

    def _check(self, method: str) -> None:
        choice("solver", self.solver, ("conjugate", "gradient"))
        choice("gradients", self.gradients, ("both", "algorithm-1"))
        choice("target", self.target, ("predicted", "refined"))
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
        if self.gradients == "algorithm-1" and self.target == "refined":
            raise OptionError(
                "fit: option 'gradients'='algorithm-1' sends ∂L/∂h_a only, and with 'target'='refined' the server's "
                "loss has no h_a in it: leave one of the two out"
            )
        weights = self.xi.values() if isinstance(self.xi, Mapping) else [self.xi]
        for value in weights:
            number("xi", value, low=0.0)
        number("rho", self.rho, low=0.0, open_low=True)
        number("tol", self.tol, low=0.0)
        for name in ("eta_1", "eta_2", "gamma_1", "gamma_2", "alpha_A", "alpha_B", "initial_scale", "loss_tol"):
            if (value := getattr(self, name)) is not None:
                number(name, value, low=0.0)
        if self.rounds is not None:
            count("rounds", self.rounds)
        count("warm_rounds", self.warm_rounds)
        truth("compress", self.compress)

    @property
    def scale(self) -> float:
        """Standard deviation of the initial parameters."""
        return (0.0 if self.solver == "conjugate" else 0.1) if self.initial_scale is None else float(self.initial_scale)

    def weights(self, names: tuple[str, ...]) -> tuple[float, ...]:
        """xi of every unit."""
        if not isinstance(self.xi, Mapping):
            return (float(self.xi),) * len(names)
        if set(self.xi) != set(names):
            raise OptionError(f"fit: option 'xi' must give a number for each of {list(names)}, got {list(self.xi)}")
        return tuple(float(self.xi[name]) for name in names)
