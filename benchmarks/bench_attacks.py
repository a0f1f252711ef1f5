"""Attacks on each protocol: what a server knows exactly, what it can reconstruct, whether one measurement shows.

Run: python benchmarks/bench_attacks.py [quick]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
import numpy as np
from membership import advantage, trials
from published_replay import attack

import counterflow as cf
from counterflow.exchange import rows as private
from counterflow.fits.leakage import Transcript
from counterflow.privacy import gaussian_delta, gaussian_release
from counterflow.privacy.leakage import Leakage, leakage

QUICK = "quick" in sys.argv[1:]
STEPS = 4000 if QUICK else 20_000
TRIALS = 20_000 if QUICK else 400_000
LITTLE: dict[str, Any] = {"evaluations": 1, "uncertainty": False}  # what the server makes of messages is not asked here
DELTA = 1e-6


def seen_by_the_server(recording: cf.Recording, plant: cf.Plant, **options: Any) -> Transcript:
    transcript = Transcript()
    cf.fit(recording, plant.locals(), watch=transcript, **options)
    return transcript


# What is known exactly -----------------------------------------------------------------------------------------------


def ranks() -> Iterator[str]:
    yield "| states P | measurements D | protocol | introduction | 1 round | 2 | 3 | 4 | 6 | 10 | all rounds |"
    yield "|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    protocols = {
        "published: penalty, gradient": {"method": "penalty", "solver": "gradient", "rounds": 30},
        "published: penalty, conjugate": {"method": "penalty"},
        "published: Lagrangian, gradient": {"method": "lagrangian", "solver": "gradient", "rounds": 30},
        "published: FedGC, gradient": {"method": "fedgc", "solver": "gradient", "rounds": 30},
        "sufficient messages": LITTLE,
        "sufficient messages, epsilon 10": LITTLE | {"privacy": cf.Privacy(10.0, DELTA, seed=1)},
    }
    for states, outputs in ((2, 8), (3, 12), (2, 20)):
        plant = cf.random_plant(units=2, states=states, outputs=outputs, rng=1)
        recording = plant.simulate(3000, rng=2)
        y = recording["unit1"].y
        for name, options in protocols.items():
            transcript = seen_by_the_server(recording, plant, **options)
            rounds = transcript.rounds("unit1")
            found = {k: transcript.leakage("unit1", y, k).rank for k in {0, 1, 2, 3, 4, 6, 10, rounds} if k <= rounds}
            cells = [str(found.get(k, "")) for k in (0, 1, 2, 3, 4, 6, 10)]
            yield f"| {states} | {outputs} | {name} | {' | '.join(cells)} | {found[rounds]} ({max(rounds, 1)}) |"


# What is reconstructed -----------------------------------------------------------------------------------------------


def reconstructions() -> Iterator[str]:
    plant = cf.random_plant(units=2, states=2, outputs=8, rng=1)
    recording = plant.simulate(STEPS, rng=2)
    y = recording["unit1"].y
    yield "| what the server has | directions known | R² of the best two | error | error, one row at a time |"
    yield "|---|---:|---|---:|---:|"

    def line(name: str, near: Leakage, alone: Leakage) -> str:
        best = ", ".join(f"{value:.3f}" for value in near.known[:2])
        shown = f"{near.reconstruction_error:.3f} | {alone.reconstruction_error:.3f}"
        return f"| {name} | {near.rank} of {near.directions} | {best} | {shown} |"

    def of(transcript: Transcript, rounds: int | None = None) -> tuple[Leakage, Leakage]:
        return tuple(transcript.leakage("unit1", y, rounds, lags=k) for k in (2, 0))  # type: ignore[return-value]

    published = seen_by_the_server(recording, plant, method="penalty", solver="gradient", rounds=4)
    for rounds, name in ((0, "introduction only"), (1, "1 round"), (2, "2 rounds"), (4, "4 rounds")):
        yield line(f"published, {name}", *of(published, rounds))
    plain = seen_by_the_server(recording, plant, **LITTLE)
    yield line("sufficient", *of(plain))
    for epsilon in (100.0, 10.0, 3.0, 1.0, 0.3, 0.1):
        transcript = seen_by_the_server(recording, plant, **LITTLE, privacy=cf.Privacy(epsilon, DELTA, seed=1))
        yield line(f"sufficient, epsilon {epsilon:g}", *of(transcript))
    u = recording["unit1"].u
    yield line("the unit's inputs, and nothing else", leakage(u, y, lags=2), leakage(u, y))
    for epsilon in (100.0, 10.0, 1.0):
        privacy = cf.Privacy(epsilon, DELTA, seed=1, accounting="published")
        transcript = seen_by_the_server(recording, plant, method="penalty", privacy=privacy)
        yield line(f"published with its noise, epsilon {epsilon:g} (10 rounds)", *of(transcript))


# Whether one measurement shows ---------------------------------------------------------------------------------------


@contextmanager
def noise_cut_to(factor: float) -> Iterator[None]:
    def release(x: np.ndarray, sigma: float, source: Any, *names: str) -> np.ndarray:
        return gaussian_release(x, factor * sigma, source, *names) if factor else x

    with mock.patch.object(private, "gaussian_release", release):
        yield


def memberships() -> Iterator[str]:
    yield "| epsilon | window | allowed, delta | all of the noise | surely | half | a third | none |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for epsilon, delta, window in (
        (0.1, 0.01, 1), (0.5, 0.01, 1), (1.0, 1e-6, 1), (1.0, 1e-3, 1), (1.0, 0.05, 1), (1.0, 0.05, 5), (2.0, 1e-3, 3),
        (3.0, 1e-4, 1), (3.0, 0.01, 10),
    ):  # fmt: skip
        asked = cf.Privacy(epsilon, delta, clip=3.0, window=window, seed=1)
        found = {}
        for factor in (1.0, 0.5, 1 / 3, 0.0):
            with noise_cut_to(factor):
                found[factor] = advantage(*trials(asked, count=TRIALS // window), epsilon)
        broken = [f"{found[k][1]:.3g}{' (surely broken)' if found[k][0] > delta else ''}" for k in (0.5, 1 / 3, 0.0)]
        kept = "at least " + f"{found[1.0][0]:.3g}" if found[1.0][0] > 0 else "-"
        yield f"| {epsilon:g} | {window} | {delta:g} | {found[1.0][1]:.3g} | {kept} | {' | '.join(broken)} |"


def published_memberships(count: int) -> Iterator[str]:
    yield "| epsilon | delta | rounds | right guesses from the plain numbers | rows alone: mu | delta at that epsilon |"
    yield "|---:|---:|---:|---:|---:|---:|"
    plant = cf.random_plant(units=2, states=2, outputs=4, rng=1)
    recording = plant.simulate(300, rng=2)
    for epsilon, rounds in ((0.5, 2), (1.0, 2), (1.0, 10), (10.0, 2), (10.0, 10)):
        found = [
            attack(recording, plant, 100 + k, bool(k % 2), 1 + k, epsilon, DELTA, rounds=rounds) for k in range(count)
        ]
        right, mu = sum(one.right for one in found), max(one.mu for one in found)
        told = f"{mu:.3g} | {gaussian_delta(epsilon, mu):.2g}"
        yield f"| {epsilon:g} | {DELTA:g} | {rounds} | {right} of {count} | {told} |"


def main() -> None:
    started = perf_counter()
    text = [
        "# Attacks",
        "",
        "How many linear combinations of one unit's measurements a server knows exactly (to a thousandth of their "
        "standard deviation), 3,000 rows, two units. The introduction tells P of them, and a published round P more, "
        "until all D are known (later where the last ones move the states so little that rounding hides them): from "
        "there on the server can compute the unit's raw measurements.",
        "",
        *ranks(),
        "",
        f"## Reconstruction of a unit's measurements (P=2, D=8, {STEPS:,} rows, delta {DELTA:g})",
        "",
        "The best linear reader, who has been shown three quarters of the measurements, on the last quarter: size of "
        "his error over the size of what there is to know, 1 if he learns nothing. He sees two rows before and after "
        "each row as well; last column: only the row itself. Inputs are sent as they are, so what they foresee by "
        "themselves is the floor for sufficient messages; the published noise is also put on inputs.",
        "",
        *reconstructions(),
        "",
        f"## Membership: was one measurement (or a window of them) a or b? ({TRIALS:,} rows, clip 3)",
        "",
        "The largest P(guesses b | b) - e^epsilon P(guesses b | a) over 65 thresholds, both ways round; delta is what "
        "is allowed. Estimates exceed it a little by chance (the largest of many); *surely*: lower Clopper-Pearson "
        "limit, all thresholds at once at 99.9 %. Then the same with the unit's noise cut.",
        "",
        *memberships(),
        "",
        "## Membership under the published analysis",
        "",
        "M=2, P=2, D=4, 301 rows; the measurement is at one end of R_max or the other. The reader knows everything "
        "else, replays the unit's side with either value and the gradients that were really sent, and compares. "
        "Plain numbers: the noise level that the message carries is a function of theta, which is trained on raw "
        "measurements, so it tells which value was there, whatever epsilon is. Rows alone: the distance of the two "
        "replays over the noise, all rounds together, and what (epsilon, delta) that really is.",
        "",
        *published_memberships(4 if QUICK else 20),
        "",
    ]
    text.insert(2, f"{machine.description()}. {perf_counter() - started:.0f} s in all.\n")
    machine.write("attacks", "\n".join(text))


if __name__ == "__main__":
    main()
