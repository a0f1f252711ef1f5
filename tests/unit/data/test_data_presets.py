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


def first_lines(path: Path, count: int = 3) -> list[str]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return text.splitlines()[:count]


def test_hai_formats(files: dict[str, list[Path]]) -> None:
    assert [path.name for path in files["21.03"]] == ["train1.csv.gz", "test1.csv.gz"]
    header = first_lines(files["21.03"][0])[0].split(",")
    assert len(header) == 84
    assert (header[0], header[-4:]) == ("time", ["attack", "attack_P1", "attack_P2", "attack_P3"])
    counts = [sum(tag.startswith(f"P{k}_") for tag in header) for k in (1, 2, 3, 4)]
    assert counts == [38, 22, 7, 12]
    assert first_lines(files["21.03"][0])[1].startswith("2021-07-11 10:00:00,")
    assert len(first_lines(files["20.07"][0])[0].split(";")) == 64
    train, test = (first_lines(path)[0].split(",") for path in files["22.04"])
    assert len(train) == len(test) == 88
    assert (train[0], train[-1], test[0], test[-1]) == ("timestamp", "Attack", "time", "attack")
    assert {"P3_LH01", "P3_LL01"} < set(train)
    assert [path.name for path in files["23.05"]] == ["hai-train1.csv", "hai-test1.csv", "label-test1.csv"]
    assert not any("attack" in line.lower() for line in first_lines(files["23.05"][1], 1))
    assert first_lines(files["23.05"][2])[0] == "timestamp,label"


def test_swat_formats(files: dict[str, list[Path]]) -> None:
    for version in ("normal-v0", "normal-v1"):
        (path,) = files[version]
        stage, header, row = first_lines(path)
        assert path.name == f"SWaT_Dataset_Normal_{version[-2:]}.csv"
        assert stage.startswith(",P1,,,,,P2,")
        assert header.startswith(" Timestamp,FIT101,")
        assert header.endswith(",Normal/Attack")
        assert len(header.split(",")) == len(stage.split(",")) == 53
        assert row.startswith(" 22/12/2015 4:00:00 PM,")
    (path,) = files["attack-v0"]
    header = first_lines(path)[0]
    assert path.read_bytes().startswith(b"\xef\xbb\xbf Timestamp")
    assert [name for name in header.split(",") if name.startswith(" ")] == [
        " MV101", " AIT201", " MV201", " P201", " P202", " P204", " MV303",
    ]  # fmt: skip
    labels = {line.rsplit(",", 1)[1] for line in path.read_text().splitlines()[1:]}
    assert labels == {"Normal", "Attack", "A ttack"}
    assert files["xlsx"][0].suffix == ".xlsx"


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


def test_files_of_different_versions_do_not_mix(files: dict[str, list[Path]]) -> None:
    with pytest.raises(cf.DataError, match="have different columns"):
        prepare_hai([files["21.03"][0], files["22.04"][0]])


@pytest.mark.parametrize("standardise", [False, True])
def test_means_and_scales_are_saved(files: dict[str, list[Path]], standardise: bool) -> None:
    found = prepare_hai(files["21.03"][:1], standardise=standardise)
    plain = prepare_hai(files["21.03"][:1])
    frame = open_table(files["21.03"][0])
    for unit, part in found.recording.items():
        for k, channel in enumerate(part.unit.outputs):
            values = frame.numbers([channel.name])[channel.name].values
            mean, std = found.scales[unit][channel.name]
            assert mean == pytest.approx(values.mean(), rel=EXACT)
            assert std == pytest.approx(values.std(), rel=1e3 * EXACT)
            expected = (values - mean) / std if standardise else values
            np.testing.assert_allclose(part.y[:, k], expected, rtol=EXACT, atol=EXACT)
            np.testing.assert_allclose(plain.recording[unit].y[:, k], values, rtol=EXACT)


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


def test_csv_and_xlsx_of_swat_are_the_same(files: dict[str, list[Path]]) -> None:
    assert prepare_swat(files["xlsx"]).recording == prepare_swat(files["normal-v1"]).recording


def test_normal_and_attack_of_swat_are_one_table(files: dict[str, list[Path]]) -> None:
    found = prepare_swat([*files["normal-v0"], *files["attack-v0"]])
    assert found.recording.rows == 2 * ROWS - ROWS // 20 + 60 + min(ROWS // 20, 60)
    assert len(found.preparation.stretches) == 3


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


def test_dates_early_in_a_month_have_the_day_first(tmp_path: Path, files: dict[str, list[Path]]) -> None:
    text = files["attack-v0"][0].read_text(encoding="utf-8-sig").replace(" 28/12/2015", " 2/1/2016")
    (tmp_path / "january.csv").write_text(text)
    assert prepare_swat([tmp_path / "january.csv"]).preparation.start == "2016-01-02 10:00:00"


def test_wrong_files_are_refused(tmp_path: Path, files: dict[str, list[Path]]) -> None:
    with pytest.raises(cf.DataError, match="no file has a tag of this data set"):
        prepare_swat(files["21.03"][:1])
    with pytest.raises(cf.DataError, match="no file has a tag of this data set"):
        prepare_hai(files["attack-v0"])
    text = files["attack-v0"][0].read_text().replace("A ttack", "Assault")
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(cf.DataError, match="a row is labelled 'assault', neither Normal nor Attack"):
        prepare_swat([tmp_path / "a.csv"])
    header = "time,P1_LIT01,attack\n"
    (tmp_path / "b.csv").write_text(header + "2024-01-01 00:00:00,1,1\n2024-01-01 00:00:01,2,1\n")
    with pytest.raises(cf.DataError, match="every row is labelled as an attack"):
        prepare_hai([tmp_path / "b.csv"])
    (tmp_path / "c.csv").write_text(header + "2024-01-01 00:00:00,1,0\n2024-01-01 00:00:01,1,0\n")
    with pytest.raises(cf.DataError, match="no unit has an output left"):
        prepare_hai([tmp_path / "c.csv"])


def test_what_is_discrete() -> None:
    rng = np.random.default_rng(0)
    assert discrete_reason(np.array([0.0, 1.0] * 50)) == "2 values"
    assert discrete_reason(np.where(np.arange(1000) % 30 == 0, rng.random(1000), 5.0)) == "5 in 96.6 % of the rows"
    assert discrete_reason(np.repeat([1.0, 2.0, 3.0, 4.0], 1000)) == "3 changes in 4000 rows"
    assert discrete_reason(rng.standard_normal(1000)) is None


@pytest.mark.parametrize(("dataset", "version"), [("hai", "19.99"), ("swat", "v9"), ("other", None)])
def test_stand_ins_that_are_not_there(tmp_path: Path, dataset: str, version: str | None) -> None:
    with pytest.raises(cf.OptionError, match="is not known"):
        write_stand_in(dataset, version, tmp_path)


def test_stand_ins_are_coupled_and_repeatable(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    for folder, seed in ((one, 0), (two, 0), (other, 1)):
        folder.mkdir()
        write_stand_in("hai", "21.03", folder, 200, seed)
    name = "train1.csv.gz"
    assert (one / name).read_bytes() == (two / name).read_bytes() != (other / name).read_bytes()
