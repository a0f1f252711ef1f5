"""The house keeps its rooms: no import cycle between modules, every imported package declared, nothing that must go."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


@cache
def modules() -> dict[str, ast.Module]:
    out = {}
    for path in (SOURCE / "counterflow").rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        out[name] = ast.parse(path.read_text(encoding="utf-8"))
    return out


def imports(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """All of a module, those inside functions included; not those for type checkers only."""
    for_checkers = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING":
            for_checkers |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and id(node) not in for_checkers:
            yield node


def graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    out: dict[str, set[str]] = {name: set() for name in trees}
    for name, tree in trees.items():
        for node in imports(tree):
            if isinstance(node, ast.Import):
                out[name] |= {alias.name for alias in node.names if alias.name in trees}
            elif node.module is not None:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                out[name] |= {each if each in trees else node.module for each in whole}
        out[name] &= set(trees) - {name}
    return out


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(edges[start])
    while todo:
        module = todo.pop()
        if module not in seen:
            seen.add(module)
            todo += edges[module]
    return seen


def cycles(edges: dict[str, set[str]]) -> list[str]:
    return sorted(name for name in edges if name in reachable(edges, name))


def test_modules_do_not_import_each_other_in_circles() -> None:
    assert cycles(graph(modules())) == []


def test_a_circle_through_a_function_would_be_seen() -> None:
    sources = {
        "counterflow.a": "from counterflow import b",
        "counterflow.b": "def late():\n    from counterflow.a import thing",
        "counterflow.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from counterflow.d import x",
        "counterflow.d": "import counterflow.c",
        "counterflow": "",
    }
    trees = {name: ast.parse(text) for name, text in sources.items()}
    assert cycles(graph(trees)) == ["counterflow.a", "counterflow.b"]


def test_nothing_imports_the_papers_room_but_one_command_when_it_runs() -> None:
    """The method registry reaches it by name."""
    room = "counterflow.paper"
    edges = graph(modules()).items()
    users = {name for name, used in edges if any(each.startswith(room) for each in used) and not name.startswith(room)}
    assert users == {"counterflow.cli.reproduction"}
    command = modules()["counterflow.cli.reproduction"]
    at_once = [node for node in imports(command) if node in command.body]
    assert not [node for node in at_once if isinstance(node, ast.ImportFrom) and str(node.module).startswith(room)]


def test_every_package_that_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    declared = {re.split(r"[\[<>=~! ]", each)[0].lower().replace("-", "_") for each in named}
    used: set[str] = set()
    for tree in modules().values():
        for node in imports(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name.partition(".")[0] for alias in node.names}
            elif node.module is not None and not node.level:
                used.add(node.module.partition(".")[0])
    outside = {name for name in used if name not in sys.stdlib_module_names and name != "counterflow"}
    assert outside - declared == set()


@pytest.mark.parametrize("package", ["runtime", "client", "server", "counterfactual", "utils", "common"])
def test_packages_that_held_too_much_are_gone(package: str) -> None:
    assert not any(name.startswith(f"counterflow.{package}.") for name in modules())


def test_the_glossary_points_to_what_there_is():
    """Every module that it names is there, and what it names of it stands in it."""
    said = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    for path, name in re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`(?: `([A-Za-z_.]+)`)?", said):
        text = (SOURCE / "counterflow" / path).read_text("utf-8")
        assert all(re.search(rf"\b{part}\b", text) for part in name.split(".") if part), f"{path}: {name}"
