"""What a seat sees before it asks anything: units and channels, influence graph, checks, training, its own log.

Each view is what its schema in ``responses`` reads: plain types, or objects with the schema's attributes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.checks.verdicts import worst
from counterflow.console.opening import Opened
from counterflow.console.seats import Seat
from counterflow.errors import CounterflowError, OptionError
from counterflow.plant import PublicUnit, Unit
from counterflow.plant.calendar import as_rows
from counterflow.plant.units import unknown_name
from counterflow.questions.arguments import check_window
from counterflow.questions.numbers import series
from counterflow.questions.registry import QUESTIONS
from counterflow.report import Clock
from counterflow.report.composition import acting_directly, assumptions

View = dict[str, Any]
_DRAWN = {  # of the server's history: its name there, the name that is shown, the plot that it belongs to
    "server_loss": ("server loss", "loss"),
    "residual_loss": ("residual loss", "loss"),
    "disentanglement": ("disentanglement D", "disentanglement"),
    "gradient": ("relative gradient", "gradient"),
}
_OWN_LOSSES = {"client_loss": "augmented loss", "proprietary_loss": "own model"}


def seats(opened: Opened) -> View:
    offers = list(opened.seats.values())
    return {
        "version": __version__, "title": opened.title, "started": opened.started, "seats": offers, "first": offers[0].id
    }  # fmt: skip


def plant(seat: Seat) -> View:
    """Units, channels, and which questions there are answers to."""
    try:
        rows: int | None = seat.asked.rows
    except CounterflowError:
        rows = None
    return {
        "seat": seat.id, "kind": seat.kind, "unit": seat.unit, "method": seat.method, "dt": seat.plant.dt,
        "clock": Clock.of(seat.plant.dt), "calendar": _calendar(seat), "rows": rows,
        "units": [_unit(seat, unit) for unit in seat.plant.units],
        "questions": {kind: _question(kind, reason) for kind, reason in seat.refusals.items()},
        "caveats": [caveat.to_view() for caveat in seat.caveats],
        "assumptions": assumptions(seat.method in ("sufficient", "centralized"), _from_logs(seat)),
        "status": "" if seat.status is None else str(seat.status), "controllers": seat.controlled,
        "loops": seat.loops,
    }  # fmt: skip


def _question(tab: str, reason: str) -> View:
    """Whether a question or view may be had, and the question's form."""
    told: View = {"allowed": not reason, "reason": reason}
    found = next((each for each in QUESTIONS.values() if each.tab == tab), None)
    if found is None:
        return told
    form = [
        {
            "name": entry.name, "kind": entry.form.value, "help": entry.help, "needed": entry.default is ...,
            "default": None if entry.default in (..., ()) else entry.default,
        }
        for entry in found.form if entry.page
    ]  # fmt: skip
    return {**told, "title": found.title, "form": form}


def _calendar(seat: Seat) -> View | None:
    """When rows are, in milliseconds, as pages count."""
    found = seat.calendar
    if found is None:
        return None
    jumps = [(row, extra / 1e6) for row, extra in found.jumps]
    return {"begins": found.begins / 1e6, "step": found.step / 1e6, "zone": found.zone, "jumps": jumps}


def _from_logs(seat: Seat) -> bool:
    """Whether the fit has a note of its form, which fits from logs have."""
    return any(caveat.code == "model-form" for caveat in seat.caveats)


def _unit(seat: Seat, unit: Unit | PublicUnit) -> View:
    inputs = []
    for column, channel in enumerate(unit.inputs):
        reason = seat.refusal_of_input(unit.name, column)
        seen, last = (None, None) if reason else _seen(seat, unit.name, column)
        known = {"name": channel.name, "measured_in": channel.unit, "limits": channel.limits}
        inputs.append({**known, "seen": seen, "last": last, "allowed": not reason, "reason": reason})
    part = seat.parts.get(unit.name)
    outputs = part.unit.outputs if part is not None else ()
    return {
        "name": unit.name, "states": unit.states, "own": unit.name == seat.unit, "inputs": inputs,
        "phi": None if part is None or part.phi is None else part.phi.tolist(),
        "outputs": [{"name": channel.name, "measured_in": channel.unit} for channel in outputs],
    }  # fmt: skip


def _seen(seat: Seat, name: str, column: int) -> tuple[list[float] | None, float | None]:
    """Lowest and highest value of an input in the server's record, and its last one, where that is on this machine."""
    server = seat.server
    if server is None or server.shared is None:
        return None, None
    before = server.units[: server.names.index(name)]
    u = server.shared.u[:, sum(unit.n_inputs for unit in before) + column] + server.point(name).input_level[column]
    return [float(u.min()), float(u.max())], float(u[-1])


def graph(seat: Seat, rate: float) -> View:
    found = seat.graph(rate)
    return {
        "rate": rate, "names": [unit.name for unit in seat.plant.units],
        "edges": [{**vars(edge), "kind": edge.kind} for edge in found],
        "sentence": acting_directly(found.direct(), rate),
    }  # fmt: skip


def checks(seat: Seat) -> View:
    found = seat.checks()
    return {
        "verdict": worst(found.verdict, "unknown") if seat.closed else found.verdict,
        "checks": [{**vars(each), "unit": each.about or None, "sentence": each.finding} for each in found],
    }


def training(seat: Seat) -> View:
    """How the fit came about: the server's losses at the server, a unit's own at the unit."""
    if seat.record is None:
        raise OptionError(seat.refusals["training"])
    record, history = seat.record, seat.record.history
    drawn: list[tuple[str, str | None, str, FloatArray]] = []
    if seat.unit is None:
        drawn += [(name, None, group, getattr(history, key)) for key, (name, group) in _DRAWN.items()]
        drawn += [("δd", name, "delta_d", values) for name, values in history.delta_d.items()]
    else:
        losses = [(label, seat.losses.get(key, {})) for key, label in _OWN_LOSSES.items()]
        drawn += [(label, name, "loss", values) for label, each in losses for name, values in each.items()]
        drawn.append(("δd", seat.unit, "delta_d", history.delta_d[seat.unit]))
    told = record.provenance
    return {
        "method": seat.method, "status": str(record.status), "converged": record.status.converged,
        "traffic": record.traffic, "privacy": _privacy(seat),
        "series": [
            {"name": name, "unit": unit, "group": group, "values": series(values)}
            for name, unit, group, values in drawn if len(values)
        ],
        "provenance": {
            "fit": str(told), "Counterflow": told.version, "method": told.method, "seed": str(told.seed),
            "data": told.data_digest,
        },
    }  # fmt: skip


def _privacy(seat: Seat) -> View | None:
    """What was spent; a unit's own account at the unit, at the server what each release was made with."""
    report = seat.privacy
    if report is None:
        return None
    units = []
    for name, each in report.units.items():
        account = {"spent": each.spent, "budget": None if each.budget is None else each.budget[0]}
        if seat.unit in (name, None):
            units.append({"name": name, "epsilon": each.epsilon, **(account if seat.unit == name else {})})
    return {
        "epsilon": report.epsilon, "delta": report.delta, "window": report.window, "units": units,
        "sentences": report.sentences(),
    }  # fmt: skip


def rows(seat: Seat, start: int | str, stop: int | str | None) -> View:
    """A window that is given by dates or durations, as rows."""
    count = seat.asked.rows
    first, last = as_rows(start, stop, seat.calendar, count, seat.plant.dt)
    last = count if last is None else last
    check_window("window", count, first, last)
    return {"start": first, "stop": last}


def log(seat: Seat, channel: str, points: int) -> View:
    """A channel of the unit's own measurements, for choosing a window."""
    if seat.unit is None:
        raise OptionError(seat.refusals["past"])
    unit = seat.parts[seat.unit].unit
    if channel not in unit.output_names:
        raise unknown_name(f"output of unit {unit.name!r}", channel, unit.output_names)
    index = unit.output_names.index(channel)
    column = seat.own_measurements(unit.name)[:, index]
    width = max(1, -(-len(column) // points))
    starts = range(0, len(column), width)
    bins = [column[start : start + width] for start in starts]
    known = [each[np.isfinite(each)] for each in bins]
    low, high = ([float(end(each)) if each.size else None for each in known] for end in (np.min, np.max))
    return {
        "channel": channel, "measured_in": unit.outputs[index].unit, "row": list(starts), "low": low, "high": high
    }  # fmt: skip
