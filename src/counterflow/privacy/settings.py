"""What a user asks for: ``cf.Privacy``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from counterflow.errors import OptionError
from counterflow.privacy.accounting import ANY_ROWS, LEAST_DELTA, Cost, check_budget, gaussian_mu
from counterflow.privacy.noise import BITS_SHORT, Source

LARGEST_EPSILON = 100.0
ACCOUNTING = ("rigorous", "published")
RELEASES = ("moments", "rows")


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of each unit's measurements against everybody who sees what leaves the unit.

    Two records are neighbours if they differ in any ``window`` consecutive rows of one unit's measurements. Inputs, the
    pattern of missing rows and the local models are not protected: inputs are sent as they are, and models are taken to
    come from elsewhere (``models``).

    Parameters
    ----------
    epsilon, delta : what this fit may spend, at most, of every unit.
    clip : rigorous: a row s[t] of a message is shortened to this length at most, in standard deviations of its
        measurement noise. None: by an ellipsoid around what the unit's own model and inputs foresee, whose size is
        found from the record at a twentieth of the budget (docs/theory/privacy.md). Published: the bound R_max on the
        length of y[t] and u[t].
    window : how many consecutive measurements are protected as one.
    accounting : "rigorous" (method "sufficient": exact, by the analytic Gaussian mechanism) or "published" (the
        paper's methods: the paper's formulas, whose gaps are listed in ``Fit.privacy.gaps``).
    ledger : directory with the units' durable budgets, one file ``<unit>.ledger`` each, made by ``counterflow privacy
        open``; every release is written there before it leaves. None: this fit is accounted for by itself only.
    models : "excluded" (the default: the guarantee does not cover what models or preprocessing reveal of the rows
        they were fitted on), or (epsilon, delta) that fitting them on these rows has cost already; it is counted.
    start : which row of the unit's own timeline row 0 of the recording is. Releases of rows that do not overlap do not
        add up. None: it is not known, so that this release overlaps every other. A durable ledger knows rows again that
        it has seen: they add up, whatever is said here. Between machines a plant goes by its own log's time stamps.
    release : what units release by rigorous accounting. "moments": projections of their measurements on what all inputs
        did, so that an error falls as 1/(εT); each unit is shown signals that are made of the others' inputs, and
        questions about rows are refused. "rows": every row of its message with noise on it, an error of about
        1/(ε√T); nobody is shown anything of others. None: moments, unless options ask for what only rows can give.
    seed : None: noise from the operating system. A number makes the noise repeatable, for tests and simulations; it
        then protects nothing, and the report says so.

    Examples
    --------
    >>> Privacy(epsilon=1.0, delta=1e-6).multiplier(1000) < Privacy(epsilon=0.5, delta=1e-6).multiplier(1000)
    True
    """

    epsilon: float
    delta: float
    clip: float | None = None
    window: int = 1
    accounting: str = "rigorous"
    ledger: str | Path | None = None
    models: str | tuple[float, float] = "excluded"
    start: int | None = None
    seed: int | None = None
    release: str | None = None

    def __post_init__(self) -> None:
        epsilon, delta = check_budget(self.epsilon, self.delta, "Privacy")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)
        if epsilon > LARGEST_EPSILON:
            raise OptionError(
                f"Privacy: epsilon={epsilon:g} protects nothing (a guess is right up to e^epsilon times as often); "
                f"give at most {LARGEST_EPSILON:g}, or leave privacy out"
            )
        clip, start, models = self.clip, self.start, self.models
        rules = {
            "clip": (clip is None or _is_number(clip, 1e-100, 1e100), "a number from 1e-100 to 1e100, or None"),
            "window": (_is_count(self.window, 1), "a whole number from 1 to 2^40 - 1"),
            "start": (start is None or _is_count(start, 0), "a whole number from 0 to 2^40 - 1, or None"),
            "accounting": (
                isinstance(self.accounting, str) and self.accounting in ACCOUNTING,
                "'rigorous' or 'published'",
            ),
            "release": (
                self.release is None or (isinstance(self.release, str) and self.release in RELEASES),
                "'moments', 'rows' or None",
            ),
            "ledger": (isinstance(self.ledger, str | Path | None), "a directory, or None"),
            "models": (
                (isinstance(models, str) and models == "excluded")
                or (isinstance(models, tuple) and len(models) == 2 and all(_is_number(x, 0.0, 1e300) for x in models)),
                "'excluded' or (epsilon, delta)",
            ),
        }
        for name, (holds, wanted) in rules.items():
            if not holds:
                raise OptionError(f"Privacy: {name} must be {wanted}, got {getattr(self, name)!r:.80}")
        if clip is not None:
            object.__setattr__(self, "clip", float(clip))
        if self.accounting == "published" and self.release is not None:
            raise OptionError("Privacy: the published accounting has a release of its own; leave 'release' out")
        if self.accounting == "published" and models != "excluded":
            raise OptionError("Privacy: the published accounting says nothing of models; leave 'models' out")
        if any(spent >= most for spent, most in zip(self.model_cost, (epsilon, delta), strict=True)):
            raise OptionError(
                f"Privacy: models have cost {models!r}, which must be (epsilon, delta) below what the fit may spend in "
                f"all, ({epsilon:g}, {delta:g})"
            )
        _ = self.source  # checks the seed

    @property
    def source(self) -> Source:
        """Where the noise comes from."""
        return Source(self.seed)

    @property
    def model_cost(self) -> tuple[float, float]:
        """(ε, δ) that the local models have cost already; zeros if they are excluded."""
        epsilon, delta = self.models if isinstance(self.models, tuple) else (0.0, 0.0)
        return float(epsilon), float(delta)

    def multiplier(self, numbers: int) -> float:
        """σ/Δ of one release of ``numbers`` numbers, Δ the length by which ``window`` rows can move it.

        Rigorous accounting only: the analytic Gaussian mechanism for what models leave of ε and δ, less what the finite
        number of random bits costs.
        """
        spent_epsilon, spent_delta = self.model_cost
        epsilon = self.epsilon - spent_epsilon
        delta = self.delta - spent_delta - (1 + math.exp(epsilon)) * numbers * BITS_SHORT
        if delta < max(LEAST_DELTA, 0.5 * (self.delta - spent_delta)):
            raise OptionError(
                f"Privacy: delta={self.delta:g} is too small for {numbers} numbers and epsilon={self.epsilon:g}: the "
                "noise source itself is not that exact; raise delta or lower epsilon"
            )
        return 1 / gaussian_mu(epsilon, delta)

    def cost(self, rows: int, numbers: int) -> Cost:
        """Of one release of so many rows and numbers."""
        return Cost(*self.span(rows), row_loss=self.row_loss(numbers))

    def span(self, rows: int) -> tuple[int, int]:
        """The rows of the unit's timeline that a recording of so many rows is; all there could be, if nobody knows."""
        return ANY_ROWS if self.start is None else (self.start, self.start + rows)

    def row_loss(self, numbers: int) -> float:
        """μ² that one release costs each of its rows; ``window`` of them together reach what was asked for."""
        return 1 / (self.window * self.multiplier(numbers) ** 2)


def _is_number(value: object, low: float, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 2**40
