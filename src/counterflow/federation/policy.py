"""What a plant lets out, and who may ask about its inputs: a TOML file that the plant owns.

::

    unit = "boiler"

    [leave]
    methods = ["sufficient"]        # jobs that this plant takes part in
    kinds = ["Sufficient"]          # messages that may leave; left out: those of the methods
    largest_rows = 1_000_000
    largest_bytes = 268_435_456
    jobs_per_hour = 60              # new jobs that are looked at, whatever comes of them
    inputs_shown = false            # whether other plants may be shown signals that are made of this one's inputs

    [privacy]
    demanded = true                 # nothing leaves without noise
    epsilon = 1.0                   # of one job, at most
    delta = 1e-6
    window = 1                      # consecutive measurements that must be protected as one, at least
    ledger = "budgets"              # folder of the durable budget, relative to this file
    published = false               # whether the paper's accounting, which has gaps, will do
    simulation = false              # whether noise from a seed, which protects nothing, will do
    reacting_inputs = false         # whether inputs that react to measurements, and carry them, may leave all the same
    approval = "none"               # "each": the owner approves every fit (counterflow federation approve-job)

    [ask]                           # who may ask about which of my inputs; nobody else
    turbine = ["valve", "pump"]
    condenser = ["*"]

    [answers]
    allowed = true                  # whether this plant may put questions itself

    [controllers]
    react = false                   # whether this plant's controllers answer in questions about the running plant
    trials_per_day = 10_000         # how often they are asked at most: whoever asks often learns what they do
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.job import FITS
from counterflow.federation.messages import SENT
from counterflow.printable import flaw
from counterflow.protocol.codec import SIZE_LIMIT

LARGEST_FILE = 1 << 20
ALL = "*"
APPROVALS = ("none", "each")
_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+)\s*=""")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or flaw(value, 4096):
        raise ValueError(f"must be text, got {value!r:.40}")
    return value


def _count(value: Any, most: int = 1 << 40) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"must be a whole number from 1 to {most}, got {value!r:.40}")
    return value


def _number(value: Any, below: float = math.inf) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < below:
        raise ValueError(f"must be a finite number above 0{', below 1' * (below == 1)}, got {value!r:.40}")
    return float(value)


def _names(value: Any, known: Iterable[str] | None = None) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(map(_is_name, value)):
        raise ValueError(f"must be a list of names, got {value!r:.40}")
    for name in value:
        if known is not None and name not in known:
            raise ValueError(f"{name!r:.40} is unknown; there are {', '.join(known)}")
    return tuple(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not flaw(value, 100)


# how the values of each table are read; keys are called as the fields of ``Policy``
_READERS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "leave": {
        "methods": partial(_names, known=FITS),
        "kinds": lambda value: frozenset(_names(value, sorted(SENT))),
        "largest_rows": _count,
        "largest_bytes": partial(_count, most=SIZE_LIMIT),
        "jobs_per_hour": _count,
        "inputs_shown": _truth,
    },
    "privacy": {
        "demanded": _truth,
        "epsilon": _number,
        "delta": partial(_number, below=1.0),
        "window": _count,
        "ledger": lambda value: Path(_text(value)),
        "published": _truth,
        "simulation": _truth,
        "reacting_inputs": _truth,
        "approval": lambda value: _names([value], APPROVALS)[0],
    },
    "controllers": {"react": _truth, "trials_per_day": _count},
    "answers": {"allowed": _truth},
}


@dataclass(frozen=True)
class Policy:
    """What a plant lets out, and who may ask about its inputs; see the module for the file. Defaults are strict."""

    unit: str
    methods: tuple[str, ...] = ("sufficient",)
    kinds: frozenset[str] | None = None
    largest_rows: int = 10_000_000
    largest_bytes: int = SIZE_LIMIT
    jobs_per_hour: int = 60
    demanded: bool = True
    epsilon: float = 1.0
    delta: float = 1e-6
    window: int = 1
    ledger: Path | None = None
    published: bool = False
    simulation: bool = False
    approval: str = "none"
    ask: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    answers: bool = True
    inputs_shown: bool = False
    reacting_inputs: bool = False
    react: bool = False
    trials_per_day: int = 10_000
    lines: Mapping[str, int] = field(default_factory=dict, compare=False, repr=False)  # of "table.key" in its file

    def __post_init__(self) -> None:
        object.__setattr__(self, "ask", MappingProxyType({name: tuple(chosen) for name, chosen in self.ask.items()}))

    @classmethod
    def read(cls, path: str | Path) -> Policy:
        """A policy from its file; whatever is wrong is told with file and line."""
        place = Path(path)
        try:
            if place.stat().st_size > LARGEST_FILE:
                raise StorageError(f"{place}: it has more than {LARGEST_FILE} bytes; give a policy in TOML.")
            data = place.read_bytes()
        except OSError as error:
            raise StorageError(f"{place}: cannot be read: {error.strerror or error}. Check the path.") from error
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise StorageError(f"{place}: it is not UTF-8; give a policy in TOML.") from error
        return cls.from_text(text, place)

    @classmethod
    def from_text(cls, text: str, place: Path = Path("policy.toml")) -> Policy:
        """The same from its text; a ledger's folder is relative to that of ``place``.

        Examples
        --------
        >>> policy = Policy.from_text('unit = "boiler"\\n[ask]\\nturbine = ["valve"]\\n')
        >>> policy.may_ask("turbine", ["valve"]), policy.demanded
        (None, True)
        >>> print(policy.may_ask("turbine", ["valve", "fuel"]))
        unit 'boiler' does not let 'turbine' ask about its input 'fuel': ... turbine = ["valve", "fuel"] below [ask] ...
        """
        lines = _lines(text)
        at: tuple[str, ...] = ("unit",)
        try:
            contents = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{place}: not TOML: {error}.", code="policy") from error
        try:
            values: dict[str, Any] = {"unit": _text(contents.pop("unit", None)), "ask": {}}
            for name, table in contents.items():
                at = (name,)
                if name not in _READERS and name != "ask":
                    raise ValueError(f"there is no such key; there are unit, ask, {', '.join(_READERS)}")
                if not isinstance(table, dict):
                    raise ValueError(f"must be a table: write [{name}]")
                for key, value in table.items():
                    at = (name, key)
                    if name == "ask":
                        values["ask"][key] = _names(value)
                    elif key in _READERS[name]:
                        values["answers" if key == "allowed" else key] = _READERS[name][key](value)
                    else:
                        raise ValueError(f"there is no such key; there are {', '.join(_READERS[name])}")
        except ValueError as error:
            line = next((lines[at[:k]] for k in range(len(at), 0, -1) if at[:k] in lines), 1)
            raise OptionError(f"{place}:{line}: {'.'.join(at)}: {error}.", code="policy") from None
        if "ledger" in values:
            values["ledger"] = place.parent / values["ledger"]
        return cls(**values, lines={".".join(at): line for at, line in lines.items()})

    def may_ask(self, asker: str, channels: Iterable[str]) -> str | None:
        """None, or why another unit may not ask about these inputs of this policy's unit."""
        allowed = self.ask.get(asker, ())
        closed = [channel for channel in channels if channel not in allowed]
        if ALL in allowed or (allowed and not closed):
            return None
        if not closed:
            return f"unit {self.unit!r} does not let {asker!r} ask about its inputs"
        may = f"may ask about {', '.join(map(repr, allowed))}" if allowed else "may ask about none of them"
        line = f"{asker} = {_shown((*allowed, *closed))}"
        return (
            f"unit {self.unit!r} does not let {asker!r} ask about its input {closed[0]!r}: by its policy, {asker!r} "
            f"{may}; to allow it, its owner writes {line} below [ask] of policy.toml"
        )

    def asking(self) -> dict[str, Any]:
        """What the coordinator has to know of it, in plain types; the rest is the plant's own affair."""
        return {"unit": self.unit, "ask": {k: list(v) for k, v in self.ask.items()}, "answers": self.answers}

    @classmethod
    def from_asking(cls, found: object) -> Policy:
        """A policy of which only the asking part is known; nothing may leave by it."""
        if not isinstance(found, dict) or set(found) != {"unit", "ask", "answers"}:
            raise OptionError("policy: needs 'unit', 'ask' and 'answers', and nothing else")
        unit, ask, answers = found["unit"], found["ask"], found["answers"]
        try:
            if not isinstance(ask, dict) or not all(map(_is_name, (unit, *ask))):
                raise ValueError("must be a unit, and {unit: [channels]}")
            opened = {name: _names(channels) for name, channels in ask.items()}
            return cls(unit, methods=(), ask=opened, answers=_truth(answers))
        except ValueError as error:
            raise OptionError(f"policy of unit {unit!r:.80}: {error}") from None

    def to_text(self) -> str:
        """As the file of a plant; a ledger is written as it is."""
        own = vars(self) | {"allowed": self.answers}
        tables = {name: {key: own[key] for key in readers} for name, readers in _READERS.items()}
        tables["ask"] = {_shown(unit): chosen for unit, chosen in self.ask.items()}
        lines = [f"unit = {_shown(self.unit)}"]
        for name, table in tables.items():
            shown = (f"{key} = {_shown(value)}" for key, value in table.items() if value is not None)
            lines += ["", f"[{name}]", *shown]
        return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    """In TOML, which writes these as JSON does."""
    plain = sorted(value) if isinstance(value, frozenset) else str(value) if isinstance(value, Path) else value
    return json.dumps(plain, ensure_ascii=False)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key of a flat TOML text."""
    out: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = (header[1],)
            out.setdefault(table, number)
        elif key := _KEY.match(line):
            out.setdefault((*table, key[1].strip("\"'")), number)
    return out
