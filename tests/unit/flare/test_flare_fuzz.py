"""A small count of what benchmarks/bench_fuzz.py does 100,000 times: hostile input is refused, nothing else."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from fuzzing import run, targets

NAMES = (
    *("protocol.decode", "Guard.incoming", "Guard.outgoing", "CoordinatorSession.receive", "envelope.unpacked"),
    *("jobs.read_plant", "jobs.read_coordinator", "Job.from_text", "Policy.from_text"),
)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_input_is_refused_and_nothing_else(name: str) -> None:
    with ExitStack() as stack:
        known = targets(stack)
        assert set(known) == set(NAMES)
        outcome = run(known[name], 300, seed=1)
    assert outcome.refused > 150, "most of it is refused"
    assert outcome.grown < 100
