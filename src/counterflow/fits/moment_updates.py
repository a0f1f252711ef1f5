"""New windows for a fit by moments: each is a release of its own, joined with the earlier ones at the server.

What earlier windows told of the couplings is kept as a quadratic around the estimate, as in any update; the new window
begins where they have ended, so that little is left to clip from its first round on.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from counterflow._version import __version__
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.estimation.moments import MomentEstimate
from counterflow.estimation.optimiser import Quadratic
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.fits import engine
from counterflow.fits.engine import Traffic
from counterflow.fits.log_updates import refuse_repeated
from counterflow.methods.moments.method import clipping_of, misfit_of, moments_report
from counterflow.methods.moments.private import MECHANISM, SHARES, round_cost
from counterflow.methods.moments.server import MomentConfig, MomentServer
from counterflow.methods.moments.unit import MomentUnit
from counterflow.methods.outcome import Provenance, Status
from counterflow.methods.part import UnitPart
from counterflow.methods.privacy import PrivacyReport, Spending
from counterflow.methods.reaction import reactions_refused
from counterflow.methods.task import UnitData
from counterflow.plant import Recording
from counterflow.privacy import ANY_ROWS, Privacy, Stretch
from counterflow.protocol import Message, Moments

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

EARLIER = "the rows of the fit before this update: their moments were sent without noise"


def window_joined(fit: Fit, recording: Recording, privacy: Privacy | None) -> Fit:
    """``Fit.update`` of a fit that rests on moments."""
    couplings = fit.couplings
    assert couplings is not None
    spread = couplings.spread
    if spread is None or spread.parameters.estimate != "couplings":
        raise OptionError("update: moments of logs are not joined; fit the new window by itself, or give models")
    if privacy is None and fit.privacy is not None:
        raise PrivacyError(
            "update: this fit is private; moments of new rows would leave without noise. Pass privacy=..., too"
        )
    if privacy is not None and (privacy.accounting != "rigorous" or privacy.release == "rows"):
        raise OptionError("update: a fit by moments takes in moments, with rigorous accounting; leave release out")
    names = fit.plant.names
    repeated = _repeated(fit, recording, privacy)
    x = spread.parameters.pack(np.hstack([couplings.found.A, couplings.found.B]))
    known = np.nan_to_num(spread.covariance)
    before = Quadratic(x, np.asarray(np.linalg.pinv(known, hermitian=True)))
    rounds = 1 if privacy is None else len(SHARES)
    started = MomentEstimate(couplings.found.A, couplings.found.B, known, known, 0.0, 0, 0, True, False, 0.0)
    server = MomentServer(MomentConfig(tuple(names), rounds, couplings.known, before=before), found=started)
    units = {}
    for name in names:
        part, own = fit.parts[name], recording[name]
        y = own.y if privacy is not None else part.believed(own.y)
        units[name] = MomentUnit(name, part.model, y, own.u, privacy)
    done, report, traffic = _exchanged(fit, recording, privacy, server, units)
    found = done.found
    assert found is not None
    widening, notes = misfit_of(found)
    estimated = replace(
        couplings.found, A=found.A, B=found.B, converged=found.converged, evaluations=found.steps, decrement=found.left
    )
    digest = recording.digest if privacy is None else recording.public_digest
    whole = hashlib.sha256((fit.provenance.data_digest + digest).encode()).hexdigest()
    told = f"joined with a window of {recording.rows} rows in {found.steps} steps"
    covariance, clipped = clipping_of(done.designed, found, done.centred, done.moments)
    joined = Uncertainty(spread.parameters, widening * covariance).with_doubts(couplings.doubts)
    stale = ("drowned-by-noise", "moments-misfit", "clipped-rows")
    kept = tuple(c for c in fit.server_caveats if c.code not in stale and c not in repeated)
    parts = {name: _remembering(part, recording, privacy) for name, part in fit.parts.items()}
    shared = couplings.shared
    shared = replace(
        shared, u=np.vstack([shared.u, done.designed.u]),
        values=np.full((len(shared.u) + recording.rows, shared.values.shape[1]), np.nan),
    )  # fmt: skip
    before_it = fit.traffic
    return replace(
        fit, plant=fit.plant.replace(A=found.A, B=found.B), privacy=report, parts=parts,
        server_caveats=(*kept, *notes, *clipped, *repeated),
        status=Status(found.converged, found.steps, float(np.sqrt(found.left)), told),
        couplings=replace(couplings, found=estimated, spread=joined, shared=shared),
        traffic=Traffic(
            before_it.rounds + traffic.rounds, before_it.bytes_up + traffic.bytes_up,
            before_it.bytes_down + traffic.bytes_down,
        ),
        provenance=Provenance.of(__version__, fit.provenance.seed, whole, fit.method, {"after": fit.provenance.id}),
    )  # fmt: skip


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
    old, new = fit.couplings.shared.u, np.hstack([recording[name].u for name in fit.plant.names])
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


def _exchanged(
    fit: Fit, recording: Recording, privacy: Privacy | None, server: MomentServer, units: dict[str, MomentUnit]
) -> tuple[MomentServer, PrivacyReport | None, Traffic]:
    """The exchange about one window, paid for before anything leaves."""
    if privacy is None:
        done, _, traffic = engine.run(server, units)
        assert isinstance(done, MomentServer)
        return done, None, traffic
    for name in units:
        reactions_refused(fit.parts[name].unit, recording[name].y, recording[name].u)
    rows = {name: Stretch.numbered(recording[name].y, privacy.start) for name in units}
    costs = {name: [round_cost(privacy, recording.rows, number) for number in range(len(SHARES))] for name in units}
    models = {name: unit.model for name, unit in units.items()}
    label = f"update {recording.public_digest[:12]}"
    with Spending.start(privacy, tuple(units), label, MECHANISM, costs, models, rows) as spending:

        def leaving(message: Message) -> None:
            if isinstance(message, Moments):
                what = f"moments of {recording.rows} rows, round {message.round + 1} of {len(SHARES)}"
                spending.record(message.unit, costs[message.unit][message.round], what)

        done, states, traffic = engine.run(server, units, leaving=leaving)
        assert isinstance(done, MomentServer)
        releases = {name: state.release for name, state in states.items() if isinstance(state, MomentUnit)}
        report = moments_report(spending, releases, models=True)
    if fit.privacy is None:
        return done, replace(report, excluded=(EARLIER, *report.excluded)), traffic
    return done, report.after(fit.privacy), traffic
