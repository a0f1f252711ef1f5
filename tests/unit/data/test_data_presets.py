"""HAI and SWaT on stand-ins: the readers take every quirk, and the steps do what the paper says.

The stand-ins are simulated; the real data sets are not here.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow.data import hai, open_table, swat
from counterflow.data.hai import prepare_hai
from counterflow.data.presets import discrete_reason
from counterflow.data.stand_ins import HAI_VERSIONS, SWAT_VERSIONS, hai_tags, write_stand_in
from counterflow.data.swat import prepare_swat

ROWS = 1300  # so that attacks last longer than the gap that is left of them


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    found = {}
    for dataset, versions in (("hai", HAI_VERSIONS), ("swat", SWAT_VERSIONS)):
        for version in versions:
            folder = tmp_path_factory.mktemp(version)
            found[version] = write_stand_in(dataset, version, folder, ROWS, seed=1)[:-1]
            assert "not the real data set" in (folder / "NOT-THE-REAL-DATA-SET.txt").read_text()
    return found


# ---- the files have the formats that they stand in for


FORMATS = {  # header and rows: how each begins and ends, and how many cells it has
    "20.07": [("time;P1_B2004;", ";attack_P3", 64), ("2021-07-11 10:00:00;", ";0", 64)],
    "21.03": [
        ("time,P1_B2004,", ",attack,attack_P1,attack_P2,attack_P3", 84),
        ("2021-07-11 10:00:00,", ",0,0,0,0", 84),
    ],
    "22.04": [("timestamp,", ",Attack", 88), ("2021-07-11 10:00:00,", ",0", 88)],
    "23.05": [("timestamp,", ",x1001_05_SETPOINT_OUT,x1001_15_ASSIGN_OUT", 0)],
    "normal-v0": [(",P1,,,,,P2,", ",", 53), (" Timestamp,FIT101,", ",Normal/Attack", 53)],
    "normal-v1": [
        (",P1,,,,,P2,", ",", 53),
        (" Timestamp,", ",Normal/Attack", 53),
        (" 22/12/2015 4:00:00 PM,", "l", 53),
    ],
    "attack-v0": [("\ufeff Timestamp,FIT101,LIT101, MV101,", ",Normal/Attack", 53)],
}


@pytest.mark.parametrize("version", FORMATS)
def test_formats(files: dict[str, list[Path]], version: str) -> None:
    data = files[version][0].read_bytes()
    text = (gzip.decompress(data) if version == "21.03" else data).decode()
    separator = ";" if version == "20.07" else ","
    for line, (start, end, cells) in zip(text.splitlines(), FORMATS[version], strict=False):
        assert (line.startswith(start), line.endswith(end)) == (True, True), line
        assert not cells or line.count(separator) == cells - 1


def test_quirks_of_files(files: dict[str, list[Path]]) -> None:
    names = {version: [path.name for path in files[version]] for version in files}
    assert names["21.03"] == ["train1.csv.gz", "test1.csv.gz"]
    assert names["23.05"] == ["hai-train1.csv", "hai-test1.csv", "label-test1.csv"]
    assert names["normal-v1"] == ["SWaT_Dataset_Normal_v1.csv"]
    test = files["22.04"][1].read_text().splitlines()[0].split(",")
    assert (test[0], test[-1]) == ("time", "attack")  # spelled otherwise than in the other file
    assert {"P3_LH01", "P3_LL01"} < set(test)
    assert files["23.05"][2].read_text().startswith("timestamp,label\n")
    header, *rows = files["attack-v0"][0].read_text().splitlines()
    blanks = [" MV101", " AIT201", " MV201", " P201", " P202", " P204", " MV303"]
    assert [name for name in header.split(",") if name.startswith(" ")] == blanks
    assert {line.rsplit(",", 1)[1] for line in rows} == {"Normal", "Attack", "A ttack"}
    counts = [sum(tag.startswith(f"P{k}_") for tag in hai_tags("21.03")) for k in (1, 2, 3, 4)]
    assert counts == [38, 22, 7, 12]


# ---- the steps


@pytest.mark.parametrize("version", HAI_VERSIONS)
def test_every_version_of_hai(files: dict[str, list[Path]], version: str) -> None:
    found = prepare_hai(files[version])
    recording = found.recording
    assert recording.names == ("P1", "P2", "P3", "P4")
    attacked = max(2, ROWS // 20)
    # two files on two days, and an attack cut out: gaps of at most 60 s are left of both
    assert recording.rows == 2 * ROWS - attacked + 60 + min(attacked, 60)
    assert found.preparation.stretches[0] == (0, ROWS)
    assert sum(stop - start for start, stop in found.preparation.stretches) == 2 * ROWS - attacked
    for name, part in recording.items():
        for channel in (*part.unit.inputs, *part.unit.outputs):
            assert hai.unit_of(channel.name) == name
        assert np.isfinite(part.u).all()
    tags = hai_tags(version)
    assert set(found.fate) == set(tags)
    kept = {tag for tag, fate in found.fate.items() if fate.startswith("kept")}
    assert kept == {c.name for part in recording.values() for c in (*part.unit.inputs, *part.unit.outputs)}
    assert {"P1_FCV01D", "P1_LIT01"} <= kept
    assert found.fate["P1_LIT01"] == "kept, output of P1"
    assert found.fate["P1_PP01AR"].startswith("dropped in step ii: always")
    if version == "21.03":
        constant = "P1_PCV02D P1_PP01AD P1_PP02R P1_STSP P2_ASD P2_Emerg P2_RTR P2_VTR04 P3_LH P3_LL".split()  # noqa: SIM905
        assert all("step ii" in found.fate[tag] for tag in constant)
        assert found.fate["P1_B3004"].startswith("dropped in step iii")  # a set point that moved once
    if version == "23.05":
        assert found.fate["x1001_05_SETPOINT_OUT"] == "left out in step i: it belongs to no unit"


def test_attacks_may_be_kept_and_labels_may_be_given_apart(files: dict[str, list[Path]]) -> None:
    with_attacks = prepare_hai(files["21.03"], normal_only=False).recording
    assert with_attacks.rows == 2 * ROWS + 60
    *data, labels = files["23.05"]
    apart = prepare_hai(data, labels=[labels]).recording
    among = prepare_hai(files["23.05"]).recording
    assert apart == among
    assert prepare_hai(data).recording.rows == 2 * ROWS + 60  # without labels nothing is known of attacks
    with pytest.raises(cf.DataError, match="no file has a tag of this data set, only time, label"):
        prepare_hai([labels])


@pytest.mark.parametrize("version", SWAT_VERSIONS)
def test_every_version_of_swat(files: dict[str, list[Path]], version: str) -> None:
    found = prepare_swat(files[version], noise=0.0)
    recording = found.recording
    assert recording.names == ("S1", "S2", "S3", "S4", "S5", "S6")
    attacked = max(4, ROWS // 20) if version == "attack-v0" else 0
    assert recording.rows == ROWS - attacked + min(attacked, 60)
    for name, part in recording.items():
        assert set(np.unique(part.u)) <= {0.0, 1.0}  # bits, tri-states collapsed
        for channel in (*part.unit.inputs, *part.unit.outputs):
            assert swat.unit_of(channel.name) == name
    assert "MV101" in recording["S1"].unit.input_names
    assert "LIT101" in recording["S1"].unit.output_names
    assert found.fate["P102"].startswith("dropped in step ii: always 1")
    assert found.fate["FIT503"].startswith("dropped in step iii")
    assert found.fate["AIT501"].startswith("dropped in step iv: largest correlation with another stage 0.0")
    times = {"attack-v0": "2015-12-28 10:00:00"}.get(version, "2015-12-22 16:00:00")
    assert found.preparation.start == times


def test_the_first_rows_only_and_constants_again(files: dict[str, list[Path]]) -> None:
    found = prepare_swat(files["normal-v1"], rows=400)
    assert found.recording.rows == 400
    assert any("the first 400 of 1300 rows" in step.text for step in found.preparation.steps)
    frame = polars.read_csv(files["normal-v1"][0], skip_rows=1)
    late = frame.with_columns(
        polars.when(polars.int_range(polars.len()) < 600).then(1.0).otherwise(2.0).alias("P102")
    )  # moves only after the rows that are kept
    path = files["normal-v1"][0].with_name("late.csv")
    late.write_csv(path)
    assert "step ii" not in prepare_swat([path]).fate["P102"]
    assert prepare_swat([path], rows=400).fate["P102"] == "dropped in step ii: always 1"


def test_noise_on_discrete_inputs_only(files: dict[str, list[Path]]) -> None:
    quiet, noisy, again = (prepare_swat(files["normal-v1"], noise=n, seed=5) for n in (0.0, 0.02, 0.02))
    assert noisy.recording == again.recording
    for unit, part in quiet.recording.items():
        np.testing.assert_array_equal(part.y, noisy.recording[unit].y)
        added = noisy.recording[unit].u - part.u
        for k, channel in enumerate(part.unit.inputs):
            std = quiet.scales[unit][channel.name][1]
            assert added[:, k].std() == pytest.approx(0.02 * std, rel=0.1)  # 900 draws: 0.024 is one standard error
    other = prepare_swat(files["normal-v1"], noise=0.02, seed=6).recording
    assert other != noisy.recording


def test_correlations_against_numpy(files: dict[str, list[Path]]) -> None:
    """A variable is kept if its correlation with any variable of another stage is above the threshold."""
    everything = prepare_swat(files["normal-v1"], correlation=0.0, noise=0.0).recording
    columns = {
        channel.name: array[:, k]
        for part in everything.values()
        for channels, array in ((part.unit.inputs, part.u), (part.unit.outputs, part.y))
        for k, channel in enumerate(channels)
    }
    for least in (0.3, 0.6):
        kept = {
            one
            for one in columns
            if any(
                abs(np.corrcoef(columns[one], columns[other])[0, 1]) > least
                for other in columns
                if swat.unit_of(one) != swat.unit_of(other)
            )
        }
        found = prepare_swat(files["normal-v1"], correlation=least, noise=0.0)
        assert {tag for tag, fate in found.fate.items() if fate.startswith("kept")} == kept
        assert 0 < len(kept) < len(columns)


def test_what_is_discrete() -> None:
    rng = np.random.default_rng(0)
    assert discrete_reason(np.array([0.0, 1.0] * 50)) == "2 values"
    assert discrete_reason(np.where(np.arange(1000) % 30 == 0, rng.random(1000), 5.0)) == "5 in 96.6 % of the rows"
    assert discrete_reason(np.repeat([1.0, 2.0, 3.0, 4.0], 1000)) == "3 changes in 4000 rows"
    assert discrete_reason(rng.standard_normal(1000)) == ""


@pytest.mark.parametrize("standardise", [False, True])
def test_means_and_scales_are_saved(files: dict[str, list[Path]], standardise: bool) -> None:
    found, table = prepare_hai(files["21.03"][:1], standardise=standardise), open_table(files["21.03"][0])
    for unit, part in found.recording.items():
        for k, name in enumerate(part.unit.output_names):
            values = table.numbers([name])[name].values
            mean, std = found.scales[unit][name]
            assert mean == pytest.approx(values.mean(), rel=EXACT)
            assert std == pytest.approx(values.std(), rel=1e3 * EXACT)
            expected = (values - mean) / std if standardise else values
            np.testing.assert_allclose(part.y[:, k], expected, rtol=EXACT, atol=EXACT)


def test_several_files_of_swat(tmp_path: Path, files: dict[str, list[Path]]) -> None:
    """CSV and XLSX are the same; normal and attack are one table; dates early in a month have the day first."""
    assert prepare_swat(files["xlsx"]).recording == prepare_swat(files["normal-v1"]).recording
    found = prepare_swat([*files["normal-v0"], *files["attack-v0"]])
    assert found.recording.rows == 2 * ROWS - ROWS // 20 + 60 + min(ROWS // 20, 60)
    assert len(found.preparation.stretches) == 3
    text = files["attack-v0"][0].read_text(encoding="utf-8-sig").replace(" 28/12/2015", " 2/1/2016")
    (tmp_path / "january.csv").write_text(text)
    assert prepare_swat([tmp_path / "january.csv"]).preparation.start == "2016-01-02 10:00:00"


def test_wrong_files_are_refused(tmp_path: Path, files: dict[str, list[Path]]) -> None:
    assaulted, rows = (
        tmp_path / "a.csv",
        "time,P1_LIT01,attack\n2024-01-01 00:00:00,1,{0}\n2024-01-01 00:00:01,{1},{0}\n",
    )
    assaulted.write_text(files["attack-v0"][0].read_text().replace("A ttack", "Assault"))
    (tmp_path / "b.csv").write_text(rows.format(1, 2))
    (tmp_path / "c.csv").write_text(rows.format(0, 1))
    for prepare, given, said in (
        (prepare_swat, files["21.03"][:1], "no file has a tag of this data set"),
        (prepare_hai, files["attack-v0"], "no file has a tag of this data set"),
        (prepare_hai, [files["21.03"][0], files["22.04"][0]], "have different columns"),
        (prepare_swat, [assaulted], "a row is labelled 'assault', neither Normal nor Attack"),
        (prepare_hai, [tmp_path / "b.csv"], "every row is labelled as an attack"),
        (prepare_hai, [tmp_path / "c.csv"], "no unit has an output left"),
    ):
        with pytest.raises(cf.DataError, match=said):
            prepare(given)
    for dataset, version in (("hai", "19.99"), ("swat", "v9"), ("other", None)):
        with pytest.raises(cf.OptionError, match="is not known"):
            write_stand_in(dataset, version, tmp_path)


def test_stand_ins_are_repeatable(tmp_path: Path) -> None:
    def written(seed: int) -> bytes:
        return write_stand_in("hai", "21.03", tmp_path, 200, seed)[0].read_bytes()

    assert written(0) == written(0) != written(1)
