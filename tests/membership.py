"""Somebody who knows all but one measurement (or w consecutive ones), which is either a or b, guesses which.

(ε, δ) allows P(guesses b | b) <= e^ε P(guesses b | a) + δ, whatever the rule. Shares of trials have Clopper-Pearson
limits, all of them at once at 99.9 %.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from counterflow.exchange.exchange import ExchangeUnit
from counterflow.exchange.method import unit_step
from counterflow.exchange.registry import ROWS
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.filtering import compress
from counterflow.plant import LocalModel, Unit
from counterflow.protocol import Request

MODEL = LocalModel(
    A=[[0.7, 0.1], [0.0, 0.5]],
    B=[[1.0], [0.5]],
    C=[[1.0, 0.2], [0.3, 1.0], [-0.5, 0.8]],
    Q=np.eye(2) * 0.1,
    R=np.diag([1.0, 0.5, 2.0]),
)
CLIP = 3.0
THRESHOLDS = np.linspace(-8, 8, 65)  # of the guess, in standard deviations of the noise that is claimed
TRIALS = 16_000


def message_of(y, privacy):
    """What the unit really sends, by its own state machine."""
    unit = Unit("boiler", states=2, inputs=1, outputs=3)
    task = LocalTask("sufficient", {"boiler": unit.inputs}, privacy=privacy)
    state = ExchangeUnit(ROWS, task, UnitData(unit, y, np.zeros((len(y), 1)), MODEL))
    state, (message,) = unit_step(state, Request("boiler"))
    return message, state.release


def measurements(signs):
    """Rows whose messages point along one direction or against it, far beyond any clip."""
    return np.outer(signs, 1e4 * MODEL.C @ [1.0, -0.4])


def guess(message, release):
    """For every row: how far it points along that direction, in standard deviations of the noise that is claimed.

    The reader knows the model and the mechanism, so he takes the whitening back.
    """
    direction = compress(MODEL.C, MODEL.R).observation @ [1.0, -0.4]
    noised = message.numbers * math.sqrt(1 + release.variance)
    return noised @ direction / np.linalg.norm(direction) / release.sigma


def trials(privacy, rows=None, count=TRIALS):
    """Guesses for blocks of ``rows`` (default: the window), half of them a, half of them b: (of a, of b).

    One message holds all of the blocks: a row's clipping and noise depend on nothing else than that row.
    """
    rows = privacy.window if rows is None else rows
    truth = np.random.default_rng(7).permutation(np.arange(count) < count // 2)
    message, release = message_of(measurements(np.repeat(np.where(truth, 1.0, -1.0), rows)), privacy)
    guesses = guess(message, release).reshape(count, rows).sum(axis=1) / math.sqrt(rows)
    return guesses[~truth], guesses[truth]


def advantage(of_a, of_b, epsilon, thresholds=THRESHOLDS):
    """max over rules of P(b | b) - e^ε P(b | a): what is surely true of it, and the best estimate.

    It must not exceed δ. Rules are thresholds, both ways round (the likelihood ratio rises with the guess).
    """
    risk = 1e-3 / (4 * len(thresholds))
    surely, estimate = -math.inf, -math.inf
    for one, two in ((of_a, of_b), (-of_b, -of_a)):
        wrong, right = (one[:, None] > thresholds).sum(axis=0), (two[:, None] > thresholds).sum(axis=0)
        least = np.where(right > 0, stats.beta.ppf(risk, right, len(two) - right + 1), 0.0)
        most = np.where(wrong < len(one), stats.beta.ppf(1 - risk, wrong + 1, len(one) - wrong), 1.0)
        surely = max(surely, float((least - math.exp(epsilon) * most).max()))
        estimate = max(estimate, float((right / len(two) - math.exp(epsilon) * wrong / len(one)).max()))
    return surely, estimate
