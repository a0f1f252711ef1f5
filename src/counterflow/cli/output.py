"""How commands answer: strict JSON or a table on the terminal, and files that are whole or not there at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from counterflow._version import __version__
from counterflow.caveats import CAUTION, CHOICE, CLEAR, FAILS, VERDICTS, Caveat, by_weight, verdict_of, weighing
from counterflow.errors import CounterflowError, OptionError, StorageError, UnidentifiedError
from counterflow.files import blaming, draft_of, make_folder, write_whole
from counterflow.printable import shown

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure
    from rich.console import Console

    from counterflow.exchange.outcome import Provenance, Status
    from counterflow.fits.engine import Traffic
    from counterflow.fits.fit import Fit
    from counterflow.plant import Unit

# exit codes; 1 is a defect of ours
OK, USAGE, NOT_CONVERGED, UNIDENTIFIED, INFEASIBLE, CHECK_FAILED, INTERRUPTED = 0, 2, 3, 4, 5, 6, 130
LONGEST = 20_000  # characters of a line
_FORMAT = "counterflow.format"  # where a command's context keeps its --format

STYLES = {FAILS: "bold red", CAUTION: "yellow", CHOICE: "dim", CLEAR: "green"}  # by weight, or verdict
Content = bytes | Callable[[Path], None]  # what to write, or a function that writes it to a path


class Format(StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


def note_format(ctx: typer.Context, value: Format) -> Format:
    """Keep ``--format`` where errors are told."""
    ctx.meta[_FORMAT] = value
    return value


def tell_error(ctx: typer.Context, error: CounterflowError) -> int:
    """An error in one line on stderr, with its code if JSON is wanted; returns the exit code."""
    text = shown(" ".join(str(error).split()), LONGEST)
    if ctx.meta.get(_FORMAT) is Format.json:
        typer.echo(as_json({"error": {"code": error.code, "message": text}}), err=True)
    else:
        typer.echo(f"counterflow: {text}", err=True)
    return UNIDENTIFIED if isinstance(error, UnidentifiedError) else USAGE


def answer(wanted: Format, command: str, content: Mapping[str, Any], show: Callable[[], None]) -> None:
    """Print a command's answer: ``content`` as JSON, or what ``show`` shows."""
    if wanted is Format.json:
        print(as_json({"version": __version__, "command": command, **content}))
    else:
        show()


def as_json(value: Any) -> str:
    """Strictly valid JSON on one line; what is not a finite number is null."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # a NumPy array or number
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Caveat):
        return value.to_view()
    return value


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on the terminal; all columns but the first ``left`` are numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(shown(title, LONGEST)), title_justify="left", title_style="bold")
    for k, column in enumerate(columns):
        table.add_column(Text(shown(column, LONGEST)), justify="left" if k < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell, LONGEST)) for cell in row))
    console = terminal()
    console.print()
    console.print(table)


def show_text(text: str, style: str | None = None) -> None:
    """One line of text on the terminal: no markup, nothing that a terminal obeys."""
    from rich.text import Text

    terminal().print(Text(shown(text, LONGEST), style=style or ""), soft_wrap=True)


def show_lines(*lines: str) -> None:
    """Lines of text on the terminal; an empty one is a blank line."""
    for line in lines:
        show_text(line)


def show_source(source: Provenance | None) -> None:
    """The fit that an answer comes from."""
    if source is not None:
        show_lines("", f"from {source}")


def show_notes(notes: Sequence[str | Caveat]) -> None:
    """Notes below what a command says; caveats by their weight, the heaviest first."""
    if notes:
        show_text("")
    for caveat in by_weight(note for note in notes if isinstance(note, Caveat)):
        show_text(f"{caveat.weight}: {caveat}", style=STYLES[caveat.weight])
    for note in notes:
        if not isinstance(note, Caveat):
            show_text(f"note: {note}", style="yellow")


def show_verdict(caveats: Sequence[Caveat], choices: str) -> None:
    """What an answer must be read with; ``choices``: the command that tells those of the fit, which are told once."""
    verdict, told = verdict_of(caveats), weighing(caveats)
    show_text("")
    show_text(f"verdict: {VERDICTS[verdict]}", style=STYLES[verdict])
    for caveat in told:
        show_text(f"  {caveat.weight}: {caveat}", style=STYLES[caveat.weight])
    if count := len(set(caveats)) - len(told):
        show_text(f"  {count} {'choice' if count == 1 else 'choices'} of the fit: {choices}", style="dim")


def show_fit(found: Fit) -> None:
    """The account of a fit, with its caveats by weight."""
    told = {f"{caveat.weight}: {caveat}" for caveat in found.caveats}
    show_lines(*(line for line in found.summary().split("\n") if line not in told))
    show_notes(found.caveats)


def terminal() -> Console:
    """Made anew each time, so that it follows where stdout leads."""
    from rich.console import Console

    return Console(highlight=False)


def picked(of: object, names: str) -> dict[str, Any]:
    """Some attributes by their names, which blanks separate."""
    return {name: getattr(of, name) for name in names.split()}


def units_json(units: Sequence[Unit]) -> list[dict[str, Any]]:
    """Units in a command's JSON."""
    return [picked(u, "name states") | {"inputs": list(u.input_names), "outputs": list(u.output_names)} for u in units]


def fit_json(status: Status, traffic: Traffic) -> dict[str, Any]:
    """How a fit ended and what was sent for it, in a command's JSON."""
    ended = picked(status, "converged rounds gradient message")
    return {"status": ended, "traffic": picked(traffic, "rounds bytes_up bytes_down")}


# ---- files


def check_new(paths: Sequence[Path], force: bool) -> None:
    """Refuse, before any work is done, what would overwrite a file or could not be written."""
    for path in paths:
        with blaming(path):
            if path.is_dir():
                raise StorageError(f"{str(path)!r} is a directory: give a file.")
            if path.exists() and not force:
                raise StorageError(f"{str(path)!r} exists: choose another name, or give --force to replace it.")
            _check_writable(path.absolute().parent, path)


def check_folder(out: Path) -> None:
    """Refuse, before any work is done, an --out that cannot be made or is no directory."""
    with blaming(out):
        if out.exists() and not out.is_dir():
            raise StorageError(f"--out {str(out)!r} is a file: give a directory.")
        _check_writable(out.absolute(), out)


def _check_writable(folder: Path, path: Path) -> None:
    folder = next(each for each in (folder, *folder.parents) if each.exists())
    if not folder.is_dir():
        raise StorageError(f"{str(path)!r} would lie below the file {str(folder)!r}: give a directory above it.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"{str(path)!r}: {str(folder)!r} may not be written to; choose another place.")


def write_all(files: Mapping[Path, Content], force: bool) -> None:
    """Write all files, or none: each is drafted beside its place, then all are renamed into place.

    An interrupt, too, leaves nothing half-written: drafts go, and so does what was newly put into place.
    """
    check_new(list(files), force)
    drafts = {target: draft_of(target) for target in files}
    folders: list[Path] = []
    placed: list[Path] = []
    try:
        for target, content in files.items():
            with blaming(target):
                folders += make_folder(target.absolute().parent)
                if isinstance(content, bytes):
                    write_whole(drafts[target], content)
                else:
                    content(drafts[target])
        for target, draft in drafts.items():
            with blaming(target):
                new = not target.exists()
                os.replace(draft, target)
                if new:
                    placed.append(target)
    except BaseException:
        for path in (*placed, *drafts.values()):
            path.unlink(missing_ok=True)
        for folder in reversed(folders):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise


def check_kind(out: Path | None, kinds: Sequence[str], force: bool) -> None:
    """Refuse, before any work is done, an --out of a kind that this command does not write."""
    if out is None:
        return
    check_ending("--out", out, kinds)
    check_new([out], force)


def check_ending(option: str, path: Path, kinds: Sequence[str]) -> None:
    """Refuse a file whose name does not end as its kind does."""
    if path.suffix.lower().lstrip(".") not in kinds:
        endings = " or ".join(f".{kind}" for kind in kinds)
        raise OptionError(f"{option} {str(path)!r}: the name must end in {endings}.")


def conclude(
    wanted: Format, out: Path | None, force: bool, told: Mapping[str, Any], show: Callable[[], None],
    frame: Callable[[], polars.DataFrame], figure: Callable[[], Figure] | None = None,
) -> None:  # fmt: skip
    """An answer of a fit: to ``out``, if given, as .json, .csv, .parquet or .png by its ending, and to the terminal."""
    if out is not None:
        kind = out.suffix.lower()
        if kind == ".json":
            content = (as_json(told) + "\n").encode()
        elif kind == ".csv":
            from counterflow.frames import as_csv

            content = as_csv(frame())
        elif kind == ".parquet":
            buffer = BytesIO()
            frame().write_parquet(buffer)
            content = buffer.getvalue()
        else:
            assert figure is not None
            content = png(figure(), dpi=150)
        write_all({out: content}, force)
    if wanted is Format.json:
        print(as_json(told))
        return
    show()
    if out is not None:
        show_lines("", f"written: {out}")


def png(figure: Figure, dpi: int) -> bytes:
    """A drawing as a file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
