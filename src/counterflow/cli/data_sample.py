"""``counterflow data sample``: the log that ships with the package, to try things on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

from typer import Option

from counterflow.cli import output
from counterflow.cli.output import Told, answering
from counterflow.data import sample as samples


@answering()
def sample(
    out: Annotated[Path, Option(metavar="DIR", help="Folder for the file.")] = Path("."),
    form: Annotated[str, Option(help=f"{', '.join(samples.FORMS)}.")] = "wide",
    force: output.Force = False,
) -> Told:
    """Write a small log with ISA tags: 40 hours of a simulated plant, as a historian would export it.

    Example: counterflow data sample --form long
    """
    output.check_folder(out)
    with tempfile.TemporaryDirectory() as folder:
        made = samples.write(Path(folder), form)
        target = out / made.name
        output.write_all({target: made.read_bytes()}, force)
    source = f'--sql "select * from log" --database {target}' if form == "sql" else str(target)
    following = f"counterflow data inspect {source} --federation federation.toml"
    return Told({"file": target, "form": form, "next": following}, [f"log: {target}", f"next: {following}"])
