"""Published training: time of a round against T, compressed against array form, and rounds to convergence.

Run: python benchmarks/bench_training.py
"""

from __future__ import annotations

from time import perf_counter

import machine
import numpy as np

import counterflow as cf
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.part import UnitPart
from counterflow.fits import engine
from counterflow.paper.augmented import AugmentedModel, ClientData, compress
from counterflow.paper.options import TrainingOptions
from counterflow.paper.server import Phase, ServerConfig, TrainingServer
from counterflow.paper.unit import TrainingUnit


def seconds_per_round(data, parts, steps: int, rounds: int, compressed: bool) -> float:
    """Median over repeats of a gradient run's time, per round, without the preparation of the data."""
    names = tuple(parts)
    phase = Phase("penalty", rounds, (10.0,) * len(names))
    config = ServerConfig(names, (phase,), TrainingOptions(tol=0.0))
    times = []
    for _ in range(3):
        ones = data[names[0]].ones if compressed else None
        coordinator = TrainingServer(config, ones=ones, steps=steps if compressed else None)
        clients = {
            n: TrainingUnit(
                n, AugmentedModel(parts[n].model, data[n]),
                np.zeros((parts[n].model.states, parts[n].model.n_outputs)), np.zeros(parts[n].model.states),
            )
            for n in names
        }  # fmt: skip
        for state in clients.values():  # what is computed once is not part of a round
            _ = (state.model.base, state.model.step_sizes(1.0))
        start = perf_counter()
        engine.run(coordinator, clients, rows=steps)
        times.append((perf_counter() - start) / rounds)
    return float(np.median(times))


def main() -> None:
    lines = [
        "# Published training in one process",
        "",
        machine.description(),
        "",
        "M=2, P=U=2, D=8, gradient solver; one round = both units and the server.",
        "",
        "| T | array form, ms a round | compressed, ms a round | ratio | compressing, s |",
        "|---|---|---|---|---|",
    ]
    plant = cf.random_plant(units=2, rng=1)
    compressed_times = {}
    for steps in (10**4, 10**5, 10**6):
        recording = plant.simulate(steps, rng=2)
        parts = {n: UnitPart(plant.unit(n), plant.local(n), KalmanEstimator(plant.local(n))) for n in plant.names}
        data = {n: ClientData.from_rows(*parts[n].estimates(recording[n].y, recording[n].u)) for n in plant.names}
        start = perf_counter()
        small = compress(data)
        preparing = perf_counter() - start
        compressed_times[steps] = seconds_per_round(small, parts, steps, 2000, True)
        array = seconds_per_round(data, parts, steps, 10, False)
        ratio = array / compressed_times[steps]
        lines.append(
            f"| {steps:,} | {1e3 * array:.2f} | {1e3 * compressed_times[steps]:.3f} | {ratio:.0f} | {preparing:.2f} |"
        )
    growth = compressed_times[10**6] / compressed_times[10**4]
    lines += ["", f"Compressed round, T=1,000,000 against T=10,000: ratio {growth:.2f}.", ""]
    lines += [
        "Conjugate solver, D=8, T=5,000: rounds to a relative gradient of 1e-8 (white inputs).",
        "",
        "| M | " + " | ".join(f"xi={xi:g}" for xi in XI) + " |",
        "|---|" + "---|" * len(XI),
    ]
    for units in (2, 4, 8, 16):
        plant = cf.random_plant(units=units, rng=units)
        recording = plant.simulate(5000, rng=7)
        cells = []
        for xi in XI:
            found = cf.fit(recording, plant.locals(), method="penalty", xi=xi)
            cells.append(str(found.traffic.rounds) if found.status.converged else "not converged")
        lines.append(f"| {units} | " + " | ".join(cells) + " |")
    machine.write("training", "\n".join(lines))


XI = (0.1, 1.0, 10.0, 100.0, 1e4, 1e6)

if __name__ == "__main__":
    main()
