"""Tables of what dirt costs: each dirty record beside the record that it is measured against (`plants.reference`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from plants import results
from plants.dirt import SENSORS, WEARS
from plants.tables import BASELINES, COVERAGE

DEARER = 1.25  # of the error of the clean record with as many readings
PRESENT = 0.95  # of the R² of a fit to the rows since the change
FOUND, FALSE = 0.9, 0.1  # changes that are found; change points in a steady record that are false
NAMES = {"counterflow": "Counterflow", **BASELINES}

Entry = dict[str, Any]


def section(methods: tuple[str, ...], seeds: tuple[int, ...], title: str) -> list[str]:
    """One table for each dirt that is stored, and the aims."""
    lines = []
    for dirt in (*SENSORS, *WEARS):
        stored = {method: _entries(method, dirt, seeds) for method in methods}
        if any(stored.values()):
            table = _changed if dirt == "changed" else _soiled
            lines += [f"### {dirt}", "", *table(stored), ""]
    return [f"## {title}", "", *lines, *aims(methods, seeds)] if lines else []


def aims(methods: tuple[str, ...], seeds: tuple[int, ...]) -> list[str]:
    """By method, but for baselines, and dirt: the numbers that have an aim, and whether it is met."""
    rows: list[tuple[str, str, float, bool]] = []
    for method in (each for each in methods if each not in BASELINES):
        for dirt in (*SENSORS, "drift"):
            entries = list(_entries(method, dirt, seeds).values())
            ratio, held = _ratio(entries), _mean(entry["coverage"] for entry in entries)
            low, high = COVERAGE
            rows += [
                (f"{dirt}: error over that of as many clean readings, at most {DEARER:g}", method, ratio,
                 ratio <= DEARER),
                (f"{dirt}: mean coverage, {low:.0%} to {high:.0%}", method, held, low <= held <= high),
            ]  # fmt: skip
        changed = list(_entries(method, "changed", seeds).values())
        kept, found, placed = _kept(changed), *(_mean(entry[name] for entry in changed) for name in ("found", "placed"))
        steady = [entry for dirt in ("clean", *SENSORS) for entry in _entries(method, dirt, seeds).values()]
        answered = [entry for entry in steady if not _failed([entry])]  # who refuses a record names no change in it
        false = [entry["false_changes"] for entry in answered if entry.get("false_changes") is not None]
        rows += [
            (f"changed: R² of the present plant over that of the rows since, at least {PRESENT:g}", method, kept,
             kept >= PRESENT),
            (f"changed: changes found in time, at least {FOUND:.0%}", method, found, found >= FOUND),
            (f"changed: and in the right unit, at least {FOUND:.0%}", method, placed, placed >= FOUND),
            (f"false change points in each of {len(false)} steady records, at most {FALSE:g}", method, _mean(false),
             _mean(false) <= FALSE),
        ]  # fmt: skip
    known = [row for row in rows if np.isfinite(row[2])]
    lines = [f"| {what} | {_shown(m)} | {value:.3g} | {'met' if met else 'MISSED'} |" for what, m, value, met in known]
    return ["| aim | method | found | |", "|---|---|---:|---|", *lines, ""] if lines else []


def _soiled(stored: dict[str, dict[str, Entry]]) -> list[str]:
    lines = [
        "| plant | method | error | of as many clean readings | ratio | least R² | coverage | width | silent | failed "
        "| false changes | records |",
        "|---|---|" + "---:|" * 10,
    ]
    for plant, method, entries in _grouped(stored):
        clean = _mean(entry["reference"]["error"] for entry in entries)
        lines.append(
            f"| {plant} | {_shown(method)} | {_mean(entry['shared']['error'] for entry in entries):.3f} | {clean:.3f} "
            f"| {_ratio(entries):.2f} | {_least(entries):.2f} | {_number(entries, 'coverage', 2)} "
            f"| {_number(entries, 'width', 1)} | {_number(entries, 'silent', 2)} | {_failed(entries)} "
            f"| {_number(entries, 'false_changes', 1)} | {len(entries)} |"
        )
    return lines


def _changed(stored: dict[str, dict[str, Entry]]) -> list[str]:
    lines = [
        "| plant | method | R² of the present plant | of the rows since the change alone | ratio | error of all twins "
        "| coverage | width | found | in the right unit | false changes | failed | records |",
        "|---|---|" + "---:|" * 11,
    ]
    for plant, method, entries in _grouped(stored):
        present, alone = (1 - _mean(entry[name]["error"] for entry in entries) for name in ("shared", "reference"))
        named = (_number(entries, name, 2) for name in ("found", "placed", "false_changes"))
        lines.append(
            f"| {plant} | {_shown(method)} | {present:.3f} | {alone:.3f} | {_kept(entries):.3f} "
            f"| {_number(entries, 'error', 3)} | {_number(entries, 'coverage', 2)} | {_number(entries, 'width', 1)} "
            f"| {' | '.join(named)} | {_failed(entries)} | {len(entries)} |"
        )
    return lines


def _grouped(stored: dict[str, dict[str, Entry]]) -> Iterable[tuple[str, str, list[Entry]]]:
    """By plant, then all of them; each with every method."""
    plants = sorted({case.split("/")[0] for entries in stored.values() for case in entries})
    for plant in (*plants, ""):
        for method, entries in stored.items():
            found = [entry for case, entry in entries.items() if case.split("/")[0] == plant or not plant]
            if found:
                yield plant or "**all**", method, found


def _entries(method: str, dirt: str, seeds: tuple[int, ...]) -> dict[str, Entry]:
    return {case: entry for case, entry in results.load(method, dirt).items() if int(case.split("/")[3]) in seeds}


def _ratio(entries: list[Entry]) -> float:
    """Mean error over that of the references, on the twins that both were asked about."""
    dirty, clean = (_mean(entry[name]["error"] for entry in entries) for name in ("shared", "reference"))
    return dirty / clean


def _kept(entries: list[Entry]) -> float:
    present, alone = (1 - _mean(entry[name]["error"] for entry in entries) for name in ("shared", "reference"))
    return present / alone


def _least(entries: list[Entry]) -> float:
    return min(-np.inf if entry["least_r2"] is None else entry["least_r2"] for entry in entries)


def _failed(entries: list[Entry]) -> int:
    return sum(entry["status"].startswith("failed") for entry in entries)


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else np.nan


def _number(entries: list[Entry], name: str, digits: int) -> str:
    value = _mean(entry[name] for entry in entries)
    return "-" if np.isnan(value) else f"{value:.{digits}f}"


def _shown(method: str) -> str:
    return NAMES.get(method, method.replace("_", "."))
