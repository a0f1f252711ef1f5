"""Hostile input for everything that reads what comes from outside: one case a call, none may do anything but refuse.

Messages, configurations, jobs and policies are good ones that were damaged; envelopes are any structure at all.
``run`` counts, times and watches the memory.
"""

from __future__ import annotations

import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent / "unit" / "federation"))

import numpy as np
import test_guard as messages

from counterflow import protocol
from counterflow.errors import CounterflowError
from counterflow.exchange.method import unit_step
from counterflow.exchange.registry import method_of
from counterflow.federation import Audit, CoordinatorSession, Job, Policy
from counterflow.federation.audit import FILE
from counterflow.federation.flare import jobs
from counterflow.protocol import decode, encode

LONGEST_TEXT = 5000  # characters of an error: what it quotes is cut
PIECES = (
    *"\"'{}[]\\\n\0#\ud800\u202e",
    *("[[", "null", "true", "-1", "1e999", "9" * 400, "[" * 3000, '{"a":' * 3000, "unit", "= ", "{workspace}", "../"),
    *('"path": "os.system"', "nan", "inf", "0x"),
)
POLICY = """unit = "boiler"
[leave]
methods = ["sufficient", "penalty"]
kinds = ["Sufficient", "Introduction"]
largest_rows = 1000
largest_bytes = 100000
[privacy]
demanded = true
epsilon = 2.0
delta = 1e-6
window = 3
published = false
simulation = false
ledger = "budget"
[answers]
allowed = true
[ask]
turbine = ["fuel", "air"]
"""
NOTED = '[{"code": "private", "scope": "", "text": "a note"}]'
SAMPLES = [
    encode(message)
    for message in (
        messages.MESSAGE,
        protocol.Request("boiler"),
        protocol.Finished("boiler", 1, True),
        protocol.Plan("boiler", True, True, False, 1.0),
        protocol.Settled("boiler", 1, 0.0),
        protocol.AugmentedStates("boiler", 3, 0.0, np.zeros((40, 2)), np.zeros(2)),
        protocol.StateGradients("boiler", 0, False, False, 1.0, False, np.zeros((40, 2)), np.zeros((0, 2))),
        protocol.Change("boiler", "turbine", False, 0, "0", np.ones((1, 2))),
        protocol.Ask("boiler", "effect", 0, 1),
        protocol.Answer("boiler", "effect", "", NOTED, np.zeros((1, 2)), np.zeros((0, 2))),
        messages.REDUCED,
    )
]
Case = Callable[[random.Random], None]  # raises a CounterflowError, or nothing


@dataclass(frozen=True)
class Outcome:
    """What became of the cases of one target."""

    cases: int
    refused: int
    slowest: float  # seconds
    grown: float  # MB of memory at the peak, more than before
    seconds: float


def scrambled(draw: random.Random) -> bytes:
    """A good message with bytes changed, cut, inserted or of another one; or with another length of its header."""
    data = bytearray(draw.choice(SAMPLES))
    for _ in range(draw.choice((1, 1, 2, 5))):
        how, at = draw.randrange(5), draw.randrange(min(len(data), 400) or 1)
        if how == 0 and data:
            data[at] = draw.randrange(256)
        elif how == 1:
            del data[at : at + draw.randrange(1, 40)]
        elif how == 2:
            data[at:at] = draw.choice((b"0", b"9" * 30, b'"', b"[", b"{}", b"null", b"-1", b"1e999", draw.randbytes(9)))
        elif how == 3:
            data[6:10] = struct.pack(
                "<I", draw.choice((0, 1, len(data) - 10, 16_384, 2**32 - 1, draw.randrange(400))) & 0xFFFFFFFF
            )
        else:
            other = draw.choice(SAMPLES)
            data[at:] = other[draw.randrange(len(other)) :]
    if draw.random() < 0.7 and len(data) >= 10 and (end := data.find(b'"}', 10)) > 0:  # a length that fits the header
        data[6:10] = struct.pack("<I", end + 2 - 10)
    return bytes(data)


def damaged(draw: random.Random, text: str) -> str:
    """A text with a few places changed, cut, doubled or filled with what parsers dislike."""
    for _ in range(draw.choice((1, 1, 2, 4))):
        at, how = draw.randrange(len(text) + 1), draw.randrange(5)
        end = min(len(text), at + draw.randrange(1, 30))
        if how == 0:
            text = text[:at] + text[end:]
        elif how == 1:
            text = text[:at] + draw.choice(PIECES) + text[at:]
        elif how == 2:
            text = text[:at] + draw.choice(PIECES) + text[end:]
        elif how == 3:
            text = text[:at] + text[at:end] * draw.choice((2, 50)) + text[end:]
        else:
            text = text[:at] + chr(draw.randrange(1, 0x3000)) + text[at + 1 :]
    return text


def anything(draw: random.Random, depth: int = 0) -> Any:
    """A value of any kind that FLARE can carry."""
    kind = draw.randrange(9 if depth < 4 else 6)
    if kind < 6:
        plain = (None, draw.random() < 0.5, draw.choice((0, 1, -1, 2**53, 2**70)), draw.random(), "", b"CFLW")
        return plain[kind]
    if kind == 6:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return tuple(anything(draw, depth + 1) for _ in range(draw.choice((1, 2, 2, 3))))
    names = ("counterflow", "messages", "x", "", 3, None)
    return {draw.choice(names): anything(draw, depth + 1) for _ in range(draw.randrange(4))}


def _envelope(draw: random.Random) -> None:
    content: dict[Any, Any] = {"counterflow": 1, "messages": [[0, b"x"], [1, b"y"]]}
    how = draw.randrange(4)
    if how == 0:
        del content[draw.choice(("counterflow", "messages"))]
        content[draw.choice(("counterflow", "more", 3, None))] = anything(draw)
    elif how == 1:
        content[draw.choice(("counterflow", "messages", "more"))] = anything(draw)
    elif how == 2:
        content["messages"] = [anything(draw) for _ in range(draw.choice((1, 3, 1001)))]
    else:
        content["messages"] = [[anything(draw), anything(draw)] for _ in range(draw.randrange(4))]
    for sequence, data in jobs.unpacked(content, "boiler"):
        assert type(sequence) is int
        assert type(data) is bytes


def targets(stack: ExitStack) -> dict[str, Case]:
    """All readers, ready to be called; what they need is put away when the stack is closed."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz")))
    stack.enter_context(mock.patch("os.fsync", return_value=None))
    audit = stack.enter_context(Audit(folder / FILE))
    of = {"questions": {"of": "fit"}}
    fuzzed = [Job(f"fuzz-{m}", m, messages.INPUTS, of.get(m, {})) for m in ("sufficient", "penalty", "questions")]
    guards = [messages.guard(audit, job) for job in fuzzed]
    machines = [method_of(job).unit(job, messages.OWN) for job in fuzzed[:2]]
    session = stack.enter_context(CoordinatorSession(folder / "session", Job("fuzz", "sufficient", messages.INPUTS)))
    begun = session.outgoing()
    made = jobs.write(folder, "fit-1", messages.PRIVATE.to_text(), messages.PRIVATE.part_texts(("boiler", "turbine")))
    plant = (made / "plant-1" / "config" / jobs.PLANT_FILE).read_text()
    coordinator = (made / "coordinator" / "config" / jobs.COORDINATOR_FILE).read_text()
    text = messages.PRIVATE.to_text()

    def incoming(draw: random.Random) -> None:
        k = draw.randrange(len(guards))
        message = guards[k].incoming(scrambled(draw))
        if k < len(machines):
            unit_step(machines[k], message)

    def received(draw: random.Random) -> None:
        unit, data = draw.choice(("boiler", "boiler", "turbine", "other", "")), scrambled(draw)
        if unit == "turbine" and data in SAMPLES:
            return
        try:
            session.receive(unit, draw.choice((-1, 0, 1, 2)), data)
        finally:
            assert session.outgoing() == begun, "one unit alone computes nothing"

    def outgoing(draw: random.Random) -> None:
        data, guard = scrambled(draw), draw.choice(guards)
        try:
            guard.outgoing(data)
        except CounterflowError:
            assert not guard.approved(data)
            raise

    def configured(read: Callable[[str], str], good: str) -> Case:
        def case(draw: random.Random) -> None:
            if draw.random() < 0.3:  # a job that was damaged, in a configuration that was not
                hidden = jobs.encoded(damaged(draw, text).encode("utf-8", "replace").decode())
                Job.from_text(read(good.replace(jobs.encoded(text), hidden)))
            else:
                read(damaged(draw, good))

        return case

    return {
        "protocol.decode": lambda draw: _nothing(decode(scrambled(draw))),
        "Guard.incoming": incoming,
        "Guard.outgoing": outgoing,
        "CoordinatorSession.receive": received,
        "envelope.unpacked": _envelope,
        "jobs.read_plant": configured(jobs.read_plant, plant),
        "jobs.read_coordinator": configured(jobs.read_coordinator, coordinator),
        "Job.from_text": lambda draw: _nothing(Job.from_text(damaged(draw, text)).to_text()),
        "Policy.from_text": lambda draw: _nothing(Policy.from_text(damaged(draw, POLICY))),
    }


def run(case: Case, cases: int, seed: int) -> Outcome:
    """Call a case many times; an AssertionError names the seed of one that does anything but refuse."""
    refused, longest, slowest, before, start = 0, 0, 0.0, _peak(), time.perf_counter()
    for k in range(cases):
        draw, clock = random.Random(seed * 1_000_003 + k), time.perf_counter()
        try:
            case(draw)
        except CounterflowError as error:
            refused += 1
            longest = max(longest, len(str(error)))
        except Exception as error:
            raise AssertionError(f"case {seed * 1_000_003 + k}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.perf_counter() - clock)
    assert longest < LONGEST_TEXT, f"an error has {longest} characters"
    return Outcome(cases, refused, slowest, _peak() - before, time.perf_counter() - start)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _nothing(value: object) -> None:
    """A case that is taken is as good as one that is refused."""
