"""What innovations tell of a model's form: do they bend with the operating point, do units share a disturbance?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.checks.material import Material
from counterflow.checks.numbers import standardised
from counterflow.checks.verdicts import Check, Kind, percent
from counterflow.identification.sparse import sparse_weights
from counterflow.learning.model import BoolArray
from counterflow.learning.network import owners

COST = 9.0  # nats that a product must bring to be taken for curvature
SLIGHT, STRONG = 0.01, 0.05  # share of innovations that products tell: worth a word, too much for a linear model
MOST_COLUMNS = 40  # whose products are all looked at; of more, their squares
MOST_ROWS, FEWEST_ROWS = 50_000, 50  # the newest; about which anything can be said
LARGE_SHARE = 0.08  # of a unit's residuals that those of other units tell
BEND, CLEARLY = 0.05, 2.0  # fall of the free runs' squared error by curvature: what matters, in standard errors
LUCK = 2.0  # standard deviations of a share that noise tells


class Linearity(Kind):
    """Of a model from logs: does it bend? Of each unit with a given, linear one: do products foretell innovations?"""

    name, claim, place = "linearity", "gains do not change unnoticed with the operating point", 8
    unit_of_number = "share told by products"
    limits = (SLIGHT, STRONG)
    bars = ("fall of the error of free runs by curvature", None, None)

    def look(self, material: Material) -> Iterator[Check]:
        return self._of_network(material) if material.model.learned else self._of_models(material)

    def _of_models(self, material: Material) -> Iterator[Check]:
        e, there, rows = _newest(material)
        x = standardised(material.grounded.signals[rows - 1])
        one, two = np.triu_indices(x.shape[1])
        if x.shape[1] > MOST_COLUMNS:
            one = two = np.arange(x.shape[1])
        F = standardised(x[:, one] * x[:, two]) if x.shape[1] else np.zeros((len(e), 0))
        for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
            used = there[:, m]
            if used.sum() < FEWEST_ROWS or own.stop == own.start or not F.shape[1]:
                yield self.unknown(name, remedy="", short="")
                continue
            share = _share(F[used], e[used, own])
            yield self.found(
                name, share, f"products of signals and inputs foretell {percent(share)} of the innovations of {name}",
                f"gains change with the operating point, and the given model of {name} does not",
                "fit from logs, without models, which bends with the plant; or fit a stretch around one point",
                more=": gains change with the operating point", gain=share,
            )  # fmt: skip

    def _of_network(self, material: Material) -> Iterator[Check]:
        curvature = material.model.curvature
        assert curvature is not None
        gain, sure, used = curvature
        errs = f"{100 * abs(gain):.1f} % {'less' if gain >= 0 else 'more'}"
        said = f"(free runs over held-out rows err {errs} with curvature)"
        if gain >= BEND and sure >= CLEARLY:
            finding = f"change with the operating point {said}; the fit bends with the plant, and so do its answers"
        elif used:
            finding = f"hardly change with the operating point {said}; the fit keeps what little curvature it found"
        else:
            finding = f"do not change with the operating point, as far as these rows tell {said}; the fit is linear"
        found = self.found("", gain, f"gains {finding}", verdict="pass", gain=gain)
        yield replace(found, unit_of_number="fall of error by curvature")


class SharedDisturbance(Kind):
    """Do other units' residuals of the same row tell a unit's own, as a common cause makes them?"""

    name, claim, place = "shared disturbance", "nothing unrecorded moves several units at once", 9
    unit_of_number = "share told by others"
    limits = (LARGE_SHARE, np.inf)
    bars = ("share of residuals that other units' tell", LARGE_SHARE, 1.0)

    def of_unit(self, material: Material, m: int, name: str) -> Iterator[Check]:
        e, used, own = material.innovations.own, material.innovations.measured[:, m], material.columns[m]
        others = np.ones(e.shape[1], bool)
        others[own] = False
        n = int(used.sum())
        if not others.any() or n < 4 * e.shape[1]:
            return
        x, y = e[used][:, others], e[used][:, own]
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
        gram = x.T @ x + 1e-9 * np.eye(x.shape[1]) * max(float(np.trace(x.T @ x)), 1e-300)
        told = np.einsum("ij,ij->j", x.T @ y, np.linalg.solve(gram, x.T @ y))
        chance = (x.shape[1] + LUCK * np.sqrt(2 * x.shape[1])) / n  # what as many columns of noise may tell
        share = max(float(np.nan_to_num(np.max(told / np.maximum(np.square(y).sum(axis=0), 1e-300) - chance))), 0.0)
        yield self.found(
            name, share,
            f"what is not foreseen of the other units in a row tells {percent(share)} of that of {name}",
            "something that nobody records moves several units at once; small effects may be taken from it",
            "record it as an input; until then trust large effects and wide intervals only",
            more=": something that nobody records moves several units at once (weather, supply, a shared load)",
            share=share,
        )  # fmt: skip


class KnownCouplings(Kind):
    """Of each unit that others were said not to act on: do their signals and inputs foretell its innovations?"""

    name, claim, place = "known couplings", "the data do not contradict what was ruled out", 10
    unit_of_number = "share told by what was ruled out"
    limits = (SLIGHT, STRONG)
    always = False
    bars = ("share of innovations told by what was ruled out", STRONG, None)

    def wanted(self, material: Material) -> bool:
        return material.model.known is not None

    def look(self, material: Material) -> Iterator[Check]:
        (e, there, rows), signals, known = _newest(material), material.grounded.signals, material.model.known
        assert known is not None
        owner = owners(*([own.stop - own.start for own in part] for part in (material.columns, material.inputs)))
        near = signals[np.maximum(rows - 1, 0)]
        far = np.mean([signals[np.maximum(rows - k, 0)] for k in range(2, 7)], axis=0)
        for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
            closed = [n for n, cause in enumerate(material.names) if not known.allows(cause, name)]
            used = there[:, m]
            if not closed or own.stop == own.start or used.sum() < FEWEST_ROWS:
                continue
            shares = {}
            for n in closed:
                F = standardised(np.hstack([near[used][:, owner == n], far[used][:, owner == n]]))
                shares[material.names[n]] = _share(F, e[used, own])
            cause, share = max(shares.items(), key=lambda each: each[1])
            found = self.found(
                name, share,
                f"{cause}, which was said not to act on {name}, foretells {percent(share)} of its innovations",
                f"the data speak for a coupling {cause} -> {name} that was ruled out",
                f"allow {cause} -> {name}, or look for what moves both and is not recorded", share=share,
            )  # fmt: skip
            yield replace(found, units=(cause,))  # named even where it passes


def _newest(material: Material) -> tuple[FloatArray, BoolArray, NDArray[np.intp]]:
    """Each unit's innovations in the newest rows, whether it was measured, and which rows they are."""
    found = material.innovations
    rows = np.arange(found.first, material.rows)[-MOST_ROWS:]
    return found.own[-len(rows) :], found.measured[-len(rows) :], rows


def _share(F: FloatArray, e: FloatArray) -> float:
    """The largest share of a column of e (n, width) that a few columns of F (n, k) tell, each worth its cost."""
    gram, cost, largest = F.T @ F, np.full(F.shape[1], COST), 0.0
    for series in (e - e.mean(axis=0)).T:
        energy = float(series @ series)
        if energy > 0:
            found = sparse_weights(gram, F.T @ series, energy, len(series), np.arange(F.shape[1]), cost, cost)
            largest = max(largest, 1.0 - found.noise * len(series) / energy if len(found.chosen) else 0.0)
    return largest
