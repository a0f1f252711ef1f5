"""Questions and answers: what a change at one unit does to another, what would have happened, who moved what.

``coordinator`` is the server's half (states of the asking unit, nothing else), ``answers`` what the unit makes of it.
"""

from counterflow.counterfactual.answers import Attribution, Effect, Paths, Restoration, Trajectory, band, deviation
from counterflow.counterfactual.coordinator import BASELINE, DIRECT, INITIAL, Knowledge, Spread, answer

__all__ = [
    "BASELINE",
    "DIRECT",
    "INITIAL",
    "Attribution",
    "Effect",
    "Knowledge",
    "Paths",
    "Restoration",
    "Spread",
    "Trajectory",
    "answer",
    "band",
    "deviation",
]
