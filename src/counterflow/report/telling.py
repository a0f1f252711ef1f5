"""What is told of every answer, whoever asked: its sentence, the channels that move most, what speaks against it.

The command line and the console say the same of one answer because both say it with these.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from counterflow import wording
from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.plant import Channel, Unit

if TYPE_CHECKING:
    from counterflow.methods.outcome import Status
    from counterflow.methods.part import UnitPart
    from counterflow.questions.answers import Attribution, Effect, Restoration, Trajectory

Changes = Mapping[str, Mapping[str, Any]]
MOST_PAIRS = 12  # that a sentence can hold


class Described(Protocol):
    """Units with names and channels: a plant, or what is known of one."""

    @property
    def units(self) -> tuple[Unit, ...]: ...

    @property
    def dt(self) -> float: ...

    def unit(self, name: str) -> Unit: ...


class Asked(Protocol):
    """Who is asked: a fit, or one plant's view of a fit on another machine. ``status`` None: its caveats say it."""

    @property
    def method(self) -> str: ...

    @property
    def plant(self) -> Described: ...

    @property
    def parts(self) -> Mapping[str, UnitPart]: ...

    @property
    def status(self) -> Status | None: ...

    def effect(
        self, cause: Sequence[str], effect: str, change: Any, horizon: int, duration: int | None, level: float
    ) -> Effect: ...


def scale_of(fit: Asked, unit: str) -> FloatArray:
    """The noise (D_m,) of each output of a unit: what makes changes of unlike channels comparable."""
    return np.asarray(np.sqrt(np.diag(fit.parts[unit].model.R)))


@dataclass(frozen=True)
class Peak:
    """The largest change of one channel: when, how much, between what."""

    unit: str
    channel: Channel
    row: int
    value: float
    lower: float | None
    upper: float | None
    size: float  # in standard deviations of the channel's noise
    last: float

    @property
    def clear(self) -> bool | None:
        """Whether its sign is known."""
        return None if self.lower is None or self.upper is None else self.lower > 0 or self.upper < 0

    def sentence(self, level: float | None) -> tuple[float, str]:
        """The change's direction, and "by 3.2 rpm (95 %: 2.8 to 3.6)" with the interval in that direction."""
        sign = -1.0 if self.value < 0 else 1.0
        lower = upper = None
        if self.lower is not None and self.upper is not None:
            lower, upper = sorted((sign * self.lower, sign * self.upper))
        text, interval = wording.measured(abs(self.value), lower, upper, self.channel.unit)
        if not interval or level is None:
            return sign, text
        unsure = "" if self.clear else "; its sign is not sure"
        return sign, f"{text} ({wording.percent(level)}: {interval}{unsure})"

    def as_json(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "channel": self.channel.name,
            "measured_in": self.channel.unit,
            "row": self.row,
            "mean": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "size": self.size,
        }


def peaks(fit: Asked, unit: str, mean: FloatArray, lower: FloatArray | None, upper: FloatArray | None) -> list[Peak]:
    """The largest change of every channel of a unit, largest (against its noise) first; NaN counts as no change."""
    out = []
    scale = scale_of(fit, unit)
    for k, channel in enumerate(fit.plant.unit(unit).outputs):
        column = np.abs(np.nan_to_num(mean[:, k]))
        row = int(column.argmax())
        low, high = (None if end is None else float(end[row, k]) for end in (lower, upper))
        size = float(column[row] / scale[k])
        out.append(Peak(unit, channel, row, float(mean[row, k]), low, high, size, float(mean[-1, k])))
    return sorted(out, key=lambda peak: -peak.size)


def mean_over_rows(values: FloatArray) -> FloatArray:
    """Mean of each column over the rows that are there; NaN where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))


def caveats(fit: Asked, own: Sequence[str]) -> list[str]:
    """What speaks against an answer: its own caveats, and a fit that has not arrived."""
    out = list(dict.fromkeys(own))
    if fit.status is not None and not fit.status.converged and not any("not converged" in text for text in out):
        out.append(f"the fit is {fit.status.message}")
    return out


def assumptions(likelihood: bool) -> tuple[str, ...]:
    """What every answer of a method rests on and no check here can show; ``likelihood``: whether it is a fit by it."""
    if not likelihood:
        return ()
    return (
        "answers hold for a linear plant near where it was recorded, and intervals do not account for a wrong local "
        "model",
        "inputs may react to recorded measurements, but not to something that moves the plant and that nobody records: "
        "effects would be biased, and the data cannot show it. Other inputs are held as they were, also where a "
        "controller would have answered the change",
    )


def envelope(command: str, fit: Asked, sentence: str, notes: Sequence[str]) -> dict[str, Any]:
    """What every answer in JSON begins with."""
    return {
        "version": __version__,
        "command": command,
        "method": fit.method,
        "dt": fit.plant.dt,
        "sentence": sentence,
        "caveats": list(notes),
    }


def channels_json(channels: Sequence[Channel]) -> list[dict[str, str]]:
    return [{"name": channel.name, "measured_in": channel.unit} for channel in channels]


# ---- sentences


def moves(asked: Asked, held: Changes, verb: str, sign: bool = True) -> str:
    """ "boiler valve <verb> +0.1 % and boiler speed -2 rpm": the numbers that inputs are changed by, or set to."""
    return _each(asked, held, verb, lambda value, unit: wording.quantity(wording.exact(value, sign), unit))


def shifts(asked: Asked, held: Changes, verb: str) -> str:
    """ "boiler valve <verb> 0.1 % higher and boiler speed 2 rpm lower"."""

    def side(value: float, unit: str) -> str:
        return f"{wording.quantity(wording.exact(abs(value)), unit)} {'lower' if value < 0 else 'higher'}"

    return _each(asked, held, verb, side)


def _each(asked: Asked, held: Changes, verb: str, text: Callable[[float, str], str]) -> str:
    return with_verb(
        [
            (f"{name} {channel}", text(value, input_channel(asked, name, channel).unit))
            for name, channels in held.items()
            for channel, value in channels.items()
        ],
        verb,
    )


def with_verb(pairs: Sequence[tuple[str, str]], verb: str) -> str:
    """ "what <verb> how, what how and what how"."""
    (first, how), *rest = pairs
    return wording.listed([f"{first} {verb} {how}", *(f"{what} {how}" for what, how in rest)])


def input_channel(asked: Asked, unit: str, name: str) -> Channel:
    described = asked.plant.unit(unit)
    return described.inputs[described.input_names.index(name)]


def would(peak: Peak, level: float | None, dt: float) -> str:
    """What a change does: "turbine speed would rise by 3.2 rpm (95 %: 2.8 to 3.6) after 12 steps."."""
    if peak.size == 0:
        return f"nothing would change at {peak.unit}."
    sign, by = peak.sentence(level)
    verb = "fall" if sign < 0 else "rise"
    return f"{peak.unit} {peak.channel.name} would {verb} by {by} after {wording.span(peak.row + 1, dt)}."


def would_have(asked: Asked, what: str, start: int, stop: int, peak: Peak, level: float | None) -> str:
    """What would have been, in rows start to stop - 1."""
    window, dt = wording.rows(start, stop, asked.plant.dt), asked.plant.dt
    if peak.size == 0:
        return f"Had {what} in {window}, nothing would have changed there."
    sign, by = peak.sentence(level)
    return (
        f"Had {what} in {window}, {peak.unit} {peak.channel.name} would have been "
        f"{'lower' if sign < 0 else 'higher'} by {by} in {wording.rows(peak.row, peak.row + 1, dt)}."
    )


def past_peaks(asked: Asked, world: Trajectory) -> list[Peak]:
    """The largest differences from what was measured, each in the row where it is."""
    lower, upper = (None if end is None else end - world.factual for end in (world.lower, world.upper))
    found = peaks(asked, world.unit, world.mean - world.factual, lower, upper)
    return [replace(peak, row=world.first + peak.row) for peak in found]


SHARES = {"initial state": "the state before", "rest": "noise and what the model does not explain"}


def share_label(unit: str, share: str) -> str:
    """Who a share of an attribution to ``unit`` belongs to."""
    return SHARES.get(share, f"the {unit}'s own inputs" if share == unit else f"the inputs of {share}")


@dataclass(frozen=True)
class Departures:
    """Means over the window of an attribution: of every channel (D_m,), and of every share of it."""

    total: FloatArray
    shares: Mapping[str, FloatArray]
    order: tuple[int, ...]  # channels, most departed (against their noise) first

    @classmethod
    def of(cls, asked: Asked, answer: Attribution) -> Departures:
        total = mean_over_rows(answer.departure)
        size = np.nan_to_num(np.abs(total) / scale_of(asked, answer.unit))
        means = {name: mean_over_rows(share) for name, share in answer.shares.items()}
        return cls(total, means, tuple(int(k) for k in np.argsort(-size)))

    def ranked(self, k: int) -> list[tuple[str, float]]:
        """Shares of channel k, the largest first."""
        found = [(name, float(values[k])) for name, values in self.shares.items()]
        return sorted(found, key=lambda item: -abs(np.nan_to_num(item[1])))

    def sentence(self, asked: Asked, answer: Attribution, channel: Channel) -> str:
        """Who moved a channel in the window."""
        k = answer.channels.index(channel.name)
        rows = f"in {wording.rows(answer.first, answer.first + len(answer.departure), asked.plant.dt)}"
        whole = float(self.total[k])
        if not np.isfinite(whole):
            return f"{answer.unit} {channel.name} was not measured {rows}."
        digits = wording.decimals(whole)
        parts = [
            f"{share_label(answer.unit, name)} {wording.number(value, digits, sign=True)}"
            for name, value in self.ranked(k)
        ]
        size = wording.quantity(wording.number(abs(whole), digits), channel.unit)
        side = "above" if whole >= 0 else "below"
        return f"{answer.unit} {channel.name} was {size} {side} its usual level {rows}: {', '.join(parts)}."


def held_changes(asked: Asked, answer: Restoration) -> list[tuple[str, Channel, float]]:
    """Unit, input and change of everything that a restoration moves."""
    return [
        (cause, input_channel(asked, cause, name), value)
        for cause, channels in answer.change.items()
        for name, value in channels.items()
    ]


def targets(asked: Asked, answer: Restoration) -> str:
    """What is wanted of each output: "speed by +5 rpm and power by -1 MW"."""
    return _outputs(asked, answer, answer.target, " by", wording.exact)


def _outputs(asked: Asked, answer: Restoration, values: FloatArray, by: str, text: Callable[..., str]) -> str:
    units = {channel.name: channel.unit for channel in asked.plant.unit(answer.unit).outputs}
    return wording.listed(
        [
            f"{name}{by} {wording.quantity(text(float(value), sign=True), units[name])}"
            for name, value in zip(answer.channels, values, strict=True)
        ]
    )


def to_restore(asked: Asked, answer: Restoration) -> str:
    """What to hold to reach a target, or the nearest that can be reached."""
    aims, after = targets(asked, answer), wording.span(answer.horizon, asked.plant.dt)
    held = wording.listed(
        [
            f"{cause} {channel.name} {wording.quantity(wording.number(value, sign=True), channel.unit)}"
            for cause, channel, value in held_changes(asked, answer)
        ]
    )
    if answer.feasible:
        return f"To move {answer.unit} {aims} after {after}, hold {held}."
    return (
        f"{answer.unit} {aims} after {after} cannot be reached within the limits of these inputs; the nearest is "
        f"{_outputs(asked, answer, answer.reached, '', wording.number)}, with {held}."
    )


def outlook(asked: Asked, world: Trajectory) -> list[int]:
    """Channels of a forecast, those that will move most (against their noise) first."""
    move = np.abs(world.mean[-1] - world.mean[0]) / scale_of(asked, world.unit)
    return [int(k) for k in np.argsort(-np.nan_to_num(move))]


def will_be(asked: Asked, world: Trajectory, k: int, planned: Changes) -> str:
    """What channel k will be at the end of a forecast."""
    channel = asked.plant.unit(world.unit).outputs[k]
    value, interval = wording.measured(float(world.mean[-1, k]), *ends(world, -1, k), channel.unit)
    band = f" ({wording.percent(world.level)}: {interval})" if interval and world.level is not None else ""
    condition = "If inputs stay as they are"
    if planned:
        words = [
            f"{cause} {name} is {wording.quantity(wording.exact(value), input_channel(asked, cause, name).unit)}"
            for cause, channels in planned.items()
            for name, value in channels.items()
        ]
        condition = f"If {wording.listed(words)} and other inputs stay as they are"
    after = wording.span(len(world.mean), asked.plant.dt)
    return f"{condition}, {world.unit} {channel.name} will be {value}{band} after {after}."


def ends(world: Trajectory, row: int, k: int) -> tuple[float | None, float | None]:
    """Lower and upper bound of channel k in a row, if there are any."""
    if world.lower is None or world.upper is None:
        return None, None
    return float(world.lower[row, k]), float(world.upper[row, k])


def last_measured(y: FloatArray) -> FloatArray:
    """The newest measurement (D_m,) of each channel; NaN if there is none."""
    out = np.full(y.shape[1], np.nan)
    for k in range(y.shape[1]):
        there = np.flatnonzero(~np.isnan(y[:, k]))
        if len(there):
            out[k] = y[there[-1], k]
    return out


def acting_directly(edges: Sequence[tuple[str, str]], rate: float) -> str:
    """Which units act directly on which."""
    head = f"At a false-discovery rate of {wording.percent(rate)}, "
    listed = ", ".join(f"{cause} -> {effect}" for cause, effect in edges[:MOST_PAIRS])
    listed += f" and {len(edges) - MOST_PAIRS} more" if len(edges) > MOST_PAIRS else ""
    return f"{head}these act directly: {listed}." if edges else f"{head}no unit is found to act on another."
