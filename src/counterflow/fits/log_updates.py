"""New rows for a fit from logs: the units keep the basis of their numbers, the server its stream of rows.

See ``counterflow.learning.stream`` for what an update learns. What costs more (the search for features, the linear
part as a state-space system, the checks) is done again when features are chosen anew; in between, answers come from
weights that follow every row, and the rest is that of the last time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from counterflow import wording
from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, distinct, scope_of
from counterflow.checks import failed_checks
from counterflow.errors import DataError, PrivacyError
from counterflow.exchange.log_rows import learned_system, network_status
from counterflow.exchange.outcome import Couplings, Provenance
from counterflow.exchange.part import plant_of, sufficient_messages
from counterflow.fits.engine import Traffic
from counterflow.learning.block_moments import Rows
from counterflow.learning.network import Network
from counterflow.learning.network_learning import Learning
from counterflow.learning.regime_sums import later
from counterflow.learning.stream import KEPT, TAIL, Stream, begun, continued
from counterflow.learning.system import system_of
from counterflow.plant import Recording
from counterflow.privacy import Privacy
from counterflow.protocol import encoded_size
from counterflow.questions.answering import Server

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit

SIGNS = 8  # entries of rows that have moved and are the same again: so many are no chance
LOOKED = 300  # last rows, of which none may be half as far from its prediction
FAR = 2.0  # as the first new one: else it may not follow
NOT_FOLLOWING = "rows-may-not-follow"
LASTING = frozenset({NOT_FOLLOWING, "input-alignment", "alignment-unsure"})  # caveats that later rows do not change


@dataclass(frozen=True, eq=False)
class NewRows:
    """What the units send of new rows, beside what the server has.

    ``numbers`` (k, r), NaN: missing; ``inputs`` (k, U) as departures; ``tail`` (TAIL, m): the rows just before, without
    gaps. Inputs of the last row before that act on their own row are known only now, and stand there.
    """

    before: Server
    network: Network
    numbers: FloatArray
    inputs: FloatArray
    tail: FloatArray

    @classmethod
    def of(cls, fit: Fit, later: Server, recording: Recording) -> NewRows:
        before, couplings = fit.server, fit.couplings
        assert couplings is not None
        network, stream = couplings.network, couplings.stream
        assert network is not None
        tail = (before.grounded.newest(TAIL) if stream is None else stream.tail).copy()
        for name, point in fit.points.items():
            if point.same_row:
                own = before.input_slices[name]
                acting = recording[name].u[0] - point.input_level
                tail[-1, network.size + own.start : network.size + own.stop] = acting
        return cls(before, network, later.grounded.numbers, later.u, tail)

    @property
    def z(self) -> FloatArray:
        """(k, m)."""
        return np.hstack([self.numbers, self.inputs])

    @property
    def u(self) -> FloatArray:
        """Inputs of all rows that are kept, and of the new ones."""
        return np.vstack([self.before.u[:-1], self.tail[-1:, self.network.size :], self.inputs])

    def all_rows(self, total: int) -> Rows:
        """The rows that are kept and the new ones, of ``total`` rows of the whole record."""
        network, u = self.network, self.u
        z = np.hstack([np.vstack([self.before.grounded.numbers, self.numbers]), u])
        return Rows(network.names, network.numbers, network.inputs, z, total - len(z))


def followed(fit: Fit, recording: Recording, privacy: Privacy | None) -> Fit:
    """``Fit.update`` of a fit from logs."""
    if privacy is not None:
        raise PrivacyError(
            "update: a fit from logs takes in no private rows: how far they would be off is not known. Give models, or "
            "leave privacy out",
            code="private-logs",
        )
    messages = sufficient_messages(fit.parts, fit.plant.names, recording)
    new = NewRows.of(fit, fit.server.about(messages), recording)
    again, stream = _with_rows(fit, new)
    size = sum(encoded_size(message) for message in messages)
    digest = hashlib.sha256((fit.provenance.data_digest + recording.digest).encode()).hexdigest()
    couplings = again.couplings
    assert couplings is not None
    again = replace(
        again, couplings=_newest(couplings, stream),
        status=replace(again.status, message=f"{again.status.message}; {stream}"),
        traffic=Traffic(fit.traffic.rounds + 1, fit.traffic.bytes_up + size, fit.traffic.bytes_down),
        provenance=Provenance.of(__version__, fit.provenance.seed, digest, fit.method, {"after": fit.provenance.id}),
    )  # fmt: skip
    if stream.chosen < stream.rows:
        return again
    return replace(again, server_caveats=distinct((*again.server_caveats, *failed_checks(again.server, again.status))))


def _newest(couplings: Couplings, stream: Stream) -> Couplings:
    """With the rows that are kept, in which the ways of running have other places."""
    shared = couplings.shared.last(stream.kept)
    dropped = len(couplings.shared.values) - len(shared.values)
    regimes = later(couplings.regimes, dropped, len(shared.values)) if couplings.regimes else ()
    return replace(couplings, shared=shared, stream=stream, regimes=regimes)


def _with_rows(fit: Fit, new: NewRows) -> tuple[Fit, Stream]:
    """The fit that has learned from new rows, and what is kept of all rows."""
    couplings, before, network = fit.couplings, new.before, new.network
    assert couplings is not None
    values = before.grounded.values_of(new.numbers)
    refuse_repeated(couplings.shared.values, values)
    caveats = [c for c in fit.server_caveats if c.code != NOT_FOLLOWING]
    caveats += _far_from_foretold(network, before.grounded.newest(network.memory + LOOKED), new.tail, new.numbers[0])
    stream = couplings.stream
    if stream is not None:
        stream = stream.followed(network, new.tail, new.z)
        if not stream.due:
            stream, network = stream.refreshed(network)
            shared = couplings.shared.joined(values, new.u)
            couplings = replace(couplings, network=network, shared=shared)
            status = network_status(network)
            return replace(fit, couplings=couplings, status=status, server_caveats=tuple(caveats)), stream
        rows = new.all_rows(stream.rows)
        stream, learned = stream.chosen_anew(rows, network.known)
    else:
        rows = new.all_rows(before.rows + len(new.inputs))
        tail = continued(network, new.tail, new.z)[-TAIL:]
        stream, learned = begun(rows, network.known, tail, max(KEPT, before.rows))
    again = _realised_again(fit, rows, learned, stream)
    lasting = [caveat for caveat in caveats if caveat.code in LASTING]
    return replace(again, server_caveats=(*again.server_caveats, *lasting)), stream


def _realised_again(fit: Fit, rows: Rows, learned: Learning, stream: Stream) -> Fit:
    """The fit with what was learned anew: its linear part as a system, and with it the units' blocks."""
    system = system_of(rows, learned)
    couplings, status, notes = learned_system({unit.name: unit.input_names for unit in fit.plant.units}, system)
    if rows.first:
        couplings, notes = _without_new_doubts(couplings, notes, fit)
    found, record = system.found, system.record
    blocks = zip(record.names, record.state_slices, record.input_slices, rows.numbers, strict=True)
    parts = {
        name: fit.parts[name].with_blocks(found.A[own, own], found.B[own, mine], found.Q[own, own], count)
        for name, own, mine, count in blocks
    }
    return replace(
        fit, server_caveats=notes, parts={name: parts[name] for name in fit.parts}, couplings=couplings,
        plant=plant_of(parts, found.A, found.B, found.Q, fit.plant.dt), status=status,
    )  # fmt: skip


def _without_new_doubts(
    couplings: Couplings, notes: tuple[Caveat, ...], fit: Fit
) -> tuple[Couplings, tuple[Caveat, ...]]:
    """What earlier rows have determined stays so, though they are no longer kept."""
    assert fit.couplings is not None
    doubted = {(doubt.effect, doubt.cause, doubt.letter, doubt.channels) for doubt in fit.couplings.doubts}
    still = [d for d in couplings.doubts if (d.effect, d.cause, d.letter, d.channels) in doubted]
    gone = {doubt.caveat for doubt in couplings.doubts} - {doubt.caveat for doubt in still}
    return replace(couplings, doubts=tuple(still)), tuple(note for note in notes if note not in gone)


def refuse_repeated(old: FloatArray, new: FloatArray) -> None:
    """DataError if messages (k, r) begin with some of those (T, r) that were taken in already.

    Rows that are alike by chance, because nothing moves or readings are coarse, are no sign: ``SIGNS`` entries must
    have moved, and be the same again.
    """
    near = 1e-9 * np.nan_to_num(old).std(axis=0)
    for at in np.flatnonzero((np.abs(old - new[0]) <= near).all(axis=1)).tolist():
        count = min(len(old) - at, len(new))
        same = (np.abs(old[at : at + count] - new[:count]) <= near) | np.isnan(old[at : at + count] + new[:count])
        moved = np.abs(np.diff(old[max(at - 1, 0) : at + count], axis=0)) > near
        if same.all() and moved.sum() >= SIGNS:
            remedy = "give rows that follow" if count == len(new) else f"give recording.slice({len(old) - at})"
            raise DataError(
                f"update: the first {count} rows of the recording were taken in already: {remedy}", code="rows-repeated"
            )


def _far_from_foretold(network: Network, last: FloatArray, tail: FloatArray, numbers: FloatArray) -> list[Caveat]:
    """Whether the first new row is much further from its prediction than any of the last ones was from theirs.

    ``last`` (n, m): these. ``tail``: the rows just before the new one, whose numbers are (r,).
    """
    r, p = network.size, network.memory
    z = (last - network.level) / network.scale
    foretold = network.predict_row((tail[-p:] - network.level) / network.scale)
    first = np.nan_to_num((numbers - network.level[:r]) / network.scale[:r] - foretold)
    gaps = np.vstack([z[p:, :r] - network.mean.predicted(z)[0], first])
    distance = np.sqrt(np.einsum("ti,ij,tj->t", gaps, np.linalg.inv(network.noise), gaps))
    usual = distance[:-1].max(initial=0.0)
    if not distance[-1] > FAR * usual > 0:
        return []
    text = (
        f"the first row of an update is {wording.number(distance[-1] / usual)} times further from what the rows before "
        f"it foretell than any of the last {LOOKED} rows was: if rows are missing in between, fit again "
        "with these as missing"
    )
    return [Caveat(NOT_FOLLOWING, scope_of(network.names), text)]
