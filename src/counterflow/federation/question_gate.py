"""Who may ask what: at the coordinator, every plant's policy is asked before a question is answered."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from counterflow import wording
from counterflow.caveats import EVERYBODY, Caveat, to_text, units_of
from counterflow.errors import CounterflowError, PrivacyError, ProtocolError, UnidentifiedError, UnknownNameError
from counterflow.federation.audit import Audit
from counterflow.federation.policy import Policy
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.answering import Server, columns_asked, with_caveats
from counterflow.questions.attribution import WITHOUT
from counterflow.questions.closed_loop import HELD_CODE, REACTING_CODE, SWITCH_CODE
from counterflow.questions.registry import question

CLOSED = "closed-units"
# what is said of the world that an answer is about, where a unit that has controllers is closed to the asker
WORLDS = {
    REACTING_CODE: "controllers react, also those of units that are closed here, which are not named",
    HELD_CODE: "controllers are held, also those of units that are closed here, which are not named: their inputs stay "
    "as they are. In the running plant their controllers would answer",
    SWITCH_CODE: "a controller switches, at times that are not certain: read means, extremes and shares of time over "
    "the window, not single rows",
}
MOST_CHANGES = 1000
MOST_STEPS = 100_000  # of one question: an asker must not keep the server from the others
MOST_REFUSALS = 1000  # that are written down for one asker
PER_MINUTE = 600  # questions of one member
MINUTE = 60.0  # seconds


class QuestionRate:
    """So many questions a minute of each member, whatever comes of them.

    Examples
    --------
    >>> rate = QuestionRate(1, clock=lambda: 0.0)
    >>> rate.count("turbine")
    >>> rate.count("turbine")
    Traceback (most recent call last):
    counterflow.errors.ProtocolError: server: unit 'turbine' has put 1 questions within a minute, ...; again in 60 s
    """

    def __init__(self, per_minute: int = PER_MINUTE, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = per_minute, clock
        self._times: dict[str, deque[float]] = {}

    def count(self, asker: str) -> None:
        """Count one; ProtocolError "too-many" if there were as many as there may be."""
        now, times = self._clock(), self._times.setdefault(asker, deque(maxlen=self._most))
        if len(times) == self._most and now - times[0] < MINUTE:
            left = math.ceil(times[0] + MINUTE - now)
            raise ProtocolError(
                f"server: unit {asker!r} has put {self._most} questions within a minute, which is as many as the "
                f"coordinator takes (questions_per_minute); again in {left} s",
                code="too-many",
            )
        times.append(now)


class QuestionGate:
    """Enforces the policies of all plants on questions.

    Parameters
    ----------
    policies : of every unit, as they are when a question comes; a unit without one is asked about by nobody, and asks
        nothing.
    inputs : {unit: names of its input channels in order}.
    audit : where refusals and answers are written down; None: nowhere.

    Examples
    --------
    >>> import numpy as np
    >>> boiler = Policy.from_text('unit = "boiler"\\n[ask]\\nturbine = ["valve"]\\n')
    >>> inputs = {"boiler": ["fuel", "valve"], "turbine": []}
    >>> gate = QuestionGate({"boiler": boiler, "turbine": Policy("turbine")}, inputs)
    >>> change = Change("turbine", "boiler", False, 0, "", np.array([[1.0]]))
    >>> gate.refusal("turbine", [change.naming(["valve"])], Ask("turbine", "effect", 0, 1)) is None
    True
    >>> print(gate.refusal("turbine", [change.naming(["fuel"])], Ask("turbine", "effect", 0, 1)))
    unit 'boiler' does not let 'turbine' ask about its input 'fuel': by its policy, 'turbine' may ask about 'valve'...
    """

    def __init__(
        self, policies: Mapping[str, Policy], inputs: Mapping[str, Sequence[str]], audit: Audit | None = None
    ) -> None:
        for unit, policy in policies.items():
            if policy.unit != unit:
                raise PrivacyError(f"unit {unit!r}: its policy is that of unit {policy.unit!r}: give the right one")
        self._policies, self._audit = policies, audit
        self._inputs = {unit: tuple(names) for unit, names in inputs.items()}
        self._refused: dict[str, int] = {}

    def answer(self, server: Server, asker: str, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """Answer a question of the unit that has authenticated itself as ``asker``, if the policies allow it.

        Raises
        ------
        PrivacyError, ProtocolError
            It is refused; the refusal is audited.
        """
        self.check(asker, changes, ask)
        try:
            parts = server.answer([self._whole(change, ask) for change in changes], ask)
        except UnidentifiedError as error:
            if self.is_open(asker, units_of(error.scope)):
                raise
            text = f"these data cannot answer this; the reason is about units that are closed to {asker!r}"
            raise UnidentifiedError(text) from None
        first, *others = self._open_shares(asker, ask, parts)
        told = with_caveats([replace(first, caveats=to_text(())), *others], self.told(asker, first.noted))
        if self._audit is not None:
            causes = sorted({change.cause for change in changes})
            self._audit.write("answered", unit=asker, kind=ask.kind, causes=causes, steps=ask.steps)
        return told

    def check(self, asker: str, changes: Sequence[Change], ask: Ask) -> None:
        """Refuse, and write down, what is no question of this asker, and what the policies forbid."""
        others = [message.unit for message in (*changes, ask) if message.unit != asker]
        rules = {
            f"no unit {asker!r:.100} takes part": asker not in self._inputs,
            f"unit {asker!r} asks about {len(changes)} changes, {MOST_CHANGES} at most": len(changes) > MOST_CHANGES,
            f"unit {asker!r} asks for {ask.steps} steps, {MOST_STEPS} at most": ask.steps > MOST_STEPS,
            f"unit {asker!r} asks as {others[0] if others else asker!r:.100}; it asks for itself only": bool(others),
        }
        try:
            question(ask.kind)
            for text, broken in rules.items():
                if broken:
                    raise ProtocolError(f"server: {text}")
            refusal = self.refusal(asker, changes, ask)
            if refusal is not None:
                raise PrivacyError(f"{refusal}. Ask about other inputs, or ask that unit's owner to change its policy")
        except CounterflowError as error:
            count = self._refused[asker] = self._refused.get(asker, 0) + 1
            if self._audit is not None and count <= MOST_REFUSALS:
                about = {"unit": asker[:100], "direction": "question", "kind": ask.kind}
                self._audit.write("refused", **about, reason=f"{error}"[:2000])
            raise

    def refusal(self, asker: str, changes: Sequence[Change], ask: Ask) -> str | None:
        """Why the policies forbid a question; None if they do not."""
        told = (self._refused_channels(asker, change.cause, self._asked(change, ask)) for change in changes)
        return self._silenced(asker) or next((refused for refused in told if refused is not None), None)

    def _silenced(self, asker: str) -> str | None:
        own = self._policies.get(asker)
        if own is None or not own.answers:
            return f"unit {asker!r} may put no questions by its own policy (answers.allowed)"
        return None

    def reacts(self, unit: str) -> bool:
        """Whether a unit's controllers answer to the questions of others."""
        return unit in self._policies and self._policies[unit].react

    def openings(self, asker: str) -> dict[str, list[str]]:
        """Names of the inputs of every other unit that ``asker`` may ask about."""
        if (refusal := self._silenced(asker)) is not None:
            raise PrivacyError(refusal)
        return {
            unit: [name for name in names if self._refused_channels(asker, unit, [name]) is None]
            for unit, names in self._inputs.items() if unit != asker
        }  # fmt: skip

    @staticmethod
    def _asked(change: Change, ask: Ask) -> list[str]:
        """Names of the inputs that a change is about."""
        names = change.input_names
        if names is None:
            raise ProtocolError(f"server: unit {change.unit!r}: a change from another machine names its inputs")
        return [names[column] for column in columns_asked(question(ask.kind), change)]

    def _whole(self, change: Change, ask: Ask) -> Change:
        """A change that was allowed, with a column for every input of its unit."""
        names, asked = self._inputs[change.cause], self._asked(change, ask)
        missing = [name for name in asked if name not in names]
        if missing or (change.absolute and not asked):
            text = f"has no input {missing[0]!r:.100}" if missing else "is asked about without naming an input"
            raise UnknownNameError(f"unit {change.cause!r} {text}: there are {', '.join(names)}")
        values, places = np.zeros((len(change.values), len(names))), [names.index(name) for name in asked]
        values[:, places] = change.values[:, columns_asked(question(ask.kind), change)]
        return replace(change, values=values, channels=",".join(map(str, places)), inputs="")

    def _open_shares(self, asker: str, ask: Ask, parts: tuple[Answer, ...]) -> tuple[Answer, ...]:
        """An attribution without what the inputs of units that are closed to the asker have done.

        The asker knows its own measurements: what it is not told stands in what it cannot explain, as it did before.
        """
        shares = [part.share for part in parts] if question(ask.kind).of_shares else []
        units = [share for share in shares if share in self._inputs]
        closed = [unit for unit in units if self._inputs[unit] and not self.is_open(asker, (unit,))]
        if not closed:
            return parts
        text = (
            f"what the inputs of {', '.join(closed)} have done is in the rest: their policies do not let {asker!r} ask"
        )
        hidden = {share for unit in closed for share in (unit, f"{WITHOUT}{unit}")}
        return with_caveats([part for part in parts if part.share not in hidden], [Caveat(CLOSED, asker, text)])

    def told(self, asker: str, caveats: Sequence[Caveat]) -> list[Caveat]:
        """Those of the caveats that ``asker`` may know: none that tells of a unit that is closed to it.

        Which world an answer is about is always told, without naming what is closed.
        """
        kept = []
        for caveat in caveats:
            if self.is_open(asker, caveat.units):
                kept.append(caveat)
            elif caveat.code in WORLDS:
                kept.append(replace(caveat, scope=EVERYBODY, text=WORLDS[caveat.code]))
        closed = [unit for unit in self._inputs if not self.is_open(asker, (unit,))]
        if closed:  # by the policies alone, whether there was anything to tell or not
            text = f"what speaks against answers at {wording.listed(closed)} is not told: their policies do not let "
            kept.append(Caveat(CLOSED, asker, f"{text}{asker!r} ask about all their inputs"))
        return kept

    def is_open(self, asker: str, units: Sequence[str]) -> bool:
        """Whether ``asker`` may ask about every input of these units, and so may know what is said of them."""
        for unit in units:
            policy = self._policies.get(unit)
            if unit != asker and (policy is None or policy.may_ask(asker, self._inputs.get(unit, ()))):
                return False
        return True

    def _refused_channels(self, asker: str, cause: str, channels: list[str]) -> str | None:
        if cause not in self._inputs:
            return f"no unit {cause!r:.100} takes part"
        if asker == cause or not channels:
            return None
        policy = self._policies.get(cause)
        if policy is None:
            return f"unit {cause!r} has no policy here, so nobody may ask about its inputs"
        return policy.may_ask(asker, channels)
