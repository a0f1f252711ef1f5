"""``counterflow federation``: options and help; the work is in modules of its own, imported when a command runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from counterflow.cli.commands import (
    AnswerFormat,
    Causes,
    Changes,
    DrawnOut,
    Duration,
    Force,
    Horizon,
    Level,
    Schedule,
    SetTo,
)
from counterflow.cli.output import Format

app = typer.Typer(
    name="federation",
    help="Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'.\n\n"
    "Coordinator: init, approve, start, fit, remove. Plant: join, start, ask. Both: status, stop.",
    epilog="Key rotation: the plant runs join --new-key, the coordinator remove and approve, the plant join --welcome.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def root() -> None:
    """Fits between machines that do not trust each other; needs pip install 'counterflow[federation]'."""
    os.umask(0o077)  # whatever a party writes is its own


Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The party's folder; it tells who this is.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The coordinator's folder; new.")],
    name: Annotated[str, typer.Option(help="Of the federation.")],
    host: Annotated[
        str, typer.Option(help="Name under which plants reach this machine; it stands in its certificate.")
    ],
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="The only port that must be open, at this machine.")
    ] = 8102,
    organisation: Annotated[str, typer.Option(help="Who runs the coordinator.")] = "coordinator",
    operator: Annotated[str, typer.Option(metavar="E-MAIL", help="Who starts jobs; default: one made up.")] = "",
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: found a federation.

    Makes the authority that signs certificates, the server's and the operator's keys, a service file for systemd, and
    prints the line to send to plants.

    Example: counterflow federation init coordinator --name waterworks --host coordinator.example.org
    """
    from counterflow.cli import federation_joining

    federation_joining.init(folder, name, host, port, organisation, operator, answer_format=answer_format)


@app.command()
def join(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The plant's folder; new at first.")],
    unit: Annotated[str | None, typer.Option(help="First: the unit that this plant is.")] = None,
    federation: Annotated[str | None, typer.Option(help="First: name of the federation.")] = None,
    fingerprint: Annotated[
        str | None, typer.Option(metavar="SHA256:..", help="First: of the authority, as the coordinator told it.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The unit's log: a recording (.safetensors), or a .toml as for 'fit'."),
    ] = None,
    model: Annotated[Path | None, typer.Option(metavar="FILE", help="The unit's local model (.safetensors).")] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What may leave (.toml); default: strict.")
    ] = None,
    organisation: Annotated[str | None, typer.Option(help="First: who owns the plant.")] = None,
    budget: Annotated[
        float, typer.Option(help="First: epsilon of the privacy budget, if the policy names one that is not there.")
    ] = 3.0,
    welcome: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Then: the coordinator's answer, UNIT.welcome.")
    ] = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Later: another key in the same folder, and a new request.")
    ] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Plant: join a federation, in two steps; the private key never leaves the folder.

    First: counterflow federation join boiler-site --unit boiler --federation waterworks --fingerprint SHA256:.. --log L

    Send boiler-site/boiler.join to the coordinator; it holds no measurement. With its answer:

    Then: counterflow federation join boiler-site --welcome boiler.welcome

    Later, while the plant is stopped, --log, --model and --policy replace what is there, and --new-key rotates the key.
    """
    from counterflow.cli import federation_joining

    federation_joining.join(
        folder,
        unit=unit,
        federation=federation,
        fingerprint=fingerprint,
        log=log,
        model=model,
        policy=policy,
        organisation=organisation,
        budget=budget,
        welcome=welcome,
        new_key=new_key,
        answer_format=answer_format,
    )


@app.command()
def approve(
    folder: Folder,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="UNIT.join, as the plant sent it.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: admit a plant, after a look at who asks. Compare the key with the plant's by telephone.

    Example: counterflow federation approve coordinator boiler.join
    """
    from counterflow.cli import federation_joining

    federation_joining.approve(folder, request, yes=yes, answer_format=answer_format)


@app.command()
def remove(
    folder: Folder,
    unit: Annotated[str, typer.Argument(metavar="UNIT", help="The plant.")],
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: cut a plant off. Its certificate is refused from now on; with a new key it may join again.

    Key rotation: the plant runs join --new-key and sends its .join file; remove, then approve.

    Example: counterflow federation remove coordinator boiler
    """
    from counterflow.cli import federation_joining

    federation_joining.remove(folder, unit, answer_format=answer_format)


@app.command()
def start(
    folder: Folder,
    detach: Annotated[bool, typer.Option("--detach", help="In the background; returns when it is up.")] = False,
    patience: Annotated[float, typer.Option(min=1, help="With --detach: seconds to wait for a connection.")] = 60.0,
) -> None:
    """Run a party until it is stopped: its site is started again if it dies, and ended with this command.

    As a service: the .service file in the folder.

    Example: counterflow federation start coordinator
    """
    from counterflow.cli import federation_running

    if detach:
        federation_running.detach(folder, patience)
    else:
        federation_running.start(folder)


@app.command()
def stop(folder: Folder) -> None:
    """End a party's processes; nothing is lost, unfinished jobs go on after the next start.

    Example: counterflow federation stop boiler-site
    """
    from counterflow.cli import federation_running

    federation_running.stop(folder)


@app.command()
def status(folder: Folder, answer_format: AnswerFormat = Format.table) -> None:
    """How does it stand? Coordinator: plants and jobs. Plant: connection, policy, budget, and what has left.

    Example: counterflow federation status boiler-site
    """
    from counterflow.cli import federation_status

    federation_status.status(folder, answer_format=answer_format)


@app.command()
def fit(
    folder: Folder,
    job_id: Annotated[str | None, typer.Option("--id", help="Name of the job; an earlier one goes on.")] = None,
    method: Annotated[str | None, typer.Option(help="How to fit (sufficient).")] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Of the method, as in 'fit'; may repeat.")
    ] = None,
    units: Annotated[str | None, typer.Option(metavar="A,B", help="Which plants, in this order (all).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="With privacy: of this job, for every plant.")] = None,
    delta: Annotated[float | None, typer.Option(help="With privacy: chance that the promise fails (1e-6).")] = None,
    window: Annotated[int | None, typer.Option(help="With privacy: measurements protected as one (1).")] = None,
    from_logs: Annotated[bool, typer.Option("--from-logs", help="Plants have no models.")] = False,
    begins: Annotated[
        str | None, typer.Option(metavar="TIME", help="Of the logs' first row, as plants say it (that of their cards).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the fit (0).")] = None,
    deadline: Annotated[int, typer.Option(min=1, help="Seconds that a plant may take for one answer.")] = 600,
    patience: Annotated[float, typer.Option(min=1, help="Seconds without news after which to give up.")] = 3600.0,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: fit, with all plants that are members. Lost plants are waited for; the job then goes on.

    An interrupt leaves the job running; the same command with --id follows it again.

    Example: counterflow federation fit coordinator --epsilon 1
    """
    from counterflow.cli import federation_fitting

    federation_fitting.fit(
        folder,
        job_id=job_id,
        method=method,
        options=option or (),
        units=units,
        epsilon=epsilon,
        delta=delta,
        window=window,
        from_logs=from_logs,
        begins=begins,
        seed=seed,
        deadline=deadline,
        patience=patience,
        answer_format=answer_format,
    )


@app.command()
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
