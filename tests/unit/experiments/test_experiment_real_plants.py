"""HAI and SWaT: the user's files are read, and stand-ins are called so everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from experiment_panels import drawn
from paper_results import real, real_task

import counterflow as cf
from counterflow.data.stand_ins import MARK, write_stand_in
from counterflow.errors import DataError
from counterflow.paper.experiments import figures, real_plants
from counterflow.paper.experiments.experiment import Outcome, Request, Task
from counterflow.paper.experiments.real_plants import STAND_IN, RealPlants, data_files


@pytest.fixture(scope="module")
def swat() -> Outcome:
    task = real_task("swat")
    return Outcome(task, RealPlants.compute(task), 1.0)


def test_training_is_the_published_one_on_the_prepared_rows(swat: Outcome) -> None:
    recording = real_plants.prepared(swat.task)
    assert recording.names == ("S1", "S2", "S3", "S4", "S5", "S6")
    y = np.hstack([recording[name].y for name in recording.names])
    np.testing.assert_allclose(y.std(axis=0), 1.0, atol=0.05)  # z-scores
    pooled = real_plants.pooled_model(recording)
    assert 0 < pooled.kept <= 1
    options = {"solver": "gradient", "xi": 10.0, "rounds": 8, "tol": 0.0, "initial_scale": 1.0, "seed": 1}
    history = cf.fit(recording, pooled.locals, method="penalty", **options).history
    np.testing.assert_allclose(swat.array("server_loss")[1], history.server_loss, rtol=1e-9)
    np.testing.assert_allclose(swat.array("delta_d/S3")[1], history.delta_d["S3"], rtol=1e-9)
    assert real_plants.units_of(swat) == list(recording.names)


def test_every_title_caption_and_claim_of_a_stand_in_says_so(swat: Outcome) -> None:
    for claim in RealPlants([swat]).claims:
        assert claim.verdict == (
            "beyond the paper" if claim.subject.endswith(("client losses", "δd")) else "not comparable"
        )
        assert all(STAND_IN in text for text in (claim.subject, claim.ours, claim.why))
    for figure in RealPlants([swat]).figures.values():
        assert STAND_IN in figure.caption.lower()
        assert all(STAND_IN in title for title in drawn(figure))


def test_figures_have_the_panels_of_the_papers(swat: Outcome) -> None:
    """Fig. 8: server loss, D, then L_m,a of six clients, then their delta_d; Fig. 7 the same of four."""
    (figure,) = RealPlants([swat]).figures.values()
    assert figure.paper == "Fig. 8"
    assert len(figure.panels) == 14
    along = [panel.y.split(" ")[0] for panel in figure.panels]
    assert along[2:8] == [f"$L_{{{k},a}}$" for k in range(1, 7)]
    assert [label.replace("\\delta d", "d") for label in (panel.y for panel in figure.panels[8:])] == [
        f"$d_{{{k}}}$ (states)" for k in range(1, 7)
    ]
    assert {name: data.figure for name, data in real_plants.DATA.items()} == {"hai": "Fig. 7", "swat": "Fig. 8"}


def test_own_files_are_read_and_not_called_stand_ins(tmp_path: Path) -> None:
    files = write_stand_in("hai", "21.03", tmp_path, rows=600)
    request = Request(quick=True, hai=tmp_path)
    (given, _) = RealPlants.tasks(request)
    assert given["source"].startswith(STAND_IN), "generated files stay stand-ins, whoever gives them"
    (tmp_path / MARK).unlink()  # as the real ones would be
    hai, other = RealPlants.tasks(request)
    assert hai["source"] == "files"
    assert other["source"] == STAND_IN
    assert hai["files"] == [str(path.resolve()) for path in files if "train" in path.name]
    mine = Task("real-plants", {**hai.settings, "rounds": 5, "runs": 1, "rows": 500})
    outcome = Outcome(mine, RealPlants.compute(mine), 1.0)
    assert outcome.array("rows") == 500
    for claim in RealPlants([outcome]).claims:
        assert STAND_IN not in claim.subject + claim.ours + claim.why
        assert claim.verdict in ("agrees", "does not hold")
    assert RealPlants([outcome]).options == (f"--hai {mine['files'][0]}",)
    (figure,) = RealPlants([outcome]).figures.values()
    assert STAND_IN not in figure.caption.lower() + "".join(panel.title for panel in figure.panels)


def test_other_contents_are_another_task(tmp_path: Path) -> None:
    file = tmp_path / "swat.csv"
    file.write_text("Timestamp,FIT101,LIT101\n")
    before = RealPlants.tasks(Request(swat=file))[1]
    file.write_text("Timestamp, FIT101,LIT101,MV101\n")
    after = RealPlants.tasks(Request(swat=file))[1]
    assert before["files"] == after["files"] == [str(file.resolve())]
    assert before["digest"] != after["digest"]


def test_a_directory_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing")
    with pytest.raises(DataError, match=r"no table"):
        data_files("hai", tmp_path)


@pytest.mark.parametrize("dataset", ["hai", "swat"])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("notes.pdf", "%PDF", "a log is a .csv"),
        ("other.csv", "Timestamp,speed\n1,2\n", "no column is named like one of"),
    ],
)
def test_files_of_another_kind_are_refused_before_anything_is_computed(
    tmp_path: Path, dataset: str, name: str, content: str, words: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        RealPlants.tasks(Request(**{dataset: tmp_path / name}))  # type: ignore[arg-type]
    assert f"--{dataset}" in str(caught.value)


def test_each_data_set_has_its_own_sentences_of_the_paper() -> None:
    hai, swat = (RealPlants([real(dataset)]).claims for dataset in ("hai", "swat"))
    assert not {claim.paper for claim in hai} & {claim.paper for claim in swat}
    told = {claim.subject.partition(": ")[2]: claim.verdict for claim in swat}
    assert told["client losses"] == told["δd"] == "beyond the paper", "its text does not speak of them"


def test_the_command_to_repeat_names_the_files() -> None:
    assert RealPlants([real("swat")]).options == ("--swat /here",)
    assert RealPlants([Outcome(real_task("hai"), {}, 0.1)]).options == ()


def test_the_server_is_in_the_legend(swat: Outcome) -> None:
    (figure,) = RealPlants([swat]).figures.values()
    (legend,) = figures.compose(figure).legends
    assert next(text.get_text() for text in legend.get_texts()) == "server"
