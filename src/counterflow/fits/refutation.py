"""Refuters: fits of records in which an effect should vanish, or should stay as it is.

They cannot prove an effect. One that does not vanish with an input that cannot have acted, or that is another on other
rows, is not to be relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from counterflow import notebook, wording
from counterflow.arrays import FloatArray
from counterflow.errors import OptionError, PrivacyError
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit as fitted
from counterflow.frames import as_pandas
from counterflow.notebook import Table
from counterflow.plant import Channel, LocalModel, Plant, Recording, Unit
from counterflow.plant.calendar import Span
from counterflow.plant.recording import UnitRecording
from counterflow.questions.effect import Effect
from counterflow.questions.question import by_channel
from counterflow.randomness import stream

if TYPE_CHECKING:
    import pandas
    import polars

REFUTERS: Mapping[str, str] = {
    "placebo input": "the same input at other times should do nothing",
    "future input": "what the input does later should do nothing now: else something moves both, or it reacts",
    "random common cause": "with another input that is noise, the effect should stay",
    "subset of rows": "on some of the rows, the effect should stay",
    "dummy outcome": "on outputs that the cause never moved, there should be no effect",
}
SURE = 0.99  # level of the intervals in which an effect that should vanish must hold zero
SMALL = 0.1  # of the effect: what counts as nothing
LEAD = 2  # rows that the future input is ahead: beyond the row that an input may act on itself
KEPT = 0.6  # share of the rows of a subset
_EXTRA = "refuter"  # name of an input that is added
_WEAK = "It cannot tell: its interval holds both zero and the effect itself. More rows, or a larger change, would."


@dataclass(frozen=True)
class Refuted:
    """What one refuter found: the largest change of the channel, with its interval, and whether it should be there."""

    name: str
    verdict: Literal["pass", "fail", "unknown"]
    value: float
    lower: float
    upper: float
    text: str


@dataclass(frozen=True, repr=False)
class Refutation:
    """What refuters say of an effect.

    ``value``, ``lower``, ``upper``: the effect itself, the largest change of ``channel`` over the horizon.
    """

    cause: str
    effect: str
    channel: Channel
    value: float
    lower: float
    upper: float
    found: tuple[Refuted, ...]

    @property
    def verdict(self) -> str:
        """ "fail" if one of them fails, "unknown" if none could tell, else "pass"."""
        verdicts = {each.verdict for each in self.found}
        return "fail" if "fail" in verdicts else "pass" if "pass" in verdicts else "unknown"

    def __getitem__(self, name: str) -> Refuted:
        return next(each for each in self.found if each.name == name)

    def summary(self) -> str:
        """In plain words."""
        size, interval = wording.measured(self.value, self.lower, self.upper, self.channel.unit, sign=True)
        what = f"The effect of {self.cause} on {self.effect} {self.channel.name}, {size} ({interval}) at its largest,"
        failed = [each for each in self.found if each.verdict == "fail"]
        count = len(self.found)
        unknown = sum(each.verdict == "unknown" for each in self.found)
        if not failed:
            untold = f", and {unknown} of them cannot tell" if unknown else ""
            return f"{what} withstands {count - unknown} of {count} refuters{untold}; that is no proof of it."
        names = wording.listed([each.name for each in failed])
        return f"{what} does not withstand {names}: do not rely on it. {failed[0].text}"

    def table(self) -> Table:
        """One row a refuter."""
        rows = []
        for each in self.found:
            value, interval = wording.measured(each.value, each.lower, each.upper, self.channel.unit, sign=True)
            rows.append([each.name, REFUTERS[each.name], each.verdict, value, interval or "–"])
        return Table(self.summary(), ["refuter", "what should be", "verdict", "effect", "interval"], rows, 3)

    def to_json(self) -> dict[str, Any]:
        """In plain types."""
        whole = {name: getattr(self, name) for name in ("cause", "effect", "value", "lower", "upper", "verdict")}
        named = {"channel": self.channel.name, "measured_in": self.channel.unit}
        return {**whole, **named, "sentence": self.summary(), "refuters": [vars(each) for each in self.found]}

    def to_frame(self) -> polars.DataFrame:
        """One row a refuter: name, verdict, value, lower, upper, text."""
        import polars

        kinds = {name: polars.Float64 if name in ("value", "lower", "upper") else polars.String for name in _COLUMNS}
        return polars.DataFrame([vars(each) for each in self.found], schema=kinds)

    def to_pandas(self) -> pandas.DataFrame:
        """The same for pandas."""
        return as_pandas(self.to_frame(), "name")

    def __repr__(self) -> str:
        return f"<Refutation: {self.verdict}: {notebook.short(self.summary())}>"

    def __str__(self) -> str:
        return "\n".join([self.summary(), *notebook.lines(self.table())])

    def _repr_html_(self) -> str:
        return notebook.page(self.summary(), [replace(self.table(), title="")])


_COLUMNS = ("name", "verdict", "value", "lower", "upper", "text")


def refute(
    fit: Fit, recording: Recording, cause: str, effect: str, change: Any, horizon: Span = 50,
    duration: Span | None = None, channel: str | None = None, refuters: tuple[str, ...] = tuple(REFUTERS),
    seed: int = 0,
) -> Refutation:  # fmt: skip
    """Try to refute an effect of a fit: each refuter fits a record that was changed on purpose, and asks again.

    Parameters
    ----------
    fit : from logs or with models; the effect must have an interval. A private fit would pay for every refuter.
    recording : the rows that it rests on.
    cause, effect, change, horizon, duration : as in ``Fit.effect``; of one unit's inputs.
    channel : the output that is looked at (default: the one that moves most).
    refuters : some of "placebo input", "future input", "random common cause", "subset of rows", "dummy outcome".
    seed : of what is drawn.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(["boiler", "turbine"], topology="chain", rng=1)
    >>> recording = plant.simulate(800, rng=2)
    >>> found = cf.refute(cf.fit(recording, plant.locals()), recording, "boiler", "turbine", {"u1": 0.5}, horizon=20)
    >>> found.verdict, len(found.found)
    ('pass', 5)
    """
    for name in refuters:
        if name not in REFUTERS:
            raise OptionError(f"refute: there is no refuter {name!r:.60}; they are {', '.join(REFUTERS)}")
    if fit.privacy is not None:
        raise PrivacyError("refute: this fit is private, and every refuter would fit, and pay for, the rows once more")
    fit.check_recording(recording)
    if not isinstance(cause, str):
        raise OptionError("refute: one unit's inputs are changed at a time; give its name")
    answer = fit.effect(cause, effect, change, horizon, duration)
    if answer.errors is None:
        raise OptionError(
            f"refute: an effect by method {fit.method!r} has no interval to judge by; fit with 'sufficient'"
        )
    logs = fit.couplings is not None and fit.couplings.model.learned
    models = None if logs else {name: part.model for name, part in fit.parts.items()}
    case = _Case(recording, models, cause, effect, by_channel(fit.plant.unit(cause), change), seed)
    known, k = fit.known_edges, answer.chosen(channel)
    options: dict[str, Any] = {} if known is None else {"edges": known.edges, "forbidden": known.forbidden or None}
    value, lowest, highest = _largest(answer, k)

    def refuted(name: str) -> Refuted:
        altered = _ALTERED[name](case)
        if altered is None:
            text = "What a unit's own inputs do stands in its model: nothing is learned of it."
            return Refuted(name, "unknown", float("nan"), float("nan"), float("nan"), text)
        again = fitted(altered.recording, altered.models, fit.method, **options)
        found = _largest(again.effect(cause, effect, altered.change, horizon, duration, level=SURE), k)
        got, lower, upper = found
        if lower <= 0 <= upper and lower <= value <= upper:
            return Refuted(name, "unknown", *found, _WEAK)
        expected = value if name in _STAYS else 0.0
        good = lower <= expected <= upper or abs(got - expected) <= SMALL * abs(value)
        if name in _STAYS:
            good |= lowest <= got <= highest
            text = "It stays, as it should." if good else "It is another there, beyond its intervals."
        else:
            text = "It vanishes, as it should." if good else "An effect is found where there can be none."
        return Refuted(name, "pass" if good else "fail", *found, text)

    found = tuple(map(refuted, refuters))
    return Refutation(cause, effect, answer.about.outputs[k], value, lowest, highest, found)


def _largest(answer: Effect, k: int) -> tuple[float, float, float]:
    """The largest change of channel k, with its interval."""
    found = answer.window().extreme
    lower, upper = (float("nan") if end is None else end for end in found.ends(k))
    return float(found.value[k]), lower, upper


@dataclass(frozen=True, eq=False)
class _Case:
    """A record to fit, with models of its units (None: from logs), and the change to ask about."""

    recording: Recording
    models: Mapping[str, LocalModel] | None
    cause: str
    effect: str
    change: Mapping[str, Any]
    seed: int

    def rng(self, name: str) -> np.random.Generator:
        return stream(self.seed, f"refuter {name}")

    def elsewhere(self, rng: np.random.Generator) -> int:
        """By how many rows a series is moved that is to have nothing to do with its own rows."""
        rows = self.recording.rows
        return int(rng.integers(rows // 4, max(3 * rows // 4, rows // 4 + 1)))

    @property
    def changed(self) -> list[int]:
        """Columns of the inputs that are changed."""
        return [self.recording[self.cause].unit.input_names.index(name) for name in self.change]

    def later(self, steps: int) -> FloatArray:
        """The changed inputs as they were so many rows later, from the start again at the end."""
        return np.roll(self.recording[self.cause].u[:, self.changed], -steps, axis=0)

    def with_unit(self, y: FloatArray, u: FloatArray, unit: Unit) -> _Case:
        part = UnitRecording(y, u, unit)
        parts = {name: part if name == unit.name else own for name, own in self.recording.items()}
        return replace(self, recording=Recording(parts, self.recording.dt, self.recording.calendar))

    def with_inputs(self, added: FloatArray) -> _Case:
        """The record with more inputs (T+1, n) at the cause, of which its own model knows nothing."""
        own = self.recording[self.cause]
        channels = (Channel(f"{_EXTRA} {k}") for k in range(added.shape[1]))
        unit = replace(own.unit, inputs=(*own.unit.inputs, *channels))
        wider = self.with_unit(own.y, np.hstack([own.u, added]), unit)
        if self.models is None:
            return wider
        model = self.models[self.cause]
        B = np.hstack([model.B, np.zeros((model.states, added.shape[1]))])
        return replace(wider, models={**self.models, self.cause: replace(model, B=B)})

    def asked_of(self, added: FloatArray) -> _Case:
        """Inputs that cannot have acted stand beside the others, and the question is about them."""
        change = {f"{_EXTRA} {k}": value for k, value in enumerate(self.change.values())}
        return replace(self.with_inputs(added), change=change)


def _placebo(case: _Case) -> _Case:
    """The input at other times: instead of what it was, or beside it where a unit's model says what it does."""
    other = case.later(case.elsewhere(case.rng("placebo")))
    if case.models is not None:
        return case.asked_of(other)
    own = case.recording[case.cause]
    u = own.u.copy()
    u[:, case.changed] = other
    return case.with_unit(own.y, u, own.unit)


def _common_cause(case: _Case) -> _Case:
    size = float(case.recording[case.cause].u[:, case.changed].std()) or 1.0
    return case.with_inputs(size * case.rng("common").standard_normal((case.recording.rows, 1)))


def _subset(case: _Case) -> _Case:
    rows = case.recording.rows
    count = max(int(KEPT * rows), 2)
    first = int(case.rng("subset").integers(0, rows - count + 1))
    return replace(case, recording=case.recording.slice(first, first + count))


def _dummy(case: _Case) -> _Case | None:
    """Outputs that the cause never moved: the unit's own record at other times, or a run of its model alone."""
    own, rng, itself = case.recording[case.effect], case.rng("dummy"), case.cause == case.effect
    steps = case.elsewhere(rng)
    if case.models is None:
        u = own.u if itself else np.roll(own.u, steps, axis=0)
        return case.with_unit(np.roll(own.y, steps, axis=0), u, own.unit)
    if itself:
        return None
    y = _alone(case.models[case.effect], own.u, rng)
    return case.with_unit(np.where(np.isnan(own.y), np.nan, y), own.u, own.unit)


_ALTERED: Mapping[str, Callable[[_Case], _Case | None]] = {
    "placebo input": _placebo,
    "future input": lambda case: case.asked_of(case.later(LEAD)),
    "random common cause": _common_cause,
    "subset of rows": _subset,
    "dummy outcome": _dummy,
}
_STAYS = ("random common cause", "subset of rows")  # with all others the effect should vanish


def _alone(model: LocalModel, u: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Outputs (rows, D_m) of a unit's own model with its own inputs and noise, and nothing from others."""
    unit = Unit("alone", model.states, model.n_inputs, model.n_outputs)
    plant = Plant(units=(unit,), A=model.A, B=model.B, C=model.C, Q=model.Q, R=model.R)
    return plant.simulate(len(u) - 1, rng=rng, inputs={"alone": u})["alone"].y
