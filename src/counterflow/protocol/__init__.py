"""What crosses between a unit and the server: frozen, versioned messages and their codec."""

from counterflow.protocol.codec import decode, encode, encoded_size
from counterflow.protocol.messages import (
    Answer,
    Ask,
    AugmentedStates,
    Basis,
    Change,
    Finished,
    Identified,
    Introduction,
    Message,
    Moments,
    Openings,
    Outline,
    PerturbedStates,
    Plan,
    Reaction,
    Reduced,
    Refused,
    Request,
    Settled,
    StateGradients,
    Sufficient,
    Terms,
    Trial,
)

__all__ = [
    "Answer", "Ask", "AugmentedStates", "Basis", "Change", "Finished", "Identified", "Introduction", "Message",
    "Moments", "Openings", "Outline", "PerturbedStates", "Plan", "Reaction", "Reduced", "Refused", "Request", "Settled",
    "StateGradients", "Sufficient", "Terms", "Trial", "decode", "encode", "encoded_size",
]  # fmt: skip
