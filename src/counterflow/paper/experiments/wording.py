"""Texts of experiments: those in ``experiments.toml``, filled in with results, and rules and facts of several."""

from __future__ import annotations

import functools
import math
import string
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.effects import HORIZON
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcomes, Request, Task, Value, Verdict
from counterflow.paper.experiments.figures import Drawing
from counterflow.paper.experiments.verdicts import both, mean_and_error

ABOVE_RULE = "by two standard errors"
MOST_RULE = "by a clear majority"
EXPLAINED = (
    "'By two standard errors' are those of the mean over the runs; a difference within them, or fewer than three runs, "
    "is undecided. 'By a clear majority' is two standard errors of a share of one half (4 of 4 plants, 9 of 10, 15 of "
    "20); what lies between, or rests on fewer than four plants, is undecided."
)
# facts that several experiments come across: one quantity, one sentence of the paper, or one cause, each
WHITE_INPUTS = "B_mn, and effects through it, with zero-mean white inputs"
PERSISTENT_INPUTS = "B_mn, and effects through it, with zero-mean inputs that persist"
STATE_COUPLINGS = "A_mn at the stationary point"
ONE_ROW = "section 5.4 counts one row, a round has T"
NEW_DATA, SHORT_OF_ORACLE = "prediction of new data against the proprietary client", "short of the oracle"
# what captions say of bands and bars
BAND = "Lines are means, bands the range from the least to the largest of the Monte-Carlo runs."
BARS = "Markers are means, bars the range from the least to the largest of the Monte-Carlo runs."
_SHARED: Mapping[str, object] = {
    "above": ABOVE_RULE, "most": MOST_RULE, "WHITE_INPUTS": WHITE_INPUTS, "PERSISTENT_INPUTS": PERSISTENT_INPUTS,
    "STATE_COUPLINGS": STATE_COUPLINGS, "ONE_ROW": ONE_ROW, "NEW_DATA": NEW_DATA,
    "SHORT_OF_ORACLE": SHORT_OF_ORACLE, "band": BAND, "bars": BARS,
    "band_of_medians": BAND.replace("means", "medians"), "bars_of_medians": BARS.replace("means", "medians"),
    "bars_of_geometric_means": BARS.replace("means", "geometric means"),
    "HORIZON": HORIZON, "dodged": "Markers of one x stand a little beside one another.",
}  # fmt: skip


class _Formatter(string.Formatter):
    """Format specifications for values of several runs: ``told`` (``told2``), ``median .3f``, ``percent max .2g``."""

    _OF: Mapping[str, Callable[[Any], Any]] = {
        "median": np.median, "mean": np.mean, "min": np.min, "max": np.max, "len": len,
        "percent": lambda value: 100 * value,
    }  # fmt: skip

    def format_field(self, value: Any, format_spec: str) -> str:
        *steps, last = format_spec.split(" ")
        if last.startswith("told"):
            return told(value, int(last.removeprefix("told") or 3))
        if last in self._OF:
            steps, last = [*steps, last], ""
        for step in reversed(steps):
            value = self._OF[step](value)
        return str(super().format_field(value, last))


def filled(experiment: str, text: str, /, **values: object) -> str:
    """A text of ``experiments.toml`` with values for the names in braces, or else what the module calls so.

    Examples
    --------
    >>> filled("overhead", "{x[penalty]:told}, at most {x[penalty]:percent max .2g} %", x={"penalty": [0.1, 0.2, 0.3]})
    '0.2 ± 0.058, at most 30 %'
    """
    module = sys.modules.get(f"counterflow.paper.experiments.{experiment.replace('-', '_')}")
    return _Formatter().vformat(text, (), {**vars(module), **_SHARED, **values} if module else {**_SHARED, **values})


@functools.cache
def _texts() -> dict[str, dict[str, Any]]:
    text = files("counterflow.paper.experiments").joinpath("experiments.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def claim(experiment: str, key: str, verdict: Verdict, /, **values: object) -> Claim:
    """The claim of that key in ``experiments.toml``, with its verdict."""
    parts = {part: filled(experiment, text, **values) for part, text in _texts()[experiment]["claims"][key].items()}
    return Claim(verdict=verdict, key=key, **parts)


def caption(experiment: str, key: str, /, **values: object) -> str:
    """The caption of a figure or table in ``experiments.toml``."""
    return filled(experiment, _texts()[experiment]["captions"][key], **values)


def summary(experiment: str, claims: Sequence[Claim], **values: object) -> str:
    """What is seen: the sentences of ``experiments.toml`` that go with the verdicts.

    A text there may name claims, whose verdict chooses the sentence, and a value (``if``) without which there is none.
    """
    parts = []
    for each in _texts()[experiment].get("text", ()):
        which = _outcome(verdict_of(claims, *each["claims"])) if "claims" in each else "yes"
        if "if" not in each or values[each["if"]]:
            parts.append(filled(experiment, each.get(which, ""), **values))
    return " ".join(part for part in parts if part)


def described(
    name: str,
    tasks: Callable[[Request], tuple[Task, ...]],
    compute: Callable[[Task], Mapping[str, Value]],
    figures: Callable[[Outcomes], Mapping[str, Drawing]],
    judge: Callable[[Outcomes], Iterable[Claim]],
    **more: Any,
) -> Experiment:
    """An experiment whose title, question, choices and text stand in ``experiments.toml``; ``more`` is the rest."""
    texts, own = _texts(), _texts()[name]
    shared = [choice for each in own.get("shared", ()) for choice in texts["shared"][each]]
    choices = (*shared, *(filled(name, choice) for choice in own.get("choices", ())))
    more.setdefault("text", lambda _, claims: summary(name, claims))
    return Experiment(
        name, own["title"], own["paper"], own["question"], tasks, compute, figures, judge, choices, **more
    )


def told(values: Sequence[float] | FloatArray, digits: int = 3) -> str:
    """Mean and standard error of several runs as text.

    Examples
    --------
    >>> told([1.0, 2.0, 3.0])
    '2 ± 0.58'
    """
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}g}" + (f" ± {error:.2g}" if math.isfinite(error) else "")


def verdict_of(claims: Sequence[Claim], *keys: str) -> Verdict:
    """Of the claim of that key; of several, of all of them together."""
    found = [claim.verdict for claim in claims if claim.key in keys]
    assert found, f"no claim is {' or '.join(keys)}"
    return both(*found) if len(found) > 1 else found[0]


def said(verdict: Verdict, yes: str, no: str = "", unclear: str = "") -> str:
    """The sentence that goes with a verdict: for a text that must not say what the numbers do not."""
    return {"yes": yes, "no": no, "unclear": unclear}[_outcome(verdict)]


def _outcome(verdict: Verdict) -> str:
    if verdict in ("agrees", "agrees in order of magnitude"):
        return "yes"
    return "no" if verdict == "does not hold" else "unclear"
