"""Parquet and Feather (Arrow) files: of both only the columns that are asked for are read."""

from __future__ import annotations

from collections.abc import Iterator

import polars

from counterflow.data.formats.format import Format
from counterflow.data.options import TableOptions
from counterflow.data.places import Place
from counterflow.data.source import Source, frame_source


def _parquet(place: Place, options: TableOptions) -> Iterator[Source]:
    yield frame_source(place.name, polars.scan_parquet(place.source, glob=False), "Parquet")


def _feather(place: Place, options: TableOptions) -> Iterator[Source]:
    unpacked = place.content is not None  # bytes have no pattern in their name
    lazy = polars.scan_ipc(place.source) if unpacked else polars.scan_ipc(place.path, glob=False)
    yield frame_source(place.name, lazy, "Feather")


PARQUET = Format((".parquet", ".pq"), _parquet)
FEATHER = Format((".feather", ".arrow", ".ipc"), _feather)
