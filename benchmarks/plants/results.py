"""Scores on the disk: one JSON file for each method, one entry for each case, written after every case."""

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


def load(method: str) -> dict[str, dict[str, Any]]:
    """{case: score} of a method; empty where nothing is stored."""
    path = _path(method)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def store(method: str, case: str, score: Score) -> None:
    """Add one score; a run that stops loses nothing. One run at a time writes a method's file."""
    entries = load(method) | {case: score.to_json()}
    lines = [f"{json.dumps(name)}: {json.dumps(entries[name])}" for name in sorted(entries)]
    path = _path(method)
    fresh = path.with_suffix(".tmp")
    fresh.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    os.replace(fresh, path)


def _path(method: str) -> Path:
    return FOLDER / f"results_{method}.json"
