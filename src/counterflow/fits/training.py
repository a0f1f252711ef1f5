"""``counterflow.fit``: from a recording to a fit, by any method, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow._version import __version__
from counterflow.errors import DataError, ModelError, OptionError, PrivacyError
from counterflow.fits import in_process
from counterflow.fits.fit import Fit
from counterflow.fits.history import Recorder
from counterflow.fits.outcome import Provenance, Status, Task
from counterflow.fits.privacy import public_digest, refuse_method
from counterflow.methods.estimators import Estimator
from counterflow.methods.logs.fitting import log_fit
from counterflow.methods.options import LIKELIHOOD_METHODS, METHODS
from counterflow.methods.part import unit_parts
from counterflow.methods.published.fitting import published_fit
from counterflow.methods.sufficient.fitting import likelihood_fit
from counterflow.plant import LocalModel, Plant, Recording
from counterflow.privacy import Privacy
from counterflow.threads import one_blas_thread

if TYPE_CHECKING:
    from counterflow.protocol import Message

Models = Plant | Mapping[str, LocalModel]
PRIVATE_LOGS = (
    "fit: without models, a unit finds level, scale and basis of its message on the very rows that are to be private, "
    "and no bound on what they reveal is known. Give models from elsewhere; or fit an earlier stretch of the log "
    "without privacy (its rows are then not protected) and take in the rest with found.update(later, privacy=...)"
)


def fit(
    recording: Recording,
    models: Models | None = None,
    method: str = "sufficient",
    *,
    seed: int = 0,
    privacy: Privacy | None = None,
    progress: bool = False,
    estimators: Mapping[str, Estimator] | None = None,
    watch: Callable[[Message, bool], None] | None = None,
    over_the_wire: bool = False,
    **options: Any,
) -> Fit:
    """Learn the couplings between units from a recording, without moving a measurement.

    Parameters
    ----------
    recording : rows 0..T of every unit.
    models : what each unit knows of itself, {name: LocalModel}; or a Plant, whose local blocks are taken.
        The oracle needs the Plant. None: each unit has nothing but its log; the server identifies all of the system
        from a few numbers a row that each unit sends (method "sufficient"; see docs/theory/identification.md).
    method : "sufficient" (default: one message from each unit, maximum likelihood at the server, one round);
        "penalty", "lagrangian", "hybrid", "fedgc" (the published methods and their predecessor); "centralized" (the
        reference: the same likelihood on pooled raw data); "oracle" (the true plant given).
    seed : of the published methods' initial parameters; each unit's stream derives from it and the unit's name.
    privacy : a ``counterflow.Privacy``: clip and noise what leaves the units, and account for it; None: send it as it
        is. What was spent, and what the guarantee does not cover, is in ``Fit.privacy``.
    progress : show a progress bar.
    estimators : {name: Estimator}, the proprietary estimators; default: a Kalman filter on the unit's own model.
        The published methods train on their states; the others use them only in ``Fit.validate``.
    watch : called with (message, goes_up) for every message that crosses.
    over_the_wire : encode and decode every message, as between machines.
    **options : see ``counterflow.LikelihoodOptions`` for "sufficient" and "centralized",
        ``counterflow.TrainingOptions`` for the published methods.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> recording = plant.simulate(500, rng=2)
    >>> found = cf.fit(recording, plant.locals())
    >>> found.status.converged, found.traffic.rounds
    (True, 1)
    >>> published = cf.fit(recording, plant.locals(), method="penalty", xi=1.0)
    >>> published.traffic.rounds <= 10
    True
    """
    if not isinstance(recording, Recording):
        raise DataError(
            f"fit: recording must be a counterflow.Recording, got {type(recording).__name__}; "
            "build one with counterflow.read_logs (of files), Recording.from_arrays or Plant.simulate"
        )
    if watch is not None and not callable(watch):
        raise OptionError(f"fit: watch must be callable with (message, goes_up), got {type(watch).__name__}")
    if estimators is not None and not isinstance(estimators, Mapping):
        raise OptionError(f"fit: estimators must be {{unit name: Estimator}}, got {type(estimators).__name__}")
    if not isinstance(method, str) or method not in METHODS:
        raise OptionError(f"fit: method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OptionError(f"fit: seed must be a whole number of at least 0, got {seed!r}")
    if privacy is not None:
        if not isinstance(privacy, Privacy):
            raise OptionError(f"fit: privacy must be a counterflow.Privacy or None, got {type(privacy).__name__}")
        refuse_method(method, privacy)
    digest = recording.digest if privacy is None else public_digest(recording)
    provenance = Provenance(__version__, int(seed), digest, method)
    if method == "oracle":
        return _oracle(recording, models, provenance, options)
    if models is None:
        if privacy is not None:
            raise PrivacyError(PRIVATE_LOGS)
        return _without_models(recording, method, provenance, options, progress, watch, over_the_wire, estimators)
    local = _checked_models(recording, models)
    task = Task(recording, local, method, provenance, options, progress, watch, over_the_wire, estimators, privacy)
    with _within_precision(recording):
        return likelihood_fit(task) if method in LIKELIHOOD_METHODS else published_fit(task)


@contextmanager
def _within_precision(recording: Recording) -> Iterator[None]:
    try:
        with one_blas_thread():
            yield
    except np.linalg.LinAlgError as error:
        raise DataError(
            f"fit: the numbers are beyond double precision ({error}); look for absurd values in the recording (the "
            f"largest is {_largest(recording)}) and for models that do not fit it"
        ) from error


def _without_models(
    recording: Recording,
    method: str,
    provenance: Provenance,
    options: Mapping[str, Any],
    progress: bool,
    watch: Callable[[Message, bool], None] | None,
    over_the_wire: bool,
    estimators: Mapping[str, Estimator] | None,
) -> Fit:
    if method != "sufficient":
        raise ModelError(
            f"fit: method {method!r} needs models: {{unit name: LocalModel}}, or a Plant whose local blocks are taken; "
            "only method 'sufficient' identifies units from their logs. A fit from logs has such models: "
            "{name: part.model for name, part in found.parts.items()}"
        )
    if estimators:
        raise OptionError("fit: estimators go with given models; a fit from logs has none to estimate with")
    with _within_precision(recording):
        return log_fit(recording, provenance, options, progress, watch, over_the_wire)


def _largest(recording: Recording) -> str:
    """The largest measurement, with its place."""
    unit, row, column, value = "", 0, 0, -1.0
    for name in recording.names:
        y = np.nan_to_num(np.abs(recording[name].y))
        at = np.unravel_index(int(y.argmax()), y.shape)
        if y[at] > value:
            unit, row, column, value = name, int(at[0]), int(at[1]), float(y[at])
    return f"{value:.3g} in {unit} {recording[unit].unit.output_names[column]}, row {row}"


def _oracle(recording: Recording, models: Models | None, provenance: Provenance, options: Mapping[str, Any]) -> Fit:
    if options:
        raise OptionError(f"fit: method 'oracle' has no options, got {', '.join(map(repr, options))}")
    if not isinstance(models, Plant):
        raise ModelError("fit: method 'oracle' needs the true plant: pass models=plant, a counterflow.Plant")
    local = _checked_models(recording, models)
    parts = unit_parts(recording, local, None, uses_inputs=True)
    recorder = Recorder(recording.names)
    status = Status(True, 0, 0.0, "the true plant was given; nothing was estimated")
    history = recorder.history(dict.fromkeys(recording.names, 0.0))
    return Fit("oracle", models, parts, history, in_process.Traffic(0, 0, 0), status, provenance)


def _checked_models(recording: Recording, models: Models) -> dict[str, LocalModel]:
    found = models.locals() if isinstance(models, Plant) else models
    if not isinstance(found, Mapping):
        raise ModelError(f"fit: models must be {{unit name: LocalModel}} or a Plant, got {type(models).__name__}")
    if set(found) != set(recording.names):
        raise ModelError(
            f"fit: models are given for {sorted(map(str, found))}, the recording has {sorted(recording.names)}: "
            "give one model for every unit, by its name"
        )
    if isinstance(models, Plant):
        for unit in recording.units:
            for kind in ("input_names", "output_names"):
                mine, theirs = getattr(unit, kind), getattr(models.unit(unit.name), kind)
                if mine != theirs:
                    raise ModelError(
                        f"fit: unit {unit.name!r} has channels {', '.join(mine)} in the recording and "
                        f"{', '.join(theirs)} in the plant: name and order them alike"
                    )
    for unit in recording.units:
        model = found[unit.name]
        if not isinstance(model, LocalModel):
            raise ModelError(f"fit: the model of unit {unit.name!r} must be a LocalModel, got {type(model).__name__}")
        for what, has, wants in (
            ("inputs", model.n_inputs, unit.n_inputs),
            ("outputs", model.n_outputs, unit.n_outputs),
        ):
            if has != wants:
                raise ModelError(f"fit: the model of unit {unit.name!r} has {has} {what}, its recording has {wants}")
    return {name: found[name] for name in recording.names}
