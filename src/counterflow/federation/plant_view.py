"""What a plant sees of a finished fit on another machine: every question, about its own outputs."""

from __future__ import annotations

from collections.abc import Callable

from counterflow.arrays import FloatArray
from counterflow.exchange.controllers import UnitControllers
from counterflow.exchange.task import UnitData
from counterflow.federation.parts import SavedUnit, calendar_of, provenance_of
from counterflow.federation.question_box import QuestionBox, RemoteServer
from counterflow.federation.reactions import PlantControllers
from counterflow.questions.asking import UnitView


class PlantView(UnitView):
    """Asks the coordinator through the plant's box of questions; its site must run, and the coordinator's.

    Parameters
    ----------
    saved : the unit's part of a finished job.
    box : of this plant.
    own : reads the plant's log; called for questions about the past.
    patience : seconds to wait for an answer.
    zone : in which the plant reads times, as its log says.
    """

    def __init__(
        self, saved: SavedUnit, box: QuestionBox, own: Callable[[], UnitData], patience: float = 60.0, zone: str = ""
    ) -> None:
        self._saved, self._own = saved, own
        own_laws = PlantControllers(UnitControllers(saved.part, saved.job.dt)) if saved.job.privacy is None else None
        server = RemoteServer(saved.job, box, saved.rows, saved.part.unit, saved.latest, patience, own_laws)
        super().__init__(saved.part, server, dt=saved.job.dt, calendar=calendar_of(saved.job, zone))
        self.unit, self.method, self.provenance = saved.part.unit.name, saved.job.method, provenance_of(saved.job)

    @property
    def job_id(self) -> str:
        """The job that is asked about."""
        return self._saved.job.id

    @property
    def rows(self) -> int:
        """Rows of the plant's log that questions about the past can refer to."""
        return int(self.server.rows)

    def measurements(self) -> FloatArray:
        """The plant's own log (rows, D_m); DataError if it is not the one that the fit rests on any more."""
        own = self._own()
        self._saved.require_log(own)
        return own.y
