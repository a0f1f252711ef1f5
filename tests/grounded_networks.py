"""Networks on rows that are given, for tests of their runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network import Network
from counterflow.learning.network_model import NetworkGrounded, NetworkModel


def grounded(network: Network, z: NDArray[np.float64]) -> NetworkGrounded:
    """Standing on standardised rows z (T, m); its states are its numbers."""
    rows, r, U = z * network.scale + network.level, network.size, sum(network.inputs)
    record = SharedRecord(
        network.names, network.numbers, network.inputs, values=rows[:, :r], u=rows[:, r:], observation=np.eye(r),
        noise=np.eye(r), A_local=np.zeros((r, r)), B_local=np.zeros((r, U)), Q_local=np.eye(r),
    )  # fmt: skip
    units = Layout(network.names, network.numbers, network.inputs)
    return NetworkModel(units, np.zeros((r, r)), np.zeros((r, U)), np.eye(r), network, (), record).on(record)


def at_rest(network: Network) -> NetworkGrounded:
    """Where every column stands at its level."""
    return grounded(network, np.zeros((network.memory, len(network.level))))
