"""New windows for a fit by moments: each is a release of its own, joined with the earlier ones at the server.

With models, what earlier windows told of the couplings is kept as a quadratic around the estimate, as in any update.
From logs their moments are kept, and the estimate is that from all of them. Either way the new window begins where they
have ended, so that little is left to clip from its first round on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from counterflow._version import __version__
from counterflow.arrays import FloatArray, block_diagonal
from counterflow.caveats import Caveat, distinct
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.exchange.compression import rows_and_channels
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.exchange import Exchange
from counterflow.exchange.input_feedback import reactions_refused
from counterflow.exchange.log_moments import MomentsOfLogs
from counterflow.exchange.machines import ExchangeServer, ExchangeUnit
from counterflow.exchange.moments import MomentMemory, MomentUnitMemory, doubted_covariance, shown
from counterflow.exchange.outcome import Couplings, Provenance, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import PrivacyReport, promise
from counterflow.exchange.registry import LOG_MOMENTS, MOMENTS
from counterflow.exchange.task import LocalTask, Task, UnitData
from counterflow.fits import engine
from counterflow.fits.engine import Traffic
from counterflow.fits.log_updates import refuse_repeated
from counterflow.learning.log_moment_design import LogFound
from counterflow.learning.moments import MomentEstimate
from counterflow.learning.optimiser import Quadratic
from counterflow.learning.uncertainty import Uncertainty
from counterflow.plant import LocalModel, Recording, Unit
from counterflow.privacy import ANY_ROWS, Privacy

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

STALE = (  # codes of caveats that are of the windows so far
    "drowned-by-noise", "moments-misfit", "clipped-rows", "undetermined", "moments", "private", "simulated-noise",
)  # fmt: skip
EARLIER = "the rows of the fit before this update: their moments were sent without noise"


class Joined(NamedTuple):
    """What all windows tell together: ``rows`` of inputs are those of the new one."""

    couplings: Couplings
    rows: FloatArray
    caveats: tuple[Caveat, ...]
    models: Mapping[str, LocalModel]  # of units whose models were found


def window_joined(fit: Fit, recording: Recording, privacy: Privacy | None) -> Fit:
    """``Fit.update`` of a fit that rests on moments."""
    couplings = fit.couplings
    assert couplings is not None
    logs = fit.points != {}
    if couplings.spread is None or (logs and couplings.windows is None):
        raise OptionError("update: this fit keeps nothing that a window could be joined with; fit all rows again")
    if privacy is None and fit.privacy is not None:
        raise PrivacyError(
            "update: this fit is private; moments of new rows would leave without noise. Pass privacy=..., too"
        )
    if privacy is not None and (privacy.accounting != "rigorous" or privacy.release == "rows"):
        raise OptionError("update: a fit by moments takes in moments, with rigorous accounting; leave release out")
    repeated = _repeated(fit, recording, privacy)
    if repeated and privacy is not None:  # whatever is said of its place, its rows may be those of an earlier one
        privacy = replace(privacy, start=None)
    joined, report, traffic = (_from_logs if logs else _with_models)(fit, recording, privacy)
    found = joined.couplings.found
    digest = recording.digest if privacy is None else recording.public_digest
    whole = hashlib.sha256((fit.provenance.data_digest + digest).encode()).hexdigest()
    told = f"joined with a window of {recording.rows} rows in {found.evaluations} steps"
    promised = () if report is None else promise(report)
    doubts = (doubt.caveat for doubt in joined.couplings.doubts)
    kept = (c for c in fit.server_caveats if c.code not in STALE)
    parts = {name: _remembering(part, recording, privacy) for name, part in fit.parts.items()}
    plant = fit.plant.replace(A=found.A, B=found.B)
    if joined.models:
        parts = {
            name: replace(part, model=joined.models[name], estimator=KalmanEstimator(joined.models[name]))
            for name, part in parts.items()
        }
        plant = plant.replace(R=block_diagonal([joined.models[name].R for name in plant.names]))
    shared = joined.couplings.shared
    u = np.vstack([couplings.shared.u, joined.rows])
    shared = replace(shared, u=u, values=np.full((len(u), shared.values.shape[1]), np.nan))
    before_it = fit.traffic
    return replace(
        fit, plant=plant, privacy=report, parts=parts,
        server_caveats=distinct((*kept, *doubts, *joined.caveats, *promised, *repeated)),
        status=Status(found.converged, found.evaluations, float(np.sqrt(found.decrement)), told),
        couplings=replace(joined.couplings, shared=shared),
        traffic=Traffic(
            before_it.rounds + traffic.rounds, before_it.bytes_up + traffic.bytes_up,
            before_it.bytes_down + traffic.bytes_down,
        ),
        provenance=Provenance.of(__version__, fit.provenance.seed, whole, fit.method, {"after": fit.provenance.id}),
    )  # fmt: skip


def _with_models(
    fit: Fit, recording: Recording, privacy: Privacy | None
) -> tuple[Joined, PrivacyReport | None, Traffic]:
    couplings, names = fit.couplings, fit.plant.names
    assert couplings is not None
    spread = couplings.spread
    assert spread is not None
    x = spread.parameters.pack(np.hstack([couplings.found.A, couplings.found.B]))
    known = np.nan_to_num(spread.covariance)
    before = Quadratic(x, np.asarray(np.linalg.pinv(known, hermitian=True)))
    started = MomentEstimate(couplings.found.A, couplings.found.B, known, known, 0.0, 0, 0, True, False, 0.0)
    edges = couplings.model.known
    options = {} if edges is None else {"edges": edges.edges, "forbidden": edges.forbidden}
    task = LocalTask(fit.method, {n: fit.parts[n].unit.inputs for n in names}, options, privacy=privacy)
    own = {name: _brought(fit.parts[name], recording, privacy) for name in names}
    units = {name: ExchangeUnit(MOMENTS.what, task, own[name]) for name in names}
    begun = MomentMemory(found=started, before=before)
    done, _, report, traffic = _exchanged(fit, recording, MOMENTS, task, begun, units)
    design, memory = done.work, done.memory
    assert isinstance(memory, MomentMemory)
    found = memory.found
    assert isinstance(found, MomentEstimate)
    estimated = replace(
        couplings.found, A=found.A, B=found.B, converged=found.converged, evaluations=found.steps, decrement=found.left
    )
    covariance, notes = doubted_covariance(design, memory)
    joined = Uncertainty(spread.parameters, covariance).with_doubts(couplings.doubts)
    made = replace(couplings, found=estimated, spread=joined)
    return Joined(made, design.u, (*notes, shown(privacy is not None)), {}), report, traffic


def _from_logs(fit: Fit, recording: Recording, privacy: Privacy | None) -> tuple[Joined, PrivacyReport | None, Traffic]:
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
        standard = MomentUnitMemory(standard=_standard(part, recording[name].unit))
        units[name] = ExchangeUnit(LOG_MOMENTS.what, task, replace(own, model=None), standard)
        other = np.flatnonzero(rows_and_channels(own.y)[1] != (np.abs(part.model.C).sum(axis=1) > 0))
        if len(other):
            raise DataError(
                f"update: unit {name!r}: channel {part.unit.output_names[other[0]]!r} was read most of the time in the "
                "fit or in these rows, and not in the other; give rows in which the same channels are read",
                code="other-channels",
            )
    memory = MomentMemory(found=LogFound.from_windows(before.units, before.bank), before=before)
    done, states, report, traffic = _exchanged(fit, recording, LOG_MOMENTS, task, memory, units)
    what, models = LOG_MOMENTS.what, {}
    assert isinstance(what, MomentsOfLogs)
    learned = what.learned(task, done, couplings.doubts)
    for name, state in states.items():
        assert isinstance(state.memory, MomentUnitMemory)
        if state.memory.model is not None:
            models[name] = state.memory.model
    assert learned.couplings is not None
    return Joined(learned.couplings, learned.couplings.shared.u, learned.caveats, models), report, traffic


def _brought(part: UnitPart, recording: Recording, privacy: Privacy | None) -> UnitData:
    """What a unit brings to a window: its readings as they are where they are to be private."""
    own = recording[part.unit.name]
    return UnitData(part.unit, own.y if privacy is not None else part.believed(own.y), own.u, part.model)


def _standard(part: UnitPart, other: Unit) -> tuple[FloatArray, FloatArray]:
    """Middle and half width of the channels by which a unit's numbers were standardised in the first window."""
    for channel, now in zip(part.unit.outputs, other.outputs, strict=True):
        if None not in (now.limits, channel.limits) and now.limits != channel.limits:
            raise DataError(
                f"update: unit {part.unit.name!r}: channel {channel.name!r} has limits {now.limits} here, and "
                f"{channel.limits} in the fit, by which it is standardised; give the same, or fit these rows anew",
                code="other-limits",
            )
    half = np.abs(part.model.C).max(axis=1)  # the first function of a bank is 1 at once, and no other is
    assert part.output_level is not None
    return part.output_level, np.where(half > 0, half, 1.0)


def _remembering(part: UnitPart, recording: Recording, privacy: Privacy | None) -> UnitPart:
    """A unit that knows the rows again which it has released."""
    if privacy is None:
        return part
    own = recording[part.unit.name]
    digest = UnitData(part.unit, own.y, own.u).digest
    return replace(part, rows_digest=f"{part.rows_digest or ''} {digest}".strip())


def _repeated(fit: Fit, recording: Recording, privacy: Privacy | None) -> tuple[Caveat, ...]:
    """DataError if rows were taken in already; a caveat if inputs are the same again, and measurements may be.

    Rows that count twice would make intervals too narrow, whatever the ledger makes of them.
    """
    remedy = "give rows that follow"
    for name in fit.plant.names:
        part, own = fit.parts[name], recording[name]
        known = (part.rows_digest or "").split()
        same = UnitData(part.unit, own.y, own.u).digest in known
        if fit.privacy is not None and privacy is not None and privacy.start is not None:
            first, last = privacy.span(recording.rows)
            spans = [(e.cost.start, e.cost.stop) for e in fit.privacy.units[name].entries]
            spans = [span for span in spans if span != ANY_ROWS]
            same |= any(start < last and first < stop for start, stop in spans)
        if same:
            raise DataError(f"update: rows of unit {name!r} were taken in already: {remedy}", code="rows-repeated")
    if fit.privacy is None and privacy is None and fit.provenance.data_digest == recording.digest:
        raise DataError(f"update: these rows were taken in already: {remedy}", code="rows-repeated")
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


def _exchanged(
    fit: Fit, recording: Recording, method: Exchange, task: Task, memory: MomentMemory,
    units: Mapping[str, ExchangeUnit],
) -> tuple[ExchangeServer, Mapping[str, ExchangeUnit], PrivacyReport | None, Traffic]:  # fmt: skip
    """The exchange about one window, paid for before anything leaves."""
    for name in units if task.privacy is not None else ():
        point = fit.points.get(name)
        at_once = point is not None and point.same_row
        reactions_refused(fit.parts[name].unit, recording[name].y, recording[name].u, at_once)
    own = {name: unit.own for name, unit in units.items()}
    with engine.paying(method, task, own, f"update {recording.public_digest[:12]}") as payment:
        server, states, traffic = engine.run(replace(method.server(task), memory=memory), units, leaving=payment)
        done, machines = cast(ExchangeServer, server), cast(Mapping[str, ExchangeUnit], states)
        spending = payment.spending
        report = None if spending is None else method.privacy_report(task, spending, done, machines)
    if report is not None:
        earlier = fit.privacy
        report = replace(report, excluded=(EARLIER, *report.excluded)) if earlier is None else report.after(earlier)
    return done, machines, report, traffic
