"""``counterflow check``: what speaks against a saved fit's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from counterflow.checks import Check, Checks
from counterflow.checks import check as look
from counterflow.cli import inputs, output
from counterflow.cli.options import FitDirectory
from counterflow.cli.output import STYLES, Line, Part, Told, answering
from counterflow.errors import OptionError
from counterflow.fits.fit import load
from counterflow.plant.calendar import as_steps
from counterflow.questions.question import envelope

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit
    from counterflow.fits.refutation import Refutation
    from counterflow.plant import Recording


@answering("json", "csv", "parquet")
def check(
    directory: FitDirectory,
    recording: Annotated[
        Path | None, Option(metavar="FILE", help="Rows to look at, best unseen ones (those of the fit).")
    ] = None,
    horizon: Annotated[str, Option(metavar="ROWS|TIME", help="Of the free runs: rows, or a time such as 2h.")] = "30",
    plot: Annotated[Path | None, Option(metavar="FILE", help="Also draw: .png.")] = None,
    refute: Annotated[str | None, Option(metavar="UNIT", help="Try to refute the effect of --change on it.")] = None,
    change: Annotated[list[str] | None, Option(metavar="UNIT.CHANNEL=NUMBER", help="Of --refute; may repeat.")] = None,
    force: output.Force = False,
) -> Told:
    """What speaks against the answers of a fit?

    Excitation, feedback, stability, whiteness, drift, free runs; exit code 6: a check fails.

    Example: counterflow check fit --recording recording.safetensors --plot checks.png

    Refuters: counterflow check fit --recording recording.safetensors --refute turbine --change boiler.valve=+0.1
    """
    if (refute is None) != (not change) or (refute is not None and recording is None):
        raise OptionError("--refute UNIT goes with --change UNIT.CHANNEL=NUMBER and --recording FILE, the fitted rows.")
    output.check_file("--plot", plot, ("png",), force)
    fit = load(directory)
    rows = None if recording is None else inputs.load_recording(fit, recording)
    steps = int(horizon) if horizon.strip().isdigit() else as_steps(horizon, fit.plant.dt, "--horizon")
    found = look(fit, rows, steps)
    sentence = _sentence(found)
    content = {**envelope("check", fit, sentence, fit.caveats), **found.to_dict()}
    tried = None if refute is None or rows is None else _tried(fit, rows, refute, change or [])
    if tried is not None:
        content["refutation"] = tried.to_json()
    if plot is not None:
        output.write_all({plot: output.png(found.plot(), dpi=130)}, force)
    failed = found.verdict == "fail" or (tried is not None and tried.verdict == "fail")
    parts = _shown(found, sentence, plot, fit, tried)
    return Told(content, parts, output.CHECK_FAILED if failed else output.OK, found.to_frame)


def _tried(fit: Fit, rows: Recording, effect: str, texts: list[str]) -> Refutation:
    """What refuters say of an effect."""
    from counterflow.fits.refutation import refute

    changes = inputs.inputs_given(fit.plant, "--change", texts)
    if len(changes) != 1:
        raise OptionError(f"--change: one unit's inputs are changed at a time, got those of {', '.join(changes)}.")
    ((cause, change),) = changes.items()
    return refute(fit, rows, cause, fit.plant.unit(effect).name, change)


def _sentence(found: Checks) -> str:
    """The verdict in one line."""
    failed, doubtful, unknown = (found.of(verdict) for verdict in ("fail", "caution", "unknown"))
    if failed:
        says, they = ("fails", "it touches") if len(failed) == 1 else ("fail", "they touch")
        return f"{_count(failed)} {says}: do not trust answers that {they} before this is mended."
    if doubtful:
        return f"Nothing fails; {_count(doubtful)} {'asks' if len(doubtful) == 1 else 'ask'} for caution."
    return f"No check fails; these data cannot answer {_count(unknown)}." if unknown else "All checks pass."


def _count(checks: tuple[Check, ...]) -> str:
    return f"{len(checks)} {'check' if len(checks) == 1 else 'checks'}"


def _shown(found: Checks, sentence: str, drawn: Path | None, fit: Fit, tried: Refutation | None) -> Iterator[Part]:
    yield Line(sentence, STYLES[found.verdict])
    yield from str(found).splitlines()
    yield from output.sourced(fit.provenance)
    yield from output.noted(fit.caveats)
    if drawn is not None:
        yield from ("", f"written: {drawn}")
    if tried is not None:
        yield from (Line(tried.summary(), STYLES[tried.verdict]), tried.table())
