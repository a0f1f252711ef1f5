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
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from counterflow.errors import OptionError, ProtocolError, StorageError
from counterflow.exchange.registry import FEDERATED, FROM_LOGS
from counterflow.federation.job import FITS, QUESTIONS, Job
from counterflow.printable import flaw
from counterflow.protocol import Message, decode
from counterflow.protocol.codec import SIZE_LIMIT

LARGEST_FILE = 1 << 20
ALL = "*"
APPROVALS = ("none", "each")
# what a unit sends and what a server sends, by method
_METHODS = {
    name: {
        method,
        FROM_LOGS.get(name, method),
        *([FEDERATED["moments"], FROM_LOGS["moments"]] if name == "sufficient" else []),  # where it is private
    }
    for name, method in FEDERATED.items()
}
SENT_BY_UNITS: Mapping[str, frozenset[str]] = MappingProxyType(
    {QUESTIONS: frozenset({"Terms", "Openings", "Change", "Ask", "Reaction"})}
    | {name: frozenset().union(*(method.sends for method in both)) for name, both in _METHODS.items()}
)
SENT_BY_SERVERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {QUESTIONS: frozenset({"Answer", "Refused", "Terms", "Openings", "Trial"})}
    | {name: frozenset().union(*(method.hears for method in both)) for name, both in _METHODS.items()}
)
_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+)\s*=""")
_TABLES: Mapping[str, tuple[str, ...]] = {  # keys that are called as the fields are
    "leave": ("methods", "kinds", "largest_rows", "largest_bytes", "jobs_per_hour", "inputs_shown"),
    "privacy": (
        "demanded", "epsilon", "delta", "window", "ledger", "published", "simulation", "reacting_inputs", "approval",
    ),
    "controllers": ("react", "trials_per_day"),
}  # fmt: skip


def spoken(unit: str, data: bytes, job: Job, limit: int) -> Message:
    """A message of the unit that has authenticated itself as ``unit``, if it is one that a unit may send in a job."""
    message = decode(data, limit)
    if message.unit != unit:
        raise ProtocolError(
            f"server: {job.label}: unit {unit!r} speaks as {message.unit[:100]!r}; a plant speaks for itself only"
        )
    kind = type(message).__name__
    if kind not in SENT_BY_UNITS[job.method]:
        raise ProtocolError(f"server: {job.label}: a unit does not send {kind}, got it of {unit!r}")
    return message


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
        >>> policy.may_ask("turbine", "boiler", ["valve"]), policy.demanded
        (None, True)
        >>> print(policy.may_ask("turbine", "boiler", ["valve", "fuel"]))
        unit 'boiler' does not let 'turbine' ask about its input 'fuel': ... turbine = ["valve", "fuel"] below [ask] ...
        """
        return _Reader(text, place).policy()

    def may_ask(self, asker: str, cause: str, channels: Iterable[str]) -> str | None:
        """None, or why ``asker`` may not ask about these inputs of ``cause``, which is this policy's unit."""
        if cause != self.unit:
            return f"unit {cause!r} is not told of by the policy of unit {self.unit!r}"
        if asker == cause:
            return None
        allowed = self.ask.get(asker, ())
        if ALL in allowed:
            return None
        closed = [channel for channel in channels if channel not in allowed]
        if closed:
            may = f"may ask about {', '.join(map(repr, allowed))}" if allowed else "may ask about none of them"
            line = f"{asker} = {_shown((*allowed, *closed))}"
            return (
                f"unit {cause!r} does not let {asker!r} ask about its input {closed[0]!r}: by its policy, {asker!r} "
                f"{may}; to allow it, its owner writes {line} below [ask] of policy.toml"
            )
        return None if allowed else f"unit {cause!r} does not let {asker!r} ask about its inputs"

    def asking(self) -> dict[str, Any]:
        """What the coordinator has to know of it, in plain types; the rest is the plant's own affair."""
        return {"unit": self.unit, "ask": {k: list(v) for k, v in self.ask.items()}, "answers": self.answers}

    @classmethod
    def from_asking(cls, found: object) -> Policy:
        """A policy of which only the asking part is known; nothing may leave by it."""
        if not isinstance(found, dict) or set(found) != {"unit", "ask", "answers"}:
            raise OptionError("policy: needs 'unit', 'ask' and 'answers', and nothing else")
        unit, ask, answers = found["unit"], found["ask"], found["answers"]
        good = isinstance(unit, str) and isinstance(ask, dict) and isinstance(answers, bool)
        if not good or not all(_is_names(k) and _is_list(v) for k, v in ask.items()):
            raise OptionError(
                f"policy of unit {unit!r:.80}: 'ask' must be {{unit: [channels]}}, 'answers' a truth value"
            )
        return cls(unit, methods=(), ask=ask, answers=answers)

    def to_text(self) -> str:
        """As the file of a plant; a ledger is written as it is."""
        tables: dict[str, Mapping[str, Any]] = {
            **{name: {key: getattr(self, key) for key in keys} for name, keys in _TABLES.items()},
            "ask": {_shown(unit): chosen for unit, chosen in self.ask.items()},
            "answers": {"allowed": self.answers},
        }
        lines = [f"unit = {_shown(self.unit)}"]
        for name, table in tables.items():
            shown = (f"{key} = {_shown(value)}" for key, value in table.items() if value is not None)
            lines += ["", f"[{name}]", *shown]
        return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    """In TOML, which writes these as JSON does."""
    plain = sorted(value) if isinstance(value, frozenset) else str(value) if isinstance(value, Path) else value
    return json.dumps(plain, ensure_ascii=False)


class _Reader:
    """Strict reading: every key is known, every value of its type; errors name the line."""

    def __init__(self, text: str, place: Path) -> None:
        self.place, self.lines = place, _lines(text)
        try:
            self.contents = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{place}: not TOML: {error}.", code="policy") from error

    def policy(self) -> Policy:
        def rows(at: tuple[str, ...], value: object) -> int:
            return self._count(at, value, 1 << 40)

        kinds = sorted(frozenset().union(*SENT_BY_UNITS.values()))
        readers: dict[str, Callable[[tuple[str, ...], object], Any]] = {
            "methods": lambda at, value: self._names(at, value, FITS),
            "kinds": lambda at, value: frozenset(self._names(at, value, kinds)),
            "largest_rows": rows,
            "largest_bytes": lambda at, value: self._count(at, value, SIZE_LIMIT),
            "window": rows,
            "epsilon": self._number,
            "delta": self._number,
            "ledger": lambda at, value: self.place.parent / self._text(at, value),
            "jobs_per_hour": rows,
            "trials_per_day": rows,
            "approval": lambda at, value: self._names(at, [value], APPROVALS)[0],
        }
        tables = {**_TABLES, "answers": ("allowed",)}
        self._known((), self.contents, ("unit", "ask", *tables))
        values: dict[str, Any] = {"unit": self._text(("unit",), self.contents.get("unit"))}
        for name, keys in tables.items():
            table = self._table(name)
            self._known((name,), table, keys)
            values |= {key: readers.get(key, self._truth)((name, key), value) for key, value in table.items()}
        if "allowed" in values:
            values["answers"] = values.pop("allowed")
        asking = self._table("ask").items()
        ask = {unit: self._names(("ask", unit), chosen, None) for unit, chosen in asking}
        return Policy(**values, ask=ask, lines={".".join(at): line for at, line in self.lines.items()})

    def _refuse(self, at: tuple[str, ...], text: str) -> NoReturn:
        line = next((self.lines[at[:k]] for k in range(len(at), 0, -1) if at[:k] in self.lines), 1)
        raise OptionError(f"{self.place}:{line}: {'.'.join(at)}: {text}.", code="policy")

    def _known(self, at: tuple[str, ...], table: Mapping[str, Any], keys: Iterable[str]) -> None:
        for key in table:
            if key not in keys:
                self._refuse((*at, key), f"there is no such key; there are {', '.join(keys)}")

    def _table(self, name: str) -> dict[str, Any]:
        found = self.contents.get(name, {})
        if not isinstance(found, dict):
            self._refuse((name,), f"must be a table: write [{name}]")
        return found

    def _text(self, at: tuple[str, ...], value: object) -> str:
        if not isinstance(value, str) or not value or flaw(value, 4096):
            self._refuse(at, f"must be text, got {value!r:.40}")
        return value

    def _truth(self, at: tuple[str, ...], value: object) -> bool:
        if not isinstance(value, bool):
            self._refuse(at, f"must be true or false, got {value!r:.40}")
        return value

    def _count(self, at: tuple[str, ...], value: object, most: int) -> int:
        if type(value) is not int or not 1 <= value <= most:
            self._refuse(at, f"must be a whole number from 1 to {most}, got {value!r:.40}")
        return value

    def _number(self, at: tuple[str, ...], value: object) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf or (at[-1] == "delta" and value >= 1):  # type: ignore[operator]
            self._refuse(at, f"must be a finite number above 0{', below 1' * (at[-1] == 'delta')}, got {value!r:.40}")
        return float(value)  # type: ignore[arg-type]

    def _names(self, at: tuple[str, ...], value: object, known: Iterable[str] | None) -> tuple[str, ...]:
        if not _is_list(value):
            self._refuse(at, f"must be a list of names, got {value!r:.40}")
        assert isinstance(value, list)
        for name in value:
            if known is not None and name not in known:
                self._refuse(at, f"{name!r:.40} is unknown; there are {', '.join(known)}")
        return tuple(value)


def _is_names(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not flaw(value, 100)


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_names, value))


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
