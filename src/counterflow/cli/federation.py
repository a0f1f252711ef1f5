"""``counterflow federation``: fits between machines, and what a plant asks of them."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from counterflow.cli.groups import group
from counterflow.cli.options import (
    AnswerFormat,
    Causes,
    Changes,
    DrawnOut,
    Duration,
    Folder,
    Force,
    Horizon,
    Level,
    Schedule,
    SetTo,
)
from counterflow.cli.output import Format

app = group(
    "federation",
    {
        "init": ("federation_members", "Coordinator: found a federation."),
        "join": ("federation_members", "Plant: join a federation, in two steps."),
        "approve": ("federation_members", "Coordinator: admit a plant, after a look at who asks."),
        "remove": ("federation_members", "Coordinator: cut a plant off."),
        "start": ("federation_service", "Run a party until it is stopped."),
        "stop": ("federation_service", "End a party's processes; nothing is lost."),
        "status": ("federation_status", "How does it stand?"),
        "fit": ("federation_fit", "Coordinator: fit, with all plants that are members."),
        "ask": ("federation", "Plant: what would my outputs do, or have done, with other inputs?"),
    },
    help="Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'.\n\n"
    "Coordinator: init, approve, start, fit, remove. Plant: join, start, ask. Both: status, stop.",
    epilog="Key rotation: the plant runs join --new-key, the coordinator remove and approve, the plant join --welcome.",
)


@app.callback()
def root() -> None:
    """Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'."""
    os.umask(0o077)  # whatever a party writes is its own


def ask(
    folder: Folder,
    cause: Causes = None,
    change: Changes = None,
    set_to: SetTo = None,
    schedule: Schedule = None,
    horizon: Horizon = None,
    duration: Duration = None,
    start: Annotated[int | None, typer.Option(help="With --set: first row that would have been different (0).")] = None,
    stop: Annotated[int | None, typer.Option(help="With --set: row after the last one (the end).")] = None,
    level: Level = 0.95,
    fit: Annotated[str | None, typer.Option(metavar="ID", help="Of an earlier job (the latest).")] = None,
    patience: Annotated[float, typer.Option(min=1, help="Seconds to wait for the answer.")] = 60.0,
    answer_format: AnswerFormat = Format.table,
    out: DrawnOut = None,
    force: Force = False,
) -> None:
    """Plant: what would my outputs do, or have done, if another unit were run differently?

    The coordinator computes what reaches this plant's states; its outputs are made of them here. The other units'
    policies say who may ask about which of their inputs.

    Example: counterflow federation ask turbine-site --cause boiler --change valve=+0.1 --duration 10

    The past: counterflow federation ask turbine-site --set boiler.valve=0.5 --start 900 --stop 950
    """
    from counterflow.cli import federation_asking

    federation_asking.ask(
        folder,
        causes=cause or (),
        change=change or (),
        set_to=set_to or (),
        schedule=schedule,
        horizon=horizon,
        duration=duration,
        start=start,
        stop=stop,
        level=level,
        fit=fit,
        patience=patience,
        answer_format=answer_format,
        out=out,
        force=force,
    )
