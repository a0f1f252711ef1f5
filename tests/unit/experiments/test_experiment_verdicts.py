"""Verdicts follow from results: results that break a rule change the verdict of that claim, and of no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn

import counterflow as cf
from counterflow.paper import experiments
from counterflow.paper.experiments import disentanglement, lagrangian, scalability, synthetic, two_units
from counterflow.paper.experiments import page as report_page
from counterflow.paper.experiments.experiment import VERDICTS, Claim, Outcome, Task
from counterflow.paper.experiments.verdicts import (
    above,
    below,
    beyond_control,
    both,
    counted,
    either,
    magnitude,
    mostly,
    rarely,
    within,
)
from counterflow.paper.experiments.wording import NEW_DATA, SHORT_OF_ORACLE, STATE_COUPLINGS, WHITE_INPUTS, said

PLANT = two_units.plant_of(0)
ROUNDS = np.array([1.0, 10.0, 50.0, 100.0])
RUNS = range(4)


def weaker(matrix: np.ndarray, factor: float) -> np.ndarray:
    """The blocks between the units made smaller."""
    out = matrix.copy()
    half, width = out.shape[0] // 2, out.shape[1] // 2
    out[:half, width:] *= factor
    out[half:, :width] *= factor
    return out


def errors(before: float, soon: float, late: float) -> np.ndarray:
    """400 squared errors with a shift in the middle."""
    return np.repeat([before, soon, late], [201, 40, 159])


def trained(method: str = "penalty", **changes: Any) -> list[Outcome]:
    """Four runs in which everything is as the paper says."""
    values: dict[str, Any] = {
        "round": ROUNDS,
        "server_loss": np.array([100.0, 10.0, 1.0, 0.1]),
        "disentanglement": np.array([10.0, 1.0, 0.1, 0.01]),
        "climb": 0.1,
        "climb/late": 0.01,
        "rises": 0.0,
        "A": PLANT.A,
        "B": PLANT.B,
        "default/A": PLANT.A,
        "default/B": PLANT.B,
    }
    for name in two_units.UNITS:
        values |= {
            f"client_loss/{name}": np.array([10.0, 2.0, 0.9, 0.9]),
            f"proprietary_loss/{name}": 1.0,
            f"delta_d/{name}": np.array([1.0, 0.5, 0.1, 0.01]),
            f"phi/{name}": np.array([1.0, 0.0]),
            f"mean_effect/{name}": 1.0,
            f"rms_effect/{name}": 1.0,
            f"error/proprietary/{name}": errors(1.0, 10.0, 8.0),
            f"error/augmented/{name}": errors(0.9, 5.0, 4.0),
            f"error/server/{name}": errors(0.95, 6.0, 4.0),
            f"error/oracle/{name}": errors(0.5, 0.5, 0.5),
        }
    if method == "lagrangian":
        values |= {"climb": 3.0, "climb/late": 1.0, "disentanglement": np.array([10.0, 0.1, 1e-3, 1e-9])}
        values |= {f"delta_d/{name}": np.array([1.0, 0.3, 0.05, 0.01]) for name in two_units.UNITS}
        values |= {f"client_loss/{name}": np.array([10.0, 2.0, 0.95, 0.95]) for name in two_units.UNITS}
    values |= {key.replace("__", "/"): value for key, value in changes.items()}
    settings = {"method": method, "plant": 0, "warm_rounds": 20}
    return [Outcome(Task("synthetic", {**settings, "run": k}), dict(values), 0.1) for k in RUNS]


def control(alone: float = 0.01, **last: float) -> list[Outcome]:
    """The study over plants: client losses end at 0.9 of the proprietary one, or as given."""
    values: dict[str, Any] = {"round": np.array([1.0, 10.0]), "server_loss": np.array([10.0, 1.0])}
    for name in two_units.UNITS:
        values |= {f"relative/{name}": np.array([5.0, last.get(name, 0.9)]), f"control/{name}": alone}
    return [
        Outcome(Task("synthetic", {"noise": noise, "xi": xi, "plant": k, "run": k}), dict(values), 0.1)
        for noise in synthetic.NOISES
        for xi in synthetic.WEIGHTS
        for k in RUNS
    ]


def sweep(**changes: Any) -> list[Outcome]:
    count = len(disentanglement.WEIGHTS)
    values = {
        "disentanglement": np.geomspace(1, 1e-6, count),
        "loss": np.linspace([0.8, 0.9], [1.0, 1.0], count),
        "error": np.ones((count, 2)),
    }
    return [Outcome(Task("disentanglement", {"run": k, "weights": []}), values | changes, 0.1) for k in RUNS]


def given(penalty: Mapping[int, float] | None = None, augmented: float = 1e-3, safe: float = 0.5) -> list[Outcome]:
    ratios = np.where(np.array(lagrangian.WEIGHTS) > lagrangian.TUNED_AT, 1e12, 1e-3)
    for at, value in (penalty or {}).items():
        ratios[at] = value
    values = {"step": 0.1, "penalty": ratios, "lagrangian": np.full(len(ratios), augmented)}
    values |= {"safe": 0.01, "excess": np.array([0.01, safe])}
    return [Outcome(Task("lagrangian", {"run": k, "tuned_at": 10.0}), values, 0.1) for k in RUNS] + switched()


def switched(late: float = 5.0) -> list[Outcome]:
    """Hybrids that are smoother than AL if they switch before its oscillations have ended, and then climb."""
    early = np.array(lagrangian.SWITCHES) < 50
    values = {"hybrid": np.where(early, 0.1, late), "lagrangian": np.where(early, 9.0, 0.1)}
    return [Outcome(Task("lagrangian", {"run": k, "switches": []}), values, 0.1) for k in RUNS]


def all_methods(method: str = "", **changes: Any) -> list[Outcome]:
    return [run for m in lagrangian.METHODS for run in trained(m, **(changes if m == method else {}))]


def scaled(table: str = "", loss: float = 1.0, crossing: float = 100.0, tilt: float = 0.0) -> list[Outcome]:
    """Runs that have the paper's own numbers, but for factors on one of its tables."""
    out = []
    for name, (sizes, losses, penalties) in scalability.TABLES.items():
        for size, L, D in zip(sizes, losses, penalties, strict=True):
            factor = loss * size**tilt if name == table else 1.0
            values = {
                "server_loss": L * factor,
                "disentanglement": D * factor,
                "crossing": D * factor * (crossing if name == table else 100.0),
            }
            settings = {"table": name, "outputs": size if name == "D_m" else 8, "units": size if name == "M" else 2}
            for xi in (scalability.XI, scalability.IMPLIED[name]):
                out += [Outcome(Task("scalability", {**settings, "xi": xi, "run": k}), values, 0.1) for k in RUNS]
    return out


GOOD = {
    "synthetic": trained() + control(),
    "disentanglement": trained() + sweep(),
    "validation": trained(),
    "transfer-function": trained(),
    "lagrangian": all_methods() + given(),
    "scalability": scaled(),
}
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
    (
        "validation",
        "Distance",
        trained(**{f"error__oracle__{name}": errors(0.89, 0.5, 0.5) for name in two_units.UNITS}),
    ),
    ("transfer-function", "Estimated poles", trained(A=1.3 * PLANT.A)),
    ("transfer-function", "Overall profile", trained(A=-PLANT.A)),
    ("transfer-function", "The transfer function", trained(A=LOCAL_A, B=LOCAL_B)),
    ("transfer-function", "Estimated zeros", trained(A=LOCAL_A)),
    ("transfer-function", "Low frequencies", trained(B=LOCAL_B)),
    ("lagrangian", "Oscillations", all_methods("lagrangian", climb=0.1) + given()),
    (
        "lagrangian",
        "of AL at the server",
        all_methods("lagrangian", disentanglement=np.array([10.0, 5.0, 1.0, 0.1])) + given(),
    ),
    (
        "lagrangian",
        "of AL at the clients",
        all_methods("lagrangian", delta_d__unit2=np.array([1.0, 0.5, 0.1, 0.0])) + given(),
    ),
    (
        "lagrangian",
        "sub-optimal",
        all_methods("penalty", client_loss__unit1=np.ones(4), client_loss__unit2=np.ones(4)) + given(),
    ),
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


def claim(name: str, subject: str, outcomes: list[Outcome]) -> Claim:
    (found,) = (each for each in experiments.named(name).claims(outcomes) if subject in each.subject)
    return found


@pytest.mark.parametrize(("name", "subject", "broken"), BREAKS, ids=[f"{n}: {s}" for n, s, _ in BREAKS])
def test_results_that_break_a_rule_change_its_verdict(name: str, subject: str, broken: list[Outcome]) -> None:
    before, after = claim(name, subject, GOOD[name]), claim(name, subject, broken)
    if before.key in lagrangian.OF_SCHEME and name == "lagrangian":  # what is seen is told, and judges nothing
        assert before.verdict == after.verdict == "not comparable"
        assert "with ours it is so" in before.why
        assert "with ours it is not so" in after.why
    else:
        assert before.verdict != after.verdict
    assert {before.verdict, after.verdict} <= set(VERDICTS)
    assert before.ours != after.ours, "what was measured is told, too"


def test_every_claim_has_a_test_that_breaks_it() -> None:
    for name, outcomes in GOOD.items():
        for each in experiments.named(name).claims(outcomes):
            tested = any(n == name and subject in each.subject for n, subject, _ in BREAKS)
            assert tested or each.verdict == "beyond the paper", each.subject


def test_what_agrees_when_everything_is_as_the_paper_says() -> None:
    other = {
        ("transfer-function", "Estimated zeros"),  # it says that they differ
        ("transfer-function", "Low frequencies"),
        ("scalability", "Performance degrades as M grows"),  # per unit its own table does not
    }
    given = {("transfer-function", "Estimated poles")}  # the local blocks have them already
    found = experiments.named("lagrangian").claims(GOOD["lagrangian"])
    given |= {("lagrangian", each.subject) for each in found if each.key in lagrangian.OF_SCHEME}  # IMEX is ours
    assert {each.key for each in found} - set(lagrangian.OF_SCHEME) == {"tuned", "trade-off"}
    for name, outcomes in GOOD.items():
        for each in experiments.named(name).claims(outcomes):
            if each.verdict == "beyond the paper":
                assert "No rule" in each.why
                continue
            wanted = {"agrees", "agrees in order of magnitude"}
            if (name, each.subject) in other:
                wanted = {"does not hold"}
            elif (name, each.subject) in given:
                wanted = {"not comparable"}
            assert each.verdict in wanted, each.subject
            assert "Rule" in each.why


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


@pytest.mark.parametrize("name", GOOD)
def test_two_runs_decide_nothing(name: str) -> None:
    few = [outcome for outcome in GOOD[name] if outcome.task["run"] < 2]
    found = {each.verdict for each in experiments.named(name).claims(few)}
    assert found <= {"undecided", "not comparable", "beyond the paper"}
    assert "undecided" in found


def test_runs_that_scatter_decide_nothing() -> None:
    for key in ("server_loss", "disentanglement", "delta_d/unit1"):
        runs = trained()
        for run, last in zip(runs, (0.01, 1.9, 0.01, 1.9), strict=True):
            run.values[key] = np.array([2.0, 1.0, 1.0, last])  # type: ignore[index]
        name, subject = ("synthetic", "Global loss") if key == "server_loss" else ("disentanglement", "at the server")
        outcomes = runs + (control() if name == "synthetic" else sweep())
        if key != "delta_d/unit1":
            assert claim(name, subject, outcomes).verdict == "undecided"
        else:
            assert claim(name, "delta_d at client 1", outcomes).verdict == "undecided"


def test_texts_say_what_the_verdicts_say() -> None:
    def text(name: str, outcomes: list[Outcome]) -> str:
        found = experiments.named(name)
        return found.text(outcomes, found.claims(outcomes))

    assert "falls as in the paper" in text("synthetic", GOOD["synthetic"])
    assert "does not fall as in the paper" in text("synthetic", trained(server_loss=FLAT) + control())
    assert "couplings are found." in text("disentanglement", GOOD["disentanglement"])
    assert "does not mean" in text("disentanglement", trained(A=LOCAL_A, B=LOCAL_B) + sweep())
    assert "is found as well" in text("transfer-function", GOOD["transfer-function"])
    assert "is not in the published" in text("transfer-function", trained(A=LOCAL_A, B=LOCAL_B))
    assert "more smoothly than AL" in text("lagrangian", GOOD["lagrangian"])
    assert "rises again" in text("lagrangian", all_methods("hybrid", climb__late=1.1) + given())
    assert "after 10, 20, 30 rounds of AL it is smoother; after 50, 100, 150 rounds of AL it is not" in text(
        "lagrangian", GOOD["lagrangian"]
    )
    assert "grows with both" in text("scalability", scaled("M", tilt=0.5))
    assert "does not grow" in text("scalability", GOOD["scalability"])


def test_one_fact_is_one_quantity() -> None:
    for name, subject, fact in (
        ("disentanglement", "states: B_mn", WHITE_INPUTS),
        ("transfer-function", "The transfer function", WHITE_INPUTS),
        ("disentanglement", "states: A_mn", STATE_COUPLINGS),
        ("validation", "New data, client 2", NEW_DATA),
        ("validation", "Distance", SHORT_OF_ORACLE),
    ):
        assert claim(name, subject, GOOD[name]).fact == fact
    for name in ("synthetic", "disentanglement", "validation"):
        by_fact: dict[str, set[str]] = {}
        for each in experiments.named(name).claims(GOOD[name]):
            if each.subject.endswith(("client 1", "client 2")):
                assert each.fact
                by_fact.setdefault(each.fact, set()).add(each.subject[:-1])
        assert by_fact
        assert all(len(subjects) == 1 for subjects in by_fact.values()), "the two clients of one sentence are one fact"


def test_the_papers_figures_are_made_panel_by_panel() -> None:
    chapters = [report_page.chapter(experiments.named(name), GOOD[name]) for name in GOOD]
    rows = {row[0]: row for row in report_page.paper_map(chapters).rows}
    assert list(rows) == [f"Fig. {k}" for k in range(1, 6)] + ["Table 1", "Table 2", "Fig. 6", "Fig. 7", "Fig. 8"]
    for number, panels, _, here in rows.values():
        if number in ("Fig. 7", "Fig. 8"):
            assert here == "not in this report"
        else:
            assert here != "not in this report", number
            assert not panels or here.endswith(f"panels {panels}"), number
    for each in chapters:
        for figure in each.drawings.values():
            assert not figure.paper or figure.caption.startswith(f"{figure.paper} of the paper")
            drawn(figure)


def test_a_table_shows_when_the_hybrid_is_smoother() -> None:
    (table,) = experiments.named("lagrangian").tables(GOOD["lagrangian"])
    assert [row[0] for row in table.rows] == [str(at) for at in lagrangian.SWITCHES]
    assert [row[3] for row in table.rows] == ["4 of 4"] * 3 + ["0 of 4"] * 3


def test_rises_after_a_switch_are_those_of_a_hybrid_fit() -> None:
    settings = {"plant": 0, "steps": 150, "run": 1, "xi": 10.0, "rho": 20.0, "switches": [5, 10], "rounds": 30}
    values = experiments.named("lagrangian").compute(Task("lagrangian", settings))
    recording = PLANT.simulate(150, rng=1001)
    history = cf.fit(
        recording, PLANT.locals(), method="hybrid", solver="gradient", initial_scale=1.0, seed=1, tol=0.0, xi=10.0,
        rho=20.0, warm_rounds=10, rounds=20,
    ).history  # fmt: skip
    loss = history.residual_loss + 10 * history.disentanglement
    assert len(loss) == 30
    change = np.diff(np.log(loss[10:]))
    np.testing.assert_allclose(np.asarray(values["hybrid"])[1], change[change > 0].sum(), rtol=1e-9)
    assert np.asarray(values["lagrangian"]).shape == (2,)


def test_quick_and_full_runs_switch_at_the_same_round() -> None:
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


def test_with_inputs_of_mean_zero_the_corollary_cannot_be_judged() -> None:
    still = trained(mean_effect__unit1=0.01, mean_effect__unit2=0.01) + sweep()
    assert claim("disentanglement", "phi_m is", still).verdict == "not comparable"


def test_a_recovery_that_nobody_has_cannot_be_compared() -> None:
    worse = {f"error__{m}__unit1": errors(1.0, 5.0, 9.0) for m in ("proprietary", "augmented", "server")}
    assert claim("validation", "Recovery, client 1", trained(**worse)).verdict == "not comparable"


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
    assert counted(["undecided", "undecided"]) == ("undecided",)
    assert counted(["does not hold", "undecided", "undecided"]) == ("does not hold", "undecided")
    assert beyond_control("agrees", "does not hold") == "not comparable"
    assert beyond_control("undecided", "agrees") == "undecided"
    assert said("undecided", "yes", "no") == ""


def test_orders_of_magnitude() -> None:
    ones = np.ones(4)
    assert magnitude(0.5, 0.6 * ones) == magnitude(0.5, 4.9 * ones) == "agrees in order of magnitude"
    assert magnitude(0.5, 5.1 * ones) == magnitude(0.5, 0.049 * ones) == "does not hold"
    assert magnitude(0.5, 5.1 * ones, "not comparable") == "not comparable"
    assert magnitude(0.5, np.array([0.5, 50.0, 5.0, 5.0])) == "undecided"
