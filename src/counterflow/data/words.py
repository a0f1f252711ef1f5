"""Text where a number should stand: what historians write for missing values and for on and off."""

from __future__ import annotations

# as historians, spreadsheets and PLC gateways write them, in lower case
MISSING = frozenset(
    (
        "", "nan", "null", "none", "na", "n/a", "#n/a", "#value!", "#ref!", "#div/0!", "?", "-", "--", "---", "bad",
        "bad input", "bad value", "no data", "no sample", "i/o timeout", "comm fail", "pt created", "not connect",
        "out of serv", "configure", "shutdown", "scan off", "error", "missing",
    )
)  # fmt: skip
ON = frozenset(["on", "true", "yes", "open", "opened", "running", "run", "start", "started", "active", "enabled"])
OFF = frozenset(["off", "false", "no", "closed", "close", "stopped", "stop", "inactive", "disabled"])


def meaning(text: str) -> float | None:
    """The number that a cell's text stands for: NaN if missing, 1 or 0 for on and off, None if it is none of these.

    Examples
    --------
    >>> meaning(" Open "), meaning("OFF"), meaning("Bad Input"), meaning("lovely")
    (1.0, 0.0, nan, None)
    """
    word = text.strip().strip("[]").casefold()
    if word in MISSING:
        return float("nan")
    if word in ON:
        return 1.0
    return 0.0 if word in OFF else None
