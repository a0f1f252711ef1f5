"""How commands answer: strict JSON or a table on the terminal, and files that are whole or not there at all.

A command returns what it has ``Told``; ``answering`` gives it --format, --out and --force, prints and writes.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer
from typer import Option

from counterflow import wording
from counterflow._version import __version__
from counterflow.caveats import CAUTION, CHOICE, CLEAR, FAILS, VERDICTS, Caveat, by_weight, verdict_of, weighing
from counterflow.errors import CounterflowError, OptionError, StorageError, UnidentifiedError
from counterflow.files import blaming, draft_of, make_folder, write_whole
from counterflow.notebook import Table
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

# by weight or verdict of a caveat, or of a check
STYLES = {FAILS: "bold red", CAUTION: "yellow", CHOICE: "dim", CLEAR: "green", "pass": "green", "fail": "red",
          "unknown": "dim"}  # fmt: skip
Content = bytes | Callable[[Path], None]  # what to write, or a function that writes it to a path


class Format(StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


def _note_format(ctx: typer.Context, value: Format) -> Format:
    """Keep ``--format`` where errors are told."""
    ctx.meta[_FORMAT] = value
    return value


AnswerFormat = Annotated[Format, Option("--format", help="What to print.", callback=_note_format, is_eager=True)]
Force = Annotated[bool, Option("--force", help="Replace what is there.")]


@dataclass(frozen=True)
class Line:
    """A line on the terminal, in a style."""

    text: str
    style: str


Part = str | Line | Table  # of what a terminal shows


@dataclass(frozen=True)
class Told:
    """What a command has found out.

    ``content`` for programs; ``parts`` for people, made only if they are wanted, or else the ``facts`` of the content;
    ``code``: the exit code. With --out: ``frame`` for a .csv or .parquet, ``figure`` for a .png.
    """

    content: Mapping[str, Any]
    parts: Iterable[Part] | None = None
    code: int = OK
    frame: Callable[[], polars.DataFrame] | None = None
    figure: Callable[[], Figure] | None = None


Options = Mapping[str, tuple[Any, Any]]  # {name: (annotation, default)}, "..." if it must be given


def answering(*kinds: str, options: Options | None = None) -> Callable[[Callable[..., Told]], Callable[..., None]]:
    """A command made of a function that returns what it has ``Told``.

    It has --format; with ``kinds`` of files also --out and --force. A parameter of the function that is called
    ``wanted`` gets the format, and one that is called ``force`` is --force. ``options``: more of them, for a function
    that takes any.
    """

    def decorate(run: Callable[..., Told]) -> Callable[..., None]:
        hints = get_type_hints(run, include_extras=True)
        own = {
            name: (hints[name], ... if each.default is each.empty else each.default)
            for name, each in inspect.signature(run).parameters.items() if each.kind is not each.VAR_KEYWORD
        } | dict(options or {})  # fmt: skip
        added: dict[str, tuple[Any, Any]] = {"answer_format": (AnswerFormat, Format.table)}
        if kinds:
            *others, last = (f".{kind}" for kind in kinds)
            described = Option(metavar="FILE", help=f"Also write the answer: {', '.join(others)} or {last}.")
            added |= {"out": (Annotated[Path | None, described], None), "force": (Force, False)}

        def command(ctx: typer.Context, answer_format: Format, **given: Any) -> None:
            out, force = (given.get("out"), given.get("force", False)) if kinds else (None, False)
            check_file("--out", out, kinds, force)
            told = run(**{name: {**given, "wanted": answer_format}[name] for name in own})
            if out is not None:
                write_all({out: _file_of(told, out, _envelope(ctx, told))}, force)
            if answer_format is Format.json:
                print(as_json(_envelope(ctx, told)))
            else:
                parts = facts(told.content) if told.parts is None else told.parts
                show(*parts, *(["", f"written: {out}"] if out is not None else []))
            if told.code:
                raise typer.Exit(told.code)

        every = {"ctx": (typer.Context, ...)} | own | {name: each for name, each in added.items() if name not in own}
        every.pop("wanted", None)
        command.__annotations__ = {name: annotation for name, (annotation, _) in every.items()}
        command.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation,
                default=inspect.Parameter.empty if default is ... else default,
            )
            for name, (annotation, default) in every.items()
        ])  # fmt: skip
        command.__name__, command.__doc__ = run.__name__, run.__doc__
        return command

    return decorate


def _envelope(ctx: typer.Context, told: Told) -> dict[str, Any]:
    names: list[str] = []
    place: Any = ctx
    while place.parent is not None:
        names.insert(0, place.info_name)
        place = place.parent
    return {"version": __version__, "command": " ".join(names), **told.content}


def _file_of(told: Told, out: Path, content: Mapping[str, Any]) -> bytes:
    """An answer as .json, .csv, .parquet or .png."""
    kind = out.suffix.lower()
    if kind == ".json":
        return (as_json(content) + "\n").encode()
    if kind == ".png":
        assert told.figure is not None
        return png(told.figure(), dpi=150)
    assert told.frame is not None
    if kind == ".csv":
        from counterflow.frames import as_csv

        return as_csv(told.frame())
    frame, buffer = told.frame(), BytesIO()
    (frame.write_ipc if kind == ".feather" else frame.write_parquet)(buffer)
    return buffer.getvalue()


def tell_error(ctx: typer.Context, error: CounterflowError) -> int:
    """An error in one line on stderr, with its code if JSON is wanted; returns the exit code."""
    text = shown(" ".join(str(error).split()), LONGEST)
    if ctx.meta.get(_FORMAT) is Format.json:
        typer.echo(as_json({"error": {"code": error.code, "message": text}}), err=True)
    else:
        typer.echo(f"counterflow: {text}", err=True)
    return UNIDENTIFIED if isinstance(error, UnidentifiedError) else USAGE


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
    return value.to_view() if isinstance(value, Caveat) else value


# ---- the terminal


def terminal() -> Console:
    """Made anew each time, so that it follows where stdout leads."""
    from rich.console import Console

    return Console(highlight=False)


def show(*parts: Part) -> None:
    """Lines and tables on the terminal: no markup, nothing that a terminal obeys."""
    from rich.table import Table as Grid
    from rich.text import Text

    def print_line(text: str, style: str = "") -> None:
        terminal().print(Text(shown(text, LONGEST), style=style), soft_wrap=True)

    for part in parts:
        if isinstance(part, str):
            print_line(part)
        elif isinstance(part, Line):
            print_line(part.text, part.style)
        else:
            grid = Grid(title=Text(shown(part.title, LONGEST)), title_justify="left", title_style="bold")
            for k, column in enumerate(part.columns):
                justify: Literal["left", "right"] = "left" if k < part.left else "right"
                grid.add_column(Text(shown(column, LONGEST)), justify=justify, overflow="fold")
            for row in part.rows:
                grid.add_row(*(Text(shown(cell, LONGEST)) for cell in row))
            print_line("")
            terminal().print(grid)
            if part.more:
                print_line(part.more)


def facts(content: Mapping[str, Any]) -> Iterator[Part]:
    """What JSON has, for people: a line for a value, a table for objects; "caveats" below, then what to do "next"."""
    for name, value in content.items():
        title = name.replace("_", " ")
        if name in ("caveats", "next") or value is None or value in ("", [], (), {}):
            continue
        if isinstance(value, (list, tuple)) and isinstance(value[0], Mapping):
            yield listed(title, value, *value[0])
        else:
            yield f"{title}: {_cell(value)}"
    yield from noted(content.get("caveats", ()))
    if then := content.get("next"):
        yield from ("", *([then] if isinstance(then, str) else then))


def listed(title: str, rows: Sequence[Mapping[str, Any]], *columns: str, left: int | None = None) -> Table:
    """A table of what JSON has as a list of objects; all columns but the first ``left`` (all) are numbers."""
    cells = [
        [wording.number(cell) if isinstance(cell := row.get(name), float) else _cell(cell) for name in columns]
        for row in rows
    ]
    return Table(title, [name.replace("_", " ") for name in columns], cells, len(columns) if left is None else left)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.replace('_', ' ')} {_cell(entry)}" for name, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def noted(notes: Sequence[str | Caveat]) -> Iterator[Part]:
    """Notes below what a command says; caveats by their weight, the heaviest first."""
    if notes:
        yield ""
    for caveat in by_weight(note for note in notes if isinstance(note, Caveat)):
        yield Line(f"{caveat.weight}: {caveat}", STYLES[caveat.weight])
    for note in notes:
        if not isinstance(note, Caveat):
            yield Line(f"note: {note}", "yellow")


def sourced(source: Provenance | None) -> Iterator[Part]:
    """The fit that an answer comes from."""
    if source is not None:
        yield from ("", f"from {source}")


def judged(caveats: Sequence[Caveat], choices: str) -> Iterator[Part]:
    """What an answer must be read with; ``choices``: the command that tells those of the fit, which are told once."""
    verdict, told = verdict_of(caveats), weighing(caveats)
    yield ""
    yield Line(f"verdict: {VERDICTS[verdict]}", STYLES[verdict])
    for caveat in told:
        yield Line(f"  {caveat.weight}: {caveat}", STYLES[caveat.weight])
    if count := len(set(caveats)) - len(told):
        yield Line(f"  {count} {'choice' if count == 1 else 'choices'} of the fit: {choices}", "dim")


def fitted(found: Fit) -> Iterator[Part]:
    """The account of a fit, with its caveats by weight."""
    told = {f"{caveat.weight}: {caveat}" for caveat in found.caveats}
    yield from (line for line in found.summary().split("\n") if line not in told)
    yield from noted(found.caveats)


# ---- JSON that several commands have


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


def check_file(option: str, path: Path | None, kinds: Sequence[str], force: bool) -> None:
    """Refuse, before any work is done, a file whose name does not end as its kind does, or that is in the way."""
    if path is None:
        return
    if path.suffix.lower().lstrip(".") not in kinds:
        endings = " or ".join(f".{kind}" for kind in kinds)
        raise OptionError(f"{option} {str(path)!r}: the name must end in {endings}.")
    check_new([path], force)


def png(figure: Figure, dpi: int) -> bytes:
    """A drawing as a file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()
