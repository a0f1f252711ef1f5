"""A coordinator and two plants that have asked to join, made once; tests work on copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from flare_loopback import World

from counterflow.federation.sites import letters
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def coordinator(world: World, tmp_path: Path) -> CoordinatorFolder:
    return CoordinatorFolder.open(Path(shutil.copytree(world.root / "coordinator", tmp_path / "coordinator")))


@pytest.fixture
def boiler(world: World, tmp_path: Path) -> PlantFolder:
    return PlantFolder.open(Path(shutil.copytree(world.root / "boiler", tmp_path / "boiler")))


@pytest.fixture
def parties(world: World, coordinator: CoordinatorFolder, boiler: PlantFolder) -> tuple[CoordinatorFolder, PlantFolder]:
    """The boiler is a member."""
    return coordinator, boiler.welcome(coordinator.approve(letters.read_join(world.join())))
