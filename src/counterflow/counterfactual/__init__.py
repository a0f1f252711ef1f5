"""Questions and answers: what a change at one unit does to another."""

from counterflow.counterfactual.effects import held_change, state_response

__all__ = ["held_change", "state_response"]
