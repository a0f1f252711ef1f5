"""NVIDIA FLARE on loopback with keys made at each party: the same estimates as in process, and what plants refuse."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerances import EXACT

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from flare_loopback import OPERATOR, Loopback

from counterflow.federation.audit import Audit, verify
from counterflow.federation.flare import certificates, jobs, kit, processes
from counterflow.federation.flare.certificates import Participant
from counterflow.federation.flare.operator import Operator
from counterflow.federation.machines import server_part

pytestmark = pytest.mark.filterwarnings("ignore")  # FLARE's own, in the operator's connection

UNITS = ("boiler", "turbine")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    plant = cf.random_plant(units=UNITS, rng=1)
    sites = Loopback(tmp_path_factory.mktemp("federation"), plant.simulate(400, rng=2), plant.locals())
    try:
        yield sites.make()
    finally:
        for name in ("localhost", *UNITS):
            if name in sites.kits:
                processes.stop(sites.kits[name], patience=0)


def test_the_same_estimates_as_in_one_process(made: Loopback) -> None:
    recording, models = made.recording, made.models
    with made:
        for name, method, options in (
            ("fit-1", "sufficient", {}),
            ("fit-2", "penalty", {"solver": "gradient", "rounds": 4}),
        ):
            session = made.run(made.job(name, method, **options))
            found, wanted = server_part(session.result()), cf.fit(recording, models, method, **options)
            np.testing.assert_allclose(found.A, wanted.plant.A, rtol=EXACT, atol=EXACT)
            np.testing.assert_allclose(found.B, wanted.plant.B, rtol=EXACT, atol=EXACT)
            traffic = session.result().traffic
            assert (traffic.bytes_up, traffic.bytes_down) == (wanted.traffic.bytes_up, wanted.traffic.bytes_down)
        _kill_and_go_on(made)
        _refused_by_the_policy(made)
        _refused_by_the_server(made)
    for unit in UNITS:
        place = made.root / unit / "home" / "audit.jsonl"
        assert verify(place).broken is None
        with Audit(place) as audit:
            left = [(record["job"], record["kind"]) for record in audit.records() if record["event"] == "approved"]
        assert left[0] == ("fit-1", "Sufficient")
        assert [kind for job, kind in left if job == "fit-2"] == ["Introduction"] + ["AugmentedStates"] * 4
    for name in ("localhost", *UNITS):
        assert not processes.running(made.kits[name]), name


def _kill_and_go_on(made: Loopback) -> None:
    """A plant killed in the middle: the run ends with an error, and the same job submitted again goes on."""
    job = made.job("fit-3", "penalty", solver="gradient", rounds=30)
    wanted = cf.fit(made.recording, made.models, "penalty", solver="gradient", rounds=30)
    run = made.submit(job, deadline=3)
    while made.server.state(job.id).get("exchanges", 0) < 10:
        time.sleep(0.02)
    processes.stop(made.kits["turbine"], patience=0)
    state = made.ended(job, run)
    assert state["state"] != "finished"
    assert not processes.running(made.kits["turbine"])
    made.start("turbine")
    assert made.operator is not None
    made.operator.wait_for_plants(UNITS)
    session = made.run(job)
    np.testing.assert_allclose(server_part(session.result()).B, wanted.plant.B, rtol=EXACT, atol=EXACT)
    assert made.server.state(job.id)["exchanges"] < 2 * 31  # it went on, it did not begin again


def _refused_by_the_policy(made: Loopback) -> None:
    """A plant that does not want a method says no, and not why; the reason stays with it."""
    job = made.job("fit-4", "hybrid")
    state = made.ended(job, made.submit(job))
    assert state["state"] == "failed"
    assert "refused (EXECUTION_EXCEPTION)" in state["reason"]
    assert "leave.methods" not in state["reason"]
    (first,) = [unit for unit in UNITS if f"unit {unit!r} refused" in state["reason"]]  # the other is not asked again
    with Audit(made.root / first / "home" / "audit.jsonl") as audit:
        reasons = [record for record in audit.records() if record.get("job") == job.id]
    assert [record["event"] for record in reasons] == ["refused"]
    assert "leave.methods" in json.dumps(reasons)


def _refused_by_the_server(made: Loopback) -> None:
    operator = made.operator
    assert operator is not None
    before = (made.root / "localhost" / "site.log").read_text(errors="replace")
    run = operator.submit(_foreign(made, "code", custom=True))
    assert _over(made, run) != "FINISHED:COMPLETED"
    assert "Counterflow refuses this job" in (made.root / "localhost" / "site.log").read_text(errors="replace")
    assert "Counterflow refuses this job" not in before
    assert not (made.root / "mark").exists()


def test_plants_refuse_what_a_lying_server_lets_through(made: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server allows everything, and does not mark commands as ones to be authorised.

    At the turbine our own gate and lock are off, and FLARE's policy must do alone: it does against jobs, but not
    against the shell, which is why there is a lock.
    """
    made = made.copied()
    _allow_everything(made.kits["localhost"])
    _let_lie(made, monkeypatch)
    _without_gate_and_lock(made.kits["turbine"])
    with made:
        assert made.operator is not None
        assert _shell(made, "boiler") == "invalid_request"
        assert "counterflow.json" in _shell(made, "turbine"), "the lock is no longer needed"
        assert "no callback" in str(made.operator._session.do_command("process_info boiler"))
        assert "Process ID" in str(made.operator._session.do_command("process_info turbine"))
        for name, target, custom, scope, reason in (
            ("code-at-gate", "boiler", True, "", "Counterflow refuses this job"),
            ("scope", "boiler", False, "open", "privacy scope 'open' is not allowed"),
            ("code-at-flare", "turbine", True, "", "BYOC not permitted"),
            ("class-at-flare", "turbine", False, "", "is not in allow_list"),
        ):
            run = made.operator.submit(_foreign(made, name, target=target, custom=custom, scope=scope))
            assert _over(made, run) != "FINISHED:COMPLETED", name
            logs = "".join(
                (made.root / site / "site.log").read_text(errors="replace") for site in (target, "localhost")
            )
            assert reason in logs, f"{name}\n{made.logs()}"
        assert not (made.root / "mark").exists()
        _no_way_in_without_the_right_certificate(made)


def _no_way_in_without_the_right_certificate(made: Loopback) -> None:
    startup = made.kits["boiler"] / "startup"
    described = json.loads((startup / "fed_client.json").read_text())
    host, port = described["servers"][0]["service"]["target"].split(":")
    own = (startup / "client.crt", startup / "client.key")
    assert _greeting(host, int(port), own), "the greeting is answered if the certificate is right"
    assert not _greeting(host, int(port), None), "no certificate"
    assert not _greeting(host, int(port), _self_signed(made.root)), "a certificate that the authority has not signed"
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.sendall(PREFACE)
        assert not _answer(plain), "no encryption"
    # a plant's certificate in an operator's kit
    disguised = made.root / "disguised"
    shutil.copytree(made.kits[OPERATOR], disguised)
    for name in ("client.crt", "client.key"):
        shutil.copy(startup / name, disguised / "startup" / name)
    with pytest.raises(cf.ProtocolError, match="cannot be reached"):
        Operator(disguised, patience=5)
    # a plant's certificate in another plant's kit: the turbine calls itself boiler
    processes.stop(made.kits["boiler"], patience=0)
    for name in ("client.crt", "client.key"):
        shutil.copy(made.kits["turbine"] / "startup" / name, startup / name)
    made.start("boiler")
    deadline = time.monotonic() + 30
    refusal = "authenticated as 'turbine' but claimed endpoint 'boiler'"
    while refusal not in (made.root / "localhost" / "site.log").read_text(errors="replace"):
        assert time.monotonic() < deadline, made.logs()
        time.sleep(0.1)


def test_certificates_are_made_for_whom_they_are_meant(made: Loopback, tmp_path: Path) -> None:
    """The request tells who asks; a name that is taken, another kind and another authority are refused."""
    coordinator = made.root / "coordinator"
    boiler = Participant("boiler", "plant", "boiler_works")
    request = made.root / "boiler" / "request" / "boiler.request.zip"
    with pytest.raises(cf.OptionError, match="has a certificate already"):
        certificates.approve(coordinator, request, boiler)
    with pytest.raises(cf.OptionError, match="the request is of"):
        certificates.approve(coordinator, request, Participant("cooler", "plant", "boiler_works"))
    with pytest.raises(cf.StorageError, match="failed"):
        certificates.assemble(
            made.root / "boiler", coordinator / "approved" / "boiler.signed.zip", "SHA256" + ":00" * 32
        )
    key = made.kits["boiler"] / "startup" / "client.key"
    assert key.stat().st_mode & 0o077 == 0
    with pytest.raises(cf.OptionError, match="e-mail"):
        Participant("boiler", "operator", "boiler_works")


# ---- intruders


def _foreign(made: Loopback, name: str, target: str = "boiler", custom: bool = False, scope: str = "") -> Path:
    """A job that is not ours: with code of its own, or with a class of FLARE's."""
    job = made.job(name)
    folder = jobs.write(made.root / "foreign", name, job.to_text(), (target,))
    config = folder / "plant" / "config" / jobs.PLANT_FILE
    content: dict[str, Any] = json.loads(config.read_text())
    path = "foreign.Foreign" if custom else "nvflare.app_common.np.np_trainer.NPTrainer"
    content["executors"][0]["executor"] = {"path": path, "args": {}}
    config.write_text(json.dumps(content))
    if custom:
        code = folder / "plant" / "custom" / "foreign.py"
        code.parent.mkdir()
        mark = str(made.root / "mark")
        code.write_text(
            f"open({mark!r}, 'w').close()\nfrom nvflare.app_common.np.np_trainer import NPTrainer as Foreign\n"
        )
    if scope:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, "scope": scope}))
    return folder


def _over(made: Loopback, run: str, patience: float = 40) -> str:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        state = made.operator.state(run)  # type: ignore[union-attr]
        if state.startswith("FINISHED"):
            return state
        time.sleep(0.2)
    raise AssertionError(f"run {run} is {state}\n{made.logs()}")


def _shell(made: Loopback, unit: str) -> str:
    """What an operator's shell command at a plant brings."""
    try:
        return str(made.operator._session.ls_target(unit, path="local"))  # type: ignore[union-attr]
    except Exception as error:
        return f"refused: {type(error).__name__}"


def _let_lie(made: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server leave out the marks by which plants know that a command is to be authorised."""
    code = made.root / "lies"
    code.mkdir()
    (code / "liar.py").write_text(LIAR)
    honest = processes.environment()
    monkeypatch.setattr(processes, "environment", lambda: {**honest, "PYTHONPATH": str(code)})
    resources = made.kits["localhost"] / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content["components"] = [part for part in content["components"] if part["id"] != "lock"]
    content["components"].append({"id": "liar", "path": "liar.Liar", "args": {}})
    resources.write_text(json.dumps(content))


LIAR = """
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader

honest = Message.set_header


def set_header(self, key, value):
    if key not in (RequestHeader.REQUIRE_AUTHZ, RequestHeader.ADMIN_COMMAND):
        honest(self, key, value)


class Liar:
    def __init__(self):
        Message.set_header = set_header
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def _greeting(host: str, port: int, own: tuple[Path, Path] | None) -> bytes:
    """What the server answers to the first words of gRPC over TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if own is not None:
        context.load_cert_chain(*map(str, own))
    try:
        with socket.create_connection((host, port), timeout=5) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(PREFACE)
            return _answer(secure)
    except (ssl.SSLError, OSError):
        return b""


def _answer(connection: socket.socket) -> bytes:
    connection.settimeout(5)
    try:
        return connection.recv(9)
    except (ssl.SSLError, OSError):
        return b""


def _self_signed(folder: Path) -> tuple[Path, Path]:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "boiler")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(7).not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
    certificate, secret = folder / "self.crt", folder / "self.key"
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate.write_bytes(built.sign(key, hashes.SHA256()).public_bytes(pem))
    secret.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return certificate, secret


def _allow_everything(server: Path) -> None:
    resources = server / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content.pop("app_validator")
    resources.write_text(json.dumps({**content, "class_allow_list": ["*"]}))
    rights = {role: dict.fromkeys(kit.RIGHTS, "any") for role in kit.ROLES}
    (server / "local" / "authorization.json").write_text(json.dumps({"format_version": "1.0", "permissions": rights}))


def _without_gate_and_lock(plant: Path) -> None:
    resources = plant / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content.pop("app_validator")
    content["components"] = [part for part in content["components"] if part["id"] != "lock"]
    resources.write_text(json.dumps(content))
