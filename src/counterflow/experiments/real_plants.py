"""HAI and SWaT: the published training on the user's own files, or on stand-ins that are called so everywhere."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.experiments.drawing import BAND, INK, Drawing, Panel, band, rounds_axis
from counterflow.experiments.experiment import Claim, Experiment, Outcome, Outcomes, Request, Task, Value, Verdict
from counterflow.experiments.judging import ABOVE_RULE, below, both, holds, sentences
from counterflow.experiments.two_units import kept_rounds
from counterflow.fits.training import fit
from counterflow.identification import pooled_model, stretches
from counterflow.plant import LocalModel, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TITLES = {"hai": "HAI", "swat": "SWaT"}
STAND_IN = "stand-in"
ROWS = 30_000  # the paper's truncation of SWaT; ours of HAI, where it is silent
STAND_IN_ROWS, QUICK_ROWS = 10_000, 2_000
ROUNDS, QUICK_ROUNDS = 1000, 300
RUNS = {"hai": 10, "swat": 1}  # the paper ran SWaT once
QUICK_RUNS = {"hai": 3, "swat": 1}
XI = 10.0
TABLES = (".csv", ".csv.gz", ".xlsx", ".parquet")
FEW = 36  # "the first few dozen iterations"
SMALL = 0.05  # of δd, in z-scored channels
LEFT = 0.1  # mean square of a z-scored channel's residual from which downwards it is small
ENFORCED = 0.01  # of its first value, from which downwards D counts as enforced


def _tasks(request: Request) -> tuple[Task, ...]:
    from counterflow.data.stand_ins import MARK

    tasks = []
    for dataset, place in (("hai", request.hai), ("swat", request.swat)):
        runs = QUICK_RUNS if request.quick else RUNS
        settings: dict[str, Any] = {"dataset": dataset, "xi": XI, "runs": runs[dataset]}
        settings["rounds"] = QUICK_ROUNDS if request.quick else ROUNDS
        if place is None:
            settings |= {"source": STAND_IN, "rows": QUICK_ROWS if request.quick else STAND_IN_ROWS, "files": []}
        else:
            found = data_files(dataset, place)
            _check(dataset, found, place)
            files = [str(path.resolve()) for path in found]
            generated = any((Path(name).parent / MARK).exists() for name in files)
            settings |= {"source": f"{STAND_IN} files" if generated else "files", "rows": ROWS, "files": files}
            settings["digest"] = _digest(files)
        tasks.append(Task("real-plants", settings))
    return tuple(tasks)


def data_files(dataset: str, place: Path) -> list[Path]:
    """The files to read: the one given, or a directory's; of HAI those of normal operation, if they are named so."""
    if place.is_file():
        return [place]
    found = sorted(p for p in place.iterdir() if p.name.lower().endswith(TABLES))
    if dataset == "hai":
        found = [p for p in found if "train" in p.name.lower()] or found
    if not found:
        raise DataError(f"--{dataset} {str(place)!r}: no table ({', '.join(TABLES)}) is in this directory.")
    return found


def _check(dataset: str, files: Sequence[Path], place: Path) -> None:
    """Refuse what is no table, or has no column of this data set, before anything else is computed."""
    from counterflow.data import hai, swat
    from counterflow.data.files import open_file

    word, unit_of, example = (
        (None, hai.unit_of, "P1_LIT01") if dataset == "hai" else ("timestamp", swat.unit_of, "LIT101")
    )
    try:
        names = [name for path in files for name in open_file(path, header_word=word).names]
    except DataError as error:
        raise DataError(f"--{dataset} {str(place)!r}: {error}") from error
    if not any(unit_of(name.replace(" ", "")) for name in names):
        raise DataError(
            f"--{dataset} {str(place)!r}: no column is named like one of {TITLES[dataset]} (such as {example}): give "
            "its files."
        )


def _digest(files: Sequence[str]) -> str:
    """Of the files' contents: results of other files are not taken for these."""
    found = hashlib.sha256()
    for name in files:
        with Path(name).open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def prepared(task: Task) -> Recording:
    """z-scores as the paper makes them, of the longest stretch without a missing measurement."""
    from counterflow.data.hai import prepare_hai
    from counterflow.data.stand_ins import write_stand_in
    from counterflow.data.swat import prepare_swat

    prepare: Callable[..., Any] = prepare_hai if task["dataset"] == "hai" else prepare_swat
    if task["source"] == STAND_IN:
        with TemporaryDirectory() as folder:
            written = write_stand_in(task["dataset"], None, folder, rows=task["rows"])
            recording = prepare(written[:1], rows=task["rows"], standardise=True).recording
    else:
        recording = prepare(task["files"], rows=task["rows"], standardise=True).recording
    recording = Recording({u.name: recording[u.name] for u in recording.units if u.n_outputs}, recording.dt)
    measured = np.hstack([recording[n].y for n in recording.names])
    longest = max(stretches(measured), key=lambda span: int(span.stop - span.start))
    return recording.slice(longest.start, longest.stop)


def local_models(recording: Recording) -> tuple[dict[str, LocalModel], float]:
    """What each unit is given, by the paper's route: one model of pooled data, divided; and the energy of C kept."""
    names = recording.names
    model = pooled_model({n: recording[n].y for n in names}, {n: recording[n].u for n in names})
    outputs = np.cumsum([0, *(recording[n].y.shape[1] for n in names)])
    inputs = np.cumsum([0, *(recording[n].u.shape[1] for n in names)])
    found = {}
    for k, name in enumerate(names):
        own, rows = model.states(name), slice(outputs[k], outputs[k + 1])
        found[name] = LocalModel(
            A=model.A[own, own],
            B=model.B[own, inputs[k] : inputs[k + 1]],
            C=model.C[rows, own],
            Q=model.Q[own, own],
            R=model.R[rows, rows],
        )
    return found, model.kept


def _compute(task: Task) -> Mapping[str, Value]:
    recording = prepared(task)
    models, kept_energy = local_models(recording)
    histories = [
        fit(
            recording, models, method="penalty", solver="gradient", xi=task["xi"], rounds=task["rounds"], tol=0.0,
            initial_scale=1.0, seed=run,
        ).history
        for run in range(task["runs"])
    ]  # fmt: skip
    kept = kept_rounds(task["rounds"])
    values: dict[str, Value] = {
        "units": ", ".join(recording.names),
        "sizes": "; ".join(
            f"{n}: {models[n].states} states, {models[n].n_inputs} inputs, {models[n].n_outputs} outputs"
            for n in recording.names
        ),
        "rows": float(recording.rows),
        "energy": kept_energy,
        "round": (kept + 1).astype(np.float64),
        "server_loss": np.stack([h.server_loss[kept] for h in histories]),
        "disentanglement": np.stack([h.disentanglement[kept] for h in histories]),
        "rises": np.array([_rises(h.server_loss) for h in histories]),
        "rises/D": np.array([_rises(h.disentanglement) for h in histories]),
    }
    for name in recording.names:
        values[f"client_loss/{name}"] = np.stack([h.client_loss[name][kept] for h in histories])
        values[f"outputs/{name}"] = float(models[name].n_outputs)
        values[f"proprietary_loss/{name}"] = float(histories[0].proprietary_loss[name][-1])
        values[f"delta_d/{name}"] = np.stack([h.delta_d[name][kept] for h in histories])
    return values


def _rises(series: FloatArray) -> float:
    """The sum of all rises over the fall from the first to the last: 0 for a series that only falls."""
    change = np.diff(series)
    return float(change[change > 0].sum() / max(float(series[0] - series[-1]), 1e-300))


def units_of(outcome: Outcome) -> list[str]:
    """Names of the units."""
    return outcome.text("units").split(", ")


def label_of(outcome: Outcome) -> str:
    """HAI, or "HAI stand-in"."""
    name = TITLES[outcome.task["dataset"]]
    return f"{name} {STAND_IN}" if _is_stand_in(outcome) else name


def _is_stand_in(outcome: Outcome) -> bool:
    """Made here, or given, with the mark that generated files carry beside them."""
    return str(outcome.task["source"]).startswith(STAND_IN)


def judged(outcome: Outcome, verdict: Verdict) -> Verdict:
    """A stand-in's numbers say nothing about the paper's."""
    return "not comparable" if _is_stand_in(outcome) else verdict


def few(values: FloatArray, limit: float) -> Verdict:
    """The verdict on "below the limit" of as many runs as there are: one run, as the paper's own of SWaT, is taken."""
    return holds(bool(values[0] < limit)) if len(values) == 1 else below(values, limit)


ENFORCING = (
    "D demonstrates that the consensus and coupling constraints are effectively enforced throughout optimization (its "
    "figures have no numbers)"
)
# of each data set: what the paper says of the server's loss, early and late, of D, of the clients' residuals and of δd
SAID: Mapping[str, tuple[str, str, str, str, str]] = {
    "hai": (
        "decays rapidly in the first few dozen iterations",
        "tapers off smoothly, without oscillations",
        "D decreases monotonically",
        "uniformly small residuals at the end (its figures have no numbers)",
        "uniformly small constraints at the end (its figures have no numbers)",
    ),
    "swat": (
        "a sharp initial decline",
        "a smooth saturation phase with no noticeable oscillations",
        "D follows a monotonic decreasing trend",
        "drawn, and not spoken of",
        "drawn, and not spoken of",
    ),
}


def _claims(outcomes: Outcomes) -> tuple[Claim, ...]:
    claims = []
    for outcome in outcomes:
        label, rounds, units = label_of(outcome), outcome.array("round"), units_of(outcome)
        aside = (
            " A stand-in has the format of the data set and invented numbers, so that nothing here speaks for or "
            "against the paper: give your own files."
            if _is_stand_in(outcome)
            else ""
        )
        runs = len(outcome.array("server_loss"))
        over = f"in the mean {ABOVE_RULE}" if runs > 1 else "in the one run, as many as the paper has"
        L, D = outcome.array("server_loss"), outcome.array("disentanglement")
        early = int(np.searchsorted(rounds, FEW, side="right")) - 1
        fall = (L[:, 0] - L[:, early]) / (L[:, 0] - L[:, -1])
        rises, rises_D = outcome.array("rises"), outcome.array("rises/D")
        ratios = {n: outcome.array(f"client_loss/{n}")[:, -1] / outcome.number(f"proprietary_loss/{n}") for n in units}
        left = {n: outcome.array(f"client_loss/{n}")[:, -1] / outcome.number(f"outputs/{n}") for n in units}
        falls = D[:, -1] / D[:, 0]
        deltas = {n: outcome.array(f"delta_d/{n}")[:, -1] for n in units}
        texts = SAID[outcome.task["dataset"]]
        swat = outcome.task["dataset"] == "swat"
        claims += [
            Claim(
                f"{label}: server loss, early",
                texts[0],
                f"{label}: {100 * fall.mean():.3g} % of the fall of L_s is done after {FEW} rounds",
                judged(outcome, few(-fall, -0.9)),
                f"Rule: more than 90 % of it, {over}.{aside}",
            ),
            Claim(
                f"{label}: server loss, late",
                texts[1],
                f"{label}: all rises of L_s together are {100 * rises.mean():.2g} % of its fall",
                judged(outcome, few(rises, 0.01)),
                f"Rule: below 1 %, {over}.{aside}",
            ),
            Claim(
                f"{label}: disentanglement",
                texts[2],
                f"{label}: all rises of D together are {100 * rises_D.mean():.2g} % of its fall; it ends at "
                f"{D[:, -1].mean():.2g}, {100 * float(np.mean(D[:, -1] / D[:, 0])):.2g} % of its first value",
                judged(outcome, few(rises_D, 0.01)),
                f"Rule: below 1 %, {over}.{aside}",
            ),
            Claim(
                f"{label}: client losses",
                texts[3],
                f"{label}: mean squared residual of a z-scored output at the end "
                + ", ".join(f"{n} {each.mean():.2g}" for n, each in left.items())
                + "; below the proprietary one by "
                + ", ".join(f"{n} {100 * (1 - ratio.mean()):.2g} %" for n, ratio in ratios.items()),
                "beyond the paper" if swat else judged(outcome, both(*(few(each, LEFT) for each in left.values()))),
                (
                    "No rule: the paper's text has none."
                    if swat
                    else f"Rule: below {LEFT:g} at every unit, {over}; z-scored outputs have 1. How small is small is "
                    "ours."
                )
                + aside,
            ),
            Claim(
                f"{label}: δd",
                texts[4],
                f"{label}: δd at the end " + ", ".join(f"{n} {delta.mean():.2g}" for n, delta in deltas.items()),
                "beyond the paper" if swat else judged(outcome, both(*(few(d, SMALL) for d in deltas.values()))),
                (
                    "No rule: the paper's text has none."
                    if swat
                    else f"Rule: below {SMALL:g} at every unit (z-scored channels), {over}."
                )
                + aside,
            ),
        ]
        if swat:
            claims.append(
                Claim(
                    f"{label}: constraints",
                    ENFORCING,
                    f"{label}: D ends at {100 * falls.mean():.2g} % of its first value",
                    judged(outcome, few(falls, ENFORCED)),
                    f"Rule: below {100 * ENFORCED:g} %, {over}.{aside}",
                )
            )
    return tuple(claims)


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    drawings = {}
    for outcome in outcomes:
        label, x = label_of(outcome), outcome.array("round")

        def server(key: str, text: str, outcome: Outcome = outcome, x: FloatArray = x) -> Callable[[Axes], None]:
            def draw(axes: Axes) -> None:
                band(axes, x, outcome.array(key), "server", 6, line=0)
                axes.set_ylabel(text)
                rounds_axis(axes)

            return draw

        def clients(key: str, text: str, outcome: Outcome = outcome, x: FloatArray = x) -> Callable[[Axes], None]:
            def draw(axes: Axes) -> None:
                for k, name in enumerate(units_of(outcome)):
                    series = outcome.array(f"{key}/{name}")
                    if key == "client_loss":
                        series = series / outcome.number(f"proprietary_loss/{name}")
                    band(axes, x, series, name, k)
                if key == "client_loss":
                    axes.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (1, 1)))
                axes.set_ylabel(text)
                rounds_axis(axes)

            return draw

        panels = (
            Panel(f"(a) {label}: server loss", server("server_loss", "$L_s$ (squared states)")),
            Panel(f"(b) {label}: $\\mathcal{{D}}$", server("disentanglement", "$\\mathcal{D}$ (squared states)")),
            Panel(f"(c) {label}: client losses", clients("client_loss", "augmented / proprietary")),
            Panel(f"(d) {label}: $\\delta_d$", clients("delta_d", "$\\delta_d$ (states)")),
        )
        runs = len(outcome.array("server_loss"))
        what = (
            f"STAND-IN for {TITLES[outcome.task['dataset']]}: simulated numbers in its format, not the real data set. "
            if _is_stand_in(outcome)
            else ""
        )
        spread = BAND if runs > 1 else "One run."
        caption = (
            f"{what}Published training against rounds, {outcome.number('rows'):.0f} rows, xi = {XI:g} "
            f"({outcome.text('sizes')}). Client losses are over the proprietary one; dotted: no gain. {spread}"
        )
        drawings[f"real-plants-{outcome.task['dataset']}"] = Drawing(caption, panels, columns=2)
    return drawings


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    made_up = [TITLES[o.task["dataset"]] for o in outcomes if _is_stand_in(o)]
    given = [TITLES[o.task["dataset"]] for o in outcomes if not _is_stand_in(o)]
    agreeing = sum(claim.verdict == "agrees" for claim in claims)
    return sentences(
        f"On your files of {' and '.join(given)}, {agreeing} claims agree." if given else "",
        f"{' and '.join(made_up)}: what the real data say can only be seen with the real files. Stand-ins show that "
        "everything from a file to the curves works."
        if made_up
        else "",
    )


def _options(outcomes: Outcomes) -> tuple[str, ...]:
    """--hai and --swat with the files that were read: one file, or the directory of several."""
    found = []
    for outcome in outcomes:
        if files := [Path(name) for name in outcome.task["files"]]:
            found.append(
                f"--{outcome.task['dataset']} {shlex.quote(str(files[0] if len(files) == 1 else files[0].parent))}"
            )
    return tuple(found)


REAL_PLANTS = Experiment(
    name="real-plants",
    title="HAI and SWaT (stand-ins, unless you give your own files)",
    paper="Section 9.2 and appendix 'Real-world Datasets', figures of HAI and SWaT",
    question="Do losses, disentanglement and δd behave on industrial data as on synthetic ones?",
    tasks=_tasks,
    compute=_compute,
    figures=_figures,
    claims=_claims,
    revision=2,
    choices=(
        "The data sets are not part of this project: --hai DIR and --swat FILE read yours. Without them the numbers "
        "are those of generated stand-ins, and every title, caption and claim says so.",
        "Preparation as the paper's, by the presets of `counterflow data hai` and `data swat`, z-scored; the longest "
        "stretch without a missing measurement of the first 30,000 rows (stand-ins: 10,000; quick: 2,000). The paper "
        "does not say how many rows of HAI it took.",
        "Local models by the paper's route: one model by subspace identification of POOLED raw data, its states "
        "divided among units by the energy of the columns of C, then A, B, Q, R by least squares.",
        "xi = 10, derived step sizes, 1000 rounds (300 in a quick run), 10 random initial points for HAI and one for "
        "SWaT, as in the paper.",
    ),
    text=_text,
    options=_options,
)
