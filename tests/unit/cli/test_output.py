"""Files that are whole or not there, strict JSON, numbers for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import typer
from typer.testing import CliRunner

import counterflow as cf
from counterflow import wording
from counterflow.caveats import Caveat
from counterflow.cli import app, output
from counterflow.errors import OptionError, StorageError


def test_json_is_strict() -> None:
    value = {
        "a": np.array([[1.0, np.nan], [np.inf, -0.5]]),
        "b": float("nan"),
        "c": (np.int64(3), True, None),
        "d": "µ",
    }
    text = output.as_json(value)
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [[1.0, None], [None, -0.5]],
        "b": None,
        "c": [3, True, None],
        "d": "µ",
    }


def test_all_files_or_none(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        output.write_all({tmp_path / "deep" / "er" / "a": b"1", tmp_path / "b": fails}, force=False)
    assert list(tmp_path.iterdir()) == []
    output.write_all({tmp_path / "deep" / "a": b"1", tmp_path / "b": b"2"}, force=False)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "deep"]


def test_an_interrupt_while_renaming_takes_back_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").write_text("mine")
    real, calls = output.os.replace, []

    def replace(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(output.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        output.write_all({tmp_path / "new": b"1", tmp_path / "old": b"2"}, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "mine"


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(StorageError, match="--force"):
        output.write_all({tmp_path / "b": b"1", tmp_path / "a": b"1"}, force=False)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    output.write_all({tmp_path / "a": b"1"}, force=True)
    assert (tmp_path / "a").read_bytes() == b"1"
    with pytest.raises(StorageError, match="directory"):
        output.write_all({tmp_path: b"1"}, force=True)
    with pytest.raises(StorageError, match="below the file"):
        output.write_all({tmp_path / "a" / "b": b"1"}, force=True)


def test_the_kind_of_a_file_is_known_before_work(tmp_path: Path) -> None:
    output.check_file("--out", None, ("json",), force=False)
    output.check_file("--out", tmp_path / "x.JSON", ("json",), force=False)
    with pytest.raises(OptionError, match=r"\.json or \.csv"):
        output.check_file("--out", tmp_path / "x.pdf", ("json", "csv"), force=False)


@pytest.mark.parametrize(
    ("value", "lower", "upper", "texts"),
    [
        (3.2, 2.8, 3.6, ("3.20 rpm", "2.80 to 3.60")),
        (3.2, None, None, ("3.20 rpm", "")),
        (1234.4, 1000.0, 1500.0, ("1234 rpm", "1000 to 1500")),
        (-0.0001, -0.2, 0.2, ("0.00 rpm", "-0.20 to 0.20")),
        (float("nan"), float("nan"), float("nan"), ("– rpm", "")),
        (0.0, 0.0, 0.0, ("0.00 rpm", "0.00 to 0.00")),
        (2.5e9, 2.4e9, 2.6e9, ("2.5e+09 rpm", "2.4e+09 to 2.6e+09")),
    ],
)
def test_measured(value: float, lower: float | None, upper: float | None, texts: tuple[str, str]) -> None:
    assert wording.measured(value, lower, upper, "rpm") == texts


def test_words() -> None:
    assert wording.span(1, 1.0) == "1 step"
    assert wording.span(10, 60.0) == "10 steps (10 min)"
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert wording.percent(0.95) == "95 %"
    assert wording.percent(0.999) == "99.9 %"


def test_every_command_is_there_and_has_an_example() -> None:
    """Groups name their commands without importing them: each of them must lead somewhere."""

    def walk(group: Any, context: Any, path: list[str]) -> int:
        count = 0
        for name in group.list_commands(context):
            found, words = group.get_command(context, name), [*path, name]
            leads_on = hasattr(found, "list_commands")
            count += walk(found, context, words) if leads_on else 1
            assert leads_on or words == ["counterflow", "demo"] or " ".join(words) in found.help, words
        return count

    root = typer.main.get_command(app)
    assert walk(root, typer.Context(root), ["counterflow"]) == 14 + 7 + 3 + 15
    assert root.get_command(typer.Context(root), "nonsense") is None  # type: ignore[attr-defined]


def test_errors_in_json_carry_codes(tmp_path: Path) -> None:
    wanted = {"simulate": ["--out", str(tmp_path / "a.txt")], "graph": [str(tmp_path)]}
    codes = {}
    for command, arguments in wanted.items():
        done = CliRunner().invoke(app, [command, *arguments, "--format", "json"])
        error = json.loads(done.stderr)["error"]
        assert (done.exit_code, done.stdout, set(error)) == (2, "", {"code", "message"})
        codes[command] = error["code"]
        plain = CliRunner().invoke(app, [command, *arguments])
        assert (plain.exit_code, plain.stderr) == (2, f"counterflow: {error['message']}\n")
    assert codes == {"simulate": "option", "graph": "storage"}


def test_caveats_in_json_carry_codes() -> None:
    text = output.as_json({"caveats": (Caveat("not-converged", "", "give more rounds"),)})
    told = {"code": "not-converged", "scope": "", "text": "give more rounds", "weight": "fails"}
    assert json.loads(text) == {"caveats": [told]}


def test_a_command_prints_and_writes_what_it_has_told(tmp_path: Path) -> None:
    """Its options, its JSON, its lines, its files and its exit code; a spreadsheet takes no name for a formula."""
    frame = polars.DataFrame({"channel": ["=HYPERLINK(1)", "+x", "-x", "@x", "plain"], "=unit": [-1.0] * 5})

    @output.answering("json", "csv")
    def ask(wanted: output.Format, times: int = 1) -> output.Told:
        """Ask."""
        lines = (f"asked {each}" for each in range(times))
        return output.Told({"times": times, "wanted": wanted}, lines, output.INFEASIBLE, lambda: frame)

    group = typer.Typer()
    group.command("ask")(ask)
    group.callback()(lambda: None)
    out = tmp_path / "answer.csv"
    done = CliRunner().invoke(group, ["ask", "--times", "2", "--out", str(out)])
    assert (done.exit_code, done.stdout) == (5, f"asked 0\nasked 1\n\nwritten: {out}\n")
    lines = out.read_text().splitlines()
    assert lines == ["channel,'=unit", "'=HYPERLINK(1),-1.0", "'+x,-1.0", "'-x,-1.0", "'@x,-1.0", "plain,-1.0"]
    done = CliRunner().invoke(group, ["ask", "--format", "json", "--out", str(tmp_path / "a.json")])
    assert json.loads(done.stdout) == json.loads((tmp_path / "a.json").read_text())
    assert json.loads(done.stdout) == {"version": cf.__version__, "command": "ask", "times": 1, "wanted": "json"}
    assert isinstance(CliRunner().invoke(group, ["ask", "--out", str(out)]).exception, StorageError)
