"""HAI and SWaT: the published training on the user's own files, or on stand-ins that are called so everywhere."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcome, Request, Task, Value
from counterflow.paper.experiments.figures import Drawing, band, level, over_rounds
from counterflow.paper.experiments.two_units import TRAINED, kept_rounds
from counterflow.paper.experiments.verdicts import Verdict, below, both, holds
from counterflow.paper.experiments.wording import ABOVE_RULE, BAND
from counterflow.paper.pooled import pooled_model
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
    columns' names. ``silent``: of the clients' residuals and δd nothing is said that could be judged.
    """

    title: str
    figure: str
    runs: tuple[int, int]
    header: str | None
    example: str
    said: tuple[str, str, str, str, str]
    silent: bool = False


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
            "drawn, and not spoken of",
            "drawn, and not spoken of",
        ),
        silent=True,
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
                found = data_files(dataset, place)
                _check(dataset, found, place)
                files = [str(path.resolve()) for path in found]
                generated = any((Path(name).parent / MARK).exists() for name in files)
                settings |= {"source": f"{STAND_IN} files" if generated else "files", "rows": ROWS, "files": files}
                settings["digest"] = _digest(files)
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
                baseline = level(outcome.number(f"proprietary_loss/{name}"), "proprietary client (baseline)")
                shift = band(x, outcome.array(f"delta_d/{name}"), "$\\delta d$ of a client", 2)
                losses.append(over_rounds(f"{label}: client {k}", [own, baseline], figures.CLIENT_LOSS.format(k)))
                shifts.append(over_rounds(f"{label}: client {k}", [shift], f"$\\delta d_{{{k}}}$ (states)"))
            spread = BAND if len(outcome.array("server_loss")) > 1 else "One run."
            paper, about = DATA[dataset].figure, {"title": DATA[dataset].title, "spread": spread}
            key = "stand-in" if is_stand_in(outcome) else "files"
            told = self.caption(key, figure=paper, **about, **outcome.values)
            drawings[f"real-plants-{dataset}"] = Drawing(told, [server, D, *losses, *shifts], paper=paper, height=0.85)
        return drawings

    def titles(self, made_up: bool) -> str:
        some = [DATA[o.task["dataset"]].title for o in self.outcomes if is_stand_in(o) == made_up]
        return " and ".join(some)

    @property
    def given(self) -> str:
        """Data sets that are no stand-ins."""
        return self.titles(made_up=False)

    @property
    def made_up(self) -> str:
        return self.titles(made_up=True)

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

    unit_of, about = hai.unit_of if dataset == "hai" else swat.unit_of, DATA[dataset]
    try:
        names = [name for file in open_files(files, TableOptions(header_word=about.header)) for name in file.names]
    except DataError as error:
        raise DataError(f"--{dataset} {str(place)!r}: {error}") from error
    if not any(unit_of(name.replace(" ", "")) for name in names):
        raise DataError(
            f"--{dataset} {str(place)!r}: no column is named like one of {about.title} (such as {about.example}): give "
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
    change = np.diff(series)
    return float(change[change > 0].sum() / max(float(series[0] - series[-1]), 1e-300))


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
    label, units, stand_in = label_of(outcome), units_of(outcome), is_stand_in(outcome)
    L, D = outcome.array("server_loss"), outcome.array("disentanglement")
    over = f"in the mean {ABOVE_RULE}" if len(L) > 1 else "in the one run, as many as the paper has"
    swat = DATA[outcome.task["dataset"]].silent
    early_said, late_said, D_said, left_said, delta_said = DATA[outcome.task["dataset"]].said

    def claim(subject: str, paper: str, ours: str, verdict: Verdict, rule: str, silent: bool = False) -> Claim:
        """One of this data set; a stand-in's numbers say nothing about the paper's."""
        why = "No rule: the paper's text has none." if silent else f"Rule: {rule}"
        final = "beyond the paper" if silent else "not comparable" if stand_in else verdict
        return Claim(f"{label}: {subject}", paper, f"{label}: {ours}", final, why + ASIDE * stand_in)

    early = int(np.searchsorted(outcome.array("round"), FEW, side="right")) - 1
    fall = (L[:, 0] - L[:, early]) / (L[:, 0] - L[:, -1])
    done = f"{100 * fall.mean():.3g} % of the fall of L_s is done after {FEW} rounds"
    yield claim("server loss, early", early_said, done, few(-fall, -0.9), f"more than 90 % of it, {over}.")
    rises, rises_D = outcome.array("rises"), outcome.array("rises/D")
    risen = f"all rises of L_s together are {100 * rises.mean():.2g} % of its fall"
    yield claim("server loss, late", late_said, risen, few(rises, 0.01), f"below 1 %, {over}.")
    falls = D[:, -1] / D[:, 0]
    share = f"{100 * falls.mean():.2g} % of its first value"
    risen = f"all rises of D together are {100 * rises_D.mean():.2g} % of its fall; it ends at {D[:, -1].mean():.2g}"
    yield claim("disentanglement", D_said, f"{risen}, {share}", few(rises_D, 0.01), f"below 1 %, {over}.")
    last = {n: outcome.array(f"client_loss/{n}")[:, -1] for n in units}
    left = {n: loss / outcome.number(f"outputs/{n}") for n, loss in last.items()}
    gains = {n: 1 - (loss / outcome.number(f"proprietary_loss/{n}")).mean() for n, loss in last.items()}
    residuals = ", ".join(f"{n} {each.mean():.2g}" for n, each in left.items())
    lower = ", ".join(f"{n} {100 * gain:.2g} %" for n, gain in gains.items())
    yield claim(
        "client losses",
        left_said,
        f"mean squared residual of a z-scored output at the end {residuals}; below the proprietary one by {lower}",
        both(*(few(each, LEFT) for each in left.values())),
        f"below {LEFT:g} at every unit, {over}; z-scored outputs have 1. How small is small is ours.",
        silent=swat,
    )
    deltas = {n: outcome.array(f"delta_d/{n}")[:, -1] for n in units}
    ends = "δd at the end " + ", ".join(f"{n} {delta.mean():.2g}" for n, delta in deltas.items())
    small = both(*(few(delta, SMALL) for delta in deltas.values()))
    rule = f"below {SMALL:g} at every unit (z-scored channels), {over}."
    yield claim("δd", delta_said, ends, small, rule, silent=swat)
    if swat:
        rule = f"below {100 * ENFORCED:g} %, {over}."
        yield claim("constraints", ENFORCING, f"D ends at {share}", few(falls, ENFORCED), rule)
