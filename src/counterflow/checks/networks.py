"""What speaks against answers of a network, as it is learned from logs: precision, linearity, drift."""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.checks.innovations import ONE_WAY, change_words
from counterflow.checks.kinds import (
    CHANGE,
    LARGE_CHANGE,
    UNCLEAR,
    UNCLEAR_AT_ALL,
    Verdict,
)
from counterflow.checks.material import Material
from counterflow.checks.verdicts import Check, Kind, Trouble, listed
from counterflow.questions.refusals import DOUBTFUL

HALF = 2.0  # doubt of which half of the effects are wrong
BEND, CLEARLY = 0.05, 2.0  # fall of the free runs' squared error by curvature: what matters, in standard errors
BROUGHT = 0.01  # standard deviations of a number that a unit must bring to it in a row, for its change to matter
PARTS = 12  # of a half, whose scores give the error of a coefficient
SURE, NO_DOUBT = 5.0, 7.0  # standard errors from which a change is no accident: many are looked at, from few parts


def network_checks(material: Material) -> list[Check]:
    """All that only a model has which was learned from logs."""
    return [_precision(material), _linearity(material), *_drift(material)]


def _precision(material: Material) -> Check:
    """Which inputs' effects on other units are known well enough, by what members say of steps."""
    doubts = material.grounded.step_doubts()
    bad = [pair for pair, doubt in doubts.items() if doubt > DOUBTFUL]
    # how often an effect of such a doubt had an R² below 0.8 on plants whose truth is known: check-before-answers.md
    wrong = [doubt / (doubt + HALF) if np.isfinite(doubt) else 1.0 for doubt in doubts.values()]
    share = float(np.mean(wrong)) if wrong else 0.0
    bad.sort(key=lambda pair: -doubts[pair])
    named = [f"{material.input_names[j]} on {material.names[m]}" for j, m in bad]
    expected = f"of {len(doubts)} effects of inputs on other units {100 * share:.1f} % are expected wrong (R² < 0.8)"
    trouble = Trouble(
        "", f"of the effects of inputs on other units {100 * share:.0f} % are to be expected wrong",
        "record more rows, move these inputs more and by themselves, or say which couplings there can be (edges=); "
        "read the intervals: they are as wide as the doubt",
    )  # fmt: skip
    finding = f"{expected}; in doubt are {listed(named)}" if bad else expected
    verdict: Verdict = "fail" if share >= UNCLEAR_AT_ALL else "caution" if share > UNCLEAR else "pass"
    kind = Kind("precision", "share of effects expected wrong")
    return kind.found("", share, finding, trouble, verdict, doubts=sorted(doubts.values()))


def _linearity(material: Material) -> Check:
    curvature = material.model.curvature
    assert curvature is not None
    gain, sure, used = curvature
    said = f"free runs over held-out rows err {100 * abs(gain):.1f} % {'less' if gain >= 0 else 'more'} with curvature"
    if gain >= BEND and sure >= CLEARLY:
        finding = f"gains change with the operating point ({said}); the fit bends with the plant, and so do its answers"
    elif used:
        finding = f"gains hardly change with the operating point ({said}); the fit keeps what little curvature it found"
    else:
        finding = f"gains do not change with the operating point, as far as these rows tell ({said}); the fit is linear"
    return Kind("linearity", "fall of error by curvature").found("", gain, finding, verdict="pass", gain=gain)


def _drift(material: Material) -> list[Check]:
    """One for each unit: does what each unit does to it, as the model foresees it, hold in both halves?

    What a unit brings to a number (of the number's own unit: beyond the last value) is one regressor; residuals are
    regressed on all of them in each half. The difference of a coefficient is the relative change of what a unit does.
    Its error comes from blocks of neighbouring rows, which may go together.
    """
    told = material.grounded.brought()
    assert told is not None
    brought, residual = told
    out = []
    for m, (own, name) in enumerate(zip(material.columns, material.names, strict=True)):
        rows = np.flatnonzero(material.innovations.measured[:, m])
        change, sure = np.zeros(len(material.names)), np.zeros(len(material.names))
        for i in range(own.start, own.stop):
            x = brought[:, rows, i].T.copy()
            halves = np.array_split(np.arange(len(rows)), 2)
            one, two = (_coefficients(x[part], residual[rows[part], i]) for part in halves)
            if one is None or two is None:
                continue
            gap, error = one[0] - two[0], np.sqrt(one[1] + two[1])
            error = np.where(x.std(axis=0) >= BROUGHT, error, np.inf)  # what hardly acts hardly changes
            t = np.abs(gap) / np.maximum(error, 1e-12)
            better = t > sure
            change, sure = np.where(better, np.abs(gap), change), np.where(better, t, sure)
        at = int(sure.argmax())
        number, certain = float(change[at]), sure[at] > SURE
        verdict: Verdict = "pass"
        if certain and number > CHANGE:
            verdict = "fail" if number > LARGE_CHANGE and sure[at] > NO_DOUBT else "caution"
        who, finding = "itself" if at == m else material.names[at], f"the two halves agree on what acts on {name}"
        if verdict != "pass":
            finding = f"what {who} does to {name} changes {change_words(number)}"
        kind = Kind("drift", "relative change")
        out.append(
            kind.found(
                name, number if certain else 0.0, finding, Trouble("", finding, ONE_WAY), verdict,
                (material.names[at],), changes=change, sure=sure > SURE,
            )
        )  # fmt: skip
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
