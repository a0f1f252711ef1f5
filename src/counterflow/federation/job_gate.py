"""Which jobs a plant looks at: so many an hour, and, if its policy says so, none that its owner has not approved.

An approval is of one job to the letter: it is bound to the digest of the job's text, and stands in the audit log.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from counterflow.errors import CounterflowError, OptionError, PrivacyError, StorageError
from counterflow.federation.audit import Audit
from counterflow.federation.guard import Guard
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.policy import Policy
from counterflow.files import make_folder, write_whole

HOUR = 3600.0
WAITING = "waiting"  # folder of jobs that wait for the owner
MOST_WAITING = 100
OPENED, APPROVED = "opened", "owner-approved"  # events of the audit log
_RATE = "leave.jobs_per_hour"


class TooMany(PrivacyError):
    """There were more jobs within the hour than the policy takes; ``seconds`` until the next may come."""

    code = _RATE

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = int(seconds) + 1


def digest_of(job: Job) -> str:
    """SHA-256 of a job's text."""
    return hashlib.sha256(job.to_text().encode()).hexdigest()


def count(job: Job, policy: Policy, audit: Audit, clock: Callable[[], float] = time.time) -> None:
    """Write down that a job has come, once; refuses one that is new when the policy's hour is full."""
    if job.method == QUESTIONS:
        return
    now, digest = clock(), digest_of(job)
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
    if len(came) >= policy.jobs_per_hour:
        error = TooMany(
            f"unit {policy.unit!r}: {job.label} is one too many: the policy takes {policy.jobs_per_hour} new jobs an "
            "hour (leave.jobs_per_hour)",
            min(came.values()) + HOUR - now,
        )
        if not refused:
            audit.write("refused", job=job.id, unit=policy.unit, direction="job", code=error.code, reason=str(error))
        raise error
    audit.write(OPENED, job=job.id, unit=policy.unit, method=job.method, sha256=digest)


def require_approval(guard: Guard, home: Path) -> None:
    """Refuse a job that the owner has to approve and has not; it is kept for him to look at."""
    job, audit = guard.job, guard.audit
    if guard.policy.approval != "each" or job.method == QUESTIONS:
        return
    digest = digest_of(job)
    if any(record["event"] == APPROVED and record.get("sha256") == digest for record in audit.records()):
        return
    folder = home / WAITING
    make_folder(folder)
    for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)[: -MOST_WAITING + 1]:
        old.unlink(missing_ok=True)
    write_whole(folder / f"{job.id}-{digest[:12]}.json", job.to_text().encode(), durable=True)
    refusal = PrivacyError(
        f"unit {guard.unit!r}: {job.label} waits for its owner (privacy.approval): counterflow federation approve-job "
        f"{home} {job.id}",
        code="privacy.approval",
    )
    guard.refuse("job", job.to_text().encode(), refusal)


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
