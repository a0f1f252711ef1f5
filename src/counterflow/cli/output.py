"""How commands answer: strict JSON or a table on the terminal, and files that are whole or not there at all."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow.errors import OptionError, StorageError

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure
    from rich.console import Console

OK, USAGE, NOT_CONVERGED, UNIDENTIFIED, INFEASIBLE = (
    0,
    2,
    3,
    4,
    5,
)  # exit codes; 1 is a defect of ours, 130 an interrupt

Content = bytes | Callable[[Path], None]  # what to write, or a function that writes it to a path


class Format(StrEnum):
    """How a command answers."""

    table = "table"
    json = "json"


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
    return value


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """A table on the terminal; all columns but the first ``left`` are numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", title_style="bold")
    for k, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if k < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = terminal()
    console.print()
    console.print(table)


def show_text(text: str, style: str | None = None) -> None:
    """Text on the terminal, as it is."""
    from rich.text import Text

    terminal().print(Text(text, style=style or ""), soft_wrap=True)


def show_notes(notes: Sequence[str]) -> None:
    """Caveats, below an answer."""
    if notes:
        show_text("")
    for note in notes:
        show_text(f"note: {note}", style="yellow")


def terminal() -> Console:
    """Made anew each time, so that it follows where stdout leads."""
    from rich.console import Console

    return Console(highlight=False)


# ---- files


def check_new(paths: Sequence[Path], force: bool) -> None:
    """Refuse, before any work is done, what would overwrite a file or could not be written."""
    for path in paths:
        with blaming_place(path):
            if path.is_dir():
                raise StorageError(f"{str(path)!r} is a directory: give a file.")
            if path.exists() and not force:
                raise StorageError(f"{str(path)!r} exists: choose another name, or give --force to replace it.")
            near = path.absolute().parent
            while not near.exists():
                near = near.parent
            if not near.is_dir():
                raise StorageError(f"{str(path)!r} would lie below the file {str(near)!r}: choose another place.")
            if not os.access(near, os.W_OK | os.X_OK):
                raise StorageError(f"{str(path)!r}: {str(near)!r} may not be written to; choose another place.")


@contextmanager
def blaming_place(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {str(path)!r}: {error.strerror or error}. Choose another place.") from error


def write_all(files: Mapping[Path, Content], force: bool) -> None:
    """Write all files, or none: each is drafted in a folder beside its place, then all are renamed into place.

    An interrupt, too, leaves nothing half-written: drafts go, and so does what was newly put into place.
    """
    check_new(list(files), force)
    token = secrets.token_hex(4)
    drafts: dict[Path, Path] = {}
    folders: list[Path] = []
    placed: list[Path] = []
    try:
        for target, content in files.items():
            with blaming_place(target):
                folders += _made(target.absolute().parent)
                draft = target.with_name(f".{target.name}.{token}.part")
                draft.mkdir()
                drafts[target] = draft / "content"
                if isinstance(content, bytes):
                    drafts[target].write_bytes(content)
                else:
                    content(drafts[target])
        for target, draft in drafts.items():
            with blaming_place(target):
                new = not target.exists()
                os.replace(draft, target)
                if new:
                    placed.append(target)
    except BaseException:
        for target in placed:
            target.unlink(missing_ok=True)
        _clear(files, token)
        for folder in reversed(folders):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        raise
    _clear(files, token)


def _made(folder: Path) -> list[Path]:
    """Make a folder; the ones that were not there, outermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
    return missing[::-1]


def _clear(files: Mapping[Path, Content], token: str) -> None:
    for target in files:
        shutil.rmtree(target.with_name(f".{target.name}.{token}.part"), ignore_errors=True)


def check_kind(out: Path | None, kinds: Sequence[str], force: bool) -> None:
    """Refuse, before any work is done, an --out of a kind that this command does not write."""
    if out is None:
        return
    if out.suffix.lower().lstrip(".") not in kinds:
        endings = " or ".join(f".{kind}" for kind in kinds)
        raise OptionError(f"--out {str(out)!r}: the name must end in {endings}.")
    check_new([out], force)


def write_answer(
    out: Path | None,
    force: bool,
    answer: Mapping[str, Any],
    frame: Callable[[], polars.DataFrame],
    figure: Callable[[], Figure] | None = None,
) -> None:
    """An answer as .json, .csv or .png, by the ending of ``out``; nothing if there is none."""
    if out is None:
        return
    kind = out.suffix.lower()
    if kind == ".json":
        content = (as_json(answer) + "\n").encode()
    elif kind == ".csv":
        content = frame().fill_nan(None).write_csv().encode()
    else:
        from io import BytesIO

        assert figure is not None
        buffer = BytesIO()
        figure().savefig(buffer, format="png", dpi=150)
        content = buffer.getvalue()
    write_all({out: content}, force)
