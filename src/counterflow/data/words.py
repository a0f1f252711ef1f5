"""Words that stand in place of numbers in logs: on, off and missing, and what historians say of a value's quality."""

from __future__ import annotations

# as historians, spreadsheets and PLC gateways write them, in lower case
_MISSING = frozenset(
    (
        "", "nan", "null", "none", "na", "n/a", "#n/a", "#value!", "#ref!", "#div/0!", "?", "-", "--", "---", "bad",
        "bad input", "bad value", "bad quality", "no data", "no sample", "no value", "i/o timeout", "comm fail",
        "comm failure", "pt created", "not connect", "not connected", "out of serv", "out of service", "configure",
        "shutdown", "scan off", "scan timeout", "error", "missing", "invalid", "over range", "under range",
        "calc failed", "sensor failure", "bad data", "uncertain", "stale", "offline", "disconnected", "timeout",
    )
)  # fmt: skip
_ON = frozenset(["on", "true", "yes", "open", "opened", "running", "run", "start", "started", "active", "enabled"])
_OFF = frozenset(["off", "false", "no", "closed", "close", "stopped", "stop", "inactive", "disabled"])
_GOOD = frozenset(["good", "ok", "valid", "g", "true", "gut", "normal", "192", "0x000000c0", "goodnonspecific"])


def meaning(text: str) -> float | None:
    """The number that a cell's text stands for: NaN if missing, 1 or 0 for on and off, None if it is none of these.

    Examples
    --------
    >>> meaning(" Open "), meaning("OFF"), meaning("Bad Input"), meaning("lovely")
    (1.0, 0.0, nan, None)
    """
    word = text.strip().strip("[]").casefold()
    if word in _MISSING:
        return float("nan")
    if word in _ON:
        return 1.0
    return 0.0 if word in _OFF else None


def good_qualities(counts: dict[str, int]) -> frozenset[str]:
    """Which of the qualities that values have mean that a value is good; `counts` says how often each occurs.

    Words are taken as such. Numbers are OPC's: from 192 on in its classic form, 0 in OPC UA; a number of another custom
    is good if it is the commonest.

    Examples
    --------
    >>> sorted(good_qualities({"192": 90, "0": 3, "216": 1})), sorted(good_qualities({"Good": 5, "Bad - No data": 9}))
    (['192', '216'], ['Good'])
    >>> sorted(good_qualities({"0": 90, "2147483648": 3})), sorted(good_qualities({"100": 90, "0": 3}))
    (['0'], ['100'])
    """
    numbers = {}
    for text in counts:
        try:
            numbers[text] = int(float(text))
        except (ValueError, OverflowError):
            continue
    good = {text for text in counts if text not in numbers and _is_good(text)}
    if numbers:
        commonest = max(numbers, key=lambda text: counts[text])
        classic = any(192 <= number <= 255 for number in numbers.values()) and max(numbers.values()) <= 255
        for text, number in numbers.items():
            # an OPC UA status is good if its two highest bits are zero
            if (
                192 <= number <= 255
                if classic
                else (0 <= number < 1 << 30 if max(numbers.values()) >= 1 << 30 else text == commonest)
            ):
                good.add(text)
    return frozenset(good)


def _is_good(text: str) -> bool:
    word = text.strip().casefold()
    return word in _GOOD or word.startswith("good")
