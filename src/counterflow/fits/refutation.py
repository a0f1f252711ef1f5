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
from counterflow.plant import Channel, LocalModel, Recording, Unit
from counterflow.plant.calendar import Span
from counterflow.plant.recording import UnitRecording
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
    asked = _Asked(fit, recording, cause, effect, change, horizon, duration, seed)
    answer = fit.effect(cause, effect, change, horizon, duration)
    if answer.errors is None:
        raise OptionError(
            f"refute: an effect by method {fit.method!r} has no interval to judge by; fit with 'sufficient'"
        )
    k = answer.chosen(channel)
    most = answer.window().extreme
    value, (lower, upper) = float(most.value[k]), most.ends(k)
    assert lower is not None
    assert upper is not None
    tests: dict[str, Callable[[], Refuted]] = {
        "placebo input": lambda: asked.placebo(k, value),
        "future input": lambda: asked.vanishing("future input", asked.moved(LEAD), k, value),
        "random common cause": lambda: asked.staying("random common cause", *asked.noisy(), k, (value, lower, upper)),
        "subset of rows": lambda: asked.staying("subset of rows", *asked.subset(), k, (value, lower, upper)),
        "dummy outcome": lambda: asked.dummy(k, value),
    }
    found = tuple(tests[name]() for name in refuters)
    return Refutation(cause, effect, answer.about.outputs[k], value, lower, upper, found)


class _Asked:
    """The effect that is to be refuted, and records in which it is asked for again."""

    def __init__(
        self, fit: Fit, recording: Recording, cause: str, effect: str, change: Any, horizon: Span,
        duration: Span | None, seed: int,
    ) -> None:  # fmt: skip
        if not isinstance(cause, str):
            raise OptionError("refute: one unit's inputs are changed at a time; give its name")
        self.fit, self.recording, self.cause, self.effect = fit, recording, cause, effect
        self.horizon, self.duration, self.seed = horizon, duration, seed
        self.change = by_channel(fit.plant.unit(cause), change)
        logs = fit.couplings is not None and fit.couplings.model.learned
        self.models = None if logs else {name: part.model for name, part in fit.parts.items()}
        self.options: dict[str, Any] = {}
        if (known := fit.known_edges) is not None:
            self.options = {"edges": known.edges, "forbidden": known.forbidden or None}

    def rng(self, name: str) -> np.random.Generator:
        return stream(self.seed, f"refuter {name}")

    def extreme(
        self, recording: Recording, change: Mapping[str, Any], k: int, level: float = SURE,
        models: Mapping[str, LocalModel] | None = None,
    ) -> tuple[float, float, float]:  # fmt: skip
        """The largest change of channel k by a fit of another record, with its interval."""
        chosen = self.models if models is None else models
        again = fitted(recording, chosen, self.fit.method, **self.options)
        answer = again.effect(self.cause, self.effect, change, self.horizon, self.duration, level=level)
        found = answer.window().extreme
        lower, upper = found.ends(k)
        return float(found.value[k]), float("nan") if lower is None else lower, float("nan") if upper is None else upper

    # ---- records

    def with_inputs(self, added: Mapping[str, FloatArray]) -> tuple[Recording, dict[str, LocalModel] | None]:
        """The record with more inputs at the cause, of which its own model knows nothing."""
        own = self.recording[self.cause]
        unit = replace(own.unit, inputs=(*own.unit.inputs, *(Channel(name) for name in added)))
        wider = UnitRecording(own.y, np.column_stack([own.u, *added.values()]), unit)
        if self.models is None:
            return self.with_unit(wider), None
        model = self.models[self.cause]
        B = np.hstack([model.B, np.zeros((model.states, len(added)))])
        return self.with_unit(wider), {**self.models, self.cause: replace(model, B=B)}

    def with_unit(self, part: UnitRecording) -> Recording:
        parts = {name: part if name == part.name else own for name, own in self.recording.items()}
        return Recording(parts, self.recording.dt, self.recording.calendar)

    def moved(self, steps: int) -> dict[str, FloatArray]:
        """The changed inputs as they were so many rows later, from the start again at the end; by new names."""
        own = self.recording[self.cause]
        return {
            f"{_EXTRA} {k}": np.roll(own.u[:, own.unit.input_names.index(name)], -steps)
            for k, name in enumerate(self.change)
        }

    def noisy(self) -> tuple[Recording, Mapping[str, LocalModel] | None]:
        own = self.recording[self.cause]
        names = [own.unit.input_names.index(name) for name in self.change]
        size = float(own.u[:, names].std()) or 1.0
        return self.with_inputs({_EXTRA: size * self.rng("common").standard_normal(self.recording.rows)})

    def subset(self) -> tuple[Recording, Mapping[str, LocalModel] | None]:
        rows = self.recording.rows
        count = max(int(KEPT * rows), 2)
        first = int(self.rng("subset").integers(0, rows - count + 1))
        return self.recording.slice(first, first + count), self.models

    # ---- verdicts

    def placebo(self, k: int, value: float) -> Refuted:
        """The input at other times: instead of what it was, or beside it where a unit's model says what it does."""
        rows = self.recording.rows
        steps = int(self.rng("placebo").integers(rows // 4, max(3 * rows // 4, rows // 4 + 1)))
        other = self.moved(steps)
        if self.models is not None:
            return self.vanishing("placebo input", other, k, value)
        own = self.recording[self.cause]
        u = own.u.copy()
        u[:, [own.unit.input_names.index(name) for name in self.change]] = np.column_stack([*other.values()])
        recording = self.with_unit(UnitRecording(own.y, u, own.unit))
        return self.gone("placebo input", self.extreme(recording, self.change, k), value)

    def vanishing(self, name: str, added: Mapping[str, FloatArray], k: int, value: float) -> Refuted:
        """Of inputs that cannot have acted."""
        recording, models = self.with_inputs(added)
        change = dict(zip(added, self.change.values(), strict=True))
        return self.gone(name, self.extreme(recording, change, k, models=models), value)

    def gone(self, name: str, found: tuple[float, float, float], value: float) -> Refuted:
        got, lower, upper = found
        if _weak(lower, upper, value):
            return Refuted(name, "unknown", got, lower, upper, _WEAK)
        nothing = lower <= 0 <= upper or abs(got) <= SMALL * abs(value)
        text = "It vanishes, as it should." if nothing else "An effect is found where there can be none."
        return Refuted(name, "pass" if nothing else "fail", got, lower, upper, text)

    def staying(
        self, name: str, recording: Recording, models: Mapping[str, LocalModel] | None, k: int,
        whole: tuple[float, float, float],
    ) -> Refuted:  # fmt: skip
        """Of records in which the effect should be the same."""
        got, lower, upper = self.extreme(recording, self.change, k, models=models)
        value, *ends = whole
        if _weak(lower, upper, value):
            return Refuted(name, "unknown", got, lower, upper, _WEAK)
        same = lower <= value <= upper or ends[0] <= got <= ends[1] or abs(got - value) <= SMALL * abs(value)
        text = "It stays, as it should." if same else "It is another there, beyond its intervals."
        return Refuted(name, "pass" if same else "fail", got, lower, upper, text)

    def dummy(self, k: int, value: float) -> Refuted:
        """Outputs that the cause never moved: the unit's own record at other times, or a run of its model alone."""
        name, own, rng = "dummy outcome", self.recording[self.effect], self.rng("dummy")
        rows = self.recording.rows
        steps = int(rng.integers(rows // 4, max(3 * rows // 4, rows // 4 + 1)))
        if self.models is not None and self.cause == self.effect:
            text = "What a unit's own inputs do stands in its model: nothing is learned of it."
            return Refuted(name, "unknown", float("nan"), float("nan"), float("nan"), text)
        if self.models is not None:
            y = _alone(self.models[self.effect], own.u, rng)
            y[np.isnan(own.y)] = np.nan
            part = UnitRecording(y, own.u, own.unit)
        else:
            u = own.u if self.cause == self.effect else np.roll(own.u, steps, axis=0)
            part = UnitRecording(np.roll(own.y, steps, axis=0), u, own.unit)
        return self.gone(name, self.extreme(self.with_unit(part), self.change, k), value)


def _weak(lower: float, upper: float, value: float) -> bool:
    """Whether an interval holds both nothing and the effect, so that it can tell neither from the other."""
    return lower <= 0 <= upper and lower <= value <= upper


def _alone(model: LocalModel, u: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Outputs (rows, D_m) of a unit's own model with its own inputs and noise, and nothing from others."""
    from counterflow.plant import Plant

    unit = Unit("alone", model.states, model.n_inputs, model.n_outputs)
    plant = Plant(units=(unit,), A=model.A, B=model.B, C=model.C, Q=model.Q, R=model.R)
    run = plant.simulate(len(u) - 1, rng=rng, inputs={"alone": u})
    return np.array(run["alone"].y)
