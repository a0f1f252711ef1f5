"""The coupled linear system: units and their blocks, simulation, transfer function, recordings.

Everything rests on one recursion (docs/theory/notation.md); rows t = 0..T::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],   w ~ N(0, Q)
    y[t] = C h[t] + v[t],                  v ~ N(0, R)
"""

from counterflow.plant import excitation
from counterflow.plant.plant import LocalModel, Plant
from counterflow.plant.random_plants import random_plant
from counterflow.plant.recording import Recording, UnitRecording
from counterflow.plant.units import Channel, OperatingPoint, PublicUnit, Unit

__all__ = [
    "Channel", "LocalModel", "OperatingPoint", "Plant", "PublicUnit", "Recording", "Unit", "UnitRecording",
    "excitation", "random_plant",
]  # fmt: skip
