"""``counterflow fit``: from a federation file to a saved fit."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from counterflow import wording
from counterflow.cli import output
from counterflow.cli.federation_file import Federation, read_federation
from counterflow.cli.options import Edges, Forbidden, known_edges, optional
from counterflow.cli.output import NOT_CONVERGED, OK, Format, Line, Part, Told, answering, fitted, listed, noted, picked
from counterflow.data.formats import is_table
from counterflow.errors import OptionError, StorageError
from counterflow.exchange.rows import LikelihoodOptions
from counterflow.files import blaming
from counterflow.fits import training
from counterflow.fits.content import SERVER_FILE
from counterflow.fits.fit import Fit

FURTHER = 4  # times the limit that has stopped a fit


_OPTIONS = optional({  # of the methods, as ``counterflow.fit`` takes them
    "estimate": (str, "couplings, blocks or all."),
    "rho": (float, "Augmented Lagrangian: its penalty."),
    "solver": (str, "Published methods: conjugate or gradient."),
    "rounds": (int, "Published methods: at most so many."),
    "evaluations": (int, "Likelihood: at most so many passes."),
    "tol": (float, "When to call it converged."),
    "uncertainty": (bool, "Likelihood: compute intervals (default: where that takes seconds)."),
    "sensors": (str, "treated (default), or 'as they are': whether wrong readings are left out."),
})  # fmt: skip


@answering(options=_OPTIONS)
def fit(
    wanted: Format,
    federation: Annotated[Path, Argument(metavar="FEDERATION", help="A federation file in TOML.")],
    out: Annotated[Path, Option(metavar="DIR", help="Directory for the fit.")],
    method: Annotated[str | None, Option(help="Instead of the file's; its options are then not used.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Instead of the file's.")] = None,
    xi: Annotated[
        list[str] | None, Option(help="Published methods: weight, one number, or unit=number for each.")
    ] = None,
    edge: Edges = None,
    forbid: Forbidden = None,
    force: output.Force = False,
    **options: Any,
) -> Told:
    """Fit a federation and save the fit. Exit code 3: not converged (it is saved all the same).

    Example: counterflow fit federation.toml --out fit --estimate all
    """
    check_place(out, force)
    if federation.suffix.lower() != ".toml" and is_table(federation.name):
        raise OptionError(
            f"{str(federation)!r} is a log: describe it first with  counterflow data inspect {federation} --federation "
            "federation.toml  and give that file."
        )
    read = read_federation(federation)
    chosen = method if method is not None else read.method
    if chosen == "oracle":
        raise OptionError("--method 'oracle' needs the true plant, which a federation does not have.")
    # the file's options go with the file's method
    merged: dict[str, Any] = dict(read.options) if chosen == read.method else {}
    merged |= {key: value for key, value in options.items() if value is not None}
    merged |= known_edges(edge, forbid)
    if xi:
        merged["xi"] = _weights(xi)
    began = time.monotonic()
    found = training.fit(
        read.recording, read.models, method=chosen, seed=read.seed if seed is None else seed, privacy=read.privacy,
        progress=wanted is Format.table, **merged,
    )  # fmt: skip
    found.save(out)
    more = _going_on(found, merged, time.monotonic() - began)
    if more is not None:
        given = {"method": method, "seed": seed, "xi": xi, "edge": edge, "forbid": forbid, **options}
        more["command"] = _command(federation, out, {**given, more["option"]: more["value"]})
    content = {**_content(found, read, out), "go_on": more}
    return Told(content, _shown(found, read, content), OK if found.status.converged else NOT_CONVERGED)


def check_place(out: Path, force: bool) -> None:
    """Refuse, before any work is done, a directory that could not be written or holds something else."""
    output.check_folder(out)
    with blaming(out):
        if out.exists() and any(out.iterdir()):
            if not (out / SERVER_FILE).is_file():
                raise StorageError(f"--out {str(out)!r} is not empty and not a saved fit: choose a new directory.")
            if not force:
                remedy = "choose another name, or give --force to replace it"
                raise StorageError(f"--out {str(out)!r} holds a saved fit: {remedy}.")


def _going_on(found: Fit, options: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
    """What it would take to go on where a limit has stopped a fit; None where no limit has."""
    if found.status.converged or found.privacy is not None:
        return None
    option = "rounds" if found.couplings is None else "evaluations"
    limit = options.get(option) or (LikelihoodOptions().evaluations if option == "evaluations" else found.status.rounds)
    if found.status.rounds < limit or options.get("loss_tol") is not None:
        return None
    return {"option": option, "value": FURTHER * limit, "seconds": FURTHER * seconds}


def _command(federation: Path, out: Path, options: Mapping[str, Any]) -> str:
    """The command that fits again with these options."""
    words = ["counterflow", "fit", str(federation), "--out", str(out), "--force"]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                words.append(option if one else f"--no-{option[2:]}")
            elif one is not None:
                words += [option, str(one)]
    return shlex.join(words)


def _weights(given: Sequence[str]) -> float | dict[str, float]:
    """``--xi 10``, or ``--xi boiler=3 --xi turbine=1``."""
    weights: dict[str, float] = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        try:
            number = float(value)
        except ValueError:
            raise OptionError(f"--xi {text!r}: give a number, or unit=number for every unit.") from None
        if not equals and len(given) == 1:
            return number
        if not equals or name in weights:
            raise OptionError(f"--xi {text!r}: give one number for all units, or unit=number once for each.")
        weights[name] = number
    return weights


def doubts(found: Fit) -> list[dict[str, Any]]:
    """What the data do not determine, with the names of the inputs."""
    out = []
    for doubt in found.couplings.doubts if found.couplings is not None else ():
        names = found.plant.unit(doubt.cause).input_names
        about = {"block": doubt.letter, "channels": [names[k] for k in doubt.channels]}
        out.append(picked(doubt, "cause effect") | about | picked(doubt, "reason remedy"))
    return out


def _content(found: Fit, federation: Federation, out: Path) -> dict[str, Any]:
    return {
        "fit": out, **found.provenance.to_json(), "method": found.method, "seed": found.provenance.seed,
        **picked(federation.recording, "rows dt"), "digest": found.provenance.data_digest,
        **output.fit_json(found.status, found.traffic),
        "log_likelihood": found.log_likelihood,
        "units": output.units_json(found.plant.units),
        "doubts": doubts(found),
        "caveats": list(found.caveats),
        "privacy": None if found.privacy is None else found.privacy.to_json(),
        "preparation": None if federation.preparation is None else federation.preparation.to_json(),
    }  # fmt: skip


def _shown(found: Fit, federation: Federation, content: Mapping[str, Any]) -> Iterator[Part]:
    if federation.preparation is not None:
        yield from noted(federation.preparation.doubts)
    yield from fitted(found)
    yield listed(f"{federation.recording.rows} rows", content["units"], "name", "states", "inputs", "outputs")
    yield from ("", f"saved fit: {content['fit']}")
    if (more := content["go_on"]) is not None:
        yield ""
        yield Line(f"to go on, which takes {wording.about(more['seconds'])}: {more['command']}", "bold")
