"""How far a fit is: shares that rise to the end, the time left, and what it costs to go on."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import counterflow as cf
from counterflow.cli import app
from counterflow.fits.progress import Standing, Told, progress_of

PLANT = cf.random_plant(["boiler", "turbine"], rng=1)
RECORDING = PLANT.simulate(400, rng=2)
HALVED = {n: cf.LocalModel(A=0.5 * m.A, B=m.B, C=m.C, Q=m.Q, R=m.R) for n, m in PLANT.locals().items()}


@pytest.mark.parametrize(
    ("models", "method", "options"),
    [
        (HALVED, "sufficient", {"estimate": "all"}), (None, "sufficient", {}), (HALVED, "centralized", {}),
        (HALVED, "penalty", {"rounds": 5}), (HALVED, "moments", {}),
    ],
)  # fmt: skip
def test_a_function_is_told_how_far_it_is(models: object, method: str, options: dict[str, object]) -> None:
    seen: list[Standing] = []
    cf.fit(RECORDING, models, method, progress=seen.append, **options)  # type: ignore[arg-type]
    shares = [each.share for each in seen]
    assert len(seen) > 2
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert 0.8 <= shares[-1] <= 1.0
    assert all(each.left is not None and each.left >= 0 for each in seen if each.share > 0)


def test_the_share_never_falls_and_the_rest_goes_as_what_was_done() -> None:
    seen: list[Standing] = []
    told = Told(seen.append)
    part = told.between(0.2, 0.6)
    for share in (0.0, 0.5, 0.25, 7.0):
        part(share, "x")
    assert [round(each.share, 12) for each in seen] == [0.2, 0.4, 0.4, 0.6]
    last = seen[-1]
    assert last.left == pytest.approx(last.seconds * 0.4 / 0.6)


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr("counterflow.fits.progress.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with progress_of(True) as told:
        for share in (0.1, 0.5, 0.6, 0.75):
            told(share, "pass")
    assert capsys.readouterr().err.splitlines() == [
        "fit: 50 %, about 6 s left: pass",
        "fit: 75 %, about 4 s left: pass",
    ]


def test_progress_of_another_kind_is_refused() -> None:
    with pytest.raises(cf.CounterflowError, match="progress"):
        cf.fit(RECORDING, progress="loud")  # type: ignore[arg-type]


def _run(*words: object) -> tuple[int, dict[str, object]]:
    ran = CliRunner().invoke(app, [*map(str, words), "--format", "json"])
    return ran.exit_code, json.loads(ran.stdout)


def test_where_a_limit_stops_a_fit_the_printed_command_goes_on(tmp_path: Path) -> None:
    runner = CliRunner()
    out = str(tmp_path / "r.safetensors")
    assert runner.invoke(app, ["simulate", "--units", "3", "--steps", "400", "--out", out]).exit_code == 0
    file = next(tmp_path.glob("*.toml"))
    code, told = _run("fit", file, "--out", tmp_path / "fit", "--evaluations", "1", "--estimate", "all")
    assert code == 3
    more = told["go_on"]
    assert isinstance(more, dict)
    assert more["option"] == "evaluations"
    assert more["seconds"] > 0
    words = shlex.split(more["command"])
    assert words[0] == "counterflow"
    for _ in range(8):  # each goes four times as far
        code, told = _run(*words[1:])
        if code == 0:
            break
        words = shlex.split(told["go_on"]["command"])  # type: ignore[index]
    assert code == 0
    assert told["go_on"] is None
    assert "all" in words
