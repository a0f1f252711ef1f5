"""The server's half of questions: what it says to a unit that asks, and what that must be read with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from counterflow.caveats import distinct, to_text
from counterflow.learning.likelihood import SharedRecord
from counterflow.protocol import Answer, Ask, Change, Sufficient
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.parts import Watch, with_caveats
from counterflow.questions.refusals import refuse_doubtful, refuse_runaway, refuse_without_rows, speaking, units_passed
from counterflow.questions.registry import question
from counterflow.questions.server_model import ServerModel

FEEDBACK = "check-feedback-"  # codes of caveats that tell of inputs which react to measurements


class Server(ServerModel):
    """The server's part of a fit, which answers.

    ``answer`` is all that a question asks of it. What it says is for the asking unit alone: its own states, and what
    the answer must be read with.
    """

    def about(self, messages: list[Sufficient]) -> Server:
        """The same, with other rows to refer to: what the units send of another recording."""
        return replace(self, shared=SharedRecord.from_messages(messages))

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """Answer one question; ``watch`` sees every message that would cross."""
        if watch is not None:
            for message in (*changes, ask):
                watch(message, True)
        found = self.answer(changes, ask)
        if watch is not None:
            for part in found:
                watch(part, False)
        return found

    def answer(self, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """Answer one question of unit ``ask.unit``, all of it in engineering units.

        Raises
        ------
        UnidentifiedError
            The data do not determine a coupling that the answer passes through.
        """
        kind = question(ask.kind)
        self.unit(ask.unit)
        ask = replace(ask, controllers=self.world(ask) if kind.of_worlds else HELD)
        if kind.of_past or kind.after_record:
            refuse_without_rows(self, ask.kind)
        for change in changes:
            refuse_doubtful(self, change, kind.columns(change))
        if kind.of_worlds:
            self.refuse_locked({change.cause: kind.columns(change) for change in changes}, ask.controllers)
        refuse_runaway(self, ask.steps)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
            parts = kind.respond(self, changes, ask)
        said = self.world_caveats(ask) if kind.of_worlds or kind.held_only else []
        of_fit = speaking(self.caveats, units_passed(self, [change.cause for change in changes], ask.unit))
        if ask.controllers == REACTING:  # what feedback makes unsafe is answered here
            of_fit = [each for each in of_fit if not each.code.startswith(FEEDBACK) or not self.answers_for(each)]
        whole = distinct([*said, *kind.caveats(self, parts), *of_fit, *parts[0].noted])
        return with_caveats([replace(parts[0], caveats=to_text(())), *parts[1:]], whole)
