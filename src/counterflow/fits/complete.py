"""A finished exchange becomes a fit: the server's part, each unit's part, and the two joined.

Every engine completes a fit here, in one process and between machines: the same checks, caveats and status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from counterflow.caveats import Caveat, distinct
from counterflow.checks import failed_checks
from counterflow.exchange.controllers import controller_caveats, known_controllers
from counterflow.exchange.method import ServerState, UnitState
from counterflow.exchange.outcome import Learned, Provenance, Status
from counterflow.exchange.part import UnitPart, plant_of
from counterflow.exchange.privacy import PrivacyReport, promise
from counterflow.exchange.registry import method_of
from counterflow.exchange.task import Task, UnitData
from counterflow.fits.engine import Traffic
from counterflow.fits.fit import Fit
from counterflow.fits.history import History
from counterflow.plant import PublicUnit
from counterflow.plant.calendar import Calendar
from counterflow.questions.answering import Server


def server_part(task: Task, state: ServerState, link: str | None = None) -> tuple[Server, Status]:
    """The server's part of a fit, which answers questions; nothing of a unit is needed for it."""
    return completed(task, method_of(task).learned(task, state), link)


def unit_part(task: Task, own: UnitData, state: UnitState, link: str | None = None) -> UnitPart:
    """A unit's part of a fit, which asks questions; nothing of the server is needed for it."""
    part, known = method_of(task).part(task, own, state), known_controllers(task, own)
    caveats = (*part.caveats, *controller_caveats(own.unit, known))
    return replace(part, link=link, controllers=known, caveats=caveats)


def completed(task: Task, learned: Learned, link: str | None = None) -> tuple[Server, Status]:
    """The server's part, with all that speaks against its answers."""
    units = tuple(
        PublicUnit(name, task.inputs[name], states) for name, states in zip(task.units, learned.states, strict=True)
    )
    couplings, status = learned.couplings, learned.status
    Q, shared = learned.Q, None if couplings is None else couplings.shared
    server = Server(
        task.method, units, learned.A, learned.B, np.zeros_like(learned.A) if Q is None else Q, couplings, shared,
        points=learned.points, link=link,
    )  # fmt: skip
    caveats = [*learned.caveats]
    if not status.converged and task.privacy is None:
        text = f"the fit is {status.message}"
        if couplings is not None and couplings.spread is None:
            text = "the fit has not converged, so its answers have no interval and may be far off"
        caveats.append(Caveat("not-converged", "", text))
    if task.privacy is not None:
        caveats += promise(task.privacy)
    if couplings is not None:
        caveats += failed_checks(server, status)
    return replace(server, caveats=distinct(caveats)), status


def joined(
    server: Server, status: Status, parts: Mapping[str, UnitPart], *, dt: float, history: History, traffic: Traffic,
    provenance: Provenance, privacy: PrivacyReport | None = None, calendar: Calendar | None = None,
) -> Fit:  # fmt: skip
    """Both sides in one object, for who holds both."""
    plant = plant_of(parts, server.A, server.B, None if server.couplings is None else server.Q, dt)
    return Fit(
        server.method, plant, parts, history, traffic, status, provenance,
        server_caveats=server.caveats, couplings=server.couplings, privacy=privacy, calendar=calendar,
    )  # fmt: skip
