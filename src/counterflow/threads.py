"""One BLAS thread for a fit: its many small products are slower with several, and stall when cores are shared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

_found: list[tuple[int, ThreadpoolController]] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within it, BLAS uses one thread (docs/decisions/0008-one-blas-thread.md)."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


def _libraries() -> ThreadpoolController:
    """The libraries that are loaded. To look for them takes milliseconds, and a message should not cost that.

    A library comes with a module, so they are looked for again when there are other modules than there were.
    """
    from threadpoolctl import ThreadpoolController

    modules = len(sys.modules)
    if not _found or _found[0][0] != modules:
        _found[:] = [(modules, ThreadpoolController())]
    return _found[0][1]
