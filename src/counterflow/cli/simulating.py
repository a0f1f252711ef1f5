"""``counterflow simulate``: a recording, every unit's local model, and the federation file that joins them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.federation_file import federation_text, read_plant, relative
from counterflow.cli.output import Content, Format
from counterflow.errors import OptionError
from counterflow.plant import Plant, excitation, random_plant
from counterflow.plant.model_file import model_bytes


def simulate(
    out: Path,
    *,
    plant_file: Path | None,
    random: dict[str, Any],
    steps: int,
    seed: int,
    spread: float,
    federation: Path | None,
    models: Path | None,
    force: bool,
    answer_format: Format,
) -> None:
    """Do it, and say where everything is."""
    if out.suffix.lower() != ".safetensors":
        raise OptionError(f"--out {str(out)!r}: the name must end in .safetensors.")
    if plant_file is not None and random:
        raise OptionError(f"--plant describes the units: leave --{next(iter(random)).replace('_', '-')} out.")
    described = federation if federation is not None else out.with_name("federation.toml")
    folder = models if models is not None else described.with_name("models")
    plant = read_plant(plant_file) if plant_file is not None else _random(random, seed)
    files = {name: folder / f"{name}.safetensors" for name in plant.names}
    targets = [*files.values(), out, described]
    if len({path.absolute() for path in targets}) < len(targets):
        raise OptionError("--out, --federation and --models name the same file twice: give each its own place.")
    output.check_new(targets, force)
    recording = plant.simulate(steps, rng=seed, inputs=excitation.white(plant, steps, seed, scale=spread))
    text = federation_text(
        plant.units,
        plant.dt,
        recording=relative(out, described.parent),
        models={name: relative(path, described.parent) for name, path in files.items()},
        seed=seed,
    )
    contents: dict[Path, Content] = {path: model_bytes(plant.local(name)) for name, path in files.items()}
    contents[out] = recording.save
    contents[described] = text.encode()  # last: it never names what is not there yet
    output.write_all(contents, force)
    if answer_format is Format.json:
        answer = {
            "version": __version__,
            "command": "simulate",
            "steps": steps,
            "rows": recording.rows,
            "dt": recording.dt,
            "seed": seed,
            "units": [
                {"name": u.name, "states": u.states, "inputs": list(u.input_names), "outputs": list(u.output_names)}
                for u in plant.units
            ],
            "digest": recording.digest,
            "files": {"recording": out, "federation": described, "models": files},
        }
        print(output.as_json(answer))
        return
    output.show_text(str(plant))
    output.show_text("")
    output.show_text(f" recording: {out} ({recording.rows} rows)")
    output.show_text(f"    models: {folder}")
    output.show_text(f"federation: {described}")


def _random(random: dict[str, Any], seed: int) -> Plant:
    arguments = dict(random)
    for key in ("units", "inputs", "outputs"):
        if key in arguments:
            arguments[key] = _count_or_names(arguments[key], key)
    return random_plant(**arguments, rng=seed)


def _count_or_names(text: str, what: str) -> int | list[str]:
    if text.strip().isdecimal() and len(text) < 9:
        return int(text)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise OptionError(f"--{what} {text!r}: give a count, or names with commas between them.")
    return names
