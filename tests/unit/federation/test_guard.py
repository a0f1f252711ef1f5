"""The guard of a plant: what may leave, what may enter, what is charged and written down: see ``fuzzing``, too."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterflow as cf
from counterflow import protocol
from counterflow.errors import CounterflowError, PrivacyError, ProtocolError, StorageError
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.rows import privatised
from counterflow.federation import Audit, Guard, Job, Policy, UnitData
from counterflow.federation.audit import FILE
from counterflow.federation.guard import MOST_REFUSALS
from counterflow.federation.reconciliation import compare, reconcile
from counterflow.privacy import Ledger, gaussian_epsilon, ledger_path, total_epsilon
from counterflow.protocol import Ask, Terms, decode, encode

PLANT = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=1)
RECORDING = PLANT.simulate(40, rng=2)
INPUTS = {unit.name: unit.inputs for unit in RECORDING.units}
OWN = UnitData(RECORDING["boiler"].unit, RECORDING["boiler"].y, RECORDING["boiler"].u, PLANT.local("boiler"))
PLAIN = Job("plain", "sufficient", INPUTS)
ASKED = cf.Privacy(2.0, 1e-6)
PRIVATE = Job("private", "sufficient", INPUTS, privacy=ASKED)
OPEN = Policy("boiler", methods=("sufficient", "penalty", "fedgc", "questions"), demanded=False)
MODEL = OWN.model
assert MODEL is not None
MESSAGE = sufficient_message("boiler", MODEL, OWN.y, OWN.u)
REDUCED = protocol.Reduced(
    "boiler", MESSAGE.numbers, np.array([[0.0, len(MESSAGE.inputs)]]), MESSAGE.inputs,
    np.zeros((1, MESSAGE.numbers.shape[1])), np.array([[0.0, float(len(MESSAGE.inputs))]]),
)  # fmt: skip


@pytest.fixture
def audit(tmp_path: Path) -> Any:
    with Audit(tmp_path / FILE) as opened:
        yield opened


def guard(audit: Audit, job: Job = PLAIN, policy: Policy = OPEN, **changes: Any) -> Guard:
    return Guard(job, replace(OWN, **changes), policy, audit)


def with_ledger(folder: Path, **changes: Any) -> Policy:
    path = ledger_path(folder / "budgets", "boiler")
    if not path.exists():
        Ledger.create(path, "boiler", 4.5, 1e-6).close()
    return replace(Policy("boiler", epsilon=2.0, delta=1e-6, ledger=folder / "budgets"), **changes)


def let_out(watchman: Guard, sent: protocol.Message, release: object) -> bytes:
    return watchman.leave(watchman.outgoing(encode(sent), release))


def last(audit: Audit) -> dict[str, Any]:
    return list(audit.records())[-1]


# ---- what leaves


def test_what_leaves_is_written_down_first(audit: Audit, tmp_path: Path) -> None:
    watchman, data = guard(audit), encode(MESSAGE)
    assert not watchman.approved(data)
    assert watchman.outgoing(data) == data
    assert watchman.approved(data)
    record = last(audit)
    assert (record["event"], record["kind"], record["bytes"], record["job"], record["to"]) == (
        "approved", "Sufficient", len(data), "plain", "coordinator",
    )  # fmt: skip
    watchman.outgoing(data)
    assert len(list(audit.records())) == 1, "the very same bytes are approved once"
    assert not watchman.has_left(data), "and have not left by that"
    for _ in range(2):
        assert watchman.leave(data) == data
    assert watchman.has_left(data)
    assert [one["event"] for one in audit.records()] == ["approved", "left"]
    assert {**record, **{k: last(audit)[k] for k in ("number", "time", "event", "hash")}} == last(audit)
    with pytest.raises(ProtocolError):
        watchman.leave(encode(replace(MESSAGE, values=MESSAGE.values + 1)))
    assert not guard(audit, Job("other", "sufficient", INPUTS)).approved(data), "and for one job"
    assert guard(Audit(tmp_path / FILE)).approved(data), "and another process knows"


def narrowed(message: protocol.Sufficient, rows: int) -> protocol.Sufficient:
    return replace(message, values=message.numbers[:rows].ravel(), inputs=message.inputs[:rows])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (replace(MESSAGE, unit="turbine"), "speaks for itself only"),
        (narrowed(MESSAGE, 20), "field 'inputs'"),
        (replace(MESSAGE, B=MESSAGE.B[:, :1], inputs=MESSAGE.inputs[:, :1]), "field 'inputs'"),
        (protocol.Request("boiler"), "may not leave"),
        (protocol.Settled("boiler", 1, 0.0), "may not leave"),
        (protocol.Ask("boiler", "effect", 0, 1), "may not leave"),
        (REDUCED, "may not leave"),
    ],
)
def test_what_does_not_agree_stays(message: protocol.Message, text: str, audit: Audit) -> None:
    watchman = guard(audit)
    with pytest.raises(ProtocolError, match=text):
        watchman.outgoing(encode(message))
    assert not watchman.approved(encode(message))
    record = last(audit)
    assert (record["event"], record["direction"]) == ("refused", "outgoing")


def test_states_outputs_and_rounds_are_checked(audit: Audit) -> None:
    with pytest.raises(ProtocolError, match="3 states"):
        guard(audit, model=cf.random_plant(units=["boiler"], states=3, outputs=3, rng=1).local("boiler")).outgoing(
            encode(MESSAGE)
        )
    with pytest.raises(ProtocolError, match="1 numbers at most"):
        guard(audit, unit=replace(OWN.unit, outputs=OWN.unit.outputs[:1])).outgoing(encode(MESSAGE))
    penalty = guard(audit, Job("penalty", "penalty", INPUTS, options={"solver": "gradient", "rounds": 3}))
    states = protocol.AugmentedStates("boiler", 3, 0.0, np.zeros((40, 2)), np.zeros(2))
    penalty.outgoing(encode(states))
    for wrong in (replace(states, round=4), replace(states, predicted=np.zeros((39, 2)))):
        with pytest.raises(ProtocolError):
            penalty.outgoing(encode(wrong))
    introduction = protocol.Introduction("boiler", np.eye(2), np.zeros((2, 0)), np.zeros((40, 2)), np.zeros((40, 0)))
    with pytest.raises(ProtocolError, match="field 'inputs'"):
        penalty.outgoing(encode(introduction))
    guard(audit, Job("fedgc", "fedgc", INPUTS)).outgoing(encode(introduction))  # which sends no inputs


def test_the_policy_narrows_kinds_and_bytes(audit: Audit) -> None:
    with pytest.raises(ProtocolError, match="nothing may"):
        guard(audit, policy=replace(OPEN, kinds=frozenset())).outgoing(encode(MESSAGE))
    with pytest.raises(ProtocolError, match="over the limit of 100"):
        guard(audit, policy=replace(OPEN, largest_bytes=100)).outgoing(encode(MESSAGE))


def test_nothing_can_hide_in_another_way_of_writing(audit: Audit) -> None:
    data = encode(protocol.Request("boiler"))
    header = json.dumps(json.loads(data[10:]), sort_keys=True, indent=1).encode()
    spaced = struct.pack("<4sHI", b"CFLW", 1, len(header)) + header
    assert decode(spaced) == decode(data)
    with pytest.raises(ProtocolError, match="not written as this version writes it"):
        guard(audit).incoming(spaced)


# ---- which jobs

MORNING = "2026-01-01 06:00:00"
TIMED = replace(PLAIN, begins=MORNING)


def private(**asked: Any) -> Job:
    return Job("j", "sufficient", INPUTS, privacy=cf.Privacy(**{"epsilon": 2.0, "delta": 1e-6, "window": 2, **asked}))


PUBLISHED = Job("j", "penalty", INPUTS, privacy=cf.Privacy(2.0, 1e-6, accounting="published"))


@pytest.mark.parametrize(
    ("policy", "job", "own", "kind", "text"),
    [
        ({"unit": "turbine"}, PLAIN, {}, ProtocolError, "policy is that of unit 'turbine'"),
        ({"methods": ("penalty",)}, PLAIN, {}, PrivacyError, "leave.methods"),
        ({"largest_rows": 40}, PLAIN, {}, PrivacyError, "leave.largest_rows"),
        ({"demanded": True}, PLAIN, {}, PrivacyError, "privacy.demanded"),
        ({}, PRIVATE, {}, PrivacyError, "privacy.ledger"),
        ({}, Job("j", "sufficient", {"turbine": []}), {}, ProtocolError, "takes no part"),
        ({}, Job("j", "sufficient", {"boiler": ["x"], "turbine": []}), {}, ProtocolError, "name them alike"),
        ({}, TIMED, {"begins": "2026-01-01 06:00:05"}, ProtocolError, r"06:00:05.*--begins"),
        ({}, TIMED, {}, ProtocolError, "no time that is known"),
        ({"window": 2}, private(epsilon=2.1), {}, PrivacyError, r"privacy\.epsilon.*epsilon = 2\.1"),
        ({"window": 2}, private(delta=2e-6), {}, PrivacyError, "privacy.delta"),
        ({"window": 2}, private(window=1), {}, PrivacyError, "privacy.window"),
        ({"window": 2}, private(seed=1), {}, PrivacyError, "privacy.simulation"),
        ({"methods": ("penalty",)}, PUBLISHED, {}, PrivacyError, r"privacy\.published"),
        ({}, private(models=(1.9, 1e-7)), {}, PrivacyError, "what this plant's model has cost"),
    ],
)
def test_jobs_that_a_plant_takes_no_part_in(
    policy: dict[str, Any], job: Job, own: dict[str, Any], kind: type[CounterflowError], text: str, audit: Audit,
    tmp_path: Path,
) -> None:  # fmt: skip
    strict = OPEN if job.privacy is None or job is PRIVATE else with_ledger(tmp_path)
    with pytest.raises(kind, match=text):
        guard(audit, job, replace(strict, **policy), **own)
    assert (last(audit)["event"], last(audit)["direction"]) == ("refused", "job")


def test_logs_of_the_same_beginning_or_of_a_job_without_one_take_part(audit: Audit) -> None:
    for job in (TIMED, PLAIN):
        guard(audit, job, begins=MORNING)


def test_a_plant_that_puts_no_questions_says_who_may_ask_about_it(audit: Audit) -> None:
    job = Job("ask", "questions", INPUTS, {"of": "fit"})
    closed = guard(audit, job, replace(OPEN, methods=(), answers=False))
    closed.outgoing(encode(Terms("boiler", "{}")))
    with pytest.raises(ProtocolError, match="Terms may"):
        closed.outgoing(encode(Ask("boiler", "effect", 0, 1)))
    guard(audit, job).outgoing(encode(Ask("boiler", "effect", 0, 1)))


# ---- privacy


def test_a_private_release_is_charged_before_it_leaves(audit: Audit, tmp_path: Path) -> None:
    watchman = guard(audit, PRIVATE, with_ledger(tmp_path))
    sent, release = privatised(MESSAGE, MODEL, ASKED)
    data = watchman.outgoing(encode(sent), release)
    with Ledger.open(ledger_path(tmp_path / "budgets", "boiler")) as ledger:
        assert not ledger.entries(), "approved bytes may never leave"
    watchman.leave(data)
    with Ledger.open(ledger_path(tmp_path / "budgets", "boiler")) as ledger:
        (entry,) = ledger.entries()
        assert (entry.fit, entry.state, entry.release) == ("job private", "released", last(audit)["sha256"])
        assert ledger.spent == pytest.approx(2.0, rel=1e-6)
    assert (last(audit)["event"], last(audit)["ledger_entry"]) == ("left", entry.id)
    watchman.leave(watchman.outgoing(data, release))
    with Ledger.open(ledger_path(tmp_path / "budgets", "boiler")) as ledger:
        assert len(ledger.entries()) == 1, "the same bytes tell nothing new"
    Ledger.create(ledger_path(tmp_path / "more", "boiler"), "boiler", 4.5, 1e-6).close()
    guard(audit, PRIVATE, with_ledger(tmp_path, ledger=tmp_path / "more")).leave(data)
    with Ledger.open(ledger_path(tmp_path / "more", "boiler")) as ledger:
        assert not ledger.entries(), "nor to the next ledger"


def test_only_what_was_made_private_as_asked_leaves_a_private_job(audit: Audit, tmp_path: Path) -> None:
    watchman = guard(audit, PRIVATE, with_ledger(tmp_path))
    sent, release = privatised(MESSAGE, MODEL, ASKED)
    weak = privatised(MESSAGE, MODEL, cf.Privacy(2.1, 1e-6))
    cut = privatised(MESSAGE, MODEL, cf.Privacy(2.0, 1e-6, clip=1.0))
    for message, made, text in (
        (MESSAGE, None, "was not made private"),
        (sent, None, "was not made private"),
        (*weak, "has noise of"),
        (*cut, "has noise of"),
        (sent, replace(release, sigma=float("nan")), "has noise of"),
    ):
        with pytest.raises(PrivacyError, match=text):
            watchman.outgoing(encode(message), made)
    with Ledger.open(ledger_path(tmp_path / "budgets", "boiler")) as ledger:
        assert not ledger.entries()
    penalty = Job("p", "penalty", INPUTS, privacy=cf.Privacy(2.0, 1e-6, accounting="published"))
    policy = with_ledger(tmp_path, methods=("penalty",), published=True)
    states = protocol.AugmentedStates("boiler", 0, 0.0, np.zeros((40, 2)), np.zeros(2))
    with pytest.raises(PrivacyError, match="was not made private"):
        guard(audit, penalty, policy).outgoing(encode(states))


def test_an_empty_budget_keeps_the_message(audit: Audit, tmp_path: Path) -> None:
    policy = with_ledger(tmp_path)
    for attempt in range(5):
        job = Job(f"j{attempt}", "sufficient", INPUTS, privacy=ASKED)
        sent, release = privatised(MESSAGE, MODEL, ASKED)
        try:
            let_out(guard(audit, job, policy), sent, release)
        except PrivacyError as error:
            assert "budget" in str(error)  # noqa: PT017
            break
    assert attempt >= 1
    assert (last(audit)["event"], last(audit)["direction"]) == ("refused", "outgoing")
    assert not guard(audit, job, policy).approved(encode(sent))


CLAIMS: dict[str, Any] = {  # what a job may say of a release, each another time
    "start": lambda k: {"start": 100_000 * k},
    "epsilon": lambda k: {"epsilon": 2.0 / (k + 1)},
    "delta": lambda k: {"delta": 1e-6 / (k + 1)},
    "clip": lambda k: {"clip": 10.0 ** (k - 15)},
    "window": lambda k: {"window": 1 + 50 * k},
    "all": lambda k: {"start": 41 * k, "epsilon": 1.0 + k / 30, "delta": 1e-7, "clip": 1.0 + k, "window": 1 + k},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_nothing_that_a_coordinator_claims_makes_a_release_cheaper_than_it_is(
    claim: str, audit: Audit, tmp_path: Path
) -> None:
    """Whatever jobs say of the same rows, the ledger has at least what the noise that was drawn has cost them."""
    policy, true = with_ledger(tmp_path), []
    for attempt in range(30):
        claimed = cf.Privacy(**{"epsilon": 2.0, "delta": 1e-6, **CLAIMS[claim](attempt)})
        sent, release = privatised(MESSAGE, MODEL, claimed)
        job = Job(
            f"j{attempt}", "sufficient", INPUTS, {"tol": 10.0**-attempt, "evaluations": attempt + 1}, attempt, claimed,
            dt=1.0 + attempt, created=f"20{attempt + 10}-01-01T00:00:00+00:00",
        )  # fmt: skip
        try:
            let_out(guard(audit, job, policy), sent, release)
        except PrivacyError:
            break
        true.append((2 * release.clip / release.sigma) ** 2)  # one row moves so far, in standard deviations
    with Ledger.open(ledger_path(tmp_path / "budgets", "boiler")) as ledger:
        assert len(ledger.entries()) == len(true) >= 2
        assert gaussian_epsilon(sum(true) ** 0.5, 1e-6) <= ledger.spent * (1 + 1e-9) <= 4.5 * (1 + 1e-6)


LATER = PLANT.simulate(40, rng=3)["boiler"].y
DAY_AFTER = "2026-01-02 06:00:00"


@pytest.mark.parametrize(
    ("log", "parallel"),
    [
        ({"y": LATER, "begins": DAY_AFTER}, True),
        ({"y": LATER, "begins": "2026-01-01 06:00:41"}, True),
        ({"y": LATER, "begins": "2026-01-01 06:00:40"}, False),  # one row is of the same time
        ({"y": LATER, "begins": ""}, False),
        ({"y": LATER, "begins": "yesterday"}, False),
        ({"y": LATER, "begins": DAY_AFTER + "+00:00"}, False),  # another clock
        ({"y": LATER, "begins": "2026-01-02 06:00:00.5"}, False),  # another grid
        ({"y": LATER, "begins": DAY_AFTER, "dt": 2.0}, False),
        ({"y": LATER, "begins": DAY_AFTER, "dt": None}, False),
        ({"y": OWN.y, "begins": DAY_AFTER}, False),  # the same rows under another time
        ({"y": OWN.y * (1 + 1e-12), "begins": DAY_AFTER}, False),
        ({"y": OWN.y.astype(np.float32).astype(float), "begins": DAY_AFTER}, False),
        ({"y": OWN.y[:, ::-1], "begins": DAY_AFTER}, False),  # columns in another order
        ({"y": np.vstack([OWN.y[7:], LATER[:7]]), "begins": MORNING}, False),  # shifted by some rows
        ({"y": np.vstack([LATER[:-1], OWN.y[3:4]]), "begins": DAY_AFTER}, False),  # one row of it
        ({"y": np.ones_like(LATER), "begins": DAY_AFTER}, False),  # which identifies nothing
    ],
)
def test_rows_are_told_apart_by_the_plants_own_log(
    log: dict[str, Any], parallel: bool, audit: Audit, tmp_path: Path
) -> None:
    policy = with_ledger(tmp_path)
    for k, own in enumerate(
        (replace(OWN, begins=MORNING, dt=1.0), replace(OWN, **{"dt": 1.0, **log})),
    ):
        job = Job(f"j{k}", "sufficient", INPUTS, privacy=cf.Privacy(2.0, 1e-6, start=1000 * k))
        assert job.privacy is not None
        sent, release = privatised(sufficient_message("boiler", MODEL, own.y, own.u), MODEL, job.privacy)
        let_out(Guard(job, own, policy, audit), sent, release)
    with Ledger.open(ledger_path(tmp_path / "budgets", "boiler")) as ledger:
        first, second = (entry.cost for entry in ledger.entries())
        alone = total_epsilon([first], 1e-6)
        together = total_epsilon([replace(first, start=0, stop=1), replace(second, start=0, stop=1)], 1e-6)
        assert ledger.spent == pytest.approx(alone if parallel else together, rel=1e-9)


# ---- an old ledger


def test_a_ledger_that_is_older_than_the_audit_log_lets_nothing_out(audit: Audit, tmp_path: Path) -> None:
    policy, path, old = with_ledger(tmp_path), ledger_path(tmp_path / "budgets", "boiler"), tmp_path / "old"

    def release(job_id: str) -> None:
        asked = cf.Privacy(1.0, 1e-6)
        watchman = guard(audit, Job(job_id, "sufficient", INPUTS, privacy=asked), policy)
        let_out(watchman, *privatised(MESSAGE, MODEL, asked))

    def copy(source: Path, target: Path) -> None:
        """Of a closed ledger: all of it is in the file and its head."""
        shutil.copy(source, target)
        shutil.copy(f"{source}.head", f"{target}.head")

    release("one")
    copy(path, old)
    release("two")
    with Ledger.open(path) as ledger:
        assert not compare(audit, ledger)
        spent = ledger.spent
    copy(path, tmp_path / "new")
    copy(old, path)
    for _ in range(2):
        with pytest.raises(StorageError) as refused:
            release("three")
        assert refused.value.code == "old"
    with Ledger.open(path) as ledger:
        assert [caveat.code for caveat in compare(audit, ledger)] == ["ledger-behind"]
        with pytest.raises(StorageError):
            reconcile(audit, ledger)
        assert len(ledger.entries()) == 1
    copy(tmp_path / "new", path)
    release("three")
    with Ledger.open(path) as ledger:
        assert ledger.spent > spent


# ---- what enters


IDENTIFIED = protocol.Identified(
    "boiler", False, np.eye(2), np.ones((2, 9)), np.eye(2), np.eye(2), np.eye(2), np.ones(9)
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (protocol.Request("turbine"), "spoken to by its own name"),
        (MESSAGE, "a server does not send Sufficient"),
        (protocol.Plan("boiler", True, True, False, 1.0), "a server does not send Plan"),
        (protocol.Answer("boiler", "effect", "", "", np.zeros((1, 2)), np.zeros((0, 2))), "does not send Answer"),
        (IDENTIFIED, "does not send Identified"),
    ],
)
def test_what_does_not_belong_does_not_enter(message: protocol.Message, text: str, audit: Audit) -> None:
    with pytest.raises(ProtocolError, match=text):
        guard(audit).incoming(encode(message))
    assert (last(audit)["event"], last(audit)["direction"]) == ("refused", "incoming")


def test_gradients_and_blocks_have_the_shape_of_states_and_inputs(audit: Audit) -> None:
    with pytest.raises(ProtocolError, match="field 'B'"):
        guard(audit, Job("logs", "sufficient", INPUTS, from_logs=True)).incoming(encode(IDENTIFIED))
    watchman = guard(audit, Job("penalty", "penalty", INPUTS, options={"rounds": 3, "solver": "gradient"}))
    good = protocol.StateGradients("boiler", 0, False, False, 1.0, False, np.zeros((40, 2)), np.zeros((0, 2)))
    assert watchman.incoming(encode(good)).unit == "boiler"
    for wrong in (
        replace(good, predicted=np.zeros((41, 2))), replace(good, round=9),
        replace(good, predicted=np.zeros((40, 3)), refined=np.zeros((0, 3))),
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            watchman.incoming(encode(wrong))


def test_refusals_do_not_fill_the_disk(audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    watchman = guard(audit)
    for _ in range(MOST_REFUSALS + 50):
        with pytest.raises(ProtocolError):
            watchman.incoming(b"x")
    records = list(audit.records())
    assert len(records) == MOST_REFUSALS
    assert "no further refusals" in records[-1]["reason"]
