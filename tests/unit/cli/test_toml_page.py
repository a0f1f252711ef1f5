"""Lines of a TOML text, against texts whose lines are marked by hand."""

from __future__ import annotations

import tomllib

import pytest

from counterflow.cli.toml_page import line_of, shown

TRICKY = """\
# [not.a.table]  = "no"                                  1
title = "a # b = [c]"  # comment                         2
'literal key' = 'C:\\path'
dotted.one.two = 3
multi = \"\"\"
[fake]
x = 1 \\\"\"\" still inside
\"\"\"
after = 1
raw = '''
[[fake]]
''''
[units."water treatment"]
states = 2
limits = [  # low and high
  0,

  100,
]
inline = { a = 1, b.c = [1, { d = 2 }] }
[[units.boiler.inputs]]
name = "valve"

[[units.boiler.inputs]]
"name" = "pump"
  [units.boiler.inputs.more]
  deep = true
[[units.boiler.inputs.list]]
x = 1
[[units.boiler.inputs.list]]
x = 2
[ units . pump ]
states = 1979-05-27T07:32:00Z
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("title",), 2),
        (("literal key",), 3),
        (("dotted",), 4),
        (("dotted", "one", "two"), 4),
        (("multi",), 5),
        (("after",), 9),
        (("raw",), 10),
        (("units",), 13),
        (("units", "water treatment"), 13),
        (("units", "water treatment", "limits"), 15),
        (("units", "water treatment", "limits", 0), 16),
        (("units", "water treatment", "limits", 1), 18),
        (("units", "water treatment", "inline", "b", "c", 1, "d"), 20),
        (("units", "boiler"), 21),
        (("units", "boiler", "inputs", 0, "name"), 22),
        (("units", "boiler", "inputs", 1), 24),
        (("units", "boiler", "inputs", 1, "name"), 25),
        (("units", "boiler", "inputs", 1, "more", "deep"), 27),
        (("units", "boiler", "inputs", 1, "list", 0, "x"), 29),
        (("units", "boiler", "inputs", 1, "list", 1, "x"), 31),
        (("units", "pump", "states"), 33),
        (("units", "pump", "missing", "deeper"), 32),
        (("nowhere",), 1),
        ((), 1),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines(path: tuple[str | int, ...], line: int, end: str) -> None:
    text = TRICKY.replace("\n", end)
    tomllib.loads(text)
    assert line_of(text, path) == line


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment", "a = " + "[" * 200 + "]" * 200, "[", "a", 'a = "', "= 1"]
)
def test_no_text_breaks_the_scanner(text: str) -> None:
    assert line_of(text, ("a",)) == 1


def test_paths_are_shown_as_people_write_them() -> None:
    assert shown(("units", "boiler", "inputs", 0, "limits")) == "units.boiler.inputs[0].limits"
    assert shown(("units", "water treatment", "A")) == 'units."water treatment".A'
