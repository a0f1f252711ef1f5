"""The report holds every claim and every figure, needs nothing else, and is the same for the same results."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterflow.paper.experiments import figures as drawing
from counterflow.paper.experiments import report as report_page
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcome, Task
from counterflow.paper.experiments.figures import Drawing, Panel
from counterflow.paper.experiments.verdicts import VERDICTS, Verdict

CLAIMS = tuple(
    Claim(f"subject {k} <b>", f"paper {k} | bar", f"ours {k} & more", verdict, f"Rule: {k} > 1.")
    for k, verdict in enumerate(VERDICTS)
)
X = np.geomspace(1, 1000, 30)
TEXT = f"2 outcomes, {len(VERDICTS)} <claims>."


def figures() -> dict[str, Drawing]:
    losses = [drawing.band(X, [1 / X, 2 / X], "penalty <method>", 0), drawing.band(X, 3 / X, "baseline", 1)]
    sizes = [drawing.points([2, 4, 8], [[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]], "penalty <method>", 0)]
    second = Panel("Sizes", sizes, "size", "loss", log_x=[2, 4, 8])
    caption = "Losses & sizes; <bands> are ranges."
    return {
        "losses": Drawing(caption, (drawing.over_rounds("Losses", losses, "loss"), second)),
        "alone": Drawing("One panel.", (second,)),
    }


def axes_of(*curves: drawing.Curve, **axis: Any) -> Any:
    """Axes of a figure with one panel."""
    (axes,) = drawing.compose(Drawing("", (Panel("", curves, "", "", **axis),))).axes
    return axes


class Fake(Experiment):
    name, title, paper, question = "fake", "A title: with <marks>", "Table 7", "Why?"
    choices, text, options = ("we chose 3 < 4",), TEXT, ("--hai 'my files'",)

    def judge(self) -> tuple[Claim, ...]:
        return CLAIMS

    def draw(self) -> dict[str, Drawing]:
        return figures()


@pytest.fixture(scope="module")
def chapters() -> list[Experiment]:
    return [Fake([Outcome(Task("fake", {"seed": k}), {}, 1.25) for k in range(2)])]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, chapters: list[Experiment]) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report_page.write(chapters, folder, quick=True)
    return folder


def test_both_reports_hold_every_claim_with_verdict_and_reason(written: Path) -> None:
    page, text = unescape((written / "report.html").read_text()), (written / "report.md").read_text()
    for claim in CLAIMS:
        for part in (claim.subject, claim.paper, claim.ours, claim.verdict, claim.why):
            assert part in page
            assert part.replace("|", "\\|") in text
    for report in (page, text):
        assert "quick run" in report
        assert "2, 2.5 s of one core" in report
        assert "counterflow reproduce fake --quick --hai 'my files'" in report
        assert TEXT in report
        assert "Table 7" in report
        assert f"Verdicts: {', '.join(f'1 {verdict}' for verdict in VERDICTS)}." in report
    assert "we chose 3 < 4" in page
    assert "- we chose 3 < 4" in text
    assert text.count("**does not hold**") == 2, "in the table of all verdicts, and in its own"
    assert "(#a-title-with-marks)" in text


def test_the_page_needs_nothing_else_and_has_no_markup_of_the_data(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert "<b>" not in page
    assert "<marks>" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    assert "http://" not in page.replace("http-equiv", "")
    assert "https://" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids)), "drawings do not share ids"
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', page))
    assert used <= set(ids)
    assert page.count('class="wide"') == page.count('class="narrow"') == 2
    assert "var(--ink)" in page
    assert drawing.INK not in page[page.index("<body>") :], "ink follows the page, light or dark"


def test_figures_are_there_in_three_formats_and_do_not_change(
    written: Path, chapters: list[Experiment], tmp_path: Path
) -> None:
    names = {path.name for path in (written / "figures").iterdir()}
    assert names == {f"{name}.{ending}" for name in ("losses", "alone") for ending in ("svg", "pdf", "png")}
    again = drawing.files(chapters[0].figures["losses"])
    for ending, content in again.items():
        assert (written / "figures" / f"losses.{ending}").read_bytes() == content, ending
    width, height = (int.from_bytes(again["png"][k : k + 4], "big") for k in (16, 20))
    assert width == pytest.approx(7.2 * 200, abs=2)
    assert 400 < height < 700


def test_a_narrow_figure_has_its_panels_below_one_another() -> None:
    figure = drawing.compose(figures()["losses"], narrow=True)
    first, second = (axes.get_position() for axes in figure.axes)
    assert first.y0 > second.y1
    wide = drawing.compose(figures()["losses"])
    first, second = (axes.get_position() for axes in wide.axes)
    assert first.x1 < second.x0
    assert [axes.get_title(loc="left") for axes in wide.axes] == ["(a) Losses", "(b) Sizes"]
    (legend,) = wide.legends
    assert [text.get_text() for text in legend.get_texts()] == ["penalty <method>", "baseline"], "each entry once"


def test_a_band_is_the_range_of_the_runs_around_their_mean() -> None:
    axes = axes_of(drawing.band(X, [X, 3 * X], "runs"))
    np.testing.assert_allclose(axes.lines[0].get_ydata(), 2 * X)
    edges = axes.collections[0].get_paths()[0].vertices
    at = edges[np.isclose(edges[:, 0], X[7])][:, 1]
    assert at.min() == pytest.approx(X[7])
    assert at.max() == pytest.approx(3 * X[7])


def test_ticks_of_one_axis_are_all_plain_numbers_or_all_powers_of_ten() -> None:
    assert [drawing._tick(v, powers=False) for v in (0.01, 5.0, 30000.0)] == ["0.01", "5", "30000"]
    assert [drawing._tick(v, powers=True) for v in (0.1, 1e5, 3e-5)] == ["$10^{-1}$", "$10^{5}$", r"$3\cdot 10^{-5}$"]

    def labels(ticks: list[float] | None, low: float, high: float) -> list[str]:
        axes = axes_of(lambda axes: axes.plot([low, high], [1.0, 1.0]), log_x=ticks or True)
        return [text.get_text() for text in axes.get_xticklabels() if text.get_text()]

    assert labels([0.1, 10.0, 1000.0], 0.1, 1000.0) == ["0.1", "10", "1000"]
    assert labels([0.1, 10.0, 1e6], 0.1, 1e6) == ["$10^{-1}$", "$10^{1}$", "$10^{6}$"]
    assert all(text.startswith("$10^") for text in labels(None, 1e-6, 1.0))
    assert {"10", "20", "50"} <= set(labels(None, 6.0, 60.0)), "more than one or two on a short axis"


def test_claims_about_one_fact_count_once() -> None:
    def chapter(*verdicts: Verdict) -> Experiment:
        claims = tuple(Claim(f"{k}", "", "", verdict, "", "one fact") for k, verdict in enumerate(verdicts))
        made = Fake([])
        made.claims, made.figures = (*claims, Claim("alone", "", "", "agrees", "")), {}
        return made

    chapters = [chapter("does not hold", "does not hold"), chapter("does not hold", "undecided", "undecided")]
    assert report_page.counts(chapters) == {"agrees": 2, "does not hold": 1, "undecided": 1}
    text = report_page.markdown(chapters, quick=False)
    assert "Verdicts: 2 agrees, 1 does not hold, 1 undecided." in text
    assert "count once for each kind of verdict among them (one fact: 5 claims)." in text
    assert "counterflow reproduce fake --hai 'my files'\n" in text


def test_middles_of_runs_are_drawn_as_asked() -> None:
    runs = np.array([[1.0, 1.0], [1.0, 10.0], [10.0, 100.0]])
    wanted = {"mean": [4.0, 37.0], "median": [1.0, 10.0], "geometric mean": [10 ** (1 / 3), 10.0]}
    for middle, values in wanted.items():
        for draw in (drawing.points, drawing.band):
            axes = axes_of(draw(np.array([1.0, 2.0]), runs, "", middle=middle))
            np.testing.assert_allclose(axes.lines[0].get_ydata(), values)
    beside = axes_of(drawing.points([2, 4], runs, "runs", dodge=1.05))
    np.testing.assert_allclose(beside.lines[0].get_xdata(), [2.1, 4.2])
