"""NVIDIA FLARE on loopback with keys made at each party: the same estimates as in process, faults, and intruders."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerances import EXACT

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from flare_loopback import CREATED, OPERATOR, Cable, Loopback, rerouted

from counterflow.federation import PlantView
from counterflow.federation.audit import FILE, Audit, verify
from counterflow.federation.flare import jobs, kit, processes
from counterflow.federation.flare.operator import Operator
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about
from counterflow.federation.sites import certificates, keys
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.privacy import Ledger, ledger_path

pytestmark = pytest.mark.filterwarnings("ignore")  # FLARE's own, in the operator's connection

UNITS = ("boiler", "turbine")
POLICY = """unit = "{unit}"
[leave]
methods = ["sufficient", "penalty", "lagrangian"]
[privacy]
demanded = false
simulation = true
delta = 0.01
ledger = "budget"
[ask]
boiler = ["*"]
turbine = ["u1"]
"""
ROUNDS = 40
KILLED = "fit-killed"
CASES: dict[str, tuple[str, dict[str, Any], cf.Privacy | None]] = {
    "sufficient": ("sufficient", {}, None),
    "private": ("sufficient", {"uncertainty": False, "evaluations": 3}, cf.Privacy(8.0, 1e-5, seed=3)),
    "gradient": ("penalty", {"solver": "gradient", "rounds": 4}, None),
    "conjugate": ("penalty", {"xi": 1.0}, None),
    "lagrangian": ("lagrangian", {"rounds": 4}, None),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    plant = cf.random_plant(units=UNITS, rng=1)
    sites = Loopback(tmp_path_factory.mktemp("federation"), plant.simulate(400, rng=2), plant.locals())
    try:
        sites.make(POLICY)
        resources = sites.kits["localhost"] / "local" / "resources.json"
        resources.write_text(resources.read_text().replace('"max_jobs": 4', '"max_jobs": 8'))
        yield sites
    finally:
        for name in ("localhost", *UNITS):
            if name in sites.kits:
                processes.stop(sites.kits[name], patience=0)


def _job(made: Loopback, case: str) -> Job:
    method, options, privacy = CASES[case]
    inputs = {unit.name: unit.inputs for unit in made.recording.units}
    kept: dict[str, Any] = {"privacy": privacy, "seed": 7, "dt": made.recording.dt, "created": CREATED}
    return Job(f"fit-{case}", method, inputs, options=options, **kept)


def _records(made: Loopback, unit: str, job: str) -> list[dict[str, Any]]:
    with Audit(made.root / unit / FILE) as audit:
        return [record for record in audit.records() if record.get("job") == job]


def _log(made: Loopback, name: str) -> str:
    return (made.root / name / "site.log").read_text(errors="replace")


def _logged(made: Loopback, words: str, *names: str, patience: float = 10) -> bool:
    """Whether one of the logs says so; FLARE writes some seconds after it has acted."""
    deadline = time.monotonic() + patience
    while not any(words in _log(made, name) for name in names):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


class TestTogether:
    """One federation that is as it should be; the boiler's line to the server can be cut."""

    @pytest.fixture(scope="class")
    def line(self, made: Loopback) -> Iterator[Cable]:
        with rerouted(made.kits["boiler"]) as cable:
            yield cable

    @pytest.fixture(scope="class")
    def running(self, made: Loopback, line: Cable) -> Iterator[Loopback]:
        with made:
            runs = {case: made.submit(_job(made, case)) for case in CASES}  # all at once
            for case, run in runs.items():
                state = made.ended(_job(made, case), run)
                assert state["state"] == "finished", f"{case}: {state}\n{made.logs()}"
            yield made
        for name in ("localhost", *UNITS):
            assert not processes.running(made.kits[name]), name

    @pytest.mark.parametrize("case", CASES)
    def test_the_same_estimate_as_in_one_process(self, running: Loopback, case: str) -> None:
        job = _job(running, case)
        result = running.session(job).result()
        more: dict[str, Any] = {"compress": False} if job.method in ("penalty", "lagrangian") else {}
        wanted = cf.fit(
            running.recording, running.models, job.method, privacy=job.privacy, seed=7, **job.options, **more
        )
        found = result.server
        np.testing.assert_allclose(found.A, wanted.plant.A, rtol=EXACT, atol=EXACT)
        np.testing.assert_allclose(found.B, wanted.plant.B, rtol=EXACT, atol=EXACT)
        if job.privacy is None:
            traffic, due = result.traffic, wanted.traffic
            assert (traffic.bytes_up, traffic.bytes_down) == (due.bytes_up, due.bytes_down)
        for unit in UNITS:
            left = [record for record in _records(running, unit, job.id) if record["event"] == "left"]
            if job.method == "sufficient":
                assert [record["kind"] for record in left] == ["Sufficient"]
            if case == "gradient":
                assert [record["kind"] for record in left] == ["Introduction"] + ["AugmentedStates"] * 4
            with Ledger.open(ledger_path(running.root / unit / "budget", unit)) as ledger:
                paid = [entry.id for entry in ledger.entries() if entry.fit == f"job {job.id}"]
            assert paid == [record["ledger_entry"] for record in left if "ledger_entry" in record]
            assert len(paid) == (job.privacy is not None)

    def test_questions_have_the_same_answers_as_in_one_process(self, running: Loopback) -> None:
        """And one that the policy forbids has none. The plants' box of questions outlives a killed job process."""
        job = _job(running, "sufficient")
        data = running.recording
        alone = cf.fit(data, running.models, seed=7)
        run = running.submit(questions_about(job))
        boiler, turbine = (PlantFolder.open(running.root / unit).view(job.id) for unit in UNITS)
        change, do, rows = {"u1": 0.5}, {"turbine": {"u2": 0.0}}, {"start": 300, "stop": 320}
        pairs = [
            (boiler.effect("turbine", "boiler", change, 9, 4), alone.effect("turbine", "boiler", change, 9, 4)),
            (boiler.counterfactual(do=do, **rows)["boiler"], alone.counterfactual(data, do, **rows)["boiler"]),
            (boiler.forecast(None, 7, do)["boiler"], alone.forecast(data, 7, do)["boiler"]),
        ]  # fmt: skip
        for found, wanted in pairs:
            for field in ("mean", "lower", "upper"):
                np.testing.assert_allclose(getattr(found, field), getattr(wanted, field), rtol=EXACT, atol=EXACT)
        _the_console_at_a_plant_asks_through_it(boiler, alone)
        turbine.effect("boiler", "turbine", change, 1)
        with pytest.raises(cf.UnknownNameError, match="no input 'u2' that can be asked about here"):
            turbine.effect("boiler", "turbine", {"u2": 1.0}, 1)
        vars(turbine.server)["_others"] = {"boiler": running.recording["boiler"].unit.public}  # as if it knew
        del vars(turbine)["plant"]  # which is made of it
        with pytest.raises(cf.PrivacyError, match="'boiler' does not let 'turbine' ask about its input 'u2'"):
            turbine.effect("boiler", "turbine", {"u2": 1.0}, 1)
        with Audit(running.root / "localhost" / FILE) as audit:
            refused = [record for record in audit.records() if record["event"] == "refused"]
        assert [(record["unit"], record["kind"]) for record in refused] == [("turbine", "effect")]
        asked = _records(running, "turbine", f"{job.id}.questions")
        assert [record["event"] for record in asked if record["event"] in ("asked", "answered")] == [
            "asked",
            "answered",
        ] * 3, "the first: whom may I ask about?"
        _nobody_but_the_server_gives_a_plant_tasks(running, run)
        _nobody_without_its_key_speaks_to_a_plants_own_processes(running)
        assert running.operator is not None
        running.operator.abort(run)

    def test_a_fit_goes_on_after_kills_and_a_cut_line(self, running: Loopback, line: Cable) -> None:
        """A line is cut; then a whole plant is killed, and the server's job; the follower sees to the rest.

        The long version, with kills of everything at every phase, is benchmarks/bench_faults.py.
        """
        made, job = running, running.job(KILLED, "penalty", solver="gradient", rounds=ROUNDS)
        done: list[dict[str, Any]] = []
        follower = threading.Thread(target=lambda: done.append(made.follow(job, deadline=10)), daemon=True)
        follower.start()

        def exchanged(count: int, run: str = "") -> str:
            deadline = time.monotonic() + 60
            while (state := made.state(job)).get("exchanges", 0) < count or state["run"] == run:
                assert time.monotonic() < deadline, f"{state}\n{made.logs()}"
                time.sleep(0.01)
            assert state["state"] == "running", f"{state}: give it more rounds"
            return str(state["run"])

        first = exchanged(6)
        line.cut()  # for less than the deadline: the run survives
        before = made.state(job)["exchanges"]
        time.sleep(1.0)
        assert made.state(job)["exchanges"] <= before + len(UNITS), "it went on without the boiler"
        line.mend()
        assert exchanged(14) == first
        assert made.kill("turbine") >= 2
        assert made.kill("localhost", "job") >= 1
        made.start("turbine")
        exchanged(2, first)
        follower.join(60)
        assert done, made.logs()
        assert done[0]["state"] == "finished"
        assert made.follow(job)["run"] == done[0]["run"], "what is finished is not submitted again"
        wanted = cf.fit(made.recording, made.models, "penalty", solver="gradient", rounds=ROUNDS, compress=False)
        result = made.session(job).result()
        np.testing.assert_allclose(result.server.B, wanted.plant.B, rtol=EXACT, atol=EXACT)
        traffic, due = result.traffic, wanted.traffic
        assert (traffic.rounds, traffic.bytes_up, traffic.bytes_down) == (due.rounds, due.bytes_up, due.bytes_down)
        for unit in UNITS:
            assert verify(made.root / unit / FILE).broken is None
            left = [record["kind"] for record in _records(made, unit, job.id) if record["event"] == "left"]
            assert left == ["Introduction"] + ["AugmentedStates"] * ROUNDS

    def test_a_method_that_the_policy_forbids_is_refused_by_rule_and_line(self, running: Loopback) -> None:
        job = running.job("fit-hybrid", "hybrid")
        with pytest.raises(cf.ProtocolError) as refusal:
            running.follow(job)
        assert refusal.value.code == "refused"
        first = [unit for unit in UNITS if f"unit {unit!r} refused by leave.methods (line 3 of" in str(refusal.value)]
        assert first
        for unit in first:
            assert [record["event"] for record in _records(running, unit, job.id)] == ["opened", "refused"]

    def test_the_server_refuses_a_job_with_code(self, running: Loopback) -> None:
        assert running.operator is not None
        before = _log(running, "localhost")
        run = running.operator.submit(_foreign(running, "code", custom=True))
        assert _over(running, run) != "FINISHED:COMPLETED"
        assert "Counterflow refuses this job" not in before
        assert _logged(running, "Counterflow refuses this job", "localhost"), running.logs()
        assert running.operator.refusals(run)
        assert not (running.root / "mark").exists()


def _the_console_at_a_plant_asks_through_it(boiler: PlantView, alone: cf.Fit) -> None:
    from fastapi.testclient import TestClient

    from counterflow.console.app import application
    from counterflow.console.opening import Opened, plant_seat

    page = TestClient(application(Opened("boiler", {"unit:boiler": plant_seat(boiler)})))
    seen = page.get("/api/seats/unit:boiler/plant").json()
    assert {unit["name"]: bool(unit["outputs"]) for unit in seen["units"]} == {"boiler": True, "turbine": False}
    assert not seen["questions"]["graph"]["allowed"]
    changes = [{"unit": "turbine", "input": "u1", "size": 0.5}]
    told = page.post(
        "/api/seats/unit:boiler/effect", json={"effect": "boiler", "changes": changes, "horizon": 9}
    ).json()
    wanted = alone.effect("turbine", "boiler", {"u1": 0.5}, 9)
    for drawn in told["drawn"]:
        column = wanted.channels.index(drawn["channel"])
        np.testing.assert_allclose(drawn["upper"], wanted.upper[:, column], rtol=EXACT, atol=EXACT)  # type: ignore[index]
        assert len(drawn["baseline"]) == 9
    window = {"unit": "boiler", "start": 300, "stop": 320}
    told = page.post("/api/seats/unit:boiler/explain", json=window).json()
    assert told["kind"] == "attribution"
    changes = [{"unit": "turbine", "input": "u2", "mode": "add", "value": -1.0}]
    told = page.post("/api/seats/unit:boiler/past", json={**window, "changes": changes}).json()
    assert told["kind"] == "counterfactual"


def _nobody_but_the_server_gives_a_plant_tasks(made: Loopback, run: str) -> None:
    """An operator's cell in FLARE's network sends a plant what the server would send; it must not come in."""
    from nvflare.apis.fl_constant import ReservedKey, ReservedTopic
    from nvflare.apis.shareable import ReservedHeaderKey, Shareable
    from nvflare.fuel.f3.cellnet.defs import CellChannel
    from nvflare.fuel.f3.message import Message

    assert made.operator is not None
    request = Shareable(jobs.packed([]))
    request.set_header(ReservedHeaderKey.TASK_NAME, jobs.TASK)
    request.set_header(ReservedHeaderKey.TASK_ID, "mine")
    request.set_peer_props({ReservedKey.RUN_NUM: run, ReservedKey.IDENTITY_NAME: "server"})
    cell = made.operator._session.api.cell
    cell.send_request(
        CellChannel.AUX_COMMUNICATION, ReservedTopic.DO_TASK, f"boiler.{run}", Message({}, request), timeout=1.0
    )
    assert _logged(made, f"Counterflow drops a message: {OPERATOR} asks boiler", "localhost")
    assert "task_id=mine" not in _log(made, "boiler")


def _nobody_without_its_key_speaks_to_a_plants_own_processes(made: Loopback) -> None:
    """Their port is open to all users of the machine, and any of them can read it off a command line."""
    import psutil

    (job, *_) = [process for process in processes.running(made.kits["boiler"]) if process.job]
    (parent,) = [argument for argument in psutil.Process(job.pid).cmdline() if "://localhost:" in argument]
    assert parent.startswith("stcp://")
    port = int(parent.rpartition(":")[2])
    startup = made.kits["boiler"] / "startup"
    assert _shakes_hands(port, (startup / "client.crt", startup / "client.key"))
    assert not _shakes_hands(port, None)
    assert not _shakes_hands(port, _self_signed(made.root))


def _shakes_hands(port: int, own: tuple[Path, Path] | None) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(*own)
    with socket.create_connection(("localhost", port), timeout=5) as plain:
        try:
            with context.wrap_socket(plain) as line:
                line.settimeout(2)
                return line.recv(1) != b""
        except TimeoutError:
            return True  # it listens
        except OSError:
            return False


FOREIGN = {  # name: (plant, with code of its own, privacy scope, what the logs must say)
    "code-at-gate": ("boiler", True, "", "Counterflow refuses this job"),
    "class-at-gate": ("boiler", False, "", "Counterflow refuses this job"),
    "scope": ("boiler", False, "open", "privacy scope 'open' is not allowed"),
    "code-at-flare": ("turbine", True, "", "BYOC not permitted"),
    "class-at-flare": ("turbine", False, "", "is not in allow_list"),
}
FORGED = {  # name: what the plant's audit log, or the log of its process, must say
    "malformed": "incoming",
    "cut short": "incoming",
    "oversized": "incoming",
    "too many": "at most 1000",
    "not an envelope": "must hold",
    "before its turn": "message 0 is due",
    "of another job": "incoming",
    "other content": "came before with other content",
    "another unit's": "spoken to by its own name",
}


class TestIntruders:
    """The server lies: it allows everything, and does not mark commands as ones to be authorised.

    At the turbine our own gate and lock are off, and FLARE's policy must do alone: it does against jobs, but not
    against the shell, which is why there is a lock.
    """

    @pytest.fixture(scope="class")
    def lying(self, made: Loopback) -> Iterator[Loopback]:
        made = made.copied()
        _allow_everything(made.kits["localhost"])
        _without_gate_and_lock(made.kits["turbine"])
        with pytest.MonkeyPatch.context() as patch:
            _let_lie(made, patch)
            with made:
                yield made

    @pytest.fixture(scope="class")
    def foreign(self, lying: Loopback) -> dict[str, str]:
        """FLARE's last word on each foreign job; they were submitted all at once."""
        assert lying.operator is not None
        runs = {
            name: lying.operator.submit(_foreign(lying, name, target=target, custom=custom, scope=scope))
            for name, (target, custom, scope, _) in FOREIGN.items()
        }
        return {name: _over(lying, run, saying=FOREIGN[name][3]) for name, run in runs.items()}

    @pytest.fixture(scope="class")
    def forged(self, lying: Loopback) -> dict[str, list[Any]]:
        """What the boiler answered to each forgery: its return code and how many messages came with it."""
        assert lying.operator is not None
        job = lying.job("fit-forged", "penalty", solver="gradient", rounds=3)
        folder = jobs.write(lying.root / "forged", job.id, job.to_text(), job.part_texts(UNITS), 30)
        config = folder / "coordinator" / "config" / jobs.COORDINATOR_FILE
        config.write_text(config.read_text().replace(kit.CONTROLLER, "liar.Forger"))
        state = lying.ended(job, lying.operator.submit(folder))
        assert state["state"] == "finished", f"{state}\n{lying.logs()}"
        found: dict[str, list[Any]] = json.loads((lying.root / "lies" / "forged.json").read_text())
        return found

    @pytest.mark.parametrize("name", FOREIGN)
    def test_a_plant_refuses_what_is_not_ours(self, lying: Loopback, foreign: dict[str, str], name: str) -> None:
        target, _, _, reason = FOREIGN[name]
        assert foreign[name] != "FINISHED:COMPLETED"
        assert _logged(lying, reason, target, "localhost"), lying.logs()
        assert not (lying.root / "mark").exists()

    def test_an_operators_shell_command_is_refused(self, lying: Loopback) -> None:
        assert lying.operator is not None
        assert _shell(lying, "boiler") == "invalid_request"
        assert "privacy.json" in _shell(lying, "turbine"), "the lock is no longer needed"
        assert "no callback" in str(lying.operator._session.do_command("process_info boiler"))
        assert "Process ID" in str(lying.operator._session.do_command("process_info turbine"))

    @pytest.mark.parametrize("name", FORGED)
    def test_a_forged_message_is_refused_and_written_down(
        self, lying: Loopback, forged: dict[str, list[Any]], name: str
    ) -> None:
        assert forged[name] == ["EXECUTION_EXCEPTION", 0]
        refused = [json.dumps(record) for record in _records(lying, "boiler", "fit-forged")]
        assert FORGED[name] in _log(lying, "boiler") + "".join(line for line in refused if '"refused"' in line)

    def test_a_replayed_message_brings_the_same_answer_and_nothing_new(
        self, lying: Loopback, forged: dict[str, list[Any]]
    ) -> None:
        assert forged["first"] == forged["replayed"]
        assert forged["first"][0] == "OK"
        records = _records(lying, "boiler", "fit-forged")
        left = [record for record in records if record["event"] == "left"]
        assert [record["kind"] for record in left] == ["Introduction"] + ["AugmentedStates"] * 3
        assert len({record["sha256"] for record in left}) == len(left)
        assert sum(record["event"] == "refused" for record in records) >= 7
        assert verify(lying.root / "boiler" / FILE).broken is None

    def test_no_estimate_is_spoilt_by_it(self, lying: Loopback, forged: dict[str, list[Any]]) -> None:
        job = lying.job("fit-forged", "penalty", solver="gradient", rounds=3)
        wanted = cf.fit(lying.recording, lying.models, "penalty", solver="gradient", rounds=3, compress=False)
        found = lying.session(job).result().server
        np.testing.assert_allclose(found.B, wanted.plant.B, rtol=EXACT, atol=EXACT)

    @pytest.mark.parametrize("how", ["right", "none", "self-signed", "plaintext"])
    def test_no_way_in_without_the_right_certificate(self, lying: Loopback, how: str) -> None:
        startup = lying.kits["boiler"] / "startup"
        described = json.loads((lying.kits["turbine"] / "startup" / "fed_client.json").read_text())
        host, port = described["servers"][0]["service"]["target"].split(":")
        if how == "right":  # the greeting is answered then
            assert _greeting(host, int(port), (startup / "client.crt", startup / "client.key"))
        elif how == "none":
            assert not _greeting(host, int(port), None)
        elif how == "self-signed":
            assert not _greeting(host, int(port), _self_signed(lying.root))
        else:
            with socket.create_connection((host, int(port)), timeout=5) as plain:
                plain.sendall(PREFACE)
                assert not _answer(plain)

    def test_a_plants_certificate_is_no_operators(self, lying: Loopback) -> None:
        disguised = lying.kits[OPERATOR].with_name("disguised")
        shutil.copytree(lying.kits[OPERATOR], disguised)
        for name in ("client.crt", "client.key"):
            shutil.copy(lying.kits["boiler"] / "startup" / name, disguised / "startup" / name)
        with pytest.raises(cf.ProtocolError, match="cannot be reached"):
            Operator(disguised, patience=1)

    def test_a_plants_certificate_is_no_other_plants(self, lying: Loopback) -> None:
        """The turbine calls itself boiler. The last test here: the boiler is gone after it."""
        processes.stop(lying.kits["boiler"], patience=0)
        for name in ("client.crt", "client.key"):
            shutil.copy(lying.kits["turbine"] / "startup" / name, lying.kits["boiler"] / "startup" / name)
        lying.start("boiler")
        deadline = time.monotonic() + 30
        while "authenticated as 'turbine' but claimed endpoint 'boiler'" not in _log(lying, "localhost"):
            assert time.monotonic() < deadline, lying.logs()
            time.sleep(0.1)


# ---- intruders


def _foreign(made: Loopback, name: str, target: str = "boiler", custom: bool = False, scope: str = "") -> Path:
    """A job that is not ours: with code of its own, or with a class of FLARE's."""
    job = made.job(name)
    folder = jobs.write(made.root / "foreign", name, job.to_text(), job.part_texts((target,)))
    config = folder / "plant-1" / "config" / jobs.PLANT_FILE
    content: dict[str, Any] = json.loads(config.read_text())
    path = "foreign.Foreign" if custom else "nvflare.app_common.np.np_trainer.NPTrainer"
    content["executors"][0]["executor"] = {"path": path, "args": {}}
    config.write_text(json.dumps(content))
    if custom:
        code = folder / "plant-1" / "custom" / "foreign.py"
        code.parent.mkdir()
        mark = str(made.root / "mark")
        code.write_text(
            f"open({mark!r}, 'w').close()\nfrom nvflare.app_common.np.np_trainer import NPTrainer as Foreign\n"
        )
    if scope:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, "scope": scope}))
    return folder


def _over(made: Loopback, run: str, patience: float = 40, saying: str = "") -> str:
    """FLARE's last word on a run; or its word when a log says so, seconds before FLARE has tidied up."""
    assert made.operator is not None
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        state = made.operator.state(run)
        if state.startswith("FINISHED") or (state == "RUNNING" and saying and saying in _log(made, "turbine")):
            return state
        time.sleep(0.2)
    raise AssertionError(f"run {run} is {state}\n{made.logs()}")


def _shell(made: Loopback, unit: str) -> str:
    """What an operator's shell command at a plant brings."""
    try:
        return str(made.operator._session.ls_target(unit, path="local"))  # type: ignore[union-attr]
    except Exception as error:
        return f"refused: {type(error).__name__}"


def _let_lie(made: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server leave out the marks by which plants know that a command is to be authorised."""
    code = made.root / "lies"
    code.mkdir()
    (code / "liar.py").write_text(LIAR)
    honest = processes.environment()
    monkeypatch.setattr(processes, "environment", lambda: {**honest, "PYTHONPATH": str(code)})
    resources = made.kits["localhost"] / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content["components"] = [part for part in content["components"] if part["id"] not in ("lock", "members")]
    content["components"].append({"id": "liar", "path": "liar.Liar", "args": {}})
    resources.write_text(json.dumps(content))


LIAR = """
import json
import pathlib

import numpy as np

from counterflow.federation.flare import controller
from counterflow.federation.flare.controller import CoordinatorController, NoAnswer, push
from counterflow.protocol import Plan, StateGradients, decode, encode
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader

honest = Message.set_header


def set_header(self, key, value):
    if key not in (RequestHeader.REQUIRE_AUTHZ, RequestHeader.ADMIN_COMMAND):
        honest(self, key, value)


class Liar:
    def __init__(self):
        Message.set_header = set_header


class Forger(CoordinatorController):
    def _converse(self, session, engine, abort_signal, tell):
        self.engine, self.told = engine, {}
        first = [(one.sequence, one.data) for one in session.outgoing() if one.unit == "boiler"]
        (sequence, plan), = first
        huge = encode(StateGradients("boiler", 0, False, False, 1.0, False, np.ones((9999, 2)), np.ones((9999, 2))))
        self.forge("malformed", [(0, b"CFLW" + bytes(range(256)))])
        self.forge("cut short", [(0, plan[:-3])])
        self.forge("oversized", [(0, plan + bytes(2_000_000))])
        self.forge("too many", [(0, plan)] * 1001)
        self.forge("before its turn", [(1, plan)])
        self.forge("another unit's", [(0, encode(Plan("turbine", *list(vars(decode(plan)).values())[1:])))])
        packed, controller.packed = controller.packed, lambda messages: {"weights": b"x"}
        self.forge("not an envelope", [])
        controller.packed = packed
        self.forge("first", first)
        self.forge("replayed", first)
        self.forge("other content", [(0, huge)])
        self.forge("of another job", [(1, huge)])
        pathlib.Path(__file__).with_name("forged.json").write_text(json.dumps(self.told))
        super()._converse(session, engine, abort_signal, tell)

    def forge(self, name, messages):
        while name not in self.told:  # the plant may not be ready yet
            try:
                self.told[name] = ["OK", len(push(self.engine, "boiler", messages, 10.0))]
            except NoAnswer as silent:
                if silent.said:
                    self.told[name] = [silent.said, 0]
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def _greeting(host: str, port: int, own: tuple[Path, Path] | None) -> bytes:
    """What the server answers to the first words of gRPC over TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if own is not None:
        context.load_cert_chain(*map(str, own))
    try:
        with socket.create_connection((host, port), timeout=5) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(PREFACE)
            return _answer(secure)
    except (ssl.SSLError, OSError):
        return b""


def _answer(connection: socket.socket) -> bytes:
    connection.settimeout(5)
    try:
        return connection.recv(9)
    except (ssl.SSLError, OSError):
        return b""


def _self_signed(folder: Path) -> tuple[Path, Path]:
    key, files = keys.new(), (folder / "self.crt", folder / "self.key")
    certificates.write(files[0], certificates.found("boiler", key))
    keys.keep(key, files[1])
    return files


def _allow_everything(server: Path) -> None:
    resources = server / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content.pop("app_validator")
    resources.write_text(json.dumps({**content, "class_allow_list": ["*"]}))
    rights = {role: dict.fromkeys(kit.RIGHTS, "any") for role in kit.ROLES}
    (server / "local" / "authorization.json").write_text(json.dumps({"format_version": "1.0", "permissions": rights}))


def _without_gate_and_lock(plant: Path) -> None:
    resources = plant / "local" / "resources.json"
    content = json.loads(resources.read_text())
    content.pop("app_validator")
    content["components"] = [part for part in content["components"] if part["id"] != "lock"]
    resources.write_text(json.dumps(content))
