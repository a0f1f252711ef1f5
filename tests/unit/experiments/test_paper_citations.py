"""Citations of the paper name something that is there: its statements by kind and number, its equations by number."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
# as LaTeX numbers them; sections of the appendix are A to E
STATEMENTS = {
    "Proposition": {"4.1", "A.11", "A.12", "B.1", "E.1"},
    "Assumption": {"4.2", "5.1", "5.2", "5.4", "8.1", "A.3", "A.4"},
    "Claim": {"5.3", "5.5"},
    "Theorem": {"6.1", "8.3"},
    "Corollary": {"6.2", "A.13"},
    "Lemma": {"8.2", "A.6", "A.8"},
    "Definition": {"A.1", "A.2", "A.5", "A.9", "A.10"},
    "Remark": {"A.7"},
}
HEADED = {("Lemma", "7.2"), ("Theorem", "7.3")}  # what stands above the proofs of 8.2 and 8.3; in quotes here
EQUATIONS = 27
_STATEMENT = re.compile(rf"(.?)\b({'|'.join(STATEMENTS)})s? ((?:[A-E]|\d)\.\d+)\b")
_EQUATION = re.compile(r"\bEqs?\. \((\d+)\)(?:(?:-|, | and )\((\d+)\))*")


def texts() -> dict[str, str]:
    kinds = ("src/**/*.py", "src/**/*.toml", "tests/**/*.py", "docs/**/*.md", "docs/**/*.py", "*.md")
    found = [path for kind in kinds for path in ROOT.glob(kind) if path != Path(__file__)]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


def test_every_statement_that_is_cited_is_one_of_the_papers() -> None:
    count = 0
    for name, text in texts().items():
        for before, kind, number in _STATEMENT.findall(text):
            count += 1
            quoted = before in "\"'" and (kind, number) in HEADED
            assert number in STATEMENTS[kind] or quoted, f"{name}: {kind} {number}"
    assert count > 50


def test_every_equation_that_is_cited_is_one_of_the_papers() -> None:
    count = 0
    for name, text in texts().items():
        for match in _EQUATION.finditer(text):
            for number in re.findall(r"\d+", match[0]):
                count += 1
                assert 1 <= int(number) <= EQUATIONS, f"{name}: {match[0]}"
    assert count > 10


def test_modules_cite_the_equations_that_they_implement() -> None:
    """h_a, ĥ_a, r_a; the chain rule; the clients' steps; h_s, r_s and L_s; Q3."""
    package = "src/counterflow"
    for path, cited in {
        f"{package}/paper/augmented.py": ("Eqs. (4)-(6)", "Eqs. (7)-(8)", "Eq. (12)"),
        f"{package}/paper/unit.py": ("Eqs. (9)-(10)",),
        f"{package}/paper/couplings.py": ("Eqs. (11)-(13)", "Lemma A.8"),
        f"{package}/paper/contraction.py": ("Assumptions A.3 and A.4", "Lemma A.6"),
        f"{package}/questions/aggregate.py": ("Eq. (20)",),
    }.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert all(each in text for each in cited), path
