"""The budget ledger: what it adds up, that nothing spent is ever lost or spent twice, and files it must not trust."""

from __future__ import annotations

import math
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import EXACT

from counterflow import sealed_log
from counterflow.errors import OptionError, PrivacyError, StorageError
from counterflow.privacy.accounting import Balance, Cost, gaussian_mu, total_epsilon
from counterflow.privacy.ledger import SCHEMA, Entry, Ledger, ledger_path
from counterflow.privacy.noise import Source
from counterflow.privacy.settings import Privacy
from counterflow.privacy.stretch import RowRange
from counterflow.sealed_log import SealedLogs

DELTA = 1e-6


def spend(ledger: Ledger, cost: Cost, what: str = "message") -> Entry:
    return ledger.spend(cost, what, fit="fit 1", mechanism="analytic Gaussian", source=str(Source()))


def affords(ledger: Ledger, costs: Sequence[Cost]) -> bool:
    """Whether all these releases could be spent now."""
    try:
        ledger.require(costs, "message")
    except PrivacyError:
        return False
    return True


def claim(epsilon: float, delta: float = 0.0) -> Cost:
    return Cost(0, 100, epsilon=epsilon, delta=delta)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "boiler.ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path, "boiler", 1.0, DELTA) as made:
        yield made


# ---- what it adds up


def test_a_new_ledger_says_what_it_was_made_with(path: Path) -> None:
    with Ledger.create(path, "boiler", 2, DELTA, window=3) as made:
        assert (made.unit, made.epsilon, made.delta, made.window) == ("boiler", 2.0, DELTA, 3)
        assert (made.path, made.spent, made.left, made.entries()) == (path, 0.0, 2.0, ())
        with Ledger.open(path, unit="boiler") as again:
            assert (again.created, again.epsilon, again.window) == (made.created, 2.0, 3)
    assert made.created.endswith("+00:00")
    assert sorted(os.listdir(path.parent)) == [path.name, f"{path.name}.head"], "drafts or logs were left"


def test_an_entry_is_what_was_spent(ledger: Ledger, path: Path) -> None:
    cost = Cost(7, 300, row_loss=1e-4, epsilon=0.1, delta=1e-7)
    entry = ledger.spend(cost, "sufficient message", fit="a", mechanism="b", source="seed 3")
    assert ledger.entries() == (entry,)
    told = (entry.id, entry.what, entry.fit, entry.mechanism, entry.source)
    assert told == (1, "sufficient message", "a", "b", "seed 3")
    assert entry.cost == cost
    assert entry.time.endswith("+00:00")
    assert entry.spent == ledger.spent == total_epsilon([cost], DELTA) == ledger.epsilon - ledger.left
    assert not entry.secure
    second = spend(ledger, claim(0.1))
    assert (second.id, second.secure) == (2, True)
    assert second.to_json()["rows"] == [0, 100]
    ledger.close()
    with Ledger.open(path) as again:
        assert again.entries() == (entry, second)
        assert again.spent == second.spent


def test_rows_that_do_not_overlap_do_not_add_up(ledger: Ledger) -> None:
    loss = gaussian_mu(0.7, DELTA) ** 2
    first = spend(ledger, Cost(0, 100, row_loss=loss))
    assert first.spent == pytest.approx(0.7, rel=1e-8)
    assert spend(ledger, Cost(100, 200, row_loss=loss)).spent == first.spent
    with pytest.raises(PrivacyError, match="rows 99 to 199"):
        spend(ledger, Cost(99, 200, row_loss=loss))
    assert spend(ledger, Cost(99, 200, row_loss=loss / 2)).spent == pytest.approx(
        total_epsilon([Cost(0, 1, row_loss=1.5 * loss)], DELTA), rel=EXACT
    )


def test_what_privacy_asks_for_is_exactly_affordable_once() -> None:
    for epsilon, window, numbers in ((0.1, 1, 100), (1.0, 1, 10**6), (10.0, 7, 3000)):
        privacy = Privacy(epsilon=epsilon, delta=DELTA, window=window)
        cost = Cost(0, 1000, row_loss=privacy.row_loss(numbers))
        ledger = Ledger.temporary("boiler", epsilon, DELTA, window)
        spend(ledger, cost)
        assert ledger.left == pytest.approx(0.0, abs=1e-6 * epsilon)
        assert not affords(ledger, [cost])
        with pytest.raises(PrivacyError):
            spend(ledger, Cost(0, 1000, row_loss=cost.row_loss * 1e-4))


def test_the_whole_budget_can_be_spent_and_then_nothing(ledger: Ledger) -> None:
    for _ in range(10):
        spend(ledger, claim(0.1, DELTA / 10))
    assert ledger.spent == pytest.approx(1.0, rel=EXACT)
    assert ledger.left == pytest.approx(0.0, abs=EXACT)
    for more in (claim(1e-6), claim(0.0, 1e-12), Cost(0, 1, row_loss=1e-12), Cost(500, 501, row_loss=1e-12)):
        with pytest.raises(PrivacyError):
            spend(ledger, more)
    assert len(ledger.entries()) == 10
    spend(ledger, claim(0.0))  # costs nothing


def test_a_refusal_says_what_was_asked_what_is_left_and_what_to_do(ledger: Ledger, path: Path) -> None:
    spend(ledger, claim(0.75))
    for refuse in (
        lambda: spend(ledger, claim(0.5), "gradient of round 3"),
        lambda: ledger.require([claim(0.25), claim(0.25)], "gradient of round 3"),
    ):
        with pytest.raises(PrivacyError) as caught:
            refuse()
        for part in ("'boiler'", "round 3", "rows 0 to 99", "1.25", "epsilon=1 ", "0.75", f"{path}", "open"):
            assert part in str(caught.value)
    assert affords(ledger, [claim(0.25)])
    assert affords(ledger, [])
    assert not affords(ledger, [claim(0.25), claim(0.25)])
    ledger.require([claim(0.25)], "all")
    assert ledger.spent == 0.75


@pytest.mark.parametrize(
    "costs",
    [
        [claim(0.1, 2e-6)],
        [claim(0.1, 0.6), claim(0.1, 0.6)],
        [claim(1e308)] * 3,
        [Cost(0, 10, row_loss=1e300)] * 2,
        [Cost(0, 10, row_loss=1.7e308)] * 2,
        [claim(0.0, DELTA), Cost(0, 1, row_loss=1e-12)],
    ],
)
def test_what_no_epsilon_can_promise_is_refused(ledger: Ledger, costs: list[Cost]) -> None:
    assert not affords(ledger, costs)
    with pytest.raises(PrivacyError, match="more than any epsilon can promise"):
        ledger.require(costs, "all of it")
    assert ledger.entries() == ()


def test_what_cannot_be_accounted_for_is_not_written(ledger: Ledger) -> None:
    with pytest.raises(OptionError, match="cannot be accounted for"):
        spend(ledger, Cost(0, 1, row_loss=1e-30))
    assert ledger.entries() == ()
    assert ledger.spent == 0


costs_drawn = st.builds(
    lambda start, rows, loss, epsilon, delta: Cost(start, start + rows, loss, epsilon, delta),
    st.integers(0, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 1e-3, 0.01, 0.3]),
    st.sampled_from([0.0, 0.1, 0.37]),
    st.sampled_from([0.0, 1e-8, 3e-8]),
)


@settings(max_examples=60, deadline=None)
@given(costs=st.lists(costs_drawn, max_size=12), window=st.integers(1, 5))
def test_the_total_is_that_of_all_releases_from_scratch(costs: list[Cost], window: int) -> None:
    ledger = Ledger.temporary("boiler", 5.0, DELTA, window)
    written: list[Cost] = []
    for cost in costs:
        expected = total_epsilon([*written, cost], DELTA, window)
        assert affords(ledger, [cost]) == (expected <= 5.0)
        if expected <= 5.0:
            assert spend(ledger, cost).spent == pytest.approx(expected, rel=1e-9, abs=1e-15)
            written.append(cost)
        else:
            with pytest.raises(PrivacyError):
                spend(ledger, cost)
        assert ledger.spent == pytest.approx(total_epsilon(written, DELTA, window), rel=1e-9, abs=1e-15)
    assert [entry.cost for entry in ledger.entries()] == written


def test_thousands_of_releases_of_the_same_rows_are_one_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = Balance.worst_window

    def watched(balance: Balance, window: int) -> float:
        sizes.append(len(balance.losses))
        return real(balance, window)

    monkeypatch.setattr(Balance, "worst_window", watched)
    ledger = Ledger.temporary("boiler", 3.0, DELTA)
    for _ in range(300):
        spend(ledger, Cost(0, 50, row_loss=1e-5, epsilon=1e-3, delta=1e-10))
        spend(ledger, Cost(50, 60, row_loss=1e-5))
    assert max(sizes) == 2


def test_a_temporary_ledger_has_no_file_and_is_one_of_its_own(tmp_path: Path) -> None:
    with Ledger.temporary("boiler", 1.0, DELTA) as first, Ledger.temporary("boiler", 1.0, DELTA) as second:
        assert first.path is None
        spend(first, claim(1.0))
        assert second.spent == 0
        assert "in memory" in repr(first)
    assert os.listdir(tmp_path) == []


# ---- arguments


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"window": 0}, "window"),
        ({"window": 1.0}, "window"),
        ({"window": True}, "window"),
        ({"unit": ""}, "unit"),
        ({"unit": "a\nb"}, "unit"),
        ({"unit": 3}, "unit"),
    ],
)
def test_a_budget_must_make_sense(path: Path, change: dict[str, Any], says: str) -> None:
    options: dict[str, Any] = {"unit": "boiler", "epsilon": 1.0, "delta": DELTA, "window": 1, **change}
    with pytest.raises(OptionError, match=says):
        Ledger.create(path, **options)
    with pytest.raises(OptionError, match=says):
        Ledger.temporary(**options)
    assert not path.exists()


def test_a_spend_must_make_sense(ledger: Ledger) -> None:
    good: dict[str, Any] = {"what": "message", "fit": "f", "mechanism": "m", "source": "s"}
    for name in good:
        for bad in ("", "\x1b[31m", "x" * 1001, None, 3):
            with pytest.raises(OptionError, match=f"ledger: {name}"):
                ledger.spend(claim(0.1), **{**good, name: bad})
    with pytest.raises(OptionError, match="Cost"):
        ledger.spend(0.1, **good)  # type: ignore[arg-type]
    assert ledger.entries() == ()


def test_where_the_ledger_of_a_unit_is(tmp_path: Path) -> None:
    assert ledger_path(tmp_path, "Kessel 1") == tmp_path / "Kessel 1.ledger"
    for name in ("", "../x", "a\\b", ".hidden", 3):
        with pytest.raises(OptionError, match="ledger"):
            ledger_path(tmp_path, name)  # type: ignore[arg-type]


# ---- one file, many users


def test_nothing_is_overwritten_and_another_units_ledger_is_refused(ledger: Ledger, path: Path) -> None:
    spend(ledger, claim(0.5))
    with pytest.raises(StorageError, match=r"boiler\.ledger' exists"):
        Ledger.create(path, "boiler", 9.0, DELTA)
    with pytest.raises(StorageError, match="that of unit 'boiler', not of 'turbine'"):
        Ledger.open(path, unit="turbine")
    assert ledger.spent == 0.5
    link = path.with_name("link.ledger")
    link.symlink_to(path)
    with pytest.raises(StorageError, match="follows no links"):
        Ledger.open(link)


def test_a_relative_path_stays_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger.create("boiler.ledger", "boiler", 1.0, DELTA) as made:
        monkeypatch.chdir("/")
        spend(made, claim(0.5))
    with Ledger.open(tmp_path / "boiler.ledger") as again:
        assert again.spent == 0.5


def test_two_connections_see_each_others_spends(ledger: Ledger, path: Path) -> None:
    with Ledger.open(path) as other:
        for k in range(4):
            spend((ledger, other)[k % 2], claim(0.2))
        assert [entry.id for entry in ledger.entries()] == [1, 2, 3, 4]
        assert ledger.spent == other.spent == pytest.approx(0.8, rel=EXACT)
        assert not affords(other, [claim(0.3)])
        with pytest.raises(PrivacyError):
            ledger.require([claim(0.3)], "more")


def test_many_race_for_the_last_release_and_one_wins(ledger: Ledger, path: Path) -> None:
    """Each with a connection of its own; processes that take turns and are killed: ``test_sealed_log``."""
    barrier = threading.Barrier(6)

    def won(_: int) -> bool:
        with Ledger.open(path) as own:
            barrier.wait()
            try:
                spend(own, claim(0.6))
            except PrivacyError:
                return False
            return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(won, range(6))) == 1
    assert (len(ledger.entries()), ledger.spent) == (1, 0.6)


# ---- files not to be trusted


@pytest.fixture
def used(ledger: Ledger, path: Path) -> Path:
    for k in range(4):
        spend(ledger, Cost(k, k + 10, row_loss=1e-3, epsilon=0.01), f"message {k}")
    ledger.close()
    return path


DIGEST = "0f" * 32


def reserve(ledger: Ledger, cost: Cost, release: str = DIGEST, rows: RowRange | None = None) -> Entry:
    about = {"fit": "fit 1", "mechanism": "analytic Gaussian", "source": str(Source())}
    return ledger.spend(cost, "message", release=release, rows=rows, **about)


def test_the_same_bytes_are_charged_once_and_what_never_left_is_given_back(ledger: Ledger, path: Path) -> None:
    first = reserve(ledger, claim(0.5))
    assert (first.state, ledger.spent) == ("reserved", 0.5)
    assert reserve(ledger, claim(0.5)) == first
    with Ledger.open(path) as other:  # another process: a reservation is spent until it is settled
        assert reserve(other, claim(0.5)) == first
        assert (other.spent, len(other.entries())) == (0.5, 1)
        assert other.settle(DIGEST, "withdrawn", "given up").state == "withdrawn"
    assert (ledger.spent, [entry.state for entry in ledger.entries()]) == (0.0, ["withdrawn"])
    again = reserve(ledger, claim(0.5))
    assert (again.id, again.state, ledger.spent) == (3, "reserved", 0.5)
    for _ in range(2):
        assert ledger.settle(DIGEST, "released", "left").state == "released"
    for release, state in ((DIGEST, "withdrawn"), ("ab" * 32, "released")):
        with pytest.raises(PrivacyError) as refused:
            ledger.settle(release, state, "no")
        assert refused.value.code == "settled"
    assert reserve(ledger, claim(0.5)).state == "released"
    with Ledger.open(path) as reopened:
        assert [entry.state for entry in reopened.entries()] == ["withdrawn", "released"]
        assert (reopened.spent, reopened.mark.entry) == (0.5, 4)


def test_a_mark_tells_a_ledger_that_has_lost_its_end(ledger: Ledger, path: Path, tmp_path: Path) -> None:
    reserve(ledger, claim(0.1))
    early = ledger.mark
    ledger.close()
    old = tmp_path / "old.ledger"
    shutil.copy(path, old)
    shutil.copy(f"{path}.head", f"{old}.head")
    with Ledger.open(path) as now:
        now.settle(DIGEST, "released", "left")
        late = now.mark
        assert now.holds(early)
        assert now.holds(late)
        assert not now.holds(late._replace(seal=early.seal))
    with Ledger.open(old) as then, Ledger.temporary("boiler", 2.0, DELTA) as other:
        assert (then.holds(early), then.holds(late)) == (True, False)
        assert other.holds(late), "that of another ledger says nothing of this one"


def test_a_log_that_moves_on_is_remembered_row_by_row(ledger: Ledger, path: Path) -> None:
    """Sliding windows of one log: each row is charged as often as it was released, and remembered once."""
    y = np.random.default_rng(1).standard_normal((1000, 3))
    y[::7] = 1.5  # a plant at rest now and then
    cost = Cost(0, 1, row_loss=1e-3)
    for k in range(0, 900, 100):
        begins = f"2026-01-01 00:{k // 60:02}:{k % 60:02}"
        entry = reserve(ledger, cost, f"{k:x}", RowRange.timed(y[k : k + 200], begins, 1.0))
        assert entry.cost.stop - entry.cost.start == 200
    assert ledger.spent == pytest.approx(total_epsilon([replace(cost, row_loss=2e-3)], DELTA), rel=1e-9)
    with SealedLogs(path, SCHEMA) as logs:
        assert sum(len(piece) for row in logs.rows("entries") for piece in row.pieces) <= 8 * 1100


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("spent", {"what": "\x1b[31m"}),
        ("spent", {"time": "now"}),
        ("spent", {"spent": -1.0}),
        ("spent", {"cost": [0, 10, -1.0, 0.0, 0.0]}),
        ("spent", {"cost": ["much"]}),
        ("spent", {"fit": ["fit"]}),
        ("budget", {}),
        ("released", {"release": "ab" * 32}),
        ("spent", {"release": "ab" * 32}),
        ("spent", {"more": 1}),
    ],
)
def test_a_sealed_row_that_is_no_release_is_refused(used: Path, kind: str, change: dict[str, Any]) -> None:
    with SealedLogs(used, SCHEMA) as logs:
        *_, last = logs.rows("entries")
        logs.append("entries", sealed_log.Entry(kind, {**last.table, **change}))
    with pytest.raises(StorageError, match=r"boiler\.ledger' has been changed.*backup") as refused:
        Ledger.open(used)
    assert refused.value.code == "damaged"


@pytest.mark.parametrize(
    "change",
    [{"epsilon": "much"}, {"delta": 2.0}, {"window": 0}, {"unit": ""}, {"created": "now"}, {"secret": "none"},
     {"more": 1}],
)  # fmt: skip
def test_a_budget_that_is_none_is_refused(path: Path, change: dict[str, Any]) -> None:
    good = {"unit": "boiler", "epsilon": 1.0, "delta": DELTA, "window": 1, "created": "2026-01-01T00:00:00+00:00"}
    begins = sealed_log.Entry("budget", {**good, "secret": "00" * 32, **change})
    SealedLogs.create(path, SCHEMA, "entries", begins).close()
    with pytest.raises(StorageError) as refused:
        Ledger.open(path)
    assert refused.value.code == "damaged"
