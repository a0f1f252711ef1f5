"""Caveats by weight: one table of codes, what fails first, and a verdict that covers the units on the way."""

from __future__ import annotations

import ast
import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow import caveats
from counterflow.caveats import (
    CAUTION,
    CHOICE,
    CLEAR,
    FAILS,
    Caveat,
    by_weight,
    from_text,
    to_text,
    verdict_of,
)
from counterflow.checks.verdicts import kinds
from counterflow.exchange import sensors
from counterflow.federation import reconciliation
from counterflow.protocol import Answer
from counterflow.questions.answering import with_caveats

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src" / "counterflow"
# codes that are no constant where the caveat is made
BY_TABLE = {
    "exchange/sensors.py": {code for code, _ in sensors.SENTENCES.values()},
    "federation/reconciliation.py": {code for code, _ in reconciliation._OPEN.values()},
    "checks/verdicts.py": {f"check-{name.replace(' ', '-')}-{v}" for name in kinds() for v in ("fail", "caution")},
    "caveats.py": set(),  # read from a message
}  # fmt: skip


def _known(path: Path, argument: ast.expr) -> str | None:
    """The code that is written there, or that a constant of the module holds."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.Name):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        found = getattr(importlib.import_module(".".join(("counterflow", *parts))), argument.id, None)
        return found if isinstance(found, str) else None
    return None


def _codes_in_use() -> set[str]:
    """The code of every caveat that the sources make."""
    out: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        place = str(path.relative_to(SOURCES))
        tree = ast.parse(path.read_text())
        made = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") in ("Caveat", "add")]
        if not any(getattr(call.func, "id", "") == "Caveat" for call in made):
            continue
        for call in made:
            code = _known(path, call.args[0]) if call.args else None
            inside_add = code is None and place == "exchange/rows.py"
            assert code or inside_add or place in BY_TABLE, f"{place}:{call.lineno}: the code cannot be read"
            out |= {code} if code else BY_TABLE.get(place, set())
    return out


def _documented() -> dict[str, str]:
    """{code: weight} of the table of the docs."""
    text = (ROOT / "docs" / "how-to" / "read-an-answer.md").read_text()
    rows = [
        line.split("|")[1:3] for line in text.split("### Caveats by code")[1].splitlines() if line.startswith("| `")
    ]
    return {code: weight.strip() for codes, weight in rows for code in re.findall("`([^`]+)`", codes)}


def test_every_code_in_use_has_a_row_in_the_docs_with_its_weight() -> None:
    codes, documented = _codes_in_use(), _documented()
    assert len(codes) > 50
    assert {code for code in codes if not code.startswith("check-")} <= set(documented)
    checks = {"check-NAME-fail": FAILS, "check-feedback-caution": CAUTION}
    assert checks.items() <= documented.items()
    others = set(documented) - set(checks)
    assert others - codes <= {"audit-behind", "ledger-behind"}, "a row of a code that nothing has"
    assert {code: documented[code] for code in others} == {code: caveats.weight_of(code) for code in others}
    assert others >= caveats._FAILING | caveats._CHOSEN, "a weight of a code that nothing has"
    assert {caveats.weight_of(code) for code in codes if code.endswith("-fail")} == {FAILS}


def test_what_fails_comes_first_and_is_never_left_out() -> None:
    notes = [Caveat("model-form", "", f"choice {k}") for k in range(caveats.MOST + 10)]
    heavy = [Caveat("closed-units", "", "a caution"), Caveat("check-whiteness-fail", "", "a failure")]
    assert [c.code for c in by_weight([*notes, *heavy])[:3]] == ["check-whiteness-fail", "closed-units", "model-form"]
    back = from_text(to_text([*notes, *heavy]))
    assert len(back) == caveats.MOST
    assert [c.code for c in back[:2]] == ["check-whiteness-fail", "closed-units"]
    long = [Caveat("model-form", "", f"{k} " + 3000 * "x") for k in range(100)]
    empty = Answer("a", "effect", "", "", np.zeros((1, 1)), np.zeros((0, 1)))
    assert with_caveats([empty], [*long, *heavy])[0].noted[0].code == "check-whiteness-fail"


def test_a_message_does_not_say_how_much_its_caveats_weigh() -> None:
    assert all(set(entry) == {"code", "scope", "text"} for entry in json.loads(to_text([Caveat("private", "", "x")])))
    with pytest.raises(cf.CounterflowError):
        from_text(json.dumps([{"code": "not-converged", "scope": "", "text": "x", "weight": "choice"}]))


def test_a_code_of_a_newer_version_asks_for_caution() -> None:
    assert Caveat("something-new", "", "x").weight == CAUTION
    assert verdict_of([]) == CLEAR == verdict_of([Caveat("private", "", "x")])
    assert Caveat("private", "", "x").weight == CHOICE


@pytest.fixture(scope="module")
def chain() -> cf.Fit:
    """a -> b -> c -> d, and nothing back."""
    plant = cf.random_plant(["a", "b", "c", "d"], topology="chain", rng=3)
    ways = [("a", "b"), ("b", "c"), ("c", "d")]
    return cf.fit(plant.simulate(1500, rng=4), plant.locals(), edges=ways)


def test_the_units_on_the_way(chain: cf.Fit) -> None:
    assert chain.server.units_passed(["a"], "c") == {"a", "b", "c"}
    assert chain.server.units_passed(["c"], "a") == {"a", "c"}
    assert chain.server.units_passed([], "b") == {"a", "b"}
    assert chain.server.units_passed(["b", "c"], "d") == {"b", "c", "d"}


@pytest.mark.parametrize(("failing", "verdict"), [("a", FAILS), ("b", FAILS), ("c", FAILS), ("d", CLEAR)])
def test_the_verdict_covers_every_unit_on_the_way(chain: cf.Fit, failing: str, verdict: str) -> None:
    wrong = Caveat("check-whiteness-fail", failing, f"check 'whiteness' fails for {failing}")
    fit = replace(chain, server_caveats=(*chain.server_caveats, wrong))
    answer = fit.effect("a", "c", {"u1": 1.0}, horizon=5)
    assert answer.verdict == verdict
    assert (wrong in answer.caveats) == (verdict == FAILS)
    assert (f"fails: {wrong}" in str(answer)) == (verdict == FAILS)
    assert wrong in fit.caveats


def test_the_way_of_a_network_is_that_of_its_weights() -> None:
    plant = cf.random_plant(["a", "b", "c"], topology="chain", rng=1)
    fit = cf.fit(plant.simulate(1500, rng=2), forbidden=[("c", "b"), ("b", "a"), ("c", "a"), ("a", "c")])
    server = fit.server
    assert server.units_passed(["a"], "b") == {"a", "b"}
    assert server.units_passed(["a"], "c") == {"a", "b", "c"}


def test_choices_are_told_with_the_fit_and_not_under_an_answer() -> None:
    plant = cf.random_plant(["a", "b"], rng=1)
    fit = cf.fit(plant.simulate(800, rng=2))
    answer = fit.effect("a", "b", {"u1": 0.5}, horizon=5)
    form = next(caveat for caveat in fit.caveats if caveat.code == "model-form")
    assert form in answer.caveats
    assert str(form) not in str(answer)
    assert f"choice: {form}" in fit.summary()
