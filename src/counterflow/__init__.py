"""Counterflow: what would my output do if that other unit were run differently?

Each unit keeps its measurements and its model and exchanges only low-dimensional states and inputs; a server learns
the couplings between units; units and server answer counterfactual questions.

Everything that users need is here; heavy imports happen when a name is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from counterflow._version import __version__
from counterflow.errors import (
    CounterflowError,
    DataError,
    ModelError,
    OptionError,
    PrivacyError,
    ProtocolError,
    StorageError,
    UnidentifiedError,
    UnknownNameError,
    UnstableError,
)

if TYPE_CHECKING:
    from counterflow.client import Estimates, Estimator, KalmanEstimator
    from counterflow.data import Preparation, read_logs
    from counterflow.plant import Channel, LocalModel, Plant, Recording, Unit, random_plant
    from counterflow.privacy import Ledger, Privacy
    from counterflow.runtime import (
        Attribution,
        Effect,
        Fit,
        LikelihoodOptions,
        Restoration,
        TrainingOptions,
        Trajectory,
        Validation,
        fit,
    )
    from counterflow.runtime.checks import Checks, FreeRun, free_run
    from counterflow.runtime.storage import load, load_unit
    from counterflow.runtime.storage_server import load_server

_HOMES = {
    "Attribution": "runtime",
    "Channel": "plant",
    "Checks": "runtime.checks",
    "Effect": "runtime",
    "Estimates": "client",
    "Estimator": "client",
    "Fit": "runtime",
    "FreeRun": "runtime.checks",
    "KalmanEstimator": "client",
    "Ledger": "privacy",
    "LikelihoodOptions": "runtime",
    "LocalModel": "plant",
    "Plant": "plant",
    "Preparation": "data",
    "Privacy": "privacy",
    "Recording": "plant",
    "Restoration": "runtime",
    "TrainingOptions": "runtime",
    "Trajectory": "runtime",
    "Unit": "plant",
    "Validation": "runtime",
    "fit": "runtime",
    "free_run": "runtime.checks",
    "load": "runtime.storage",
    "load_server": "runtime.storage_server",
    "load_unit": "runtime.storage",
    "random_plant": "plant",
    "read_logs": "data",
}

__all__ = [
    "Attribution",
    "Channel",
    "Checks",
    "CounterflowError",
    "DataError",
    "Effect",
    "Estimates",
    "Estimator",
    "Fit",
    "FreeRun",
    "KalmanEstimator",
    "Ledger",
    "LikelihoodOptions",
    "LocalModel",
    "ModelError",
    "OptionError",
    "Plant",
    "Preparation",
    "Privacy",
    "PrivacyError",
    "ProtocolError",
    "Recording",
    "Restoration",
    "StorageError",
    "TrainingOptions",
    "Trajectory",
    "UnidentifiedError",
    "Unit",
    "UnknownNameError",
    "UnstableError",
    "Validation",
    "__version__",
    "fit",
    "free_run",
    "load",
    "load_server",
    "load_unit",
    "random_plant",
    "read_logs",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'counterflow' has no attribute {name!r}")
    value = getattr(import_module(f"counterflow.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
