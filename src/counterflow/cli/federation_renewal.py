"""``counterflow federation renew``: certificates before they end, and another authority."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.options import AnswerFormat, Folder
from counterflow.cli.output import Format
from counterflow.errors import OptionError
from counterflow.federation.engine import engine
from counterflow.federation.sites import certificates
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder


def renew(
    folder: Folder,
    units: Annotated[list[str] | None, Argument(metavar="UNIT...", help="Plants; none: all, and the server.")] = None,
    authority: Annotated[
        bool, Option("--authority", help="First make a new authority; the old vouches for it.")
    ] = False,
    finish: Annotated[bool, Option("--finish", help="End a change of authority: trust the new one only.")] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: new certificates for keys that stay. A plant takes its own with: start FOLDER --welcome UNIT.welcome

    Until it does, its certificate of now is as good. A change of authority (--authority) goes the same way; nobody has
    to be told the new fingerprint. When all plants have taken theirs: renew FOLDER --finish.

    Example: counterflow federation renew coordinator
    """
    engine().require()
    coordinator = CoordinatorFolder.open(folder)
    if (authority or finish) and (units or authority == finish):
        raise OptionError("--authority and --finish are of all: give one of them, and no unit.")
    welcomes: dict[str, Path] = {}
    if finish:
        coordinator.finish_succession()
    elif authority:
        coordinator = coordinator.succeed()
        welcomes = {unit: coordinator.folder / "approved" / f"{unit}.welcome" for unit in coordinator.plants()}
    else:
        welcomes = coordinator.renew(units or ())
    lasting = certificates.lasting(coordinator.certificates())
    told = {"fingerprint": coordinator.fingerprint, "welcomes": welcomes, "certificates": lasting}

    def show() -> None:
        for unit, welcome in welcomes.items():
            output.show_text(f"send to {unit}: {welcome}")
        if not units:
            output.show_text(f"then restart the coordinator: federation stop {folder}, federation start {folder}")
        if authority:
            output.show_text(f"fingerprint, for plants that join from now on: {coordinator.fingerprint}")
        if finish:
            output.show_text("Certificates of the old authority are refused; late plants may still take their welcome.")

    output.answer(answer_format, "federation renew", told, show)
