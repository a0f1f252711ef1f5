"""What is remembered of a request: enough to count and to log it, and nothing that a visitor has written."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from counterflow.console.admission import METRICS, is_page

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
HEALTH = "/health"
GONE = 499  # whoever asked has left before an answer began


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
