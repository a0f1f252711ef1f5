"""What a monitoring system is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from counterflow.console.metrics import Metrics, facts, text
from counterflow.console.opening import Opened
from counterflow.console.visits import Visit
from counterflow.federation.policy import default_policy
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.privacy import Ledger, ledger_path
from counterflow.privacy.accounting import Cost


def samples(families: Any) -> dict[str, float]:
    lines = text(families).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def visit(route: str, seconds: float, status: int = 200, code: str = "") -> Visit:
    return Visit(0.0, "10.0.0.1", "", "", "POST", route, status, code, seconds)


def test_latencies_are_classes_that_add_up() -> None:
    metrics = Metrics()
    for seconds in (0.001, 0.005, 0.3, 60.0):
        metrics.note(visit("/api/seats/{seat}/effect", seconds))
    metrics.note(visit("/api", 0.0, 401, "wrong-token"))
    found = samples(metrics.families())
    name = 'counterflow_console_request_seconds_%s{%sroute="/api/seats/{seat}/effect"}'
    classes = [found[name % ("bucket", f'le="{end}",')] for end in ("0.005", "0.25", "0.5", "10.0", "+Inf")]
    assert classes == [2, 2, 3, 3, 4]
    assert found[name % ("count", "")] == 4
    assert found[name % ("sum", "")] == pytest.approx(60.306)
    assert found['counterflow_console_refused_total{code="wrong-token"}'] == 1
    assert found['counterflow_console_questions_total{kind="effect"}'] == 4
    assert text(metrics.families()).startswith(b"# HELP counterflow_console_requests_total ")


def opened(file: Path | None) -> Opened:
    fitted = SimpleNamespace(id="f1", fitted=(datetime.now(UTC) - timedelta(seconds=1000)).isoformat())
    seat: Any = SimpleNamespace(asked=SimpleNamespace(link="abc"), method="sufficient", provenance=fitted)
    return Opened('a "fit"\n', {"server": seat}, file)


def test_a_model_is_told_by_name_and_age(tmp_path: Path) -> None:
    found = samples(facts(opened(tmp_path / "server.safetensors")))
    assert found["counterflow_model_age_seconds"] == pytest.approx(1000, abs=60)
    (info,) = (name for name in found if name.startswith("counterflow_model_info{"))
    assert r'link="abc",method="sufficient",model="a \"fit\"\n"' in info


def test_at_a_plant_it_is_told_what_will_run_out(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    file = tmp_path / "fits" / "job-1" / "unit.safetensors"
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "client.crt").write_bytes(certificate(days=30))
    (tmp_path / "kit" / "startup" / "rootCA.pem").write_bytes(certificate(days=3000))
    (tmp_path / "policy.toml").write_text(default_policy("boiler"), "utf-8")
    PlantFolder(tmp_path, "steam", "SHA256:00", "owner", "localhost", 8102, "boiler").write()
    assert set(samples(facts(opened(file)))) >= {'counterflow_certificate_expiry_days{certificate="plant boiler"}'}
    (tmp_path / "budgets").mkdir()
    with Ledger.create(ledger_path(tmp_path / "budgets", "boiler"), "boiler", 3.0, 1e-6) as ledger:
        ledger.spend(Cost(0, 5, epsilon=0.5), "models", fit="1", mechanism="claimed", source="seed 1")
        found = samples(facts(opened(file)))
    assert found['counterflow_certificate_expiry_days{certificate="plant boiler"}'] == pytest.approx(30, abs=0.1)
    assert found['counterflow_ledger_epsilon_spent{unit="boiler"}'] == 0.5
    assert found['counterflow_ledger_epsilon_limit{unit="boiler"}'] == 3.0


def certificate(days: int) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now, number = datetime.now(UTC), x509.random_serial_number()
    made = x509.CertificateBuilder(name, name, key.public_key(), number, now, now + timedelta(days=days))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_labels_cannot_begin_another_line() -> None:
    assert len(text([next(facts(opened(None)))]).splitlines()) == 3
