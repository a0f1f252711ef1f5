"""``counterflow data inspect`` and ``prepare``: what logs hold, and recordings from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.federation_file import quoted, read_federation, relative, shown_key
from counterflow.cli.options import AnswerFormat, Files, Force
from counterflow.cli.output import Format
from counterflow.data import ChannelFacts, Inspection, Preparation, inspect
from counterflow.plant import Recording

Time = Annotated[str | None, Option(help="Name of the time column (time, timestamp, ...).")]
TimeFormat = Annotated[str | None, Option(help="Such as '%d/%m/%Y %H:%M:%S', or s, ms, us, ns, excel, seconds.")]
DayFirst = Annotated[bool | None, Option("--day-first/--month-first", help="How to read 3/4/2024.")]
Timezone = Annotated[str | None, Option(help="Zone of local times, such as Europe/Berlin.")]
Separator = Annotated[str | None, Option(help="Between cells, if it is not found.")]
Decimal = Annotated[str | None, Option(help="Decimal sign, if it is not found.")]
SkipRows = Annotated[int, Option(min=0, max=1000, help="Lines before the header.")]
SkipAfterHeader = Annotated[int, Option(min=0, max=1000, help="Lines after it, such as units of measure.")]
Draft = Annotated[Path | None, Option(metavar="FILE", help="Also write a draft of a federation file, .toml.")]
_DRAFT_TABLE_KEYS = ("time", "time_format", "day_first", "timezone", "separator", "decimal", "skip_rows")


def inspect_table(
    files: Files, time: Time = None, time_format: TimeFormat = None, day_first: DayFirst = None,
    timezone: Timezone = None, separator: Separator = None, decimal: Decimal = None, skip_rows: SkipRows = 0,
    skip_after_header: SkipAfterHeader = 0, federation: Draft = None, force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:  # fmt: skip
    """What does a table hold: rows, gaps, repeats, and every channel? Nothing is changed.

    Example: counterflow data inspect plant.csv.gz --federation federation.toml
    """
    given: dict[str, Any] = {
        "time": time, "time_format": time_format, "day_first": day_first, "timezone": timezone, "separator": separator,
        "decimal": decimal, "skip_rows": skip_rows or None, "skip_after_header": skip_after_header or None,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    output.check_kind(federation, ("toml",), force)
    found = inspect(list(files), **options)
    if federation is not None:
        output.write_all({federation: draft(found, files, options, federation).encode()}, force)
    output.answer(answer_format, "data inspect", found.to_json(), lambda: _show(found, federation))


def _show(found: Inspection, drafted: Path | None) -> None:
    for sentence in found.sentences:
        output.show_text(sentence)
    for group, names in found.groups.items():
        rows = [_row(found[name]) for name in names]
        columns = ["channel", "kind", "range", "mean ± std", "missing", "held", "levels"]
        output.show_table(f"{group}: {len(names)} channels", columns, rows, left=2)
        same: dict[str, list[str]] = {}
        for name in names:
            same.setdefault(found[name].verdict, []).append(name)
        for verdict, members in same.items():
            output.show_text(f"  {', '.join(members)}: {verdict}")
    if drafted is not None:
        output.show_lines("", f"draft of a federation file: {drafted}")


def _row(channel: ChannelFacts) -> list[str]:
    empty = channel.is_empty
    span = "-" if empty else f"{channel.low:.4g} to {channel.high:.4g}"
    mean = "-" if empty else f"{channel.mean:.4g} ± {channel.spread:.2g}"
    shares = [f"{100 * share:.3g} %" for share in (channel.missing / max(1, channel.rows), channel.held)]
    return [channel.name, channel.kind, span, mean, *shares, str(channel.levels)]


def draft(found: Inspection, files: Sequence[Path], options: dict[str, Any], place: Path) -> str:
    """A federation file to start from: units by their tags' prefixes, on/off channels as inputs."""
    names = [quoted(relative(file, place.parent)) for file in files]
    lines = [
        "# A draft: check the units, and which channels are inputs, before you fit.",
        "# counterflow fit THIS-FILE --out fit",
        "",
        "[data]",
        f"file = {names[0]}" if len(names) == 1 else f"files = [{', '.join(names)}]",
    ]
    if found.time_name is not None and "time" not in options:
        lines.append(f"time = {quoted(found.time_name)}")
    for key in _DRAFT_TABLE_KEYS:
        if key in options:
            value = options[key]
            shown = str(value).lower() if isinstance(value, (bool, int)) else quoted(value)
            lines.append(f"{key} = {shown}")
    if found.time is not None:
        lines.append(f"dt = {found.time.step / 1e9:g}  # seconds")
    for group, members in found.groups.items():
        usable = [name for name in members if found[name].kind not in ("text", "mixed", "empty", "constant")]
        left_out = [name for name in members if name not in usable]
        inputs = [name for name in usable if found[name].kind == "on/off"]
        outputs = [name for name in usable if name not in inputs]
        if not outputs:
            lines += ["", f"# {group}: no channel of it could be an output: {', '.join(members)}"]
            continue
        lines += ["", f"[{shown_key('units', group)}]", f"inputs = [{', '.join(map(quoted, inputs))}]"]
        lines.append(f"outputs = [{', '.join(map(quoted, outputs))}]")
        if left_out:
            lines.append(f"# left out: {', '.join(left_out)}")
    return "\n".join(lines) + "\n"


def prepare(
    federation: Annotated[Path, Argument(metavar="FEDERATION", help="A federation file in TOML, with logs.")],
    out: Annotated[Path, Option(metavar="FILE", help="The recording, .safetensors.")],
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
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
    output.answer(
        answer_format, "data prepare", content,
        lambda: show_prepared(found.preparation, found.recording, f"recording: {out}"),
    )  # fmt: skip


def show_prepared(preparation: Preparation | None, recording: Recording, written: str) -> None:
    """Everything that was done, doubts as notes below, and what came of it."""
    if preparation is None:
        output.show_text("Rows were taken as they come.")
    else:
        output.show_lines(*(step.text for step in preparation.steps if not step.doubt))
        output.show_notes(preparation.doubts)
    rows = [[unit.name, str(unit.n_inputs), str(unit.n_outputs)] for unit in recording.units]
    output.show_table(f"{recording.rows} rows", ["unit", "inputs", "outputs"], rows)
    output.show_lines("", written)


def place_of(out: Path, names: Sequence[str], force: bool) -> dict[str, Path]:
    """Where files of a new directory go; refused before any work is done if something is in the way."""
    output.check_folder(out)
    files = {name: Path(os.path.normpath(out / name)) for name in names}
    output.check_new(list(files.values()), force)
    return files
