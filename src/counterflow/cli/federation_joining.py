"""``counterflow federation init``, ``join``, ``approve`` and ``remove``: who belongs to a federation."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import typer

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.federation.engine import engine
from counterflow.federation.sites import letters, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.letters import JoinRequest
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.plant import Channel, LocalModel, Recording

CUT_OFF = 10.0  # seconds in which a running server cuts off whom it is told to


def init(
    folder: Path, name: str, host: str, port: int, organisation: str, operator: str, *, answer_format: Format
) -> None:
    """Found a federation."""
    engine().require()
    made = CoordinatorFolder.create(folder, name, host, port, organisation, operator)
    line = (
        f"counterflow federation join FOLDER --unit UNIT --federation {made.federation} "
        f"--fingerprint {made.fingerprint} --log LOG"
    )
    service = next(made.folder.glob("*.service"))
    if answer_format is Format.json:
        _print(
            "federation init", folder=made.folder, federation=made.federation, fingerprint=made.fingerprint,
            address=f"{made.host}:{made.port}", operator=made.operator, join=line, service=service,
        )  # fmt: skip
        return
    output.show_text(f"Federation {made.federation} at {made.host}:{made.port}", style="bold")
    output.show_text(f"fingerprint: {made.fingerprint}")
    output.show_text("")
    output.show_text("Send this line to every plant, and tell the fingerprint by another way, too:")
    output.show_text(f"  {line}")
    output.show_text("")
    output.show_text(f"For each file that comes back: counterflow federation approve {folder} UNIT.join")
    output.show_text(f"Run it: counterflow federation start {folder}; or by systemd: {service}")
    output.show_text(f"Keep {folder / 'authority'} safe: whoever has it can admit anybody.")


def join(
    folder: Path,
    *,
    unit: str | None,
    federation: str | None,
    fingerprint: str | None,
    log: Path | None,
    model: Path | None,
    policy: Path | None,
    organisation: str | None,
    budget: float,
    welcome: Path | None,
    new_key: bool,
    answer_format: Format,
) -> None:
    """The first half, the second half, other data or another key for a plant that has joined."""
    first = {"--unit": unit, "--federation": federation, "--fingerprint": fingerprint, "--organisation": organisation}
    given = [name for name, value in first.items() if value is not None]
    if not (folder / party.FILE).exists():
        if new_key:
            raise OptionError(f"--new-key: {str(folder)!r} has not joined yet; give the folder that has.")
        if welcome is not None:
            raise OptionError(f"--welcome: {str(folder)!r} has not asked to join yet; give the folder that has.")
        required = {name: value for name, value in {**first, "--log": log}.items() if name != "--organisation"}
        missing = [name for name, value in required.items() if value is None]
        if missing:
            raise OptionError(f"to join in the new folder {str(folder)!r}, also give {', '.join(missing)}.")
        assert unit is not None
        assert federation is not None
        assert fingerprint is not None
        assert log is not None
        engine().require()
        recording, found, begins = read_log(log)
        made = PlantFolder.create(
            folder, unit, federation, fingerprint, recording, _model(model) or found.get(unit), _policy(policy),
            organisation or "", budget, begins,
        )  # fmt: skip
        _tell_asked(made, folder, answer_format)
        return
    plant = PlantFolder.open(folder)
    if given:
        known = {"--unit": plant.unit, "--federation": plant.federation, "--fingerprint": plant.fingerprint}
        known["--organisation"] = plant.organisation
        for name in given:
            if str(first[name]).strip() != known[name]:
                raise OptionError(
                    f"{name} {first[name]!r}: {str(folder)!r} has joined as {plant.label} with {name} {known[name]}; a "
                    "folder is one party for good. Join in a new folder."
                )
    if new_key:
        if welcome is not None or log is not None or model is not None or policy is not None:
            raise OptionError("--new-key: give it alone; with the coordinator's answer give --welcome.")
        engine().require()
        _tell_asked(plant.renew(), folder, answer_format)
        return
    if welcome is not None:
        engine().require()
        plant = plant.welcome(welcome)
        _tell_joined(plant, folder, answer_format)
        return
    if given:  # the first half once more
        _tell_asked(plant, folder, answer_format)
        return
    if log is None and model is None and policy is None:
        raise OptionError(f"{plant.label} has asked to join: give --welcome FILE, or --log, --model or --policy anew.")
    recording_now, found, begins = read_log(log) if log is not None else (None, {}, "")
    plant.bind(recording_now, _model(model) or found.get(plant.unit), _policy(policy), begins)
    replaced = [name for name, value in (("log", log), ("model", model), ("policy", policy)) if value is not None]
    if answer_format is Format.json:
        _print("federation join", folder=plant.folder, unit=plant.unit, state="rebound", replaced=replaced)
        return
    output.show_text(
        f"{plant.label}: {', '.join(replaced)} replaced. Jobs that are not finished will refuse other data."
    )


def approve(folder: Path, request: Path, *, yes: bool, answer_format: Format) -> None:
    """Show who asks, and admit it."""
    coordinator = CoordinatorFolder.open(folder)
    asks = letters.read_join(request)
    coordinator.check(asks)
    if answer_format is Format.table:
        _show_request(asks)
    if not yes:
        if answer_format is Format.json or not sys.stdin.isatty():
            raise OptionError(
                "approve asks before it admits a plant: look at the request on a terminal, or give --yes."
            )
        if not typer.confirm("Admit this plant?", default=False):
            raise OptionError("the plant was not admitted.")
    engine().require()
    welcome = coordinator.approve(asks)
    if answer_format is Format.json:
        _print(
            "federation approve", unit=asks.card.unit, organisation=asks.card.organisation, key=asks.key,
            inputs=[channel.name for channel in asks.card.inputs], dt=asks.card.dt, welcome=welcome,
        )  # fmt: skip
        return
    output.show_text("")
    output.show_text(f"{asks.card.unit} is a member. Send back: {welcome}")


def remove(folder: Path, unit: str, *, answer_format: Format) -> None:
    """Take a plant off the list, and see that a running server has cut it off."""
    coordinator = CoordinatorFolder.open(folder)
    gone = coordinator.remove(unit)
    cut = "not running"
    if party.supervisor(coordinator.folder) is not None:
        deadline = time.monotonic() + CUT_OFF
        cut = "cut off"
        while unit in members.presence(coordinator.folder / members.PRESENCE).get("plants", ()):
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{unit!r} is off the list of members, but the server still lists it as connected after "
                    f"{CUT_OFF:.0f} s: restart the coordinator (federation stop {folder}, federation start {folder})."
                )
            time.sleep(0.1)
    open_jobs = [
        job.id
        for job in coordinator.jobs()
        if unit in job.units and coordinator.site.state(job.id).get("state") != "finished"
    ]
    if answer_format is Format.json:
        _print("federation remove", unit=unit, certificate=gone.certificate, server=cut, unfinished=open_jobs)
        return
    output.show_text(f"{unit} is removed: its certificate {gone.certificate[:23]}... is refused from now on.")
    if open_jobs:
        output.show_notes([f"these jobs cannot be finished without it: {', '.join(open_jobs)}; start new ones."])


def read_log(path: Path) -> tuple[Recording, dict[str, LocalModel], str]:
    """A unit's log, models if the file names any, and when it begins; of several units, one is the plant's."""
    kind = path.suffix.lower()
    if kind == ".safetensors":
        return Recording.load(path), {}, ""
    if kind == ".toml":
        from counterflow.cli.federation_file import read_federation

        read = read_federation(path)
        begins = "" if read.preparation is None else read.preparation.start
        return read.recording, dict(read.models or {}), begins if ":" in begins else ""
    raise OptionError(
        f"--log {str(path)!r}: give a recording (.safetensors), or a .toml that says which columns are inputs "
        'and which are outputs: [units.boiler], log = "boiler.csv", inputs = ["valve"], outputs = ["pressure"].'
    )


def _model(path: Path | None) -> LocalModel | None:
    from counterflow.plant.model_file import load_model

    return None if path is None else load_model(path)


def _policy(path: Path | None) -> str:
    if path is None:
        return ""
    from counterflow.federation.policy import Policy

    Policy.read(path)  # tells what is wrong with the line in the user's own file
    return path.read_text("utf-8")


def _tell_asked(plant: PlantFolder, folder: Path, answer_format: Format) -> None:
    if answer_format is Format.json:
        _print(
            "federation join", folder=plant.folder, unit=plant.unit, state="asked", request=plant.join_file,
            key=plant.key, policy=plant.folder / "policy.toml",
        )  # fmt: skip
        return
    policy = plant.policy
    output.show_text(f"Unit {plant.unit} asks to join {plant.federation}.", style="bold")
    output.show_text(f"Send to the coordinator: {plant.join_file}")
    output.show_text(f"key, to compare by telephone: {plant.key}")
    own = plant.site.own()
    when = (
        f", the first of {own.begins}" if own.begins else "; it has no times, so its rows are taken to be the others'"
    )
    output.show_text(f"log: {len(own.y)} rows{when}; {'with a' if own.model is not None else 'no'} local model")
    output.show_text(f"policy, yours to change: {plant.folder / 'policy.toml'} ({policy_line(policy)})")
    output.show_text(f"With its answer: counterflow federation join {folder} --welcome {plant.unit}.welcome")


def _tell_joined(plant: PlantFolder, folder: Path, answer_format: Format) -> None:
    service = plant.folder / f"counterflow-{plant.unit}.service"
    if answer_format is Format.json:
        _print("federation join", folder=plant.folder, unit=plant.unit, state="joined", kit=plant.kit, service=service)
        return
    output.show_text(f"Unit {plant.unit} is a member of {plant.federation}.", style="bold")
    output.show_text(f"Run it: counterflow federation start {folder}; or by systemd: {service}")


def policy_line(policy: Any) -> str:
    """A policy in a line."""
    private = (
        f"privacy demanded, epsilon up to {policy.epsilon:g} a job" if policy.demanded else "privacy is not demanded"
    )
    asking = ", ".join(sorted(policy.ask)) or "nobody"
    return f"{', '.join(policy.methods)}; {private}; {asking} may ask about its inputs"


def _show_request(asks: JoinRequest) -> None:
    card = asks.card
    output.show_text(f"Unit {card.unit} of {card.organisation} asks to join {card.federation}.", style="bold")
    output.show_text(f"key: {asks.key}")
    rows = [[channel.name, channel.unit, _limits(channel)] for channel in card.inputs]
    output.show_table(f"inputs, every {card.dt:g} s", ["input", "unit", "limits"], rows, left=3)


def _limits(channel: Channel) -> str:
    return "" if channel.limits is None else f"{channel.limits[0]:g} to {channel.limits[1]:g}"


def _print(command: str, **content: Any) -> None:
    print(output.as_json({"version": __version__, "command": command, **content}))
