"""What a plant lets out, and who may ask about its inputs: a TOML file that the plant owns.

Its keys, with what each is for, stand in ``default_policy``. Left out, a key is as in ``Policy``, which is strict.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.job import FITS
from counterflow.federation.messages import SENT
from counterflow.printable import flaw
from counterflow.protocol.codec import SIZE_LIMIT
from counterflow.records import describe, restore

LARGEST_FILE = 1 << 20
ALL = "*"
APPROVALS = ("none", "each")
_ASKING = ("unit", "ask", "answers")
_HEADER_LINE = re.compile(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]")
_KEY_LINE = re.compile(r"""\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+)\s*=""")


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or flaw(value, 4096):
        raise ValueError(f"must be text, got {value!r:.40}")
    return value


def _path(value: Any) -> Path:
    return Path(_text(value))


def _count(value: Any, most: int = 1 << 40) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"must be a whole number from 1 to {most}, got {value!r:.40}")
    return value


def _number(value: Any, below: float = 1e300) -> float:
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


def _key(table: str, read: Callable[[Any], Any], default: Any, called: str = "") -> Any:
    """A key of the file: in which table it stands, how its value is read, and how it is called there."""
    return field(default=default, metadata={"table": table, "read": read, "called": called})


@dataclass(frozen=True)
class Policy:
    """What a plant lets out, and who may ask about its inputs; see ``default_policy`` for the file.

    Two keys do not stand there: ``kinds``, messages that may leave (None: those of the methods), and ``largest_bytes``.
    """

    unit: str
    methods: tuple[str, ...] = _key("leave", partial(_names, known=FITS), ("sufficient",))
    kinds: frozenset[str] | None = _key("leave", lambda value: frozenset(_names(value, sorted(SENT))), None)
    largest_rows: int = _key("leave", _count, 10_000_000)
    largest_bytes: int = _key("leave", partial(_count, most=SIZE_LIMIT), SIZE_LIMIT)
    jobs_per_hour: int = _key("leave", _count, 60)
    inputs_shown: bool = _key("leave", _truth, False)
    demanded: bool = _key("privacy", _truth, True)
    epsilon: float = _key("privacy", _number, 1.0)
    delta: float = _key("privacy", partial(_number, below=1.0), 1e-6)
    window: int = _key("privacy", _count, 1)
    ledger: Path | None = _key("privacy", _path, None)  # noqa: RUF009 - a field, as the others
    published: bool = _key("privacy", _truth, False)
    simulation: bool = _key("privacy", _truth, False)
    reacting_inputs: bool = _key("privacy", _truth, False)
    approval: str = _key("privacy", lambda value: _names([value], APPROVALS)[0], "none")
    ask: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    answers: bool = _key("answers", _truth, True, called="allowed")
    react: bool = _key("controllers", _truth, False)
    trials_per_day: int = _key("controllers", _count, 10_000)
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
                if name not in (*_KEYS, "ask"):
                    raise ValueError(f"there is no such key; there are unit, ask, {', '.join(_KEYS)}")
                if not isinstance(table, dict):
                    raise ValueError(f"must be a table: write [{name}]")
                for key, value in table.items():
                    at = (name, key)
                    if name == "ask":
                        values["ask"][key] = _names(value)
                    elif key in _KEYS[name]:
                        known = _KEYS[name][key]
                        values[known.name] = known.metadata["read"](value)
                    else:
                        raise ValueError(f"there is no such key; there are {', '.join(_KEYS[name])}")
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
        line = f"{asker} = {json.dumps([*allowed, *closed], ensure_ascii=False)}"  # TOML writes lists as JSON does
        return (
            f"unit {self.unit!r} does not let {asker!r} ask about its input {closed[0]!r}: by its policy, {asker!r} "
            f"{may}; to allow it, its owner writes {line} below [ask] of policy.toml"
        )

    def asking(self) -> dict[str, Any]:
        """What the coordinator has to know of it, in plain types; the rest is the plant's own affair."""
        return describe(self, only=_ASKING)[0]

    @classmethod
    def from_asking(cls, found: object) -> Policy:
        """A policy of which only the asking part is known; nothing may leave by it."""
        try:
            return restore(cls, found, {}, only=_ASKING, onto=cls("", methods=()))
        except StorageError as error:
            raise OptionError(f"policy: {error}") from error


_KEYS: dict[str, dict[str, Field[Any]]] = {}  # of the file, by table and by what they are called there
for _one in fields(Policy):
    if _one.metadata:
        _KEYS.setdefault(_one.metadata["table"], {})[_one.metadata["called"] or _one.name] = _one


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table and key of a flat TOML text."""
    out: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER_LINE.match(line):
            table = (header[1],)
            out.setdefault(table, number)
        elif key := _KEY_LINE.match(line):
            out.setdefault((*table, key[1].strip("\"'")), number)
    return out


def default_policy(unit: str, demanded: bool = True, ask: Mapping[str, Sequence[str]] = MappingProxyType({})) -> str:
    """A strict policy, with words to whoever changes it; who may ask about which inputs, if that is known already."""
    asking = "".join(f"{asker} = {json.dumps(list(inputs))}\n" for asker, inputs in ask.items())
    return _DEFAULT.format(unit=unit, strict=Policy(unit), demanded=json.dumps(demanded), asking=asking)


_DEFAULT = """# What may leave unit {unit}, and who may ask about its inputs: the plant's own file, read for every job.
unit = "{unit}"

[leave]
# Jobs that this plant takes part in. "sufficient" needs one message; the others send one in every round.
methods = ["sufficient"]
largest_rows = {strict.largest_rows}
# New jobs that are looked at, whatever comes of them.
jobs_per_hour = {strict.jobs_per_hour}
# Whether other plants may be shown signals that are made of this one's inputs. If all plants let them, a private fit
# releases moments, which are far more exact at the same epsilon, and fits from logs can be private. The coordinator
# knows what stood here when this plant asked to join.
inputs_shown = false

[privacy]
# true: nothing leaves without noise that keeps the promise below. false: exact numbers leave, see the threat model.
demanded = {demanded}
# Of one job, at most. Smaller is more private and less exact: counterflow privacy plan
epsilon = {strict.epsilon}
delta = {strict.delta}
# Consecutive measurements that are protected as one, at least.
window = {strict.window}
# Folder of the durable budget, beside this file: counterflow privacy ledger budgets
ledger = "budgets"
# Accounting with gaps (the paper's), and noise from a seed, which protects nothing: not here.
published = false
simulation = false
# Whether inputs that a controller moves by what was measured, and that so carry it, may leave all the same.
reacting_inputs = false
# "each": every fit waits until the owner has looked at it: counterflow federation approve-job
approval = "none"

[ask]
# Who may ask what would happen if this unit's inputs were others; nobody, unless it stands here:
# turbine = ["valve", "fuel"]
# condenser = ["*"]
{asking}
[answers]
# Whether this plant may put questions itself.
allowed = true

[controllers]
# Whether this plant's controllers answer in questions about the running plant. The laws stay here, but whoever asks
# often learns them from the answers, and what they read: see the threat model.
react = false
trials_per_day = {strict.trials_per_day}
"""
