"""From a folder to seats: a saved fit, some of its files, a plant of a federation, or a coordinator."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

from counterflow.arrays import FloatArray
from counterflow.caveats import distinct
from counterflow.checks import Checks, check
from counterflow.console.seats import SERVER, Gated, Seat, server_seat
from counterflow.errors import CounterflowError, DataError, OptionError, PrivacyError, StorageError
from counterflow.exchange.part import UnitPart
from counterflow.federation import PlantView, Policy, QuestionGate
from counterflow.fits.content import SERVER_FILE, Record
from counterflow.fits.fit import Fit, load
from counterflow.fits.storage import UNITS_FOLDER, load_record, load_server, load_unit
from counterflow.plant import Recording
from counterflow.questions.answering import Server
from counterflow.questions.asking import KnownUnits

BESIDE = "recording.safetensors"  # looked for beside a fit; used only if it is what was fitted
NO_DATA = "questions about the past need the unit's own measurements: start the console with --data RECORDING"


@dataclass(frozen=True)
class Opened:
    """What a console shows: its title, the seats in it, the first one first, and the file it was read from."""

    title: str
    seats: Mapping[str, Seat]
    file: Path | None = None
    started: str = field(default_factory=lambda: secrets.token_hex(8))

    def warm(self) -> None:
        """Do now what the first question would wait for."""
        for seat in self.seats.values():
            seat.warm()


def open_model(
    model: Path, *, data: Path | Recording | None = None, seats: Sequence[str] = (), policies: Sequence[Path] = ()
) -> Opened:
    """Open a saved fit (whole, or the server's file with some units' files), a plant's or a coordinator's folder.

    ``data``: a recording, for questions about the past; default: the one that was fitted, if it lies beside the fit.
    ``seats``: only these. With any of ``policies``, a unit without one may not be asked about.
    """
    if not model.is_dir():
        raise StorageError(f"there is no directory {str(model)!r}: give the one that a fit was saved to.")
    if (model / SERVER_FILE).is_file():
        found = _saved(model, data, policies)
    else:
        if data is not None or policies:
            raise OptionError("--data and --policy go with a saved fit: a plant has its own log and policy.")
        found = _federated(model)
    return replace(found, seats=_chosen(found.seats, seats))


def _chosen(known: Mapping[str, Seat], wanted: Sequence[str]) -> dict[str, Seat]:
    if not wanted:
        return dict(known)
    out = {}
    for name in wanted:
        key = name if name in known else f"unit:{name}"
        if key not in known:
            there = ", ".join(SERVER if seat.unit is None else seat.unit for seat in known.values())
            raise OptionError(f"--seat {name!r:.80}: there is no such seat here; there are {there}.")
        out[key] = known[key]
    return out


# ---- a saved fit


def _saved(model: Path, data: Path | Recording | None, policies: Sequence[Path]) -> Opened:
    server, record = load_server(model), load_record(model)
    files = {name: model / UNITS_FOLDER / f"{name}.safetensors" for name in record.order}
    there = {name: file for name, file in files.items() if file.is_file()}
    gate = _gate(policies, server)
    whole = load(model) if len(there) == len(files) and not record.apart else None
    parts = dict(whole.parts) if whole is not None else {name: load_unit(file) for name, file in there.items()}
    recording = _recording(model, data, record)
    asked, reason = server, NO_DATA
    if recording is not None and whole is not None:
        try:
            asked = whole.about(recording)
        except PrivacyError as error:
            recording, reason = None, str(error)
    if whole is not None:
        asked, server = whole.running(asked, recording), whole.running(server, None)
        if gate is not None:  # as between machines, controllers answer where their policies let them
            loop = asked.running_plant
            asked = asked.running(loop.units, silent=[name for name in loop.reactors if not gate.reacts(name)])
    checked: Callable[[], Checks] | str = "checks need all parts of a fit: run counterflow check where they are"
    if whole is not None:
        checked = cache(partial(check, whole, recording if whole.privacy is None else None))
    seats: dict[str, Seat] = {}
    for name, part in parts.items():
        measured = reason if recording is None else _measured(recording, part, asked)
        seats[f"unit:{name}"] = _unit_seat(part, asked, server, record, measured, whole, gate, checked)
    seats[SERVER] = server_seat(whole, server, record, checked)
    return Opened("/".join(model.resolve().parts[-2:]).lstrip("/"), seats, model / SERVER_FILE)


def _unit_seat(
    part: UnitPart, asked: Server, server: Server, record: Record, measured: Callable[[], FloatArray] | str,
    fit: Fit | None, gate: QuestionGate | None, checked: Callable[[], Checks] | str,
) -> Seat:  # fmt: skip
    name = part.unit.name
    units = tuple(part.unit if other == name else server.unit(other) for other in record.order)
    told = server.caveats if gate is None else gate.told(name, server.caveats)
    losses = {}
    if fit is not None:
        losses = {key: {name: getattr(fit.history, key)[name]} for key in ("client_loss", "proprietary_loss")}
    return Seat(
        name, asked if gate is None else Gated(asked, gate, name), {name: part}, KnownUnits(units, record.dt),
        server.method, measured, server, record, losses, None if fit is None else fit.privacy,
        distinct((*told, *part.caveats)), checked, record.provenance, record.calendar,
    )  # fmt: skip


def _recording(model: Path, data: Path | Recording | None, record: Record) -> Recording | None:
    if data is not None:
        return data if isinstance(data, Recording) else Recording.load(data)
    beside = model.resolve().parent / BESIDE
    try:
        found = Recording.load(beside) if beside.is_file() else None
    except CounterflowError:
        return None  # nobody asked for it
    return found if found is not None and found.digest == record.provenance.data_digest else None


def _measured(recording: Recording, part: UnitPart, asked: Server) -> Callable[[], FloatArray] | str:
    name = part.unit.name
    if name not in recording.names:
        return f"the recording has no unit {name!r}: give one that has"
    own = recording[name]
    if own.unit.output_names != part.unit.output_names:
        raise DataError(
            f"--data: unit {name!r} has outputs {', '.join(own.unit.output_names)[:200]}; in the fit they are "
            f"{', '.join(part.unit.output_names)[:200]}."
        )
    if asked.shared is None:
        return f"method {asked.method!r} keeps no record of inputs: questions about the past need all parts of the fit"
    if recording.rows != asked.rows:
        return f"the recording has {recording.rows} rows, the server's record {asked.rows}: give the fitted one"
    return lambda: own.y


def _gate(policies: Sequence[Path], server: Server) -> QuestionGate | None:
    if not policies:
        return None
    given = {policy.unit: policy for policy in map(Policy.read, policies)}
    for name in given:
        server.unit(name)
    known = {name: given.get(name, Policy(name)) for name in server.names}
    return QuestionGate(known, {unit.name: unit.input_names for unit in server.units})


# ---- a federation between machines


def _federated(folder: Path) -> Opened:
    from counterflow.federation import plant
    from counterflow.federation.parts import FOLDER, UNIT_FILE
    from counterflow.federation.sites import party

    if not (folder / party.FILE).is_file():
        inside = [place.parent for place in sorted(folder.glob(f"*/{SERVER_FILE}"))[:1]]
        hint = f" Did you mean {str(inside[0])!r}?" if inside else ""
        raise StorageError(
            f"{str(folder)!r} is no saved fit (it has no {SERVER_FILE}) and no folder of a plant or coordinator of a "
            f"federation: give the directory that counterflow fit --out or counterflow federation join made.{hint}"
        )
    if party.role(folder) != party.PLANT:
        return _coordinator(folder)
    view = plant(folder)
    seat = plant_seat(view)
    file = folder / FOLDER / view.job_id / UNIT_FILE
    return Opened(f"{view.unit}, job {view.job_id}", {seat.id: seat}, file)


def plant_seat(view: PlantView) -> Seat:
    """A plant's point of view of a fit on another machine."""
    return Seat(
        view.unit, view.server, view.parts, view.plant, view.method, view.measurements, caveats=view.part.caveats,
        provenance=view.provenance, calendar=view.calendar,
    )  # fmt: skip


def _coordinator(folder: Path) -> Opened:
    from counterflow.federation.parts import FOLDER, finished_fits
    from counterflow.federation.sites.coordinator_folder import CoordinatorFolder

    home = CoordinatorFolder.open(folder).folder
    fits = finished_fits(home)
    if not fits:
        raise StorageError(f"the coordinator of {str(folder)!r} has no finished fit: run counterflow federation fit.")
    found = _saved(home / FOLDER / fits[-1], None, ())
    return replace(found, title=f"job {fits[-1]}")
