"""What a plant sees of a finished fit on another machine: every question, about its own outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError
from counterflow.federation.parts import SavedUnit
from counterflow.federation.question_box import QuestionBox, RemoteServer
from counterflow.methods.part import UnitPart
from counterflow.methods.task import UnitData
from counterflow.plant import Unit
from counterflow.plant.units import unit_named
from counterflow.questions import unit_side as questions
from counterflow.questions.answers import Attribution, Effect, Paths, Restoration, Trajectory


@dataclass(frozen=True)
class KnownUnits:
    """The units as far as a plant knows them: the others' inputs, and all of its own channels."""

    units: tuple[Unit, ...]
    dt: float

    def unit(self, name: str) -> Unit:
        """The unit of that name."""
        return unit_named(self.units, name)


class PlantView:
    """Asks the coordinator through the plant's box of questions; its site must run, and the coordinator's.

    Parameters
    ----------
    saved : the unit's part of a finished job.
    box : of this plant.
    own : reads the plant's log; called for questions about the past.
    patience : seconds to wait for an answer.
    """

    def __init__(self, saved: SavedUnit, box: QuestionBox, own: Callable[[], UnitData], patience: float = 60.0) -> None:
        self._saved, self._own = saved, own
        self.part: UnitPart = saved.part
        self.unit = saved.part.unit.name
        self.server = RemoteServer(saved.job, box, saved.rows, saved.part.unit.states, saved.latest, patience)
        job = saved.job
        known = tuple(self.part.unit if name == self.unit else self.server.unit(name) for name in job.units)
        self.plant = KnownUnits(known, job.dt)
        self.method = job.method
        self.status = None  # whether it has converged is said by the coordinator, with every answer

    @property
    def parts(self) -> Mapping[str, UnitPart]:
        """The plant's own part, by its name."""
        return {self.unit: self.part}

    @property
    def job_id(self) -> str:
        """The job that is asked about."""
        return self._saved.job.id

    def effect(
        self,
        cause: str | Sequence[str],
        effect: str,
        change: Any,
        horizon: int = 1,
        duration: int | None = None,
        level: float = 0.95,
    ) -> Effect:
        """As ``Fit.effect``, on this plant's unit."""
        if effect != self.unit:
            raise OptionError(f"effect: unit {self.unit!r} asks about its own outputs only, got {effect!r:.80}")
        return self.part.effect(self.server, cause, change, horizon, duration, level)

    def counterfactual(
        self,
        do: Mapping[str, Any] | None = None,
        start: int = 0,
        stop: int | None = None,
        level: float = 0.95,
        add: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """As ``Fit.counterfactual``, of this plant's unit in the rows of its log."""
        return self.part.counterfactual(self.server, self.measurements(), do, start, stop, level, add=add)

    def attribute(self, start: int = 0, stop: int | None = None) -> Attribution:
        """As ``Fit.attribute``, of this plant's unit."""
        return self.part.attribute(self.server, self.measurements(), start, stop)

    def restore(
        self,
        target: Mapping[str, float],
        using: Sequence[str] | Mapping[str, Sequence[str]],
        horizon: int = 50,
        tolerance: float = 1e-3,
    ) -> Restoration:
        """As ``Fit.restore``, of this plant's unit."""
        return self.part.restore(self.server, target, using, horizon, tolerance)

    def forecast(self, horizon: int, plan: Mapping[str, Any] | None = None, level: float = 0.95) -> Trajectory:
        """As ``Fit.forecast``, of this plant's unit after the last row of its log."""
        return questions.forecast(self.server, self.part, horizon, plan, level, None)

    def paths(self, cause: str, change: Any, horizon: int = 50, duration: int | None = None) -> Paths:
        """As ``Fit.paths``, to this plant's unit."""
        return questions.paths(self.server, self.part, cause, change, horizon, duration, None)

    @property
    def rows(self) -> int:
        """Rows of the plant's log that questions about the past can refer to."""
        return self.server.rows

    def measurements(self) -> FloatArray:
        """The plant's own log (rows, D_m); DataError if it is not the one that the fit rests on any more."""
        own = self._own()
        self._saved.require_log(own)
        return own.y
