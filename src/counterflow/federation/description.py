"""What a plant knows of itself, and whether a message agrees with it: kinds, shapes and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.exchange.controllers import within
from counterflow.exchange.task import UnitData
from counterflow.plant import LocalModel
from counterflow.privacy import RowRange
from counterflow.protocol import Answer, Message, Reaction, Trial
from counterflow.questions.parts import REACTIONS

MOST_STATES = 10_000  # of one unit, whatever a server says
MOST_WORLDS, MOST_ROWS = 1000, 10_000  # of a trial
SLACK = 1e-9  # by which rounding may leave a limit


@dataclass(frozen=True)
class Description:
    """One plant: its name, its input channels in order, how many outputs and rows it has, and states, if it knows.

    Examples
    --------
    >>> Description("boiler", ("fuel", "valve"), outputs=8, rows=1000, states=2).inputs
    ('fuel', 'valve')
    """

    unit: str
    inputs: tuple[str, ...]
    outputs: int
    rows: int
    states: int | None = None
    begins: str = ""
    # what a private release is accounted by
    model: LocalModel | None = field(default=None, repr=False, compare=False)
    stretch: RowRange | None = field(default=None, repr=False, compare=False)
    # what answers of its controllers are judged by: of each input the limits, and what it was (T+1, U)
    limits: tuple[tuple[float, float], ...] = field(default=(), repr=False, compare=False)
    recorded: FloatArray | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, own: UnitData) -> Description:
        """Of what a unit brings to a job."""
        states = None if own.model is None else own.model.states
        stretch = RowRange.timed(own.y, own.begins, own.dt)
        of_unit = own.unit.name, own.unit.input_names, own.unit.n_outputs
        limits = tuple(channel.limits or (-np.inf, np.inf) for channel in own.unit.inputs)
        return cls(*of_unit, len(own.y), states, own.begins, own.model, stretch, limits, own.u)

    def check(self, message: Message, rounds: int | None, uses_inputs: bool = True) -> None:
        """ProtocolError if the message cannot be one of this plant, or to it, whoever has sent it.

        ``rounds``: of the job, at most; None if it has none. ``uses_inputs``: whether inputs are sent (not in FedGC).
        """
        if message.unit != self.unit:
            raise ProtocolError(
                f"unit {self.unit!r}: field 'unit' is {message.unit[:100]!r}: a plant speaks for itself only, and is "
                "spoken to by its own name"
            )
        round_of_message = getattr(message, "round", None)
        if rounds is not None and round_of_message is not None and round_of_message > rounds:
            raise self._wrong(message, "round", round_of_message, f"at most {rounds}")
        inputs, rows = len(self.inputs) if uses_inputs else 0, self.rows
        sizes = message.sizes
        for axis, length in (("rows", rows), ("steps", rows - 1), ("inputs", inputs), ("states", self.states)):
            if length is not None and sizes.get(axis, length) != length:
                raise self._wrong(message, _field(message, axis), f"{sizes[axis]} {axis}", f"{length} {axis}")
        for axis, length in (
            *(("states", MOST_STATES), ("order", MOST_STATES), ("numbers", self.outputs), ("signals", rows)),
            ("patterns", 2**self.outputs),
        ):
            if sizes.get(axis, 0) > length:
                raise self._wrong(message, _field(message, axis), f"{sizes[axis]} {axis}", f"{length} {axis} at most")
        match message:
            case Trial():
                if message.tried.shape[1] > inputs or message.foreign.shape[1]:
                    raise self._wrong(message, "tried", message.tried.shape, f"{inputs} columns at most, none foreign")
                begin, asked = message.row - message.lead, len(message.states) // message.worlds
                if begin < 0 or (message.past and begin + asked > rows):
                    raise self._wrong(message, "row", f"{begin} to {begin + asked}", f"within {rows} rows")
                if asked > MOST_ROWS or message.worlds > MOST_WORLDS or len(message.response) > len(message.states):
                    most = f"{MOST_WORLDS} worlds of {MOST_ROWS} rows at most"
                    raise self._wrong(message, "states", message.states.shape, most)
            case Answer() if message.share == REACTIONS:
                self._shape(message, "mean", (len(message.mean), inputs))
            case Answer():
                self._states(message, "mean", message.mean.shape[1])
                if not np.isfinite(message.mean).all():
                    raise self._wrong(message, "mean", "a number that is not finite", "finite numbers")

    def check_reaction(self, trial: Trial, said: Reaction, moves: Sequence[int]) -> None:
        """ProtocolError unless it says of the asked rows what controllers would move, within limits, and no more."""
        asked = (trial.row, trial.worlds, trial.inputs.shape)
        if (said.row, said.worlds, said.inputs.shape) != asked:
            raise self._wrong(said, "inputs", (said.row, said.worlds, said.inputs.shape), str(asked))
        free = [k for k in range(len(self.inputs)) if k not in moves or k in trial.held_columns]
        if not np.array_equal(said.inputs[:, free], trial.inputs[:, free]):
            raise self._wrong(said, "inputs", "another in a column that no controller moves", "as in the trial")
        values = said.inputs.reshape(trial.worlds, -1, len(self.inputs))
        for k in sorted(set(moves) - set(free)) if self.limits else ():
            asked_rows, was = values[:, trial.lead :, k], values[:, max(trial.lead - 1, 0) : trial.lead, k]
            if trial.past:
                assert self.recorded is not None
                was = self.recorded[None, trial.row :, k][:, : asked_rows.shape[1]]
                asked_rows = asked_rows + was
            low, high = within(self.limits[k], was)
            slack = SLACK * np.maximum(1.0, np.abs(asked_rows))
            if ((asked_rows < low - slack) | (asked_rows > high + slack)).any():
                raise self._wrong(said, "inputs", f"{self.inputs[k]!r} beyond its limits", str(self.limits[k]))

    def _states(self, message: Message, field: str, found: int) -> int:
        if self.states is not None and found != self.states:
            raise self._wrong(message, field, f"{found} states", f"{self.states} states")
        if found > MOST_STATES:
            raise self._wrong(message, field, f"{found} states", f"{MOST_STATES} states at most")
        return found

    def _shape(self, message: Message, field: str, shape: tuple[int, ...]) -> None:
        if getattr(message, field).shape != shape:
            raise self._wrong(message, field, getattr(message, field).shape, str(shape))

    def _wrong(self, message: Message, field: str, found: object, wanted: str) -> ProtocolError:
        return ProtocolError(
            f"unit {self.unit!r}: {type(message).__name__}, field {field!r} is {found}, by this plant's own "
            f"description it must be {wanted}. Check that the job is about this plant's log and model"
        )


def _field(message: Message, axis: str) -> str:
    """The array of a message that has such an axis."""
    arrays = message.arrays()
    names = [name for name, axes in arrays.items() if axis in (each.rstrip("?") for each in axes)]
    return axis if axis in arrays or not names else names[0]
