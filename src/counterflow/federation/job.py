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

from counterflow.errors import CounterflowError, ModelError, OptionError
from counterflow.exchange.registry import FEDERATED, method_of
from counterflow.exchange.task import Task
from counterflow.plant import Channel, PublicUnit
from counterflow.printable import checked
from counterflow.privacy import Privacy

FORMAT = 1
QUESTIONS = "questions"
FITS = tuple(FEDERATED)
METHODS = (*FITS, QUESTIONS)
LARGEST_TEXT = 1 << 20
MOST_UNITS = 1000
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PRIVACY = ("epsilon", "delta", "clip", "window", "accounting", "models", "start", "seed", "release")
_PLAIN = ("id", "method", "options", "seed", "from_logs", "dt", "created", "begins")
_KEYS = ("format", "units", "privacy", *_PLAIN)


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
    options: Mapping[str, Any] = field(default_factory=dict)
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
            "options": (isinstance(self.options, Mapping), "a table"),
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
        for name, value in self.options.items():
            checked(name, f"{self.label}: the name of an option", error=OptionError)
            _plain(f"{self.label}: option {name!r}", value)
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
        alike = {name: value for name, value in self.to_json().items() if name not in ("units", "options")}
        text = json.dumps([alike, list(self.units)], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    # ---- as text

    def to_json(self) -> dict[str, Any]:
        """Everything, in plain types."""
        privacy: dict[str, Any] | None = None
        if self.privacy is not None:
            privacy = {name: getattr(self.privacy, name) for name in _PRIVACY}
            if isinstance(privacy["models"], tuple):
                privacy["models"] = list(privacy["models"])
        inputs = {name: [channel.to_json() for channel in channels] for name, channels in self.inputs.items()}
        units = [{"name": name, "inputs": channels} for name, channels in inputs.items()]
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {"format": FORMAT, **plain, "units": units, "options": dict(self.options), "privacy": privacy}

    def to_text(self) -> str:
        """JSON that is the same for the same job."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_text(cls, text: str | bytes) -> Job:
        """A job from JSON, trusting nothing: unknown keys, other types and other formats are refused."""
        if len(text) > LARGEST_TEXT:
            raise OptionError(f"job: a text of {len(text)} is over the limit of {LARGEST_TEXT}")
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise OptionError("job: this is not JSON") from None
        return cls.from_json(found)

    @classmethod
    def from_json(cls, found: object) -> Job:
        """The same from plain types."""
        table = _table("job", found, _KEYS)
        if table["format"] != FORMAT:
            raise OptionError(f"job: format {table['format']!r:.20}, here it is {FORMAT}: upgrade the older side")
        inputs: dict[str, Any] = {}
        if not isinstance(table["units"], list):
            raise OptionError("job: units must be a list")
        for entry in table["units"][: MOST_UNITS + 1]:
            unit = _table("job: a unit", entry, ("name", "inputs"))
            if not isinstance(unit["name"], str) or unit["name"] in inputs or not isinstance(unit["inputs"], list):
                raise OptionError(f"job: unit {unit['name']!r:.80} is named twice, or is no unit")
            try:
                inputs[unit["name"]] = [Channel.from_json(entry) for entry in unit["inputs"]]
            except CounterflowError as error:
                raise OptionError(f"job: {error}") from error
        privacy = None
        if table["privacy"] is not None:
            settings = _table("job: privacy", table["privacy"], _PRIVACY)
            if isinstance(settings["models"], list):
                settings["models"] = tuple(settings["models"])
            privacy = Privacy(**settings)
        if not isinstance(table["created"], str) or not table["created"]:
            raise OptionError(f"job: created must be a time, got {table['created']!r:.80}")
        return cls(inputs=inputs, privacy=privacy, **{name: table[name] for name in _PLAIN})


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


def _table(label: str, found: object, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise OptionError(f"{label} must be a table, got {type(found).__name__}")
    if set(found) != set(keys):
        odd = sorted(map(str, set(found) ^ set(keys)))
        raise OptionError(f"{label} has the keys {', '.join(keys)}; unknown or missing: {', '.join(odd)[:200]}")
    return dict(found)


def _plain(label: str, value: object) -> None:
    """Text, numbers, truth values, {name: of these}, or pairs of texts."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) and not isinstance(one, Mapping) for name, one in value.items()):
            raise OptionError(f"{label} must be {{unit: number}}, got {value!r:.80}")
        for name, one in value.items():
            _plain(f"{label}, {checked(name, label, error=OptionError)!r}", one)
        return
    if isinstance(value, list | tuple) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value):
        for name in (name for pair in value for name in pair):
            checked(name, label, error=OptionError)
        return
    good = value is None or type(value) in (bool, int, float, str)
    if not good or (isinstance(value, float) and not math.isfinite(value)):
        raise OptionError(f"{label} must be a number, text, true or false, or pairs of units, got {value!r:.80}")
    if isinstance(value, str):
        checked(value, label, error=OptionError)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _is_time(value: object) -> bool:
    try:
        text = checked(value, "a time", 60, OptionError)
        return text.isascii() and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:  # OptionError is one
        return False
