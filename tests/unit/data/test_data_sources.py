"""Tables that are no files: databases by a query, and the history of an OPC UA server."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars
import pytest
import throwaway_postgres
from typer.testing import CliRunner

import counterflow as cf
from counterflow.cli import app
from counterflow.cli.federation_file import read_federation
from counterflow.data import open_table, read_opcua, read_sql, sample
from counterflow.data.databases import open_query, public_address

REQUIRED = os.environ.get("COUNTERFLOW_SOURCE_TESTS") == "required"  # in .ci/run nothing is left out
needs_postgres = pytest.mark.skipif(
    not REQUIRED and (throwaway_postgres.programs() is None or find_spec("psycopg") is None),
    reason="needs PostgreSQL (Debian: apt-get install postgresql) and pip install 'counterflow[sql]'",
)
needs_opcua = pytest.mark.skipif(
    not REQUIRED and find_spec("asyncua") is None, reason="needs pip install 'counterflow[opcua]'"
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with throwaway_postgres.cluster() as address:
        yield address


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    path = tmp_path / "plant.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table log (ts text, tag text, value real, quality integer)")
        rows = [
            (f"2024-11-01 06:{k:02d}:00", tag, k + shift, 192 if k != 3 else 0)
            for k in range(30) for tag, shift in (("FIC-101.PV", 0.5), ("LI-201.PV", 100.0))
        ]  # fmt: skip
        connection.executemany("insert into log values (?, ?, ?, ?)", rows)
    connection.close()
    return path


@pytest.mark.parametrize("form", ["{}", "sqlite:{}", "sqlite:///{}"])
def test_sqlite(plant: Path, form: str) -> None:
    table = open_query("select * from log", form.format(plant))
    assert table.channels == ("FIC-101.PV", "LI-201.PV")
    assert table.rows == 29  # both values of a minute are bad
    assert [(note.name, note.numbers["count"]) for note in table.notes] == [("quality", 2)]
    recording, _ = cf.read_logs(read_sql("select * from log", plant))
    assert recording.names == ("area_1", "area_2")
    assert np.isnan(recording["area_1"].y[3, 0])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select value from log", "returns no time column, and rows of a database have no order.*columns are value"),
        ("select * from log where tag = 'none'", "returns no rows"),
        ("select * from nolog", "no such table: nolog"),
        ("delete from log", "cannot be answered.*readonly"),
        ("drop table log", "cannot be answered.*readonly"),
        ("", "give SQL that returns rows"),
        ("select 1 as time; drop table log", "cannot be answered"),
    ],
)
def test_queries_that_are_refused(plant: Path, query: str, said: str) -> None:
    with pytest.raises(cf.CounterflowError, match=said):
        open_query(query, plant)
    assert open_query("select * from log", plant).rows == 29


def test_databases_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database at all, only text\n" * 100)
    for database, said in (
        (tmp_path / "none.db", "there is no database .*none.db"),
        (tmp_path / "text.db", "not a database"),
        ("oracle://me:secret@host/plant", "an open connection of any driver"),
    ):
        with pytest.raises((cf.DataError, cf.OptionError), match=said):
            read_sql("select 1 from log", database)
    assert not (tmp_path / "none.db").exists()
    assert public_address("postgresql://me:secret@host/plant") == "postgresql://me@host/plant"


@needs_postgres
def test_postgres(postgres: str, tmp_path: Path) -> None:
    import psycopg

    log = sample.simulate(300)
    times = [time.item().replace(tzinfo=UTC) for time in log.times]
    with psycopg.connect(postgres, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("create table wide (ts timestamptz, flow numeric, level double precision, running boolean)")
        cursor.executemany(
            "insert into wide values (%s, %s, %s, %s)",
            [(t, round(f, 3), v, k % 7 > 2) for k, (t, f, v) in enumerate(
                zip(times, log.columns["FIC-101.PV"].tolist(), log.columns["LI-102.PV"].tolist(), strict=True))],
        )  # fmt: skip
    table = open_query("select ts as time, flow, level, running from wide order by random()", postgres)
    assert table.times is not None
    assert table.times.zoned
    units = {"tank": {"tags": "*", "inputs": "running"}}
    recording, _ = cf.read_logs(read_sql("select ts as time, flow, level, running from wide", postgres), units)
    np.testing.assert_array_equal(recording["tank"].y[:, 1], log.columns["LI-102.PV"])
    np.testing.assert_allclose(recording["tank"].y[:, 0], log.columns["FIC-101.PV"], atol=6e-4)
    for query, said in (
        ("delete from wide", "read-only transaction"),
        ("select * from nothing", 'relation "nothing" does not exist'),
        ("select flow from wide", "returns no time column"),
    ):
        with pytest.raises(cf.DataError, match=said):
            open_query(query, postgres)
    drafted = tmp_path / "federation.toml"  # a draft of a query says where it was asked
    query = ["--sql", "select ts as time, flow, level from wide", "--database", postgres]
    assert CliRunner().invoke(app, ["data", "inspect", *query, "--federation", str(drafted)]).exit_code == 0
    assert f'database = "{postgres}"' in drafted.read_text()
    assert read_federation(drafted).recording.rows == 300


@needs_postgres
def test_an_open_connection_of_another_driver(postgres: str) -> None:
    adbc = pytest.importorskip("adbc_driver_postgresql.dbapi")
    with adbc.connect(postgres) as connection:
        found = read_sql("select 1.25::numeric as flow, timestamp '2024-11-01 06:00' as time", connection)
        assert open_table(found).numbers(["flow"])["flow"].values.tolist() == [1.25]


@needs_postgres
def test_no_password_is_shown() -> None:
    with pytest.raises(cf.DataError) as caught:
        read_sql("select 1", "postgresql://me:secret@127.0.0.1:1/plant")
    assert "no connection" in str(caught.value)
    assert "secret" not in str(caught.value)


# ---- OPC UA


@pytest.fixture(scope="module")
def historian() -> Iterator[str]:
    """A server with two nodes that have a history, and one that has none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"opc.tcp://127.0.0.1:{probe.getsockname()[1]}"
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        from asyncua import Server, ua

        server = Server()
        await server.init()
        server.set_endpoint(url)
        server.set_security_policy([ua.SecurityPolicyType.NoSecurity])
        space = await server.register_namespace("urn:plant")
        folder = await server.nodes.objects.add_folder(ua.NodeId("Area1", space), "Area1")
        tags = ["FIC-101.PV", "LI-102.PV", "PI-103.PV"]
        nodes = [await folder.add_variable(ua.NodeId(tag, space), tag, -1.0) for tag in tags]
        await nodes[0].add_property(0, "EngineeringUnits", ua.EUInformation(DisplayName=ua.LocalizedText("m3/h")))
        async with server:
            await server.historize_node_data_change(nodes[:2], period=None, count=0)
            start = datetime(2024, 11, 1, 6, tzinfo=UTC)
            for k in range(40):
                bad = ua.StatusCode(ua.StatusCodes.BadNoCommunication if k == 5 else ua.StatusCodes.Good)
                for node, value in zip(nodes, (8 + 0.1 * k, 1 + 0.01 * k, 7.0), strict=True):
                    stamp = start + timedelta(minutes=k)
                    await server.write_attribute_value(
                        node.nodeid, ua.DataValue(ua.Variant(value), StatusCode=bad, SourceTimestamp=stamp)
                    )
            await asyncio.sleep(0.5)
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(60)
    yield url
    done.set()
    thread.join(30)


@needs_opcua
@pytest.mark.filterwarnings("ignore")
def test_opcua_history(historian: str) -> None:
    period = ("2024-11-01 05:00", "2024-11-01 06:29:30")
    found = read_opcua(historian, "ns=2;s=Area1", *period)
    assert found.get_column("time").dtype == polars.Datetime("ns", "UTC")
    table = open_table(found)
    assert table.channels == ("FIC-101.PV", "LI-102.PV")
    assert table.measures == {"FIC-101.PV": "m3/h"}
    recording, _ = cf.read_logs(found, {"tank": "*"})
    assert recording.dt == 60.0
    flow = recording["tank"].y[:, 0]
    assert np.isnan(flow[5])
    known = np.isfinite(flow)
    np.testing.assert_allclose(flow[known], (8 + 0.1 * np.arange(30))[known])
    one = read_opcua(historian, ["ns=2;s=LI-102.PV"], *period)
    assert one.get_column("tag").unique().to_list() == ["LI-102.PV"]


@needs_opcua
@pytest.mark.filterwarnings("ignore")
def test_opcua_refusals(historian: str) -> None:
    for nodes, options, said in (
        ("nonsense", {}, "is no node id"),
        ("ns=2;s=none", {}, "does not exist"),
        ("ns=2;s=Area1", {"start": "2020-01-01", "stop": "2020-01-02"}, "have no history between 2020-01-01"),
        ("ns=2;s=Area1", {"start": "2024-01-02", "stop": "2024-01-01"}, "is not before stop"),
    ):
        with pytest.raises(cf.CounterflowError, match=said):
            read_opcua(historian, nodes, **options)
    with pytest.raises(cf.OptionError, match=r"opc.tcp://historian:4840"):
        read_opcua("http://historian")
    with pytest.raises(cf.DataError, match="no answer from the server"):
        read_opcua("opc.tcp://127.0.0.1:9", patience=2)
