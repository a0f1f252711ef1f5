"""The console's API and page. It only translates: every answer comes from the library's questions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from counterflow import errors
from counterflow._version import __version__
from counterflow.console import answers, forms, metrics, views
from counterflow.console.admission import METRICS, problem
from counterflow.console.opening import Opened, open_model
from counterflow.console.views import AnswerResponse, Failure, Here
from counterflow.errors import CounterflowError
from counterflow.plant import Recording
from counterflow.questions.question import Request as AnyQuestion
from counterflow.questions.registry import QUESTIONS

STATUS: tuple[tuple[type[CounterflowError], int], ...] = (
    (errors.UnidentifiedError, 409), (errors.UnstableError, 409), (errors.UnknownNameError, 404),
    (errors.PrivacyError, 403), (errors.StorageError, 503), (errors.ProtocolError, 503), (CounterflowError, 400),
)  # fmt: skip
Responses = dict[int | str, dict[str, Any]]
Turn = AbstractContextManager[Any]
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
    503: "The coordinator of the federation does not answer; or the console is busy, or being stopped.",
}
WRONG: Responses = {code: {"model": Failure, "description": said} for code, said in _SAID.items()}
FILE: Responses = {200: {"description": "The file.", "content": {each: {} for each in answers.KINDS.values()}}}
DESCRIPTION = """Ask a fitted federation from scripts as the page does. A *seat* is a point of view: `server`, or
`unit:<name>`. Numbers that are not known are null; row k of an effect is k+1 steps after the change began."""
AT_WORK = 4  # computations at once: more would only keep one another, and the network, from the interpreter's lock
STATIC = Path(__file__).parent / "static"


def create(
    model: Path, *, data: Path | Recording | None = None, seats: Sequence[str] = (), policies: Sequence[Path] = ()
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
    app.state.opened = opened
    for family in (CounterflowError, RequestValidationError, HTTPException):
        app.add_exception_handler(family, _refused)
    here = any(seat.server is not None for seat in opened.seats.values())  # or questions wait for another machine
    apart = partial(_apart, turn=threading.BoundedSemaphore(AT_WORK) if here else nullcontext())

    for path, summary, schema, view in views.VIEWS:
        app.get(path, response_model=schema, summary=summary, responses=WRONG)(apart(view, model=schema))
    for question in QUESTIONS.values():
        path, work = f"/api/seats/{{seat}}/{question.tab}", apart(_asking(question), model=AnswerResponse)
        app.post(path, response_model=AnswerResponse, summary=question.title, responses=WRONG)(work)
    path, summary = "/api/seats/{seat}/export/{kind}", "An answer as a file"
    app.post(path, summary=summary, response_class=Response, responses=FILE | WRONG)(apart(_export))
    app.get(METRICS, include_in_schema=False)(_apart(_metrics))
    # plotly.js comes with the Python package of that name
    app.mount("/static", StaticFiles(directory=STATIC, packages=[("plotly", "package_data")]))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    return app


def _asking(question: type[AnyQuestion]) -> Callable[..., AnswerResponse]:
    def asked(seat: Here, question: Any) -> AnswerResponse:
        return answers.answer(seat, kind, question)[0]

    kind, asked.__name__ = question, question.tab
    asked.__annotations__["question"] = forms.FORMS[question.kind]
    return asked


def _export(seat: Here, kind: Literal["json", "csv", "html"], wanted: forms.Export) -> Response:
    content = answers.export(seat, wanted.question, kind)
    headers = {"Content-Disposition": f'attachment; filename="counterflow-{wanted.question.kind}.{kind}"'}
    return Response(content, media_type=answers.KINDS[kind], headers=headers)


def _metrics(request: Request) -> Response:
    counted = request.scope.get("state", {}).get("metrics", list)()
    return Response(metrics.text([*counted, *metrics.facts(request.app.state.opened)]), media_type=metrics.TEXT)


def _apart(
    work: Callable[..., Any], turn: Turn | None = None, model: type[BaseModel] | None = None
) -> Callable[..., Any]:
    """``work`` in a thread of its own, which nobody waits for when the console ends; ``turn`` is held meanwhile.

    ``model``: what of its result is told.
    """

    @wraps(work)
    async def asked(**given: Any) -> Response:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Response] = loop.create_future()

        def run() -> None:
            try:
                with turn or nullcontext():
                    found = work(**given)
                    if model is not None:
                        text = model.model_validate(found).model_dump_json(exclude_unset=model is AnswerResponse)
                        found = Response(text, media_type="application/json")
                settle = partial(done.set_result, found)
            except Exception as error:
                settle = partial(done.set_exception, error)
            with suppress(RuntimeError):  # the console has ended
                loop.call_soon_threadsafe(lambda: None if done.done() else settle())

        threading.Thread(target=run, daemon=True).start()
        return await done

    return asked


# ---- errors


def _refused(request: Request, error: Exception) -> Response:
    """What went wrong, in the console's words."""
    kind, code, message, status = "HTTPError", "http", str(getattr(error, "detail", error)), 500
    if isinstance(error, CounterflowError):
        kind, code = type(error).__name__, error.code
        status = next(status for family, status in STATUS if isinstance(error, family))
    elif isinstance(error, RequestValidationError):
        kind, code, status, first = "MalformedQuestion", "malformed", 422, error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])  # the first says only that it is in the body
        message = f"{place or 'the question'}: {first['msg']}"
    elif isinstance(error, HTTPException):
        status = error.status_code
    return JSONResponse(problem(code, message, status, kind), status_code=status)
