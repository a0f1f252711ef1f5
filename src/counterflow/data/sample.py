"""A small plant that bends, with ISA tags: the log that ships with the package, and the truth beside it.

Water is fed to a tank (area 1), flows on to a heated tank (area 2), and is dosed with a salt solution in a third (area
3). Levels follow the square root of the head, temperature and concentration are products of flow and difference:
nothing of it is linear. The feed is controlled: operators move the set point of FIC-101, its controller moves the
valve. The heater and the dosing pump are moved by hand.

The file of the package is what a historian would export: with a line about the export, a row of units of measure, words
for bad values, a gap, repeated and swapped rows, and a column of notes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from counterflow.arrays import FloatArray
from counterflow.data.formats.workbook import write_rows
from counterflow.errors import OptionError

ROWS = 2400
STEP = 60.0  # seconds
START = np.datetime64("2024-10-31T20:00:00")
FILE = "plant.csv"
SEED = 7
FORMS = ("wide", "long", "comma", "cp1252", "xlsx", "sql")  # see `write`
INPUTS = {"FIC-101.SP": "m3/h", "TIC-201.OP": "%", "FIC-301.OP": "%"}
OUTPUTS = {
    "FIC-101.PV": "m3/h", "FIC-101.OP": "%", "LI-102.PV": "m", "TIC-201.PV": "°C", "LI-202.PV": "m",
    "AI-302.PV": "g/l", "LI-303.PV": "m",
}  # fmt: skip
UNITS = {"area_1": "1", "area_2": "2", "area_3": "3"}
_NOISE = {
    "FIC-101.PV": 0.05, "FIC-101.OP": 0.0, "LI-102.PV": 0.004, "TIC-201.PV": 0.06, "LI-202.PV": 0.004,
    "AI-302.PV": 0.03, "LI-303.PV": 0.004,
}  # fmt: skip
_SUBSTEPS = 6
_AREA, _OUT = (1.2, 1.5, 1.0), (8.0, 8.5, 9.0)  # m², and m³/h through an outlet at a head of 1 m


@dataclass(frozen=True)
class SampleLog:
    """A simulated log: columns by tag, all (rows,), without noise of measurement in `clean`."""

    columns: Mapping[str, FloatArray]
    clean: Mapping[str, FloatArray]

    @property
    def times(self) -> np.ndarray:
        """Of the rows, local time."""
        rows = len(next(iter(self.columns.values())))
        return np.asarray(START + (STEP * np.arange(rows)).astype("timedelta64[s]"))


def simulate(rows: int = ROWS, seed: int = SEED, do: Mapping[str, FloatArray] | None = None) -> SampleLog:
    """The plant's log; with `do`, what it would have been with other inputs and the same disturbances and noise."""
    rng = np.random.default_rng(seed)
    feed = _steps(rng, rows, 8.0, 1.2, (6.0, 10.0), (15, 60))
    heat = _steps(rng, rows, 50.0, 15.0, (15.0, 85.0), (20, 80))
    dose = _steps(rng, rows, 40.0, 14.0, (10.0, 80.0), (20, 70))
    disturbed = np.stack([_drift(rng, rows, size) for size in (0.10, 0.25, 0.03)], axis=1)
    noise = {tag: rng.standard_normal(rows) for tag in OUTPUTS}
    inputs = {"FIC-101.SP": feed, "TIC-201.OP": heat, "FIC-301.OP": dose} | dict(do or {})
    clean = _run(inputs, disturbed)
    measured = {tag: clean[tag] + _NOISE[tag] * noise[tag] for tag in OUTPUTS}
    return SampleLog({**inputs, **measured}, {**inputs, **clean})


def _steps(
    rng: np.random.Generator, rows: int, middle: float, spread: float, limits: tuple[float, float],
    lasting: tuple[int, int],
) -> FloatArray:  # fmt: skip
    """What an operator does: a new value now and then."""
    out = np.empty(rows)
    row = 0
    while row < rows:
        stop = row + int(rng.integers(*lasting))
        out[row:stop] = np.round(np.clip(middle + spread * rng.standard_normal(), *limits), 1)
        row = stop
    return out


def _drift(rng: np.random.Generator, rows: int, size: float) -> FloatArray:
    """A disturbance with a memory of about twenty rows."""
    return np.asarray(lfilter([size * np.sqrt(1 - 0.95**2)], [1.0, -0.95], rng.standard_normal(rows)))


def _run(inputs: Mapping[str, FloatArray], disturbed: FloatArray) -> dict[str, FloatArray]:
    """The plant itself, by small explicit steps. What is moved in row t - 1 is seen in row t."""
    rows = len(disturbed)
    out = {tag: np.empty(rows) for tag in OUTPUTS}
    level, warm, salt = [1.0, 1.0, 1.0], [20.0, 42.0], [0.0, 4.0]
    flow, wound = 8.0, 50.0  # of the feed, and the controller's integral
    dt = STEP / 3600 / _SUBSTEPS  # hours
    for t in range(rows):
        error = inputs["FIC-101.SP"][t] - flow
        opening = float(np.clip(wound + 3.0 * error, 0.0, 100.0))
        values = (flow, opening, level[0], warm[1], level[1], salt[1], level[2])
        for tag, value in zip(OUTPUTS, values, strict=True):
            out[tag][t] = value
        wound = float(np.clip(wound + 1.5 * error, 0.0, 100.0))
        power, dosing = inputs["TIC-201.OP"][t], inputs["FIC-301.OP"][t]
        for _ in range(_SUBSTEPS):
            wanted = 0.16 * opening * (1.0 + 0.02 * disturbed[t, 0])
            flow += dt * 60.0 * (wanted - flow)
            outflow = [through * np.sqrt(max(head, 0.0)) for through, head in zip(_OUT, level, strict=True)]
            dosed = 0.02 * dosing  # m³/h of a solution with 60 g/l
            level[0] += dt * (flow + disturbed[t, 0] - outflow[0]) / _AREA[0]
            level[1] += dt * (outflow[0] - outflow[1]) / _AREA[1]
            level[2] += dt * (outflow[1] + dosed - outflow[2]) / _AREA[2]
            heating = 3.6 * power + 4.0 * disturbed[t, 1]  # K m³/h
            warm[1] += dt * (outflow[0] * (warm[0] - warm[1]) + heating) / (_AREA[1] * max(level[1], 0.05))
            carried = outflow[1] * (salt[0] - salt[1]) + dosed * (60.0 * (1 + 0.05 * disturbed[t, 2]) - salt[1])
            salt[1] += dt * carried / (_AREA[2] * max(level[2], 0.05))
    return out


def path() -> Path:
    """The file of the package."""
    return Path(str(files("counterflow.data") / "samples" / FILE))


def export(log: SampleLog) -> tuple[list[str], list[str], list[list[str]]]:
    """What a historian makes of a log: names, units of measure, and rows of text with everything that goes wrong."""
    rng = np.random.default_rng(SEED + 1)
    order = ["FIC-101.PV", "FIC-101.SP", "FIC-101.OP", "LI-102.PV", "TIC-201.PV", "TIC-201.OP", "LI-202.PV",
             "FIC-301.OP", "AI-302.PV", "LI-303.PV"]  # fmt: skip
    measures = {**INPUTS, **OUTPUTS}
    digits = {**dict.fromkeys(INPUTS, 1), "LI-102.PV": 4, "LI-202.PV": 4, "LI-303.PV": 4}
    cells = {tag: [f"{value:.{digits.get(tag, 3)}f}" for value in log.columns[tag]] for tag in order}
    rows = len(log.times)
    for k in rng.choice(rows, rows // 150, replace=False):
        cells["TIC-201.PV"][k] = ["Bad Input", "I/O Timeout", "No Data"][k % 3]
    for k in rng.choice(rows, rows // 200, replace=False):
        cells["AI-302.PV"][k] = ""
    table = [
        [str(time).replace("T", " "), *(cells[tag][k] for tag in order), "7.0", "" if k % 480 else "shift change"]
        for k, time in enumerate(log.times)
    ]
    gap = rows * 2 // 5
    table = table[:gap] + table[gap + 25 :]  # the historian was down
    table.insert(rows // 5, list(table[rows // 5]))
    late = rows // 3
    table[late], table[late + 1] = table[late + 1], table[late]
    return ["Timestamp", *order, "PI-109.PV", "Note"], ["", *(measures[tag] for tag in order), "bar", ""], table


def write(place: Path, form: str = "wide") -> Path:
    """The sample in another form, into a folder; what it is called follows from that.

    wide: as it ships; long: a row for each value, with qualities; comma: semicolons and decimal commas; cp1252: the
    same in Windows-1252; both with dates as Germans write them; xlsx: a workbook; sql: SQLite with a table called log.
    """
    names, measures, table = export(simulate())
    if form in ("wide", "xlsx"):
        titled = [["Historian export, north plant, local time"], names, measures, *table]
        return write_rows(place / ("plant.csv" if form == "wide" else "plant.xlsx"), titled)
    if form in ("comma", "cp1252"):
        rows = [["Auszug der Betriebsdaten"], ["Zeit", *names[1:]], measures]
        for stamp, *cells, note in table:
            date = f"{stamp[8:10]}.{stamp[5:7]}.{stamp[:4]} {stamp[11:]}"
            rows.append([date, *(cell.replace(".", ",") for cell in cells), note])
        return write_rows(place / f"plant-{form}.csv", rows, ";", "\r\n", "utf-8-sig" if form == "comma" else form)
    if form not in FORMS:
        raise OptionError(f"form is {form!r:.40}: give one of {', '.join(FORMS)}.")
    long = [
        (row[0], tag, row[k], "Bad" if any(sign.isalpha() for sign in row[k]) else "Good", measure)
        for k, (tag, measure) in enumerate(zip(names[1:-1], measures[1:-1], strict=True), 1)
        for row in table if row[k]
    ]  # fmt: skip
    if form == "long":
        return write_rows(place / "plant-long.csv", [("Timestamp", "TagName", "Value", "Quality", "Units"), *long])
    with closing(sqlite3.connect(place / "plant.db")) as connection, connection:
        connection.execute("create table log (time text, tag text, value text, quality text, unit text)")
        connection.executemany("insert into log values (?, ?, ?, ?, ?)", long)
    return place / "plant.db"
