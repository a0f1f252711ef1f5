"""What is remembered of a request: enough to count and to log it, and nothing that a visitor has written."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from starlette.types import Scope

from counterflow.console.admission import METRICS, is_page
from counterflow.files import appending, blaming
from counterflow.fits.content import SERVER_FILE

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEALTH = "/health"
GONE = 499  # whoever asked has left before an answer began
BYTES = 10_000_000  # of one file of the access log
FILES = 5  # that are kept beside it: FILE.1 is the newest


@dataclass(frozen=True)
class Visit:
    """One request and how it ended: ``who`` as in ``admission.Entry``, ``seat`` and ``code`` of a refusal or "".

    ``route`` is as the application names it, never as it was asked: a query or a path may hold a secret.
    """

    time: float
    address: str
    who: str
    seat: str
    method: str
    route: str
    status: int
    code: str
    seconds: float

    @classmethod
    def of(cls, scope: Scope, time: float, seconds: float, who: str, status: int, code: str) -> Visit:
        method = scope["method"] if scope["method"] in METHODS else "other"
        address, seat = str((scope.get("client") or ("",))[0]), scope.get("seat", "")
        return cls(time, address, who, seat, method, _route(scope), status, code, seconds)

    @property
    def question(self) -> str:
        """The kind of question that was answered; "" if none was."""
        seat, _, kind = self.route.partition("/{seat}/")
        return kind.partition("/")[0] if seat and self.method == "POST" and self.status == 200 else ""


def _route(scope: Scope) -> str:
    known = getattr(scope.get("route"), "path", None)
    if isinstance(known, str):
        return known
    path = scope["path"]
    if is_page(scope):
        return "/static/{name:path}" if path.startswith("/static/") else "/"
    return path if path in (HEALTH, METRICS) else "/api" if path.startswith("/api/") else "other"


def usual_place(model: Path) -> Path:
    """Of the access log: inside a party's folder; beside a saved fit, whose folder is replaced as a whole."""
    model = model.absolute()
    return Path(f"{model}-access.jsonl") if (model / SERVER_FILE).is_file() else model / "console-access.jsonl"


class AccessLog:
    """Writes visits down, one line of JSON each, in a file of its owner's that does not grow without end."""

    def __init__(self, path: Path, largest: int = BYTES, kept: int = FILES) -> None:
        self._path, self._largest, self._kept = path.absolute(), largest, kept
        self._torn = False  # whether the last line may be cut off
        self.lost = 0  # lines that could not be written: a full disk must not stop the console
        with blaming(path, "Give another file: --access-log FILE, or --no-access-log."):
            self._file = appending(self._path, buffering=0)

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

    def _rotate(self) -> None:
        self._file.close()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{k + 1}") for k in range(self._kept))]
        for newer, older in zip(names[-2::-1], names[:0:-1], strict=True):
            if newer.exists():
                os.replace(newer, older)
        self._file = appending(self._path, buffering=0)
