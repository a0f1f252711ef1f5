"""Which jobs a plant takes part in: those that its policy allows, so many an hour, and, if it says so, none that its
owner has not approved.

An approval is of one job to the letter: it is bound to the digest of the job's text, and stands in the audit log.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from counterflow.errors import CounterflowError, OptionError, PrivacyError, ProtocolError, StorageError
from counterflow.exchange.registry import method_of
from counterflow.exchange.task import UnitData
from counterflow.federation.audit import Audit
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.policy import Policy
from counterflow.federation.refusal import Refusal, RefusedJob
from counterflow.files import make_folder, write_whole

HOUR = 3600.0
WAITING = "waiting"  # folder of jobs that wait for the owner
MOST_WAITING = 100
OPENED, APPROVED = "opened", "owner-approved"  # events of the audit log
_RATE = "leave.jobs_per_hour"


def check_job(job: Job, own: UnitData, policy: Policy) -> None:
    """Refuse a job that is not one that this plant takes part in."""
    unit, inputs = own.unit.name, own.unit.input_names
    if policy.unit != unit:
        raise ProtocolError(f"unit {unit!r}: its policy is that of unit {policy.unit!r}: give the right file")
    if unit not in job.units:
        raise ProtocolError(f"unit {unit!r} takes no part in {job.label}: its units are {', '.join(job.units)}")
    if job.input_names(unit) != inputs:
        raise ProtocolError(
            f"unit {unit!r}: {job.label} says that its inputs are {', '.join(job.input_names(unit))}; they are "
            f"{', '.join(inputs)}: the coordinator must name them alike and in this order",
            code="inputs",
        )
    if job.begins and own.begins != job.begins:
        raise ProtocolError(
            f"unit {unit!r}: {job.label} is about logs whose first row is of {job.begins}; this one's is of "
            f"{own.begins or 'no time that is known'}: bring a log of that period (join --log), or ask the "
            "coordinator to fit with --begins",
            code="begins",
        )
    if job.method == QUESTIONS:
        return  # a plant that puts no questions says in such a job who may ask about it
    code = next((code for code, broken in _rules(job, own, policy).items() if broken), None)
    if code is not None:
        raise RefusedJob(Refusal.by_policy(code, policy.lines), unit, job)
    if job.privacy is not None and job.privacy.models != "excluded":
        raise PrivacyError(
            f"unit {unit!r}: {job.label} says what this plant's model has cost its budget; that is not for a job to "
            "say: ask the coordinator to leave 'models' out"
        )


def _rules(job: Job, own: UnitData, policy: Policy) -> dict[str, bool]:
    """By the code of every rule of the policy, whether a job breaks it; what that means say ``refusal.REASONS``."""
    privacy = job.privacy
    rules = {
        "leave.methods": job.method not in policy.methods,
        "leave.inputs_shown": "Basis" in method_of(job).hears and not policy.inputs_shown,
        "leave.largest_rows": len(own.y) > policy.largest_rows,
    }
    if privacy is None:
        return rules | {"privacy.demanded": policy.demanded}
    rules |= {
        "privacy.ledger": policy.ledger is None,
        "privacy.reacting_inputs": job.options.get("reacting", "refused") != "refused" and not policy.reacting_inputs,
    }
    demanded = {
        "privacy.epsilon": privacy.epsilon > policy.epsilon,
        "privacy.delta": privacy.delta > policy.delta,
        "privacy.window": privacy.window < policy.window,
        "privacy.published": privacy.accounting != "rigorous" and not policy.published,
        "privacy.simulation": privacy.seed is not None and not policy.simulation,
    }
    return rules | demanded if policy.demanded else rules


def digest_of(job: Job) -> str:
    """SHA-256 of a job's text."""
    return hashlib.sha256(job.to_text().encode()).hexdigest()


def count(job: Job, policy: Policy, audit: Audit, clock: Callable[[], float] = time.time) -> None:
    """Write down that a job has come, once; refuses one that is new when the policy's hour is full."""
    if job.method == QUESTIONS:
        return
    now, digest = clock(), digest_of(job)
    with audit.turn():
        came: dict[str, float] = {}
        refused = False  # a coordinator that goes on must not fill the disk with refusals
        for record in audit.records():
            when = datetime.fromisoformat(str(record["time"])).timestamp()
            if abs(now - when) <= HOUR:
                if record["event"] == OPENED:
                    came[str(record["sha256"])] = when
                refused = refused or record.get("code") == _RATE
        if digest in came:
            return
        if len(came) < policy.jobs_per_hour:
            audit.write(OPENED, job=job.id, unit=policy.unit, method=job.method, sha256=digest)
            return
    seconds = int(min(came.values()) + HOUR - now) + 1
    error = RefusedJob(Refusal.by_policy(_RATE, policy.lines, seconds), policy.unit, job)
    if not refused:
        audit.write("refused", job=job.id, unit=policy.unit, direction="job", code=error.code, reason=str(error))
    raise error


def require_approval(job: Job, policy: Policy, audit: Audit, home: Path) -> None:
    """Refuse a job that the owner has to approve and has not; it is kept for him to look at."""
    if policy.approval != "each" or job.method == QUESTIONS:
        return
    digest = digest_of(job)
    if any(record["event"] == APPROVED and record.get("sha256") == digest for record in audit.records()):
        return
    folder = home / WAITING
    make_folder(folder)
    for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[: -MOST_WAITING + 1]:
        old.unlink(missing_ok=True)
    write_whole(folder / f"{job.id}-{digest[:12]}.json", job.to_text().encode(), durable=True)
    raise RefusedJob(Refusal.by_policy("privacy.approval", policy.lines), policy.unit, job)


def waiting(home: Path) -> dict[str, Job]:
    """{digest: job} of those that wait for the owner, the oldest first."""
    found = [_read(path) for path in sorted((home / WAITING).glob("*.json"), key=lambda path: path.stat().st_mtime)]
    return {digest_of(job): job for job in found}


def chosen(home: Path, named: str) -> Job:
    """The job that waits under an id, or under the beginning of a digest."""
    known = waiting(home)
    found = [
        digest for digest, job in known.items() if job.id == named or (len(named) > 7 and digest.startswith(named))
    ]
    if len(found) == 1:
        return known[found[0]]
    there = ", ".join(f"{job.id} ({digest[:12]})" for digest, job in known.items()) or "none"
    if found:
        raise OptionError(f"{len(found)} jobs that wait are called {named!r:.80}: give a digest; there are {there}.")
    raise OptionError(f"no job {named!r:.80} waits for its owner's approval; there are {there}.")


def approve(home: Path, job: Job, unit: str, audit: Audit) -> None:
    """Write down that the owner lets this very job run; it does when the coordinator starts it again."""
    digest = digest_of(job)
    audit.write(APPROVED, job=job.id, unit=unit, sha256=digest)
    (home / WAITING / f"{job.id}-{digest[:12]}.json").unlink(missing_ok=True)


def _read(path: Path) -> Job:
    try:
        return Job.from_text(path.read_text("utf-8"))
    except (OSError, ValueError, CounterflowError) as error:
        raise StorageError(
            f"{path}: cannot be read ({error}); remove it, the coordinator sends the job again"
        ) from error
