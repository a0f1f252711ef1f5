"""Questions to a fit: right against twin simulations, decentralized by the messages, refused where they must be."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
from equivalent_plants import permuted, transformed
from tolerances import EXACT, LONG

import counterflow as cf
from counterflow.plant import excitation
from counterflow.questions.effect import AskEffect

NAMES = ["boiler", "turbine", "pump"]


def named_plant(rng=1):
    valve = cf.Channel("valve", "%", (-8.0, 8.0))
    units = [cf.Unit(n, 2, [valve, "speed"], [f"{n[0]}{k}" for k in range(5)]) for n in NAMES]
    return cf.random_plant(units, rng=rng)


PLANT = named_plant()
RECORDING = PLANT.simulate(5000, rng=2)
FOUND = cf.fit(RECORDING, PLANT.locals())
ORACLE = cf.fit(RECORDING, PLANT, method="oracle")


def twin(change, start, stop):
    """Another world with the very same noise: inputs of rows start to stop - 1 changed."""
    inputs = {n: RECORDING[n].u.copy() for n in NAMES}
    change(inputs)
    return PLANT.simulate(5000, rng=2, inputs=inputs)


def r_squared(found, truth):
    return 1 - np.square(found - truth).sum() / np.square(truth).sum()


def hand_overs(ask):
    """Calls from one module of the rooms of fits and questions into another, by their order.

    Reading an attribute, and building the object that is then asked, hand nothing over.
    """
    root, found = Path(cf.__file__).parent, []

    def place(frame):
        path = Path(frame.f_code.co_filename)
        return str(path.relative_to(root).with_suffix("")) if path.is_relative_to(root) else ""

    def is_value(frame):
        kind = getattr(type(frame.f_locals.get("self")), frame.f_code.co_name, None)
        return isinstance(kind, (property, cached_property)) or frame.f_code.co_name.startswith(("<", "__"))

    def seen(frame, event, _):
        if event == "call" and place(frame).startswith(("questions", "fits")) and not is_value(frame):
            caller = frame.f_back
            while caller is not None and not place(caller):
                caller = caller.f_back
            if caller is not None and place(caller) != place(frame):
                found.append(place(frame))

    sys.setprofile(seen)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return found


def test_an_effect_takes_six_hand_overs_and_enters_no_module_twice():
    found = hand_overs(lambda: FOUND.effect("boiler", "turbine", {"valve": 1.0}, horizon=5).mean)
    assert len(set(found)) == len(found) <= 6
    assert {"questions/question", "questions/answering", "questions/effect"} <= set(found)


def test_what_would_have_happened_is_the_twin_world():
    """With the true plant the answer is exact; with the fit, R² of the effects is above 0.99."""

    def change(inputs):
        inputs["boiler"][4000:4030, 0] = 2.0
        inputs["pump"][4010:4030, 1] += 1.5

    other = twin(change, 4000, 4060)
    do = {"boiler": {"valve": 2.0}, "pump": {"speed": RECORDING["pump"].u[4000:4060, 1]}}
    do["boiler"]["valve"] = np.where(np.arange(60) < 30, 2.0, RECORDING["boiler"].u[4000:4060, 0])
    do["pump"]["speed"] = do["pump"]["speed"] + np.where((np.arange(60) >= 10) & (np.arange(60) < 30), 1.5, 0.0)
    exact = ORACLE.counterfactual(RECORDING, do, start=4000, stop=4060)
    found = FOUND.counterfactual(RECORDING, do, start=4000, stop=4060)
    for name in NAMES:
        truth = other[name].y[4000:4060]
        assert np.abs(exact[name].mean - truth).max() < 1e-9
        assert np.array_equal(found[name].factual, RECORDING[name].y[4000:4060])
        moved = truth - RECORDING[name].y[4000:4060]
        assert r_squared(found[name].mean - found[name].factual, moved) > 0.99
        assert not moved[0].any()  # row t's input acts on row t + 1
        assert np.array_equal(found[name].mean[0], found[name].factual[0])
        inside = (found[name].lower <= truth) & (truth <= found[name].upper)
        assert inside.mean() > 0.7
        assert exact[name].lower is None


def test_an_effect_of_any_schedule_and_several_causes_is_the_sum():
    rng = np.random.default_rng(0)
    ramp, noise = np.outer(np.linspace(0, 1, 20), [1.0, -1.0]), rng.standard_normal((20, 2))
    both = FOUND.effect(["boiler", "pump"], "turbine", {"boiler": ramp, "pump": noise}, horizon=20)
    one = FOUND.effect("boiler", "turbine", ramp, horizon=20)
    two = FOUND.effect("pump", "turbine", {"valve": noise[:, 0], "speed": noise[:, 1]}, horizon=20)
    assert np.allclose(both.mean, one.mean + two.mean, rtol=EXACT, atol=1e-12)
    assert both.cause == "boiler and pump"
    pulse = FOUND.effect("boiler", "turbine", [1.0, 0.0], horizon=20, duration=1).mean
    powers = [
        PLANT.block("C", "turbine") @ (np.linalg.matrix_power(FOUND.plant.A, k) @ FOUND.plant.B[:, 0])[2:4]
        for k in range(20)
    ]
    assert np.allclose(pulse, powers, rtol=1e-10, atol=1e-12)


def test_the_interval_of_an_effect_is_the_differenced_one():
    """The delta method against plain differences in every coupling."""
    answer = FOUND.effect("boiler", "turbine", [1.0, 0.5], horizon=6)
    spread = FOUND.couplings.spread
    here = spread.parameters.pack(np.hstack([FOUND.plant.A, FOUND.plant.B]))
    C = PLANT.block("C", "turbine")

    def response(vector):
        moved = spread.parameters.unpack(vector)
        A = np.where(moved[:, :6] != 0, moved[:, :6], FOUND.plant.A)
        B = np.where(moved[:, 6:] != 0, moved[:, 6:], FOUND.plant.B)
        state, rows = np.zeros(6), []
        for _ in range(6):
            state = A @ state + B[:, :2] @ [1.0, 0.5]
            rows.append(C @ state[2:4])
        return np.array(rows)

    step = 1e-6
    jacobian = np.array([
        (response(here + step * e) - response(here - step * e)) / (2 * step) for e in np.eye(len(here))
    ])  # fmt: skip
    variance = np.einsum("itd,ij,jtd->td", jacobian, spread.covariance, jacobian)
    half = (answer.upper - answer.lower) / 2 / 1.959963984540054
    assert np.allclose(half, np.sqrt(variance), rtol=1e-5)


def test_a_forecast_covers_what_then_happens():
    hits = total = 0
    for start in range(1000, 4900, 130):
        past, future = RECORDING.slice(0, start), RECORDING.slice(start, start + 15)
        plan = {n: np.vstack([RECORDING[n].u[start - 1], future[n].u[:-1]]) for n in NAMES}
        for name, answer in FOUND.forecast(past, 15, plan=plan).items():
            truth = future[name].y
            hits += int(((answer.lower <= truth) & (truth <= answer.upper)).sum())
            total += truth.size
            assert answer.first == start
            assert np.isnan(answer.factual).all()
    assert 0.93 < hits / total < 0.97


def test_an_attribution_adds_up_and_names_the_culprit():
    def change(inputs):
        inputs["pump"][4500:4550, 0] += 6.0

    disturbed = twin(change, 4500, 4550)
    found = FOUND.attribute(disturbed, "turbine", start=4500, stop=4550)
    total = sum(found.shares.values())
    assert set(found.shares) == {*NAMES, "initial state", "rest"}
    assert np.abs(total - found.departure).max() < 1e-9
    assert np.abs(found.baseline + found.departure - disturbed["turbine"].y[4500:4550]).max() < 1e-9
    calm = FOUND.attribute(RECORDING, "turbine", start=4500, stop=4550)
    gap = found.shares["pump"] - calm.shares["pump"]
    truth = disturbed["turbine"].y[4500:4550] - RECORDING["turbine"].y[4500:4550]
    assert r_squared(gap, truth) > 0.97
    strongest = int(np.abs(truth).mean(axis=0).argmax())
    assert found.ranked(found.channels[strongest])[0][0] == "pump"
    assert "pump" in str(found)


def test_a_restoration_reaches_its_target_with_the_smallest_change():
    target = {"t1": 0.8}
    found = ORACLE.restore("turbine", target, using=["boiler", "pump"], horizon=40)
    assert found.feasible
    reached = ORACLE.effect(list(found.change), "turbine", {n: dict(c) for n, c in found.change.items()}, horizon=40)
    assert reached.mean[-1, 1] == pytest.approx(0.8, rel=1e-3)
    # the smallest: minimum-norm solution of one equation
    step = [
        ORACLE.effect(n, "turbine", {c: 1.0}, horizon=40).mean[-1, 1]
        for n in ("boiler", "pump")
        for c in ("valve", "speed")
    ]
    sizes = np.array([16.0, 1.0, 16.0, 1.0])  # the valves' limits; nothing seen of the speeds without a record
    best = sizes**2 * step / np.square(sizes * step).sum() * 0.8
    values = [found.change[n][c] for n in ("boiler", "pump") for c in ("valve", "speed")]
    assert np.allclose(values, best, rtol=1e-3, atol=1e-6)
    far = FOUND.restore("turbine", {"t1": 1e4}, using={"boiler": ["valve"]}, horizon=40)
    assert not far.feasible
    assert "cannot" in far.sentence()
    last = RECORDING["boiler"].u[-1, 0]
    assert -8.0 - 1e-9 <= last + far.change["boiler"]["valve"] <= 8.0 + 1e-9


def test_messages_of_a_question_carry_nobody_elses_data():
    seen = []
    watch = lambda message, up: seen.append((message, up))  # noqa: E731
    FOUND.effect("boiler", "turbine", [1.0, 0.0], horizon=7, watch=watch)
    FOUND.counterfactual(RECORDING, {"boiler": {"valve": 0.5}}, start=100, stop=120, watch=watch)
    FOUND.forecast(RECORDING, 5, watch=watch)
    FOUND.attribute(RECORDING, "pump", start=10, stop=30, watch=watch)
    FOUND.restore("pump", {"p0": 0.1}, using=["boiler"], watch=watch)
    assert {type(m).__name__ for m, up in seen if up} == {"Change", "Ask"}
    downs = [m for m, up in seen if not up]
    assert {type(m).__name__ for m in downs} == {"Answer"}
    for message in downs:
        model = PLANT.local(message.unit)
        assert message.mean.shape[1] == model.states  # its own states, nobody else's, no measurements
        for array in (message.mean, message.covariance):
            for name in NAMES:
                for secret in (RECORDING[name].u[:, 0], RECORDING[name].y[:, 0], PLANT.local(name).C[:, 0]):
                    assert not set(np.round(secret, 12)) & set(np.round(array.ravel(), 12)) - {0.0}


def test_answers_do_not_depend_on_basis_order_or_scale():
    base = ORACLE.effect("boiler", "turbine", [1.0, 1.0], horizon=30).mean
    turned = transformed(PLANT, {n: np.array([[2.0, 0.4], [-0.3, 0.7]]) for n in NAMES})
    order = permuted(PLANT, ["pump", "turbine", "boiler"])
    for other in (turned, order):
        found = cf.fit(other.simulate(10, rng=1), other, method="oracle")
        assert np.abs(found.effect("boiler", "turbine", [1.0, 1.0], horizon=30).mean - base).max() < 1e-9


REFUSED = {
    "unknown unit": (lambda f: f.effect("boilr", "turbine", [1, 1]), cf.UnknownNameError, "boiler"),
    "unknown channel": (lambda f: f.effect("boiler", "turbine", {"valv": 1}), cf.UnknownNameError, "valve"),
    "numbers missing": (lambda f: f.effect("boiler", "turbine", [1.0]), cf.DataError, "valve, speed"),
    "not numbers": (lambda f: f.effect("boiler", "turbine", ["a", "b"]), cf.DataError, "numbers"),
    "not finite": (lambda f: f.effect("boiler", "turbine", [np.inf, 0]), cf.DataError, "finite"),
    "horizon": (lambda f: f.effect("boiler", "turbine", [1, 1], horizon=-1), cf.OptionError, "horizon"),
    "level": (lambda f: f.effect("boiler", "turbine", [1, 1], level=2), cf.OptionError, "level"),
    "wider than the limits": (lambda f: f.effect("boiler", "turbine", {"valve": 17.0}), cf.OptionError, "limits"),
    "several causes, one change": (lambda f: f.effect(["boiler", "pump"], "turbine", [1, 1]), cf.OptionError, "boiler"),
    "window": (
        lambda f: f.counterfactual(RECORDING, {"boiler": {"valve": 0}}, start=9, stop=9), cf.OptionError, "start"
    ),
    "beyond the record": (
        lambda f: f.counterfactual(RECORDING, {"boiler": {"valve": 0}}, stop=9999), cf.OptionError, "stop"
    ),
    "outside the limits": (
        lambda f: f.counterfactual(RECORDING, {"boiler": {"valve": 9.0}}, stop=5), cf.OptionError, "outside its limits"
    ),
    "empty do": (lambda f: f.counterfactual(RECORDING, {}), cf.OptionError, "do"),
    "array of another shape": (
        lambda f: f.counterfactual(RECORDING, {"boiler": np.zeros((3, 2))}, stop=5), cf.DataError, "shape"
    ),
    "other units": (
        lambda f: f.attribute(cf.random_plant(units=2, rng=1).simulate(9, rng=1), "pump"), cf.DataError, "units"
    ),
    "target unknown": (lambda f: f.restore("pump", {"x": 1.0}, using=["boiler"]), cf.UnknownNameError, "p0"),
    "no target": (lambda f: f.restore("pump", {}, using=["boiler"]), cf.OptionError, "target"),
    "cause no name": (lambda f: f.effect(3, "turbine", [1, 1]), cf.OptionError, "cause"),
    "using nothing": (lambda f: f.restore("pump", {"p0": 1.0}, using=None), cf.OptionError, "using"),
    "plan a number": (lambda f: f.forecast(RECORDING, 3, plan=5), cf.OptionError, "plan"),
    "empty change": (lambda f: f.effect("boiler", "turbine", {}), cf.OptionError, "empty"),
    "endless horizon": (lambda f: f.effect("boiler", "turbine", [1, 1], horizon=10**11), cf.OptionError, "horizon"),
    "too sure": (lambda f: f.effect("boiler", "turbine", [1, 1], level=1 - 1e-16), cf.OptionError, "level"),
    "overflow": (lambda f: f.effect("boiler", "turbine", {"speed": 1e300}, horizon=4), cf.DataError, "precision"),
    "no lever": (lambda f: f.restore("pump", {"p0": 1.0}, using=[]), cf.OptionError, "using"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_questions_get_one_clear_error(case):
    call, kind, text = REFUSED[case]
    with pytest.raises(kind, match=text):
        call(FOUND)


def test_library_and_command_line_follow_an_effect_equally_far():
    asked = next(entry.default for entry in AskEffect.form if entry.name == "horizon")
    answer = FOUND.effect("boiler", "turbine", {"speed": 1.0})
    assert len(answer.mean) == asked == AskEffect.horizon == 50


def test_a_far_change_carries_a_warning():
    assert not FOUND.effect("boiler", "turbine", {"speed": 1.0}).caveats
    far = FOUND.effect("boiler", "turbine", {"speed": 100.0})
    assert [caveat.code for caveat in far.caveats] == ["extrapolation"]


def test_an_unstable_estimate_is_not_followed_far():
    units = [cf.Unit("a", 1, 1, 1), cf.Unit("b", 1, 1, 1)]
    plant = cf.Plant(units=units, A=[[1.05, 0], [0.1, 0.5]], B=np.eye(2), C=np.eye(2), Q=np.eye(2), R=np.eye(2))
    oracle = cf.fit(plant.simulate(20, rng=1), plant, method="oracle")
    assert np.isfinite(oracle.effect("a", "b", [1.0], horizon=50).mean).all()
    with pytest.raises(cf.UnstableError, match="at most"):
        oracle.effect("a", "b", [1.0], horizon=2000)
    with pytest.raises(cf.UnstableError, match="settle"):
        oracle.attribute(plant.simulate(20, rng=1), "b")


@pytest.mark.slow
def test_questions_through_a_hardly_measured_unit_are_refused():
    rows = {n: (RECORDING[n].y[:800].copy(), RECORDING[n].u[:800]) for n in NAMES}
    rows["pump"][0][12:] = np.nan
    found = cf.fit(cf.Recording.from_arrays(rows, units=PLANT.units), PLANT.locals())
    with pytest.raises(cf.UnidentifiedError, match="pump"):
        found.effect("pump", "boiler", [1.0, 1.0], horizon=10)
    assert any("pump" in text for text in found.summary().splitlines())


def test_answers_draw_and_export_themselves(tmp_path):
    world = FOUND.counterfactual(RECORDING, {"boiler": {"valve": 1.0}}, start=100, stop=140)["turbine"]
    frame = world.to_frame()
    assert frame.height == 40 * 5
    assert frame["row"].to_list()[:5] == [100] * 5
    share = FOUND.attribute(RECORDING, "pump", start=10, stop=60)
    for k, figure in enumerate((world.plot(), share.plot())):
        figure.savefig(tmp_path / f"{k}.png")
        assert (tmp_path / f"{k}.png").stat().st_size > 1000
    units = {channel.unit for channel in world.about.outputs if channel.name in world.ranked_channels()[:3]}
    assert len(world.plot().axes) == len(units), "channels that share a unit of measure share a panel"
    assert len(world.plot(kind="impact").axes) == 3
    lines = share.plot().axes[0].get_lines()
    assert {line.get_label() for line in lines} >= {*NAMES, "rest", "departure"}


def test_names_are_drawn_as_they_are_written():
    from counterflow.questions.plots import literal

    units = [cf.Unit("a", 2, inputs=["in"], outputs=["$frac{$x^", "_hidden", "5 $ to 9 $"])]
    plant = cf.random_plant(units=units, rng=1)
    figure = cf.fit(plant.simulate(200, rng=2), plant).effect("a", "a", [1.0], 5).plot()
    figure.canvas.draw()
    told = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert sorted(told) == sorted(literal(channel.name) for channel in units[0].outputs)
    assert literal("_hidden").strip() == "_hidden"


def test_published_fits_answer_with_their_caveat():
    published = cf.fit(RECORDING, PLANT.locals(), method="penalty")
    world = published.counterfactual(RECORDING, {"boiler": {"valve": 1.0}}, start=100, stop=120)["turbine"]
    assert world.caveats[0].code == "published-method"
    assert world.lower is None
    with pytest.raises(cf.OptionError, match="sufficient"):
        published.forecast(RECORDING, 5)


def test_inputs_drawn_from_elsewhere_can_be_asked_about():
    new = PLANT.simulate(300, rng=77, inputs=excitation.holds(PLANT, 300, 77))
    world = ORACLE.counterfactual(new, {"pump": np.zeros((50, 2))}, start=200, stop=250)
    inputs = {n: new[n].u.copy() for n in NAMES}
    inputs["pump"][200:250] = 0.0
    truth = PLANT.simulate(300, rng=77, inputs=inputs)
    for name in NAMES:
        assert np.abs(world[name].mean - truth[name].y[200:250]).max() < 1e-9


def test_a_unit_asks_with_its_own_part_and_a_server_alone(tmp_path):
    """Each side's file is useless to the other: no C, R or y at the server, no coupling at the unit."""
    FOUND.save(tmp_path / "fit")
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "fit" / "units" / "turbine.safetensors").rename(alone / "turbine.safetensors")
    (tmp_path / "fit" / "server.safetensors").rename(alone / "server.safetensors")
    server, turbine = cf.load_server(alone), cf.load_unit(alone / "turbine.safetensors")
    y = RECORDING["turbine"].y
    view = cf.UnitView(turbine, server, y)
    one = view.effect("boiler", "turbine", {"valve": 1.0}, horizon=9)
    two = FOUND.effect("boiler", "turbine", {"valve": 1.0}, horizon=9)
    assert np.array_equal(one.mean, two.mean)
    assert np.array_equal(one.upper, two.upper)
    (world,) = view.counterfactual(do={"pump": {"speed": 0.0}}, start=300, stop=340).values()
    same = FOUND.counterfactual(RECORDING, {"pump": {"speed": 0.0}}, start=300, stop=340)["turbine"]
    assert np.allclose(world.mean, same.mean, rtol=1e-12, atol=1e-12)
    share = view.attribute(start=300, stop=340)
    assert np.abs(sum(share.shares.values()) - share.departure).max() < 1e-9
    assert view.restore("turbine", {"t0": 0.1}, using=["boiler"]).feasible
    secrets = [PLANT.local(n).C for n in NAMES] + [PLANT.local(n).R for n in NAMES]
    held = [server.A, server.B, server.Q, server.shared.values, server.shared.u, server.shared.observation]
    for secret in secrets:
        assert not any(secret.shape == array.shape and np.allclose(secret, array) for array in held)
    assert not hasattr(turbine, "plant")
    with pytest.raises(cf.DataError, match="measurements"):
        cf.UnitView(turbine, server, y[:10]).counterfactual(do={"pump": {"speed": 0.0}}, stop=5)
    with pytest.raises(cf.StorageError):
        cf.load_unit(alone / "server.safetensors")
    with pytest.raises(cf.StorageError):
        cf.load_server(tmp_path / "nowhere")


def test_paths_are_told_apart():
    chain = cf.random_plant(["a", "b", "c", "d"], topology="chain", rng=3)
    found = cf.fit(chain.simulate(4000, rng=4), chain, method="oracle")
    way = found.paths("a", "c", [1.0, 0.0], horizon=20)
    assert not way.direct.any()
    assert np.allclose(way.through["b"], way.total)
    assert not way.through["d"].any()
    dense = ORACLE.paths("boiler", "turbine", [1.0, 0.0], horizon=20)
    assert set(dense.through) == {"pump"}
    assert np.allclose(dense.direct + dense.through["pump"], dense.total)  # one third unit: nothing counts twice
    pair = [n for n in ("boiler", "turbine")]
    keep = np.r_[PLANT.state_slice(pair[0]), PLANT.state_slice(pair[1])]
    A, B = PLANT.A[np.ix_(keep, keep)], PLANT.B[keep, 0]
    state, rows = np.zeros(4), []
    for _ in range(20):
        state = A @ state + B
        rows.append(PLANT.block("C", "turbine") @ state[2:])
    assert np.allclose(dense.direct, rows, rtol=1e-10, atol=1e-12)
    assert "through pump" in str(dense)
    with pytest.raises(cf.OptionError, match="both"):
        ORACLE.paths("boiler", "boiler", [1.0, 0.0])


def test_a_large_target_is_reached_by_inputs_without_limits_and_limits_hold_from_where_the_input_stands():
    for size in (1e-3, 1.0, 1e5, 1e9):
        found = FOUND.restore("turbine", {"t1": size}, using={"boiler": ["speed"]}, horizon=40)
        assert found.feasible
        assert found.reached[0] == pytest.approx(size, rel=1e-3)
    narrow = cf.Channel("valve", "%", (20.0, 30.0))  # the record is nowhere near
    units = [cf.Unit("boiler", 2, [narrow, "speed"], PLANT.unit("boiler").outputs), *PLANT.units[1:]]
    plant = cf.Plant(units=units, A=PLANT.A, B=PLANT.B, C=PLANT.C, Q=PLANT.Q, R=PLANT.R)
    data = cf.Recording.from_arrays({n: (RECORDING[n].y, RECORDING[n].u) for n in NAMES}, units=plant.units)
    found = cf.fit(data, plant.locals()).restore("turbine", {"t1": 0.01}, using={"boiler": ["valve"]}, horizon=40)
    assert 20.0 - 1e-9 <= RECORDING["boiler"].u[-1, 0] + found.change["boiler"]["valve"] <= 30.0 + 1e-9


def test_adding_to_what_inputs_were_is_replacing_them_by_the_sum():
    rows = slice(4000, 4060)
    valve, speed = RECORDING["boiler"].u[rows].T
    replaced = FOUND.counterfactual(RECORDING, {"boiler": {"valve": valve + 0.1, "speed": speed - 2.0}}, 4000, 4060)
    added = FOUND.counterfactual(RECORDING, add={"boiler": {"valve": 0.1, "speed": -2.0}}, start=4000, stop=4060)
    both = FOUND.counterfactual(
        RECORDING, {"boiler": {"valve": valve + 0.1}}, 4000, 4060, add={"boiler": {"speed": -2}}
    )
    for name in NAMES:
        for found in (added, both):
            for field in ("mean", "lower", "upper"):
                np.testing.assert_allclose(
                    getattr(found[name], field), getattr(replaced[name], field), rtol=LONG, atol=LONG
                )


def test_adding_must_not_lead_beyond_the_limits():
    highest = int(RECORDING["boiler"].u[:, 0].argmax())
    room = 8.0 - RECORDING["boiler"].u[highest, 0]
    window = {"start": highest, "stop": highest + 1}
    FOUND.counterfactual(RECORDING, add={"boiler": {"valve": 0.99 * room}}, **window)
    with pytest.raises(cf.OptionError, match="'boiler', input 'valve': with this added it would leave its limits"):
        FOUND.counterfactual(RECORDING, add={"boiler": {"valve": 1.01 * room}}, **window)
