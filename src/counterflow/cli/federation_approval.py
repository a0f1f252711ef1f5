"""``counterflow federation approve-job``: a plant's owner looks at a job, and lets it run."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.federation_status import budget_line, budget_of
from counterflow.cli.options import AnswerFormat, Folder
from counterflow.cli.output import Format
from counterflow.errors import OptionError
from counterflow.exchange.registry import method_of
from counterflow.federation import job_gate
from counterflow.federation.job import Job
from counterflow.federation.sites.plant_folder import PlantFolder


def approve_job(
    folder: Folder,
    job: Annotated[str, Argument(metavar="JOB", help="Its id, or the beginning of its digest; 'status' lists them.")],
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    answer_format: AnswerFormat = Format.table,
) -> None:
    """Plant: its owner lets one job run, after a look at what would leave and what that costs.

    Needed where the policy says approval = "each" below [privacy]. It holds for this very job; another job, or the same
    with other settings, asks again.

    Example: counterflow federation approve-job boiler-site fit-1
    """
    plant = PlantFolder.open(folder)
    found = job_gate.chosen(plant.folder, job)
    told = _told(plant, found)
    if answer_format is Format.table:
        _show(told)
    if not yes:
        if answer_format is Format.json or not sys.stdin.isatty():
            raise OptionError("approve-job asks before anything may leave: look at it on a terminal, or give --yes.")
        if not typer.confirm("Let this job run?", default=False):
            raise OptionError("the job was not approved.")
    with plant.site.audit() as audit:
        job_gate.approve(plant.folder, found, plant.unit, audit)
    output.answer(
        answer_format, "federation approve-job", told,
        lambda: output.show_lines("", f"Approved. The coordinator goes on: federation fit --id {found.id}"),
    )  # fmt: skip


def _told(plant: PlantFolder, job: Job) -> dict[str, Any]:
    privacy = None if job.privacy is None else output.picked(job.privacy, "epsilon delta window accounting release")
    return {
        **output.picked(job, "id method created"), "sha256": job_gate.digest_of(job), "units": list(job.units),
        "rows": len(plant.site.own().y), "kinds": sorted(method_of(job).sends), "privacy": privacy,
        "budget": budget_of(plant),
    }  # fmt: skip


def _show(told: dict[str, Any]) -> None:
    privacy, budget = told["privacy"], told["budget"]
    output.show_text(f"Job {told['id']} of {told['created']}, method {told['method']}", style="bold")
    output.show_lines(
        f"digest: {told['sha256']}",
        f"with: {', '.join(told['units'])}",
        f"would leave: {' or '.join(told['kinds'])}, made of {told['rows']} rows",
    )
    if privacy is None:
        output.show_text("cost: exact numbers leave, without noise", style="yellow")
    else:
        output.show_text(
            f"cost: epsilon {privacy['epsilon']:g} at delta {privacy['delta']:g}, {privacy['window']} measurements "
            "protected as one"
        )
    if budget is not None:
        output.show_text(budget_line(budget))
