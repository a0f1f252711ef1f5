"""``counterflow data``: options and help; the work is in modules of its own, imported when a command runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from counterflow.cli.output import Format

app = typer.Typer(
    name="data",
    help="Logs: what they hold, and recordings from them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="CSV, CSV.GZ, Parquet or XLSX; several: one table.")
]
AnswerFormat = Annotated[Format, typer.Option("--format", help="What to print.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Place = Annotated[Path, typer.Option(metavar="DIR", help="Directory for recording, federation file and report.")]
Time = Annotated[str | None, typer.Option(help="Name of the time column (time, timestamp, ...).")]
TimeFormat = Annotated[str | None, typer.Option(help="Such as '%d/%m/%Y %H:%M:%S', or s, ms, us, ns, excel, seconds.")]
DayFirst = Annotated[bool | None, typer.Option("--day-first/--month-first", help="How to read 3/4/2024.")]
Timezone = Annotated[str | None, typer.Option(help="Zone of local times, such as Europe/Berlin.")]
Separator = Annotated[str | None, typer.Option(help="Between cells, if it is not found.")]
Decimal = Annotated[str | None, typer.Option(help="Decimal sign, if it is not found.")]
SkipRows = Annotated[int, typer.Option(min=0, max=1000, help="Lines before the header.")]
SkipAfterHeader = Annotated[int, typer.Option(min=0, max=1000, help="Lines after it, such as units of measure.")]
NormalOnly = Annotated[
    bool, typer.Option("--normal-only/--with-attacks", help="Cut rows out that are labelled as attacks.")
]
Standardise = Annotated[bool, typer.Option("--standardise", help="Write z-scores instead of engineering units.")]
Seed = Annotated[int, typer.Option(min=0, help="Of all that is random.")]


class Dataset(StrEnum):
    """Which data set's format a stand-in has."""

    hai = "hai"
    swat = "swat"


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None and value != 0}


@app.command("inspect")
def inspect_table(
    files: Files,
    time: Time = None,
    time_format: TimeFormat = None,
    day_first: DayFirst = None,
    timezone: Timezone = None,
    separator: Separator = None,
    decimal: Decimal = None,
    skip_rows: SkipRows = 0,
    skip_after_header: SkipAfterHeader = 0,
    federation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a draft of a federation file, .toml.")
    ] = None,
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """What does a table hold: rows, gaps, repeats, and every channel? Nothing is changed.

    Example: counterflow data inspect plant.csv.gz --federation federation.toml
    """
    from counterflow.cli import data_inspect

    options = _given(
        time=time, time_format=time_format, timezone=timezone, separator=separator, decimal=decimal,
        skip_rows=skip_rows, skip_after_header=skip_after_header,
    )  # fmt: skip
    if day_first is not None:
        options["day_first"] = day_first
    data_inspect.inspect_files(files, options, federation=federation, force=force, answer_format=answer_format)


@app.command()
def prepare(
    federation: Annotated[Path, typer.Argument(metavar="FEDERATION", help="A federation file in TOML, with logs.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The recording, .safetensors.")],
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Read a federation's logs into a recording and tell everything that is done to them.

    Example: counterflow data prepare federation.toml --out recording.safetensors
    """
    from counterflow.cli import data_inspect

    data_inspect.prepare(federation, out, force=force, answer_format=answer_format)


@app.command()
def hai(
    files: Files,
    out: Place,
    labels: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Label files of HAI 23.05, in the order of the files.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="Keep the first so many rows (0: all).")] = 0,
    normal_only: NormalOnly = True,
    standardise: Standardise = False,
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Prepare files of the HAI data set (20.07, 21.03, 22.04, 23.05) as the paper does.

    Example: counterflow data hai train1.csv.gz train2.csv.gz --out hai
    """
    from counterflow.cli import data_presets

    options = {"rows": rows or None, "normal_only": normal_only, "standardise": standardise, "labels": labels or ()}
    data_presets.run("hai", files, out, options, force=force, answer_format=answer_format)


@app.command()
def swat(
    files: Files,
    out: Place,
    rows: Annotated[int, typer.Option(min=0, help="Keep the first so many rows, as the paper does (0: all).")] = 30_000,
    correlation: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Keep variables that correlate more with another stage.")
    ] = 0.3,
    noise: Annotated[
        float, typer.Option(min=0.0, help="Gaussian noise on inputs, in their standard deviations.")
    ] = 0.01,
    seed: Seed = 0,
    normal_only: NormalOnly = True,
    standardise: Standardise = False,
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Prepare files of the SWaT data set (2015; CSV or XLSX) as the paper does.

    Example: counterflow data swat SWaT_Dataset_Normal_v1.csv --out swat
    """
    from counterflow.cli import data_presets

    options = {
        "rows": rows or None, "correlation": correlation, "noise": noise, "seed": seed, "normal_only": normal_only,
        "standardise": standardise,
    }  # fmt: skip
    data_presets.run("swat", files, out, options, force=force, answer_format=answer_format)


@app.command("stand-in")
def stand_in(
    dataset: Annotated[Dataset, typer.Argument(help="Whose format.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the files.")],
    version: Annotated[
        str | None, typer.Option(help="HAI: 20.07, 21.03, 22.04 or 23.05; SWaT: normal-v0, normal-v1, attack-v0, xlsx.")
    ] = None,
    rows: Annotated[int, typer.Option(min=10, max=1_000_000, help="Rows of each file.")] = 2000,
    seed: Seed = 0,
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Write small files in the format of a data set, from a simulated plant. They are not the real data set.

    Example: counterflow data stand-in hai --version 21.03 --rows 5000 --out stand-in
    """
    from counterflow.cli import data_presets

    data_presets.stand_in(dataset.value, version, out, rows=rows, seed=seed, force=force, answer_format=answer_format)
