"""One unit's file of a saved fit: its channels, model, estimator, what it has learned, and what it has spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.fits import storage_privacy
from counterflow.fits.sealed_file import Demand, SealedFile, check_keys, count, seal, typed
from counterflow.methods.estimators import Estimator, KalmanEstimator
from counterflow.methods.part import UnitPart
from counterflow.plant import Channel, LocalModel, OperatingPoint, Unit

TITLE = "counterflow fit, unit part"
VERSION = 1
SERIES = ("client_loss", "proprietary_loss")
_LETTERS = ("A", "B", "C", "Q", "R")
_INFINITIES = (-math.inf, math.inf)


def unit_bytes(
    part: UnitPart,
    *,
    estimated: Mapping[str, FloatArray],
    losses: Mapping[str, FloatArray],
    privacy: Mapping[str, Any] | None,
) -> bytes:
    """The file. ``estimated``: C, Q, R after the fit; ``losses``: the unit's own of every round (SERIES)."""
    arrays = {f"model/{letter}": getattr(part.model, letter) for letter in _LETTERS}
    for letter, block in estimated.items():  # where the fit has changed what the unit knew
        if not np.array_equal(block, getattr(part.model, letter)):
            arrays[f"estimated/{letter}"] = block
    level = None if part.point is None else part.point.input_level
    optional = {"theta": part.theta, "phi": part.phi, "output_level": part.output_level, "input_level": level}
    if part.C_doubt is not None:
        optional |= {"doubt/variance": part.C_doubt[0], "doubt/scatter": part.C_doubt[1]}
    arrays.update({key: value for key, value in optional.items() if value is not None})
    arrays.update({f"history/{series}": losses[series] for series in SERIES})
    estimator, kind = part.estimator, f"custom: {type(part.estimator).__qualname__}"
    if type(estimator) is KalmanEstimator:
        kind = "kalman"
        if estimator.model != part.working_model:
            kind = "kalman, own model"
            arrays.update({f"estimator/{letter}": getattr(estimator.model, letter) for letter in _LETTERS})
    unit = part.unit
    described = {
        "server": part.link,
        "name": unit.name,
        "states": unit.states,
        "inputs": [describe_channel(channel) for channel in unit.inputs],
        "outputs": [describe_channel(channel) for channel in unit.outputs],
        "uses_inputs": part.uses_inputs,
        "same_row": part.point is not None and part.point.same_row,
        "estimator": kind,
        "caveats": [caveat.to_json() for caveat in part.caveats],
        "privacy": None if privacy is None else dict(privacy),
    }
    return seal(TITLE, described, arrays, VERSION, f"unit {unit.name!r}")


def describe_channel(channel: Channel) -> dict[str, Any]:
    """A channel in plain types."""
    limits = channel.limits
    ends = None if limits is None else [None if end in _INFINITIES else end for end in limits]  # JSON has no infinity
    return {"name": channel.name, "unit": channel.unit, "limits": ends}


def unit_of(stored: SealedFile) -> Unit:
    described = stored.described
    expected = ("format", "version", "server", "name", "states", "inputs", "outputs", "uses_inputs", "estimator")
    check_keys(described, (*expected, "same_row", "caveats", "privacy", "digest"))
    return Unit(
        stored.text("name"),
        states=count(described, "states", 1),
        inputs=[channel_of(entry) for entry in typed(described, "inputs", list)],
        outputs=[channel_of(entry) for entry in typed(described, "outputs", list)],
    )


def stored_part(
    stored: SealedFile, unit: Unit, given: Mapping[str, Estimator]
) -> tuple[UnitPart, dict[str, FloatArray]]:
    P, U, D = unit.states, unit.n_inputs, unit.n_outputs
    shapes = {"A": (P, P), "B": (P, U), "C": (D, P), "Q": (P, P), "R": (D, D)}
    uses_inputs = typed(stored.described, "uses_inputs", bool)
    model = LocalModel(**{letter: stored.take(f"model/{letter}", shape) for letter, shape in shapes.items()})
    theta = stored.take("theta", (P, D)) if "theta" in stored.arrays else None
    phi = stored.take("phi", (P,)) if "phi" in stored.arrays else None
    estimated = {
        letter: stored.take(f"estimated/{letter}", shapes[letter])
        if f"estimated/{letter}" in stored.arrays
        else getattr(model, letter)
        for letter in ("C", "Q", "R")
    }
    part = UnitPart(unit, model, KalmanEstimator(model), uses_inputs, theta, phi)
    kind = stored.text("estimator")
    estimator: Estimator
    if kind == "kalman, own model":
        seen = shapes | {"B": (P, U if uses_inputs else 0)}
        estimator = KalmanEstimator(
            LocalModel(**{letter: stored.take(f"estimator/{letter}", shape) for letter, shape in seen.items()})
        )
    elif kind == "kalman":
        estimator = KalmanEstimator(part.working_model)
    elif kind.startswith("custom: "):
        if unit.name not in given:
            raise Demand(
                f"unit {unit.name!r} was fitted with an estimator of its own ({kind[8:]!r}), which is not stored: "
                f"pass estimators={{{unit.name!r}: ...}} to load."
            )
        estimator = given[unit.name]
    else:
        raise ValueError(f"estimator {kind!r} is not known")
    estimator = given.get(unit.name, estimator)
    if not isinstance(estimator, Estimator):
        raise OptionError(f"load: the estimator of unit {unit.name!r} must have a method estimate(y, u)")
    output_level = stored.take("output_level", (D,)) if "output_level" in stored.arrays else None
    point = None
    if "input_level" in stored.arrays:
        point = OperatingPoint(stored.take("input_level", (U,)), typed(stored.described, "same_row", bool))
    doubt = None
    if "doubt/variance" in stored.arrays:
        doubt = (stored.take("doubt/variance", (D,)), stored.take("doubt/scatter", (P, P)))
    link = stored.text("server")
    rows_digest = storage_privacy.rows_digest(stored.described["privacy"])
    told = tuple(map(Caveat.from_json, typed(stored.described, "caveats", list)))
    part = UnitPart(
        unit, model, estimator, uses_inputs, theta, phi, output_level, point, link, rows_digest, doubt, told
    )
    return part, estimated


def channel_of(entry: Any) -> Channel:
    """A channel from plain types that nobody has checked."""
    check_keys(entry, ("name", "unit", "limits"))
    ends = entry["limits"]
    if ends is None:
        return Channel(entry["name"], entry["unit"])
    if type(ends) is not list or len(ends) != 2:
        raise ValueError("'limits' should be null or two ends")
    low, high = (infinity if end is None else end for end, infinity in zip(ends, _INFINITIES, strict=True))
    return Channel(entry["name"], entry["unit"], (low, high))
