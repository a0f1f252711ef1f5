"""Identification from records: pure functions on arrays, time first, used by units and by the server alike."""

from counterflow.identification.lagged import LaggedGram, lagged_gram, stretches
from counterflow.identification.noises import independent_noises
from counterflow.identification.order import (
    InnovationsModel,
    OrderChoice,
    choose_order,
    held_out_log_likelihood,
    order_from_singular_values,
)
from counterflow.identification.pooled import PooledModel, assign_states, pooled_model
from counterflow.identification.signal import SignalSpace, lift, project, signal_space
from counterflow.identification.subspace import Subspace, default_past, subspace, subspaces, subspaces_from_gram

__all__ = [
    "InnovationsModel", "LaggedGram", "OrderChoice", "PooledModel", "SignalSpace", "Subspace", "assign_states",
    "choose_order", "default_past", "held_out_log_likelihood", "independent_noises", "lagged_gram", "lift",
    "order_from_singular_values", "pooled_model", "project", "signal_space", "stretches", "subspace", "subspaces",
    "subspaces_from_gram",
]  # fmt: skip
