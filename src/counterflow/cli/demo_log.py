"""The demo's first part: from the log that ships with the package to an answer, with the truth beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.cli import output
from counterflow.data import read_logs, sample
from counterflow.fits import training
from counterflow.wording import measured, number, quantity

UNIT, INPUT, ADDED = "area_1", "FIC-101.SP", 1.0
EFFECT, CHANNEL = "area_2", "TIC-201.PV"
START, STOP = "2024-11-01 16:00", "2024-11-01 17:00"


@dataclass(frozen=True)
class LogAnswer:
    """What was asked of the log, what came back, and what is true: changes of CHANNEL in the last row."""

    picture: str
    sentence: str
    answer: float
    lower: float
    upper: float
    truth: float
    inside: float  # share of all rows and channels whose truth lies within the intervals

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "file": sample.path().name, "unit": UNIT, "input": INPUT, "added": ADDED, "effect": EFFECT,
            "channel": CHANNEL, "start": START, "stop": STOP,
            **output.picked(self, "sentence answer lower upper truth inside"),
        }  # fmt: skip

    def show(self) -> None:
        """On the terminal."""
        measure = sample.OUTPUTS[CHANNEL]
        value, interval = measured(self.answer, self.lower, self.upper, measure, sign=True)
        output.show_text("From a historian's file to an answer", style="bold")
        output.show_lines(f"{sample.path().name}, which ships with the package, read as it is:")
        output.show_lines(*(f"  {line}" for line in self.picture.splitlines()))
        output.show_lines("", self.sentence)
        told = quantity(number(self.truth, 2, sign=True), measure)
        output.show_lines(
            f"{CHANNEL} at the end: {value} (95 %: {interval}); the truth, by the simulator: {told}. Of all rows and "
            f"channels, {100 * self.inside:.0f} % of the truth lies within the intervals.",
            "",
        )


def from_a_log() -> LogAnswer:
    """Read the sample, fit it, ask, and simulate the truth: the same disturbances and noise, another set point."""
    recording, preparation = read_logs(sample.path())
    fit = training.fit(recording)
    worlds = fit.counterfactual(recording, add={UNIT: {INPUT: ADDED}}, start=START, stop=STOP)
    first = next(iter(worlds.values())).first
    rows = slice(first, first + len(next(iter(worlds.values())).mean))
    usual = sample.simulate()
    feed = usual.columns[INPUT].copy()
    feed[rows] += ADDED
    other = sample.simulate(do={INPUT: feed})
    inside = []
    for world in worlds.values():
        assert world.lower is not None
        assert world.upper is not None
        true = np.stack([(other.clean[name] - usual.clean[name])[rows] for name in world.channels], axis=1)
        inside.append(((world.lower - world.was <= true) & (true <= world.upper - world.was)).ravel())
    heated = worlds[EFFECT]
    k = heated.channels.index(CHANNEL)
    assert heated.lower is not None
    assert heated.upper is not None
    answer, lower, upper = (
        float(bound[-1, k] - heated.was[-1, k]) for bound in (heated.mean, heated.lower, heated.upper)
    )
    truth = float((other.clean[CHANNEL] - usual.clean[CHANNEL])[rows][-1])
    drafted = next(step for step in preparation.steps if step.name == "drafted")
    lines = [
        f"{unit['name']}: {side} {', '.join(each['name'] for each in unit[side])}"
        for unit in drafted.numbers["units"] for side in ("inputs", "outputs")
    ]  # fmt: skip
    return LogAnswer(
        "\n".join(lines), worlds.sentence(), answer, lower, upper, truth, float(np.concatenate(inside).mean())
    )
