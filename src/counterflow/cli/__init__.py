"""The command line. Heavy imports happen inside the commands: ``counterflow --help`` is instant."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from counterflow._version import __version__
from counterflow.errors import CounterflowError

USAGE = 2  # exit code of a mistake that the user can mend; 1 is a defect of ours, 130 an interrupt

app = typer.Typer(
    name="counterflow",
    help="What would my output do if that other unit were run differently?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Format(StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for the recording, the saved fit and the report.")] = Path(
        "demo-output"
    ),
    steps: Annotated[int, typer.Option(min=200, max=1_000_000, help="Minutes of plant to simulate.")] = 4000,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation and of the fit.")] = 0,
    method: Annotated[str | None, typer.Option(help="How to fit; default: that of counterflow.fit.")] = None,
    answer_format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.table,
) -> None:
    """Simulate a boiler, a turbine and a water treatment, fit the federation, ask what-if, write a report."""
    from counterflow.cli.demo import run

    run(out, steps=steps, seed=seed, method=method, as_json=answer_format is Format.json)


def main() -> None:
    """Entry point: an error of the counterflow family is one line on stderr and exit code 2."""
    try:
        app(prog_name="counterflow")
    except CounterflowError as error:
        typer.echo(f"counterflow: {' '.join(str(error).split())}", err=True)
        sys.exit(USAGE)
    except BrokenPipeError:  # the reader, such as `head`, has gone
        sys.stderr.close()
        sys.exit(1)
