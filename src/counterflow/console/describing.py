"""What a seat sees before it asks anything: units and channels, influence graph, checks, training, its own log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.console import messages
from counterflow.console.opening import Opened
from counterflow.console.seats import Seat
from counterflow.errors import CounterflowError, OptionError
from counterflow.plant import PublicUnit, Unit
from counterflow.plant.units import unknown_name
from counterflow.questions.views import CaveatView, finite, series
from counterflow.report import Clock
from counterflow.report.content import acting_directly, assumptions
from counterflow.report.graph import kind_of

_KINDS = {
    "loss": (("server_loss", "server loss"), ("residual_loss", "residual loss")),
    "disentanglement": (("disentanglement", "disentanglement D"),),
    "gradient": (("gradient", "relative gradient"),),
}


def seats(opened: Opened) -> messages.Seats:
    offers = [
        messages.SeatOffer(id=seat.id, kind="server" if seat.unit is None else "unit", unit=seat.unit)
        for seat in opened.seats.values()
    ]
    return messages.Seats(
        version=__version__, title=opened.title, started=opened.started, seats=offers, first=offers[0].id
    )


def plant(seat: Seat) -> messages.PlantTold:
    """Units, channels, and which questions there are answers to."""
    clock = Clock.of(seat.plant.dt)
    try:
        rows: int | None = seat.asked.rows
    except CounterflowError:
        rows = None
    return messages.PlantTold(
        seat=seat.id,
        kind="server" if seat.unit is None else "unit",
        unit=seat.unit,
        method=seat.method,
        dt=seat.plant.dt,
        clock=messages.ClockTold(step=clock.step, unit=clock.unit, point=clock.point),
        rows=rows,
        units=[_unit(seat, unit) for unit in seat.plant.units],
        questions={
            kind: messages.Permission(allowed=not reason, reason=reason) for kind, reason in seat.refusals.items()
        },
        caveats=[CaveatView(**caveat.to_json()) for caveat in seat.caveats],
        assumptions=list(assumptions(seat.method in ("sufficient", "centralized"))),
        status="" if seat.status is None else str(seat.status),
    )


def _unit(seat: Seat, unit: Unit | PublicUnit) -> messages.UnitTold:
    inputs = []
    for column, channel in enumerate(unit.inputs):
        reason = seat.refusal_of_input(unit.name, column)
        seen, last = (None, None) if reason else _seen(seat, unit.name, column)
        limits = None if channel.limits is None else [finite(end) for end in channel.limits]
        inputs.append(
            messages.InputTold(
                name=channel.name, measured_in=channel.unit, limits=limits, seen=seen, last=last, allowed=not reason,
                reason=reason,
            )
        )  # fmt: skip
    part = seat.parts.get(unit.name)
    outputs = part.unit.outputs if part is not None else ()
    return messages.UnitTold(
        name=unit.name,
        states=unit.states,
        own=unit.name == seat.unit,
        phi=None if part is None or part.phi is None else list(map(float, part.phi)),
        inputs=inputs,
        outputs=[messages.OutputTold(name=c.name, measured_in=c.unit) for c in outputs],
    )


def _seen(seat: Seat, name: str, column: int) -> tuple[list[float] | None, float | None]:
    """Lowest and highest value of an input in the server's record, and its last one, where that is on this machine."""
    server = seat.server
    if server is None or server.shared is None:
        return None, None
    before = server.units[: server.names.index(name)]
    u = server.shared.u[:, sum(unit.n_inputs for unit in before) + column] + server.point(name).input_level[column]
    return [float(u.min()), float(u.max())], float(u[-1])


def graph(seat: Seat, rate: float) -> messages.GraphTold:
    found = seat.graph(rate)
    edges = [
        messages.EdgeTold(
            cause=edge.cause,
            effect=edge.effect,
            kind=kind_of(edge),  # type: ignore[arg-type]
            p_value=finite(edge.p_value),
            q_value=finite(edge.q_value),
            direct_strength=finite(edge.direct_strength),
            total_strength=finite(edge.total_strength),
        )
        for edge in found
    ]
    names = [unit.name for unit in seat.plant.units]
    sentence = acting_directly(found.direct(), rate)
    return messages.GraphTold(rate=rate, names=names, edges=edges, sentence=sentence)


def checks(seat: Seat) -> messages.ChecksTold:
    found = seat.checks()
    told = [
        messages.CheckTold(
            name=check.name, verdict=check.verdict, unit=check.about or None, sentence=check.finding,
            remedy=check.remedy,
        )
        for check in found
    ]  # fmt: skip
    return messages.ChecksTold(verdict=found.verdict, checks=told)


def training(seat: Seat) -> messages.TrainingTold:
    """How the fit came about: the server's losses at the server, a unit's own at the unit."""
    if seat.record is None:
        raise OptionError(seat.refusals["training"])
    record, history = seat.record, seat.record.history
    drawn = []
    if seat.unit is None:
        for group, entries in _KINDS.items():
            drawn += [_series(label, None, group, getattr(history, key)) for key, label in entries]
        drawn += [_series("δd", name, "delta_d", values) for name, values in history.delta_d.items()]
    else:
        drawn += [_series("augmented loss", n, "loss", v) for n, v in seat.losses.get("client_loss", {}).items()]
        drawn += [_series("own model", n, "loss", v) for n, v in seat.losses.get("proprietary_loss", {}).items()]
        drawn.append(_series("δd", seat.unit, "delta_d", history.delta_d[seat.unit]))
    told = record.provenance
    return messages.TrainingTold(
        method=seat.method,
        status=str(record.status),
        converged=record.status.converged,
        traffic=messages.TrafficTold(
            rounds=record.traffic.rounds, bytes_up=record.traffic.bytes_up, bytes_down=record.traffic.bytes_down
        ),
        series=[each for each in drawn if each.values],
        privacy=_privacy(seat),
        provenance={
            "Counterflow": told.version, "method": told.method, "seed": str(told.seed), "data": told.data_digest
        },
    )  # fmt: skip


def _series(name: str, unit: str | None, group: str, values: FloatArray) -> messages.TrainingSeries:
    return messages.TrainingSeries(name=name, unit=unit, group=group, values=series(values))  # type: ignore[arg-type]


def _privacy(seat: Seat) -> messages.PrivacyTold | None:
    """What was spent; a unit's own account at the unit, at the server what each release was made with."""
    report = seat.privacy
    if report is None:
        return None
    units = []
    for name, each in report.units.items():
        own = seat.unit == name
        if own or seat.unit is None:
            units.append(
                messages.BudgetTold(
                    name=name,
                    epsilon=each.epsilon,
                    spent=finite(each.spent) if own else None,
                    budget=None if not own or each.budget is None else each.budget[0],
                )
            )
    return messages.PrivacyTold(
        epsilon=report.epsilon, delta=report.delta, window=report.window, sentences=list(report.sentences()),
        units=units,
    )  # fmt: skip


def log(seat: Seat, channel: str, points: int) -> messages.LogTold:
    """A channel of the unit's own measurements, for choosing a window."""
    if seat.unit is None:
        raise OptionError(seat.refusals["past"])
    unit = seat.parts[seat.unit].unit
    index = output_index(unit, channel)
    column = seat.own_measurements(unit.name)[:, index]
    width = max(1, -(-len(column) // points))
    starts = range(0, len(column), width)
    low, high = _extremes([column[start : start + width] for start in starts])
    told = unit.outputs[index]
    return messages.LogTold(channel=channel, measured_in=told.unit, row=list(starts), low=low, high=high)


def _extremes(bins: Sequence[FloatArray]) -> tuple[list[float | None], list[float | None]]:
    known = [each[np.isfinite(each)] for each in bins]
    return (
        [float(each.min()) if each.size else None for each in known],
        [float(each.max()) if each.size else None for each in known],
    )


def output_index(unit: Unit, name: str) -> int:
    if name not in unit.output_names:
        raise unknown_name(f"output of unit {unit.name!r}", name, unit.output_names)
    return unit.output_names.index(name)
