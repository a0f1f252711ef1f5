"""``counterflow.fit``: from a recording to a fit, by any method, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow._version import __version__
from counterflow.errors import DataError, ModelError, OptionError
from counterflow.exchange.controllers import controllers_of
from counterflow.exchange.estimators import Estimator
from counterflow.exchange.method import ServerState, UnitState
from counterflow.exchange.outcome import Provenance
from counterflow.exchange.registry import FEDERATED, POOLED, method_of
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.fits import complete, engine
from counterflow.fits.fit import Fit
from counterflow.fits.history import Recorder
from counterflow.fits.progress import LEARNED, READ, Watcher, progress_of
from counterflow.fits.references import centralized, oracle
from counterflow.plant import LocalModel, Plant, Recording
from counterflow.plant.units import refuse_other_channels
from counterflow.privacy import Privacy
from counterflow.threads import one_blas_thread

if TYPE_CHECKING:
    from counterflow.protocol import Message

Models = Plant | Mapping[str, LocalModel]
METHODS = (*FEDERATED, *POOLED)


def fit(
    recording: Recording, models: Models | None = None, method: str = "sufficient", *, seed: int = 0,
    privacy: Privacy | None = None, progress: bool | Watcher = False, estimators: Mapping[str, Estimator] | None = None,
    watch: Callable[[Message, bool], None] | None = None, over_the_wire: bool = False, **options: Any,
) -> Fit:  # fmt: skip
    """Learn the couplings between units from a recording, without moving a measurement.

    Parameters
    ----------
    recording : rows 0..T of every unit.
    models : what each unit knows of itself, {name: LocalModel}; or a Plant, whose local blocks are taken.
        The oracle needs the Plant. None: each unit has nothing but its log; the server identifies all of the system
        from a few numbers a row that each unit sends (method "sufficient"; see docs/theory/identification.md).
    method : "sufficient" (default: one message from each unit, maximum likelihood at the server, one round);
        "moments" (projections of the measurements on what all inputs did: a few numbers whatever the rows);
        "penalty", "lagrangian", "hybrid", "fedgc" (the published methods and their predecessor); "centralized" (the
        reference: the same likelihood on pooled raw data); "oracle" (the true plant given).
    seed : of the published methods' initial parameters; each unit's stream derives from it and the unit's name.
    privacy : a ``counterflow.Privacy``: clip and noise what leaves the units, and account for it; None: send it as it
        is. What was spent, and what the guarantee does not cover, is in ``Fit.privacy``.
    progress : True: show on stderr how far it is, in per cent, and about how long it will take; or a function that is
        called with that, a ``counterflow.fits.progress.Standing``.
    estimators : {name: Estimator}, the proprietary estimators; default: a Kalman filter on the unit's own model.
        The published methods train on their states; the others use them only in ``Fit.validate``.
    watch : called with (message, goes_up) for every message that crosses.
    over_the_wire : encode and decode every message, as between machines.
    **options : such as ``edges`` and ``forbidden``, what is known of direct couplings: lists of (cause, effect). See
        ``counterflow.LikelihoodOptions`` for "sufficient" and "centralized",
        ``counterflow.LogOptions`` without models, ``counterflow.MomentOptions`` and ``counterflow.MomentLogOptions``
        for moments, ``counterflow.TrainingOptions`` for the published methods.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> recording = plant.simulate(500, rng=2)
    >>> found = cf.fit(recording, plant.locals())
    >>> found.status.converged, found.traffic.rounds
    (True, 1)
    >>> known = cf.fit(recording, plant.locals(), edges=[("boiler", "turbine")])  # nothing acts on the boiler
    >>> bool(known.plant.block("A", effect="boiler", cause="turbine").any())
    False
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
    if not isinstance(method, str) or method not in METHODS:
        raise OptionError(f"fit: method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OptionError(f"fit: seed must be a whole number of at least 0, got {seed!r}")
    if privacy is not None and not isinstance(privacy, Privacy):
        raise OptionError(f"fit: privacy must be a counterflow.Privacy or None, got {type(privacy).__name__}")
    task = LocalTask(
        method, {unit.name: unit.inputs for unit in recording.units}, options, int(seed), privacy, models is None,
        recording.dt,
    )  # fmt: skip
    digest = recording.digest if privacy is None else recording.public_digest
    provenance = Provenance.of(__version__, task.seed, digest, method, options)
    if method in POOLED:
        if privacy is not None:
            raise OptionError(f"fit: method {method!r} pools raw data; privacy goes with 'sufficient', the default")
        if watch is not None or over_the_wire:
            raise OptionError(f"fit: method {method!r} pools raw data and sends no messages to watch")
        if method == "oracle" and not isinstance(models, Plant):
            raise ModelError("fit: method 'oracle' needs the true plant: pass models=plant, a counterflow.Plant")
        if models is None:
            raise ModelError(f"fit: method {method!r} needs models: {{unit name: LocalModel}}, or a Plant")
        own = _brought(recording, models, estimators)
        with _within_precision(recording), progress_of(progress) as told:
            if isinstance(models, Plant) and method == "oracle":
                made = oracle(task, own, models, provenance)
            else:
                made = centralized(task, own, provenance, told.between(0.0, 1.0))
        return replace(made, calendar=recording.calendar)
    chosen = method_of(task)
    chosen.check(task)
    own = _brought(recording, models, estimators)
    most = chosen.rounds(task)
    with _within_precision(recording), progress_of(progress) as told:
        recorder = Recorder(task.units)

        def observe(state: ServerState, units: Mapping[str, UnitState]) -> None:
            recorder(state, units)
            told.round(state, most)

        seen = watch is not None or over_the_wire
        fewer = chosen.pooled(task, own, seen)
        told(0.0, "units read their logs")
        learning = told.between(READ, LEARNED)
        server, units = fewer or (
            chosen.server(task, learning), {name: chosen.unit(task, own[name]) for name in task.units}
        )  # fmt: skip
        with engine.paying(chosen, task, own, f"fit {provenance.data_digest[:12]}") as spending:
            done, states, traffic = engine.run(
                server, units, rows=recording.steps, observe=observe, watch=watch, over_the_wire=over_the_wire,
                leaving=spending.pay if spending else None,
            )  # fmt: skip
            report = None if spending is None else chosen.privacy_report(task, spending, done, states)
        told(LEARNED, "checks of the fit")
        part, status = complete.server_part(task, done)
        parts = {name: complete.unit_part(task, own[name], states[name]) for name in task.units}
        history = recorder.history({name: states[name].proprietary_loss for name in task.units})
        return complete.joined(
            part, status, parts, dt=recording.dt, history=history, traffic=traffic, provenance=provenance,
            privacy=report, calendar=recording.calendar,
        )  # fmt: skip


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


def _largest(recording: Recording) -> str:
    """The largest measurement, with its place."""
    unit, row, column, value = "", 0, 0, -1.0
    for name in recording.names:
        y = np.nan_to_num(np.abs(recording[name].y))
        at = np.unravel_index(int(y.argmax()), y.shape)
        if y[at] > value:
            unit, row, column, value = name, int(at[0]), int(at[1]), float(y[at])
    return f"{value:.3g} in {unit} {recording[unit].unit.output_names[column]}, row {row}"


def _brought(
    recording: Recording, models: Models | None, estimators: Mapping[str, Estimator] | None
) -> dict[str, UnitData]:
    """What every unit brings; its controllers may see readings of others."""
    if estimators is not None and not isinstance(estimators, Mapping):
        raise OptionError(f"fit: estimators must be {{unit name: Estimator}}, got {type(estimators).__name__}")
    local: Mapping[str, LocalModel] = {} if models is None else _checked_models(recording, models)
    given = estimators or {}
    for name in given:
        if name not in recording.names:
            raise OptionError(f"fit: an estimator is given for {name!r}, but the units are {list(recording.names)}")
    elsewhere, brought = recording.readings(loop for unit in recording.units for loop in unit.loops), {}
    for name, own in recording.items():
        known = controllers_of(own.unit, own.y, own.u, recording.dt, elsewhere, search=models is None)
        brought[name] = UnitData(own.unit, own.y, own.u, local.get(name), given.get(name), controllers=known)
    return brought


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
            refuse_other_channels(unit, models.unit(unit.name), ("the recording", "the plant"), ModelError)
    for unit in recording.units:
        model = found[unit.name]
        if not isinstance(model, LocalModel):
            raise ModelError(f"fit: the model of unit {unit.name!r} must be a LocalModel, got {type(model).__name__}")
        for what in ("inputs", "outputs"):
            has, wants = getattr(model, f"n_{what}"), getattr(unit, f"n_{what}")
            if has != wants:
                raise ModelError(f"fit: the model of unit {unit.name!r} has {has} {what}, its recording has {wants}")
    return {name: found[name] for name in recording.names}
