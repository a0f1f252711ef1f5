"""Keys, certificates and kits, made by FLARE's own commands; every participant makes its own key.

::

    coordinator   establish(folder, ...)           authority and profile of the federation, and its own participants
    participant   request(folder, ...)             private key (stays here) and a request zip, to be sent
    coordinator   approve(folder, {request: who})  signed zips, to be sent back
    participant   assemble(signed, ...)            a kit, if the authority has the fingerprint told by other means

The commands run in a child process (``provisioning``): they end the process on errors, and print.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.flare import require_flare
from counterflow.federation.sites import keys
from counterflow.federation.sites.certificates import Participant, check_federation, check_fingerprint, fingerprint

KINDS = {"server": "server", "plant": "client", "operator": "admin"}  # FLARE's words
DAYS, AUTHORITY_DAYS = 365, 3650  # for which certificates of members and of the authority are valid
_LARGEST_REQUEST = 100_000
_SECONDS = 120  # none of the commands takes more than two


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


def approve(folder: Path, requests: Mapping[Path, Participant]) -> dict[str, Path]:
    """Sign requests with the authority in the coordinator's ``folder``; {participant: the zip that goes back}.

    A request must be of whom the coordinator means to admit. A name that has a certificate already is refused: two
    holders of one name could speak for each other. ``CoordinatorFolder.remove`` takes a participant's zip out of
    ``approved/``, so that it can come back with another key.
    """
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
