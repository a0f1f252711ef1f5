"""Logs of several units, each with its own time column, on one grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from counterflow.data.clock import time_facts
from counterflow.data.preparation import Rules, prepare
from counterflow.data.report import Preparation
from counterflow.data.selection import Chosen
from counterflow.data.table import Table
from counterflow.data.times import SECOND, moment
from counterflow.errors import DataError, OptionError
from counterflow.plant import Recording


def align(
    tables: Mapping[str, Table], units: Mapping[str, Chosen], rules: Rules | None = None
) -> tuple[Recording, dict[str, Preparation]]:
    """A recording of the period that all tables share.

    Parameters
    ----------
    tables, units : mapping of unit name
        Each unit's own table, and what it takes of it. Every table has a time column.
    rules : Rules, optional
        As for one table. Without dt, the longest of the tables' usual steps.

    Examples
    --------
    >>> import polars
    >>> from counterflow.data import choose, open_table
    >>> dates = [f"2024-05-01 06:0{k}:00" for k in range(6)]
    >>> logs = {
    ...     "boiler": polars.DataFrame({"time": dates[:5], "p": [1.0, 2, 3, 4, 5]}),
    ...     "turbine": polars.DataFrame({"time": dates[2:], "n": [30.0, 40, 50, 60]}),
    ... }
    >>> tables = {name: open_table(log) for name, log in logs.items()}
    >>> units = {name: choose({name: "?"}, table.channels)[0] for name, table in tables.items()}
    >>> recording, _ = align(tables, units)
    >>> recording["boiler"].y.ravel().tolist(), recording["turbine"].y.ravel().tolist()
    ([3.0, 4.0, 5.0], [30.0, 40.0, 50.0])
    """
    rules = rules or Rules()
    if rules.longest_gap is not None or rules.long_gaps == "longest":
        raise OptionError(
            "longest_gap and long_gaps = 'longest' need one table of all units: they would cut each its way."
        )
    facts = {}
    kinds = set()
    for name, table in tables.items():
        if table.times is None:
            raise DataError(f"the log of unit {name!r} has no time column: name it with 'time'")
        facts[name] = time_facts(table.times)
        kinds.add((table.times.dated, table.times.zoned))
    if len(kinds) > 1:
        raise DataError("some logs tell a time zone or date and others do not: write all times in one way")
    dated = kinds.pop()[0]
    first = max(facts, key=lambda name: facts[name].start)
    last = min(facts, key=lambda name: facts[name].stop)
    start, stop = facts[first].start, facts[last].stop
    if rules.start is not None:
        start = max(start, moment(rules.start, dated, "start"))
    if rules.stop is not None:
        stop = min(stop, moment(rules.stop, dated, "stop") - 1)
    width = round(rules.dt * SECOND) if rules.dt is not None else max(found.step for found in facts.values())
    day = 86_400 * SECOND
    if dated and day % width == 0 and any(width >= 1.5 * found.step for found in facts.values()):
        start += -start % width  # on the full minute, hour, ...
    rows = (stop - start) // width + 1
    if rows < 2:
        raise DataError(
            f"the logs share no period of 2 rows: that of unit {first!r} begins at "
            f"{tables[first].times.shown(facts[first].start)}, "  # type: ignore[union-attr]
            f"that of unit {last!r} ends at {tables[last].times.shown(facts[last].stop)}"  # type: ignore[union-attr]
        )
    own = replace(rules, dt=width / SECOND, start=None, stop=None)
    parts, reports = {}, {}
    for name, table in tables.items():
        recording, reports[name] = prepare(table, [units[name]], own, span=(start, rows))
        parts[name] = recording[name]
    return Recording(parts, width / SECOND), reports
