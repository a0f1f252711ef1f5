"""Where a table begins: lines before the header, the separator, the decimal sign, and rows between header and numbers.

Exports of historians begin with lines about the export, and have a row of descriptions or of units of measure below the
header. Both are found from the first lines: a header is the first line with as many cells as the rows have, and a row
of units has no number in columns that hold numbers further down.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from counterflow.data.columns import meaning
from counterflow.data.options import TableOptions
from counterflow.errors import DataError
from counterflow.plant.units import first_repeated

SEPARATORS = (",", ";", "\t", "|")
SAMPLE_LINES = 50
HEADER_SEARCH = 10  # lines in which a header word is looked for
_PREAMBLE = 30  # lines that may stand before a header
_MOST_BETWEEN = 3  # rows between header and numbers
_NUMBER = re.compile(r"\s*[+-]?(?:\d[\d.,' \u00a0\u202f]*|[.,]\d+)(?:[eE][+-]?\d+)?\s*%?\s*")
_COMMA_NUMBER = re.compile(r"\s*[+-]?\d[\d.' \u00a0\u202f]*,\d+(?:[eE][+-]?\d+)?\s*")
_POINT_NUMBER = re.compile(r"\s*[+-]?\d*\.\d+(?:[eE][+-]?\d+)?\s*")
_DATED = re.compile(r"\d{1,4}[-/.:]\d{1,2}")
# a unit of measure as people write it: "m3/h", "°C", "kg/(m2 s)", "%", "barg", "1/min", "-"
_MEASURE = re.compile(r"(?:1/)?[%‰°ºµμΩA-Za-z$€][%°ºµμΩA-Za-z0-9²³⁰¹⁻·*^./()\- ]{0,19}|-")
_KNOWN_MEASURES = frozenset((  # in lower case
    "%", "‰", "ppm", "ppb", "-", "°c", "°f", "degc", "degf", "deg_c", "c", "k", "f", "grad", "bar", "barg", "bara",
    "mbar", "pa", "kpa", "mpa", "hpa", "psi", "psig", "psia", "mmhg", "inh2o", "m3/h", "m³/h", "m^3/h", "nm3/h",
    "m3/s", "m³/s", "m3/d", "l/s", "l/min", "l/h", "gpm", "kg/h", "kg/s", "kg/min", "t/h", "t/d", "lb/h", "kg", "t",
    "g", "mg", "m", "cm", "mm", "km", "ft", "in", "m2", "m3", "m³", "l", "ml", "gal", "s", "sec", "min", "h", "hr",
    "d", "1/min", "rpm", "hz", "khz", "1/s", "m/s", "mm/s", "m/s2", "v", "mv", "kv", "a", "ma", "ka", "w", "kw", "mw",
    "mvar", "kva", "kwh", "mwh", "j", "kj", "mj", "mol", "mol/l", "mg/l", "g/l", "kg/m3", "kg/m³", "g/cm3", "µg/l",
    "ug/l", "us/cm", "µs/cm", "ms/cm", "ph", "ntu", "fnu", "on/off", "bool", "state", "vol%", "wt%", "mol%", "%vol",
    "%wt", "%open", "nm", "knm", "n", "kn", "var", "cos", "deg", "rad", "mmol/l", "m3/m3", "kj/kg", "kw/m2", "w/m2",
    "pct", "percent", "mmh2o",
))  # fmt: skip
_BRACKETED = re.compile(r"^(?P<name>.*\S)\s*[\[(](?P<measure>[^\[\]()]{1,20}(?:\([^()]*\))?)[\])]$")


def header_line(lines: Sequence[str], skip_rows: int, word: str | None) -> int:
    """Lines before the header: those that are skipped, then those before the word, or before the table itself."""
    if word is not None:
        near = range(skip_rows, min(skip_rows + HEADER_SEARCH, len(lines)))
        return next((k for k in near if word.casefold() in lines[k].casefold()), skip_rows)
    if skip_rows:
        return skip_rows
    sample = [(k, line) for k, line in enumerate(lines[: _PREAMBLE + SAMPLE_LINES]) if line.strip()]
    best, found = (0.0, 0), 0
    for separator in SEPARATORS:
        try:
            rows = [(k, next(csv.reader([line], delimiter=separator))) for k, line in sample]
        except (csv.Error, StopIteration):
            continue
        counts = Counter(len(row) for _, row in rows[1:])
        if rows and len(rows[0][1]) >= 2 and counts[len(rows[0][1])] >= 0.5 * (len(rows) - 1):
            return _below_titles(rows)  # the first line belongs to a table
        width, agreeing = max(counts.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
        if width < 2 or not rows or len(rows[0][1]) >= max(2, width / 2):
            continue  # the first line belongs to the table
        first = next((k for k, row in rows if len(row) >= width), 0)  # last cells of rows may be empty
        if any(_NUMBER.fullmatch(cell) for k, row in rows if k == first for cell in row) or first > _PREAMBLE:
            continue
        score = (round(agreeing / max(1, len(rows) - 1), 1), width)
        if score > best and score[0] >= 0.5:
            best, found = score, first
    return found


def _below_titles(rows: Sequence[tuple[int, Sequence[str]]]) -> int:
    """The header's line, where the first line may hold titles of groups of columns: most of its cells are empty."""
    (first, titles), (below, names) = rows[0], rows[1] if len(rows) > 1 else (0, [])
    filled = [sum(bool(cell.strip()) for cell in row) for row in (titles, names)]
    if 2 * filled[0] > len(titles) or filled[1] < 0.9 * len(titles) or len(names) != len(titles):
        return first
    return first if any(_NUMBER.fullmatch(cell) or _DATED.search(cell) for cell in names) else below


def layout(
    rows: Sequence[Sequence[str]], options: TableOptions, file: str
) -> tuple[tuple[str, ...], dict[str, str], int]:
    """Of the header and the rows below it: names, units of measure, and how many of those rows are no data."""
    names = clean_names(rows[0], file)
    below = [row[: len(names)] for row in rows[1:]]
    between = rows_between(below) if options.skip_after_header is None else options.skip_after_header
    return names, measures_of(names, below[:between]), between


def separator_of(sample: Sequence[str]) -> str:
    """The one that cuts most lines into as many cells as the header, and into most cells."""
    best, found = (0.0, 0), ","
    for candidate in SEPARATORS:
        counts = [len(row) for row in csv.reader(sample, delimiter=candidate)]
        width = counts[0]
        if width < 2:
            continue
        agreeing = Counter(counts)[width] / len(counts)
        # a header of several cells with rows that agree: decimal commas never make the header agree with the rows
        score = (round(agreeing, 1), width)
        if score > best:
            best, found = score, candidate
    return found


def decimal_of(rows: Sequence[Sequence[str]]) -> str:
    """The decimal sign that most numbers have."""
    commas = sum(bool(_COMMA_NUMBER.fullmatch(cell)) for row in rows for cell in row)
    points = sum(bool(_POINT_NUMBER.fullmatch(cell)) for row in rows for cell in row)
    return "," if commas > points else "."


def rows_between(rows: Sequence[Sequence[str]]) -> int:
    """How many of the first rows are no data: descriptions or units of measure, above columns of numbers."""
    for count in range(min(_MOST_BETWEEN, len(rows) - 1), 0, -1):
        if all(_is_between(row, rows[count:]) for row in rows[:count]):
            return count
    return 0


def _is_between(row: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    said = {k: cell.strip() for k, cell in enumerate(row) if cell.strip()}
    for cell in said.values():  # a word for on, off or missing stands for a measurement
        if _NUMBER.fullmatch(cell) or _DATED.search(cell) or (meaning(cell) is not None and cell.strip("- ")):
            return False
    numeric = 0
    for k in said:
        column = [other[k] for other in below if k < len(other) and other[k].strip()]
        numeric += bool(column) and sum(bool(_NUMBER.fullmatch(cell)) for cell in column) >= 0.5 * len(column)
    known = sum(cell.casefold().strip("[]()") in _KNOWN_MEASURES for cell in said.values())
    # one column of text may be data; a row of units says something of most columns that hold numbers
    return bool(said) and numeric >= 0.5 * len(said) and (numeric >= 2 or known >= 1)


def measures_of(names: Sequence[str], between: Sequence[Sequence[str]]) -> dict[str, str]:
    """Units of measure by column: from the row that has most of them, or from brackets in the header."""
    found = {}
    for name in names:
        if parts := _BRACKETED.match(name):
            measure = parts["measure"].strip()
            if measure.casefold() in _KNOWN_MEASURES or (name.endswith("]") and _MEASURE.fullmatch(measure)):
                found[name] = measure
    scores = [sum(cell.strip().casefold().strip("[]()") in _KNOWN_MEASURES for cell in row) for row in between]
    best = between[scores.index(max(scores))] if any(scores) else ()
    for name, cell in zip(names, best, strict=False):
        measure = cell.strip()
        measure = measure[1:-1].strip() if measure[:1] + measure[-1:] in ("[]", "()") else measure
        if _MEASURE.fullmatch(measure) and measure != "-":
            found.setdefault(name, measure)
    return found


def without_measure(name: str, measures: Mapping[str, str]) -> str:
    """A column's name without the unit of measure in brackets, where it has one."""
    parts = _BRACKETED.match(name) if name in measures else None
    return parts["name"] if parts is not None and parts["measure"].strip() == measures[name] else name


def clean_names(stored: Sequence[str], file: str) -> tuple[str, ...]:
    """Names without blanks around them; an empty one is numbered; two that are the same are refused."""
    names = tuple(name.strip().lstrip("\ufeff").strip() or f"column_{k + 1}" for k, name in enumerate(stored))
    if (twice := first_repeated(names)) is not None:
        raise DataError(f"{file} has two columns called {twice!r}; rename one of them")
    return names
