"""Sufficient messages under differential privacy: what leaves, what the server makes of it, and what is told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.rows import OUTSIDE, SHARE, most_numbers, privatised
from counterflow.learning.clipping import nothing, own_response
from counterflow.privacy import Cost, gaussian_epsilon, total_epsilon
from counterflow.privacy.clipping import clipped_rows, private_radius
from counterflow.protocol import Sufficient

by_rows = partial(cf.Privacy, release="rows")  # what these tests are about

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
RECORDING = PLANT.simulate(2000, rng=2)
MODELS = PLANT.locals()
QUICK = {"evaluations": 2, "uncertainty": False}  # where nobody reads the estimate


def message_of(unit: str, recording: cf.Recording = RECORDING) -> Sufficient:
    return sufficient_message(unit, MODELS[unit], recording[unit].y, recording[unit].u)


def seen(privacy: cf.Privacy | None, recording: cf.Recording = RECORDING) -> dict[str, Sufficient]:
    out = {}
    cf.fit(
        recording, MODELS, privacy=privacy, **QUICK,
        watch=lambda message, up: out.update({message.unit: message}) if up else None,
    )  # fmt: skip
    return out


def changed(unit: str, rows: slice, y: object) -> cf.Recording:
    arrays = {n: {"y": np.array(RECORDING[n].y), "u": RECORDING[n].u} for n in RECORDING.names}
    arrays[unit]["y"][rows] = y
    return cf.Recording.from_arrays(arrays, dt=RECORDING.dt)


def budgets(folder: Path, epsilon: float, delta: float = 1e-6, window: int = 1) -> None:
    for name in RECORDING.names:
        cf.Ledger.create(folder / f"{name}.ledger", name, epsilon, delta, window).close()


# ---- what leaves


@pytest.mark.parametrize("window", [1, 7])
def test_replacing_rows_moves_the_release_by_no_more_than_the_sensitivity(window: int) -> None:
    """In the coordinates of the clip: the noise is the same, so the difference is that of the clipped rows."""
    privacy = by_rows(3.0, 1e-6, clip=5.0, window=window, seed=1)
    rows = slice(500, 500 + window)
    for y in (1e3, -1e300, 0.0, RECORDING["boiler"].y[rows][::-1]):
        ours, theirs = seen(privacy), seen(privacy, changed("boiler", rows, y))
        sent, other = ours["boiler"], theirs["boiler"]
        scale = np.linalg.svd(sent.observation)[1][0] / np.linalg.svd(message_of("boiler").observation)[1][0]
        moved = (sent.numbers - other.numbers) / scale  # isotropic noise: the whitening is a number
        assert np.linalg.norm(moved) <= 2 * 5.0 * np.sqrt(window) * (1 + 1e-6)
        outside = np.delete(moved, range(500, 500 + window), axis=0)
        assert not outside.any(), "a measurement must touch its own row only"
        assert np.array_equal(ours["turbine"].values, theirs["turbine"].values)


def test_the_noise_is_what_the_analytic_mechanism_asks_for() -> None:
    privacy = by_rows(2.0, 1e-5, clip=4.0, window=3, seed=5)
    message = message_of("boiler")
    sent, release = privatised(message, MODELS["boiler"], privacy)
    mu = 2 * 4.0 * np.sqrt(3) / release.sigma / np.sqrt(0.95)  # the rest counts the rows that were clipped
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(2.0, rel=1e-9)
    root = np.sqrt(1 + release.sigma**2)
    inside, outside = clipped_rows(message.numbers, 4.0)
    noise = sent.numbers * root - inside
    n = noise.size
    assert noise.std() == pytest.approx(release.sigma, abs=4 * release.sigma / np.sqrt(2 * n))
    assert abs(noise.mean()) < 4 * release.sigma / np.sqrt(n)
    assert release.clipped == outside.mean() == (np.linalg.norm(message.numbers, axis=1) > 4.0).mean() > 0
    assert np.allclose(sent.observation * root, message.observation, rtol=1e-6)


def test_the_message_says_its_own_noise_with_an_ellipsoid_too() -> None:
    """s' - C'h has unit covariance if s - C̃h has: checked on many messages of one record without clipping."""
    message, model = message_of("boiler"), MODELS["boiler"]
    released = []
    for seed in range(30):
        sent, release = privatised(message, model, by_rows(5.0, 1e-6, seed=seed))
        whole = sent.observation @ np.linalg.inv(message.observation)  # L⁻¹ with LLᵀ = I + σ² W⁻¹W⁻ᵀ
        assert release.found_clip
        noise = sent.numbers @ np.linalg.inv(whole).T - message.numbers
        added = np.linalg.inv(whole.T @ whole) - np.eye(2)
        released.append(np.linalg.inv(np.linalg.cholesky(added)) @ noise.T)
    found = np.cov(np.hstack(released))
    n = 30 * len(message.numbers)
    assert np.abs(found - np.eye(2)).max() < 4 * np.sqrt(2 / n) + 0.01  # a few rows are clipped


def test_a_share_of_the_budget_finds_the_clip() -> None:
    privacy = by_rows(2.0, 1e-6, seed=3)
    message = message_of("boiler")
    _, release = privatised(message, MODELS["boiler"], privacy)
    mu = 1 / privacy.multiplier(most_numbers(len(message.inputs), 2))
    spent = SHARE * mu**2 + (2 * release.clip / release.sigma) ** 2
    assert spent == pytest.approx(mu**2, rel=1e-9)
    model = MODELS["boiler"]
    at = own_response(model.A, model.B, model.Q, message.observation, message.inputs)
    lengths = np.linalg.norm((message.numbers - at.centre) @ at.W.T, axis=1)
    assert np.mean(lengths > release.clip) == pytest.approx(release.clipped, abs=1e-12)
    assert release.clipped < 0.05
    assert release.clip < 2 * lengths.max()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_radius_follows_the_rows(scale: float) -> None:
    rows = scale * np.random.default_rng(1).standard_normal((20_000, 2))
    found = private_radius(rows, 0.3, by_rows(1.0, 1e-6, seed=1), "boiler", outside=OUTSIDE)
    length = np.linalg.norm(rows, axis=1)
    assert (length > found).mean() < 0.02 or scale < 1e-2
    assert found < max(2 * length.max(), 0.36)


def test_a_model_that_does_not_settle_foresees_nothing() -> None:
    model = cf.LocalModel(A=[[1.0]], B=[[1.0]], C=[[1.0]], Q=[[1.0]], R=[[1.0]])
    at = own_response(model.A, model.B, model.Q, np.array([[1.0]]), np.ones((10, 1)))
    assert not at.centre.any()
    assert np.array_equal(at.W, nothing(10, 1).W)


def test_absurd_rows_cannot_get_out_of_the_region() -> None:
    huge = np.array([[1e308, 1e308], [np.inf, 1.0], [np.nan, 0.0], [0.0, 0.0], [3.0, 4.0]])
    inside, outside = clipped_rows(huge, 2.0)
    assert np.isfinite(inside).all()
    assert (np.linalg.norm(inside, axis=1) <= 2.0).all()
    assert outside.mean() == 4 / 5
    found = cf.fit(changed("boiler", slice(3, 6), 1e300), MODELS, privacy=by_rows(5.0, 1e-6, seed=1))
    assert np.isfinite(found.plant.B).all()


def test_missing_rows_stay_missing_and_cost_no_more() -> None:
    gappy = changed("boiler", slice(100, 150), np.nan)
    sent = seen(by_rows(3.0, 1e-6, seed=1), gappy)["boiler"]
    assert np.flatnonzero(sent.labels).tolist() == list(range(100, 150))
    found = cf.fit(gappy, MODELS, privacy=by_rows(3.0, 1e-6, seed=1), **QUICK)
    assert found.privacy is not None
    assert found.privacy.epsilon == pytest.approx(3.0, rel=1e-9)


def test_the_operating_system_gives_other_noise_each_time_and_a_seed_the_same() -> None:
    secure, seeded = by_rows(3.0, 1e-6), by_rows(3.0, 1e-6, seed=1)
    one, two = seen(secure)["boiler"], seen(secure)["boiler"]
    assert not np.isclose(one.values, two.values).any()
    assert np.array_equal(seen(seeded)["boiler"].values, seen(seeded)["boiler"].values)


def test_units_in_another_order_send_the_same(tmp_path: Path) -> None:
    privacy = by_rows(3.0, 1e-6, seed=1)
    found = cf.fit(RECORDING, MODELS, privacy=privacy)
    arrays = {n: {"y": RECORDING[n].y, "u": RECORDING[n].u} for n in reversed(RECORDING.names)}
    turned = cf.fit(cf.Recording.from_arrays(arrays, dt=RECORDING.dt), MODELS, privacy=privacy)
    for letter, effect, cause in (("B", "turbine", "boiler"), ("A", "boiler", "turbine")):
        one, two = (f.plant.block(letter, effect, cause) for f in (found, turned))
        assert np.allclose(one, two, rtol=1e-6, atol=1e-8)


# ---- what the server makes of it


def errors(found: cf.Fit) -> float:
    """Relative error of the coupling blocks of B."""
    pairs = [("boiler", "turbine"), ("turbine", "boiler")]
    away = [found.plant.block("B", e, c) - PLANT.block("B", e, c) for e, c in pairs]
    size = [PLANT.block("B", e, c) for e, c in pairs]
    return float(np.sqrt(sum((d**2).sum() for d in away) / sum((b**2).sum() for b in size)))


def test_the_error_falls_with_the_rows() -> None:
    """Four times the rows, half the error: slope -1/2 in log-log, within three standard errors of the fit of it."""
    lengths, runs = [500, 2000, 8000], 5
    mean = []
    for rows in lengths:
        privacy = [by_rows(20.0, 1e-6, seed=k) for k in range(runs)]
        found = [
            cf.fit(PLANT.simulate(rows, rng=10 + k), MODELS, privacy=privacy[k], uncertainty=False) for k in range(runs)
        ]
        mean.append(np.sqrt(np.mean([errors(f) ** 2 for f in found])))
    slope = np.polyfit(np.log(lengths), np.log(mean), 1)[0]
    # of log rms of `runs` errors of 8 numbers each: sd ≈ 1/√(16 runs); over a span of log 16
    doubt = np.sqrt(2) / np.sqrt(16 * runs) / np.log(16)
    assert abs(slope + 0.5) < 3 * doubt
    assert all(later < 0.75 * earlier for earlier, later in pairwise(mean))


def test_intervals_hold_under_privacy() -> None:
    inside, total = 0, 0
    for k in range(6):
        found = cf.fit(PLANT.simulate(2000, rng=100 + k), MODELS, privacy=by_rows(20.0, 1e-6, seed=k))
        for letter, errors_of in (("A", found.standard_errors.A), ("B", found.standard_errors.B)):
            for effect, cause in (("boiler", "turbine"), ("turbine", "boiler")):
                columns = PLANT.state_slice(cause) if letter == "A" else PLANT.input_slice(cause)
                se = errors_of[PLANT.state_slice(effect), columns]
                away = found.plant.block(letter, effect, cause) - PLANT.block(letter, effect, cause)
                inside += int((np.abs(away) < 1.96 * se).sum())
                total += away.size
    share = inside / total
    assert abs(share - 0.95) < 3 * np.sqrt(0.95 * 0.05 / total) * 1.5  # entries of one fit hang together


def test_privacy_can_be_bought_back_with_epsilon() -> None:
    losses = [errors(cf.fit(RECORDING, MODELS, privacy=by_rows(e, 1e-6, seed=2))) for e in (2.0, 20.0, 90.0)]
    assert losses[0] > losses[1] > losses[2] > errors(cf.fit(RECORDING, MODELS))


# ---- what is told, and what it costs


def test_the_report_says_what_was_spent_and_what_is_not_covered(tmp_path: Path) -> None:
    budgets(tmp_path, 4.0, 1e-5)
    found = cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path, models=(0.25, 1e-7)), **QUICK)
    report = found.privacy
    assert report is not None
    assert report.epsilon == pytest.approx(1.0, rel=1e-9)
    assert (report.delta, report.source, report.durable, report.secure) == (1e-6, "operating system", True, True)
    first, second = (e.what for e in report.ledger["boiler"])
    assert first.startswith("local models ")
    assert second == "sufficient message of 2001 rows"
    text = found.summary()
    assert "local models are counted with epsilon 0.25" in text
    assert "inputs and which rows are missing" in text
    assert "local models (A, B, Q" not in text
    again = cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path, models=(0.25, 1e-7)), **QUICK)
    assert again.privacy is not None
    assert [e.what for e in again.privacy.ledger["boiler"]] == ["sufficient message of 2001 rows"], "models cost once"
    assert again.privacy.epsilon == pytest.approx(1.0, rel=1e-6), "but they are part of what this fit costs"
    others = {n: replace(m, Q=1.01 * m.Q) for n, m in MODELS.items()}
    third = cf.fit(RECORDING, others, privacy=by_rows(1.0, 1e-6, ledger=tmp_path, models=(0.25, 1e-7)), **QUICK)
    assert third.privacy is not None
    assert len(third.privacy.ledger["boiler"]) == 2, "other models cost anew"
    plain_text = cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, seed=0), **QUICK).summary()
    assert "protects nothing" in plain_text
    assert "not written to a ledger" in plain_text
    assert "taken to come from other data" in plain_text


def test_fits_add_up_until_the_budget_refuses(tmp_path: Path) -> None:
    budgets(tmp_path, 2.0)
    privacy = by_rows(1.0, 1e-6, ledger=tmp_path, seed=1)
    costs: list[Cost] = []
    done = 0

    def spend_all() -> None:
        nonlocal done
        while done < 20:
            found = cf.fit(RECORDING, MODELS, privacy=privacy, **QUICK)
            done += 1
            assert found.privacy is not None
            costs.extend(e.cost for e in found.privacy.ledger["boiler"])
            assert found.privacy.units["boiler"].spent == pytest.approx(total_epsilon(costs, 1e-6), rel=1e-9)

    with pytest.raises(cf.PrivacyError, match="unit 'boiler'"):
        spend_all()
    assert 2 <= done < 20, "Gaussian releases add up more slowly than epsilons do"
    assert total_epsilon([*costs, costs[0]], 1e-6) > 2.0 >= total_epsilon(costs, 1e-6)
    with cf.Ledger.open(tmp_path / "turbine.ledger") as ledger:
        assert len(ledger.entries()) == done, "nobody pays for a fit that another unit refuses"


def test_a_refused_release_does_not_leave(tmp_path: Path) -> None:
    for name, epsilon in (("boiler", 5.0), ("turbine", 0.5)):
        cf.Ledger.create(tmp_path / f"{name}.ledger", name, epsilon, 1e-6).close()
    crossed: list[object] = []
    with pytest.raises(cf.PrivacyError, match="turbine"):
        cf.fit(
            RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path),
            watch=lambda message, up: crossed.append(message) if up else None,
        )  # fmt: skip
    assert not crossed
    with pytest.raises(cf.PrivacyError, match="has no budget: there is no ledger"):
        cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path / "elsewhere"))


def test_a_ledger_of_wider_windows_refuses_narrow_ones(tmp_path: Path) -> None:
    budgets(tmp_path, 5.0, window=10)
    with pytest.raises(cf.PrivacyError, match="pass window=10"):
        cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path, window=5))
    found = cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path, window=10), **QUICK)
    assert found.privacy is not None
    assert found.privacy.units["boiler"].spent == pytest.approx(1.0, rel=1e-9)


def test_the_ledger_is_written_before_the_message_leaves(tmp_path: Path) -> None:
    budgets(tmp_path, 5.0)
    there: list[int] = []

    def watch(message: object, up: bool) -> None:
        if up:
            with cf.Ledger.open(tmp_path / f"{message.unit}.ledger") as ledger:  # type: ignore[attr-defined]
                there.append(len(ledger.entries()))

    cf.fit(RECORDING, MODELS, privacy=by_rows(1.0, 1e-6, ledger=tmp_path), watch=watch, evaluations=1)
    assert there == [1, 1]


# ---- questions, updates and files


def test_questions_about_other_rows_are_refused() -> None:
    found = cf.fit(RECORDING, MODELS, privacy=by_rows(10.0, 1e-6, seed=1))
    do = {"boiler": {"u1": 0.0}}
    world = found.counterfactual(RECORDING, do=do, start=900, stop=905)
    assert world["turbine"].mean.shape == (5, 8)
    other = RECORDING.slice(0, 500)
    for ask in (
        lambda: found.counterfactual(other, do=do, start=9, stop=15),
        lambda: found.forecast(other, 5),
        lambda: found.attribute(other, "boiler"),
        lambda: found.validate(other),
        lambda: found.check(other),
        lambda: found.update(other),
        lambda: found.predictor(),
    ):
        with pytest.raises(cf.PrivacyError, match="private"):
            ask()
    assert found.forecast(RECORDING, 5)["turbine"].mean.shape == (5, 8)
    assert found.check().verdict in ("pass", "caution", "fail")


def test_an_update_is_a_release_of_its_own(tmp_path: Path) -> None:
    budgets(tmp_path, 20.0)
    first = cf.fit(RECORDING.slice(0, 1000), MODELS, privacy=by_rows(20.0, 1e-6, ledger=tmp_path, seed=1, start=0))
    later = RECORDING.slice(1000, 2001)
    with pytest.raises(cf.PrivacyError, match="boiler"):
        first.update(later, privacy=by_rows(20.0, 1e-6, ledger=tmp_path, seed=2))  # of the same rows, as far as known
    both = first.update(later, privacy=by_rows(20.0, 1e-6, ledger=tmp_path, seed=2, start=1000))
    assert both.privacy is not None
    assert both.privacy.epsilon == pytest.approx(20.0, rel=1e-6), "rows that do not overlap do not add up"
    assert len(both.privacy.ledger["boiler"]) == 2
    with pytest.raises(cf.PrivacyError, match="has been updated"):
        both.forecast(RECORDING, 3)
    clear = cf.fit(RECORDING.slice(0, 1000), MODELS).update(later, privacy=by_rows(5.0, 1e-6, seed=2))
    assert clear.privacy is not None
    assert any("sent without noise" in text for text in clear.privacy.excluded)
    assert {"private", "simulated-noise"} <= {caveat.code for caveat in clear.caveats}


def test_logs_without_models_are_never_private(tmp_path: Path) -> None:
    """Neither a fit nor an update of one; what is refused is not charged."""
    private, later = by_rows(1.0, 1e-6, ledger=tmp_path), RECORDING.slice(600, 700)
    logs = cf.fit(RECORDING.slice(0, 600), rank=2, same_row=False)
    for refused in (lambda: cf.fit(RECORDING, privacy=private), lambda: logs.update(later, privacy=private)):
        with pytest.raises(cf.PrivacyError) as raised:
            refused()
        assert raised.value.code == "private-logs"
    assert not list(tmp_path.iterdir())


def test_a_private_fit_on_disk_is_split_as_trust_is(tmp_path: Path) -> None:
    found = cf.fit(RECORDING, MODELS, privacy=by_rows(10.0, 1e-6, seed=1))
    found.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    assert loaded.privacy is not None
    assert found.privacy is not None
    assert loaded.privacy.to_json() == found.privacy.to_json()
    assert loaded.summary() == found.summary()
    do = {"boiler": {"u1": 0.0}}
    one, two = (f.counterfactual(RECORDING, do=do, start=9, stop=12)["turbine"].mean for f in (found, loaded))
    assert np.array_equal(one, two)
    with pytest.raises(cf.PrivacyError):
        loaded.update(RECORDING)
    server = (tmp_path / "fit" / "server.safetensors").read_bytes()
    for secret in (b'clipped\\\\"', RECORDING.digest.encode(), b"rows_digest"):
        assert secret not in server
    plain_fit = cf.fit(RECORDING, MODELS)
    plain_fit.save(tmp_path / "plain")
    assert cf.load(tmp_path / "plain").privacy is None


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (cf.OptionError, {"method": "centralized"}, "pools raw data"),
        (cf.OptionError, {"method": "oracle"}, "pools raw data"),
        (cf.OptionError, {"method": "penalty"}, "no rigorous accounting of method 'penalty'"),
    ],
)
def test_methods_without_this_accounting_are_refused(kind: type[Exception], options: dict[str, str], text: str) -> None:
    with pytest.raises(kind, match=text):
        cf.fit(RECORDING, PLANT, privacy=by_rows(1.0, 1e-6), **options)
    with pytest.raises(cf.OptionError, match="rigorous accounting"):
        cf.fit(RECORDING, PLANT, privacy=cf.Privacy(1.0, 1e-6, accounting="published"))


WRONG: dict[str, tuple[object, ...]] = {
    "epsilon": (0.0, float("nan"), True, "1", 101.0, 10**400),
    "delta": (0.0, 1.0),
    "clip": (0.0, float("inf"), True, 5e-324),
    "window": (0, 1.5, 2**40, True, None, "1"),
    "start": (-1,),
    "accounting": ("exact", np.array(["rigorous"])),
    "ledger": (3,),
    "models": ("counted", (1.0, 0.0), (0.5, 1e-6), (0.5,), (-1.0, 0.0), (True, 0.0), np.array([0.5, 1e-7])),
    "seed": (-1, 1.0),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_what_cannot_be_asked_for(name: str, value: object) -> None:
    with pytest.raises(cf.OptionError, match="rivacy"):
        by_rows(**({"epsilon": 1.0, "delta": 1e-6} | {name: value}))  # type: ignore[arg-type]


def test_the_report_shows_the_promise_and_no_digest_of_measurements(tmp_path: Path) -> None:
    from counterflow.report import AskEffect, write_report

    found = cf.fit(RECORDING, MODELS, privacy=by_rows(10.0, 1e-6, seed=1))
    write_report(tmp_path / "report.html", found, RECORDING, [AskEffect("boiler", "turbine", {"u1": 1.0}, horizon=9)])
    page = (tmp_path / "report.html").read_text()
    assert "What was promised to measurements" in page
    assert "protects nothing" in page
    assert "ε 10, δ 1e-06 spent" in page
    assert RECORDING.digest not in page
    write_report(tmp_path / "plain.html", cf.fit(RECORDING, MODELS), RECORDING)
    assert "nothing was made private" in (tmp_path / "plain.html").read_text()


def test_rows_that_nobody_has_named_overlap_all_others(tmp_path: Path) -> None:
    budgets(tmp_path, 50.0)
    costs = []
    first, second = RECORDING.slice(0, 1000), RECORDING.slice(1000, 2000)
    for recording, start in ((first, None), (first, 50_000), (second, 90_000), (first, 10_000), (first, 50_000)):
        privacy = by_rows(1.0, 1e-6, ledger=tmp_path, start=start)
        found = cf.fit(recording, MODELS, privacy=privacy, **QUICK)
        assert found.privacy is not None
        costs.append(found.privacy.units["boiler"].spent)
    assert costs[0] < costs[1] == costs[2], "rows that are shown to be others do not add up"
    assert costs[2] < costs[3] < costs[4], "rows that were released before are the same, whatever number they are given"


def test_nothing_that_travels_tells_of_a_row_beyond_the_clip(tmp_path: Path) -> None:
    """Two records that differ beyond the clip give one and the same release, and all that is made of it is the same."""
    from counterflow.report import write_report

    told = []
    for factor in (1e2, 1e6):
        recording = changed("boiler", slice(7, 8), factor)
        found = cf.fit(recording, MODELS, privacy=by_rows(1.0, 1e-6, clip=5.0, seed=3), evaluations=20)
        assert found.provenance.data_digest != recording.digest
        same_time = replace(found.provenance, fitted="2026-03-01T09:30:00+00:00")
        found = replace(found, provenance=same_time)
        found.save(tmp_path / f"{factor:g}")
        write_report(tmp_path / "page.html", found, recording)
        server = (tmp_path / f"{factor:g}" / "server.safetensors").read_bytes()
        told.append((server, (tmp_path / "page.html").read_text(), found.caveats, found.summary()))
    assert told[0] == told[1]


def test_seeded_noise_is_another_for_other_rows() -> None:
    """A study of updates must not see the same noise twice."""
    privacy = by_rows(1.0, 1e-6, clip=5.0, seed=1)
    one, two = (
        privatised(message_of("boiler", PLANT.simulate(500, rng=k)), MODELS["boiler"], privacy)[0].values
        for k in (1, 2)
    )
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.2


def test_a_small_budget_says_that_it_may_clip_much() -> None:
    small = cf.fit(RECORDING, MODELS, privacy=by_rows(0.1, 1e-6), **QUICK)
    assert any(c.code == "clipped-rows" for c in small.caveats)
    assert not any(
        c.code == "clipped-rows" for c in cf.fit(RECORDING, MODELS, privacy=by_rows(20.0, 1e-6), **QUICK).caveats
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_inputs_beyond_all_measure_are_refused_as_without_privacy() -> None:
    arrays = {n: {"y": RECORDING[n].y, "u": 1e160 * RECORDING[n].u} for n in RECORDING.names}
    with pytest.raises(cf.CounterflowError):
        cf.fit(cf.Recording.from_arrays(arrays), MODELS, privacy=by_rows(1.0, 1e-6))


def test_what_the_ledger_has_room_for(tmp_path: Path) -> None:
    budgets(tmp_path, 4.0)
    cf.fit(RECORDING, MODELS, privacy=by_rows(3.0, 1e-6, ledger=tmp_path), **QUICK)
    with cf.Ledger.open(tmp_path / "boiler.ledger") as ledger:
        room, left = ledger.room, ledger.left
    assert left == pytest.approx(1.0, rel=1e-6)
    assert room > 2.0
    with pytest.raises(cf.PrivacyError):
        cf.fit(RECORDING, MODELS, privacy=by_rows(1.01 * room, 1e-6, ledger=tmp_path), **QUICK)
    cf.fit(RECORDING, MODELS, privacy=by_rows(0.999 * room, 1e-6, ledger=tmp_path), **QUICK)
