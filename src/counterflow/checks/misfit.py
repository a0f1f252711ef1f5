"""What innovations tell of a model's form: do they bend with the operating point, do units share a disturbance?"""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.checks.kinds import LARGE_SHARE, Verdict
from counterflow.checks.material import Material
from counterflow.checks.verdicts import Check
from counterflow.identification.sparse import sparse_weights
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import owners

COST = 9.0  # nats that a product must bring to be taken for curvature
SLIGHT, STRONG = 0.01, 0.05  # share of innovations that products tell: worth a word, too much for a linear model
MOST_COLUMNS = 40  # whose products are all looked at; of more, their squares
MOST_ROWS = 50_000  # the newest
LUCK = 2.0  # standard deviations of a share that noise tells


def bend_checks(material: Material) -> list[Check]:
    """One for each unit with a given, linear model: do products of signals and inputs foretell its innovations?"""
    first = max(material.innovations.first, material.rows - MOST_ROWS)
    e = material.innovations.own[first - material.rows :]
    there = material.innovations.measured[first - material.rows :]
    x = _standard(material.grounded.signals[first - 1 : -1])
    one, two = np.triu_indices(x.shape[1])
    if x.shape[1] > MOST_COLUMNS:
        one = two = np.arange(x.shape[1])
    F = _standard(x[:, one] * x[:, two]) if x.shape[1] else np.zeros((len(e), 0))
    out = []
    for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
        used = there[:, m]
        count = int(used.sum())
        if count < 50 or own.stop == own.start or not F.shape[1]:
            finding = f"{name} was measured in too few rows to tell"
            out.append(Check("linearity", name, "unknown", float("nan"), "share told by products", finding))
            continue
        gram = F[used].T @ F[used]
        shares = [_share(gram, F[used], e[used, k]) for k in range(own.start, own.stop)]
        share = float(np.max(shares))
        verdict: Verdict = "fail" if share >= STRONG else "caution" if share >= SLIGHT else "pass"
        finding = f"products of signals and inputs foretell {100 * share:.2g} % of the innovations of {name}"
        remedy = short = ""
        if verdict != "pass":
            short = f"gains change with the operating point, and the given model of {name} does not"
            finding += ": gains change with the operating point"
            remedy = "fit from logs, without models, which bends with the plant; or fit a stretch around one point"
        data = {"gain": np.array([share])}
        out.append(Check("linearity", name, verdict, share, "share told by products", finding, remedy, short, data))
    return out


def shared_checks(material: Material) -> list[Check]:
    """One for each unit: do other units' residuals of the same row tell its own, as a common cause makes them?"""
    e, measured = material.innovations.own, material.innovations.measured
    out: list[Check] = []
    for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
        others = np.ones(e.shape[1], bool)
        others[own] = False
        n = int(measured[:, m].sum())
        if not others.any() or n < 4 * e.shape[1]:
            continue
        x, y = e[measured[:, m]][:, others], e[measured[:, m]][:, own]
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
        gram = x.T @ x + 1e-9 * np.eye(x.shape[1]) * max(float(np.trace(x.T @ x)), 1e-300)
        told = np.einsum("ij,ij->j", x.T @ y, np.linalg.solve(gram, x.T @ y))
        chance = (x.shape[1] + LUCK * np.sqrt(2 * x.shape[1])) / n  # what as many columns of noise may tell
        share = max(float(np.max(told / np.maximum(np.square(y).sum(axis=0), 1e-300) - chance)), 0.0)
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


def known_checks(material: Material, known: KnownEdges) -> list[Check]:
    """One for each unit that others were said not to act on: do their signals and inputs foretell its innovations?"""
    e = material.innovations.own
    begin, signals = material.innovations.first, material.grounded.signals
    owner = owners(*([own.stop - own.start for own in part] for part in (material.columns, material.inputs)))
    rows = np.arange(begin, material.rows)[-MOST_ROWS:]
    e = e[-len(rows) :]
    near = signals[np.maximum(rows - 1, 0)]
    far = np.mean([signals[np.maximum(rows - k, 0)] for k in range(2, 7)], axis=0)
    out = []
    for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
        closed = [n for n, cause in enumerate(material.names) if not known.allows(cause, name)]
        used = material.innovations.measured[-len(rows) :, m]
        if not closed or own.stop == own.start or used.sum() < 50:
            continue
        shares = {}
        for n in closed:
            F = _standard(np.hstack([near[used][:, owner == n], far[used][:, owner == n]]))
            gram = F.T @ F
            shares[n] = max((_share(gram, F, e[used, k]) for k in range(own.start, own.stop)), default=0.0)
        worst = max(shares, key=lambda n: shares[n])
        share = shares[worst]
        verdict: Verdict = "fail" if share >= STRONG else "caution" if share >= SLIGHT else "pass"
        cause = material.names[worst]
        finding = f"{cause}, which was said not to act on {name}, foretells {100 * share:.2g} % of its innovations"
        remedy = short = ""
        if verdict != "pass":
            short = f"the data speak for a coupling {cause} -> {name} that was ruled out"
            remedy = f"allow {cause} -> {name}, or look for what moves both and is not recorded"
        data = {"share": np.array([share])}
        counted = "share told by what was ruled out"
        found = Check("known couplings", name, verdict, share, counted, finding, remedy, short, data, (cause,))
        out.append(found)
    return out


def _standard(columns: FloatArray) -> FloatArray:
    """Mean zero and standard deviation one; columns that never move become zero."""
    centred = columns - columns.mean(axis=0)
    size = centred.std(axis=0)
    return np.asarray(centred / np.where(size > 1e-12, size, np.inf))


def _share(gram: FloatArray, F: FloatArray, e: FloatArray) -> float:
    """Share of e (n,) that a few columns of F (n, k) tell, each worth its cost."""
    e = e - e.mean()
    energy, cost = float(e @ e), np.full(F.shape[1], COST)
    if energy <= 0:
        return 0.0
    found = sparse_weights(gram, F.T @ e, energy, len(e), np.arange(F.shape[1]), cost, cost)
    return max(1.0 - found.noise * len(e) / energy, 0.0) if len(found.chosen) else 0.0
