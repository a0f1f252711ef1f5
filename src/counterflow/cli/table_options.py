"""A table on the command line: where it is, and how it is to be read. Commands that read one take it whole."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from counterflow.errors import OptionError

if TYPE_CHECKING:
    from counterflow.data import Table

_SOURCE: dict[str, Any] = {
    "files": Annotated[
        list[Path] | None,
        Argument(metavar="[FILE]...", help="CSV, Parquet, XLSX, folders, zips: one table.", show_default=False),
    ],
    "sql": Annotated[str | None, Option(metavar="QUERY", help="Rows of a database instead of files.")],
    "database": Annotated[
        str | None, Option(metavar="URL", help="With --sql: an SQLite file, or postgresql://user@host/name.")
    ],
}
_OPTIONS: dict[str, Any] = {  # names and kinds are those of TableOptions
    "time": Annotated[str | None, Option(help="Name of the time column (time, timestamp, ...).")],
    "time_format": Annotated[str | None, Option(help="Such as '%d/%m/%Y %H:%M:%S', or s, ms, us, ns, excel, seconds.")],
    "day_first": Annotated[bool | None, Option("--day-first/--month-first", help="How to read 3/4/2024.")],
    "timezone": Annotated[str | None, Option(help="Zone of local times, such as Europe/Berlin.")],
    "separator": Annotated[str | None, Option(help="Between cells, if it is not found.")],
    "decimal": Annotated[str | None, Option(help="Decimal sign, if it is not found.")],
    "encoding": Annotated[str | None, Option(help="Of a text, if it is not found: cp1252, utf-16, ...")],
    "skip_rows": Annotated[int | None, Option(min=0, max=1000, help="Lines before the header, if they are not found.")],
    "skip_after_header": Annotated[
        int | None, Option(min=0, max=1000, help="Lines after it, such as units of measure, if they are not found.")
    ],
    "tag": Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of tags, if it is not found.")],
    "value": Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of values.")],
    "quality": Annotated[str | None, Option(metavar="COLUMN", help="Long table: the column of qualities.")],
    "sheet": Annotated[str | None, Option(help="Of a workbook: name or number (all that are tables).")],
}


@dataclass(frozen=True)
class GivenTable:
    """The table that a command is about: files or a query, and the options that were given."""

    files: Sequence[Path]
    sql: str | None
    database: str | None
    options: dict[str, Any]

    def open(
        self, opcua: str | None = None, nodes: Sequence[str] = (),
        period: tuple[str | None, str | None] = (None, None), security: str | None = None,
    ) -> Table:  # fmt: skip
        """The table: of files, of a query, or of an OPC UA server."""
        from counterflow.data import open_table

        if (self.sql is None) != (self.database is None):
            raise OptionError("--sql and --database go together: give both.")
        if sum((bool(self.files), self.sql is not None, opcua is not None)) != 1:
            raise OptionError("give files, or --sql with --database, or --opcua: one of them.")
        if opcua is None and (nodes or any(period) or security):
            raise OptionError("--node, --start, --stop and --security go with --opcua.")
        if self.sql is not None:
            from counterflow.data.databases import open_query

            return open_query(self.sql, self.database, **self.options)
        if opcua is not None:
            from counterflow.data.opcua import read_opcua

            logging.getLogger("asyncua").setLevel(logging.ERROR)  # what it notes of a connection is not for a terminal
            return open_table(read_opcua(opcua, nodes, *period, security=security), **self.options)
        return open_table(list(self.files), **self.options)


OF_TABLE = {name: (annotation, None) for name, annotation in (_SOURCE | _OPTIONS).items()}  # for output.answering


def given_table(given: Mapping[str, Any]) -> GivenTable:
    """The table that the options ``OF_TABLE`` say."""
    options = {name: given[name] for name in _OPTIONS if given[name] is not None}
    return GivenTable(given["files"] or [], given["sql"], given["database"], options)
