"""``counterflow demo``: the main job end to end, on a plant like real ones whose true answers are known.

The fit gets the log and nothing else. The truth is the simulator's twin run: the same noise, other inputs. Nothing is
written before everything is computed, and every file is renamed into place, so an interrupt leaves either what was
there or what belongs there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from typer import Option

from counterflow import report, wording
from counterflow.arrays import FloatArray
from counterflow.cli import demo_plant, output
from counterflow.cli.demo_plant import Worlds
from counterflow.cli.options import Seed
from counterflow.cli.output import Format, Line, Part, Told, answering, picked
from counterflow.data import read_logs, sample
from counterflow.errors import OptionError, StorageError
from counterflow.files import blaming, make_folder
from counterflow.fits import training
from counterflow.fits.fit import Fit
from counterflow.plant import Recording
from counterflow.questions.attribution import Attribution
from counterflow.questions.counterfactual import Counterfactual
from counterflow.questions.restoration import Restoration
from counterflow.report import Section

RECORDING, FIT, REPORT = "recording.safetensors", "fit", "report.html"
OUT = Path("demo-output")
HORIZON, HELD = 60, 20  # steps
BEGIN, WINDOW, CLOSED, CLOSING = 210, 90, 40, 35.0  # the incident: rows before the end, rows, for how long, by how much
BACK = 30  # steps in which a pressure is to be brought back
LINEAR = "a plain linear model of all logs pooled"
MOST_LAGS = 12  # of that model
# what the log that ships with the package is asked
UNIT, INPUT, ADDED = "area_1", "FIC-101.SP", 1.0
EFFECT, CHANNEL = "area_2", "TIC-201.PV"
START, STOP = "2024-11-01 16:00", "2024-11-01 17:00"


def _moving(cause: str, lever: str, change: float, effect: str, headline: str) -> report.AskEffect:
    """Move one input of ``cause`` by ``change`` for HELD steps: what happens to ``effect``?"""
    words = f"The {cause.replace('_', ' ')}'s {lever} {change:+g} % for {HELD} minutes: "
    words += f"what happens to the {effect.replace('_', ' ')}?"
    return report.AskEffect(cause, effect, {lever: change}, HORIZON, HELD, headline=headline, question=words)


QUESTIONS = (
    _moving("boiler", "fuel valve", 10.0, "turbine", "electric power"),
    _moving("cooling_tower", "fan speed", -10.0, "turbine", "exhaust pressure"),
    _moving("turbine", "governor valve", 10.0, "boiler", "drum pressure"),
)


@answering()
def demo(
    wanted: Format,
    out: Annotated[Path, Option(help="Directory for the recording, the saved fit and the report.")] = OUT,
    steps: Annotated[int, Option(min=600, max=100_000, help="Minutes of plant to simulate.")] = 1800,
    seed: Seed = 0,
    force: output.Force = False,
) -> Told:
    """From a historian's file to an answer; then a steam plant of four units, fitted from its logs, with a report.

    Both plants are simulated, so that the truth stands beside every answer.
    """
    began = time.perf_counter()
    check_place(out, force)
    if find_spec("matplotlib") is None:
        raise OptionError("the demo's report needs matplotlib: install it with  pip install 'counterflow[plots]'")
    console = Console(stderr=True, quiet=wanted is Format.json)
    with console.status("from a historian's file to an answer"):
        log, first = from_a_log()
    with console.status("simulating the plant"):
        calm = demo_plant.moved_in_steps(steps, seed)
        worlds = demo_plant.lived(with_incident(calm), seed)
        recording = worlds.recording
    with console.status("fitting the federation from its logs"):
        fit = training.fit(recording, seed=seed)
        linear = PooledLinear.of(worlds.channels, worlds.inputs)
    with console.status("asking what-if, and simulating the true answers"):
        whatifs = [ask(question, worlds, fit, linear) for question in QUESTIONS]
        incident = look_into(worlds, calm, fit)
    with console.status("drawing the report"):
        content = compose(recording, fit, [*whatifs, *incident], steps, seed)
        page = report.render(content)  # all is drawn before anything is written
    with blaming(out):
        make_folder(out)
    recording.save(out / RECORDING)
    fit.save(out / FIT)
    report.write(page, out / REPORT)
    seconds = time.perf_counter() - began
    told = {
        "log": log, "method": fit.method, "steps": steps, "seed": seed, "seconds": round(seconds, 3),
        "files": {"recording": out / RECORDING, "fit": out / FIT, "report": out / REPORT},
        **output.fit_json(fit.status, fit.traffic), **_content(content, incident),
    }  # fmt: skip
    return Told(told, (*first, *_shown(out, fit, content, seconds)))


# ---- the log that ships with the package


def from_a_log() -> tuple[dict[str, Any], list[Part]]:
    """Read the sample, fit it, ask, and simulate the truth: the same disturbances and noise, another set point."""
    recording, preparation = read_logs(sample.path())
    asked = report.AskCounterfactual(EFFECT, None, START, STOP, add={UNIT: {INPUT: ADDED}}, headline=CHANNEL)
    told = report.tell(training.fit(recording), recording, asked)
    assert isinstance(told, report.Told)
    assert isinstance(told.answer, Counterfactual)
    world, at = told.answer, told.headline_index
    rows = slice(world.first, world.stop)
    usual = sample.simulate()
    feed = usual.columns[INPUT].copy()
    feed[rows] += ADDED
    other = sample.simulate(do={INPUT: feed})
    true = world.was + np.stack([(other.clean[tag] - usual.clean[tag])[rows] for tag in world.channels], axis=1)
    told = replace(told, truth=true)
    low, high = (np.asarray(end) for end in (world.lower, world.upper))
    share = float(((low <= true) & (true <= high)).mean())
    ends = {"answer": world.mean, "lower": low, "upper": high, "truth": true}
    found = {
        "file": sample.path().name, "unit": UNIT, "input": INPUT, "added": ADDED, "effect": EFFECT,
        "channel": CHANNEL, "start": START, "stop": STOP, "sentence": told.sentence(), "inside": share,
        **{name: float((each - world.was)[-1, at]) for name, each in ends.items()},
    }  # fmt: skip
    drafted = next(step for step in preparation.steps if step.name == "drafted").numbers["units"]
    sides = [(unit["name"], side, unit[side]) for unit in drafted for side in ("inputs", "outputs")]
    return found, [
        Line("From a historian's file to an answer", "bold"),
        f"{sample.path().name}, which ships with the package, read as it is:",
        *(f"  {unit}: {side} {', '.join(each['name'] for each in channels)}" for unit, side, channels in sides),
        "",
        told.sentence(),
        f"Of all its rows and channels, {wording.share(share, 0)} of the truth lies within the intervals (95 %).",
        "",
    ]


# ---- the steam plant


def with_incident(calm: FloatArray) -> FloatArray:
    """Inputs as they were, with the feed tank's heating steam valve stuck too far closed on the quiet day."""
    inputs, start = calm.copy(), len(calm) - BEGIN
    inputs[start : start + CLOSED, demo_plant.input_at("water_treatment", "heating steam valve")] -= CLOSING
    return inputs


def look_into(worlds: Worlds, calm: FloatArray, fit: Fit) -> list[Section]:
    """The heating steam valve stuck: what would have been, who did it, what brings the pressure back."""
    recording = worlds.recording
    start = recording.rows - BEGIN
    stop = start + WINDOW
    valve = calm[start:stop, demo_plant.input_at("water_treatment", "heating steam valve")]
    boiler = demo_plant.outputs_of("boiler")
    world = report.tell(fit, recording, report.AskCounterfactual(
        "boiler", {"water_treatment": {"heating steam valve": valve}}, start, stop,
        headline="drum pressure",
        question=f"The feed tank's heating steam valve stood {CLOSING:g} % too far closed from minute {start:g} to "
        f"{start + CLOSED - 1:g}: where would the drum pressure have been without that?",
    ))  # fmt: skip
    shares = report.tell(fit, recording, report.AskAttribution(
        "boiler", start, start + 2 * CLOSED, headline="drum pressure",
        question=f"Who moved the drum pressure from minute {start:g} to {start + 2 * CLOSED - 1:g}?",
    ))  # fmt: skip
    lost = 2.0  # bar, if nothing better is known
    if isinstance(world, report.Told) and isinstance(world.answer, Counterfactual):
        told, at = world.answer, world.headline_index
        gap = told.mean[:, at] - told.factual[:, at]
        lost = float(np.round(gap[np.abs(gap).argmax()], 1)) or lost
        world = replace(world, truth=worlds.again(calm)[start:stop, boiler])
    remedy = report.tell(fit, recording, report.AskRestoration(
        "boiler", {"drum pressure": lost}, {"boiler": ["fuel valve"], "turbine": ["governor valve"]}, BACK,
        question=f"What would bring the drum pressure back by {lost:+g} bar within {BACK} minutes?",
    ))  # fmt: skip
    if isinstance(remedy, report.Told) and isinstance(remedy.answer, Restoration):
        remedy = replace(remedy, truth=worlds.ahead(held(remedy.answer.change, BACK))[:, boiler])
    return [world, shares, remedy]


def held(change: Mapping[str, Mapping[str, float]], rows: int, during: int | None = None) -> FloatArray:
    """{unit: {input: change}} as what is added to all inputs, (rows, U), for so many rows (all)."""
    out = np.zeros((rows, len(demo_plant.USUAL)))
    for unit, inputs in change.items():
        for name, value in inputs.items():
            out[:during, demo_plant.input_at(unit, name)] = value
    return out


def ask(question: report.AskEffect, worlds: Worlds, fit: Fit, linear: PooledLinear) -> Section:
    """Both answers beside the true one: what the simulator does next, with the change and without."""
    told, own = report.tell(fit, worlds.recording, question), demo_plant.outputs_of(question.effect)
    added = held({str(question.cause): question.change}, HORIZON, HELD)
    if not isinstance(told, report.WhatIf):
        return told
    beside = [report.Estimate(LINEAR, linear.effect(added)[:, own], short="linear")]
    scale = worlds.channels[:, own].std(axis=0)
    return replace(told, label="Counterflow", truth=worlds.ahead(added)[:, own], others=beside, scale=scale)


def compose(recording: Recording, fit: Fit, sections: Sequence[Section], steps: int, seed: int) -> report.Report:
    """Everything the page says."""
    base = report.compose(fit, recording)
    page = replace(
        base,
        title="What would the turbine do if the boiler were run differently?",
        lead=(
            f"A simulated steam plant of four units, {steps} minutes of its log. Valves, pressures and temperatures "
            "multiply each other there, so that what a change does depends on where the plant stands. Each unit kept "
            "its raw measurements, and nobody has a model; a server learned how the units act on each other from "
            "compressed measurements. Because the plant is simulated, the true answer is known and stands beside "
            "every estimate."
        ),
        notes=("the plant is made up, and its inputs were moved often and freely; a real plant is harder", *base.notes),
        provenance={**base.provenance, "made with": f"counterflow demo --steps {steps} --seed {seed}"},
        sections=tuple(sections),
    )
    return replace(page, facts={**base.facts, **beside_the_truth(page)})


def beside_the_truth(page: report.Report) -> dict[str, str]:
    """How far the what-if answers are off, and how often the truth lies within the interval."""
    out, inside = {}, []
    for which, label in ((1, "the answers miss the truth by"), (2, "a linear model misses it by")):
        errors = [whatif.relative_error(whatif.answers[which]) or 0.0 for whatif in page.whatifs]
        out[label] = ", ".join(wording.share(error, 0) for error in errors)
    for whatif in page.whatifs:
        true, answer = whatif.answers[0].mean, whatif.answers[1]
        inside.append(((np.asarray(answer.lower) <= true) & (true <= np.asarray(answer.upper))).ravel())
    return {**out, "truth within the 95 % bands": wording.share(float(np.concatenate(inside).mean()), 0)}


def check_place(out: Path, force: bool) -> None:
    """Refuse a place that cannot be written, holds what is not ours or, without ``force``, anything at all."""
    output.check_folder(out)
    with blaming(out):
        entries = sorted(entry.name for entry in out.iterdir()) if out.exists() else []
        strange = [name for name in entries if name not in (RECORDING, FIT, REPORT)]
        page = out / REPORT
        if page.exists() and not (page.is_file() and b'content="Counterflow' in page.read_bytes()[:4096]):
            strange.append(REPORT)
    if strange:
        raise StorageError(
            f"--out {str(out)!r} holds {strange[0]!r}, which the demo did not write; nothing was changed. Choose a new "
            "or empty directory with --out."
        )
    if entries and not force:
        raise StorageError(f"--out {str(out)!r} holds an earlier demo: choose another directory, or give --force.")


def _content(content: report.Report, incident: Sequence[Section]) -> dict[str, Any]:
    return {
        "caveats": list(content.caveats),
        "questions": [
            {
                "question": whatif.question, "sentence": whatif.sentence(),
                "channels": [picked(channel, "name unit") for channel in whatif.channels],
                "answers": [
                    picked(answer, "label truth mean lower upper level")
                    | {"relative_error": whatif.relative_error(answer)}
                    for answer in whatif.answers
                ],
            }
            for whatif in content.whatifs
        ],
        "incident": [{"question": told.question, "sentence": told.sentence()} for told in incident],
        "restoration": next((dict(found.change) for found, _ in content.answers(Restoration)), None),
        "shares": next((dict(found.ranked(name)) for found, name in content.answers(Attribution)), None),
        "checks": [{**c.to_dict(), "passed": c.passed} for c in content.checks],
    }  # fmt: skip


def _shown(out: Path, fit: Fit, content: report.Report, seconds: float) -> Iterator[Part]:
    yield from output.fitted(fit)
    for told in content.sections:
        yield from ("", Line(told.question, "bold"), told.sentence())
    yield from output.noted([note for note in content.caveats if note not in fit.caveats])
    yield ""
    for label, name in (("recording", RECORDING), ("saved fit", FIT), ("report", REPORT)):
        yield f"{label:>9}: {out / name}"
    yield from (f"{'ask it':>9}: counterflow console {out / FIT}", f"done in {seconds:.1f} s")


@dataclass(frozen=True, eq=False)
class PooledLinear:
    """Least squares of all channels on some rows of all channels and inputs before (ARX), in standard deviations.

    ``weights`` (lags · (D + U), D), newest row first; ``spread`` (D + U,) of channels and inputs.
    """

    weights: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, channels: FloatArray, inputs: FloatArray) -> PooledLinear:
        """Of channels (T, D) and inputs (T, U); as many lags as Akaike's criterion likes best."""
        D, whole = channels.shape[1], np.hstack([channels, inputs])
        spread = whole.std(axis=0)
        rows = (whole - whole.mean(axis=0)) / spread
        lagged = np.hstack([rows[MOST_LAGS - lag : len(rows) - lag] for lag in range(1, MOST_LAGS + 1)])
        target, found = rows[MOST_LAGS:, :D], []
        for lags in range(1, MOST_LAGS + 1):
            before = lagged[:, : lags * rows.shape[1]]
            weights = np.linalg.lstsq(before, target)[0]
            left = target - before @ weights
            found.append((len(target) * np.linalg.slogdet(left.T @ left)[1] + 2 * weights.size, weights))
        return cls(min(found, key=lambda each: each[0])[1], spread)

    def effect(self, added: FloatArray) -> FloatArray:
        """What ``added`` (n, U) to the inputs does to all channels in the n rows after, (n, D); the same anywhere."""
        D, width = self.weights.shape[1], len(self.spread)
        lags = len(self.weights) // width
        rows = np.zeros((lags + len(added), width))
        rows[lags - 1 : -1, D:] = added / self.spread[D:]
        for t in range(lags, len(rows)):
            rows[t, :D] = rows[t - lags : t][::-1].ravel() @ self.weights
        return rows[lags:, :D] * self.spread[:D]
