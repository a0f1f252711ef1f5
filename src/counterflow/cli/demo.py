"""``counterflow demo``: the main job end to end, on a plant whose true answers are known.

Nothing is written before everything is computed, and every file is renamed into place, so an interrupt leaves either
what was there or what belongs there.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from typer import Option

from counterflow import report
from counterflow.arrays import FloatArray
from counterflow.cli import output
from counterflow.cli.demo_plant import INPUT_SPREAD, demo_plant
from counterflow.cli.options import AnswerFormat
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError, UnstableError
from counterflow.files import blaming, make_folder
from counterflow.fits import training
from counterflow.fits.fit import Fit
from counterflow.plant import Plant, Recording, excitation
from counterflow.report.content import Section

RECORDING, FIT, REPORT = "recording.safetensors", "fit", "report.html"
OUT = Path("demo-output")
HORIZON, HELD = 40, 10  # steps
WINDOW, OPENED, OPENING = 80, 20, 5.0  # the incident: rows before the end, for how many of them, by how much
BACK = 30  # steps in which a pressure is to be brought back
PUBLISHED = "penalty"
GRADIENT_ROUNDS = 2000


@dataclass(frozen=True)
class Question:
    """Open one valve of ``cause`` by ``change`` for HELD steps: what happens to ``effect``?"""

    cause: str
    valve: str
    change: float
    effect: str
    headline: str

    def __str__(self) -> str:
        return (
            f"The {_plain(self.cause)}'s {self.valve} {self.change:+g} % for {HELD} minutes: "
            f"what happens to the {_plain(self.effect)}?"
        )


QUESTIONS = (
    Question("boiler", "fuel valve", 5.0, "turbine", "electric power"),
    Question("water_treatment", "make-up valve", 10.0, "boiler", "drum pressure"),
    Question("turbine", "governor valve", 5.0, "boiler", "drum pressure"),
)


def demo(
    out: Annotated[Path, Option(help="Directory for the recording, the saved fit and the report.")] = OUT,
    steps: Annotated[int, Option(min=200, max=1_000_000, help="Minutes of plant to simulate.")] = 4000,
    seed: Annotated[int, Option(min=0, help="Of the simulation and of the fit.")] = 0,
    method: Annotated[str | None, Option(help="How to fit; default: that of counterflow.fit.")] = None,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Simulate a boiler, a turbine and a water treatment, fit the federation, ask what-if, write a report."""
    began = time.perf_counter()
    check_place(out)
    if find_spec("matplotlib") is None:
        raise OptionError("the demo's report needs matplotlib: install it with  pip install 'counterflow[plots]'")
    chosen = method if method is not None else str(inspect.signature(training.fit).parameters["method"].default)
    console = Console(stderr=True, quiet=answer_format is Format.json)
    with console.status("simulating the plant"):
        plant = demo_plant()
        inputs, calm = record_incident(plant, steps, seed)
        recording = plant.simulate(steps, rng=seed, inputs=inputs)
    with console.status(f"fitting the federation: {chosen}"):
        fits = fit_all(recording, plant, chosen, seed)
    with console.status("asking what-if, and simulating the true answers"):
        whatifs = [ask(question, plant, inputs, steps, seed, fits) for question in QUESTIONS]
        incident = look_into(recording, plant.simulate(steps, rng=seed, inputs=calm), fits[chosen])
    with console.status("drawing the report"):
        content = compose(plant, recording, fits, [*whatifs, *incident], steps, seed, chosen)
        page = report.render(content)  # all is drawn before anything is written
    _write(out, recording, fits[chosen], page)
    seconds = time.perf_counter() - began
    answer = _content(out, fits[chosen], content, incident, steps, seed, seconds)
    output.answer(answer_format, "demo", answer, lambda: _show(out, fits[chosen], content, incident, seconds))


def record_incident(plant: Plant, steps: int, seed: int) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Inputs as they were, with a make-up valve that stood too far open near the end, and as they should have been."""
    calm = dict(excitation.white(plant, steps, seed, scale=INPUT_SPREAD))
    inputs = {name: series.copy() for name, series in calm.items()}
    valve = plant.unit("water_treatment").input_names.index("make-up valve")
    start = steps + 1 - WINDOW
    inputs["water_treatment"][start : start + OPENED, valve] += OPENING
    return inputs, calm


def look_into(recording: Recording, calm: Recording, fit: Fit) -> list[Section]:
    """The make-up valve stuck open near the end: what would have been, who did it, what brings the pressure back.

    ``calm`` is the simulator's run of the same noise without it. A method whose estimate does not settle refuses some
    of it; the page then says so.
    """
    start, stop, clock = recording.rows - WINDOW, recording.rows, report.Clock.of(recording.dt)
    valve = calm["water_treatment"].unit.input_names.index("make-up valve")
    do = {"water_treatment": {"make-up valve": calm["water_treatment"].u[start:stop, valve]}}
    world = report.tell(fit, recording, report.AskCounterfactual(
        "boiler", do, start, stop, "drum pressure",
        f"The make-up valve stood {OPENING:g} % too far open from minute {start:g} to {start + OPENED - 1:g}: where "
        "would the drum pressure have been without that?",
    ))  # fmt: skip
    shares = report.tell(fit, recording, report.AskAttribution(
        "boiler", start, start + 2 * OPENED, "drum pressure",
        f"Who moved the drum pressure from minute {start:g} to {start + 2 * OPENED - 1:g}?",
    ))  # fmt: skip
    lost = float(OPENING)  # bar, if nothing better is known
    if isinstance(world, report.World):
        told, at = world.trajectory, world.headline_index
        gap = told.mean[:, at] - told.factual[:, at]
        lost = float(np.round(gap[np.abs(gap).argmax()])) or lost
        world = replace(world, truth=calm["boiler"].y[start:stop])
    remedy = report.tell(fit, recording, report.AskRestoration(
        "boiler", {"drum pressure": lost}, {"boiler": ["fuel valve"], "turbine": ["governor valve"]}, BACK,
        f"What would bring the drum pressure back by {lost:+g} bar within {clock.span(BACK)}?",
    ))  # fmt: skip
    return [world, shares, remedy]


def fit_all(recording: Recording, plant: Plant, chosen: str, seed: int) -> dict[str, Fit]:
    """The chosen method first, then the published one for comparison, by name."""
    fits = {}
    for method in dict.fromkeys((chosen, PUBLISHED)):
        models = plant if method == "oracle" else plant.locals()
        fits[method] = training.fit(recording, models, method=method, seed=seed)
    return fits


def ask(
    question: Question, plant: Plant, inputs: Mapping[str, FloatArray], steps: int, seed: int, fits: Mapping[str, Fit]
) -> report.WhatIf:
    """The answer of every fit, beside the true one: a twin run of the simulator with the same noise."""
    start = min(steps // 2, steps - HORIZON)
    changed = {name: series.copy() for name, series in inputs.items()}
    valve = plant.unit(question.cause).input_names.index(question.valve)
    changed[question.cause][start : start + HELD, valve] += question.change
    worlds = [plant.simulate(steps, rng=seed, inputs=series)[question.effect].y for series in (inputs, changed)]
    true = (worlds[1] - worlds[0])[start + 1 : start + 1 + HORIZON]
    answers = [report.Answer("simulator's twin run (the truth)", true, truth=True)]
    for k, (method, fit) in enumerate(fits.items()):
        try:
            effect = fit.effect(
                question.cause, question.effect, {question.valve: question.change}, horizon=HORIZON, duration=HELD
            )
        except UnstableError:
            if k == 0:  # the method that was asked for
                raise
            continue
        label, short, _ = _names(method)
        answers.append(report.Answer.of(label, effect, short=short))
    outputs = plant.unit(question.effect).outputs
    return report.WhatIf(str(question), outputs, tuple(answers), question.headline, plant.dt / 60, "min", HELD)


def compose(
    plant: Plant, recording: Recording, fits: Mapping[str, Fit], sections: Sequence[Section], steps: int, seed: int,
    chosen: str,
) -> report.Report:  # fmt: skip
    """Everything the page says."""
    base = report.compose(fits[chosen], recording)
    trainings = [report.Training.of(_names(method)[2], fit) for method, fit in fits.items()]
    gradient = training.fit(
        recording, plant.locals(), method=PUBLISHED, seed=seed, solver="gradient", rounds=GRADIENT_ROUNDS
    )
    trainings.append(report.Training.of("published method, gradient steps as in its Algorithm 1", gradient))
    share = _first_step_share(sections)
    first = (
        "the published method has no answers to show: its estimate is unstable, and they run away"
        if share is None
        else f"one minute after a change (the paper's own question, C B Δu), the published method gives "
        f"{100 * share:.1f} % of the true effect, averaged over the questions; later on it gives what passes through "
        "its couplings of the states, which are biased"
    )
    command = f"counterflow demo --steps {steps} --seed {seed} --method {chosen}"
    page = replace(
        base,
        title="What would the turbine do if the boiler were run differently?",
        lead=(
            f"A simulated plant of three units, {steps} minutes. Each unit kept its raw measurements; a server learned "
            "how they act on each other from compressed ones. Because the plant is simulated, the true answer "
            "is known and stands beside every estimate."
        ),
        trainings=tuple(trainings),
        notes=(
            "the plant is made up and linear, its inputs are white test signals but for one incident, and every unit "
            "is given its own true local model; a real plant is harder",
            first,
            *base.notes,
        ),
        provenance={**base.provenance, "made with": command},
    )
    return page.with_sections(sections)


def _first_step_share(sections: Sequence[Section]) -> float | None:
    """How much of the true effect of the first step (the paper's own question) its method gives, on average."""
    shares = []
    for whatif in sections:
        if isinstance(whatif, report.WhatIf) and whatif.truth is not None:
            true, own = whatif.truth.mean[0], _names(PUBLISHED)[0]
            shares += [float(a.mean[0] @ true / (true @ true)) for a in whatif.estimates if a.label == own]
    return float(np.mean(shares)) if shares else None


def check_place(out: Path) -> None:
    """Refuse a place that cannot be written, or holds what is not ours, before any work is done."""
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


def _write(out: Path, recording: Recording, fit: Fit, page: str) -> None:
    with blaming(out):
        make_folder(out)
    recording.save(out / RECORDING)
    fit.save(out / FIT)
    report.write(page, out / REPORT)


def _plain(name: str) -> str:
    return name.replace("_", " ")


def _names(method: str) -> tuple[str, str, str]:
    """A method as the page calls it, in short, and where it is trained."""
    if method == PUBLISHED:
        return "the published method", "published", "published method, conjugate gradients"
    label, short = ("Counterflow", "Counterflow") if method == "sufficient" else (f"method {method!r}", method)
    return label, short, f"method {method!r}"


def _content(
    out: Path, fit: Fit, content: report.Report, incident: Sequence[Section], steps: int, seed: int, seconds: float
) -> dict[str, Any]:
    answered = "label truth mean lower upper level"
    return {
        "method": fit.method, "steps": steps, "seed": seed, "seconds": round(seconds, 3),
        "files": {"recording": out / RECORDING, "fit": out / FIT, "report": out / REPORT},
        **output.fit_json(fit.status, fit.traffic),
        "caveats": list(content.caveats),
        "questions": [
            {
                "question": whatif.question, "sentence": whatif.sentence(),
                "channels": [{"name": c.name, "unit": c.unit} for c in whatif.channels],
                "answers": [
                    output.picked(answer, answered) | {"relative_error": whatif.relative_error(answer)}
                    for answer in whatif.answers
                ],
            }
            for whatif in content.whatifs
        ],
        "incident": [{"question": told.question, "sentence": told.sentence()} for told in incident],
        "restoration": next((dict(each.restoration.change) for each in content.remedies), None),
        "shares": next((dict(each.ranked()) for each in content.shares), None),
        "checks": [{**c.to_dict(), "passed": c.passed} for c in content.checks],
    }  # fmt: skip


def _show(out: Path, fit: Fit, content: report.Report, incident: Sequence[Section], seconds: float) -> None:
    output.show_lines(*fit.summary().split("\n"))
    for whatif in content.whatifs:
        at = whatif.headline_index
        row, rows = whatif.peak_row(at), []
        for answer in whatif.answers:
            error = whatif.relative_error(answer)
            largest = whatif.quantity(answer, row, at) + whatif.interval(answer, row, at)
            misses = "" if answer.truth or error is None else f"{100 * error:.0f} %"
            rows.append([answer.label, whatif.quantity(answer, 0, at), largest, misses])
        after = f"after {(row + 1) * whatif.step:g} min, at its largest"
        columns = ["", f"{whatif.channels[at].name} after 1 min", after, "misses by"]
        output.show_table(whatif.question, columns, rows)
    for told in incident:
        output.show_text("")
        output.show_text(told.question, style="bold")
        output.show_text(told.sentence())
    output.show_notes(content.caveats)
    output.show_text("")
    for label, name in (("recording", RECORDING), ("saved fit", FIT), ("report", REPORT)):
        output.show_text(f"{label:>9}: {out / name}")
    output.show_lines(f"{'ask it':>9}: counterflow console {out / FIT}", f"done in {seconds:.1f} s")
