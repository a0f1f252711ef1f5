"""Keys, certificates and kits, made by FLARE's own commands; every participant makes its own key.

::

    coordinator   establish(folder, ...)         authority and profile of the federation, and its own participants
    participant   request(folder, ...)           private key (stays here) and a request zip, to be sent
    coordinator   approve(folder, requests)      signed zips, to be sent back
    participant   assemble(folder, signed, ...)  a kit, if the authority has the fingerprint told by other means

The commands end the process on errors, and print what they like: they run in a child process, which is this module's
``main``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError
from counterflow.federation.flare import require_flare
from counterflow.federation.sites import keys
from counterflow.federation.sites.certificates import Participant, fingerprint

KINDS = {"server": "server", "plant": "client", "operator": "admin"}  # FLARE's words
DAYS, AUTHORITY_DAYS = 365, 3650  # for which certificates of members and of the authority are valid
_SECONDS = 120  # none of the commands takes more than two
_Command = tuple[str, ...]


def establish(
    folder: Path, name: str, host: str, port: int, parties: Mapping[Path, Participant]
) -> tuple[str, dict[str, Path]]:
    """Found a federation and admit the coordinator's own participants, each with a folder of its own.

    Returns the authority's fingerprint, and {participant: its kit, which ``kit`` has yet to harden}.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    server = {"host": host, "fed_learn_port": port, "admin_port": port}
    profile = {"name": name, "scheme": "grpc", "connection_security": "mtls", "server": server}
    _write_yaml(folder / "profile.yml", profile)
    _flare(folder, _authority(folder, "authority"), *(_requesting(own, name, who) for own, who in parties.items()))
    told = fingerprint(folder / "authority" / "rootCA.pem")
    (folder / "approved").mkdir(exist_ok=True, mode=0o700)
    commands: list[_Command] = []
    for own, who in parties.items():
        asked = own / "request" / f"{who.name}.request.zip"
        commands += [_approving(folder, asked), _assembling(own, _signed(folder, asked), told)]
    kits = (Path(answer["output_dir"]) for answer in _flare(folder, *commands)[1::2])
    return told, dict(zip((who.name for who in parties.values()), kits, strict=True))


def found_again(folder: Path, name: str) -> None:
    """Another authority of the same federation, in ``folder / name``."""
    _flare(folder, _authority(folder, name))


def request(folder: Path, federation: str, who: Participant) -> Path:
    """Make a private key in ``folder`` and a request for a certificate; returns the zip to send to the coordinator."""
    _flare(folder, _requesting(folder, federation, who))
    return folder / "request" / f"{who.name}.request.zip"


def approve(folder: Path, requests: Sequence[Path]) -> dict[str, Path]:
    """Sign requests that ``letters`` has checked, with the authority in ``folder``: {participant: what goes back}."""
    (folder / "approved").mkdir(exist_ok=True, mode=0o700)
    with keys.unlocked(folder / "authority" / "rootCA.key"):
        _flare(folder, *(_approving(folder, asked) for asked in requests))
    return {_name(asked): _signed(folder, asked) for asked in requests}


def assemble(folder: Path, signed_zip: Path, expected_fingerprint: str, into: str = "kits") -> Path:
    """Join a signed certificate with the key in ``folder``; returns the kit, which ``kit`` has yet to harden.

    The authority's certificate comes with the signed zip and is trusted only if it has ``expected_fingerprint``.
    """
    (done,) = _flare(folder, _assembling(folder, signed_zip, expected_fingerprint, into))
    return Path(done["output_dir"])


# ---- FLARE's commands


def _authority(folder: Path, name: str) -> _Command:
    made = ("cert", "init", "--profile", str(folder / "profile.yml"), "-o", str(folder / name))
    return (*made, "--valid-days", str(AUTHORITY_DAYS))


def _requesting(folder: Path, federation: str, who: Participant) -> _Command:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    described: dict[str, Any] = {"name": who.name, "org": who.organisation, "type": KINDS[who.kind]}
    if who.kind == "operator":
        described["role"] = "lead"  # the only role that our policies let submit
    _write_yaml(folder / "participant.yml", {"name": federation, "participants": [described]})
    return ("cert", "request", "-p", str(folder / "participant.yml"), "--out", str(folder / "request"))


def _approving(folder: Path, asked: Path) -> _Command:
    approving = ("cert", "approve", str(asked), "-c", str(folder / "authority"), "--valid-days", str(DAYS))
    return (*approving, "--profile", str(folder / "profile.yml"), "--out", str(_signed(folder, asked)))


def _assembling(folder: Path, signed_zip: Path, expected_fingerprint: str, into: str = "kits") -> _Command:
    package = ("package", str(signed_zip), "-w", str(folder / into), "--request-dir", str(folder / "request"))
    return (*package, "--fingerprint", expected_fingerprint)


def _name(asked: Path) -> str:
    return asked.name.removesuffix(".request.zip")


def _signed(folder: Path, asked: Path) -> Path:
    return folder / "approved" / f"{_name(asked)}.signed.zip"


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")  # JSON is YAML, and has no surprises


def _flare(folder: Path, *commands: _Command) -> list[dict[str, Any]]:
    """Run FLARE's commands one after the other in one child; the data of their answers."""
    require_flare()
    home = folder.absolute() / ".flare"  # FLARE keeps notes in ~/.nvflare: they are this party's, not the user's
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NVFL"))}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-m", __name__],
            input=json.dumps(commands), capture_output=True, text=True, timeout=_SECONDS,
            env={**environment, "HOME": str(home)},
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"federation: FLARE's commands gave no answer in {_SECONDS} s") from error
    try:
        answers = [dict(json.loads(line)) for line in done.stdout.splitlines()]  # one JSON table a line
    except (ValueError, TypeError):
        answers = []
    for k, command in enumerate(commands):
        answer = answers[k] if k < len(answers) else {}
        if answer.get("status") != "ok":
            said = " ".join(str(answer[key]) for key in ("message", "hint", "detail") if answer.get(key))
            said = said or (done.stdout + done.stderr).strip()[-600:]
            named = " ".join(command[: 2 if command[0] == "cert" else 1])
            raise StorageError(f"federation: FLARE's {named!r} failed: {said}")
    return [answer.get("data") or {} for answer in answers]


def main() -> None:
    """Run the commands that stand in the standard input, each answer on a line of its own, up to one that fails."""
    from nvflare.tool.cert.cert_cli import def_cert_cli_parser, handle_cert_cmd
    from nvflare.tool.cli_output import set_output_format
    from nvflare.tool.package.package_cli import def_package_cli_parser, handle_package_cmd

    parser = argparse.ArgumentParser(prog="nvflare")
    known = parser.add_subparsers(dest="command")
    def_cert_cli_parser(known)
    def_package_cli_parser(known)
    set_output_format("json")
    for command in json.load(sys.stdin):
        given = parser.parse_args(command)
        handle = handle_cert_cmd if given.command == "cert" else handle_package_cmd
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                failed = bool(handle(given))
        except SystemExit as ending:
            failed = bool(ending.code)
        try:
            answer = dict(json.loads(printed.getvalue().strip().splitlines()[-1]))
        except (ValueError, TypeError, IndexError):
            answer, failed = {"message": printed.getvalue()[-600:]}, True
        print(json.dumps({**answer, "status": "error"} if failed else answer))
        if failed:
            break


if __name__ == "__main__":
    main()
