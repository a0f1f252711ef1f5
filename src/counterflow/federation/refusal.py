"""A no on its way to another machine: of a plant to a job, and of either side to a question.

A plant's own words may quote a measurement, and stay in its audit log. Why it takes no part in a job leaves it as a
``Refusal``: a code of a closed list, and a line of its policy. The coordinator makes the sentence, with what it knows
of the job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from counterflow.errors import CounterflowError, PrivacyError, ProtocolError
from counterflow.federation.job import Job
from counterflow.printable import shown
from counterflow.protocol import Refused
from counterflow.protocol.questions import NOTE_LIMIT, REFUSALS

Numbered = list[tuple[int, bytes]]  # messages, each with the number of the question or turn that it belongs to

# what is wrong, and what would change that; codes with a dot are tables and keys of the plant's policy
REASONS: Mapping[str, str] = MappingProxyType(
    {
        "leave.methods": "its policy does not allow the method {method}: the plant adds it to 'methods'",
        "leave.kinds": "its policy lets no such message out: the plant adds it to 'kinds'",
        "leave.largest_rows": "its log has more rows than its policy lets out: the plant raises 'largest_rows'",
        "leave.jobs_per_hour": "there were more jobs within the hour than its policy takes",
        "leave.inputs_shown": "it lets nobody be shown signals of its inputs, as moments need: fit with --release "
        "rows, or the plant sets inputs_shown = true",
        "inputs-react": "its inputs react to measurements, which they would carry to everybody: the plant "
        "gives set points as inputs, or rows in which its controllers are off",
        "privacy.demanded": "its policy demands noise: fit with --epsilon 1, or the plant sets demanded = false",
        "privacy.ledger": "its policy names no budget: the plant sets ledger = \"budgets\" and opens one "
        "(counterflow privacy open)",
        "privacy.epsilon": "its policy allows less: fit with a smaller one, or the plant sets epsilon = {epsilon}",
        "privacy.delta": "its policy allows less: fit with a smaller one, or the plant sets delta = {delta}",
        "privacy.window": "its policy protects more measurements as one: fit with a larger --window",
        "privacy.published": "its policy demands rigorous accounting",
        "privacy.reacting_inputs": "its policy lets no input leave that reacts to measurements: fit without the option "
        "'reacting', or the plant sets reacting_inputs = true",
        "privacy.simulation": "its policy demands noise of the operating system",
        "privacy.approval": "its owner has not approved this job: there, run counterflow federation approve-job FOLDER "
        "{id}; then here fit --id {id}",
        "budget": "its privacy budget does not pay for it: fit with a smaller --epsilon, or its owner opens a new one",
        "controllers.react": "its policy does not let its controllers answer: the plant sets react = true",
        "controllers.trials_per_day": "its controllers have been asked as often within a day as its policy allows: ask "
        "later or with controllers held, or the plant raises trials_per_day",
        "policy": "its policy cannot be read: the plant mends the file",
        "begins": "its log begins at another time: the plant brings a log of the same period (join --log), or give "
        "--begins",
        "inputs": "it has other inputs than the job says: let it join again",
        "no-model": "it has no local model, which this method needs: the plant gives one (join --model), or fit with "
        "--from-logs",
    }
)  # fmt: skip
_TEXT = re.compile(r"([a-z_.-]{1,40}):(\d{1,7}):(\d{1,6})")


@dataclass(frozen=True)
class Refusal:
    """A code of ``REASONS``, the line of the policy that says so (0: none does), and seconds until it may be otherwise.

    Examples
    --------
    >>> Refusal.from_text(Refusal("privacy.demanded", 12).to_text())
    Refusal(code='privacy.demanded', line=12, seconds=0)
    """

    code: str
    line: int = 0
    seconds: int = 0

    def __post_init__(self) -> None:
        if self.code not in REASONS:
            raise ProtocolError(f"a refusal has a code of a closed list, got {self.code!r:.60}")

    @classmethod
    def by_policy(cls, code: str, lines: Mapping[str, int], seconds: int = 0) -> Refusal:
        """With the line of the policy, ``lines`` being those of its keys."""
        return cls(code, lines.get(code, lines.get(code.split(".")[0], 0)), seconds)

    @classmethod
    def of(cls, error: CounterflowError, lines: Mapping[str, int]) -> Refusal | None:
        """What others may know of an error; None: nothing."""
        if isinstance(error, RefusedJob):
            return error.refusal
        return cls.by_policy(error.code, lines) if error.code in REASONS else None

    def to_text(self) -> str:
        """As it travels."""
        return f"{self.code}:{self.line}:{self.seconds}"

    @classmethod
    def from_text(cls, text: object) -> Refusal:
        """From outside; ProtocolError if it is anything else."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ProtocolError(f"a refusal is code:line:seconds, got {text!r:.60}")
        return cls(found[1], int(found[2]), int(found[3]))

    def sentence(self, unit: str, job: Job) -> str:
        """For both sides: which plant, which rule, and which line would have to change.

        >>> print(Refusal("privacy.demanded", 12).sentence("boiler", Job("fit-1", "sufficient", {"boiler": ()})))
        unit 'boiler' refused by privacy.demanded (line 12 of its policy.toml): its policy demands noise: fit with ...
        """
        privacy = job.privacy
        asked = (
            {"epsilon": "", "delta": ""} if privacy is None else {k: getattr(privacy, k) for k in ("epsilon", "delta")}
        )
        why = REASONS[self.code].format(method=repr(job.method), id=job.id, **asked)
        place = f" (line {self.line} of its policy.toml)" if self.line else ""
        again = f"; again in {self.seconds} s" if self.seconds else ""
        return f"unit {unit!r} refused by {self.code}{place}: {why}{again}"


class RefusedJob(PrivacyError):
    """A plant's no to a job, by a rule of its policy."""

    def __init__(self, refusal: Refusal, unit: str, job: Job) -> None:
        super().__init__(refusal.sentence(unit, job), code=refusal.code)
        self.refusal = refusal


def refusal_of(unit: str, error: CounterflowError) -> Refused:
    """An error as a message: its class by name, if it is one that may cross, its code and its text.

    >>> from counterflow.errors import OptionError
    >>> refusal_of("boiler", OptionError("horizon must be ...")).error
    'OptionError'
    """
    name = type(error).__name__
    kind = name if name in REFUSALS else "CounterflowError"
    return Refused(unit, kind, error.code, shown(str(error) or name, NOTE_LIMIT))
