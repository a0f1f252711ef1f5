"""What a monitoring system reads of the console, as Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from counterflow.console.visits import Visit

TEXT = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper ends of the classes of latency


@dataclass(frozen=True)
class Sample:
    """One number, with its labels."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    end: str = ""  # of the name: "_bucket", "_sum", "_count" of a histogram


@dataclass(frozen=True)
class Family:
    """Samples of one name."""

    name: str
    kind: str
    help: str
    samples: Iterable[Sample]

    def text(self) -> str:
        name = f"counterflow_{self.name}"
        lines = [f"# HELP {name} {self.help}", f"# TYPE {name} {self.kind}"]
        for sample in self.samples:
            labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
            lines.append(f"{name}{sample.end}{f'{{{labels}}}' if labels else ''} {float(sample.value)!r}")
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """Counts requests."""

    def __init__(self, gauges: Callable[[], Iterable[Family]] = tuple) -> None:
        self._gauges = gauges
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._refused: Counter[str] = Counter()
        self._questions: Counter[str] = Counter()
        self._classes: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def note(self, visit: Visit) -> None:
        """A request is over."""
        self._requests[visit.route, visit.method, visit.status] += 1
        if visit.code:
            self._refused[visit.code] += 1
        if visit.question:
            self._questions[visit.question] += 1
        classes = self._classes.setdefault(visit.route, [0] * (len(SECONDS) + 1))
        classes[bisect_left(SECONDS, visit.seconds)] += 1
        self._seconds[visit.route] = self._seconds.get(visit.route, 0.0) + visit.seconds

    def families(self) -> list[Family]:
        """Everything counted so far."""
        names = ("route", "method", "status")
        counted = [Sample(count, dict(zip(names, map(str, key), strict=True))) for key, count in self._requests.items()]
        refused = [Sample(count, {"code": code}) for code, count in self._refused.items()]
        questions = [Sample(count, {"kind": kind}) for kind, count in self._questions.items()]
        return [
            Family("console_requests_total", "counter", "Requests by route, method and status.", counted),
            Family("console_request_seconds", "histogram", "From headers to the end of the answer.", self._latencies()),
            Family("console_refused_total", "counter", "Requests that were not let in, by code.", refused),
            Family("console_questions_total", "counter", "Questions answered, by kind.", questions),
            *self._gauges(),
        ]

    def _latencies(self) -> Iterable[Sample]:
        for route, classes in self._classes.items():
            total = 0
            for end, count in zip((*map(str, SECONDS), "+Inf"), classes, strict=True):
                total += count
                yield Sample(total, {"route": route, "le": end}, "_bucket")
            yield Sample(self._seconds[route], {"route": route}, "_sum")
            yield Sample(total, {"route": route}, "_count")
