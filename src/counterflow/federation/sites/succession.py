"""A new authority takes over from the old one, which vouches for it.

The old authority signs the new one's key: a *cross certificate*. Certificates of the new authority travel with it, so
that whoever trusts the old one accepts them, and whoever trusts the new one does anyway. A plant takes the new one over
because the one that it knows has signed it; nobody has to tell it a fingerprint again.
"""

from __future__ import annotations

from pathlib import Path

from counterflow.errors import CounterflowError, StorageError
from counterflow.federation.sites import keys

FILE = "cross.pem"  # beside the new authority's key, until the change is over


def vouch(old: Path, new: Path) -> bytes:
    """The cross certificate, by the folders of both authorities."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    before, after = (x509.load_pem_x509_certificate((place / "rootCA.pem").read_bytes()) for place in (old, new))
    key = keys.load(old / "rootCA.key")
    builder = (
        x509.CertificateBuilder(before.subject, after.subject, after.public_key(), x509.random_serial_number())
        .not_valid_before(after.not_valid_before_utc)
        .not_valid_after(min(before.not_valid_after_utc, after.not_valid_after_utc))
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(before.public_key()), critical=False)  # type: ignore[arg-type]
    )
    for extension in after.extensions:
        if not isinstance(extension.value, x509.AuthorityKeyIdentifier):
            builder = builder.add_extension(extension.value, extension.critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def check(cross: bytes, known: bytes, new: bytes) -> None:
    """Refuse a new authority unless the known one vouches for it; all three are certificates from outside or pinned."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        between, trusted, offered = (x509.load_pem_x509_certificate(pem) for pem in (cross, known, new))
        between.verify_directly_issued_by(trusted)
        same = (between.subject, between.public_key()) == (offered.subject, offered.public_key())
        if not same or not between.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise StorageError("the authority that was known has signed another one")
    except CounterflowError:
        raise
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise StorageError(
            "the welcome comes from another authority than this plant knows, and that one does not vouch for it "
            f"({type(error).__name__}): ask the coordinator, by telephone"
        ) from error
