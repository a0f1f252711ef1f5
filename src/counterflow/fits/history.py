"""The training record of a fit: one entry a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray, frozen

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.method import ServerState, UnitState
    from counterflow.exchange.outcome import RoundRecord


LOSSES = ("server_loss", "residual_loss", "disentanglement", "gradient")  # of every round, as the server knows them


@dataclass(frozen=True)
class History:
    """Losses of every round, each at the point that the units sent in that round.

    ``server_loss`` is the objective of the round's phase: L_s (penalty) or L_AL (augmented Lagrangian);
    ``residual_loss`` is 1/T Σ|r_s|² and ``disentanglement`` 1/T Σ|D|² in both. ``client_loss``, ``proprietary_loss``
    and ``delta_d`` map each unit to its series. ``phase`` names the method of each round.
    """

    server_loss: FloatArray
    residual_loss: FloatArray
    disentanglement: FloatArray
    gradient: FloatArray
    phase: tuple[str, ...]
    client_loss: Mapping[str, FloatArray]
    proprietary_loss: Mapping[str, FloatArray]
    delta_d: Mapping[str, FloatArray]

    def __len__(self) -> int:
        return len(self.server_loss)

    def to_frame(self) -> polars.DataFrame:
        """One row a round; the units' columns are named ``client_loss/boiler`` and so on."""
        import polars as pl

        columns: dict[str, Any] = {"round": np.arange(len(self)), "phase": list(self.phase)}
        columns |= {name: getattr(self, name) for name in LOSSES}
        for field in ("client_loss", "proprietary_loss", "delta_d"):
            for unit, values in getattr(self, field).items():
                columns[f"{field}/{unit}"] = values
        return pl.DataFrame(columns)

    def plot(self) -> Figure:
        """A matplotlib Figure of all series against the round."""
        from counterflow.fits.plots import history_figure

        return history_figure(self)


class Recorder:
    """Collects a History while an engine runs."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.records: list[RoundRecord] = []
        self.losses: dict[str, list[float]] = {name: [] for name in names}

    def __call__(self, coordinator: ServerState, states: Mapping[str, UnitState]) -> None:
        assert coordinator.record is not None
        self.records.append(coordinator.record)
        for name in self.names:
            loss = states[name].loss
            assert loss is not None
            self.losses[name].append(loss)

    def history(self, proprietary: Mapping[str, float]) -> History:
        def series(values: list[float]) -> FloatArray:
            return frozen(np.array(values, np.float64))

        records = self.records
        return History(
            **{name: series([getattr(r, name) for r in records]) for name in LOSSES},
            phase=tuple(r.phase for r in records),
            client_loss=MappingProxyType({n: series(self.losses[n]) for n in self.names}),
            proprietary_loss=MappingProxyType({n: series([proprietary[n]] * len(records)) for n in self.names}),
            delta_d=MappingProxyType({n: series([r.delta_d[m] for r in records]) for m, n in enumerate(self.names)}),
        )
