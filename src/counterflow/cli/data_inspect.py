"""``counterflow data inspect`` and ``prepare``: what logs hold, and recordings from them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.federation_file import read_federation, relative
from counterflow.cli.output import Part, Told, answering
from counterflow.cli.table_options import OF_TABLE, GivenTable, given_table
from counterflow.cli.toml_page import quoted
from counterflow.cli.toml_page import shown as shown_path
from counterflow.data import ChannelFacts, Draft, Inspection, Preparation, draft, inspect
from counterflow.data.databases import is_sqlite, public_address, sqlite_file
from counterflow.errors import DataError
from counterflow.notebook import Table
from counterflow.plant import Channel, Recording
from counterflow.printable import shown

FederationOut = Annotated[
    Path | None,
    Option(metavar="FILE", help="Also write a federation file, .toml, that counterflow fit takes as it is."),
]


@answering(options=OF_TABLE)
def inspect_table(federation: FederationOut = None, force: output.Force = False, **given: Any) -> Told:
    """What does a table hold: rows, gaps, repeats, every channel, and which units its tags seem to make?

    Nothing is changed. What is uncertain is asked as a question, with the choice that was made.

    Example: counterflow data inspect plant.csv.gz --federation federation.toml

    Example: counterflow data inspect --sql "select * from log" --database plant.db --federation federation.toml
    """
    if federation is not None:
        output.check_ending("--federation", federation, ("toml",))
        output.check_new([federation], force)
    table = given_table(given)
    found = inspect(table.open())
    made = draft(found)
    if federation is not None:
        if not made.units:
            names = ", ".join(file.name for file in found.table.files)
            raise DataError(f"{names}: no federation file can be drafted: {made.reason}")
        output.write_all({federation: draft_text(found, made, table, federation).encode()}, force)
    content = {**found.to_json(), "draft": made.to_json()}
    return Told(content, _shown(found, made, federation))


def _shown(found: Inspection, made: Draft, drafted: Path | None) -> Iterator[Part]:
    yield from found.sentences
    for group, names in found.groups.items():
        columns = ["channel", "kind", "range", "mean ± std", "missing", "held", "levels"]
        yield Table(f"{group}: {len(names)} channels", columns, [_row(found[name]) for name in names], left=2)
        same: dict[str, list[str]] = {}
        for name in names:
            same.setdefault(found[name].verdict, []).append(name)
        yield from (f"  {', '.join(members)}: {verdict}" for verdict, members in same.items())
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


def _row(channel: ChannelFacts) -> list[str]:
    empty = channel.is_empty
    span = "-" if empty else f"{channel.low:.4g} to {channel.high:.4g}"
    mean = "-" if empty else f"{channel.mean:.4g} ± {channel.spread:.2g}"
    shares = [f"{100 * share:.3g} %" for share in (channel.missing / max(1, channel.rows), channel.held)]
    return [channel.name, channel.kind, span, mean, *shares, str(channel.levels)]


def draft_text(found: Inspection, made: Draft, table: GivenTable, place: Path) -> str:
    """A federation file that can be used as it is: units by their tags, and every option that the table was read by."""
    lines = ["# Drafted from the tags and the values of the table. It can be used as it is:"]
    lines += [f"#   counterflow fit {place.name} --out fit", "#", *(f"# {line}" for line in made.picture.splitlines())]
    if made.questions:
        lines += ["#", "# Questions, with the choices that were made:", *(f"# ? {each}" for each in made.questions)]
    lines += ["", "[data]"]
    if table.sql is not None:
        database = str(table.database)
        if is_sqlite(database):
            database = f"sqlite:{relative(sqlite_file(database), place.parent)}"
        lines += [f"sql = {quoted(table.sql)}", f"database = {quoted(public_address(database))}"]
    else:
        names = [quoted(relative(file, place.parent)) for file in table.files]
        lines.append(f"file = {names[0]}" if len(names) == 1 else f"files = [{', '.join(names)}]")
    # a time column that was made here stands in no file
    time = {} if found.table.time_name is None or found.table.step is not None else {"time": found.table.time_name}
    for key, value in (time | table.options | dict(made.options)).items():
        lines.append(f"{key} = {str(value).lower() if isinstance(value, (bool, int)) else quoted(value)}")
    if found.time is not None:
        lines.append(f"dt = {found.time.step / 1e9:.9g}  # seconds between two rows")
    for unit in made.units:
        lines += ["", f"[{shown_path(('units', unit.name))}]"]
        for side, pairs in (("inputs", unit.inputs), ("outputs", unit.outputs)):
            why = {column: f"  # {made.why[column]}" for column, _ in pairs if made.why.get(column)}
            entries = [f"  {_entry(column, channel)},{why.get(column, '')}" for column, channel in pairs]
            lines += [f"{side} = [", *entries, "]"] if entries else [f"{side} = []"]
    if made.left_out:
        lines += [
            "",
            "# left out:",
            *(f"#   {_printed(column)}: {_printed(why)}" for column, why in made.left_out.items()),
        ]
    return "\n".join("".join(sign for sign in line if sign.isprintable()) for line in lines) + "\n"


def _entry(column: str, channel: Channel) -> str:
    """A channel in TOML: its column alone, or with what is known of it."""
    about = [f"unit = {quoted(channel.unit)}"] if channel.unit else []
    about += [f"limits = [{channel.limits[0]:g}, {channel.limits[1]:g}]"] if channel.limits is not None else []
    return f"{{{', '.join([f'name = {quoted(column)}', *about])}}}" if about else quoted(column)


def _printed(text: str) -> str:
    return shown(text, 200).replace("\n", " ")


@answering()
def prepare(
    federation: Annotated[Path, Argument(metavar="FEDERATION", help="A federation file in TOML, with logs.")],
    out: Annotated[Path, Option(metavar="FILE", help="The recording, .safetensors.")],
    force: output.Force = False,
) -> Told:
    """Read a federation's logs into a recording and tell everything that is done to them.

    Example: counterflow data prepare federation.toml --out recording.safetensors
    """
    output.check_kind(out, ("safetensors",), force)
    found = read_federation(federation)
    output.write_all({out: found.recording.save}, force)
    content = {
        "recording": out, "digest": found.recording.digest, "units": output.units_json(found.recording.units),
        "preparation": None if found.preparation is None else found.preparation.to_json(),
    }  # fmt: skip
    return Told(content, prepared(found.preparation, found.recording, f"recording: {out}"))


def prepared(preparation: Preparation | None, recording: Recording, written: str) -> Iterator[Part]:
    """Everything that was done, doubts as notes below, and what came of it."""
    if preparation is None:
        yield "Rows were taken as they come."
    else:
        yield from (step.text for step in preparation.steps if not step.doubt)
        yield from output.noted(preparation.doubts)
    rows = [[unit.name, str(unit.n_inputs), str(unit.n_outputs)] for unit in recording.units]
    yield Table(f"{recording.rows} rows", ["unit", "inputs", "outputs"], rows)
    yield from ("", written)


def place_of(out: Path, names: Sequence[str], force: bool) -> dict[str, Path]:
    """Where files of a new directory go; refused before any work is done if something is in the way."""
    output.check_folder(out)
    files = {name: Path(os.path.normpath(out / name)) for name in names}
    output.check_new(list(files.values()), force)
    return files
