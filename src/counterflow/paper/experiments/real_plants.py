"""HAI and SWaT: the published training on the user's own files, or on stand-ins that are called so everywhere."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.fits.training import fit
from counterflow.identification import stretches
from counterflow.paper.experiments import figures
from counterflow.paper.experiments.experiment import ABOVE_RULE, BAND, Claim, Experiment, Outcome, Request, Task, Value
from counterflow.paper.experiments.figures import Drawing, band, level, over_rounds
from counterflow.paper.experiments.two_units import TRAINED, kept_rounds
from counterflow.paper.experiments.verdicts import Verdict, below, both, holds
from counterflow.paper.subspace import pooled_model
from counterflow.plant import Recording

STAND_IN = "stand-in"
ROWS = 30_000  # the paper's truncation of SWaT; ours of HAI, where it is silent
STAND_IN_ROWS, QUICK_ROWS = 10_000, 2_000
ROUNDS, QUICK_ROUNDS = 1000, 300
XI = 10.0
TABLES = (".csv", ".csv.gz", ".xlsx", ".parquet")
FEW = 36  # "the first few dozen iterations"
SMALL = 0.05  # of δd, in z-scored channels
LEFT = 0.1  # mean square of a z-scored channel's residual from which downwards it is small
ENFORCED = 0.01  # of its first value, from which downwards D counts as enforced
ENFORCING = (
    "D demonstrates that the consensus and coupling constraints are effectively enforced throughout optimization (its "
    "figures have no numbers)"
)
ASIDE = (
    " A stand-in has the format of the data set and invented numbers, so that nothing here speaks for or against the "
    "paper: give your own files."
)


@dataclass(frozen=True)
class DataSet:
    """One of the paper's two; what it ``said``: of the server's loss, early and late, of D, clients' residuals and δd.

    ``runs``: of a full and of a quick command. ``header``: the word by which its head is found; ``example``: of its
    columns' names. Of what is "drawn, and not spoken of" nothing is said that could be judged.
    """

    title: str
    figure: str
    runs: tuple[int, int]
    header: str | None
    example: str
    said: tuple[str, str, str, str, str]


SILENT = "drawn, and not spoken of"
DATA = {
    "hai": DataSet(
        "HAI", "Fig. 7", (10, 3), None, "P1_LIT01",
        (
            "decays rapidly in the first few dozen iterations",
            "tapers off smoothly, without oscillations",
            "D decreases monotonically",
            "uniformly small residuals at the end (its figures have no numbers)",
            "uniformly small constraints at the end (its figures have no numbers)",
        ),
    ),
    "swat": DataSet(
        "SWaT", "Fig. 8", (1, 1), "timestamp", "LIT101",  # the paper ran it once
        (
            "a sharp initial decline",
            "a smooth saturation phase with no noticeable oscillations",
            "D follows a monotonic decreasing trend",
            SILENT,
            SILENT,
        ),
    ),
}  # fmt: skip


class RealPlants(Experiment, name="real-plants", revision=2):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        from counterflow.data.stand_ins import MARK

        tasks = []
        for dataset, place in (("hai", request.hai), ("swat", request.swat)):
            settings: dict[str, Any] = {"dataset": dataset, "xi": XI, "runs": DATA[dataset].runs[request.quick]}
            settings["rounds"] = QUICK_ROUNDS if request.quick else ROUNDS
            if place is None:
                settings |= {"source": STAND_IN, "rows": QUICK_ROWS if request.quick else STAND_IN_ROWS, "files": []}
            else:
                found, contents = data_files(dataset, place), hashlib.sha256()
                for path in found:  # results of other files are not taken for these
                    with path.open("rb") as file:
                        contents.update(hashlib.file_digest(file, "sha256").digest())
                source = f"{STAND_IN} files" if any((path.parent / MARK).exists() for path in found) else "files"
                settings |= {"source": source, "rows": ROWS, "files": [str(path.resolve()) for path in found]}
                settings["digest"] = contents.hexdigest()
            tasks.append(Task("real-plants", settings))
        return tuple(tasks)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        recording = prepared(task)
        pooled = pooled_model(recording)  # what each unit is given, by the paper's route
        options = TRAINED | {"xi": task["xi"], "rounds": task["rounds"]}
        fits = [fit(recording, pooled.locals, method="penalty", seed=run, **options) for run in range(task["runs"])]
        histories, kept = [found.history for found in fits], kept_rounds(task["rounds"])
        sizes = (
            f"{name}: {model.states} states, {model.n_inputs} inputs, {model.n_outputs} outputs"
            for name, model in pooled.locals.items()
        )
        values: dict[str, Value] = {
            "units": ", ".join(recording.names),
            "sizes": "; ".join(sizes),
            "rows": float(recording.rows),
            "energy": pooled.kept,
            "round": (kept + 1).astype(np.float64),
            "server_loss": np.stack([h.server_loss[kept] for h in histories]),
            "disentanglement": np.stack([h.disentanglement[kept] for h in histories]),
            "rises": np.array([_rises(h.server_loss) for h in histories]),
            "rises/D": np.array([_rises(h.disentanglement) for h in histories]),
        }
        for name, model in pooled.locals.items():
            values |= {
                f"client_loss/{name}": np.stack([h.client_loss[name][kept] for h in histories]),
                f"outputs/{name}": float(model.n_outputs),
                f"proprietary_loss/{name}": float(histories[0].proprietary_loss[name][-1]),
                f"delta_d/{name}": np.stack([h.delta_d[name][kept] for h in histories]),
            }
        return values

    def judge(self) -> Iterator[Claim]:
        for outcome in self.outcomes:
            yield from _claims_of(outcome)

    def draw(self) -> Mapping[str, Drawing]:
        drawings = {}
        for outcome in self.outcomes:
            dataset, label, units = outcome.task["dataset"], label_of(outcome), units_of(outcome)
            x = outcome.array("round")
            server, D = (
                over_rounds(f"{label}: {title}", [band(x, outcome.array(key), "server", 6, line=0)], y)
                for title, key, y in (
                    ("server loss", "server_loss", figures.SERVER_LOSS),
                    ("$\\mathcal{D}$", "disentanglement", figures.DISENTANGLEMENT),
                )
            )
            losses, shifts = [], []
            for k, name in enumerate(units, start=1):
                own = band(x, outcome.array(f"client_loss/{name}"), "augmented client")
                baseline = level(float(outcome.array(f"proprietary_loss/{name}")), "proprietary client (baseline)")
                shift = band(x, outcome.array(f"delta_d/{name}"), "$\\delta d$ of a client", 2)
                losses.append(over_rounds(f"{label}: client {k}", [own, baseline], figures.CLIENT_LOSS.format(k)))
                shifts.append(over_rounds(f"{label}: client {k}", [shift], f"$\\delta d_{{{k}}}$ (states)"))
            spread = BAND if len(outcome.array("server_loss")) > 1 else "One run."
            paper, about = DATA[dataset].figure, {"title": DATA[dataset].title, "spread": spread}
            key = "stand-in" if is_stand_in(outcome) else "files"
            told = self.caption(key, figure=paper, **about, **outcome.values)
            drawings[f"real-plants-{dataset}"] = Drawing(told, [server, D, *losses, *shifts], paper=paper, height=0.85)
        return drawings

    @property
    def given(self) -> str:
        """Data sets that are no stand-ins."""
        return " and ".join(DATA[o.task["dataset"]].title for o in self.outcomes if not is_stand_in(o))

    @property
    def made_up(self) -> str:
        return " and ".join(DATA[o.task["dataset"]].title for o in self.outcomes if is_stand_in(o))

    @property
    def agreeing(self) -> int:
        return sum(claim.verdict == "agrees" for claim in self.claims)

    @property
    def options(self) -> tuple[str, ...]:
        """--hai and --swat with the files that were read: one file, or the directory of several."""
        found = []
        for outcome in self.outcomes:
            if files := [Path(name) for name in outcome.task["files"]]:
                place = files[0] if len(files) == 1 else files[0].parent
                found.append(f"--{outcome.task['dataset']} {shlex.quote(str(place))}")
        return tuple(found)


def data_files(dataset: str, place: Path) -> list[Path]:
    """The files to read: the one given, or a directory's; of HAI those of normal operation, if they are named so.

    What is no table, or has no column of this data set, is refused before anything else is computed.
    """
    from counterflow.data import hai, swat
    from counterflow.data.formats import open_files
    from counterflow.data.options import TableOptions

    found = [place] if place.is_file() else sorted(p for p in place.iterdir() if p.name.lower().endswith(TABLES))
    if dataset == "hai" and not place.is_file():
        found = [p for p in found if "train" in p.name.lower()] or found
    if not found:
        raise DataError(f"--{dataset} {str(place)!r}: no table ({', '.join(TABLES)}) is in this directory.")
    unit_of, about = hai.unit_of if dataset == "hai" else swat.unit_of, DATA[dataset]
    try:
        names = [name for file in open_files(found, TableOptions(header_word=about.header)) for name in file.names]
    except DataError as error:
        raise DataError(f"--{dataset} {str(place)!r}: {error}") from error
    if not any(unit_of(name.replace(" ", "")) for name in names):
        raise DataError(
            f"--{dataset} {str(place)!r}: no column is named like one of {about.title} (such as {about.example}): give "
            "its files."
        )
    return found


def prepared(task: Task) -> Recording:
    """z-scores as the paper makes them, of the longest stretch without a missing measurement."""
    from counterflow.data.hai import prepare_hai
    from counterflow.data.stand_ins import write_stand_in
    from counterflow.data.swat import prepare_swat

    prepare: Callable[..., Any] = prepare_hai if task["dataset"] == "hai" else prepare_swat
    with TemporaryDirectory() as folder:
        files = task["files"]
        if task["source"] == STAND_IN:
            files = write_stand_in(task["dataset"], None, folder, rows=task["rows"])[:1]
        recording = prepare(files, rows=task["rows"], standardise=True).recording
    recording = Recording({u.name: recording[u.name] for u in recording.units if u.n_outputs}, recording.dt)
    measured = np.hstack([recording[n].y for n in recording.names])
    longest = max(stretches(measured), key=lambda span: int(span.stop - span.start))
    return recording.slice(longest.start, longest.stop)


def _rises(series: FloatArray) -> float:
    """The sum of all rises over the fall from the first to the last: 0 for a series that only falls."""
    return float(np.maximum(np.diff(series), 0.0).sum() / max(float(series[0] - series[-1]), 1e-300))


def units_of(outcome: Outcome) -> list[str]:
    """Names of the units."""
    return str(outcome.values["units"]).split(", ")


def label_of(outcome: Outcome) -> str:
    """HAI, or "HAI stand-in"."""
    name = DATA[outcome.task["dataset"]].title
    return f"{name} {STAND_IN}" if is_stand_in(outcome) else name


def is_stand_in(outcome: Outcome) -> bool:
    """Made here, or given, with the mark that generated files carry beside them."""
    return str(outcome.task["source"]).startswith(STAND_IN)


def few(values: FloatArray, limit: float) -> Verdict:
    """The verdict on "below the limit" of as many runs as there are: one run, as the paper's own of SWaT, is taken."""
    return holds(bool(values[0] < limit)) if len(values) == 1 else below(values, limit)


def _claims_of(outcome: Outcome) -> Iterator[Claim]:
    label, units, about = label_of(outcome), units_of(outcome), DATA[outcome.task["dataset"]]
    L, D, rises, rises_D = (outcome.array(key) for key in ("server_loss", "disentanglement", "rises", "rises/D"))
    over = f"in the mean {ABOVE_RULE}" if len(L) > 1 else "in the one run, as many as the paper has"
    early = int(np.searchsorted(outcome.array("round"), FEW, side="right")) - 1
    fall, falls = (L[:, 0] - L[:, early]) / (L[:, 0] - L[:, -1]), D[:, -1] / D[:, 0]
    share = f"{100 * falls.mean():.2g} % of its first value"
    last, deltas = ({n: outcome.array(f"{key}/{n}")[:, -1] for n in units} for key in ("client_loss", "delta_d"))
    left = {n: loss / outcome.array(f"outputs/{n}") for n, loss in last.items()}
    gains = {n: 1 - (loss / outcome.array(f"proprietary_loss/{n}")).mean() for n, loss in last.items()}
    residuals, ends = (", ".join(f"{n} {each.mean():.2g}" for n, each in found.items()) for found in (left, deltas))
    lower = ", ".join(f"{n} {100 * gain:.2g} %" for n, gain in gains.items())
    rows: list[tuple[str, str, str, Verdict, str]] = [  # subject, the paper's words, ours, verdict, rule
        (
            "server loss, early", about.said[0],
            f"{100 * fall.mean():.3g} % of the fall of L_s is done after {FEW} rounds", few(-fall, -0.9),
            f"more than 90 % of it, {over}.",
        ),
        (
            "server loss, late", about.said[1], f"all rises of L_s together are {100 * rises.mean():.2g} % of its fall",
            few(rises, 0.01), f"below 1 %, {over}.",
        ),
        (
            "disentanglement", about.said[2],
            f"all rises of D together are {100 * rises_D.mean():.2g} % of its fall; it ends at {D[:, -1].mean():.2g}, "
            f"{share}",
            few(rises_D, 0.01), f"below 1 %, {over}.",
        ),
        (
            "client losses", about.said[3],
            f"mean squared residual of a z-scored output at the end {residuals}; below the proprietary one by {lower}",
            both(*(few(each, LEFT) for each in left.values())),
            f"below {LEFT:g} at every unit, {over}; z-scored outputs have 1. How small is small is ours.",
        ),
        (
            "δd", about.said[4], f"δd at the end {ends}", both(*(few(delta, SMALL) for delta in deltas.values())),
            f"below {SMALL:g} at every unit (z-scored channels), {over}.",
        ),
    ]  # fmt: skip
    if SILENT in about.said:
        rule = f"below {100 * ENFORCED:g} %, {over}."
        rows.append(("constraints", ENFORCING, f"D ends at {share}", few(falls, ENFORCED), rule))
    for subject, paper, ours, verdict, rule in rows:
        why, final = f"Rule: {rule}", verdict
        if is_stand_in(outcome):  # its numbers say nothing about the paper's
            final = "not comparable"
        if paper == SILENT:
            why, final = "No rule: the paper's text has none.", "beyond the paper"
        yield Claim(f"{label}: {subject}", paper, f"{label}: {ours}", final, why + ASIDE * is_stand_in(outcome))
