"""Certificates: whose they are, what they are called by, and when they end.

Every participant makes its own key, the coordinator only signs; the engine does it (``engine.Engine``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from counterflow.errors import OptionError, StorageError

KINDS = ("server", "plant", "operator")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,60}")
_OPERATOR = re.compile(r"[A-Za-z0-9_.+-]{1,40}@[A-Za-z0-9-]{1,40}(\.[A-Za-z0-9-]{1,40})+")
_FINGERPRINT = re.compile(r"SHA256(:[0-9A-F]{2}){32}")
WARNING = 30  # days before the end


@dataclass(frozen=True)
class Participant:
    """One party: a server, a plant or an operator.

    Parameters
    ----------
    name : of a server, the host name that plants dial; of a plant, its unit's name; of an operator, an e-mail address.
    kind : "server", "plant" or "operator".
    organisation : letters, digits and underscores.

    Examples
    --------
    >>> Participant("boiler", "plant", "steam_works").kind
    'plant'
    """

    name: str
    kind: str
    organisation: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"federation: a participant is one of {', '.join(KINDS)}, got {self.kind!r}")
        pattern = _OPERATOR if self.kind == "operator" else _NAME
        if not isinstance(self.name, str) or not pattern.fullmatch(self.name):
            needs = "1 to 63 letters, digits, dots, dashes and underscores, as it stands in a certificate"
            needs = "an e-mail address" if self.kind == "operator" else needs
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
    """The fingerprint of an authority as it was told; OptionError if it cannot be one.

    Examples
    --------
    >>> check_fingerprint("sha256" + ":0a" * 32)[:12]
    'SHA256:0A:0A'
    """
    found = text.strip().upper()
    if not _FINGERPRINT.fullmatch(found):
        raise OptionError(
            f"federation: a fingerprint is SHA256 and 32 pairs of hexadecimal digits with colons between, "
            f"got {text!r:.120}"
        )
    return found


def fingerprint(certificate: Path) -> str:
    """SHA-256 fingerprint of a certificate in PEM form.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "c.pem"
    >>> _ = path.write_text("-----BEGIN CERTIFICATE-----\\nAAEC\\n-----END CERTIFICATE-----\\n")
    >>> fingerprint(path)[:15]
    'SHA256:AE:4B:32'
    """
    try:
        return fingerprint_of(certificate.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise StorageError(f"federation: {certificate} is not a certificate ({error})") from error


def ends(pem: str | bytes) -> datetime:
    """When a certificate ends (the first of a chain)."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem.encode() if isinstance(pem, str) else pem).not_valid_after_utc
    except ValueError as error:
        raise StorageError(f"federation: this is not a certificate ({error})") from error


def ends_of(path: Path) -> datetime:
    """The same of a file."""
    try:
        return ends(path.read_bytes())
    except OSError as error:
        raise StorageError(f"federation: {path} is not a certificate ({error})") from error


def lasting(of: Mapping[str, datetime], now: datetime | None = None) -> list[dict[str, Any]]:
    """Certificates by name: when each ends, in how many days, and what is to be said of it ("": nothing yet).

    Examples
    --------
    >>> from datetime import UTC, datetime
    >>> (told,) = lasting({"plant boiler": datetime(2027, 5, 9, tzinfo=UTC)}, datetime(2027, 5, 1, tzinfo=UTC))
    >>> told["days"], told["warning"]
    (8, 'the certificate of plant boiler ends in 8 days (2027-05-09): renew it')
    """
    out: list[dict[str, Any]] = []
    for name, end in of.items():
        days = (end - (now or datetime.now(UTC))).days
        when = f"ends in {days} days" if days >= 0 else "has ended"
        warning = f"the certificate of {name} {when} ({end:%Y-%m-%d}): renew it" if days < WARNING else ""
        out.append({"name": name, "ends": end.isoformat(), "days": days, "warning": warning})
    return out


def fingerprint_of(pem: str) -> str:
    """The same of the text of a certificate; ValueError if it is none."""
    import hashlib
    import ssl

    return "SHA256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest().hex(":").upper()
