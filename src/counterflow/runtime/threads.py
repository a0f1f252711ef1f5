"""One BLAS thread for a fit: its many small products are slower with several, and stall when cores are shared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within it, BLAS uses one thread (docs/decisions/0008-one-blas-thread.md)."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield
