"""How far a fit is: a share of what is to be done, the time that is left, and where it stands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from counterflow import wording
from counterflow.errors import OptionError
from counterflow.exchange.method import Progress, ServerState

READ, LEARNED = 0.05, 0.85  # shares of a fit's time by the end of what units do, and of what the server learns, about
QUIET = 5.0  # seconds between two lines where there is no terminal, and before the first


@dataclass(frozen=True)
class Standing:
    """How far a fit is.

    Attributes
    ----------
    share : of the work, between 0 and 1, by what is known so far.
    seconds : since it began.
    left : seconds to go, if the rest goes as what was done; None: too early to say.
    text : what is being done.

    Examples
    --------
    >>> print(Standing(0.25, 30.0, 90.0, "pass 12, log-likelihood 1234.5"))
    25 %, about 90 s left: pass 12, log-likelihood 1234.5
    """

    share: float
    seconds: float
    left: float | None
    text: str

    def __str__(self) -> str:
        left = "" if self.left is None else f", {wording.about(self.left)} left"
        return f"{100 * self.share:.0f} %{left}: {self.text}"


Watcher = Callable[[Standing], None]


class Told:
    """Where a fit says how far it is; the share never falls."""

    def __init__(self, tell: Watcher | None) -> None:
        self._tell, self._began, self._share = tell, time.monotonic(), 0.0

    def __call__(self, share: float, text: str) -> None:
        """So much of the whole fit is done."""
        if self._tell is None:
            return
        self._share = min(1.0, max(self._share, share))
        seconds = time.monotonic() - self._began
        left = seconds * (1 - self._share) / self._share if self._share > 0 else None
        self._tell(Standing(self._share, seconds, left, text))

    def between(self, first: float, last: float) -> Progress:
        """For a part of the fit, which counts its own share from 0 to 1."""
        return lambda share, text: self(first + (last - first) * min(1.0, max(0.0, share)), text)

    def round(self, state: ServerState, most: int | None) -> None:
        """One more round of at most so many."""
        record = state.record
        if record is not None and most:
            text = f"round {record.round + 1} of at most {most}, {record.phase}, server loss {record.server_loss:.4g}"
            self(LEARNED * (record.round + 1) / most, text)


@contextmanager
def progress_of(wanted: bool | Watcher) -> Iterator[Told]:
    """Tell nobody (False), a function, or (True) whoever reads stderr: a bar on a terminal, else lines now and then."""
    if callable(wanted):
        yield Told(wanted)
        return
    if not isinstance(wanted, bool):
        raise OptionError(f"fit: progress must be True, False or a function of how far it is, got {wanted!r:.80}")
    if not wanted:
        yield Told(None)
        return
    if not sys.stderr.isatty():
        yield Told(_lines())
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("fit"), BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        line = bar.add_task("", total=1.0)

        def drawn(standing: Standing) -> None:
            left = "" if standing.left is None else f"{wording.about(standing.left)} left, "
            bar.update(line, completed=standing.share, description=f"{left}{standing.text}")

        yield Told(drawn)


def _lines() -> Watcher:
    """A line on stderr, not before it takes long, and not often."""
    last = 0.0

    def line(standing: Standing) -> None:
        nonlocal last
        if standing.seconds >= last + QUIET:
            last = standing.seconds
            print(f"fit: {standing}", file=sys.stderr, flush=True)

    return line
