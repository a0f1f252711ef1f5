"""What the runbook names is there: its commands and options exist, its example files can be read."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from counterflow.cli import app
from counterflow.cli.federation_members import read_log
from counterflow.federation.policy import Policy

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "how-to" / "federation.md").read_text("utf-8")
COMMANDS = re.findall(r"counterflow (?:federation|privacy|simulate) [^\n#|`&(]*", TEXT.replace("\\\n", ""))


def block_after(words: str) -> str:
    """The indented lines that follow these words."""
    lines = TEXT.split(words, 1)[1].split("\n")[2:]
    end = next(k for k, line in enumerate(lines) if line and not line.startswith("    "))
    return "\n".join(line[4:] for line in lines[:end])


def test_every_command_and_option_exists() -> None:
    assert len(COMMANDS) > 20
    for line in COMMANDS:
        words = [word.strip(".,:;)'") for word in line.split()[1:] if word != "&&"]
        names = words[: 1 if words[0] == "simulate" else 2]
        helped = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"})
        assert helped.exit_code == 0, line
        for word in words:
            assert not word.startswith("--") or f"{word} " in helped.output, line


def test_example_files_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "boiler.toml").write_text(block_after("`boiler.toml`:"))
    (tmp_path / "boiler.csv").write_text(block_after("`boiler.csv`:"))
    recording, models, begins = read_log(tmp_path / "boiler.toml")
    assert ([c.name for c in recording["boiler"].unit.inputs], models) == (["valve", "pump"], {})
    assert (recording.rows, recording.dt, begins[:16].replace("T", " ")) == (3, 60.0, "2026-05-01 00:00")
    policy = Policy.from_text(block_after("## The plant decides: `policy.toml`"))
    assert (policy.unit, policy.jobs_per_hour, policy.approval) == ("boiler", 60, "none")
    for place in (ROOT / "examples" / "three-plants" / "policies").glob("*.toml"):
        assert Policy.read(place).unit == place.stem
