"""The command line: which commands there are, and where."""

from __future__ import annotations

import logging
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer
from typer import Option

from counterflow._version import __version__
from counterflow.cli.groups import VERBOSE, group
from counterflow.questions.registry import COMMANDS

DATA = group(
    "data",
    {
        "inspect": ("data_tables:inspect_table", "What does a table hold: rows, gaps, repeats, every channel?"),
        "read": ("data_tables", "A table from files, a database or an OPC UA server, written as one file."),
        "sample": ("data_tables", "A small log with ISA tags, to try things on, in any of six forms."),
        "prepare": ("data_tables", "A recording from a federation's logs, and all that is done to them."),
        "hai": ("data_sets", "Prepare files of the HAI data set as the paper does."),
        "swat": ("data_sets", "Prepare files of the SWaT data set as the paper does."),
        "stand-in": ("data_sets:stand_in", "Small files in the format of a data set, simulated."),
    },
    help="Logs: what they hold, and recordings from them.",
)
PRIVACY = group(
    "privacy",
    {
        "open": ("privacy_ledgers:open_ledgers", "Give units a privacy budget: one new ledger each."),
        "ledger": ("privacy_ledgers", "What has been spent, when, and on what?"),
        "plan": ("privacy_plan", "What does an epsilon buy: noise, what attacks can guess, errors of a fit?"),
    },
    help="Privacy: budgets of units, what was spent of them, and what an epsilon buys.",
)
FEDERATION = group(
    "federation",
    {
        "init": ("federation_members", "Coordinator: found a federation."),
        "join": ("federation_members", "Plant: join a federation, in two steps."),
        "approve": ("federation_members", "Coordinator: admit a plant, after a look at who asks."),
        "remove": ("federation_members", "Coordinator: cut a plant off."),
        "renew": ("federation_members", "Coordinator: new certificates before they end, or another authority."),
        "approve-job": ("federation_fit:approve_job", "Plant: its owner lets a job run, after a look at it."),
        "start": ("federation_service", "Run a party until it is stopped."),
        "stop": ("federation_service", "End a party's processes; nothing is lost."),
        "status": ("federation_service", "How does it stand?"),
        "audit": ("federation_books", "What was approved, what has left, and was all of it charged?"),
        "settle": ("federation_books", "Plant: what became of a release that was charged and has not left?"),
        "backup": ("federation_books", "Plant: a consistent copy of its audit log and its budget."),
        "restore": ("federation_books", "Plant: put a damaged audit log or budget back, if the copy is not too old."),
        "fit": ("federation_fit", "Coordinator: fit, with all plants that are members."),
        "ask": ("questions:federation_ask", "Plant: what would my outputs do, or have done, with other inputs?"),
    },
    help="Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'.\n\n"
    "Coordinator: init, approve, start, fit, renew, remove. Plant: join, start, ask, approve-job, settle, backup, "
    "restore. Both: status, audit, stop.",
    epilog="Key rotation: the plant runs join --new-key, the coordinator remove and approve, the plant join --welcome.",
)
app = group(
    "counterflow",
    {
        "demo": ("demo", "The whole job on a simulated plant, with a report."),
        "simulate": ("simulation", "Simulate a plant: recording, local models, federation file."),
        "fit": ("fit", "Fit a federation and save the fit."),
        **{name: ("questions", text) for name, text in COMMANDS.items()},
        "graph": ("graph", "Which unit acts on which, directly or through others?"),
        "check": ("check", "What speaks against the answers of a fit?"),
        "reproduce": ("reproduction", "The paper's figures and tables again, with verdicts."),
        "console": ("console", "Ask in a browser, see the answer."),
        "bench": ("bench", "How long fits and questions take on this machine."),
        "data": (DATA, "Logs: what they hold, and recordings from them."),
        "privacy": (PRIVACY, "Budgets, what was spent, and what an epsilon buys."),
        "federation": (FEDERATION, "Fits between machines: plants and a coordinator."),
    },
    help="What would my output do if that other unit were run differently?",
    epilog="Exit codes: 0 done, 2 a mistake to mend, 3 not converged, 4 the data cannot tell, 5 out of reach, "
    "6 a check fails.",
    completion=True,
    pretty_exceptions_enable=False,
)


@FEDERATION.callback()
def of_one_party() -> None:
    """Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'."""
    os.umask(0o077)  # whatever a party writes is its own


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"counterflow {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Tell more on stderr: notes of libraries, and where an error comes from.")
    ] = False,
) -> None:
    """What would my output do if that other unit were run differently?"""
    if verbose:
        ctx.find_root().meta[VERBOSE] = True
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")


def main() -> None:
    """Entry point."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot show "µ" is no reason to fail
    try:
        app(prog_name="counterflow")
    except BrokenPipeError:  # the reader, such as `head`, has gone
        sys.stderr.close()
        sys.exit(1)
