"""The coordinator's side: penalty, augmented Lagrangian and hybrid training of the couplings, as a state machine.

Nothing in here can import a recording, a measurement or an output matrix: only ``protocol`` crosses.
"""

from counterflow.server.machine import Phase, RoundRecord, ServerConfig, ServerState, begin, step

__all__ = ["Phase", "RoundRecord", "ServerConfig", "ServerState", "begin", "step"]
