"""Results on disk: found again, never mixed, and computed anew when a file is not what was written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from counterflow.errors import StorageError, UnknownNameError
from counterflow.paper import experiments
from counterflow.paper.experiments.experiment import Outcome, Task
from counterflow.paper.experiments.store import Store

VALUES = {"loss": 0.1 + 0.2, "series": np.array([1.0, np.nan, 1e-300]), "one": np.array([2.0]), "label": "stand-in"}
TASK = Task("synthetic", {"seed": 3, "weights": [0.1, 10.0]})


def counting(monkeypatch: pytest.MonkeyPatch, revision: int = 1, broken: int | None = None) -> list[int]:
    """Let every experiment be one that only counts which tasks it is given."""
    seen: list[int] = []

    def compute(task: Task) -> dict[str, float]:
        if task["seed"] == broken:
            raise ValueError("no")
        seen.append(task["seed"])
        return {"square": float(task["seed"] ** 2)}

    monkeypatch.setattr(experiments, "named", lambda _: SimpleNamespace(compute=compute, revision=revision))
    return seen


def tasks(count: int) -> list[Task]:
    return [Task("fake", {"seed": k}) for k in range(count)]


def test_what_is_saved_is_found_again(tmp_path: Path) -> None:
    store = Store(tmp_path, quick=False)
    assert store.load(TASK) is None
    store.save(Outcome(TASK, VALUES, 1.5))
    found = store.load(TASK)
    assert found is not None
    assert found.seconds == 1.5
    assert set(found.values) == set(VALUES)
    assert found.array("loss") == VALUES["loss"]
    assert found.values["label"] == "stand-in"
    np.testing.assert_array_equal(found.array("series"), VALUES["series"])
    assert found.array("one").shape == (1,)
    assert [path.suffix for path in store.path(TASK).parent.iterdir()] == [".safetensors"], "no drafts are left"


def test_quick_and_full_results_settings_and_revisions_never_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, quick=True)
    store.save(Outcome(TASK, VALUES, 1.0))
    assert Store(tmp_path, quick=False).load(TASK) is None
    assert store.load(Task("synthetic", {**TASK.settings, "seed": 4})) is None
    assert store.load(Task("synthetic", dict(reversed(TASK.settings.items())))) is not None, "order says nothing"
    counting(monkeypatch, revision=99)
    assert store.load(TASK) is None


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "swapped"])
def test_a_damaged_file_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    seen = counting(monkeypatch)
    store = Store(tmp_path, quick=False)
    store.computed(tasks(2))
    path = store.path(tasks(2)[1])
    whole = path.read_bytes()
    ruined = bytearray(whole)
    ruined[-1] ^= 1
    content = {
        "cut": whole[:-3], "flipped": bytes(ruined), "empty": b"", "swapped": store.path(tasks(2)[0]).read_bytes()
    }  # fmt: skip
    path.write_bytes(content[damage])
    found = store.computed(tasks(2))
    assert seen == [0, 1, 1]
    assert [outcome.values["square"] for outcome in found.values()] == [0.0, 1.0]
    assert store.load(tasks(2)[1]) is not None


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, quick=False)
    seen = counting(monkeypatch, broken=2)
    with pytest.raises(ValueError, match="no"):
        store.computed(tasks(4))
    assert seen == [0, 1]
    seen = counting(monkeypatch)
    watched: list[tuple[int, int, int]] = []
    found = store.computed([*tasks(4), *tasks(2)], watch=lambda *told: watched.append((told[0]["seed"], *told[1:])))
    assert seen == [2, 3], "only what was missing, and what is asked for twice once"
    assert watched == [(0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 4, 4)]
    assert [outcome.values["square"] for outcome in found.values()] == [0.0, 1.0, 4.0, 9.0]
    store.computed(tasks(4), force=True)
    assert seen == [2, 3, 0, 1, 2, 3]


def test_what_cannot_be_written_or_done_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="there is no experiment 'nonsense': choose one of synthetic"):
        experiments.named("nonsense")
    (tmp_path / "results").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        Store(tmp_path, quick=False).save(Outcome(TASK, VALUES, 1.0))
    with pytest.raises(StorageError, match="not finite"):
        Store(tmp_path / "other", quick=False).save(Outcome(TASK, {"loss": float("inf")}, 1.0))


def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    settings = {"units": 2, "outputs": 4, "xi": 10.0, "steps": 150, "table": "D_m"}
    wanted = [Task("scalability", {**settings, "run": k}) for k in range(3)]
    one = Store(tmp_path / "one", quick=True).computed(wanted, jobs=1)
    two = Store(tmp_path / "two", quick=True).computed(wanted, jobs=2)
    assert list(one) == list(two)
    for key in one:
        assert one[key].values == two[key].values
    again = Store(tmp_path / "one", quick=True).computed(wanted, jobs=2)
    assert [outcome.values for outcome in again.values()] == [outcome.values for outcome in one.values()]
