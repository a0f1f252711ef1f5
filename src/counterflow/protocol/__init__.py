"""What crosses between a unit and the server: frozen, versioned messages and their codec."""

from counterflow.protocol.codec import decode, encode, encoded_size
from counterflow.protocol.measurements import (
    Basis,
    Finished,
    Identified,
    Moments,
    Outline,
    Reduced,
    Request,
    Sufficient,
)
from counterflow.protocol.message import Message
from counterflow.protocol.questions import Answer, Ask, Change, Openings, Reaction, Refused, Terms, Trial
from counterflow.protocol.training import (
    AugmentedStates,
    Introduction,
    PerturbedStates,
    Plan,
    Settled,
    StateGradients,
)

__all__ = [
    "Answer", "Ask", "AugmentedStates", "Basis", "Change", "Finished", "Identified", "Introduction", "Message",
    "Moments", "Openings", "Outline", "PerturbedStates", "Plan", "Reaction", "Reduced", "Refused", "Request", "Settled",
    "StateGradients", "Sufficient", "Terms", "Trial", "decode", "encode", "encoded_size",
]  # fmt: skip
