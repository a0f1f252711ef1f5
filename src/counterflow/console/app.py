"""The console's API and page. It only translates: every answer comes from the library's questions."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from counterflow._version import __version__
from counterflow.console import answers, describing, exports, messages
from counterflow.console.admission import problem
from counterflow.console.opening import Opened, open_model
from counterflow.console.seats import Seat
from counterflow.errors import (
    CounterflowError,
    PrivacyError,
    ProtocolError,
    StorageError,
    UnidentifiedError,
    UnknownNameError,
    UnstableError,
)
from counterflow.questions.question import Request as AnyQuestion
from counterflow.questions.registry import QUESTIONS

STATUS: tuple[tuple[type[CounterflowError], int], ...] = (
    (UnidentifiedError, 409),
    (UnstableError, 409),
    (UnknownNameError, 404),
    (PrivacyError, 403),
    (StorageError, 503),
    (ProtocolError, 503),
    (CounterflowError, 400),
)
Responses = dict[int | str, dict[str, Any]]
_SAID = {
    400: "It cannot be done as asked.",
    401: "No token, a wrong one, or one that has expired.",
    403: "A policy, or privacy, forbids it; or the request comes from another site's page.",
    404: "A seat, unit or channel of that name does not exist.",
    408: "The request came too slowly.",
    409: "The data cannot tell.",
    413: "Too large.",
    415: "Not JSON.",
    421: "The console is asked under another name than its own.",
    422: "Malformed; the message names the field.",
    429: "Too many requests.",
    503: "The coordinator of the federation does not answer, or the console is being stopped.",
}
WRONG: Responses = {code: {"model": messages.Failure, "description": said} for code, said in _SAID.items()}
FILE: Responses = {200: {"description": "The file.", "content": {each: {} for each in exports.KINDS.values()}}}
DESCRIPTION = """Ask a fitted federation from scripts as the page does. A *seat* is a point of view: `server`, or
`unit:<name>`. Numbers that are not known are null; row k of an effect is k+1 steps after the change began."""
STATIC = files("counterflow.console") / "static"


def create(
    model: Path, *, data: Path | None = None, seats: Sequence[str] = (), policies: Sequence[Path] = ()
) -> FastAPI:
    """The application for a saved fit or a folder of a federation; see ``opening.open_model``."""
    opened = open_model(Path(model), data=data, seats=seats, policies=policies)
    threading.Thread(target=opened.warm, daemon=True).start()
    return application(opened)


def application(opened: Opened) -> FastAPI:
    """The application for seats that are open."""
    app = FastAPI(
        title="Counterflow console", version=__version__, description=DESCRIPTION, openapi_url="/api/openapi.json",
        docs_url=None, redoc_url=None,
    )  # fmt: skip
    app.add_exception_handler(CounterflowError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _not_there)

    def at(seat: str) -> Seat:
        if seat not in opened.seats:
            raise UnknownNameError(f"no seat {seat!r:.120}; the seats are {', '.join(opened.seats)}")
        return opened.seats[seat]

    @app.get("/api/seats", summary="Points of view that this console offers", responses=WRONG)
    def seats() -> messages.Seats:
        return describing.seats(opened)

    @app.get("/api/seats/{seat}/plant", summary="Units, channels, and what may be asked", responses=WRONG)
    def plant(seat: str) -> messages.PlantTold:
        return describing.plant(at(seat))

    @app.get("/api/seats/{seat}/graph", summary="Who acts on whom", responses=WRONG)
    def graph(seat: str, rate: Annotated[float, Query(gt=0, lt=1)] = 0.05) -> messages.GraphTold:
        return describing.graph(at(seat), rate)

    @app.get("/api/seats/{seat}/checks", summary="What speaks against the answers", responses=WRONG)
    def checks(seat: str) -> messages.ChecksTold:
        return describing.checks(at(seat))

    @app.get("/api/seats/{seat}/training", summary="How the fit came about", responses=WRONG)
    def training(seat: str) -> messages.TrainingTold:
        return describing.training(at(seat))

    @app.get("/api/seats/{seat}/log", summary="The unit's own measurements, thinned", responses=WRONG)
    def log(seat: str, channel: str, points: Annotated[int, Query(ge=10, le=10_000)] = 800) -> messages.LogTold:
        return describing.log(at(seat), channel, points)

    for question in QUESTIONS.values():
        _add_question(app, question, at)

    @app.post(
        "/api/seats/{seat}/export/{kind}",
        summary="An answer as a file",
        response_class=Response,
        responses=FILE | WRONG,
    )
    def export(seat: str, kind: Literal["json", "csv", "html"], wanted: messages.Export) -> Response:
        content = exports.export(at(seat), wanted.question, kind)
        name = f"counterflow-{wanted.question.kind}.{kind}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type=exports.KINDS[kind], headers=headers)

    _serve_page(app)
    return app


def _add_question(app: FastAPI, question: type[AnyQuestion], at: Callable[[str], Seat]) -> None:
    def asked(seat: str, question: Any) -> dict[str, Any]:
        return answers.answer(at(seat), kind, question).content

    kind = question
    asked.__name__ = question.tab
    asked.__annotations__ = {"seat": str, "question": messages.FORMS[question.kind]}
    app.post(
        f"/api/seats/{{seat}}/{question.tab}", summary=question.title, response_model=question.schema, responses=WRONG
    )(asked)


def _serve_page(app: FastAPI) -> None:
    """The page and what it loads: named one by one at the start, so that no request names a path."""
    known: dict[str, tuple[bytes, str]] = {}
    root = Path(str(STATIC))
    for place in sorted(root.rglob("*")):
        if place.is_file() and place.suffix in _TYPES:
            known[place.relative_to(root).as_posix()] = (place.read_bytes(), _TYPES[place.suffix])
    plotly = _plotly()
    known[plotly.name] = (plotly.read_bytes(), _TYPES[plotly.suffix])
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, (content, _) in known.items()}

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return await static("index.html", request)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        if name not in known:
            raise HTTPException(404, f"no file {name!r:.100}")
        if request.headers.get("if-none-match") == tags[name]:  # the browser has it
            return Response(status_code=304, headers={"ETag": tags[name]})
        content, kind = known[name]
        return Response(content, media_type=kind, headers={"ETag": tags[name]})


_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def _plotly() -> Path:
    from importlib.util import find_spec

    found = find_spec("plotly")
    place = Path(str(found.origin)).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if place is None or not place.is_file():
        raise StorageError(
            "the console draws with plotly.js from the plotly package: pip install 'counterflow[console]'."
        )
    return place


# ---- errors


def _failure(kind: str, code: str, message: str, status: int) -> JSONResponse:
    return JSONResponse(problem(code, message, status, kind), status_code=status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, CounterflowError)
    status = next(status for kind, status in STATUS if isinstance(error, kind))
    return _failure(type(error).__name__, error.code, str(error), status)


def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])  # the first says only that it is in the body
    return _failure("MalformedQuestion", "malformed", f"{place or 'the question'}: {first['msg']}", 422)


def _not_there(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _failure("HTTPError", "http", str(error.detail), error.status_code)
