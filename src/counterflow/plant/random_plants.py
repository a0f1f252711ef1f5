"""Random plants for tests, demonstrations and experiments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations

import numpy as np

from counterflow.arrays import FloatArray, real_number, whole_number
from counterflow.errors import OptionError
from counterflow.plant.plant import Plant
from counterflow.plant.units import Channel, Unit, check_units
from counterflow.randomness import Seed, run_seed, stream

TOPOLOGIES = ("dense", "chain", "one-way", "sparse")
_LARGEST_RADIUS = 0.95


def random_plant(
    units: int | Sequence[str] | Sequence[Unit] = 2, states: int = 2, inputs: int | Sequence[str | Channel] = 2,
    outputs: int | Sequence[str | Channel] = 8, coupling: float = 0.3, topology: str = "dense", rng: Seed = None,
    process_noise: float = 0.1, measurement_noise: float = 1.0, density: float = 0.2,
    spectral_radius: float | None = None,
) -> Plant:  # fmt: skip
    """A random stable plant of coupled units.

    Parameters
    ----------
    units : int, names, or sequence of Unit
        A count gives units called unit1, unit2, ...
    states, inputs, outputs : int (or channel names, for inputs and outputs)
        The size of each unit, unless `units` are Unit objects already.
    coupling : float
        Strength of the couplings, at least 0. Every off-diagonal block of B on an edge of the topology has entries with
        root mean square 3 `coupling`, so that by default another unit's inputs act almost as strongly as one's own;
        every one of A, `coupling` divided by the square root of the number of states that act on the unit, so that
        more units do not mean stronger coupling. Zero means no coupling at all.
    topology : {"dense", "chain", "one-way", "sparse"}
        Which unit acts on which: all on all; each on the next; each on all later ones; or each ordered pair with
        probability `density` (but at least one pair). Both A and B couple along an edge, and are zero elsewhere.
    rng : int, numpy Generator or None
        Each unit's own blocks depend on the seed and its name only, each coupling on the two names.
    process_noise, measurement_noise : float
        Variances q and r: Q = q I and R = r I.
    density : float
        For the sparse topology, between 0 and 1.
    spectral_radius : float, optional
        Scale A as a whole to exactly this spectral radius (1 or more gives an unstable plant). By default A is scaled
        only if it would exceed 0.95, and then to 0.95.

    Returns
    -------
    Plant
        Before any scaling, the eigenvalues of each unit's own block of A have moduli between 0.5 and 0.9.

    Examples
    --------
    >>> plant = random_plant(["boiler", "turbine"], topology="one-way", rng=0)
    >>> plant.block("A", effect="boiler", cause="turbine").any(), plant.is_stable
    (np.False_, True)
    """
    members = _members(units, states, inputs, outputs)
    coupling = real_number(coupling, "coupling", low=0.0)
    q = real_number(process_noise, "process_noise", low=0.0)
    r = real_number(measurement_noise, "measurement_noise", low=0.0, open_low=True)
    density = real_number(density, "density", low=0.0, high=1.0)
    if spectral_radius is not None:
        spectral_radius = real_number(spectral_radius, "spectral_radius", low=0.0, open_low=True)
    seed = run_seed(rng)
    edges = _edges([unit.name for unit in members], topology, density, seed)

    P, U, D = (sum(sizes) for sizes in zip(*((m.states, m.n_inputs, m.n_outputs) for m in members), strict=True))
    # built first without couplings, so that blocks can be addressed by name
    A, B, C = np.zeros((P, P)), np.zeros((P, U)), np.zeros((D, P))
    plant = Plant(units=members, A=A, B=B, C=C, Q=q * np.eye(P), R=r * np.eye(D))
    for unit in members:
        rows = plant.state_slice(unit.name)
        own = stream(seed, "random plant: unit", unit.name)
        A[rows, rows] = _local_dynamics(unit.states, own)
        B[rows, plant.input_slice(unit.name)] = own.standard_normal((unit.states, unit.n_inputs))
        seen = own.standard_normal((unit.n_outputs, unit.states))
        C[plant.output_slice(unit.name), rows] = seen / np.sqrt(unit.states)
    if coupling > 0:
        acting = dict.fromkeys(plant.names, 0)
        for cause, effect in edges:
            acting[effect] += plant.unit(cause).states
        for cause, effect in edges:
            edge = stream(seed, "random plant: coupling", cause, effect)
            rows, size = plant.state_slice(effect), plant.unit(effect).states
            block = edge.standard_normal((size, plant.unit(cause).states))
            A[rows, plant.state_slice(cause)] = _scaled(block, coupling / np.sqrt(acting[effect]))
            block = edge.standard_normal((size, plant.unit(cause).n_inputs))
            B[rows, plant.input_slice(cause)] = _scaled(block, 3 * coupling)
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    if spectral_radius is not None:
        A *= spectral_radius / radius
    elif radius > _LARGEST_RADIUS:
        A *= _LARGEST_RADIUS / radius
    return plant.replace(A=A, B=B, C=C)


def _members(
    units: object, states: int, inputs: int | Sequence[str | Channel], outputs: int | Sequence[str | Channel]
) -> tuple[Unit, ...]:
    if isinstance(units, Sequence) and not isinstance(units, (str, bytes)):
        if all(isinstance(unit, Unit) for unit in units):
            return check_units(units)
        names = list(units)
    else:
        names = [f"unit{k + 1}" for k in range(whole_number(units, "units", 1))]
    return check_units([Unit(name, states=states, inputs=inputs, outputs=outputs) for name in names])


def _edges(names: Sequence[str], topology: str, density: float, seed: int) -> list[tuple[str, str]]:
    """Pairs (cause, effect)."""
    if topology == "dense":
        return list(permutations(names, 2))
    if topology == "chain":
        return list(pairwise(names))
    if topology == "one-way":
        if len(names) < 2:
            raise OptionError("topology 'one-way' needs at least 2 units: give more, or choose 'dense'.")
        return [(names[j], names[k]) for k in range(len(names)) for j in range(k)]
    if topology == "sparse":
        draws = {pair: stream(seed, "random plant: edge", *pair).random() for pair in permutations(names, 2)}
        chosen = [pair for pair, draw in draws.items() if draw < density]
        return chosen or ([min(draws, key=lambda pair: draws[pair])] if draws else [])
    raise OptionError(f"topology is {topology!r}: choose one of {', '.join(map(repr, TOPOLOGIES))}.")


def _local_dynamics(size: int, rng: np.random.Generator) -> FloatArray:
    """A matrix whose eigenvalues have moduli between 0.5 and 0.9, in a random basis and not quite normal."""
    triangular = np.triu(0.1 * rng.standard_normal((size, size)), 1)
    for k in range(0, size - 1, 2):
        modulus, angle = rng.uniform(0.5, 0.9), rng.uniform(0.1, 0.9) * np.pi
        c, s = modulus * np.cos(angle), modulus * np.sin(angle)
        triangular[k : k + 2, k : k + 2] = [[c, s], [-s, c]]
    if size % 2:
        triangular[-1, -1] = rng.uniform(0.5, 0.9)
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    return np.asarray(basis @ triangular @ basis.T, dtype=np.float64)


def _scaled(block: FloatArray, size: float) -> FloatArray:
    """`block` with its entries' root mean square brought to `size`, so that no coupling is small by accident."""
    return block * (size / np.sqrt(np.mean(block**2))) if block.size else block
