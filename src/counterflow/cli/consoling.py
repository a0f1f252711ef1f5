"""``counterflow console``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def console(
    model: Path,
    *,
    data: Path | None,
    seats: Sequence[str],
    policies: Sequence[Path],
    host: str,
    port: int,
    token: bool | None,
    hours: float,
    behind: str | None,
    browser: bool,
) -> None:
    """Serve a fit until Ctrl-C."""
    # Command line and console are two ways in, side by side: neither imports the other. This command is the one that
    # starts it, so it finds it by name.
    serving = import_module("counterflow.console.serving")
    serving.require()

    def make() -> Any:
        return import_module("counterflow.console.app").create(model, data=data, seats=seats, policies=policies)

    serving.serve(make, host=host, port=port, token=token, hours=hours, behind=behind, browser=browser)
