"""One console of the linear steam plant for all tests of its page: one fit, one server, one browser a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from console_browser import RECORDING, Desk, Served, browsing, fitted, serving, sitting

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved fit, with its recording beside it."""
    folder = tmp_path_factory.mktemp("console") / "demo-output"
    fitted().save(folder / "fit")
    RECORDING.save(folder / "recording.safetensors")
    return folder / "fit"


@pytest.fixture(scope="session")
def console(model: Path) -> Iterator[Served]:
    with serving(model) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@pytest.fixture
def desk(browser: Browser, console: Served) -> Iterator[Desk]:
    with sitting(browser, console.address) as found:
        yield found
