"""``counterflow simulate``: a recording, every unit's local model, and the federation file that joins them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from counterflow.cli import output
from counterflow.cli.federation_file import federation_text, read_plant, relative
from counterflow.cli.options import optional
from counterflow.cli.output import Content, Told, answering
from counterflow.errors import OptionError
from counterflow.plant import Plant, excitation, random_plant
from counterflow.plant.model_file import model_bytes

_RANDOM = optional({  # of a random plant
    "units": (str, "Names with commas between them, or a count."),
    "states": (int, "States of every unit (2)."),
    "inputs": (str, "Inputs of every unit: a count or names (2)."),
    "outputs": (str, "Outputs of every unit: a count or names (8)."),
    "topology": (str, "dense, chain, one-way or sparse (dense)."),
    "coupling": (float, "Strength of the couplings (0.3)."),
})  # fmt: skip


@answering(options=_RANDOM)
def simulate(
    out: Annotated[Path, Option(metavar="FILE", help="The recording, .safetensors.")],
    plant: Annotated[Path | None, Option(metavar="FILE", help="A plant in TOML, instead of a random one.")] = None,
    steps: Annotated[int, Option(min=1, max=10_000_000, help="Steps to simulate.")] = 4000,
    seed: Annotated[int, Option(min=0, help="Of the plant, the inputs and the noise.")] = 0,
    spread: Annotated[float, Option(min=0.0, help="Standard deviation of the inputs, which are white.")] = 1.0,
    federation: Annotated[
        Path | None, Option(metavar="FILE", help="The federation file (federation.toml beside --out).")
    ] = None,
    models: Annotated[
        Path | None, Option(metavar="DIR", help="Local models (models beside the federation file).")
    ] = None,
    force: output.Force = False,
    **given: Any,
) -> Told:
    """Simulate a plant: recording, local models, federation file.

    Example: counterflow simulate --out recording.safetensors --units boiler,turbine --inputs valve,pump --steps 2000
    """
    output.check_file("--out", out, ("safetensors",), force)
    random = {name: value for name, value in given.items() if value is not None}
    if plant is not None and random:
        raise OptionError(f"--plant describes the units: leave --{next(iter(random)).replace('_', '-')} out.")
    described = federation or out.with_name("federation.toml")
    folder = models or described.with_name("models")
    made = read_plant(plant) if plant is not None else _random(random, seed)
    files = {name: folder / f"{name}.safetensors" for name in made.names}
    targets = [*files.values(), out, described]
    if len({path.absolute() for path in targets}) < len(targets):
        raise OptionError("--out, --federation and --models name the same file twice: give each its own place.")
    output.check_new(targets, force)
    recording = made.simulate(steps, rng=seed, inputs=excitation.white(made, steps, seed, scale=spread))
    named = {name: relative(path, described.parent) for name, path in files.items()}
    text = federation_text(made.units, made.dt, recording=relative(out, described.parent), models=named, seed=seed)
    contents: dict[Path, Content] = {path: model_bytes(made.local(name)) for name, path in files.items()}
    contents[out] = recording.save
    contents[described] = text.encode()  # last: it never names what is not there yet
    output.write_all(contents, force)
    content = {
        "steps": steps, **output.picked(recording, "rows dt"), "seed": seed, "digest": recording.digest,
        "units": output.units_json(made.units), "files": {"recording": out, "federation": described, "models": files},
    }  # fmt: skip
    written = (f" recording: {out} ({recording.rows} rows)", f"    models: {folder}", f"federation: {described}")
    return Told(content, (*str(made).splitlines(), "", *written))


def _random(given: dict[str, Any], seed: int) -> Plant:
    """``units``, ``inputs`` and ``outputs`` are counts, or names with commas between them."""
    for key in {"units", "inputs", "outputs"} & set(given):
        text = given[key]
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            raise OptionError(f"--{key} {text!r}: give a count, or names with commas between them.")
        given[key] = int(text) if text.strip().isdecimal() and len(text) < 9 else names
    return random_plant(**given, rng=seed)
