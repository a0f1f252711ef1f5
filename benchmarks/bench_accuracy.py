"""Accuracy of the couplings: relative errors by method, and the root mean square error against the Cramér-Rao bound.

Run: python benchmarks/bench_accuracy.py

The bound is computed here, from nothing but the plant's matrices and the textbook Kalman filter; see ``bound``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two processes, one thread each; before numpy is imported

from collections.abc import Callable, Iterable
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import machine
import numpy as np

import counterflow as cf
from counterflow.exchange.compression import sufficient_message
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import least_squares_start
from counterflow.plant import excitation

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
SEEDS, STEPS = range(20), 2000
LARGE_SEEDS, LARGE_STEPS = range(4), 5000
RUNS = 600  # recordings of one plant for the comparison with the bound
POLES = {"white": 0.0, "AR(0.9)": 0.9}
METHODS = ("sufficient (default)", "least-squares start alone", "published, penalty, xi=10")


def recording_of(plant: cf.Plant, steps: int, seed: int, pole: float) -> cf.Recording:
    inputs = excitation.autoregressive(plant, steps, seed, pole=pole) if pole else None
    return plant.simulate(steps, rng=seed, inputs=inputs)


def shared_of(plant: cf.Plant, recording: cf.Recording) -> SharedRecord:
    messages = [sufficient_message(n, plant.local(n), recording[n].y, recording[n].u) for n in plant.names]
    return SharedRecord.from_messages(messages)


def off_diagonal(plant: cf.Plant) -> tuple[FloatArray, FloatArray]:
    """Masks of the couplings in A and B."""
    A, B = np.ones(plant.A.shape, bool), np.ones(plant.B.shape, bool)
    for name in plant.names:
        A[plant.state_slice(name), plant.state_slice(name)] = False
        B[plant.state_slice(name), plant.input_slice(name)] = False
    return A, B


def relative_errors(plant: cf.Plant, A: FloatArray, B: FloatArray) -> tuple[float, float]:
    """Frobenius norms over all off-diagonal blocks, of B and of A."""
    in_A, in_B = off_diagonal(plant)
    return tuple(
        float(np.linalg.norm((got - true)[mask]) / np.linalg.norm(true[mask]))
        for got, true, mask in ((B, plant.B, in_B), (A, plant.A, in_A))
    )  # type: ignore[return-value]


def errors_by_method(job: tuple[int, int, int, float]) -> dict[str, tuple[float, float]]:
    units, steps, seed, pole = job
    plant = cf.random_plant(units=units, rng=seed)
    recording = recording_of(plant, steps, 100 + seed, pole)
    found = cf.fit(recording, plant.locals(), uncertainty=False)
    start = least_squares_start(shared_of(plant, recording), "couplings", 1.0 - 1e-9)
    published = cf.fit(recording, plant.locals(), method="penalty", xi=10.0)
    estimates = ((found.plant.A, found.plant.B), start, (published.plant.A, published.plant.B))
    return {name: relative_errors(plant, A, B) for name, (A, B) in zip(METHODS, estimates, strict=True)}


# The bound -----------------------------------------------------------------------------------------------------------


def couplings(plant: cf.Plant) -> list[tuple[str, int, int]]:
    in_A, in_B = off_diagonal(plant)
    return [("A", *map(int, at)) for at in np.argwhere(in_A)] + [("B", *map(int, at)) for at in np.argwhere(in_B)]


def bound(plant: cf.Plant, steps: int, pole: float) -> FloatArray:
    """Fisher information of the couplings in T+1 rows of all raw measurements, exactly, averaged over the inputs too.

    The textbook filter x[t+1] = A (x[t] + K[t] e[t]) + B u[t], e[t] = y[t] - C x[t], with its time-varying gain, and
    h[0] = 0 known, as it was in the simulation (knowing it can only lower the bound). Every recursion is
    differentiated by every parameter. Means: (h, x, dx_1..dx_n, u) is a linear system driven by process noise,
    measurement noise and the inputs' shocks, so its covariance, hence E[de_i de_j'], follows from one recursion:
    no data, no settled filter, nothing of counterflow.learning.information. Then
    I_ij = sum over t of tr(S^-1 E[de_j de_i']) + 1/2 tr(S^-1 dS_i S^-1 dS_j).
    """
    A, B, C, Q, R = plant.A, plant.B, plant.C, plant.Q, plant.R
    places = couplings(plant)
    n, P, U = len(places), A.shape[0], B.shape[1]
    dA, dB = np.zeros((n, P, P)), np.zeros((n, P, U))
    for k, (letter, i, j) in enumerate(places):
        (dA if letter == "A" else dB)[k, i, j] = 1.0
    at = [slice(k * P, (k + 1) * P) for k in range(n + 2)]  # h, x, dx_1..dx_n; then u
    inputs = slice((n + 2) * P, (n + 2) * P + U)
    size = inputs.stop
    joint = np.zeros((size, size))
    joint[inputs, inputs] = np.eye(U)
    X, dX = np.zeros((P, P)), np.zeros((n, P, P))
    eye = np.eye(P)
    information = np.zeros((n, n))
    for t in range(steps + 1):
        S_inverse = np.linalg.inv(C @ X @ C.T + R)
        dS = C @ dX @ C.T
        scaled = S_inverse @ dS
        information += 0.5 * np.einsum("iab,jba->ij", scaled, scaled)
        inner = joint[at[2].start : at[-1].stop, at[2].start : at[-1].stop].reshape(n, P, n, P)
        information += np.einsum("iajb,ab->ij", inner, C.T @ S_inverse @ C)
        if t == steps:
            break
        K = X @ C.T @ S_inverse
        dK = dX @ C.T @ S_inverse - K @ dS @ S_inverse
        V = X - K @ C @ X
        dV = dX - dK @ C @ X - K @ C @ dX
        step = np.zeros((size, size))  # from one row to the next
        noise = np.zeros((size, R.shape[0]))  # how the measurement noise of this row enters
        step[at[0], at[0]], step[at[0], inputs] = A, B
        step[at[1], at[0]], step[at[1], at[1]] = A @ K @ C, A @ (eye - K @ C)
        step[at[1], inputs] = B
        noise[at[1]] = A @ K
        for k in range(n):  # dx' = dA (x + K e) + A (dx + dK e - K C dx) + dB u,  e = C (h - x) + v
            through = dA[k] @ K + A @ dK[k]
            step[at[2 + k], at[0]] = through @ C
            step[at[2 + k], at[1]] = dA[k] - through @ C
            step[at[2 + k], at[2 + k]] = A @ (eye - K @ C)
            step[at[2 + k], inputs] = dB[k]
            noise[at[2 + k]] = through
        step[inputs, inputs] = pole * np.eye(U)
        joint = step @ joint @ step.T + noise @ R @ noise.T
        joint[at[0], at[0]] += Q
        joint[inputs, inputs] += (1.0 - pole**2) * np.eye(U)
        X = A @ V @ A.T + Q
        dX = dA @ V @ A.T + A @ dV @ A.T + A @ V @ dA.transpose(0, 2, 1)
    return information


def sampled_information(plant: cf.Plant, recording: cf.Recording) -> FloatArray:
    """The same sum with de of one record in place of its expectation, derivatives by the complex step: the check."""
    places, h = couplings(plant), 1e-30
    n = len(places)
    A, B = (np.repeat(M[None].astype(complex), n, axis=0) for M in (plant.A, plant.B))
    for k, (letter, i, j) in enumerate(places):
        (A if letter == "A" else B)[k, i, j] += 1j * h
    C, Q, R = plant.C, plant.Q, plant.R
    y = np.hstack([recording[m].y for m in plant.names])
    u = np.hstack([recording[m].u for m in plant.names])
    x, X = np.zeros((n, len(plant.A), 1), complex), np.zeros((n, *plant.A.shape), complex)
    information = np.zeros((n, n))
    for t in range(len(y)):
        S, e = C @ X @ C.T + R, y[t][:, None] - C @ x
        inverse = np.linalg.inv(S)
        gain = X @ C.T @ inverse
        weights, de, dS = inverse[0].real, e[..., 0].imag / h, S.imag / h
        information += de @ weights @ de.T + 0.5 * np.einsum("iab,jba->ij", weights @ dS, weights @ dS)
        x = A @ (x + gain @ e) + (B @ u[t])[..., None]
        X = A @ (X - gain @ C @ X) @ A.transpose(0, 2, 1) + Q
    return information


def plant_of_the_bound() -> cf.Plant:
    return cf.random_plant(units=2, rng=0)


def sampled(job: tuple[int, float]) -> FloatArray:
    plant = plant_of_the_bound()
    return sampled_information(plant, recording_of(plant, STEPS, 50_000 + job[0], job[1]))


def deviation(job: tuple[int, float]) -> FloatArray:
    """Estimate minus truth of every coupling, in one recording."""
    plant = plant_of_the_bound()
    found = cf.fit(recording_of(plant, STEPS, 10_000 + job[0], job[1]), plant.locals(), uncertainty=False)
    assert found.status.converged
    gap = {"A": found.plant.A - plant.A, "B": found.plant.B - plant.B}
    return np.array([gap[letter][i, j] for letter, i, j in couplings(plant)])


# The tables ----------------------------------------------------------------------------------------------------------


def spread_over(pool: Any, work: Callable[[Any], Any], jobs: Iterable[Any]) -> list[Any]:
    return list(pool.imap(work, jobs, chunksize=1))


def error_rows(pool: Any, units: int, steps: int, seeds: range, target: float) -> list[str]:
    lines = []
    for label, pole in POLES.items():
        results = spread_over(pool, errors_by_method, [(units, steps, seed, pole) for seed in seeds])
        for method in METHODS:
            of_B, of_A = np.array([r[method] for r in results]).T
            aim = f"{target:g}: {'met' if of_B.max() <= target else 'MISSED'}" if method == METHODS[0] else ""
            lines.append(
                f"| {units} | {steps:,} | {label} | {len(seeds)} | {method} | {of_B.mean():.4f} | {of_B.max():.4f} "
                f"| {aim} | {of_A.mean():.3f} | {of_A.max():.3f} |"
            )
    return lines


def bound_rows(pool: Any) -> tuple[list[str], list[str]]:
    lines, checks = [], []
    plant = plant_of_the_bound()
    for label, pole in POLES.items():
        information = bound(plant, STEPS, pole)
        check = np.mean(spread_over(pool, sampled, [(k, pole) for k in range(40)]), axis=0)
        scale = np.sqrt(np.diag(information))
        off = float((np.abs(check - information) / np.outer(scale, scale)).max())
        checks.append(f"{label}: {off:.4f}")
        limit = np.diag(np.linalg.inv(information))
        gaps = np.array(spread_over(pool, deviation, [(k, pole) for k in range(RUNS)]))
        ratio = np.sqrt(np.square(gaps).mean(axis=0) / limit)
        by_run = np.square(gaps) / limit  # (runs, couplings)
        total = float(np.sqrt(by_run.mean()))
        error = float(by_run.mean(axis=1).std() / np.sqrt(RUNS) / (2 * total))
        bias = float(np.abs(gaps.mean(axis=0) / np.sqrt(limit)).max())
        met = "met" if abs(total - 1) <= 0.1 else "MISSED"
        lines.append(
            f"| {label} | {RUNS} | **{total:.3f}** ± {error:.3f} | {met} | {ratio.mean():.3f} | {ratio.min():.3f} "
            f"| {ratio.max():.3f} | {bias:.3f} |"
        )
    return lines, checks


def main() -> None:
    begin = perf_counter()
    with get_context("spawn").Pool(2) as pool:
        small = error_rows(pool, 2, STEPS, SEEDS, 0.05)
        large = error_rows(pool, 16, LARGE_STEPS, LARGE_SEEDS, 0.06)
        against, checks = bound_rows(pool)
    lines = [
        "# Accuracy of the couplings",
        "",
        f"{machine.description()} ({os.environ['OPENBLAS_NUM_THREADS']} OpenBLAS thread a process, 2 processes). "
        f"{perf_counter() - begin:.0f} s in all.",
        "",
        "P=U=2 and D=8 a unit, q=0.1, r=1, dense couplings, a plant of its own for every seed. Relative error: "
        "Frobenius norm over all off-diagonal blocks, estimate minus truth over truth.",
        "",
        "| M | T | inputs | seeds | method | B_mn, mean | B_mn, max | target for the max | A_mn, mean | A_mn, max |",
        "|---:|---:|---|---:|---|---:|---:|---|---:|---:|",
        *small,
        *large,
        "",
        "## Against the Cramér-Rao bound",
        "",
        f"One plant (M=2, T={STEPS:,}), fresh noise and inputs in every recording; root mean square error of each of "
        "its 16 couplings over the bound's standard deviation. Target: the aggregate within 10 % of 1.",
        "",
        "| inputs | fits | aggregate ratio (± 1 Monte-Carlo standard error) | target | mean over couplings | min | max "
        "| largest bias, in standard deviations |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
        *against,
        "",
        "The aggregate is the root of the mean over fits and couplings of squared error over bound. A single "
        f"coupling's ratio has a Monte-Carlo standard error of about {1 / np.sqrt(2 * RUNS):.3f}.",
        "",
        "The bound is the inverse of the exact Fisher information of the raw measurements, computed in this script "
        "without counterflow.learning.information: the textbook time-varying Kalman filter, differentiated by every "
        "parameter, and the joint covariance of states, predictions, their derivatives and inputs propagated row by "
        "row, so that the expectation over noise and inputs is exact; h[0] is known to the bound, not to the fit. "
        "Check: the mean over 40 simulated records of the empirical information, its derivatives by the complex "
        "step, differs from it by at most (relative to the diagonal) " + ", ".join(checks) + " (sampling error).",
    ]
    machine.write("accuracy", "\n".join(lines))


if __name__ == "__main__":
    main()
