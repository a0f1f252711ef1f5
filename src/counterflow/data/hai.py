"""HAI, the industrial control data set: its files of every version, prepared as the paper does.

Paper, appendix on real-world data: clients are processes by the prefix P1 to P4; (i) time-align and parse headers;
(ii) remove constant channels over the full run and again after truncation; (iii) prune boolean-like and quasi-discrete
channels; (iv) split into inputs and outputs by tag family; (v) z-score, saving means and standard deviations. The
length of the truncation is not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from counterflow.data.presets import Columns, DataSet, Prepared

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
    families=(
        (r"P\d_(FCV|LCV|PCV|PP)\w*", "inputs", True),
        (r"P\d_(OnOff|AutoGO|RTR)", "inputs", True),
        # commands and set points that the paper's "e.g." leaves out
        (r"P1_(B\w+|STSP|SOL\w+)", "inputs", False),
        (r"P2_(ASD|MSD|AutoSD|ManualSD|ManualGO|Emerg|TripEx|SCO|MASW|MASW_Lamp|ATSW_Lamp)", "inputs", False),
        (r"P3_(LCP\w+|LH\d*|LL\d*)", "inputs", False),
        (r"P4_(LD|HT_LD|ST_LD|HT_PS|ST_PS|ST_GOV)", "inputs", False),
        (r"P\d_(LIT|FIT|PIT|TIT|SIT)\w*", "outputs", True),
        (r"P\d_V\w*T\w*", "outputs", True),
        (r"P1_FT\w+", "outputs", False),
        (r"P2_(24Vdc|CO_rpm|HILout|SCST)", "outputs", False),
        (r"P4_(HT_FD|HT_PO|ST_FD|ST_PO|ST_PT\d+|ST_TT\d+)", "outputs", False),
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
    work = Columns(DATA_SET, [*files, *labels], normal_only, rows)
    work.drop_discrete()
    work.split()
    return work.finish("v", standardise)
