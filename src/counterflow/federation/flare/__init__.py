"""Federation across machines on NVIDIA FLARE: keys, hardened kits, processes, jobs, and the parts that run in them.

FLARE carries bytes over mutual TLS and starts processes; what the bytes mean, what may leave a plant and where a
broken-off fit goes on is decided by the sessions of ``counterflow.federation``, which know nothing of FLARE.

Needs ``pip install 'counterflow[federation]'``; importing this package does not.
"""

from __future__ import annotations

from importlib import metadata

from counterflow.errors import OptionError

VERSION = "2.9.0"  # of FLARE: private interfaces and the shape of its files are relied on, so no other will do


def require_flare() -> None:
    """Raise an OptionError unless the right version of FLARE is installed."""
    try:
        found = metadata.version("nvflare")
    except metadata.PackageNotFoundError:
        raise OptionError(
            "federation: NVIDIA FLARE is not installed; run: pip install 'counterflow[federation]'"
        ) from None
    if found != VERSION:
        raise OptionError(
            f"federation: NVIDIA FLARE {found} is installed, Counterflow needs {VERSION}; "
            "run: pip install 'counterflow[federation]'"
        )
