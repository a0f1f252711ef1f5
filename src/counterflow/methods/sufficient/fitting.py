"""Maximum-likelihood fits in one process: "sufficient" over messages, "centralized" on pooled raw data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.estimation.identifiability import Labels, diagnose
from counterflow.estimation.information import affordable
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.optimiser import Estimated, maximum_likelihood
from counterflow.estimation.parameters import Estimate
from counterflow.estimation.prior import faint_couplings, weak_prior
from counterflow.estimation.uncertainty import Uncertainty, uncertainty
from counterflow.fits import in_process
from counterflow.fits.fit import Fit
from counterflow.fits.history import Recorder
from counterflow.fits.outcome import Couplings, Status, Task
from counterflow.fits.privacy import (
    PrivacyReport,
    Spending,
    private_caveats,
    record_sufficient,
    report_sufficient,
    spend_sufficient,
    unit_digest,
)
from counterflow.methods.machines import UnitState
from counterflow.methods.options import LikelihoodOptions
from counterflow.methods.part import UnitPart, unit_parts
from counterflow.methods.sufficient.private import PrivateRelease
from counterflow.methods.sufficient.server import SufficientConfig, SufficientServer, block_diagonal
from counterflow.methods.sufficient.unit import SufficientUnit, rows_and_channels
from counterflow.plant import LocalModel, Plant, Recording, Unit

QUICK_CHECK = 2_000_000  # numbers that the server holds, up to which checks take a second or two and are made at once
NEARLY = 0.05  # standard errors that a fit may still be away from its maximum and give intervals


def likelihood_fit(task: Task) -> Fit:
    """Maximum likelihood of the couplings."""
    recording, method, names = task.recording, task.method, task.recording.names
    chosen = LikelihoodOptions.parse(method, task.options)
    for name in LikelihoodOptions.LOGS:
        if name in task.options:
            raise OptionError(f"fit: option {name!r} is for fits from logs; models are given here, which settle it")
    estimate = cast(Estimate, chosen.estimate)
    privacy: PrivacyReport | None = None
    parts = unit_parts(recording, task.local, task.estimators, uses_inputs=True)
    with spinner(task.progress) as told:
        if method == "sufficient":
            private = task.privacy is not None
            config = SufficientConfig(names, estimate, chosen.tol, chosen.evaluations, prior=private)
            clients = {
                n: SufficientUnit(n, task.local[n], recording[n].y, recording[n].u, task.privacy)
                for n in names
            }
            with paying(task) as spending:
                done, asked, traffic = in_process.run(
                    SufficientServer(config, progress=told),
                    clients,
                    watch=task.watch,
                    over_the_wire=task.over_the_wire,
                    leaving=None if spending is None else partial(record_sufficient, spending),
                )
                privacy = None if spending is None else report_sufficient(spending, _releases(asked))
            assert isinstance(done, SufficientServer)
            shared, found = done.shared, done.found
        else:
            if task.watch is not None or task.over_the_wire:
                raise OptionError("fit: method 'centralized' pools raw data and sends no messages to watch")
            shared, traffic = pool(recording, task.local), _raw_traffic(recording)
            found = maximum_likelihood(
                shared, estimate, tolerance=chosen.tol, evaluations=chosen.evaluations, progress=told
            )
        assert shared is not None
        assert found is not None
        labels = {unit.name: unit.input_names for unit in recording.units}
        couplings, caveats = judged(shared, found, estimate, labels, chosen.uncertainty, private=privacy is not None)
        caveats += estimate_caveats(found)
        for unit in recording.units if method == "sufficient" else ():
            caveats += message_caveats(unit, recording[unit.name].y, task.local[unit.name], privacy is not None)
        if privacy is not None:
            caveats += private_caveats(privacy, _releases(asked))
    if privacy is not None:
        parts = {n: replace(part, rows_digest=unit_digest(recording, n)) for n, part in parts.items()}
    history = Recorder(names).history(dict.fromkeys(names, 0.0))
    status, plant = status_of(found, chosen), assemble(found, parts, recording.dt)
    fitted = Fit(
        method, plant, parts, history, traffic, status, task.provenance,
        caveats=caveats, couplings=couplings, privacy=privacy,
    )  # fmt: skip
    quick = shared.values.size + shared.u.size <= QUICK_CHECK
    return fitted.checked() if method == "sufficient" and quick else fitted


def judged(
    shared: SharedRecord,
    found: Estimated,
    estimate: Estimate,
    labels: Labels,
    wanted: bool | None,
    *,
    near: float = NEARLY,
    private: bool = False,
    form: str = "partitioned",
    spread: Uncertainty | None = None,
) -> tuple[Couplings, tuple[Caveat, ...]]:
    """What the server knows of an estimate besides its numbers: doubts, uncertainty, and what to say of them.

    Parameters
    ----------
    labels : names of the units' inputs.
    wanted : whether to compute standard errors; None: where that takes seconds.
    near : standard errors that the estimate may still be away from its maximum and have intervals.
    private : whether the weak prior was leant on.
    spread : of the free form, which computes its own.
    """
    doubts = diagnose(shared, estimate, labels)
    assert found.parameters is not None
    wanted = affordable(shared, found.parameters) if wanted is None else wanted
    good = found.converged or found.decrement <= near**2
    if form == "partitioned" and wanted and good:
        spread = uncertainty(shared, found, weak_prior(shared, estimate) if private else None)
    spread = spread.with_doubts(doubts) if spread is not None and good else None
    faint = faint_couplings(shared, found) if private and wanted else ()
    return Couplings(found, shared, spread, doubts, form=form), (*(d.caveat for d in doubts), *(f.caveat for f in faint))


@contextmanager
def paying(task: Task) -> Iterator[Spending | None]:
    """The units' ledgers, open while their messages leave; None if nothing is private."""
    if task.privacy is None:
        yield None
        return
    models = {name: task.local[name] for name in task.recording.names}
    label = f"fit {task.provenance.data_digest[:12]}"
    with spend_sufficient(task.privacy, models, task.recording.rows, label) as spending:
        yield spending


def _releases(asked: Mapping[str, UnitState]) -> dict[str, PrivateRelease]:
    return {n: s.release for n, s in asked.items() if isinstance(s, SufficientUnit) and s.release is not None}


def estimate_caveats(found: Estimated) -> tuple[Caveat, ...]:
    """What a reader of any answer should know of how the estimate came out."""
    if found.at_bound:
        text = (
            "the estimate rests on the stability bound: the data ask for a system that is not stable. Answers are not "
            "to be trusted; check the local models, or look for a drift or an integrator that is missing in them"
        )
        return (Caveat("stability-bound", "", text),)
    if not found.converged and found.decrement > NEARLY**2:
        text = "the fit has not converged, so its answers have no interval and may be far off"
        return (Caveat("not-converged", "", text),)
    return ()


def message_caveats(unit: Unit, y: FloatArray, model: LocalModel, private: bool) -> tuple[Caveat, ...]:
    """What a reader should know of the message that a unit has sent; nothing of it tells of a measurement."""
    out = []
    used, whole = rows_and_channels(y)
    dropped = int(np.isfinite(y).any(axis=1).sum()) - int(used.sum())
    if dropped or not whole.all():
        lost = []
        if dropped:
            lost.append(f"{dropped} rows in which a channel was missing")
        if not whole.all():
            names = [unit.output_names[k] for k in np.flatnonzero(~whole)]
            lost.append(f"channels missing most of the time: {', '.join(names)}")
        out.append(Caveat("rows-left-out", unit.name, f"unit {unit.name!r}: left out were {' and '.join(lost)}"))
    if not private and np.linalg.matrix_rank(model.C) == model.n_outputs:
        text = (
            f"unit {unit.name!r}: its message determines its measurements exactly, because it has no more outputs "
            "than states; compression hides nothing here"
        )
        out.append(Caveat("exact-message", unit.name, text))
    return tuple(out)


def assemble(found: Estimated, parts: Mapping[str, UnitPart], dt: float) -> Plant:
    """The estimated plant: C and R from the units, everything else from the server.

    Process noise that units share (the free form has such) has no place in a plant: each unit's own part is kept.
    """
    models = [part.model for part in parts.values()]
    diagonals = {letter: block_diagonal([getattr(model, letter) for model in models]) for letter in ("C", "R")}
    within = block_diagonal([np.ones_like(model.Q) for model in models])
    units = tuple(part.unit for part in parts.values())
    return Plant(units=units, A=found.A, B=found.B, Q=found.Q * within, **diagonals, dt=dt)


def pool(recording: Recording, local: Mapping[str, LocalModel]) -> SharedRecord:
    """Raw measurements, C and R of all units in one place: what no federation may do, the reference for it."""
    names, models = recording.names, [local[n] for n in recording.names]
    return SharedRecord(
        names=names,
        states=tuple(m.states for m in models),
        inputs=tuple(m.n_inputs for m in models),
        values=np.hstack([recording[n].y for n in names]),
        u=np.hstack([recording[n].u for n in names]),
        observation=block_diagonal([m.C for m in models]),
        noise=block_diagonal([m.R for m in models]),
        A_local=block_diagonal([m.A for m in models]),
        B_local=block_diagonal([m.B for m in models]),
        Q_local=block_diagonal([m.Q for m in models]),
    )


def _raw_traffic(recording: Recording) -> in_process.Traffic:
    return in_process.Traffic(1, sum(recording[n].y.nbytes + recording[n].u.nbytes for n in recording.names), 0)


def status_of(found: Estimated, chosen: LikelihoodOptions) -> Status:
    length = float(np.sqrt(found.decrement))
    if found.converged:
        text = f"converged in {found.evaluations} passes; log-likelihood {found.log_likelihood:.6g}"
    else:
        text = (
            f"not converged after {found.evaluations} passes: the gradient could still move the estimates by about "
            f"{length:.1g} standard errors (asked: {chosen.tol:g}); "
            + ("give more evaluations" if found.evaluations >= chosen.evaluations else "rounding allows no more")
        )
    return Status(found.converged, found.evaluations, length, text)


@contextmanager
def spinner(wanted: bool) -> Iterator[Callable[[int, float], None] | None]:
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
    ) as bar:
        task = bar.add_task("maximum likelihood", total=None)

        def told(passes: int, value: float) -> None:
            bar.update(task, description=f"maximum likelihood: pass {passes}, log-likelihood {value:.6g}")

        yield told
