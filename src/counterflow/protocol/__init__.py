"""What crosses between a unit and the server: frozen messages, checked when they are built, and their codec.

A message holds text, numbers and float64 arrays, nothing else. Arrays that run over time have one row for every
t = 1..T (time first); the row of ``refined`` and ``inputs`` is t-1, the row of ``predicted`` is t, as in the sums of
the paper. Measurements, output matrices and measurement noise have no message to travel in.

Published training, one unit's side of the conversation::

    server -> unit    Plan              what is learned and which gradients will come
    unit -> server    Introduction      A_mm, B_mm, refined states, inputs          (once; Algorithm 1, line 16)
    unit -> server    AugmentedStates   h_a and phi; with a refined target ĥ_a, too (every round)
    server -> unit    StateGradients    dL/dh_a and dL/dĥ_a                         (every round)
    unit -> server    Settled           my parameters are stationary                (conjugate solver only)
    server -> unit    Finished

Published training with the paper's privacy: instead of Introduction and AugmentedStates::

    unit -> server    PerturbedStates   all four parts of the paper's message, clipped and noised   (every round)

Sufficient messages, the default method, one round::

    server -> unit    Request
    unit -> server    Sufficient        compressed measurements, inputs, local blocks
    server -> unit    Finished

Moments: projections of the measurements on what all inputs did, in a few rounds if they are private::

    server -> unit    Request
    unit -> server    Outline           inputs, which rows are there, local blocks where there are any
    server -> unit    Basis             signals to project on, and what is foreseen of the unit's numbers  (every round)
    unit -> server    Moments           the projections, clipped and noised if they are private            (every round)
    server -> unit    Identified        of units without models: their own blocks of the system
    server -> unit    Finished

Logs without models, one round::

    server -> unit    Request
    unit -> server    Reduced           its measurements in a basis of their own signal space, inputs
    server -> unit    Identified        the unit's own blocks of the system that the server has found
    server -> unit    Finished

Questions, from a unit about its own outputs::

    unit -> server    Terms             who may ask about my inputs                 (between machines, when they change)
    unit -> server    Openings          whose inputs may I ask about?               (between machines; said back)
    unit -> server    Change            what another unit would do (any number of them)
    unit -> server    Ask               what do I want to know of it
    server -> unit    Trial             a world that the server tries: what would your controllers do in it?
    unit -> server    Reaction          what my inputs would be                     (both any number of times)
    server -> unit    Answer            my own states' part of the answer, never anybody's measurements
    server -> unit    Refused           instead of answers: why there are none
"""

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
