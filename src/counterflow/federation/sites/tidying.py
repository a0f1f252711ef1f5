"""What a running site throws away, by rule: logs past a size, and what is left of runs that ended long ago.

At the coordinator these are also the sessions of jobs that are finished and whose part is kept: what was found stays,
the messages that it was found from go. Questions go when their answer was taken (``question_box``).

Never thrown away: the audit log, the ledger, a plant's sessions (a job that is asked for again answers the same, and
costs nothing anew), jobs, finished fits, members.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from counterflow.errors import StorageError
from counterflow.federation.engine import engine
from counterflow.federation.sites import party
from counterflow.federation.sites.site import CoordinatorSite
from counterflow.files import is_old
from counterflow.fits.storage import load_record

GENERATIONS = 3  # of a log that are kept beside it: site.log.1 is the latest
DAY = 86_400.0


@dataclass(frozen=True)
class Rule:
    """How long the engine's traces of ended runs are kept, and how large a log may become."""

    days: float = 30.0
    megabytes: float = 10.0


def tidy(folder: Path, kit: Path, rule: Rule, alive: Callable[[str], bool] = lambda run: False) -> int:
    """Apply a rule to the folder of a party; how many things were thrown away. What cannot be deleted stays."""
    with contextlib.suppress(OSError):
        for log in (folder / party.SITE_LOG, folder / party.LOG, *engine().logs(kit)):
            rotate(log, int(rule.megabytes * 1e6))
    age = rule.days * DAY
    gone = engine().prune(kit, folder, age)
    for path in (folder / "states").glob("*.json"):  # a coordinator's
        if not is_old(path, age):
            continue
        with contextlib.suppress(OSError, StorageError):
            state, session = CoordinatorSite(folder).state(path.stem), folder / "sessions" / path.stem
            if alive(str(state.get("run", ""))):
                continue
            if not (folder / "jobs" / path.name).exists():  # of a standing job for questions: nobody has started it
                path.unlink()
                gone += 1
            elif state.get("state") == "finished" and session.is_dir():
                load_record(folder / "fits" / path.stem)  # it can be read, so that the session is not needed any more
                shutil.rmtree(session)
                gone += 1
    return gone


def rotate(log: Path, largest: int) -> None:
    """Begin a log anew when it is too large; processes that have it open go on writing to it, at its beginning."""
    if not log.is_file() or log.stat().st_size <= largest:
        return
    places = [log.with_name(f"{log.name}.{k}") for k in range(1, GENERATIONS + 1)]
    for newer, older in zip(reversed(places[:-1]), reversed(places[1:]), strict=True):
        if newer.exists():
            os.replace(newer, older)
    shutil.copyfile(log, places[0])
    places[0].chmod(0o600)
    os.truncate(log, 0)
