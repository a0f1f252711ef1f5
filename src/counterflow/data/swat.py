"""SWaT, the water treatment data set of 2015: its CSV and XLSX files, prepared as the paper does.

Paper, section on real-world data and its appendix: clients are stages by the first digit of a tag; (i) header, names,
time; (ii) drop constant channels, keep the first 30,000 samples, drop constant channels again; (iii) drop
quasi-discrete or boolean-like measurements; (iv) inputs (valves, pumps, UV) and outputs by tag; actuators are bits,
tri-states collapsed; keep variables with a Pearson correlation above 0.3 with another client's; (v) z-score; (vi) small
noise on inputs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from counterflow.data.options import TableOptions
from counterflow.data.presets import Columns, DataSet, Prepared
from counterflow.errors import DataError

_TAG = re.compile(r"[A-Z]+([1-6])\d\d")
_LABEL = "normal/attack"
ROWS = 30_000
CORRELATION = 0.3
NOISE = 0.01  # standard deviations; the paper says "small"


def unit_of(tag: str) -> str | None:
    """S1 to S6, from the tag's first digit."""
    found = _TAG.fullmatch(tag)
    return f"S{found[1]}" if found else None


def _spelling(name: str) -> str:
    """Without the blanks that some files have inside names, and one spelling of the label's."""
    joined = name.replace(" ", "")
    lower = joined.casefold()
    if lower in (_LABEL, "normal_attack", "label", "attack"):
        return _LABEL
    return "time" if lower == "timestamp" else joined if _TAG.fullmatch(joined) else name


DATA_SET = DataSet(
    unit=unit_of,
    families=((r"(MV|P|UV)\d{3}", "inputs", True), (r"(FIT|LIT|DPIT|PIT|AIT)\d{3}", "outputs", True)),
    labels=(_LABEL,),
    spelling=_spelling,
    # the normal file begins with a row of stages, XLSX copies with a row of titles; few dates may not tell their order
    options=TableOptions(header_word="timestamp", day_first=True),
)


def prepare_swat(
    files: Sequence[str | Path], *, rows: int | None = ROWS, correlation: float = CORRELATION, noise: float = NOISE,
    seed: int = 0, normal_only: bool = True, standardise: bool = False,
) -> Prepared:  # fmt: skip
    """Prepare files of SWaT 2015.

    Parameters
    ----------
    files : sequence of paths
        ``SWaT_Dataset_Normal_v0.csv`` and the like, or their XLSX copies.
    rows : int, optional
        Keep the first so many; None keeps all.
    correlation : float
        Keep variables whose absolute Pearson correlation with a variable of another stage is above this.
    noise : float
        Gaussian noise on discrete inputs, in their standard deviations.
    seed : int
        Of the noise.
    normal_only : bool
        Cut rows out that are labelled as attacks; a gap remains.
    standardise : bool
        z-scores instead of engineering units.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from counterflow.data.stand_ins import write_stand_in
    >>> with TemporaryDirectory() as folder:
    ...     files = write_stand_in("swat", "normal-v1", folder, rows=600)  # simulated: not the real data set
    ...     found = prepare_swat(files[:1])
    >>> found.recording
    Recording(600 rows, dt=1, units: S1, S2, S3, S4, S5, S6)
    """
    work = Columns(DATA_SET, files, normal_only, rows)
    work.drop_discrete(measured_only=True)
    work.split()
    _collapse(work)
    _correlated(work, correlation)
    return work.finish("vi", standardise, noise, seed)


def _collapse(work: Columns) -> None:
    """Actuators as bits: where 2 occurs (open, running), it is 1 and all else 0."""
    three, reasons = [], {}
    for tag in [tag for tag in work.columns if work.side(tag) == "inputs"]:
        values = work.columns[tag]
        states = np.unique(values[~np.isnan(values)])
        if states[-1] > 1.5:
            three += [tag] if len(states) > 2 else []
            work.columns[tag] = np.where(np.isnan(values), np.nan, values > 1.5)
            states = np.unique(states > 1.5)
        if len(states) == 1:
            reasons[tag] = "constant once collapsed"
    work.note("iv", f"actuators as bits, 2 is 1 and all else 0; three states collapsed: {', '.join(three) or 'none'}.")
    if reasons:
        work.drop("iv", "constant bits", reasons)


def _correlated(work: Columns, least: float) -> None:
    """Variables that correlate with another stage's."""
    tags = list(work.columns)
    if not tags:
        raise DataError("no variable is left: give more rows, or files in which something happens")
    values = np.stack([work.columns[tag] for tag in tags], axis=1)
    values = values[~np.isnan(values).any(axis=1)]
    if len(values) < 3:
        raise DataError("fewer than 3 rows have all variables: correlations cannot be computed; give more rows")
    with np.errstate(invalid="ignore"):  # of columns that do not move in these rows
        strength = np.nan_to_num(np.abs(np.corrcoef(values, rowvar=False)))
    owner = np.array([work.units[tag] for tag in tags])
    strength[owner[:, None] == owner[None, :]] = 0.0
    best = strength.max(axis=1)
    said = "largest correlation with another stage"
    reasons = {tag: f"{said} {best[k]:.2f}" for k, tag in enumerate(tags) if not best[k] > least}
    work.drop("iv", f"correlation with other stages not above {least:g}", reasons)
