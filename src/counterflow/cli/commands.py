"""The commands' options and help. Their work is in modules of their own, imported when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterflow.cli.output import Format

FitDirectory = Annotated[Path, typer.Argument(metavar="FIT", help="Directory of a saved fit.", show_default=False)]
AnswerFormat = Annotated[Format, typer.Option("--format", help="What to print.")]
Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the answer: .json or .csv.")]
DrawnOut = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the answer: .json, .csv or .png.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
Level = Annotated[float, typer.Option(help="Of the intervals, between 0 and 1.")]
Causes = Annotated[list[str] | None, typer.Option(help="Unit that would be run differently; may repeat.")]
Changes = Annotated[list[str] | None, typer.Option(metavar="CHANNEL=NUMBER", help="Added to an input; may repeat.")]
SetTo = Annotated[
    list[str] | None, typer.Option("--set", metavar="CHANNEL=NUMBER", help="Past rows: an input's value instead.")
]
Schedule = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV: a column for each changed input, a row for each step.")
]
Horizon = Annotated[int | None, typer.Option(min=1, help="Steps to follow (50).")]
Duration = Annotated[int | None, typer.Option(min=1, help="Steps for which the change is held (all).")]
Data = Annotated[Path, typer.Option(metavar="FILE", help="A recording, or a federation file with logs.")]


def simulate(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The recording, .safetensors.")],
    plant: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plant in TOML, instead of a random one.")
    ] = None,
    units: Annotated[str | None, typer.Option(help="Names with commas between them, or a count.")] = None,
    states: Annotated[int | None, typer.Option(help="States of every unit (2).")] = None,
    inputs: Annotated[str | None, typer.Option(help="Inputs of every unit: a count or names (2).")] = None,
    outputs: Annotated[str | None, typer.Option(help="Outputs of every unit: a count or names (8).")] = None,
    topology: Annotated[str | None, typer.Option(help="dense, chain, one-way or sparse (dense).")] = None,
    coupling: Annotated[float | None, typer.Option(help="Strength of the couplings (0.3).")] = None,
    steps: Annotated[int, typer.Option(min=1, max=10_000_000, help="Steps to simulate.")] = 4000,
    seed: Annotated[int, typer.Option(min=0, help="Of the plant, the inputs and the noise.")] = 0,
    spread: Annotated[float, typer.Option(min=0.0, help="Standard deviation of the inputs, which are white.")] = 1.0,
    federation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The federation file (federation.toml beside --out).")
    ] = None,
    models: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Local models (models beside the federation file).")
    ] = None,
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Simulate a plant: recording, local models, federation file.

    Example: counterflow simulate --out recording.safetensors --units boiler,turbine --inputs valve,pump --steps 2000
    """
    from counterflow.cli import simulating

    given = {
        "units": units, "states": states, "inputs": inputs, "outputs": outputs, "topology": topology,
        "coupling": coupling,
    }  # fmt: skip
    simulating.simulate(
        out,
        plant_file=plant,
        random={name: value for name, value in given.items() if value is not None},
        steps=steps,
        seed=seed,
        spread=spread,
        federation=federation,
        models=models,
        force=force,
        answer_format=answer_format,
    )


def fit(
    federation: Annotated[Path, typer.Argument(metavar="FEDERATION", help="A federation file in TOML.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the fit.")],
    method: Annotated[str | None, typer.Option(help="Instead of the file's; its options are then not used.")] = None,
    estimate: Annotated[str | None, typer.Option(help="couplings, blocks or all.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the file's.")] = None,
    xi: Annotated[
        list[str] | None, typer.Option(help="Published methods: weight, one number, or unit=number for each.")
    ] = None,
    rho: Annotated[float | None, typer.Option(help="Augmented Lagrangian: its penalty.")] = None,
    solver: Annotated[str | None, typer.Option(help="Published methods: conjugate or gradient.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Published methods: at most so many.")] = None,
    evaluations: Annotated[int | None, typer.Option(help="Likelihood: at most so many passes.")] = None,
    tol: Annotated[float | None, typer.Option(help="When to call it converged.")] = None,
    uncertainty: Annotated[
        bool | None, typer.Option(help="Likelihood: compute intervals (default: where that takes seconds).")
    ] = None,
    force: Force = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Fit a federation and save the fit. Exit code 3: not converged (it is saved all the same).

    Example: counterflow fit federation.toml --out fit --estimate all
    """
    from counterflow.cli import fitting

    fitting.fit(
        federation,
        out,
        method=method,
        seed=seed,
        xi=xi or (),
        options={
            "estimate": estimate, "rho": rho, "solver": solver, "rounds": rounds, "evaluations": evaluations,
            "tol": tol, "uncertainty": uncertainty,
        },
        force=force,
        answer_format=answer_format,
    )  # fmt: skip


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


def check(
    directory: FitDirectory,
    recording: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rows to look at, best unseen ones (those of the fit).")
    ] = None,
    horizon: Annotated[int, typer.Option(min=1, help="Rows of the free runs.")] = 30,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw: .png.")] = None,
    answer_format: AnswerFormat = Format.table,
    out: Out = None,
    force: Force = False,
) -> None:
    """What speaks against the answers of a fit?

    Excitation, feedback, stability, whiteness, drift, free runs; exit code 6: a check fails.

    Example: counterflow check fit --recording recording.safetensors --plot checks.png
    """
    from counterflow.cli import checking

    checking.check(
        directory,
        recording_file=recording,
        horizon=horizon,
        plot=plot,
        answer_format=answer_format,
        out=out,
        force=force,
    )


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Experiments; or: all, list.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions and rounds: minutes for all.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Results, figures and report.")] = Path("reproduction"),
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes; only measured seconds depend on it.")] = 2,
    hai: Annotated[Path | None, typer.Option(metavar="DIR", help="Your HAI files, instead of a stand-in.")] = None,
    swat: Annotated[Path | None, typer.Option(metavar="FILE", help="Your SWaT file, instead of a stand-in.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Compute again what is there.")] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """The paper's figures and tables again, with verdicts; goes on where it was stopped.

    Example: counterflow reproduce all --quick --out reproduction
    """
    from counterflow.cli import reproducing

    reproducing.reproduce(
        names, out, quick=quick, jobs=jobs, hai=hai, swat=swat, force=force, answer_format=answer_format
    )


def console(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Directory of a saved fit, or a plant's folder.")],
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A recording, for questions about the past.")
    ] = None,
    seat: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Whose view: 'server' or a unit; may repeat (all).")
    ] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A unit's policy on questions (.toml); may repeat.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen; if others can reach it, a token is asked for.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0: any free port.")] = 8437,
    token: Annotated[
        bool | None, typer.Option("--token/--no-token", help="Ask for a token (only if others can reach it).")
    ] = None,
    hours: Annotated[float, typer.Option(help="How long the token is good.")] = 12.0,
    behind: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a proxy with a certificate: https://NAME.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the browser.")] = True,
) -> None:
    """Ask in a browser, see the answer. Needs pip install 'counterflow[console]'.

    Example: counterflow console fit --data recording.safetensors --seat turbine
    """
    from counterflow.cli import consoling

    consoling.console(
        model,
        data=data,
        seats=seat or (),
        policies=policy or (),
        host=host,
        port=port,
        token=token,
        hours=hours,
        behind=behind,
        browser=browser,
    )


def bench(
    units: Annotated[list[int] | None, typer.Option(help="Units of a plant; may repeat (2, 4 and 8).")] = None,
    rows: Annotated[int, typer.Option(min=100, max=1_000_000, help="Steps to simulate.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the plants.")] = 0,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """How long fits and questions take on this machine.

    Example: counterflow bench --units 4 --rows 10000
    """
    from counterflow.cli import benching

    benching.bench(units or [2, 4, 8], rows, seed, answer_format)


ALL = (simulate, fit, whatif, explain, restore, forecast, graph, check, reproduce, console, bench)
