"""HAI, the industrial control data set: its files of every version, prepared as the paper does.

Paper, appendix on real-world data: clients are processes by the prefix P1 to P4; (i) time-align and parse headers;
(ii) remove constant channels over the full run and again after truncation; (iii) prune boolean-like and quasi-discrete
channels; (iv) split into inputs and outputs by tag family; (v) z-score, saving means and standard deviations. The
length of the truncation is not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from counterflow.data.dates import NONE
from counterflow.data.options import TableOptions
from counterflow.data.presets import Columns, DataSet, Prepared, is_attack
from counterflow.data.source import Source
from counterflow.data.table import Table, join
from counterflow.errors import DataError

_PAPER, _OURS = "paper", "ours"
_LABELS = ("attack", "attack_p1", "attack_p2", "attack_p3", "attack_p4", "label")
_TIMES = ("timestamp", "datetime")


def unit_of(tag: str) -> str | None:
    """P1 to P4, the tag's prefix."""
    return tag[:2] if len(tag) > 3 and tag[0] == "P" and tag[1] in "1234" and tag[2] == "_" else None


def _spelling(name: str) -> str:
    lower = name.casefold()
    return "time" if lower in _TIMES else lower if lower in _LABELS else name


DATA_SET = DataSet(
    labels=_LABELS,
    spelling=_spelling,
    unit=unit_of,
    inputs=(
        (r"P\d_(FCV|LCV|PCV|PP)\w*", _PAPER),
        (r"P\d_(OnOff|AutoGO|RTR)", _PAPER),
        # commands and set points that the paper's "e.g." leaves out
        (r"P1_(B\w+|STSP|SOL\w+)", _OURS),
        (r"P2_(ASD|MSD|AutoSD|ManualSD|ManualGO|Emerg|TripEx|SCO|MASW|MASW_Lamp|ATSW_Lamp)", _OURS),
        (r"P3_(LCP\w+|LH\d*|LL\d*)", _OURS),
        (r"P4_(LD|HT_LD|ST_LD|HT_PS|ST_PS|ST_GOV)", _OURS),
    ),
    outputs=(
        (r"P\d_(LIT|FIT|PIT|TIT|SIT)\w*", _PAPER),
        (r"P\d_V\w*T\w*", _PAPER),
        (r"P1_FT\w+", _OURS),
        (r"P2_(24Vdc|CO_rpm|HILout|SCST)", _OURS),
        (r"P4_(HT_FD|HT_PO|ST_FD|ST_PO|ST_PT\d+|ST_TT\d+)", _OURS),
    ),
)


def prepare_hai(
    files: Sequence[str | Path], *, labels: Sequence[str | Path] = (), rows: int | None = None,
    normal_only: bool = True, standardise: bool = False,
) -> Prepared:  # fmt: skip
    """Prepare files of HAI 20.07, 21.03, 22.04 or 23.05.

    Parameters
    ----------
    files : sequence of paths
        One version's files, in any order; rows are put in the order of time. Label files may stand among them.
    labels : sequence of paths
        Label files of 23.05 (``label-test1.csv``).
    rows : int, optional
        Keep the first so many.
    normal_only : bool
        Cut rows out that are labelled as attacks; a gap remains.
    standardise : bool
        z-scores instead of engineering units.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from counterflow.data.stand_ins import write_stand_in
    >>> with TemporaryDirectory() as folder:
    ...     files = write_stand_in("hai", "21.03", folder, rows=300)  # simulated: not the real data set
    ...     found = prepare_hai(files[:1])
    >>> found.recording
    Recording(300 rows, dt=1, units: P1, P2, P3, P4)
    >>> found.fate["P1_LIT01"], found.fate["P2_RTR"]
    ('kept, output of P1', 'dropped in step ii: always 0')
    """
    opened: list[Source] = []
    label_files = DATA_SET.open(labels)
    for file in DATA_SET.open(files):
        is_label = "label" in file.names and not any(unit_of(name) for name in file.names)
        (label_files if is_label else opened).append(file)
    if not opened:
        raise DataError("no file with tags is among those given: give train or test files of HAI")
    table = DATA_SET.join(opened)
    attacked = DATA_SET.attacked(table)
    named = [name for name in _LABELS if any(name in file.names for file in opened)]
    told = [f"columns {', '.join(named)}"] if named else []
    for file in label_files:
        attacked |= _labelled(table, file)
        told.append(f"label file {file.name}")
    how = "; ".join(told) or "no labels were found"
    work = Columns(DATA_SET, table, attacked, normal_only, rows, f" ({how})")
    work.drop_discrete(list(work.columns))
    work.split()
    return work.finish("v", standardise)


def _labelled(table: Table, file: Source) -> NDArray[np.bool_]:
    """Which rows of a table a label file labels as attacks, by their times."""
    marks = join([file], TableOptions())
    if marks.times is None or table.times is None or "label" not in marks.names:
        raise DataError(f"{file.name} is no label file: it needs a time and a 'label' column")
    moments = marks.times.nanoseconds
    hit = is_attack(file.column("label"), file.name) & (moments != NONE)
    return np.isin(table.times.nanoseconds, moments[hit])
