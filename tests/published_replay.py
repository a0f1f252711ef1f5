"""An attack on the published private training: replay the unit's side with either value of one measurement.

The reader knows everything else, and the gradients that the server really sent. Two readings: of the plain numbers in
the messages (whose replay has the noise level that was really sent?), and of the noised rows (how far apart are the
two replays, in standard deviations of the noise?).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import counterflow as cf
from counterflow.exchange.method import UnitState, unit_step
from counterflow.fits import engine
from counterflow.paper import unit as published_client
from counterflow.protocol import Message, PerturbedStates


@dataclass(frozen=True)
class Read:
    right: bool  # whether the plain numbers told which value was there
    mu: float  # how well the rows tell it: as N(0, 1) against N(mu, 1)


def attack(
    recording: cf.Recording,
    plant: cf.Plant,
    at: int,
    truth: bool,
    seed: int,
    epsilon: float,
    delta: float,
    **options: Any,
) -> Read:
    """One run, in which the measurement of row ``at`` is at one end of R_max or the other."""
    rows = [getattr(recording[name], letter) for name in recording.names for letter in "yu"]
    bound = 1.01 * max(float(np.linalg.norm(row, axis=1).max()) for row in rows)
    privacy = cf.Privacy(epsilon, delta, clip=bound, seed=seed, accounting="published")
    asked = {"method": "penalty", **options}
    records = [with_measurement(recording, at, sign * 0.999 * bound) for sign in (-1.0, 1.0)]
    starts = [start_of(record, plant, privacy, asked) for record in records]
    down, sent = conversation(records[truth], plant, privacy, asked)
    replays = [replay(start, down) for start in starts]
    gaps = [
        sum(abs(math.log(mine.noise / real.noise)) for mine, real in zip(own, sent, strict=True)) for own in replays
    ]
    squares = [
        float(np.square(a.by_row - b.by_row).sum()) / real.noise**2
        for a, b, real in zip(*replays, sent, strict=True)
    ]
    return Read(gaps[truth] < gaps[not truth], math.sqrt(sum(squares)))


def with_measurement(recording: cf.Recording, at: int, length: float) -> cf.Recording:
    """The same record with one row of unit1 along a fixed direction."""
    rows = {name: (recording[name].y.copy(), recording[name].u) for name in recording.names}
    y = rows["unit1"][0]
    y[at] = length * np.ones(y.shape[1]) / math.sqrt(y.shape[1])
    return cf.Recording.from_arrays(rows)


class _Caught(Exception):
    pass


def start_of(recording: cf.Recording, plant: cf.Plant, privacy: cf.Privacy, options: Mapping[str, Any]) -> UnitState:
    """Unit1's state before the first message: it depends on its record and on no noise."""
    caught: dict[str, UnitState] = {}

    def stop(coordinator: object, clients: Mapping[str, UnitState], **_: object) -> None:
        caught.update(clients)
        raise _Caught

    with mock.patch.object(engine, "run", stop), suppress(_Caught):
        cf.fit(recording, plant.locals(), privacy=privacy, **options)
    return caught["unit1"]


def conversation(
    recording: cf.Recording, plant: cf.Plant, privacy: cf.Privacy, options: Mapping[str, Any]
) -> tuple[list[Message], list[PerturbedStates]]:
    """What really went down to unit1, and up from it."""
    down: list[Message] = []
    sent: list[PerturbedStates] = []

    def watch(message: Message, goes_up: bool) -> None:
        if message.unit == "unit1" and not goes_up:
            down.append(message)
        elif message.unit == "unit1" and isinstance(message, PerturbedStates):
            sent.append(message)

    cf.fit(recording, plant.locals(), watch=watch, privacy=privacy, **options)
    return down, sent


def replay(state: UnitState, down: list[Message]) -> list[PerturbedStates]:
    """What the unit would have sent, without noise, if it had been in this state."""
    out: list[PerturbedStates] = []
    with mock.patch.object(published_client, "gaussian_release", lambda x, *_: x):
        for message in down:
            state, replies = unit_step(state, message)
            out += [reply for reply in replies if isinstance(reply, PerturbedStates)]
    return out
