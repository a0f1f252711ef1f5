"""``counterflow data hai``, ``swat`` and ``stand-in``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from typer import Argument, Option

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.data_tables import prepared
from counterflow.cli.federation_file import unit_text
from counterflow.cli.options import Files, Seed
from counterflow.cli.output import Told, answering
from counterflow.data.hai import prepare_hai
from counterflow.data.stand_ins import write_stand_in
from counterflow.data.swat import prepare_swat

Place = Annotated[Path, Option(metavar="DIR", help="Directory for recording, federation file and report.")]
NormalOnly = Annotated[bool, Option("--normal-only/--with-attacks", help="Cut rows out that are labelled as attacks.")]
Standardise = Annotated[bool, Option("--standardise", help="Write z-scores instead of engineering units.")]
_TITLES = {"hai": "HAI", "swat": "SWaT"}


@answering()
def hai(
    files: Files,
    out: Place,
    labels: Annotated[
        list[Path] | None, Option(metavar="FILE", help="Label files of HAI 23.05, in the order of the files.")
    ] = None,
    rows: Annotated[int, Option(min=0, help="Keep the first so many rows (0: all).")] = 0,
    normal_only: NormalOnly = True,
    standardise: Standardise = False,
    force: output.Force = False,
) -> Told:
    """Prepare files of the HAI data set (20.07, 21.03, 22.04, 23.05) as the paper does.

    Example: counterflow data hai train1.csv.gz train2.csv.gz --out hai
    """
    options = {"rows": rows or None, "normal_only": normal_only, "standardise": standardise, "labels": labels or ()}
    return _prepare("hai", files, out, options, force)


@answering()
def swat(
    files: Files,
    out: Place,
    rows: Annotated[int, Option(min=0, help="Keep the first so many rows, as the paper does (0: all).")] = 30_000,
    correlation: Annotated[
        float, Option(min=0.0, max=1.0, help="Keep variables that correlate more with another stage.")
    ] = 0.3,
    noise: Annotated[float, Option(min=0.0, help="Gaussian noise on inputs, in their standard deviations.")] = 0.01,
    seed: Seed = 0,
    normal_only: NormalOnly = True,
    standardise: Standardise = False,
    force: output.Force = False,
) -> Told:
    """Prepare files of the SWaT data set (2015; CSV or XLSX) as the paper does.

    Example: counterflow data swat SWaT_Dataset_Normal_v1.csv --out swat
    """
    options = {
        "rows": rows or None, "correlation": correlation, "noise": noise, "seed": seed, "normal_only": normal_only,
        "standardise": standardise,
    }  # fmt: skip
    return _prepare("swat", files, out, options, force)


def _prepare(dataset: str, files: Sequence[Path], out: Path, options: dict[str, Any], force: bool) -> Told:
    """Prepare, write recording, federation file and report, and tell."""
    places = _places(out, ("recording.safetensors", "report.json", "report.md", "federation.toml"), force)
    prepare: Any = prepare_hai if dataset == "hai" else prepare_swat
    found = prepare(files, **options)
    head = {"version": __version__, "command": f"data {dataset}"}
    report = {
        "options": {name: value for name, value in options.items() if name != "labels"},
        "files": {name: str(path) for name, path in places.items()},
        "units": output.units_json(found.recording.units), "digest": found.recording.digest, **found.to_json(),
    }  # fmt: skip
    lines = [
        f"# {_TITLES[dataset]}, prepared from {', '.join(found.preparation.files)}",
        "# counterflow fit THIS-FILE --out fit", "", "[federation]", 'recording = "recording.safetensors"',
    ]  # fmt: skip
    for unit in found.recording.units:
        lines += unit_text(unit.name, [f"# {unit.n_inputs} inputs, {unit.n_outputs} outputs; see report.md"], {})
    contents = {
        "recording.safetensors": found.recording.save, "report.json": (output.as_json(head | report) + "\n").encode(),
        "report.md": _markdown(dataset, found).encode(), "federation.toml": ("\n".join(lines) + "\n").encode(),
    }  # fmt: skip
    output.write_all({places[name]: content for name, content in contents.items()}, force)
    written = f"recording, federation file and report: {out}"
    return Told(report, prepared(found.preparation, found.recording, written))


def _places(out: Path, names: Sequence[str], force: bool) -> dict[str, Path]:
    """Where files of a new directory go; refused before any work is done if something is in the way."""
    output.check_folder(out)
    files = {name: Path(os.path.normpath(out / name)) for name in names}
    output.check_new(list(files.values()), force)
    return files


def _markdown(dataset: str, found: Any) -> str:
    lines = [f"# {_TITLES[dataset]}: what was done", ""]
    lines += [f"- {'**doubt:** ' if step.doubt else ''}{step.text}" for step in found.preparation.steps]
    lines += ["", "## What became of every tag", "", "| tag | fate | mean | std |", "|---|---|---|---|"]
    scales = {name: scale for channels in found.scales.values() for name, scale in channels.items()}
    for tag, fate in found.fate.items():
        mean, std = (f"{value:.6g}" for value in scales[tag]) if tag in scales else ("", "")
        lines.append(f"| {tag} | {fate} | {mean} | {std} |")
    return "\n".join(lines) + "\n"


@answering()
def stand_in(
    dataset: Annotated[Literal["hai", "swat"], Argument(help="Whose format.")],
    out: Annotated[Path, Option(metavar="DIR", help="Directory for the files.")],
    version: Annotated[
        str | None, Option(help="HAI: 20.07, 21.03, 22.04 or 23.05; SWaT: normal-v0, normal-v1, attack-v0, xlsx.")
    ] = None,
    rows: Annotated[int, Option(min=10, max=1_000_000, help="Rows of each file.")] = 2000,
    seed: Seed = 0,
    force: output.Force = False,
) -> Told:
    """Write small files in the format of a data set, from a simulated plant. They are not the real data set.

    Example: counterflow data stand-in hai --version 21.03 --rows 5000 --out stand-in
    """
    with TemporaryDirectory() as folder:
        made = write_stand_in(dataset, version, folder, rows, seed)
        places = _places(out, [path.name for path in made], force)
        output.write_all({places[path.name]: path.read_bytes() for path in made}, force)
    notice = "simulated numbers; not the real data set"
    return Told({"dataset": dataset, "files": list(places.values()), "notice": notice})
