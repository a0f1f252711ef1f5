"""What speaks against answers of a network, as it is learned from logs: precision, linearity, disturbances, drift."""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.estimation.network import Network
from counterflow.fits.checks.kinds import (
    CHANGE,
    LARGE_CHANGE,
    LARGE_SHARE,
    UNCLEAR,
    UNCLEAR_AT_ALL,
    Verdict,
)
from counterflow.fits.checks.material import Material
from counterflow.fits.checks.verdicts import Check, listed
from counterflow.questions.answering import Server
from counterflow.questions.knowledge import DOUBTFUL

STEP = 1.5  # standard deviations by which an input is stepped, to see how well its effect is known
AHEAD = 60  # rows that the effect is followed
SEEN = 0.025  # standard deviations that an effect must move a number by, in the root mean square, to be of interest
BEND, CLEARLY = 0.05, 2.0  # fall of the free runs' squared error by curvature: what matters, in standard errors
PARTS = 12  # of a half, whose scores give the error of a coefficient
SURE, NO_DOUBT = 5.0, 7.0  # standard errors from which a change is no accident: many are looked at, from few parts


def network_checks(server: Server, material: Material) -> list[Check]:
    """All that only a network has."""
    network = server.network
    assert network is not None
    return [
        _precision(server, network), _linearity(network), *_shared(material), *_drift(network, material)
    ]  # fmt: skip


def _precision(server: Server, network: Network) -> Check:
    """Which inputs' effects on other units are known well enough, by what the replicates say of steps."""
    rows, r, p = server.standard_rows, network.size, network.memory
    doubts = {}
    for j in range(len(network.owner) - r):
        cause = int(network.owner[r + j])
        added = np.zeros((AHEAD, len(network.owner) - r))
        added[:, j] = STEP * network.scale[r + j]
        inputs = np.tile(rows[-1, r:], (AHEAD, 1))
        found = network.difference(rows[-p:], inputs, added)[0] / network.scale[:r]
        for m, own in enumerate(network.number_slices):
            part = found[:, :, own]
            if m != cause and np.sqrt(np.square(part.mean(axis=0)).mean(axis=0)).max() >= SEEN:
                doubts[j, m] = network.doubt(part)
    bad = [pair for pair, doubt in doubts.items() if doubt > DOUBTFUL]
    share = len(bad) / len(doubts) if doubts else 0.0
    labels = [f"{unit.name} {name}" for unit in server.units for name in unit.input_names]
    named = [f"{labels[j]} on {network.names[m]}" for j, m in sorted(bad, key=lambda pair: -doubts[pair])]
    sure = len(doubts) - len(bad)
    finding = f"{sure} of {len(doubts)} effects of inputs on other units are known to an R² of 0.85 or better"
    if bad:
        finding += f"; the others are doubtful: {listed(named)}"
    verdict: Verdict = "fail" if share >= UNCLEAR_AT_ALL else "caution" if share > UNCLEAR else "pass"
    remedy = "" if verdict == "pass" else (
        "record more rows, move these inputs more and by themselves, or say which couplings there can be (edges=); "
        "read the intervals: they are as wide as the doubt"
    )  # fmt: skip
    short = f"{100 * share:.0f} % of the effects of inputs on other units are doubtful"
    data = {"doubts": np.array(sorted(doubts.values()), np.float64)}
    return Check("precision", "", verdict, share, "share of effects in doubt", finding, remedy, short, data)


def _linearity(network: Network) -> Check:
    gain, sure = network.bend
    bends = gain >= BEND and sure >= CLEARLY
    said = f"free runs over held-out rows err {100 * abs(gain):.1f} % {'less' if gain >= 0 else 'more'} with curvature"
    if bends:
        finding = f"gains change with the operating point ({said}); the fit bends with the plant, and so do its answers"
    elif network.curved:
        finding = f"gains hardly change with the operating point ({said}); the fit keeps what little curvature it found"
    else:
        finding = f"gains do not change with the operating point, as far as these rows tell ({said}); the fit is linear"
    return Check("linearity", "", "pass", gain, "fall of error by curvature", finding, data={"gain": np.array([gain])})


def _shared(material: Material) -> list[Check]:
    """One for each unit: do other units' residuals of the same row tell its own, as a common cause makes them?"""
    e = material.innovations.own
    n = len(e)
    out: list[Check] = []
    for own, name in zip(material.columns, material.names, strict=True):
        others = np.ones(e.shape[1], bool)
        others[own] = False
        if not others.any() or n < 4 * e.shape[1]:
            continue
        x, y = e[:, others], e[:, own]
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
        gram = x.T @ x + 1e-9 * np.eye(x.shape[1]) * max(float(np.trace(x.T @ x)), 1e-300)
        told = np.einsum("ij,ij->j", x.T @ y, np.linalg.solve(gram, x.T @ y))
        share = max(float(np.max(told / np.maximum(np.square(y).sum(axis=0), 1e-300) - x.shape[1] / n)), 0.0)
        verdict: Verdict = "caution" if share >= LARGE_SHARE else "pass"
        finding = f"what is not foreseen of the other units in a row tells {100 * share:.0f} % of that of {name}"
        remedy = short = ""
        if verdict != "pass":
            short = "something that nobody records moves several units at once; small effects may be taken from it"
            finding += ": something that nobody records moves several units at once (weather, supply, a shared load)"
            remedy = "record it as an input; until then trust large effects and wide intervals only"
        data = {"share": np.array([share])}
        counted = "share told by others"
        out.append(Check("shared disturbance", name, verdict, share, counted, finding, remedy, short, data))
    return out


def _drift(network: Network, material: Material) -> list[Check]:
    """One for each unit: does what each unit does to it, as the network foresees it, hold in both halves?

    What a unit brings to a number (of the number's own unit: beyond the last value) is one regressor; residuals are
    regressed on all of them in each half. The difference of a coefficient is the relative change of what a unit does.
    Its error comes from blocks of neighbouring rows, which may go together.
    """
    assert material.z is not None
    z, r, p = np.nan_to_num(material.z), network.size, network.memory
    there = material.innovations.measured.all(axis=1)
    residual = z[p:, :r] - network.mean.predicted(z)[0]
    brought = network.mean.brought(z)  # (units, T - p, r)
    rows = np.flatnonzero(there)
    out = []
    for m, (own, name) in enumerate(zip(network.number_slices, network.names, strict=True)):
        change, sure = np.zeros(len(network.names)), np.zeros(len(network.names))
        for i in range(own.start, own.stop):
            x = brought[:, rows, i].T.copy()
            x[:, m] -= z[p - 1 : -1, i][rows]
            halves = np.array_split(np.arange(len(rows)), 2)
            one, two = (_coefficients(x[part], residual[rows[part], i]) for part in halves)
            if one is None or two is None:
                continue
            gap, error = one[0] - two[0], np.sqrt(one[1] + two[1])
            t = np.abs(gap) / np.maximum(error, 1e-12)
            better = t > sure
            change, sure = np.where(better, np.abs(gap), change), np.where(better, t, sure)
        worst_unit = int(sure.argmax())
        number = float(change[worst_unit])
        certain = sure[worst_unit] > SURE
        verdict: Verdict = "pass"
        if certain and number > CHANGE:
            verdict = "fail" if number > LARGE_CHANGE and sure[worst_unit] > NO_DOUBT else "caution"
        finding = f"the two halves agree on what acts on {name}"
        remedy = short = ""
        if verdict != "pass":
            who = "itself" if worst_unit == m else network.names[worst_unit]
            finding = f"what {who} does to {name} changes by about {100 * number:.0f} % from one half to the other"
            short = finding
            remedy = (
                "fit a stretch in which the plant was run in one way, or fit each way of running it by itself; record "
                "what changed (a load, a season, wear) as an input"
            )
        data = {"changes": change, "sure": (sure > SURE).astype(np.float64)}
        told = (network.names[worst_unit],) if verdict != "pass" else ()
        shown = number if certain else 0.0
        out.append(Check("drift", name, verdict, shown, "relative change", finding, remedy, short, data, told))
    return out


def _coefficients(x: FloatArray, e: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Of e (n,) on columns x (n, k) and a level, with variances from blocks of rows; None if there are too few."""
    n = len(e)
    if n < 10 * PARTS:
        return None
    x = np.hstack([x - x.mean(axis=0), np.ones((n, 1))])
    size = np.sqrt(np.square(x).mean(axis=0))
    moving = size > 1e-6
    found, variance = np.zeros(len(size)), np.full(len(size), np.inf)
    x = x[:, moving] / size[moving]
    inverse = np.linalg.pinv(x.T @ x, rcond=1e-6)
    beta = inverse @ (x.T @ e)
    scores = np.array([part.sum(axis=0) for part in np.array_split(x * (e - x @ beta)[:, None], PARTS)])
    spread = inverse @ (scores.T @ scores) @ inverse * PARTS / (PARTS - 1)
    found[moving], variance[moving] = beta / size[moving], np.diag(spread) / size[moving] ** 2
    return found[:-1], variance[:-1]
