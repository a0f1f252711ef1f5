"""All checks of a fit, one after another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from counterflow.caveats import Caveat
from counterflow.checks.free_runs import HORIZON, FreeRun, run_of_recording
from counterflow.checks.material import Material
from counterflow.checks.verdicts import Check, Checks, kinds
from counterflow.exchange.outcome import Status
from counterflow.learning.regime_sums import since
from counterflow.questions.answering import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from counterflow.exchange.part import UnitPart
    from counterflow.fits.fit import Fit
    from counterflow.plant import LocalModel, Recording

MOST_NUMBERS = 2_000_000  # that the server holds, up to which all rows are checked; of more, the newest


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
    material = Material(server.present, status, horizon, run)
    if "inputs" in material.has:
        missing = "units have sent moments alone, so that there are no rows to look at"
        remedy = "without privacy, give a recording; with it, fit with release='rows'"
    else:
        missing, remedy = f"method {server.method!r} keeps no rows to look at", "give a recording"
    found: list[Check] = []
    for kind in kinds().values():
        if kind.needs in material.has:
            found += kind.look(material) if kind.wanted(material) else ()
        elif kind.always:
            found.append(Check(kind.name, "", "unknown", math.nan, "", missing, remedy))
    return Checks(_with_units(server, found), material.rows if "inputs" in material.has else 0, fitted)


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


def _with_units(server: Server, found: list[Check]) -> tuple[Check, ...]:
    """The checks with all units that they tell of."""
    owners: dict[str, tuple[str, ...]] = {}
    for unit in server.units:
        for about in (unit.name, *(f"{unit.name} {name}" for name in unit.input_names)):
            owners[about] = (*owners.get(about, ()), unit.name)
    told = [dict.fromkeys((*owners.get(check.about, ()), *check.units)) for check in found]
    return tuple(replace(check, units=tuple(units)) for check, units in zip(found, told, strict=True))
