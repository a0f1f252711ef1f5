"""Questions to a fit, carried as messages between the asking unit and the server, in one process.

The server's half sees changes and its own couplings and returns the asking unit's states; the unit's half adds C_mm,
R_m and the unit's own measurements. ``watch`` sees every message, as in ``fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import client, counterfactual
from counterflow.counterfactual import Attribution, Effect, Knowledge, Restoration, Spread, Trajectory, band, deviation
from counterflow.errors import DataError, OptionError, UnidentifiedError, UnknownNameError
from counterflow.filtering import rts_smoother
from counterflow.plant import Recording, Unit
from counterflow.protocol import Answer, Ask, Change, Message, decode, encode
from counterflow.server.information import positions
from counterflow.server.sufficient import share

if TYPE_CHECKING:
    from counterflow.runtime.result import Fit

FloatArray = NDArray[np.float64]
ChangeLike = Sequence[float] | FloatArray | Mapping[str, float]
Watch = Callable[[Message, bool], None]

PUBLISHED_CAVEAT = (
    "the published method cannot recover B_mn when inputs are white and is biased otherwise (docs/theory/paper.md): "
    "treat this number as the method's output, not as the plant's answer"
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


def knowledge_of(fit: Fit, recording: Recording | None = None, states: bool = False) -> Knowledge:
    """What the server knows: couplings, and the inputs (and states, if asked for) of a recording, or the fitted one."""
    plant, couplings = fit.plant, fit.couplings
    P, U = plant.B.shape
    u, smoothed = np.zeros((1, U)), np.zeros((1, P))
    last_mean, last_covariance = np.zeros(P), np.zeros((P, P))
    shared = couplings.shared if couplings is not None else None
    if recording is not None:
        if set(recording.names) != set(fit.names):
            raise DataError(f"the recording has units {list(recording.names)}, the fit {list(fit.names)}")
        shared = share(
            [client.sufficient_message(n, fit.parts[n].model, recording[n].y, recording[n].u) for n in fit.names]
        )
    if shared is not None:
        u = shared.u
        if states:
            filtered = shared.filter(plant.A, plant.B, plant.Q)
            smoothed = rts_smoother(filtered, plant.A).smoothed
            last_mean, last_covariance = filtered.final_mean, filtered.final_covariance
    spread = None
    if couplings is not None and couplings.spread is not None:
        rows, columns = positions(couplings.spread.parameters)
        root = couplings.spread.root
        spread = Spread(rows, columns, root[:, root.any(axis=0)])
    return Knowledge(
        names=plant.names,
        state_slices=tuple(plant.state_slice(n) for n in plant.names),
        input_slices=tuple(plant.input_slice(n) for n in plant.names),
        A=plant.A,
        B=plant.B,
        Q=plant.Q,
        u=u,
        smoothed=smoothed,
        last_mean=last_mean,
        last_covariance=last_covariance,
        spread=spread,
    )


# ---- the questions


def effect(
    fit: Fit,
    cause: str | Sequence[str],
    target: str,
    change: ChangeLike | Mapping[str, ChangeLike],
    horizon: int,
    duration: int | None,
    level: float,
    watch: Watch | None,
) -> Effect:
    """Effect of changes at one or several units on another's outputs."""
    unit = fit.plant.unit(target)
    check_count("effect", "horizon", horizon)
    if duration is not None:
        check_count("effect", "duration", duration)
    check_level("effect", level)
    causes = [cause] if isinstance(cause, str) else list(cause)
    changes = []
    for name in causes:
        source = fit.plant.unit(name)
        given: Any = change if isinstance(cause, str) else _of_cause(change, name)
        values = _as_schedule(source, given, horizon, duration)
        _refuse_doubtful(fit, source, values)
        _refuse_beyond_limits(source, values, absolute=False)
        changes.append(Change(target, name, False, 0, values))
    (found,) = exchange(knowledge_of(fit), changes, Ask(target, "effect", 0, horizon), watch)
    C = fit.parts[target].model.C
    mean = found.mean @ C.T
    lower, upper = band(mean, deviation(found, C), level)
    return Effect(
        cause=" and ".join(causes),
        effect=target,
        channels=unit.output_names,
        mean=_frozen(mean),
        states=_frozen(found.mean),
        caveats=_caveats(fit, found, interval=lower is not None),
        lower=lower,
        upper=upper,
        level=level if lower is not None else None,
    )


def counterfactual_trajectories(
    fit: Fit,
    recording: Recording,
    do: Mapping[str, Mapping[str, FloatArray | float] | FloatArray],
    start: int,
    stop: int | None,
    level: float,
    watch: Watch | None,
) -> dict[str, Trajectory]:
    """What every unit's outputs would have been, had some units' inputs been others in rows start to stop - 1."""
    stop = recording.rows if stop is None else stop
    _check_window("counterfactual", recording, start, stop)
    check_level("counterfactual", level)
    if not isinstance(do, Mapping) or not do:
        raise OptionError("counterfactual: do must be {unit: {input channel: values}} or {unit: array}, and not empty")
    changes = {}
    for name, given in do.items():
        source = fit.plant.unit(name)
        factual = recording[name].u[start:stop]
        values = _replaced_inputs(source, given, factual)
        _refuse_doubtful(fit, source, values - factual)
        _refuse_beyond_limits(source, values, absolute=True)
        changes[name] = values
    knowledge = knowledge_of(fit, recording)
    out = {}
    for name in fit.names:
        asked = [Change(name, cause, True, start, values) for cause, values in changes.items()]
        (found,) = exchange(knowledge, asked, Ask(name, "counterfactual", start, stop - start), watch)
        C, y = fit.parts[name].model.C, recording[name].y[start:stop]
        mean = y + found.mean @ C.T
        lower, upper = band(mean, deviation(found, C), level)
        out[name] = Trajectory(
            name, fit.plant.unit(name).output_names, start, _frozen(y), _frozen(mean), lower, upper,
            level if lower is not None else None, _caveats(fit, found, interval=lower is not None),
        )  # fmt: skip
    return out


def forecast(
    fit: Fit,
    recording: Recording,
    horizon: int,
    plan: Mapping[str, Mapping[str, FloatArray | float] | FloatArray] | None,
    level: float,
    watch: Watch | None,
) -> dict[str, Trajectory]:
    """What every unit's outputs will be after the recording's last row, if inputs follow a plan (else: stay)."""
    check_count("forecast", "horizon", horizon)
    check_level("forecast", level)
    if fit.couplings is None and fit.method != "oracle":
        raise OptionError(f"forecast: method {fit.method!r} keeps no joint filter; fit with method='sufficient'")
    changes = {}
    for name, given in (plan or {}).items():
        source = fit.plant.unit(name)
        last = recording[name].u[-1]
        values = _replaced_inputs(source, given, np.tile(last, (horizon, 1)))
        _refuse_doubtful(fit, source, values - last)
        _refuse_beyond_limits(source, values, absolute=True)
        changes[name] = values
    knowledge = knowledge_of(fit, recording, states=True)
    out = {}
    for name in fit.names:
        asked = [Change(name, cause, True, 0, values) for cause, values in changes.items()]
        (found,) = exchange(knowledge, asked, Ask(name, "forecast", 0, horizon), watch)
        model = fit.parts[name].model
        mean = found.mean @ model.C.T
        lower, upper = band(mean, deviation(found, model.C, model.R), level)
        out[name] = Trajectory(
            name, fit.plant.unit(name).output_names, recording.rows, _frozen(np.full_like(mean, np.nan)),
            _frozen(mean), lower, upper, level, _caveats(fit, found, interval=True),
        )  # fmt: skip
    return out


def attribute(
    fit: Fit, recording: Recording, unit: str, start: int, stop: int | None, watch: Watch | None
) -> Attribution:
    """Split the departure of a unit's outputs from their usual level in rows start to stop - 1."""
    described = fit.plant.unit(unit)
    stop = recording.rows if stop is None else stop
    _check_window("attribute", recording, start, stop)
    knowledge = knowledge_of(fit, recording, states=True)
    parts = exchange(knowledge, [], Ask(unit, "attribute", start, stop - start), watch)
    C, y = fit.parts[unit].model.C, recording[unit].y[start:stop]
    mapped = {part.share: part.mean @ C.T for part in parts}
    baseline = mapped.pop(counterfactual.BASELINE)
    departure = y - baseline
    initial = mapped.pop(counterfactual.INITIAL)
    shares = {**mapped, "initial state": initial}
    shares["rest"] = departure - sum(shares.values())
    frozen = MappingProxyType({name: _frozen(values) for name, values in shares.items()})
    caveats = _fit_caveats(fit)
    return Attribution(unit, described.output_names, start, _frozen(baseline), _frozen(departure), frozen, caveats)


def restore(
    fit: Fit,
    unit: str,
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

    described = fit.plant.unit(unit)
    check_count("restore", "horizon", horizon)
    if not isinstance(target, Mapping) or not target:
        raise OptionError("restore: target must be {output channel: change}, and not empty")
    outputs = [_channel(described, name, described.output_names, "output") for name in target]
    wanted = np.array([float(value) for value in target.values()])
    if not np.isfinite(wanted).all():
        raise DataError(f"restore: target must be finite numbers, got {dict(target)}")
    levers = _levers(fit, using)
    if not levers:
        raise OptionError("restore: using must name at least one unit with inputs")
    knowledge = knowledge_of(fit)
    reach = {part.share: part.mean for part in exchange(knowledge, [], Ask(unit, "reach", 0, horizon), watch)}
    C = fit.parts[unit].model.C[outputs]
    columns, low, high, sizes = [], [], [], []
    for source, channel in levers:
        _refuse_doubtful(fit, source, np.eye(source.n_inputs)[[channel]])
        held = reach[source.name].reshape(source.n_inputs, horizon, -1)[channel, -1]
        columns.append(C @ held)
        bounds, size = _room(knowledge, fit, source, channel)
        low.append(bounds[0])
        high.append(bounds[1])
        sizes.append(size)
    scale = np.array(sizes)
    G = np.array(columns).T * scale  # in units of each lever's size
    goal = np.maximum(np.abs(wanted), 1e-12)
    weight = 1e6 / goal  # reaching the target comes first, the size of the change second
    system = np.vstack([weight[:, None] * G, np.eye(len(levers))])
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
        message = f"{unit} cannot reach the target within the limits of these inputs; the nearest is {missed}, with:"
    caveats = _fit_caveats(fit)
    return Restoration(
        unit, names, horizon, feasible, MappingProxyType(grouped), _frozen(wanted), _frozen(reached), message, caveats
    )  # fmt: skip


# ---- arguments


def check_count(question: str, name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise OptionError(f"{question}: {name} must be a whole number of at least 1, got {value!r}")


def check_level(question: str, level: object) -> None:
    if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level < 1:
        raise OptionError(f"{question}: level must lie between 0 and 1, got {level!r}")


def _check_window(question: str, recording: Recording, start: object, stop: object) -> None:
    good = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in (start, stop))
    if not good or not 0 <= start < stop <= recording.rows:  # type: ignore[operator]
        raise OptionError(
            f"{question}: start and stop must be rows with 0 <= start < stop <= {recording.rows}, "
            f"got {start!r} and {stop!r}"
        )


def _of_cause(change: object, name: str) -> ChangeLike:
    if not isinstance(change, Mapping) or name not in change:
        raise OptionError(
            f"effect: with several causes, change must be {{unit: change}}; nothing is given for {name!r}"
        )
    return change[name]  # type: ignore[no-any-return]


def _channel(unit: Unit, name: str, names: tuple[str, ...], kind: str) -> int:
    if name not in names:
        raise UnknownNameError(f"unit {unit.name!r} has no {kind} {name!r}; its {kind}s are {', '.join(names)}")
    return names.index(name)


def _as_schedule(unit: Unit, change: ChangeLike, horizon: int, duration: int | None) -> FloatArray:
    """A change as one row a step: numbers are held, series (horizon, U) are taken as they are."""
    if isinstance(change, Mapping):
        columns = np.zeros((horizon, unit.n_inputs))
        for name, value in change.items():
            columns[:, _channel(unit, name, unit.input_names, "input")] = _numbers(unit, name, value, horizon)
        values = columns
    else:
        array = _plain(unit, change)
        if array.shape not in ((unit.n_inputs,), (horizon, unit.n_inputs)):
            raise DataError(
                f"effect: change at unit {unit.name!r} needs {unit.n_inputs} numbers, one for each of "
                f"{', '.join(unit.input_names)}, or {horizon} rows of them; got shape {array.shape}"
            )
        values = np.tile(array, (horizon, 1)) if array.ndim == 1 else array.copy()
    if duration is not None:
        values[duration:] = 0.0
    return values


def _plain(unit: Unit, values: object) -> FloatArray:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"unit {unit.name!r}: inputs must be numbers, got {values!r:.80}") from None
    if not np.isfinite(array).all():
        raise DataError(f"unit {unit.name!r}: inputs must be finite, got {values!r:.80}")
    return array


def _numbers(unit: Unit, name: str, value: object, rows: int) -> FloatArray:
    array = _plain(unit, value)
    if array.shape not in ((), (rows,)):
        raise DataError(f"unit {unit.name!r}, input {name!r}: give one number or {rows}, got shape {array.shape}")
    return np.broadcast_to(array, (rows,))


def _replaced_inputs(
    unit: Unit, given: Mapping[str, FloatArray | float] | FloatArray, factual: FloatArray
) -> FloatArray:
    """Inputs with some channels replaced, (rows, U)."""
    out = factual.copy()
    if isinstance(given, Mapping):
        for name, value in given.items():
            out[:, _channel(unit, name, unit.input_names, "input")] = _numbers(unit, name, value, len(factual))
        return out
    array = _plain(unit, given)
    if array.shape != factual.shape:
        raise DataError(f"unit {unit.name!r}: inputs of shape {factual.shape} are needed, got {array.shape}")
    return array.copy()


def _refuse_doubtful(fit: Fit, source: Unit, change: FloatArray) -> None:
    """A change whose effect passes through couplings that the data do not determine has no answer.

    Its inputs must be determined; and where states' couplings are not (a unit that was hardly measured), nothing that
    passes through that unit is, which in a coupled plant is everything.
    """
    moved = set(np.flatnonzero(np.abs(change).max(axis=0, initial=0.0) > 0).tolist())
    for doubt in fit.couplings.doubts if fit.couplings is not None else ():
        own_input = doubt.letter == "B" and doubt.cause == source.name
        if doubt.letter == "A" or (own_input and (not doubt.channels or set(doubt.channels) & moved)):
            raise UnidentifiedError(f"not to be told from these data. {doubt}")


def _refuse_beyond_limits(source: Unit, values: FloatArray, absolute: bool) -> None:
    for k, channel in enumerate(source.inputs):
        if channel.limits is None:
            continue
        low, high = channel.limits
        column = values[:, k]
        if absolute and (column.min() < low or column.max() > high):
            worst = column.min() if column.min() < low else column.max()
            raise OptionError(
                f"unit {source.name!r}, input {channel.name!r}: {worst:g} {channel.unit} is outside its limits "
                f"{low:g} to {high:g}"
            )
        if not absolute and np.abs(column).max() > high - low:
            raise OptionError(
                f"unit {source.name!r}, input {channel.name!r}: a change of {np.abs(column).max():g} {channel.unit} is "
                f"wider than its limits {low:g} to {high:g}"
            )


def _levers(fit: Fit, using: Sequence[str] | Mapping[str, Sequence[str]]) -> list[tuple[Unit, int]]:
    names = [using] if isinstance(using, str) else list(using)
    out = []
    for name in names:
        unit = fit.plant.unit(name)
        chosen = using[name] if isinstance(using, Mapping) else unit.input_names
        out += [(unit, _channel(unit, channel, unit.input_names, "input")) for channel in chosen]
    return out


def _room(knowledge: Knowledge, fit: Fit, source: Unit, channel: int) -> tuple[tuple[float, float], float]:
    """How far an input may move from its last value, and the size its change is measured in."""
    column = fit.plant.input_slice(source.name).start + channel
    seen, last = knowledge.u[:, column], float(knowledge.u[-1, column])
    limits = source.inputs[channel].limits
    size = float(np.ptp(seen)) if len(seen) > 1 else 0.0
    if limits is None:
        return (-np.inf, np.inf), size or 1.0
    return (min(limits[0] - last, 0.0), max(limits[1] - last, 0.0)), size or limits[1] - limits[0]


def _fit_caveats(fit: Fit) -> tuple[str, ...]:
    if fit.couplings is not None:
        return tuple(str(doubt) for doubt in fit.couplings.doubts)
    return () if fit.method == "oracle" else (PUBLISHED_CAVEAT,)


def _caveats(fit: Fit, found: Answer, interval: bool) -> tuple[str, ...]:
    out = [found.note] if found.note else []
    if fit.couplings is None:
        return tuple(out) if fit.method == "oracle" else (PUBLISHED_CAVEAT, *out)
    return tuple(out) if interval else (NO_INTERVAL, *out)


def _frozen(array: FloatArray) -> FloatArray:
    out = np.array(array, np.float64)
    out.flags.writeable = False
    return out


__all__ = ["attribute", "counterfactual_trajectories", "effect", "exchange", "forecast", "knowledge_of", "restore"]
