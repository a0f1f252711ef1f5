"""The same plant written in another way: units in another order, states in another basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from counterflow.plant import Plant


def permuted(plant: Plant, names: Sequence[str]) -> Plant:
    """The plant with its units in the order of `names`."""
    state, inputs, output = (
        np.concatenate([np.arange(span(name).start, span(name).stop) for name in names])
        for span in (plant.state_slice, plant.input_slice, plant.output_slice)
    )
    return Plant(
        units=tuple(plant.unit(name) for name in names),
        A=plant.A[np.ix_(state, state)],
        B=plant.B[np.ix_(state, inputs)],
        C=plant.C[np.ix_(output, state)],
        Q=plant.Q[np.ix_(state, state)],
        R=plant.R[np.ix_(output, output)],
        dt=plant.dt,
    )


def transformed(plant: Plant, bases: Mapping[str, ArrayLike]) -> Plant:
    """The plant with T h_m instead of h_m inside the units named: T A T⁻¹, T B, C T⁻¹, T Q Tᵀ."""
    A, B, C, Q = (np.array(X) for X in (plant.A, plant.B, plant.C, plant.Q))
    for name, basis in bases.items():
        span, T = plant.state_slice(name), np.asarray(basis)
        A[span], B[span] = T @ A[span], T @ B[span]
        A[:, span], C[:, span] = np.linalg.solve(T.T, A[:, span].T).T, np.linalg.solve(T.T, C[:, span].T).T
        Q[span, span] = T @ Q[span, span] @ T.T
    return plant.replace(A=A, B=B, C=C, Q=Q)
