"""Which messages belong to a job, and whether one agrees with what a plant knows of itself: kinds, shapes and sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterflow.errors import ProtocolError
from counterflow.exchange.controllers import within
from counterflow.exchange.registry import FEDERATED, FROM_LOGS, method_of
from counterflow.exchange.task import UnitData
from counterflow.federation.job import QUESTIONS, Job
from counterflow.protocol import Answer, Message, Reaction, Trial, decode
from counterflow.questions.answering import REACTIONS

ASKING = frozenset({"Openings", "Change", "Ask"})
SENT_IN_QUESTIONS = ASKING | {"Terms", "Reaction"}
HEARD_IN_QUESTIONS = frozenset({"Answer", "Refused", "Terms", "Openings", "Trial"})
SENT = SENT_IN_QUESTIONS.union(*(method.sends for method in (*FEDERATED.values(), *FROM_LOGS.values())))
MOST_STATES = 10_000  # of one unit, whatever a server says
MOST_WORLDS, MOST_ROWS = 1000, 10_000  # of a trial
SLACK = 1e-9  # by which rounding may leave a limit


def sent_by_units(job: Job) -> frozenset[str]:
    """Kinds of messages that a unit may send in a job."""
    return SENT_IN_QUESTIONS if job.method == QUESTIONS else method_of(job).sends


def sent_by_server(job: Job) -> frozenset[str]:
    """Kinds of messages that the server may send in a job."""
    return HEARD_IN_QUESTIONS if job.method == QUESTIONS else method_of(job).hears


def spoken(unit: str, data: bytes, job: Job, limit: int) -> Message:
    """A message of the unit that has authenticated itself as ``unit``, if it is one that a unit may send in a job."""
    message = decode(data, limit)
    if message.unit != unit:
        raise ProtocolError(
            f"server: {job.label}: unit {unit!r} speaks as {message.unit[:100]!r}; a plant speaks for itself only"
        )
    kind = type(message).__name__
    if kind not in sent_by_units(job):
        raise ProtocolError(f"server: {job.label}: a unit does not send {kind}, got it of {unit!r}")
    return message


def check_shapes(message: Message, job: Job, own: UnitData) -> None:
    """ProtocolError if the message cannot be one of this plant, or to it, whoever has sent it."""
    unit, rows = own.unit, len(own.y)
    if message.unit != unit.name:
        raise ProtocolError(
            f"unit {unit.name!r}: field 'unit' is {message.unit[:100]!r}: a plant speaks for itself only, and is "
            "spoken to by its own name"
        )
    method = None if job.method == QUESTIONS else method_of(job)
    inputs = unit.n_inputs if method is None or method.uses_inputs(job) else 0
    rounds = None if method is None else method.rounds(job)
    if rounds is not None and getattr(message, "round", 0) > rounds:
        raise _wrong(message, "round", getattr(message, "round", 0), f"at most {rounds}")
    known = {"rows": rows, "steps": rows - 1, "inputs": inputs}
    if own.model is not None:
        known["states"] = own.model.states
    most = {
        "states": MOST_STATES, "order": MOST_STATES, "numbers": unit.n_outputs, "signals": rows,
        "patterns": 2**unit.n_outputs,
    }  # fmt: skip
    for axis, length in message.sizes.items():
        if length != known.get(axis, length):
            raise _wrong(message, _field(message, axis), f"{length} {axis}", f"{known[axis]} {axis}")
        if length > most.get(axis, length):
            raise _wrong(message, _field(message, axis), f"{length} {axis}", f"{most[axis]} {axis} at most")
    if isinstance(message, Trial):
        _check_trial(message, inputs, rows)
    elif isinstance(message, Answer):
        columns = message.mean.shape[1]
        wanted = inputs if message.share == REACTIONS else known.get("states", columns)
        if columns != wanted or columns > MOST_STATES:
            raise _wrong(message, "mean", f"{columns} columns", f"{wanted} columns, {MOST_STATES} at most")


def _check_trial(trial: Trial, inputs: int, rows: int) -> None:
    if trial.tried.shape[1] > inputs or trial.foreign.shape[1]:
        raise _wrong(trial, "tried", trial.tried.shape, f"{inputs} columns at most, none foreign")
    begin, asked = trial.row - trial.lead, len(trial.states) // trial.worlds
    if begin < 0 or (trial.past and begin + asked > rows):
        raise _wrong(trial, "row", f"{begin} to {begin + asked}", f"within {rows} rows")
    if asked > MOST_ROWS or trial.worlds > MOST_WORLDS or len(trial.response) > len(trial.states):
        raise _wrong(trial, "states", trial.states.shape, f"{MOST_WORLDS} worlds of {MOST_ROWS} rows at most")


def check_reaction(said: Reaction, trial: Trial, moves: Sequence[int], own: UnitData) -> None:
    """ProtocolError unless it says of the asked rows what controllers would move, within limits, and no more."""
    channels = own.unit.inputs
    asked = (trial.row, trial.worlds, trial.inputs.shape)
    if (said.row, said.worlds, said.inputs.shape) != asked:
        raise _wrong(said, "inputs", (said.row, said.worlds, said.inputs.shape), str(asked))
    free = [k for k in range(len(channels)) if k not in moves or k in trial.held_columns]
    if not np.array_equal(said.inputs[:, free], trial.inputs[:, free]):
        raise _wrong(said, "inputs", "another in a column that no controller moves", "as in the trial")
    values = said.inputs.reshape(trial.worlds, -1, len(channels))
    for k in sorted(set(moves) - set(free)):
        limits = channels[k].limits or (-np.inf, np.inf)
        asked_rows, was = values[:, trial.lead :, k], values[:, max(trial.lead - 1, 0) : trial.lead, k]
        if trial.past:
            was = own.u[None, trial.row :, k][:, : asked_rows.shape[1]]
            asked_rows = asked_rows + was
        low, high = within(limits, was)
        slack = SLACK * np.maximum(1.0, np.abs(asked_rows))
        if ((asked_rows < low - slack) | (asked_rows > high + slack)).any():
            raise _wrong(said, "inputs", f"{channels[k].name!r} beyond its limits", str(limits))


def _wrong(message: Message, field: str, found: object, wanted: str) -> ProtocolError:
    return ProtocolError(
        f"unit {message.unit!r}: {type(message).__name__}, field {field!r} is {found}, by this plant's own "
        f"description it must be {wanted}. Check that the job is about this plant's log and model"
    )


def _field(message: Message, axis: str) -> str:
    """The array of a message that has such an axis."""
    arrays = message.arrays()
    names = [name for name, axes in arrays.items() if axis in (each.rstrip("?") for each in axes)]
    return axis if axis in arrays or not names else names[0]
