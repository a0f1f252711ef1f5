"""What a fit holds, split as trust is split, and the answers it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import block_diagonal
from counterflow.caveats import Caveat, by_weight
from counterflow.control import Law
from counterflow.control.controller import Controller
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.exchange.controllers import UnitControllers, with_laws
from counterflow.exchange.estimators import Estimator
from counterflow.exchange.outcome import Couplings, Provenance, StandardErrors, Status
from counterflow.exchange.part import UnitPart, sufficient_messages
from counterflow.exchange.privacy import PrivacyReport
from counterflow.exchange.task import UnitData
from counterflow.fits import storage
from counterflow.fits.engine import Traffic
from counterflow.fits.history import History
from counterflow.learning.influence import InfluenceGraph
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.predictor import Predictor
from counterflow.learning.regime_sums import Regime
from counterflow.learning.uncertainty import Uncertainty
from counterflow.plant import LocalModel, OperatingPoint, Plant, Recording
from counterflow.plant.calendar import Calendar, as_steps
from counterflow.plant.units import refuse_other_channels
from counterflow.privacy import Privacy
from counterflow.questions.answering import Server
from counterflow.questions.asking import Questions, Source
from counterflow.questions.closed_loop import never_moved

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.checks import Checks
    from counterflow.fits.validation import Validation
    from counterflow.questions.question import Request


@dataclass(frozen=True, eq=False, repr=False)
class Fit(Questions):
    """A fitted federation.

    ``plant`` is the estimated plant; ``parts`` holds what stays at each unit; ``history``, ``traffic``, ``status`` and
    ``provenance`` tell how it came about.
    """

    method: str
    plant: Plant
    parts: Mapping[str, UnitPart]
    history: History
    traffic: Traffic
    status: Status
    provenance: Provenance
    server_caveats: tuple[Caveat, ...] = field(default=())  # they travel with every answer
    couplings: Couplings | None = field(default=None, repr=False)
    privacy: PrivacyReport | None = field(default=None, repr=False)
    calendar: Calendar | None = None  # when the fitted rows were, where that is known
    _kept: dict[str, bool] = field(default_factory=dict, repr=False, init=False)  # whether its loops settle

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """What answers must be read with: the server's caveats, and each unit's own, the heaviest first."""
        return by_weight((*self.server_caveats, *(c for part in self.parts.values() for c in part.caveats)))

    @property
    def log_likelihood(self) -> float:
        """Of the data that the server has seen (NaN for the published methods)."""
        return float("nan") if self.couplings is None else self.couplings.found.log_likelihood

    @cached_property
    def standard_errors(self) -> StandardErrors:
        """Standard errors of A and B."""
        return StandardErrors(*self.uncertainty.standard_errors)

    @property
    def uncertainty(self) -> Uncertainty:
        """Covariance of the estimated couplings."""
        if self.couplings is None:
            raise OptionError(f"method {self.method!r} gives no uncertainty; fit with method='sufficient'")
        if self.couplings.model.learned:
            raise OptionError(
                "a fit from logs has no couplings of states with standard errors; its effects and its graph have "
                "intervals: ask for them"
            )
        if self.couplings.spread is None:
            raise OptionError(
                "standard errors were not computed for this fit (it did not converge, it has too many couplings, or "
                "uncertainty=False was given): see its status; fit with uncertainty=True, or fewer units at once"
            )
        return self.couplings.spread

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """Ways of running of the fitted rows, in order: one, or more where the plant changed (fits from logs).

        Each has ``start``, ``stop`` (rows) and ``units``, those that changed in its first row.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> for regime in cf.fit(plant.simulate(400, rng=2)).regimes:
        ...     print(regime)
        rows 0 to 400
        """
        if self.couplings is None or not self.couplings.regimes:
            return (Regime(0, self.server.rows),)
        if self.calendar is None:
            return self.couplings.regimes
        return tuple(replace(each, begins=self.calendar.shown(each.start)) for each in self.couplings.regimes)

    @property
    def learners(self) -> dict[str, float]:
        """What each learner was worth: its share of the ensemble that answers (fits from logs; else empty).

        Shares are those with which the learners' free runs over held-out rows, so long that only what inputs did is
        foretold, err least together.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> cf.fit(plant.simulate(400, rng=2)).learners
        {'sparse network': 1.0}
        """
        return {} if self.couplings is None else self.couplings.model.learners

    @property
    def known_edges(self) -> KnownEdges | None:
        """Which direct couplings between units were allowed (``edges``, ``forbidden``); None: all.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine", "condenser"], topology="chain", rng=1)
        >>> known = [("boiler", "turbine"), ("turbine", "condenser")]
        >>> found = cf.fit(plant.simulate(500, rng=2), plant.locals(), edges=known)
        >>> print(found.known_edges)
        only boiler -> turbine, turbine -> condenser
        >>> found.graph().edge("turbine", "boiler").possible
        False
        """
        return None if self.couplings is None else self.couplings.model.known

    def graph(self, rate: float = 0.05) -> InfluenceGraph:
        """Which unit acts on which, with false-discovery rate ``rate``.

        With models: block tests of A_mn and B_mn. From logs: the share of replicates that have the coupling, and what
        would be lost without it (``counterflow.learning.influence.network_graph``).

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine", "condenser"], topology="chain", rng=1)
        >>> found = cf.fit(plant.simulate(3000, rng=2), plant.locals())
        >>> found.graph().direct()
        (('boiler', 'turbine'), ('turbine', 'condenser'))
        >>> found.graph().edge("boiler", "condenser").reaches
        True
        """
        if not 0 < rate < 1:
            raise OptionError(f"graph: rate must lie between 0 and 1, got {rate!r}")
        if self.couplings is None or not self.couplings.model.told:
            _ = self.uncertainty  # it says why there is none
        assert self.couplings is not None
        return self.couplings.model.graph(rate)

    def update(self, recording: Recording, privacy: Privacy | None = None) -> Fit:
        """A new fit that takes in new rows without going over the past ones again.

        ``recording`` continues the fitted one without a gap: its row 0 follows the last row. The cost grows with the
        new rows only. With models, what the past said is kept as a quadratic around the estimate, so the result is that
        of a fit of all rows up to terms of order 1/T; process noise stays as it is. From logs, sums over all rows are
        kept: weights follow every row, features are chosen anew when there are a tenth more rows, and then the result
        is that of a fit of all rows, in the bases that the units have chosen at the first. The newest 10,000 rows are
        kept, or as many as the first fit had; caveats of checks are those of the last time that features were chosen.
        By moments, each recording is a window of its own, which need not follow: what each has told is joined.

        Whatever a fit can be asked, an updated one can: it is saved, loaded and updated again.

        Raises
        ------
        DataError
            With code "rows-repeated": the recording begins with rows that were taken in already.

        ``privacy``: make the messages of the new rows private, whether the fitted ones were or not. A private fit takes
        in new rows only so. With a ledger, give ``start``: rows that do not overlap do not add up.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=2, rng=1)
        >>> recording = plant.simulate(2000, rng=2)
        >>> found = cf.fit(recording.slice(0, 1500), plant.locals()).update(recording.slice(1500, 2001))
        >>> found.status.converged
        True
        """
        from counterflow.fits.updating import updated

        found = updated(self, recording, privacy)
        if recording.calendar is None:
            return replace(found, calendar=None)
        # rows that are kept are counted from the first of them: the new ones are the last
        return replace(found, calendar=recording.calendar.later(recording.rows - found.server.rows))

    def predictor(self) -> Predictor:
        """One-step predictor at the server, standing after the last row of the fitted recording, or of its updates.

        ``predictor, states = predictor.step(values, inputs)`` takes each unit's newest message (``UnitPart.message``)
        and input, and returns each unit's own predicted state; ``UnitPart.measurement`` makes measurements of it.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], topology="chain", rng=1)
        >>> recording = plant.simulate(1000, rng=2)
        >>> found = cf.fit(recording.slice(0, 900))
        >>> predictor, boiler = found.predictor(), found.parts["boiler"]
        >>> misses = []
        >>> for t in range(900, 1000):
        ...     misses.append(recording["boiler"].y[t] - boiler.measurement(predictor.predicted[: boiler.unit.states]))
        ...     messages = {name: part.message(recording[name].y[t]) for name, part in found.parts.items()}
        ...     predictor, states = predictor.step(messages, {name: recording[name].u[t] for name in found.names})
        >>> bool(np.std(misses) < 0.7 * recording["boiler"].y.std())
        True
        """
        if self.couplings is None:
            raise OptionError(f"method {self.method!r} has no predictor; fit with method='sufficient'")
        if self.privacy is not None:
            raise PrivacyError(
                "predictor: this fit is private, and a predictor lives on messages row by row, as they are"
            )
        if not self.server.has_rows:
            raise OptionError("predictor: this fit rests on moments, and knows no row to stand after; use 'sufficient'")
        points = [self.server.point(name) for name in self.plant.names]
        return self.couplings.model.on(self.couplings.shared).predictor(
            block_diagonal([self.parts[name].squeezed.observation for name in self.plant.names]),
            np.concatenate([point.input_level for point in points]),
            np.concatenate([np.full(len(point.input_level), point.same_row) for point in points]),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.parts)

    def summary(self) -> str:
        """A table of what the fit rests on and how it ended, and of its couplings with their errors.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], topology="chain", rng=1)
        >>> print(cf.fit(plant.simulate(1000, rng=2), plant.locals()).summary())  # doctest: +ELLIPSIS
                                       Counterflow fit
        ==============================================================================
        Method:         sufficient, models of units given
        Units:          2: boiler, turbine
        Rows:           1001 rows
        Converged:      yes: converged in ...
        """
        from counterflow.fits import summary

        return summary.text(self)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        from counterflow.fits import summary

        return summary.short(self)

    def _repr_html_(self) -> str:
        from counterflow.fits import summary

        return summary.page(self)

    def plot(self) -> Figure:
        """A matplotlib Figure: the training record of a published method, or else the estimated couplings."""
        from counterflow.fits.plots import couplings_figure, history_figure

        return history_figure(self.history) if len(self.history) else couplings_figure(self)

    def save(self, directory: str | Path) -> None:
        """Write the fit to a directory, split as trust is split; ``counterflow.load`` reads it back."""
        storage.save(self, directory)

    def check(
        self, recording: Recording | None = None, horizon: int | str = 30, local: Mapping[str, LocalModel] | None = None
    ) -> Checks:
        """What speaks against the answers: excitation, whiteness, stability, feedback, drift, free run.

        Parameters
        ----------
        recording : check on these rows instead of those that the fit rests on (held-out rows are the better judge).
        horizon : rows of the free run, or a duration such as "2h".
        local : {unit: LocalModel} of models that know only their own unit, to compare free runs with; default: the
            unit's own blocks without couplings.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> recording = plant.simulate(3000, rng=2)
        >>> found = cf.fit(recording.slice(0, 2000), plant.locals())
        >>> found.check(recording.slice(2000, 3001)).verdict
        'pass'
        """
        from counterflow.checks import check

        return check(self, recording, as_steps(horizon, self.plant.dt, "check: horizon"), local)

    @cached_property
    def server(self) -> Server:
        """The server's part of the fit: all that a unit needs to ask, besides its own part."""
        couplings, plant = self.couplings, self.plant
        Q, shared = (plant.Q, None) if couplings is None else (couplings.found.Q, couplings.shared)
        units = tuple(unit.public for unit in plant.units)
        return Server(self.method, units, plant.A, plant.B, Q, couplings, shared, self.server_caveats, self.points)

    def source(self, question: type[Request], recording: Recording | None) -> Source:
        """The server; for questions about rows, with what the units send it of a recording."""
        if not (question.of_past or question.after_record):
            told = question.of_worlds or question.held_only
            return Source(self.running(self.server, None) if told else self.server, lambda name: None)
        server = self.about(recording)
        server = self.running(server, recording) if question.of_worlds else server
        return Source(server, lambda name: recording[name].y)  # type: ignore[index]

    def running(self, server: Server, recording: Recording | None) -> Server:
        """A server with the units' controllers at hand, for questions that may be about the running plant.

        ``recording``: the rows that the server refers to, where questions are about them. A private fit has no
        controllers: what one would do tells what it reads.
        """
        if self.privacy is not None or server.shared is None:
            return server
        if not any(part.controllers for part in self.parts.values()):
            return server
        reactors = {}
        for name, part in self.parts.items():
            rows = None if recording is None else recording[name]
            elsewhere = {} if recording is None else recording.readings(each.loop for each in part.controllers)
            y, u = (None, None) if rows is None else (rows.y, rows.u)
            reactors[name] = UnitControllers(part, self.plant.dt, y, u, elsewhere)
        return server.running(reactors, self._kept)

    def with_laws(self, laws: Mapping[str, Mapping[str, Law]]) -> Fit:
        """The same plant with other controllers, for questions such as "what if this loop were in manual".

        ``laws`` is {unit: {input: law}}: ``Manual()`` for a loop that is open, a ``PID`` that is tuned otherwise, or
        any other law. What is asked of the past is then compared with the record, in which the controller had its own
        law; what is asked from now on compares two worlds with the other law. Nothing need be changed beside it. Such
        questions are about the running plant, so that controllers="held" is refused.

        Examples
        --------
        >>> import counterflow as cf
        >>> rng, law = np.random.default_rng(0), cf.PID(1.0, 10.0)
        >>> y, u = np.zeros((400, 1)), np.zeros((400, 2))
        >>> u[:, 1] = np.repeat(rng.uniform(-1, 1, 20), 20)  # the target moves
        >>> for t in range(1, 400):
        ...     y[t] = 0.9 * y[t - 1] + 0.1 * u[t - 1, 0] + 0.1 * rng.standard_normal()
        ...     error = u[[t, t - 1], 1] - y[[t, t - 1], 0]
        ...     u[t, 0] = u[t - 1, 0] + law.gain * (error[0] - error[1] + error[0] / law.integral_time)
        >>> drum = cf.Unit("drum", inputs=["feed", "SP"], outputs=["level"], loops=[cf.Loop("feed", "level", "SP")])
        >>> recording = cf.Recording.from_arrays({"drum": (y, u)}, units=[drum])
        >>> open_loop = cf.fit(recording).with_laws({"drum": {"feed": cf.Manual()}})
        >>> world = open_loop.counterfactual(recording, start=300, stop=350)["drum"]
        >>> print(world.sentence().split(",")[0])
        Had drum feed been in manual in rows 300 to 349 (controllers react)
        """
        parts = dict(self.parts)
        for name, given in laws.items():
            self.plant.unit(name)
            parts[name] = with_laws(parts[name], given)
            for each in parts[name].controllers:
                if each.supposed is not None and each.locked and self.couplings is not None:
                    raise never_moved(f"{name} {each.loop.moves}", name)
        return replace(self, parts=parts)

    @property
    def controllers(self) -> dict[str, tuple[Controller, ...]]:
        """The controllers of every unit that has some: their loops and laws, and how well these tell the record.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> cf.fit(plant.simulate(300, rng=2)).controllers
        {}
        """
        return {name: part.controllers for name, part in self.parts.items() if part.controllers}

    @property
    def points(self) -> dict[str, OperatingPoint]:
        """Operating points of the units that have one: those that were fitted from logs."""
        return {name: part.point for name, part in self.parts.items() if part.point is not None}

    def about(self, recording: Recording | None) -> Server:
        """The server, with what the units send it of a recording."""
        self.check_recording(recording)
        assert recording is not None
        if self.privacy is None:
            kept = self.couplings is not None and self.couplings.memory is None and self.server.has_rows
            if kept and recording.digest == self.provenance.data_digest:  # the server has these rows already
                return self.server
            return self.server.about(sufficient_messages(self.parts, self.plant.names, recording))
        same = all(
            part.rows_digest == UnitData(part.unit, recording[name].y, recording[name].u).digest
            for name, part in self.parts.items()
        )
        if self.couplings is not None and self.couplings.memory is not None:
            raise PrivacyError(
                "this fit is private and has been updated: the server keeps no rows of it to ask about, and new "
                "messages would leave without noise. Ask for effects; questions about a period need a private fit of it"
            )
        if not same or self.couplings is None:
            raise PrivacyError(
                "this fit is private, and a question about these rows would send messages of them without noise. Ask "
                "about the rows that a private fit by method 'sufficient' rests on, which the server has already, or "
                "fit these with privacy=..."
            )
        return self.server

    def check_recording(self, recording: object) -> None:
        """A recording of the same units, with the same channels in the same order, and the same time step."""
        if not isinstance(recording, Recording):
            raise DataError(f"a counterflow.Recording is needed, got {type(recording).__name__}")
        if set(recording.names) != set(self.names):
            raise DataError(f"the recording has units {list(recording.names)}, the fit {list(self.names)}")
        for name, part in self.parts.items():
            refuse_other_channels(part.unit, recording[name].unit, ("the fit", "the recording"), DataError)
        if not np.isclose(recording.dt, self.plant.dt):
            raise DataError(f"the recording has dt {recording.dt:g}, the fit {self.plant.dt:g}: resample it")

    def validate(self, recording: Recording, oracle: Plant | None = None) -> Validation:
        """One-step prediction errors on new data, of each unit's models, the server and (if given) the oracle.

        The units send the server their refined states and inputs (or sufficient messages, if the fit rests on them),
        and get back their own predicted states.
        """
        from counterflow.fits.validation import validate

        return validate(self, recording, oracle)


def load(directory: str | Path, estimators: Mapping[str, Estimator] | None = None) -> Fit:
    """Read what ``save`` wrote; every file is checked before use.

    Parameters
    ----------
    directory : the directory given to ``save``.
    estimators : {name: Estimator}, needed for units whose proprietary estimator was not the default one.

    Raises
    ------
    StorageError
        If a file is missing, damaged, of another fit, or not what it claims to be.

    Examples
    --------
    >>> import tempfile
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> found = cf.fit(plant.simulate(200, rng=2), plant.locals(), method="penalty")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found.save(f"{folder}/fit")
    ...     loaded = cf.load(f"{folder}/fit")
    >>> loaded.names, loaded.status == found.status
    (('boiler', 'turbine'), True)
    """
    return Fit(**storage.load_fields(directory, estimators))
