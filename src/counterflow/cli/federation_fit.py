"""``counterflow federation fit`` and ``approve-job``: a job, and the owner of a plant who lets it run there."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.federation_service import budget_of
from counterflow.cli.options import Edges, Folder, Forbidden, known_edges, optional
from counterflow.cli.output import INTERRUPTED, NOT_CONVERGED, OK, Format, Line, Part, Told, answering, picked
from counterflow.errors import OptionError, StorageError
from counterflow.exchange.registry import method_of
from counterflow.federation import job_gate
from counterflow.federation.engine import Progress, engine
from counterflow.federation.job import Job
from counterflow.federation.parts import saved_server
from counterflow.federation.sites import members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.fits.storage import load_record
from counterflow.printable import shown
from counterflow.privacy import Privacy

_PRIVACY = optional({
    "epsilon": (float, "With privacy: of this job, for every plant."),
    "delta": (float, "With privacy: chance that the promise fails (1e-6)."),
    "window": (int, "With privacy: measurements protected as one (1)."),
    "release": (str, "With privacy: moments or rows (moments, if all plants let inputs be shown)."),
})  # fmt: skip


@answering(options=_PRIVACY)
def fit(
    wanted: Format,
    folder: Folder,
    job_id: Annotated[str | None, Option("--id", help="Name of the job; an earlier one goes on.")] = None,
    method: Annotated[str | None, Option(help="How to fit (sufficient).")] = None,
    option: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Of the method, as in 'fit'; may repeat.")
    ] = None,
    edge: Edges = None,
    forbid: Forbidden = None,
    units: Annotated[str | None, Option(metavar="A,B", help="Which plants, in this order (all).")] = None,
    from_logs: Annotated[bool, Option("--from-logs", help="Plants have no models.")] = False,
    begins: Annotated[
        str | None, Option(metavar="TIME", help="Of the logs' first row, as plants say it (that of their cards).")
    ] = None,
    seed: Annotated[int | None, Option(min=0, help="Of the fit (0).")] = None,
    deadline: Annotated[int, Option(min=1, help="Seconds that a plant may take for one answer.")] = 600,
    patience: Annotated[float, Option(min=1, help="Seconds without news after which to give up.")] = 3600.0,
    **private: Any,
) -> Told:
    """Coordinator: fit, with all plants that are members. Lost plants are waited for; the job then goes on.

    An interrupt leaves the job running; the same command with --id follows it again.

    Example: counterflow federation fit coordinator --epsilon 1
    """
    engine().require()
    coordinator = CoordinatorFolder.open(folder)
    names = () if units is None else tuple(name.strip() for name in units.split(","))
    if not all(names):
        raise OptionError(f"--units {units!r}: give names with commas between them.")
    described: dict[str, Any] = {
        "method": method, "units": names, "options": _options(option or (), known_edges(edge, forbid)),
        "seed": seed,
        "privacy": _privacy(private), "from_logs": from_logs, "begins": begins,
    }  # fmt: skip
    given = {key: value for key, value in described.items() if value not in (None, (), {}, False)}
    job = _job(coordinator, job_id, given)
    if party.supervisor(coordinator.folder) is None:
        raise StorageError(f"{coordinator.label} is not running: counterflow federation start {folder} --detach")
    coordinator.keep(job)
    began = time.monotonic()
    try:
        with _progress(coordinator, job, wanted) as tell:
            state = coordinator.engine_jobs.follow(job, deadline=deadline, patience=patience, progress=tell)
    except KeyboardInterrupt:
        again = f"follow it again: counterflow federation fit {folder} --id {job.id}"
        typer.echo(f"counterflow: what runs of the job goes on without this command; {again}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    saved = coordinator.folder / "fits" / job.id
    part, record = saved_server(coordinator.folder, job.id)[1], load_record(saved)
    told = {
        "id": job.id, "method": job.method, "units": list(job.units),
        **output.fit_json(record.status, record.traffic), "seconds": time.monotonic() - began,
        "exchanges": state.get("exchanges"),
        "privacy": None if job.privacy is None else picked(job.privacy, "epsilon delta release"),
        "saved": saved, "caveats": list(part.caveats),
    }  # fmt: skip
    return Told(told, _shown(told), OK if told["status"]["converged"] else NOT_CONVERGED)


def _refuse_removed(coordinator: CoordinatorFolder, job: Job) -> None:
    gone = [unit for unit in job.units if unit not in coordinator.plants()]
    if gone and party.state(coordinator.folder, job.id).get("state") != "finished":
        raise OptionError(f"{job.id}: its unit {gone[0]!r} was removed; start a new job, without --id.")


def _job(coordinator: CoordinatorFolder, job_id: str | None, given: dict[str, Any]) -> Job:
    """A new job, or that of the same name, if it is the same."""
    known = coordinator.job(job_id) if job_id else None
    if known is None:
        return coordinator.new_job(job_id or "", **given)
    _refuse_removed(coordinator, known)
    if given:
        again = replace(coordinator.new_job(known.id, **given), created=known.created)
        if again.to_text() != known.to_text():
            raise OptionError(
                f"--id {known.id}: there is a job of this name with other settings; give --id alone to go on with it, "
                "or another name."
            )
    return known


def _shown(told: dict[str, Any]) -> Iterator[Part]:
    status, traffic = told["status"], told["traffic"]
    ended, style = ("converged", "bold") if status["converged"] else ("NOT converged", "red")
    yield Line(f"{told['id']}: {ended} in {told['seconds']:.1f} s ({status['message']})", style)
    rounds = f"{traffic['rounds']} round{'s' * (traffic['rounds'] != 1)} with {', '.join(told['units'])}"
    yield f"{rounds}; {traffic['bytes_up']:,} bytes came up, {traffic['bytes_down']:,} went down"
    yield f"the coordinator's part: {told['saved']}; every plant has its own"
    yield from output.noted(told["caveats"])


@contextmanager
def _progress(coordinator: CoordinatorFolder, job: Job, wanted: Format) -> Iterator[Progress]:
    """A line that changes on a terminal; for JSON and for files, nothing. A job whose unit was removed is given up."""
    began = time.monotonic()
    from rich.status import Status
    from rich.text import Text

    seen = wanted is not Format.json and sys.stdout.isatty()
    line = Status(Text(f"{job.id}: submitting"), console=output.terminal())

    def tell(state: dict[str, Any]) -> None:
        _refuse_removed(coordinator, job)
        there = len(set(members.presence(coordinator.folder).get("plants", [])) & set(job.units))
        words = [f"{job.id}: {state.get('state', '')}", f"{there} of {len(job.units)} plants"]
        words += [f"{state.get('exchanges', 0)} exchanges", f"{time.monotonic() - began:.0f} s"]
        if seen:
            line.update(Text(", ".join([*words, shown(state.get("reason", ""), 200)])))

    with line if seen else nullcontext():
        yield tell


def _options(given: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """``--option rounds=30 --option solver=gradient --option 'xi={"boiler": 3}'``, after what is ``known``."""
    found = dict(known)
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise OptionError(f"--option {text!r}: give NAME=VALUE, each name once.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _privacy(given: Mapping[str, Any]) -> Privacy | None:
    known = {name: value for name, value in given.items() if value is not None}
    if known and "epsilon" not in known:
        raise OptionError("--delta, --window and --release go with --epsilon: give it, too.")
    return Privacy(**{"delta": 1e-6, **known}) if known else None


@answering()
def approve_job(
    wanted: Format,
    folder: Folder,
    job: Annotated[str, Argument(metavar="JOB", help="Its id, or the beginning of its digest; 'status' lists them.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> Told:
    """Plant: its owner lets one job run, after a look at what would leave and what that costs.

    Needed where the policy says approval = "each" below [privacy]. It holds for this very job; another job, or the same
    with other settings, asks again.

    Example: counterflow federation approve-job boiler-site fit-1
    """
    plant = PlantFolder.open(folder)
    found = job_gate.chosen(plant.folder, job)
    privacy = None if found.privacy is None else picked(found.privacy, "epsilon delta window accounting release")
    told = {
        **picked(found, "id method created"), "sha256": job_gate.digest_of(found), "units": list(found.units),
        "rows": len(plant.own().y), "kinds": sorted(method_of(found).sends), "privacy": privacy,
        "budget": budget_of(plant),
    }  # fmt: skip
    if wanted is Format.table:
        exact = Line("What leaves is exact, without noise.", "yellow")
        output.show(*output.facts(told), *([exact] if privacy is None else []))
    if not yes:
        if wanted is Format.json or not sys.stdin.isatty():
            raise OptionError("approve-job asks before anything may leave: look at it on a terminal, or give --yes.")
        if not typer.confirm("Let this job run?", default=False):
            raise OptionError("the job was not approved.")
    with plant.audit() as audit:
        job_gate.approve(plant.folder, found, plant.unit, audit)
    return Told(told, ["", f"Approved. The coordinator goes on: federation fit --id {found.id}"])
