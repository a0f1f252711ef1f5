"""Flipped bits in every kind of durable file: how many are refused, how many are harmless, and that none is silent.

Run: python benchmarks/bench_flips.py [--most 2000] [--seed 1]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
import random
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import flips
import machine


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=2000, help="flips in each file")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    world, draw, rows, began = flips.World(), random.Random(given.seed), [], time.monotonic()
    total = flips.Outcome()
    for kind in flips.KINDS:
        with tempfile.TemporaryDirectory() as folder:
            found = flips.run(kind, world, Path(folder) / "flips", given.most, draw)
        rows.append(f"| {kind.name} | {found.flips:,} | {found.refused:,} | {found.same:,} | {len(found.silent)} |")
        print(rows[-1], *found.silent[:5], sep="\n", flush=True)
        total.flips, total.refused, total.same = (
            total.flips + found.flips, total.refused + found.refused, total.same + found.same,
        )  # fmt: skip
        total.silent += found.silent
    lines = [
        "# Flipped bits",
        "",
        f"`python benchmarks/bench_flips.py --most {given.most} --seed {given.seed}` on {machine.description()}, "
        f"{time.monotonic() - began:.0f} s.",
        "One bit of one file at a time, with SQLite's own log beside a database as a killed process leaves it. Of a "
        f"file with up to {given.most} bytes every byte is hit once, of a larger one both ends and places between.",
        "Refused: an error that names the file. Harmless: what is loaded is the same (unused bytes of SQLite's pages, "
        "time stamps in a zip). Silent: anything else.",
        "",
        "| files | flips | refused | harmless | silent |",
        "|---|---:|---:|---:|---:|",
        *rows,
        f"| all | {total.flips:,} | {total.refused:,} | {total.same:,} | {len(total.silent)} |",
        "",
        "Not in the table: `policy.toml`, which its owner edits and which so has no digest; certificates and kits of "
        "FLARE, which are signed; `<kit>/local`, which every start writes anew; `presence.json`, which lasts seconds.",
        "",
    ]
    machine.write("flips", "\n".join(lines))
    if total.silent:
        raise SystemExit("\n".join(total.silent[:20]))


if __name__ == "__main__":
    main()
