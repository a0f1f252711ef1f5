"""Files of ours: only their owner reads them, and nobody else can make us write elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import counterflow as cf
from counterflow import files
from counterflow.cli import output
from counterflow.errors import StorageError
from counterflow.plant.model_file import save_model

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
RECORDING = PLANT.simulate(120, rng=2)


def test_whatever_is_written_is_its_owners(tmp_path: Path) -> None:
    before = os.umask(0)  # the most generous of accounts
    try:
        RECORDING.save(tmp_path / "log.safetensors")
        save_model(PLANT.local("boiler"), tmp_path / "model.safetensors")
        cf.fit(RECORDING, PLANT.locals()).save(tmp_path / "fits" / "first")
        output.write_all({tmp_path / "answers" / "a.csv": b"1", tmp_path / "b.safetensors": RECORDING.save}, False)
    finally:
        os.umask(before)
    written = [path for path in tmp_path.rglob("*")]
    assert len([path for path in written if path.is_file()]) == 7
    assert {path.stat().st_mode & 0o077 for path in written} == {0}


@pytest.mark.parametrize("foretold", [False, True])
def test_a_link_in_the_way_is_replaced_or_refused_and_never_followed(
    foretold: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, place = tmp_path / "victim", tmp_path / "log"
    victim.write_text("precious")
    (tmp_path / "log").symlink_to(victim)
    if foretold:  # whoever guesses 64 random bits
        monkeypatch.setattr("counterflow.files.secrets.token_hex", lambda size: "00")
        (tmp_path / ".log.00.part").symlink_to(victim)
        with pytest.raises(StorageError):
            files.write_whole(place, b"ours")
    else:
        files.write_whole(place, b"ours")
        assert not place.is_symlink()
        assert place.read_bytes() == b"ours"
    assert victim.read_text() == "precious"


def test_drafts_have_names_that_nobody_can_foretell(tmp_path: Path) -> None:
    names = {files.draft_of(tmp_path / "log").name for _ in range(100)}
    assert len(names) == 100
    assert all(len(name) >= len(".log..part") + 16 for name in names)
