"""Text from another party is printable and bounded where it arrives, and harmless where it is printed."""

from __future__ import annotations

import io
import json

import pytest

from counterflow.caveats import Caveat, from_text
from counterflow.cli import output
from counterflow.errors import CounterflowError, ModelError, OptionError, ProtocolError, StorageError
from counterflow.exchange.outcome import Provenance
from counterflow.federation.job import Job
from counterflow.federation.policy import Policy
from counterflow.notebook import Table
from counterflow.plant import Channel
from counterflow.printable import flaw, shown
from counterflow.protocol import Ask, Refused
from counterflow.records import describe, restore

HOSTILE = {
    "escape sequence": "bar\x1b[3A\x1b[2Kkey: SHA256:AA",
    "one-byte escape": "bar\x9b2K",
    "null": "bar\x00",
    "line": "bar\nkey: SHA256:AA",
    "carriage return": "bar\rkey:",
    "right to left": "bar\u202erab",
    "isolate": "bar\u2066",
    "mark of direction": "bar\u200e",
    "arabic mark": "bar\u061c",
    "zero width": "b\u200bar",
    "joiner": "b\u200dar",
    "byte order mark": "\ufeffbar",
    "line separator": "bar\u2028",
    "paragraph separator": "bar\u2029",
    "lone surrogate": "bar\ud800",
    "private use": "bar\ue000",
    "unassigned": "bar\U000e0fff",
    "letter without ink": "bar\u3164",
    "very long": "b" * 700_000,
}
GOOD = ("°C", "µS/cm", "m³/h", "Ω", "温度", "давление", "ºC", "½", "kg·m⁻³", "'q'", "[bold]", "%", "10\u00a0bar")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_does_not_print_is_refused_wherever_it_arrives(text: str) -> None:
    job = Job("fit-1", "sufficient", {"boiler": [Channel("fuel", "kg/s")], "turbine": []}).to_json()
    unit = {"name": "boiler", "inputs": [{"name": "fuel", "unit": text, "limits": None}]}
    record = {
        **describe(Provenance("1", 0, "d", "sufficient", "fit-1", "2026-01-01T00:00:00+00:00"))[0],
        "version": text,
    }
    arrivals = (
        (ModelError, lambda: Channel("fuel", text)),
        (ModelError, lambda: Channel(text)),
        (ModelError, lambda: Channel.from_json({"name": "fuel", "unit": text, "limits": None})),
        (OptionError, lambda: Job.from_json({**job, "units": [unit]})),
        (OptionError, lambda: Job.from_json({**job, "begins": text})),
        (OptionError, lambda: Job.from_json({**job, "created": f"2026-01-01{text}10:00+00:00"})),
        (OptionError, lambda: Job.from_json({**job, "options": {"tol": text}})),
        (OptionError, lambda: Policy.from_asking({"unit": "boiler", "ask": {"turbine": [text]}, "answers": True})),
        (ProtocolError, lambda: Ask(text, "effect", 0, 1)),
        (ProtocolError, lambda: Refused("boiler", "DataError", "data", text)),
        (ProtocolError, lambda: from_text(json.dumps([{"code": "x", "scope": "", "text": text}]))),
        (ProtocolError, lambda: from_text(json.dumps([{"code": "x", "scope": text, "text": "x"}]))),
        (StorageError, lambda: restore(Provenance, record, {})),
    )
    for error, arrives in arrivals:
        with pytest.raises(error) as caught:
            arrives()
        assert len(str(caught.value)) < 1000
        assert "\x1b" not in str(caught.value)


def test_names_and_units_of_measure_of_all_languages_stay() -> None:
    for text in GOOD:
        assert flaw(text) == "", text
        assert shown(text) == text
        assert Channel("fuel", text).unit == text
    assert Channel("fuel", "k\u2126").unit == "kΩ", "signs that are written in two ways become one"


def test_two_names_that_look_alike_do_not_come_from_elsewhere() -> None:
    apart = "dru\u0308ck"  # the same letters as in the composed form
    assert Channel(apart).name == apart, "at home a name is what its owner has written"
    with pytest.raises(OptionError, match="NFC"):
        Job("fit-1", "sufficient", {"boiler": [apart]})


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_printed_cannot_move_the_cursor(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(text, [text, "b"], [[text, "[link=x]y"]], more=text)
    output.show(f"{text} [bold red]not bold[/bold red] [/]", table, output.Line(text, "bold"), *output.noted([text]))
    output.tell_error(_Context(), CounterflowError(text))  # type: ignore[arg-type]
    told = capsys.readouterr()
    for line in (told.out + told.err).split("\n"):
        assert flaw(line, 10**9) == ""
    assert "[bold red]not bold[/bold red] [/]" in told.out or len(text) > 1000


class _Context:
    meta: dict[str, object] = {}  # noqa: RUF012


def test_caveats_made_here_are_made_printable() -> None:
    """A path or an error of another library may stand in one; what arrives is refused instead."""
    made = Caveat("x", "", "two\nlines\x1b[2K")
    assert str(made) == "two lines\\x1b[2K"
    assert from_text(json.dumps([made.to_json()])) == (made,)
    assert io.StringIO(str(Caveat("x", "", "y" * 100_000))).read().endswith("...")
