"""Copies of a plant's books, its audit log and its budget, and the way back that does not forget what was spent.

A backup is one file: a zip without compression, with a description and the two databases, seals and all, as SQLite
copies them while they are in use. The audit log is copied first: whatever has left by it is charged in the copy.

Each of the two is the second place of the other. A ledger is put back only if it has all that the audit log says has
left. If both are lost, nobody here knows what left after the backup; the owner must say that nothing has.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from counterflow.errors import CounterflowError, StorageError
from counterflow.federation import audit as audits
from counterflow.federation.audit import SITE, Audit
from counterflow.federation.reconciliation import compare, require_current
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.files import write_whole
from counterflow.privacy import Ledger
from counterflow.privacy.ledger import SCHEMA as LEDGER
from counterflow.sealed_log import SealedLogs
from counterflow.sealed_log.logs import put_in_place

FORMAT = 1
_ABOUT, _AUDIT, _LEDGER = "backup.json", audits.FILE, "budget.ledger"
_BOOKS = (f"{_AUDIT}.head", _AUDIT, f"{_LEDGER}.head", _LEDGER)  # each database has a head beside it


def backup(plant: PlantFolder, to: Path) -> dict[str, Any]:
    """Write a copy of the books to a new file, which only its owner may read; what it holds."""
    if to.exists():
        raise StorageError(f"{str(to)!r} exists: give a new file, and keep the old backup until this one is written.")
    books: dict[str, bytes] = {}
    path = _path(plant)
    with plant.audit() as log, Ledger.open(path, plant.unit) as ledger:
        require_current(log, ledger)
        for name, place, schema in ((_AUDIT, plant.folder / _AUDIT, SITE), (_LEDGER, path, LEDGER)):
            with SealedLogs(place, schema, make=False) as logs:
                books |= {f"{name}{tail}": data for tail, data in logs.copied().items()}
        about = {
            "format": FORMAT, "unit": plant.unit, "federation": plant.federation,
            "made": datetime.now(UTC).isoformat(timespec="seconds"), "mark": list(ledger.mark),
        }  # fmt: skip
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in {_ABOUT: json.dumps(about).encode(), **books}.items():
                archive.writestr(name, data)
        write_whole(to, file.getvalue(), durable=True)
        log.write("backed-up", unit=plant.unit, sha256=hashlib.sha256(file.getvalue()).hexdigest(), mark=about["mark"])
    return about


def restore(plant: PlantFolder, file: Path, nothing_left_since: bool = False) -> list[str]:
    """Put back what is missing, damaged or too old, if the backup may take its place; which of the two it was.

    StorageError with code "old" if something has left that the backup's ledger does not know of, or if nobody knows.
    """
    plant.refuse_running()
    about, books = _read(file, plant.unit)
    own_audit, own_ledger = plant.folder / _AUDIT, _path(plant)
    with tempfile.TemporaryDirectory(dir=plant.folder, prefix=".restore-") as place:
        copies = Path(place)
        for name, data in books.items():
            write_whole(copies / name, data, durable=True)
        lost_audit = not own_audit.exists() or _is_lost(lambda: Audit(own_audit))
        with Audit(copies / _AUDIT if lost_audit else own_audit) as log:
            lost_ledger = _is_lost(lambda: _current(log, own_ledger, plant.unit))
            if not (lost_audit or lost_ledger):
                return []
            if lost_audit and lost_ledger and not nothing_left_since:
                raise StorageError(
                    f"unit {plant.unit!r}: audit log and budget are both lost, so that nobody knows what has left "
                    f"since the backup of {about['made']}. If nothing has, say so (--nothing-left-since); else take "
                    "the budget as spent, and open a new ledger.",
                    code="old",
                )
            with _current(log, copies / _LEDGER if lost_ledger else own_ledger, plant.unit) as ledger:
                differ = [caveat.code for caveat in compare(log, ledger)]
        told = []
        mark = secrets.token_hex(4)
        for lost, copy, own, named in (
            (lost_audit, _AUDIT, own_audit, "audit log"), (lost_ledger, _LEDGER, own_ledger, "budget")
        ):  # fmt: skip
            if lost:
                put_in_place(copies / copy, own, mark)
                told.append(named)
    with plant.audit() as log:
        log.write("restored", unit=plant.unit, what=told, made=about["made"], differ=differ)
    return told


@contextmanager
def _current(log: Audit, path: Path, unit: str) -> Iterator[Ledger]:
    with Ledger.open(path, unit) as ledger:
        require_current(log, ledger)
        yield ledger


def _is_lost(opened: Callable[[], AbstractContextManager[object]]) -> bool:
    """Whether it cannot be opened, which checks all of it; what another process holds is not lost."""
    try:
        with opened():
            return False
    except CounterflowError as error:
        if error.code == "in-use":
            raise
        return True


def _path(plant: PlantFolder) -> Path:
    if plant.ledger is None:
        raise StorageError(
            f"{plant.label}: its policy names no ledger (privacy.ledger), so there is no budget to keep."
        )
    return plant.ledger


def _read(file: Path, unit: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with zipfile.ZipFile(file) as archive:
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist())
            if packed or sorted(archive.namelist()) != sorted((_ABOUT, *_BOOKS)):
                raise ValueError("it holds other things")
            books = {name: archive.read(name) for name in _BOOKS}
            about = json.loads(archive.read(_ABOUT))
        if about["format"] != FORMAT or about["unit"] != unit or not isinstance(about["made"], str):
            raise ValueError(f"it is not one of unit {unit!r}")
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise StorageError(f"{str(file)!r} is no backup that can be used: {error}. Give another one.") from error
    return about, books
