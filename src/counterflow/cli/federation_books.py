"""``counterflow federation audit``, ``settle``, ``backup`` and ``restore``: the books of a plant."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from counterflow.cli import output
from counterflow.cli.options import Folder
from counterflow.cli.output import Told, answering
from counterflow.errors import OptionError, StorageError
from counterflow.federation import reconciliation
from counterflow.federation.audit import FILE, Audit
from counterflow.federation.sites import backup as backups
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.supervisor import opened
from counterflow.notebook import Table
from counterflow.privacy import Ledger

_SYSLOG = "counterflow@32473"  # the number that is set aside for examples: structured data needs one
_AUDIT_FACILITY, _WARNING, _NOTICE, _INFORMATION = 13, 4, 5, 6
_SEVERITY = {"refused": _WARNING, "settled": _WARNING, "restored": _WARNING, "left": _NOTICE}
_WRONG = (reconciliation.BEHIND, reconciliation.LEDGER_LOST, "audit-behind")
_SHOWN = ("number", "time", "event", "job", "unit", "hash", "mark", "sha256")  # in columns of their own, or not at all


class Export(StrEnum):
    """How the audit log is printed."""

    table = "table"
    jsonl = "jsonl"
    syslog = "syslog"


def audit(
    folder: Folder,
    export: Annotated[Export, Option("--format", help="jsonl: a JSON object a line; syslog: RFC 5424.")] = Export.table,
    after: Annotated[int, Option(min=0, help="Only records with larger numbers.")] = 0,
    event: Annotated[list[str] | None, Option(help="Only these events, such as left; repeat it for several.")] = None,
) -> None:
    """What was approved, what has left, and was all of it charged? Every record is checked against the one before.

    approved: the guard had nothing against it. left: it was on the disk and charged, and was handed to the engine. The
    exit code is 6 if audit log and ledger contradict each other; how is told on stderr, or below the table.

    Example: counterflow federation audit boiler-site --format jsonl --after 1200
    """
    site = opened(folder)
    path = site.folder / FILE
    notes = site.differences() if isinstance(site, PlantFolder) else ()
    if not path.exists():
        told = notes[0].text if notes else "nothing has left, nothing was refused"
        raise StorageError(f"{str(site.folder)!r} has no audit log: {told}.", code="old" if notes else None)
    with Audit(path) as log:
        records = [
            record for record in log.records() if record["number"] > after and (not event or record["event"] in event)
        ]
    if export is Export.table:
        output.show(_table(records), *output.noted(notes))
    else:
        for line in map(output.as_json if export is Export.jsonl else syslog_line, records):
            print(line)
        for note in notes:
            typer.echo(f"counterflow: {note}", err=True)
    if any(note.code in _WRONG for note in notes):
        raise typer.Exit(output.CHECK_FAILED)


def syslog_line(record: dict[str, Any]) -> str:
    """A record as RFC 5424 has it, on one line: whatever others have put into it cannot begin another."""
    priority = 8 * _AUDIT_FACILITY + _SEVERITY.get(record["event"], _INFORMATION)
    fields = {name: value for name, value in record.items() if name not in ("time", "event")}
    told = " ".join(f'{_clean(name)}="{_clean(value)}"' for name, value in fields.items())
    return f"<{priority}>1 {record['time']} - counterflow - {record['event']} [{_SYSLOG} {told}]"


def _clean(value: object) -> str:
    text = value if isinstance(value, str) else output.as_json(value)
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("]", "\\]")


def _table(records: Iterable[dict[str, Any]]) -> Table:
    rows = []
    for record in records:
        more = {name: value for name, value in record.items() if name not in _SHOWN}
        told = ", ".join(f"{name} {_clean(value)[:80]}" for name, value in more.items())
        rows.append([str(record["number"]), record["time"][:19].replace("T", " "), record["event"],
                     _clean(record.get("job", "")), told])  # fmt: skip
    return Table("audit log", ["number", "when (UTC)", "event", "job", "about"], rows, left=5)


@answering()
def settle(
    folder: Folder,
    entry: Annotated[int, Option(min=1, help="Number of the entry, as counterflow privacy ledger has it.")],
    note: Annotated[str, Option(help="Why; it goes into the ledger and the audit log.")],
    withdraw: Annotated[
        bool, Option("--withdraw/--released", help="It has not left and will not: take the charge back.")
    ],
) -> Told:
    """What became of a release that was charged and has not left, because the plant was killed at that moment?

    It leaves at no further cost if its job goes on. Withdraw it only if that job was given up; if it goes on all the
    same, it is charged again. What has left by the audit log cannot be withdrawn.

    Example: counterflow federation settle boiler-site --entry 12 --withdraw --note "job 7 was cancelled"
    """
    site = PlantFolder.open(folder)
    if site.ledger is None:
        raise OptionError(f"{site.label}: its policy names no ledger (privacy.ledger): there is nothing to settle.")
    with site.audit() as log, Ledger.open(site.ledger, site.unit) as ledger:
        settled = reconciliation.settle(log, ledger, entry, withdraw, note)
        spent = ledger.spent
    text = f"entry {settled.id} ({settled.what}) is {settled.state}; spent in all: {spent:.6g}"
    return Told({"entry": settled.to_json(), "spent": spent}, [text])


@answering()
def backup(
    folder: Folder,
    to: Annotated[Path, Option(metavar="FILE", help="A new file; keep it on another machine, encrypted.")],
) -> Told:
    """A consistent copy of the plant's audit log and budget, also while it runs. Not of keys, log, model or sessions.

    Example: counterflow federation backup boiler-site --to /backup/boiler-2026-07-01.zip
    """
    return Told({"file": to, **backups.backup(PlantFolder.open(folder), to)})


@answering()
def restore(
    folder: Folder,
    file: Annotated[Path, Option("--from", metavar="FILE", help="A backup of this plant.")],
    nothing_left_since: Annotated[
        bool, Option("--nothing-left-since", help="You know that nothing has left after the backup was made.")
    ] = False,
) -> Told:
    """Put back an audit log or a budget that is lost, damaged or too old; what is in order stays as it is.

    A budget that does not know of all that has left is refused.

    Example: counterflow federation restore boiler-site --from /backup/boiler-2026-07-01.zip
    """
    told = backups.restore(PlantFolder.open(folder), file, nothing_left_since)
    return Told({"restored": told, "next": ["what was there is kept beside it" if told else "all was in order"]})
