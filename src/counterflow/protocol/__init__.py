"""What crosses between a unit and the server: frozen, versioned messages and their codec."""

from counterflow.protocol.codec import decode, encode, encoded_size
from counterflow.protocol.messages import (
    Answer,
    Ask,
    AugmentedStates,
    Change,
    Finished,
    Identified,
    Introduction,
    Message,
    Openings,
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
    "Answer", "Ask", "AugmentedStates", "Change", "Finished", "Identified", "Introduction", "Message",
    "Openings", "PerturbedStates", "Plan", "Reaction", "Reduced", "Refused", "Request", "Settled", "StateGradients",
    "Sufficient", "Terms", "Trial", "decode", "encode", "encoded_size",
]  # fmt: skip
