"""What an experiment is: tasks, figures, and claims with verdicts that are computed, never written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from counterflow.arrays import FloatArray

if TYPE_CHECKING:
    from counterflow.paper.experiments.figures import Drawing

Value = float | str | FloatArray
Verdict = Literal[
    "agrees",
    "agrees in order of magnitude",
    "does not hold",
    "undecided",
    "not comparable",
    "claim without number",
    "beyond the paper",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Request:
    """What the user asks of every experiment.

    Parameters
    ----------
    quick : fewer repetitions, rows or rounds, to look rather than to judge.
    hai, swat : the user's own files of the two real plants; None: generated stand-ins.
    """

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


@dataclass(frozen=True, eq=False)
class Outcome:
    """A task that is done: its values by name, and how long it took.

    Values are numbers, texts and arrays; a number or an entry that does not exist is NaN, never infinite.
    """

    task: Task
    values: Mapping[str, Value]
    seconds: float

    def array(self, key: str) -> FloatArray:
        return np.asarray(self.values[key], np.float64)

    def number(self, key: str) -> float:
        value = self.values[key]
        assert isinstance(value, float), f"{key!r} is {type(value).__name__}"
        return value

    def text(self, key: str) -> str:
        value = self.values[key]
        assert isinstance(value, str), f"{key!r} is {type(value).__name__}"
        return value


Outcomes = Sequence[Outcome]


@dataclass(frozen=True)
class Claim:
    """One statement or number of the paper beside ours.

    Parameters
    ----------
    subject : what it is about, in a few words.
    paper : the paper's number or sentence.
    ours : what was measured.
    verdict : by the rule that ``why`` states, from the results.
    why : the rule, and what explains the outcome.
    fact : claims of one fact (one quantity, one sentence of the paper, or one cause of what is found, here or in other
        experiments) count once in a summary for each kind of verdict among them; "": a fact of its own.
    key : of its texts in ``experiments.toml``; claims of several units or sizes share one.
    """

    subject: str
    paper: str
    ours: str
    verdict: Verdict
    why: str
    fact: str = ""
    key: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the report, for numbers that no figure can show: a caption, a head, and rows of texts.

    ``paper``: the paper's tables that it holds, by number.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    paper: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One result of the paper.

    Parameters
    ----------
    name, title : for the command line, and for people.
    paper : where it stands in the paper (section, figure or table).
    question : what it is to show.
    tasks : from a Request to the tasks, all of them independent of one another.
    compute : does one task; a function of a module, so that worker processes can find it. The same task gives the
        same values, in whatever process.
    figures : from the outcomes of all tasks to drawings by name (letters, digits, hyphens).
    judge : from the outcomes of all tasks to claims with verdicts.
    choices : what we chose where the paper is silent, one sentence each.
    text : what is seen, from outcomes and claims; a sentence or two for the report.
    tables : from the outcomes of all tasks to tables.
    options : the options of the command that made these outcomes, beside ``--quick``.
    revision : raised when ``compute`` changes what it gives, so that stored results of before are not used.
    """

    name: str
    title: str
    paper: str
    question: str
    tasks: Callable[[Request], tuple[Task, ...]]
    compute: Callable[[Task], Mapping[str, Value]]
    figures: Callable[[Outcomes], Mapping[str, Drawing]]
    judge: Callable[[Outcomes], Iterable[Claim]]
    choices: tuple[str, ...] = ()
    text: Callable[[Outcomes, Sequence[Claim]], str] = lambda *_: ""
    tables: Callable[[Outcomes], tuple[Table, ...]] = lambda _: ()
    options: Callable[[Outcomes], tuple[str, ...]] = lambda _: ()
    revision: int = 1

    def claims(self, outcomes: Outcomes) -> tuple[Claim, ...]:
        """All claims, with verdicts."""
        return tuple(self.judge(outcomes))
