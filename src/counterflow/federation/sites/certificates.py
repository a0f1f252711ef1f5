"""Certificates: whose they are, what they are called by, when they end, and how one authority succeeds another.

Every participant makes its own key, the coordinator only signs; the engine does it (``engine.Engine``).

When the authority changes, the old one signs the new one's key: a *cross certificate*. Certificates of the new
authority travel with it, so that whoever trusts the old one accepts them, and whoever trusts the new one does anyway. A
plant takes the new one over because the one that it knows has signed it; nobody has to tell it a fingerprint again.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.sites import keys

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NAMED = _NAME, "1 to 63 letters, digits, dots, dashes and underscores, as it stands in a certificate"
_ADDRESS = re.compile(r"[A-Za-z0-9_.+-]{1,40}@[A-Za-z0-9-]{1,40}(\.[A-Za-z0-9-]{1,40})+")
KINDS = {"server": _NAMED, "plant": _NAMED, "operator": (_ADDRESS, "an e-mail address")}
_ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,60}")
_FINGERPRINT = re.compile(r"SHA256(:[0-9A-F]{2}){32}")
WARNING = 30  # days before the end
CROSS = "cross.pem"  # beside the new authority's key, until the change is over


@dataclass(frozen=True)
class Participant:
    """One party: a server, a plant or an operator; by host name, unit's name or e-mail address."""

    name: str
    kind: str
    organisation: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"federation: a participant is one of {', '.join(KINDS)}, got {self.kind!r}")
        pattern, needs = KINDS[self.kind]
        if not isinstance(self.name, str) or not pattern.fullmatch(self.name):
            raise OptionError(f"federation: the name of a {self.kind} must be {needs}, got {self.name!r}")
        if self.kind == "plant" and self.name.split(".")[0] == "server":
            raise OptionError("federation: a plant cannot be called 'server': that is the server's name in the network")
        if not isinstance(self.organisation, str) or not _ORGANISATION.fullmatch(self.organisation):
            raise OptionError(
                f"federation: the organisation of {self.name!r} must be letters, digits and underscores, "
                f"got {self.organisation!r}"
            )


def check_federation(name: str) -> None:
    """Refuse a name of a federation that could not stand in a certificate."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"federation: its name must be letters, digits, dots, dashes and underscores, got {name!r:.120}"
        )


def check_fingerprint(text: str) -> str:
    """The fingerprint of an authority as it was told; OptionError if it cannot be one."""
    found = text.strip().upper()
    if not _FINGERPRINT.fullmatch(found):
        raise OptionError(
            f"federation: a fingerprint is SHA256 and 32 pairs of hexadecimal digits with colons between, "
            f"got {text!r:.120}"
        )
    return found


def fingerprint_of(pem: str) -> str:
    """SHA-256 fingerprint of a certificate's text; ValueError if it is none."""
    return "SHA256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest().hex(":").upper()


def fingerprint(path: Path) -> str:
    """The same of a file."""
    try:
        return fingerprint_of(path.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise StorageError(f"federation: {path} is not a certificate ({error})") from error


def ends(pem: bytes) -> datetime:
    """When a certificate ends (the first of a chain)."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise StorageError(f"federation: this is not a certificate ({error})") from error


def ends_of(path: Path) -> datetime:
    """The same of a file."""
    try:
        return ends(path.read_bytes())
    except OSError as error:
        raise StorageError(f"federation: {path} is not a certificate ({error})") from error


def lasting(of: Mapping[str, datetime], now: datetime | None = None) -> list[dict[str, Any]]:
    """Certificates by name: when each ends, in how many days, and what is to be said of it ("": nothing yet)."""
    out: list[dict[str, Any]] = []
    for name, end in of.items():
        days = (end - (now or datetime.now(UTC))).days
        when = f"ends in {days} days" if days >= 0 else "has ended"
        warning = f"the certificate of {name} {when} ({end:%Y-%m-%d}): renew it" if days < WARNING else ""
        out.append({"name": name, "ends": end.isoformat(), "days": days, "warning": warning})
    return out


# ---- another authority


def vouch(old: Path, new: Path) -> bytes:
    """The cross certificate, by the folders of both authorities."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    before, after = (x509.load_pem_x509_certificate((place / "rootCA.pem").read_bytes()) for place in (old, new))
    builder = (
        x509.CertificateBuilder(before.subject, after.subject, after.public_key(), x509.random_serial_number())
        .not_valid_before(after.not_valid_before_utc)
        .not_valid_after(min(before.not_valid_after_utc, after.not_valid_after_utc))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(before.public_key()), critical=False)  # type: ignore[arg-type]
    )
    for extension in after.extensions:
        if not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(keys.load(old / "rootCA.key"), hashes.SHA256()).public_bytes(Encoding.PEM)


def check_vouched(cross: bytes, known: bytes, new: bytes) -> None:
    """Refuse a new authority unless the known one vouches for it; all three are certificates from outside or pinned."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        between, trusted, offered = (x509.load_pem_x509_certificate(pem) for pem in (cross, known, new))
        between.verify_directly_issued_by(trusted)
        same = (between.subject, between.public_key()) == (offered.subject, offered.public_key())
        if not same or not between.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ValueError("it vouches for another one")
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise StorageError(
            "the welcome comes from another authority than this plant knows, and that one does not vouch for it "
            f"({type(error).__name__}): ask the coordinator, by telephone"
        ) from error
