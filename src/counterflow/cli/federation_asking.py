"""``counterflow federation ask``: a what-if from a plant, about its own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterflow.cli import output, whatif
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.federation.engine import engine
from counterflow.federation.sites import party
from counterflow.federation.sites.plant_folder import PlantFolder


def ask(
    folder: Path,
    *,
    causes: Sequence[str],
    change: Sequence[str],
    set_to: Sequence[str],
    schedule: Path | None,
    horizon: int | None,
    duration: int | None,
    start: int | None,
    stop: int | None,
    level: float,
    fit: str | None,
    patience: float,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """Ask, wait, say what came back."""
    output.check_kind(out, ("json", "csv", "png"), force)
    plant = PlantFolder.open(folder)
    view = plant.site.view(fit, patience)
    if party.supervisor(plant.folder) is None and (plant.kit is None or not engine().running(plant.kit)):
        raise StorageError(f"{plant.label} is not running, so it can ask nobody: counterflow federation start {folder}")
    if not set_to:
        for name, value in (("--start", start), ("--stop", stop)):
            if value is not None:
                raise OptionError(f"{name} asks about the past: give --set channel=number, too.")
        if bool(change) == (schedule is not None):
            raise OptionError(f"{whatif.EITHER} Or --set channel=number, of the past.")
        whatif.effect_of(
            view, causes=causes, unit=plant.unit, change=change, schedule=schedule, horizon=horizon,
            duration=duration, level=level, answer_format=answer_format, out=out, force=force,
        )  # fmt: skip
        return
    for name, given in (
        ("--change", change),
        ("--schedule", schedule),
        ("--horizon", horizon),
        ("--duration", duration),
    ):
        if given:
            raise OptionError(f"{name} asks what would happen, --set what would have happened: give one of them.")
    do, what = whatif.set_in_the_past(view, set_to, causes)
    first, end = 0 if start is None else start, view.rows if stop is None else stop
    answer = view.counterfactual(do, first, end, level)
    whatif.past_of(
        view, {plant.unit: answer}, do, what, first, end,
        unit=plant.unit, answer_format=answer_format, out=out, force=force,
    )  # fmt: skip
