"""``counterflow data hai``, ``swat`` and ``stand-in``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.data_inspect import described, place_of, show_preparation
from counterflow.cli.output import Format

_TITLES = {"hai": "HAI", "swat": "SWaT"}


def run(
    dataset: str, files: Sequence[Path], out: Path, options: dict[str, Any], *, force: bool, answer_format: Format
) -> None:
    """Prepare, write recording, federation file and report, and tell."""
    from counterflow.cli.federation_file import quoted, shown_key
    from counterflow.data.hai import prepare_hai
    from counterflow.data.swat import prepare_swat

    places = place_of(out, ("recording.safetensors", "report.json", "report.md", "federation.toml"), force)
    prepare: Any = prepare_hai if dataset == "hai" else prepare_swat
    found = prepare(files, **options)
    report = {
        "version": __version__,
        "command": f"data {dataset}",
        "options": {name: value for name, value in options.items() if name != "labels"},
        "files": {name: str(path) for name, path in places.items()},
        "units": described(found.recording.units),
        "digest": found.recording.digest,
        **found.to_json(),
    }
    lines = [
        f"# {_TITLES[dataset]}, prepared from {', '.join(found.preparation.files)}",
        "# counterflow fit THIS-FILE --out fit",
        "",
        "[federation]",
        f"recording = {quoted('recording.safetensors')}",
    ]
    for unit in found.recording.units:
        lines += ["", f"[{shown_key('units', unit.name)}]"]
        lines.append(f"# {unit.n_inputs} inputs, {unit.n_outputs} outputs; see report.md")
    output.write_all(
        {
            places["recording.safetensors"]: found.recording.save,
            places["report.json"]: (output.as_json(report) + "\n").encode(),
            places["report.md"]: _markdown(dataset, found).encode(),
            places["federation.toml"]: ("\n".join(lines) + "\n").encode(),
        },
        force,
    )
    if answer_format is Format.json:
        print(output.as_json(report))
        return
    show_preparation(found.preparation)
    rows = [[unit.name, str(unit.n_inputs), str(unit.n_outputs)] for unit in found.recording.units]
    output.show_table(f"{found.recording.rows} rows", ["unit", "inputs", "outputs"], rows)
    output.show_text("")
    output.show_text(f"recording, federation file and report: {out}")


def _markdown(dataset: str, found: Any) -> str:
    lines = [f"# {_TITLES[dataset]}: what was done", ""]
    lines += [f"- {'**doubt:** ' if step.doubt else ''}{step.text}" for step in found.preparation.steps]
    lines += ["", "## What became of every tag", "", "| tag | fate | mean | std |", "|---|---|---|---|"]
    scales = {name: scale for channels in found.scales.values() for name, scale in channels.items()}
    for tag, fate in found.fate.items():
        mean, std = (f"{value:.6g}" for value in scales[tag]) if tag in scales else ("", "")
        lines.append(f"| {tag} | {fate} | {mean} | {std} |")
    return "\n".join(lines) + "\n"


def stand_in(
    dataset: str, version: str | None, out: Path, *, rows: int, seed: int, force: bool, answer_format: Format
) -> None:
    """Write a stand-in, and say that it is one."""
    from counterflow.data.stand_ins import write_stand_in

    with TemporaryDirectory() as folder:
        made = write_stand_in(dataset, version, folder, rows, seed)
        places = place_of(out, [path.name for path in made], force)
        output.write_all({places[path.name]: path.read_bytes() for path in made}, force)
    files = [str(path) for path in places.values()]
    if answer_format is Format.json:
        answer = {
            "version": __version__, "command": "data stand-in", "dataset": dataset, "files": files,
            "notice": "simulated numbers; not the real data set",
        }  # fmt: skip
        print(output.as_json(answer))
        return
    output.show_text(f"A stand-in for {_TITLES[dataset]}: simulated numbers in its format, not the real data set.")
    for file in files:
        output.show_text(file)
