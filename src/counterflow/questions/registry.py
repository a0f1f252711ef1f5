"""All kinds of questions. A new one is a module of this package and a line here (and its tab in the console)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from counterflow.errors import ProtocolError
from counterflow.questions.aggregate import AskAggregate
from counterflow.questions.attribution import AskAttribution
from counterflow.questions.counterfactual import AskCounterfactual
from counterflow.questions.effect import AskEffect
from counterflow.questions.forecast import AskForecast
from counterflow.questions.paths import AskPaths
from counterflow.questions.question import Request
from counterflow.questions.restoration import AskRestoration

_ALL = (AskEffect, AskPaths, AskCounterfactual, AskAttribution, AskRestoration, AskForecast, AskAggregate)
QUESTIONS: Mapping[str, type[Request]] = MappingProxyType({question.kind: question for question in _ALL})


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
