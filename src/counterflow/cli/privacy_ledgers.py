"""``counterflow privacy open`` and ``ledger``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from counterflow import wording
from counterflow.caveats import Caveat
from counterflow.cli.options import Delta, Window
from counterflow.cli.output import Line, Part, Told, answering, check_new, listed, noted, picked
from counterflow.errors import OptionError, StorageError
from counterflow.plant.units import check_name, first_repeated
from counterflow.privacy.accounting import ANY_ROWS, total_epsilon
from counterflow.privacy.ledger import RESERVED, SUFFIX, Entry, Ledger, ledger_path


@answering()
def open_ledgers(
    place: Annotated[
        Path, Argument(metavar="PLACE", help="Directory of ledgers; or, for one unit, a file ending in .ledger.")
    ],
    unit: Annotated[list[str], Option(metavar="NAME", help="Whose budget; repeat it for several units.")],
    epsilon: Annotated[float, Option(help="What each unit may spend over the life of its ledger.")],
    delta: Delta,
    window: Window = 1,
) -> Told:
    """Give units a privacy budget: one new ledger each. A ledger that exists is never touched.

    Example: counterflow privacy open ledgers --unit boiler --unit turbine --epsilon 3 --delta 1e-6
    """
    for name in unit:
        check_name(name, "--unit")
    repeated = first_repeated(unit)
    if repeated is not None:
        raise OptionError(f"--unit {repeated!r} is given twice: give it once.")
    if place.suffix == SUFFIX and len(unit) > 1:
        raise OptionError(f"{str(place)!r} is one file, but {len(unit)} units are given: give a directory.")
    paths = [place if place.suffix == SUFFIX else ledger_path(place, name) for name in unit]
    for path in paths:
        if path.exists():
            remedy = "what a unit has spent is never overwritten. Choose another place."
            raise StorageError(f"{str(path)!r} exists: {remedy}")
    check_new(paths, force=False)
    made = []
    for name, path in zip(unit, paths, strict=True):
        with Ledger.create(path, name, epsilon, delta, window) as opened:
            made.append({"unit": name, "file": path, "created": opened.created})
    keep = "Keep these files with the units and never put an old copy back: it would forget what was spent."
    return Told({
        "epsilon": epsilon, "delta": delta, "window": window, "protects": protects(window), "ledgers": made,
        "next": [keep],
    })  # fmt: skip


def protects(window: int) -> str:
    return "one measurement" if window == 1 else f"any {window} consecutive measurements"


@answering()
def ledger(
    place: Annotated[Path, Argument(metavar="PATH", help="A ledger, or a directory of ledgers.")],
    last: Annotated[int, Option(min=0, help="Show only so many releases, the last ones (0: all).")] = 0,
) -> Told:
    """What has been spent, when, and on what? Every ledger is checked from its first entry to its last.

    Example: counterflow privacy ledger ledgers/boiler.ledger
    """
    told, notes = [], []
    for path in _paths(place):
        with Ledger.open(path) as opened:
            told.append(_told(path, opened, last))
            notes += _notes(opened.unit, opened.entries())
    return Told({"ledgers": told, "caveats": notes}, _shown(told, notes))


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


def _told(path: Path, ledger: Ledger, last: int) -> dict[str, Any]:
    entries = ledger.entries()
    alone = {cost: total_epsilon([cost], ledger.delta, ledger.window) for cost in {entry.cost for entry in entries}}
    releases = [entry.to_json() | {"alone": alone[entry.cost], "secure": entry.secure} for entry in entries]
    about = picked(ledger, "epsilon delta window created spent left room")
    return {"unit": ledger.unit, "file": path, **about, "count": len(entries), "releases": releases[-last:]}


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


def _shown(ledgers: Sequence[dict[str, Any]], notes: Sequence[Caveat]) -> Iterator[Part]:
    for k, told in enumerate(ledgers):
        yield from [""] * (k > 0)
        spent, budget = wording.number(told["spent"]), wording.exact(told["epsilon"])
        yield Line(
            f"{told['unit']}: epsilon {spent} of {budget} is spent at delta {wording.exact(told['delta'])}; one more "
            f"release of up to {wording.number(told['room'])} fits in.",
            "bold" if told["left"] > 1e-9 * told["epsilon"] else "red",
        )
        yield f"  for {protects(told['window'])}, since {told['created']}: {told['file']}"
        yield from _releases(told) if told["count"] else ["  nothing has been released"]
    yield from noted(notes)


def _releases(told: dict[str, Any]) -> Iterator[Part]:
    rows, count = [], told["count"]
    for release in told["releases"]:
        when, (first, stop) = release["time"].removesuffix("+00:00").replace("T", " "), release["rows"]
        span = "any" if (first, stop) == ANY_ROWS else f"{first} to {stop - 1}"
        ends = {"epsilon alone": release["alone"], "in all": release["spent"]}
        rows.append({**release, "entry": release["id"], "when (UTC)": when, "rows": span, **ends})
    columns = ("entry", "when (UTC)", "what", "state", "rows", "fit", "epsilon alone", "in all")
    part = "" if len(rows) == count else f", the last {len(rows)}"
    yield listed(f"{'1 release' if count == 1 else f'{count} releases'}{part}", rows, *columns, left=6)
    yield from dict.fromkeys(  # long and often the same: told once, below the table
        f"  {each['mechanism']}; noise from {each['source']}" + ("" if each["secure"] else ", which protects nothing")
        for each in rows
    )
