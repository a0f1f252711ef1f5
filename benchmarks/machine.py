"""What a benchmark says about the machine it ran on, and where it leaves its result."""

from __future__ import annotations

import platform
from datetime import date
from importlib import metadata
from pathlib import Path

import numpy as np

import counterflow


def description(*packages: str) -> str:
    """Processor kind, cores and versions, in one line; no host name."""
    import os

    versions = []
    for package in ("numpy", "scipy", *packages):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} absent")
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, {', '.join(versions)}, "
        f"GEMM {gemm_rate():.0f} GFLOP/s"
    )


def gemm_rate(size: int = 1500) -> float:
    """Measured double-precision matrix product, GFLOP/s."""
    from time import perf_counter

    a = np.random.default_rng(0).standard_normal((size, size))
    best = float("inf")
    for _ in range(5):
        start = perf_counter()
        a @ a
        best = min(best, perf_counter() - start)
    return 2 * size**3 / best / 1e9


def write(name: str, text: str) -> None:
    """Print a result and leave it in benchmarks/results, with the version and the day."""
    text = f"{text}\n\nCounterflow {counterflow.__version__}, {date.today().isoformat()}.\n"
    print(text)
    (Path(__file__).parent / "results" / f"{name}.md").write_text(text, encoding="utf-8")
