"""Logs of a plant into recordings: CSV, Parquet, spreadsheets and databases, with a report of all that is done to them.

`inspect` tells what a table holds, `draft` what its tags seem to mean; `read_logs` puts it on a regular grid. ``hai``
and ``swat`` follow the published preparation of two data sets.
"""

from counterflow.data.databases import read_sql
from counterflow.data.drafts import Draft, draft
from counterflow.data.grid import Rules
from counterflow.data.inspection import ChannelFacts, Inspection, inspect
from counterflow.data.notes import Preparation, Step
from counterflow.data.opcua import read_opcua
from counterflow.data.options import TableOptions
from counterflow.data.preparation import prepare, read_logs
from counterflow.data.selection import Chosen, Pattern, Selection, SelectionError, choose, selection
from counterflow.data.table import Table, open_table

__all__ = [
    "ChannelFacts", "Chosen", "Draft", "Inspection", "Pattern", "Preparation", "Rules", "Selection", "SelectionError",
    "Step", "Table", "TableOptions", "choose", "draft", "inspect", "open_table", "prepare", "read_logs", "read_opcua",
    "read_sql", "selection",
]  # fmt: skip
