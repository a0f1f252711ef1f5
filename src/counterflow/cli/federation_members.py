"""``counterflow federation init``, ``join``, ``approve`` and ``remove``: who belongs to a federation."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.federation_file import read_federation
from counterflow.cli.options import AnswerFormat, Folder
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.federation.engine import engine
from counterflow.federation.policy import Policy
from counterflow.federation.sites import letters, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.letters import JoinRequest
from counterflow.federation.sites.plant_folder import PlantFolder, default_policy
from counterflow.plant import LocalModel, Recording
from counterflow.plant.model_file import load_model

CUT_OFF = 10.0  # seconds in which a running server cuts off whom it is told to


def init(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The coordinator's folder; new.")],
    name: Annotated[str, Option(help="Of the federation.")],
    host: Annotated[str, Option(help="Name under which plants reach this machine; it stands in its certificate.")],
    port: Annotated[int, Option(min=1, max=65535, help="The only port that must be open, at this machine.")] = 8102,
    organisation: Annotated[str, Option(help="Who runs the coordinator.")] = "coordinator",
    operator: Annotated[str, Option(metavar="E-MAIL", help="Who starts jobs; default: one made up.")] = "",
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: found a federation.

    Makes the authority that signs certificates, the server's and the operator's keys, a service file for systemd, and
    prints the line to send to plants.

    Example: counterflow federation init coordinator --name waterworks --host coordinator.example.org
    """
    engine().require()
    made = CoordinatorFolder.create(folder, name, host, port, organisation, operator)
    line = (
        f"counterflow federation join FOLDER --unit UNIT --federation {made.federation} "
        f"--fingerprint {made.fingerprint} --log LOG"
    )
    service = next(made.folder.glob("*.service"))
    content = {
        **output.picked(made, "folder federation fingerprint"), "address": f"{made.host}:{made.port}",
        "operator": made.operator, "join": line, "service": service,
    }  # fmt: skip
    _tell(
        answer_format, "init", content,
        f"Federation {made.federation} at {made.host}:{made.port}",
        f"fingerprint: {made.fingerprint}",
        "",
        "Send this line to every plant, and tell the fingerprint by another way, too:",
        f"  {line}",
        "",
        f"For each file that comes back: counterflow federation approve {folder} UNIT.join",
        f"Run it: counterflow federation start {folder}; or by systemd: {service}",
        f"Keep {folder / 'authority'} safe: whoever has it can admit anybody.",
    )  # fmt: skip


def join(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The plant's folder; new at first.")],
    unit: Annotated[str | None, Option(help="First: the unit that this plant is.")] = None,
    federation: Annotated[str | None, Option(help="First: name of the federation.")] = None,
    fingerprint: Annotated[
        str | None, Option(metavar="SHA256:..", help="First: of the authority, as the coordinator told it.")
    ] = None,
    log: Annotated[
        Path | None,
        Option(metavar="FILE", help="The unit's log: a recording (.safetensors), or a .toml as for 'fit'."),
    ] = None,
    model: Annotated[Path | None, Option(metavar="FILE", help="The unit's local model (.safetensors).")] = None,
    policy: Annotated[Path | None, Option(metavar="FILE", help="What may leave (.toml); default: strict.")] = None,
    exact: Annotated[
        bool,
        Option("--exact", help="First: write a policy by which exact numbers may leave; default: with noise only."),
    ] = False,
    ask: Annotated[
        list[str] | None,
        Option(metavar="UNIT=INPUT,..", help="First: write into the policy who may ask about which inputs (*: all)."),
    ] = None,
    organisation: Annotated[str | None, Option(help="First: who owns the plant.")] = None,
    budget: Annotated[
        float, Option(help="First: epsilon of the privacy budget, if the policy names one that is not there.")
    ] = 3.0,
    welcome: Annotated[
        Path | None, Option(metavar="FILE", help="Then: the coordinator's answer, UNIT.welcome.")
    ] = None,
    new_key: Annotated[
        bool, Option("--new-key", help="Later: another key in the same folder, and a new request.")
    ] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Plant: join a federation, in two steps; the private key never leaves the folder.

    First: counterflow federation join boiler-site --unit boiler --federation waterworks --fingerprint SHA256:.. --log L

    Send boiler-site/boiler.join to the coordinator; it holds no measurement. With its answer:

    Then: counterflow federation join boiler-site --welcome boiler.welcome

    Later, while the plant is stopped, --log, --model and --policy replace what is there, and --new-key rotates the key.
    """
    first = {"--unit": unit, "--federation": federation, "--fingerprint": fingerprint, "--organisation": organisation}
    given = [name for name, value in first.items() if value is not None]
    if (exact or ask) and (policy is not None or (folder / party.FILE).exists()):
        raise OptionError("--exact and --ask write a new plant's policy: change policy.toml, or leave --policy out.")
    if not (folder / party.FILE).exists():
        if new_key:
            raise OptionError(f"--new-key: {str(folder)!r} has not joined yet; give the folder that has.")
        if welcome is not None:
            raise OptionError(f"--welcome: {str(folder)!r} has not asked to join yet; give the folder that has.")
        missing = [
            name for name, value in {**first, "--log": log}.items() if value is None and name != "--organisation"
        ]
        if missing:
            raise OptionError(f"to join in the new folder {str(folder)!r}, also give {', '.join(missing)}.")
        engine().require()
        recording, found, begins = read_log(cast(Path, log))
        named = cast(tuple[str, str, str], (unit, federation, fingerprint))
        own = _model(model) or found.get(named[0])
        text = _policy(policy) or default_policy(named[0], not exact, _asking(ask or ()))
        made = PlantFolder.create(folder, *named, recording, own, text, organisation or "", budget, begins)
        _tell_asked(made, folder, answer_format)
        return
    plant = PlantFolder.open(folder)
    for name in given:
        known = getattr(plant, name.removeprefix("--"))
        if str(first[name]).strip() != known:
            raise OptionError(
                f"{name} {first[name]!r}: {str(folder)!r} has joined as {plant.label} with {name} {known}; a folder is "
                "one party for good. Join in a new folder."
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
        service = plant.folder / f"counterflow-{plant.unit}.service"
        content = {**output.picked(plant, "folder unit"), "state": "joined", "kit": plant.kit, "service": service}
        _tell(
            answer_format, "join", content,
            f"Unit {plant.unit} is a member of {plant.federation}.",
            f"Run it: counterflow federation start {folder}; or by systemd: {service}",
        )  # fmt: skip
        return
    if given:  # the first half once more
        _tell_asked(plant, folder, answer_format)
        return
    if log is None and model is None and policy is None:
        raise OptionError(f"{plant.label} has asked to join: give --welcome FILE, or --log, --model or --policy anew.")
    recording_now, found, begins = read_log(log) if log is not None else (None, {}, "")
    plant.bind(recording_now, _model(model) or found.get(plant.unit), _policy(policy), begins)
    replaced = [name for name, value in (("log", log), ("model", model), ("policy", policy)) if value is not None]
    content = {"folder": plant.folder, "unit": plant.unit, "state": "rebound", "replaced": replaced}
    _tell(
        answer_format, "join", content,
        f"{plant.label}: {', '.join(replaced)} replaced. Jobs that are not finished will refuse other data.",
    )  # fmt: skip


def approve(
    folder: Folder,
    requests: Annotated[list[Path], Argument(metavar="REQUEST...", help="UNIT.join, as the plants sent them.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: admit plants, after a look at who asks. Compare each key with the plant's by telephone.

    Example: counterflow federation approve coordinator boiler.join turbine.join
    """
    coordinator = CoordinatorFolder.open(folder)
    letters_read = [letters.read_join(request) for request in requests]
    for asks in letters_read:
        coordinator.check(asks)
    if not yes and (answer_format is Format.json or not sys.stdin.isatty()):
        raise OptionError("approve asks before it admits a plant: look at the request on a terminal, or give --yes.")
    engine().require()
    members_now: list[dict[str, Any]] = []
    for asks in letters_read:
        if answer_format is Format.table:
            _show_request(asks)
        if not yes and not typer.confirm("Admit this plant?", default=False):
            raise OptionError(f"{asks.card.unit} was not admitted.")
        welcome = coordinator.approve(asks)
        inputs = [channel.name for channel in asks.card.inputs]
        card = output.picked(asks.card, "unit organisation dt")
        members_now.append({**card, "key": asks.key, "inputs": inputs, "welcome": welcome})
        if answer_format is Format.table:
            output.show_lines("", f"{asks.card.unit} is a member. Send back: {welcome}")
    output.answer(answer_format, "federation approve", {"members": members_now}, lambda: None)


def remove(
    folder: Folder,
    unit: Annotated[str, Argument(metavar="UNIT", help="The plant.")],
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Coordinator: cut a plant off. Its certificate is refused from now on; with a new key it may join again.

    Key rotation: the plant runs join --new-key and sends its .join file; remove, then approve.

    Example: counterflow federation remove coordinator boiler
    """
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
    own = [job.id for job in coordinator.jobs() if unit in job.units]
    open_jobs = [job for job in own if coordinator.site.state(job).get("state") != "finished"]
    content = {"unit": unit, "certificate": gone.certificate, "server": cut, "unfinished": open_jobs}
    _tell(
        answer_format, "remove", content,
        f"{unit} is removed: its certificate {gone.certificate[:23]}... is refused from now on.",
    )  # fmt: skip
    if open_jobs and answer_format is Format.table:
        output.show_notes([f"these jobs cannot be finished without it: {', '.join(open_jobs)}; start new ones."])


def read_log(path: Path) -> tuple[Recording, dict[str, LocalModel], str]:
    """A unit's log, models if the file names any, and when it begins; of several units, one is the plant's."""
    kind = path.suffix.lower()
    if kind == ".safetensors":
        stored = Recording.load(path)
        return stored, {}, "" if stored.calendar is None else stored.calendar.text
    if kind == ".toml":
        read = read_federation(path)
        calendar = read.recording.calendar
        return read.recording, dict(read.models or {}), "" if calendar is None else calendar.text
    raise OptionError(
        f"--log {str(path)!r}: give a recording (.safetensors), or a .toml that says which columns are inputs "
        'and which are outputs: [units.boiler], log = "boiler.csv", inputs = ["valve"], outputs = ["pressure"].'
    )


def _model(path: Path | None) -> LocalModel | None:
    return None if path is None else load_model(path)


def _policy(path: Path | None) -> str:
    if path is None:
        return ""
    Policy.read(path)  # tells what is wrong with the line in the user's own file
    return path.read_text("utf-8")


def _asking(given: Sequence[str]) -> dict[str, list[str]]:
    """``--ask turbine=valve,pump --ask condenser=*``."""
    found: dict[str, list[str]] = {}
    for text in given:
        unit, equals, inputs = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_-]+", unit) or unit in found:
            raise OptionError(f"--ask {text!r:.80}: give UNIT=INPUT,INPUT, or UNIT=*; each unit once.")
        found[unit] = [name.strip() for name in inputs.split(",") if name.strip()]
    return found


def _tell_asked(plant: PlantFolder, folder: Path, answer_format: Format) -> None:
    own, policy = plant.site.own(), plant.folder / "policy.toml"
    untimed = "; it has no times, so its rows are taken to be the others'"
    when = f", the first of {own.begins}" if own.begins else untimed
    content = {
        **output.picked(plant, "folder unit"), "state": "asked", "request": plant.join_file, "key": plant.key,
        "policy": policy,
    }  # fmt: skip
    _tell(
        answer_format, "join", content,
        f"Unit {plant.unit} asks to join {plant.federation}.",
        f"Send to the coordinator: {plant.join_file}",
        f"key, to compare by telephone: {plant.key}",
        f"log: {len(own.y)} rows{when}; {'with a' if own.model is not None else 'no'} local model",
        f"policy, yours to change: {policy} ({policy_line(plant.policy)})",
        f"With its answer: counterflow federation join {folder} --welcome {plant.unit}.welcome",
    )  # fmt: skip


def policy_line(policy: Policy) -> str:
    """A policy in a line."""
    demanded = f"privacy demanded, epsilon up to {policy.epsilon:g} a job"
    private = demanded if policy.demanded else "privacy is not demanded"
    asking = ", ".join(sorted(policy.ask)) or "nobody"
    return f"{', '.join(policy.methods)}; {private}; {asking} may ask about its inputs"


def _show_request(asks: JoinRequest) -> None:
    """What the letter says comes first, and quoted; our own lines, of which the key is the last, below it."""
    card = asks.card
    limits = ["{:g} to {:g}".format(*each.limits) if each.limits else "" for each in card.inputs]
    rows = [[repr(each.name), repr(each.unit), bounds] for each, bounds in zip(card.inputs, limits, strict=True)]
    output.show_table(f"inputs, every {card.dt:g} s, as the letter says", ["input", "unit", "limits"], rows, left=3)
    output.show_lines("", f"Unit {card.unit!r} of {card.organisation!r} asks to join {card.federation!r}.")
    output.show_text(f"key: {asks.key}", style="bold")


def _tell(answer_format: Format, command: str, content: dict[str, Any], first: str, *lines: str) -> None:
    def show() -> None:
        output.show_text(first, style="bold" if len(lines) > 1 else None)
        output.show_lines(*lines)

    output.answer(answer_format, f"federation {command}", content, show)
