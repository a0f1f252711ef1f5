"""Whether a plant's ledger and its audit log tell the same: what has left was charged, and what was charged has left.

Every record of something private that left carries the mark of the ledger that paid for it. A ledger that does not hold
the last mark is an old copy, or has lost its end; nothing private leaves until it is put right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterflow.caveats import Caveat
from counterflow.errors import OptionError, PrivacyError, StorageError
from counterflow.federation.audit import Audit
from counterflow.privacy import Entry, Ledger
from counterflow.privacy.ledger import RELEASED, RESERVED, WITHDRAWN

OF_ROWS = ("Sufficient", "Reduced", "Introduction", "AugmentedStates")  # messages that hold something of every row
BEHIND, LEDGER_LOST, AUDIT_LOST = "ledger-behind", "ledger-lost", "audit-lost"
_OPEN = {  # what is charged and has not left by the audit log: code and text
    RESERVED: (
        "reservation-open",
        "is charged, and has not left by the audit log. If its job goes on it leaves at no further cost; if the job is "
        "given up, its owner may take the charge back: counterflow federation settle FOLDER --entry {entry}",
    ),
    RELEASED: (
        "audit-behind",
        "has left by the ledger, and the audit log does not know of it: the audit log is older than the ledger. "
        "Restore one that has every record.",
    ),
}


def require_current(audit: Audit, ledger: Ledger) -> None:
    """StorageError with code "old" if more has left, by the audit log, than the ledger knows of."""
    audit.refresh()
    mark = audit.marks.get(ledger.name)
    if mark is not None and not ledger.holds(mark):
        raise StorageError(
            f"unit {ledger.unit!r}: the ledger {str(ledger.path)!r} is older than the audit log: a release that was "
            f"charged as its entry {mark.entry} has left, and the ledger does not know of it. Put back the ledger that "
            "has it, with all files beside it; or take the budget as spent, and open a new ledger.",
            code="old",
        )


def reconcile(audit: Audit, ledger: Ledger) -> None:
    """Refuse an old ledger; and settle reservations of what has left, which a crash has kept from being settled."""
    require_current(audit, ledger)
    for entry in ledger.reservations():
        if audit.has_left(entry.release):
            ledger.settle(entry.release, RELEASED, "the audit log says that it has left")


def differences(audit: Audit | None, ledger: Ledger | None, unit: str) -> tuple[Caveat, ...]:
    """How the two differ, also where one of them is missing (None)."""
    if audit is not None and ledger is not None:
        return compare(audit, ledger)
    if audit is not None:
        audit.refresh()
    if audit is not None and audit.marks:
        text = (
            f"unit {unit!r}: the ledger is missing, and something private has left that was charged to it. Put it "
            "back, by 'counterflow federation restore' from a backup; or take the budget as spent, and open a new one "
            "for rows that were never released"
        )
        return (Caveat(LEDGER_LOST, unit, text),)
    if ledger is not None and any(entry.state == RELEASED for entry in ledger.entries()):
        text = (
            f"unit {unit!r}: the audit log is missing, and something private has left by the ledger. Put it back, by "
            "'counterflow federation restore' from a backup; or take the budget as spent, and open a new ledger"
        )
        return (Caveat(AUDIT_LOST, unit, text),)
    return ()


def compare(audit: Audit, ledger: Ledger) -> tuple[Caveat, ...]:
    """How the two differ; nothing is changed."""
    found = []
    earlier = sum(mark.entry for name, mark in audit.marks.items() if name != ledger.name)
    if earlier:
        text = (
            f"unit {ledger.unit!r}: {earlier} entries were made in an earlier ledger; what is spent here does not "
            "count them, also where they are of the same rows"
        )
        found.append(Caveat("earlier-ledger", ledger.unit, text))
    if exact := sorted({str(record["job"]) for record in audit.records() if _is_exact(record)}):
        text = (
            f"unit {ledger.unit!r}: messages about its rows have left without noise ({', '.join(exact[:5])}"
            f"{', ...' if len(exact) > 5 else ''}): a budget says nothing of rows that are known already"
        )
        found.append(Caveat("exact-release", ledger.unit, text))
    try:
        require_current(audit, ledger)
    except StorageError as error:
        found.append(Caveat(BEHIND, ledger.unit, str(error)))
    for entry in ledger.entries():
        if entry.state not in _OPEN or audit.has_left(entry.release):
            continue
        code, text = _OPEN[entry.state]
        which = f"unit {ledger.unit!r}: entry {entry.id} ({entry.what}, {entry.fit})"
        found.append(Caveat(code, ledger.unit, f"{which} {text.format(entry=entry.id)}"))
    return tuple(found)


def _is_exact(record: Mapping[str, Any]) -> bool:
    return record["event"] == "left" and record.get("kind") in OF_ROWS and "ledger_entry" not in record


def settle(audit: Audit, ledger: Ledger, number: int, withdrawn: bool, note: str) -> Entry:
    """The owner says what became of a reservation; it is audited first. What has left cannot be withdrawn."""
    entry = next((entry for entry in ledger.entries() if entry.id == number), None)
    if entry is None or entry.state != RESERVED:
        known = [str(entry.id) for entry in ledger.reservations()]
        raise OptionError(
            f"unit {ledger.unit!r}: entry {number} is {'not there' if entry is None else entry.state}; to be settled: "
            f"{', '.join(known) or 'none'}"
        )
    if withdrawn and audit.has_left(entry.release):
        raise PrivacyError(
            f"unit {ledger.unit!r}: entry {number} has left by the audit log, and cannot be withdrawn", code="settled"
        )
    state = WITHDRAWN if withdrawn else RELEASED
    about = {"unit": ledger.unit, "ledger": ledger.name, "ledger_entry": number}
    audit.write("settled", **about, sha256=entry.release, state=state, note=note)
    return ledger.settle(entry.release, state, note)
