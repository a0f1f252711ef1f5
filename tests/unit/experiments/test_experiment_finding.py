"""The comparison of methods: what it computes, and that its verdicts follow from results."""

from __future__ import annotations

import numpy as np
import pytest
from paper_results import KEYS, compared
from tolerances import EXACT

import counterflow as cf
from counterflow.paper.experiments import conditions, figures, finding
from counterflow.paper.experiments.conditions import Conditions
from counterflow.paper.experiments.effects import (
    METHODS,
    coupling_error,
    effect_error,
    recorded,
    responses,
    without_gains,
)
from counterflow.paper.experiments.experiment import Outcome, Task
from counterflow.paper.experiments.finding import Finding, Repair


@pytest.fixture(scope="module")
def computed() -> Outcome:
    task = Task(
        "finding", {"part": "methods", "units": 2, "pole": 0.9, "plant": 1, "steps": 200, "rounds": 5}
    )  # fmt: skip
    return Outcome(task, Finding.compute(task), 1.0)


def test_every_method_is_measured_on_the_same_rows(computed: Outcome) -> None:
    assert set(computed.values) == {f"{method}/{key}" for method in METHODS for key in KEYS}
    plant = cf.random_plant(units=2, rng=1)
    recording = recorded(plant, 200, 4001, 0.9)
    found = cf.fit(recording, plant.locals())
    assert computed.array("sufficient/B") == pytest.approx(coupling_error(found.plant, plant), rel=EXACT)
    error = effect_error(responses(found.plant), responses(plant))
    assert computed.array("sufficient/effects") == pytest.approx(error, rel=EXACT)
    mask = np.kron(1 - np.eye(2), np.ones((2, 2))).astype(bool)
    inside = np.abs(found.plant.B - plant.B)[mask] < 1.959964 * found.standard_errors.B[mask]
    assert computed.array("sufficient/covered") == inside.mean()
    published = cf.fit(recording, plant.locals(), method="penalty", xi=0.1)
    assert computed.array("penalty-small/B") == pytest.approx(coupling_error(published.plant, plant), rel=EXACT)


def test_intervals_of_effects_are_counted_one_by_one(computed: Outcome) -> None:
    plant = cf.random_plant(units=2, rng=1)
    found = cf.fit(recorded(plant, 200, 4001, 0.9), plant.locals())
    hits = []
    for (effect, cause), truth in responses(plant).items():
        for channel in (0, 1):
            answer = found.effect(cause, effect, {f"u{channel + 1}": 1.0}, horizon=20)
            hits.append((answer.lower <= truth[:, :, channel]) & (truth[:, :, channel] <= answer.upper))
    assert computed.array("sufficient/covered-effects") == pytest.approx(np.mean(hits), rel=EXACT)
    assert np.isnan(computed.array("granger/covered-effects"))


def test_extremes_are_as_they_must_be(computed: Outcome) -> None:
    assert computed.array("oracle/R2") == 1.0
    assert computed.array("local/R2") == computed.array("fedgc/R2") == 0.0
    assert computed.array("oracle/prediction") < computed.array("sufficient/prediction")
    assert computed.array("sufficient/prediction") < computed.array("local/prediction")
    assert computed.array("centralized/B") == pytest.approx(computed.array("sufficient/B"), rel=1e-9)


def test_every_method_has_its_cost(computed: Outcome) -> None:
    rounds = dict.fromkeys(("steps", "lagrangian", "hybrid"), 5.0)  # as many as were asked for
    rounds |= {"local": 0.0, "oracle": 0.0, "granger": 1.0, "sufficient": 1.0, "centralized": 1.0}
    assert {method: computed.array(f"{method}/rounds") for method in rounds} == rounds
    assert {m for m in METHODS if computed.array(f"{m}/bytes") == 0} == {"local", "oracle"}
    known = {m for m in METHODS if np.isfinite(computed.array(f"{m}/covered"))}
    assert known == {"granger", "sufficient", "centralized"}, "the others have no standard errors"


def test_conditions_change_what_they_say() -> None:
    plain = cf.random_plant(rng=3)
    blocks = {kind: conditions.changed_plant(kind, 3) for kind in ("only A", "only B", "weak", "strong", "slow", "")}
    assert blocks[""] == plain
    assert not blocks["only A"].block("B", "unit1", "unit2").any()
    assert (blocks["only A"].A == plain.A).all()
    assert not blocks["only B"].block("A", "unit1", "unit2").any()
    np.testing.assert_allclose(blocks["weak"].block("B", "unit2", "unit1") * 3, plain.block("B", "unit2", "unit1"))
    np.testing.assert_allclose(blocks["strong"].block("B", "unit2", "unit1"), 3 * plain.block("B", "unit2", "unit1"))
    assert (blocks["strong"].block("B", "unit1") == plain.block("B", "unit1")).all()
    assert np.isreal(np.linalg.eigvals(blocks["slow"].local("unit2").A)).all()


def test_a_condition_is_computed_at_every_weight() -> None:
    task = Task(
        "finding",
        {"part": "conditions", "condition": "white, mean 1", "plant": 0, "steps": 300, "xi": [0.1, 10.0]},
    )
    values = Finding.compute(task)
    plant = cf.random_plant(rng=0)
    recording = recorded(plant, 300, 100, mean=1.0)
    assert recording["unit1"].u.mean() == pytest.approx(1.0, abs=0.2)
    found = cf.fit(recording, plant.locals(), method="penalty", xi=10.0)
    np.testing.assert_allclose(np.asarray(values["B"])[1], coupling_error(found.plant, plant), rtol=EXACT)
    ratio = np.mean([found.history.client_loss[n][-1] / found.history.proprietary_loss[n][-1] for n in plant.names])
    np.testing.assert_allclose(np.asarray(values["train"])[1], ratio, rtol=EXACT)
    assert values["default/server"] >= values["default/oracle"] * 0.99


def test_a_cell_of_the_region_is_computed_at_every_mean_and_weight() -> None:
    settings = {"part": "region", "inputs": 1, "kind": "only B", "noise": 0.01, "pole": 0.0, "plant": 0, "steps": 600}
    values = Finding.compute(Task("finding", {**settings, "means": [0.0, 5.0], "xi": [10.0, 1e6]}))
    plant = conditions.changed_plant("only B", 0, inputs=1, measurement_noise=0.01)
    assert plant.R[0, 0] == 0.01
    recording = recorded(plant, 600, 100, mean=5.0)
    found = cf.fit(recording, plant.locals(), method="penalty", xi=1e6)
    B, R2 = np.asarray(values["B"]), np.asarray(values["R2"])
    np.testing.assert_allclose(B[1, 1], coupling_error(found.plant, plant), rtol=EXACT)
    assert R2[0].max() < 0.1  # nothing without a mean
    assert R2[1, 1] > 0.99  # and nearly all with one


def test_the_repair_is_computed_in_every_row_of_its_table() -> None:
    settings = {"part": "repair", "noise": 0.01, "pole": 0.0, "plant": 1, "steps": 500}
    values = Finding.compute(Task("finding", settings))
    assert set(values) == {f"{row}/{key}" for row in Repair.ROWS for key in ("B", "A", "cosine", "R2")}
    plant = cf.random_plant(measurement_noise=0.01, rng=1)
    recording = recorded(plant, 500, 7001)
    found = cf.fit(recording, plant.locals(), method="penalty", xi=10.0, target="refined")
    assert values["refined/B"] == pytest.approx(coupling_error(found.plant, plant), rel=EXACT)
    assert values["corrected/B"] == pytest.approx(coupling_error(without_gains(found, plant), plant), rel=EXACT)
    assert values["published/B"] > 0.9 > values["refined/B"] > values["corrected/B"]
    assert values["unfiltered/B"] == pytest.approx(values["default/B"], rel=0.5)


def test_tables_have_every_method_and_every_condition() -> None:
    *methods, regional, repaired, conditional, shares, predictions = Finding(compared()).tables
    assert len(methods) == len(finding.SETTINGS)
    assert len(regional.rows) == 16
    assert [row[0] for row in repaired.rows] == list(Repair.ROWS.values())
    assert all([row[0] for row in table.rows] == [label for label, _ in METHODS.values()] for table in methods)
    assert all([row[0] for row in table.rows] == list(Conditions.CONDITIONS) for table in (conditional, shares))
    assert [row[0] for row in predictions.rows] == [f"{weight:g}" for weight in Conditions.WEIGHTS]


def test_shares_count_plants() -> None:
    outcomes = compared()
    for outcome in outcomes:
        if outcome.task["part"] == "conditions":
            k = outcome.task["plant"]  # six plants: two good ones, one worse than nothing
            values = {"R2": np.full(6, (0.6, 0.6, 0.1, 0.1, 0.1, -1.0)[k]), "server": np.full(6, 0.9 + 0.05 * k)}
            outcome.values.update(values)  # type: ignore[attr-defined]
    *_, shares, predictions = Finding(outcomes).tables
    assert shares.rows[0][2:] == ("33 %",) * 3 + ("17 %",) * 3
    assert predictions.rows[0][1:3] == ("100 %", "100 %")
    assert predictions.rows[0][4:] == ("33.33 %", "33 % (white inputs)", "1.02 to 1.02")


def test_gains_at_the_largest_weight_are_told_apart_by_the_inputs_mean() -> None:
    outcomes = compared()
    for outcome in outcomes:
        if outcome.task["part"] == "conditions" and not Conditions.CONDITIONS[outcome.task["condition"]][2]:
            outcome.values.update(augmented=np.full(6, 0.9 + 0.05 * outcome.task["plant"]))  # type: ignore[attr-defined]
    *_, predictions = Finding(outcomes).tables
    assert "in 33.3 % of the recordings whose inputs have mean zero, and in 100 % of the others" in predictions.caption


def test_the_worst_answer_is_told_with_digits_that_tell_it_from_perfect() -> None:
    table, *_ = Finding(compared(sufficient__R2=0.99912)).tables
    assert next(row for row in table.rows if row[0].startswith("sufficient"))[3] == "0.9991 (0.9991)"


def test_both_figures_of_the_methods_have_the_same_markers() -> None:
    drawings = Finding(compared()).figures
    assert "local only" in drawings["finding-bytes"].caption
    assert "oracle" in drawings["finding-bytes"].caption
    assert all(f"{word}:" in drawings["finding-effects"].caption for word in ("Red", "green", "purple", "blue"))
    looks = {method: finding.look(method) for method in METHODS if method != "oracle"}
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == len(looks), "no two are alike"
    assert len({look["color"] for look in looks.values()}) == 4

    def seen(name: str) -> set[tuple[object, object]]:
        axes = figures.compose(drawings[name]).axes[0]
        return {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() != "None"}

    local = (looks["local"]["color"], looks["local"]["marker"])
    assert seen("finding-bytes") | {local} == seen("finding-effects")


def test_rank_correlation_is_spearman_s() -> None:
    from scipy.stats import spearmanr

    one, other = np.random.default_rng(0).standard_normal((2, 25))
    assert conditions.rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic, rel=EXACT)
