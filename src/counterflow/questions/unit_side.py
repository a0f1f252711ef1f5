"""The unit's half of questions: what it asks for, and what it makes of the answer with its own output matrix.

Each function takes somebody to ask (the ``Server`` part of a fit, or one across the network) and the asking unit's
``UnitPart`` (its C and R), and nothing of any other unit. The server returns the asking unit's states, the unit makes
its measurements of them. ``watch`` sees every message, as in ``fit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError
from counterflow.plant import Unit
from counterflow.protocol import Answer, Ask, Change
from counterflow.protocol.messages import NO_LIMIT
from counterflow.questions.answering import Watch
from counterflow.questions.answers import Attribution, Effect, Paths, Restoration, Trajectory, band, deviation
from counterflow.questions.arguments import (
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
from counterflow.questions.propagation import BASELINE, DIRECT, FAR, INITIAL, extrapolating

if TYPE_CHECKING:
    from counterflow.methods.part import UnitPart



class Asked(Protocol):
    """Whom a unit asks: knows the units' names and input channels, and carries a question to where it is answered."""

    @property
    def link(self) -> str | None:
        """What the files of units that may ask refer to; None: anything."""
        ...

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""
        ...

    def unit(self, name: str) -> Unit:
        """The unit of that name, as far as others know it."""
        ...

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """The answer to a question, in parts."""
        ...


# ---- the questions


def effect(
    server: Asked,
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
        changes.append(_addition(target, source, given, horizon, duration))
    (found,) = server.ask(changes, Ask(target, "effect", 0, horizon), watch)
    C = part.model.C
    mean = found.mean @ C.T
    lower, upper = band(mean, deviation(found, C, doubt=part.C_doubt), level)
    return Effect(
        cause=" and ".join(causes),
        effect=target,
        channels=part.unit.output_names,
        mean=_frozen(mean),
        states=_frozen(found.mean),
        caveats=(*found.notes, *map(str, part.caveats)),
        lower=lower,
        upper=upper,
        level=level if lower is not None else None,
    )


def what_would_have_happened(
    server: Asked,
    part: UnitPart,
    y: FloatArray,
    do: Mapping[str, Any] | None,
    start: int,
    stop: int | None,
    level: float,
    watch: Watch | None,
    add: Mapping[str, Any] | None = None,
) -> Trajectory:
    """The asking unit's outputs, had some units' inputs been others in rows start to stop - 1 of the server's record.

    ``y`` (rows, D_m): the unit's own measurements of all rows of that record. ``do`` replaces inputs, ``add`` is added
    to what they were, which the asking unit need not know.
    """
    _refuse_other_fit(server, part)
    stop = server.rows if stop is None else stop
    check_window("counterfactual", server.rows, start, stop)
    measured = _own_measurements("counterfactual", server, part, y)[start:stop]
    check_level("counterfactual", level)
    for given in (do, add):
        if not (given is None or isinstance(given, Mapping)) or not (do or add):
            raise OptionError(
                "counterfactual: do (and add) must be {unit: {input channel: values}} or {unit: array}, and not empty"
            )
    name = part.unit.name
    changes = []
    for whole, absolute in ((do or {}, True), (add or {}, False)):
        for cause, given in whole.items():
            source = server.unit(cause)
            for first, values, channels in replacements(source, given, start, stop - start):
                refuse_beyond_limits(source, values, absolute=absolute, channels=channels)
                changes.append(Change(name, cause, absolute, first, ",".join(map(str, channels)), values))
    (found,) = server.ask(changes, Ask(name, "counterfactual", start, stop - start), watch)
    C = part.model.C
    mean = measured + found.mean @ C.T
    lower, upper = band(mean, deviation(found, C, doubt=part.C_doubt), level)
    return Trajectory(
        name, part.unit.output_names, start, _frozen(measured), _frozen(mean), lower, upper,
        level if lower is not None else None, (*found.notes, *map(str, part.caveats)),
    )  # fmt: skip


def forecast(
    server: Asked, part: UnitPart, horizon: int, plan: Mapping[str, Any] | None, level: float, watch: Watch | None
) -> Trajectory:
    """What the asking unit's outputs will be after the record's last row, if inputs follow a plan (else: stay)."""
    _refuse_other_fit(server, part)
    check_count("forecast", "horizon", horizon)
    check_level("forecast", level)
    name, first = part.unit.name, server.rows
    changes = []
    if plan is not None and not isinstance(plan, Mapping):
        raise OptionError(f"forecast: plan must be {{unit: {{input channel: values}}}}, got {type(plan).__name__}")
    for cause, given in (plan or {}).items():
        source = server.unit(cause)
        for start, values, channels in replacements(source, given, 0, horizon):
            refuse_beyond_limits(source, values, absolute=True, channels=channels)
            changes.append(Change(name, cause, True, start, ",".join(map(str, channels)), values))
    (found,) = server.ask(changes, Ask(name, "forecast", 0, horizon), watch)
    model = part.model
    mean = part.at_level(found.mean @ model.C.T)
    lower, upper = band(mean, deviation(found, model.C, model.R, part.C_doubt), level)
    return Trajectory(
        name, part.unit.output_names, first, _frozen(np.full_like(mean, np.nan)), _frozen(mean), lower, upper, level,
        (*found.notes, *map(str, part.caveats)),
    )  # fmt: skip


def attribute(
    server: Asked, part: UnitPart, y: FloatArray, start: int, stop: int | None, watch: Watch | None
) -> Attribution:
    """Split the departure of the asking unit's outputs from their usual level in rows start to stop - 1."""
    _refuse_other_fit(server, part)
    stop = server.rows if stop is None else stop
    check_window("attribute", server.rows, start, stop)
    measured = _own_measurements("attribute", server, part, y)[start:stop]
    unit = part.unit
    parts = server.ask([], Ask(unit.name, "attribute", start, stop - start), watch)
    mapped = {piece.share: piece.mean @ part.model.C.T for piece in parts}
    baseline = part.at_level(mapped.pop(BASELINE))
    departure = measured - baseline
    initial = mapped.pop(INITIAL)
    shares = {**mapped, "initial state": initial}
    shares["rest"] = departure - sum(shares.values())
    frozen = MappingProxyType({name: _frozen(values) for name, values in shares.items()})
    return Attribution(
        unit.name, unit.output_names, start, _frozen(baseline), _frozen(departure), frozen,
        (*parts[0].notes, *map(str, part.caveats)),
    )  # fmt: skip


def paths(
    server: Asked, part: UnitPart, cause: str, change: Any, horizon: int, duration: int | None, watch: Watch | None
) -> Paths:
    """The effect of a change, split by the way it takes."""
    _refuse_other_fit(server, part)
    check_count("paths", "horizon", horizon)
    source, name = server.unit(cause), part.unit.name
    if cause == name:
        raise OptionError(f"paths: cause and effect are both {name!r}; ask for the effect of another unit")
    asked = [_addition(name, source, change, horizon, duration)]
    found = server.ask(asked, Ask(name, "paths", 0, horizon), watch)
    mapped = {piece.share: _frozen(piece.mean @ part.model.C.T) for piece in found}
    total, direct = mapped.pop(""), mapped.pop(DIRECT)
    return Paths(
        cause, name, part.unit.output_names, total, direct, MappingProxyType(mapped),
        (*found[0].notes, *map(str, part.caveats)),
    )


def restore(
    server: Asked,
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
    named: dict[str, list[int]] = {}
    for source, channel in levers:
        named.setdefault(source.name, []).append(channel)
    asked = [
        Change(unit, name, False, 0, ",".join(map(str, own)), marked(server.unit(name), tuple(own)))
        for name, own in named.items()
    ]
    parts = server.ask(asked, Ask(unit, "reach", 0, horizon), watch)
    moved = [piece.mean.reshape(len(piece.room), horizon, -1)[:, -1] for piece in parts]  # states at the horizon
    room = np.vstack([piece.room for piece in parts])
    low, high = (np.where(np.abs(bound) < NO_LIMIT, bound, np.inf * np.sign(bound)) for bound in room[:, :2].T)
    scale = room[:, 2]
    G = part.model.C[outputs] @ np.vstack(moved).T * scale  # in units of each lever's size
    goal = np.maximum(np.abs(wanted), 1e-12)
    weight = 1e6 / goal  # reaching the target comes first, the size of the change second
    needed = float(np.linalg.norm(np.linalg.pinv(G) @ wanted))  # so that a large target is not cut short by its price
    system = np.vstack([weight[:, None] * G, np.eye(len(levers)) / max(needed, 1.0)])
    right = np.concatenate([weight * wanted, np.zeros(len(levers))])
    found = lsq_linear(system, right, bounds=(low / scale, high / scale), tol=1e-14)
    change, reached = found.x * scale, G @ found.x
    feasible = bool((np.abs(reached - wanted) <= tolerance * np.maximum(np.abs(wanted), 1e-12)).all())
    grouped: dict[str, dict[str, float]] = {}
    for (source, channel), value in zip(levers, change, strict=True):
        grouped.setdefault(source.name, {})[source.input_names[channel]] = float(value)
    names = tuple(target)
    seen = np.abs(change) > FAR * scale
    far = list(dict.fromkeys(source.name for (source, _), beyond in zip(levers, seen, strict=True) if beyond))
    notes = (*parts[0].notes, *((extrapolating(far),) if far else ()), *map(str, part.caveats))
    if feasible:
        message = f"{unit} reaches the target after {horizon} steps with these changes held:"
    else:
        missed = ", ".join(f"{n} {r:+.4g} of {w:+.4g}" for n, r, w in zip(names, reached, wanted, strict=True))
        message = (
            f"{unit} cannot reach the target with these inputs, within their limits; the nearest is {missed}, with:"
        )
    return Restoration(
        unit, names, horizon, feasible, MappingProxyType(grouped), _frozen(wanted), _frozen(reached), message,
        notes,
    )  # fmt: skip


def _refuse_other_fit(server: Asked, part: UnitPart) -> None:
    if server.link is not None and part.link is not None and server.link != part.link:
        raise DataError(
            f"unit {part.unit.name!r}: its file belongs to another fit than the server's, so that they mean different "
            "states; load both from one saved fit"
        )


def _addition(target: str, source: Unit, given: Any, horizon: int, duration: int | None) -> Change:
    """A change from now on, with one row more than steps: for inputs that act on the row they stand in."""
    values = as_schedule(source, given, horizon, duration)
    refuse_beyond_limits(source, values, absolute=False)
    last = values[-1:] if duration is None else np.zeros_like(values[-1:])
    return Change(target, source.name, False, 0, "", np.vstack([values, last]))


# ---- what is refused, and what is said


def _own_measurements(question: str, server: Asked, part: UnitPart, y: object) -> FloatArray:
    array = np.asarray(y, np.float64)
    shape = (server.rows, part.model.n_outputs)
    if array.shape != shape:
        raise DataError(f"{question}: unit {part.unit.name!r} needs its measurements {shape}, got shape {array.shape}")
    return array


def _levers(server: Asked, using: Sequence[str] | Mapping[str, Sequence[str]]) -> list[tuple[Unit, int]]:
    names = unit_names("restore", "using", using)
    out: list[tuple[Unit, int]] = []
    for name in names:
        unit = server.unit(name)
        chosen = using[name] if isinstance(using, Mapping) else unit.input_names
        levers = [(unit, channel_index(unit, channel, unit.input_names, "input")) for channel in chosen]
        out += [lever for k, lever in enumerate(levers) if lever not in (*out, *levers[:k])]
    return out


def _frozen(array: FloatArray) -> FloatArray:
    out = np.array(array, np.float64)
    out.flags.writeable = False
    return out
