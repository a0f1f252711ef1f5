"""Uncertainty of couplings carried into answers: against a plain loop, and the memory of schedules in other sizes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from tolerances import EXACT, LONG

from counterflow.questions import sensitivity
from counterflow.questions.sensitivity import Memory, Spread, coupling_covariance, driven_by, pair_covariances

FloatArray = NDArray[np.float64]
P, U, OWN = 5, 3, slice(1, 4)


def _system(radius: float = 0.9) -> tuple[FloatArray, FloatArray, Spread]:
    rng = np.random.default_rng(1)
    A = rng.normal(size=(P, P))
    A *= radius / np.abs(np.linalg.eigvals(A)).max()
    positions = np.argwhere(rng.random((P, P + U)) < 0.6)
    root = rng.normal(size=(len(positions), 7)) * 0.05
    return A, rng.normal(size=(P, U)), Spread(positions[:, 0], positions[:, 1], root)


def _by_loop(A: FloatArray, B: FloatArray, spread: Spread, schedule: FloatArray) -> FloatArray:
    """One direction of uncertainty after the other, one row after the other."""
    out = np.zeros((len(schedule), P, P))
    for direction in spread.root.T:
        moved = np.zeros((P, P + U))
        moved[spread.rows, spread.columns] = direction
        h, dh = np.zeros(P), np.zeros(P)
        for t, u in enumerate(schedule):
            h, dh = A @ h + B @ u, A @ dh + moved @ np.concatenate([h, u])
            out[t] += np.outer(dh, dh)
    return out[:, OWN, OWN]


def _schedules(n: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng(2)
    step, pulse, ramp = (np.zeros((n, U)) for _ in range(3))
    step[:, 0] = 2.0
    pulse[3:9, 1], pulse[5:, 2] = -0.7, 1e-3
    ramp[:, 2] = np.linspace(0, 3.1, n)
    return {"step": step, "pulse": pulse, "ramp": ramp, "any": rng.normal(size=(n, U)), "none": np.zeros((n, U))}


@pytest.mark.parametrize("name", _schedules(1))
@pytest.mark.parametrize("rows", [1, 40, 300])
@pytest.mark.parametrize("radius", [0.5, 0.9, 1.01])
def test_as_a_plain_loop(name: str, rows: int, radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "_SLICE", 1000)  # several slices of rows
    A, B, spread = _system(radius)
    schedule = _schedules(rows)[name]
    wanted = _by_loop(A, B, spread, schedule)
    memory = Memory()
    direct = coupling_covariance(A, spread, driven_by(A, B, schedule)[1], OWN)
    for found in (direct, *(memory.covariance(A, B, spread, schedule, OWN) for _ in range(3))):
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=LONG, atol=LONG * np.abs(wanted).max())


@pytest.mark.parametrize("name", ["step", "pulse", "ramp"])
def test_the_same_schedule_in_other_sizes_is_remembered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    A, B, spread = _system()
    schedule, memory, counted = _schedules(60)[name], Memory(), []

    def counting(*given: object) -> FloatArray:
        counted.append(1)
        return pair_covariances(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(sensitivity, "pair_covariances", counting)
    for sizes in ([1.0, 1.0, 1.0], [0.3, -2.0, 7.0], [1e-9, 4e5, -0.1], [-1.0, 1.0, 3.0]):
        other = schedule * np.array(sizes)
        found = memory.covariance(A, B, spread, other, OWN)
        wanted = _by_loop(A, B, spread, other)
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=LONG, atol=EXACT * np.abs(wanted).max())
    assert len(counted) <= 2, "the third size should have cost nothing"
    memory.covariance(A, B, spread, schedule[:50], OWN)
    memory.covariance(A, B, spread, schedule, slice(0, 2))
    assert len(counted) >= 3, "another horizon or another unit is another question"


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "_CAPACITY", 30_000)
    A, B, spread = _system()
    memory = Memory()
    for rows in range(20, 60):
        memory.covariance(A, B, spread, _schedules(rows)["step"], OWN)
    kept = [value for value in memory._known.values() if value is not None]
    assert 0 < sum(value.size for value in kept) <= 30_000
    assert len(memory._known) < 40


def test_a_question_too_large_to_remember_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensitivity, "_LARGEST", 10)
    A, B, spread = _system()
    memory, schedule = Memory(), _schedules(30)["step"]
    np.testing.assert_allclose(
        memory.covariance(A, B, spread, schedule, OWN).reshape(30, 3, 3), _by_loop(A, B, spread, schedule), rtol=LONG
    )
    assert not memory._known


def test_without_uncertainty_there_is_no_covariance() -> None:
    A, B, _ = _system()
    assert Memory().covariance(A, B, None, _schedules(10)["step"], OWN).shape == (0, 3)


def test_several_threads_may_ask() -> None:
    A, B, spread = _system()
    memory, schedule, wrong = Memory(), _schedules(40)["pulse"], []
    wanted = _by_loop(A, B, spread, schedule)

    def ask(size: float) -> None:
        for _ in range(20):
            found = memory.covariance(A, B, spread, size * schedule, OWN).reshape(wanted.shape)
            if not np.allclose(found, size**2 * wanted, rtol=LONG):
                wrong.append(size)

    threads = [threading.Thread(target=ask, args=(0.5 + k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
