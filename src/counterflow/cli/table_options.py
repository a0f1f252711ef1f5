"""Options of commands that read tables: where the table is, and how it is to be read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from counterflow.errors import OptionError

if TYPE_CHECKING:
    from counterflow.data import Table

Time = Annotated[str | None, Option(help="Name of the time column (time, timestamp, ...).")]
TimeFormat = Annotated[str | None, Option(help="Such as '%d/%m/%Y %H:%M:%S', or s, ms, us, ns, excel, seconds.")]
DayFirst = Annotated[bool | None, Option("--day-first/--month-first", help="How to read 3/4/2024.")]
Timezone = Annotated[str | None, Option(help="Zone of local times, such as Europe/Berlin.")]
Separator = Annotated[str | None, Option(help="Between cells, if it is not found.")]
Decimal = Annotated[str | None, Option(help="Decimal sign, if it is not found.")]
Encoding = Annotated[str | None, Option(help="Of a text, if it is not found: cp1252, utf-16, ...")]
SkipRows = Annotated[int, Option(min=0, max=1000, help="Lines before the header, if they are not found.")]
SkipAfterHeader = Annotated[
    int | None, Option(min=0, max=1000, help="Lines after it, such as units of measure, if they are not found.")
]
Tag = Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of tags, if it is not found.")]
Value = Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of values.")]
Quality = Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of qualities.")]
Sheet = Annotated[str | None, Option(help="Of a workbook: name or number (all that are tables).")]
Sql = Annotated[str | None, Option(metavar="QUERY", help="Rows of a database instead of files.")]
Database = Annotated[
    str | None, Option(metavar="URL", help="With --sql: an SQLite file, or postgresql://user@host/name.")
]


def given_options(**options: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def opened(
    files: Sequence[Path], sql: str | None, database: str | None, options: dict[str, Any], *,
    opcua: str | None = None, nodes: Sequence[str] = (), period: tuple[str | None, str | None] = (None, None),
    security: str | None = None,
) -> Table:  # fmt: skip
    """The table that a command is about: of files, of a query, or of an OPC UA server."""
    from counterflow.data import open_table

    if (sql is None) != (database is None):
        raise OptionError("--sql and --database go together: give both.")
    if sum((bool(files), sql is not None, opcua is not None)) != 1:
        raise OptionError("give files, or --sql with --database, or --opcua: one of them.")
    if opcua is None and (nodes or any(period) or security):
        raise OptionError("--node, --start, --stop and --security go with --opcua.")
    if sql is not None:
        from counterflow.data.databases import open_query

        return open_query(sql, database, **options)
    if opcua is not None:
        from counterflow.data.opcua import read_opcua

        logging.getLogger("asyncua").setLevel(logging.ERROR)  # what it notes of a connection is not for this terminal
        return open_table(read_opcua(opcua, nodes, *period, security=security), **options)
    return open_table(list(files), **options)
