"""``counterflow privacy open`` and ``ledger``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from counterflow import wording
from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.plant.units import check_name, first_repeated
from counterflow.privacy.accounting import ANY_ROWS, Cost, check_budget, total_epsilon
from counterflow.privacy.ledger import SUFFIX, Entry, Ledger, ledger_path


def open_new(
    place: Path, units: Sequence[str], epsilon: float, delta: float, window: int, *, answer_format: Format
) -> None:
    """Make a ledger for each unit; nothing is made if one of them could not be."""
    for name in units:
        check_name(name, "--unit")
    repeated = first_repeated(units)
    if repeated is not None:
        raise OptionError(f"--unit {repeated!r} is given twice: give it once.")
    check_budget(epsilon, delta, "privacy open")
    if window < 1:
        raise OptionError(f"--window {window}: give a whole number of at least 1.")
    if place.suffix == SUFFIX:
        if len(units) > 1:
            raise OptionError(f"{str(place)!r} is one file, but {len(units)} units are given: give a directory.")
        paths = [place]
    else:
        paths = [ledger_path(place, name) for name in units]
    for path in paths:
        if path.exists():
            raise StorageError(
                f"{str(path)!r} exists: what a unit has spent is never overwritten. Choose another place."
            )
    output.check_new(paths, force=False)
    made = []
    for name, path in zip(units, paths, strict=True):
        with Ledger.create(path, name, epsilon, delta, window) as ledger:
            made.append({"unit": name, "file": path, "created": ledger.created})
    if answer_format is Format.json:
        answer = {
            "version": __version__, "command": "privacy open", "epsilon": epsilon, "delta": delta, "window": window,
            "ledgers": made,
        }  # fmt: skip
        print(output.as_json(answer))
        return
    each = "" if len(made) == 1 else " each"
    protects = "one measurement" if window == 1 else f"any {window} consecutive measurements"
    output.show_text(f"Budget: epsilon {wording.exact(epsilon)} at delta {wording.exact(delta)}{each}, for {protects}.")
    for path in paths:
        output.show_text(f"ledger: {path}")
    output.show_text("")
    output.show_text("Keep these files with the units and never put an old copy back: it would forget what was spent.")


def show(place: Path, last: int, *, answer_format: Format) -> None:
    """Tell one ledger or all in a directory."""
    told = [_told(path) for path in _paths(place)]
    notes = [note for entry in told for note in entry["notes"]]
    for entry in told:
        del entry["notes"]
        entry["releases"] = entry["releases"][-last:] if last else entry["releases"]
    if answer_format is Format.json:
        print(output.as_json({"version": __version__, "command": "privacy ledger", "ledgers": told, "caveats": notes}))
        return
    for k, entry in enumerate(told):
        if k:
            output.show_text("")
        _show(entry)
    output.show_notes(notes)


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
        costs: dict[Cost, float] = {}
        for entry in entries:
            if entry.cost not in costs:
                costs[entry.cost] = total_epsilon([entry.cost], ledger.delta, ledger.window)
        return {
            "unit": ledger.unit,
            "file": path,
            "epsilon": ledger.epsilon,
            "delta": ledger.delta,
            "window": ledger.window,
            "created": ledger.created,
            "spent": ledger.spent,
            "left": ledger.left,
            "room": ledger.room,
            "count": len(entries),
            "releases": [{**entry.to_json(), "alone": costs[entry.cost], "secure": entry.secure} for entry in entries],
            "notes": _notes(ledger.unit, entries),
        }


def _notes(unit: str, entries: Sequence[Entry]) -> list[str]:
    seeded = [entry for entry in entries if not entry.secure]
    if not seeded:
        return []
    sources = wording.listed(sorted({entry.source for entry in seeded}))
    which = "1 release" if len(seeded) == 1 else f"{len(seeded)} releases"
    return [
        f"unit {unit!r}: the noise of {which} came from {sources}: whoever knows it can take the noise off, so it "
        "protects nothing. It is for simulations only."
    ]


def _show(told: dict[str, Any]) -> None:
    spent, budget = told["spent"], told["epsilon"]
    output.show_text(
        f"{told['unit']}: epsilon {wording.number(spent)} of {wording.exact(budget)} is spent at delta "
        f"{wording.exact(told['delta'])}; one more release of up to {wording.number(told['room'])} fits in.",
        style="bold" if told["left"] > 1e-9 * budget else "red",
    )
    protects = "one measurement" if told["window"] == 1 else f"any {told['window']} consecutive measurements"
    output.show_text(f"  for {protects}, since {told['created']}: {told['file']}")
    if not told["count"]:
        output.show_text("  nothing has been released")
        return
    ways: dict[str, str] = {}  # long and often the same: told once, below the table
    rows = []
    for release in told["releases"]:
        noise = f"noise from {release['source']}" + ("" if release["secure"] else ", which protects nothing")
        way = ways.setdefault(f"{release['mechanism']}; {noise}", f"({len(ways) + 1})")
        rows.append(
            [
                release["time"].removesuffix("+00:00").replace("T", " "),
                f"{release['what']} {way}",
                "any" if tuple(release["rows"]) == ANY_ROWS else f"{release['rows'][0]} to {release['rows'][1] - 1}",
                release["fit"],
                wording.number(release["alone"]),
                wording.number(release["spent"]),
            ]
        )
    shown, count = len(rows), told["count"]
    title = f"{'1 release' if count == 1 else f'{count} releases'}{'' if shown == count else f', the last {shown}'}"
    output.show_table(title, ["when (UTC)", "what", "rows", "fit", "epsilon alone", "in all"], rows, left=4)
    for text, way in ways.items():
        output.show_text(f"  {way} {text}")
