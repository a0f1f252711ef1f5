"""How far one measurement reaches in what a unit sends: the constants of the published privacy analysis.

The paper assumes them (Assumptions A.3 and A.4, Lemma A.6); here they come from the unit's own Kalman estimator. With
K_t its gain and F_t = (I - K_t C) A, a change of y[s] moves (paper's letters; j rows later)

    ĥ_c[s+j]     by  X_j = F .. F K                 j >= 0
    ĥ_a[s+j]     by  X_j + theta (j = 0 only)
    h_a[s+1+j]   by  A (X_j + theta (j = 0 only))

so all of it is known but for theta, which moves the first lag only and changes with the round. Gains do not depend on
the measurements. They change with the row until the filter has settled, and the largest response counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError
from counterflow.exchange.estimators import Estimator, KalmanEstimator
from counterflow.filtering import compress, kalman_filter
from counterflow.plant import LocalModel, Unit
from counterflow.recurrence import linear_recurrence

LAGS = 1000  # looked at one by one; what comes later is bounded by the decay
STARTS = 64  # rows before the filter has settled of which all are followed; of more, about as many are
FURTHER = 3.0  # others are taken to move a unit up to so many times as far as its own inputs do
INSIDE = 0.999  # share of rows that a foreseen bound would hold if that were so
NEGLIGIBLE = 1e-3  # share of a sum over lags that its bound on the rest may add


@dataclass(frozen=True)
class Contraction:
    """The constants of one unit in one round, and what they make of signals of length R at most.

    ``contraction`` L and ``decay`` β: a change of y[s] moves h_a[t] by at most L β^(t-s) times its length. ``message``
    κ: the lengths by which it moves ĥ_c, ĥ_a and h_a of one row of the message, added up. ``trajectory``: the length
    by which it moves all rows together, which the published analysis leaves out (a lower bound by less than 1 %).
    ``reach`` (3,): largest length of ĥ_c, ĥ_a and h_a per unit of R, without phi; ``offset``: length of phi.
    """

    contraction: float
    decay: float
    message: float
    trajectory: float
    reach: FloatArray
    offset: float
    has_inputs: bool

    def row_bound(self, R: float) -> float:
        """The length that no row of the message exceeds if no signal is longer than R, and at least its sensitivity."""
        refined, augmented, predicted = self.reach * R
        parts = (refined, augmented, predicted + self.offset, R if self.has_inputs else 0.0)
        return max(math.hypot(*parts), self.message * R)


@dataclass(frozen=True, eq=False)
class Responses:
    """Answers of a unit's estimator to one measurement: all that does not depend on theta, computed once.

    ``gains`` (n, P, D): K of the rows that are followed; the rest is over lags j >= 1: ``message`` the largest
    2|X_j| + |A X_j|, ``contraction`` the largest |A X_j| / β^(j+1), ``energy`` (n, D, D) the sums of
    2 X_jᵀX_j + (A X_j)ᵀA X_j, ``later`` (3,) what they add to the reach, with what inputs add at all lags.
    """

    A: FloatArray
    gains: FloatArray
    decay: float
    message: float
    contraction: float
    energy: FloatArray
    later: FloatArray
    has_inputs: bool

    def constants(self, theta: FloatArray, phi: FloatArray) -> Contraction:
        """The constants at the parameters of a round."""
        moved = self.gains + theta
        at_once = (self.gains, moved, self.A @ moved)  # what y[s] does to ĥ_c[s], ĥ_a[s] and h_a[s+1]
        lengths = np.array([_lengths(each) for each in at_once])
        energy = self.energy + sum(_squares(each) for each in at_once)
        return Contraction(
            contraction=max(float(lengths[2].max()) / self.decay, self.contraction),
            decay=self.decay,
            message=max(float(lengths.sum(axis=0).max()), self.message),
            trajectory=float(np.sqrt(_lengths(energy).max())),
            reach=lengths.max(axis=1) + self.later,
            offset=float(np.linalg.norm(phi)),
            has_inputs=self.has_inputs,
        )


def estimator_responses(unit: str, estimator: Estimator, model: LocalModel, rows: int) -> Responses:
    """Follow one measurement through a unit's Kalman estimator, in a record of ``rows`` rows.

    A start among the rows in which the filter has not settled yet is followed too: all of them up to ``STARTS``, else
    that many spread over them, closest together where gains move fastest.
    """
    if type(estimator) is not KalmanEstimator:  # a subclass may estimate otherwise
        raise OptionError(
            f"privacy: the estimator of unit {unit!r} is a plug-in ({type(estimator).__name__}), and how far a "
            "measurement reaches in its states is not known; leave the estimator out, or use method='sufficient'"
        )
    own = estimator.model
    gains, settles = _gains(own, rows)
    starts = np.arange(settles + 1)
    if settles >= STARTS:
        spread = np.geomspace(1, settles + 1, STARTS).astype(np.intp) - 1
        starts = np.unique(np.concatenate([np.arange(STARTS // 2), spread, [settles]]))
    eye = np.eye(own.states)
    carry = (eye - gains @ own.C) @ own.A  # (settles + 1, P, P)
    decay, growth = _decay(unit, carry[-1])
    # columns beyond those that the gain distinguishes would only make singular values slower to compute
    reach = compress(own.C, own.R).reach
    turn = np.linalg.qr(reach.T)[0] if reach.size else np.zeros((own.n_outputs, 0))
    width, norm_A = turn.shape[1], float(np.linalg.norm(model.A, 2))
    norm_B = float(np.linalg.norm(model.B, 2)) if model.n_inputs else 0.0
    X = np.concatenate([gains[starts] @ turn, (eye - gains[starts] @ own.C) @ own.B], axis=2)
    lag, message, contraction, energy = 0, 0.0, 0.0, np.zeros((len(starts), width, width))
    largest = _both_lengths(model.A, X[..., width:]).max(axis=1)
    sums = np.array([0.0, 0.0, largest[0], norm_B + largest[1]])  # of |X| and |A X|, of a measurement and of an input
    for lag in range(1, min(rows, LAGS)):
        X = carry[np.minimum(starts + lag, settles)] @ X
        measured, driven = X[..., :width], X[..., width:]
        lengths = np.vstack([_both_lengths(model.A, measured), _both_lengths(model.A, driven)])
        largest = lengths.max(axis=1)
        message = max(message, float((2 * lengths[0] + lengths[1]).max()))
        contraction = max(contraction, float(largest[1]) / decay ** (lag + 1))
        energy += 2 * _squares(measured) + _squares(model.A @ measured)
        sums += largest
        # whatever comes, in whatever row: |X_(j+i)| <= growth β^i |X_j|
        bounds = (2 + norm_A) * decay * growth * largest[0], norm_A * growth * largest[0] / decay ** (lag + 1)
        rest = growth * largest[[0, 2]] * decay / (1 - decay)
        known = bounds[0] <= message and bounds[1] <= contraction and (rest <= NEGLIGIBLE * sums[[0, 2]]).all()
        if known and starts.max() + lag >= settles:
            break
    if lag + 1 < rows:  # else there are no later rows
        message, contraction = max(message, float(bounds[0])), max(contraction, float(bounds[1]))
        sums += np.outer(rest, [1.0, norm_A]).ravel()
    later = sums[:2] + sums[2:]
    return Responses(
        model.A, gains[starts], decay, message, contraction, turn @ energy @ turn.T, later[[0, 0, 1]],
        model.n_inputs > 0,
    )  # fmt: skip


def signal_bound(
    unit: Unit, model: LocalModel, u: FloatArray, given: float | None = None, inputs_sent: bool = True
) -> float:
    """R_max of Assumption A.3: the length to which measurements and inputs are cut, found without a measurement.

    ``given``, or else the larger of the longest input row (if inputs are sent at all) and R_y: from the limits of the
    output channels if all have them, or else what the unit's own model and inputs foresee.
    """
    if given is not None:
        return given
    longest = float(np.sqrt(np.square(u).sum(axis=1)).max(initial=0.0)) if inputs_sent else 0.0
    limits = [channel.limits for channel in unit.outputs]
    ends = np.array([math.inf if pair is None else max(abs(pair[0]), abs(pair[1])) for pair in limits])
    reach = float(np.linalg.norm(ends)) if np.isfinite(ends).all() else _foreseen_length(unit.name, model, u)
    return max(longest, reach)


def _foreseen_length(unit: str, model: LocalModel, u: FloatArray) -> float:
    """How long y[t] gets: the furthest response of the unit's model to its inputs, plus what noise and others add."""
    from scipy.linalg import solve_discrete_lyapunov
    from scipy.stats import chi2

    A, B, C = model.A, model.B, model.C
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    if radius > 1 - 1e-9:
        raise OptionError(
            f"privacy: unit {unit!r} has a model that does not settle (spectral radius {radius:.6g}), so how far its "
            "measurements reach cannot be foreseen; give clip, the largest length of a row of measurements, or limits "
            "of all its output channels"
        )
    rest = np.linalg.solve(np.eye(len(A)) - A, B @ u.mean(axis=0))
    moved = np.vstack([rest, linear_recurrence(A, u[:-1] @ B.T, rest)])
    away = moved - rest
    spread = solve_discrete_lyapunov(A, model.Q) + FURTHER**2 * away.T @ away / len(away)
    variances = np.linalg.eigvalsh(C @ spread @ C.T + model.R)
    # |y - centre|² is a sum of such variances times χ²; one χ² with the same mean and variance stands for it
    scale = float(np.square(variances).sum() / variances.sum())
    beyond = math.sqrt(scale * float(chi2.ppf(INSIDE, variances.sum() / scale)))
    centre = moved @ C.T
    return float(np.sqrt(np.square(centre).sum(axis=1)).max()) + beyond


def settled_gain(model: LocalModel, rows: int = 1000) -> FloatArray:
    """K (P, D) of the unit's Kalman filter once it has settled, which it must within so many rows."""
    return np.asarray(_gains(model, rows)[0][-1])


def _gains(model: LocalModel, rows: int) -> tuple[FloatArray, int]:
    """K of the rows up to the first one with the settled gain (n, P, D), and that row."""
    nothing = np.zeros((rows, model.n_outputs)), np.zeros((rows, model.n_inputs))
    runs = kalman_filter(*nothing, model.A, model.B, model.C, model.Q, model.R).runs
    squeezed = compress(model.C, model.R)
    gains = np.stack([run.filtered @ squeezed.observation.T @ squeezed.reach for run in runs])
    return gains, len(runs) - 1


def _decay(unit: str, F: FloatArray) -> tuple[float, float]:
    """β half-way between the spectral radius of F and 1, and the least c with |F^i| <= c β^i for all i."""
    radius = float(np.abs(np.linalg.eigvals(F)).max())
    if radius > 1 - 1e-6:
        raise OptionError(
            f"privacy: the estimator of unit {unit!r} does not forget (its error decays by {radius:.8g} a row), so one "
            "measurement reaches everything; give its model process noise, or use method='sufficient'"
        )
    decay = (1 + radius) / 2
    power, growth, length = np.eye(len(F)), 1.0, 2.0
    # once |F^i / β^i| <= 1, later powers are products of what has been seen
    while length > 1:
        power = power @ F / decay
        length = float(np.linalg.norm(power, 2))
        growth = max(growth, length)
    return decay, growth


def _lengths(matrices: FloatArray) -> FloatArray:
    """Spectral norms of (n, P, k) matrices; zero if they have no columns."""
    if not matrices.shape[-1]:
        return np.zeros(len(matrices))
    return np.asarray(np.linalg.norm(matrices, 2, axis=(-2, -1)))


def _both_lengths(A: FloatArray, X: FloatArray) -> FloatArray:
    """Of X and of A X (2, n)."""
    return np.array([_lengths(X), _lengths(A @ X)])


def _squares(matrices: FloatArray) -> FloatArray:
    """MᵀM of each."""
    return np.asarray(matrices.transpose(0, 2, 1) @ matrices)
