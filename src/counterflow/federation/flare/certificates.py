"""Keys and certificates: every participant makes its own key, the coordinator only signs.

::

    coordinator   found(folder, ...)               authority and profile of the federation; prints the fingerprint
    participant   request(folder, ...)             private key (stays here) and a request zip, to be sent
    coordinator   approve(folder, request_zip, who)   signed zip, to be sent back
    participant   assemble(signed, ...)            a kit, if the authority has the fingerprint told by other means

The work is done by FLARE's own command line in a child process: it ends the process on errors, and prints.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.flare import require_flare

KINDS = {"server": "server", "plant": "client", "operator": "admin"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,60}")
_OPERATOR = re.compile(r"[A-Za-z0-9_.+-]{1,40}@[A-Za-z0-9-]{1,40}(\.[A-Za-z0-9-]{1,40})+")
_FINGERPRINT = re.compile(r"SHA256(:[0-9A-F]{2}){32}")
_LARGEST_REQUEST = 100_000
_SECONDS = 120  # none of the commands takes more than two


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
    >>> from counterflow.federation.flare.certificates import Participant
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
            needs = (
                "an e-mail address"
                if self.kind == "operator"
                else "1 to 63 letters, digits, dots, dashes and underscores, as it stands in a certificate"
            )
            raise OptionError(f"federation: the name of a {self.kind} must be {needs}, got {self.name!r}")
        if not isinstance(self.organisation, str) or not _ORGANISATION.fullmatch(self.organisation):
            raise OptionError(
                f"federation: the organisation of {self.name!r} must be letters, digits and underscores, "
                f"got {self.organisation!r}"
            )


def found(folder: Path, name: str, host: str, port: int, admin_port: int | None = None) -> str:
    """Make the federation's authority in ``folder``; returns its fingerprint, to be told to every plant by other means.

    Parameters
    ----------
    folder : becomes the coordinator's: ``profile.yml`` and ``authority/`` with the key that signs.
    name : of the federation.
    host, port : where plants reach the server; operators use ``admin_port`` (default: the same).
    """
    for what, number in (("port", port), ("admin_port", admin_port if admin_port is not None else port)):
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 65535:
            raise OptionError(f"federation: {what} must be a whole number from 1 to 65535, got {number!r}")
    if not _NAME.fullmatch(name):
        raise OptionError(f"federation: the name must be letters, digits, dots, dashes and underscores, got {name!r}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    profile = {
        "name": name,
        "scheme": "grpc",
        "connection_security": "mtls",
        "server": {"host": host, "fed_learn_port": port, "admin_port": admin_port or port},
    }
    _write_yaml(folder / "profile.yml", profile)
    _flare("cert", "init", "--profile", str(folder / "profile.yml"), "-o", str(folder / "authority"))
    return fingerprint(folder / "authority" / "rootCA.pem")


def request(folder: Path, federation: str, who: Participant) -> Path:
    """Make a private key in ``folder`` and a request for a certificate; returns the zip to send to the coordinator."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    described: dict[str, Any] = {"name": who.name, "org": who.organisation, "type": KINDS[who.kind]}
    if who.kind == "operator":
        described["role"] = "lead"  # the only role that our policies let submit
    _write_yaml(folder / "participant.yml", {"name": federation, "participants": [described]})
    _flare("cert", "request", "-p", str(folder / "participant.yml"), "--out", str(folder / "request"))
    return folder / "request" / f"{who.name}.request.zip"


def requested(request_zip: Path) -> Participant:
    """Who asks for a certificate, as the request says."""
    import zipfile

    try:
        with zipfile.ZipFile(request_zip) as archive, archive.open("request.json") as file:
            read = json.loads(file.read(_LARGEST_REQUEST))
        kind = {"client": "plant", "server": "server"}.get(read["cert_type"], "operator")
        return Participant(read["name"], kind, read["org"])
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise StorageError(f"federation: {request_zip} is not a request for a certificate ({error})") from error


def approve(folder: Path, request_zip: Path, who: Participant) -> Path:
    """Sign a request with the authority in the coordinator's ``folder``; returns the zip that goes back.

    Parameters
    ----------
    who : whom the coordinator means to admit; a request that says anything else is refused, and so is a name that has
        a certificate already: two holders of one name could speak for each other. After ``remove``-ing a participant,
        take its zip out of ``approved/`` to let it come back.
    """
    asks = requested(request_zip)
    if asks != who:
        raise OptionError(f"federation: the request is of {asks}, the approval of {who}; ask who sent it")
    signed = folder / "approved" / f"{who.name}.signed.zip"
    if signed.exists():
        raise OptionError(f"federation: {who.name!r} has a certificate already ({signed}); take another name")
    signed.parent.mkdir(parents=True, exist_ok=True)
    _flare(
        *("cert", "approve", str(request_zip), "-c", str(folder / "authority")),
        *("--profile", str(folder / "profile.yml"), "--out", str(signed)),
    )
    return signed


def assemble(folder: Path, signed_zip: Path, expected_fingerprint: str) -> Path:
    """Join a signed certificate with the key in ``folder``; returns the kit, which ``kit`` has yet to harden.

    The authority's certificate comes with the signed zip and is trusted only if it has ``expected_fingerprint``.
    """
    if not _FINGERPRINT.fullmatch(expected_fingerprint):
        raise OptionError(
            f"federation: a fingerprint is SHA256 and 32 pairs of hexadecimal digits with colons between, "
            f"got {expected_fingerprint!r:.120}"
        )
    done = _flare(
        *("package", str(signed_zip), "-w", str(folder / "kits"), "--request-dir", str(folder / "request")),
        *("--fingerprint", expected_fingerprint),
    )
    return Path(done["output_dir"])


def fingerprint(certificate: Path) -> str:
    """SHA-256 fingerprint of a certificate in PEM form.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from counterflow.federation.flare.certificates import fingerprint
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "c.pem"
    >>> _ = path.write_text("-----BEGIN CERTIFICATE-----\\nAAEC\\n-----END CERTIFICATE-----\\n")
    >>> fingerprint(path)[:15]
    'SHA256:AE:4B:32'
    """
    import hashlib
    import ssl

    try:
        der = ssl.PEM_cert_to_DER_cert(certificate.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise StorageError(f"federation: {certificate} is not a certificate ({error})") from error
    return "SHA256:" + ":".join(f"{byte:02X}" for byte in hashlib.sha256(der).digest())


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")  # JSON is YAML, and has no surprises


def _flare(*arguments: str) -> dict[str, Any]:
    """Run one of FLARE's commands; the data of its answer."""
    require_flare()
    command = [sys.executable, "-P", "-m", "nvflare.cli", "--format", "json", *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"federation: 'nvflare {arguments[0]}' gave no answer in {_SECONDS} s") from error
    answer = _answer(done.stdout)
    if done.returncode or answer.get("status") != "ok":
        said = answer.get("message") or (done.stdout + done.stderr).strip()[-600:]
        raise StorageError(f"federation: 'nvflare {' '.join(arguments[:2])}' failed: {said}")
    data = answer.get("data")
    return data if isinstance(data, dict) else {}


def _answer(text: str) -> dict[str, Any]:
    """The last line of what a command printed, which is JSON."""
    try:
        read = json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return read if isinstance(read, dict) else {}
