"""A plant: units coupled by one linear system with inputs, process noise and measurement noise.

Units own blocks of h, u and y. C, Q and R are block-diagonal by unit; the off-diagonal blocks of A and B are the
couplings between units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterflow.arrays import FloatArray, covariance, frozen, matrix, numeric, real_number, slices, whole_number
from counterflow.errors import CounterflowError, ModelError, OptionError, UnstableError
from counterflow.plant import simulation, transfer
from counterflow.plant.units import Unit, check_units, unit_named, unknown_name

if TYPE_CHECKING:
    from counterflow.plant.recording import Recording

ComplexArray = NDArray[np.complex128]

_AXES = {  # what rows and columns of each matrix are
    "A": ("state", "state"), "B": ("state", "input"), "C": ("output", "state"), "Q": ("state", "state"),
    "R": ("output", "output"),
}  # fmt: skip
LETTERS = tuple(_AXES)


def _same_values(one: object, other: object) -> bool:
    return all(np.array_equal(getattr(one, letter), getattr(other, letter)) for letter in LETTERS)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LocalModel:
    """What a unit knows of itself: its own diagonal blocks, without any coupling.

    Parameters
    ----------
    A : (P, P), B : (P, U), C : (D, P), Q : (P, P), R : (D, D) arrays
        B may have no columns. Q must be symmetric positive semidefinite, R symmetric positive definite.

    Examples
    --------
    >>> model = LocalModel(A=[[0.9]], B=[[1.0]], C=[[1.0], [2.0]], Q=[[0.1]], R=[[1.0, 0.0], [0.0, 1.0]])
    >>> model
    LocalModel(states=1, inputs=1, outputs=2)
    """

    A: FloatArray
    B: FloatArray
    C: FloatArray
    Q: FloatArray
    R: FloatArray

    def __post_init__(self) -> None:
        given = {letter: numeric(getattr(self, letter), f"local model: {letter}") for letter in LETTERS}
        for letter, array in given.items():
            if array.ndim != 2:
                raise ModelError(f"local model: {letter} must be 2-D, got shape {array.shape}: pass a matrix.")
        sizes = {"state": given["A"].shape[0], "input": given["B"].shape[1], "output": given["C"].shape[0]}
        P, U, D = sizes.values()
        if P == 0 or D == 0:
            raise ModelError(f"local model: A has {P} rows and C has {D}: it needs at least one state and one output.")
        for letter, (row, column) in _AXES.items():
            shape, what = (sizes[row], sizes[column]), f"local model: {letter}"
            object.__setattr__(self, letter, matrix(given[letter], what, shape, f"P = {P}, U = {U}, D = {D}"))
        for letter in "QR":
            symmetric = covariance(getattr(self, letter), f"{letter} of the local model", definite=letter == "R")
            object.__setattr__(self, letter, frozen(symmetric))

    @property
    def arrays(self) -> tuple[FloatArray, ...]:
        """A, B, C, Q and R."""
        return self.A, self.B, self.C, self.Q, self.R

    @property
    def states(self) -> int:
        return len(self.A)

    @property
    def n_inputs(self) -> int:
        return int(self.B.shape[1])

    @property
    def n_outputs(self) -> int:
        return len(self.C)

    def __eq__(self, other: object) -> bool:
        return _same_values(self, other) if isinstance(other, LocalModel) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.states, self.n_inputs, self.n_outputs))

    def __repr__(self) -> str:
        return f"LocalModel(states={self.states}, inputs={self.n_inputs}, outputs={self.n_outputs})"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plant:
    """Units coupled by one linear system.

    Row t-1 of the inputs acts on the state, and so on the measurement, of row t::

        h[t] = A h[t-1] + B u[t-1] + w[t-1],   w ~ N(0, Q)
        y[t] = C h[t] + v[t],                  v ~ N(0, R)

    Parameters
    ----------
    units : sequence of Unit
        Their order is the order of the blocks.
    A : (P, P), B : (P, U), C : (D, P), Q : (P, P), R : (D, D) arrays
        Full matrices. C, Q and R must be zero between different units. Q must be symmetric positive semidefinite,
        R symmetric positive definite. A may be unstable. All are copied and read-only afterwards.
    dt : float
        Time between two rows.

    Examples
    --------
    >>> units = [Unit("boiler", 1, 1, 1), Unit("turbine", 1, 1, 1)]
    >>> plant = Plant(units=units, A=[[0.5, 0.0], [0.3, 0.8]], B=np.eye(2), C=np.eye(2), Q=np.eye(2), R=np.eye(2))
    >>> plant.block("A", effect="turbine", cause="boiler").tolist()
    [[0.3]]
    >>> print(plant)
    Plant: 2 units, spectral radius 0.8 (stable), dt 1
      unit     states  inputs  outputs
      boiler        1       1        1
      turbine       1       1        1
    """

    units: tuple[Unit, ...]
    A: FloatArray
    B: FloatArray
    C: FloatArray
    Q: FloatArray
    R: FloatArray
    dt: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", check_units(self.units))
        object.__setattr__(self, "dt", real_number(self.dt, "plant: dt", low=0.0, open_low=True, kind=ModelError))
        owners = {axis: [name for name, span in spans.items() for _ in range(span.start, span.stop)]
                  for axis, spans in self._spans.items()}  # fmt: skip
        P, U, D = map(len, owners.values())
        meaning = f"{P} states, {U} inputs and {D} outputs over all units"
        for letter, (row, column) in _AXES.items():
            shape = len(owners[row]), len(owners[column])
            object.__setattr__(self, letter, matrix(getattr(self, letter), f"plant: {letter}", shape, meaning))
        for letter in "CQR":
            _check_block_diagonal(letter, getattr(self, letter), *(owners[axis] for axis in _AXES[letter]))
        for letter in "QR":
            whole = np.array(getattr(self, letter))
            for unit in self.units:
                place = self._place(letter, unit.name, unit.name)
                whole[place] = covariance(whole[place], f"{letter} of unit {unit.name!r}", definite=letter == "R")
            object.__setattr__(self, letter, frozen(whole))

    # ---- blocks by name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the units, in the order of the blocks."""
        return tuple(unit.name for unit in self.units)

    def unit(self, name: str) -> Unit:
        """The unit of that name."""
        return unit_named(self.units, name)

    def state_slice(self, name: str) -> slice:
        """Where the unit's states stand among all states."""
        return self._span("state", name)

    def input_slice(self, name: str) -> slice:
        """Where the unit's inputs stand among all inputs."""
        return self._span("input", name)

    def output_slice(self, name: str) -> slice:
        """Where the unit's outputs stand among all outputs."""
        return self._span("output", name)

    def block(self, letter: str, effect: str, cause: str | None = None) -> FloatArray:
        """The block of A, B, C, Q or R through which `cause` acts on `effect` (on itself if no cause is given).

        Examples
        --------
        >>> from counterflow.plant import random_plant
        >>> random_plant(["boiler", "turbine"], topology="chain", rng=0).block("B", "boiler", "turbine").any()
        np.False_
        """
        if letter not in LETTERS:
            raise OptionError(f"letter is {letter!r}: choose one of {', '.join(LETTERS)}.")
        array: FloatArray = getattr(self, letter)
        return array[self._place(letter, effect, effect if cause is None else cause)]

    def local(self, name: str) -> LocalModel:
        """The unit's own blocks, which are what it knows of itself."""
        return LocalModel(**{letter: self.block(letter, name) for letter in LETTERS})

    def locals(self) -> dict[str, LocalModel]:
        """Every unit's own blocks, by name."""
        return {name: self.local(name) for name in self.names}

    def _place(self, letter: str, effect: str, cause: str) -> tuple[slice, slice]:
        row, column = _AXES[letter]
        return self._span(row, effect), self._span(column, cause)

    def _span(self, axis: str, name: str) -> slice:
        try:
            return self._spans[axis][name]
        except (KeyError, TypeError):
            raise unknown_name("unit", name, self.names) from None

    @cached_property
    def _spans(self) -> dict[str, dict[str, slice]]:
        """Where each unit stands on each axis."""
        counts = {"state": "states", "input": "n_inputs", "output": "n_outputs"}
        return {
            axis: dict(zip(self.names, slices(getattr(unit, count) for unit in self.units), strict=True))
            for axis, count in counts.items()
        }

    # ---- other plants from this one

    def replace(self, **changes: Any) -> Plant:
        """A plant with some of units, A, B, C, Q, R, dt exchanged.

        Examples
        --------
        >>> from counterflow.plant import random_plant
        >>> plant = random_plant(rng=0)
        >>> plant.replace(A=0.5 * plant.A).spectral_radius < plant.spectral_radius
        True
        """
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in changes:
            if name not in known:
                raise OptionError(f"a plant has no field {name!r}: choose among {', '.join(known)}.")
        return Plant(**{**known, **changes})

    # ---- what the system does

    @cached_property
    def spectral_radius(self) -> float:
        """Largest modulus of the poles."""
        return float(np.abs(self.poles()).max())

    @property
    def is_stable(self) -> bool:
        """Whether every pole lies inside the unit circle."""
        return self.spectral_radius < 1.0

    def poles(self) -> ComplexArray:
        """Eigenvalues of A, largest modulus first, shape (P,)."""
        return transfer.poles(self.A)

    def zeros(self) -> ComplexArray:
        """Finite transmission zeros from all inputs to all outputs; see `transfer.transmission_zeros`."""
        return transfer.transmission_zeros(self.A, self.B, self.C)

    def frequency_response(self, w: ArrayLike) -> ComplexArray:
        """C (zI - A)⁻¹ B at z = exp(i w dt), shape (len(w), D, U); w in radians per unit of time."""
        return transfer.frequency_response(self.A, self.B, self.C, w, self.dt)

    def sigma(self, w: ArrayLike) -> FloatArray:
        """Singular values of the frequency response, largest first, shape (len(w), min(D, U))."""
        return transfer.sigma(self.A, self.B, self.C, w, self.dt)

    def impulse_response(self, horizon: int) -> FloatArray:
        """Response of the outputs to a unit input in one row: row k is C A^k B, k+1 rows later; (horizon, D, U)."""
        horizon = whole_number(horizon, "horizon", 1)
        response = np.empty((horizon, len(self.C), self.B.shape[1]))
        state = self.B
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(horizon):
                response[k] = self.C @ state
                state = self.A @ state
        if not np.isfinite(response).all():
            raise UnstableError(
                f"the impulse response overflows within {horizon} rows: the spectral radius of A is "
                f"{self.spectral_radius:.6g}. Ask for a shorter horizon."
            )
        return response

    def simulate(
        self, steps: int, rng: simulation.Seed = None, inputs: simulation.Inputs = None,
        initial_state: ArrayLike | Mapping[str, ArrayLike] | None = None,
    ) -> Recording:  # fmt: skip
        """Run the plant for `steps` steps and record rows 0..steps of every unit; see `simulation.simulate`.

        Parameters
        ----------
        steps : int
            T, at least 1; the recording has T+1 rows.
        rng : int, numpy Generator or None
            Seed of the run. The noise does not depend on the inputs, so two runs with one seed are twins.
        inputs : (T+1, U) array, {unit: (T+1, U_m) array}, or None
            None draws white N(0, 1) inputs.
        initial_state : (P,) array, {unit: (P_m,) array}, or None
            The state of row 0; zero by default.

        Examples
        --------
        >>> from counterflow.plant import random_plant
        >>> recording = random_plant(rng=0).simulate(100, rng=1)
        >>> recording["unit1"].y.shape
        (101, 8)
        """
        return simulation.simulate(self, steps, rng=rng, inputs=inputs, initial_state=initial_state)[0]

    # ---- python-control

    def to_control(self) -> Any:
        """This plant as a `control.StateSpace` with channels named "unit/channel" (a dot in a name becomes "_").

        The covariances Q and R have no place there and are left behind.
        """
        try:
            import control
        except ImportError as error:
            raise CounterflowError(
                "python-control is not installed, and to_control needs it: pip install counterflow[control]"
            ) from error
        inputs, outputs = (
            [f"{unit.name}/{name}".replace(".", "_") for unit in self.units for name in getattr(unit, names)]
            for names in ("input_names", "output_names")
        )
        D = np.zeros((len(outputs), len(inputs)))
        return control.StateSpace(
            self.A, self.B, self.C, D, self.dt, inputs=inputs, outputs=outputs, remove_useless_states=False
        )

    # ---- as a value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plant):
            return NotImplemented
        return self.units == other.units and self.dt == other.dt and _same_values(self, other)

    def __hash__(self) -> int:
        return hash((self.units, self.dt))

    def __repr__(self) -> str:
        units = ", ".join(f"{unit.name!r}: {unit.states}/{unit.n_inputs}/{unit.n_outputs}" for unit in self.units[:8])
        more = f", ... {len(self.units) - 8} more" if len(self.units) > 8 else ""
        radius = f"{self.spectral_radius:.4g}"
        return f"Plant({{{units}{more}}} states/inputs/outputs, spectral_radius={radius}, dt={self.dt:g})"

    def __str__(self) -> str:
        width = max(4, *(len(name) for name in self.names))
        radius = f"{self.spectral_radius:.4g} ({'stable' if self.is_stable else 'unstable'})"
        plural = "unit" if len(self.units) == 1 else "units"
        lines = [
            f"Plant: {len(self.units)} {plural}, spectral radius {radius}, dt {self.dt:g}",
            f"  {'unit':<{width}}  states  inputs  outputs",
        ]
        for unit in self.units:
            lines.append(f"  {unit.name:<{width}}  {unit.states:>6}  {unit.n_inputs:>6}  {unit.n_outputs:>7}")
        return "\n".join(lines)


def _check_block_diagonal(letter: str, array: FloatArray, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse what couples two units; `rows` and `columns`: which unit each belongs to."""
    outside = np.argwhere((array != 0) & (np.array(rows)[:, None] != np.array(columns)))
    if len(outside):
        row, column = outside[0]
        raise ModelError(
            f"plant: {letter} must be block-diagonal by unit, but couples {rows[row]!r} with {columns[column]!r}: "
            f"entry [{row}, {column}] is {array[row, column]:g}. Set that block to zero, or make the two one unit."
        )
