"""HAI and SWaT: the published training on the user's own files, or on stand-ins that are called so everywhere."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.fits.training import fit
from counterflow.identification import stretches
from counterflow.paper.experiments.experiment import Claim, Outcome, Outcomes, Request, Task, Value, Verdict
from counterflow.paper.experiments.figures import DISENTANGLEMENT, SERVER_LOSS, Drawing, band, level, over_rounds
from counterflow.paper.experiments.two_units import kept_rounds
from counterflow.paper.experiments.verdicts import below, both, holds
from counterflow.paper.experiments.wording import ABOVE_RULE, BAND, caption, described, summary
from counterflow.paper.pooled import pooled_model
from counterflow.plant import LocalModel, Recording

TITLES = {"hai": "HAI", "swat": "SWaT"}
FIGURES = {"hai": "Fig. 7", "swat": "Fig. 8"}  # of the paper
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
    from counterflow.data.formats import open_files
    from counterflow.data.options import TableOptions

    word, unit_of, example = (
        (None, hai.unit_of, "P1_LIT01") if dataset == "hai" else ("timestamp", swat.unit_of, "LIT101")
    )
    try:
        names = [name for file in open_files(files, TableOptions(header_word=word)) for name in file.names]
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


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    for outcome in outcomes:
        yield from _claims_of(outcome)


def _claims_of(outcome: Outcome) -> Iterator[Claim]:
    label, rounds, units = label_of(outcome), outcome.array("round"), units_of(outcome)
    aside = (
        " A stand-in has the format of the data set and invented numbers, so that nothing here speaks for or "
        "against the paper: give your own files."
        if _is_stand_in(outcome)
        else ""
    )
    L, D = outcome.array("server_loss"), outcome.array("disentanglement")
    over = f"in the mean {ABOVE_RULE}" if len(L) > 1 else "in the one run, as many as the paper has"
    swat = outcome.task["dataset"] == "swat"
    early_said, late_said, D_said, left_said, delta_said = SAID[outcome.task["dataset"]]

    def claim(subject: str, paper: str, ours: str, verdict: Verdict, rule: str, silent: bool = False) -> Claim:
        """One of this data set; ``silent``: the paper's text says nothing that could be judged."""
        why = "No rule: the paper's text has none." if silent else f"Rule: {rule}"
        final = "beyond the paper" if silent else judged(outcome, verdict)
        return Claim(f"{label}: {subject}", paper, f"{label}: {ours}", final, why + aside)

    early = int(np.searchsorted(rounds, FEW, side="right")) - 1
    fall = (L[:, 0] - L[:, early]) / (L[:, 0] - L[:, -1])
    done = f"{100 * fall.mean():.3g} % of the fall of L_s is done after {FEW} rounds"
    yield claim("server loss, early", early_said, done, few(-fall, -0.9), f"more than 90 % of it, {over}.")
    rises, rises_D = outcome.array("rises"), outcome.array("rises/D")
    risen = f"all rises of L_s together are {100 * rises.mean():.2g} % of its fall"
    yield claim("server loss, late", late_said, risen, few(rises, 0.01), f"below 1 %, {over}.")
    falls = D[:, -1] / D[:, 0]
    risen = (
        f"all rises of D together are {100 * rises_D.mean():.2g} % of its fall; it ends at {D[:, -1].mean():.2g}, "
        f"{100 * falls.mean():.2g} % of its first value"
    )
    yield claim("disentanglement", D_said, risen, few(rises_D, 0.01), f"below 1 %, {over}.")
    last = {n: outcome.array(f"client_loss/{n}")[:, -1] for n in units}
    left = {n: loss / outcome.number(f"outputs/{n}") for n, loss in last.items()}
    gains = {n: 1 - (loss / outcome.number(f"proprietary_loss/{n}")).mean() for n, loss in last.items()}
    yield claim(
        "client losses",
        left_said,
        "mean squared residual of a z-scored output at the end "
        + ", ".join(f"{n} {each.mean():.2g}" for n, each in left.items())
        + "; below the proprietary one by "
        + ", ".join(f"{n} {100 * gain:.2g} %" for n, gain in gains.items()),
        both(*(few(each, LEFT) for each in left.values())),
        f"below {LEFT:g} at every unit, {over}; z-scored outputs have 1. How small is small is ours.",
        silent=swat,
    )
    deltas = {n: outcome.array(f"delta_d/{n}")[:, -1] for n in units}
    yield claim(
        "δd",
        delta_said,
        "δd at the end " + ", ".join(f"{n} {delta.mean():.2g}" for n, delta in deltas.items()),
        both(*(few(delta, SMALL) for delta in deltas.values())),
        f"below {SMALL:g} at every unit (z-scored channels), {over}.",
        silent=swat,
    )
    if swat:
        ends = f"D ends at {100 * falls.mean():.2g} % of its first value"
        yield claim("constraints", ENFORCING, ends, few(falls, ENFORCED), f"below {100 * ENFORCED:g} %, {over}.")


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    drawings = {}
    for outcome in outcomes:
        label, x, units = label_of(outcome), outcome.array("round"), units_of(outcome)
        server, D = ([band(x, outcome.array(key), "server", 6, line=0)] for key in ("server_loss", "disentanglement"))
        panels = [
            over_rounds(f"{label}: server loss", server, SERVER_LOSS),
            over_rounds(f"{label}: $\\mathcal{{D}}$", D, DISENTANGLEMENT),
        ]
        for k, name in enumerate(units, start=1):
            own = band(x, outcome.array(f"client_loss/{name}"), "augmented client")
            baseline = level(outcome.number(f"proprietary_loss/{name}"), "proprietary client (baseline)")
            panels.append(over_rounds(f"{label}: client {k}", [own, baseline], f"$L_{{{k},a}}$ (outputs, squared)"))
        for k, name in enumerate(units, start=1):
            shift = band(x, outcome.array(f"delta_d/{name}"), "$\\delta d$ of a client", 2)
            panels.append(over_rounds(f"{label}: client {k}", [shift], f"$\\delta d_{{{k}}}$ (states)"))
        key = "stand-in" if _is_stand_in(outcome) else "files"
        title, spread = TITLES[outcome.task["dataset"]], BAND if len(outcome.array("server_loss")) > 1 else "One run."
        paper = FIGURES[outcome.task["dataset"]]
        told = caption("real-plants", key, title=title, figure=paper, spread=spread, **outcome.values)
        drawings[f"real-plants-{outcome.task['dataset']}"] = Drawing(told, panels, paper=paper, height=0.85)
    return drawings


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    made_up = [TITLES[o.task["dataset"]] for o in outcomes if _is_stand_in(o)]
    given = [TITLES[o.task["dataset"]] for o in outcomes if not _is_stand_in(o)]
    agreeing = sum(claim.verdict == "agrees" for claim in claims)
    named = {"given": " and ".join(given), "made_up": " and ".join(made_up)}
    return summary("real-plants", claims, agreeing=agreeing, **named)


def _options(outcomes: Outcomes) -> tuple[str, ...]:
    """--hai and --swat with the files that were read: one file, or the directory of several."""
    found = []
    for outcome in outcomes:
        if files := [Path(name) for name in outcome.task["files"]]:
            found.append(
                f"--{outcome.task['dataset']} {shlex.quote(str(files[0] if len(files) == 1 else files[0].parent))}"
            )
    return tuple(found)


EXPERIMENT = described("real-plants", _tasks, _compute, _figures, _claims, revision=2, text=_text, options=_options)
