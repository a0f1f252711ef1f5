"""Fixtures for the whole suite."""

from __future__ import annotations

import os

# before NumPy is imported: stored numbers are compared to 1e-9, and every family of processors rounds its own way
os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# on a fresh machine the first text that is drawn builds tables for seconds; a busy one is slow at any draw
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


LONGEST_FIRST = ("e2e", "flare", "reference", "contract")  # folders whose files take longest: none is left for the end


def pytest_collection_modifyitems(items):
    """Files that take long come first, so that all workers end at about the same time."""

    def place(item):
        folders = item.path.parts
        return next((k for k, name in enumerate(LONGEST_FIRST) if name in folders), len(LONGEST_FIRST))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def _global_random_state_is_left_alone():
    """Randomness is an argument: nothing may draw from NumPy's global generator."""
    before = np.random.get_state()  # noqa: NPY002
    yield
    after = np.random.get_state()  # noqa: NPY002
    assert before[2] == after[2], "a test moved NumPy's global random state"
    assert np.array_equal(before[1], after[1]), "a test moved NumPy's global random state"
