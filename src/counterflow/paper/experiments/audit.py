"""A privacy audit: how well two recordings that differ in one measurement can be told apart by what a unit sends.

What comes out is a lower limit of the ε that the training really has. It can refute a guarantee, not prove one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.fits.training import fit
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.plant import Plant, Recording
from counterflow.privacy import Privacy
from counterflow.privacy.accounting import gaussian_epsilon
from counterflow.privacy.clipping import clipped_rows
from counterflow.protocol import Message, PerturbedStates, StateGradients


def audited(plant: Plant, recording: Recording, privacy: Privacy, rounds: int, name: str) -> float:
    """The ε that the messages of one unit really have for one pair of neighbours, given all that the server answered.

    A published private training is run once. The unit is then followed again through the same answers of the server,
    with one measurement in the middle at the end of its range, and with the opposite in its place: as far apart as
    clipping allows, in the direction that moves the estimated states most. Messages of round k differ by Δ_k, and
    carry noise σ_k: together they are one Gaussian release with μ² = Σ |Δ_k|² / σ_k². Theta is trained on the unit's
    own measurements, and what that carries into later rounds is in Δ_k. Numbers that are sent without noise are not.
    """
    sent: list[PerturbedStates] = []
    answers: list[StateGradients] = []

    def watch(message: Message, _: bool) -> None:
        if message.unit == name and isinstance(message, PerturbedStates):
            sent.append(message)
        elif message.unit == name and isinstance(message, StateGradients):
            answers.append(message)

    options: dict[str, Any] = {"method": "penalty", "solver": "gradient", "rounds": rounds}
    found = fit(recording, plant.locals(), privacy=privacy, watch=watch, **options)
    part, R = found.parts[name], sent[0].bound
    own = recording[name]
    at, direction = own.y.shape[0] // 2, _direction(plant, name)
    releases = []
    for sign in (1.0, -1.0):
        y = own.y.copy()
        y[at] = sign * R * direction
        data = ClientData.from_part(part, clipped_rows(y, R)[0], clipped_rows(own.u, R)[0])
        releases.append(followed(AugmentedModel(part.working_model, data), answers))
    mu = sum(
        float(((one - other) ** 2).sum()) / message.noise**2
        for one, other, message in zip(*releases, sent, strict=True)
    )
    return float(gaussian_epsilon(float(np.sqrt(mu)), privacy.delta))


def followed(model: AugmentedModel, answers: list[StateGradients]) -> list[FloatArray]:
    """What a unit would send in every round, without noise, if the server answered so: [ĥ_c; ĥ_a; h_a], all rows."""
    theta, phi = np.zeros((model.model.states, model.model.n_outputs)), np.zeros(model.model.states)
    rows = []
    for answer in answers:
        states = model.states(theta, phi)
        rows.append(np.hstack([model.data.refined, model.data.refined + model.data.previous @ theta.T, states]))
        _, own_theta, own_phi = model.loss_and_gradients(states)
        their_theta, their_phi = model.chain_rule(answer.predicted, answer.refined if answer.refined.size else None)
        eta, gamma = model.step_sizes(answer.penalty)
        theta, phi = theta - eta * (own_theta + their_theta), phi - gamma * (own_phi + their_phi)
    return rows


def _direction(plant: Plant, name: str) -> FloatArray:
    """Of a measurement: the one that the unit's settled Kalman gain answers most to."""
    model = plant.local(name)
    columns = []
    for k in range(model.n_outputs):
        y = np.zeros((400, model.n_outputs))
        y[300, k] = 1.0
        columns.append(KalmanEstimator(model).estimate(y, np.zeros((400, model.n_inputs))).refined[300])
    return np.asarray(np.linalg.svd(np.array(columns).T)[2][0])
