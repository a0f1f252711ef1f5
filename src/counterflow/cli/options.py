"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterflow.cli.output import Format, note_format

AnswerFormat = Annotated[
    Format, typer.Option("--format", help="What to print.", callback=note_format, is_eager=True)
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
FitDirectory = Annotated[Path, typer.Argument(metavar="FIT", help="Directory of a saved fit.", show_default=False)]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the answer: .json or .csv.")]
DrawnOut = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the answer: .json, .csv or .png.")]
Level = Annotated[float, typer.Option(help="Of the intervals, between 0 and 1.")]
Causes = Annotated[list[str] | None, typer.Option(help="Unit that would be run differently; may repeat.")]
Changes = Annotated[list[str] | None, typer.Option(metavar="CHANNEL=NUMBER", help="Added to an input; may repeat.")]
SetTo = Annotated[
    list[str] | None, typer.Option("--set", metavar="CHANNEL=NUMBER", help="Past rows: an input's value instead.")
]
Schedule = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV: a column for each changed input, a row for each step.")
]
Horizon = Annotated[int | None, typer.Option(min=1, help="Steps to follow (50).")]
Duration = Annotated[int | None, typer.Option(min=1, help="Steps for which the change is held (all).")]
Data = Annotated[Path, typer.Option(metavar="FILE", help="A recording, or a federation file with logs.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all that is random.")]
Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.GZ, Parquet or XLSX; several: one table.")
]
Delta = Annotated[float, typer.Option(help="Chance that the promise fails; far below 1 over the number of rows.")]
Window = Annotated[int, typer.Option(help="Consecutive measurements that are protected as one.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The party's folder; it tells who this is.")]
