"""What is to be done: one job of a federation.

The coordinator has the whole of it. A plant gets its own part (``Job.part_for``): of other units it is told the names,
and nothing of their inputs, limits or options. What all parties have alike is one digest (``Job.digest``).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from counterflow.errors import CounterflowError, ModelError, OptionError, StorageError
from counterflow.exchange.registry import FEDERATED, method_of
from counterflow.exchange.task import Task
from counterflow.plant import Channel, PublicUnit
from counterflow.printable import checked
from counterflow.privacy import Privacy
from counterflow.records import describe, restore, strict_json

FORMAT = 2
QUESTIONS = "questions"
FITS = tuple(FEDERATED)
METHODS = (*FITS, QUESTIONS)
LARGEST_TEXT = 1 << 20
MOST_UNITS = 1000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Plain = bool | int | float | str | None
Option = Plain | Mapping[str, Plain] | list[list[str]] | tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Job(Task):
    """One job.

    Parameters
    ----------
    id : 1 to 64 letters, digits, dots, dashes or underscores; unique in the federation, because files are called so.
    method : "sufficient", a published method, or "questions" (what-ifs, after a fit).
    inputs : {unit: its input channels in order}; the order of the units is that of the estimate.
    options : of the method, as in ``counterflow.fit``; numbers, text, true or false, {unit: number}, or [[unit, unit]].
    seed : as in ``counterflow.fit``.
    privacy : what is asked of every unit; where a unit keeps its ledger is its own affair. If it does not say what is
        released, that is rows: ``CoordinatorFolder.new_job`` says moments where all plants let others be shown them.
    from_logs : units have no models, the server identifies the system ("sufficient" only).
    dt : seconds between rows.
    created : UTC, ISO 8601, by the coordinator's clock alone. Of two jobs the later one is the one with the later time:
        ``CoordinatorFolder.new_job`` sees to it, whatever the clock does.
    begins : time of row 0 of every unit's log, as the logs say it; a unit whose log begins at another time takes no
        part. "": rows are taken to be of the same moments.

    Examples
    --------
    >>> job = Job("demo-1", "sufficient", {"boiler": ["fuel"], "turbine": []}, options={"tol": 1e-6})
    >>> Job.from_text(job.to_text()).to_text() == job.to_text(), job.units
    (True, ('boiler', 'turbine'))
    """

    id: str
    method: str
    inputs: Mapping[str, tuple[Channel, ...]]
    options: Mapping[str, Option] = field(default_factory=dict)
    seed: int = 0
    privacy: Privacy | None = None
    from_logs: bool = False
    dt: float = 1.0
    created: str = ""
    begins: str = ""

    def __post_init__(self) -> None:
        if not self.created:
            object.__setattr__(self, "created", datetime.now(UTC).isoformat(timespec="microseconds"))
        number = isinstance(self.dt, int | float) and not isinstance(self.dt, bool)
        inputs = isinstance(self.inputs, Mapping) and 1 <= len(self.inputs) <= MOST_UNITS
        rules = {
            "id": (_is_id(self.id), "1 to 64 letters, digits, dots, dashes or underscores, after a letter or digit"),
            "method": (self.method in METHODS, f"one of {', '.join(METHODS)}"),
            "inputs": (inputs, f"{{unit: its channels}} of 1 to {MOST_UNITS} units"),
            "seed": (type(self.seed) is int and 0 <= self.seed < 2**53, "a whole number of at least 0"),
            "privacy": (isinstance(self.privacy, Privacy | None), "a Privacy, or None"),
            "dt": (number and 0 < self.dt < math.inf, "a finite number above 0"),
            "from_logs": (isinstance(self.from_logs, bool), "true or false"),
            "created": (_is_time(self.created), "a time in ISO 8601 with its zone"),
        }
        for name, (holds, wanted) in rules.items():
            if not holds:
                whose = "job" if name == "id" else self.label
                raise OptionError(f"{whose}: {name} must be {wanted}, got {getattr(self, name)!r:.80}")
        checked(self.begins, f"{self.label}: begins, the time of the first row,", 60, OptionError)
        units = [_unit(self.label, name, channels) for name, channels in self.inputs.items()]
        object.__setattr__(self, "inputs", MappingProxyType({unit.name: unit.inputs for unit in units}))
        object.__setattr__(self, "dt", float(self.dt))
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        if self.method == QUESTIONS:
            if set(self.options) != {"of"} or not _is_id(self.options["of"]):
                raise OptionError(f"{self.label}: questions have one option, 'of': the job whose fit is asked about")
            if self.privacy is not None or self.from_logs:
                raise OptionError(f"{self.label}: questions have no privacy and no from_logs")
            return
        if self.options.get("compress"):
            raise OptionError(f"{self.label}: option 'compress' pools the units' data, so it is for one process")
        if self.privacy is not None and self.privacy.ledger is not None:
            raise OptionError(f"{self.label}: where a ledger lies is each unit's own affair; leave 'ledger' out")
        if self.privacy is not None and self.privacy.release is None and not self.from_logs:
            # moments show each plant signals of others' inputs: without anybody's word that all let them, rows
            release = "moments" if self.method == "moments" else "rows"
            if self.privacy.accounting == "rigorous":
                object.__setattr__(self, "privacy", replace(self.privacy, release=release))
        try:
            method_of(self).check(self)
        except ModelError as error:
            raise OptionError(str(error)) from error

    @property
    def label(self) -> str:
        return f"job {self.id!r}"

    @property
    def order(self) -> tuple[datetime, str]:
        """By which the later one of two jobs is told."""
        return datetime.fromisoformat(self.created), self.id

    def part_for(self, unit: str) -> Job:
        """What one plant needs of it, and no more: of other units the names; of options by unit, its own.

        Pairs of units (``edges``, ``forbidden``) are for the server alone: a plant is not told who acts on whom.

        Examples
        --------
        >>> job = Job("fit-1", "sufficient", {"boiler": ["fuel"], "turbine": ["valve"]})
        >>> part = job.part_for("turbine")
        >>> dict(part.inputs)["boiler"], part.input_names("turbine"), part.digest == job.digest
        ((), ('valve',), True)
        """
        inputs = {name: channels if name == unit else () for name, channels in self.inputs.items()}
        options = {
            name: value.get(unit) if isinstance(value, Mapping) else value
            for name, value in self.options.items()
            if not isinstance(value, list | tuple)
        }
        return replace(self, inputs=inputs, options=options)

    def part_texts(self, units: Iterable[str]) -> dict[str, str]:
        """The parts of these plants, each as text."""
        return {unit: self.part_for(unit).to_text() for unit in units}

    @property
    def digest(self) -> str:
        """Of what all parties have alike: by it they know that they speak of one job."""
        alike = {name: value for name, value in self.to_json().items() if name not in ("inputs", "options")}
        text = json.dumps([alike, list(self.units)], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    # ---- as text

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        return {"format": FORMAT, **describe(self)[0]}

    def to_text(self) -> str:
        """JSON that is the same for the same job."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: str | bytes) -> Job:
        """A job from JSON, trusting nothing: unknown keys, other types and other formats are refused."""
        if len(text) > LARGEST_TEXT:
            raise OptionError(f"job: a text of {len(text)} is over the limit of {LARGEST_TEXT}")
        try:
            return cls.from_json(strict_json(text))
        except ValueError as error:
            raise error if isinstance(error, CounterflowError) else OptionError("job: this is not JSON") from None

    @classmethod
    def from_json(cls, found: object) -> Job:
        """The same from plain types."""
        told = dict(found) if isinstance(found, dict) else {}
        if (made := told.pop("format", None)) != FORMAT:
            raise OptionError(f"job: format {made!r:.20}, here it is {FORMAT}: upgrade the older side")
        if not told.get("created"):
            raise OptionError("job: created must be a time")
        try:
            return restore(cls, told, {})
        except StorageError as error:
            raise OptionError(f"job: {error}") from error


def _unit(label: str, name: object, channels: object) -> PublicUnit:
    try:
        made = PublicUnit(name, channels, 1)  # type: ignore[arg-type]
        for text in (made.name, *made.input_names):
            checked(text, f"{label}: a name", error=OptionError)
        return made
    except CounterflowError as error:
        raise OptionError(f"{label}: {error}") from error
    except TypeError:
        raise OptionError(f"{label}: unit {name!r:.80} needs a list of input channels") from None


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_time(value: object) -> bool:
    try:
        text = checked(value, "a time", 60, OptionError)
        return text.isascii() and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:  # OptionError is one
        return False
