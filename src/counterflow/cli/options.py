"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from counterflow.cli.output import Format, note_format

AnswerFormat = Annotated[Format, Option("--format", help="What to print.", callback=note_format, is_eager=True)]
Force = Annotated[bool, Option("--force", help="Replace what is there.")]
FitDirectory = Annotated[Path, Argument(metavar="FIT", help="Directory of a saved fit.", show_default=False)]
Out = Annotated[Path | None, Option(metavar="FILE", help="Also write the answer: .json or .csv.")]
DrawnOut = Annotated[Path | None, Option(metavar="FILE", help="Also write the answer: .json, .csv or .png.")]
Seed = Annotated[int, Option(min=0, help="Of all that is random.")]
Files = Annotated[list[Path], Argument(metavar="FILE...", help="CSV, CSV.GZ, Parquet or XLSX; several: one table.")]
Delta = Annotated[float, Option(help="Chance that the promise fails; far below 1 over the number of rows.")]
Window = Annotated[int, Option(help="Consecutive measurements that are protected as one.")]
Folder = Annotated[Path, Argument(metavar="FOLDER", help="The party's folder; it tells who this is.")]
