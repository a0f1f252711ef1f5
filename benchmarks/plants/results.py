"""Scores on the disk: one JSON file for each method and dirt, one entry for each case, written after every case."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from plants.scores import Score

FOLDER = Path(__file__).parent


def key(plant: str, way: str, rows: int, seed: int) -> str:
    """The name of a case."""
    return f"{plant}/{way}/{rows}/{seed}"


def load(method: str, dirt: str = "clean") -> dict[str, dict[str, Any]]:
    """{case: score} of a method on records with a dirt; empty where nothing is stored."""
    path = _path(method, dirt)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def store(method: str, case: str, score: Score, dirt: str = "clean", **beside: Score) -> None:
    """Add one score, with others ``beside`` it; a run that stops loses nothing. One run at a time writes a file."""
    entry = score.to_json() | {name: other.to_json() for name, other in beside.items()}
    entries = load(method, dirt) | {case: entry}
    lines = [f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries)]
    path = _path(method, dirt)
    fresh = path.with_suffix(".tmp")
    fresh.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os.replace(fresh, path)


def _path(method: str, dirt: str) -> Path:
    return FOLDER / (f"results_{method}.json" if dirt == "clean" else f"results_{method}_{dirt}.json")
