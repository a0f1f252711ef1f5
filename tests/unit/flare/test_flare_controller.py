"""The coordinator's part inside FLARE, with a feigned engine: what is lost is sent again, a refusal is the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import Federation
from tolerances import EXACT

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal

from counterflow.exchange.task import UnitData
from counterflow.federation import Job, Policy
from counterflow.federation.controllers import Unanswered
from counterflow.federation.flare import controller, jobs
from counterflow.federation.flare.controller import CoordinatorController, carry
from counterflow.federation.flare.jobs import CANNOT, REFUSAL
from counterflow.federation.refusal import Refusal
from counterflow.federation.sites import party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder

PLANT = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=1)
RECORDING = PLANT.simulate(60, rng=2)
OPTIONS: dict[str, Any] = {"solver": "gradient", "rounds": 4}
JOB = Job("pushed", "penalty", {unit.name: unit.inputs for unit in RECORDING.units}, options=OPTIONS)
Engine = Callable[[str, list[tuple[int, bytes]]], Shareable | None]


class Context:
    """As much of FLARE's engine and context as the controller asks for."""

    def __init__(self, root: Path, answer: Engine) -> None:
        self.root, self.answer = root, answer
        self.panics: list[str] = []

    def get_engine(self) -> Context:
        return self

    def get_workspace(self) -> Context:
        return self

    def get_root_dir(self) -> str:
        return str(self.root / "server")

    def get_job_id(self) -> str:
        return "run-1"

    @contextmanager
    def new_context(self) -> Iterator[Context]:
        yield self

    def send_aux_request(
        self, targets: list[str], topic: str, request: Shareable, timeout: float, fl_ctx: Context, optional: bool
    ) -> dict[str, Shareable]:
        assert topic == ReservedTopic.DO_TASK
        assert request.get_header(ReservedHeaderKey.TASK_NAME) == jobs.TASK
        assert request.get_header(ReservedHeaderKey.TASK_ID)
        assert timeout > 0
        (unit,) = targets
        reply = self.answer(unit, jobs.unpacked(request, unit))
        return {} if reply is None else {unit: reply}


def coordinator(folder: Path) -> CoordinatorFolder:
    return CoordinatorFolder(folder, "waterworks", "SHA256:", "works", "localhost", 0, "o@x.y")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.setattr(controller, "end_with_parent", lambda: None)
    monkeypatch.setattr(controller, "_PAUSE", 0.001)
    monkeypatch.setattr(controller, "_START", 0.1)
    monkeypatch.setattr(controller, "_LOOK", 0.01)
    monkeypatch.setattr(CoordinatorFolder, "open", coordinator)
    monkeypatch.setattr(
        CoordinatorController, "system_panic", lambda self, reason, fl_ctx: fl_ctx.panics.append(reason)
    )


@pytest.fixture
def plants(tmp_path: Path) -> Iterator[Federation]:
    units = {n: UnitData(RECORDING[n].unit, RECORDING[n].y, RECORDING[n].u, PLANT.local(n)) for n in JOB.units}
    policies = {n: Policy(n, methods=("penalty",), demanded=False) for n in JOB.units}
    with Federation(tmp_path / "plants", JOB, units, policies) as federation:
        yield federation


def answering(plants: Federation) -> Callable[[str, list[tuple[int, bytes]]], Shareable]:
    lock = threading.Lock()

    def answer(unit: str, messages: list[tuple[int, bytes]]) -> Shareable:
        with lock:
            replies = [reply for message in messages for reply in plants.plant(unit).receive(*message)]
        return Shareable(jobs.packed([(reply.sequence, reply.data) for reply in replies]))

    return answer


def run(root: Path, answer: Engine, deadline: int = 60, abort: Signal | None = None) -> tuple[dict[str, Any], Context]:
    context = Context(root, answer)
    found = CoordinatorController(jobs.encoded(JOB.to_text()), deadline)
    found.control_flow(abort or Signal(), context)  # type: ignore[arg-type]
    return party.state(root, JOB.id), context


def agrees(root: Path) -> None:
    wanted = cf.fit(RECORDING, PLANT.locals(), "penalty", compress=False, **OPTIONS)
    with coordinator(root).session(JOB) as session:
        found = session.result().server
    np.testing.assert_allclose(found.A, wanted.plant.A, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(found.B, wanted.plant.B, rtol=EXACT, atol=EXACT)


def test_a_job_is_pushed_to_its_end(tmp_path: Path, plants: Federation) -> None:
    state, context = run(tmp_path, answering(plants))
    assert state["state"] == "finished"
    assert state["exchanges"] == 2 * 5
    assert not context.panics
    agrees(tmp_path)


def test_whoever_is_not_reached_is_asked_again(tmp_path: Path, plants: Federation) -> None:
    """Requests that are lost, and answers that are lost after the plant has taken the message in."""
    real, calls = answering(plants), iter(range(1000))
    lost = [
        None, make_reply(ReturnCode.COMMUNICATION_ERROR), make_reply(ReturnCode.TIMEOUT), make_reply(ReturnCode.ERROR),
        make_reply(ReturnCode.TOPIC_UNKNOWN), make_reply(ReturnCode.SERVICE_UNAVAILABLE),
    ]  # fmt: skip

    def lossy(unit: str, messages: list[tuple[int, bytes]]) -> Shareable | None:
        call = next(calls)
        if call % 3 == 0:
            return lost[call // 3 % len(lost)]
        answer = real(unit, messages)
        return lost[call // 3 % len(lost)] if call % 3 == 1 else answer

    state, _ = run(tmp_path, lossy)
    assert state["state"] == "finished"
    assert next(calls) > 2 * 2 * 5
    agrees(tmp_path)


def test_a_refusal_ends_the_run_and_the_next_one_goes_on(tmp_path: Path, plants: Federation) -> None:
    real = answering(plants)

    def refusing(unit: str, messages: list[tuple[int, bytes]]) -> Shareable:
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if messages[0][0] == 2 else real(unit, messages)

    state, context = run(tmp_path, refusing)
    assert (state["state"], state["code"]) == ("failed", "refused")
    assert len(context.panics) == 1
    state, _ = run(tmp_path, real)
    assert state["state"] == "finished"
    assert state["exchanges"] < 2 * 5, "it went on, it did not begin again"
    agrees(tmp_path)


def test_reasons_of_all_plants_are_said_at_once(tmp_path: Path) -> None:
    """Which plant, which rule, which line; what is no reason of the closed list is not repeated."""
    said = {"boiler": Refusal("privacy.demanded", 12).to_text(), "turbine": Refusal("leave.methods", 5).to_text()}

    def refusing(unit: str, messages: list[tuple[int, bytes]]) -> Shareable:
        return make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: said[unit]})

    state, _ = run(tmp_path, refusing)
    for words in ("'boiler' refused by privacy.demanded (line 12", "'turbine' refused by leave.methods (line 5"):
        assert words in state["reason"]
    said["boiler"] = "y[7] is 3.4"
    state, _ = run(tmp_path, refusing)
    assert "3.4" not in state["reason"]
    assert "'boiler' refused" in state["reason"]


def test_nothing_is_computed_without_a_plant_that_does_not_answer(tmp_path: Path, plants: Federation) -> None:
    real = answering(plants)
    state, _ = run(tmp_path, lambda unit, messages: real(unit, messages) if unit == "boiler" else None, deadline=1)
    assert state["state"] == "failed"
    assert "no answer in 1 s from turbine" in state["reason"]
    with coordinator(tmp_path).session(JOB) as session:
        assert session.round == 0
        assert session.waiting() == ("turbine",)


def test_an_aborted_job_ends_at_once_and_goes_on_later(tmp_path: Path, plants: Federation) -> None:
    real, abort, released = answering(plants), Signal(), threading.Event()

    def stuck(unit: str, messages: list[tuple[int, bytes]]) -> Shareable | None:
        if messages[0][0] < 2:
            return real(unit, messages)
        abort.trigger(True)
        released.wait(10)
        return None

    try:
        state, context = run(tmp_path, stuck, abort=abort)
    finally:
        released.set()
    assert state["state"] == "aborted"
    assert not context.panics
    assert run(tmp_path, real)[0]["state"] == "finished"
    agrees(tmp_path)


def test_an_answer_that_is_no_envelope_fails_the_job(tmp_path: Path, plants: Federation) -> None:
    state, _ = run(tmp_path, lambda unit, messages: Shareable({"more": 1}))
    assert state["state"] == "failed"
    assert "envelope of unit" in state["reason"]


def test_a_plant_that_is_gone_is_told_from_one_that_refuses_a_trial(tmp_path: Path) -> None:
    refusal = Refusal("controllers.react", 7)
    said: dict[str, Shareable | None] = {
        "gone": None,
        "not well": make_reply(CANNOT),
        "refuses": make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: refusal.to_text()}),
        "answers": Shareable(jobs.packed([(0, b"said")])),
        "answers twice": Shareable(jobs.packed([(0, b"said"), (0, b"said")])),
    }
    asked = carry(Context(tmp_path, lambda unit, messages: said[unit]))
    assert asked("answers", b"trial", 1.0) == b"said"
    for unit, (told, reached) in {"gone": (None, False), "not well": (None, False), "refuses": (refusal, True)}.items():
        with pytest.raises(Unanswered) as silent:
            asked(unit, b"trial", 1.0)
        assert (silent.value.refusal, silent.value.reached) == (told, reached)
    with pytest.raises(cf.ProtocolError, match="2 answers to one trial"):
        asked("answers twice", b"trial", 1.0)
