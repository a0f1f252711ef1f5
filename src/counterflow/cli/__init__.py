"""The command line: which commands there are, and where."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from counterflow._version import __version__
from counterflow.cli.groups import group
from counterflow.questions import COMMANDS

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
        "data": ("data:app", "Logs: what they hold, and recordings from them."),
        "privacy": ("privacy:app", "Budgets, what was spent, and what an epsilon buys."),
        "federation": ("federation:app", "Fits between machines: plants and a coordinator."),
    },
    help="What would my output do if that other unit were run differently?",
    epilog="Exit codes: 0 done, 2 a mistake to mend, 3 not converged, 4 the data cannot tell, 5 out of reach, "
    "6 a check fails.",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"counterflow {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """What would my output do if that other unit were run differently?"""


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
