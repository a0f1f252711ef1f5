"""Numbers as people and programs write them: decimal signs, signs between thousands, percent signs."""

from __future__ import annotations

import polars

_BETWEEN = r"['’\u{a0}\u{202f} ]"  # between thousands, beside the sign that is not the decimal one


def plain(text: polars.Series, decimal: str, sure: bool = False) -> polars.Series:
    """Cells as text that casts to numbers; what is no number is left as it is.

    Parameters
    ----------
    text : polars.Series of String
        Without blanks around.
    decimal : {".", ","}
        Of the file.
    sure : bool
        Whether it is certain. If not, a column that can only mean the other one is read so: in a text with commas
        between cells, cells in quotes may have decimal commas.

    Examples
    --------
    >>> plain(polars.Series(["1,234.5", "12", "n/a"]), ".").to_list()
    ['1234.5', '12', 'n/a']
    >>> plain(polars.Series(["1.234,5", "1.234", "0,5"]), ",").to_list()
    ['1234.5', '1234', '0.5']
    >>> plain(polars.Series(["12,5", "7,25"]), ".").to_list(), plain(polars.Series(["1.5", "1.234"]), ",").to_list()
    (['12.5', '7.25'], ['1.5', '1.234'])
    """
    other = "," if decimal == "." else "."
    if not bool(text.str.contains(r"[,'’\u{a0}\u{202f} ]" if decimal == "." else r"[,.'’\u{a0}\u{202f} ]").any()):
        return text
    if decimal == ".":
        commas = text.str.contains(r"^[+-]?\d+,(\d{1,2}|\d{4,})$")
        if not sure and bool(commas.any()) and not bool(text.str.contains(r"\d\.\d").any()):
            return _without(text, ".", True).str.replace(",", ".", literal=True)
        return _without(text, other, True)
    # "1.234" beside decimal commas is a thousand only where another cell of the column says so
    grouped = bool(text.str.contains(r"^[+-]?\d{1,3}(\.\d{3})+,\d+$|^[+-]?\d{1,3}(\.\d{3}){2,}$").any())
    return _without(text, other, grouped).str.replace(",", ".", literal=True)


def _without(text: polars.Series, sign: str, grouped: bool) -> polars.Series:
    """Cells without what stands between thousands: blanks and apostrophes, and `sign` if it does."""
    between = f"(?:{_BETWEEN}|\\{sign})" if grouped else _BETWEEN
    decimal = r"\." if sign == "," else ","
    numbers = text.str.contains(rf"^[+-]?\d{{1,3}}(?:{between}\d{{3}})+(?:{decimal}\d+)?$").fill_null(False)
    if not bool(numbers.any()):
        return text
    frame = polars.DataFrame({"text": text, "numbers": numbers})
    bare = polars.col("text").str.replace_all(between, "")
    return frame.select(polars.when("numbers").then(bare).otherwise("text").alias(text.name)).to_series()
