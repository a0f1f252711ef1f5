"""``counterflow privacy plan``: what an epsilon buys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typer import Option

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.cli import output
from counterflow.cli.federation_file import read_plant
from counterflow.cli.options import AnswerFormat, Delta, Window
from counterflow.cli.output import Format
from counterflow.errors import OptionError
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.log_moments import ranges
from counterflow.exchange.machines import ExchangeServer, ExchangeUnit
from counterflow.exchange.moments import MomentMemory
from counterflow.exchange.registry import LOG_MOMENTS, MOMENTS
from counterflow.exchange.rows import privatised
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.fits import engine
from counterflow.fits.fit import load
from counterflow.learning.clipping import SETTLES
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.log_moment_design import LogFound
from counterflow.learning.optimiser import Estimated
from counterflow.learning.parameters import Estimate, Parameters
from counterflow.learning.uncertainty import Uncertainty, uncertainty
from counterflow.plant import LocalModel, Plant, Unit, excitation
from counterflow.privacy import Privacy, gaussian_epsilon, gaussian_mu
from counterflow.privacy.clipping import AddedNoise

FALSE_ALARMS = 0.05
WANTED_ERROR = 0.1
STEPS = 4000
DROWNED = 0.7  # relative error beyond which what is asked for would be lost in the noise
RANGE = 8.0  # standard deviations to either side, that an instrument without limits is taken to have
CLIPPED = 0.01  # share of rows above which what clipping does to a fit is worth a word
_SEED = 0  # of the simulated rows


@dataclass(frozen=True)
class Task:
    """A system whose couplings are to be estimated from rows under privacy: truth, local models, inputs."""

    plant: Plant
    models: Mapping[str, LocalModel]
    inputs: Mapping[str, FloatArray]  # (T+1, U_m), as the models take them
    estimate: Estimate = "couplings"
    known: KnownEdges | None = None  # couplings that there can be
    from_logs: bool = False  # units have no models: effects are estimated, not couplings
    memory: int | None = None  # from logs: rows that inputs are followed

    @property
    def rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    @property
    def has_moments(self) -> bool:
        """Whether moments can be released: couplings alone are estimated, and every unit's model settles."""
        radii = [np.abs(np.linalg.eigvals(model.A)).max(initial=0.0) for model in self.models.values()]
        return self.estimate == "couplings" and max(radii) <= SETTLES


@dataclass(frozen=True)
class Expected:
    """Expected relative error of all couplings together, and the share of rows that clipping would change."""

    error: float
    clipped: float


def plan(
    epsilon: Annotated[str, Option(help="Numbers with commas between them.")] = "0.1,0.3,1,3,10",
    delta: Delta = 1e-6,
    window: Window = 1,
    releases: Annotated[int, Option(help="How many fits of the same rows the epsilon has to pay for.")] = 1,
    fit: Annotated[
        Path | None, Option(metavar="DIR", help="A saved fit: also tell what its couplings' errors would be.")
    ] = None,
    plant: Annotated[
        Path | None, Option(metavar="FILE", help="The same for a plant in TOML, whose inputs are white.")
    ] = None,
    steps: Annotated[int | None, Option(min=100, max=1_000_000, help="Rows to plan for, with --plant (4000).")] = None,
    logs: Annotated[bool, Option("--logs", help="Plan a fit from logs, without models: errors of effects.")] = False,
    memory: Annotated[int | None, Option(min=3, help="Rows that inputs are followed, with --logs.")] = None,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """What does an epsilon buy: how much noise, how well could an attack guess, and how exact would a fit be?

    No measurement is looked at: errors are those of simulated rows.

    Example: counterflow privacy plan --epsilon 0.5,1,2 --delta 1e-6 --fit fit
    """
    if fit is not None and plant is not None:
        raise OptionError("--fit and --plant: give one of them.")
    if steps is not None and plant is None:
        raise OptionError("--steps goes with --plant; a fit is planned for as many rows as it rests on.")
    if (logs or memory is not None) and fit is None and plant is None:
        raise OptionError("--logs and --memory go with --plant or --fit, which say what is to be found.")
    if not 1 <= releases <= 1_000_000:
        raise OptionError(f"--releases {releases}: give a whole number from 1 to 1000000.")
    rows = [mechanism(each, delta, window, releases) for each in numbers("--epsilon", epsilon)]
    task = None if fit is None else _of_fit(fit, logs)
    if plant is not None:
        made = read_plant(plant)
        task = Task(made, made.locals(), excitation.white(made, steps or STEPS, _SEED), from_logs=logs)
    answer: dict[str, Any] = {
        "delta": delta, "window": window, "releases": releases, "false_alarms": FALSE_ALARMS, "plans": rows,
    }  # fmt: skip
    notes: list[Caveat] = []
    if task is not None and task.from_logs:
        asked = [Privacy(row["epsilon_each"], delta, window=window, seed=_SEED) for row in rows]
        alone, *under = expected_errors_of_logs(replace(task, memory=memory), [None, *asked])
        answer |= {
            "rows": task.rows, "wanted_error": WANTED_ERROR, "from_logs": True, "error_without_privacy": alone.error,
        }  # fmt: skip
        for row, found in zip(rows, under, strict=True):
            needed = needed_rows(task.rows, found.error, alone.error) if found.error < DROWNED else None
            row |= {"release": "moments", "error": found.error, "clipped": found.clipped, "rows_needed": needed}
        notes = _notes(under)
    elif task is not None:
        if memory is not None:
            raise OptionError("--memory goes with --logs: with models it follows from them.")
        asked = [Privacy(row["epsilon_each"], delta, window=window, seed=_SEED) for row in rows]
        bare, *by_rows = expected_errors(task, [None, *(replace(each, release="rows") for each in asked)])
        answer |= {"rows": task.rows, "wanted_error": WANTED_ERROR, "error_without_privacy": bare.error}
        under = list(by_rows)
        if task.has_moments:
            alone, *under = expected_errors_of_moments(task, [None, *asked])
            answer["error_of_moments_without_privacy"] = alone.error
        for row, found, other in zip(rows, under, by_rows, strict=True):
            row |= {
                "release": "moments" if task.has_moments else "rows", "error": found.error, "clipped": found.clipped,
                "rows_needed": needed_rows(task.rows, found.error, alone.error if task.has_moments else found.error),
                "error_of_rows": other.error, "rows_needed_of_rows": needed_rows(task.rows, other.error, other.error),
            }  # fmt: skip
        notes = _notes(under)
    answer["caveats"] = notes
    output.answer(answer_format, "privacy plan", answer, lambda: _show(answer))


def numbers(option: str, text: str) -> list[float]:
    """ "0.1,1,10" as numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"{option} {text!r}: give numbers with commas between them, such as 0.1,1,10.") from None


def mechanism(epsilon: float, delta: float, window: int, releases: int) -> dict[str, Any]:
    """What one ε asks of the noise, and what it leaves to the best possible attack; exact for the Gaussian mechanism.

    ``noise_per_clip``: standard deviation of the noise in radii of clipping. ``caught``: how often an attack that
    raises FALSE_ALARMS false alarms finds the true one of two records that differ in a window. ``guessed``: how often a
    guess between the two is right.

    >>> row = mechanism(1.0, 1e-5, window=4, releases=1)
    >>> round(row["multiplier"], 4), round(row["noise_per_clip"], 3), round(row["caught"], 3)
    (3.7306, 14.923, 0.084)
    """
    from scipy.special import ndtr, ndtri

    Privacy(epsilon, delta, window=window)  # refuses what a fit would refuse
    mu = gaussian_mu(epsilon, delta)
    multiplier = math.sqrt(releases) / mu
    return {
        "epsilon": epsilon,
        "epsilon_each": epsilon if releases == 1 else gaussian_epsilon(mu / math.sqrt(releases), delta),
        "multiplier": multiplier, "noise_per_clip": 2 * math.sqrt(window) * multiplier,
        "caught": float(ndtr(ndtri(FALSE_ALARMS) + mu)), "guessed": float(ndtr(mu / 2)),
    }  # fmt: skip


def expected_errors(task: Task, settings: Sequence[Privacy | None]) -> list[Expected]:
    """How exact the couplings would be under each setting, from the Fisher information at the truth.

    The messages are made of simulated rows by the very code that makes the real ones, so that noise and clipping are
    those of a fit. The radius of clipping, which units find under noise, is one draw: where rows are few and epsilon is
    small, another would do. What clipping does to the estimate is not in it.

    Examples
    --------
    >>> from counterflow.plant import random_plant
    >>> plant = random_plant(units=2, rng=0)
    >>> task = Task(plant, plant.locals(), excitation.white(plant, 500, 1))
    >>> bare, private = expected_errors(task, [None, Privacy(epsilon=1.0, delta=1e-6, seed=0)])
    >>> bool(bare.error < private.error)
    True
    """
    plant, names = task.plant, task.plant.names
    recording = plant.simulate(task.rows - 1, rng=_SEED, inputs=dict(task.inputs))
    bare = [sufficient_message(n, task.models[n], recording[n].y, recording[n].u) for n in names]
    out = []
    for privacy in settings:
        clipped, messages = 0.0, bare
        if privacy is not None:
            made = [privatised(m, task.models[m.unit], privacy) for m in bare]
            messages = [message for message, _ in made]
            clipped = max(release.clipped for _, release in made)
        shared = SharedRecord.from_messages(messages)
        root = np.eye(len(plant.A))  # it moves nothing here
        parameters = Parameters(shared, task.estimate, root, known=task.known)
        truth = Estimated(plant.A, plant.B, plant.Q, 0.0, 0, True, 0.0, parameters=parameters)
        out.append(Expected(_relative(plant, uncertainty(shared, truth)), clipped))
    return out


def expected_errors_of_moments(task: Task, settings: Sequence[Privacy | None]) -> list[Expected]:
    """The same of moments: the very exchange of a fit on simulated rows, and its information at the truth.

    Examples
    --------
    >>> from counterflow.plant import random_plant
    >>> plant = random_plant(units=2, rng=0)
    >>> task = Task(plant, plant.locals(), excitation.white(plant, 2000, 1))
    >>> privacy = Privacy(epsilon=1.0, delta=1e-6, seed=0)
    >>> (of_moments,), (of_rows,) = expected_errors_of_moments(task, [privacy]), expected_errors(task, [privacy])
    >>> bool(3 * of_moments.error < of_rows.error)
    True
    """
    plant, names = task.plant, task.plant.names
    recording = plant.simulate(task.rows - 1, rng=_SEED, inputs=dict(task.inputs))
    out = []
    for privacy in settings:
        known = task.known
        options = {} if known is None else {"edges": known.edges, "forbidden": known.forbidden}
        asked = LocalTask("moments", {unit.name: unit.inputs for unit in plant.units}, options, privacy=privacy)
        own = {n: UnitData(plant.unit(n), recording[n].y, recording[n].u, task.models[n]) for n in names}
        units = {n: ExchangeUnit(MOMENTS.what, asked, own[n]) for n in names}
        done, states, _ = engine.run(MOMENTS.server(asked), units)
        assert isinstance(done, ExchangeServer)
        assert isinstance(done.memory, MomentMemory)
        design, made = done.work, [state.release for state in states.values()]
        clipped = max((release.clipped for release in made if isinstance(release, AddedNoise)), default=0.0)
        covariance = design.record(done.memory.moments).spread_at(plant.A, plant.B, design.parameters)
        out.append(Expected(_relative(plant, Uncertainty(design.parameters, covariance)), clipped))
    return out


def expected_errors_of_logs(task: Task, settings: Sequence[Privacy | None]) -> list[Expected]:
    """The same of a fit from logs: relative error of what inputs do to other units, over the rows that are followed.

    The very exchange of a fit on simulated rows. Channels are scaled by their limits; those without by ``RANGE``
    standard deviations of what they do here.

    Examples
    --------
    >>> from counterflow.plant import random_plant
    >>> plant = random_plant(units=2, outputs=2, rng=0)
    >>> task = Task(plant, {}, excitation.white(plant, 1500, 1), from_logs=True, memory=15)
    >>> alone, drowned = expected_errors_of_logs(task, [None, Privacy(epsilon=0.1, delta=1e-6, seed=0)])
    >>> alone.error < 0.3, drowned.error > 0.9
    (True, True)
    """
    plant, names = task.plant, task.plant.names
    recording = plant.simulate(task.rows - 1, rng=_SEED, inputs=dict(task.inputs))
    described = {unit.name: _ranged(unit, recording[unit.name].y) for unit in plant.units}
    out = []
    for privacy in settings:
        inputs = {unit.name: unit.inputs for unit in plant.units}
        asked = LocalTask("moments", inputs, {"memory": task.memory}, privacy=privacy, from_logs=True)
        brought = {n: UnitData(described[n], recording[n].y, recording[n].u) for n in names}
        units = {n: ExchangeUnit(LOG_MOMENTS.what, asked, brought[n]) for n in names}
        done, states, _ = engine.run(LOG_MOMENTS.server(asked), units)
        assert isinstance(done, ExchangeServer)
        assert isinstance(done.memory, MomentMemory)
        assert isinstance(done.memory.found, LogFound)
        design, made = done.work, [state.release for state in states.values()]
        clipped = max((release.clipped for release in made if isinstance(release, AddedNoise)), default=0.0)
        functions = design.bank.functions[: design.bank.memory]
        missed = whole = 0.0
        for effect, found in zip(names, done.memory.found.estimates, strict=True):
            weights = found.weights.reshape(len(found.level), len(design.scale), -1)
            estimate = np.einsum("lk,ouk->lou", functions, weights)
            truth = _responses(plant, effect, len(functions)) * design.scale
            truth = truth / ranges(brought[effect].unit, brought[effect].y, privacy is not None)[1][:, None]
            for cause in names:
                if cause != effect:
                    own = plant.input_slice(cause)
                    missed += float(np.square(estimate[..., own] - truth[..., own]).sum())
                    whole += float(np.square(truth[..., own]).sum())
        if whole == 0:
            raise OptionError("privacy plan: no unit acts on another here, so there is no relative error of effects.")
        out.append(Expected(math.sqrt(missed / whole), clipped))
    return out


def _ranged(unit: Unit, y: FloatArray) -> Unit:
    """A unit whose instruments have ranges."""
    outputs = []
    for channel, readings in zip(unit.outputs, y.T, strict=True):
        limits = channel.limits
        if limits is None or not np.isfinite(limits).all():
            middle, half = float(readings.mean()), RANGE * max(float(readings.std()), 1e-300)
            channel = replace(channel, limits=(middle - half, middle + half))
        outputs.append(channel)
    return Unit(unit.name, unit.states, unit.inputs, outputs)


def _responses(plant: Plant, effect: str, rows: int) -> FloatArray:
    """(rows, D, U): what one unit of each input does to the outputs of a unit, row by row after it."""
    states, out = plant.B, []
    C = plant.C[plant.output_slice(effect), :]
    for _ in range(rows):
        out.append(C @ states)
        states = plant.A @ states
    return np.array(out)


def needed_rows(rows: int, error: float, without_noise: float) -> int | None:
    """Rows for ``WANTED_ERROR``: what noise of privacy adds to squared errors falls as 1/T², the rest as 1/T.

    >>> needed_rows(1000, 0.2, 0.2), needed_rows(1000, 0.2, 0.0)
    (4000, 2000)
    """
    if not math.isfinite(error):
        return None
    rest, added = without_noise**2 * rows, max(error**2 - without_noise**2, 0.0) * rows**2
    wanted = WANTED_ERROR**2
    return math.ceil((rest + math.sqrt(rest**2 + 4 * wanted * added)) / (2 * wanted) - 1e-6)


def _relative(plant: Plant, spread: Uncertainty) -> float:
    """Standard errors of all couplings together, over the couplings."""
    A, B = spread.standard_errors
    between = np.hstack([_between(plant, plant.A, "states"), _between(plant, plant.B, "n_inputs")])
    size = float(np.linalg.norm(np.hstack([plant.A, plant.B])[between]))
    if size == 0:
        raise OptionError("privacy plan: no unit acts on another here, so there is no relative error of couplings.")
    return float(np.linalg.norm(np.hstack([A, B])[between])) / size


def _between(plant: Plant, matrix: FloatArray, width: str) -> NDArray[np.bool_]:
    """Which entries lie between two units."""
    of_rows = np.repeat(np.arange(len(plant.units)), [unit.states for unit in plant.units])
    of_columns = np.repeat(np.arange(len(plant.units)), [getattr(unit, width) for unit in plant.units])
    assert matrix.shape == (len(of_rows), len(of_columns))
    return np.asarray(of_rows[:, None] != of_columns)


def _of_fit(directory: Path, logs: bool) -> Task:
    fit = load(directory)
    couplings = fit.couplings
    if couplings is None:
        raise OptionError(
            f"--fit {str(directory)!r} is of method {fit.method!r}; a plan needs one of 'sufficient' or 'moments'."
        )
    parameters, shared = couplings.found.parameters, couplings.shared
    inputs = {name: shared.u[:, own] for name, own in zip(shared.names, shared.input_slices, strict=True)}
    if logs or parameters is None or parameters.estimate == "responses":
        return Task(fit.plant, {}, inputs, from_logs=True)
    models = {name: part.model for name, part in fit.parts.items()}
    return Task(fit.plant, models, inputs, parameters.estimate, parameters.known)


def _notes(under: Sequence[Expected]) -> list[Caveat]:
    notes = []
    clipped = max(found.clipped for found in under)
    if clipped > CLIPPED:
        text = (
            f"clipping would change up to {wording.percent(round(clipped, 3))} of a unit's rows; what that does to the "
            "estimate is not in the errors"
        )
        notes.append(Caveat("clipped-rows", "", text))
    if any(found.error > DROWNED for found in under):
        text = (
            "errors near or above 100 % say that couplings or effects would be lost in the noise, not how far off they "
            "are: plan for more rows, a larger epsilon or, from logs, a shorter memory"
        )
        notes.append(Caveat("drowned-by-noise", "", text))
    if any(not math.isfinite(found.error) for found in under):
        text = "some couplings are not determined by these inputs, with or without privacy"
        notes.append(Caveat("undetermined", "", text))
    return notes


def _show(answer: dict[str, Any]) -> None:
    releases, window = answer["releases"], answer["window"]
    protects = "one measurement" if window == 1 else f"any {window} consecutive measurements"
    paid = "one release" if releases == 1 else f"{releases} releases of the same rows"
    output.show_text(f"What an epsilon buys at delta {wording.exact(answer['delta'])}, for {protects} and {paid}.")
    several, errors = releases > 1, "rows" in answer
    columns = ["epsilon", *(["epsilon of each"] if several else []), "noise/move", "noise/clip"]
    from_logs = answer.get("from_logs", False)
    columns += ["caught", "guessed", *(["error", "rows for 10 %"] if errors else [])]
    columns += ["error by rows"] if errors and not from_logs else []
    rows = []
    for row in answer["plans"]:
        cells = [wording.exact(row["epsilon"]), *([wording.number(row["epsilon_each"])] if several else [])]
        cells += [wording.number(row["multiplier"]), wording.number(row["noise_per_clip"])]
        cells += [_share(row["caught"]), _share(row["guessed"])]
        if errors:
            needed = row["rows_needed"]
            cells += [_share(row["error"]), "–" if needed is None else wording.number(needed, 0)]
            cells += [] if from_logs else [_share(row["error_of_rows"])]
        rows.append(cells)
    output.show_table("", columns, rows, left=0)
    output.show_lines(
        f"noise/move: standard deviation of the noise by how far {protects} can move a message",
        "noise/clip: the same by the radius to which rows are clipped; a little more where a unit finds it by itself",
        f"caught: how often the best attack with {wording.percent(FALSE_ALARMS)} false alarms tells that they were "
        "replaced",
        "guessed: how often the best guess between the two records is right (chance: 50 %)",
    )
    if errors and from_logs:
        output.show_lines(
            f"error: expected relative error of what inputs do to other units, from {answer['rows']} rows of logs by "
            f"private moments ({_share(answer['error_without_privacy'])} without privacy); 100 %: nothing is found",
            "rows for 10 %: what the noise of moments adds falls as one over the rows, the rest as one over their root",
        )
    elif errors:
        output.show_lines(
            f"error: expected relative error of all couplings from {answer['rows']} rows by private "
            f"{answer['plans'][0]['release']} ({_share(answer['error_without_privacy'])} without privacy)",
            "rows for 10 %: what the noise of moments adds falls as one over the rows, the rest as one over their root",
            "error by rows: that of release='rows', which shows no unit anything of others' inputs",
        )
    output.show_notes(answer["caveats"])


def _share(value: float) -> str:
    return f"{wording.number(100 * value)} %" if math.isfinite(value) else "–"
