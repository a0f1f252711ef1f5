"""What a plant and the coordinator send each other before they are connected: two files, by any means.

::

    boiler.join      plant -> coordinator   card.json    the unit, its input channels, dt; no measurement
                                            card.sig     signature of the card with the plant's key
                                            request.zip  FLARE's request for a certificate
    boiler.welcome   coordinator -> plant   FLARE's signed certificate, and the authority's; while authorities change,
                                            cross.pem: the old one vouches for the new one

Both come from outside and are read with suspicion: exactly these entries, small, no links, nothing unpacked before it
was looked at.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow.errors import CounterflowError, OptionError, StorageError
from counterflow.federation.job import Job
from counterflow.federation.sites import certificates, keys, succession
from counterflow.federation.sites.certificates import Participant
from counterflow.files import blaming, write_whole
from counterflow.plant import Channel
from counterflow.records import describe, restore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

FORMAT = 1
LARGEST = 1_000_000  # bytes of a file, and of all that is in it
_CARD, _SIGNATURE, _REQUEST = "card.json", "card.sig", "request.zip"


@dataclass(frozen=True)
class Card:
    """What others get to know of a unit: who it is, its input channels and the time between two rows.

    Examples
    --------
    >>> from counterflow.plant import Channel
    >>> card = Card("boiler", "steam_works", "waterworks", (Channel("fuel", "kg/s", (0.0, 2.0)),), 60.0)
    >>> Card.from_json(card.to_json()) == card
    True
    """

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

    def to_json(self) -> dict[str, Any]:
        """In plain types."""
        return {"format": FORMAT, **describe(self)[0]}

    @classmethod
    def from_json(cls, found: object) -> Card:
        """From plain types, trusting nothing; the error says what is wrong."""
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            told = found.get("format") if isinstance(found, dict) else found
            raise OptionError(f"a card of format {told!r:.20}, here it is {FORMAT}: upgrade the older side")
        return restore(cls, {name: value for name, value in found.items() if name != "format"}, {})


@dataclass(frozen=True)
class JoinRequest:
    """A ``.join`` file that was read and found in order."""

    card: Card
    key: str
    request: bytes

    @property
    def who(self) -> Participant:
        """Whom it asks a certificate for."""
        return Participant(self.card.unit, "plant", self.card.organisation)


def write_join(path: Path, card: Card, private_key: Path, request_zip: Path) -> str:
    """Write a ``.join`` file; returns the fingerprint of the plant's key."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    content = (json.dumps(card.to_json(), indent=2, sort_keys=True) + "\n").encode()
    key, request = keys.load(private_key), _bytes_of(request_zip)
    signature = key.sign(content, padding.PKCS1v15(), hashes.SHA256())
    write_whole(path, _zipped({_CARD: content, _SIGNATURE: signature, _REQUEST: request}), durable=True)
    return key_fingerprint(key.public_key())


def read_join(path: Path) -> JoinRequest:
    """Read a ``.join`` file from outside; whatever is wrong is told with the file and the entry."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    entries = _entries(path, _bytes_of(path), (_CARD, _SIGNATURE, _REQUEST), "a request to join")
    try:
        card = Card.from_json(json.loads(entries[_CARD]))
    except (CounterflowError, ValueError, RecursionError) as error:
        raise StorageError(f"{path}: {_CARD} is not in order: {error}. Ask the plant to join again.") from error
    asked = (f"{card.unit}.csr", "request.json", "site.yaml")
    inner = _entries(path, entries[_REQUEST], asked, f"the request of unit {card.unit!r}", _REQUEST)
    key = _requested_key(path, card, inner)
    try:
        key.verify(entries[_SIGNATURE], entries[_CARD], padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise StorageError(
            f"{path}: {_CARD} was not signed with the key of the request: somebody has put two requests together. "
            "Ask the plant to send its file again."
        ) from error
    return JoinRequest(card, key_fingerprint(key), entries[_REQUEST])


@dataclass(frozen=True)
class Welcome:
    """A ``.welcome`` file that was read: FLARE's part, and what a new authority is vouched for with."""

    signed: bytes  # FLARE verifies it against the authority's fingerprint
    certificate: str
    authority: bytes
    cross: bytes = b""


def read_welcome(path: Path, unit: str) -> Welcome:
    """A ``.welcome`` file from outside."""
    data = _bytes_of(path)
    names = ("rootCA.pem", "signed.json", "signed.json.sig", "site.yaml", f"{unit}.crt")
    found = _entries(path, data, names, f"the welcome of unit {unit!r}", optional=succession.FILE)
    cross = found.pop(succession.FILE, b"")
    certificate = found[f"{unit}.crt"].decode("ascii", "replace")
    return Welcome(_zipped(found) if cross else data, certificate, found["rootCA.pem"], cross)


def add_cross(welcome: Path, cross: bytes) -> None:
    """Let a welcome of the coordinator's own making say that the old authority vouches for the new one."""
    with blaming(welcome), zipfile.ZipFile(welcome, "a") as archive:
        archive.writestr(succession.FILE, cross)


def certificate_in(welcome: Path, name: str) -> str:
    """The text of the certificate in a signed zip of the coordinator's own making."""
    try:
        with zipfile.ZipFile(welcome) as archive:
            return archive.read(f"{name}.crt").decode("ascii")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise StorageError(f"federation: {welcome} holds no certificate of {name!r} ({error})") from error


def key_fingerprint(key: RSAPublicKey) -> str:
    """SHA-256 of a public key: what two people compare by telephone."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return "SHA256:" + digest.hex(":").upper()


def _requested_key(path: Path, card: Card, inner: Mapping[str, bytes]) -> RSAPublicKey:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509.oid import NameOID

    try:
        request = x509.load_pem_x509_csr(inner[f"{card.unit}.csr"])
        key, valid = request.public_key(), request.is_signature_valid
        wanted = {"unit": NameOID.COMMON_NAME, "organisation": NameOID.ORGANIZATION_NAME}
        named = {name: str(request.subject.get_attributes_for_oid(oid)[0].value) for name, oid in wanted.items()}
        asks = json.loads(inner["request.json"])
        kind = asks["cert_type"]
        told = {"unit": asks["name"], "organisation": asks["org"], "federation": asks["project"]}
    except Exception as error:  # parsers of foreign bytes raise what they like
        raise StorageError(f"{path}: {_REQUEST} is not a request of FLARE's ({type(error).__name__}).") from error
    if not valid or not isinstance(key, RSAPublicKey) or not 2048 <= key.key_size <= 8192:
        raise StorageError(f"{path}: the key of the request is not one that FLARE makes. Ask the plant to join again.")
    if kind != "client":
        raise StorageError(f"{path}: the request is for a certificate of kind {kind!r:.40}, a plant's is 'client'.")
    for source in (named, told):
        for field in ("unit", "organisation", "federation"):
            if field in source and source[field] != getattr(card, field):
                raise StorageError(
                    f"{path}: the card says that {field} is {getattr(card, field)!r:.80}, the request says "
                    f"{source[field]!r:.80}. Ask who sent it."
                )
    return key


def requested_key(path: Path) -> str:
    """Fingerprint of the key in a request of this party's own making (.csr)."""
    from cryptography import x509

    try:
        return key_fingerprint(x509.load_pem_x509_csr(_bytes_of(path)).public_key())  # type: ignore[arg-type]
    except ValueError as error:
        raise StorageError(f"{path}: is not a request for a certificate ({error}); join anew.") from error


def _zipped(entries: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def _bytes_of(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}. Check the path.") from error
    if len(data) > LARGEST:
        raise StorageError(f"{path}: it has more than {LARGEST} bytes; such a file has a few thousand.")
    return data


def _entries(
    path: Path, data: bytes, names: Sequence[str], what: str, inside: str = "", optional: str = ""
) -> dict[str, bytes]:
    """Entries of a zip that holds exactly these, and perhaps one more; nothing is unpacked past the limit."""
    place = f"{path}: {inside}" if inside else f"{path}: it"
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
            if sorted(entry.filename for entry in found if entry.filename != optional) != sorted(names):
                there = ", ".join(repr(entry.filename[:40]) for entry in found[:8])
                raise StorageError(f"{place} is not {what}: it must hold {', '.join(names)}, and holds {there}.")
            for entry in found:
                mode = entry.external_attr >> 16
                if (stat.S_IFMT(mode) not in (0, stat.S_IFREG)) or entry.is_dir() or entry.flag_bits & 0x1:
                    raise StorageError(f"{place} is not {what}: {entry.filename!r} is a link, a folder or encrypted.")
            if sum(entry.file_size for entry in found) > LARGEST:
                raise StorageError(f"{place} is not {what}: unpacked it would have more than {LARGEST} bytes.")
            read: dict[str, bytes] = {}
            for entry in found:
                with archive.open(entry) as file:
                    read[entry.filename] = file.read(LARGEST + 1)
                if len(read[entry.filename]) > LARGEST:
                    raise StorageError(f"{place} is not {what}: {entry.filename!r} has more than {LARGEST} bytes.")
            return read
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        raise StorageError(f"{place} is not {what} ({error}). Ask for it again.") from error
