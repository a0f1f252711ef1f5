"""What a plant and the coordinator send each other before they are connected: two files, by any means.

::

    boiler.join      plant -> coordinator   the unit, its input channels, dt and key; no measurement
    boiler.welcome   coordinator -> plant   its certificate, the authority's, and where the server is; while authorities
                                            change, the old one vouches for the new one

Each is a text with a signature, by the key or the authority that the text names. Both come from outside and are read
with suspicion; whose key, or which authority, that is, somebody has to say by another way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from counterflow.errors import CounterflowError, StorageError
from counterflow.federation.job import Job
from counterflow.federation.sites import certificates, keys
from counterflow.federation.sites.certificates import Participant
from counterflow.files import write_whole
from counterflow.plant import Channel
from counterflow.records import describe, restore, strict_json

FORMAT = 1
LARGEST = 200_000  # bytes of a file
_Letter = TypeVar("_Letter")


@dataclass(frozen=True)
class Card:
    """What others get to know of a unit: who it is, its input channels and the time between two rows."""

    unit: str
    organisation: str
    federation: str
    inputs: tuple[Channel, ...]
    dt: float
    begins: str = ""  # time of the log's first row
    inputs_shown: bool = False  # whether other plants may be shown signals that are made of its inputs

    def __post_init__(self) -> None:
        Participant(self.unit, "plant", self.organisation)
        certificates.check_federation(self.federation)
        job = Job("card", "sufficient", {self.unit: self.inputs}, dt=self.dt, begins=self.begins)  # checks the rest
        object.__setattr__(self, "dt", job.dt)


@dataclass(frozen=True)
class JoinRequest:
    """What a ``.join`` file says, in the plant's own words."""

    card: Card
    public: str  # the plant's key, as ``keys.public`` writes it

    @property
    def key(self) -> str:
        """Fingerprint of the plant's key."""
        return keys.fingerprint(keys.from_public(self.public))


@dataclass(frozen=True)
class Welcome:
    """What a ``.welcome`` file says; certificates as ``certificates.text`` writes them, "" if there is none."""

    unit: str
    host: str
    port: int
    certificate: str
    authority: str
    cross: str


def write(path: Path, letter: JoinRequest | Welcome, key: RSAPrivateKey) -> None:
    """Write a letter, signed with the key that it names, or with that of the authority that it names."""
    text = json.dumps(describe(letter)[0], indent=2)
    signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    told = {"format": FORMAT, "letter": text, "signature": signature.hex()}
    write_whole(path, (json.dumps(told, indent=2) + "\n").encode(), durable=True)


def read_join(path: Path) -> JoinRequest:
    """A ``.join`` file from outside; whatever is wrong is told with the file."""
    return _read(path, JoinRequest, lambda letter: keys.from_public(letter.public))


def read_welcome(path: Path, unit: str) -> Welcome:
    """A ``.welcome`` file from outside, signed by the authority that it names: whether to trust that one is open."""
    letter = _read(path, Welcome, lambda letter: certificates.public_key(certificates.from_text(letter.authority)))
    if letter.unit != unit:
        raise StorageError(f"{path}: it is the welcome of unit {letter.unit!r:.80}, this is {unit!r}: give its own.")
    return letter


def _read(path: Path, kind: type[_Letter], signer: Callable[[_Letter], RSAPublicKey]) -> _Letter:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}. Check the path.") from error
    try:
        if len(data) > LARGEST:
            raise ValueError(f"it has more than {LARGEST} bytes; such a file has a few thousand")
        told: dict[str, Any] = strict_json(data)
        if told["format"] != FORMAT:
            raise ValueError(f"it is of format {told['format']!r:.20}, here it is {FORMAT}: upgrade the older side")
        letter = restore(kind, strict_json(told["letter"]), {})
        signer(letter).verify(
            bytes.fromhex(told["signature"]), told["letter"].encode(), padding.PKCS1v15(), hashes.SHA256()
        )
    except InvalidSignature as error:
        raise StorageError(
            f"{path}: it was not signed with the key that it names: somebody has changed it. Ask for it again."
        ) from error
    except (CounterflowError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path}: it is not in order: {error!s:.500}. Ask for it again.") from error
    return letter
