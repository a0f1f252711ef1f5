"""What a server has seen of a unit during a fit: ``Transcript`` keeps it, and asks the leakage meter about it."""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError
from counterflow.privacy.leakage import Leakage, leakage
from counterflow.protocol import Basis, Message, Moments


class Transcript:
    """Keeps every number that went up, by unit and by row of its record. Give it to ``fit`` as ``watch``.

    A row of the record is where its measurement enters: ĥ_c[t], u[t] and s[t] belong to row t, but h_a[t], which holds
    theta y[t-1], to row t-1. Numbers that do not run over time (local blocks, phi, norms of gradients) are not kept.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], states=2, outputs=6, rng=1)
    >>> recording = plant.simulate(800, rng=2)
    >>> transcript = Transcript()
    >>> found = cf.fit(recording, plant.locals(), watch=transcript)
    >>> transcript.leakage("boiler", recording["boiler"].y).rank
    2
    """

    def __init__(self) -> None:
        self._columns: dict[str, list[tuple[int, FloatArray]]] = {}
        self._inputs: dict[str, FloatArray] = {}
        self._bases: dict[str, FloatArray] = {}

    def __call__(self, message: Message, goes_up: bool) -> None:
        if isinstance(message, Basis) and len(message.functions):
            self._bases[message.unit] = message.functions
        if not goes_up:
            return
        columns = self._columns.setdefault(message.unit, [])
        if hasattr(message, "inputs"):
            self._inputs[message.unit] = message.inputs
        # what moments tell of rows is in the span of the signals that they are projections on
        told = self._bases[message.unit] @ message.values if isinstance(message, Moments) else message.by_row
        if told is not None:
            columns.append((0 if isinstance(message, Moments) else getattr(message, "round", -1) + 1, told))

    @property
    def units(self) -> tuple[str, ...]:
        """Units that have sent anything."""
        return tuple(self._columns)

    def rounds(self, unit: str) -> int:
        """How often the unit has sent states; 0 if one message said it all."""
        return max((at for at, _ in self._of(unit)), default=0)

    def seen(self, unit: str, rounds: int | None = None) -> FloatArray:
        """All that was seen of one unit up to and with so many rounds (default: all), a row for each of its record.

        In the published protocol the last row of the record has been seen of nobody.
        """
        limit = self.rounds(unit) if rounds is None else rounds
        return np.hstack([array for at, array in self._of(unit) if at <= limit])

    def inputs(self, unit: str) -> FloatArray:
        """The unit's inputs as they were sent: no secret, and by themselves they foresee some of what is measured."""
        self._of(unit)
        return self._inputs[unit]

    def leakage(self, unit: str, y: FloatArray, rounds: int | None = None, *, lags: int = 1, skip: int = 50) -> Leakage:
        """What the server can read of the unit's measurements y (T+1, D) up to and with so many rounds.

        ``lags``: rows before and after that it looks at: from ĥ_c[t-1], u[t-1] and ĥ_c[t] it has K y[t]. ``skip``: rows
        at the start, where a filter's gain K has not settled, that are not asked about.
        """
        seen = self.seen(unit, rounds)
        return leakage(np.ascontiguousarray(seen[skip:]), np.ascontiguousarray(y[skip : len(seen)]), lags=lags)

    def _of(self, unit: str) -> list[tuple[int, FloatArray]]:
        if unit not in self._columns:
            raise OptionError(
                f"leakage: nothing was seen of unit {unit!r}; seen were {', '.join(map(repr, self.units)) or 'none'} "
                "(pass the transcript to fit as watch=)"
            )
        return self._columns[unit]
