"""The same estimates over durable sessions as in one process, undisturbed and killed anywhere; none lost or wrong."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import Federation, Hook, LoopbackJobs, SessionsFit, fit_over_sessions
from tolerances import EXACT

import counterflow as cf
from counterflow.errors import OptionError, PrivacyError, ProtocolError, StorageError
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.exchange import ExchangeServer, ExchangeUnit
from counterflow.exchange.projections import SHARES
from counterflow.exchange.task import UnitData
from counterflow.federation import Job, Policy, turns, verify
from counterflow.federation.audit import FILE, SITE, Audit
from counterflow.federation.engine import Jobs
from counterflow.federation.parts import saved_server
from counterflow.federation.reconciliation import compare
from counterflow.federation.sites import party
from counterflow.learning.clipping import own_response
from counterflow.paper.server import TrainingServer
from counterflow.paper.unit import TrainingUnit
from counterflow.privacy import Ledger, ledger_path
from counterflow.protocol import Moments, Request, StateGradients, Sufficient, decode, encode
from counterflow.sealed_log import Entry, Row, SealedLogs

PLANT = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=1)
RECORDING = PLANT.simulate(60, rng=2)
MODELS = PLANT.locals()
INPUTS = {unit.name: unit.inputs for unit in RECORDING.units}
RIGOROUS = cf.Privacy(8.0, 1e-5, seed=3, release="rows")
MOMENTS = cf.Privacy(8.0, 1e-5, seed=3, release="moments")
PUBLISHED = cf.Privacy(50.0, 1e-3, accounting="published", seed=3)
CASES: dict[str, tuple[str, dict[str, Any], cf.Privacy | None]] = {
    "sufficient": ("sufficient", {"uncertainty": False, "evaluations": 3}, None),
    "sufficient private": ("sufficient", {"uncertainty": False, "evaluations": 4}, RIGOROUS),
    "moments": ("moments", {}, None),
    "moments private": ("sufficient", {}, MOMENTS),
    "penalty conjugate": ("penalty", {"xi": 1.0}, None),
    "refined target": ("penalty", {"xi": 1.0, "target": "refined", "rounds": 4}, None),
    "penalty gradient": ("penalty", {"xi": 1.0, "solver": "gradient", "rounds": 4}, None),
    "lagrangian": ("lagrangian", {"rounds": 4}, None),
    "hybrid": ("hybrid", {"rounds": 2, "warm_rounds": 2, "solver": "gradient"}, None),
    "fedgc": ("fedgc", {"rounds": 3, "solver": "gradient"}, None),
    "penalty private": ("penalty", {"xi": 0.1, "rounds": 3}, PUBLISHED),
}
SEED = 7
KILLS = 60 if os.environ.get("COUNTERFLOW_THOROUGH") else 3
LONG = ("lagrangian", {"rounds": 5 * KILLS}, None)  # enough rounds to be killed in
THOROUGH = bool(os.environ.get("COUNTERFLOW_THOROUGH"))  # every write and moment of every case, more kills: minutes


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies loses nothing that it has written; only power cuts need what takes most of the time here."""
    for call in ("fsync", "fdatasync"):
        monkeypatch.setattr(f"os.{call}", lambda handle: None)
    monkeypatch.setattr("counterflow.sealed_log.schema.SYNCHRONOUS", "OFF")


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


def job_of(case: str) -> Job:
    method, options, privacy = CASES.get(case, LONG)
    name = f"job-{case.replace(' ', '-')}"
    return Job(name, method, INPUTS, options=options, seed=SEED, privacy=privacy, created="2026-01-01T00:00:00+00:00")


def policies_of(folder: Path, demanded: bool) -> dict[str, Policy]:
    return {
        name: Policy(
            name, methods=tuple({case[0] for case in CASES.values()}), demanded=demanded, epsilon=100.0, delta=1e-2,
            ledger=folder / "budgets" / name, published=True, simulation=True, inputs_shown=True,
        )
        for name in INPUTS
    }  # fmt: skip


def open_ledgers(folder: Path) -> None:
    for name in INPUTS:
        path = ledger_path(folder / "budgets" / name, name)
        if not path.exists():
            Ledger.create(path, name, 200.0, 1e-2).close()


def entries(folder: Path) -> dict[str, int]:
    out = {}
    for name in INPUTS:
        with Ledger.open(ledger_path(folder / "budgets" / name, name)) as ledger:
            out[name] = len(ledger.entries())
    return out


def run(folder: Path, job: Job, hook: Hook | None = None) -> SessionsFit:
    if job.privacy is not None:
        open_ledgers(folder)
    return fit_over_sessions(folder, job, RECORDING, MODELS, policies_of(folder, job.privacy is not None), hook)


def federation(folder: Path, job: Job) -> Federation:
    if job.privacy is not None:
        open_ledgers(folder)
    units = {n: UnitData(RECORDING[n].unit, RECORDING[n].y, RECORDING[n].u, MODELS[n]) for n in job.units}
    return Federation(folder, job, units, policies_of(folder, job.privacy is not None))


def in_process(case: str) -> cf.Fit:
    method, options, privacy = CASES.get(case, LONG)
    more = {} if method in ("sufficient", "moments") or privacy is not None else {"compress": False}
    return cf.fit(
        RECORDING, MODELS, method, seed=SEED, privacy=privacy, over_the_wire=True, **options, **more
    )  # fmt: skip


def noise_of(sent: Sufficient, name: str, sigma: float) -> float:
    """Noise of the coordinates W s that the message's own C' tells of, relative to ``sigma``."""
    plain = sufficient_message(name, MODELS[name], RECORDING[name].y, RECORDING[name].u)
    model = MODELS[name]
    W = own_response(model.A, model.B, model.Q, plain.observation, plain.inputs).W
    root = plain.observation @ np.linalg.inv(sent.observation)  # L with LLᵀ = I + σ² W⁻¹W⁻ᵀ
    added = W @ (root @ root.T - np.eye(len(W))) @ W.T
    return float(np.sqrt(added[0, 0])) / sigma


REFERENCES: dict[str, cf.Fit] = {}


def reference(case: str) -> cf.Fit:
    if case not in REFERENCES:
        REFERENCES[case] = in_process(case)
    return REFERENCES[case]


def agree(found: SessionsFit, case: str) -> None:
    wanted = reference(case)
    for letter in ("A", "B"):
        np.testing.assert_allclose(
            getattr(found.server, letter), getattr(wanted.plant, letter), rtol=EXACT, atol=EXACT, err_msg=letter
        )
    for name, part in wanted.parts.items():
        for letter in ("theta", "phi"):
            mine, theirs = getattr(found.parts[name], letter), getattr(part, letter)
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                np.testing.assert_allclose(mine, theirs, rtol=EXACT, atol=EXACT, err_msg=letter)
    traffic = found.result.traffic
    assert (traffic.rounds, traffic.bytes_up, traffic.bytes_down) == (
        wanted.traffic.rounds, wanted.traffic.bytes_up, wanted.traffic.bytes_down,
    )  # fmt: skip
    assert [r.server_loss for r in found.result.records] == pytest.approx(list(wanted.history.server_loss), rel=EXACT)


# ---- killed


@pytest.mark.parametrize("snapshots", [False, True])
def test_logs_without_models_give_the_same_system_and_parts(
    snapshots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if snapshots:
        short_logs(monkeypatch)
    recording = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=4).simulate(200, rng=5)
    options = {"rank": 2, "same_row": False}
    wanted = cf.fit(recording, None, over_the_wire=True, **options)
    job = Job("logs", "sufficient", {u.name: u.inputs for u in recording.units}, options=options, from_logs=True)
    policies = {name: Policy(name, demanded=False) for name in job.units}
    found = fit_over_sessions(tmp_path, job, recording, None, policies, lose_plants)
    np.testing.assert_allclose(found.server.B, wanted.plant.B, rtol=EXACT, atol=EXACT)
    for name in job.units:
        np.testing.assert_allclose(found.parts[name].model.C, wanted.parts[name].model.C, rtol=EXACT, atol=EXACT)
        np.testing.assert_allclose(
            found.parts[name].model_inputs(recording[name].u), wanted.parts[name].model_inputs(recording[name].u)
        )
        assert found.server.points[name].same_row == wanted.server.points[name].same_row


def lose_plants(federation: Federation, moment: str, unit: str) -> None:
    federation.lose(unit)


def lose_all(federation: Federation, moment: str, unit: str) -> None:
    for who in (None, *federation.units):
        federation.lose(who)


def lose_some() -> Hook:
    draw = random.Random(5)

    def hook(federation: Federation, moment: str, unit: str) -> None:
        for who in (None, *federation.units):
            if draw.random() < 0.3:
                federation.lose(who)

    return hook


def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot after every turn."""
    monkeypatch.setattr(turns, "has_grown_long", lambda size, before: True)


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_losing_parties_at_every_moment_or_at_random_with_snapshots_changes_nothing(
    case: str, snapshots: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if snapshots:
        short_logs(monkeypatch)
    job = job_of(case)
    found = run(tmp_path, job, lose_some() if snapshots else lose_all)
    agree(found, case)
    if job.privacy is None:
        assert found.result.status == reference(case).status
        for name in INPUTS:
            assert verify(tmp_path / name / FILE).broken is None
    else:
        check_books(tmp_path)


def no_commit(store: SealedLogs, connection: Any) -> None:
    """Death when all is written but the commit."""
    raise Killed


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, what: str, at: int, how: str) -> Iterator[None]:
    """Die when anybody's logs ``append`` or ``begin_anew`` for the ``at``-th time: before it, amid it or after it."""
    real, count = getattr(SealedLogs, what), 0

    def deadly(logs: SealedLogs, *given: Any) -> Any:
        nonlocal count
        count += 1
        if count != at:
            return real(logs, *given)
        if how == "half":
            patch.setattr(SealedLogs, "_commit", no_commit)
        if how != "before":
            real(logs, *given)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(SealedLogs, what, deadly)
        yield


def survives(
    folder: Path, case: str, what: str, how: str, some: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dies at these writes, or at all of them if it may take minutes, the job goes on to the same end."""
    job, deaths = job_of(case), 0
    for at in range(1, 1000) if THOROUGH else some:
        place = folder / str(at)
        with dying(monkeypatch, what, at, how), federation(place, job) as everybody:
            try:
                everybody.run()
            except Killed:
                deaths += 1
            else:
                break  # it writes less often than that
        agree(run(place, job), case)
    assert deaths >= 6


DEATHS = {  # what is written, and how often before somebody dies
    # the plant's first audit line, its first turn, the coordinator's first turn and acknowledgement, two later ones
    **dict.fromkeys(CASES if THOROUGH else ["sufficient", "penalty gradient"], ("append", (3, 4, 5, 6, 8, 11), False)),
    "penalty gradient, logs begin anew": ("begin_anew", (1, 2, 3, 8, 13, 20), True),
    "lagrangian, logs begin anew": ("append", (3, 4, 5, 6, 12, 20), True),
}


@pytest.mark.parametrize("how", ["before", "half", "after"])
@pytest.mark.parametrize("deaths", DEATHS)
def test_dying_at_a_write_changes_nothing(
    deaths: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what, some, snapshots = DEATHS[deaths]
    if snapshots:
        short_logs(monkeypatch)
    survives(tmp_path, deaths.split(",")[0], what, how, some, monkeypatch)


# ---- logs that begin anew


def test_what_is_on_the_disk_does_not_grow_with_the_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LEAST", 10_000)
    most = {}
    for rounds in (40, 160):
        job = Job(f"long-{rounds}", "lagrangian", INPUTS, options={"rounds": rounds}, seed=SEED)
        sizes = [0]

        def look(everybody: Federation, moment: str, unit: str, sizes: list[int] = sizes, job: Job = job) -> None:
            assert all(place.stat().st_size < 10 << 16 for place in tmp_path.glob(f"*/{job.id}/session.db"))
            sessions = everybody.coordinator, *(everybody.plant(unit) for unit in everybody.units)
            sizes.append(max(session._store.size("turns") for session in sessions))

        result = run(tmp_path, job, look).result
        assert len(result.records) == result.traffic.rounds == rounds
        most[rounds] = max(sizes)
        moved = (result.traffic.bytes_up + result.traffic.bytes_down) / rounds
    assert most[40] < 25 * moved
    assert most[160] < most[40] + 120 * 700  # losses of a round are kept, and nothing else of it
    assert 160 * moved > 4 * most[160], "there was nothing to bound"


def test_a_job_that_is_over_is_not_estimated_again_and_needs_nothing_of_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of("sufficient")
    wanted = run(tmp_path, job)

    def again(*arguments: object, **options: object) -> None:
        raise AssertionError("it was estimated again")

    monkeypatch.setattr("counterflow.exchange.rows.maximum_likelihood", again)
    with Federation(tmp_path, job, {}, {}) as alone:
        assert not alone.coordinator.outgoing()
        result = alone.coordinator.result()
        assert np.array_equal(result.server.A, wanted.server.A)
        assert [unit.input_names for unit in result.server.units] == [RECORDING[n].unit.input_names for n in INPUTS]
        assert result.status == wanted.result.status
        assert result.traffic == wanted.result.traffic


def test_another_log_model_or_estimator_is_refused_after_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_logs(monkeypatch)
    job = job_of("penalty gradient")
    with federation(tmp_path, job) as everybody:
        everybody.plant("boiler").receive(0, everybody.coordinator.outgoing()[0].data)
    own, model = RECORDING["boiler"], MODELS["boiler"]
    wavering = own.y.copy()
    wavering[7, 1] += 1e-9
    for changed, reason in (
        (UnitData(own.unit, wavering, own.u, model), "log or model"),
        (UnitData(own.unit, own.y, own.u * 1.001, model), "log or model"),
        (UnitData(own.unit, own.y, own.u, replace(model, A=model.A * 1.001)), "log or model"),
        (UnitData(own.unit, own.y, own.u, model, Other(model)), "estimator"),
    ):
        everybody = Federation(tmp_path, job, {"boiler": changed}, policies_of(tmp_path, False))
        with everybody, pytest.raises(StorageError, match=f"has changed since it began.*{reason}"):
            everybody.plant("boiler")
    with federation(tmp_path, job) as everybody:
        agree(everybody.run(), "penalty gradient")


class Other(cf.KalmanEstimator):
    """Estimates a little otherwise."""

    def estimate(self, y: np.ndarray, u: np.ndarray) -> Any:
        return super().estimate(y * 1.0001, u)


def test_turns_of_long_ago_are_not_repeated(tmp_path: Path) -> None:
    job = Job("long-ago", "lagrangian", INPUTS, options={"rounds": 12}, seed=SEED)
    came: dict[int, bytes] = {}

    def listen(everybody: Federation, moment: str, unit: str) -> None:
        if moment == "before delivery" and unit == "boiler":
            came.update({m.sequence: m.data for m in everybody.coordinator.outgoing() if m.unit == unit})

    with federation(tmp_path, job) as everybody:
        everybody.run(listen)
        plant = everybody.plant("boiler")
        assert plant.due == len(came) == 14
        for sequence in range(plant.due - plant.KEPT, plant.due):
            assert plant.receive(sequence, came[sequence]) == plant.replies(sequence)
        with pytest.raises(ProtocolError, match="taken in long ago"):
            plant.receive(0, came[0])
        with pytest.raises(ProtocolError, match="taken in long ago"):
            everybody.coordinator.receive("boiler", 0, b"")


@pytest.mark.parametrize("kind", [ExchangeUnit, ExchangeServer, TrainingUnit, TrainingServer])
def test_every_field_of_a_state_is_given_or_kept(kind: Any) -> None:
    assert {field.name for field in fields(kind)} > kind.GIVEN


# ---- privacy: nothing is released twice uncounted


SECRET = Job("secret", "sufficient", INPUTS, options={"evaluations": 2}, privacy=cf.Privacy(8.0, 1e-5))
MOMENTS_SECRET = Job("secret", "sufficient", INPUTS, privacy=cf.Privacy(8.0, 1e-5, release="moments"))


@contextmanager
def dying_at_a_step(monkeypatch: pytest.MonkeyPatch, at: int, how: str) -> Iterator[list[str]]:
    """Die at the ``at``-th durable step of anybody: a row added to a log, or a charge; yields their names."""
    append, spend, settle, steps = SealedLogs.append, Ledger.spend, Ledger.settle, list[str]()

    def step(name: str, real: Any, *arguments: Any) -> Any:
        steps.append(name)
        if len(steps) == at and how == "before":
            raise Killed
        done = real(*arguments)
        if len(steps) == at:
            raise Killed
        return done

    with monkeypatch.context() as patch:
        audited = lambda *a: append(*a) if a[1] == "entries" else step(f"{a[1]} {a[2].kind}", append, *a)  # noqa: E731
        patch.setattr(SealedLogs, "append", audited)
        patch.setattr(Ledger, "spend", lambda *a, **named: step("ledger reserved", partial(spend, **named), *a))
        patch.setattr(Ledger, "settle", lambda *a: step(f"ledger {a[2]}", settle, *a))
        yield steps


def check_books(folder: Path) -> None:
    """What has left by the audit log and what was charged by the ledger are the same, to the byte."""
    for name in INPUTS:
        with (
            Audit(folder / name / FILE) as audit,
            Ledger.open(ledger_path(folder / "budgets" / name, name)) as ledger,
        ):
            assert compare(audit, ledger) == ()
            left = [record["sha256"] for record in audit.records() if record["event"] == "left" and "mark" in record]
            assert left == [entry.release for entry in ledger.entries()]


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("job", [SECRET, MOMENTS_SECRET], ids=["rows", "moments"])
def test_each_release_is_charged_once_whenever_death_comes(
    job: Job, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Durable steps of a private job, one after the other, of several releases every fifth; noise as in earnest."""
    seen: list[str] = []
    releases = 1 if job is SECRET else len(SHARES)
    for at in range(1, 1000, 1 if job is SECRET or THOROUGH else 5):
        folder, released = tmp_path / f"{at}", {name: set[bytes]() for name in INPUTS}

        def watch(everybody: Federation, moment: str, unit: str, released: dict[str, set[bytes]] = released) -> None:
            if moment == "after reply":
                plant = everybody.plant(unit)
                released[unit] |= {reply.data for reply in plant.replies(plant.due - 1)}

        with dying_at_a_step(monkeypatch, at, how) as steps, federation(folder, job) as everybody:
            try:
                everybody.run(watch)
            except Killed:
                seen.append(steps[-1])
            else:
                break
        for name in INPUTS:  # at any moment: what has left was charged, and nothing else twice
            private = [data for data in released[name] if isinstance(decode(data), Sufficient | Moments)]
            assert len(private) <= entries(folder)[name] <= releases
        with federation(folder, job) as everybody:
            everybody.run(watch)
            for name in INPUTS:
                state, sent = everybody.plant(name).state, [decode(data) for data in released[name]]
                assert isinstance(state, ExchangeUnit)
                assert state.release is not None
                private = [each for each in sent if isinstance(each, Sufficient | Moments)]
                assert len(private) == releases, "the same bytes, however often they were asked for"
                # what is kept of how it was made is of the message that was sent, not of one that was made later
                if isinstance(private[0], Sufficient):
                    assert noise_of(private[0], name, state.release.sigma) == pytest.approx(1.0, abs=1e-6)
                else:
                    (last,) = (each for each in private if each.round == releases - 1)
                    assert (np.linalg.eigvalsh(last.noise) > 0).all()
        assert entries(folder) == dict.fromkeys(INPUTS, releases)
        check_books(folder)
    if job is SECRET:
        order = ["audit approved", "turns turn", "ledger reserved", "audit left", "ledger released"]
        assert [step for step in steps if step in order and step != "turns turn"][:4] == [order[0], *order[2:]]
        assert set(order) <= set(seen)


@pytest.mark.parametrize("log", ["turns", "audit"])
def test_a_plant_that_cannot_write_is_not_charged(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a coordinator asks, in one job or in many."""
    real = SealedLogs.append

    def full(store: SealedLogs, where: str, entry: Entry) -> Row:
        if where == log and entry.kind in ("turn", "approved") and store.path.is_relative_to(tmp_path / "boiler"):
            with SITE.blaming(store.path):
                raise OSError(errno.ENOSPC, "No space left on device")
        return real(store, where, entry)

    for attempt in range(12):
        job = replace(SECRET, id=f"secret-{attempt // 4}")
        with monkeypatch.context() as patch, federation(tmp_path, job) as everybody:
            patch.setattr(SealedLogs, "append", full)
            for _ in range(2):
                with pytest.raises(StorageError) as refused:
                    everybody.run()
                assert refused.value.code == "full"
    assert entries(tmp_path) == {"boiler": 0, "turbine": 0}
    run(tmp_path, job)
    assert entries(tmp_path) == {"boiler": 1, "turbine": 1}
    check_books(tmp_path)


def test_a_stranded_reservation_is_seen_and_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dying_at_a_step(monkeypatch, 1 << 30, "before") as steps, federation(tmp_path / "whole", SECRET) as everybody:
        everybody.run()
    at = steps.index("audit left") + 1
    with (
        dying_at_a_step(monkeypatch, at, "before"), federation(tmp_path, SECRET) as everybody, pytest.raises(Killed)
    ):  # fmt: skip
        everybody.run()
    with (
        Audit(tmp_path / "boiler" / FILE) as audit,
        Ledger.open(ledger_path(tmp_path / "budgets" / "boiler", "boiler")) as ledger,
    ):
        assert [caveat.code for caveat in compare(audit, ledger)] == ["reservation-open"]
        (entry,) = ledger.entries()
        charged = ledger.spent
        assert (entry.state, charged > 0) == ("reserved", True)
        ledger.settle(entry.release, "withdrawn", "the job was given up")
        assert ledger.spent == 0
        assert compare(audit, ledger) == ()
    run(tmp_path, SECRET)  # it was not given up: the same bytes leave, and are charged
    with Ledger.open(ledger_path(tmp_path / "budgets" / "boiler", "boiler")) as ledger:
        assert [entry.state for entry in ledger.entries()] == ["withdrawn", "released"]
        assert len({entry.release for entry in ledger.entries()}) == 1
        assert ledger.spent == charged


def test_a_budget_that_is_used_up_keeps_the_message_in_and_a_finished_release_usable(tmp_path: Path) -> None:
    job = Job("dear", "sufficient", INPUTS, options={"evaluations": 2}, privacy=cf.Privacy(8.0, 1e-5))
    for name in INPUTS:
        Ledger.create(ledger_path(tmp_path / "budgets" / name, name), name, 9.0, 1e-5).close()  # for one, not for two
    run(tmp_path, job, lose_all)  # reopening must not ask for the budget again
    again = Job("dear-2", "sufficient", INPUTS, options={"evaluations": 2}, privacy=cf.Privacy(8.0, 1e-5))
    with pytest.raises(PrivacyError, match="budget"):
        run(tmp_path, again)
    assert entries(tmp_path) == {"boiler": 1, "turbine": 1}


# ---- what is refused


def test_a_round_is_never_computed_from_a_part_of_the_units(tmp_path: Path) -> None:
    with federation(tmp_path, job_of("penalty gradient")) as everybody:
        (first, second) = everybody.coordinator.outgoing()
        for _ in range(3):  # however often one of them speaks
            for reply in everybody.plant(first.unit).receive(0, first.data):
                everybody.coordinator.receive(*reply)
        everybody.coordinator.acknowledge(first.unit, 0)
        everybody.lose(None)
        assert everybody.coordinator.round == 0
        assert everybody.coordinator.waiting() == (second.unit,)
        # the acknowledgement would have gone to the disk with the next message; without it, one is delivered again
        assert everybody.coordinator.outgoing() == [first, second]
        for reply in everybody.plant(first.unit).receive(0, first.data):
            everybody.coordinator.receive(*reply)
        everybody.coordinator.acknowledge(first.unit, 0)
        assert everybody.coordinator.outgoing() == [second]
        with pytest.raises(ProtocolError, match="not finished: it waits for turbine"):
            everybody.coordinator.result()
        for reply in everybody.plant(second.unit).receive(0, second.data):
            everybody.coordinator.receive(*reply)
        assert everybody.coordinator.round == 1


def test_the_coordinator_refuses_what_is_not_due(tmp_path: Path) -> None:
    with federation(tmp_path, job_of("penalty gradient")) as everybody:
        server = everybody.coordinator
        message = server.outgoing()[0]
        one, two = everybody.plant("boiler").receive(0, message.data)
        with pytest.raises(ProtocolError, match="message 0 is due"):
            server.receive(*two)
        server.receive(*one)
        server.receive(*one)  # again: ignored
        with pytest.raises(ProtocolError, match="other content"):
            server.receive("boiler", 0, two.data)
        with pytest.raises(ProtocolError, match="speaks as 'boiler'"):
            server.receive("turbine", 0, one.data)
        with pytest.raises(ProtocolError, match="takes part"):
            server.receive("condenser", 0, one.data)
        with pytest.raises(ProtocolError, match="does not send Request"):
            server.receive("boiler", 1, encode(Request("boiler")))
        for cut in (0, 5, 40, len(two.data) - 1):
            with pytest.raises(ProtocolError):
                server.receive("boiler", 1, two.data[:cut])
        for wrong in (-1, 1 << 60):
            with pytest.raises(ProtocolError):
                server.receive("boiler", wrong, two.data)
        with pytest.raises(ProtocolError, match="never sent"):
            server.acknowledge("boiler", 1)
        server.receive(*two)
        server.acknowledge("boiler", 0)
        server.acknowledge("boiler", 0)
        assert [m.unit for m in server.outgoing()] == ["turbine"]
        everybody.run()


def test_a_plant_refuses_what_is_not_due_and_writes_it_down(tmp_path: Path) -> None:
    with federation(tmp_path, job_of("penalty gradient")) as everybody:
        mine, other = everybody.coordinator.outgoing()
        plant = everybody.plant("boiler")
        with pytest.raises(ProtocolError, match="message 0 is due"):
            plant.receive(1, mine.data)
        with pytest.raises(ProtocolError, match="spoken to by its own name"):
            plant.receive(0, other.data)
        with pytest.raises(ProtocolError, match="does not send Request"):
            plant.receive(0, encode(Request("boiler")))
        for cut in (0, 5, 40, len(mine.data) - 1):
            with pytest.raises(ProtocolError):
                plant.receive(0, mine.data[:cut])
        replies = plant.receive(0, mine.data)
        assert plant.receive(0, mine.data) == replies
        with pytest.raises(ProtocolError, match="other content"):
            plant.receive(0, other.data)
        with pytest.raises(ProtocolError, match="did not expect Plan"):
            plant.receive(1, mine.data)
        assert plant.due == 1
        everybody.run()
    with Audit(tmp_path / "boiler" / FILE) as audit:
        assert sum(record["event"] == "refused" for record in audit.records()) == 9


def test_a_session_is_that_of_its_job_log_model_and_audit(tmp_path: Path) -> None:
    job = job_of("sufficient")
    run(tmp_path, job)
    other = Job(job.id, "sufficient", INPUTS, options={"uncertainty": False, "tol": 1e-3})
    with pytest.raises(StorageError, match="give its"):
        run(tmp_path, other)
    changed = {n: UnitData(RECORDING[n].unit, RECORDING[n].y * 1.001, RECORDING[n].u, MODELS[n]) for n in INPUTS}
    everybody = Federation(tmp_path, job, changed, policies_of(tmp_path, False))
    with everybody, pytest.raises(StorageError, match="has changed since it began"):
        everybody.plant("boiler")
    with federation(tmp_path, job) as one, federation(tmp_path, job) as two:
        assert one.plant("boiler").finished
        with pytest.raises(StorageError) as refused:
            two.plant("boiler")
        assert refused.value.code == "in-use"
        assert one.coordinator.finished
        with pytest.raises(StorageError) as refused:
            two.coordinator.outgoing()
        assert refused.value.code == "in-use"
    for place in (tmp_path / "boiler").glob(f"{FILE}*"):
        place.unlink()
    with federation(tmp_path, job) as everybody, pytest.raises(StorageError, match="audit log does not know"):
        everybody.plant("boiler")


def test_a_failed_estimate_fails_the_job_for_good(tmp_path: Path) -> None:
    job = Job("diverging", "penalty", INPUTS, options={"solver": "gradient", "rounds": 400, "eta_1": 1e9, "xi": 1.0})
    with federation(tmp_path, job) as everybody:
        with pytest.raises(OptionError, match="diverged"):
            everybody.run()
        everybody.lose(None)
        assert "diverged" in (everybody.coordinator.failure or "")
        assert not everybody.coordinator.finished


@pytest.mark.parametrize("size", [1e300, 1e308, -1e308])
def test_gradients_beyond_all_measure_are_refused_and_change_nothing(size: float, tmp_path: Path) -> None:
    with federation(tmp_path, job_of("penalty gradient")) as everybody:
        plant = everybody.plant("boiler")
        plant.receive(0, everybody.coordinator.outgoing()[0].data)
        shape = (RECORDING.steps, MODELS["boiler"].states)
        huge = StateGradients("boiler", 0, False, False, 2.0, False, np.full(shape, size), np.full(shape, size))
        with pytest.raises(OptionError, match="diverged at unit 'boiler'"):
            plant.receive(1, encode(huge))
        assert plant.due == 1
        agree(everybody.run(), "penalty gradient")


# ---- real kills

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import test_sessions
from pathlib import Path
test_sessions.turns.LEAST = 20_000  # it is killed while logs begin anew, too
test_sessions.run(Path(sys.argv[2]), test_sessions.job_of(sys.argv[3]))
print("done", flush=True)
"""


def test_kill_9_at_random_times(tmp_path: Path) -> None:
    """The whole federation in one process, killed several times, then left alone."""
    case, draw = "long", random.Random(11)
    here = Path(__file__).parent
    paths = (str(here.parent), str(here), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", SCRIPT, str(here), str(tmp_path), case]
    journal = tmp_path / "coordinator" / job_of(case).id / "session.db.head"
    for kill in range(KILLS):
        before = journal.stat().st_mtime_ns if journal.exists() else 0
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and (not journal.exists() or journal.stat().st_mtime_ns <= before):
                time.sleep(0.001)  # until it goes on from where the last one was killed
            time.sleep(draw.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            assert process.stdout is not None
            assert not process.stdout.read(), f"the job was over before kill {kill + 1}: give it more rounds"
        assert process.returncode == -signal.SIGKILL
    agree(run(tmp_path, job_of(case)), case)


def test_loopback_is_an_engine(tmp_path: Path) -> None:
    """What a command asks of any engine: follow a job to its end, tell its state, go on with one that broke off."""
    job, home = job_of("sufficient"), tmp_path / "home"
    units = {n: UnitData(RECORDING[n].unit, RECORDING[n].y, RECORDING[n].u, MODELS[n]) for n in INPUTS}
    jobs: Jobs = LoopbackJobs(tmp_path, home, units, policies_of(tmp_path, False))
    seen: list[dict[str, Any]] = []
    state = jobs.follow(job, progress=seen.append)
    assert (state["state"], state["exchanges"], seen) == ("finished", 4, [state])
    assert np.array_equal(saved_server(home, job.id)[1].A, run(tmp_path / "other", job).server.A)
    assert jobs.follow(job) == state, "a job that is finished is not run again"
    assert not jobs.alive(jobs.submit(job, job.units))
    alone: Jobs = LoopbackJobs(tmp_path, home, {}, {})
    with pytest.raises(ProtocolError, match="not here: boiler, turbine"):
        alone.submit(job_of("lagrangian"), job.units)
    strict: Jobs = LoopbackJobs(tmp_path, home, units, policies_of(tmp_path, True))
    with pytest.raises(PrivacyError):
        strict.follow(job_of("lagrangian"))
    failed = party.state(home, job_of("lagrangian").id)
    assert (failed["state"], failed["code"]) == ("failed", "privacy.demanded")
