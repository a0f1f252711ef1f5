"""``counterflow privacy open`` and ``ledger``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from counterflow import wording
from counterflow.caveats import Caveat
from counterflow.cli import output
from counterflow.cli.options import AnswerFormat, Delta, Window
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.plant.units import check_name, first_repeated
from counterflow.privacy.accounting import ANY_ROWS, check_budget, total_epsilon
from counterflow.privacy.balance import RESERVED, WITHDRAWN, Entry
from counterflow.privacy.ledger import SUFFIX, Ledger, ledger_path


def open_ledgers(
    place: Annotated[
        Path, Argument(metavar="PLACE", help="Directory of ledgers; or, for one unit, a file ending in .ledger.")
    ],
    unit: Annotated[list[str], Option(metavar="NAME", help="Whose budget; repeat it for several units.")],
    epsilon: Annotated[float, Option(help="What each unit may spend over the life of its ledger.")],
    delta: Delta,
    window: Window = 1,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Give units a privacy budget: one new ledger each. A ledger that exists is never touched.

    Example: counterflow privacy open ledgers --unit boiler --unit turbine --epsilon 3 --delta 1e-6
    """
    for name in unit:
        check_name(name, "--unit")
    repeated = first_repeated(unit)
    if repeated is not None:
        raise OptionError(f"--unit {repeated!r} is given twice: give it once.")
    check_budget(epsilon, delta, "privacy open")
    if window < 1:
        raise OptionError(f"--window {window}: give a whole number of at least 1.")
    if place.suffix == SUFFIX:
        if len(unit) > 1:
            raise OptionError(f"{str(place)!r} is one file, but {len(unit)} units are given: give a directory.")
        paths = [place]
    else:
        paths = [ledger_path(place, name) for name in unit]
    for path in paths:
        if path.exists():
            remedy = "what a unit has spent is never overwritten. Choose another place."
            raise StorageError(f"{str(path)!r} exists: {remedy}")
    output.check_new(paths, force=False)
    made = []
    for name, path in zip(unit, paths, strict=True):
        with Ledger.create(path, name, epsilon, delta, window) as ledger:
            made.append({"unit": name, "file": path, "created": ledger.created})
    each = "" if len(made) == 1 else " each"
    lines = (
        f"Budget: epsilon {wording.exact(epsilon)} at delta {wording.exact(delta)}{each}, for {_protects(window)}.",
        *(f"ledger: {path}" for path in paths),
        "",
        "Keep these files with the units and never put an old copy back: it would forget what was spent.",
    )
    content = {"epsilon": epsilon, "delta": delta, "window": window, "ledgers": made}
    output.answer(answer_format, "privacy open", content, lambda: output.show_lines(*lines))


def _protects(window: int) -> str:
    return "one measurement" if window == 1 else f"any {window} consecutive measurements"


def ledger(
    place: Annotated[Path, Argument(metavar="PATH", help="A ledger, or a directory of ledgers.")],
    last: Annotated[int, Option(min=0, help="Show only so many releases, the last ones (0: all).")] = 0,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """What has been spent, when, and on what? Every ledger is checked from its first entry to its last.

    Example: counterflow privacy ledger ledgers/boiler.ledger
    """
    told = [_told(path) for path in _paths(place)]
    notes = [note for entry in told for note in entry["notes"]]
    for entry in told:
        del entry["notes"]
        entry["releases"] = entry["releases"][-last:] if last else entry["releases"]

    def show() -> None:
        for k, entry in enumerate(told):
            if k:
                output.show_text("")
            _show(entry)
        output.show_notes(notes)

    output.answer(answer_format, "privacy ledger", {"ledgers": told, "caveats": notes}, show)


def _paths(place: Path) -> list[Path]:
    try:
        if not place.is_dir():
            return [place]
        found = sorted(path for path in place.iterdir() if path.suffix == SUFFIX)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot look into {str(place)!r}: {error}. Check the path.") from error
    if not found:
        raise StorageError(f"{str(place)!r} holds no ledger: make one by `counterflow privacy open {place}`.")
    return found


def _told(path: Path) -> dict[str, Any]:
    with Ledger.open(path) as ledger:
        entries = ledger.entries()
        alone = {each: total_epsilon([each], ledger.delta, ledger.window) for each in {entry.cost for entry in entries}}
        return {
            "unit": ledger.unit, "file": path,
            **output.picked(ledger, "epsilon delta window created spent left room"), "count": len(entries),
            "releases": [{**entry.to_json(), "alone": alone[entry.cost], "secure": entry.secure} for entry in entries],
            "notes": _notes(ledger.unit, entries),
        }  # fmt: skip


def _notes(unit: str, entries: Sequence[Entry]) -> list[Caveat]:
    notes = []
    held = [str(entry.id) for entry in entries if entry.state == RESERVED]
    if held:
        text = (
            f"unit {unit!r}: reserved, that is charged and perhaps never sent: entry {wording.listed(held)}. It leaves "
            "at no further cost if its job goes on; if that was given up: counterflow federation settle"
        )
        notes.append(Caveat("reservation-open", unit, text))
    seeded = [entry for entry in entries if not entry.secure]
    if not seeded:
        return notes
    sources = wording.listed(sorted({entry.source for entry in seeded}))
    which = "1 release" if len(seeded) == 1 else f"{len(seeded)} releases"
    text = (
        f"unit {unit!r}: the noise of {which} came from {sources}: whoever knows it can take the noise off, so it "
        "protects nothing. It is for simulations only."
    )
    return [*notes, Caveat("simulated-noise", unit, text)]


def _show(told: dict[str, Any]) -> None:
    spent, budget = told["spent"], told["epsilon"]
    output.show_text(
        f"{told['unit']}: epsilon {wording.number(spent)} of {wording.exact(budget)} is spent at delta "
        f"{wording.exact(told['delta'])}; one more release of up to {wording.number(told['room'])} fits in.",
        style="bold" if told["left"] > 1e-9 * budget else "red",
    )
    output.show_text(f"  for {_protects(told['window'])}, since {told['created']}: {told['file']}")
    if not told["count"]:
        output.show_text("  nothing has been released")
        return
    ways: dict[str, str] = {}  # long and often the same: told once, below the table
    rows = []
    for release in told["releases"]:
        noise = f"noise from {release['source']}" + ("" if release["secure"] else ", which protects nothing")
        way = ways.setdefault(f"{release['mechanism']}; {noise}", f"({len(ways) + 1})")
        when = release["time"].removesuffix("+00:00").replace("T", " ")
        first, stop = release["rows"]
        span = "any" if (first, stop) == ANY_ROWS else f"{first} to {stop - 1}"
        numbers = [wording.number(release["alone"]), wording.number(release["spent"])]
        state = f", {release['state']}" if release["state"] in (RESERVED, WITHDRAWN) else ""
        rows.append([str(release["id"]), when, f"{release['what']} {way}{state}", span, release["fit"], *numbers])
    shown, count = len(rows), told["count"]
    title = f"{'1 release' if count == 1 else f'{count} releases'}{'' if shown == count else f', the last {shown}'}"
    output.show_table(title, ["entry", "when (UTC)", "what", "rows", "fit", "epsilon alone", "in all"], rows, left=5)
    for text, way in ways.items():
        output.show_text(f"  {way} {text}")
