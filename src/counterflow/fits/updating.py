"""New rows for a fit, without going over the past ones again.

The units say of new rows what they said of the first ones, and pay for it before it leaves. What is kept of all rows
takes it in (sums, or a quadratic around the estimate: ``Grounded.follow``; windows of moments: ``moment_updates``), and
the fit is what follows from that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from counterflow._version import __version__
from counterflow.caveats import Caveat, distinct
from counterflow.checks import failed_checks
from counterflow.errors import OptionError, PrivacyError
from counterflow.exchange.log_rows import learned_system
from counterflow.exchange.outcome import Couplings, Provenance, Status
from counterflow.exchange.part import UnitPart, plant_of, sufficient_messages
from counterflow.exchange.privacy import PrivacyReport, promise
from counterflow.exchange.registry import ROWS
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.fits.engine import Traffic, paying
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.model import Chosen
from counterflow.learning.network_model import NOT_FOLLOWING, newest_rows
from counterflow.learning.prior import DROWNED_CODE
from counterflow.learning.system import system_of
from counterflow.plant import Plant, Recording
from counterflow.privacy import Privacy
from counterflow.protocol import Request, Sufficient, encoded_size

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

EARLIER_ROWS = "the rows of the fit before this update: they were sent without noise"
LASTING = frozenset({NOT_FOLLOWING, "input-alignment", "alignment-unsure"})  # caveats that later rows do not change
STALE = frozenset({DROWNED_CODE, NOT_FOLLOWING})  # and those of the rows before


@dataclass(frozen=True)
class Taken:
    """What has come of new rows; ``caveats``: those of the server, but for what a private fit promises."""

    couplings: Couplings
    status: Status
    caveats: tuple[Caveat, ...]
    traffic: Traffic
    privacy: PrivacyReport | None
    parts: Mapping[str, UnitPart]
    plant: Plant


def updated(fit: Fit, recording: Recording, privacy: Privacy | None) -> Fit:
    """``Fit.update``."""
    from counterflow.fits.moment_updates import window_joined

    fit.check_recording(recording)
    if fit.couplings is None:
        raise OptionError(f"method {fit.method!r} keeps no likelihood to update; fit with method='sufficient'")
    taken = (window_joined if fit.couplings.of_moments else _rows_followed)(fit, recording, privacy)
    digest = recording.digest if privacy is None else recording.public_digest
    joined = hashlib.sha256((fit.provenance.data_digest + digest).encode()).hexdigest()
    promised = () if taken.privacy is None else promise(taken.privacy)
    stale = {each.code for each in promised}
    before, sent = fit.traffic, taken.traffic
    bytes_up, bytes_down = before.bytes_up + sent.bytes_up, before.bytes_down + sent.bytes_down
    return replace(
        fit, plant=taken.plant, parts=taken.parts, couplings=taken.couplings, status=taken.status,
        privacy=taken.privacy,
        server_caveats=distinct((*(c for c in taken.caveats if c.code not in stale), *promised)),
        traffic=Traffic(before.rounds + sent.rounds, bytes_up, bytes_down),
        provenance=Provenance.of(__version__, fit.provenance.seed, joined, fit.method, {"after": fit.provenance.id}),
    )  # fmt: skip


def _rows_followed(fit: Fit, recording: Recording, privacy: Privacy | None) -> Taken:
    couplings, server = fit.couplings, fit.server
    assert couplings is not None
    if couplings.model.learned and privacy is not None:
        raise PrivacyError(
            "update: a fit from logs takes in no private rows: how far they would be off is not known. Give models, or "
            "leave privacy out",
            code="private-logs",
        )
    if not couplings.model.learned and couplings.memory is None:
        _ = fit.uncertainty  # it says why there is none, without which nothing can follow
    messages, report = _messages(fit, recording, privacy)
    acting = np.full(server.B.shape[1], np.nan)
    for name, point in fit.points.items():
        if point.same_row:  # what acts on the last row before stands in the first new one
            acting[server.input_slices[name]] = recording[name].u[0] - point.input_level
    followed = couplings.model.on(couplings.shared).follow(SharedRecord.from_messages(messages), acting)
    traffic = Traffic(1, sum(encoded_size(message) for message in messages), 0)
    caveats = (*(c for c in fit.server_caveats if c.code not in STALE), *followed.notes)
    if followed.chosen is not None:
        return _chosen_anew(fit, followed.chosen, followed.told, caveats, traffic)
    couplings, found = replace(couplings, **followed.kept), followed.found  # type: ignore[arg-type]
    status, plant = replace(fit.status, message=followed.told), fit.plant
    if found is not None:
        status = Status(found.converged, found.evaluations, float(np.sqrt(found.decrement)), followed.told)
        plant = plant.replace(A=found.A, B=found.B)
    return Taken(couplings, status, caveats, traffic, report, fit.parts, plant)


def _chosen_anew(fit: Fit, chosen: Chosen, told: str, caveats: tuple[Caveat, ...], traffic: Traffic) -> Taken:
    """The fit with a form that was chosen anew: its linear part as a system, with it the units' blocks, and checks."""
    rows = chosen.rows
    system = system_of(rows, chosen.learning)
    couplings, status, notes = learned_system({unit.name: unit.input_names for unit in fit.plant.units}, system)
    if rows.first:
        couplings, notes = _without_new_doubts(couplings, notes, fit)
    found, record = system.found, system.record
    blocks = zip(record.names, record.state_slices, record.input_slices, rows.numbers, strict=True)
    parts = {
        name: fit.parts[name].with_blocks(found.A[own, own], found.B[own, mine], found.Q[own, own], count)
        for name, own, mine, count in blocks
    }
    couplings = replace(couplings, **newest_rows(couplings.shared, couplings.regimes, chosen.stream))  # type: ignore[arg-type]
    made = Taken(
        couplings, replace(status, message=told),
        (*notes, *(caveat for caveat in caveats if caveat.code in LASTING)), traffic, None,
        {name: parts[name] for name in fit.parts}, plant_of(parts, found.A, found.B, found.Q, fit.plant.dt),
    )  # fmt: skip
    again = replace(fit, couplings=couplings, parts=made.parts, plant=made.plant, server_caveats=made.caveats)
    return replace(made, caveats=(*made.caveats, *failed_checks(again.server, made.status)))


def _without_new_doubts(
    couplings: Couplings, notes: tuple[Caveat, ...], fit: Fit
) -> tuple[Couplings, tuple[Caveat, ...]]:
    """What earlier rows have determined stays so, though they are no longer kept."""
    assert fit.couplings is not None
    doubted = {(doubt.effect, doubt.cause, doubt.letter, doubt.channels) for doubt in fit.couplings.doubts}
    still = [d for d in couplings.doubts if (d.effect, d.cause, d.letter, d.channels) in doubted]
    gone = {doubt.caveat for doubt in couplings.doubts} - {doubt.caveat for doubt in still}
    return replace(couplings, doubts=tuple(still)), tuple(note for note in notes if note not in gone)


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
