"""Who belongs to a federation now, or has: kept by the coordinator and read by its server.

A certificate that the authority has signed is valid until it expires, and FLARE has no list of revoked ones. So the
server admits those that stand in this list and no other (``admission.MemberGate``): whoever is removed is cut off, and
may come back with another key and so another certificate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterflow.federation.sites import keys
from counterflow.federation.sites.certificates import Participant
from counterflow.federation.sites.letters import Card
from counterflow.files import write_whole
from counterflow.records import describe, restore
from counterflow.sealed_file import blaming, read_json, write_json

FILE = "members.json"
PRESENCE = "presence.json"
_TITLE = "members of a federation"
FRESH = 20.0  # seconds for which a site's word on who is connected holds


@dataclass(frozen=True)
class Member:
    """A participant that was admitted: its public key and the fingerprints of its certificates."""

    who: Participant
    public: str
    approved: str  # when
    certificates: tuple[str, ...] = ()  # the last is the newest, one before it is being replaced
    ends: str = ""  # of the newest
    removed: str = ""  # when; "": it is a member
    about: Card | None = None  # of a plant

    @property
    def card(self) -> Card:
        """A plant's."""
        assert self.about is not None
        return self.about

    @property
    def certificate(self) -> str:
        """Fingerprint of its newest certificate."""
        return self.certificates[-1] if self.certificates else ""

    @property
    def key(self) -> str:
        """Fingerprint of its key."""
        return keys.fingerprint(keys.from_public(self.public))


def read(path: Path) -> list[Member]:
    """All members, and those that were removed."""
    found = read_json(path, _TITLE)
    with blaming(path):
        return [restore(Member, one, {}) for one in found]


def admitted(path: Path) -> dict[str, tuple[str, ...]]:
    """{participant: fingerprints of its certificates} of the members."""
    return {one.who.name: one.certificates for one in read(path) if not one.removed}


def write(path: Path, members: Iterable[Member]) -> None:
    """Replace the list; a reader sees the old one or the new one."""
    write_json(path, _TITLE, [describe(one)[0] for one in members])


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
