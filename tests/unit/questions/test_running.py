"""The running plant: relaxation against true twins and against a plain loop over rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import counterflow as cf
from counterflow.control import LawInput
from counterflow.errors import OptionError, StorageError, UnidentifiedError, UnstableError
from counterflow.questions.effect import AskEffect

ROWS = 700


def two_units(law, law_known=True, target=False):
    """A boiler whose valve is moved by a controller, and a turbine that both of the boiler's inputs reach."""
    loop = cf.Loop("valve", "pressure", "SP" if target else None, law if law_known else None)
    inputs = ["feed", "valve", *(["SP"] if target else [])]
    boiler = cf.Unit("boiler", states=2, inputs=inputs, outputs=["pressure", "flow"], loops=[loop])
    turbine = cf.Unit("turbine", states=2, inputs=["load"], outputs=["speed", "power"])
    A = np.array([[0.85, 0.1, 0.0, 0.05], [0.0, 0.8, 0.0, 0.0], [0.15, 0.1, 0.8, 0.0], [0.05, 0.0, 0.1, 0.7]])
    B = np.zeros((4, 3 + target))
    B[:, :2] = [[0.3, 0.25], [0.2, 0.0], [0.0, 0.05], [0.0, 0.0]]
    B[:, -1] = [0.0, 0.0, -0.2, 0.1]
    return cf.Plant(units=[boiler, turbine], A=A, B=B, C=np.eye(4), Q=0.01 * np.eye(4), R=0.01 * np.eye(4))


class World:
    """A plant run with its controller in the loop; the same seed gives the same noise in every world."""

    def __init__(self, plant, law, target=False, seed=0):
        self.plant, self.law, self.target = plant, law, target
        rng = np.random.default_rng(seed)
        self.w, self.v = 0.1 * rng.standard_normal((2, ROWS, 4))
        self.free = np.repeat(rng.uniform(-1, 1, (ROWS // 10, 2)), 10, axis=0)  # feed, load
        self.aim = np.repeat(rng.uniform(-1, 1, ROWS // 35), 35) if target else np.zeros(ROWS)
        if isinstance(law, cf.Ratio):
            self.aim = np.full(ROWS, np.nan)  # its ratio is fixed

    def run(self, added=None, raised=None, law=None, start=0):
        """Measurements and inputs; ``law`` from row ``start`` on instead of its own."""
        B, U = self.plant.B, self.plant.B.shape[1]
        u, y, h = np.zeros((ROWS, U)), np.zeros((ROWS, 4)), np.zeros(4)
        u[:, 0], u[:, -1] = self.free.T
        aim = self.aim + (0 if raised is None else raised)
        if self.target:
            u[:, 2] = aim
        if added is not None:
            u = u + added
        for t in range(ROWS):
            y[t] = h + self.v[t]
            own = law if law is not None and t >= start else self.law
            rows = slice(max(t - own.memory, 0), t + 1)
            if t >= own.memory:
                moved = u[None, t - own.memory : t, 1]
                u[t, 1] = own.output(LawInput(moved, y[None, rows, 0], aim[None, rows], t))[0]
            h = self.plant.A @ h + B @ u[t] + self.w[t]
        return y, u

    def recording(self, y, u):
        k = u.shape[1] - 1
        return cf.Recording.from_arrays(
            {"boiler": (y[:, :2], u[:, :k]), "turbine": (y[:, 2:], u[:, k:])}, units=self.plant.units
        )


class Own:
    """A law that is an object of its unit: proportional with a dead zone."""

    memory = 0

    def output(self, seen):
        error = seen.reading[:, -1]
        return -1.5 * np.sign(error) * np.maximum(np.abs(error) - 0.3, 0.0)


@pytest.mark.parametrize(
    "law", [cf.PID(1.2, 8.0), cf.PID(1.2, 8.0, limits=(-0.6, 0.6)), cf.PID(0.9, 10.0, 0.7), cf.Ratio(-0.8), Own()]
)
def test_with_the_true_plant_the_answer_is_the_true_twin(law):
    plant = two_units(law)
    world = World(plant, law)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), plant, method="oracle")
    added = np.zeros_like(u)
    added[400:500, 0] = 0.7
    truth = world.run(added)[0][400:501] - y[400:501]
    answer = found.counterfactual(
        world.recording(y, u), add={"boiler": {"feed": added[400:501, 0]}}, start=400, stop=501, controllers="reacting"
    )
    assert np.abs(truth[:, 2:]).max() > 0.05
    np.testing.assert_allclose(answer["turbine"].difference, truth[:, 2:], atol=1e-8)
    np.testing.assert_allclose(answer["boiler"].difference, truth[:, :2], atol=1e-8)
    assert answer["turbine"].controllers == "reacting"
    held = found.counterfactual(
        world.recording(y, u), add={"boiler": {"feed": added[400:501, 0]}}, start=400, stop=501, controllers="held"
    )
    assert held["turbine"].controllers == "held"
    assert np.abs(held["turbine"].difference - truth[:, 2:]).max() > 0.05


def test_a_set_point_moves_what_its_controller_moves():
    law = cf.PID(1.2, 8.0)
    plant = two_units(law, target=True)
    world = World(plant, law, target=True)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), plant, method="oracle")
    raised = np.zeros(ROWS)
    raised[400:470] = 0.5
    truth = world.run(raised=raised)[0][400:470] - y[400:470]
    answer = found.counterfactual(
        world.recording(y, u), add={"boiler": {"SP": 0.5}}, start=400, stop=470, controllers="reacting"
    )
    np.testing.assert_allclose(answer["turbine"].difference, truth[:, 2:], atol=1e-8)
    reactions = answer["boiler"].running
    assert reactions.mean("pressure").mean == pytest.approx(truth[:, 0].mean(), abs=1e-8)


def test_an_input_that_is_changed_is_taken_out_of_its_controllers_hands():
    law = cf.PID(1.2, 8.0)
    plant = two_units(law)
    world = World(plant, law)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), plant, method="oracle")
    asked = {"add": {"boiler": {"valve": 0.4}}, "start": 300, "stop": 350}
    worlds = [found.counterfactual(world.recording(y, u), controllers=c, **asked) for c in ("held", "reacting")]
    np.testing.assert_allclose(worlds[0]["turbine"].difference, worlds[1]["turbine"].difference, atol=1e-9)


def from_logs(law, target=False, law_known=True, seed=0):
    plant = two_units(law, law_known, target)
    world = World(plant, law, target, seed)
    y, u = world.run()
    recording = world.recording(y, u)
    return world, y, u, recording, cf.fit(recording)


@pytest.fixture(scope="module")
def logged():
    return from_logs(cf.PID(1.2, 8.0, limits=(-3.0, 3.0)), target=True, law_known=False)


def test_from_logs_relaxation_is_the_plain_loop_over_rows(logged):
    """Every replicate of the network, with the law asked row by row, as nobody would compute it."""
    _, y, u, recording, found = logged
    start, n = 400, 60
    answer = found.counterfactual(
        recording, add={"boiler": {"feed": 0.6}}, start=start, stop=start + n, controllers="reacting"
    )
    server, network = found.server, found.couplings.network
    law = found.controllers["boiler"][0].law
    r, p, K = network.size, network.memory, len(network.linear)
    rows = server.grounded.standard_rows
    z = np.repeat(rows[None, start - p : start + n], K, axis=0).copy()
    residual = rows[start : start + n, :r] - network.predicted(rows[start - p : start + n])
    C = found.parts["boiler"].model.C[0][: network.numbers[0]]
    moved = np.repeat(u[None, start - 1 : start + n, 1], K, axis=0)
    left = u[start : start + n, 1] - [
        law.output(LawInput(u[None, t - 1 : t, 1], y[None, t - 1 : t + 1, 0], u[None, t - 1 : t + 1, 2], t))[0]
        for t in range(start, start + n)
    ]
    gap = np.zeros((K, n + 1))  # of the reading, the row before first
    for i in range(n):
        new, _ = network.run(z[:, i : i + p], z[:, p + i - 1 : p + i, r:], residual[:, i : i + 1])
        z[:, p + i, :r] = new[:, 0]
        change = (z[:, p + i, :r] - rows[start + i, :r]) * network.scale[:r]
        gap[:, i + 1] = change[:, network.number_slices[0]] @ C
        t = start + i
        reading = y[t - 1 : t + 1, 0] + gap[:, i : i + 2]
        said = law.output(LawInput(moved[:, i : i + 1], reading, np.repeat(u[None, t - 1 : t + 1, 2], K, axis=0), t))
        moved[:, i + 1] = np.clip(said + left[i], *law.limits)
        z[:, p + i, r:] = rows[t, r:]
        z[:, p + i, r + 1] += (moved[:, i + 1] - u[t, 1]) / network.scale[r + 1]
        z[:, p + i, r] += 0.6 / network.scale[r]
    numbers = network.number_slices[1]
    wanted = (z[:, p:, numbers] - rows[start : start + n, numbers]) * network.scale[numbers]
    wide = found.parts["turbine"].model.C[:, : network.numbers[1]]
    np.testing.assert_allclose(answer["turbine"].difference, wanted.mean(axis=0) @ wide.T, atol=1e-7)


def test_from_logs_the_law_is_learned_and_the_running_plant_answered(logged):
    world, y, u, recording, found = logged
    controller = found.controllers["boiler"][0]
    assert controller.law.gain == pytest.approx(1.2, rel=0.01)
    assert controller.law.integral_time == pytest.approx(8.0, rel=0.01)
    added, raised = np.zeros_like(u), np.zeros(ROWS)
    added[500:560, 0], raised[500:560] = 0.8, 0.5
    for more, asked in ((world.run(added), {"feed": 0.8}), (world.run(raised=raised), {"SP": 0.5})):
        truth = more[0][500:560, 2:] - y[500:560, 2:]
        answer = found.counterfactual(recording, add={"boiler": asked}, start=500, stop=560)["turbine"]
        assert answer.controllers == "reacting"
        error = np.square(answer.difference - truth).sum() / np.square(truth).sum()
        assert error < 0.1
        assert (answer.lower < answer.upper).all()


def test_from_now_on_both_worlds_run(logged):
    found = logged[-1]
    answer = found.effect("boiler", "boiler", {"SP": 0.5}, horizon=60)
    assert answer.controllers == "reacting"
    assert answer.mean[-1, 0] == pytest.approx(0.5, abs=0.1)  # the loop has an integral: the reading goes where it aims
    assert "controllers-reacting" in {caveat.code for caveat in answer.caveats}
    held = found.effect("boiler", "boiler", {"SP": 0.5}, horizon=60, controllers="held")
    assert np.abs(held.mean).max() < 0.1
    assert "controllers-held" in {caveat.code for caveat in held.caveats}


def test_a_saved_fit_answers_the_same(logged, tmp_path):
    found = logged[-1]
    found.save(tmp_path / "fit")
    read = cf.load(tmp_path / "fit")
    one, two = (each.effect("boiler", "turbine", {"feed": 0.5}, horizon=30) for each in (found, read))
    np.testing.assert_array_equal(one.mean, two.mean)
    assert two.controllers == "reacting"


def test_a_loop_that_does_not_settle_is_refused():
    law = cf.PID(1.2, 8.0)
    plant = two_units(law)
    world = World(plant, law)
    y, u = world.run()
    wild = two_units(cf.PID(-30.0, 1.0))  # the sign is wrong, and it is far too strong
    recording = cf.Recording.from_arrays(
        {"boiler": (y[:, :2], u[:, :2]), "turbine": (y[:, 2:], u[:, 2:])}, units=wild.units
    )
    found = cf.fit(recording)
    if found.controllers["boiler"][0].usable:
        with pytest.raises(UnstableError) as error:
            found.effect("boiler", "turbine", {"feed": 0.5}, horizon=60, controllers="reacting")
        assert error.value.code == "unstable-loop"
    else:  # a law that is so wrong tells nothing of the record, and is not used
        with pytest.raises(OptionError):
            found.effect("boiler", "turbine", {"feed": 0.5}, horizon=60, controllers="reacting")


def test_without_controllers_there_is_one_world():
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    found = cf.fit(plant.simulate(300, rng=2), plant.locals())
    answer = found.effect("boiler", "turbine", {"u1": 1.0}, horizon=5)
    assert answer.controllers == "held"
    assert not {caveat.code for caveat in answer.caveats} & {"controllers-held", "controllers-reacting"}
    with pytest.raises(OptionError) as error:
        found.effect("boiler", "turbine", {"u1": 1.0}, horizon=5, controllers="reacting")
    assert error.value.code == "no-controllers"
    with pytest.raises(OptionError, match="held"):
        found.effect("boiler", "turbine", {"u1": 1.0}, horizon=5, controllers="asleep")


def test_with_models_intervals_come_from_draws_of_the_couplings():
    law = cf.PID(1.2, 8.0)
    plant = two_units(law, target=True)
    world = World(plant, law, target=True)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording, plant.locals())
    added = np.zeros_like(u)
    added[500:560, 0] = 0.8
    truth = world.run(added)[0][500:560, 2:] - y[500:560, 2:]
    answer = found.counterfactual(recording, add={"boiler": {"feed": 0.8}}, start=500, stop=560)["turbine"]
    assert answer.controllers == "reacting"
    assert np.square(answer.difference - truth).sum() < 0.1 * np.square(truth).sum()
    assert ((answer.lower - answer.was <= truth) & (truth <= answer.upper - answer.was)).mean() > 0.8


def test_every_question_can_be_asked_of_both_worlds(logged):
    _, _, u, recording, found = logged
    way = found.restore("turbine", {"speed": 0.2}, using={"boiler": ["SP"]}, horizon=60, controllers="reacting")
    assert way.feasible
    back = found.effect("boiler", "turbine", dict(way.change["boiler"]), horizon=60, controllers="reacting")
    assert back.mean[-1, 0] == pytest.approx(0.2, rel=0.01)
    split = found.attribute(recording, "turbine", 500, 560, controllers="reacting")
    assert split.controllers == "reacting"
    np.testing.assert_allclose(sum(split.shares.values()), split.departure, atol=1e-9)
    assert set(split.compensated) == {"boiler", "turbine"}
    held = found.attribute(recording, "turbine", 500, 560, controllers="held")
    assert not held.compensated
    ahead = found.forecast(recording, horizon=40, controllers="reacting")["boiler"]
    aim = u[-1, 2]
    assert ahead.mean[-1, 0] == pytest.approx(aim, abs=0.15)  # the loop brings the reading to its target
    assert "controllers go on" in ahead.sentence()


@pytest.mark.parametrize("other", [cf.Manual(), cf.PID(0.6, 15.0)])
@pytest.mark.parametrize("target", [True, False])
def test_a_loop_in_manual_or_tuned_otherwise(other, target):
    law = cf.PID(1.2, 8.0)
    plant = two_units(law, target=target)
    world = World(plant, law, target=target)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), plant, method="oracle").with_laws({"boiler": {"valve": other}})
    truth = world.run(law=other, start=400)[0][400:480] - y[400:480]
    answer = found.counterfactual(world.recording(y, u), add={"boiler": {"feed": 0.0}}, start=400, stop=480)
    assert np.abs(truth[:, 2:]).max() > 0.02
    np.testing.assert_allclose(answer["turbine"].difference, truth[:, 2:], atol=1e-6)


def test_another_law_needs_a_loop(logged):
    found = logged[-1]
    with pytest.raises(cf.UnknownNameError):
        found.with_laws({"boiler": {"feed": cf.Manual()}})
    with pytest.raises(OptionError):
        found.with_laws({"boiler": {"valve": 3.0}})


MANUAL = {"boiler": {"valve": cf.Manual()}}


def codes(answer):
    return {caveat.code for caveat in answer.caveats}


def test_answers_say_which_laws_they_are_about(logged):
    """By ``with_laws``, and by the request: the same words, and the same caveats, in every unit's answer."""
    _, _, _, recording, found = logged
    opened = found.with_laws(MANUAL)
    change = ("boiler", "turbine", {"feed": 0.5}, 30)
    answer, same = opened.effect(*change), found.ask(AskEffect(*change, laws=MANUAL))
    assert "boiler valve in manual" in answer.sentence()
    assert answer.sentence() == same.sentence()
    assert answer.caveats == same.caveats
    assert [c for c in answer.caveats if c.code == "law-supposed" and "valve is supposed to be in manual" in c.text]
    own = opened.effect("boiler", "boiler", {"feed": 0.5}, 30)
    assert "law-supposed" in codes(own)
    assert "law-learned" not in codes(own)
    assert "law-learned" in codes(found.effect("boiler", "boiler", {"feed": 0.5}, 30))
    assert "boiler valve in manual" in opened.forecast(recording, horizon=20)["turbine"].sentence()
    assert "boiler valve in manual" in opened.attribute(recording, "turbine", 500, 560).sentence()


@pytest.mark.parametrize(
    "change", [{}, {"do": {}}, {"add": {"boiler": {"feed": 0.0}}}, {"add": {"boiler": np.zeros((60, 3))}}]
)
def test_with_other_laws_nothing_else_need_change(logged, change):
    _, _, _, recording, found = logged
    answer = found.with_laws(MANUAL).counterfactual(recording, start=500, stop=560, **change)["boiler"]
    assert answer.sentence().startswith("Had boiler valve been in manual in rows 500 to 559 (controllers react), ")
    assert np.abs(answer.difference).max() > 0.1
    with pytest.raises(OptionError, match="not empty"):
        found.counterfactual(recording, start=500, stop=560)


def test_other_laws_are_about_the_running_plant(logged):
    opened = logged[-1].with_laws(MANUAL)
    for refused in (
        lambda: opened.effect("boiler", "turbine", {"feed": 0.5}, 30, controllers="held"),
        lambda: opened.paths("boiler", "turbine", {"feed": 0.5}, 30),
    ):
        with pytest.raises(OptionError) as error:
            refused()
        assert error.value.code == "laws-held"


def test_another_law_that_does_not_settle_is_refused_in_every_world(logged):
    wild = logged[-1].with_laws({"boiler": {"valve": cf.PID(400.0, 1.0)}})
    for controllers in (None, "reacting"):
        with pytest.raises(UnstableError, match="supposed to follow other laws") as error:
            wild.effect("boiler", "turbine", {"feed": 0.5}, 60, controllers=controllers)
        assert error.value.code == "unstable-loop"
        assert "has run with them" not in str(error.value)


def test_other_laws_are_saved_or_saving_is_refused(logged, tmp_path):
    found = logged[-1]
    opened = found.with_laws({"boiler": {"valve": cf.PID(0.6, 15.0)}})
    opened.save(tmp_path / "fit")
    read = cf.load(tmp_path / "fit")
    one, two = (each.effect("boiler", "turbine", {"feed": 0.5}, 30) for each in (opened, read))
    np.testing.assert_array_equal(one.mean, two.mean)
    assert one.sentence() == two.sentence()
    assert "under PI: gain 0.6, integral time 15" in two.sentence()
    with pytest.raises(StorageError, match="'boiler': valve is supposed to follow law Own") as error:
        found.with_laws({"boiler": {"valve": Own()}}).save(tmp_path / "other")
    assert error.value.code == "law-not-stored"
    assert not (tmp_path / "other").exists()


def hostile(output, memory=1):
    return type("Hostile", (), {"memory": memory, "output": lambda self, seen: output(seen)})()


def write(seen):
    seen.reading[:] = 0.0
    return seen.moved[:, -1]


@pytest.mark.parametrize("memory", [-1, 1.5, 10**9, True, "1", np.nan])
def test_a_law_with_a_memory_that_makes_no_sense_is_refused_when_it_is_given(logged, memory):
    law = hostile(lambda seen: seen.moved[:, -1], memory)
    with pytest.raises(OptionError, match="'boiler', 'valve': the memory of law Hostile") as error:
        logged[-1].with_laws({"boiler": {"valve": law}})
    assert error.value.code == "law-fails"
    with pytest.raises(cf.ModelError, match="Loop of 'valve': the memory of law Hostile"):
        cf.Loop("valve", "pressure", law=law)


def test_a_class_is_no_law():
    with pytest.raises(cf.ModelError, match="the class PID is no law"):
        cf.Loop("valve", "pressure", law=cf.PID)


@pytest.mark.parametrize(
    "output",
    [
        lambda seen: 1 / 0,
        lambda seen: np.zeros(len(seen.reading) + 2),
        lambda seen: seen.moved[:, -1:],
        lambda seen: np.full(len(seen.reading), np.nan),
        lambda seen: np.full(len(seen.reading), np.inf),
        lambda seen: None,
        lambda seen: "open",
        lambda seen: seen.moved[:, -1] + 1j,
        write,
    ],
)
def test_a_law_that_fails_is_named_with_its_unit_and_loop(logged, output):
    _, _, _, recording, found = logged
    broken = found.with_laws({"boiler": {"valve": hostile(output)}})
    for refused in (
        lambda: broken.effect("boiler", "turbine", {"feed": 0.5}, 10),
        lambda: broken.counterfactual(recording, start=500, stop=510),
    ):
        with pytest.raises(cf.ModelError, match="unit 'boiler', the loop that moves valve: law Hostile") as error:
            refused()
        assert (error.value.code, error.value.scope) == ("law-fails", "boiler")


def test_a_given_law_that_fails_is_named_when_it_is_fitted():
    law = cf.PID(1.2, 8.0)
    y, u = World(two_units(law), law).run()
    units = two_units(hostile(lambda seen: 1 / 0)).units
    rows = {"boiler": (y[:, :2], u[:, :2]), "turbine": (y[:, 2:], u[:, 2:])}
    recording = cf.Recording.from_arrays(rows, units=units)
    with pytest.raises(cf.ModelError, match=r"unit 'boiler', the loop that moves valve: .*ZeroDivisionError"):
        cf.fit(recording)


@pytest.mark.parametrize("leaving", [SystemExit, KeyboardInterrupt])
def test_whoever_stops_the_program_in_a_law_stops_it(logged, leaving):
    def stop(seen):
        raise leaving

    with pytest.raises(leaving):
        logged[-1].with_laws({"boiler": {"valve": hostile(stop)}}).effect("boiler", "turbine", {"feed": 0.5}, 10)


def test_what_is_nothing_beside_the_others_is_not_told(logged):
    _, _, _, recording, found = logged
    split = found.attribute(recording, "turbine", 500, 560, controllers="reacting")
    nothing = replace(split, compensated={**split.compensated, "turbine": np.full((60, 2), -1.6e-15)})
    assert [name for name, _ in nothing.taken("speed")] == ["boiler"]
    assert "e-15" not in nothing.sentence("speed")


def test_refusals_of_a_loop_that_never_moved_do_not_point_at_each_other(monkeypatch):
    """Neither world is answered: both refusals ask for other rows, and neither for the other world."""
    _, _, _, recording, found = from_logs(cf.PID(1.2, 8.0), law_known=False)
    assert found.controllers["boiler"][0].locked
    monkeypatch.setattr("counterflow.questions.closed_loop.ClosedLoop.dies_away", lambda loop: False)
    asked = {"add": {"boiler": {"feed": 0.8}}, "start": 500, "stop": 560}
    with pytest.raises(UnstableError) as reacting:
        found.counterfactual(recording, controllers="reacting", **asked)
    with pytest.raises(UnidentifiedError) as held:
        found.counterfactual(recording, **asked)
    assert "held" not in str(reacting.value)
    assert "reacting" not in str(held.value)
    assert "fit rows in which targets or test signals have moved" in str(reacting.value)
    assert "Record rows in which the target, or a test signal, moves" in str(held.value)


def test_where_a_target_never_moved_only_the_running_plant_is_answered():
    world, y, u, recording, found = from_logs(cf.PID(1.2, 8.0), law_known=False)
    assert found.controllers["boiler"][0].locked
    added = np.zeros_like(u)
    added[500:560, 0] = 0.8
    truth = world.run(added)[0][500:560, 2:] - y[500:560, 2:]
    asked = {"add": {"boiler": {"feed": 0.8}}, "start": 500, "stop": 560}
    answer = found.counterfactual(recording, **asked)["turbine"]
    assert answer.controllers == "reacting"
    assert np.square(answer.difference - truth).sum() < 0.2 * np.square(truth).sum()
    for refused in (
        lambda: found.counterfactual(recording, controllers="held", **asked),
        lambda: found.effect("boiler", "turbine", {"valve": 0.1}, horizon=10),
    ):
        with pytest.raises(UnidentifiedError) as error:
            refused()
        assert error.value.code == "loop-never-moved"
