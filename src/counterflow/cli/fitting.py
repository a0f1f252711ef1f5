"""``counterflow fit``: from a federation file to a saved fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.federation_file import Federation, read_federation
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.fits import training
from counterflow.fits.fit import Fit
from counterflow.fits.storage_server import SERVER_FILE


def fit(
    file: Path,
    out: Path,
    *,
    method: str | None,
    seed: int | None,
    xi: Sequence[str],
    options: dict[str, Any],
    force: bool,
    answer_format: Format,
) -> None:
    """Fit, save, tell; exit code 3 if it has not converged."""
    check_place(out, force)
    federation = read_federation(file)
    chosen = method if method is not None else federation.method
    if chosen == "oracle":
        raise OptionError("--method 'oracle' needs the true plant, which a federation does not have.")
    # the file's options go with the file's method
    merged: dict[str, Any] = dict(federation.options) if chosen == federation.method else {}
    merged |= {key: value for key, value in options.items() if value is not None}
    if xi:
        merged["xi"] = _weights(xi)
    found = training.fit(
        federation.recording,
        federation.models,
        method=chosen,
        seed=federation.seed if seed is None else seed,
        privacy=federation.privacy,
        progress=answer_format is Format.table and sys.stdout.isatty(),
        **merged,
    )
    found.save(out)
    if answer_format is Format.json:
        print(output.as_json(_as_json(found, federation, out)))
    else:
        _show(found, federation, out)
    if not found.status.converged:
        raise typer.Exit(output.NOT_CONVERGED)


def check_place(out: Path, force: bool) -> None:
    """Refuse, before any work is done, a directory that could not be written or holds something else."""
    with output.blaming_place(out):
        if out.exists() and not out.is_dir():
            raise StorageError(f"--out {str(out)!r} is a file: give a directory.")
        if out.exists() and any(out.iterdir()):
            if not (out / SERVER_FILE).is_file():
                raise StorageError(f"--out {str(out)!r} is not empty and not a saved fit: choose a new directory.")
            if not force:
                raise StorageError(
                    f"--out {str(out)!r} holds a saved fit: choose another name, or give --force to replace it."
                )
    output.check_new([out / SERVER_FILE], force)


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
        out.append(
            {
                "cause": doubt.cause,
                "effect": doubt.effect,
                "block": doubt.letter,
                "channels": [names[k] for k in doubt.channels],
                "reason": doubt.reason,
                "remedy": doubt.remedy,
            }
        )
    return out


def _as_json(found: Fit, federation: Federation, out: Path) -> dict[str, Any]:
    status, traffic = found.status, found.traffic
    return {
        "version": __version__,
        "command": "fit",
        "fit": out,
        "method": found.method,
        "seed": found.provenance.seed,
        "rows": federation.recording.rows,
        "dt": federation.recording.dt,
        "digest": found.provenance.data_digest,
        "status": {
            "converged": status.converged,
            "rounds": status.rounds,
            "gradient": status.gradient,
            "message": status.message,
        },
        "traffic": {"rounds": traffic.rounds, "bytes_up": traffic.bytes_up, "bytes_down": traffic.bytes_down},
        "log_likelihood": found.log_likelihood,
        "units": [
            {"name": u.name, "states": u.states, "inputs": list(u.input_names), "outputs": list(u.output_names)}
            for u in found.plant.units
        ],
        "doubts": doubts(found),
        "caveats": list(found.caveats),
        "privacy": None if found.privacy is None else found.privacy.to_json(),
        "preparation": None if federation.preparation is None else federation.preparation.to_json(),
    }


def _show(found: Fit, federation: Federation, out: Path) -> None:
    if federation.preparation is not None:
        output.show_notes(federation.preparation.doubts)
    output.show_text(found.summary())
    rows = [[unit.name, str(unit.states), str(unit.n_inputs), str(unit.n_outputs)] for unit in found.plant.units]
    output.show_table(f"{federation.recording.rows} rows", ["unit", "states", "inputs", "outputs"], rows)
    output.show_text("")
    output.show_text(f"saved fit: {out}")
