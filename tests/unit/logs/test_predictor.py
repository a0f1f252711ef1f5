"""The row-by-row predictor of a fit from logs against the network's own predictions of a recorded stretch."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tolerances import LONG

import counterflow as cf
from counterflow.learning.online import RowPredictor

PLANT = cf.random_plant(units=["boiler", "turbine"], states=2, outputs=4, inputs=1, topology="chain", rng=4)
FIRST, LAST = 700, 760


@cache
def recorded(same_row: bool) -> cf.Recording:
    """At levels of its own; with ``same_row``, the boiler's inputs are logged in the row that they act on."""
    found = PLANT.simulate(LAST + 39, rng=5)
    arrays = {name: (20.0 + 3.0 * found[name].y, 7.0 + found[name].u) for name in found.names}
    if same_row:
        y, u = arrays["boiler"]
        arrays["boiler"] = (y, np.vstack([u[:1], u[:-1]]))
    return cf.Recording.from_arrays(arrays, units=found.units)


@cache
def fitted(same_row: bool) -> cf.Fit:
    return cf.fit(recorded(same_row).slice(0, FIRST), same_row={"boiler": same_row, "turbine": False})


def rows_of(fit: cf.Fit, recording: cf.Recording) -> np.ndarray:
    grounded = fit.about(recording).grounded
    return fit.couplings.network.standard(grounded.numbers, grounded.u)


def run(fit: cf.Fit, recording: cf.Recording, *, ahead: bool = False, missing=lambda t: ()) -> np.ndarray:
    """Predicted states (rows, P) of rows FIRST to LAST."""
    predictor = fit.predictor()
    out = [predictor.predicted]
    for t in range(FIRST, LAST):
        values = {n: part.message(recording[n].y[t]) for n, part in fit.parts.items() if n not in missing(t)}
        values |= dict.fromkeys(missing(t))
        coming = {"boiler": recording["boiler"].u[t + 1]} if ahead else None
        predictor, states = predictor.step(values, {n: recording[n].u[t] for n in fit.names}, coming)
        assert isinstance(predictor, RowPredictor)
        assert np.array_equal(np.concatenate(list(states.values())), predictor.predicted)
        out.append(predictor.predicted)
    return np.array(out)


def own_terms(fit: cf.Fit, standard: np.ndarray) -> np.ndarray:
    """States of standardised numbers: those and nothing else."""
    return fit.server.model.as_states(standard)


@pytest.mark.parametrize("same_row", [False, True])
def test_rows_one_by_one_are_foretold_as_all_at_once(same_row):
    fit, recording = fitted(same_row), recorded(same_row)
    network, z = fit.couplings.network, rows_of(fit, recording)
    wanted = network.mean.predicted(z)[0][FIRST - network.memory : LAST + 1 - network.memory]
    found = run(fit, recording, ahead=same_row)
    if same_row:  # the first of all was made when the input of its row was not known
        found, wanted = found[1:], wanted[1:]
    np.testing.assert_allclose(found, own_terms(fit, wanted), rtol=LONG, atol=LONG)
    # and so are the measurements, in their units of measure
    turbine, own = fit.parts["turbine"], fit.server.own("turbine")
    y = np.array([turbine.measurement(row[own]) for row in found])
    truth = recording["turbine"].y[LAST + 1 - len(y) : LAST + 1]
    assert np.square(y - truth).mean() < 0.8 * truth.var()
    assert abs((y - truth).mean()) < 0.3 * truth.std()


def test_an_input_that_is_not_known_yet_is_taken_to_stay():
    """Until it is known: then it counts for what it was."""
    fit, recording = fitted(True), recorded(True)
    network, z = fit.couplings.network, rows_of(fit, recording)
    column = network.size + fit.server.input_slices["boiler"].start
    found = run(fit, recording)
    for k, t in enumerate(range(FIRST, LAST + 1)):
        window = z[t - network.memory : t].copy()
        window[-1, column] = window[-2, column]  # row t - 1 holds the input of row t
        np.testing.assert_allclose(found[k], own_terms(fit, network.predict_row(window)[None])[0], rtol=LONG, atol=LONG)
    assert not np.allclose(found, run(fit, recording, ahead=True))


def test_a_missing_message_is_what_was_foretold():
    fit, recording = fitted(False), recorded(False)
    network, z = fit.couplings.network, rows_of(fit, recording).copy()
    mine = network.number_slices[fit.plant.names.index("turbine")]

    def missing(t):
        return ("turbine",) if t % 3 == 0 or 720 <= t < 735 else ()

    found = run(fit, recording, missing=missing)
    for t in range(FIRST, LAST + 1):
        foretold = network.predict_row(z[t - network.memory : t])
        np.testing.assert_allclose(found[t - FIRST], own_terms(fit, foretold[None])[0], rtol=LONG, atol=LONG)
        if missing(t):
            z[t, mine] = foretold[mine]


def test_what_is_not_a_row_is_refused():
    predictor = fitted(True).predictor()
    inputs = {"boiler": [7.0], "turbine": [7.0]}
    predictor.step({}, inputs)
    for values, given, coming, said in (
        ({}, {"boiler": [7.0]}, None, "input of unit 'turbine' is missing"),
        ({"boiler": [1.0]}, inputs, None, "finite numbers"),
        ({"boiler": [np.nan] * 4}, inputs, None, "finite numbers"),
        ({"pump": [1.0]}, inputs, None, "the units are boiler, turbine"),
        ({}, inputs, {"turbine": [7.0]}, "act on the next row"),
    ):
        with pytest.raises(cf.DataError, match=said):
            predictor.step(values, given, coming)


def test_an_updated_fit_stands_after_its_last_row():
    fit, recording = fitted(True), recorded(True)
    grown = fit.update(recording.slice(FIRST, FIRST + 20)).update(recording.slice(FIRST + 20, FIRST + 40))
    network, z = grown.couplings.network, rows_of(grown, recording.slice(0, FIRST + 40))
    wanted = own_terms(grown, network.predict_row(z[-network.memory :])[None])[0]
    np.testing.assert_allclose(grown.predictor().predicted, wanted, rtol=LONG, atol=LONG)
