"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from counterflow.errors import OptionError

FitDirectory = Annotated[Path, Argument(metavar="FIT", help="Directory of a saved fit.", show_default=False)]
Seed = Annotated[int, Option(min=0, help="Of all that is random.")]
Files = Annotated[list[Path], Argument(metavar="FILE...", help="CSV, CSV.GZ, Parquet or XLSX; several: one table.")]
Delta = Annotated[float, Option(help="Chance that the promise fails; far below 1 over the number of rows.")]
Window = Annotated[int, Option(help="Consecutive measurements that are protected as one.")]
Folder = Annotated[Path, Argument(metavar="FOLDER", help="The party's folder; it tells who this is.")]
Edges = Annotated[
    list[str] | None,
    Option("--edge", metavar="CAUSE:EFFECT", help="Only these units act on each other directly; may repeat."),
]
Forbidden = Annotated[
    list[str] | None,
    Option("--forbid", metavar="CAUSE:EFFECT", help="These units do not act on each other directly; may repeat."),
]


def optional(table: Mapping[str, tuple[Any, str]]) -> dict[str, tuple[Any, None]]:
    """Options that may be left out, for ``output.answering``, from {name: (type, help)}."""
    return {name: (Annotated[kind | None, Option(help=help)], None) for name, (kind, help) in table.items()}


def known_edges(edge: Sequence[str] | None, forbid: Sequence[str] | None) -> dict[str, list[list[str]]]:
    """``--edge boiler:turbine --forbid turbine:boiler`` as options of a fit; what is not given is left out."""
    found: dict[str, list[list[str]]] = {}
    for option, name, given in (("--edge", "edges", edge), ("--forbid", "forbidden", forbid)):
        for text in given or ():
            pair = text.split(":")
            if len(pair) != 2 or not all(pair):
                raise OptionError(
                    f"{option} {text!r}: give CAUSE:EFFECT, such as boiler:turbine; where a name holds a colon, give "
                    f'the option {name} = [["cause", "effect"]] instead.'
                )
            found.setdefault(name, []).append(pair)
    return found
