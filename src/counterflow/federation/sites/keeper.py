"""Keeps the plants' questions answered: a standing job that is there whenever a fit is finished and plants are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from counterflow.errors import CounterflowError
from counterflow.federation.engine import Jobs
from counterflow.federation.job import Job
from counterflow.federation.sites.site import CoordinatorSite

PAUSE = 10.0  # seconds between two submissions, at least
LONGEST_PAUSE = 300.0  # after failures
STARTING = 30.0  # seconds that a run may take until it has a process


class Keeper:
    """Submits the standing job again when it is not there, or does not serve a plant that is connected.

    Parameters
    ----------
    wanted : the job that should be there now; None if there is no finished fit.
    runs : the engine.
    agreed : a value that the run was started under; when it changes, as when a plant is removed, so does the run.
    """

    def __init__(
        self,
        wanted: Callable[[], Job | None],
        runs: Jobs,
        agreed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted, self._runs, self._agreed, self._clock = wanted, runs, agreed, clock
        self._under: object = None
        self._job, self._run = "", ""
        self._served: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()
        self._since = self._next = -1e18
        self._pause = PAUSE

    def look(self, plants: Sequence[str]) -> str:
        """See to it; what was done in a line, "" if there was nothing to do."""
        job = self._wanted()
        if job is None:
            return ""
        present = frozenset(plants) & frozenset(job.units)
        settled, self._seen = present == self._seen, present  # plants come one after another
        now, under = self._clock(), self._agreed()
        if not present or not settled or now < self._next or self._is_served(job, present, under, now):
            return ""
        try:
            if self._run and self._runs.alive(self._run):
                self._runs.abort(self._run)
            self._run = self._runs.submit(job, sorted(present, key=job.units.index))
        except CounterflowError as error:
            self._next, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE)
            return f"questions cannot be answered yet: {error}"
        self._job, self._served, self._since, self._under = job.to_text(), present, now, under
        self._next, self._pause = now + PAUSE, PAUSE
        return f"questions are answered for {', '.join(sorted(present))}"

    def _is_served(self, job: Job, present: frozenset[str], under: object, now: float) -> bool:
        if not self._run or self._job != job.to_text() or not present <= self._served or under != self._under:
            return False
        return now - self._since < STARTING or self._runs.alive(self._run)


class StandingJob:
    """The job that answers questions about the fit that was finished last; made once for each fit."""

    def __init__(self, site: CoordinatorSite) -> None:
        self._site = site
        self._fit: str | None = None
        self._job: Job | None = None

    def __call__(self) -> Job | None:
        """The job; None if no fit is finished."""
        fit = self._site.current_fit()
        if fit != self._fit:
            self._job = None if fit is None else self._site.questions_job(fit)
            self._fit = fit
        return self._job
