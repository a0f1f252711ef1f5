"""The command line. Heavy imports happen inside the commands: ``counterflow --help`` is instant."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from counterflow._version import __version__
from counterflow.cli import commands
from counterflow.cli import data as data_commands
from counterflow.cli import federation as federation_commands
from counterflow.cli import privacy as privacy_commands
from counterflow.cli.output import UNIDENTIFIED, USAGE, Format
from counterflow.errors import CounterflowError, UnidentifiedError


class _Group(TyperGroup):
    """Tells an error of the counterflow family in one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CounterflowError as error:
            typer.echo(f"counterflow: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(UNIDENTIFIED if isinstance(error, UnidentifiedError) else USAGE) from error


app = typer.Typer(
    name="counterflow",
    cls=_Group,
    help="What would my output do if that other unit were run differently?",
    epilog="Exit codes: 0 done, 2 a mistake to mend, 3 not converged, 4 the data cannot tell, 5 out of reach, "
    "6 a check fails.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: the boxes would take as long to import as all the rest
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


@app.command(short_help="The whole job on a simulated plant, with a report.")
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


for _command in commands.ALL:
    app.command()(_command)
app.add_typer(data_commands.app, name="data", short_help="Logs: what they hold, and recordings from them.")
app.add_typer(privacy_commands.app, name="privacy", short_help="Budgets, what was spent, and what an epsilon buys.")
app.add_typer(federation_commands.app, name="federation", short_help="Fits between machines: plants and a coordinator.")


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
