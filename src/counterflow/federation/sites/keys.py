"""Private keys at rest: encrypted under a passphrase if there is one, and plain only in memory.

The passphrase is the first line of the file that ``COUNTERFLOW_KEY_PASSPHRASE_FILE`` names. With it, a key ``x.key``
is kept as ``x.key.encrypted`` (PKCS 8). FLARE can read plain files only: while a key is used, ``x.key`` is a link into
the memory of the process that has unlocked it. Nothing plain is on a disk, and it goes with that process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow.errors import OptionError, StorageError
from counterflow.files import blaming, write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

VARIABLE = "COUNTERFLOW_KEY_PASSPHRASE_FILE"
ENCRYPTED = ".encrypted"
SHORTEST = 12  # characters of a passphrase
_MEMORY = Path("/dev/shm")


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


def load(path: Path) -> RSAPrivateKey:
    """A private key, encrypted or not."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    locked = _locked(path)
    encrypted = locked.exists()
    phrase = passphrase() if encrypted else None
    if encrypted and phrase is None:
        raise OptionError(f"{locked} is encrypted: name the file of its passphrase by {VARIABLE}.", code="passphrase")
    try:
        key = load_pem_private_key((locked if encrypted else path).read_bytes(), phrase)
        if not isinstance(key, RSAPrivateKey):
            raise TypeError("it is not a key that FLARE makes")
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        if encrypted and isinstance(error, ValueError):
            raise OptionError(f"{locked}: the passphrase of {VARIABLE} does not open it.", code="passphrase") from error
        raise StorageError(f"{path}: cannot be read ({error}); join anew.") from error
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
            os.write(memory, _pem(path))
            link = f"/proc/{os.getpid()}/fd/{memory}"
            with blaming(path):
                path.unlink(missing_ok=True)  # the link of a process that was killed
                path.symlink_to(link)
            stack.callback(_unlink, path, link)
        yield


@contextmanager
def workshop(folder: Path, bring: str = "") -> Iterator[Path]:
    """A place for FLARE's commands that make or copy keys: the folder itself, or, with a passphrase, one in memory.

    What is made in memory is put into ``folder`` at the end, its keys encrypted. ``bring``: a part of ``folder`` that
    is needed there, its keys in plain.
    """
    sources = sorted((folder / bring).rglob(f"*{ENCRYPTED}")) if bring else []
    phrase = passphrase()
    if phrase is None and not sources:
        yield folder
        return
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else folder
    with tempfile.TemporaryDirectory(prefix="counterflow-", dir=memory) as made:
        place = Path(made)
        if bring:
            shutil.copytree(folder / bring, place / bring, ignore=shutil.ignore_patterns(f"*{ENCRYPTED}"))
        for plain in (source.with_suffix("") for source in sources):
            write_whole(place / plain.relative_to(folder), _pem(plain))
        yield place
        for key in place.rglob("*.key"):
            write_whole(_locked(key), _pem(key, phrase))
            key.unlink()
        for part in place.iterdir():
            if part.name != bring and not (folder / part.name).exists():
                with blaming(folder / part.name):
                    shutil.move(part, folder / part.name)


def _locked(path: Path) -> Path:
    return path.with_name(path.name + ENCRYPTED)


def _unlink(path: Path, link: str) -> None:
    if path.is_symlink() and os.readlink(path) == link:
        path.unlink()


def _pem(path: Path, phrase: bytes | None = None) -> bytes:
    """A key as text, in plain or under a passphrase."""
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    how = NoEncryption() if phrase is None else BestAvailableEncryption(phrase)
    return load(path).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
