"""Free runs: from many starts, predict rows ahead given the inputs that were, without looking at what was measured.

Beside the joint model stand two simpler ones: persistence (the last measured value stays) and each unit's own model
alone, which knows its own measurements and inputs and nothing of the other units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.checks.figures import MOST_CURVES, Pen
from counterflow.checks.material import Material
from counterflow.checks.verdicts import Check, Kind, Verdict
from counterflow.errors import CounterflowError, DataError, OptionError
from counterflow.exchange.part import UnitPart
from counterflow.filtering import kalman_filter
from counterflow.learning.model import simulated

if TYPE_CHECKING:
    import polars

    from counterflow.fits.fit import Fit
    from counterflow.plant import LocalModel, Recording

HORIZON = 30
MOST_STARTS = 400
FEWEST_STARTS = 8
BATCHES = 20  # of neighbouring starts, whose means give the standard errors
DEVIATIONS = 3.0  # standard errors that count as no accident
CLEAR = 0.9  # ratio of root mean square errors that few starts, which scatter, need not make sure
SLACK = 0.02  # relative difference of root mean square errors that is too small to matter
MODELS = ("joint", "local", "persistence")
Starts = int | Sequence[int] | NDArray[np.intp] | None


@dataclass(frozen=True, eq=False)
class UnitRun:
    """Free runs of one unit: arrays (starts, horizon, channels); NaN where nothing was measured or predicted.

    Row k of the horizon is k + 1 rows after the start.
    """

    unit: str
    channels: tuple[str, ...]
    truth: FloatArray
    joint: FloatArray
    local: FloatArray
    persistence: FloatArray
    spread: FloatArray = field(repr=False)  # (channels,) standard deviation of what was measured

    def errors(self, model: str) -> FloatArray:
        """Squared errors of one of ``MODELS``."""
        return np.asarray(np.square(getattr(self, model) - self.truth))

    def rmse(self, model: str) -> FloatArray:
        """Root mean square error by horizon and channel (horizon, channels), over the starts."""
        return np.asarray(np.sqrt(_nanmean(self.errors(model), 0)))

    def window_rmse(self, model: str) -> FloatArray:
        """Root mean square error of each channel (channels,) over starts and the whole horizon."""
        errors = self.errors(model)
        return np.asarray(np.sqrt(_nanmean(errors.reshape(-1, errors.shape[2]), 0)))

    def by_horizon(self, model: str) -> FloatArray:
        """Root mean square error by horizon (horizon,), over all channels that move, in their standard deviations."""
        moving = self.spread > 0
        return np.asarray(np.sqrt(_nanmean(np.square(self.rmse(model)[:, moving] / self.spread[moving]), 1)))

    def by_start(self, model: str) -> FloatArray:
        """Mean square error of each start (starts,) over horizon and channels, each in its standard deviations.

        Only what all three models predict counts, so that they can be compared.
        """
        known = np.isfinite(self.truth + self.joint + self.persistence)
        if np.isfinite(self.local).any():
            known &= np.isfinite(self.local)
        known &= self.spread > 0
        scaled = np.where(known, self.errors(model) / np.where(self.spread > 0, np.square(self.spread), 1.0), np.nan)
        return _nanmean(scaled.reshape(len(scaled), -1), 1)

    def compared(self, model: str, other: str) -> tuple[float, float]:
        """(ratio of root mean square errors, standard errors by which ``model`` is better) against ``other``.

        The errors come from batches of neighbouring starts, because these go together.
        """
        mine, theirs = self.by_start(model), self.by_start(other)
        both = np.isfinite(mine) & np.isfinite(theirs)
        mine, theirs = mine[both], theirs[both]
        if len(mine) < FEWEST_STARTS or theirs.mean() <= 0:
            return float("nan"), float("nan")
        gain = theirs - mine
        batches = np.array([part.mean() for part in np.array_split(gain, min(BATCHES, len(gain)))])
        error = float(batches.std(ddof=1)) / math.sqrt(len(batches))
        deviations = float(gain.mean()) / error if error > 0 else math.copysign(math.inf, float(gain.mean()))
        return math.sqrt(float(mine.mean()) / float(theirs.mean())), deviations


@dataclass(frozen=True, eq=False)
class FreeRun:
    """Free runs of all units, as `free_run` returns them."""

    starts: NDArray[np.intp]
    horizon: int
    units: Mapping[str, UnitRun]
    measured_in: str  # "engineering units" or "message numbers"

    def __getitem__(self, unit: str) -> UnitRun:
        return self.units[unit]

    @cached_property
    def table(self) -> dict[str, dict[str, FloatArray]]:
        """{unit: {model: root mean square error (channels,) over the whole horizon}}."""
        return {name: {model: run.window_rmse(model) for model in MODELS} for name, run in self.units.items()}

    def to_frame(self) -> polars.DataFrame:
        """One row for each unit, channel, model and row of the horizon."""
        import polars

        rows = [
            (name, channel, model, k + 1, float(value))
            for name, run in self.units.items()
            for model in MODELS
            for k, values in enumerate(run.rmse(model))
            for channel, value in zip(run.channels, values, strict=True)
        ]
        columns = ("unit", "channel", "model", "horizon", "rmse")
        kinds = (polars.String, polars.String, polars.String, polars.Int64, polars.Float64)
        return polars.DataFrame(rows, schema=dict(zip(columns, kinds, strict=True)), orient="row")


def free_run(
    fit: Fit, recording: Recording | None = None, horizon: int = HORIZON, starts: Starts = None,
    local: Mapping[str, LocalModel | UnitPart] | None = None,
) -> FreeRun:  # fmt: skip
    """Predict every unit's outputs over ``horizon`` rows from many starts, given the inputs that were.

    Parameters
    ----------
    recording : what to predict, in its own units of measure; None: the messages that the fit rests on.
    starts : rows to start from (their own measurement is the last that is known), or how many, evenly spread; None: as
        many as stand apart by the horizon, at most 400.
    local : models of units by themselves to compare with, {unit: LocalModel}, or {unit: UnitPart} such as those of a
        fit of that unit alone; default: the unit's own model. Needs a recording.

    Examples
    --------
    >>> import counterflow as cf
    >>> from counterflow.checks import free_run
    >>> plant = cf.random_plant(["boiler", "turbine"], rng=1)
    >>> recording = plant.simulate(1500, rng=2)
    >>> runs = free_run(cf.fit(recording, plant.locals()), recording, horizon=10)
    >>> runs["turbine"].joint.shape == (len(runs.starts), 10, 8)
    True
    >>> error = runs.table["turbine"]
    >>> bool((error["joint"] < error["local"]).all() and (error["joint"] < error["persistence"]).all())
    True
    """
    if recording is None and local is not None:
        raise OptionError("free_run: models of units alone predict measurements: give a recording, too")
    for name in local or {}:
        if name not in fit.names:
            raise OptionError(f"free_run: local names unit {name!r}, but the units are {', '.join(fit.names)}")
    material = Material(fit.server if recording is None else fit.about(recording))
    if "inputs" not in material.has:
        raise OptionError(f"free_run: method {fit.method!r} keeps no rows to predict: give a recording")
    if recording is None:
        return run_of_messages(material, horizon, starts)
    return run_of_recording(fit, material, recording, horizon, starts, local or {})


def run_of_messages(material: Material, horizon: int, starts: Starts = None) -> FreeRun:
    """Free runs of what the units have sent."""
    at, states = _states_ahead(material, horizon, starts)
    units = {}
    for m, name in enumerate(material.names):
        own = material.columns[m]
        truth, C = material.s[:, own], material.C[own]
        channels = tuple(f"number {k + 1}" for k in range(truth.shape[1]))
        alone = _alone_on_messages(material, m, at, horizon)
        units[name] = _unit_run(name, channels, truth, states @ C.T, alone, at, horizon)
    return FreeRun(at, int(horizon), MappingProxyType(units), "message numbers")


def run_of_recording(
    fit: Fit, material: Material, recording: Recording, horizon: int, starts: Starts,
    local: Mapping[str, LocalModel | UnitPart],
) -> FreeRun:  # fmt: skip
    """Free runs of the measurements themselves."""
    at, states = _states_ahead(material, horizon, starts)
    units = {}
    for name in material.names:
        part = fit.parts[name]
        truth = part.believed(recording[name].y)
        seen = states if part.model.C.shape[1] == len(material.model.A) else states[:, :, fit.plant.state_slice(name)]
        joint = part.at_level(seen @ part.model.C.T)
        alone = _alone(local.get(name, part), part, recording[name].y, recording[name].u, at, int(horizon))
        units[name] = _unit_run(name, part.unit.output_names, truth, joint, alone, at, horizon)
    return FreeRun(at, int(horizon), MappingProxyType(units), "engineering units")


def _states_ahead(material: Material, horizon: int, starts: Starts) -> tuple[NDArray[np.intp], FloatArray]:
    if isinstance(horizon, bool) or not isinstance(horizon, (int, np.integer)) or not 1 <= horizon < material.rows:
        raise OptionError(f"free_run: horizon must be a whole number from 1 to {material.rows - 1}, got {horizon!r}")
    at = _starts(starts, material.rows, int(horizon))
    return at, material.grounded.free_runs(at, int(horizon))


def _unit_run(
    name: str, channels: tuple[str, ...], truth: FloatArray, joint: FloatArray, alone: FloatArray | None,
    at: NDArray[np.intp], horizon: int,
) -> UnitRun:  # fmt: skip
    ahead = truth[at[:, None] + 1 + np.arange(int(horizon))]
    held = np.broadcast_to(_last_measured(truth, at)[:, None], ahead.shape)
    local_run = np.full(ahead.shape, np.nan) if alone is None else alone
    return UnitRun(name, channels, ahead, joint, local_run, held, _spread(truth))


class Prediction(Kind):
    """Does the joint model predict a unit better than what is simpler?"""

    name, claim, place = "free run", "predictions beat simpler ones", 12
    unit_of_number = "error / persistence"

    def look(self, material: Material) -> Iterator[Check]:
        horizon = min(material.horizon, max(1, (material.rows - 1) // 4))
        runs = (material.run or run_of_messages)(material, horizon) if material.rows > 2 else None
        for name in material.names:
            run = None if runs is None else runs[name]
            ratio, better = (math.nan, math.nan) if run is None else run.compared("joint", "persistence")
            if run is None or not math.isfinite(ratio):
                finding = f"{name} was measured in too few rows, or never moves: there is nothing to predict"
                yield self.unknown(name, finding)
                continue
            against, gain = run.compared("joint", "local")
            finding = f"over {horizon} rows the joint model errs {ratio:.2f} times as much as persistence"
            finding += f", {against:.2f} times as much as {name}'s own model alone" if math.isfinite(against) else ""
            verdict: Verdict = "fail"
            if ratio > 1 + SLACK and better < -DEVIATIONS:
                short = f"predicts worse than the last value ({ratio:.2f} times its error)"
                remedy = "do not use its answers over such horizons; give the fit more states, or record what else acts"
            elif math.isfinite(against) and against > 1 + SLACK and gain < -DEVIATIONS:
                short = f"predicts worse than the unit's own model ({against:.2f} times its error)"
                remedy = "the couplings mislead: fit more rows, or let the fit estimate the units' own blocks too"
            else:
                verdict = "caution" if ratio > 1 - SLACK or (ratio > CLEAR and better < DEVIATIONS) else "pass"
                short = "is not surely better than the last value"
                remedy = (
                    "the inputs on record hardly move this unit, or it drifts: ask about shorter horizons, or record "
                    "what else acts on it"
                )
            yield self.found(
                name, ratio, finding, f"{horizon} rows ahead it {short}", remedy, verdict=verdict,
                joint=run.by_horizon("joint"), local=run.by_horizon("local"),
                persistence=run.by_horizon("persistence"),
            )  # fmt: skip

    def draw(self, pen: Pen, checks: list[Check]) -> None:
        for k, check in enumerate(checks[:MOST_CURVES]):
            held, steps = check.data["persistence"], np.arange(1, len(check.data["persistence"]) + 1)
            pen.curve(k, steps, check.data["joint"] / held, check, "-")
            pen.curve(k, steps, check.data["local"] / held, check, ":")
        pen.line(1.0)
        pen.axis.set_ylim(bottom=0)
        pen.labels("rows ahead (solid: joint model, dotted: own model alone)", "error over persistence's", legend=True)


def _starts(given: Starts, rows: int, horizon: int) -> NDArray[np.intp]:
    last = rows - 1 - horizon
    first = min(max(2, rows // 20), last)
    if given is None or isinstance(given, (int, np.integer)):
        most = max(1, (last - first) // horizon + 1)
        count = min(most, MOST_STARTS) if given is None else int(given)
        if count < 1:
            raise OptionError(f"free_run: starts must be at least 1, got {given!r}")
        return np.unique(np.linspace(first, last, min(count, last - first + 1)).astype(np.intp))
    at = np.asarray(given)
    if at.ndim != 1 or not len(at) or at.dtype.kind not in "iu":
        raise OptionError("free_run: starts must be a count, or one row number after another")
    if at.min() < 0 or at.max() > last:
        raise DataError(
            f"free_run: starts must lie in rows 0 to {last}, so that {horizon} rows follow; got {at.min()} to "
            f"{at.max()}"
        )
    return at.astype(np.intp)


def _alone(
    model: LocalModel | UnitPart, part: UnitPart, y: FloatArray, u: FloatArray, at: NDArray[np.intp], horizon: int
) -> FloatArray | None:
    """A unit's outputs by a model of it alone; None if that cannot be filtered."""
    part, own = (model, model.model) if isinstance(model, UnitPart) else (part, model)
    if own.n_outputs != y.shape[1] or own.n_inputs != u.shape[1]:
        if own is part.model:  # states that belong to nobody: there is no model of the unit alone
            return None
        raise DataError(
            f"free_run: the model of unit {part.unit.name!r} alone has {own.n_inputs} inputs and {own.n_outputs} "
            f"outputs, the recording {u.shape[1]} and {y.shape[1]}"
        )
    inputs = part.model_inputs(u)
    try:
        found = kalman_filter(part.departures(y), inputs, own.A, own.B, own.C, own.Q, own.R)
    except CounterflowError:
        return None
    return np.asarray(part.at_level(simulated(own.A, own.B, found.filtered, inputs, at, horizon) @ own.C.T))


def _alone_on_messages(material: Material, m: int, at: NDArray[np.intp], horizon: int) -> FloatArray | None:
    """The same, of a unit's messages, by its own blocks; None where states belong to nobody."""
    record, own, columns = material.record, material.columns[m], material.inputs[m]
    states = record.state_slices[m]
    C = material.C[own, states]
    if np.abs(material.C[own]).sum() > np.abs(C).sum() or own.stop == own.start:
        return None
    A, B, inputs = record.A_local[states, states], record.B_local[states, columns], material.u[:, columns]
    try:
        found = record.alone(m).filter(A, B, record.Q_local[states, states])
    except CounterflowError:
        return None
    return np.asarray(simulated(A, B, found.filtered, inputs, at, horizon) @ C.T)


def _last_measured(values: FloatArray, at: NDArray[np.intp]) -> FloatArray:
    """The newest measurement of each channel at each start (starts, channels); NaN if there is none yet."""
    rows = np.where(np.isfinite(values), np.arange(len(values))[:, None], -1)
    newest = np.maximum.accumulate(rows, axis=0)[at]
    found = np.take_along_axis(values, np.maximum(newest, 0), axis=0)
    return np.where(newest >= 0, found, np.nan)


def _spread(values: FloatArray) -> FloatArray:
    """Standard deviation of each channel over the rows that are there; zero for one that never moves."""
    known = np.isfinite(values)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, values, 0.0).sum(axis=0) / count
    size = np.sqrt(np.where(known, np.square(values - mean), 0.0).sum(axis=0) / count)
    return np.asarray(np.where(size > 1e-9 * np.maximum(np.abs(mean), 1e-300), size, 0.0))


def _nanmean(values: FloatArray, axis: int) -> FloatArray:
    """Mean over what is finite; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))
