"""New rows for a fit, without going over the past ones again."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from counterflow._version import __version__
from counterflow.errors import OptionError, PrivacyError
from counterflow.exchange.outcome import Provenance, Status
from counterflow.exchange.part import sufficient_messages
from counterflow.exchange.privacy import PrivacyReport, promise
from counterflow.exchange.registry import ROWS
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.fits.engine import Traffic, paying
from counterflow.fits.log_updates import followed, refuse_repeated
from counterflow.fits.moment_updates import window_joined
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.online import Memory, remember, update
from counterflow.learning.prior import DROWNED_CODE
from counterflow.plant import Recording
from counterflow.privacy import Privacy
from counterflow.protocol import Request, Sufficient, encoded_size

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

EARLIER_ROWS = "the rows of the fit before this update: they were sent without noise"


def updated(fit: Fit, recording: Recording, privacy: Privacy | None) -> Fit:
    """``Fit.update``."""
    fit.check_recording(recording)
    if fit.couplings is not None and fit.couplings.network is not None:
        return followed(fit, recording, privacy)
    if fit.couplings is not None and fit.couplings.of_moments:
        return window_joined(fit, recording, privacy)
    memory = _memory(fit)
    last_input = memory.last_input.copy()
    for name, point in fit.points.items():
        if point.same_row:  # what acts on the first new row stands in it
            last_input[fit.plant.input_slice(name)] = recording[name].u[0] - point.input_level
    messages, report = _messages(fit, recording, privacy)
    size, new = sum(encoded_size(message) for message in messages), SharedRecord.from_messages(messages)
    assert fit.couplings is not None
    old = fit.couplings.shared.values
    if privacy is None and fit.couplings.memory is None and old.shape[1:] == new.values.shape[1:]:
        refuse_repeated(old, new.values)  # what was taken in later is not kept, nor do pooled rows look like messages
    found, spread, later = update(replace(memory, last_input=last_input), new)
    traffic = Traffic(fit.traffic.rounds + 1, fit.traffic.bytes_up + size, fit.traffic.bytes_down)
    status = Status(
        found.converged, found.evaluations, float(np.sqrt(found.decrement)),
        f"updated with {recording.rows} rows in {found.evaluations} passes over them; {later.rows} rows in all",
    )  # fmt: skip
    digest = recording.digest if privacy is None else recording.public_digest
    joined = hashlib.sha256((fit.provenance.data_digest + digest).encode()).hexdigest()
    promised = () if report is None else promise(report)
    stale = {DROWNED_CODE, *(each.code for each in promised)}  # they were of the rows before
    caveats = (*(c for c in fit.server_caveats if c.code not in stale), *promised)
    couplings = replace(fit.couplings, found=found, spread=spread, memory=later)
    made = Provenance.of(__version__, fit.provenance.seed, joined, fit.method, {"after": fit.provenance.id})
    return replace(
        fit, server_caveats=caveats, plant=fit.plant.replace(A=found.A, B=found.B), traffic=traffic, status=status,
        couplings=couplings, provenance=made, privacy=report,
    )  # fmt: skip


def _memory(fit: Fit) -> Memory:
    couplings = fit.couplings
    if couplings is None:
        raise OptionError(f"method {fit.method!r} keeps no likelihood to update; fit with method='sufficient'")
    return couplings.memory or remember(couplings.shared, couplings.found, fit.uncertainty)


def _messages(fit: Fit, recording: Recording, privacy: Privacy | None) -> tuple[list[Sufficient], PrivacyReport | None]:
    """What the units send of new rows, and what it has cost."""
    names = fit.plant.names
    if privacy is None:
        if fit.privacy is not None:
            raise PrivacyError(
                "update: this fit is private; new rows would leave the units without noise. Pass privacy=..., too"
            )
        return sufficient_messages(fit.parts, names, recording), None
    if not isinstance(privacy, Privacy) or privacy.accounting != "rigorous":
        raise OptionError(f"update: privacy must be a counterflow.Privacy with rigorous accounting, got {privacy!r}")
    own = {n: UnitData(fit.parts[n].unit, recording[n].y, recording[n].u, fit.parts[n].model) for n in names}
    task = LocalTask(fit.method, {name: fit.parts[name].unit.inputs for name in names}, privacy=privacy)
    units = {name: ROWS.unit(task, own[name]) for name in names}  # refuses inputs that react
    with paying(ROWS, task, own, f"update {recording.public_digest[:12]}") as payment:
        assert payment.spending is not None
        messages: list[Sufficient] = []
        for name, unit in units.items():
            units[name], (message,) = unit.step(Request(name))
            payment(message)
            assert isinstance(message, Sufficient)
            messages.append(message)
        report = ROWS.privacy_report(task, payment.spending, None, units)
    if fit.privacy is None:
        report = replace(report, excluded=(EARLIER_ROWS, *report.excluded))
    else:
        report = report.after(fit.privacy)
    return messages, report
