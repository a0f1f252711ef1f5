"""What a monitoring system reads: requests, counted; and of the model which one, how old, what will run out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from counterflow._version import __version__
from counterflow.console.opening import Opened
from counterflow.console.visits import Visit
from counterflow.errors import CounterflowError
from counterflow.privacy import Ledger

TEXT = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper ends of the classes of latency
disable_created_metrics()  # type: ignore[no-untyped-call] # nothing but the documented names


def family(name: str, help: str, values: Mapping[Any, float], *labels: str, counted: bool = False) -> Metric:
    """Numbers by the values of their labels."""
    kind = CounterMetricFamily if counted else GaugeMetricFamily
    made: Metric = kind(f"counterflow_{name}", help, labels=labels)
    for key, value in values.items():
        made.add_metric(list(key) if isinstance(key, tuple) else [key], value)  # type: ignore[attr-defined]
    return made


def text(families: Iterable[Metric]) -> bytes:
    """As Prometheus reads it."""
    found: Any = SimpleNamespace(collect=lambda: families)
    return bytes(generate_latest(found))


class Metrics:
    """Counts requests; ``gauges`` are asked for at every reading."""

    def __init__(self, gauges: Callable[[], Iterable[Metric]] = tuple) -> None:
        self._gauges, self._registry = gauges, CollectorRegistry()
        known: Any = {"namespace": "counterflow", "registry": self._registry}
        labels = ["route", "method", "status"]
        self._requests = Counter("console_requests", "Requests by route, method and status.", labels, **known)
        self._seconds = Histogram(
            "console_request_seconds", "From headers to the end of the answer.", ["route"], buckets=SECONDS, **known
        )
        self._refused = Counter("console_refused", "Requests that were not let in, by code.", ["code"], **known)
        self._questions = Counter("console_questions", "Questions answered, by kind.", ["kind"], **known)

    def note(self, visit: Visit) -> None:
        """A request is over."""
        self._requests.labels(visit.route, visit.method, visit.status).inc()
        self._seconds.labels(visit.route).observe(visit.seconds)
        if visit.code:
            self._refused.labels(visit.code).inc()
        if visit.question:
            self._questions.labels(visit.question).inc()

    def families(self) -> list[Metric]:
        """Everything counted so far."""
        return [*self._registry.collect(), *self._gauges()]


def facts(opened: Opened) -> Iterator[Metric]:
    """Gauges of a model; what cannot be read is left out."""
    seat = next(iter(opened.seats.values()))
    about = {"model": opened.title, "link": seat.asked.link or "", "method": seat.method, "version": __version__}
    if seat.provenance is not None:
        about["fit"] = seat.provenance.id
    yield family("model_info", "Which model is asked.", {tuple(about.values()): 1}, *about)
    if seat.provenance is not None and seat.provenance.fitted:
        age = -86400 * _days_until(datetime.fromisoformat(seat.provenance.fitted))
        yield family("model_age_seconds", "Since the model was fitted.", {(): age})
    if opened.file is not None:
        with suppress(CounterflowError):
            yield from _party(opened.file.absolute().parent.parent.parent)


def _party(folder: Path) -> Iterator[Metric]:
    """Of a plant or a coordinator, whose fits are two folders deep."""
    from counterflow.federation.sites import party
    from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
    from counterflow.federation.sites.plant_folder import PlantFolder

    if not (folder / party.FILE).is_file():
        return
    found = PlantFolder.open(folder) if party.role(folder) == party.PLANT else CoordinatorFolder.open(folder)
    if isinstance(found, PlantFolder) and found.ledger is not None and found.ledger.exists():
        with Ledger.open(found.ledger, found.unit) as ledger:
            spent, limit = {found.unit: ledger.spent}, {found.unit: ledger.epsilon}
        yield family("ledger_epsilon_spent", "Privacy budget that is spent, at the ledger's delta.", spent, "unit")
        yield family("ledger_epsilon_limit", "Privacy budget.", limit, "unit")
    days = {name: _days_until(end) for name, end in found.certificates().items()}
    yield family("certificate_expiry_days", "Until a certificate of this party ends.", days, "certificate")


def _days_until(moment: datetime) -> float:
    return (moment - datetime.now(UTC)).total_seconds() / 86400
