"""Tables of a database, by a query: SQLite, which Python has, PostgreSQL, and what gives a DBAPI or ADBC connection.

Connections that are made here only read. A password belongs into PGPASSWORD or a password file, not into a query or a
federation file; where an address holds one all the same, messages do not show it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars

from counterflow.data.options import need, some
from counterflow.data.table import Table, open_table
from counterflow.errors import DataError, OptionError

_SQLITE_ENDINGS = (".db", ".sqlite", ".sqlite3", ".db3")
_PASSWORD = re.compile(r"(?<=:)[^:/@]*(?=@)")
_LONGEST = 200


def read_sql(query: str, database: object) -> polars.DataFrame:
    """The rows of a query as a polars DataFrame, which `read_logs` and `inspect` take.

    Parameters
    ----------
    query : str
        One that returns rows: a column with the time and a column for each tag, or a row for each value with its tag.
    database : str, path, or connection
        ``"plant.db"`` or ``"sqlite:///plant.db"``, ``"postgresql://user@host/name"`` (with `pip install
        'counterflow[sql]'`), or an open connection of a driver that polars can read from: DBAPI, ADBC, SQLAlchemy.

    Examples
    --------
    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> _ = connection.execute("create table log as select '2024-05-01 06:00' as time, 3.5 as flow")
    >>> read_sql("select * from log", connection).rows()
    [('2024-05-01 06:00', 3.5)]
    """
    if not isinstance(query, str) or not query.strip():
        raise OptionError(f"the query is {query!r:.40}: give SQL that returns rows, such as 'select * from log'.")
    with _connected(database) as (connection, name):
        try:
            found = polars.read_database(query, connection, infer_schema_length=None)
        except Exception as error:  # of the driver's own family
            raise DataError(f"{name}: the query {_shown(query)} cannot be answered: {_reason(error)}") from None
    if not isinstance(found, polars.DataFrame) or not found.columns:
        raise DataError(f"{name}: the query {_shown(query)} returns no columns: give one that selects rows")
    # numbers of any length come from ADBC as an extension type that holds text
    foreign = [series.name for series in found.iter_columns() if str(series.dtype).startswith(("ext[", "Extension"))]
    return found.with_columns(found.get_column(name).ext.storage() for name in foreign) if foreign else found


def _shown(query: str) -> str:
    return repr(" ".join(query.split())[:60])


def _reason(error: Exception) -> str:
    """What a driver says, without a password."""
    return _PASSWORD.sub("***", " ".join(str(error).split()))[:_LONGEST] or type(error).__name__


def open_query(query: str, database: object, **options: Any) -> Table:
    """The rows of a query as a table; see `read_sql` and `open_table`. It must have a time: rows have no order else."""
    found = read_sql(query, database)
    if len(found) == 0:
        raise DataError(f"the query {_shown(query)} returns no rows: check its conditions")
    table = open_table(found, **options)
    if table.time_name is None:
        raise DataError(
            f"the query returns no time column, and rows of a database have no order of their own; its columns are "
            f"{some(table.names)}: select the time, too, or name its column with 'time'"
        )
    return table


def public_address(database: str) -> str:
    """An address without its password, for messages and files."""
    return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1@", database)


def is_sqlite(database: str) -> bool:
    """Whether an address is that of an SQLite file."""
    return database.startswith("sqlite:") or ("://" not in database and database.lower().endswith(_SQLITE_ENDINGS))


def sqlite_file(database: str) -> Path:
    """The file of an SQLite address."""
    return Path(re.sub(r"^sqlite:(?:///)?", "", database))


@contextmanager
def _connected(database: object) -> Iterator[tuple[Any, str]]:
    """A connection, closed at the end if it was made here, and its name for messages."""
    if not isinstance(database, (str, Path)):
        yield database, "the database"
        return
    address, name = str(database), public_address(str(database))
    with closing(_sqlite(sqlite_file(address)) if is_sqlite(address) else _postgres(address, name)) as connection:
        yield connection, name


def _sqlite(file: Path) -> sqlite3.Connection:
    if not file.is_file():
        raise DataError(f"there is no database {str(file)!r}: check the path")
    return sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)


def _postgres(address: str, name: str) -> Any:
    if not address.startswith(("postgresql://", "postgres://")):
        raise OptionError(
            f"database is {name!r:.80}: give an SQLite file, a postgresql:// address, or, in Python, an open "
            "connection of any driver (DBAPI, ADBC, SQLAlchemy)."
        )
    need("psycopg", "PostgreSQL is", "sql", ", or give an open connection")
    import psycopg

    try:
        opened = psycopg.connect(address, connect_timeout=20)
    except Exception as error:
        raise DataError(
            f"{name}: no connection: {_reason(error)}; check address, user and password (PGPASSWORD)"
        ) from None
    opened.read_only = True
    return opened
