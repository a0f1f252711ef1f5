"""Fits from logs in one process: no unit has a model, and none of them shows its measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.estimation.joint import JointOptions
from counterflow.fits import in_process
from counterflow.fits.fit import Fit
from counterflow.fits.history import Recorder
from counterflow.fits.outcome import Provenance
from counterflow.methods.estimators import KalmanEstimator
from counterflow.methods.logs import unit as client_logs
from counterflow.methods.logs.server import LogConfig, LogServer
from counterflow.methods.logs.unit import LogUnit
from counterflow.methods.machines import UnitState
from counterflow.methods.options import LikelihoodOptions
from counterflow.methods.part import UnitPart
from counterflow.methods.sufficient.fitting import assemble, judged, spinner, status_of
from counterflow.methods.sufficient.unit import rows_and_channels
from counterflow.plant import Recording, Unit

if TYPE_CHECKING:
    from counterflow.protocol import Message

CHECKED = 50_000  # rows of a long log that are checked
WEAK = 0.1  # share of a channel's variance that its unit's numbers carry, below which answers about it are doubtful
ABSURD = 100.0  # robust standard deviations from the median that no reading should be away
NEAR = 0.2  # standard errors that a fit may still be away from its maximum and give intervals
EXACT_NUMBERS = "its message determines its measurements exactly, because every channel carries a signal of its own"


def log_fit(
    recording: Recording,
    provenance: Provenance,
    options: Mapping[str, Any],
    progress: bool,
    watch: Callable[[Message, bool], None] | None,
    over_the_wire: bool,
) -> Fit:
    """Identify the whole system from what the units send of their logs."""
    chosen = LikelihoodOptions.parse("sufficient", {"tol": 1e-3, "evaluations": 100, **options})
    names = recording.names
    ranks, same_row = chosen.for_logs("rank", names), chosen.for_logs("same_row", names)
    order = chosen.order if chosen.form == "free" else chosen.for_logs("order", names) or None
    asked = JointOptions(order, same_row or None, chosen.form, chosen.tol, chosen.evaluations)
    most = order if isinstance(order, Mapping) else {}  # a unit sends no more numbers than it may have states
    clients = {
        n: LogUnit(recording[n].unit, recording[n].y, recording[n].u, ranks.get(n), most.get(n)) for n in names
    }
    with spinner(progress) as told:
        done, units, traffic = in_process.run(
            LogServer(LogConfig(names, asked), progress=told),
            clients,
            watch=watch,
            over_the_wire=over_the_wire,
        )
        assert isinstance(done, LogServer)
        assert done.system is not None
        shared, found, notes = done.system.record, done.system.found, done.system.notes
        parts = {name: part_of(units[name]) for name in names}
        labels = {unit.name: unit.input_names for unit in recording.units}
        couplings, told_of = judged(
            shared, found, "blocks", labels, chosen.uncertainty, near=NEAR, form=chosen.form, spread=done.system.spread
        )
    caveats = [*told_of, *notes]
    for name in names:
        caveats += reading_caveats(units[name], recording[name].y, recording[name].u)
    if found.at_bound:
        text = (
            "the estimate rests on the stability bound: the data ask for a system that drifts without end. Answers "
            "over long horizons are not to be trusted; look for an integrator or a drift"
        )
        caveats.append(Caveat("stability-bound", "", text))
    history = Recorder(names).history(dict.fromkeys(names, 0.0))
    status, plant = status_of(found, chosen), assemble(found, parts, recording.dt)
    fitted = Fit(
        "sufficient", plant, parts, history, traffic, status, provenance,
        caveats=tuple(caveats), couplings=couplings,
    )  # fmt: skip
    # of a long log, the last rows: checks of all of it would take longer than the fit
    return fitted.checked(recording.slice(recording.rows - CHECKED) if recording.rows > 2 * CHECKED else None)


def part_of(state: UnitState) -> UnitPart:
    """What stays at a unit whose log has been identified."""
    assert isinstance(state, LogUnit)
    assert state.model is not None
    assert state.reading is not None
    unit = replace(state.description, states=state.model.states)
    level = np.array(state.reading.space.mean)
    level.flags.writeable = False
    return UnitPart(
        unit,
        state.model,
        KalmanEstimator(state.model),
        output_level=level,
        point=state.point,
        C_doubt=state.doubt,
    )


def reading_caveats(state: UnitState, y: FloatArray, u: FloatArray) -> list[Caveat]:
    """What a reader should know of what a unit has made of its log: ``y`` and ``u`` as they were read."""
    assert isinstance(state, LogUnit)
    assert state.reading is not None
    out: list[Caveat] = []
    unit, space, known = state.description, state.reading.space, state.y

    def add(code: str, text: str) -> None:
        out.append(Caveat(code, unit.name, f"unit {unit.name!r}: {text}"))

    used = rows_and_channels(known)[0]
    closed, lost = int(np.isfinite(known).sum() - np.isfinite(y).sum()), int((~used).sum())
    if closed or lost:
        add(
            "gaps-filled",
            f"{closed} readings missing for up to {client_logs.SHORT} rows were filled in, "
            f"{lost} rows were left out",
        )
    silent = [unit.output_names[k] for k in np.flatnonzero(~space.W.any(axis=1))]
    if silent:
        add("silent-channels", f"nothing can be asked about {', '.join(silent)}: no signal was found there")
    share = 1 - np.diag(state.reading.rest)
    weak = [unit.output_names[k] for k in np.flatnonzero((share < WEAK) & space.W.any(axis=1))]
    if weak:
        add(
            "weak-channels",
            f"{', '.join(weak)} look like noise to it (less than {100 * WEAK:.0f} % of the "
            "movement is shared with earlier rows, its inputs or its other channels); effects on them may be missed: "
            f"rank={len(space.scale)} would send every channel",
        )
    if space.rank == int(space.W.any(axis=1).sum()):
        add("exact-message", f"{EXACT_NUMBERS}; compression hides only levels and scales here")
    return out + _absurd(unit, u, unit.input_names) + _absurd(unit, y, unit.output_names)


def _absurd(unit: Unit, values: FloatArray, channels: tuple[str, ...]) -> list[Caveat]:
    """Readings so far out that they are no readings; one of them can decide a fit."""
    out = []
    for column, channel in zip(values.T, channels, strict=True):
        known = column[np.isfinite(column)]
        if not len(known):
            continue
        away = np.abs(known - np.median(known))
        usual = 1.4826 * float(np.median(away))
        if usual > 0 and away.max() > ABSURD * usual:
            row = int(np.flatnonzero(np.isfinite(column))[int(away.argmax())])
            text = (
                f"unit {unit.name!r}: {channel} is {column[row]:.6g} in row {row}, {away.max() / usual:.0f} times "
                "the usual movement away from its median; if that is no reading, make it missing and fit again"
            )
            out.append(Caveat("absurd-reading", unit.name, text))
    return out
