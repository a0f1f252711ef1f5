"""Counterflow: what would my output do if that other unit were run differently?

Each unit keeps its raw measurements and its model and sends compressed measurements, states and inputs; a server learns
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
    from counterflow.checks import Checks, FreeRun, free_run
    from counterflow.control import PID, Law, Loop, Manual, Ratio, Relay, Schedule
    from counterflow.data import Preparation, read_logs
    from counterflow.exchange.estimators import Estimates, Estimator, KalmanEstimator
    from counterflow.exchange.moments import MomentLogOptions, MomentOptions
    from counterflow.exchange.rows import LikelihoodOptions, LogOptions
    from counterflow.fits.fit import Fit, load
    from counterflow.fits.refutation import Refutation, refute
    from counterflow.fits.storage import load_server, load_unit
    from counterflow.fits.training import fit
    from counterflow.fits.validation import Validation
    from counterflow.paper.options import TrainingOptions
    from counterflow.plant import Channel, LocalModel, Plant, Recording, Unit, random_plant
    from counterflow.privacy import Ledger, Privacy
    from counterflow.questions.aggregate import Aggregate
    from counterflow.questions.asking import UnitView
    from counterflow.questions.attribution import Attribution
    from counterflow.questions.effect import Effect
    from counterflow.questions.paths import Paths
    from counterflow.questions.restoration import Restoration
    from counterflow.questions.trajectory import Trajectory

_HOMES = {
    name: home
    for home, names in {
        "checks": "Checks FreeRun free_run",
        "control": "PID Law Loop Manual Ratio Relay Schedule",
        "data": "Preparation read_logs",
        "exchange.estimators": "Estimates Estimator KalmanEstimator",
        "exchange.moments": "MomentLogOptions MomentOptions",
        "exchange.rows": "LikelihoodOptions LogOptions",
        "fits.fit": "Fit load",
        "fits.refutation": "Refutation refute",
        "fits.storage": "load_server load_unit",
        "fits.training": "fit",
        "fits.validation": "Validation",
        "paper.options": "TrainingOptions",
        "plant": "Channel LocalModel Plant Recording Unit random_plant",
        "privacy": "Ledger Privacy",
        "questions.aggregate": "Aggregate",
        "questions.asking": "UnitView",
        "questions.attribution": "Attribution",
        "questions.effect": "Effect",
        "questions.paths": "Paths",
        "questions.restoration": "Restoration",
        "questions.trajectory": "Trajectory",
    }.items()
    for name in names.split()
}

__all__ = [
    "PID",
    "Aggregate",
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
    "Law",
    "Ledger",
    "LikelihoodOptions",
    "LocalModel",
    "LogOptions",
    "Loop",
    "Manual",
    "ModelError",
    "MomentLogOptions",
    "MomentOptions",
    "OptionError",
    "Paths",
    "Plant",
    "Preparation",
    "Privacy",
    "PrivacyError",
    "ProtocolError",
    "Ratio",
    "Recording",
    "Refutation",
    "Relay",
    "Restoration",
    "Schedule",
    "StorageError",
    "TrainingOptions",
    "Trajectory",
    "UnidentifiedError",
    "Unit",
    "UnitView",
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
    "refute",
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
