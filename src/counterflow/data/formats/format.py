"""What a format of table files is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from counterflow.data.options import TableOptions
from counterflow.data.places import Place
from counterflow.data.source import Source


@dataclass(frozen=True)
class Format:
    """One format.

    Parameters
    ----------
    endings : tuple of str
        Of the names of its files, in lower case.
    read : callable
        The tables that a file holds, of which as little is read as tells their columns. Whatever it raises becomes
        one sentence about the file; what is refused on purpose is a DataError.
    has_sheets : bool
        Whether a file may hold several tables by name.
    """

    endings: tuple[str, ...]
    read: Callable[[Place, TableOptions], Iterable[Source]]
    has_sheets: bool = False
