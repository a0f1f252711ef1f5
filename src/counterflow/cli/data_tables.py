"""``counterflow data inspect``, ``read``, ``sample`` and ``prepare``: what logs hold, and what is made of them."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import polars
from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.federation_file import read_federation, relative, unit_text
from counterflow.cli.output import Part, Told, answering
from counterflow.cli.toml_page import written
from counterflow.data import Draft, Inspection, Preparation, Table, draft, inspect, open_table, read_opcua
from counterflow.data import sample as samples
from counterflow.data.databases import is_sqlite, open_query, public_address, sqlite_file
from counterflow.data.headers import without_measure
from counterflow.errors import DataError, OptionError
from counterflow.plant import Recording
from counterflow.printable import shown

_SOURCE: dict[str, Any] = {
    "files": Annotated[
        list[Path] | None,
        Argument(metavar="[FILE]...", help="CSV, Parquet, XLSX, folders, zips: one table.", show_default=False),
    ],
    "sql": Annotated[str | None, Option(metavar="QUERY", help="Rows of a database instead of files.")],
    "database": Annotated[
        str | None, Option(metavar="URL", help="With --sql: an SQLite file, or postgresql://user@host/name.")
    ],
}
_OPTIONS: dict[str, Any] = {  # names and kinds are those of TableOptions
    "time": Annotated[str | None, Option(help="Name of the time column (time, timestamp, ...).")],
    "time_format": Annotated[str | None, Option(help="Such as '%d/%m/%Y %H:%M:%S', or s, ms, us, ns, excel, seconds.")],
    "day_first": Annotated[bool | None, Option("--day-first/--month-first", help="How to read 3/4/2024.")],
    "timezone": Annotated[str | None, Option(help="Zone of local times, such as Europe/Berlin.")],
    "separator": Annotated[str | None, Option(help="Between cells, if it is not found.")],
    "decimal": Annotated[str | None, Option(help="Decimal sign, if it is not found.")],
    "encoding": Annotated[str | None, Option(help="Of a text, if it is not found: cp1252, utf-16, ...")],
    "skip_rows": Annotated[int | None, Option(min=0, max=1000, help="Lines before the header, if they are not found.")],
    "skip_after_header": Annotated[
        int | None, Option(min=0, max=1000, help="Lines after it, such as units of measure, if they are not found.")
    ],
    "tag": Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of tags, if it is not found.")],
    "value": Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of values.")],
    "quality": Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of qualities.")],
    "sheet": Annotated[str | None, Option(help="Of a workbook: name or number (all that are tables).")],
}
_OF_TABLE = {name: (annotation, None) for name, annotation in (_SOURCE | _OPTIONS).items()}  # for `answering`
_NEXT = "counterflow data inspect {} --federation federation.toml"


def _reading(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options by which a table is to be read."""
    return {name: given[name] for name in _OPTIONS if given[name] is not None}


def _opened(given: Mapping[str, Any], opcua: str | None = None, **of_opcua: Any) -> Table:
    """The table that a command is about: of files, of a query, or of an OPC UA server."""
    files, sql, database = (given[name] for name in _SOURCE)
    if (sql is None) != (database is None):
        raise OptionError("--sql and --database go together: give both.")
    if sum((bool(files), sql is not None, opcua is not None)) != 1:
        raise OptionError("give files, or --sql with --database, or --opcua: one of them.")
    if opcua is None and any(of_opcua.values()):
        raise OptionError("--node, --start, --stop and --security go with --opcua.")
    if sql is not None:
        return open_query(sql, database, **_reading(given))
    if opcua is not None:
        logging.getLogger("asyncua").setLevel(logging.ERROR)  # what it notes of a connection is not for a terminal
        return open_table(read_opcua(opcua, **of_opcua), **_reading(given))
    return open_table(list(files), **_reading(given))


# ---- inspect


@answering(options=_OF_TABLE)
def inspect_table(
    federation: Annotated[
        Path | None,
        Option(metavar="FILE", help="Also write a federation file, .toml, that counterflow fit takes as it is."),
    ] = None,
    force: output.Force = False,
    **given: Any,
) -> Told:
    """What does a table hold: rows, gaps, repeats, every channel, and which units its tags seem to make?

    Nothing is changed. What is uncertain is asked as a question, with the choice that was made.

    Example: counterflow data inspect plant.csv.gz --federation federation.toml

    Example: counterflow data inspect --sql "select * from log" --database plant.db --federation federation.toml
    """
    output.check_file("--federation", federation, ("toml",), force)
    found = inspect(_opened(given))
    made = draft(found)
    if federation is not None:
        if not made.units:
            names = ", ".join(file.name for file in found.table.files)
            raise DataError(f"{names}: no federation file can be drafted: {made.reason}")
        output.write_all({federation: _draft_text(found, made, given, federation).encode()}, force)
    return Told({**found.to_json(), "draft": made.to_json()}, _inspected(found, made, federation))


def _inspected(found: Inspection, made: Draft, drafted: Path | None) -> Iterator[Part]:
    yield from found.sentences
    columns = ("name", "kind", "low", "high", "mean", "spread", "missing", "held", "levels")
    for group, names in found.groups.items():
        channels = [found[name].to_json() for name in names]
        yield output.listed(f"{group}: {len(names)} channels", channels, *columns, left=2)
        yield from (f"  {each['name']}: {each['verdict']}" for each in channels if each["verdict"] != "fine")
    yield from ("", "What the tags seem to mean:", *made.picture.splitlines())
    if made.questions:
        yield from ("", "Questions; the choices that were made stand in the draft:")
        yield from (f"  ? {question}" for question in made.questions)
    yield ""
    if drafted is not None:
        yield from (f"federation file: {drafted}", f"next: counterflow fit {drafted} --out fit")
    elif not made.units:
        yield f"No federation file can be drafted: {made.reason}."
    else:
        yield "next: the same with --federation federation.toml, then counterflow fit federation.toml --out fit"


def _draft_text(found: Inspection, made: Draft, given: Mapping[str, Any], place: Path) -> str:
    """A federation file that can be used as it is: units by their tags, and every option that the table was read by."""
    lines = ["# Drafted from the tags and the values of the table. It can be used as it is:"]
    lines += [f"#   counterflow fit {place.name} --out fit", "#", *(f"# {line}" for line in made.picture.splitlines())]
    if made.questions:
        lines += ["#", "# Questions, with the choices that were made:", *(f"# ? {each}" for each in made.questions)]
    data: dict[str, Any] = {}
    if given["sql"] is not None:
        database = str(given["database"])
        if is_sqlite(database):
            database = f"sqlite:{relative(sqlite_file(database), place.parent)}"
        data |= {"sql": given["sql"], "database": public_address(database)}
    else:
        names = [relative(file, place.parent) for file in given["files"]]
        data |= {"file": names[0]} if len(names) == 1 else {"files": names}
    # a time column that was made here stands in no file
    if found.table.time_name is not None and found.table.step is None:
        data["time"] = found.table.time_name
    data |= _reading(given) | dict(made.options)
    lines += ["", "[data]", *(f"{key} = {written(value)}" for key, value in data.items())]
    if found.time is not None:
        lines.append(f"dt = {found.time.step / 1e9:.9g}  # seconds between two rows")
    for unit in made.units:
        lines += unit_text(unit.name, [], {"inputs": unit.inputs, "outputs": unit.outputs}, made.why)
    if made.left_out:
        lines += ["", "# left out:", *(f"#   {_plain(name)}: {_plain(why)}" for name, why in made.left_out.items())]
    return "\n".join("".join(sign for sign in line if sign.isprintable()) for line in lines) + "\n"


def _plain(text: str) -> str:
    return shown(text, 200).replace("\n", " ")


# ---- read


@answering("parquet", "feather", "csv", options=_OF_TABLE)
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
    **given: Any,
) -> Told:
    """Read logs from files, a database or an OPC UA server into one table: a time column, and a column for each tag.

    Example: counterflow data read --sql "select * from log" --database postgresql://me@host/plant --out plant.parquet

    Example: counterflow data read --opcua opc.tcp://host:4840 --node "ns=2;s=Area1" --start 2024-11-01 --out a.parquet
    """
    table = _opened(given, opcua, nodes=node or [], start=start, stop=stop, security=security)
    frame = _frame(table)
    return Told({
        "table": out, "files": [f"{file.name} ({file.kind})" for file in table.files[:5]], "rows": len(frame),
        "time": table.time_name, "channels": list(table.channels), "units": table.measures,
        "notes": [note.text for note in table.notes], "next": [_NEXT.format(out)],
    }, frame=lambda: frame)  # fmt: skip


def _frame(table: Table) -> polars.DataFrame:
    """A table with its times and numbers; a unit of measure stands in brackets behind a column's name."""
    columns = []
    if table.times is not None:
        seconds = polars.Series(table.times.nanoseconds / 1e9)
        columns.append((table.times.stamps if table.times.dated else seconds).alias("time"))
    for name, numbers in table.batches(list(table.channels)):
        if numbers.odd_count <= 0.5 * len(numbers.values):  # else it is a column of text
            bare = without_measure(name, table.measures)
            titled = f"{bare} [{table.measures[name]}]" if name in table.measures else bare
            columns.append(polars.Series(titled, numbers.values, nan_to_null=True))
    return polars.DataFrame(columns)


# ---- sample


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
    following = _NEXT.format(f'--sql "select * from log" --database {target}' if form == "sql" else target)
    return Told({"file": target, "form": form, "next": following})


# ---- prepare


@answering()
def prepare(
    federation: Annotated[Path, Argument(metavar="FEDERATION", help="A federation file in TOML, with logs.")],
    out: Annotated[Path, Option(metavar="FILE", help="The recording, .safetensors.")],
    force: output.Force = False,
) -> Told:
    """Read a federation's logs into a recording and tell everything that is done to them.

    Example: counterflow data prepare federation.toml --out recording.safetensors
    """
    output.check_file("--out", out, ("safetensors",), force)
    found = read_federation(federation)
    output.write_all({out: found.recording.save}, force)
    content = {
        "recording": out, "digest": found.recording.digest, "units": output.units_json(found.recording.units),
        "preparation": None if found.preparation is None else found.preparation.to_json(),
    }  # fmt: skip
    return Told(content, prepared(found.preparation, found.recording, f"recording: {out}"))


def prepared(preparation: Preparation | None, recording: Recording, written_to: str) -> Iterator[Part]:
    """Everything that was done, doubts as notes below, and what came of it."""
    if preparation is None:
        yield "Rows were taken as they come."
    else:
        yield from (step.text for step in preparation.steps if not step.doubt)
        yield from output.noted(preparation.doubts)
    yield output.listed(f"{recording.rows} rows", output.units_json(recording.units), "name", "inputs", "outputs")
    yield from ("", written_to)
