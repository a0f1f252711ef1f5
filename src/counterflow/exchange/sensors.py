"""What a unit does about its own sensors before a fit: which readings it leaves out, and what it tells of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.exchange.options import by_unit, for_each_unit, one_of
from counterflow.exchange.task import Task, UnitData
from counterflow.identification.sensors import HELD, QUANTISED, SATURATED, SPIKE, STUCK, Finding, Sensor
from counterflow.plant import Unit

TREATED, AS_THEY_ARE = "treated", "as they are"
SENSORS = for_each_unit(one_of(TREATED, AS_THEY_ARE))  # what the option may be; None: readings are treated
MOST_NAMED = 8  # channels in one sentence
KEEP = f"sensors={AS_THEY_ARE!r} keeps all readings"
SENTENCES: Mapping[str, tuple[str, str]] = {  # by kind: code of the caveat, and its text
    SPIKE: ("sensor-spikes", "readings that jump away and come back were left out: {channels}. {keep}"),
    STUCK: (
        "sensor-stuck",
        "sensors stood still far longer than they usually do; the readings that repeat the one before were left out: "
        "{channels}. {keep}",
    ),
    SATURATED: (
        "sensor-saturated",
        "sensors reached the end of their range, where a reading says only that the truth lies there or beyond; these "
        "readings were left out: {channels}. {keep}",
    ),
    HELD: (
        "sensor-held",
        "the log repeats the last reading of slow sensors; only the rows in which a reading arrived are used: "
        "{channels}. {keep}",
    ),
    QUANTISED: (
        "sensor-quantised",
        "the steps of sensors are not small beside what they show from row to row; nothing was left out, and movements "
        "below a step are not seen: {channels}",
    ),
}


class Readings(NamedTuple):
    """Measurements (T+1, D_m) that a unit believes, what is known of its sensors, and what it tells."""

    y: FloatArray
    sensors: tuple[Sensor, ...] = ()
    caveats: tuple[Caveat, ...] = ()


def kept_as_they_are(value: object, units: tuple[str, ...]) -> frozenset[str]:
    """Units none of whose readings are left out."""
    return frozenset(name for name, one in by_unit("sensors", value, units).items() if one == AS_THEY_ARE)


def refuse_private(task: Task) -> None:
    """OptionError if readings are to be treated that are to be private as well."""
    if task.privacy is not None and TREATED in by_unit("sensors", task.options.get("sensors"), task.units).values():
        raise OptionError(
            f"{task.label}: sensors={TREATED!r} does not go with privacy: whether a reading is left out depends on "
            f"other rows, and the accounting counts each row by itself. Leave it out, or say sensors={AS_THEY_ARE!r}"
        )


def readings(task: Task, own: UnitData) -> Readings:
    """What a unit makes of its measurements before a fit.

    A private release takes them as they are: its accounting rests on a row of the message depending on one row of
    measurements, and it clips wild readings by itself.
    """
    wanted = by_unit("sensors", task.options.get("sensors"), task.units).get(own.unit.name)
    if task.privacy is not None or wanted == AS_THEY_ARE:
        return Readings(own.y)
    sensors, judged = own.inspected
    return Readings(judged.values, sensors, sensor_caveats(own.unit, judged.findings))


def sensor_caveats(unit: Unit, findings: Sequence[Finding]) -> tuple[Caveat, ...]:
    """What sensors did and what was done about it, one caveat for each kind."""
    out = []
    for kind, (code, text) in SENTENCES.items():
        named = [f"{unit.outputs[f.channel].name} ({what(unit, f)})" for f in findings if f.kind == kind]
        if named:
            more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
            told = text.format(channels="; ".join(named[:MOST_NAMED]) + more, keep=KEEP)
            out.append(Caveat(code, unit.name, f"unit {unit.name!r}: {told}"))
    return tuple(out)


def what(unit: Unit, found: Finding) -> str:
    """What one channel's sensor did, in a few words.

    Examples
    --------
    >>> what(Unit("boiler", outputs=["pressure"]), Finding(0, "spike", 3, 17, 940, 1e6))
    '3 readings in rows 17 to 940, up to 1e+06'
    """
    value = wording.quantity(f"{found.detail:.6g}", unit.outputs[found.channel].unit)
    rows = f"row {found.first}" if found.first == found.last else f"rows {found.first} to {found.last}"
    count = f"{found.count} reading{'s'[: found.count != 1]} in {rows}"
    if found.kind == HELD:
        every = f"one every {found.detail:g} rows" if found.detail else "they come irregularly"
        return f"{every}, {found.count} repeats left out"
    if found.kind == QUANTISED:
        return f"step {value}"
    if found.kind == STUCK:
        return f"{count}, up to {found.detail:g} in a row"
    return f"{count}, {'at' if found.kind == SATURATED else 'up to'} {value}"
