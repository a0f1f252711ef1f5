"""What is to be learned, and what a unit brings to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from counterflow.arrays import FloatArray
from counterflow.control.controller import Controller
from counterflow.exchange.estimators import Estimator
from counterflow.identification.sensors import Judged, Sensor, judged, sensors_of
from counterflow.plant import Channel, LocalModel, Unit
from counterflow.privacy import Privacy


class Task:
    """What all parties know of a fit before it begins; nothing private. A job between machines is one, too.

    Attributes
    ----------
    method : as in ``counterflow.fit``.
    inputs : {unit: its input channels in order}; the order of the units is that of the estimate.
    options : of the method, as in ``counterflow.fit``.
    from_logs : units have no models; the server identifies the system.
    dt : seconds between rows.
    """

    method: str
    inputs: Mapping[str, tuple[Channel, ...]]
    options: Mapping[str, Any]
    seed: int
    privacy: Privacy | None
    from_logs: bool
    dt: float

    @property
    def label(self) -> str:
        """What errors call it."""
        return "fit"

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units that take part, in order."""
        return tuple(self.inputs)

    def input_names(self, unit: str) -> tuple[str, ...]:
        """What a unit calls its inputs, in order."""
        return tuple(channel.name for channel in self.inputs[unit])


@dataclass(frozen=True, eq=False)
class LocalTask(Task):
    """One call of ``counterflow.fit``."""

    method: str
    inputs: Mapping[str, tuple[Channel, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    privacy: Privacy | None = None
    from_logs: bool = False
    dt: float = 1.0


@dataclass(frozen=True, eq=False)
class UnitData:
    """What a unit brings to a fit; it stays at the unit.

    ``y`` (T+1, D), ``u`` (T+1, U); ``model`` None: it has a log only. ``estimator`` None: a Kalman filter. ``begins``:
    time of row 0, "" if the log has none. ``dt``: seconds between rows, None if nobody has said. ``controllers``: of
    the unit, where they are known already; None: they are looked for in its log.
    """

    unit: Unit
    y: FloatArray
    u: FloatArray
    model: LocalModel | None = None
    estimator: Estimator | None = None
    begins: str = ""
    dt: float | None = None
    controllers: tuple[Controller, ...] | None = None

    @property
    def digest(self) -> str:
        """Of the unit's rows; it stays at the unit, because whoever guesses the rows can check the guess by it."""
        return hashlib.sha256(self.y.tobytes() + self.u.tobytes()).hexdigest()

    @cached_property
    def inspected(self) -> tuple[tuple[Sensor, ...], Judged]:
        """What the measurements tell of the unit's sensors, and which of them are to be believed."""
        sensors = sensors_of(self.y, [channel.limits for channel in self.unit.outputs], self.u)
        return sensors, judged(sensors, self.y)
