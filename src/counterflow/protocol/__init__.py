"""What crosses between a unit and the server: frozen, versioned messages and their codec."""

from counterflow.protocol.codec import decode, encode, encoded_size
from counterflow.protocol.messages import (
    AugmentedStates,
    Finished,
    Introduction,
    Message,
    Plan,
    Settled,
    StateGradients,
)

__all__ = [
    "AugmentedStates",
    "Finished",
    "Introduction",
    "Message",
    "Plan",
    "Settled",
    "StateGradients",
    "decode",
    "encode",
    "encoded_size",
]
