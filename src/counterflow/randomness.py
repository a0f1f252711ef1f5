"""Random streams that depend on the run's seed, a purpose and a unit's name, and on nothing else.

So the units may come in any order, and a run with other inputs has the very same noise.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TypeAlias

import numpy as np

from counterflow.errors import OptionError

Seed: TypeAlias = int | np.integer | np.random.Generator | None


def run_seed(rng: object) -> int:
    """The seed of a run: an int as it is, 128 bits drawn from a Generator, or fresh ones from the operating system."""
    if rng is None:
        return secrets.randbits(128)
    if isinstance(rng, np.random.Generator):
        return int.from_bytes(rng.bytes(16), "little")
    if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0:
        return int(rng)
    raise OptionError(f"rng is {rng!r}: pass a whole number of at least 0, a numpy Generator, or None.")


def stream(seed: int, purpose: str, *names: str) -> np.random.Generator:
    """The generator for one purpose and one unit (or pair of units) of a run."""
    digest = hashlib.sha256("\0".join((purpose, *names)).encode()).digest()
    words = tuple(int.from_bytes(digest[k : k + 4], "little") for k in range(0, len(digest), 4))
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=words)))
