"""History of an OPC UA server: raw values of nodes over a period, with their qualities and units of measure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars

from counterflow.data.databases import public_address
from counterflow.data.options import need
from counterflow.errors import CounterflowError, DataError, OptionError
from counterflow.plant.calendar import as_datetime

_PATIENCE = 30.0  # seconds for one answer of the server
_MOST_NODES = 5000
_DEPTH = 6  # folders below a node that are looked into


def read_opcua(
    url: str, nodes: Sequence[str] | str = (), start: object = None, stop: object = None, *,
    security: str | None = None, patience: float = _PATIENCE,
) -> polars.DataFrame:  # fmt: skip
    """The history that an OPC UA server keeps, as a long table that `read_logs` and `inspect` take.

    Parameters
    ----------
    url : str
        Such as ``"opc.tcp://historian:4840"``; ``opc.tcp://user:password@host:4840`` where users are asked for.
    nodes : str or sequence of str
        Node ids such as ``"ns=2;s=FIC-101.PV"``. A folder or an object stands for all variables below it that have a
        history; none: the whole server.
    start, stop : date and time, optional
        The period; texts without a zone are UTC. By default the last 24 hours.
    security : str, optional
        As asyncua has it: ``"Basic256Sha256,SignAndEncrypt,certificate.der,key.pem"``.
    patience : float
        Seconds to wait for each answer.

    Returns
    -------
    polars.DataFrame
        time (UTC), tag (the node's display name), value, quality, and unit where a server tells it.

    Notes
    -----
    Needs ``pip install 'counterflow[opcua]'``.
    """
    need("asyncua", "OPC UA is", "opcua")
    if not isinstance(url, str) or not url.startswith("opc.tcp://"):
        raise OptionError(f"url is {url!r:.60}: give one such as 'opc.tcp://historian:4840'.")
    last = datetime.now(UTC) if stop is None else _utc(stop, "stop")
    first = last - timedelta(days=1) if start is None else _utc(start, "start")
    if not first < last:
        raise OptionError(f"start ({first:%Y-%m-%d %H:%M:%S}) is not before stop ({last:%Y-%m-%d %H:%M:%S}).")
    wanted = [nodes] if isinstance(nodes, str) else list(nodes)
    name = public_address(url)
    try:
        return asyncio.run(_read(url, wanted, first, last, security, patience))
    except CounterflowError:
        raise
    except (OSError, TimeoutError) as error:
        raise DataError(
            f"{name}: no answer from the server: {error or 'it takes too long'}; check address and network"
        ) from None
    except Exception as error:  # of the client's own family
        raise DataError(f"{name}: the history cannot be read: {str(error)[:200] or type(error).__name__}") from None


def _utc(given: object, name: str) -> datetime:
    found = as_datetime(given, name)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


async def _read(
    url: str, wanted: Sequence[str], first: datetime, last: datetime, security: str | None, patience: float
) -> polars.DataFrame:
    from asyncua import Client, ua

    client = Client(url, timeout=patience)
    if security is not None:
        await client.set_security_string(security)
    async with client:
        roots = []
        for text in wanted:
            try:
                roots.append(client.get_node(ua.NodeId.from_string(text)))
            except Exception:
                raise OptionError(f"node {text!r:.60} is no node id: give one such as 'ns=2;s=FIC-101.PV'.") from None
        found: dict[str, Any] = {}
        for root in roots or [client.nodes.objects]:
            await _variables(root, found, _DEPTH, named=bool(roots))
        if not found:
            raise DataError(f"{public_address(url)}: no variable with a history was found: name nodes that have one")
        rows: list[tuple[Any, ...]] = []
        units: dict[str, str] = {}
        for node in found.values():
            tag = str((await node.read_display_name()).Text or node.nodeid.Identifier).strip()
            if not tag or tag in units:  # two nodes may be shown alike
                tag = node.nodeid.to_string()
            units[tag] = await _unit(node)
            for entry in await node.read_raw_history(first, last, return_bounds=False):
                when = entry.SourceTimestamp or entry.ServerTimestamp
                value = None if entry.Value is None else entry.Value.Value
                if when is None or isinstance(value, (list, bytes)):
                    continue
                when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
                quality = int(entry.StatusCode.value) if entry.StatusCode is not None else 0
                number = float(value) if isinstance(value, (int, float)) else None
                rows.append((when, tag, number, None if value is None else str(value), quality, units[tag]))
    if not rows:
        raise DataError(
            f"{public_address(url)}: {len(found)} nodes have no history between {first:%Y-%m-%d %H:%M:%S} and "
            f"{last:%Y-%m-%d %H:%M:%S} UTC: give another start and stop"
        )
    names = ("time", "tag", "value", "text", "quality", "unit")
    types = (polars.Datetime("ns", "UTC"), polars.String, polars.Float64, polars.String, polars.Int64, polars.String)
    frame = polars.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    if frame.get_column("value").null_count() > frame.get_column("text").null_count():  # words, such as "open"
        frame = frame.with_columns(polars.col("text").alias("value"))
    return frame.drop("text", *([] if any(units.values()) else ["unit"]))


async def _variables(node: Any, found: dict[str, Any], depth: int, named: bool) -> None:
    """Variables with a history at a node or below it."""
    from asyncua import ua

    if len(found) >= _MOST_NODES:
        raise DataError(f"more than {_MOST_NODES} variables have a history: name some of them, or a folder")
    kind = await node.read_node_class()
    if kind == ua.NodeClass.Variable:
        # one that was named is asked for its history, whatever the server says of it
        if named or ua.AccessLevel.HistoryRead in await node.get_access_level():
            found[node.nodeid.to_string()] = node
        return
    if depth == 0 or node.nodeid == ua.NodeId(ua.ObjectIds.Server):
        return
    for child in await node.get_children(refs=ua.ObjectIds.HierarchicalReferences):
        await _variables(child, found, depth - 1, named=False)


async def _unit(node: Any) -> str:
    """The unit of measure that a node tells, or ""."""
    for child in await node.get_properties():
        if (await child.read_browse_name()).Name == "EngineeringUnits":
            told = await child.read_value()
            return str(getattr(getattr(told, "DisplayName", None), "Text", "") or "").strip()
    return ""
