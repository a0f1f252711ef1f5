"""``counterflow data read``: a table from files, a database or an OPC UA server, written as one clean file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from counterflow.cli import output
from counterflow.cli.output import Part, Told, answering
from counterflow.cli.table_options import OF_TABLE, given_table

if TYPE_CHECKING:
    import polars

    from counterflow.data import Table

_KINDS = ("parquet", "feather", "csv")


@answering(options=OF_TABLE)
def read(
    out: Annotated[Path, Option(metavar="FILE", help="The table: .parquet, .feather or .csv.")],
    opcua: Annotated[str | None, Option(metavar="URL", help="An OPC UA server, such as opc.tcp://host:4840.")] = None,
    node: Annotated[
        list[str] | None, Option(metavar="ID", help="Its nodes or folders, such as ns=2;s=FIC-101.PV (all).")
    ] = None,
    start: Annotated[str | None, Option(metavar="DATE", help="OPC UA: first time, UTC (a day ago).")] = None,
    stop: Annotated[str | None, Option(metavar="DATE", help="OPC UA: last time, UTC (now).")] = None,
    security: Annotated[
        str | None, Option(metavar="TEXT", help="OPC UA: policy,mode,certificate,key, as asyncua has it.")
    ] = None,
    force: output.Force = False,
    **given: Any,
) -> Told:
    """Read logs from files, a database or an OPC UA server into one table: a time column, and a column for each tag.

    Example: counterflow data read --sql "select * from log" --database postgresql://me@host/plant --out plant.parquet

    Example: counterflow data read --opcua opc.tcp://host:4840 --node "ns=2;s=Area1" --start 2024-11-01 --out a.parquet
    """
    output.check_kind(out, _KINDS, force)
    found = given_table(given).open(opcua, node or [], (start, stop), security)
    frame = table_frame(found)
    output.write_all({out: frame_bytes(frame, out)}, force)
    content: dict[str, Any] = {
        "table": out, "rows": len(frame), "time": found.time_name, "channels": list(found.channels),
        "units": found.measures, "notes": [note.text for note in found.notes],
    }  # fmt: skip
    return Told(content, _shown(found, frame, out))


def _shown(table: Table, frame: polars.DataFrame, out: Path) -> Iterator[Part]:
    kinds = ", ".join(f"{file.name} ({file.kind})" for file in table.files[:5])
    yield f"{kinds}: {len(frame)} rows, {len(table.channels)} channels."
    yield from (note.text for note in table.notes)
    yield from ("", f"table: {out}", f"next: counterflow data inspect {out} --federation federation.toml")


def table_frame(table: Table) -> polars.DataFrame:
    """A table with its times and numbers; a unit of measure stands in brackets behind a column's name."""
    import polars

    from counterflow.data.headers import without_measure
    from counterflow.data.long_tables import stamps_of

    columns = []
    if table.times is not None:
        stamps = stamps_of(table.times)
        columns.append(stamps.alias("time") if table.times.dated else (stamps / 1e9).alias("time"))
    for name, numbers in table.batches(list(table.channels)):
        if numbers.odd_count and numbers.odd_count > 0.5 * len(numbers.values):
            continue  # a column of text
        bare = without_measure(name, table.measures)
        shown = f"{bare} [{table.measures[name]}]" if name in table.measures else bare
        columns.append(polars.Series(shown, numbers.values, nan_to_null=True))
    return polars.DataFrame(columns)


def frame_bytes(frame: polars.DataFrame, out: Path) -> Any:
    """How a frame is written, by the ending of its file's name."""
    kind = out.suffix.lower()
    if kind == ".csv":
        from counterflow.frames import as_csv

        return as_csv(frame)
    return frame.write_ipc if kind == ".feather" else frame.write_parquet
