"""What a site lets in and a plant lets out, built from FLARE's own classes but without its processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # FLARE's own, on import
    from nvflare.apis.fl_constant import ReturnCode
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_reply
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
    from nvflare.fuel.f3.message import Message

    from counterflow.federation.flare import executor
from counterflow.errors import CounterflowError
from counterflow.federation.flare import gate, jobs
from counterflow.federation.flare.jobs import REFUSAL


class Approving:
    """A guard that has let some bytes out and remembers what it refused."""

    unit = "boiler"

    def __init__(self, *approved: bytes) -> None:
        self.known, self.refusals = approved, []

    def has_left(self, data: bytes) -> bool:
        return data in self.known

    def refuse(self, direction: str, data: bytes, error: CounterflowError) -> None:
        self.refusals.append(str(error))
        raise error


@pytest.fixture
def guard() -> Any:
    made = Approving(b"approved", b"also")
    executor.guarding(made)  # type: ignore[arg-type]
    yield made
    executor._guards.clear()


def _passed(result: Shareable) -> Shareable:
    return executor.OutgoingFilter().process(result, FLContext())


def test_approved_bytes_leave_and_nothing_else_does(guard: Approving) -> None:
    good = Shareable(jobs.packed([(0, b"approved"), (1, b"also")]))
    assert jobs.unpacked(_passed(good), "boiler") == [
        (0, b"approved"),
        (1, b"also"),
    ]
    assert not guard.refusals
    for bad in (
        Shareable(jobs.packed([(0, b"approved"), (1, b"raw measurements")])),
        Shareable({**jobs.packed([(0, b"approved")]), "note": "more"}),
        Shareable({"DXO": {"kind": "WEIGHTS", "data": {}}}),
        Shareable(),
    ):
        out = _passed(bad)
        assert set(out) == {"__headers__"}
        assert out["__headers__"] == {"__rc__": ReturnCode.TASK_RESULT_FILTER_ERROR}
    assert len(guard.refusals) == 4


def test_headers_carry_nothing_out(guard: Approving) -> None:
    sneaky = Shareable(jobs.packed([(0, b"approved")]))
    sneaky.set_header("note", "raw measurements")
    assert _passed(sneaky)["__headers__"] == {"__rc__": ReturnCode.TASK_RESULT_FILTER_ERROR}
    refusal = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    assert _passed(refusal)["__headers__"] == {"__rc__": ReturnCode.EXECUTION_EXCEPTION}
    told = make_reply(ReturnCode.EXECUTION_EXCEPTION, {"reason": "y[7] is 3.4"})
    assert _passed(told)["__headers__"] == {"__rc__": ReturnCode.TASK_RESULT_FILTER_ERROR}
    for text in ("y[7] is 3.4", "privacy.demanded:12:0 3.4", "privacy.demanded:12:", b"privacy.demanded:12:0"):
        hidden = make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: text})
        assert _passed(hidden)["__headers__"] == {"__rc__": ReturnCode.TASK_RESULT_FILTER_ERROR}
    known = make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: "privacy.demanded:12:0"})
    assert _passed(known)["__headers__"] == known["__headers__"]
    code = make_reply("y[7] is 3.4")  # a return code is text, too
    assert _passed(code)["__headers__"] == {"__rc__": ReturnCode.EXECUTION_EXCEPTION}


def test_without_a_guard_nothing_leaves() -> None:
    executor._guards.clear()
    out = _passed(Shareable(jobs.packed([(0, b"approved")])))
    assert out["__headers__"] == {"__rc__": ReturnCode.TASK_RESULT_FILTER_ERROR}


def test_the_gate_takes_our_two_applications_and_no_other(tmp_path: Path) -> None:
    made = jobs.write(tmp_path, "fit-1", '{"id": "fit-1"}', {"boiler": '{"id": "fit-1"}'})
    check = gate.JobGate()
    assert check.validate(str(made / "plant-1")) == ("", {})
    assert check.validate(str(made / "coordinator")) == ("", {})
    (made / "plant-1" / ".__nvfl_sig.json").write_text("{}")
    assert check.validate(str(made / "plant-1")) == ("", {})
    (made / "plant-1" / "custom").mkdir()
    (made / "plant-1" / "custom" / "code.py").write_text("")
    assert "refuses" in check.validate(str(made / "plant-1"))[0]
    config = made / "coordinator" / "config" / jobs.COORDINATOR_FILE
    kept = config.read_text()
    config.write_text(kept.replace('"components": []', '"components": [{"id": "x", "path": "os.system"}]'))
    assert "refuses" in check.validate(str(made / "coordinator"))[0]
    config.unlink()
    (tmp_path / "elsewhere.json").write_text(kept)
    config.symlink_to(tmp_path / "elsewhere.json")
    assert "refuses" in check.validate(str(made / "coordinator"))[0]
    assert "refuses" in check.validate(str(tmp_path / "nothing"))[0]


def test_a_locked_plant_knows_no_shell() -> None:
    """In a process of its own: the lock is for good."""
    script = """
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors as known
from counterflow.federation.flare.gate import COMMANDS, PlantLock
topics = lambda: {topic for processor in known.request_processors for topic in processor.get_topics()}
assert "sys.shell" in topics() and COMMANDS <= topics(), COMMANDS - topics()
PlantLock()
assert topics() == COMMANDS
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
class Cell:
    def register_request_cb(self, **given):
        raise AssertionError(given)
assert isinstance(NetAgent(Cell()).cell, Cell)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ADMIN = "_admin_53a9e189-a3de-4ef1-bfa7-f86585f4d5f2"


@pytest.mark.parametrize(
    ("me", "speaker", "origin", "destination", "kind", "refusal"),
    [
        ("boiler", "", "server", "boiler.run", "req", ""),
        ("boiler", "", "server.run", "boiler.run", "req", ""),
        ("boiler", "", "boiler", "boiler.run", "req", ""),
        ("boiler", "", "turbine.run", "boiler.run", "req", "turbine asks"),
        ("boiler", "", ADMIN, "boiler.run", "req", "is not the server"),
        ("boiler", "", "", "boiler", "req", "is not the server"),
        ("boiler", "", "turbine", "boiler", "reply", ""),
        ("server", "boiler", "boiler.run", "server.run", "req", ""),
        ("server", "boiler", "boiler", "server", "reply", ""),
        ("server", "boiler", "turbine.run", "server.run", "req", "boiler speaks as turbine"),
        ("server", "boiler", "turbine", "server", "reply", "boiler speaks as turbine"),
        ("server", "boiler", "server.run", "turbine.run", "req", "boiler speaks as server"),
        ("server", "boiler", ADMIN, "server", "req", "boiler speaks as"),
        ("server", "boiler", "boiler", "turbine.run", "req", "may ask the server only"),
        ("server", "me@x.org", ADMIN, "server", "req", ""),
        ("server", "me@x.org", ADMIN, "boiler.run", "req", "may ask the server only"),
        ("server", "me@x.org", "boiler", "server", "req", "speaks as boiler"),
        ("server", "me@x.org", "_admin_x", "server", "req", "speaks as _admin_x"),
        ("server", "host.example", "server.run", "boiler.run", "req", ""),
        ("server", "", "server.run", "boiler.run", "req", ""),
    ],
)
def test_nobody_speaks_for_another_and_only_the_server_speaks_to_a_plant(
    me: str, speaker: str, origin: str, destination: str, kind: str, refusal: str
) -> None:
    message = Message(
        {
            MessageHeaderKey.ORIGIN: origin,
            MessageHeaderKey.DESTINATION: destination,
            MessageHeaderKey.MSG_TYPE: {"req": MessageType.REQ, "reply": MessageType.REPLY}[kind],
        },
        b"",
    )
    found = gate.refusal_of(me, "host.example", speaker, message)
    assert (refusal in found) if refusal else found == ""
