"""Who belongs to a federation now: a list of certificates, kept by the coordinator and read by its server.

A certificate that the authority has signed is valid until it expires, and FLARE has no list of revoked ones. So the
server admits those that stand in this list and no other (``admission.MemberGate``): whoever is taken off it is cut
off, and may come back with another key and so another certificate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError
from counterflow.files import write_whole
from counterflow.sealed_file import read_json, write_json

FILE = "members.json"
PRESENCE = "presence.json"
_TITLE = "members of a federation"
FRESH = 20.0  # seconds for which a site's word on who is connected holds


def read(path: Path) -> dict[str, tuple[str, ...]]:
    """{participant: fingerprints of its certificates}; the last is the newest, one before it is being replaced."""
    found = read_json(path, _TITLE)
    listed = list(found.values()) if isinstance(found, dict) else [None]
    if not all(isinstance(prints, list) and all(isinstance(one, str) for one in prints) for prints in listed):
        raise StorageError(f"federation: the list of members {path} must be {{name: [fingerprint]}}")
    return {name: tuple(prints) for name, prints in found.items()}


def write(path: Path, members: Mapping[str, Sequence[str]]) -> None:
    """Replace the list; a reader sees the old one or the new one."""
    write_json(path, _TITLE, {name: list(prints) for name, prints in sorted(members.items())})


def replace_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file for FLARE, or one that lasts seconds: only its owner reads it, whole or not at all."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode(), durable=True)


def presence(folder: Path) -> dict[str, Any]:
    """What the running site of a folder last said of its connections; empty if that is not fresh."""
    try:
        found = json.loads((folder / PRESENCE).read_text("utf-8"))
        fresh = isinstance(found, dict) and abs(time.time() - float(found["time"])) < FRESH
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if fresh else {}
