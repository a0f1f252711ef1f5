"""Parts of an answer, as the server makes them: rows of the asking unit's states, and what they must be read with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, by_weight, to_text
from counterflow.errors import DataError
from counterflow.protocol import Answer, Ask, Message
from counterflow.protocol.questions import CAVEATS_LIMIT

Watch = Callable[[Message, bool], None]
RECORDED = "recorded"  # share of an answer that tells what the states were in rows that were not measured
REPLICATES = "replicates"  # share of an answer: what every replicate says, one below the other
BASELINE = "baseline"  # share of an answer: the states in which the plant usually rests
REACTIONS = "reactions"  # share of an answer: what the asking unit's own inputs do, by replicate


def part_of(ask: Ask, mean: FloatArray, covariance: FloatArray | None = None, share: str = "") -> Answer:
    """One part of an answer, of states ``mean`` (n, P_m)."""
    none = np.zeros((0, mean.shape[1]))
    rows = np.ascontiguousarray(mean)
    return Answer(ask.unit, ask.kind, share, "", rows, none if covariance is None else covariance)


def with_caveats(parts: Sequence[Answer], caveats: Sequence[Caveat]) -> tuple[Answer, ...]:
    """The same answer, to be read with these caveats, too; its first part carries them, as many as it can hold."""
    first, *others = parts
    whole = list(by_weight([*first.noted, *caveats]))
    while len(text := to_text(whole)) > CAVEATS_LIMIT:
        whole.pop()
    return (replace(first, caveats=text), *others) if caveats else tuple(parts)


def refuse_overflow(*arrays: FloatArray) -> None:
    """What does not fit into double precision is no answer."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise DataError("the change is too large for double precision: give it in other units, or a smaller one")


def later_rows(answer: Answer, rows: int) -> Answer:
    """An answer without its first rows."""
    if not rows:
        return answer
    size = answer.mean.shape[1]
    return replace(answer, mean=answer.mean[rows:], covariance=answer.covariance[rows * size :])


def later_in_worlds(answer: Answer, late: int, rows: int) -> Answer:
    """The same for a part that holds several worlds of so many rows each, one below the other."""
    if not late:
        return answer
    worlds = answer.mean.reshape(-1, rows, answer.mean.shape[1])[:, late:]
    return replace(answer, mean=np.ascontiguousarray(worlds.reshape(-1, answer.mean.shape[1])))
