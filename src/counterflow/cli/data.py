"""``counterflow data``: logs, what they hold, and recordings from them."""

from __future__ import annotations

from counterflow.cli.groups import group

app = group(
    "data",
    {
        "inspect": ("data_inspect:inspect_table", "What does a table hold: rows, gaps, repeats, every channel?"),
        "prepare": ("data_inspect", "A recording from a federation's logs, and all that is done to them."),
        "hai": ("data_sets", "Prepare files of the HAI data set as the paper does."),
        "swat": ("data_sets", "Prepare files of the SWaT data set as the paper does."),
        "stand-in": ("data_sets:stand_in", "Small files in the format of a data set, simulated."),
    },
    help="Logs: what they hold, and recordings from them.",
)
