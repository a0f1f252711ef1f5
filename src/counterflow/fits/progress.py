"""What a person sees while a fit runs: rounds of an iterative method, or passes of maximum likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from counterflow.methods.method import ServerState


class Shown:
    """Where a fit says how far it is; this one tells nobody."""

    def passes(self, count: int, value: float) -> None:
        """So many passes over the data, with this log-likelihood."""

    def round(self, state: ServerState) -> None:
        """One more round."""


@contextmanager
def progress_bar(wanted: bool, rounds: int | None) -> Iterator[Shown]:
    """A bar on the terminal; ``rounds``: at most, None for methods without."""
    if not wanted:
        yield Shown()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    counted = (BarColumn(), MofNCompleteColumn()) if rounds is not None else (SpinnerColumn(),)
    with Progress(text, *counted, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        line = bar.add_task("training" if rounds is not None else "maximum likelihood", total=rounds)

        class Bar(Shown):
            def passes(self, count: int, value: float) -> None:
                bar.update(line, description=f"maximum likelihood: pass {count}, log-likelihood {value:.6g}")

            def round(self, state: ServerState) -> None:
                record = state.record
                assert record is not None
                losses = f"L_s {record.server_loss:.4g}  D {record.disentanglement:.3g}"
                bar.update(line, completed=record.round + 1, description=f"{record.phase}  {losses}")

        yield Bar()
        if rounds is not None:
            bar.update(line, total=bar.tasks[0].completed)
