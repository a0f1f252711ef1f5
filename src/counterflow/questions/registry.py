"""All kinds of questions. A new one is a module of this package, called as its kind, and a line here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from counterflow.errors import ProtocolError

if TYPE_CHECKING:
    from counterflow.questions.question import Request

_CHANGED = "What would outputs do, or have done, with other inputs?"
_KINDS = {  # kind: its request, its command, the command's short help; --help does not import the questions
    "effect": ("AskEffect", "whatif", _CHANGED),
    "paths": ("AskPaths", "paths", "Which ways does an effect take, directly and through other units?"),
    "counterfactual": ("AskCounterfactual", "whatif", _CHANGED),
    "attribution": ("AskAttribution", "explain", "Who moved a unit's outputs in some rows?"),
    "restoration": ("AskRestoration", "restore", "Which change of inputs would move outputs so far?"),
    "forecast": ("AskForecast", "forecast", "What will happen after the recording's last row?"),
    "aggregate": ("AskAggregate", "aggregate", "What if the combined input of all other units changed?"),
}
COMMANDS = {command: help for _, command, help in _KINDS.values()}


class _Questions(Mapping[str, "type[Request]"]):
    """Their modules are imported when they are first needed."""

    def __getitem__(self, kind: str) -> type[Request]:
        request, *_ = _KINDS[kind]
        found: type[Request] = getattr(import_module(f"counterflow.questions.{kind}"), request)
        return found

    def __contains__(self, kind: object) -> bool:
        return kind in _KINDS

    def __iter__(self) -> Iterator[str]:
        return iter(_KINDS)

    def __len__(self) -> int:
        return len(_KINDS)


QUESTIONS: Mapping[str, type[Request]] = _Questions()


def question(kind: str) -> type[Request]:
    """The kind of question of that name, as it stands in a message.

    Examples
    --------
    >>> question("effect").title
    'What would outputs do with other inputs?'
    """
    if kind not in QUESTIONS:
        raise ProtocolError(f"there is no question {kind[:40]!r}; there are {', '.join(QUESTIONS)}")
    return QUESTIONS[kind]
