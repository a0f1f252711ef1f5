"""The unit's side: proprietary estimator (a plug-in), augmented model, and the state machine that trains it."""

from counterflow.client.augmented import AugmentedModel, ClientData
from counterflow.client.estimators import Estimates, Estimator, KalmanEstimator, checked_estimates
from counterflow.client.machine import ClientState, ClientSteps, step

__all__ = [
    "AugmentedModel",
    "ClientData",
    "ClientState",
    "ClientSteps",
    "Estimates",
    "Estimator",
    "KalmanEstimator",
    "checked_estimates",
    "step",
]
