"""Keys and certificates: every participant makes its own key, the coordinator only signs.

::

    coordinator   establish(folder, ...)           authority and profile of the federation, and its own participants
    participant   request(folder, ...)             private key (stays here) and a request zip, to be sent
    coordinator   approve(folder, request_zip, who)   signed zip, to be sent back
    participant   assemble(signed, ...)            a kit, if the authority has the fingerprint told by other means

The work is done by FLARE's own commands in a child process (``provisioning``): they end the process on errors, and
print. ``establish`` does all steps for the coordinator's own participants with two children.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.flare import require_flare
from counterflow.federation.sites import keys

KINDS = {"server": "server", "plant": "client", "operator": "admin"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,60}")
_OPERATOR = re.compile(r"[A-Za-z0-9_.+-]{1,40}@[A-Za-z0-9-]{1,40}(\.[A-Za-z0-9-]{1,40})+")
_FINGERPRINT = re.compile(r"SHA256(:[0-9A-F]{2}){32}")
_LARGEST_REQUEST = 100_000
_SECONDS = 120  # none of the commands takes more than two
DAYS, AUTHORITY_DAYS = 365, 3650  # for which certificates of members and of the authority are valid
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


def establish(
    folder: Path, name: str, host: str, port: int, parties: Mapping[Path, Participant]
) -> tuple[str, dict[str, Path]]:
    """Found a federation and admit the coordinator's own participants, each with a folder of its own.

    Returns
    -------
    The authority's fingerprint, and {participant: its kit, which ``kit`` has yet to harden}.
    """
    _flare(folder, _founding(folder, name, host, port), *(_requesting(own, name, who) for own, who in parties.items()))
    print_of_authority = fingerprint(folder / "authority" / "rootCA.pem")
    (folder / "approved").mkdir(exist_ok=True, mode=0o700)
    commands: list[tuple[str, ...]] = []
    for own, who in parties.items():
        signed = folder / "approved" / f"{who.name}.signed.zip"
        commands.append(_approving(folder, own / "request" / f"{who.name}.request.zip", signed))
        commands.append(_assembling(own, signed, print_of_authority))
    done = _flare(folder, *commands)
    kits = (Path(answer["output_dir"]) for answer in done[1::2])
    return print_of_authority, dict(zip((who.name for who in parties.values()), kits, strict=True))


def found_again(folder: Path, name: str) -> None:
    """Another authority of the same federation, in ``folder / name``."""
    _flare(folder, _authority(folder, name))


def request(folder: Path, federation: str, who: Participant) -> Path:
    """Make a private key in ``folder`` and a request for a certificate; returns the zip to send to the coordinator."""
    _flare(folder, _requesting(folder, federation, who))
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
        a certificate already: two holders of one name could speak for each other. ``CoordinatorFolder.remove`` takes
        a participant's zip out of ``approved/``, so that it can come back with another key.
    """
    return approve_all(folder, {request_zip: who})[who.name]


def approve_all(folder: Path, requests: Mapping[Path, Participant]) -> dict[str, Path]:
    """The same of several, with one child: {participant: the zip that goes back}."""
    made: dict[str, Path] = {}
    for request_zip, who in requests.items():
        asks = requested(request_zip)
        if asks != who:
            raise OptionError(f"federation: the request is of {asks}, the approval of {who}; ask who sent it")
        signed = made[who.name] = folder / "approved" / f"{who.name}.signed.zip"
        if signed.exists():
            raise OptionError(f"federation: {who.name!r} has a certificate already ({signed}); take another name")
        signed.parent.mkdir(parents=True, exist_ok=True)
    with keys.unlocked(folder / "authority" / "rootCA.key"):
        _flare(folder, *(_approving(folder, asked, made[who.name]) for asked, who in requests.items()))
    return made


def assemble(folder: Path, signed_zip: Path, expected_fingerprint: str, into: str = "kits") -> Path:
    """Join a signed certificate with the key in ``folder``; returns the kit, which ``kit`` has yet to harden.

    The authority's certificate comes with the signed zip and is trusted only if it has ``expected_fingerprint``.
    """
    (done,) = _flare(folder, _assembling(folder, signed_zip, check_fingerprint(expected_fingerprint), into))
    return Path(done["output_dir"])


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


# ---- FLARE's commands


def _founding(folder: Path, name: str, host: str, port: int) -> tuple[str, ...]:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise OptionError(f"federation: port must be a whole number from 1 to 65535, got {port!r}")
    check_federation(name)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": name, "scheme": "grpc", "connection_security": "mtls", "server": server}
    _write_yaml(folder / "profile.yml", profile)
    return _authority(folder, "authority")


def _authority(folder: Path, name: str) -> tuple[str, ...]:
    made = ("cert", "init", "--profile", str(folder / "profile.yml"), "-o", str(folder / name))
    return (*made, "--valid-days", str(AUTHORITY_DAYS))


def _requesting(folder: Path, federation: str, who: Participant) -> tuple[str, ...]:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    described: dict[str, Any] = {"name": who.name, "org": who.organisation, "type": KINDS[who.kind]}
    if who.kind == "operator":
        described["role"] = "lead"  # the only role that our policies let submit
    _write_yaml(folder / "participant.yml", {"name": federation, "participants": [described]})
    return ("cert", "request", "-p", str(folder / "participant.yml"), "--out", str(folder / "request"))


def _approving(folder: Path, request_zip: Path, signed: Path) -> tuple[str, ...]:
    approving = ("cert", "approve", str(request_zip), "-c", str(folder / "authority"), "--valid-days", str(DAYS))
    return (*approving, "--profile", str(folder / "profile.yml"), "--out", str(signed))


def _assembling(folder: Path, signed_zip: Path, expected_fingerprint: str, into: str = "kits") -> tuple[str, ...]:
    package = ("package", str(signed_zip), "-w", str(folder / into), "--request-dir", str(folder / "request"))
    return (*package, "--fingerprint", expected_fingerprint)


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")  # JSON is YAML, and has no surprises


def _flare(folder: Path, *commands: Sequence[str]) -> list[dict[str, Any]]:
    """Run FLARE's commands one after the other in one child; the data of their answers."""
    require_flare()
    home = folder.absolute() / ".flare"  # FLARE keeps notes in ~/.nvflare: they are this party's, not the user's
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NVFL"))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-m", f"{__package__}.provisioning"],
            input=json.dumps([list(command) for command in commands]), capture_output=True, text=True,
            timeout=_SECONDS, env={**environment, "HOME": str(home)},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"federation: FLARE's commands gave no answer in {_SECONDS} s") from error
    try:
        answers = [json.loads(line) for line in done.stdout.splitlines()]  # one JSON table a line
    except ValueError:
        answers = []
    for k, command in enumerate(commands):
        answer = answers[k] if k < len(answers) and isinstance(answers[k], dict) else {}
        if answer.get("status") != "ok":
            said = " ".join(str(answer[key]) for key in ("message", "hint", "detail") if answer.get(key))
            said = said or (done.stdout + done.stderr).strip()[-600:]
            named = " ".join(command[: 2 if command[0] == "cert" else 1])
            raise StorageError(f"federation: FLARE's {named!r} failed: {said}")
    return [answer["data"] if isinstance(answer.get("data"), dict) else {} for answer in answers]
