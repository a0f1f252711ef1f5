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
from counterflow.errors import OptionError, PrivacyError
from counterflow.estimation.moments import MomentEstimate
from counterflow.estimation.optimiser import Quadratic
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.fits import engine
from counterflow.fits.engine import Traffic
from counterflow.methods.moments.method import misfit_of, moments_report
from counterflow.methods.moments.private import MECHANISM, SHARES, round_cost
from counterflow.methods.moments.server import MomentConfig, MomentServer
from counterflow.methods.moments.unit import MomentUnit
from counterflow.methods.outcome import Provenance, Status
from counterflow.methods.privacy import PrivacyReport, Spending
from counterflow.methods.reaction import reactions_refused
from counterflow.plant import Recording
from counterflow.privacy import Privacy, Stretch
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
    joined = Uncertainty(spread.parameters, widening * found.covariance).with_doubts(couplings.doubts)
    estimated = replace(
        couplings.found, A=found.A, B=found.B, converged=found.converged, evaluations=found.steps, decrement=found.left
    )
    digest = recording.digest if privacy is None else recording.public_digest
    whole = hashlib.sha256((fit.provenance.data_digest + digest).encode()).hexdigest()
    told = f"joined with a window of {recording.rows} rows in {found.steps} steps"
    kept = tuple(c for c in fit.server_caveats if c.code not in ("drowned-by-noise", "moments-misfit"))
    before_it = fit.traffic
    return replace(
        fit, plant=fit.plant.replace(A=found.A, B=found.B), privacy=report, server_caveats=(*kept, *notes),
        status=Status(found.converged, found.steps, float(np.sqrt(found.left)), told),
        couplings=replace(couplings, found=estimated, spread=joined),
        traffic=Traffic(
            before_it.rounds + traffic.rounds, before_it.bytes_up + traffic.bytes_up,
            before_it.bytes_down + traffic.bytes_down,
        ),
        provenance=Provenance.of(__version__, fit.provenance.seed, whole, fit.method, {"after": fit.provenance.id}),
    )  # fmt: skip


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
