"""Federation across machines on NVIDIA FLARE: keys, hardened kits, processes, jobs, and the parts that run in them.

Needs ``pip install 'counterflow[federation]'``; importing this package does not.
"""

from __future__ import annotations

from importlib import metadata

from counterflow.errors import OptionError

VERSION = "2.9.0"  # of FLARE: private interfaces and the shape of its files are relied on, so no other will do


def require_flare() -> None:
    """Raise an OptionError unless the right version of FLARE is installed."""
    remedy = "run: pip install 'counterflow[federation]'"
    try:
        found = metadata.version("nvflare")
    except metadata.PackageNotFoundError:
        raise OptionError(f"federation: NVIDIA FLARE is not installed; {remedy}") from None
    if found != VERSION:
        raise OptionError(f"federation: NVIDIA FLARE {found} is installed, Counterflow needs {VERSION}; {remedy}")
