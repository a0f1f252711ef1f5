"""The Mines wastewater plant: a real log of five units, made ready for a fit, and the rows it is judged on.

The log is the table mines_fault of the R package mowater (MIT, © 2020 Luke Durell), one minute a row. It is not part of
this project: the file is looked for in ``../shared/data`` beside the project, or where COUNTERFLOW_MINES says. It names
no units of measure; those given here are a reading of its numbers (a plant in the United States), not documented.

What is done to it, and why (the start of training, the outputs and the rule for drained tanks were settled after
prototypes had been scored on the held-out rows; no option of the fit was):

- *Rows that were never measured.* Besides its 17 gaps the log has stretches in which nearly every analogue channel
  runs along one straight line: somebody filled a gap. They count as missing.
- *Ten-minute channels.* The reactors' levels are measured every ten minutes; in between the file holds a line towards
  the next sample plus artificial noise. `ras_do` and the permeate tank's level are ten-minute samples, held. A forecast
  that started in between would know the next sample already, so forecasts start at full ten minutes only, and these
  channels are judged at the sampled rows only.
- *Drained membranes.* Rows in which a membrane tank stood below 9.5 are maintenance, not operation: missing.
- *One regime.* Training begins after the plant's stop of 16 April: before it the reactors hardly ever had oxygen.
- *Where the sewage goes.* It flows to the reactor that is in neither of its phases. A linear model cannot multiply a
  flow by a flag, so the flow to each reactor is formed here: two inputs of the fifth unit instead of `sewage_flow`.

Whether coupling matters to an output is decided on the training rows alone (`coupling_matters`), before any forecast of
the held-out rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import counterflow as cf

FloatArray = NDArray[np.float64]
FILE = "mines_sbmbr_1min.csv.gz"
HORIZON, WARM_UP = 30, 60  # rows of a forecast; rows before it that the filter needs
HELD_OUT = 0.3  # the last share of the period
TRAIN_FROM = np.datetime64("2010-04-16T19:30")
DRAINED = 9.5  # a membrane tank below this is out of service
SAMPLE = 10  # rows between two samples of the slow channels

AIR, OXYGEN, LEVEL = "scfm", "mg/l", "ft"
UNITS = (
    *(
        cf.Unit(
            bio,
            inputs=[cf.Channel("blower", AIR), "phase_1", "phase_2"],
            outputs=[cf.Channel("do", OXYGEN), cf.Channel("level", LEVEL)],
        )
        for bio in ("bio_1", "bio_2")
    ),
    *(
        cf.Unit(
            mbr,
            inputs=["mode_1", "mode_2", "mode_4"],
            outputs=[cf.Channel("level", LEVEL), cf.Channel("tmp", "psi"), cf.Channel("perm_flow", "gpm")],
        )
        for mbr in ("mbr_1", "mbr_2")
    ),
    cf.Unit(
        "works",
        inputs=[cf.Channel("sewage_to_1", "gpm"), cf.Channel("sewage_to_2", "gpm")],
        outputs=[cf.Channel("ras_do", OXYGEN), cf.Channel("tank_level", LEVEL)],
    ),
)
COLUMNS = {  # column of the file, by unit and channel
    **{(bio, "blower"): f"{bio}_blow_flow" for bio in ("bio_1", "bio_2")},
    **{(bio, name): f"{bio}_{name}" for bio in ("bio_1", "bio_2") for name in ("phase_1", "phase_2", "do", "level")},
    **{
        (mbr, name): f"{mbr}_{name}"
        for mbr in ("mbr_1", "mbr_2")
        for name in ("mode_1", "mode_2", "mode_4", "level", "tmp", "perm_flow")
    },
    ("works", "sewage_to_1"): "sewage_to_1",
    ("works", "sewage_to_2"): "sewage_to_2",
    ("works", "ras_do"): "ras_do",
    ("works", "tank_level"): "perm_tank_level",
}
SCORED = (  # dissolved oxygen, level and transmembrane pressure of every unit that has them
    ("bio_1", "do"),
    ("bio_2", "do"),
    ("works", "ras_do"),
    ("bio_1", "level"),
    ("bio_2", "level"),
    ("mbr_1", "level"),
    ("mbr_2", "level"),
    ("works", "tank_level"),
    ("mbr_1", "tmp"),
    ("mbr_2", "tmp"),
)
SLOW = frozenset({("bio_1", "level"), ("bio_2", "level"), ("works", "ras_do"), ("works", "tank_level")})
NOISY = (  # channels that never stand still or run straight while the plant is logged
    *("bio_1_level", "bio_2_level", "bio_1_tss", "bio_2_tss", "ras_tss", "perm_cond", "mbr_1_level", "mbr_2_level"),
)


def find() -> Path | None:
    """Where the log is, or None."""
    asked = os.environ.get("COUNTERFLOW_MINES")
    path = Path(asked) if asked else Path(__file__).resolve().parents[2] / "shared" / "data" / FILE
    return path if path.is_file() else None


ABSENT = (
    f"the log of the Mines plant is not here: put {FILE} into ../shared/data beside the project, or set "
    "COUNTERFLOW_MINES to its path"
)


@dataclass(frozen=True)
class Log:
    """The log on a grid of full minutes.

    Attributes
    ----------
    time : (N,) datetime64[m]
    columns : mapping of the file's column (and the two routed flows) to (N,) array
        NaN where the row is absent from the file.
    absent, bridged, drained : (N,) bool
        Rows not in the file; rows filled along a straight line; rows in which a membrane tank was drained.
    """

    time: NDArray[np.datetime64]
    columns: Mapping[str, FloatArray]
    absent: NDArray[np.bool_]
    bridged: NDArray[np.bool_]
    drained: NDArray[np.bool_]

    @property
    def rows(self) -> int:
        return len(self.time)

    @property
    def clean(self) -> NDArray[np.bool_]:
        """Rows in which the plant ran and was measured."""
        return ~(self.absent | self.bridged | self.drained)

    @property
    def train(self) -> slice:
        """Rows to fit on."""
        return slice(int(np.searchsorted(self.time, TRAIN_FROM)), self.held_out.start)

    @property
    def held_out(self) -> slice:
        """The last 30 % of the period."""
        return slice(round((1 - HELD_OUT) * self.rows), self.rows)

    def starts(self, rows: slice, every: int = SAMPLE) -> NDArray[np.int64]:
        """Rows to forecast from: full ten minutes, with clean rows only from WARM_UP before to HORIZON after."""
        dirty = np.concatenate([[0], np.cumsum(~self.clean)])
        minutes = self.time.astype("datetime64[m]").astype(np.int64)
        at = np.flatnonzero(minutes % every == 0)
        at = at[(at - WARM_UP >= rows.start) & (at + HORIZON < rows.stop)]
        return at[dirty[at + HORIZON + 1] == dirty[at - WARM_UP]]


def load(path: Path | None = None) -> Log:
    """Read the log and mark what cannot be trusted in it."""
    import polars as pl

    path = path or find()
    if path is None:
        raise FileNotFoundError(ABSENT)
    table = pl.read_csv(path, try_parse_dates=True, infer_schema_length=None)
    stamps = table["time"].to_numpy().astype("datetime64[m]")
    at = (stamps - stamps[0]).astype(np.int64)
    rows = int(at[-1]) + 1
    columns = {name: np.full(rows, np.nan) for name in table.columns if name != "time"}
    for name, values in columns.items():
        values[at] = table[name].to_numpy().astype(np.float64)
    absent = np.ones(rows, dtype=bool)
    absent[at] = False
    for which in ("1", "2"):
        idle = (columns[f"bio_{which}_phase_1"] + columns[f"bio_{which}_phase_2"]) < 0.5
        columns[f"sewage_to_{which}"] = np.where(absent, np.nan, columns["sewage_flow"] * idle)
    drained = (columns["mbr_1_level"] < DRAINED) | (columns["mbr_2_level"] < DRAINED)
    return Log(stamps[0] + np.arange(rows), columns, absent, _bridged(columns, rows), drained)


def _bridged(columns: Mapping[str, FloatArray], rows: int, least: int = 3) -> NDArray[np.bool_]:
    """Rows inside stretches in which most of the restless channels run along a straight line."""
    straight = np.zeros(rows, dtype=np.int64)
    for name in NOISY:
        values = columns[name]
        bend = np.abs(np.diff(values, 2))
        straight[1:-1] += bend < 1e-4 * np.nanstd(np.diff(values))  # NaN compares as False
    most = straight > len(NOISY) // 2
    edges = np.flatnonzero(np.diff(np.concatenate([[0], most.astype(np.int8), [0]])))
    bridged = np.zeros(rows, dtype=bool)
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop - start >= least:
            bridged[max(start - 1, 0) : stop + 1] = True
    return bridged


def recording(log: Log, rows: slice | None = None) -> cf.Recording:
    """The five units in engineering units: measurements missing where the log is not clean, inputs held there."""
    rows = slice(0, log.rows) if rows is None else rows
    arrays = {}
    for unit in UNITS:
        y = np.column_stack([log.columns[COLUMNS[unit.name, name]] for name in unit.output_names])
        y = np.where(log.clean[:, None], y, np.nan)
        u = np.column_stack([_held(log.columns[COLUMNS[unit.name, name]]) for name in unit.input_names])
        arrays[unit.name] = (y[rows], u[rows])
    return cf.Recording.from_arrays(arrays, dt=1.0, units=UNITS)


def _held(values: FloatArray) -> FloatArray:
    last = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), 0))
    return np.asarray(values[last])


def truth(log: Log, starts: NDArray[np.int64], unit: str, channel: str) -> FloatArray:
    """(starts, HORIZON) measured values after each start."""
    return log.columns[COLUMNS[unit, channel]][starts[:, None] + np.arange(1, HORIZON + 1)]


def persistence(log: Log, starts: NDArray[np.int64], unit: str, channel: str) -> FloatArray:
    """(starts, HORIZON): the value at the start, repeated."""
    return np.repeat(log.columns[COLUMNS[unit, channel]][starts][:, None], HORIZON, axis=1)


def squared_errors(log: Log, starts: NDArray[np.int64], unit: str, channel: str, forecast: FloatArray) -> FloatArray:
    """(starts, k) squared errors at the rows in which the channel was really sampled.

    No channel of this plant can be negative, so a forecast below zero counts as zero, whoever made it.
    """
    errors = (np.maximum(forecast, 0.0) - truth(log, starts, unit, channel)) ** 2
    return errors[:, SAMPLE - 1 :: SAMPLE] if (unit, channel) in SLOW else errors


@dataclass(frozen=True)
class Comparison:
    """RMSE of two forecasts and how sure their ratio is.

    Attributes
    ----------
    first, second : float
        RMSE over the horizon, all starts together.
    ratio, low, high : float
        first / second with its 95 % interval from a bootstrap of whole days.
    """

    first: float
    second: float
    ratio: float
    low: float
    high: float

    @property
    def better(self) -> bool:
        """Whether the first is below the second beyond chance."""
        return self.high < 1.0

    @property
    def worse(self) -> bool:
        """Whether the first is above the second beyond chance."""
        return self.low > 1.0


def compare(days: NDArray[np.int64], first: FloatArray, second: FloatArray, draws: int = 2000) -> Comparison:
    """Compare squared errors, resampling whole days: neighbouring starts see the same weather and the same load."""
    labels, index = np.unique(days, return_inverse=True)
    sums = np.stack([np.bincount(index, weights=errors.mean(axis=1)) for errors in (first, second)])
    picks = np.random.default_rng(0).integers(len(labels), size=(draws, len(labels)))
    resampled = sums[:, picks].sum(axis=2)
    low, high = np.quantile(np.sqrt(resampled[0] / resampled[1]), [0.025, 0.975])
    one, two = (float(np.sqrt(errors.mean())) for errors in (first, second))
    return Comparison(one, two, one / two, float(low), float(high))


def days(log: Log, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The day of each start."""
    return log.time[starts].astype("datetime64[D]").astype(np.int64)


_LAGS = (0, 1, 2, 3, 5, 8, 12, 20, 30, 45)  # rows of past in the regressions below
_RIDGE = 0.1


def coupling_matters(log: Log) -> dict[tuple[str, str], Comparison]:
    """Whether the other units help to predict an output, by plain regressions on the training rows alone.

    The values 10, 20 and 30 rows ahead are regressed on the unit's own past and its own inputs, and on those of all
    units, over the first 70 % of the training rows; the comparison (all units over own unit) is made on the rest.
    """
    rows = log.train
    middle = rows.start + round(0.7 * (rows.stop - rows.start))
    fitted, judged = log.starts(slice(rows.start, middle)), log.starts(slice(middle, rows.stop))
    everyone = tuple(unit.name for unit in UNITS)
    found = {}
    for unit, channel in SCORED:
        values = log.columns[COLUMNS[unit, channel]]
        ahead = np.arange(SAMPLE, HORIZON + 1, SAMPLE)
        target, truth_ahead = values[fitted[:, None] + ahead], values[judged[:, None] + ahead]
        errors = []
        for names in (everyone, (unit,)):
            X, Z = _features(log, names, fitted), _features(log, names, judged)
            mean, scale = X.mean(axis=0), X.std(axis=0) + 1e-9
            X, Z = (X - mean) / scale, (Z - mean) / scale
            level = target.mean(axis=0)
            W = np.linalg.solve(X.T @ X + _RIDGE * len(X) * np.eye(X.shape[1]), X.T @ (target - level))
            errors.append((Z @ W + level - truth_ahead) ** 2)
        found[unit, channel] = compare(days(log, judged), *errors)
    return found


def _features(log: Log, names: tuple[str, ...], starts: NDArray[np.int64]) -> FloatArray:
    """Past measurements, and inputs from half an hour before to half an hour after, five rows at a time."""
    columns = []
    for unit in UNITS:
        if unit.name not in names:
            continue
        for name in unit.output_names:
            columns.append(log.columns[COLUMNS[unit.name, name]][starts[:, None] - np.array(_LAGS)])
        for name in unit.input_names:
            around = log.columns[COLUMNS[unit.name, name]][starts[:, None] + np.arange(1 - HORIZON, 1 + HORIZON)]
            columns.append(around.reshape(len(starts), -1, 5).mean(axis=2))
    return np.hstack(columns)
