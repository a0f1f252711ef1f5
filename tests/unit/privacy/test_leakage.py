"""The leakage meter: on numbers whose answer is known, and on what really crosses in a fit."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from tolerances import STANDARD_ERRORS

import counterflow as cf
from counterflow.errors import DataError, OptionError
from counterflow.fits.leakage import Transcript
from counterflow.privacy.leakage import leakage

by_rows = partial(cf.Privacy, release="rows")  # what these tests are about

ROWS = 2000


def drawn(columns, seed=0):
    return np.random.default_rng(seed).normal(size=(ROWS, columns))


# Numbers whose answer is known ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [0, 1, 3, 5])
def test_combinations_that_were_told_are_counted(told):
    y, mix = drawn(5), np.random.default_rng(1).normal(size=(5, told))
    found = leakage(np.hstack([y @ mix, drawn(3, seed=2)]), y)
    assert found.rank == told
    assert found.directions == 5
    assert np.allclose(found.known[:told], 1)
    assert (found.known[told:] < 0.05).all()
    left = np.eye(5) - np.linalg.pinv(mix.T) @ mix.T if told else np.eye(5)
    assert found.reconstruction_error == pytest.approx(np.linalg.norm(left) / np.sqrt(5), abs=0.03)


def test_units_levels_repetition_and_small_numbers_do_not_matter():
    """The same two combinations, in other units, around other levels, many times over, hidden in the ninth digit."""
    y, mix = drawn(4), np.random.default_rng(1).normal(size=(4, 2))
    scaled = y * [1e-6, 1.0, 1e4, 7.0] + [0.0, 100.0, -1e5, 1e3]
    seen = y @ mix
    cover = drawn(1, seed=5)
    hidden = np.hstack([cover, cover + 1e-9 * seen[:, :1], 1e8 * seen[:, 1:], np.full((ROWS, 2), 3.25)])
    plain = leakage(seen, y)
    for other in (np.hstack([seen] * 30), seen * [1e-8, 1e8] + [1e-9, 1e6], hidden):
        found = leakage(other, scaled)
        assert found.rank == 2
        assert found.reconstruction_error == pytest.approx(plain.reconstruction_error, rel=1e-4)


@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_noise_leaves_what_theory_says(noise):
    """Signal 1, noise σ: R² = 1/(1 + σ²) in every direction, nothing exactly."""
    y = drawn(3)
    found = leakage(y + noise * drawn(3, seed=3), y)
    assert found.rank == 0
    expected = 1 / (1 + noise**2)
    tolerance = STANDARD_ERRORS * 2 * np.sqrt(max(expected * (1 - expected), 1e-3) / found.rows)
    assert found.known == pytest.approx(expected, abs=tolerance)
    assert found.reconstruction_error == pytest.approx(np.sqrt(1 - expected), abs=tolerance)


def test_nothing_seen_is_nothing_known():
    found = leakage(np.zeros((ROWS, 0)), drawn(3))
    assert (found.rank, found.known.tolist()) == (0, [0.0, 0.0, 0.0])
    assert found.reconstruction_error == pytest.approx(1.0, abs=1e-2)
    assert found.summary().startswith("none of 3 directions")


def test_neighbouring_rows_are_read_if_lags_say_so():
    y = drawn(2)
    before = np.vstack([np.zeros((1, 2)), y[:-1]])  # what is seen at t is y[t-1]
    assert leakage(before, y).rank == 0
    assert leakage(before, y, lags=1).rank == 2
    running = np.cumsum(y, axis=0)  # y[t] is a difference of two rows seen
    assert leakage(running, y).rank == 0
    assert leakage(running, y, lags=1).rank == 2


def test_measurements_that_do_not_move_are_no_directions():
    y = drawn(2)
    flat = np.hstack([y, y[:, :1] * 2 + 1, np.full((ROWS, 1), 4.0)])
    found = leakage(y[:, :1].copy(), flat)
    assert (found.rank, found.directions) == (1, 2)


def test_missing_rows_are_left_out():
    y, seen = drawn(3), drawn(3)[:, :1].copy()
    y[100:200], seen[1500:1600] = np.nan, np.nan
    assert leakage(seen, y, lags=1).rank == 1


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"seen": np.zeros((10, 2))}, DataError, "same times"),
        ({"y": np.zeros((ROWS, 0))}, DataError, "a column"),
        ({"y": np.full((ROWS, 2), np.nan)}, DataError, "too few"),
        ({"seen": drawn(400)}, DataError, "too few for 400 independent"),
        ({"lags": -1}, OptionError, "lags"),
        ({"lags": ROWS}, OptionError, "lags"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, error, words):
    with pytest.raises(error, match=words):
        leakage(**({"seen": drawn(2), "y": drawn(2)} | change))


# What really crosses --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plant():
    return cf.random_plant(units=["boiler", "turbine"], states=2, outputs=8, rng=1)


@pytest.fixture(scope="module")
def recording(plant):
    return plant.simulate(1500, rng=2)


def transcript_of(recording, plant, **options):
    transcript = Transcript()
    cf.fit(recording, plant.locals(), watch=transcript, **options)
    return transcript


@pytest.mark.parametrize("options", [{"solver": "gradient", "rounds": 12}, {"solver": "conjugate"}])
def test_the_published_protocol_gives_everything_away_within_a_few_rounds(plant, recording, options):
    """P = 2 combinations with the refined states (K y), P more with every round, until all D = 8 are known."""
    transcript = transcript_of(recording, plant, method="penalty", xi=1.0, **options)
    for unit in plant.names:
        y = recording[unit].y
        found = [transcript.leakage(unit, y, rounds) for rounds in range(5)]
        assert [step.rank for step in found] == [2, 4, 6, 8, 8]
        errors = [step.reconstruction_error for step in found]
        assert errors[:4] == sorted(errors[:4], reverse=True)  # then everything is known, and rounding is left
        assert errors[0] > 0.3
        assert errors[3] < 1e-4
        assert transcript.rounds(unit) >= 5


def test_the_published_protocol_with_as_many_states_as_measurements_has_nothing_left_to_hide():
    plant = cf.random_plant(units=2, states=2, outputs=2, rng=1)
    recording = plant.simulate(800, rng=2)
    transcript = transcript_of(recording, plant, method="penalty", rounds=3, solver="gradient")
    assert transcript.leakage("unit1", recording["unit1"].y, 0).rank == 2


@pytest.mark.parametrize("steps", [700, 6000])
def test_sufficient_messages_tell_r_combinations_however_long_the_record(plant, steps):
    recording = plant.simulate(steps, rng=3)
    transcript = transcript_of(recording, plant)
    for unit in plant.names:
        for lags in (0, 1, 4):
            found = transcript.leakage(unit, recording[unit].y, lags=lags)
            assert found.rank == 2
            assert (found.known[2:] < 0.1).all()
        assert transcript.rounds(unit) == 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_private_sufficient_messages_tell_nothing_exactly(plant, recording, epsilon):
    little = {"evaluations": 1, "uncertainty": False}  # what the server makes of the messages is not asked here
    plain = transcript_of(recording, plant, **little)
    private = transcript_of(recording, plant, privacy=by_rows(epsilon, 1e-6, clip=8.0, seed=1), **little)
    y = recording["boiler"].y
    found = private.leakage("boiler", y, lags=2)
    assert found.rank == 0
    assert found.known.max() < 0.95
    assert found.reconstruction_error > plain.leakage("boiler", y, lags=2).reconstruction_error


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_published_messages_with_the_published_noise_tell_nothing_exactly(plant, recording, epsilon):
    """In any number of rounds; what their plain numbers tell is another matter (``test_attacks.py``)."""
    asked = cf.Privacy(epsilon, 1e-6, seed=1, accounting="published")
    transcript = transcript_of(recording, plant, method="penalty", rounds=6, privacy=asked)
    assert transcript.rounds("boiler") == 6
    for rounds in (1, 6):
        found = transcript.leakage("boiler", recording["boiler"].y, rounds)
        assert found.rank == 0
        assert found.reconstruction_error > 0.8


def test_logs_without_models_tell_as_many_combinations_as_numbers_are_sent():
    plant = cf.random_plant(units=2, states=2, outputs=5, rng=4)
    recording = plant.simulate(1500, rng=5)
    transcript = Transcript()
    found = cf.fit(recording, watch=transcript)
    for unit, numbers in zip(plant.names, found.couplings.network.numbers, strict=True):
        sent = transcript.seen(unit).shape[1] - transcript.inputs(unit).shape[1]
        assert transcript.leakage(unit, recording[unit].y).rank == sent == numbers
        assert np.linalg.matrix_rank(found.parts[unit].model.C) == numbers
        assert sent < 5


def test_a_transcript_knows_who_was_seen(plant, recording):
    transcript = Transcript()
    with pytest.raises(OptionError, match="nothing was seen of unit 'boiler'"):
        transcript.seen("boiler")
    transcript = transcript_of(recording, plant)
    assert transcript.units == ("boiler", "turbine")
    assert np.array_equal(transcript.inputs("boiler"), recording["boiler"].u)
    assert transcript.seen("boiler").shape == (1501, 2 + recording["boiler"].u.shape[1])
