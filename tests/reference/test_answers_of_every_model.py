"""Answers of every kind of model are those of 0.1's last state: means to 1e-9, intervals to one hundredth.

``answers_of_every_model.npz`` was written by this file before models had one interface (logs-gaps, logs-curved and
logs-updated: since several learners answer):
``python tests/reference/test_answers_of_every_model.py FILE``. Beside ``test_answers_of_0_1``: fits from logs, linear
and curved, with a change, with gaps, with controllers, by moments, updated; and all that an interval is made of.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import closed_plant
import numpy as np
import pytest

import counterflow as cf

STORED = Path(__file__).with_name("answers_of_every_model.npz")
SAME = 1e-9  # of the largest number beside it
NOTHING = 1e-7  # of outputs that move by about one: an effect below it is nothing
ALIKE = 0.01  # of an interval's half width
CHAIN = cf.random_plant(units=["a", "b", "c"], states=2, outputs=3, inputs=2, topology="chain", rng=5)
NAMES, ROWS = ("a", "b", "c"), 420
OTHER_INTERVALS = {  # where 0.1 had two rules for one thing; both now follow that of effects with controllers held
    # an effect that no replicate has found may be as large as could have been missed, also where controllers react
    ("logs-loops", "past pump reacting 205"),
    # draws of a linear model's couplings make the band of a forecast as they make that of an effect: 1.1 % off
    ("models-loops", "forecast reacting"),
}
Arrays = dict[str, Any]


@cache
def chain() -> cf.Recording:
    return CHAIN.simulate(499, rng=6)


@cache
def gaps() -> cf.Recording:
    """One unit is not read for a while, single channels of another come and go."""
    parts = {name: (chain()[name].y.copy(), chain()[name].u) for name in NAMES}
    parts["b"][0][200:230] = np.nan
    parts["c"][0][np.random.default_rng(1).random(parts["c"][0].shape) < 0.03] = np.nan
    return cf.Recording.from_arrays(parts, units=CHAIN.units)


def simulated(curve: float, changed: int | None = None, early: bool = False) -> cf.Recording:
    """Inputs of a, b and c; a moves b, with a square, b moves c; from row ``changed`` on, b feels a by less."""
    rng = np.random.default_rng(8)
    u, y = np.repeat(rng.uniform(-1, 1, (130, 3)), 5, axis=0), np.zeros((650, 3))
    for t in range(1, 650):
        gain = 0.3 if changed is not None and t >= changed else 1.0
        now = u[t] if early else u[t - 1]
        a, b, c = y[t - 1]
        y[t] = 0.7 * a + 0.4 * now[0], 0.6 * b + gain * (0.4 * a + curve * a * a), 0.7 * c + 0.4 * b
        y[t] += 0.03 * rng.standard_normal(3)
    return cf.Recording.from_arrays({name: (y[:, [k]] + 2, u[:, [k]] + 1) for k, name in enumerate(NAMES)})


def relays() -> cf.Recording:
    """A pump of a is switched by its level, which b feels."""
    rng, law = np.random.default_rng(9), cf.Relay(-0.4, 0.4, 1.0, -1.0)
    loop = cf.Loop("pump", "level", law=law)
    units = [cf.Unit("a", 1, ["feed", "pump"], ["level"], loops=[loop]), cf.Unit("b", 1, ["load"], ["flow"])]
    free, u, y, on = np.repeat(rng.uniform(-0.5, 0.5, (50, 2)), 10, axis=0), np.zeros((500, 3)), np.zeros((500, 2)), 0
    u[:, [0, 2]] = free
    for t in range(500):
        if t:
            y[t] = 0.9 * y[t - 1, 0] + 0.2 * u[t - 1, :2].sum(), 0.7 * y[t - 1, 1] + 0.3 * (y[t - 1, 0] + u[t - 1, 2])
            y[t] += 0.03 * rng.standard_normal(2)
        on = 1 if y[t, 0] < -0.4 else 0 if y[t, 0] > 0.4 else on
        u[t, 1] = 1.0 if on else -1.0
    return cf.Recording.from_arrays({"a": (y[:, :1], u[:, :2]), "b": (y[:, 1:], u[:, 2:])}, units=units)


def limited() -> cf.Recording:
    """As moments from logs need it: outputs with limits."""
    units = [
        cf.Unit(n, 2, unit.inputs, [cf.Channel(c.name, limits=(-5.0, 5.0)) for c in unit.outputs])
        for n, unit in zip(NAMES, CHAIN.units, strict=True)
    ]
    return cf.Recording.from_arrays({name: (chain()[name].y, chain()[name].u) for name in NAMES}, units=units)


def by_moments() -> cf.Privacy:
    return cf.Privacy(epsilon=60.0, delta=1e-6, release="moments", seed=3)


def grown(recording: cf.Recording, models: Any, *steps: int) -> cf.Fit:
    fit = cf.fit(recording.slice(0, steps[0]), models)
    for start, stop in pairwise(steps):
        fit = fit.update(recording.slice(start, stop))
    return fit


Case = tuple[Callable[[], cf.Recording], Callable[[cf.Recording], cf.Fit]]
CASES: dict[str, Case] = {
    "edges": (chain, lambda rows: cf.fit(rows.slice(0, ROWS), CHAIN.locals(), edges=[("a", "b"), ("b", "c")])),
    "gaps": (gaps, lambda rows: cf.fit(rows.slice(0, ROWS), CHAIN.locals(), estimate="all")),
    "models-updated": (chain, lambda rows: grown(rows, CHAIN.locals(), 380, ROWS, 460)),
    "models-loops": (
        closed_plant.recording,
        lambda rows: cf.fit(rows.slice(0, ROWS), closed_plant.plant().locals()),
    ),
    "models-moments": (chain, lambda rows: cf.fit(rows.slice(0, ROWS), CHAIN.locals(), privacy=by_moments())),
    "logs": (chain, lambda rows: cf.fit(rows.slice(0, ROWS))),
    "logs-gaps": (gaps, lambda rows: cf.fit(rows.slice(0, ROWS), rank=2)),
    "logs-early": (lambda: simulated(0.0, early=True), lambda rows: cf.fit(rows.slice(0, ROWS), same_row=True)),
    "logs-curved": (lambda: simulated(1.2), lambda rows: cf.fit(rows.slice(0, 600))),
    "logs-changed": (lambda: simulated(0.0, 220), lambda rows: cf.fit(rows.slice(0, ROWS))),
    "logs-updated": (lambda: simulated(1.2), lambda rows: grown(rows, None, 560, 565, 570, 630, 635)),
    "logs-loops": (closed_plant.recording, lambda rows: cf.fit(rows.slice(0, ROWS))),
    "logs-relays": (relays, lambda rows: cf.fit(rows.slice(0, ROWS))),
    "logs-moments": (limited, lambda rows: cf.fit(rows.slice(0, ROWS), privacy=by_moments())),
}


def ends(name: str, answer: Any) -> Arrays:
    """Mean and interval of every channel, and of the means over windows."""
    out = {name: answer.mean}
    if answer.lower is not None:
        out |= {f"{name}/lower": answer.lower, f"{name}/upper": answer.upper}
    if name.startswith(("effect", "past")):
        first = getattr(answer, "first", 0)
        whole = answer.window(first + 1, first + 4).mean
        out |= {f"{name}/window": whole.value}
        if whole.lower is not None:
            out |= {f"{name}/window/lower": whole.lower, f"{name}/window/upper": whole.upper}
    return out


def answers(fit: cf.Fit, whole: cf.Recording) -> Arrays:
    """What a fit says to every question that it does not refuse; of rows it has learned from, and of later ones."""
    names, out = fit.names, {}
    first, last = names[0], names[-1]
    moved = fit.plant.unit(first).input_names[0]
    seen = whole.slice(0, fit.server.rows if fit.server.shared is not None else ROWS)

    def effect(world: str) -> Arrays:
        return ends(f"effect {world}", fit.effect(first, last, {moved: 0.3}, 12, 7, controllers=world)) | ends(
            f"effect own {world}", fit.effect(first, first, {moved: 0.3}, 5, controllers=world)
        )

    def past(world: str, rows: cf.Recording, start: int) -> Arrays:
        do = {first: {moved: 0.1}}
        found = fit.counterfactual(rows, do=do, start=start, stop=start + 24, controllers=world)
        return {
            key: value
            for name in (first, last)
            for key, value in ends(f"past {name} {world} {start}", found[name]).items()
        }

    def forecast(world: str) -> Arrays:
        return ends(f"forecast {world}", fit.forecast(seen, 8, {first: {moved: 0.2}}, controllers=world)[last])

    def attribution(world: str) -> Arrays:
        found = fit.attribute(seen, last, 190, 205, controllers=world)
        return {f"attribution {world}/{name}": share for name, share in found.shares.items()}

    def restoration(world: str) -> Arrays:
        channel = fit.plant.unit(last).output_names[0]
        found = fit.restore(last, {channel: 0.05}, [first], 20, controllers=world)
        return {f"restoration {world}": [value for each in found.change.values() for value in each.values()]}

    def paths() -> Arrays:
        found = fit.paths(first, last, {moved: 0.3}, horizon=10)
        return {"paths": found.total, "direct": found.direct} | {f"through {n}": v for n, v in found.through.items()}

    def graph() -> Arrays:
        return {"graph": [[e.p_value, e.direct_strength, e.total_strength] for e in fit.graph()]}

    def predictor() -> Arrays:
        now, told = fit.predictor(), []
        for t in range(fit.server.rows, fit.server.rows + 6):
            told.append(now.predicted)
            values = {name: part.message(whole[name].y[t]) for name, part in fit.parts.items() if t % 3 or name != last}
            now, _ = now.step(values, {name: whole[name].u[t] for name in names})
        return {"predictor": np.array(told)}

    def checks() -> Arrays:
        return {"checks": [check.number for check in fit.check().checks]}

    def checks_of_later() -> Arrays:
        return {"checks of other rows": [check.number for check in fit.check(whole.slice(250, 450)).checks]}

    questions = [paths, graph, predictor, checks, checks_of_later]
    for world in ("held", "reacting"):
        questions += [
            lambda world=world: effect(world), lambda world=world: past(world, seen, 205),
            lambda world=world: forecast(world), lambda world=world: attribution(world),
            lambda world=world: restoration(world),
        ]  # fmt: skip
    questions.append(lambda: past("held", whole, 415))
    for question in questions:
        try:
            out |= question()
        except cf.CounterflowError:  # which questions are refused is tested elsewhere
            continue
    return {key: np.asarray(value, float) for key, value in out.items()}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_before(case: str) -> None:
    with np.load(STORED) as file:
        stored = {key.partition("|")[2]: file[key] for key in file.files if key.startswith(f"{case}|")}
    recorded, fitted = CASES[case]
    whole = recorded()
    found = answers(fitted(whole), whole)
    assert set(found) == set(stored)
    for key, wanted in stored.items():
        name, _, end = key.rpartition("/")
        if end in ("lower", "upper"):
            half = (stored[f"{name}/upper"] - stored[f"{name}/lower"]) / 2
            known = np.isfinite(wanted)
            if (case, name.removesuffix("/window")) in OTHER_INTERVALS:
                continue
            assert np.array_equal(np.isfinite(found[key]), known)
            off = np.abs(found[key] - wanted)[known] - SAME * np.abs(wanted[known]).max()
            assert (off <= ALIKE * half[known]).all(), f"{case}: {key}: {(off / half[known]).max():.3f}"
            continue
        scale = float(np.abs(np.nan_to_num(wanted)).max(initial=0.0)) or 1.0
        atol = SAME * max(scale, NOTHING)
        np.testing.assert_allclose(found[key], wanted, rtol=0, atol=atol, err_msg=f"{case}: {key}")


if __name__ == "__main__":
    kept = {}
    for case, (recorded, fitted) in CASES.items():
        rows = recorded()
        kept |= {f"{case}|{key}": value for key, value in answers(fitted(rows), rows).items()}
    np.savez_compressed(sys.argv[1], **kept)
