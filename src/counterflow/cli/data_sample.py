"""``counterflow data sample``: the log that ships with the package, to try things on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

from typer import Option

from counterflow.cli import output
from counterflow.cli.output import AnswerFormat, Force, Format
from counterflow.data import sample as samples


def sample(
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the file.")] = Path("."),
    form: Annotated[str, Option(help=f"{', '.join(samples.FORMS)}.")] = "wide",
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Write a small log with ISA tags: 40 hours of a simulated plant, as a historian would export it.

    Example: counterflow data sample --form long
    """
    output.check_folder(out)
    with tempfile.TemporaryDirectory() as folder:
        made = samples.write(Path(folder), form)
        target = out / made.name
        output.write_all({target: made.read_bytes()}, force)
    next_step = f"counterflow data inspect {target} --federation federation.toml"
    if form == "sql":
        next_step = (
            f'counterflow data inspect --sql "select * from log" --database {target} --federation federation.toml'
        )
    content = {"file": target, "form": form, "next": next_step}
    output.answer(
        answer_format, "data sample", content, lambda: output.show_lines(f"log: {target}", f"next: {next_step}")
    )
