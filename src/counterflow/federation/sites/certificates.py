"""Certificates: whose they are, who issues them, when they end, and how one authority succeeds another.

Every participant makes its own key, the coordinator's authority only signs. When the authority changes, the old one
signs the new one's key: a *cross certificate*. Certificates of the new authority travel with it, so that whoever trusts
the old one accepts them, and whoever trusts the new one does anyway. A plant takes the new one over because the one
that it knows has signed it; nobody has to tell it a fingerprint again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from counterflow.errors import OptionError, StorageError
from counterflow.files import write_whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NAMED = _NAME, "1 to 63 letters, digits, dots, dashes and underscores, as it stands in a certificate"
_ADDRESS = re.compile(r"[A-Za-z0-9_.+-]{1,40}@[A-Za-z0-9-]{1,40}(\.[A-Za-z0-9-]{1,40})+")
KINDS = {  # and the role that stands in the certificate, in the engine's words
    "server": (*_NAMED, "server"), "plant": (*_NAMED, "client"), "operator": (_ADDRESS, "an e-mail address", "lead")
}  # fmt: skip
_ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,60}")
_FINGERPRINT = re.compile(r"SHA256(:[0-9A-F]{2}){32}")
DAYS, AUTHORITY_DAYS = 365, 3650  # for which certificates of members and of the authority are valid
WARNING = 30  # days before the end


@dataclass(frozen=True)
class Participant:
    """One party: a server, a plant or an operator; by host name, unit's name or e-mail address."""

    name: str
    kind: str
    organisation: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"federation: a participant is one of {', '.join(KINDS)}, got {self.kind!r}")
        pattern, needs, _ = KINDS[self.kind]
        if not pattern.fullmatch(self.name):
            raise OptionError(f"federation: the name of a {self.kind} must be {needs}, got {self.name!r}")
        if self.kind == "plant" and self.name.split(".")[0] == "server":
            raise OptionError("federation: a plant cannot be called 'server': that is the server's name in the network")
        if not _ORGANISATION.fullmatch(self.organisation):
            raise OptionError(
                f"federation: the organisation of {self.name!r} must be letters, digits and underscores, "
                f"got {self.organisation!r}"
            )


@dataclass(frozen=True)
class Kit:
    """The folder in which an engine finds a participant's key and certificates."""

    folder: Path
    side: str  # "server" or "client"

    @property
    def key(self) -> Path:
        return self.folder / "startup" / f"{self.side}.key"

    @property
    def certificate(self) -> Path:
        """Its own, and behind it the cross certificate while authorities change."""
        return self.folder / "startup" / f"{self.side}.crt"

    @property
    def authority(self) -> Path:
        """The authority that it trusts."""
        return self.folder / "startup" / "rootCA.pem"


def check_federation(name: str) -> None:
    """Refuse a name of a federation that could not stand in a certificate."""
    if not _NAME.fullmatch(name):
        raise OptionError(f"federation: its name must be {_NAMED[1]}, got {name!r:.120}")


def check_fingerprint(text: str) -> str:
    """The fingerprint of an authority as it was told; OptionError if it cannot be one."""
    found = text.strip().upper()
    if not _FINGERPRINT.fullmatch(found):
        raise OptionError(
            f"federation: a fingerprint is SHA256 and 32 pairs of hexadecimal digits with colons between, "
            f"got {text!r:.120}"
        )
    return found


def fingerprint(certificate: Certificate) -> str:
    """SHA-256 fingerprint of a certificate."""
    return "SHA256:" + certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def read(path: Path) -> Certificate:
    """The certificate in a file, the first of a chain."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(f"federation: {path} is not a certificate ({error})") from error


def text(certificate: Certificate | None) -> str:
    """A certificate in a line; "" of none."""
    return "" if certificate is None else certificate.public_bytes(Encoding.DER).hex()


def from_text(given: str) -> Certificate:
    """The certificate that a text from outside holds."""
    try:
        return x509.load_der_x509_certificate(bytes.fromhex(given))
    except ValueError as error:
        raise StorageError(f"it holds no certificate ({error})") from error


def write(path: Path, *chain: Certificate | None) -> None:
    """Replace a file of certificates."""
    write_whole(path, b"".join(one.public_bytes(Encoding.PEM) for one in chain if one is not None), durable=True)


def public_key(certificate: Certificate) -> RSAPublicKey:
    """Whose certificate it is; all of ours are of RSA keys."""
    key = certificate.public_key()
    if not isinstance(key, RSAPublicKey):
        raise StorageError("federation: a certificate is not of an RSA key")
    return key


def lasting(of: Mapping[str, datetime], now: datetime | None = None) -> list[dict[str, Any]]:
    """Certificates by name: when each ends, in how many days, and what is to be said of it ("": nothing yet)."""
    out: list[dict[str, Any]] = []
    for name, end in of.items():
        days = (end - (now or datetime.now(UTC))).days
        when = f"ends in {days} days" if days >= 0 else "has ended"
        warning = f"the certificate of {name} {when} ({end:%Y-%m-%d}): renew it" if days < WARNING else ""
        out.append({"name": name, "ends": end.isoformat(), "days": days, "warning": warning})
    return out


# ---- what an authority signs


def found(federation: str, key: RSAPrivateKey) -> Certificate:
    """The certificate of a new authority, signed by itself."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, federation)])
    return _signed(name, key.public_key(), name, key, _after(AUTHORITY_DAYS), authority=True)


def issue(authority: Certificate, key: RSAPrivateKey, who: Participant, public: RSAPublicKey) -> Certificate:
    """A member's certificate."""
    return _signed(_name(who), public, authority.subject, key, _after(DAYS))


def vouch(old: Certificate, key: RSAPrivateKey, new: Certificate) -> Certificate:
    """The cross certificate, signed with the old authority's key."""
    until = min(old.not_valid_after_utc, new.not_valid_after_utc)
    return _signed(new.subject, public_key(new), old.subject, key, until, authority=True)


def check_vouched(cross: Certificate | None, known: Certificate, new: Certificate) -> None:
    """Refuse a new authority unless the known one vouches for it."""
    try:
        if cross is None or (cross.subject, cross.public_key()) != (new.subject, new.public_key()):
            raise ValueError("it does not vouch for this one")
        cross.verify_directly_issued_by(known)
        if not cross.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ValueError("it vouches for a member, not for an authority")
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise StorageError(
            "the welcome comes from another authority than this plant knows, and that one does not vouch for it "
            f"({type(error).__name__}): ask the coordinator, by telephone"
        ) from error


def check_issued(certificate: Certificate, authority: Certificate, who: Participant, public: RSAPublicKey) -> None:
    """Refuse a certificate that this authority has not issued to this participant and its key."""
    try:
        certificate.verify_directly_issued_by(authority)
        if (certificate.subject, certificate.public_key()) != (_name(who), public):
            raise ValueError("it is another's, or for another key")
    except (ValueError, TypeError, InvalidSignature) as error:
        raise StorageError(
            f"the certificate in the welcome is not the authority's for {who.name!r} ({error}): ask for the newest one"
        ) from error


def _name(who: Participant) -> x509.Name:
    told = {
        NameOID.COMMON_NAME: who.name, NameOID.ORGANIZATION_NAME: who.organisation,
        NameOID.UNSTRUCTURED_NAME: KINDS[who.kind][2],
    }  # fmt: skip
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in told.items()])


def _after(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _signed(
    subject: x509.Name, public: RSAPublicKey, issuer: x509.Name, key: RSAPrivateKey, end: datetime,
    authority: bool = False,
) -> Certificate:  # fmt: skip
    common = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
    try:
        called: x509.GeneralName = x509.IPAddress(ip_address(common))
    except ValueError:
        called = x509.DNSName(common)
    usage = dict.fromkeys(
        ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    usage |= {"digital_signature": True, "key_encipherment": not authority}
    usage |= {"key_cert_sign": authority, "crl_sign": authority}
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), False),
        (x509.BasicConstraints(authority, None), True),
        (x509.KeyUsage(**usage), True),
        (x509.SubjectAlternativeName([called]), False),
    ]
    if not authority:  # a site's own processes speak to each other with its certificate, so that it serves, too
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        extensions.append((x509.ExtendedKeyUsage(purposes), False))
    builder = x509.CertificateBuilder(issuer, subject, public, x509.random_serial_number(), datetime.now(UTC), end)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256())
