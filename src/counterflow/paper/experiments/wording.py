"""Sentences of the report: those of ``experiments.toml``, filled in with what an experiment knows by name."""

from __future__ import annotations

import functools
import math
import string
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.effects import HORIZON
from counterflow.paper.experiments.verdicts import Verdict, mean_and_error

ABOVE_RULE = "by two standard errors"
EXPLAINED = (
    "'By two standard errors' are those of the mean over the runs; a difference within them, or fewer than three runs, "
    "is undecided. 'By a clear majority' is two standard errors of a share of one half (4 of 4 plants, 9 of 10, 15 of "
    "20); what lies between, or rests on fewer than four plants, is undecided."
)
# facts that several experiments come across: one quantity, one sentence of the paper, or one cause, each
FACTS: Mapping[str, str] = {
    "WHITE_INPUTS": "B_mn, and effects through it, with zero-mean white inputs",
    "PERSISTENT_INPUTS": "B_mn, and effects through it, with zero-mean inputs that persist",
    "STATE_COUPLINGS": "A_mn at the stationary point",
    "ONE_ROW": "section 5.4 counts one row, a round has T",
    "NEW_DATA": "prediction of new data against the proprietary client",
    "SHORT_OF_ORACLE": "short of the oracle",
}
# what captions say of bands and bars
BAND = "Lines are means, bands the range from the least to the largest of the Monte-Carlo runs."
BARS = "Markers are means, bars the range from the least to the largest of the Monte-Carlo runs."
_SHARED: Mapping[str, object] = {
    **FACTS, "above": ABOVE_RULE, "most": "by a clear majority", "band": BAND, "bars": BARS,
    "band_of_medians": BAND.replace("means", "medians"), "bars_of_medians": BARS.replace("means", "medians"),
    "bars_of_geometric_means": BARS.replace("means", "geometric means"),
    "HORIZON": HORIZON, "dodged": "Markers of one x stand a little beside one another.",
}  # fmt: skip


@functools.cache
def texts() -> dict[str, dict[str, Any]]:
    """All of ``experiments.toml``."""
    return tomllib.loads(files(__package__).joinpath("experiments.toml").read_text(encoding="utf-8"))


class Filled(string.Formatter):
    """Fills braces with values, or else with what an experiment, its module, or all experiments call so.

    Formats of values of several runs: ``told`` (``told2``), ``median .3f``, ``percent max .2g``.
    """

    _OF: Mapping[str, Callable[[Any], Any]] = {
        "median": np.median, "mean": np.mean, "min": np.min, "max": np.max, "len": len,
        "percent": lambda value: 100 * value,
    }  # fmt: skip

    def __init__(self, speaker: object) -> None:
        self.speaker = speaker

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name = str(key)
        for known in (kwargs, _SHARED):
            if name in known:
                return known[name]
        own = hasattr(self.speaker, name)
        return getattr(self.speaker if own else sys.modules[type(self.speaker).__module__], name)

    def format_field(self, value: Any, format_spec: str) -> str:
        *steps, last = format_spec.split(" ")
        if last.startswith("told"):
            return told(value, int(last.removeprefix("told") or 3))
        if last in self._OF:
            steps, last = [*steps, last], ""
        for step in reversed(steps):
            value = self._OF[step](value)
        return str(super().format_field(value, last))


def told(values: Sequence[float] | FloatArray, digits: int = 3) -> str:
    """Mean and standard error of several runs: "2 ± 0.58"."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}g}" + (f" ± {error:.2g}" if math.isfinite(error) else "")


def told_each(found: Mapping[Any, Sequence[float] | FloatArray]) -> str:
    """The same of each name."""
    return ", ".join(f"{name} {told(values)}" for name, values in found.items())


def said(verdict: Verdict, yes: str, no: str = "", unclear: str = "") -> str:
    """The sentence that goes with a verdict: for a text that must not say what the numbers do not."""
    if verdict in ("agrees", "agrees in order of magnitude"):
        return yes
    return no if verdict == "does not hold" else unclear
