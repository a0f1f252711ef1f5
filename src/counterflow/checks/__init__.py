"""Checks before answers: what in the data or the fit speaks against trusting an answer, with numbers and remedies.

`check` looks at excitation, feedback, stability, whiteness and size of innovations, drift, and free-run prediction;
`free_run` returns the predictions themselves.
"""

from counterflow.checks.check import check, failed_checks, server_checks
from counterflow.checks.free_runs import FreeRun, UnitRun, free_run
from counterflow.checks.verdicts import Check, Checks, Verdict

__all__ = ["Check", "Checks", "FreeRun", "UnitRun", "Verdict", "check", "failed_checks", "free_run", "server_checks"]
