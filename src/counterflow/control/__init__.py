"""Controllers of a unit: loops, the laws they follow, and how a law is learned from a unit's own log.

A law says what the moved input is in a row, from what the log shows of earlier rows: its own last values, the reading
and the target. So every state of a law is recorded, and what a law leaves of the record can be replayed in a
counterfactual, as the residuals of the plant are. All laws are computed for many worlds side by side.
"""

from counterflow.control.controller import Loop
from counterflow.control.law import Law, LawInput, as_law
from counterflow.control.laws import Manual, Ratio, Schedule, law_from_words
from counterflow.control.pid import PID
from counterflow.control.relay import Relay

__all__ = ["PID", "Law", "LawInput", "Loop", "Manual", "Ratio", "Relay", "Schedule", "as_law", "law_from_words"]
