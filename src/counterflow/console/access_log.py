"""The console's access log: one line of JSON a request, in a file of its owner's that does not grow without end."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from counterflow.console.visits import Visit
from counterflow.files import blaming
from counterflow.fits.content import SERVER_FILE

BYTES = 10_000_000  # of one file
FILES = 5  # that are kept beside it: FILE.1 is the newest


def usual_place(model: Path) -> Path:
    """Inside a party's folder; beside a saved fit, whose folder is replaced as a whole."""
    model = model.absolute()
    return Path(f"{model}-access.jsonl") if (model / SERVER_FILE).is_file() else model / "console-access.jsonl"


class AccessLog:
    """Writes visits down."""

    def __init__(self, path: Path, largest: int = BYTES, kept: int = FILES) -> None:
        self._path, self._largest, self._kept = path.absolute(), largest, kept
        self._torn = False  # whether the last line may be cut off
        self.lost = 0  # lines that could not be written: a full disk must not stop the console
        with blaming(path, "Give another file: --access-log FILE, or --no-access-log."):
            self._file = self._open()

    def note(self, visit: Visit) -> None:
        """A request is over."""
        told = {
            "time": datetime.fromtimestamp(visit.time, UTC).isoformat(timespec="milliseconds"),
            "address": visit.address, "who": visit.who or None, "seat": visit.seat or None, "method": visit.method,
            "route": visit.route, "status": visit.status, "code": visit.code or None,
            "ms": round(1e3 * visit.seconds, 1),
        }  # fmt: skip
        try:
            if self._file.closed or self._file.tell() >= self._largest:
                self._rotate()
            line = b"\n" * self._torn + json.dumps(told).encode() + b"\n"
            self._torn = True
            self._torn = self._file.write(line) < len(line)
        except OSError:
            self.lost += 1

    def close(self) -> None:
        self._file.close()

    def _open(self) -> IO[bytes]:
        # no link: whoever may write the folder must not make us write elsewhere
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        file = os.fdopen(os.open(self._path, flags, 0o600), "ab", buffering=0)
        file.seek(0, os.SEEK_END)
        return file

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number - 1}") if number > 1 else self._path
            if older.exists():
                os.replace(older, self._path.with_name(f"{self._path.name}.{number}"))
        self._file = self._open()
