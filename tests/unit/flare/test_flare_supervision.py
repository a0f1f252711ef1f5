"""Who is admitted, who supervises, when the standing job is submitted, and that a dead site is started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from typer.testing import CliRunner

import counterflow as cf
from counterflow.cli.federation_service import of_coordinator
from counterflow.federation.flare import processes
from counterflow.federation.flare.engine import FlareEngine
from counterflow.federation.job import Job
from counterflow.federation.sites import certificates, keys, members, party, supervisor
from counterflow.federation.sites.certificates import Participant
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.members import Member
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.supervisor import DAY, GENERATIONS, Keeper, Rule, Supervisor, check_port, rotate, tidy
from counterflow.files import appending

# ---- one supervisor


def test_one_supervisor_at_a_time(tmp_path: Path) -> None:
    assert party.supervisor(tmp_path) is None
    assert not party.end_supervisor(tmp_path, 0.1)
    with party.supervising(tmp_path):
        assert party.supervisor(tmp_path) == os.getpid()
        with (
            pytest.raises(cf.StorageError, match=f"runs already \\(process {os.getpid()}\\)"),
            party.supervising(tmp_path),
        ):
            pass
    assert party.supervisor(tmp_path) is None
    (tmp_path / party.PID).write_text(f"{os.getpid()}\n")  # left behind by one that was killed, its number used again
    assert party.supervisor(tmp_path) is None
    with party.supervising(tmp_path):
        assert party.supervisor(tmp_path) == os.getpid()


def test_a_supervisor_is_ended_kindly_or_by_force(tmp_path: Path) -> None:
    script = """
import signal, sys, time
from pathlib import Path
from counterflow.federation.sites import party
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with party.supervising(Path(sys.argv[1])):
    print("there", flush=True)
    time.sleep(60)
"""
    for manner in ("kind", "deaf"):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), manner], stdout=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "there\n"
            assert party.supervisor(tmp_path) == child.pid
            assert party.end_supervisor(tmp_path, 0.3)
            assert child.wait(5) == (-signal.SIGTERM if manner == "kind" else -signal.SIGKILL)
            assert party.supervisor(tmp_path) is None
        finally:
            child.kill()
            child.communicate()


def test_a_port_that_is_used_is_not_shared() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(cf.StorageError, match=f"port {port} cannot be listened on.*--port"):
            check_port(port)
        threading.Timer(0.3, taken.close).start()
        check_port(port, patience=10)  # one that is about to be given back is waited for
    check_port(port)


# ---- what is thrown away


def test_logs_go_round_and_whoever_writes_them_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "site.log"
    with appending(log) as writer:
        for k in range(GENERATIONS + 2):
            writer.write(f"{k}\n".encode() * 1000)
            writer.flush()
            rotate(log, 1500)
            assert log.stat().st_size == 0
        writer.write(b"last\n")
    rotate(log, 1500)
    assert log.read_text() == "last\n"
    newest_first = [log.with_name(f"site.log.{k}") for k in range(1, GENERATIONS + 1)]
    assert [place.read_text()[0] for place in newest_first] == ["4", "3", "2"]
    assert {place.stat().st_mode & 0o077 for place in tmp_path.iterdir()} == {0}
    assert len(list(tmp_path.iterdir())) == GENERATIONS + 1


def test_traces_of_ended_runs_go_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, alive = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "123")
    kit, long_ago = tmp_path / "kit", time.time() - 40 * DAY
    folders = [place / run for run in (old, new, alive) for place in (kit, tmp_path / "flare" / "jobs")]
    folders += [kit / "startup", kit / "local", tmp_path / "sessions" / "fit-1", tmp_path / "fits" / "fit-1"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "fit-1.json").touch()
    for job, run in (("fit-1", "a"), ("fit-1.questions", "b"), ("fit-2.questions", alive)):
        party.write_state(tmp_path, job, state="running", run=run)
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        if new not in str(path):
            os.utime(path, (long_ago, long_ago))
    monkeypatch.setattr(processes, "running", lambda kit: [processes.Running(1, True, alive)])
    assert tidy(tmp_path, kit, Rule(), alive.__eq__) == 3
    assert not any(old in str(path) for path in tmp_path.rglob("*"))
    assert [folder for folder in folders if not folder.exists()] == folders[:2]
    assert {path.stem for path in (tmp_path / "states").iterdir()} == {"fit-1", "fit-2.questions"}
    assert tidy(tmp_path, kit, Rule(), alive.__eq__) == 0


def test_the_session_of_a_finished_job_goes_when_its_fit_is_kept(tmp_path: Path) -> None:
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    cf.fit(plant.simulate(120, rng=2), plant.locals()).save(tmp_path / "fits" / "kept")
    (tmp_path / "jobs").mkdir()
    for job, state in (("kept", "finished"), ("lost", "finished"), ("open", "failed")):
        (tmp_path / "sessions" / job).mkdir(parents=True)
        (tmp_path / "jobs" / f"{job}.json").touch()
        party.write_state(tmp_path, job, state=state, run=job)
    assert tidy(tmp_path, tmp_path / "kit", Rule()) == 0, "it was today"
    for path in (tmp_path / "states").iterdir():
        os.utime(path, (1e9, 1e9))
    assert tidy(tmp_path, tmp_path / "kit", Rule()) == 1
    assert {path.name for path in (tmp_path / "sessions").iterdir()} == {"lost", "open"}
    assert party.state(tmp_path, "kept")["state"] == "finished"


def test_a_job_without_a_process_is_not_listed_as_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = _site(tmp_path)
    (tmp_path / "jobs").mkdir()
    members.write(tmp_path / members.FILE, [])
    site.keep(Job("fit-1", "sufficient", {"boiler": ["fuel"]}))
    for job in ("fit-1", "fit-0.questions", "fit-1.questions"):
        party.write_state(tmp_path, job, state="running", run=f"run of {job}")
    monkeypatch.setattr(processes, "running", lambda kit: [processes.Running(1, True, "run of fit-1.questions")])
    monkeypatch.setattr(CoordinatorFolder, "certificates", lambda self: {})
    with party.supervising(tmp_path):
        told = {job["id"]: job["state"] for job in of_coordinator(site, {})["jobs"]}
    assert told == {"fit-1": "not running", "fit-0.questions": "not running", "fit-1.questions": "running"}


# ---- a folder that may not be written


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """Root may write everything but a file system that is mounted read-only."""
    if os.geteuid():
        places = [*folder.rglob("*"), folder]
        modes = {place: place.stat().st_mode for place in places}
        for place in places:
            place.chmod(0o500 if place.is_dir() else 0o400)
        yield
        for place in reversed(places):
            place.chmod(modes[place])
        return
    for options in (["--bind", str(folder)], ["-o", "remount,ro,bind"]):
        if subprocess.run(["mount", *options, str(folder)], capture_output=True).returncode:
            pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("options", [[], ["--detach"]])
def test_a_folder_that_may_not_be_written_is_said_in_a_sentence(options: list[str], tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    made = CoordinatorFolder.create(tmp_path / "c", "works", "localhost", 8102)
    with _read_only(made.folder):
        command = [sys.executable, "-m", "counterflow.cli", "federation", "start", str(made.folder), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode
    assert "Traceback" not in done.stderr + done.stdout
    assert str(made.folder) in done.stderr


# ---- the site is started again


def _site(folder: Path) -> CoordinatorFolder:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return CoordinatorFolder(folder, "waterworks", "SHA256:", "works", "localhost", port, "o@x.y")


class Feigned:
    """FLARE as far as a supervisor asks for it: children that sleep; each runs for so many seconds."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.children, self.stopped = list(seconds), list[subprocess.Popen[bytes]](), list[Path]()

    def start(self, kit: Path, log: Path) -> subprocess.Popen[bytes]:
        command = f"import time; time.sleep({self.seconds.pop(0) if self.seconds else 60})"
        self.children.append(subprocess.Popen([sys.executable, "-c", command]))
        return self.children[-1]

    def stop(self, kit: Path, patience: float = 0.0) -> int:
        self.stopped.append(kit)
        for child in self.children:
            child.terminate()
        return 0

    @contextmanager
    def supervised(self, site: CoordinatorFolder | PlantFolder) -> Iterator[list[str]]:
        """What the supervisor says, which runs inside."""
        said: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FlareEngine, "require", staticmethod(lambda: None))
            patch.setattr(FlareEngine, "start", staticmethod(self.start))
            patch.setattr(FlareEngine, "stop", staticmethod(self.stop))
            patch.setattr(type(site), "prepare", lambda site: (site.folder / "prepared").touch())
            patch.setattr(type(site), "certificates", lambda site: {})
            patch.setattr(supervisor, "FIRST_PAUSE", 0.01)
            patch.setattr(supervisor, "LOOK", 0.01)
            runs = Supervisor(site, said.append)
            thread = threading.Thread(target=runs.run)
            thread.start()
            try:
                yield said
            finally:
                runs.stop()
                thread.join(10)
                for child in self.children:
                    child.wait(5)
        assert not thread.is_alive()


def test_a_plant_may_be_started_before_its_coordinator(tmp_path: Path) -> None:
    """FLARE is started when there is a server to connect to, and then at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    flare = Feigned()
    with flare.supervised(PlantFolder(tmp_path, "waterworks", "SHA256:", "owner", *address, "boiler")) as said:
        time.sleep(0.3)
        assert not flare.children
        assert len(said) == 1, "it says once for whom it waits"
        with socket.create_server(address):
            _until(lambda: flare.children)
    assert len(flare.children) == 1


def test_a_dead_site_is_started_again_and_nothing_is_left(tmp_path: Path) -> None:
    flare, site = Feigned(0, 0, 60), _site(tmp_path)
    with flare.supervised(site) as said:
        _until(lambda: len(flare.children) == 3)
        assert party.supervisor(tmp_path) == os.getpid()
        members.replace_json(tmp_path / members.PRESENCE, {"time": time.time(), "plants": ["boiler"]})
        _until(lambda: "plant boiler is connected" in said)
        party.write_state(tmp_path, "fit-1", state="failed", reason="no answer")
        _until(lambda: "job fit-1 failed: no answer" in said)
        members.replace_json(tmp_path / members.PRESENCE, {"time": time.time() - 60, "plants": ["boiler"]})  # old
        _until(lambda: "plant boiler is not connected" in said)
    assert sum(line.startswith("started (process") for line in said) == 3
    assert sum("the site ended" in line for line in said) == 2
    assert said[-1] == "stopped"
    assert flare.stopped[-1] == site.kit.folder
    assert (tmp_path / "prepared").exists()
    assert not (tmp_path / members.PRESENCE).exists()
    assert party.supervisor(tmp_path) is None


def _until(true: Any) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# ---- the standing job


class Runs:
    """An engine that remembers what it was told."""

    def __init__(self) -> None:
        self.submitted: list[tuple[str, ...]] = []
        self.aborted: list[str] = []
        self.living: set[str] = set()
        self.broken = False

    def submit(self, job: Job, units: Sequence[str]) -> str:
        if self.broken:
            raise cf.ProtocolError("the server cannot be reached")
        self.submitted.append(tuple(units))
        run = f"run-{len(self.submitted)}"
        self.living.add(run)
        return run

    def alive(self, run: str) -> bool:
        return run in self.living

    def abort(self, run: str) -> None:
        self.aborted.append(run)
        self.living.discard(run)


def _questions(fit: str) -> Job:
    return Job(f"questions-{fit}", "questions", {"turbine": (), "boiler": (), "pump": ()}, options={"of": fit})


def test_the_standing_job_is_there_when_it_can_be() -> None:
    runs, now, wanted, removed = Runs(), [0.0], [], []
    keeper = Keeper(lambda: wanted[-1] if wanted else None, runs, lambda: len(removed), lambda: now[0])

    def look(*plants: str, after: float = 3.0) -> str:
        now[0] += after
        return keeper.look(plants)

    assert look("boiler", "turbine") == ""  # no fit yet
    wanted.append(_questions("fit-1"))
    assert look() == ""  # nobody is there
    assert look("boiler") == ""  # others may be on their way
    assert look("boiler", "turbine", "stranger") == ""
    assert look("boiler", "turbine", "stranger") == "questions are answered for boiler, turbine"
    assert runs.submitted == [("turbine", "boiler")]  # the job's order, and none who is not in it
    assert look("boiler", "turbine") == ""
    assert look("boiler") == ""  # one has left: those who are there are served
    assert look("boiler", after=60) == ""
    assert look("boiler", "turbine", "pump") == ""
    assert look("boiler", "turbine", "pump").startswith("questions are answered")  # one more has come
    assert runs.aborted == ["run-1"]
    runs.living.clear()  # its process was killed
    assert look("boiler", "turbine", "pump", after=Keeper.STARTING + 1).startswith("questions")
    assert (len(runs.submitted), runs.aborted) == (3, ["run-1"])
    wanted.append(_questions("fit-2"))
    assert look("boiler", "turbine", "pump", after=Keeper.PAUSE + 1).startswith("questions")  # another fit
    assert runs.aborted == ["run-1", "run-3"]
    assert look("boiler", "turbine", after=Keeper.PAUSE + 1) == ""
    removed.append("pump")  # what it has agreed to holds no more
    assert look("boiler", "turbine") == "questions are answered for boiler, turbine"
    assert runs.aborted == ["run-1", "run-3", "run-4"]
    assert look("boiler", "turbine", "pump", after=Keeper.PAUSE + 1) == ""  # it has come back
    runs.living.clear()
    runs.broken = True
    assert "cannot be answered yet" in look("boiler", "turbine", "pump", after=Keeper.STARTING + 1)
    tries = sum(bool(look("boiler", "turbine", "pump", after=1)) for _ in range(100))
    assert 2 <= tries <= 4  # less and less often
    runs.broken = False
    assert look("boiler", "turbine", "pump", after=400).startswith("questions are answered")


# ---- members


def test_presence_must_be_fresh(tmp_path: Path) -> None:
    place = tmp_path / members.PRESENCE
    assert members.presence(tmp_path) == {}
    members.replace_json(place, {"time": time.time(), "connected": True})
    assert members.presence(tmp_path)["connected"]
    for old in ({"time": time.time() - members.FRESH - 1, "connected": True}, {"connected": True}, {"time": "x"}):
        members.replace_json(place, old)
        assert members.presence(tmp_path) == {}
    place.write_text("{")
    assert members.presence(tmp_path) == {}


def test_only_members_are_admitted(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FLARE's own, on import
        from counterflow.federation.flare.admission import Admission

    def pem(name: str) -> str:
        return certificates.found(name, keys.new()).public_bytes(Encoding.PEM).decode()

    def listed(**pems: str) -> None:
        made = []
        for name, text in pems.items():
            own = certificates.fingerprint(load_pem_x509_certificate(text.encode()))
            made.append(Member(Participant(name, "plant", "x"), "", "", (own,)))
        members.write(place, made)

    boiler, turbine, stranger = map(pem, ("boiler", "turbine", "stranger"))
    place = tmp_path / members.FILE
    listed(boiler=boiler, turbine=turbine)
    admission = Admission(place)
    assert admission.admits(boiler.encode()).startswith("SHA256:")
    assert admission.admits(boiler + stranger, "boiler")  # with the authority's behind it
    assert not admission.admits(boiler, "turbine")
    assert not admission.admits(stranger + boiler)
    assert not any(map(admission.admits, (None, b"", "nonsense", b"\xff\xfe", boiler.replace("MII", "%%%"))))
    connection = admission.admits(boiler)
    assert admission.has(connection)
    listed(turbine=turbine)
    assert not admission.has(connection), "nothing passes a connection of one who was removed"
    for broken in (lambda: place.write_text("{"), lambda: place.write_text('["x"]'), place.unlink):
        listed(turbine=turbine)
        assert admission.admits(turbine)
        broken()
        assert not admission.admits(turbine)  # a list that cannot be read admits nobody


# ---- the commands say what is wrong


def _said(*arguments: str) -> tuple[int, str]:
    from counterflow.cli import app

    done = CliRunner().invoke(app, ["federation", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def test_without_flare_the_commands_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from counterflow.federation import flare

    def missing(name: str) -> str:
        raise flare.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(flare.metadata, "version", missing)
    code, text = _said("init", str(tmp_path / "c"), "--name", "x", "--host", "localhost")
    assert (code, "pip install 'counterflow[federation]'" in text) == (2, True)
    assert not (tmp_path / "c").exists()


def test_what_a_wrong_command_is_told(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")
    new = str(tmp_path / "new")
    for arguments, text in (
        (("status", new), "is not the folder of a party"),
        (("start", new), "is not the folder of a party"),
        (("stop", new), "is not the folder of a party"),
        (("fit", new), "is not the folder of a party"),
        (("remove", new, "boiler"), "is not the folder of a party"),
        (("join", new), "also give --unit, --federation, --fingerprint, --log"),
        (("join", new, "--welcome", "x"), "has not asked to join yet"),
        (
            ("join", new, "--unit", "a", "--federation", "f", "--fingerprint", "x", "--log", "log.csv"),
            "a .toml that says which columns are inputs",
        ),
        (
            ("join", new, "--unit", "a", "--federation", "f", "--fingerprint", "x", "--log", "no.safetensors"),
            "no.safetensors",
        ),
        (("init", new, "--name", "a b", "--host", "localhost"), "its name must be 1 to 63 letters"),
        (("init", new, "--name", "a", "--host", "local host"), "the name of a server must be"),
        (("init", new, "--name", "a", "--host", "h", "--operator", "me"), "an e-mail address"),
    ):
        code, said = _said(*arguments)
        assert (code, text in said) == (2, True), said
        assert said.startswith("counterflow: "), said
    assert not Path(new).exists() or not list(Path(new).iterdir())


def test_a_job_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Killed, so that it cannot tell; the child has nothing to do but to live."""
    psutil = pytest.importorskip("psutil")
    child = (
        "import time, os; from counterflow.federation.flare.processes import end_with_parent; end_with_parent(0.05); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    parent = subprocess.Popen([sys.executable, "-c", starts])
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pid = int((tmp_path / "pid").read_text())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
