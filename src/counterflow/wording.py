"""Numbers and times as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime


def decimals(mean: float, half_width: float | None = None) -> int:
    """Digits after the point: two of the interval's half width, or three of the number itself."""
    if half_width is not None and math.isfinite(half_width) and half_width > 0:
        digits = 1 - math.floor(math.log10(half_width))
    elif math.isfinite(mean) and mean != 0:
        digits = 2 - math.floor(math.log10(abs(mean)))
    else:
        digits = 2
    return max(0, min(digits, 9))


def number(value: float, digits: int | None = None, sign: bool = False) -> str:
    """A number with so many digits after the point, or with three that count."""
    if not math.isfinite(value):
        return "–"
    plus = "+" if sign else ""
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:{plus}.3g}"
    digits = decimals(value) if digits is None else digits
    text = f"{value:{plus}.{digits}f}"
    return text.replace("-", "", 1) if not text.strip("+-0.") else text  # no -0.00


def exact(value: float, sign: bool = False) -> str:
    """A number as the user gave it."""
    return f"{value:+.10g}" if sign else f"{value:.10g}"


def quantity(text: str, unit: str) -> str:
    return f"{text} {unit}" if unit else text


def measured(value: float, lower: float | None, upper: float | None, unit: str, sign: bool = False) -> tuple[str, str]:
    """A value with its unit of measure, and its interval as "low to high" ("" if there is none)."""
    if lower is None or upper is None or not (math.isfinite(lower) and math.isfinite(upper)):
        return quantity(number(value, sign=sign), unit), ""
    digits = decimals(value, (upper - lower) / 2)
    text = quantity(number(value, digits, sign), unit)
    return text, f"{number(lower, digits, sign)} to {number(upper, digits, sign)}"


def percent(level: float) -> str:
    return f"{100 * level:.6g} %"


def share(value: float, digits: int | None = None) -> str:
    """A share of one, in per cent: what is off by more than all of it is not told as a number."""
    if not math.isfinite(value):
        return "–"
    return "over 100 %" if value > 1 else f"{number(100 * value, digits)} %"


def span(steps: int, dt: float) -> str:
    """A number of steps, with the time they take where a step is not one second (or nobody said how long it is)."""
    text = f"{steps} step" + ("" if steps == 1 else "s")
    return text if dt == 1.0 else f"{text} ({clock(steps * dt)})"


def rows(start: int, stop: int, dt: float) -> str:
    """Rows start to stop - 1, with the times they stand for where those are other numbers."""
    last = stop - 1
    text = f"row {start}" if start == last else f"rows {start} to {last}"
    if dt in (1.0, 60.0, 3600.0, 86400.0):
        return text
    times = clock(start * dt) if start == last else f"{clock(start * dt)} to {clock(last * dt)}"
    return f"{text} ({times} from the first)"


def clock(seconds: float) -> str:
    """A time in the largest unit of which there are at least two."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds:.4g} s"


def about(seconds: float) -> str:
    """A time that is not known exactly."""
    size = next((size for size in (86400.0, 3600.0, 60.0) if seconds >= 2 * size), 1.0)
    return f"about {clock(size * float(f'{seconds / size:.2g}'))}"


def moment(iso: str) -> str:
    """A time in ISO 8601 with its zone, to the minute."""
    return f"{datetime.fromisoformat(iso).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def listed(words: Sequence[str]) -> str:
    """ "a, b and c" """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
