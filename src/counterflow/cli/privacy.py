"""``counterflow privacy``: options and help; the work is in modules of its own, imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterflow.cli.output import Format

app = typer.Typer(
    name="privacy",
    help="Privacy: budgets of units, what was spent of them, and what an epsilon buys.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

AnswerFormat = Annotated[Format, typer.Option("--format", help="What to print.")]
Delta = Annotated[float, typer.Option(help="Chance that the promise fails; far below 1 over the number of rows.")]
Window = Annotated[int, typer.Option(help="Consecutive measurements that are protected as one.")]


@app.command("open")
def open_ledgers(
    place: Annotated[
        Path, typer.Argument(metavar="PLACE", help="Directory of ledgers; or, for one unit, a file ending in .ledger.")
    ],
    unit: Annotated[list[str], typer.Option(metavar="NAME", help="Whose budget; repeat it for several units.")],
    epsilon: Annotated[float, typer.Option(help="What each unit may spend over the life of its ledger.")],
    delta: Delta,
    window: Window = 1,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Give units a privacy budget: one new ledger each. A ledger that exists is never touched.

    Example: counterflow privacy open ledgers --unit boiler --unit turbine --epsilon 3 --delta 1e-6
    """
    from counterflow.cli import privacy_ledgers

    privacy_ledgers.open_new(place, unit, epsilon, delta, window, answer_format=answer_format)


@app.command()
def ledger(
    place: Annotated[Path, typer.Argument(metavar="PATH", help="A ledger, or a directory of ledgers.")],
    last: Annotated[int, typer.Option(min=0, help="Show only so many releases, the last ones (0: all).")] = 0,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """What has been spent, when, and on what? Every ledger is checked from its first entry to its last.

    Example: counterflow privacy ledger ledgers/boiler.ledger
    """
    from counterflow.cli import privacy_ledgers

    privacy_ledgers.show(place, last, answer_format=answer_format)


@app.command()
def plan(
    epsilon: Annotated[str, typer.Option(help="Numbers with commas between them.")] = "0.1,0.3,1,3,10",
    delta: Delta = 1e-6,
    window: Window = 1,
    releases: Annotated[int, typer.Option(help="How many fits of the same rows the epsilon has to pay for.")] = 1,
    fit: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A saved fit: also tell what its couplings' errors would be.")
    ] = None,
    plant: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same for a plant in TOML, whose inputs are white.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=100, max=1_000_000, help="Rows to plan for, with --plant (4000).")
    ] = None,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """What does an epsilon buy: how much noise, how well could an attack guess, and how exact would a fit be?

    No measurement is looked at: errors are those of simulated rows.

    Example: counterflow privacy plan --epsilon 0.5,1,2 --delta 1e-6 --fit fit
    """
    from counterflow.cli import privacy_plan

    privacy_plan.plan(epsilon, delta, window, releases, fit=fit, plant=plant, steps=steps, answer_format=answer_format)
