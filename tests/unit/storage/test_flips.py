"""A flipped bit in any durable file is refused or harmless; ``benchmarks/bench_flips.py`` flips many more."""

from __future__ import annotations

import random
from pathlib import Path

import flips
import pytest

from counterflow.errors import StorageError
from counterflow.sealed_file import read_json, write_json


@pytest.fixture(scope="module")
def world() -> flips.World:
    return flips.World()


@pytest.mark.parametrize("kind", flips.KINDS, ids=lambda kind: kind.name)
def test_no_flipped_bit_is_silent(kind: flips.Kind, world: flips.World, tmp_path: Path) -> None:
    found = flips.run(kind, world, tmp_path / "flips", 24, random.Random(5))
    assert not found.silent, found.silent[:3]
    assert found.flips == found.same + found.refused
    assert found.refused, "a digest finds something"


def test_small_files_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(StorageError) as missing:
        read_json(path, "a thing")
    assert missing.value.code == "missing"
    write_json(path, "a thing", {"names": ["Öl", "\ud800"], "size": 0.1})
    assert read_json(path, "a thing") == {"names": ["Öl", "\ud800"], "size": 0.1}
    good = path.read_bytes()
    for bad in (b"", b"[]", b"{}", good[:-1], good + b" ", good.replace(b"0.1", b"0.2"), b"[" * 5000):
        path.write_bytes(bad)
        with pytest.raises(StorageError, match=r"a\.json") as damaged:
            read_json(path, "a thing")
        assert damaged.value.code == "damaged"
    write_json(path, "another thing", {})
    with pytest.raises(StorageError) as foreign:
        read_json(path, "a thing")
    assert foreign.value.code == "damaged"
