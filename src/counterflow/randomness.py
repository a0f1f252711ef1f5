"""Random streams that depend on the run's seed and on names, never on the order of calls."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *labels: str) -> np.random.Generator:
    """A generator of its own for each (seed, labels).

    >>> from counterflow.randomness import stream
    >>> bool(stream(7, "boiler", "noise").random() == stream(7, "boiler", "noise").random())
    True
    >>> bool(stream(7, "boiler", "noise").random() == stream(7, "turbine", "noise").random())
    False
    """
    text = "\x1f".join(labels).encode()
    words = np.frombuffer(hashlib.sha256(text).digest(), "<u4")
    return np.random.default_rng(np.random.SeedSequence([seed, *(int(word) for word in words)]))


def seed_from(rng: int | np.random.Generator | None) -> int:
    """A seed from a seed, from a generator (which advances), or from the operating system."""
    if rng is None:
        return int(np.random.SeedSequence().entropy)  # type: ignore[arg-type]
    if isinstance(rng, np.random.Generator):
        return int.from_bytes(rng.bytes(16), "little")
    return int(rng)
