"""``counterflow privacy``: budgets of units, what was spent of them, and what an epsilon buys."""

from __future__ import annotations

from counterflow.cli.groups import group

app = group(
    "privacy",
    {
        "open": ("privacy_ledgers:open_ledgers", "Give units a privacy budget: one new ledger each."),
        "ledger": ("privacy_ledgers", "What has been spent, when, and on what?"),
        "plan": ("privacy_plan", "What does an epsilon buy: noise, what attacks can guess, errors of a fit?"),
    },
    help="Privacy: budgets of units, what was spent of them, and what an epsilon buys.",
)
