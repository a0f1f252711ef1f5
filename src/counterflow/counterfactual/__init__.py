"""Questions and answers: what a change at one unit does to another, what would have happened, who moved what.

``coordinator`` is the server's half (states of the asking unit, nothing else), ``sensitivity`` how sure it is, and
``answers`` what the unit makes of it.
"""

from counterflow.counterfactual.answers import Attribution, Effect, Paths, Restoration, Trajectory, band, deviation
from counterflow.counterfactual.coordinator import (
    BASELINE,
    DIRECT,
    FAR,
    INITIAL,
    Knowledge,
    answer,
    extrapolating,
)
from counterflow.counterfactual.sensitivity import Spread

__all__ = [
    "BASELINE",
    "DIRECT",
    "FAR",
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
    "extrapolating",
]
