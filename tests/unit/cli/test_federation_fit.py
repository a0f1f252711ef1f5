"""What ``counterflow federation fit`` makes of its options, before any plant is asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from counterflow.cli import app, federation_fit
from counterflow.errors import OptionError


def described(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[dict[str, Any], str]:
    """What the command asks of a new job, and what it says."""
    asked: dict[str, Any] = {}

    def new_job(job_id: str, **given: Any) -> NoReturn:
        asked.update(given)
        raise OptionError("that is enough")

    monkeypatch.setattr(federation_fit, "engine", lambda: SimpleNamespace(require=lambda: None))
    monkeypatch.setattr(federation_fit.CoordinatorFolder, "open", lambda folder: SimpleNamespace(new_job=new_job))
    done = CliRunner().invoke(app, ["federation", "fit", str(Path("coordinator")), *arguments])
    assert done.exit_code == 2
    return asked, done.stderr


def test_known_couplings_are_options_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = ["--edge", "boiler:turbine", "--edge", "turbine:pump", "--forbid", "pump:boiler"]
    asked, _ = described(monkeypatch, *pairs, "--option", "tol=1e-4")
    edges = [["boiler", "turbine"], ["turbine", "pump"]]
    assert asked["options"] == {"edges": edges, "forbidden": [["pump", "boiler"]], "tol": 1e-4}
    asked, _ = described(monkeypatch, "--option", 'edges=[["a:b", "c"]]')
    assert asked["options"] == {"edges": [["a:b", "c"]]}


def test_mistakes_in_known_couplings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--forbid 'boiler': give CAUSE:EFFECT" in described(monkeypatch, "--forbid", "boiler")[1]
    twice = described(monkeypatch, "--edge", "boiler:turbine", "--option", 'edges=[["turbine", "boiler"]]')[1]
    assert "each name once" in twice
