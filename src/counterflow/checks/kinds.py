"""Kinds of checks, their verdicts, and the limits that both a check and its picture know."""

from typing import Literal

Verdict = Literal["pass", "caution", "fail", "unknown"]

ORDER: tuple[Verdict, ...] = ("pass", "unknown", "caution", "fail")  # from good to bad
KINDS = {
    "convergence": "the fit arrived",
    "excitation": "inputs were moved enough",
    "feedback": "inputs do not react to measurements",
    "stability": "the estimated system is stable",
    "whiteness": "innovations are white",
    "innovation size": "innovations are of their size",
    "drift": "both halves of the record agree",
    "linearity": "gains do not change unnoticed with the operating point",
    "shared disturbance": "nothing unrecorded moves several units at once",
    "known couplings": "the data do not contradict what was ruled out",
    "precision": "effects are known well enough",
    "free run": "predictions beat simpler ones",
}
SOMETIMES = frozenset({"precision", "known couplings"})  # of fits from logs; where edges or forbidden were given
# limits that both a check and its picture know
ALONE = 0.05  # share of an input's movement that is its own, below which it is hard to tell from the others
FAINT, MATERIAL = 0.01, 0.05  # share of an input's moves that measurements foretell
UNCLEAR, UNCLEAR_AT_ALL = 0.05, 0.15  # share of the effects on other units that are to be expected wrong
LARGE_SHARE = 0.08  # of a unit's residuals that those of other units tell
CHANGE, LARGE_CHANGE = 0.1, 0.2  # relative change of what a unit does to another between the halves
