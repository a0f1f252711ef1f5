"""The notebook of the first tutorial runs from its first cell to its last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import counterflow as cf

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "your-first-csv.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    assert all(not cell.get("outputs") for cell in cells)  # what it shows is made when it runs
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, {cell['id']}", "exec"), names)
    said = capsys.readouterr().out
    assert "FIC-101.SP been 1 m3/h higher from 2024-11-01 16:00 to 16:59" in said
    assert "in truth" in said
    assert isinstance(names["fit"], cf.Fit)
