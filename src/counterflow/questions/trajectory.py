"""A unit's outputs over rows, measured beside answered: what counterfactuals and forecasts give, for each unit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, distinct
from counterflow.notebook import Table
from counterflow.questions.answer import Answer, Expected
from counterflow.questions.numbers import channels_json
from counterflow.questions.timeline import Rows
from counterflow.questions.window import Window

if TYPE_CHECKING:
    import polars

    from counterflow.plant.calendar import Moment
    from counterflow.questions.plots import Line


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Trajectory(Expected):
    """What a unit's outputs did, or are expected to do, and what they would have done.

    Rows are ``first``, ``first`` + 1, ...; all arrays are (rows, D_m). ``factual`` is NaN where nothing was measured,
    or where it lies in the future; ``lower`` and ``upper`` bound ``mean``, or are None.
    """

    drawn = 3
    answered: ClassVar[str] = "answer"  # what its line is called in a picture

    first: int
    factual: FloatArray

    @abstractmethod
    def weight(self) -> Any:
        """How much the answer says: of several units, the one with the most is told of."""

    @classmethod
    @abstractmethod
    def labels_of(cls, worlds: Sequence[Any]) -> dict[str, Any]:
        """``labels`` of answers about several units."""

    @classmethod
    @abstractmethod
    def tables_of(cls, worlds: Sequence[Any]) -> list[Table]:
        """``tables`` of answers about several units."""

    @property
    def timeline(self) -> Rows:
        return Rows(len(self.mean), self.about.dt, self.about.calendar, self.first)

    @property
    def stop(self) -> int:
        return self.first + len(self.mean)

    def labels(self) -> dict[str, Any]:
        return self.labels_of([self])

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        return self.tables_of([self])

    def arrays(self) -> dict[str, Any]:
        return dict(self.columns())

    def to_json(self) -> dict[str, Any]:
        return Trajectories({self.unit: self}).to_json()

    def columns(self) -> Mapping[str, FloatArray | None]:
        return {"factual": self.factual, **super().columns()}

    def lines(self, k: int, colour: str, before: str = "") -> list[Line]:
        from counterflow.questions.plots import Line

        out = [Line.banded(f"{before}{self.answered}", (self.mean, self.lower, self.upper), colour, k)]
        if np.isfinite(self.factual[:, k]).any():
            look = {"color": colour, "linewidth": 1.0, "linestyle": ":"}
            out.insert(0, Line(f"{before}measured", self.factual[:, k], look=look, role="measured"))
        return out


World = TypeVar("World", bound=Trajectory)


def _of_strongest(name: str) -> Any:
    return property(lambda worlds: getattr(worlds.strongest, name))


class Trajectories(dict[str, World], Answer):
    """One trajectory for each unit, by its name; what it says is about the unit that it says most about.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> recording = plant.simulate(300, rng=2)
    >>> worlds = cf.fit(recording, plant.locals()).counterfactual(recording, {"boiler": {"u1": 0.0}}, 200, 210)
    >>> list(worlds), worlds["turbine"].mean.shape
    (['boiler', 'turbine'], (10, 8))
    """

    kind, about, level, channels, sizes = map(_of_strongest, ("kind", "about", "level", "channels", "sizes"))
    sentence, sentences, view, plot = map(_of_strongest, ("sentence", "sentences", "view", "plot"))

    @property
    def strongest(self) -> World:
        """Of the unit that the answer says most about."""
        return max(self.values(), key=lambda world: world.weight())

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        return distinct(caveat for world in self.values() for caveat in world.caveats)

    def labels(self) -> dict[str, Any]:
        return self.strongest.labels_of(list(self.values()))

    def arrays(self) -> dict[str, Any]:
        return {name: world.arrays() for name, world in self.items()}

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        return self.strongest.tables_of(list(self.values()))

    def to_json(self) -> dict[str, Any]:
        units = {n: {"channels": channels_json(world.about.outputs), **world.arrays()} for n, world in self.items()}
        return {**self.labels(), "units": units}

    def to_frame(self) -> polars.DataFrame:
        """All units' trajectories below each other."""
        import polars

        return polars.concat(
            [world.to_frame().select(polars.lit(name).alias("unit"), polars.all()) for name, world in self.items()]
        )

    def window(self, start: Moment | None = None, stop: Moment | None = None) -> dict[str, Window]:  # type: ignore[override]
        """What is said of a window of the rows, by unit; see ``Answer.window``."""
        return {name: world.window(start, stop) for name, world in self.items()}

    __str__, __repr__ = Answer.__str__, Answer.__repr__
