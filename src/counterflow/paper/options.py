"""Options of the published methods: names, ranges, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from counterflow.errors import OptionError
from counterflow.exchange.options import Check, Options, count, number, one_of, option, truth


def _weights(name: str, value: object) -> None:
    for one in value.values() if isinstance(value, Mapping) else [value]:
        number(name, one, low=0.0)


def _unless_none(check: Check) -> Check:
    """Of what may be None: derived from the data, or no rule."""
    return lambda name, value: None if value is None else check(name, value)


_NOT_NEGATIVE = _unless_none(partial(number, low=0.0))


@dataclass(frozen=True)
class TrainingOptions(Options):
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

    solver: str = option("conjugate", one_of("conjugate", "gradient"))
    xi: float | Mapping[str, float] = option(10.0, _weights)
    rho: float = option(10.0, partial(number, low=0.0, open_low=True))
    rounds: int | None = option(None, _unless_none(count))
    warm_rounds: int = option(200, count)
    tol: float = option(1e-8, partial(number, low=0.0))
    loss_tol: float | None = option(None, _NOT_NEGATIVE)
    eta_1: float | None = option(None, _NOT_NEGATIVE)
    eta_2: float | None = option(None, _NOT_NEGATIVE)
    gamma_1: float | None = option(None, _NOT_NEGATIVE)
    gamma_2: float | None = option(None, _NOT_NEGATIVE)
    alpha_A: float | None = option(None, _NOT_NEGATIVE)
    alpha_B: float | None = option(None, _NOT_NEGATIVE)
    initial_scale: float | None = option(None, _NOT_NEGATIVE)
    gradients: str = option("both", one_of("both", "algorithm-1"))
    target: str = option("predicted", one_of("predicted", "refined"))
    compress: bool | None = option(None, truth)

    @classmethod
    def parse(cls, method: str, given: Mapping[str, Any]) -> Self:
        values = dict(given)
        if method in ("lagrangian", "hybrid"):
            values.setdefault("solver", "gradient")
        if method == "fedgc":
            values.setdefault("xi", 0.0)
        chosen = super().parse(method, values)
        conjugate, pseudocode = chosen.solver == "conjugate", chosen.gradients == "algorithm-1"
        for unfit, why in (
            (method == "lagrangian" and conjugate,
             "'solver'='conjugate' is for the penalty objective; the augmented Lagrangian takes gradient (IMEX) steps: "
             "leave the option out"),
            (pseudocode and (conjugate or method == "lagrangian"),
             "'gradients'='algorithm-1' goes only with solver='gradient' of the penalty method: without ∂L/∂ĥ_a the "
             "units' gradient is not that of the loss"),
            (pseudocode and chosen.target == "refined",
             "'gradients'='algorithm-1' sends ∂L/∂h_a only, and with 'target'='refined' the server's loss has no h_a "
             "in it: leave one of the two out"),
        ):  # fmt: skip
            if unfit:
                raise OptionError(f"fit: option {why}")
        return chosen

    @property
    def refined_gradient(self) -> bool:
        """Whether ∂L/∂ĥ_a is sent."""
        return self.gradients == "both"

    @property
    def refined_target(self) -> bool:
        return self.target == "refined"

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
