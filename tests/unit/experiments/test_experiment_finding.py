"""The comparison of methods: what it computes, and that its verdicts follow from results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn
from tolerances import EXACT

import counterflow as cf
from counterflow.paper.experiments import conditions, figures, finding, region, repair
from counterflow.paper.experiments.effects import coupling_error, effect_error, recorded, responses
from counterflow.paper.experiments.experiment import Claim, Outcome, Request, Task
from counterflow.paper.experiments.finding import EXPERIMENT
from counterflow.paper.experiments.methods import METHODS, without_gains
from counterflow.paper.experiments.wording import (
    NEW_DATA,
    PERSISTENT_INPUTS,
    SHORT_OF_ORACLE,
    STATE_COUPLINGS,
    WHITE_INPUTS,
)

KEYS = ("B", "A", "effects", "R2", "rounds", "bytes", "seconds", "covered", "covered-effects", "prediction")


@pytest.fixture(scope="module")
def computed() -> Outcome:
    task = Task(
        "finding", {"part": "methods", "units": 2, "pole": 0.9, "plant": 1, "steps": 200, "rounds": 5}
    )  # fmt: skip
    return Outcome(task, EXPERIMENT.compute(task), 1.0)


def test_every_method_is_measured_on_the_same_rows(computed: Outcome) -> None:
    assert set(computed.values) == {f"{method}/{key}" for method in METHODS for key in KEYS}
    plant = cf.random_plant(units=2, rng=1)
    recording = recorded(plant, 200, 4001, 0.9)
    found = cf.fit(recording, plant.locals())
    assert computed.number("sufficient/B") == pytest.approx(coupling_error(found.plant, plant), rel=EXACT)
    error = effect_error(responses(found.plant), responses(plant))
    assert computed.number("sufficient/effects") == pytest.approx(error, rel=EXACT)
    mask = np.kron(1 - np.eye(2), np.ones((2, 2))).astype(bool)
    inside = np.abs(found.plant.B - plant.B)[mask] < 1.959964 * found.standard_errors.B[mask]
    assert computed.number("sufficient/covered") == inside.mean()
    published = cf.fit(recording, plant.locals(), method="penalty", xi=0.1)
    assert computed.number("penalty-small/B") == pytest.approx(coupling_error(published.plant, plant), rel=EXACT)


def test_intervals_of_effects_are_counted_one_by_one(computed: Outcome) -> None:
    plant = cf.random_plant(units=2, rng=1)
    found = cf.fit(recorded(plant, 200, 4001, 0.9), plant.locals())
    hits = []
    for (effect, cause), truth in responses(plant).items():
        for channel in (0, 1):
            answer = found.effect(cause, effect, {f"u{channel + 1}": 1.0}, horizon=20)
            hits.append((answer.lower <= truth[:, :, channel]) & (truth[:, :, channel] <= answer.upper))
    assert computed.number("sufficient/covered-effects") == pytest.approx(np.mean(hits), rel=EXACT)
    assert np.isnan(computed.number("granger/covered-effects"))


def test_extremes_are_as_they_must_be(computed: Outcome) -> None:
    assert computed.number("oracle/R2") == 1.0
    assert computed.number("local/R2") == computed.number("fedgc/R2") == 0.0
    assert computed.number("oracle/prediction") < computed.number("sufficient/prediction")
    assert computed.number("sufficient/prediction") < computed.number("local/prediction")
    assert computed.number("centralized/B") == pytest.approx(computed.number("sufficient/B"), rel=1e-9)


def test_conditions_change_what_they_say() -> None:
    plain = cf.random_plant(rng=3)
    blocks = {kind: conditions.plant_of(kind, 3) for kind in ("only A", "only B", "weak", "strong", "slow", "")}
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
    values = EXPERIMENT.compute(task)
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
    values = EXPERIMENT.compute(Task("finding", {**settings, "means": [0.0, 5.0], "xi": [10.0, 1e6]}))
    plant = region.plant_of("only B", 1, 0.01, 0)
    assert plant.R[0, 0] == 0.01
    recording = recorded(plant, 600, 100, mean=5.0)
    found = cf.fit(recording, plant.locals(), method="penalty", xi=1e6)
    B, R2 = np.asarray(values["B"]), np.asarray(values["R2"])
    np.testing.assert_allclose(B[1, 1], coupling_error(found.plant, plant), rtol=EXACT)
    assert R2[0].max() < 0.1  # nothing without a mean
    assert R2[1, 1] > 0.99  # and nearly all with one


def test_the_repair_is_computed_in_every_row_of_its_table() -> None:
    settings = {"part": "repair", "noise": 0.01, "pole": 0.0, "plant": 1, "steps": 500}
    values = EXPERIMENT.compute(Task("finding", settings))
    assert set(values) == {f"{row}/{key}" for row in repair.ROWS for key in ("B", "A", "cosine", "R2")}
    plant = cf.random_plant(measurement_noise=0.01, rng=1)
    recording = recorded(plant, 500, 7001)
    found = cf.fit(recording, plant.locals(), method="penalty", xi=10.0, target="refined")
    assert values["refined/B"] == pytest.approx(coupling_error(found.plant, plant), rel=EXACT)
    assert values["corrected/B"] == pytest.approx(coupling_error(without_gains(found, plant), plant), rel=EXACT)
    assert values["published/B"] > 0.9 > values["refined/B"] > values["corrected/B"]
    assert values["unfiltered/B"] == pytest.approx(values["default/B"], rel=0.5)


def made(**changes: Any) -> list[Outcome]:
    """Outcomes of which every claim of the paper holds."""
    numbers: dict[str, Any] = {}
    for method in METHODS:
        numbers |= {f"{method}/{key}": 0.1 for key in KEYS}
        numbers[f"{method}/R2"] = 0.9
    numbers |= {"granger/R2": 0.1, "centralized/effects": 0.05, "sufficient/effects": 0.05}
    series: dict[str, Any] = {
        "B": np.full(6, 0.2),
        "A": np.full(6, 0.2),
        "cosine": np.full(6, 0.9),
        "R2": np.linspace(0.1, 0.8, 6),
        "augmented": np.full(6, 0.8),
        "server": np.full(6, 0.8),
        "train": np.full(6, 0.8),
    }
    series |= {f"default/{key}": 0.5 for key in ("B", "A", "R2", "server", "oracle")}
    shape = (len(region.MEANS), len(region.WEIGHTS))
    means: dict[str, Any] = {"R2": np.full(shape, 0.9), "B": np.full(shape, 0.2), "default/R2": 0.99}
    repaired: dict[str, Any] = {f"{row}/{key}": 0.3 for row in repair.ROWS for key in ("B", "A", "cosine", "R2")}
    parts = {"methods": numbers, "conditions": series, "region": means, "repair": repaired}
    for key, value in changes.items():
        part = key.split("___")[0] if "___" in key else ""
        name = key.split("___")[-1].replace("__", "/").replace("_small", "-small")
        (parts[part] if part else series if key in series else numbers)[name] = value
    return [Outcome(task, dict(parts[task["part"]]), 0.1) for task in EXPERIMENT.tasks(Request(quick=True))]


def verdicts(outcomes: list[Outcome]) -> dict[str, str]:
    return {claim.subject: claim.verdict for claim in EXPERIMENT.claims(outcomes)}


def test_all_hold_when_results_are_as_the_paper_says() -> None:
    found = verdicts(made())
    beyond = {subject for subject, verdict in found.items() if verdict == "beyond the paper"}
    assert beyond == {
        "Nominal 95 % intervals", "Sufficient messages against pooled raw data", "Effects as xi grows",
        "The smallest repair: a refined target", "A further step to consistency",
    }  # fmt: skip
    assert found.pop("Granger causality") == "not comparable", "the form with inputs may not be what the paper means"
    assert {verdict for subject, verdict in found.items() if subject not in beyond} == {"agrees"}


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({f"{m}__R2": 0.4 for m in ("penalty", "penalty_small", "steps", "lagrangian", "hybrid")}, "Counterfactual"),
        ({f"{m}__B": 0.9 for m in ("penalty", "penalty_small", "steps", "lagrangian", "hybrid")}, "The server learns"),
        ({"centralized__effects": 0.1}, "Short of the centralized fit"),
        ({"augmented": np.full(6, 1.1)}, "Prediction on new data"),
        ({"server": np.full(6, 1.1)}, "Prediction on new data"),
        ({"augmented": np.array([0.8, 0.8, 1.1, 0.8, 0.8, 0.8])}, "Prediction on new data"),
        ({"R2": np.linspace(0.1, 0.4, 6)}, "The best condition"),
        ({"A": np.full(6, 0.9)}, "Couplings through states"),
        ({"cosine": np.full(6, 0.2)}, "Direction"),
        ({"region___R2": np.full((5, 3), 0.2)}, "Counterfactual inference, inputs with a mean"),
    ],
)
def test_a_broken_rule_changes_its_verdict_and_no_other(changes: dict[str, Any], subject: str) -> None:
    before, after = verdicts(made()), verdicts(made(**changes))
    changed = {name for name in before if before[name] != after[name]}
    assert changed
    assert all(name.startswith(subject) for name in changed)
    assert {after[name] for name in changed} == {"does not hold"}


def test_tables_have_every_method_and_every_condition() -> None:
    *compared, regional, repaired, conditional, shares, predictions = EXPERIMENT.tables(made())
    assert len(compared) == len(finding.SETTINGS)
    assert len(regional.rows) == 16
    assert [row[0] for row in repaired.rows] == list(repair.ROWS.values())
    assert all(len(row) == len(table.head) for table in (regional, repaired) for row in table.rows)
    for table in compared:
        assert [row[0] for row in table.rows] == list(METHODS.values())
        assert all(len(row) == len(table.head) for row in table.rows)
    assert [row[0] for row in conditional.rows] == list(conditions.CONDITIONS)
    assert [row[0] for row in shares.rows] == list(conditions.CONDITIONS)
    assert [row[0] for row in predictions.rows] == [f"{weight:g}" for weight in conditions.WEIGHTS]
    for table in (conditional, shares, predictions):
        assert all(len(row) == len(table.head) for row in table.rows)


def test_shares_count_plants() -> None:
    outcomes = made()
    for outcome in outcomes:
        if outcome.task["part"] == "conditions":
            k = outcome.task["plant"]  # six plants: two good ones, one worse than nothing
            values = {"R2": np.full(6, (0.6, 0.6, 0.1, 0.1, 0.1, -1.0)[k]), "server": np.full(6, 0.9 + 0.05 * k)}
            outcome.values.update(values)  # type: ignore[attr-defined]
    *_, shares, predictions = EXPERIMENT.tables(outcomes)
    assert shares.rows[0][2:] == ("33 %",) * 3 + ("17 %",) * 3
    assert predictions.rows[0][1:3] == ("100 %", "100 %")
    assert predictions.rows[0][4:] == ("33.33 %", "33 % (white inputs)", "1.02 to 1.02")


def test_gains_at_the_largest_weight_are_told_apart_by_the_inputs_mean() -> None:
    outcomes = made()
    for outcome in outcomes:
        if outcome.task["part"] == "conditions" and not conditions.CONDITIONS[outcome.task["condition"]][2]:
            outcome.values.update(augmented=np.full(6, 0.9 + 0.05 * outcome.task["plant"]))  # type: ignore[attr-defined]
    *_, predictions = EXPERIMENT.tables(outcomes)
    assert "in 33.3 % of the recordings whose inputs have mean zero, and in 100 % of the others" in predictions.caption


def test_the_worst_answer_is_told_with_digits_that_tell_it_from_perfect() -> None:
    table, *_ = EXPERIMENT.tables(made(sufficient__R2=0.99912))
    assert next(row for row in table.rows if row[0].startswith("sufficient"))[3] == "0.9991 (0.9991)"


def test_few_plants_decide_nothing() -> None:
    few = [o for o in made() if o.task["plant"] < 3]
    assert set(verdicts(few).values()) == {"undecided", "beyond the paper", "not comparable"}


def test_what_has_one_cause_is_one_fact() -> None:
    facts: dict[str, set[str]] = {}
    for claim in EXPERIMENT.claims(made()):
        facts.setdefault(claim.fact, set()).add(claim.subject)
    assert facts[WHITE_INPUTS] == {
        *(f"Counterfactual inference, M = {M}, white inputs" for M in (2, 4)),
        "The server learns B_mn, white inputs", "Direction of B_mn",
    }  # fmt: skip
    assert facts[PERSISTENT_INPUTS] == {
        *(f"Counterfactual inference, M = {M}, AR(0.9) inputs" for M in (2, 4)),
        "The server learns B_mn, AR(0.9) inputs",
    }  # fmt: skip
    assert facts[STATE_COUPLINGS] == {"Couplings through states only (B_mn = 0)"}
    assert facts[SHORT_OF_ORACLE] == {"Short of the centralized fit"}
    assert facts[NEW_DATA] == {"Prediction on new data"}


def test_both_figures_of_the_methods_have_the_same_markers() -> None:
    drawings = EXPERIMENT.figures(made())
    assert "local only" in drawings["finding-bytes"].caption
    assert "oracle" in drawings["finding-bytes"].caption
    assert all(f"{word}:" in drawings["finding-effects"].caption for word in ("Red", "green", "purple", "blue"))
    looks = {method: finding._look(method) for method in METHODS if method != "oracle"}
    assert len({(look["color"], look["marker"]) for look in looks.values()}) == len(looks), "no two are alike"
    assert len({look["color"] for look in looks.values()}) == 4

    def seen(name: str) -> set[tuple[object, object]]:
        axes = figures.compose(drawings[name]).axes[0]
        return {(line.get_color(), line.get_marker()) for line in axes.lines if line.get_marker() != "None"}

    local = (looks["local"]["color"], looks["local"]["marker"])
    assert seen("finding-bytes") | {local} == seen("finding-effects")


def test_equality_with_pooled_data_is_told_as_it_is() -> None:
    def why(outcomes: list[Outcome]) -> str:
        return next(claim.why for claim in EXPERIMENT.claims(outcomes) if claim.subject.startswith("Sufficient"))

    assert "equal to rounding" in why(made())
    assert "differ by more" in why(made(sufficient__effects=0.06))


def test_the_text_has_the_numbers_of_the_results() -> None:
    outcomes = made(granger__R2=0.37)
    text = EXPERIMENT.text(outcomes, EXPERIMENT.claims(outcomes))
    assert "0.37 to 0.37 for Granger" in text
    assert "does what the paper says" in text
    assert "$B_{mn}$" not in text


def test_figures_are_drawn() -> None:
    for figure in EXPERIMENT.figures(made()).values():
        drawn(figure)


def test_claims_are_claims() -> None:
    assert all(isinstance(claim, Claim) and claim.why for claim in EXPERIMENT.claims(made()))


def test_rank_correlation_is_spearman_s() -> None:
    from scipy.stats import spearmanr

    one, other = np.random.default_rng(0).standard_normal((2, 25))
    assert conditions.rank_correlation(one, other) == pytest.approx(spearmanr(one, other).statistic, rel=EXACT)
