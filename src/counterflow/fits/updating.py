"""New rows for a fit, without going over the past ones again.

The units say of new rows what they said of the first ones, and pay for it before it leaves. What is kept of all rows
takes it in, and the fit is what follows from that: sums, or a quadratic around the estimate, take in rows
(``Grounded.follow``). By moments the rows are a window of their own: with models it joins such a quadratic, too; from
logs the moments of all windows are kept. A window begins where earlier ones have ended, so that little is left to clip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from counterflow._version import __version__
from counterflow.arrays import FloatArray, block_diagonal
from counterflow.caveats import Caveat, distinct
from counterflow.checks import failed_checks
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.exchange.compression import rows_and_channels
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.exchange import ExchangeUnit, Release
from counterflow.exchange.input_feedback import reaction_caveats
from counterflow.exchange.moments import MomentMemory, MomentUnitMemory, doubted_covariance, shown
from counterflow.exchange.outcome import Couplings, Provenance, Status
from counterflow.exchange.part import UnitPart, plant_of, sufficient_messages
from counterflow.exchange.privacy import promise
from counterflow.exchange.registry import LOG_MOMENTS, MOMENTS, ROWS
from counterflow.exchange.rows import learned_system
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.fits import engine
from counterflow.fits.engine import Traffic
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.log_moments import LogFound
from counterflow.learning.model import Chosen
from counterflow.learning.moments import MomentEstimate
from counterflow.learning.network_model import NOT_FOLLOWING, newest_rows
from counterflow.learning.optimiser import Quadratic
from counterflow.learning.system import system_of
from counterflow.learning.uncertainty import DROWNED_CODE, Uncertainty, refuse_repeated
from counterflow.plant import LocalModel, Recording
from counterflow.privacy import ANY_ROWS, Privacy
from counterflow.protocol import Message, Request, encoded_size

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

EARLIER = "the rows of the fit before this update: what they tell was sent without noise"
LASTING = frozenset({NOT_FOLLOWING, "input-alignment", "alignment-unsure"})  # caveats that later rows do not change
STALE = frozenset({DROWNED_CODE, NOT_FOLLOWING})  # and those of the rows before
STALE_OF_WINDOWS = frozenset({
    DROWNED_CODE, "moments-misfit", "clipped-rows", "undetermined", "moments", "private", "simulated-noise",
})  # fmt: skip
T = TypeVar("T")


def updated(fit: Fit, recording: Recording, privacy: Privacy | None) -> Fit:
    """``Fit.update``."""
    fit.check_recording(recording)
    if fit.couplings is None:
        raise OptionError(f"method {fit.method!r} keeps no likelihood to update; fit with method='sufficient'")
    if privacy is None and fit.privacy is not None:
        raise PrivacyError(
            "update: this fit is private; what is sent of new rows would leave the units without noise. Pass "
            "privacy=..., too"
        )
    if privacy is not None and (not isinstance(privacy, Privacy) or privacy.accounting != "rigorous"):
        raise OptionError(f"update: privacy must be a counterflow.Privacy with rigorous accounting, got {privacy!r}")
    made, traffic = (_window_joined if fit.couplings.of_moments else _rows_followed)(fit, recording, privacy)
    digest = recording.digest if privacy is None else recording.public_digest
    joined = hashlib.sha256((fit.provenance.data_digest + digest).encode()).hexdigest()
    promised = () if made.privacy is None else promise(made.privacy)
    stale, before = {each.code for each in promised}, fit.traffic
    bytes_up, bytes_down = before.bytes_up + traffic.bytes_up, before.bytes_down + traffic.bytes_down
    return replace(
        made, server_caveats=distinct((*(c for c in made.server_caveats if c.code not in stale), *promised)),
        traffic=Traffic(before.rounds + traffic.rounds, bytes_up, bytes_down),
        provenance=Provenance.of(__version__, fit.provenance.seed, joined, fit.method, {"after": fit.provenance.id}),
    )  # fmt: skip


def _asked(
    fit: Fit, recording: Recording, method: Release, privacy: Privacy | None, units: dict[str, ExchangeUnit],
    talk: Callable[[Callable[[Message], None] | None], T],
) -> tuple[Fit, T]:  # fmt: skip
    """What units say of new rows, paid for before it leaves; the fit with what all releases promise together."""
    if privacy is None:
        return fit, talk(None)
    task = next(iter(units.values())).task
    for name, own in recording.items():
        at_once = name in fit.points and fit.points[name].same_row
        reaction_caveats(fit.parts[name].unit, own.y, own.u, at_once, refuse=True)
    brought = {name: unit.own for name, unit in units.items()}
    with engine.paying(method, task, brought, f"update {recording.public_digest[:12]}") as spending:
        assert spending is not None
        said = talk(spending.pay)
        report = method.privacy_report(task, spending, None, units)
    report = report.after(fit.privacy) if fit.privacy else replace(report, excluded=(EARLIER, *report.excluded))
    return replace(fit, privacy=report), said


# ---- rows


def _rows_followed(fit: Fit, recording: Recording, privacy: Privacy | None) -> tuple[Fit, Traffic]:
    couplings, server, names = fit.couplings, fit.server, fit.plant.names
    assert couplings is not None
    if couplings.model.learned and privacy is not None:
        raise PrivacyError(
            "update: a fit from logs takes in no private rows: how far they would be off is not known. Give models, or "
            "leave privacy out",
            code="private-logs",
        )
    if not couplings.model.learned and couplings.memory is None:
        _ = fit.uncertainty  # it says why there is none, without which nothing can follow
    if privacy is None:
        messages = sufficient_messages(fit.parts, names, recording)
    else:
        task = LocalTask(fit.method, {name: fit.parts[name].unit.inputs for name in names}, privacy=privacy)
        units = {name: ExchangeUnit(ROWS, task, _brought(fit.parts[name], recording, privacy)) for name in names}

        def talk(pay: Callable[[Message], None] | None) -> list[Any]:
            said: list[Message] = []
            for name in names:
                units[name], (message,) = units[name].step(Request(name))
                assert pay is not None
                pay(message)
                said.append(message)
            return said

        fit, messages = _asked(fit, recording, ROWS, privacy, units, talk)
    acting = np.full(server.B.shape[1], np.nan)
    for name, point in fit.points.items():
        if point.same_row:  # what acts on the last row before stands in the first new one
            acting[server.input_slices[name]] = recording[name].u[0] - point.input_level
    followed = couplings.model.on(couplings.shared).follow(SharedRecord.from_messages(messages), acting)
    traffic = Traffic(1, sum(encoded_size(message) for message in messages), 0)
    caveats = (*(c for c in fit.server_caveats if c.code not in STALE), *followed.notes)
    if followed.chosen is not None:
        return _chosen_anew(fit, followed.chosen, followed.told, caveats), traffic
    found, status, plant = followed.found, replace(fit.status, message=followed.told), fit.plant
    if found is not None:
        status = Status(found.converged, found.evaluations, float(np.sqrt(found.decrement)), followed.told)
        plant = plant.replace(A=found.A, B=found.B)
    kept = replace(couplings, **followed.kept)  # type: ignore[arg-type]
    return replace(fit, couplings=kept, status=status, plant=plant, server_caveats=caveats), traffic


def _chosen_anew(fit: Fit, chosen: Chosen, told: str, caveats: tuple[Caveat, ...]) -> Fit:
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
    made = replace(
        fit, couplings=couplings, status=replace(status, message=told), parts={name: parts[name] for name in fit.parts},
        plant=plant_of(parts, found.A, found.B, found.Q, fit.plant.dt),
        server_caveats=(*notes, *(caveat for caveat in caveats if caveat.code in LASTING)),
    )  # fmt: skip
    return replace(made, server_caveats=(*made.server_caveats, *failed_checks(made.server, made.status)))


def _without_new_doubts(
    couplings: Couplings, notes: tuple[Caveat, ...], fit: Fit
) -> tuple[Couplings, tuple[Caveat, ...]]:
    """What earlier rows have determined stays so, though they are no longer kept."""
    assert fit.couplings is not None
    doubted = {(doubt.effect, doubt.cause, doubt.letter, doubt.channels) for doubt in fit.couplings.doubts}
    still = [d for d in couplings.doubts if (d.effect, d.cause, d.letter, d.channels) in doubted]
    gone = {doubt.caveat for doubt in couplings.doubts} - {doubt.caveat for doubt in still}
    return replace(couplings, doubts=tuple(still)), tuple(note for note in notes if note not in gone)


# ---- windows of moments


class Window(NamedTuple):
    """What all windows tell together: ``fit`` with its account, ``rows`` of inputs of the new one."""

    fit: Fit
    couplings: Couplings
    rows: FloatArray
    caveats: tuple[Caveat, ...]
    traffic: Traffic
    models: Mapping[str, LocalModel]  # of units whose models were found


def _window_joined(fit: Fit, recording: Recording, privacy: Privacy | None) -> tuple[Fit, Traffic]:
    couplings, logs = fit.couplings, bool(fit.points)
    assert couplings is not None
    if couplings.spread is None or (logs and couplings.windows is None):
        raise OptionError("update: this fit keeps nothing that a window could be joined with; fit all rows again")
    if privacy is not None and privacy.release == "rows":
        raise OptionError("update: a fit by moments takes in moments; leave release out")
    repeated = _repeated(fit, recording, privacy)
    if repeated and privacy is not None:  # whatever is said of its place, its rows may be those of an earlier one
        privacy = replace(privacy, start=None)
    window = (_log_window if logs else _model_window)(fit, recording, privacy)
    found, record = window.couplings.found, window.couplings.shared
    told = f"joined with a window of {recording.rows} rows in {found.evaluations} steps"
    parts, plant = dict(fit.parts), fit.plant.replace(A=found.A, B=found.B)
    for name, model in window.models.items():
        parts[name] = replace(parts[name], model=model, estimator=KalmanEstimator(model))
    if window.models:
        plant = plant.replace(R=block_diagonal([window.models[name].R for name in plant.names]))
    if privacy is not None:  # a unit knows the rows again which it has released
        for name, part in parts.items():
            digests = f"{part.rows_digest or ''} {_digest(part, recording)}".strip()
            parts[name] = replace(part, rows_digest=digests)
    u = np.vstack([couplings.shared.u, window.rows])
    record = replace(record, u=u, values=np.full((len(u), record.values.shape[1]), np.nan))
    kept = (c for c in fit.server_caveats if c.code not in STALE_OF_WINDOWS)
    doubts = (doubt.caveat for doubt in window.couplings.doubts)
    made = replace(
        window.fit, couplings=replace(window.couplings, shared=record), parts=parts, plant=plant,
        status=Status(found.converged, found.evaluations, float(np.sqrt(found.decrement)), told),
        server_caveats=(*kept, *doubts, *window.caveats, *repeated),
    )  # fmt: skip
    return made, window.traffic


def _model_window(fit: Fit, recording: Recording, privacy: Privacy | None) -> Window:
    couplings, names = fit.couplings, fit.plant.names
    assert couplings is not None
    spread, found = couplings.spread, couplings.found
    assert spread is not None
    x, known = spread.parameters.pack(np.hstack([found.A, found.B])), np.nan_to_num(spread.covariance)
    before = Quadratic(x, np.asarray(np.linalg.pinv(known, hermitian=True)))
    started = MomentEstimate(found.A, found.B, known, known, 0.0, 0, 0, True, False, 0.0)
    edges = couplings.model.known
    options = {} if edges is None else {"edges": edges.edges, "forbidden": edges.forbidden}
    task = LocalTask(fit.method, {n: fit.parts[n].unit.inputs for n in names}, options, privacy=privacy)
    units = {name: ExchangeUnit(MOMENTS, task, _brought(fit.parts[name], recording, privacy)) for name in names}
    fit, (done, traffic) = _moments_of(fit, recording, MOMENTS, MomentMemory(found=started, before=before), units)
    made = done.memory.found
    assert isinstance(made, MomentEstimate)
    estimated = replace(
        found, A=made.A, B=made.B, converged=made.converged, evaluations=made.steps, decrement=made.left
    )
    covariance, notes = doubted_covariance(done.work, done.memory)
    joined = Uncertainty(spread.parameters, covariance).with_doubts(couplings.doubts)
    couplings = replace(couplings, found=estimated, spread=joined)
    return Window(fit, couplings, done.work.u, (*notes, shown(privacy is not None)), traffic, {})


def _log_window(fit: Fit, recording: Recording, privacy: Privacy | None) -> Window:
    couplings, names = fit.couplings, fit.plant.names
    assert couplings is not None
    before = couplings.windows
    assert before is not None
    task = LocalTask(
        fit.method, {name: fit.parts[name].unit.inputs for name in names},
        {"same_row": {name: point.same_row for name, point in fit.points.items()}}, privacy=privacy, from_logs=True,
    )  # fmt: skip
    LOG_MOMENTS.check(task)
    units = {}
    for name in names:
        part, own = fit.parts[name], _brought(fit.parts[name], recording, privacy)
        standard = MomentUnitMemory(standard=_standard(part, recording))
        units[name] = ExchangeUnit(LOG_MOMENTS, task, replace(own, model=None), standard)
        other = np.flatnonzero(rows_and_channels(own.y)[1] != (np.abs(part.model.C).sum(axis=1) > 0))
        if len(other):
            raise DataError(
                f"update: unit {name!r}: channel {part.unit.output_names[other[0]]!r} was read most of the time in the "
                "fit or in these rows, and not in the other; give rows in which the same channels are read",
                code="other-channels",
            )
    begun = MomentMemory(found=LogFound.from_windows(before.units, before.bank), before=before)
    fit, (done, traffic) = _moments_of(fit, recording, LOG_MOMENTS, begun, units)
    learned = LOG_MOMENTS.learned(task, done, couplings.doubts)
    assert learned.couplings is not None
    memories = {name: unit.memory for name, unit in units.items()}
    models = {n: each.model for n, each in memories.items() if isinstance(each, MomentUnitMemory) and each.model}
    return Window(fit, learned.couplings, learned.couplings.shared.u, learned.caveats, traffic, models)


def _moments_of(
    fit: Fit, recording: Recording, method: Release, begun: MomentMemory, units: dict[str, ExchangeUnit]
) -> tuple[Fit, tuple[Any, Traffic]]:
    """The exchange about one window: the server's state at its end; ``units`` are brought to theirs."""
    task = next(iter(units.values())).task

    def talk(pay: Callable[[Message], None] | None) -> tuple[Any, Traffic]:
        done, states, traffic = engine.run(replace(method.server(task), memory=begun), units, leaving=pay)
        units.update(states)  # type: ignore[arg-type]
        return done, traffic

    return _asked(fit, recording, method, task.privacy, units, talk)


def _brought(part: UnitPart, recording: Recording, privacy: Privacy | None) -> UnitData:
    """What a unit brings of new rows: its readings as they are where they are to be private."""
    own = recording[part.unit.name]
    return UnitData(part.unit, own.y if privacy is not None else part.believed(own.y), own.u, part.model)


def _standard(part: UnitPart, recording: Recording) -> tuple[FloatArray, FloatArray]:
    """Middle and half width of the channels by which a unit's numbers were standardised in the first window."""
    for channel, now in zip(part.unit.outputs, recording[part.unit.name].unit.outputs, strict=True):
        if None not in (now.limits, channel.limits) and now.limits != channel.limits:
            raise DataError(
                f"update: unit {part.unit.name!r}: channel {channel.name!r} has limits {now.limits} here, and "
                f"{channel.limits} in the fit, by which it is standardised; give the same, or fit these rows anew",
                code="other-limits",
            )
    half = np.abs(part.model.C).max(axis=1)  # the first function of a bank is 1 at once, and no other is
    assert part.output_level is not None
    return part.output_level, np.where(half > 0, half, 1.0)


def _digest(part: UnitPart, recording: Recording) -> str:
    own = recording[part.unit.name]
    return UnitData(part.unit, own.y, own.u).digest


def _repeated(fit: Fit, recording: Recording, privacy: Privacy | None) -> tuple[Caveat, ...]:
    """DataError if rows were taken in already; a caveat if inputs are the same again, and measurements may be.

    Rows that count twice would make intervals too narrow, whatever the ledger makes of them.
    """
    taken = [name for name, part in fit.parts.items() if _digest(part, recording) in (part.rows_digest or "").split()]
    if fit.privacy is not None and privacy is not None and privacy.start is not None:
        first, last = privacy.span(recording.rows)
        for name, unit in fit.privacy.units.items():
            spans = {(e.cost.start, e.cost.stop) for e in unit.entries} - {ANY_ROWS}
            taken += [name] if any(start < last and first < stop for start, stop in spans) else []
    if fit.privacy is None and privacy is None and fit.provenance.data_digest == recording.digest:
        taken = list(fit.names)
    if taken:
        raise DataError(
            f"update: rows of unit {taken[0]!r} were taken in already: give rows that follow", code="rows-repeated"
        )
    assert fit.couplings is not None
    old, new = fit.couplings.shared.u, _acting(fit, recording)
    if min(len(old), len(new)) > 1 and any(point.same_row for point in fit.points.values()):
        old, new = old[:-1], new[:-1]
    try:
        refuse_repeated(old, new)
        refuse_repeated(new, old)
    except DataError:
        text = (
            "inputs of a window that was joined are those of an earlier one. If its measurements are, too, they count "
            "twice, and intervals are too narrow; nobody but the units can see that"
        )
        return (Caveat("inputs-repeated", "", text),)
    return ()


def _acting(fit: Fit, recording: Recording) -> FloatArray:
    """Inputs of a window as the record of the couplings has them; what acts on its last row may stand in the next."""
    pieces = []
    for name in fit.plant.names:
        u, point = recording[name].u, fit.points.get(name)
        if point is not None:
            u = (np.vstack([u[1:], u[-1:]]) if point.same_row else u) - point.input_level
        pieces.append(u)
    return np.hstack(pieces)
