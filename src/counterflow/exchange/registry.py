"""All methods that run between units and a server, by the name that users know."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

from counterflow.errors import ModelError, OptionError
from counterflow.exchange.exchange import Release
from counterflow.exchange.method import Method
from counterflow.exchange.moments import MomentsOfLogs, MomentsOfModels
from counterflow.exchange.rows import LogRows, Rows
from counterflow.exchange.task import Task

ROWS, MOMENTS, LOG_ROWS, LOG_MOMENTS = Rows(), MomentsOfModels(), LogRows(), MomentsOfLogs()
FROM_LOGS: Mapping[str, Release] = MappingProxyType({"sufficient": LOG_ROWS, "moments": LOG_MOMENTS})


class _Published:
    """The paper's method: looked up by name when it is asked for, so that nothing rests on the paper's room."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("counterflow.paper.method").PublishedMethod(), name)


FEDERATED: Mapping[str, Method] = MappingProxyType({
    "sufficient": ROWS, "moments": MOMENTS,
    **dict.fromkeys(("penalty", "lagrangian", "hybrid", "fedgc"), cast(Method, _Published())),
})  # fmt: skip
POOLED = ("centralized", "oracle")  # references that need everything in one place


def releases_moments(task: Task) -> bool:
    """Whether a private fit by the default method releases moments: unless it says rows, or needs them.

    What only a likelihood of rows can give is every block estimated, not the couplings alone.
    """
    privacy = task.privacy
    if privacy is None or privacy.accounting != "rigorous" or privacy.release == "rows":
        return False
    return privacy.release == "moments" or task.options.get("estimate", "couplings") == "couplings"


def method_of(task: Task) -> Method:
    """The method of a task; OptionError or ModelError if there is none."""
    if task.method not in FEDERATED:
        raise OptionError(
            f"{task.label}: method must be one of {', '.join(map(repr, FEDERATED))}, got {task.method!r:.80}"
        )
    if not task.from_logs:
        return MOMENTS if task.method == "sufficient" and releases_moments(task) else FEDERATED[task.method]
    if task.method not in FROM_LOGS:
        raise ModelError(
            f"{task.label}: method {task.method!r} needs models: {{unit name: LocalModel}}, or a Plant whose local "
            f"blocks are taken; only method {' or '.join(map(repr, FROM_LOGS))} identifies units from their logs. A "
            "fit from logs has such models: {name: part.model for name, part in found.parts.items()}"
        )
    private = task.privacy is not None and task.privacy.accounting == "rigorous"
    return FROM_LOGS["moments" if private else task.method]


def kept_kinds() -> Mapping[str, type]:
    """Classes of what the machines of exchanges keep between messages, by their names: for snapshots."""
    return MappingProxyType({kind.__name__: kind for one in (ROWS, MOMENTS, *FROM_LOGS.values()) for kind in one.kept})
