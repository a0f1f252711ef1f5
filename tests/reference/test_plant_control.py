"""Poles, zeros and frequency response against python-control and SLICOT."""

import numpy as np
import pytest
import scipy.linalg
from tolerances import EXACT, ITERATIVE, LONG

from counterflow.plant import Unit, random_plant
from counterflow.plant.transfer import poles, sigma, transmission_zeros

control = pytest.importorskip("control")
slycot = pytest.importorskip("slycot")


def slicot_zeros(A, B, C, D):
    # at its default tolerance AB08ND loses some hidden modes; see test_hidden_modes_are_found
    tol = 100 * np.finfo(float).eps * np.sqrt((len(A) + len(C)) * (len(A) + B.shape[1]))
    reduced = slycot.ab08nd(len(A), B.shape[1], len(C), A, B, C, D, tol=tol, ldwork=20_000)
    n = reduced[0]
    return scipy.linalg.eigvals(reduced[-2][:n, :n], reduced[-1][:n, :n]) if n else np.empty(0)


def gap(one, other):
    """Largest relative distance after pairing each value with the nearest one left; infinite if the counts differ."""
    if len(one) != len(other):
        return np.inf
    left, worst = list(other), 0.0
    for value in one:
        distances = [abs(value - candidate) / max(1.0, abs(value)) for candidate in left]
        nearest = int(np.argmin(distances))
        worst = max(worst, distances[nearest])
        left.pop(nearest)
    return worst


def rotated(A, B, C, rng):
    basis = np.linalg.qr(rng.normal(size=A.shape))[0]
    return basis @ A @ basis.T, basis @ B, C @ basis.T


def system(kind, seed):
    """A random system of the kind, and the number of zeros it must have where that is known."""
    rng = np.random.default_rng(seed)
    n, m, p = (int(k) for k in (rng.integers(2, 8), rng.integers(1, 5), rng.integers(1, 5)))
    if kind == "square":
        p = m
    if kind == "wide":
        m = p + 1
    if kind == "tall":
        p = m + 1
    A, B, C, D = rng.normal(size=(n, n)), rng.normal(size=(n, m)), rng.normal(size=(p, n)), np.zeros((p, m))
    half = n // 2
    if kind == "rank-deficient B":
        B = np.outer(rng.normal(size=n), rng.normal(size=m))
    elif kind == "rank-deficient C":
        C = np.outer(rng.normal(size=p), rng.normal(size=n))
    elif kind == "zero B":
        B = np.zeros((n, m))
    elif kind == "zero B and C":
        B, C = np.zeros((n, m)), np.zeros((p, n))
    elif kind == "uncontrollable":
        A[half:, :half], B[half:] = 0, 0
        A, B, C = rotated(A, B, C, rng)
    elif kind == "unobservable":
        A[:half, half:], C[:, half:] = 0, 0
        A, B, C = rotated(A, B, C, rng)
    elif kind == "feedthrough":
        D = rng.normal(size=(p, m))
    elif kind == "rank-deficient feedthrough":
        D = np.outer(rng.normal(size=p), rng.normal(size=m))
    elif kind == "repeated":
        A, B, C, D = (np.kron(np.eye(2), X) for X in (A, B, C, D))
    elif kind == "uncoupled states":
        A = np.diag(np.diag(A))
        B[1:] = 0
    elif kind == "integers":
        A, B, C, D = (rng.integers(-1, 2, X.shape).astype(float) for X in (A, B, C, D))
    return A, B, C, D


KINDS = [
    "square",
    "wide",
    "tall",
    "rank-deficient B",
    "rank-deficient C",
    "zero B",
    "zero B and C",
    "uncontrollable",
    "unobservable",
    "feedthrough",
    "rank-deficient feedthrough",
    "repeated",
    "uncoupled states",
    "integers",
]


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_against_slicot(kind):
    # repeated zeros of integer systems split by the square root of rounding in either library
    tolerance = 1e-6 if kind == "integers" else ITERATIVE
    differ = []
    for seed in range(60):
        A, B, C, D = system(kind, seed)
        ours = transmission_zeros(A, B, C, D)
        if gap(ours, slicot_zeros(A, B, C, D)) > tolerance:
            differ.append(seed)
    assert differ == []


def test_hidden_modes_are_found():
    """Systems whose zeros are known by construction: modes cut off from the inputs (wide) or outputs (tall)."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        A, B, C = rng.normal(size=(6, 6)), rng.normal(size=(6, 3)), rng.normal(size=(1, 6))
        A[3:, :3], B[3:] = 0, 0
        planted = np.linalg.eigvals(A[3:, 3:])
        A, B, C = rotated(A, B, C, rng)
        assert gap(transmission_zeros(A, B, C), planted) <= ITERATIVE
        assert gap(transmission_zeros(A.T, C.T, B.T), planted) <= ITERATIVE


def test_planted_transmission_zeros():
    """Single-input systems in companion form have the zeros of their numerator."""
    for planted in ([0.3], [0.5, -2.0], [0.1 + 0.4j, 0.1 - 0.4j, 1.7]):
        numerator = np.real(np.poly(planted))
        denominator = np.poly(np.linspace(-0.8, 0.9, 5))
        A = np.vstack([-denominator[1:], np.eye(5)[:4]])
        C = np.concatenate([np.zeros(5 - len(numerator)), numerator])[None]
        assert gap(transmission_zeros(A, np.eye(5)[:, :1], C), planted) <= ITERATIVE


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("inputs", "outputs"), [(2, 2), (2, 8), (3, 1), (1, 1)])
def test_plants_against_control(seed, inputs, outputs):
    plant = random_plant(3, states=3, inputs=inputs, outputs=outputs, rng=seed).replace(dt=0.25)
    theirs = plant.to_control()
    assert gap(plant.poles(), theirs.poles()) <= LONG
    assert (
        gap(plant.zeros(), slicot_zeros(plant.A, plant.B, plant.C, np.zeros((len(plant.C), plant.B.shape[1]))))
        <= ITERATIVE
    )
    if inputs == outputs:
        assert gap(plant.zeros(), theirs.zeros()) <= ITERATIVE
    w = np.geomspace(1e-3, np.pi / 0.25, 40)
    response = np.moveaxis(theirs(np.exp(1j * w * 0.25), squeeze=False), -1, 0)
    np.testing.assert_allclose(plant.frequency_response(w), response, rtol=0, atol=LONG * np.abs(response).max())
    values = control.singular_values_response(theirs, w).complex[:, 0, :].real.T
    np.testing.assert_allclose(plant.sigma(w), values, rtol=0, atol=LONG * values.max())
    _, impulse = control.impulse_response(theirs, T=np.arange(21) * 0.25, squeeze=False)
    ours = np.moveaxis(plant.impulse_response(20), 0, -1)
    np.testing.assert_allclose(0.25 * impulse[:, :, 1:], ours, rtol=0, atol=LONG * np.abs(ours).max())


def test_order():
    A, B, C, _ = system("feedthrough", 3)
    assert (np.diff(sigma(A, B, C, [0.1, 1.0]), axis=1) <= 0).all()
    assert (np.diff(np.abs(poles(A))) <= EXACT).all()


@pytest.mark.parametrize("still", [False, True])  # states that do nothing survive
def test_to_control(still):
    plant = random_plant([Unit("a.b", 2, 1, 2), Unit("c", 1, ["x"], 1), Unit("d", 1, 0, 2)], rng=0).replace(dt=0.5)
    plant = plant.replace(A=np.zeros_like(plant.A)) if still else plant
    found = plant.to_control()
    assert (found.input_labels, found.dt) == (["a_b/u1", "c/x"], 0.5)
    for letter in "ABC":
        np.testing.assert_array_equal(getattr(found, letter), getattr(plant, letter))
    assert not found.D.any()
