"""The command line as users run it: in this process, or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import counterflow as cf
from counterflow.cli import app

COMMAND = [sys.executable, "-m", "counterflow.cli"]
SOURCE = str(Path(cf.__file__).parents[1])
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "OPENBLAS_NUM_THREADS": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "SOURCE_DATE_EPOCH": "1800000000",
}


def process(*command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What a process of its own does."""
    return subprocess.run(
        [str(word) for word in command], env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, encoding="utf-8",
        timeout=120, check=False,
    )  # fmt: skip


def script(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The same of Python code, such as one that breaks something first."""
    return process(sys.executable, "-c", code, cwd=cwd)


def run(*arguments: object, code: int | None = None) -> Result:
    """What a command does; with ``code`` it must end with that."""
    words = [str(argument) for argument in arguments]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert code is None or done.exit_code == code, done.output
    return done


def strict(text: str) -> dict[str, Any]:
    """Strictly valid JSON."""
    found: dict[str, Any] = json.loads(text, parse_constant=pytest.fail)
    return found


def answer(*arguments: object, code: int = 0) -> dict[str, Any]:
    """What a command answers in JSON; nothing else is printed."""
    done = run(*arguments, "--format", "json", code=code)
    assert done.stderr == ""
    return strict(done.stdout)


def refused(*arguments: object, code: int = 2) -> str:
    """What a command that refuses says, in one line on stderr."""
    done = run(*arguments, code=code)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("counterflow: ")
    return done.stderr
