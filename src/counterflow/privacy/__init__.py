"""Differential privacy: mechanisms, accounting, the durable budget ledger, the leakage meter."""

from counterflow.privacy.accounting import (
    ANY_ROWS,
    Cost,
    classical_multiplier,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    total_epsilon,
)
from counterflow.privacy.ledger import Entry, Ledger, Mark, ledger_path
from counterflow.privacy.noise import Source, gaussian_release, grid_of
from counterflow.privacy.settings import Privacy
from counterflow.privacy.stretch import RowRange

__all__ = [
    "ANY_ROWS", "Cost", "Entry", "Ledger", "Mark", "Privacy", "RowRange", "Source", "classical_multiplier",
    "gaussian_delta", "gaussian_epsilon", "gaussian_mu", "gaussian_release", "grid_of", "ledger_path", "total_epsilon",
]  # fmt: skip
