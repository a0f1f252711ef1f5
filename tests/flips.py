"""Flipped bits in every kind of durable file: what is loaded afterwards is the same, or it is refused.

A kind makes its files in a folder and loads them as a value that can be compared. ``run`` flips one bit at a time, in
one file at a time, and counts; whatever is neither the same nor refused by an error that names the file stands in
``silent``. Files that SQLite may throw away at any time (-shm) are left alone.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback import Federation

import counterflow as cf
from counterflow.errors import CounterflowError
from counterflow.exchange.task import UnitData
from counterflow.federation.audit import FILE, SITE, Audit
from counterflow.federation.desk import QuestionBox
from counterflow.federation.job import Job
from counterflow.federation.parts import save_server, save_unit, saved_server, saved_unit
from counterflow.federation.policy import Policy
from counterflow.federation.question_service import QuestionService
from counterflow.federation.sites import keys, letters, members, party
from counterflow.federation.sites.certificates import Participant
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.letters import Card, JoinRequest
from counterflow.federation.sites.members import Member
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.turns import SESSION
from counterflow.plant.model_file import load_model, save_model
from counterflow.privacy import Cost, Ledger
from counterflow.protocol import Terms, encode
from counterflow.sealed_log import Entry, SealedLogs

UNITS = ("boiler", "turbine")
CREATED = "2026-01-01T00:00:00+00:00"


class World:
    """What all kinds are made of; computed once."""

    def __init__(self) -> None:
        self.plant = cf.random_plant(units=UNITS, rng=1)
        self.recording = self.plant.simulate(60, rng=2)
        self.fit = cf.fit(self.recording, self.plant.locals())
        inputs = {unit.name: unit.inputs for unit in self.recording.units}
        self.job = Job("fit-1", "sufficient", inputs, dt=self.recording.dt, created=CREATED)
        self.own = {
            name: UnitData(part.unit, part.y, part.u, self.plant.local(name)) for name, part in self.recording.items()
        }

    def federated(self, folder: Path) -> Federation:
        policies = {unit: Policy(unit, demanded=False) for unit in UNITS}
        return Federation(folder, self.job, self.own, policies)

    def coordinator(self, folder: Path) -> CoordinatorFolder:
        (folder / "jobs").mkdir(exist_ok=True)
        return CoordinatorFolder(folder, "works", "SHA256:AA", "works", "localhost", 8102, "o@w.org")


@dataclass(frozen=True)
class Kind:
    """``make`` writes into an empty folder; ``load`` reads what is there and gives a value to compare."""

    name: str
    make: Callable[[World, Path], None]
    load: Callable[[World, Path], Any]


@dataclass
class Outcome:
    """What became of the flips of one kind."""

    flips: int = 0
    same: int = 0
    refused: int = 0
    silent: list[str] = field(default_factory=list)


def run(kind: Kind, world: World, folder: Path, most: int, draw: random.Random) -> Outcome:
    """Flip at most so many bits in each file: every k-th byte, a bit drawn for each."""
    good, place = folder / "good", folder / "flipped"
    good.mkdir(parents=True)
    kind.make(world, good)
    _copy(good, place)
    expected = kind.load(world, place)
    found = Outcome()
    for file in sorted(path for path in good.rglob("*") if path.is_file() and not path.name.endswith("-shm")):
        data = file.read_bytes()
        for at in _offsets(len(data), most, draw):
            bit = draw.randrange(8)
            _copy(good, place)
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            (place / file.relative_to(good)).write_bytes(changed)
            found.flips += 1
            where = f"{file.relative_to(good)}, byte {at} of {len(data)}, bit {bit}"
            try:
                same = kind.load(world, place) == expected
            except CounterflowError as error:
                named = any(path.name in str(error) for path in place.rglob("*"))
                found.refused += 1
                if not named:
                    found.silent.append(f"{where}: an error without a file: {error}")
            except Exception as error:
                found.silent.append(f"{where}: {type(error).__name__}: {error}")
            else:
                found.same += same
                if not same:
                    found.silent.append(f"{where}: other content, in silence")
    return found


def _offsets(size: int, most: int, draw: random.Random) -> list[int]:
    """All bytes of a small file; of a larger one, both ends and so many places between, evenly with a random start."""
    if size <= most:
        return list(range(size))
    ends = {*range(min(16, most // 4)), *range(size - min(16, most // 4), size)}
    step = size / max(most - len(ends), 1)
    begin = draw.random() * step
    return sorted(ends | {int(begin + k * step) for k in range(most - len(ends)) if begin + k * step < size})


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm"))


# ---- kinds


def _saved_again(fit: cf.Fit, folder: Path) -> dict[str, bytes]:
    place = folder.with_name("again")
    shutil.rmtree(place, ignore_errors=True)
    fit.save(place)
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def _sessions(world: World, folder: Path) -> None:
    """The stores of a coordinator and a plant as a killed process leaves them, SQLite's own log beside them."""
    work = folder.with_name("work")
    with world.federated(work) as federation:
        federation.run()
        for place in (work / "coordinator" / world.job.id, work / "boiler" / world.job.id):
            shutil.copytree(place, folder / place.relative_to(work))


def _rows(path: Path, alone: bool) -> list[Any]:
    schema = SESSION if alone else SITE
    with SealedLogs(path, schema, alone=alone) as logs:
        return [(log, list(logs.rows(log))) for log in schema.logs]


def _snapshot(world: World, folder: Path) -> None:
    work = folder.with_name("work")
    with SealedLogs(work / "session.db", SESSION, alone=True) as store:
        for k in range(3):
            store.append("turns", Entry("turn", {"k": k}, [b"message" * 50]))
        store.begin_anew("turns", [Entry("snapshot", {"fields": 1}, [b"state" * 100, b"numbers"])])
        store.append("turns", Entry("turn", {"k": 9}, [b"after"]))
        shutil.copytree(work, folder, dirs_exist_ok=True)


def _site(world: World, folder: Path) -> None:
    work = folder.with_name("work")
    with Audit(work / FILE) as audit:
        for k in range(4):
            audit.write("approved", job="fit-1", kind="Sufficient", sha256=f"{k}", bytes=k)
        box = QuestionBox(work / FILE)
        box.settle(box.put([b"what if", b"ask"]), [b"answer"])
        box.put([b"and if"])
        shutil.copytree(work, folder, dirs_exist_ok=True)


def _ledger(world: World, folder: Path) -> None:
    work = folder.with_name("work")
    work.mkdir()
    with Ledger.create(work / "boiler.ledger", "boiler", 3.0, 1e-5) as ledger:
        for k in range(3):
            cost = Cost(0, 60, epsilon=0.5, delta=1e-7)
            ledger.spend(cost, f"release {k}", fit="job fit-1", mechanism="gauss", source="os")
        shutil.copytree(work, folder, dirs_exist_ok=True)


def _spent(path: Path) -> Any:
    with Ledger.open(path) as ledger:
        return ledger.epsilon, ledger.delta, ledger.window, ledger.spent, ledger.entries()


def _parts(world: World, folder: Path) -> None:
    work = folder.with_name("work")
    with world.federated(work) as federation:
        save_server(folder, federation.run().result)
        for unit in UNITS:
            save_unit(folder / unit, world.job, world.own[unit], federation.plant(unit).state, {})


def _parts_read(world: World, folder: Path) -> Any:
    job, server = saved_server(folder, "fit-1")
    units = [saved_unit(folder / unit, unit) for unit in UNITS]
    return (
        job.to_text(), server.A.tobytes(), server.B.tobytes(), server.link, [c.to_json() for c in server.caveats],
        [(one.job.to_text(), one.rows, one.digest, one.part.unit, one.part.model) for one in units],
    )  # fmt: skip


def _plant_folder(world: World, folder: Path) -> None:
    _plant(folder).put(world.recording, world.plant.local("boiler"), 'unit = "boiler"\n', "2026-01-01")
    (folder / "policy.toml").unlink()  # a text that its owner edits has no digest


def _brought(world: World, folder: Path) -> Any:
    own = _plant(folder).own()
    return own.unit, own.y.tobytes(), own.u.tobytes(), own.model, own.begins


def _plant(folder: Path) -> PlantFolder:
    return PlantFolder(folder, "works", "SHA256:AA", "owner", "", 0, "boiler")


def _terms(world: World, folder: Path) -> QuestionService:
    standing = Job("fit-1.questions", "questions", world.job.inputs, {"of": "fit-1"}, created=CREATED)
    return QuestionService(folder, standing, world.fit.server, None)


def _agreed(world: World, folder: Path) -> None:
    service = _terms(world, folder)
    for unit in UNITS:
        asking = Policy(unit, ask={other: ("*",) for other in UNITS if other != unit}).asking()
        service.receive(unit, [(1, encode(Terms(unit, json.dumps(asking))))])


def _card(world: World) -> Card:
    return Card("boiler", "works", "waterworks", world.recording["boiler"].unit.inputs, 1.0, "2026-01-01")


def _coordinator(world: World, folder: Path) -> None:
    made = world.coordinator(folder)
    made.keep(world.job)
    who = Participant("boiler", "plant", "works")
    members.write(folder / members.FILE, [Member(who, "00", CREATED, ("SHA256:AB",), CREATED, about=_card(world))])
    made.write()
    party.write_state(folder, "fit-1", state="finished", run="r", exchanges=12, bytes_up=100, reason="")


def _coordinator_read(world: World, folder: Path) -> Any:
    made = world.coordinator(folder)
    job = made.job("fit-1")
    return (
        job and job.to_text(), members.read(folder / members.FILE), party.read(folder),
        party.state(folder, "fit-1"),
    )  # fmt: skip


def _letters(world: World, folder: Path) -> None:
    key = keys.new()
    letters.write(folder / "boiler.join", JoinRequest(_card(world), keys.public(key.public_key())), key)


KINDS = (
    Kind(
        "recording",
        lambda world, folder: world.recording.save(folder / "log.safetensors"),
        lambda world, folder: cf.Recording.load(folder / "log.safetensors"),
    ),
    Kind(
        "local model",
        lambda world, folder: save_model(world.plant.local("boiler"), folder / "model.safetensors"),
        lambda world, folder: load_model(folder / "model.safetensors"),
    ),
    Kind(
        "saved fit",
        lambda world, folder: world.fit.save(folder),
        lambda world, folder: _saved_again(cf.load(folder), folder),
    ),
    Kind(
        "sessions",
        _sessions,
        lambda world, folder: [_rows(path, True) for path in sorted(folder.rglob("session.db"))],
    ),
    Kind("session after a snapshot", _snapshot, lambda world, folder: _rows(folder / "session.db", True)),
    Kind("audit and questions", _site, lambda world, folder: _rows(folder / FILE, False)),
    Kind("budget ledger", _ledger, lambda world, folder: _spent(folder / "boiler.ledger")),
    Kind("parts of a finished job", _parts, _parts_read),
    Kind("what a plant brings", _plant_folder, _brought),
    Kind(
        "terms",
        _agreed,
        lambda world, folder: {unit: policy.asking() for unit, policy in _terms(world, folder)._policies.items()},
    ),
    Kind("coordinator's folder", _coordinator, _coordinator_read),
    Kind(
        "private key",
        lambda world, folder: keys.keep(keys.new(), folder / "boiler.key"),
        lambda world, folder: keys.load(folder / "boiler.key").private_numbers(),
    ),
    Kind("letter to join", _letters, lambda world, folder: letters.read_join(folder / "boiler.join")),
)
