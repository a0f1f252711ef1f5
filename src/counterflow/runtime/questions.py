"""Questions, carried as messages between the asking unit and the server.

Each function takes the two sides as they are stored: the ``Server`` part of a fit (couplings, inputs, nobody's C or y)
and the asking unit's ``UnitPart`` (its C and R), and nothing of any other unit. The server returns the asking unit's
states, the unit makes its measurements of them. ``watch`` sees every message, as in ``fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import counterfactual
from counterflow.counterfactual import (
    Attribution,
    Effect,
    Knowledge,
    Paths,
    Restoration,
    Spread,
    Trajectory,
    band,
    deviation,
)
from counterflow.errors import DataError, OptionError, UnidentifiedError
from counterflow.filtering import rts_smoother
from counterflow.plant import OperatingPoint, Unit
from counterflow.plant.units import unit_named
from counterflow.protocol import Answer, Ask, Change, Message, Sufficient, decode, encode
from counterflow.runtime.arguments import (
    ChangeLike,
    as_schedule,
    channel_index,
    check_count,
    check_level,
    check_window,
    marked,
    of_cause,
    refuse_beyond_limits,
    replacements,
    unit_names,
)
from counterflow.server.information import positions
from counterflow.server.layout import Layout
from counterflow.server.likelihood import SharedRecord
from counterflow.server.sufficient import share

if TYPE_CHECKING:
    from counterflow.runtime.outcome import Couplings
    from counterflow.runtime.unit_part import UnitPart

FloatArray = NDArray[np.float64]
Watch = Callable[[Message, bool], None]

PUBLISHED_CAVEAT = (
    "the published method cannot recover B_mn when inputs are white and is biased otherwise (docs/theory/paper.md): "
    "treat this number as the method's output, not as the plant's answer"
)
SLOW = (
    "the slowest mode outlasts the record, so that the usual level, and with it the share of the first state, are "
    "extrapolated far: compare movements, not levels"
)
NO_INTERVAL = "standard errors were not computed for this fit, so there is no interval"


# ---- what crosses


def exchange(knowledge: Knowledge, changes: Sequence[Change], ask: Ask, watch: Watch | None) -> tuple[Answer, ...]:
    """Carry one question to the server and its answer back; every message is encoded and decoded on the way."""

    def carried(message: Message, up: bool) -> Message:
        if watch is not None:
            watch(message, up)
        return decode(encode(message))

    arrived = [m for m in (carried(change, True) for change in changes) if isinstance(m, Change)]
    question = carried(ask, True)
    assert isinstance(question, Ask)
    back = [carried(part, False) for part in counterfactual.answer(knowledge, arrived, question)]
    return tuple(part for part in back if isinstance(part, Answer))


@dataclass(frozen=True)
class Server:
    """The server's part of a fit, as far as questions need it; outputs of ``units`` mean nothing here."""

    method: str
    units: tuple[Unit, ...]
    A: FloatArray
    B: FloatArray
    Q: FloatArray
    couplings: Couplings | None
    shared: SharedRecord | None  # the rows that questions about the past refer to
    caveats: tuple[str, ...] = ()  # of the fit; they travel with every answer
    points: Mapping[str, OperatingPoint] = field(default_factory=dict)  # of the inputs of units fitted from logs

    link: str | None = None  # of a stored server: what its units' files refer to

    def point(self, name: str) -> OperatingPoint:
        """Where the unit's inputs rest, and which row they act on."""
        return self.points.get(name) or OperatingPoint.none(self.unit(name).n_inputs)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)

    def unit(self, name: str) -> Unit:
        """The unit of that name."""
        return unit_named(self.units, name)

    def about(self, messages: list[Sufficient]) -> Server:
        """The same, with other rows to refer to: what the units send of another recording."""
        return replace(self, shared=share(messages))

    @cached_property
    def spread(self) -> Spread | None:
        """How far the couplings may be off."""
        if self.couplings is None or self.couplings.spread is None:
            return None
        rows, columns = positions(self.couplings.spread.parameters)
        root = self.couplings.spread.root
        return Spread(rows, columns, root[:, root.any(axis=0)])

    def knowledge(self, states: bool = False) -> Knowledge:
        """What is brought to a question; the states of the recorded rows only if it needs them."""
        layout = Layout(self.names, tuple(u.states for u in self.units), tuple(u.n_inputs for u in self.units))
        P, U = self.B.shape
        u, smoothed = np.zeros((1, U)), np.zeros((1, P))
        last_mean, last_covariance = np.zeros(P), np.zeros((P, P))
        if self.shared is not None:
            u = self.shared.u
            if states:
                filtered = self.shared.filter(self.A, self.B, self.Q)
                smoothed = rts_smoother(filtered, self.A).smoothed
                last_mean, last_covariance = filtered.final_mean, filtered.final_covariance
        return Knowledge(
            self.names, layout.state_slices, layout.input_slices, self.A, self.B, self.Q, u, smoothed, last_mean,
            last_covariance, self.radius, self._seen, self.spread,
        )  # fmt: skip

    @cached_property
    def radius(self) -> float:
        """Spectral radius of A."""
        return float(np.abs(np.linalg.eigvals(self.A)).max())

    @cached_property
    def _seen(self) -> FloatArray:
        """Range of each input in the rows that are referred to."""
        return np.zeros(self.B.shape[1]) if self.shared is None else np.ptp(self.shared.u, axis=0)

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""
        if self.shared is None:
            raise OptionError(
                f"method {self.method!r} keeps no record of inputs: give the recording that is asked about"
            )
        return int(self.shared.u.shape[0])


# ---- the questions


def effect(
    server: Server,
    part: UnitPart,
    cause: str | Sequence[str],
    change: ChangeLike | Mapping[str, ChangeLike],
    horizon: int,
    duration: int | None,
    level: float,
    watch: Watch | None,
) -> Effect:
    """Effect of changes at one or several units on the asking unit's outputs."""
    target = part.unit.name
    _refuse_other_fit(server, part)
    check_count("effect", "horizon", horizon)
    if duration is not None:
        check_count("effect", "duration", duration)
    check_level("effect", level)
    causes = unit_names("effect", "cause", cause)
    changes = []
    for name in causes:
        source = server.unit(name)
        given: Any = change if isinstance(cause, str) else of_cause(change, name)
        values = as_schedule(source, given, horizon, duration)
        _refuse_doubtful(server, source, values)
        refuse_beyond_limits(source, values, absolute=False)
        changes.append(Change(target, name, False, 0, "", values))
    (found,) = _ask_of_changes(server, "effect", target, changes, horizon, duration, watch)
    C = part.model.C
    mean = found.mean @ C.T
    lower, upper = band(mean, deviation(found, C, doubt=part.C_doubt), level)
    return Effect(
        cause=" and ".join(causes),
        effect=target,
        channels=part.unit.output_names,
        mean=_frozen(mean),
        states=_frozen(found.mean),
        caveats=_caveats(server, found, interval=lower is not None),
        lower=lower,
        upper=upper,
        level=level if lower is not None else None,
    )


def what_would_have_happened(
    server: Server,
    part: UnitPart,
    y: FloatArray,
    do: Mapping[str, Any],
    start: int,
    stop: int | None,
    level: float,
    watch: Watch | None,
) -> Trajectory:
    """The asking unit's outputs, had some units' inputs been others in rows start to stop - 1 of the server's record.

    ``y`` (rows, D_m): the unit's own measurements of all rows of that record.
    """
    _refuse_other_fit(server, part)
    stop = server.rows if stop is None else stop
    check_window("counterfactual", server.rows, start, stop)
    measured = _own_measurements("counterfactual", server, part, y)[start:stop]
    check_level("counterfactual", level)
    if not isinstance(do, Mapping) or not do:
        raise OptionError("counterfactual: do must be {unit: {input channel: values}} or {unit: array}, and not empty")
    name = part.unit.name
    changes = []
    for cause, given in do.items():
        source = server.unit(cause)
        for first, values, channels in replacements(source, given, start, stop - start):
            _refuse_doubtful(server, source, marked(source, channels))
            refuse_beyond_limits(source, values, absolute=True, channels=channels)
            point, chosen = server.point(cause), ",".join(map(str, channels))
            values = values - point.input_level
            if point.same_row:  # the input of a row stands one row earlier in the model
                values, first = (values, first - 1) if first else (values[1:], 0)
            if len(values):
                changes.append(Change(name, cause, True, first, chosen, values))
    early = min([start, *(change.first for change in changes)])
    (found,) = exchange(server.knowledge(), changes, Ask(name, "counterfactual", early, stop - early), watch)
    found = _later_rows(found, start - early)
    C = part.model.C
    mean = measured + found.mean @ C.T
    lower, upper = band(mean, deviation(found, C, doubt=part.C_doubt), level)
    return Trajectory(
        name, part.unit.output_names, start, _frozen(measured), _frozen(mean), lower, upper,
        level if lower is not None else None, _caveats(server, found, interval=lower is not None),
    )  # fmt: skip


def forecast(
    server: Server, part: UnitPart, horizon: int, plan: Mapping[str, Any] | None, level: float, watch: Watch | None
) -> Trajectory:
    """What the asking unit's outputs will be after the record's last row, if inputs follow a plan (else: stay)."""
    _refuse_other_fit(server, part)
    check_count("forecast", "horizon", horizon)
    check_level("forecast", level)
    if server.couplings is None and server.method != "oracle":
        raise OptionError(f"forecast: method {server.method!r} keeps no joint filter; fit with method='sufficient'")
    name, first = part.unit.name, server.rows
    changes = []
    if plan is not None and not isinstance(plan, Mapping):
        raise OptionError(f"forecast: plan must be {{unit: {{input channel: values}}}}, got {type(plan).__name__}")
    for cause, given in (plan or {}).items():
        source = server.unit(cause)
        for start, values, channels in replacements(source, given, 0, horizon):
            _refuse_doubtful(server, source, marked(source, channels))
            refuse_beyond_limits(source, values, absolute=True, channels=channels)
            values = values - server.point(cause).input_level
            changes.append(Change(name, cause, True, start, ",".join(map(str, channels)), values))
    (found,) = exchange(server.knowledge(states=True), changes, Ask(name, "forecast", 0, horizon), watch)
    model = part.model
    mean = part.at_level(found.mean @ model.C.T)
    lower, upper = band(mean, deviation(found, model.C, model.R, part.C_doubt), level)
    return Trajectory(
        name, part.unit.output_names, first, _frozen(np.full_like(mean, np.nan)), _frozen(mean), lower, upper, level,
        _caveats(server, found, interval=True),
    )  # fmt: skip


def attribute(
    server: Server, part: UnitPart, y: FloatArray, start: int, stop: int | None, watch: Watch | None
) -> Attribution:
    """Split the departure of the asking unit's outputs from their usual level in rows start to stop - 1."""
    _refuse_other_fit(server, part)
    stop = server.rows if stop is None else stop
    check_window("attribute", server.rows, start, stop)
    measured = _own_measurements("attribute", server, part, y)[start:stop]
    unit = part.unit
    parts = exchange(server.knowledge(states=True), [], Ask(unit.name, "attribute", start, stop - start), watch)
    mapped = {piece.share: piece.mean @ part.model.C.T for piece in parts}
    baseline = part.at_level(mapped.pop(counterfactual.BASELINE))
    departure = measured - baseline
    initial = mapped.pop(counterfactual.INITIAL)
    shares = {**mapped, "initial state": initial}
    shares["rest"] = departure - sum(shares.values())
    frozen = MappingProxyType({name: _frozen(values) for name, values in shares.items()})
    return Attribution(
        unit.name, unit.output_names, start, _frozen(baseline), _frozen(departure), frozen,
        (*_fit_caveats(server), *((SLOW,) if server.radius > 1 - 1 / server.rows else ())),
    )  # fmt: skip


def paths(
    server: Server, part: UnitPart, cause: str, change: Any, horizon: int, duration: int | None, watch: Watch | None
) -> Paths:
    """The effect of a change, split by the way it takes."""
    _refuse_other_fit(server, part)
    check_count("paths", "horizon", horizon)
    source, name = server.unit(cause), part.unit.name
    if cause == name:
        raise OptionError(f"paths: cause and effect are both {name!r}; ask for the effect of another unit")
    values = as_schedule(source, change, horizon, duration)
    _refuse_doubtful(server, source, values)
    refuse_beyond_limits(source, values, absolute=False)
    asked = [Change(name, cause, False, 0, "", values)]
    found = _ask_of_changes(server, "paths", name, asked, horizon, duration, watch)
    mapped = {piece.share: _frozen(piece.mean @ part.model.C.T) for piece in found}
    total, direct = mapped.pop(""), mapped.pop(counterfactual.DIRECT)
    return Paths(cause, name, part.unit.output_names, total, direct, MappingProxyType(mapped), _fit_caveats(server))


def restore(
    server: Server,
    part: UnitPart,
    target: Mapping[str, float],
    using: Sequence[str] | Mapping[str, Sequence[str]],
    horizon: int,
    tolerance: float,
    watch: Watch | None,
) -> Restoration:
    """The smallest held change of chosen inputs that moves a unit's outputs by ``target`` at the horizon.

    Small is measured in each input's seen range (or its limits' width). What cannot be reached within the limits is
    said so, with the nearest that can.
    """
    from scipy.optimize import lsq_linear

    described, unit = part.unit, part.unit.name
    _refuse_other_fit(server, part)
    check_count("restore", "horizon", horizon)
    if not isinstance(target, Mapping) or not target:
        raise OptionError("restore: target must be {output channel: change}, and not empty")
    outputs = [channel_index(described, name, described.output_names, "output") for name in target]
    wanted = np.array([float(value) for value in target.values()])
    if not np.isfinite(wanted).all():
        raise DataError(f"restore: target must be finite numbers, got {dict(target)}")
    levers = _levers(server, using)
    if not levers:
        raise OptionError("restore: using must name at least one unit with inputs")
    knowledge = server.knowledge()
    steps = horizon + any(server.point(source.name).same_row for source, _ in levers)
    reach = {part.share: part.mean for part in exchange(knowledge, [], Ask(unit, "reach", 0, steps), watch)}
    C = part.model.C[outputs]
    columns, low, high, sizes = [], [], [], []
    for source, channel in levers:
        _refuse_doubtful(server, source, np.eye(source.n_inputs)[[channel]])
        point = server.point(source.name)
        held = reach[source.name].reshape(source.n_inputs, steps, -1)[channel, horizon - 1 + point.same_row]
        columns.append(C @ held)
        bounds, size = _room(knowledge, source, channel, float(point.input_level[channel]))
        low.append(bounds[0])
        high.append(bounds[1])
        sizes.append(size)
    scale = np.array(sizes)
    G = np.array(columns).T * scale  # in units of each lever's size
    goal = np.maximum(np.abs(wanted), 1e-12)
    weight = 1e6 / goal  # reaching the target comes first, the size of the change second
    needed = float(np.linalg.norm(np.linalg.pinv(G) @ wanted))  # so that a large target is not cut short by its price
    system = np.vstack([weight[:, None] * G, np.eye(len(levers)) / max(needed, 1.0)])
    right = np.concatenate([weight * wanted, np.zeros(len(levers))])
    found = lsq_linear(system, right, bounds=(np.array(low) / scale, np.array(high) / scale), tol=1e-14)
    change, reached = found.x * scale, G @ found.x
    feasible = bool((np.abs(reached - wanted) <= tolerance * np.maximum(np.abs(wanted), 1e-12)).all())
    grouped: dict[str, dict[str, float]] = {}
    for (source, channel), value in zip(levers, change, strict=True):
        grouped.setdefault(source.name, {})[source.input_names[channel]] = float(value)
    names = tuple(target)
    if feasible:
        message = f"{unit} reaches the target after {horizon} steps with these changes held:"
    else:
        missed = ", ".join(f"{n} {r:+.4g} of {w:+.4g}" for n, r, w in zip(names, reached, wanted, strict=True))
        message = (
            f"{unit} cannot reach the target with these inputs, within their limits; the nearest is {missed}, with:"
        )
    caveats = _fit_caveats(server)
    return Restoration(
        unit, names, horizon, feasible, MappingProxyType(grouped), _frozen(wanted), _frozen(reached), message, caveats
    )  # fmt: skip


def _refuse_other_fit(server: Server, part: UnitPart) -> None:
    if server.link is not None and part.link is not None and server.link != part.link:
        raise DataError(
            f"unit {part.unit.name!r}: its file belongs to another fit than the server's, so that they mean different "
            "states; load both from one saved fit"
        )


def _ask_of_changes(
    server: Server, kind: str, unit: str, changes: list[Change], horizon: int, duration: int | None, watch: Watch | None
) -> tuple[Answer, ...]:
    """Ask what changes from now on do, over the next ``horizon`` rows.

    Inputs that act on their own row are one step ahead of the others in the model: it is asked for one step more, the
    others' changes begin in its second step, and its first, which is the row of the change itself, is left out.
    """
    ahead = {change.cause for change in changes if server.point(change.cause).same_row}
    if not ahead:
        return exchange(server.knowledge(), changes, Ask(unit, kind, 0, horizon), watch)
    shifted = []
    for change in changes:
        if change.cause in ahead:
            last = change.values[-1:] if duration is None else np.zeros_like(change.values[-1:])
            shifted.append(replace(change, values=np.vstack([change.values, last])))
        else:
            shifted.append(replace(change, first=1))
    found = exchange(server.knowledge(), shifted, Ask(unit, kind, 0, horizon + 1), watch)
    return tuple(_later_rows(part, 1) for part in found)


def _later_rows(answer: Answer, rows: int) -> Answer:
    """An answer without its first rows."""
    if not rows:
        return answer
    size = answer.mean.shape[1]
    return replace(answer, mean=answer.mean[rows:], covariance=answer.covariance[rows * size :])


# ---- what is refused, and what is said


def _own_measurements(question: str, server: Server, part: UnitPart, y: object) -> FloatArray:
    array = np.asarray(y, np.float64)
    shape = (server.rows, part.model.n_outputs)
    if array.shape != shape:
        raise DataError(f"{question}: unit {part.unit.name!r} needs its measurements {shape}, got shape {array.shape}")
    return array


def _refuse_doubtful(server: Server, source: Unit, change: FloatArray) -> None:
    """A change whose effect passes through couplings that the data do not determine has no answer.

    Its inputs must be determined; and where states' couplings are not (a unit that was hardly measured), nothing that
    passes through that unit is, which in a coupled plant is everything.
    """
    moved = set(np.flatnonzero(np.abs(change).max(axis=0, initial=0.0) > 0).tolist())
    for doubt in server.couplings.doubts if server.couplings is not None else ():
        own_input = doubt.letter == "B" and doubt.cause == source.name
        if doubt.letter == "A" or (own_input and (not doubt.channels or set(doubt.channels) & moved)):
            raise UnidentifiedError(f"not to be told from these data. {doubt}")


def _levers(server: Server, using: Sequence[str] | Mapping[str, Sequence[str]]) -> list[tuple[Unit, int]]:
    names = unit_names("restore", "using", using)
    out = []
    for name in names:
        unit = server.unit(name)
        chosen = using[name] if isinstance(using, Mapping) else unit.input_names
        out += [(unit, channel_index(unit, channel, unit.input_names, "input")) for channel in chosen]
    return out


def _room(knowledge: Knowledge, source: Unit, channel: int, level: float) -> tuple[tuple[float, float], float]:
    """How far an input may move from its last value, and the size its change is measured in."""
    column = knowledge.input_slices[knowledge.index(source.name)].start + channel
    seen, last = knowledge.u[:, column], level + float(knowledge.u[-1, column])
    limits = source.inputs[channel].limits
    size = float(np.ptp(seen)) if len(seen) > 1 else 0.0
    if limits is None:
        return (-np.inf, np.inf), size or 1.0
    return (limits[0] - last, limits[1] - last), size or limits[1] - limits[0]


def _fit_caveats(server: Server) -> tuple[str, ...]:
    if server.couplings is not None:
        return server.caveats
    return () if server.method == "oracle" else (PUBLISHED_CAVEAT,)


def _caveats(server: Server, found: Answer, interval: bool) -> tuple[str, ...]:
    out = [*server.caveats, *([found.note] if found.note else [])]
    if server.couplings is None:
        return tuple(out) if server.method == "oracle" else (PUBLISHED_CAVEAT, *out)
    return tuple(out) if interval else (NO_INTERVAL, *out)


def _frozen(array: FloatArray) -> FloatArray:
    out = np.array(array, np.float64)
    out.flags.writeable = False
    return out
