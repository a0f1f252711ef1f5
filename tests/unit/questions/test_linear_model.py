"""Uncertainty of couplings carried into answers of a linear model: against a plain loop, and in other sizes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from numpy.typing import NDArray
from tolerances import EXACT, LONG

from counterflow.learning import linear_model
from counterflow.learning.layout import Layout
from counterflow.learning.linear_model import LinearGrounded, LinearModel, Spread

FloatArray = NDArray[np.float64]
P, U, OWN = 5, 3, slice(1, 4)
UNITS = Layout(("a", "b", "c"), (1, 3, 1), (1, 1, 1))


def _system(radius: float = 0.9, uncertain: bool = True) -> LinearGrounded:
    rng = np.random.default_rng(1)
    A = rng.normal(size=(P, P))
    A *= radius / np.abs(np.linalg.eigvals(A)).max()
    at = np.argwhere(rng.random((P, P + U)) < 0.6)
    root = rng.normal(size=(len(at), 7)) * 0.05
    model = LinearModel(UNITS, A, rng.normal(size=(P, U)), np.eye(P))
    model.__dict__["spread"] = Spread(at[:, 0], at[:, 1], root) if uncertain else None
    return model.on(None)


def _covariance(system: LinearGrounded, schedule: FloatArray) -> FloatArray:
    return system.difference(schedule, None, 1)[0].covariance.reshape(len(schedule), 3, 3)


def _by_loop(system: LinearGrounded, schedule: FloatArray) -> FloatArray:
    """One direction of uncertainty after the other, one row after the other: all rows at once (n, 3, n, 3)."""
    model, spread = system.model, system.model.spread
    assert spread is not None
    out = np.zeros((len(schedule), 3, len(schedule), 3))
    for direction in spread.root.T:
        moved = np.zeros((P, P + U))
        moved[spread.rows, spread.columns] = direction
        h, dh, rows = np.zeros(P), np.zeros(P), []
        for u in schedule:
            h, dh = model.A @ h + model.B @ u, model.A @ dh + moved @ np.concatenate([h, u])
            rows.append(dh[OWN])
        out += np.multiply.outer(np.array(rows), np.array(rows))
    return out


def _diagonal(whole: FloatArray) -> FloatArray:
    return np.array([whole[t, :, t] for t in range(len(whole))])


def _schedules(n: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng(2)
    step, pulse, ramp = (np.zeros((n, U)) for _ in range(3))
    step[:, 0] = 2.0
    pulse[3:9, 1], pulse[5:, 2] = -0.7, 1e-3
    ramp[:, 2] = np.linspace(0, 3.1, n)
    return {"step": step, "pulse": pulse, "ramp": ramp, "any": rng.normal(size=(n, U)), "none": np.zeros((n, U))}


@pytest.mark.parametrize("name", _schedules(1))
@pytest.mark.parametrize("rows", [1, 40, 150])
@pytest.mark.parametrize("radius", [0.5, 0.9, 1.01])
def test_as_a_plain_loop(name: str, rows: int, radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_model, "_SLICE", 1000)  # several slices of rows
    system, schedule = _system(radius), _schedules(rows)[name]
    whole = _by_loop(system, schedule)
    wanted = _diagonal(whole)
    for _ in range(2):
        found, members = system.difference(schedule, None, 1)
        assert members is None
        tolerance = LONG * np.abs(wanted).max()
        np.testing.assert_allclose(found.covariance.reshape(wanted.shape), wanted, rtol=LONG, atol=tolerance)
        assert found.directions is not None
        together = np.einsum("kni,kmj->nimj", found.directions, found.directions)
        np.testing.assert_allclose(together, whole, rtol=LONG, atol=tolerance)
    monkeypatch.setattr(linear_model, "LARGEST", 200 * rows)  # more than can be kept: each row is as exact
    monkeypatch.setattr(linear_model, "_LARGEST", 0)
    monkeypatch.setattr(linear_model, "KEPT", 1)
    np.testing.assert_allclose(_covariance(system, schedule), wanted, rtol=LONG, atol=tolerance)


@pytest.mark.parametrize("name", ["step", "pulse", "ramp"])
def test_the_same_schedule_in_other_sizes_is_remembered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system, counted, whole = _system(), [], linear_model.directions_along
    schedule = _schedules(60)[name]

    def counting(*given: object) -> FloatArray:
        counted.append(1)
        return whole(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(linear_model, "directions_along", counting)
    for sizes in ([1.0, 1.0, 1.0], [0.3, -2.0, 7.0], [1e-9, 4e5, -0.1], [-1.0, 1.0, 3.0]):
        other = schedule * np.array(sizes)
        wanted = _diagonal(_by_loop(system, other))
        np.testing.assert_allclose(_covariance(system, other), wanted, rtol=LONG, atol=EXACT * np.abs(wanted).max())
    assert len(counted) <= 2, "other sizes should have cost nothing, but where rounding makes another shape of it"
    counted.clear()
    _covariance(system, schedule[:50])
    system.difference(schedule, None, 0)
    assert len(counted) == 2, "another horizon or another unit is another question"


def test_memory_is_bounded() -> None:
    system = _system()
    for rows in range(20, 60):
        _covariance(system, _schedules(rows)["step"])
    assert system._unit_directions.cache_info().currsize == linear_model._REMEMBERED  # type: ignore[attr-defined]


def test_without_uncertainty_there_is_no_covariance() -> None:
    found = _system(uncertain=False).difference(_schedules(10)["step"], None, 1)[0]
    assert found.covariance.shape == (0, 3)
    assert found.directions is not None
    assert not len(found.directions)


def test_several_threads_may_ask() -> None:
    system, schedule, wrong = _system(), _schedules(40)["pulse"], []
    wanted = _diagonal(_by_loop(system, schedule))

    def ask(size: float) -> None:
        for _ in range(20):
            if not np.allclose(_covariance(system, size * schedule), size**2 * wanted, rtol=LONG):
                wrong.append(size)

    threads = [threading.Thread(target=ask, args=(0.5 + k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
