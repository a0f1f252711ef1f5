"""Algorithm 1 of the paper, transcribed line by line, one time step after the other. Slow on purpose.

It is the oracle for ``solver="gradient"``. Departures from the listing, all in docs/theory/paper.md: the loop runs for
a given number of rounds; dL/dĥ_a is sent too (section 5.2) unless ``refined_gradient`` is False; the augmented
Lagrangian with its IMEX step is written out, which the paper only describes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tolerances import ITERATES

import counterflow as cf
from counterflow.randomness import stream


@dataclass
class Unit:
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    y: np.ndarray  # rows 0..T
    u: np.ndarray
    refined: np.ndarray  # ĥ_c, rows 0..T
    theta: np.ndarray
    phi: np.ndarray


@dataclass
class Steps:
    eta_1: float
    eta_2: float
    gamma_1: float
    gamma_2: float
    alpha_A: float
    alpha_B: float


def plain(what, k, m, rows):
    """Nothing is added to what unit m and the server tell one another in round k."""
    return rows


def run(units, A_hat, B_hat, xi, steps, rounds, *, rho=None, refined_gradient=True, refined_target=False, noise=plain):
    """Train in place; A_hat[m][n], B_hat[m][n] for n != m. ``rho`` given: augmented Lagrangian, else penalty method.

    ``refined_target``: the server explains ĥ_a[t], which is no part of the listing. ``noise``: of the appendix, on rows
    [ĥ_c[t-1]; ĥ_a[t-1]; h_a[t]; u[t-1]] of a message and on rows of the gradients that answer it.

    Returns the history: one dict a round.
    """
    M, T = len(units), units[0].y.shape[0] - 1
    lagrangian = rho is not None
    weight = rho if lagrangian else 2 * xi
    lam = [[np.zeros(m.A.shape[0]) for _ in range(T + 1)] for m in units]
    history = []
    for k in range(rounds):
        # each client, lines 8-14
        h_a, refined_a, own_loss, seen = [], [], [], []
        for number, m in enumerate(units):
            refined = [m.refined[t] + m.theta @ m.y[t] for t in range(T + 1)]
            predicted, loss = [None], 0.0
            for t in range(1, T + 1):
                predicted.append(m.A @ refined[t - 1] + m.B @ m.u[t - 1] + m.phi)
                residual = m.y[t] - m.C @ predicted[t]
                loss += residual @ residual / T
            h_a.append(predicted)
            refined_a.append(refined)
            own_loss.append(loss)
            sent = [[*m.refined[t - 1], *refined[t - 1], *predicted[t], *m.u[t - 1]] for t in range(1, T + 1)]
            told = noise("published message", k, number, np.array(sent))
            seen.append(np.split(told, np.cumsum([len(m.A)] * 3), axis=1))  # row t - 1 of each
        # the server, lines 21-33
        loss = disentanglement = 0.0
        d_A = [[np.zeros_like(A_hat[m][n]) if n != m else None for n in range(M)] for m in range(M)]
        d_B = [[np.zeros_like(B_hat[m][n]) if n != m else None for n in range(M)] for m in range(M)]
        d_h = [[None] * (T + 1) for _ in units]
        d_refined = [[None] * (T + 1) for _ in units]
        for t in range(1, T + 1):
            for m, unit in enumerate(units):
                refined, augmented, predicted, u = (rows[t - 1] for rows in seen[m])
                h_s = unit.A @ refined + unit.B @ u
                crossed = np.zeros(unit.A.shape[0])
                for n in range(M):
                    if n != m:
                        crossed = crossed + A_hat[m][n] @ seen[n][0][t - 1]
                        h_s = h_s + A_hat[m][n] @ seen[n][0][t - 1] + B_hat[m][n] @ seen[n][3][t - 1]
                r = (refined_a[m][t] if refined_target else predicted) - h_s
                D = unit.A @ (augmented - refined) - crossed
                if lagrangian:
                    if k > 0:
                        lam[m][t] = lam[m][t] + rho * D
                    loss += (r @ r + lam[m][t] @ D + rho / 2 * D @ D) / T
                    dual = lam[m][t] + rho * D
                else:
                    loss += (r @ r + xi * D @ D) / T
                    dual = 2 * xi * D
                disentanglement += D @ D / T
                d_h[m][t] = 2 / T * r
                d_refined[m][t - 1] = unit.A.T @ dual / T
                for n in range(M):
                    if n != m:
                        d_A[m][n] -= np.outer(2 * r + dual, seen[n][0][t - 1]) / T
                        d_B[m][n] -= 2 / T * np.outer(r, seen[n][3][t - 1])
        for m, unit in enumerate(units):
            both = [d_h[m][1:], d_refined[m][:-1]][: 1 + refined_gradient]
            told = noise("published gradient", k, m, np.hstack(both))
            d_h[m][1:] = told[:, : len(unit.A)]
            if refined_gradient:
                d_refined[m][:-1] = told[:, len(unit.A) :]
        history.append({"server_loss": loss, "disentanglement": disentanglement, "client_loss": own_loss})
        for m in range(M):
            others = [n for n in range(M) if n != m]
            change = {n: -steps.alpha_A * d_A[m][n] for n in others}
            if lagrangian and others:  # implicit in the penalty: X + 2 alpha rho X G = change
                wide = np.hstack([change[n] for n in others])
                stacked = [np.hstack([units[n].refined[t - 1] for n in others]) for t in range(1, T + 1)]
                gram = sum(np.outer(h, h) for h in stacked) / T
                solved = np.linalg.solve(np.eye(len(gram)) + 2 * steps.alpha_A * rho * gram, wide.T).T
                at = 0
                for n in others:
                    size = change[n].shape[1]
                    change[n] = solved[:, at : at + size]
                    at += size
            for n in others:
                A_hat[m][n] = A_hat[m][n] + change[n]
                B_hat[m][n] = B_hat[m][n] - steps.alpha_B * d_B[m][n]
        # each client, lines 34-40
        for m, unit in enumerate(units):
            own_theta, own_phi = np.zeros_like(unit.theta), np.zeros_like(unit.phi)
            server_theta, server_phi = np.zeros_like(unit.theta), np.zeros_like(unit.phi)
            for t in range(1, T + 1):
                residual = unit.y[t] - unit.C @ h_a[m][t]
                own_theta -= 2 / T * np.outer((unit.C @ unit.A).T @ residual, unit.y[t - 1])
                own_phi -= 2 / T * unit.C.T @ residual
                if refined_target:
                    server_theta += np.outer(d_h[m][t], unit.y[t]) + np.outer(d_refined[m][t - 1], unit.y[t - 1])
                    continue
                state_gradient = unit.A.T @ d_h[m][t]
                if refined_gradient:
                    state_gradient = state_gradient + d_refined[m][t - 1]
                server_theta += np.outer(state_gradient, unit.y[t - 1])
                server_phi += d_h[m][t]
            change = -steps.eta_1 * own_theta - steps.eta_2 * server_theta
            if lagrangian:  # X + 2 eta rho AᵀA X G = change, as one linear system
                gram = sum(np.outer(unit.y[t - 1], unit.y[t - 1]) for t in range(1, T + 1)) / T
                system = np.eye(change.size) + 2 * steps.eta_2 * weight * np.kron(unit.A.T @ unit.A, gram)
                change = np.linalg.solve(system, change.ravel()).reshape(change.shape)
            unit.theta = unit.theta + change
            unit.phi = unit.phi - steps.gamma_1 * own_phi - steps.gamma_2 * server_phi
    return history


def start(plant: cf.Plant, data, seed: int, scale: float):
    """Units, Â and B̂ with the very initial values that ``fit`` draws; ``data``: (y, u) of each unit."""
    units, A_hat, B_hat = [], {}, {}
    for m, name in enumerate(plant.names):
        model, (y, u) = plant.local(name), data[name]
        refined = cf.KalmanEstimator(model).estimate(y, u).refined
        draw = stream(seed, "augmented", name)
        theta = scale * draw.standard_normal((model.states, model.n_outputs))
        units.append(Unit(model.A, model.B, model.C, y, u, refined, theta, scale * draw.standard_normal(model.states)))
        A_hat[m], B_hat[m] = {}, {}
        for n, cause in enumerate(plant.names):
            if n != m:
                draw = stream(seed, "couplings", name, cause)
                A_hat[m][n] = scale * draw.standard_normal(plant.block("A", name, cause).shape)
                B_hat[m][n] = scale * draw.standard_normal(plant.block("B", name, cause).shape)
    return units, A_hat, B_hat


def arrives(found: cf.Fit, units, A_hat, B_hat) -> None:
    """Whether a fit has come to the same parameters."""
    for m, name in enumerate(found.names):
        close(found.parts[name].theta, units[m].theta)
        close(found.parts[name].phi, units[m].phi)
        for n, cause in enumerate(found.names):
            if n != m:
                close(found.plant.block("A", name, cause), A_hat[m][n])
                close(found.plant.block("B", name, cause), B_hat[m][n])


def close(found, wanted) -> None:
    wanted = np.asarray(wanted)
    if wanted.size:
        assert np.abs(found - wanted).max() <= ITERATES * np.abs(wanted).max()


# ---- what it is compared on

STEPS = dict(eta_1=0.004, eta_2=0.003, gamma_1=0.02, gamma_2=0.03, alpha_A=0.01, alpha_B=0.02)


def plant_of_three() -> cf.Plant:
    """Units that differ in every size, one of them without inputs."""
    units = [cf.Unit("boiler", 2, 2, 3), cf.Unit("turbine", 3, 1, 4), cf.Unit("tank", 1, 0, 2)]
    rng = np.random.default_rng(5)
    A = 0.5 * np.eye(6) + 0.12 * rng.standard_normal((6, 6))
    C = np.zeros((9, 6))
    for rows, columns in ((slice(0, 3), slice(0, 2)), (slice(3, 7), slice(2, 5)), (slice(7, 9), slice(5, 6))):
        C[rows, columns] = rng.standard_normal(C[rows, columns].shape)
    return cf.Plant(units=units, A=A, B=rng.standard_normal((6, 3)), C=C, Q=0.1 * np.eye(6), R=np.eye(9))
