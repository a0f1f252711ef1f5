"""Private keys at rest: encrypted under a passphrase if there is one, and plain only in memory.

The passphrase is the first line of the file that ``COUNTERFLOW_KEY_PASSPHRASE_FILE`` names. With it, a key ``x.key``
is kept as ``x.key.encrypted`` (PKCS 8). FLARE can read plain files only: while a key is used, ``x.key`` is a link into
the memory of the process that has unlocked it. Nothing plain is on a disk, and it goes with that process.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from counterflow.errors import OptionError, StorageError
from counterflow.files import blaming, write_whole

VARIABLE = "COUNTERFLOW_KEY_PASSPHRASE_FILE"
ENCRYPTED = ".encrypted"
SHORTEST = 12  # characters of a passphrase
BITS = 2048, 8192  # the fewest and most of a key


def passphrase() -> bytes | None:
    """What keys are encrypted under; None if nothing is said."""
    place = os.environ.get(VARIABLE, "")
    if not place:
        return None
    path = Path(place)
    try:
        text, mode = path.read_bytes().split(b"\n")[0].strip(), path.stat().st_mode
    except OSError as error:
        raise StorageError(f"{VARIABLE}: {place!r} cannot be read: {error.strerror or error}.") from error
    if mode & 0o077:
        raise OptionError(f"{VARIABLE}: others may read {place!r}: chmod 600 {place}", code="passphrase")
    if len(text) < SHORTEST:
        raise OptionError(f"{VARIABLE}: the first line of {place!r} has {len(text)} characters, {SHORTEST} are needed.")
    return text


def new() -> RSAPrivateKey:
    """A new private key."""
    return rsa.generate_private_key(65537, BITS[0])


def keep(key: RSAPrivateKey, path: Path) -> None:
    """Write a private key into a file."""
    phrase = passphrase()
    with blaming(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(_locked(path) if phrase else path, _pem(key, phrase), durable=True)


def load(path: Path) -> RSAPrivateKey:
    """A private key, encrypted or not."""
    locked = _locked(path)
    encrypted = locked.exists()
    phrase = passphrase() if encrypted else None
    if encrypted and phrase is None:
        raise OptionError(f"{locked} is encrypted: name the file of its passphrase by {VARIABLE}.", code="passphrase")
    try:
        key = load_pem_private_key((locked if encrypted else path).read_bytes(), phrase)
        if not isinstance(key, RSAPrivateKey):
            raise TypeError("it is not an RSA key")
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        if encrypted and isinstance(error, ValueError):
            raise OptionError(f"{locked}: the passphrase of {VARIABLE} does not open it.", code="passphrase") from error
        raise StorageError(f"{path}: cannot be read ({error}); put it back, or join anew.") from error
    return key


@contextmanager
def unlocked(*paths: Path) -> Iterator[None]:
    """While inside, each encrypted key can be read at its own place; one that is not encrypted stays as it is."""
    with ExitStack() as stack:
        for path in paths:
            if not _locked(path).exists():
                continue
            memory = os.memfd_create(path.name)
            stack.callback(os.close, memory)
            os.write(memory, _pem(load(path)))
            link = f"/proc/{os.getpid()}/fd/{memory}"
            with blaming(path):
                path.unlink(missing_ok=True)  # the link of a process that was killed
                path.symlink_to(link)
            stack.callback(_unlink, path, link)
        yield


def public(key: RSAPublicKey) -> str:
    """A public key as text."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo).hex()


def from_public(text: str) -> RSAPublicKey:
    """The public key that a text from outside holds."""
    try:
        key = load_der_public_key(bytes.fromhex(text))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StorageError(f"it holds no public key ({error})") from error
    if not isinstance(key, RSAPublicKey) or not BITS[0] <= key.key_size <= BITS[1]:
        raise StorageError(f"its key is not an RSA key of {BITS[0]} to {BITS[1]} bits")
    return key


def fingerprint(key: RSAPublicKey) -> str:
    """What two people compare by telephone."""
    return "SHA256:" + hashlib.sha256(bytes.fromhex(public(key))).digest().hex(":").upper()


def _locked(path: Path) -> Path:
    return path.with_name(path.name + ENCRYPTED)


def _unlink(path: Path, link: str) -> None:
    if path.is_symlink() and os.readlink(path) == link:
        path.unlink()


def _pem(key: RSAPrivateKey, phrase: bytes | None = None) -> bytes:
    """A key as text, in plain or under a passphrase."""
    how = NoEncryption() if phrase is None else BestAvailableEncryption(phrase)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
