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
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from counterflow.errors import CounterflowError, OptionError, StorageError
from counterflow.federation.job import Job
from counterflow.federation.sites import certificates, keys
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


class JoinRequest(NamedTuple):
    """A ``.join`` file that was read and found in order; ``key``: fingerprint of the plant's."""

    card: Card
    key: str
    request: bytes


class Welcome(NamedTuple):
    """A ``.welcome`` file that was read: FLARE's part, and what a new authority is vouched for with."""

    signed: bytes  # FLARE verifies it against the authority's fingerprint
    certificate: str
    authority: bytes
    cross: bytes


def write_join(path: Path, card: Card, private_key: Path, request_zip: Path) -> None:
    """Write a ``.join`` file."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    content = (json.dumps(card.to_json(), indent=2, sort_keys=True) + "\n").encode()
    signature = keys.load(private_key).sign(content, padding.PKCS1v15(), hashes.SHA256())
    entries = {_CARD: content, _SIGNATURE: signature, _REQUEST: _bytes_of(request_zip)}
    write_whole(path, _zipped(entries), durable=True)


def read_join(path: Path) -> JoinRequest:
    """Read a ``.join`` file from outside; whatever is wrong is told with the file and the entry."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    entries = _entries(f"{path}: it", _bytes_of(path), (_CARD, _SIGNATURE, _REQUEST), "a request to join")
    try:
        card = Card.from_json(json.loads(entries[_CARD]))
    except (CounterflowError, ValueError, RecursionError) as error:
        raise StorageError(f"{path}: {_CARD} is not in order: {error}. Ask the plant to join again.") from error
    key = _requested_key(path, card, entries[_REQUEST])
    try:
        key.verify(entries[_SIGNATURE], entries[_CARD], padding.PKCS1v15(), hashes.SHA256())
    except InvalidSignature as error:
        raise StorageError(
            f"{path}: {_CARD} was not signed with the key of the request: somebody has put two requests together. "
            "Ask the plant to send its file again."
        ) from error
    return JoinRequest(card, _fingerprint(key), entries[_REQUEST])


def _requested_key(path: Path, card: Card, request_zip: bytes) -> RSAPublicKey:
    """The key of FLARE's request, which must be that of the card's unit."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.x509.oid import NameOID

    names = (f"{card.unit}.csr", "request.json", "site.yaml")
    inner = _entries(f"{path}: {_REQUEST}", request_zip, names, f"the request of unit {card.unit!r}")
    try:
        request = x509.load_pem_x509_csr(inner[f"{card.unit}.csr"])
        key, valid = request.public_key(), request.is_signature_valid
        oids = {"unit": NameOID.COMMON_NAME, "organisation": NameOID.ORGANIZATION_NAME}
        named = {name: str(request.subject.get_attributes_for_oid(oid)[0].value) for name, oid in oids.items()}
        asks = json.loads(inner["request.json"])
        told = {"unit": asks["name"], "organisation": asks["org"], "federation": asks["project"]}
        kind = asks["cert_type"]
    except Exception as error:  # parsers of foreign bytes raise what they like
        raise StorageError(f"{path}: {_REQUEST} is not a request of FLARE's ({type(error).__name__}).") from error
    if not valid or not isinstance(key, RSAPublicKey) or not 2048 <= key.key_size <= 8192:
        raise StorageError(f"{path}: the key of the request is not one that FLARE makes. Ask the plant to join again.")
    if kind != "client":
        raise StorageError(f"{path}: the request is for a certificate of kind {kind!r:.40}, a plant's is 'client'.")
    for field, value in (*named.items(), *told.items()):
        if value != (wanted := getattr(card, field)):
            raise StorageError(
                f"{path}: the card says that {field} is {wanted!r:.80}, the request says {value!r:.80}. Ask who "
                "sent it."
            )
    return key


def requested_key(path: Path) -> str:
    """Fingerprint of the key in a request of this party's own making (.csr): what two people compare by telephone."""
    from cryptography import x509

    try:
        return _fingerprint(x509.load_pem_x509_csr(_bytes_of(path)).public_key())  # type: ignore[arg-type]
    except ValueError as error:
        raise StorageError(f"{path}: is not a request for a certificate ({error}); join anew.") from error


def _fingerprint(key: RSAPublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return "SHA256:" + digest.hex(":").upper()


def read_welcome(path: Path, unit: str) -> Welcome:
    """A ``.welcome`` file from outside."""
    names = ("rootCA.pem", "signed.json", "signed.json.sig", "site.yaml", f"{unit}.crt")
    what = f"the welcome of unit {unit!r}"
    found = _entries(f"{path}: it", _bytes_of(path), names, what, optional=certificates.CROSS)
    cross = found.pop(certificates.CROSS, b"")
    return Welcome(_zipped(found), found[f"{unit}.crt"].decode("ascii", "replace"), found["rootCA.pem"], cross)


def add_cross(welcome: Path, cross: bytes) -> None:
    """Let a welcome of the coordinator's own making say that the old authority vouches for the new one."""
    with blaming(welcome), zipfile.ZipFile(welcome, "a") as archive:
        archive.writestr(certificates.CROSS, cross)


def certificate_in(welcome: Path, name: str) -> bytes:
    """The certificate in a signed zip of the coordinator's own making."""
    try:
        with zipfile.ZipFile(welcome) as archive:
            return archive.read(f"{name}.crt")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise StorageError(f"federation: {welcome} holds no certificate of {name!r} ({error})") from error


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


def _entries(place: str, data: bytes, names: Sequence[str], what: str, optional: str = "") -> dict[str, bytes]:
    """Entries of a zip that holds exactly these, and perhaps one more; nothing is unpacked past the limit."""

    def refuse(why: str) -> NoReturn:
        raise StorageError(f"{place} is not {what}: {why}.")

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
            if sorted(entry.filename for entry in found if entry.filename != optional) != sorted(names):
                there = ", ".join(repr(entry.filename[:40]) for entry in found[:8])
                refuse(f"it must hold {', '.join(names)}, and holds {there}")
            for entry in found:
                mode = stat.S_IFMT(entry.external_attr >> 16)
                if mode not in (0, stat.S_IFREG) or entry.is_dir() or entry.flag_bits & 0x1:
                    refuse(f"{entry.filename!r} is a link, a folder or encrypted")
            if sum(entry.file_size for entry in found) > LARGEST:
                refuse(f"unpacked it would have more than {LARGEST} bytes")
            read: dict[str, bytes] = {}
            for entry in found:
                with archive.open(entry) as file:
                    read[entry.filename] = file.read(LARGEST + 1)
                if len(read[entry.filename]) > LARGEST:
                    refuse(f"{entry.filename!r} has more than {LARGEST} bytes")
            return read
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        raise StorageError(f"{place} is not {what} ({error}). Ask for it again.") from error
