"""Controllers between machines: the same answers as in one process, and what a hostile party gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asking_plant import same
from closed_plant import OPEN, TURBINE_LAW, Machines, plant, recording

import counterflow as cf
from counterflow.errors import DataError, PrivacyError, ProtocolError, UnstableError
from counterflow.federation.controllers import Rounds, Unanswered
from counterflow.federation.guard import Answered
from counterflow.federation.job import Job
from counterflow.federation.parts import saved_unit
from counterflow.federation.policy import Policy
from counterflow.protocol import Ask, Reaction, Terms, Trial, decode, encode
from counterflow.questions.counterfactual import AskCounterfactual
from counterflow.questions.effect import AskEffect

DATA = recording()


def job_of(**given: Any) -> Job:
    return Job("fit-1", "sufficient", {unit.name: unit.inputs for unit in DATA.units}, dt=DATA.dt, **given)


@pytest.fixture(scope="module", params=["models", "logs"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, cf.Fit]]:
    models = plant().locals() if request.param == "models" else None
    made = Machines(tmp_path_factory.mktemp("closed"), job_of(from_logs=models is None), DATA, models)
    yield made, cf.fit(DATA, models)
    made.close()


def alike(found: Any, wanted: Any) -> None:
    """The same numbers, replicates and caveats."""
    assert found.caveats == wanted.caveats
    assert found.controllers == wanted.controllers
    assert found.sentence() == wanted.sentence()
    if getattr(wanted, "running", None) is not None:
        for name in ("y", "u"):
            np.testing.assert_array_equal(getattr(found.running, name), getattr(wanted.running, name))
    same(found, wanted)


@pytest.mark.parametrize("world", ["reacting", "held", None])
def test_every_question_has_the_same_answer_as_in_one_process(both: tuple[Machines, cf.Fit], world: str | None) -> None:
    made, alone = both
    with made.running("turbine") as view:
        found = view.effect("boiler", "turbine", {"feed": 0.5}, horizon=30, controllers=world)
        assert found.controllers == (world or "reacting")
        alike(found, alone.effect("boiler", "turbine", {"feed": 0.5}, 30, controllers=world))
        alike(
            view.effect("boiler", "turbine", {"SP": 0.5}, horizon=20, controllers=world),
            alone.effect("boiler", "turbine", {"SP": 0.5}, 20, controllers=world),
        )
        window: Any = {"start": 300, "stop": 420, "controllers": world}
        for change in ({"add": {"pump": {"stroke": 0.5}}}, {"do": {"boiler": {"valve": 0.0}}}):
            alike(
                view.counterfactual(**change, **window)["turbine"],
                alone.counterfactual(DATA, **change, **window)["turbine"],
            )
        alike(view.attribute(**window), alone.attribute(DATA, "turbine", **window))
        alike(
            view.forecast(None, 12, controllers=world)["turbine"],
            alone.forecast(DATA, 12, controllers=world)["turbine"],
        )
        target: Any = {"unit": "turbine", "target": {"power": 0.1}, "using": ["boiler", "pump"], "horizon": 20}
        alike(view.restore(**target, controllers=world), alone.restore(**target, controllers=world))
        ways = view.paths("boiler", "turbine", {"feed": 0.5}, 20)
        assert ways.controllers == "held", "which way an effect takes is said of held controllers"
        assert "controllers-held" in [caveat.code for caveat in ways.caveats]
        alike(ways, alone.paths("boiler", "turbine", {"feed": 0.5}, 20))


# ---- what policies say


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    found = Machines(tmp_path_factory.mktemp("closed"), job_of(), DATA, plant().locals())
    yield found
    found.close()


@pytest.fixture(autouse=True)
def restored(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test finds the policies as they were."""
    yield
    if "made" in request.fixturenames:
        found: Machines = request.getfixturevalue("made")
        found.carry = found._carried
        for unit in found.plants:
            found.allow(unit, OPEN)


def left(made: Machines, unit: str) -> list[dict[str, Any]]:
    return [r for r in made.audits[unit].records() if r["event"] == "left" and r.get("kind") == "Reaction"]


def refused(made: Machines, unit: str) -> list[dict[str, Any]]:
    return [record for record in made.audits[unit].records() if record["event"] == "refused"]


def ask(made: Machines, world: str | None = "reacting", feed: float = 0.5) -> cf.Effect:
    with made.running("turbine") as view:
        return view.effect("boiler", "turbine", {"feed": feed}, horizon=10, controllers=world)


def test_what_leaves_is_what_controllers_would_move_and_nothing_else(made: Machines) -> None:
    ask(made)
    made.trials.clear()
    with made.running("turbine") as view:
        for horizon in (10, 90):
            view.effect("boiler", "turbine", {"feed": 0.5}, horizon=horizon, controllers="reacting")
    assert {unit for unit, _, _ in made.trials} == {"boiler", "turbine"}, "the pump has none, and is not asked"
    assert len(made.trials) < 450, "rounds are few: the loops are looked at once, then a question takes some thirty"
    for unit, sent, said in made.trials:
        trial, reaction = decode(sent), decode(said)
        assert isinstance(trial, Trial)
        assert isinstance(reaction, Reaction)
        moved = {"boiler": [1], "turbine": [1]}[unit]
        others = [k for k in range(trial.inputs.shape[1]) if k not in moved]
        np.testing.assert_array_equal(reaction.inputs[:, others], trial.inputs[:, others])
    record = left(made, "boiler")[-1]
    assert (record["to"], record["kind"]) == ("coordinator", "Reaction")
    assert len(record["trial"]) == 64


def test_by_default_controllers_do_not_answer_and_the_answer_says_so(made: Machines) -> None:
    made.allow("boiler", '[ask]\nturbine = ["*"]\n')
    before = len(left(made, "boiler"))
    found = ask(made, None)
    assert found.controllers == "held"
    (caveat,) = [each for each in found.caveats if each.code == "controllers-held"]
    assert "those of boiler do not answer" in caveat.text
    assert "boiler valve" in caveat.text
    with pytest.raises(PrivacyError, match="boiler") as caught:
        ask(made)
    assert caught.value.code == "controllers-silent"
    assert len(left(made, "boiler")) == before
    trial = next(sent for unit, sent, _ in made.trials if unit == "boiler")
    with pytest.raises(PrivacyError, match=r"controllers\.react"):
        made.plants["boiler"].exchange([(0, trial)], 0.0)


def test_trials_are_so_many_a_day_and_last_over_a_restart(made: Machines) -> None:
    known = len(left(made, "boiler"))
    made.allow("boiler", OPEN + f"trials_per_day = {known + 3}\n")
    with pytest.raises(PrivacyError, match=r"'boiler' refused by controllers\.trials_per_day") as caught:
        ask(made, feed=0.123)
    assert caught.value.code == "controllers.trials_per_day"
    assert len(left(made, "boiler")) == known + 3
    made.plants["boiler"] = made.plant("boiler")
    with pytest.raises(PrivacyError, match="trials_per_day"):
        ask(made, feed=0.321)
    assert len(left(made, "boiler")) == known + 3


def test_trials_at_once_are_counted_one_by_one(made: Machines) -> None:
    ask(made)
    trial = decode(next(sent for unit, sent, _ in made.trials[::-1] if unit == "boiler"))
    assert isinstance(trial, Trial)
    known = len(left(made, "boiler"))
    made.allow("boiler", OPEN + f"trials_per_day = {known + 2}\n")
    sent = [forged(trial, states=trial.states + 1e-3 * (k + 1)) for k in range(6)]
    desks = [made.plant("boiler") for _ in sent]  # as in processes of their own

    def answered(k: int) -> bool:
        try:
            return bool(desks[k].exchange([(0, sent[k])], 0.0))
        except PrivacyError:
            return False

    with ThreadPoolExecutor(len(sent)) as pool:
        assert sum(pool.map(answered, range(len(sent)))) == 2
    assert len(left(made, "boiler")) == known + 2
    for desk in desks:
        desk.close()


def test_the_same_trial_again_is_answered_alike_and_not_counted(made: Machines) -> None:
    ask(made)
    sent, said = next((sent, said) for unit, sent, said in made.trials[::-1] if unit == "boiler")
    before = len(left(made, "boiler"))
    assert made.plants["boiler"].exchange([(5, sent)], 0.0) == [(5, said)]
    assert len(left(made, "boiler")) == before


def test_a_plant_that_is_not_there_is_named(made: Machines) -> None:
    def lost(unit: str, data: bytes, patience: float) -> bytes:
        if unit == "boiler":
            raise Unanswered(reached=False)
        return made._carried(unit, data, patience)

    made.carry = lost
    with pytest.raises(ProtocolError, match=r"'boiler' has not said within 20 s.*held") as caught:
        ask(made)
    assert caught.value.code == "plant-missing"
    assert ask(made, "held").controllers == "held"


def test_units_that_are_closed_are_not_named_and_the_world_is_told(made: Machines) -> None:
    made.allow("boiler", '[ask]\nturbine = ["feed"]\n[controllers]\nreact = true\n')
    found = ask(made)
    assert found.controllers == "reacting"
    assert "valve" not in " ".join(str(each) for each in found.caveats if each.code.startswith("controllers"))
    with made.running("turbine") as view:
        shares = view.attribute(start=300, stop=330, controllers="reacting")
    assert "boiler" not in shares.shares
    assert "boiler" not in shares.compensated


def test_after_a_private_fit_no_controller_answers(made: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    def private(*given: Any) -> Any:
        saved = saved_unit(*given)
        object.__setattr__(saved.job, "privacy", cf.Privacy(1.0, 1e-6))
        return saved

    trial = next(sent for unit, sent, _ in made.trials if unit == "boiler")
    monkeypatch.setattr("counterflow.federation.sites.plant_folder.saved_unit", private)
    with pytest.raises(ProtocolError, match="no controllers"):
        made.plant("boiler").exchange([(0, trial)], 0.0)


# ---- hostile parties


def forged(trial: Trial, **changes: Any) -> bytes:
    return encode(replace(trial, **changes))


def test_a_hostile_coordinator_learns_nothing_from_trials_that_make_no_sense(made: Machines) -> None:
    ask(made)
    plants, sent = made.plants["boiler"], next(s for u, s, _ in made.trials[::-1] if u == "boiler")
    trial = decode(sent)
    assert isinstance(trial, Trial)
    rows, K = len(trial.states), trial.worlds
    wide, nothing = np.zeros((rows, 9)), np.zeros((0, 0))
    cases = {
        "another unit": forged(trial, unit="turbine"),
        "states of another fit": forged(
            trial, states=np.zeros((rows, 3)), rest=np.zeros((len(trial.rest), 3)), tried=nothing, response=nothing
        ),
        "other inputs": forged(trial, inputs=wide),
        "readings of others": forged(trial, foreign=np.zeros((rows, 1))),
        "other controllers": forged(trial, tried=np.zeros((rows, 2)), response=np.zeros((K, 4))),
        "before the first row": forged(trial, row=trial.lead - 1),
        "after the last row": forged(trial, past=True, row=10**6, rest=np.zeros((0, trial.states.shape[1]))),
        "a response longer than the trial": forged(trial, response=np.zeros((4 * rows, trial.states.shape[1]))),
        "a reaction": encode(Reaction("boiler", trial.row, K, trial.inputs)),
        "a question": encode(Ask("boiler", "effect", 0, 1)),
        "nonsense": b"CFLW" + sent[8:],
        "a byte more": sent + b"\0",
    }
    before, told = len(left(made, "boiler")), len(refused(made, "boiler"))
    for data in cases.values():
        with pytest.raises((ProtocolError, DataError)):
            plants.exchange([(0, data)], 0.0)
    assert len(left(made, "boiler")) == before, "nothing has left"
    assert len(refused(made, "boiler")) == told + len(cases), "and all of it is written down"


def test_what_is_huge_stays_within_the_limits(made: Machines) -> None:
    """The valve goes from -3 to 3, whatever a coordinator says of the pressure."""
    ask(made)
    trial = decode(next(s for u, s, _ in made.trials[::-1] if u == "boiler"))
    assert isinstance(trial, Trial)
    ((_, said),) = made.plants["boiler"].exchange([(0, forged(trial, states=trial.states + 1e6))], 0.0)
    reaction = decode(said)
    assert isinstance(reaction, Reaction)
    assert np.abs(reaction.inputs[:, 1]).max() <= 3.0
    other, before = decode(next(s for u, s, _ in made.trials[::-1] if u == "turbine")), len(left(made, "turbine"))
    assert isinstance(other, Trial)
    with pytest.raises(ProtocolError, match="not finite"):  # its governor has no limits
        made.plants["turbine"].exchange([(0, forged(other, states=np.full_like(other.states, 1.7e308)))], 0.0)
    assert len(left(made, "turbine")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda trial, said: replace(said, inputs=said.inputs + np.eye(3)[0]),
        lambda trial, said: replace(said, inputs=said.inputs + 9.0 * np.eye(3)[1]),
        lambda trial, said: replace(said, inputs=said.inputs[1:]),
        lambda trial, said: replace(said, worlds=said.worlds + 1),
        lambda trial, said: replace(said, row=said.row + 1),
        lambda trial, said: replace(said, trial="0" * 64),
        lambda trial, said: replace(said, trial=""),
        lambda trial, said: trial,
    ],
)
def test_the_guard_lets_nothing_else_out(made: Machines, change: Any) -> None:
    ask(made)
    sent, said = next((s, r) for u, s, r in made.trials[::-1] if u == "boiler")
    before = len(left(made, "boiler"))
    other = change(decode(sent), decode(said))
    with pytest.raises(ProtocolError):
        made.plants["boiler"].guard.send(encode(other), Answered(sent, [1]))
    assert len(left(made, "boiler")) == before
    assert not made.plants["boiler"].guard.has_left(encode(other)), "so FLARE's filter does not let it pass either"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("another unit's", lambda trial, said: encode(replace(said, unit="turbine"))),
        ("fewer rows", lambda trial, said: encode(replace(said, inputs=said.inputs[1:]))),
        ("more inputs", lambda trial, said: encode(replace(said, inputs=np.hstack([said.inputs, said.inputs])))),
        ("other worlds", lambda trial, said: encode(replace(said, worlds=1))),
        ("an old one", lambda trial, said: encode(replace(said, trial="0" * 64))),
        ("no number", lambda trial, said: encode(said).replace(said.inputs.tobytes(), b"\xff" * said.inputs.nbytes)),
        ("huge", lambda trial, said: encode(replace(said, inputs=np.full_like(said.inputs, 1e300)))),
        ("the trial", lambda trial, said: encode(trial)),
        ("nothing", lambda trial, said: b""),
    ],
)
def test_a_hostile_plant_spoils_the_answer_and_nothing_else(made: Machines, name: str, change: Any) -> None:
    def lying(unit: str, data: bytes, patience: float) -> bytes:
        reply = made._carried(unit, data, patience)
        return change(decode(data), decode(reply)) if unit == "boiler" else reply  # type: ignore[no-any-return]

    made.carry = lying
    with pytest.raises((ProtocolError, UnstableError)):
        ask(made)
    made.carry = made._carried
    assert ask(made).controllers == "reacting"


def test_a_question_takes_so_many_rounds_at_most(made: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(made)
    sent = next(s for u, s, _ in made.trials[::-1] if u == "boiler")
    trial = decode(sent)
    assert isinstance(trial, Trial)
    rounds = Rounds(made._carried, made.standing, nullcontext)
    monkeypatch.setattr("counterflow.federation.controllers.MOST_ROUNDS", 2)
    rounds({"boiler": trial})
    rounds({"boiler": trial})
    with pytest.raises(cf.OptionError, match="more than 2 rounds") as caught:
        rounds({"boiler": trial})
    assert caught.value.code == "too-many-rounds"


def test_what_a_plant_says_of_its_controllers_is_not_believed_blindly(made: Machines) -> None:
    service = made.service()
    asking = Policy("boiler").asking()
    good = {"columns": [1], "locked": [], "reacts": True, "switches": False, "memory": 1}
    for wrong in (
        {"columns": [7]}, {"columns": [1, 1]}, {"columns": [True]}, {"columns": "1"}, {"locked": [0]},
        {"memory": 10**9}, {"memory": -1}, {"reacts": "yes"}, {"more": 1},
    ):  # fmt: skip
        said = Terms("boiler", json.dumps(asking | {"controllers": good | wrong}))
        ((_, told),) = service.receive("boiler", [(1, encode(said))])
        assert decode(told).error == "OptionError", wrong
    ((_, told),) = service.receive("boiler", [(1, encode(Terms("boiler", json.dumps(asking | {"controllers": good}))))])
    assert isinstance(decode(told), Terms)
    made.plants["boiler"] = made.plant("boiler")  # which says again who may ask


def test_one_answer_is_enough_to_learn_a_law(made: Machines) -> None:
    """What the threat model says: the turbine's last reaction to one question tells its law, and what it reads."""
    ask(made)
    trial, said = next((decode(s), decode(r)) for u, s, r in made.trials[::-1] if u == "turbine")
    assert isinstance(trial, Trial)
    assert isinstance(said, Reaction)
    h = trial.states.reshape(trial.worlds, -1, 2)[:, trial.lead - 1 :]
    u = said.inputs.reshape(trial.worlds, -1, 2)[:, trial.lead - 1 :, 1]
    seen = np.concatenate([h[:, 1:], h[:, :-1]], axis=2).reshape(-1, 4)
    level = np.ones((len(seen), 1))
    found = np.linalg.lstsq(np.hstack([seen, level]), np.diff(u, axis=1).ravel(), rcond=None)[0]
    # it reads the first state: C is the identity
    true = TURBINE_LAW.gain * np.array([1 + 1 / TURBINE_LAW.integral_time, -1])
    np.testing.assert_allclose(found[:4], [-true[0], 0.0, -true[1], 0.0], atol=1e-5)


def test_a_plant_supposes_other_laws_of_its_own_which_stay_at_home(both: tuple[Machines, cf.Fit]) -> None:
    made, alone = both
    change, window = {"boiler": {"feed": 0.5}}, {"start": 300, "stop": 330}
    made.trials.clear()
    for law in (cf.Manual(), cf.PID(0.3, 31.2571), cf.Relay(-0.2187513, 0.2187513, 0.5, -0.5)):
        laws = {"turbine": {"governor": law}}
        asked: list[Any] = [
            AskEffect("boiler", "turbine", change["boiler"], 20, laws=laws),
            AskCounterfactual("turbine", None, **window, laws=laws),
        ]
        with made.running("turbine") as view:
            for request in asked:
                alike(view.ask(request), alone.ask(request, DATA))
    bytes_down = b"".join(data for _, data, _ in made.trials)
    for number in (31.2571, 0.2187513):  # no round number, which could stand there by chance
        assert np.float64(number).tobytes() not in bytes_down, "the coordinator knows nothing of the other law"
        assert str(number).encode() not in bytes_down
    with made.running("turbine") as view, pytest.raises(cf.OptionError) as caught:
        view.ask(AskEffect("boiler", "turbine", change["boiler"], 20, laws={"boiler": {"valve": cf.Manual()}}))
    assert caught.value.code == "laws-elsewhere"
    trial = decode(next(sent for unit, sent, _ in made.trials[::-1] if unit == "turbine"))
    forged = encode(replace(trial, supposed="0" * 16))
    with pytest.raises(ProtocolError, match="supposes other laws"):
        made.plants["turbine"].exchange([(0, forged)], 0.0)
