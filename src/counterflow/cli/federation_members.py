"""``counterflow federation init``, ``join``, ``approve``, ``remove`` and ``renew``: who belongs to a federation."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from counterflow.cli.federation_file import read_federation
from counterflow.cli.options import Folder
from counterflow.cli.output import Format, Line, Part, Told, answering, picked, show
from counterflow.errors import OptionError, StorageError
from counterflow.federation.engine import engine
from counterflow.federation.policy import Policy, default_policy
from counterflow.federation.sites import certificates, letters, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.letters import JoinRequest
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.notebook import Table
from counterflow.plant import LocalModel, Recording
from counterflow.plant.model_file import load_model

CUT_OFF = 10.0  # seconds in which a running server cuts off whom it is told to


@answering()
def init(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="The coordinator's folder; new.")],
    name: Annotated[str, Option(help="Of the federation.")],
    host: Annotated[str, Option(help="Name under which plants reach this machine; it stands in its certificate.")],
    port: Annotated[int, Option(min=1, max=65535, help="The only port that must be open, at this machine.")] = 8102,
    organisation: Annotated[str, Option(help="Who runs the coordinator.")] = "coordinator",
    operator: Annotated[str, Option(metavar="E-MAIL", help="Who starts jobs; default: one made up.")] = "",
) -> Told:
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
    return Told({
        **picked(made, "folder federation fingerprint"), "address": f"{made.host}:{made.port}",
        "operator": made.operator, "service": service, "join": line,
        "next": [
            "Send that line to every plant, and tell the fingerprint by another way, too.",
            f"For each file that comes back: counterflow federation approve {folder} UNIT.join",
            f"Run it: counterflow federation start {folder}; or by systemd: {service}",
            f"Keep {folder / 'authority'} safe: whoever has it can admit anybody.",
        ],
    })  # fmt: skip


@answering()
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
) -> Told:
    """Plant: join a federation, in two steps; the private key never leaves the folder.

    First: counterflow federation join boiler-site --unit boiler --federation waterworks --fingerprint SHA256:.. --log L

    Send boiler-site/boiler.join to the coordinator; it holds no measurement. With its answer:

    Then: counterflow federation join boiler-site --welcome boiler.welcome

    Later, while the plant is stopped, --log, --model and --policy replace what is there, and --new-key rotates the key.
    """
    named = {"unit": unit, "federation": federation, "fingerprint": fingerprint, "organisation": organisation}
    given = {name: value.strip() for name, value in named.items() if value is not None}
    replaced = [f"--{name}" for name, file in (("log", log), ("model", model), ("policy", policy)) if file is not None]
    plant = PlantFolder.open(folder) if (folder / party.FILE).exists() else None
    if (exact or ask) and (policy is not None or plant is not None):
        raise OptionError("--exact and --ask write a new plant's policy: change policy.toml, or leave --policy out.")
    if new_key and (welcome is not None or replaced):
        raise OptionError("--new-key: give it alone; with the coordinator's answer give --welcome.")
    recording, models, begins = (None, {}, "") if log is None else read_log(log)
    if policy is not None:
        Policy.read(policy)  # tells what is wrong with the line in the user's own file
    text = "" if policy is None else policy.read_text("utf-8")
    if plant is None:
        if new_key or welcome is not None:
            raise OptionError(f"{str(folder)!r} has not asked to join yet; give the folder that has.")
        needed = {"unit": unit, "federation": federation, "fingerprint": fingerprint, "log": recording}
        if missing := [f"--{name}" for name, value in needed.items() if value is None]:
            raise OptionError(f"to join in the new folder {str(folder)!r}, also give {', '.join(missing)}.")
        assert recording is not None
        name = given["unit"]
        own = models.get(name) if model is None else load_model(model)
        text = text or default_policy(name, not exact, _asking(ask or ()))
        told = given["federation"], given["fingerprint"], recording, own, text, organisation or "", budget, begins
        return _asked(PlantFolder.create(folder, name, *told), folder)
    for name, value in given.items():
        if value != (known := getattr(plant, name)):
            raise OptionError(
                f"--{name} {value!r}: {str(folder)!r} has joined as {plant.label} with {name} {known}; a folder is one "
                "party for good. Join in a new folder."
            )
    if welcome is not None:
        plant = plant.welcome(welcome)
        service = plant.folder / f"counterflow-{plant.unit}.service"
        run = [f"Run it: counterflow federation start {folder}; or by systemd: {service}"]
        about = picked(plant, "folder unit federation")
        return Told({**about, "state": "joined", "kit": plant.kit.folder, "service": service, "next": run})
    if not replaced:
        return _asked(plant.renew() if new_key else plant, folder)
    plant.bind(recording, models.get(plant.unit) if model is None else load_model(model), text, begins)
    then = ["Jobs that are not finished will refuse other data."]
    return Told({**picked(plant, "folder unit"), "state": "rebound", "replaced": replaced, "next": then})


@answering()
def approve(
    wanted: Format,
    folder: Folder,
    requests: Annotated[list[Path], Argument(metavar="REQUEST...", help="UNIT.join, as the plants sent them.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> Told:
    """Coordinator: admit plants, after a look at who asks. Compare each key with the plant's by telephone.

    Example: counterflow federation approve coordinator boiler.join turbine.join
    """
    coordinator = CoordinatorFolder.open(folder)
    admitted = []
    for asks in [letters.read_join(request) for request in requests]:
        card = asks.card
        if wanted is Format.table:
            show(*request_parts(asks))
        if not yes and not typer.confirm("Admit this plant?", default=False):
            raise OptionError(f"{card.unit} was not admitted.")
        welcome = coordinator.approve(asks)
        inputs = [channel.name for channel in card.inputs]
        about = picked(card, "unit organisation dt")
        admitted.append({**about, "key": asks.key, "inputs": inputs, "welcome": welcome})
        if wanted is Format.table:
            show("", f"{card.unit} is a member. Send back: {welcome}")
    return Told({"members": admitted}, ())


@answering()
def remove(
    folder: Folder,
    unit: Annotated[str, Argument(metavar="UNIT", help="The plant.")],
) -> Told:
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
        while unit in members.presence(coordinator.folder).get("plants", ()):
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{unit!r} is off the list of members, but the server still lists it as connected after "
                    f"{CUT_OFF:.0f} s: restart the coordinator (federation stop {folder}, federation start {folder})."
                )
            time.sleep(0.1)
    own = [job.id for job in coordinator.jobs() if unit in job.units]
    open_jobs = [job for job in own if party.state(coordinator.folder, job).get("state") != "finished"]
    then = ["Its certificate is refused from now on."]
    then += [f"These jobs cannot be finished without it: {', '.join(open_jobs)}; start new ones."] if open_jobs else []
    content = {"unit": unit, "certificate": gone.certificate, "server": cut, "unfinished": open_jobs, "next": then}
    return Told(content)


@answering()
def renew(
    folder: Folder,
    units: Annotated[list[str] | None, Argument(metavar="UNIT...", help="Plants; none: all, and the server.")] = None,
    authority: Annotated[
        bool, Option("--authority", help="First make a new authority; the old vouches for it.")
    ] = False,
    finish: Annotated[bool, Option("--finish", help="End a change of authority: trust the new one only.")] = False,
) -> Told:
    """Coordinator: new certificates for keys that stay. A plant takes its own with: start FOLDER --welcome UNIT.welcome

    Until it does, its certificate of now is as good. A change of authority (--authority) goes the same way; nobody has
    to be told the new fingerprint. When all plants have taken theirs: renew FOLDER --finish.

    Example: counterflow federation renew coordinator
    """
    coordinator = CoordinatorFolder.open(folder)
    if (authority or finish) and (units or authority == finish):
        raise OptionError("--authority and --finish are of all: give one of them, and no unit.")
    if finish:
        coordinator.finish_succession()
    elif authority:
        coordinator = coordinator.succeed()
    welcomes = {} if finish else coordinator.renew(units or ())
    then = ["Send every plant its welcome."] if welcomes else []
    if not units:
        then.append(f"Restart the coordinator: federation stop {folder}, federation start {folder}")
    if finish:
        then.append("Certificates of the old authority are refused; late plants may still take their welcome.")
    lasting = certificates.lasting(coordinator.certificates())
    told = {"fingerprint": coordinator.fingerprint, "welcomes": welcomes, "certificates": lasting, "next": then}
    return Told(told)


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


def _asking(given: Sequence[str]) -> dict[str, list[str]]:
    """``--ask turbine=valve,pump --ask condenser=*``."""
    found: dict[str, list[str]] = {}
    for text in given:
        unit, equals, inputs = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_-]+", unit) or unit in found:
            raise OptionError(f"--ask {text!r:.80}: give UNIT=INPUT,INPUT, or UNIT=*; each unit once.")
        found[unit] = [name.strip() for name in inputs.split(",") if name.strip()]
    return found


def _asked(plant: PlantFolder, folder: Path) -> Told:
    own, policy = plant.own(), plant.folder / "policy.toml"
    return Told({
        **picked(plant, "folder unit federation"), "state": "asked", "request": plant.join_file, "key": plant.key,
        "policy": policy, "rows": len(own.y), "begins": own.begins or "no times: its rows are taken to be the others'",
        "model": own.model is not None,
        "next": [
            f"Your policy, yours to change: {policy_line(plant.policy)}",
            f"Send to the coordinator: {plant.join_file}; compare the key by telephone.",
            f"With its answer: counterflow federation join {folder} --welcome {plant.unit}.welcome",
        ],
    })  # fmt: skip


def policy_line(policy: Policy) -> str:
    """A policy in a line."""
    demanded = f"privacy demanded, epsilon up to {policy.epsilon:g} a job"
    private = demanded if policy.demanded else "privacy is not demanded"
    asking = ", ".join(sorted(policy.ask)) or "nobody"
    return f"{', '.join(policy.methods)}; {private}; {asking} may ask about its inputs"


def request_parts(asks: JoinRequest) -> Iterator[Part]:
    """What the letter says comes first, and quoted; our own lines, of which the key is the last, below it."""
    card = asks.card
    limits = ["{:g} to {:g}".format(*each.limits) if each.limits else "" for each in card.inputs]
    rows = [[repr(each.name), repr(each.unit), bounds] for each, bounds in zip(card.inputs, limits, strict=True)]
    yield Table(f"inputs, every {card.dt:g} s, as the letter says", ["input", "unit", "limits"], rows, left=3)
    yield from ("", f"Unit {card.unit!r} of {card.organisation!r} asks to join {card.federation!r}.")
    yield Line(f"key: {asks.key}", "bold")
