"""Private moments: sensitivity, accounting, attacks, what is refused, what answers say."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from instruments import with_limits
from loopback import fit_over_sessions
from tolerances import STANDARD_ERRORS

import counterflow as cf
from counterflow.exchange.projections import SHARES, reach_of, released
from counterflow.exchange.registry import MOMENTS
from counterflow.exchange.task import LocalTask
from counterflow.federation import Job, Policy
from counterflow.fits.leakage import Transcript
from counterflow.privacy import Ledger, gaussian_epsilon, ledger_path, total_epsilon
from counterflow.privacy.leakage import leakage
from counterflow.protocol import Moments

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
RECORDING = PLANT.simulate(4000, rng=2)
MODELS = PLANT.locals()
PRIVACY = cf.Privacy(epsilon=1.0, delta=1e-6, seed=1)


@cache
def private_fit() -> cf.Fit:
    return cf.fit(RECORDING, MODELS, privacy=PRIVACY)


def relative_error(found: cf.Plant) -> float:
    gap = sum(((found.block("B", *p) - PLANT.block("B", *p)) ** 2).sum() for p in PAIRS)
    return float(np.sqrt(gap / sum((PLANT.block("B", *p) ** 2).sum() for p in PAIRS)))


PAIRS = (("boiler", "turbine"), ("turbine", "boiler"))


# ---- the mechanism


@pytest.mark.parametrize("window", [1, 4])
def test_replacing_rows_moves_projections_by_no_more_than_their_reach(window):
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(300, 5)))[0]
    reach, worst = reach_of(basis, window), 0.0
    for start in range(300 - window + 1):
        rows = basis[start : start + window]
        left, values, _ = np.linalg.svd(rows, full_matrices=False)
        signs = np.sign(left[:, 0])
        worst = max(worst, np.linalg.norm(rows.T @ signs))  # rows of length one that all push one way
        assert np.sqrt(window) * values[0] <= reach * (1 + 1e-9)
    assert 0.6 * reach < worst <= reach * (1 + 1e-9)


def test_all_rounds_together_cost_what_was_asked_for():
    for privacy in (PRIVACY, cf.Privacy(0.3, 1e-7, window=5), cf.Privacy(10.0, 1e-5, start=100)):
        costs = [charge.cost for charge in MOMENTS.charges(LocalTask("moments", {}, privacy=privacy), None, 5000)]
        spent = total_epsilon(costs, privacy.delta, privacy.window)
        assert privacy.epsilon * (1 - 1e-6) < spent <= privacy.epsilon
    assert sum(SHARES) == pytest.approx(1.0, abs=1e-12)


def test_the_noise_of_a_round_is_its_share_of_the_budget():
    rng = np.random.default_rng(0)
    d, basis = rng.normal(size=(5000, 2)), np.linalg.qr(rng.normal(size=(5000, 6)))[0]
    mu = 0.0
    for number in range(len(SHARES)):
        _, release = released(d, np.ones(len(d), bool), basis, PRIVACY, number, 0.0, "boiler")
        # the release, the noisy counts that found its clip, and the share that was clipped
        mu += (2 * release.clip * release.reach / release.sigma) ** 2 / 0.93
        sent = Moments("boiler", number, np.zeros((1, 1)), np.zeros((1, 1)), release.may_clip)
        needed = MOMENTS.least_noise(LocalTask("moments", {}, privacy=PRIVACY), 5000, sent, release)
        assert release.sigma >= needed * (1 - 1e-9)
    assert gaussian_epsilon(np.sqrt(mu), PRIVACY.delta) <= PRIVACY.epsilon * (1 + 1e-6)


def test_windows_that_overlap_add_up_and_others_do_not(tmp_path):
    for name in PLANT.names:
        Ledger.create(ledger_path(tmp_path, name), name, 1.2, 1e-6).close()
    first, second, overlapping = RECORDING.slice(0, 2000), RECORDING.slice(2000, 4000), RECORDING.slice(1500, 3500)
    for part, start in ((first, 0), (second, 2000)):
        cf.fit(part, MODELS, privacy=cf.Privacy(1.0, 1e-6, ledger=tmp_path, start=start))
    with pytest.raises(cf.PrivacyError, match="boiler"):
        cf.fit(overlapping, MODELS, privacy=cf.Privacy(1.0, 1e-6, ledger=tmp_path, start=1500))
    with pytest.raises(cf.PrivacyError, match="boiler"):  # the same rows under another number are known again
        cf.fit(first, MODELS, privacy=cf.Privacy(1.0, 1e-6, ledger=tmp_path, start=50_000))


# ---- attacks


def guesses(noise: float, trials: int = 4000) -> tuple[float, float]:
    """False alarms and hits of the likelihood-ratio test of who knows all rows but one, which is a or b."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(500, 4)))[0]
    at = int(np.linalg.norm(basis, axis=1).argmax())
    privacy = cf.Privacy(epsilon=1.0, delta=1e-2, clip=1.0)
    rows = np.clip(0.2 * rng.normal(size=(500, 2)), -0.5, 0.5)
    direction = np.outer(basis[at], [1.0, 0.0])
    alarms = []
    for sign in (-1.0, 1.0):
        rows[at] = sign, 0.0
        exact, (_, release) = basis.T @ rows, released(rows, np.ones(len(rows), bool), basis, privacy, 2, 0.0, "boiler")
        sigma = release.sigma * noise
        drawn = exact + sigma * rng.normal(size=(trials, *exact.shape))
        middle = basis.T @ np.where(np.arange(500)[:, None] == at, 0.0, rows)
        alarms.append(float((((drawn - middle) * direction).sum(axis=(1, 2)) > 0).mean()))
    return alarms[0], alarms[1]


def test_membership_is_guessed_no_better_than_the_promise():
    trials = 4000
    false, true = guesses(1.0, trials)
    doubt = STANDARD_ERRORS * 0.5 / np.sqrt(trials)
    bound = np.exp(1.0) * false + 1e-2  # the whole budget; a round has its share of it
    assert true <= bound + doubt
    false, true = guesses(0.05, trials)  # without most of the noise the test breaks the bound: it can fail
    assert true > np.exp(1.0) * false + 1e-2 + doubt


def test_a_server_and_all_other_units_reconstruct_no_more_than_the_inputs_tell():
    """Colluders know all inputs, models, other units' measurements, and everything that was released."""
    seen: dict[str, list] = {"basis": [], "moments": []}

    def watch(message, up):
        if message.unit == "boiler" and type(message).__name__ in ("Basis", "Moments"):
            seen["moments" if up else "basis"].append(message)

    cf.fit(RECORDING, MODELS, privacy=PRIVACY, watch=watch)
    basis, told, centre = seen["basis"][0].functions, seen["moments"][-1], seen["basis"][-1].centre
    y = RECORDING["boiler"].y
    C, R = MODELS["boiler"].C, MODELS["boiler"].R
    s = y @ np.linalg.solve(R, C) @ np.linalg.inv(C.T @ np.linalg.solve(R, C))
    foreseen = np.linalg.lstsq(centre, s, rcond=None)[0]
    by_inputs = s - centre @ foreseen
    read = np.hstack([centre, basis @ told.values])
    half = len(s) // 2
    best = np.linalg.lstsq(read[:half], s[:half], rcond=None)[0]
    left = s[half:] - read[half:] @ best
    assert np.linalg.norm(left) > 0.97 * np.linalg.norm(by_inputs[half:])


@pytest.mark.parametrize("privacy", [PRIVACY, None])
def test_the_leakage_meter_reads_no_row_of_moments(privacy):
    transcript = Transcript()
    cf.fit(RECORDING, MODELS, method="moments", privacy=privacy, watch=transcript)
    y = RECORDING["boiler"].y
    told = transcript.leakage("boiler", y)
    assert told.rank == 0
    inputs = leakage(np.ascontiguousarray(transcript.inputs("boiler")[50:]), np.ascontiguousarray(y[50:]), lags=1)
    assert told.reconstruction_error > 0.6 * inputs.reconstruction_error  # others' inputs move it, and are no secret


def test_the_numbers_sent_are_as_many_whatever_the_rows():
    sizes = []
    for steps in (1000, 4000):
        sent = []
        cf.fit(
            RECORDING.slice(0, steps), MODELS, privacy=PRIVACY,
            watch=lambda m, up, sent=sent: sent.append(m.values.size) if type(m).__name__ == "Moments" else None,
        )  # fmt: skip
        sizes.append(sent)
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) == 2 * len(SHARES)


# ---- what comes of it


def test_an_answer_is_left():
    found = private_fit()
    assert relative_error(found.plant) < 0.05
    rows = cf.fit(RECORDING, MODELS, privacy=replace(PRIVACY, release="rows"))
    assert relative_error(rows.plant) > 5 * relative_error(found.plant)
    assert len(found.graph().direct()) == 2
    effect = found.effect("boiler", "turbine", {"u1": 1.0}, horizon=10)
    truth = cf.fit(RECORDING, PLANT, method="oracle").effect("boiler", "turbine", {"u1": 1.0}, horizon=10)
    assert ((effect.lower <= truth.mean) & (truth.mean <= effect.upper)).mean() > 0.7
    assert found.privacy.epsilon == pytest.approx(1.0, rel=1e-6)


def test_the_answer_says_what_was_released_and_seen():
    found = private_fit()
    assert found.privacy.release == "moments"
    assert "other" in found.privacy.seen
    codes = {caveat.code for caveat in found.effect("boiler", "turbine", {"u1": 1.0}).caveats}
    assert {"moments", "private"} <= codes
    by_rows = cf.fit(RECORDING.slice(0, 500), MODELS, privacy=replace(PRIVACY, release="rows"))
    assert by_rows.privacy.release == "rows"
    assert "moments" not in {caveat.code for caveat in by_rows.caveats}


def test_rows_are_released_where_only_they_can_tell():
    found = cf.fit(RECORDING.slice(0, 500), MODELS, privacy=PRIVACY, estimate="blocks", evaluations=3)
    assert found.privacy.release == "rows"


def test_questions_about_rows_are_refused_with_the_remedy():
    found = private_fit()
    for ask in (
        lambda: found.counterfactual(RECORDING, do={"boiler": {"u1": 0.0}}, start=10, stop=20),
        lambda: found.forecast(RECORDING, horizon=5),
        lambda: found.validate(RECORDING),
    ):
        with pytest.raises(cf.PrivacyError, match="release='rows'") as refused:
            ask()
        assert refused.value.code == "rows-needed"


@pytest.mark.parametrize("release", ["moment", 3, True])
def test_a_release_that_is_none_is_refused(release):
    with pytest.raises(cf.OptionError, match="release"):
        cf.Privacy(1.0, 1e-6, release=release)


# ---- between machines


def test_a_plant_that_shows_nothing_of_its_inputs_refuses_moments(tmp_path):
    inputs = {unit.name: unit.inputs for unit in RECORDING.units}
    job = Job("shown", "sufficient", inputs, privacy=replace(PRIVACY, release="moments"))
    policies = {}
    for name in PLANT.names:
        Ledger.create(ledger_path(tmp_path / name, name), name, 5.0, 1e-5).close()
        policies[name] = Policy(name, ledger=tmp_path / name, simulation=True, inputs_shown=name == "boiler")
    with pytest.raises(cf.PrivacyError) as refused:
        fit_over_sessions(tmp_path, job, RECORDING, MODELS, policies)
    assert refused.value.code == "leave.inputs_shown"
    assert "turbine" in str(refused.value)


def test_a_job_that_does_not_say_releases_rows():
    inputs = {unit.name: unit.inputs for unit in RECORDING.units}
    assert Job("a", "sufficient", inputs, privacy=PRIVACY).privacy.release == "rows"
    assert Job("a", "moments", inputs, privacy=PRIVACY).privacy.release == "moments"


# ---- a stream of windows


def test_windows_are_joined_each_a_release_of_its_own(tmp_path):
    for name in PLANT.names:
        Ledger.create(ledger_path(tmp_path, name), name, 1.2, 1e-6).close()

    def privacy(start):
        return cf.Privacy(1.0, 1e-6, ledger=tmp_path, start=start, seed=start)

    found = cf.fit(RECORDING.slice(0, 1300), MODELS, privacy=privacy(0))
    first = found
    for start in (1300, 2600):
        found = found.update(RECORDING.slice(start, start + 1300), privacy=privacy(start))
    assert found.privacy.epsilon == pytest.approx(1.0, rel=1e-6)  # rows of different windows do not add up
    assert len(found.privacy.units["boiler"].entries) == 3 * len(SHARES)
    spreads = [np.linalg.norm(each.standard_errors.B) for each in (first, found)]
    assert spreads[1] < spreads[0] / 1.4
    assert relative_error(found.plant) < relative_error(first.plant)
    gap, spread = np.abs(found.plant.B - PLANT.B), found.standard_errors.B
    assert (gap[spread > 0] < 4 * spread[spread > 0]).all()
    with pytest.raises(cf.PrivacyError):
        found.update(RECORDING.slice(3900, 4001))
    with pytest.raises(cf.DataError, match="boiler") as refused:  # a window that was released before
        found.update(RECORDING.slice(2600, 3900), privacy=privacy(2600))
    assert refused.value.code == "rows-repeated"
    with pytest.raises(cf.PrivacyError, match="boiler"):  # one that this fit does not know, and the ledger does
        first.update(RECORDING.slice(2600, 3900), privacy=privacy(2600))


def test_windows_without_privacy_are_joined_as_one():
    whole = cf.fit(RECORDING, MODELS, method="moments")
    joined = cf.fit(RECORDING.slice(0, 2000), MODELS, method="moments").update(RECORDING.slice(2000, 4001))
    spread = whole.standard_errors.B
    assert (np.abs(joined.plant.B - whole.plant.B)[spread > 0] < 1.5 * spread[spread > 0]).all()
    assert np.allclose(joined.standard_errors.B[spread > 0], spread[spread > 0], rtol=0.25)


# ---- from logs


def test_a_private_fit_from_logs_needs_the_instruments_ranges():
    with pytest.raises(cf.PrivacyError, match="limits") as refused:
        cf.fit(RECORDING, privacy=PRIVACY)
    assert refused.value.code == "limits-needed"
    with pytest.raises(cf.PrivacyError) as refused:
        cf.fit(with_limits(RECORDING), privacy=replace(PRIVACY, release="rows"))
    assert refused.value.code == "private-logs"


def test_private_fits_from_logs_are_the_same_between_machines(tmp_path):
    recording = with_limits(RECORDING.slice(0, 2000))
    privacy = replace(PRIVACY, epsilon=4.0)
    job = Job("logs", "sufficient", {u.name: u.inputs for u in recording.units}, privacy=privacy, from_logs=True)
    policies = {}
    for name in PLANT.names:
        Ledger.create(ledger_path(tmp_path / name, name), name, 5.0, 1e-5).close()
        policies[name] = Policy(name, epsilon=4.0, ledger=tmp_path / name, simulation=True, inputs_shown=True)
    between = fit_over_sessions(tmp_path, job, recording, None, policies)
    alone = cf.fit(recording, privacy=privacy, over_the_wire=True)
    assert np.allclose(between.server.B, alone.plant.B, rtol=1e-9, atol=1e-12)
    assert between.server.caveats == alone.server_caveats


def test_small_bases_reach_as_far_as_large_ones():
    basis = np.zeros((40, 30))
    basis[7], basis[3, 0] = 1.5, 1.9
    for window in (1, 3):
        assert reach_of(1e-162 * basis, window) == pytest.approx(1e-162 * reach_of(basis, window), rel=1e-9, abs=0)
    assert reach_of(np.zeros((5, 2)), 1) == reach_of(np.zeros((5, 0)), 3) == 0.0


@pytest.mark.parametrize("value", [1.0, 1e200, 1.5e308])
def test_what_a_row_measures_does_not_say_whether_it_counts(value):
    """A row that overflows is there all the same: else the size of the noise would tell of it."""
    basis = np.full((200, 2), 1e-6)
    basis[50] = 1.0
    rows = np.full((200, 2), 0.1)
    rows[50] = value
    with np.errstate(over="ignore"):
        moved = rows * 1e306
    _, release = released(moved, np.ones(200, bool), basis, replace(PRIVACY, clip=1.0, seed=1), 0, 0.0, "boiler")
    assert release.reach == pytest.approx(np.sqrt(2))
