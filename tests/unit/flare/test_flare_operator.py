"""Following a job to its end, against a server that is played: lost runs, missing plants, refusals, patience."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import counterflow as cf
from counterflow.federation.flare import operator, processes
from counterflow.federation.flare.operator import Unreachable
from counterflow.federation.job import Job
from counterflow.federation.sites import party

JOB = Job("fit-1", "sufficient", {"boiler": ["fuel"], "turbine": []})
LATE = "ProtocolError: job 'fit-1': no answer in 3 s from turbine; nothing is computed from a part of the units"


Script = Callable[["Played", str], None]


class Played:
    """A server, its clock and its runs; ``script`` says what becomes of each run that is submitted."""

    def __init__(self, home: Path, script: list[Script]) -> None:
        self.home, self.script, self.now = home, script, 0.0
        self.words: dict[str, str] = {}
        self.processes: set[str] = set()
        self.there = {"boiler", "turbine"}
        self.reachable = True
        self.details: tuple[str, ...] = ()
        self.submitted: list[str] = []
        self.events: list[tuple[float, Callable[[], None]]] = []

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1e-3)
        for event in [one for one in self.events if one[0] <= self.now]:
            self.events.remove(event)
            event[1]()

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        self.events.append((self.now + seconds, event))

    def say(
        self, run: str, state: str, exchanges: int = 0, reason: str = "", code: str = "", taken: int | None = None
    ) -> None:
        told = {"state": state, "run": run, "exchanges": exchanges, "reason": reason, "code": code}
        party.write_state(self.home, JOB.id, **told, **({} if taken is None else {"taken": taken}))

    # ---- what an Operator has

    def _check(self) -> None:
        if not self.reachable:
            raise Unreachable("federation: no server")

    def close(self) -> None:
        raise OSError("of a connection that is dead anyway")

    def submit(self, folder: Path) -> str:
        self._check()
        run = f"run-{len(self.submitted) + 1}"
        self.submitted.append(run)
        self.words[run] = "RUNNING"
        self.processes.add(run)
        self.script[min(len(self.submitted), len(self.script)) - 1](self, run)
        return run

    def answering(self, names: tuple[str, ...]) -> tuple[str, ...]:
        self._check()
        return tuple(sorted(self.there & set(names)))

    def runs(self, name: str) -> dict[str, str]:
        self._check()
        return dict(self.words)

    def state(self, run: str) -> str:
        self._check()
        return self.words[run]

    def refusals(self, run: str) -> tuple[str, ...]:
        return self.details


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Played]:
    def made(*script: Script) -> Played:
        played = Played(tmp_path, list(script))

        def connect(kit: Path, patience: float) -> Played:
            played.sleep(0.1)
            played._check()
            return played

        monkeypatch.setattr(operator, "Operator", connect)
        monkeypatch.setattr(processes, "running", lambda kit: [processes.Running(1, True, r) for r in played.processes])
        monkeypatch.setattr("counterflow.federation.flare.operator.time.sleep", played.sleep)
        monkeypatch.setattr("counterflow.federation.flare.operator.time.monotonic", lambda: played.now)
        return played

    return made


def follow(played: Played, **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []
    runs = operator.FlareJobs(Path("kit"), Path("operator"), played.home)
    return runs.follow(JOB, progress=seen.append, **more), seen


def finishes(played: Played, run: str) -> None:
    played.say(run, "running", 1)
    played.later(3.0, lambda: played.say(run, "finished", 4))


def dies_quietly(played: Played, run: str) -> None:
    """The process of the run is gone, and FLARE calls it RUNNING for ever."""
    played.say(run, "running", 2)
    played.later(1.0, lambda: played.processes.discard(run))


def fails(reason: str, code: str, exchanges: int = 1, after: float = 0.0) -> Script:
    return lambda played, run: played.later(after, lambda: played.say(run, "failed", exchanges, reason, code))


def ends(word: str, said: str = "", details: tuple[str, ...] = ()) -> Script:
    """FLARE's word of a run whose process is gone; ``said``: what the coordinator's part says before."""

    def ending(played: Played, run: str) -> None:
        played.words[run], played.details = word, details
        if said:
            played.later(1.0, lambda: played.say(run, said, 3))
        else:
            played.processes.discard(run)

    return ending


def test_it_is_submitted_once_if_all_goes_well(play: Callable[..., Played]) -> None:
    played = play(finishes)
    state, seen = follow(played)
    assert state["state"] == "finished"
    assert [one["exchanges"] for one in seen] == [1, 4]
    assert follow(played)[0] == state
    assert played.submitted == ["run-1"], "a finished job is not submitted again"


def test_a_lost_run_is_submitted_again(play: Callable[..., Played]) -> None:
    lost = [
        fails(LATE, "no-answer", 3, after=2.0), dies_quietly, ends("FINISHED:ABNORMAL"),
        fails("ProtocolError: unit 'turbine' gave no answer (TASK_ABORTED)", "lost"),  # FLARE has ended its process
        ends("FINISHED:CAN_NOT_SCHEDULE"), ends("FINISHED:EXECUTION_EXCEPTION", "aborted"),
    ]  # fmt: skip
    played = play(*lost, finishes)
    state, seen = follow(played)
    assert (state["state"], state["run"]) == ("finished", "run-7")
    assert len(played.submitted) == 7
    assert any("no answer in" in one["reason"] for one in seen if one["state"] == "waiting")


def test_it_waits_for_plants_and_for_the_server(play: Callable[..., Played]) -> None:
    def loses_all(played: Played, run: str) -> None:
        dies_quietly(played, run)
        played.there, played.reachable = {"boiler"}, False
        played.later(60.0, lambda: setattr(played, "reachable", True))
        played.later(90.0, lambda: played.there.add("turbine"))

    played = play(loses_all, finishes)
    state, seen = follow(played)
    assert state["state"] == "finished"
    assert played.submitted == ["run-1", "run-2"], "nothing is submitted while somebody is missing"
    assert played.now >= 90
    reasons = [one["reason"] for one in seen if one["state"] == "waiting"]
    assert "not connected: turbine" in reasons
    assert any("the server does not answer" in reason for reason in reasons)


def test_a_run_that_is_there_or_will_be_is_followed(play: Callable[..., Played]) -> None:
    """Of somebody else; queued and then dispatched; and not one that a dead server has dispatched."""

    def queued(played: Played, run: str) -> None:
        played.words[run] = "SUBMITTED"
        played.processes.discard(run)
        played.later(20.0, lambda: played.words.update({run: "DISPATCHED"}))
        played.later(24.0, lambda: played.processes.add(run))
        played.later(25.0, lambda: finishes(played, run))

    for script in (finishes, queued):
        played = play(script)
        party.write_state(played.home, JOB.id, state="")
        played.submit(Path())
        assert follow(played)[0]["run"] == "run-1"
        assert played.submitted == ["run-1"]
    played = play(finishes)
    party.write_state(played.home, JOB.id, state="")
    played.words |= {"old": "DISPATCHED", "older": "RUNNING"}
    assert follow(played)[0]["run"] == "run-1"
    assert played.now < operator.BEGIN + 15


_REFUSED, _GIVEN_UP = cf.ProtocolError, cf.StorageError
FINAL: dict[str, tuple[Script, type[cf.CounterflowError], str, str | None, int]] = {
    "a plant": (fails("ProtocolError: unit 'boiler' refused", "refused"), _REFUSED, "boiler", "refused", 1),
    "numbers": (fails("DataError: beyond double precision", "data"), _REFUSED, "double precision", "data", 1),
    "disk": (fails("StorageError: No space left on device", "full"), _REFUSED, "No space left", "full", 1),
    "a gate": (ends("FINISHED:FAILED_TO_RUN", "", ("boiler: is not ours",)), _REFUSED, "is not ours", None, 1),
    "an operator": (ends("FINISHED:ABORTED", "aborted"), _REFUSED, "ended by an operator", None, 1),
    "always": (fails("StorageError: it is in use", "in-use", 0, 1.0), _GIVEN_UP, "in use", None, operator.FRUITLESS),
}


@pytest.mark.parametrize("name", FINAL)
def test_what_is_final_is_told_and_the_job_can_go_on_later(name: str, play: Callable[..., Played]) -> None:
    script, kind, text, code, submitted = FINAL[name]
    played = play(script)
    with pytest.raises(kind, match=text) as caught:
        follow(played)
    assert len(played.submitted) == submitted
    if code is not None:
        assert caught.value.code == code
    played.script = [finishes]
    played.processes -= set(played.submitted[:-1])
    last = f"run-{submitted + 1}"
    assert follow(played)[0]["run"] == last, "the process of the last may still be there, and does not count"


def test_a_submission_that_is_refused_is_final_and_one_without_an_answer_is_looked_for(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(finishes)
    honest = played.submit

    def refused(folder: Path) -> str:
        raise cf.ProtocolError("federation: the server refused job fit-1: AuthorizationError")

    def lost(folder: Path) -> str:
        honest(folder)
        raise Unreachable("federation: no answer")

    monkeypatch.setattr(played, "submit", refused)
    with pytest.raises(cf.ProtocolError, match="AuthorizationError"):
        follow(played)
    monkeypatch.setattr(played, "submit", lost)
    assert follow(played)[0]["run"] == "run-1"
    assert played.submitted == ["run-1"]


def test_patience_ends_and_names_who_is_missing(play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch) -> None:
    played = play(finishes)
    played.there = {"boiler"}
    with pytest.raises(cf.StorageError, match="not connected: turbine"):
        follow(played, patience=100.0)
    assert 100 <= played.now < 110
    monkeypatch.setattr(operator, "ROOM", 1 << 62)
    with pytest.raises(cf.StorageError, match="free some space"):
        follow(played)
    monkeypatch.undo()
    played = play(finishes)
    played.reachable = False
    with pytest.raises(cf.StorageError, match="the server does not answer"):
        follow(played, patience=100.0)
    assert not played.submitted


def test_runs_that_get_no_further_are_no_news(play: Callable[..., Played]) -> None:
    """The turbine hangs in every run; the boiler's answer is there each time, and is no step forward."""

    def hangs(played: Played, run: str) -> None:
        played.say(run, "running", 0)
        played.later(2.0, lambda: played.say(run, "running", 1, taken=100))
        played.later(6.0, lambda: played.say(run, "failed", 1, LATE, "no-answer"))

    played = play(hangs)
    with pytest.raises(cf.StorageError) as late:
        follow(played, patience=30.0)
    assert late.value.code == "no-news"
    assert len(played.submitted) > 2
    assert 30 <= played.now < 34, "2 s until the one step forward"


@pytest.mark.parametrize("call", ["runs", "answering", "submit", "state"])
def test_patience_ends_although_flare_hangs(
    call: str, play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch
) -> None:
    played, over = play(finishes), threading.Event()
    monkeypatch.setattr(played, call, lambda *given: over.wait(30))
    began = time.perf_counter()
    try:
        with pytest.raises(cf.StorageError) as late:
            follow(played, patience=0.3)
        assert late.value.code == "no-news"
        assert time.perf_counter() - began < 5
    finally:
        over.set()
