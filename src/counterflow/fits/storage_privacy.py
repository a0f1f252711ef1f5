"""The privacy report of a saved fit, split as trust is split: what anybody may know, and what stays at a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from counterflow.fits.sealed_file import Demand, check_keys, count, number, texts, typed
from counterflow.methods.privacy import PrivacyReport, UnitPrivacy
from counterflow.privacy import Cost, Entry

APART = {"apart": True}  # in the server's file of a fit between machines
_REPORT = ("epsilon", "delta", "window", "accounting", "mechanism", "source", "durable", "units", "excluded", "gaps")
_PUBLIC = ("epsilon", "clip", "sigma")
_ENTRY_TEXTS = ("time", "what", "fit", "mechanism", "source")


def describe(report: PrivacyReport | None) -> dict[str, Any] | None:
    """For the server's file."""
    if report is None:
        return None
    described: dict[str, Any] = {key: getattr(report, key) for key in _REPORT}
    described |= {"excluded": list(report.excluded), "gaps": list(report.gaps)}
    described["units"] = {name: {key: getattr(unit, key) for key in _PUBLIC} for name, unit in report.units.items()}
    return described


def describe_unit(report: PrivacyReport | None, name: str, rows_digest: str | None) -> dict[str, Any] | None:
    """For the unit's own file."""
    if report is None:
        return None
    unit = report.units[name]
    return {
        "rows_digest": rows_digest,
        "clipped": unit.clipped,
        "spent": unit.spent,
        "budget": None if unit.budget is None else list(unit.budget),
        "entries": [asdict(entry) for entry in unit.entries],
    }


def restore(described: Any, own: Mapping[str, Any]) -> PrivacyReport | None:
    """From what the server's file says and what the units' files say."""
    if described == APART:
        raise Demand(
            "it is of a private fit between machines, in which every unit keeps its own account: its parts are not to "
            "be put together. Use load_server and load_unit."
        )
    if (described is None) != all(entry is None for entry in own.values()) or (
        described is not None and any(entry is None for entry in own.values())
    ):
        raise ValueError("its privacy is not that of the units' files")
    if described is None:
        return None
    check_keys(described, _REPORT)
    public = typed(described, "units", dict)
    if set(public) != set(own):
        raise ValueError("its privacy is of other units")
    accounting = typed(described, "accounting", str)
    if accounting not in ("rigorous", "published"):
        raise ValueError(f"accounting {accounting!r} is not known")
    return PrivacyReport(
        epsilon=number(described, "epsilon"),
        delta=number(described, "delta"),
        window=count(described, "window", 1),
        accounting=accounting,
        mechanism=typed(described, "mechanism", str),
        source=typed(described, "source", str),
        durable=typed(described, "durable", bool),
        units=MappingProxyType({name: _unit(public[name], entry) for name, entry in own.items()}),
        excluded=texts(described, "excluded"),
        gaps=texts(described, "gaps"),
    )


def rows_digest(own: Any) -> str | None:
    """Of the rows that a private fit rests on, from the unit's file."""
    if own is None:
        return None
    check_keys(own, ("rows_digest", "clipped", "spent", "budget", "entries"))
    found = own["rows_digest"]
    if found is not None and not (isinstance(found, str) and len(found) == 64):
        raise ValueError("'rows_digest' should be a digest")
    return found


def _unit(public: Any, own: Mapping[str, Any]) -> UnitPrivacy:
    check_keys(public, _PUBLIC)
    budget = own["budget"]
    if budget is not None:
        if type(budget) is not list or len(budget) != 2:
            raise ValueError("'budget' should be null or two numbers")
        budget = (number({"budget": budget[0]}, "budget"), number({"budget": budget[1]}, "budget"))
    return UnitPrivacy(
        **{key: number(public, key) for key in _PUBLIC},
        clipped=None if own["clipped"] is None else number(own, "clipped"),
        entries=tuple(_entry(entry) for entry in typed(own, "entries", list)),
        spent=None if own["spent"] is None else number(own, "spent"),
        budget=budget,
    )


def _entry(found: Any) -> Entry:
    check_keys(found, ("id", *_ENTRY_TEXTS, "cost", "spent"))
    cost = typed(found, "cost", dict)
    check_keys(cost, ("start", "stop", "row_loss", "epsilon", "delta"))
    return Entry(
        id=count(found, "id", 1),
        **{key: typed(found, key, str) for key in _ENTRY_TEXTS},
        cost=Cost(
            count(cost, "start", 0),
            count(cost, "stop", 1),
            **{key: number(cost, key) for key in ("row_loss", "epsilon", "delta")},
        ),
        spent=number(found, "spent"),
    )
