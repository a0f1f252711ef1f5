"""The blocked recurrence: overflow, the future, layouts. That it is the plain loop stands in tests/properties."""

import numpy as np
import pytest
from tolerances import EXACT

from counterflow.recurrence import linear_recurrence


def plain(F, f, x):
    rows = []
    for row in f:
        x = F @ x + row
        rows.append(x)
    return np.array(rows).reshape(f.shape)


def test_explosive_and_overflowing():
    F = np.diag([40.0, 0.5])
    f = np.ones((400, 2))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = plain(F, f, np.ones(2))
    got = linear_recurrence(F, f, np.ones(2))
    np.testing.assert_array_equal(np.isfinite(got).all(axis=1), np.isfinite(expected).all(axis=1))
    fine = np.isfinite(expected).all(axis=1)
    np.testing.assert_allclose(got[fine], expected[fine], rtol=EXACT)


@pytest.mark.parametrize("P", [2, 40])
def test_no_row_sees_the_future(P):
    rng = np.random.default_rng(0)
    F, f = 0.5 * np.eye(P), rng.normal(size=(1000, P))
    later = f.copy()
    later[700:] += 1e6
    first, second = (linear_recurrence(F, rows, np.zeros(P)) for rows in (f, later))
    np.testing.assert_array_equal(first[:700], second[:700])
    later[700] = np.nan
    third = linear_recurrence(F, later, np.zeros(P))
    np.testing.assert_allclose(third[:700], first[:700], rtol=0, atol=EXACT * np.abs(first).max())
    assert np.isnan(third[700:]).all()


def test_inputs_are_left_alone_and_any_layout_will_do():
    rng = np.random.default_rng(0)
    F, f, start = np.asfortranarray(rng.normal(size=(3, 3)) / 4), rng.normal(size=(200, 6))[:, ::2], rng.normal(size=3)
    copies = F.copy(), f.copy(), start.copy()
    expected = plain(F, f, start)
    np.testing.assert_allclose(linear_recurrence(F, f, start), expected, atol=EXACT * np.abs(expected).max(), rtol=0)
    for array, copy in zip((F, f, start), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_shapes():
    assert linear_recurrence(np.zeros((0, 0)), np.zeros((50, 0)), np.zeros(0)).shape == (50, 0)
    with pytest.raises(ValueError, match="need F"):
        linear_recurrence(np.eye(2), np.zeros((5, 3)), np.zeros(3))
