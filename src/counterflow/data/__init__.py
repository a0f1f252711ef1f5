"""Logs of a plant into recordings: CSV, Parquet and spreadsheets, with a report of everything that is done to them.

`inspect` tells what a table holds; `read_logs` puts it on a regular grid. ``hai`` and ``swat`` follow the published
preparation of two data sets.
"""

from counterflow.data.grid import Rules
from counterflow.data.inspection import ChannelFacts, Inspection, inspect
from counterflow.data.preparation import prepare, read_logs
from counterflow.data.report import Preparation, Step
from counterflow.data.selection import Chosen, Pattern, Selection, SelectionError, choose, selection
from counterflow.data.table import Table, open_table

__all__ = [
    "ChannelFacts", "Chosen", "Inspection", "Pattern", "Preparation", "Rules", "Selection", "SelectionError", "Step",
    "Table", "choose", "inspect", "open_table", "prepare", "read_logs", "selection",
]  # fmt: skip
