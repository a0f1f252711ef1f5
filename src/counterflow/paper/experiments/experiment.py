"""What an experiment is: tasks to be done, and an object that knows by name what their results say.

A subclass names its tasks and does one of them. Made from the outcomes of all, it computes quantities; claims with
verdicts, figures, tables and the sentences of ``experiments.toml`` speak of these by name.
"""

from __future__ import annotations

import string
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.effects import HORIZON
from counterflow.paper.experiments.figures import Curve, Drawing, Middle, Panel, band
from counterflow.paper.experiments.verdicts import Verdict, both, said, told

Value = float | str | FloatArray

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


@dataclass(frozen=True)
class Request:
    """What the user asks of every experiment; ``hai``, ``swat``: files of the two real plants; None: stand-ins."""

    quick: bool = False
    hai: Path | None = None
    swat: Path | None = None


@dataclass(frozen=True)
class Task:
    """One piece of work, small enough to be repeated if it is lost.

    ``experiment`` names the one whose ``compute`` does it; several experiments may ask for the same task, and it is
    then done once. ``settings`` are plain JSON values and say everything that the result depends on, seeds included.
    """

    experiment: str
    settings: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]


def grid(experiment: str, axes: Mapping[str, Sequence[Any]], **fixed: Any) -> tuple[Task, ...]:
    """Tasks with every combination of values of some settings, the last of them varying fastest."""
    return tuple(
        Task(experiment, {**fixed, **dict(zip(axes, values, strict=True))}) for values in product(*axes.values())
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """A task that is done. Values are numbers, texts and arrays; what does not exist is NaN, never infinite."""

    task: Task
    values: Mapping[str, Value]
    seconds: float

    def array(self, key: str) -> FloatArray:
        return np.asarray(self.values[key], np.float64)


@dataclass(frozen=True)
class Claim:
    """One statement or number of the paper beside ours; ``why``: the rule of the verdict, and what explains it.

    Claims with one ``fact`` (one quantity, one sentence of the paper, or one cause, here or in other experiments) count
    once in a summary for each kind of verdict among them. ``key``: of its texts; claims of several units share one.
    ``seen``: the verdict that the sentences of ``text`` go by, if it is another.
    """

    subject: str
    paper: str
    ours: str
    verdict: Verdict
    why: str
    fact: str = ""
    key: str = ""
    seen: Verdict | None = None


@dataclass(frozen=True)
class Table:
    """A table of the report; ``paper``: the paper's tables that it holds, by number."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    paper: tuple[str, ...] = ()


@cache
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
        if name in (known := {**_SHARED, **kwargs}):
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


class Experiment:
    """One result of the paper, made again; an object of it holds the outcomes of its tasks.

    ``name``, ``title``, ``paper`` (where the result stands in it), ``question`` and ``choices`` (ours, where the paper
    is silent) are texts. ``revision`` is raised when ``compute`` changes what it gives, so that stored results of
    before are not used.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    question: ClassVar[str]
    revision: ClassVar[int]

    def __init_subclass__(cls, name: str = "", revision: int = 1) -> None:
        if name:  # of ``experiments.toml``; others bring their own texts
            cls.name, cls.revision, own = name, revision, texts()[name]
            cls.title, cls.paper, cls.question = own["title"], own["paper"], own["question"]

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = outcomes

    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """What to compute, all tasks independent of one another."""
        raise NotImplementedError

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """Do one task: the same task gives the same values, in whatever process."""
        raise NotImplementedError

    def judge(self) -> Iterable[Claim]:
        """Claims with verdicts that are computed, never written by hand."""
        raise NotImplementedError

    def draw(self) -> Mapping[str, Drawing]:
        """Figures by the names of their files (letters, digits, hyphens)."""
        return {}

    def tabulate(self) -> Iterable[Table]:
        return ()

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the command that made these outcomes, beside ``--quick``."""
        return ()

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(self.judge())

    @cached_property
    def figures(self) -> Mapping[str, Drawing]:
        return self.draw()

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        return tuple(self.tabulate())

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    # ---- outcomes, by the settings of their tasks

    def where(self, **settings: Any) -> list[Outcome]:
        """Those whose tasks have all these settings; ``...`` stands for any value."""
        tasks = ((outcome, outcome.task.settings) for outcome in self.outcomes)
        return [o for o, own in tasks if all(k in own and v in (..., own[k]) for k, v in settings.items())]

    def levels(self, setting: str, **settings: Any) -> tuple[Any, ...]:
        """All values of a setting, least first."""
        return tuple(sorted({outcome.task[setting] for outcome in self.where(**settings)}))

    def of(self, key: str | Callable[[Outcome], ArrayLike], by: str = "", **settings: Any) -> FloatArray:
        """A number or an array of every outcome: one row for each run; and, if asked ``by`` a setting, one column for
        each value of it, least first.
        """
        if by:
            columns = [self.of(key, **{**settings, by: level}) for level in self.levels(by, **settings)]
            return np.stack(columns, axis=1)
        return np.stack([o.array(key) if isinstance(key, str) else np.asarray(key(o)) for o in self.where(**settings)])

    def course(self, key: str, label: str, colour: int = 0, middle: Middle = "mean", **settings: Any) -> Curve:
        """A series of all runs against the rounds of the training."""
        return band(self.of("round", **settings)[0], self.of(key, **settings), label, colour, middle=middle)

    # ---- sentences

    def filled(self, text: str, **values: object) -> str:
        """A text with values, or else with quantities of this experiment, for the names in braces."""
        return Filled(self).vformat(text, (), values)

    @property
    def choices(self) -> tuple[str, ...]:
        own = texts()[self.name]
        shared = (choice for each in own.get("shared", ()) for choice in texts()["shared"][each])
        return (*shared, *map(self.filled, own.get("choices", ())))

    def claim(self, key: str, verdict: Verdict, **values: object) -> Claim:
        """The claim of that key in ``experiments.toml``."""
        parts = texts()[self.name]["claims"][key].items()
        said: Any = {part: self.filled(text, **values) for part, text in parts}
        return Claim(verdict=verdict, key=key, **said)

    def caption(self, key: str, **values: object) -> str:
        return self.filled(texts()[self.name]["captions"][key], **values)

    def drawing(self, key: str, panels: Iterable[Panel], **layout: Any) -> Drawing:
        """A figure with the caption of that key."""
        return Drawing(self.caption(key), tuple(panels), **layout)

    def verdict_of(self, *keys: str) -> Verdict:
        """Of the claim of that key; of several, of all of them together."""
        found = [claim.seen or claim.verdict for claim in self.claims if claim.key in keys]
        assert found, f"no claim is {' or '.join(keys)}"
        return both(*found) if len(found) > 1 else found[0]

    @property
    def text(self) -> str:
        """What is seen: a sentence or two. One there goes with the verdict of claims, or with a quantity (``if``)."""
        parts = []
        for each in texts()[self.name].get("text", ()):
            if "if" in each and not getattr(self, each["if"]):
                continue
            verdict = self.verdict_of(*each["claims"]) if "claims" in each else "agrees"
            parts.append(self.filled(said(verdict, *(each.get(key, "") for key in ("yes", "no", "unclear")))))
        return " ".join(filter(None, parts))
