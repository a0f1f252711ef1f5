"""The commands' options and help. Their work is in modules of their own, imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterflow.cli.options import (
    AnswerFormat,
    Causes,
    Changes,
    Data,
    DrawnOut,
    Duration,
    FitDirectory,
    Force,
    Horizon,
    Level,
    Out,
    Schedule,
    SetTo,
)
from counterflow.cli.output import Format


def whatif(
    directory: FitDirectory,
    cause: Causes = None,
    effect: Annotated[str | None, typer.Option(help="Unit whose outputs are asked about.")] = None,
    change: Changes = None,
    set_to: SetTo = None,
    schedule: Schedule = None,
    horizon: Horizon = None,
    duration: Duration = None,
    recording: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask what would have happened in these rows.")
    ] = None,
    start: Annotated[int | None, typer.Option(help="First row that would have been different (0).")] = None,
    stop: Annotated[int | None, typer.Option(help="Row after the last one (the end).")] = None,
    level: Level = 0.95,
    answer_format: AnswerFormat = Format.table,
    out: DrawnOut = None,
    force: Force = False,
) -> None:
    """What would outputs do, or have done, with other inputs?

    Example: counterflow whatif fit --cause boiler --effect turbine --change valve=+0.1 --duration 10

    Several causes: --change boiler.valve=+0.1 --change pump.speed=-2

    The past: counterflow whatif fit --recording recording.safetensors --start 900 --stop 950 --set boiler.valve=0.5
    """
    from counterflow.cli import whatif as asked
    from counterflow.errors import OptionError

    if recording is None:
        for name, value in (("--set", set_to), ("--start", start), ("--stop", stop)):
            if value is not None and value != []:
                raise OptionError(f"{name} asks about the past: give --recording FILE, too.")
        asked.effect(
            directory,
            causes=cause or (),
            unit=effect,
            change=change or (),
            schedule=schedule,
            horizon=horizon,
            duration=duration,
            level=level,
            answer_format=answer_format,
            out=out,
            force=force,
        )
        return
    for name, count in (("--horizon", horizon), ("--duration", duration)):
        if count is not None:
            raise OptionError(f"{name} asks about the future: with --recording, give --start and --stop.")
    asked.counterfactual(
        directory,
        recording_file=recording,
        causes=cause or (),
        unit=effect,
        change=change or (),
        set_to=set_to or (),
        schedule=schedule,
        start=start or 0,
        stop=stop,
        level=level,
        answer_format=answer_format,
        out=out,
        force=force,
    )


def explain(
    directory: FitDirectory,
    recording: Data,
    unit: Annotated[str, typer.Option(help="Unit whose outputs moved.")],
    start: Annotated[int, typer.Option(help="First row.")] = 0,
    stop: Annotated[int | None, typer.Option(help="Row after the last one (the end).")] = None,
    channel: Annotated[
        list[str] | None, typer.Option(help="Output to explain; may repeat (those that moved most).")
    ] = None,
    answer_format: AnswerFormat = Format.table,
    out: DrawnOut = None,
    force: Force = False,
) -> None:
    """Who moved a unit's outputs in some rows?

    Example: counterflow explain fit --recording recording.safetensors --unit turbine --start 900 --stop 950
    """
    from counterflow.cli import explaining

    explaining.explain(
        directory,
        recording_file=recording,
        unit=unit,
        start=start,
        stop=stop,
        channels=channel or (),
        answer_format=answer_format,
        out=out,
        force=force,
    )


def restore(
    directory: FitDirectory,
    unit: Annotated[str, typer.Option(help="Unit whose outputs should move.")],
    target: Annotated[list[str], typer.Option(metavar="CHANNEL=NUMBER", help="By how much; may repeat.")],
    using: Annotated[list[str], typer.Option(metavar="UNIT[.CHANNEL]", help="Inputs that may change; may repeat.")],
    horizon: Annotated[int, typer.Option(min=1, help="Steps until it should be reached.")] = 50,
    answer_format: AnswerFormat = Format.table,
    out: Out = None,
    force: Force = False,
) -> None:
    """Which change of inputs would move outputs so far?

    The smallest within the limits; exit code 5: there is none, and the nearest is shown.

    Example: counterflow restore fit --unit turbine --target speed=+5 --using boiler --using pump.valve
    """
    from counterflow.cli import explaining

    explaining.restore(
        directory,
        unit=unit,
        target=target,
        using=using,
        horizon=horizon,
        answer_format=answer_format,
        out=out,
        force=force,
    )


def forecast(
    directory: FitDirectory,
    recording: Data,
    horizon: Annotated[int, typer.Option(min=1, help="Steps after the last row.")] = 50,
    plan: Annotated[
        list[str] | None, typer.Option(metavar="UNIT.CHANNEL=NUMBER", help="An input's value from now on; may repeat.")
    ] = None,
    unit: Annotated[list[str] | None, typer.Option(help="Units to show; may repeat (all).")] = None,
    level: Level = 0.95,
    answer_format: AnswerFormat = Format.table,
    out: DrawnOut = None,
    force: Force = False,
) -> None:
    """What will happen after the recording's last row?

    Example: counterflow forecast fit --recording recording.safetensors --horizon 30 --plan boiler.valve=0.5
    """
    from counterflow.cli import explaining

    explaining.forecast(
        directory,
        recording_file=recording,
        horizon=horizon,
        plan=plan or (),
        units=unit or (),
        level=level,
        answer_format=answer_format,
        out=out,
        force=force,
    )


def graph(
    directory: FitDirectory,
    rate: Annotated[float, typer.Option(help="False-discovery rate, between 0 and 1.")] = 0.05,
    answer_format: AnswerFormat = Format.table,
    out: Out = None,
    force: Force = False,
) -> None:
    """Which unit acts on which, directly or through others?

    Example: counterflow graph fit --rate 0.01
    """
    from counterflow.cli import explaining

    explaining.graph(directory, rate=rate, answer_format=answer_format, out=out, force=force)
