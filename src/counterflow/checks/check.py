"""All checks of a fit, one after another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import slices
from counterflow.caveats import Caveat
from counterflow.checks.free_runs import HORIZON, FreeRun, free_run_checks, run_of_messages, run_of_recording
from counterflow.checks.innovations import drift_checks, size_checks, white_checks
from counterflow.checks.inputs import excitation_checks, feedback_checks
from counterflow.checks.kinds import KINDS, SOMETIMES, Verdict
from counterflow.checks.material import Material
from counterflow.checks.misfit import bend_checks, known_checks, shared_checks
from counterflow.checks.networks import network_checks
from counterflow.checks.verdicts import Check, Checks
from counterflow.exchange.outcome import Status
from counterflow.exchange.rows import NEARLY
from counterflow.learning.regime_sums import since
from counterflow.questions.answering import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from counterflow.exchange.part import UnitPart
    from counterflow.fits.fit import Fit
    from counterflow.plant import LocalModel, Recording

TIME_CONSTANTS = 10  # of the slowest mode that a record should hold
INTEGRATOR = 1e-6  # distance to the unit circle below which a mode counts as one that never decays
MOST_NUMBERS = 2_000_000  # that the server holds, up to which all rows are checked; of more, the newest
FAR = 1.0  # standard errors that the gradient may still be worth where a fit calls itself converged


def check(
    fit: Fit, recording: Recording | None = None, horizon: int = HORIZON,
    local: Mapping[str, LocalModel | UnitPart] | None = None,
) -> Checks:  # fmt: skip
    """Look at what speaks against a fit's answers.

    Parameters
    ----------
    recording : rows to look at, best such as the fit has not seen; None: those that it rests on, as the server knows
        them. Published methods keep none, so that without a recording most verdicts are "unknown". Of a private fit
        the server's own rows are looked at in any case: verdicts travel with answers, and may not tell of measurements.
    horizon : rows of the free runs.
    local : models of units alone for the free runs, as in `free_run`.

    Examples
    --------
    >>> import counterflow as cf
    >>> from counterflow.checks import check
    >>> plant = cf.random_plant(["boiler", "turbine"], rng=1)
    >>> found = check(cf.fit(plant.simulate(1000, rng=2), plant.locals()))
    >>> print(str(found).splitlines()[0])
    verdict: pass (22 pass; 1001 rows, those of the fit)
    >>> for each in found["free run"]:
    ...     print(f"{each.verdict}: {each.about} {each.number:.2f} ({each.unit_of_number})")
    pass: boiler 0.27 (error / persistence)
    pass: turbine 0.14 (error / persistence)
    """
    if fit.privacy is not None and recording is not None:
        fit.about(recording)  # refuses any but the fitted rows
        recording = None
    if recording is None:
        return server_checks(fit.server, fit.status, horizon)
    fitted = fit.provenance.data_digest == recording.digest
    if fitted and fit.server.grounded.regimes:  # the fit is about the last of them
        recording = recording.slice(since(fit.server.grounded.regimes))
    rows = recording

    def run(material: Material, horizon: int) -> FreeRun:
        return run_of_recording(fit, material, rows, horizon, None, local or {})

    return server_checks(fit.about(recording), fit.status, horizon, run, fitted)


def server_checks(
    server: Server, status: Status, horizon: int = HORIZON, run: Callable[[Material, int], FreeRun] | None = None,
    fitted: bool = True,
) -> Checks:  # fmt: skip
    """The same from what the server knows: what speaks against its answers, in the rows that it refers to.

    ``run``: free runs in place of those of the messages. ``fitted``: whether the fit rests on these rows.
    """
    server = server.present
    material = Material.of(server)
    found = [_convergence(server, status), _stability(server, material)]
    doubts = () if server.couplings is None else server.couplings.doubts
    if material is None or not server.has_rows:
        made = {"convergence", "stability", *SOMETIMES}
        text, remedy = f"method {server.method!r} keeps no rows to look at", "give a recording"
        if material is not None:
            made.add("excitation")
            found += excitation_checks(material, doubts)
            text = "units have sent moments alone, so that there are no rows to look at"
            remedy = "without privacy, give a recording; with it, fit with release='rows'"
        found += [Check(name, "", "unknown", math.nan, "", text, remedy) for name in KINDS if name not in made]
        return Checks(_sorted(_with_units(server, found)), 0 if material is None else material.rows, fitted)
    found += excitation_checks(material, doubts)
    for checks in (feedback_checks, white_checks, size_checks):
        found += checks(material)
    found += shared_checks(material)
    if server.model.known is not None:
        found += known_checks(material, server.model.known)
    if server.model.learned:
        found += network_checks(material)
    else:
        found += [*bend_checks(material), *drift_checks(material)]
    found += free_run_checks(material, horizon, run or run_of_messages)
    return Checks(_sorted(_with_units(server, found)), material.rows, fitted)


def failed_checks(server: Server, status: Status) -> tuple[Caveat, ...]:
    """What answers carry along of the checks: those that fail, and hints of feedback."""
    server = server.present
    shared, couplings = server.shared, server.couplings
    assert shared is not None
    width = shared.values.shape[1] + shared.u.shape[1]
    rows = MOST_NUMBERS // max(width, 1)
    found = server_checks(replace(server, shared=shared.last(rows)) if len(shared.values) > rows else server, status)
    doubted = couplings is not None and bool(couplings.doubts)  # doubts are caveats already
    kept = tuple(c for c in found.checks if c.name != "convergence" and (c.name != "excitation" or not doubted))
    faint = tuple(c for c in found.checks if c.name == "feedback")  # of feedback a hint is enough to be told
    return (*replace(found, checks=kept).caveats(), *replace(found, checks=faint).caveats("caution"))


def _with_units(server: Server, found: list[Check]) -> list[Check]:
    """The checks with all units that they tell of."""
    owners: dict[str, tuple[str, ...]] = {}
    for unit in server.units:
        for about in (unit.name, *(f"{unit.name} {name}" for name in unit.input_names)):
            owners[about] = (*owners.get(about, ()), unit.name)
    return [replace(check, units=tuple(dict.fromkeys((*owners.get(check.about, ()), *check.units)))) for check in found]


def _sorted(found: list[Check]) -> tuple[Check, ...]:
    order = list(KINDS)
    return tuple(sorted(found, key=lambda each: order.index(each.name)))


def _convergence(server: Server, status: Status) -> Check:
    couplings = server.couplings
    trace = () if couplings is None else couplings.found.trace
    verdict: Verdict = "pass"
    if not status.converged:
        verdict = "caution" if couplings is not None and status.gradient <= NEARLY else "fail"
    elif couplings is not None and status.gradient > FAR:  # flat, by the rule of fits from logs, but not there
        verdict = "caution"
    short = {"pass": "", "caution": "the fit has nearly converged", "fail": "the fit has not converged"}[verdict]
    remedy = "" if verdict == "pass" else "give more passes or rounds; look for units that hardly differ"
    return Check(
        "convergence", "", verdict, float(status.gradient), "gradient left", status.message, remedy, short,
        {"trace": np.array(trace, np.float64)},
    )  # fmt: skip


def _stability(server: Server, material: Material | None) -> Check:
    """Spectral radius, and the slowest mode's time constant against the length of the record."""
    poles = np.linalg.eigvals(server.A)
    radius = float(np.abs(poles).max())
    local = server.A if material is None else material.record.A_local  # of methods that keep no rows, blocks are given
    own = slices(unit.states for unit in server.units)
    given = max((float(np.abs(np.linalg.eigvals(local[block, block])).max()) for block in own), default=0.0)
    bound = server.couplings is not None and server.couplings.found.at_bound
    constant = -1 / math.log(radius) if 0 < radius < 1 else (math.inf if radius >= 1 else 0.0)
    rows = 0 if material is None else material.rows
    verdict: Verdict = "pass"
    finding = f"spectral radius {radius:.4g}; the slowest mode decays in {constant:.3g} rows"
    remedy = short = ""
    if bound:
        verdict = "fail"
        finding = f"the estimate rests on the stability bound (spectral radius {radius:.6g}): the data ask for more"
        short = "the estimate rests on the stability bound: the data ask for a system that is not stable"
        remedy = "look for a drift or an integrator that the units' models miss, and check these models"
    elif radius > 1 + INTEGRATOR and radius > given + INTEGRATOR:
        verdict = "fail"
        finding = f"the estimated system is unstable (spectral radius {radius:.6g}): effects grow without end"
        short = "the estimated system is unstable"
        remedy = "fit more rows; check the units' models; ask about short horizons only"
    elif radius >= 1 - INTEGRATOR:
        verdict = "caution" if not server.model.learned else "pass"
        finding = (
            f"a mode never decays (spectral radius {radius:.6g}), as a tank without outflow: effects do not settle"
        )
        short = "a mode never decays, so that effects do not settle"
        remedy = "ask about a horizon that matters, not about where it ends"
    elif rows and constant * TIME_CONSTANTS > rows and not server.model.learned:  # of such,, "precision" says it
        verdict = "caution"
        finding += f", and the record holds {rows / constant:.1f} times that: its slow end is hardly seen"
        short = f"the slowest mode decays in {constant:.3g} rows, of which the record holds few"
        remedy = f"record at least {math.ceil(TIME_CONSTANTS * constant)} rows, or ask about shorter horizons"
    return Check(
        "stability", "", verdict, radius, "spectral radius", finding, remedy, short,
        {"real": np.array(poles.real, np.float64), "imaginary": np.array(poles.imag, np.float64)},
    )  # fmt: skip
