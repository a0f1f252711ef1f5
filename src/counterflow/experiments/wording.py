"""Rules, facts and sentences that several experiments share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from counterflow.arrays import FloatArray
from counterflow.experiments.experiment import Claim, Verdict
from counterflow.experiments.verdicts import both, mean_and_error

ABOVE_RULE = "by two standard errors"
MOST_RULE = "by a clear majority"
EXPLAINED = (
    "'By two standard errors' are those of the mean over the runs; a difference within them, or fewer than three runs, "
    "is undecided. 'By a clear majority' is two standard errors of a share of one half (4 of 4 plants, 9 of 10, 15 of "
    "20); what lies between, or rests on fewer than four plants, is undecided."
)
# facts that several experiments come across: one quantity, or one sentence of the paper, each
B_WHITE, B_PERSISTENT = "error of B_mn, white inputs", "error of B_mn, inputs that persist"
EFFECTS_WHITE, EFFECTS_PERSISTENT = "effects between units, white inputs", "effects between units, inputs that persist"
NEW_DATA, SHORT_OF_ORACLE = "prediction of new data against the proprietary client", "short of the oracle"


def told(values: Sequence[float] | FloatArray, digits: int = 3) -> str:
    """Mean and standard error of several runs as text.

    Examples
    --------
    >>> told([1.0, 2.0, 3.0])
    '2 ± 0.58'
    """
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}g}" + (f" ± {error:.2g}" if math.isfinite(error) else "")


def verdict_of(claims: Sequence[Claim], subject: str) -> Verdict:
    """Of the claim whose subject begins so; of several, of all of them together."""
    found = [claim.verdict for claim in claims if claim.subject.startswith(subject)]
    assert found, f"no claim begins with {subject!r}"
    return both(*found) if len(found) > 1 else found[0]


def said(verdict: Verdict, yes: str, no: str = "", unclear: str = "") -> str:
    """The sentence that goes with a verdict: for a text that must not say what the numbers do not."""
    if verdict in ("agrees", "agrees in order of magnitude"):
        return yes
    return no if verdict == "does not hold" else unclear


def sentences(*parts: str) -> str:
    """Those that say something, one after the other."""
    return " ".join(part for part in parts if part)
