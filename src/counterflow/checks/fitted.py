"""What a fit itself tells: did it arrive, is what it found stable, are effects known well enough?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from counterflow.arrays import slices
from counterflow.checks.figures import Pen
from counterflow.checks.material import Material
from counterflow.checks.verdicts import Check, Kind, Verdict, listed
from counterflow.exchange.rows import NEARLY
from counterflow.questions.answering import DOUBTFUL

TIME_CONSTANTS = 10  # of the slowest mode that a record should hold
INTEGRATOR = 1e-6  # distance to the unit circle below which a mode counts as one that never decays
FAR = 1.0  # standard errors that the gradient may still be worth where a fit calls itself converged
UNCLEAR, UNCLEAR_AT_ALL = 0.05, 0.15  # share of the effects on other units that are to be expected wrong
HALF = 2.0  # doubt of which half of the effects are wrong


class Convergence(Kind):
    name, claim, place = "convergence", "the fit arrived", 1
    unit_of_number = "gradient left"
    needs = "fit"

    def look(self, material: Material) -> Iterator[Check]:
        couplings, status = material.server.couplings, material.status
        assert status is not None
        verdict: Verdict = "pass"
        if not status.converged:
            verdict = "caution" if couplings is not None and status.gradient <= NEARLY else "fail"
        elif couplings is not None and status.gradient > FAR:  # flat, by the rule of fits from logs, but not there
            verdict = "caution"
        short = f"the fit has {'nearly' if verdict == 'caution' else 'not'} converged"
        remedy = "give more passes or rounds; look for units that hardly differ"
        trace = () if couplings is None else couplings.found.trace
        gradient = float(status.gradient)
        yield self.found("", gradient, status.message, short, remedy, verdict=verdict, trace=trace)

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        trace = checks[0].data["trace"]
        behind = np.maximum(trace.max() - trace, 1e-9)
        pen.axis.semilogy(np.arange(1, len(trace) + 1), behind, ".-", color=pen.shades[checks[0].verdict])
        pen.axis.xaxis.get_major_locator().set_params(integer=True)
        pen.labels("accepted step", "log-likelihood still to gain")


class Stability(Kind):
    """Spectral radius, and the slowest mode's time constant against the length of the record."""

    name, claim, place = "stability", "the estimated system is stable", 4
    unit_of_number = "spectral radius"
    needs = "fit"

    def look(self, material: Material) -> Iterator[Check]:
        server, rows = material.server, material.rows if "inputs" in material.has else 0
        poles = np.linalg.eigvals(server.A)
        radius = float(np.abs(poles).max())
        local = material.record.A_local if rows else server.A  # of methods that keep no rows, blocks are given
        own = slices(unit.states for unit in server.units)
        given = max((float(np.abs(np.linalg.eigvals(local[block, block])).max()) for block in own), default=0.0)
        constant = -1 / math.log(radius) if 0 < radius < 1 else (math.inf if radius >= 1 else 0.0)
        learned = server.model.learned
        verdict: Verdict = "pass"
        finding = f"spectral radius {radius:.4g}; the slowest mode decays in {constant:.3g} rows"
        remedy = short = ""
        if server.couplings is not None and server.couplings.found.at_bound:
            verdict = "fail"
            finding = f"the estimate rests on the stability bound (spectral radius {radius:.6g}): the data ask for more"
            short = "the estimate rests on the stability bound: the data ask for a system that is not stable"
            remedy = "look for a drift or an integrator that the units' models miss, and check these models"
        elif radius > 1 + INTEGRATOR and radius > given + INTEGRATOR:
            verdict, short = "fail", "the estimated system is unstable"
            finding = f"the estimated system is unstable (spectral radius {radius:.6g}): effects grow without end"
            remedy = "fit more rows; check the units' models; ask about short horizons only"
        elif radius >= 1 - INTEGRATOR:
            verdict, short = "pass" if learned else "caution", "a mode never decays, so that effects do not settle"
            finding = (
                f"a mode never decays (spectral radius {radius:.6g}), as a tank without outflow: effects do not settle"
            )
            remedy = "ask about a horizon that matters, not about where it ends"
        elif rows and constant * TIME_CONSTANTS > rows and not learned:  # of such, "precision" says it
            verdict = "caution"
            finding += f", and the record holds {rows / constant:.1f} times that: its slow end is hardly seen"
            short = f"the slowest mode decays in {constant:.3g} rows, of which the record holds few"
            remedy = f"record at least {math.ceil(TIME_CONSTANTS * constant)} rows, or ask about shorter horizons"
        yield self.found(
            "", radius, finding, short, remedy, verdict=verdict, real=poles.real, imaginary=poles.imag
        )  # fmt: skip

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        angle = np.linspace(0, 2 * np.pi, 200)
        pen.axis.plot(np.cos(angle), np.sin(angle), color=pen.colours[-1], linewidth=1)
        found = checks[0].data
        pen.axis.plot(found["real"], found["imaginary"], "x", color=pen.shades[checks[0].verdict], markersize=6)
        pen.axis.set_aspect("equal")
        pen.labels("poles of the estimated system, unit circle")


class Precision(Kind):
    """Which inputs' effects on other units are known well enough, by what members say of steps (fits from logs)."""

    name, claim, place = "precision", "effects are known well enough", 11
    unit_of_number = "share of effects expected wrong"
    always = False

    def wanted(self, material: Material) -> bool:
        return material.model.learned

    def look(self, material: Material) -> Iterator[Check]:
        doubts = material.grounded.step_doubts()
        bad = sorted((pair for pair, doubt in doubts.items() if doubt > DOUBTFUL), key=lambda pair: -doubts[pair])
        # how often an effect of such a doubt had an R² below 0.8 where the truth is known: check-before-answers.md
        wrong = [doubt / (doubt + HALF) if np.isfinite(doubt) else 1.0 for doubt in doubts.values()]
        share = float(np.mean(wrong)) if wrong else 0.0
        finding = f"of {len(doubts)} effects of inputs on other units {100 * share:.1f} % are expected wrong (R² < 0.8)"
        if bad:
            named = [f"{material.input_names[j]} on {material.names[m]}" for j, m in bad]
            finding += f"; in doubt are {listed(named)}"
        verdict: Verdict = "fail" if share >= UNCLEAR_AT_ALL else "caution" if share > UNCLEAR else "pass"
        yield self.found(
            "", share, finding,
            f"of the effects of inputs on other units {100 * share:.0f} % are to be expected wrong",
            "record more rows, move these inputs more and by themselves, or say which couplings there can be (edges=); "
            "read the intervals: they are as wide as the doubt",
            verdict=verdict, doubts=sorted(doubts.values()),
        )  # fmt: skip

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        """Of every effect of an input on another unit, least doubtful first."""
        doubts = np.minimum(checks[0].data["doubts"], 10.0)
        places, colour = np.arange(1, len(doubts) + 1), pen.shades[checks[0].verdict]
        pen.axis.semilogy(places, np.maximum(doubts, 1e-4), ".", color=colour)
        pen.line(DOUBTFUL)
        pen.labels("effects of inputs on other units", "expected 1 - R²")
