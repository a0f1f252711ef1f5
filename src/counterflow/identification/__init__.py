"""Identification from records: pure functions on arrays, time first, used by units and by the server alike."""

from counterflow.identification.lagged import LaggedGram, lagged_gram, stretches
from counterflow.identification.noises import independent_noises
from counterflow.identification.signal import SignalSpace, signal_space

__all__ = [
    "LaggedGram", "SignalSpace", "independent_noises", "lagged_gram", "signal_space", "stretches",
]  # fmt: skip
