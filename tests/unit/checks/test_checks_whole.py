"""All checks together: what they say of good, hostile and tiny records, and in which forms."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from check_plants import closed_loop, proportional, tank_plant

import counterflow as cf
from counterflow.checks import Check, Checks, check
from counterflow.checks.verdicts import kinds

PLANT = cf.random_plant(["boiler", "turbine"], outputs=3, rng=1)
RECORDING = PLANT.simulate(1500, rng=2)


@cache
def fitted() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


@cache
def checked() -> Checks:
    return check(fitted())


def changed(change: object, recording: cf.Recording = RECORDING) -> cf.Recording:
    parts = {n: change(n, recording[n].y.copy(), recording[n].u.copy()) for n in recording.names}  # type: ignore[operator]
    return cf.Recording.from_arrays(parts, units=recording.units)


def test_a_good_fit_passes_every_check() -> None:
    assert checked().verdict == "pass"
    assert {each.name for each in checked()} == {kind.name for kind in kinds().values() if kind.always}
    assert all(each.passed and np.isfinite(each.number) and each.finding and not each.remedy for each in checked())
    assert checked().caveats() == checked().caveats("fail", "caution", "unknown") == ()
    assert (checked().rows, checked().fitted) == (1501, True)
    fresh = check(fitted(), PLANT.simulate(800, rng=9))
    assert (fresh.verdict, fresh.rows, fresh.fitted) == ("pass", 801, False)
    assert "not those of the fit" in str(fresh)


def test_a_fit_from_logs_is_checked_too() -> None:
    found = check(cf.fit(RECORDING), RECORDING)
    assert "fail" not in {each.verdict for each in found}, str(found)
    assert {each.name for each in found} == set(kinds()) - {"known couplings"}


def test_the_same_in_every_form() -> None:
    found = check(cf.fit(RECORDING, {n: replace(m, A=0.6 * m.A) for n, m in PLANT.locals().items()}))
    assert found.verdict == "fail"
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["verdict"], [each["name"] for each in told["checks"]]) == ("fail", [each.name for each in found])
    frame, text = found.to_frame(), str(found)
    assert frame["verdict"].to_list() == [each.verdict for each in found]
    assert frame["number"].to_list() == [each.number for each in found]
    assert all(each.title in text and each.remedy in text for each in found.of("fail"))
    told = [c for c in found.caveats() if c.code == "check-whiteness-fail"]
    assert [c.scope for c in told] == ["boiler", "turbine"], "each says whom it is about"
    assert told[0].text.startswith("check 'whiteness' fails for boiler: the model misses dynamics")


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [("", "unknown"), ("pass unknown", "unknown"), ("unknown caution pass", "caution"), ("fail caution", "fail")],
)
def test_verdicts_are_ordered(verdicts: str, worst: str) -> None:
    found = Checks(tuple(Check("drift", "a", v, 1.0, "", "x") for v in verdicts.split()))  # type: ignore[arg-type]
    assert found.verdict == worst
    assert len(found["drift"]) == len(verdicts.split())
    assert {each.verdict: each.passed for each in found}.items() <= {
        "pass": True, "caution": False, "fail": False, "unknown": None
    }.items()  # fmt: skip


def test_kinds_are_known_and_many_names_are_summed_up() -> None:
    with pytest.raises(cf.OptionError, match="no kind 'drifts'"):
        checked()["drifts"]
    many = Checks(tuple(Check("drift", f"u{k}", "fail", 1.0, "", "x") for k in range(9)))
    assert "u0, u1, u2, u3 and 5 more" in many.caveats()[0].text


def test_units_of_measure_and_order_of_units_do_not_matter() -> None:
    loop, plant = closed_loop(proportional(1), 800, 1), tank_plant()
    size = {"tank": 1e3, "town": 1e-4}
    models = plant.locals()
    scaled = {n: replace(m, C=size[n] * m.C, R=size[n] ** 2 * m.R) for n, m in models.items()}
    recording = changed(lambda n, y, u: (size[n] * y, u), loop)
    turned = cf.Recording.from_arrays({n: (loop[n].y, loop[n].u) for n in ("town", "tank")}, units=loop.units[::-1])
    found = {(c.name, c.about): c for c in check(cf.fit(loop, models), loop)}
    for other in (check(cf.fit(recording, scaled), recording), check(cf.fit(turned, models), turned)):
        for each in other:
            first = found[each.name, each.about]
            assert each.verdict == first.verdict
            if each.name != "convergence":
                assert each.number == pytest.approx(first.number, rel=1e-3, abs=1e-5), each.title


def test_published_methods_are_looked_at_with_a_recording_only() -> None:
    fit = cf.fit(RECORDING, PLANT.locals(), method="penalty")
    blind = check(fit)
    assert {each.verdict for each in blind if each.name not in ("convergence", "stability")} == {"unknown"}
    assert "give a recording" in str(blind)
    seen = check(fit, RECORDING)
    assert {each.verdict for each in seen["whiteness"]} == {"fail"}  # it cannot learn B_mn
    assert {each.verdict for each in seen["feedback"]} == {"pass"}


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20, 60])
def test_a_few_rows_are_no_reason_to_stumble(steps: int) -> None:
    recording = PLANT.simulate(steps, rng=1)
    for found in (
        check(cf.fit(recording, PLANT.locals())),
        check(cf.fit(recording, PLANT, method="oracle"), recording),
    ):
        assert found["free run"][0].verdict in ("unknown", "pass", "caution")
        if steps <= 7:
            assert {each.verdict for each in (*found["whiteness"], *found["drift"])} == {"unknown"}
        str(found)
        found.to_frame()
        found.caveats("fail", "caution", "unknown", "pass")


def test_one_unit_no_inputs_no_measurements_no_movement() -> None:
    single = cf.random_plant(["boiler"], rng=1)
    assert check(cf.fit(single.simulate(600, rng=1), single.locals())).verdict == "pass"
    quiet = cf.random_plant(["a", "b"], inputs=0, rng=1)
    found = check(cf.fit(quiet.simulate(600, rng=1), quiet.locals()))
    assert (found.verdict, found["feedback"], found["excitation"]) == ("pass", (), ())
    few = RECORDING.slice(0, 400)
    gone = changed(lambda n, y, u: (np.full_like(y, np.nan) if n == "boiler" else y, u), few)
    found = check(cf.fit(gone, PLANT.locals(), evaluations=3), gone)
    for kind in ("whiteness", "innovation size", "drift", "free run"):
        assert {each.about: each.verdict for each in found[kind]}["boiler"] == "unknown"
    assert any(each.verdict == "fail" and "0 measured rows" in each.finding for each in found["excitation"])
    flat = changed(lambda n, y, u: (0 * y + 5, u), few)
    assert {each.verdict for each in check(cf.fit(flat, PLANT.locals()), flat)["free run"]} == {"unknown"}
    still = check(cf.fit(changed(lambda n, y, u: (y, 0 * u), few), PLANT.locals()))
    assert {each.verdict for each in still["excitation"]} == {"fail"}


def test_gaps_raise_no_alarm() -> None:
    rng = np.random.default_rng(5)

    def gappy(name: str, y: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y[rng.random(len(y)) < 0.1] = np.nan
        y[300:340] = np.nan
        return y, u

    recording = changed(gappy, RECORDING.slice(0, 600))
    exact = cf.fit(recording, PLANT, method="oracle")
    pooled = cf.fit(recording, PLANT.locals(), method="centralized", uncertainty=False, evaluations=4)
    for found in (check(exact, recording), check(pooled)):
        assert {each.verdict for each in found if each.name != "convergence"} == {"pass"}, str(found)
        assert found.rows == 600


def test_stability_in_words() -> None:
    def stability(radius: float, steps: int = 400) -> Check:
        plant = PLANT.replace(A=PLANT.A * radius / PLANT.spectral_radius)
        recording = PLANT.simulate(steps, rng=1)
        return check(cf.fit(recording, plant, method="oracle"), recording)["stability"][0]

    assert stability(0.9).verdict == "pass"
    slow = stability(0.99)
    assert (slow.verdict, slow.number) == ("caution", pytest.approx(0.99))
    assert f"record at least {int(np.ceil(-10 / np.log(0.99)))} rows" in slow.remedy
    endless = stability(1.0)
    assert endless.verdict == "caution"
    assert "never decays" in endless.finding
    couplings = fitted().couplings
    bound = replace(fitted(), couplings=replace(couplings, found=replace(couplings.found, at_bound=True)))  # type: ignore[union-attr, type-var, arg-type]
    assert check(bound)["stability"][0].verdict == "fail"


def test_the_picture_has_a_panel_for_each_kind() -> None:
    pytest.importorskip("matplotlib")
    figure = checked().plot()
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_title(loc="left")]
    assert [title.split(":")[0] for title in titles] == [kind.name for kind in kinds().values() if kind.always]
    assert all(title.endswith("pass") for title in titles)
    bars = {axis.get_title(loc="left").split(":")[0]: axis for axis in figure.axes}["feedback"]
    assert len(bars.patches) == len(checked()["feedback"])
    hostile = Checks((Check("excitation", "$a_b <i>", "fail", 0.0, "", "x", data={"share": np.zeros(1)}),))
    hostile.plot().canvas.draw()
    Checks(()).plot().canvas.draw()
