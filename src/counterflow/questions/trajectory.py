"""A unit's outputs over rows, measured beside answered: what counterfactuals and forecasts give."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat, distinct
from counterflow.notebook import Table
from counterflow.protocol import Answer
from counterflow.questions.peaks import band, deviation
from counterflow.questions.reply import About, Reply
from counterflow.questions.views import attributes, channels_json, long_frame
from counterflow.questions.window import JointErrors, RowsWindowed, Window

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart
    from counterflow.plant.calendar import Moment
    from counterflow.questions.plots import Line

DRAWN = 3  # channels of a picture


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(RowsWindowed):
    """What a unit's outputs did, or are expected to do, and what they would have done.

    Rows are ``first``, ``first`` + 1, ...; all arrays are (rows, D_m). ``factual`` is NaN where nothing was measured,
    or where it lies in the future; ``lower`` and ``upper`` bound ``mean``, or are None.
    """

    unit: str
    channels: tuple[str, ...]
    first: int
    factual: FloatArray
    mean: FloatArray
    lower: FloatArray | None
    upper: FloatArray | None
    level: float | None
    caveats: tuple[Caveat, ...] = ()
    about: About = field(default=None)  # type: ignore[assignment]
    errors: JointErrors | None = None

    @classmethod
    def of(
        cls, about: About, part: UnitPart, parts: Sequence[Answer], first: int, factual: FloatArray, mean: FloatArray,
        noise: FloatArray | None = None,
    ) -> Any:  # fmt: skip
        """From what the server says of the states, with the band of the request's level."""
        level = about.request.level
        lower, upper = band(mean, deviation(parts[0], part.model.C, noise, part.C_doubt), level)
        return cls(
            part.unit.name, part.unit.output_names, first, frozen(factual), frozen(mean), lower, upper,
            level if lower is not None else None, about.caveats, about,
            JointErrors.of(part, parts, noise if cls.predictive else None),
        )  # fmt: skip

    @abstractmethod
    def weight(self) -> Any:
        """How much the answer says: of several units, the one with the most is told of."""

    @classmethod
    @abstractmethod
    def tables_of(cls, worlds: Sequence[Any]) -> list[Table]:
        """The answers about several units as tables."""

    @classmethod
    @abstractmethod
    def json_of(cls, worlds: Sequence[Any]) -> dict[str, Any]:
        """The answers about several units, see ``to_json``."""

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        return self.tables_of([self])

    def to_json(self) -> dict[str, Any]:
        return self.json_of([self])

    def ends(self, row: int, k: int) -> tuple[float | None, float | None]:
        """Lower and upper bound of channel k in a row, if there are any."""
        if self.lower is None or self.upper is None:
            return None, None
        return float(self.lower[row, k]), float(self.upper[row, k])

    def unit_json(self) -> dict[str, Any]:
        """The arrays of one unit."""
        arrays = attributes(self, "factual", "mean", "lower", "upper")
        return {"channels": channels_json(self.about.outputs), **arrays}

    def to_frame(self) -> polars.DataFrame:
        """One row a time and channel."""
        columns = attributes(self, "factual", "mean", "lower", "upper")
        return long_frame("row", self.first, self.channels, columns, self.about.calendar)

    answered: ClassVar[str] = "answer"  # what its line is called in a picture

    def plot(self, channels: Sequence[str] = ()) -> Figure:
        """A matplotlib Figure of the channels that differ most: a panel for each unit of measure, dates if known."""
        from counterflow.questions.plots import Line, Rows, channel_panels, panels

        order = [self.about.output(name) for name in channels] or self.order()[:DRAWN]
        several = len(order) > 1

        def lines(k: int, colour: str) -> list[Line]:
            name = f"{self.channels[k]}, " if several else ""
            out = [Line.banded(f"{name}{self.answered}", (self.mean, self.lower, self.upper), colour, k)]
            if np.isfinite(self.factual[:, k]).any():
                look = {"color": colour, "linewidth": 1.0, "linestyle": ":"}
                out.insert(0, Line(f"{name}measured", self.factual[:, k], look=look))
            return [*out, *self.more_lines(k, colour)]

        rows = Rows.recorded(self.first, len(self.mean), self.about.calendar)
        return panels(rows, channel_panels(self.about.outputs, order, lines), self.unit, self.changed(rows.places))

    def more_lines(self, k: int, colour: str) -> list[Line]:
        """What a picture of an output shows beside its mean and band."""
        return []

    def changed(self, places: NDArray[Any]) -> list[tuple[Any, Any]]:
        """Where along an axis inputs are others."""
        return []


World = TypeVar("World", bound=Trajectory)


class Trajectories(dict[str, World], Reply):
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

    @property
    def kind(self) -> str:  # type: ignore[override]
        return next(iter(self.values())).kind

    @property
    def caveats(self) -> tuple[Caveat, ...]:  # type: ignore[override]
        return distinct(caveat for world in self.values() for caveat in world.caveats)

    @property
    def strongest(self) -> World:
        """Of the unit that the answer says most about."""
        return max(self.values(), key=lambda world: world.weight())

    @property
    def about(self) -> About:  # type: ignore[override]
        return self.strongest.about

    @property
    def level(self) -> float | None:
        return self.strongest.level

    def sentence(self, channel: str | None = None) -> str:
        return self.strongest.sentence(channel)

    @property
    def channels(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.strongest.channels

    def order(self) -> list[int]:
        return self.strongest.order()

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        return type(self.strongest).tables_of(list(self.values()))

    def to_json(self) -> dict[str, Any]:
        return type(self.strongest).json_of(list(self.values()))

    def view(self, drawn: Sequence[str], around: Any) -> dict[str, Any]:
        return self.strongest.view(drawn, around)

    def to_frame(self) -> polars.DataFrame:
        """All units' trajectories below each other."""
        import polars

        return polars.concat(
            [world.to_frame().select(polars.lit(name).alias("unit"), polars.all()) for name, world in self.items()]
        )

    def plot(self, **options: Any) -> Figure:
        """Of the unit that the answer says most about."""
        return self.strongest.plot(**options)

    def window(self, start: Moment | None = None, stop: Moment | None = None) -> dict[str, Window]:
        """What is said of a window of the rows, by unit; see ``Windowed.window``."""
        return {name: world.window(start, stop) for name, world in self.items()}

    def sentences(self) -> list[str]:
        return self.strongest.sentences()

    __str__, __repr__ = Reply.__str__, Reply.__repr__
