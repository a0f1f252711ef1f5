"""``counterflow check``: what speaks against a saved fit's answers."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import typer

from counterflow import wording
from counterflow.cli import asking, output
from counterflow.cli.output import Format
from counterflow.errors import OptionError
from counterflow.fits.checks import Check, Checks
from counterflow.fits.checks import check as look
from counterflow.report import telling

CHECK_FAILED = 6  # exit code: the answers are there, but a check says not to trust them
_STYLES = {"pass": "green", "caution": "yellow", "fail": "red", "unknown": "dim"}


def check(
    directory: Path,
    *,
    recording_file: Path | None,
    horizon: int,
    plot: Path | None,
    answer_format: Format,
    out: Path | None,
    force: bool,
) -> None:
    """Look, tell, draw; exit code 6 if a check fails."""
    output.check_kind(out, ("json", "csv"), force)
    if plot is not None:
        if plot.suffix.lower() != ".png":
            raise OptionError(f"--plot {str(plot)!r}: the name must end in .png.")
        output.check_new([plot], force)
    fit = asking.load_fit(directory)
    recording = None if recording_file is None else asking.load_recording(fit, recording_file)
    found = look(fit, recording, horizon)
    sentence = _sentence(found)
    told = {**telling.envelope("check", fit, sentence, telling.caveats(fit, list(map(str, fit.caveats)))), **found.to_dict()}
    if plot is not None:
        buffer = BytesIO()
        found.plot().savefig(buffer, format="png", dpi=130)
        output.write_all({plot: buffer.getvalue()}, force)
    output.write_answer(out, force, told, found.to_frame)
    if answer_format is Format.json:
        print(output.as_json(told))
    else:
        _show(found, sentence, [path for path in (plot, out) if path is not None])
    if found.verdict == "fail":
        raise typer.Exit(CHECK_FAILED)


def _sentence(found: Checks) -> str:
    """The verdict in one line."""
    failed, doubtful = found.of("fail"), found.of("caution")
    if failed:
        says, they = ("fails", "it touches") if len(failed) == 1 else ("fail", "they touch")
        return f"{_count(failed)} {says}: do not trust answers that {they} before this is mended."
    if doubtful:
        return f"Nothing fails; {_count(doubtful)} {'asks' if len(doubtful) == 1 else 'ask'} for caution."
    unknown = found.of("unknown")
    return "All checks pass." if not unknown else f"No check fails; {_count(unknown)} cannot be told from these data."


def _count(checks: tuple[Check, ...]) -> str:
    return f"{len(checks)} {'check' if len(checks) == 1 else 'checks'}"


def _show(found: Checks, sentence: str, written: list[Path]) -> None:
    output.show_text(sentence, style=_STYLES[found.verdict])
    rows = [
        [
            each.verdict,
            each.name,
            each.about,
            wording.number(each.number) if np.isfinite(each.number) else "–",
            each.unit_of_number,
        ]
        for each in found
    ]
    source = "the rows of the fit" if found.fitted else "rows that the fit has not seen"
    title = f"{found.rows} rows: {source}" if found.rows else "no rows to look at"
    output.show_table(title, ["verdict", "check", "of", "number", "which is"], rows, left=3)
    for each in (*found.of("fail"), *found.of("caution"), *found.of("unknown")):
        output.show_text("")
        output.show_text(f"{each.verdict}: {each.title}", style=_STYLES[each.verdict])
        output.show_text(f"  {each.finding[:1].upper()}{each.finding[1:]}.")
        if each.remedy:
            output.show_text(f"  Remedy: {each.remedy}.")
    for path in written:
        output.show_text("")
        output.show_text(f"written: {path}")
