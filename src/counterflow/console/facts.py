"""What a monitoring system is told of the model: which one, how old, and at a party's folder what will run out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow._version import __version__
from counterflow.console.metrics import Family, Sample
from counterflow.console.opening import Opened
from counterflow.errors import CounterflowError
from counterflow.privacy import Ledger

if TYPE_CHECKING:
    from counterflow.federation.sites.plant_folder import PlantFolder


def facts(opened: Opened) -> Iterator[Family]:
    """Gauges of a model; what cannot be read is left out."""
    seat = next(iter(opened.seats.values()))
    told = {"model": opened.title, "link": seat.asked.link or "", "method": seat.method, "version": __version__}
    if seat.provenance is not None:
        told["fit"] = seat.provenance.id
    yield Family("model_info", "gauge", "Which model is asked.", [Sample(1, told)])
    if seat.provenance is not None and seat.provenance.fitted:
        fitted = datetime.fromisoformat(seat.provenance.fitted)
        yield Family("model_age_seconds", "gauge", "Since the model was fitted.", [Sample(_until(fitted) * -86400)])
    if opened.file is not None:
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
        yield from _budget(plant)
        yield _certificates(plant.certificates())
    else:
        yield _certificates(CoordinatorFolder.open(folder).certificates())


def _budget(plant: PlantFolder) -> Iterator[Family]:
    if plant.ledger is None or not plant.ledger.exists():
        return
    with Ledger.open(plant.ledger, plant.unit) as ledger:
        spent, limit = [Sample(ledger.spent, {"unit": plant.unit})], [Sample(ledger.epsilon, {"unit": plant.unit})]
    yield Family("ledger_epsilon_spent", "gauge", "Privacy budget that is spent, at the ledger's delta.", spent)
    yield Family("ledger_epsilon_limit", "gauge", "Privacy budget.", limit)


def _certificates(ends: Mapping[str, datetime]) -> Family:
    days = [Sample(_until(end), {"certificate": name}) for name, end in ends.items()]
    return Family("certificate_expiry_days", "gauge", "Until a certificate of this party ends.", days)


def _until(moment: datetime) -> float:
    """Days from now."""
    return (moment - datetime.now(UTC)).total_seconds() / 86400
