"""The paper's statements, each tested as far as it is true; where one stops, the size of the gap is pinned.

docs/theory/paper.md tells the same in words. Losses, stationary points and moments are written out densely here and use
nothing of ``counterflow.exchange`` but the proprietary Kalman estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from tolerances import EXACT, ITERATES, ITERATIVE, LONG, STANDARD_ERRORS

import counterflow as cf
from counterflow.paper import couplings
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.contraction import settled_gain
from counterflow.paper.experiments.effects import unfiltered_fit
from counterflow.plant import excitation
from counterflow.protocol import Introduction

norm = np.linalg.norm
INFINITE = 1e6  # "xi → ∞"


# ---- the method, written densely: one unit's loss is a sum of squares that are linear in its parameters


@dataclass(frozen=True)
class Side:
    """All that enters the loss of one unit: its own columns and those of the other units, rows t = 1..T."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    now: np.ndarray  # y[t]
    before: np.ndarray  # y[t-1]
    refined: np.ndarray  # ĥ_c[t-1]
    u: np.ndarray  # u[t-1]
    predicted: np.ndarray  # h_c[t]
    others_refined: np.ndarray
    others_u: np.ndarray
    all_u: np.ndarray  # in the order of the units

    @property
    def steps(self) -> int:
        return len(self.now)

    @property
    def base(self) -> np.ndarray:
        return self.refined @ self.A.T + self.u @ self.B.T


@dataclass(frozen=True)
class Point:
    theta: np.ndarray
    phi: np.ndarray
    A: np.ndarray  # Â_mn of all n ≠ m, side by side
    B: np.ndarray

    def z(self, side: Side) -> np.ndarray:
        """A_mm (ĥ_a - ĥ_c) = A_mm theta y[t-1]."""
        return side.before @ (side.A @ self.theta).T

    def x(self, side: Side) -> np.ndarray:
        return side.others_refined @ self.A.T

    def D(self, side: Side) -> np.ndarray:
        return self.z(side) - self.x(side)

    def r_s(self, side: Side) -> np.ndarray:
        return self.D(side) + self.phi - side.others_u @ self.B.T

    def r_a(self, side: Side) -> np.ndarray:
        return side.now - (side.base + self.z(side) + self.phi) @ side.C.T


def sides(plant: cf.Plant, recording: cf.Recording) -> dict[str, Side]:
    columns = {}
    for name in plant.names:
        y, u = recording[name].y, recording[name].u
        columns[name] = (y, u[:-1], cf.KalmanEstimator(plant.local(name)).estimate(y, u))
    out = {}
    for name, (y, u, found) in columns.items():
        others = [n for n in plant.names if n != name]
        out[name] = Side(
            *(plant.block(letter, name) for letter in "ABC"), y[1:], y[:-1], found.refined[:-1], u, found.predicted[1:],
            np.hstack([columns[n][2].refined[:-1] for n in others]), np.hstack([columns[n][1] for n in others]),
            np.hstack([columns[n][1] for n in plant.names]),
        )  # fmt: skip
    return out


def _columns(left: np.ndarray, data: np.ndarray) -> np.ndarray:
    """The matrix that takes X (row by row) to left @ X @ data[t] for all t."""
    return np.einsum("qp,tk->tqpk", left, data).reshape(len(data) * len(left), -1)


def _linear_maps(side: Side) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """J_a, b_a, J_s, J_D: L_a = |b_a - J_a p|²/T, and L_s = (|J_s p|² + xi |J_D p|²)/T for p = (theta, phi, Â, B̂)."""
    eye, ones = np.eye(len(side.A)), np.ones((side.steps, 1))
    z, offset = _columns(side.A, side.before), _columns(eye, ones)
    x, b = _columns(eye, side.others_refined), _columns(eye, side.others_u)
    J_a = np.hstack([_columns(side.C @ side.A, side.before), _columns(side.C, ones)])
    J_a = np.hstack([J_a, np.zeros((len(J_a), x.shape[1] + b.shape[1]))])
    J_s, J_D = np.hstack([z, offset, -x, -b]), np.hstack([z, 0 * offset, -x, 0 * b])
    return J_a, (side.now - side.base @ side.C.T).ravel(), J_s, J_D, [m.shape[1] for m in (z, offset, x, b)]


def point_of(side: Side, p: np.ndarray, sizes: list[int]) -> Point:
    theta, phi, A, B = np.split(p, np.cumsum(sizes)[:-1])
    rows = len(side.A)
    return Point(theta.reshape(rows, -1), phi, A.reshape(rows, -1), B.reshape(rows, -1))


def stationary(side: Side, xi: float, gamma_1: float = 1.0, current: np.ndarray | None = None) -> Point:
    """Where theta, phi, Â and B̂ stand still; gamma_1 = 0: phi follows the server's gradient alone.

    The update map is affine, so this is one linear system, not symmetric if gamma_1 = 0. ``current``: ĥ_c[t], if the
    target is refined, and the server's residual has ĥ_a[t] in it.
    """
    J_a, b_a, J_s, J_D, sizes = _linear_maps(side)
    b_s = np.zeros(len(J_s))  # r_s = J_s p - b_s
    if current is not None:
        J_s = np.hstack([_columns(np.eye(len(side.A)), side.now), 0 * J_s[:, : sizes[1]], J_s[:, -sum(sizes[2:]) :]])
        b_s = (side.base - current).ravel()
    own = np.repeat([1.0, gamma_1, 0.0, 0.0], sizes)
    matrix = own[:, None] * (J_a.T @ J_a) + J_s.T @ J_s + xi * J_D.T @ J_D
    return point_of(side, np.linalg.solve(matrix / side.steps, (own * (J_a.T @ b_a) + J_s.T @ b_s) / side.steps), sizes)


def own_stationary(side: Side) -> Point:
    """The stationary point of L_a alone (least squares)."""
    J_a, b_a, _, _, sizes = _linear_maps(side)
    own = sum(sizes[:2])
    p = np.linalg.lstsq(J_a[:, :own], b_a, rcond=None)[0]
    return point_of(side, np.append(p, np.zeros(sum(sizes[2:]))), sizes)


def nothing(side: Side) -> Point:
    sizes = _linear_maps(side)[-1]
    return point_of(side, np.zeros(sum(sizes)), sizes)


@cache
def case(outputs: int, seed: int, mean: float = 0.0, pole: float = 0.0, steps: int = 5000):
    """A plant of two units (two states, two inputs each), a recording and its sides."""
    plant = cf.random_plant(outputs=outputs, rng=seed)
    if pole:
        inputs = excitation.autoregressive(plant, steps, rng=100 + seed, pole=pole)
    else:
        inputs = excitation.white(plant, steps, rng=100 + seed, mean=mean)
    recording = plant.simulate(steps, rng=100 + seed, inputs=inputs)
    return plant, recording, sides(plant, recording)


def fitted(outputs: int, seed: int, xi: float, mean: float = 0.0, pole: float = 0.0, method: str = "penalty") -> cf.Fit:
    plant, recording, _ = case(outputs, seed, mean, pole)
    return cf.fit(recording, plant.locals(), method=method, xi=xi, tol=1e-10)


def error(found: cf.Plant, true: cf.Plant, letter: str) -> float:
    """|X̂_mn - X_mn| / |X_mn| over all pairs m ≠ n, Frobenius."""
    pairs = [(m, n) for m in true.names for n in true.names if m != n]
    gap = sum(np.sum((found.block(letter, *pair) - true.block(letter, *pair)) ** 2) for pair in pairs)
    return float(np.sqrt(gap / sum(np.sum(true.block(letter, *pair) ** 2) for pair in pairs)))


def theta_norm(found: cf.Fit) -> float:
    return float(np.sqrt(sum(np.sum(part.theta**2) for part in found.parts.values())))


def within_standard_errors(draws: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """For every entry, whether the mean over draws (first axis) lies within the standard errors allowed."""
    spread = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    return np.abs(draws.mean(axis=0) - truth) <= STANDARD_ERRORS * spread


# ---- Proposition 4.1: the effect of an intervention


@pytest.mark.parametrize(("mean", "at"), [(0.0, 0), (0.0, 17), (1000.0, 39)])
def test_proposition_4_1_an_intervention_moves_the_next_row_by_C_B_and_later_ones_by_C_A_k_B(mean, at):
    plant = cf.random_plant(units=["boiler", "turbine", "cooler"], states=3, inputs=2, outputs=4, rng=5)
    steps, rng = 60, np.random.default_rng(0)
    inputs = excitation.white(plant, steps, rng=1, mean=mean)
    before = plant.simulate(steps, rng=1, inputs=inputs)
    for cause in plant.names:
        change = 3.0 * rng.standard_normal(2)
        changed = {**inputs, cause: inputs[cause].copy()}
        changed[cause][at] += change
        after = plant.simulate(steps, rng=1, inputs=changed)
        for effect in plant.names:
            difference = after[effect].y - before[effect].y
            size = np.abs(before[effect].y).max() + 1  # what is subtracted; the difference cannot be more exact
            assert not difference[: at + 1].any()
            expected = plant.block("C", effect) @ plant.block("B", effect, cause) @ change
            np.testing.assert_allclose(difference[at + 1], expected, rtol=EXACT, atol=EXACT * size)
            response, state = [], plant.B[:, plant.input_slice(cause)] @ change
            for _ in range(at + 1, steps + 1):
                response.append(plant.block("C", effect) @ state[plant.state_slice(effect)])
                state = plant.A @ state
            np.testing.assert_allclose(difference[at + 1 :], np.array(response), rtol=EXACT, atol=EXACT * size)


# ---- section 5: gradients by the chain rule


def _written_out_loss(units, theta, phi, A_hat, B_hat, xi=None, multipliers=None, rho=None, refined=False):
    """L_s (xi) or L_AL (multipliers, rho), and the sum of all L_a: the paper's sums, one t and one unit at a time.

    ``refined``: the server's target is ĥ_a[t].
    """
    steps = len(units[0]["y"]) - 1
    served = own = 0.0
    for m, unit in enumerate(units):
        for t in range(1, steps + 1):
            augmented = unit["refined"][t - 1] + theta[m] @ unit["y"][t - 1]
            h_a = unit["A"] @ augmented + unit["B"] @ unit["u"][t - 1] + phi[m]
            h_s = unit["A"] @ unit["refined"][t - 1] + unit["B"] @ unit["u"][t - 1]
            D = unit["A"] @ (augmented - unit["refined"][t - 1])
            for n, other in enumerate(units):
                if n != m:
                    h_s = h_s + A_hat[m, n] @ other["refined"][t - 1] + B_hat[m, n] @ other["u"][t - 1]
                    D = D - A_hat[m, n] @ other["refined"][t - 1]
            target = unit["refined"][t] + theta[m] @ unit["y"][t] if refined else h_a
            served += np.sum((target - h_s) ** 2)
            served += xi[m] * np.sum(D**2) if xi is not None else multipliers[m][t - 1] @ D + rho / 2 * np.sum(D**2)
            own += np.sum((unit["y"][t] - unit["C"] @ h_a) ** 2)
    return served / steps, own / steps


def _central_differences(function, array):
    """Exact for a quadratic function whatever the step, so the step is large."""
    out = np.zeros_like(array)
    for at in np.ndindex(array.shape):
        kept = array[at]
        array[at] = kept + 0.5
        above = function()
        array[at] = kept - 0.5
        out[at] = above - function()
        array[at] = kept
    return out


@pytest.mark.parametrize("refined", [False, True], ids=["predicted target", "refined target"])
@pytest.mark.parametrize("kind", ["penalty", "lagrangian"])
def test_section_5_gradients_equal_central_differences_of_the_losses(kind, refined):
    rng = np.random.default_rng(3)
    sizes = [(2, 1, 3), (3, 2, 2), (1, 2, 4)]  # P, U, D
    steps, names = 7, ["boiler", "turbine", "cooler"]
    units = [
        {"A": rng.standard_normal((p, p)), "B": rng.standard_normal((p, u)), "C": rng.standard_normal((d, p)),
         "y": 2 + rng.standard_normal((steps + 1, d)), "u": rng.standard_normal((steps + 1, u)),
         "refined": rng.standard_normal((steps + 1, p))}
        for p, u, d in sizes
    ]  # fmt: skip
    theta = [rng.standard_normal((p, d)) for p, _, d in sizes]
    phi = [rng.standard_normal(p) for p, _, _ in sizes]
    pairs = [(m, n) for m in range(3) for n in range(3) if m != n]
    A_hat = {(m, n): rng.standard_normal((sizes[m][0], sizes[n][0])) for m, n in pairs}
    B_hat = {(m, n): rng.standard_normal((sizes[m][0], sizes[n][1])) for m, n in pairs}
    xi = np.array([0.3, 2.0, 7.0])
    rho = 5.0
    multipliers = [rng.standard_normal((steps, p)) for p, _, _ in sizes]
    weights = {"xi": xi} if kind == "penalty" else {"multipliers": multipliers, "rho": rho}
    weights["refined"] = refined

    models = []
    for unit in units:
        model = cf.LocalModel(**{k: unit[k] for k in "ABC"}, Q=np.eye(len(unit["A"])), R=np.eye(len(unit["C"])))
        estimates = cf.Estimates(unit["refined"], unit["refined"])
        models.append(AugmentedModel(model, ClientData.from_rows(unit["y"], unit["u"], estimates)))
    introductions = [
        Introduction(name, unit["A"], unit["B"], unit["refined"][:-1].copy(), unit["u"][:-1].copy())
        for name, unit in zip(names, units, strict=True)
    ]
    evidence = couplings.Evidence.collect(introductions)
    states = [model.states(theta[m], phi[m]) for m, model in enumerate(models)]
    A_cross, B_cross = np.zeros_like(evidence.A_local), np.zeros_like(evidence.B_local)
    for m, n in pairs:
        A_cross[evidence.state_slices[m], evidence.state_slices[n]] = A_hat[m, n]
        B_cross[evidence.state_slices[m], evidence.input_slices[n]] = B_hat[m, n]
    predicted, seen = np.hstack(states), np.hstack([each.refined_states(theta[m]) for m, each in enumerate(models)])
    moved = predicted - evidence.base - np.concatenate(phi)
    found = couplings.residuals(evidence, seen if refined else predicted, moved, A_cross, B_cross)
    if kind == "penalty":
        dual = evidence.per_state(2 * xi) * found.entanglement
    else:
        dual = np.hstack(multipliers) + rho * found.entanglement
    d_states, d_refined = couplings.state_gradients(evidence, found, dual)
    d_A, d_B = couplings.coupling_gradients(evidence, found, dual)

    def served():
        return _written_out_loss(units, theta, phi, A_hat, B_hat, **weights)[0]

    def own():
        return _written_out_loss(units, theta, phi, A_hat, B_hat, **weights)[1]

    def close(actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=LONG, atol=LONG * np.abs(expected).max())

    assert kind == "lagrangian" or found.residual_loss + sum(
        x * np.sum(found.entanglement[:, s] ** 2) for x, s in zip(xi, evidence.state_slices, strict=True)
    ) / steps == pytest.approx(served(), rel=EXACT)
    for m, model in enumerate(models):
        mine = evidence.state_slices[m]
        ahead, pulled, d_phi = model.chain_rule(d_states[:, mine], d_refined[:, mine], refined)
        close(d_phi, _central_differences(served, phi[m]))  # zero for a refined target: phi is no part of that loss
        close(ahead + pulled, _central_differences(served, theta[m]))
        _, own_theta, own_phi = model.loss_and_gradients(states[m])
        close(own_theta, _central_differences(own, theta[m]))
        close(own_phi, _central_differences(own, phi[m]))
        if kind == "penalty" and not refined:
            # what Algorithm 1 sends gives the gradient of |r_s|² only: the penalty never reaches the unit

            def residual_part():
                return _written_out_loss(units, theta, phi, A_hat, B_hat, xi=0 * xi)[0]

            close(ahead, _central_differences(residual_part, theta[m]))
    for m, n in pairs:
        rows, columns, inputs = evidence.state_slices[m], evidence.state_slices[n], evidence.input_slices[n]
        close(d_A[rows, columns], _central_differences(served, A_hat[m, n]))
        close(d_B[rows, inputs], _central_differences(served, B_hat[m, n]))


# ---- a refined target: the server explains ĥ_a[t] = ĥ_c[t] + theta y[t]


def arrives(found: cf.Fit, points: dict[str, Point], tolerance: float) -> None:
    """Whether a fit has come to these points."""
    assert found.status.converged
    for (name, point), other in zip(points.items(), reversed(found.plant.names), strict=True):
        part = found.parts[name]
        blocks = (found.plant.block(letter, name, other) for letter in "AB")
        for got, expected in zip(
            (part.theta, part.phi, *blocks), (point.theta, point.phi, point.A, point.B), strict=True
        ):
            assert norm(got - expected) <= tolerance * norm(expected)


@pytest.mark.parametrize(("outputs", "seed", "mean", "pole"), [(2, 0, 1.0, 0.0), (8, 1, 0.0, 0.0), (8, 2, 0.0, 0.9)])
@pytest.mark.parametrize("xi", [0.0, 1.0, 100.0, INFINITE])
def test_refined_target_the_library_arrives_at_the_dense_stationary_point(outputs, seed, mean, pole, xi):
    plant, recording, by_unit = case(outputs, seed, mean, pole)
    found = cf.fit(recording, plant.locals(), "penalty", xi=xi, tol=1e-10, target="refined")
    assert found.status.rounds < 15
    points = {}
    for name, side in by_unit.items():
        own = recording[name]
        current = cf.KalmanEstimator(plant.local(name)).estimate(own.y, own.u).refined[1:]
        points[name] = stationary(side, xi, current=current)
        # phi is the unit's alone now, so that the second equation of Lemma 8.2 holds
        assert norm(side.C.T @ points[name].r_a(side).mean(axis=0)) <= ITERATIVE * norm(side.now.std(axis=0))
    arrives(found, points, 100 * ITERATIVE)


@pytest.mark.parametrize("xi", [0.1, 10.0, INFINITE])
@pytest.mark.parametrize("noise", [1.0, 1e-2])
def test_refined_target_white_inputs_B_hat_is_the_filters_gain_times_B(noise, xi):
    """B̂_mn comes to (K_m + theta_m) C_mm B_mn: too small by what the filter has not taken in, and no more."""
    plant = cf.random_plant(measurement_noise=noise, rng=1)
    recording = plant.simulate(64_000, rng=5)
    found = cf.fit(recording, plant.locals(), "penalty", xi=xi, target="refined")
    for name, other in (plant.names, plant.names[::-1]):
        model = plant.local(name)
        response = (settled_gain(model) + found.parts[name].theta) @ model.C
        true = plant.block("B", name, other)
        limit = response @ true
        assert norm(found.plant.block("B", name, other) - limit) < 0.03 * norm(true)
        assert norm(limit - true) > (0.2 if noise == 1 else 0.01) * norm(true)  # which is not B_mn itself


def test_refined_target_the_messages_of_round_0_are_sufficient_once_the_gains_are_known():
    """ĥ_c[t] - (I - K C)(A ĥ_c[t-1] + B u[t-1]) = K y[t]: likelihood on it is likelihood on the measurements."""
    plant = cf.random_plant(rng=2)
    recording = plant.simulate(1500, rng=3, inputs=excitation.autoregressive(plant, 1500, rng=3, pole=0.9))
    found = unfiltered_fit(recording, plant, skip=100).plant
    wanted = cf.fit(recording.slice(101, None), plant.locals(), uncertainty=False).plant
    for letter in "AB":
        one, other = getattr(found, letter), getattr(wanted, letter)
        assert norm(one - other) <= 1e-6 * norm(other)


def test_refined_target_A_hat_stays_biased_however_long_the_record():
    """The units' filters are wrong by what the couplings do, so that ĥ_c is no regressor with noise of its own."""
    plant = cf.random_plant(rng=1)
    errors = []
    for steps in (4000, 64_000):
        found = cf.fit(plant.simulate(steps, rng=9), plant.locals(), "penalty", xi=10.0, target="refined")
        errors.append(error(found.plant, plant, "A"))
    assert errors[1] == pytest.approx(errors[0], rel=0.1)
    assert errors[1] > 0.3


# ---- the stationary point of the combined update


@pytest.mark.parametrize(("outputs", "seed", "mean"), [(2, 0, 1.0), (8, 1, 0.0)])
@pytest.mark.parametrize("xi", [1.0, 100.0, INFINITE])
def test_the_library_arrives_at_the_dense_stationary_point(outputs, seed, mean, xi):
    found = fitted(outputs, seed, xi, mean)
    assert found.status.rounds < 15
    points = {name: stationary(side, xi) for name, side in case(outputs, seed, mean)[2].items()}
    arrives(found, points, 10 * ITERATIVE)


@pytest.mark.parametrize(("mean", "pole"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.9)])
@pytest.mark.parametrize("xi", [1.0, 100.0])
def test_B_hat_is_the_regression_of_D_plus_phi_on_the_inputs(mean, pole, xi):
    """Why large xi ends B̂: all that B̂ can be fitted to is D, which the penalty removes, and a constant."""
    for side in case(8, 1, mean, pole)[2].values():
        point = stationary(side, xi)
        regression = np.linalg.lstsq(side.others_u, point.D(side) + point.phi, rcond=None)[0].T
        assert norm(point.B - regression) <= ITERATIVE * norm(regression)


# ---- Lemma 8.2: normal equations


def _normal_equations(side: Side, point: Point) -> tuple[float, float]:
    """Norms of mean((CA)ᵀ r_a y[t-1]ᵀ) and of mean(Cᵀ r_a)."""
    r = point.r_a(side)
    return float(norm((side.C @ side.A).T @ (r.T @ side.before) / side.steps)), float(norm(side.C.T @ r.mean(axis=0)))


@pytest.mark.parametrize(("outputs", "seed"), [(2, 0), (8, 1)])
def test_lemma_8_2_holds_where_the_units_own_loss_is_stationary(outputs, seed):
    for side in case(outputs, seed, mean=1.0)[2].values():
        at_start, at_end = _normal_equations(side, nothing(side)), _normal_equations(side, own_stationary(side))
        assert at_end[0] <= LONG * at_start[0]
        assert at_end[1] <= LONG * at_start[1]


@pytest.mark.parametrize(("xi", "low", "high"), [(1.0, 0.12, 0.3), (10.0, 0.4, 0.7), (INFINITE, 0.999, 1.02)])
def test_lemma_8_2_does_not_hold_where_the_combined_update_is_stationary(xi, low, high):
    """Relative to theta = phi = 0; as xi → ∞ the first equation is violated as if nothing had been learned."""
    for side in case(8, 1)[2].values():
        violation = _normal_equations(side, stationary(side, xi))[0] / _normal_equations(side, nothing(side))[0]
        assert low < violation < high


def test_lemma_8_2_second_equation_fails_too_if_inputs_have_a_mean():
    """At the combined stationary point mean(Cᵀ r_a) = mean(r_s) exactly, and that is not zero."""
    for side in case(2, 0, mean=1.0)[2].values():
        for xi, low in ((1.0, 0.015), (INFINITE, 0.25)):
            point = stationary(side, xi)
            mean_r_s = point.r_s(side).mean(axis=0)
            assert norm(side.C.T @ point.r_a(side).mean(axis=0) - mean_r_s) <= ITERATIVE * norm(mean_r_s)
            assert norm(mean_r_s) > low


def test_theorem_8_3_a_left_inverse_of_CA_does_not_cancel_its_transpose_but_the_conclusion_stands():
    """(CA)ᵀX = 0 allows X ≠ 0 if there are more outputs than states; E[r_a yᵀ] = 0 needs another argument.

    y[t] - C h_a[t] = C(h - h_a) + v with v independent of y[t-1], so X = C E[(h - h_a)yᵀ], and AᵀCᵀC is invertible.
    """
    plant, draws = cf.random_plant(outputs=8, rng=1), []
    for run in range(40):
        side = sides(plant, plant.simulate(400, rng=1000 + run))["unit1"]
        r = own_stationary(side).r_a(side)
        X = r.T @ side.before / side.steps
        draws.append(X)
        assert norm((side.C @ side.A).T @ X) <= 1e-9 * norm(X)  # X is far from zero, its image is zero
    assert within_standard_errors(np.array(draws), np.zeros((8, 8))).all()


# ---- Theorem 6.1


def test_theorem_6_1_the_gap_closes_like_one_over_xi_because_both_sides_do():
    for outputs, seed in ((2, 0), (8, 1)):
        for side in case(outputs, seed, mean=1.0)[2].values():
            gap, left, right, theta, coupling = [], [], [], [], []
            for xi in (1e4, 1e5, INFINITE):
                point = stationary(side, xi)
                z, x = point.z(side).mean(axis=0), point.x(side).mean(axis=0)
                gap.append(norm(z - x))
                left.append(norm(z))
                right.append(norm(x))
                theta.append(norm(point.theta))
                coupling.append(norm(point.A))
            for series in (gap, left, right, theta, coupling):
                assert np.array(series[:-1]) / np.array(series[1:]) == pytest.approx([10, 10], rel=0.05)
            assert gap[-1] < 1e-5  # the statement ...
            relative = np.array(gap) / np.array(left)
            assert relative[-1] == pytest.approx(relative[0], rel=0.05)  # ... but relative to its sides nothing closes
            assert relative[-1] > 0.025  # 0.03, 0.45, 1.04 and 0.79 for the four units


def test_theorem_6_1_stationarity_in_A_gives_orthogonality_to_the_states_not_a_zero_mean():
    for side in case(8, 1, mean=1.0)[2].values():
        for xi, low in ((1.0, 0.25), (10.0, 1.0), (INFINITE, 1.5)):
            point = stationary(side, xi)
            slope = point.r_s(side) + xi * point.D(side)  # -1/2 dL/dx[t]
            size = np.sqrt(np.mean(np.sum(slope**2, axis=1)))
            assert norm(slope.T @ side.others_refined / side.steps) <= ITERATIVE * size
            assert norm(slope.mean(axis=0)) > low


# ---- Corollary 6.2


def test_corollary_6_2_holds_if_phi_follows_the_server_alone_but_both_sides_vanish():
    for outputs, seed in ((2, 0), (8, 1)):
        for side in case(outputs, seed, mean=1.0)[2].values():
            mean_u = side.others_u.mean(axis=0)
            for xi in (1.0, 100.0, 1e4, INFINITE):
                point = stationary(side, xi, gamma_1=0.0)
                gap = point.phi - point.B @ mean_u
                D = point.D(side)
                assert norm(gap + D.mean(axis=0)) <= 100 * ITERATIVE * norm(D.mean(axis=0))  # exact at every xi
            assert norm(gap) < 1e-5
            assert norm(point.phi) < 1e-5
            assert norm(point.B) < 1e-5
            assert norm(gap) > 0.9 * norm(point.phi)  # relative to phi the gap stays


def test_corollary_6_2_the_gradient_solver_with_gamma_1_zero_converges_to_the_dense_point():
    plant, recording, by_unit = case(2, 0, mean=1.0, steps=2000)
    found = cf.fit(recording, plant.locals(), "penalty", solver="gradient", gamma_1=0.0, xi=10.0, tol=1e-8)
    arrives(found, {name: stationary(side, 10.0, gamma_1=0.0) for name, side in by_unit.items()}, 1e-5)


@pytest.mark.parametrize(("outputs", "seed"), [(2, 0), (8, 1)])
def test_corollary_6_2_does_not_hold_for_the_combined_update_and_the_gap_is_known(outputs, seed):
    """As xi → ∞, B̂ = phi μᵀ(Σ + μμᵀ)⁻¹, of rank one, and |phi - B̂ μ| = |phi| / (1 + μᵀΣ⁻¹μ)."""
    found = fitted(outputs, seed, INFINITE, mean=1.0)
    for m, side in enumerate(case(outputs, seed, mean=1.0)[2].values()):
        name = found.names[m]
        u, phi = side.others_u, found.parts[name].phi
        mu = u.mean(axis=0)
        sigma = np.cov(u.T, bias=True)
        expected = norm(phi) / (1 + mu @ np.linalg.solve(sigma, mu))
        delta_d = found.history.delta_d[name][-1]
        assert delta_d == pytest.approx(expected, rel=1e-3)
        assert delta_d > 0.2
        assert delta_d / norm(phi) == pytest.approx(1 / 3, rel=0.05)  # mean 1, variance 1, two inputs
        B_hat = found.plant.block("B", name, next(n for n in found.names if n != name))
        limit = np.outer(phi, mu) @ np.linalg.inv(u.T @ u / side.steps)
        assert norm(B_hat - limit) <= 1e-3 * norm(limit)


# ---- Theorem 8.3


@dataclass(frozen=True)
class OracleGap:
    left: np.ndarray  # mean of ỹ_o - ỹ_a
    right: np.ndarray  # J E[z], e as in the theorem
    right_of_proof: np.ndarray  # J E[z], e as in the proof
    dropped: np.ndarray  # what the proof loses: E[r_a zᵀ]Σ⁻¹E[z] - E[e]
    cross: np.ndarray  # mean of r_a u_nᵀ


def oracle_gap(side: Side, xi: float = INFINITE) -> OracleGap:
    """Both sides of Theorem 8.3 with the proof's oracle M_o = Γ_yz Σ_z⁻¹ on z = [y_m, u, ĥ_c,m]."""
    point, T = stationary(side, xi), side.steps
    r_a = point.r_a(side)
    reconstructed = side.now - r_a
    z = np.hstack([side.before, side.all_u, side.refined])
    second, mean = z.T @ z / T, z.mean(axis=0)
    oracle = np.linalg.solve(second, z.T @ side.now / T).T
    e_proof = (point.phi - side.others_u @ point.B.T) @ side.C.T
    e_theorem = e_proof + point.D(side) @ side.C.T

    def times_mean(pairs: np.ndarray) -> np.ndarray:
        return pairs @ np.linalg.solve(second, mean)

    return OracleGap(
        oracle @ mean - reconstructed.mean(axis=0), times_mean(e_theorem.T @ z / T), times_mean(e_proof.T @ z / T),
        times_mean(r_a.T @ z / T) - e_proof.mean(axis=0), r_a.T @ side.others_u / T,
    )  # fmt: skip


@cache
def oracle_gaps(mean: float) -> dict[str, list[OracleGap]]:
    plant = cf.random_plant(outputs=2, rng=0)
    out: dict[str, list[OracleGap]] = {name: [] for name in plant.names}
    for run in range(60):
        inputs = excitation.white(plant, 1000, rng=2000 + run, mean=mean)
        for name, side in sides(plant, plant.simulate(1000, rng=2000 + run, inputs=inputs)).items():
            out[name].append(oracle_gap(side))
    return out


def test_theorem_8_3_zero_mean_data_make_both_sides_zero():
    for gaps in oracle_gaps(0.0).values():
        for field in ("left", "right", "right_of_proof"):
            draws = np.array([getattr(gap, field) for gap in gaps])
            assert within_standard_errors(draws, np.zeros(draws.shape[1])).all()


def test_theorem_8_3_the_circular_step_the_residual_still_holds_the_other_units_inputs():
    """The proof needs E[r_a u_nᵀ] = 0; with white inputs it is C_mm B_mn Σ_u."""
    plant = cf.random_plant(outputs=2, rng=0)
    for name, other in (plant.names, plant.names[::-1]):
        draws = np.array([gap.cross for gap in oracle_gaps(0.0)[name]])
        effect = plant.block("C", name) @ plant.block("B", name, other)  # Σ_u = I
        assert within_standard_errors(draws, effect).all()
        spread = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
        assert np.abs(draws.mean(axis=0) / spread).max() > 40


def test_theorem_8_3_statement_and_proof_have_another_e_and_the_two_meet_as_xi_grows():
    """The statement's e_t is C_mm r_s, the proof's lacks C_mm D in it, and its affine relation holds for the latter."""
    for side in case(2, 0, mean=1.0)[2].values():
        apart = []
        for xi in (1.0, 100.0, 1e4):
            gap = oracle_gap(side, xi)
            apart.append(norm(gap.right - gap.right_of_proof) / norm(gap.right_of_proof))
            whole = gap.right_of_proof + gap.dropped
            np.testing.assert_allclose(gap.left, whole, atol=ITERATES * np.abs(gap.left).max())
        assert apart[0] > 0.05  # they are not the same number
        assert apart[1] / apart[2] == pytest.approx(100, rel=0.3)  # and D takes the difference with it


def test_theorem_8_3_with_non_zero_means_the_sides_differ_by_what_the_proof_drops():
    for gaps in oracle_gaps(1.0).values():
        for gap in gaps:
            whole = gap.right_of_proof + gap.dropped
            np.testing.assert_allclose(gap.left, whole, atol=ITERATES * np.abs(gap.left).max())
        draws = np.array([gap.left - gap.right for gap in gaps])
        spread = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
        assert np.abs(draws.mean(axis=0) / spread).min() > 15
        apart = norm(draws.mean(axis=0)) / norm(np.mean([gap.left for gap in gaps], axis=0))
        assert 0.3 < apart < 1.5


# ---- what the method does and does not recover


@pytest.mark.parametrize("outputs", [2, 8])
@pytest.mark.parametrize("xi", [0.0, 10.0, 100.0, INFINITE])
def test_white_inputs_B_hat_is_zero_within_its_noise_whatever_the_true_B(outputs, xi):
    for seed in range(4):
        plant, _, by_unit = case(outputs, seed)
        found = fitted(outputs, seed, xi)
        assert 0.985 < error(found.plant, plant, "B") < 1.02
        for name, other in (plant.names, plant.names[::-1]):
            side = by_unit[name]
            spread = np.sqrt(np.mean(stationary(side, xi).r_s(side) ** 2, axis=0) / side.steps)  # Σ_u = I
            estimate = np.abs(found.plant.block("B", name, other))
            assert (estimate <= 1.5 * STANDARD_ERRORS * spread[:, None]).all()


@pytest.mark.parametrize("xi", [0.0, 10.0, INFINITE])
def test_white_inputs_whatever_theta_and_phi_are_the_servers_own_stationarity_ends_B_hat(xi):
    """The finding needs nothing of the clients: no weight, step or point of theirs can change it."""
    rng = np.random.default_rng(0)
    plant, _, by_unit = case(8, 1)
    for name, other in (plant.names, plant.names[::-1]):
        side = by_unit[name]
        for size in (0.1, 1.0, 10.0):
            theta, phi = size * rng.standard_normal((2, 8)), size * rng.standard_normal(2)
            z = side.before @ (side.A @ theta).T
            # the server's best (Â, B̂) for these: |z + phi - x - B̂u|² + xi |z - x|²
            X = np.hstack([side.others_refined, side.others_u])
            X = np.vstack([X, np.sqrt(xi) * np.hstack([side.others_refined, 0 * side.others_u])])
            target = np.vstack([z + phi, np.sqrt(xi) * z])
            B = np.linalg.lstsq(X, target, rcond=None)[0].T[:, side.others_refined.shape[1] :]
            spread = np.sqrt(np.mean((z + phi) ** 2, axis=0) / side.steps)  # Σ_u = I
            assert (np.abs(B) <= 1.5 * STANDARD_ERRORS * spread[:, None]).all()
        assert norm(plant.block("B", name, other)) > 1


def test_white_inputs_more_data_make_B_hat_smaller():
    plant = cf.random_plant(outputs=8, rng=1)
    sizes = []
    for steps in (1000, 64000):
        runs = [cf.fit(plant.simulate(steps, rng=k), plant.locals(), "penalty", xi=1.0).plant for k in range(4)]
        cross = [run.block("B", *pair) for run in runs for pair in (plant.names, plant.names[::-1])]
        sizes.append(np.sqrt(np.mean(np.square(cross))))
    assert 5 < sizes[0] / sizes[1] < 13  # sqrt(64) = 8


@pytest.mark.parametrize("noise", [1.0, 0.01])
@pytest.mark.parametrize("mean", [1.0, 5.0])
def test_one_input_with_a_mean_B_hat_comes_to_a_closed_form_and_to_B_itself_if_there_is_little_noise(mean, noise):
    """A_mn = 0, xi → ∞: phi is what the filter leaves of the mean effect, and B̂ its regression on the input."""
    plant = cf.random_plant(inputs=1, measurement_noise=noise, rng=1)
    A = plant.A.copy()
    for name, other in (plant.names, plant.names[::-1]):
        A[plant.state_slice(name), plant.state_slice(other)] = 0.0
    plant = plant.replace(A=A)
    inputs = excitation.white(plant, 40_000, rng=3, mean=mean)
    found = cf.fit(plant.simulate(40_000, rng=3, inputs=inputs), plant.locals(), "penalty", xi=INFINITE)
    for name, other in (plant.names, plant.names[::-1]):
        model, B = plant.local(name), plant.block("B", name, other)
        eye, gram = np.eye(2), model.C.T @ model.C
        seen = np.linalg.solve(eye - model.A @ (eye - settled_gain(model) @ model.C), B)  # per unit of the mean
        phi = np.linalg.solve(gram + eye / (1 + mean**2), gram @ seen)
        limit = phi * mean**2 / (1 + mean**2)
        estimate = found.plant.block("B", name, other)
        assert norm(estimate - limit) < 0.03 * norm(B)
        if noise < 1 and mean > 1:
            assert norm(estimate - B) < 0.12 * norm(B)


def test_two_inputs_with_a_mean_give_B_hat_of_rank_one():
    plant, _, _ = case(8, 1, mean=1.0)
    found = fitted(8, 1, INFINITE, mean=1.0)
    for name, other in (plant.names, plant.names[::-1]):
        values = np.linalg.svd(found.plant.block("B", name, other), compute_uv=False)
        assert values[1] < 1e-3 * values[0]
        assert np.linalg.matrix_rank(plant.block("B", name, other)) == 2


@pytest.mark.parametrize("pole", [0.0, 0.9])
def test_large_xi_ends_A_hat_and_theta_and_the_augmented_client(pole):
    plant, _, by_unit = case(8, 1, pole=pole)
    weights = (0.0, 1.0, 10.0, 100.0, 1e4, 1e5, INFINITE)
    found = [fitted(8, 1, xi, pole=pole) for xi in weights]
    assert error(found[-1].plant, plant, "A") == pytest.approx(1.0, abs=1e-4)
    assert theta_norm(found[-2]) / theta_norm(found[-1]) == pytest.approx(10, rel=0.02)
    assert found[-1].history.disentanglement[-1] < 1e-9
    assert found[0].history.disentanglement[-1] > 0.1
    assert all(error(f.plant, plant, "A") > 0.5 for f in found)
    for name in plant.names:
        ratio = [f.history.client_loss[name][-1] / f.history.proprietary_loss[name][-1] for f in found]
        assert max(ratio[:3]) < 0.99
        assert all(a <= b + ITERATIVE for a, b in pairwise(ratio))
        limit = _loss_ratio_of_phi_alone(by_unit[name])
        assert ratio[-1] == pytest.approx(limit, abs=1e-4)
        assert 0.995 < limit <= 1.0  # all that is left is the inputs' sample mean, largest if they vary slowly


def _loss_ratio_of_phi_alone(side: Side) -> float:
    """L_a over the proprietary loss in the limit xi → ∞: theta = Â = 0, and B̂ regresses the constant phi on u_n."""
    r, u = side.now - side.base @ side.C.T, side.others_u
    mu = u.mean(axis=0)
    unexplained = 1 - mu @ np.linalg.solve(u.T @ u / side.steps, mu)
    phi = np.linalg.solve(side.C.T @ side.C + unexplained * np.eye(len(side.A)), side.C.T @ r.mean(axis=0))
    return float(np.sum((r - side.C @ phi) ** 2) / np.sum(r**2))


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_the_augmented_client_is_never_worse_than_the_proprietary_one_on_its_own_data(mean):
    """theta = phi = Â = B̂ = 0 gives L_s = 0 and the proprietary loss, so a minimum of the sum is below it."""
    for outputs, seed in ((2, 0), (8, 1)):
        for side in case(outputs, seed, mean)[2].values():
            proprietary = np.sum((side.now - side.predicted @ side.C.T) ** 2) / side.steps
            for xi in (0.0, 10.0, INFINITE):
                point = stationary(side, xi)
                served = np.sum(point.r_s(side) ** 2) + xi * np.sum(point.D(side) ** 2)
                assert (np.sum(point.r_a(side) ** 2) + served) / side.steps <= proprietary * (1 + EXACT)


def test_coloured_inputs_move_B_hat_part_of_the_way_towards_B_on_most_plants():
    """AR(0.9), xi = 0.1, eight plants: most errors fall to about 0.8, none comes near zero, one rises above 1."""
    white = [error(fitted(8, seed, 0.1).plant, case(8, seed)[0], "B") for seed in range(8)]
    coloured = [error(fitted(8, seed, 0.1, pole=0.9).plant, case(8, seed, pole=0.9)[0], "B") for seed in range(8)]
    assert min(white) > 0.985
    assert max(white) < 1.02
    assert 0.65 < min(coloured) < 0.8
    assert max(coloured) > 1.1
    assert 0.75 < np.median(coloured) < 0.9
    ended = [error(fitted(8, seed, INFINITE, pole=0.9).plant, case(8, seed, pole=0.9)[0], "B") for seed in range(8)]
    assert min(ended) > 0.975  # and as xi → ∞ it is over for every input


@pytest.mark.parametrize("pole", [0.0, 0.9])
def test_fedgc_has_no_B_and_the_same_limit(pole):
    plant = case(8, 1, pole=pole)[0]
    for xi in (0.0, 10.0, INFINITE):
        found = fitted(8, 1, xi, pole=pole, method="fedgc")
        assert not found.plant.B.any()
        assert all(not part.phi.any() for part in found.parts.values())
        assert error(found.plant, plant, "A") > 0.5
    assert error(found.plant, plant, "A") == pytest.approx(1.0, abs=1e-3)
    assert found.history.disentanglement[-1] < 1e-8
