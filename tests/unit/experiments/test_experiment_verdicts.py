"""Verdicts follow from results: results that break a rule change the verdict of that claim, and texts say so."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn
from paper_results import (
    GOOD,
    PLANT,
    all_methods,
    compared,
    control,
    converging,
    errors,
    given,
    grown,
    noised,
    real,
    robust,
    scaled,
    sweep,
    trained,
    weaker,
)

from counterflow.paper import experiments
from counterflow.paper.experiments import lagrangian, two_units
from counterflow.paper.experiments import report as report_page
from counterflow.paper.experiments.effects import PUBLISHED
from counterflow.paper.experiments.experiment import FACTS, Claim, Experiment, Outcome
from counterflow.paper.experiments.robustness import FAULTS, judged, retained
from counterflow.paper.experiments.verdicts import (
    VERDICTS,
    above,
    below,
    beyond_control,
    both,
    either,
    magnitude,
    mostly,
    rarely,
    said,
    within,
)

GROWTH = {"units": 2.0, "states": 1.0, "inputs": 1.0}  # of bytes, as the paper's formulas say
NINE = np.array([[10.0, 9.0, 8.0]])


def shifted(mean: int) -> Any:
    """Adds something to what belongs to inputs of that mean."""
    return lambda task, v: v + 0.3 * (task["mean"] == mean)


@cache
def good(name: str) -> Experiment:
    """With results as the paper would have them."""
    return experiments.named(name)(GOOD[name])


def claim(name: str, subject: str, outcomes: list[Outcome] | None = None) -> Claim:
    made = good(name) if outcomes is None else experiments.named(name)(outcomes)
    (found,) = (each for each in made.claims if subject in each.subject)
    return found


FLAT = np.ones(4)
LOCAL_A, LOCAL_B = weaker(PLANT.A, 0.02), weaker(PLANT.B, 0.02)
BREAKS = [
    ("synthetic", "Global loss", trained(server_loss=FLAT) + control()),
    ("synthetic", "loss, client 1", trained() + control(unit1=1.01)),
    ("synthetic", "loss, client 2", trained() + control(unit2=1.01)),
    ("synthetic", "theta and phi", trained() + control(0.05)),
    ("disentanglement", "D at the server", trained(disentanglement=FLAT) + sweep()),
    ("disentanglement", "delta_d at client 1", trained(delta_d__unit1=0.01 * FLAT) + sweep()),
    ("disentanglement", "delta_d at client 2", trained(delta_d__unit2=0.01 * FLAT) + sweep()),
    ("disentanglement", "phi_m is", trained(phi__unit1=np.array([0.01, 0.0])) + sweep()),
    ("disentanglement", "states: B_mn", trained(B=LOCAL_B) + sweep()),
    ("disentanglement", "states: A_mn", trained(A=LOCAL_A) + sweep()),
    ("disentanglement", "D at large xi", trained() + sweep(disentanglement=np.geomspace(1, 0.01, 6))),
    ("validation", "New data, client 1", trained(error__server__unit1=errors(1.1, 6.0, 5.0))),
    ("validation", "New data, client 2", trained(error__augmented__unit2=errors(1.1, 6.0, 5.0))),
    ("validation", "shift, client 1", trained(error__augmented__unit1=errors(0.9, 0.9, 4.0))),
    ("validation", "shift, client 2", trained(error__server__unit2=errors(0.9, 0.9, 4.0))),
    ("validation", "Deterioration, client 1", trained(error__server__unit1=errors(0.95, 20.0, 5.0))),
    ("validation", "Deterioration, client 2", trained(error__augmented__unit2=errors(0.95, 20.0, 5.0))),
    ("validation", "Recovery, client 1", trained(error__server__unit1=errors(0.95, 6.0, 5.95))),
    ("validation", "Recovery, client 2", trained(error__augmented__unit2=errors(0.9, 6.0, 9.0))),
    ("validation", "Distance", trained(**{f"error__oracle__{n}": errors(0.89, 0.5, 0.5) for n in two_units.UNITS})),
    ("transfer-function", "Estimated poles", trained(A=1.3 * PLANT.A)),
    ("transfer-function", "Overall profile", trained(A=-PLANT.A)),
    ("transfer-function", "The transfer function", trained(A=LOCAL_A, B=LOCAL_B)),
    ("transfer-function", "Estimated zeros", trained(A=LOCAL_A)),
    ("transfer-function", "Low frequencies", trained(B=LOCAL_B)),
    ("lagrangian", "Oscillations", all_methods("lagrangian", climb=0.1) + given()),
    ("lagrangian", "of AL at the server", all_methods("lagrangian", disentanglement=10 * FLAT) + given()),
    ("lagrangian", "of AL at the clients", all_methods("lagrangian", delta_d__unit2=np.linspace(1, 0, 4)) + given()),
    ("lagrangian", "sub-optimal", all_methods("penalty", client_loss__unit1=FLAT, client_loss__unit2=FLAT) + given()),
    ("lagrangian", "Hybrid: the final", all_methods("hybrid", server_loss=50 * FLAT) + given()),
    ("lagrangian", "Hybrid: a smoother", all_methods("hybrid", climb__late=1.1) + given()),
    ("lagrangian", "Trade-off", all_methods() + given(safe=0.005)),
    ("lagrangian", "PM with tuned steps", all_methods() + given({2: 0.1, 3: 0.1, 4: 0.1})),
    ("lagrangian", "PM with tuned steps", all_methods() + given({0: 10.0})),
    ("lagrangian", "AL with the same", all_methods() + given(augmented=2.0)),
    ("scalability", "L_s for D_m", scaled("D_m", loss=11.0)),
    ("scalability", "L_s for M", scaled("M", loss=1 / 11)),
    ("scalability", "degrades as D_m", scaled("D_m", tilt=-1.0)),
    ("scalability", "degrades as M", scaled("M", tilt=0.5)),
    ("scalability", "D stays small as D_m", scaled("D_m", crossing=5.0)),
    ("scalability", "D stays small as M", scaled("M", crossing=5.0)),
    ("scalability", "D_m matters more", scaled("D_m", tilt=-1.0)),
]

POOR = [f"{method.replace('-', '_')}__" for method in PUBLISHED]
# results that break one rule of an experiment, and leave all others as they are: the claim, and its verdict then
ALONE: list[tuple[str, str, list[Outcome], str]] = [
    ("convergence", "Theorem 8.3, zero-mean", converging(left=shifted(0)), "does not hold"),
    ("convergence", "Theorem 8.3, zero-mean", converging(left=shifted(0), right=shifted(0)), "agrees"),
    ("convergence", "Theorem 8.3, inputs of mean 1", converging(left=shifted(1)), "not comparable"),
    ("convergence", "A bias remains", converging(distance=lambda t, v: v * (t["steps"] / 500) ** 0.5), "agrees"),
    ("finding", "Counterfactual inference, M", compared(**{f"{m}R2": 0.4 for m in POOR}), "does not hold"),
    ("finding", "The server learns", compared(**{f"{m}B": 0.9 for m in POOR}), "does not hold"),
    ("finding", "Short of the centralized fit", compared(centralized__effects=0.1), "does not hold"),
    ("finding", "Prediction on new data", compared(augmented=np.full(6, 1.1)), "does not hold"),
    ("finding", "Prediction on new data", compared(server=np.full(6, 1.1)), "does not hold"),
    ("finding", "The best condition", compared(R2=np.linspace(0.1, 0.4, 6)), "does not hold"),
    ("finding", "Couplings through states", compared(A=np.full(6, 0.9)), "does not hold"),
    ("finding", "Direction", compared(cosine=np.full(6, 0.2)), "does not hold"),
    ("finding", "Counterfactual inference, inputs", compared(region___R2=np.full((5, 3), 0.2)), "does not hold"),
    ("privacy", "Training converges", noised(server_loss=np.geomspace(1, 10, 10)), "does not hold"),
    ("privacy", "The augmented client", noised(client_loss=np.linspace(0.9, 2, 10)), "does not hold"),
    ("privacy", "Noise and the variance", noised(spread=lambda task: task["epsilon"]), "does not hold"),
    ("privacy", "What there is to pay", noised(B=0.9), "does not hold"),
    ("privacy", "The guarantee", noised(audited=lambda task: 1.1 * task["epsilon"]), "does not hold"),
    *(
        ("real-plants", f"HAI: {subject}", [real("hai", **changes), GOOD["real-plants"][1]], "does not hold")
        for subject, changes in {
            "server loss, early": {"server_loss": np.array([[100.0, 60.0, 1.0]])},
            "server loss, late": {"rises": np.array([0.2])},
            "disentanglement": {"rises/D": np.array([0.2])},
            "client losses": {"client_loss/P2": np.array([[9.0, 9.0, 1.1]]), "proprietary_loss/P2": 5.0},
            "δd": {"delta_d/P2": np.array([[1.0, 0.5, 0.4]])},
        }.items()
    ),
    ("real-plants", "SWaT: constraints", [real(), real("swat", disentanglement=NINE)], "does not hold"),
    *(
        ("robustness", f"{what}: {title.lower()}", robust(**values, fault=fault), "does not hold")
        for fault, (title, *_) in FAULTS.items()
        for what, values in (
            ("Prediction", {"ideal": 0.2, "worst": 0.25, "faulted": 0.95}), ("Effects", {"ideal": 0.2, "worst": 0.6})
        )
    ),
    *(
        ("overhead", f"Bytes of a round against {letter}", grown({"bytes": {**GROWTH, axis: power}}), "does not hold")
        for axis, power, letter in (
            ("units", 2.5, "M"), ("states", 1.5, "P_m"), ("inputs", 1.5, "U_m"), ("outputs", 0.5, "D_m"),
            ("steps", 1.0, "T"),
        )
    ),
    *(  # seconds alone decide nothing
        ("overhead", f"Work of {who} in a round {letter}", grown({"bytes": GROWTH, key: {axis: power}}), "undecided")
        for key, who, axis, power, letter in (
            ("server", "the server", "units", 4.5, "against M"), ("server", "the server", "states", 2.5, "against P_m"),
            ("server", "the server", "inputs", 2.5, "against U_m"), ("unit", "a client", "states", 2.5, "against P_m"),
            ("unit", "a client", "outputs", 0.0, "against D_m"), ("unit", "a client", "steps", 1.5, "against T"),
            ("server", "the server", "outputs", 0.5, "against D_m"),
            ("server", "the server", "steps", 0.0, "against T"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "subject", "broken"), BREAKS, ids=[f"{n}: {s}" for n, s, _ in BREAKS])
def test_results_that_break_a_rule_change_its_verdict(name: str, subject: str, broken: list[Outcome]) -> None:
    before, after = claim(name, subject), claim(name, subject, broken)
    if before.key in lagrangian.OF_SCHEME and name == "lagrangian":  # what is seen is told, and judges nothing
        assert before.verdict == after.verdict == "not comparable"
        assert "with ours it is so" in before.why
        assert "with ours it is not so" in after.why
    else:
        assert before.verdict != after.verdict
    assert {before.verdict, after.verdict} <= set(VERDICTS)
    assert before.ours != after.ours, "what was measured is told, too"


@pytest.mark.parametrize(("name", "subject", "broken", "verdict"), ALONE, ids=[f"{n}: {s}" for n, s, *_ in ALONE])
def test_a_broken_rule_changes_its_verdict_and_no_other(
    name: str, subject: str, broken: list[Outcome], verdict: str
) -> None:
    before, after = good(name).claims, experiments.named(name)(broken).claims
    changed = {old.subject: new.verdict for old, new in zip(before, after, strict=True) if old.verdict != new.verdict}
    assert changed
    assert all(each.startswith(subject) for each in changed)
    assert set(changed.values()) == {verdict}


def test_every_claim_has_a_test_that_breaks_it() -> None:
    broken = defaultdict(list)
    for name, subject, *_ in (*BREAKS, *ALONE):
        broken[name].append(subject)
    for name in experiments.names():
        for each in good(name).claims:
            tested = any(subject in each.subject for subject in broken[name])
            silent = each.verdict == "beyond the paper" or each.subject == "Granger causality"
            assert tested or silent or each.subject.startswith("SWaT"), each.subject


def test_what_agrees_when_everything_is_as_the_paper_says() -> None:
    unlike = {
        ("transfer-function", "Estimated zeros"): "does not hold",  # it says that they differ
        ("transfer-function", "Low frequencies"): "does not hold",
        ("transfer-function", "Estimated poles"): "not comparable",  # the local blocks have them already
        ("scalability", "Performance degrades as M grows"): "does not hold",  # per unit its own table does not
        ("privacy", "The guarantee as published"): "undecided",  # an audit proves nothing
        ("convergence", "Theorem 8.3, zero-mean inputs (its assumption)"): "not comparable",
        ("convergence", "A bias remains"): "does not hold",  # it is the paper's own limit
        ("finding", "Granger causality"): "not comparable",  # the form with inputs may not be what the paper means
        ("overhead", "Work of the server in a round against T"): "does not hold",  # multiplications alone say so
        ("overhead", "Work of a client in a round against D_m"): "does not hold",
    }
    scheme = {each.subject for each in good("lagrangian").claims if each.key in lagrangian.OF_SCHEME}  # IMEX is ours
    for name in experiments.names():
        for each in good(name).claims:
            if each.verdict == "beyond the paper":
                assert "No rule" in each.why
                continue
            wanted = unlike.get((name, each.subject), "not comparable" if each.subject in scheme else "agrees")
            assert each.verdict.removesuffix(" in order of magnitude") == wanted, (name, each.subject)
            assert "Rule" in each.why or each.subject == "Granger causality"


@pytest.mark.parametrize("name", [name for name in experiments.names() if name not in ("real-plants", "overhead")])
def test_two_runs_decide_nothing(name: str) -> None:
    few = [o for o in GOOD[name] if o.task.settings.get("run", o.task.settings.get("plant")) < 2]
    found = {each.verdict for each in experiments.named(name)(few).claims}
    assert found <= {"undecided", "not comparable", "beyond the paper"}
    assert "undecided" in found


@pytest.mark.parametrize("name", experiments.names())
def test_figures_are_drawn_and_tables_are_whole(name: str) -> None:
    for figure in good(name).figures.values():
        assert not figure.paper or figure.caption.startswith(f"{figure.paper} of the paper") or name == "real-plants"
        drawn(figure)
    for table in good(name).tables:
        assert table.caption
        assert table.rows
        assert all(len(row) == len(table.head) for row in table.rows)


def test_the_papers_figures_are_made_panel_by_panel() -> None:
    rows = {row[0]: row for row in report_page.paper_map([good(name) for name in experiments.names()]).rows}
    assert list(rows) == [f"Fig. {k}" for k in range(1, 6)] + ["Table 1", "Table 2", "Fig. 6", "Fig. 7", "Fig. 8"]
    for number, panels, _, here in rows.values():
        if number not in ("Fig. 7", "Fig. 8"):  # these have as many panels as the files have units
            assert here != "not in this report", number
            assert not panels or here.endswith(f"panels {panels}"), number


TEXTS = [
    ("synthetic", None, "falls as in the paper"),
    ("synthetic", trained(server_loss=FLAT) + control(), "does not fall as in the paper"),
    ("disentanglement", None, "couplings are found."),
    ("disentanglement", trained(A=LOCAL_A, B=LOCAL_B) + sweep(), "does not mean"),
    ("transfer-function", None, "is found as well"),
    ("transfer-function", trained(A=LOCAL_A, B=LOCAL_B), "is not in the published"),
    ("lagrangian", None, "more smoothly than AL"),
    ("lagrangian", None, "after 10, 20, 30 rounds of AL it is smoother; after 50, 100, 150 rounds of AL it is not"),
    ("lagrangian", all_methods("hybrid", climb__late=1.1) + given(), "rises again"),
    ("scalability", None, "does not grow"),
    ("scalability", scaled("M", tilt=0.5), "grows with both"),
    ("privacy", noised(server_loss=np.geomspace(1, 10, 10)), "At an ε of 100 and below"),
    ("privacy", noised(audited=lambda task: 2 * task["epsilon"]), "not a guarantee"),
    ("convergence", None, "compares zero with zero"),
    ("convergence", None, "Beyond the paper"),
    ("convergence", converging(left=shifted(0), right=shifted(0)), "The theorem's equation holds."),
    ("convergence", converging(left=shifted(0)), "does not hold here"),
    ("finding", compared(granger__R2=0.37), "0.37 to 0.37 for Granger"),
    ("robustness", None, "from 0.2 to 0.25 with the published"),
    ("real-plants", None, "On your files of HAI and SWaT, 9 claims agree."),
]


@pytest.mark.parametrize(("name", "outcomes", "words"), TEXTS, ids=[f"{n}: {w[:30]}" for n, _, w in TEXTS])
def test_texts_say_what_the_verdicts_say(name: str, outcomes: list[Outcome] | None, words: str) -> None:
    assert words in (good(name) if outcomes is None else experiments.named(name)(outcomes)).text
    assert outcomes is None or words not in good(name).text


FACTS = [
    ("disentanglement", "states: B_mn", FACTS["WHITE_INPUTS"]),
    ("disentanglement", "states: A_mn", FACTS["STATE_COUPLINGS"]),
    ("transfer-function", "The transfer function", FACTS["WHITE_INPUTS"]),
    ("validation", "New data, client 2", FACTS["NEW_DATA"]),
    ("validation", "Distance", FACTS["SHORT_OF_ORACLE"]),
    ("finding", "Counterfactual inference, M = 2, white inputs", FACTS["WHITE_INPUTS"]),
    ("finding", "Counterfactual inference, M = 4, AR(0.9) inputs", FACTS["PERSISTENT_INPUTS"]),
    ("finding", "The server learns B_mn, white inputs", FACTS["WHITE_INPUTS"]),
    ("finding", "The server learns B_mn, AR(0.9) inputs", FACTS["PERSISTENT_INPUTS"]),
    ("finding", "Direction of B_mn", FACTS["WHITE_INPUTS"]),
    ("finding", "Couplings through states only (B_mn = 0)", FACTS["STATE_COUPLINGS"]),
    ("finding", "Short of the centralized fit", FACTS["SHORT_OF_ORACLE"]),
    ("finding", "Prediction on new data", FACTS["NEW_DATA"]),
    ("privacy", "Training converges", "training under the published noise"),
    ("privacy", "The augmented client", "training under the published noise"),
    ("robustness", "Effects: missing rows", "effects under faults"),
]


@pytest.mark.parametrize(("name", "subject", "fact"), FACTS)
def test_what_has_one_cause_is_one_fact(name: str, subject: str, fact: str) -> None:
    assert claim(name, subject).fact == fact


def test_the_two_clients_of_one_sentence_are_one_fact() -> None:
    for name in ("synthetic", "disentanglement", "validation"):
        by_fact: dict[str, set[str]] = {}
        for each in good(name).claims:
            if each.subject.endswith(("client 1", "client 2")):
                assert each.fact
                by_fact.setdefault(each.fact, set()).add(each.subject[:-1])
        assert by_fact
        assert all(len(subjects) == 1 for subjects in by_fact.values())


def test_zeros_and_low_frequencies_may_be_neither_exact_nor_anything() -> None:
    exact, some, far = (
        claim("transfer-function", "Estimated zeros", outcomes)
        for outcomes in (trained(), trained(A=LOCAL_A), trained(A=LOCAL_A, B=LOCAL_B))
    )
    assert (exact.verdict, some.verdict, far.verdict) == ("does not hold", "agrees", "does not hold")
    for outcomes in (trained(A=LOCAL_A, B=LOCAL_B), trained(B=5 * PLANT.B)):
        found = claim("transfer-function", "Low frequencies", outcomes)
        assert ("larger above" in found.why) != ("larger there than above" in found.why)
    assert claim("transfer-function", "Low frequencies", trained(B=5 * PLANT.B)).verdict == "does not hold"


def test_runs_that_scatter_decide_nothing() -> None:
    for key, name, subject in (
        ("server_loss", "synthetic", "Global loss"), ("disentanglement", "disentanglement", "D at the server"),
        ("delta_d/unit1", "disentanglement", "delta_d at client 1"),
    ):  # fmt: skip
        runs = trained()
        for run, last in zip(runs, (0.01, 1.9, 0.01, 1.9), strict=True):
            run.values[key] = np.array([2.0, 1.0, 1.0, last])  # type: ignore[index]
        assert claim(name, subject, runs + (control() if name == "synthetic" else sweep())).verdict == "undecided"


def test_a_table_shows_when_the_hybrid_is_smoother() -> None:
    (table,) = good("lagrangian").tables
    assert [row[0] for row in table.rows] == [str(at) for at in lagrangian.SWITCHES]
    assert [row[3] for row in table.rows] == ["4 of 4"] * 3 + ["0 of 4"] * 3
    assert two_units.QUICK["warm_rounds"] == two_units.SETTINGS["warm_rounds"] in lagrangian.SWITCHES


def test_a_profile_that_the_local_blocks_have_already_says_nothing() -> None:
    local, some, none = (
        claim("transfer-function", "Overall profile", trained(A=weaker(PLANT.A, part), B=weaker(PLANT.B, part)))
        for part in (0.0, 0.9, 1e-4)
    )
    assert (local.verdict, some.verdict, none.verdict) == ("not comparable", "agrees", "not comparable")
    assert "adds 0" in local.ours


def test_losses_are_compared_per_unit() -> None:
    flat = claim("scalability", "degrades as M", scaled("M", tilt=0.05))  # L_s of all units goes like M^0.96
    assert flat.verdict == "does not hold"
    assert "L_s / M goes like M^(-0.04" in flat.ours
    assert claim("scalability", "degrades as M", scaled("M", tilt=0.5)).verdict == "agrees"


def test_what_the_data_cannot_show_cannot_be_compared() -> None:
    still = trained(mean_effect__unit1=0.01, mean_effect__unit2=0.01) + sweep()
    assert claim("disentanglement", "phi_m is", still).verdict == "not comparable"
    worse = {f"error__{m}__unit1": errors(1.0, 5.0, 9.0) for m in ("proprietary", "augmented", "server")}
    assert claim("validation", "Recovery, client 1", trained(**worse)).verdict == "not comparable"


def test_scatter_and_few_runs_decide_nothing_about_faults_and_real_plants() -> None:
    plants = np.ones(4)
    half = np.array([0.2, 0.2, 0.6, 0.6])
    assert judged(0.2 * plants, half) == judged(half + 0.1, 0.2 * plants) == judged(0.2 * plants[:3], 0.2 * plants[:3])
    assert judged(0.2 * plants, half) == "undecided"
    assert judged(0.01 * plants, 0.04 * plants) == "agrees", "small errors may grow"
    assert judged(0.9 * plants, 0.9 * plants) == "claim without number", "there is nothing to be robust"
    assert retained(0.2 * plants, np.array([0.2, 0.2, 0.0, 0.0])) == retained(0.2 * plants[:3], 0.2 * plants[:3])
    assert retained(0.2 * plants, np.array([0.2, 0.2, 0.0, 0.0])) == "undecided"
    assert retained(-plants, -plants) == "does not hold", "there is no gain to keep"
    three = {k: np.repeat(v, 3, axis=0) for k, v in real().values.items() if isinstance(v, np.ndarray) and k != "round"}
    three["rises"] = np.array([0.0, 0.0, 0.025])
    found = experiments.named("real-plants")([real(**three)]).claims
    assert [each.verdict for each in found] == ["agrees", "undecided", "agrees", "agrees", "agrees"]


def test_what_is_told_and_not_judged_is_told_as_it_is() -> None:
    nearer, farther = (claim("convergence", "Row by row, with growing", made).why for made in (
        converging(), converging(distance=lambda _, v: v[::-1])
    ))  # fmt: skip
    assert "come nearer" in nearer
    assert "do not come nearer" in farther
    assert "T^(-0.50" in claim("convergence", "Row by row, with more data").ours
    for name, made in (
        ("convergence", converging(equality=lambda *_: 1e-3)), ("finding", compared(sufficient__effects=0.06))
    ):  # fmt: skip
        assert "equal to rounding" in claim(name, "Sufficient messages against pooled").why
        assert "differ by more" in claim(name, "Sufficient messages against pooled", made).why
    small = claim("real-plants", "HAI: client losses", [real(**{"proprietary_loss/P2": 0.8})])
    assert small.verdict == "agrees", "small, and larger than the proprietary one"
    assert "P2 0.09" in small.ours


def test_where_a_round_is_larger_than_the_raw_data_is_told_and_not_judged() -> None:
    def found(states: int) -> Claim:
        smaller = {"raw": 0.5}
        larger = [
            Outcome(o.task, {**o.values, **(smaller if o.task["states"] == states else {})}, 0.1) for o in grown({})
        ]
        return claim("overhead", "Bytes of one round against the raw data", larger)

    assert {found(states).verdict for states in (1, 4, 16)} == {"beyond the paper"}
    assert "not less than them at no size" in found(1).ours
    assert "not less than them at no size" in found(16).ours, "there a unit has more states than outputs"
    assert "not less than them at P_m = 4" in found(4).ours


# ---- the rules themselves


def test_a_mean_is_judged_in_its_standard_errors() -> None:
    values = np.array([0.5, 1.0, 1.5, 1.0])  # mean 1, standard error 0.204
    assert above(values, 0.55) == below(values, 1.45) == within(values, 0.55, 1.45) == "agrees"
    assert above(values, 0.65) == below(values, 1.35) == within(values, 0.65, 1.45) == "undecided"
    assert above(values, 1.45) == below(values, 0.55) == within(values, 1.45, 3.0) == "does not hold"
    assert above(values[:2], -9.0) == "undecided", "two runs have no standard error to speak of"
    assert above(np.array([1.0, np.nan, 1.0])) == "undecided"


def test_a_median_is_judged_by_counting() -> None:
    plants = np.array([1.0] * 9 + [-1e9])
    assert mostly(plants) == rarely(-plants) == "agrees"
    assert mostly(-plants) == "does not hold"
    assert mostly(np.array([1.0] * 8 + [-1.0] * 2)) == "undecided"
    assert mostly(np.ones(3)) == "undecided"


def test_verdicts_are_put_together() -> None:
    assert both("agrees", "agrees in order of magnitude") == "agrees"
    assert either("undecided", "does not hold") == "undecided"
    assert beyond_control("agrees", "does not hold") == "not comparable"
    assert beyond_control("undecided", "agrees") == "undecided"
    assert said("undecided", "yes", "no") == ""


def test_orders_of_magnitude() -> None:
    ones = np.ones(4)
    assert magnitude(0.5, 0.6 * ones) == magnitude(0.5, 4.9 * ones) == "agrees in order of magnitude"
    assert magnitude(0.5, 5.1 * ones) == magnitude(0.5, 0.049 * ones) == "does not hold"
    assert magnitude(0.5, np.array([0.5, 50.0, 5.0, 5.0])) == "undecided"
