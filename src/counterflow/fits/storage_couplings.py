"""What the server keeps of a maximum-likelihood fit, to and from the server's file (``counterflow.fits.storage``).

All of it is what the server has seen or made: sufficient messages, inputs, local dynamics, the estimate and its
covariance. A fit of pooled raw data has no two sides, so it has no such file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import StorageError
from counterflow.estimation.identifiability import Doubt
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.online import Memory
from counterflow.estimation.optimiser import Estimated
from counterflow.estimation.parameters import ESTIMATES, Estimate, Parameters
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.fits.sealed_file import SealedFile, check_keys, count, number, texts, typed
from counterflow.methods.outcome import Couplings

MISSING = ("couplings/values", "couplings/covariance")  # NaN means something in these
_MEMORY = ("information", "mean", "covariance", "last_input")
_OPTIONAL = ("initial_mean", "initial_covariance")


def describe(couplings: Couplings, method: str) -> tuple[dict[str, Any], dict[str, FloatArray]]:
    """Texts and numbers for the description, arrays for the file."""
    found, shared, spread = couplings.found, couplings.shared, couplings.spread
    if method == "centralized":
        raise StorageError(
            "a fit of method 'centralized' holds every unit's raw measurements and cannot be split between server and "
            "units: fit with method='sufficient' to save."
        )
    arrays = {key: getattr(shared, key) for key in ("values", "u", "observation", "noise")}
    arrays |= {key: getattr(shared, key) for key in ("A_local", "B_local", "Q_local")}
    arrays |= {key: value for key in _OPTIONAL if (value := getattr(shared, key)) is not None}
    arrays |= {"Q": found.Q, "trace": np.array(found.trace, np.float64)}
    parameters = spread.parameters if spread is not None else found.parameters
    if parameters is not None:
        arrays["noise_root"] = parameters.noise_root
    if spread is not None:
        arrays["covariance"] = spread.covariance
    if (memory := couplings.memory) is not None:
        arrays |= {f"memory/{key}": getattr(memory, key) for key in _MEMORY}
    described = {
        "rows": None if memory is None else memory.rows,
        "log_likelihood": found.log_likelihood,
        "evaluations": found.evaluations,
        "converged": found.converged,
        "at_bound": found.at_bound,
        "decrement": found.decrement,
        "estimate": None if parameters is None else parameters.estimate,
        "names": list(shared.names),
        "form": couplings.form,
        "doubts": [
            {
                "effect": doubt.effect,
                "cause": doubt.cause,
                "letter": doubt.letter,
                "channels": [int(channel) for channel in doubt.channels],
                "reason": doubt.reason,
                "remedy": doubt.remedy,
            }
            for doubt in couplings.doubts
        ],
    }
    return described, {f"couplings/{key}": value for key, value in arrays.items()}


def restore(
    server: SealedFile, counts: Mapping[str, tuple[int, tuple[str, ...]]], A: FloatArray, B: FloatArray
) -> Couplings | None:
    """The couplings of a server's file, if the fit has any."""
    described = server.described.get("couplings")
    if described is None:
        return None
    keys = (
        "rows",
        "log_likelihood",
        "evaluations",
        "converged",
        "at_bound",
        "decrement",
        "estimate",
        "names",
        "doubts",
    )
    check_keys(described, (*keys, "form"))
    form = typed(described, "form", str)
    if form not in ("partitioned", "free"):
        raise ValueError(f"form {form!r} is not known")
    names = texts(described, "names")
    if sorted(names) != sorted(counts):
        raise ValueError("the couplings do not name the same units")
    states = tuple(counts[name][0] for name in names)
    inputs = tuple(len(counts[name][1]) for name in names)
    P, U = sum(states), sum(inputs)
    rows, width = _shape(server, "couplings/values", 2)
    shapes = {
        "values": (rows, width),
        "u": (rows, U),
        "observation": (width, P),
        "noise": (width, width),
        "A_local": (P, P),
        "B_local": (P, U),
        "Q_local": (P, P),
        "initial_mean": (P,),
        "initial_covariance": (P, P),
    }
    arrays = {
        key: server.take(f"couplings/{key}", shape, missing=key == "values")
        for key, shape in shapes.items()
        if key not in _OPTIONAL or f"couplings/{key}" in server.arrays
    }
    shared = SharedRecord(names=names, states=states, inputs=inputs, **arrays)
    parameters = None
    if described["estimate"] is not None:
        estimate = typed(described, "estimate", str)
        if estimate not in (*ESTIMATES, "system"):
            raise ValueError(f"estimate {estimate!r} is not known")
        parameters = Parameters(shared, cast(Estimate, estimate), server.take("couplings/noise_root", (P, P)))
    found = Estimated(
        A=A,
        B=B,
        Q=server.take("couplings/Q", (P, P)),
        log_likelihood=number(described, "log_likelihood"),
        evaluations=count(described, "evaluations", 0),
        converged=typed(described, "converged", bool),
        at_bound=typed(described, "at_bound", bool),
        decrement=number(described, "decrement"),
        trace=tuple(float(v) for v in server.take("couplings/trace", _shape(server, "couplings/trace", 1))),
        parameters=parameters,
    )
    spread = None
    if "couplings/covariance" in server.arrays:
        if parameters is None:
            raise ValueError("a covariance without parameters")
        size = parameters.coupling_size()
        spread = Uncertainty(parameters, server.take("couplings/covariance", (size, size), missing=True))
    doubts = tuple(_doubt(entry, counts) for entry in typed(described, "doubts", list))
    memory = None
    if described["rows"] is not None:
        size = parameters.coupling_size() if parameters is not None else 0
        shapes = {"information": (size, size), "mean": (P,), "covariance": (P, P), "last_input": (U,)}
        kept = {key: server.take(f"couplings/memory/{key}", shape) for key, shape in shapes.items()}
        memory = Memory(found=found, rows=count(described, "rows", 1), **kept)
    return Couplings(found, shared, spread, doubts, memory, form)


def _shape(server: SealedFile, key: str, axes: int) -> tuple[int, ...]:
    array = server.arrays.get(key)
    if array is None or array.ndim != axes:
        raise ValueError(f"array {key!r} is missing or has not {axes} axes")
    return tuple(array.shape)


def _doubt(entry: Any, counts: Mapping[str, tuple[int, tuple[str, ...]]]) -> Doubt:
    check_keys(entry, ("effect", "cause", "letter", "channels", "reason", "remedy"))
    words = {key: typed(entry, key, str) for key in ("effect", "cause", "letter", "reason", "remedy")}
    if words["effect"] not in counts or words["cause"] not in counts or words["letter"] not in ("A", "B"):
        raise ValueError("a doubt about units or letters that are not there")
    channels = typed(entry, "channels", list)
    limit = len(counts[words["cause"]][1])
    if not all(type(channel) is int and 0 <= channel < limit for channel in channels):
        raise ValueError("a doubt about inputs that are not there")
    return Doubt(channels=tuple(channels), **words)
