"""Stand-ins: small files in the formats of HAI and SWaT, driven by a simulated plant. They are not the real data sets.

They have the columns and the quirks of the real files (separators, stage rows, blanks in names, dates, labels), so that
readers can be tested where the real files may not be. The numbers are invented: coupled units in a chain, each moved by
its actuators. The exact lists of tags of HAI 20.07 and 23.05 are not at hand: the stand-in of the first has 59 tags of
21.03, that of the second the tags of 22.04 without the set points P1_B* and with three that were added.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.data import hai, swat
from counterflow.data.formats.workbook import write_rows
from counterflow.data.presets import DataSet
from counterflow.errors import OptionError
from counterflow.plant import Plant, Unit
from counterflow.randomness import stream

MARK = "NOT-THE-REAL-DATA-SET.txt"  # lies beside generated files

HAI_VERSIONS = ("20.07", "21.03", "22.04", "23.05")
SWAT_VERSIONS = ("normal-v0", "normal-v1", "attack-v0", "xlsx")
_DATASETS = {"hai": ("HAI", HAI_VERSIONS, "21.03"), "swat": ("SWaT", SWAT_VERSIONS, "normal-v1")}
NOTICE = "A stand-in: simulated numbers in the format of {name}. This is not the real data set.\n"
_TAGS = {
    dataset: {name: words.split() for name, words in lists.items()}
    for dataset, lists in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
_SWAT = _TAGS["swat"]["all"]
_SWAT_DISCRETE = "FIT503"  # a measurement that hardly ever moves
_SWAT_ALONE = "AIT501"  # a measurement that nothing else has to do with
_RANGES = {  # middle and spread by family, for a look of physics
    "LIT": (420.0, 20.0), "FIT": (2.4, 0.2), "FT": (900.0, 60.0), "PIT": (1.4, 0.05), "TIT": (36.0, 0.6),
    "SIT": (790.0, 6.0), "DPIT": (19.0, 1.0), "AIT": (260.0, 5.0), "V": (11.0, 0.5), "P4": (380.0, 30.0),
}  # fmt: skip


def hai_tags(version: str) -> list[str]:
    """The tags of a version's stand-in, in order."""
    lists = _TAGS["hai"]
    if version in ("20.07", "21.03"):
        return [tag for tag in lists["21.03"] if version == "21.03" or tag not in lists["later"]]
    found = sorted({*lists["21.03"], *lists["new"]} - {*lists["gone"]})
    if version == "22.04":
        return found
    found = [tag for tag in found if not tag.startswith("P1_B")]
    found.insert(found.index("P1_PP04SP"), "P1_PP04D")
    return [*found, "x1001_05_SETPOINT_OUT", "x1001_15_ASSIGN_OUT"]


def write_stand_in(
    dataset: str, version: str | None, folder: str | Path, rows: int = 2000, seed: int = 0
) -> list[Path]:
    """Write a data set's stand-in files into an existing folder; the paths, a notice among them.

    Parameters
    ----------
    dataset : {"hai", "swat"}
    version : str, optional
        One of `HAI_VERSIONS` (default 21.03) or `SWAT_VERSIONS` (default normal-v1).
    folder : path
    rows : int
        Rows of each file.
    seed : int

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     [path.name for path in write_stand_in("hai", "23.05", place, rows=20)]
    ['hai-train1.csv', 'hai-test1.csv', 'label-test1.csv', 'NOT-THE-REAL-DATA-SET.txt']
    """
    folder = Path(folder)
    if dataset not in _DATASETS:
        raise OptionError(f"dataset {dataset!r} is not known: there are hai and swat.")
    title, versions, usual = _DATASETS[dataset]
    version = version or usual
    if version not in versions:
        raise OptionError(f"version {version!r} of {title} is not known: there are {', '.join(versions)}.")
    written = (_write_hai if dataset == "hai" else _write_swat)(version, folder, rows, seed)
    name = f"HAI {version}" if dataset == "hai" else f"SWaT 2015 ({version})"
    notice = folder / MARK
    notice.write_text(NOTICE.format(name=name), encoding="utf-8")
    return [*written, notice]


# ---- the plant behind them


def simulated(
    dataset: DataSet, roles: Mapping[str, str], rows: int, seed: int, actuator: Callable[[str], FloatArray]
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Inputs, each as `actuator` moves it, and outputs, in the range of their family, of units in a chain.

    A unit has two states, the first fed by its own actuators and by the unit before it. `roles`: of each tag, "input",
    "output", or anything else.
    """
    names = sorted({owner for tag in roles if (owner := dataset.unit(tag)) is not None})
    units, blocks_B, blocks_C = [], [], []
    for k, name in enumerate(names):
        own = [tag for tag in roles if dataset.unit(tag) == name]
        unit = Unit(name, 2, *([tag for tag in own if roles[tag] == side] for side in ("input", "output")))
        gains = [(0.15 if k == 0 else 0.05) * (-1) ** j * (1.0 if j == 0 else 0.4) for j in range(unit.n_inputs)]
        blocks_B.append(np.array([gains, [0.0] * unit.n_inputs]))
        blocks_C.append(np.array([(1.0, 0.4) if j % 2 == 0 else (0.2, 1.0) for j in range(unit.n_outputs)]))
        units.append(unit)
    A = block_diagonal([np.array([[0.9, 0.0], [0.1, 0.85]])] * len(names))
    for k in range(1, len(names)):
        A[2 * k, 2 * k - 1] = 0.12  # what leaves the unit before comes in
    B, C = block_diagonal(blocks_B), block_diagonal(blocks_C)
    plant = Plant(units=tuple(units), A=A, B=B, C=C, Q=1e-3 * np.eye(len(A)), R=4e-3 * np.eye(len(C)), dt=1.0)
    u = {tag: actuator(tag) for unit in units for tag in unit.input_names}
    moved = np.stack(list(u.values()), axis=1)
    measured = plant.simulate(rows - 1, rng=seed, inputs=moved).values()
    y = {tag: values for part in measured for tag, values in zip(part.unit.output_names, part.y.T, strict=True)}
    for tag, values in y.items():
        bare = tag[3:] if tag[1:3] in ("1_", "2_", "3_", "4_") else tag
        fitting = (scale for start, scale in _RANGES.items() if bare.startswith(start) or tag.startswith(start + "_"))
        middle, spread = next(fitting, (50.0, 5.0))
        y[tag] = middle + spread * values
    return u, y


def _telegraph(rows: int, hold: int, seed: int, tag: str) -> FloatArray:
    """-1 and 1, with holds of `hold` rows in the mean."""
    flips = stream(seed, "telegraph", tag).random(rows) < 1.0 / hold
    return np.asarray(np.where(np.cumsum(flips) % 2 == 0, 1.0, -1.0))


def _shown(values: FloatArray, digits: int) -> list[str]:
    return [f"{value:.{digits}f}".rstrip("0").rstrip(".") for value in values]


# ---- HAI


def _hai_role(tag: str) -> str:
    side, _ = hai.DATA_SET.side(tag)
    if tag in _TAGS["hai"]["constant"] or not side:
        return "constant"
    if tag.startswith("P1_B"):
        return "setpoint"
    return "position" if tag.endswith("Z") and side == "inputs" else side.removesuffix("s")


def _hai_columns(version: str, rows: int, seed: int) -> dict[str, FloatArray]:
    """Every tag of a version, simulated."""
    roles = {tag: _hai_role(tag) for tag in hai_tags(version)}

    def noise(purpose: str, tag: str) -> FloatArray:
        return stream(seed, purpose, tag).standard_normal(rows)

    u, y = simulated(
        hai.DATA_SET, roles, rows, seed, lambda tag: _telegraph(rows, 30, seed, tag) + 0.1 * noise("dither", tag)
    )
    found = {tag: 50.0 + 10.0 * values for tag, values in u.items()} | y
    for tag, role in roles.items():
        if role == "setpoint":  # changes once or twice
            found[tag] = np.where(np.arange(rows) < rows // 2, 400.0, 420.0) + len(tag)
        elif role == "position":
            command = found.get(tag[:-1] + "D", np.full(rows, 50.0))
            found[tag] = np.concatenate((command[:1], command[:-1])) + 0.2 * noise("position", tag)
        elif role == "constant":
            found[tag] = np.full(rows, float(len(tag) % 3))
    return {tag: found[tag] for tag in roles}


def _write_hai(version: str, folder: Path, rows: int, seed: int) -> list[Path]:
    columns = _hai_columns(version, 2 * rows, seed)
    attacked = np.zeros(2 * rows, np.int64)
    attacked[rows + rows // 3 : rows + rows // 3 + max(2, rows // 20)] = 1
    hit = next(tag for tag in columns if tag.startswith("P1_LIT"))
    columns[hit] = columns[hit] + 40.0 * attacked
    table = np.stack(list(columns.values()), axis=1)
    time_name = "timestamp" if version in ("22.04", "23.05") else "time"
    labels = {"22.04": ["Attack"], "23.05": []}.get(version, ["attack", "attack_P1", "attack_P2", "attack_P3"])
    separator = ";" if version == "20.07" else ","
    name = ("hai-" if version == "23.05" else "") + "{}.csv" + (".gz" if version == "21.03" else "")
    written = []
    for k, kind in enumerate(("train1", "test1")):
        part = slice(k * rows, (k + 1) * rows)
        begin = datetime(2021, 7, 11 + k, 10, 0, 0)  # the test was another day
        stamps = [f"{begin + timedelta(seconds=j):%Y-%m-%d %H:%M:%S}" for j in range(rows)]
        odd = version == "22.04" and kind == "test1"  # spelled otherwise
        lines = [["time", *columns, "attack"] if odd else [time_name, *columns, *labels]]
        for stamp, values, mark in zip(stamps, table[part], attacked[part], strict=True):
            marks = (str(mark if label.lower() in ("attack", "attack_p1") else 0) for label in labels)
            lines.append([stamp, *_shown(values, 5), *marks])
        written.append(write_rows(folder / name.format(kind), lines, separator))
    if version == "23.05":
        marked = zip(stamps, attacked[rows:], strict=True)
        written.append(write_rows(folder / "label-test1.csv", [("timestamp", "label"), *marked]))
    return written


# ---- SWaT


def _swat_columns(rows: int, seed: int) -> dict[str, FloatArray]:
    """Every tag, simulated: pumps 1 and 2, valves 0 while they move."""
    still = dict.fromkeys([*_TAGS["swat"]["constant"], _SWAT_DISCRETE, _SWAT_ALONE], "other")
    roles = {tag: swat.DATA_SET.side(tag)[0].removesuffix("s") for tag in _SWAT} | still

    def moved(tag: str) -> FloatArray:
        """It follows the whole plant four times out of five, as batches move all stages."""
        own, plant = _telegraph(rows, 60, seed, tag), _telegraph(rows, 60, seed, "plant")
        rng = stream(seed, "follow", tag)
        turns = np.cumsum(rng.random(rows) < 1.0 / 60)
        return np.where(rng.random(int(turns[-1]) + 1)[turns] < 0.8, plant, own)

    u, found = simulated(swat.DATA_SET, roles, rows, seed, moved)
    for tag, values in u.items():
        state = np.where(values > 0, 2.0, 1.0)
        moving = np.concatenate(([False], state[1:] != state[:-1]))
        found[tag] = np.where(moving, 0.0, state) if tag.startswith("MV") else state
    for tag in _TAGS["swat"]["constant"]:
        found[tag] = np.full(rows, 2.0 if tag == "UV401" else 1.0)
    found[_SWAT_DISCRETE] = np.where(np.arange(rows) % max(rows // 2, 1) == 0, 0.7, 0.73)
    found[_SWAT_ALONE] = 7.8 + 0.01 * stream(seed, "alone", _SWAT_ALONE).standard_normal(rows)
    return {tag: found[tag] for tag in _SWAT}


def _write_swat(version: str, folder: Path, rows: int, seed: int) -> list[Path]:
    columns = _swat_columns(rows, seed)
    attack = version == "attack-v0"
    begin = datetime(2015, 12, 28, 10, 0, 0) if attack else datetime(2015, 12, 22, 16, 0, 0)
    labels = ["Normal"] * rows
    if attack:
        first, count = rows // 3, max(4, rows // 20)
        labels[first : first + count] = ["Attack"] * count
        labels[first + count // 2] = "A ttack"
    table = np.stack(list(columns.values()), axis=1)
    names = [f" {tag}" if attack and tag in _TAGS["swat"]["blanks"] else tag for tag in _SWAT]
    whole = [[" Timestamp", *names, "Normal/Attack"]]
    if not attack:  # the row of stages: each above its first tag
        stages = [(swat.unit_of(tag) or "").replace("S", "P") for tag in _SWAT]
        above = ["" if stage == before else stage for before, stage in pairwise(["", *stages])]
        whole.insert(0, ["", *above, ""])
    for k in range(rows):
        moment = begin + timedelta(seconds=k)
        date = f" {moment.day}/{moment.month}/{moment.year} {moment.hour % 12 or 12}:{moment:%M:%S %p}"
        whole.append([date, *_shown(table[k], 6), labels[k]])
    kind = "Attack_v0.csv" if attack else "Normal_v1.xlsx" if version == "xlsx" else f"Normal_{version[-2:]}.csv"
    encoding = "utf-8-sig" if attack else "utf-8"
    return [write_rows(folder / f"SWaT_Dataset_{kind}", whole, end="\r\n", encoding=encoding)]
