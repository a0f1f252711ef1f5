"""``counterflow privacy plan``: what an epsilon buys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from typer import Option

from counterflow import wording
from counterflow.arrays import FloatArray, block_diagonal
from counterflow.caveats import Caveat
from counterflow.cli.federation_file import read_plant
from counterflow.cli.options import Delta, Window
from counterflow.cli.output import Part, Told, answering, noted
from counterflow.cli.privacy_ledgers import protects
from counterflow.errors import OptionError
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.exchange import ExchangeServer, ExchangeUnit
from counterflow.exchange.moments import ranges
from counterflow.exchange.registry import LOG_MOMENTS, MOMENTS
from counterflow.exchange.rows import privatised
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.fits import engine
from counterflow.fits.fit import load
from counterflow.learning.clipping import SETTLES
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated
from counterflow.learning.parameters import Estimate, Parameters
from counterflow.learning.uncertainty import Uncertainty, uncertainty
from counterflow.notebook import Table
from counterflow.plant import LocalModel, Plant, Recording, Unit, excitation
from counterflow.privacy import Privacy, gaussian_epsilon, gaussian_mu
from counterflow.privacy.clipping import AddedNoise

FALSE_ALARMS = 0.05
WANTED_ERROR = 0.1
STEPS = 4000
DROWNED = 0.7  # relative error beyond which what is asked for would be lost in the noise
RANGE = 8.0  # standard deviations to either side, that an instrument without limits is taken to have
CLIPPED = 0.01  # share of rows above which what clipping does to a fit is worth a word
_SEED = 0  # of the simulated rows


Release = Literal["rows", "moments", "logs"]  # "logs": moments of logs, whose units have no models


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
    def release(self) -> Release:
        """What a fit would release: moments, if couplings alone are estimated and every unit's model settles."""
        radii = [np.abs(np.linalg.eigvals(model.A)).max(initial=0.0) for model in self.models.values()]
        settles = self.estimate == "couplings" and max(radii, default=0.0) <= SETTLES
        return "logs" if self.from_logs else "moments" if settles else "rows"


@dataclass(frozen=True)
class Expected:
    """Expected relative error of all couplings together, and the share of rows that clipping would change."""

    error: float
    clipped: float


@answering()
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
) -> Told:
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
    if task is not None and memory is not None and not task.from_logs:
        raise OptionError("--memory goes with --logs: with models it follows from them.")
    content: dict[str, Any] = {
        "delta": delta, "window": window, "releases": releases, "false_alarms": FALSE_ALARMS, "plans": rows,
    }  # fmt: skip
    notes: list[Caveat] = []
    if task is not None:
        private = [Privacy(row["epsilon_each"], delta, window=window, seed=_SEED) for row in rows]
        content |= _errors(replace(task, memory=memory), private, rows, notes)
    content["caveats"] = notes
    return Told(content, _shown(content))


def _errors(
    task: Task, private: Sequence[Privacy], rows: Sequence[dict[str, Any]], notes: list[Caveat]
) -> dict[str, Any]:
    """What is expected of a task: of all plans together, and below each row what is expected of it."""
    alone, *under = expected_errors(task, [None, *private])
    notes += _notes(under)
    told: dict[str, Any] = {"rows": task.rows, "wanted_error": WANTED_ERROR, "error_without_privacy": alone.error}
    for row, found in zip(rows, under, strict=True):
        noise_free = found.error if task.release == "rows" else alone.error
        row |= {"error": found.error, "clipped": found.clipped, "release": task.release}
        row["rows_needed"] = needed_rows(task.rows, found.error, noise_free)
        if task.from_logs:
            row["release"] = "moments"
            row["rows_needed"] = row["rows_needed"] if found.error < DROWNED else None
    if task.from_logs:
        return told | {"from_logs": True}
    if task.release == "moments":
        bare, *under = expected_errors(task, [None, *private], "rows")
        told |= {"error_without_privacy": bare.error, "error_of_moments_without_privacy": alone.error}
    for row, found in zip(rows, under, strict=True):
        row |= {"error_of_rows": found.error, "rows_needed_of_rows": needed_rows(task.rows, found.error, found.error)}
    return told


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


def expected_errors(task: Task, settings: Sequence[Privacy | None], release: Release | None = None) -> list[Expected]:
    """How exact a fit would be under each setting, by what it releases: rows, moments, or moments of logs.

    The messages are made of simulated rows by the very code that makes the real ones, so that noise and clipping are
    those of a fit. Errors of couplings follow from the information at the truth; of logs, effects are found, over the
    rows that are followed, and compared with the true ones. The radius of clipping, which units find under noise, is
    one draw: where rows are few and epsilon is small, another would do. What clipping does to the estimate is not in
    it, but for logs.
    """
    recording = task.plant.simulate(task.rows - 1, rng=_SEED, inputs=dict(task.inputs))
    way = {"rows": _by_rows, "moments": _by_moments, "logs": _from_logs}[release or task.release]
    return [way(task, recording, privacy) for privacy in settings]


def _by_rows(task: Task, recording: Recording, privacy: Privacy | None) -> Expected:
    plant, clipped = task.plant, 0.0
    messages = [sufficient_message(n, task.models[n], recording[n].y, recording[n].u) for n in plant.names]
    if privacy is not None:
        made = [privatised(message, task.models[message.unit], privacy) for message in messages]
        messages = [message for message, _ in made]
        clipped = max(release.clipped for _, release in made)
    shared = SharedRecord.from_messages(messages)
    parameters = Parameters(shared, task.estimate, np.eye(len(plant.A)), known=task.known)  # the root moves nothing
    truth = Estimated(plant.A, plant.B, plant.Q, 0.0, 0, True, 0.0, parameters=parameters)
    return Expected(_relative(plant, uncertainty(shared, truth)), clipped)


def _by_moments(task: Task, recording: Recording, privacy: Privacy | None) -> Expected:
    plant, known = task.plant, task.known
    options = {} if known is None else {"edges": known.edges, "forbidden": known.forbidden}
    own = {n: UnitData(plant.unit(n), recording[n].y, recording[n].u, task.models[n]) for n in plant.names}
    done, clipped = _exchanged(MOMENTS, task, own, options, privacy)
    design = done.work
    covariance = design.spread_at(plant.A, plant.B, done.kept.moments)
    return Expected(_relative(plant, Uncertainty(design.parameters, covariance)), clipped)


def _from_logs(task: Task, recording: Recording, privacy: Privacy | None) -> Expected:
    """Channels are scaled by their limits; those without by ``RANGE`` standard deviations of what they do here."""
    plant = task.plant
    own = {n: UnitData(_ranged(plant.unit(n), recording[n].y), recording[n].y, recording[n].u) for n in plant.names}
    done, clipped = _exchanged(LOG_MOMENTS, task, own, {"memory": task.memory}, privacy)
    design = done.work
    functions = design.bank.functions[: design.bank.memory]
    missed = whole = 0.0
    for effect, found in zip(plant.names, done.kept.found.estimates, strict=True):
        weights = found.weights.reshape(len(found.level), len(design.scale), -1)
        estimate = np.einsum("lk,ouk->lou", functions, weights)
        width = ranges(own[effect].unit, own[effect].y, privacy is not None)[1]
        truth = _responses(plant, effect, len(functions)) * design.scale / width[:, None]
        others = np.ones(len(design.scale), bool)
        others[plant.input_slice(effect)] = False
        missed += float(np.square((estimate - truth)[..., others]).sum())
        whole += float(np.square(truth[..., others]).sum())
    if whole == 0:
        raise OptionError("privacy plan: no unit acts on another here, so there is no relative error of effects.")
    return Expected(math.sqrt(missed / whole), clipped)


def _exchanged(
    release: Any, task: Task, own: Mapping[str, UnitData], options: dict[str, Any], privacy: Privacy | None
) -> tuple[ExchangeServer, float]:
    """The server when all units have sent their release, and the largest share of a unit's rows that was clipped."""
    inputs = {unit.name: unit.inputs for unit in task.plant.units}
    asked = LocalTask("moments", inputs, options, privacy=privacy, from_logs=task.from_logs)
    done, states, _ = engine.run(release.server(asked), {n: ExchangeUnit(release, asked, own[n]) for n in own})
    assert isinstance(done, ExchangeServer)
    releases = [state.release for state in states.values()]
    return done, max((each.clipped for each in releases if isinstance(each, AddedNoise)), default=0.0)


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
    """Rows for ``WANTED_ERROR``: what noise of privacy adds to squared errors falls as 1/T², the rest as 1/T."""
    if not math.isfinite(error):
        return None
    rest, added = without_noise**2 * rows, max(error**2 - without_noise**2, 0.0) * rows**2
    wanted = WANTED_ERROR**2
    return math.ceil((rest + math.sqrt(rest**2 + 4 * wanted * added)) / (2 * wanted) - 1e-6)


def _relative(plant: Plant, spread: Uncertainty) -> float:
    """Standard errors of all couplings together, over the couplings."""
    owned = [block_diagonal([np.ones_like(model.A) for model in plant.locals().values()]),
             block_diagonal([np.ones_like(model.B) for model in plant.locals().values()])]  # fmt: skip
    between = np.hstack(owned) == 0
    size = float(np.linalg.norm(np.hstack([plant.A, plant.B])[between]))
    if size == 0:
        raise OptionError("privacy plan: no unit acts on another here, so there is no relative error of couplings.")
    return float(np.linalg.norm(np.hstack(spread.standard_errors)[between])) / size


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
    out, clipped = [], max(found.clipped for found in under)
    if clipped > CLIPPED:
        text = (
            f"clipping would change up to {wording.percent(round(clipped, 3))} of a unit's rows; what that does to the "
            "estimate is not in the errors"
        )
        out.append(Caveat("clipped-rows", "", text))
    if any(found.error > DROWNED for found in under):
        text = (
            "errors near or above 100 % say that couplings or effects would be lost in the noise, not how far off they "
            "are: plan for more rows, a larger epsilon or, from logs, a shorter memory"
        )
        out.append(Caveat("drowned-by-noise", "", text))
    if any(not math.isfinite(found.error) for found in under):
        text = "some couplings are not determined by these inputs, with or without privacy"
        out.append(Caveat("undetermined", "", text))
    return out


def _shown(told: dict[str, Any]) -> Iterator[Part]:
    several, errors, from_logs = told["releases"] > 1, "rows" in told, told.get("from_logs", False)
    protected = protects(told["window"])
    paid = f"{told['releases']} releases of the same rows" if several else "one release"
    yield f"What an epsilon buys at delta {wording.exact(told['delta'])}, for {protected} and {paid}."
    columns: dict[str, Callable[[dict[str, Any]], str]] = {"epsilon": lambda row: wording.exact(row["epsilon"])}
    if several:
        columns["epsilon of each"] = lambda row: wording.number(row["epsilon_each"])
    columns |= {
        "noise/move": lambda row: wording.number(row["multiplier"]),
        "noise/clip": lambda row: wording.number(row["noise_per_clip"]),
        "caught": lambda row: wording.share(row["caught"]),
        "guessed": lambda row: wording.share(row["guessed"]),
    }
    if errors:
        columns["error"] = lambda row: wording.share(row["error"])
        columns["rows for 10 %"] = lambda row: (
            "–" if row["rows_needed"] is None else wording.number(row["rows_needed"], 0)
        )
    if errors and not from_logs:
        columns["error by rows"] = lambda row: wording.share(row["error_of_rows"])
    yield Table("", list(columns), [[cell(row) for cell in columns.values()] for row in told["plans"]], left=0)
    yield f"noise/move: standard deviation of the noise by how far {protected} can move a message"
    yield "noise/clip: the same by the radius to which rows are clipped; a little more where a unit finds it by itself"
    alarms = wording.percent(FALSE_ALARMS)
    yield f"caught: how often the best attack with {alarms} false alarms tells that they were replaced"
    yield "guessed: how often the best guess between the two records is right (chance: 50 %)"
    if errors:
        of, source, end = "all couplings", "rows by private " + told["plans"][0]["release"], ""
        if from_logs:
            of, source = "what inputs do to other units", "rows of logs by private moments"
            end = "; 100 %: nothing is found"
        without = wording.share(told["error_without_privacy"])
        yield f"error: expected relative error of {of} from {told['rows']} {source} ({without} without privacy){end}"
        yield "rows for 10 %: what noise of moments adds falls as one over the rows, the rest as one over their root"
    if errors and not from_logs:
        yield "error by rows: that of release='rows', which shows no unit anything of others' inputs"
    yield from noted(told["caveats"])
