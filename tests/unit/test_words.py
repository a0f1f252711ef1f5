"""Numbers, times, names and caveats as people read them."""

from __future__ import annotations

import pytest

from counterflow import wording
from counterflow.caveats import Caveat, by_weight, scope_of, units_of, verdict_of, weight_of
from counterflow.cli.options import known_edges
from counterflow.frames import as_csv, as_pandas, as_polars, columns_of
from counterflow.randomness import stream


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (wording.number(1234.5), "1234"), (wording.number(0.031234), "0.0312"), (wording.number(1.5e9), "1.5e+09"),
        (wording.number(2.0, 1, sign=True), "+2.0"), (wording.number(-0.0001, 2), "0.00"),
        (wording.share(0.0312), "3.12 %"), (wording.share(0.5, 0), "50 %"), (wording.share(7.4), "over 100 %"),
        (wording.rows(3, 10, 1.0), "rows 3 to 9"), (wording.rows(3, 4, 60.0), "row 3"),
        (wording.rows(4, 8, 900.0), "rows 4 to 7 (60 min to 105 min from the first)"),
        (wording.clock(90), "90 s"), (wording.clock(600), "10 min"), (wording.clock(7200), "2 h"),
        (wording.clock(0.25), "0.25 s"),
        (wording.about(33.37), "about 33 s"), (wording.about(4000.0), "about 67 min"),
        (wording.moment("2026-03-01T10:30:00+01:00"), "2026-03-01 09:30 UTC"),
        (scope_of(["boiler", "turbine", "boiler"]), "boiler/turbine"),
        (weight_of("check-whiteness-fail"), "fails"), (weight_of("check-feedback-caution"), "caution"),
        (weight_of("model-form"), "choice"), (weight_of("of-a-newer-version"), "caution"),
        (verdict_of([Caveat("model-form", "", "linear")]), "clear"),
        (verdict_of([Caveat("not-converged", "", "not there yet")]), "fails"),
    ],
)  # fmt: skip
def test_words(written: str, text: str) -> None:
    assert written == text


def test_caveats_of_a_scope_and_by_weight() -> None:
    assert units_of("boiler/turbine") == ("boiler", "turbine")
    assert units_of("") == ()
    notes = [Caveat("model-form", "", "linear"), Caveat("not-converged", "", "the fit is not there yet")]
    assert [caveat.code for caveat in by_weight(notes)] == ["not-converged", "model-form"]


def test_edges_as_options_of_a_fit() -> None:
    assert known_edges(["boiler:turbine"], None) == {"edges": [["boiler", "turbine"]]}


def test_streams_differ_by_unit_and_are_the_same_again() -> None:
    one, same, other = (stream(7, "noise", name).random() for name in ("boiler", "boiler", "turbine"))
    assert one == same != other


def test_frames_of_both_kinds() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    index = pandas.date_range("2024-05-01 06:00", periods=2, freq="min", tz="Europe/Berlin")
    time, flow = as_polars(pandas.DataFrame({"flow": [1.5, None]}, index)).rows()[1]
    assert (time.isoformat(), flow) == ("2024-05-01T06:01:00+02:00", None)
    assert columns_of({"boiler": polars.DataFrame({"valve": [0.1, 0.2]})})["boiler"]["valve"].tolist() == [0.1, 0.2]
    back = as_pandas(polars.DataFrame({"row": [3, 4], "flow": [1.5, None]}), "row")
    assert back.index.tolist() == [3, 4]
    assert back["flow"].iloc[0] == 1.5
    assert pandas.isna(back["flow"].iloc[1])
    assert as_csv(polars.DataFrame({"=a": ["@sum(1)", "-x"], "b": [-1.0, float("nan")]})) == (
        b"'=a,b\n'@sum(1),-1.0\n'-x,\n"
    )
