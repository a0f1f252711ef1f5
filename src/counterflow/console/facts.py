"""What a monitoring system is told of the model: which one, how old, and at a party's folder what will run out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from counterflow._version import __version__
from counterflow.console.metrics import Family, Sample
from counterflow.console.opening import Opened
from counterflow.errors import CounterflowError
from counterflow.privacy import Ledger, ledger_path


def facts(opened: Opened) -> Iterator[Family]:
    """Gauges of a model; what cannot be read is left out."""
    seat = next(iter(opened.seats.values()))
    told = {"model": opened.title, "link": seat.asked.link or "", "method": seat.method, "version": __version__}
    yield Family("model_info", "gauge", "Which model is asked.", [Sample(1, told)])
    if opened.file is None:
        return
    with suppress(OSError):
        age = [Sample(time.time() - opened.file.stat().st_mtime)]
        yield Family("model_age_seconds", "gauge", "Since the model was written.", age)
    with suppress(CounterflowError):
        yield from _party(opened.file.absolute().parent.parent.parent)


def _party(folder: Path) -> Iterator[Family]:
    """Of a plant or a coordinator, whose fits are two folders deep."""
    from counterflow.federation.sites import party
    from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
    from counterflow.federation.sites.plant_folder import PlantFolder

    if not (folder / party.FILE).is_file():
        return
    if party.role(folder) == party.PLANT:
        plant = PlantFolder.open(folder)
        yield from _certificates(plant.kit)
        yield from _budget(plant.unit, plant.policy.ledger)
    else:
        yield from _certificates(CoordinatorFolder.open(folder).kit)


def _budget(unit: str, folder: Path | None) -> Iterator[Family]:
    if folder is None:
        return
    with Ledger.open(ledger_path(folder, unit), unit) as ledger:
        spent, limit = [Sample(ledger.spent, {"unit": unit})], [Sample(ledger.epsilon, {"unit": unit})]
    yield Family("ledger_epsilon_spent", "gauge", "Privacy budget that is spent, at the ledger's delta.", spent)
    yield Family("ledger_epsilon_limit", "gauge", "Privacy budget.", limit)


def _certificates(kit: Path | None) -> Iterator[Family]:
    """Of a kit, if what reads them is installed."""
    try:
        from cryptography import x509
    except ImportError:
        return
    days = []
    for place in sorted((kit / "startup").glob("*.crt")) if kit is not None else ():
        with suppress(OSError, ValueError):
            ends = x509.load_pem_x509_certificate(place.read_bytes()).not_valid_after_utc
            days.append(Sample((ends - datetime.now(UTC)).total_seconds() / 86400, {"certificate": place.stem}))
    yield Family("certificate_expiry_days", "gauge", "Until a certificate of this party ends.", days)
