"""``counterflow federation fit``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from counterflow._version import __version__
from counterflow.cli import output
from counterflow.cli.output import Format
from counterflow.errors import OptionError, StorageError
from counterflow.federation.engine import engine
from counterflow.federation.job import Job
from counterflow.federation.parts import saved_server
from counterflow.federation.sites import members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.privacy import Privacy

INTERRUPTED = 130
_Tell = Callable[[dict[str, Any]], None]


def fit(
    folder: Path,
    *,
    job_id: str | None,
    method: str | None,
    options: Sequence[str],
    units: str | None,
    epsilon: float | None,
    delta: float | None,
    window: int | None,
    from_logs: bool,
    begins: str | None,
    seed: int | None,
    deadline: int,
    patience: float,
    answer_format: Format,
) -> None:
    """Run a job, or go on with one, and tell how it ended; exit code 3 if it has not converged."""
    engine().require()
    coordinator = CoordinatorFolder.open(folder)
    described: dict[str, Any] = {
        "method": method,
        "units": _names(units),
        "options": _options(options),
        "seed": seed,
        "privacy": _privacy(epsilon, delta, window),
        "from_logs": from_logs,
        "begins": begins,
    }
    given = {key: value for key, value in described.items() if value not in (None, (), {}, False)}
    job = _job(coordinator, job_id, given)
    if party.supervisor(coordinator.folder) is None:
        raise StorageError(f"{coordinator.label} is not running: counterflow federation start {folder} --detach")
    coordinator.keep(job)
    began = time.monotonic()
    try:
        with _progress(coordinator, job, answer_format) as tell:

            def news(state: dict[str, Any]) -> None:
                _refuse_removed(coordinator, job)
                tell(state)

            state = coordinator.engine_jobs.follow(job, deadline=deadline, patience=patience, progress=news)
    except KeyboardInterrupt:
        typer.echo(
            f"counterflow: what runs of the job goes on without this command; follow it again: counterflow federation "
            f"fit {folder} --id {job.id}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    told = _result(coordinator, job, state, time.monotonic() - began)
    if answer_format is Format.json:
        print(output.as_json(told))
    else:
        _show(told)
    if not told["status"]["converged"]:
        raise typer.Exit(output.NOT_CONVERGED)


def _refuse_removed(coordinator: CoordinatorFolder, job: Job) -> None:
    gone = [unit for unit in job.units if unit not in coordinator.plants()]
    if gone and coordinator.site.state(job.id).get("state") != "finished":
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


def _result(coordinator: CoordinatorFolder, job: Job, state: dict[str, Any], seconds: float) -> dict[str, Any]:
    with coordinator.site.session(job) as session:
        result = session.result()
    status = result.status
    part = saved_server(coordinator.folder, job.id)[1]
    return {
        "version": __version__,
        "command": "federation fit",
        "id": job.id,
        "method": job.method,
        "units": list(job.units),
        "status": {"converged": status.converged, "rounds": status.rounds, "message": status.message},
        "seconds": seconds,
        "exchanges": state.get("exchanges"),
        "traffic": {
            "rounds": result.traffic.rounds,
            "bytes_up": result.traffic.bytes_up,
            "bytes_down": result.traffic.bytes_down,
        },
        "privacy": None if job.privacy is None else {"epsilon": job.privacy.epsilon, "delta": job.privacy.delta},
        "saved": coordinator.folder / "fits" / job.id,
        "caveats": [str(caveat) for caveat in part.caveats],
    }


def _show(told: dict[str, Any]) -> None:
    status, traffic = told["status"], told["traffic"]
    output.show_text(
        f"{told['id']}: {'converged' if status['converged'] else 'NOT converged'} in {told['seconds']:.1f} s "
        f"({status['message']})",
        style="bold" if status["converged"] else "red",
    )
    rounds = f"{traffic['rounds']} round{'s' * (traffic['rounds'] != 1)}"
    output.show_text(
        f"{rounds} with {', '.join(told['units'])}; {traffic['bytes_up']:,} bytes came up, "
        f"{traffic['bytes_down']:,} went down"
    )
    output.show_text(f"the coordinator's part: {told['saved']}; every plant has its own")
    output.show_notes(told["caveats"])


@contextmanager
def _progress(coordinator: CoordinatorFolder, job: Job, answer_format: Format) -> Iterator[_Tell]:
    """A line that changes on a terminal; for JSON and for files, nothing."""
    if answer_format is Format.json or not sys.stdout.isatty():
        yield lambda state: None
        return
    began = time.monotonic()
    with output.terminal().status(f"{job.id}: submitting") as line:

        def tell(state: dict[str, Any]) -> None:
            there = members.presence(coordinator.folder / members.PRESENCE).get("plants", [])
            connected = f"{len(set(there) & set(job.units))} of {len(job.units)} plants"
            words = [f"{job.id}: {state.get('state', '')}", connected]
            if state.get("exchanges"):
                moved = float(state.get("bytes_up", 0)) + float(state.get("bytes_down", 0))
                words += [f"{state['exchanges']} exchanges", f"{moved / 1000:,.0f} kB"]
            if state.get("reason"):
                words.append(str(state["reason"])[:200])
            line.update(", ".join([*words, f"{time.monotonic() - began:.0f} s"]))

        yield tell


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise OptionError(f"--units {text!r}: give names with commas between them.")
    return names


def _options(given: Sequence[str]) -> dict[str, Any]:
    """``--option rounds=30 --option solver=gradient --option 'xi={"boiler": 3}'``."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise OptionError(f"--option {text!r}: give NAME=VALUE, each name once.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _privacy(epsilon: float | None, delta: float | None, window: int | None) -> Privacy | None:
    if epsilon is None:
        if delta is not None or window is not None:
            raise OptionError("--delta and --window go with --epsilon: give it, too.")
        return None
    return Privacy(epsilon=epsilon, delta=1e-6 if delta is None else delta, window=1 if window is None else window)
