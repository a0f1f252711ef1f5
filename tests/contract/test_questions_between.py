"""Questions between machines: the same answers as in one process, what policies forbid, what may go wrong."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from asking_plant import OPEN, PLANT, RECORDING, TURBINE, UNITS, Asking, fitted, job_of, same

import counterflow as cf
from counterflow.errors import DataError, PrivacyError, ProtocolError, StorageError, UnidentifiedError, UnknownNameError
from counterflow.federation.asking import RemoteServer
from counterflow.federation.audit import SITE
from counterflow.federation.desk import LIFETIME, QuestionBox
from counterflow.federation.job import Job
from counterflow.federation.parts import saved_server, saved_unit
from counterflow.federation.question_service import QuestionService
from counterflow.protocol import Answer, Ask, Change, Refused, Terms, decode, encode
from counterflow.questions.asking import UnitView
from counterflow.sealed_log import SealedLogs


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Asking:
    return fitted(tmp_path_factory.mktemp("between"), job_of(), PLANT.locals())


@pytest.fixture(scope="module")
def alone() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


def _pump() -> Change:
    """What the turbine asks about the pump's inputs."""
    return Change("turbine", "pump", False, 0, "", np.ones((3, 2))).naming(["u1", "u2"])


def test_answers_are_those_of_one_process_and_leave_nothing_behind(asking: Asking, alone: cf.Fit) -> None:
    """Of two causes at once; all kinds of questions are asked in ``test_registered_questions``."""
    both = {"boiler": {"u1": 1.0}, "pump": {"u2": -1.0}}
    with asking.running() as server:
        view = UnitView(saved_unit(asking.home / "turbine", "turbine").part, server)
        found = view.effect(["boiler", "pump"], "turbine", both, horizon=9, duration=4)
        same(found, alone.effect(["boiler", "pump"], "turbine", both, 9, duration=4))
        assert set(view.effect("boiler", "turbine", {"u1": 0.5}).caveats) <= set(alone.caveats)
    events = [record["event"] for record in asking.audits[1].records()]
    assert events.count("asked") == events.count("answered") == 3, "one of them: whom may I ask about?"
    assert asking.empty(), "the box is left empty"


def test_from_logs_too(tmp_path: Path) -> None:
    """Levels and alignments of others' inputs are the server's affair; answers are the same."""
    alone = cf.fit(RECORDING, rank=2)
    between = fitted(tmp_path, job_of(from_logs=True, options={"rank": 2}), None)
    with between.running() as server:
        saved = saved_unit(tmp_path / "turbine", "turbine")
        same(
            UnitView(saved.part, server).effect("boiler", "turbine", {"u1": 0.5}, horizon=9),
            alone.effect("boiler", "turbine", {"u1": 0.5}, 9),
        )
        do = {"boiler": {"u1": 0.25}}
        same(
            UnitView(saved.part, server, TURBINE.y).counterfactual(do=do, start=500, stop=520)["turbine"],
            alone.counterfactual(RECORDING, do, 500, 520)["turbine"],
        )


@pytest.mark.parametrize("method", ["penalty", "lagrangian", "fedgc"])
def test_published_methods_answer_and_say_what_they_are(tmp_path: Path, method: str) -> None:
    options = {"rounds": 3} if method == "penalty" else {"rounds": 5}
    alone = cf.fit(RECORDING, PLANT.locals(), method, **options)
    between = fitted(tmp_path, job_of(method, options=options), PLANT.locals())
    with between.running() as server:
        part = saved_unit(tmp_path / "turbine", "turbine").part
        found = UnitView(part, server).effect("boiler", "turbine", {"u1": 0.5}, horizon=9)
        same(found, alone.effect("boiler", "turbine", {"u1": 0.5}, 9))
        assert found.caveats[0].code == "published-method"
        with pytest.raises(cf.OptionError, match="keeps no record"):
            UnitView(part, server, TURBINE.y).attribute()


def test_what_a_policy_forbids_is_refused_written_down_and_allowed_when_it_changes(asking: Asking) -> None:
    asking.say("boiler", '[ask]\nturbine = ["u2"]\n')
    part = saved_unit(asking.home / "turbine", "turbine").part
    try:
        with asking.running() as server:
            UnitView(part, server).effect("boiler", "turbine", {"u2": 1.0})
            with pytest.raises(UnknownNameError, match="'u1' that can be asked about here; there are u2"):
                UnitView(part, server).effect("boiler", "turbine", {"u1": 1.0})
            stale = replace(server)  # it was told before that it may
            vars(stale)["_others"] = {name: saved_server(asking.home, "fit-1")[1].unit(name) for name in UNITS}
            with pytest.raises(PrivacyError, match="'boiler' does not let 'turbine' ask about its input 'u1'"):
                UnitView(part, stale).effect("boiler", "turbine", {"u1": 1.0})
            shares = UnitView(part, server, TURBINE.y).attribute()
            assert set(shares.shares) == {"turbine", "pump", "initial state", "rest"}
            assert "closed-units" in [caveat.code for caveat in shares.caveats]
            with pytest.raises(PrivacyError, match="'u1'"):
                UnitView(part, stale).restore("turbine", {"y1": 0.1}, {"boiler": ["u1"]})
            UnitView(part, server).restore("turbine", {"y1": 0.1}, {"boiler": ["u2"]})
            refused = [record for record in asking.audits[0].records() if record["event"] == "refused"]
            assert [record["kind"] for record in refused] == ["effect", "restoration"]
            asking.allow(OPEN + "[answers]\nallowed = false\n")
            os.utime(asking.policy_file, ns=(1, 1))
            with pytest.raises(PrivacyError, match=r"answers\.allowed"):
                UnitView(part, server).effect("boiler", "turbine", {"u2": 1.0})
            asking.policy_file.write_text("nonsense", encoding="utf-8")
            os.utime(asking.policy_file, ns=(2, 2))
            with pytest.raises(PrivacyError, match=r"answers\.allowed"):
                UnitView(part, server).effect("boiler", "turbine", {"u2": 1.0})
            asking.allow()
            os.utime(asking.policy_file, ns=(3, 3))
            UnitView(part, server).effect("boiler", "turbine", {"u2": 1.0})
    finally:
        asking.allow()
        asking.say("boiler", OPEN)


def test_the_coordinator_keeps_what_plants_have_said_and_takes_it_from_themselves_only(asking: Asking) -> None:
    service = asking.service()
    closed = Terms("pump", '{"unit": "pump", "ask": {}, "answers": true}')
    assert service.receive("pump", [(1, encode(closed))]) == [(1, encode(closed))]
    again = asking.service()  # as after a restart
    change = _pump()
    question = [(7, encode(change)), (7, encode(Ask("turbine", "effect", 0, 2)))]
    ((number, data),) = again.receive("turbine", question)
    assert number == 7
    assert decode(data).error == "PrivacyError"
    for text, wrong in (
        ('{"unit": "boiler", "ask": {}, "answers": true}', "terms of 'boiler'"),
        ("[" * 1000, "not JSON"),
        ("{}", "is missing from Policy"),
    ):
        ((_, data),) = service.receive("pump", [(1, encode(Terms("pump", text)))])
        assert wrong in decode(data).reason
    asking.say("pump", OPEN)


def test_a_question_waits_for_a_plant_that_starts_late(asking: Asking) -> None:
    """It has never said who may ask about it; after the grace nobody may."""
    (asking.home / "terms" / "pump.json").unlink()
    server, change = saved_server(asking.home, "fit-1")[1], _pump()
    question = [(1, encode(change)), (1, encode(Ask("turbine", "effect", 0, 2)))]
    late = QuestionService(asking.home, asking.standing, server, None, grace=30.0)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(late.receive, "turbine", question)
        late.receive(
            "pump", [(1, encode(Terms("pump", '{"unit": "pump", "ask": {"turbine": ["*"]}, "answers": true}')))]
        )
        (_, data), *_ = asked.result()
    assert isinstance(decode(data), Answer)
    (asking.home / "terms" / "pump.json").unlink()
    never = QuestionService(asking.home, asking.standing, server, None, grace=0.01)
    assert "has no policy here" in decode(never.receive("turbine", question)[0][1]).reason
    asking.say("pump", OPEN)


def test_hostile_questions_are_refused_one_by_one(asking: Asking) -> None:
    asking.say("turbine", "")
    service = asking.service()
    effect, change = Ask("turbine", "effect", 0, 2), _pump()
    cases = {
        "no such question": ([change, Ask("turbine", "everything", 0, 2)], "there is no question 'everything'"),
        "another's name": ([replace(_pump(), unit="boiler"), effect], "speaks as"),
        "two questions in one": ([change, effect, effect], "one Ask at its end"),
        "no question": ([change], "one Ask at its end"),
        "no such unit": ([replace(_pump(), cause="x"), effect], "no unit 'x'"),
        "inputs without names": ([replace(_pump(), inputs=""), effect], "names its inputs"),
        "an input that is not there": ([_pump().naming(["u1", "u7"]), effect], "has no input 'u7'"),
        "too far": ([change, Ask("turbine", "effect", 0, 100_001)], "at most"),
        "rows that are not there": ([Ask("turbine", "attribution", 500, 5000)], "recorded"),
        "far too large": ([replace(_pump(), values=np.full((3, 2), 1e308)), effect], "too large"),
        "replacing from now on": (
            [replace(_pump(), absolute=True), effect],
            "give what is added",
        ),
    }
    for name, (messages, reason) in cases.items():
        replies = service.receive("turbine", [(1, encode(message)) for message in messages])
        assert len(replies) == 1, name
        assert reason in decode(replies[0][1]).reason, name
    for data in (b"", b"CFLW", os.urandom(200)):
        assert decode(service.receive("turbine", [(1, data)])[0][1]).error == "ProtocolError"
    good = service.receive("turbine", [(1, encode(change)), (1, encode(effect)), (2, b"?")])
    assert [*dict.fromkeys(number for number, _ in good)] == [1, 2], "one bad question does not spoil the others"
    assert decode(good[0][1]).mean.shape == (2, 2)


def test_a_coordinator_that_says_anything_else_is_not_believed(asking: Asking) -> None:
    """Answers of other units, other states, or none at all."""
    part = saved_unit(asking.home / "turbine", "turbine").part
    for forged in (
        encode(Answer("boiler", "effect", "", "", np.ones((1, 2)), np.zeros((0, 2)))),
        encode(Answer("turbine", "effect", "", "", np.ones((1, 7)), np.zeros((0, 7)))),
        encode(Ask("turbine", "effect", 0, 1)),
        b"nonsense",
    ):
        plant, remote = asking.plant(), asking.remote()
        with asking.running() as known:
            vars(remote)["_others"] = known._others  # it has been told before whom it may ask about
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(UnitView(part, remote).effect, "boiler", "turbine", {"u1": 1.0})
            sent = plant.exchange([], 0.0)
            while not any(isinstance(decode(data), Ask) for _, data in sent):
                sent = plant.exchange([], 5.0)
            with pytest.raises(ProtocolError):
                plant.exchange([(sent[-1][0], forged)], 0.0)
            with pytest.raises(ProtocolError, match="was not taken"):
                asked.result()


def test_nobody_there_is_said_and_nothing_is_left_behind(asking: Asking) -> None:
    part = saved_unit(asking.home / "turbine", "turbine").part
    with pytest.raises(StorageError, match=r"no answer in 0 s.*federation status"):
        UnitView(part, asking.remote(patience=0.1)).effect("boiler", "turbine", {"u1": 1.0})
    assert asking.empty()


def test_a_question_survives_the_death_of_whoever_carries_it(asking: Asking) -> None:
    """Asked, and the process or the reply gone before the answer: it is asked again. A late answer is dropped."""
    service = asking.service()
    name = asking.box.put([encode(Ask("turbine", "forecast", 0, 2))], asking.standing.digest)
    first = asking.plant()
    first.exchange([], 0.0)  # the terms, and the question
    second = asking.plant()
    lost = second.exchange([], 0.0)
    late = service.receive("turbine", lost)
    sent = second.exchange([], 0.0)  # the answer was lost: terms and question again
    assert [data for _, data in sent] == [data for _, data in lost]
    answers = service.receive("turbine", sent)
    again = second.exchange([late[-1]], 0.0)  # of a question that is not open any more
    assert list(asking.box.waiting()) == [name]
    answers = service.receive("turbine", again)
    assert second.exchange(answers, 0.0) == []
    data, *_ = asking.box.answer(name, 0.0)
    assert decode(data).mean.shape == (2, 2)


def test_a_question_about_one_fit_is_not_answered_from_another(asking: Asking) -> None:
    """The coordinator answers about its latest fit: questions about that one wait for it, others are refused."""
    saved = saved_unit(asking.home / "turbine", "turbine")
    other = Job("fit-2", "sufficient", asking.job.inputs, options={"tol": 1e-5})
    renamed = Job("fit-1", "sufficient", asking.job.inputs, created="2001-01-01T00:00:00+00:00")
    asked = replace(saved.part, link=None)

    def ask(job: Job, latest: bool, patience: float) -> None:
        server = RemoteServer(replace(saved, job=job, latest=latest), asking.box, patience)
        UnitView(asked, server).effect("boiler", "turbine", {"u1": 1.0})

    with asking.running():
        for job in (other, renamed):
            with pytest.raises(cf.OptionError, match=r"about job 'fit-1' now, not about 'fit-"):
                ask(job, False, 20.0)
            with pytest.raises(StorageError, match="no answer"):
                ask(job, True, 0.5)


def test_old_questions_are_thrown_away_and_a_full_box_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SealedLogs(None, SITE)
    box, now = QuestionBox(store), time.time()
    old = box.put([b"x"])
    with monkeypatch.context() as patch:
        patch.setattr("counterflow.federation.desk.time.time", lambda: now + 2 * LIFETIME)
        assert not box.waiting()
        box.settle(old, [b"too late"])
        box.put([b"y"])
        assert [row.pieces for row in store.rows("questions")] == [(b"y",)]
    box = QuestionBox(SealedLogs(None, SITE))
    monkeypatch.setattr("counterflow.federation.desk.MOST", 2)
    box.put([b"1"])
    box.put([b"2"])
    with pytest.raises(StorageError, match="2 questions wait"):
        box.put([b"3"])


def test_couplings_that_the_data_cannot_tell_are_refused_over_the_wire(tmp_path: Path) -> None:
    """One input of the boiler never moved."""
    still = PLANT.simulate(600, rng=4)
    u = np.array(still["boiler"].u)
    u[:, 0] = 0.0
    recording = cf.Recording(
        {name: still[name] for name in UNITS} | {"boiler": replace(still["boiler"], u=u)}, still.dt
    )
    between = fitted(tmp_path, job_of(), PLANT.locals(), recording)
    with between.running() as server:
        saved = saved_unit(tmp_path / "turbine", "turbine")
        with pytest.raises(UnidentifiedError, match="cannot answer this"):
            UnitView(saved.part, server).effect("boiler", "turbine", {"u1": 1.0})
        UnitView(saved.part, server).effect("boiler", "turbine", {"u2": 1.0})
        with pytest.raises(DataError, match="log has changed"):
            saved.require_log(replace(TURBINE, y=TURBINE.y[:-1]))
        saved.require_log(between.asker)


def test_parts_of_another_fit_or_unit_are_not_taken(asking: Asking, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no finished fit"):
        saved_unit(tmp_path, "turbine")
    with pytest.raises(StorageError, match="another job or unit"):
        saved_unit(asking.home / "turbine", "boiler")
    with pytest.raises(cf.OptionError, match="there is no finished fit 'x'"):
        saved_unit(asking.home / "turbine", "turbine", "x")
    job, server = saved_server(asking.home, "fit-1")
    assert (job.to_text(), server.names) == (asking.job.to_text(), UNITS)
    assert [channel.limits for channel in server.unit("boiler").inputs] == [c.limits for c in job.inputs["boiler"]]


def test_a_member_puts_so_many_questions_a_minute(asking: Asking) -> None:
    """Whatever is sent counts; the refusal has a code and says when; the others are heard."""
    server = saved_server(asking.home, asking.job.id)[1]
    service = QuestionService(asking.home, asking.standing, server, None, per_minute=2)
    asked = encode(Ask("turbine", "forecast", 0, 3))
    codes = []
    for number, data in enumerate((asked, b"not a message", asked, encode(Terms("turbine", "{}")))):
        (_, told), *_ = service.receive("turbine", [(number, data)])
        codes.append(getattr(decode(told), "code", ""))
    assert codes == ["", "protocol", "too-many", "too-many"]
    (_, told), *_ = service.receive("pump", [(0, encode(Ask("pump", "forecast", 0, 3)))])
    assert isinstance(decode(told), Answer)


def test_a_refusal_keeps_its_code(asking: Asking) -> None:
    """From the coordinator to whoever asks at the plant."""
    box = QuestionBox(SealedLogs(None, SITE))
    remote = RemoteServer(saved_unit(asking.home / "turbine", "turbine"), box, patience=1.0)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(remote.ask, [], Ask("turbine", "forecast", 0, 3))
        while not box.waiting():
            time.sleep(0.01)
        (name,) = box.waiting()
        box.settle(name, [encode(Refused("turbine", "ProtocolError", "too-many", "again in 9 s"))])
        with pytest.raises(ProtocolError) as caught:
            waits.result()
    assert caught.value.code == "too-many"
