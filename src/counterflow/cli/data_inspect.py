"""``counterflow data inspect`` and ``prepare``: what logs hold, and recordings from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.output import Format
from counterflow.errors import OptionError

if TYPE_CHECKING:
    from counterflow.data import ChannelFacts, Inspection, Preparation

_DRAFT_TABLE_KEYS = ("time", "time_format", "day_first", "timezone", "separator", "decimal", "skip_rows")


def inspect_files(
    files: Sequence[Path],
    options: dict[str, Any],
    *,
    federation: Path | None,
    force: bool,
    answer_format: Format,
) -> None:
    """Look, tell, and write a draft of a federation file if asked to."""
    from counterflow.data import inspect

    if federation is not None:
        output.check_kind(federation, ("toml",), force)
    found = inspect(list(files), **options)
    if federation is not None:
        output.write_all({federation: draft(found, files, options, federation).encode()}, force)
    if answer_format is Format.json:
        print(output.as_json({"version": __version__, "command": "data inspect", **found.to_json()}))
        return
    _show(found)
    if federation is not None:
        output.show_text("")
        output.show_text(f"draft of a federation file: {federation}")


def _show(found: Inspection) -> None:
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


def _row(channel: ChannelFacts) -> list[str]:
    empty = channel.is_empty
    return [
        channel.name,
        channel.kind,
        "-" if empty else f"{channel.low:.4g} to {channel.high:.4g}",
        "-" if empty else f"{channel.mean:.4g} ± {channel.spread:.2g}",
        f"{100 * channel.missing / max(1, channel.rows):.3g} %",
        f"{100 * channel.held:.3g} %",
        str(channel.levels),
    ]


def draft(found: Inspection, files: Sequence[Path], options: dict[str, Any], place: Path) -> str:
    """A federation file to start from: units by their tags' prefixes, on/off channels as inputs."""
    from counterflow.cli.federation_file import quoted, relative, shown_key

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


def prepare(federation: Path, out: Path, *, force: bool, answer_format: Format) -> None:
    """Read the logs, write the recording, tell what was done."""
    from counterflow.cli.federation_file import read_federation

    if out.suffix.lower() != ".safetensors":
        raise OptionError(f"--out {str(out)!r}: the name must end in .safetensors.")
    output.check_new([out], force)
    found = read_federation(federation)
    output.write_all({out: found.recording.save}, force)
    if answer_format is Format.json:
        answer = {
            "version": __version__,
            "command": "data prepare",
            "recording": out,
            "digest": found.recording.digest,
            "units": described(found.recording.units),
            "preparation": None if found.preparation is None else found.preparation.to_json(),
        }
        print(output.as_json(answer))
        return
    show_preparation(found.preparation)
    rows = [[unit.name, str(unit.n_inputs), str(unit.n_outputs)] for unit in found.recording.units]
    output.show_table(f"{found.recording.rows} rows", ["unit", "inputs", "outputs"], rows)
    output.show_text("")
    output.show_text(f"recording: {out}")


def described(units: Sequence[Any]) -> list[dict[str, Any]]:
    """Units as plain values."""
    return [{"name": u.name, "inputs": list(u.input_names), "outputs": list(u.output_names)} for u in units]


def show_preparation(preparation: Preparation | None) -> None:
    """Everything that was done, doubts as notes below."""
    if preparation is None:
        output.show_text("Rows were taken as they come.")
        return
    for step in preparation.steps:
        if not step.doubt:
            output.show_text(step.text)
    output.show_notes(preparation.doubts)


def place_of(out: Path, names: Sequence[str], force: bool) -> dict[str, Path]:
    """Where files of a new directory go; refused before any work is done if something is in the way."""
    if out.exists() and not out.is_dir():
        raise OptionError(f"--out {str(out)!r} is a file: give a directory.")
    files = {name: Path(os.path.normpath(out / name)) for name in names}
    output.check_new(list(files.values()), force)
    return files
