"""Grids of tasks, and outcomes selected by the settings of their tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.experiment import Outcome, Outcomes, Task


def grid(experiment: str, axes: Mapping[str, Sequence[Any]], **fixed: Any) -> tuple[Task, ...]:
    """Tasks with every combination of values of some settings, the last of them varying fastest.

    Examples
    --------
    >>> [dict(task.settings) for task in grid("privacy", {"epsilon": (1.0, 3.0)}, run=0)]
    [{'run': 0, 'epsilon': 1.0}, {'run': 0, 'epsilon': 3.0}]
    """
    return tuple(
        Task(experiment, {**fixed, **dict(zip(axes, values, strict=True))}) for values in product(*axes.values())
    )


def where(outcomes: Outcomes, **settings: Any) -> list[Outcome]:
    """Those outcomes whose tasks have all these settings; ``...`` stands for any value."""
    return [
        outcome
        for outcome in outcomes
        if all(
            key in outcome.task.settings and (value is ... or outcome.task[key] == value)
            for key, value in settings.items()
        )
    ]


def stacked(outcomes: Outcomes, key: str) -> FloatArray:
    """A number or an array of every outcome, one row for each."""
    return np.stack([outcome.array(key) for outcome in outcomes])


def by_setting(outcomes: Outcomes, setting: str, of: str | Callable[[Outcome], float]) -> FloatArray:
    """A number of every run: one row for each run, one column for each value of a setting, least first."""
    columns = sorted({outcome.task[setting] for outcome in outcomes})
    number = (lambda outcome: outcome.number(of)) if isinstance(of, str) else of
    return np.array([[number(o) for o in where(outcomes, **{setting: column})] for column in columns]).T
