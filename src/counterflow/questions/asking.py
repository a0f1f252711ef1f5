"""Whoever can ask: a fit, a unit with its own part and a server, a plant's view of a fit elsewhere, a console's seat.

All of them ask through ``Questions``; they differ in whom they ask, whose parts they hold and whose rows they have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError
from counterflow.exchange.controllers import supposed_laws, with_laws
from counterflow.frames import columns_of, has_frame
from counterflow.plant.calendar import Calendar, Moment, Span, as_rows, as_steps
from counterflow.plant.units import PublicUnit, Unit, unit_named
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.aggregate import Aggregate, AskAggregate
from counterflow.questions.answer import Described, Responder
from counterflow.questions.answering import Watch
from counterflow.questions.attribution import AskAttribution, Attribution
from counterflow.questions.counterfactual import AskCounterfactual, Counterfactual
from counterflow.questions.effect import AskEffect, Effect
from counterflow.questions.forecast import AskForecast, Forecast
from counterflow.questions.paths import AskPaths, Paths
from counterflow.questions.question import Request
from counterflow.questions.registry import QUESTIONS
from counterflow.questions.restoration import AskRestoration, Restoration
from counterflow.questions.trajectory import Trajectories

if TYPE_CHECKING:
    from counterflow.exchange.outcome import Provenance
    from counterflow.exchange.part import UnitPart
    from counterflow.plant import Recording


class Source(NamedTuple):
    """Whom to ask, and a unit's own measurements (rows, D_m) of the rows that are referred to."""

    responder: Responder
    measurements: Callable[[str], FloatArray | None]


@dataclass(frozen=True)
class KnownUnits:
    """The units as far as a unit knows them: the others' inputs, and all of its own channels."""

    units: tuple[Unit | PublicUnit, ...]
    dt: float

    def unit(self, name: str) -> Unit | PublicUnit:
        """The unit of that name."""
        return unit_named(cast("tuple[Unit, ...]", self.units), name)


class Questions(ABC):
    """The questions, for whoever has ``plant``, ``parts`` and a source of answers.

    ``recording``: the rows that a question refers to; whoever asks with rows of its own needs none. ``watch`` is called
    with (message, goes_up) for every message that crosses.
    """

    plant: Described  # the units, as far as they are known here
    parts: Mapping[str, UnitPart]  # of the units whose outputs are seen here
    provenance: Provenance | None  # of the fit that answers come from, where that is known
    calendar: Calendar | None = None  # of the rows that questions refer to, where dates are known

    @abstractmethod
    def source(self, question: type[Request], recording: Recording | None) -> Source:
        """Whom to ask such a question, and with which rows."""

    if not TYPE_CHECKING:  # type checkers know the methods below, and not those of other registered questions

        def __getattr__(self, name: str) -> Any:
            """A registered question that has no method here is asked by its kind, with its own arguments."""
            if name not in QUESTIONS:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            kind = QUESTIONS[name]
            return lambda *given, recording=None, **more: self.ask(kind(*given, **more), recording)

    def part_of(self, name: str) -> UnitPart:
        """Of a unit whose outputs are seen here."""
        self.plant.unit(name)
        if name not in self.parts:
            only = ", ".join(self.parts)
            raise OptionError(f"unit {only!r} asks about its own outputs only, got {name!r:.80}")
        return self.parts[name]

    def ask(self, request: Request, recording: Recording | None = None, watch: Watch | None = None) -> Any:
        """The answer to a request of any kind."""
        return self._answers([request], recording, watch)[0]

    def ask_all(
        self, requests: Iterable[Request], recording: Recording | None = None, watch: Watch | None = None
    ) -> Trajectories[Any]:
        """The answers to one request about several units' outputs, by their names."""
        wanted = list(requests)
        names = [request.asker for request in wanted]
        return Trajectories(zip(names, self._answers(wanted, recording, watch), strict=True))

    def _answers(self, requests: list[Request], recording: Recording | None, watch: Watch | None) -> list[Any]:
        """To one request about some units.

        Whoever asks may suppose other laws of controllers for all its questions, or in the request itself, which then
        has them all.
        """
        first, own = requests[0], supposed_laws(self.parts)
        responder, measurements = self.source(type(first), recording)
        asked = getattr(first, "laws", None) or {}
        laws = {name: {**own.get(name, {}), **asked.get(name, {})} for name in dict.fromkeys([*own, *asked])}
        if not (first.of_worlds or first.held_only):
            laws = {}
        elif laws:
            if first.held_only or getattr(first, "controllers", None) == HELD:
                raise OptionError(
                    f'{first.kind}: laws say what controllers would do, so that they go with controllers="reacting"',
                    code="laws-held",
                )
            requests = [replace(cast(Any, request), controllers=REACTING, laws=laws) for request in requests]
            responder = responder.supposing(laws)
        calendar, found = self.calendar if recording is None else recording.calendar, []
        for request in requests:
            wanted, name = self.in_rows(request, recording), request.asker
            part = self.part_of(name)
            part = with_laws(part, laws[name]) if name in laws else part
            found.append(wanted.put(self.plant, responder, part, measurements(name), watch, calendar))
        return found

    def in_rows(self, request: Request, recording: Recording | None = None) -> Request:
        """A request whose dates and durations are rows and steps, and whose tables are arrays by their names."""
        calendar = self.calendar if recording is None else recording.calendar
        dt, kind = self.plant.dt, request.kind
        found: dict[str, Any] = {}
        for name in ("horizon", "duration"):
            if (value := getattr(request, name, None)) is not None:
                found[name] = as_steps(value, dt, f"{kind}: {name}")
        window = getattr(request, "start", None), getattr(request, "stop", None)
        if any(isinstance(value, (str, date, timedelta, np.datetime64, np.timedelta64)) for value in window):
            rows = self.source(type(request), None).responder.rows if recording is None else recording.rows
            found["start"], found["stop"] = as_rows(*window, calendar, rows, dt, kind)
        for name in ("change", "do", "add", "plan"):
            if (value := getattr(request, name, None)) is not None and has_frame(value):
                found[name] = columns_of(value)
        changed = {name: value for name, value in found.items() if value is not getattr(request, name)}
        return replace(request, **changed) if changed else request

    def _only(self, unit: str | None) -> str:
        if unit is not None:
            return unit
        if len(self.parts) != 1:
            raise OptionError(f"unit is missing: name one of {', '.join(self.parts)}")
        return next(iter(self.parts))

    # ---- the questions

    def effect(
        self, cause: str | Sequence[str], effect: str, change: Any, horizon: Span = 50, duration: Span | None = None,
        level: float = 0.95, watch: Watch | None = None, controllers: str | None = None,
    ) -> Effect:  # fmt: skip
        """Effect of a change of one or several units' inputs on ``effect``'s outputs (paper, Q1 and Q2; any horizon).

        Parameters
        ----------
        cause : a unit's name, or several.
        change : one number per input channel of ``cause``, {channel: number or series} (others unchanged), or an array
            (horizon, inputs) for any schedule; with several causes {cause: change}.
        horizon : steps to follow, or a time such as "2h".
        duration : steps, or time, for which the change is held; None: throughout.
        level : of the intervals (delta method on the Fisher information).
        controllers : "held": inputs that controllers move stay as they are; "reacting": controllers answer, as in the
            running plant; None: reacting where their laws are known, else held. The answer says which.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> found = cf.fit(plant.simulate(1000, rng=2), plant.locals())
        >>> answer = found.effect(cause="boiler", effect="turbine", change={"u1": 1.0}, horizon=5)
        >>> answer.mean.shape, bool((answer.lower < answer.upper).all())
        ((5, 8), True)
        """
        request = AskEffect(cause, effect, change, horizon, duration, level=level, controllers=controllers)
        return self.ask(request, watch=watch)  # type: ignore[no-any-return]

    def paths(
        self, cause: str, effect: str, change: Any, horizon: Span = 50, duration: Span | None = None,
        watch: Watch | None = None,
    ) -> Paths:  # fmt: skip
        """The effect of a change split by the way it takes: directly, and through each third unit.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["a", "b", "c"], topology="chain", rng=1)
        >>> oracle = cf.fit(plant.simulate(50, rng=2), plant, method="oracle")
        >>> found = oracle.paths("a", "c", [1.0, 0.0], horizon=20)
        >>> bool(abs(found.direct).max() == 0), bool((found.through["b"] == found.total).all())
        (True, True)
        """
        return self.ask(AskPaths(cause, effect, change, horizon, duration), watch=watch)  # type: ignore[no-any-return]

    def counterfactual(
        self, recording: Recording | None = None, do: Mapping[str, Any] | None = None, start: Moment = 0,
        stop: Moment | None = None, level: float = 0.95, add: Mapping[str, Any] | None = None,
        watch: Watch | None = None, controllers: str | None = None,
    ) -> Trajectories[Counterfactual]:  # fmt: skip
        """What would have happened: every unit's outputs, had inputs been others in rows start to stop - 1.

        The noise that did happen is the same in both worlds, so the answer is what was measured plus the effect of the
        change. ``do`` is {unit: {input channel: number or series}} or {unit: array}; other inputs stay as they were.
        ``add``, of the same form, is added to what inputs were, instead of replacing them. ``start`` and ``stop`` are
        rows, dates ("2024-11-01 14:00", in the recording's own zone) or durations ("2h"): since the first row; of
        ``stop`` since ``start``, if that is a row or a date.
        ``controllers``: "held" or "reacting", as in ``effect``.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> recording = plant.simulate(1000, rng=2)
        >>> found = cf.fit(recording, plant.locals())
        >>> worlds = found.counterfactual(recording, do={"boiler": {"u1": 0.0}}, start=900, stop=950)
        >>> worlds["turbine"].mean.shape
        (50, 8)
        """
        more: dict[str, Any] = {"add": add, "level": level, "controllers": controllers}
        wanted = [AskCounterfactual(name, do, start, stop, **more) for name in self.parts]
        return self.ask_all(wanted, recording, watch)

    def forecast(
        self, recording: Recording | None = None, horizon: Span = 50, plan: Mapping[str, Any] | None = None,
        level: float = 0.95, watch: Watch | None = None, controllers: str | None = None,
    ) -> Trajectories[Forecast]:  # fmt: skip
        """What will happen after the recording's last row, if inputs follow ``plan`` (others hold their last value).

        The first row of a plan is in force from the last recorded row on: it moves the first row that is forecast.
        Bands are predictive: for the next measurements, with state, couplings and measurement noise uncertain.
        ``controllers``: "held" or "reacting", as in ``effect``; a loop whose target nobody records is taken to rest.
        """
        wanted = [AskForecast(name, horizon, plan, level=level, controllers=controllers) for name in self.parts]
        return self.ask_all(wanted, recording, watch)

    def attribute(
        self, recording: Recording | None = None, unit: str | None = None, start: Moment = 0,
        stop: Moment | None = None, watch: Watch | None = None, controllers: str | None = None,
    ) -> Attribution:  # fmt: skip
        """Who moved ``unit``'s outputs in rows start to stop - 1: an exact split of their departure from the usual.

        The usual level is where the system rests under every input's mean; the shares are every unit's inputs, the
        state at the start of the window, and the rest. ``controllers``: "held" or "reacting", as in ``effect``; where
        they react, the answer says what they compensated, too.
        """
        request = AskAttribution(self._only(unit), start, stop, controllers=controllers)
        return self.ask(request, recording, watch)  # type: ignore[no-any-return]

    def restore(
        self, unit: str, target: Mapping[str, float], using: Sequence[str] | Mapping[str, Sequence[str]],
        horizon: Span = 50, tolerance: float = 1e-3, watch: Watch | None = None, controllers: str | None = None,
    ) -> Restoration:  # fmt: skip
        """The smallest held change of ``using``'s inputs that moves ``unit``'s outputs by ``target`` at the horizon.

        ``target`` is {output channel: change}; ``using`` names units, or {unit: [input channels]}. Changes stay within
        the channels' limits; a target that cannot be reached is said so, with the nearest that can. ``controllers``:
        "held" or "reacting", as in ``effect``.
        """
        request = AskRestoration(unit, target, using, horizon, tolerance=tolerance, controllers=controllers)
        return self.ask(request, watch=watch)  # type: ignore[no-any-return]

    def aggregate_effect(
        self, unit: str, phi_1: Sequence[float] | FloatArray, phi_0: Sequence[float] | FloatArray | None = None,
        watch: Watch | None = None,
    ) -> Aggregate:  # fmt: skip
        """Change of ``unit``'s outputs if the combined input of all others were phi_1 instead of phi_0 (Q3).

        phi_0 defaults to the learned phi: C_mm (phi_1 - phi_0), all from what the unit holds (paper, Eq. (20)).

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> found = cf.fit(plant.simulate(300, rng=2), plant.locals(), method="penalty", rounds=3)
        >>> answer = found.aggregate_effect("turbine", found.parts["turbine"].phi + [0.5, 0.0])
        >>> answer.mean.shape, answer.caveats[0].code
        ((8,), 'published-method')
        """
        return self.ask(AskAggregate(unit, phi_1, phi_0), watch=watch)  # type: ignore[no-any-return]


class UnitView(Questions):
    """One unit with its own part, asking a server: all that it needs, and nothing of any other unit.

    Parameters
    ----------
    part : of the unit, as ``load_unit`` gives it.
    server : as ``load_server`` gives it, or one on another machine.
    y : the unit's own measurements (rows, D_m) of all rows that the server refers to; for questions about the past.
    dt : seconds between rows.
    calendar : when the rows were, where that is known.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(200, rng=2), plant.locals())
    >>> view = cf.UnitView(found.parts["turbine"], found.server)
    >>> view.effect("boiler", "turbine", {"u1": 1.0}, horizon=3).mean.shape
    (3, 8)
    """

    provenance: Provenance | None = None

    def __init__(
        self, part: UnitPart, server: Any, y: FloatArray | None = None, dt: float = 1.0,
        calendar: Calendar | None = None,
    ) -> None:  # fmt: skip
        self.part, self.server, self._y, self._dt, self.calendar = part, server, y, dt, calendar
        self.parts = {part.unit.name: part}

    @cached_property
    def plant(self) -> KnownUnits:  # type: ignore[override]
        """The units as far as this one knows them; a server on another machine is asked when they are first needed."""
        own = self.part.unit
        return KnownUnits(tuple(own if unit.name == own.name else unit for unit in self.server.units), self._dt)

    def measurements(self) -> FloatArray | None:
        """The unit's own log (rows, D_m)."""
        return self._y

    def source(self, question: type[Request], recording: Recording | None) -> Source:
        if recording is not None:
            raise DataError(f"unit {self.part.unit.name!r} asks about its own log: give no recording")
        return Source(self.server, lambda name: self.measurements() if question.of_past else None)
